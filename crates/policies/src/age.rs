//! `age`: pages leave by how long they were idle, with a smooth decay of how busy they were before.
//!
//! In: walks of accessed bits, a rotating share of the blocks at a time. Out: requests to demote what is cold and to
//! promote what is hot. Must not: forget abruptly; halving all counts at once is what makes other policies thrash. Nor may it take a page for
//! idle that nobody looked at: its idle time ends where the last reading of its block ends. A block whose turn for clearing it is not is read all the same,
//! once its marks have been cleared: a page with one is in use, and one without was idle since.
//! Nor, without a limit to keep, what a growing program has written and not used since: it may be about to serve it.
//!
//! Huge pages in use are looked into (`parts/inside.rs`): what is cold inside leaves as any other page does.
//!
//! Pages leave whole blocks first: those are a hundred times cheaper for the program (docs/block-moves.md).
//!
//! Source: our own, after what experience with idle-age policies (intel/memtierd `age`) and with abrupt cooling
//! (Jenga, arXiv 2510.22869) teaches. Every reading of a page with a window of w seconds makes its heat
//! `h := h * d + (accessed ? 1 - d : 0)` with `d = 2^(-w / half_life)`: the share of the recent past in which it was in use.
//!
//! | constant | default | why |
//! |---|---|---|
//! | `idle` | 12 s | three rounds of the rotation: one missed touch does not make a page cold |
//! | `half_life` | 8 s | a page in steady use needs about 24 s of silence to fall below `cold` |
//! | `cold` | 1/8 | heat below which an idle page may leave |
//! | `hot` | 1/2 | heat above which a slow page should come back |
//! | `interval`, `share` | 1 s, 1/4 | every mark is cleared every 4 s; clears cost both sides a hundred times a reading |
//! | `ahead` | 1/4 | when so much of a block's slow part came back in one round, the rest is fetched ahead of use |

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use terrace_core::observation::{Observation, Observations, ScanBatch};
use terrace_core::pages::{Page, Pages};
use terrace_core::plan::{MoveRequests, Outcome, Reason};
use terrace_core::policy::{
    Cadence, CapacityView, Feedback, Metric, Needs, Policy, PolicyReport, Profile, ProgramState, Remap, Schedule, Setup,
};
use terrace_core::units::{BLOCK_PAGES, BlockId, SpaceId, TierId, Time};

use crate::parts::growth::GrowthOfEach;
use crate::parts::inside::{self, Inside};
use crate::parts::interval::AdaptiveInterval;
use crate::parts::ranking::Tally;
use crate::parts::whole_blocks::{Leavers, Leaving};
use crate::{PolicyInfo, SettingInfo, Settings, SettingsError};

/// The policy's entry in the registry.
pub const INFO: PolicyInfo = PolicyInfo {
    name: "age",
    summary: "idle time with smooth decay; pages leave when they were idle long enough for how busy they had been",
    source: "Terrace",
    settings: &[
        SettingInfo { key: "idle", default: "12s", meaning: "a page idle for less never leaves for being cold" },
        SettingInfo { key: "half_life", default: "8s", meaning: "half-life of the heat" },
        SettingInfo { key: "cold", default: "12.5%", meaning: "heat below which an idle page may leave" },
        SettingInfo { key: "hot", default: "50%", meaning: "heat above which a slow page should come back" },
        SettingInfo {
            key: "interval",
            default: "1s",
            meaning: "time between rounds at the start, and for good with adaptive=off",
        },
        SettingInfo { key: "share", default: "25%", meaning: "share of the blocks each round reads and clears" },
        SettingInfo { key: "adaptive", default: "on", meaning: "adapt the interval to the accessed share" },
        SettingInfo {
            key: "ahead",
            default: "25%",
            meaning: "returned share of a block's slow part that fetches the rest; 0% never",
        },
        inside::SETTING,
    ],
    build: |settings| Ok(Box::new(Age::new(settings)?)),
};

/// Stamps count quarters of a second; they wrap after 4.5 hours, so older ones are pulled along.
const STAMP: Duration = Duration::from_millis(250);
const OLDEST_STAMP: u16 = 0x7fff;
/// What is known of a page, in its policy bits: nothing; that memory is behind it; that it was read once after a window, in which its birth shows; and that
/// it was used after that.
const UNKNOWN: u8 = 0;
const BORN: u8 = 1;
const READ: u8 = 2;
const USED: u8 = 3;
const HEAT_ONE: f64 = 65535.0;
/// Of the draws of huge pages to look into.
const INSIDE_SEED: u64 = 0x1a51de;
/// Fast memory is full with less than this part of its limit free.
const FULL: u64 = 64;

