//! Every policy under random observations: it never panics, never requests for a page that is gone, and is deterministic.
#![allow(clippy::unwrap_used, missing_docs)]

#[path = "../src/rig.rs"]
mod rig;
use std::time::Duration;

use proptest::prelude::*;
use terrace_core::engine::{Engine, EngineConfig, Input, Output};
use terrace_core::governor::GovernorConfig;
use terrace_core::observation::{Access, Observation, Observations, PteState, ScanBatch};
use terrace_core::pages::Pages;
use terrace_core::plan::{Action, Failure, Move, MoveRequests, Outcome};
use terrace_core::policy::{
    CapacityView, Facet, FastGoal, Feedback, Metric, Oracle, Policy, PolicyReport, Profile, Remap, ScanReport,
    Schedule, Setup,
};
use terrace_core::units::{PageId, TierId, Time, Vpn};
use terrace_policies::{POLICIES, Settings, build};

use rig::{Rig, SPACE};

/// Passes everything on, and looks at every request.
struct Checked(Box<dyn Policy>);

impl Checked {
    fn name(&self) -> &'static str {
        self.0.profile().name
    }
}

impl Policy for Checked {
    fn profile(&self) -> Profile {
        self.0.profile()
    }
    fn configure(&mut self, setup: Setup) {
        self.0.configure(setup);
    }
    fn remap(&mut self, now: Time, change: Remap<'_>, pages: &mut Pages) {
        self.0.remap(now, change, pages);
    }
    fn observe(&mut self, now: Time, seen: Observations<'_>, pages: &mut Pages) {
        self.0.observe(now, seen, pages);
    }
    fn feedback(&mut self, now: Time, feedback: Feedback<'_>, pages: &mut Pages) {
        self.0.feedback(now, feedback, pages);
    }
    fn plan(&mut self, now: Time, capacity: &CapacityView<'_>, pages: &mut Pages, requests: &mut MoveRequests) {
        self.0.plan(now, capacity, pages, requests);
        for request in requests.as_slice() {
            let live = pages.block(request.page.block()).is_some();
            assert!(live, "{} requests for {:?}, whose block is gone", self.name(), request.page);
            if let Action::MoveTo(to) = request.action {
                let unit = pages.unit(request.page).start;
                assert!(pages[unit].tier().is_some(), "{} moves {:?}, which has no memory", self.name(), request);
                assert!(
                    to.index() < capacity.tiers.len(),
                    "{} moves to a tier that is not there: {request:?}",
                    self.name()
                );
            }
        }
    }
    fn place(&mut self, now: Time, page: PageId, capacity: &CapacityView<'_>) -> TierId {
        let tier = self.0.place(now, page, capacity);
        assert!(tier.index() < capacity.tiers.len(), "{} places on {tier}", self.name());
        tier
    }
    fn schedule(&self) -> Schedule {
        self.0.schedule()
    }
    fn report(&self) -> PolicyReport {
        self.0.report()
    }
    fn facet(&mut self) -> Option<Facet<'_>> {
        self.0.facet()
    }
}

#[derive(Clone, Debug)]
enum Step {
    Map(u64, u64),
    Unmap(u64, u64),
    File(u64, u64),
    Touch(u64, u64),
    Give(u64),
    Sample(u64, u64, bool),
    Fault(u64, u64, u64),
    Walk(u64, bool, u64),
    Huge(u64, u8),
    Pass(u64),
}

