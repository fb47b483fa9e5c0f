//! `colloid`: Colloid over HeMem, MEMTIS or TPP. Pages go to the tier that answers sooner under the present load, until both answer alike.
//!
//! In: what the system beneath it sees, and the loaded latency and accesses of each tier. Out: that system's requests, as far as they go the right
//! way and no further than needed; demotions of hot pages where fast memory has become the slower one. Must not: judge pages itself.
//!
//! Source: Colloid (SOSP 2024) and the constants of its artefact [C].
//!
//! | constant | default | meaning |
//! |---|---|---|
//! | `quantum` | 10 ms | between two looks at the counters [C] |
//! | `ewma` | 1/16 | weight of the newest quantum in latencies and rates [C] |
//! | `delta` | 0.05 | difference of latencies, as a share of the fast one's, below which nothing moves [C] |
//! | `epsilon` | 0.01 | width at which the bracket of p is opened again [C] |
//! | shift | half the bracket, less p | p is the share of accesses that fast memory serves; the bracket is halved by which tier is slower [C] |
//! | budget | shift times accesses times 64 bytes a quantum | at most `most` [C] |
//! | `most` | 100 MiB | 50 huge pages a quantum [C] |
//! | `half_life` | 1 s | of a page's rate, by which its share of accesses is known; the system beneath has its own counts [D] |
//!
//! Latency is occupancy over inserts of a tier's queue; here a driver tells it ([`ProcessorCounts::latency_ns`]). Where nobody does, the system
//! beneath runs alone. That is the simulator today; live drivers do not measure it yet.
//!
//! Ambiguities: over TPP promotions are stopped or let through, and not held to the shift [C]. A shift of the other sign is served by
//! demoting the hottest fast pages of which each fits the rest of the shift; the artefact swaps them with cold pages where slow memory is full, which
//! is left out here. A promotion that is held back takes as many of the demotions with it that made room for it. The rate of a page over TPP is one
//! over the time from mark to fault, and fast pages are marked too. The system beneath has its default settings.
//!
//! Memory beside that of the system beneath: 4 bytes a page.

use std::time::Duration;

use terrace_core::observation::{Observation, Observations};
use terrace_core::pages::{Column, Pages};
use terrace_core::plan::{Action, MoveRequest, MoveRequests, Reason, Rejection};
use terrace_core::policy::{
    CapacityView, Facet, Feedback, Metric, Policy, PolicyReport, Profile, Remap, Schedule, Setup,
};
use terrace_core::prices::ProcessorCounts;
use terrace_core::units::{Bytes, PAGE_BYTES, PageId, TierId, Time};

use crate::parts::support;
use crate::{PolicyInfo, SettingInfo, Settings, SettingsError};

/// The policy's entry in the registry.
pub const INFO: PolicyInfo = PolicyInfo {
    name: "colloid",
    summary: "Colloid over HeMem, MEMTIS or TPP: shifts accesses to the tier of lower loaded latency until both are equal",
    source: "Colloid, SOSP 2024",
    settings: &[
        SettingInfo { key: "over", default: "hemem", meaning: "the system beneath: hemem, memtis or tpp" },
        SettingInfo { key: "quantum", default: "10ms", meaning: "time between two looks at the counters" },
        SettingInfo { key: "ewma", default: "0.0625", meaning: "weight of the newest quantum" },
        SettingInfo { key: "delta", default: "0.05", meaning: "share by which latencies may differ and nothing moves" },
        SettingInfo { key: "epsilon", default: "0.01", meaning: "width at which the bracket of p is opened again" },
        SettingInfo { key: "most", default: "100MiB", meaning: "most moved in a quantum" },
        SettingInfo { key: "half_life", default: "1s", meaning: "half-life of a page's rate of accesses" },
        SettingInfo {
            key: "balance",
            default: "on",
            meaning: "follow loaded latencies; off: the system beneath alone",
        },
    ],
    build: |settings| Ok(Box::new(Colloid::new(settings)?)),
};

const LINE_BYTES: f64 = 64.0;
/// Rates below it are none.
const NO_RATE: f32 = 1e-3;
/// The shortest time from mark to fault that counts; a shorter one counts as this.
const SHORTEST_FAULT: Duration = Duration::from_millis(1);

/// Which way accesses should go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Nobody measures latencies.
    Unknown,
    /// The latencies are equal.
    Stay,
    /// Fast memory answers sooner.
    ToFast,
    /// Fast memory answers later.
    ToSlow,
}

