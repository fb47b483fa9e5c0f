//! The main tracker: accessed bits read from the page tables themselves by an eBPF program, without a kernel module.
//!
//! In: processes and their ranges. Out: a [`PteState`] for every page whose table exists. Must not: read through any
//! cache of its own, report a page as used whose mark was never cleared, or keep anything a page (16 bytes a block).
//!
//! One round walks the ranges block by block (2 MiB, the reach of one last-level table), a window of blocks at a
//! time: the program copies their tables (0.4 ns a page), the bits of the blocks whose turn it is are cleared (a
//! hundred times dearer, and the target must set them again, which is why only a share of the blocks has its turn),
//! then the copies are translated and handed over. A window is small, so that little time passes between reading a
//! bit and clearing it: a use in between is lost.
//!
//! What it cannot see: a bit says that a page was used since, not how often. Clearing skips pages that several
//! processes map (memory shared with a forked child): they look used in every window. A page whose translation
//! stays in the TLB is flushed by MADV_COLD but not by clear_refs, so windows below 250 ms undercount there. Other
//! clearers (DAMON, multi-generation LRU) take bits away, and do so without a flush: DAMON over physical memory takes
//! one bit a region and sample, which is next to nothing of 4 KiB pages and a good part of huge ones. `notes` names it.

mod clear;
mod entries;
mod trial;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use terrace_bpf::{BpfError, PageTables, SpaceMark};
use terrace_core::observation::PteState;
use terrace_core::units::{BLOCK_PAGES, Bytes, PAGE_BYTES, SpaceId, TierId, Time, Vpn};
use terrace_core::watching::WatchPrices;

use self::clear::{Cleared, Clearing};
use self::entries::{Decoder, Head};
use super::rotation;
use super::{Grade, Round, Sink, Target, TrackError, Tracker};
use crate::process::Backing;
use crate::sys::RemoteRange;
use crate::topology::{TierKind, TierMap};

/// The tracker's name.
pub const NAME: &str = "accessed-bits";

/// Blocks read at once: 512 KiB of copies, which stay in a second-level cache until they are translated.
const WINDOW_BLOCKS: usize = 128;
const BLOCK_BYTES: u64 = BLOCK_PAGES as u64 * PAGE_BYTES;
/// Reads and clears accessed bits.
#[derive(Debug)]
pub struct AccessedBits {
    tables: PageTables,
    clearing: Clearing,
    cost_ns_per_page: Option<f64>,
    prices: WatchPrices,
    /// Which share of the blocks takes turns.
    within: f64,
    spaces: BTreeMap<SpaceId, Space>,
    window: Window,
    time: TimeSpent,
    /// Who else clears bits.
    disturbed: Option<String>,
}

/// Where the time of the rounds so far went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimeSpent {
    /// Copying page tables.
    pub reading: Duration,
    /// Clearing bits: an upper bound of what the targets' memory locks were held for.
    pub clearing: Duration,
    /// Translating copies and handing them over.
    pub translating: Duration,
    /// The longest clearing of one window.
    pub longest_clear: Duration,
}

/// What is kept of an address space.
#[derive(Debug)]
struct Space {
    mark: Option<SpaceMark>,
    clearing: Clearing,
    /// How far round the circle of blocks its turns have come.
    position: u64,
    /// The blocks that held anything last time, by number.
    blocks: Vec<BlockState>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct BlockState {
    /// Its address divided by 2 MiB.
    number: u64,
    /// When its bits were last cleared; `FAR_FUTURE` if never.
    cleared: Time,
}

/// A part of a block that lies in one range.
#[derive(Clone, Copy, Debug)]
struct Piece {
    slot: u32,
    first: Vpn,
    pages: u32,
    anonymous: bool,
}

/// The blocks that are being read, with scratch space that lives from window to window.
#[derive(Debug, Default)]
struct Window {
    addresses: Vec<u64>,
    pieces: Vec<Piece>,
    /// By slot: whether its bits are (to be) cleared in this round.
    cleared: Vec<bool>,
    stretches: Vec<RemoteRange>,
    /// The slots that a stretch covers, first to last.
    stretch_slots: Vec<(u32, u32)>,
}

/// Which blocks have their turn in a round: those of a stretch of the circle on which their hashes place them. Where one round's stretch
/// ends the next one's begins, however long each is, so that every block has one turn each time round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Turn {
    from: u64,
    length: u64,
    /// The part of the circle that takes turns.
    around: u64,
}

