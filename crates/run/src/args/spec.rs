//! The options of a run as flags, made from the table of `crate::spec::options`.
//!
//! In: the table. Out: flags, and a checked [`RunSpec`] or a `Misuse` of one of them. Must not: describe an option; the table does.

use std::marker::PhantomData;

use crate::spec::options::{OPTIONS, OptionInfo, Set, Topic};
use crate::spec::{Problem, RunSpec, with_expected};
use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, Error, FromArgMatches};
use terrace_common::settings;
use terrace_core::text::{did_you_mean, meant};
use terrace_core::units::Bytes;

use crate::options::misuse;

/// Which options a command offers.
pub trait Offer {
    /// Whether this one.
    fn offers(info: &OptionInfo) -> bool;
}

/// Everything: commands that manage a program.
#[derive(Debug)]
pub struct ToManage;
/// How a program is watched.
#[derive(Debug)]
pub struct ToWatch;
/// How a program is observed to size its memory; the rest is fixed.
#[derive(Debug)]
pub struct ToAdvise;
/// What may be chosen where a tuner holds the size.
#[derive(Debug)]
pub struct ToTune;

impl Offer for ToManage {
    fn offers(_: &OptionInfo) -> bool {
        true
    }
}

impl Offer for ToWatch {
    fn offers(info: &OptionInfo) -> bool {
        info.topic == Topic::Watch
    }
}

impl Offer for ToAdvise {
    fn offers(info: &OptionInfo) -> bool {
        info.name == "tracker"
    }
}

impl Offer for ToTune {
    fn offers(info: &OptionInfo) -> bool {
        ["tracker", "tier-slow"].contains(&info.name) || info.topic == Topic::Proof
    }
}

/// A value as typed.
#[derive(Clone, Debug)]
enum Typed {
    Text(String),
    Flag(bool),
    Settings(Vec<String>),
}

/// The options of a run that a command offers, as typed.
#[derive(Debug)]
pub struct SpecArguments<O> {
    typed: Vec<(&'static OptionInfo, Typed)>,
    offer: PhantomData<O>,
}

fn offered<O: Offer>() -> impl Iterator<Item = &'static OptionInfo> {
    OPTIONS.iter().filter(|info| info.is_flag() && O::offers(info))
}

impl<O: Offer> Args for SpecArguments<O> {
    fn augment_args(command: Command) -> Command {
        command.args(offered::<O>().map(flag))
    }

    fn augment_args_for_update(command: Command) -> Command {
        SpecArguments::<O>::augment_args(command)
    }
}

fn flag(info: &'static OptionInfo) -> Arg {
    // clap's own style for help has no full stop at the end of one sentence.
    let help = if info.meaning.matches(". ").count() == 0 { info.meaning.trim_end_matches('.') } else { info.meaning };
    let arg = Arg::new(info.name).long(info.name).help(help);
    let arg = match info.set {
        Set::Flag(_) => return arg.action(ArgAction::SetTrue),
        Set::Settings(_) => arg.action(ArgAction::Append),
        Set::Text(_) => arg.default_value(info.default),
    };
    let arg = arg.value_name(info.value_name);
    if matches!(info.name, "metric-window" | "metric-left-alone") { arg.requires("metric") } else { arg }
}

impl<O: Offer> FromArgMatches for SpecArguments<O> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<SpecArguments<O>, Error> {
        let typed = |info: &'static OptionInfo| {
            let value = match info.set {
                Set::Flag(_) => Typed::Flag(matches.get_flag(info.name)),
                Set::Settings(_) => {
                    Typed::Settings(matches.get_many::<String>(info.name).into_iter().flatten().cloned().collect())
                }
                Set::Text(_) => {
                    let text = matches.get_one::<String>(info.name);
                    Typed::Text(text.cloned().ok_or_else(|| Error::new(ErrorKind::MissingRequiredArgument))?)
                }
            };
            Ok((info, value))
        };
        Ok(SpecArguments { typed: offered::<O>().map(typed).collect::<Result<_, Error>>()?, offer: PhantomData })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = SpecArguments::from_arg_matches(matches)?;
        Ok(())
    }
}

impl<O: Offer> SpecArguments<O> {
    /// An option as typed, or its default.
    pub fn text(&self, name: &str) -> &str {
        let typed = self.typed.iter().find(|(info, _)| info.name == name);
        match typed {
            Some((_, Typed::Text(text))) => text,
            _ => "",
        }
    }

