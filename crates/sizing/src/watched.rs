//! Tapes of programs whose single accesses nobody saw: what pages did, look by look, becomes accesses that would have shown the same.
//!
//! In: which pages were accessed between two looks, or how often, and what counters say of that time. Out: tapes, as [`crate::tape`] makes them of
//! recorded accesses. Must not: know more than was seen; where that leaves a choice, it is stated and made both ways.
//!
//! From *counts* ([`Looks`]: hardware samples, or the simulator's own accesses to memory by page) accesses follow in number, and their order within a
//! look does not: they are shuffled. How many of them the threads waited for one by one follows from the time they waited for memory.
//!
//! From *marks* ([`Marks`]: accessed bits) it follows that a page was accessed in a window, and not how often. A page that was seen in `k` of its `n`
//! windows is taken to be touched at random times, `-ln(1 - k/n)` times a window, and so `r / (1 - exp(-r))` times in one in which it was seen. A
//! touch accesses at least one line and at most all 64. A page that was seen in each of its windows is touched at least `ln(2n)` times a window; at most
//! such pages share among them what the CPU time has room for. Each of these is a choice between least and most ([`Intensity`]).
//!
//! What the program computed stands before its accesses, and so does the time in which it did nothing, which the tape counts as idle: pages grow
//! old in it as they did, and it is none that could be lost.

use terrace_core::random::{SplitMix64, unit};
use terrace_core::units::PAGE_BYTES;
use terrace_machine::cache::LINE_BYTES;
use terrace_machine::load::Wait;
use terrace_machine::preset::{Channel, Machine, Tier};
use terrace_sim::record::Stored;
use terrace_sim::tuning::Counters;

use crate::sample::Sample;
use crate::tape::{Event, Tape};

/// Cache lines of a page.
const LINES: f64 = (PAGE_BYTES / LINE_BYTES) as f64;

/// What was seen of all pages, summed up.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct Profile {
    /// Windows in which marks were looked at.
    pub windows: u32,
    /// Length of a window, seconds.
    pub window_seconds: f64,
    /// Pages that were seen accessed in 0, 1, 2, ... windows.
    pub pages_by_windows: Vec<u64>,
    /// CPU seconds of the program, over all windows.
    pub cpu_seconds: f64,
    /// Threads that ran, on average, at least one.
    pub threads: f64,
}

impl Profile {
    /// Resident pages, at the last look.
    pub fn pages(&self) -> u64 {
        self.pages_by_windows.iter().sum()
    }
}

/// Accesses of a stretch of time, in no order.
struct Stretch {
    /// Pages, each as often as it is accessed.
    pages: Vec<u64>,
    /// Accesses that each of them stands for.
    stands_for: u64,
    threads: u16,
    /// What all threads together computed or idled, in cycles.
    cycles: f64,
    /// Share of the accesses that wait for the one before.
    dependent_share: f64,
}

impl Stretch {
    fn record(mut self, tape: &mut Tape, random: &mut SplitMix64) {
        for at in (1..self.pages.len()).rev() {
            self.pages.swap(at, random.below(at as u64 + 1) as usize);
        }
        tape.happened(Event::StandsFor(self.stands_for));
        let each = self.cycles / self.pages.len().max(1) as f64;
        let (mut owed, mut dependent) = (0.0, unit(random.next()));
        for (at, page) in self.pages.iter().enumerate() {
            owed += each;
            let cycles = owed.min(f64::from(u32::MAX)).floor();
            owed -= cycles;
            dependent += self.dependent_share;
            let wait = if dependent >= 1.0 { Wait::Dependent } else { Wait::Load };
            dependent -= dependent.floor();
            let thread = (at % usize::from(self.threads.max(1))) as u16;
            tape.push(Stored::new(*page, (random.next() & 63) as u8, wait, thread, cycles as u32));
        }
    }
}

/// A number of whole ones that is `mean` on average.
fn whole(mean: f64, random: &mut SplitMix64) -> u64 {
    (mean + unit(random.next())).floor() as u64
}

/// Counts of a simulated or sampled run with everything fast, as they come.
#[derive(Clone, Debug)]
pub struct Looks {
    machine: Machine,
    tapes: Vec<Tape>,
    last: Option<Counters>,
    random: SplitMix64,
}

