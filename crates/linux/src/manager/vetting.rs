//! Moves that are not carried out, though they were planned: looked at once more, right before.
//!
//! In: the moves of one process. Out: for each why it is left out, if it is. Must not: choose pages, or move any.
//!
//! - A page that is in swap already was put there by the program itself or by the kernel since it was last looked at. It is not Terrace's move.
//! - A page in swap that Terrace did not move there is not brought back either: who put it there had a reason.
//! - A page whose block does not compress would take as much of compressed swap as it frees.

use terrace_core::plan::{Action, Failure, Move};
use terrace_core::units::{SpaceId, Vpn};

use super::Manager;
use crate::pagemap::{Pagemap, Residence};

impl Manager {
    /// Why each of these moves, all of one process, is left out.
    pub(super) fn vet(&mut self, space: SpaceId, moves: &[Move]) -> Vec<Option<Failure>> {
        let mut vetoes = vec![None; moves.len()];
        let (Some(swap), Some(held)) = (self.parts.tiers.swap_tier(), self.spaces.get(&space)) else { return vetoes };
        let pages = self.parts.engine.pages();
        let mut out: Vec<(Vpn, u32, usize)> = Vec::new();
        for (at, item) in moves.iter().enumerate() {
            if item.action.remaps() {
                continue;
            }
            if item.from == swap && !pages[item.page].demoted() {
                vetoes[at] = Some(Failure::ByOthers);
            } else if matches!(item.action, Action::MoveTo(to) if to == swap) {
                out.push((pages.locate(item.page).1, item.pages, at));
            }
        }
        out.sort_unstable();
        let (now, pid) = (self.now(), held.process.pid());
        if let Ok(mut pagemap) = Pagemap::of_process(&held.process) {
            let mut places = Vec::new();
            for run in out.chunk_by(|one, next| one.0.0 + u64::from(one.1) == next.0.0) {
                let pages: u32 = run.iter().map(|(_, pages, _)| pages).sum();
                places.clear();
                places.resize(pages as usize, Residence::Absent);
                // What cannot be read now is read back after the move, which says why.
                if pagemap.residences(run[0].0, &mut places).is_err() {
                    continue;
                }
                for (first, pages, at) in run {
                    let from = (first.0 - run[0].0.0) as usize;
                    let here = &places[from..from + *pages as usize];
                    if here.iter().all(|place| *place == Residence::Swapped) {
                        vetoes[*at] = Some(Failure::ByOthers);
                    }
                }
            }
        }
        out.retain(|(_, _, at)| vetoes[*at].is_none());
        if let Some(judge) = &mut self.compressibility {
            let mut leaving = Vec::new();
            for block in out.chunk_by(|one, next| one.0.block_start() == next.0.block_start()) {
                leaving.clear();
                leaving
                    .extend(block.iter().flat_map(|(first, pages, _)| (first.0..first.0 + u64::from(*pages)).map(Vpn)));
                if !judge.is_worth_it(now, space, pid, &leaving) {
                    block.iter().for_each(|(_, _, at)| vetoes[*at] = Some(Failure::Incompressible));
                }
            }
            self.stats.incompressible_pages = judge.left();
        }
        vetoes
    }
}
