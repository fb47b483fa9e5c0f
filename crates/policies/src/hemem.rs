//! `hemem`: HeMem. Sampled counts of 2 MiB pages make four queues; hot pages in slow memory take the place of cold ones.
//!
//! In: hardware samples. Out: every `period` as many exchanges as there are hot slow pages and cold fast ones, up to 10 GiB.
//! Must not: rank; the queues are first in, first out.
//!
//! Source: HeMem (SOSP 2021) and its public code (specification section 7). Values of the paper that were not read again are
//! marked unverified. `preset=sosp-code` is what the published branch really runs.
//!
//! | constant | paper | sosp-code | meaning |
//! |---|---|---|---|
//! | `read_hot` | 8 | 8 | reads that make a page hot |
//! | `write_hot` | 4 (unverified) | off | writes that make a page hot |
//! | `cool` | 18 | 10 | a count above it starts a cooling: all counts are halved, lazily |
//! | `sample_period` | 5,000 (unverified) | 10,007 | loads a sample; stores likewise where writes count |
//! | `period` | 10 ms | no sleep, here 1 ms | time between rounds |
//! | `migrate_cap` | 10 GiB | 10 GiB | most moved in a round |
//! | cold requests, cooled pages | 128, 8,192 a tier | the same | handled in a round |
//! | copying threads | 4 | 4 | of each page |
//!
//! Every mapping is managed, where HeMem leaves those below 1 GiB in ordinary memory. A cooled page that stays hot goes
//! to the young end of its queue.
//!
//! On a scaled-down machine whose small pages stand for huge ones, the unit is the small page.
//!
//! Memory beside the common eight bytes: 24 bytes a 2 MiB block, 0.05 a page. The original's structure takes 150 to 200 a block.

use std::ops::Range;
use std::time::Duration;

use terrace_core::observation::{Access, Observation, Observations};
use terrace_core::pages::Pages;
use terrace_core::plan::{MoveRequests, Reason};
use terrace_core::policy::{
    Cadence, CapacityView, Feedback, Kernel, Metric, Movers, Needs, Policy, PolicyReport, Profile, Remap,
    SamplePeriods, Schedule, Setup,
};
use terrace_core::units::{BLOCK_PAGES, BLOCK_SHIFT, Bytes, PageId, SpaceId, TierId, Time, Vpn};

use crate::parts::lists::Lists;
use crate::parts::support;
use crate::{PolicyInfo, SettingInfo, Settings, SettingsError};

/// The policy's entry in the registry.
pub const INFO: PolicyInfo = PolicyInfo {
    name: "hemem",
    summary: "HeMem: 2 MiB pages, hot after 8 sampled reads or 4 writes, exchanged in FIFO order every 10 ms",
    source: "HeMem, SOSP 2021",
    settings: &[
        SettingInfo { key: "preset", default: "paper", meaning: "paper, or sosp-code: what the published branch runs" },
        SettingInfo { key: "read_hot", default: "8", meaning: "sampled reads that make a page hot" },
        SettingInfo {
            key: "write_hot",
            default: "4",
            meaning: "sampled writes that make a page hot; 0 counts no writes",
        },
        SettingInfo { key: "cool", default: "18", meaning: "a count above it starts a cooling" },
        SettingInfo { key: "cool_samples", default: "0", meaning: "cool after this many samples instead; 0 by count" },
        SettingInfo { key: "sample_period", default: "5000", meaning: "accesses a sample" },
        SettingInfo { key: "period", default: "10ms", meaning: "time between rounds" },
        SettingInfo { key: "migrate_cap", default: "10GiB", meaning: "most moved in a round" },
    ],
    build: |settings| Ok(Box::new(HeMem::new(settings)?)),
};

const COLD_REQUESTS: usize = 128;
const COOLED_A_ROUND: u32 = 8192;
/// Threads that copy a page together (specification section 7, migration).
const COPY_THREADS: u8 = 4;
const HOT: usize = 1;
const SLOW: usize = 2;

/// What is known of a unit: a block, or a small page that stands for one.
#[derive(Clone, Copy, Debug, Default)]
struct Unit {
    reads: u32,
    writes: u32,
    clock: u32,
    known: bool,
    hot: bool,
    slow: bool,
}

