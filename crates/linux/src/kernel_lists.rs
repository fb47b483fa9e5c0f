//! The kernel's page lists, ordered from user space, and moved from by the kernel module: TieredMMS's rings and its settings.
//!
//! In: which pages are hot and which are cold. Out: what the module did, by its own counts ([`Counts`]). Must not: decide what is hot, or
//! take an entry in a ring for a page moved: the lists' order is advice, and the module's threads move by it when they will.

use std::collections::BTreeSet;
use std::io;
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;

use terrace_core::policy::{ListMark, ListPlan};
use terrace_core::units::{PAGE_BYTES, PageId, TierId, Vpn};

use crate::kernel_module::{KernelModule, ModuleError, Slot};
use crate::process::Process;
use crate::sys::terrace_mm as abi;
use crate::topology::{Tier, TierMap};

const HOT_RING: u64 = 0x1_0000_0000;
const COLD_RING: u64 = 0x2_0000_0000;
const WAKE_DIRECT: u32 = 1;
const WAKE_COOLED: u32 = 2;
/// Times between two periodic demotions that the module takes (`makes_sense` in kmod/terrace_mm/lists.c).
const PERIODS: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(60);
/// Bit 0 of this file: the kernel keeps pages by generations instead of lists (admin-guide/mm/multigen_lru.rst).
const GENERATIONS: &str = "/sys/kernel/mm/lru_gen/enabled";

/// How the module moves pages. The defaults are TieredMMS's (section III.B).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListSettings {
    /// Nodes that pages are demoted from; below 64.
    pub fast_nodes: Vec<u32>,
    /// Nodes that they are demoted to, and promoted from; below 64.
    pub slow_nodes: Vec<u32>,
    /// Entries of each ring, a power of two. The paper does not say; 65,536 are half a MiB.
    pub ring_entries: u32,
    /// Free share of a fast node that demotion restores, in 1/10000: 300.
    pub high_watermark: u32,
    /// Free share below which an allocation wakes demotion at once, in 1/10000: 200.
    pub low_watermark: u32,
    /// Between two looks of a node's thread: 500 ms.
    pub period: Duration,
    /// Rear share of a list that one demotion may take: 70 %.
    pub candidates_percent: u32,
    /// Tail share of the active list that a cooling makes inactive: 50 %.
    pub deactivate_percent: u32,
}

impl Default for ListSettings {
    fn default() -> ListSettings {
        ListSettings {
            fast_nodes: vec![0],
            slow_nodes: vec![1],
            ring_entries: 1 << 16,
            high_watermark: 300,
            low_watermark: 200,
            period: Duration::from_millis(500),
            candidates_percent: 70,
            deactivate_percent: 50,
        }
    }
}

/// What the module has done since it was started (`TERRACE_MM_ENTRIES_HOT` and so on).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Counts {
    /// Ring entries whose page went to the head of an active list.
    pub hot_entries: u64,
    /// Ring entries whose page went to the head of an inactive list.
    pub cold_entries: u64,
    /// Ring entries with no page there, or one that could not be taken just then.
    pub missed_entries: u64,
    /// Ring entries of no process, or with no address.
    pub bad_entries: u64,
    /// Times a ring was found with its head too far ahead.
    pub overruns: u64,
    /// 4 KiB pages moved from slow nodes to fast ones.
    pub promoted_pages: u64,
    /// 4 KiB pages moved from fast nodes to slow ones.
    pub demoted_pages: u64,
    /// Folios (pages, or huge pages) that the kernel would not move.
    pub stayed_folios: u64,
    /// 4 KiB pages that coolings made inactive.
    pub deactivated_pages: u64,
    /// Demotions because less than the high watermark was free.
    pub periodic_runs: u64,
    /// Demotions because an allocation found less than the low watermark free.
    pub direct_runs: u64,
}

/// The rings and the migration threads, which end when this is dropped.
#[derive(Debug)]
pub struct KernelLists {
    module: KernelModule,
    hot: abi::Ring,
    cold: abi::Ring,
    dropped: u64,
}

