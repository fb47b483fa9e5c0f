//! What a simulation is asked to be, checked once.
//!
//! In: sizes, shares and switches. Out: a validated [`SimConfig`], or an error that names what was wrong. Must not:
//! default anything that changes a result silently: every field is in the report.

use std::ops::Range;

use terrace_core::governor::GovernorConfig;
use terrace_core::policy::FastGoal;
use terrace_core::units::{BLOCK_PAGES, Bytes, PAGE_BYTES, Vpn};
use terrace_machine::memory_mode::Placement;
use terrace_machine::mmu::tables::FIRST_FRAME;
use terrace_machine::preset::{Machine, Management, TierKind, TlbLevel};
use terrace_machine::scale::Scale;

use crate::error::SimError;
use crate::mmu::{Flush, MOVED_WITH_ONE_FLUSH, MmuConfig};

/// How large the fast tier is: a share of the footprint, above 0 and at most 1, or an amount of the scaled machine.
pub use terrace_core::units::Quantity as FastSize;

/// How anonymous memory is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Pages {
    /// 4 KiB pages.
    Small,
    /// A 2 MiB page at the first touch of a 2 MiB range that the program has mapped whole.
    Huge,
    /// All by 2 MiB, as from a pool of huge pages: each region of the program begins on such a boundary and is rounded up to
    /// one. File-backed regions are not.
    Whole,
    /// Pages of 4 KiB that stand for the huge pages of the full size: on a machine 512 times smaller one small page is what
    /// a huge page is on the whole one. TLB reach, walks and the cost of faults, marks and moves, by the byte, are those of
    /// huge pages; a real 2 MiB page on a machine scaled by 64 would be as coarse as 128 MiB are.
    Folded,
    /// As the trace tells: a 2 MiB page where it names one, until it says that it was split.
    Traced,
}

impl SimConfig {
    /// The machine as it acts on pages: with [`Pages::Folded`], small pages at the price of huge ones, by the byte.
    pub(crate) fn acting(&self) -> Machine {
        let mut machine = self.machine.clone();
        if self.pages != Pages::Folded {
            return machine;
        }
        let pieces = BLOCK_PAGES;
        let tlb = &mut machine.processor.tlb;
        tlb.first_small = TlbLevel { entries: tlb.first_huge.entries * pieces, ..tlb.first_huge };
        tlb.second.entries *= pieces;
        tlb.walk_small_ns = tlb.walk_huge_ns;
        let huge = machine.management;
        let piece = f64::from(pieces);
        machine.management = Management {
            first_touch_small_ns: huge.first_touch_huge_ns / piece,
            hint_fault_ns: huge.hint_fault_ns / piece,
            hint_mark_ns: huge.hint_mark_ns / piece,
            scan_read_ns: huge.scan_read_ns / piece,
            scan_clear_ns: huge.scan_clear_ns / piece,
            scan_reset_ns: huge.scan_reset_ns / piece,
            move_small_ns: huge.move_huge_ns / piece,
            shootdown_ns: huge.shootdown_ns / piece,
            reclaim_page_ns: huge.reclaim_page_ns / piece,
            ..huge
        };
        machine
    }
}

