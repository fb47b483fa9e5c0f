//! Programs that sleep: their memory leaves whole, and comes back at once when they wake.
//!
//! In: which programs ran and which did not, what was seen of pages, how short free memory is. Out: requests to leave, pages to be fetched
//! ahead, what returns of each program are paid for already. Must not: read a clock, judge a program by what others do, or take one for
//! asleep by the marks of its pages.
//!
//! **Leaving.** A program that sleeps loses nothing by a page-out; what it loses is the return of the page when it wakes. It may lose
//! `max_slowdown` of its time, and its sleep is time: after it has slept for [`LONG_ENOUGH`], as many pages may be out as that share of its sleep pays
//! for, there and back. So whatever it does when it wakes, it has lost no more than the bound, and a program that sleeps twice as long has twice as much
//! out. What it did not use before it fell asleep leaves first. What it did use stays in plenty until it has slept for twice as long as it usually does, or
//! for [`STAYS_AT_MOST`]: a program that is asked once a minute would have it back within that minute. Pages that left so are paid for: as many of its
//! returns count as none. Where free memory is short the kernel would take as much in a while, and from whom it meets; then the programs that
//! have slept longest leave first and at once, until as much is free as should be. What a program used while it started says nothing of what it will use: until
//! it woke for the first time, or ran for a minute, all of it counts as unused, and nothing is fetched ahead. What comes back while it sleeps, as it looks
//! whether there is something to do, stays.
//!
//! **Waking.** What a program used before it fell asleep is remembered ([`RecentUse`]). When [`SOME_TENS`] of these pages come back within [`MOMENT`] of
//! each other, the rest of them is fetched ahead, unless memory is short.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use crate::observation::ScanBatch;
use crate::pages::{Page, Pages};
use crate::plan::{Action, MoveRequest, Reason};
use crate::recent_use::RecentUse;
use crate::units::{BLOCK_PAGES, BlockId, PageId, SpaceId, TierId, Time, Vpn};

/// Sleep after which a program's memory may leave, in plenty and where memory is short.
pub const LONG_ENOUGH: Duration = Duration::from_secs(5);
/// See there.
pub const LONG_ENOUGH_IF_SHORT: Duration = Duration::from_secs(1);
/// What was in use stays in plenty until its program has slept for this number of its usual sleeps, and no longer than the time below.
const STAYS: u32 = 2;
/// See there.
pub const STAYS_AT_MOST: Duration = Duration::from_secs(300);
/// This number of pages in use last time, if they come back within a moment, says that the others are about to.
pub const SOME_TENS: u32 = 32;
/// See there.
pub const MOMENT: Duration = Duration::from_secs(2);
/// How soon it is looked again what else may leave, at least and at most; between them an eighth of the time slept.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
const LOOK_AGAIN_PART: u32 = 8;
const LOOK_AGAIN_AT_MOST: Duration = Duration::from_secs(60);
/// A stretch in which less than this part of what was used before is used counts as a part of the next one; no more of them follow each other.
const LIGHT_PART: u64 = 8;
const MOST_LIGHT: u8 = 3;
/// A stretch of use in which a program does not sleep.
const STRETCH: Duration = Duration::from_secs(60);

/// What page-outs of sleeping programs are decided by, apart from their sleep.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Terms {
    /// Share of a program's time that it may lose.
    pub max_slowdown: f64,
    /// What a page that leaves alone costs until it is back, and one that leaves with its whole block, in seconds.
    pub single: f64,
    /// See `single`.
    pub of_block: f64,
    /// Share of the pages in use that may come back in a minute, if that is bounded.
    pub max_promotions: Option<f64>,
}

/// A program as the driver sees it run and sleep.
#[derive(Clone, Debug)]
struct Program {
    /// Since when it has not run, and what left meanwhile.
    asleep: Option<Asleep>,
    /// How long it usually sleeps, if it ever woke: its latest sleep, or a quarter of the way to that from a longer one.
    usual: Option<Duration>,
    /// When it last woke after it had slept for long enough; the origin if it never slept.
    awake_since: Time,
    /// Since when it is known, and since when it slept for long enough for the first time, once it woke.
    began: Time,
    first_slept: Option<Time>,
    /// When the stretch of use began, how many before it used little, and whether what was used before is more than what it needed to start.
    stretch: Time,
    light: u8,
    shown: bool,
    /// Returns that are paid for.
    paid: u64,
    recent: RecentUse,
    /// Remembered pages that came back, and since when; `None` once the others were fetched.
    back: Option<(Time, u32)>,
}

