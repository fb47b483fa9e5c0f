//! The options of a run in one table: the flags of `terrace run`, `attach` and `observe`, and the keys of a class.
//!
//! Help, manual pages, completions, the configuration's schema, its default file and docs/reference are generated from it. A new option is a
//! row here and a field of [`RunSpec`].
//!
//! In: a value as text, flag or settings. Out: a field of a [`RunSpec`], or what was expected. Must not: compare options with each other;
//! [`RunSpec::complete`] does.

use std::collections::BTreeMap;
use std::time::Duration;

use terrace_core::governor::GovernorConfig;
use terrace_core::units::{Bytes, Quantity, parse_duration, parse_share};
use terrace_linux::metric::{self, Metric};
use terrace_linux::swap_in::FolioSize;

use super::value::ValueError;
use super::{FileCacheChoice, Goal, RunSpec};

/// Where an option is offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offered {
    /// As a flag and as a key of a class.
    Everywhere,
    /// As a flag only: the service has it for the whole machine, or not at all.
    Flag,
    /// As a key of a class only.
    Key,
}

/// What an option is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topic {
    /// How a program is watched.
    Watch,
    /// How its pages move.
    Move,
    /// How a proof is made that this does no harm.
    Proof,
}

/// How a value becomes part of a specification. An error says what was expected, or quotes the value.
#[derive(Clone, Copy, Debug)]
pub enum Set {
    /// A text.
    Text(fn(&mut RunSpec, &str) -> Result<(), ValueError>),
    /// A flag; in a configuration true or false.
    Flag(fn(&mut RunSpec, bool)),
    /// Settings of the policy; on the command line KEY=VALUE.
    Settings(fn(&mut RunSpec, BTreeMap<String, String>)),
}

/// One option.
#[derive(Clone, Copy, Debug)]
pub struct OptionInfo {
    /// Its name: the flag without its two hyphens; as the key of a class with underscores.
    pub name: &'static str,
    /// What it is about.
    pub topic: Topic,
    /// Where it is offered.
    pub offered: Offered,
    /// The value's name in help texts.
    pub value_name: &'static str,
    /// The values it takes.
    pub takes: &'static str,
    /// Its default, where it takes a text.
    pub default: &'static str,
    /// What it means.
    pub meaning: &'static str,
    /// What else it means for a class.
    pub for_class: &'static str,
    /// How a value is read.
    pub set: Set,
}

use Offered::{Everywhere, Flag, Key};
use Topic::{Move, Proof, Watch};

