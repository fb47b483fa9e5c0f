//! Units: time, bytes, and the identifiers of spaces, tiers, pages and blocks.
//!
//! In: plain numbers and texts such as "2GiB", "250ms", "50%". Out: newtypes that cannot be mixed up. Must not: read a clock; the driver
//! defines `Time`.

use std::fmt;
use std::ops::{Add, AddAssign, Sub, SubAssign};
use std::str::FromStr;
use std::time::Duration;

/// Bytes in a base page. Every page in Terrace is 4 KiB; a 2 MiB mapping is a block of them marked huge.
pub const PAGE_BYTES: u64 = 4096;
/// `log2(PAGE_BYTES)`: an address shifted right by this is a virtual page number.
pub const PAGE_SHIFT: u32 = 12;
/// Pages in a block: the 512 entries of one last-level page table, 2 MiB of addresses.
pub const BLOCK_PAGES: u32 = 512;
/// `log2(BLOCK_PAGES)`.
pub const BLOCK_SHIFT: u32 = 9;

/// A point in time: nanoseconds since an origin that only the driver knows (boot, start of the trace, zero).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct Time(u64);

impl Time {
    /// The origin.
    pub const ZERO: Time = Time(0);
    /// Later than everything.
    pub const FAR_FUTURE: Time = Time(u64::MAX);

    /// `nanoseconds` after the origin.
    pub const fn from_nanos(nanos: u64) -> Time {
        Time(nanos)
    }

    /// Nanoseconds since the origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Whole seconds since the origin.
    pub const fn as_secs(self) -> u64 {
        self.0 / 1_000_000_000
    }

