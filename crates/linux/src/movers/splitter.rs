//! Splits huge pages, so that what is used inside of them can be seen, and makes blocks huge again that were split in vain.
//!
//! In: a process and blocks of 2 MiB. Out: for each block whether it is mapped by single pages now (or by one huge page again), read back from the
//! kernel, else why not. Must not: split what lies in several processes, is locked, under userfaultfd, of hugetlbfs or of a file, make a huge page that
//! the administrator or the program forbids, choose blocks, or count a request as a split.
//!
//! How: `process_madvise(MADV_COLD)` on one 4 KiB page of a huge page has the kernel split it (Linux 5.10, `madvise_cold_or_pageout_pte_range` in
//! mm/madvise.c); several blocks go in one call, each with a range of its own. The kernel copies the accessed bit of the huge page to all 512 entries and
//! clears it of the page that was named, here the last of the block: whether those pages were used is known only from the next clearing on.
//! Since Linux 6.12 pages of zeros are given back by the split.
//!
//! The kernel itself leaves alone what is locked or shared. It splits under userfaultfd, so that smaps is read before, at most a hundredth of the time.
//! What is pinned (direct I/O, RDMA) it cannot split: such a block stays huge, twice, and is not asked for again by who heeds [`Unsplit::Pinned`].

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::BufReader;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use terrace_core::plan::Failure;
use terrace_core::units::{BLOCK_PAGES, PAGE_BYTES, Vpn};

use super::blocks::{Apart, Block, Blocks};
use super::low_priority::LowPriority;
use super::process_madvise::whole_ranges;
use super::{BatchSize, MoveCost, MoveResult};
use crate::huge_pages;
use crate::pagemap::{Pagemap, PagemapEntry};
use crate::process::{Area, Process, areas};
use crate::sys::{self, RemoteRange};
use crate::usage::thread_cpu;

/// What is to become of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resize {
    /// Mapped by 512 entries.
    Split,
    /// Mapped by one.
    Collapse,
}

/// Why a block was not split, or not made huge again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unsplit {
    /// Another process maps it too: after a fork both would pay.
    Shared,
    /// It is locked, or memory of a device or of hugetlbfs.
    Locked,
    /// Its area is registered with userfaultfd: another program watches its pages.
    Watched,
    /// It is memory of a file.
    File,
    /// The kernel took the request twice and left it whole: pinned for input and output, most likely.
    Pinned,
    /// The kernel took the request and left it whole this once, or its area is not known yet.
    Busy,
    /// No memory for it.
    NoMemory,
    /// The kernel does not split by this advice (before Linux 5.10), or does not show whether it has.
    Kernel,
    /// Huge pages are set to never, or forbidden by the program or for the area.
    Forbidden,
    /// Not all of its pages are in memory, so that making it huge would bring others back.
    NotWhole,
    /// The process is gone, or unmapped it.
    Gone,
}

impl Unsplit {
    /// The reason in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Unsplit::Shared => "shared with another process",
            Unsplit::Locked => "locked",
            Unsplit::Watched => "under userfaultfd",
            Unsplit::File => "memory of a file",
            Unsplit::Pinned => "pinned",
            Unsplit::Busy => "in use by the kernel",
            Unsplit::NoMemory => "no memory for it",
            Unsplit::Kernel => "this kernel does not split huge pages by advice",
            Unsplit::Forbidden => "huge pages are forbidden there",
            Unsplit::NotWhole => "not all of it in memory",
            Unsplit::Gone => "gone",
        }
    }

    /// What the engine is answered.
    const fn failure(self) -> Failure {
        match self {
            Unsplit::Shared | Unsplit::Locked | Unsplit::Watched | Unsplit::File | Unsplit::Pinned => Failure::Whole,
            Unsplit::Busy | Unsplit::NotWhole => Failure::Stayed,
            Unsplit::NoMemory => Failure::NoRoom,
            Unsplit::Kernel | Unsplit::Forbidden => Failure::Errno(libc::EOPNOTSUPP),
            Unsplit::Gone => Failure::Gone,
        }
    }
}

