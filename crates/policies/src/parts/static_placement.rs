//! The policies that decide once, at first touch, and never move a page.
//!
//! In: a new page and the room there is. Out: its tier. Must not: observe, or request.
//!
//! Each such policy is a [`Placement`] in its own file; [`StaticPolicy`] is what they share.

use terrace_core::observation::Observations;
use terrace_core::pages::Pages;
use terrace_core::plan::MoveRequests;
use terrace_core::policy::{CapacityView, Kernel, Metric, Needs, Policy, PolicyReport, Profile, Schedule};
use terrace_core::units::{PageId, TierId, Time};

/// A rule for where new pages go.
pub trait Placement: Send {
    /// The policy's name.
    fn name(&self) -> &'static str;
    /// Where a new page should go. The nearest tier with room takes it if that one has none.
    fn place(&mut self, page: PageId, capacity: &CapacityView<'_>) -> TierId;
    /// Whether fast memory is to hold everything.
    fn unlimited_fast(&self) -> bool {
        false
    }
    /// What the hardware or the kernel beneath does.
    fn kernel(&self) -> Kernel {
        Kernel::default()
    }
}

/// A policy that only places.
pub struct StaticPolicy<P>(
    /// Its rule.
    pub P,
);

/// The tier itself if it has room, otherwise the next slower one that has, otherwise the next faster.
pub fn nearest_with_room(wanted: TierId, capacity: &CapacityView<'_>) -> TierId {
    let last = capacity.tiers.len() - 1;
    let wanted = wanted.index().min(last);
    let fits = |tier: &usize| capacity.tiers[*tier].free() > 0;
    let slower = (wanted..=last).find(fits);
    TierId(slower.or_else(|| (0..wanted).rev().find(fits)).unwrap_or(wanted) as u8)
}

impl<P: Placement> Policy for StaticPolicy<P> {
    fn profile(&self) -> Profile {
        Profile::new(self.0.name(), Needs { unlimited_fast: self.0.unlimited_fast(), ..Needs::default() })
            .above(self.0.kernel())
    }

    fn observe(&mut self, _now: Time, _seen: Observations<'_>, _pages: &mut Pages) {}

    fn plan(&mut self, _now: Time, _capacity: &CapacityView<'_>, _pages: &mut Pages, _wishes: &mut MoveRequests) {}

    fn place(&mut self, _now: Time, page: PageId, capacity: &CapacityView<'_>) -> TierId {
        nearest_with_room(self.0.place(page, capacity), capacity)
    }

    fn schedule(&self) -> Schedule {
        Schedule::default()
    }

    fn report(&self) -> PolicyReport {
        PolicyReport { memory_bytes: 0, metrics: vec![Metric { name: "metadata_bytes_per_page", value: 8.0 }] }
    }
}

/// Where a placement puts the pages 0 to `count - 1` on a machine of these capacities; for tests.
#[cfg(test)]
pub(crate) fn placed(policy: &mut dyn Policy, capacity: &[u64], count: u32) -> Vec<u8> {
    let mut tiers: Vec<_> =
        capacity.iter().map(|&capacity| terrace_core::policy::TierUse { used: 0, capacity }).collect();
    (0..count)
        .map(|page| {
            let capacity = CapacityView {
                tiers: &tiers,
                fast_limit: None,
                footprint: 0,
                backoff: 1.0,
                least_idle: std::time::Duration::ZERO,
                swap: None,
            };
            let tier = policy.place(Time::ZERO, PageId(page), &capacity);
            tiers[tier.index()].used += 1;
            tier.0
        })
        .collect()
}
