//! `hotness-walk`: the operating system's side of MMU counters for the pieces of huge pages. Page size and tier are one decision.
//!
//! In: counts of the 4 KiB pieces of huge pages, accessed bits of 4 KiB mappings, outcomes. Out: moves of huge pages and of 4 KiB
//! pages, splits of huge pages whose heat lies on few pieces, collapses of blocks that are hot all over. Must not: look at pages
//! that no round reported, or let a space fall below its floor of fast memory for another's sake.
//!
//! Source: hotness walk (course report, undated), section 3.2, says what hardware offers and that the system walks periodically, descends only where
//! upper accessed bits are set, and halves all counters. The policy is left open there; this one is ours.
//!
//! | constant | default | meaning |
//! |---|---|---|
//! | `period` | 100 ms | time between two walks; the paper gives none (reference W4) |
//! | halving | 1/2 a walk | hotness walk, section 3.2 |
//! | `margin` | 2 bins | a slow unit takes a fast one's place only if it is hotter by so many powers of two |
//! | `skew` | 25 % | a huge page with at most this share of hot pieces is split, if memory is short |
//! | `dense` | 50 % | a split block with at least this share of hot pieces, all of them fast, is mapped huge again |
//! | evidence | variance 2 means | counts of a huge page vary at least so much, or chance may have made its skew: chance alone gives 1 |
//! | lasting | half of them | so many of the hot pieces of a page to be split were used in the walk before as well: what a program writes through once is hot piece by piece, too |
//! | resolution | 1/16 count | heats are kept so finely: where uses are sampled, huge pages count less than one a piece, and differ |
//! | `splits` | 50 | huge pages split at a walk at most (as MEMTIS's pass) |
//! | `floor` | 50 % | share of its proportional part of fast memory that a space keeps whatever others want |
//! | `reserve` | 1 % | fast memory kept free, for pages that are born |
//! | heat of a new unit | that of a piece used once in every walk | so that what was just allocated is not the first to go |
//!
//! A 4 KiB mapping has an accessed bit only: where it is set it counts as much as the mean of the counters above zero did at the walk
//! before. A piece is hot if the pages at least as hot as it would fill fast memory and no more; the threshold is a power of two.
//!
//! Candidates are found without a scan: lists of units by heat, of each space and side, that age by one rotation a walk
//! (`hotness_lists.rs`); who has to leave for them, by `hotness_victims.rs`. Memory beside the eight common bytes: 8 for links and 4 for the place.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use terrace_core::observation::{Observation, Scan, Seen};
use terrace_core::pages::{Page, Pages};
use terrace_core::plan::{Action, Outcome, Reason, Wishes};
use terrace_core::policy::{Cadence, Metric, Needs, Policy, Room, Round};
use terrace_core::units::{BLOCK_PAGES, BlockId, PageId, SpaceId, TierId, Time, Vpn};

use crate::hotness_lists::{HotnessLists, Side, TOP_BIN, bin_of};
use crate::hotness_victims::Victims;
use crate::{PolicyInfo, SettingInfo, Settings, SettingsError, support};

/// The policy's entry in the registry.
pub const INFO: PolicyInfo = PolicyInfo {
    name: "hotness-walk",
    summary: "MMU counters for 4 KiB pieces of huge pages: split and demote, collapse and promote, 4 KiB moves",
    source: "hotness walk, Carnegie Mellon course report, undated; the policy is Terrace's own",
    settings: &[
        SettingInfo { key: "period", default: "100ms", meaning: "time between two walks" },
        SettingInfo {
            key: "margin",
            default: "2",
            meaning: "powers of two by which a page must be hotter to take a place",
        },
        SettingInfo { key: "split", default: "on", meaning: "split skewed huge pages (off: whole huge pages move)" },
        SettingInfo { key: "collapse", default: "on", meaning: "map hot blocks huge again" },
        SettingInfo { key: "skew", default: "25%", meaning: "share of hot pieces up to which a huge page is split" },
        SettingInfo { key: "dense", default: "50%", meaning: "share of hot pieces from which a block is mapped huge" },
        SettingInfo { key: "splits", default: "50", meaning: "huge pages split at a walk at most" },
        SettingInfo { key: "floor", default: "50%", meaning: "share of its part of fast memory that a space keeps" },
        SettingInfo { key: "reserve", default: "1%", meaning: "share of fast memory kept free" },
    ],
    build: |settings| Ok(Box::new(HotnessWalk::new(settings)?)),
};

