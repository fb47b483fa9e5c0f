//! How long the sampled pages of one process have been idle, and how often idle ones came back.
//!
//! In: what a tracker saw of its sampled blocks. Out: [`Figures`]. Must not: read a clock, or call a page idle for longer than it was watched.
//!
//! A page is cold by the rule of the policy `age`, which manages by default: idle for the threshold, and with a heat of an eighth at most. A huge
//! block is one page here, as it is one to the processor: with any part in use it is in use.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use terrace_core::observation::PteState;
use terrace_core::units::{BLOCK_PAGES, Time, Vpn};

/// Idle times that may be asked of a page: `idle` of the policy `age`, and what its back-off makes of it.
pub(crate) const THRESHOLDS: [Duration; 5] = [secs(12), secs(24), secs(48), secs(96), secs(192)];
/// Idle times that are shown.
pub(crate) const SHOWN: [Duration; 3] = [secs(60), secs(120), secs(300)];
/// `half_life` and `cold` of the policy `age`.
const HALF_LIFE: Duration = Duration::from_secs(8);
const COLD: u16 = 8191;
const HEAT_ONE: f64 = 65535.0;
/// A stamp counts these since the start.
const STAMP: Duration = Duration::from_millis(100);
const ABSENT: u32 = u32::MAX;

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// The sampled blocks of a process.
#[derive(Debug, Default)]
pub(crate) struct Ages {
    blocks: BTreeMap<u64, Block>,
    /// Pages that were used again after they had been idle for each threshold.
    returned: [u64; THRESHOLDS.len()],
    /// When the first block was cleared.
    began: Option<Time>,
    /// When it was last read.
    read: Option<Time>,
    /// Pages, small and huge, that were found used after their bit had been cleared.
    touched: u64,
}

/// One block: an entry a page, or one for all where it is huge.
#[derive(Debug)]
struct Block {
    used: Vec<u32>,
    heat: Vec<u16>,
    read: u32,
}

/// What is known of the sample, in pages.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Figures {
    /// With memory behind them.
    pub(crate) present: u64,
    /// Cold at each threshold.
    pub(crate) cold: [u64; THRESHOLDS.len()],
    /// Idle for each time that is shown.
    pub(crate) idle: [u64; SHOWN.len()],
    /// Of huge blocks that are in use.
    pub(crate) huge_in_use: u64,
    /// That came back a second after they had been idle for each threshold; `None` where it was not watched for long enough.
    pub(crate) returned: [Option<f64>; THRESHOLDS.len()],
    /// How long it was watched.
    pub(crate) watched: Duration,
}

impl Block {
    fn new() -> Block {
        Block { used: vec![ABSENT; BLOCK_PAGES as usize], heat: vec![0; BLOCK_PAGES as usize], read: 0 }
    }

    fn is_huge(&self) -> bool {
        self.used.len() == 1
    }

    /// How many pages an entry stands for.
    fn weight(&self) -> u64 {
        if self.is_huge() { u64::from(BLOCK_PAGES) } else { 1 }
    }

    /// Takes the form of what maps the block now. What was split was used as late as the whole was.
    fn become_huge(&mut self, huge: bool) {
        if huge && !self.is_huge() {
            let latest = self.used.iter().copied().filter(|used| *used != ABSENT).max().unwrap_or(ABSENT);
            let heat = self.heat.iter().copied().max().unwrap_or(0);
            (self.used, self.heat) = (vec![latest], vec![heat]);
        } else if !huge && self.is_huge() {
            let all = BLOCK_PAGES as usize;
            (self.used, self.heat) = (vec![self.used[0]; all], vec![self.heat[0]; all]);
        }
    }

    fn is_empty(&self) -> bool {
        self.used.iter().all(|used| *used == ABSENT)
    }
}

fn stamp(time: Time) -> u32 {
    (time.as_nanos() / STAMP.as_nanos() as u64).min(u64::from(ABSENT - 1)) as u32
}

const fn stamps(span: Duration) -> u32 {
    (span.as_millis() / STAMP.as_millis()) as u32
}

/// The idle times in stamps: they are compared with every page's.
const WANTED: [u32; THRESHOLDS.len()] = {
    let mut wanted = [0; THRESHOLDS.len()];
    let mut at = 0;
    while at < wanted.len() {
        wanted[at] = stamps(THRESHOLDS[at]);
        at += 1;
    }
    wanted
};
const SHOWN_STAMPS: [u32; SHOWN.len()] = [stamps(SHOWN[0]), stamps(SHOWN[1]), stamps(SHOWN[2])];

