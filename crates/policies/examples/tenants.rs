//! A simulated study of the arbiter: tenants that share fast memory, with it and without.
//!
//! In: nothing. Out: tables, and with `--json FILE` the raw data. Must not: read a clock, or draw random numbers that are not
//! seeded; it prints the same figures everywhere.
//!
//! `cargo run --release -p terrace-policies --example tenants`
//!
//! Real engines with the policy `age` run in virtual time, one a tenant, as in the daemon. What is modelled is the tenants
//! and the memory: a tenant touches each of its pages at a Poisson rate that falls with the page's rank by Zipf's law (exponent
//! 0.99, as in YCSB), marks are read once a second, and moves happen as asked, at once, within the rate. An access to fast memory
//! costs 1, one to slow memory 3 units of time. Slowdown is the time of all accesses over what it were in fast memory alone.
//!
//! Three ways to share: `first-come`, where the first tenant that needs a free fast page gets it and none gives one back;
//! `unarbitrated`, an engine a tenant and no arbiter, each managing towards its own active set and taking what is
//! free; `arbiter`, weighted max-min with floors, as in the daemon.
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "an example: it prints and writes"
)]

use std::time::Duration;

use terrace_core::arbiter::{Activity, Claim, share_out};
use terrace_core::engine::{Engine, EngineConfig, Input, Output};
use terrace_core::governor::{GovernorConfig, SpaceLimits};
use terrace_core::observation::{Observations, PteState, ScanBatch};
use terrace_core::plan::Outcome;
use terrace_core::policy::{FastGoal, ScanReport};
use terrace_core::random::{SplitMix64, unit};
use terrace_core::units::{BLOCK_PAGES, Bytes, SpaceId, TierId, Time, Vpn};
use terrace_policies::Settings;

const SPACE: SpaceId = SpaceId(0);
const SLOW: TierId = TierId(1);
const SLOW_COST: f64 = 3.0;
const ZIPF: f64 = 0.99;
const SECONDS: u64 = 600;

#[derive(Clone, Copy, PartialEq)]
enum Sharing {
    FirstCome,
    Unarbitrated,
    Arbiter,
}

const SHARINGS: [(&str, Sharing); 3] =
    [("first-come", Sharing::FirstCome), ("unarbitrated", Sharing::Unarbitrated), ("arbiter", Sharing::Arbiter)];

/// A tenant as the study describes it.
#[derive(Clone, Copy)]
struct Spec {
    name: &'static str,
    pages: u64,
    /// Accesses a second over all pages.
    rate: f64,
    /// When it begins, and when it falls idle, in seconds.
    from: u64,
    until: u64,
    floor: u64,
    weight: u32,
    /// The popularity of its pages is shuffled so often, in seconds: a noisy neighbour's memory never settles. 0 for never.
    shuffle: u64,
}

const QUIET: Spec =
    Spec { name: "quiet", pages: 8192, rate: 40_000.0, from: 0, until: SECONDS, floor: 0, weight: 100, shuffle: 0 };

struct Tenant {
    spec: Spec,
    engine: Engine,
    activity: Activity,
    active: u64,
    random: SplitMix64,
    /// Rank of each page, and the accesses a second of the page of each rank.
    ranks: Vec<u32>,
    rates: Vec<f64>,
    /// Accesses so far.
    fast: f64,
    slow: f64,
}

fn at(second: u64) -> Time {
    Time::ZERO + Duration::from_secs(1000 + second)
}

impl Tenant {
    fn new(spec: Spec, seed: u64, fast: u64) -> Tenant {
        let settings = Settings::from_pairs([("adaptive", "off"), ("interval", "1s"), ("share", "100%")]);
        let config = EngineConfig {
            tiers: vec![fast, 1 << 24],
            goal: FastGoal::Pages(fast),
            governor: GovernorConfig { rate: Some(Bytes::mib(64)), ..GovernorConfig::default() },
        };
        let weights: Vec<f64> = (1..=spec.pages).map(|rank| (rank as f64).powf(-ZIPF)).collect();
        let sum: f64 = weights.iter().sum();
        let mut tenant = Tenant {
            spec,
            engine: Engine::new(config, terrace_policies::build("age", settings).unwrap()),
            activity: Activity::default(),
            active: 0,
            random: SplitMix64::new(seed),
            ranks: (0..spec.pages as u32).collect(),
            rates: weights.iter().map(|weight| weight / sum * spec.rate).collect(),
            fast: 0.0,
            slow: 0.0,
        };
        tenant.shuffle();
        tenant
    }

