//! What watches a run for the sake of scoring: true counts, when what was last used, and every tracker side by side.
//!
//! In: each access, time. Out: scores, window by window. Must not: change anything of the run.
//!
//! A window is the time between two walks of the policy. Truth ages as the trackers' knowledge does: it halves at each window. An
//! estimate is compared with the truth of the same moment; a tracker's choice of pages for fast memory is judged by the window
//! that follows, as that is what a promotion is for. The first window is warm-up.

use terrace_core::units::{BLOCK_PAGES, BLOCK_SHIFT, Time};
use terrace_machine::memory::{Memory, PageWord};
use terrace_machine::preset::Management;

use super::score::{common, hottest, hottest_of, rank_correlation};
use super::trackers::{Access, Tracker};
use super::uses::Uses;

/// Sums over windows of one tracker's scores.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scores {
    pub(crate) correlation: f64,
    pub(crate) overlap: f64,
    pub(crate) windows: u32,
    pub(crate) right: u64,
    pub(crate) picked: u64,
    pub(crate) wanted: u64,
    pub(crate) fairness: f64,
    /// Of each process, where there are several.
    pub(crate) served: Vec<f64>,
    pub(crate) judged: u32,
    /// Pages chosen at the end of the last window.
    picks: Vec<u32>,
}

/// Heat over time, for the picture.
#[derive(Clone, Debug, Default)]
pub struct HeatPicture {
    /// Full-size seconds of a column.
    pub window_seconds: f64,
    /// Pages a row of `memory` covers.
    pub pages_per_row: u32,
    /// A column for each window, or for some of them: the most heat of all memory, in at most 256 rows. Of two processes, the first's.
    pub memory: Vec<Vec<f32>>,
    /// First page of the 2 MiB whose pieces `pieces` shows: the hottest at the end of the first window.
    pub block: Option<u32>,
    /// Columns as of `memory`: heat of its 512 pieces.
    pub pieces: Vec<Vec<f32>>,
}

impl HeatPicture {
    /// Neighbouring columns become one, which covers both.
    fn fold(&mut self) {
        for columns in [&mut self.memory, &mut self.pieces] {
            let halves = columns.chunks(2).map(|pair| pair.iter().fold(Vec::new(), |one, other| hotter(one, other)));
            *columns = halves.collect();
        }
        self.window_seconds *= 2.0;
    }
}

/// The hotter of each two cells; one column may have more cells than the other.
fn hotter(mut column: Vec<f32>, other: &[f32]) -> Vec<f32> {
    column.resize(column.len().max(other.len()), 0.0);
    column.iter_mut().zip(other).for_each(|(cell, other)| *cell = cell.max(*other));
    column
}

/// Rows of the picture of all memory.
const ROWS: usize = 256;
/// Most columns of the picture. An even number.
const COLUMNS: usize = 512;

/// See the module's header.
pub(crate) struct Probe {
    pub(crate) trackers: Vec<(Tracker, Scores)>,
    uses: Uses,
    tick: u32,
    window_tick: u32,
    counts: Vec<u32>,
    truth: Vec<f32>,
    fast_share: f64,
    window_ns: u64,
    check_ns: u64,
    next_window: Time,
    next_check: Time,
    pub(crate) windows: u32,
    /// First page of each process, where there are several.
    starts: Vec<u32>,
    management: Management,
    pub(crate) picture: HeatPicture,
    /// Pages the picture covers.
    shown: usize,
    /// Windows that a column of the picture covers, and those that the last one has.
    column_windows: [u32; 2],
}

