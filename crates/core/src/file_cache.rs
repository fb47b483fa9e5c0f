//! The file cache of a cgroup: how much of it to ask back now, and when to look again.
//!
//! In: the kernel's figures of the cgroup, one look after the other, and how much slower it may become. Out: a [`Step`]. Must not: read a clock,
//! perform I/O, choose pages (the kernel's lists do), or count what a rule asked for as what left.
//!
//! What was read once and never again lies on the kernel's inactive list. `memory.reclaim` with `swappiness=0` takes from there and leaves
//! anonymous memory alone. Whether it was too much shows afterwards: pages are read again (refaults), and tasks wait for memory (PSI).
//!
//! | rule | asks for | of whom |
//! |---|---|---|
//! | [`Bound`] | a share of the inactive list that doubles while nothing comes back, within a share of the time | Terrace |
//! | [`Senpai`] | a fixed share of memory, less the nearer the pressure is to its threshold | Weiner et al., TMO, ASPLOS 2022, section 3.3 |
//! | [`Psi`] | the same with a larger share and rarer | Katalyst, memory offloading, policy `PSI` |
//! | [`Refault`] | a twentieth more each time, while what it took stays away | Katalyst, memory offloading, policy `Refault` |
//!
//! The constants of Katalyst are the defaults of its agent (katalyst-core, pkg/config/agent/dynamic/tmo). Its pressure is the kernel's average over
//! 60 seconds; here it is the share of the time since the last look, which is 30 seconds. Senpai and Katalyst reclaim anonymous memory as well;
//! here their rules ask for file cache alone, so that all four can be compared.

use std::fmt;
use std::time::Duration;

use crate::units::{Bytes, Time};

/// What the kernel says of a cgroup at one moment. Counts are totals since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// All memory charged to it (`memory.current`).
    pub current: Bytes,
    /// Its file cache (`file` of `memory.stat`), memory of tmpfs not included.
    pub file: Bytes,
    /// Of this, what the next reclaim looks at first.
    pub inactive_file: Bytes,
    /// Of this, what was used more than once.
    pub active_file: Bytes,
    /// Anonymous memory on the inactive list.
    pub inactive_anonymous: Bytes,
    /// File pages that were read again after reclaim had taken them (`workingset_refault_file`).
    pub refaults: u64,
    /// Pages that reclaim looked at (`pgscan`).
    pub scanned: u64,
    /// Pages that it took (`pgsteal`).
    pub reclaimed: u64,
    /// Time in which some task of it waited for memory (`total` of `some` in `memory.pressure`).
    pub stalled: Duration,
}

/// What to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Bytes to ask back; zero: none.
    pub ask: Bytes,
    /// Time until the next look.
    pub next: Duration,
}

/// The rules by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RuleName {
    /// See [`Bound`].
    #[default]
    Bound,
    /// See [`Senpai`].
    Senpai,
    /// See [`Psi`].
    Psi,
    /// See [`Refault`].
    Refault,
}

impl RuleName {
    /// All of them.
    pub const ALL: [RuleName; 4] = [RuleName::Bound, RuleName::Senpai, RuleName::Psi, RuleName::Refault];

    /// As it is typed.
    pub const fn name(self) -> &'static str {
        match self {
            RuleName::Bound => "bound",
            RuleName::Senpai => "senpai",
            RuleName::Psi => "psi",
            RuleName::Refault => "refault",
        }
    }
}

impl fmt::Display for RuleName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

/// The limits of the rule [`Bound`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Share of its time that the cgroup may lose, 0 to 1.
    pub max_slowdown: f64,
    /// What it costs to read one page of 4 KiB again, as measured on this machine.
    pub read: Duration,
}

/// What happened since the last look.
#[derive(Clone, Copy, Debug, Default)]
struct Change {
    span: Duration,
    refaults: u64,
    scanned: u64,
    reclaimed: u64,
    stalled: Duration,
}

impl Change {
    fn between(earlier: &(Time, Figures), now: Time, figures: &Figures) -> Change {
        let (at, before) = earlier;
        Change {
            span: now.since(*at),
            refaults: figures.refaults.saturating_sub(before.refaults),
            scanned: figures.scanned.saturating_sub(before.scanned),
            reclaimed: figures.reclaimed.saturating_sub(before.reclaimed),
            stalled: figures.stalled.saturating_sub(before.stalled),
        }
    }

