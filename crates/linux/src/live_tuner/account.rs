//! The account of a window of live processes: what they lost, over what is left of their CPU time.
//!
//! In: what passed in the window, and what moves cost on this machine. Out: a [`Loss`] in parts. Must not: read anything, or guess a cost that was
//! not measured.
//!
//! - Faults on pages that came back, at the cost of one, and as many page-outs as took those pages' places, are the size's.
//! - All other page-outs cost what one takes of a thread that runs meanwhile, for each thread that ran. Both costs were measured at the start;
//!   where the second was not, as on a machine whose processors are all taken, a page-out costs a thread what it takes itself, at most: it
//!   interrupts the thread for a part of that.
//! - Processor time that management took while somebody waited for a processor, the kernel's reclaim included where it holds the limit. The
//!   processes are taken to have waited for their part of all that ran. At most all of it was theirs, at least none.

use terrace_tuning::Loss;

use crate::move_cost::MoveCost;
use crate::processors::ProcessorUse;

/// What passed in a window, as far as it says what the processes lost.
#[derive(Clone, Copy, Debug)]
pub struct Passed {
    /// Its length in seconds.
    pub seconds: f64,
    /// CPU time of the processes, in seconds.
    pub cpu: f64,
    /// Pages that came back by a fault.
    pub refaults: u64,
    /// Pages that went out.
    pub moved_out: u64,
    /// Processor time of the manager, in seconds.
    pub own: f64,
    /// The part of it in which pages moved.
    pub moving: f64,
    /// What the machine's processors did, if that can be read.
    pub processors: Option<ProcessorUse>,
}

impl Passed {
    /// The loss; `None` where the cost of a refault is not known, or nothing ran.
    pub fn loss(&self, costs: &MoveCost) -> Option<Loss> {
        let refault = costs.refault?.as_secs_f64();
        if self.cpu <= 0.0 || self.seconds <= 0.0 {
            return None;
        }
        let back = self.refaults as f64 * refault;
        // A page-out interrupts each thread that runs.
        let threads = self.cpu / self.seconds;
        let out = costs.page_out.unwrap_or_default();
        let [low, median, high] = [out.low, out.median, out.high].map(|cost| cost.as_secs_f64() * threads);
        let replaced = self.moved_out.min(self.refaults) as f64;
        let (taken, most_taken) = self.taken();
        // Of the processor time that was taken, so much went into moves.
        let of_moves = if self.own > 0.0 { (self.moving / self.own).min(1.0) } else { 0.0 };
        let out_pages = self.moved_out as f64;
        // Faults and interruptions are within the CPU time, waiting is not.
        let without = (self.cpu - back - out_pages * median).max(self.cpu * 0.01);
        Some(Loss {
            standing: (back + replaced * median) / without,
            moving: ((out_pages - replaced) * median + taken * of_moves) / without,
            managing: taken * (1.0 - of_moves) / without,
            low: (back + out_pages * low) / without,
            high: (back + out_pages * high + most_taken) / without,
        })
    }

    /// Processor time that management took of the processes, and at most.
    fn taken(&self) -> (f64, f64) {
        let Some(processors) = self.processors else { return (0.0, self.own) };
        let all = self.own + processors.reclaim.as_secs_f64();
        // Nobody waited for longer because of management than it ran.
        let most = processors.waited.map_or(all, |waited| all.min(waited.as_secs_f64()));
        let others = (processors.busy.as_secs_f64() - all).max(self.cpu);
        (most * self.cpu / others, most)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use super::*;
    use crate::move_cost::Interval as Measured;

    const MICRO: f64 = 1e-6;

    pub(crate) fn costs() -> MoveCost {
        let out = Measured {
            median: Duration::from_micros(10),
            low: Duration::from_micros(8),
            high: Duration::from_micros(14),
        };
        MoveCost { refault: Some(Duration::from_micros(9)), page_out: Some(out), ..MoveCost::default() }
    }

    fn processors(busy: f64, waited: Option<f64>) -> Option<ProcessorUse> {
        let [busy, reclaim] = [busy, 0.0].map(Duration::from_secs_f64);
        Some(ProcessorUse { busy, waited: waited.map(Duration::from_secs_f64), reclaim, online: 2 })
    }

    /// A second of a program with one thread that runs all the time, and a processor to spare.
    pub(crate) fn second() -> Passed {
        let processors = processors(1.3, Some(0.0));
        Passed { seconds: 1.0, cpu: 1.0, refaults: 0, moved_out: 0, own: 0.3, moving: 0.2, processors }
    }

    #[test]
    fn page_outs_cost_each_thread_that_runs_though_nothing_comes_back() {
        let one = Passed { moved_out: 13_000, ..second() }.loss(&costs()).unwrap();
        let lost = 13_000.0 * 10.0 * MICRO;
        assert!((one.moving - lost / (1.0 - lost)).abs() < 1e-9, "{one:?}");
        assert_eq!((one.standing, one.managing), (0.0, 0.0));
        assert!(one.low < one.total() && one.total() < one.high, "{one:?}");
        // Two threads lose twice the time, of twice the time; one that hardly runs loses hardly anything.
        let two = Passed { cpu: 2.0, moved_out: 13_000, ..second() }.loss(&costs()).unwrap();
        assert!((two.moving - one.moving).abs() < 1e-9, "{two:?}");
        // With one processor there is no other to interrupt.
        let none = Passed { moved_out: 13_000, ..second() }.loss(&MoveCost { page_out: None, ..costs() }).unwrap();
        assert_eq!(none.total(), 0.0);
    }

    #[test]
    fn page_outs_in_the_place_of_pages_that_came_back_are_the_sizes() {
        let loss = Passed { refaults: 1000, moved_out: 1500, ..second() }.loss(&costs()).unwrap();
        let without = 1.0 - (1000.0 * 9.0 + 1500.0 * 10.0) * MICRO;
        assert!((loss.standing - 1000.0 * 19.0 * MICRO / without).abs() < 1e-9, "{loss:?}");
        assert!((loss.moving - 500.0 * 10.0 * MICRO / without).abs() < 1e-9, "{loss:?}");
    }

    #[test]
    fn processor_time_counts_as_taken_while_somebody_waits_for_some() {
        // Two processors, a server and its load: what management runs they wait for, one as long as the other.
        let busy = Passed { processors: processors(2.0, Some(0.9)), ..second() };
        let loss = busy.loss(&costs()).unwrap();
        let taken = 0.3 * 1.0 / 1.7;
        assert!((loss.total() - taken).abs() < 1e-9 && (loss.high - 0.3).abs() < 1e-9, "{loss:?}");
        assert!((loss.moving - taken * 2.0 / 3.0).abs() < 1e-9 && loss.standing == 0.0 && loss.low == 0.0, "{loss:?}");
        let hardly = Passed { processors: processors(1.5, Some(0.01)), ..second() };
        assert!(hardly.loss(&costs()).unwrap().high <= 0.01 + 1e-9);
        // Where waiting is not counted, it may have been all of it.
        let unknown = Passed { processors: processors(1.3, None), ..second() };
        assert!((unknown.loss(&costs()).unwrap().high - 0.3).abs() < 1e-9);
    }

    #[test]
    fn without_the_cost_of_a_refault_or_a_program_that_runs_nothing_is_observed() {
        assert_eq!(second().loss(&MoveCost::default()), None);
        assert_eq!(Passed { cpu: 0.0, ..second() }.loss(&costs()), None);
    }
}