/// Where the share of accesses that fast memory serves should lie.
#[derive(Clone, Copy, Debug)]
struct Balance {
    delta: f64,
    epsilon: f64,
    low: f64,
    high: f64,
}

impl Balance {
    /// The way, and the shift of p, by the latencies of both tiers and p as it is.
    fn shift(&mut self, latency: [f64; 2], p: f64) -> (Way, f64) {
        let [fast, slow] = latency;
        if fast <= 0.0 || slow <= 0.0 {
            return (Way::Unknown, 0.0);
        }
        if (fast - slow).abs() < self.delta * fast {
            return (Way::Stay, 0.0);
        }
        let to_fast = fast < slow;
        if to_fast {
            self.low = p;
        } else {
            self.high = p;
        }
        if self.high - self.low < self.epsilon {
            // The operating point has moved out of the bracket: it is opened on the side to which it goes.
            if to_fast {
                self.high = 1.0;
            } else {
                self.low = 0.0;
            }
        }
        let middle = (self.low + self.high) / 2.0;
        (if to_fast { Way::ToFast } else { Way::ToSlow }, (middle - p).abs())
    }
}

/// See the module's header.
pub struct Colloid {
    beneath: Box<dyn Policy>,
    /// Whether promotions are let through whole, as over TPP.
    whole: bool,
    balances: bool,
    quantum: Duration,
    ewma: f64,
    half_life: Duration,
    most: Bytes,
    scale: u32,
    balance: Balance,
    /// Rate of each unit by its first page, in whatever unit its observations have, and their sum.
    rates: Column<f32>,
    total: f64,
    /// Accesses by tier and latencies weighed by time, of the quantum that runs.
    running: ProcessorCounts,
    parts: f64,
    accesses: [f64; 2],
    latency: [f64; 2],
    way: Way,
    shift: f64,
    budget: f64,
    next: Time,
    halve_at: Time,
    held_back: u64,
    shifted: u64,
}

impl Colloid {
    /// Reads the settings.
    ///
    /// # Errors
    /// When a value is none of its kind.
    pub fn new(settings: &mut Settings) -> Result<Colloid, SettingsError> {
        let over = settings.choice("over", &[("hemem", "hemem"), ("memtis", "memtis"), ("tpp", "tpp")])?;
        let whole = over == "tpp";
        let of_beneath: &[(&str, &str)] = if whole { &[("scan_fast", "on")] } else { &[] };
        Ok(Colloid {
            beneath: crate::build(over, Settings::from_pairs(of_beneath.iter().copied()))?,
            whole,
            balances: settings.switch("balance")?,
            quantum: settings.duration("quantum")?,
            ewma: settings.number("ewma", 0.0..=1.0)?,
            half_life: settings.duration("half_life")?,
            most: support::size(settings, "most")?,
            scale: 1,
            balance: Balance {
                delta: settings.number("delta", 0.0..=1.0)?,
                epsilon: settings.number("epsilon", 0.0..=1.0)?,
                low: 0.0,
                high: 1.0,
            },
            rates: Column::default(),
            total: 0.0,
            running: ProcessorCounts::default(),
            parts: 0.0,
            accesses: [0.0; 2],
            latency: [0.0; 2],
            way: Way::Unknown,
            shift: 0.0,
            budget: 0.0,
            next: Time::ZERO,
            halve_at: Time::ZERO,
            held_back: 0,
            shifted: 0,
        })
    }

    fn add_rate(&mut self, unit: PageId, change: f32) {
        self.rates[unit.index()] += change;
        self.total += f64::from(change);
    }

    /// Share of all accesses that a unit receives.
    fn share(&self, unit: PageId) -> f64 {
        if self.total > 0.0 { f64::from(self.rates[unit.index()]) / self.total } else { 0.0 }
    }

    fn note(&mut self, now: Time, events: &[Observation], pages: &Pages) {
        for event in events {
            match *event {
                Observation::Sampled { page, .. } => self.add_rate(pages.unit(page).start, 1.0),
                Observation::HintFault { page, marked, .. } => {
                    let unit = pages.unit(page).start;
                    let rate = 1.0 / now.since(marked).max(SHORTEST_FAULT).as_secs_f32();
                    self.add_rate(unit, rate - self.rates[unit.index()]);
                }
                Observation::Freed { page } => self.add_rate(page, -self.rates[page.index()]),
                _ => {}
            }
        }
    }