/// See the module's header.
pub struct Age {
    idle: Duration,
    half_life: Duration,
    cold: u16,
    hot: u16,
    share: f64,
    ahead: f64,
    interval: AdaptiveInterval,
    scan_at: Time,
    /// How often every block was read so far: the shares of all rounds added up.
    readings: f64,
    /// By block, when its marks were last read after they had been cleared, and whether they ever were.
    read_at: Vec<u16>,
    marked: Vec<bool>,
    /// Blocks whose pages came back since the last plan, with how many did.
    returned: Vec<(BlockId, u32)>,
    cold_pages: u64,
    idle_wanted: Duration,
    growth: GrowthOfEach,
    /// The programs that grow: of their pages more must be known for them to be cold.
    growing: BTreeSet<SpaceId>,
    /// How each program stands, where a driver says it.
    programs: BTreeMap<SpaceId, ProgramState>,
    inside: Inside,
}

impl Age {
    /// Reads the settings.
    ///
    /// # Errors
    /// When a value is none of its kind.
    pub fn new(settings: &mut Settings) -> Result<Age, SettingsError> {
        let interval = settings.duration("interval")?;
        let adaptive = settings.switch("adaptive")?;
        let idle = settings.duration("idle")?;
        let share = settings.take("share", "a share above 0% and up to 100%", |text| {
            terrace_core::units::parse_share(text).ok().filter(|share| *share > 0.0)
        })?;
        Ok(Age {
            idle,
            half_life: settings.duration("half_life")?,
            cold: (settings.share("cold")? * HEAT_ONE) as u16,
            hot: (settings.share("hot")? * HEAT_ONE) as u16,
            share,
            ahead: settings.share("ahead")?,
            interval: if adaptive {
                AdaptiveInterval::new(interval, Duration::from_millis(250), (idle / 2).max(interval))
            } else {
                AdaptiveInterval::fixed(interval)
            },
            scan_at: Time::ZERO,
            readings: 0.0,
            read_at: Vec::new(),
            marked: Vec::new(),
            returned: Vec::new(),
            cold_pages: 0,
            idle_wanted: idle,
            growth: GrowthOfEach::default(),
            growing: BTreeSet::new(),
            programs: BTreeMap::new(),
            inside: Inside::new(settings, INSIDE_SEED)?,
        })
    }

    /// A block was read, or appeared.
    fn note_reading(&mut self, block: BlockId, stamp_now: u16) {
        let index = block.0 as usize;
        if index >= self.read_at.len() {
            self.read_at.resize(index + 1, stamp_now);
            self.marked.resize(index + 1, false);
        }
        self.read_at[index] = stamp_now;
    }

    /// A block's marks were cleared, or it is new and they tell nothing.
    fn note_marks(&mut self, block: BlockId, stamp_now: u16, cleared: bool) {
        self.note_reading(block, stamp_now);
        self.marked[block.0 as usize] = cleared;
    }

    /// Until when the idle time of a block's pages counts: until now where it was read lately, as in each round of the usual rotation; a
    /// reading speaks for half of the idle time wanted and no more.
    fn known_until(&self, block: BlockId, stamp_now: u16, idle_stamps: u16) -> u16 {
        let read_at = self.read_at.get(block.0 as usize).copied().unwrap_or(stamp_now);
        let since = stamp_now.wrapping_sub(read_at);
        stamp_now.wrapping_sub(since.saturating_sub(idle_stamps / 2))
    }

    fn observe_scan(&mut self, now: Time, scan: &ScanBatch<'_>, pages: &mut Pages) {
        let stamp_now = stamp(now);
        // A block whose turn it is not keeps its marks, which tell all the same who was used since they were cleared, and who was not. Of a page
        // alone, and of a huge one, a driver also tells out of turn where it lies now, without its mark.
        let was_read = scan.ptes.len() > 1 && !scan.ptes[0].huge();
        let marked = was_read && self.marked.get(scan.first.block().0 as usize).is_some_and(|marked| *marked);
        let tells_use = scan.window.is_some() || marked;
        if tells_use {
            self.note_reading(scan.first.block(), stamp_now);
        } else if let Some(read_at) = self.read_at.get_mut(scan.first.block().0 as usize) {
            // Pulled along, as the pages' stamps are.
            *read_at = stamp_now.wrapping_sub(stamp_now.wrapping_sub(*read_at).min(OLDEST_STAMP));
        }
        let decay = scan.window.map(|window| Decay::over(window, self.half_life));
        for (page, pte) in pages.run_mut(scan.first, scan.ptes.len()).iter_mut().zip(scan.ptes) {
            if pte.tier().is_none() {
                page.set_policy_bits(UNKNOWN);
                continue;
            }
            if page.policy_bits() == UNKNOWN {
                // Newly touched: as hot as a page can be said to be after one touch, and not idle yet.
                page.set_policy_bits(BORN);
                page.stamp = stamp_now;
                page.heat = self.cold;
            }
            if let Some(decay) = decay {
                page.heat = decay.apply(page.heat, pte.accessed());
                match page.policy_bits() {
                    BORN => page.set_policy_bits(READ),
                    READ if pte.accessed() => page.set_policy_bits(USED),
                    _ => {}
                }
            }
            if tells_use && pte.accessed() {
                page.stamp = stamp_now;
            }
            if stamp_now.wrapping_sub(page.stamp) > OLDEST_STAMP {
                page.stamp = stamp_now.wrapping_sub(OLDEST_STAMP);
            }
        }
        if scan.cleared {
            self.note_marks(scan.first.block(), stamp_now, true);
        }
    }