    fn shuffle(&mut self) {
        for last in (1..self.ranks.len()).rev() {
            let other = self.random.below(last as u64 + 1) as usize;
            self.ranks.swap(last, other);
        }
    }

    fn used(&self) -> u64 {
        self.engine.pages().used_in_all(TierId::FAST)
    }

    /// A second of accesses, then a walk. Pages new to the tenant lie in fast memory while `free` lasts.
    fn live(&mut self, second: u64, mut free: u64) {
        let now = at(second);
        if self.spec.shuffle > 0 && second > 0 && second.is_multiple_of(self.spec.shuffle) {
            self.shuffle();
        }
        let busy = second < self.spec.until;
        let mut round = ScanReport::default();
        for start in (0..self.spec.pages).step_by(BLOCK_PAGES as usize) {
            self.engine.handle(now, Input::Mapped(SPACE, Vpn(start)..Vpn(start + u64::from(BLOCK_PAGES))));
            let first = self.engine.pages().find(SPACE, Vpn(start)).unwrap();
            let mut ptes = Vec::with_capacity(BLOCK_PAGES as usize);
            for offset in 0..BLOCK_PAGES {
                let tier = self.engine.pages()[first.plus(offset)].tier().unwrap_or_else(|| {
                    let fits = free > 0;
                    free -= u64::from(fits);
                    if fits { TierId::FAST } else { SLOW }
                });
                let rate = self.rates[self.ranks[start as usize + offset as usize] as usize];
                // At least one event in a second of a Poisson process.
                let drawn = unit(self.random.next());
                let accessed = busy && drawn < 1.0 - (-rate).exp();
                if busy {
                    *(if tier == TierId::FAST { &mut self.fast } else { &mut self.slow }) += rate;
                }
                round.pages += 1;
                round.accessed += u64::from(accessed);
                ptes.push(PteState::placed(tier).with_accessed(accessed));
            }
            let scan = ScanBatch { first, ptes: &ptes, window: Some(Duration::from_secs(1)), cleared: true };
            self.engine.handle(now, Input::Observed(Observations::Scan(scan)));
        }
        self.active = self.activity.update(now, round.accessed);
        self.engine.handle(now, Input::ScanDone(round));
    }

    /// Carries out what the engine asks for within these limits, until it is content.
    fn manage(&mut self, second: u64, most: u64, floor: u64) {
        let now = at(second);
        self.engine.handle(now, Input::Goal(FastGoal::Pages(most)));
        self.engine.handle(now, Input::TotalLimits(SpaceLimits { floor: floor.min(most), ceiling: most }));
        loop {
            match self.engine.poll(now) {
                Output::Move(plan) => {
                    let done = |item: terrace_core::plan::Move| Outcome { item, done: item.pages, failure: None };
                    let outcomes: Vec<Outcome> = plan.moves.iter().map(|&item| done(item)).collect();
                    self.engine.handle(now, Input::Moved(&outcomes));
                }
                Output::Track(_) => {}
                Output::Wake(_) => return,
            }
        }
    }

    fn slowdown(&self) -> f64 {
        (self.fast + self.slow * SLOW_COST) / (self.fast + self.slow).max(f64::MIN_POSITIVE)
    }
}

