//! Bytes that the mover's threads copy, spread over the time they take.
//!
//! In: the bytes of a plan and how long the mover is busy with it. Out: how many of them fall into a stretch of the run. Must not:
//! move pages, or lose a byte.
//!
//! A plan takes effect when it is made, but its copies go on for as long as the mover needs. If all their bytes fell into one
//! stretch of the program, which may be a thousandth of that time, the program would stand still until the tiers had moved
//! them, instead of sharing the tiers with a thread that copies at its own pace.

use terrace_core::units::TierId;

/// See the module's header.
#[derive(Clone, Debug, Default)]
pub(crate) struct Copies {
    read: [u64; TierId::MAX],
    written: [u64; TierId::MAX],
    left_ns: f64,
}

impl Copies {
    /// Records `bytes` copied from one tier to another.
    pub(crate) fn add(&mut self, from: TierId, to: TierId, bytes: u64) {
        self.read[from.index()] += bytes;
        self.written[to.index()] += bytes;
    }

    /// The mover is done with all of it after so long.
    pub(crate) fn take_until(&mut self, nanos: f64) {
        self.left_ns = nanos;
    }

    /// What was copied in the latest `span`: bytes read and written, by tier.
    pub(crate) fn within(&mut self, span: f64) -> ([u64; TierId::MAX], [u64; TierId::MAX]) {
        let share = if span < self.left_ns { span / self.left_ns } else { 1.0 };
        self.left_ns = (self.left_ns - span).max(0.0);
        let part = |left: &mut u64| {
            let now = ((*left as f64 * share).ceil() as u64).min(*left);
            *left -= now;
            now
        };
        (self.read.each_mut().map(part), self.written.each_mut().map(part))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_go_evenly_over_the_movers_time_and_none_is_lost() {
        let mut copies = Copies::default();
        copies.add(TierId(1), TierId(0), 10_000);
        copies.take_until(1000.0);
        let parts: Vec<u64> = [100.0, 100.0, 300.0, 400.0].map(|span| copies.within(span).0[1]).to_vec();
        assert_eq!(parts, [1000, 1000, 3000, 4000]);
        assert_eq!((copies.within(1e9).1[0], copies.within(1e9).1[0]), (1000, 0));
    }
}