/// See the module's header.
pub struct HeMem {
    read_hot: u32,
    write_hot: u32,
    cool: u32,
    cool_samples: u64,
    sample_period: u32,
    period: Duration,
    full_cap: Bytes,
    cap: u64,
    /// What the machine is smaller by, and log2 of the pages of a unit: 0 where a small page stands for a huge one.
    scale: u32,
    shift: u32,
    /// What one observation adds to a count, and units cooled a round.
    weight: u32,
    cooled_a_round: u32,
    units: Vec<Unit>,
    queues: Lists,
    sizes: [u32; 4],
    clock: u32,
    samples: u64,
    cold_requests: Vec<u32>,
    /// Units of each hot queue that the running cooling has not looked at.
    to_cool: [u32; 2],
    next_round: Time,
    unfinished: bool,
}

impl HeMem {
    /// Reads the settings.
    ///
    /// # Errors
    /// When a value is none of its kind.
    pub fn new(settings: &mut Settings) -> Result<HeMem, SettingsError> {
        let code = settings.choice("preset", &[("paper", false), ("sosp-code", true)])?;
        if code {
            settings.prefer(&[("write_hot", "0"), ("cool", "10"), ("sample_period", "10007"), ("period", "1ms")]);
        }
        let full_cap = support::size(settings, "migrate_cap")?;
        Ok(HeMem {
            read_hot: settings.number("read_hot", 1..=1_000_000)?,
            write_hot: settings.number("write_hot", 0..=1_000_000)?,
            cool: settings.number("cool", 1..=1_000_000)?,
            cool_samples: settings.number("cool_samples", 0..=u64::from(u32::MAX))?,
            sample_period: settings.number("sample_period", 1..=1_000_000_000)?,
            period: settings.duration("period")?,
            full_cap,
            cap: full_cap.pages(),
            scale: 1,
            shift: BLOCK_SHIFT,
            weight: 1,
            cooled_a_round: COOLED_A_ROUND,
            units: Vec::new(),
            queues: Lists::new(4),
            sizes: [0; 4],
            clock: 0,
            samples: 0,
            cold_requests: Vec::new(),
            to_cool: [0; 2],
            next_round: Time::ZERO,
            unfinished: false,
        })
    }

    fn is_hot(&self, reads: u32, writes: u32) -> bool {
        reads >= self.read_hot || (self.write_hot > 0 && writes >= self.write_hot)
    }

    fn decayed(&self, unit: &Unit) -> (u32, u32) {
        let missed = self.clock.wrapping_sub(unit.clock).min(31);
        (unit.reads >> missed, unit.writes >> missed)
    }

    fn queue_of(unit: &Unit) -> usize {
        usize::from(unit.hot) * HOT + usize::from(unit.slow) * SLOW
    }

    /// The unit a page belongs to, and the pages of a unit.
    fn unit_of(&self, page: PageId) -> u32 {
        page.0 >> self.shift
    }

    fn pages_of(&self, unit: u32) -> Range<u32> {
        unit << self.shift..(unit + 1) << self.shift
    }

    /// Puts a unit at the young end of the queue that its state calls for.
    fn enqueue(&mut self, number: u32, change: impl FnOnce(&mut Unit)) {
        self.dequeue(number);
        let unit = &mut self.units[number as usize];
        change(unit);
        unit.known = true;
        let queue = Self::queue_of(unit);
        self.queues.push_front(queue, number);
        self.sizes[queue] += 1;
    }

    fn dequeue(&mut self, number: u32) {
        if self.queues.remove(number) {
            self.sizes[Self::queue_of(&self.units[number as usize])] -= 1;
        }
    }

    /// Brings a unit's queue up to date with where its pages lie: slow unless half of them are fast.
    fn refresh(&mut self, number: u32, pages: &Pages) {
        let range = self.pages_of(number);
        if pages.block(PageId(range.start).block()).is_none() {
            return;
        }
        let (mut fast, mut placed) = (0u32, 0u32);
        for page in range.map(|id| &pages[PageId(id)]) {
            placed += u32::from(page.tier().is_some());
            fast += u32::from(page.tier() == Some(TierId::FAST));
        }
        let unit = self.units[number as usize];
        let slow = 2 * fast < placed;
        match (unit.known, placed > 0) {
            (true, false) => {
                self.dequeue(number);
                self.units[number as usize] = Unit::default();
            }
            (false, true) => {
                let clock = self.clock;
                self.enqueue(number, |unit| *unit = Unit { slow, clock, ..Unit::default() });
            }
            (true, true) if unit.slow != slow => self.enqueue(number, |unit| unit.slow = slow),
            _ => {}
        }
    }

