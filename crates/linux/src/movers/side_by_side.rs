//! Several threads that move the pages of one large batch between nodes.
//!
//! In: moves in the order they should be made. Out: one result a move, in the same order, and the time of all threads together. Must not: know
//! how a page moves; each thread has a [`MovePages`] of its own.
//!
//! One thread copies what one processor copies: some 11 GB/s by huge pages and 3 by small ones of a Zen 3 server, as
//! [`Prices::ASSUMED`](terrace_core::prices::Prices::ASSUMED) has it. HeMem's four threads (SOSP 2021) are the model. More than four fill the bandwidth that
//! the program wants (docs/policies/terrace.md, "Movers").

use std::thread;
use std::time::Duration;

use super::{MoveCost, MovePages, MoveResult, Mover, PageMove};
use crate::process::Process;
use crate::topology::TierMap;
use terrace_core::units::TierId;

/// Most threads.
const MOST: usize = 4;
/// Processors for which a machine has a thread.
const PROCESSORS_EACH: usize = 4;
/// Pages a thread is started for: at 1.2 us a page some 0.6 ms of moving.
const PAGES_EACH: u32 = 512;

/// The mover between NUMA nodes, by as many threads as a batch is worth.
#[derive(Debug)]
pub struct SideBySide {
    movers: Vec<MovePages>,
}

impl SideBySide {
    /// As many threads as these processors are worth: one for four of them, four at most.
    pub fn for_processors(processors: usize, deadline: Duration) -> SideBySide {
        SideBySide::new((processors / PROCESSORS_EACH).clamp(1, MOST), deadline)
    }

    /// This many threads, whose calls stay within `deadline`.
    pub fn new(threads: usize, deadline: Duration) -> SideBySide {
        SideBySide { movers: (0..threads.max(1)).map(|_| MovePages::new(deadline)).collect() }
    }
}

/// Cuts moves into at most `parts` runs of about as many pages each, none of fewer than `least`, in their order.
fn cut(moves: &[PageMove], parts: usize, least: u32) -> Vec<&[PageMove]> {
    let pages: u64 = moves.iter().map(|item| u64::from(item.pages)).sum();
    let parts = (pages / u64::from(least)).clamp(1, parts.max(1) as u64);
    let mut cuts = Vec::new();
    let (mut rest, mut before) = (moves, 0);
    for part in 1..=parts {
        let until = pages * part / parts;
        let mut count = 0;
        while count < rest.len() && (before < until || part == parts) {
            before += u64::from(rest[count].pages);
            count += 1;
        }
        let (one, others) = rest.split_at(count);
        cuts.push(one);
        rest = others;
    }
    cuts.retain(|cut| !cut.is_empty());
    cuts
}

impl Mover for SideBySide {
    fn name(&self) -> &'static str {
        self.movers[0].name()
    }

    fn can(&self, tiers: &TierMap, from: TierId, to: TierId) -> bool {
        self.movers[0].can(tiers, from, to)
    }

    fn execute(
        &mut self,
        process: &Process,
        moves: &[PageMove],
        tiers: &TierMap,
        results: &mut Vec<MoveResult>,
    ) -> MoveCost {
        let cuts = cut(moves, self.movers.len(), PAGES_EACH);
        if cuts.len() < 2 {
            return self.movers[0].execute(process, moves, tiers, results);
        }
        let parts = thread::scope(|scope| {
            let started: Vec<_> = (self.movers.iter_mut().zip(cuts))
                .map(|(mover, cut)| {
                    scope.spawn(move || {
                        let mut results = Vec::with_capacity(cut.len());
                        let cost = mover.execute(process, cut, tiers, &mut results);
                        (results, cost)
                    })
                })
                .collect();
            let ended = started.into_iter().map(|thread| thread.join());
            ended.map(|part| part.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect::<Vec<_>>()
        });
        let mut cost = MoveCost::default();
        for (part, its_cost) in parts {
            results.extend(part);
            cost.add(&its_cost);
        }
        cost
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_core::units::Vpn;

    fn moves(sizes: &[u32]) -> Vec<PageMove> {
        let item =
            |(vpn, pages): (u64, &u32)| PageMove { vpn: Vpn(vpn), pages: *pages, from: TierId(1), to: TierId(0) };
        (0..).zip(sizes).map(item).collect()
    }

    #[test]
    fn a_batch_is_cut_by_pages_into_runs_that_are_worth_a_thread() {
        let sizes = |sizes: &[u32], parts| {
            let moves = moves(sizes);
            let cuts = cut(&moves, parts, 512);
            assert_eq!(cuts.concat(), moves, "all of them, in their order");
            cuts.iter().map(|cut| cut.iter().map(|item| item.pages).sum::<u32>()).collect::<Vec<_>>()
        };
        assert_eq!(sizes(&[1; 100], 4), [100], "not worth a second thread");
        assert_eq!(sizes(&[1; 1600], 4), [533, 533, 534]);
        assert_eq!(sizes(&[1; 4096], 4), [1024; 4]);
        assert_eq!(sizes(&[512; 3], 4), [512; 3]);
        assert_eq!(sizes(&[512, 1, 1, 512], 2), [513, 513]);
        assert_eq!(sizes(&[], 4), [0; 0]);
    }

    #[test]
    fn a_machine_has_a_thread_for_four_processors_and_four_at_most() {
        let threads = |processors| SideBySide::for_processors(processors, Duration::ZERO).movers.len();
        assert_eq!([1, 2, 7, 8, 16, 128].map(threads), [1, 1, 1, 2, 4, 4]);
    }
}