const BLOCKS: u64 = 4;
const SPAN: u64 = BLOCKS * 512;

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        1 => (0..SPAN, 1u64..900).prop_map(|(start, length)| Step::Map(start, length)),
        1 => (0..SPAN, 1u64..900).prop_map(|(start, length)| Step::Unmap(start, length)),
        1 => (0..SPAN, 1u64..900).prop_map(|(start, length)| Step::File(start, length)),
        4 => (0..SPAN, 1u64..600).prop_map(|(start, length)| Step::Touch(start, length)),
        1 => (0..SPAN).prop_map(Step::Give),
        6 => (0..SPAN, 1u64..80, any::<bool>()).prop_map(|(start, count, store)| Step::Sample(start, count, store)),
        4 => (0..SPAN, 1u64..40, 0u64..3000).prop_map(|(start, count, ago)| Step::Fault(start, count, ago)),
        2 => (0..BLOCKS, any::<bool>(), 1u64..7).prop_map(|(block, marks, stride)| Step::Walk(block, marks, stride)),
        1 => (0..BLOCKS, 0u8..2).prop_map(|(block, tier)| Step::Huge(block, tier)),
        5 => (1u64..40_000).prop_map(Step::Pass),
    ]
}

/// Every third use of every page, as an oracle would tell it.
struct Thirds;

impl Oracle for Thirds {
    fn future(&mut self, _from: Time, _until: Time, pages: &Pages, found: &mut Vec<(PageId, u32)>) {
        found.extend((0..SPAN).step_by(3).filter_map(|vpn| Some((pages.find(SPACE, Vpn(vpn))?, 100 + vpn as u32))));
    }
}

