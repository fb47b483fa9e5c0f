//! Shared memory: which of its pages are in swap, and in whose account each page stands.
//!
//! In: shared mappings, what a tracker says of their pages. Out: the same with pages in swap told from pages that are not there, each page
//! in one process only. Must not: keep an object open beyond a round, which would keep its memory after its last user has gone.
//!
//! A page table has no entry for a shared page that left: it looks like one that never was. The object knows: its page cache
//! keeps the place in swap where the page was, and cachestat(2) counts such places as evicted (Linux 6.5 and later; some 70 ns a page).
//! The object is reached through /proc/PID/map_files, whatever it is: tmpfs, memfd, System V, `MAP_SHARED | MAP_ANONYMOUS`. Measured on 6.18:
//! mincore(2) takes as long and does not tell a page in swap from a hole; the `Swap` lines of smaps name no page.
//!
//! Of several processes that map a page, the one that showed it first has it in its account until it no longer maps it. A page
//! in swap stays in the account it left from, with what is known of it, and goes to another process that maps it when that one ends.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use terrace_core::observation::PteState;
use terrace_core::units::{BLOCK_PAGES, PAGE_BYTES, SpaceId, TierId, Vpn};

use crate::pagemap::Residence;
use crate::process::{SharedMapping, SharedObject};
use crate::sys;
use crate::trackers::{Event, Sink};

/// The magic number of tmpfs (linux/magic.h), which all these objects are files of.
const TMPFS: u64 = 0x0102_1994;
/// A page of an object is in swap; it is in memory again, as another process has shown.
const OUT: u32 = 1 << 31;
const BACK: u32 = 1 << 30;

/// Longest time of a round for parts of objects that a tracker has nothing to say of.
const SWEEP: Duration = Duration::from_millis(2);

/// Where a page of an object is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kept {
    /// Nowhere: it was never written, or given back.
    #[default]
    Nowhere,
    /// In memory, mapped or not.
    InMemory,
    /// In swap.
    InSwap,
}

/// Opens the object behind a mapping; `None` if it is no shared memory but a file of a disk.
///
/// # Errors
/// `ENOENT` when the mapping is gone or has changed, `EPERM` without CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE.
pub fn open_object(pid: u32, start: Vpn, end: Vpn) -> io::Result<Option<File>> {
    let file = File::open(format!("/proc/{pid}/map_files/{:x}-{:x}", start.address(), end.address()))?;
    let is_tmpfs = rustix::fs::fstatfs(&file)?.f_type as u64 == TMPFS;
    Ok(is_tmpfs.then_some(file))
}

/// Says where the pages of an object from `first` on are.
///
/// # Errors
/// As cachestat(2).
pub fn kept(object: &File, first: u64, out: &mut [Kept]) -> io::Result<()> {
    if out.is_empty() {
        return Ok(());
    }
    let pages = out.len() as u64;
    let found = sys::cachestat(object.as_fd(), first * PAGE_BYTES, pages * PAGE_BYTES)?;
    // Of a large folio the kernel counts what lies in the range.
    match (found.cached > 0, found.evicted > 0) {
        (false, false) => out.fill(Kept::Nowhere),
        (true, false) if found.cached >= pages => out.fill(Kept::InMemory),
        (false, true) if found.evicted >= pages => out.fill(Kept::InSwap),
        (_, evicted) if pages == 1 => out[0] = if evicted { Kept::InSwap } else { Kept::InMemory },
        _ => {
            let (left, right) = out.split_at_mut(pages as usize / 2);
            let middle = first + left.len() as u64;
            kept(object, first, left)?;
            kept(object, middle, right)?;
        }
    }
    Ok(())
}

/// Why the pages of shared memory in swap cannot be found here, in one line.
#[derive(Debug, thiserror::Error)]
pub enum Unlocatable {
    /// The kernel has no call for it.
    #[error("it needs cachestat(2), Linux 6.5 or later")]
    Kernel,
    /// This process may not open what others map.
    #[error("/proc/PID/map_files needs CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE on the host")]
    Rights,
    /// What the kernel says of a page is wrong.
    #[error("cachestat(2) says otherwise of a page just written")]
    Wrong,
    /// The trial failed.
    #[error(transparent)]
    Call(io::Error),
}

