//! What the live tests of movers share: compressed swap of their own, and what it must leave behind.
//!
//! In: a size. Out: the swap and the tiers with it. Must not: use swap that somebody else set up.
#![allow(dead_code, reason = "the live tests each use a part")]

use std::path::Path;

use terrace_core::units::Bytes;
use terrace_fixtures::live;
use terrace_linux::movers::survey;
use terrace_linux::topology::declared::zram_is_there;
use terrace_linux::topology::{SlowTier, TierMap, Topology};
use terrace_linux::zram::{ZramOptions, ZramSwap};

/// Refuses a machine without compressed RAM.
pub(crate) fn need_zram() -> Result<(), String> {
    live::need(zram_is_there(Path::new("/")), live::NO_ZRAM)
}

/// A zram of its own and the tiers with it, the way `terrace run` makes them.
pub(crate) fn zram_tiers(size: Bytes) -> (ZramSwap, TierMap) {
    let slow = SlowTier::Memory(terrace_linux::topology::TierMemory::Zram(size));
    let resolved = Topology::discover(Path::new("/")).unwrap().with_slow(&slow, true).unwrap();
    let zram = ZramSwap::set_up(&ZramOptions::of_size(resolved.zram_to_set_up.unwrap()), None).unwrap();
    let tiers = with_swap(resolved.topology, &zram.device());
    (zram, tiers)
}

/// These tiers and a swap device as the slow one.
pub(crate) fn with_swap(mut topology: Topology, device: &Path) -> TierMap {
    topology.add_swap_device(Path::new("/"), device).unwrap();
    topology.tier_map().unwrap()
}

/// Lets every CPU put the pages that it faulted last on the kernel's lists. It keeps up to 31 of them back (a folio batch),
/// and those cannot be paged out; an madvise call on that CPU drains them. Terrace itself takes such a page's staying as
/// it is and plans it again; a test that counts pages needs them all.
pub(crate) fn settle(tiers: &TierMap) {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    let allowed = sched_getaffinity(None).unwrap();
    for cpu in (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)) {
        let mut only = CpuSet::new();
        only.set(cpu);
        sched_setaffinity(None, &only).unwrap();
        assert!(survey(tiers).iter().all(|report| report.available));
    }
    sched_setaffinity(None, &allowed).unwrap();
}
