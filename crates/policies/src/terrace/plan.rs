//! Which moves are asked for: exchanges that pay, and room for pages to come.
//!
//! In: offers of the latest pass, prices, the room there is. Out: requests. Must not: value a page.

use std::time::Duration;

use terrace_core::pages::Pages;
use terrace_core::plan::{MoveRequests, Reason};
use terrace_core::policy::CapacityView;
use terrace_core::prices::Prices;
use terrace_core::units::{PageId, TierId, Time};

use super::exchange::{Best, Market, Offer, Ranked, merged, pair};
use super::pass::moves;
use super::state::State;
use super::{BATCH, MOST_OFFERS, NEWBORNS_KNOWN, Terrace};
use crate::parts::support;

/// Most of the mover's time that is planned for at once: what is asked for later is asked for by fresher news.
const STEP: Duration = Duration::from_millis(100);
/// Steps of the mover for which room for new pages is kept: the one under way, the one that makes room, and as many for bursts.
const STEPS_AHEAD: u32 = 4;

impl Terrace {
    /// Prices, and how the machine stands.
    pub(super) fn market(&self, interval: Duration) -> Market {
        let cores = f64::from(self.counts.cores);
        let taken = if self.options.spare && cores > 0.0 && self.counts.in_use > 0.0 {
            // The movers take processors from somebody only as far as too few are idle.
            let idle = cores / self.counts.in_use - cores;
            (1.0 - idle / self.movers()).clamp(0.0, 1.0)
        } else {
            1.0
        };
        Market {
            prices: self.prices.unwrap_or(Prices::ASSUMED),
            taken,
            cores: self.counts.cores.max(1),
            waiting: if self.options.bandwidth { self.load.waiting() } else { [0.0; TierId::MAX] },
            gain_ns: self.gain_ns,
            rate: self.rate[0] / self.rate[1].max(1e-9),
            interval_ns: interval.as_nanos() as f64 / f64::from(self.scale),
            share: self.options.price,
        }
    }

    /// Threads that move: one for four processors of the machine, as the live driver has them.
    fn movers(&self) -> f64 {
        let most = f64::from(self.options.movers);
        let processors = f64::from(self.counts.cores) / self.counts.in_use;
        if processors.is_finite() && processors > 0.0 { (processors / 4.0).floor().clamp(1.0, most) } else { most }
    }

    /// A page below fast memory is seen between two passes. Who would have to leave for it is known, so it does not wait for the next pass to
    /// be valued.
    pub(super) fn notice(&mut self, unit: PageId, size: u32, pages: &Pages) {
        let entry = &pages[unit];
        let Some(tier) = entry.tier().filter(|tier| *tier != TierId::FAST) else { return };
        let above = tier.index() - 1;
        let Some(&bar) = self.bars.get(above) else { return };
        let state = State::of(0, entry.heat, self.short[unit.index()], self.mean, self.options.parts);
        let value = self.table.value(state) - self.options.doubt * self.table.error(state);
        if value > bar {
            let offer = Offer { unit, pages: size, value, order: self.noticed, times: moves(entry).max(1), tier };
            self.noticed += 1;
            self.fresh[above].push(offer);
        }
    }

    /// A pass is done: who is seen from now on competes with the worst of those above.
    pub(super) fn compete(&mut self, pages: &Pages) {
        if !self.options.between {
            return;
        }
        let number = self.number;
        let worst =
            |[_, leaving]: &mut [Ranked; 2]| leaving.usable(pages, number).next().map_or(0.0, |worst| worst.value);
        self.bars = self.offers.iter_mut().map(worst).collect();
        self.fresh = self.bars.iter().map(|_| Best::new(MOST_OFFERS, true)).collect();
        self.noticed = 0;
    }

    /// Steps 4 and 5, for as long as the mover is busy until the next look: first room for pages to come, since it costs one move and an
    /// exchange two, then exchanges, from the fastest pair of tiers down.
    pub(super) fn step(&mut self, now: Time, capacity: &CapacityView<'_>, pages: &Pages, requests: &mut MoveRequests) {
        let mut offers = std::mem::take(&mut self.offers);
        let mut left = STEP.as_nanos() as f64 * self.movers() / f64::from(self.scale);
        let used = match offers.first_mut() {
            Some([_, leaving]) => {
                self.keep_room(now, capacity, leaving.usable(pages, self.number), &mut left, requests)
            }
            None => 0,
        };
        self.exchange(capacity, pages, &mut offers, used, left, requests);
        std::mem::swap(&mut self.offers, &mut offers);
    }

