//! Looking inside huge pages: a few of a region are split, and where most of what they hold turns out unused more of them are.
//!
//! In: walks of accessed bits, what became of splits, prices. Out: requests to split, and for each region how much of it is in use. Must not:
//! move a page (the policy that owns it does, as it moves any other), split what the driver refused, or draw from anything but its seed.
//!
//! A huge page has one accessed bit, so that one page in use keeps the other 511. Split, each has a bit of its own. Of all blocks that were huge
//! and in use at every reading a few are drawn, spread over the program's memory; the usual rotation reads them; and the share of
//! their pages that were used is an estimate for the others. While the lower bound of what is unused is worth more than its price, eight times as
//! many blocks are split at each step, and the policy lets their cold pages go. Where blocks are evenly used the region rests, twice as long
//! each time; then the same blocks are read again, which costs no split.
//!
//! **The interval.** The blocks drawn are clusters of 512 pages, so the share of each counts as one observation and not as 512 (Cochran,
//! Sampling Techniques, 3rd edition 1977, chapter 9, clusters of equal size), with Student's t for few of them and the finite-population
//! correction `1 - n/N`. Two to eight clusters that are all alike would give an interval of no width, though a tenth of the others may differ. So
//! two observations are added, one of 0 and one of 1, as Agresti and Coull do for a proportion (The American Statistician 52, 1998); a share of
//! pages varies at most as much as a proportion. Their weight is `1 - n/N`: none when all blocks were read. One-sided, meant to hold in 90
//! of 100 cases; in a test over even, scattered and mixed populations each bound holds in 85 to 100 of them, the least where one block in ten is sparse.
//!
//! **Levels.** A block is split on a guess if what was read of its 64 MiB, of its 512 MiB or of its program says so, four blocks at least; and neither its 64 MiB nor its
//! 512 MiB, by two blocks or more, turned out to be evenly used. Of each 64 MiB two are read before others are split on a guess.
//!
//! **Worth.** A page that leaves for swap is worth 20 µs, or what its page-out costs if that is more: so much is paid for each cold page there is. Its
//! memory is worth the same where page-outs are cheap. Between nodes its place in fast memory is worth the longer way of as many accesses as there
//! are walks. A split is worth it if the pages that then leave are worth more than the split and the page walks of those that stay.
//!
//! **Blocks split in vain** are left to khugepaged. A collapse beside a running program takes 1.6 to 8 ms, as much as 3 to 20 splits, and
//! moves 2 MiB; khugepaged passes 16 MiB in 10 s, as it is set by default. Meanwhile one block in a hundred at most is split, so that 1 % of the accesses wait for walks of 4 KiB.
//!
//! | constant | value | why |
//! |---|---|---|
//! | split and not repaid | 1 % of the huge pages, two at least | what a look may cost if it finds nothing |
//! | drawn from 512 MiB | 2, up to 8 while undecided | two are within the 1 % |
//! | growth | 8 | of the blocks split on a guess, over those that repaid; once pages of these have left, for what does not compress stays |
//! | steadily used | 3 readings, half of the idle time | what is used less will be idle, and leave whole |
//! | misses of a 4 KiB translation | 20 a second for each page in use, for 60 s | Assumption; what counters tell of it is charged to the bound by the driver |
//! | worth of a page in swap | 20 µs at least | the dearest page-out of a page of a split block in docs/inside-huge-pages.md, rounded up |
//! | rest | 60 s, doubled up to 17 hours | of an evenly used region |
//!
//! Where there are hardware samples they say first: a block is left whole without a split if the pages sampled of it are too many for that to pay,
//! and regions whose samples fell on few pages are looked into before others.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use terrace_core::observation::{Observation, ScanBatch};
use terrace_core::pages::{Page, Pages};
use terrace_core::plan::{Action, Failure, MoveRequests, Outcome, Reason};
use terrace_core::policy::{CapacityView, Metric};
use terrace_core::prices::Prices;
use terrace_core::random::SplitMix64;
use terrace_core::units::{BLOCK_PAGES, BLOCK_SHIFT, BlockId, SpaceId, TierId, Time, Vpn};

use crate::{SettingInfo, Settings, SettingsError};

mod clusters;

use clusters::Interval;