/// Heat of one count. What an accessed bit is worth before any counter was read, too: every bin down to one in sixteen walks can be
/// told apart.
const COUNT: u16 = 16;
/// Blocks mapped huge again at a walk at most: each copies 2 MiB.
const COLLAPSES: usize = 8;
/// Policy bit of a block's first page: the block is filed as one huge unit.
const FILED_HUGE: u8 = 1;
/// Policy bit of a piece of a huge page: it was used between the latest walk that read its counter and the one before.
const USED: u8 = 2;
/// Variance over mean of a huge page's counts from which its skew is taken for real. Counts of equally hot pieces are drawn by
/// chance (Poisson: 1), and halving evens them out further.
const EVIDENCE: f64 = 2.0;
const HUGE: u64 = BLOCK_PAGES as u64;

/// What the latest walk found in a block.
#[derive(Clone, Copy, Debug, Default)]
struct Walked {
    /// Sum of the counters of a huge page, and of their squares.
    sum: u64,
    squares: u128,
    /// Hot pieces that were used before this walk and before the last.
    lasting: u64,
}

impl Walked {
    fn is_skewed(&self) -> bool {
        let mean = self.sum as f64 / HUGE as f64;
        self.squares as f64 / HUGE as f64 - mean * mean >= EVIDENCE * mean
    }
}

/// See the module's header.
pub struct HotnessWalk {
    period: Duration,
    margin: u32,
    split: bool,
    collapse: bool,
    skew: f64,
    dense: f64,
    splits: usize,
    floor: f64,
    reserve: f64,
    lists: HotnessLists,
    next_walk: Time,
    /// Set when a split has come through: its pieces are to be placed at once.
    soon: Option<Time>,
    /// Huge pages with counts at this walk.
    walked: BTreeMap<BlockId, Walked>,
    /// Blocks of 4 KiB pages that this walk visited, with how many of their pages were used.
    small: BTreeMap<BlockId, usize>,
    /// Pieces of huge pages by bin, at this walk.
    pieces: [u64; TOP_BIN as usize + 1],
    /// Counters above zero of this walk, and their sum.
    counted: (u64, u64),
    worth: u16,
    hot_bin: u32,
    walks: u64,
    split_wishes: u64,
    collapse_wishes: u64,
    floor_kept: u64,
    searched: u64,
}

/// The heat of so many counts.
fn heat_of(counts: u64) -> u16 {
    u16::try_from(counts.saturating_mul(u64::from(COUNT))).unwrap_or(u16::MAX)
}

fn set_bit(page: &mut Page, bit: u8, on: bool) {
    page.set_policy_bits(if on { page.policy_bits() | bit } else { page.policy_bits() & !bit });
}

impl HotnessWalk {
    /// Reads the settings.
    ///
    /// # Errors
    /// When a value is none of its kind.
    pub fn new(settings: &mut Settings) -> Result<HotnessWalk, SettingsError> {
        Ok(HotnessWalk {
            period: settings.duration("period", Duration::from_millis(100))?,
            margin: settings.number("margin", 2u32, 1..=TOP_BIN)?,
            split: settings.switch("split", true)?,
            collapse: settings.switch("collapse", true)?,
            skew: settings.share("skew", 0.25)?,
            dense: settings.share("dense", 0.5)?,
            splits: settings.number("splits", 50usize, 1..=100_000)?,
            floor: settings.share("floor", 0.5)?,
            reserve: settings.share("reserve", 0.01)?,
            lists: HotnessLists::default(),
            next_walk: Time::ZERO,
            soon: None,
            walked: BTreeMap::new(),
            small: BTreeMap::new(),
            pieces: [0; TOP_BIN as usize + 1],
            counted: (0, 0),
            worth: COUNT,
            hot_bin: 1,
            walks: 0,
            split_wishes: 0,
            collapse_wishes: 0,
            floor_kept: 0,
            searched: 0,
        })
    }

    /// The heat of a listed unit now: what it was filed with, halved as often as rounds have passed.
    fn heat(&self, unit: PageId, pages: &Pages) -> u16 {
        let filed = pages[unit].stamp;
        match self.lists.bin(unit) {
            0 => 0,
            bin => filed >> (bin_of(filed).saturating_sub(bin)),
        }
    }

