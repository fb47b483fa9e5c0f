//! The inner loops: accesses through page words, TLB, cache and memory, until one faults or the batch ends.
//!
//! In: a batch. Out: counters by thread and tier, bytes by tier, samples. Must not: take a fault, move a page or speak to
//! the engine: it stops at the access that needs any of that, and is called again from there.
//!
//! A batch is cut into pieces of one thread and at most [`PIECE`] accesses, and each piece goes through one stage after
//! the other: page words, TLB, cache, memory, samples. A stage looks only at its own tables and the columns of the
//! [`Piece`], which stay in the host's first-level cache, so its loop is short, keeps what it needs in registers, and
//! overlaps the work of many accesses. Nothing a later stage changes is read by an earlier one, so the counts are those
//! of one access after the other.

mod replay;
mod streams;

use terrace_core::observation::Access;
use terrace_core::policy::SamplePeriods;
use terrace_core::prefetch::prefetch;
use terrace_core::units::TierId;
use terrace_machine::cache::{Cache, LINE_BYTES, LineUse, Missed, PAGE_LINES};
use terrace_machine::load::{ThreadWork, Traffic, Wait};
use terrace_machine::media::Media;
use terrace_machine::memory::{Memory, PageWord};
use terrace_machine::memory_mode::MemoryMode;
use terrace_machine::preset::{Tier, TlbSpec};
use terrace_machine::tlb::{Request, Tlb};

use crate::config::SimConfig;
use crate::mmu::MmuRun;
use crate::oracle::Future;
use crate::record::Record;
use streams::{Ahead, Streams};

/// How far ahead page words are asked for: long enough to hide a miss of the host, short enough to stay in its buffers.
const AHEAD: usize = 24;
/// Most accesses of a piece. A power of two; what the stages hand on, and the cache sets they prefetch, fit the first
/// level of the host's caches.
const PIECE: usize = 256;

/// What one thread counts down to its next samples.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Countdown {
    pub(crate) loads: [u32; TierId::MAX],
    pub(crate) stores: u32,
}

/// An access that a performance counter picked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    pub(crate) page: u32,
    pub(crate) access: Access,
}

/// Why the loop stopped before the end of the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The batch is done.
    End,
    /// The access at this index needs the slow path: a fault, a page or a thread not known.
    At(usize),
}

/// What is to be known of an access after its page word was read: tier and [`Wait`], and room for one bit more. The
/// value is a place in a table of counters.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Kind(u8);

impl Kind {
    /// How many there are of a tier.
    const OF_A_TIER: usize = 16;
    /// How many there are.
    const COUNT: usize = Kind::OF_A_TIER * TierId::MAX;

    #[inline(always)]
    fn new(tier: usize, wait: Wait) -> Kind {
        Kind((tier * Kind::OF_A_TIER) as u8 | (wait as u8) << 1)
    }
    #[inline(always)]
    fn tier(self) -> usize {
        usize::from(self.0) / Kind::OF_A_TIER
    }
    #[inline(always)]
    fn wait(self) -> usize {
        usize::from(self.0 >> 1 & 7)
    }
    #[inline(always)]
    fn is_store(self) -> bool {
        self.wait() == Wait::Store as usize || self.wait() == Wait::StreamedStore as usize
    }
    /// Whether counters of loads that missed every cache count it.
    #[inline(always)]
    fn is_counted_load(self) -> bool {
        const COUNTED: u8 = 1 << Wait::Load as u8 | 1 << Wait::Dependent as u8 | 1 << Wait::Late as u8;
        COUNTED >> self.wait() & 1 != 0
    }
    /// The same access where a prefetcher was this to its line.
    #[inline(always)]
    fn with(self, ahead: Ahead) -> Kind {
        let load = if ahead == Ahead::InTime { Wait::Streamed } else { Wait::Late };
        let wait = if self.is_store() { Wait::StreamedStore } else { load };
        if ahead == Ahead::No { self } else { Kind(self.0 & !0b1110 | (wait as u8) << 1) }
    }
    /// The same access in another tier.
    fn in_tier(self, tier: usize) -> Kind {
        Kind((tier * Kind::OF_A_TIER) as u8 | self.0 & 15)
    }
    /// The index of the counter, by whether the access moved bytes.
    #[inline(always)]
    fn counter(self, moved: bool) -> usize {
        usize::from(self.0 | u8::from(moved)) & (Kind::COUNT - 1)
    }
}

