//! What a move, a split or a collapse gains, and what it costs: both in nanoseconds of processor time.
//!
//! In: the machine's prices, what its processor counted since the last walk, heats and how long they have lasted. Out: yes or no. Must
//! not: rank, or hold a constant of its own: every number is a price or a count.
//!
//! | quantity | how it is known |
//! |---|---|
//! | accesses a walk | half of the heat, as a steady count and what halving leaves of the counts before add up to twice the count; times how much of that came to pages of such a heat (`hotness_walk/reuse.rs`), times accesses a count (those through 2 MiB entries over counters incremented) |
//! | what of them reaches memory | between two: all accesses alike, as of a program that streams; or where lines are used again, those that come later than a line stays in the cache, as long as any other (Che and others, Hierarchical Web caching systems, 2002), `exp(-heat * t)` of them; `t` is such that all pages together miss as much as was counted. How much of each: so that slow memory's part of the misses is what was counted, by least squares over the walks |
//! | gain of a miss | what cores waited for slow memory beyond fast, over accesses slow memory served |
//! | horizon | as many walks as the heat has lasted: the buyer who rents until the rent paid equals the price pays at most twice what the best does, who knows the future (Karlin and others, Competitive snoopy caching, Algorithmica 3, 1988) |
//! | price | nanoseconds that programs wait: those of their own cores in full; the manager's as far as processors are in use, since an idle one delays no program (`spare=off`: in full) |
//! | price of a move | its fixed part, the copy, and an interrupt on each core that runs the program; for the page that makes room as well |
//! | price of a split | the split and the moves it is made for, once; at each walk, the longer wait for 4 KiB translations, and the accessed bits of its pieces |
//! | wait for 4 KiB translations | what cores waited over accesses through such entries; while there are none, one page is split to know, if a walk for each access that reaches memory, overlapped as such loads are, would leave a gain |
//!
//! Counts are smoothed as heats are: halved at each walk.

use terrace_core::prices::{Prices, ProcessorCounts};
use terrace_core::units::{BLOCK_PAGES, TierId};

const HUGE: u64 = BLOCK_PAGES as u64;

/// A page's heat, how much of what it promises comes to pages like it, and how many walks it has lasted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lasting {
    pub(crate) heat: f64,
    pub(crate) again: f64,
    pub(crate) walks: f64,
}

/// A move: pages that go as one, from where to where.
pub(crate) type Step = (u64, TierId, TierId);

/// How many pages have which heat.
pub(crate) type Heats = Vec<(f64, u64)>;

/// What makes room for a unit.
#[derive(Clone, Debug, Default)]
pub(crate) struct Out {
    /// The moves.
    pub(crate) steps: Vec<Step>,
    /// The pages that are missed then.
    pub(crate) pages: Vec<Lasting>,
    /// The share of the room they make that the unit needs: a huge page that goes for one of 4 KiB makes room for 511 others.
    pub(crate) share: f64,
}

/// See the module's header.
#[derive(Clone, Debug, Default)]
pub(crate) struct Worth {
    prices: Option<Prices>,
    cores: u32,
    accesses: [f64; 2],
    translation_ns: [f64; 2],
    counted: f64,
    memory: f64,
    slow: f64,
    slow_wait_ns: f64,
    /// Accessed bits that walks found set.
    bits: f64,
    /// Share of accesses that reach memory.
    reach: f64,
    /// The time a line stays in the cache, in such units that a page with the heat `h` misses with `exp(-h * stays)`.
    stays: f64,
    /// Whether idle processors manage memory at no cost.
    spare: bool,
    in_use: f64,
    /// Least squares: how far slow memory's share of misses is from where it would be if all accesses missed alike, in parts of how
    /// far it would be if lines stayed for one time.
    apart: f64,
    apart_found: f64,
}

impl Worth {
    /// `spare`: time on processors that idle costs nothing.
    pub(crate) fn new(spare: bool) -> Worth {
        Worth { spare, ..Worth::default() }
    }

