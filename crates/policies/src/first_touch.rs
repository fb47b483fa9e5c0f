//! `first-touch`: first touch, the kernel's default. New pages go to the fastest tier that has room, and stay there.
//!
//! In: new pages. Out: their tier. Must not: move a page.
//!
//! Source: the kernel's default allocation. It has no constants.

use terrace_core::policy::CapacityView;
use terrace_core::units::{PageId, TierId};

use crate::PolicyInfo;
use crate::parts::static_placement::{Placement, StaticPolicy};

/// The policy's entry in the registry.
pub const INFO: PolicyInfo = PolicyInfo {
    name: "first-touch",
    summary: "new pages go to the fastest tier with room, and stay",
    source: "the kernel's default allocation",
    settings: &[],
    build: |_settings| Ok(Box::new(StaticPolicy(FirstTouch))),
};

/// See the module's header.
#[derive(Clone, Copy, Debug)]
pub struct FirstTouch;

impl Placement for FirstTouch {
    fn name(&self) -> &'static str {
        INFO.name
    }

    fn place(&mut self, _page: PageId, _capacity: &CapacityView<'_>) -> TierId {
        TierId::FAST
    }
}

#[cfg(test)]
mod tests {
    use crate::parts::static_placement::placed;

    #[test]
    fn fast_memory_fills_first() {
        let check = |capacity: &[u64], count: u32, tiers: &[u8]| {
            let mut policy = crate::build("first-touch", crate::Settings::default()).unwrap();
            assert_eq!(placed(policy.as_mut(), capacity, count), tiers);
        };
        check(&[2, 3], 4, &[0, 0, 1, 1]);
    }
}
