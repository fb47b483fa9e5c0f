//! One thread of the native micro-benchmark.
//!
//! In: its part of a benchmark, the memory, the pages that are on their way. Out: loads and operations as they were made, and orders for the
//! mover. Must not: visit a page that is on its way, or count a promotion that the kernel did not make.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::Duration;

use terrace_core::units::Vpn;
use terrace_linux::pagemap::{Pagemap, Residence};
use terrace_sizing::Benchmark;

use super::{Layout, Order, PAGE, Why};

/// Lines of a page, and bytes of a line.
const LINES: u64 = 64;
const LINE: u64 = 64;
/// A thread that can only wait for the mover looks again after this: about the time of some page-outs.
const WAIT: Duration = Duration::from_micros(50);

/// Kinds of visits: to pages of the fast array, to those of it that lie in slow memory, to pages of the slow array; before a
/// promotion, before a demotion.
const KINDS: usize = 5;
const PROMOTE: usize = 3;

/// Pages that wait to be promoted and demoted, of all threads: one that was promoted can be demoted, and the other way round.
pub(super) struct Movable {
    to_promote: Mutex<VecDeque<u64>>,
    to_demote: Mutex<VecDeque<u64>>,
}

impl Movable {
    pub(super) fn new(layout: &Layout) -> Movable {
        let queue = |range: &Range<u64>| Mutex::new(range.clone().collect());
        Movable { to_promote: queue(&layout.promoted), to_demote: queue(&layout.demoted) }
    }

    /// The next page to be promoted or demoted, marked as on its way; `None` while there is none that is not.
    fn take(&self, promote: bool, under_way: &[AtomicBool]) -> Option<u64> {
        let (from, to) =
            if promote { (&self.to_promote, &self.to_demote) } else { (&self.to_demote, &self.to_promote) };
        let ready = |page: &mut u64| !under_way[*page as usize].load(Ordering::Acquire);
        let page = from.lock().unwrap_or_else(PoisonError::into_inner).pop_front_if(ready)?;
        // Before another thread can find it in the other queue.
        under_way[page as usize].store(true, Ordering::Release);
        to.lock().unwrap_or_else(PoisonError::into_inner).push_back(page);
        Some(page)
    }
}

/// What all threads have in common.
#[derive(Clone, Copy)]
pub(super) struct Common<'a> {
    pub benchmark: &'a Benchmark,
    pub layout: &'a Layout,
    pub movable: &'a Movable,
    /// Pages that are not to be visited now.
    pub under_way: &'a [AtomicBool],
    pub bytes: &'a [u8],
    /// The first page of them.
    pub base: Vpn,
    pub threads: u64,
    /// Whether a visit to a slow page is a fault.
    pub faults: bool,
}

/// What a thread did.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Done {
    pub loads: u64,
    /// Accesses that slow memory served: loads from a node, or visits that faulted.
    pub slow_loads: u64,
    /// Visits that promoted, where a visit does.
    pub promotions: u64,
    pub computed: u64,
}

/// One thread with its part of everything.
pub(super) struct Worker<'a> {
    common: Common<'a>,
    sender: mpsc::SyncSender<Order>,
    pagemap: Pagemap,
    /// Its pages of the three kinds that stay where they are, and where in them it is.
    ranges: [Range<u64>; PROMOTE],
    at: [u64; PROMOTE],
    /// Visits of each kind that are left.
    left: [u64; KINDS],
    /// Operations an access, and what is due of them.
    each: f64,
    due: f64,
    done: Done,
    sum: u64,
}