impl Turn {
    /// The next stretch from `position` on. No share, no turn.
    fn of(share: f64, within: f64, position: u64) -> Option<Turn> {
        let around = rotation::points(within);
        let length = rotation::points(share).min(around);
        (length > 0).then(|| Turn { from: position % around, length, around })
    }

    fn has(self, block: u64) -> bool {
        let place = rotation::place_on_circle(block);
        place < self.around && (place + self.around - self.from) % self.around < self.length
    }

    fn end(self) -> u64 {
        (self.from + self.length) % self.around
    }

    /// A process that can only be cleared whole has its turn all at once, each time round.
    fn is_whole_process(self) -> bool {
        self.from + self.length >= self.around
    }
}

/// Why the walk of one target stopped.
enum Stop {
    Gone,
    Failed(TrackError),
}

impl AccessedBits {
    /// Loads the eBPF program, checks what it reads against the kernel's own word on a private mapping, finds out
    /// how bits can be cleared, and measures what both cost. What fails is tried once more from the start: with a fresh search for the
    /// kernel's map of memory, proven by fresh bytes, and a fresh mapping.
    ///
    /// # Errors
    /// When eBPF is not there or not permitted, when what it reads is wrong, or when no bit can be cleared.
    pub fn open() -> Result<AccessedBits, TrackError> {
        let mut tracker = AccessedBits::open_once().or_else(|first| {
            tracing::debug!("{first}; trying once more from the start");
            AccessedBits::open_once()
        })?;
        tracker.prices = tracker.measure_prices();
        tracker.disturbed = other_clearer();
        Ok(tracker)
    }

    fn open_once() -> Result<AccessedBits, TrackError> {
        let tables = PageTables::open(WINDOW_BLOCKS).map_err(|error| unavailable(error.to_string()))?;
        let mut tracker = AccessedBits {
            tables,
            clearing: Clearing::Cold,
            cost_ns_per_page: None,
            prices: WatchPrices::ASSUMED,
            within: 1.0,
            spaces: BTreeMap::new(),
            window: Window::default(),
            time: TimeSpent::default(),
            disturbed: None,
        };
        // The kernel may move a page of the trial between two looks; it does not do so three times.
        let mut result = tracker.try_on_itself();
        for _ in 0..2 {
            if result.is_err() {
                result = tracker.try_on_itself();
            }
        }
        result.map(|()| tracker)
    }

    /// Where the time of the rounds so far went.
    pub fn time_spent(&self) -> TimeSpent {
        self.time
    }

    /// Bytes kept a target, beyond the fixed window.
    pub fn memory_bytes(&self) -> usize {
        self.spaces.values().map(|space| space.blocks.capacity() * size_of::<BlockState>()).sum()
    }

    fn walk(
        &mut self,
        now: Time,
        target: &Target<'_>,
        tiers: &TierMap,
        share: f64,
        sink: &mut dyn Sink,
    ) -> Result<(), Stop> {
        let fresh = || Space { mark: None, clearing: self.clearing, position: 0, blocks: Vec::new() };
        let mut space = self.spaces.remove(&target.space).unwrap_or_else(fresh);
        let turn = Turn::of(share, self.within, space.position);
        space.position = turn.map_or(space.position, Turn::end);
        let before = std::mem::take(&mut space.blocks);
        space.blocks.reserve(before.len());
        let mut pass = ScanPass {
            now,
            target,
            tiers,
            turn,
            whole: matches!(turn, Some(turn) if space.clearing == Clearing::ClearRefs && turn.is_whole_process()),
            before,
            at: 0,
            first_window: true,
        };
        let result = self.walk_ranges(&mut pass, &mut space, sink);
        if result.is_err() {
            // What was not come to is remembered as it was.
            self.window.clear();
            space.blocks.extend_from_slice(&pass.before[pass.at..]);
        }
        let whole = pass.whole && result.is_ok();
        self.spaces.insert(target.space, space);
        result?;
        if whole { self.clear_whole(target) } else { Ok(()) }
    }

