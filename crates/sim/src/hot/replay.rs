//! The inner loop with the MMU: one access after another through tables, counters, cache and memory.
//!
//! In: a batch, most often one core's. Out: counters by core and tier, bytes by tier, samples, the cores' clocks. Must not:
//! take a fault, move a page or speak to the engine: it stops at the access that needs any of that.
//!
//! It stands beside the loop of `hot` instead of in it: walks and counters go through the same cache as data, access by access, so its stages
//! cannot run one after the other over a piece, which is what makes that loop fast.

use terrace_core::observation::Access;
use terrace_core::prefetch::prefetch;
use terrace_core::units::TierId;
use terrace_machine::cache::{Cache, Filtered, LINE_BYTES, PAGE_LINES};
use terrace_machine::load::Wait;
use terrace_machine::memory::PageWord;
use terrace_machine::mmu::tables::FIRST_FRAME;
use terrace_machine::mmu::{Lines, Mmu, Size, Use};

use super::streams::Ahead;
use super::{Hot, Sample, Stop};
use crate::hotness::trackers::Access as Watched;
use crate::mmu::MmuRun;
use crate::record::Record;

/// How far ahead the host is asked for what an access will read.
const AHEAD: usize = 16;

/// The cache hierarchy and memory as walks and counters see them.
struct Hierarchy<'a> {
    cache: Option<&'a mut Cache>,
    latency: &'a [[f64; 2]; TierId::MAX],
    hit_ns: f64,
    read: &'a mut [u64; TierId::MAX],
    lines: &'a mut [[u64; 2]; TierId::MAX],
    /// Dirty lines that had to leave; whose they are is found out after the walk.
    left: &'a mut Vec<u64>,
}

impl Lines for Hierarchy<'_> {
    fn touch(&mut self, line: u64, write: bool, tier: TierId) -> f64 {
        if let Some(cache) = &mut self.cache {
            match cache.access(line, write) {
                Filtered::Hit => return self.hit_ns,
                Filtered::Miss { writeback } => self.left.extend(writeback),
            }
        }
        self.read[tier.index()] += LINE_BYTES;
        self.lines[tier.index()][0] += 1;
        self.latency[tier.index()][0]
    }
}

