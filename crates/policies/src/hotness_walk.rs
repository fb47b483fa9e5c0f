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
//! | `margin` | 2 bins | a slow unit takes a fast one's place only if it is hotter by this many powers of two |
//! | `skew` | 25 % | a huge page with at most this share of hot pieces is split, if memory is short |
//! | `dense` | 50 % | a split block with at least this share of hot pieces, all of them fast, is mapped huge again |
//! | evidence | variance 2 means | counts of a huge page vary at least so much, or chance may have made its skew: chance alone gives 1 |
//! | lasting | half of them | this share of the hot pieces of a page to be split was used in the walk before as well: what a program writes through once is hot piece by piece, too; until that is known the page waits, if splitting it would pay |
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
//! (`hotness_walk/lists.rs`); who has to leave for them, by `hotness_walk/eviction.rs`; whether that is worth its price, `hotness_walk/cost_benefit.rs` weighs.
//! Memory beside the eight common bytes: 8 for links, 4 for the place and 2 for since when a page's heat has lasted.

mod cost_benefit;
mod eviction;
pub mod lists;
mod reuse;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use terrace_core::observation::{Observation, Observations, ScanBatch};
use terrace_core::pages::{Column, Page, Pages};
use terrace_core::plan::{Action, MoveRequests, Outcome, Reason};
use terrace_core::policy::{
    Cadence, CapacityView, Feedback, Metric, Needs, Policy, PolicyReport, Profile, Remap, Schedule, Setup,
};
use terrace_core::prices::ProcessorCounts;
use terrace_core::units::{BLOCK_PAGES, BlockId, PageId, SpaceId, TierId, Time, Vpn};

use crate::hotness_walk::cost_benefit::{Heats, Lasting, Out, Worth};
use crate::hotness_walk::eviction::Victims;
use crate::hotness_walk::lists::{HotnessLists, Side, TOP_BIN, bin_of};
use crate::hotness_walk::reuse::Again;
use crate::parts::support;
use crate::{PolicyInfo, SettingInfo, Settings, SettingsError};

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
        SettingInfo {
            key: "weigh",
            default: "on",
            meaning: "moves, splits and collapses only where they gain what they cost",
        },
        SettingInfo { key: "spare", default: "on", meaning: "what processors do that would idle costs nothing" },
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
const BINS: usize = TOP_BIN as usize + 1;

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
    weigh: bool,
    worth_of: Worth,
    /// What came to 4 KiB pages of some heat.
    again: Again,
    /// The walk at which a page began to be used, counted in 16 bits.
    since: Column<u16>,
    /// What the processor counted before the round that is about to end.
    counts: Option<ProcessorCounts>,
    /// Whether what was born last is huge: what is kept free is for its like.
    born_huge: bool,
    refused: [u64; 3],
    lists: HotnessLists,
    next_walk: Time,
    /// Set when a split has come through: its pieces are to be placed at once.
    soon: Option<Time>,
    /// Huge pages with counts at this walk.
    walked: BTreeMap<BlockId, Walked>,
    /// Blocks of 4 KiB pages that this walk visited, with how many of their pages were used.
    small: BTreeMap<BlockId, usize>,
    /// Pieces of huge pages by side and bin, at this walk.
    pieces: [[u64; BINS]; 2],
    /// Their heat.
    piece_heat: [[u64; BINS]; 2],
    /// Counters above zero of this walk, and their sum.
    counted: (u64, u64),
    worth: u16,
    hot_bin: u32,
    /// Whether heats were halved since the latest walk.
    halved: bool,
    /// The bin of the units with which fast memory is full, as they are mapped now; 0 if all that is used fits.
    full_bin: u32,
    walks: u64,
    split_requests: u64,
    collapse_requests: u64,
    floor_kept: u64,
    searched: u64,
}

/// The heat of a number of counts.
fn heat_of(counts: u64) -> u16 {
    u16::try_from(counts.saturating_mul(u64::from(COUNT))).unwrap_or(u16::MAX)
}

