//! The future of a run, for the clairvoyant bound: recorded in a first pass, used in a second.
//!
//! In: the pages that accesses reach in memory, in order, and how far the second pass has come. Out: an [`Oracle`]. Must
//! not: be seen by any policy that does not ask for it.
//!
//! A run's accesses do not depend on where its pages lie, but their times do. So the future is kept by number of
//! accesses, and a question about times is answered at the pace of the second pass so far.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use terrace_core::pages::Pages;
use terrace_core::policy::Oracle;
use terrace_core::units::{BLOCK_PAGES, BLOCK_SHIFT, PageId, SpaceId, Time, Vpn};

/// Most entries kept, 8 bytes each; beyond, neighbouring stretches are joined and the future gets coarser.
const MOST_ENTRIES: usize = 1 << 25;
/// Accesses of one stretch of the recording, at first: fine enough for the seconds of a machine thousands of times smaller.
const FIRST_LENGTH: u64 = 1 << 12;

/// What will be used when.
#[derive(Debug)]
pub(crate) struct Future {
    base: u64,
    /// How many processes there are, each a space.
    spaces: u32,
    /// Accesses a stretch covers.
    length: u64,
    /// Pages with their counts, by stretch, in the order of pages.
    stretches: Vec<Vec<(u32, u32)>>,
    entries: usize,
    pending: Vec<u32>,
    pending_accesses: u64,
}

impl Future {
    pub(crate) fn new() -> Future {
        Future {
            base: 0,
            spaces: 1,
            length: FIRST_LENGTH,
            stretches: Vec::new(),
            entries: 0,
            pending: Vec::new(),
            pending_accesses: 0,
        }
    }

    /// The same for this many processes; none means one.
    pub(crate) fn of_spaces(self, spaces: usize) -> Future {
        Future { spaces: spaces.max(1) as u32, ..self }
    }

    /// Enters what reached memory among the next `accesses`.
    pub(crate) fn add(&mut self, base: u64, accesses: u64, missed: &mut Vec<u32>) {
        self.base = base;
        self.pending.append(missed);
        self.pending_accesses += accesses;
        while self.pending_accesses >= self.length {
            self.close();
        }
    }

    /// Ends the stretch being recorded. Stretches may overrun their length by one batch; the overrun counts to the next.
    pub(crate) fn close(&mut self) {
        self.pending.sort_unstable();
        let mut counted: Vec<(u32, u32)> = Vec::new();
        for &page in &self.pending {
            match counted.last_mut() {
                Some(last) if last.0 == page => last.1 += 1,
                _ => counted.push((page, 1)),
            }
        }
        self.pending.clear();
        self.pending_accesses = self.pending_accesses.saturating_sub(self.length);
        self.entries += counted.len();
        self.stretches.push(counted);
        if self.entries > MOST_ENTRIES {
            let old = std::mem::take(&mut self.stretches);
            self.stretches = old.chunks(2).map(join).collect();
            self.entries = self.stretches.iter().map(Vec::len).sum();
            self.length *= 2;
        }
    }
}

fn join(pair: &[Vec<(u32, u32)>]) -> Vec<(u32, u32)> {
    let mut all: Vec<(u32, u32)> = pair.concat();
    all.sort_unstable_by_key(|entry| entry.0);
    all.dedup_by(|later, earlier| {
        let same = later.0 == earlier.0;
        if same {
            earlier.1 = earlier.1.saturating_add(later.1);
        }
        same
    });
    all
}

/// How far the second pass has come.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    accesses: AtomicU64,
    now: AtomicU64,
    /// Full-size nanoseconds an access takes, as the bits of a float.
    pace: AtomicU64,
}

impl Progress {
    /// Tells time and accesses so far. The pace follows the latest stretches with a weight of an eighth.
    pub(crate) fn tell(&self, accesses: u64, now: Time) {
        let (count, span) = (accesses - self.accesses.load(Relaxed), now.as_nanos() - self.now.load(Relaxed));
        if count > 0 {
            let old = f64::from_bits(self.pace.load(Relaxed));
            let latest = span as f64 / count as f64;
            let pace = if old > 0.0 { old + (latest - old) / 8.0 } else { latest };
            self.pace.store(pace.to_bits(), Relaxed);
        }
        self.accesses.store(accesses, Relaxed);
        self.now.store(now.as_nanos(), Relaxed);
    }
}