impl Looks {
    /// Looks at a run on this machine, made into tapes of one page in `one_in` for that many groups; `None` unless it is a power of two.
    pub fn new(name: &str, machine: Machine, one_in: u32) -> Option<Looks> {
        let tapes = (0..one_in).map(|group| Sample::new(one_in, group).map(|sample| Tape::new(name, sample)));
        Some(Looks {
            machine,
            tapes: tapes.collect::<Option<Vec<_>>>().filter(|tapes| !tapes.is_empty())?,
            last: None,
            random: SplitMix64::new(1),
        })
    }

    /// A look. Of each page: how often it was accessed in memory since the look before, and nothing where it has no memory.
    pub fn look(&mut self, pages: &[Option<u32>], counters: &Counters) {
        let Some(last) = self.last.replace(*counters) else { return };
        let ran = counters.ran_nanos - last.ran_nanos;
        let accesses: f64 = pages.iter().flatten().map(|count| f64::from(*count)).sum();
        if ran <= 0.0 || accesses < 1.0 {
            return;
        }
        let all = counters.thread_nanos - last.thread_nanos;
        let waited = (counters.memory_nanos - last.memory_nanos).clamp(0.0, all);
        let processor = &self.machine.processor;
        let bytes = [0, 1].map(|way| (counters.fast_bytes[way] - last.fast_bytes[way]) as f64);
        let latency = loaded_nanos(&self.machine.tiers[0], bytes, ran);
        // What each access waited, of a whole latency: all of it, or as little as the processor overlaps.
        let (least, each) = (1.0 / processor.memory_parallelism, waited / accesses / latency);
        let dependent_share = ((each - least) / (1.0 - least).max(f64::MIN_POSITIVE)).clamp(0.0, 1.0);
        let waits = accesses * latency * (least + (1.0 - least) * dependent_share);
        let cycles = (all - waits).max(0.0) * processor.frequency_hertz / 1e9;
        let ways = self.tapes.len() as u64;
        let mut of_group: Vec<Vec<u64>> = vec![Vec::new(); self.tapes.len()];
        for (page, count) in pages.iter().enumerate() {
            let (group, place) = Sample::group_of(page as u64, ways as u32);
            of_group[group as usize].extend(std::iter::repeat_n(place, count.unwrap_or(0) as usize));
        }
        for (tape, pages) in self.tapes.iter_mut().zip(of_group) {
            let threads = (all / ran).round().clamp(1.0, f64::from(u16::MAX)) as u16;
            let cycles = cycles / ways as f64;
            Stretch { pages, stands_for: 1, threads, cycles, dependent_share }.record(tape, &mut self.random);
        }
    }

    /// The tapes so far, one for each group.
    pub fn tapes(&self) -> &[Tape] {
        &self.tapes
    }
}

/// Latency of a tier that reads and writes these bytes in `nanos`.
fn loaded_nanos(tier: &Tier, [read, written]: [f64; 2], nanos: f64) -> f64 {
    let (read, written) = (read * 1e9 / tier.read_bandwidth, written * 1e9 / tier.write_bandwidth);
    let busy = match tier.channel {
        Channel::Shared => read + written,
        Channel::Duplex => read.max(written),
    };
    tier.read_latency_ns * tier.loading.factor((busy / nanos).min(1.0))
}

/// How much is made of a mark: 0 is the least that it can mean, 1 the most, and a half the geometric mean.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Intensity(f64);

impl Intensity {
    /// What is expected where nothing else is known.
    pub const EXPECTED: Intensity = Intensity(0.5);
    /// The most that marks leave room for.
    pub const MOST: Intensity = Intensity(1.0);
    /// The least.
    pub const LEAST: Intensity = Intensity(0.0);

    fn between(self, least: f64, most: f64) -> f64 {
        least.powf(1.0 - self.0) * most.max(least).powf(self.0)
    }
}

/// A page of the sample: when it was first seen with memory, the windows in which it was accessed, one bit each, and when it was gone again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    born: u32,
    seen: Vec<u64>,
    gone: Option<u32>,
}

impl History {
    /// Of a page that has had memory since this window.
    pub const fn born(window: u32) -> History {
        History { born: window, seen: Vec::new(), gone: None }
    }

    /// It has no memory any more since this window, which is later than the one in which it was born.
    pub const fn gone(mut self, window: u32) -> History {
        self.gone = Some(window);
        self
    }

    /// Windows in which it had memory, of `windows`: at least one.
    fn lived(&self, windows: u32) -> u32 {
        self.gone.unwrap_or(windows).min(windows).saturating_sub(self.born).max(1)
    }

    /// It was accessed in this window.
    pub fn saw(&mut self, window: u32) {
        let word = window as usize / 64;
        if self.seen.len() <= word {
            self.seen.resize(word + 1, 0);
        }
        self.seen[word] |= 1 << (window % 64);
    }

