//! Which of the managed programs run, and which sleep.
//!
//! In: their processor clocks. Out: [`Input::Ran`] and [`Input::Slept`] for the engine, and what a round, a reading and a list of children may leave out;
//! pages fetched ahead for those that wake. Must not: read anything of a program that sleeps but its clock, one call of less than a microsecond.
//!
//! A program sleeps when its clock stands where it stood before the latest round that read its pages: whatever it used before, that round has seen,
//! and its marks, mappings, children and faults are as they were. What the kernel does to its pages meanwhile shows when it wakes, or when they are to
//! be moved (`vetting.rs`). Memory that others use as well tells nothing of the program that sleeps: so programs whose shared memory is managed
//! always count as running. A process that shares its whole address space with another (vfork) is the other's for as long.
//!
//! A program that only looks whether there is something to do sleeps, too: an event loop with a timer, as of Python's `socketserver`, runs for some
//! 50 us twice a second. Up to [`MOMENT`] in a window is no use of its memory. What it needs for that comes back by itself and is not asked to leave
//! again; its children are listed as those of one that runs, and its figures are read every [`READ_AGAIN`].

use std::time::Duration;

use terrace_core::engine::Input;
use terrace_core::sleep::LONG_ENOUGH;
use terrace_core::units::{BLOCK_PAGES, Bytes, SpaceId, Time, Vpn};

use super::Manager;
use crate::fetch_ahead::{self, Fetched, Way};
use crate::pagemap::{Pagemap, Residence};

/// How often figures of a program that sleeps are read again all the same, as the kernel may have put some of it into swap.
const READ_AGAIN: Duration = Duration::from_secs(10);
/// A program that runs no longer than this in a window of that length sleeps.
const MOMENT: Duration = Duration::from_millis(1);
const WINDOW: Duration = Duration::from_millis(500);
/// A look that comes late, as many pages were moved, spans at most this number of windows.
const MOST_WINDOWS: u32 = 4;
/// As many pages, and such a part of them, may be elsewhere than where they are known to be.
const MOST_MISSED: u64 = 256;
const MOST_MISSED_PART: u64 = 16;
/// Half-life of the estimate of how many cores a program uses, as in the budget for watching.
const CORES_HALF_LIFE: Duration = Duration::from_secs(2);

/// What is known of a program's activity.
#[derive(Clone, Copy, Debug)]
pub(super) struct Activity {
    /// Its clock when it was last found to have run for more than a moment, and when that was.
    clock: Option<Duration>,
    still_since: Time,
    /// Its clock when the window began, and when that was; and its clock at the latest look.
    window: (Option<Duration>, Time),
    looked: Option<Duration>,
    /// Whether it slept for long until just now: the next round clears all of its marks, so that they tell what it uses from one sleep to the next. A
    /// program that is asked once a minute has one round a minute, and at a quarter of its blocks each they would tell of four.
    pub(super) woke: bool,
    /// Whether it ran for a moment since its children were listed.
    ticked: bool,
    /// Its resident memory when it fell asleep, and when its figures were last read for a moment in which it ran.
    resident_then: Bytes,
    ticks_read: Time,
    /// Its clock before the latest round that read its pages.
    round: Option<Duration>,
    pub(super) asleep: bool,
    /// Whether pages of it were moved since its figures were read.
    pub(super) touched: bool,
    pub(super) resident: Bytes,
    /// What the kernel said it has in swap, and when.
    swapped: Option<(Time, Option<Bytes>)>,
    /// When its faults were read last, and the cores it uses.
    pub(super) read: Time,
    cores: Option<f64>,
    /// Its pages in swap at that reading, those that Terrace moved there first.
    out: [u64; 2],
}

impl Activity {
    pub(super) fn new(now: Time) -> Activity {
        Activity {
            clock: None,
            still_since: now,
            window: (None, now),
            looked: None,
            woke: false,
            ticked: false,
            resident_then: Bytes::ZERO,
            ticks_read: now,
            round: None,
            asleep: false,
            touched: true,
            resident: Bytes::ZERO,
            swapped: None,
            read: now,
            cores: None,
            out: [0; 2],
        }
    }

    /// Whether its figures are as they were at the last reading.
    pub(super) fn is_unchanged(&self) -> bool {
        self.asleep && !self.touched
    }

