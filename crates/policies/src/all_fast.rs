//! `all-fast`: the bound of a machine whose fast memory holds everything. The simulator gives it that much; elsewhere what
//! does not fit spills.
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
    name: "all-fast",
    summary: "every page in fast memory: the upper bound of a machine with enough of it",
    source: "a bound",
    settings: &[],
    build: |_settings| Ok(Box::new(StaticPolicy(AllFast))),
};

/// See the module's header.
#[derive(Clone, Copy, Debug)]
pub struct AllFast;

impl Placement for AllFast {
    fn name(&self) -> &'static str {
        INFO.name
    }

    fn unlimited_fast(&self) -> bool {
        true
    }

    fn place(&mut self, _page: PageId, _capacity: &CapacityView<'_>) -> TierId {
        TierId::FAST
    }
}

#[cfg(test)]
mod tests {
    use crate::parts::static_placement::placed;

    #[test]
    fn everything_is_fast_while_it_fits() {
        let check = |capacity: &[u64], count: u32, tiers: &[u8]| {
            let mut policy = crate::build("all-fast", crate::Settings::default()).unwrap();
            assert_eq!(placed(policy.as_mut(), capacity, count), tiers);
        };
        check(&[8, 8], 4, &[0, 0, 0, 0]);
        check(&[1, 8], 2, &[0, 1]);
    }
}