impl Probe {
    /// Windows and checks are given in full-size nanoseconds.
    pub(crate) fn new(
        trackers: Vec<Tracker>,
        fast_share: f64,
        window_ns: u64,
        starts: Vec<u32>,
        management: Management,
    ) -> Probe {
        Probe {
            trackers: trackers.into_iter().map(|tracker| (tracker, Scores::default())).collect(),
            uses: Uses::default(),
            tick: 1,
            window_tick: 1,
            counts: Vec::new(),
            truth: Vec::new(),
            fast_share,
            window_ns,
            check_ns: window_ns / 20,
            next_window: Time::from_nanos(window_ns),
            next_check: Time::ZERO,
            windows: 0,
            starts,
            management,
            picture: HeatPicture { window_seconds: window_ns as f64 / 1e9, pages_per_row: 1, ..HeatPicture::default() },
            shown: 0,
            column_windows: [1, 1],
        }
    }

    #[inline]
    pub(crate) fn see(&mut self, access: Access) {
        self.uses.see(access.page, self.tick, access.huge);
        if self.counts.len() < self.uses.pages() as usize {
            self.counts.resize(self.uses.pages() as usize, 0);
        }
        self.counts[access.page as usize] += 1;
        for (tracker, _) in &mut self.trackers {
            tracker.see(&access);
        }
    }

    /// Time has passed: checks and windows that are due.
    pub(crate) fn pass(&mut self, now: Time, memory: &Memory) {
        while self.next_check <= now {
            self.tick += 1;
            for (tracker, _) in &mut self.trackers {
                tracker.check(&self.uses, self.tick);
            }
            self.next_check = Time::from_nanos(self.next_check.as_nanos() + self.check_ns);
        }
        if self.next_window <= now {
            self.end_window(memory);
            self.next_window = Time::from_nanos(now.as_nanos() + self.window_ns);
        }
    }

    fn end_window(&mut self, memory: &Memory) {
        let pages = self.uses.pages() as usize;
        if pages == 0 {
            return;
        }
        self.truth.resize(pages, 0.0);
        for (truth, count) in self.truth.iter_mut().zip(&self.counts) {
            *truth = *truth / 2.0 + *count as f32;
        }
        let resident: Vec<u32> =
            (0..pages.min(memory.len()) as u32).filter(|page| !memory.word(*page).has(PageWord::ABSENT)).collect();
        let fast = ((resident.len() as f64 * self.fast_share) as usize).max(1);
        let now: Vec<f32> = self.counts.iter().map(|count| *count as f32).collect();
        // What was really hottest in this window, which the choices made before it are judged by.
        let wanted = hottest(&now, fast);
        let hottest_truth = hottest(&self.truth, fast);
        let truth: Vec<f32> = resident.iter().map(|page| self.truth[*page as usize]).collect();
        let mut estimate = Vec::new();
        let mut of_resident = Vec::with_capacity(resident.len());
        for (tracker, scores) in &mut self.trackers {
            if self.windows > 0 {
                scores.right += common(&scores.picks, &wanted) as u64;
                scores.picked += scores.picks.len() as u64;
                scores.wanted += wanted.len() as u64;
                if self.starts.len() > 1 {
                    let served = served(&scores.picks, &now, &resident, &self.starts, fast);
                    scores.fairness += fairness(&served);
                    scores.served.resize(served.len(), 0.0);
                    scores.served.iter_mut().zip(served).for_each(|(sum, got)| *sum += got);
                }
                scores.judged += 1;
            }
            tracker.end_window(&self.uses, self.window_tick, fast, &self.management, &mut estimate);
            of_resident.clear();
            of_resident.extend(resident.iter().map(|page| estimate[*page as usize]));
            if self.windows > 0 {
                scores.correlation += rank_correlation(&of_resident, &truth);
                scores.overlap += common(&hottest(&estimate, fast), &hottest_truth) as f64 / fast as f64;
                scores.windows += 1;
            }
            scores.picks = match self.starts.len() > 1 && tracker.is_per_process() {
                true => picks_with_floors(&estimate, &resident, &self.starts, fast),
                false => hottest(&estimate, fast),
            };
        }
        self.paint();
        self.counts.fill(0);
        self.windows += 1;
        self.tick += 1;
        self.window_tick = self.tick;
    }

