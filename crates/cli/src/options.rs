//! Raw arguments become validated options, exactly once, before anything is touched.
//!
//! In: `args`. Out: typed options, or a [`Misuse`] that names the option, what was given, and what was expected. Must not:
//! start or change anything.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use terrace_core::governor::GovernorConfig;
use terrace_core::policy::FastGoal;
use terrace_core::units::{Bytes, Quantity, parse_duration, parse_share};
use terrace_linux::metric::Metric;
use terrace_linux::process::RangeOptions;
use terrace_linux::topology::declared::{SlowTier, TierMemory};
use terrace_policies::{Settings, SettingsError};

use crate::args::{ManageArguments, ProofArguments, WatchArguments};

pub(crate) use terrace_study::Misuse;
pub(crate) use terrace_study::options::footprint;

/// Whether the command line asks for something that makes no sense: exit code 2.
pub(crate) fn is_misuse(error: &anyhow::Error) -> bool {
    error.is::<Misuse>() || error.downcast_ref::<terrace_study::Error>().is_some_and(terrace_study::Error::is_misuse)
}

/// A [`Misuse`] about one option.
pub(crate) fn misuse(option: &str, given: &str, why: impl std::fmt::Display) -> anyhow::Error {
    Misuse(format!("{option} {given}: {why}")).into()
}

/// How to watch a program.
#[derive(Clone, Debug)]
pub(crate) struct WatchOptions {
    /// `None` is auto.
    pub tracker: Option<String>,
    pub interval: Option<Duration>,
    /// Share of the program's processor time that watching it may cost.
    pub max_overhead: f64,
    pub ranges: RangeOptions,
    pub output: OutputOptions,
}

/// Where the results go.
#[derive(Clone, Debug)]
pub(crate) struct OutputOptions {
    pub report: Option<PathBuf>,
    pub json: bool,
    pub json_file: Option<PathBuf>,
    pub quiet: bool,
    /// The state is drawn on the terminal while the program runs.
    pub live: bool,
}

/// How to manage a program.
#[derive(Clone, Debug)]
pub(crate) struct ManageOptions {
    pub watch: WatchOptions,
    pub policy: String,
    pub settings: BTreeMap<String, String>,
    pub goal: FastGoal,
    pub goal_text: String,
    pub slow: SlowTier,
    pub rate: Option<Bytes>,
    /// How long a page stays after a move; `None` for what suits the machine.
    pub cooldown: Option<Duration>,
    pub max_slowdown: f64,
    pub moves: bool,
}

impl WatchOptions {
    pub(crate) fn parse(raw: &WatchArguments) -> anyhow::Result<WatchOptions> {
        let interval = raw.interval.as_deref().map(|text| duration("--interval", text)).transpose()?;
        if let (Some(interval), Some(text)) = (interval, &raw.interval)
            && interval < Duration::from_millis(50)
        {
            let why = "expected 50ms or more; below that the marks cannot be trusted and clearing them costs more than it tells";
            return Err(misuse("--interval", text, why));
        }
        let trackers = terrace_linux::doctor::names();
        if raw.tracker != "auto" && !trackers.contains(&raw.tracker.as_str()) {
            return Err(misuse("--tracker", &raw.tracker, format!("expected auto, {}", trackers.join(", "))));
        }
        Ok(WatchOptions {
            tracker: (raw.tracker != "auto").then(|| raw.tracker.clone()),
            interval,
            max_overhead: max_overhead(&raw.max_overhead)?,
            ranges: RangeOptions { files: raw.files, shared: raw.shared },
            output: OutputOptions {
                report: raw.report.clone(),
                json: raw.json,
                json_file: raw.json_file.clone(),
                quiet: raw.quiet,
                live: raw.live,
            },
        })
    }
}

