//! Advice on how much fast memory a program needs, on every machine there is a model of: what `terrace size advise` and the Python package share.
//!
//! In: a workload or a recorded program, or marks of one that was watched; a target and prices. Out: for each machine the careful size, the expected one, the
//! policy that keeps them, the curve with its band, what is saved; as JSON, as a table and in words. Must not: watch anything, or claim more than was seen.
//!
//! The forecast is that of [`crate::forecast`]. Where every access is known it rests on them. Of a program that was watched only marks are known: the
//! forecast is then made three times, with the least that marks can mean, with what is expected and with the most (`terrace_sizing::watched`), and the careful
//! size holds in the worst of the three.

use serde_json::json;
use terrace_common::arguments::{CandidateArguments, ProgramArguments};
use terrace_core::units::Bytes;
use terrace_machine::preset::Machine;
use terrace_sim::{FastSize, SimConfig};
use terrace_sizing::advise::cost_saved;
use terrace_sizing::forecast::{CAREFUL, Curve, Point, best, within_bounds};
use terrace_sizing::watched::{Intensity, Marks, Profile};

use crate::error::{Result, misuse};
use crate::forecast::{Candidates, Program};
use crate::options::machine;
use crate::provenance::Provenance;
use crate::{Progress, figures};

/// What a program needs on a machine.
pub struct Advice {
    /// Its name.
    pub machine: String,
    /// A curve a policy; none where not enough was seen.
    pub policies: Vec<Curve>,
    /// The one that needs least fast memory.
    pub chosen: Option<Curve>,
    /// Share of the cost that is saved: carefully, and as expected.
    cost_saved: Option<[f64; 2]>,
}

impl Advice {
    /// Of the curves of all policies; `prices` are those of fast and slow memory.
    pub fn new(machine: &Machine, policies: Vec<Curve>, prices: (f64, f64)) -> Advice {
        let chosen = best(&policies).cloned();
        let saved = |share| cost_saved(machine, share, prices.0, prices.1);
        let cost_saved = chosen.as_ref().map(|curve| [curve.fast_share, curve.fast_share_expected].map(saved));
        Advice { machine: machine.name.clone(), policies, chosen, cost_saved }
    }

    /// Points of the curve of the policy that was chosen.
    pub fn curve(&self) -> &[Point] {
        self.chosen.as_ref().map_or(&[], |chosen| &chosen.curve)
    }

    /// The careful size, if one is known.
    pub fn careful(&self) -> Option<f64> {
        self.chosen.as_ref().map(|chosen| chosen.fast_share)
    }
}

/// Where the figures are from.
pub enum Basis {
    /// Pages' accessed bits in a run that was watched; and why that is not enough, if it is not.
    Marks {
        /// What was seen of all pages.
        profile: Profile,
        /// Why that is not enough.
        not_enough: Option<String>,
    },
    /// Every access of a sample of pages, of a workload or a recorded program.
    Accesses {
        /// Its name.
        program: String,
        /// What was played, in words.
        played: String,
        /// Of the program at full size.
        resident_bytes: u64,
    },
}

/// Advice for all machines, and what it is about.
pub struct Advices {
    /// Machine by machine.
    pub of: Vec<Advice>,
    /// What it rests on.
    pub basis: Basis,
    /// The share of its time that the program may lose.
    pub max_slowdown: f64,
    /// What as much of fast and of slow memory costs.
    pub prices: (f64, f64),
}

/// The columns of the table: what to buy by comes first.
pub const COLUMNS: [&str; 7] = [
    "machine",
    "fast memory, carefully",
    "fast memory, as expected",
    "policy",
    "cost saved, carefully",
    "cost saved, as expected",
    "loss at the careful size (least to most)",
];

/// What advice is asked to be, checked: machines, candidates, prices.
pub struct Asked {
    /// Sizes, policies, target.
    pub candidates: Candidates,
    /// The machines, in the order they were named.
    pub machines: Vec<Machine>,
    /// What as much of fast and of slow memory costs.
    pub prices: (f64, f64),
}