/// Runs the steps; every `fails`-th move fails. Returns the moves and the figures.
fn run(name: &str, pairs: &[(&str, &str)], tiers: &[u64], steps: &[Step], fails: usize) -> (Vec<Move>, Vec<Metric>) {
    let mut policy = build(name, Settings::from_pairs(pairs.iter().copied())).unwrap();
    policy.configure(rig::scaled(12_800));
    let governor = GovernorConfig { cooldown: Duration::ZERO, ..GovernorConfig::default() };
    let goal = FastGoal::Pages(tiers[0]);
    let mut engine = Engine::new(EngineConfig { tiers: tiers.to_vec(), goal, governor }, Box::new(Checked(policy)));
    engine.foresee(Box::new(Thirds));
    let (mut now, mut moves, mut count) = (Time::ZERO + Duration::from_secs(1), Vec::new(), 0);
    for step in steps {
        let pages: Vec<PageId> = match *step {
            Step::Touch(start, length) | Step::Sample(start, length, _) | Step::Fault(start, length, _) => {
                (start..start + length).filter_map(|vpn| engine.pages().find(SPACE, Vpn(vpn))).collect()
            }
            Step::Give(vpn) => engine.pages().find(SPACE, Vpn(vpn)).into_iter().collect(),
            _ => Vec::new(),
        };
        match *step {
            Step::Map(start, length) => engine.handle(now, Input::Mapped(SPACE, Vpn(start)..Vpn(start + length))),
            Step::Unmap(start, length) => engine.handle(now, Input::Unmapped(SPACE, Vpn(start)..Vpn(start + length))),
            Step::File(start, length) => engine.handle(now, Input::FileBacked(SPACE, Vpn(start)..Vpn(start + length))),
            Step::Touch(..) => {
                for page in pages {
                    let huge = engine.pages().block(page.block()).is_some_and(|block| block.huge);
                    if engine.pages()[page].tier().is_none() && !huge {
                        let tier = engine.place(now, page);
                        if engine.tier_use()[tier.index()].free() > 0 {
                            engine.handle(
                                now,
                                Input::Observed(Observations::Events(&[Observation::Allocated { page, tier }])),
                            );
                        }
                    }
                }
            }
            Step::Give(_) => {
                for page in pages {
                    if engine.pages().block(page.block()).is_some_and(|block| block.huge) {
                        continue;
                    }
                    engine.handle(now, Input::Observed(Observations::Events(&[Observation::Freed { page }])));
                }
            }
            Step::Sample(_, _, store) => {
                let access = if store { Access::Store } else { Access::Load };
                let events: Vec<_> =
                    pages.into_iter().map(|page| Observation::Sampled { page, access, period: 199 }).collect();
                engine.handle(now, Input::Observed(Observations::Events(&events)));
                engine.handle(now, Input::SamplerTime(Duration::from_micros(events.len() as u64 * 50)));
            }
            Step::Fault(_, _, ago) => {
                let marked = Time::from_nanos(now.as_nanos().saturating_sub(ago * 1_000_000));
                let events: Vec<_> = pages
                    .into_iter()
                    .map(|page| Observation::HintFault { page, write: page.0.is_multiple_of(2), marked })
                    .collect();
                engine.handle(now, Input::Observed(Observations::Events(&events)));
            }
            Step::Walk(block, marks, stride) => {
                if let Some(id) = engine.pages().find_block(SPACE, Vpn(block * 512)) {
                    let huge = engine.pages().block(id).unwrap().huge;
                    let ptes: Vec<PteState> = engine
                        .pages()
                        .block_pages(id)
                        .iter()
                        .zip(0u64..)
                        .map(|(page, offset)| match page.tier() {
                            Some(tier) => PteState::placed(tier).with_accessed(offset % stride == 0).with_huge(huge),
                            None => PteState::ABSENT,
                        })
                        .collect();
                    let window = marks.then_some(Duration::from_secs(1));
                    let scan = ScanBatch { first: id.first_page(), ptes: &ptes, window, cleared: marks };
                    engine.handle(now, Input::Observed(Observations::Scan(scan)));
                    engine.handle(
                        now,
                        Input::ScanDone(ScanReport {
                            pages: 512,
                            accessed: 512 / stride,
                            walk: Duration::ZERO,
                            share: 1.0,
                        }),
                    );
                }
            }
            Step::Huge(block, tier) => {
                engine.handle(now, Input::Mapped(SPACE, Vpn(block * 512)..Vpn(block * 512 + 512)));
                let id = engine.pages().find_block(SPACE, Vpn(block * 512)).unwrap();
                if engine.tier_use()[usize::from(tier)].free() >= 512 {
                    let ptes = vec![PteState::placed(TierId(tier)).with_huge(true); 512];
                    let scan = ScanBatch { first: id.first_page(), ptes: &ptes, window: None, cleared: false };
                    engine.handle(now, Input::Observed(Observations::Scan(scan)));
                }
            }
            Step::Pass(millis) => {
                now = now + Duration::from_millis(millis);
                engine.handle(now, Input::Tick);
            }
        }
        for page in engine.watch().into_iter().flatten() {
            assert!(engine.pages().block(page.block()).is_some(), "{name} watches a page that is gone");
        }
        loop {
            match engine.poll(now) {
                Output::Move(plan) => {
                    // Moves fail now and then, and where the destination is full, as those after a failed one may find it.
                    let mut usage = engine.tier_use();
                    let mut outcomes: Vec<Outcome> = Vec::new();
                    for &item in &plan.moves {
                        count += 1;
                        let size = u64::from(item.pages);
                        let full = |to: TierId| usage[to.index()].free() < size;
                        let failure = match item.action {
                            Action::MoveTo(to) if full(to) => Some(Failure::NoRoom),
                            _ if count % fails == 0 => Some(Failure::Stayed),
                            _ => None,
                        };
                        if let (Action::MoveTo(to), None) = (item.action, failure) {
                            usage[to.index()].used += size;
                            usage[item.from.index()].used -= size;
                        }
                        outcomes.push(Outcome { item, done: if failure.is_none() { item.pages } else { 0 }, failure });
                    }
                    moves.extend(plan.moves);
                    engine.handle(now, Input::Moved(&outcomes));
                }
                Output::Track(_) => {}
                Output::Wake(_) => break,
            }
        }
        for (tier, usage) in engine.tier_use().iter().enumerate().skip(1) {
            assert!(usage.used <= usage.capacity, "{name}: tier {tier} holds {} of {}", usage.used, usage.capacity);
        }
    }
    (moves, engine.policy_metrics())
}

