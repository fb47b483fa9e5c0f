//! `walker`: accessed bits read and cleared by Terrace's kernel module (`kmod/terrace_mm`), FlexHM's kernel part.
//!
//! In: the targets, /dev/terrace_mm. Out: a PTE state for every page of a range. Must not: load the module, or let more than a window's
//! worth of memory depend on the size of a target.
//!
//! What the module does better than the eBPF reader: a bit is read and cleared in one step, so no use in between is lost; clearing
//! costs about as much as reading, not a hundred times that; and TLBs are flushed by every kind of clearing. Where KVM runs a guest in the
//! process's memory, what the guest used shows, too.

use std::collections::BTreeMap;
use std::io;

use terrace_core::observation::PteState;
use terrace_core::units::{BLOCK_PAGES, SpaceId, TierId, Time};
use terrace_core::watching::WatchPrices;

use super::rotation::{Piece, Rotation};
use super::{Round, Sink, Target, TrackError, Tracker};
use crate::kernel_module::{KernelModule, Seen, Slot, Walk};
use crate::topology::{TierKind, TierMap};

/// The tracker's name.
pub const NAME: &str = "walker";
/// Pages of one walk at most: 1 GiB, for which the module keeps 512 KiB of results. Every walk that clears costs a flush of all TLBs.
const WINDOW_PAGES: u64 = 1 << 18;

/// The tracker.
#[derive(Debug)]
pub struct Walker {
    module: KernelModule,
    slots: BTreeMap<SpaceId, Slot>,
    rotation: Rotation,
    seen: Vec<Seen>,
    ptes: Vec<PteState>,
}

impl Walker {
    /// Opens the module.
    ///
    /// # Errors
    /// When it is not loaded, not of this release, or cannot walk on this kernel.
    pub fn open() -> Result<Walker, TrackError> {
        let unavailable = |reason| TrackError::Unavailable { tracker: NAME, reason };
        let module = KernelModule::open(WINDOW_PAGES).map_err(|error| unavailable(error.to_string()))?;
        if !module.can_walk() {
            let reason = "terrace_mm is loaded and cannot walk page tables here: the hypervisor has them (Xen PV)";
            return Err(unavailable(reason.to_owned()));
        }
        if !module.sees_guests() {
            tracing::info!("terrace_mm cannot see what virtual machines use of a process's memory on this kernel");
        }
        Ok(Walker {
            module,
            slots: BTreeMap::new(),
            rotation: Rotation::default(),
            seen: Vec::new(),
            ptes: Vec::with_capacity(BLOCK_PAGES as usize),
        })
    }

    fn slot(&mut self, target: &Target<'_>) -> io::Result<Slot> {
        if let Some(slot) = self.slots.get(&target.space) {
            return Ok(*slot);
        }
        let slot = self.module.add(target.process)?;
        self.slots.insert(target.space, slot);
        Ok(slot)
    }

    fn leave(&mut self, space: SpaceId) {
        if let Some(slot) = self.slots.remove(&space)
            && let Err(error) = self.module.forget(slot)
        {
            tracing::debug!(%error, "a process's number was given back already");
        }
    }

    fn target(
        &mut self,
        now: Time,
        target: &Target<'_>,
        tiers: &TierMap,
        share: f64,
        sink: &mut dyn Sink,
    ) -> io::Result<()> {
        let nodes = tiers_of_nodes(tiers);
        let pieces = self.rotation.pieces(now, target, share);
        for window in windows(&pieces) {
            let (first, last) = (window[0], window[window.len() - 1]);
            let pages = last.first.0 + last.pages as u64 - first.first.0;
            let walk = Walk { first: first.first, pages, clear: first.turn, scans: 1, interval_us: 0 };
            let slot = self.slot(target)?;
            let mut result = self.module.walk(slot, walk, &mut self.seen);
            if result.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::ESRCH)) {
                // The process runs another program since, and that has memory of its own.
                self.leave(target.space);
                let slot = self.slot(target)?;
                result = self.module.walk(slot, walk, &mut self.seen);
            }
            result?;
            for piece in window {
                let from = (piece.first.0 - first.first.0) as usize;
                self.tell(target.space, piece, from, &nodes, tiers.swap_tier(), sink);
            }
        }
        Ok(())
    }

    fn tell(
        &mut self,
        space: SpaceId,
        piece: &Piece,
        from: usize,
        nodes: &[TierId],
        swap: Option<TierId>,
        sink: &mut dyn Sink,
    ) {
        let seen = &self.seen[from..from + piece.pages];
        self.ptes.clear();
        self.ptes.extend(seen.iter().map(|seen| pte(*seen, nodes, swap)));
        // Of a huge page that the range has only a part of the mark is not cleared: it is left to the owner of the whole page.
        let cut = piece.pages < BLOCK_PAGES as usize && seen.iter().any(|seen| seen.huge());
        if cut && piece.turn {
            self.rotation.forget_piece(space, piece.first);
        }
        let window = if cut { None } else { piece.window };
        sink.scan(space, piece.first, &self.ptes, window, piece.turn && !cut);
    }
}