    fn observe_events(&mut self, now: Time, events: &[Observation], pages: &mut Pages) {
        for event in events {
            match *event {
                Observation::Refault { page } => {
                    touch(&mut pages[page], now, self.hot);
                    match self.returned.last_mut() {
                        Some((block, count)) if *block == page.block() => *count += 1,
                        _ => self.returned.push((page.block(), 1)),
                    }
                }
                Observation::Sampled { page, .. } | Observation::HintFault { page, .. } => {
                    touch(&mut pages[page], now, self.hot);
                }
                Observation::Allocated { .. } | Observation::Freed { .. } | Observation::Counted { .. } => {}
            }
        }
    }

    /// Blocks of which so much came back that the rest is expected to be used next.
    fn request_ahead(&mut self, pages: &Pages, requests: &mut MoveRequests) {
        for (block, refaulted) in std::mem::take(&mut self.returned) {
            if self.ahead <= 0.0 || pages.block(block).is_none() {
                continue;
            }
            let slow = |page: &Page| page.tier().is_some_and(|tier| tier > TierId::FAST);
            let left = pages.block_pages(block).iter().filter(|page| slow(page)).count() as f64;
            let refaulted = f64::from(refaulted);
            if left > 0.0 && refaulted / (refaulted + left) >= self.ahead {
                for offset in 0..BLOCK_PAGES {
                    let page = block.first_page().plus(offset);
                    if slow(&pages[page]) {
                        requests.move_to(page, TierId::FAST, Reason::Prefetch);
                    }
                }
            }
        }
    }

    /// Asks for splits of huge pages before all else: what they show takes time. Not in a program that grows or sleeps.
    fn look_inside(
        &mut self,
        now: Time,
        growing: &BTreeSet<SpaceId>,
        capacity: &CapacityView<'_>,
        pages: &Pages,
        requests: &mut MoveRequests,
    ) {
        let unsettled: BTreeSet<SpaceId> =
            self.programs.keys().copied().filter(|space| self.asked_of(*space, now).is_none()).collect();
        // With a limit pages leave only for others.
        let full = |limit: u64| capacity.fast_room() < limit.min(capacity.tiers[0].capacity) / FULL;
        let pressed = capacity.fast_limit.is_none_or(full);
        let may_leave = |space| pressed && !growing.contains(&space) && !unsettled.contains(&space);
        self.inside.plan(now, self.idle_wanted, may_leave, capacity, pages, requests);
    }

    /// How long a program's pages must be idle; `usual` where nobody tells programs apart.
    fn idle_wanted_of(&self, space: SpaceId, usual: Duration) -> Duration {
        self.programs.get(&space).map_or(usual, |program| self.idle.mul_f64(program.backoff).max(program.least_idle))
    }

    /// What is asked of a program's pages now; `None` while it sleeps, and for as long after it woke: that its pages were not used in its sleep says
    /// nothing of them.
    fn asked_of(&self, space: SpaceId, now: Time) -> Option<Asked> {
        let wanted = self.idle_wanted_of(space, self.idle_wanted);
        let awake = self.programs.get(&space).is_none_or(|program| {
            program.awake_since.is_some_and(|since| since == Time::ZERO || now.since(since) >= wanted)
        });
        awake.then(|| Asked {
            idle_stamps: (wanted.as_millis() / STAMP.as_millis()).min(u128::from(OLDEST_STAMP)) as u16,
            least_known: if self.growing.contains(&space) { USED } else { BORN },
        })
    }

    fn is_cold(&self, page: &Page, known_until: u16, idle_stamps: u16) -> bool {
        page.heat <= self.cold && idle_stamps_of(page, known_until) >= idle_stamps
    }

    /// Coldest first: over the limit even a page in use a moment ago must go, but idle pages go before it.
    fn rank(&self, page: &Page, known_until: u16, idle_stamps: u16) -> usize {
        let lately = idle_stamps_of(page, known_until) < idle_stamps;
        (usize::from(lately) << 8) | usize::from(page.heat >> 8)
    }
}

impl Policy for Age {
    fn profile(&self) -> Profile {
        Profile::new(INFO.name, Needs { scans: true, ..Needs::default() }).splitting(self.inside.splits())
    }

    fn configure(&mut self, setup: Setup) {
        if let Some(prices) = setup.prices {
            self.inside.set_prices(&prices);
        }
    }

