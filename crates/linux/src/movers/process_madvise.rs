//! Moves pages to swap with process_madvise(MADV_PAGEOUT), and back ahead of their use with process_vm_readv.
//!
//! In: moves from a node tier to the swap tier or back. Out: for each what the page tables say afterwards, for the calls
//! only say what was advised. Page-outs run at the lowest priority. Must not: split a huge page (a move of 512 pages is always advised whole), or stall the
//! target beyond the deadline where a batch of the least size can help it.
//!
//! What makes up a whole 2 MiB block goes first, block by block, as one huge page where that can be made of it (`blocks.rs`): seven times
//! cheaper for the mover, a hundred times for the program. The rest goes page by page.
//!
//! Where writes to zram failed (`failed_writes.rs`), pages got a swap entry and stayed in memory, which no page table shows: those of the batch
//! are taken back, so that they are where they are said to be, and the rest finds no room.
//!
//! Pages that another CPU faulted just now are in its folio batch (31 at most) and stay this once; shared ones stay for good.
//!
//! Out: a batch is sorted by address and neighbours are merged into one range each, at most 1024 ranges and 64 MiB a
//! call. The kernel stops at the first range that it refuses; that range is halved until the page is found that is at
//! fault. Back: one byte of each page is read, 1024 pages a call; the fault is served on Terrace's time, and the swap
//! slot is freed (WILLNEED would keep the slot and leave the target a minor fault).

use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use terrace_core::plan::Failure;
use terrace_core::units::{BLOCK_PAGES, PAGE_BYTES, TierId, Vpn};

use super::blocks::{self, Apart, Block, Blocks};
use super::failed_writes::FailedWrites;
use super::low_priority::LowPriority;
use super::move_pages::take;
use super::same_processor::BusyThread;
use super::{BatchSize, MoveCost, MoveCounts, MoveResult, Mover, PageMove};
use crate::pagemap::{Pagemap, PagemapEntry, Residence};
use crate::process::Process;
use crate::sys::{self, RemoteRange};
use crate::topology::{TierKind, TierMap};

/// Most ranges a call takes (IOV_MAX of linux/uio.h).
const RANGES: usize = 1024;
/// Pages of the first call, and least and most pages of a call. A call that loses its processor to the programs holds the read side of the target's
/// address space lock meanwhile, so on a busy machine calls shrink to 64 pages; more than 64 MiB would reach past any deadline.
const FIRST_PAGES: u32 = 256;
const LEAST_PAGES: u32 = 64;
const MOST_PAGES: u32 = 16384;
/// Most pages of a call on the program's own processor: it waits meanwhile, half a millisecond.
const LOCAL_PAGES: u32 = 128;
/// How often a call that the kernel interrupted is made again.
const RETRIES: u32 = 8;
/// Pages that are taken back at a time where writes failed, and how many in a row may turn out to have been written before the search for others
/// ends: zram refuses what comes last, but for a few pages that fit into holes, and for whole blocks of zeros.
const CHUNK: usize = 64;
const WRITTEN_IN_A_ROW: usize = 1024;

/// The mover to and from swap. Its memory is that of one batch.
#[derive(Debug)]
pub struct ProcessMadvise {
    out: BatchSize,
    back: BatchSize,
    blocks: Blocks,
    busy: BusyThread,
    writes: FailedWrites,
    /// The batch's moves by address: indices into it.
    order: Vec<u32>,
    /// Ranges still to be advised: runs of `order`, next one last.
    pending: Vec<Run>,
    ranges: Vec<RemoteRange>,
    /// Which move each of `ranges` belongs to, on the way back.
    owners: Vec<u32>,
    refused: Vec<Option<Failure>>,
    places: Vec<Place>,
    residences: Vec<Residence>,
    entries: Vec<PagemapEntry>,
    bytes: Vec<u8>,
}

/// Where the pages of a batch should be now.
enum Wanted<'a> {
    /// In swap.
    Swapped,
    /// In memory.
    Present,
    /// In memory, and in the tier that was asked for.
    InTier(&'a TierMap),
}

