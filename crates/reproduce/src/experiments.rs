//! From files to rows: every name looked up, every value checked, every id unique.
//!
//! In: TOML. Out: [`Experiments`], and the rows that ids select. Must not: run anything.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::str::FromStr;

use terrace_core::units::{Bytes, parse_share};
use terrace_machine::preset::Machine;
use terrace_policies::{Settings, SettingsError};
use toml::Spanned;

use crate::case::{Case, Fast, Limit, Operations, Setting};
use crate::error::{Error, ValueError};
use crate::measure::{Figure, Measure, Part, Prediction};
use crate::schema::{self, RawFile, RawRow, RawSetting, Text};

/// The files that come with Terrace.
const FILES: [(&str, &str); 6] = [
    ("experiments/flexmem.toml", include_str!("../../../experiments/flexmem.toml")),
    ("experiments/tieredmms.toml", include_str!("../../../experiments/tieredmms.toml")),
    ("experiments/flexhm.toml", include_str!("../../../experiments/flexhm.toml")),
    ("experiments/hotness-walk.toml", include_str!("../../../experiments/hotness-walk.toml")),
    ("experiments/tuna.toml", include_str!("../../../experiments/tuna.toml")),
    ("experiments/rivals.toml", include_str!("../../../experiments/rivals.toml")),
];

/// The longest file that is read, in bytes: a hundred times the longest that comes with Terrace.
const LONGEST_FILE: u64 = 4 << 20;

/// What a paper states, in the row's unit.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stated {
    /// A number.
    pub number: Option<f64>,
    /// The lower end of a range.
    pub at_least: Option<f64>,
    /// Its upper end.
    pub at_most: Option<f64>,
    /// A number for each size.
    pub each: Vec<f64>,
    /// The loss beside a saving.
    pub loss: Option<f64>,
    /// The most that was saved at any time of the run.
    pub most: Option<f64>,
    /// All of it in words.
    pub words: String,
}

impl Stated {
    /// Whether there is a number or a range of the row's value.
    pub fn is_numeric(&self) -> bool {
        [self.number, self.at_least, self.at_most, self.most].iter().any(Option::is_some)
    }

    /// Whether there is any number: of the row's value, one for each size, or a loss alone.
    pub fn has_number(&self) -> bool {
        self.is_numeric() || !self.each.is_empty() || self.loss.is_some()
    }
}

/// What a row is a figure of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// The paper whose file it is in, under the paper's conditions, once.
    #[default]
    Figure,
    /// The same figure of the paper under another reading.
    Repeat,
    /// What the paper did not run: another policy, setting, baseline or cause.
    Variant,
    /// What this project wants.
    Goal,
    /// A system that is none of the papers this project began with.
    Rival,
}

impl FromStr for Kind {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Kind, ValueError> {
        Ok(match text {
            "figure" => Kind::Figure,
            "repeat" => Kind::Repeat,
            "variant" => Kind::Variant,
            "goal" => Kind::Goal,
            "rival" => Kind::Rival,
            _ => return Err(ValueError::new(text, "expected figure, repeat, variant, goal or rival")),
        })
    }
}

/// One figure of a paper.
#[derive(Clone, Debug)]
pub struct Row {
    /// Its name: parts with dots between them, the first the paper's.
    pub id: String,
    /// What it is a figure of.
    pub kind: Kind,
    /// What it is, in words.
    pub quantity: String,
    /// The unit of the paper's number and of ours.
    pub unit: String,
    /// Where the paper has it.
    pub source: String,
    /// What the paper has.
    pub paper: Stated,
    /// How far ours may be off, as a share of the paper's number.
    pub agree: f64,
    /// The number from which both are counted before they are compared: 1 where only the difference from 1 says something.
    pub judge_from: f64,
    /// How many settings of the rival are tried, of which the fastest counts: 1 where only one is.
    pub rivals_tried: usize,
    /// Why ours differs, as far as it is known.
    pub cause: Option<String>,
    /// The row in which that one thing is changed.
    pub cause_row: Option<String>,
    /// What is computed.
    pub measure: Measure,
    /// The runs.
    pub cases: Vec<Case>,
    /// Machines whose performance database it needs.
    pub machines: Vec<String>,
}