    fn walk_ranges(&mut self, pass: &mut ScanPass<'_>, space: &mut Space, sink: &mut dyn Sink) -> Result<(), Stop> {
        for range in pass.target.ranges {
            let mut at = range.start;
            while at < range.end {
                let block = at.block_start();
                let end = range.end.0.min(block.0 + u64::from(BLOCK_PAGES));
                if self.window.addresses.last() != Some(&block.address()) {
                    if self.window.addresses.len() == WINDOW_BLOCKS {
                        self.flush(pass, space, sink)?;
                    }
                    self.window.addresses.push(block.address());
                }
                self.window.pieces.push(Piece {
                    slot: self.window.addresses.len() as u32 - 1,
                    first: at,
                    pages: (end - at.0) as u32,
                    anonymous: range.backing == Backing::Anonymous,
                });
                at = Vpn(end);
            }
        }
        self.flush(pass, space, sink)
    }

    /// Reads, clears and hands over the blocks of the window.
    fn flush(&mut self, pass: &mut ScanPass<'_>, space: &mut Space, sink: &mut dyn Sink) -> Result<(), Stop> {
        if self.window.addresses.is_empty() {
            return Ok(());
        }
        let began = Instant::now();
        let mark = match self.tables.copy(pass.target.process.pid(), &self.window.addresses) {
            Ok(mark) => mark,
            Err(BpfError::Gone(_)) => return Err(Stop::Gone),
            Err(error) => return Err(Stop::Failed(call_error(error))),
        };
        if space.mark != Some(mark) {
            // Another program runs under the pid now (exec): the ranges of this round are stale if it happened within.
            if !pass.first_window {
                return Err(Stop::Gone);
            }
            pass.before.iter_mut().for_each(|block| block.cleared = Time::FAR_FUTURE);
            space.mark = Some(mark);
        }
        pass.first_window = false;
        let read = Instant::now();
        self.time.reading += read - began;
        self.window.choose(&self.tables, pass, space.clearing);
        if space.clearing == Clearing::Cold {
            self.clear_window(pass, space)?;
        }
        let cleared = Instant::now();
        self.time.clearing += cleared - read;
        self.time.longest_clear = self.time.longest_clear.max(cleared - read);
        self.report(pass, space, sink);
        self.time.translating += cleared.elapsed();
        self.window.clear();
        Ok(())
    }

    fn clear_window(&mut self, pass: &ScanPass<'_>, space: &mut Space) -> Result<(), Stop> {
        let Window { stretches, stretch_slots, cleared, .. } = &mut self.window;
        let failed = |index: usize| {
            let (first, last) = stretch_slots[index];
            cleared[first as usize..=last as usize].fill(false);
        };
        match clear::cold(pass.target.process.pidfd(), stretches, failed) {
            Ok(Cleared::Done) => Ok(()),
            Ok(Cleared::Gone) => Err(Stop::Gone),
            Ok(Cleared::Refused) => {
                // The next round clears by the other way; of this one nothing is known to be cleared.
                tracing::warn!(
                    pid = pass.target.process.pid(),
                    "process_madvise(MADV_COLD) is refused: using clear_refs"
                );
                space.clearing = Clearing::ClearRefs;
                cleared.fill(false);
                Ok(())
            }
            Err(source) => {
                let call = format!("process_madvise(pid {}, MADV_COLD)", pass.target.process.pid());
                Err(Stop::Failed(TrackError::Call { tracker: NAME, call, source }))
            }
        }
    }