    /// Files a unit under a heat, or takes it out if it has no memory. `stamp` holds the heat it was filed with; of the pieces
    /// of a huge page, `heat` holds the count.
    fn file(&mut self, unit: PageId, heat: u16, weight: u64, pages: &mut Pages) {
        let (space, _) = pages.locate(unit);
        match pages[unit].tier() {
            None => self.lists.remove(unit, space, weight),
            Some(tier) => {
                let side = if tier == TierId::FAST { Side::Fast } else { Side::Slow };
                self.lists.file(unit, space, side, heat, weight);
                pages[unit].stamp = heat;
            }
        }
    }

    fn weight(unit: PageId, pages: &Pages) -> u64 {
        pages.block(unit.block()).map_or(1, |block| if block.huge { HUGE } else { 1 })
    }

    /// The units of a block are filed as the block is mapped now, where they were not; those of the other mapping go.
    fn refile(&mut self, block: BlockId, pages: &mut Pages) {
        let Some(info) = pages.block(block).copied() else { return };
        if info.huge == Self::is_filed_huge(block, pages) {
            return;
        }
        let first = block.first_page();
        set_bit(&mut pages[first], FILED_HUGE, info.huge);
        if info.huge {
            let mut heat = 0;
            for page in (0..BLOCK_PAGES).map(|offset| first.plus(offset)) {
                heat = heat.max(self.heat(page, pages));
                self.lists.remove(page, info.space, 1);
            }
            let heat = if heat == 0 { self.newborn() } else { heat };
            self.file(first, heat, HUGE, pages);
        } else {
            self.lists.remove(first, info.space, HUGE);
            for page in (0..BLOCK_PAGES).map(|offset| first.plus(offset)) {
                // The walk that counted them is over, and all heats have been halved since.
                let heat = std::mem::take(&mut pages[page].heat) >> 1;
                self.file(page, heat, 1, pages);
            }
        }
    }

    /// Whether the lists hold a block by its first page alone.
    fn is_filed_huge(block: BlockId, pages: &Pages) -> bool {
        pages[block.first_page()].policy_bits() & FILED_HUGE != 0
    }

    fn newborn(&self) -> u16 {
        self.worth
    }

    fn on_scan(&mut self, scan: &Scan<'_>, pages: &mut Pages) {
        let block = scan.first.block();
        let Some(info) = pages.block(block).copied() else { return };
        self.refile(block, pages);
        if info.huge {
            self.follow(block.first_page(), HUGE, pages);
            return;
        }
        if scan.window.is_some() {
            *self.small.entry(block).or_default() += scan.sights.iter().filter(|sight| sight.accessed()).count();
        }
        for (page, sight) in (0..scan.sights.len() as u32).map(|offset| scan.first.plus(offset)).zip(scan.sights) {
            if scan.window.is_some() && sight.accessed() {
                let heat = self.heat(page, pages).saturating_add(self.worth);
                self.file(page, heat, 1, pages);
            } else {
                self.follow(page, 1, pages);
            }
        }
    }

    /// A unit's place is kept up to date; one that is new is filed.
    fn follow(&mut self, unit: PageId, weight: u64, pages: &mut Pages) {
        let side = pages[unit].tier().map(|tier| if tier == TierId::FAST { Side::Fast } else { Side::Slow });
        let filed = self.lists.side(unit);
        if side != filed {
            let heat = if filed.is_some() { self.heat(unit, pages) } else { self.newborn() };
            self.file(unit, heat, weight, pages);
        }
    }

    fn on_count(&mut self, page: PageId, accesses: u32, pages: &mut Pages) {
        let heat = heat_of(u64::from(accesses));
        self.refile(page.block(), pages);
        if !pages.block(page.block()).is_some_and(|block| block.huge) {
            let heat = self.heat(page, pages).saturating_add(heat);
            self.file(page, heat, 1, pages);
            return;
        }
        let walked = match self.walked.entry(page.block()) {
            std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::btree_map::Entry::Vacant(entry) => {
                // The counters were halved; what was above zero then and is not now is not reported.
                for page in pages.run_mut(page.block().first_page(), BLOCK_PAGES as usize) {
                    let counted = page.heat > 0;
                    set_bit(page, USED, counted && page.policy_bits() & USED != 0);
                    page.heat = page.heat / COUNT / 2 * COUNT;
                }
                entry.insert(Walked::default())
            }
        };
        walked.sum += u64::from(accesses);
        walked.squares += u128::from(accesses) * u128::from(accesses);
        let piece = &mut pages[page];
        let (before, now) = (piece.policy_bits() & USED != 0, heat > piece.heat || heat == u16::MAX);
        walked.lasting += u64::from(before && now && bin_of(heat) >= self.hot_bin);
        set_bit(piece, USED, now);
        piece.heat = heat;
        self.pieces[bin_of(heat) as usize] += 1;
        self.counted.0 += 1;
        self.counted.1 += u64::from(accesses);
    }

