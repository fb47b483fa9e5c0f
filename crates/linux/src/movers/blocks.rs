//! Whole blocks: 2 MiB of single pages that all leave are made one huge page first, and leave as that.
//!
//! In: the moves of one process to swap. Out: which of them make up a whole block, whether the block is one huge page now, and why not. Must not:
//! page anything out, choose pages, or make a block huge that is not whole: every page present, private anonymous and mapped by this process alone.
//! Thus no hole is filled and no shared page copied, and resident memory never grows by it.
//!
//! Why: the kernel flushes the TLBs of every processor that runs the program before it writes a dirty folio, so each folio that leaves costs one
//! interrupt on each of them, however large it is. A block that is one folio costs a five-hundredth of what its single pages cost
//! (docs/block-moves.md). Collapsing is process_madvise(MADV_COLLAPSE): Linux 6.1, madvise(2).
//!
//! Huge pages that the administrator or the program forbids are not made (`huge_pages.rs`); both settings are read before each collapse, so that a change
//! counts at once. They are read in microseconds, and a collapse takes hundreds. A block that was made huge and does not leave is split again: it was to
//! be huge for its way out, not to stay so in a program that did not ask for it.
//!
//! A collapse needs a free huge page, and the kernel may compact memory to find one. So the time spent in collapsing is bounded, and
//! where none is free it stops for a while; the huge page that a block leaves behind is the next one's.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use terrace_core::units::{BLOCK_PAGES, PAGE_BYTES, Vpn};

use super::PageMove;
use crate::huge_pages;
use crate::pagemap::{Pagemap, PagemapEntry};
use crate::process::{Process, RangeOptions};
use crate::sys::{self, RemoteRange};

/// `MADV_COLLAPSE` of linux/mman.h, which the C library's headers may not have.
pub(crate) const MADV_COLLAPSE: i32 = 25;
/// How long an area that refused is not asked again: its owner may advise otherwise meanwhile.
const ASK_AGAIN: Duration = Duration::from_secs(60);
/// How long nothing is collapsed after the kernel found no free huge page, or wrote the collapsed ones page by page.
const PAUSE: Duration = Duration::from_secs(10);
/// Share of the time that may go into collapsing, and how much of it may be saved up. A block takes half a millisecond; one for which memory is compacted
/// takes tens, and ten of these in a row use the reserve up. With less than an eighth of it nothing begins.
const SHARE: f64 = 0.25;
const RESERVE: Duration = Duration::from_millis(250);

/// Why a whole block left page by page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Apart {
    /// The area, or the whole process, forbids huge pages (`MADV_NOHUGEPAGE`, `PR_SET_THP_DISABLE`), or the kernel is older than 6.1.
    Forbidden,
    /// The administrator set huge pages to `never`.
    Never,
    /// It lies in several areas of the address space (`mprotect`, `madvise` on a part of it); a huge page lies in one.
    Areas,
    /// Some of its pages are shared with another process, with the kernel, or by KSM.
    Shared,
    /// Some of its pages were in use by the kernel just now.
    Busy,
    /// The kernel had no free huge page.
    NoHugePage,
    /// The kernel does not write huge pages to this swap as a whole.
    Split,
    /// Collapsing had used up its time.
    Hurried,
}

impl Apart {
    /// The reason in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Apart::Forbidden => "this program, or this kernel, forbids huge pages there",
            Apart::Never => "huge pages are set to never",
            Apart::Areas => "across areas of different rights or advice",
            Apart::Shared => "shared with another process",
            Apart::Busy => "in use by the kernel",
            Apart::NoHugePage => "no free huge page",
            Apart::Split => "this swap takes no huge page whole",
            Apart::Hurried => "collapsing had used up its time",
        }
    }
}

/// What became of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Block {
    /// It was mapped huge already.
    Huge,
    /// It was made huge just now.
    Collapsed,
    /// It goes page by page.
    Apart(Apart),
}

/// See the module's header.
#[derive(Debug)]
pub(super) struct Blocks {
    /// Where the settings are read: "/", or a fixture.
    root: PathBuf,
    refused: Vec<Refused>,
    paused: Option<(Instant, Apart)>,
    /// Time that collapsing may still take, as of `filled`.
    left: Duration,
    filled: Instant,
    entries: Vec<PagemapEntry>,
}

/// An area of a process that refused, or a block.
#[derive(Debug)]
struct Refused {
    pid: u32,
    start_time: u64,
    first: Vpn,
    end: Vpn,
    until: Instant,
    why: Apart,
}

