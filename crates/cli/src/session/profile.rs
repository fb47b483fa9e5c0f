//! How often each page of a run is used, for advice.
//!
//! In: the manager, at the end of each window. Out: a `terrace_sizing::advise::Profile`. Must not: move anything.

use std::time::Duration;

use terrace_core::units::{BLOCK_PAGES, TierId, Time};
use terrace_linux::manager::Manager;
use terrace_linux::move_cost::MoveCost;
use terrace_linux::topology::TierMap;
use terrace_policies::age::idle_time;
use terrace_sizing::advise::Profile;

use super::RunHook;

/// See the module's header.
pub(crate) struct Profiler {
    window: Duration,
    due: Time,
    began: Option<(Time, u64)>,
    windows: u32,
    /// Windows in which each page was seen accessed, by the engine's number. A block whose number was given to another one adds
    /// to the same place; programs that map and unmap much blur their profile that way.
    seen: Vec<u16>,
    profile: Profile,
}

impl Profiler {
    /// A profiler with windows of this length.
    pub(crate) fn new(window: Duration) -> Profiler {
        Profiler { window, due: Time::ZERO, began: None, windows: 0, seen: Vec::new(), profile: Profile::default() }
    }

    /// What was seen.
    pub(crate) fn profile(&self) -> &Profile {
        &self.profile
    }
}

impl RunHook for Profiler {
    fn begin(&mut self, _costs: MoveCost, _tiers: &TierMap) -> anyhow::Result<()> {
        Ok(())
    }

    fn due(&self) -> Time {
        self.due
    }

    fn look(&mut self, manager: &mut Manager) {
        let now = manager.now();
        if now < self.due {
            return;
        }
        self.due = now + self.window;
        let ticks = manager.stats().cpu_ticks;
        let pages = manager.engine().pages();
        let Some((began, first_ticks)) = self.began.filter(|_| pages.footprint_of_all() > 0) else {
            self.began = Some((now, ticks));
            return;
        };
        self.seen.resize(pages.capacity().max(self.seen.len()), 0);
        self.windows += 1;
        let mut by_windows = vec![0u64; self.windows as usize + 1];
        for (block, _) in pages.blocks() {
            let first = (block.0 * BLOCK_PAGES) as usize;
            for (page, seen) in pages.block_pages(block).iter().zip(&mut self.seen[first..]) {
                if page.tier() != Some(TierId::FAST) {
                    continue;
                }
                // Idle times are known to a quarter of a second; a window is several of them.
                if idle_time(page, now).is_some_and(|idle| idle < self.window) {
                    *seen = seen.saturating_add(1);
                }
                by_windows[usize::from(*seen).min(self.windows as usize)] += 1;
            }
        }
        let wall = now.since(began).as_secs_f64();
        let cpu_seconds = (ticks - first_ticks) as f64 / rustix::param::clock_ticks_per_second() as f64;
        self.profile = Profile {
            windows: self.windows,
            window_seconds: wall / f64::from(self.windows),
            pages_by_windows: by_windows,
            cpu_seconds,
            threads: (cpu_seconds / wall.max(f64::MIN_POSITIVE)).ceil().max(1.0),
        };
    }
}
