//! Advice for a program that has only fast memory: how much slower it would be with less of it, on machines it never ran on.
//!
//! In: how often each page was seen accessed, and the CPU time the program took. Out: the expected loss at every size, with
//! what is known at least and at most. Must not: pretend to know how often a page is accessed between two looks.
//!
//! A look at a page's mark says that it was accessed since the look before, not how often. A page accessed in `k` of `n` windows
//! is taken to be accessed at the rate `-ln(1 - k/n)` a window, as accesses at random times are; one that was accessed in all of
//! them at no less than `ln(2n)`. With a share `s` fast, the pages of the lowest rates are slow. Each such access touches at least one
//! cache line and at most the 64 of a page: that is the interval. How often a page is accessed that is in every window, marks do not
//! say: at most, those pages share among them all that the CPU time has room for. The expectation is the geometric mean of least and
//! most: eight lines for a page that is not in every window.
//!
//! Where slow memory is compressed, a touch is a fault, however many lines it accesses. That is expected of every touch, and is the most;
//! the least is that each page in use comes back once and others leave in its place, so that it costs one fault in all windows.
//!
//! The loss is the extra time of the micro-benchmark with that number of slow accesses ([`crate::model`]), with the program's CPU time as
//! the time it takes when all is fast.

use terrace_machine::preset::Machine;

use crate::microbench::Benchmark;
use crate::model;
use crate::vector::INTERVAL_SECONDS;
use terrace_tuning::curve::{SIZES, share_at};

/// Cache lines a touch of a page accesses: at least, and at most.
const LINES_A_TOUCH: [f64; 2] = [1.0, 64.0];

/// What was seen of a program.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct Profile {
    /// Windows in which marks were looked at.
    pub windows: u32,
    /// Length of a window, seconds.
    pub window_seconds: f64,
    /// Pages that were seen accessed in 0, 1, 2, ... windows.
    pub pages_by_windows: Vec<u64>,
    /// CPU seconds of the program, over all windows.
    pub cpu_seconds: f64,
    /// Threads that ran, on average, at least one.
    pub threads: f64,
}

/// A point of a curve.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Point {
    /// Share of the resident size in fast memory.
    pub fast_share: f64,
    /// Expected loss.
    pub loss: f64,
    /// At least.
    pub loss_low: f64,
    /// At most.
    pub loss_high: f64,
}

impl Profile {
    /// Resident pages.
    pub fn pages(&self) -> u64 {
        self.pages_by_windows.iter().sum()
    }

    /// Rate at which a page seen in `k` windows is accessed, a window.
    fn rate(&self, k: usize) -> f64 {
        let windows = f64::from(self.windows.max(1));
        let share = k as f64 / windows;
        // Half a window less than all: the rate at which one miss in twice as many looks would be expected.
        -(1.0 - share).max(1.0 / (2.0 * windows)).ln()
    }

    /// Touches a window of the `pages` coldest pages.
    pub fn coldest_touches(&self, pages: u64) -> f64 {
        let mut left = pages;
        let mut touches = 0.0;
        for (k, &count) in self.pages_by_windows.iter().enumerate() {
            let taken = count.min(left);
            touches += taken as f64 * self.rate(k);
            left -= taken;
        }
        touches
    }

    /// Pages among the `pages` coldest that were seen accessed at all, a window.
    fn coldest_in_use(&self, pages: u64) -> f64 {
        let idle = self.pages_by_windows.first().copied().unwrap_or(0);
        pages.saturating_sub(idle) as f64 / f64::from(self.windows.max(1))
    }

    /// The curve for a machine, from 1 % to 100 %; empty if nothing was seen.
    pub fn curve(&self, machine: &Machine) -> Vec<Point> {
        if self.windows == 0 || self.pages() == 0 || self.cpu_seconds <= 0.0 {
            return Vec::new();
        }
        (0..SIZES)
            .map(|place| {
                let [loss_low, loss, loss_high] = [0.0, 0.5, 1.0].map(|most| self.loss(machine, share_at(place), most));
                // Each splits the CPU time into waiting and computing by itself; where all three mean the same, rounding would
                // put the least above the others.
                Point {
                    fast_share: share_at(place),
                    loss,
                    loss_low: loss_low.min(loss),
                    loss_high: loss_high.max(loss),
                }
            })
            .collect()
    }

