//! Swap: how soon pages of a kind come back, and which pages may be out for what that costs.
//!
//! In: the witnesses' idle times and uses, what swap costs. Out: requests to leave. Must not: bring pages back; the program's use does.
//!
//! A page in swap cannot be used there, so there is nothing to exchange: what counts is how often it would come back. By how long pages have
//! been idle and how much they were used before, the table counts how many intervals witnesses spent there, and how many of these ended with
//! a use: a hazard, as in the analysis of survival. From it follows the rate at which a page that leaves now pays for its way back,
//!
//! ```text
//! h(age)  = (uses + 4 h0) / (intervals + 4),  h0 = 1 / (8 age)
//! rate    = the greatest, over all times L ahead, of P(used within L) / L
//! ```
//!
//! where `h0` says that what nobody has watched for longer stays away eight times as long as it has been idle. So little may leave at
//! first, and more the longer the program was watched. All pages that are out, and those that leave, lowest rate first, may together cost
//! four fifths of the bound: the sum of `rate * (back + out)`.

use std::collections::BTreeSet;
use std::time::Duration;

use terrace_core::pages::Pages;
use terrace_core::plan::{MoveRequests, Reason};
use terrace_core::policy::{CapacityView, SwapCosts};
use terrace_core::units::{BLOCK_PAGES, SpaceId, TierId, Time};

use super::Terrace;
use super::pass::NEWBORN;
use super::state::{AGES, LEVELS, age_bin, level_at_use};
use crate::parts::whole_blocks::Leavers;

/// Kinds of idle pages: by age, and by level when last used.
const KINDS: usize = AGES * LEVELS;
/// What an interval leaves of what was counted: a half-life of 34 intervals.
const FORGET: f32 = 0.98;
/// Intervals that the prior stands for.
const PRIOR_WEIGHT: f32 = 4.0;
/// A page comes back after this many times as long as it has been idle, where nothing else is known.
const LASTS: f32 = 8.0;
/// Part of the bound that pages in swap may cost; the rest is for moves and watching.
const PART: f64 = 0.8;
/// A page used in this interval or the last does not leave unless it must.
const LEAST_AGE: u16 = 2;
/// Within which a program that grows is taken to be loading.
pub(super) const LOADING: Duration = Duration::from_secs(12);

/// See the module's header.
#[derive(Clone, Debug)]
pub(super) struct Returns {
    /// Intervals spent in each kind, and how many ended with a use.
    counts: Vec<[f32; 2]>,
    /// Returns an interval of a page that leaves now, and the kinds in the order of it.
    rates: Vec<f32>,
    order: Vec<u16>,
    /// Part of what left that went as whole blocks.
    whole: f64,
}

/// Which kind a page is of, last used `age` intervals ago.
pub(super) fn kind(age: u16, long: u16, mean: u16) -> u16 {
    (age_bin(age) * LEVELS + level_at_use(age, long, mean)) as u16
}

/// How many intervals a page stays in an age bin, and the age in its middle.
fn span(bin: usize) -> (f32, f32) {
    match bin {
        0..=3 => (1.0, bin as f32 + 0.5),
        _ => {
            let edge = |bin: usize| 4.0 * ((bin - 4) as f32 / 1.5).exp2();
            (edge(bin + 1) - edge(bin), f32::midpoint(edge(bin), edge(bin + 1)))
        }
    }
}

impl Returns {
    pub(super) fn new() -> Returns {
        let mut returns = Returns {
            counts: vec![[0.0; 2]; KINDS],
            rates: vec![0.0; KINDS],
            order: (0..KINDS as u16).collect(),
            whole: 1.0,
        };
        returns.close();
        returns
    }

    /// A page was of this kind when the interval began, and was used in it or not.
    pub(super) fn learn(&mut self, kind: u16, used: bool) {
        let [intervals, uses] = &mut self.counts[usize::from(kind)];
        *intervals += 1.0;
        *uses += f32::from(u8::from(used));
    }