    fn on_sample(&mut self, number: u32, access: Access, pages: &Pages) {
        if !self.units[number as usize].known {
            self.refresh(number, pages);
        }
        let unit = &mut self.units[number as usize];
        if !unit.known || (access == Access::Store && self.write_hot == 0) {
            return;
        }
        let count = if access == Access::Store { &mut unit.writes } else { &mut unit.reads };
        *count += self.weight;
        // The request is judged by the counts as they stand; only then are they brought to the clock.
        let unit = self.units[number as usize];
        let hot = self.is_hot(unit.reads, unit.writes);
        if hot && !unit.hot {
            self.enqueue(number, |unit| unit.hot = true);
        } else if !hot && unit.hot && self.cold_requests.len() < COLD_REQUESTS {
            self.cold_requests.push(number);
        }
        let (reads, writes) = self.decayed(&unit);
        let clock = self.clock;
        let unit = &mut self.units[number as usize];
        (unit.reads, unit.writes, unit.clock) = (reads, writes, clock);
        self.samples += 1;
        let updated = if access == Access::Store { writes } else { reads };
        let due = match self.cool_samples {
            0 => updated > self.cool,
            samples => self.samples.is_multiple_of(samples),
        };
        if due {
            self.clock = self.clock.wrapping_add(1);
            self.to_cool = [self.sizes[HOT], self.sizes[HOT | SLOW]];
        }
    }

    /// Examines some units of each hot queue, the oldest first: those no longer hot go to the cold queue.
    fn cool_queues(&mut self) {
        for (side, queue) in [HOT, HOT | SLOW].into_iter().enumerate() {
            for _ in 0..self.to_cool[side].min(self.cooled_a_round) {
                self.to_cool[side] -= 1;
                let Some(number) = self.queues.back(queue) else { break };
                let (reads, writes) = self.decayed(&self.units[number as usize]);
                let hot = self.is_hot(reads, writes);
                self.enqueue(number, |unit| unit.hot = hot);
            }
        }
    }

    /// Requests for a whole unit to be in `to`: once if it is huge, otherwise page by page.
    fn request(range: Range<u32>, to: TierId, reason: Reason, pages: &Pages, requests: &mut MoveRequests) {
        let first = PageId(range.start);
        let huge = pages.block(first.block()).is_some_and(|info| info.huge);
        let count = if huge { 1 } else { range.len() as u32 };
        for page in (0..count).map(|offset| first.plus(offset)) {
            let entry = &pages[page];
            let side = |tier: TierId| tier == TierId::FAST;
            if entry.tier().is_some_and(|tier| side(tier) != side(to)) && !entry.moving() {
                requests.move_to(page, to, reason);
            }
        }
    }
}

impl HeMem {
    fn set_folded(&mut self, parts: u32) {
        self.shift = 0;
        self.weight = (BLOCK_PAGES / parts.max(1)).max(1);
        // There are as many times fewer units as the machine is smaller, but for the 512 that each page takes the place of.
        self.cooled_a_round = support::scaled_samples(u64::from(COOLED_A_ROUND), self.scale, BLOCK_PAGES) as u32;
    }

    fn unmapping(&mut self, space: SpaceId, range: Range<Vpn>, pages: &Pages) {
        for (block, info) in pages.blocks_of(space) {
            let first = block.first_page();
            for unit in self.unit_of(first)..=self.unit_of(first.plus(BLOCK_PAGES - 1)) {
                let offset = u64::from(self.pages_of(unit).start - first.0);
                let start = info.start.0 + offset;
                // A unit of which a part stays keeps its counts; the next sight of it tells where the rest lies.
                if range.start.0 <= start && start + (1 << self.shift) <= range.end.0 {
                    self.dequeue(unit);
                    self.units[unit as usize] = Unit::default();
                }
            }
        }
    }
}

impl Policy for HeMem {
    fn profile(&self) -> Profile {
        Profile::new(INFO.name, Needs { samples: true, ..Needs::default() })
            .above(Kernel { movers: Movers::Several(COPY_THREADS), ..Kernel::default() })
    }

