//! The value table: how many accesses pages of a state went on to receive.
//!
//! In: a state, what a page in it received in the next interval, and the state it was in after that. Out: the value of a state, in
//! accesses of the mean page, summed over the intervals ahead with a horizon of [`HORIZON`]. Must not: know a page.
//!
//! `V(s) = (sum(s) + 4 * prior(s)) / (n(s) + 4)` with targets `x + g * V(s')`, `g = 1 - 1 / HORIZON`: what a page received, and what the
//! state it came to is worth. The prior says that what lasted will last: the level of the long mean, times the horizon. All sums are
//! forgotten with a half-life of 6.6 intervals: what a state was worth in one phase of a program is wrong in the next.

use super::state::{LEVELS, REGULAR, STATES, State};

/// Intervals that count: an access this many intervals ahead counts a third of one in the next.
pub(super) const HORIZON: f32 = 4.0;
/// Targets that the prior stands for.
const PRIOR_WEIGHT: f32 = 4.0;

/// See the module's header.
#[derive(Clone, Debug)]
pub(super) struct Table {
    /// Sum of the targets, and how many there were.
    sums: Vec<[f32; 2]>,
    values: Vec<f32>,
    /// Part of the way between two levels, by rate: `2^(k/256) - 1`.
    between: Vec<f32>,
    prior_weight: f32,
    learns: bool,
    newborns: [f32; 2],
}

impl Table {
    /// A table that knows only its prior. Without `learns` it stays so; without `smooth` an entry rests on its own targets as soon as
    /// there is one.
    pub(super) fn new(learns: bool, smooth: bool) -> Table {
        let mut table = Table {
            sums: vec![[0.0; 2]; STATES],
            values: vec![0.0; STATES],
            between: (0..256).map(|part| (part as f32 / 256.0).exp2() - 1.0).collect(),
            prior_weight: if smooth { PRIOR_WEIGHT } else { 1e-3 },
            learns,
            newborns: [0.0; 2],
        };
        table.forget(1.0);
        table
    }

    /// What a page in this state will receive, weighed by time.
    pub(super) fn value(&self, state: State) -> f32 {
        let entry = usize::from(state.entry);
        let low = self.values[entry];
        if state.part == 0 {
            return low;
        }
        let high = self.values[entry + 1];
        low + (high - low) * self.between[usize::from(state.part)]
    }

    /// A page was in state `before`, received `accesses` (of the mean page) in the interval after, and came to state `after`.
    pub(super) fn learn(&mut self, before: State, accesses: f32, after: State) {
        if !self.learns {
            return;
        }
        let target = accesses + (1.0 - 1.0 / HORIZON) * self.value(after);
        let entry = usize::from(before.entry);
        let high = self.between[usize::from(before.part)];
        self.add(entry, 1.0 - high, target);
        if before.part > 0 {
            self.add(entry + 1, high, target);
        }
        if let Some(kind) = entry.checked_sub(REGULAR) {
            self.newborns[kind] += 1.0;
        }
    }

    fn add(&mut self, entry: usize, weight: f32, target: f32) {
        let sums = &mut self.sums[entry];
        sums[0] += weight * target;
        sums[1] += weight;
    }

    /// An interval is over: what was learned enters the values, and all of it counts a little less.
    pub(super) fn forget(&mut self, keep: f32) {
        for (entry, (sums, value)) in self.sums.iter_mut().zip(&mut self.values).enumerate() {
            let prior = State::level(entry);
            *value = (sums[0] + self.prior_weight * prior * HORIZON) / (sums[1] + self.prior_weight);
            sums.iter_mut().for_each(|sum| *sum *= keep);
        }
    }

    /// On how many new pages of a kind the value of newborns rests.
    pub(super) fn newborns_seen(&self, file: bool) -> f32 {
        self.newborns[usize::from(file)]
    }

    /// Entries that rest on targets more than on the prior.
    pub(super) fn known_states(&self) -> usize {
        self.sums.iter().filter(|sums| sums[1] > self.prior_weight).count()
    }

    /// Bytes it occupies.
    pub(super) fn memory_bytes(&self) -> usize {
        STATES * (size_of::<[f32; 2]>() + size_of::<f32>()) + 256 * size_of::<f32>()
    }
}

const _: () = assert!(REGULAR.is_multiple_of(LEVELS), "the last regular entry is a top level");

#[cfg(test)]
mod tests {
    use super::super::state::{LONG_AGEING, MEAN_LEVEL, Parts, SHORT_AGEING, decode, encode, weight};
    use super::*;
    use terrace_core::random::{SplitMix64, unit};

