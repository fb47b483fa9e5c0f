//! An interval for the effect behind paired differences that may be looked at after every pair.
//!
//! In: the difference of each pair, treated less control. Out: the interval, and the evidence against a supposed effect. Must not: assume a
//! distribution, or that pairs are independent of each other.
//!
//! A coin decided the order within each pair. So if the effect is `t`, a difference less `t` is as likely positive as negative, given its size
//! and all that was before: had the coin fallen the other way, its sign would be the other. This holds whatever the load does.
//! Somebody who bets on the sign then wins nothing on average, and
//!
//! ```text
//! evidence that the effect is below t:  product over pairs of  1 + tanh(c * (t - d) / m)
//! ```
//!
//! is a nonnegative martingale that begins at 1, as `(1 + tanh x) + (1 - tanh x) = 2`; `m` is the mean size of `d - t` so far, the present one
//! included, which is known before its sign is. By Ville's inequality (1939) it ever exceeds 1/a with probability a at most. The
//! interval has all `t` for which neither side's evidence does. This is Fisher's randomisation test (The Design of Experiments, 1935, section 21)
//! made sequential by betting: Shafer, Testing by betting (JRSS A, 2021); confidence sequences by betting: Waudby-Smith and Ramdas (JRSS B,
//! 2024). The factor for symmetric differences is exp(x)/cosh(x), as in de la Peña (Annals of Probability, 1999).

/// How boldly to bet: large shows a large effect after few pairs, small a small one after many. The evidence is the mean over all, by their weights,
/// and so a martingale too. Ours, chosen by the tests' measurements of power.
const BETS: [(f64, f64); 4] = [(2.0, 0.4), (1.0, 0.3), (0.5, 0.2), (0.25, 0.1)];
/// Steps in which an end of the interval is looked for, and halvings of the last step: less than a thousandth of the spread.
const STEPS: u32 = 24;
const HALVINGS: u32 = 12;
/// An end is looked for up to this multiple of the largest distance from the centre: farther out all signs are the same, and the evidence is at its most.
const REACH: f64 = 8.0;

/// On which side of a supposed effect the true one may lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Below it.
    Below,
    /// Above it.
    Above,
}

/// See the module's header.
#[derive(Clone, Debug, Default)]
pub struct PairedSequence {
    differences: Vec<f64>,
}

impl PairedSequence {
    /// Without pairs.
    pub const fn new() -> PairedSequence {
        PairedSequence { differences: Vec::new() }
    }

    /// Adds a pair's difference; one that is not finite is left out.
    pub fn push(&mut self, difference: f64) {
        if difference.is_finite() {
            self.differences.push(difference);
        }
    }

    /// The differences, in the order in which they came.
    pub fn differences(&self) -> &[f64] {
        &self.differences
    }

    /// Number of pairs.
    pub fn len(&self) -> usize {
        self.differences.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.differences.is_empty()
    }

    /// The estimate: the median of the means of all two pairs (Hodges and Lehmann 1963), which a few wild pairs do not move.
    pub fn centre(&self) -> Option<f64> {
        let d = &self.differences;
        let mut means: Vec<f64> =
            (0..d.len()).flat_map(|left| (left..d.len()).map(move |right| f64::midpoint(d[left], d[right]))).collect();
        means.sort_by(f64::total_cmp);
        let middle = means.len() / 2;
        match means.len() {
            0 => None,
            length if length % 2 == 1 => Some(means[middle]),
            _ => Some(f64::midpoint(means[middle - 1], means[middle])),
        }
    }

    /// The evidence that the effect lies on this side of `supposed`: 1 is none, 20 is what chance gives in one of 20 trials at most.
    pub fn evidence(&self, side: Side, supposed: f64) -> f64 {
        let sign = match side {
            Side::Below => -1.0,
            Side::Above => 1.0,
        };
        BETS.iter().map(|(bet, weight)| weight * self.won(sign, supposed, *bet).exp()).sum()
    }

    /// Logarithm of what one bet has become.
    fn won(&self, sign: f64, supposed: f64, bet: f64) -> f64 {
        let (mut sizes, mut sum) = (0.0, 0.0);
        for (index, difference) in self.differences.iter().enumerate() {
            let off = difference - supposed;
            sizes += off.abs();
            let mean = sizes / (index + 1) as f64;
            if mean > 0.0 {
                sum += (sign * bet * off / mean).tanh().ln_1p();
            }
        }
        sum
    }

    /// The interval whose ends each err with probability `error` at most, over all looks; `None` as long as an end is open.
    pub fn interval(&self, error: f64) -> Option<(f64, f64)> {
        let centre = self.centre()?;
        let spread = self.differences.iter().map(|difference| (difference - centre).abs()).fold(0.0, f64::max);
        // Pairs without any spread still have the precision of the numbers.
        let reach = REACH * spread.max(centre.abs() * 1e-6).max(1e-9);
        let low = self.end(Side::Above, centre, -reach, error)?;
        let high = self.end(Side::Below, centre, reach, error)?;
        Some((low, high))
    }

    /// The farthest effect from the centre that is not refuted, up to `reach`.
    fn end(&self, side: Side, centre: f64, reach: f64, error: f64) -> Option<f64> {
        let refuted = |effect: f64| self.evidence(side, effect) >= 1.0 / error;
        let at = |step: u32| centre + reach * (f64::from(step) / f64::from(STEPS)).powi(3);
        if !refuted(at(STEPS)) {
            return None;
        }
        let step = (0..STEPS).rev().find(|step| !refuted(at(*step)))?;
        let (mut inside, mut outside) = (at(step), at(step + 1));
        for _ in 0..HALVINGS {
            let middle = f64::midpoint(inside, outside);
            *(if refuted(middle) { &mut outside } else { &mut inside }) = middle;
        }
        Some(outside)
    }
}
