//! The tracker tries itself on a private mapping before anyone relies on it.
//!
//! In: a tracker that has just loaded its program. Out: the way to clear that works here, the cost of a page, or the
//! reason why the tracker is not to be trusted. Must not: touch any memory but its own mapping.

use std::time::{Duration, Instant};

use terrace_core::observation::PteState;
use terrace_core::units::{BLOCK_PAGES, SpaceId, Time, Vpn};
use terrace_core::watching::WatchPrices;

use super::clear::Clearing;
use super::entries::Head;
use super::{AccessedBits, NAME, TimeSpent, unavailable};
use crate::process::{Backing, MemoryRange, Process};
use crate::topology::TierMap;
use crate::trackers::{Event, Round, Sink, Target, TrackError, Tracker};

/// Pages of the private mapping on which loading is checked and the cost measured: 8 MiB.
const TRIAL_PAGES: usize = 1024;
const TRIAL_BLOCKS: usize = TRIAL_PAGES / BLOCK_PAGES as usize;
/// How often the page tables are compared with pagemap before they count as read wrong, with longer and longer pauses, 85 ms in all: between
/// the two readings the kernel may move pages (compaction) or page them out, the more on a machine that is short of memory.
const ATTEMPTS: u32 = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(1);
/// Share of the touched pages whose frames must agree. Tables that are read wrong agree in none.
const AGREE: f64 = 0.95;
/// Rounds by which prices are measured: 3 ms in all.
const ROUNDS: usize = 9;
/// Prime to the number of pages, and far from a whole number of table lines.
const TOUCH_STRIDE: usize = 397;
/// Most pages of the trial that may wait in folio batches: 31 each of the few CPUs that a start runs on.
const MOST_WAITING: usize = 128;