    fn clear_whole(&mut self, target: &Target<'_>) -> Result<(), Stop> {
        let began = Instant::now();
        let outcome = clear::clear_refs(target.process);
        self.time.clearing += began.elapsed();
        self.time.longest_clear = self.time.longest_clear.max(began.elapsed());
        let pid = target.process.pid();
        match outcome {
            Ok(Cleared::Done) => Ok(()),
            Ok(Cleared::Gone) => Err(Stop::Gone),
            Ok(Cleared::Refused) => Err(Stop::Failed(unavailable(format!(
                "the accessed bits of process {pid} cannot be cleared: it needs root, or CAP_SYS_PTRACE and CAP_SYS_NICE"
            )))),
            Err(source) => {
                Err(Stop::Failed(TrackError::Call { tracker: NAME, call: format!("/proc/{pid}/clear_refs"), source }))
            }
        }
    }

    /// Translates the window and hands it over; notes which blocks hold something, and when they were cleared.
    fn report(&self, pass: &mut ScanPass<'_>, space: &mut Space, sink: &mut dyn Sink) {
        let decoder = Decoder { address_mask: self.tables.physical_address_mask(), swap: pass.tiers.swap_tier() };
        // Nearly every machine with zram has one node tier: then no frame need be looked up.
        let mut nodes = pass.tiers.tiers().iter().filter(|tier| matches!(tier.kind, TierKind::Nodes { .. }));
        let only_tier = match (nodes.next(), nodes.next()) {
            (Some(tier), None) => Some(tier.id),
            (None, _) => Some(TierId::FAST),
            _ => None,
        };
        let mut ptes = [PteState::ABSENT; BLOCK_PAGES as usize];
        let mut slot = usize::MAX;
        let mut known = None;
        for piece in &self.window.pieces {
            let number = self.window.addresses[piece.slot as usize] / BLOCK_BYTES;
            let entry = self.tables.head(piece.slot as usize);
            let head = Head::of(entry);
            let cleared = self.window.cleared[piece.slot as usize];
            if slot != piece.slot as usize {
                slot = piece.slot as usize;
                known = pass.known(number);
                let since = if cleared { Some(pass.now) } else { known.map(|block| block.cleared) };
                let remembered = match head {
                    Head::Nothing => None,
                    // Still remembered, so that it is missed once it has vanished.
                    Head::Unknown => known.map(|block| BlockState { cleared: since.unwrap_or(block.cleared), ..block }),
                    Head::Huge | Head::Table => Some(BlockState { number, cleared: since.unwrap_or(Time::FAR_FUTURE) }),
                };
                space.blocks.extend(remembered);
            }
            let in_turn = pass.has_turn(number, space.clearing);
            let window = known
                .filter(|block| in_turn && block.cleared != Time::FAR_FUTURE)
                .map(|block| pass.now.since(block.cleared));
            let ptes = &mut ptes[..piece.pages as usize];
            match head {
                Head::Unknown => continue,
                // Nothing there and nothing there before: not worth a word. The first time it is gone, it is.
                Head::Nothing if known.is_none() => continue,
                Head::Nothing => ptes.fill(PteState::ABSENT),
                Head::Huge => {
                    let pte = match only_tier {
                        Some(tier) => decoder.decode_huge(entry, piece.anonymous, |_| tier),
                        None => decoder.decode_huge(entry, piece.anonymous, |frame| pass.tiers.tier_of_frame(frame)),
                    };
                    ptes.fill(pte);
                }
                Head::Table => {
                    let from = piece.first.offset_in_block() as usize;
                    let entries = &self.tables.table(slot)[from..from + piece.pages as usize];
                    match only_tier {
                        Some(tier) => decoder.decode(entries, ptes, |_| tier),
                        None => decoder.decode(entries, ptes, |frame| pass.tiers.tier_of_frame(frame)),
                    }
                }
            }
            sink.scan(pass.target.space, piece.first, ptes, window, cleared && head != Head::Nothing);
        }
    }
}

