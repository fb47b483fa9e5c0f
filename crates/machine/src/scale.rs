//! Scaling: one factor that shrinks footprint, time, caches and sample counts together.
//!
//! In: a factor. Out: full-size quantities made small, and small time made full-size again. Must not: touch rates,
//! latencies or costs of one event: those stay as they are, which is why shares and ratios survive.
//!
//! A run at factor `s` has a footprint, a fast tier and a cache `s` times smaller, and so takes `s` times less time.
//! What a policy states in seconds it must see stretched again: the driver tells it times multiplied by `s`, and what it
//! states in bytes or samples (a 256 MiB scan window, a threshold every 100,000 samples) is divided by `s`. Then samples a
//! page, moves a page and the share of bandwidth that moves take are those of the full size (reference: "keep ratios
//! RSS:FM, sample counts per page and the migration bandwidth : working-set turnover ratio").

use terrace_core::units::{Bytes, PAGE_BYTES, Time};

/// The factor, at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Scale(u32);

impl Default for Scale {
    fn default() -> Scale {
        Scale::FULL
    }
}

impl Scale {
    /// Full size.
    pub const FULL: Scale = Scale(1);

    /// A factor of at least 1 and at most 2^20; `None` for others.
    pub const fn new(factor: u32) -> Option<Scale> {
        if factor >= 1 && factor <= 1 << 20 { Some(Scale(factor)) } else { None }
    }

    /// The factor.
    pub const fn factor(self) -> u32 {
        self.0
    }

    /// A full-size amount of memory, made small: whole pages, at least one.
    pub fn bytes(self, full: Bytes) -> Bytes {
        Bytes::new((full.get() / u64::from(self.0)).next_multiple_of(PAGE_BYTES).max(PAGE_BYTES))
    }

    /// A full-size cache, made small; at least 16 lines.
    pub fn cache(self, full: Bytes) -> Bytes {
        Bytes::new((full.get() / u64::from(self.0)).max(1024))
    }

    /// A full-size count (samples, TLB entries), made small; at least `least`.
    pub const fn count(self, full: u64, least: u64) -> u64 {
        let small = full / self.0 as u64;
        if small < least { least } else { small }
    }

    /// The time that a policy sees at a small time.
    pub const fn full_time(self, small_nanos: u64) -> Time {
        Time::from_nanos(small_nanos.saturating_mul(self.0 as u64))
    }

    /// The small time at which the policy sees `full`, rounded up.
    pub const fn small_nanos(self, full: Time) -> u64 {
        full.as_nanos().div_ceil(self.0 as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_shrink_and_times_come_back() {
        let scale = Scale::new(64).unwrap();
        assert_eq!(scale.bytes(Bytes::gib(30)), Bytes::mib(480));
        assert_eq!(scale.bytes(Bytes::new(1)), Bytes::kib(4));
        assert_eq!(scale.count(2_000_000, 1), 31_250);
        assert_eq!(scale.count(32, 4), 4);
        let wake = Time::from_nanos(500_000_000);
        assert_eq!(scale.full_time(scale.small_nanos(wake)), wake);
        // A wake that does not divide is never too early.
        let odd = Time::from_nanos(500_000_001);
        assert!(scale.full_time(scale.small_nanos(odd)) >= odd);
        assert!(Scale::new(0).is_none() && Scale::new(u32::MAX).is_none());
    }
}
