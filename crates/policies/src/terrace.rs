//! `terrace`: what a page's state has been worth is measured, pages are ranked by it, and two pages change places if that repays its price.
//!
//! In: samples, accessed bits or hint faults, whichever there is; allocations; prices and what the processor counts. Out: exchanges, each
//! as one, and room for new pages. Must not: call a page hot or cold; it is worth what pages like it turned out to be.
//!
//! Source: Terrace's own. The value of a state follows economic value added (Beckmann, Sanchez, HPCA 2017) and hit density (LHD, NSDI 2018),
//! which rank the lines and objects of caches by what those of the same age went on to receive; a price for moves is added.
//!
//! Four steps: accesses enter two means of a page (`intake`, `stores`, `state`); when an interval ends, a pass over all pages learns from the
//! witnesses and values every page (`pass`, `table`), and a slow page that is seen before the next one is valued at once; room is kept for
//! pages to come (`allocations`); and pages change places (`exchange`), if that repays what it takes from the program, bandwidth included (`load`).
//! The latter two go by steps of 100 ms of the mover's time (`plan`). Where accessed bits are walked, huge pages in use are looked into (`parts/inside.rs`).
//!
//! | constant | value | meaning |
//! |---|---|---|
//! | horizon | 4 intervals | how far ahead accesses count |
//! | long, short mean | 19.7, 1.5 intervals | half-lives |
//! | ages, trends, levels | 14, 5, 20 | bins of the state, a level an octave |
//! | forget | 0.9 | what an interval leaves of what was learned, more below 2,048 witnesses |
//! | interval | 100 ms to 10 s | until an eighth of an observation a unit is in |
//! | step, room | 100 ms, 4 steps | of the mover's time that is planned at once; ahead of which room is made |
//! | moves fade | 40 intervals | after which one move less of a page is counted |
//!
//! Memory beside the common eight bytes: 2 a page, and below 1 MiB in all for the table and at most 16,384 witnesses.

use std::collections::BTreeMap;
use std::time::Duration;

use terrace_core::observation::Observations;
use terrace_core::pages::{Column, Pages};
use terrace_core::plan::{Action, MoveRequests, Outcome};
use terrace_core::policy::{
    CapacityView, Feedback, Kernel, Metric, Movers, Needs, Policy, PolicyReport, Profile, ProgramState, Remap,
    ScanReport, Schedule, Setup,
};
use terrace_core::prices::{Prices, ProcessorCounts};
use terrace_core::random::SplitMix64;
use terrace_core::units::{BLOCK_PAGES, PageId, SpaceId, TierId, Time};

use crate::parts::growth::GrowthOfEach;
use crate::parts::inside::Inside;
use crate::parts::support;
use crate::{PolicyInfo, Settings, SettingsError};

mod allocations;
mod exchange;
mod intake;
mod load;
mod pace;
mod pass;
mod plan;
mod returns;
mod settings;
mod state;
mod stores;
mod table;
mod witnesses;

use allocations::Allocations;
use exchange::{Best, Ranked};
use load::Load;
use pace::Pace;
use pass::{MOST_MOVES, NEWBORN, Pass, next};
use returns::{LOADING, Returns};
use settings::{Options, Signal};
use state::{LONG_AGEING, State, encode, weight};
use stores::Stores;
use table::Table;
use witnesses::{Witness, thinned};

/// The policy's entry in the registry.
pub const INFO: PolicyInfo = PolicyInfo {
    name: "terrace",
    summary: "Terrace's own: pages are ranked by what their state has been worth, and change places if that repays its price",
    source: "Terrace's own, after EVA (HPCA 2017) and LHD (NSDI 2018)",
    settings: settings::SETTINGS,
    build: |settings| Ok(Box::new(Terrace::new(settings)?)),
};