impl Asked {
    /// Reads it: `--machine` as names or files with commas between, or `all`; `--prices` as FAST:SLOW.
    ///
    /// # Errors
    /// What is wrong: misuse.
    pub fn parse(program: &ProgramArguments, candidates: &CandidateArguments, prices_of: &str) -> Result<Asked> {
        Ok(Asked {
            candidates: Candidates::parse(candidates, &program.model.settings)?,
            machines: names(&program.model.machine).into_iter().map(machine).collect::<Result<_>>()?,
            prices: prices(prices_of)?,
        })
    }

    /// Advice for a workload or a recorded program, and what made it but for the command.
    ///
    /// # Errors
    /// What is wrong: misuse. A trace that cannot be read, a simulation that fails or is to stop.
    pub fn of_accesses(
        self,
        raw: &ProgramArguments,
        of: &CandidateArguments,
        progress: &dyn Progress,
    ) -> Result<(Advices, Provenance)> {
        let mut raw = raw.clone();
        // What it does depends on no machine: it is read once, on the first.
        raw.model.machine = names(&raw.model.machine)[0].to_owned();
        let program = Program::prepare(&raw, of, &self.candidates)?;
        progress.begin(self.machines.len(), 0);
        let curves_on = |machine: &Machine| {
            let config = SimConfig { machine: machine.clone(), ..program.one.config.clone() };
            let groups = usize::from(program.groups);
            let curves = self.candidates.curves(&config, &program.tapes, groups, progress)?;
            progress.step();
            Ok(curves)
        };
        let curves = self.machines.iter().map(curves_on).collect::<Result<Vec<_>>>()?;
        let basis = Basis::Accesses {
            program: program.one.source.name(),
            played: program.played(),
            resident_bytes: program.one.config.footprint.get() * u64::from(program.one.config.scale.factor()),
        };
        let made = Provenance {
            command: String::new(),
            policy: None,
            machine: None,
            machine_hash: None,
            ..program.one.made.clone()
        };
        Ok((self.advices(basis, curves), made))
    }

    /// Advice for a program that was watched; without a number where not enough was seen.
    ///
    /// # Errors
    /// When a simulation fails or is to stop.
    pub fn of_marks(self, marks: &Marks, profile: Profile, progress: &dyn Progress) -> Result<Advices> {
        let not_enough = marks.enough().err().map(|error| error.to_string());
        let curves_on = |machine: &Machine| match not_enough {
            None => self.within_marks(marks, machine, progress),
            Some(_) => Ok(Vec::new()),
        };
        let curves = self.machines.iter().map(curves_on).collect::<Result<Vec<_>>>()?;
        Ok(self.advices(Basis::Marks { profile, not_enough }, curves))
    }

    /// The curves within what marks leave open.
    fn within_marks(&self, marks: &Marks, machine: &Machine, progress: &dyn Progress) -> Result<Vec<Curve>> {
        let of = |intensity| {
            let tapes = marks.tapes("watched", machine, intensity);
            // What the size is does not matter here: that of each tape takes its place.
            let mut config = SimConfig::new(machine.clone(), Bytes::of_pages(1), FastSize::Share(1.0));
            // What sets a mark has passed the caches already, or may have; and translation is in the CPU time.
            (config.cache, config.tlb) = (false, false);
            self.candidates.curves(&config, &tapes, tapes.len(), progress)
        };
        let [least, expected, most] = [Intensity::LEAST, Intensity::EXPECTED, Intensity::MOST].map(of);
        Ok(within_bounds(&least?, &expected?, &most?, self.candidates.request.target))
    }

    fn advices(self, basis: Basis, curves: Vec<Vec<Curve>>) -> Advices {
        let each = self.machines.iter().zip(curves);
        Advices {
            of: each.map(|(machine, curves)| Advice::new(machine, curves, self.prices)).collect(),
            basis,
            max_slowdown: self.candidates.request.target,
            prices: self.prices,
        }
    }
}

/// `--prices FAST:SLOW`, for the same amount of memory.
fn prices(text: &str) -> Result<(f64, f64)> {
    let parsed = text
        .split_once(':')
        .and_then(|(fast, slow)| Some((fast.trim().parse::<f64>().ok()?, slow.trim().parse::<f64>().ok()?)));
    match parsed {
        Some((fast, slow)) if fast > 0.0 && slow >= 0.0 && fast.is_finite() && slow.is_finite() => Ok((fast, slow)),
        _ => Err(misuse("--prices", text, "expected FAST:SLOW, what a gigabyte of each costs, such as 4:2")),
    }
}