    fn was_seen(&self, window: u32) -> bool {
        self.seen.get(window as usize / 64).is_some_and(|word| word >> (window % 64) & 1 == 1)
    }

    fn times(&self) -> u32 {
        self.seen.iter().map(|word| word.count_ones()).sum()
    }
}

/// Marks of a sample of a program's pages, window by window.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Marks {
    /// Pages that each of `pages` stands for; a power of two.
    pub one_in: u32,
    /// Length of a window, seconds.
    pub window_seconds: f64,
    /// CPU seconds of the program in each window.
    pub cpu_seconds: Vec<f64>,
    /// The sample's pages in the order of their addresses.
    pub pages: Vec<History>,
}

/// Why marks allow no forecast.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum NotEnough {
    /// A page that is used now and then cannot be told from one that always is.
    #[error("{seen} windows of {seconds:.1} s were seen, and it takes {LEAST_WINDOWS}: watch it for longer")]
    Windows {
        /// Windows there are.
        seen: u32,
        /// Their length.
        seconds: f64,
    },
    /// What is lost is a share of what it computes.
    #[error(
        "it computed for {0:.2} s while it was watched, and it takes {LEAST_CPU_SECONDS} s: watch it while it has work to do"
    )]
    Idle(f64),
    /// There is nothing that could be slow.
    #[error(
        "{0} of its pages were seen, and it takes {LEAST_PAGES}: it needs no advice, or was not looked at while it ran"
    )]
    Pages(usize),
}

/// The windows, the CPU time and the pages below which nothing is said: in ten windows the rate of a page that was seen in all of them is known to a
/// factor of some three; half a second is fifty ticks of the kernel's clock; and groups of 16 pages say nothing of each other.
pub const LEAST_WINDOWS: u32 = 10;
/// See [`LEAST_WINDOWS`].
pub const LEAST_CPU_SECONDS: f64 = 0.5;
/// See [`LEAST_WINDOWS`].
pub const LEAST_PAGES: usize = 16 * GROUPS as usize;

/// Groups into which the sample is parted.
pub const GROUPS: u32 = 4;
/// Accesses of a tape of marks, about, at most: more would not say more of windows of a second.
const USES: f64 = 150_000.0;
/// A tape goes on for at least so long, seconds, as if the program went on doing the same: what a policy does to begin with is
/// then not most of what is seen of it.
const LEAST_SECONDS: f64 = 60.0;
/// The most times that a tape is repeated.
const MOST_TIMES: u32 = 4;
/// Parts of a window between which rare and frequent accesses take turns.
const SLICES: usize = 4;

impl Marks {
    /// Windows that were seen.
    pub fn windows(&self) -> u32 {
        self.cpu_seconds.len() as u32
    }

    /// Whether enough was seen for a forecast.
    ///
    /// # Errors
    /// What is missing.
    pub fn enough(&self) -> Result<(), NotEnough> {
        let cpu: f64 = self.cpu_seconds.iter().sum();
        match () {
            () if self.windows() < LEAST_WINDOWS => {
                Err(NotEnough::Windows { seen: self.windows(), seconds: self.window_seconds })
            }
            () if cpu.is_nan() || cpu < LEAST_CPU_SECONDS => Err(NotEnough::Idle(cpu)),
            () if self.pages.len() < LEAST_PAGES => Err(NotEnough::Pages(self.pages.len())),
            () => Ok(()),
        }
    }

    /// The tapes of all groups, for a machine whose processor the program ran on, or one like it. Empty if nothing was seen.
    pub fn tapes(&self, name: &str, machine: &Machine, intensity: Intensity) -> Vec<Tape> {
        let cpu: f64 = self.cpu_seconds.iter().sum();
        if self.pages.is_empty() || cpu <= 0.0 || self.one_in.checked_mul(GROUPS).is_none() {
            return Vec::new();
        }
        (0..GROUPS)
            .filter_map(|group| self.tape(name, machine, intensity, group))
            .filter(|tape| !tape.is_empty())
            .collect()
    }