/// What a simulation is asked to be.
#[derive(Clone, Debug)]
pub struct SimConfig {
    /// The machine, at full size.
    pub machine: Machine,
    /// The factor by which footprint, fast memory, time, caches and sample counts are shrunk.
    pub scale: Scale,
    /// Bytes the program touches at most; what shares refer to.
    pub footprint: Bytes,
    /// The fast tier.
    pub fast: FastSize,
    /// Seed of everything random in the machine.
    pub seed: u64,
    /// Page sizes.
    pub pages: Pages,
    /// Whether accesses pass the last-level cache; off for traces of misses, or of pages without lines.
    pub cache: bool,
    /// Whether accesses pass the TLBs.
    pub tlb: bool,
    /// Misses a thread overlaps, where the machine's own figure is not wanted.
    pub memory_parallelism: Option<f64>,
    /// Cycles added before each access: the compute of sources that record none.
    pub cycles_per_access: u32,
    /// Share of a core that sampling may take before the machine steps its periods up, for policies that do not hold a
    /// quota themselves; MEMTIS and FlexMem do.
    pub sampling_quota: Option<f64>,
    /// Share of moves that fail for a passing reason (page in use), at random.
    pub transient_failures: f64,
    /// Where pages lie physically, for Memory Mode.
    pub placement: Placement,
    /// The engine's bounds.
    pub governor: GovernorConfig,
    /// The engine's goal for fast memory.
    pub goal: FastGoal,
    /// The MMU with its page tables and counters, and cores that advance side by side; without it translation costs what the
    /// machine states for a walk, and threads take the turns in which the source delivers them.
    pub mmu: Option<MmuConfig>,
    /// Pages whose history is kept, for `explain`.
    pub watch: Option<Range<Vpn>>,
}

impl SimConfig {
    /// A simulation on `machine` of a program with this footprint, with a fast tier of that size; everything else as the
    /// papers' systems run: the governor without a rate, rest or throttle of its own. They do not run on compressed swap: where that is the
    /// only slow tier, the governor is the one that runs live, and with fast memory for all of the program whatever is cold leaves.
    pub fn new(machine: Machine, footprint: Bytes, fast: FastSize) -> SimConfig {
        let only_swap = machine.tiers.get(1).is_some_and(|tier| tier.kind == TierKind::Compressed);
        SimConfig {
            machine,
            scale: Scale::FULL,
            footprint,
            fast,
            seed: 1,
            pages: Pages::Small,
            cache: true,
            tlb: true,
            memory_parallelism: None,
            cycles_per_access: 0,
            sampling_quota: None,
            transient_failures: 0.0,
            placement: Placement::Random,
            governor: if only_swap { GovernorConfig::default() } else { unbound() },
            goal: FastGoal::Share(1.0),
            mmu: None,
            watch: None,
        }
    }

    /// Misses a thread overlaps.
    pub(crate) fn parallelism(&self) -> f64 {
        self.memory_parallelism.unwrap_or(self.machine.processor.memory_parallelism)
    }

    /// Lines of a stream in flight for one thread: no fewer than independent misses.
    pub(crate) fn stream_parallelism(&self) -> f64 {
        self.machine.processor.stream_parallelism.max(self.parallelism())
    }

    /// Pages that move with one flush of translations.
    pub(crate) fn pages_a_flush(&self) -> u32 {
        match self.mmu.as_ref().map(|mmu| mmu.flush) {
            Some(Flush::Batch) => MOVED_WITH_ONE_FLUSH,
            _ => 1,
        }
    }

    /// How many pages of the full size a unit of the scaled machine stands for; below 1 where a small page is only a piece of
    /// the huge one that it stands for.
    pub(crate) fn pages_in_a_unit(&self) -> f64 {
        let factor = f64::from(self.scale.factor());
        if self.pages == Pages::Folded { factor / f64::from(BLOCK_PAGES) } else { factor }
    }