/// Where one page is, as seen from there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Wanted,
    Elsewhere,
    Absent,
}

/// Moves `start..end` of the order, which lie side by side in the address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    start: u32,
    end: u32,
}

impl ProcessMadvise {
    /// A mover whose calls stay within `deadline` where 64 pages can.
    pub fn new(deadline: Duration) -> ProcessMadvise {
        ProcessMadvise {
            out: BatchSize::new(FIRST_PAGES, LEAST_PAGES, MOST_PAGES, deadline),
            back: BatchSize::new(RANGES as u32, 64, RANGES as u32, deadline),
            blocks: Blocks::default(),
            busy: BusyThread::default(),
            writes: FailedWrites::default(),
            order: Vec::new(),
            pending: Vec::new(),
            ranges: Vec::new(),
            owners: Vec::new(),
            refused: Vec::new(),
            places: Vec::new(),
            residences: Vec::new(),
            entries: Vec::new(),
            bytes: Vec::new(),
        }
    }

    /// Sorts the batch by address and makes one run of what lies side by side.
    fn arrange(&mut self, moves: &[PageMove]) {
        self.refused.clear();
        self.refused.resize(moves.len(), None);
        self.order.clear();
        self.order.extend(0..moves.len() as u32);
        self.order.sort_unstable_by_key(|index| moves[*index as usize].vpn);
        self.pending.clear();
        for (place, index) in (0..).zip(&self.order) {
            let vpn = moves[*index as usize].vpn;
            match self.pending.last_mut() {
                Some(run) if end_of(&moves[self.order[run.end as usize - 1] as usize]) == vpn => run.end = place + 1,
                _ => self.pending.push(Run { start: place, end: place + 1 }),
            }
        }
        self.pending.reverse();
    }

    /// Advises all pending runs. Says why, if the whole process refuses.
    fn advise(&mut self, pidfd: BorrowedFd<'_>, moves: &[PageMove], cost: &mut MoveCost) -> Option<Failure> {
        let mut retries = 0;
        while !self.pending.is_empty() {
            self.ranges.clear();
            for run in self.pending.iter().rev().take(RANGES) {
                let first = moves[self.order[run.start as usize] as usize].vpn;
                let end = end_of(&moves[self.order[run.end as usize - 1] as usize]);
                self.ranges.push(remote(first, end.0 - first.0));
            }
            let started = Instant::now();
            let advised = sys::process_madvise(pidfd, &self.ranges, libc::MADV_PAGEOUT);
            cost.add_call(started.elapsed());
            match advised {
                Ok(bytes) => {
                    let whole = whole_ranges(&self.ranges, bytes);
                    self.pending.truncate(self.pending.len() - whole);
                    // Short: the next call begins with the range that was refused, and says why.
                    if whole == 0 {
                        self.split_or_refuse(Failure::Errno(libc::EIO));
                    }
                }
                Err(error) => match error.raw_os_error() {
                    Some(libc::ESRCH) => return Some(Failure::Gone),
                    Some(libc::EINTR | libc::EAGAIN) if retries < RETRIES => retries += 1,
                    Some(errno @ (libc::EPERM | libc::EBADF | libc::ENOSYS)) => return Some(Failure::Errno(errno)),
                    errno => self.split_or_refuse(Failure::Errno(errno.unwrap_or(libc::EIO))),
                },
            }
        }
        None
    }

    /// The next run was refused: halves it, or blames its one move.
    fn split_or_refuse(&mut self, failure: Failure) {
        let Some(run) = self.pending.pop() else { return };
        if run.end - run.start == 1 {
            self.refused[self.order[run.start as usize] as usize] = Some(failure);
        } else {
            let middle = run.start.midpoint(run.end);
            self.pending.push(Run { start: middle, end: run.end });
            self.pending.push(Run { start: run.start, end: middle });
        }
    }