    fn tape(&self, name: &str, machine: &Machine, intensity: Intensity, group: u32) -> Option<Tape> {
        let sample = Sample::new(self.one_in * GROUPS, group)?;
        let mut tape = Tape::new(name, sample);
        let pages: Vec<(u64, &History)> = (0..)
            .zip(&self.pages)
            .filter_map(|(page, history)| {
                let (of, place) = Sample::group_of(page, GROUPS);
                (of == u64::from(group)).then_some((place, history))
            })
            .collect();
        let windows = self.windows();
        let processor = &machine.processor;
        let wait_nanos = machine.tiers[0].read_latency_ns / processor.memory_parallelism;
        let stands = f64::from(sample.one_in());
        let wall = f64::from(windows) * self.window_seconds;
        let threads = (self.cpu_seconds.iter().sum::<f64>() / wall).ceil().clamp(1.0, f64::from(processor.cores));
        let times = ((LEAST_SECONDS / wall).ceil() as u32).clamp(1, MOST_TIMES);
        let uses_a_window = USES / f64::from(windows * times);
        let mut random = SplitMix64::new(u64::from(group) + 1);
        tape.happened(Event::Mapped { first: 0, count: pages.last().map_or(0, |(page, _)| page + 1), file: false });
        tape.happened(Event::Fork);
        let lines = intensity.between(1.0, LINES);
        // Time for which there was no access to attach it to.
        let mut left_nanos = 0.0;
        for pass in 0..times {
            for window in 0..windows {
                // The first window of the later half.
                if pass * windows + window == windows * times / 2 {
                    tape.stands();
                }
                come_and_go(&mut tape, &pages, window, pass == 0);
                let (rare, frequent) = accessed(&pages, window, windows, pass == 0, &mut random);
                let cpu_nanos = self.cpu_seconds[window as usize] * 1e9 / stands;
                // No more accesses than the CPU time has room for, the rare ones first.
                let room = (cpu_nanos / wait_nanos - rare.len() as f64 * lines).max(0.0);
                let least = (2.0 * f64::from(windows)).ln();
                let each = intensity.between(least, room / frequent.len().max(1) as f64);
                let frequent_accesses = (each * frequent.len() as f64).min(room);
                let shown = (frequent.len() as f64).max(uses_a_window.min(frequent_accesses));
                let rounds = (shown / frequent.len().max(1) as f64).floor().max(1.0);
                let frequent_stand = (frequent_accesses / (rounds * frequent.len().max(1) as f64)).round().max(1.0);
                let rare_stand = lines.round();
                let accesses = rare.len() as f64 * rare_stand + rounds * frequent.len() as f64 * frequent_stand;
                let idle_nanos = (self.window_seconds * threads * 1e9 / stands - cpu_nanos).max(0.0);
                left_nanos += (cpu_nanos - accesses * wait_nanos).max(0.0) + idle_nanos;
                // The tape's idle time is of the clock, at full size.
                tape.idles(idle_nanos * stands / threads / 1e9);
                let uses = rare.len() as f64 + rounds * frequent.len() as f64;
                if uses < 1.0 {
                    continue;
                }
                let cycles = left_nanos * processor.frequency_hertz / 1e9;
                left_nanos = 0.0;
                let share = |count: usize| cycles * count as f64 / uses;
                for slice in 0..SLICES {
                    let part = |count: usize| count * slice / SLICES..count * (slice + 1) / SLICES;
                    let some_rare = rare[part(rare.len())].to_vec();
                    let all = part(rounds as usize * frequent.len());
                    let some_frequent = all.map(|at| frequent[at % frequent.len()]).collect();
                    for (some, stand) in [(some_rare, rare_stand), (some_frequent, frequent_stand)] {
                        if !some.is_empty() {
                            let cycles = share(some.len());
                            stretch(some, stand, threads, cycles).record(&mut tape, &mut random);
                        }
                    }
                }
            }
        }
        Some(tape)
    }
}

/// Enters the pages that went with a window, and those that came; `first` is the pass over the windows that was seen.
fn come_and_go(tape: &mut Tape, pages: &[(u64, &History)], window: u32, first: bool) {
    for (page, _) in pages.iter().filter(|(_, history)| history.gone == Some(window)) {
        tape.happened(Event::Unmapped { first: *page, count: 1 });
    }
    // A page is born by an access, whether or not a mark showed it. Which came first nobody saw: here those of lower addresses. One that
    // went is born again where the program goes on doing the same.
    let is_born = |history: &History| history.born == window && (first || history.gone.is_some());
    let mut born = pages.iter().filter(|(_, history)| is_born(history)).peekable();
    if born.peek().is_some() {
        tape.happened(Event::StandsFor(1));
    }
    for (page, _) in born {
        if !first {
            tape.happened(Event::Mapped { first: *page, count: 1, file: false });
        }
        tape.push(Stored::new(*page, 0, Wait::Load, 0, 0));
    }
}

