//! The whole machine at a glance: which programs hold memory that nobody uses, and what Terrace would give back of it.
//!
//! In: every process that may be read, cgroups, the tracker of accessed bits. Out: [`Look`]s. Must not: move a page, change anything, keep what it read of a
//! program's memory, or use more processor time than its budget.
//!
//! A part of each program's blocks stands for all, chosen by a hash of their address; small programs are watched whole. Their accessed bits are read and
//! cleared in turn, program by program, as far as the budget goes: where it is short, rounds come later, and what is idle is seen later, never wrongly.
//! [`Survey::step`] does one piece of that, a millisecond or so, and says when the next is due; who calls it may draw a screen meanwhile.
//!
//! `programs` lists processes, `groups` says to which row each belongs, `ages` how long its pages were idle, `contents` how they compress, `estimate` what
//! would come back, `look` puts the rows together.

mod ages;
mod contents;
mod estimate;
mod groups;
mod look;
mod programs;
pub mod view;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use terrace_core::observation::PteState;
use terrace_core::units::{BLOCK_PAGES, Bytes, SpaceId, Time, Vpn};

use self::ages::{Ages, Figures};
use self::contents::{Contents, Reader};
pub use self::estimate::MAX_SLOWDOWN;
use self::look::RowFacts;
use self::programs::Listed;
pub use self::view::Look;
use crate::cgroup_charges::Charges;
use crate::pagemap::Pagemap;
use crate::process::{MemoryRange, Process, ProcessError, RangeOptions, Refuses};
use crate::topology::TierMap;
use crate::trackers::accessed_bits::AccessedBits;
use crate::trackers::rotation::{place_on_circle, points};
use crate::trackers::{Event, Round, Sink, Target, TrackError, Tracker};
use crate::usage::thread_cpu;
use crate::zram::has_pids_of_machine;

/// Share of one core that a survey uses; the rest of its 1 % is for who shows it.
const SHARE: f64 = 0.0075;
/// As much may be spent at the start as in this time: finding the page tables, clearing everything once.
const AHEAD: Duration = Duration::from_secs(60);
/// How often the processes are listed.
const LIST_EVERY: Duration = Duration::from_secs(10);
/// How often it is looked what a program has mapped.
const PLAN_EVERY: Duration = Duration::from_secs(30);
/// Rounds of a program follow each other so; of one that uses most of its memory up to the second.
const INTERVAL: Duration = Duration::from_secs(5);
const LONGEST_INTERVAL: Duration = Duration::from_secs(20);
/// What cold pages hold is looked at first after this time, and again after the second.
const CONTENTS_AFTER: Duration = Duration::from_secs(16);
const CONTENTS_EVERY: Duration = Duration::from_secs(60);
/// Programs with less anonymous memory are not watched, and no more programs than this.
const LEAST: Bytes = Bytes::mib(4);
const MOST_PROGRAMS: usize = 400;
/// Blocks that are watched in all: 8 GiB, whose bits are cleared in a fifth of a second.
const MOST_BLOCKS: u64 = 4096;
/// Blocks that are tried for memory behind them at each look at the mappings.
const MOST_TRIED: u64 = 32_768;

/// What is asked for.
#[derive(Clone, Copy, Debug, Default)]
pub struct SurveyOptions {
    /// A row a program, whatever cgroups there are.
    pub by_program: bool,
}

/// See the module's header.
pub struct Survey {
    options: SurveyOptions,
    tracker: Option<AccessedBits>,
    blind: Option<String>,
    tiers: TierMap,
    origin: Instant,
    /// Processor time that this thread had used before.
    used_before: f64,
    /// Processes that somebody else watches, and who.
    others: BTreeMap<u32, String>,
    /// Processes that are not to be watched because the caller does, and its word for that.
    taken: (BTreeSet<u32>, String),
    known: BTreeMap<u32, Known>,
    next_space: u32,
    list_at: Time,
    listed_at: Time,
    /// When all that was found first had been cleared once.
    ready: Option<Time>,
    reader: Reader,
    charges: Charges,
    in_container: bool,
    /// The cgroups of the first process of this container.
    base: Option<String>,
    passwd: String,
    rows: BTreeMap<groups::Group, RowFacts>,
}

/// A process of the list.
struct Known {
    listed: Listed,
    /// Processors that it keeps busy.
    cores: f64,
    watch: Option<Watch>,
    /// Why it is not watched.
    refusal: Option<String>,
}

