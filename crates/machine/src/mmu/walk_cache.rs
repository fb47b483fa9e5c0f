//! Paging-structure caches of one core: they let a walk skip the upper levels.
//!
//! In: a page and the size of its mapping. Out: the highest level that the walk must read; what it reads is then cached.
//! Must not: hold leaves: those are the TLB's.
//!
//! Source: Intel SDM volume 3, section 4.10.3: a PDE cache (an entry leads to a table of 4 KiB entries), a PDPTE cache (to a
//! PMD table) and a PML4E cache (to a PDPT), asked from the lowest up. INVLPG and CR3 loads empty them.

use super::spec::Size;
use super::tables::{Level, REGION_SHIFT};
use crate::associative::Associative;
use terrace_core::units::BLOCK_SHIFT;

/// Entries of the three caches; see the table in `spec`.
const PDE_ENTRIES: u64 = 32;
const PDPTE_ENTRIES: u64 = 4;
const PML4E_ENTRIES: u64 = 2;

/// The three caches.
#[derive(Clone, Debug)]
pub struct WalkCache {
    pde: Associative,
    pdpte: Associative,
    pml4e: Associative,
}

impl Default for WalkCache {
    fn default() -> WalkCache {
        WalkCache {
            pde: Associative::new(PDE_ENTRIES, 4),
            pdpte: Associative::new(PDPTE_ENTRIES, 4),
            pml4e: Associative::new(PML4E_ENTRIES, 2),
        }
    }
}

impl WalkCache {
    /// The level at which a walk to the page begins, 4 being the root; `root_entry` names the entry of the root it would
    /// read. What was missed is filled in.
    pub fn start(&mut self, page: u32, size: Size, root_entry: u32) -> Level {
        if size == Size::Small && self.pde.touch(page >> BLOCK_SHIFT) {
            return 1;
        }
        if size != Size::Giant && self.pdpte.touch(page >> REGION_SHIFT) {
            return 2;
        }
        if self.pml4e.touch(root_entry) { 3 } else { 4 }
    }

    /// Forgets everything.
    pub fn flush(&mut self) {
        self.pde.clear();
        self.pdpte.clear();
        self.pml4e.clear();
    }
}