/// Whether the pages of shared memory in swap can be found here, tried on an object of this process.
///
/// # Errors
/// See [`Unlocatable`].
pub fn try_on_self() -> Result<(), Unlocatable> {
    let tried = || -> io::Result<bool> {
        let object = File::from(rustix::fs::memfd_create("terrace-trial", rustix::fs::MemfdFlags::CLOEXEC)?);
        object.set_len(2 * PAGE_BYTES)?;
        // Mapped writable, since that is what makes it a shared mapping; never written through.
        let mapping = memmap2::MmapOptions::new().map_raw(&object)?;
        std::os::unix::fs::FileExt::write_all_at(&object, &[1], 0)?;
        let start = Vpn::of_address(mapping.as_mut_ptr() as u64);
        let Some(file) = open_object(std::process::id(), start, Vpn(start.0 + 2))? else { return Ok(false) };
        let mut found = [Kept::InSwap; 2];
        kept(&file, 0, &mut found)?;
        Ok(found == [Kept::InMemory, Kept::Nowhere] || found == [Kept::InSwap, Kept::Nowhere])
    };
    match tried() {
        Ok(true) => Ok(()),
        Ok(false) => Err(Unlocatable::Wrong),
        Err(error) => Err(match error.raw_os_error() {
            Some(libc::ENOSYS) => Unlocatable::Kernel,
            Some(libc::EPERM | libc::EACCES) => Unlocatable::Rights,
            _ => Unlocatable::Call(error),
        }),
    }
}

/// The pages of a process's shared memory, to be completed in what its page tables say. It keeps one object open at a time.
#[derive(Debug, Default)]
pub(crate) struct SharedPages {
    pid: u32,
    mappings: Vec<SharedMapping>,
    open: Option<(Vpn, Option<File>)>,
    kept: Vec<Kept>,
}

impl SharedPages {
    pub(crate) fn new(pid: u32, mappings: Vec<SharedMapping>) -> SharedPages {
        SharedPages { pid, mappings, open: None, kept: Vec::new() }
    }

    /// Completes where the pages from `first` on are: of those that the tables do not show, an object says it. What is in memory without
    /// being mapped here is present.
    pub(crate) fn complete(&mut self, first: Vpn, out: &mut [Residence]) -> io::Result<()> {
        if self.mappings.is_empty() || !out.contains(&Residence::Absent) {
            return Ok(());
        }
        let end = Vpn(first.0 + out.len() as u64);
        let from = self.mappings.partition_point(|mapping| mapping.end <= first);
        for mapping in self.mappings[from..].iter().take_while(|mapping| mapping.start < end) {
            if self.open.as_ref().is_none_or(|(start, _)| *start != mapping.start) {
                self.open = Some((mapping.start, open_object(self.pid, mapping.start, mapping.end).ok().flatten()));
            }
            let Some((_, Some(object))) = &self.open else { continue };
            let (low, high) = (first.max(mapping.start), end.min(mapping.end));
            let here = &mut out[(low.0 - first.0) as usize..(high.0 - first.0) as usize];
            if !here.contains(&Residence::Absent) {
                continue;
            }
            self.kept.resize(here.len(), Kept::Nowhere);
            kept(object, mapping.first + (low.0 - mapping.start.0), &mut self.kept[..here.len()])?;
            for (residence, kept) in here.iter_mut().zip(&self.kept) {
                *residence = match (*residence, kept) {
                    (Residence::Absent, Kept::InSwap) => Residence::Swapped,
                    (Residence::Absent, Kept::InMemory) => Residence::Present,
                    (told, _) => told,
                };
            }
        }
        Ok(())
    }
}

/// The shared mappings of the processes under management, and the accounts of their pages.
#[derive(Debug, Default)]
pub struct SharedMemory {
    spaces: BTreeMap<SpaceId, Held>,
    objects: BTreeMap<SharedObject, Vec<u32>>,
    /// Where the next sweep begins.
    swept: (SpaceId, Vpn),
}