/// Blocks of 64 MiB and of 512 MiB, as powers of two.
const LEAF_SHIFT: u32 = 5;
const GROUP_SHIFT: u32 = 8;
/// Blocks read that make an area known to be evenly used, and to be worth more splits.
const TO_STOP: usize = 2;
const TO_GO_ON: usize = 4;
/// Blocks drawn of a group at a time, and most while it is undecided.
const DRAWN: usize = 2;
const MOST_DRAWN: usize = 8;
/// A program with fewer huge pages in use is not looked into.
const LEAST_BLOCKS: usize = 8;
/// Part of the huge pages that may be split without having repaid it, and how many in any case.
const UNPAID_OF: u64 = 100;
const UNPAID: usize = 2;
/// Blocks that may be split on a guess for each that repaid and of which pages have left: with it, eight times as many.
const GROWTH: usize = 7;
/// Readings in a row that make a block steadily used.
const STEADY: u8 = 3;
/// Page walks a second for each page in use of a split block, and for how many seconds they count.
const MISSES: f64 = 20.0;
const HORIZON: f64 = 60.0;
const REST: Duration = Duration::from_secs(60);
const LONGEST_REST: u32 = 10;
/// Nothing is asked for so long after the kernel could not split, and after it had no memory for it.
const UNABLE: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_secs(10);
/// Seconds that a split is taken to cost where page-outs were measured and it was not: the dearest of docs/block-moves.md.
const UNKNOWN: f64 = 605e-6;
/// Seconds that a page in swap is worth at least: the dearest page-out of a page of a split block in docs/inside-huge-pages.md, rounded up.
const WORTH: f64 = 20e-6;
/// Blocks with less than this share of their pages in use count as sparse in reports.
const SPARSE: f64 = 0.1;
/// For how long samples are gathered until they are forgotten.
const SAMPLES_LAST: Duration = Duration::from_secs(60);

const WORDS: usize = BLOCK_PAGES as usize / 64;

/// The setting.
pub(crate) const SETTING: SettingInfo = SettingInfo {
    key: "inside",
    default: "on",
    meaning: "whether a few huge pages are split to see what of them is used: off, look (and no more), or on (more, where what is cold inside repays it)",
};

/// How far it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Off,
    Look,
    On,
}

/// Which pages of a block were used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Used([u64; WORDS]);

impl Used {
    fn mark(&mut self, offset: u32) {
        self.0[offset as usize / 64] |= 1 << (offset % 64);
    }

    fn share(&self) -> f64 {
        f64::from(self.0.iter().map(|word| word.count_ones()).sum::<u32>()) / f64::from(BLOCK_PAGES)
    }

    fn or(&self, other: &Used) -> Used {
        Used(std::array::from_fn(|word| self.0[word] | other.0[word]))
    }
}

/// A block that was split.
#[derive(Clone, Debug)]
struct Look {
    /// Whether it was drawn, and not split because others like it repaid.
    drawn: bool,
    /// Since when its marks tell use: those before are of the huge page.
    since: Option<Time>,
    read_at: Time,
    readings: u32,
    used: Used,
    /// Pages that did not leave, as what they hold does not compress.
    stayed: Used,
    /// The share used, once it has been read for long enough.
    found: Option<f64>,
    counted: bool,
}

impl Look {
    fn new(drawn: bool, now: Time) -> Look {
        let used = Used::default();
        Look { drawn, since: None, read_at: now, readings: 0, used, stayed: used, found: None, counted: false }
    }

    /// It is read again from the beginning.
    fn again(&mut self, now: Time) {
        *self = Look { counted: self.counted, stayed: self.stayed, ..Look::new(true, now) };
    }

    /// The share that stays, as it is in use or does not compress; `None` until the share in use is known.
    fn kept(&self) -> Option<f64> {
        self.found.map(|used| used.max(self.used.or(&self.stayed).share()))
    }
}

/// How a huge block was read lately: how often in a row it was used, and since which second.
#[derive(Clone, Copy, Debug, Default)]
struct Steady {
    readings: u8,
    since: u32,
}

/// A part of a program's memory: 64 MiB, 512 MiB, or all of it.
type Area = (SpaceId, u8, u64);