impl Ages {
    /// Takes in consecutive pages of one block. Without a window only the places count: the marks were never cleared.
    pub(crate) fn take_in(&mut self, now: Time, first: Vpn, ptes: &[PteState], window: Option<Duration>) {
        let at = stamp(now);
        self.began.get_or_insert(now);
        self.read = Some(now);
        let number = first.0 / u64::from(BLOCK_PAGES);
        let block = self.blocks.entry(number).or_insert_with(Block::new);
        let whole = ptes.len() == BLOCK_PAGES as usize;
        block.become_huge(whole && ptes.first().is_some_and(|pte| pte.huge()));
        let weight = block.weight();
        let (from, seen) = if block.is_huge() { (0, &ptes[..1]) } else { (first.offset_in_block() as usize, ptes) };
        let decay = window.map(|window| 0.5f64.powf(window.as_secs_f64() / HALF_LIFE.as_secs_f64()));
        // In fixed point, as the policy does it.
        let steps = decay.map(|keep| ((keep * 65536.0) as u32, ((1.0 - keep) * HEAT_ONE) as u32));
        let before = block.read;
        let pages = block.used[from..].iter_mut().zip(&mut block.heat[from..]);
        for (pte, (used, heat)) in seen.iter().zip(pages) {
            if pte.tier().is_none() {
                *used = ABSENT;
                continue;
            }
            if *used == ABSENT {
                // What it was before nobody knows: it is idle from now on at the earliest.
                (*used, *heat) = (at, COLD);
                continue;
            }
            let Some((keep, gain)) = steps else { continue };
            let gained = if pte.accessed() { gain } else { 0 };
            *heat = (((u32::from(*heat) * keep) >> 16) + gained).min(u32::from(u16::MAX)) as u16;
            if pte.accessed() {
                let idle = before.saturating_sub(*used);
                self.touched += 1;
                for (count, wanted) in self.returned.iter_mut().zip(WANTED) {
                    *count += if idle >= wanted { weight } else { 0 };
                }
                *used = at;
            }
        }
        block.read = at;
    }

    /// Forgets blocks that are no longer of the sample, and those with nothing in them.
    pub(crate) fn keep(&mut self, chosen: &BTreeSet<u64>) {
        self.blocks.retain(|number, block| chosen.contains(number) && !block.is_empty());
    }

    /// The blocks with memory behind them.
    pub(crate) fn peopled(&self) -> BTreeSet<u64> {
        self.blocks.iter().filter(|(_, block)| !block.is_empty()).map(|(number, _)| *number).collect()
    }

    /// Times a page was found used after its bit had been cleared.
    pub(crate) fn touched(&self) -> u64 {
        self.touched
    }

    /// What is known now.
    pub(crate) fn figures(&self) -> Figures {
        let mut figures = Figures::default();
        let (Some(began), Some(read)) = (self.began, self.read) else { return figures };
        figures.watched = read.since(began);
        for block in self.blocks.values() {
            let weight = block.weight();
            for (used, heat) in block.used.iter().zip(&block.heat).filter(|(used, _)| **used != ABSENT) {
                figures.present += weight;
                let idle = block.read.saturating_sub(*used);
                for (count, wanted) in figures.cold.iter_mut().zip(WANTED) {
                    *count += if *heat <= COLD && idle >= wanted { weight } else { 0 };
                }
                for (count, wanted) in figures.idle.iter_mut().zip(SHOWN_STAMPS) {
                    *count += if idle >= wanted { weight } else { 0 };
                }
                if block.is_huge() && idle < WANTED[0] {
                    figures.huge_in_use += weight;
                }
            }
        }
        for ((rate, count), wanted) in figures.returned.iter_mut().zip(self.returned).zip(THRESHOLDS) {
            // Before that no page can have come back after so long.
            let exposed = figures.watched.saturating_sub(wanted);
            *rate = (exposed > Duration::ZERO).then(|| count as f64 / exposed.as_secs_f64());
        }
        figures
    }