/// What a process has mapped.
#[derive(Debug)]
struct Held {
    pid: u32,
    /// As read last; empty where something of it is to be read again.
    read: Vec<SharedMapping>,
    /// Those of shared memory, each part of an object once.
    mappings: Vec<SharedMapping>,
    /// The first pages of the others.
    left: Vec<Vpn>,
}

impl Held {
    /// The mapping that a stretch of pages lies in: a stretch lies in one range, and a range is one mapping.
    fn mapping_of(&self, first: Vpn, pages: usize) -> Option<SharedMapping> {
        let mapping = self.mappings.get(self.mappings.partition_point(|mapping| mapping.end <= first))?;
        (mapping.start <= first && first.0 + pages as u64 <= mapping.end.0).then_some(*mapping)
    }
}

/// Consecutive pages whose account goes from one process to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handover {
    /// The first page where it was.
    pub from: Vpn,
    /// The process that has them from now on, and the first page there.
    pub to: (SpaceId, Vpn),
    /// How many.
    pub pages: u64,
}

fn owner_of(entry: u32) -> Option<SpaceId> {
    (entry & !(OUT | BACK)).checked_sub(1).map(SpaceId)
}

fn entry_of(space: SpaceId) -> u32 {
    space.0 + 1
}

impl SharedMemory {
    /// The shared mappings of a process as they are now. Returns the first pages of those that are left alone: files of disks, whose pages
    /// do not go to swap, and further views of a part of an object that the process has mapped already. Returns also what goes to
    /// other processes, because it is no longer mapped here.
    pub fn follow(&mut self, space: SpaceId, pid: u32, read: Vec<SharedMapping>) -> (Vec<Vpn>, Vec<Handover>) {
        if let Some(held) = self.spaces.get(&space).filter(|held| held.read == read) {
            return (held.left.clone(), Vec::new());
        }
        let mut held = Held { pid, read: Vec::new(), mappings: Vec::new(), left: Vec::new() };
        let mut settled = true;
        for mapping in &read {
            let known = self.objects.contains_key(&mapping.object);
            let shared = known
                || match open_object(pid, mapping.start, mapping.end) {
                    Ok(object) => object.is_some(),
                    // It has changed in between: the next reading has it.
                    Err(_) => {
                        settled = false;
                        false
                    }
                };
            if shared && !held.mappings.iter().any(|other| overlap(mapping, other)) {
                self.objects.entry(mapping.object).or_default();
                held.mappings.push(*mapping);
            } else {
                held.left.push(mapping.start);
            }
        }
        if settled {
            held.read = read;
        }
        let left = held.left.clone();
        let before = self.spaces.insert(space, held);
        let handed = before.map_or_else(Vec::new, |before| self.release(space, &before.mappings));
        (left, handed)
    }

    /// A process is gone. Returns what goes to others.
    pub fn forget(&mut self, space: SpaceId) -> Vec<Handover> {
        let gone = self.spaces.remove(&space);
        let handed = gone.map_or_else(Vec::new, |gone| self.release(space, &gone.mappings));
        let held = &self.spaces;
        self.objects.retain(|object, _| {
            held.values().any(|held| held.mappings.iter().any(|mapping| mapping.object == *object))
        });
        handed
    }

    /// Takes the pages of these former mappings that `space` no longer maps out of its account.
    fn release(&mut self, space: SpaceId, before: &[SharedMapping]) -> Vec<Handover> {
        let mut handed: Vec<Handover> = Vec::new();
        for mapping in before {
            let length = mapping.end.0 - mapping.start.0;
            let Some(entries) = self.objects.get_mut(&mapping.object) else { continue };
            let end = (mapping.first + length).min(entries.len() as u64);
            for page in mapping.first..end {
                let entry = &mut entries[page as usize];
                if owner_of(*entry) != Some(space) || place_in(&self.spaces, space, &mapping.object, page).is_some() {
                    continue;
                }
                let out = *entry & (OUT | BACK);
                *entry = 0;
                if out & OUT == 0 {
                    // It is in memory: the next process whose tables show it has it.
                    continue;
                }
                let others = self.spaces.keys().filter(|other| **other != space);
                let next = others.map(|other| (*other, place_in(&self.spaces, *other, &mapping.object, page)));
                let Some((other, Some(vpn))) = next.into_iter().find(|(_, place)| place.is_some()) else { continue };
                *entry = entry_of(other) | out;
                let from = Vpn(mapping.start.0 + (page - mapping.first));
                match handed.last_mut() {
                    Some(last)
                        if last.from.0 + last.pages == from.0
                            && last.to.0 == other
                            && last.to.1.0 + last.pages == vpn.0 =>
                    {
                        last.pages += 1;
                    }
                    _ => handed.push(Handover { from, to: (other, vpn), pages: 1 }),
                }
            }
        }
        handed
    }

