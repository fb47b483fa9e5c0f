//! `autonuma`: the kernel's NUMA balancing, mode 1. A fault on a slow page moves it in, if fast memory has room.
//!
//! In: hint faults on all tiers. Out: promotions at once. Must not: demote; mode 1 never does, which is why promotions fail as
//! soon as fast memory is full.
//!
//! Source: Linux 6.3 (specification section 9). Scanner constants: [`crate::parts::hint_scanner`]; watermarks:
//! [`terrace_core::reclaim`].
//!
//! | constant | default | meaning |
//! |---|---|---|
//! | `two_stage` | on | the last fault and this one must come from the same node; a page's first fault only records |
//! | scanned tiers | all | faults on fast pages count as local and slow the scanner down |
//! | period | adapts | no faults or a failed promotion doubles it; otherwise a tenth for each tenth off 70 % local |
//!
//! All processors are taken to sit at the fast tier, and which thread faulted is not seen: the rule of private and group
//! faults passes every page that the first stage passes.

use terrace_core::pages::Pages;
use terrace_core::policy::Kernel;

use crate::parts::fault_tiering::{FaultPolicy, FaultTiering, PromotionRule, SlowFault};
use crate::parts::hint_scanner::{self, ALL_TIERS};
use crate::{PolicyInfo, SettingInfo};

/// The policy's entry in the registry.
pub const INFO: PolicyInfo = PolicyInfo {
    name: "autonuma",
    summary: "Linux NUMA balancing: promotes on hint faults while there is room, never demotes",
    source: "Linux 6.3, numa_balancing=1",
    settings: &[
        SettingInfo {
            key: "two_stage",
            default: "on",
            meaning: "promote on the second fault of a page, not the first",
        },
        hint_scanner::SETTINGS[0],
        hint_scanner::SETTINGS[1],
        hint_scanner::SETTINGS[2],
        hint_scanner::SETTINGS[3],
    ],
    build: |settings| {
        let kernel = Kernel { promotion_needs_high_watermark: true, ..Kernel::default() };
        let tiering = FaultTiering::new(settings, kernel, ALL_TIERS, true)?;
        Ok(Box::new(FaultPolicy { tiering, judge: AutoNuma { two_stage: settings.switch("two_stage")? } }))
    },
};

/// See the module's header.
pub struct AutoNuma {
    two_stage: bool,
}

impl PromotionRule for AutoNuma {
    fn name(&self) -> &'static str {
        INFO.name
    }

    fn judge(&mut self, fault: SlowFault, tiering: &mut FaultTiering, pages: &mut Pages) {
        if self.two_stage && FaultTiering::judged(fault.page, pages) == 0 {
            FaultTiering::set_judged(fault.page, 1, pages);
        } else {
            tiering.promote(fault.now, fault.page, pages);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use terrace_core::units::TierId;

    use crate::Settings;
    use crate::rig::{Rig, SLOW};

    const SOON: Duration = Duration::from_millis(10);

    fn rig(extra: &[(&str, &str)]) -> Rig {
        let settings = Settings::from_pairs(extra.iter().copied());
        let mut rig = Rig::new(crate::build("autonuma", settings).unwrap(), &[100_000, 100_000]);
        rig.map(110_000);
        rig
    }

    #[test]
    fn the_second_fault_promotes_or_the_first_without_the_two_stage_filter() {
        let check = |two_stage: &str, faults: usize| {
            let mut rig = rig(&[("two_stage", two_stage)]);
            rig.born([7], SLOW);
            for fault in 0..faults {
                assert_eq!(rig.tier(7), Some(SLOW), "two_stage={two_stage}, {fault} faults");
                rig.fault([7], SOON, false);
            }
            assert_eq!(rig.tier(7), Some(TierId::FAST), "two_stage={two_stage}");
        };
        check("on", 2);
        check("off", 1);
    }

    #[test]
    fn once_fast_memory_is_full_every_promotion_fails_and_nothing_leaves() {
        let mut rig = rig(&[("two_stage", "off")]);
        rig.born(0..99_990, TierId::FAST);
        rig.watermark = 10;
        rig.born(100_000..100_100, SLOW);
        rig.fault(100_000..100_100, SOON, false);
        assert_eq!((rig.promotions, rig.demotions), (0, 0));
        assert_eq!(rig.metric("promotion_failures_no_room"), 100.0);
        // With room the same faults promote: nothing else keeps them from it.
        use terrace_core::observation::Observation;
        let gone: Vec<_> = (0..5000).map(|vpn| Observation::Freed { page: rig.page(vpn) }).collect();
        rig.events(&gone);
        rig.fault(100_000..100_100, SOON, false);
        assert_eq!(rig.promotions, 100);
    }
}
