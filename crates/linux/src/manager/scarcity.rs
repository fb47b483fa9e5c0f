//! How short free memory is, or is about to be.
//!
//! In: the machine's available memory, how fast it falls, how long tasks wait for memory. Out: by how many bytes it is short. Must not: wait until
//! the kernel reclaims: then it takes from whom it meets, and programs wait for it.
//!
//! The kernel begins to reclaim at its low watermark and ends at the high one (admin-guide/sysctl/vm.rst); what MemAvailable counts lies above that one
//! (filesystems/proc.rst). A fiftieth of the memory should be available at least, and as much more as will be used up in the next [`AHEAD`] as it falls now. Memory
//! that is locked, or in huge pages of hugetlbfs, is no part of it: nothing of it will ever be free. Where tasks wait for memory and no quarter of it is
//! available, it is short by a hundredth at least.

use std::path::Path;
use std::time::Duration;

use terrace_core::units::{Bytes, Time};

use crate::pressure::meminfo_bytes;

/// How far ahead memory that falls is looked after: some seconds of page-outs.
const AHEAD: Duration = Duration::from_secs(10);
/// Half-life of the estimate of how fast it falls.
const HALF_LIFE: Duration = Duration::from_secs(4);
/// Share of the time in which tasks wait for memory that counts as much.
const MUCH_WAITING: f64 = 0.05;

/// See the module's header.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Scarcity {
    before: Option<(Time, Bytes)>,
    /// Bytes a second by which it falls.
    fall: f64,
}

impl Scarcity {
    /// Reads how much is available below `root`, and says by how much that is too little. `waiting` is the share of the time in which tasks waited for
    /// memory, if that is counted. Nothing is short of which nothing is known.
    pub(super) fn read(&mut self, root: &Path, now: Time, waiting: Option<f64>) -> Bytes {
        let Ok(text) = std::fs::read_to_string(root.join("proc/meminfo")) else { return Bytes::ZERO };
        let amount = |name: &str| meminfo_bytes(&text, name);
        let (Some(available), Some(all)) = (amount("MemAvailable:"), amount("MemTotal:")) else { return Bytes::ZERO };
        let kept = ["Unevictable:", "Hugetlb:"].iter().filter_map(|name| amount(name)).map(Bytes::get).sum();
        self.short_by(now, available, all.saturating_sub(Bytes::new(kept)), waiting)
    }

    fn short_by(&mut self, now: Time, available: Bytes, all: Bytes, waiting: Option<f64>) -> Bytes {
        if let Some((at, before)) = self.before.replace((now, available)) {
            let seconds = now.since(at).as_secs_f64().max(1e-3);
            let seen = (before.get() as f64 - available.get() as f64) / seconds;
            let keep = 0.5f64.powf(seconds / HALF_LIFE.as_secs_f64());
            self.fall = self.fall * keep + seen * (1.0 - keep);
        }
        let soon = Bytes::new((self.fall.max(0.0) * AHEAD.as_secs_f64()) as u64);
        let short = (all.share(0.02) + soon).saturating_sub(available);
        let waits = waiting.is_some_and(|share| share > MUCH_WAITING) && available < all.share(0.25);
        if waits { short.max(all.share(0.01)) } else { short }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pressure::tests::tree;

    const GIB: Bytes = Bytes::gib(1);

    fn at(second: u64) -> Time {
        Time::ZERO + Duration::from_secs(100 + second)
    }

    #[test]
    fn memory_is_short_below_a_fiftieth_or_where_it_will_be_soon() {
        let all = Bytes::gib(10);
        let mut scarcity = Scarcity::default();
        for second in 0..10 {
            assert_eq!(scarcity.short_by(at(second), Bytes::gib(4), all, None), Bytes::ZERO);
        }
        let mut still = Scarcity::default();
        assert_eq!(still.short_by(at(0), all.share(0.02) - GIB.share(0.125), all, None), GIB.share(0.125));
        // 200 MiB a second: in ten seconds 2 GiB.
        let mut falling = Scarcity::default();
        let found: Vec<u64> = (0..20)
            .map(|second| {
                let left = Bytes::gib(5).saturating_sub(Bytes::mib(200 * second));
                falling.short_by(at(second), left, all, None).get() >> 20
            })
            .collect();
        assert_eq!(found[..4], [0; 4], "{found:?}");
        assert!((600..1600).contains(&found[19]), "{found:?}");
    }

    #[test]
    fn waiting_counts_where_not_much_is_available() {
        let all = Bytes::gib(10);
        let waits = |available| Scarcity::default().short_by(at(0), available, all, Some(0.3));
        assert_eq!(waits(Bytes::gib(3)), Bytes::ZERO);
        assert_eq!(waits(Bytes::gib(2)), all.share(0.01));
    }

    #[test]
    fn it_is_read_from_proc_and_nothing_known_is_nothing_short() {
        let text =
            "MemTotal: 2097152 kB\nMemFree: 1 kB\nMemAvailable: 10240 kB\nUnevictable: 524288 kB\nHugetlb: 524288 kB\n";
        let root = tree(&[("proc/meminfo", text)]);
        let short = Scarcity::default().read(root.path(), at(0), None);
        assert_eq!(short, GIB.share(0.02) - Bytes::mib(10), "of what is neither locked nor of hugetlbfs");
        assert_eq!(Scarcity::default().read(&root.path().join("nowhere"), at(0), Some(1.0)), Bytes::ZERO);
    }
}
