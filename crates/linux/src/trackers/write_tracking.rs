//! `write-tracking`: which pages were written, exactly, without a stall, for programs that registered their memory for it.
//!
//! In: targets whose memory carries asynchronous write protection (userfaultfd with `UFFD_FEATURE_WP_ASYNC`, 6.7 and
//! later). Out: PTE states in which "accessed" means "written". Must not: claim to see reads, or touch memory that is not
//! registered.
//!
//! A userfaultfd belongs to the address space that made it, and nothing outside a process can make one for it. So this
//! tracker serves this very process, and programs that register themselves (two ioctls; the descriptor must then stay
//! open). Once that is done nothing more is needed of the program: reading and protecting again happens from outside, by
//! the `PAGEMAP_SCAN` ioctl on its pagemap. Programs that know nothing of this cannot be served, and none is made to.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use terrace_core::observation::PteState;
use terrace_core::units::{Bytes, PAGE_BYTES, SpaceId, Vpn};
use terrace_core::watching::WatchPrices;

use super::rotation::{Piece, Rotation};
use super::{Grade, ProofKind, Round, Sink, TrackError, Tracker};
use crate::pagemap::{Pagemap, PagemapEntry};
use crate::process::MemoryRange;
use crate::sys::{self, PageRegion, PageScan};

const NAME: &str = "write-tracking";
/// `PAGE_IS_WRITTEN` of linux/fs.h: written since the page was protected, or never protected.
const PAGE_IS_WRITTEN: u64 = 1 << 1;
/// `PM_SCAN_WP_MATCHING`: protect again what is reported.
const SCAN_PROTECT: u64 = 1 << 0;
/// `PM_SCAN_CHECK_WPASYNC`: refuse memory that is not registered, where every page would read as written.
const SCAN_CHECK: u64 = 1 << 1;

/// The tracker.
#[derive(Debug, Default)]
pub struct WriteTracking {
    rotation: Rotation,
    /// Registrations of this process's own memory; closing one ends it.
    registrations: Vec<OwnedFd>,
    /// Spaces in which nothing was registered at the last round.
    unserved: std::collections::BTreeSet<SpaceId>,
}

impl WriteTracking {
    /// Finds out whether the kernel has both halves of it.
    ///
    /// # Errors
    /// When it has not, or userfaultfd is forbidden.
    pub fn open() -> Result<WriteTracking, TrackError> {
        let unavailable = |reason| TrackError::Unavailable { tracker: NAME, reason };
        let pagemap =
            Pagemap::open(std::process::id()).map_err(|error| unavailable(format!("/proc/self/pagemap: {error}")))?;
        if !pagemap.has_scan() {
            return Err(unavailable("the kernel is older than 6.7: no PAGEMAP_SCAN".to_owned()));
        }
        sys::write_tracking::create().map_err(|error| {
            unavailable(match error.raw_os_error() {
                Some(libc::EPERM | libc::EACCES) => {
                    "userfaultfd is forbidden: run as root, or set vm.unprivileged_userfaultfd=1".to_owned()
                }
                Some(libc::ENOSYS) => "the kernel is built without CONFIG_USERFAULTFD".to_owned(),
                Some(libc::EINVAL) => {
                    "the kernel has no asynchronous write protection (UFFD_FEATURE_WP_ASYNC, 6.7)".to_owned()
                }
                _ => format!("userfaultfd: {error}"),
            })
        })?;
        Ok(WriteTracking::default())
    }

    /// Whether nothing of a space was registered at the last scan, so that nothing is seen of it.
    pub fn is_blind_to(&self, space: SpaceId) -> bool {
        self.unserved.contains(&space)
    }