    /// What was typed, over `spec`. It is complete only after [`checked`].
    ///
    /// # Errors
    /// The first option that makes no sense.
    pub fn over(&self, mut spec: RunSpec) -> anyhow::Result<RunSpec> {
        for (info, typed) in &self.typed {
            match (info.set, typed) {
                (Set::Text(set), Typed::Text(text)) => set(&mut spec, text).map_err(|why| {
                    let flag = format!("--{}", info.name);
                    let forms = meant(text, |form| set(&mut RunSpec::default(), form).is_ok());
                    let why = with_expected(&why.to_string(), info.takes) + &did_you_mean(&format!("{flag} "), &forms);
                    misuse(&flag, text, why)
                })?,
                (Set::Flag(set), Typed::Flag(on)) => set(&mut spec, *on),
                (Set::Settings(set), Typed::Settings(texts)) => set(&mut spec, settings("--set", texts, "idle=20s")?),
                _ => unreachable!("a value is read as its option takes it"),
            }
        }
        Ok(spec)
    }

    /// The specification, checked, for a machine with this much memory.
    ///
    /// # Errors
    /// The first option that makes no sense.
    pub fn spec(&self, memory: Bytes) -> anyhow::Result<RunSpec> {
        self.spec_over(RunSpec::default(), memory)
    }

    /// What was typed, over `spec`, checked.
    ///
    /// # Errors
    /// The first option that makes no sense.
    pub fn spec_over(&self, spec: RunSpec, memory: Bytes) -> anyhow::Result<RunSpec> {
        check(self.over(spec)?, memory, |option| self.text(option))
    }
}

/// A specification that was checked as a whole.
///
/// # Errors
/// The first problem.
pub fn checked(spec: RunSpec, memory: Bytes) -> anyhow::Result<RunSpec> {
    check(spec, memory, |_| "")
}

/// `typed` is an option's text as the user wrote it, which a message repeats.
fn check<'a>(mut spec: RunSpec, memory: Bytes, typed: impl Fn(&str) -> &'a str) -> anyhow::Result<RunSpec> {
    let mut problems = spec.complete();
    problems.extend(spec.fits(memory));
    let Some(Problem { option, setting, given, problem }) = problems.into_iter().next() else { return Ok(spec) };
    let given = match (setting, typed(option)) {
        (Some(key), _) => format!("{key}={given}"),
        (None, "") => given,
        (None, typed) => typed.to_owned(),
    };
    Err(misuse(&format!("--{option}"), &given, problem))
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use terrace_core::policy::FastGoal;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        spec: SpecArguments<ToManage>,
    }

    fn spec(words: &[&str]) -> anyhow::Result<RunSpec> {
        Line::try_parse_from([&["terrace"], words].concat())?.spec.spec(Bytes::gib(16))
    }

    #[test]
    fn flags_fill_the_specification() {
        assert_eq!(spec(&[]).unwrap(), RunSpec::default());
        let spec = spec(&["--fast", "50%", "--set", "age.idle=20s", "--dry-run", "--max-overhead=0.5%"]).unwrap();
        assert_eq!((spec.fast_goal(), spec.moves, spec.max_overhead), (FastGoal::Share(0.5), false, 0.005));
        assert_eq!(spec.settings["idle"], "20s");
    }

    #[test]
    fn a_problem_names_the_flag() {
        for (words, says) in [
            (["--max-slowdown", "0"], "--max-slowdown 0: expected more than 0%"),
            (["--set", "idle=banana"], "--set idle=banana: expected a duration"),
            (["--fast", "32GiB"], "--fast 32GiB: expected 16.0 GiB at most"),
            (["--tier-slow", "zram:65GiB"], "--tier-slow zram:65GiB: expected 4 times"),
            (["--policy", "nonsense"], "--policy nonsense: there is no policy"),
        ] {
            let told = spec(&words).unwrap_err().to_string();
            assert!(told.starts_with(says), "{told}");
        }
    }

    #[test]
    fn a_window_needs_a_metric() {
        assert!(spec(&["--metric-window", "10s"]).is_err());
        assert!(spec(&["--metric", "cpu", "--metric-window", "10s"]).unwrap().proof().is_some());
    }
}
