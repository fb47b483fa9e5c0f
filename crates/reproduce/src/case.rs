//! One run of an experiment: a program on a machine under a policy, at full size.
//!
//! In: what the files state. Out: [`Case`], which compares, prints and knows its scale. Must not: run anything.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use terrace_core::units::{Bytes, parse_duration, parse_share};
use terrace_machine::scale::Scale;
use terrace_workloads::Parameters;

use crate::QUICK_SCALE;
use crate::error::ValueError;

/// Fast memory at full size.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub enum Fast {
    /// A share of the footprint.
    Share(f64),
    /// An amount.
    Amount(Bytes),
}

impl FromStr for Fast {
    type Err = ValueError;

    /// "30GB", "25%", or a ratio of fast to slow memory such as "1:3".
    fn from_str(text: &str) -> Result<Fast, ValueError> {
        let refused =
            || ValueError::new(text, "is none of an amount (30GB), a share (25%) and a ratio of fast to slow (1:3)");
        if let Some((fast, slow)) = text.split_once(':') {
            let [fast, slow] = [fast, slow].map(|part| part.trim().parse::<f64>().ok().filter(|part| *part > 0.0));
            let (fast, slow) = fast.zip(slow).ok_or_else(refused)?;
            return Ok(Fast::Share(fast / (fast + slow)));
        }
        if text.ends_with('%') {
            return parse_share(text).ok().filter(|share| *share > 0.0).map(Fast::Share).ok_or_else(refused);
        }
        text.parse().ok().filter(|bytes| *bytes > Bytes::ZERO).map(Fast::Amount).ok_or_else(refused)
    }
}

/// How much a program does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub enum Operations {
    /// The program's own number.
    Usual,
    /// At full size; the scale divides it.
    FullSize(u64),
    /// Of the scaled machine, at every scale.
    Scaled(u64),
    /// By the size of the scaled program.
    BySize {
        /// Bytes for each operation.
        one_per: Bytes,
        /// The least number.
        at_least: u64,
        /// How often that number is done.
        times: u64,
    },
}

/// Where an experiment takes place, at full size.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// The program.
    pub workload: String,
    /// Its size.
    pub size: Bytes,
    /// Fast memory; `None` where each case says `at`.
    pub fast: Option<Fast>,
    /// Threads.
    pub threads: usize,
    /// The machine.
    pub machine: String,
    /// Huge pages, or pages of 4 KiB.
    pub huge: bool,
    /// The program's options.
    pub options: BTreeMap<String, String>,
    /// How much it does.
    pub operations: Operations,
    /// The modelled MMU: cycles for every first-level miss.
    pub mmu_miss_cycles: Option<u32>,
    /// The largest scale, and that of a first look.
    pub scale_at_most: Option<u32>,
    /// The largest scale of a first look, where it differs.
    pub quick_scale_at_most: Option<u32>,
    /// Fast memory over the program's peak, where cases say `at`.
    pub room_over_peak: f64,
}

impl Setting {
    /// The scale of its runs where this one is asked for.
    pub fn scale(&self, asked: Scale) -> Scale {
        let quick = self.quick_scale_at_most.filter(|_| asked.factor() == QUICK_SCALE);
        quick.or(self.scale_at_most).and_then(Scale::new).map_or(asked, |most| asked.min(most))
    }

    /// The program on a machine of this scale.
    pub fn parameters(&self, scale: Scale, seed: u64) -> Parameters {
        let size = scale.bytes(self.size).get();
        let mut parameters = Parameters::new(size);
        (parameters.threads, parameters.seed) = (self.threads, seed);
        parameters.operations = match self.operations {
            Operations::Usual => None,
            Operations::FullSize(full) => Some(full / u64::from(scale.factor())),
            Operations::Scaled(operations) => Some(operations),
            Operations::BySize { one_per, at_least, times } => Some((size / one_per.get()).max(at_least) * times),
        };
        parameters.options.clone_from(&self.options);
        parameters
    }
}

/// Who decides the size of fast memory, in cases that say `at`.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub enum Limit {
    /// Everything fast: the baseline of a loss, and a profile.
    Full,
    /// The same with its pages watched, for the forecast at these shares of the peak.
    Watched(Vec<f64>),
    /// A share of the program's peak.
    Share(f64),
    /// The tuner.
    Tuned {
        /// By what is observed, instead of as in the paper.
        measured: bool,
        /// The loss that is allowed.
        target: f64,
        /// Between two decisions.
        interval: Duration,
    },
    /// No limit: the policy leaves pages slow by itself.
    Unlimited,
}

