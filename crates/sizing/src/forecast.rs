//! The loss at sizes and under policies that a program never ran with: the engine itself, played on a sample of the program's pages.
//!
//! In: tapes of a run with everything fast ([`crate::tape`], [`crate::watched`]), a machine, sizes, policies. Out: for each policy a curve with
//! intervals, the least size that keeps a target, and the policy that needs least. Must not: start a thread (the caller plays the cells side by side),
//! or have a rule of its own for what a policy would do.
//!
//! Each cell is one policy at one size on the tape of one group of pages. The simulator plays it as it plays a whole program, with the policy's own
//! code, the kernel's lists and scanner, the equations of load, and what moves, faults and interrupts cost in virtual time. So what management takes
//! makes the run longer, in which more is managed: nothing has to be solved apart.
//!
//! A loss is the ratio of run times, slower over everything fast, of all groups together less one. Of a program that was watched it is that of the later
//! half of what is played: such a program goes on, and what leaves once at the start is no standing loss. Its error is the jackknife's, over groups
//! (Efron and Tibshirani, An Introduction to the Bootstrap, chapter 11): each group is left out once. Where the tapes have every page the groups differ
//! by their seed alone, and the error is that of chance. Intervals and probabilities are of one more group, not of the mean of all groups, so that a
//! run's own chance is in them; that is wide rather than narrow.

use terrace_core::policy::Policy;
use terrace_machine::scale::Scale;
use terrace_sim::run::{RunRequest, machines_at_once, run_together};
use terrace_sim::{FastSize, Pages, SimConfig, SimError, Source};

use crate::aet::Reuses;
use crate::student;
use crate::tape::{STANDING, Tape};

/// The policy that moves nothing: always a candidate, as management may cost more than it brings.
pub const NO_MIGRATION: &str = "first-touch";
/// The policy whose runs have everything fast.
pub const ALL_FAST: &str = "all-fast";
/// A careful size exceeds the target with at most this probability. Pond (Li et al., ASPLOS 2023, section 6) has the same for virtual machines
/// that exceed their performance margin.
pub const CAREFUL: f64 = 0.02;
/// The ends of an interval are exceeded with this probability each.
const TAIL: f64 = 0.05;
/// Sizes of a curve unless others are asked for.
pub const SHARES: [f64; 12] = [0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98];

/// What a cell came to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Played {
    /// Run time, of the scaled machine; of a watched program that of the later half, so that moves made once at the start are no standing loss.
    pub seconds: f64,
    /// Of that, time in which the program had nothing to do.
    pub idle_seconds: f64,
    /// Share of the accesses to memory that were not served by the fastest tier.
    pub slow_share: f64,
    /// Pages moved either way.
    pub moved_pages: u64,
}

/// The machine of `config`, whose scale is the program's own, for this share of the tape's pages.
fn machine_for(config: &SimConfig, tape: &Tape, share: f64) -> Result<SimConfig, SimError> {
    let mut config = config.clone();
    let factor = config.scale.factor().saturating_mul(tape.sample().one_in());
    config.scale = Scale::new(factor).ok_or_else(|| SimError::Parameter {
        name: "sample",
        value: format!("one page in {}", tape.sample().one_in()),
        wanted: "a scale of at most 1:1048576 with the program's own".to_owned(),
    })?;
    config.footprint = tape.footprint();
    config.fast = FastSize::Share(share);
    if config.scale != Scale::FULL && config.pages == Pages::Huge {
        config.pages = Pages::Folded;
    }
    Ok(config)
}

/// A loss with its error.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Time lost, over the time with everything fast.
    pub loss: f64,
    /// Standard error of one more group.
    error: f64,
    freedom: u32,
}