impl Hot {
    /// Runs the batch from index `from` on, through the MMU.
    #[inline(never)]
    pub(super) fn run_mmu<R: Record>(&mut self, batch: &[R], from: usize) -> Stop {
        let Some(run) = self.mmu.as_deref_mut() else { return Stop::At(from) };
        let MmuRun {
            mmu,
            own_cache,
            interleaver,
            ns_per_cycle,
            hit_ns,
            parallelism,
            stream_parallelism,
            latency,
            table_lines,
            probe,
            served,
            ..
        } = run;
        let (ns_per_cycle, hit_ns, overlap) = (*ns_per_cycle, *hit_ns, 1.0 / *parallelism);
        let stream_overlap = 1.0 / *stream_parallelism;
        let words = self.memory.words_mut();
        let mut read = [0u64; TierId::MAX];
        let mut written = [0u64; TierId::MAX];
        let mut left: Vec<u64> = Vec::new();
        let mut stop = Stop::End;
        for (index, access) in batch.iter().enumerate().skip(from) {
            if let Some(ahead) = batch.get(index + AHEAD) {
                let page = ahead.page().wrapping_sub(self.base);
                if let Some(word) = words.get(page as usize) {
                    prefetch(word);
                }
                if let Some(cache) = &self.cache {
                    cache.prefetch(page.wrapping_mul(PAGE_LINES) + u64::from(ahead.line()));
                }
            }
            if let Some(ahead) = batch.get(index + AHEAD / 2) {
                let page = ahead.page().wrapping_sub(self.base);
                if let Some(word) = words.get(page as usize)
                    && let Some(line) = mmu.prefetch(page as u32, word.has(PageWord::HUGE))
                    && let Some(cache) = self.cache.as_ref().or(own_cache.as_ref())
                {
                    cache.prefetch(line);
                }
            }
            let page = access.page().wrapping_sub(self.base);
            let thread = access.thread();
            let (Some(word), Some(work)) = (words.get_mut(page as usize), self.work.get_mut(thread)) else {
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
            if seen != *word {
                *word = seen;
            }
            let page = page as u32;
            let mut tier = seen.tier_index();
            let cycles = u64::from(access.cycles() + self.extra_cycles);
            work.cycles += cycles;
            let clock = &mut interleaver.core_mut(thread).clock_ns;
            let mut nanos = cycles as f64 * ns_per_cycle;

            let size = if seen.has(PageWord::HUGE) { Size::Huge } else { Size::Small };
            let mut hierarchy = Hierarchy {
                cache: self.cache.as_mut().or(own_cache.as_mut()),
                latency,
                hit_ns,
                read: &mut read,
                lines: table_lines,
                left: &mut left,
            };
            let share = if wait == Wait::Dependent { 1.0 } else { overlap };
            let used = Use { page, size, store, tier: TierId(tier as u8), share };
            let before = if probe.is_some() { walked(mmu, thread) } else { (0, 0) };
            let waited = mmu.access(thread, used, *clock + nanos, &mut hierarchy);
            work.stall_ns += waited;
            nanos += waited;

            if store && self.store_period != 0 {
                let left = &mut self.countdown[thread].stores;
                *left -= 1;
                if *left == 0 {
                    *left = self.store_period;
                    self.samples.push(Sample { page, access: Access::Store });
                }
            }
            if let Some(streams) = self.streams.get_mut(thread) {
                streams.count(1);
            }
            let line = u64::from(page) * PAGE_LINES + u64::from(access.line());
            let mut hit = false;
            if let Some(cache) = &mut self.cache {
                match cache.access(line, store) {
                    Filtered::Hit => hit = true,
                    Filtered::Miss { writeback } => left.extend(writeback),
                }
            }
            if let Some(probe) = probe {
                let found = found(mmu, thread, before);
                probe.see(Watched { page, huge: size == Size::Huge, store, missed: !hit, found });
            }
            if hit {
                work.cache_hits += 1;
                *clock += nanos + hit_ns * overlap;
            } else {
                if self.record_misses {
                    self.missed.push(page);
                }
                let moved = self.memory_mode.as_mut().map(|mode| {
                    let moved = mode.access(page, access.line(), store && self.cache.is_none());
                    (moved, if moved.hit { 0 } else { tier })
                });
                let takes = self.line_takes[moved.map_or(tier, |(_, served)| served)];
                let ahead = self.streams.get_mut(thread).map_or(Ahead::No, |streams| streams.follow(line, 0, takes));
                let wait = match (ahead, store) {
                    (Ahead::No, _) => wait,
                    (Ahead::InTime, false) => Wait::Streamed,
                    (Ahead::Late, false) => Wait::Late,
                    (Ahead::InTime | Ahead::Late, true) => Wait::StreamedStore,
                };
                if let Some((moved, served)) = moved {
                    read[0] += u64::from(moved.fast_read) * LINE_BYTES;
                    written[0] += u64::from(moved.fast_written) * LINE_BYTES;
                    if moved.slow_read > 0 {
                        read[tier] += u64::from(self.media[tier].read_bytes(line));
                    }
                    written[tier] += u64::from(moved.slow_written) * LINE_BYTES;
                    work.misses[0][wait as usize] += 1;
                    if !moved.hit {
                        work.misses[tier][wait as usize] += 1;
                        nanos += latency[0][0]
                            * match wait {
                                Wait::Dependent => 1.0,
                                Wait::Load | Wait::Store => overlap,
                                Wait::Streamed | Wait::Late | Wait::StreamedStore => stream_overlap,
                            };
                    }
                    tier = served;
                } else {
                    work.misses[tier][wait as usize] += 1;
                    let bytes = u64::from(self.media[tier].read_bytes(line));
                    read[tier] += bytes;
                    if store && self.cache.is_none() {
                        written[tier] += bytes;
                    }
                }
                if let Some(served) = served {
                    served.add(page, tier);
                }
                let [loaded, stored] = latency[tier];
                *clock += nanos
                    + match wait {
                        Wait::Load => loaded * overlap,
                        Wait::Dependent => loaded,
                        Wait::Store => stored * overlap,
                        Wait::Streamed | Wait::Late => loaded * stream_overlap,
                        Wait::StreamedStore => stored * stream_overlap,
                    };
                if wait.is_counted_load() && self.load_period != 0 {
                    let left = &mut self.countdown[thread].loads[tier];
                    *left -= 1;
                    if *left == 0 {
                        *left = self.load_period;
                        self.samples.push(Sample { page, access: Access::Load });
                    }
                }
            }
            for line in left.drain(..) {
                let owner = line / PAGE_LINES;
                if owner >= u64::from(FIRST_FRAME) {
                    if let Some(tier) = mmu.tables.tier_of_line(line) {
                        written[tier.index()] += LINE_BYTES;
                        table_lines[tier.index()][1] += 1;
                    }
                    continue;
                }
                // A page that went meanwhile takes its dirty lines with it.
                let word = words.get(owner as usize).filter(|word| !word.has(PageWord::ABSENT | PageWord::STORED));
                if let Some(word) = word {
                    let tier = word.tier_index();
                    if let Some(mode) = &mut self.memory_mode {
                        let moved = mode.access(owner as u32, (line % PAGE_LINES) as u32, true);
                        read[0] += u64::from(moved.fast_read) * LINE_BYTES;
                        written[0] += u64::from(moved.fast_written) * LINE_BYTES;
                        read[tier] += u64::from(moved.slow_read) * LINE_BYTES;
                        written[tier] += u64::from(moved.slow_written) * LINE_BYTES;
                    } else {
                        written[tier] += u64::from(self.media[tier].written_bytes(line));
                    }
                }
            }
        }
        for tier in 0..TierId::MAX {
            self.add_bytes(tier, [read[tier], written[tier]]);
        }
        stop
    }
}

/// Which TLB level an access was found in, from a core's totals before it and after.
fn found(mmu: &Mmu, core: usize, before: (u64, u64)) -> u8 {
    let after = walked(mmu, core);
    if after.1 > before.1 { 2 } else { u8::from(after.0 > before.0) }
}

/// Second-level hits and walks of a core so far.
fn walked(mmu: &Mmu, core: usize) -> (u64, u64) {
    mmu.totals().nth(core).map_or((0, 0), |totals| (totals.second_hits, totals.walks))
}
