//! When what was last used: what trackers that look at accessed bits have to go by.
//!
//! In: each access. Out: whether a page, a block or a GiB was used since a tick. Must not: count.

use terrace_core::units::{BLOCK_PAGES, BLOCK_SHIFT};

/// When pages, blocks and GiB were last used, in ticks; a tick ends at each check of the region trackers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Uses {
    page: Vec<u32>,
    block: Vec<u32>,
    region: Vec<u32>,
    huge: Vec<bool>,
}

impl Uses {
    pub(crate) fn fit(&mut self, pages: usize) {
        if self.page.len() < pages {
            let pages = pages.next_multiple_of(BLOCK_PAGES as usize);
            self.page.resize(pages, 0);
            self.block.resize(pages >> BLOCK_SHIFT, 0);
            self.huge.resize(pages >> BLOCK_SHIFT, false);
            self.region.resize((pages >> 18) + 1, 0);
        }
    }

    #[inline]
    pub(crate) fn see(&mut self, page: u32, tick: u32, huge: bool) {
        self.fit(page as usize + 1);
        self.page[page as usize] = tick;
        let block = (page >> BLOCK_SHIFT) as usize;
        (self.block[block], self.huge[block]) = (tick, huge);
        self.region[(page >> 18) as usize] = tick;
    }

    pub(crate) fn pages(&self) -> u32 {
        self.page.len() as u32
    }

    pub(crate) fn is_huge(&self, page: u32) -> bool {
        self.huge.get((page >> BLOCK_SHIFT) as usize).copied().unwrap_or(false)
    }

    pub(crate) fn used_page(&self, page: u32, since: u32) -> bool {
        self.page.get(page as usize).is_some_and(|tick| *tick >= since)
    }

    pub(crate) fn used_block(&self, block: u32, since: u32) -> bool {
        self.block.get(block as usize).is_some_and(|tick| *tick >= since)
    }

    pub(crate) fn used_region(&self, region: u32, since: u32) -> bool {
        self.region.get(region as usize).is_some_and(|tick| *tick >= since)
    }
}