    /// An interval is over.
    pub(super) fn close(&mut self) {
        for level in 0..LEVELS {
            let hazard = |bin: usize| {
                let [intervals, uses] = self.counts[bin * LEVELS + level];
                let prior = 1.0 / (LASTS * span(bin).1);
                ((uses + PRIOR_WEIGHT * prior) / (intervals + PRIOR_WEIGHT)).min(1.0)
            };
            for bin in 0..AGES {
                let (mut stays, mut ahead, mut rate) = (1.0_f32, 0.0, 0.0_f32);
                for later in bin..AGES {
                    let intervals = span(later).0;
                    stays *= (1.0 - hazard(later)).powf(intervals);
                    ahead += intervals;
                    rate = rate.max((1.0 - stays) / ahead);
                }
                self.rates[bin * LEVELS + level] = rate;
            }
        }
        let rates = &self.rates;
        self.order.sort_unstable_by(|one, other| {
            rates[usize::from(*one)].total_cmp(&rates[usize::from(*other)]).then(one.cmp(other))
        });
        self.counts.iter_mut().flatten().for_each(|count| *count *= FORGET);
    }

    /// What a page costs in swap that comes back, in seconds.
    fn round_trip(&self, costs: &SwapCosts) -> f64 {
        costs.back + self.whole * costs.of_block + (1.0 - self.whole) * costs.single
    }

    /// How many pages of each kind may leave: of `fast` by kind, with `out` of each kind in swap, for `budget` returns an interval; and as many
    /// more as must.
    fn quotas(&self, fast: &[u64], out: &[u64], budget: f64, must: u64) -> Vec<u64> {
        let rate = |kind: usize| f64::from(self.rates[kind]);
        let mut left = budget - out.iter().enumerate().map(|(kind, pages)| *pages as f64 * rate(kind)).sum::<f64>();
        let mut must = must;
        let mut quotas = vec![0; KINDS];
        for kind in self.order.iter().map(|kind| usize::from(*kind)) {
            let affordable = (left.max(0.0) / rate(kind).max(1e-12)) as u64;
            let pages = fast[kind].min(affordable.max(must));
            left -= pages as f64 * rate(kind);
            must -= must.min(pages);
            quotas[kind] = pages;
        }
        quotas
    }
}