    /// Takes in what was counted since the last time.
    fn count(&mut self, counts: &ProcessorCounts) {
        self.running.memory_accesses += counts.memory_accesses;
        self.running.slow_accesses += counts.slow_accesses;
        if counts.latency_ns[0] > 0.0 {
            self.parts += 1.0;
            self.running.latency_ns.iter_mut().zip(counts.latency_ns).for_each(|(sum, one)| *sum += one);
        }
    }

    /// A quantum ends: where do accesses belong?
    fn end_quantum(&mut self, now: Time) {
        self.next = now + self.quantum;
        let counts = std::mem::take(&mut self.running);
        let parts = std::mem::take(&mut self.parts);
        if parts == 0.0 || counts.memory_accesses == 0 {
            return;
        }
        let fast = counts.memory_accesses.saturating_sub(counts.slow_accesses) as f64;
        let first = self.latency[0] == 0.0;
        let mix = |old: &mut f64, new: f64| *old += if first { new - *old } else { (new - *old) * self.ewma };
        for (tier, accesses) in [fast, counts.slow_accesses as f64].into_iter().enumerate() {
            mix(&mut self.latency[tier], counts.latency_ns[tier] / parts);
            mix(&mut self.accesses[tier], accesses);
        }
        let all = self.accesses.iter().sum::<f64>().max(1.0);
        (self.way, self.shift) = self.balance.shift(self.latency, self.accesses[0] / all);
        // What a quantum leaves unused is not lost where less than a page fits into each.
        let most = support::scaled_pages(self.most, self.scale) as f64;
        self.budget = (self.budget + self.shift * all * LINE_BYTES / PAGE_BYTES as f64).min(most);
    }

    fn halve(&mut self, now: Time) {
        if now < self.halve_at {
            return;
        }
        self.halve_at = now + self.half_life;
        self.total = 0.0;
        for rate in self.rates.iter_mut() {
            *rate = if *rate < NO_RATE { 0.0 } else { *rate / 2.0 };
            self.total += f64::from(*rate);
        }
    }

    /// Passes on what the system beneath asks for, as far as it goes the right way.
    fn filter(&mut self, now: Time, asked: Vec<MoveRequest>, pages: &mut Pages, requests: &mut MoveRequests) {
        let mut shift = self.shift;
        let size = |pages: &Pages, page: PageId| pages.unit(page).end.0 - pages.unit(page).start.0;
        let mut kept: Vec<Option<MoveRequest>> = Vec::with_capacity(asked.len());
        let mut without = 0u64;
        for request in asked {
            if request.action != Action::MoveTo(TierId::FAST) {
                kept.push(Some(request));
                continue;
            }
            let count = u64::from(size(pages, request.page));
            let share = self.share(pages.unit(request.page).start);
            let lets = match self.way {
                Way::Unknown => true,
                Way::Stay | Way::ToSlow => false,
                Way::ToFast => self.whole || (share <= shift && count as f64 <= self.budget),
            };
            if lets {
                if self.way == Way::ToFast && !self.whole {
                    shift -= share;
                    self.budget -= count as f64;
                }
                kept.push(Some(request));
            } else {
                without += count;
                self.held_back += count;
                self.beneath.feedback(now, Feedback::Rejected(&request, Rejection::Throttled), pages);
            }
        }
        // Room that nobody comes for is not made.
        for slot in kept.iter_mut().rev() {
            let Some(request) = slot.filter(|request| request.reason == Reason::MakeRoom && without > 0) else {
                continue;
            };
            without = without.saturating_sub(u64::from(size(pages, request.page)));
            self.beneath.feedback(now, Feedback::Rejected(&request, Rejection::Throttled), pages);
            *slot = None;
        }
        for request in kept.into_iter().flatten() {
            requests.push(request.page, request.action, request.reason);
        }
    }

    /// Demotes the hottest fast pages that fit the shift.
    fn shift_to_slow(&mut self, capacity: &CapacityView<'_>, pages: &Pages, requests: &mut MoveRequests) {
        let asked: Vec<PageId> = requests.as_slice().iter().map(|request| request.page).collect();
        let mut fast = Vec::new();
        support::each_unit(pages, |unit, size, tier| {
            let entry = &pages[unit];
            let rate = self.rates[unit.index()];
            if tier == TierId::FAST && rate > 0.0 && !entry.moving() && !entry.pinned() {
                fast.push((rate, unit, size));
            }
        });
        fast.sort_by(|one, other| other.0.total_cmp(&one.0));
        let to = support::first_below(capacity);
        let mut room = capacity.tiers[to.index()].free();
        let mut shift = self.shift;
        for (_, unit, size) in fast {
            let share = self.share(unit);
            if self.budget < size as f64 || room < size || requests.left() == 0 {
                return;
            }
            if share > shift || asked.contains(&unit) {
                continue;
            }
            requests.move_to(unit, to, Reason::OverLimit);
            shift -= share;
            self.budget -= size as f64;
            room -= size;
            self.shifted += size;
        }
    }
}

