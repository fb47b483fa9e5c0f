//! What could be saved at best within a target: bounds that no tuner passes, by runs at fixed sizes.
//!
//! In: parts of runs with everything fast and at fixed sizes. Out: shares of the peak. Must not: know a tuner.
//!
//! Four bounds, each above the one before. *One size, steadily*: the smallest with which the loss is within the target in 95 of 100 parts of
//! equal work as well, as the tuner is to keep it. *One size*: the smallest that holds the target from the start to the end, by a straight line
//! between the sizes that were run. *And what is not touched yet*: the same size, where memory that the program has not touched
//! counts as saved, too, as it does for a tuner that follows the program as it grows. *A size for each part*: the run is cut into forty
//! parts of equal work, and each is held at the size that suits best, with the losses known beforehand and changes of the size for
//! nothing. That is a choice of one item a part within a budget; its linear relaxation, solved by its dual, is no less than any choice.

use terrace_tuning::percentile_95;

/// A run: what it took, and the seconds and resident pages of its parts.
pub(crate) struct Run<'a> {
    pub seconds: f64,
    pub parts: &'a [(f64, f64)],
}

impl Run<'_> {
    /// `None` for a run that was too short to be cut.
    fn parts(&self) -> Option<&[(f64, f64)]> {
        Some(self.parts).filter(|parts| !parts.is_empty())
    }
}

/// The bounds, as shares of the peak.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Bounds {
    /// What is not touched yet, alone: no bound, but the saving of a manager that follows the program's growth and withholds nothing.
    pub untouched: f64,
    pub steady: f64,
    pub one_size: f64,
    pub and_untouched: f64,
    pub each_part: f64,
}

/// The bounds of a program with this many pages at its peak: the run with everything fast, and those at shares of the peak. `None` if one
/// was too short.
pub(crate) fn bounds(peak: u64, full: &Run<'_>, fixed: &[(f64, Run<'_>)], max_slowdown: f64) -> Option<Bounds> {
    let mut losses: Vec<(f64, f64)> =
        fixed.iter().map(|(share, run)| (1.0 - share, run.seconds / full.seconds - 1.0)).collect();
    losses.sort_by(|a, b| a.0.total_cmp(&b.0));
    let one_size = most_saving(&losses, max_slowdown);
    let parts = full.parts()?;
    let resident: Vec<f64> = parts.iter().map(|(_, pages)| (pages / peak as f64).min(1.0)).collect();
    let weights: Vec<f64> = parts.iter().map(|(seconds, _)| seconds / full.seconds).collect();
    let untouched = weights.iter().zip(&resident).map(|(w, resident)| w * (1.0 - resident)).sum();
    let and_untouched =
        weights.iter().zip(&resident).map(|(w, resident)| w * (1.0 - resident.min(1.0 - one_size))).sum();
    let mut steady: Vec<(f64, f64)> = Vec::new();
    for (share, run) in fixed {
        let worst = percentile_95(&part_losses(full, run)?).unwrap_or(0.0);
        steady.push((1.0 - share, worst.max(run.seconds / full.seconds - 1.0)));
    }
    steady.sort_by(|a, b| a.0.total_cmp(&b.0));
    let steady = most_saving(&steady, max_slowdown);
    let mut choices: Vec<Vec<(f64, f64)>> =
        weights.iter().zip(&resident).map(|(w, resident)| vec![(w * (1.0 - resident), 0.0)]).collect();
    for (share, run) in fixed {
        for (place, (seconds, _)) in run.parts()?.iter().enumerate() {
            let saved = weights[place] * (1.0 - resident[place].min(*share));
            choices[place].push((saved, seconds / full.seconds - weights[place]));
        }
    }
    Some(Bounds { untouched, steady, one_size, and_untouched, each_part: most_within(&choices, max_slowdown) })
}

/// How much longer each part of a run took than with everything fast. `None` if one was too short to be cut.
pub(crate) fn part_losses(full: &Run<'_>, run: &Run<'_>) -> Option<Vec<f64>> {
    let parts = full.parts()?.iter().zip(run.parts()?);
    Some(parts.map(|((full, _), (run, _))| if *full > 0.0 { run / full - 1.0 } else { 0.0 }).collect())
}

