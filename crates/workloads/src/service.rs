//! The open-ended loop that GUPS, stores and lookups share: operations by the number or by the clock.
//!
//! In: an operation and how much of it is wanted ([`Budget`]). Out: the operations run on all threads, and in native
//! runs a report each second of how long they took. Must not: know what the operation does.

use crate::memory::{Lane, Memory, Progress};
use crate::program::Settings;

/// How much of an operation to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Operations of all threads together.
    pub operations: u64,
    /// If given, the time to run, instead of the operations.
    pub duration_nanos: Option<u64>,
}

/// Nanoseconds between reports.
const REPORT_NANOS: u64 = 1_000_000_000;

impl Budget {
    /// What the parameters ask for; `default` operations otherwise.
    pub(crate) fn of(settings: &Settings<'_>, default: u64) -> Budget {
        Budget { operations: settings.operations().unwrap_or(default), duration_nanos: settings.duration_nanos() }
    }
}

struct Worker<S> {
    state: S,
    quota: u64,
    done: u64,
    timed: Vec<f64>,
}

/// Runs `operation` on every thread, `grain` at a time in turn, and returns the operations done by all. Where there is
/// a clock, groups of `grain` operations are timed and their percentiles reported each second: `grain` should take
/// microseconds, so that reading the clock does not count.
pub fn serve<M: Memory, S: Send, F>(memory: &mut M, budget: Budget, states: &mut [S], grain: u64, operation: F) -> u64
where
    F: Fn(&mut M::Lane, &mut S) + Sync,
{
    serve_steps(memory, budget, states, grain, |lane, state| {
        operation(lane, state);
        1
    })
}

/// As [`serve`], for operations of several steps between which other threads take their turn: a step returns how many
/// operations it completed. Where the budget ends, operations under way are left unfinished.
pub fn serve_steps<M: Memory, S: Send, F>(memory: &mut M, budget: Budget, states: &mut [S], grain: u64, step: F) -> u64
where
    F: Fn(&mut M::Lane, &mut S) -> u64 + Sync,
{
    let threads = states.len() as u64;
    let begun = memory.main().now();
    let end = begun.zip(budget.duration_nanos).map(|(now, duration)| now.saturating_add(duration));
    let mut workers: Vec<Worker<&mut S>> = states
        .iter_mut()
        .enumerate()
        .map(|(index, state)| {
            let thread = index as u64;
            let share = budget.operations * (thread + 1) / threads - budget.operations * thread / threads;
            let quota = if end.is_some() { u64::MAX } else { share };
            Worker { state, quota, done: 0, timed: Vec::new() }
        })
        .collect();
    let mut total = 0;
    loop {
        let now = memory.main().now();
        let pause = now.map(|now| (now + REPORT_NANOS).min(end.unwrap_or(u64::MAX)));
        memory.run(&mut workers, |lane, worker| {
            let before = lane.now();
            if worker.done >= worker.quota || lane.stopped() || before.zip(pause).is_some_and(|(now, at)| now >= at) {
                return false;
            }
            let done_before = worker.done;
            for _ in 0..grain {
                if worker.done < worker.quota {
                    worker.done += step(lane, worker.state);
                }
            }
            let group = worker.done - done_before;
            if let (Some(before), Some(after)) = (before, lane.now())
                && group > 0
            {
                worker.timed.push(after.saturating_sub(before) as f64 / group as f64);
            }
            true
        });
        let done: u64 = workers.iter().map(|worker| worker.done).sum();
        let mut timed: Vec<f64> = workers.iter_mut().flat_map(|worker| worker.timed.drain(..)).collect();
        if !timed.is_empty() {
            memory.report(&summary(&mut timed, done - total));
        }
        total = done;
        let out_of_time = memory.main().now().zip(end).is_some_and(|(now, end)| now >= end);
        if out_of_time || memory.main().stopped() || workers.iter().all(|worker| worker.done >= worker.quota) {
            return total;
        }
    }
}

fn summary(timed: &mut [f64], operations: u64) -> Progress {
    timed.sort_by(f64::total_cmp);
    let at = |share: f64| timed[((timed.len() - 1) as f64 * share).round() as usize];
    Progress { operations, p50_nanos: at(0.5), p10_nanos: at(0.1), p99_nanos: at(0.99), ..Progress::default() }
}