    /// Whether any process has a shared mapping.
    pub fn is_empty(&self) -> bool {
        self.spaces.values().all(|held| held.mappings.is_empty())
    }

    /// A sink that completes what a tracker says of shared memory and passes it on. Without `rotates`, a tracker has no turns, and every page
    /// that its tables do not show is looked up.
    pub fn over<'a>(&'a mut self, swap: Option<TierId>, rotates: bool, inner: &'a mut dyn Sink) -> SharedSink<'a> {
        SharedSink {
            memory: self,
            swap,
            rotates,
            inner,
            open: None,
            seen: Vec::new(),
            ptes: Box::new([PteState::ABSENT; BLOCK_PAGES as usize]),
            asked: Box::new([false; BLOCK_PAGES as usize]),
            kept: Box::new([Kept::Nowhere; BLOCK_PAGES as usize]),
        }
    }
}

/// Whether two mappings show a page of an object both.
fn overlap(one: &SharedMapping, other: &SharedMapping) -> bool {
    let end = |mapping: &SharedMapping| mapping.first + (mapping.end.0 - mapping.start.0);
    one.object == other.object && one.first < end(other) && other.first < end(one)
}

/// Where a process maps a page of an object.
fn place_in(spaces: &BTreeMap<SpaceId, Held>, space: SpaceId, object: &SharedObject, page: u64) -> Option<Vpn> {
    let mut mappings = spaces.get(&space)?.mappings.iter();
    mappings.find_map(|mapping| {
        let offset = page.checked_sub(mapping.first)?;
        let here = mapping.object == *object && offset < mapping.end.0 - mapping.start.0;
        here.then(|| Vpn(mapping.start.0 + offset))
    })
}

/// See [`SharedMemory::over`].
pub struct SharedSink<'a> {
    memory: &'a mut SharedMemory,
    swap: Option<TierId>,
    rotates: bool,
    inner: &'a mut dyn Sink,
    /// The object that was asked last, by the mapping it was reached through.
    open: Option<(SpaceId, Vpn, Option<File>)>,
    /// The blocks of shared memory that the tracker spoke of.
    seen: Vec<(SpaceId, Vpn)>,
    ptes: Box<[PteState; BLOCK_PAGES as usize]>,
    /// Which pages of a stretch are looked up, and what was found of those.
    asked: Box<[bool; BLOCK_PAGES as usize]>,
    kept: Box<[Kept; BLOCK_PAGES as usize]>,
}

impl SharedSink<'_> {
    /// Looks up the pages of `first` on that are marked in `asked`. Returns whether the object could be asked.
    fn look_up(&mut self, space: SpaceId, pid: u32, mapping: &SharedMapping, first: u64, pages: usize) -> bool {
        if self.open.as_ref().is_none_or(|(of, start, _)| (*of, *start) != (space, mapping.start)) {
            let file = open_object(pid, mapping.start, mapping.end);
            if let Err(error) = &file {
                tracing::debug!(pid, %error, "a shared mapping has changed: its pages are looked up in the next round");
            }
            self.open = Some((space, mapping.start, file.ok().flatten()));
        }
        let Some((_, _, Some(file))) = &self.open else { return false };
        let mut at = 0;
        for run in self.asked[..pages].chunk_by(|one, next| one == next) {
            let here: Range<usize> = at..at + run.len();
            at = here.end;
            if run[0] && kept(file, first + here.start as u64, &mut self.kept[here]).is_err() {
                return false;
            }
        }
        true
    }
}

