//! Trackers that lie, and trackers that are blind, must not pass the proof.

use terrace_core::random::mix;
use terrace_core::units::{Bytes, TierId};

use super::*;
use crate::trackers::TrackError;

/// A tracker that makes up what it says: `says` gets a page's number and what was last done to it.
struct Pretender<F> {
    says: F,
    grade: Grade,
    rounds: u64,
    kind: ProofKind,
}

fn grade(reads: bool, writes: bool) -> Grade {
    Grade { granularity_bytes: Bytes::new(4096), reads, writes, cost_ns_per_page: None }
}

fn pretender<F: Fn(usize) -> bool>(reads: bool, writes: bool, says: F) -> Pretender<F> {
    Pretender { says, grade: grade(reads, writes), rounds: 0, kind: ProofKind::Marks { dwell: Duration::ZERO } }
}

impl<F: Fn(usize) -> bool> Tracker for Pretender<F> {
    fn name(&self) -> &'static str {
        "pretender"
    }

    fn grade(&self) -> Grade {
        self.grade
    }

    fn scan(&mut self, round: &Round<'_>, sink: &mut dyn Sink) -> Result<(), TrackError> {
        let targets = round.targets;
        self.rounds += 1;
        let range = targets[0].ranges[0];
        let pages = (range.end.0 - range.start.0) as usize;
        for block in 0..pages / 512 {
            let pte = |page| PteState::placed(TierId::FAST).with_accessed((self.says)(page));
            let ptes: Vec<PteState> = (block * 512..(block + 1) * 512).map(pte).collect();
            let window = (self.rounds > 1).then_some(Duration::from_millis(1));
            sink.scan(targets[0].space, Vpn(range.start.0 + block as u64 * 512), &ptes, window, true);
        }
        Ok(())
    }

    fn events(&mut self, _: Time, _: &[Target<'_>], _: &mut dyn Sink) -> Result<(), TrackError> {
        Ok(())
    }

    fn proof_kind(&self) -> ProofKind {
        self.kind
    }
}

fn no_tiers() -> TierMap {
    TierMap::new(Vec::new(), Vec::new())
}

#[test]
fn one_that_knows_is_passed_with_its_cost() {
    let truth = pattern();
    let proof = prove(&mut pretender(true, true, |page| truth[page] != Touch::Left), &no_tiers()).unwrap();
    assert_eq!((proof.read_recall, proof.write_recall, proof.precision), (Some(1.0), Some(1.0), 1.0));
    assert!(proof.grade.cost_ns_per_page.is_some_and(|cost| cost > 0.0));
}

#[test]
fn one_that_knows_only_writes_may_say_so() {
    let truth = pattern();
    let writes = |page: usize| truth[page] == Touch::Written;
    let proof = prove(&mut pretender(false, true, writes), &no_tiers()).unwrap();
    assert_eq!((proof.read_recall, proof.write_recall), (None, Some(1.0)));
    let error = prove(&mut pretender(true, true, writes), &no_tiers()).unwrap_err();
    assert_eq!(error.to_string(), "it saw 0 % of the pages that were read, and at least 90 % are wanted");
}

#[test]
fn a_blind_one_is_refused() {
    let error = prove(&mut pretender(true, true, |_| false), &no_tiers()).unwrap_err();
    assert!(matches!(error, ProofError::Blind { recall: 0.0, .. }), "{error}");
}

#[test]
fn one_that_calls_everything_hot_is_refused() {
    let error = prove(&mut pretender(true, true, |_| true), &no_tiers()).unwrap_err();
    assert!(matches!(error, ProofError::Wrong { reported: PAGES, .. }), "{error}");
}

#[test]
fn one_that_guesses_is_refused() {
    let guess = |page: usize| mix(page as u64 + 99).is_multiple_of(2);
    assert!(prove(&mut pretender(true, true, guess), &no_tiers()).is_err());
}

#[test]
fn one_that_forgets_a_fifth_is_refused() {
    let truth = pattern();
    let error =
        prove(&mut pretender(true, true, |page| truth[page] != Touch::Left && page % 5 != 0), &no_tiers()).unwrap_err();
    assert!(matches!(error, ProofError::Blind { recall, .. } if recall > 0.7), "{error}");
}

#[test]
fn one_whose_source_is_silent_is_refused() {
    let refused = |kind| prove(&mut Pretender { kind, ..pretender(true, true, |_| true) }, &no_tiers()).unwrap_err();
    assert!(matches!(refused(ProofKind::Samples), ProofError::FewSamples(0)));
    assert!(matches!(refused(ProofKind::FirstTouches), ProofError::Blind { recall: 0.0, .. }));
}

#[test]
fn a_quarter_is_read_a_quarter_written_and_half_left() {
    let truth = pattern();
    for (touch, share) in [(Touch::Read, 0.25), (Touch::Written, 0.25), (Touch::Left, 0.5)] {
        let found = truth.iter().filter(|&&found| found == touch).count() as f64 / PAGES as f64;
        assert!((found - share).abs() < 0.03, "{touch:?}: {found}");
    }
    let mut order = shuffled();
    order.sort_unstable();
    assert!(order.iter().enumerate().all(|(index, &page)| index == page as usize));
}