/// Whether pages of a block lie elsewhere than others of it, or Terrace moved them out.
fn has_left(pages: &Pages, block: BlockId) -> bool {
    let all = pages.block_pages(block);
    all.iter().any(|page| page.demoted() || page.tier() != all[0].tier())
}

/// The areas of a block, the smallest first.
fn areas(space: SpaceId, start: Vpn) -> [Area; 3] {
    let block = start.0 >> BLOCK_SHIFT;
    [(space, 0, block >> LEAF_SHIFT), (space, 1, block >> GROUP_SHIFT), (space, 2, 0)]
}

/// How long an evenly used area is left alone. It is awake at [`Time::ZERO`].
#[derive(Clone, Copy, Debug, Default)]
struct Rest {
    until: Time,
    times: u32,
}

/// What is known of an area.
#[derive(Clone, Debug, Default)]
struct Known {
    /// Blocks that are huge and steadily used, or were split.
    blocks: usize,
    /// The shares in use of those that were read.
    read: Vec<f64>,
    /// The shares of these that stay: in use, or not to be compressed.
    kept: Vec<f64>,
    /// Those that repaid, and of which pages have left.
    proven: usize,
    /// Those that were drawn, read or not; and those that were not read.
    drawn: usize,
    unread: usize,
}

impl Known {
    fn mean_used(&self) -> f64 {
        mean(&self.read)
    }

    fn mean_kept(&self) -> f64 {
        mean(&self.kept)
    }
}

fn mean(shares: &[f64]) -> f64 {
    shares.iter().sum::<f64>() / shares.len().max(1) as f64
}

/// Prices, in seconds of the program.
#[derive(Clone, Copy, Debug)]
struct Costs {
    /// What a page that is not in use is worth in slower memory.
    worth: f64,
    split: f64,
    walk: f64,
}

impl Costs {
    /// Whether a block is worth its split of which the share `unused` at least is not in use, and `used` is.
    fn repays(&self, unused: f64, used: f64) -> bool {
        let pages = f64::from(BLOCK_PAGES);
        unused * pages * self.worth > self.split + used * pages * self.walk * MISSES * HORIZON
    }

    /// The same of a block of which all is known.
    fn repaid(&self, used: f64) -> bool {
        self.repays(1.0 - used, used)
    }

    /// Whether blocks of an area are worth their splits, for certain as far as an interval can be.
    fn repays_in(&self, known: &Known) -> bool {
        let interval = Interval::of(&known.kept, known.blocks);
        known.kept.len() >= TO_GO_ON && self.repays(1.0 - interval.high, interval.mean)
    }
}

/// What the blocks looked into came to.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    looked_into: u64,
    sparse: u64,
    even: u64,
    left: u64,
    unseen: u64,
    estimate: Option<Interval>,
}

/// What hardware samples say of a huge block.
#[derive(Clone, Copy, Debug, Default)]
struct Sampled {
    samples: u32,
    used: Used,
}

/// What a plan finds of a program's blocks.
#[derive(Debug, Default)]
struct View {
    known: BTreeMap<Area, Known>,
    /// Blocks that could be split, by group.
    candidates: BTreeMap<Area, Vec<(BlockId, Area)>>,
}

impl View {
    /// Blocks of all programs that are huge and steadily used, or were split.
    fn blocks(&self) -> usize {
        self.known.iter().filter(|(area, _)| area.1 == 2).map(|(_, known)| known.blocks).sum()
    }
}

/// See the module's header.
#[derive(Clone, Debug)]
pub(crate) struct Inside {
    mode: Mode,
    random: SplitMix64,
    prices: Option<Prices>,
    /// By block; empty until a huge page is seen.
    steady: Vec<Steady>,
    looks: BTreeMap<BlockId, Look>,
    /// Blocks whose split is asked for, and whether they were drawn.
    wanted: BTreeMap<BlockId, bool>,
    /// Blocks that must stay huge.
    whole: BTreeSet<BlockId>,
    rests: BTreeMap<Area, Rest>,
    not_before: Time,
    sampled: BTreeMap<BlockId, Sampled>,
    sampled_since: Time,
    counts: Counts,
}