impl Row {
    /// Plain numbers times this are in its unit.
    pub fn factor(&self) -> f64 {
        if self.unit == "%" { 100.0 } else { 1.0 }
    }
}

/// A figure that no row computes, and why.
#[derive(Clone, Debug, serde::Serialize)]
pub struct NotBuilt {
    /// Its name.
    pub id: String,
    /// The reason.
    pub why: String,
}

/// Names of a paper.
#[derive(Clone, Debug)]
pub struct Paper {
    /// The first part of its ids.
    pub prefix: String,
    /// Its name on the command line.
    pub name: String,
    /// Its title.
    pub title: String,
    /// What its rows come to and why, in a sentence.
    pub finding: Option<String>,
}

/// All rows.
#[derive(Clone, Debug, Default)]
pub struct Experiments {
    /// The papers, in order.
    pub papers: Vec<Paper>,
    /// The rows, paper by paper.
    pub rows: Vec<Row>,
    /// What they report beside.
    pub not_built: Vec<NotBuilt>,
}

impl Experiments {
    /// The experiments that come with Terrace.
    ///
    /// # Errors
    /// When one of the files is wrong; a test reads them all.
    pub fn built_in() -> Result<Experiments, Error> {
        let mut all = Experiments::default();
        FILES.iter().try_for_each(|(file, text)| all.add(file, text)).map(|()| all)
    }

    /// The experiments of a file of one's own.
    ///
    /// # Errors
    /// When it cannot be read, or is wrong; the error names file, line and key.
    pub fn read(path: &Path) -> Result<Experiments, Error> {
        let text = terrace_files::read_to_string(path, LONGEST_FILE)
            .map_err(|source| Error::Read { path: path.to_owned(), source })?;
        let mut all = Experiments::default();
        all.add(&path.display().to_string(), &text).map(|()| all)
    }

    /// Adds the rows of one file's text.
    ///
    /// # Errors
    /// When it is wrong, or an id or a paper was there before.
    pub fn add(&mut self, file: &str, text: &str) -> Result<(), Error> {
        let raw = schema::read(file, text)?;
        let reader = Reader { file, text, raw: &raw };
        let (paper, rows, not_built) = reader.all()?;
        let clash = self.papers.iter().find(|other| other.prefix == paper.prefix || other.name == paper.name);
        if clash.is_some() {
            return Err(reader.wrong(&raw.paper.prefix, "paper", "prefix", "another file has this prefix or name"));
        }
        self.papers.push(paper);
        self.rows.extend(rows);
        self.not_built.extend(not_built);
        Ok(())
    }

    /// The rows that ids ask for, each once and in the order of the files. An id is `all`, a paper's name, or the beginning of
    /// ids up to a dot or the end: `FM.fig6` selects `FM.fig6.sp.tpp`, not `FM.fig66`.
    ///
    /// # Errors
    /// When nothing begins with one of them.
    pub fn select(&self, ids: &[String]) -> Result<Vec<&Row>, Error> {
        let mut chosen = BTreeSet::new();
        for given in ids {
            let named = self.papers.iter().find(|paper| paper.name == *given).map(|paper| paper.prefix.as_str());
            let prefix = named.unwrap_or(given).trim_end_matches('.');
            let begins = |id: &str| {
                given == "all" || id.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
            };
            let found: Vec<usize> = (0..self.rows.len()).filter(|place| begins(&self.rows[*place].id)).collect();
            if found.is_empty() {
                return Err(match self.not_built.iter().find(|row| begins(&row.id)) {
                    Some(row) => Error::NotBuilt { id: row.id.clone(), why: row.why.clone() },
                    None => Error::UnknownId { given: given.clone(), nearest: self.nearest(prefix) },
                });
            }
            chosen.extend(found);
        }
        Ok(chosen.into_iter().map(|place| &self.rows[place]).collect())
    }