    fn configure(&mut self, setup: Setup) {
        if let Some(factor) = setup.scale {
            self.scale = factor;
            self.cap = support::scaled_pages(self.full_cap, factor);
        }
        if let Some(parts) = setup.sample_parts {
            self.set_folded(parts);
        }
    }

    fn remap(&mut self, _now: Time, change: Remap<'_>, pages: &mut Pages) {
        match change {
            Remap::Mapped(_) => {
                let units = pages.capacity() >> self.shift;
                self.queues.fit(units);
                if self.units.len() < units {
                    self.units.resize(units, Unit::default());
                }
            }
            Remap::Unmapping(space, range) => self.unmapping(space, range, pages),
        }
    }

    fn observe(&mut self, _now: Time, seen: Observations<'_>, pages: &mut Pages) {
        match seen {
            Observations::Scan(scan) => {
                let last = scan.first.plus(scan.ptes.len().max(1) as u32 - 1);
                (self.unit_of(scan.first)..=self.unit_of(last)).for_each(|unit| self.refresh(unit, pages));
            }
            Observations::Events(events) => {
                let mut last = None;
                for event in events {
                    let unit = self.unit_of(event.page());
                    match *event {
                        Observation::Sampled { access, .. } => self.on_sample(unit, access, pages),
                        _ if last == Some(unit) => {}
                        _ => {
                            // The engine has entered the whole batch already, so once a run of one unit is enough.
                            self.refresh(unit, pages);
                            last = Some(unit);
                        }
                    }
                }
            }
        }
    }

    fn feedback(&mut self, _now: Time, feedback: Feedback<'_>, pages: &mut Pages) {
        if let Feedback::Moved(done) = feedback {
            let mut last = None;
            for unit in done.iter().map(|outcome| self.unit_of(outcome.item.page)).collect::<Vec<u32>>() {
                if last.replace(unit) != Some(unit) {
                    self.refresh(unit, pages);
                }
            }
        }
    }

    fn plan(&mut self, now: Time, capacity: &CapacityView<'_>, pages: &mut Pages, requests: &mut MoveRequests) {
        if capacity.tiers.len() < 2 || (now < self.next_round && !self.unfinished) {
            return;
        }
        self.next_round = now + self.period;
        for number in std::mem::take(&mut self.cold_requests) {
            let unit = self.units[number as usize];
            if unit.known && unit.hot && !self.is_hot(unit.reads, unit.writes) {
                self.enqueue(number, |unit| unit.hot = false);
            }
        }
        let unit_pages = 1u64 << self.shift;
        // A plan has room for an exchange of two units that are not huge.
        let exchange = 2 << self.shift;
        let mut free = support::fast_limit(capacity).saturating_sub(capacity.tiers[0].used) / unit_pages;
        let mut left = self.cap.div_ceil(unit_pages);
        let mut waiting: Vec<u32> = Vec::new();
        let mut victims = self.queues.back_to_front(0);
        for number in self.queues.back_to_front(HOT | SLOW) {
            if left == 0 || requests.left() < exchange {
                break;
            }
            let unit = self.units[number as usize];
            if !self.is_hot(unit.reads, unit.writes) {
                waiting.push(number);
                continue;
            }
            if free > 0 {
                free -= 1;
            } else if let Some(victim) = victims.next() {
                Self::request(self.pages_of(victim), TierId::FAST.below(), Reason::MakeRoom, pages, requests);
            } else {
                break;
            }
            Self::request(self.pages_of(number), TierId::FAST, Reason::Hot, pages, requests);
            left -= 1;
        }
        drop(victims);
        self.unfinished = requests.left() < exchange;
        for number in waiting {
            self.enqueue(number, |unit| unit.hot = false);
        }
        self.cool_queues();
    }

    fn schedule(&self) -> Schedule {
        // Where writes do not count their samples would be thrown away; the longest period keeps them rare.
        let stores = if self.write_hot > 0 { self.sample_period } else { u32::MAX };
        Schedule {
            cadence: Cadence {
                sampling: Some(SamplePeriods { loads: self.sample_period, stores }),
                ..Cadence::default()
            },
            wake_at: Some(self.next_round),
        }
    }

