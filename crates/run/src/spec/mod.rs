//! The specification of a run: how programs are watched, and how their pages move.
//!
//! `terrace run` has one of them, filled by flags; the service has one for each class, filled by the keys of the class. Both are read by the
//! table in [`options`], checked here once, and become a [`Manager`] here.
//!
//! In: values of options. Out: a [`RunSpec`], or every [`Problem`] of it; a manager. Must not: read flags or TOML, or change the machine.

pub mod options;
pub mod value;

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use terrace_core::engine::{Engine, EngineConfig};
use terrace_core::file_cache::RuleName;
use terrace_core::governor::GovernorConfig;
use terrace_core::policy::{FastGoal, Needs, Policy, Setup};
use terrace_core::text::{did_you_mean, meant};
use terrace_core::units::{Bytes, Quantity};
use terrace_linux::kernel_lists::KernelLists;
use terrace_linux::life_cycle::LifeCycle;
use terrace_linux::machine::Machine;
use terrace_linux::manager::{Manager, ManagerParts};
use terrace_linux::metric::Metric;
use terrace_linux::process::RangeOptions;
use terrace_linux::swap_in::FolioSize;
use terrace_linux::topology::declared::{SlowTier, TierMemory};
use terrace_linux::trackers::Tracker;
use terrace_policies::{Settings, SettingsError};

use value::ValueError;

/// How much fast memory a program should have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Goal {
    /// As little fast memory as possible.
    Least,
    /// The least fast memory with a slowdown of at most `max_slowdown`, measured and held by a tuner.
    Tuned,
    /// As much as it can use.
    Best,
    /// This much and no more.
    Fixed(Quantity),
    /// No page in slow memory.
    NeverSlow,
    /// No page in fast memory.
    NeverFast,
}

impl Goal {
    /// The values it takes.
    pub const TAKES: &'static str = "least, tuned, best, never-slow, never-fast, a share (50%) or an amount (2GiB)";
}

impl FromStr for Goal {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Goal, ValueError> {
        match text {
            "least" => Ok(Goal::Least),
            "tuned" => Ok(Goal::Tuned),
            "best" => Ok(Goal::Best),
            "never-slow" => Ok(Goal::NeverSlow),
            "never-fast" => Ok(Goal::NeverFast),
            other => options::amount_to_run_in(other, Goal::TAKES).map(Goal::Fixed),
        }
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Goal::Least => "least",
            Goal::Tuned => "tuned",
            Goal::Best => "best",
            Goal::NeverSlow => "never-slow",
            Goal::NeverFast => "never-fast",
            Goal::Fixed(Quantity::Share(share)) => return write!(out, "{}%", share * 100.0),
            Goal::Fixed(Quantity::Bytes(bytes)) => return write!(out, "{bytes}"),
        })
    }
}

/// What becomes of the file cache of a cgroup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FileCacheChoice {
    /// The rule of Terrace where the target is a whole cgroup.
    #[default]
    Auto,
    /// It is left alone.
    Off,
    /// This rule.
    By(RuleName),
}

impl FileCacheChoice {
    /// The values it takes.
    pub const TAKES: &'static str = "auto, off, bound, senpai, psi or refault";

    /// The rule for a whole cgroup, if there is one.
    pub fn rule(self) -> Option<RuleName> {
        match self {
            FileCacheChoice::Auto => Some(RuleName::Bound),
            FileCacheChoice::Off => None,
            FileCacheChoice::By(rule) => Some(rule),
        }
    }
}

impl FromStr for FileCacheChoice {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<FileCacheChoice, ValueError> {
        match text {
            "auto" => Ok(FileCacheChoice::Auto),
            "off" => Ok(FileCacheChoice::Off),
            name => RuleName::ALL
                .into_iter()
                .find(|rule| rule.name() == name)
                .map(FileCacheChoice::By)
                .ok_or(ValueError::Expected(FileCacheChoice::TAKES)),
        }
    }
}