    fn remap(&mut self, now: Time, change: Remap<'_>, pages: &mut Pages) {
        match change {
            Remap::Mapped(blocks) => {
                blocks.iter().for_each(|&block| self.note_marks(block, stamp(now), false));
                self.inside.mapped(blocks);
            }
            Remap::Unmapping(space, range) => self.inside.unmapping(space, &range, pages),
        }
    }

    fn observe(&mut self, now: Time, seen: Observations<'_>, pages: &mut Pages) {
        match seen {
            Observations::Scan(scan) => {
                self.inside.scanned(now, &scan);
                self.observe_scan(now, &scan, pages);
            }
            Observations::Events(events) => {
                self.inside.saw(now, events, pages);
                self.observe_events(now, events, pages);
            }
        }
    }

    fn feedback(&mut self, now: Time, feedback: Feedback<'_>, pages: &mut Pages) {
        match feedback {
            Feedback::ScanDone(report) => {
                self.interval.adapt(report, pages.footprint_of_all());
                self.scan_at = now + self.interval.current();
                self.readings += report.share;
            }
            Feedback::Moved(done) => {
                // A page that is in use although its mark said otherwise has shown that it is not cold.
                self.inside.outcomes(now, done, pages);
                let stayed = |outcome: &&Outcome| outcome.done < outcome.item.pages && !outcome.item.action.remaps();
                for outcome in done.iter().filter(stayed) {
                    if pages.block(outcome.item.page.block()).is_some() {
                        pages[outcome.item.page].stamp = stamp(now);
                    }
                }
            }
            Feedback::Programs(states) => {
                self.programs = states.iter().map(|program| (program.space, *program)).collect();
            }
            _ => {}
        }
    }

    fn knows_sleep(&self) -> bool {
        true
    }

    fn plan(&mut self, now: Time, capacity: &CapacityView<'_>, pages: &mut Pages, requests: &mut MoveRequests) {
        self.idle_wanted = self.idle.mul_f64(capacity.backoff).max(capacity.least_idle);
        let mut growth = std::mem::take(&mut self.growth);
        let asleep = |space| self.programs.get(&space).is_some_and(|program| program.awake_since.is_none());
        let growing = growth.note(now, pages, |space| self.idle_wanted_of(space, self.idle_wanted), asleep);
        self.growth = growth;
        self.look_inside(now, &growing, capacity, pages, requests);
        // While a program is loading what it will serve, that nobody used a page yet does not make it cold. With a limit somebody has to go.
        self.growing = if capacity.fast_limit.is_none() { growing } else { BTreeSet::new() };
        if capacity.tiers.len() < 2 {
            return;
        }
        self.request_ahead(pages, requests);
        let stamp_now = stamp(now);
        let census = Census::take(self, pages, now);
        self.cold_pages = census.cold;

        let excess = capacity.fast_excess();
        // Without a limit everything cold leaves. With one, only as much as the limit and the hot slow pages need.
        let leaving = match capacity.fast_limit {
            None => census.cold,
            // Before two readings of everything no page is known to be cold, and a page demoted now would come straight back.
            Some(_) if self.readings < 2.0 - 1e-6 => 0,
            Some(_) => excess + census.hot_slow.saturating_sub(capacity.fast_room()).min(census.cold),
        };
        let mut left_to_come = census.hot_slow.min(capacity.fast_room() + leaving.saturating_sub(excess));
        let mut cut = census.fast.cut(leaving.min(requests.left() as u64));
        let mut coldest = Leavers::new();
        let mut asked = AskedOfEach::new(self, now);
        for (block, info) in pages.blocks() {
            let Some(Asked { idle_stamps, least_known }) = asked.of(info.space) else { continue };
            let known_until = self.known_until(block, stamp_now, idle_stamps);
            let step = if info.huge { BLOCK_PAGES } else { 1 };
            for id in (0..BLOCK_PAGES).step_by(step as usize).map(|offset| block.first_page().plus(offset)) {
                let page = &pages[id];
                let Some(tier) = page.tier() else { continue };
                if page.moving() || page.pinned() {
                    continue;
                }
                if tier > TierId::FAST {
                    // What is hot of a huge page that will be split comes up without the rest.
                    let comes = page.heat >= self.hot && !(info.huge && self.inside.asks_for(block));
                    if comes && left_to_come > 0 {
                        requests.move_to(id, TierId::FAST, Reason::Hot);
                        left_to_come = left_to_come.saturating_sub(u64::from(step));
                    }
                } else if page.policy_bits() >= least_known {
                    let rank = self.rank(page, known_until, idle_stamps);
                    if cut.take(rank, u64::from(step)) {
                        coldest.push(id, rank);
                    }
                }
            }
            if capacity.fast_limit.is_none() && !info.huge {
                // The few others were idle for half as long as is asked of a page.
                coldest.round_up(block, |id| {
                    let page = &pages[id];
                    let may = page.tier() == Some(TierId::FAST)
                        && !page.moving()
                        && !page.pinned()
                        && page.policy_bits() >= least_known
                        && idle_stamps_of(page, known_until) >= idle_stamps / 2;
                    may.then(|| self.rank(page, known_until, idle_stamps))
                });
            }
            coldest.end_block(step);
        }
        for Leaving { id, .. } in coldest.in_order() {
            let space = pages.block(id.block()).map(|block| block.space);
            let Some(Asked { idle_stamps, .. }) = space.and_then(|space| asked.of(space)) else { continue };
            let known_until = self.known_until(id.block(), stamp_now, idle_stamps);
            let cold = self.is_cold(&pages[id], known_until, idle_stamps);
            requests.move_to(id, TierId::FAST.below(), if cold { Reason::Cold } else { Reason::OverLimit });
        }
    }

