//! `memory-mode`: Optane Memory Mode (2LM). The hardware uses fast memory as a direct-mapped cache of slow memory.
//!
//! In: nothing. Out: nothing but the mark, [`Kernel::memory_mode`], by which the simulator builds the cache. Must not: place or
//! move; no software sees which lines are in fast memory.
//!
//! Source: vendor notes as the specification (section 12) tells them. The cache is the machine's: line 64 B, direct-mapped,
//! write-back, and its capacity is lost to the program. A live driver has no use for this policy: the mode is set in firmware.

use terrace_core::policy::{CapacityView, Kernel};
use terrace_core::units::{PageId, TierId};

use crate::PolicyInfo;
use crate::parts::static_placement::{Placement, StaticPolicy};

/// The policy's entry in the registry.
pub const INFO: PolicyInfo = PolicyInfo {
    name: "memory-mode",
    summary: "Optane Memory Mode: fast memory is a direct-mapped hardware cache of slow memory",
    source: "Intel Optane, 2LM",
    settings: &[],
    build: |_settings| Ok(Box::new(StaticPolicy(MemoryMode))),
};

/// See the module's header.
#[derive(Clone, Copy, Debug)]
pub struct MemoryMode;

impl Placement for MemoryMode {
    fn name(&self) -> &'static str {
        INFO.name
    }

    fn place(&mut self, _page: PageId, capacity: &CapacityView<'_>) -> TierId {
        capacity.slowest()
    }

    fn kernel(&self) -> Kernel {
        Kernel { memory_mode: true, ..Kernel::default() }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn it_is_marked_and_no_other_policy_is() {
        for info in crate::POLICIES {
            let policy = crate::build(info.name, crate::Settings::default()).unwrap();
            assert_eq!(policy.profile().kernel.memory_mode, info.name == "memory-mode", "{}", info.name);
        }
    }
}
