//! What it costs to look inside of huge pages, measured on blocks of this process: a split, making a block huge again, a page of a split block that leaves,
//! and the page walks of what stays split.
//!
//! In: the tiers. Out: [`InsidePrice`]. Must not: touch another process, make a huge page where the administrator forbids it, or guess where nothing could
//! be measured.
//!
//! A split takes the kernel 0.4 to 0.6 ms, and holds up a thread that touches the block meanwhile. So each price is measured next to a thread that runs all the time
//! (`move_cost.rs`). Page walks are measured by going through all pages of the same memory, each access waiting for the one before, first huge and then
//! split: the difference is an upper bound, since a program's accesses overlap.

use std::path::Path;
use std::time::{Duration, Instant};

use terrace_core::plan::Failure;
use terrace_core::units::{BLOCK_PAGES, PAGE_BYTES, TierId, Vpn};

use crate::huge_pages;
use crate::move_cost::{BlockPrice, FRESH, Interval, ROUNDS, fill_with_half_noise, in_rounds};
use crate::movers::{MoveResult, Mover, Movers, PageMove, Resize};
use crate::process::{Process, ProcessError};
use crate::sys::placement::ask_for_huge_pages;
use crate::topology::TierMap;

/// Prices of looking inside; what could not be measured is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InsidePrice {
    /// Splitting a block: the mover's time for each of its pages, and what the block takes of a thread that runs meanwhile.
    pub split: Option<BlockPrice>,
    /// Making it huge again.
    pub collapse: Option<BlockPrice>,
    /// A page of a split block that leaves beside its neighbours.
    pub single: Option<BlockPrice>,
    /// What an access costs more where the block is split and its translation must be looked up.
    pub walk: Option<Duration>,
}

const BLOCK_BYTES: usize = BLOCK_PAGES as usize * PAGE_BYTES as usize;
/// Blocks that are split in a round: one takes half a millisecond, in which a thread's loss drowns in the machine's noise.
const BLOCKS: usize = 3;
/// One page of this many of a split block stays, as in a program of which a few pages are hot.
const STAYS: usize = 16;
/// Pages of a round that leave: a quarter of a block takes 1 to 2 ms.
const LEAVE: usize = 128;

/// Measures them: a quarter of a second. Nothing where there are no huge pages, or they are set to never.
///
/// # Errors
/// When this process cannot be read.
pub fn inside(root: &Path, tiers: &TierMap, deadline: Duration) -> Result<InsidePrice, ProcessError> {
    let mut price = InsidePrice::default();
    if huge_pages::are_forbidden(root) {
        return Ok(price);
    }
    let blocks = ROUNDS * BLOCKS;
    let mut memory = vec![0u8; FRESH.max((blocks + 1) * BLOCK_BYTES)];
    let skip = (memory.as_ptr() as u64).next_multiple_of(BLOCK_BYTES as u64) as usize - memory.as_ptr() as usize;
    let part = &mut memory[skip..skip + blocks * BLOCK_BYTES];
    ask_for_huge_pages(part);
    // Pages of zeros would be given back by the split.
    part.chunks_exact_mut(PAGE_BYTES as usize)
        .zip(1..)
        .for_each(|(page, number)| page[..8].copy_from_slice(&u64::to_ne_bytes(number)));
    let first = part.as_ptr() as u64 / PAGE_BYTES;
    let block = |number: usize| Vpn(first + (number * BLOCK_PAGES as usize) as u64);
    let me = Process::open(std::process::id())?;
    let mut mover = Movers::for_tiers(tiers, deadline);
    let huge_walk = time_of_walk(part);
    let mut resize = |round: usize, to: Resize| {
        let wanted: Vec<(Vpn, Resize)> = (0..BLOCKS).map(|of| (block(round * BLOCKS + of), to)).collect();
        let counts = mover.resize(&me, &wanted, &mut Vec::new()).counts;
        (counts.split + counts.huge_again) as usize * BLOCK_PAGES as usize
    };
    price.split = in_rounds(|round| resize(round, Resize::Split)).map(of_block);
    if price.split.is_some() {
        price.walk = Some(time_of_walk(part).saturating_sub(huge_walk));
        if let Some(swap) = tiers.swap_tier() {
            price.single = single(tiers, swap, deadline, &mut memory[skip..skip + ROUNDS * BLOCK_BYTES])?;
        }
        // The blocks of which pages left are not whole any more; the others are made huge again.
        let back = |round: usize| resize(round, Resize::Collapse);
        price.collapse = in_rounds_from(ROUNDS.div_ceil(BLOCKS), back).map(of_block);
    }
    Ok(price)
}