/// All options of a run.
pub const OPTIONS: &[OptionInfo] = &[
    OptionInfo {
        name: "policy",
        topic: Move,
        offered: Everywhere,
        value_name: "NAME",
        takes: "a name from `terrace policies`",
        default: "age",
        meaning: "The policy that decides which pages move (`terrace policies` lists them).",
        for_class: "",
        set: Set::Text(|spec, text| {
            spec.policy = text.to_owned();
            Ok(())
        }),
    },
    OptionInfo {
        name: "set",
        topic: Move,
        offered: Everywhere,
        value_name: "KEY=VALUE",
        takes: "a table of settings",
        default: "",
        meaning: "A setting of the policy, such as idle=20s. May be given several times.",
        for_class: "As a key: all settings, such as { idle = \"20s\" }.",
        set: Set::Settings(|spec, settings| spec.settings = settings),
    },
    OptionInfo {
        name: "fast",
        topic: Move,
        offered: Flag,
        value_name: "AMOUNT",
        takes: "a share (50%), an amount (2GiB), or min",
        default: "min",
        meaning: "Fast memory to keep: a share of the footprint (50%), an amount (2GiB), or min: as little as it needs.",
        for_class: "",
        set: Set::Text(|spec, text| {
            spec.goal = match text {
                "min" => Goal::Least,
                text => Goal::Fixed(amount_to_run_in(text, "a share (50%), an amount (2GiB), or min")?),
            };
            Ok(())
        }),
    },
    OptionInfo {
        name: "goal",
        topic: Move,
        offered: Key,
        value_name: "GOAL",
        takes: Goal::TAKES,
        default: "least",
        meaning: "How much fast memory the class should have. least: as little as it needs. tuned: the least with a slowdown of at most max_slowdown (policy age), found and held by a tuner, as with `terrace size tune`. best: as much as it can use. never-slow: no page in slow memory. never-fast: no page in fast memory. A share or an amount: that much and no more.",
        for_class: "",
        set: Set::Text(|spec, text| text.parse().map(|goal| spec.goal = goal)),
    },
    OptionInfo {
        name: "tier-slow",
        topic: Move,
        offered: Flag,
        value_name: "TIER",
        takes: "auto, node:1, zram, zram:2GiB, swap:/dev/NAME or none",
        default: "auto",
        meaning: "Where cold pages go: auto, node:1, zram or zram:2GiB (set up for the run; half of fast memory if no size is given), swap:/dev/NAME, or none.",
        for_class: "",
        set: Set::Text(|spec, text| {
            spec.slow = text.parse()?;
            Ok(())
        }),
    },
    OptionInfo {
        name: "swap-in",
        topic: Move,
        offered: Flag,
        value_name: "SIZE",
        takes: "off, or 16KiB to 1MiB",
        default: "off",
        meaning: "Pages that left together come back from compressed swap together, in folios of this size such as 64KiB (Linux 6.12). Sets the kernel's hugepages-SIZEkB to always for the time of the run, for all programs.",
        for_class: "",
        set: Set::Text(|spec, text| swap_in(text).map(|size| spec.swap_in = size)),
    },
    OptionInfo {
        name: "rate",
        topic: Move,
        offered: Flag,
        value_name: "BYTES",
        takes: "auto, or bytes per second",
        default: "auto",
        meaning: "Most bytes per second that may change tier, such as 200MiB. auto is 256MiB to and from compressed swap, 1GiB between nodes.",
        for_class: "",
        set: Set::Text(|spec, text| rate(text).map(|rate| spec.rate = rate)),
    },
    OptionInfo {
        name: "tracker",
        topic: Watch,
        offered: Everywhere,
        value_name: "NAME",
        takes: "auto, or a name from `terrace doctor`",
        default: "auto",
        meaning: "How accesses are observed: auto, or a tracker's name from `terrace doctor`.",
        for_class: "auto is the value of memory.tracker; if the first process of the class is a KVM guest, it is walker, damon or idle-pages, which see a guest's accesses.",
        set: Set::Text(|spec, text| tracker(text).map(|tracker| spec.tracker = tracker)),
    },
    OptionInfo {
        name: "interval",
        topic: Watch,
        offered: Everywhere,
        value_name: "TIME",
        takes: "auto, or a time of 50ms or more",
        default: "auto",
        meaning: "Time between scans, such as 500ms. With auto the policy adapts it.",
        for_class: "",
        set: Set::Text(|spec, text| interval(text).map(|interval| spec.interval = interval)),
    },
    OptionInfo {
        name: "max-overhead",
        topic: Watch,
        offered: Everywhere,
        value_name: "SHARE",
        takes: "a share above 0%",
        default: "1%",
        meaning: "Share of the program's CPU time that tracking may cost. Where pages move, half of max_slowdown is the most. Scans become rarer and smaller to stay within it.",
        for_class: "",
        set: Set::Text(|spec, text| {
            share(text, "without tracking nothing is known of the pages").map(|share| spec.max_overhead = share)
        }),
    },
    OptionInfo {
        name: "max-slowdown",
        topic: Move,
        offered: Everywhere,
        value_name: "SHARE",
        takes: "a share above 0%",
        default: "2%",
        meaning: "Share of its time that the program may lose to refaults, moves and tracking: page-outs are limited to it.",
        for_class: "With goal tuned: the most it may be slower than with everything in fast memory.",
        set: Set::Text(|spec, text| {
            share(text, "every page-out may cost a refault").map(|share| spec.max_slowdown = share)
        }),
    },
    OptionInfo {
        name: "invest",
        topic: Move,
        offered: Everywhere,
        value_name: "SHARE",
        takes: "none, or a share above 0%",
        default: "none",
        meaning: "Share of its time that the initial page-outs may cost, until all memory that is cold at the start has left, instead of max_slowdown. none: the bound holds from the first minute. What comes back stays within the bound in any case.",
        for_class: "",
        set: Set::Text(|spec, text| {
            spec.invest = or_none(text, |text| share(text, "none is the word for nothing beyond max_slowdown"))?;
            Ok(())
        }),
    },
    OptionInfo {
        name: "max-promotions",
        topic: Move,
        offered: Everywhere,
        value_name: "SHARE/min",
        takes: "none, or a share a minute (0.2%/min)",
        default: "none",
        meaning: "Share of the pages in use that may come back in a minute, such as 0.2%/min: a program whose minute has had more moves no page out until it is over, and waits longer from then on. none: max_slowdown alone is the bound.",
        for_class: "",
        set: Set::Text(|spec, text| {
            spec.max_promotions = or_none(text, promotions)?;
            Ok(())
        }),
    },
    OptionInfo {
        name: "cooldown",
        topic: Move,
        offered: Everywhere,
        value_name: "TIME",
        takes: "usual, or a time of 1ms to 10min",
        default: "usual",
        meaning: "How long a page stays where it is after a move; four times longer after each ping-pong. usual is 10s with swap, else 1s.",
        for_class: "",
        set: Set::Text(|spec, text| cooldown(text).map(|cooldown| spec.cooldown = cooldown)),
    },
    OptionInfo {
        name: "files",
        topic: Watch,
        offered: Everywhere,
        value_name: "",
        takes: "true or false",
        default: "",
        meaning: "Manage private file mappings as well.",
        for_class: "",
        set: Set::Flag(|spec, on| spec.ranges.files = on),
    },
    OptionInfo {
        name: "shared",
        topic: Watch,
        offered: Everywhere,
        value_name: "",
        takes: "true or false",
        default: "",
        meaning: "Manage shared memory as well.",
        for_class: "",
        set: Set::Flag(|spec, on| spec.ranges.shared = on),
    },
    OptionInfo {
        name: "file-cache",
        topic: Move,
        offered: Everywhere,
        value_name: "RULE",
        takes: FileCacheChoice::TAKES,
        default: "auto",
        meaning: "How file cache that is no longer used leaves a cgroup (version 2, Linux 6.11): bound stays within max_slowdown; senpai, psi and refault are the rules of others; off leaves it. auto is bound where the target is a whole cgroup, else off.",
        for_class: "A class is a whole cgroup if it has one selector, and that names one cgroup and nothing else.",
        set: Set::Text(|spec, text| text.parse().map(|choice| spec.file_cache = choice)),
    },
    OptionInfo {
        name: "ignore-protection",
        topic: Move,
        offered: Everywhere,
        value_name: "",
        takes: "true or false",
        default: "",
        meaning: "Page out memory that `memory.min` and `memory.low` of its cgroup protect, too.",
        for_class: "",
        set: Set::Flag(|spec, on| spec.ignores_protection = on),
    },
    OptionInfo {
        name: "dry-run",
        topic: Move,
        offered: Flag,
        value_name: "",
        takes: "true or false",
        default: "",
        meaning: "Decide, but move nothing; report what would have moved.",
        for_class: "",
        set: Set::Flag(|spec, on| spec.moves = !on),
    },
    OptionInfo {
        name: "metric",
        topic: Proof,
        offered: Flag,
        value_name: "METRIC",
        takes: "none, or a metric",
        default: "none",
        meaning: "Prove by this measure of the program that managing it does no harm: auto, instructions, cpu, file:PATH, command:WORDS, http://HOST/PATH#NAME or redis://HOST:PORT. Write gauge= before it if the number is a speed, cost= if less is better.",
        for_class: "",
        set: Set::Text(|spec, text| {
            spec.metric = or_none(text, str::parse)?;
            Ok(())
        }),
    },
    OptionInfo {
        name: "metric-window",
        topic: Proof,
        offered: Flag,
        value_name: "TIME",
        takes: "a time of 2s or more",
        default: "30s",
        meaning: "Length of the windows in which the program is managed or left alone, by coin.",
        for_class: "",
        set: Set::Text(|spec, text| window(text).map(|window| spec.proof_window = Some(window))),
    },
    OptionInfo {
        name: "metric-left-alone",
        topic: Proof,
        offered: Flag,
        value_name: "SHARE",
        takes: "a share above 0% and up to 50%",
        default: "25%",
        meaning: "Share of the windows in which the program is left alone, after the first six pairs. With 50% the interval is narrow soonest.",
        for_class: "",
        set: Set::Text(|spec, text| {
            spec.left_alone = match share(text, "a window is compared with one left alone")? {
                share if share <= 0.5 => share,
                _ => return Err(ValueError::Expected("50% or less: a pair has a window of each kind")),
            };
            Ok(())
        }),
    },
    OptionInfo {
        name: "proof",
        topic: Proof,
        offered: Key,
        value_name: "TIME",
        takes: "off, or a time of 10s or more",
        default: "off",
        meaning: "Proof mode: the class is managed in some windows of this length and left unmanaged in others, by coin. The difference is measured, and management rests if it harms.",
        for_class: "",
        set: Set::Text(|spec, text| {
            spec.proof_window = match text {
                "off" => None,
                text => Some(span(text, Duration::from_secs(10))?),
            };
            Ok(())
        }),
    },
    OptionInfo {
        name: "metric",
        topic: Proof,
        offered: Key,
        value_name: "METRIC",
        takes: "auto, instructions, cpu, file:PATH, http://HOST/PATH#NAME or redis://HOST:PORT; gauge= or cost= before it",
        default: "auto",
        meaning: "What proof mode measures. auto is instructions, or cpu where the machine counts none.",
        for_class: "",
        set: Set::Text(|spec, text| metric_of_service(text).map(|metric| spec.metric = Some(metric))),
    },
];