/// How programs are watched, and how their pages move.
#[derive(Clone, Debug, PartialEq)]
pub struct RunSpec {
    /// The policy.
    pub policy: String,
    /// Its settings.
    pub settings: BTreeMap<String, String>,
    /// The goal.
    pub goal: Goal,
    /// Where cold pages go. The service has one slow tier for all classes: `memory.slow`.
    pub slow: SlowTier,
    /// The size of folios in which pages come back from swap; `None` for the kernel's setting as it is. The service has `memory.swap_in`.
    pub swap_in: Option<FolioSize>,
    /// Bytes a second that may change tier, `None` for what suits the machine. The service divides `budget.bandwidth`.
    pub rate: Option<Bytes>,
    /// The tracker, `None` for auto.
    pub tracker: Option<String>,
    /// Time between scans, `None` for the policy's own.
    pub interval: Option<Duration>,
    /// Share of its time that refaults, moves and tracking may cost, 0 to 1. With the goal `tuned`, the slowdown to hold.
    pub max_slowdown: f64,
    /// Share of its time that page-outs may cost until what is cold at the start has left; `None` for no more than `max_slowdown`.
    pub invest: Option<f64>,
    /// Share of the pages in use that may come back in a minute; `None` for no bound but `max_slowdown`.
    pub max_promotions: Option<f64>,
    /// Share of its processor time that tracking may cost, 0 to 1.
    pub max_overhead: f64,
    /// How long a page stays after a move; `None` for what suits the slow tier.
    pub cooldown: Option<Duration>,
    /// Which mappings are managed besides anonymous memory.
    pub ranges: RangeOptions,
    /// What becomes of the file cache, where the target is a whole cgroup.
    pub file_cache: FileCacheChoice,
    /// Whether memory that the programs' cgroups protect may go to swap, too.
    pub ignores_protection: bool,
    /// Whether pages move; otherwise what would move is only reported.
    pub moves: bool,
    /// Whether huge pages are split to look inside of them though nothing moves.
    pub looks_inside: bool,
    /// What a proof measures, if there is one.
    pub metric: Option<Metric>,
    /// Length of its windows, if there is one.
    pub proof_window: Option<Duration>,
    /// Share of its windows in which the program is left alone, 0 to a half.
    pub left_alone: f64,
}

/// What is wrong with an option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The option, as [`options::OptionInfo::name`].
    pub option: &'static str,
    /// The setting of the policy, if it is one.
    pub setting: Option<String>,
    /// What was given.
    pub given: String,
    /// What is wrong, or what was expected.
    pub problem: String,
}

impl Default for RunSpec {
    /// Every option at the default of the table.
    fn default() -> RunSpec {
        let mut spec = RunSpec {
            policy: String::new(),
            settings: BTreeMap::new(),
            goal: Goal::Least,
            slow: SlowTier::Auto,
            swap_in: None,
            rate: None,
            tracker: None,
            interval: None,
            max_slowdown: 0.0,
            invest: None,
            max_promotions: None,
            max_overhead: 0.0,
            cooldown: None,
            ranges: RangeOptions::default(),
            file_cache: FileCacheChoice::Auto,
            ignores_protection: false,
            moves: true,
            looks_inside: false,
            metric: None,
            proof_window: None,
            left_alone: 0.0,
        };
        for info in options::OPTIONS.iter().filter(|info| info.is_flag()) {
            info.set_default(&mut spec);
        }
        spec
    }
}

/// What a run needs besides its specification, found out on the machine.
pub struct Found {
    /// The policy, built from the specification.
    pub policy: Box<dyn Policy>,
    /// The tracker.
    pub tracker: Box<dyn Tracker>,
    /// Which of the policy's needs it serves.
    pub granted: Needs,
    /// Allocations and frees, if the policy needs them and the kernel tells.
    pub life_cycle: Option<LifeCycle>,
    /// The order of the kernel's lists, if the policy keeps it.
    pub kernel_lists: Option<KernelLists>,
}

/// A compressed page takes a quarter of its size at the very best, so more than this could never fill.
const COMPRESSED_TIMES_MEMORY: u64 = 4;
/// The setting of the policies that look inside of huge pages: off, look, on.
pub const INSIDE: &str = "inside";
/// The policy whose page ages a target is measured by.
const TUNED_POLICY: &str = "age";

