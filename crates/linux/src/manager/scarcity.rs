//! How short free memory is, or is about to be.
//!
//! In: the machine's free memory and watermarks, how fast it falls, how long tasks wait for memory. Out: by how many bytes it is short. Must not: wait until
//! the kernel reclaims: then it takes from whom it meets, and programs wait for it.
//!
//! The kernel begins to reclaim at its low watermark and ends at the high one (admin-guide/sysctl/vm.rst). What should be free at least is twice
//! the high one and a fiftieth of the memory, and as much more as will be used up in the next [`AHEAD`] as it falls now. Where tasks wait for memory and no
//! quarter of it is available, it is short by a hundredth at least, whatever the marks say.

use std::path::Path;
use std::time::Duration;

use terrace_core::units::{Bytes, PAGE_BYTES, Time};

use crate::pressure::meminfo_bytes;

/// How far ahead memory that falls is looked after: some seconds of page-outs.
const AHEAD: Duration = Duration::from_secs(10);
/// Half-life of the estimate of how fast it falls.
const HALF_LIFE: Duration = Duration::from_secs(4);
/// Share of the time in which tasks wait for memory that counts as much.
const MUCH_WAITING: f64 = 0.05;
/// How often watermarks are read: they change with sysctls and with memory that comes and goes.
const MARKS_INTERVAL: Duration = Duration::from_secs(60);

/// See the module's header.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Scarcity {
    before: Option<(Time, Bytes)>,
    /// Bytes a second by which it falls.
    fall: f64,
    marks: Option<(Time, Bytes)>,
}

impl Scarcity {
    /// Reads how much is available below `root`, and says by how much that is too little. `waiting` is the share of the time in which tasks waited for
    /// memory, if that is counted. Nothing is short of which nothing is known.
    pub(super) fn read(&mut self, root: &Path, now: Time, waiting: Option<f64>) -> Bytes {
        let Ok(text) = std::fs::read_to_string(root.join("proc/meminfo")) else { return Bytes::ZERO };
        let amount = |name: &str| meminfo_bytes(&text, name);
        let (Some(available), Some(all)) = (amount("MemAvailable:"), amount("MemTotal:")) else { return Bytes::ZERO };
        let high = match self.marks.filter(|(at, _)| now.since(*at) < MARKS_INTERVAL) {
            Some((_, high)) => high,
            None => {
                let zones = std::fs::read_to_string(root.join("proc/zoneinfo")).unwrap_or_default();
                self.marks.insert((now, high_watermarks(&zones))).1
            }
        };
        self.short_by(now, available, all, high, waiting)
    }

    fn short_by(&mut self, now: Time, available: Bytes, all: Bytes, high: Bytes, waiting: Option<f64>) -> Bytes {
        if let Some((at, before)) = self.before.replace((now, available)) {
            let seconds = now.since(at).as_secs_f64().max(1e-3);
            let seen = (before.get() as f64 - available.get() as f64) / seconds;
            let keep = 0.5f64.powf(seconds / HALF_LIFE.as_secs_f64());
            self.fall = self.fall * keep + seen * (1.0 - keep);
        }
        let soon = Bytes::new((self.fall.max(0.0) * AHEAD.as_secs_f64()) as u64);
        let short = (high + high + all.share(0.02) + soon).saturating_sub(available);
        let waits = waiting.is_some_and(|share| share > MUCH_WAITING) && available < all.share(0.25);
        if waits { short.max(all.share(0.01)) } else { short }
    }
}

/// The high watermarks of all zones (/proc/zoneinfo) together.
fn high_watermarks(zoneinfo: &str) -> Bytes {
    let lines = zoneinfo.lines().filter_map(|line| {
        let mut words = line.split_ascii_whitespace();
        (words.next()? == "high").then(|| words.next()?.parse::<u64>().ok())?
    });
    Bytes::new(lines.sum::<u64>() * PAGE_BYTES)
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
    fn memory_is_short_below_the_marks_or_where_it_will_be_soon() {
        let all = Bytes::gib(10);
        let high = Bytes::mib(100);
        let mut scarcity = Scarcity::default();
        for second in 0..10 {
            assert_eq!(scarcity.short_by(at(second), Bytes::gib(4), all, high, None), Bytes::ZERO);
        }
        let least = high + high + all.share(0.02);
        let mut still = Scarcity::default();
        assert_eq!(still.short_by(at(0), least - GIB.share(0.125), all, high, None), GIB.share(0.125));
        // 200 MiB a second: in ten seconds 2 GiB.
        let mut falling = Scarcity::default();
        let found: Vec<u64> = (0..20)
            .map(|second| {
                let left = Bytes::gib(5).saturating_sub(Bytes::mib(200 * second));
                falling.short_by(at(second), left, all, high, None).get() >> 20
            })
            .collect();
        assert_eq!(found[..4], [0; 4], "{found:?}");
        assert!((600..1600).contains(&found[19]), "{found:?}");
    }

    #[test]
    fn waiting_counts_where_not_much_is_available() {
        let all = Bytes::gib(10);
        let waits = |available| Scarcity::default().short_by(at(0), available, all, Bytes::ZERO, Some(0.3));
        assert_eq!(waits(Bytes::gib(3)), Bytes::ZERO);
        assert_eq!(waits(Bytes::gib(2)), all.share(0.01));
    }

    #[test]
    fn it_is_read_from_proc_and_nothing_known_is_nothing_short() {
        let zone = "Node 0, zone Normal\n  pages free 9\n        min      1\n        low      2\n        high     2560\n  pagesets\n                     cpu: 0\n              count: 5\n              high:  186\n";
        let root = tree(&[
            ("proc/meminfo", "MemTotal: 1048576 kB\nMemFree: 1 kB\nMemAvailable: 20480 kB\n"),
            ("proc/zoneinfo", zone),
        ]);
        let short = Scarcity::default().read(root.path(), at(0), None);
        assert_eq!(short, Bytes::mib(20) + GIB.share(0.02) - Bytes::mib(20));
        assert_eq!(Scarcity::default().read(&root.path().join("nowhere"), at(0), Some(1.0)), Bytes::ZERO);
    }
}