/// What an interval leaves of what was learned: with 0.995 what was learned while a program loaded ruled its first hundred intervals. Where
/// there are few witnesses it leaves more, so that the table rests on as many targets: on few, noise is taken for a difference.
const FORGET: f32 = 0.9;
const TARGETS: f32 = 20_480.0;
/// Intervals after which one move less of a page is counted.
const MOVES_FADE: u64 = 40;
/// Fast memory is full with less than this part of its limit free: only then is it worth to look inside huge pages.
const FULL: u64 = 64;
/// Most pages of a side that are kept to be moved until the next pass.
const MOST_OFFERS: usize = 8192;
/// New pages after which their value decides where they go.
const NEWBORNS_KNOWN: u64 = 1000;
/// Pages the mover moves before it looks again.
const BATCH: u64 = 64;
/// Accesses a program overlaps where nobody counts its waits: between a pointer chase (1) and streams (8).
const USUAL_OVERLAP: f64 = 4.0;
/// Accesses that reach memory, of a core in a nanosecond, where nobody counts them: half of its time goes into waits of 100 ns, overlapped as usual. So it is
/// with programs to which it matters where their memory lies; for others moves are taken for cheaper than they are, and there are few.
const USUAL_RATE: f64 = 0.5 * USUAL_OVERLAP / 100.0;

/// See the module's header.
pub struct Terrace {
    options: Options,
    granted: Option<Signal>,
    pace: Pace,
    table: Table,
    returns: Returns,
    growth: GrowthOfEach,
    inside: Inside,
    /// How each program stands, where a driver says it.
    programs: BTreeMap<SpaceId, ProgramState>,
    allocations: Allocations,
    /// The short mean of each page; the long one is its heat, the interval of its last use its stamp.
    short: Column<u16>,
    witnesses: Vec<Witness>,
    random: SplitMix64,
    prices: Option<Prices>,
    counts: ProcessorCounts,
    /// Whether accesses to memory were ever counted.
    counted: bool,
    load: Load,
    stores: Stores,
    /// Nanoseconds gained by an access that fast memory serves, and accesses a mark stands for.
    gain_ns: f64,
    touch: f64,
    scale: u32,
    parts: u32,
    /// The number of the interval; what pages received in it, and lately on average.
    number: u16,
    intervals: u64,
    received: f64,
    rate: [f64; 2],
    mean_long: f64,
    /// The mean page's long mean as the latest pass had it, stored.
    mean: u16,
    pages: u64,
    units: u64,
    /// Blocks without evidence in this interval, where only some are walked.
    blind: Vec<bool>,
    /// Who could come and leave by the latest pass, best first, for each pair of tiers; and the best value that slow memory then had.
    offers: Vec<[Ranked; 2]>,
    best_slow: f32,
    /// Pages seen below fast memory since that pass, valued as they are seen, and what the worst page above each tier is worth.
    fresh: Vec<Best>,
    bars: Vec<f32>,
    noticed: u32,
    fast_limit: u64,
    /// Fast pages to keep free, and whether they are wanted now.
    headroom: u64,
    make_room: bool,
    exchanged: u64,
    room_made: u64,
}

impl Terrace {
    /// Reads the settings.
    ///
    /// # Errors
    /// When a value is none of its kind.
    pub fn new(settings: &mut Settings) -> Result<Terrace, SettingsError> {
        let options = Options::new(settings)?;
        let pace = Pace::new(options.signals.unwrap_or(Signal::Samples), &options);
        Ok(Terrace {
            granted: None,
            pace,
            table: Table::new(options.learns, options.parts.smooth),
            returns: Returns::new(),
            growth: GrowthOfEach::default(),
            programs: BTreeMap::new(),
            inside: Inside::new(settings, 0x7e44_1a51)?,
            allocations: Allocations::default(),
            short: Column::default(),
            witnesses: Vec::new(),
            random: SplitMix64::new(0x7e44_ace0),
            prices: None,
            counts: ProcessorCounts::default(),
            counted: false,
            load: Load::default(),
            stores: Stores::default(),
            gain_ns: Prices::ASSUMED.farther_ns / USUAL_OVERLAP,
            touch: 1.0,
            scale: 1,
            parts: 1,
            number: 1,
            intervals: 0,
            received: 0.0,
            rate: [0.0; 2],
            mean_long: 0.0,
            mean: 0,
            pages: 0,
            units: 0,
            blind: Vec::new(),
            offers: Vec::new(),
            best_slow: 0.0,
            fresh: Vec::new(),
            bars: Vec::new(),
            noticed: 0,
            fast_limit: 0,
            headroom: 0,
            make_room: false,
            exchanged: 0,
            room_made: 0,
            options,
        })
    }