impl RunSpec {
    /// Checks what options mean together, and completes the settings: `interval` in the policy's own words, keys without the policy's name.
    /// The policy is built once, so that a wrong name or setting is found before anything is set up.
    pub fn complete(&mut self) -> Vec<Problem> {
        // Both `idle=20s` and `age.idle=20s` are understood; the latter is what comparisons of several policies need.
        let prefix = format!("{}.", self.policy);
        let settings = std::mem::take(&mut self.settings);
        let bare = |key: String| key.strip_prefix(&prefix).map(str::to_owned).unwrap_or(key);
        self.settings = settings.into_iter().map(|(key, value)| (bare(key), value)).collect();
        if let Some(interval) = self.interval {
            self.fix_interval(interval);
        }
        let mut problems = Vec::new();
        match self.build_policy() {
            Ok(policy) => {
                if let Some(why) = terrace_policies::only_simulated(policy.profile().needs()) {
                    let why = format!("{why}; `terrace policies` says which work live");
                    problems.push(Problem::new("policy", &self.policy, why));
                }
            }
            Err(SettingsError::BadValue { key, text, wanted }) => {
                let builds = |form: &str| {
                    let settings = self.settings.clone().into_iter().chain([(key.clone(), form.to_owned())]);
                    terrace_policies::build(&self.policy, Settings::from_pairs(settings)).is_ok()
                };
                let meant = did_you_mean(&format!("{key}="), &meant(&text, builds));
                problems.push(Problem::of_setting(key, text, format!("expected {wanted}{meant}")));
            }
            Err(error) => problems.push(match &error {
                SettingsError::UnknownKey { key, .. } => {
                    Problem::of_setting(key.clone(), self.settings[key].clone(), error.to_string())
                }
                _ => Problem::new("policy", &self.policy, error.to_string()),
            }),
        }
        if self.goal == Goal::Tuned && self.policy != TUNED_POLICY {
            let why = format!(
                "goal tuned needs the page ages of policy {TUNED_POLICY}; this class has policy {}",
                self.policy
            );
            problems.push(Problem::new("goal", "tuned", why));
        }
        if let (Some(metric), false) = (&self.metric, self.moves) {
            problems.push(Problem::new(
                "metric",
                &metric.text,
                "a dry run moves nothing, so there is nothing to compare",
            ));
        }
        problems
    }

    /// Whether what it asks for fits a machine with this much memory.
    pub fn fits(&self, memory: Bytes) -> Vec<Problem> {
        let mut problems = Vec::new();
        if let Goal::Fixed(Quantity::Bytes(amount)) = self.goal
            && amount > memory
        {
            let why = format!("expected {memory} at most: that is all the memory this machine has");
            problems.push(Problem::new("fast", &amount.to_string(), why));
        }
        if let SlowTier::Memory(TierMemory::Zram(size)) = &self.slow
            && size.get() / COMPRESSED_TIMES_MEMORY > memory.get()
        {
            let why =
                format!("expected {COMPRESSED_TIMES_MEMORY} times the machine's memory at most, and that is {memory}");
            problems.push(Problem::new("tier-slow", &format!("zram:{size}"), why));
        }
        problems
    }

    /// The policy with its settings.
    ///
    /// # Errors
    /// There is no such policy, or it has no such setting.
    pub fn build_policy(&self) -> Result<Box<dyn Policy>, SettingsError> {
        terrace_policies::build(&self.policy, Settings::from_pairs(self.settings.clone()))
    }

    /// `interval` in the words of the policy. What `set` says of it wins.
    fn fix_interval(&mut self, interval: Duration) {
        let text = format!("{}ms", interval.as_millis());
        let pairs: &[(&str, &str)] = match self.policy.as_str() {
            "flexhm" => &[("i", &text)],
            _ => &[("interval", &text), ("adaptive", "off")],
        };
        for (key, value) in pairs {
            self.settings.entry((*key).to_owned()).or_insert_with(|| (*value).to_owned());
        }
    }

    /// The same, with some huge pages split to see what is used inside of them. Nothing moves for it.
    #[must_use]
    pub fn looking_inside(mut self) -> RunSpec {
        self.looks_inside = true;
        self.settings.insert(INSIDE.to_owned(), "look".to_owned());
        self
    }

    /// Whether it only watches: there is no tier to move to.
    pub fn observes(&self) -> bool {
        self.slow == SlowTier::None
    }

    /// Share of the processor time that tracking may cost: where pages move at most half of the maximum slowdown, so that the other half is
    /// left for the moves.
    pub fn watching_share(&self) -> f64 {
        match self.observes() {
            true => self.max_overhead,
            false => self.max_overhead.min(self.max_slowdown / 2.0),
        }
    }

    /// What a proof measures and the length of its windows, if there is to be one.
    pub fn proof(&self) -> Option<(&Metric, Duration)> {
        self.metric.as_ref().zip(self.proof_window)
    }

    /// The goal of the engine. The service gives each class its fast memory by grants instead.
    pub fn fast_goal(&self) -> FastGoal {
        match self.goal {
            Goal::Fixed(Quantity::Share(share)) => FastGoal::Share(share),
            Goal::Fixed(Quantity::Bytes(bytes)) => FastGoal::Pages(bytes.pages()),
            Goal::Tuned | Goal::Best | Goal::NeverSlow => FastGoal::Pages(u64::MAX),
            Goal::Least | Goal::NeverFast => FastGoal::Least,
        }
    }