/// A process that is watched.
struct Watch {
    process: Process,
    space: SpaceId,
    ages: Ages,
    figures: Figures,
    /// The sampled parts of its memory, by address.
    sampled: Vec<MemoryRange>,
    /// Blocks that it may have in the sample.
    blocks: u64,
    /// Whether all of its blocks are sampled.
    whole: bool,
    /// Pages of all ranges that may be managed.
    eligible: u64,
    planned: Option<Time>,
    scan_at: Time,
    scanned: Option<Time>,
    interval: Duration,
    contents: Option<Contents>,
    contents_at: Time,
}

/// What is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    Scan(u32),
    Contents(u32),
}

impl Survey {
    /// Lists the processes and makes the tracker ready. Where that cannot be had, a survey shows how much memory there is, and [`Survey::blind`] says why no more.
    pub fn open(options: SurveyOptions) -> Survey {
        let origin = Instant::now();
        let used_before = own_seconds();
        let (tracker, blind) = match AccessedBits::open() {
            Ok(tracker) => (Some(tracker), None),
            Err(error) => (None, Some(error.to_string())),
        };
        let in_container = !has_pids_of_machine();
        Survey {
            options,
            tracker,
            blind,
            tiers: TierMap::new(Vec::new(), Vec::new()),
            origin,
            used_before,
            others: BTreeMap::new(),
            taken: (BTreeSet::new(), String::new()),
            known: BTreeMap::new(),
            next_space: 0,
            list_at: Time::ZERO,
            listed_at: Time::ZERO,
            ready: None,
            reader: Reader::new(),
            charges: Charges::find(std::path::Path::new("/")),
            in_container,
            base: in_container.then(|| std::fs::read_to_string("/proc/1/cgroup").unwrap_or_default()),
            passwd: std::fs::read_to_string("/etc/passwd").unwrap_or_default(),
            rows: BTreeMap::new(),
        }
    }

    /// Why idle memory cannot be seen, if it cannot.
    pub fn blind(&self) -> Option<&str> {
        self.blind.as_deref()
    }

    /// For how long all that was there at the start has been watched; `None` until it is.
    pub fn watched(&self) -> Option<Duration> {
        self.ready.map(|ready| self.now().since(ready))
    }

    /// From the next list on these are not watched: who asks does, and two must not clear the marks of one program.
    pub fn leave_to(&mut self, who: &str, pids: BTreeSet<u32>) {
        self.taken = (pids, who.to_owned());
    }

    /// Does the next piece of work, if it is due and can be paid for. Returns how long there is nothing to do then.
    pub fn step(&mut self) -> Duration {
        let now = self.now();
        let wait = self.unpaid(now);
        // The first list is what everything else is about.
        if wait > Duration::ZERO && !self.known.is_empty() {
            return wait;
        }
        if now >= self.list_at {
            self.list(now);
            return Duration::ZERO;
        }
        match self.next_work() {
            Some((at, work)) if at <= now => {
                self.carry_out(work);
                Duration::ZERO
            }
            Some((at, _)) => at.min(self.list_at).since(now),
            None => self.list_at.since(now),
        }
    }

    /// Looks at everything once more, so that the figures are of now: what was read a moment before the end would be a moment short of the idle time that is
    /// shown. Not paced: it is a round, and what it costs was set aside.
    pub fn finish(&mut self) {
        let scans: Vec<u32> = self.watched_pids(|_| true);
        scans.into_iter().for_each(|pid| self.carry_out(Work::Scan(pid)));
        let unread: Vec<u32> = self.watched_pids(|watch| watch.contents.is_none() && watch.wants_contents());
        unread.into_iter().for_each(|pid| self.carry_out(Work::Contents(pid)));
    }

    fn watched_pids(&self, which: impl Fn(&Watch) -> bool) -> Vec<u32> {
        let watches = self.known.iter().filter_map(|(pid, known)| Some((*pid, known.watch.as_ref()?)));
        watches.filter(|(_, watch)| which(watch)).map(|(pid, _)| pid).collect()
    }

    fn now(&self) -> Time {
        Time::from_nanos(self.origin.elapsed().as_nanos() as u64)
    }

    /// How long to wait until what was used so far is within the budget. A start may use what comes in later.
    fn unpaid(&self, now: Time) -> Duration {
        over_budget(now.as_secs_f64(), own_seconds() - self.used_before, AHEAD)
    }