    pub(crate) fn set_prices(&mut self, prices: &Prices) {
        self.prices = Some(*prices);
    }

    /// The counts of a round, the accessed bits of 4 KiB mappings that it found set, and how many pages of fast and of slow memory
    /// have which heat.
    pub(crate) fn learn(&mut self, counts: &ProcessorCounts, bits: u64, heats: &[Heats; 2]) {
        let add = |old: &mut f64, new: f64| *old = *old / 2.0 + new;
        for size in 0..2 {
            add(&mut self.accesses[size], counts.accesses[size] as f64);
            add(&mut self.translation_ns[size], counts.translation_ns[size]);
        }
        add(&mut self.counted, counts.counted as f64);
        add(&mut self.memory, counts.memory_accesses as f64);
        add(&mut self.slow, counts.slow_accesses as f64);
        add(&mut self.slow_wait_ns, counts.slow_wait_ns);
        add(&mut self.bits, bits as f64);
        (self.cores, self.in_use) = (counts.cores, counts.in_use);
        let all = self.accesses[0] + self.accesses[1];
        self.reach = if all > 0.0 { (self.memory / all).min(1.0) } else { 0.0 };
        self.stays = stays(&heats.concat(), self.reach);
        let [alike, reused] = [0.0, self.stays].map(|stays| heats.each_ref().map(|side| missed(side, stays)));
        let share = |[fast, slow]: [f64; 2]| if fast + slow > 0.0 { slow / (fast + slow) } else { 0.0 };
        let found = if self.memory > 0.0 { self.slow / self.memory - share(alike) } else { 0.0 };
        let apart = share(reused) - share(alike);
        add(&mut self.apart_found, apart * found);
        add(&mut self.apart, apart * apart);
    }

    /// How much of what misses does so as if lines stayed for one time, 0 to 1; all of it until counts tell.
    pub(crate) fn reused(&self) -> f64 {
        if self.apart > 0.0 { (self.apart_found / self.apart).clamp(0.0, 1.0) } else { 1.0 }
    }

    /// The part of a page's heat that comes again and reaches memory.
    fn misses_again(&self, page: &Lasting) -> f64 {
        self.misses(page.heat) * page.again
    }

    /// The part of a heat that reaches memory.
    fn misses(&self, heat: f64) -> f64 {
        let reused = self.reused();
        heat * (reused * (-heat * self.stays).exp() + (1.0 - reused) * self.reach)
    }

    /// Accesses behind one hotness count, or behind one accessed bit where nothing is counted.
    fn accesses_a_count(&self) -> Option<f64> {
        match (self.counted > 0.0, self.bits > 0.0) {
            (true, _) => Some(self.accesses[1] / self.counted),
            (false, true) => Some(self.accesses[0] / self.bits),
            (false, false) => None,
        }
    }

    /// How many counts an accessed bit stands for.
    pub(crate) fn counts_a_bit(&self) -> Option<f64> {
        (self.bits > 0.0).then(|| self.accesses[0] / self.bits / self.accesses_a_count().unwrap_or(1.0))
    }

    /// Whether there is anything to weigh with: prices and counts.
    fn scales(&self) -> Option<Scales> {
        let prices = self.prices?;
        // A manager on a processor that would have idled takes time from nobody.
        let prices = prices.taking(if self.spare { self.in_use } else { 1.0 });
        let accesses = self.accesses_a_count()?;
        let wait = |size: usize| self.translation_ns[size] / self.accesses[size];
        let huge_ns = if self.accesses[1] > 0.0 { wait(1) } else { 0.0 };
        let saved_ns = if self.slow > 0.0 { self.slow_wait_ns / self.slow } else { 0.0 };
        let overlap = if prices.farther_ns > 0.0 { (saved_ns / prices.farther_ns).min(1.0) } else { 1.0 };
        let small_ns = if self.has_seen_small() { wait(0) } else { prices.walk_ns * overlap * self.reach };
        Some(Scales { prices, cores: self.cores, accesses, saved_ns, small_ns: (small_ns - huge_ns).max(0.0) })
    }