impl Estimate {
    /// Of run times with everything fast and slower, group by group; `None` if there is no group, or no time.
    pub fn of(groups: &[(Played, Played)]) -> Option<Estimate> {
        let busy = |(full, _): &(Played, Played)| full.seconds - full.idle_seconds;
        let lost = |(full, slower): &(Played, Played)| slower.seconds - full.seconds;
        let (all_lost, all_busy): (f64, f64) =
            groups.iter().fold((0.0, 0.0), |sums, group| (sums.0 + lost(group), sums.1 + busy(group)));
        if all_busy <= 0.0 {
            return None;
        }
        let count = groups.len() as f64;
        let without: Vec<f64> = groups
            .iter()
            .map(|group| (all_lost - lost(group)) / (all_busy - busy(group)).max(f64::MIN_POSITIVE))
            .collect();
        let mean = without.iter().sum::<f64>() / count;
        let of_mean =
            ((count - 1.0) / count * without.iter().map(|one| (one - mean).powi(2)).sum::<f64>()).max(0.0).sqrt();
        Some(Estimate {
            loss: all_lost / all_busy,
            error: of_mean * (1.0 + count).sqrt(),
            freedom: groups.len() as u32 - 1,
        })
    }

    /// The interval of nine in ten.
    pub fn interval(&self) -> (f64, f64) {
        if self.freedom == 0 {
            return (0.0, f64::INFINITY);
        }
        let reach = student::exceeded_with(TAIL, self.freedom) * self.error;
        (self.loss - reach, self.loss + reach)
    }

    /// The probability of a loss above `target`.
    pub fn probability_over(&self, target: f64) -> f64 {
        if self.error <= 0.0 && self.freedom > 0 {
            return f64::from(u8::from(self.loss > target));
        }
        student::above((target - self.loss) / self.error.max(f64::MIN_POSITIVE), self.freedom)
    }
}

/// A point of a policy's curve.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Point {
    /// Share of the resident size in fast memory.
    pub fast_share: f64,
    /// Expected loss against everything fast.
    pub loss: f64,
    /// At least, in nineteen cases of twenty.
    pub loss_low: f64,
    /// At most, in nineteen cases of twenty.
    pub loss_high: f64,
    /// Probability of a loss above the target.
    pub probability_over_target: f64,
    /// Share of the accesses to memory that slow memory serves.
    pub slow_share: f64,
    /// The same for memory that keeps what was used last, by reuse times alone ([`crate::aet`]).
    pub slow_share_by_recency: f64,
    /// Pages moved either way, over the pages of the program.
    pub moves_a_page: f64,
}

/// A policy's curve, and what follows of it.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Curve {
    /// The policy.
    pub policy: String,
    /// Least share at which, and at every larger one, the target is exceeded with a probability of at most [`CAREFUL`]; 1 if there is none.
    pub fast_share: f64,
    /// The same of the expected loss.
    pub fast_share_expected: f64,
    /// The probability of exceeding the target at `fast_share`.
    pub probability_over_target: f64,
    /// From the smallest size to the largest.
    pub curve: Vec<Point>,
}

impl Curve {
    /// Of points in order of their size.
    pub fn new(policy: &str, target: f64, curve: Vec<Point>) -> Curve {
        let careful = least_share(&curve, |point| point.probability_over_target <= CAREFUL && point.loss <= target);
        let expected = least_share(&curve, |point| point.loss <= target);
        let at = curve.iter().find(|point| point.fast_share == careful);
        Curve {
            policy: policy.to_owned(),
            fast_share: careful,
            fast_share_expected: expected,
            // With everything fast nothing is lost.
            probability_over_target: at.map_or(0.0, |point| point.probability_over_target),
            curve,
        }
    }
}

/// The least share that is good, and above which all are.
fn least_share(curve: &[Point], good: impl Fn(&Point) -> bool) -> f64 {
    match curve.iter().rposition(|point| !good(point)) {
        None => curve.first().map_or(1.0, |point| point.fast_share),
        Some(place) => curve.get(place + 1).map_or(1.0, |point| point.fast_share),
    }
}