    /// Share of the time in which some task waited for memory.
    fn pressure(&self) -> f64 {
        if self.span.is_zero() { 0.0 } else { self.stalled.as_secs_f64() / self.span.as_secs_f64() }
    }
}

/// Ours: as much as the cgroup can do without, at a cost within `max_slowdown` of its time.
///
/// The cost is the time in which its tasks waited for memory, and its refaults times the price of a read. Waiting for a page that had been in use
/// is in both: the cost is rather too high. What exceeds the bound is a debt, which time pays off; while there is one, nothing is asked for. Each
/// time it arises the step halves, and the pause is twice as long as before: a set of files that comes back at each turn is left alone.
#[derive(Clone, Debug)]
pub struct Bound {
    limits: Limits,
    /// Share of the inactive list to ask for.
    share: f64,
    /// The pause after the next excess.
    pause: Duration,
    /// Seconds lost beyond the bound.
    debt: f64,
    quiet: u32,
}

impl Bound {
    /// Time between looks.
    pub const EVERY: Duration = Duration::from_secs(1);
    /// The first step, as a share of the inactive list: a sixty-fourth shows in refaults and hurts nobody.
    pub const FIRST_SHARE: f64 = 1.0 / 64.0;
    /// The largest share: half, so that what is used once in a while has time to show.
    pub const LARGEST_SHARE: f64 = 0.5;
    /// The largest step: the kernel takes clean pages at a gigabyte a second or more, so one write lasts a quarter of a second at most.
    pub const LARGEST: Bytes = Bytes::mib(256);
    /// Less is not worth a call: the kernel reclaims 32 pages at a time.
    pub const LEAST: Bytes = Bytes::kib(256);
    /// The longest pause.
    pub const LONGEST_PAUSE: Duration = Duration::from_secs(600);
    /// A cost of at most this share of the bound is none: where anonymous memory leaves as well, some task waits a little now and then.
    pub const LITTLE: f64 = 0.125;
    /// Looks without cost after which the pause is halved again.
    pub const QUIET: u32 = 8;

    fn new(limits: Limits) -> Bound {
        Bound { limits, share: Bound::FIRST_SHARE, pause: 2 * Bound::EVERY, debt: 0.0, quiet: 0 }
    }

    fn step(&mut self, change: &Change, figures: &Figures) -> Step {
        let cost = change.stalled.as_secs_f64() + change.refaults as f64 * self.limits.read.as_secs_f64();
        let allowed = self.limits.max_slowdown * change.span.as_secs_f64();
        self.debt = (self.debt + cost - allowed).max(0.0);
        if cost > allowed {
            self.quiet = 0;
            self.share = (self.share / 2.0).max(Bound::FIRST_SHARE / 64.0);
            let pause = self.pause;
            self.pause = (2 * self.pause).min(Bound::LONGEST_PAUSE);
            return Step { ask: Bytes::ZERO, next: pause };
        }
        if self.debt > 0.0 {
            let paid = Duration::from_secs_f64((self.debt / self.limits.max_slowdown).min(60.0));
            return Step { ask: Bytes::ZERO, next: paid.max(Bound::EVERY) };
        }
        let ask = figures.inactive_file.share(self.share).min(Bound::LARGEST);
        if cost <= allowed * Bound::LITTLE {
            self.share = (2.0 * self.share).min(Bound::LARGEST_SHARE);
            self.quiet += 1;
            if self.quiet.is_multiple_of(Bound::QUIET) {
                self.pause = (self.pause / 2).max(2 * Bound::EVERY);
            }
        }
        Step { ask: if ask < Bound::LEAST { Bytes::ZERO } else { ask }, next: Bound::EVERY }
    }
}

/// Meta's Senpai (TMO, ASPLOS 2022, section 3.3): `current x ratio x max(0, 1 - pressure / threshold)`, every six seconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Senpai;

impl Senpai {
    /// Time between looks.
    pub const EVERY: Duration = Duration::from_secs(6);
    /// Share of all memory.
    pub const RATIO: f64 = 0.0005;
    /// Share of the time in which tasks may wait for memory.
    pub const THRESHOLD: f64 = 0.001;
}