/// Why the kernel's lists cannot be ordered.
#[derive(Debug, thiserror::Error)]
pub enum ListsError {
    /// There is nothing to move to.
    #[error("lists=kernel moves pages between NUMA nodes, and there is no slower node: --tier-slow node:N names one")]
    NoSlowNode,
    /// The module looks less often, or more often.
    #[error("lists=kernel: period={0:?}: the module takes {least:?} to {most:?}", least = PERIODS.start(), most = PERIODS.end())]
    Period(
        /// What was asked for.
        Duration,
    ),
    /// The kernel has no such lists.
    #[error("the kernel keeps pages by generations, not by lists, so there is none to order: echo 0 > {GENERATIONS}")]
    Generations,
    /// The module was refused what it needs.
    #[error(
        "the module terrace_mm is loaded, and this kernel does not let it order lists: see its line in the kernel's log"
    )]
    CannotOrder,
    /// A node has a number beyond the module's.
    #[error("node {0}: the module knows nodes up to 63")]
    Node(
        /// The node.
        u32,
    ),
    /// Another program has them.
    #[error("another program orders the kernel's lists by terrace_mm; there is one at a time")]
    Busy,
    /// A call of the module failed.
    #[error("terrace_mm: {call}: {source}")]
    Call {
        /// The call.
        call: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// The module cannot be used at all.
    #[error(transparent)]
    Module(#[from] ModuleError),
}

impl ListSettings {
    /// What a policy asks for, on these tiers.
    ///
    /// # Errors
    /// When they have no slower tier of NUMA nodes.
    pub fn of(plan: &ListPlan, tiers: &TierMap) -> Result<ListSettings, ListsError> {
        let (fast, slow): (Vec<&Tier>, Vec<&Tier>) = tiers.tiers().iter().partition(|tier| tier.id == TierId::FAST);
        let numbers = |part: Vec<&Tier>| part.into_iter().filter_map(Tier::nodes).flatten().copied().collect();
        let (fast_nodes, slow_nodes): (Vec<u32>, Vec<u32>) = (numbers(fast), numbers(slow));
        if fast_nodes.is_empty() || slow_nodes.is_empty() {
            return Err(ListsError::NoSlowNode);
        }
        if !PERIODS.contains(&plan.period) {
            return Err(ListsError::Period(plan.period));
        }
        let share = |share: f64, whole: f64| (share * whole).round() as u32;
        Ok(ListSettings {
            fast_nodes,
            slow_nodes,
            high_watermark: share(plan.high_watermark, 1e4),
            low_watermark: share(plan.low_watermark, 1e4),
            period: plan.period,
            candidates_percent: share(plan.candidates, 1e2),
            deactivate_percent: share(plan.deactivate, 1e2),
            ..ListSettings::default()
        })
    }
}

impl KernelLists {
    /// Starts them.
    ///
    /// # Errors
    /// In one line what is missing and what to do.
    pub fn start(settings: &ListSettings) -> Result<KernelLists, ListsError> {
        if by_generations(Path::new(GENERATIONS)) {
            return Err(ListsError::Generations);
        }
        let module = KernelModule::open(1)?;
        if !module.can_order_lists() {
            return Err(ListsError::CannotOrder);
        }
        let start = abi::Start {
            fast_nodes: mask(&settings.fast_nodes)?,
            slow_nodes: mask(&settings.slow_nodes)?,
            ring_entries: settings.ring_entries,
            high_watermark: settings.high_watermark,
            low_watermark: settings.low_watermark,
            period_ms: u32::try_from(settings.period.as_millis()).unwrap_or(u32::MAX),
            candidates_percent: settings.candidates_percent,
            deactivate_percent: settings.deactivate_percent,
            reserved: 0,
        };
        let failed = |call: &'static str| {
            move |source: io::Error| match source.raw_os_error() {
                Some(libc::EBUSY) => ListsError::Busy,
                _ => ListsError::Call { call, source },
            }
        };
        abi::start(&module.device, &start).map_err(failed("start"))?;
        let ring =
            |offset| abi::Ring::map(&module.device, offset, settings.ring_entries).map_err(failed("mmap of a ring"));
        let (hot, cold) = (ring(HOT_RING)?, ring(COLD_RING)?);
        Ok(KernelLists { module, hot, cold, dropped: 0 })
    }

    /// Names a process: only pages of named processes are taken from the rings, and only lists of their memory groups are moved from.
    ///
    /// # Errors
    /// ESRCH if it is gone, ENOSPC if the module has no number left.
    pub fn add(&self, process: &Process) -> io::Result<Slot> {
        self.module.add(process)
    }

    /// Forgets a process.
    ///
    /// # Errors
    /// When it has been forgotten already.
    pub fn forget(&self, slot: Slot) -> io::Result<()> {
        self.module.forget(slot)
    }

    /// Asks for a page to go to the head of the active list, or of the inactive one. If the ring is full it is dropped, and counted.
    pub fn push(&mut self, slot: Slot, page: Vpn, hot: bool) {
        let ring = if hot { &mut self.hot } else { &mut self.cold };
        if !ring.push((page.0 * PAGE_BYTES) | u64::from(slot.0)) {
            self.dropped += 1;
        }
    }

    /// Passes on a policy's marks of pages; `place` returns a page's process and address.
    pub fn pass_on(&mut self, marks: &mut Vec<ListMark>, place: impl Fn(PageId) -> Option<(Slot, Vpn)>) {
        last_marks(marks);
        for mark in marks {
            let (page, hot) = match *mark {
                ListMark::Hot(page) => (page, true),
                ListMark::Cold(page) => (page, false),
                ListMark::Cooled => {
                    if let Err(error) = self.cooled() {
                        tracing::warn!(%error, "the module does not hear of a cooling");
                    }
                    continue;
                }
            };
            if let Some((slot, vpn)) = place(page) {
                self.push(slot, vpn, hot);
            }
        }
    }

    /// Entries dropped so far because a ring was full.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Whether the module has worked everything off.
    pub fn is_idle(&self) -> bool {
        self.hot.is_empty() && self.cold.is_empty()
    }

    /// Notifies the demotion threads that memory is short.
    ///
    /// # Errors
    /// None that is known.
    pub fn demote_now(&self) -> io::Result<()> {
        abi::wake(&self.module.device, WAKE_DIRECT)
    }

    /// Notifies the demotion threads that counts were halved.
    ///
    /// # Errors
    /// None that is known.
    pub fn cooled(&self) -> io::Result<()> {
        abi::wake(&self.module.device, WAKE_COOLED)
    }

    /// What the module has done so far.
    ///
    /// # Errors
    /// None that is known.
    pub fn counts(&self) -> io::Result<Counts> {
        let [hot, cold, missed, bad, overruns, promoted, demoted, stayed, deactivated, periodic, direct] =
            abi::counts(&self.module.device)?;
        Ok(Counts {
            hot_entries: hot,
            cold_entries: cold,
            missed_entries: missed,
            bad_entries: bad,
            overruns,
            promoted_pages: promoted,
            demoted_pages: demoted,
            stayed_folios: stayed,
            deactivated_pages: deactivated,
            periodic_runs: periodic,
            direct_runs: direct,
        })
    }
}

