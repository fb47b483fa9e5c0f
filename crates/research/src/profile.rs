//! What each page of a sample did in a run, window by window, for advice.
//!
//! In: the manager, at the end of each window. Out: `terrace_sizing::watched::Marks`, and how many pages were seen how often. Must not: move anything.
//!
//! The sample is of the pages whose number's hash is a multiple of a power of two, which doubles whenever there are more of them than asked for (fixed-size
//! SHARDS, Waldspurger et al., FAST 2015). A page that has no memory any more ends its history, and its number may be another page's later.

use std::collections::BTreeMap;
use std::time::Duration;

use terrace_core::random::mix;
use terrace_core::units::{BLOCK_PAGES, TierId, Time};
use terrace_linux::manager::Manager;
use terrace_linux::move_cost::MoveCost;
use terrace_linux::topology::TierMap;
use terrace_policies::age::idle_time;
use terrace_sizing::watched::{History, Marks, Profile};

use crate::session::RunHook;

/// The most pages that a page stands for.
const MOST_ONE_IN: u32 = 1 << 20;

/// Histories of a sample of pages.
struct Sampled {
    /// The most histories that are kept.
    most: usize,
    one_in: u32,
    live: BTreeMap<u64, History>,
    gone: Vec<(u64, History)>,
}

impl Sampled {
    fn new(most: usize) -> Sampled {
        Sampled { most, one_in: 1, live: BTreeMap::new(), gone: Vec::new() }
    }

    fn has(&self, page: u64) -> bool {
        mix(page) & u64::from(self.one_in - 1) == 0
    }

    /// A page has memory in this window; whether it was accessed in it.
    fn look(&mut self, page: u64, window: u32, accessed: bool) {
        if self.has(page) {
            let history = self.live.entry(page).or_insert_with(|| History::born(window));
            if accessed {
                history.saw(window);
            }
        }
    }

    /// All pages that have memory in this window were looked at: these are the sample's.
    fn looked(&mut self, window: u32, present: &[u64]) {
        let gone: Vec<u64> = self.live.keys().filter(|page| present.binary_search(page).is_err()).copied().collect();
        for page in gone {
            if let Some(history) = self.live.remove(&page) {
                self.gone.push((page, history.gone(window)));
            }
        }
        while self.live.len() + self.gone.len() > self.most && self.one_in < MOST_ONE_IN {
            self.thin_out();
        }
    }

    /// `pages` are about to be looked at: of more than twice what is kept no history is begun in vain.
    fn expects(&mut self, pages: u64) {
        while pages / u64::from(self.one_in) > 2 * self.most as u64 && self.one_in < MOST_ONE_IN {
            self.thin_out();
        }
    }

    fn thin_out(&mut self) {
        self.one_in *= 2;
        let ways = u64::from(self.one_in - 1);
        self.live.retain(|page, _| mix(*page) & ways == 0);
        self.gone.retain(|(page, _)| mix(*page) & ways == 0);
    }

    fn pages(&self) -> Vec<History> {
        let mut all: Vec<(u64, &History)> = self.live.iter().map(|(page, history)| (*page, history)).collect();
        all.extend(self.gone.iter().map(|(page, history)| (*page, history)));
        all.sort_by_key(|(page, _)| *page);
        all.into_iter().map(|(_, history)| history.clone()).collect()
    }
}

/// See the module's header.
pub(crate) struct Profiler {
    window: Duration,
    due: Time,
    began: Option<(Time, u64)>,
    /// CPU seconds of each window.
    cpu_seconds: Vec<f64>,
    last_ticks: u64,
    /// Windows in which each page was seen accessed, by the engine's number. A block whose number was given to another one adds
    /// to the same place; programs that map and unmap much blur their profile that way.
    seen: Vec<u16>,
    sampled: Sampled,
    profile: Profile,
}