impl AccessedBits {
    /// Every other page of a private mapping is touched; a round must see exactly those, a second round after
    /// clearing none, and a third those touched in between.
    pub(super) fn try_on_itself(&mut self) -> Result<(), TrackError> {
        let failed = |call: &'static str| move |source| TrackError::call(NAME, call, source);
        let mut memory =
            crate::sys::private_memory::PrivateMemory::map(TRIAL_PAGES).map_err(failed("mmap of a trial mapping"))?;
        for page in (0..TRIAL_PAGES).step_by(2) {
            memory.write(page, 1);
        }
        let me = Process::open(std::process::id()).map_err(|error| unavailable(error.to_string()))?;
        let start = Vpn::of_address(memory.address());
        let ranges = [MemoryRange { start, end: Vpn(start.0 + TRIAL_PAGES as u64), backing: Backing::Anonymous }];
        let targets = [Target { space: SpaceId(u32::MAX), process: &me, ranges: &ranges }];
        let tiers = TierMap::new(Vec::new(), Vec::new());
        let mut seen = Trial { start, ptes: vec![PteState::ABSENT; TRIAL_PAGES], cleared: false };
        self.scan(&Round::of_all(Time::ZERO, &targets, &tiers), &mut seen)?;
        if !seen.cleared {
            // MADV_COLD is not for us here: the whole-process way, for everyone.
            self.clearing = Clearing::ClearRefs;
            self.spaces.clear();
            self.scan(&Round::of_all(Time::ZERO, &targets, &tiers), &mut seen)?;
        }
        // A refusal names what it rests on.
        let wrong = |tracker: &AccessedBits, what: &str| {
            let read = tracker.what_was_read();
            Err(unavailable(format!("{what}: the page tables of this kernel read wrong ({read})")))
        };
        let mut attempts = 1;
        loop {
            let agree = self.agrees_with_pagemap(start).map_err(failed("/proc/self/pagemap"))?;
            if agree >= AGREE {
                break;
            }
            if attempts == ATTEMPTS {
                return wrong(self, &format!("{:.0} % of the frames are those in /proc/self/pagemap", agree * 100.0));
            }
            std::thread::sleep(FIRST_PAUSE * 4u32.pow(attempts - 1));
            attempts += 1;
            self.scan(&Round::of_all(Time::ZERO, &targets, &tiers), &mut seen)?;
        }
        // What was touched may have been paged out since; what was not has no memory.
        let (touched, others): (Vec<_>, Vec<_>) = (0..TRIAL_PAGES).partition(|page| page % 2 == 0);
        let shown = |pages: &[usize]| pages.iter().filter(|page| seen.ptes[**page].tier().is_some()).count();
        if shown(&others) > 0 || (shown(&touched) as f64) < AGREE * touched.len() as f64 {
            return wrong(self, "pages that were touched and pages that were not are not told apart");
        }
        // Pages faulted on another CPU a moment ago may still wait in its folio batch, and MADV_COLD passes over those
        // (mm/madvise.c takes only pages on the kernel's lists): whatever is still marked now cannot be judged.
        self.scan(&Round::of_all(Time::ZERO, &targets, &tiers), &mut seen)?;
        let waiting: Vec<bool> = seen.ptes.iter().map(|pte| pte.accessed()).collect();
        if waiting.iter().filter(|waits| **waits).count() > MOST_WAITING {
            return wrong(self, "accessed bits are not cleared");
        }
        for page in (0..TRIAL_PAGES).step_by(8) {
            memory.read(page);
        }
        let began = Instant::now();
        self.scan(&Round::of_all(Time::ZERO, &targets, &tiers), &mut seen)?;
        let elapsed = began.elapsed();
        let used: Vec<usize> = (0..TRIAL_PAGES).filter(|page| seen.ptes[*page].accessed()).collect();
        // Never a page too many. A few too few are not our doing: other clearers (DAMON, page ageing) take bits away,
        // and clear_refs leaves translations in the TLB, so that a touch may set no bit.
        let enough = match self.clearing {
            Clearing::Cold => TRIAL_PAGES / 8 * 95 / 100,
            Clearing::ClearRefs => 1,
        };
        let as_touched = used.len() >= enough && used.iter().all(|page| page % 8 == 0 || waiting[*page]);
        if !as_touched {
            return wrong(self, "accessed bits are not set again, or set where nothing was touched");
        }
        tracing::debug!(?elapsed, clearing = ?self.clearing, program = ?self.tables.variant(), "accessed-bits tried on itself");
        self.cost_ns_per_page = Some(elapsed.as_nanos() as f64 / (TRIAL_PAGES / 2) as f64);
        self.spaces.clear();
        self.time = TimeSpent::default();
        Ok(())
    }

    /// What a scan costs on this machine, measured on a private mapping: reading and clearing, and what touching a page whose bit was
    /// cleared takes longer than touching it again right afterwards. Each is the median of [`ROUNDS`] rounds, since on a shared machine a mean
    /// counts other programs' time. What cannot be measured (bits that can only be cleared for a whole process at once) is assumed. A huge
    /// page has one bit and one translation, too, and costs what a small one does (`track_cost`: 0.4 ns * 512 against 156 to 240 ns).
    pub(super) fn measure_prices(&mut self) -> WatchPrices {
        match self.try_prices() {
            Ok(Some(prices)) => {
                tracing::debug!(?prices, "what watching costs, measured on memory of its own");
                prices
            }
            Ok(None) => WatchPrices::ASSUMED,
            Err(error) => {
                tracing::warn!(%error, "what watching costs could not be measured and is assumed");
                WatchPrices::ASSUMED
            }
        }
    }

