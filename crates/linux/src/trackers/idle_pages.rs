//! `idle-pages`: the kernel's idle page tracking (CONFIG_IDLE_PAGE_TRACKING), a bit for each frame of memory.
//!
//! In: the targets, /sys/kernel/mm/page_idle/bitmap, /proc/PID/pagemap and /proc/kpageflags. Out: PTE states. Must not: mark
//! frames of anyone but the targets, or be used together with another program that clears accessed bits.
//!
//! A frame marked idle stays so until it is accessed by way of any mapping. Of a huge page only its first frame has a bit;
//! the others take its word. A frame that left the free lists, or is of no page on an LRU list, reads as not idle, which
//! is why a page says something only in the round after the one that marked it.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use terrace_core::observation::PteState;
use terrace_core::units::SpaceId;
use terrace_core::watching::WatchPrices;

use super::rotation::{Piece, Rotation};
use super::{ProofKind, Round, Sink, Target, TrackError, Tracker};
use crate::pagemap::{Pagemap, PagemapEntry};
use crate::topology::TierMap;

const NAME: &str = "idle-pages";
/// Pieces read at once: 32 MiB of addresses, sorted by frame so that few words of the bitmap are read twice.
const BATCH: usize = 16;
/// Bits of /proc/kpageflags (admin-guide/mm/pagemap.rst).
const FLAG_COMPOUND_HEAD: u64 = 1 << 15;
const FLAG_COMPOUND_TAIL: u64 = 1 << 16;
const FLAG_TRANSPARENT_HUGE: u64 = 1 << 22;

/// The tracker.
#[derive(Debug)]
pub struct IdlePages {
    root: PathBuf,
    bitmap: File,
    flags: File,
    rotation: Rotation,
}

impl IdlePages {
    /// Opens the bitmap of this kernel.
    ///
    /// # Errors
    /// When the kernel has none, or the rights are missing.
    pub fn open() -> Result<IdlePages, TrackError> {
        IdlePages::open_under(Path::new("/"))
    }

    /// Opens the files under another root, which tests make.
    ///
    /// # Errors
    /// As [`IdlePages::open`].
    pub fn open_under(root: &Path) -> Result<IdlePages, TrackError> {
        let path = root.join("sys/kernel/mm/page_idle/bitmap");
        let refused = |path: &Path, error: &io::Error| {
            let reason = match error.kind() {
                io::ErrorKind::NotFound => {
                    format!("no {}: the kernel is built without CONFIG_IDLE_PAGE_TRACKING", path.display())
                }
                io::ErrorKind::PermissionDenied => format!("{}: needs root", path.display()),
                _ => format!("{}: {error}", path.display()),
            };
            TrackError::Unavailable { tracker: NAME, reason }
        };
        let bitmap = OpenOptions::new().read(true).write(true).open(&path).map_err(|error| refused(&path, &error))?;
        let path = root.join("proc/kpageflags");
        let flags = File::open(&path).map_err(|error| refused(&path, &error))?;
        Ok(IdlePages { root: root.to_owned(), bitmap, flags, rotation: Rotation::default() })
    }

    /// Reads whether each frame is idle; of a huge page's frame, whether its first is. Marks those with a turn idle.
    fn read_and_mark(&self, frames: &mut [FrameUse]) -> io::Result<()> {
        frames.sort_unstable_by_key(|entry| entry.frame);
        let mut heads: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
        for (index, entry) in frames.iter_mut().enumerate() {
            let flags = read_word(&self.flags, entry.frame)?;
            entry.huge = flags & FLAG_TRANSPARENT_HUGE != 0;
            let head = if flags & FLAG_COMPOUND_TAIL != 0 { self.head_of(entry.frame)? } else { entry.frame };
            heads.entry(head / 64).or_default().push(index);
            entry.head = head;
        }
        for (word, users) in heads {
            let idle = read_word(&self.bitmap, word)?;
            let mut mark = 0;
            for index in users {
                let bit = 1 << (frames[index].head % 64);
                frames[index].idle = idle & bit != 0;
                mark |= if frames[index].turn { bit } else { 0 };
            }
            // A bit that is not set in a write stays as it is (admin-guide/mm/idle_page_tracking.rst).
            if mark != 0 {
                self.bitmap.write_all_at(&mark.to_ne_bytes(), word * 8)?;
            }
        }
        Ok(())
    }

