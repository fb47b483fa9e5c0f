//! Places: where the pages of the targets lie, for trackers that see accesses and not places.
//!
//! In: the targets, /proc/PID/pagemap, and /proc/kpageflags on kernels before 6.7. Out: PTE states without a window: their places
//! count, their marks do not. Must not: clear or set anything.
//!
//! Hardware samples and hint faults come by address. What they are worth depends on where the page is, and that nobody
//! reports them; so the manager scans from time to time.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use terrace_core::observation::PteState;
use terrace_core::units::Vpn;

use super::{Sink, Target};
use crate::pagemap::{Pagemap, PagemapEntry, Residence};
use crate::topology::TierMap;

/// Pages of a block.
const BLOCK: usize = 512;
/// KPF_THP of /proc/kpageflags (admin-guide/mm/pagemap.rst).
const FLAG_TRANSPARENT_HUGE: u64 = 1 << 22;

/// The reader, with its buffers.
#[derive(Debug)]
pub struct Places {
    /// Identifies huge pages where the kernel's walk of page tables does not; `None` if it may not be read.
    flags: Option<File>,
    residences: Box<[Residence; BLOCK]>,
    entries: Box<[PagemapEntry; BLOCK]>,
    ptes: Vec<PteState>,
}

impl Default for Places {
    fn default() -> Places {
        Places {
            flags: File::open("/proc/kpageflags").ok(),
            residences: Box::new([Residence::Absent; BLOCK]),
            entries: Box::new([PagemapEntry::default(); BLOCK]),
            ptes: Vec::with_capacity(BLOCK),
        }
    }
}