    /// Steps 2 and 3: what the interval taught.
    fn close(&mut self, now: Time, capacity: &CapacityView<'_>, pages: &mut Pages) {
        self.stores.close();
        self.estimate_touch(self.pace.elapsed(now));
        self.pace.begin(now, self.units);
        // Before the first pass nobody has counted them.
        let count = if self.pages > 0 { self.pages } else { pages.footprint_of_all() };
        let each = self.received / count.max(1) as f64;
        let keep = f64::from(1.0 - weight(LONG_AGEING));
        self.rate = [self.rate[0] * keep + each, self.rate[1] * keep + 1.0];
        self.mean_long += each * f64::from(weight(LONG_AGEING));
        let thinned = thinned(self.units);
        self.mean = encode(self.mean_long as f32, 0.5);
        let mut pass = Pass {
            table: &mut self.table,
            returns: &mut self.returns,
            parts: self.options.parts,
            doubt: self.options.doubt,
            now: self.number,
            mean: self.mean,
            each: each as f32,
            blind: &self.blind,
            fades: self.intervals % MOVES_FADE == MOVES_FADE - 1,
            wanted: MOST_OFFERS,
            tiers: capacity.tiers.len(),
            thinned,
        };
        let found = pass.run(pages, &mut self.short, &self.witnesses);
        self.table.forget(FORGET.max(1.0 - found.witnesses.len() as f32 / TARGETS));
        self.witnesses = found.witnesses;
        self.mean_long = found.long / found.pages.max(1) as f64;
        (self.pages, self.units) = (found.pages, found.units);
        self.received = 0.0;
        self.number = next(self.number);
        self.intervals += 1;
        let blocks = pages.capacity() / BLOCK_PAGES as usize;
        self.blind.clear();
        if self.pace.signal() == Signal::AccessedBits {
            self.blind.resize(blocks, true);
        }
        let sides = found.coming.into_iter().zip(found.leaving);
        self.offers = sides.map(|(coming, leaving)| [coming.ranked(), leaving.ranked()]).collect();
        self.best_slow = self.offers.first_mut().map_or(0.0, |[coming, _]| coming.best_value());
        self.compete(pages);
    }
}

impl Terrace {
    /// What a mark stands for where the processor counts no accesses: as many as such a program usually makes, over the marks of the interval.
    fn estimate_touch(&mut self, elapsed: Duration) {
        let marks = self.received / self.touch;
        if self.counted || self.pace.signal() == Signal::Samples || self.counts.cores == 0 || marks <= 0.0 {
            return;
        }
        let accesses = USUAL_RATE * elapsed.as_nanos() as f64 * f64::from(self.counts.cores);
        self.touch = (accesses / marks).max(1.0);
    }

    fn granted(&mut self, needs: Needs) {
        if let Some(signal) = Signal::ALL.into_iter().find(|signal| signal.needs() == needs) {
            self.granted = Some(signal);
            self.pace = Pace::new(signal, &self.options);
        }
    }

    fn set_prices(&mut self, prices: &Prices) {
        if self.prices.is_none() {
            self.gain_ns = prices.farther_ns / USUAL_OVERLAP;
        }
        self.prices = Some(*prices);
        self.inside.set_prices(prices);
    }

    fn scan_done(&mut self, report: &ScanReport) {
        self.pace.walk_took(report.walk);
        if report.accessed > 0 && self.counts.memory_accesses > 0 {
            self.touch = self.counts.memory_accesses as f64 / report.accessed as f64;
        }
    }