    /// Whether anything was accessed through 4 KiB entries, so that it is known what their translations wait.
    pub(crate) fn has_seen_small(&self) -> bool {
        self.accesses[0] >= 1.0
    }

    pub(crate) fn is_known(&self) -> bool {
        self.scales().is_some()
    }

    /// Whether the pages of a unit are worth their move, and those of what makes room. `count` is the heat of one count. Yes, where
    /// nothing is known to weigh with.
    pub(crate) fn exchange_pays(&self, count: f64, brings: &[Lasting], own: Step, out: &Out) -> bool {
        let Some(scales) = self.scales() else { return true };
        let moving = |&(pages, from, to): &Step| scales.prices.moving(pages, from, to, scales.cores);
        let price = moving(&own) + out.share * out.steps.iter().map(moving).sum::<f64>();
        let (mut gained, mut heat, mut lasting) = (0.0, 0.0, 0.0);
        for page in brings {
            gained += self.misses_again(page) * page.walks;
            heat += page.heat;
            lasting += page.heat * page.walks;
        }
        // What goes would have been used as long as what comes.
        let walks = if heat > 0.0 { lasting / heat } else { 0.0 };
        let lost: f64 = out.pages.iter().map(|page| self.misses_again(page)).sum();
        scales.accesses((gained - out.share * lost * walks) / count) * scales.saved_ns >= price
    }

    /// Whether a huge page is worth splitting, given its pieces and the heat at which a page earns its place in fast memory. Whole, it is
    /// fast if its pieces together earn 512 places; split, each piece is that earns its own.
    pub(crate) fn split_pays(&self, count: f64, pieces: &[Lasting], earns: f64, tier: TierId) -> bool {
        let Some(scales) = self.scales() else { return true };
        let (mut whole, mut apart, mut all, mut bits) = (0.0, 0.0, 0.0, 0.0);
        let earned = self.misses(earns);
        let mut hot = 0u64;
        for piece in pieces {
            let over = self.misses_again(piece) - earned;
            whole += over * piece.walks;
            apart += over.max(0.0) * piece.walks;
            all += piece.heat * piece.again * piece.walks;
            bits += if piece.heat > 0.0 { piece.walks } else { 0.0 };
            hot += u64::from(over >= 0.0);
        }
        let gain = scales.accesses((apart - whole.max(0.0)) / count) * scales.saved_ns;
        let rent = scales.accesses(all / count) * scales.small_ns + bits * scales.prices.scan_ns;
        // The hot pieces of a slow page come, those of a fast one's others go; as many pages go the other way.
        let slow = if tier == TierId::FAST { tier.below() } else { tier };
        let moved = if tier == TierId::FAST { HUGE - hot.min(HUGE) } else { hot };
        let there = scales.prices.moving(1, slow, TierId::FAST, scales.cores);
        let back = scales.prices.moving(1, TierId::FAST, slow, scales.cores);
        let flush = scales.prices.flush_ns * f64::from(scales.cores);
        gain - rent >= scales.prices.split_ns + flush + moved as f64 * (there + back)
    }

    /// Whether the pages of a fast block are worth being mapped as one: for the translations it saves.
    pub(crate) fn collapse_pays(&self, count: f64, pieces: &[Lasting]) -> bool {
        let Some(scales) = self.scales() else { return true };
        let (mut all, mut bits) = (0.0, 0.0);
        for piece in pieces {
            all += piece.heat * piece.again * piece.walks;
            bits += if piece.heat > 0.0 { piece.walks } else { 0.0 };
        }
        let gain = scales.accesses(all / count) * scales.small_ns + bits * scales.prices.scan_ns;
        let flush = scales.prices.flush_ns * f64::from(scales.cores);
        gain >= scales.prices.collapse_ns + flush + scales.prices.copying(HUGE, TierId::FAST, TierId::FAST)
    }
}