    fn paint(&mut self) {
        // The second process lies GiB behind the first: the picture is of the first, as far as it has been used.
        let end = match self.starts.get(1) {
            None => self.truth.len(),
            Some(boundary) => {
                let first = &self.truth[..self.truth.len().min(*boundary as usize)];
                let used = first.iter().rposition(|heat| *heat > 0.0).map_or(0, |last| last + 1);
                used.next_multiple_of(BLOCK_PAGES as usize).min(first.len())
            }
        };
        self.shown = self.shown.max(end);
        let picture = &mut self.picture;
        let truth = &self.truth[..self.shown];
        let [covers, held] = &mut self.column_windows;
        if held == covers && picture.memory.len() == COLUMNS {
            picture.fold();
            *covers *= 2;
            *held = *covers;
        }
        let begins = held == covers || picture.memory.is_empty();
        *held = if begins { 1 } else { *held + 1 };
        while truth.len() > ROWS * picture.pages_per_row as usize {
            picture.pages_per_row *= 2;
            for column in &mut picture.memory {
                *column = column.chunks(2).map(|pair| pair.iter().sum()).collect();
            }
        }
        let rows: Vec<f32> = truth.chunks(picture.pages_per_row as usize).map(|pages| pages.iter().sum()).collect();
        let add = |columns: &mut Vec<Vec<f32>>, column: Vec<f32>| match columns.pop() {
            Some(last) if !begins => columns.push(hotter(last, &column)),
            last => columns.extend(last.into_iter().chain([column])),
        };
        add(&mut picture.memory, rows);
        if self.windows >= 1 && picture.block.is_none() {
            let sum = |block: usize| truth[block << BLOCK_SHIFT..(block + 1) << BLOCK_SHIFT].iter().sum::<f32>();
            let blocks = truth.len() >> BLOCK_SHIFT;
            picture.block =
                (0..blocks).max_by(|a, b| sum(*a).total_cmp(&sum(*b))).map(|block| (block << BLOCK_SHIFT) as u32);
        }
        if let Some(first) = picture.block {
            // Nothing is shown of the time before it was chosen.
            let before = picture.memory.len() - usize::from(begins);
            if picture.pieces.is_empty() {
                picture.pieces.resize(before, vec![0.0; BLOCK_PAGES as usize]);
            }
            add(&mut picture.pieces, truth[first as usize..(first + BLOCK_PAGES) as usize].to_vec());
        }
    }
}

/// What of the resident pages, which ascend, is of each process.
fn parts<'a>(resident: &'a [u32], starts: &[u32]) -> Vec<&'a [u32]> {
    let from = |index: usize| match starts.get(index) {
        Some(start) => resident.partition_point(|page| page < start),
        None => resident.len(),
    };
    (0..starts.len()).map(|index| &resident[from(index)..from(index + 1)]).collect()
}

/// Half of fast memory is dealt out by footprint, so that each process has its floor; the rest goes to the hottest.
fn picks_with_floors(estimate: &[f32], resident: &[u32], starts: &[u32], fast: usize) -> Vec<u32> {
    let mut left = estimate.to_vec();
    let mut picks = Vec::with_capacity(fast);
    for own in parts(resident, starts) {
        let part = fast as f64 / 2.0 * own.len() as f64 / resident.len().max(1) as f64;
        for page in hottest_of(estimate, own, part as usize) {
            left[page as usize] = 0.0;
            picks.push(page);
        }
    }
    picks.extend(hottest(&left, fast - picks.len().min(fast)));
    picks.sort_unstable();
    picks
}

/// What each process gets of what is due to it, 0 to 1: the uses that fall on the pages chosen, over the most that a part of fast
/// memory by footprint could serve.
fn served(picks: &[u32], counts: &[f32], resident: &[u32], starts: &[u32], fast: usize) -> Vec<f64> {
    let of_process = |own: &[u32]| {
        let part = fast as f64 * own.len() as f64 / resident.len().max(1) as f64;
        let used = |page: &u32| counts.get(*page as usize).copied().unwrap_or(0.0);
        let best: f32 = hottest_of(counts, own, part as usize).iter().map(used).sum();
        let have: f32 = picks.iter().filter(|page| own.binary_search(page).is_ok()).map(used).sum();
        if best > 0.0 { f64::from(have / best).min(1.0) } else { 1.0 }
    };
    parts(resident, starts).into_iter().map(of_process).collect()
}