    fn outcome(&mut self, done: &[Outcome], pages: &mut Pages) {
        for outcome in done {
            let item = outcome.item;
            if item.action == Action::Split && outcome.done > 0 && pages.block(item.page.block()).is_some() {
                self.inherit(item.page, pages);
            }
            if let (Action::MoveTo(_), true) =
                (item.action, outcome.done > 0 && pages.block(item.page.block()).is_some())
            {
                let entry = &mut pages[item.page];
                let bits = entry.policy_bits();
                entry.set_policy_bits(if bits == NEWBORN { NEWBORN } else { (bits + 1).min(MOST_MOVES) });
            }
        }
    }

    /// The pages of a block that was split are each as the block was, until they are seen apart.
    fn inherit(&mut self, first: PageId, pages: &mut Pages) {
        let (whole, short) = (pages[first], self.short[first.index()]);
        for offset in 1..BLOCK_PAGES {
            let page = first.plus(offset);
            let entry = &mut pages[page];
            (entry.heat, entry.stamp) = (whole.heat, whole.stamp);
            entry.set_policy_bits(whole.policy_bits());
            self.short[page.index()] = short;
        }
    }

    fn processor(&mut self, now: Time, counts: &ProcessorCounts) {
        self.counts = *counts;
        self.counted |= counts.memory_accesses > 0;
        self.load.count(now, counts, self.scale);
        // What is left of these beside the sampled loads are stores.
        self.stores.count(counts.memory_accesses.saturating_sub(counts.streamed_loads));
        let latency = &counts.latency_ns;
        if self.options.loaded && counts.slow_accesses > 0 {
            self.gain_ns = counts.slow_wait_ns / counts.slow_accesses as f64;
            if latency[0] > 0.0 && latency[1] > 0.0 && latency[0] >= latency[1] {
                // Fast memory has become the slower one: nothing is gained by more accesses to it.
                self.gain_ns = 0.0;
            }
        } else if self.gain_ns <= 0.0 || !self.options.loaded {
            self.gain_ns = self.prices.unwrap_or(Prices::ASSUMED).farther_ns / USUAL_OVERLAP;
        }
    }
}

impl Policy for Terrace {
    fn profile(&self) -> Profile {
        let needs = match (self.granted, self.options.signals) {
            (Some(signal), _) | (None, Some(signal)) => vec![signal.needs()],
            (None, None) => Signal::ALL.map(Signal::needs).to_vec(),
        };
        let movers = Movers::Several(self.options.movers);
        Profile { name: INFO.name, needs, kernel: Kernel { movers, ..Kernel::default() }, splits: self.inside.splits() }
    }

    fn configure(&mut self, setup: Setup) {
        if let Some(needs) = setup.granted {
            self.granted(needs);
        }
        if let Some(prices) = setup.prices {
            self.set_prices(&prices);
        }
        if let Some(factor) = setup.scale {
            self.scale = factor.max(1);
        }
        if let Some(parts) = setup.sample_parts {
            self.parts = parts.max(1);
        }
    }

    fn remap(&mut self, _now: Time, change: Remap<'_>, pages: &mut Pages) {
        match change {
            Remap::Mapped(blocks) => {
                self.short.fit(pages);
                self.inside.mapped(blocks);
            }
            Remap::Unmapping(space, range) => {
                self.inside.unmapping(space, &range, pages);
                support::each_page(pages, space, &range, |page| self.short[page.index()] = 0)
            }
        }
    }

    fn observe(&mut self, now: Time, seen: Observations<'_>, pages: &mut Pages) {
        match &seen {
            Observations::Scan(scan) => self.inside.scanned(now, scan),
            Observations::Events(events) => self.inside.saw(now, events, pages),
        }
        self.take_in(now, seen, pages);
    }