/// The most value of one choice (value, cost) a place with costs of at most `budget` in sum, by the dual of the linear relaxation:
/// the least over prices of what the choices are worth net of the price, and the budget at that price. Convex in the price.
fn most_within(choices: &[Vec<(f64, f64)>], budget: f64) -> f64 {
    let worth = |price: f64| {
        let net = |list: &Vec<(f64, f64)>| {
            list.iter().map(|(value, cost)| value - price * cost).fold(f64::NEG_INFINITY, f64::max)
        };
        choices.iter().map(net).sum::<f64>() + price * budget
    };
    let (mut low, mut high) = (0.0, 1e4);
    for _ in 0..200 {
        let (a, b) = (low + (high - low) / 3.0, high - (high - low) / 3.0);
        if worth(a) <= worth(b) { high = b } else { low = a }
    }
    worth(f64::midpoint(low, high))
}

/// Largest saving within a target by a straight line between the sizes that were run.
pub(crate) fn most_saving(points: &[(f64, f64)], max_slowdown: f64) -> f64 {
    let mut best = 0.0;
    let mut before = (0.0, 0.0);
    for &(saving, loss) in points {
        if loss <= max_slowdown {
            best = saving;
        } else {
            let part = (max_slowdown - before.1) / (loss - before.1);
            return f64::max(best, before.0 + part.clamp(0.0, 1.0) * (saving - before.0));
        }
        before = (saving, loss);
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::course::Course;

    /// A run whose speed is `speed(work done)`, with `resident` pages.
    fn course(speed: impl Fn(f64) -> f64, resident: impl Fn(f64) -> u64) -> (f64, Vec<(f64, f64)>) {
        let (mut seconds, mut points) = (0.0, Vec::new());
        for step in 0..=200 {
            let work = f64::from(step) * 0.5;
            points.push((work, seconds, resident(work)));
            if step < 200 {
                seconds += 0.5 / speed(work);
            }
        }
        (seconds, Course { points }.parts(seconds).unwrap())
    }

    #[test]
    fn a_program_with_a_cold_phase_can_do_with_less_in_that_phase() {
        let everything = |_: f64| 1000;
        let (full_seconds, full) = course(|_| 1.0, everything);
        // Half fast: nothing is lost in the first half of the work, half the speed in the second.
        let (half_seconds, half) = course(|work| if work < 50.0 { 1.0 } else { 0.5 }, everything);
        let fixed = [(0.5, Run { seconds: half_seconds, parts: &half })];
        let bounds = bounds(1000, &Run { seconds: full_seconds, parts: &full }, &fixed, 0.05).unwrap();
        // 50 % loss at 50 %: 5 % at 5 %.
        assert!((bounds.one_size - 0.05).abs() < 0.01, "{bounds:?}");
        assert!((bounds.and_untouched - bounds.one_size).abs() < 1e-9, "{bounds:?}");
        // Half of the parts lose all that a size costs there.
        assert!((bounds.steady - 0.025).abs() < 0.01, "{bounds:?}");
        // The first half without loss, and a tenth of the second half for 5 %.
        assert!((bounds.each_part - (0.25 + 0.025)).abs() < 0.01, "{bounds:?}");
    }

    #[test]
    fn what_is_not_touched_yet_is_saved() {
        let (seconds, full) = course(|_| 1.0, |work| (work * 10.0) as u64);
        let (slow_seconds, slow) = course(|_| 0.5, |work| (work * 10.0) as u64);
        let fixed = [(0.99, Run { seconds: slow_seconds, parts: &slow })];
        let bounds = bounds(1000, &Run { seconds, parts: &full }, &fixed, 0.05).unwrap();
        assert!(
            bounds.one_size < 0.001
                && (bounds.and_untouched - 0.5).abs() < 0.01
                && (bounds.untouched - 0.5).abs() < 0.01,
            "{bounds:?}"
        );
        assert!(bounds.each_part >= bounds.and_untouched - 1e-6, "{bounds:?}");
    }

    #[test]
    fn a_run_too_short_to_be_cut_has_no_bound() {
        let short = Course { points: vec![(0.0, 0.0, 1), (1.0, 1.0, 1)] };
        assert_eq!(short.parts(1.0), None);
        assert_eq!(bounds(1, &Run { seconds: 1.0, parts: &[] }, &[], 0.05), None);
    }

    #[test]
    fn the_most_saving_lies_between_the_sizes_that_were_run() {
        assert!((most_saving(&[(0.1, 0.02), (0.2, 0.08)], 0.05) - 0.15).abs() < 1e-9);
        assert!((most_saving(&[(0.1, 0.10)], 0.05) - 0.05).abs() < 1e-9);
        assert_eq!(most_saving(&[(0.1, 0.0), (0.3, 0.04)], 0.05), 0.3);
    }
}
