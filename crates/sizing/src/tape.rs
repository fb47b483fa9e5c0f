//! What a run with everything fast did with the pages of a sample, kept so that it can be played again under any policy and size.
//!
//! In: a workload as it runs, or a recorded trace. Out: a [`Tape`] for each group of pages, which is a source of the simulator. Must not: keep an
//! access to a page outside its sample, or drop what the program computed between those that it keeps.
//!
//! A tape of one page in `n` is a miniature: it has an `n`-th of the pages, of the accesses and of the computing, and so belongs on a machine
//! that is `n` times smaller ([`terrace_machine::scale`]). Simulated at that scale it takes as long as the program, and whatever a policy states
//! in pages, seconds or samples is of the full size. What a thread computed before accesses that are left out is spread over those that are kept.

use terrace_core::units::{Bytes, PAGE_BYTES, Vpn};
use terrace_sim::lockstep::Lockstep;
use terrace_sim::record::{Record, Stored};
use terrace_sim::{SimError, Source};
use terrace_trace::{AccessSource, Change, Pages};
use terrace_workloads::traced::FIRST_ADDRESS;
use terrace_workloads::{AccessSink, Parameters, Region, run_traced};

use crate::sample::Sample;

/// What happens between accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Mapped {
        first: u64,
        count: u64,
        file: bool,
    },
    Unmapped {
        first: u64,
        count: u64,
    },
    Remapped {
        first: u64,
        count: u64,
        huge: bool,
    },
    StandsFor(u64),
    Fork,
    Barrier,
    /// From here on counts what is lost: see [`Tape::stands`].
    Stands,
}

/// See the module's header.
#[derive(Clone, Debug)]
pub struct Tape {
    name: String,
    sample: Sample,
    uses: Vec<Stored>,
    /// Each with the number of accesses before it.
    events: Vec<(usize, Event)>,
    /// Pages of the sample with memory, now and at most.
    pages: std::collections::BTreeSet<u64>,
    most_pages: u64,
    /// Of what each thread computed, in cycles of the whole program: what stands with the accesses so far.
    paid: Vec<u64>,
    /// Full-size seconds that are computed in the tape, but in which the program had nothing to do; of what counts.
    idle_seconds: f64,
}

/// The phase of a run from which on its loss counts, where a tape has one.
pub(crate) const STANDING: &str = "standing";

impl Tape {
    pub(crate) fn new(name: &str, sample: Sample) -> Tape {
        Tape {
            name: name.to_owned(),
            sample,
            uses: Vec::new(),
            events: Vec::new(),
            pages: std::collections::BTreeSet::new(),
            most_pages: 0,
            paid: Vec::new(),
            idle_seconds: 0.0,
        }
    }

    /// The sample whose accesses these are.
    pub fn sample(&self) -> Sample {
        self.sample
    }

    /// Full-size seconds in which the program had nothing to do, of what counts.
    pub fn idle_seconds(&self) -> f64 {
        self.idle_seconds
    }

    pub(crate) fn idles(&mut self, seconds: f64) {
        self.idle_seconds += seconds;
    }

    /// From here on counts what is lost. What came before is the start, in which memory that turns out to be cold leaves once.
    pub(crate) fn stands(&mut self) {
        self.idle_seconds = 0.0;
        self.happened(Event::Stands);
    }

    /// Accesses it holds.
    pub fn len(&self) -> usize {
        self.uses.len()
    }

    /// Whether it holds no access.
    pub fn is_empty(&self) -> bool {
        self.uses.is_empty()
    }

    /// The pages of the accesses, in order.
    pub fn accessed(&self) -> impl Iterator<Item = u64> {
        self.uses.iter().map(|one| one.page())
    }

    /// An access to a page of the sample, by its number there.
    pub(crate) fn push(&mut self, one: Stored) {
        if self.pages.insert(one.page()) {
            self.most_pages = self.most_pages.max(self.pages.len() as u64);
        }
        self.uses.push(one);
    }

    pub(crate) fn happened(&mut self, event: Event) {
        if let Event::Unmapped { first, count } = event {
            // Costs by what is there, not by how much address space was given back.
            let gone: Vec<u64> = self.pages.range(first..first + count).copied().collect();
            for page in gone {
                self.pages.remove(&page);
            }
        }
        self.events.push((self.uses.len(), event));
    }

    /// The part of a thread's computing that stands before its next access here; `computed` is all that it computed so far.
    fn owed(&mut self, thread: usize, computed: u64) -> u32 {
        if self.paid.len() <= thread {
            self.paid.resize(thread + 1, 0);
        }
        let ways = u64::from(self.sample.one_in());
        let owed = u32::try_from((computed - self.paid[thread]) / ways).unwrap_or(u32::MAX);
        self.paid[thread] += u64::from(owed) * ways;
        owed
    }
}