/// Leaves of each page's marks the last one. The module works off one ring after the other, so of a page that was cold and then
/// hot it would see the hot mark first.
fn last_marks(marks: &mut Vec<ListMark>) {
    let mut seen = BTreeSet::new();
    marks.reverse();
    marks.retain(|mark| match mark {
        ListMark::Hot(page) | ListMark::Cold(page) => seen.insert(*page),
        ListMark::Cooled => true,
    });
    marks.reverse();
}

/// A bit for each node.
fn mask(nodes: &[u32]) -> Result<u64, ListsError> {
    nodes.iter().try_fold(0, |mask, &node| match 1_u64.checked_shl(node) {
        Some(bit) => Ok(mask | bit),
        None => Err(ListsError::Node(node)),
    })
}

fn by_generations(path: &Path) -> bool {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    u32::from_str_radix(text.trim().trim_start_matches("0x"), 16).is_ok_and(|bits| bits & 1 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel_module::tests::defined;
    use crate::topology::TierKind;

    #[test]
    fn numbers_are_those_of_the_module_s_header() {
        for (name, value) in [
            ("TERRACE_MM_HOT_RING", HOT_RING),
            ("TERRACE_MM_COLD_RING", COLD_RING),
            ("TERRACE_MM_WAKE_DIRECT", u64::from(WAKE_DIRECT)),
            ("TERRACE_MM_WAKE_COOLED", u64::from(WAKE_COOLED)),
            ("TERRACE_MM_RING_HEAD", 0),
            ("TERRACE_MM_RING_TAIL", 64),
            ("TERRACE_MM_RING_START", 4096),
        ] {
            assert_eq!(defined(name), value, "{name}");
        }
        let order = [
            "ENTRIES_HOT",
            "ENTRIES_COLD",
            "ENTRIES_MISSED",
            "ENTRIES_BAD",
            "RING_OVERRUNS",
            "PAGES_PROMOTED",
            "PAGES_DEMOTED",
            "FOLIOS_STAYED",
            "PAGES_DEACTIVATED",
            "RUNS_PERIODIC",
            "RUNS_DIRECT",
        ];
        for (number, name) in order.iter().enumerate() {
            assert_eq!(defined(&format!("TERRACE_MM_{name}")), number as u64, "{name}");
        }
    }

    #[test]
    fn a_policy_s_plan_becomes_the_module_s_settings() {
        let tier = |id, kind| Tier {
            id: TierId(id),
            name: String::new(),
            kind,
            capacity_bytes: terrace_core::units::Bytes::gib(1),
            read_latency_ns: None,
            read_bandwidth_mbps: None,
        };
        let fast = tier(0, TierKind::Nodes { nodes: vec![0, 2] });
        let slow = tier(1, TierKind::Nodes { nodes: vec![1] });
        let swap = tier(2, TierKind::Swap { device: "/dev/zram0".to_owned(), compressed: true });
        let plan = ListPlan {
            high_watermark: 0.03,
            low_watermark: 0.02,
            period: Duration::from_millis(500),
            candidates: 0.7,
            deactivate: 0.5,
        };
        let tiers = TierMap::new(vec![fast.clone(), slow, swap.clone()], Vec::new());
        let expect = ListSettings { fast_nodes: vec![0, 2], ..ListSettings::default() };
        assert_eq!(ListSettings::of(&plan, &tiers).unwrap(), expect, "the paper's constants are the defaults of both");
        let often = ListPlan { period: Duration::from_millis(9), ..plan };
        assert_eq!(
            ListSettings::of(&often, &tiers).unwrap_err().to_string(),
            "lists=kernel: period=9ms: the module takes 10ms to 60s"
        );
        let tiers = TierMap::new(vec![fast, tier(1, swap.kind)], Vec::new());
        assert!(matches!(ListSettings::of(&plan, &tiers), Err(ListsError::NoSlowNode)));
    }

    #[test]
    fn of_a_page_s_marks_the_last_one_counts() {
        let [one, two] = [PageId(1), PageId(2)];
        let mut marks = vec![
            ListMark::Cold(one),
            ListMark::Hot(two),
            ListMark::Cooled,
            ListMark::Hot(one),
            ListMark::Hot(one),
            ListMark::Cold(two),
        ];
        last_marks(&mut marks);
        assert_eq!(marks, [ListMark::Cooled, ListMark::Hot(one), ListMark::Cold(two)]);
    }

    #[test]
    fn nodes_are_bits_of_a_word() {
        assert_eq!(mask(&[0, 2, 63]).unwrap(), 1 | 4 | 1 << 63);
        assert!(matches!(mask(&[64]), Err(ListsError::Node(64))));
    }

    #[test]
    fn generations_are_known_by_their_switch() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("enabled");
        for (text, expect) in [("0x0007\n", true), ("0x0000\n", false), ("0x0006\n", false), ("", false)] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(by_generations(&path), expect, "{text:?}");
        }
        assert!(!by_generations(&folder.path().join("absent")));
    }
}