const BLOCK_BYTES: u64 = BLOCK_PAGES as u64 * PAGE_BYTES;
/// Blocks of the first call, and least and most of one: a split takes 0.4 to 0.6 ms, in which the kernel holds the read side of the address space's lock.
const FIRST_BLOCKS: u32 = 4;
const MOST_BLOCKS: u32 = 16;
/// How long what smaps said of the areas counts, at least; and how many times what reading it took passes before it is read again.
const AREAS_COUNT: Duration = Duration::from_secs(5);
const SPACING: u32 = 100;
/// Processes whose areas are kept, and blocks that stayed whole once.
const MOST_KEPT: usize = 64;
const MOST_STAYED: usize = 1024;
/// How often a call that the kernel interrupted is made again.
const RETRIES: u32 = 8;
/// The frame is part of a huge page (`KPF_THP` of linux/kernel-page-flags.h).
const KPF_THP: u64 = 1 << 22;

/// A process: its pid and start time.
type Who = (u32, u64);

/// See the module's header.
#[derive(Debug)]
pub struct Splitter {
    /// Where settings are read: "/", or a fixture.
    root: PathBuf,
    batch: BatchSize,
    blocks: Blocks,
    areas: BTreeMap<Who, Areas>,
    /// Blocks that the kernel left whole once.
    stayed: BTreeSet<(Who, Vpn)>,
    /// The kernel refuses the advice for whatever it is given.
    no_advice: bool,
    entries: Vec<PagemapEntry>,
}

/// The areas of a process as smaps had them.
#[derive(Debug)]
struct Areas {
    areas: Vec<Area>,
    until: Instant,
}

impl Splitter {
    /// A splitter whose calls stay within `deadline` where one block can.
    pub fn new(deadline: Duration) -> Splitter {
        Splitter {
            root: PathBuf::from("/"),
            batch: BatchSize::new(FIRST_BLOCKS, 1, MOST_BLOCKS, deadline),
            blocks: Blocks::default(),
            areas: BTreeMap::new(),
            stayed: BTreeSet::new(),
            no_advice: false,
            entries: Vec::new(),
        }
    }

    /// Carries out what is wanted of blocks of one process, and pushes one result each, in order.
    pub fn resize(&mut self, process: &Process, wanted: &[(Vpn, Resize)], results: &mut Vec<MoveResult>) -> MoveCost {
        let mut cost = MoveCost::default();
        let began = thread_cpu();
        let splits: Vec<Vpn> = wanted.iter().filter(|(_, to)| *to == Resize::Split).map(|(first, _)| *first).collect();
        let mut found = self.split(process, &splits, &mut cost).into_iter();
        for (first, to) in wanted {
            let done = match to {
                Resize::Split => found.next().unwrap_or(Err(Unsplit::Busy)),
                Resize::Collapse => self.collapse(process, *first, &mut cost),
            };
            match (done, to) {
                (Ok(false), _) => {}
                (Ok(true), Resize::Split) => cost.counts.split += 1,
                (Ok(true), Resize::Collapse) => cost.counts.huge_again += 1,
                (Err(why), Resize::Split) => *cost.counts.unsplit.entry(why).or_default() += 1,
                (Err(_), Resize::Collapse) => {}
            }
            results.push(match done {
                Ok(_) => MoveResult::all(BLOCK_PAGES),
                Err(why) => MoveResult::none(why.failure()),
            });
        }
        cost.counts.resizing = thread_cpu().saturating_sub(began);
        cost
    }