    /// Cold pages to look into: of up to `blocks` blocks, spread over all, `each` from the middle of equal parts of what is cold there.
    pub(crate) fn cold_pages(&self, blocks: usize, each: usize) -> Vec<Vec<Vpn>> {
        let cold = |block: &Block, at: usize| {
            block.used[at] != ABSENT && block.heat[at] <= COLD && block.read.saturating_sub(block.used[at]) >= WANTED[0]
        };
        let of_block = |(number, block): (&u64, &Block)| {
            let first = number * u64::from(BLOCK_PAGES);
            let pages: Vec<Vpn> = if block.is_huge() {
                if cold(block, 0) { (first..first + u64::from(BLOCK_PAGES)).map(Vpn).collect() } else { Vec::new() }
            } else {
                (0..block.used.len()).filter(|at| cold(block, *at)).map(|at| Vpn(first + at as u64)).collect()
            };
            let take = each.min(pages.len());
            let chosen: Vec<Vpn> = (0..take).map(|at| pages[(2 * at + 1) * pages.len() / (2 * take)]).collect();
            (!chosen.is_empty()).then_some(chosen)
        };
        let all: Vec<(&u64, &Block)> =
            self.blocks.iter().filter(|(_, block)| (0..block.used.len()).any(|at| cold(block, at))).collect();
        let take = blocks.min(all.len());
        (0..take).filter_map(|at| of_block(all[(2 * at + 1) * all.len() / (2 * take)])).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_core::units::TierId;

    fn seconds(seconds: u64) -> Time {
        Time::from_nanos(seconds * 1_000_000_000)
    }

    fn pte(accessed: bool) -> PteState {
        PteState::placed(TierId::FAST).with_accessed(accessed)
    }

    /// A round every four seconds up to `until`, in which page 0 is always used, page 1 at the times named, and the rest never.
    fn watched(until: u64, uses: &[u64]) -> Ages {
        let mut ages = Ages::default();
        for now in (0..=until).step_by(4) {
            let mut ptes = vec![pte(false); 512];
            ptes[0] = pte(true);
            ptes[1] = pte(uses.contains(&now));
            ages.take_in(seconds(now), Vpn(1024), &ptes, (now > 0).then(|| Duration::from_secs(4)));
        }
        ages
    }

    #[test]
    fn a_page_is_idle_for_as_long_as_it_was_watched_and_no_longer() {
        let figures = watched(64, &[]).figures();
        assert_eq!((figures.present, figures.watched), (512, Duration::from_secs(64)));
        assert_eq!(figures.cold, [511, 511, 511, 0, 0]);
        assert_eq!(figures.idle, [511, 0, 0]);
        assert_eq!(watched(8, &[]).figures().cold, [0; 5]);
        assert_eq!(figures.returned[4], None, "nobody watched for so long");
    }

    #[test]
    fn what_was_idle_and_is_used_came_back() {
        let figures = watched(124, &[40, 44, 120]).figures();
        // Used at 40 after 36 s of silence, and at 120 after 72 s (it was last read idle four seconds before).
        let counts: Vec<Option<f64>> = figures.returned.to_vec();
        let pages = |at: usize, seconds: f64| counts[at].unwrap() * seconds;
        assert!((pages(0, 112.0) - 2.0).abs() < 1e-9, "{counts:?}");
        assert!((pages(2, 76.0) - 1.0).abs() < 1e-9, "{counts:?}");
        assert!((pages(3, 28.0)).abs() < 1e-9, "{counts:?}");
        assert_eq!(figures.cold[0], 510);
    }

    #[test]
    fn a_huge_block_with_one_page_in_use_is_in_use() {
        let mut ages = Ages::default();
        for now in 0..20 {
            let used = pte(true).with_huge(true);
            ages.take_in(seconds(now * 4), Vpn(512), &[used; 512], (now > 0).then(|| Duration::from_secs(4)));
            let idle = pte(false).with_huge(true);
            ages.take_in(seconds(now * 4), Vpn(1024), &[idle; 512], (now > 0).then(|| Duration::from_secs(4)));
        }
        let figures = ages.figures();
        assert_eq!((figures.present, figures.cold[0], figures.huge_in_use), (1024, 512, 512));
        assert_eq!(ages.cold_pages(8, 4), [vec![Vpn(1088), Vpn(1216), Vpn(1344), Vpn(1472)]]);
        // Split: each page is known by what the whole was, and goes its own way from there.
        ages.take_in(seconds(80), Vpn(512), &[pte(false); 512], Some(Duration::from_secs(4)));
        assert_eq!(ages.figures().huge_in_use, 0);
        assert_eq!(ages.figures().present, 1024);
    }

    #[test]
    fn memory_that_is_given_back_and_taken_again_is_new() {
        let mut ages = watched(40, &[]);
        ages.take_in(seconds(44), Vpn(1024), &[PteState::ABSENT; 512], Some(Duration::from_secs(4)));
        assert_eq!(ages.figures().present, 0);
        assert!(ages.peopled().is_empty());
        ages.take_in(seconds(48), Vpn(1024), &[pte(true); 512], Some(Duration::from_secs(4)));
        let figures = ages.figures();
        assert_eq!((figures.present, figures.cold[0]), (512, 0));
        ages.keep(&BTreeSet::new());
        assert_eq!(ages.figures().present, 0);
    }

    #[test]
    fn pages_to_look_into_are_cold_and_spread() {
        let mut ages = Ages::default();
        for block in 0..10_u64 {
            for now in 0..6 {
                let ptes = vec![pte(block % 2 == 0); 512];
                ages.take_in(seconds(now * 4), Vpn(block * 512), &ptes, (now > 0).then(|| Duration::from_secs(4)));
            }
        }
        let chosen = ages.cold_pages(2, 2);
        assert_eq!(
            chosen,
            [vec![Vpn(3 * 512 + 128), Vpn(3 * 512 + 384)], vec![Vpn(7 * 512 + 128), Vpn(7 * 512 + 384)]]
        );
        assert_eq!(ages.cold_pages(64, 4).len(), 5);
    }
}