/// Curves of the same policies and sizes where what the program did is known within bounds: made of the least that it can have been, of what is expected,
/// and of the most. A point's interval is from the least of all to the most of all, and its probability is that of the worst of them.
pub fn within_bounds(least: &[Curve], expected: &[Curve], most: &[Curve], target: f64) -> Vec<Curve> {
    let widened = |point: &Point, others: [Option<&Point>; 2]| {
        let others = || others.into_iter().flatten();
        Point {
            loss_low: others().map(|other| other.loss_low).fold(point.loss_low, f64::min),
            loss_high: others().map(|other| other.loss_high).fold(point.loss_high, f64::max),
            probability_over_target: others()
                .map(|other| other.probability_over_target)
                .fold(point.probability_over_target, f64::max),
            ..*point
        }
    };
    let at = |curve: &'_ [Curve], place: usize, share: f64| -> Option<Point> {
        curve.get(place)?.curve.iter().find(|point| point.fast_share == share).copied()
    };
    let curve = |(place, curve): (usize, &Curve)| {
        let points = curve.curve.iter().map(|point| {
            let bounds = [least, most].map(|bound| at(bound, place, point.fast_share));
            widened(point, [bounds[0].as_ref(), bounds[1].as_ref()])
        });
        Curve::new(&curve.policy, target, points.collect())
    };
    expected.iter().enumerate().map(curve).collect()
}

/// The curve that needs least fast memory, carefully, then as expected; of equal ones that which loses less at its size, and of those the first.
pub fn best(curves: &[Curve]) -> Option<&Curve> {
    let key = |curve: &&Curve| {
        let at = curve.curve.iter().find(|point| point.fast_share == curve.fast_share).map_or(0.0, |point| point.loss);
        (curve.fast_share, curve.fast_share_expected, at)
    };
    curves.iter().min_by(|a, b| {
        let ((a1, a2, a3), (b1, b2, b3)) = (key(a), key(b));
        a1.total_cmp(&b1).then(a2.total_cmp(&b2)).then(a3.total_cmp(&b3))
    })
}

/// What is to be forecast.
#[derive(Clone, Debug)]
pub struct Request {
    /// Sizes, from the smallest, each above 0 and below 1.
    pub shares: Vec<f64>,
    /// Policies.
    pub policies: Vec<String>,
    /// The loss that is accepted.
    pub target: f64,
}

/// One thing to be played.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// The group of pages.
    pub group: usize,
    /// Policy and size by their number; `None` for everything fast.
    pub of: Option<(usize, usize)>,
}

impl Request {
    /// Everything that has to be played with as many groups.
    pub fn cells(&self, groups: usize) -> Vec<Cell> {
        let mut cells = Vec::new();
        for group in 0..groups {
            cells.push(Cell { group, of: None });
            for policy in 0..self.policies.len() {
                cells.extend((0..self.shares.len()).map(|share| Cell { group, of: Some((policy, share)) }));
            }
        }
        cells
    }

    /// The name of a cell's policy, and its share.
    pub fn of(&self, cell: Cell) -> (&str, f64) {
        cell.of.map_or((ALL_FAST, 1.0), |(policy, share)| (self.policies[policy].as_str(), self.shares[share]))
    }

    /// The cells of [`Request::cells`] in their order, cut into parts that [`Request::play`] takes: each is of one group, and as many as fit into memory at once.
    pub fn parts(&self, tapes: &[Tape], groups: usize) -> Vec<Vec<Cell>> {
        let each = 1 + self.policies.len() * self.shares.len();
        let cells = self.cells(groups);
        let of_group = |(group, cells): (usize, &[Cell])| -> Vec<Vec<Cell>> {
            let at_once = machines_at_once(tapes[group % tapes.len()].footprint());
            cells.chunks(at_once).map(<[Cell]>::to_vec).collect()
        };
        cells.chunks_exact(each).enumerate().flat_map(of_group).collect()
    }