    /// Pages that receive what `rate` says, watched for this many intervals; then the values of all.
    fn run(learns: bool, pages: usize, intervals: usize, mut rate: impl FnMut(usize, usize) -> f32) -> Vec<f32> {
        let parts = Parts { age: true, trend: true, smooth: true };
        let mut table = Table::new(learns, parts.smooth);
        let mut random = SplitMix64::new(7);
        let mut draw = move || unit(random.next()) as f32;
        let (mut long, mut short, mut used) = (vec![0u16; pages], vec![0u16; pages], vec![0usize; pages]);
        let mut before: Vec<Option<State>> = vec![None; pages];
        let mut values = vec![0.0; pages];
        for interval in 0..intervals {
            let mut received = vec![0.0; pages];
            for page in 0..pages {
                let x = rate(page, interval);
                received[page] = x;
                if x > 0.0 {
                    used[page] = interval;
                }
                long[page] = encode(decode(long[page]) + x * weight(LONG_AGEING), draw());
                short[page] = encode(decode(short[page]) + x * weight(SHORT_AGEING), draw());
            }
            let mean = long.iter().map(|stored| decode(*stored)).sum::<f32>() / pages as f32;
            let each = received.iter().sum::<f32>() / pages as f32;
            for page in 0..pages {
                let age = (interval - used[page]) as u16;
                let state = State::of(age, long[page], short[page], encode(mean, 0.5), parts);
                if let Some(before) = before[page] {
                    table.learn(before, received[page] / each.max(1e-9), state);
                }
                before[page] = Some(state);
                values[page] = table.value(state);
                long[page] = long[page].saturating_sub(LONG_AGEING);
                short[page] = short[page].saturating_sub(SHORT_AGEING);
            }
            table.forget(0.995);
        }
        values
    }

    /// 64 pages in turn, one an interval: the value of what is used next over that of what was just used.
    fn sweep(learns: bool) -> f32 {
        let values = run(learns, 64, 64 * 6, |page, now| if now % 64 == page { 10.0 } else { 0.0 });
        values[0] / values[63]
    }

    #[test]
    fn a_sweep_has_its_value_where_it_is_about_to_be() {
        assert!(sweep(true) > 3.0, "{}", sweep(true));
        assert!(
            sweep(false) < 1.0,
            "the long mean alone takes it for lasting where it has just been: {}",
            sweep(false)
        );
    }

    #[test]
    fn noise_on_equal_pages_is_worth_little() {
        // One observation of 100 accesses a page and interval on average, as samples come.
        let mut random = SplitMix64::new(3);
        let values = run(true, 2048, 300, |_, _| {
            let (mut count, mut left) = (0.0, unit(random.next()));
            let limit = (-1.0f64).exp();
            while left > limit {
                left *= unit(random.next());
                count += 1.0;
            }
            100.0 * count
        });
        let mean = values.iter().sum::<f32>() / values.len() as f32;
        let spread = (values.iter().map(|value| (value - mean).powi(2)).sum::<f32>() / values.len() as f32).sqrt();
        assert!((mean / HORIZON - 1.0).abs() < 0.1, "an average page is worth the horizon: {mean}");
        assert!(spread < 0.03 * mean, "{spread} of {mean}");
    }

    #[test]
    fn a_page_that_rises_is_worth_more_than_one_that_falls_at_the_same_level() {
        // Each page has three intervals of 8 accesses and then nine of none; at the same long mean the short one tells them apart.
        let values = run(true, 1200, 200, |page, now| if (now + page) % 12 < 3 { 8.0 } else { 0.0 });
        // At the last interval, 199: page k is at step (199 + k) % 12.
        let at = |step: usize| values[(step + 12 - 199 % 12) % 12];
        assert!(at(0) > 1.5 * at(5), "{} {}", at(0), at(5));
    }

    #[test]
    fn an_empty_state_is_worth_its_prior_and_an_octave_more_is_worth_more() {
        let table = Table::new(true, true);
        let at = |level: usize, part: u8| table.value(State { entry: level as u16, part });
        assert_eq!(at(MEAN_LEVEL, 0), HORIZON);
        for level in 0..LEVELS - 1 {
            assert!(at(level, 0) < at(level, 128) && at(level, 128) < at(level + 1, 0));
        }
        // By rate: an octave and a half above the mean is 2^1.5 times the mean.
        assert!((at(MEAN_LEVEL + 1, 128) / HORIZON - 2f32.powf(1.5)).abs() < 0.01);
    }

    #[test]
    fn what_is_steady_learns_nothing() {
        let mut table = Table::new(false, true);
        let state = State { entry: MEAN_LEVEL as u16, part: 0 };
        (0..100).for_each(|_| table.learn(state, 100.0, state));
        table.forget(0.995);
        assert_eq!((table.value(state), table.known_states()), (HORIZON, 0));
    }
}
