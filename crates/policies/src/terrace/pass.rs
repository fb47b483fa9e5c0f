//! The pass over all pages at the end of an interval: learn, value, age, and collect who could change tier.
//!
//! In: pages, the value table, the witnesses of the interval before. Out: [`Found`]: offers by tier, witnesses with what they received,
//! sums. Must not: judge prices. It goes by space and address, so that the numbers of pages do not matter.

use terrace_core::pages::{Column, Page, Pages};
use terrace_core::units::{BLOCK_PAGES, BlockId, PageId, SpaceId, Vpn};

use super::exchange::{Best, Offer};
use super::returns::{Returns, kind};
use super::state::{LONG_AGEING, Parts, SHORT_AGEING, State, decode, weight};
use super::table::Table;
use super::witnesses::{Witness, is_witness};

/// The policy's bits of a page in its first interval; below that they count its latest moves.
pub(super) const NEWBORN: u8 = 3;
/// Most moves counted.
pub(super) const MOST_MOVES: u8 = 2;
/// A page not used for longer is as one not used for so long: before the number of the interval wraps.
const OLDEST: u16 = 32_000;

/// What a pass is made with.
pub(super) struct Pass<'a> {
    pub table: &'a mut Table,
    pub returns: &'a mut Returns,
    pub parts: Parts,
    /// Standard errors by which who comes is valued lower, and who leaves higher.
    pub doubt: f32,
    /// The number of the interval that ends.
    pub now: u16,
    /// The mean page's long mean, stored.
    pub mean: u16,
    /// Accesses a page received in the interval that ends, on average.
    pub each: f32,
    /// Blocks that were not looked at in this interval: nothing is known of their pages. Empty where all were.
    pub blind: &'a [bool],
    /// Whether counts of moves fade in this interval.
    pub fades: bool,
    /// Most offers wanted of each side, and tiers.
    pub wanted: usize,
    pub tiers: usize,
    pub thinned: u32,
}

/// What a pass found.
pub(super) struct Found {
    /// Units, and 4 KiB pages.
    pub units: u64,
    pub pages: u64,
    /// The sum of the long means of all pages, aged.
    pub long: f64,
    /// Who could come from tier `k + 1` to `k`, and leave `k` for it.
    pub coming: Vec<Best>,
    pub leaving: Vec<Best>,
    pub witnesses: Vec<Witness>,
}

impl Pass<'_> {
    /// Goes over all pages. `old` are the witnesses of the interval before, in the same order.
    pub(super) fn run(&mut self, pages: &mut Pages, short: &mut Column<u16>, old: &[Witness]) -> Found {
        let list = |highest| (1..self.tiers).map(|_| Best::new(self.wanted, highest)).collect();
        let mut found = Found {
            units: 0,
            pages: 0,
            long: 0.0,
            coming: list(true),
            leaving: list(false),
            witnesses: Vec::with_capacity(old.len()),
        };
        let blocks: Vec<(BlockId, SpaceId, Vpn, bool, bool)> =
            pages.blocks().map(|(id, block)| (id, block.space, block.start, block.huge, block.file)).collect();
        let mut old = old.iter().peekable();
        for (block, space, start, huge, file) in blocks {
            let size = if huge { BLOCK_PAGES } else { 1 };
            for offset in (0..BLOCK_PAGES).step_by(size as usize) {
                let unit = block.first_page().plus(offset);
                let vpn = Vpn(start.0 + u64::from(offset));
                while old.next_if(|witness| (witness.space, witness.vpn) < (space, vpn)).is_some() {}
                let before = old.next_if(|witness| (witness.space, witness.vpn) == (space, vpn));
                let is_witness = is_witness(space, vpn, self.thinned);
                self.one(
                    pages,
                    short,
                    &Unit { id: unit, pages: size, space, vpn, file, before, is_witness },
                    &mut found,
                );
            }
        }
        found
    }

    fn one(&mut self, pages: &mut Pages, column: &mut Column<u16>, it: &Unit<'_>, found: &mut Found) {
        let &Unit { id: unit, pages: size, space, vpn, file, before, is_witness } = it;
        let entry = &mut pages[unit];
        let Some(tier) = entry.tier() else {
            (entry.heat, entry.stamp) = (0, 0);
            entry.set_policy_bits(0);
            column[unit.index()] = 0;
            return;
        };
        let (newborn, moves) = (entry.policy_bits() == NEWBORN, moves(entry));
        let (long, short) = (entry.heat, column[unit.index()]);
        let blind = self.blind.get(unit.block().0 as usize).copied().unwrap_or(false);
        if blind {
            entry.stamp = next(entry.stamp);
        }
        let age = self.now.wrapping_sub(entry.stamp);
        if age > OLDEST {
            entry.stamp = self.now.wrapping_sub(OLDEST).max(1);
        }
        let state = State::of(age, long, short, self.mean, self.parts);
        let value = self.table.value(state);
        // Age.
        if !blind {
            entry.heat = long.saturating_sub(LONG_AGEING);
            column[unit.index()] = short.saturating_sub(SHORT_AGEING);
        }
        let kept = if self.fades { moves.saturating_sub(1) } else { moves };
        entry.set_policy_bits(kept);
        found.units += 1;
        found.pages += u64::from(size);
        found.long += f64::from(decode(entry.heat)) * f64::from(size);
        if !(entry.moving() || entry.pinned()) {
            // Differences within the noise of the values are no reason to move.
            let doubt = self.doubt * self.table.error(state);
            let offer =
                |value| Offer { unit, pages: size, value, order: found.units as u32, times: moves.max(1), tier };
            if let Some(list) = tier.index().checked_sub(1).and_then(|above| found.coming.get_mut(above)) {
                list.push(offer((value - doubt).max(0.0)));
            }
            if let Some(list) = found.leaving.get_mut(tier.index()) {
                list.push(offer(value + doubt));
            }
        }
        if !is_witness {
            return;
        }
        let mut now = Witness { space, vpn, state, kind: kind(age, long, self.mean), short: column[unit.index()] };
        if let (false, Some(before)) = (blind, before) {
            self.returns.learn(before.kind, age == 0);
        }
        let first = if newborn { Some((State::newborn(file), 0)) } else { None };
        let then = first.or(before.map(|witness| (witness.state, witness.short)));
        if let (false, true, Some((then, base))) = (blind, self.each > 0.0, then) {
            // In units of this interval's mean page: a program that becomes faster is not taken for pages that became hotter.
            let received = ((decode(short) - decode(base)) / weight(SHORT_AGEING)).max(0.0);
            self.table.learn(then, received / self.each, state);
        }
        if let (true, Some(before)) = (blind, before) {
            (now.state, now.short, now.kind) = (before.state, before.short, before.kind);
        }
        found.witnesses.push(now);
    }
}

/// A page, or a huge one, as the pass comes to it.
struct Unit<'w> {
    id: PageId,
    pages: u32,
    space: SpaceId,
    vpn: Vpn,
    file: bool,
    /// What was noted of it in the pass before, where it was a witness.
    before: Option<&'w Witness>,
    is_witness: bool,
}

/// A page's latest moves, as far as they are counted.
pub(super) fn moves(entry: &Page) -> u8 {
    if entry.policy_bits() == NEWBORN { 0 } else { entry.policy_bits() }
}

/// The number of the interval after this one; 0 stands for a page that is not known yet.
pub(super) fn next(number: u16) -> u16 {
    number.wrapping_add(1).max(1)
}