/// Katalyst's policy `PSI`: as [`Senpai`], with at most a hundredth of all memory, every 30 seconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Psi;

impl Psi {
    /// Time between looks.
    pub const EVERY: Duration = Duration::from_secs(30);
    /// Largest share of all memory.
    pub const RATIO: f64 = 0.01;
    /// Share of the time in which tasks may wait for memory: 0.1 %.
    pub const THRESHOLD: f64 = 0.001;
}

/// A share of all memory that falls with the pressure.
fn by_pressure(change: &Change, figures: &Figures, ratio: f64, threshold: f64) -> Bytes {
    figures.current.share(ratio * (1.0 - change.pressure() / threshold).max(0.0))
}

/// Katalyst's policy `Refault`: while 99 of 100 pages that were taken stay away, and 6 of 10 that were looked at could be taken, a twentieth more
/// than last time, at least a tenth of what is inactive and at most a hundredth of all memory. Else less, by the share that came back.
#[derive(Clone, Copy, Debug, Default)]
pub struct Refault {
    last: Bytes,
}

impl Refault {
    /// Time between looks.
    pub const EVERY: Duration = Duration::from_secs(30);
    /// Share of what was taken that must stay away.
    pub const ACCURACY: f64 = 0.99;
    /// Share of what was looked at that must have been taken.
    pub const EFFICIENCY: f64 = 0.6;
    /// How much more is tried.
    pub const GROWTH: f64 = 1.05;
    /// Share of what is inactive that is tried at least.
    pub const PROBE: f64 = 0.1;
    /// Largest share of all memory.
    pub const RATIO: f64 = 0.01;
    /// Added to counts that may be zero.
    const CORRECTION: f64 = 0.1;

    fn step(&mut self, change: &Change, figures: &Figures) -> Bytes {
        let taken = change.reclaimed as f64 + Refault::CORRECTION;
        let accuracy = 1.0 - change.refaults as f64 / taken;
        let efficiency = taken / (change.scanned as f64 + Refault::CORRECTION);
        self.last = if accuracy < Refault::ACCURACY || efficiency < Refault::EFFICIENCY {
            self.last.share(accuracy.clamp(0.0, 1.0))
        } else {
            let inactive = figures.inactive_file + figures.inactive_anonymous;
            let more =
                Bytes::new((self.last.get() as f64 * Refault::GROWTH) as u64).max(inactive.share(Refault::PROBE));
            more.min(figures.current.share(Refault::RATIO))
        };
        self.last
    }
}

/// A rule with what it remembers.
#[derive(Clone, Debug)]
pub enum Rule {
    /// See [`Bound`].
    Bound(Bound),
    /// See [`Senpai`].
    Senpai(Senpai),
    /// See [`Psi`].
    Psi(Psi),
    /// See [`Refault`].
    Refault(Refault),
}

/// See the module's header.
#[derive(Clone, Debug)]
pub struct FileCache {
    rule: Rule,
    last: Option<(Time, Figures)>,
}

impl FileCache {
    /// A rule that has seen nothing yet. Only [`Bound`] holds the limits; the others have their own.
    pub fn new(rule: RuleName, limits: Limits) -> FileCache {
        let rule = match rule {
            RuleName::Bound => Rule::Bound(Bound::new(limits)),
            RuleName::Senpai => Rule::Senpai(Senpai),
            RuleName::Psi => Rule::Psi(Psi),
            RuleName::Refault => Rule::Refault(Refault::default()),
        };
        FileCache { rule, last: None }
    }

    /// What to ask for now. Never more than there is on both lists of file cache.
    pub fn step(&mut self, now: Time, figures: &Figures) -> Step {
        let change = self.last.map_or(Change::default(), |last| Change::between(&last, now, figures));
        self.last = Some((now, *figures));
        let step = match &mut self.rule {
            Rule::Bound(bound) => bound.step(&change, figures),
            Rule::Senpai(_) => {
                Step { ask: by_pressure(&change, figures, Senpai::RATIO, Senpai::THRESHOLD), next: Senpai::EVERY }
            }
            Rule::Psi(_) => Step { ask: by_pressure(&change, figures, Psi::RATIO, Psi::THRESHOLD), next: Psi::EVERY },
            Rule::Refault(refault) => Step { ask: refault.step(&change, figures), next: Refault::EVERY },
        };
        let ask = step.ask.min(figures.inactive_file + figures.active_file);
        // Whole pages; less than one is nothing.
        Step { ask: Bytes::of_pages(ask.pages()), ..step }
    }

