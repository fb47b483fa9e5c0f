//! The policy of the two bounds: every page goes to one tier and stays.
//!
//! In: nothing. Out: a place for new pages. Must not: look, or request.

use terrace_core::observation::Observations;
use terrace_core::pages::Pages;
use terrace_core::plan::MoveRequests;
use terrace_core::policy::{CapacityView, Needs, Policy, PolicyReport, Profile, Schedule};
use terrace_core::units::{PageId, TierId, Time};

/// Places everything in one tier.
#[derive(Clone, Copy, Debug)]
pub struct Fixed(
    /// The tier.
    pub TierId,
);

impl Policy for Fixed {
    fn profile(&self) -> Profile {
        Profile::new(if self.0 == TierId::FAST { "bound-all-fast" } else { "bound-all-slow" }, Needs::default())
    }

    fn observe(&mut self, _now: Time, _seen: Observations<'_>, _pages: &mut Pages) {}

    fn plan(&mut self, _now: Time, _capacity: &CapacityView<'_>, _pages: &mut Pages, _wishes: &mut MoveRequests) {}

    fn place(&mut self, _now: Time, _page: PageId, _capacity: &CapacityView<'_>) -> TierId {
        self.0
    }

    fn schedule(&self) -> Schedule {
        Schedule::default()
    }

    fn report(&self) -> PolicyReport {
        PolicyReport::default()
    }
}
