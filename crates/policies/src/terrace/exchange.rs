//! Which pages change places: those whose difference in value repays what the exchange costs.
//!
//! In: offers from both sides (who could come, who could leave), as the ranking pass meets them, and prices. Out: exchanges, best first.
//! Must not: know where a value comes from, or move a page.
//!
//! Values are compared by the 4 KiB page, prices are of the unit: a huge page competes by its density and pays for a huge move.
//! Of thousands of offers few change places before the next pass, so that they are put in order only as far as somebody looks.

use std::cmp::Ordering;

use terrace_core::pages::Pages;
use terrace_core::prices::Prices;
use terrace_core::units::{PageId, TierId};

/// Offers that are put in order at once, the first time.
const LEAST_ORDERED: usize = 256;

/// What a move costs the program and the mover, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct MoveCost {
    /// To the program.
    pub program_ns: f64,
    /// Time of the mover.
    pub mover_ns: f64,
}

/// Prices of the machine, and how it stands at the moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Market {
    /// What the driver told, or what is assumed of a machine it knows nothing of.
    pub prices: Prices,
    /// Share of the mover's processor time that is taken from somebody, 0 to 1.
    pub taken: f64,
    /// Cores that run the program: each is interrupted by a move.
    pub cores: u32,
    /// Nanoseconds that the program's cores lose together for each nanosecond of a tier's bandwidth that a copy takes: how many of them wait for
    /// the tier, as far as it is loaded.
    pub waiting: [f64; TierId::MAX],
    /// Nanoseconds the program gains by an access that fast memory serves in place of slow memory.
    pub gain_ns: f64,
    /// Accesses a page of value 1 receives in an interval, and how long an interval is, in nanoseconds.
    pub rate: f64,
    /// See there.
    pub interval_ns: f64,
    /// The share of its price that a move has to repay; with 0 whatever is worth more moves.
    pub share: f64,
}

impl Market {
    /// The price of moving a unit of `pages` pages, each of this value.
    pub(super) fn price(&self, pages: u32, value: f64, from: TierId, to: TierId) -> MoveCost {
        let prices = &self.prices;
        let (fixed, flush) = match pages {
            0 | 1 => (prices.move_small_ns, prices.flush_small_ns),
            _ => (prices.move_huge_ns, prices.flush_ns),
        };
        let mover_ns = fixed + prices.copying(u64::from(pages), from, to);
        // A thread that uses the unit within the move waits for half of it.
        let uses = value * f64::from(pages) * self.rate / f64::from(super::table::HORIZON) / self.interval_ns.max(1.0);
        let touched = (uses * mover_ns).min(1.0);
        let bandwidth = prices.copy_from_ns[from.index()] * self.waiting[from.index()]
            + prices.copy_to_ns[to.index()] * self.waiting[to.index()];
        let program_ns = self.taken * mover_ns
            + flush * f64::from(self.cores)
            + touched * mover_ns / 2.0
            + bandwidth * f64::from(pages);
        MoveCost { program_ns, mover_ns }
    }

    /// Whether so much value repays this price, in nanoseconds.
    pub(super) fn pays(&self, gained: f64, price_ns: f64) -> bool {
        gained > 0.0 && (self.share == 0.0 || self.worth(gained) > self.share * price_ns)
    }

    /// What so much value is worth in nanoseconds.
    pub(super) fn worth(&self, value: f64) -> f64 {
        value * self.rate * self.gain_ns
    }
}

/// A unit that could change tier.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Offer {
    /// Its first page.
    pub unit: PageId,
    /// Its pages.
    pub pages: u32,
    /// Value of each.
    pub value: f32,
    /// Its place in the ranking pass, by address: of equal pages the first goes, so that they do not take turns.
    pub order: u32,
    /// Times its price counts: more for pages that were moved up and down again.
    pub times: u8,
    /// Where it lies.
    pub tier: TierId,
}

impl Offer {
    /// Whether the page is still where it was, and may move.
    fn stands(&self, pages: &Pages) -> bool {
        let entry = &pages[self.unit];
        let there = pages.block(self.unit.block()).is_some() && entry.tier() == Some(self.tier);
        there && !entry.moving() && !entry.pinned()
    }
}

/// Keeps the best offers of a pass in bounded memory: twice as many as are wanted at most, then half are dropped.
#[derive(Clone, Debug)]
pub(super) struct Best {
    offers: Vec<Offer>,
    wanted: usize,
    /// Whether the highest values are best, or the lowest.
    highest: bool,
    /// What an offer must beat once some were dropped.
    bar: Option<f32>,
}