    /// Lists the processes, and says who is watched.
    fn list(&mut self, now: Time) {
        let began = own_seconds();
        let elapsed = now.since(self.listed_at).as_secs_f64();
        let first = self.known.is_empty();
        let known = |pid: u32, start_time: u64| {
            self.known.get(&pid).map(|known| &known.listed).filter(|listed| listed.start_time == start_time).cloned()
        };
        let listed = programs::list(known);
        let mut before = std::mem::take(&mut self.known);
        for listed in listed {
            let same = before.remove(&listed.member.pid);
            let (same, other) = match same {
                Some(known) if known.listed.start_time == listed.start_time => (Some(known), None),
                other => (None, other),
            };
            self.forget(other);
            let known = match same {
                Some(known) => {
                    let ticks = listed.ticks.saturating_sub(known.listed.ticks) as f64;
                    let cores = if elapsed > 0.0 { ticks / ticks_per_second() / elapsed } else { 0.0 };
                    Known { listed, cores, ..known }
                }
                None => Known { listed, cores: 0.0, watch: None, refusal: None },
            };
            self.known.insert(known.listed.member.pid, known);
        }
        before.into_values().for_each(|known| self.forget(Some(known)));
        if self.tracker.is_some() {
            self.choose_whom();
        }
        tracing::debug!(took = own_seconds() - began, "listed");
        self.listed_at = now;
        self.list_at = self.now() + LIST_EVERY;
        if first {
            self.note_ready();
        }
    }

    fn forget(&mut self, known: Option<Known>) {
        if let (Some(watch), Some(tracker)) = (known.and_then(|known| known.watch), &mut self.tracker) {
            tracker.forget(watch.space);
        }
    }

    /// Who is watched, and how many blocks of each: the larger programs, each with as many as any other, or all it has.
    fn choose_whom(&mut self) {
        let mut sizes: Vec<(Bytes, u32)> = Vec::new();
        let names = self.known.iter().map(|(pid, known)| (*pid, known.listed.member.name.as_str()));
        self.others = programs::watched_by_others(std::path::Path::new("/proc"), names);
        for (pid, known) in &mut self.known {
            let by = if self.taken.0.contains(pid) { Some(&self.taken.1) } else { self.others.get(pid) };
            if let Some(by) = by {
                known.refusal = Some(format!("{by} watches already: two must not clear the marks of one program"));
            } else if known.listed.kvm {
                known.refusal = Some(
                    "a virtual machine under KVM: what its guest uses is marked in tables of the processor's own"
                        .to_owned(),
                );
            } else if known.listed.anonymous >= LEAST {
                sizes.push((known.listed.anonymous, *pid));
            }
        }
        sizes.sort_unstable_by_key(|(size, pid)| (std::cmp::Reverse(*size), *pid));
        let chosen: BTreeSet<u32> = sizes.iter().take(MOST_PROGRAMS).map(|(_, pid)| *pid).collect();
        let blocks: Vec<u64> = sizes.iter().take(MOST_PROGRAMS).map(|(size, _)| blocks_of(*size)).collect();
        let most = level(&blocks, MOST_BLOCKS);
        let left: Vec<u32> = self.watched_pids(|_| true).into_iter().filter(|pid| !chosen.contains(pid)).collect();
        for pid in left {
            let watch = self.known.get_mut(&pid).and_then(|known| known.watch.take());
            if let (Some(watch), Some(tracker)) = (watch, &mut self.tracker) {
                tracker.forget(watch.space);
            }
        }
        for pid in chosen {
            let space = SpaceId(self.next_space);
            let now = self.now();
            let Some(known) = self.known.get_mut(&pid) else { continue };
            match &mut known.watch {
                Some(watch) => watch.blocks = most,
                None => match Process::open(pid) {
                    Ok(process) if process.start_time() == known.listed.start_time => {
                        known.watch = Some(Watch::new(process, space, most, now));
                        known.refusal = None;
                        self.next_space += 1;
                    }
                    Ok(_) | Err(ProcessError::Gone { .. }) => {}
                    Err(error) => known.refusal = Some(reason(&error)),
                },
            }
        }
    }