/// Names or files of machines with commas between, or `all`.
fn names(text: &str) -> Vec<&str> {
    match text {
        "all" => Machine::preset_names(),
        names => names.split(',').map(str::trim).collect(),
    }
}

impl Advices {
    /// As `--json` prints it.
    pub fn as_json(&self) -> serde_json::Value {
        let machine = |advice: &Advice| {
            let chosen = advice.chosen.as_ref();
            json!({
                "machine": advice.machine, "fast_share": advice.careful(),
                "fast_share_expected": chosen.map(|curve| curve.fast_share_expected),
                "policy": chosen.map(|curve| &curve.policy),
                "probability_over_target": chosen.map(|curve| curve.probability_over_target),
                "cost_saved_share": advice.cost_saved.map(|[careful, _]| careful),
                "cost_saved_share_expected": advice.cost_saved.map(|[_, expected]| expected),
                "curve": advice.curve(), "policies": advice.policies,
            })
        };
        let (basis, profile, resident_bytes, not_enough) = match &self.basis {
            Basis::Marks { profile, not_enough } => {
                ("marks", Some(profile), profile.pages() * 4096, not_enough.as_ref())
            }
            Basis::Accesses { resident_bytes, .. } => ("accesses", None, *resident_bytes, None),
        };
        let (fast, slow) = self.prices;
        json!({
            "max_slowdown": self.max_slowdown, "basis": basis, "seen": self.seen(), "not_enough_seen": not_enough, "profile": profile,
            "resident_bytes": resident_bytes, "price_fast": fast, "price_slow": slow,
            "machines": self.of.iter().map(machine).collect::<Vec<_>>(),
        })
    }

    /// What it rests on, in a sentence.
    pub fn seen(&self) -> String {
        match &self.basis {
            Basis::Marks { profile, .. } => format!(
                "{} resident, seen in {} windows of {}, by accessed bits: whether a page was used in a window, not how often; nothing was moved, losses are predicted",
                figures::bytes(profile.pages() * 4096),
                profile.windows,
                figures::seconds(profile.window_seconds)
            ),
            Basis::Accesses { program, played, resident_bytes } => {
                format!("{program}, {} resident; {played}", figures::bytes(*resident_bytes))
            }
        }
    }

    /// What the table says.
    pub fn meaning(&self) -> String {
        let (fast, slow) = self.prices;
        let target = percent(self.max_slowdown);
        match &self.basis {
            Basis::Marks { not_enough: Some(why), .. } => {
                format!("Not enough seen: {why}. Until then leave all of it fast.")
            }
            Basis::Marks { not_enough: None, .. } => format!(
                "Buy by \"carefully\": a loss above {target} has a probability of at most {}, also if every use of a page reads all of it and pages in use all the time take all the time. Fast memory costs {fast}, slow memory {slow}.",
                percent(CAREFUL)
            ),
            Basis::Accesses { .. } => format!(
                "Buy by \"carefully\": a loss above {target} has a probability of at most {}. Fast memory costs {fast}, slow memory {slow}.",
                percent(CAREFUL)
            ),
        }
    }

    /// A row a machine.
    pub fn rows(&self) -> Vec<[String; 7]> {
        let row = |advice: &Advice| {
            let unknown = || "not known".to_owned();
            let (Some(chosen), Some([careful, expected])) = (&advice.chosen, advice.cost_saved) else {
                let mut row = [(); 7].map(|()| unknown());
                row[0].clone_from(&advice.machine);
                return row;
            };
            let at = chosen.curve.iter().find(|point| point.fast_share == chosen.fast_share);
            [
                advice.machine.clone(),
                figures::percent(chosen.fast_share),
                figures::percent(chosen.fast_share_expected),
                chosen.policy.clone(),
                percent(careful),
                percent(expected),
                at.map_or_else(
                    || "none: all of it is fast".to_owned(),
                    |at| format!("{} ({} to {})", percent(at.loss), percent(at.loss_low), percent(at.loss_high)),
                ),
            ]
        };
        self.of.iter().map(row).collect()
    }