#[derive(Clone, Copy, Debug)]
struct Asleep {
    since: Time,
    sent: u64,
    look_at: Time,
    /// When it is looked again where memory is short.
    look_if_short_at: Time,
}

/// Pages to be fetched ahead of their use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetch {
    /// Whose.
    pub space: SpaceId,
    /// Pages in swap, by address.
    pub ranges: Vec<Range<Vpn>>,
    /// Whether they were asked for: then they are brought back whole. Otherwise the program is on its way through them, and they are read ahead
    /// of it.
    pub asked: bool,
}

/// See the module's header.
#[derive(Clone, Debug, Default)]
pub struct Sleepers {
    programs: BTreeMap<SpaceId, Program>,
    /// Pages that should leave at once, as free memory is short by as many.
    short_by: u64,
    fetches: Vec<Fetch>,
    left: u64,
    fetched: u64,
}

impl Sleepers {
    /// Whether no driver said of any program whether it runs.
    pub fn is_unknown(&self) -> bool {
        self.programs.is_empty()
    }

    /// The program ran since it was last said to sleep.
    pub(crate) fn ran(&mut self, now: Time, space: SpaceId) {
        let program = self.programs.entry(space).or_insert_with(|| Program::new(now));
        if let Some(asleep) = program.asleep.take() {
            let slept = now.since(asleep.since);
            if slept >= LONG_ENOUGH {
                program.awake_since = now;
                program.first_slept.get_or_insert(asleep.since);
                // Long sleeps are what decides whether its memory would be back too soon: one short sleep makes little of them.
                let shrunk = program.usual.map_or(slept, |usual| usual - usual.saturating_sub(slept) / 4);
                program.usual = Some(shrunk.max(slept));
            }
            program.stretch = now;
        } else if now.since(program.stretch) >= STRETCH {
            program.recent.turn();
            program.stretch = now;
        }
    }

    /// The program has not run since then, and what it used before has been seen.
    pub(crate) fn slept(&mut self, space: SpaceId, since: Time) {
        let program = self.programs.entry(space).or_insert_with(|| Program::new(since));
        if program.asleep.is_none() {
            // A moment awake in which it used little (a timer, a signal) is no reason to forget what it needs for its work.
            let [now, before] = program.recent.counts();
            if !program.shown || now >= before / LIGHT_PART || program.light >= MOST_LIGHT {
                program.recent.turn();
                program.light = 0;
            } else {
                program.light += 1;
            }
            program.shown = program.has_shown_its_use(since);
            program.back = program.shown.then_some((since, 0));
            program.asleep = Some(Asleep {
                since,
                sent: 0,
                look_at: since + LONG_ENOUGH_IF_SHORT,
                look_if_short_at: since + LONG_ENOUGH_IF_SHORT,
            });
        }
    }

    /// Free memory is short by this number of pages; 0 is plenty.
    pub(crate) fn short_by(&mut self, pages: u64) {
        self.short_by = pages;
    }

    pub(crate) fn forget(&mut self, space: SpaceId, range: &Range<Vpn>) {
        if let Some(program) = self.programs.get_mut(&space) {
            program.recent.forget(range.clone());
        }
    }

    pub(crate) fn exited(&mut self, space: SpaceId) {
        self.programs.remove(&space);
        self.fetches.retain(|fetch| fetch.space != space);
    }

    /// Whether the program sleeps.
    pub fn is_asleep(&self, space: SpaceId) -> bool {
        self.programs.get(&space).is_some_and(|program| program.asleep.is_some())
    }

    /// How many programs sleep.
    pub fn asleep(&self) -> usize {
        self.programs.values().filter(|program| program.asleep.is_some()).count()
    }

    /// Since when it runs, but for naps; `None` while it sleeps. One of which nobody said anything always ran.
    pub fn awake_since(&self, space: SpaceId) -> Option<Time> {
        match self.programs.get(&space) {
            None => Some(Time::ZERO),
            Some(program) => program.asleep.is_none().then_some(program.awake_since),
        }
    }