/// A piece of a batch, in columns.
struct Piece {
    thread: usize,
    length: usize,
    stores: u32,
    requests: [Request; PIECE],
    uses: [LineUse; PIECE],
    kinds: [Kind; PIECE],
    /// Room for the TLB.
    unknown: [Request; PIECE],
    /// What missed the cache.
    missed: [Missed; PIECE],
    /// Accesses that reached memory, by [`Kind::counter`]; two tables, used in turn, so that two accesses of a kind do not
    /// wait for each other. All zero between pieces.
    counters: [[u32; Kind::COUNT]; 2],
}

/// The columns of a piece in work. They hold nothing between two batches.
struct Workspace(Box<Piece>);

impl Workspace {
    fn new() -> Workspace {
        Workspace(Box::new(Piece {
            thread: 0,
            length: 0,
            stores: 0,
            requests: [Request::default(); PIECE],
            uses: [LineUse::default(); PIECE],
            kinds: [Kind::default(); PIECE],
            unknown: [Request::default(); PIECE],
            missed: [Missed::default(); PIECE],
            counters: [[0; Kind::COUNT]; 2],
        }))
    }
}

/// What a cache outside this machine let through of the batch in work.
#[derive(Default)]
struct Filtered {
    missed: Vec<Missed>,
    /// The first miss that no piece took yet.
    next: usize,
    /// Accesses that went through.
    passed: usize,
}

impl Filtered {
    /// The misses of the next `length` accesses, into `missed` from its front. Returns how many.
    fn take(&mut self, length: usize, missed: &mut [Missed]) -> usize {
        let from = self.passed;
        self.passed += length;
        let ahead = &self.missed[self.next..];
        let count = ahead.iter().take(length).take_while(|miss| miss.at() < self.passed).count();
        missed.iter_mut().zip(&ahead[..count]).for_each(|(out, miss)| *out = miss.from(from));
        self.next += count;
        count
    }
}

/// Everything the loops touch.
pub(crate) struct Hot {
    pub(crate) memory: Memory,
    pub(crate) memory_mode: Option<MemoryMode>,
    /// The MMU, where it is modelled: then the TLBs below are not used.
    pub(crate) mmu: Option<Box<MmuRun>>,
    workspace: Workspace,
    work: Vec<ThreadWork>,
    countdown: Vec<Countdown>,
    tlbs: Vec<Tlb>,
    tlb_spec: TlbSpec,
    cache: Option<Cache>,
    /// What takes the cache's place where several machines share one.
    filtered: Option<Filtered>,
    media: Vec<Media>,
    /// What each thread's prefetcher follows; empty where streams overlap no more than other loads.
    streams: Vec<Streams>,
    follows_streams: bool,
    /// Accesses of a thread that a line of each tier takes as long as, in the latest stretch. Nothing is in time before the first is over.
    line_takes: [u32; TierId::MAX],
    read: [u64; TierId::MAX],
    written: [u64; TierId::MAX],
    samples: Vec<Sample>,
    /// Sample periods; 0 while nothing samples.
    load_period: u32,
    store_period: u32,
    /// Whether the counters see the first thread alone.
    only_first_sampled: bool,
    extra_cycles: u32,
    /// The source's number of page 0.
    base: u64,
    /// Accesses that one of the source stands for.
    weight: u32,
    /// Whether every access that reaches memory is written down, for the clairvoyant policy's oracle.
    record_misses: bool,
    missed: Vec<u32>,
    /// TLB lookups that ended in a walk.
    walks: u64,
    /// Nanoseconds that those of 4 KiB pages took.
    small_walk_ns: f64,
}