    /// Pages all of `moves` out: whole blocks first, then the rest in their order. Pushes the results in the order of `moves`.
    fn send(
        &mut self,
        process: &Process,
        pagemap: &mut Pagemap,
        moves: &[PageMove],
        tiers: &TierMap,
        results: &mut Vec<MoveResult>,
        cost: &mut MoveCost,
    ) {
        let gathered = blocks::gather(moves);
        let base = results.len();
        results.resize(base + moves.len(), MoveResult::none(Failure::Gone));
        let mut rest = gathered.rest;
        let mut written = if gathered.blocks.is_empty() { None } else { blocks::written_whole() };
        let mut answers = Vec::new();
        for (first, indices) in gathered.blocks {
            if !process.is_alive() {
                // Its pages are gone, as the results say already.
                continue;
            }
            if self.writes.pauses(Instant::now()) {
                rest.extend(indices);
                continue;
            }
            let began = Instant::now();
            let block = self.blocks.make_huge(process, pagemap, first, began);
            let collapsing = began.elapsed();
            cost.counts.collapsing += collapsing;
            cost.elapsed += collapsing;
            if let Block::Apart(why) = block {
                *cost.counts.apart.entry(why).or_default() += u64::from(BLOCK_PAGES);
                rest.extend(indices);
                continue;
            }
            let own: Vec<PageMove> = indices.iter().map(|index| moves[*index as usize]).collect();
            answers.clear();
            self.advise_out(process, pagemap, &own, false, &mut answers, cost);
            let done: u64 = answers.iter().map(|result| u64::from(result.done)).sum();
            if block == Block::Collapsed && done < u64::from(BLOCK_PAGES) {
                self.blocks.split_again(process, pagemap, first);
            }
            let after = written.and_then(|_| blocks::written_whole());
            // A huge page that the kernel split before it wrote it interrupted the program for each of its pages.
            let whole = match (written, after) {
                (Some((whole, split)), Some((now_whole, now_split))) => now_whole > whole || now_split == split,
                _ => false,
            };
            written = after;
            match block {
                _ if !whole => {
                    cost.counts.single += done;
                    *cost.counts.apart.entry(Apart::Split).or_default() += done;
                    self.blocks.pause(Instant::now(), Apart::Split);
                }
                Block::Huge => cost.counts.huge += done,
                _ => cost.counts.collapsed += done,
            }
            for (index, result) in indices.iter().zip(&answers) {
                results[base + *index as usize] = *result;
            }
        }
        let left: Vec<PageMove> = rest.iter().map(|index| moves[*index as usize]).collect();
        answers.clear();
        self.carry_in_batches(process, pagemap, &left, tiers, &mut answers, cost);
        for (index, result) in rest.iter().zip(&answers) {
            results[base + *index as usize] = *result;
        }
    }

    /// Moves in batches that fit the deadline, all to swap or all out of it. Pushes one result a move.
    fn carry_in_batches(
        &mut self,
        process: &Process,
        pagemap: &mut Pagemap,
        moves: &[PageMove],
        tiers: &TierMap,
        results: &mut Vec<MoveResult>,
        cost: &mut MoveCost,
    ) {
        let Some(outward) = moves.first().map(|item| Some(item.to) == tiers.swap_tier()) else { return };
        let mut rest = moves;
        while !rest.is_empty() {
            // process_vm_readv goes by pid, which another process may have by now.
            if !process.is_alive() {
                results.extend(rest.iter().map(|_| MoveResult::none(Failure::Gone)));
                return;
            }
            if outward && self.writes.pauses(Instant::now()) {
                results.extend(rest.iter().map(|_| MoveResult::none(Failure::NoRoom)));
                return;
            }
            let local = if outward { self.busy.join(process) } else { None };
            let most = if local.is_some() { LOCAL_PAGES } else { MOST_PAGES };
            let (count, pages) = take(rest, if outward { self.out.pages.min(most) } else { self.back.pages });
            let longest_before = std::mem::take(&mut cost.longest_call);
            let before = results.len();
            if outward {
                self.advise_out(process, pagemap, &rest[..count], local.is_some(), results, cost);
                let counts = by_unit(&rest[..count], &results[before..]);
                let local = if local.is_some() { counts.single } else { 0 };
                cost.counts.add(&MoveCounts { local, ..counts });
                self.out.learn(pages, cost.longest_call);
            } else {
                self.bring_back(process, pagemap, &rest[..count], tiers, results, cost);
                self.back.learn(pages, cost.longest_call);
            }
            cost.longest_call = cost.longest_call.max(longest_before);
            rest = &rest[count..];
        }
    }

