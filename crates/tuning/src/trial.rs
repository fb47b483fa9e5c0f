//! A randomised comparison of two ways to run a program, in the place where it runs: managed or left alone, one size or another.
//!
//! In: the speed of the program in each window. Out: which way the next window has, the gain with an interval that holds at any time, and
//! whether harm is shown. Must not: read a clock, or know what the two ways are.
//!
//! Windows that count come in pairs, one of each way, and a coin decides which is first. The difference of a pair's logarithms estimates the
//! gain: load that drifts, or that is the same for minutes, falls on both ways alike. [`sequence`] makes an interval of the differences.
//!
//! At first pair follows pair. After [`TrialConfig::eager_pairs`] of them each pair is followed by windows of the first way that do not count, so that
//! the second has one window of four.

pub mod sequence;

use terrace_core::random::SplitMix64;

pub use self::sequence::PairedSequence;

/// Which way a window has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Arm {
    /// What is tried: managed, or the smaller size.
    Treated,
    /// What it is compared with: left alone, or the larger size.
    Control,
}

impl Arm {
    const fn other(self) -> Arm {
        match self {
            Arm::Treated => Arm::Control,
            Arm::Control => Arm::Treated,
        }
    }
}

/// What a trial is made with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TrialConfig {
    /// Seed of the order within the pairs.
    pub seed: u64,
    /// Chance of an error on each side of the interval, over all looks together, above 0 and below 1.
    pub error: f64,
    /// Pairs that follow each other without a pause.
    pub eager_pairs: u64,
    /// Windows of the treated way after each pair from then on.
    pub rest_windows: u32,
    /// A loss up to this share is no harm.
    pub allowed_loss: f64,
}

impl TrialConfig {
    /// An interval of 90 %, that is 5 % on each side; six pairs, the least with which a side can be decided at 5 %; then at most one window of four
    /// left alone.
    pub const fn new(seed: u64) -> TrialConfig {
        TrialConfig { seed, error: 0.05, eager_pairs: 6, rest_windows: 2, allowed_loss: 0.0 }
    }

    /// With this share of the windows in the control's way once the eager pairs are over, above 0; a half at most.
    #[must_use]
    pub fn with_control(self, share: f64) -> TrialConfig {
        // A pair has one window of each way, and what is left of `1 / share` is treated.
        TrialConfig { rest_windows: (share.recip().round() - 2.0).clamp(0.0, f64::from(u32::MAX)) as u32, ..self }
    }
}

/// Pairs after which the count begins again: four hours of windows of 30 s at one of four. Programs change, and what was true yesterday should not
/// outvote today. The chance of an error is that of each such stretch.
pub const MOST_PAIRS: usize = 128;

/// Where a trial is within a pair.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    First(Arm),
    /// The second of a pair, with the logarithm of the first's speed.
    Second(Arm, f64),
    /// A window that does not count, with how many of them are left.
    Rest(u32),
}

/// What is known after a window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gain {
    /// How much faster the treated way is: 0.05 is 5 % faster, -0.05 5 % slower.
    pub gain: f64,
    /// The interval in which it lies; none as long as there are too few pairs to exclude anything.
    pub interval: Option<(f64, f64)>,
}

/// See the module's header.
#[derive(Clone, Debug)]
pub struct Trial {
    config: TrialConfig,
    coin: SplitMix64,
    place: Place,
    sequence: PairedSequence,
    pairs: u64,
    windows: u64,
    discarded: u64,
    known: Option<Gain>,
}

impl Trial {
    /// A trial without windows.
    pub fn new(config: TrialConfig) -> Trial {
        let mut coin = SplitMix64::new(config.seed);
        let place = Place::First(toss(&mut coin));
        let sequence = PairedSequence::new();
        Trial { config, coin, place, sequence, pairs: 0, windows: 0, discarded: 0, known: None }
    }

    /// The way of the current window.
    pub fn arm(&self) -> Arm {
        match self.place {
            Place::First(arm) | Place::Second(arm, _) => arm,
            Place::Rest(_) => Arm::Treated,
        }
    }

    /// Whether the current window counts.
    pub fn counts(&self) -> bool {
        !matches!(self.place, Place::Rest(_))
    }

    /// Ends a window. `speed` is what the program did in it, in any unit, more is better; `None` if it was not measured, and then the pair is
    /// made again. A speed that is not a positive number is none.
    pub fn finish(&mut self, speed: Option<f64>) {
        let speed = speed.filter(|speed| speed.is_finite() && *speed > 0.0).map(f64::ln);
        match (self.place, speed) {
            (Place::Rest(left), _) if left > 1 => self.place = Place::Rest(left - 1),
            (Place::Rest(_), _) => self.begin_pair(),
            (Place::First(arm), Some(speed)) => self.place = Place::Second(arm.other(), speed),
            (Place::Second(arm, first), Some(second)) => {
                self.count(if arm == Arm::Treated { second - first } else { first - second });
            }
            (Place::First(_), None) => {
                self.discarded += 1;
                self.begin_pair();
            }
            (Place::Second(..), None) => {
                self.discarded += 2;
                self.begin_pair();
            }
        }
    }

    fn begin_pair(&mut self) {
        self.place = Place::First(toss(&mut self.coin));
    }

    fn count(&mut self, difference: f64) {
        if self.sequence.len() == MOST_PAIRS {
            self.sequence = PairedSequence::new();
        }
        self.sequence.push(difference);
        self.pairs += 1;
        self.windows += 2;
        let of_logarithm = |difference: f64| difference.exp_m1();
        let interval = self.sequence.interval(self.config.error);
        self.known = self.sequence.centre().map(|centre| Gain {
            gain: of_logarithm(centre),
            interval: interval.map(|(low, high)| (of_logarithm(low), of_logarithm(high))),
        });
        match self.config.rest_windows {
            rest if rest > 0 && self.pairs >= self.config.eager_pairs => self.place = Place::Rest(rest),
            _ => self.begin_pair(),
        }
    }

    /// The differences of the pairs that the interval is of: logarithms of the speed, treated less control.
    pub fn differences(&self) -> &[f64] {
        self.sequence.differences()
    }

    /// Windows that were compared so far, since the trial began.
    pub fn windows(&self) -> u64 {
        self.windows
    }

    /// Windows that were not, because one of their pair could not be measured.
    pub fn discarded(&self) -> u64 {
        self.discarded
    }

    /// The gain, once there is a pair.
    pub fn gain(&self) -> Option<Gain> {
        self.known
    }

    /// Whether the treated way is shown to lose more than is allowed.
    pub fn harms(&self) -> bool {
        self.interval().is_some_and(|(_, high)| high < -self.config.allowed_loss)
    }

    /// Whether it is shown to lose no more than is allowed.
    pub fn is_harmless(&self) -> bool {
        self.interval().is_some_and(|(low, _)| low >= -self.config.allowed_loss)
    }

    fn interval(&self) -> Option<(f64, f64)> {
        self.known.and_then(|known| known.interval)
    }
}

fn toss(coin: &mut SplitMix64) -> Arm {
    if coin.next() >> 63 == 0 { Arm::Treated } else { Arm::Control }
}

#[cfg(test)]
mod tests;
