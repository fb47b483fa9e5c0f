//! A record's curve: run time at every hundredth of the resident size, and the loss against all of it being fast.
//!
//! In: 100 run times. Out: losses, and the least size for a target. Must not: smooth or extrapolate.

/// Sizes of fast memory a record has: 1 % to 100 % of the resident size (the paper's 100 sizes a record).
pub const SIZES: usize = 100;

/// Losses at 1 % to 100 % of the resident size; 0.05 is 5 % longer than with everything fast.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    losses: [f64; SIZES],
}

/// The share of the place `place` in a record, counted from 0.
pub const fn share_at(place: usize) -> f64 {
    (place + 1) as f64 / SIZES as f64
}

impl Curve {
    /// The curve of run times: `loss(s) = (T(s) - T(full)) / T(full)` (section 3.3).
    pub fn of_times(seconds: &[f32]) -> Curve {
        let full = f64::from(seconds[SIZES - 1]);
        Curve { losses: std::array::from_fn(|place| f64::from(seconds[place]) / full - 1.0) }
    }

    /// The curve with these losses.
    pub const fn of_losses(losses: [f64; SIZES]) -> Curve {
        Curve { losses }
    }

    /// The mean of curves with weights; the weights need not add up to 1.
    pub fn mean<'a>(weighted: impl Iterator<Item = (f64, &'a Curve)>) -> Curve {
        let (mut losses, mut sum) = ([0.0; SIZES], 0.0);
        for (weight, curve) in weighted {
            sum += weight;
            for (total, loss) in losses.iter_mut().zip(&curve.losses) {
                *total += weight * loss;
            }
        }
        if sum > 0.0 {
            losses.iter_mut().for_each(|loss| *loss /= sum);
        }
        Curve { losses }
    }

    /// The loss with this share of the resident size fast, between the sizes of the record on a straight line. Below 1 %
    /// it is that of 1 %: the record says no more.
    pub fn loss(&self, share: f64) -> f64 {
        let at = (share * SIZES as f64 - 1.0).clamp(0.0, (SIZES - 1) as f64);
        let (low, cooldown) = (at.floor() as usize, at.fract());
        let high = (low + 1).min(SIZES - 1);
        self.losses[low] * (1.0 - cooldown) + self.losses[high] * cooldown
    }

    /// All losses, from 1 % to 100 %.
    pub const fn losses(&self) -> &[f64; SIZES] {
        &self.losses
    }

    /// The least share at which the loss is at most `max_slowdown`, `min{s : loss(s) <= max_slowdown}`: there always is one, as the loss of
    /// everything fast is 0.
    pub fn least_share(&self, max_slowdown: f64) -> f64 {
        share_at((0..SIZES).find(|&place| self.losses[place] <= max_slowdown).unwrap_or(SIZES - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_share_is_the_smallest_that_holds() {
        let seconds: Vec<f32> = (0..SIZES).map(|place| 2.0 + (SIZES - 1 - place) as f32 * 0.02).collect();
        let curve = Curve::of_times(&seconds);
        assert!((curve.loss(0.9) - 0.1).abs() < 1e-6 && curve.loss(1.0) == 0.0);
        assert!((curve.loss(0.905) - 0.095).abs() < 1e-6, "between two sizes");
        assert_eq!(curve.least_share(0.0501), 0.95);
        assert_eq!(curve.least_share(0.0), 1.0);
        assert!((curve.loss(0.0) - 0.99).abs() < 1e-6);
        let mean = Curve::mean([(1.0, &curve), (3.0, &Curve::of_losses([0.0; SIZES]))].into_iter());
        assert!((mean.loss(0.9) - 0.025).abs() < 1e-6);
    }
}
