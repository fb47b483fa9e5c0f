//! A manager whose tracker delivers samples by plan, as a processor would: this machine's has none.

use std::cell::RefCell;
use std::rc::Rc;

use terrace_core::engine::{Engine, EngineConfig};
use terrace_core::governor::GovernorConfig;
use terrace_core::observation::Access;
use terrace_core::policy::{FastGoal, Policy};
use terrace_core::units::{Time, Vpn};
use terrace_core::watching::DEFAULT_MAX_OVERHEAD;
use terrace_linux::manager::ManagerParts;
use terrace_linux::move_cost::MoveCost;
use terrace_linux::movers::Movers;
use terrace_linux::process::RangeOptions;
use terrace_linux::topology::TierMap;
use terrace_linux::trackers::{Event, Round, Sink, Target, TrackError, Tracker};

/// The pages that the next round of events tells of.
pub(crate) type Samples = Rc<RefCell<Vec<Vpn>>>;

struct Planned {
    samples: Samples,
    /// The manager has looked where pages are, or is about to; before, it would drop what it cannot place.
    looked: bool,
}

/// The parts of a manager with this policy and these samples, in which Terrace itself moves nothing.
pub(crate) fn parts(
    policy: Box<dyn Policy>,
    samples: Samples,
    capacity_pages: Vec<u64>,
    tiers: TierMap,
) -> ManagerParts {
    let config =
        EngineConfig { tiers: capacity_pages, goal: FastGoal::Pages(u64::MAX), governor: GovernorConfig::default() };
    ManagerParts {
        engine: Engine::new(config, policy),
        tracker: Box::new(Planned { samples, looked: false }),
        mover: Box::new(Movers::dry_run()),
        tiers,
        zram: None,
        zram_is_ours: false,
        ranges: RangeOptions::default(),
        kernel_lists: None,
        life_cycle: None,
        max_overhead: DEFAULT_MAX_OVERHEAD,
        move_cost: MoveCost::default(),
        ignores_protection: false,
    }
}

impl Tracker for Planned {
    fn name(&self) -> &'static str {
        "planned"
    }

    fn scan(&mut self, _: &Round<'_>, _: &mut dyn Sink) -> Result<(), TrackError> {
        self.looked = true;
        Ok(())
    }

    fn events(&mut self, _: Time, targets: &[Target<'_>], sink: &mut dyn Sink) -> Result<(), TrackError> {
        if self.looked && !targets.is_empty() {
            for page in self.samples.borrow_mut().drain(..) {
                sink.event(targets[0].space, page, Event::Sampled { access: Access::Load, period: 199 });
            }
        }
        Ok(())
    }
}
