//! Which moves are asked for: exchanges that pay, and room for pages to come.
//!
//! In: offers of the latest pass, prices, the room there is. Out: requests. Must not: value a page.

use std::time::Duration;

use terrace_core::pages::Pages;
use terrace_core::plan::{MoveRequests, Reason};
use terrace_core::policy::CapacityView;
use terrace_core::prices::Prices;
use terrace_core::units::{PageId, TierId, Time};

use super::exchange::{Best, Market, pair};
use super::shadows::Arm;
use super::state::State;
use super::{BATCH, NEWBORNS_KNOWN, Terrace};
use crate::parts::support;

impl Terrace {
    /// Prices, and how the machine stands.
    pub(super) fn market(&self, interval: Duration) -> Market {
        let taken = if self.options.spare && self.counts.cores > 0 { self.counts.in_use } else { 1.0 };
        Market {
            prices: self.prices.unwrap_or(Prices::ASSUMED),
            taken,
            cores: self.counts.cores.max(1),
            gain_ns: self.gain_ns,
            rate: self.rate[0] / self.rate[1].max(1e-9),
            interval_ns: interval.as_nanos() as f64 / f64::from(self.scale),
            weighs: self.options.weighs,
        }
    }

    /// Nanoseconds the mover has in an interval.
    pub(super) fn budget_ns(&self, interval: Duration) -> f64 {
        let more = if self.options.change && self.change.is_recent() { 2.0 } else { 1.0 };
        interval.as_nanos() as f64 / f64::from(self.scale) * (self.account.allowed() * more).min(1.0)
    }

    pub(super) fn budget_pages(&self, interval: Duration) -> u64 {
        let market = self.market(interval);
        let slow = TierId::FAST.below();
        let both =
            market.price(1, 0.0, slow, TierId::FAST).mover_ns + market.price(1, 0.0, TierId::FAST, slow).mover_ns;
        (self.budget_ns(interval) / both.max(1.0)) as u64 + self.headroom
    }

    /// Step 4: pages change places, from the fastest pair of tiers down.
    pub(super) fn exchange(
        &mut self,
        capacity: &CapacityView<'_>,
        coming: Vec<Best>,
        leaving: Vec<Best>,
        requests: &mut MoveRequests,
    ) {
        let interval = self.pace.interval();
        let market = self.market(interval);
        let frozen = self.shadows.ruling() == Arm::Frozen;
        let mut taken: Vec<PageId> = Vec::new();
        for (above, (coming, leaving)) in coming.into_iter().zip(leaving).enumerate() {
            let to = TierId(above as u8);
            let mut coming = coming.into_sorted();
            coming.retain(|offer| !taken.contains(&offer.unit));
            let mut leaving = leaving.into_sorted();
            leaving.retain(|offer| !taken.contains(&offer.unit));
            let tier = capacity.tiers[above];
            let free = if above == 0 { self.fast_limit.saturating_sub(tier.used + self.headroom) } else { tier.free() };
            let mut used = 0;
            if !frozen && market.gain_ns > 0.0 {
                let found = pair(&coming, &leaving, free, to, &market, self.budget_ns(interval));
                for one in found {
                    let victims: Vec<PageId> = one.leaves.iter().map(|offer| offer.unit).collect();
                    let fits = if self.options.pairs {
                        requests.exchange(&victims, to.below(), one.comes.unit, to)
                    } else {
                        let all = victims.iter().all(|unit| requests.move_to(*unit, to.below(), Reason::MakeRoom));
                        requests.move_to(one.comes.unit, to, Reason::Hot) && all
                    };
                    used += one.leaves.len();
                    if capacity.tiers.len() > 2 {
                        taken.extend(victims.iter().chain([&one.comes.unit]));
                    }
                    self.exchanged += u64::from(one.comes.pages);
                    if !fits {
                        break;
                    }
                }
            }
            if above == 0 {
                self.best_slow = coming.first().map_or(0.0, |offer| offer.value);
                leaving.drain(..used);
                self.victims = leaving;
            }
        }
    }

    /// Step 5: what is over the limit leaves, and room is made for pages to come while they are worth more than who leaves.
    pub(super) fn keep_room(
        &mut self,
        now: Time,
        capacity: &CapacityView<'_>,
        pages: &Pages,
        requests: &mut MoveRequests,
    ) {
        self.make_room = false;
        let interval = self.pace.interval();
        let market = self.market(interval);
        let slow = TierId::FAST.below();
        let page_ns = market.price(1, 0.0, TierId::FAST, slow).mover_ns * f64::from(self.scale);
        if self.options.allocations {
            let batch = (BATCH / u64::from(self.scale)).max(1);
            self.headroom = self.allocations.headroom(now, page_ns, interval, batch, self.fast_limit);
        }
        let newborn = f64::from(self.table.value(State::newborn(false)));
        let mut over = capacity.fast_excess();
        let mut wanted = self.headroom.saturating_sub(self.fast_limit.saturating_sub(capacity.tiers[0].used + over));
        let mut used = 0;
        for victim in &self.victims {
            let entry = &pages[victim.unit];
            let gone =
                pages.block(victim.unit.block()).is_none() || entry.tier() != Some(TierId::FAST) || entry.moving();
            if over == 0 && wanted == 0 {
                break;
            }
            used += 1;
            if gone {
                continue;
            }
            let size = u64::from(victim.pages);
            // A huge page does not leave for a few small ones.
            if over == 0 && size > 2 * wanted {
                break;
            }
            let value = f64::from(victim.value);
            let price = market.price(victim.pages, value, TierId::FAST, slow).program_ns * f64::from(victim.times);
            let gained = (newborn - value) * f64::from(victim.pages);
            let pays = if market.weighs { market.worth(gained) > price } else { gained > 0.0 };
            let reason = if over > 0 { Reason::OverLimit } else { Reason::MakeRoom };
            if over == 0 && !pays || !requests.move_to(victim.unit, slow, reason) {
                break;
            }
            self.room_made += size;
            (over, wanted) = (over.saturating_sub(size), wanted.saturating_sub(size.saturating_sub(over)));
        }
        self.victims.drain(..used);
    }

    /// Where a new page goes: into fast memory while there is room, unless what waits for that room is worth more by the price of a move,
    /// and the value of new pages is well known.
    pub(super) fn place_new(&self, capacity: &CapacityView<'_>) -> TierId {
        let free = support::fast_limit(capacity).saturating_sub(capacity.tiers[0].used);
        if free == 0 || capacity.tiers.len() < 2 {
            return if free > 0 { TierId::FAST } else { support::first_below(capacity) };
        }
        let known = (NEWBORNS_KNOWN / u64::from(self.scale)).max(BATCH) as f32;
        if !self.options.allocations || self.table.newborns_seen(false) < known || free > self.headroom {
            return TierId::FAST;
        }
        let market = self.market(self.pace.interval());
        let gained = f64::from(self.best_slow - self.table.value(State::newborn(false)));
        let price = market.price(1, f64::from(self.best_slow), TierId::FAST.below(), TierId::FAST).program_ns;
        if market.worth(gained) > price { support::first_below(capacity) } else { TierId::FAST }
    }
}