    /// Takes its clock at a look.
    fn look(&mut self, now: Time, clock: Option<Duration>) {
        let (began, since) = self.window;
        let windows = (now.since(since).as_secs_f64() / WINDOW.as_secs_f64()).clamp(1.0, f64::from(MOST_WINDOWS));
        let moment =
            began.zip(clock).is_some_and(|(began, clock)| clock.saturating_sub(began) <= MOMENT.mul_f64(windows));
        if !moment {
            (self.clock, self.still_since) = (clock, now);
        } else if clock != self.looked {
            self.ticked = true;
            if self.asleep && now.since(self.ticks_read) >= READ_AGAIN {
                (self.touched, self.ticks_read) = (true, now);
            }
        }
        if !moment || now.since(since) >= WINDOW {
            self.window = (clock, now);
        }
        self.looked = clock;
    }

    /// Whether it is as it was when its children were listed last.
    pub(super) fn starts_nothing(&mut self) -> bool {
        self.asleep && !std::mem::take(&mut self.ticked)
    }

    /// Notes what is resident. Where a program that sleeps has grown in its moments, the next round reads what it has.
    pub(super) fn note_resident(&mut self, resident: Bytes) {
        self.resident = resident;
        let most = self.resident_then.pages() + MOST_MISSED + self.resident_then.pages() / MOST_MISSED_PART;
        if !self.asleep {
            self.resident_then = resident;
        } else if resident.pages() > most {
            self.round = None;
            self.resident_then = resident;
        }
    }

    /// Notes how long it ran in `window`, and says how many cores it uses.
    pub(super) fn uses(&mut self, window: Duration, ran: Duration) -> f64 {
        let seen = ran.as_secs_f64() / window.as_secs_f64().max(1e-3);
        let keep = 0.5f64.powf(window.as_secs_f64() / CORES_HALF_LIFE.as_secs_f64());
        let cores = self.cores.map_or(seen, |cores| cores * keep + seen * (1.0 - keep));
        self.cores = Some(cores);
        cores
    }

    /// How many of these major faults brought back what Terrace had moved: as many as are its share of what was in swap. The others brought back what
    /// the kernel had put there, or read files.
    pub(super) fn returns(&mut self, faults: u64, demoted: u64, in_swap: u64) -> u64 {
        let swapped = self.swapped.and_then(|(_, swapped)| swapped).map_or(0, Bytes::pages);
        let [before, all_before] = std::mem::replace(&mut self.out, [demoted, in_swap.max(swapped)]);
        let ours = demoted.max(before);
        let all = in_swap.max(swapped).max(all_before).max(ours);
        if ours == 0 { 0 } else { (u128::from(faults) * u128::from(ours) / u128::from(all)) as u64 }
    }

    /// What the kernel says it has in swap: as it said before, where that cannot be much else. Where that is much less than the pages known to be
    /// there, somebody else has brought some back (a debugger, `swapoff`), and the next round reads where they are.
    pub(super) fn swapped(&mut self, now: Time, known: u64, read: impl FnOnce() -> Option<Bytes>) -> Option<Bytes> {
        let before = self.swapped.filter(|(at, _)| self.is_unchanged() && now.since(*at) < READ_AGAIN);
        let (_, swapped) = *self.swapped.insert(before.unwrap_or_else(|| (now, read())));
        let missed = known.saturating_sub(swapped.map_or(known, Bytes::pages));
        if self.asleep && !self.touched && missed > MOST_MISSED + known / MOST_MISSED_PART {
            self.round = None;
        }
        swapped
    }
}

impl Manager {
    /// Whether programs that sleep are treated as such.
    pub(super) fn knows_sleep(&self) -> bool {
        self.parts.engine.knows_sleep() && self.parts.tracker.reads_page_tables() && !self.parts.ranges.shared
    }

    /// Looks at all clocks, and tells the engine who runs and who sleeps.
    pub(super) fn look_at_clocks(&mut self, now: Time) {
        let knows_sleep = self.knows_sleep();
        for (id, space) in &mut self.spaces {
            let activity = &mut space.activity;
            let clock = space.process.clock();
            let still_since = activity.still_since;
            activity.look(now, clock);
            let read = activity.round == activity.clock && activity.still_since < now;
            let slept = knows_sleep && clock.is_some() && read;
            let before = std::mem::replace(&mut activity.asleep, slept);
            if slept && !before {
                self.parts.engine.handle(now, Input::Slept(*id, activity.still_since));
            } else if !slept && (knows_sleep || before) {
                activity.woke |= before && now.since(still_since) >= LONG_ENOUGH;
                self.parts.engine.handle(now, Input::Ran(*id));
            }
        }
        self.stats.asleep = self.spaces.values().filter(|space| space.activity.asleep).count() as u32;
    }