/// The least over the most of what processes get.
fn fairness(served: &[f64]) -> f64 {
    let (least, most) =
        served.iter().fold((f64::INFINITY, 0.0_f64), |(least, most), got| (least.min(*got), most.max(*got)));
    if most > 0.0 { least / most } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_picture_of_a_long_run_covers_all_of_it() {
        let management = terrace_machine::preset::Machine::preset("cxl-pond").unwrap().management;
        let mut probe = Probe::new(Vec::new(), 0.5, 1_000_000_000, Vec::new(), management);
        probe.truth = vec![0.0; 1024];
        for window in 0..1300 {
            probe.truth.fill(1.0);
            // Page 700 is hot in one window only, and its block the hottest from the first on.
            probe.truth[700] = if window == 1100 { 5000.0 } else { 2.0 };
            probe.windows = window;
            probe.paint();
        }
        let picture = &probe.picture;
        assert_eq!((picture.memory.len(), picture.window_seconds), (1300usize.div_ceil(4), 4.0));
        assert_eq!((picture.block, picture.pieces.len()), (Some(512), picture.memory.len()));
        let hot: Vec<usize> = (0..picture.pieces.len()).filter(|at| picture.pieces[*at][700 - 512] > 100.0).collect();
        assert_eq!(hot, [1100 / 4], "where it was hot, and nowhere else");
    }

    #[test]
    fn the_picture_of_two_processes_is_of_the_first_and_not_of_what_lies_between_them() {
        let management = terrace_machine::preset::Machine::preset("cxl-pond").unwrap().management;
        let boundary = 1u32 << 20;
        let mut probe = Probe::new(Vec::new(), 0.5, 1_000_000_000, vec![0, boundary], management);
        probe.truth = vec![0.0; boundary as usize + 512];
        (probe.truth[600], probe.truth[boundary as usize + 7]) = (9.0, 1000.0);
        for window in 0..3 {
            probe.windows = window;
            probe.paint();
        }
        let picture = &probe.picture;
        assert_eq!(picture.memory[2].len() * picture.pages_per_row as usize, 1024);
        assert_eq!(picture.memory[2].iter().sum::<f32>(), 9.0);
        assert_eq!(picture.block, Some(512));
    }

    #[test]
    fn floors_keep_a_quiet_process_in_fast_memory_and_fairness_says_so() {
        // Pages 0 to 99 are busy, 100 to 199 quiet; both use a tenth of theirs most.
        let counts: Vec<f32> = (0..200u32)
            .map(|page| match (page < 100, page % 10 == 0) {
                (true, true) => 1000.0,
                (true, false) => 100.0,
                (false, true) => 50.0,
                (false, false) => 1.0,
            })
            .collect();
        let resident: Vec<u32> = (0..200).collect();
        let global = hottest(&counts, 40);
        assert!(global.iter().all(|page| *page < 100), "the busy process takes all");
        assert_eq!(fairness(&served(&global, &counts, &resident, &[0, 100], 40)), 0.0);
        let with_floors = picks_with_floors(&counts, &resident, &[0, 100], 40);
        assert_eq!(with_floors.len(), 40);
        assert_eq!(with_floors.iter().filter(|page| **page >= 100).count(), 10, "half of its part");
        assert!(fairness(&served(&with_floors, &counts, &resident, &[0, 100], 40)) > 0.9);
        // Of three the worst served counts.
        let three = picks_with_floors(&counts, &resident, &[0, 100, 150], 40);
        assert_eq!(three.iter().filter(|page| **page >= 150).count(), 5, "half of its part");
        let without = hottest(&counts[..150], 40);
        assert_eq!(fairness(&served(&without, &counts, &resident, &[0, 100, 150], 40)), 0.0);
    }
}