/// The moves of a batch that make up whole blocks, as indices into it, and the others in their order.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    /// Each block's first page and its 512 moves by address.
    pub(super) blocks: Vec<(Vpn, Vec<u32>)>,
    /// What is left.
    pub(super) rest: Vec<u32>,
}

/// Finds the whole blocks among `moves`, in the order in which their first page comes.
pub(super) fn gather(moves: &[PageMove]) -> Gathered {
    let block_of = |index: u32| moves[index as usize].vpn.0 / u64::from(BLOCK_PAGES);
    let mut by_address: Vec<u32> = (0..moves.len() as u32).filter(|index| moves[*index as usize].pages == 1).collect();
    by_address.sort_unstable_by_key(|index| moves[*index as usize].vpn);
    by_address.dedup_by_key(|index| moves[*index as usize].vpn);
    let whole = by_address.chunk_by(|one, other| block_of(*one) == block_of(*other));
    let whole = whole.filter(|block| block.len() == BLOCK_PAGES as usize);
    let mut blocks: Vec<(Vpn, Vec<u32>)> = whole.map(|block| (moves[block[0] as usize].vpn, block.to_vec())).collect();
    blocks.sort_by_key(|(_, block)| block.iter().copied().min());
    let mut taken = vec![false; moves.len()];
    blocks.iter().flat_map(|(_, block)| block).for_each(|index| taken[*index as usize] = true);
    let rest = (0..moves.len() as u32).filter(|index| !taken[*index as usize]).collect();
    Gathered { blocks, rest }
}

impl Default for Blocks {
    fn default() -> Blocks {
        Blocks {
            root: PathBuf::from("/"),
            refused: Vec::new(),
            paused: None,
            left: RESERVE,
            filled: Instant::now(),
            entries: Vec::new(),
        }
    }
}

impl Blocks {
    /// Makes the block at `first` one huge page, if it is whole and nothing speaks against it.
    pub(super) fn make_huge(&mut self, process: &Process, pagemap: &mut Pagemap, first: Vpn, now: Instant) -> Block {
        match pagemap.is_huge(first) {
            Ok(true) => return Block::Huge,
            Ok(false) => {}
            // What cannot be read is not made huge; the page-out will say why.
            Err(_) => return Block::Apart(Apart::Busy),
        }
        if let Some(why) = self.unwanted(process).or_else(|| self.forbids(process, first, now)) {
            return Block::Apart(why);
        }
        self.entries.resize(BLOCK_PAGES as usize, PagemapEntry::default());
        if pagemap.entries(first, &mut self.entries).is_err() {
            return Block::Apart(Apart::Busy);
        }
        if self.entries.iter().any(|entry| !entry.present() || entry.file_or_shared() || !entry.exclusive()) {
            return Block::Apart(Apart::Shared);
        }
        let bytes = u64::from(BLOCK_PAGES) * PAGE_BYTES;
        let range = RemoteRange { address: first.address() as usize, length: bytes as usize };
        let began = Instant::now();
        let collapsed = sys::process_madvise(process.pidfd(), &[range], MADV_COLLAPSE);
        self.left = self.left.saturating_sub(began.elapsed());
        match collapsed.map_err(|error| error.raw_os_error()) {
            // The kernel says nothing of a block that lies in two areas, each of which could hold other huge pages: it does nothing to it.
            Ok(_) if !pagemap.tells_huge() || pagemap.is_huge(first).unwrap_or(false) => Block::Collapsed,
            Ok(_) => Block::Apart(self.refuse(process, first, now)),
            Err(Some(libc::EINVAL | libc::EPERM | libc::ENOSYS)) => Block::Apart(self.refuse(process, first, now)),
            Err(Some(libc::ENOMEM | libc::EBUSY)) => {
                self.pause(now, Apart::NoHugePage);
                Block::Apart(Apart::NoHugePage)
            }
            Err(_) => Block::Apart(Apart::Busy),
        }
    }

    /// Who does not want huge pages, as the settings are now.
    fn unwanted(&self, process: &Process) -> Option<Apart> {
        if huge_pages::are_forbidden(&self.root) {
            return Some(Apart::Never);
        }
        huge_pages::are_forbidden_by(&self.root, process.pid()).then_some(Apart::Forbidden)
    }