impl SharedSink<'_> {
    /// Looks up parts of objects of which the tracker said nothing, because a process has no tables for them, though pages may be in swap that
    /// another process left. Takes `SWEEP` at most; the next round goes on from there.
    pub fn sweep(&mut self) {
        if self.swap.is_none() || self.memory.is_empty() {
            return;
        }
        self.seen.sort_unstable();
        let (began, from) = (Instant::now(), self.memory.swept);
        let of = |(space, held): (&SpaceId, &Held)| {
            held.mappings.iter().map(|mapping| (*space, mapping.start, mapping.end)).collect::<Vec<_>>()
        };
        let all: Vec<(SpaceId, Vpn, Vpn)> = self.memory.spaces.iter().flat_map(of).collect();
        let after = all
            .iter()
            .map(|&(space, start, end)| (space, if space == from.0 { start.max(from.1) } else { start }, end));
        let after: Vec<_> = after.filter(|(space, start, end)| *space >= from.0 && start < end).collect();
        // All of it once: what lies after the place where the last sweep ended, then the rest.
        for (space, start, end) in after.into_iter().chain(all) {
            let mut at = start;
            while at < end {
                let next = Vpn(end.0.min(at.block_start().0 + u64::from(BLOCK_PAGES)));
                self.memory.swept = (space, next);
                if self.seen.binary_search(&(space, at.block_start())).is_err() {
                    let nothing = [PteState::ABSENT; BLOCK_PAGES as usize];
                    self.complete(space, at, &nothing[..(next.0 - at.0) as usize], None, false, true);
                }
                if began.elapsed() > SWEEP {
                    return;
                }
                at = next;
            }
        }
        self.memory.swept = (SpaceId(0), Vpn(0));
    }

    fn complete(
        &mut self,
        space: SpaceId,
        first: Vpn,
        ptes: &[PteState],
        window: Option<Duration>,
        cleared: bool,
        turn: bool,
    ) {
        let held = self.memory.spaces.get(&space);
        let Some((pid, mapping)) = held.and_then(|held| Some((held.pid, held.mapping_of(first, ptes.len())?))) else {
            return self.inner.scan(space, first, ptes, window, cleared);
        };
        let page = mapping.first + (first.0 - mapping.start.0);
        let end = page as usize + ptes.len();
        let mine = entry_of(space);
        let absent = |pte: &PteState| pte.tier().is_none();
        let any_present = !ptes.iter().all(absent);
        let entries = self.memory.objects.entry(mapping.object).or_default();
        let known = entries.get(page as usize..).unwrap_or_default();
        // What has just gone from the tables is looked up at once, all else in its turn.
        let gone = known.iter().zip(ptes).any(|(entry, pte)| *entry == mine && absent(pte));
        // What is in another's account is looked up there.
        let known = known.iter().copied().chain(std::iter::repeat(0));
        let others = |entry: u32| owner_of(entry).is_some_and(|owner| owner != space);
        for ((asked, pte), entry) in self.asked.iter_mut().zip(ptes).zip(known) {
            *asked = absent(pte) && !others(entry);
        }
        let look = self.swap.is_some() && self.asked[..ptes.len()].contains(&true) && (gone || turn);
        if look && !self.look_up(space, pid, &mapping, page, ptes.len()) {
            return;
        }
        let Some(entries) = self.memory.objects.get_mut(&mapping.object) else { return };
        if entries.len() < end {
            // A part of an object in which there is nothing costs nothing.
            let found = self.asked.iter().zip(&*self.kept).take(ptes.len());
            let in_swap = look && found.into_iter().any(|(asked, kept)| *asked && *kept == Kept::InSwap);
            if entries.len() <= page as usize && !any_present && !in_swap {
                return self.inner.scan(space, first, ptes, window, cleared);
            }
            entries.resize(end, 0);
        }
        let swapped = self.swap.map_or(PteState::ABSENT, PteState::placed);
        let out = &mut self.ptes[..ptes.len()];
        out.copy_from_slice(ptes);
        for ((entry, pte), kept) in entries[page as usize..end].iter_mut().zip(&mut *out).zip(&*self.kept) {
            enter(space, entry, pte, look.then_some(*kept), swapped);
        }
        self.inner.scan(space, first, out, window, cleared);
    }
}

