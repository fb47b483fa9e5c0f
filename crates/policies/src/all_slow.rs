//! `all-slow`: the baseline of the papers. Every page lies in the slowest tier.
//!
//! In: new pages. Out: their tier. Must not: move a page.
//!
//! Source: a bound. It has no constants.

use terrace_core::policy::CapacityView;
use terrace_core::units::{PageId, TierId};

use crate::PolicyInfo;
use crate::parts::static_placement::{Placement, StaticPolicy};

/// The policy's entry in the registry.
pub const INFO: PolicyInfo = PolicyInfo {
    name: "all-slow",
    summary: "every page in the slowest tier: the lower bound, and the baseline of the papers",
    source: "a bound",
    settings: &[],
    build: |_settings| Ok(Box::new(StaticPolicy(AllSlow))),
};

/// See the module's header.
#[derive(Clone, Copy, Debug)]
pub struct AllSlow;

impl Placement for AllSlow {
    fn name(&self) -> &'static str {
        INFO.name
    }

    fn place(&mut self, _page: PageId, capacity: &CapacityView<'_>) -> TierId {
        capacity.slowest()
    }
}

#[cfg(test)]
mod tests {
    use crate::parts::static_placement::placed;

    #[test]
    fn everything_is_slow_while_it_fits() {
        let check = |capacity: &[u64], count: u32, tiers: &[u8]| {
            let mut policy = crate::build("all-slow", crate::Settings::default()).unwrap();
            assert_eq!(placed(policy.as_mut(), capacity, count), tiers);
        };
        check(&[8, 8], 3, &[1, 1, 1]);
        check(&[8, 8, 8], 2, &[2, 2]);
        check(&[8, 1], 2, &[1, 0]);
    }
}