    /// Pages at least this hot fill fast memory and no more.
    fn set_threshold(&mut self, limit: u64, pages: &Pages) {
        let spaces: Vec<SpaceId> = pages.spaces().collect();
        let mut sum = 0;
        self.hot_bin = 1;
        for bin in (1..=TOP_BIN).rev() {
            // Huge pages are listed by their mean; their pieces are counted one by one.
            let listed: u64 = spaces
                .iter()
                .flat_map(|space| [Side::Fast, Side::Slow].map(|side| self.lists.singles(*space, side, bin)))
                .sum();
            sum += self.pieces[bin as usize] + listed;
            if sum > limit {
                self.hot_bin = (bin + 1).min(TOP_BIN);
                return;
            }
        }
    }

    fn hot_pieces(&self, block: BlockId, pages: &Pages) -> u64 {
        pages.block_pages(block).iter().filter(|page| bin_of(page.heat) >= self.hot_bin).count() as u64
    }

    /// Huge pages to split: few of their pieces are hot. Slow ones first, by what their hot pieces would gain; fast ones free the
    /// memory that takes. Returns them, and those of which the next walk will tell: neither is to move as a whole now.
    fn wish_splits(&mut self, pages: &Pages, wishes: &mut Wishes) -> BTreeSet<BlockId> {
        let most = (self.skew * HUGE as f64) as u64;
        let mut skewed: Vec<(u64, BlockId)> = Vec::new();
        let mut waiting = BTreeSet::new();
        for (&block, walked) in &self.walked {
            self.searched += 1;
            let Some(info) = pages.block(block) else { continue };
            let page = &pages[block.first_page()];
            if !info.huge || info.file || page.moving() || page.pinned() || !walked.is_skewed() {
                continue;
            }
            let hot = self.hot_pieces(block, pages);
            if !(1..=most).contains(&hot) {
                continue;
            }
            waiting.insert(block);
            if 2 * walked.lasting >= hot {
                skewed.push((walked.sum / hot, block));
            }
        }
        skewed.sort_unstable_by(|a, b| b.cmp(a));
        skewed.truncate(self.splits.min(wishes.left()));
        for (_, block) in &skewed {
            self.split_wishes += 1;
            wishes.push(block.first_page(), Action::Split, Reason::PageSize);
        }
        waiting
    }

    /// Blocks of 4 KiB pages that are hot in most of their pieces, all of them fast, are mapped huge again.
    fn wish_collapses(&mut self, pages: &Pages, wishes: &mut Wishes) {
        let least = (self.dense * HUGE as f64).ceil() as usize;
        let mut left = COLLAPSES;
        for (block, used) in std::mem::take(&mut self.small) {
            if pages.block(block).is_none_or(|info| info.huge || info.file) {
                continue;
            }
            let first = block.first_page();
            self.searched += 1;
            let all_fast = pages
                .block_pages(block)
                .iter()
                .all(|page| page.tier() == Some(TierId::FAST) && !page.moving() && !page.pinned());
            // What is new counts as warm, but it must have been used to be worth a huge page.
            if !all_fast || used < least || left == 0 || wishes.left() == 0 {
                continue;
            }
            let hot = (0..BLOCK_PAGES).filter(|offset| self.lists.bin(first.plus(*offset)) >= self.hot_bin).count();
            if hot >= least.max(1) {
                left -= 1;
                self.collapse_wishes += 1;
                wishes.push(first, Action::Collapse, Reason::PageSize);
            }
        }
    }

    /// Pages of fast memory that each space keeps whatever others want, of those that may be in use at all.
    fn floors(&self, target: u64, pages: &Pages) -> BTreeMap<SpaceId, u64> {
        let all = pages.footprint_of_all().max(1) as f64;
        let part = |space| pages.footprint(space) as f64 / all * target as f64 * self.floor;
        pages.spaces().map(|space| (space, part(space) as u64)).collect()
    }

