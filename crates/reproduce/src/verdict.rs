//! What ours says of the paper's.
//!
//! In: a row and a value in its unit. Out: a verdict and the reason for it. Must not: be lenient where nobody wrote so: what counts
//! as agreement stands in the row. `agree` is for a number; a bound that the paper states is the bound.
//!
//! What is compared is what the paper states: of a gain the gain, not one plus the gain. A row may say from which number both are
//! counted (`judge_from = 1` for relative times whose difference from 1 is the finding).

use crate::experiments::Row;

/// The verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Ours is what the paper states, within what the row allows.
    Agrees,
    /// It is not.
    Differs,
    /// It points the other way.
    Opposite,
    /// Seeds do not tell.
    Undecided,
    /// The paper states no number and no order.
    NoNumber,
    /// The runs give no value.
    NoValue,
    /// The runs cannot answer the question: what is varied changes nothing.
    Refused,
}

impl Verdict {
    /// As texts and JSON have it.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Agrees => "agrees",
            Verdict::Differs => "differs",
            Verdict::Opposite => "opposite",
            Verdict::Undecided => "undecided",
            Verdict::NoNumber => "no number",
            Verdict::NoValue => "no value",
            Verdict::Refused => "refused",
        }
    }
}

/// A verdict and its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Judgement {
    pub verdict: Verdict,
    pub why: String,
}

impl Judgement {
    pub(crate) fn new(verdict: Verdict, why: impl Into<String>) -> Judgement {
        Judgement { verdict, why: why.into() }
    }
    pub(crate) fn of(agrees: bool, why: impl Into<String>) -> Judgement {
        Judgement::new(if agrees { Verdict::Agrees } else { Verdict::Differs }, why)
    }
}

/// Differences closer to none than this have no direction: the spread over seeds is of this order.
pub(crate) const NO_DIRECTION: f64 = 0.01;

/// Whether a number is the other's within a share of it.
pub(crate) fn is_near(ours: f64, paper: f64, agree: f64) -> bool {
    (ours - paper).abs() <= agree * paper.abs()
}

/// The verdict on a value in the row's unit; `half` is half of its interval over seeds.
pub(crate) fn judge(row: &Row, ours: f64, half: Option<f64>) -> Judgement {
    let even = row.measure.even().map(|even| even * row.factor());
    if let (Some(even), Some(half)) = (even, half)
        && (ours - even).abs() < half
    {
        return Judgement::new(Verdict::Undecided, "the seeds do not tell it from no difference");
    }
    match (row.paper.number, row.paper.at_least, row.paper.at_most) {
        (Some(paper), ..) => number(row, ours, paper, even),
        (None, None, None) => Judgement::new(Verdict::NoNumber, "the paper states no number"),
        (None, low, high) => range(ours, low, high, even),
    }
}

fn number(row: &Row, ours: f64, paper: f64, even: Option<f64>) -> Judgement {
    let from = row.judge_from;
    let ratio = (ours - from) / (paper - from);
    let near = is_near(ours - from, paper - from, row.agree);
    let turned = even.filter(|even| (ours > *even) != (paper > *even));
    let small = even.is_some_and(|even| (ours - even).abs() < NO_DIRECTION * row.factor());
    let direction = match (even, small, turned) {
        (None, ..) => "",
        (Some(_), true, _) => "no difference here, ",
        (Some(_), false, None) => "same direction, ",
        (Some(_), false, Some(_)) => "other direction, ",
    };
    let of = if from == 0.0 { String::new() } else { format!(" of the difference from {from}") };
    let why = format!("{direction}ratio ours/paper{of} {ratio:.2}");
    match (near, small, turned) {
        (true, ..) => Judgement::new(Verdict::Agrees, why),
        (false, false, Some(_)) => Judgement::new(Verdict::Opposite, why),
        _ => Judgement::new(Verdict::Differs, why),
    }
}