    /// Splits these blocks. For each whether that was necessary, or why it is whole.
    pub(crate) fn split(
        &mut self,
        process: &Process,
        blocks: &[Vpn],
        cost: &mut MoveCost,
    ) -> Vec<Result<bool, Unsplit>> {
        let mut found: Vec<Result<bool, Unsplit>> = vec![Err(Unsplit::Busy); blocks.len()];
        if blocks.is_empty() {
            return found;
        }
        let Ok(mut pagemap) = Pagemap::of_process(process) else { return vec![Err(Unsplit::Gone); blocks.len()] };
        let mut left = Vec::new();
        for (at, first) in blocks.iter().enumerate() {
            match self.speaks_against(process, &mut pagemap, *first) {
                Some(answer) => found[at] = answer,
                None => left.push(at),
            }
        }
        // The next one last.
        left.reverse();
        let _lowered = LowPriority::enter();
        while !left.is_empty() && !self.no_advice {
            let count = left.len().min(self.batch.pages as usize);
            let now: Vec<usize> = left.iter().rev().take(count).copied().collect();
            let longest_before = std::mem::take(&mut cost.longest_call);
            let advised = advise_cold(process, &now, blocks, cost);
            self.batch.learn(count as u32, cost.longest_call);
            cost.longest_call = cost.longest_call.max(longest_before);
            let done = match advised {
                Ok(done) => done,
                // Of all of them.
                Err(why) => {
                    self.no_advice |= why == Unsplit::Kernel;
                    left.iter().for_each(|at| found[*at] = Err(why));
                    break;
                }
            };
            for at in &now[..done] {
                found[*at] = self.look(process, &mut pagemap, blocks[*at]);
            }
            left.truncate(left.len() - done);
            // Short: the range that comes next was refused, which a locked one is.
            if done < now.len()
                && let Some(at) = left.pop()
            {
                found[at] = Err(match pagemap.count(blocks[at], end_of(blocks[at])) {
                    Ok(count) if count.present_pages == 0 => Unsplit::Gone,
                    _ => Unsplit::Locked,
                });
            }
        }
        if self.no_advice {
            left.iter().for_each(|at| found[*at] = Err(Unsplit::Kernel));
        }
        found
    }

    /// What there is to be said of a block before it is tried; `None` if nothing speaks against it.
    fn speaks_against(
        &mut self,
        process: &Process,
        pagemap: &mut Pagemap,
        first: Vpn,
    ) -> Option<Result<bool, Unsplit>> {
        if self.no_advice {
            return Some(Err(Unsplit::Kernel));
        }
        self.entries.resize(BLOCK_PAGES as usize, PagemapEntry::default());
        if pagemap.entries(first, &mut self.entries).is_err() {
            return Some(Err(Unsplit::Gone));
        }
        match is_huge(&self.root, pagemap, first, self.entries[0]) {
            None => return Some(Err(Unsplit::Kernel)),
            Some(false) if self.entries.iter().all(|entry| !entry.present()) => return Some(Err(Unsplit::Gone)),
            Some(false) => return Some(Ok(false)),
            Some(true) => {}
        }
        if self.entries.iter().any(|entry| entry.file_or_shared()) {
            return Some(Err(Unsplit::File));
        }
        if self.entries.iter().any(|entry| !entry.exclusive()) {
            return Some(Err(Unsplit::Shared));
        }
        let Some(area) = self.area(process, first) else { return Some(Err(Unsplit::Busy)) };
        if area.stays {
            return Some(Err(Unsplit::Locked));
        }
        area.watched.then_some(Err(Unsplit::Watched))
    }

    /// Whether a block was split just now.
    fn look(&mut self, process: &Process, pagemap: &mut Pagemap, first: Vpn) -> Result<bool, Unsplit> {
        let mut entry = [PagemapEntry::default()];
        if pagemap.entries(first, &mut entry).is_err() {
            return Err(Unsplit::Gone);
        }
        let who = (process.pid(), process.start_time());
        match is_huge(&self.root, pagemap, first, entry[0]) {
            None => Err(Unsplit::Kernel),
            Some(false) => {
                self.stayed.remove(&(who, first));
                Ok(true)
            }
            Some(true) => {
                if self.stayed.len() >= MOST_STAYED {
                    self.stayed.clear();
                }
                Err(if self.stayed.insert((who, first)) { Unsplit::Busy } else { Unsplit::Pinned })
            }
        }
    }

