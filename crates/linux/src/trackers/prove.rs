//! Proves a tracker before it is trusted: it is tried on a private mapping of this process with a pattern known to us.
//!
//! In: a tracker. Out: a [`Proof`] with what it saw, missed and made up, and what a page cost; or, in one line, why it is
//! refused. Must not: touch any other process, or pass a tracker whose result could be a guess.
//!
//! A random quarter of the pages is read and another quarter is written; half is left alone. A tracker that reads marks
//! must show the first two and not the last, after a round that cleared. One that sees first touches is tried on a fresh
//! mapping instead. Of one that samples only what it reports is held against the pattern, since it cannot see all. One of hint
//! faults is tried on memory that was moved to a slow node, and given the time that the kernel's scanner takes.

use std::io;
use std::time::{Duration, Instant};

use terrace_core::observation::PteState;
use terrace_core::random::SplitMix64;
use terrace_core::units::{PAGE_BYTES, SpaceId, Time, Vpn};

use super::{Event, Grade, ProofKind, Round, Sink, Target, TrackError, Tracker};
use crate::process::{Backing, MemoryRange, Process, ProcessError};
use crate::sys::{self, private_memory::PrivateMemory};
use crate::topology::TierMap;

/// Pages of the mapping: 4 MiB, so that the proof does not become the largest thing Terrace ever holds.
const PAGES: usize = 1024;
/// Pages of another mapping that is read through between clearing and touching, so that no translation of ours stays cached in
/// the TLB: an access that hits there sets no accessed bit. More than any processor's second-level TLB holds. It is never
/// written, so that every page of it is the kernel's one zero page and takes no memory.
const EVICTING_PAGES: usize = 8192;
/// Rounds whose cost is taken; the cheapest counts, as anything else on the machine only adds to it.
const TIMED_ROUNDS: usize = 5;
/// Least share of the touched pages that must be seen, and of the seen pages that must have been touched.
const LEAST: f64 = 0.9;
/// Least samples for a verdict on a tracker that samples.
const LEAST_SAMPLES: usize = 20;
/// How long the kernel's scanner is waited for: it begins after a second of the process's life, comes once in a second of its
/// CPU time, and leaves a new mapping alone for another (kernel defaults of scan_delay and scan_period_min). A busy machine
/// may make three times that of it.
const MARKING: Duration = Duration::from_secs(10);
/// How long a tracker that samples is tried.
const SAMPLING: Duration = Duration::from_secs(1);
/// How long at most: a slow or emulated machine samples little in a second.
const LONGEST_SAMPLING: Duration = Duration::from_secs(5);

/// A tracker's showing.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Proof {
    /// Its grade, with the cost that was measured.
    pub grade: Grade,
    /// Share of the pages that were read that it saw; `None` if it does not claim to see reads, or samples.
    pub read_recall: Option<f64>,
    /// Share of the pages that were written that it saw; `None` if it does not claim to see writes, or samples.
    pub write_recall: Option<f64>,
    /// Share of the pages it reported that were touched in a way it claims to see.
    pub precision: f64,
    /// Pages it reported.
    pub reported: usize,
}

/// What was done to a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Touch {
    Read,
    Written,
    Left,
}

/// What a tracker reported of the mapping.
struct Heard {
    first: Vpn,
    accessed: Vec<bool>,
    placed: usize,
    windows: usize,
    samples: usize,
}

impl Heard {
    fn new(first: Vpn) -> Heard {
        Heard { first, accessed: vec![false; PAGES], placed: 0, windows: 0, samples: 0 }
    }

    fn mark(&mut self, vpn: Vpn) {
        if let Some(page) = vpn.0.checked_sub(self.first.0).and_then(|page| self.accessed.get_mut(page as usize)) {
            *page = true;
        }
    }
}

impl Sink for Heard {
    fn scan(&mut self, _: SpaceId, first: Vpn, ptes: &[PteState], window: Option<Duration>, _: bool) {
        self.placed += ptes.iter().filter(|pte| pte.tier().is_some()).count();
        // Without a window the marks say nothing.
        let Some(_) = window else { return };
        self.windows += ptes.len();
        for (page, pte) in ptes.iter().enumerate() {
            if pte.accessed() {
                self.mark(Vpn(first.0 + page as u64));
            }
        }
    }

    fn event(&mut self, _: SpaceId, vpn: Vpn, event: Event) {
        self.samples += usize::from(matches!(event, Event::Sampled { .. }));
        self.mark(vpn);
    }
}