    /// A round has read the pages of all who run.
    pub(super) fn note_round(&mut self) {
        for space in self.spaces.values_mut().filter(|space| !space.activity.asleep) {
            space.activity.round = space.activity.clock;
            space.activity.woke = false;
        }
    }

    /// Whether all programs sleep: then nothing is to be read.
    pub(super) fn is_at_rest(&self) -> bool {
        self.spaces.values().all(|space| space.activity.asleep)
    }

    /// Brings back at once what programs used when they were awake last, before they wake: of one process, or of all. All that Terrace moved where
    /// nothing is remembered. `None` if the process is not managed.
    pub fn wake(&mut self, pid: Option<u32>) -> Option<Fetched> {
        let meant = self.spaces.iter().filter(|(_, space)| pid.is_none_or(|pid| space.process.pid() == pid));
        let meant: Vec<SpaceId> = meant.map(|(id, _)| *id).collect();
        if meant.is_empty() && pid.is_some() {
            return None;
        }
        let now = self.now();
        meant.into_iter().for_each(|id| self.parts.engine.handle(now, Input::Wake(id)));
        Some(self.fetch_ahead())
    }

    /// Fetches what the engine wants to be there before it is used.
    pub(super) fn fetch_ahead(&mut self) -> Fetched {
        let mut sum = Fetched::default();
        for fetch in self.parts.engine.fetches() {
            let tried = fetch.asked || !self.held && self.fetch_worth.is_tried(self.now());
            let Some(space) = self.spaces.get(&fetch.space).filter(|_| tried) else { continue };
            let way = if fetch.asked { Way::Mapped } else { Way::Advised };
            let pid = space.process.pid();
            match fetch_ahead::fetch(&space.process, &fetch.ranges, way) {
                Ok(fetched) => {
                    tracing::debug!(pid, pages = fetched.pages, took = ?fetched.took, ?way, "fetched ahead");
                    sum = Fetched { pages: sum.pages + fetched.pages, took: sum.took + fetched.took };
                    self.stats.fetched_ahead += fetched.pages;
                    if fetch.asked {
                        self.note_fetched(fetch.space, &fetch.ranges);
                    } else {
                        self.fetch_worth.found(self.now(), &fetched, self.parts.move_cost.refault);
                    }
                }
                // It goes on by faults of its own.
                Err(error) => tracing::warn!(pid, %error, "what it used last is not fetched ahead"),
            }
        }
        sum
    }