/// One round over one target.
struct ScanPass<'a> {
    now: Time,
    target: &'a Target<'a>,
    tiers: &'a TierMap,
    turn: Option<Turn>,
    /// The whole process has its turn, to be cleared at once at the end.
    whole: bool,
    /// What was known before, by block number; `at` is how far the walk, which goes by address too, has come.
    before: Vec<BlockState>,
    at: usize,
    first_window: bool,
}

impl ScanPass<'_> {
    fn known(&mut self, number: u64) -> Option<BlockState> {
        while self.before.get(self.at).is_some_and(|block| block.number < number) {
            self.at += 1;
        }
        self.before.get(self.at).copied().filter(|block| block.number == number)
    }

    fn has_turn(&self, number: u64, clearing: Clearing) -> bool {
        match clearing {
            Clearing::Cold => self.turn.is_some_and(|turn| turn.has(number)),
            Clearing::ClearRefs => self.whole,
        }
    }
}

impl Window {
    fn clear(&mut self) {
        self.addresses.clear();
        self.pieces.clear();
        self.cleared.clear();
        self.stretches.clear();
        self.stretch_slots.clear();
    }

    /// Finds the blocks that have their turn, and the stretches of them that need clearing: those with a bit set.
    fn choose(&mut self, tables: &PageTables, pass: &ScanPass<'_>, clearing: Clearing) {
        let turn = |address: &u64| pass.has_turn(address / BLOCK_BYTES, clearing);
        self.cleared.extend(self.addresses.iter().map(turn));
        if clearing == Clearing::ClearRefs {
            return;
        }
        for piece in &self.pieces {
            let slot = piece.slot as usize;
            if !self.cleared[slot] {
                continue;
            }
            let entry = tables.head(slot);
            let from = piece.first.offset_in_block() as usize;
            let used = match Head::of(entry) {
                Head::Nothing => false,
                Head::Unknown => {
                    self.cleared[slot] = false;
                    false
                }
                // A part of a huge page cannot be cleared without splitting it.
                Head::Huge if piece.pages < BLOCK_PAGES => {
                    self.cleared[slot] = false;
                    false
                }
                Head::Huge => entries::is_accessed(entry),
                Head::Table => any_accessed(&tables.table(slot)[from..from + piece.pages as usize]),
            };
            if used {
                let address = piece.first.address() as usize;
                let length = piece.pages as usize * PAGE_BYTES as usize;
                match (self.stretches.last_mut(), self.stretch_slots.last_mut()) {
                    (Some(last), Some((_, last_slot)))
                        if last.address + last.length == address && last.length < MERGED_BYTES =>
                    {
                        last.length += length;
                        *last_slot = piece.slot;
                    }
                    _ => {
                        self.stretches.push(RemoteRange { address, length });
                        self.stretch_slots.push((piece.slot, piece.slot));
                    }
                }
            }
        }
    }
}

/// Neighbouring blocks are cleared as one stretch up to this length, so that a call can stay below its limit.
const MERGED_BYTES: usize = 16 << 20;

/// Whether any of the entries is accessed. Without a branch an entry, so that it runs at the speed of the cache.
fn any_accessed(table: &[u64]) -> bool {
    table.chunks(64).any(|chunk| chunk.iter().fold(false, |any, &entry| any | entries::is_accessed(entry)))
}

impl Tracker for AccessedBits {
    fn name(&self) -> &'static str {
        NAME
    }

    fn grade(&self) -> Grade {
        Grade {
            granularity_bytes: Bytes::new(PAGE_BYTES),
            reads: true,
            writes: true,
            cost_ns_per_page: self.cost_ns_per_page,
        }
    }

    fn reads_page_tables(&self) -> bool {
        true
    }

    fn scan(&mut self, round: &Round<'_>, sink: &mut dyn Sink) -> Result<(), TrackError> {
        let &Round { now, targets, tiers, share } = round;
        for target in targets {
            match self.walk(now, target, tiers, share, sink) {
                Ok(()) => {}
                Err(Stop::Gone) => tracing::debug!(pid = target.process.pid(), "gone or changed in mid-round"),
                Err(Stop::Failed(error)) => return Err(error),
            }
        }
        Ok(())
    }

    fn watch_within(&mut self, within: f64) {
        self.within = within;
    }

    fn prices(&self) -> Option<WatchPrices> {
        Some(self.prices)
    }

    fn forget(&mut self, space: SpaceId) {
        self.spaces.remove(&space);
    }

    fn notes(&self) -> Vec<String> {
        self.disturbed.iter().cloned().collect()
    }
}