    /// The area that a block lies in. `None` if it lies in none that is known, and smaps may not be read again yet.
    fn area(&mut self, process: &Process, first: Vpn) -> Option<Area> {
        let who = (process.pid(), process.start_time());
        let now = Instant::now();
        let has = |known: &Areas| {
            let at = known.areas.partition_point(|area| area.end <= first);
            known.areas.get(at).filter(|area| area.start <= first && end_of(first) <= area.end).copied()
        };
        if let Some(known) = self.areas.get(&who).filter(|known| now < known.until) {
            return has(known);
        }
        let began = thread_cpu();
        let file = File::open(format!("/proc/{}/smaps", process.seen_by())).ok()?;
        let areas = areas(&mut BufReader::with_capacity(1 << 16, file)).ok()?;
        let took = thread_cpu().saturating_sub(began);
        if self.areas.len() >= MOST_KEPT {
            // Those of processes that are gone go with the others.
            self.areas.clear();
        }
        let known = Areas { areas, until: Instant::now() + AREAS_COUNT.max(took * SPACING) };
        let found = has(&known);
        self.areas.insert(who, known);
        found
    }

    /// Makes a block huge again. Whether that was necessary, or why it is as it is.
    fn collapse(&mut self, process: &Process, first: Vpn, cost: &mut MoveCost) -> Result<bool, Unsplit> {
        let Ok(mut pagemap) = Pagemap::of_process(process) else { return Err(Unsplit::Gone) };
        // Who asks for it gets it as the setting is now: a block that asked may have become huge while the setting was another.
        if huge_pages::only_where_asked(&self.root) && !self.area(process, first).is_some_and(|area| area.asks) {
            return Err(Unsplit::Forbidden);
        }
        let began = Instant::now();
        let made = {
            let _lowered = LowPriority::enter();
            self.blocks.make_huge(process, &mut pagemap, first, began)
        };
        cost.add_call(began.elapsed());
        match made {
            Block::Huge => Ok(false),
            Block::Collapsed => Ok(true),
            Block::Apart(why) => Err(match why {
                Apart::Never | Apart::Forbidden | Apart::Areas => Unsplit::Forbidden,
                Apart::Shared => Unsplit::NotWhole,
                Apart::Busy | Apart::Split => Unsplit::Busy,
                Apart::NoHugePage | Apart::Hurried => Unsplit::NoMemory,
            }),
        }
    }
}

/// Advises the last page of each of these blocks as cold. How many of them, from the front, the kernel took.
fn advise_cold(process: &Process, now: &[usize], blocks: &[Vpn], cost: &mut MoveCost) -> Result<usize, Unsplit> {
    let last_page = |at: &usize| RemoteRange {
        address: (blocks[*at].address() + BLOCK_BYTES - PAGE_BYTES) as usize,
        length: PAGE_BYTES as usize,
    };
    let ranges: Vec<RemoteRange> = now.iter().map(last_page).collect();
    for _ in 0..RETRIES {
        let began = Instant::now();
        let advised = sys::process_madvise(process.pidfd(), &ranges, libc::MADV_COLD);
        cost.add_call(began.elapsed());
        match advised.map_err(|error| error.raw_os_error()) {
            Ok(bytes) => return Ok(whole_ranges(&ranges, bytes)),
            Err(Some(libc::EINTR | libc::EAGAIN)) => {}
            Err(Some(libc::ESRCH)) => return Err(Unsplit::Gone),
            Err(Some(libc::ENOSYS | libc::EPERM | libc::EBADF)) => return Err(Unsplit::Kernel),
            // The first range was refused.
            Err(_) => return Ok(0),
        }
    }
    Err(Unsplit::Busy)
}