/// Brings a page's account up to date by what a process's tables say of it and, where the object was asked, by where that keeps it; and what is
/// passed on of the page by its account.
fn enter(space: SpaceId, entry: &mut u32, pte: &mut PteState, kept: Option<Kept>, swapped: PteState) {
    let (mine, owner, in_memory) = (entry_of(space), owner_of(*entry), PteState::placed(TierId::FAST));
    let (is_out, is_back) = (*entry & OUT != 0, *entry & BACK != 0);
    match (pte.tier().is_none(), owner.is_some_and(|owner| owner != space)) {
        (false, false) => *entry = mine,
        (false, true) => {
            // The account it left from counts the return.
            *entry |= if is_out { BACK } else { 0 };
            *pte = PteState::ABSENT;
        }
        (true, true) => {}
        (true, false) if owner.is_some() && is_back => (*entry, *pte) = (mine, in_memory),
        (true, false) => match kept {
            None if is_out => *pte = swapped,
            Some(Kept::InSwap) => (*entry, *pte) = (mine | OUT, swapped),
            // Somebody who is not managed brought it back; it is seen in memory once, so that the return counts.
            Some(Kept::InMemory) if is_out => (*entry, *pte) = (mine, in_memory),
            None | Some(Kept::InMemory | Kept::Nowhere) => *entry = 0,
        },
    }
}

