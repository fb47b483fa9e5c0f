//! `nomad`: Nomad. Pages are promoted as by TPP, off the program's path, and leave their copy in slow memory: going back costs no copying.
//!
//! In: hint faults on slow pages. Out: promotions. Must not: keep a copy itself; the kernel beneath does ([`Kernel::keeps_copies`]).
//!
//! Source: Nomad (OSDI 2024; arXiv 2401.13154), by its abstract and public descriptions [P]; constants are TPP's, on which it is built. Scanner
//! constants: [`crate::parts::hint_scanner`]; watermarks: [`terrace_core::reclaim`].
//!
//! | constant | default | meaning |
//! |---|---|---|
//! | `copies` | on | a promoted page leaves its copy in slow memory until it is written or the room is wanted [P] |
//! | transaction | the page stays mapped while it is copied | a page written meanwhile is copied again [P] |
//! | `touches` | 2 | faults that promote, as in TPP; Nomad asks the accessed bit once after the first fault [D] |
//! | `demote_scale` | 200 of 10,000 | free share that reclaim restores, as in TPP |
//!
//! Ambiguities: of copies that must give way the oldest go first. A copy that was aborted is taken to be tried again at once, where Nomad puts the page back
//! into its queue. Huge pages move whole and leave no copy.
//!
//! Memory beside the common eight bytes: none; the copies lie in memory that is free.

use terrace_core::policy::Kernel;

use crate::parts::fault_tiering::{FaultPolicy, FaultTiering};
use crate::parts::hint_scanner::{self, SLOW_TIERS};
use crate::tpp::Tpp;
use crate::{PolicyInfo, SettingInfo};

/// The policy's entry in the registry.
pub const INFO: PolicyInfo = PolicyInfo {
    name: "nomad",
    summary: "Nomad: TPP's promotions off the program's path; unmodified pages go back to the copy they left",
    source: "Nomad, OSDI 2024",
    settings: &[
        SettingInfo {
            key: "copies",
            default: "on",
            meaning: "promoted pages leave a copy; off: promotion in the fault, as in TPP",
        },
        SettingInfo { key: "touches", default: "2", meaning: "hint faults that promote" },
        SettingInfo { key: "demote_scale", default: "200", meaning: "free share that reclaim restores, of 10,000" },
        hint_scanner::SETTINGS[0],
        hint_scanner::SETTINGS[1],
        hint_scanner::SETTINGS[2],
        hint_scanner::SETTINGS[3],
    ],
    build: |settings| {
        let kernel = Kernel {
            demotion: true,
            demote_scale: settings.number("demote_scale", 1..=2000)?,
            promotion_needs_high_watermark: true,
            demoted_pages_marked: true,
            keeps_copies: settings.switch("copies")?,
            ..Kernel::default()
        };
        let tiering = FaultTiering::new(settings, kernel, SLOW_TIERS, false)?;
        Ok(Box::new(FaultPolicy {
            tiering,
            judge: Tpp { name: INFO.name, touches: settings.number("touches", 1..=3)? },
        }))
    },
};

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use terrace_core::units::TierId;

    use crate::Settings;
    use crate::rig::{Rig, SLOW};

    #[test]
    fn the_kernel_beneath_keeps_copies_unless_it_is_switched_off() {
        let kernel = |pairs: &[(&str, &str)]| {
            crate::build("nomad", Settings::from_pairs(pairs.iter().copied())).unwrap().profile().kernel
        };
        assert!(kernel(&[]).keeps_copies && kernel(&[]).demotion);
        assert!(!kernel(&[("copies", "off")]).keeps_copies);
    }

    #[test]
    fn a_page_comes_up_on_its_second_fault() {
        let mut policy = crate::build("nomad", Settings::default()).unwrap();
        policy.configure(crate::rig::scaled(64));
        let mut rig = Rig::new(policy, &[20_000, 100_000]);
        rig.map(100);
        rig.born([7], SLOW);
        rig.fault([7], Duration::from_millis(10), false);
        assert_eq!(rig.tier(7), Some(SLOW));
        rig.fault([7], Duration::from_millis(10), false);
        assert_eq!(rig.tier(7), Some(TierId::FAST));
    }
}