/// Answers from the recorded future.
#[derive(Debug)]
pub(crate) struct Seer {
    future: Future,
    progress: Arc<Progress>,
    counts: Vec<u32>,
}

impl Seer {
    pub(crate) fn new(mut future: Future, progress: Arc<Progress>) -> Seer {
        future.close();
        Seer { future, progress, counts: Vec::new() }
    }

    /// The number of the access that happens at a time.
    fn access_at(&self, time: Time) -> u64 {
        let pace = f64::from_bits(self.progress.pace.load(Relaxed));
        let (accesses, now) = (self.progress.accesses.load(Relaxed), self.progress.now.load(Relaxed));
        if pace <= 0.0 {
            return accesses;
        }
        let ahead = time.as_nanos().saturating_sub(now) as f64 / pace;
        accesses.saturating_add(ahead as u64)
    }
}

impl Oracle for Seer {
    fn future(&mut self, from: Time, until: Time, pages: &Pages, found: &mut Vec<(PageId, u32)>) {
        let stretches = self.future.stretches.len();
        let first = ((self.access_at(from) / self.future.length) as usize).min(stretches);
        let last = (self.access_at(until).div_ceil(self.future.length) as usize).clamp(first, stretches);
        let mut touched = Vec::new();
        for &(page, count) in self.future.stretches[first..last].iter().flatten() {
            if self.counts.len() <= page as usize {
                self.counts.resize(page as usize + 1, 0);
            }
            let entry = &mut self.counts[page as usize];
            if *entry == 0 {
                touched.push(page);
            }
            *entry = entry.saturating_add(count);
        }
        touched.sort_unstable();
        let mut block = None;
        for page in touched {
            let count = std::mem::take(&mut self.counts[page as usize]);
            let number = page >> BLOCK_SHIFT;
            if block.is_none_or(|(known, _)| known != number) {
                let vpn = Vpn(self.future.base + u64::from(page));
                // No two processes share an address: each one's lie behind those of the one before.
                let found = (0..self.future.spaces).find_map(|space| pages.find_block(SpaceId(space), vpn));
                block = Some((number, found));
            }
            if let Some((_, Some(id))) = block {
                found.push((id.first_page().plus(page & (BLOCK_PAGES - 1)), count));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_future_is_told_at_the_pace_of_the_run() {
        let mut future = Future::new();
        // A stretch of accesses to page 3, one to page 5, and so on.
        for page in [3u32, 5, 7, 9] {
            let mut missed = vec![page; FIRST_LENGTH as usize];
            future.add(0, FIRST_LENGTH, &mut missed);
        }
        let progress = Arc::new(Progress::default());
        progress.tell(FIRST_LENGTH, Time::from_nanos(FIRST_LENGTH * 10));
        let mut pages = Pages::new();
        pages.map(SpaceId(0), Vpn(0)..Vpn(16));
        let mut seer = Seer::new(future, progress);
        let mut ask = |from: u64, until: u64| {
            let mut found = Vec::new();
            let at = |stretch: u64| Time::from_nanos(stretch * FIRST_LENGTH * 10);
            seer.future(at(from), at(until), &pages, &mut found);
            found
        };
        let count = FIRST_LENGTH as u32;
        assert_eq!(ask(1, 2), [(PageId(5), count)]);
        assert_eq!(ask(1, 4), [(PageId(5), count), (PageId(7), count), (PageId(9), count)]);
        assert!(ask(10, 20).is_empty(), "the run is over by then");
    }

    #[test]
    fn joined_stretches_lose_no_access() {
        let joined = join(&[vec![(1, 2), (4, 1)], vec![(0, 5), (1, 3)]]);
        assert_eq!(joined, [(0, 5), (1, 5), (4, 1)]);
    }
}