    /// Plays cells of one group, each under its policy, which `build` makes: the tape is played once for all of them. Each group has a seed of
    /// its own.
    ///
    /// # Errors
    /// When the configuration is out of range, a sample of this size would need a machine smaller than any, or `build` fails.
    pub fn play<E: From<SimError>>(
        &self,
        config: &SimConfig,
        tapes: &[Tape],
        cells: &[Cell],
        build: impl Fn(&str) -> Result<Box<dyn Policy>, E>,
    ) -> Result<Vec<Played>, E> {
        let Some(group) = cells.first().map(|cell| cell.group) else { return Ok(Vec::new()) };
        let tape = &tapes[group % tapes.len()];
        let mut config = config.clone();
        config.seed = config.seed.wrapping_add(group as u64);
        let mut requests = Vec::with_capacity(cells.len());
        for cell in cells {
            let (name, share) = self.of(*cell);
            requests.push(RunRequest::new(machine_for(&config, tape, share)?, build(name)?));
        }
        let factor = f64::from(config.scale.factor().saturating_mul(tape.sample().one_in()));
        let idle_seconds = tape.idle_seconds() / factor;
        run_together(requests, tape)
            .into_iter()
            .map(|report| {
                let report = report?;
                let began = report.phases.iter().find(|(name, _)| name == STANDING).map_or(0.0, |(_, at)| *at);
                Ok(Played {
                    seconds: report.seconds - began / factor,
                    idle_seconds,
                    slow_share: 1.0 - report.fast_hit_share,
                    moved_pages: report.promoted_pages + report.demoted_pages,
                })
            })
            .collect()
    }