    /// The first frame of the compound page that a tail frame is of: the nearest head before it.
    fn head_of(&self, tail: u64) -> io::Result<u64> {
        // A transparent huge page has 512 frames and is aligned to them; smaller ones begin somewhere after that.
        let lowest = tail & !511;
        for frame in (lowest..tail).rev() {
            if read_word(&self.flags, frame)? & FLAG_COMPOUND_HEAD != 0 {
                return Ok(frame);
            }
        }
        Ok(lowest)
    }

    fn batch(
        &self,
        target: &Target<'_>,
        pagemap: &mut Pagemap,
        pieces: &[Piece],
        tiers: &TierMap,
        sink: &mut dyn Sink,
    ) -> io::Result<()> {
        let mut entries = [PagemapEntry::default(); 512];
        let mut frames = Vec::new();
        let mut ptes: Vec<Vec<PteState>> = Vec::with_capacity(pieces.len());
        for (index, piece) in pieces.iter().enumerate() {
            let entries = &mut entries[..piece.pages];
            pagemap.entries(piece.first, entries)?;
            ptes.push(vec![PteState::ABSENT; piece.pages]);
            for (page, entry) in entries.iter().enumerate() {
                if let Some(frame) = entry.frame() {
                    let turn = piece.turn;
                    frames.push(FrameUse { frame, head: frame, piece: index, page, turn, idle: false, huge: false });
                } else if entry.swapped()
                    && let Some(tier) = tiers.swap_tier()
                {
                    ptes[index][page] = PteState::placed(tier);
                }
            }
        }
        self.read_and_mark(&mut frames)?;
        for entry in &frames {
            let tier = tiers.tier_of_frame(entry.frame);
            ptes[entry.piece][entry.page] = PteState::placed(tier).with_accessed(!entry.idle).with_huge(entry.huge);
        }
        for (piece, ptes) in pieces.iter().zip(&ptes) {
            sink.scan(target.space, piece.first, ptes, piece.window, piece.turn);
        }
        Ok(())
    }
}

/// A page of a target and its frame.
#[derive(Clone, Copy, Debug)]
struct FrameUse {
    frame: u64,
    head: u64,
    piece: usize,
    page: usize,
    turn: bool,
    idle: bool,
    huge: bool,
}

/// One 64-bit word of a file of words. The kernel's files refuse anything that is not whole and aligned.
fn read_word(file: &File, index: u64) -> io::Result<u64> {
    let mut word = [0; 8];
    match file.read_at(&mut word, index * 8)? {
        // Past the last frame the file ends: nothing is idle there.
        0 => Ok(0),
        8 => Ok(u64::from_ne_bytes(word)),
        bytes => Err(io::Error::new(io::ErrorKind::InvalidData, format!("a word was cut to {bytes} bytes"))),
    }
}

impl Tracker for IdlePages {
    fn name(&self) -> &'static str {
        NAME
    }

    fn reads_page_tables(&self) -> bool {
        true
    }

    fn scan(&mut self, round: &Round<'_>, sink: &mut dyn Sink) -> Result<(), TrackError> {
        let &Round { now, targets, tiers, share } = round;
        for target in targets {
            let pid = target.process.pid();
            let path = self.root.join(format!("proc/{pid}/pagemap"));
            let mut pagemap = match File::open(&path) {
                Ok(file) => Pagemap::of_file(file),
                Err(_) if !target.process.is_alive() => continue,
                Err(error) => return Err(TrackError::call(NAME, path.display().to_string(), error)),
            };
            let call = |source| TrackError::call(NAME, "page_idle/bitmap, kpageflags or pagemap", source);
            let pieces = self.rotation.pieces(now, target, share);
            for pieces in pieces.chunks(BATCH) {
                match self.batch(target, &mut pagemap, pieces, tiers, sink) {
                    Err(_) if !target.process.is_alive() => break,
                    result => result.map_err(call)?,
                }
            }
        }
        Ok(())
    }

    fn sees_virtual_machines(&self) -> bool {
        true
    }

    fn watch_within(&mut self, within: f64) {
        self.rotation.watch_within(within);
    }

    fn prices(&self) -> Option<WatchPrices> {
        Some(WatchPrices::ASSUMED)
    }

    fn forget(&mut self, space: SpaceId) {
        self.rotation.forget(space);
    }

    fn proof_kind(&self) -> ProofKind {
        ProofKind::Marks { dwell: Duration::from_millis(20) }
    }
}