fn range(ours: f64, low: Option<f64>, high: Option<f64>, even: Option<f64>) -> Judgement {
    let (side, bound) = match (low, high) {
        (Some(low), _) if ours < low => ("below", low),
        (_, Some(high)) if ours > high => ("above", high),
        _ => return Judgement::new(Verdict::Agrees, "within what the paper states"),
    };
    let why = format!("{side} what the paper states, ratio ours/paper {:.2}", ours / bound);
    let turned = even.is_some_and(|even| (ours - even) * (bound - even) < 0.0);
    Judgement::new(if turned { Verdict::Opposite } else { Verdict::Differs }, why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::{Kind, Stated};
    use crate::measure::{Figure, Measure, Part};

    fn row(measure: Measure, unit: &str) -> Row {
        Row {
            id: "X.y".to_owned(),
            kind: Kind::Figure,
            quantity: String::new(),
            unit: unit.to_owned(),
            source: String::new(),
            paper: Default::default(),
            agree: 0.2,
            judge_from: 0.0,
            measure,
            cases: Vec::new(),
            machines: Vec::new(),
            rivals_tried: 1,
            cause: None,
            cause_row: None,
        }
    }

    fn verdict(row: &Row, ours: f64) -> Verdict {
        judge(row, ours, None).verdict
    }

    #[test]
    fn a_gain_is_compared_with_the_gain_and_not_one_plus_it() {
        let mut gain = row(Measure::Gain(Part::Whole), "%");
        gain.paper.number = Some(25.0);
        assert_eq!(verdict(&gain, 24.0), Verdict::Agrees);
        // 1.04 over 1.25 is within 20 %; 4 over 25 is not.
        assert_eq!(verdict(&gain, 4.0), Verdict::Differs);
        assert_eq!(verdict(&gain, 0.5), Verdict::Differs);
        assert_eq!(verdict(&gain, -4.0), Verdict::Opposite);
        assert!(judge(&gain, 5.0, None).why.ends_with("0.20"));
    }

    #[test]
    fn a_relative_time_is_compared_by_its_difference_from_one_where_the_row_says_so() {
        let mut time = row(Measure::Speedup(Part::Measured), "x");
        time.paper.number = Some(0.97);
        assert_eq!(verdict(&time, 0.86), Verdict::Agrees);
        time.judge_from = 1.0;
        assert_eq!(verdict(&time, 0.86), Verdict::Differs);
        assert_eq!(verdict(&time, 0.967), Verdict::Agrees);
        assert_eq!(verdict(&time, 1.2), Verdict::Opposite);
    }

    #[test]
    fn a_range_allows_nothing_beyond_the_papers_own_ends() {
        let mut share = row(Measure::Mean(Figure::FastHits), "%");
        share.paper.at_least = Some(90.0);
        let of = |ours| judge(&share, ours, None);
        assert_eq!(of(95.0), Judgement::new(Verdict::Agrees, "within what the paper states"));
        assert_eq!(of(90.0).verdict, Verdict::Agrees);
        assert_eq!(of(89.9), Judgement::new(Verdict::Differs, "below what the paper states, ratio ours/paper 1.00"));
        share.paper = Stated { at_most: Some(55.0), ..Stated::default() };
        assert_eq!([55.0, 55.1].map(|ours| verdict(&share, ours)), [Verdict::Agrees, Verdict::Differs]);
        let mut factor = row(Measure::Speedup(Part::Whole), "x");
        factor.paper.at_least = Some(3.0);
        assert_eq!(verdict(&factor, 0.5), Verdict::Opposite);
    }

    #[test]
    fn seeds_that_do_not_tell_a_difference_leave_it_undecided() {
        let mut gain = row(Measure::Gain(Part::Whole), "%");
        gain.paper.number = Some(5.0);
        assert_eq!(judge(&gain, 5.0, Some(6.0)).verdict, Verdict::Undecided);
        assert_eq!(judge(&gain, 5.0, Some(2.0)).verdict, Verdict::Agrees);
    }

    #[test]
    fn without_a_number_there_is_no_agreement() {
        assert_eq!(verdict(&row(Measure::Mean(Figure::Drift), "%"), 50.0), Verdict::NoNumber);
    }
}