/// Who else clears accessed bits now, and what that does, in one line.
pub fn other_clearer() -> Option<String> {
    let kdamond = trial::running_kdamond(std::path::Path::new("/sys/kernel/mm/damon/admin/kdamonds"))?;
    Some(format!("{kdamond} runs and clears accessed bits too: huge pages will look idler than they are"))
}

fn unavailable(reason: String) -> TrackError {
    TrackError::Unavailable { tracker: NAME, reason }
}

fn call_error(error: BpfError) -> TrackError {
    match error {
        BpfError::Call { call, source } => TrackError::Call { tracker: NAME, call: call.to_owned(), source },
        other => unavailable(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Process;

    #[test]
    fn a_block_is_known_by_its_number_as_the_walk_passes_it() {
        let me = Process::open(std::process::id()).unwrap();
        let tiers = TierMap::new(Vec::new(), Vec::new());
        let target = Target { space: SpaceId(1), process: &me, ranges: &[] };
        let block = |number| BlockState { number, cleared: Time::from_nanos(number) };
        let before = vec![block(3), block(5), block(9)];
        let (now, turn) = (Time::ZERO, None);
        let mut pass =
            ScanPass { now, target: &target, tiers: &tiers, turn, whole: false, before, at: 0, first_window: true };
        let found: Vec<Option<u64>> =
            [1, 3, 4, 8, 9, 10].map(|number| pass.known(number).map(|block| block.number)).to_vec();
        assert_eq!(found, [None, Some(3), None, None, Some(9), None]);
    }

    #[test]
    fn every_block_has_its_turn_once_in_so_many_rounds() {
        for shares in [&[1.0][..], &[0.5; 2], &[0.125; 8], &[2.0], &[0.5, 0.125, 0.25, 0.125], &[0.75, 0.25]] {
            let mut position = 0;
            let turns: Vec<Turn> = shares
                .iter()
                .map(|&share| {
                    let turn = Turn::of(share, 1.0, position).unwrap();
                    position = turn.end();
                    turn
                })
                .collect();
            for block in 0..1000 {
                let count = turns.iter().filter(|turn| turn.has(block)).count();
                assert_eq!(count, 1, "block {block} at shares {shares:?}");
            }
            let whole = turns.iter().filter(|turn| turn.is_whole_process()).count();
            assert_eq!(whole, 1, "the whole process is cleared as seldom");
        }
        assert_eq!(Turn::of(0.0, 1.0, 3), None);
        assert_eq!(Turn::of(f64::NAN, 1.0, 3), None);
        assert_eq!(Turn::of(0.5, 0.0, 3), None);
    }

    #[test]
    fn each_round_has_its_share_of_any_stretch_of_memory_and_within_a_part_only_of_that() {
        let mut position = 0;
        for _ in 0..50 {
            let turn = Turn::of(0.1, 1.0, position).unwrap();
            position = turn.end();
            let here = (5000..5320).filter(|&block| turn.has(block)).count();
            assert!((30..=34).contains(&here), "{here} of 320 blocks");
        }
        // An eighth of a quarter each round: eight rounds have each of the same quarter once.
        let mut found: Vec<u64> = Vec::new();
        for _ in 0..8 {
            let turn = Turn::of(0.25 / 8.0, 0.25, position).unwrap();
            position = turn.end();
            found.extend((0..1024).filter(|&block| turn.has(block)));
        }
        let count = found.len();
        assert!((250..=262).contains(&count), "{count} of 1,024 blocks");
        found.sort_unstable();
        found.dedup();
        assert_eq!(found.len(), count, "none had two turns");
    }
}