/// A value, or nothing for the word `none`.
fn or_none<T, E>(text: &str, parse: impl Fn(&str) -> Result<T, E>) -> Result<Option<T>, ValueError>
where
    ValueError: From<E>,
{
    if text == "none" { Ok(None) } else { Ok(Some(parse(text)?)) }
}

impl OptionInfo {
    /// Whether it is a flag.
    pub fn is_flag(&self) -> bool {
        self.offered != Key
    }

    /// Whether it is a key of a class.
    pub fn is_key(&self) -> bool {
        self.offered != Flag
    }

    /// The last part of its key.
    pub fn key(&self) -> String {
        self.name.replace('-', "_")
    }

    /// Sets its default.
    pub fn set_default(&self, spec: &mut RunSpec) {
        match self.set {
            Set::Text(set) => {
                set(spec, self.default).unwrap_or_else(|why| panic!("the default of {}: {why}", self.name))
            }
            Set::Flag(set) => set(spec, false),
            Set::Settings(set) => set(spec, BTreeMap::new()),
        }
    }

    /// Its default as TOML.
    pub fn default_as_toml(&self) -> String {
        match self.set {
            Set::Text(_) => format!("{:?}", self.default),
            Set::Flag(_) => "false".to_owned(),
            Set::Settings(_) => "{}".to_owned(),
        }
    }
}