impl ManageOptions {
    /// Checks everything that can be checked without looking at the machine; `memory` is how much of it there is.
    pub(crate) fn parse(raw: &ManageArguments, memory: Bytes) -> anyhow::Result<ManageOptions> {
        let watch = WatchOptions::parse(&raw.watch)?;
        let mut settings = BTreeMap::new();
        for text in &raw.settings {
            let Some((key, value)) = text.split_once('=') else {
                return Err(misuse("--set", text, "expected KEY=VALUE, such as idle=20s"));
            };
            // Both `idle=20s` and `age.idle=20s` are understood; the latter is what comparisons of several policies need.
            let key = key.trim().strip_prefix(&format!("{}.", raw.policy)).unwrap_or(key.trim());
            settings.insert(key.to_owned(), value.trim().to_owned());
        }
        if let Some(interval) = watch.interval {
            fix_interval(&raw.policy, interval, &mut settings);
        }
        // Built once here so that a bad name or setting is found before anything is set up.
        let policy =
            terrace_policies::build(&raw.policy, Settings::from_pairs(settings.clone())).map_err(
                |error| match &error {
                    SettingsError::UnknownKey { key, .. } => {
                        misuse("--set", &format!("{key}={}", settings[key]), &error)
                    }
                    // The text as the policy takes it: with --interval it may not have come from --set.
                    SettingsError::BadValue { key, text, wanted } => {
                        misuse("--set", &format!("{key}={text}"), format!("expected {wanted}"))
                    }
                    _ => misuse("--policy", &raw.policy, &error),
                },
            )?;
        if let Some(why) = terrace_policies::only_simulated(policy.profile().needs()) {
            return Err(misuse(
                "--policy",
                &raw.policy,
                format!("{why}; live there are those of `terrace policies` that say so"),
            ));
        }
        let rate = raw
            .rate
            .as_deref()
            .map(|text| match text.parse::<Bytes>() {
                Ok(rate) if rate >= Bytes::mib(1) => Ok(rate),
                Ok(_) => Err(misuse("--rate", text, "expected 1MiB (a second) or more; with less nothing moves")),
                Err(error) => Err(misuse("--rate", text, error)),
            })
            .transpose()?;
        Ok(ManageOptions {
            watch,
            policy: raw.policy.clone(),
            settings,
            goal: fast_goal(&raw.fast, memory)?,
            goal_text: raw.fast.clone(),
            slow: slow_tier(&raw.tier_slow, memory)?,
            rate,
            cooldown: raw.cooldown.as_deref().map(cooldown).transpose()?,
            max_slowdown: match parse_share(&raw.max_slowdown) {
                Ok(share) if share > 0.0 => share,
                Ok(_) => {
                    return Err(misuse(
                        "--max-slowdown",
                        &raw.max_slowdown,
                        "expected more than 0%: every page-out may cost a refault",
                    ));
                }
                Err(error) => return Err(misuse("--max-slowdown", &raw.max_slowdown, error)),
            },
            moves: !raw.dry_run,
        })
    }
}

/// How to prove in place that managing a program does no harm.
#[derive(Clone, Debug)]
pub(crate) struct ProofOptions {
    pub metric: Metric,
    pub window: Duration,
}

/// The least window: readings a tenth of a second late must not be a tenth of it.
const LEAST_WINDOW: Duration = Duration::from_secs(2);

impl ProofOptions {
    /// The options, if there is to be a proof. Nothing moves in a dry run, so nothing can be compared there.
    pub(crate) fn parse(raw: &ProofArguments, moves: bool) -> anyhow::Result<Option<ProofOptions>> {
        let Some(text) = &raw.metric else { return Ok(None) };
        let metric = text.parse().map_err(|error| misuse("--metric", text, error))?;
        let window = duration("--metric-window", &raw.metric_window)?;
        if window < LEAST_WINDOW {
            let why = "expected 2s or more: in shorter windows a measure is mostly noise";
            return Err(misuse("--metric-window", &raw.metric_window, why));
        }
        if !moves {
            return Err(misuse("--metric", text, "a dry run moves nothing, so there is nothing to compare"));
        }
        Ok(Some(ProofOptions { metric, window }))
    }
}

/// `--interval` in the words of the policy.
fn fix_interval(policy: &str, interval: Duration, settings: &mut BTreeMap<String, String>) {
    let text = format!("{}ms", interval.as_millis());
    let pairs: &[(&str, &str)] = match policy {
        "flexhm" => &[("i", &text)],
        _ => &[("interval", &text), ("adaptive", "off")],
    };
    for (key, value) in pairs {
        settings.entry((*key).to_owned()).or_insert_with(|| (*value).to_owned());
    }
}

/// A compressed page takes a quarter of its size at the very best, so more than this could never fill.
const COMPRESSED_TIMES_MEMORY: u64 = 4;