    fn feedback(&mut self, now: Time, feedback: Feedback<'_>, pages: &mut Pages) {
        match feedback {
            Feedback::ScanDone(report) => self.scan_done(report),
            Feedback::Moved(done) => {
                self.inside.outcomes(now, done, pages);
                self.outcome(done, pages);
            }
            Feedback::Processor(counts) => self.processor(now, counts),
            Feedback::SamplerTime(spent) => self.pace.sampler_took(spent),
            Feedback::Programs(states) => {
                self.programs = states.iter().map(|program| (program.space, *program)).collect();
            }
            _ => {}
        }
    }

    fn knows_sleep(&self) -> bool {
        true
    }

    fn plan(&mut self, now: Time, capacity: &CapacityView<'_>, pages: &mut Pages, requests: &mut MoveRequests) {
        let programs = &self.programs;
        let asleep = |space| programs.get(&space).is_some_and(|program| program.awake_since.is_none());
        let growing = self.growth.note(now, pages, |_| LOADING, asleep);
        let full = |limit: u64| capacity.fast_room() < limit.min(capacity.tiers[0].capacity) / FULL;
        let pressed = capacity.fast_limit.is_none_or(full);
        let may_leave = |space| pressed && !growing.contains(&space) && !asleep(space);
        self.inside.plan(now, LOADING.mul_f64(capacity.backoff), may_leave, capacity, pages, requests);
        if capacity.tiers.len() < 2 {
            return;
        }
        self.fast_limit = support::fast_limit(capacity);
        let units = if self.units > 0 { self.units } else { pages.footprint_of_all() };
        // Between nodes pages change places; in swap none can be used, so that pages only leave.
        let swap = capacity.swap.filter(|costs| costs.tier == TierId(1));
        self.pace.go_by_time(swap.is_some());
        if self.pace.is_over(now, units) {
            self.close(now, capacity, pages);
            if swap.is_some() {
                self.returns.close();
            }
        }
        match swap {
            Some(costs) => self.leave(now, &growing, &costs, capacity, pages, requests),
            None => self.step(now, capacity, pages, requests),
        }
    }

    fn place(&mut self, _now: Time, _page: PageId, capacity: &CapacityView<'_>) -> TierId {
        self.place_new(capacity)
    }

    fn schedule(&self) -> Schedule {
        // Where pages are walked, the end of the walk is the wake.
        let ends = (self.pace.signal() != Signal::AccessedBits).then(|| self.pace.ends());
        Schedule { cadence: self.pace.cadence(), wake_at: if self.make_room { Some(Time::ZERO) } else { ends } }
    }

    fn report(&self) -> PolicyReport {
        let witnesses = self.witnesses.capacity() * size_of::<Witness>();
        let offers = self
            .offers
            .iter()
            .flatten()
            .map(Ranked::memory_bytes)
            .chain(self.fresh.iter().map(Best::memory_bytes))
            .sum::<usize>();
        let column = self.short.len() * size_of::<u16>() + self.blind.capacity();
        let metric = |name, value| Metric { name, value };
        PolicyReport {
            memory_bytes: column + witnesses + offers + self.table.memory_bytes() + self.inside.memory_bytes(),
            metrics: [
                metric("store_share", self.stores.share()),
                metric("intervals", self.intervals as f64),
                metric("interval_seconds", self.pace.interval().as_secs_f64()),
                metric("known_states", self.table.known_states() as f64),
                metric("newborn_value", f64::from(self.table.value(State::newborn(false)))),
                metric("headroom_pages", self.headroom as f64),
                metric("exchanged_pages", self.exchanged as f64),
                metric("room_made_pages", self.room_made as f64),
                metric("gain_of_an_access_nanos", self.gain_ns),
                metric("accesses_of_a_mark", self.touch),
                metric("accesses_of_a_page", self.rate[0] / self.rate[1].max(1e-9)),
                metric("metadata_bytes_per_page", (8 + size_of::<u16>()) as f64),
            ]
            .into_iter()
            .chain(self.inside.metrics())
            .collect(),
        }
    }
}

#[cfg(test)]
mod tests;