    /// Accesses in an interval to the `slow_pages` coldest pages and to all of them: the least for `most` 0, the most for 1, and between
    /// them on a logarithmic scale. `room` is how many the CPU time has room for.
    fn accesses(&self, slow_pages: u64, room: f64, most: f64) -> (f64, f64) {
        let intervals = INTERVAL_SECONDS / self.window_seconds;
        let [least_lines, most_lines] = LINES_A_TOUCH;
        let between = |least: f64, high: f64| least.powf(1.0 - most) * high.max(least).powf(most);
        let always = self.pages_by_windows.get(self.windows as usize).copied().unwrap_or(0);
        let at_times = self.pages() - always;
        let touches = |pages: u64| self.coldest_touches(pages.min(at_times)) * intervals;
        // Each of those in every window, at least and at most.
        let least = self.rate(self.windows as usize) * intervals * least_lines;
        let left = (room - touches(at_times) * most_lines).max(0.0) / always.max(1) as f64;
        let an_always = between(least, left);
        let lines = between(least_lines, most_lines);
        let of = |pages: u64| touches(pages) * lines + pages.saturating_sub(at_times) as f64 * an_always;
        (of(slow_pages), of(self.pages()))
    }

    fn loss(&self, machine: &Machine, share: f64, most: f64) -> f64 {
        let intervals = INTERVAL_SECONDS / self.window_seconds;
        let slow_pages = self.pages() - (self.pages() as f64 * share).round() as u64;
        let seconds = self.cpu_seconds / (f64::from(self.windows) * self.window_seconds) * INTERVAL_SECONDS;
        let processor = &machine.processor;
        let wait = machine.tiers[0].read_latency_ns / processor.memory_parallelism / 1e9;
        // No more accesses than the CPU time has room for.
        let room = seconds / wait;
        let (cold, all) = self.accesses(slow_pages, room, most);
        let accesses = all.min(room).max(1.0);
        let touches = self.coldest_touches(slow_pages) * intervals;
        let slow = match model::slow_faults(machine) {
            true if most == 0.0 => touches.min(self.coldest_in_use(slow_pages) * intervals),
            true => touches,
            false => cold.min(accesses),
        };
        let computing = (seconds - accesses * wait).max(0.0) * processor.frequency_hertz;
        let benchmark = |slow: f64| Benchmark {
            resident_pages: self.pages(),
            // Few enough pages for the TLB: translation is in the CPU time already.
            fast_pages: 1,
            fast_accesses_a_visit: 1,
            fast_accesses: (accesses - slow).max(0.0).round() as u64,
            slow_pages: 1,
            slow_accesses_a_visit: 1,
            slow_accesses: slow.round() as u64,
            overflow_pages: 0,
            overflow_accesses: 0,
            promoted_pages: 0,
            promotions: 0,
            accesses_a_promotion: 2,
            demoted_pages: 0,
            demotions: 0,
            spared_accesses: 0,
            operations: computing.round() as u64,
            threads: self.threads.round().max(1.0) as u32,
        };
        (model::seconds(&benchmark(slow), machine) / model::seconds(&benchmark(0.0), machine) - 1.0).max(0.0)
    }
}

/// The least share of a curve at which the loss, by the given measure, is within the target.
pub fn least_share(curve: &[Point], max_slowdown: f64, of: impl Fn(&Point) -> f64) -> f64 {
    let beyond = curve.iter().rposition(|point| of(point) > max_slowdown);
    beyond.map_or(share_at(0), |place| share_at((place + 1).min(SIZES - 1)))
}