    fn schedule(&self) -> Schedule {
        Schedule {
            cadence: Cadence { scan_at: Some(self.scan_at), share: self.share, ..Cadence::default() },
            wake_at: None,
        }
    }

    fn report(&self) -> PolicyReport {
        PolicyReport {
            memory_bytes: self.read_at.capacity() * size_of::<u16>()
                + self.marked.capacity()
                + self.inside.memory_bytes(),
            metrics: [
                Metric { name: "scan_interval_seconds", value: self.interval.current().as_secs_f64() },
                Metric { name: "idle_threshold_seconds", value: self.idle_wanted.as_secs_f64() },
                Metric { name: "cold_fast_pages", value: self.cold_pages as f64 },
                Metric { name: "cold_heat_share", value: f64::from(self.cold) / HEAT_ONE },
                Metric { name: "hot_heat_share", value: f64::from(self.hot) / HEAT_ONE },
            ]
            .into_iter()
            .chain(self.inside.metrics())
            .collect(),
        }
    }
}

/// How long a page has been idle, to a quarter of a second; `None` for a page that this policy has not seen with memory
/// behind it. More than 2.2 hours is shown as that.
pub fn idle_time(page: &Page, now: Time) -> Option<Duration> {
    (page.policy_bits() != UNKNOWN).then(|| STAMP * u32::from(stamp(now).wrapping_sub(page.stamp)))
}

/// How long a page had been idle by `until`, in stamps; one that was touched since is not idle.
fn idle_stamps_of(page: &Page, until: u16) -> u16 {
    match until.wrapping_sub(page.stamp) {
        idle if idle > OLDEST_STAMP => 0,
        idle => idle,
    }
}

fn stamp(now: Time) -> u16 {
    (now.as_nanos() / STAMP.as_nanos() as u64) as u16
}

fn touch(page: &mut Page, now: Time, heat: u16) {
    page.set_policy_bits(USED);
    page.stamp = stamp(now);
    page.heat = page.heat.max(heat);
}

/// One step of the decay in 16-bit fixed point.
#[derive(Clone, Copy)]
struct Decay {
    keep: u32,
    gain: u32,
}

impl Decay {
    fn over(window: Duration, half_life: Duration) -> Decay {
        let keep = 0.5f64.powf(window.as_secs_f64() / half_life.as_secs_f64());
        Decay { keep: (keep * 65536.0) as u32, gain: ((1.0 - keep) * HEAT_ONE) as u32 }
    }

    fn apply(self, heat: u16, accessed: bool) -> u16 {
        let kept = (u32::from(heat) * self.keep) >> 16;
        (kept + if accessed { self.gain } else { 0 }).min(u32::from(u16::MAX)) as u16
    }
}

/// Ranks from coldest to hottest: 256 steps of heat for pages idle long enough, then as many for the others.
const RANKS: usize = 512;

/// What is asked of a page for it to be cold.
#[derive(Clone, Copy)]
struct Asked {
    idle_stamps: u16,
    /// What must be known of it.
    least_known: u8,
}

/// What is asked of each program's pages, looked up once for each run of its blocks.
struct AskedOfEach<'a> {
    policy: &'a Age,
    now: Time,
    latest: Option<(SpaceId, Option<Asked>)>,
}