/// Why a tracker is refused.
#[derive(Debug, thiserror::Error)]
pub enum ProofError {
    /// The trial has no process.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// The tracker failed in it.
    #[error(transparent)]
    Tracker(#[from] TrackError),
    /// The trial has no memory.
    #[error("no memory for the trial: {0}")]
    Memory(io::Error),
    /// It read nothing.
    #[error("it read no marks in a full round")]
    NoMarks,
    /// It missed where pages lie.
    #[error("it found memory behind {0} of {PAGES} pages that all have some")]
    Missed(usize),
    /// It reported what had not happened.
    #[error("it reported first touches of pages that nobody had touched")]
    Invented,
    /// The trial's memory cannot be put on the slow node.
    #[error("no memory of ours could be moved to node {node}: {source}")]
    NoMove {
        /// The node.
        node: u32,
        /// What the kernel said.
        source: io::Error,
    },
    /// Too little of the trial's memory could be put there.
    #[error("{there} of {PAGES} pages could be moved to node {node}")]
    FewMoved {
        /// Pages on the node.
        there: usize,
        /// The node.
        node: u32,
    },
    /// Its sampler says hardly anything.
    #[error("only {0} samples came in five seconds of reading and writing 8 MiB")]
    FewSamples(usize),
    /// It does not see enough.
    #[error("it saw {seen} of the pages that were {done}, and at least {least} are wanted", seen = percent(*recall), least = percent(LEAST))]
    Blind {
        /// The share that it saw.
        recall: f64,
        /// Read or written.
        done: &'static str,
    },
    /// Too much of what it reports is not so.
    #[error(
        "of the {reported} pages it reported {right} were touched, where {chance} would be by chance and at least {least} are wanted",
        right = percent(*precision), chance = percent(*chance), least = percent(LEAST)
    )]
    Wrong {
        /// Pages that it reported.
        reported: usize,
        /// The share of them that was touched.
        precision: f64,
        /// The share that a guess would hit.
        chance: f64,
    },
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// Tries a tracker.
///
/// # Errors
/// Why it is refused, in one line.
pub fn prove(tracker: &mut dyn Tracker, tiers: &TierMap) -> Result<Proof, ProofError> {
    let process = Process::open(std::process::id())?;
    let mut memory = PrivateMemory::map(PAGES).map_err(ProofError::Memory)?;
    let first = Vpn::of_address(memory.address());
    let range = MemoryRange { start: first, end: Vpn(first.0 + PAGES as u64), backing: Backing::Anonymous };
    let ranges = [range];
    // A number that no space of a driver has, so that forgetting it forgets nothing else.
    let space = SpaceId(u32::MAX);
    let trial = Trial {
        target: Target { space, process: &process, ranges: &ranges },
        tiers,
        start: Instant::now(),
        pattern: pattern(),
    };
    tracker.admit(range)?;
    let kind = tracker.proof_kind();
    let result = match kind {
        ProofKind::Marks { dwell } => trial.marks(tracker, &mut memory, dwell),
        ProofKind::FirstTouches => trial.first_touches(tracker, &mut memory),
        ProofKind::Samples => trial.samples(tracker, &mut memory),
        ProofKind::HintFaults { slow_node } => trial.hint_faults(tracker, &mut memory, slow_node),
    };
    tracker.forget(space);
    let (heard, cost_ns_per_page) = result?;
    judge(&trial.pattern, &heard, Grade { cost_ns_per_page, ..tracker.grade() }, kind)
}

struct Trial<'a> {
    target: Target<'a>,
    tiers: &'a TierMap,
    start: Instant,
    pattern: Vec<Touch>,
}

type Showing = Result<(Heard, Option<f64>), ProofError>;

