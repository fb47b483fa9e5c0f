//! Properties of the arbiter for arbitrary claims.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use terrace_core::arbiter::{Claim, share_out};

fn claims() -> impl Strategy<Value = Vec<Claim>> {
    let amount = prop_oneof![Just(0), 1u64..100, 1u64..1_000_000, any::<u64>()];
    let ceiling = prop_oneof![3 => Just(u64::MAX), 1 => 0u64..1_000_000];
    let one = (1u32..=Claim::MAX_WEIGHT, amount.clone(), ceiling, amount.clone(), amount).prop_map(
        |(weight, floor, ceiling, using, more)| Claim {
            weight,
            floor,
            ceiling,
            using,
            wanted: using.saturating_add(more),
        },
    );
    proptest::collection::vec(one, 1..12)
}

fn budgets() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), 0u64..1000, 0u64..10_000_000, any::<u64>()]
}

fn sum(amounts: impl IntoIterator<Item = u64>) -> u128 {
    amounts.into_iter().map(u128::from).sum()
}

fn floor(claim: &Claim) -> u64 {
    claim.floor.min(claim.ceiling)
}

/// The most a claim can be granted.
fn most(claim: &Claim) -> u64 {
    claim.wanted.min(claim.ceiling).max(floor(claim))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn the_budget_the_ceilings_and_the_floors_hold(budget in budgets(), claims in claims()) {
        let grants = share_out(budget, &claims);
        prop_assert_eq!(grants.len(), claims.len());
        prop_assert!(sum(grants.iter().copied()) <= u128::from(budget));
        let floors_fit = sum(claims.iter().map(floor)) <= u128::from(budget);
        for (grant, claim) in grants.iter().zip(&claims) {
            prop_assert!(*grant <= most(claim), "{} of at most {}", grant, most(claim));
            if floors_fit {
                prop_assert!(*grant >= floor(claim));
            } else {
                prop_assert!(*grant <= floor(claim));
            }
        }
    }

    #[test]
    fn nothing_is_kept_back_while_someone_wants_it(budget in budgets(), claims in claims()) {
        let granted = sum(share_out(budget, &claims));
        prop_assert_eq!(granted, u128::from(budget).min(sum(claims.iter().map(most))));
    }

    #[test]
    fn nobody_starves(budget in budgets(), claims in claims()) {
        // Whatever the others claim, each gets its share by weight of what the floors leave, if it uses that much.
        let grants = share_out(budget, &claims);
        let left = u128::from(budget).saturating_sub(sum(claims.iter().map(floor)));
        let weights: u128 = claims.iter().map(|claim| u128::from(claim.weight)).sum();
        for (grant, claim) in grants.iter().zip(&claims) {
            let fair = left * u128::from(claim.weight) / weights;
            let using = u128::from(claim.using.min(claim.ceiling));
            prop_assert!(u128::from(*grant) + 1 >= fair.min(using), "{} of {}", grant, fair.min(using));
        }
    }

    #[test]
    fn it_is_max_min_among_those_that_use_their_grant(budget in 1u64..1_000_000, claims in claims()) {
        // No claim could get more without taking it from one with no more for its weight.
        let claims: Vec<Claim> = claims.into_iter().map(|claim| Claim { floor: 0, wanted: claim.using, ..claim }).collect();
        let grants = share_out(budget, &claims);
        for (a, (grant, claim)) in grants.iter().zip(&claims).enumerate() {
            if *grant >= most(claim) {
                continue;
            }
            let level = (*grant as f64 + 1.0) / f64::from(claim.weight);
            for (b, (other, rival)) in grants.iter().zip(&claims).enumerate() {
                let of_other = (*other as f64 - 1.0) / f64::from(rival.weight);
                prop_assert!(a == b || of_other <= level * (1.0 + 1e-9) + 1e-4, "{} holds {} above {}", b, of_other, level);
            }
        }
    }

    #[test]
    fn a_larger_budget_takes_nothing_away(budget in 0u64..u64::MAX / 2, more in 0u64..1_000_000, claims in claims()) {
        let (before, after) = (share_out(budget, &claims), share_out(budget + more, &claims));
        for (before, after) in before.iter().zip(&after) {
            // The odd unit of a rounding may change hands.
            prop_assert!(*after + 1 >= *before);
        }
    }

    #[test]
    fn the_order_of_the_claims_is_worth_one_unit_at_most(budget in budgets(), claims in claims(), turn in 0usize..12) {
        let turn = turn % claims.len();
        let mut turned = claims.clone();
        turned.rotate_left(turn);
        let mut grants = share_out(budget, &turned);
        grants.rotate_right(turn);
        for (one, other) in share_out(budget, &claims).iter().zip(&grants) {
            prop_assert!(one.abs_diff(*other) <= 1);
        }
    }
}