    /// Tells the engine which pages of these are in memory now.
    fn note_fetched(&mut self, id: SpaceId, ranges: &[std::ops::Range<Vpn>]) {
        let now = self.now();
        let Some(space) = self.spaces.get_mut(&id) else { return };
        space.activity.touched = true;
        // A process that ended meanwhile has nothing in memory.
        let Ok(mut pagemap) = Pagemap::of_process(&space.process) else { return };
        let mut places = Vec::new();
        for range in ranges {
            for first in (range.start.0..range.end.0).step_by(BLOCK_PAGES as usize).map(Vpn) {
                places.clear();
                places.resize((range.end.0 - first.0).min(u64::from(BLOCK_PAGES)) as usize, Residence::Absent);
                if pagemap.residences(first, &mut places).is_err() {
                    return;
                }
                let is_there = |place: &Residence| matches!(place, Residence::Present | Residence::PresentHuge);
                let there: Vec<Vpn> = (first.0..)
                    .map(Vpn)
                    .zip(&places)
                    .filter(|(_, place)| is_there(place))
                    .map(|(vpn, _)| vpn)
                    .collect();
                for run in there.chunk_by(|one, next| one.0 + 1 == next.0) {
                    let run = run[0]..Vpn(run[run.len() - 1].0 + 1);
                    self.slots.left(id, run.clone());
                    self.parts.engine.handle(now, Input::Fetched(id, run));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_swapped_out_and_what_was_read_from_files_is_no_return_of_ours() {
        let mut activity = Activity::new(Time::ZERO);
        assert_eq!(activity.returns(1000, 0, 0), 0, "files");
        assert_eq!(activity.returns(1000, 0, 500), 0, "the kernel's");
        assert_eq!(activity.returns(100, 250, 1000), 25, "a quarter of what is out is ours");
        // All came back before the faults were read, and the engine knows already.
        assert_eq!(activity.returns(1000, 0, 0), 250);
        assert_eq!(activity.returns(1000, 0, 0), 0);
        // The kernel has put out more than any round has seen.
        activity.swapped(Time::ZERO, 1000, || Some(Bytes::of_pages(4000)));
        assert_eq!(activity.returns(400, 1000, 1000), 100);
    }

    #[test]
    fn figures_of_a_program_that_sleeps_are_read_again_when_it_was_touched_or_after_a_while() {
        let at = |second: u64| Time::ZERO + Duration::from_secs(100 + second);
        let mut activity = Activity::new(at(0));
        let read = |activity: &mut Activity, second, says| activity.swapped(at(second), 0, || Some(Bytes::mib(says)));
        assert_eq!(read(&mut activity, 0, 1), Some(Bytes::mib(1)));
        assert_eq!(read(&mut activity, 1, 2), Some(Bytes::mib(2)), "it runs");
        (activity.asleep, activity.touched) = (true, false);
        assert_eq!(read(&mut activity, 2, 3), Some(Bytes::mib(2)));
        activity.touched = true;
        assert_eq!(read(&mut activity, 3, 4), Some(Bytes::mib(4)));
        activity.touched = false;
        assert_eq!(read(&mut activity, 12, 5), Some(Bytes::mib(4)));
        assert_eq!(read(&mut activity, 14, 5), Some(Bytes::mib(5)));
    }

    #[test]
    fn a_program_that_looks_twice_a_second_whether_there_is_something_to_do_sleeps() {
        let at = |millis: u64| Time::ZERO + Duration::from_millis(100_000 + millis);
        let mut activity = Activity::new(at(0));
        let mut ran = Duration::from_secs(7);
        activity.look(at(0), Some(ran));
        assert_eq!(activity.still_since, at(0));
        for look in 1..100 {
            ran += Duration::from_micros(100);
            activity.look(at(250 * look), Some(ran));
        }
        assert_eq!((activity.still_since, activity.clock), (at(0), Some(Duration::from_secs(7))));
        activity.asleep = true;
        assert!(!activity.starts_nothing(), "a moment is enough for a fork");
        assert!(activity.starts_nothing());
        // A request of two milliseconds is none, and neither are many moments in one window.
        ran += Duration::from_millis(2);
        activity.look(at(25_000), Some(ran));
        assert_eq!((activity.still_since, activity.clock), (at(25_000), Some(ran)));
        for look in 1..10 {
            ran += Duration::from_micros(300);
            activity.look(at(25_000 + 40 * look), Some(ran));
        }
        assert!(activity.still_since > at(25_000));
        // Two seconds without a look are four windows, and ten are no more.
        let began = activity.still_since;
        activity.look(began + Duration::from_secs(1), Some(ran));
        ran += Duration::from_millis(3);
        activity.look(began + Duration::from_secs(3), Some(ran));
        assert_eq!(activity.still_since, began);
        ran += Duration::from_millis(5);
        activity.look(began + Duration::from_secs(13), Some(ran));
        assert_eq!(activity.still_since, began + Duration::from_secs(13));
    }

    #[test]
    fn a_program_that_grows_while_it_sleeps_is_read_again() {
        let mut activity = Activity { round: Some(Duration::ZERO), ..Activity::new(Time::ZERO) };
        activity.note_resident(Bytes::mib(100));
        activity.asleep = true;
        activity.note_resident(Bytes::mib(106));
        assert!(activity.round.is_some());
        activity.note_resident(Bytes::mib(110));
        assert!(activity.round.is_none());
    }

    #[test]
    fn a_program_that_sleeps_is_read_again_where_others_brought_its_pages_back() {
        let at = |second: u64| Time::ZERO + Duration::from_secs(100 + second);
        let mut activity =
            Activity { round: Some(Duration::ZERO), asleep: true, touched: false, ..Activity::new(at(0)) };
        activity.swapped(at(0), 10_000, || Some(Bytes::of_pages(9_500)));
        assert!(activity.round.is_some(), "a few may be in the swap cache");
        activity.swapped(at(5), 10_000, || unreachable!("it was read a moment ago"));
        activity.swapped(at(11), 10_000, || Some(Bytes::of_pages(4_000)));
        assert!(activity.round.is_none());
    }
}