impl FromStr for Limit {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Limit, ValueError> {
        let refused = || {
            ValueError::new(
                text,
                "is none of full, unlimited, a share of the peak (95%), watched SHARES (watched 99% 95%), and paper or measured \
                 with a target and an interval (paper 5% every 2.5s)",
            )
        };
        let share = |text: &str| parse_share(text).ok().filter(|share| *share > 0.0).ok_or_else(refused);
        match text.split_whitespace().collect::<Vec<_>>()[..] {
            ["full"] => Ok(Limit::Full),
            ["unlimited"] => Ok(Limit::Unlimited),
            ["watched", ref sizes @ ..] if !sizes.is_empty() => {
                sizes.iter().map(|size| share(size)).collect::<Result<_, _>>().map(Limit::Watched)
            }
            [mode @ ("paper" | "measured"), target, "every", interval] => Ok(Limit::Tuned {
                measured: mode == "measured",
                target: share(target)?,
                interval: parse_duration(interval).ok().filter(|interval| !interval.is_zero()).ok_or_else(refused)?,
            }),
            [size] => share(size).map(Limit::Share),
            _ => Err(refused()),
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Limit::Full => write!(out, "everything fast"),
            Limit::Watched(sizes) => {
                let sizes: Vec<String> = sizes.iter().map(|size| format!("{:.1}%", size * 100.0)).collect();
                write!(out, "everything fast, pages watched for {}", sizes.join(" "))
            }
            Limit::Share(share) => write!(out, "{:.1}% of the peak fast", share * 100.0),
            Limit::Tuned { measured, target, interval } => {
                let mode = if *measured { "measured" } else { "as in the paper" };
                write!(out, "tuned {mode}, target {:.1}%, every {} ms", target * 100.0, interval.as_millis())
            }
            Limit::Unlimited => write!(out, "no limit"),
        }
    }
}

/// One run.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// The name of its setting in the file.
    pub setting_name: String,
    /// Where.
    pub setting: Setting,
    /// The policy.
    pub policy: String,
    /// Its settings.
    pub policy_settings: BTreeMap<String, String>,
    /// Who decides the size of fast memory; `None` where the setting does.
    pub at: Option<Limit>,
    /// Whether it is also compared with everything fast.
    pub bounds: bool,
}

impl Case {
    /// The policy and its settings, as files write them.
    pub fn policy_text(&self) -> String {
        let settings: String = self.policy_settings.iter().map(|(key, value)| format!(" {key}={value}")).collect();
        format!("{}{settings}", self.policy)
    }

    /// Whether it asks the performance database, or its tools, while it runs.
    pub(crate) fn needs_database(&self) -> bool {
        matches!(self.at, Some(Limit::Tuned { .. } | Limit::Watched(_)))
    }

    /// The same program under the same policy with its default settings and everything fast: what a loss is counted from, and
    /// what says how large the program is.
    pub fn baseline(&self) -> Case {
        Case { at: Some(Limit::Full), policy_settings: BTreeMap::new(), ..self.clone() }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let setting = &self.setting;
        let options: String = setting.options.iter().map(|(key, value)| format!(" {key}={value}")).collect();
        let fast = match (&self.at, setting.fast) {
            (Some(at), _) => at.to_string(),
            (None, Some(Fast::Share(share))) => format!("{:.1}% fast", share * 100.0),
            (None, Some(Fast::Amount(amount))) => format!("{} GB fast", amount.get() as f64 / 1e9),
            (None, None) => "everything fast".to_owned(),
        };
        let operations = match setting.operations {
            Operations::Usual => String::new(),
            Operations::FullSize(full) => format!(", {full} operations"),
            Operations::Scaled(operations) => format!(", {operations} operations at every scale"),
            Operations::BySize { one_per, at_least, times } => {
                format!(", {times} times an operation for each {} bytes and at least {at_least}", one_per.get())
            }
        };
        let mmu = match setting.mmu_miss_cycles {
            None => String::new(),
            Some(0) => ", MMU".to_owned(),
            Some(cycles) => format!(", MMU with {cycles} cycles a miss"),
        };
        write!(
            out,
            "{}{options} {} GB{operations}, {fast}, {} threads, {}, {}{mmu}, {}{}",
            setting.workload,
            setting.size.get() as f64 / 1e9,
            setting.threads,
            if setting.huge { "huge pages" } else { "4 KiB pages" },
            setting.machine,
            self.policy_text(),
            if self.bounds { ", and all fast" } else { "" }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fast_memory_is_an_amount_a_share_or_a_ratio() {
        assert_eq!("30GB".parse(), Ok(Fast::Amount(Bytes::new(30_000_000_000))));
        assert_eq!("25%".parse(), Ok(Fast::Share(0.25)));
        assert_eq!("1:2".parse(), Ok(Fast::Share(1.0 / 3.0)));
        for wrong in ["", "0%", "1:0", "1:x", "0GB", "much"] {
            assert!(wrong.parse::<Fast>().is_err_and(|error| error.text == wrong), "{wrong}");
        }
    }

    #[test]
    fn a_limit_is_read_as_it_is_written() {
        assert_eq!("full".parse(), Ok(Limit::Full));
        assert_eq!("89.5%".parse(), Ok(Limit::Share(0.895)));
        assert_eq!("watched 99% 50%".parse(), Ok(Limit::Watched(vec![0.99, 0.5])));
        let tuned = Limit::Tuned { measured: true, target: 0.05, interval: Duration::from_millis(2500) };
        assert_eq!("measured 5% every 2.5s".parse(), Ok(tuned));
        for wrong in ["", "0%", "watched", "paper 5%", "paper 5% every 0s", "so so"] {
            assert!(wrong.parse::<Limit>().is_err_and(|error| error.text == wrong), "{wrong}");
        }
    }
}