fn slow_tier(text: &str, memory: Bytes) -> anyhow::Result<SlowTier> {
    let slow: SlowTier = text.parse().map_err(|error| misuse("--tier-slow", text, error))?;
    if let SlowTier::Memory(TierMemory::Zram(size)) = &slow
        && size.get() / COMPRESSED_TIMES_MEMORY > memory.get()
    {
        let why =
            format!("expected {COMPRESSED_TIMES_MEMORY} times the machine's memory at most, and that is {memory}");
        return Err(misuse("--tier-slow", text, why));
    }
    Ok(slow)
}

fn fast_goal(text: &str, memory: Bytes) -> anyhow::Result<FastGoal> {
    if text == "min" {
        return Ok(FastGoal::Least);
    }
    let quantity: Quantity =
        text.parse().map_err(|_| misuse("--fast", text, "expected a share (50%), an amount (2GiB), or min"))?;
    let quantity = quantity.above_nothing().map_err(|why| {
        misuse("--fast", text, format!("{why}: no program runs with less; min finds the least it can do with"))
    })?;
    match quantity {
        Quantity::Share(share) => Ok(FastGoal::Share(share)),
        Quantity::Bytes(amount) if amount > memory => {
            let why = format!("expected {memory} at most: that is all the memory this machine has");
            Err(misuse("--fast", text, why))
        }
        Quantity::Bytes(amount) => Ok(FastGoal::Pages(amount.pages())),
    }
}

/// What watching may cost.
fn max_overhead(text: &str) -> anyhow::Result<f64> {
    match parse_share(text) {
        Ok(share) if share > 0.0 => Ok(share),
        Ok(_) => {
            Err(misuse("--max-overhead", text, "expected more than 0%: without watching nothing is known of the pages"))
        }
        Err(error) => Err(misuse("--max-overhead", text, error)),
    }
}

/// A rest after a move. 64 times as long, which a page that keeps coming back gets, it must still fit what a page has room for.
fn cooldown(text: &str) -> anyhow::Result<Duration> {
    match duration("--cooldown", text)? {
        cooldown if cooldown > GovernorConfig::LONGEST_COOLDOWN => Err(misuse(
            "--cooldown",
            text,
            "expected 10min or less: a page that keeps coming back rests 64 times as long",
        )),
        cooldown => Ok(cooldown),
    }
}

pub(crate) fn duration(option: &str, text: &str) -> anyhow::Result<Duration> {
    match parse_duration(text) {
        Ok(span) if !span.is_zero() => Ok(span),
        Ok(_) => Err(misuse(option, text, "expected a time longer than zero, such as 60s")),
        Err(error) => Err(misuse(option, text, error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fast_memory_is_a_share_an_amount_or_min() {
        let memory = Bytes::gib(16);
        assert_eq!(fast_goal("min", memory).unwrap(), FastGoal::Least);
        assert_eq!(fast_goal("50%", memory).unwrap(), FastGoal::Share(0.5));
        assert_eq!(fast_goal("2GiB", memory).unwrap(), FastGoal::Pages(524_288));
        for (text, says) in
            [("0", "1MiB or more"), ("0%", "more than 0%"), ("32GiB", "16.0 GiB at most"), ("lots", "expected")]
        {
            let error = fast_goal(text, memory).unwrap_err();
            assert!(error.is::<Misuse>() && error.to_string().contains(says), "{text}: {error}");
        }
    }

    #[test]
    fn a_rest_is_more_than_nothing_and_ten_minutes_at_most() {
        assert_eq!(cooldown("20ms").unwrap(), Duration::from_millis(20));
        for (text, says) in [("0s", "longer than zero"), ("11min", "10min or less"), ("soon", "not a duration")] {
            let error = cooldown(text).unwrap_err();
            assert!(error.is::<Misuse>() && error.to_string().contains(says), "{text}: {error}");
        }
    }

    #[test]
    fn compressed_swap_that_could_never_fill_is_refused() {
        let memory = Bytes::gib(16);
        assert!(slow_tier("zram:64GiB", memory).is_ok());
        let error = slow_tier("zram:65GiB", memory).unwrap_err();
        assert!(error.is::<Misuse>() && error.to_string().starts_with("--tier-slow zram:65GiB: expected"), "{error}");
    }
}