impl Sink for SharedSink<'_> {
    fn scan(&mut self, space: SpaceId, first: Vpn, ptes: &[PteState], window: Option<Duration>, cleared: bool) {
        if self.memory.spaces.get(&space).is_some_and(|held| !held.mappings.is_empty()) {
            self.seen.push((space, first.block_start()));
        }
        self.complete(space, first, ptes, window, cleared, window.is_some() || cleared || !self.rotates);
    }

    fn event(&mut self, space: SpaceId, vpn: Vpn, event: Event) {
        self.inner.event(space, vpn, event);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Process;

    const ONE: SpaceId = SpaceId(0);
    const OTHER: SpaceId = SpaceId(1);

    /// What was passed on last, as tiers.
    #[derive(Default)]
    struct Heard(Vec<Option<TierId>>);

    impl Sink for Heard {
        fn scan(&mut self, _: SpaceId, _: Vpn, ptes: &[PteState], _: Option<Duration>, _: bool) {
            self.0 = ptes.iter().map(|pte| pte.tier()).collect();
        }
        fn event(&mut self, _: SpaceId, _: Vpn, _: Event) {}
    }

    /// Two processes that map the same 8 pages, at 512 and at 1024; they are not there to be asked.
    fn two() -> SharedMemory {
        let object = SharedObject::default();
        let mapping = |start| SharedMapping { start: Vpn(start), end: Vpn(start + 8), object, first: 0 };
        let held = |start| Held { pid: 0, read: Vec::new(), mappings: vec![mapping(start)], left: Vec::new() };
        SharedMemory {
            spaces: BTreeMap::from([(ONE, held(512)), (OTHER, held(1024))]),
            objects: BTreeMap::from([(object, Vec::new())]),
            ..SharedMemory::default()
        }
    }

    /// Shows the pages of a process: `#` in memory, `.` not in its tables. Returns what is passed on, in the same way.
    fn show(memory: &mut SharedMemory, space: SpaceId, tables: &str) -> String {
        let pte = |page| if page == '#' { PteState::placed(TierId::FAST) } else { PteState::ABSENT };
        let ptes: Vec<PteState> = tables.chars().map(pte).collect();
        let first = memory.spaces[&space].mappings[0].start;
        let mut heard = Heard::default();
        // With a swap tier the object would be asked, of which there is none here.
        memory.over(None, true, &mut heard).scan(space, first, &ptes, None, false);
        heard.0.iter().map(|tier| if tier.is_some() { '#' } else { '.' }).collect()
    }

    /// The pages that left from a process's account, as a look at the object would have found them.
    fn left(memory: &mut SharedMemory, space: SpaceId, pages: Range<usize>) {
        let entries = memory.objects.values_mut().next().unwrap();
        entries.resize(8, 0);
        entries[pages].fill(entry_of(space) | OUT);
    }

    #[test]
    fn a_page_that_two_map_counts_once_and_is_the_others_when_the_first_lets_go() {
        let mut memory = two();
        assert_eq!(show(&mut memory, ONE, "####...."), "####....");
        assert_eq!(show(&mut memory, OTHER, "..####.."), "....##..");
        assert_eq!(show(&mut memory, ONE, "##......"), "##......");
        assert_eq!(show(&mut memory, OTHER, "..####.."), "..####..");
    }

    #[test]
    fn what_left_from_one_and_is_used_by_the_other_returns_to_the_first_once() {
        let mut memory = two();
        show(&mut memory, ONE, "########");
        left(&mut memory, ONE, 0..8);
        assert_eq!(show(&mut memory, OTHER, "..##...."), "........", "not yet in its account");
        assert_eq!(show(&mut memory, ONE, "........"), "..##....", "the first has the return");
        assert_eq!(show(&mut memory, ONE, "........"), "........", "and then the page no more");
        assert_eq!(show(&mut memory, OTHER, "..##...."), "..##....");
    }

    #[test]
    fn a_process_that_ends_hands_on_what_is_in_swap() {
        let mut memory = two();
        show(&mut memory, ONE, "########");
        left(&mut memory, ONE, 2..7);
        let handed = memory.forget(ONE);
        assert_eq!(handed, [Handover { from: Vpn(514), to: (OTHER, Vpn(1026)), pages: 5 }]);
        assert_eq!(show(&mut memory, OTHER, "########"), "########", "all of it is its own now");
        assert_eq!(memory.forget(OTHER), []);
        assert!(memory.objects.is_empty(), "nothing is kept of an object that nobody has");
    }

    #[test]
    fn an_object_of_this_process_is_reached_and_tells_memory_from_holes() {
        if let Err(reason) = try_on_self() {
            let reason = reason.to_string();
            assert!(reason.contains("CAP_SYS_ADMIN") || reason.contains("6.5"), "{reason}");
            return;
        }
        let object = File::from(rustix::fs::memfd_create("terrace-test", rustix::fs::MemfdFlags::CLOEXEC).unwrap());
        object.set_len(600 * PAGE_BYTES).unwrap();
        for page in (0..600).step_by(3) {
            std::os::unix::fs::FileExt::write_all_at(&object, &[1], page * PAGE_BYTES).unwrap();
        }
        let mut found = vec![Kept::InSwap; 590];
        kept(&object, 6, &mut found).unwrap();
        // Other programs' need of memory may have put some out meanwhile.
        assert!(found.iter().enumerate().all(|(page, kept)| (*kept == Kept::Nowhere) == (page % 3 != 0)));

        // Two views of one object: the first is managed; a file of a disk is not.
        let view = |file: &File| memmap2::MmapOptions::new().len(4 << 20).map_raw(file).unwrap();
        let on_disk = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        on_disk.set_len(4 << 20).unwrap();
        object.set_len(4 << 20).unwrap();
        let (first, second, disk) = (view(&object), view(&object), view(&on_disk));
        let starts = [&first, &second, &disk].map(|view| Vpn::of_address(view.as_mut_ptr() as u64));
        let me = Process::open(std::process::id()).unwrap();
        let mut mappings = me.shared_mappings().unwrap();
        mappings.retain(|mapping| starts.contains(&mapping.start));
        // The kernel joins neighbouring views of what follows on each other only.
        assert_eq!(mappings.len(), 3, "{mappings:?}");
        let mut memory = SharedMemory::default();
        let (left, _) = memory.follow(ONE, me.pid(), mappings.clone());
        assert_eq!(left.len(), 2, "{left:?}");
        assert!(left.contains(&starts[2]), "the file of the disk: {left:?}");
        assert_eq!(memory.follow(ONE, me.pid(), mappings).0, left, "it is remembered");
    }
}