    /// Exchanges the hottest slow units for the coldest fast ones. Blocks that are being split are left out: their pieces come
    /// when that is done.
    fn wish_moves(&mut self, room: &Room<'_>, splitting: &BTreeSet<BlockId>, pages: &Pages, wishes: &mut Wishes) {
        let limit = support::fast_limit(room);
        let reserve = (limit as f64 * self.reserve) as u64;
        let target = limit.saturating_sub(reserve);
        let mut used = room.tiers[0].used;
        let mut victims = Victims::new(&self.lists, self.floors(target, pages), splitting, pages);
        // What is over the limit goes first, whatever comes in.
        while used > target {
            let Some((unit, weight)) = victims.next(TOP_BIN + 1, None) else { break };
            let reason = if self.lists.bin(unit) == 0 { Reason::Cold } else { Reason::OverLimit };
            if !wishes.move_to(unit, TierId::FAST.below(), reason) {
                break;
            }
            used -= weight.min(used);
        }
        let spaces: Vec<SpaceId> = pages.spaces().collect();
        'hottest: for bin in (1..=TOP_BIN).rev() {
            let below = (bin + 1).saturating_sub(self.margin);
            for &space in &spaces {
                for unit in self.lists.newest_first(space, Side::Slow, bin) {
                    if used >= target && victims.is_hopeless(space) {
                        break;
                    }
                    self.searched += 1;
                    if !victims.is_usable(unit) {
                        continue;
                    }
                    let weight = Self::weight(unit, pages);
                    let need = (used + weight).saturating_sub(target);
                    let Some(out) = victims.room_for(space, weight, need, below) else { continue };
                    if wishes.left() <= out.len() {
                        break 'hottest;
                    }
                    for (other, freed) in out {
                        let cold = self.lists.bin(other) == 0;
                        wishes.move_to(other, TierId::FAST.below(), if cold { Reason::Cold } else { Reason::MakeRoom });
                        used = used.saturating_sub(freed);
                    }
                    used += weight;
                    victims.came(space, weight);
                    wishes.move_to(unit, TierId::FAST, Reason::Hot);
                }
            }
        }
        let (searched, kept) = victims.counts();
        self.searched += searched;
        self.floor_kept += kept;
    }
}