    fn try_prices(&mut self) -> Result<Option<WatchPrices>, TrackError> {
        if self.clearing == Clearing::ClearRefs {
            return Ok(None);
        }
        let failed = |source| TrackError::call(NAME, "mmap of a trial mapping", source);
        let mut memory = crate::sys::private_memory::PrivateMemory::map(TRIAL_PAGES).map_err(failed)?;
        (0..TRIAL_PAGES).for_each(|page| memory.write(page, 1));
        let me = Process::open(std::process::id()).map_err(|error| unavailable(error.to_string()))?;
        let start = Vpn::of_address(memory.address());
        let ranges = [MemoryRange { start, end: Vpn(start.0 + TRIAL_PAGES as u64), backing: Backing::Anonymous }];
        let targets = [Target { space: SpaceId(u32::MAX), process: &me, ranges: &ranges }];
        let tiers = TierMap::new(Vec::new(), Vec::new());
        // In an order that no prefetcher foresees, and each page at another line, so that their lines do not meet in one set of a cache.
        let touch = || {
            let began = Instant::now();
            for step in 0..TRIAL_PAGES {
                let page = step * TOUCH_STRIDE % TRIAL_PAGES;
                std::hint::black_box(memory.read_line(page, page));
            }
            began.elapsed().as_nanos() as f64 / TRIAL_PAGES as f64
        };
        let (mut reads, mut clears, mut touches) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let mut seen = Trial { start, ptes: vec![PteState::ABSENT; TRIAL_PAGES], cleared: false };
            self.time = TimeSpent::default();
            self.scan(&Round::of_all(Time::ZERO, &targets, &tiers), &mut seen)?;
            let nanos = |time: Duration| time.as_nanos() as f64 / TRIAL_PAGES as f64;
            reads.push(nanos(self.time.reading + self.time.translating));
            clears.push(nanos(self.time.clearing));
            let first = touch();
            touches.push(first - touch());
        }
        self.spaces.clear();
        self.time = TimeSpent::default();
        let median = |mut values: Vec<f64>| {
            values.sort_by(f64::total_cmp);
            values[values.len() / 2].max(0.0)
        };
        let touch_ns = median(touches);
        Ok(Some(WatchPrices { read_ns: median(reads), clear_ns: median(clears), touch_ns, touch_huge_ns: touch_ns }))
    }

    /// Where the kernel's map of memory was found, and what maps the blocks of the trial.
    fn what_was_read(&self) -> String {
        let heads = (0..TRIAL_BLOCKS).map(|slot| Head::of(self.tables.head(slot)));
        format!("its map of memory was found and proven at {:#x}; {}", self.tables.direct_map(), told(heads))
    }

    /// Share of the pages with memory, by the window or by the kernel, whose frames are the same in both. Without the right to see frames
    /// (CAP_SYS_ADMIN) the kernel says 0, and only presence is compared.
    fn agrees_with_pagemap(&mut self, start: Vpn) -> std::io::Result<f64> {
        let mut told = vec![crate::pagemap::PagemapEntry(0); TRIAL_PAGES];
        crate::pagemap::Pagemap::open(std::process::id())?.entries(start, &mut told)?;
        let mask = self.tables.physical_address_mask();
        let (mut touched, mut agree) = (0, 0);
        for slot in 0..TRIAL_BLOCKS {
            if Head::of(self.tables.head(slot)) != Head::Table {
                return Ok(0.0);
            }
            for (entry, told) in self.tables.table(slot).iter().zip(&told[slot * BLOCK_PAGES as usize..]) {
                let frame = (entry & 1 == 1).then_some((entry & mask) >> 12);
                let same = frame.is_some() == told.present() && told.frame().is_none_or(|told| frame == Some(told));
                touched += u32::from(frame.is_some() || told.present());
                agree += u32::from(same && frame.is_some());
            }
        }
        Ok(f64::from(agree) / f64::from(touched.max(1)))
    }
}

/// Counts what maps the blocks, in words.
fn told(heads: impl Iterator<Item = Head>) -> String {
    let (mut table, mut nothing, mut huge, mut changing) = (0, 0, 0, 0);
    for head in heads {
        match head {
            Head::Table => table += 1,
            Head::Nothing => nothing += 1,
            Head::Huge => huge += 1,
            Head::Unknown => changing += 1,
        }
    }
    let of = table + nothing + huge + changing;
    format!(
        "of {of} blocks it shows {table} as a page table, {nothing} as nothing, {huge} as huge, {changing} as changing"
    )
}

