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
//!
//! Every mapping is managed, where HeMem leaves those below 1 GiB in ordinary memory. A cooled page that stays hot goes
//! to the young end of its queue.
//!
//! Memory beside the common eight bytes: 24 bytes a 2 MiB block, 0.05 a page. The original's structure takes 150 to 200 a block.

use std::ops::Range;
use std::time::Duration;

use terrace_core::observation::{Access, Observation, Seen};
use terrace_core::pages::Pages;
use terrace_core::plan::{Outcome, Reason, Wishes};
use terrace_core::policy::{Cadence, Metric, Needs, Policy, Room, SamplePeriods};
use terrace_core::units::{BLOCK_PAGES, BlockId, Bytes, SpaceId, TierId, Time, Vpn};

use crate::lists::Lists;
use crate::support;
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
        SettingInfo { key: "cool_samples", default: "0", meaning: "cool every so many samples instead; 0 by count" },
        SettingInfo { key: "sample_period", default: "5000", meaning: "accesses a sample" },
        SettingInfo { key: "period", default: "10ms", meaning: "time between rounds" },
        SettingInfo { key: "migrate_cap", default: "10GiB", meaning: "most moved in a round" },
    ],
    build: |settings| Ok(Box::new(HeMem::new(settings)?)),
};

const COLD_REQUESTS: usize = 128;
const COOLED_A_ROUND: u32 = 8192;
const HOT: usize = 1;
const SLOW: usize = 2;