impl Inside {
    /// Reads the setting.
    ///
    /// # Errors
    /// When it is none of its words.
    pub(crate) fn new(settings: &mut Settings, seed: u64) -> Result<Inside, SettingsError> {
        let modes = [("off", Mode::Off), ("look", Mode::Look), ("on", Mode::On)];
        Ok(Inside {
            mode: settings.choice(SETTING.key, &modes)?,
            random: SplitMix64::new(seed),
            prices: None,
            steady: Vec::new(),
            looks: BTreeMap::new(),
            wanted: BTreeMap::new(),
            whole: BTreeSet::new(),
            rests: BTreeMap::new(),
            not_before: Time::ZERO,
            sampled: BTreeMap::new(),
            sampled_since: Time::ZERO,
            counts: Counts::default(),
        })
    }

    /// Whether it may ask for splits.
    pub(crate) fn splits(&self) -> bool {
        self.mode != Mode::Off
    }

    /// Whether the split of a block is asked for.
    pub(crate) fn asks_for(&self, block: BlockId) -> bool {
        self.wanted.contains_key(&block)
    }

    /// The prices of moves, which count where no tier is swap.
    pub(crate) fn set_prices(&mut self, prices: &Prices) {
        self.prices = Some(*prices);
    }

    /// Blocks appeared, or gained pages. An id may have been another block's.
    pub(crate) fn mapped(&mut self, blocks: &[BlockId]) {
        for block in blocks {
            if let Some(steady) = self.steady.get_mut(block.0 as usize) {
                *steady = Steady::default();
            }
        }
    }

    /// Pages are about to vanish.
    pub(crate) fn unmapping(&mut self, space: SpaceId, range: &Range<Vpn>, pages: &Pages) {
        let stays = |block: &BlockId| {
            pages.block(*block).is_some_and(|info| {
                let end = info.start.0 + u64::from(BLOCK_PAGES);
                info.space != space || info.start.0 >= range.end.0 || range.start.0 >= end
            })
        };
        self.looks.retain(|block, _| stays(block));
        self.wanted.retain(|block, _| stays(block));
        self.sampled.retain(|block, _| stays(block));
        self.whole.retain(stays);
        if *range == (Vpn(0)..Vpn(u64::MAX)) {
            self.rests.retain(|area, _| area.0 != space);
        }
    }

    /// Takes in the reading of a block.
    pub(crate) fn scanned(&mut self, now: Time, scan: &ScanBatch<'_>) {
        if self.mode == Mode::Off || scan.ptes.is_empty() {
            return;
        }
        let block = scan.first.block();
        if scan.ptes[0].huge() {
            return self.read_huge(now, block, scan);
        }
        let Some(look) = self.looks.get_mut(&block) else { return };
        if look.since.is_some() && scan.ptes.len() > 1 {
            // In its turn or not, a mark tells of use since it was cleared last.
            let used = (scan.first.offset()..).zip(scan.ptes).filter(|(_, pte)| pte.accessed());
            used.for_each(|(offset, _)| look.used.mark(offset));
            look.read_at = now;
            look.readings += u32::from(scan.cleared);
        } else if scan.cleared {
            look.since = Some(now);
        }
    }

    fn read_huge(&mut self, now: Time, block: BlockId, scan: &ScanBatch<'_>) {
        // Somebody made it huge again.
        self.looks.remove(&block);
        if scan.window.is_none() {
            return;
        }
        let index = block.0 as usize;
        if index >= self.steady.len() {
            self.steady.resize(index + 1, Steady::default());
        }
        let steady = &mut self.steady[index];
        let used = scan.ptes.iter().any(|pte| pte.accessed());
        *steady = match (used, steady.readings) {
            (false, _) => Steady::default(),
            (true, 0) => Steady { readings: 1, since: now.as_secs() as u32 },
            (true, readings) => Steady { readings: readings.saturating_add(1), ..*steady },
        };
    }

