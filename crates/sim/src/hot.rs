//! The inner loop: one access after another through TLB, cache and memory, until one faults or the batch ends.
//!
//! In: a batch. Out: counters by thread and tier, bytes by tier, samples. Must not: take a fault, move a page or speak to
//! the engine: it stops at the access that needs any of that, and is called again from there.

use safe_arch::prefetch_t0;
use terrace_core::observation::Access;
use terrace_core::units::TierId;
use terrace_machine::cache::{Cache, Filtered, LINE_BYTES, PAGE_LINES};
use terrace_machine::load::{ThreadWork, Wait};
use terrace_machine::media::Media;
use terrace_machine::memory::{Memory, PageWord};
use terrace_machine::memory_mode::MemoryMode;
use terrace_machine::preset::TlbSpec;
use terrace_machine::tlb::{Tlb, Translation};

use crate::mmu::MmuRun;
use crate::record::Record;

/// How far ahead page words are asked for: long enough to hide a miss of the host, short enough to stay in its buffers.
const AHEAD: usize = 16;

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

/// Everything the loop touches.
pub(crate) struct Hot {
    pub(crate) memory: Memory,
    pub(crate) work: Vec<ThreadWork>,
    pub(crate) countdown: Vec<Countdown>,
    pub(crate) tlbs: Vec<Tlb>,
    pub(crate) tlb_spec: TlbSpec,
    pub(crate) cache: Option<Cache>,
    pub(crate) memory_mode: Option<MemoryMode>,
    pub(crate) media: Vec<Media>,
    pub(crate) read: [u64; TierId::MAX],
    pub(crate) written: [u64; TierId::MAX],
    pub(crate) samples: Vec<Sample>,
    /// Sample periods; 0 while nothing samples.
    pub(crate) load_period: u32,
    pub(crate) store_period: u32,
    pub(crate) extra_cycles: u32,
    /// The source's number of page 0.
    pub(crate) base: u64,
    /// Whether every access that reaches memory is written down, for the clairvoyant policy's oracle.
    pub(crate) record_misses: bool,
    pub(crate) missed: Vec<u32>,
    /// TLB lookups that ended in the second level, and in a walk.
    pub(crate) second_hits: u64,
    pub(crate) walks: u64,
    /// The MMU, where it is modelled: then the TLBs above are not used.
    pub(crate) mmu: Option<Box<MmuRun>>,
}