impl Hot {
    /// The parts of a machine at rest, with this memory.
    pub(crate) fn new(config: &SimConfig, memory: Memory, memory_mode: Option<MemoryMode>) -> Hot {
        let machine = &config.machine;
        let cores = machine.processor.cores as usize;
        let (tlb, cache) = (&machine.processor.tlb, machine.processor.cache);
        Hot {
            memory,
            memory_mode,
            mmu: config.mmu.as_ref().map(|mmu| {
                Box::new(MmuRun::new(
                    mmu,
                    machine,
                    config.scale,
                    config.cache,
                    [config.parallelism(), config.stream_parallelism()],
                ))
            }),
            workspace: Workspace::new(),
            work: Vec::new(),
            countdown: Vec::new(),
            tlbs: if config.tlb { vec![Tlb::new(tlb, config.scale); cores] } else { Vec::new() },
            tlb_spec: *tlb,
            cache: config.cache.then(|| Cache::new(config.scale.cache(cache.capacity), cache.ways)),
            filtered: None,
            media: machine.tiers.iter().map(|tier| Media::new(tier, config.scale)).collect(),
            streams: Vec::new(),
            follows_streams: machine.processor.stream_parallelism > machine.processor.memory_parallelism,
            line_takes: [u32::MAX; TierId::MAX],
            read: [0; TierId::MAX],
            written: [0; TierId::MAX],
            samples: Vec::new(),
            load_period: 0,
            store_period: 0,
            only_first_sampled: false,
            extra_cycles: config.cycles_per_access,
            base: 0,
            weight: 1,
            record_misses: false,
            missed: Vec::new(),
            walks: 0,
            small_walk_ns: 0.0,
        }
    }

    /// Runs the batch from index `from` on. The program's bytes are those of all accesses that its own stand for.
    pub(crate) fn run<R: Record>(&mut self, batch: &[R], from: usize) -> Stop {
        if self.weight == 1 {
            return self.run_once(batch, from);
        }
        let (read, written) = (self.read, self.written);
        let stop = self.run_once(batch, from);
        let weigh = |now: &mut u64, before: u64| *now = before + (*now - before) * u64::from(self.weight);
        self.read.iter_mut().zip(read).for_each(|(now, before)| weigh(now, before));
        self.written.iter_mut().zip(written).for_each(|(now, before)| weigh(now, before));
        stop
    }

    /// Gives the cache up. From now on [`Hot::give_misses`] says before each batch what misses; nothing else may then be run.
    pub(crate) fn give_up_cache(&mut self) -> Option<Cache> {
        let cache = self.cache.take()?;
        self.filtered = Some(Filtered::default());
        Some(cache)
    }

    /// The accesses of the next batch that miss the cache, in order.
    pub(crate) fn give_misses(&mut self, missed: &[Missed]) {
        if let Some(filtered) = &mut self.filtered {
            (filtered.next, filtered.passed) = (0, 0);
            filtered.missed.clear();
            filtered.missed.extend_from_slice(missed);
        }
    }

    /// The source's number of page 0.
    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    pub(crate) fn set_base(&mut self, base: u64) {
        self.base = base;
    }

    /// Accesses that one of the source stands for.
    pub(crate) fn weight(&self) -> u32 {
        self.weight
    }

    pub(crate) fn set_weight(&mut self, weight: u32) {
        self.weight = weight;
    }

    /// What was counted in the stretch becomes that of all accesses its own stand for.
    pub(crate) fn weigh(&mut self) {
        let weight = self.weight;
        if weight == 1 {
            return;
        }
        for work in &mut self.work {
            work.cache_hits *= u64::from(weight);
            work.misses.iter_mut().flatten().for_each(|misses| *misses *= weight);
        }
    }

    /// What each thread did since it was last cleared.
    pub(crate) fn work(&self) -> &[ThreadWork] {
        &self.work
    }

    /// The same, to lay stalls on the threads.
    pub(crate) fn work_mut(&mut self) -> &mut [ThreadWork] {
        &mut self.work
    }

    pub(crate) fn clear_work(&mut self) {
        self.work.fill(ThreadWork::default());
    }