    /// Takes in events: what came back, or was sampled, is in use.
    pub(crate) fn saw(&mut self, now: Time, events: &[Observation], pages: &Pages) {
        if self.mode == Mode::Off || self.steady.is_empty() {
            return;
        }
        for event in events {
            let (page, block) = (event.page(), event.page().block());
            let sampled = matches!(event, Observation::Sampled { .. } | Observation::Counted { .. });
            if !sampled && !matches!(event, Observation::Refault { .. } | Observation::HintFault { .. }) {
                continue;
            }
            if let Some(look) = self.looks.get_mut(&block).filter(|look| look.since.is_some()) {
                look.used.mark(page.offset());
            } else if sampled && pages.block(block).is_some_and(|info| info.huge) {
                if now.since(self.sampled_since) > SAMPLES_LAST {
                    self.sampled.clear();
                    self.sampled_since = now;
                }
                let found = self.sampled.entry(block).or_default();
                found.samples = found.samples.saturating_add(1);
                found.used.mark(page.offset());
            }
        }
    }

    /// Takes in what became of splits, and which pages of split blocks do not compress.
    pub(crate) fn outcomes(&mut self, now: Time, done: &[Outcome], pages: &Pages) {
        for outcome in done {
            let block = outcome.item.page.block();
            if outcome.failure == Some(Failure::Incompressible)
                && let Some(look) = self.looks.get_mut(&block)
            {
                let first = outcome.item.page.offset();
                (first..first + outcome.item.pages).for_each(|offset| look.stayed.mark(offset));
            }
            if outcome.item.action != Action::Split {
                continue;
            }
            let Some(drawn) = self.wanted.remove(&block).filter(|_| pages.block(block).is_some()) else { continue };
            match outcome.failure {
                None => _ = self.looks.insert(block, Look::new(drawn, now)),
                Some(Failure::Whole) => _ = self.whole.insert(block),
                Some(Failure::NoRoom) => self.not_before = now + SHORT,
                Some(Failure::Errno(_) | Failure::DryRun) => self.not_before = now + UNABLE,
                // It was in use just now, or is not huge any more: others will be drawn.
                Some(_) => self.mapped(&[block]),
            }
        }
    }

    /// Asks for splits. `idle` is for how long a page is unused that is cold; `may_leave` says of which
    /// programs anything is to leave fast memory.
    pub(crate) fn plan(
        &mut self,
        now: Time,
        idle: Duration,
        may_leave: impl Fn(SpaceId) -> bool,
        capacity: &CapacityView<'_>,
        pages: &Pages,
        requests: &mut MoveRequests,
    ) {
        if self.mode == Mode::Off || self.steady.is_empty() && self.looks.is_empty() {
            return;
        }
        let costs = self.costs(capacity);
        self.looks.retain(|block, _| pages.block(*block).is_some_and(|info| info.split()));
        self.finish(now, idle, &costs);
        let mut view = self.view(now, idle, &costs, pages);
        if self.rest(now, &view.known, &costs, pages) {
            view = self.view(now, idle, &costs, pages);
        }
        self.tell(&view, pages);
        let spared = view.blocks() < LEAST_BLOCKS;
        view.candidates.retain(|area, _| may_leave(area.0));
        let steady: BTreeSet<BlockId> = view.candidates.values().flatten().map(|(block, _)| *block).collect();
        self.wanted.retain(|block, _| steady.contains(block));
        if !view.candidates.is_empty() && now >= self.not_before && !spared {
            self.draw(now, &view, &costs, pages);
            if self.mode == Mode::On {
                self.go_on(now, &view, &costs);
            }
        }
        for block in self.wanted.keys() {
            if !pages.block_pages(*block)[0].moving() {
                requests.push(block.first_page(), Action::Split, Reason::Inside);
            }
        }
    }

    fn costs(&self, capacity: &CapacityView<'_>) -> Costs {
        let prices = self.prices.unwrap_or(Prices::ASSUMED);
        let walk = prices.walk_ns * 1e-9;
        match capacity.swap.filter(|swap| swap.single > 0.0) {
            Some(swap) => Costs {
                worth: swap.single.max(WORTH),
                split: if swap.split > 0.0 { swap.split } else { UNKNOWN },
                walk,
            },
            None => Costs {
                worth: prices.farther_ns * MISSES * HORIZON * 1e-9,
                split: (prices.split_ns + prices.flush_ns) * 1e-9,
                walk,
            },
        }
    }

