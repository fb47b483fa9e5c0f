//! How pages are numbered: the source's addresses, the simulation's pages, the engine's ids.
//!
//! In: one. Out: another. Must not: move or map anything.

use terrace_core::units::{BLOCK_PAGES, BLOCK_SHIFT, PageId, SpaceId, Vpn};
use terrace_machine::mmu::tables::REGION_SHIFT;

use super::{NO_BLOCK, Simulation};
use crate::error::SimError;

impl Simulation {
    /// The source's number of page 0.
    pub(crate) fn base(&self) -> u64 {
        self.hot.base
    }

    pub(super) fn set_base(&mut self, first: Vpn) {
        self.based = true;
        self.hot.base = first.block_start().0;
        if self.hot.base < 1 << 32 {
            // Dense numbering, as traces have it: from zero.
            self.hot.base = 0;
        }
        if let Some(run) = &mut self.hot.mmu {
            // Page tables are aligned to what they cover.
            self.hot.base &= !((1 << REGION_SHIFT) - 1);
            run.add_space(SpaceId(0), 0, self.hot.base);
            for (space, first) in (0..).zip(&self.starts).skip(1) {
                run.add_space(SpaceId(space), *first, self.hot.base + u64::from(*first));
            }
        }
    }

    pub(crate) fn page_of(&mut self, vpn: Vpn) -> Result<u32, SimError> {
        if !self.based {
            self.set_base(vpn);
        }
        let page = vpn.0.wrapping_sub(self.hot.base);
        if page < 1 << 31 {
            Ok(page as u32)
        } else {
            Err(SimError::Address { address: vpn.address(), base: Vpn(self.hot.base).address() })
        }
    }

    pub(crate) fn vpn(&self, page: u32) -> Vpn {
        Vpn(self.hot.base + u64::from(page))
    }

    /// The engine's id of a page.
    pub(crate) fn id(&self, page: u32) -> PageId {
        PageId(self.ids[(page >> BLOCK_SHIFT) as usize] + (page & (BLOCK_PAGES - 1)))
    }

    /// The page behind an id of the engine.
    pub(crate) fn page(&self, id: PageId) -> Option<u32> {
        let block = *self.blocks.get(id.block().0 as usize)?;
        (block != NO_BLOCK).then(|| (block << BLOCK_SHIFT) + id.offset())
    }
}