/// An amount of memory large enough to run in.
///
/// # Errors
/// What was expected: `expected`, or more of it.
pub fn amount_to_run_in(text: &str, expected: &'static str) -> Result<Quantity, ValueError> {
    let quantity: Quantity = text.parse().map_err(|_| ValueError::Expected(expected))?;
    let because = "no program runs with less";
    quantity.above_nothing().map_err(|expected| ValueError::TooLittle { expected, because })
}

/// A tracker's name; `None` is auto.
///
/// # Errors
/// There is no such tracker.
pub fn tracker(text: &str) -> Result<Option<String>, ValueError> {
    let names = terrace_linux::doctor::names();
    match text {
        "auto" => Ok(None),
        name if names.contains(&name) => Ok(Some(name.to_owned())),
        name => Err(ValueError::Tracker { name: name.to_owned(), known: names.join(", ") }),
    }
}

/// Bytes a second that may change tier; `None` is auto.
///
/// # Errors
/// What was expected.
pub fn rate(text: &str) -> Result<Option<Bytes>, ValueError> {
    match text {
        "auto" => Ok(None),
        text => match text.parse::<Bytes>()? {
            rate if rate >= Bytes::mib(1) => Ok(Some(rate)),
            _ => Err(ValueError::Expected("1MiB (a second) or more; with less nothing moves")),
        },
    }
}