impl Policy for HotnessWalk {
    fn name(&self) -> &'static str {
        INFO.name
    }

    fn needs(&self) -> Needs {
        Needs { scans: true, counters: true, ..Needs::default() }
    }

    fn mapped(&mut self, _now: Time, _blocks: &[BlockId], pages: &mut Pages) {
        self.lists.fit(pages.capacity());
    }

    fn unmapping(&mut self, _now: Time, space: SpaceId, range: Range<Vpn>, pages: &Pages) {
        support::each_page(pages, space, &range, |page| {
            // A huge unit that loses a page is one no more; what is left of it is filed when it is seen.
            let block = page.block();
            if Self::is_filed_huge(block, pages) {
                self.lists.remove(block.first_page(), space, HUGE);
            } else {
                self.lists.remove(page, space, 1);
            }
            self.walked.remove(&page.block());
            self.small.remove(&page.block());
        });
    }

    fn observe(&mut self, _now: Time, seen: Seen<'_>, pages: &mut Pages) {
        match seen {
            Seen::Scan(scan) => self.on_scan(&scan, pages),
            Seen::Events(events) => {
                for event in events {
                    match *event {
                        Observation::Counted { page, accesses } => self.on_count(page, accesses, pages),
                        _ => {
                            let unit = pages.unit(event.page()).start;
                            let weight = Self::weight(unit, pages);
                            self.refile(unit.block(), pages);
                            self.follow(unit, weight, pages);
                        }
                    }
                }
            }
        }
    }

    fn round(&mut self, now: Time, _round: &Round, pages: &mut Pages) {
        self.walks += 1;
        // A huge page is filed under the mean of its pieces: what a page of fast memory spent on it would serve.
        let walked: Vec<(BlockId, u64)> = self.walked.iter().map(|(block, walked)| (*block, walked.sum)).collect();
        for (block, sum) in walked {
            let mean = u16::try_from((sum * u64::from(COUNT)).div_ceil(HUGE)).unwrap_or(u16::MAX);
            if Self::is_filed_huge(block, pages) {
                self.file(block.first_page(), mean, HUGE, pages);
            }
        }
        if let Some(worth) = (self.counted.1 * u64::from(COUNT)).checked_div(self.counted.0) {
            self.worth = u16::try_from(worth).unwrap_or(u16::MAX);
        }
        self.next_walk = now + self.period;
    }

    fn outcome(&mut self, now: Time, done: &[Outcome], pages: &mut Pages) {
        for outcome in done {
            let block = outcome.item.page.block();
            if pages.block(block).is_none() {
                continue;
            }
            // What a block is mapped as may have changed, by this move or meanwhile; only then is its filing changed.
            self.refile(block, pages);
            if matches!(outcome.item.action, Action::Split | Action::Collapse) && outcome.done > 0 {
                self.soon = Some(now);
            } else {
                let unit = pages.unit(outcome.item.page).start;
                self.follow(unit, Self::weight(unit, pages), pages);
            }
        }
    }

    fn plan(&mut self, _now: Time, room: &Room<'_>, pages: &mut Pages, wishes: &mut Wishes) {
        let after_walk = self.counted.0 > 0 || !self.small.is_empty();
        let limit = support::fast_limit(room);
        if after_walk {
            self.set_threshold(limit, pages);
        }
        self.soon = None;
        // Splitting pays only where fast memory is short.
        let short = after_walk && self.split && room.footprint > limit;
        let splitting = if short { self.wish_splits(pages, wishes) } else { BTreeSet::new() };
        self.wish_moves(room, &splitting, pages, wishes);
        if after_walk {
            if self.collapse {
                self.wish_collapses(pages, wishes);
            }
            self.walked.clear();
            self.small.clear();
            self.pieces = [0; TOP_BIN as usize + 1];
            self.counted = (0, 0);
            // Reading is over: what comes until the next walk is half as much worth then.
            self.lists.halve();
        }
    }

    fn memory_bytes(&self) -> usize {
        self.lists.memory_bytes()
    }

    fn cadence(&self) -> Cadence {
        Cadence { scan_at: Some(self.next_walk), share: 1.0, ..Cadence::default() }
    }

    fn next_wake(&self) -> Option<Time> {
        self.soon
    }

    fn metrics(&self) -> Vec<Metric> {
        let metric = |name, value: f64| Metric { name, value };
        vec![
            metric("walks", self.walks as f64),
            metric("hot_threshold_bin", f64::from(self.hot_bin)),
            metric("accessed_bit_worth", f64::from(self.worth)),
            metric("splits_wished", self.split_wishes as f64),
            metric("collapses_wished", self.collapse_wishes as f64),
            metric("victims_kept_by_floor", self.floor_kept as f64),
            metric("candidate_search_operations", self.searched as f64),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rig::{Rig, SLOW, SPACE};
    use terrace_core::engine::{Engine, EngineConfig, Input, Output};
    use terrace_core::governor::GovernorConfig;
    use terrace_core::observation::Sight;
    use terrace_core::policy::FastGoal;

    fn rig(pairs: &[(&str, &str)], tiers: &[u64]) -> Rig {
        let policy = HotnessWalk::new(&mut Settings::from_pairs(pairs.iter().copied())).unwrap();
        Rig::new(Box::new(policy), tiers)
    }

    /// A walk that found these counts: vpn and count.
    fn walk(rig: &mut Rig, counts: &[(u64, u32)]) {
        let events: Vec<Observation> =
            counts.iter().map(|&(vpn, accesses)| Observation::Counted { page: rig.page(vpn), accesses }).collect();
        rig.now = rig.now + Duration::from_millis(100);
        rig.engine.handle(rig.now, Input::Seen(Seen::Events(&events)));
        rig.engine.handle(rig.now, Input::Round(Round::default()));
        rig.settle();
    }

    #[test]
    fn the_hot_pieces_of_a_slow_huge_page_come_without_the_rest() {
        let mut rig = rig(&[], &[600, 4096]);
        rig.map(2048);
        rig.born_huge(0, TierId::FAST);
        for block in 1..4 {
            rig.born_huge(block, SLOW);
        }
        // Eight pieces of block 2 are hot; block 0, which is fast, is not used.
        let counts: Vec<(u64, u32)> = (0..8).map(|piece| (1024 + piece * 60, 400)).collect();
        for _ in 0..3 {
            walk(&mut rig, &counts);
        }
        let hot_are_fast = counts.iter().all(|(vpn, _)| rig.tier(*vpn) == Some(TierId::FAST));
        assert!(hot_are_fast, "{:?}", rig.moves);
        assert_eq!(rig.tier(1025), Some(SLOW), "its cold pieces stay");
        assert!(rig.promotions <= 88, "only what was hot, and what fits beside block 0: {}", rig.promotions);
        assert_eq!(rig.metric("splits_wished"), 1.0);
    }

    #[test]
    fn a_huge_page_that_is_hot_all_over_moves_whole_and_chance_splits_nothing() {
        let mut rig = rig(&[], &[600, 4096]);
        rig.map(2048);
        rig.born_huge(0, TierId::FAST);
        for block in 1..4 {
            rig.born_huge(block, SLOW);
        }
        // Block 3: a count or none at random on each piece, six on the mean.
        let counts: Vec<(u64, u32)> = (0..512u64).map(|piece| (1536 + piece, 4 + (piece * 7919 % 5) as u32)).collect();
        // What is new counts as used; it takes a few walks until block 0 is known to be idle.
        for _ in 0..8 {
            walk(&mut rig, &counts);
        }
        assert_eq!(rig.metric("splits_wished"), 0.0);
        assert_eq!((rig.tier(1536), rig.tier(0)), (Some(TierId::FAST), Some(SLOW)));
        assert!(rig.moves.iter().all(|item| item.pages == 512));
        // Without splits, skewed pages move whole as well.
        let mut whole = self::rig(&[("split", "off")], &[600, 4096]);
        whole.map(2048);
        for block in 0..4 {
            whole.born_huge(block, if block == 0 { TierId::FAST } else { SLOW });
        }
        for _ in 0..8 {
            walk(&mut whole, &[(1024, 60_000), (1030, 60_000)]);
        }
        assert_eq!((whole.metric("splits_wished"), whole.tier(1024)), (0.0, Some(TierId::FAST)));
    }

    #[test]
    fn what_is_written_through_once_is_no_skew() {
        let mut rig = rig(&[], &[600, 4096]);
        rig.map(2048);
        rig.born_huge(0, TierId::FAST);
        (1..4).for_each(|block| rig.born_huge(block, SLOW));
        // 32 pieces a walk are written, each walk the next; counters keep what is left of the walks before.
        let mut left = [0u32; 512];
        for step in 0..40usize {
            let now = step % 16 * 32..(step % 16 + 1) * 32;
            now.for_each(|piece| left[piece] += 500);
            let counts: Vec<(u64, u32)> =
                (0..).zip(left).filter(|(_, count)| *count > 0).map(|(piece, count)| (1024 + piece, count)).collect();
            walk(&mut rig, &counts);
            left.iter_mut().for_each(|count| *count >>= 1);
        }
        assert_eq!(rig.metric("splits_wished"), 0.0);
    }

    #[test]
    fn the_cold_pieces_of_a_fast_huge_page_make_room_and_dense_blocks_grow_together() {
        let mut rig = rig(&[("reserve", "0%")], &[1024, 4096]);
        rig.map(2048);
        rig.born_huge(0, TierId::FAST);
        rig.born_huge(1, TierId::FAST);
        rig.born_huge(2, SLOW);
        // Block 0 is hot on eight pieces; block 1 is hot all over; of block 2 too many pieces are hot to split it.
        let mut counts: Vec<(u64, u32)> = (0..8).map(|piece| (piece * 64, 3000)).collect();
        counts.extend((512..1024).map(|vpn| (vpn, 100)));
        walk(&mut rig, &counts);
        walk(&mut rig, &counts);
        let mut later: Vec<(u64, u32)> = (512..1024).map(|vpn| (vpn, 100)).collect();
        later.extend((1024..1536).map(|vpn| (vpn, 90)));
        for _ in 0..8 {
            walk(&mut rig, &later);
        }
        assert_eq!(rig.tier(1), Some(SLOW), "a cold piece of block 0 went");
        assert_eq!(rig.tier(1024), Some(TierId::FAST), "block 2 came");
        assert_eq!(rig.tier(600), Some(TierId::FAST));
        // Block 0 comes back to life, piece by piece, and there is room: it is mapped huge again.
        let mut rig = self::rig(&[("reserve", "0%")], &[1024, 4096]);
        rig.map(1024);
        rig.touch_first(0..1024);
        assert_eq!(rig.fast_used(), 1024);
        for _ in 0..4 {
            rig.scan(0, |vpn| vpn % 4 != 3);
            rig.scan(1, |vpn| vpn == 700);
            rig.engine.handle(rig.now, Input::Round(Round::default()));
            rig.settle();
            rig.now = rig.now + Duration::from_millis(100);
        }
        let collapsed: Vec<u64> =
            rig.moves.iter().filter(|item| item.action == Action::Collapse).map(|item| item.page.0.into()).collect();
        assert!(
            !collapsed.is_empty() && collapsed.iter().all(|page| *page == 0),
            "{collapsed:?}: block 1 is not dense"
        );
    }

    /// Two spaces on one machine; what each has of fast memory after the walks.
    fn two_spaces(floor: &str) -> [u64; 2] {
        let pairs = [("floor", floor), ("reserve", "0%")];
        let policy = HotnessWalk::new(&mut Settings::from_pairs(pairs)).unwrap();
        let governor = GovernorConfig { rest: Duration::ZERO, ..GovernorConfig::default() };
        let goal = FastGoal::Pages(2048);
        let mut engine = Engine::new(EngineConfig { tiers: vec![2048, 8192], goal, governor }, Box::new(policy));
        let mut now = Time::ZERO;
        let spaces = [SpaceId(1), SpaceId(2)];
        for (number, space) in spaces.into_iter().enumerate() {
            engine.handle(now, Input::Mapped(space, Vpn(0)..Vpn(2048)));
            for block in 0..4u64 {
                let first = engine.pages().find(space, Vpn(block * 512)).unwrap();
                // Half of each is fast.
                let tier = if block < 2 { TierId::FAST } else { SLOW };
                let sights = vec![Sight::placed(tier).with_huge(true); 512];
                let scan = Scan { first, sights: &sights, window: None, cleared: false };
                engine.handle(now, Input::Seen(Seen::Scan(scan)));
            }
            assert_eq!(engine.pages().used(space, TierId::FAST), 1024, "space {number}");
        }
        for _ in 0..12 {
            now = now + Duration::from_millis(100);
            // The first is busy everywhere, the second hardly at all.
            for (space, each) in [(spaces[0], 1000), (spaces[1], 2)] {
                let events: Vec<Observation> = (0..2048)
                    .map(|vpn| Observation::Counted {
                        page: engine.pages().find(space, Vpn(vpn)).unwrap(),
                        accesses: each,
                    })
                    .collect();
                engine.handle(now, Input::Seen(Seen::Events(&events)));
            }
            engine.handle(now, Input::Round(Round::default()));
            loop {
                match engine.poll(now) {
                    Output::Move(plan) => {
                        let outcomes: Vec<Outcome> =
                            plan.moves.iter().map(|&item| Outcome { item, done: item.pages, failure: None }).collect();
                        engine.handle(now, Input::Moved(&outcomes));
                    }
                    Output::Track(_) => {}
                    Output::Wake(_) => break,
                }
            }
        }
        spaces.map(|space| engine.pages().used(space, TierId::FAST))
    }

    #[test]
    fn a_busy_space_cannot_take_the_floor_of_a_quiet_one() {
        assert_eq!(two_spaces("0%"), [2048, 0], "without a floor the busy one takes all");
        assert_eq!(two_spaces("50%"), [1536, 512], "with one, the quiet one keeps half of its part");
        assert_eq!(two_spaces("100%"), [1024, 1024]);
    }

    #[test]
    fn accessed_bits_rank_small_pages_by_how_often_they_are_set() {
        let mut rig = rig(&[("margin", "1"), ("collapse", "off"), ("reserve", "0%")], &[256, 4096]);
        rig.map(1024);
        rig.touch_first(0..1024);
        for round in 0..20u64 {
            // Pages 512 to 767 are used in every walk, the others in every eighth.
            rig.scan(0, |_| round % 8 == 0);
            rig.scan(1, |vpn| vpn < 768 || round % 8 == 0);
            rig.engine.handle(rig.now, Input::Round(Round::default()));
            rig.settle();
            rig.now = rig.now + Duration::from_millis(100);
        }
        let fast = (512..768).filter(|vpn| rig.tier(*vpn) == Some(TierId::FAST)).count();
        assert!(fast > 240, "{fast} of 256");
        assert_eq!(rig.engine.pages().spaces().collect::<Vec<_>>(), [SPACE]);
    }
}