    /// Passes over the time until now: what came back in it is not the rule's doing, as when management was held.
    pub fn pass_over(&mut self, now: Time, figures: &Figures) {
        self.last = Some((now, *figures));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ: Duration = Duration::from_micros(100);
    const HOUR: u64 = 3600;

    /// A cgroup in virtual time: cold file pages leave first; the working set comes back every `period`, page by page read again.
    struct Model {
        figures: Figures,
        cold: u64,
        hot: u64,
        hot_out: u64,
        period: u64,
        second: u64,
    }

    impl Model {
        fn new(anonymous: Bytes, cold: Bytes, hot: Bytes, period: u64) -> Model {
            let mut model = Model {
                figures: Figures { current: anonymous, ..Figures::default() },
                cold: cold.pages(),
                hot: hot.pages(),
                hot_out: 0,
                period,
                second: 0,
            };
            model.figures.current += cold + hot;
            model.count();
            model
        }

        fn count(&mut self) {
            let file = Bytes::of_pages(self.cold + self.hot - self.hot_out);
            let anonymous = self.figures.current.saturating_sub(self.figures.file);
            self.figures.current = anonymous.min(Bytes::gib(1)) + file;
            (self.figures.file, self.figures.inactive_file) = (file, file);
        }

        fn reclaim(&mut self, asked: Bytes) {
            let cold = asked.pages().min(self.cold);
            let hot = (asked.pages() - cold).min(self.hot - self.hot_out);
            self.cold -= cold;
            self.hot_out += hot;
            self.figures.scanned += cold + hot;
            self.figures.reclaimed += cold + hot;
            self.count();
        }

        /// A second later.
        fn tick(&mut self) {
            self.second += 1;
            if self.second.is_multiple_of(self.period) {
                self.figures.refaults += self.hot_out;
                self.hot_out = 0;
                self.count();
            }
        }

        fn lost(&self) -> f64 {
            self.figures.stalled.as_secs_f64() + self.figures.refaults as f64 * READ.as_secs_f64()
        }

        /// Runs a rule for so long. Returns how often it asked.
        fn run(&mut self, rule: &mut FileCache, seconds: u64) -> u32 {
            let (mut due, mut asked) = (self.second, 0);
            for _ in 0..seconds {
                if self.second >= due {
                    let step = rule.step(Time::from_nanos(self.second * 1_000_000_000), &self.figures);
                    asked += u32::from(step.ask > Bytes::ZERO);
                    self.reclaim(step.ask);
                    due = self.second + step.next.as_secs().max(1);
                }
                self.tick();
            }
            asked
        }
    }

    fn rule(name: RuleName) -> FileCache {
        FileCache::new(name, Limits { max_slowdown: 0.02, read: READ })
    }

    #[test]
    fn a_file_read_once_goes_within_a_minute() {
        let mut model = Model::new(Bytes::gib(1), Bytes::gib(2), Bytes::ZERO, HOUR);
        model.run(&mut rule(RuleName::Bound), 60);
        assert!(Bytes::of_pages(model.cold) < Bytes::mib(1), "{} is left", Bytes::of_pages(model.cold));
        assert_eq!(model.lost(), 0.0);
    }

    #[test]
    fn a_working_set_that_comes_back_stops_it_and_the_bound_is_kept() {
        for period in [1, 10, 60, 300] {
            let mut model = Model::new(Bytes::gib(1), Bytes::mib(512), Bytes::mib(256), period);
            let mut rule = rule(RuleName::Bound);
            let first = model.run(&mut rule, 600);
            assert!(Bytes::of_pages(model.cold) < Bytes::mib(16), "period {period}: the cold file went");
            let later = model.run(&mut rule, 4 * HOUR - 600);
            let lost = model.lost() / (4 * HOUR) as f64;
            assert!(lost < 0.02, "period {period}: {lost} of the time lost");
            // It tries in between, but does not hammer.
            assert!(later < 24 * first.max(50), "period {period}: asked {first}, then {later} times");
        }
    }

    #[test]
    fn stalls_alone_stop_it_too() {
        let mut rule = rule(RuleName::Bound);
        let mut figures = Figures { file: Bytes::gib(1), inactive_file: Bytes::gib(1), ..Figures::default() };
        let mut now = Time::ZERO;
        assert!(rule.step(now, &figures).ask > Bytes::ZERO);
        let mut pauses = Vec::new();
        for _ in 0..4 {
            figures.stalled += Duration::from_secs(1);
            now = now + Duration::from_secs(1);
            let step = rule.step(now, &figures);
            assert_eq!(step.ask, Bytes::ZERO);
            pauses.push(step.next.as_secs());
        }
        assert_eq!(pauses, [2, 4, 8, 16], "each time longer");
    }

    #[test]
    fn what_came_back_while_nothing_was_managed_is_not_charged() {
        let mut rule = rule(RuleName::Bound);
        let mut figures = Figures { file: Bytes::gib(1), inactive_file: Bytes::gib(1), ..Figures::default() };
        rule.step(Time::ZERO, &figures);
        figures.stalled = Duration::from_secs(30);
        let at = Time::ZERO + Duration::from_secs(60);
        rule.pass_over(at, &figures);
        assert!(rule.step(at + Bound::EVERY, &figures).ask > Bytes::ZERO);
    }

    #[test]
    fn senpai_takes_its_share_less_the_pressure() {
        let mut rule = rule(RuleName::Senpai);
        let mut figures =
            Figures { current: Bytes::gib(4), file: Bytes::gib(2), inactive_file: Bytes::gib(2), ..Figures::default() };
        let whole = Bytes::of_pages(Bytes::gib(4).share(0.0005).pages());
        assert_eq!(rule.step(Time::ZERO, &figures), Step { ask: whole, next: Duration::from_secs(6) });
        // Half of the threshold: 3 ms of 6 s.
        figures.stalled = Duration::from_millis(3);
        let half = rule.step(Time::ZERO + Senpai::EVERY, &figures).ask;
        assert_eq!(half, Bytes::of_pages(Bytes::gib(4).share(0.000_25).pages()));
        figures.stalled += Duration::from_millis(6);
        assert_eq!(rule.step(Time::ZERO + 2 * Senpai::EVERY, &figures).ask, Bytes::ZERO);
    }

    #[test]
    fn katalyst_s_rules_take_at_most_a_hundredth_each_half_minute() {
        for name in [RuleName::Psi, RuleName::Refault] {
            let mut model = Model::new(Bytes::gib(1), Bytes::gib(2), Bytes::ZERO, HOUR);
            let step = rule(name).step(Time::ZERO, &model.figures);
            let most = Bytes::of_pages(model.figures.current.share(0.01).pages());
            assert_eq!(step, Step { ask: most, next: Duration::from_secs(30) }, "{name}");
            model.run(&mut rule(name), 600);
            assert!(Bytes::of_pages(model.cold) > Bytes::gib(1), "{name} is slow");
        }
    }

    #[test]
    fn refault_backs_off_by_what_came_back() {
        let mut rule = rule(RuleName::Refault);
        let mut figures =
            Figures { current: Bytes::gib(4), file: Bytes::gib(2), inactive_file: Bytes::gib(2), ..Figures::default() };
        let first = rule.step(Time::ZERO, &figures).ask;
        (figures.reclaimed, figures.scanned, figures.refaults) = (10_000, 10_000, 2_500);
        let second = rule.step(Time::ZERO + Refault::EVERY, &figures).ask;
        assert!((second.get() as f64 / first.get() as f64 - 0.75).abs() < 0.01, "{first} then {second}");
        // Of what it looked at too little could be taken.
        (figures.reclaimed, figures.scanned) = (20_000, 100_000);
        assert!(rule.step(Time::ZERO + 2 * Refault::EVERY, &figures).ask <= second);
    }

    #[test]
    fn never_more_than_there_is() {
        let figures = Figures { current: Bytes::gib(64), inactive_file: Bytes::mib(1), ..Figures::default() };
        for name in RuleName::ALL {
            assert!(rule(name).step(Time::ZERO, &figures).ask <= Bytes::mib(1), "{name}");
        }
    }
}