/// Runs tenants together for ten minutes; each one's slowdown, and its fast pages at the end.
fn run(specs: &[Spec], fast: u64, sharing: Sharing) -> Vec<(f64, u64)> {
    let mut tenants: Vec<Tenant> =
        specs.iter().zip(1..).map(|(spec, number)| Tenant::new(*spec, number * 7919, fast)).collect();
    let used = |tenants: &[Tenant]| tenants.iter().map(Tenant::used).sum::<u64>();
    for second in 0..SECONDS {
        let here: Vec<usize> = (0..tenants.len()).filter(|&one| second >= tenants[one].spec.from).collect();
        for &one in &here {
            let free = fast - used(&tenants);
            tenants[one].live(second, free);
        }
        let claims: Vec<Claim> = here
            .iter()
            .map(|&one| &tenants[one])
            .map(|tenant| Claim {
                weight: tenant.spec.weight,
                floor: tenant.spec.floor,
                ceiling: u64::MAX,
                using: tenant.active,
                wanted: tenant.spec.pages,
            })
            .collect();
        let mut grants: Vec<(usize, u64)> = here.iter().copied().zip(share_out(fast, &claims)).collect();
        // Who is over its grant goes first, so that the others find the room; the order of equals is that of the list.
        grants.sort_by_key(|(one, grant)| std::cmp::Reverse(tenants[*one].used().saturating_sub(*grant)));
        for (one, grant) in grants {
            let reach = tenants[one].used() + fast - used(&tenants);
            let (most, floor) = match sharing {
                Sharing::FirstCome => (reach, u64::MAX),
                Sharing::Unarbitrated => (reach.min(tenants[one].active.max(1)), 0),
                Sharing::Arbiter => (reach.min(grant), tenants[one].spec.floor),
            };
            tenants[one].manage(second, most, floor);
        }
        assert!(used(&tenants) <= fast, "more pages than fast memory holds");
    }
    tenants.iter().map(|tenant| (tenant.slowdown(), tenant.used())).collect()
}

struct Study {
    name: &'static str,
    specs: Vec<Spec>,
    fast: u64,
}

fn studies() -> Vec<Study> {
    let noisy = Spec { name: "noisy", pages: 32_768, rate: 400_000.0, shuffle: 20, ..QUIET };
    let late = Spec { name: "late", from: 120, ..QUIET };
    let idle = Spec { name: "idle", until: 120, floor: 512, ..QUIET };
    let mut eight = vec![QUIET; 4];
    eight.extend([late, idle, noisy, Spec { name: "heavy", weight: 300, ..QUIET }]);
    vec![
        Study { name: "two, one comes late", specs: vec![QUIET, late], fast: 8192 },
        Study { name: "two, one is noisy", specs: vec![noisy, late], fast: 8192 },
        Study { name: "two, one falls idle", specs: vec![idle, late], fast: 8192 },
        Study { name: "eight", specs: eight, fast: 24_576 },
    ]
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let file = arguments.find(|argument| argument == "--json").and_then(|_| arguments.next());
    let mut rows = Vec::new();
    for Study { name, specs, fast } in studies() {
        let weights: u64 = specs.iter().map(|spec| u64::from(spec.weight)).sum();
        println!("\n{name}: slowdowns of {} tenants that share {fast} fast pages", specs.len());
        println!(
            "{:<7} {:>11} {:>13} {:>8}  fast pages at the end, and share by weight",
            "tenant", "first-come", "unarbitrated", "arbiter"
        );
        let results: Vec<_> = SHARINGS.iter().map(|(_, sharing)| run(&specs, fast, *sharing)).collect();
        for (one, spec) in specs.iter().enumerate() {
            let fair = fast * u64::from(spec.weight) / weights;
            let [first, without, with] = [0, 1, 2].map(|way: usize| results[way][one]);
            println!(
                "{:<7} {:>11.3} {:>13.3} {:>8.3}  {} / {} / {}, {fair}",
                spec.name, first.0, without.0, with.0, first.1, without.1, with.1
            );
            for ((way, _), result) in SHARINGS.iter().zip(&results) {
                rows.push(format!(
                    "    {{ \"study\": \"{name}\", \"tenant\": {one}, \"name\": \"{}\", \"sharing\": \"{way}\", \"slowdown\": {:.4}, \
                     \"share_by_weight_pages\": {fair}, \"fast_pages_at_end\": {} }}",
                    spec.name, result[one].0, result[one].1
                ));
            }
        }
    }
    if let Some(file) = file {
        let head = format!(
            "{{\n  \"simulated\": true,\n  \"seconds\": {SECONDS},\n  \"slow_cost\": {SLOW_COST},\n  \"results\": [\n"
        );
        std::fs::write(file, head + &rows.join(",\n") + "\n  ]\n}\n").unwrap();
    }
}