    /// Threads known.
    pub(crate) fn threads(&self) -> usize {
        self.work.len()
    }

    /// One thread more, which counts down from here.
    pub(crate) fn add_thread(&mut self, countdown: Countdown) {
        self.work.push(ThreadWork::default());
        self.countdown.push(countdown);
        if self.follows_streams {
            self.streams.push(Streams::default());
        }
    }

    /// A thread waits this many nanoseconds.
    pub(crate) fn stall(&mut self, thread: usize, nanos: f64) {
        self.work[thread].stall_ns += nanos;
    }

    /// Bytes that a tier moved since they were last taken.
    pub(crate) fn traffic(&self, tier: usize) -> Traffic {
        Traffic { read: self.read[tier] as f64, written: self.written[tier] as f64 }
    }

    /// A tier reads and writes these bytes in addition to the program's.
    pub(crate) fn add_bytes(&mut self, tier: usize, [read, written]: [u64; 2]) {
        self.read[tier] += read;
        self.written[tier] += written;
    }

    /// Bytes that a tier read and wrote since this was last asked.
    pub(crate) fn take_bytes(&mut self, tier: usize) -> [u64; 2] {
        [std::mem::take(&mut self.read[tier]), std::mem::take(&mut self.written[tier])]
    }

    /// Latencies are idle ones times these factors from now on, and a thread's accesses so far apart.
    pub(crate) fn set_load(&mut self, tiers: &[Tier], factor: &[f64; TierId::MAX], access_ns: f64) {
        if self.follows_streams {
            self.line_takes = streams::accesses_of_latency(tiers, factor, access_ns);
        }
        if let Some(run) = &mut self.mmu {
            run.set_load(factor);
        }
    }

    /// Sample periods of loads and stores; 0 while nothing samples.
    pub(crate) fn periods(&self) -> [u32; 2] {
        [self.load_period, self.store_period]
    }

    /// Samples are taken with these periods from now on. Returns whether they changed: then the counters start again.
    pub(crate) fn set_periods(&mut self, periods: SamplePeriods) -> bool {
        let before = self.periods();
        (self.load_period, self.store_period) = (periods.loads, periods.stores);
        before != self.periods()
    }

    /// The counters see the first thread alone.
    pub(crate) fn sample_only_first(&mut self) {
        self.only_first_sampled = true;
    }

    pub(crate) fn stop_sampling(&mut self) {
        (self.load_period, self.store_period) = (0, 0);
    }

    pub(crate) fn set_countdown(&mut self, thread: usize, countdown: Countdown) {
        self.countdown[thread] = countdown;
    }

    /// The accesses that counters picked; to be given back for their memory.
    pub(crate) fn take_samples(&mut self) -> Vec<Sample> {
        std::mem::take(&mut self.samples)
    }

    pub(crate) fn give_back(&mut self, mut samples: Vec<Sample>) {
        samples.clear();
        self.samples = samples;
    }

    /// From now on every access that reaches memory is written down.
    pub(crate) fn record_misses(&mut self) {
        self.record_misses = true;
    }

