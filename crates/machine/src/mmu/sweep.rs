//! The operating system's walk: down the tables of a space, and only where an upper accessed bit says that something was used.
//!
//! In: a space, and whether to clear what is found. Out: the leaves behind accessed entries, with their bits, and what was
//! read. Must not: decide anything, or flush: the caller does, once a sweep.

use terrace_core::units::SpaceId;

use super::spec::Size;
use super::tables::{BLOCK_OF_REGION, DOMAIN_SHIFT, ENTRIES, REGION_SHIFT, Tables};

/// What a sweep read and changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SweepCost {
    /// Entries read: 512 for each table visited.
    pub entries: u64,
    /// Tables that were not visited, as the entry above them had not been accessed.
    pub skipped: u64,
    /// Accessed bits cleared.
    pub cleared: u64,
}

impl Tables {
    /// Calls `found` for every leaf of the tables that were visited: first page, size, whether it was accessed.
    pub fn sweep(
        &mut self,
        space: SpaceId,
        clear: bool,
        cost: &mut SweepCost,
        found: &mut impl FnMut(u32, Size, bool),
    ) {
        let Some((root, first, base)) = self.root(space) else { return };
        let page_of = |vpn: u64| first + (vpn.wrapping_sub(base)) as u32;
        cost.entries += ENTRIES as u64;
        for top in 0..ENTRIES as u32 {
            let Some(pdpt) = self.enter(root, top, clear, cost) else { continue };
            let vpn = u64::from(top) << DOMAIN_SHIFT;
            for upper in 0..ENTRIES as u32 {
                let vpn = vpn | u64::from(upper) << REGION_SHIFT;
                let (present, leaf, accessed) = self.look(pdpt, upper);
                if present && leaf {
                    found(page_of(vpn), Size::Giant, accessed);
                    self.take(pdpt, upper, accessed && clear, cost);
                    continue;
                }
                let Some(pmd) = self.enter(pdpt, upper, clear, cost) else { continue };
                for middle in 0..ENTRIES as u32 {
                    let vpn = vpn | u64::from(middle) << BLOCK_OF_REGION;
                    let (present, leaf, accessed) = self.look(pmd, middle);
                    if present && leaf {
                        found(page_of(vpn), Size::Huge, accessed);
                        self.take(pmd, middle, accessed && clear, cost);
                        continue;
                    }
                    let Some(table) = self.enter(pmd, middle, clear, cost) else { continue };
                    for lowest in 0..ENTRIES as u32 {
                        let (present, _, accessed) = self.look(table, lowest);
                        if present {
                            found(page_of(vpn | u64::from(lowest)), Size::Small, accessed);
                            self.take(table, lowest, accessed && clear, cost);
                        }
                    }
                }
            }
        }
    }

    /// The table below an entry that was accessed; its bit is cleared on the way.
    fn enter(&mut self, table: u32, index: u32, clear: bool, cost: &mut SweepCost) -> Option<u32> {
        let (present, leaf, accessed) = self.look(table, index);
        if !present || leaf {
            return None;
        }
        if !accessed {
            cost.skipped += 1;
            return None;
        }
        self.take(table, index, clear, cost);
        cost.entries += ENTRIES as u64;
        Some(self.below(table, index))
    }

    fn take(&mut self, table: u32, index: u32, clear: bool, cost: &mut SweepCost) {
        if clear {
            self.clear_accessed(table, index);
            cost.cleared += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_core::units::TierId;

    #[test]
    fn a_sweep_descends_only_where_upper_bits_are_set_and_clears_what_it_saw() {
        let mut tables = Tables::new(0);
        let space = SpaceId(0);
        tables.add_space(space, 0, 0, TierId(0));
        for page in 0..1024 {
            tables.map(page, Size::Small, TierId(0));
        }
        for block in 2..6 {
            tables.map(block << 9, Size::Huge, TierId(0));
        }
        tables.map(1 << 18, Size::Giant, TierId(0));
        let walk = |tables: &mut Tables, page: u32, lowest: u8| {
            for level in lowest..=4 {
                tables.mark(tables.step(page, level), false);
            }
        };
        walk(&mut tables, 600, 1);
        walk(&mut tables, 3 << 9, 2);
        let sweep = |tables: &mut Tables| {
            let (mut cost, mut accessed, mut seen) = (SweepCost::default(), Vec::new(), 0);
            tables.sweep(space, true, &mut cost, &mut |page, size, was| {
                seen += 1;
                if was {
                    accessed.push((page, size));
                }
            });
            (cost, accessed, seen)
        };
        let (cost, accessed, seen) = sweep(&mut tables);
        assert_eq!(accessed, [(600, Size::Small), (3 << 9, Size::Huge)]);
        // Root, PDPT, PMD and the second table of 4 KiB entries; the first is skipped.
        assert_eq!((cost.entries, cost.skipped), (4 * 512, 1));
        // The giant page, four huge ones, the 512 of the table that was visited.
        assert_eq!(seen, 1 + 4 + 512);
        // The root's, the PDPT's and the PMD's entry above the small page, that page, and the huge one.
        assert_eq!(cost.cleared, 5);
        let (cost, accessed, _) = sweep(&mut tables);
        assert_eq!((accessed.len(), cost.entries, cost.skipped), (0, 512, 1), "nothing was used since: the root alone");
    }
}
