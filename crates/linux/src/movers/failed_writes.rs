//! Whether what went to zram was written: where its `mem_limit` is met, or it finds no memory, pages get a swap entry and stay in memory.
//!
//! In: the swap tier. Out: whether writes failed since the last question, by the device's own count; and for how long nothing more is tried. Must
//! not: wait, or look at a page.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use crate::topology::{TierKind, TierMap};

/// How long nothing more goes out after writes failed: the manager reads the room that is left within this time.
const PAUSE: Duration = Duration::from_millis(500);

/// See the module's header.
#[derive(Debug, Default)]
pub(super) struct FailedWrites {
    watched: Option<Watched>,
    refused_at: Option<Instant>,
}

#[derive(Debug)]
struct Watched {
    device: String,
    /// Its io_stat; `None` of what is no zram. A disk's writes end later, and what fails of them nobody counts.
    io_stat: Option<File>,
    failed: u64,
}

impl FailedWrites {
    /// Whether writes to this tier failed a moment ago.
    pub(super) fn pauses(&self, now: Instant) -> bool {
        self.refused_at.is_some_and(|at| now.duration_since(at) < PAUSE)
    }

    /// Watches the swap of these tiers.
    pub(super) fn watch(&mut self, tiers: &TierMap) {
        let Some(TierKind::Swap { device, .. }) = tiers.swap_tier().map(|tier| &tiers.tier(tier).kind) else { return };
        if self.watched.as_ref().is_none_or(|watched| watched.device != *device) {
            let zram = device.strip_prefix("/dev/").filter(|name| name.starts_with("zram"));
            let io_stat = zram.and_then(|name| File::open(format!("/sys/block/{name}/io_stat")).ok());
            self.watched = Some(Watched { device: device.clone(), io_stat, failed: 0 });
        }
    }

    /// Begins to count: what failed up to now was others'.
    pub(super) fn begin(&mut self) {
        if let Some(watched) = &mut self.watched {
            watched.failed = watched.count();
        }
    }

    /// Whether writes failed since [`FailedWrites::begin`]; then nothing more is tried for a while.
    pub(super) fn found(&mut self, now: Instant) -> bool {
        let found = self.watched.as_ref().is_some_and(|watched| watched.count() > watched.failed);
        if found {
            self.refused_at = Some(now);
        }
        found
    }
}

impl Watched {
    fn count(&self) -> u64 {
        let mut text = [0; 128];
        let read = self.io_stat.as_ref().and_then(|file| file.read_at(&mut text, 0).ok()).unwrap_or(0);
        std::str::from_utf8(&text[..read]).ok().and_then(failed_writes).unwrap_or(self.failed)
    }
}

/// The second figure of io_stat: failed reads, failed writes, invalid requests, notified frees (admin-guide/blockdev/zram.rst).
fn failed_writes(text: &str) -> Option<u64> {
    text.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_writes_are_the_second_figure() {
        assert_eq!(failed_writes("       3     2472        0        9\n"), Some(2472));
        assert_eq!(failed_writes("3\n"), None);
    }

    #[test]
    fn writes_that_fail_stop_all_for_a_while() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let says = |text: &str| std::fs::write(file.path(), text).unwrap();
        says("0 5 0 0\n");
        let io_stat = Some(File::open(file.path()).unwrap());
        let watched = Watched { device: "/dev/zram9".to_owned(), io_stat, failed: 5 };
        let mut writes = FailedWrites { watched: Some(watched), refused_at: None };
        let now = Instant::now();
        assert!(!writes.found(now) && !writes.pauses(now));
        says("0 6 0 0\n");
        assert!(writes.found(now) && writes.pauses(now) && !writes.pauses(now + PAUSE));
    }
}
