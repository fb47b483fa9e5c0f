//! What the simulator's tests share: accesses made by hand, a random walk, and small policies.
#![allow(dead_code, unreachable_pub, reason = "shared by two test programs, neither of which uses all of it")]

use std::time::Duration;

use terrace_core::observation::{Observation, Observations};
use terrace_core::pages::Pages;
use terrace_core::plan::{Action, MoveRequests, Reason};
use terrace_core::policy::{
    Cadence, CapacityView, Feedback, HintScan, Kernel, Metric, Needs, Policy, PolicyReport, Profile, SamplePeriods,
    Schedule,
};
use terrace_core::prices::ProcessorCounts;
use terrace_core::units::{Bytes, PageId, TierId, Time, Vpn};
use terrace_machine::load::Wait;
use terrace_machine::preset::Machine;
use terrace_sim::record::Record;
use terrace_sim::{FastSize, SimConfig, Simulation};

/// An access made by hand.
#[derive(Clone, Copy, Debug)]
pub struct Touch {
    pub page: u64,
    pub line: u32,
    pub wait: Wait,
    pub thread: usize,
    pub cycles: u32,
}

impl Touch {
    pub fn load(page: u64) -> Touch {
        Touch { page, line: 0, wait: Wait::Load, thread: 0, cycles: 0 }
    }
    pub fn chase(page: u64) -> Touch {
        Touch { wait: Wait::Dependent, ..Touch::load(page) }
    }
    pub fn store(page: u64) -> Touch {
        Touch { wait: Wait::Store, ..Touch::load(page) }
    }
    pub fn by(self, thread: usize) -> Touch {
        Touch { thread, ..self }
    }
    pub fn computing(self, cycles: u32) -> Touch {
        Touch { cycles, ..self }
    }
    pub fn on(self, line: u32) -> Touch {
        Touch { line, ..self }
    }
}

impl Record for Touch {
    fn page(&self) -> u64 {
        self.page
    }
    fn line(&self) -> u32 {
        self.line
    }
    fn wait(&self) -> Wait {
        self.wait
    }
    fn thread(&self) -> usize {
        self.thread
    }
    fn cycles(&self) -> u32 {
        self.cycles
    }
}

/// Numbers at random, the same every time.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((u128::from(self.0 >> 1) * u128::from(bound)) >> 63) as u64
    }
}

/// A machine without cache and TLB before memory, so that every access is one to memory.
pub fn bare(pages: u64, fast_share: f64) -> SimConfig {
    let machine = Machine::preset("optane-6252").expect("the preset is part of the crate");
    let mut config = SimConfig::new(machine, Bytes::of_pages(pages), FastSize::Share(fast_share));
    (config.cache, config.tlb) = (false, false);
    config
}

/// Touches every page once, in order.
pub fn touch_all(simulation: &mut Simulation, pages: u64) {
    simulation.map(Vpn(0), pages, false);
    let touches: Vec<Touch> = (0..pages).map(Touch::load).collect();
    simulation.feed(&touches);
    simulation.meet();
}

/// Pages stay where they were first put; what the kernel beneath does is up to the test.
#[derive(Default)]
pub struct FirstTouch {
    pub kernel: Kernel,
}