    /// Splits a block that was made huge and did not leave. The kernel splits a huge page where a part of it is advised (MADV_COLD); what is in use
    /// right now it leaves as it is.
    pub(super) fn split_again(&self, process: &Process, pagemap: &mut Pagemap, first: Vpn) {
        if !pagemap.is_huge(first).unwrap_or(false) {
            return;
        }
        let page = RemoteRange { address: first.address() as usize, length: PAGE_BYTES as usize };
        if let Err(error) = sys::process_madvise(process.pidfd(), &[page], libc::MADV_COLD) {
            tracing::debug!(%error, pid = process.pid(), "a block that was made huge and did not leave stays huge");
        }
    }

    /// Nothing is collapsed for a while.
    pub(super) fn pause(&mut self, now: Instant, why: Apart) {
        self.paused = Some((now + PAUSE, why));
    }

    /// Why a block is not even tried.
    fn forbids(&mut self, process: &Process, first: Vpn, now: Instant) -> Option<Apart> {
        if let Some((until, why)) = self.paused {
            if now < until {
                return Some(why);
            }
            self.paused = None;
        }
        let earned = now.saturating_duration_since(self.filled).mul_f64(SHARE);
        (self.left, self.filled) = ((self.left + earned).min(RESERVE), now);
        if self.left < RESERVE / 8 {
            return Some(Apart::Hurried);
        }
        self.refused.retain(|area| now < area.until);
        let of_this = |area: &&Refused| (area.pid, area.start_time) == (process.pid(), process.start_time());
        let refused = self.refused.iter().filter(of_this).find(|area| area.first <= first && first < area.end);
        refused.map(|area| area.why)
    }

    /// Remembers that this block refused, with the area that it lies in; alone where it does not lie in one, since the areas that meet in it may hold
    /// blocks that do not refuse. Returns which of the two it was.
    fn refuse(&mut self, process: &Process, first: Vpn, now: Instant) -> Apart {
        let ranges = process.ranges(RangeOptions::default()).unwrap_or_default();
        let area = ranges.iter().find(|range| range.start <= first && first < range.end);
        let block_end = Vpn(first.0 + u64::from(BLOCK_PAGES));
        let (start, end, why) = match area {
            Some(area) if block_end <= area.end => (area.start, area.end, Apart::Forbidden),
            // What is not offered, such as locked memory, is not found.
            None => (first, block_end, Apart::Forbidden),
            Some(_) => (first, block_end, Apart::Areas),
        };
        let (pid, start_time) = (process.pid(), process.start_time());
        self.refused.push(Refused { pid, start_time, first: start, end, until: now + ASK_AGAIN, why });
        why
    }
}