/// A page of a block that was split before, in rounds of a quarter of a block each.
fn single(
    tiers: &TierMap,
    swap: TierId,
    deadline: Duration,
    blocks: &mut [u8],
) -> Result<Option<BlockPrice>, ProcessError> {
    fill_with_half_noise(blocks);
    let first = blocks.as_ptr() as u64 / PAGE_BYTES;
    let me = Process::open(std::process::id())?;
    let mut mover = Movers::for_tiers(tiers, deadline);
    Ok(in_rounds(|round| {
        let start = first + (round * BLOCK_PAGES as usize) as u64;
        let leaving = (0..BLOCK_PAGES as usize).filter(|page| page % STAYS != 0).take(LEAVE);
        let moves: Vec<PageMove> = leaving
            .map(|page| PageMove { vpn: Vpn(start + page as u64), pages: 1, from: TierId::FAST, to: swap })
            .collect();
        let mut results: Vec<MoveResult> = Vec::new();
        mover.execute(&me, &moves, tiers, &mut results);
        debug_assert!(results.iter().all(|result| result.failure != Some(Failure::DryRun)), "a real mover");
        results.iter().map(|result| result.done as usize).sum()
    }))
}

/// The rounds from this one on, as many as there are; the earlier ones do nothing and do not count.
fn in_rounds_from(from: usize, mut carry: impl FnMut(usize) -> usize) -> Option<BlockPrice> {
    in_rounds(|round| if round < from { 0 } else { carry(round) })
}

/// The price of a page as that of its block, for what the program loses.
fn of_block(price: BlockPrice) -> BlockPrice {
    let times = |of: Duration| of * BLOCK_PAGES;
    let program =
        price.program.map(|each| Interval { median: times(each.median), low: times(each.low), high: times(each.high) });
    BlockPrice { program, ..price }
}

/// The mean time of an access, each to another page and waiting for the one before: the least of a few passes, since on a shared machine the others count
/// other programs' time.
fn time_of_walk(memory: &[u8]) -> Duration {
    let pages = memory.len() / PAGE_BYTES as usize;
    let pass = || {
        // A step that shares no factor with the number of pages comes to all of them, and to no two neighbours in a row.
        let step = (pages / 3..).find(|step| greatest_common_divisor(*step, pages) == 1).unwrap_or(1);
        let (mut page, mut line) = (0, 0);
        let began = Instant::now();
        for _ in 0..pages {
            // Its value is unknown to the processor until it came: the next address waits for it, and is the same whatever it is.
            let byte = memory[page * PAGE_BYTES as usize + 64 * line + 8];
            let seen = std::hint::black_box(usize::from(byte));
            page = (page + step + (seen >> 8)) % pages;
            line = (line + 7) % 32 + 1;
        }
        std::hint::black_box(page);
        began.elapsed() / pages as u32
    };
    (0..4).map(|_| pass()).min().unwrap_or_default()
}

fn greatest_common_divisor(one: usize, other: usize) -> usize {
    if other == 0 { one } else { greatest_common_divisor(other, one % other) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::huge_pages::SETTINGS;
    use crate::pressure::tests::tree;

    #[test]
    fn a_split_has_a_price_and_so_has_what_follows() {
        let tiers = TierMap::new(Vec::new(), Vec::new());
        let price = inside(Path::new("/"), &tiers, crate::movers::STALL_DEADLINE).unwrap();
        let Some(split) = price.split else {
            println!("SKIPPED: no huge page is split here: {price:?}");
            return;
        };
        println!("{price:?}");
        let whole = split.mover * BLOCK_PAGES;
        assert!(whole > Duration::from_micros(5) && whole < Duration::from_millis(50), "{whole:?} a block");
        assert!(price.walk.is_some_and(|walk| walk < Duration::from_micros(2)), "{price:?}");
        assert_eq!(price.single, None, "there is no swap");
    }

    #[test]
    fn nothing_is_made_huge_to_price_it_where_that_is_forbidden() {
        let root = tree(&[(&format!("{SETTINGS}/enabled"), "always madvise [never]\n")]);
        let tiers = TierMap::new(Vec::new(), Vec::new());
        let price = inside(root.path(), &tiers, crate::movers::STALL_DEADLINE).unwrap();
        assert_eq!(price, InsidePrice::default());
    }

    #[test]
    fn every_page_is_gone_through_once() {
        let pages = 1536;
        let step = (pages / 3..).find(|step| greatest_common_divisor(*step, pages) == 1).unwrap();
        let seen: std::collections::BTreeSet<usize> = (0..pages).map(|round| round * step % pages).collect();
        assert_eq!(seen.len(), pages);
    }
}