impl<'a> Worker<'a> {
    /// Thread number `thread`.
    ///
    /// # Errors
    /// When the page map of this process cannot be opened.
    pub(super) fn new(common: Common<'a>, thread: u64, sender: mpsc::SyncSender<Order>) -> std::io::Result<Worker<'a>> {
        let (b, layout, threads) = (common.benchmark, common.layout, common.threads);
        let part =
            |amount: u64, of: u64, whole: u64| (u128::from(amount) * u128::from(of) / u128::from(whole.max(1))) as u64;
        let even = |amount: u64| part(amount, thread + 1, threads) - part(amount, thread, threads);
        let (mut ranges, mut left) = ([0..0, 0..0, 0..0], [0; KINDS]);
        let visits = |accesses: u64, a_visit: u32| accesses.div_ceil(u64::from(a_visit.max(1)));
        for (kind, range, visits) in [
            (0, &layout.fast, visits(b.fast_accesses + b.spared_accesses, b.fast_accesses_a_visit)),
            (1, &layout.overflow, visits(b.overflow_accesses, b.fast_accesses_a_visit)),
            (2, &layout.slow, visits(b.slow_accesses, b.slow_accesses_a_visit)),
        ] {
            let count = range.end - range.start;
            let (from, to) = (part(count, thread, threads), part(count, thread + 1, threads));
            ranges[kind] = range.start + from..range.start + to;
            // As many visits as it has of the pages: where there are fewer pages than threads, some have none.
            left[kind] = part(visits, to, count) - part(visits, from, count);
        }
        (left[PROMOTE], left[PROMOTE + 1]) = (even(b.promotions), even(b.demotions));
        let each = b.operations as f64 / b.accesses().max(1) as f64;
        Ok(Worker {
            common,
            sender,
            pagemap: Pagemap::open(std::process::id())?,
            ranges,
            at: [0; PROMOTE],
            left,
            each,
            due: 0.0,
            done: Done::default(),
            sum: 0,
        })
    }

    /// Makes all its visits, the kinds at random in the proportion of what is left of them.
    pub(super) fn work(mut self, seed: u64) -> Done {
        let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        // Kinds whose next page is on its way.
        let mut blocked = [false; KINDS];
        loop {
            let open = |kind: usize| if blocked[kind] { 0 } else { self.left[kind] };
            let all: u64 = (0..KINDS).map(open).sum();
            if all == 0 {
                if self.left == [0; KINDS] {
                    break;
                }
                std::thread::sleep(WAIT);
                blocked = [false; KINDS];
                continue;
            }
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let mut drawn = ((u128::from(random >> 11) * u128::from(all)) >> 53) as u64;
            let mut kind = 0;
            while drawn >= open(kind) {
                drawn -= open(kind);
                kind += 1;
            }
            blocked[kind] = !self.visit(kind);
        }
        std::hint::black_box(self.sum);
        self.done
    }

    /// Makes the next visit of a kind; `false` if its page is on its way.
    fn visit(&mut self, kind: usize) -> bool {
        let Common { benchmark: b, under_way, faults, movable, .. } = self.common;
        let (page, pass) = if kind < PROMOTE {
            let (range, at) = (&self.ranges[kind], self.at[kind]);
            let count = (range.end - range.start).max(1);
            let page = range.start + at % count;
            if under_way[page as usize].load(Ordering::Acquire) {
                return false;
            }
            self.at[kind] += 1;
            (page, at / count)
        } else {
            let Some(page) = movable.take(kind == PROMOTE, under_way) else { return false };
            (page, self.left[kind])
        };
        self.left[kind] -= 1;
        let accesses = match kind {
            0 | 1 => b.fast_accesses_a_visit,
            2 => b.slow_accesses_a_visit,
            PROMOTE => b.accesses_a_promotion,
            _ => 1,
        };
        let promotes = kind == PROMOTE && faults;
        if promotes {
            self.done.promotions += u64::from(self.is_out(page));
        }
        self.access(page, pass, accesses);
        if matches!(kind, 1..=PROMOTE) {
            // One visit is one fault; from a node, every load is slow.
            self.done.slow_loads += if faults { 1 } else { u64::from(accesses) };
        }
        if promotes {
            under_way[page as usize].store(false, Ordering::Release);
            return true;
        }
        let why = match kind {
            1 | 2 if faults => Why::PutOutAgain,
            0..=2 => return true,
            PROMOTE => Why::Promote,
            _ => Why::Demote,
        };
        under_way[page as usize].store(true, Ordering::Release);
        // The mover is there until the last thread has let go of its end.
        let _ = self.sender.send(Order { page, why, tries: 0 });
        true
    }

    fn access(&mut self, page: u64, pass: u64, accesses: u32) {
        let stride = LINES / u64::from(accesses).clamp(1, LINES);
        for access in 0..u64::from(accesses.max(1)) {
            let line = (pass + access * stride) % LINES;
            let place = page as usize * PAGE + (line * LINE) as usize;
            self.sum = self.sum.wrapping_add(u64::from(std::hint::black_box(self.common.bytes)[place]));
            self.done.loads += 1;
            self.due += self.each;
            while self.due >= 1.0 {
                // An integer multiplication and an addition that depend on what was loaded.
                self.sum = std::hint::black_box(self.sum.wrapping_mul(3).wrapping_add(1));
                self.done.computed += 1;
                self.due -= 1.0;
            }
        }
    }

    /// Whether the page is in swap now. One that cannot be looked up counts as not promoted.
    fn is_out(&mut self, page: u64) -> bool {
        let mut residence = [Residence::Absent];
        let looked = self.pagemap.residences(Vpn(self.common.base.0 + page), &mut residence);
        looked.is_ok() && residence[0] == Residence::Swapped
    }
}
