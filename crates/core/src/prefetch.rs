//! A hint to the processor that runs Terrace: what is needed soon.
//!
//! In: a reference. Out: nothing that a program could see. Must not: be needed for anything but speed.

/// Asks the processor to bring what `value` refers to into its caches. x86-64 has an instruction for that in safe Rust; elsewhere this
/// does nothing, and loops that prefetch are slower there.
#[inline(always)]
pub fn prefetch<T>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    safe_arch::prefetch_t0(value);
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}