    /// As a terminal shows it.
    pub fn text(&self) -> String {
        let mut out = format!("{}\n{}\n", self.seen(), self.meaning());
        if self.of.iter().all(|advice| advice.chosen.is_none()) {
            return out;
        }
        let mut row = |cells: [String; 7]| {
            let [name, careful, expected, policy, saved, saved_expected, at] = cells;
            out += &format!(
                "  {name:<14}{careful:>10}{expected:>10}  {policy:<12}{saved:>11}{saved_expected:>10}   {at}\n"
            );
        };
        let loss = "loss there (least to most)";
        row(["machine", "carefully", "expected", "policy", "cost saved", "expected", loss].map(str::to_owned));
        self.rows().into_iter().for_each(row);
        out
    }

    /// The answer, in a sentence.
    pub fn headline(&self) -> String {
        let known: Vec<f64> = self.of.iter().filter_map(Advice::careful).collect();
        let (least, most) = (known.iter().copied().fold(1.0, f64::min), known.iter().copied().fold(0.0, f64::max));
        match (self.of.as_slice(), known.as_slice()) {
            (_, []) => "Not enough was seen to say how much of it has to be fast memory.".to_owned(),
            ([only], [share]) => {
                format!("{} of it has to be fast memory on {}.", figures::percent(*share), only.machine)
            }
            _ if least == most => format!("{} of it has to be fast memory.", figures::percent(least)),
            _ => format!(
                "{} to {} of it has to be fast memory, by the machine.",
                figures::percent(least),
                figures::percent(most)
            ),
        }
    }
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Machine {
        Machine::preset("cxl-pond").unwrap()
    }

    fn advices(policies: Vec<Curve>, not_enough: Option<String>) -> Advices {
        let profile = Profile { windows: 30, window_seconds: 1.0, pages_by_windows: vec![1000], ..Profile::default() };
        let of = vec![Advice::new(&machine(), policies, (4.0, 2.0))];
        Advices { of, basis: Basis::Marks { profile, not_enough }, max_slowdown: 0.05, prices: (4.0, 2.0) }
    }

    #[test]
    fn where_not_enough_was_seen_there_is_a_reason_and_no_number() {
        let advices = advices(Vec::new(), Some("it computed for 0.00 s".to_owned()));
        let text = advices.text();
        assert!(text.contains("Not enough seen: it computed for 0.00 s") && !text.contains("cxl-pond"), "{text}");
        let json = advices.as_json();
        let said = &json["machines"][0];
        assert_eq!(json["not_enough_seen"], "it computed for 0.00 s");
        for key in ["fast_share", "fast_share_expected", "policy", "probability_over_target", "cost_saved_share"] {
            assert!(said[key].is_null(), "{key}: {said}");
        }
        assert_eq!(said["curve"].as_array().map(Vec::len), Some(0));
        assert!(advices.headline().starts_with("Not enough") && advices.rows()[0][1] == "not known");
    }

    #[test]
    fn the_careful_size_comes_first_and_names_its_policy() {
        let point = |fast_share, loss, probability_over_target| Point {
            fast_share,
            loss,
            loss_low: 0.0,
            loss_high: 2.0 * loss,
            probability_over_target,
            slow_share: 0.1,
            slow_share_by_recency: 0.1,
            moves_a_page: 0.0,
        };
        let curve = |policy: &str, probability| {
            Curve::new(policy, 0.05, vec![point(0.3, 0.04, probability), point(0.7, 0.01, 0.0)])
        };
        let advices = advices(vec![curve("first-touch", 0.3), curve("tpp", 0.01)], None);
        let said = &advices.as_json()["machines"][0];
        assert_eq!((said["fast_share"].as_f64(), said["policy"].as_str()), (Some(0.3), Some("tpp")));
        assert_eq!(said["probability_over_target"], 0.01);
        assert_eq!(said["curve"].as_array().map(Vec::len), Some(2));
        assert!((said["cost_saved_share"].as_f64().unwrap() - 0.35).abs() < 1e-9);
        let row = &advices.rows()[0];
        assert_eq!((row[1].as_str(), row[3].as_str(), row[6].as_str()), ("30 %", "tpp", "4.0 % (0.0 % to 8.0 %)"));
        assert_eq!(advices.headline(), "30 % of it has to be fast memory on cxl-pond.");
    }
}
