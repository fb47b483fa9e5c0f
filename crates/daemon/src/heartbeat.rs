//! Whether the daemon's loop turns.
//!
//! In: a mark at each turn, with the time that the next one may take. Out: the time since the last turn, and whether the next one is
//! overdue. Must not: take a lock. The threads that ask must answer while the loop hangs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Time limit of the first turn, which includes setting up: systemd's default for a start (TimeoutStartSec).
const FIRST_TURN: Duration = Duration::from_secs(90);

/// See the module's header.
#[derive(Debug)]
pub struct Heartbeat {
    began: Instant,
    /// Milliseconds since then: of the last turn, and of the deadline of the next.
    turned: AtomicU64,
    due: AtomicU64,
}

impl Default for Heartbeat {
    fn default() -> Heartbeat {
        Heartbeat {
            began: Instant::now(),
            turned: AtomicU64::new(0),
            due: AtomicU64::new(FIRST_TURN.as_millis() as u64),
        }
    }
}

impl Heartbeat {
    /// Marks a turn of the loop; the next turn comes within `bound`.
    pub fn beat(&self, bound: Duration) {
        let now = self.now();
        self.turned.store(now, Ordering::Relaxed);
        self.due.store(now.saturating_add(bound.as_millis() as u64), Ordering::Relaxed);
    }

    /// The time since the last turn.
    pub fn age(&self) -> Duration {
        Duration::from_millis(self.now().saturating_sub(self.turned.load(Ordering::Relaxed)))
    }

    /// The time since the last turn, if the next one is overdue.
    pub fn overdue(&self) -> Option<Duration> {
        (self.now() > self.due.load(Ordering::Relaxed)).then(|| self.age())
    }

    fn now(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_that_does_not_turn_within_its_bound_is_overdue() {
        let heartbeat = Heartbeat::default();
        assert_eq!(heartbeat.overdue(), None, "it is being set up");
        heartbeat.beat(Duration::from_millis(20));
        std::thread::sleep(Duration::from_millis(60));
        assert!(heartbeat.overdue().is_some_and(|age| age >= Duration::from_millis(50)));
        heartbeat.beat(Duration::from_secs(60));
        assert!(heartbeat.overdue().is_none() && heartbeat.age() < Duration::from_secs(30));
    }
}