impl Policy for FirstTouch {
    fn profile(&self) -> Profile {
        Profile::new("test-first-touch", Needs::default()).above(self.kernel)
    }
    fn observe(&mut self, _now: Time, _seen: Observations<'_>, _pages: &mut Pages) {}
    fn plan(&mut self, _now: Time, _capacity: &CapacityView<'_>, _pages: &mut Pages, _wishes: &mut MoveRequests) {}
    fn schedule(&self) -> Schedule {
        Schedule::default()
    }
    fn report(&self) -> PolicyReport {
        PolicyReport::default()
    }
}

/// Moves nothing, and shows in its metrics what the processor told of the latest round.
#[derive(Default)]
pub struct Told {
    latest: ProcessorCounts,
    walk_at: Time,
}

impl Policy for Told {
    fn profile(&self) -> Profile {
        Profile::new("test-told", Needs { scans: true, counters: true, ..Needs::default() })
    }
    fn observe(&mut self, _now: Time, _seen: Observations<'_>, _pages: &mut Pages) {}
    fn feedback(&mut self, now: Time, feedback: Feedback<'_>, _pages: &mut Pages) {
        if let Feedback::Processor(counts) = feedback {
            (self.latest, self.walk_at) = (*counts, now + Duration::from_millis(1));
        }
    }
    fn plan(&mut self, _now: Time, _capacity: &CapacityView<'_>, _pages: &mut Pages, _wishes: &mut MoveRequests) {}
    fn schedule(&self) -> Schedule {
        let cadence = Cadence { scan_at: Some(self.walk_at), share: 1.0, ..Cadence::default() };
        Schedule { cadence, wake_at: None }
    }
    fn report(&self) -> PolicyReport {
        let metric = |name, value| Metric { name, value };
        let metrics = vec![
            metric("cores", f64::from(self.latest.cores)),
            metric("in_use", self.latest.in_use),
            metric("small_accesses", self.latest.accesses[0] as f64),
            metric("memory_accesses", self.latest.memory_accesses as f64),
            metric("slow_accesses", self.latest.slow_accesses as f64),
            metric("slow_wait_ns", self.latest.slow_wait_ns),
        ];
        PolicyReport { memory_bytes: 0, metrics }
    }
}

/// Promotes whatever faults or is sampled on slow memory, at once; demotes nothing by itself.
pub struct Eager {
    pub kernel: Kernel,
    pub hint: Option<HintScan>,
    pub sampling: Option<SamplePeriods>,
    /// Makes room by demoting pages in rotation when the fast tier is full.
    pub make_room: bool,
    pub wanted: Vec<PageId>,
    pub seen: u64,
    pub failed: u64,
    pub wake: Time,
    pub cursor: u32,
}

impl Eager {
    pub fn new() -> Eager {
        Eager {
            kernel: Kernel::default(),
            hint: None,
            sampling: None,
            make_room: false,
            wanted: Vec::new(),
            seen: 0,
            failed: 0,
            wake: Time::ZERO,
            cursor: 0,
        }
    }
    pub fn by_faults(kernel: Kernel, window_pages: u64) -> Eager {
        let hint = HintScan { window_pages, period: Duration::from_millis(1), tiers: 2 };
        Eager { kernel, hint: Some(hint), ..Eager::new() }
    }
    pub fn by_samples(period: u32) -> Eager {
        Eager { sampling: Some(SamplePeriods { loads: period, stores: period }), make_room: true, ..Eager::new() }
    }
}

impl Policy for Eager {
    fn profile(&self) -> Profile {
        let needs = Needs { hint_faults: self.hint.is_some(), samples: self.sampling.is_some(), ..Needs::default() };
        Profile::new("test-eager", needs).above(self.kernel)
    }
    fn observe(&mut self, _now: Time, seen: Observations<'_>, pages: &mut Pages) {
        let Observations::Events(events) = seen else { return };
        for event in events {
            if let Observation::HintFault { page, .. } | Observation::Sampled { page, .. } = *event {
                self.seen += 1;
                if pages[page].tier() == Some(TierId(1)) {
                    self.wanted.push(page);
                }
            }
        }
    }
    fn feedback(&mut self, _now: Time, feedback: Feedback<'_>, _pages: &mut Pages) {
        if let Feedback::Moved(done) = feedback {
            self.failed += done.iter().filter(|outcome| outcome.failure.is_some()).count() as u64;
        }
    }
    fn plan(&mut self, now: Time, capacity: &CapacityView<'_>, pages: &mut Pages, requests: &mut MoveRequests) {
        self.wake = now + Duration::from_millis(1);
        if self.make_room && !self.wanted.is_empty() && capacity.fast_room() < 64 {
            let mut left = 64;
            for _ in 0..pages.capacity() {
                self.cursor = (self.cursor + 1) % pages.capacity() as u32;
                let page = PageId(self.cursor);
                if pages.block(page.block()).is_some() && pages[page].tier() == Some(TierId::FAST) {
                    requests.push(page, Action::MoveTo(TierId(1)), Reason::MakeRoom);
                    left -= 1;
                    if left == 0 {
                        break;
                    }
                }
            }
        }
        for page in self.wanted.drain(..) {
            requests.push(page, Action::MoveTo(TierId::FAST), Reason::Hot);
        }
    }
    fn schedule(&self) -> Schedule {
        let cadence = Cadence { hint_scan: self.hint, sampling: self.sampling, ..Cadence::default() };
        Schedule { cadence, wake_at: Some(self.wake) }
    }
    fn report(&self) -> PolicyReport {
        PolicyReport { memory_bytes: 0, metrics: vec![Metric { name: "seen", value: self.seen as f64 }] }
    }
}