    /// Pages one batch out and pushes its results. On the program's own processor it goes at the usual priority: lowered, the mover would wait
    /// for the program while it holds the lock of its address space.
    fn advise_out(
        &mut self,
        process: &Process,
        pagemap: &mut Pagemap,
        moves: &[PageMove],
        local: bool,
        results: &mut Vec<MoveResult>,
        cost: &mut MoveCost,
    ) {
        self.arrange(moves);
        self.writes.begin();
        let whole_call = {
            let _lowered = (!local).then(LowPriority::enter);
            self.advise(process.pidfd(), moves, cost)
        };
        let unwritten = self.writes.found(Instant::now());
        let base = results.len();
        self.read_back(pagemap, moves, &Wanted::Swapped, whole_call, results, cost);
        if unwritten {
            cost.unwritten += self.take_back(process, moves, &results[base..], cost);
            // The next try is a small one.
            self.out.pages = LEAST_PAGES;
            results.truncate(base);
            let reason = whole_call.or(Some(Failure::NoRoom));
            self.read_back(pagemap, moves, &Wanted::Swapped, reason, results, cost);
        }
    }

    /// Takes those pages of the batch back that are `out` and in memory still, the last ones first, and says how many they were. A page that was written comes
    /// back by a major fault of this thread, one that was not without any.
    fn take_back(&mut self, process: &Process, moves: &[PageMove], out: &[MoveResult], cost: &mut MoveCost) -> u64 {
        let order = std::mem::take(&mut self.order);
        let pages: Vec<(u32, Vpn)> = order
            .iter()
            .filter(|index| out[**index as usize].done > 0)
            .flat_map(|index| {
                let item = moves[*index as usize];
                (0..u64::from(item.pages)).map(move |page| (*index, Vpn(item.vpn.0 + page)))
            })
            .collect();
        self.order = order;
        let (mut found, mut in_a_row) = (0, 0);
        for chunk in pages.rchunks(CHUNK) {
            self.ranges.clear();
            self.owners.clear();
            for (index, vpn) in chunk {
                self.ranges.push(RemoteRange { length: 1, ..remote(*vpn, 1) });
                self.owners.push(*index);
            }
            let before = sys::thread_major_faults();
            if self.touch(process, cost).is_some() {
                break;
            }
            let written = (sys::thread_major_faults() - before).min(chunk.len() as u64);
            found += chunk.len() as u64 - written;
            in_a_row = if written as usize == chunk.len() { in_a_row + chunk.len() } else { 0 };
            if in_a_row >= WRITTEN_IN_A_ROW {
                break;
            }
        }
        found
    }

    /// Brings one batch back and pushes its results.
    fn bring_back(
        &mut self,
        process: &Process,
        pagemap: &mut Pagemap,
        moves: &[PageMove],
        tiers: &TierMap,
        results: &mut Vec<MoveResult>,
        cost: &mut MoveCost,
    ) {
        self.arrange(moves);
        self.ranges.clear();
        self.owners.clear();
        let mut whole_call = None;
        for place in 0..self.order.len() {
            let index = self.order[place];
            let item = &moves[index as usize];
            for page in 0..u64::from(item.pages) {
                self.ranges.push(RemoteRange { length: 1, ..remote(Vpn(item.vpn.0 + page), 1) });
                self.owners.push(index);
                if self.ranges.len() == RANGES && whole_call.is_none() {
                    whole_call = self.touch(process, cost);
                }
            }
        }
        if whole_call.is_none() {
            whole_call = self.touch(process, cost);
        }
        let wanted = if tiers.has_several_node_tiers() { Wanted::InTier(tiers) } else { Wanted::Present };
        self.read_back(pagemap, moves, &wanted, whole_call, results, cost);
    }

