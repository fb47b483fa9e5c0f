//! Prices of page-outs by kind, and of looking inside of huge pages: what goes at once decides what a page costs the mover and the program.
//!
//! In: the tiers, and a guard. Out: a line for each kind, measured on memory of this process next to a thread of it. Must not: leave the kernel's
//! settings for folios changed, or give a figure for a kind that did not go as such.

use std::path::Path;
use std::time::Duration;

use terrace_core::units::{BLOCK_PAGES, TierId};

use crate::guard::Guard;
use crate::machine::STALL_DEADLINE;
use crate::move_cost::{self, BlockPrice, Interval};
use crate::process::ProcessError;
use crate::split_cost::{self, InsidePrice};
use crate::swap_in::{self, FolioSize, SwapInError};
use crate::topology::TierMap;

/// Folios between a page and a block whose price is measured: 16 KiB and 64 KiB.
const FOLIOS: [(&str, FolioSize); 2] =
    [("folio of 16 KiB", FolioSize::of_pages(4)), ("folio of 64 KiB", FolioSize::of_pages(16))];

/// What a page costs that goes to swap as one kind.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct KindPrice {
    /// What goes at once.
    pub kind: &'static str,
    /// Its pages of 4 KiB.
    pub pages: u64,
    /// Processor time of the mover for each page, in nanoseconds, while another processor runs the program; `None` where nothing went as this kind.
    pub mover_ns_per_page: Option<f64>,
    /// What a page takes of each thread of the program that runs on another processor; `None` where it could not be measured.
    pub program_ns_per_page: Option<f64>,
    /// Lower end of the interval of 93 % of that.
    pub program_ns_low: Option<f64>,
    /// Upper end.
    pub program_ns_high: Option<f64>,
    /// Why there is no figure.
    pub reason: Option<String>,
}

/// Measures each kind, of what goes to this tier. The guard holds the kernel's setting for folios, which changes meanwhile.
///
/// # Errors
/// When this process cannot be measured on.
pub(crate) fn measure(
    root: &Path,
    tiers: &TierMap,
    swap: TierId,
    guard: &Guard,
) -> Result<Vec<KindPrice>, ProcessError> {
    let single = move_cost::folio_out(tiers, swap, STALL_DEADLINE, None)?;
    let mut prices = vec![kind("single page", 1, single, 1, "no page left")];
    for (name, size) in FOLIOS {
        prices.push(match folio(root, tiers, swap, guard, size)? {
            Ok(price) => kind(name, size.pages(), price, 1, "this memory got too few folios of the size"),
            Err(refused) => kind(name, size.pages(), None, 1, &refused.to_string()),
        });
    }
    let block = move_cost::block_out(tiers, swap, STALL_DEADLINE)?;
    let why = "blocks did not go whole: huge pages are set to never, Linux before 6.1, no free huge page, or a swap that takes none";
    prices.push(kind("whole block of 2 MiB", u64::from(BLOCK_PAGES), block, BLOCK_PAGES, why));
    prices.extend(of_inside(split_cost::inside(root, tiers, STALL_DEADLINE)?));
    Ok(prices)
}

/// What it costs to look inside of huge pages.
fn of_inside(price: InsidePrice) -> [KindPrice; 4] {
    let none = "no huge page was split: they are set to never, none was free, or this kernel does not split them by advice (Linux 5.10)";
    let pages = u64::from(BLOCK_PAGES);
    let walk = KindPrice {
        program_ns_per_page: price.walk.map(|walk| walk.as_nanos() as f64),
        reason: price.walk.is_none().then(|| none.to_owned()),
        ..kind("access to a page of a split block, more than to one of a huge page", 1, None, 1, none)
    };
    [
        kind("split of a huge page", pages, price.split, BLOCK_PAGES, none),
        kind("page of a split block", 1, price.single, 1, none),
        kind("block made huge again", pages, price.collapse, BLOCK_PAGES, "no block became huge again"),
        walk,
    ]
}

/// The price of a page in folios of this size, or why it cannot be measured.
fn folio(
    root: &Path,
    tiers: &TierMap,
    swap: TierId,
    guard: &Guard,
    size: FolioSize,
) -> Result<Result<Option<BlockPrice>, SwapInError>, ProcessError> {
    let changed = match swap_in::set(root, size, guard) {
        Ok(changed) => changed,
        Err(refused) => return Ok(Err(refused)),
    };
    let price = move_cost::folio_out(tiers, swap, STALL_DEADLINE, Some(size));
    if let Some(Err(error)) = changed.map(swap_in::Changed::put_back) {
        tracing::warn!(%error, "the kernel's setting for folios of {size} is not back yet; the guard goes on trying");
    }
    price.map(Ok)
}

/// A line. `price` has what the program loses by `program_pages` at once.
fn kind(name: &'static str, pages: u64, price: Option<BlockPrice>, program_pages: u32, missing: &str) -> KindPrice {
    let nanos = |time: Duration| time.as_nanos() as f64;
    let program = price.and_then(|price| price.program);
    let each = |of: fn(Interval) -> Duration| program.map(|interval| nanos(of(interval)) / f64::from(program_pages));
    KindPrice {
        kind: name,
        pages,
        mover_ns_per_page: price.map(|price| nanos(price.mover)),
        program_ns_per_page: each(|interval| interval.median),
        program_ns_low: each(|interval| interval.low),
        program_ns_high: each(|interval| interval.high),
        reason: match (price, program) {
            (None, _) => Some(missing.to_owned()),
            (Some(_), None) => Some("there is one processor, or the thread beside it did not run".to_owned()),
            (Some(_), Some(_)) => None,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looking_inside_has_a_line_for_each_part_or_its_reason() {
        let micros = Duration::from_micros;
        let split =
            BlockPrice { mover: micros(1), program: Some(Interval { median: micros(51), ..Interval::default() }) };
        let price = InsidePrice { split: Some(split), walk: Some(Duration::from_nanos(33)), ..InsidePrice::default() };
        let [split, single, collapse, walk] = of_inside(price);
        assert_eq!((split.mover_ns_per_page, split.reason), (Some(1000.0), None));
        assert_eq!((walk.mover_ns_per_page, walk.program_ns_per_page, walk.reason), (None, Some(33.0), None));
        assert!(single.reason.unwrap().contains("5.10") && collapse.reason.unwrap().contains("huge again"));
    }

    #[test]
    fn a_block_is_told_by_the_page_and_what_is_missing_has_its_reason() {
        let micros = Duration::from_micros;
        let interval = Interval { median: micros(51), low: micros(26), high: micros(102) };
        let price = BlockPrice { mover: micros(2), program: Some(interval) };
        let block = kind("whole block of 2 MiB", 512, Some(price), 512, "unused");
        assert_eq!((block.mover_ns_per_page, block.reason), (Some(2000.0), None));
        assert!((block.program_ns_per_page.unwrap() - 99.6).abs() < 0.1, "{:?}", block.program_ns_per_page);
        let none = kind("folio of 16 KiB", 4, None, 1, "too few");
        assert_eq!((none.mover_ns_per_page, none.reason.as_deref()), (None, Some("too few")));
        let alone = kind("single page", 1, Some(BlockPrice { program: None, ..price }), 1, "unused");
        assert!(alone.program_ns_low.is_none() && alone.reason.unwrap().contains("one processor"));
    }
}