    /// Seconds since the origin, as a float for reports.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// Time since `earlier`; zero where `earlier` is later.
    pub const fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Time {
    type Output = Time;
    fn add(self, span: Duration) -> Time {
        Time(self.0.saturating_add(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// An amount of memory or traffic in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct Bytes(u64);

impl Bytes {
    /// No bytes.
    pub const ZERO: Bytes = Bytes(0);

    /// `bytes` bytes.
    pub const fn new(bytes: u64) -> Bytes {
        Bytes(bytes)
    }

    /// `n` KiB.
    pub const fn kib(n: u64) -> Bytes {
        Bytes(n << 10)
    }

    /// `n` MiB.
    pub const fn mib(n: u64) -> Bytes {
        Bytes(n << 20)
    }

    /// `n` GiB.
    pub const fn gib(n: u64) -> Bytes {
        Bytes(n << 30)
    }

    /// The bytes of `pages` pages of 4 KiB.
    pub const fn of_pages(pages: u64) -> Bytes {
        Bytes(pages << PAGE_SHIFT)
    }

    /// The number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Whole 4 KiB pages in this amount, rounded down.
    pub const fn pages(self) -> u64 {
        self.0 >> PAGE_SHIFT
    }

    /// Subtraction that stops at zero.
    pub const fn saturating_sub(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_sub(other.0))
    }

    /// This share of the amount, rounded to the nearest byte.
    pub fn share(self, share: f64) -> Bytes {
        Bytes((self.0 as f64 * share).round() as u64)
    }
}

impl Add for Bytes {
    type Output = Bytes;
    fn add(self, other: Bytes) -> Bytes {
        Bytes(self.0 + other.0)
    }
}

impl Sub for Bytes {
    type Output = Bytes;
    fn sub(self, other: Bytes) -> Bytes {
        Bytes(self.0 - other.0)
    }
}

impl AddAssign for Bytes {
    fn add_assign(&mut self, other: Bytes) {
        self.0 += other.0;
    }
}

impl SubAssign for Bytes {
    fn sub_assign(&mut self, other: Bytes) {
        self.0 -= other.0;
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(&bytesize::ByteSize(self.0).display().iec().to_string())
    }
}

/// A text that is not a valid quantity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not {wanted}")]
pub struct ParseUnitError {
    text: String,
    wanted: &'static str,
}

impl FromStr for Bytes {
    type Err = ParseUnitError;

    /// "2GiB", "512M", "4096". A suffix without "iB" is binary too, as in the kernel's own interfaces.
    fn from_str(text: &str) -> Result<Bytes, ParseUnitError> {
        let refused = || ParseUnitError { text: text.to_owned(), wanted: "a size such as 512MiB or 2GiB" };
        let trimmed = text.trim();
        let binary = match trimmed.strip_suffix(['K', 'M', 'G', 'T', 'k', 'm', 'g', 't']) {
            Some(_) => format!("{trimmed}iB"),
            None => trimmed.to_owned(),
        };
        binary.parse::<bytesize::ByteSize>().map(|size| Bytes(size.0)).map_err(|_| refused())
    }
}

/// Reads a span such as "250ms", "1.5s" or "2m".
///
/// # Errors
/// The text is not a duration, or is negative.
pub fn parse_duration(text: &str) -> Result<Duration, ParseUnitError> {
    let refused = || ParseUnitError { text: text.to_owned(), wanted: "a duration such as 250ms, 5s or 2m" };
    let span: jiff::SignedDuration = text.trim().parse().map_err(|_| refused())?;
    Duration::try_from(span).map_err(|_| refused())
}

/// Reads a share such as "50%" or "0.5"; the result is in 0 to 1.
///
/// # Errors
/// The text is not a number, is not finite, or is outside 0 to 100 %.
pub fn parse_share(text: &str) -> Result<f64, ParseUnitError> {
    let refused = || ParseUnitError { text: text.to_owned(), wanted: "a share between 0% and 100%, such as 50%" };
    let trimmed = text.trim();
    let share = match trimmed.strip_suffix('%') {
        Some(percent) => percent.trim().parse::<f64>().map_err(|_| refused())? / 100.0,
        None => trimmed.parse::<f64>().map_err(|_| refused())?,
    };
    if (0.0..=1.0).contains(&share) { Ok(share) } else { Err(refused()) }
}

/// A share, or an amount: "50%" or "2GiB". The option or key that takes it defines the whole.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Quantity {
    /// A share, from 0 to 1.
    Share(f64),
    /// An amount.
    Bytes(Bytes),
}

impl Quantity {
    /// The amount for a whole of this size.
    pub fn of(self, whole: Bytes) -> Bytes {
        match self {
            Quantity::Share(share) => whole.share(share),
            Quantity::Bytes(bytes) => bytes,
        }
    }

    /// The quantity if it is large enough to run in: above 0 %, or 1 MiB and more.
    ///
    /// # Errors
    /// It is less; the text names what is expected.
    pub fn above_nothing(self) -> Result<Quantity, &'static str> {
        match self {
            Quantity::Share(share) if share <= 0.0 => Err("expected more than 0%"),
            Quantity::Bytes(bytes) if bytes < Bytes::mib(1) => Err("expected 1MiB or more"),
            quantity => Ok(quantity),
        }
    }
}

impl FromStr for Quantity {
    type Err = ParseUnitError;

    /// "50%" is a share, "2GiB" an amount; a number alone is bytes, so 0.5 is invalid.
    fn from_str(text: &str) -> Result<Quantity, ParseUnitError> {
        let wanted = "a share from 0% to 100%, such as 50%, or an amount such as 2GiB";
        let read = match text.trim_end().ends_with('%') {
            true => parse_share(text).map(Quantity::Share),
            false => text.parse().map(Quantity::Bytes),
        };
        read.map_err(|_| ParseUnitError { text: text.to_owned(), wanted })
    }
}

/// One address space: a process, or a program in the simulator. The driver numbers them from 0 and reuses freed numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct SpaceId(pub u32);

/// A tier of memory, numbered from the fastest (0) down. At most [`TierId::MAX`] tiers exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct TierId(pub u8);

impl TierId {
    /// Most tiers a machine may have.
    pub const MAX: usize = 8;
    /// The fastest tier.
    pub const FAST: TierId = TierId(0);

    /// The tier's number as an index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// The next slower tier. The caller knows whether the machine has it.
    pub const fn below(self) -> TierId {
        TierId(self.0 + 1)
    }
}

impl fmt::Display for TierId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "tier {}", self.0)
    }
}