fn end_of(first: Vpn) -> Vpn {
    Vpn(first.0 + u64::from(BLOCK_PAGES))
}

/// Whether a block is one huge page, by `PAGEMAP_SCAN` (Linux 6.7) or else by the flags of its frame, for which the kernel asks CAP_SYS_ADMIN. `None` where
/// it shows neither.
fn is_huge(root: &Path, pagemap: &mut Pagemap, first: Vpn, entry: PagemapEntry) -> Option<bool> {
    if pagemap.tells_huge() {
        return pagemap.is_huge(first).ok();
    }
    if !entry.present() {
        return Some(false);
    }
    let mut flags = [0; 8];
    let file = File::open(root.join("proc/kpageflags")).ok()?;
    file.read_exact_at(&mut flags, entry.frame()? * 8).ok()?;
    Some(u64::from_ne_bytes(flags) & KPF_THP != 0)
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;
    use crate::move_cost::FRESH;
    use crate::sys::placement::ask_for_huge_pages;

    /// Memory of which the first whole blocks are huge, if they can be had.
    fn huge(blocks: u64) -> Option<(Vec<u8>, Vpn)> {
        let mut memory = vec![0u8; FRESH];
        ask_for_huge_pages(&mut memory[..((blocks + 1) * BLOCK_BYTES) as usize]);
        let first = (memory.as_ptr() as u64).next_multiple_of(BLOCK_BYTES);
        let skip = (first - memory.as_ptr() as u64) as usize;
        for (number, byte) in memory[skip..skip + (blocks * BLOCK_BYTES) as usize].iter_mut().enumerate() {
            *byte = (number % 251) as u8;
        }
        let mut pagemap = Pagemap::open(std::process::id()).unwrap();
        let first = Vpn::of_address(first);
        let all = (0..blocks).all(|block| pagemap.is_huge(Vpn(first.0 + block * 512)).unwrap());
        if !all {
            println!("SKIPPED: there are no huge pages to be had here");
        }
        all.then_some((memory, first))
    }

    fn intact(memory: &[u8], first: Vpn, blocks: u64) -> bool {
        let skip = (first.address() - memory.as_ptr() as u64) as usize;
        let part = &memory[skip..skip + (blocks * BLOCK_BYTES) as usize];
        part.iter().enumerate().all(|(number, byte)| *byte == (number % 251) as u8)
    }

    #[test]
    fn several_blocks_are_split_in_one_call_and_made_huge_again() {
        let Some((memory, first)) = huge(6) else { return };
        let me = Process::open(std::process::id()).unwrap();
        let mut splitter = Splitter::new(super::super::STALL_DEADLINE);
        let wanted: Vec<(Vpn, Resize)> = (0..4).map(|block| (Vpn(first.0 + block * 512), Resize::Split)).collect();
        let mut results = Vec::new();
        let cost = splitter.resize(&me, &wanted, &mut results);
        assert_eq!(results, vec![MoveResult::all(512); 4]);
        assert_eq!((cost.counts.split, cost.calls), (4, 1), "{cost:?}");
        let mut pagemap = Pagemap::open(std::process::id()).unwrap();
        let huge_now: Vec<bool> = (0..6).map(|block| pagemap.is_huge(Vpn(first.0 + block * 512)).unwrap()).collect();
        assert_eq!(huge_now, [false, false, false, false, true, true]);
        // What is split already is no work.
        results.clear();
        let cost = splitter.resize(&me, &wanted[..1], &mut results);
        assert_eq!((results[0], cost.counts.split, cost.calls), (MoveResult::all(512), 0, 0));
        results.clear();
        let cost = splitter.resize(&me, &[(first, Resize::Collapse)], &mut results);
        if results[0] == MoveResult::all(512) {
            assert_eq!(cost.counts.huge_again, 1);
            assert!(pagemap.is_huge(first).unwrap());
        } else {
            println!("SKIPPED: no block becomes huge again here: {results:?}");
        }
        assert!(intact(&memory, first, 6));
    }

    #[test]
    fn a_split_puts_no_page_out() {
        let Some((_memory, first)) = huge(1) else { return };
        let me = Process::open(std::process::id()).unwrap();
        let mut pagemap = Pagemap::open(std::process::id()).unwrap();
        let mut splitter = Splitter::new(super::super::STALL_DEADLINE);
        let mut cost = MoveCost::default();
        assert_eq!(splitter.split(&me, &[first], &mut cost), [Ok(true)]);
        let mut entries = [PagemapEntry::default(); 512];
        pagemap.entries(first, &mut entries).unwrap();
        assert!(entries.iter().all(|entry| entry.present()), "all of them are there still");
    }

    /// A python program that prepares two blocks of memory, prints the first's address and waits; killed when dropped.
    struct Program(Child, Vpn);

    impl Program {
        fn start(prepare: &str) -> Option<Program> {
            let script = format!(
                "import ctypes, os, sys, time, mmap\n\
                 c = ctypes.CDLL(None, use_errno=True)\n\
                 c.mmap.restype = ctypes.c_void_p\n\
                 c.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]\n\
                 size = 8 << 20\n\
                 raw = c.mmap(None, size, 3, 0x22, -1, 0)\n\
                 at = (raw + (2 << 20) - 1) & ~((2 << 20) - 1)\n\
                 advise = lambda what: c.madvise(ctypes.c_void_p(at), ctypes.c_size_t(4 << 20), what)\n\
                 advise(14)\n\
                 {prepare}\n\
                 print(hex(at), flush=True)\n\
                 sys.stdin.read()\n"
            );
            let asked = Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output().ok()?;
            let python = String::from_utf8(asked.stdout).ok()?;
            let mut child = Command::new(python.trim())
                .args(["-c", &script])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .ok()?;
            let mut line = String::new();
            std::io::BufRead::read_line(&mut BufReader::new(child.stdout.take()?), &mut line).ok()?;
            let Ok(address) = u64::from_str_radix(line.trim().trim_start_matches("0x"), 16) else {
                println!("SKIPPED: the program could not prepare its memory");
                let _ = child.kill();
                let _ = child.wait();
                return None;
            };
            let program = Program(child, Vpn::of_address(address));
            let mut pagemap = Pagemap::open(program.0.id()).unwrap();
            if !pagemap.is_huge(program.1).unwrap_or(false) {
                println!("SKIPPED: its memory is not huge");
                return None;
            }
            Some(program)
        }

        /// What came of its first block, and whether that is whole still.
        fn split(&self) -> (Result<bool, Unsplit>, bool) {
            let process = Process::open(self.0.id()).unwrap();
            let found =
                Splitter::new(super::super::STALL_DEADLINE).split(&process, &[self.1], &mut MoveCost::default());
            (found[0], Pagemap::open(self.0.id()).unwrap().is_huge(self.1).unwrap())
        }
    }

    impl Drop for Program {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    const FILL: &str = "ctypes.memset(ctypes.c_void_p(at), 7, 4 << 20)";

    #[test]
    fn what_a_fork_shares_is_left_whole_by_name() {
        // The child sleeps; it ends with its parent's pipe.
        let fork = format!("{FILL}\npid = os.fork()\nif pid == 0:\n    sys.stdin.read()\n    os._exit(0)");
        let Some(program) = Program::start(&fork) else { return };
        assert_eq!(program.split(), (Err(Unsplit::Shared), true));
    }

    #[test]
    fn what_is_locked_is_left_whole_by_name() {
        let lock = format!("{FILL}\nassert c.mlock(ctypes.c_void_p(at), ctypes.c_size_t(4 << 20)) == 0");
        let Some(program) = Program::start(&lock) else { return };
        assert_eq!(program.split(), (Err(Unsplit::Locked), true));
    }

    #[test]
    fn what_userfaultfd_watches_is_left_whole_by_name() {
        // userfaultfd(2): O_CLOEXEC | UFFD_USER_MODE_ONLY, UFFDIO_API, UFFDIO_REGISTER for missing pages.
        let watch = format!(
            "{FILL}\n\
             import struct, fcntl, platform\n\
             number = 323 if platform.machine() == 'x86_64' else 282\n\
             fd = c.syscall(number, 0o2000000 | 1)\n\
             fcntl.ioctl(fd, 0xc018aa3f, bytearray(struct.pack('QQQ', 0xaa, 0, 0)))\n\
             fcntl.ioctl(fd, 0xc020aa00, bytearray(struct.pack('QQQQ', at, 4 << 20, 1, 0)))"
        );
        let Some(program) = Program::start(&watch) else { return };
        assert_eq!(program.split(), (Err(Unsplit::Watched), true));
    }

    #[test]
    fn what_is_pinned_is_asked_for_twice_and_told_from_what_is_busy() {
        // A pipe holds a reference to a page that was spliced into it (vmsplice(2)).
        let pin = format!(
            "{FILL}\n\
             import struct, platform\n\
             ends = os.pipe()\n\
             part = ctypes.create_string_buffer(struct.pack('PN', at + 8192, 4096))\n\
             number = 278 if platform.machine() == 'x86_64' else 75\n\
             assert c.syscall(number, ends[1], part, 1, 0) == 4096"
        );
        let Some(program) = Program::start(&pin) else { return };
        let process = Process::open(program.0.id()).unwrap();
        let mut splitter = Splitter::new(super::super::STALL_DEADLINE);
        let mut split = |first| splitter.split(&process, &[first], &mut MoveCost::default())[0];
        assert_eq!(split(program.1), Err(Unsplit::Busy), "it may pass");
        assert_eq!(split(program.1), Err(Unsplit::Pinned));
        assert_eq!(split(Vpn(program.1.0 + 512)), Ok(true), "its neighbour is not");
        assert!(Pagemap::open(program.0.id()).unwrap().is_huge(program.1).unwrap());
    }

    #[test]
    fn before_linux_6_7_the_flags_of_the_frame_say_what_is_huge() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("proc")).unwrap();
        let flags = [0, 0, 0, KPF_THP | 1, 1 << 12].map(u64::to_ne_bytes).concat();
        std::fs::write(root.path().join("proc/kpageflags"), flags).unwrap();
        let mut pagemap = Pagemap::open(std::process::id()).unwrap().without_scan();
        let mut huge = |entry: u64| is_huge(root.path(), &mut pagemap, Vpn(512), PagemapEntry(entry));
        let present = 1 << 63;
        assert_eq!([huge(present | 3), huge(present | 4), huge(1 << 62)], [Some(true), Some(false), Some(false)]);
        assert_eq!(huge(present), None, "the frame is not shown without the right");
        assert_eq!(huge(present | 99), None, "past what the kernel shows");
    }

    #[test]
    fn what_is_gone_is_told_from_what_is_locked() {
        let memory = memmap2::MmapMut::map_anon(2 * BLOCK_BYTES as usize).unwrap();
        let first = Vpn::of_address((memory.as_ptr() as u64).next_multiple_of(BLOCK_BYTES));
        let me = Process::open(std::process::id()).unwrap();
        let found = Splitter::new(super::super::STALL_DEADLINE).split(&me, &[first], &mut MoveCost::default());
        assert_eq!(found, [Err(Unsplit::Gone)], "reserved and never touched");
    }

    #[test]
    fn reasons_that_last_are_told_from_those_that_pass() {
        for lasting in [Unsplit::Shared, Unsplit::Locked, Unsplit::Watched, Unsplit::File, Unsplit::Pinned] {
            assert_eq!(lasting.failure(), Failure::Whole);
        }
        assert_eq!(Unsplit::Busy.failure(), Failure::Stayed);
        assert!(!Unsplit::Kernel.failure().is_permanent(), "its pages may leave all the same");
    }
}