    /// Reads one piece, and protects it again. `None` if it is not registered.
    fn written(file: &File, piece: &Piece, written: &mut Vec<bool>) -> io::Result<Option<()>> {
        written.clear();
        written.resize(piece.pages, false);
        let end = Vpn(piece.first.0 + piece.pages as u64).address();
        let mut scan = PageScan {
            start: piece.first.address(),
            end,
            flags: SCAN_CHECK | SCAN_PROTECT,
            category_mask: PAGE_IS_WRITTEN,
            return_mask: PAGE_IS_WRITTEN,
            ..PageScan::default()
        };
        let mut regions = [PageRegion::default(); 256];
        while scan.start < end {
            let (filled, walked_to) = match sys::pagemap_scan(file.as_fd(), &scan, &mut regions) {
                Ok(result) => result,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.raw_os_error() == Some(libc::EPERM) => return Ok(None),
                Err(error) => return Err(error),
            };
            for region in &regions[..filled] {
                let page = |address: u64| (Vpn::of_address(address).0 - piece.first.0) as usize;
                written[page(region.start)..page(region.end)].fill(true);
            }
            if walked_to <= scan.start {
                break;
            }
            scan.start = walked_to;
        }
        Ok(Some(()))
    }
}

impl Tracker for WriteTracking {
    fn name(&self) -> &'static str {
        NAME
    }

    fn grade(&self) -> Grade {
        Grade { granularity_bytes: Bytes::new(PAGE_BYTES), reads: false, writes: true, cost_ns_per_page: None }
    }

    fn scan(&mut self, round: &Round<'_>, sink: &mut dyn Sink) -> Result<(), TrackError> {
        let &Round { now, targets, tiers, share } = round;
        for target in targets {
            let pid = target.process.pid();
            let call = |source| TrackError::call(NAME, format!("PAGEMAP_SCAN on /proc/{pid}/pagemap"), source);
            let open = || io::Result::Ok((File::open(format!("/proc/{pid}/pagemap"))?, Pagemap::open(pid)?));
            let (file, mut pagemap) = match open() {
                Err(_) if !target.process.is_alive() => continue,
                result => result.map_err(call)?,
            };
            let (mut entries, mut written, mut ptes) = ([PagemapEntry::default(); 512], Vec::new(), Vec::new());
            let mut served = false;
            for piece in self.rotation.pieces(now, target, share) {
                let known = piece.turn && WriteTracking::written(&file, &piece, &mut written).map_err(call)?.is_some();
                served |= known;
                if piece.turn && !known {
                    // What is registered later must begin with a clearing round.
                    self.rotation.forget_piece(target.space, piece.first);
                }
                let entries = &mut entries[..piece.pages];
                pagemap.entries(piece.first, entries).map_err(call)?;
                ptes.clear();
                ptes.extend(entries.iter().enumerate().map(|(page, entry)| {
                    if entry.present() {
                        let wrote = known && written[page];
                        PteState::placed(tiers.tier_of_frame(entry.frame().unwrap_or(0)))
                            .with_accessed(wrote)
                            .with_dirty(wrote)
                    } else {
                        tiers.swap_tier().filter(|_| entry.swapped()).map_or(PteState::ABSENT, PteState::placed)
                    }
                }));
                sink.scan(target.space, piece.first, &ptes, piece.window.filter(|_| known), known);
            }
            if served || target.ranges.is_empty() {
                self.unserved.remove(&target.space);
            } else if self.unserved.insert(target.space) {
                tracing::warn!(
                    pid,
                    "write-tracking sees nothing of this process: it has registered none of its memory"
                );
            }
        }
        Ok(())
    }

    fn watch_within(&mut self, within: f64) {
        self.rotation.watch_within(within);
    }

    fn prices(&self) -> Option<WatchPrices> {
        // A write to a protected page is a minor fault: about a microsecond on the machines of docs/performance.md.
        Some(WatchPrices { touch_ns: 1000.0, touch_huge_ns: 1000.0, ..WatchPrices::ASSUMED })
    }

    fn forget(&mut self, space: SpaceId) {
        self.rotation.forget(space);
        self.unserved.remove(&space);
    }

    fn proof_kind(&self) -> ProofKind {
        ProofKind::Marks { dwell: Duration::from_millis(2) }
    }

    fn admit(&mut self, range: MemoryRange) -> Result<(), TrackError> {
        let call = |source| TrackError::call(NAME, "userfaultfd(UFFDIO_REGISTER)", source);
        let descriptor = sys::write_tracking::create().map_err(call)?;
        let bytes = range.end.address() - range.start.address();
        sys::write_tracking::register(&descriptor, range.start.address(), bytes).map_err(call)?;
        self.registrations.push(descriptor);
        Ok(())
    }
}