/// Settings under which a policy takes other paths than by default.
fn variants(name: &str) -> Vec<Vec<(&'static str, &'static str)>> {
    let mut variants = vec![vec![]];
    match name {
        "memtis" | "flexmem" => {
            let often = [("adapt_samples", "640000"), ("cool_samples", "6400000"), ("cool_growth", "64MiB")];
            variants.push(often.to_vec());
            if name == "flexmem" {
                variants
                    .push(often.iter().copied().chain([("couple", "timer"), ("k", "0.3"), ("touches", "2")]).collect());
                variants.push(often.iter().copied().chain([("couple", "decoupled"), ("demotion", "fixed")]).collect());
                variants.push(vec![("pebs", "off")]);
            }
        }
        "tieredmms" => variants.push(vec![("threshold_period", "640000"), ("cool_period", "6400000")]),
        "hybridtier" => {
            variants.push(vec![("batch", "640000"), ("momentum_samples", "1280000"), ("second_chance", "1s")])
        }
        "arms" => variants.push(vec![("interval", "10ms"), ("rounds", "1"), ("cost", "off"), ("bandwidth", "off")]),
        "colloid" => variants.extend(["memtis", "tpp"].map(|over| vec![("over", over)])),
        "alto" => variants.push(vec![("over", "numab2")]),
        "pact" => variants.push(vec![("keep", "0.5"), ("sample_period", "1"), ("reservoir", "4")]),
        "hemem" => variants.push(vec![("preset", "sosp-code"), ("read_hot", "2")]),
        "terrace" => {
            let often = ("interval", "10ms");
            variants.push(vec![often, ("price", "off")]);
            variants.push(vec![
                often,
                ("movers", "1"),
                ("bandwidth", "off"),
                ("table", "raw"),
                ("loaded", "off"),
                ("spare", "off"),
            ]);
            variants.push(vec![("signals", "accessed-bits")]);
            variants.push(vec![("signals", "hint-faults"), often]);
        }
        "thermostat" => variants.push(vec![("sampled", "100%"), ("period", "1s")]),
        _ => {}
    }
    variants
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn policies_are_sound_and_deterministic_whatever_they_see(
        steps in proptest::collection::vec(step(), 1..60),
        fast in 200u64..1500,
        three in any::<bool>(),
        fails in 2usize..20,
    ) {
        let tiers = if three { vec![fast, 1000, 4000] } else { vec![fast, 4000] };
        let steps: Vec<Step> = std::iter::once(Step::Map(0, SPAN)).chain(steps).collect();
        for info in POLICIES {
            for pairs in variants(info.name) {
                let first = run(info.name, &pairs, &tiers, &steps, fails);
                let second = run(info.name, &pairs, &tiers, &steps, fails);
                prop_assert_eq!(first, second, "{} {:?}", info.name, pairs);
            }
        }
    }
}

#[test]
fn the_policies_that_only_place_never_request() {
    for name in ["first-touch", "interleave", "all-fast", "all-slow", "memory-mode"] {
        let mut rig = Rig::new(build(name, Settings::default()).unwrap(), &[100, 1000]);
        rig.map(512);
        rig.touch_first(0..300);
        rig.sample(0..300);
        rig.pass(Duration::from_secs(100));
        assert!(rig.moves.is_empty(), "{name}");
    }
}

#[test]
fn every_policy_states_its_metadata_and_no_more_than_eight_bytes_unless_its_file_says_so() {
    for info in POLICIES {
        let policy = build(info.name, Settings::default()).unwrap();
        let metrics = policy.report().metrics;
        let stated = metrics.iter().find(|metric| metric.name == "metadata_bytes_per_page").map(|metric| metric.value);
        let most = match info.name {
            "flexmem" => 28.1,
            "memtis" => 22.1,
            "tieredmms" => 22.0,
            "clairvoyant" => 20.0,
            "arms" => 16.0,
            "colloid" => 12.1,
            "pact" => 12.0,
            "terrace" => 10.0,
            "hemem" | "thermostat" | "pond-static" => 8.1,
            _ => 8.0,
        };
        assert!(stated.unwrap_or(8.0) <= most, "{}: {stated:?} bytes a page", info.name);
    }
}