/// The size of folios in which pages come back; `None` for off.
///
/// # Errors
/// What was expected.
pub fn swap_in(text: &str) -> Result<Option<FolioSize>, ValueError> {
    match text {
        "off" => Ok(None),
        text => text.parse().map(Some).map_err(ValueError::FolioSize),
    }
}

/// A share above 0 %; `because` says why there is no less.
///
/// # Errors
/// What was expected.
pub fn share(text: &str, because: &'static str) -> Result<f64, ValueError> {
    match parse_share(text)? {
        share if share > 0.0 => Ok(share),
        _ => Err(ValueError::TooLittle { expected: "expected more than 0%", because }),
    }
}

/// A share a minute, with its unit: of the pages in use, what may come back.
///
/// # Errors
/// What was expected.
pub fn promotions(text: &str) -> Result<f64, ValueError> {
    let of_minute = text.strip_suffix("/min").ok_or(ValueError::Expected("a share a minute, such as 0.2%/min"))?;
    share(of_minute, "none is the word for no bound but max_slowdown")
}

/// A time longer than zero and of `least` or more, and at most a year: a longer time is a typing error, and far from the limits of the
/// clock's arithmetic.
///
/// # Errors
/// What was expected.
pub fn span(text: &str, least: Duration) -> Result<Duration, ValueError> {
    const LONGEST: Duration = Duration::from_secs(365 * 86_400);
    match parse_duration(text)? {
        span if span.is_zero() && !least.is_zero() => Err(ValueError::Expected("a time longer than zero, such as 60s")),
        span if span < least => Err(ValueError::text(text, " is too short")),
        span if span > LONGEST => Err(ValueError::text(text, " is longer than a year")),
        span => Ok(span),
    }
}

/// Shortest time between scans.
const LEAST_INTERVAL: Duration = Duration::from_millis(50);

fn interval(text: &str) -> Result<Option<Duration>, ValueError> {
    match text {
        "auto" => Ok(None),
        text => match span(text, Duration::from_nanos(1))? {
            interval if interval < LEAST_INTERVAL => Err(ValueError::Expected(
                "50ms or more; below that the marks cannot be trusted and clearing them costs more than it tells",
            )),
            interval => Ok(Some(interval)),
        },
    }
}

/// Shortest time that a page stays.
const LEAST_COOLDOWN: Duration = Duration::from_millis(1);

/// A page that keeps coming back stays 64 times as long, which must fit what is stored of a page.
fn cooldown(text: &str) -> Result<Option<Duration>, ValueError> {
    match text {
        "usual" => Ok(None),
        text => match span(text, LEAST_COOLDOWN)? {
            cooldown if cooldown > GovernorConfig::LONGEST_COOLDOWN => {
                Err(ValueError::Expected("10min or less: a page that keeps coming back stays 64 times as long"))
            }
            cooldown => Ok(Some(cooldown)),
        },
    }
}

/// The least window of a proof: readings a tenth of a second late must not be a tenth of it.
const LEAST_WINDOW: Duration = Duration::from_secs(2);

fn window(text: &str) -> Result<Duration, ValueError> {
    match span(text, Duration::from_nanos(1))? {
        window if window < LEAST_WINDOW => {
            Err(ValueError::Expected("2s or more: in shorter windows a measure is mostly noise"))
        }
        window => Ok(window),
    }
}

/// A metric that a service may read. It runs as root, so it starts nothing that a key names.
fn metric_of_service(text: &str) -> Result<Metric, ValueError> {
    let metric: Metric = text.parse().map_err(|why| ValueError::Address { text: text.to_owned(), why })?;
    match metric.source {
        metric::Source::Command(_) | metric::Source::Page { authority: None, .. } => Err(ValueError::text(
            text,
            ": the service starts no commands, curl neither; let a program write the number into a file",
        )),
        _ => Ok(metric),
    }
}