/// What the trial rounds saw.
struct Trial {
    start: Vpn,
    ptes: Vec<PteState>,
    cleared: bool,
}

impl Sink for Trial {
    fn scan(&mut self, _: SpaceId, first: Vpn, ptes: &[PteState], _: Option<Duration>, cleared: bool) {
        let at = (first.0 - self.start.0) as usize;
        self.ptes[at..at + ptes.len()].copy_from_slice(ptes);
        self.cleared = cleared;
    }

    fn event(&mut self, _: SpaceId, _: Vpn, _: Event) {}
}

/// The name of a running DAMON thread of another program, which is left alone.
pub(super) fn running_kdamond(folder: &std::path::Path) -> Option<String> {
    let entries = std::fs::read_dir(folder).ok()?;
    let runs =
        |path: &std::path::Path| std::fs::read_to_string(path.join("state")).is_ok_and(|state| state.trim() == "on");
    let found = entries.flatten().find(|entry| runs(&entry.path()))?;
    Some(format!("kdamond {}", found.file_name().to_string_lossy()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_counts_what_the_heads_said() {
        let heads = [Head::Table, Head::Unknown, Head::Nothing, Head::Huge, Head::Unknown];
        let line = told(heads.into_iter());
        assert_eq!(line, "of 5 blocks it shows 1 as a page table, 1 as nothing, 1 as huge, 2 as changing");
    }

    /// The way out where MADV_COLD is refused, on this process. Needs eBPF.
    #[test]
    fn clear_refs_clears_everything_when_the_process_has_its_turn() {
        let mut tracker = match AccessedBits::open() {
            Ok(tracker) => tracker,
            Err(reason) => {
                println!("SKIPPED clear_refs_clears_everything_when_the_process_has_its_turn: {reason}");
                return;
            }
        };
        tracker.clearing = Clearing::ClearRefs;
        let mut memory = crate::sys::private_memory::PrivateMemory::map(TRIAL_PAGES).unwrap();
        (0..TRIAL_PAGES).for_each(|page| memory.write(page, 1));
        let me = Process::open(std::process::id()).unwrap();
        let start = Vpn::of_address(memory.address());
        let ranges = [MemoryRange { start, end: Vpn(start.0 + TRIAL_PAGES as u64), backing: Backing::Anonymous }];
        let targets = [Target { space: SpaceId(1), process: &me, ranges: &ranges }];
        let tiers = TierMap::new(Vec::new(), Vec::new());
        let mut told = Vec::new();
        for number in 0..4u64 {
            let mut seen = Trial { start, ptes: vec![PteState::ABSENT; TRIAL_PAGES], cleared: false };
            tracker
                .scan(&Round { now: Time::from_nanos(number), targets: &targets, tiers: &tiers, share: 0.5 }, &mut seen)
                .unwrap();
            told.push((seen.cleared, seen.ptes.iter().filter(|pte| pte.accessed()).count()));
        }
        // Every second scan has the whole process; the first of them finds all pages used, the next finds none.
        let first = usize::from(!told[0].0);
        assert_eq!(
            told.iter().map(|(cleared, _)| *cleared).collect::<Vec<_>>(),
            [first == 0, first == 1, first == 0, first == 1]
        );
        assert!(told[first].1 > TRIAL_PAGES * 9 / 10 && told[first + 2].1 == 0, "{told:?}");
    }

    #[test]
    fn only_a_kdamond_that_runs_is_named() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(running_kdamond(folder.path()), None);
        std::fs::create_dir(folder.path().join("0")).unwrap();
        std::fs::write(folder.path().join("0/state"), "off\n").unwrap();
        assert_eq!(running_kdamond(folder.path()), None);
        std::fs::write(folder.path().join("0/state"), "on\n").unwrap();
        assert_eq!(running_kdamond(folder.path()).as_deref(), Some("kdamond 0"));
    }
}