/// The pages that were accessed in a window: those that are now and then, once for each touch, and those that are in each of their windows.
fn accessed(
    pages: &[(u64, &History)],
    window: u32,
    windows: u32,
    first: bool,
    random: &mut SplitMix64,
) -> (Vec<u64>, Vec<u64>) {
    let (mut rare, mut frequent) = (Vec::new(), Vec::new());
    for (page, history) in pages.iter().filter(|(_, history)| history.was_seen(window)) {
        let (times, lived) = (history.times(), history.lived(windows));
        if times >= lived {
            frequent.push(*page);
        // What a page was used for when it came is done once.
        } else if first || history.born != window || history.gone.is_some() {
            let rate = -(1.0 - f64::from(times) / f64::from(lived)).ln();
            let touches = whole(rate / (1.0 - (-rate).exp()), random);
            rare.extend(std::iter::repeat_n(*page, touches as usize));
        }
    }
    (rare, frequent)
}

fn stretch(pages: Vec<u64>, stands_for: f64, threads: f64, cycles: f64) -> Stretch {
    Stretch { pages, stands_for: stands_for as u64, threads: threads as u16, cycles, dependent_share: 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forecast::{Cell, NO_MIGRATION, Played, Request};
    use terrace_core::units::Bytes;
    use terrace_policies::Settings;
    use terrace_sim::{FastSize, SimConfig, SimError, Source};

    /// Forty windows of a second; of 4,096 pages, which stand for as many, each fourth is seen in every window and the rest never again.
    fn marks(cpu: f64) -> Marks {
        let history = |page: u32| {
            let mut history = History::born(0);
            history.saw(0);
            if page.is_multiple_of(4) {
                (0..40).for_each(|window| history.saw(window));
            }
            history
        };
        Marks { one_in: 1, window_seconds: 1.0, cpu_seconds: vec![cpu; 40], pages: (0..4096).map(history).collect() }
    }

    fn config(machine: &Machine) -> SimConfig {
        let mut config = SimConfig::new(machine.clone(), Bytes::mib(16), FastSize::Share(1.0));
        (config.cache, config.tlb) = (false, false);
        config
    }

    /// Half of the pages fast without moves.
    fn request() -> Request {
        Request { shares: vec![0.5], policies: vec![NO_MIGRATION.to_owned()], target: 0.05 }
    }

    fn played(machine: &Machine, tapes: &[Tape], cells: &[Cell]) -> Vec<Played> {
        let build = |name: &str| Ok::<_, SimError>(terrace_policies::build(name, Settings::default()).unwrap());
        request().play(&config(machine), tapes, cells, build).unwrap()
    }

    #[test]
    fn what_is_played_together_is_what_is_played_alone() {
        let machine = Machine::preset("cxl-pond").unwrap();
        let tapes = marks(1.0).tapes("marks", &machine, Intensity::EXPECTED);
        let parts = request().parts(&tapes, tapes.len());
        assert_eq!(parts.concat(), request().cells(tapes.len()));
        for part in &parts {
            assert!(part.len() == 2 && part.iter().all(|cell| cell.group == part[0].group), "{part:?}");
            let alone: Vec<Played> = part.iter().flat_map(|cell| played(&machine, &tapes, &[*cell])).collect();
            assert_eq!(played(&machine, &tapes, part), alone);
        }
    }

    #[test]
    fn a_tape_of_marks_takes_as_long_as_the_program_did() {
        let machine = Machine::preset("optane-6252").unwrap();
        for (cpu, intensity) in [(1.0, Intensity::LEAST), (0.5, Intensity::EXPECTED), (1.0, Intensity::MOST)] {
            let tapes = marks(cpu).tapes("marks", &machine, intensity);
            assert_eq!(tapes.len(), GROUPS as usize);
            assert_eq!(tapes.iter().map(|tape| tape.footprint().pages()).sum::<u64>(), 4096);
            for group in 0..tapes.len() {
                let played = played(&machine, &tapes, &[Cell { group, of: None }])[0];
                let seconds = played.seconds * f64::from(GROUPS);
                assert!(
                    (seconds / 40.0 - 1.0).abs() < 0.1,
                    "{cpu} {intensity:?}: the later of two passes took {seconds} s"
                );
                let idle = played.idle_seconds * f64::from(GROUPS);
                assert!((idle - 40.0 * (1.0 - cpu)).abs() < 1.0, "{cpu}: {idle} s of it idle");
            }
        }
    }

    #[test]
    fn the_more_a_mark_may_mean_the_more_slow_memory_may_cost() {
        let machine = Machine::preset("cxl-pond").unwrap();
        let loss = |intensity| {
            let tapes = marks(1.0).tapes("marks", &machine, intensity);
            let played = played(&machine, &tapes, &request().cells(1));
            played[1].seconds / played[0].seconds - 1.0
        };
        let [least, expected, most] = [Intensity::LEAST, Intensity::EXPECTED, Intensity::MOST].map(loss);
        assert!(least <= expected + 1e-3 && expected < most, "{least} {expected} {most}");
        assert!(most > 0.05, "half of what is in use all the time is slow: {most}");
    }

    #[test]
    fn what_leaves_once_at_the_start_is_no_standing_loss() {
        let machine = Machine::preset("zram-vm").unwrap();
        let request = Request { policies: vec!["age".to_owned()], ..request() };
        let tapes = marks(1.0).tapes("marks", &machine, Intensity::EXPECTED);
        let build = |name: &str| Ok::<_, SimError>(terrace_policies::build(name, Settings::default()).unwrap());
        let played = request.play(&config(&machine), &tapes, &request.cells(1), build).unwrap();
        assert!(played[1].moved_pages > 0, "{played:?}");
        let loss = played[1].seconds / played[0].seconds - 1.0;
        assert!(loss < 0.01, "three quarters are cold and half of them left in the earlier half: {loss}");
    }

    #[test]
    fn nothing_seen_makes_no_tape() {
        let machine = Machine::preset("cxl-pond").unwrap();
        assert!(Marks::default().tapes("none", &machine, Intensity::EXPECTED).is_empty());
        assert!(marks(0.0).tapes("idle", &machine, Intensity::EXPECTED).is_empty());
    }

    #[test]
    fn too_few_windows_no_work_and_no_pages_are_not_enough() {
        let enough = marks(1.0);
        assert_eq!(enough.enough(), Ok(()));
        let short = Marks { cpu_seconds: vec![1.0; 9], ..enough.clone() };
        assert_eq!(short.enough(), Err(NotEnough::Windows { seen: 9, seconds: 1.0 }));
        assert_eq!(marks(0.0).enough(), Err(NotEnough::Idle(0.0)));
        assert_eq!(
            marks(0.01).enough().unwrap_err().to_string().split(" while").next(),
            Some("it computed for 0.40 s")
        );
        let small = Marks { pages: enough.pages[..63].to_vec(), ..enough };
        assert_eq!(small.enough(), Err(NotEnough::Pages(63)));
    }

    #[test]
    fn memory_that_is_given_back_leaves_room_for_what_comes_later() {
        let machine = Machine::preset("cxl-pond").unwrap();
        let of = |born: u32, gone: Option<u32>| {
            let mut history = History::born(born);
            (born..gone.unwrap_or(40)).for_each(|window| history.saw(window));
            if let Some(window) = gone { history.gone(window) } else { history }
        };
        let mut marks = marks(1.0);
        marks.pages = vec![of(0, Some(20)); 512];
        marks.pages.extend(vec![of(20, None); 512]);
        marks.pages.extend(vec![of(0, None); 512]);
        let tapes = marks.tapes("moves on", &machine, Intensity::EXPECTED);
        // Of each group's 384 pages 128 are gone before the others come; the program goes on the same way, and then has all of them.
        for tape in &tapes {
            assert!((256..=384).contains(&tape.footprint().pages()), "{:?}", tape.footprint());
        }
        let one = Marks { cpu_seconds: vec![1.0; 60], ..marks };
        let tapes = one.tapes("moves on", &machine, Intensity::EXPECTED);
        assert!(tapes.iter().all(|tape| tape.footprint().pages() == 256), "it is not repeated");
        let played = played(&machine, &tapes, &request().cells(1));
        assert!(played.iter().all(|played| played.seconds.is_finite() && played.seconds > 0.0), "{played:?}");
    }

    #[test]
    fn a_page_born_late_is_seen_in_all_windows_it_had() {
        let machine = Machine::preset("cxl-pond").unwrap();
        let mut marks = marks(1.0);
        let mut late = History::born(30);
        (30..40).for_each(|window| late.saw(window));
        marks.pages = vec![late; 512];
        marks.pages.extend(vec![History::born(0); 512]);
        let tapes = marks.tapes("late", &machine, Intensity::MOST);
        assert!(tapes.iter().all(|tape| tape.footprint().pages() == 256));
    }
}
