//! Whether memory compresses, found out before it goes to compressed swap.
//!
//! In: a process and the pages of a block that are to leave. Out: whether they are worth it, by a few of them compressed here; what was
//! left for that reason. Must not: keep any of what it read, or take what could not be read for incompressible.
//!
//! `SAMPLES` pages of a block of 2 MiB stand for all of it: some 40 us against the 1 to 8 ms that the page-outs of the block take. zram
//! keeps a page whole that does not shrink enough (`huge_class_size` of zsmalloc), and of one that shrinks by little it saves little: where the
//! samples show that less than `LEAST_SAVED` would be saved, the block stays. Contents change, so what was found holds for `HOLDS`.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use terrace_core::units::{BLOCK_PAGES, PAGE_BYTES, SpaceId, Time, Vpn};

use crate::sys::{self, RemoteRange};

/// Pages of a block that are tried.
const SAMPLES: usize = 4;
/// The least share of its memory that a block must save.
pub(crate) const LEAST_SAVED: f64 = 0.125;
/// How long it is remembered what a block holds.
const HOLDS: Duration = Duration::from_secs(300);
/// A page of which more is left than this is kept whole by zsmalloc. Its objects lie in chains of up to 8 pages (CONFIG_ZSMALLOC_CHAIN_SIZE),
/// in sizes that are multiples of 16 bytes; 9 objects of 3,632 bytes fit into 8 pages of 4 KiB, and of larger ones one page each.
pub(crate) const KEPT_WHOLE: usize = 3632;
/// Level of zstd that compresses as zram's fast algorithms do, by repeated strings alone, and as its zstd and deflate do.
const LIKE_LZ: i32 = -1;
const LIKE_ZSTD: i32 = 1;

/// Judges blocks, and remembers what it found.
pub struct Compressibility {
    compressor: zstd::bulk::Compressor<'static>,
    blocks: BTreeMap<(SpaceId, u64), Verdict>,
    pages: Vec<u8>,
    packed: Vec<u8>,
    /// Pages left because they do not compress, each once.
    left: u64,
}

/// What a block holds.
#[derive(Clone, Copy, Debug)]
struct Verdict {
    found: Time,
    compresses: bool,
    /// Its pages that were to leave, one bit each.
    refused: [u64; BLOCK_PAGES as usize / 64],
}

impl std::fmt::Debug for Compressibility {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Compressibility").field("blocks", &self.blocks.len()).field("left", &self.left).finish()
    }
}

impl Compressibility {
    /// For a device whose algorithm is named; its name begins with what it is, such as `zstd` or `lzo-rle`.
    ///
    /// # Errors
    /// When there is no memory for the compressor.
    pub fn new(algorithm: &str) -> std::io::Result<Compressibility> {
        let entropy = ["zstd", "deflate", "842"].iter().any(|name| algorithm.starts_with(name));
        Ok(Compressibility {
            compressor: zstd::bulk::Compressor::new(if entropy { LIKE_ZSTD } else { LIKE_LZ })?,
            blocks: BTreeMap::new(),
            pages: vec![0; SAMPLES * PAGE_BYTES as usize],
            packed: vec![0; zstd::zstd_safe::compress_bound(PAGE_BYTES as usize)],
            left: 0,
        })
    }

    /// Whether the block of these pages, all of one block and by address, is worth compressing. Pages that are not are counted.
    pub fn is_worth_it(&mut self, now: Time, space: SpaceId, pid: u32, pages: &[Vpn]) -> bool {
        let Some(first) = pages.first() else { return true };
        let block = (space, first.block_start().0);
        let known = self.blocks.get(&block).filter(|verdict| now.since(verdict.found) < HOLDS);
        let compresses = match known {
            Some(verdict) => verdict.compresses,
            None => {
                let compresses = self.saved_share(pid, pages).is_none_or(|saved| saved >= LEAST_SAVED);
                self.forget(block);
                self.blocks.insert(block, Verdict { found: now, compresses, refused: Default::default() });
                compresses
            }
        };
        if let Some(verdict) = self.blocks.get_mut(&block).filter(|verdict| !verdict.compresses) {
            for page in pages.iter().map(|page| page.offset_in_block()) {
                let (word, bit) = (&mut verdict.refused[page as usize / 64], 1_u64 << (page % 64));
                self.left += u64::from(*word & bit == 0);
                *word |= bit;
            }
        }
        compresses
    }

    /// Pages that are left where they are because they do not compress.
    pub fn left(&self) -> u64 {
        self.left
    }

    /// A process is gone, or these pages of it are.
    pub fn forget_range(&mut self, space: SpaceId, start: Vpn, end: Vpn) {
        let gone = self.blocks.range((space, start.block_start().0)..(space, end.0));
        let gone: Vec<(SpaceId, u64)> = gone.map(|(block, _)| *block).collect();
        gone.into_iter().for_each(|block| self.forget(block));
    }

    fn forget(&mut self, block: (SpaceId, u64)) {
        if let Some(verdict) = self.blocks.remove(&block) {
            self.left -= verdict.refused.iter().map(|word| u64::from(word.count_ones())).sum::<u64>();
        }
    }