impl Best {
    /// An empty list of the `wanted` highest, or lowest.
    pub(super) fn new(wanted: usize, highest: bool) -> Best {
        Best { offers: Vec::new(), wanted: wanted.max(1), highest, bar: None }
    }

    /// Takes in an offer.
    pub(super) fn push(&mut self, offer: Offer) {
        let beaten = |bar: f32| if self.highest { offer.value <= bar } else { offer.value >= bar };
        if self.bar.is_some_and(beaten) {
            return;
        }
        self.offers.push(offer);
        if self.offers.len() >= 2 * self.wanted {
            let mut offers = std::mem::take(&mut self.offers);
            offers.select_nth_unstable_by(self.wanted - 1, |one, other| before(self.highest, one, other));
            offers.truncate(self.wanted);
            self.bar = Some(offers[self.wanted - 1].value);
            self.offers = offers;
        }
    }

    /// Bytes it occupies.
    pub(super) fn memory_bytes(&self) -> usize {
        self.offers.capacity() * size_of::<Offer>()
    }

    /// Those that still stand, best first, each page once, by the best it was offered for. They stay in the list.
    pub(super) fn standing(&mut self, pages: &Pages) -> Vec<Offer> {
        let highest = self.highest;
        self.offers.retain(|offer| offer.stands(pages));
        self.offers
            .sort_unstable_by(|one, other| one.unit.0.cmp(&other.unit.0).then_with(|| before(highest, one, other)));
        self.offers.dedup_by_key(|offer| offer.unit);
        self.offers.sort_unstable_by(|one, other| before(highest, one, other));
        self.offers.clone()
    }

    /// The offers, to be asked for best first.
    pub(super) fn ranked(self) -> Ranked {
        Ranked { offers: self.offers, highest: self.highest, ordered: 0, gone: 0 }
    }
}

fn before(highest: bool, one: &Offer, other: &Offer) -> Ordering {
    let by_value = one.value.total_cmp(&other.value);
    let by_value = if highest { by_value.reverse() } else { by_value };
    by_value.then(one.order.cmp(&other.order))
}

/// The offers of a side until the next pass.
#[derive(Clone, Debug)]
pub(super) struct Ranked {
    offers: Vec<Offer>,
    highest: bool,
    /// How many are in order, best first; the others are worse, in any order.
    ordered: usize,
    /// How many of the best have changed tier, or cannot.
    gone: usize,
}

impl Ranked {
    /// The offer at this place, the best at 0.
    fn at(&mut self, place: usize) -> Option<Offer> {
        if place >= self.offers.len() {
            return None;
        }
        while place >= self.ordered {
            // As many again as were looked at so far.
            let (rest, highest) = (&mut self.offers[self.ordered..], self.highest);
            let more = self.ordered.max(LEAST_ORDERED).min(rest.len());
            rest.select_nth_unstable_by(more - 1, |one, other| before(highest, one, other));
            rest[..more].sort_unstable_by(|one, other| before(highest, one, other));
            self.ordered += more;
        }
        Some(self.offers[place])
    }

    /// The value of the best offer, 0 if there is none.
    pub(super) fn best_value(&mut self) -> f32 {
        self.at(0).map_or(0.0, |offer| offer.value)
    }

    /// The offers whose page is still where it was, may move and was not seen in the interval under way, best first: what it is worth by
    /// now is another matter.
    pub(super) fn usable<'a>(&'a mut self, pages: &'a Pages, interval: u16) -> impl Iterator<Item = Offer> + 'a {
        let usable = move |offer: &Offer| offer.stands(pages) && pages[offer.unit].stamp != interval;
        while self.at(self.gone).is_some_and(|offer| !usable(&offer)) {
            self.gone += 1;
        }
        let mut place = self.gone;
        std::iter::from_fn(move || {
            place += 1;
            self.at(place - 1)
        })
        .filter(usable)
    }

    /// Bytes it occupies.
    pub(super) fn memory_bytes(&self) -> usize {
        self.offers.capacity() * size_of::<Offer>()
    }
}

/// Two lists as one, best first.
pub(super) fn merged(
    one: impl Iterator<Item = Offer>,
    other: impl Iterator<Item = Offer>,
) -> impl Iterator<Item = Offer> {
    let (mut one, mut other) = (one.peekable(), other.peekable());
    std::iter::from_fn(move || match (one.peek(), other.peek()) {
        (Some(first), Some(second)) if first.value < second.value => other.next(),
        (Some(_), _) => one.next(),
        (None, _) => other.next(),
    })
}

/// One page comes; those that leave make room for it. `leaves` is empty where there is room.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Exchange {
    /// Who comes.
    pub comes: Offer,
    /// Who leaves.
    pub leaves: Vec<Offer>,
    /// What it costs the program, in nanoseconds.
    pub price_ns: f64,
}