/// Neighbouring pieces that are all cleared or all only read, as long as a walk may be.
fn windows(pieces: &[Piece]) -> impl Iterator<Item = &[Piece]> {
    let most = (WINDOW_PAGES / u64::from(BLOCK_PAGES)) as usize;
    let joined =
        |left: &Piece, right: &Piece| left.first.0 + left.pages as u64 == right.first.0 && left.turn == right.turn;
    pieces.chunk_by(joined).flat_map(move |run| run.chunks(most))
}

/// The tier of each node. A node of no tier counts as fast, as its frames do.
fn tiers_of_nodes(tiers: &TierMap) -> Vec<TierId> {
    let mut of_node = Vec::new();
    for tier in tiers.tiers() {
        if let TierKind::Nodes { nodes } = &tier.kind {
            for &node in nodes {
                let node = node as usize;
                of_node.resize(of_node.len().max(node + 1), TierId::FAST);
                of_node[node] = tier.id;
            }
        }
    }
    of_node
}

fn pte(seen: Seen, nodes: &[TierId], swap: Option<TierId>) -> PteState {
    if seen.present() {
        let tier = seen.node().and_then(|node| nodes.get(node as usize).copied()).unwrap_or(TierId::FAST);
        PteState::placed(tier).with_accessed(seen.count() > 0).with_huge(seen.huge())
    } else if let Some(swap) = swap.filter(|_| seen.swapped()) {
        PteState::placed(swap)
    } else {
        PteState::ABSENT
    }
}

impl Tracker for Walker {
    fn name(&self) -> &'static str {
        NAME
    }

    fn reads_page_tables(&self) -> bool {
        true
    }

    fn scan(&mut self, round: &Round<'_>, sink: &mut dyn Sink) -> Result<(), TrackError> {
        let &Round { now, targets, tiers, share } = round;
        for target in targets {
            match self.target(now, target, tiers, share, sink) {
                Err(_) if !target.process.is_alive() => self.leave(target.space),
                // A process that ends has no memory any more for some time before it is gone.
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => self.leave(target.space),
                result => {
                    result.map_err(|source| TrackError::call(NAME, "/dev/terrace_mm", source))?;
                }
            }
        }
        Ok(())
    }

    fn sees_virtual_machines(&self) -> bool {
        self.module.sees_guests()
    }

    fn watch_within(&mut self, within: f64) {
        self.rotation.watch_within(within);
    }

    fn prices(&self) -> Option<WatchPrices> {
        Some(WatchPrices::ASSUMED)
    }

    fn forget(&mut self, space: SpaceId) {
        self.leave(space);
        self.rotation.forget(space);
    }
}

#[cfg(test)]
mod tests {
    use terrace_core::units::Vpn;

    use super::*;
    use crate::topology::Tier;
    use terrace_core::units::Bytes;

    #[test]
    fn walks_are_as_long_as_what_is_treated_alike() {
        let piece = |first, pages, turn| Piece { first: Vpn(first), pages, turn, window: None };
        let pieces = [piece(100, 412, true), piece(512, 512, true), piece(1024, 512, false), piece(2048, 512, false)];
        let lengths: Vec<usize> = windows(&pieces).map(<[Piece]>::len).collect();
        assert_eq!(lengths, [2, 1, 1]);
        let long: Vec<Piece> = (0..1200).map(|block| piece(block * 512, 512, true)).collect();
        assert!(windows(&long).all(|window| window.len() as u64 * 512 <= WINDOW_PAGES));
        assert_eq!(windows(&long).map(<[Piece]>::len).sum::<usize>(), 1200);
    }

    #[test]
    fn a_page_is_placed_by_its_node() {
        let tier = |id, nodes| Tier {
            id: TierId(id),
            name: String::new(),
            kind: TierKind::Nodes { nodes },
            capacity_bytes: Bytes::mib(1),
            read_latency_ns: None,
            read_bandwidth_mbps: None,
        };
        let swap =
            Tier { kind: TierKind::Swap { device: "/dev/zram9".to_owned(), compressed: true }, ..tier(2, vec![]) };
        let tiers = TierMap::new(vec![tier(0, vec![0, 2]), tier(1, vec![1]), swap], Vec::new());
        let nodes = tiers_of_nodes(&tiers);
        let check = |seen: u16, expect: PteState| assert_eq!(pte(Seen(seen), &nodes, tiers.swap_tier()), expect);
        check(0, PteState::ABSENT);
        check(0x20 | 1, PteState::placed(TierId(0)).with_accessed(true));
        check(0x20 | 0x40 | 1 << 8, PteState::placed(TierId(1)).with_huge(true));
        check(0x20 | 2 << 8, PteState::placed(TierId(0)));
        check(0x80, PteState::placed(TierId(2)));
    }
}