    /// The pages that a program used lately; `None` where nobody said whether it runs.
    pub fn recent(&self, space: SpaceId) -> Option<&RecentUse> {
        self.programs.get(&space).map(|program| &program.recent)
    }

    /// Marks were read. Those that were not cleared since the program fell asleep for the first time tell what it used while it started. Of the others those
    /// cleared before it woke do not lie: while it slept none changed, and what it used in the stretches before is likely to be used again.
    pub(crate) fn observe(&mut self, now: Time, space: SpaceId, first: Vpn, scan: &ScanBatch<'_>) {
        let Some(program) = self.programs.get_mut(&space) else { return };
        let since = program.first_slept.unwrap_or(Time::ZERO);
        if scan.window.is_some_and(|window| window <= now.since(since)) {
            program.recent.seen(first, scan.ptes.iter().map(|pte| pte.accessed()));
        }
    }

    /// A page that Terrace had moved came back. Returns whether its return is paid for.
    pub(crate) fn came_back(&mut self, now: Time, space: SpaceId, vpn: Vpn, pages: &Pages) -> bool {
        let Some(program) = self.programs.get_mut(&space) else { return false };
        if let Some((since, count)) = program.back.as_mut().filter(|_| program.recent.has(vpn)) {
            if now.since(*since) > MOMENT {
                (*since, *count) = (now, 0);
            }
            *count += 1;
            if *count >= SOME_TENS {
                program.back = None;
                // What is fetched keeps its place in swap until it is written to. Where memory is short it comes page by page, and leaves swap.
                let ranges = match self.short_by {
                    0 => in_swap(pages, space, program.recent.pages()),
                    _ => Vec::new(),
                };
                self.fetched += length(&ranges);
                if !ranges.is_empty() {
                    self.fetches.push(Fetch { space, ranges, asked: false });
                }
            }
        }
        program.recent.used(vpn);
        program.paid > 0
    }

    /// The program is about to wake: what it used last is fetched, or all that Terrace moved where nothing is remembered.
    pub(crate) fn wake(&mut self, space: SpaceId, pages: &Pages) {
        let recent = self.programs.get(&space).map(|program| &program.recent).filter(|recent| recent.count() > 0);
        let ranges = match recent {
            Some(recent) => in_swap(pages, space, recent.pages()),
            None => {
                let blocks = pages.blocks_of(space).map(|(_, block)| block.start);
                in_swap(pages, space, blocks.flat_map(|start| (start.0..start.0 + u64::from(BLOCK_PAGES)).map(Vpn)))
            }
        };
        self.fetched += length(&ranges);
        if let Some(program) = self.programs.get_mut(&space) {
            program.back = None;
        }
        if !ranges.is_empty() {
            self.fetches.push(Fetch { space, ranges, asked: true });
        }
    }

    /// What is to be fetched ahead, since the last call.
    pub(crate) fn take_fetches(&mut self) -> Vec<Fetch> {
        std::mem::take(&mut self.fetches)
    }

    /// Pages that left because their program slept, and pages that were fetched ahead.
    pub fn moved(&self) -> [u64; 2] {
        [self.left, self.fetched]
    }

    /// Pages of a sleeping program left.
    pub(crate) fn sent(&mut self, space: SpaceId, pages: u64) {
        self.left += pages;
        self.short_by = self.short_by.saturating_sub(pages);
        if let Some(program) = self.programs.get_mut(&space) {
            program.paid += pages;
            if let Some(asleep) = &mut program.asleep {
                asleep.sent += pages;
            }
        }
    }

    /// How many of a program's returns are not paid for.
    pub(crate) fn unpaid(&mut self, space: SpaceId, returns: u64, pages: &Pages) -> u64 {
        let Some(program) = self.programs.get_mut(&space) else { return returns };
        let paid = returns.min(program.paid);
        // What has gone with its memory comes back no more.
        let out: u64 = (1..TierId::MAX).map(|tier| pages.demoted(space, TierId(tier as u8))).sum();
        program.paid = (program.paid - paid).min(out + returns);
        returns - paid
    }

