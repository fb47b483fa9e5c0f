//! Which pages leave for swap first, and which blocks go whole: for policies that let pages go one by one.
//!
//! In: pages that may leave, with a rank each. Out: an order in which whole blocks come first, since as one huge page each costs a fraction of
//! what its pages cost alone (`docs/block-moves.md`). Must not: decide which pages may leave.

use terrace_core::units::{BLOCK_PAGES, BlockId, PageId};

/// A block goes whole when at most one in sixteen of its pages would stay.
const ROUNDED: u32 = 16;

/// A page that leaves fast memory with the next plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Leaving<R> {
    /// Whether others of its block stay.
    parts: bool,
    /// What comes first among the whole blocks, and among the others: the least.
    pub rank: R,
    /// Which page, or the first of a huge one.
    pub id: PageId,
}

impl<R> Leaving<R> {
    /// Whether it leaves with all of its block.
    pub(crate) fn is_of_whole(&self) -> bool {
        !self.parts
    }
}

/// The pages that leave, gathered block by block.
#[derive(Debug)]
pub(crate) struct Leavers<R> {
    all: Vec<Leaving<R>>,
    /// Where the block under way begins.
    from: usize,
}

impl<R: Copy + Ord> Leavers<R> {
    pub(crate) fn new() -> Leavers<R> {
        Leavers { all: Vec::new(), from: 0 }
    }

    /// A page, or a huge one, may leave. All of a block are added before [`Leavers::end_block`].
    pub(crate) fn push(&mut self, id: PageId, rank: R) {
        self.all.push(Leaving { parts: true, rank, id });
    }

    /// A block of single pages of which nearly all leave goes whole, if `rank` says of every page, those included that would stay, where it would
    /// come: as one huge page it costs a fraction of what its parts cost.
    pub(crate) fn round_up(&mut self, block: BlockId, rank: impl Fn(PageId) -> Option<R>) {
        let count = (self.all.len() - self.from) as u32;
        if !(BLOCK_PAGES - BLOCK_PAGES / ROUNDED..BLOCK_PAGES).contains(&count) {
            return;
        }
        let each = (0..BLOCK_PAGES).map(|offset| block.first_page().plus(offset));
        let ranks: Option<Vec<(PageId, R)>> = each.map(|id| rank(id).map(|rank| (id, rank))).collect();
        if let Some(ranks) = ranks {
            self.all.truncate(self.from);
            ranks.into_iter().for_each(|(id, rank)| self.push(id, rank));
        }
    }

    /// The block is over; each of its pages stands for `step` of 4 KiB.
    pub(crate) fn end_block(&mut self, step: u32) {
        let own = &mut self.all[self.from..];
        if own.len() as u32 * step == BLOCK_PAGES
            && let Some(rank) = own.iter().map(|leaving| leaving.rank).max()
        {
            // As warm as its warmest page, so that it stays together in the order.
            own.iter_mut().for_each(|leaving| (leaving.parts, leaving.rank) = (false, rank));
        }
        self.from = self.all.len();
    }

    /// All of them in their order.
    pub(crate) fn in_order(mut self) -> Vec<Leaving<R>> {
        // Stable, so that pages of equal rank stay in address order and move in runs.
        self.all.sort_by_key(|leaving| (leaving.parts, leaving.rank));
        self.all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_blocks_come_first_and_nearly_whole_ones_are_rounded_up() {
        let id = |block: u32, page: u32| BlockId(block).first_page().plus(page);
        let mut leavers = Leavers::new();
        // Block 0: half of it. Block 1: all, warm. Block 2: all but 30. Block 3: all but 30, of which one must stay.
        (0..256).for_each(|page| leavers.push(id(0, page), 0));
        leavers.end_block(1);
        (0..512).for_each(|page| leavers.push(id(1, page), page / 100));
        leavers.end_block(1);
        for block in [2, 3] {
            (30..512).for_each(|page| leavers.push(id(block, page), 1));
            leavers.round_up(BlockId(block), |page| (page != id(3, 7)).then_some(2));
            leavers.end_block(1);
        }
        // Block 4 is a huge page.
        leavers.push(id(4, 0), 9);
        leavers.end_block(BLOCK_PAGES);
        let order: Vec<u32> = leavers.in_order().iter().map(|leaving| leaving.id.block().0).collect();
        let runs: Vec<(u32, usize)> = order.chunk_by(|one, next| one == next).map(|run| (run[0], run.len())).collect();
        assert_eq!(runs, [(2, 512), (1, 512), (4, 1), (0, 256), (3, 482)]);
    }
}