    /// What can be selected and is spelt most like this: ids and their beginnings.
    fn nearest(&self, wrong: &str) -> String {
        let mut known: BTreeSet<&str> = self.papers.iter().map(|paper| paper.name.as_str()).collect();
        for row in &self.rows {
            known.extend(row.id.match_indices('.').map(|(at, _)| &row.id[..at]));
            known.insert(&row.id);
        }
        let mut by_likeness: Vec<(f64, &str)> =
            known.into_iter().map(|id| (strsim::jaro_winkler(&wrong.to_lowercase(), &id.to_lowercase()), id)).collect();
        by_likeness.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(b.1)));
        by_likeness.iter().take(4).map(|(_, id)| *id).collect::<Vec<_>>().join(", ")
    }
}

/// One file while it is read.
struct Reader<'a> {
    file: &'a str,
    text: &'a str,
    raw: &'a RawFile,
}

impl Reader<'_> {
    fn wrong<T>(&self, at: &Spanned<T>, place: &str, key: &'static str, why: impl Into<String>) -> Error {
        let line = schema::line_of(self.text, at.span().start);
        Error::Value { file: self.file.to_owned(), line, place: place.to_owned(), key, why: why.into() }
    }

    fn parsed<T: FromStr<Err: ToString>>(&self, text: &Text, place: &str, key: &'static str) -> Result<T, Error> {
        text.get_ref().parse().map_err(|why: T::Err| self.wrong(text, place, key, why.to_string()))
    }

    fn share(&self, text: &Text, place: &str, key: &'static str) -> Result<f64, Error> {
        parse_share(text.get_ref()).map_err(|why| self.wrong(text, place, key, why.to_string()))
    }

    fn all(&self) -> Result<(Paper, Vec<Row>, Vec<NotBuilt>), Error> {
        let paper = Paper {
            prefix: self.raw.paper.prefix.get_ref().clone(),
            name: self.raw.paper.name.get_ref().clone(),
            title: self.raw.paper.title.clone(),
            finding: self.raw.paper.finding.clone(),
        };
        let agree = self.share(&self.raw.paper.agree, "paper", "agree")?;
        for (name, members) in &self.raw.groups {
            if self.raw.settings.contains_key(name) {
                return Err(self.wrong(name, "groups", "groups", format!("{:?} is a setting already", name.get_ref())));
            }
            for member in members {
                self.setting(member, "groups", "groups")?;
            }
        }
        let mut ids = BTreeSet::new();
        let mut id = |text: &Text| {
            let parts_are_whole = text.get_ref().split('.').all(|part| !part.is_empty());
            if !text.get_ref().starts_with(&format!("{}.", paper.prefix)) || !parts_are_whole {
                let why = format!("expected parts with dots between them, {} the first", paper.prefix);
                return Err(self.wrong(text, text.get_ref(), "id", why));
            }
            match ids.insert(text.get_ref().clone()) {
                true => Ok(text.get_ref().clone()),
                false => Err(self.wrong(text, text.get_ref(), "id", "there is another row of that id")),
            }
        };
        let mut rows = Vec::new();
        for raw in &self.raw.row {
            id(&raw.id)?;
            rows.push(self.row(raw, agree)?);
        }
        for raw in &self.raw.row {
            let Some(other) = &raw.cause_row else { continue };
            let place = raw.id.get_ref();
            if raw.cause.is_none() || other.get_ref() == place || !rows.iter().any(|row| row.id == *other.get_ref()) {
                let why = "expected a `cause`, and the id of another row of this file, in which it is changed";
                return Err(self.wrong(other, place, "cause_row", why));
            }
        }
        let mut not_built = Vec::new();
        for raw in &self.raw.not_built {
            not_built.push(NotBuilt { id: id(&raw.id)?, why: raw.why.clone() });
        }
        Ok((paper, rows, not_built))
    }

    fn row(&self, raw: &RawRow, agree: f64) -> Result<Row, Error> {
        let place = raw.id.get_ref().as_str();
        let mut cases = self.cases(raw, place)?;
        let measure = self.measure(raw, place, &cases)?;
        let bad = |key, why: &str| self.wrong(&raw.id, place, key, why);
        if measure.runs_nothing() != cases.is_empty() {
            return Err(bad("cases", "the row has no runs: expected settings and policies, or cases"));
        }
        if let Some(tried) = raw.rivals_tried {
            if !matches!(measure, Measure::Gain(_) | Measure::Speedup(_)) || tried < 2 {
                return Err(bad("rivals_tried", "expected at least 2, and the measure `gain` or `speedup`"));
            }
            if cases.len() % (1 + tried) != 0 {
                return Err(bad(
                    "rivals_tried",
                    "each run is followed by so many of its rival, and their number is another",
                ));
            }
        }
        if measure.wants_pairs() && raw.rivals_tried.is_none() && cases.len() % 2 != 0 {
            return Err(bad("cases", "the measure compares runs two by two, and their number is odd"));
        }
        let names: BTreeSet<String> = cases.iter().map(Case::to_string).collect();
        if names.len() < cases.len() {
            return Err(bad("cases", "the same run stands there twice"));
        }
        if let Measure::Mean(Figure::SpeedOfAllFast) = measure {
            cases.iter_mut().for_each(|case| case.bounds = true);
        }
        if measure.limits_runs() && cases.iter().any(|case| case.at.is_none()) {
            return Err(bad("at", "the measure compares with everything fast: each case must say `at`"));
        }
        let row = Row {
            id: place.to_owned(),
            kind: match raw.kind.as_ref().or(self.raw.paper.kind.as_ref()) {
                Some(text) => self.parsed(text, place, "kind")?,
                None => Kind::default(),
            },
            quantity: raw.quantity.clone(),
            unit: raw.unit.clone(),
            source: raw.source.clone(),
            paper: self.stated(raw, place, &measure)?,
            agree: raw.agree.as_ref().map_or(Ok(agree), |text| self.share(text, place, "agree"))?,
            judge_from: raw.judge_from.unwrap_or(0.0),
            rivals_tried: raw.rivals_tried.unwrap_or(1),
            cause: raw.cause.clone(),
            cause_row: raw.cause_row.as_ref().map(|id| id.get_ref().clone()),
            machines: self.machines(raw, &measure, &cases, place)?,
            measure,
            cases,
        };
        Ok(row)
    }

    /// Machines whose database is asked: those of the runs, or of the settings of a row without runs.
    fn machines(&self, raw: &RawRow, measure: &Measure, cases: &[Case], place: &str) -> Result<Vec<String>, Error> {
        let tuned = |case: &Case| matches!(case.at, Some(Limit::Tuned { .. }));
        let mut machines: Vec<String> = if measure.runs_nothing() {
            let machine = |name: &Text| {
                let setting = self.merged(name, place, "settings", 0)?;
                setting
                    .machine
                    .map(|machine| machine.get_ref().clone())
                    .ok_or_else(|| self.wrong(name, place, "settings", "the setting names no machine"))
            };
            raw.settings.iter().map(machine).collect::<Result<_, _>>()?
        } else {
            let wanting = cases.iter().filter(|case| measure.wants_database() || tuned(case));
            wanting.map(|case| case.setting.machine.clone()).collect()
        };
        machines.sort_unstable();
        machines.dedup();
        Ok(machines)
    }

    fn stated(&self, raw: &RawRow, place: &str, measure: &Measure) -> Result<Stated, Error> {
        let bad = |key, why: &str| Err(self.wrong(&raw.id, place, key, why));
        let range = raw.paper_at_least.is_some() || raw.paper_at_most.is_some();
        if raw.paper.is_some() && range {
            return bad("paper", "a number and a range: expected one of them");
        }
        if let (Some(low), Some(high)) = (raw.paper_at_least, raw.paper_at_most)
            && low > high
        {
            return bad("paper_at_least", "it is above paper_at_most");
        }
        let factor = if raw.unit == "%" { 100.0 } else { 1.0 };
        let (least, most) = measure.natural_range();
        let covers_low = raw.paper_at_least.is_none_or(|low| low <= least * factor);
        let covers_high = raw.paper_at_most.is_none_or(|high| high >= most * factor);
        if range && covers_low && covers_high {
            return bad(
                "paper_at_least",
                "the range holds every value that the measure can come to: its verdict says nothing",
            );
        }
        if raw.paper_loss.is_some() && *measure != Measure::Tuned {
            return bad("paper_loss", "only the measure `tuned` has a loss beside its value");
        }
        if raw.paper_most.is_some() && (*measure != Measure::Tuned || raw.paper.is_some() || range) {
            return bad("paper_most", "only the measure `tuned` has a most, and then no other saving");
        }
        let each = raw.paper_each.clone().unwrap_or_default();
        if matches!(measure, Measure::PredictionErrors(_)) == each.is_empty() {
            return bad("paper_each", "the measure `prediction-errors`, and it alone, has a number for each size");
        }
        let unit = match raw.unit.as_str() {
            "x" => "x".to_owned(),
            other => format!(" {other}"),
        };
        let words = match (&raw.stated, raw.paper.or(raw.paper_most), raw.paper_at_least, raw.paper_at_most) {
            (Some(words), ..) => words.clone(),
            (None, Some(number), ..) => format!("{number}{unit}"),
            (None, None, Some(low), Some(high)) => format!("{low} to {high}{unit}"),
            (None, None, Some(low), None) => format!("at least {low}{unit}"),
            (None, None, None, Some(high)) => format!("at most {high}{unit}"),
            (None, None, None, None) if !each.is_empty() => {
                format!("{}{unit}", each.iter().map(f64::to_string).collect::<Vec<_>>().join(", "))
            }
            (None, None, None, None) => {
                return bad("stated", "the row has neither a number of the paper nor its words");
            }
        };
        Ok(Stated {
            number: raw.paper,
            at_least: raw.paper_at_least,
            at_most: raw.paper_at_most,
            each,
            loss: raw.paper_loss,
            most: raw.paper_most,
            words,
        })
    }

    fn measure(&self, raw: &RawRow, place: &str, cases: &[Case]) -> Result<Measure, Error> {
        let measure = self.named_measure(raw, place, cases)?;
        let given = [
            ("of", raw.of.is_some()),
            ("by", raw.by.is_some()),
            ("first", raw.first.is_some()),
            ("expected", raw.expected.is_some()),
            ("low", raw.low.is_some()),
            ("high", raw.high.is_some()),
            ("target", raw.target.is_some()),
            ("prediction_error", raw.prediction_error.is_some()),
        ];
        match given.into_iter().find(|(key, given)| *given && !measure.keys().contains(key)) {
            Some((key, _)) => {
                let why = format!("the measure {:?} has no such key", raw.measure.get_ref());
                Err(self.wrong(&raw.id, place, key, why))
            }
            None => Ok(measure),
        }
    }

    fn named_measure(&self, raw: &RawRow, place: &str, cases: &[Case]) -> Result<Measure, Error> {
        let missing = |key: &'static str| {
            self.wrong(&raw.measure, place, key, format!("the measure {:?} needs it", raw.measure.get_ref()))
        };
        let bad = |text: &Text, key: &'static str, why: &str| self.wrong(text, place, key, why);
        let of = || raw.of.as_ref().ok_or_else(|| missing("of"));
        let figure = || self.parsed::<Figure>(of()?, place, "of");
        let part = || match &raw.of {
            None => Ok(Part::Whole),
            Some(text) if text.get_ref() == "measured-part" => Ok(Part::Measured),
            Some(text) => Err(bad(text, "of", "expected measured-part, or no such key")),
        };
        let target = || self.share(raw.target.as_ref().ok_or_else(|| missing("target"))?, place, "target");
        Ok(match raw.measure.get_ref().as_str() {
            "mean" => Measure::Mean(figure()?),
            "most" => Measure::Most(figure()?),
            "change" => Measure::Change(figure()?),
            "ratio" => match figure()? {
                // What a run must tell beside its own figures is asked for by the other measures alone.
                Figure::Median(_) | Figure::MeanOf(_) => {
                    return Err(bad(of()?, "of", "expected a figure that every run has, no metric of a policy"));
                }
                plain => Measure::Ratio(plain),
            },
            "larger" => Measure::Larger(figure()?),
            "speedup" => Measure::Speedup(part()?),
            "gain" => Measure::Gain(part()?),
            "best" => Measure::Best,
            "shrinks" => Measure::Shrinks,
            "cores" => Measure::Cores,
            "loss" => Measure::Loss,
            "tuned" => Measure::Tuned,
            "prediction-terms" => Measure::PredictionTerms,
            "database-query" => Measure::DatabaseQuery,
            "winners" => {
                let first = raw.first.ok_or_else(|| missing("first"))?;
                if first > cases.len() / 2 {
                    return Err(self.wrong(&raw.id, place, "first", format!("there are {} pairs", cases.len() / 2)));
                }
                Measure::Winners { first }
            }
            "fastest" => {
                let text = raw.expected.as_ref().ok_or_else(|| missing("expected"))?;
                let wanted = policy_of(text.get_ref()).map_err(|why| bad(text, "expected", &why.to_string()))?;
                let is_it = |case: &Case| case.policy == wanted.0 && case.policy_settings == wanted.1;
                let none = || bad(text, "expected", "no case of the row has this policy and these settings");
                Measure::Fastest { expected: cases.iter().position(is_it).ok_or_else(none)? }
            }
            "swing" => {
                let text = of()?;
                let none = || bad(text, "of", "expected metric: and a metric of the policy");
                let metric = text.get_ref().strip_prefix("metric:").ok_or_else(none)?;
                let (low, high) = (raw.low.ok_or_else(|| missing("low"))?, raw.high.ok_or_else(|| missing("high"))?);
                Measure::Swing { metric: metric.to_owned(), low, high }
            }
            "most-saving" => {
                let error = raw.prediction_error.as_ref();
                let error = error.map(|text| self.share(text, place, "prediction_error")).transpose()?;
                Measure::MostSaving { target: target()?, error }
            }
            "saving-bounds" => Measure::SavingBounds { target: target()? },
            "prediction-errors" => {
                let text = raw.by.as_ref().ok_or_else(|| missing("by"))?;
                Measure::PredictionErrors(match text.get_ref().as_str() {
                    "database" => Prediction::Database,
                    "corrected" => Prediction::Corrected,
                    "forecast" => Prediction::Forecast,
                    _ => return Err(bad(text, "by", "expected database, corrected or forecast")),
                })
            }
            _ => {
                return Err(self.wrong(&raw.measure, place, "measure", format!("expected one of {}", Measure::NAMES)));
            }
        })
    }

    /// Settings times policies times `at`, the first outermost; or the cases as they are written.
    fn cases(&self, raw: &RawRow, place: &str) -> Result<Vec<Case>, Error> {
        if raw.measure.get_ref() == "database-query" {
            return Ok(Vec::new());
        }
        if !raw.cases.is_empty() {
            if let Some(other) = raw.settings.first().or(raw.policies.first()).or(raw.at.first()) {
                let why = "expected cases, or settings and policies, not both".to_owned();
                return Err(self.wrong(other, place, "cases", why));
            }
            return raw.cases.iter().map(|text| self.written_case(text, place)).collect();
        }
        let mut limits: Vec<Option<Limit>> = Vec::new();
        for text in &raw.at {
            limits.push(Some(self.parsed(text, place, "at")?));
        }
        if limits.is_empty() {
            limits.push(None);
        }
        let mut cases = Vec::new();
        for name in &raw.settings {
            let members = self.raw.groups.get(name.get_ref().as_str());
            for name in members.map_or(std::slice::from_ref(name), Vec::as_slice) {
                for policy in &raw.policies {
                    for limit in &limits {
                        let keys = ["settings", "policies"];
                        cases.push(self.case(name, policy.get_ref(), limit.clone(), policy, place, keys)?);
                    }
                }
            }
        }
        Ok(cases)
    }

    /// "SETTING POLICY KEY=VALUE at LIMIT".
    fn written_case(&self, text: &Text, place: &str) -> Result<Case, Error> {
        let whole = text.get_ref().trim();
        let (run, limit) = match whole.split_once(" at ") {
            None => (whole, None),
            Some((run, limit)) => {
                let limit =
                    limit.parse().map_err(|error: ValueError| self.wrong(text, place, "cases", error.to_string()))?;
                (run, Some(limit))
            }
        };
        let Some((setting, policy)) = run.split_once(char::is_whitespace) else {
            let why = format!("{whole:?}: expected a setting and a policy, such as \"ft tpp\"");
            return Err(self.wrong(text, place, "cases", why));
        };
        let name = Spanned::new(text.span(), setting.to_owned());
        self.case(&name, policy, limit, text, place, ["cases", "cases"])
    }

    fn case(
        &self,
        name: &Text,
        policy: &str,
        at: Option<Limit>,
        written: &Text,
        place: &str,
        [of_setting, of_policy]: [&'static str; 2],
    ) -> Result<Case, Error> {
        let setting = self.setting(name, place, of_setting)?;
        let (policy, policy_settings) =
            policy_of(policy).map_err(|why| self.wrong(written, place, of_policy, why.to_string()))?;
        if at.is_none() == setting.fast.is_none() {
            let why = format!(
                "setting {:?}: fast memory is stated {}: expected `fast` in the setting, or `at` in the row",
                name.get_ref(),
                if at.is_none() { "nowhere" } else { "twice" }
            );
            return Err(self.wrong(name, place, of_setting, why));
        }
        Ok(Case { setting_name: name.get_ref().clone(), setting, policy, policy_settings, at, bounds: false })
    }

    /// A setting with what it takes over from another.
    fn merged(&self, name: &Text, place: &str, key: &'static str, depth: usize) -> Result<RawSetting, Error> {
        let Some(own) = self.raw.settings.get(name.get_ref().as_str()) else {
            let known: Vec<&str> = self.raw.settings.keys().map(|name| name.get_ref().as_str()).collect();
            let why = format!("there is no setting {:?}; there are: {}", name.get_ref(), known.join(", "));
            return Err(self.wrong(name, place, key, why));
        };
        let Some(like) = &own.like else { return Ok(own.over(&RawSetting::default())) };
        if depth > self.raw.settings.len() {
            return Err(self.wrong(like, name.get_ref(), "like", "it leads back to itself"));
        }
        Ok(own.over(&self.merged(like, name.get_ref(), "like", depth + 1)?))
    }

    fn setting(&self, name: &Text, place: &str, key: &'static str) -> Result<Setting, Error> {
        let raw = self.merged(name, place, key, 0)?;
        let its = format!("setting {}", name.get_ref());
        let declared = self.raw.settings.keys().find(|known| *known == name).unwrap_or(name);
        let missing = |key: &'static str| self.wrong(declared, &its, key, "it is missing");
        let workload = raw.workload.as_ref().ok_or_else(|| missing("workload"))?;
        let machine = raw.machine.as_ref().ok_or_else(|| missing("machine"))?;
        let pages = raw.pages.as_ref().ok_or_else(|| missing("pages"))?;
        Machine::preset(machine.get_ref()).map_err(|why| self.wrong(machine, &its, "machine", why.to_string()))?;
        if !terrace_workloads::workloads().iter().any(|info| info.name == workload.get_ref()) {
            let known: Vec<&str> = terrace_workloads::workloads().iter().map(|info| info.name).collect();
            let why = format!("no workload is called {:?}; there are: {}", workload.get_ref(), known.join(", "));
            return Err(self.wrong(workload, &its, "workload", why));
        }
        let operations = match (raw.operations, raw.scaled_operations, &raw.operations_by_size) {
            (None, None, None) => Operations::Usual,
            (Some(full), None, None) => Operations::FullSize(full),
            (None, Some(scaled), None) => Operations::Scaled(scaled),
            (None, None, Some(by)) => {
                let one_per: Bytes = self.parsed(&by.one_per, &its, "operations_by_size")?;
                if one_per == Bytes::ZERO || by.times == 0 {
                    let why = "one_per and times must be greater than 0".to_owned();
                    return Err(self.wrong(&by.one_per, &its, "operations_by_size", why));
                }
                Operations::BySize { one_per, at_least: by.at_least, times: by.times }
            }
            _ => {
                let why = "expected one of operations, scaled_operations and operations_by_size".to_owned();
                return Err(self.wrong(name, &its, "operations", why));
            }
        };
        let room_over_peak = raw.room_over_peak.unwrap_or(1.0);
        if !(1.0..=2.0).contains(&room_over_peak) {
            return Err(self.wrong(name, &its, "room_over_peak", "expected a number from 1 to 2"));
        }
        Ok(Setting {
            workload: workload.get_ref().clone(),
            size: self.parsed(raw.size.as_ref().ok_or_else(|| missing("size"))?, &its, "size")?,
            fast: raw.fast.as_ref().map(|text| self.parsed::<Fast>(text, &its, "fast")).transpose()?,
            threads: match raw.threads.ok_or_else(|| missing("threads"))? {
                0 => return Err(self.wrong(declared, &its, "threads", "it must be greater than 0")),
                threads => threads,
            },
            machine: machine.get_ref().clone(),
            huge: match pages.get_ref().as_str() {
                "huge" => true,
                "4KiB" => false,
                _ => return Err(self.wrong(pages, &its, "pages", "expected huge or 4KiB")),
            },
            options: raw.options.clone().unwrap_or_default(),
            operations,
            mmu_miss_cycles: raw.mmu.map(|mmu| mmu.miss_cycles),
            scale_at_most: raw.scale_at_most,
            quick_scale_at_most: raw.quick_scale_at_most,
            room_over_peak,
        })
    }
}

