//! Copies that promoted pages left in slow memory, where the kernel keeps them.
//!
//! In: promotions, and how much of slow memory is free. Out: whether a page can go back without being copied. Must not: take room that a page
//! wants: copies occupy free memory only, and the oldest give way.
//!
//! Source: page shadowing of Nomad (OSDI 2024). A copy is worth nothing once its page was written, which the page's dirty bit tells: the driver
//! clears it when the copy is made.

use std::collections::{BTreeMap, VecDeque};

use terrace_core::units::TierId;
use terrace_machine::memory::Memory;

/// See the module's header.
#[derive(Default)]
pub(super) struct Shadows {
    /// Copies by the first page of their unit: the tier, the pages, and the number under which it stands in the queue.
    of: BTreeMap<u32, (TierId, u64, u64)>,
    /// Units in the order of their promotions; those that have no copy any more, or a later one, are skipped.
    order: VecDeque<(u32, u64)>,
    made: u64,
    pages: [u64; TierId::MAX],
}

impl Shadows {
    /// A unit of this many pages left its copy in a tier.
    pub(super) fn keep(&mut self, unit: u32, pages: u64, tier: TierId) {
        self.forget(unit);
        self.made += 1;
        self.of.insert(unit, (tier, pages, self.made));
        self.order.push_back((unit, self.made));
        self.pages[tier.index()] += pages;
    }

    /// The unit's copy is of no use any more. Returns the tier where it was.
    pub(super) fn forget(&mut self, unit: u32) -> Option<TierId> {
        let (tier, pages, _) = self.of.remove(&unit)?;
        self.pages[tier.index()] -= pages;
        Some(tier)
    }

    /// Memory was used: the oldest copies give way until all lie in what is free.
    pub(super) fn trim(&mut self, memory: &Memory) {
        let short =
            |pages: &[u64; TierId::MAX]| (0..memory.tiers()).any(|tier| pages[tier] > memory.free(TierId(tier as u8)));
        while short(&self.pages) {
            let Some((unit, number)) = self.order.pop_front() else { return };
            if self.of.get(&unit).is_some_and(|(.., latest)| *latest == number) {
                self.forget(unit);
            }
        }
        // Entries of copies long gone do not pile up.
        while self.order.front().is_some_and(|(unit, number)| self.of.get(unit).is_none_or(|copy| copy.2 != *number)) {
            self.order.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use terrace_core::units::Bytes;
    use terrace_machine::preset::Machine;
    use terrace_machine::scale::Scale;
    use terrace_policies::Settings;
    use terrace_workloads::Parameters;

    use super::*;
    use crate::run::run_alone;
    use crate::{FastSize, Pages, Report, SimConfig, WorkloadSource};

    const SLOW: TierId = TierId(1);

    #[test]
    fn the_oldest_copies_give_way_when_their_room_is_used() {
        let mut memory = Memory::new(vec![10, 4], vec![false, false]);
        memory.grow(512);
        let mut shadows = Shadows::default();
        (0..3).for_each(|unit| shadows.keep(unit, 1, SLOW));
        shadows.keep(0, 1, SLOW);
        shadows.trim(&memory);
        assert_eq!(shadows.of.len(), 3, "three copies in four free pages");
        (100..102).for_each(|page| assert!(memory.place(page, SLOW)));
        shadows.trim(&memory);
        assert_eq!(shadows.of.keys().copied().collect::<Vec<_>>(), [0, 2], "unit 1 is the oldest");
        assert_eq!((shadows.forget(2), shadows.forget(2)), (Some(SLOW), None));
        assert_eq!(shadows.pages[1], 1);
    }

    /// Look-ups, which write nothing, in fast memory for a fifth of them.
    fn run(copies: &str) -> Report {
        let size = Bytes::mib(8);
        let mut config = SimConfig::new(Machine::preset("cxl-170").unwrap(), size, FastSize::Share(0.2));
        (config.scale, config.pages) = (Scale::new(1024).unwrap(), Pages::Small);
        let mut parameters = Parameters::new(size.get());
        (parameters.threads, parameters.operations) = (4, Some(400_000));
        let source = WorkloadSource { name: "xsbench".to_owned(), parameters };
        let policy = terrace_policies::build("nomad", Settings::from_pairs([("copies", copies), ("touches", "1")]));
        run_alone(&config, &source, policy.unwrap()).unwrap()
    }

    #[test]
    fn a_page_that_goes_back_to_its_copy_is_not_copied() {
        let (kept, lost) = (run("on"), run("off"));
        let written = |report: &Report| report.tier_bytes[1][1] as f64 / report.kernel_demoted_pages as f64;
        assert!(kept.kernel_demoted_pages > 100 && lost.kernel_demoted_pages > 100);
        assert!(written(&kept) < 0.8 * written(&lost), "{} and {} bytes a demotion", written(&kept), written(&lost));
        let in_fault = |report: &Report| report.overhead_seconds.get("promotion_stall").copied().unwrap_or(0.0);
        assert!(in_fault(&kept) == 0.0 && in_fault(&lost) > 0.0, "promotions are off the program's path");
    }
}