#[cfg(test)]
mod tests {
    use terrace_core::text::meant;

    use super::*;

    fn refused(name: &str, text: &str) -> String {
        let info = OPTIONS.iter().find(|info| info.name == name).unwrap();
        let Set::Text(set) = info.set else { panic!("{name} takes no text") };
        set(&mut RunSpec::default(), text).unwrap_err().to_string()
    }

    #[test]
    fn fast_memory_is_a_share_an_amount_or_min() {
        assert_eq!("50%".parse::<Goal>().unwrap(), Goal::Fixed(Quantity::Share(0.5)));
        assert_eq!("2GiB".parse::<Goal>().unwrap(), Goal::Fixed(Quantity::Bytes(Bytes::gib(2))));
        for (text, says) in [("0", "1MiB or more"), ("0%", "more than 0%"), ("lots", "expected a share (50%)")] {
            assert!(refused("fast", text).contains(says), "{text}");
        }
    }

    #[test]
    fn promotions_are_a_share_a_minute() {
        assert!((promotions("0.2%/min").unwrap() - 0.002).abs() < 1e-12);
        for (text, says) in [("0.2%", "such as 0.2%/min"), ("0%/min", "more than 0%"), ("much/min", "not a share")] {
            assert!(refused("max-promotions", text).contains(says), "{text}: {}", refused("max-promotions", text));
        }
    }

    #[test]
    fn times_have_bounds() {
        assert_eq!(cooldown("20ms").unwrap(), Some(Duration::from_millis(20)));
        for (text, says) in
            [("0s", "longer than zero"), ("500us", "too short"), ("11min", "10min or less"), ("soon", "not a duration")]
        {
            assert!(refused("cooldown", text).contains(says), "{text}");
        }
        assert!(refused("interval", "1ms").contains("50ms or more"));
        assert!(refused("metric-window", "1s").contains("2s or more"));
        assert!(refused("proof", "9s").contains("too short"));
    }

    #[test]
    fn a_value_without_its_unit_is_met_with_those_that_the_option_takes() {
        for (name, text, forms) in [
            ("fast", "25", &["25%", "25GiB"] as &[&str]),
            ("max-promotions", "0.2%", &["0.2%/min"]),
            ("fast", "512", &["512MiB"]),
            ("fast", "0.5", &["50%", "0.5GiB"]),
            ("interval", "500", &["500ms", "500s"]),
            ("max-slowdown", "5", &["5%"]),
            ("interval", "2", &["2s"]),
            ("rate", "200", &["200MiB"]),
            ("tier-slow", "zram:2", &["zram:2GiB"]),
            ("tier-slow", "2GiB", &["zram:2GiB"]),
            ("tier-slow", "1", &["node:1"]),
            ("tier-slow", "node1", &["node:1"]),
            ("tier-slow", "node=1", &["node:1"]),
            ("tier-slow", "/dev/sda2", &["swap:/dev/sda2"]),
            ("tier-slow", "cxl", &[]),
            ("interval", "soon", &[]),
        ] {
            let info = OPTIONS.iter().find(|info| info.name == name && info.is_flag()).unwrap();
            let Set::Text(set) = info.set else { panic!("{name} takes no text") };
            assert!(set(&mut RunSpec::default(), text).is_err(), "{name} {text}");
            assert_eq!(meant(text, |form| set(&mut RunSpec::default(), form).is_ok()), forms, "{name} {text}");
        }
    }

    #[test]
    fn a_name_is_offered_once_in_each_place() {
        for place in [OptionInfo::is_flag, OptionInfo::is_key] {
            let mut names: Vec<&str> = OPTIONS.iter().filter(|info| place(info)).map(|info| info.name).collect();
            names.sort_unstable();
            let all = names.len();
            names.dedup();
            assert_eq!(names.len(), all);
        }
    }

    #[test]
    fn the_service_starts_no_command_for_a_metric() {
        assert!(metric_of_service("command:echo 1").unwrap_err().to_string().contains("starts no commands"));
        assert!(metric_of_service("cpu").is_ok());
    }
}
