//! Whether moves pay, and whether the program has changed: two running accounts.
//!
//! In: what moved pages received afterwards and what their moves cost; what was forecast and what was seen. Out: a factor on the moves
//! allowed, and alarms. Must not: change what an exchange must be worth; the price stands for itself.

/// Intervals after which half of an account is forgotten.
const HALF_LIFE: f64 = 8.0;
/// Intervals a loss must last before fewer moves are allowed.
const LOSSES: u32 = 5;
/// The least share of the mover's time that is left.
const LEAST: f64 = 1.0 / 64.0;

/// What moved pages gained over the intervals after their move, against what was paid.
#[derive(Clone, Debug)]
pub(super) struct Account {
    gained_ns: f64,
    paid_ns: f64,
    losses: u32,
    allowed: f64,
}

impl Account {
    /// Nothing paid yet: everything is allowed.
    pub(super) fn new() -> Account {
        Account { gained_ns: 0.0, paid_ns: 0.0, losses: 0, allowed: 1.0 }
    }

    /// An interval's gains of pages that moved lately, and the price of what moved in it.
    pub(super) fn enter(&mut self, gained_ns: f64, paid_ns: f64) {
        let keep = 0.5f64.powf(1.0 / HALF_LIFE);
        self.gained_ns = self.gained_ns * keep + gained_ns;
        self.paid_ns = self.paid_ns * keep + paid_ns;
        if self.paid_ns <= 0.0 {
            return;
        }
        let ratio = self.gained_ns / self.paid_ns;
        self.losses = if ratio < 1.0 { self.losses + 1 } else { 0 };
        if self.losses >= LOSSES {
            self.allowed = (self.allowed / 2.0).max(LEAST);
            self.losses = 0;
        } else if ratio > 1.5 {
            self.allowed = (self.allowed * 2.0).min(1.0);
        }
    }

    /// The share of the mover's time that may be used, 0 to 1.
    pub(super) fn allowed(&self) -> f64 {
        self.allowed
    }

    /// Gain over price, lately; 0 while nothing was paid.
    pub(super) fn ratio(&self) -> f64 {
        if self.paid_ns > 0.0 { self.gained_ns / self.paid_ns } else { 0.0 }
    }
}

/// Deviation from its mean that is taken for noise.
const DRIFT: f64 = 0.05;
/// Summed deviation that is an alarm.
const THRESHOLD: f64 = 0.5;
/// Intervals an alarm lasts.
pub(super) const ALARM: u32 = 8;

/// Page-Hinkley's test on the error of the forecast (Page 1954; Hinkley 1971): the sum of what lies above the mean, since it was least.
#[derive(Clone, Debug, Default)]
pub(super) struct Change {
    mean: f64,
    count: f64,
    sum: f64,
    least: f64,
    /// Intervals left of the alarm.
    left: u32,
    /// Alarms so far.
    pub alarms: u32,
}

impl Change {
    /// What was forecast for an interval, and what was seen.
    pub(super) fn enter(&mut self, forecast: f64, seen: f64) {
        self.left = self.left.saturating_sub(1);
        if seen <= 0.0 {
            return;
        }
        // One interval says no more than that the forecast was wholly wrong.
        let error = ((forecast - seen).abs() / seen).min(1.0);
        self.count += 1.0;
        self.mean += (error - self.mean) / self.count;
        self.sum += error - self.mean - DRIFT;
        self.least = self.least.min(self.sum);
        if self.sum - self.least > THRESHOLD {
            let alarms = self.alarms + 1;
            *self = Change { left: ALARM, alarms, ..Change::default() };
        }
    }

    /// Whether the program changed a short while ago.
    pub(super) fn is_recent(&self) -> bool {
        self.left > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_halve_what_is_allowed_and_gains_give_it_back() {
        let mut account = Account::new();
        (0..4).for_each(|_| account.enter(10.0, 100.0));
        assert_eq!(account.allowed(), 1.0, "four intervals are none too many");
        account.enter(10.0, 100.0);
        assert_eq!(account.allowed(), 0.5);
        (0..1000).for_each(|_| account.enter(10.0, 100.0));
        assert_eq!(account.allowed(), LEAST);
        (0..40).for_each(|_| account.enter(300.0, 100.0));
        assert_eq!(account.allowed(), 1.0);
        assert!(account.ratio() > 2.0);
    }

    #[test]
    fn a_change_is_found_and_noise_is_not() {
        let mut change = Change::default();
        for interval in 0..500 {
            change.enter(if interval % 2 == 0 { 110.0 } else { 93.0 }, 100.0);
        }
        assert!(!change.is_recent() && change.alarms == 0);
        (0..2).for_each(|_| change.enter(20.0, 100.0));
        assert!(change.is_recent() && change.alarms == 1, "{change:?}");
        (0..ALARM).for_each(|_| change.enter(100.0, 100.0));
        assert!(!change.is_recent());
    }
}