/// The heat of these pages that misses, if lines stay so long.
fn missed(heats: &[(f64, u64)], stays: f64) -> f64 {
    heats.iter().map(|&(heat, pages)| heat * pages as f64 * (-heat * stays).exp()).sum()
}

/// For how long lines stay in the cache, given pages by heat and the share of their accesses that reaches memory: found by bisection, as
/// the longer they stay the less does.
fn stays(heats: &[(f64, u64)], reach: f64) -> f64 {
    let all = missed(heats, 0.0);
    if all <= 0.0 || reach >= 1.0 {
        return 0.0;
    }
    // From "no heat is held" to "the least heat there is, one, is missed once in e^64".
    let (mut low, mut high) = (0.0, 64.0);
    for _ in 0..48 {
        let middle = 0.5 * (low + high);
        if missed(heats, middle) > reach * all {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}

/// What is known at a walk.
struct Scales {
    prices: Prices,
    cores: u32,
    /// Accesses a count.
    accesses: f64,
    /// What an access that slow memory serves would gain from fast memory.
    saved_ns: f64,
    /// What a translation of a 4 KiB page costs more.
    small_ns: f64,
}

impl Scales {
    /// Accesses per walk behind a heat of this many counts.
    fn accesses(&self, counts: f64) -> f64 {
        counts / 2.0 * self.accesses
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const SLOW: TierId = TierId(1);

    /// A page that keeps what its heat promises.
    fn steady(heat: f64, walks: f64) -> Lasting {
        Lasting { heat, again: 1.0, walks }
    }

    /// A page of 4 KiB moves in 3 microseconds, one of 2 MiB in 400 and 512 times 0.77; nothing else costs much.
    pub(crate) const PRICES: Prices = Prices {
        move_small_ns: 2000.0,
        move_huge_ns: 5268.0,
        copy_ns: 770.0,
        scan_ns: 40.0,
        walk_ns: 44.0,
        farther_ns: 80.0,
        ..Prices::ASSUMED
    };

    /// 64 accesses a count; half of the accesses reach memory, and slow memory keeps each of those 40 ns longer.
    fn learnt(small: f64) -> Worth {
        let mut worth = Worth::default();
        worth.set_prices(&PRICES);
        let counts = ProcessorCounts {
            cores: 2,
            in_use: 0.25,
            accesses: [if small > 0.0 { 1000 } else { 0 }, 64_000],
            translation_ns: [small * 1000.0, 0.0],
            counted: 1000,
            slow_accesses: 8000,
            slow_wait_ns: 320_000.0,
            memory_accesses: if small > 0.0 { 32_500 } else { 32_000 },
            ..ProcessorCounts::default()
        };
        worth.learn(&counts, 100, &Default::default());
        worth
    }

    #[test]
    fn an_exchange_pays_from_the_walk_on_at_which_its_gain_reaches_its_price() {
        let worth = learnt(0.0);
        let room = || Out { steps: vec![(1, TierId::FAST, SLOW)], pages: vec![], share: 1.0 };
        let pays = |heat: f64, takes: f64, walks: f64, share: f64| {
            let out = Out { steps: vec![(1, TierId::FAST, SLOW)], pages: vec![steady(takes, 1.0)], share };
            worth.exchange_pays(1.0, &[steady(heat, walks)], (1, SLOW, TierId::FAST), &out)
        };
        // Two counts of heat: one a walk, 64 accesses of 40 ns each: 2,560 ns. Two moves with a flush on two cores each:
        // 2 * (2000 + 770 + 1000) = 7,540 ns. Three walks pay for that, two do not.
        assert!(!pays(2.0, 0.0, 2.0, 1.0) && pays(2.0, 0.0, 3.0, 1.0));
        assert!(!pays(4.0, 2.0, 2.0, 1.0) && pays(4.0, 2.0, 3.0, 1.0), "what leaves is missed as much");
        assert!(!pays(2.0, 2.0, 60_000.0, 1.0));
        assert!(pays(2.0, 0.0, 2.0, 0.1), "a tenth of the room is needed, and a tenth of it paid for");
        let half = Lasting { again: 0.5, ..steady(2.0, 5.0) };
        let paid = |walks| worth.exchange_pays(1.0, &[Lasting { walks, ..half }], (1, SLOW, TierId::FAST), &room());
        assert!(!paid(5.0) && paid(6.0), "half of what its heat promises comes, so it takes twice as long");
        let unknown = Worth::default();
        assert!(unknown.exchange_pays(1.0, &[], (1, SLOW, TierId::FAST), &Out::default()), "nothing is known");
    }

    #[test]
    fn a_manager_on_a_processor_that_idles_takes_time_from_nobody() {
        let of = |spare: bool| {
            let mut worth = learnt(0.0);
            worth.spare = spare;
            worth
        };
        let pays = |spare: bool, walks: f64| {
            let out = Out { steps: vec![(1, TierId::FAST, SLOW)], pages: vec![], share: 1.0 };
            of(spare).exchange_pays(1.0, &[steady(2.0, walks)], (1, SLOW, TierId::FAST), &out)
        };
        // As above 2,560 ns a walk. A quarter of the processors is in use: of the 2 * 2,770 ns of the mover a quarter is somebody's, and
        // the flushes, 2 * 1000, are the program's: 3,385 ns instead of 7,540.
        assert!(!pays(true, 1.0) && pays(true, 2.0) && !pays(false, 2.0) && pays(false, 3.0));
        // A collapse as below: 86 us a walk; a quarter of 20 and 394 us, and a flush of 1 us, are 105 us.
        let pieces = |walks| vec![steady(2.0, walks); 512];
        let mut worth = learnt(2.0);
        worth.spare = true;
        assert!(!worth.collapse_pays(1.0, &pieces(1.0)) && worth.collapse_pays(1.0, &pieces(2.0)));
    }

    #[test]
    fn what_slow_memory_served_tells_how_much_is_reused() {
        // 100 fast pages of heat 100 and 10,000 slow ones of heat 1, half of all heat each; half of all accesses reach memory. Were all
        // alike, slow memory would serve half of those; if lines stay for one time, nearly all, as the hot pages hit.
        let heats = [vec![(100.0, 100)], vec![(1.0, 10_000)]];
        let time = stays(&heats.concat(), 0.5);
        let of_slow = missed(&heats[1], time) / 10_000.0;
        assert!(of_slow > 0.95, "{of_slow}");
        let reused = |slow: [f64; 2]| {
            let mut worth = Worth::default();
            for slow in slow {
                let slow_accesses = (32_000.0 * slow).round() as u64;
                let counts = ProcessorCounts {
                    accesses: [0, 64_000],
                    memory_accesses: 32_000,
                    slow_accesses,
                    ..ProcessorCounts::default()
                };
                worth.learn(&counts, 0, &heats);
            }
            (worth.reused(), worth.misses(100.0))
        };
        let halfway = (0.5 + of_slow) / 2.0;
        let (share, hot) = reused([halfway; 2]);
        assert!((share - 0.5).abs() < 1e-3, "{share}");
        // Of the hot pages' accesses half miss as all do, the other half as rarely as lines that stay.
        let kept = (-100.0 * time).exp();
        assert!((hot - 100.0 * (0.5 * 0.5 + 0.5 * kept)).abs() < 0.1, "{hot}");
        assert_eq!(reused([0.5; 2]), (0.0, 50.0));
        assert_eq!(reused([1.0; 2]).0, 1.0, "no more than all");
        // Slow memory's part is smoothed as all counts are, (0.5 + 2 h) / 3 after the second walk, which weighs twice the first.
        let later = 2.0 / 3.0 * (halfway - 0.5) / (of_slow - 0.5) * 2.0 / 3.0;
        assert!((reused([0.5, halfway]).0 - later).abs() < 1e-3);
        assert_eq!(Worth::default().reused(), 1.0, "nothing is known yet");
        let mut all_fast = Worth::default();
        let counts = ProcessorCounts { accesses: [0, 100], memory_accesses: 50, ..ProcessorCounts::default() };
        all_fast.learn(&counts, 0, &[vec![(100.0, 100)], vec![]]);
        assert_eq!(all_fast.reused(), 1.0, "nothing is slow: it tells nothing");
    }

    #[test]
    fn pages_miss_together_as_much_as_was_counted_and_the_hotter_ones_less() {
        // Half of all heat is on 100 pages, the other on 10,000; half of all accesses reach memory.
        let heats = [(100.0, 100), (1.0, 10_000)];
        let time = stays(&heats, 0.5);
        let missed: f64 = heats.iter().map(|&(heat, pages)| heat * pages as f64 * (-heat * time).exp()).sum();
        assert!((missed / 20_000.0 - 0.5).abs() < 1e-6, "{missed}");
        // So lines stay for a twentieth or so: the hot ones are hit nearly always, the others hardly.
        assert!((-100.0 * time).exp() < 0.05 && (-time).exp() > 0.95, "{time}");
        assert_eq!((stays(&heats, 1.0), stays(&[], 0.5)), (0.0, 0.0));
    }

    #[test]
    fn a_split_has_to_earn_the_longer_wait_for_translations_too() {
        let mut pieces = vec![steady(0.0, 1.0); 512];
        pieces[..8].fill(steady(200.0, 4.0));
        // 8 pieces with 180 more heat than earns a place, 4 walks: 2,880 counts, 184,320 accesses, 40 ns each: 7.37 ms. The rent is the
        // wait of 3,200 counts, 204,800 accesses, and 8 bits; the split and 16 moves are 81 us. 35 ns a translation leave a gain.
        let pays = |small, earns| learnt(small).split_pays(1.0, &pieces, earns, SLOW);
        assert!(pays(1.0, 20.0) && pays(35.0, 20.0) && !pays(36.0, 20.0));
        // Nothing is known of such translations yet: half of the accesses are taken to walk, and half of that to overlap, 11 ns.
        assert!(pays(0.0, 20.0) && pays(0.0, 140.0) && !pays(0.0, 150.0));
        // All its pieces earn their places: as a whole it does as well.
        let even = vec![steady(200.0, 9.0); 512];
        assert!(!learnt(1.0).split_pays(1.0, &even, 2.0, SLOW));
        // Caches hold what is hot: nothing is gained.
        let mut cached = learnt(1.0);
        cached.stays = 1.0;
        assert!(!cached.split_pays(1.0, &pieces, 20.0, SLOW));
    }

    #[test]
    fn a_collapse_has_to_save_as_much_waiting_as_it_costs() {
        let pieces = |walks| vec![steady(2.0, walks); 512];
        // 512 counts a walk are 32,768 accesses; at 2 ns, and 512 bits at 40 ns, 86 us a walk. The collapse costs 20 + 1 + 394 us.
        assert!(!learnt(2.0).collapse_pays(1.0, &pieces(4.0)) && learnt(2.0).collapse_pays(1.0, &pieces(5.0)));
    }

    #[test]
    fn an_accessed_bit_stands_for_what_is_not_counted() {
        // 1,000 accesses through 4 KiB entries, 100 bits: ten each, where a count is of 64.
        assert_eq!(learnt(1.0).counts_a_bit(), Some(10.0 / 64.0));
        let mut small = Worth::default();
        let counts = ProcessorCounts { accesses: [5000, 0], ..ProcessorCounts::default() };
        small.learn(&counts, 100, &Default::default());
        assert_eq!(small.counts_a_bit(), Some(1.0), "nothing else is counted: a bit is a count");
    }
}