impl Hot {
    /// Runs the batch from index `from` on.
    pub(crate) fn run<R: Record>(&mut self, batch: &[R], from: usize) -> Stop {
        if self.mmu.is_some() {
            return self.run_mmu(batch, from);
        }
        if self.record_misses {
            return match (!self.tlbs.is_empty(), self.cache.is_some()) {
                (false, false) => self.run_with::<R, false, false, false, true>(batch, from),
                (true, false) => self.run_with::<R, true, false, false, true>(batch, from),
                (false, true) => self.run_with::<R, false, true, false, true>(batch, from),
                (true, true) => self.run_with::<R, true, true, false, true>(batch, from),
            };
        }
        match (!self.tlbs.is_empty(), self.cache.is_some(), self.memory_mode.is_some()) {
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

    // Kept apart: one function with every variant in it would share its registers among them.
    #[inline(never)]
    fn run_with<R: Record, const TLB: bool, const CACHE: bool, const MODE: bool, const RECORD: bool>(
        &mut self,
        batch: &[R],
        from: usize,
    ) -> Stop {
        // Everything the loop touches is taken apart first: behind one reference, each store to an array would make the
        // host load every array's address anew.
        let Hot { memory, work, countdown, tlbs, tlb_spec, cache, memory_mode, media, samples, missed, .. } = self;
        let (words, work, countdown) = (memory.words_mut(), work.as_mut_slice(), countdown.as_mut_slice());
        let (tlbs, media) = (tlbs.as_mut_slice(), media.as_mut_slice());
        let (base, extra_cycles) = (self.base, self.extra_cycles);
        let (load_period, store_period) = (self.load_period, self.store_period);
        let cores = tlbs.len().max(1);
        let mut read = [0u64; TierId::MAX];
        let mut written = [0u64; TierId::MAX];
        let mut translations = [0u64; 3];
        let translation_ns = [
            [0.0, tlb_spec.second_hit_ns, tlb_spec.second_hit_ns + tlb_spec.walk_small_ns],
            [0.0, tlb_spec.second_hit_ns, tlb_spec.second_hit_ns + tlb_spec.walk_huge_ns],
        ];
        let mut stop = Stop::End;
        for (index, access) in batch.iter().enumerate().skip(from) {
            if let Some(ahead) = batch.get(index + AHEAD) {
                let page = ahead.page().wrapping_sub(base);
                if let Some(word) = words.get(page as usize) {
                    prefetch_t0(word);
                }
                if CACHE && let Some(cache) = &cache {
                    cache.prefetch(page.wrapping_mul(PAGE_LINES) + u64::from(ahead.line()));
                }
            }
            let page = access.page().wrapping_sub(base);
            let thread = access.thread();
            let (Some(word), Some(work)) = (words.get_mut(page as usize), work.get_mut(thread)) else {
                stop = Stop::At(index);
                break;
            };
            if word.has(PageWord::FAULTS) {
                stop = Stop::At(index);
                break;
            }
            let wait = access.wait();
            let store = wait == Wait::Store;
            let seen = word.with(PageWord::ACCESSED | if store { PageWord::DIRTY } else { 0 });
            // Most accesses find the bits set; not writing spares the host a dirty line.
            if seen != *word {
                *word = seen;
            }
            let page = page as u32;
            work.cycles += u64::from(access.cycles() + extra_cycles);
            if TLB {
                let core = if thread < cores { thread } else { thread % cores };
                let huge = seen.has(PageWord::HUGE);
                let found = tlbs[core].translate(page, huge) as usize;
                // A table instead of a branch: which it is cannot be foretold.
                work.stall_ns += translation_ns[usize::from(huge)][found];
                translations[found] += 1;
            }
            if store && store_period != 0 {
                let left = &mut countdown[thread].stores;
                *left -= 1;
                if *left == 0 {
                    *left = store_period;
                    samples.push(Sample { page, access: Access::Store });
                }
            }
            let line = u64::from(page) * PAGE_LINES + u64::from(access.line());
            let mut writeback = None;
            if CACHE && let Some(cache) = cache {
                match cache.access(line, store) {
                    Filtered::Hit => {
                        work.cache_hits += 1;
                        continue;
                    }
                    Filtered::Miss { writeback: line } => writeback = line,
                }
            }
            let mut tier = seen.tier_index();
            if RECORD {
                missed.push(page);
            }
            if MODE && let Some(mode) = memory_mode {
                // With a cache in front, a store that misses reads its line; the line is written when it leaves.
                let moved = mode.access(page, access.line(), store && !CACHE);
                read[0] += u64::from(moved.fast_read) * LINE_BYTES;
                written[0] += u64::from(moved.fast_written) * LINE_BYTES;
                if moved.slow_read > 0 {
                    read[tier] += u64::from(media[tier].bytes(line));
                }
                written[tier] += u64::from(moved.slow_written) * LINE_BYTES;
                work.misses[0][wait as usize] += 1;
                if moved.hit {
                    tier = 0;
                } else {
                    work.misses[tier][wait as usize] += 1;
                }
            } else {
                work.misses[tier][wait as usize] += 1;
                let bytes = u64::from(media[tier].bytes(line));
                read[tier] += bytes;
                if store && !CACHE {
                    // No cache holds the line back: what was read to be written is written as well.
                    written[tier] += bytes;
                }
            }
            if let Some(line) = writeback {
                let owner = (line / PAGE_LINES) as usize;
                // A page that went meanwhile takes its dirty lines with it.
                if let Some(word) = words.get(owner).filter(|word| !word.has(PageWord::ABSENT | PageWord::STORED)) {
                    let tier = word.tier_index();
                    if MODE && let Some(mode) = memory_mode {
                        let moved = mode.access(owner as u32, (line % PAGE_LINES) as u32, true);
                        read[0] += u64::from(moved.fast_read) * LINE_BYTES;
                        written[0] += u64::from(moved.fast_written) * LINE_BYTES;
                        read[tier] += u64::from(moved.slow_read) * LINE_BYTES;
                        written[tier] += u64::from(moved.slow_written) * LINE_BYTES;
                    } else {
                        written[tier] += u64::from(media[tier].bytes(line));
                    }
                }
            }
            if !store && load_period != 0 {
                let left = &mut countdown[thread].loads[tier];
                *left -= 1;
                if *left == 0 {
                    *left = load_period;
                    samples.push(Sample { page, access: Access::Load });
                }
            }
        }
        for tier in 0..TierId::MAX {
            self.read[tier] += read[tier];
            self.written[tier] += written[tier];
        }
        self.second_hits += translations[Translation::Second as usize];
        self.walks += translations[Translation::Walk as usize];
        stop
    }
}