    fn next_work(&self) -> Option<(Time, Work)> {
        let watches = self.known.iter().filter_map(|(pid, known)| Some((*pid, known.watch.as_ref()?)));
        let due = watches.flat_map(|(pid, watch)| {
            let contents = watch.wants_contents().then_some((watch.contents_at, Work::Contents(pid)));
            [Some((watch.scan_at, Work::Scan(pid))), contents].into_iter().flatten()
        });
        due.min_by_key(|(at, _)| *at)
    }

    fn carry_out(&mut self, work: Work) {
        let began = own_seconds();
        match work {
            Work::Scan(pid) => self.scan(pid),
            Work::Contents(pid) => self.look_into(pid),
        }
        tracing::debug!(?work, took = own_seconds() - began, "done");
    }

    /// One round of a program.
    fn scan(&mut self, pid: u32) {
        let now = self.now();
        let (Some(known), Some(tracker)) = (self.known.get_mut(&pid), &mut self.tracker) else { return };
        if self.taken.0.contains(&pid) {
            // It was taken up since the last list, which will say by whom.
            if let Some(watch) = known.watch.take() {
                tracker.forget(watch.space);
            }
            return;
        }
        let Some(watch) = &mut known.watch else { return };
        let plans = watch.planned.is_none_or(|at| now.since(at) >= PLAN_EVERY);
        let planned = if plans { watch.plan(now) } else { Ok(()) };
        let scanned = planned.and_then(|()| {
            let mut seen = Seen { ages: &mut watch.ages, now, pages: 0, accessed: 0 };
            let target = Target { space: watch.space, process: &watch.process, ranges: &watch.sampled };
            let round = Round::of_all(now, std::slice::from_ref(&target), &self.tiers);
            let result = tracker.scan(&round, &mut seen);
            let used = seen.pages > 0 && seen.accessed * 2 > seen.pages;
            result.map(|()| used).map_err(|error| reason(&error))
        });
        match scanned {
            Ok(used) => {
                if plans {
                    watch.narrow();
                }
                watch.figures = watch.ages.figures();
                if watch.whole {
                    watch.eligible = watch.figures.present;
                }
                watch.interval = if used { (watch.interval * 2).min(LONGEST_INTERVAL) } else { INTERVAL };
                watch.scanned = Some(now);
                watch.scan_at = now + watch.interval;
            }
            Err(why) => {
                tracker.forget(watch.space);
                // A process that ends just now is no refusal; the next list is without it.
                known.refusal = watch.process.is_alive().then_some(why);
                known.watch = None;
            }
        }
        if self.ready.is_none() {
            self.note_ready();
        }
    }

    fn note_ready(&mut self) {
        let all = self.watched_pids(|watch| watch.scanned.is_none()).is_empty();
        if all && self.tracker.is_some() {
            self.ready = Some(self.now());
        }
    }

    /// Looks into some cold pages of a program.
    fn look_into(&mut self, pid: u32) {
        let now = self.now();
        let Some(known) = self.known.get_mut(&pid) else { return };
        let Some(watch) = &mut known.watch else { return };
        watch.contents_at = now + CONTENTS_EVERY;
        if !contents::may_be_read(std::path::Path::new("/proc"), pid, known.listed.user) {
            watch.contents = None;
            return;
        }
        // What it has locked since the last look at its ranges is not to be read.
        if watch.plan(now).is_err() {
            return;
        }
        watch.narrow();
        let inside = |page: &Vpn| watch.sampled.iter().any(|range| (range.start..range.end).contains(page));
        let chosen: Vec<Vec<Vpn>> = watch
            .ages
            .cold_pages(contents::BLOCKS, contents::PAGES)
            .into_iter()
            .map(|pages| pages.into_iter().filter(inside).collect::<Vec<Vpn>>())
            .filter(|pages| !pages.is_empty())
            .collect();
        if let Some(found) = self.reader.look(pid, &chosen) {
            watch.contents = Some(found);
        }
    }

    /// What is known now.
    pub fn look(&mut self) -> Look {
        look::look(self)
    }
}

impl Watch {
    fn new(process: Process, space: SpaceId, blocks: u64, now: Time) -> Watch {
        Watch {
            process,
            space,
            ages: Ages::default(),
            figures: Figures::default(),
            sampled: Vec::new(),
            blocks,
            whole: false,
            eligible: 0,
            planned: None,
            scan_at: now,
            scanned: None,
            interval: INTERVAL,
            contents: None,
            contents_at: now + CONTENTS_AFTER,
        }
    }