impl RawSetting {
    /// Own values, and another's where there are none.
    fn over(&self, other: &RawSetting) -> RawSetting {
        let own_operations =
            self.operations.is_some() || self.scaled_operations.is_some() || self.operations_by_size.is_some();
        let operations = if own_operations { self } else { other };
        RawSetting {
            like: None,
            workload: self.workload.clone().or_else(|| other.workload.clone()),
            size: self.size.clone().or_else(|| other.size.clone()),
            fast: self.fast.clone().or_else(|| other.fast.clone()),
            threads: self.threads.or(other.threads),
            machine: self.machine.clone().or_else(|| other.machine.clone()),
            pages: self.pages.clone().or_else(|| other.pages.clone()),
            options: self.options.clone().or_else(|| other.options.clone()),
            operations: operations.operations,
            scaled_operations: operations.scaled_operations,
            operations_by_size: operations.operations_by_size.clone(),
            mmu: self.mmu.or(other.mmu),
            scale_at_most: self.scale_at_most.or(other.scale_at_most),
            quick_scale_at_most: self.quick_scale_at_most.or(other.quick_scale_at_most),
            room_over_peak: self.room_over_peak.or(other.room_over_peak),
        }
    }
}

/// Why a text is no policy with its settings.
#[derive(Debug, thiserror::Error)]
enum PolicyError {
    #[error("{0:?}: expected KEY=VALUE")]
    NoPair(String),
    #[error(transparent)]
    Settings(#[from] SettingsError),
}

/// "POLICY KEY=VALUE KEY=VALUE": built once, so that a bad value is found before anything runs.
fn policy_of(text: &str) -> Result<(String, BTreeMap<String, String>), PolicyError> {
    let mut words = text.split_whitespace();
    let policy = words.next().unwrap_or_default().to_owned();
    let mut settings = BTreeMap::new();
    for word in words {
        let (key, value) = word.split_once('=').ok_or_else(|| PolicyError::NoPair(word.to_owned()))?;
        settings.insert(key.to_owned(), value.to_owned());
    }
    terrace_policies::build(&policy, Settings::from_pairs(settings.clone()))?;
    Ok((policy, settings))
}