/// Huge pages that the kernel wrote to swap as a whole, and those that it split first, on the whole machine so far (`thp_swpout`,
/// `thp_swpout_fallback` of /proc/vmstat). `None` where it does not count them: then it splits all.
pub(super) fn written_whole() -> Option<(u64, u64)> {
    let text = std::fs::read_to_string("/proc/vmstat").ok()?;
    let value = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(|value| value.trim().parse().ok())
    };
    Some((value("thp_swpout")?, value("thp_swpout_fallback").unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use terrace_core::units::TierId;

    use super::*;
    use crate::huge_pages::SETTINGS;
    use crate::move_cost::FRESH;
    use crate::pressure::tests::tree;
    use crate::sys::placement::{ask_for_huge_pages, ask_for_small_pages};

    fn single(page: u64) -> PageMove {
        PageMove { vpn: Vpn(page), pages: 1, from: TierId(0), to: TierId(1) }
    }

    #[test]
    fn whole_blocks_are_found_in_any_order_and_the_rest_keeps_its_own() {
        // Half of block 0, all of block 2 from its end to its start, a huge page, one page of block 5 twice.
        let mut moves: Vec<PageMove> = (0..256).map(single).collect();
        moves.extend((1024..1536).rev().map(single));
        moves.push(PageMove { pages: 512, ..single(2048) });
        moves.extend([single(2560), single(2560)]);
        let found = gather(&moves);
        assert_eq!(found.blocks.len(), 1);
        let (first, block) = &found.blocks[0];
        assert_eq!((*first, block.len()), (Vpn(1024), 512));
        assert!(block.iter().zip(1024..).all(|(index, vpn)| moves[*index as usize].vpn == Vpn(vpn)), "by address");
        assert_eq!(found.rest.len(), 256 + 1 + 2);
        assert!(found.rest.is_sorted());
        let all: Vec<PageMove> = (512..1536).map(single).collect();
        let found = gather(&all);
        assert_eq!(found.blocks.iter().map(|(first, _)| first.0).collect::<Vec<_>>(), [512, 1024]);
        assert!(found.rest.is_empty());
        // A block that begins in the middle of two is none.
        assert!(gather(&(256..768).map(single).collect::<Vec<_>>()).blocks.is_empty());
    }

    #[test]
    fn an_area_that_refused_rests_and_so_does_everything_without_a_free_huge_page() {
        let me = Process::open(std::process::id()).unwrap();
        let mut blocks = Blocks::default();
        let now = Instant::now();
        blocks.refuse(&me, Vpn(512), now);
        assert_eq!(blocks.forbids(&me, Vpn(512), now), Some(Apart::Forbidden));
        assert_eq!(blocks.forbids(&me, Vpn(4096), now), None, "another area");
        assert_eq!(blocks.forbids(&me, Vpn(512), now + ASK_AGAIN), None);
        blocks.pause(now, Apart::NoHugePage);
        assert_eq!(blocks.forbids(&me, Vpn(4096), now + PAUSE / 2), Some(Apart::NoHugePage));
        assert_eq!(blocks.forbids(&me, Vpn(4096), now + PAUSE), None);
    }

    #[test]
    fn settings_that_change_count_at_the_next_block() {
        let me = Process::open(std::process::id()).unwrap();
        let (setting, status) = (format!("{SETTINGS}/enabled"), format!("proc/{}/status", std::process::id()));
        let root = tree(&[(&setting, "always [madvise] never\n"), (&status, "THP_enabled:\t1\n")]);
        let blocks = Blocks { root: root.path().to_owned(), ..Blocks::default() };
        let write = |path: &str, text: &str| std::fs::write(root.path().join(path), text).unwrap();
        assert_eq!(blocks.unwanted(&me), None, "a block only passes through");
        write(&status, "THP_enabled:\t0\n");
        assert_eq!(blocks.unwanted(&me), Some(Apart::Forbidden));
        write(&status, "THP_enabled:\t1\n");
        write(&setting, "always madvise [never]\n");
        assert_eq!(blocks.unwanted(&me), Some(Apart::Never));
        write(&setting, "[always] madvise never\n");
        assert_eq!(blocks.unwanted(&me), None);
    }

    #[test]
    fn with_never_no_block_is_made_huge_and_one_that_stays_is_split() {
        let block = u64::from(BLOCK_PAGES) * PAGE_BYTES;
        let mut memory = vec![0u8; FRESH];
        let part = &mut memory[..2 * block as usize];
        ask_for_small_pages(part);
        part.fill(7);
        ask_for_huge_pages(part);
        let first = Vpn::of_address((memory.as_ptr() as u64).next_multiple_of(block));
        let me = Process::open(std::process::id()).unwrap();
        let mut pagemap = Pagemap::of_process(&me).unwrap();
        let root = tree(&[(&format!("{SETTINGS}/enabled"), "always madvise [never]\n")]);
        let mut blocks = Blocks { root: root.path().to_owned(), ..Blocks::default() };
        let make = |blocks: &mut Blocks, pagemap: &mut Pagemap| blocks.make_huge(&me, pagemap, first, Instant::now());
        match make(&mut blocks, &mut pagemap) {
            // khugepaged knows nothing of the test's setting, and may come first.
            Block::Huge => return println!("SKIPPED: khugepaged made the block huge before the test could look"),
            other => assert_eq!(other, Block::Apart(Apart::Never)),
        }
        std::fs::write(root.path().join(SETTINGS).join("enabled"), "always [madvise] never\n").unwrap();
        match make(&mut blocks, &mut pagemap) {
            Block::Collapsed if pagemap.tells_huge() => {
                blocks.split_again(&me, &mut pagemap, first);
                assert!(!pagemap.is_huge(first).unwrap(), "it was to be huge for its way out only");
            }
            other => println!("SKIPPED: no huge page to be had here: {other:?}"),
        }
        assert!(memory[..2 * block as usize].iter().all(|byte| *byte == 7));
    }

    #[test]
    fn collapsing_takes_a_quarter_of_the_time_at_most() {
        let me = Process::open(std::process::id()).unwrap();
        let mut blocks = Blocks::default();
        let mut now = Instant::now();
        let (mut spent, mut tried) = (Duration::ZERO, 0);
        let began = now;
        while now < began + Duration::from_secs(20) {
            if blocks.forbids(&me, Vpn(512), now).is_none() {
                // Each takes 30 ms, as with compaction.
                blocks.left = blocks.left.saturating_sub(Duration::from_millis(30));
                spent += Duration::from_millis(30);
                tried += 1;
            }
            now += Duration::from_millis(1);
        }
        assert!(tried > 10 && spent < Duration::from_millis(5000 + 300), "{tried} times, {spent:?}");
    }
}