    /// The share of the memory of some of these pages that compression would save; `None` where none could be read.
    fn saved_share(&mut self, pid: u32, pages: &[Vpn]) -> Option<f64> {
        let samples = SAMPLES.min(pages.len());
        let mut ranges = [RemoteRange { address: 0, length: 0 }; SAMPLES];
        for (at, range) in ranges[..samples].iter_mut().enumerate() {
            // From the middle of each quarter.
            let page = pages[(2 * at + 1) * pages.len() / (2 * samples)];
            *range = RemoteRange { address: page.address() as usize, length: PAGE_BYTES as usize };
        }
        let read = sys::process_vm_readv(pid, &mut self.pages, &ranges[..samples]);
        let whole = read.ok()? / PAGE_BYTES as usize;
        let mut saved = 0;
        for page in self.pages.chunks_exact(PAGE_BYTES as usize).take(whole) {
            let left = self.compressor.compress_to_buffer(page, &mut self.packed[..]).unwrap_or(page.len());
            saved += if left > KEPT_WHOLE { 0 } else { page.len() - left };
        }
        self.pages.fill(0);
        self.packed.fill(0);
        (whole > 0).then(|| saved as f64 / (whole * PAGE_BYTES as usize) as f64)
    }
}

/// The algorithm of a zram device, as its list of them has it: the one in brackets.
pub fn algorithm_of(root: &Path, zram: u32) -> Option<String> {
    let list = std::fs::read_to_string(root.join(format!("sys/block/zram{zram}/comp_algorithm"))).ok()?;
    let (_, rest) = list.split_once('[')?;
    rest.split_once(']').map(|(name, _)| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vpns(of: &[u8]) -> Vec<Vpn> {
        let first = Vpn::of_address((of.as_ptr() as u64).next_multiple_of(2 << 20));
        (0..512).map(|page| Vpn(first.0 + page)).collect()
    }

    /// Bytes without any repetition worth a word, from a fixed seed (xorshift64).
    fn noise(bytes: &mut [u8]) {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        for chunk in bytes.chunks_mut(8) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            chunk.copy_from_slice(&state.to_ne_bytes()[..chunk.len()]);
        }
    }

    #[test]
    fn noise_stays_and_is_counted_once_and_text_goes() {
        let me = std::process::id();
        let mut memory = vec![0_u8; 4 << 20];
        for algorithm in ["lzo-rle", "zstd"] {
            let mut judge = Compressibility::new(algorithm).unwrap();
            noise(&mut memory);
            let pages = vpns(&memory);
            assert!(!judge.is_worth_it(Time::ZERO, SpaceId(0), me, &pages[..300]), "{algorithm}");
            assert!(!judge.is_worth_it(Time::ZERO, SpaceId(0), me, &pages[200..400]), "{algorithm}");
            assert_eq!(judge.left(), 400, "each page counts once");
            // Contents change: what was found is not held for ever.
            let line = b"GET /index.html HTTP/1.1 200 12345 Mozilla/5.0\n";
            memory.iter_mut().zip(line.iter().cycle()).for_each(|(byte, text)| *byte = *text);
            assert!(!judge.is_worth_it(Time::ZERO + HOLDS / 2, SpaceId(0), me, &pages), "{algorithm}: remembered");
            assert!(judge.is_worth_it(Time::ZERO + HOLDS, SpaceId(0), me, &pages), "{algorithm}");
            assert_eq!(judge.left(), 0);
        }
    }

    #[test]
    fn a_range_that_is_gone_is_no_longer_counted() {
        let mut memory = vec![0_u8; 4 << 20];
        noise(&mut memory);
        let pages = vpns(&memory);
        let mut judge = Compressibility::new("lz4").unwrap();
        assert!(!judge.is_worth_it(Time::ZERO, SpaceId(0), std::process::id(), &pages));
        judge.forget_range(SpaceId(1), Vpn(0), Vpn(u64::MAX));
        assert_eq!(judge.left(), 512);
        judge.forget_range(SpaceId(0), pages[0], Vpn(pages[511].0 + 1));
        assert_eq!(judge.left(), 0);
    }

    #[test]
    fn what_cannot_be_read_is_no_reason_to_stay() {
        let mut judge = Compressibility::new("lz4").unwrap();
        assert!(judge.is_worth_it(Time::ZERO, SpaceId(0), std::process::id(), &[Vpn(512), Vpn(513)]));
        assert_eq!(judge.left(), 0);
    }

    #[test]
    fn the_algorithm_is_the_one_in_brackets() {
        let root = tempfile::tempdir().unwrap();
        let place = root.path().join("sys/block/zram3");
        std::fs::create_dir_all(&place).unwrap();
        std::fs::write(place.join("comp_algorithm"), "lzo [lzo-rle] lz4 zstd\n").unwrap();
        assert_eq!(algorithm_of(root.path(), 3).as_deref(), Some("lzo-rle"));
        assert_eq!(algorithm_of(root.path(), 4), None);
    }
}