    /// The curves, of all cells played, in the order of [`Request::cells`].
    pub fn curves(&self, played: &[Played], tapes: &[Tape]) -> Vec<Curve> {
        let each = 1 + self.policies.len() * self.shares.len();
        let reuses: Vec<Reuses> = tapes.iter().map(|tape| Reuses::of(tape.accessed())).collect();
        let by_recency = |share: f64| {
            let of = |reuses: &Reuses| reuses.slow_share(reuses.pages() as f64 * share);
            reuses.iter().map(of).sum::<f64>() / reuses.len().max(1) as f64
        };
        let recency: Vec<f64> = self.shares.iter().map(|share| by_recency(*share)).collect();
        let pages = tapes.iter().map(|tape| tape.footprint().pages()).sum::<u64>() as f64 / tapes.len().max(1) as f64;
        let groups: Vec<&[Played]> = played.chunks_exact(each).collect();
        let point = |policy: usize, share: usize| {
            let at = 1 + policy * self.shares.len() + share;
            let pairs: Vec<(Played, Played)> = groups.iter().map(|group| (group[0], group[at])).collect();
            let estimate = Estimate::of(&pairs)?;
            let (low, high) = estimate.interval();
            let mean = |of: &dyn Fn(&Played) -> f64| {
                pairs.iter().map(|(_, slower)| of(slower)).sum::<f64>() / pairs.len() as f64
            };
            Some(Point {
                fast_share: self.shares[share],
                loss: estimate.loss.max(0.0),
                loss_low: low.max(0.0),
                loss_high: high.max(0.0),
                probability_over_target: estimate.probability_over(self.target),
                slow_share: mean(&|played| played.slow_share),
                slow_share_by_recency: recency[share],
                moves_a_page: mean(&|played| played.moved_pages as f64) / pages.max(1.0),
            })
        };
        (0..self.policies.len())
            .map(|policy| {
                let points = (0..self.shares.len()).filter_map(|share| point(policy, share)).collect();
                Curve::new(&self.policies[policy], self.target, points)
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn played(seconds: f64) -> Played {
        Played { seconds, idle_seconds: 0.0, slow_share: 0.0, moved_pages: 0 }
    }

    #[test]
    fn groups_that_agree_leave_no_doubt_and_others_do() {
        let alike = Estimate::of(&[(played(1.0), played(1.04)); 4]).unwrap();
        assert!((alike.loss - 0.04).abs() < 1e-12);
        assert!(alike.probability_over(0.05) < 0.001 && alike.probability_over(0.03) > 0.999);
        let apart = [1.01, 1.02, 1.06, 1.07].map(|seconds| (played(1.0), played(seconds)));
        let apart = Estimate::of(&apart).unwrap();
        assert!((apart.loss - 0.04).abs() < 1e-12);
        assert!((0.2..0.5).contains(&apart.probability_over(0.05)), "{}", apart.probability_over(0.05));
        let (low, high) = apart.interval();
        assert!(low < 0.0 && high > 0.1, "{low} {high}");
        // One group says what is expected, and nothing about its error.
        let single = Estimate::of(&[(played(1.0), played(1.01))]).unwrap();
        assert!(single.probability_over(0.5) > CAREFUL && single.interval().1.is_infinite());
        assert!(Estimate::of(&[]).is_none());
    }

    #[test]
    fn idle_time_is_none_that_could_be_lost() {
        let idle = Played { idle_seconds: 9.0, ..played(10.0) };
        let estimate = Estimate::of(&[(idle, Played { seconds: 10.1, ..idle }); 2]).unwrap();
        assert!((estimate.loss - 0.1).abs() < 1e-9, "a tenth of the second in which it works: {}", estimate.loss);
    }

    fn point(fast_share: f64, loss: f64, probability_over_target: f64) -> Point {
        Point {
            fast_share,
            loss,
            loss_low: loss,
            loss_high: loss,
            probability_over_target,
            slow_share: 0.0,
            slow_share_by_recency: 0.0,
            moves_a_page: 0.0,
        }
    }

    #[test]
    fn what_is_known_within_bounds_is_careful_by_the_worst_and_expected_between() {
        let of = |losses: [(f64, f64); 2]| {
            let [small, large] = losses;
            vec![Curve::new("tpp", 0.05, vec![point(0.3, small.0, small.1), point(0.6, large.0, large.1)])]
        };
        let (least, expected) = (of([(0.0, 0.0), (0.0, 0.0)]), of([(0.02, 0.0), (0.01, 0.0)]));
        let most = of([(0.4, 1.0), (0.04, 0.01)]);
        let [curve] = within_bounds(&least, &expected, &most, 0.05).try_into().unwrap();
        assert_eq!((curve.fast_share, curve.fast_share_expected), (0.6, 0.3));
        assert_eq!(curve.probability_over_target, 0.01);
        let Point { loss, loss_low, loss_high, .. } = curve.curve[0];
        assert_eq!((loss_low, loss, loss_high), (0.0, 0.02, 0.4));
        // Without bounds it is what it was.
        assert_eq!(within_bounds(&[], &expected, &[], 0.05), expected);
    }

    #[test]
    fn the_careful_size_holds_from_there_up_and_the_answer_names_the_policy() {
        let dips = vec![point(0.2, 0.01, 0.0), point(0.4, 0.2, 1.0), point(0.6, 0.04, 0.1), point(0.8, 0.01, 0.01)];
        let tpp = Curve::new("tpp", 0.05, dips);
        assert_eq!((tpp.fast_share, tpp.fast_share_expected), (0.8, 0.6));
        assert_eq!(tpp.probability_over_target, 0.01);
        let none = Curve::new(NO_MIGRATION, 0.05, vec![point(0.4, 0.3, 1.0), point(0.6, 0.01, 0.0)]);
        assert_eq!(best(&[tpp, none.clone()]), Some(&none));
        let hopeless = Curve::new("tpp", 0.05, vec![point(0.4, 0.3, 1.0)]);
        assert_eq!((hopeless.fast_share, hopeless.probability_over_target), (1.0, 0.0));
    }
}
