//! The measure of a guest: how much smaller and slower it is than what managers' usual settings are for.
//!
//! In: the program's size. Out: times and counts of samples at its measure. Must not: know a manager.

use std::time::Duration;

use terrace_core::units::Bytes;

/// Nanoseconds of an instruction where every access is counted: about what it takes the host then, so that guest time and wall
/// time stay alike.
pub(crate) const COUNTED_INSTRUCTION: u32 = 8;
/// A program of this size is what managers' usual settings are for: the systems' papers use programs of 30 to 120 GiB.
pub(crate) const FULL_SIZE: Bytes = Bytes::gib(64);
/// How many times longer the guest takes for an instruction than a processor of 2.5 GHz that ends one a cycle (0.4 ns).
const SLOWER: u64 = COUNTED_INSTRUCTION as u64 * 10 / 4;

/// How a guest's run differs from one of full size, so that usual settings can be brought to its measure, in the same way for all managers.
///
/// A program of a thousandth of the size that does a thousandth of the work goes through the same phases a thousand times sooner, in so
/// many fewer samples; the guest's processor is slower. Settings that are times are multiplied by the one and divided by the other,
/// settings that count samples are divided.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Measure {
    /// Full size over this one.
    smaller: f64,
}

impl Measure {
    pub(crate) fn of(size: Bytes) -> Measure {
        Measure { smaller: (FULL_SIZE.get() as f64 / size.get() as f64).max(1.0) }
    }

    /// Full size over this one.
    pub(crate) fn smaller(self) -> f64 {
        self.smaller
    }

    pub(crate) fn time(self, full: Duration) -> Duration {
        full.mul_f64((SLOWER as f64 / self.smaller).min(1.0)).max(Duration::from_millis(1))
    }

    pub(crate) fn samples(self, full: u64) -> u64 {
        ((full as f64 / self.smaller).round() as u64).max(1)
    }

    /// Time that the kernel's hint scanner takes for a pass: 256 MiB each 100 ms, the closest its usual settings let it come.
    pub(crate) fn kernel_pass(self) -> Duration {
        let steps = FULL_SIZE.get() / Bytes::mib(256).get();
        self.time(Duration::from_millis(100 * steps))
    }
}