    /// The manager of a run on a machine made ready.
    pub fn manager(&self, machine: &Machine, found: Found, goal: FastGoal) -> Manager {
        let Found { mut policy, tracker, granted, life_cycle, kernel_lists } = found;
        policy.configure(Setup { granted: Some(granted), ..Setup::default() });
        let governor = match self.cooldown {
            Some(cooldown) => machine.governor().with_cooldown(cooldown),
            None => machine.governor(),
        };
        let config = EngineConfig {
            tiers: machine.tiers.tiers().iter().map(|tier| tier.capacity_bytes.pages()).collect(),
            goal,
            governor: GovernorConfig {
                rate: self.rate.or(governor.rate),
                max_slowdown: self.max_slowdown,
                invest: self.invest,
                max_promotions: self.max_promotions,
                ..governor
            },
        };
        Manager::new(ManagerParts {
            engine: Engine::new(config, policy),
            tracker,
            mover: if self.looks_inside { machine.mover_that_only_splits() } else { machine.mover() },
            tiers: machine.tiers.clone(),
            zram: machine.zram,
            zram_is_ours: machine.held.has_zram(),
            ranges: self.ranges,
            kernel_lists,
            life_cycle,
            max_overhead: self.watching_share(),
            move_cost: machine.move_cost,
            ignores_protection: self.ignores_protection,
        })
    }
}

impl Problem {
    /// A problem of an option.
    pub fn new(option: &'static str, given: &str, problem: impl Into<String>) -> Problem {
        Problem { option, setting: None, given: given.to_owned(), problem: problem.into() }
    }

    fn of_setting(key: String, given: String, problem: String) -> Problem {
        Problem { option: "set", setting: Some(key), given, problem }
    }
}

/// A problem that says what was expected, if it did not.
pub fn with_expected(problem: &str, takes: &str) -> String {
    if problem.contains("expected") { problem.to_owned() } else { format!("{problem}; expected {takes}") }
}

/// A problem that shows the value, if it began with what was expected.
pub fn with_value(problem: &str, given: &str) -> String {
    if problem.starts_with("expected") { format!("{given:?}: {problem}") } else { problem.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_those_of_the_table() {
        let spec = RunSpec::default();
        assert_eq!((spec.policy.as_str(), spec.goal, spec.slow.clone()), ("age", Goal::Least, SlowTier::Auto));
        assert_eq!((spec.max_slowdown, spec.max_overhead, spec.watching_share()), (0.02, 0.01, 0.01));
        assert!(spec.moves && spec.proof().is_none() && spec.tracker.is_none() && spec.cooldown.is_none());
    }

    #[test]
    fn an_interval_is_a_setting_of_the_policy_unless_it_is_set() {
        let mut spec = RunSpec { interval: Some(Duration::from_millis(700)), ..RunSpec::default() };
        spec.settings.insert("age.idle".to_owned(), "20s".to_owned());
        assert_eq!(spec.complete(), []);
        let pairs: Vec<_> = spec.settings.iter().map(|(key, value)| format!("{key}={value}")).collect();
        assert_eq!(pairs, ["adaptive=off", "idle=20s", "interval=700ms"]);
    }

    #[test]
    fn what_does_not_fit_together_is_a_problem_of_one_option() {
        let mut spec = RunSpec { policy: "tpp".to_owned(), goal: Goal::Tuned, ..RunSpec::default() };
        let problems = spec.complete();
        assert!(problems.iter().any(|problem| problem.option == "goal"), "{problems:?}");
        let mut spec = RunSpec { moves: false, metric: Some("cpu".parse().unwrap()), ..RunSpec::default() };
        assert_eq!(spec.complete()[0].option, "metric");
        let spec = RunSpec { goal: Goal::Fixed(Quantity::Bytes(Bytes::gib(32))), ..RunSpec::default() };
        assert_eq!(spec.fits(Bytes::gib(32)), []);
        assert_eq!(spec.fits(Bytes::gib(16))[0].option, "fast");
    }

    #[test]
    fn compressed_swap_that_could_never_fill_is_refused() {
        let of =
            |size: u64| RunSpec { slow: SlowTier::Memory(TierMemory::Zram(Bytes::gib(size))), ..RunSpec::default() };
        assert_eq!(of(64).fits(Bytes::gib(16)), []);
        assert!(of(65).fits(Bytes::gib(16))[0].problem.starts_with("expected 4 times"));
    }

    #[test]
    fn a_problem_names_value_and_expectation_once() {
        let told = |problem: &str| with_value(&with_expected(problem, "a share above 0%"), "0");
        assert_eq!(told("expected more than 0%"), "\"0\": expected more than 0%");
        assert_eq!(told("\"0\" is not a share"), "\"0\" is not a share; expected a share above 0%");
    }
}