impl<'a> AskedOfEach<'a> {
    fn new(policy: &'a Age, now: Time) -> AskedOfEach<'a> {
        AskedOfEach { policy, now, latest: None }
    }

    fn of(&mut self, space: SpaceId) -> Option<Asked> {
        match self.latest {
            Some((known, asked)) if known == space => asked,
            _ => {
                let asked = self.policy.asked_of(space, self.now);
                self.latest = Some((space, asked));
                asked
            }
        }
    }
}

/// One pass over all pages: how many are cold, and how the fast ones spread over the ranks.
struct Census {
    fast: Tally,
    cold: u64,
    hot_slow: u64,
}

impl Census {
    fn take(policy: &Age, pages: &Pages, now: Time) -> Census {
        let mut census = Census { fast: Tally::new(RANKS), cold: 0, hot_slow: 0 };
        let (stamp_now, mut asked) = (stamp(now), AskedOfEach::new(policy, now));
        for (block, info) in pages.blocks() {
            let Some(Asked { idle_stamps, least_known }) = asked.of(info.space) else { continue };
            let known_until = policy.known_until(block, stamp_now, idle_stamps);
            for page in pages.block_pages(block) {
                let Some(tier) = page.tier() else { continue };
                if page.pinned() || page.moving() {
                    continue;
                }
                if tier > TierId::FAST {
                    census.hot_slow += u64::from(page.heat >= policy.hot);
                } else if page.policy_bits() >= least_known {
                    census.fast.add(policy.rank(page, known_until, idle_stamps), 1);
                    census.cold += u64::from(policy.is_cold(page, known_until, idle_stamps));
                }
            }
        }
        census
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;
    use std::collections::BTreeSet;
    use terrace_core::engine::{Engine, EngineConfig, Input, Output};
    use terrace_core::governor::GovernorConfig;
    use terrace_core::observation::PteState;
    use terrace_core::plan::Outcome;
    use terrace_core::policy::ScanReport;
    use terrace_core::policy::{FastGoal, TierUse};
    use terrace_core::units::{SpaceId, Vpn};

    const SPACE: SpaceId = SpaceId(0);
    const SLOW: TierId = TierId(1);

    /// A program of 4 blocks under the engine; `hot(page, second)` says what it touches. Swap: a touch brings a page back.
    fn run(goal: FastGoal, seconds: u64, hot: impl Fn(u64, u64) -> bool) -> Engine {
        let policy = Box::new(Age::new(&mut Settings::default().for_policy(&INFO)).unwrap());
        let config = EngineConfig { tiers: vec![1 << 20, 1 << 20], goal, governor: GovernorConfig::default() };
        let mut engine = Engine::new(config, policy);
        let start = Time::ZERO + Duration::from_secs(1000);
        engine.handle(start, Input::Mapped(SPACE, Vpn(0)..Vpn(2048)));
        let mut place = vec![TierId::FAST; 2048];
        for second in 0..seconds {
            let now = start + Duration::from_secs(second);
            for (vpn, place) in place.iter_mut().enumerate() {
                if hot(vpn as u64, second) {
                    *place = TierId::FAST;
                }
            }
            // The rotation: one block a second, so every block's window is four seconds.
            let block = second % 4;
            let first = engine.pages().find(SPACE, Vpn(block * 512)).unwrap();
            let ptes: Vec<PteState> = (block * 512..block * 512 + 512)
                .map(|vpn| {
                    let touched = (second.saturating_sub(3)..=second).any(|second| hot(vpn, second));
                    let tier = place[vpn as usize];
                    PteState::placed(tier).with_accessed(touched && tier == TierId::FAST)
                })
                .collect();
            let scan = ScanBatch { first, ptes: &ptes, window: Some(Duration::from_secs(4)), cleared: true };
            engine.handle(now, Input::Observed(Observations::Scan(scan)));
            engine.handle(
                now,
                Input::ScanDone(ScanReport { pages: 512, accessed: 128, walk: Duration::from_millis(1), share: 0.25 }),
            );
            while let Output::Move(plan) = match engine.poll(now) {
                Output::Track(_) => engine.poll(now),
                other => other,
            } {
                let outcomes: Vec<Outcome> =
                    plan.moves.iter().map(|&item| Outcome { item, done: item.pages, failure: None }).collect();
                for item in &plan.moves {
                    let (_, vpn) = engine.pages().locate(item.page);
                    let terrace_core::plan::Action::MoveTo(to) = item.action else { continue };
                    place[vpn.0 as usize] = to;
                }
                engine.handle(now, Input::Moved(&outcomes));
            }
        }
        engine
    }

    #[test]
    fn cold_memory_leaves_within_a_minute_and_hot_memory_stays() {
        let engine = run(FastGoal::Least, 60, |vpn, _| vpn % 4 == 0);
        assert_eq!(engine.pages().used(SPACE, TierId::FAST), 512, "a quarter is hot");
        assert_eq!(engine.ledger().refaults(), 0);
    }

    #[test]
    fn what_a_growing_program_has_only_written_is_not_cold_until_it_stops_growing() {
        let mut policy = Age::new(&mut Settings::default().for_policy(&INFO)).unwrap();
        let mut pages = Pages::new();
        let at = |second| Time::ZERO + Duration::from_secs(1000 + second);
        pages.map(SPACE, Vpn(0)..Vpn(40 * 512));
        let mut leaving = Vec::new();
        for second in (0..=70).step_by(2) {
            // A block a second until the fortieth; the first block is used once more while it grows, and block 1 all the time.
            for block in 0..second.min(40) {
                let born = second == block + 1 || second == block + 2;
                let used = born || block == 1 || (block == 0 && second == 6);
                let first = pages.find(SPACE, Vpn(block * 512)).unwrap();
                (0..512).for_each(|page| _ = pages.set_tier(first.plus(page), Some(TierId::FAST)));
                let ptes = vec![PteState::placed(TierId::FAST).with_accessed(used); 512];
                let window = (!born).then_some(Duration::from_secs(2));
                let scan = ScanBatch { first, ptes: &ptes, window, cleared: true };
                policy.observe(at(second), Observations::Scan(scan), &mut pages);
            }
            let footprint = second.min(40) * 512;
            let tiers = [TierUse { used: footprint, capacity: 1 << 20 }, TierUse { used: 0, capacity: 1 << 20 }];
            let room = CapacityView {
                tiers: &tiers,
                fast_limit: None,
                footprint,
                backoff: 1.0,
                least_idle: Duration::ZERO,
                swap: None,
            };
            let mut requests = MoveRequests::with_limit(1 << 16);
            policy.plan(at(second), &room, &mut pages, &mut requests);
            let blocks: BTreeSet<u32> = requests.into_vec().iter().map(|request| request.page.block().0).collect();
            leaving.push((second, blocks));
        }
        let of = |second| &leaving.iter().find(|(at, _)| *at == second).unwrap().1;
        assert_eq!(*of(40), BTreeSet::from([0]), "used again, then idle: that one is cold");
        assert_eq!(of(70).len(), 39, "and everything but block 1 when the growth is over");
    }

    #[test]
    fn a_page_in_use_every_ten_seconds_is_not_cold() {
        let engine = run(FastGoal::Least, 120, |vpn, second| vpn % 4 == 0 || second % 10 == 0);
        assert_eq!(engine.pages().used(SPACE, TierId::FAST), 2048);
    }

    #[test]
    fn a_page_that_nobody_looks_at_is_not_cold_however_long_ago_it_was_seen() {
        let mut policy = Age::new(&mut Settings::default().for_policy(&INFO)).unwrap();
        let mut pages = Pages::new();
        let start = Time::ZERO + Duration::from_secs(1000);
        let at = |second| start + Duration::from_secs(second);
        pages.map(SPACE, Vpn(0)..Vpn(512));
        let block = pages.find_block(SPACE, Vpn(0)).unwrap();
        policy.remap(start, Remap::Mapped(&[block]), &mut pages);
        let idle = vec![PteState::placed(TierId::FAST); 512];
        for page in (0..512).map(|offset| block.first_page().plus(offset)) {
            pages.set_tier(page, Some(TierId::FAST));
        }
        let used = vec![PteState::placed(TierId::FAST).with_accessed(true); 512];
        let look = |policy: &mut Age, pages: &mut Pages, second, ptes: &[PteState], cleared| {
            let scan = ScanBatch { first: block.first_page(), ptes, window: None, cleared };
            policy.observe(at(second), Observations::Scan(scan), pages);
        };
        let requested = |policy: &mut Age, pages: &mut Pages, second| {
            let tiers = [TierUse { used: 512, capacity: 1024 }, TierUse { used: 0, capacity: 1024 }];
            let room = CapacityView {
                tiers: &tiers,
                fast_limit: None,
                footprint: 512,
                backoff: 1.0,
                least_idle: Duration::ZERO,
                swap: None,
            };
            let mut requests = MoveRequests::with_limit(1024);
            policy.plan(at(second), &room, pages, &mut requests);
            requests.into_vec().len()
        };
        // Its block has no turn: nobody cleared a mark, so that none says anything, for four hours and more.
        for second in [0, 60, 600, 3600, 10_000, 20_000] {
            look(&mut policy, &mut pages, second, &idle, false);
            assert_eq!(requested(&mut policy, &mut pages, second), 0, "after {second} s without a mark cleared");
        }
        // From its one turn on the marks speak, in its turn or not.
        look(&mut policy, &mut pages, 20_001, &used, true);
        look(&mut policy, &mut pages, 20_012, &used, false);
        look(&mut policy, &mut pages, 20_018, &used, false);
        assert_eq!(requested(&mut policy, &mut pages, 20_018), 0, "in use since the marks were cleared");
        // Where a page of it lies now says nothing of the others.
        look(&mut policy, &mut pages, 20_025, &idle[..1], false);
        assert_eq!(requested(&mut policy, &mut pages, 20_031), 0, "nobody read their marks since");
        look(&mut policy, &mut pages, 20_032, &idle, false);
        assert_eq!(requested(&mut policy, &mut pages, 20_032), 512, "not used since 20,018 s");
    }

    /// The order in which pages leave, idle for the given seconds each, when half a minute has passed.
    fn order_of_leaving(idle_for: impl Fn(u32) -> u64) -> Vec<u32> {
        let mut policy = Age::new(&mut Settings::default().for_policy(&INFO)).unwrap();
        let mut pages = Pages::new();
        let at = |second| Time::ZERO + Duration::from_secs(1000 + second);
        pages.map(SPACE, Vpn(0)..Vpn(1024));
        for second in (0..=30).step_by(2) {
            for block in 0..2 {
                let touched = |page: u32| second + idle_for(block * 512 + page) <= 30;
                let pte = |page| PteState::placed(TierId::FAST).with_accessed(touched(page));
                let ptes: Vec<PteState> = (0..512).map(pte).collect();
                let first = pages.find(SPACE, Vpn(u64::from(block) * 512)).unwrap();
                (0..512).for_each(|page| _ = pages.set_tier(first.plus(page), Some(TierId::FAST)));
                let window = Some(Duration::from_secs(2));
                let scan = ScanBatch { first, ptes: &ptes, window, cleared: true };
                policy.observe(at(second), Observations::Scan(scan), &mut pages);
            }
        }
        let tiers = [TierUse { used: 1024, capacity: 2048 }, TierUse { used: 0, capacity: 2048 }];
        let room = CapacityView {
            tiers: &tiers,
            fast_limit: None,
            footprint: 1024,
            backoff: 1.0,
            least_idle: Duration::ZERO,
            swap: None,
        };
        let mut requests = MoveRequests::with_limit(4096);
        policy.plan(at(30), &room, &mut pages, &mut requests);
        requests.into_vec().iter().map(|request| request.page.0).collect()
    }

    #[test]
    fn a_whole_block_leaves_before_the_parts_of_one_and_stays_together() {
        // Every second page of block 0 is in use; block 1 was idle for longer the higher the address.
        let order = order_of_leaving(|page| match page {
            0..512 => 30 * u64::from(page % 2),
            _ => 24 + u64::from(page) / 256,
        });
        assert_eq!(order[..512], (512..1024).collect::<Vec<u32>>());
        assert_eq!(order[512..], (1..512).step_by(2).collect::<Vec<u32>>());
    }

    #[test]
    fn a_block_is_rounded_up_for_a_few_pages_that_are_half_way_there() {
        // Sixteen pages of each block were used later than the others: in block 0 eight seconds ago, in block 1 just now.
        let order = order_of_leaving(|page| match page {
            0..16 => 8,
            512..528 => 0,
            _ => 30,
        });
        assert_eq!(order[..512], (0..512).collect::<Vec<u32>>());
        assert_eq!(order[512..], (528..1024).collect::<Vec<u32>>());
        // Of more than one in sixteen none goes before its time.
        assert_eq!(order_of_leaving(|page| if page % 8 == 0 { 8 } else { 30 }).len(), 1024 - 128);
    }

    #[test]
    fn a_limit_is_held_by_the_coldest() {
        let engine = run(FastGoal::Pages(1024), 60, |vpn, _| vpn % 4 == 0);
        assert_eq!(engine.pages().used(SPACE, TierId::FAST), 1024);
        for vpn in (0..2048).step_by(4) {
            let page = engine.pages().find(SPACE, Vpn(vpn)).unwrap();
            assert_eq!(engine.pages()[page].tier(), Some(TierId::FAST), "page {vpn} is hot");
        }
    }

    #[test]
    fn nobody_leaves_for_the_limit_before_everybody_was_seen_twice() {
        let engine = run(FastGoal::Pages(512), 7, |vpn, _| vpn % 4 == 0);
        assert_eq!(engine.ledger().demoted(), 0);
        let engine = run(FastGoal::Pages(512), 30, |vpn, _| vpn % 4 == 0);
        assert_eq!((engine.pages().used(SPACE, TierId::FAST), engine.ledger().ping_pong_pages()), (512, 0));
    }

    #[test]
    fn a_hot_set_that_moves_is_followed() {
        let engine = run(FastGoal::Least, 180, |vpn, second| if second < 90 { vpn < 512 } else { vpn >= 1536 });
        assert_eq!(engine.pages().used(SPACE, TierId::FAST), 512);
        let page = engine.pages().find(SPACE, Vpn(1600)).unwrap();
        assert_eq!(engine.pages()[page].tier(), Some(TierId::FAST));
        let page = engine.pages().find(SPACE, Vpn(100)).unwrap();
        assert_eq!(engine.pages()[page].tier(), Some(SLOW));
    }

    #[test]
    fn the_decay_is_the_same_in_one_step_or_in_two() {
        let half_life = Duration::from_secs(8);
        let once = Decay::over(Duration::from_secs(8), half_life).apply(40_000, false);
        let half = Decay::over(Duration::from_secs(4), half_life);
        let twice = half.apply(half.apply(40_000, false), false);
        assert!(once.abs_diff(twice) <= 2, "{once} and {twice}");
        assert_eq!(once, 20_000);
    }
}