    /// A block is huge, may be split, and was in use whenever it was read lately.
    fn is_steady(&self, now: Time, idle: Duration, block: BlockId) -> bool {
        let steady = self.steady.get(block.0 as usize).copied().unwrap_or_default();
        let lasted = (now.as_secs() as u32).saturating_sub(steady.since);
        steady.readings >= STEADY && u64::from(lasted) >= idle.as_secs() / 2 && !self.whole.contains(&block)
    }

    /// Blocks that were read for long enough have told their share; after as long again it stays as it is.
    fn finish(&mut self, now: Time, idle: Duration, costs: &Costs) {
        for look in self.looks.values_mut() {
            let Some(since) = look.since else { continue };
            let settled = look.found.is_some() && now.since(since) > idle + idle / 2;
            if settled || look.readings < 2 || look.read_at.since(since) < idle / 2 {
                continue;
            }
            let share = look.used.share();
            look.found = Some(share);
            if !std::mem::replace(&mut look.counted, true) {
                self.counts.looked_into += 1;
                self.counts.sparse += u64::from(share < SPARSE);
                self.counts.even += u64::from(!costs.repaid(share));
            }
        }
    }

    fn view(&self, now: Time, idle: Duration, costs: &Costs, pages: &Pages) -> View {
        let mut view = View::default();
        for (block, info) in pages.blocks().filter(|(_, info)| info.huge && !info.file || info.split()) {
            let look = self.looks.get(&block);
            if look.is_none() && !self.is_steady(now, idle, block) {
                continue;
            }
            let areas = areas(info.space, info.start);
            let kept = look.and_then(Look::kept);
            let proven = kept.is_some_and(|share| costs.repaid(share)) && has_left(pages, block);
            for area in areas {
                let known = view.known.entry(area).or_default();
                known.blocks += 1;
                let Some(look) = look else { continue };
                known.drawn += usize::from(look.drawn);
                known.unread += usize::from(look.found.is_none());
                known.read.extend(look.found);
                known.kept.extend(kept);
                known.proven += usize::from(proven);
            }
            if look.is_none() {
                view.candidates.entry(areas[1]).or_default().push((block, areas[0]));
            }
        }
        view
    }

    /// Areas that are evenly used rest; after that the blocks of theirs that are split are read again. Returns whether any are.
    fn rest(&mut self, now: Time, known: &BTreeMap<Area, Known>, costs: &Costs, pages: &Pages) -> bool {
        let mut awake = BTreeSet::new();
        for (area, known) in known.iter().filter(|(area, _)| area.1 < 2) {
            let rest = self.rests.entry(*area).or_default();
            if rest.until > now {
                continue;
            }
            if rest.until > Time::ZERO {
                rest.until = Time::ZERO;
                awake.insert(*area);
            } else if known.read.len() >= TO_STOP && known.unread == 0 {
                // Of 512 MiB one sparse block is enough to look where it lies.
                let sparse = known.kept.iter().any(|share| costs.repaid(*share));
                if costs.repaid(known.mean_kept()) || area.1 == 1 && sparse {
                    rest.times = 0;
                } else {
                    rest.until = now + REST * (1 << rest.times.min(LONGEST_REST));
                    rest.times += 1;
                }
            }
        }
        for (block, look) in &mut self.looks {
            let Some(info) = pages.block(*block) else { continue };
            if areas(info.space, info.start).iter().any(|area| awake.contains(area))
                && look.kept().is_some_and(|share| !costs.repaid(share))
            {
                look.again(now);
            }
        }
        !awake.is_empty()
    }

    fn rests(&self, now: Time, area: &Area) -> bool {
        self.rests.get(area).is_some_and(|rest| rest.until > now)
    }

    /// Whether hardware samples show so much of a block in use that its split would not pay.
    fn is_dense(&self, block: BlockId, costs: &Costs) -> bool {
        self.sampled.get(&block).is_some_and(|sampled| !costs.repaid(sampled.used.share()))
    }