    /// When it is to be looked which pages may leave; never while nobody sleeps.
    pub(crate) fn look_at(&self) -> Time {
        let of = |program: &Program| {
            let asleep = program.asleep?;
            Some(match self.short_by {
                0 => asleep.look_at.max(asleep.since + LONG_ENOUGH),
                _ => asleep.look_at.min(asleep.look_if_short_at),
            })
        };
        self.programs.values().filter_map(of).min().unwrap_or(Time::FAR_FUTURE)
    }

    /// The pages that may leave now, at most `limit`: of the programs that have slept longest first.
    pub(crate) fn leave(&mut self, now: Time, terms: &Terms, pages: &Pages, limit: usize) -> Vec<MoveRequest> {
        let mut requests = Vec::new();
        let (mut short, is_short) = (self.short_by, self.short_by > 0);
        let enough = if is_short { LONG_ENOUGH_IF_SHORT } else { LONG_ENOUGH };
        let mut due: Vec<(Time, SpaceId)> = self
            .programs
            .iter()
            .filter_map(|(space, program)| Some((program.asleep?, *space)))
            .filter(|(asleep, _)| asleep.look_at <= now || is_short && asleep.look_if_short_at <= now)
            .filter(|(asleep, _)| now.since(asleep.since) >= enough)
            .map(|(asleep, space)| (asleep.since, space))
            .collect();
        due.sort_unstable();
        let mut purses: Vec<(SpaceId, Purse)> = Vec::new();
        for (since, space) in due {
            let Some(program) = self.programs.get(&space) else { continue };
            let stays = program.usual.map_or(Duration::ZERO, |usual| (usual * STAYS).min(STAYS_AT_MOST));
            let Some(asleep) = &program.asleep else { continue };
            let slept = now.since(since);
            let purse = Purse {
                earned: if slept >= LONG_ENOUGH { terms.max_slowdown * slept.as_secs_f64() } else { 0.0 },
                has_shown_its_use: program.has_shown_its_use(since),
                used_may: slept >= stays,
                terms: *terms,
                sent: asleep.sent,
                asked: false,
                returns: terms.max_promotions.map(|share| {
                    let allowed = share * slept.as_secs_f64() / 60.0 * program.recent.count() as f64;
                    (allowed as u64).saturating_sub(length(&in_swap(pages, space, program.recent.pages())))
                }),
            };
            purses.push((space, purse));
        }
        // What nobody uses leaves first, whosever it is.
        for part in [Part::Idle, Part::Around, Part::Used] {
            for (space, purse) in &mut purses {
                let Some(program) = self.programs.get(space) else { continue };
                purse.take(pages, *space, &program.recent, part, &mut short, limit, &mut requests);
            }
        }
        // Whose turn did not come, as others filled the list, is due as before.
        let full = requests.len() >= limit;
        for (space, _) in purses.iter().filter(|(_, purse)| purse.asked || !full) {
            let Some(asleep) = self.programs.get_mut(space).and_then(|program| program.asleep.as_mut()) else {
                continue;
            };
            let slept = now.since(asleep.since);
            asleep.look_if_short_at = now + LOOK_AGAIN;
            asleep.look_at = now + (slept / LOOK_AGAIN_PART).clamp(LOOK_AGAIN, LOOK_AGAIN_AT_MOST);
        }
        requests
    }

    /// Bytes that what is remembered occupies.
    pub fn memory_bytes(&self) -> usize {
        self.programs.values().map(|program| size_of::<Program>() + program.recent.memory_bytes()).sum()
    }
}

impl Program {
    fn new(now: Time) -> Program {
        Program {
            asleep: None,
            awake_since: Time::ZERO,
            began: now,
            first_slept: None,
            stretch: now,
            light: 0,
            shown: false,
            usual: None,
            paid: 0,
            recent: RecentUse::default(),
            back: None,
        }
    }

    /// Whether what it used before it slept is more than what it needed to start.
    fn has_shown_its_use(&self, slept: Time) -> bool {
        self.usual.is_some() || slept.since(self.began) >= STRETCH
    }
}

/// Which pages of a program leave together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// Blocks of which it used nothing before it slept.
    Idle,
    /// Of the other blocks what it did not use, where what it used stays.
    Around,
    /// What is left.
    Used,
}