    /// Reads a byte of each page in `ranges`, and empties it. Says why, if the whole process refuses.
    fn touch(&mut self, process: &Process, cost: &mut MoveCost) -> Option<Failure> {
        let mut from = 0;
        self.bytes.resize(RANGES, 0);
        let mut outcome = None;
        while from < self.ranges.len() && outcome.is_none() {
            let started = Instant::now();
            let read = sys::process_vm_readv(process.pid(), &mut self.bytes, &self.ranges[from..]);
            cost.add_call(started.elapsed());
            let errno = match read {
                // One byte a page: the bytes read are the pages reached, and the next one, if any, is at fault.
                Ok(pages) if pages > 0 => {
                    from += pages;
                    continue;
                }
                Ok(_) => libc::EFAULT,
                Err(error) => error.raw_os_error().unwrap_or(libc::EIO),
            };
            match errno {
                libc::ESRCH => outcome = Some(Failure::Gone),
                libc::EPERM | libc::ENOSYS => outcome = Some(Failure::Errno(errno)),
                _ => {
                    self.refused[self.owners[from] as usize] = Some(failure_of_errno(errno));
                    from += 1;
                }
            }
        }
        self.ranges.clear();
        self.owners.clear();
        outcome
    }

    /// Reads where the batch's pages are now, run by run, and pushes the results in the batch's own order.
    fn read_back(
        &mut self,
        pagemap: &mut Pagemap,
        moves: &[PageMove],
        wanted: &Wanted<'_>,
        whole_call: Option<Failure>,
        results: &mut Vec<MoveResult>,
        cost: &mut MoveCost,
    ) {
        let started = Instant::now();
        let base = results.len();
        results.resize(base + moves.len(), MoveResult::none(Failure::Stayed));
        let mut at = 0;
        while at < self.order.len() {
            let first = moves[self.order[at] as usize].vpn;
            let mut end = end_of(&moves[self.order[at] as usize]);
            let mut after = at + 1;
            while after < self.order.len() && moves[self.order[after] as usize].vpn == end {
                end = end_of(&moves[self.order[after] as usize]);
                after += 1;
            }
            let read = self.read_places(pagemap, first, end, wanted, moves[self.order[at] as usize].to);
            for index in &self.order[at..after] {
                let item = &moves[*index as usize];
                let reason = self.refused[*index as usize].or(whole_call);
                results[base + *index as usize] = match &read {
                    Ok(()) => {
                        let from = (item.vpn.0 - first.0) as usize;
                        verdict(&self.places[from..from + item.pages as usize], reason, swap_is_full)
                    }
                    // What cannot be read back does not count as moved.
                    Err(error) => MoveResult::none(reason.unwrap_or_else(|| failure_of(error))),
                };
            }
            at = after;
        }
        // The program does not wait for the reading, so it is not a stall; but it is Terrace's time.
        cost.elapsed += started.elapsed();
    }

    /// Reads where the pages of one run are, as seen from where they should be.
    fn read_places(
        &mut self,
        pagemap: &mut Pagemap,
        first: Vpn,
        end: Vpn,
        wanted: &Wanted<'_>,
        to: TierId,
    ) -> io::Result<()> {
        let pages = (end.0 - first.0) as usize;
        self.places.clear();
        if let Wanted::InTier(tiers) = wanted {
            self.entries.resize(pages, PagemapEntry::default());
            pagemap.entries(first, &mut self.entries)?;
            self.places.extend(self.entries.iter().map(|entry| match entry.frame() {
                Some(frame) if tiers.tier_of_frame(frame) == to => Place::Wanted,
                None if !entry.present() && !entry.swapped() => Place::Absent,
                _ => Place::Elsewhere,
            }));
            return Ok(());
        }
        let out = matches!(wanted, Wanted::Swapped);
        self.residences.resize(pages, Residence::Absent);
        pagemap.residences(first, &mut self.residences)?;
        self.places.extend(self.residences.iter().map(|residence| match residence {
            Residence::Absent => Place::Absent,
            Residence::Swapped if out => Place::Wanted,
            Residence::Present | Residence::PresentHuge if !out => Place::Wanted,
            _ => Place::Elsewhere,
        }));
        Ok(())
    }
}

