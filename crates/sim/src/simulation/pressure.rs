//! What moves to and from compressed memory cost the program: reported to the governor once a second, as live.
//!
//! In: the books, and the machine's prices. Out: [`Pressure`]. Must not: tell what a live run could not count.
//!
//! A unit of the scaled machine stands for several pages: the governor counts units, at the price of all their pages.

use std::time::Duration;

use terrace_core::engine::Input;
use terrace_core::governor::Pressure;
use terrace_core::policy::FastGoal;
use terrace_core::units::{BLOCK_PAGES, PAGE_BYTES, TierId, Time};
use terrace_machine::preset::TierKind;

use super::Simulation;
use super::books::{Cost, Event};
use crate::config::{FastSize, SimConfig};

const PERIOD: Duration = Duration::from_secs(1);

/// What was reported, and until when.
#[derive(Clone, Copy, Default)]
pub(super) struct Reported {
    at: Time,
    refaults: u64,
    moving: f64,
    watching: f64,
    translating: f64,
}

/// Tells the governor which tier is swap, if the only slow one is, and what a page costs that comes back from it. With fast memory for all of the
/// program, as little of it as will do is the goal: nobody puts up compressed swap to leave it empty.
pub(super) fn set_swap(config: &mut SimConfig) {
    let pages = config.pages_in_a_unit();
    if let Some(tier) = config.machine.tiers.get(1).filter(|tier| tier.kind == TierKind::Compressed) {
        config.governor.swap = Some(TierId::FAST.below());
        config.governor.refault_cost = nanos(tier.read_latency_ns * pages);
        if matches!((config.fast, config.goal), (FastSize::Share(size), FastGoal::Share(goal)) if size >= 1.0 && goal >= 1.0)
        {
            config.goal = FastGoal::Least;
        }
    }
}

fn nanos(nanos: f64) -> Duration {
    Duration::from_nanos(nanos as u64)
}

impl Simulation {
    /// Tells the governor what the last second cost, where a tier is swap. Returns whether the engine has to be polled.
    pub(super) fn press(&mut self) -> bool {
        let now = self.now();
        let before = self.link.reported();
        let window = now.since(before.at);
        let Some(swap) = self.config.governor.swap.filter(|_| window >= PERIOD) else { return false };
        let full = f64::from(self.config.scale.factor());
        let costs = |cost| self.books.cost(cost) * full;
        let moving = costs(Cost::ShootdownStall) + costs(Cost::BlockedStall);
        let watching = costs(Cost::ScanResetStall);
        let refaults = self.books.counted(Event::Refaults);
        let (single, block) = self.out_prices(swap);
        let (split, collapse) = self.remap_prices();
        let translating = self.hot.small_walk_ns() * full;
        let pressure = Pressure {
            window,
            refaults: refaults - before.refaults,
            moving: nanos(moving - before.moving),
            page_out_cost: single,
            single_out_cost: single,
            block_out_cost: block,
            split_cost: split,
            collapse_cost: collapse,
            translating: nanos((translating - before.translating) * self.split_share()),
            watching: nanos(watching - before.watching),
            cores: f64::from(self.clock.active()).min(self.clock.cores()),
            stall_share: None,
            compression: Some(self.config.machine.tiers[swap.index()].ratio),
        };
        self.link.set_reported(Reported { at: now, refaults, moving, watching, translating });
        self.link.handle(now, Input::Pressure(pressure));
        true
    }

    /// What the program pays for a split of a huge page, and for a collapse into one: interrupts, and the mover's time, of which a thread that
    /// touches the block waits for half on average, where it takes no processor from the program.
    fn remap_prices(&self) -> (Duration, Duration) {
        let (management, pages) = (&self.config.machine.management, self.config.pages_in_a_unit());
        let cores = f64::from(self.clock.active()).min(self.clock.cores());
        let part = if cores >= self.clock.cores() { 1.0 } else { 0.5 };
        let price = |mover: f64| nanos((management.shootdown_ns * cores + mover * part) * pages);
        (price(management.split_ns), price(management.collapse_ns.max(management.collapse_in_use_ns)))
    }

    /// Which share of the program's 4 KiB pages are so because their block was split on request.
    fn split_share(&self) -> f64 {
        let pages = self.link.engine().pages();
        if pages.split_blocks() == 0 {
            return 0.0;
        }
        let small: usize = pages.blocks().map(|(_, block)| usize::from(!block.huge)).sum();
        pages.split_blocks() as f64 / small.max(1) as f64
    }

    /// What the program pays for a unit that leaves alone, and for a block of them: interrupts, and the mover where it takes a processor from it.
    fn out_prices(&self, swap: TierId) -> (Duration, Duration) {
        let (machine, pages) = (&self.config.machine, self.config.pages_in_a_unit());
        let management = &machine.management;
        let cores = f64::from(self.clock.active()).min(self.clock.cores());
        let mut single = management.shootdown_ns * cores;
        let mut block = single;
        if cores >= self.clock.cores() {
            let copy = |pages: u32| self.copy_nanos(f64::from(pages) * PAGE_BYTES as f64, TierId::FAST, TierId::FAST);
            let packing = machine.tiers[swap.index()].write_latency_ns;
            single += management.move_small_ns + copy(1) + packing;
            block +=
                management.collapse_ns + management.move_huge_ns + copy(BLOCK_PAGES) + packing * f64::from(BLOCK_PAGES);
        }
        (nanos(single * pages), nanos(block * pages))
    }
}