impl Profiler {
    /// A profiler with windows of this length, that keeps the histories of at most `most_pages` pages.
    pub(crate) fn new(window: Duration, most_pages: usize) -> Profiler {
        Profiler {
            window,
            due: Time::ZERO,
            began: None,
            cpu_seconds: Vec::new(),
            last_ticks: 0,
            seen: Vec::new(),
            sampled: Sampled::new(most_pages),
            profile: Profile::default(),
        }
    }

    /// What was seen, summed up.
    pub(crate) fn profile(&self) -> &Profile {
        &self.profile
    }

    /// What was seen of the sample.
    pub(crate) fn marks(&self) -> Marks {
        Marks {
            one_in: self.sampled.one_in,
            window_seconds: self.profile.window_seconds,
            cpu_seconds: self.cpu_seconds.clone(),
            pages: self.sampled.pages(),
        }
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
        let a_second = rustix::param::clock_ticks_per_second() as f64;
        let pages = manager.engine().pages();
        let last_ticks = std::mem::replace(&mut self.last_ticks, ticks);
        let Some((began, first_ticks)) = self.began.filter(|_| pages.footprint_of_all() > 0) else {
            self.began = Some((now, ticks));
            return;
        };
        self.seen.resize(pages.capacity().max(self.seen.len()), 0);
        let window = self.cpu_seconds.len() as u32;
        self.cpu_seconds.push(ticks.saturating_sub(last_ticks) as f64 / a_second);
        let windows = window + 1;
        let mut by_windows = vec![0u64; windows as usize + 1];
        let mut present = Vec::new();
        self.sampled.expects(pages.footprint_of_all());
        for (block, _) in pages.blocks() {
            let first = u64::from(block.0 * BLOCK_PAGES);
            let counted = &mut self.seen[first as usize..];
            for ((page, seen), number) in pages.block_pages(block).iter().zip(counted).zip(first..) {
                if page.tier() != Some(TierId::FAST) {
                    continue;
                }
                // Idle times are known to a quarter of a second; a window is several of them.
                let accessed = idle_time(page, now).is_some_and(|idle| idle < self.window);
                if accessed {
                    *seen = seen.saturating_add(1);
                }
                by_windows[usize::from(*seen).min(windows as usize)] += 1;
                if self.sampled.has(number) {
                    self.sampled.look(number, window, accessed);
                    present.push(number);
                }
            }
        }
        present.sort_unstable();
        self.sampled.looked(window, &present);
        let wall = now.since(began).as_secs_f64();
        let cpu_seconds = ticks.saturating_sub(first_ticks) as f64 / a_second;
        self.profile = Profile {
            windows,
            window_seconds: wall / f64::from(windows),
            pages_by_windows: by_windows,
            cpu_seconds,
            threads: (cpu_seconds / wall.max(f64::MIN_POSITIVE)).ceil().max(1.0),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_that_outgrows_its_size_keeps_every_second_page_with_its_history() {
        let mut sampled = Sampled::new(100);
        for window in 0..3 {
            let pages: Vec<u64> = (0..1000).filter(|page| sampled.has(*page)).collect();
            pages.iter().for_each(|page| sampled.look(*page, window, page % 2 == 0));
            sampled.looked(window, &pages);
        }
        assert!(sampled.one_in >= 8 && (25..=100).contains(&sampled.live.len()), "one in {}", sampled.one_in);
        let mut wanted = History::born(0);
        (0..3).for_each(|window| wanted.saw(window));
        for (page, history) in &sampled.live {
            assert_eq!(*history, if page % 2 == 0 { wanted.clone() } else { History::born(0) });
        }
    }

    #[test]
    fn a_page_that_is_gone_is_not_the_one_that_has_its_number_later() {
        let mut sampled = Sampled::new(100);
        sampled.look(7, 0, true);
        sampled.looked(0, &[7]);
        sampled.looked(1, &[]);
        sampled.look(7, 2, false);
        sampled.looked(2, &[7]);
        let mut first = History::born(0);
        first.saw(0);
        assert_eq!(sampled.pages(), [History::born(2), first.gone(1)]);
    }
}