impl Mover for ProcessMadvise {
    fn name(&self) -> &'static str {
        "process_madvise"
    }

    /// Into swap from every node tier; out of it to the fastest tier only, because where a page comes back to is the
    /// target's own memory policy's choice.
    fn can(&self, tiers: &TierMap, from: TierId, to: TierId) -> bool {
        let swap = |tier: TierId| matches!(tiers.tier(tier).kind, TierKind::Swap { .. });
        swap(to) && !swap(from) || swap(from) && to == TierId::FAST
    }

    fn execute(
        &mut self,
        process: &Process,
        moves: &[PageMove],
        tiers: &TierMap,
        results: &mut Vec<MoveResult>,
    ) -> MoveCost {
        let mut cost = MoveCost::default();
        let mut pagemap = match Pagemap::of_process(process) {
            Ok(pagemap) => pagemap,
            Err(error) => {
                results.extend(moves.iter().map(|_| MoveResult::none(failure_of(&error))));
                return cost;
            }
        };
        self.writes.watch(tiers);
        let is_swap = |tier: TierId| Some(tier) == tiers.swap_tier();
        for run in moves.chunk_by(|one, next| is_swap(one.to) == is_swap(next.to)) {
            if is_swap(run[0].to) {
                self.send(process, &mut pagemap, run, tiers, results, &mut cost);
            } else {
                self.carry_in_batches(process, &mut pagemap, run, tiers, results, &mut cost);
            }
        }
        cost
    }
}

/// What went of these moves, by how many pages each carried.
pub(super) fn by_unit(moves: &[PageMove], results: &[MoveResult]) -> MoveCounts {
    let mut counts = MoveCounts::default();
    for (item, result) in moves.iter().zip(results) {
        *(if item.pages == 1 { &mut counts.single } else { &mut counts.huge }) += u64::from(result.done);
    }
    counts
}

fn end_of(item: &PageMove) -> Vpn {
    Vpn(item.vpn.0 + u64::from(item.pages))
}

fn remote(first: Vpn, pages: u64) -> RemoteRange {
    RemoteRange { address: first.address() as usize, length: (pages * PAGE_BYTES) as usize }
}

/// How many ranges were advised in full.
pub(super) fn whole_ranges(ranges: &[RemoteRange], bytes: usize) -> usize {
    let mut left = bytes;
    ranges
        .iter()
        .take_while(|range| {
            let whole = left >= range.length;
            left = left.saturating_sub(range.length);
            whole
        })
        .count()
}

/// What became of a move, by where its pages are now. `reason` is what is known of it beforehand: what the kernel said, or that writes failed.
fn verdict(places: &[Place], reason: Option<Failure>, swap_is_full: impl Fn() -> bool) -> MoveResult {
    let count = |wanted: Place| places.iter().filter(|place| **place == wanted).count() as u32;
    let done = count(Place::Wanted);
    if done == places.len() as u32 {
        return MoveResult::all(done);
    }
    let failure = match reason {
        // Whatever the kernel said: what has no memory behind it is gone.
        _ if count(Place::Elsewhere) == 0 => Failure::Gone,
        Some(failure) => failure,
        None if swap_is_full() => Failure::NoRoom,
        None => Failure::Stayed,
    };
    MoveResult { done, failure: Some(failure) }
}

/// Whether swap is as good as full. The kernel hands out swap in clusters to each CPU, so the last of it is not had.
fn swap_is_full() -> bool {
    let info = rustix::system::sysinfo();
    info.freeswap.saturating_mul(u64::from(info.mem_unit)) < 1 << 20
}

fn failure_of(error: &io::Error) -> Failure {
    failure_of_errno(error.raw_os_error().unwrap_or(libc::EIO))
}