impl Places {
    /// Reads where every page of the targets is and passes it to `sink`. Returns how many have memory behind them.
    ///
    /// # Errors
    /// When a pagemap cannot be read though its process lives.
    pub fn walk(&mut self, targets: &[Target<'_>], tiers: &TierMap, sink: &mut dyn Sink) -> io::Result<u64> {
        let mut placed = 0;
        for target in targets {
            match self.walk_one(target, tiers, sink) {
                Ok(pages) => placed += pages,
                Err(_) if !target.process.is_alive() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(placed)
    }

    fn walk_one(&mut self, target: &Target<'_>, tiers: &TierMap, sink: &mut dyn Sink) -> io::Result<u64> {
        let mut pagemap = Pagemap::open(target.process.seen_by())?;
        let mut placed = 0;
        for range in target.ranges {
            let mut first = range.start.0;
            while first < range.end.0 {
                // To the end of the 2 MiB block that the address lies in, as a sink wants it.
                let pages = (BLOCK as u64 - first % BLOCK as u64).min(range.end.0 - first);
                self.block(&mut pagemap, Vpn(first), pages as usize, tiers)?;
                placed += self.ptes.iter().filter(|pte| pte.tier().is_some()).count() as u64;
                sink.scan(target.space, Vpn(first), &self.ptes, None, false);
                first += pages;
            }
        }
        Ok(placed)
    }

    /// The page-table entries of consecutive pages from `first` on, all in one 2 MiB block.
    ///
    /// # Errors
    /// As reading /proc/PID/pagemap.
    pub fn ptes(
        &mut self,
        pagemap: &mut Pagemap,
        first: Vpn,
        pages: usize,
        tiers: &TierMap,
    ) -> io::Result<&[PteState]> {
        self.block(pagemap, first, pages, tiers)?;
        Ok(&self.ptes)
    }

    fn block(&mut self, pagemap: &mut Pagemap, first: Vpn, pages: usize, tiers: &TierMap) -> io::Result<()> {
        let residences = &mut self.residences[..pages];
        pagemap.residences(first, residences)?;
        let frames_tell = tiers.has_several_node_tiers() && residences.iter().any(|residence| residence.is_present());
        let entries = &mut self.entries[..pages];
        entries.fill(PagemapEntry::default());
        // Without frames, huge pages cannot be identified on old kernels either.
        let needs_flags = !pagemap.has_scan() && pages == BLOCK;
        if frames_tell || needs_flags {
            pagemap.entries(first, entries)?;
        }
        let huge = needs_flags && self.flags.as_ref().is_some_and(|flags| is_huge(entries, flags));
        self.ptes.clear();
        self.ptes.extend(residences.iter().zip(entries.iter()).map(|(residence, entry)| match residence {
            Residence::Absent => PteState::ABSENT,
            Residence::Swapped => tiers.swap_tier().map_or(PteState::ABSENT, PteState::placed),
            Residence::Present | Residence::PresentHuge => {
                let frame = entry.frame().filter(|_| frames_tell);
                let tier = frame.map_or(terrace_core::units::TierId::FAST, |frame| tiers.tier_of_frame(frame));
                PteState::placed(tier).with_huge(huge || *residence == Residence::PresentHuge)
            }
        }));
        Ok(())
    }
}

/// Whether a whole block is one huge page: consecutive frames from an aligned one on, which the kernel says is huge.
fn is_huge(entries: &[PagemapEntry], flags: &File) -> bool {
    let Some(first) = entries[0].frame().filter(|frame| frame % BLOCK as u64 == 0) else { return false };
    let consecutive = (first..).zip(entries).all(|(frame, entry)| entry.frame() == Some(frame));
    let mut word = [0; 8];
    consecutive
        && flags.read_at(&mut word, first * 8).is_ok_and(|bytes| bytes == 8)
        && u64::from_ne_bytes(word) & FLAG_TRANSPARENT_HUGE != 0
}

/// How long to wait for the next walk, so that walks take a hundredth of a processor at most.
pub fn pause_after(walk: std::time::Duration) -> std::time::Duration {
    (walk * 100).max(std::time::Duration::from_secs(1))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use terrace_core::units::{PAGE_BYTES, SpaceId, TierId};

    use super::*;
    use crate::process::{Backing, MemoryRange, Process};

    #[derive(Default)]
    struct Heard(BTreeMap<Vpn, PteState>);

    impl Sink for Heard {
        fn scan(&mut self, _: SpaceId, first: Vpn, ptes: &[PteState], window: Option<Duration>, cleared: bool) {
            assert!(window.is_none() && !cleared, "nothing is said of accesses");
            assert!(first.0 % 512 + ptes.len() as u64 <= 512, "a stretch lies in one block");
            self.0.extend(ptes.iter().enumerate().map(|(page, pte)| (Vpn(first.0 + page as u64), *pte)));
        }
        fn event(&mut self, _: SpaceId, _: Vpn, _: super::super::Event) {}
    }

    #[test]
    fn touched_pages_have_a_place_and_others_have_none() {
        let mut memory = memmap2::MmapMut::map_anon(1500 * PAGE_BYTES as usize).unwrap();
        for page in (0..1500).step_by(3) {
            memory[page * PAGE_BYTES as usize] = 1;
        }
        let first = Vpn::of_address(memory.as_ptr() as u64);
        let process = Process::open(std::process::id()).unwrap();
        let ranges = [MemoryRange { start: first, end: Vpn(first.0 + 1500), backing: Backing::Anonymous }];
        let targets = [Target { space: SpaceId(1), process: &process, ranges: &ranges }];
        let mut heard = Heard::default();
        let tiers = TierMap::new(Vec::new(), Vec::new());
        let placed = Places::default().walk(&targets, &tiers, &mut heard).unwrap();
        assert_eq!((heard.0.len(), placed), (1500, 500));
        for page in 0..1500 {
            let tier = heard.0[&Vpn(first.0 + page)].tier();
            assert_eq!(tier, (page % 3 == 0).then_some(TierId::FAST), "page {page}");
        }
    }

    #[test]
    fn walks_take_a_hundredth_of_the_time_at_most() {
        assert_eq!(pause_after(Duration::from_micros(10)), Duration::from_secs(1));
        assert_eq!(pause_after(Duration::from_millis(400)), Duration::from_secs(40));
    }
}