    /// Draws blocks of the groups of which too little is known.
    fn draw(&mut self, now: Time, view: &View, costs: &Costs, pages: &Pages) {
        let most = (pages.footprint_of_all() / u64::from(BLOCK_PAGES) / UNPAID_OF) as usize;
        let unpaid = self.looks.values().filter(|look| match look.kept() {
            None => look.drawn,
            Some(share) => !costs.repaid(share),
        });
        let asked = self.wanted.values().filter(|drawn| **drawn).count();
        let mut left = most.max(UNPAID).saturating_sub(unpaid.count() + asked);
        if left == 0 {
            return;
        }
        let mut groups: Vec<(u64, &Area)> = Vec::new();
        for (area, blocks) in &view.candidates {
            let sampled = blocks.iter().filter_map(|(block, _)| self.sampled.get(block));
            let [samples, pages] = sampled.fold([0.0; 2], |[samples, pages], one| {
                [samples + f64::from(one.samples), pages + one.used.share() * f64::from(BLOCK_PAGES)]
            });
            // The fewer pages the samples fell on, the earlier; in the order of a draw where there are none.
            let spread = if samples > 0.0 { (pages / samples * 1024.0) as u64 } else { 1024 };
            groups.push(((spread << 32) | (self.random.next() >> 32), area));
        }
        groups.sort_unstable();
        for (_, area) in groups {
            let known = &view.known[area];
            let whole = &view.known[&(area.0, 2, 0)];
            let asked = view.candidates[area].iter().filter(|(block, _)| self.wanted.contains_key(block)).count();
            let decided = costs.repays_in(known) || costs.repays_in(whole);
            if left == 0
                || asked > 0
                || known.unread > 0
                || decided
                || self.rests(now, area)
                || known.drawn >= MOST_DRAWN
            {
                continue;
            }
            let mut of = view.candidates[area].clone();
            of.retain(|(block, leaf)| !self.rests(now, leaf) && !self.is_dense(*block, costs));
            for _ in 0..DRAWN.min(of.len()).min(left) {
                let at = self.random.below(of.len() as u64) as usize;
                self.wanted.insert(of.swap_remove(at).0, true);
                left -= 1;
            }
        }
        self.follow_up(now, view, costs, left);
    }

    /// Draws more where a block repaid and all that is around it says nothing: of 64 MiB as many as decide.
    fn follow_up(&mut self, now: Time, view: &View, costs: &Costs, mut left: usize) {
        for (group, blocks) in &view.candidates {
            let above = [&view.known[group], &view.known[&(group.0, 2, 0)]];
            if above.iter().any(|known| costs.repays_in(known)) {
                continue;
            }
            for of_leaf in blocks.chunk_by(|one, next| one.1 == next.1) {
                let leaf = of_leaf[0].1;
                let known = &view.known[&leaf];
                let asked = of_leaf.iter().filter(|(block, _)| self.wanted.contains_key(block)).count();
                let undecided = !known.read.is_empty() && costs.repaid(known.mean_kept()) && known.unread + asked == 0;
                if !undecided || self.rests(now, &leaf) {
                    continue;
                }
                let more = TO_GO_ON.saturating_sub(known.read.len()).min(left);
                let mut of: Vec<BlockId> = of_leaf.iter().map(|(block, _)| *block).collect();
                of.retain(|block| !self.is_dense(*block, costs));
                for _ in 0..more.min(of.len()) {
                    let at = self.random.below(of.len() as u64) as usize;
                    self.wanted.insert(of.swap_remove(at), true);
                    left -= 1;
                }
            }
        }
    }

    /// Splits more where what was read says that it pays.
    fn go_on(&mut self, now: Time, view: &View, costs: &Costs) {
        let spaces: BTreeSet<SpaceId> = view.candidates.keys().map(|area| area.0).collect();
        for space in spaces {
            let whole = &view.known[&(space, 2, 0)];
            let of_space = view.candidates.range((space, 1, 0)..=(space, 1, u64::MAX));
            let asked = of_space.clone().flat_map(|(_, blocks)| blocks);
            let asked = asked.filter(|(block, _)| self.wanted.contains_key(block)).count();
            let mut left = (whole.proven * GROWTH).saturating_sub(whole.unread + asked);
            if left == 0 {
                continue;
            }
            let pays = costs.repays_in(whole);
            let mut of = Vec::new();
            // Two of each leaf tell first whether it is as the others are.
            let mut asked_of: BTreeMap<Area, usize> = BTreeMap::new();
            for (block, leaf) in of_space.clone().flat_map(|(_, blocks)| blocks) {
                *asked_of.entry(*leaf).or_default() += usize::from(self.wanted.contains_key(block));
            }
            for (group, blocks) in of_space {
                let pays = pays || costs.repays_in(&view.known[group]);
                for (block, leaf) in blocks {
                    let here = costs.repays_in(&view.known[leaf]);
                    let may = here || pays && !self.rests(now, group) && !self.rests(now, leaf);
                    if may && !self.wanted.contains_key(block) && !self.is_dense(*block, costs) {
                        of.push((*block, *leaf));
                    }
                }
            }
            while left > 0 && !of.is_empty() {
                let (block, leaf) = of.swap_remove(self.random.below(of.len() as u64) as usize);
                let known = &view.known[&leaf];
                let asked = asked_of.entry(leaf).or_default();
                if known.read.len() >= TO_STOP || known.read.len() + known.unread + *asked < TO_STOP {
                    self.wanted.insert(block, false);
                    *asked += 1;
                    left -= 1;
                }
            }
        }
    }