fn failure_of_errno(errno: i32) -> Failure {
    match errno {
        libc::ESRCH | libc::ENOENT => Failure::Gone,
        libc::ENOMEM => Failure::NoRoom,
        other => Failure::Errno(other),
    }
}

/// Advises a page of this process as cold, which takes the same path and rights and moves nothing.
pub(super) fn try_on_self() -> io::Result<()> {
    let page = vec![1_u8; 3 * PAGE_BYTES as usize];
    let inside = (page.as_ptr() as u64).next_multiple_of(PAGE_BYTES);
    let me = rustix::process::pidfd_open(rustix::process::getpid(), rustix::process::PidfdFlags::empty())?;
    let range = remote(Vpn::of_address(inside), 1);
    sys::process_madvise(std::os::fd::AsFd::as_fd(&me), &[range], libc::MADV_COLD).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(vpn: u64, pages: u32) -> PageMove {
        PageMove { vpn: Vpn(vpn), pages, from: TierId(0), to: TierId(1) }
    }

    #[test]
    fn neighbours_make_one_run_whatever_order_they_come_in() {
        let mut mover = ProcessMadvise::new(super::super::STALL_DEADLINE);
        let moves = [item(12, 1), item(10, 1), item(512, 512), item(11, 1), item(1024, 1), item(2000, 1)];
        mover.arrange(&moves);
        mover.pending.reverse();
        let runs: Vec<(u64, u64)> = mover
            .pending
            .iter()
            .map(|run| {
                let first = moves[mover.order[run.start as usize] as usize].vpn.0;
                (first, end_of(&moves[mover.order[run.end as usize - 1] as usize]).0)
            })
            .collect();
        assert_eq!(runs, [(10, 13), (512, 1025), (2000, 2001)]);
    }

    #[test]
    fn a_refused_run_is_halved_down_to_the_page_at_fault() {
        let mut mover = ProcessMadvise::new(super::super::STALL_DEADLINE);
        let moves: Vec<PageMove> = (0..8).map(|vpn| item(vpn, 1)).collect();
        mover.arrange(&moves);
        // Page 5 is at fault: each run that holds it is refused, all others are taken.
        let mut calls = 0;
        while let Some(run) = mover.pending.last().copied() {
            calls += 1;
            if (run.start..run.end).contains(&5) {
                mover.split_or_refuse(Failure::Errno(libc::EINVAL));
            } else {
                mover.pending.pop();
            }
        }
        let refused: Vec<usize> = (0..8).filter(|index| mover.refused[*index].is_some()).collect();
        assert_eq!((refused, calls), (vec![5], 7));
    }

    #[test]
    fn a_short_return_counts_whole_ranges_only() {
        let ranges = [remote(Vpn(0), 2), remote(Vpn(10), 1), remote(Vpn(20), 4)];
        assert_eq!(whole_ranges(&ranges, 7 * 4096), 3);
        assert_eq!(whole_ranges(&ranges, 3 * 4096), 2);
        assert_eq!(whole_ranges(&ranges, 2 * 4096 + 1), 1);
        assert_eq!(whole_ranges(&ranges, 0), 0);
    }

    #[test]
    fn what_left_is_told_by_the_page_tables() {
        use Place::{Absent, Elsewhere, Wanted};
        let room = || false;
        assert_eq!(verdict(&[Wanted, Wanted], None, room), MoveResult::all(2));
        let half = MoveResult { done: 1, failure: Some(Failure::Stayed) };
        assert_eq!(verdict(&[Wanted, Elsewhere], None, room), half);
        assert_eq!(verdict(&[Absent], None, room), MoveResult::none(Failure::Gone));
        assert_eq!(verdict(&[Elsewhere], None, || true), MoveResult::none(Failure::NoRoom));
        let refused = Some(Failure::Errno(libc::EINVAL));
        assert_eq!(verdict(&[Elsewhere], refused, room).failure, refused);
        assert_eq!(
            verdict(&[Wanted], refused, room),
            MoveResult::all(1),
            "where the page is counts, not what was said"
        );
    }

    #[test]
    fn this_process_may_advise_itself() {
        try_on_self().unwrap();
    }
}