    /// Checks everything, and returns the capacity of each tier in pages of the scaled machine.
    ///
    /// # Errors
    /// When a parameter is out of its range, or the fast tier larger than the footprint.
    pub fn capacities(&self) -> Result<Vec<u64>, SimError> {
        let refuse = |name, value: String, wanted: &str| SimError::Parameter { name, value, wanted: wanted.to_owned() };
        if self.footprint < Bytes::new(PAGE_BYTES) {
            return Err(refuse("footprint", self.footprint.to_string(), "at least one page of 4 KiB"));
        }
        let fast = match self.fast {
            FastSize::Share(share) if !(share > 0.0 && share <= 1.0) => {
                return Err(refuse("fast", share.to_string(), "a share above 0% and at most 100%"));
            }
            FastSize::Share(share) => self.footprint.share(share),
            FastSize::Bytes(bytes) => bytes,
        };
        if fast.pages() == 0 {
            return Err(refuse("fast", fast.to_string(), "at least one page of 4 KiB"));
        }
        if fast > self.footprint {
            return Err(SimError::FastLargerThanFootprint { fast, footprint: self.footprint });
        }
        if let Some(parallelism) = self.memory_parallelism
            && !(1.0..=64.0).contains(&parallelism)
        {
            return Err(refuse("memory_parallelism", parallelism.to_string(), "a number from 1 to 64"));
        }
        if !(0.0..1.0).contains(&self.transient_failures) {
            return Err(refuse("transient_failures", self.transient_failures.to_string(), "a share from 0 to below 1"));
        }
        if let Some(quota) = self.sampling_quota
            && !(quota > 0.0 && quota.is_finite())
        {
            return Err(refuse("sampling_quota", quota.to_string(), "a number above 0"));
        }
        if self.machine.tiers.len() < 2 {
            return Err(refuse("machine", self.machine.name.clone(), "one with at least two tiers"));
        }
        if let Some(mmu) = &self.mmu {
            let cores = self.machine.processor.cores as usize;
            if !(1..=cores).contains(&mmu.cores) {
                return Err(refuse("cores", mmu.cores.to_string(), &format!("1 to the machine's {cores}")));
            }
            if !(mmu.skew_ns >= 0.0 && mmu.skew_ns.is_finite()) {
                return Err(refuse("skew", mmu.skew_ns.to_string(), "0 or more nanoseconds"));
            }
            if self.footprint.pages() >= u64::from(FIRST_FRAME) {
                let most = Bytes::of_pages(u64::from(FIRST_FRAME));
                return Err(refuse(
                    "footprint",
                    self.footprint.to_string(),
                    &format!("below {most} where the MMU is modelled"),
                ));
            }
        }
        let mut capacities = vec![fast.pages()];
        capacities.extend(self.machine.tiers[1..].iter().map(|tier| self.scale.bytes(tier.capacity).pages()));
        Ok(capacities)
    }

    /// Which tiers fault when touched.
    pub(crate) fn compressed(&self) -> Vec<bool> {
        self.machine.tiers.iter().map(|tier| tier.kind == TierKind::Compressed).collect()
    }
}

/// A governor that lets through whatever fits: the papers' systems have no governor, and what is compared is theirs.
pub fn unbound() -> GovernorConfig {
    GovernorConfig {
        rate: None,
        batch_pages: 2048,
        cooldown: std::time::Duration::ZERO,
        max_slowdown: 1.0,
        ..GovernorConfig::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(fast: FastSize) -> SimConfig {
        SimConfig::new(Machine::preset("optane-6252").unwrap(), Bytes::mib(64), fast)
    }

    #[test]
    fn nonsense_is_refused_with_its_name() {
        for (fast, expect) in [
            (FastSize::Share(f64::NAN), "NaN"),
            (FastSize::Share(0.0), "above 0%"),
            (FastSize::Share(1.1), "at most 100%"),
            (FastSize::Bytes(Bytes::ZERO), "at least one page"),
            (FastSize::Bytes(Bytes::mib(65)), "larger than the footprint"),
        ] {
            let error = config(fast).capacities().unwrap_err().to_string();
            assert!(error.contains(expect), "{fast:?}: {error}");
        }
        let mut odd = config(FastSize::Share(0.5));
        odd.memory_parallelism = Some(f64::NAN);
        assert!(odd.capacities().unwrap_err().to_string().contains("memory_parallelism"));
        odd.memory_parallelism = None;
        odd.transient_failures = f64::NAN;
        assert!(odd.capacities().unwrap_err().to_string().contains("transient_failures"));
        odd.transient_failures = 0.0;
        odd.footprint = Bytes::ZERO;
        assert!(odd.capacities().unwrap_err().to_string().contains("footprint"));
    }

    #[test]
    fn the_fast_tier_is_a_share_of_the_footprint() {
        assert_eq!(config(FastSize::Share(0.25)).capacities().unwrap()[0], Bytes::mib(16).pages());
    }
}