    fn exchange(
        &mut self,
        capacity: &CapacityView<'_>,
        pages: &Pages,
        offers: &mut [[Ranked; 2]],
        mut used: usize,
        mut left: f64,
        requests: &mut MoveRequests,
    ) {
        let market = self.market(self.pace.interval());
        if market.gain_ns <= 0.0 {
            return;
        }
        let mut taken: Vec<PageId> = Vec::new();
        for (above, [coming, leaving]) in offers.iter_mut().enumerate() {
            let to = TierId(above as u8);
            let fresh = self.fresh.get_mut(above).map_or_else(Vec::new, |fresh| fresh.standing(pages));
            let coming = merged(fresh.into_iter(), coming.usable(pages, self.number));
            let coming = coming.filter(|offer| !taken.contains(&offer.unit));
            let leaving = leaving.usable(pages, self.number).skip(used).filter(|offer| !taken.contains(&offer.unit));
            used = 0;
            let tier = capacity.tiers[above];
            let free = if above == 0 { self.fast_limit.saturating_sub(tier.used + self.headroom) } else { tier.free() };
            for one in pair(coming, leaving, free, to, &market, &mut left) {
                let victims: Vec<PageId> = one.leaves.iter().map(|offer| offer.unit).collect();
                let fits = requests.exchange(&victims, to.below(), one.comes.unit, to);
                if capacity.tiers.len() > 2 {
                    taken.extend(victims.iter().chain([&one.comes.unit]));
                }
                self.exchanged += u64::from(one.comes.pages);
                if !fits {
                    return;
                }
            }
        }
    }

    /// What is over the limit leaves, and room is made for pages to come while they are worth more than who leaves. Returns how many left.
    fn keep_room(
        &mut self,
        now: Time,
        capacity: &CapacityView<'_>,
        leaving: impl Iterator<Item = Offer>,
        left: &mut f64,
        requests: &mut MoveRequests,
    ) -> usize {
        self.make_room = false;
        let market = self.market(self.pace.interval());
        let slow = TierId::FAST.below();
        let page_ns = market.price(1, 0.0, TierId::FAST, slow).mover_ns * f64::from(self.scale);
        if self.options.allocations {
            let batch = (BATCH / u64::from(self.scale)).max(1);
            self.headroom = self.allocations.headroom(now, page_ns, STEP * STEPS_AHEAD, batch, self.fast_limit);
        }
        let newborn = self.newborn_value(&market);
        let mut over = capacity.fast_excess();
        let mut wanted = self.headroom.saturating_sub(self.fast_limit.saturating_sub(capacity.tiers[0].used + over));
        let mut used = 0;
        for victim in leaving {
            if over == 0 && wanted == 0 {
                break;
            }
            let size = u64::from(victim.pages);
            // A huge page does not leave for a few small ones.
            if over == 0 && size > 2 * wanted {
                break;
            }
            let value = f64::from(victim.value);
            let cost = market.price(victim.pages, value, TierId::FAST, slow);
            let price = cost.program_ns * f64::from(victim.times);
            let gained = (newborn - value) * f64::from(victim.pages);
            let pays = market.pays(gained, price);
            let reason = if over > 0 { Reason::OverLimit } else { Reason::MakeRoom };
            if over == 0 && (!pays || *left < cost.mover_ns) || !requests.move_to(victim.unit, slow, reason) {
                break;
            }
            *left -= cost.mover_ns;
            used += 1;
            self.room_made += size;
            (over, wanted) = (over.saturating_sub(size), wanted.saturating_sub(size.saturating_sub(over)));
        }
        used
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
        let gained = f64::from(self.best_slow) - self.newborn_value(&market);
        let price = market.price(1, f64::from(self.best_slow), TierId::FAST.below(), TierId::FAST).program_ns;
        if market.pays(gained, price) { support::first_below(capacity) } else { TierId::FAST }
    }
}