/// What is known of a block.
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
    units: Vec<Unit>,
    queues: Lists,
    sizes: [u32; 4],
    clock: u32,
    samples: u64,
    cold_requests: Vec<BlockId>,
    /// Blocks of each hot queue that the running cooling has not looked at.
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
        let code = settings.choice("preset", false, &[("paper", false), ("sosp-code", true)])?;
        let (write_hot, cool, sample_period, millis) = if code { (0, 10, 10_007, 1) } else { (4, 18, 5_000, 10) };
        let full_cap = support::size(settings, "migrate_cap", Bytes::gib(10))?;
        Ok(HeMem {
            read_hot: settings.number("read_hot", 8, 1..=1_000_000)?,
            write_hot: settings.number("write_hot", write_hot, 0..=1_000_000)?,
            cool: settings.number("cool", cool, 1..=1_000_000)?,
            cool_samples: settings.number("cool_samples", 0u64, 0..=u64::from(u32::MAX))?,
            sample_period: settings.number("sample_period", sample_period, 1..=1_000_000_000)?,
            period: settings.duration("period", Duration::from_millis(millis))?,
            full_cap,
            cap: full_cap.pages(),
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

    /// Puts a block at the young end of the queue that its state calls for.
    fn enqueue(&mut self, block: BlockId, change: impl FnOnce(&mut Unit)) {
        self.dequeue(block);
        let unit = &mut self.units[block.0 as usize];
        change(unit);
        unit.known = true;
        let queue = Self::queue_of(unit);
        self.queues.push_front(queue, block.0);
        self.sizes[queue] += 1;
    }

    fn dequeue(&mut self, block: BlockId) {
        if self.queues.remove(block.0) {
            self.sizes[Self::queue_of(&self.units[block.0 as usize])] -= 1;
        }
    }

    /// Brings a block's queue up to date with where its pages lie: slow unless half of them are fast.
    fn refresh(&mut self, block: BlockId, pages: &Pages) {
        if pages.block(block).is_none() {
            return;
        }
        let (mut fast, mut placed) = (0u32, 0u32);
        for page in pages.block_pages(block) {
            placed += u32::from(page.tier().is_some());
            fast += u32::from(page.tier() == Some(TierId::FAST));
        }
        let unit = self.units[block.0 as usize];
        let slow = 2 * fast < placed;
        match (unit.known, placed > 0) {
            (true, false) => {
                self.dequeue(block);
                self.units[block.0 as usize] = Unit::default();
            }
            (false, true) => {
                let clock = self.clock;
                self.enqueue(block, |unit| *unit = Unit { slow, clock, ..Unit::default() });
            }
            (true, true) if unit.slow != slow => self.enqueue(block, |unit| unit.slow = slow),
            _ => {}
        }
    }

    fn on_sample(&mut self, block: BlockId, access: Access, pages: &Pages) {
        if !self.units[block.0 as usize].known {
            self.refresh(block, pages);
        }
        let unit = &mut self.units[block.0 as usize];
        if !unit.known || (access == Access::Store && self.write_hot == 0) {
            return;
        }
        let count = if access == Access::Store { &mut unit.writes } else { &mut unit.reads };
        *count += 1;
        // The request is judged by the counts as they stand; only then are they brought to the clock.
        let unit = self.units[block.0 as usize];
        let hot = self.is_hot(unit.reads, unit.writes);
        if hot && !unit.hot {
            self.enqueue(block, |unit| unit.hot = true);
        } else if !hot && unit.hot && self.cold_requests.len() < COLD_REQUESTS {
            self.cold_requests.push(block);
        }
        let (reads, writes) = self.decayed(&unit);
        let clock = self.clock;
        let unit = &mut self.units[block.0 as usize];
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

    /// Looks at so many blocks of each hot queue, the oldest first: those no longer hot go to the cold queue.
    fn cool_queues(&mut self) {
        for (side, queue) in [HOT, HOT | SLOW].into_iter().enumerate() {
            for _ in 0..self.to_cool[side].min(COOLED_A_ROUND) {
                self.to_cool[side] -= 1;
                let Some(block) = self.queues.back(queue).map(BlockId) else { break };
                let (reads, writes) = self.decayed(&self.units[block.0 as usize]);
                let hot = self.is_hot(reads, writes);
                self.enqueue(block, |unit| unit.hot = hot);
            }
        }
    }

    /// Wishes for a whole block to be in `to`: once if it is huge, otherwise page by page.
    fn wish(block: BlockId, to: TierId, reason: Reason, pages: &Pages, wishes: &mut Wishes) {
        let huge = pages.block(block).is_some_and(|info| info.huge);
        let count = if huge { 1 } else { BLOCK_PAGES };
        for page in (0..count).map(|offset| block.first_page().plus(offset)) {
            let entry = &pages[page];
            let side = |tier: TierId| tier == TierId::FAST;
            if entry.tier().is_some_and(|tier| side(tier) != side(to)) && !entry.moving() {
                wishes.move_to(page, to, reason);
            }
        }
    }
}

impl Policy for HeMem {
    fn name(&self) -> &'static str {
        INFO.name
    }

    fn needs(&self) -> Needs {
        Needs { samples: true, ..Needs::default() }
    }

    fn mapped(&mut self, _now: Time, _blocks: &[BlockId], pages: &mut Pages) {
        let blocks = pages.capacity() / BLOCK_PAGES as usize;
        self.queues.fit(blocks);
        if self.units.len() < blocks {
            self.units.resize(blocks, Unit::default());
        }
    }

    fn unmapping(&mut self, _now: Time, space: SpaceId, range: Range<Vpn>, pages: &Pages) {
        for (block, info) in pages.blocks_of(space) {
            let end = info.start.0 + u64::from(BLOCK_PAGES);
            // A block of which a part stays keeps its counts; the next sight of it tells where the rest lies.
            if range.start.0 <= info.start.0 && end <= range.end.0 {
                self.dequeue(block);
                self.units[block.0 as usize] = Unit::default();
            }
        }
    }

    fn observe(&mut self, _now: Time, seen: Seen<'_>, pages: &mut Pages) {
        match seen {
            Seen::Scan(scan) => self.refresh(scan.first.block(), pages),
            Seen::Events(events) => {
                let mut last = None;
                for event in events {
                    let block = event.page().block();
                    match *event {
                        Observation::Sampled { access, .. } => self.on_sample(block, access, pages),
                        _ if last == Some(block) => {}
                        _ => {
                            // The engine has entered the whole batch already, so once a run of one block is enough.
                            self.refresh(block, pages);
                            last = Some(block);
                        }
                    }
                }
            }
        }
    }

    fn outcome(&mut self, _now: Time, done: &[Outcome], pages: &mut Pages) {
        let mut last = None;
        for block in done.iter().map(|outcome| outcome.item.page.block()) {
            if last.replace(block) != Some(block) {
                self.refresh(block, pages);
            }
        }
    }

    fn plan(&mut self, now: Time, room: &Room<'_>, pages: &mut Pages, wishes: &mut Wishes) {
        if room.tiers.len() < 2 || (now < self.next_round && !self.unfinished) {
            return;
        }
        self.next_round = now + self.period;
        for block in std::mem::take(&mut self.cold_requests) {
            let unit = self.units[block.0 as usize];
            if unit.known && unit.hot && !self.is_hot(unit.reads, unit.writes) {
                self.enqueue(block, |unit| unit.hot = false);
            }
        }
        let block_pages = u64::from(BLOCK_PAGES);
        let mut free = support::fast_limit(room).saturating_sub(room.tiers[0].used) / block_pages;
        let mut left = self.cap.div_ceil(block_pages);
        let mut waiting: Vec<BlockId> = Vec::new();
        let mut victims = self.queues.back_to_front(0).map(BlockId);
        for block in self.queues.back_to_front(HOT | SLOW).map(BlockId) {
            if left == 0 || wishes.left() < 2 * BLOCK_PAGES as usize {
                break;
            }
            let unit = self.units[block.0 as usize];
            if !self.is_hot(unit.reads, unit.writes) {
                waiting.push(block);
                continue;
            }
            if free > 0 {
                free -= 1;
            } else if let Some(victim) = victims.next() {
                Self::wish(victim, TierId::FAST.below(), Reason::MakeRoom, pages, wishes);
            } else {
                break;
            }
            Self::wish(block, TierId::FAST, Reason::Hot, pages, wishes);
            left -= 1;
        }
        drop(victims);
        self.unfinished = wishes.left() < 2 * BLOCK_PAGES as usize;
        for block in waiting {
            self.enqueue(block, |unit| unit.hot = false);
        }
        self.cool_queues();
    }

    fn set_scale(&mut self, factor: u32) {
        self.cap = support::scaled_pages(self.full_cap, factor);
    }

    fn memory_bytes(&self) -> usize {
        self.units.capacity() * size_of::<Unit>() + self.queues.memory_bytes()
    }

    fn cadence(&self) -> Cadence {
        // Where writes do not count their samples would be thrown away; the longest period keeps them rare.
        let stores = if self.write_hot > 0 { self.sample_period } else { u32::MAX };
        Cadence { sampling: Some(SamplePeriods { loads: self.sample_period, stores }), ..Cadence::default() }
    }

    fn next_wake(&self) -> Option<Time> {
        Some(self.next_round)
    }

    fn metrics(&self) -> Vec<Metric> {
        let pages = |queue: usize| f64::from(self.sizes[queue]) * f64::from(BLOCK_PAGES);
        vec![
            Metric { name: "hot_fast_pages", value: pages(HOT) },
            Metric { name: "cold_fast_pages", value: pages(0) },
            Metric { name: "hot_slow_pages", value: pages(HOT | SLOW) },
            Metric { name: "cold_slow_pages", value: pages(SLOW) },
            Metric { name: "samples", value: self.samples as f64 },
            Metric { name: "coolings", value: f64::from(self.clock) },
            Metric { name: "metadata_bytes_per_page", value: METADATA_BYTES },
        ]
    }
}

const METADATA_BYTES: f64 = 8.0 + (size_of::<Unit>() + crate::lists::BYTES_PER_ENTRY) as f64 / BLOCK_PAGES as f64;

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
        let policy = HeMem::new(&mut Settings::from_pairs([("preset", "sosp-code")])).unwrap();
        assert_eq!((policy.write_hot, policy.cool), (0, 10));
    }
}