impl Trial<'_> {
    fn now(&self) -> Time {
        // Begins at a second, as a tracker may take time 0 for "never".
        Time::from_nanos(1_000_000_000) + self.start.elapsed()
    }

    fn round(&self, tracker: &mut dyn Tracker) -> Result<Heard, TrackError> {
        let mut heard = Heard::new(self.target.ranges[0].start);
        tracker.scan(&Round::of_all(self.now(), std::slice::from_ref(&self.target), self.tiers), &mut heard)?;
        Ok(heard)
    }

    fn touch(&self, memory: &mut PrivateMemory, order: &[u32]) {
        self.touch_line(memory, order, 0);
    }

    fn touch_line(&self, memory: &mut PrivateMemory, order: &[u32], line: usize) {
        for &page in order {
            match self.pattern[page as usize] {
                Touch::Read => _ = memory.read_line(page as usize, line),
                Touch::Written => memory.write_line(page as usize, line, u64::from(page) | 1 << 32),
                Touch::Left => {}
            }
        }
    }

    fn marks(&self, tracker: &mut dyn Tracker, memory: &mut PrivateMemory, dwell: Duration) -> Showing {
        (0..PAGES).for_each(|page| memory.write(page, page as u64));
        let evicting = PrivateMemory::map(EVICTING_PAGES).map_err(ProofError::Memory)?;
        (0..EVICTING_PAGES).for_each(|page| _ = evicting.read(page));
        // The second of the two clears what the set-up touched, whatever the first one had to set up itself.
        self.round(tracker)?;
        self.round(tracker)?;
        (0..EVICTING_PAGES).for_each(|page| _ = evicting.read(page));
        let order = shuffled();
        let begun = Instant::now();
        loop {
            self.touch(memory, &order);
            if begun.elapsed() >= dwell {
                break;
            }
        }
        let heard = self.round(tracker)?;
        let mut cheapest = f64::INFINITY;
        for _ in 0..TIMED_ROUNDS {
            self.touch(memory, &order);
            let begun = Instant::now();
            self.round(tracker)?;
            cheapest = cheapest.min(begun.elapsed().as_nanos() as f64 / PAGES as f64);
        }
        if heard.windows == 0 {
            return Err(ProofError::NoMarks);
        }
        if heard.placed < PAGES * 9 / 10 {
            return Err(ProofError::Missed(heard.placed));
        }
        Ok((heard, Some(cheapest)))
    }

    fn first_touches(&self, tracker: &mut dyn Tracker, memory: &mut PrivateMemory) -> Showing {
        let mut heard = Heard::new(self.target.ranges[0].start);
        let targets = std::slice::from_ref(&self.target);
        let order = shuffled();
        // What first touches take by themselves, so that only what watching adds is called its cost.
        let bare = self.cheapest_first_touches(&order, || Ok(()))?;
        let mut listen = |heard: &mut Heard| tracker.events(self.now(), targets, heard);
        listen(&mut heard)?;
        if heard.accessed.contains(&true) {
            return Err(ProofError::Invented);
        }
        self.touch(memory, &order);
        listen(&mut heard)?;
        let watched = self.cheapest_first_touches(&order, || listen(&mut Heard::new(heard.first)))?;
        let touched = self.pattern.iter().filter(|&&touch| touch != Touch::Left).count();
        Ok((heard, Some(watched.saturating_sub(bare).as_nanos() as f64 / touched as f64)))
    }

    /// The least time that the pattern took on a fresh mapping, with what is to be done after it.
    fn cheapest_first_touches(
        &self,
        order: &[u32],
        mut after: impl FnMut() -> Result<(), TrackError>,
    ) -> Result<Duration, ProofError> {
        let mut cheapest = Duration::MAX;
        for _ in 0..TIMED_ROUNDS {
            let mut memory = PrivateMemory::map(PAGES).map_err(ProofError::Memory)?;
            let begun = Instant::now();
            self.touch(&mut memory, order);
            after()?;
            cheapest = cheapest.min(begun.elapsed());
        }
        Ok(cheapest)
    }

    fn hint_faults(&self, tracker: &mut dyn Tracker, memory: &mut PrivateMemory, slow_node: u32) -> Showing {
        (0..PAGES).for_each(|page| memory.write(page, page as u64));
        let there = move_to_node(memory, slow_node).map_err(|source| ProofError::NoMove { node: slow_node, source })?;
        if there < PAGES * 9 / 10 {
            return Err(ProofError::FewMoved { there, node: slow_node });
        }
        let targets = std::slice::from_ref(&self.target);
        let order = shuffled();
        let wanted = self.pattern.iter().filter(|&&touch| touch != Touch::Left).count();
        let mut heard = Heard::new(self.target.ranges[0].start);
        // What faulted so far were first touches, and those of the kernel's own moving.
        tracker.events(self.now(), targets, &mut Heard::new(heard.first))?;
        let begun = Instant::now();
        while begun.elapsed() < MARKING {
            self.touch(memory, &order);
            tracker.events(self.now(), targets, &mut heard)?;
            if heard.accessed.iter().filter(|&&accessed| accessed).count() >= wanted {
                break;
            }
        }
        Ok((heard, None))
    }

    fn samples(&self, tracker: &mut dyn Tracker, memory: &mut PrivateMemory) -> Showing {
        let mut heard = Heard::new(self.target.ranges[0].start);
        let targets = std::slice::from_ref(&self.target);
        let order = shuffled();
        let mut spent = Duration::ZERO;
        tracker.events(self.now(), targets, &mut Heard::new(heard.first))?;
        let begun = Instant::now();
        let mut line = 0;
        let enough = |heard: &Heard, elapsed: Duration| {
            elapsed >= SAMPLING && (heard.samples >= LEAST_SAMPLES || elapsed >= LONGEST_SAMPLING)
        };
        while !enough(&heard, begun.elapsed()) {
            // Another line of each page at each pass: one of each would stay in the cache, and what hits there is not sampled.
            self.touch_line(memory, &order, line);
            line += 1;
            let before = Instant::now();
            tracker.events(self.now(), targets, &mut heard)?;
            spent += before.elapsed();
        }
        let cost = (heard.samples > 0).then(|| spent.as_nanos() as f64 / heard.samples as f64);
        Ok((heard, cost))
    }
}

