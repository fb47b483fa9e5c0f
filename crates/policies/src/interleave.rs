//! `interleave`: pages go to the tiers in turn, by address, in a fixed ratio. The kernel's weighted interleave.
//!
//! In: new pages. Out: their tier. Must not: move a page.
//!
//! Source: the kernel's interleave memory policy, with weights since Linux 6.9; FlexHM compares with it unweighted.
//!
//! | constant | default | meaning |
//! |---|---|---|
//! | `weights` | 1 for each tier | consecutive pages to each tier in turn, such as 3:1 |

use terrace_core::policy::CapacityView;
use terrace_core::units::{PageId, TierId};

use crate::parts::static_placement::{Placement, StaticPolicy};
use crate::{PolicyInfo, SettingInfo};

/// The policy's entry in the registry.
pub const INFO: PolicyInfo = PolicyInfo {
    name: "interleave",
    summary: "pages to the tiers in turn, by address, in a fixed ratio",
    source: "the kernel's interleave memory policy",
    settings: &[SettingInfo {
        key: "weights",
        default: "equal",
        meaning: "consecutive pages to each tier in turn, fastest first, such as 3:1; equal is one each",
    }],
    build: |settings| {
        let weights = settings.take("weights", "equal, or numbers such as 3:1", |text| match text {
            "equal" => Some(None),
            numbers => {
                let weights: Option<Vec<u32>> = numbers.split(':').map(|number| number.trim().parse().ok()).collect();
                let most = TierId::MAX;
                weights.filter(|all| all.len() <= most && all.iter().any(|&one| one > 0)).map(Some)
            }
        })?;
        Ok(Box::new(StaticPolicy(Interleave { weights })))
    },
};

/// See the module's header.
#[derive(Clone, Debug)]
pub struct Interleave {
    weights: Option<Vec<u32>>,
}

impl Placement for Interleave {
    fn name(&self) -> &'static str {
        INFO.name
    }

    fn place(&mut self, page: PageId, capacity: &CapacityView<'_>) -> TierId {
        let tiers = capacity.tiers.len() as u32;
        let Some(weights) = &self.weights else { return TierId((page.0 % tiers) as u8) };
        let sum: u64 = weights.iter().map(|&weight| u64::from(weight)).sum();
        let mut turn = u64::from(page.0) % sum;
        for (tier, &weight) in weights.iter().enumerate() {
            if turn < u64::from(weight) {
                return TierId(tier as u8).min(capacity.slowest());
            }
            turn -= u64::from(weight);
        }
        capacity.slowest()
    }
}

#[cfg(test)]
mod tests {
    use crate::Settings;
    use crate::parts::static_placement::placed;

    #[test]
    fn pages_go_round_in_the_ratio_of_the_weights() {
        let check = |weights: &str, capacity: &[u64], count: u32, tiers: &[u8]| {
            let mut policy = crate::build("interleave", Settings::from_pairs([("weights", weights)])).unwrap();
            assert_eq!(placed(policy.as_mut(), capacity, count), tiers, "{weights}");
        };
        check("equal", &[9, 9], 4, &[0, 1, 0, 1]);
        check("equal", &[9, 9, 9], 4, &[0, 1, 2, 0]);
        check("3:1", &[9, 9], 5, &[0, 0, 0, 1, 0]);
        check("equal", &[1, 9], 4, &[0, 1, 1, 1]);
        for text in ["0:0", "", "1:x", "1:1:1:1:1:1:1:1:1"] {
            assert!(crate::build("interleave", Settings::from_pairs([("weights", text)])).is_err(), "{text:?}");
        }
    }
}
