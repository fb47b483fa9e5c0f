//! Proof mode: the class is managed and left unmanaged in turns, and the difference is measured.
//!
//! In: the share of time that a class lost to memory in each window. Out: the current window, the effect with its interval, and the
//! verdict. Must not: report harm that chance explains.
//!
//! Windows come in pairs, and the order within a pair alternates, so that a steadily growing load favours neither. The mean of the
//! differences has a 95 % interval by Student's t distribution (Gosset 1908). Harm is shown when the whole interval lies above the allowed
//! stall; management of the class then stops.

use std::time::Duration;

use crate::view;

/// Number of differences kept: the latest ones, since programs change.
const PAIRS: usize = 32;
/// No verdict with fewer: the interval of two pairs is thirteen standard deviations wide.
const LEAST_PAIRS: usize = 4;
/// Two-sided 95 % quantiles of Student's t for 1 to 30 degrees of freedom (Abramowitz and Stegun, table 26.10).
const STUDENT: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
];

/// What to do after a window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Step {
    /// Manage the class in the next window.
    Manage,
    /// Leave it unmanaged in the next window.
    LeaveAlone,
    /// Harm is shown, by this interval: stop managing the class.
    Stop((f64, f64)),
}

/// See the module's header.
#[derive(Clone, Debug)]
pub struct Proof {
    window: Duration,
    allowed: f64,
    elapsed: Duration,
    lost: Duration,
    /// Completed windows.
    windows: u64,
    first: f64,
    differences: Vec<f64>,
    pairs: u64,
}

impl Proof {
    /// Proof mode with windows of this length; management may cost up to `allowed` of the class's time.
    pub fn new(window: Duration, allowed: f64) -> Proof {
        Proof {
            window,
            allowed,
            elapsed: Duration::ZERO,
            lost: Duration::ZERO,
            windows: 0,
            first: 0.0,
            differences: Vec::new(),
            pairs: 0,
        }
    }

    /// The length of a window.
    pub fn window(&self) -> Duration {
        self.window
    }

    /// Whether the class is managed in the current window.
    pub fn managed(&self) -> bool {
        // on off, off on, on off, ...
        matches!(self.windows % 4, 0 | 3)
    }

    /// Adds an interval, and how much of it the class's processes lost to memory. Returns whether a window ended.
    pub fn add(&mut self, elapsed: Duration, lost: Duration) -> bool {
        self.elapsed += elapsed;
        self.lost += lost;
        if self.elapsed < self.window {
            return false;
        }
        let share = self.lost.as_secs_f64() / self.elapsed.as_secs_f64();
        let managed = self.managed();
        if self.windows.is_multiple_of(2) {
            self.first = share;
        } else {
            let difference = if managed { share - self.first } else { self.first - share };
            if self.differences.len() == PAIRS {
                self.differences.remove(0);
            }
            self.differences.push(difference);
            self.pairs += 1;
        }
        self.windows += 1;
        (self.elapsed, self.lost) = (Duration::ZERO, Duration::ZERO);
        true
    }

    /// Adds an interval, and how much of it was lost. Returns what to do next once a window ends.
    pub fn step(&mut self, elapsed: Duration, lost: Duration) -> Option<Step> {
        if !self.add(elapsed, lost) {
            return None;
        }
        Some(match self.effect() {
            Some((_, interval)) if self.harms() => Step::Stop(interval),
            _ if self.managed() => Step::Manage,
            _ => Step::LeaveAlone,
        })
    }

    /// The mean difference and its 95 % interval; `None` with fewer than two pairs.
    pub fn effect(&self) -> Option<(f64, (f64, f64))> {
        let count = self.differences.len();
        if count < 2 {
            return None;
        }
        let mean = self.differences.iter().sum::<f64>() / count as f64;
        let squares: f64 = self.differences.iter().map(|difference| (difference - mean).powi(2)).sum();
        let error = (squares / (count - 1) as f64 / count as f64).sqrt();
        // Above 30 degrees of freedom the last entry is the largest of the rest: the interval is slightly too wide.
        let reach = STUDENT[(count - 2).min(STUDENT.len() - 1)] * error;
        Some((mean, (mean - reach, mean + reach)))
    }

    /// Whether management was shown to cost more than allowed.
    pub fn harms(&self) -> bool {
        self.differences.len() >= LEAST_PAIRS && self.effect().is_some_and(|(_, (low, _))| low > self.allowed)
    }

    /// The view of it.
    pub fn view(&self) -> view::Proof {
        let effect = self.effect();
        let verdict = match effect {
            _ if self.harms() => "harmful",
            Some((_, (_, high))) if self.differences.len() >= LEAST_PAIRS && high <= self.allowed => "harmless",
            _ => "measuring",
        };
        view::Proof {
            pairs: self.pairs,
            effect: effect.map(|(mean, _)| mean),
            interval: effect.map(|(_, interval)| interval),
            verdict: verdict.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs windows with these losses when managed and unmanaged, with a disturbance by window number.
    fn run(windows: u64, managed: f64, alone: f64, noise: impl Fn(u64) -> f64) -> Proof {
        let mut proof = Proof::new(Duration::from_secs(10), 0.02);
        for window in 0..windows {
            let share = if proof.managed() { managed } else { alone } + noise(window);
            while !proof.add(Duration::from_secs(1), Duration::from_secs_f64(share)) {}
        }
        proof
    }

    #[test]
    fn harm_is_found_and_chance_is_not_called_harm() {
        assert!(run(12, 0.10, 0.0, |window| (window % 3) as f64 * 0.003).harms());
        let harmless = run(40, 0.005, 0.0, |window| (window * 7 % 5) as f64 * 0.002);
        assert!(!harmless.harms());
        assert_eq!(harmless.view().verdict, "harmless");
        assert!(!run(6, 0.10, 0.0, |_| 0.0).harms(), "three pairs are too few");
        let noisy = run(20, 0.05, 0.0, |window| (window * 37 % 11) as f64 * 0.03);
        assert_eq!(noisy.view().verdict, "measuring", "{:?}", noisy.view());
    }

    #[test]
    fn windows_alternate_in_pairs_and_harm_ends_it_for_good() {
        let mut proof = Proof::new(Duration::from_secs(10), 0.02);
        let mut steps = Vec::new();
        let mut noise = 0u32;
        while steps.len() < 40 {
            let lost = if proof.managed() { 0.06 } else { 0.0 } + f64::from(noise % 7) * 0.001;
            noise += 1;
            if let Some(step) = proof.step(Duration::from_secs(1), Duration::from_secs_f64(lost)) {
                steps.push(step);
                if matches!(step, Step::Stop(_)) {
                    break;
                }
            }
        }
        assert_eq!(steps[..3], [Step::LeaveAlone, Step::LeaveAlone, Step::Manage], "on off, off on");
        assert_eq!(steps.len(), 2 * LEAST_PAIRS, "as soon as there are pairs enough");
        let Some(Step::Stop((low, high))) = steps.last().copied() else { panic!("{steps:?}") };
        assert!(low > 0.02 && (0.055..0.065).contains(&((low + high) / 2.0)), "{low} to {high}");
    }

    #[test]
    fn a_load_that_grows_favours_neither() {
        let proof = run(32, 0.0, 0.0, |window| window as f64 * 0.01);
        let (mean, (low, high)) = proof.effect().unwrap();
        assert!(mean.abs() < 1e-9 && low <= 0.0 && high >= 0.0, "{mean} in {low} to {high}");
    }
}