/// The middle of the heats of a bin.
fn middle(bin: u32) -> f64 {
    if bin == 0 { 0.0 } else { 0.75 * f64::from(1u32 << bin) }
}

fn side_of(tier: TierId) -> Side {
    if tier == TierId::FAST { Side::Fast } else { Side::Slow }
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
            period: settings.duration("period")?,
            margin: settings.number("margin", 1..=TOP_BIN)?,
            split: settings.switch("split")?,
            collapse: settings.switch("collapse")?,
            skew: settings.share("skew")?,
            dense: settings.share("dense")?,
            splits: settings.number("splits", 1..=100_000)?,
            floor: settings.share("floor")?,
            reserve: settings.share("reserve")?,
            weigh: settings.switch("weigh")?,
            worth_of: Worth::new(settings.switch("spare")?),
            again: Again::default(),
            since: Column::default(),
            counts: None,
            born_huge: false,
            refused: [0; 3],
            lists: HotnessLists::default(),
            next_walk: Time::ZERO,
            soon: None,
            walked: BTreeMap::new(),
            small: BTreeMap::new(),
            pieces: [[0; BINS]; 2],
            piece_heat: [[0; BINS]; 2],
            counted: (0, 0),
            worth: COUNT,
            hot_bin: 1,
            full_bin: 0,
            halved: false,
            walks: 0,
            split_requests: 0,
            collapse_requests: 0,
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
                self.lists.file(unit, space, side_of(tier), heat, weight);
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
            if heat == 0 {
                self.born_huge = true;
                heat = self.newborn();
            }
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

    /// A page is used that had the heat `before`: from none on, its heat begins to last.
    fn begin(&mut self, page: PageId, before: u16) {
        if before == 0
            && let Some(since) = self.since.get_mut(page.index())
        {
            *since = self.walks as u16;
        }
    }

    /// Walks that a page's heat has lasted, the latest included. Past 65,536 of them, two hours, it begins again.
    fn lasted(&self, page: PageId) -> f64 {
        let since = self.since.get(page.index()).copied().unwrap_or(0);
        f64::from((self.walks as u16).wrapping_sub(since).max(1))
    }

    /// The heat of a unit at the latest walk, also where all heats have been halved since.
    fn heat_at_walk(&self, unit: PageId, pages: &Pages) -> f64 {
        f64::from(self.heat(unit, pages)) * if self.halved { 2.0 } else { 1.0 }
    }

    /// The pages of a unit: those of a huge page in the proportions in which they were counted last.
    fn lasting(&self, unit: PageId, weight: u64, pages: &Pages) -> Vec<Lasting> {
        let heat = self.heat_at_walk(unit, pages);
        if weight == 1 {
            return vec![Lasting { heat, again: self.again.of(heat), walks: self.lasted(unit) }];
        }
        let mut pieces = self.pieces_of(unit.block(), pages);
        let sum: f64 = pieces.iter().map(|piece| piece.heat).sum();
        let now = heat * weight as f64 / sum.max(1.0);
        pieces.iter_mut().for_each(|piece| piece.heat *= now);
        pieces
    }

    /// The pieces of a huge page.
    fn pieces_of(&self, block: BlockId, pages: &Pages) -> Vec<Lasting> {
        let first = block.first_page();
        let heats = pages.block_pages(block).iter().map(|page| f64::from(page.heat));
        // Counters say how often: held against what came again they choose no better (docs/hotness-walk.md).
        (0..).zip(heats).map(|(at, heat)| Lasting { heat, again: 1.0, walks: self.lasted(first.plus(at)) }).collect()
    }

    /// Whether a unit gains as much time as it costs to bring it, and to make room for `need` pages by what goes.
    fn is_worth(&self, unit: PageId, brings: &[Lasting], need: u64, out: &[(PageId, u64)], pages: &Pages) -> bool {
        let Some(from) = pages[unit].tier() else { return false };
        let freed: u64 = out.iter().map(|(_, weight)| weight).sum();
        let out = Out {
            steps: out.iter().map(|&(_, weight)| (weight, TierId::FAST, TierId::FAST.below())).collect(),
            pages: out.iter().flat_map(|&(other, weight)| self.lasting(other, weight, pages)).collect(),
            share: need as f64 / freed.max(need).max(1) as f64,
        };
        self.worth_of.exchange_pays(f64::from(COUNT), brings, (brings.len() as u64, from, TierId::FAST), &out)
    }

    fn newborn(&self) -> u16 {
        self.worth
    }

    fn on_scan(&mut self, scan: &ScanBatch<'_>, pages: &mut Pages) {
        let block = scan.first.block();
        let Some(info) = pages.block(block).copied() else { return };
        self.refile(block, pages);
        if info.huge {
            self.follow(block.first_page(), HUGE, pages);
            return;
        }
        if scan.window.is_some() {
            *self.small.entry(block).or_default() += scan.ptes.iter().filter(|pte| pte.accessed()).count();
        }
        for (page, pte) in (0..scan.ptes.len() as u32).map(|offset| scan.first.plus(offset)).zip(scan.ptes) {
            if scan.window.is_some() && pte.accessed() {
                let before = self.heat(page, pages);
                self.again.find(bin_of(before.saturating_mul(2)), self.worth);
                let heat = before.saturating_add(self.worth);
                self.begin(page, before);
                self.file(page, heat, 1, pages);
            } else {
                self.follow(page, 1, pages);
            }
        }
    }

    /// A unit's place is kept up to date; one that is new is filed.
    fn follow(&mut self, unit: PageId, weight: u64, pages: &mut Pages) {
        let side = pages[unit].tier().map(side_of);
        let filed = self.lists.side(unit);
        if side != filed {
            let heat = if filed.is_some() {
                self.heat(unit, pages)
            } else {
                self.born_huge = weight == HUGE;
                self.begin(unit, 0);
                self.newborn()
            };
            self.file(unit, heat, weight, pages);
        }
    }

    fn on_count(&mut self, page: PageId, accesses: u32, pages: &mut Pages) {
        let heat = heat_of(u64::from(accesses));
        self.refile(page.block(), pages);
        if !pages.block(page.block()).is_some_and(|block| block.huge) {
            let before = self.heat(page, pages);
            self.begin(page, before);
            self.file(page, before.saturating_add(heat), 1, pages);
            return;
        }
        let walked = match self.walked.entry(page.block()) {
            std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::btree_map::Entry::Vacant(entry) => {
                // The counters were halved; what was above zero then and is not now is not reported.
                for page in pages.run_mut(page.block().first_page(), BLOCK_PAGES as usize) {
                    let counted = page.heat > 0;
                    set_bit(page, USED, counted && page.policy_bits() & USED != 0);
                    page.heat >>= 1;
                }
                entry.insert(Walked::default())
            }
        };
        walked.sum += u64::from(accesses);
        walked.squares += u128::from(accesses) * u128::from(accesses);
        let piece = &mut pages[page];
        let begins = piece.heat == 0;
        let (before, now) = (piece.policy_bits() & USED != 0, heat > piece.heat || heat == u16::MAX);
        walked.lasting += u64::from(before && now && bin_of(heat) >= self.hot_bin);
        set_bit(piece, USED, now);
        // A counter halves to whole numbers, the heat more finely: it is never less.
        piece.heat = piece.heat.max(heat);
        let side = side_of(piece.tier().unwrap_or(TierId::FAST)) as usize;
        self.pieces[side][bin_of(heat) as usize] += 1;
        self.piece_heat[side][bin_of(heat) as usize] += u64::from(heat);
        if begins {
            self.begin(page, 0);
        }
        self.counted.0 += 1;
        self.counted.1 += u64::from(accesses);
    }

    /// Pages of a side that are units by themselves, by bin.
    fn singles(&self, side: Side, bin: u32, pages: &Pages) -> u64 {
        pages.spaces().map(|space| self.lists.singles(space, side, bin)).sum()
    }

    /// Pages at least this hot fill fast memory and no more: the pieces of huge pages one by one, which these are listed by their mean;
    /// and the same of units as they are mapped now.
    fn set_threshold(&mut self, limit: u64, pages: &Pages) {
        let (mut sum, mut units) = (0, 0);
        (self.hot_bin, self.full_bin) = (1, 0);
        for bin in (1..=TOP_BIN).rev() {
            if sum <= limit {
                let of = |side| self.pieces[side as usize][bin as usize] + self.singles(side, bin, pages);
                sum += [Side::Fast, Side::Slow].map(of).iter().sum::<u64>();
                if sum > limit {
                    self.hot_bin = (bin + 1).min(TOP_BIN);
                }
            }
            let listed = |space| [Side::Fast, Side::Slow].map(|side| self.lists.pages(space, side, bin));
            units += pages.spaces().flat_map(listed).sum::<u64>();
            if units > limit && self.full_bin == 0 {
                self.full_bin = bin;
            }
        }
    }

    /// How many pages of a side have which heat, those of a bin as their mean, where that is known, or as the bin's middle.
    fn heats(&self, side: Side, pages: &Pages) -> Heats {
        let pieces = self.piece_heat[side as usize].iter().zip(&self.pieces[side as usize]);
        let pieces = pieces.filter(|(_, count)| **count > 0).map(|(heat, &count)| (*heat as f64 / count as f64, count));
        let small = (1..=TOP_BIN).map(|bin| (middle(bin), self.singles(side, bin, pages)));
        pieces.chain(small).collect()
    }

    fn hot_pieces(&self, block: BlockId, pages: &Pages) -> u64 {
        pages.block_pages(block).iter().filter(|page| bin_of(page.heat) >= self.hot_bin).count() as u64
    }

    /// Huge pages to split: few of their pieces are hot. Slow ones first, by what their hot pieces would gain; fast ones free the
    /// memory that takes. Returns them, and those of which the next walk will tell: neither is to move as a whole now.
    fn request_splits(&mut self, pages: &Pages, requests: &mut MoveRequests) -> BTreeSet<BlockId> {
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
            let earns = middle(self.full_bin);
            if self.weigh
                && let Some(tier) = page.tier()
                && !self.worth_of.split_pays(f64::from(COUNT), &self.pieces_of(block, pages), earns, tier)
            {
                self.refused[1] += 1;
                continue;
            }
            waiting.insert(block);
            if 2 * walked.lasting >= hot {
                skewed.push((walked.sum / hot, block));
            }
        }
        skewed.sort_unstable_by(|a, b| b.cmp(a));
        // The first tells what translations of 4 KiB wait here; by that the others are weighed.
        let probes = self.weigh && self.worth_of.is_known() && !self.worth_of.has_seen_small();
        skewed.truncate(if probes { 1 } else { self.splits }.min(requests.left()));
        for (_, block) in &skewed {
            self.split_requests += 1;
            requests.push(block.first_page(), Action::Split, Reason::PageSize);
        }
        waiting
    }

    /// Blocks of 4 KiB pages that are hot in most of their pieces, all of them fast, are mapped huge again.
    fn request_collapses(&mut self, pages: &Pages, requests: &mut MoveRequests) {
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
            if !all_fast || used < least || left == 0 || requests.left() == 0 {
                continue;
            }
            let hot = (0..BLOCK_PAGES).filter(|offset| self.lists.bin(first.plus(*offset)) >= self.hot_bin).count();
            if hot >= least.max(1) {
                let pieces: Vec<Lasting> =
                    (0..BLOCK_PAGES).flat_map(|at| self.lasting(first.plus(at), 1, pages)).collect();
                if self.weigh && !self.worth_of.collapse_pays(f64::from(COUNT), &pieces) {
                    self.refused[2] += 1;
                    continue;
                }
                left -= 1;
                self.collapse_requests += 1;
                requests.push(first, Action::Collapse, Reason::PageSize);
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
    fn request_moves(
        &mut self,
        capacity: &CapacityView<'_>,
        splitting: &BTreeSet<BlockId>,
        pages: &Pages,
        requests: &mut MoveRequests,
    ) {
        let limit = support::fast_limit(capacity);
        let reserve = (limit as f64 * self.reserve) as u64;
        // Less than a huge page serves none that is born, and would cost a whole one of fast memory.
        let reserve = if self.born_huge { reserve / HUGE * HUGE } else { reserve };
        let target = limit.saturating_sub(reserve);
        let mut used = capacity.tiers[0].used;
        let mut victims = Victims::new(&self.lists, self.floors(target, pages), splitting, pages);
        // What is over the limit goes first, whatever comes in.
        while used > target {
            let Some((unit, weight)) = victims.next(TOP_BIN + 1, None) else { break };
            let reason = if self.lists.bin(unit) == 0 { Reason::Cold } else { Reason::OverLimit };
            if !requests.move_to(unit, TierId::FAST.below(), reason) {
                break;
            }
            used -= weight.min(used);
        }
        let mut refused = 0;
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
                    // What others owe a space by its floor is promised, whatever it is worth.
                    let weigh = self.weigh && !(need > 0 && victims.is_poor(space, weight));
                    let brings = if weigh { self.lasting(unit, weight, pages) } else { Vec::new() };
                    if weigh && !self.is_worth(unit, &brings, 0, &[], pages) {
                        refused += 1;
                        continue;
                    }
                    let Some(out) = victims.room_for(space, weight, need, below) else { continue };
                    if weigh && !self.is_worth(unit, &brings, need, &out, pages) {
                        refused += 1;
                        victims.give_back(out);
                        continue;
                    }
                    if requests.left() <= out.len() {
                        break 'hottest;
                    }
                    for (other, freed) in out {
                        let cold = self.lists.bin(other) == 0;
                        requests.move_to(
                            other,
                            TierId::FAST.below(),
                            if cold { Reason::Cold } else { Reason::MakeRoom },
                        );
                        used = used.saturating_sub(freed);
                    }
                    used += weight;
                    victims.came(space, weight);
                    requests.move_to(unit, TierId::FAST, Reason::Hot);
                }
            }
        }
        let (searched, kept) = victims.counts();
        self.searched += searched;
        self.floor_kept += kept;
        self.refused[0] += refused;
    }
}