/// Pairs offers, best first, while each exchange repays its price and the mover has time left.
///
/// `free` pages of the destination are given to the first that come. A victim larger than what comes leaves room, for which the next
/// that come answer with the victim's value and price by the page.
pub(super) fn pair(
    coming: impl Iterator<Item = Offer>,
    mut leaving: impl Iterator<Item = Offer>,
    mut free: u64,
    to: TierId,
    market: &Market,
    mover_ns: &mut f64,
) -> Vec<Exchange> {
    let mut exchanges = Vec::new();
    // Room that victims left: pages, and the value and price of each.
    let (mut spare, mut spare_value, mut spare_price) = (0u64, 0.0, 0.0);
    for comes in coming {
        let up = market.price(comes.pages, f64::from(comes.value), comes.tier, to);
        let mut price = up.program_ns * f64::from(comes.times);
        let mut time = up.mover_ns;
        let mut lost = 0.0;
        let mut need = u64::from(comes.pages);
        let from_free = need.min(free);
        need -= from_free;
        let from_spare = need.min(spare);
        need -= from_spare;
        lost += from_spare as f64 * spare_value;
        price += from_spare as f64 * spare_price;
        let mut leaves = Vec::new();
        let (mut left_over, mut left_value, mut left_price) = (spare - from_spare, spare_value, spare_price);
        while need > 0 {
            let Some(victim) = leaving.next() else { return exchanges };
            let down = market.price(victim.pages, f64::from(victim.value), to, comes.tier);
            let pages = u64::from(victim.pages);
            let each = down.program_ns * f64::from(victim.times) / pages as f64;
            let used = need.min(pages);
            lost += used as f64 * f64::from(victim.value);
            price += used as f64 * each;
            time += down.mover_ns;
            need -= used;
            if pages > used {
                (left_over, left_value, left_price) = (pages - used, f64::from(victim.value), each);
            }
            leaves.push(victim);
        }
        let gained = f64::from(comes.value) * f64::from(comes.pages) - lost;
        // Those after it gain less, by the page: nothing further down pays.
        if !market.pays(gained, price) || time > *mover_ns {
            break;
        }
        *mover_ns -= time;
        free -= from_free;
        (spare, spare_value, spare_price) = (left_over, left_value, left_price);
        exchanges.push(Exchange { comes, leaves, price_ns: price });
    }
    exchanges
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    const SLOW: TierId = TierId(1);

    /// A market in which a 4 KiB page costs 1000 ns each way and value 1 is worth 1000 ns.
    pub(in super::super) fn market() -> Market {
        let prices = Prices { move_small_ns: 800.0, copy_ns: 200.0, ..Prices::ASSUMED };
        Market {
            prices,
            taken: 1.0,
            cores: 0,
            waiting: [0.0; TierId::MAX],
            gain_ns: 100.0,
            rate: 10.0,
            interval_ns: 1e12,
            share: 1.0,
        }
    }

    fn offer(unit: u32, pages: u32, value: f32, tier: TierId) -> Offer {
        Offer { unit: PageId(unit), pages, value, order: unit, times: 1, tier }
    }

    fn in_order(best: Best) -> impl Iterator<Item = Offer> {
        let mut ranked = best.ranked();
        (0..).map_while(move |place| ranked.at(place))
    }

    /// The pairs that come of slow and fast pages with these values.
    fn pairs(slow: &[f32], fast: &[f32], free: u64, market: &Market) -> Vec<(u32, Vec<u32>)> {
        let mut coming = Best::new(100, true);
        let mut leaving = Best::new(100, false);
        for (number, value) in (0..).zip(slow) {
            coming.push(offer(number, 1, *value, SLOW));
        }
        for (number, value) in (100..).zip(fast) {
            leaving.push(offer(number, 1, *value, TierId::FAST));
        }
        let found = pair(in_order(coming), in_order(leaving), free, TierId::FAST, market, &mut { f64::INFINITY });
        let unit = |offer: &Offer| offer.unit.0;
        found.iter().map(|one| (unit(&one.comes), one.leaves.iter().map(unit).collect())).collect()
    }

    #[test]
    fn an_exchange_must_repay_both_moves_and_free_room_only_one() {
        assert_eq!(pairs(&[5.0, 9.0], &[1.0, 3.0], 0, &market()), [(1, vec![100])], "5 for 3 gains exactly its price");
        assert_eq!(pairs(&[5.0, 9.0], &[1.0, 3.0], 1, &market()), [(1, vec![]), (0, vec![100])]);
        assert_eq!(pairs(&[0.9], &[], 8, &market()), [], "free room is not worth a move either");
        assert_eq!(pairs(&[1.1], &[], 8, &market()), [(0, vec![])]);
    }

    #[test]
    fn pages_a_hundredth_apart_do_not_change_places_unless_moves_are_free() {
        assert_eq!(pairs(&[1.01; 50], &[1.0; 50], 0, &market()), []);
        let free = Market { share: 0.0, ..market() };
        assert_eq!(pairs(&[1.01; 50], &[1.0; 50], 0, &free).len(), 50);
    }

    #[test]
    fn a_page_that_was_moved_up_and_down_pays_more() {
        let mut comes = offer(0, 1, 4.5, SLOW);
        let found = |comes| {
            pair([comes].into_iter(), [offer(9, 1, 1.0, TierId::FAST)].into_iter(), 0, TierId::FAST, &market(), &mut {
                1e9
            })
            .len()
        };
        assert_eq!(found(comes), 1);
        comes.times = 3;
        assert_eq!(found(comes), 0);
    }

    #[test]
    fn a_huge_page_competes_by_its_density_and_pays_for_a_huge_move() {
        let market = market();
        let huge = market.price(512, 1.0, SLOW, TierId::FAST);
        assert_eq!(huge.mover_ns, 5000.0 + 512.0 * 200.0);
        // 512 pages of value 1 gain 512 * (1 - 0.5) * 1000 ns and cost about 214 us: they pay where a page would not.
        let coming = [offer(0, 512, 1.0, SLOW)];
        let leaving = [offer(512, 512, 0.5, TierId::FAST)];
        assert_eq!(pair(coming.into_iter(), leaving.into_iter(), 0, TierId::FAST, &market, &mut { 1e9 }).len(), 1);
        assert_eq!(pairs(&[1.0], &[0.5], 0, &market), []);
        // A huge victim makes room for 512 small pages, which share its price.
        let small: Vec<Offer> = (0..600).map(|unit| offer(unit, 1, 3.0, SLOW)).collect();
        let found = pair(small.into_iter(), leaving.into_iter(), 0, TierId::FAST, &market, &mut { 1e9 });
        assert_eq!((found.len(), found[0].leaves.len(), found[1].leaves.len()), (512, 1, 0));
    }

    #[test]
    fn the_movers_time_is_the_limit() {
        let (slow, fast) = ([100.0; 50], [0.0; 50]);
        let coming: Vec<Offer> = (0..).zip(slow).map(|(unit, value)| offer(unit, 1, value, SLOW)).collect();
        let leaving: Vec<Offer> = (100..).zip(fast).map(|(unit, value)| offer(unit, 1, value, TierId::FAST)).collect();
        assert_eq!(
            pair(coming.into_iter(), leaving.into_iter(), 0, TierId::FAST, &market(), &mut { 10_000.0 }).len(),
            5
        );
    }

    #[test]
    fn a_bounded_list_keeps_the_best_and_of_equal_ones_the_first() {
        let mut best = Best::new(3, true);
        for (unit, value) in [(0, 1.0), (1, 5.0), (2, 5.0), (3, 2.0), (4, 5.0), (5, 9.0), (6, 0.5), (7, 5.0), (8, 4.0)]
        {
            best.push(offer(unit, 1, value, SLOW));
        }
        let units: Vec<u32> = in_order(best).take(3).map(|offer| offer.unit.0).collect();
        assert_eq!(units, [5, 1, 2]);
    }

    #[test]
    fn offers_come_in_order_however_few_are_asked_for_at_once() {
        for highest in [true, false] {
            let mut best = Best::new(4096, highest);
            (0..3000).for_each(|unit| best.push(offer(unit, 1, (unit * 7919 % 1000) as f32, SLOW)));
            let mut sorted = best.offers.clone();
            sorted.sort_by(|one, other| before(highest, one, other));
            let mut ranked = best.ranked();
            assert_eq!(ranked.at(0), Some(sorted[0]));
            assert_eq!(ranked.ordered, LEAST_ORDERED, "no more is put in order than is looked at");
            assert_eq!((0..3001).map_while(|place| ranked.at(place)).collect::<Vec<_>>(), sorted);
        }
    }

    #[test]
    fn a_mover_whose_time_nobody_wants_costs_the_interrupts() {
        let mut market = Market { taken: 0.0, cores: 4, ..market() };
        market.prices.flush_small_ns = 250.0;
        assert_eq!(market.price(1, 0.0, SLOW, TierId::FAST).program_ns, 1000.0);
        market.taken = 0.5;
        assert_eq!(market.price(1, 0.0, SLOW, TierId::FAST).program_ns, 1500.0);
    }
}