/// Moves all of the mapping to a node. Returns how many of its pages are there now.
fn move_to_node(memory: &PrivateMemory, node: u32) -> io::Result<usize> {
    let addresses: Vec<u64> = (0..PAGES as u64).map(|page| memory.address() + page * PAGE_BYTES).collect();
    let nodes = vec![i32::try_from(node).unwrap_or(i32::MAX); PAGES];
    let mut status = vec![-1; PAGES];
    let me = std::process::id();
    sys::move_pages(me, &addresses, Some(&nodes), &mut status)?;
    // Asked for again: the call's own status says nothing of pages that were there already.
    sys::move_pages(me, &addresses, None, &mut status)?;
    Ok(status.iter().filter(|&&at| at == nodes[0]).count())
}

/// Holds what a tracker reported against what was done.
fn judge(pattern: &[Touch], heard: &Heard, grade: Grade, kind: ProofKind) -> Result<Proof, ProofError> {
    // A first touch is one, whether it reads or writes; otherwise only what it claims to see counts as right.
    let counts = |touch: Touch| match touch {
        Touch::Read => grade.reads,
        Touch::Written => grade.writes,
        Touch::Left => false,
    };
    let reported = heard.accessed.iter().filter(|&&accessed| accessed).count();
    let right = pattern.iter().zip(&heard.accessed).filter(|&(&touch, &accessed)| accessed && counts(touch)).count();
    let precision = right as f64 / reported.max(1) as f64;
    let recall = |wanted: Touch| {
        let of_kind = pattern.iter().zip(&heard.accessed).filter(|&(&touch, _)| touch == wanted);
        let seen = of_kind.clone().filter(|&(_, &accessed)| accessed).count();
        (kind != ProofKind::Samples && counts(wanted)).then(|| seen as f64 / of_kind.count() as f64)
    };
    let (read_recall, write_recall) = (recall(Touch::Read), recall(Touch::Written));
    if kind == ProofKind::Samples && heard.samples < LEAST_SAMPLES {
        return Err(ProofError::FewSamples(heard.samples));
    }
    for (recall, done) in [(read_recall, "read"), (write_recall, "written")] {
        if let Some(recall) = recall.filter(|&recall| recall < LEAST) {
            return Err(ProofError::Blind { recall, done });
        }
    }
    if precision < LEAST {
        let chance = pattern.iter().filter(|&&touch| counts(touch)).count() as f64 / pattern.len() as f64;
        return Err(ProofError::Wrong { reported, precision, chance });
    }
    Ok(Proof { grade, read_recall, write_recall, precision, reported })
}

/// What is done with each page: the pattern must look random to a tracker.
fn pattern() -> Vec<Touch> {
    let mut random = SplitMix64::new(1);
    let touches = [Touch::Read, Touch::Written, Touch::Left, Touch::Left];
    (0..PAGES).map(|_| touches[random.below(4) as usize]).collect()
}

/// All pages in random order, so that no prefetcher or region finds a run in it.
fn shuffled() -> Vec<u32> {
    let mut order: Vec<u32> = (0..PAGES as u32).collect();
    let mut random = SplitMix64::new(2);
    for last in (1..order.len()).rev() {
        order.swap(last, random.below(last as u64 + 1) as usize);
    }
    order
}

#[cfg(test)]
#[path = "prove_tests.rs"]
mod tests;