impl Terrace {
    /// Lets go for swap what may be out.
    pub(super) fn leave(
        &mut self,
        now: Time,
        growing: &BTreeSet<SpaceId>,
        costs: &SwapCosts,
        capacity: &CapacityView<'_>,
        pages: &Pages,
        requests: &mut MoveRequests,
    ) {
        let asleep = |space| self.programs.get(&space).is_some_and(|program| program.awake_since.is_none());
        let must = capacity.fast_excess();
        if must == 0 && capacity.fast_limit.is_some() {
            return;
        }
        // What sleeps leaves for that alone, and just after that a page was not used says nothing of it.
        let stays = |space: SpaceId| {
            let since = self.programs.get(&space).map_or(Some(Time::ZERO), |program| program.awake_since);
            let settled = since.is_some_and(|since| since == Time::ZERO || now.since(since) >= LOADING);
            must == 0 && (growing.contains(&space) || !settled)
        };
        let mut places = vec![0_usize; KINDS];
        for (place, kind) in self.returns.order.iter().enumerate() {
            places[usize::from(*kind)] = place;
        }
        let (mut fast, mut out) = (vec![0; KINDS], vec![0; KINDS]);
        // The kind of a page that may leave, or that is out already.
        let kind_of = |unit| {
            let page = &pages[unit];
            let age = self.number.wrapping_sub(page.stamp);
            let known = page.stamp != 0 && page.policy_bits() != NEWBORN;
            (known && (age >= LEAST_AGE || must > 0)).then(|| usize::from(kind(age, page.heat, self.mean)))
        };
        for (block, info) in pages.blocks() {
            let step = if info.huge { BLOCK_PAGES } else { 1 };
            let (stays, sleeps) = (stays(info.space), asleep(info.space));
            for unit in (0..BLOCK_PAGES).step_by(step as usize).map(|offset| block.first_page().plus(offset)) {
                match (pages[unit].tier(), kind_of(unit)) {
                    (Some(TierId::FAST), Some(kind)) if !stays && !pages[unit].pinned() => {
                        fast[kind] += u64::from(step)
                    }
                    (Some(tier), kind) if tier == costs.tier && !sleeps => out[kind.unwrap_or(0)] += u64::from(step),
                    _ => {}
                }
            }
        }
        let budget = PART * costs.budget / capacity.backoff * self.pace.interval().as_secs_f64();
        let budget = if capacity.fast_limit.is_some() { 0.0 } else { budget / self.returns.round_trip(costs) };
        let mut quotas = self.returns.quotas(&fast, &out, budget, must);
        let mut leavers = Leavers::new();
        for (block, info) in pages.blocks() {
            if stays(info.space) {
                continue;
            }
            let step = if info.huge { BLOCK_PAGES } else { 1 };
            let may = |unit| {
                let page = &pages[unit];
                let there = page.tier() == Some(TierId::FAST) && !page.moving() && !page.pinned();
                kind_of(unit).filter(|_| there)
            };
            for unit in (0..BLOCK_PAGES).step_by(step as usize).map(|offset| block.first_page().plus(offset)) {
                if let Some(kind) = may(unit).filter(|kind| quotas[*kind] > 0) {
                    quotas[kind] = quotas[kind].saturating_sub(u64::from(step));
                    leavers.push(unit, places[kind]);
                }
            }
            if capacity.fast_limit.is_none() && !info.huge {
                // Its few others were not used in this interval or the last.
                leavers.round_up(block, |unit| may(unit).map(|kind| places[kind]));
            }
            leavers.end_block(step);
        }
        let reason = if must > 0 { Reason::OverLimit } else { Reason::Cold };
        let leavers = leavers.in_order();
        if !leavers.is_empty() {
            let whole = leavers.iter().filter(|leaving| leaving.is_of_whole()).count() as f64 / leavers.len() as f64;
            self.returns.whole += (whole - self.returns.whole) / 4.0;
        }
        for leaving in leavers {
            if !requests.move_to(leaving.id, costs.tier, reason) {
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pages of one level that are used each `period` intervals, watched for so long.
    fn watched(period: u16, intervals: u16) -> Returns {
        let mut returns = Returns::new();
        for interval in 1..=intervals {
            for _ in 0..100 {
                // All in step, as a program that goes over its memory now and then.
                let age = (interval - 1) % period.max(1);
                returns.learn(kind(age, 0, 0), age + 1 == period);
            }
            returns.close();
        }
        returns
    }

    fn rate_at(returns: &Returns, age: u16) -> f32 {
        returns.rates[usize::from(kind(age, 0, 0))]
    }

    #[test]
    fn a_page_that_comes_back_each_ten_intervals_costs_a_tenth_of_a_return_whenever_it_leaves() {
        let returns = watched(10, 100);
        let rates: Vec<f32> = (2..9).map(|age| rate_at(&returns, age)).collect();
        assert!(rates.iter().all(|rate| (0.08..0.5).contains(rate)), "{rates:?}");
    }

    #[test]
    fn what_was_never_used_again_costs_less_the_longer_it_was_watched() {
        let rates: Vec<f32> =
            [10, 20, 40, 80].map(|watched_for| rate_at(&watched(u16::MAX, watched_for), watched_for)).to_vec();
        assert!(rates.windows(2).all(|pair| pair[1] < 0.7 * pair[0]), "{rates:?}");
        assert!((0.2..5.0).contains(&(rates[3] * LASTS * 80.0)), "{rates:?}: by the prior alone");
    }

    #[test]
    fn the_cheapest_leave_first_and_no_more_than_is_affordable() {
        let returns = watched(10, 100);
        let (cheap, dear) = (kind(40, 0, 0), kind(5, 0, 0));
        let mut fast = vec![0; KINDS];
        fast[usize::from(cheap)] = 100;
        fast[usize::from(dear)] = 100;
        let none = vec![0; KINDS];
        let rate = |kind: u16| f64::from(returns.rates[usize::from(kind)]);
        assert!(rate(cheap) < rate(dear));
        let of = |quotas: &[u64]| [cheap, dear].map(|kind| quotas[usize::from(kind)]);
        assert_eq!(of(&returns.quotas(&fast, &none, 0.0, 0)), [0, 0]);
        let budget = 100.0 * rate(cheap) + 10.5 * rate(dear);
        assert_eq!(of(&returns.quotas(&fast, &none, budget, 0)), [100, 10]);
        assert_eq!(of(&returns.quotas(&fast, &none, 0.0, 30)), [30, 0], "over the limit some must");
        let mut out = none.clone();
        out[usize::from(dear)] = 10;
        assert_eq!(of(&returns.quotas(&fast, &out, budget, 0)), [100, 0], "what is out is paid for first");
    }
}