impl Policy for Colloid {
    fn profile(&self) -> Profile {
        Profile { name: INFO.name, ..self.beneath.profile() }
    }

    fn configure(&mut self, setup: Setup) {
        if let Some(factor) = setup.scale {
            self.scale = factor.max(1);
        }
        self.beneath.configure(setup);
    }

    fn remap(&mut self, now: Time, change: Remap<'_>, pages: &mut Pages) {
        match &change {
            Remap::Mapped(_) => self.rates.fit(pages),
            Remap::Unmapping(space, range) => {
                support::each_page(pages, *space, range, |page| self.add_rate(page, -self.rates[page.index()]));
            }
        }
        self.beneath.remap(now, change, pages);
    }

    fn observe(&mut self, now: Time, seen: Observations<'_>, pages: &mut Pages) {
        if let Observations::Events(events) = seen {
            self.note(now, events, pages);
        }
        self.beneath.observe(now, seen, pages);
    }

    fn feedback(&mut self, now: Time, feedback: Feedback<'_>, pages: &mut Pages) {
        if let Feedback::Processor(counts) = &feedback {
            self.count(counts);
        }
        self.beneath.feedback(now, feedback, pages);
    }

    fn plan(&mut self, now: Time, capacity: &CapacityView<'_>, pages: &mut Pages, requests: &mut MoveRequests) {
        let over = self.balances && now >= self.next;
        if over {
            self.halve(now);
            self.end_quantum(now);
        }
        let mut asked = MoveRequests::with_limit(requests.left());
        self.beneath.plan(now, capacity, pages, &mut asked);
        self.filter(now, asked.into_vec(), pages, requests);
        if over && self.way == Way::ToSlow && capacity.tiers.len() > 1 {
            self.shift_to_slow(capacity, pages, requests);
        }
    }

    fn place(&mut self, now: Time, page: PageId, capacity: &CapacityView<'_>) -> TierId {
        self.beneath.place(now, page, capacity)
    }

    fn schedule(&self) -> Schedule {
        let schedule = self.beneath.schedule();
        let quantum = self.balances.then_some(self.next);
        Schedule { wake_at: [schedule.wake_at, quantum].into_iter().flatten().min(), ..schedule }
    }

    fn report(&self) -> PolicyReport {
        let mut report = self.beneath.report();
        report.memory_bytes += self.rates.len() * size_of::<f32>();
        for metric in report.metrics.iter_mut().filter(|metric| metric.name == "metadata_bytes_per_page") {
            metric.value += size_of::<f32>() as f64;
        }
        let all = self.accesses.iter().sum::<f64>().max(1.0);
        let metric = |name, value| Metric { name, value };
        report.metrics.extend([
            metric("fast_latency_nanos", self.latency[0]),
            metric("slow_latency_nanos", self.latency[1]),
            metric("fast_access_share", self.accesses[0] / all),
            metric("wanted_shift", self.shift),
            metric("held_back_pages", self.held_back as f64),
            metric("shifted_to_slow_pages", self.shifted as f64),
        ]);
        report
    }

    fn facet(&mut self) -> Option<Facet<'_>> {
        self.beneath.facet()
    }
}

#[cfg(test)]
mod tests {
    use terrace_core::engine::Input;

    use super::*;
    use crate::rig::{Rig, SLOW};

    const QUANTUM: Duration = Duration::from_millis(10);

    /// What the counters tell of a quantum: latencies, and that fast memory serves half of many accesses.
    fn quantum(rig: &mut Rig, latency: [f64; 2]) {
        let mut counts =
            ProcessorCounts { memory_accesses: 2_000_000, slow_accesses: 1_000_000, ..ProcessorCounts::default() };
        counts.latency_ns[..2].copy_from_slice(&latency);
        rig.now = rig.now + QUANTUM;
        rig.engine.handle(rig.now, Input::Processor(counts));
        rig.settle();
    }

    /// Two blocks of fast memory, four of the program: 0 and 1 fast, 2 and 3 slow, each a huge page.
    fn over_hemem(extra: &[(&str, &str)]) -> Rig {
        let policy = crate::build("colloid", Settings::from_pairs(extra.iter().copied())).unwrap();
        let mut rig = Rig::new(policy, &[1024, 100_000]);
        rig.map(4 * 512);
        (0..4).for_each(|block| rig.born_huge(block, TierId(u8::from(block >= 2))));
        rig
    }

