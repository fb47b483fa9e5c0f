//! Who looks on while the manager works.
//!
//! In: what a tracker saw, by address. Out: nothing to the manager. Must not: change what the engine gets to see.

use std::time::Duration;

use terrace_core::observation::PteState;
use terrace_core::units::{SpaceId, Time, Vpn};

/// One who looks on, for heat maps and recordings.
pub trait Observer {
    /// A stretch of a walk, before the engine sees it.
    fn scan(&mut self, now: Time, space: SpaceId, first: Vpn, ptes: &[PteState], window: Option<Duration>);
}

/// The tap of a run that records nothing.
pub struct NoTap;

impl Observer for NoTap {
    fn scan(&mut self, _: Time, _: SpaceId, _: Vpn, _: &[PteState], _: Option<Duration>) {}
}
