//! The dry run: a mover that moves nothing and says so.
//!
//! In: any moves. Out: [`Failure::DryRun`] for each. Must not: make a system call.

use terrace_core::plan::Failure;
use terrace_core::units::TierId;

use super::{MoveCost, MoveResult, Mover, PageMove};
use crate::process::Process;
use crate::topology::TierMap;

/// Moves nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct DryRun;

impl Mover for DryRun {
    fn name(&self) -> &'static str {
        "dry-run"
    }

    fn can(&self, _tiers: &TierMap, _from: TierId, _to: TierId) -> bool {
        true
    }

    fn execute(
        &mut self,
        _process: &Process,
        moves: &[PageMove],
        _tiers: &TierMap,
        results: &mut Vec<MoveResult>,
    ) -> MoveCost {
        results.extend(moves.iter().map(|_| MoveResult::none(Failure::DryRun)));
        MoveCost::default()
    }
}
