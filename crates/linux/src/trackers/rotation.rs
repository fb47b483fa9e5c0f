//! Which blocks a round reads and clears: a share of them, in turn, so that each has its turn after `1 / share` rounds.
//!
//! In: a target and the share. Out: its memory in pieces of at most one block, each marked with whether it has its turn and
//! how long its marks had to be set. Must not: touch memory or marks.

use std::collections::BTreeMap;
use std::time::Duration;

use terrace_core::units::{BLOCK_PAGES, SpaceId, Time, Vpn};

use super::Target;

/// The turns of every space.
#[derive(Clone, Debug)]
pub(super) struct Rotation {
    spaces: BTreeMap<SpaceId, Turns>,
    /// Which share of the blocks takes turns, by their hash.
    within: f64,
}

impl Default for Rotation {
    fn default() -> Rotation {
        Rotation { spaces: BTreeMap::new(), within: 1.0 }
    }
}

/// Where on a circle of 2^32 points a block lies, by its number (its address divided by 2 MiB). Neighbours lie far apart and
/// evenly (Knuth, The Art of Computer Programming, volume 3, 6.4, on multiplying by the golden ratio), so that the blocks of any stretch of
/// the circle stand for all.
pub(crate) fn place_on_circle(block: u64) -> u64 {
    block.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32
}

/// A share of that circle, in points.
pub(crate) fn points(share: f64) -> u64 {
    (share.clamp(0.0, 1.0) * CIRCLE as f64) as u64
}

/// Points of the circle.
pub(super) const CIRCLE: u64 = 1 << 32;

#[derive(Clone, Debug, Default)]
struct Turns {
    /// The first page that has not had its turn yet.
    next: Vpn,
    /// When each piece was cleared, by its first page.
    cleared: BTreeMap<Vpn, Time>,
}

/// A piece of a target's memory within one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// Its first page.
    pub(super) first: Vpn,
    /// Its pages.
    pub(super) pages: usize,
    /// Whether its marks are to be read and cleared now.
    pub(super) turn: bool,
    /// How long its marks had to be set; `None` if it has not its turn, or never had one.
    pub(super) window: Option<Duration>,
}

impl Rotation {
    /// From now on only the blocks of this share of the circle take turns.
    pub(super) fn watch_within(&mut self, within: f64) {
        self.within = within;
    }

    /// The pieces of a target, by address. Those with a turn count as cleared at `now`.
    pub(super) fn pieces(&mut self, now: Time, target: &Target<'_>, share: f64) -> Vec<Piece> {
        let turns = self.spaces.entry(target.space).or_default();
        let mut pieces = Vec::new();
        for range in target.ranges {
            let mut first = range.start;
            while first < range.end {
                let end = Vpn((first.block_start().0 + u64::from(BLOCK_PAGES)).min(range.end.0));
                pieces.push(Piece { first, pages: (end.0 - first.0) as usize, turn: false, window: None });
                first = end;
            }
        }
        let wanted = ((pieces.len() as f64 * share.clamp(0.0, 1.0)).ceil() as usize).min(pieces.len());
        let start = pieces.partition_point(|piece| piece.first < turns.next);
        let count = pieces.len();
        let within = points(self.within);
        let mut left = wanted;
        for offset in 0..count {
            let piece = &mut pieces[(start + offset) % count];
            if left == 0 {
                break;
            }
            if place_on_circle(piece.first.0 / u64::from(BLOCK_PAGES)) >= within {
                continue;
            }
            left -= 1;
            piece.turn = true;
            piece.window = turns.cleared.insert(piece.first, now).map(|cleared| now.since(cleared));
            turns.next = Vpn(piece.first.0 + 1);
        }
        // Memory that was unmapped must not leave its times behind.
        if turns.cleared.len() > 2 * pieces.len() + 16 {
            turns.cleared.retain(|first, _| pieces.binary_search_by_key(first, |piece| piece.first).is_ok());
        }
        pieces
    }

    /// Takes back that a piece was cleared.
    pub(super) fn forget_piece(&mut self, space: SpaceId, first: Vpn) {
        if let Some(turns) = self.spaces.get_mut(&space) {
            turns.cleared.remove(&first);
        }
    }

    /// Forgets a space.
    pub(super) fn forget(&mut self, space: SpaceId) {
        self.spaces.remove(&space);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::{Backing, MemoryRange, Process};

    #[test]
    fn every_piece_has_its_turn_before_any_has_two() {
        let process = Process::open(std::process::id()).unwrap();
        let range = |start, end| MemoryRange { start: Vpn(start), end: Vpn(end), backing: Backing::Anonymous };
        let ranges = [range(100, 1_100), range(2_048, 2_048 + 512 * 5)];
        let target = Target { space: SpaceId(0), process: &process, ranges: &ranges };
        let mut rotation = Rotation::default();
        let mut turns = BTreeMap::new();
        for round in 0..8_u64 {
            let pieces = rotation.pieces(Time::from_nanos(round), &target, 0.25);
            assert_eq!(pieces.len(), 3 + 5);
            assert_eq!(pieces.iter().map(|piece| piece.pages).sum::<usize>(), 1_000 + 512 * 5);
            for piece in pieces.iter().filter(|piece| piece.turn) {
                *turns.entry(piece.first).or_insert(0) += 1;
                assert_eq!(piece.window, (round >= 4).then(|| Duration::from_nanos(4)));
            }
        }
        assert!(turns.len() == 8 && turns.values().all(|&count| count == 2), "{turns:?}");
    }

    #[test]
    fn within_a_part_of_the_blocks_only_those_have_turns_and_they_stand_for_all() {
        let process = Process::open(std::process::id()).unwrap();
        let range = MemoryRange { start: Vpn(0), end: Vpn(512 * 1024), backing: Backing::Anonymous };
        let ranges = [range];
        let target = Target { space: SpaceId(0), process: &process, ranges: &ranges };
        let mut rotation = Rotation::default();
        rotation.watch_within(1.0 / 16.0);
        let mut turned = std::collections::BTreeSet::new();
        for round in 0..8_u64 {
            let pieces = rotation.pieces(Time::from_nanos(round), &target, 1.0 / 64.0);
            turned.extend(pieces.iter().filter(|piece| piece.turn).map(|piece| piece.first.0 / 512));
        }
        assert!((60..=68).contains(&turned.len()), "{} of 1,024 blocks", turned.len());
        // Each eighth of the memory has about its eighth of them.
        for part in 0..8 {
            let here = turned.range(part * 128..(part + 1) * 128).count();
            assert!((6..=10).contains(&here), "{here} in part {part}");
        }
    }
}