/// A block: 512 consecutive pages at a 2 MiB aligned address of one space, as an index into the page arrays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct BlockId(pub u32);

impl BlockId {
    /// The block's first page.
    pub const fn first_page(self) -> PageId {
        PageId(self.0 << BLOCK_SHIFT)
    }
}

/// One 4 KiB page of one space, as an index into the page arrays: block number and place within the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct PageId(pub u32);

impl PageId {
    /// The block this page belongs to.
    pub const fn block(self) -> BlockId {
        BlockId(self.0 >> BLOCK_SHIFT)
    }

    /// The page's index within its block, 0 to 511.
    pub const fn offset(self) -> u32 {
        self.0 & (BLOCK_PAGES - 1)
    }

    /// The id as an array index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// The page `n` further on. The caller must stay within the block.
    pub const fn plus(self, n: u32) -> PageId {
        PageId(self.0 + n)
    }
}

/// A virtual page number: an address divided by 4096.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct Vpn(pub u64);

impl Vpn {
    /// The page number of an address.
    pub const fn of_address(address: u64) -> Vpn {
        Vpn(address >> PAGE_SHIFT)
    }

    /// The first address of the page.
    pub const fn address(self) -> u64 {
        self.0 << PAGE_SHIFT
    }

    /// The index within its 2 MiB block, 0 to 511.
    pub const fn offset_in_block(self) -> u32 {
        (self.0 & (BLOCK_PAGES as u64 - 1)) as u32
    }

    /// The first page number of its block.
    pub const fn block_start(self) -> Vpn {
        Vpn(self.0 & !(BLOCK_PAGES as u64 - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_binary_whatever_the_suffix() {
        for (text, bytes) in [("2GiB", 2 << 30), ("2G", 2 << 30), ("512M", 512 << 20), ("4096", 4096), (" 1k ", 1024)] {
            assert_eq!(text.parse::<Bytes>().unwrap().get(), bytes, "{text}");
        }
        for text in ["", "two", "-1GiB", "5 bananas"] {
            assert!(text.parse::<Bytes>().is_err(), "{text:?} must be refused");
        }
    }

    #[test]
    fn shares_and_durations_refuse_nonsense() {
        assert_eq!(parse_share("25%").unwrap(), 0.25);
        assert_eq!(parse_share("0.5").unwrap(), 0.5);
        for text in ["101%", "-1%", "NaN", "inf", "half"] {
            assert!(parse_share(text).is_err(), "{text:?} must be refused");
        }
        assert_eq!(parse_duration("250ms").unwrap(), Duration::from_millis(250));
        for text in ["", "-5s", "5 parsecs"] {
            assert!(parse_duration(text).is_err(), "{text:?} must be refused");
        }
    }

    #[test]
    fn a_quantity_is_a_share_or_an_amount_and_knows_what_it_is_of() {
        assert_eq!("50%".parse(), Ok(Quantity::Share(0.5)));
        assert_eq!("2GiB".parse(), Ok(Quantity::Bytes(Bytes::gib(2))));
        assert_eq!(Quantity::Share(0.25).of(Bytes::gib(4)), Bytes::gib(1));
        assert_eq!(Quantity::Bytes(Bytes::mib(3)).of(Bytes::gib(4)), Bytes::mib(3));
        for text in ["", "lots", "101%", "-1%", "%", "0.5.1"] {
            assert!(text.parse::<Quantity>().is_err(), "{text:?} must be refused");
        }
        for text in ["0%", "0", "1023KiB"] {
            assert!(text.parse::<Quantity>().unwrap().above_nothing().is_err(), "{text:?} is too little");
        }
        assert!(
            Quantity::Share(0.01).above_nothing().is_ok() && Quantity::Bytes(Bytes::mib(1)).above_nothing().is_ok()
        );
    }

    #[test]
    fn page_ids_name_block_and_place() {
        let page = BlockId(3).first_page().plus(17);
        assert_eq!((page.block(), page.offset()), (BlockId(3), 17));
        let vpn = Vpn::of_address(0x40_3000);
        assert_eq!((vpn.block_start(), vpn.offset_in_block()), (Vpn(0x400), 3));
    }
}
