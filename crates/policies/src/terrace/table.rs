//! The value table: how many accesses pages of a state went on to receive.
//!
//! In: a state, what a page in it received in the next interval, and the state it was in after that. Out: the value of a state, in
//! accesses of the mean page, summed over the intervals ahead with a horizon of [`HORIZON`]. Must not: know a page.
//!
//! `V(s) = (sum(s) + 4 * prior(s)) / (n(s) + 4)` with targets `x + g * V(s')`, `g = 1 - 1 / HORIZON`: what a page received, and what the
//! state it came to is worth. The prior says that what lasted will last: the level of the long mean, times the horizon; of pages that are idle, that they
//! are worth what they were when they were idle for an age bin less. Otherwise all cold pages are worth something each time they come of age. All sums are
//! forgotten with a half-life of 6.6 intervals: what a state was worth in one phase of a program is wrong in the next.
//!
//! A value's standard error is that of the mean of its targets, those of the prior among them, which are spread as far as they are large. A state that few
//! pages came to is in doubt by half of its value, one that thousands came to is known.

use super::state::{LEVELS, LONG_AGEING, REGULAR, STATES, STEPS, State, TRENDS, idle};

/// Intervals that count: an access this many intervals ahead counts a third of one in the next.
pub(super) const HORIZON: f32 = 4.0;
/// Targets that the prior stands for.
const PRIOR_WEIGHT: f32 = 4.0;

/// See the module's header.
#[derive(Clone, Debug)]
pub(super) struct Table {
    /// Sum of the targets, how many there were, and the sum of their squares.
    sums: Vec<[f32; 3]>,
    values: Vec<f32>,
    /// Standard errors of the values, squared.
    errors: Vec<f32>,
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
            sums: vec![[0.0; 3]; STATES],
            values: vec![0.0; STATES],
            errors: vec![0.0; STATES],
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

    /// The standard error of that value: how far it may lie from what such pages receive on average.
    pub(super) fn error(&self, state: State) -> f32 {
        let entry = usize::from(state.entry);
        if state.part == 0 {
            return self.errors[entry].sqrt();
        }
        let high = self.between[usize::from(state.part)];
        ((1.0 - high).powi(2) * self.errors[entry] + high.powi(2) * self.errors[entry + 1]).sqrt()
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
        sums[2] += weight * target * target;
    }

    /// An interval is over: what was learned enters the values, and all of it counts a little less.
    pub(super) fn forget(&mut self, keep: f32) {
        for entry in 0..STATES {
            let prior = self.prior(entry);
            let sums = &mut self.sums[entry];
            let count = sums[1] + self.prior_weight;
            let value = (sums[0] + self.prior_weight * prior) / count;
            // The prior's targets are spread as far as they are large, as waits without memory are.
            let squares = sums[2] + self.prior_weight * 2.0 * prior * prior;
            self.values[entry] = value;
            self.errors[entry] = (squares / count - value * value).max(0.0) / count;
        }
        self.sums.iter_mut().flatten().for_each(|sum| *sum *= keep);
    }

    /// What a state is worth that no page was seen in: what lasted will last, and what was idle goes on as it was worth when it was idle for a bin
    /// less.
    fn prior(&self, entry: usize) -> f32 {
        let lasting = State::level(entry) * HORIZON;
        let younger = (entry < REGULAR).then(|| younger(entry)).flatten();
        younger.map_or(lasting, |(entries, high)| {
            let pooled = |entry: usize| {
                let of = |trend: usize| &self.sums[entry + trend * LEVELS];
                let (sum, count) = (0..TRENDS).map(of).fold((0.0, 0.0), |all, sums| (all.0 + sums[0], all.1 + sums[1]));
                let values: f32 = (0..TRENDS).map(|trend| self.values[entry + trend * LEVELS]).sum();
                (sum + self.prior_weight * values / TRENDS as f32) / (count + self.prior_weight)
            };
            let [low, up] = entries.map(pooled);
            (low + (up - low) * high).min(lasting)
        })
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
        STATES * (size_of::<[f32; 3]>() + 2 * size_of::<f32>()) + 256 * size_of::<f32>()
    }
}

/// The entries of the first trend between which pages of this entry were when they were idle for an age bin less, and how far they were from
/// the lower; `None` of pages that were used just now. Idle pages lose level as the long mean ages.
fn younger(entry: usize) -> Option<([usize; 2], f32)> {
    let (age, level) = (entry / (TRENDS * LEVELS), entry % LEVELS);
    let before = age.checked_sub(1)?;
    let then = level as f32 + (idle(age) - idle(before)) * f32::from(LONG_AGEING) / STEPS;
    let low = (then as usize).min(LEVELS - 1);
    let at = |level: usize| before * TRENDS * LEVELS + level.min(LEVELS - 1);
    Some(([at(low), at(low + 1)], then.fract()))
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
    fn a_state_that_few_came_to_is_in_doubt_and_one_that_many_came_to_is_known() {
        let mut table = Table::new(true, true);
        let state = State { entry: MEAN_LEVEL as u16, part: 0 };
        assert_eq!(table.error(state), table.value(state) / 2.0, "nobody came");
        for count in 0..400 {
            table.learn(state, if count % 2 == 0 { 0.0 } else { 2.0 }, State { entry: 0, part: 0 });
        }
        table.forget(1.0);
        // Targets of 0 and 2: a standard deviation of 1, of 400 of them.
        assert!((table.error(state) / table.value(state) - 0.05).abs() < 0.01, "{}", table.error(state));
    }

    #[test]
    fn pages_that_are_idle_for_longer_than_any_was_are_worth_what_they_were() {
        let mut table = Table::new(true, true);
        let at = |age: u16| {
            State::of(age, encode(1.0, 0.0), 0, encode(1.0, 0.0), Parts { age: true, trend: true, smooth: true })
        };
        let lasting = table.value(at(8));
        for age in 4..8 {
            (0..1000).for_each(|_| table.learn(at(age), 0.0, State { entry: 0, part: 0 }));
        }
        table.forget(1.0);
        assert!(table.value(at(8)) < lasting / 20.0, "{} of {lasting}", table.value(at(8)));
        assert!(table.value(at(0)) > lasting / 2.0, "pages in use are worth what lasts");
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