#[cfg(test)]
mod tests {
    use terrace_core::units::{TierId, Vpn};

    use super::*;
    use crate::process::{Backing, MemoryRange, Process};
    use terrace_core::units::Time;

    /// What a sink heard, by page.
    #[derive(Default)]
    struct Heard(BTreeMap<Vpn, (PteState, Option<Duration>, bool)>);

    impl Sink for Heard {
        fn scan(&mut self, _: SpaceId, first: Vpn, ptes: &[PteState], window: Option<Duration>, cleared: bool) {
            for (page, pte) in ptes.iter().enumerate() {
                self.0.insert(Vpn(first.0 + page as u64), (*pte, window, cleared));
            }
        }
        fn event(&mut self, _: SpaceId, _: Vpn, _: super::super::Event) {}
    }

    fn write_words(path: &Path, words: &[(u64, u64)]) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(path).unwrap();
        for (index, word) in words {
            file.write_all_at(&word.to_ne_bytes(), index * 8).unwrap();
        }
    }

    fn word_of(root: &Path, file: &str, index: u64) -> u64 {
        read_word(&File::open(root.join(file)).unwrap(), index).unwrap()
    }

    #[test]
    fn idle_bits_become_sights_and_tails_follow_their_head() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let pid = std::process::id();
        let (bitmap, present, swapped) = ("sys/kernel/mm/page_idle/bitmap", 1_u64 << 63, 1_u64 << 62);
        // Pages 512..516: frame 70 alone, frame 513 the tail of a huge page at 512, swapped, absent.
        write_words(
            &root.join(format!("proc/{pid}/pagemap")),
            &[(512, present | 70), (513, present | 513), (514, swapped), (515, 0)],
        );
        write_words(
            &root.join("proc/kpageflags"),
            &[
                (70, 0),
                (512, FLAG_COMPOUND_HEAD | FLAG_TRANSPARENT_HUGE),
                (513, FLAG_COMPOUND_TAIL | FLAG_TRANSPARENT_HUGE),
            ],
        );
        write_words(&root.join(bitmap), &[(1, 0), (8, 0)]);
        let process = Process::open(pid).unwrap();
        let ranges = [MemoryRange { start: Vpn(512), end: Vpn(516), backing: Backing::Anonymous }];
        let targets = [Target { space: SpaceId(3), process: &process, ranges: &ranges }];
        let tiers = TierMap::new(Vec::new(), Vec::new());
        let mut tracker = IdlePages::open_under(root).unwrap();

        let mut heard = Heard::default();
        tracker.scan(&Round::of_all(Time::from_nanos(5), &targets, &tiers), &mut heard).unwrap();
        assert!(
            heard.0.values().all(|(_, window, cleared)| window.is_none() && *cleared),
            "the first round only marks"
        );
        assert_eq!(word_of(root, bitmap, 1), 1 << 6, "frame 70 is marked");
        assert_eq!(word_of(root, bitmap, 8), 1, "of the huge page its first frame is");

        // The huge page is accessed: the kernel clears its bit.
        write_words(&root.join(bitmap), &[(8, 0)]);
        let mut heard = Heard::default();
        tracker.scan(&Round::of_all(Time::from_nanos(9), &targets, &tiers), &mut heard).unwrap();
        let window = Some(Duration::from_nanos(4));
        let fast = PteState::placed(TierId::FAST);
        assert_eq!(heard.0[&Vpn(512)], (fast, window, true));
        assert_eq!(heard.0[&Vpn(513)], (fast.with_accessed(true).with_huge(true), window, true));
        assert_eq!(heard.0[&Vpn(514)].0, PteState::ABSENT, "no swap tier on this map");
        assert_eq!(heard.0[&Vpn(515)].0, PteState::ABSENT);
    }

    #[test]
    fn a_kernel_without_it_is_told_in_one_line() {
        let root = tempfile::tempdir().unwrap();
        let line = IdlePages::open_under(root.path()).unwrap_err().to_string();
        assert!(line.contains("CONFIG_IDLE_PAGE_TRACKING") && !line.contains('\n'), "{line}");
    }
}