    /// Whether enough of it is cold to be looked into.
    fn wants_contents(&self) -> bool {
        self.figures.cold[0] * self.eligible >= 256 * self.figures.present.max(1)
    }

    /// Chooses the sample again: what is mapped may have changed.
    fn plan(&mut self, now: Time) -> Result<(), String> {
        self.planned = Some(now);
        let ranges =
            self.process.ranges_where(RangeOptions::default(), Refuses::Nobody).map_err(|error| reason(&error))?;
        if self.process.seen_by() != self.process.pid() {
            return Err("its first thread has ended: no call reaches its memory".to_owned());
        }
        let mut pagemap = Pagemap::open(self.process.pid()).map_err(|error| match error.raw_os_error() {
            Some(libc::EACCES | libc::EPERM) => NO_RIGHTS.to_owned(),
            _ => error.to_string(),
        })?;
        let (mut peopled, mut blocks, mut tried) = (Vec::new(), 0, 0);
        self.eligible = 0;
        for range in ranges {
            let present = pagemap.count(range.start, range.end).map_or(0, |count| count.present_pages);
            if present > 0 {
                let here = blocks_between(range);
                self.eligible += present;
                blocks += here.min(present);
                tried += here;
                peopled.push(range);
            }
        }
        let share = share(self.blocks, blocks).min(share(MOST_TRIED, tried));
        self.whole = share >= 1.0;
        self.sampled = sample(&peopled, |block| place_on_circle(block) < points(share));
        let chosen: BTreeSet<u64> = self.sampled.iter().flat_map(|range| numbers(*range)).collect();
        self.ages.keep(&chosen);
        Ok(())
    }

    /// Leaves out blocks of the sample with nothing in them, until it is chosen again.
    fn narrow(&mut self) {
        let peopled = self.ages.peopled();
        self.sampled = sample(&self.sampled, |block| peopled.contains(&block));
    }
}

/// How long to wait until `used` seconds of processor time are within the budget, `elapsed` seconds after the start, if what comes in over `ahead` may be spent at once.
fn over_budget(elapsed: f64, used: f64, ahead: Duration) -> Duration {
    let allowed = SHARE * (ahead.as_secs_f64() + elapsed / 2.0).max(elapsed);
    match used - allowed {
        // Half of what is earned goes to what was spent ahead: then it takes twice as long.
        over if over > 0.0 => Duration::from_secs_f64((2.0 * over / SHARE).clamp(0.005, 1.0)),
        _ => Duration::ZERO,
    }
}

/// As much of each as all may have, so that together they are `most`: the level of water poured over them.
fn level(blocks: &[u64], most: u64) -> u64 {
    let mut sorted = blocks.to_vec();
    sorted.sort_unstable();
    let mut left = most;
    for (at, blocks) in sorted.iter().enumerate() {
        let each = left / (sorted.len() - at) as u64;
        if *blocks > each {
            return each.max(1);
        }
        left -= blocks;
    }
    sorted.last().copied().unwrap_or(0).max(1) * 4
}

/// The share of `all` that `some` are; all of it where there are no more.
fn share(some: u64, all: u64) -> f64 {
    if all <= some { 1.0 } else { some as f64 / all as f64 }
}

/// The blocks that memory of this size takes, a half more for what is not filled.
fn blocks_of(size: Bytes) -> u64 {
    size.pages().div_ceil(u64::from(BLOCK_PAGES)) * 3 / 2
}

fn numbers(range: MemoryRange) -> std::ops::RangeInclusive<u64> {
    range.start.0 / u64::from(BLOCK_PAGES)..=(range.end.0 - 1) / u64::from(BLOCK_PAGES)
}

fn blocks_between(range: MemoryRange) -> u64 {
    let numbers = numbers(range);
    numbers.end() - numbers.start() + 1
}

/// The parts of these ranges in blocks of this kind, neighbours as one.
fn sample(ranges: &[MemoryRange], chosen: impl Fn(u64) -> bool) -> Vec<MemoryRange> {
    let mut parts: Vec<MemoryRange> = Vec::new();
    for range in ranges {
        for block in numbers(*range).filter(|block| chosen(*block)) {
            let first = block * u64::from(BLOCK_PAGES);
            let start = range.start.max(Vpn(first));
            let end = range.end.min(Vpn(first + u64::from(BLOCK_PAGES)));
            match parts.last_mut() {
                Some(last) if last.end == start && last.backing == range.backing => last.end = end,
                _ => parts.push(MemoryRange { start, end, backing: range.backing }),
            }
        }
    }
    parts
}