    #[test]
    fn a_hot_slow_page_comes_up_only_while_fast_memory_answers_sooner() {
        let check = |balance: &str, latency: [f64; 2], comes: bool| {
            let mut rig = over_hemem(&[("balance", balance)]);
            rig.sample([0; 90]);
            rig.sample([1024; 9]);
            (0..3).for_each(|_| quantum(&mut rig, latency));
            assert_eq!(rig.tier(1024) == Some(TierId::FAST), comes, "balance={balance}, {latency:?}");
            if !comes {
                assert_eq!((rig.promotions, rig.tier(512)), (0, Some(TierId::FAST)), "no room is made for it");
            }
        };
        check("on", [80.0, 170.0], true);
        check("on", [170.0, 172.0], false);
        check("on", [300.0, 170.0], false);
        check("on", [0.0, 0.0], true);
        check("off", [300.0, 170.0], true);
    }

    #[test]
    fn hot_pages_that_fit_the_shift_leave_a_fast_memory_that_answers_later() {
        let check = |balance: &str, leaves: bool| {
            let mut rig = over_hemem(&[("balance", balance)]);
            // Block 0 has nine tenths of the accesses, more than the shift of a quarter, block 1 a tenth.
            rig.sample([0; 90]);
            rig.sample([512; 10]);
            quantum(&mut rig, [300.0, 170.0]);
            assert_eq!((rig.tier(0), rig.tier(512) == Some(SLOW)), (Some(TierId::FAST), leaves), "balance={balance}");
        };
        check("on", true);
        check("off", false);
    }

    #[test]
    fn over_memtis_and_tpp_promotions_stop_as_well() {
        for over in ["memtis", "tpp"] {
            let check = |latency: [f64; 2], comes: bool| {
                let mut policy = crate::build("colloid", Settings::from_pairs([("over", over)])).unwrap();
                policy.configure(crate::rig::scaled(12_800));
                let mut rig = Rig::new(policy, &[1000, 100_000]);
                rig.map(4000);
                rig.born(0..100, TierId::FAST);
                rig.born(100..200, SLOW);
                for _ in 0..60 {
                    rig.sample((0..10).flat_map(|page| [page; 10]).chain([150; 20]));
                    rig.fault([150, 150], Duration::from_millis(1), false);
                    quantum(&mut rig, latency);
                }
                assert_eq!(rig.tier(150) == Some(TierId::FAST), comes, "over {over}, {latency:?}");
            };
            check([80.0, 170.0], true);
            check([300.0, 170.0], false);
        }
    }

    #[test]
    fn the_bracket_closes_in_on_the_share_at_which_both_tiers_answer_alike_and_follows_it() {
        let mut balance = Balance { delta: 0.05, epsilon: 0.01, low: 0.0, high: 1.0 };
        let mut p = 0.95;
        let mut settle = |balance: &mut Balance, load: f64| {
            for _ in 0..40 {
                // Both latencies rise with what the tier serves; fast memory has a load of others besides.
                let latency = [80.0 + 200.0 * p + load, 170.0 + 150.0 * (1.0 - p)];
                let (way, shift) = balance.shift(latency, p);
                p += match way {
                    Way::ToFast => shift,
                    Way::ToSlow => -shift,
                    _ => 0.0,
                };
            }
            p
        };
        // 80 + 200 p = 320 - 150 p at 0.686.
        assert!((settle(&mut balance, 0.0) - 0.686).abs() < 0.04);
        // With 100 ns of load at 0.4, and back.
        assert!((settle(&mut balance, 100.0) - 0.4).abs() < 0.04);
        assert!((settle(&mut balance, 0.0) - 0.686).abs() < 0.04);
    }

    #[test]
    fn what_moves_in_a_quantum_is_bounded_by_the_shift_of_accesses() {
        let mut colloid = Colloid::new(&mut Settings::default().for_policy(&INFO)).unwrap();
        let mut counts =
            ProcessorCounts { memory_accesses: 64_000, slow_accesses: 32_000, ..ProcessorCounts::default() };
        counts.latency_ns[..2].copy_from_slice(&[80.0, 170.0]);
        colloid.count(&counts);
        colloid.end_quantum(Time::ZERO);
        // p is a half and becomes the lower end; half of the bracket above it is a quarter.
        assert_eq!((colloid.way, colloid.shift, colloid.budget), (Way::ToFast, 0.25, 250.0));
    }
}