    /// What is said of it in reports.
    fn tell(&mut self, view: &View, pages: &Pages) {
        let (mut blocks, mut used, mut read, mut of_read) = (0.0, 0.0, 0.0, 0.0);
        for (leaf, known) in view.known.range(..).filter(|(area, _)| area.1 == 0) {
            let group = view.known.get(&(leaf.0, 1, leaf.2 >> (GROUP_SHIFT - LEAF_SHIFT)));
            let levels = [Some(known), group, view.known.get(&(leaf.0, 2, 0))].into_iter().flatten();
            let Some(best) = levels.into_iter().find(|known| known.read.len() >= TO_STOP) else { continue };
            blocks += known.blocks as f64;
            used += best.mean_used() * known.blocks as f64;
            read += known.read.len() as f64;
            of_read += known.read.iter().sum::<f64>();
        }
        let drawn: Vec<f64> = self.looks.values().filter(|look| look.drawn).filter_map(|look| look.found).collect();
        self.counts.estimate = (blocks > 0.0).then(|| {
            let (mean, others) = (used / blocks, Interval::of(&drawn, blocks as usize));
            // What was read is known, and those drawn tell of the others.
            let bound = |share: f64| (of_read + (blocks - read) * share) / blocks;
            Interval { low: bound(others.low).min(mean), mean, high: bound(others.high).max(mean) }
        });
        let away = |page: &&Page| page.demoted() && page.tier().is_some_and(|tier| tier > TierId::FAST);
        let left = |block: &BlockId| pages.block_pages(*block).iter().filter(away).count() as u64;
        self.counts.left = self.looks.keys().map(left).sum();
        self.counts.unseen = pages.blocks().filter(|(_, info)| info.huge).count() as u64;
    }

    /// Its figures; none before a huge page was seen.
    pub(crate) fn metrics(&self) -> Vec<Metric> {
        if self.mode == Mode::Off || self.steady.is_empty() && self.looks.is_empty() {
            return Vec::new();
        }
        let counts = &self.counts;
        let share = counts.estimate.unwrap_or(Interval::of(&[], 0));
        [
            ("inside_blocks_looked_into", counts.looked_into as f64),
            ("inside_blocks_sparse", counts.sparse as f64),
            ("inside_blocks_even", counts.even as f64),
            ("inside_blocks_split_now", self.looks.len() as f64),
            ("inside_blocks_unseen", counts.unseen as f64),
            ("inside_pages_left", counts.left as f64),
            ("inside_used_share_low", share.low),
            ("inside_used_share", share.mean),
            ("inside_used_share_high", share.high),
        ]
        .map(|(name, value)| Metric { name, value })
        .into()
    }

    /// Bytes kept.
    pub(crate) fn memory_bytes(&self) -> usize {
        // A B-tree node is three quarters full on average.
        let entries = |count: usize, size: usize| count * size * 4 / 3;
        self.steady.capacity() * size_of::<Steady>()
            + entries(self.looks.len(), size_of::<(BlockId, Look)>())
            + entries(self.sampled.len(), size_of::<(BlockId, Sampled)>())
            + entries(self.rests.len(), size_of::<(Area, Rest)>())
            + entries(self.wanted.len() + self.whole.len(), size_of::<(BlockId, bool)>())
    }
}

#[cfg(test)]
mod tests;