    /// Pages of accesses that reached memory since this was last asked.
    pub(crate) fn take_missed(&mut self) -> impl Iterator<Item = u32> + '_ {
        self.missed.drain(..)
    }

    /// The same into a future, of `accesses` accesses.
    pub(crate) fn add_missed_to(&mut self, future: &mut Future, accesses: u64) {
        future.add(self.base, accesses, &mut self.missed);
    }

    /// Forgets a translation on every core that ever ran a thread of the program.
    pub(crate) fn flush_page(&mut self, page: u32, huge: bool) {
        let threads = self.threads();
        self.tlbs.iter_mut().take(threads).for_each(|tlb| tlb.flush_page(page, huge));
    }

    /// Forgets all translations.
    pub(crate) fn flush_tlbs(&mut self) {
        self.tlbs.iter_mut().for_each(Tlb::flush);
    }

    /// Walks so far.
    pub(crate) fn walks(&self) -> u64 {
        self.mmu.as_ref().map_or(self.walks, |run| run.mmu.totals().map(|core| core.walks).sum())
    }

    /// Nanoseconds that walks of 4 KiB pages took so far.
    pub(crate) fn small_walk_ns(&self) -> f64 {
        match &self.mmu {
            Some(run) => run.mmu.totals().map(|core| core.walk_ns - core.huge_walk_ns).sum(),
            None => self.small_walk_ns,
        }
    }

    fn run_once<R: Record>(&mut self, batch: &[R], from: usize) -> Stop {
        if self.mmu.is_some() {
            return self.run_mmu(batch, from);
        }
        let cached = self.cache.is_some() || self.filtered.is_some();
        if self.record_misses {
            return match (!self.tlbs.is_empty(), cached) {
                (false, false) => self.run_with::<R, false, false, false, true>(batch, from),
                (true, false) => self.run_with::<R, true, false, false, true>(batch, from),
                (false, true) => self.run_with::<R, false, true, false, true>(batch, from),
                (true, true) => self.run_with::<R, true, true, false, true>(batch, from),
            };
        }
        match (!self.tlbs.is_empty(), cached, self.memory_mode.is_some()) {
            (false, false, false) => self.run_with::<R, false, false, false, false>(batch, from),
            (true, false, false) => self.run_with::<R, true, false, false, false>(batch, from),
            (false, true, false) => self.run_with::<R, false, true, false, false>(batch, from),
            (true, true, false) => self.run_with::<R, true, true, false, false>(batch, from),
            (false, false, true) => self.run_with::<R, false, false, true, false>(batch, from),
            (true, false, true) => self.run_with::<R, true, false, true, false>(batch, from),
            (false, true, true) => self.run_with::<R, false, true, true, false>(batch, from),
            (true, true, true) => self.run_with::<R, true, true, true, false>(batch, from),
        }
    }

    fn run_with<R: Record, const TLB: bool, const CACHE: bool, const MODE: bool, const RECORD: bool>(
        &mut self,
        batch: &[R],
        from: usize,
    ) -> Stop {
        let (mut at, mut asked) = (from, 0);
        while at < batch.len() {
            let whole = self.touch::<R, CACHE>(batch, at, asked);
            if self.workspace.0.length > 0 {
                // The first stage after the page words asks for those of the next piece.
                let next = &batch[at + self.workspace.0.length..];
                if TLB {
                    self.translate(next);
                }
                let missed = if CACHE { self.filter() } else { 0 };
                let loads = if MODE {
                    self.charge_memory_mode::<CACHE, RECORD>(missed)
                } else {
                    self.charge::<R, CACHE, RECORD>(missed, if TLB { &[] } else { next })
                };
                if self.load_period != 0 || self.store_period != 0 {
                    self.sample::<CACHE>(missed, &loads);
                }
            }
            at += self.workspace.0.length;
            asked = if TLB || !(CACHE || MODE) { self.workspace.0.length } else { 0 };
            if !whole {
                return Stop::At(at);
            }
        }
        Stop::End
    }

    /// Reads and marks the page words of the piece that begins at `from`; the first `asked` of them were asked for
    /// before. Returns false if it ends at an access that needs the slow path.
    // Kept apart, as all stages are: one function with all of them in it would share its registers among them.
    #[inline(never)]
    fn touch<R: Record, const CACHE: bool>(&mut self, batch: &[R], from: usize, asked: usize) -> bool {
        // Everything the loop touches is taken apart first: behind one reference, each store to an array would make the
        // host load every array's address again.
        let Hot { memory, work, cache, base, extra_cycles, workspace, .. } = self;
        let (words, cache, base, piece) = (memory.words_mut(), cache.as_ref(), *base, &mut *workspace.0);
        let rest = &batch[from..];
        let thread = rest[0].thread();
        (piece.thread, piece.length, piece.stores) = (thread, 0, 0);
        let Some(work) = work.get_mut(thread) else { return false };
        let mut whole = true;
        let mut length = rest.len().min(PIECE);
        let (mut cycles, mut stores) = (0u64, 0u32);
        for (index, access) in rest[..length].iter().enumerate() {
            if index + AHEAD >= asked {
                ask_for(words, base, rest, index + AHEAD);
            }
            let page = access.page().wrapping_sub(base);
            let word = words.get_mut(page as usize).filter(|word| !word.has(PageWord::FAULTS));
            let Some(word) = word.filter(|_| access.thread() == thread) else {
                whole = access.thread() != thread;
                length = index;
                break;
            };
            let wait = access.wait();
            let store = wait == Wait::Store;
            let seen = word.with(PageWord::ACCESSED | if store { PageWord::DIRTY } else { 0 });
            // Most accesses find the bits set; not writing spares the host a dirty line.
            if seen != *word {
                *word = seen;
            }
            let line = page * PAGE_LINES + u64::from(access.line());
            if CACHE && let Some(cache) = cache {
                cache.prefetch(line);
            }
            piece.requests[index] = Request::new(page as u32, seen.has(PageWord::HUGE));
            piece.uses[index] = LineUse::new(line, store);
            piece.kinds[index] = Kind::new(seen.tier_index(), wait);
            cycles += u64::from(access.cycles());
            stores += u32::from(store);
        }
        work.cycles += cycles + length as u64 * u64::from(*extra_cycles);
        (piece.length, piece.stores) = (length, stores);
        whole
    }

    #[inline(never)]
    fn translate<R: Record>(&mut self, next: &[R]) {
        let Hot { memory, base, tlbs, tlb_spec, work, workspace, .. } = self;
        let (words, base) = (memory.words(), *base);
        let piece = &mut *workspace.0;
        let core = piece.thread % tlbs.len();
        let meanwhile = |at| ask_for(words, base, next, at);
        let found = tlbs[core].run(&piece.requests[..piece.length], &mut piece.unknown, |_| (), meanwhile);
        let (second, walks) = (found.second.map(f64::from), found.walks.map(f64::from));
        work[piece.thread].stall_ns += (second[0] + second[1] + walks[0] + walks[1]) * tlb_spec.second_hit_ns
            + walks[0] * tlb_spec.walk_small_ns
            + walks[1] * tlb_spec.walk_huge_ns;
        self.walks += u64::from(found.walks[0] + found.walks[1]);
        self.small_walk_ns += walks[0] * (tlb_spec.second_hit_ns + tlb_spec.walk_small_ns);
    }

    /// Which accesses miss the cache, into [`Piece::missed`].
    #[inline(never)]
    fn filter(&mut self) -> usize {
        let Hot { cache, filtered, work, workspace, .. } = self;
        let piece = &mut *workspace.0;
        let missed = match (cache, filtered) {
            (Some(cache), _) => cache.run(&piece.uses[..piece.length], &mut piece.missed),
            (None, Some(filtered)) => filtered.take(piece.length, &mut piece.missed),
            (None, None) => 0,
        };
        work[piece.thread].cache_hits += (piece.length - missed) as u64;
        missed
    }

    /// Counts what reaches memory: the first `missed` of [`Piece::missed`], or everything without a cache. Returns how
    /// many loads each tier served.
    #[inline(never)]
    fn charge<R: Record, const CACHE: bool, const RECORD: bool>(
        &mut self,
        missed: usize,
        next: &[R],
    ) -> [u32; TierId::MAX] {
        let Hot { memory, base, media, streams, line_takes, workspace, written, missed: recorded, .. } = self;
        let (base, takes) = (*base, *line_takes);
        let (words, media, piece) = (memory.words(), media.as_mut_slice(), &mut *workspace.0);
        let mut streams = streams.get_mut(piece.thread);
        let [even, odd] = &mut piece.counters;
        if CACHE {
            for miss in &piece.missed[..missed] {
                if let Some(line) = miss.writeback(piece.uses[miss.at() & (PIECE - 1)].line())
                    && let Some(word) = words.get((line / PAGE_LINES) as usize)
                {
                    prefetch(word);
                }
            }
            for (turn, miss) in piece.missed[..missed].iter().enumerate() {
                let at = miss.at() & (PIECE - 1);
                let kind = followed(&mut streams, piece.uses[at].line(), at, piece.kinds[at], &takes);
                piece.kinds[at] = kind;
                if RECORD {
                    recorded.push(piece.requests[at].page());
                }
                let line = piece.uses[at].line();
                let moved = media[kind.tier()].reads_unit(line);
                (if turn & 1 == 0 { &mut *even } else { &mut *odd })[kind.counter(moved)] += 1;
                if let Some(line) = miss.writeback(line)
                    && let Some(tier) = owner_tier(words, line)
                {
                    written[tier] += u64::from(media[tier].written_bytes(line));
                }
            }
        } else {
            let length = piece.length;
            for (turn, (slot, used)) in piece.kinds[..length].iter_mut().zip(&piece.uses[..length]).enumerate() {
                ask_for(words, base, next, turn);
                let kind = followed(&mut streams, used.line(), turn, *slot, &takes);
                *slot = kind;
                let moved = media[kind.tier()].reads_unit(used.line());
                (if turn & 1 == 0 { &mut *even } else { &mut *odd })[kind.counter(moved)] += 1;
            }
            if RECORD {
                recorded.extend(piece.requests[..length].iter().map(|request| request.page()));
            }
        }
        if let Some(streams) = streams {
            streams.count(piece.length);
        }
        self.count_up::<CACHE>()
    }

    /// Adds the piece's counters to the totals, and clears them.
    fn count_up<const CACHE: bool>(&mut self) -> [u32; TierId::MAX] {
        let Hot { media, work, workspace, read, written, .. } = self;
        let piece = &mut *workspace.0;
        let work = &mut work[piece.thread];
        let mut loads = [0; TierId::MAX];
        for (tier, medium) in media.iter().enumerate() {
            for wait in Wait::ALL {
                let kind = Kind::new(tier, wait);
                let mut take = |moved| {
                    let [even, odd] = &mut piece.counters;
                    let at = kind.counter(moved);
                    std::mem::take(&mut even[at]) + std::mem::take(&mut odd[at])
                };
                let (served, moved) = (take(false), take(true));
                let bytes = u64::from(moved) * u64::from(medium.unit_bytes());
                work.misses[tier][wait as usize] += served + moved;
                read[tier] += bytes;
                if wait.is_counted_load() {
                    loads[tier] += served + moved;
                }
                if !CACHE && wait.is_store() {
                    // No cache holds the line back: what was read to be written is written as well.
                    written[tier] += bytes;
                }
            }
        }
        loads
    }

    /// As [`Hot::charge`], where the fast tier is a cache of the slow one in hardware.
    #[inline(never)]
    fn charge_memory_mode<const CACHE: bool, const RECORD: bool>(&mut self, missed: usize) -> [u32; TierId::MAX] {
        let mut loads = [0; TierId::MAX];
        let Hot { memory, media, memory_mode, streams, work, workspace, read, written, missed: recorded, .. } = self;
        let (words, media, piece) = (memory.words(), media.as_mut_slice(), &mut *workspace.0);
        let takes = self.line_takes;
        let Some(mode) = memory_mode else { return loads };
        let mut streams = streams.get_mut(piece.thread);
        let work = &mut work[piece.thread];
        let count = if CACHE { missed } else { piece.length };
        for turn in 0..count {
            let at = if CACHE { piece.missed[turn].at() } else { turn };
            let (page, line) = (piece.requests[at].page(), piece.uses[at].line());
            if RECORD {
                recorded.push(page);
            }
            // With a cache in front, a store that misses reads its line; the line is written when it leaves.
            let store = piece.kinds[at].is_store() && !CACHE;
            let moved = mode.access(page, (line % PAGE_LINES) as u32, store);
            let tier = piece.kinds[at].tier();
            let served = if moved.hit { 0 } else { tier };
            let kind = followed(&mut streams, line, at, piece.kinds[at].in_tier(served), &takes);
            piece.kinds[at] = kind;
            read[0] += u64::from(moved.fast_read) * LINE_BYTES;
            written[0] += u64::from(moved.fast_written) * LINE_BYTES;
            if moved.slow_read > 0 {
                read[tier] += u64::from(media[tier].read_bytes(line));
            }
            written[tier] += u64::from(moved.slow_written) * LINE_BYTES;
            work.misses[0][kind.wait()] += 1;
            if !moved.hit {
                work.misses[tier][kind.wait()] += 1;
            }
            loads[served] += u32::from(kind.is_counted_load());
            if CACHE
                && let Some(line) = piece.missed[turn].writeback(line)
                && let Some(tier) = owner_tier(words, line)
            {
                let moved = mode.access((line / PAGE_LINES) as u32, (line % PAGE_LINES) as u32, true);
                read[0] += u64::from(moved.fast_read) * LINE_BYTES;
                written[0] += u64::from(moved.fast_written) * LINE_BYTES;
                read[tier] += u64::from(moved.slow_read) * LINE_BYTES;
                written[tier] += u64::from(moved.slow_written) * LINE_BYTES;
            }
        }
        if let Some(streams) = streams {
            streams.count(piece.length);
        }
        loads
    }

    /// Counts down to the next samples: stores as they retire, loads of each tier as they reach it. Hardware counts retired loads by where they
    /// found their line, and a line that the prefetcher brought in time was found in a cache.
    fn sample<const CACHE: bool>(&mut self, missed: usize, loads: &[u32; TierId::MAX]) {
        let Hot { countdown, load_period, store_period, samples, workspace, .. } = self;
        let piece = &*workspace.0;
        if self.only_first_sampled && piece.thread != 0 {
            return;
        }
        let left = &mut countdown[piece.thread];
        let (load_period, store_period) = (*load_period, *store_period);
        let due = (store_period != 0 && left.stores <= piece.stores)
            || (load_period != 0 && left.loads.iter().zip(loads).any(|(left, loads)| left <= loads));
        if !due {
            // Nothing comes up in this piece, as in most.
            left.stores -= if store_period != 0 { piece.stores } else { 0 };
            if load_period != 0 {
                left.loads.iter_mut().zip(loads).for_each(|(left, loads)| *left -= loads);
            }
            return;
        }
        let mut to_memory = piece.missed[..missed].iter().map(|miss| miss.at()).peekable();
        for at in 0..piece.length {
            let (kind, page) = (piece.kinds[at], piece.requests[at].page());
            let reaches_memory = !CACHE || to_memory.next_if_eq(&at).is_some();
            let (left, period, access) = if kind.is_store() {
                (&mut left.stores, store_period, Access::Store)
            } else if reaches_memory && kind.is_counted_load() {
                (&mut left.loads[kind.tier()], load_period, Access::Load)
            } else {
                continue;
            };
            if period == 0 {
                continue;
            }
            *left -= 1;
            if *left == 0 {
                *left = period;
                samples.push(Sample { page, access });
            }
        }
    }
}

/// The kind of a miss, `at` accesses into its piece, by what the thread's prefetcher was to it.
#[inline(always)]
fn followed(streams: &mut Option<&mut Streams>, line: u64, at: usize, kind: Kind, takes: &[u32; TierId::MAX]) -> Kind {
    match streams {
        Some(streams) => kind.with(streams.follow(line, at, takes[kind.tier() & (TierId::MAX - 1)])),
        None => kind,
    }
}

/// Asks the host to bring the page word of an access into its cache.
#[inline(always)]
fn ask_for<R: Record>(words: &[PageWord], base: u64, records: &[R], at: usize) {
    if let Some(access) = records.get(at)
        && let Some(word) = words.get(access.page().wrapping_sub(base) as usize)
    {
        prefetch(word);
    }
}

/// The tier of the page that a line belongs to, if it has memory that loads and stores reach: a page that went meanwhile
/// takes its dirty lines with it.
fn owner_tier(words: &[PageWord], line: u64) -> Option<usize> {
    let word = words.get((line / PAGE_LINES) as usize)?;
    (!word.has(PageWord::ABSENT | PageWord::STORED)).then(|| word.tier_index())
}