impl HotnessWalk {
    fn unmapping(&mut self, space: SpaceId, range: Range<Vpn>, pages: &Pages) {
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

    fn scan_done(&mut self, now: Time, pages: &mut Pages) {
        self.walks += 1;
        self.halved = false;
        if let Some(counts) = self.counts.take() {
            let bits = self.small.values().map(|used| *used as u64).sum();
            let heats = [Side::Fast, Side::Slow].map(|side| self.heats(side, pages));
            self.worth_of.learn(&counts, bits, &heats);
        }
        // A huge page is filed under the mean of its pieces: what a page of fast memory spent on it would serve.
        let walked: Vec<(BlockId, u64)> = self.walked.iter().map(|(block, walked)| (*block, walked.sum)).collect();
        for (block, sum) in walked {
            let mean = u16::try_from((sum * u64::from(COUNT)).div_ceil(HUGE)).unwrap_or(u16::MAX);
            if Self::is_filed_huge(block, pages) {
                self.file(block.first_page(), mean, HUGE, pages);
            }
        }
        self.again.end();
        if let Some(counts) = self.worth_of.counts_a_bit() {
            self.worth = (counts * f64::from(COUNT)).clamp(1.0, f64::from(u16::MAX)) as u16;
        } else if let Some(worth) = (self.counted.1 * u64::from(COUNT)).checked_div(self.counted.0) {
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
}

impl Policy for HotnessWalk {
    fn profile(&self) -> Profile {
        Profile::new(INFO.name, Needs { scans: true, counters: true, ..Needs::default() }).splitting(true)
    }

    fn configure(&mut self, setup: Setup) {
        if let Some(prices) = setup.prices {
            self.worth_of.set_prices(&prices);
        }
    }

    fn remap(&mut self, _now: Time, change: Remap<'_>, pages: &mut Pages) {
        match change {
            Remap::Mapped(_) => {
                self.lists.fit(pages.capacity());
                self.since.fit(pages);
            }
            Remap::Unmapping(space, range) => self.unmapping(space, range, pages),
        }
    }

    fn observe(&mut self, _now: Time, seen: Observations<'_>, pages: &mut Pages) {
        match seen {
            Observations::Scan(scan) => self.on_scan(&scan, pages),
            Observations::Events(events) => {
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

    fn feedback(&mut self, now: Time, feedback: Feedback<'_>, pages: &mut Pages) {
        match feedback {
            Feedback::ScanDone(_) => self.scan_done(now, pages),
            Feedback::Moved(done) => self.outcome(now, done, pages),
            Feedback::Processor(counts) => {
                self.counts = Some(*counts);
            }
            _ => {}
        }
    }

    fn plan(&mut self, _now: Time, capacity: &CapacityView<'_>, pages: &mut Pages, requests: &mut MoveRequests) {
        let after_walk = self.counted.0 > 0 || !self.small.is_empty();
        let limit = support::fast_limit(capacity);
        if after_walk {
            self.set_threshold(limit, pages);
        }
        self.soon = None;
        // Splitting pays only where fast memory is short.
        let short = after_walk && self.split && capacity.footprint > limit;
        let splitting = if short { self.request_splits(pages, requests) } else { BTreeSet::new() };
        self.request_moves(capacity, &splitting, pages, requests);
        if after_walk {
            if self.collapse {
                self.request_collapses(pages, requests);
            }
            self.walked.clear();
            self.small.clear();
            self.pieces = [[0; BINS]; 2];
            self.piece_heat = [[0; BINS]; 2];
            self.counted = (0, 0);
            self.again.begin();
            for bin in 1..=TOP_BIN {
                let listed = [Side::Fast, Side::Slow].map(|side| self.singles(side, bin, pages));
                self.again.ask(bin, listed.iter().sum());
            }
            // Reading is over: what comes until the next walk is half as much worth then.
            self.lists.halve();
            self.halved = true;
        }
    }

    fn schedule(&self) -> Schedule {
        Schedule {
            cadence: Cadence { scan_at: Some(self.next_walk), share: 1.0, ..Cadence::default() },
            wake_at: self.soon,
        }
    }

    fn report(&self) -> PolicyReport {
        let metric = |name, value: f64| Metric { name, value };
        PolicyReport {
            memory_bytes: self.lists.memory_bytes() + size_of_val(&self.since[..]),
            metrics: vec![
                metric("walks", self.walks as f64),
                metric("hot_threshold_bin", f64::from(self.hot_bin)),
                metric("accessed_bit_worth", f64::from(self.worth)),
                metric("splits_requested", self.split_requests as f64),
                metric("collapses_requested", self.collapse_requests as f64),
                metric("weighed", f64::from(u8::from(self.weigh && self.worth_of.is_known()))),
                metric("misses_by_reuse", self.worth_of.reused()),
                metric("moves_not_worth_it", self.refused[0] as f64),
                metric("splits_not_worth_it", self.refused[1] as f64),
                metric("collapses_not_worth_it", self.refused[2] as f64),
                metric("victims_kept_by_floor", self.floor_kept as f64),
                metric("candidate_search_operations", self.searched as f64),
            ],
        }
    }
}