    fn report(&self) -> PolicyReport {
        let pages = |queue: usize| (u64::from(self.sizes[queue]) << self.shift) as f64;
        PolicyReport {
            memory_bytes: self.units.capacity() * size_of::<Unit>() + self.queues.memory_bytes(),
            metrics: vec![
                Metric { name: "hot_fast_pages", value: pages(HOT) },
                Metric { name: "cold_fast_pages", value: pages(0) },
                Metric { name: "hot_slow_pages", value: pages(HOT | SLOW) },
                Metric { name: "cold_slow_pages", value: pages(SLOW) },
                Metric { name: "samples", value: self.samples as f64 },
                Metric { name: "coolings", value: f64::from(self.clock) },
                Metric { name: "metadata_bytes_per_page", value: METADATA_BYTES },
            ],
        }
    }
}

const METADATA_BYTES: f64 =
    8.0 + (size_of::<Unit>() + crate::parts::lists::BYTES_PER_ENTRY) as f64 / BLOCK_PAGES as f64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rig::Rig;

    /// Two blocks of fast memory, four blocks of program: 0 and 1 fast, 2 and 3 slow, each one huge page.
    fn rig(extra: &[(&str, &str)]) -> Rig {
        let policy = crate::build("hemem", Settings::from_pairs(extra.iter().copied())).unwrap();
        let mut rig = Rig::new(policy, &[1024, 100_000]);
        rig.map(4 * 512);
        for block in 0..4 {
            rig.born_huge(block, TierId(u8::from(block >= 2)));
        }
        rig
    }

    const ROUND: Duration = Duration::from_millis(10);

    #[test]
    fn a_hot_slow_page_takes_the_place_of_the_oldest_cold_fast_one() {
        let check = |samples: usize, moves: bool| {
            let mut rig = rig(&[]);
            rig.sample(vec![2 * 512 + 5; samples]);
            rig.pass(ROUND);
            let fast = |block: u64| rig.tier(block * 512) == Some(TierId::FAST);
            assert_eq!([0, 1, 2, 3].map(fast), [!moves, true, moves, false], "{samples} samples");
        };
        check(7, false);
        check(8, true);
    }

    #[test]
    fn with_no_cold_page_left_nothing_moves() {
        let mut rig = rig(&[]);
        for block in 0..3 {
            rig.sample(vec![block * 512; 10]);
        }
        rig.pass(ROUND);
        assert_eq!((rig.promotions, rig.demotions), (0, 0));
        assert_eq!(rig.metric("hot_slow_pages"), 512.0);
    }

    #[test]
    fn cooling_makes_pages_cold_again() {
        let mut rig = rig(&[]);
        rig.sample(vec![0; 8]);
        assert_eq!(rig.metric("hot_fast_pages"), 512.0);
        // Block 1 passes the cooling count; block 0 has 8 halved.
        rig.sample(vec![512; 19]);
        rig.pass(ROUND);
        assert_eq!(rig.metric("coolings"), 1.0);
        assert_eq!((rig.metric("hot_fast_pages"), rig.metric("cold_fast_pages")), (512.0, 512.0));
    }

    #[test]
    fn the_published_branch_counts_no_writes_and_samples_half_as_often() {
        let rig = rig(&[("preset", "sosp-code")]);
        assert_eq!(rig.cadence.sampling.unwrap().loads, 10_007);
        let policy = HeMem::new(&mut Settings::from_pairs([("preset", "sosp-code")]).for_policy(&INFO)).unwrap();
        assert_eq!((policy.write_hot, policy.cool), (0, 10));
    }

    #[test]
    fn a_small_page_that_stands_for_a_huge_one_is_a_unit() {
        let mut policy = crate::build("hemem", Settings::default()).unwrap();
        policy.configure(crate::rig::scaled(512));
        policy.configure(crate::rig::folded(512));
        let mut rig = Rig::new(policy, &[4, 100_000]);
        rig.map(16);
        rig.born(0..4, TierId::FAST);
        rig.born(4..16, TierId(1));
        rig.sample([9; 8]);
        rig.pass(ROUND);
        assert_eq!((rig.tier(9), rig.tier(0)), (Some(TierId::FAST), Some(TierId(1))), "8 reads, and the oldest leaves");
        assert_eq!((rig.promotions, rig.demotions), (1, 1));
    }
}