/// What fewer bytes of fast memory save, as a share of what all of it fast would cost; prices are for a byte of each.
pub fn cost_saved(machine: &Machine, share: f64, price_fast: f64, price_slow: f64) -> f64 {
    let slow = &machine.tiers[model::slow_tier(machine)];
    // Compressed memory lies in fast memory itself.
    let price = if model::slow_faults(machine) { price_fast / slow.ratio } else { price_slow };
    (1.0 - share) * (1.0 - price / price_fast)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A quarter of the pages in constant use, a quarter now and then, half never.
    fn profile() -> Profile {
        let mut pages_by_windows = vec![0; 21];
        (pages_by_windows[0], pages_by_windows[2], pages_by_windows[20]) = (50_000, 25_000, 25_000);
        Profile { windows: 20, window_seconds: 1.0, pages_by_windows, cpu_seconds: 40.0, threads: 2.0 }
    }

    #[test]
    fn untouched_memory_costs_nothing_and_hot_memory_much() {
        for name in Machine::preset_names() {
            let machine = Machine::preset(name).unwrap();
            let curve = profile().curve(&machine);
            assert_eq!(curve.len(), 100);
            let at = |percent: usize| curve[percent - 1];
            assert!(at(60).loss_high < 1e-6 && at(100).loss == 0.0, "{name}: {:?}", at(60));
            assert!(at(10).loss > at(40).loss, "{name}: {:?} {:?}", at(10), at(40));
            assert!(at(10).loss_low < 0.9 * at(10).loss, "{name}: some of it is not known: {:?}", at(10));
            for point in &curve {
                assert!(
                    point.loss_low <= point.loss + 1e-6 && point.loss <= point.loss_high + 1e-6,
                    "{name}: {point:?}"
                );
            }
            assert!(curve.windows(2).all(|pair| pair[0].loss >= pair[1].loss - 1e-6), "{name}");
        }
    }

    #[test]
    fn a_page_in_every_window_may_be_all_that_the_program_does() {
        // A quarter of the pages is in use all the time, on two processors that do nothing else, as far as anybody knows.
        let mut pages_by_windows = vec![0; 21];
        (pages_by_windows[0], pages_by_windows[20]) = (75_000, 25_000);
        let profile = Profile { windows: 20, window_seconds: 1.0, pages_by_windows, cpu_seconds: 40.0, threads: 2.0 };
        let machine = Machine::preset("cxl-pond").unwrap();
        let curve = profile.curve(&machine);
        let of = |point: &Point| point.loss_high;
        assert!((0.24..=0.26).contains(&least_share(&curve, 0.05, of)), "{}", least_share(&curve, 0.05, of));
        // All of it slow: as much longer as the latencies differ.
        let ratio = machine.tiers[model::slow_tier(&machine)].read_latency_ns / machine.tiers[0].read_latency_ns;
        assert!(curve[0].loss_high > 0.8 * (ratio - 1.0), "{:?}", curve[0]);
        assert!(curve[0].loss > 4.0 * curve[0].loss_low && curve[0].loss < curve[0].loss_high, "{:?}", curve[0]);
    }

    #[test]
    fn the_least_share_holds_from_there_up() {
        let curve = profile().curve(&Machine::preset("cxl-pond").unwrap());
        let share = least_share(&curve, 0.0001, |point| point.loss_high);
        assert!((0.45..=0.51).contains(&share), "{share}");
        assert!(least_share(&curve, 1e9, |point| point.loss) < 0.02);
        assert!(profile().coldest_touches(50_000) == 0.0);
        assert!(Profile::default().curve(&Machine::preset("cxl-pond").unwrap()).is_empty());
    }

    #[test]
    fn compressed_memory_is_paid_in_fast_memory() {
        let zram = Machine::preset("zram-vm").unwrap();
        assert!((cost_saved(&zram, 0.5, 4.0, 1.0) - 0.5 * (1.0 - 1.0 / 3.0)).abs() < 1e-9);
        let cxl = Machine::preset("cxl-pond").unwrap();
        assert!((cost_saved(&cxl, 0.5, 4.0, 2.0) - 0.25).abs() < 1e-9);
    }
}