impl Source for Tape {
    fn name(&self) -> String {
        self.name.clone()
    }
    fn footprint(&self) -> Bytes {
        Bytes::of_pages(self.most_pages)
    }
    fn play(&self, into: &mut Lockstep) -> Result<(), SimError> {
        let mut from = 0;
        for (at, event) in &self.events {
            into.feed(&self.uses[from..*at]);
            from = *at;
            match *event {
                Event::Mapped { first, count, file } => into.map(Vpn(first), count, file),
                Event::Unmapped { first, count } => into.unmap(Vpn(first), count),
                Event::Remapped { first, count, huge } => into.remap(Vpn(first), count, huge),
                Event::StandsFor(accesses) => into.each_stands_for(accesses),
                Event::Fork => AccessSink::fork(into),
                Event::Barrier => AccessSink::barrier(into),
                Event::Stands => AccessSink::phase(into, STANDING),
            }
            if !into.goes_on() {
                return Ok(());
            }
        }
        into.feed(&self.uses[from..]);
        Ok(())
    }
}

/// Why nothing could be recorded.
#[derive(Debug, thiserror::Error)]
pub enum TapeError {
    /// The workload failed.
    #[error(transparent)]
    Workload(#[from] terrace_workloads::WorkloadError),
    /// The trace could not be read.
    #[error(transparent)]
    Trace(#[from] terrace_trace::TraceError),
    /// A trace of regions.
    #[error("the trace is regional: it tells which regions were in use, and no single access to replay")]
    Regional,
    /// More than is to be kept.
    #[error("more than {0} accesses would have to be kept: give a larger --sample, so that fewer pages stand for all")]
    TooMany(u64),
}

/// Accesses that all tapes together keep: 16 bytes each, so 2 GiB.
const MOST_USES: u64 = 1 << 27;

/// Writes the tapes of `groups` samples while a program runs once.
struct Recorder {
    tapes: Vec<Tape>,
    one_in: u32,
    /// The place that is numbered zero. The simulator takes low numbers for dense ones, and would have a page for each below a workload's first
    /// address divided by `one_in`.
    first_place: u64,
    /// What each thread computed so far.
    computed: Vec<u64>,
    kept: u64,
}

impl Recorder {
    fn new(name: &str, one_in: u32, groups: u32, first_page: u64) -> Recorder {
        let sample = |group| Sample::new(one_in, group).expect("the caller has fewer groups than pages in a stratum");
        Recorder {
            tapes: (0..groups.min(one_in)).map(|group| Tape::new(name, sample(group))).collect(),
            one_in,
            first_place: first_page / u64::from(one_in),
            computed: Vec::new(),
            kept: 0,
        }
    }

    fn accesses<R: Record>(&mut self, batch: &[R]) {
        for access in batch {
            let thread = access.thread();
            if self.computed.len() <= thread {
                self.computed.resize(thread + 1, 0);
            }
            self.computed[thread] += u64::from(access.cycles());
            let (group, place) = Sample::group_of(access.page(), self.one_in);
            if let Some(tape) = self.tapes.get_mut(group as usize) {
                self.kept += 1;
                if self.kept <= MOST_USES {
                    let cycles = tape.owed(thread, self.computed[thread]);
                    tape.push(Stored::new(
                        place - self.first_place,
                        access.line() as u8,
                        access.wait(),
                        thread as u16,
                        cycles,
                    ));
                }
            }
        }
    }

    fn event(&mut self, of: impl Fn(Sample) -> Option<Event>) {
        for tape in &mut self.tapes {
            if let Some(event) = of(tape.sample) {
                tape.happened(event);
            }
        }
    }

    fn range(&mut self, first: u64, count: u64, event: impl Fn(u64, u64) -> Event) {
        let first_place = self.first_place;
        self.event(|sample| {
            let (first, count) = sample.range(first, count);
            (count > 0).then(|| event(first - first_place, count))
        });
    }

    fn finish(self) -> Result<Vec<Tape>, TapeError> {
        if self.kept > MOST_USES { Err(TapeError::TooMany(MOST_USES)) } else { Ok(self.tapes) }
    }
}

impl AccessSink for Recorder {
    fn accesses(&mut self, batch: &[terrace_workloads::Access]) {
        Recorder::accesses(self, batch);
    }
    fn mapped(&mut self, region: &Region) {
        let pages = region.bytes.max(1).div_ceil(PAGE_BYTES);
        let file = region.file_backed;
        self.range(region.start >> 12, pages, |first, count| Event::Mapped { first, count, file });
    }
    fn unmapped(&mut self, region: &Region) {
        let pages = region.bytes.max(1).div_ceil(PAGE_BYTES);
        self.range(region.start >> 12, pages, |first, count| Event::Unmapped { first, count });
    }
    fn fork(&mut self) {
        self.event(|_| Some(Event::Fork));
    }
    fn barrier(&mut self) {
        self.event(|_| Some(Event::Barrier));
    }
    fn wants_more(&self) -> bool {
        self.kept <= MOST_USES
    }
}

/// The tapes of a workload: `groups` of them, at most `one_in`, each of one page in `one_in`, which is a power of two.
///
/// # Errors
/// When the workload cannot be built, its own check of its answer fails, or it makes more accesses than can be kept.
pub fn of_workload(name: &str, parameters: &Parameters, one_in: u32, groups: u32) -> Result<Vec<Tape>, TapeError> {
    let mut recorder = Recorder::new(name, one_in, groups, FIRST_ADDRESS / PAGE_BYTES);
    run_traced(name, parameters, &mut recorder)?;
    recorder.finish()
}

/// The tapes of a recorded trace, as [`of_workload`]. Where it has several processes their pages count as those of one.
///
/// # Errors
/// When the trace cannot be read, tells of regions alone, or has more accesses than can be kept.
pub fn of_trace(name: &str, source: &mut dyn AccessSource, one_in: u32, groups: u32) -> Result<Vec<Tape>, TapeError> {
    let mut recorder = Recorder::new(name, one_in, groups, 0);
    let mut batch = vec![terrace_trace::Access::default(); 2048];
    loop {
        let count = source.fill(&mut batch)?;
        recorder.accesses(&batch[..count]);
        if count > 0 {
            continue;
        }
        let mut each = |pages: Pages, event: &dyn Fn(u64, u64) -> Event| {
            recorder.range(u64::from(pages.first.0), u64::from(pages.count), event);
        };
        match source.take_event().map(|event| event.change) {
            None => return recorder.finish(),
            Some(Change::Born(pages)) => each(pages, &|first, count| Event::Mapped { first, count, file: false }),
            Some(Change::Gone(pages)) => each(pages, &|first, count| Event::Unmapped { first, count }),
            // Of a sample no 2 MiB page is whole: the pages of a miniature stand for themselves.
            Some(Change::Huge(_) | Change::Split(_)) if one_in > 1 => {}
            Some(Change::Huge(pages)) => each(pages, &|first, count| Event::Remapped { first, count, huge: true }),
            Some(Change::Split(pages)) => each(pages, &|first, count| Event::Remapped { first, count, huge: false }),
            Some(Change::Period(accesses)) => recorder.event(|_| Some(Event::StandsFor(accesses))),
            Some(Change::Region { .. }) => return Err(TapeError::Regional),
        }
    }
}

#[cfg(test)]
mod tests {
    use terrace_machine::load::Wait;

    use super::*;

    fn parameters() -> Parameters {
        let mut parameters = Parameters::new(4 << 20);
        (parameters.threads, parameters.operations) = (2, Some(200_000));
        parameters
    }

    #[test]
    fn the_tapes_of_all_groups_together_are_the_program() {
        let [whole] = of_workload("hot-cold", &parameters(), 1, 1).unwrap().try_into().unwrap();
        let parts = of_workload("hot-cold", &parameters(), 4, 4).unwrap();
        assert_eq!(parts.iter().map(Tape::len).sum::<usize>(), whole.len());
        let pages: u64 = parts.iter().map(|tape| tape.footprint().pages()).sum();
        assert_eq!(pages, whole.footprint().pages());
        // Numbers from zero on: the simulator has a page for each number below the largest.
        for tape in parts.iter().chain([&whole]) {
            assert!(tape.accessed().all(|page| page < 2048), "{}", tape.sample().one_in());
        }
        // Each has a quarter of the computing, to within what its last accesses leave open.
        let cycles = |tape: &Tape| tape.uses.iter().map(|one| u64::from(one.cycles())).sum::<u64>() as f64;
        for tape in &parts {
            let share = cycles(tape) / cycles(&whole);
            assert!((0.24..0.26).contains(&share), "{share}");
        }
    }

    #[test]
    fn memory_that_is_given_back_no_longer_counts() {
        let mut tape = Tape::new("test", Sample::WHOLE);
        let one = |page| Stored::new(page, 0, Wait::Load, 0, 0);
        (0..10).for_each(|page| tape.push(one(page)));
        tape.happened(Event::Unmapped { first: 0, count: 8 });
        (20..25).for_each(|page| tape.push(one(page)));
        assert_eq!(tape.footprint(), Bytes::of_pages(10));
    }
}