const NO_RIGHTS: &str = "whose memory this user may not look into: root may, or who has CAP_SYS_PTRACE";

/// Why a process is not watched, without its pid: such reasons are counted.
fn reason(error: &(impl std::error::Error + 'static)) -> String {
    let error: &(dyn std::error::Error + 'static) = error;
    match (error.downcast_ref::<ProcessError>(), error.downcast_ref::<TrackError>()) {
        (Some(ProcessError::NotPermitted { .. }), _) => NO_RIGHTS.to_owned(),
        (Some(ProcessError::Gone { .. }), _) | (_, Some(TrackError::Gone { .. })) => "it is gone".to_owned(),
        _ => error.to_string(),
    }
}

/// Processor time of this thread so far, on which a survey does all of its work: of a command that is all there is.
fn own_seconds() -> f64 {
    thread_cpu().as_secs_f64()
}

/// Clock ticks a second.
fn ticks_per_second() -> f64 {
    rustix::param::clock_ticks_per_second() as f64
}

/// Takes what the tracker sees into the ages.
struct Seen<'a> {
    ages: &'a mut Ages,
    now: Time,
    pages: u64,
    accessed: u64,
}

impl Sink for Seen<'_> {
    fn scan(&mut self, _: SpaceId, first: Vpn, ptes: &[PteState], window: Option<Duration>, _: bool) {
        self.pages += ptes.iter().filter(|pte| pte.tier().is_some()).count() as u64;
        if window.is_some() {
            self.accessed += ptes.iter().filter(|pte| pte.accessed()).count() as u64;
        }
        self.ages.take_in(self.now, first, ptes, window);
    }

    fn event(&mut self, _: SpaceId, _: Vpn, _: Event) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Backing;

    fn range(start: u64, end: u64) -> MemoryRange {
        MemoryRange { start: Vpn(start), end: Vpn(end), backing: Backing::Anonymous }
    }

    #[test]
    fn a_sample_has_whole_blocks_as_far_as_they_are_mapped() {
        let all = [range(100, 1100), range(1100, 1200), range(5000, 5100)];
        assert_eq!(sample(&all, |_| true), [range(100, 1200), range(5000, 5100)]);
        assert_eq!(sample(&all, |block| block == 1), [range(512, 1024)]);
        assert_eq!(sample(&all, |block| block % 2 == 0), [range(100, 512), range(1024, 1200)]);
        assert_eq!(blocks_between(range(511, 513)), 2);
    }

    #[test]
    fn small_programs_are_watched_whole_and_large_ones_alike() {
        assert_eq!(level(&[10, 20, 30], 100), 120, "room for growth");
        assert_eq!(level(&[10, 1000, 2000], 110), 50);
        assert_eq!(level(&[1000; 4], 400), 100);
        assert_eq!(level(&[], 400), 4);
    }

    #[test]
    fn work_waits_until_it_is_paid_for() {
        let ahead = Duration::from_secs(60);
        assert_eq!(over_budget(0.0, 60.0 * SHARE - 0.001, ahead), Duration::ZERO);
        assert!(over_budget(0.0, 60.0 * SHARE + 0.01, ahead) > Duration::from_millis(500));
        // From twice the time ahead on it is the share itself.
        assert_eq!(over_budget(240.0, 240.0 * SHARE - 0.001, ahead), Duration::ZERO);
        assert!(over_budget(240.0, 240.0 * SHARE + 0.001, ahead) > Duration::ZERO);
    }

    /// A survey of this machine with what this process may see. Says something where there is eBPF.
    #[test]
    fn a_survey_finds_programs_and_says_what_it_could_not_see() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let mut survey = Survey::open(SurveyOptions { by_program: true });
        survey.step();
        let look = survey.look();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(look.rows.iter().any(|row| row.pids == [child.id()]), "{look:?}");
        assert!(look.memory.total_bytes > 0 && look.unseen.iter().any(|one| one.what.contains("kernel")), "{look:?}");
        if let Some(why) = survey.blind() {
            println!("SKIPPED what is watched: {why}");
            assert!(look.rows.iter().all(|row| row.gives_back_bytes.is_none()));
        }
    }
}
