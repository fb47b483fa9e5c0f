//! `tpp`: TPP. Pages used twice come up in the fault itself; reclaim keeps 2 % of fast memory free ahead of allocation.
//!
//! In: hint faults on slow pages. Out: promotions at once. Must not: look at fast pages, or hold promotions to a rate.
//!
//! Source: TPP (ASPLOS 2023) and its patch for Linux 5.13 (specification section 10). Scanner constants:
//! [`crate::parts::hint_scanner`]; watermarks: [`terrace_core::reclaim`].
//!
//! | constant | default | meaning |
//! |---|---|---|
//! | `demote_scale` | 200 of 10,000 | free share that reclaim restores, at least twice the high watermark |
//! | `touches` | 2 | faults that promote: 2 in the paper; 3 in the code, where the first only marks the page referenced |
//! | `decoupled` | on | the watermark of allocation stays below that of demotion |
//!
//! `touches=1` is the ablation without the active list. A promotion candidate that was demoted before is ping-pong, and
//! counted. Demoted pages stay inaccessible, so that their first use is a fault. The paper's placement of file pages in slow
//! memory is not offered: the patch does not have it either.

use terrace_core::pages::Pages;
use terrace_core::policy::Kernel;

use crate::parts::fault_tiering::{FaultPolicy, FaultTiering, PromotionRule, SlowFault};
use crate::parts::hint_scanner::{self, ALL_TIERS, SLOW_TIERS};
use crate::{PolicyInfo, SettingInfo};

/// The policy's entry in the registry.
pub const INFO: PolicyInfo = PolicyInfo {
    name: "tpp",
    summary: "TPP: promotes pages on their second hint fault; reclaim keeps 2 % free ahead of allocation",
    source: "TPP, ASPLOS 2023",
    settings: &[
        SettingInfo {
            key: "touches",
            default: "2",
            meaning: "hint faults that promote: 2 (paper), 3 (kernel), 1 (no active list)",
        },
        SettingInfo { key: "demote_scale", default: "200", meaning: "free share that reclaim restores, of 10,000" },
        SettingInfo {
            key: "decoupled",
            default: "on",
            meaning: "reclaim runs ahead of allocation; off: the ordinary watermarks",
        },
        SettingInfo {
            key: "scan_fast",
            default: "off",
            meaning: "make fast pages inaccessible too; their faults have no use",
        },
        hint_scanner::SETTINGS[0],
        hint_scanner::SETTINGS[1],
        hint_scanner::SETTINGS[2],
        hint_scanner::SETTINGS[3],
    ],
    build: |settings| {
        let demote_scale = settings.number("demote_scale", 1..=2000)?;
        let kernel = Kernel {
            demotion: true,
            demote_scale: if settings.switch("decoupled")? { demote_scale } else { 0 },
            promotion_needs_high_watermark: true,
            demoted_pages_marked: true,
            ..Kernel::default()
        };
        let tiers = if settings.switch("scan_fast")? { ALL_TIERS } else { SLOW_TIERS };
        let tiering = FaultTiering::new(settings, kernel, tiers, false)?;
        Ok(Box::new(FaultPolicy {
            tiering,
            judge: Tpp { name: INFO.name, touches: settings.number("touches", 1..=3)? },
        }))
    },
};

/// See the module's header. Nomad's rule is the same.
pub struct Tpp {
    pub(crate) name: &'static str,
    pub(crate) touches: u8,
}

impl PromotionRule for Tpp {
    fn name(&self) -> &'static str {
        self.name
    }

    fn judge(&mut self, fault: SlowFault, tiering: &mut FaultTiering, pages: &mut Pages) {
        let touches = FaultTiering::judged(fault.page, pages) + 1;
        if touches >= self.touches {
            tiering.promote(fault.now, fault.page, pages);
        } else {
            FaultTiering::set_judged(fault.page, touches, pages);
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
        let mut policy = crate::build("tpp", settings).unwrap();
        policy.configure(crate::rig::scaled(64));
        let mut rig = Rig::new(policy, &[20_000, 100_000]);
        rig.map(40_000);
        rig
    }

    #[test]
    fn a_page_comes_up_on_the_fault_that_touches_says() {
        let check = |touches: &str, faults: usize| {
            let mut rig = rig(&[("touches", touches)]);
            rig.born([7], SLOW);
            for fault in 0..faults {
                assert_eq!(rig.tier(7), Some(SLOW), "touches={touches}, {fault} faults");
                rig.fault([7], SOON, false);
            }
            assert_eq!(rig.tier(7), Some(TierId::FAST), "touches={touches}");
        };
        check("1", 1);
        check("2", 2);
        check("3", 3);
    }

    #[test]
    fn a_demoted_page_that_is_wanted_back_is_ping_pong() {
        let mut rig = rig(&[]);
        rig.born(0..19_900, TierId::FAST);
        rig.kernel_goal = 400;
        rig.pass(Duration::from_millis(1));
        let gone = (0..19_900).find(|&vpn| rig.tier(vpn) == Some(SLOW)).expect("the kernel demoted");
        rig.fault([gone, gone], SOON, false);
        assert_eq!(rig.metric("promote_candidate_demoted_pages"), 1.0);
    }
}