/// What a program's sleep pays for.
struct Purse {
    /// Seconds that it may lose.
    earned: f64,
    /// See [`Program::has_shown_its_use`].
    has_shown_its_use: bool,
    /// Whether it has slept for so long that what it used leaves in plenty, too.
    used_may: bool,
    terms: Terms,
    /// Pages that this sleep has paid for already.
    sent: u64,
    /// Whether a page of it was asked for.
    asked: bool,
    /// Pages in use that may leave, where returns are bounded.
    returns: Option<u64>,
}

impl Purse {
    /// Requests pages of this part that may leave, block by block. The `short` pages that memory is short by may leave unpaid.
    #[expect(clippy::too_many_arguments, reason = "what leaves, of whom, and three limits")]
    fn take(
        &mut self,
        pages: &Pages,
        space: SpaceId,
        recent: &RecentUse,
        part: Part,
        short: &mut u64,
        limit: usize,
        requests: &mut Vec<MoveRequest>,
    ) {
        let apart = !self.used_may;
        if part == Part::Around && !apart {
            return;
        }
        let may = |page: &Page| page.tier() == Some(TierId::FAST) && !page.moving() && !page.pinned();
        for (block, info) in pages.blocks_of(space) {
            // A block leaves whole where it can: its pages not in use go along with those that are, if it has any.
            let in_use = self.has_shown_its_use && recent.has_of_block(info.start);
            if in_use == (part == Part::Idle) || part == Part::Around && info.huge {
                continue;
            }
            let step = if info.huge { BLOCK_PAGES } else { 1 };
            let stays = |id: &PageId| part == Part::Around && recent.has(Vpn(info.start.0 + u64::from(id.offset())));
            // What came back since it sleeps it needs even so: to look whether there is something to do.
            let needed = |id: &PageId| recent.has_now(Vpn(info.start.0 + u64::from(id.offset())));
            let there = |id: &PageId| may(&pages[*id]) && !stays(id) && !needed(id);
            let leaving: Vec<PageId> = each(block, step).filter(there).collect();
            let count = leaving.len() as u64 * u64::from(step);
            let whole = count == u64::from(BLOCK_PAGES);
            let price = if whole { self.terms.of_block } else { self.terms.single };
            let already = self.sent as f64 * price;
            let affordable = match part {
                Part::Used if apart => 0,
                _ => ((self.earned - already).max(0.0) / price.max(1e-9)) as u64,
            };
            let mut most = affordable.max(*short).min(count);
            if part == Part::Used
                && let Some(returns) = &mut self.returns
            {
                most = most.min(*returns);
                *returns -= most;
            }
            if most < count {
                // The purse is empty: what comes later in the order does not go before the rest of this.
                self.earned = 0.0;
            }
            if most < u64::from(step) {
                continue;
            }
            for id in leaving.into_iter().take((most / u64::from(step)) as usize) {
                if requests.len() >= limit {
                    return;
                }
                requests.push(MoveRequest::new(id, Action::MoveTo(TierId::FAST.below()), Reason::Asleep));
                self.asked = true;
                *short = short.saturating_sub(u64::from(step));
                self.earned = (self.earned - price * f64::from(step)).max(0.0);
            }
        }
    }
}

fn each(block: BlockId, step: u32) -> impl Iterator<Item = PageId> {
    (0..BLOCK_PAGES).step_by(step as usize).map(move |offset| block.first_page().plus(offset))
}

/// Those of these pages, by address, that Terrace has moved to slower memory, as ranges.
fn in_swap(pages: &Pages, space: SpaceId, of: impl Iterator<Item = Vpn>) -> Vec<Range<Vpn>> {
    let mut ranges: Vec<Range<Vpn>> = Vec::new();
    let out = |vpn: &Vpn| {
        let page = pages.find(space, *vpn).map(|page| pages[page]);
        page.is_some_and(|page| page.demoted() && page.tier().is_some_and(|tier| tier > TierId::FAST))
    };
    for vpn in of.filter(out) {
        match ranges.last_mut() {
            Some(last) if last.end == vpn => last.end = Vpn(vpn.0 + 1),
            _ => ranges.push(vpn..Vpn(vpn.0 + 1)),
        }
    }
    ranges
}

fn length(ranges: &[Range<Vpn>]) -> u64 {
    ranges.iter().map(|range| range.end.0 - range.start.0).sum()
}

#[cfg(test)]
mod tests;
