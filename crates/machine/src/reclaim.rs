//! Reclaim as the kernel does it: watermarks, ageing of the lists, and the next page that should leave a tier.
//!
//! In: pages that enter and leave memory, and how full the tiers are. Out: where a new page may go, whether reclaim
//! must run, and one victim after another. Must not: move pages; the driver does, at a cost, and tells.
//!
//! Watermarks and ratios are those of [`terrace_core::reclaim`]. An allocation takes the first zone above its low mark, wakes reclaim where
//! none is, and then goes down to min. Anonymous pages start on the inactive list; a page found referenced there is kept once, and activated
//! the second time; inactive lists are refilled from active tails when they are the smaller part.

use terrace_core::policy::Kernel;
use terrace_core::reclaim::{Watermarks, inactive_is_low, piece};
use terrace_core::units::{Bytes, TierId};

use crate::lru::{List, Lists};
use crate::memory::{Memory, PageWord};
use crate::scale::Scale;

/// Units examined, and the results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReclaimCounts {
    /// Units examined: the work of reclaim.
    pub scanned: u64,
    /// Units that moved from inactive to active because they were used twice.
    pub activated: u64,
    /// Units that moved from active to inactive.
    pub deactivated: u64,
}

/// Reclaim's state for all tiers.
#[derive(Clone, Debug)]
pub struct Reclaim {
    lists: Lists,
    scale: Scale,
    /// Whether a small page stands for huge ones of the full size.
    folded: bool,
    marks: Vec<Watermarks>,
    /// The marks without anything withheld.
    base: Vec<Watermarks>,
    awake: Vec<bool>,
    /// Which kind of page has been scanned less than its share: anonymous positive.
    balance: Vec<f64>,
    /// Work done so far.
    pub counts: ReclaimCounts,
}

/// Units one refill takes from the active list (SWAP_CLUSTER_MAX).
const CLUSTER: usize = 32;
/// vm.swappiness 60: the share of scanning that goes to anonymous pages is 60 of 200, by size.
const ANON_WEIGHT: f64 = 60.0;
const FILE_WEIGHT: f64 = 140.0;

impl Reclaim {
    /// Reclaim for these tiers; `folded`: whether a small page stands for huge ones of the full size.
    pub fn new(capacity: &[u64], scale: Scale, folded: bool, kernel: &Kernel) -> Reclaim {
        let lower = Kernel { demote_scale: 0, promotion_room: Bytes::ZERO, promotion_gap: false, ..*kernel };
        let marks: Vec<Watermarks> = capacity
            .iter()
            .enumerate()
            .map(|(tier, &pages)| Watermarks::new(pages, scale.factor(), if tier == 0 { kernel } else { &lower }))
            .collect();
        Reclaim {
            lists: Lists::new(capacity.len()),
            scale,
            folded,
            base: marks.clone(),
            marks,
            awake: vec![false; capacity.len()],
            balance: vec![0.0; capacity.len()],
            counts: ReclaimCounts::default(),
        }
    }

    /// Makes room for page numbers below `pages`.
    pub fn grow(&mut self, pages: usize) {
        self.lists.grow(pages);
    }

    /// A tier's watermarks.
    pub fn marks(&self, tier: TierId) -> &Watermarks {
        &self.marks[tier.index()]
    }

    /// Pages of a tier that reclaim keeps free when nothing is withheld.
    pub fn kept_free(&self, tier: TierId) -> u64 {
        self.base[tier.index()].goal.ceil() as u64
    }

    /// Keeps `pages` of a tier free for good. Source: Tuna, section 4: reclaim wakes below this many free pages and restores
    /// them (low and high watermark), and eight tenths of them are never given out (min). New and promoted pages may go down
    /// to that: with all marks at one height no promotion would ever find room, and TPP, which the paper has beneath, holds
    /// allocation apart from reclaim. No mark falls below the tier's own. Returns what is never given out.
    pub fn withhold(&mut self, tier: TierId, pages: u64) -> u64 {
        let base = self.base[tier.index()];
        let min = (pages as f64 * 0.8).floor();
        self.marks[tier.index()] = Watermarks {
            min: base.min.max(min),
            low: base.low.max(min),
            high: base.high.max(min),
            goal: base.goal.max(pages as f64),
            wake: base.wake.max(pages as f64),
        };
        self.awake[tier.index()] = true;
        min as u64
    }

    /// Pages on a tier's list.
    pub fn list_pages(&self, tier: TierId, list: List) -> u64 {
        self.lists.pages(tier, list)
    }

    /// The tier for a new unit of `weight` pages, the first from `from` down that the watermarks allow; wakes reclaim
    /// on the way. `None` when every tier is at its min mark: direct reclaim.
    pub fn allocate(&mut self, memory: &Memory, from: TierId, weight: u64) -> Option<TierId> {
        let tiers = || (from.0..memory.tiers() as u8).map(TierId).filter(|tier| !memory.is_compressed(*tier));
        let piece = self.piece(weight);
        for tier in tiers() {
            let marks = &self.marks[tier.index()];
            let free = memory.free(tier);
            if !Watermarks::leaves(marks.wake, free, piece) {
                self.awake[tier.index()] = true;
            }
            if free >= weight && Watermarks::leaves(marks.low, free, piece) {
                return Some(tier);
            }
        }
        tiers().find(|tier| {
            let free = memory.free(*tier);
            free >= weight && Watermarks::leaves(self.marks[tier.index()].min, free, piece)
        })
    }

    /// The amount taken at a time from a unit of `weight` pages.
    fn piece(&self, weight: u64) -> f64 {
        piece(weight, self.scale.factor(), self.folded)
    }

    /// Whether a unit of `weight` pages may be promoted into `tier`. Wakes reclaim if not, and where the promotion leaves less
    /// than the wake mark: the page it goes to is an allocation like any other.
    pub fn may_promote(&mut self, memory: &Memory, tier: TierId, weight: u64) -> bool {
        let (marks, free, piece) = (&self.marks[tier.index()], memory.free(tier), self.piece(weight));
        let fits = free >= weight && free as f64 > marks.high + piece;
        self.awake[tier.index()] |= !fits || !Watermarks::leaves(marks.wake, free, piece);
        fits
    }

    /// Whether reclaim of a tier has work: it was woken and has not reached its goal.
    pub fn has_work(&mut self, memory: &Memory, tier: TierId) -> bool {
        let awake = &mut self.awake[tier.index()];
        *awake &= (memory.free(tier) as f64) < self.marks[tier.index()].goal;
        *awake
    }

    /// Puts a tier's reclaim to sleep: nothing there could be moved.
    pub fn sleep(&mut self, tier: TierId) {
        self.awake[tier.index()] = false;
    }

    /// A unit received memory: it enters the inactive list of its tier.
    pub fn born(&mut self, memory: &mut Memory, unit: u32) {
        self.insert(memory, unit, false);
    }

    /// A unit moved here from another tier: it keeps its activity.
    pub fn arrived(&mut self, memory: &mut Memory, unit: u32) {
        let active = memory.word(unit).has(PageWord::ACTIVE);
        self.insert(memory, unit, active);
    }

    /// A unit is about to leave its tier, or memory altogether.
    pub fn leaving(&mut self, memory: &Memory, unit: u32) {
        let word = memory.word(unit);
        if let Some(tier) = word.tier() {
            self.lists.remove(tier, list_of(word), unit, weight(memory, unit));
        }
    }

    /// A hint fault counts as a use: once referenced, the second time activated. Returns whether the unit is active now.
    pub fn touched(&mut self, memory: &mut Memory, unit: u32) -> bool {
        let word = memory.word(unit);
        if word.has(PageWord::ACTIVE) {
            return true;
        }
        if word.has(PageWord::REFERENCED) {
            self.leaving(memory, unit);
            memory.clear(unit, PageWord::REFERENCED);
            self.insert(memory, unit, true);
            self.counts.activated += 1;
            return true;
        }
        memory.set(unit, PageWord::REFERENCED);
        false
    }

    /// The next unit that should leave `tier`, after ageing at most `scan` units; it is still on its list.
    pub fn next_victim(&mut self, memory: &mut Memory, tier: TierId, scan: u64) -> Option<u32> {
        for _ in 0..scan {
            let file = self.next_kind(tier)?;
            self.refill(memory, tier, file);
            let unit = self.lists.tail(tier, List::of(false, file))?;
            self.counts.scanned += 1;
            let referenced = memory.word(unit).has(PageWord::REFERENCED);
            if !memory.take_accessed(memory.unit(unit)) {
                return Some(unit);
            }
            self.leaving(memory, unit);
            if referenced {
                memory.clear(unit, PageWord::REFERENCED);
                self.counts.activated += 1;
            } else {
                memory.set(unit, PageWord::REFERENCED);
            }
            self.insert(memory, unit, referenced);
        }
        None
    }

    /// Whether file pages are next, in proportion to the lists' sizes and swappiness; `None` when all lists are empty.
    fn next_kind(&mut self, tier: TierId) -> Option<bool> {
        let pages = |list| self.lists.pages(tier, list) as f64;
        let anon = (pages(List::InactiveAnon) + pages(List::ActiveAnon)) * ANON_WEIGHT;
        let file = (pages(List::InactiveFile) + pages(List::ActiveFile)) * FILE_WEIGHT;
        if anon + file == 0.0 {
            return None;
        }
        let balance = &mut self.balance[tier.index()];
        *balance += anon / (anon + file);
        // Half a unit of credit either way rounds to the nearest share.
        if file == 0.0 || (anon > 0.0 && *balance >= 0.5) {
            *balance -= 1.0;
            Some(false)
        } else {
            Some(true)
        }
    }

    /// Moves a cluster from the active tail to the inactive head where the inactive list is too small.
    fn refill(&mut self, memory: &mut Memory, tier: TierId, file: bool) {
        let inactive = self.lists.pages(tier, List::of(false, file));
        let active = self.lists.pages(tier, List::of(true, file));
        if !inactive_is_low(inactive, active, self.scale.factor()) {
            return;
        }
        for _ in 0..CLUSTER {
            let Some(unit) = self.lists.tail(tier, List::of(true, file)) else { return };
            self.counts.scanned += 1;
            self.counts.deactivated += 1;
            memory.take_accessed(memory.unit(unit));
            self.leaving(memory, unit);
            self.insert(memory, unit, false);
        }
    }

    fn insert(&mut self, memory: &mut Memory, unit: u32, active: bool) {
        if active {
            memory.set(unit, PageWord::ACTIVE);
        } else {
            memory.clear(unit, PageWord::ACTIVE);
        }
        let word = memory.word(unit);
        if let Some(tier) = word.tier() {
            self.lists.push(tier, list_of(word), unit, weight(memory, unit));
        }
    }
}

fn list_of(word: PageWord) -> List {
    List::of(word.has(PageWord::ACTIVE), word.has(PageWord::FILE))
}

fn weight(memory: &Memory, unit: u32) -> u64 {
    memory.unit(unit).len() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAST: TierId = TierId(0);
    const SLOW: TierId = TierId(1);

    fn setup(fast: u64, slow: u64, kernel: &Kernel) -> (Memory, Reclaim) {
        let capacity = vec![fast, slow];
        let mut memory = Memory::new(capacity.clone(), vec![false, false]);
        let mut reclaim = Reclaim::new(&capacity, Scale::FULL, false, kernel);
        memory.grow((fast + slow) as usize);
        reclaim.grow(memory.len());
        (memory, reclaim)
    }

    fn fill(memory: &mut Memory, reclaim: &mut Reclaim, pages: u32) -> u64 {
        (0..pages)
            .filter(|&page| {
                let Some(tier) = reclaim.allocate(memory, FAST, 1) else { return false };
                memory.place(page, tier);
                reclaim.born(memory, page);
                tier == FAST
            })
            .count() as u64
    }

    #[test]
    fn a_full_fast_tier_spills_at_its_low_mark_and_refuses_promotion_at_its_high_mark() {
        let (mut memory, mut reclaim) = setup(100_000, 400_000, &Kernel::default());
        let fast = fill(&mut memory, &mut reclaim, 200_000);
        let marks = *reclaim.marks(FAST);
        assert_eq!(fast as f64, 100_000.0 - marks.low, "allocation stops at the low mark");
        assert!(!reclaim.may_promote(&memory, FAST, 1), "AutoNUMA's promotions fail here, and nothing makes room");
        assert_eq!(memory.used(SLOW), 200_000 - fast);
    }

    #[test]
    fn a_promotion_that_leaves_less_than_the_wake_mark_wakes_reclaim_before_any_fails() {
        let kernel = Kernel { demotion: true, demote_scale: 200, ..Kernel::default() };
        let (mut memory, mut reclaim) = setup(100_000, 100_000, &kernel);
        let marks = *reclaim.marks(FAST);
        assert!(marks.high + 100.0 < marks.wake);
        let pages = 100_000 - marks.wake as u32;
        (0..pages).for_each(|page| assert!(memory.place(page, FAST)));
        assert!(!reclaim.has_work(&memory, FAST), "nothing asked for room yet");
        assert!(reclaim.may_promote(&memory, FAST, 1), "it fits, far above the high mark");
        assert!(memory.place(pages, FAST));
        assert!(reclaim.has_work(&memory, FAST));
    }

    #[test]
    fn reclaim_takes_unused_pages_first_and_keeps_what_is_used_twice() {
        let kernel = Kernel { demotion: true, ..Kernel::default() };
        let (mut memory, mut reclaim) = setup(20_000, 40_000, &kernel);
        let fast = fill(&mut memory, &mut reclaim, 30_000) as u32;
        assert!(reclaim.has_work(&memory, FAST));
        let mut demoted = Vec::new();
        while reclaim.has_work(&memory, FAST) {
            // The first thousand pages are in constant use.
            for page in 0..1000 {
                memory.set(page, PageWord::ACCESSED);
            }
            let victim = reclaim.next_victim(&mut memory, FAST, 100_000).expect("most pages are idle");
            reclaim.leaving(&memory, victim);
            assert!(memory.move_to(victim, SLOW));
            reclaim.arrived(&mut memory, victim);
            demoted.push(victim);
        }
        assert!(memory.free(FAST) as f64 >= reclaim.marks(FAST).goal);
        assert!(demoted.iter().all(|&page| (1000..fast).contains(&page)), "no page in use left");
        assert!(demoted.windows(2).all(|pair| pair[0] < pair[1]), "oldest first");
        let listed: u64 =
            [List::InactiveAnon, List::ActiveAnon].map(|list| reclaim.list_pages(FAST, list)).iter().sum();
        assert_eq!(listed, memory.used(FAST), "every page is on exactly one list");
    }

    #[test]
    fn two_touches_activate() {
        let (mut memory, mut reclaim) = setup(1000, 1000, &Kernel::default());
        memory.place(5, SLOW);
        reclaim.born(&mut memory, 5);
        assert!(!reclaim.touched(&mut memory, 5));
        assert!(reclaim.touched(&mut memory, 5));
        assert_eq!((reclaim.list_pages(SLOW, List::ActiveAnon), reclaim.list_pages(SLOW, List::InactiveAnon)), (1, 0));
    }

    #[test]
    fn file_and_anonymous_pages_are_scanned_by_size_and_swappiness() {
        let (mut memory, mut reclaim) = setup(20_000, 20_000, &Kernel::default());
        for page in 0..10_000 {
            memory.place(page, FAST);
            if page % 2 == 0 {
                memory.set(page, PageWord::FILE);
            }
            reclaim.born(&mut memory, page);
        }
        let mut files = 0;
        for _ in 0..1000 {
            let victim = reclaim.next_victim(&mut memory, FAST, 100).unwrap();
            files += usize::from(memory.word(victim).has(PageWord::FILE));
            reclaim.leaving(&memory, victim);
            memory.remove(victim);
        }
        assert!((680..=720).contains(&files), "{files} of 1000 with equal lists at swappiness 60");
    }

    #[test]
    fn tiering08_promotes_again_whenever_reclaim_has_reached_its_goal_at_every_scale() {
        let kernel = Kernel { demotion: true, promotion_room: Bytes::mib(10), early_wake: true, ..Kernel::default() };
        let full = Bytes::gib(28).pages();
        for (factor, folded) in [(1, false), (64, false), (1024, true), (4096, true), (4096, false)] {
            let capacity = vec![full / u64::from(factor); 2];
            let mut memory = Memory::new(capacity.clone(), vec![false, false]);
            let mut reclaim = Reclaim::new(&capacity, Scale::new(factor).unwrap(), folded, &kernel);
            memory.grow(capacity[0] as usize);
            let goal = reclaim.marks(FAST).goal.ceil() as u64;
            (0..capacity[0] - goal).for_each(|page| assert!(memory.place(page as u32, FAST)));
            assert!(!reclaim.has_work(&memory, FAST), "1:{factor}: nothing to do at the goal");
            assert!(reclaim.may_promote(&memory, FAST, 1), "1:{factor}: {:?}", reclaim.marks(FAST));
        }
    }

    #[test]
    fn inactive_lists_of_a_smaller_machine_are_as_short_as_those_of_full_size() {
        // 80 GiB at full size: the kernel lets the active list be 28 times the inactive one.
        let pages = Bytes::gib(80).pages() / 1024;
        let mut memory = Memory::new(vec![pages, pages], vec![false, false]);
        let mut reclaim = Reclaim::new(&[pages, pages], Scale::new(1024).unwrap(), true, &Kernel::default());
        memory.grow(pages as usize);
        reclaim.grow(memory.len());
        for page in 0..pages as u32 {
            memory.place(page, FAST);
            memory.set(page, PageWord::ACTIVE);
            reclaim.arrived(&mut memory, page);
        }
        for _ in 0..pages {
            reclaim.refill(&mut memory, FAST, false);
        }
        let share = reclaim.list_pages(FAST, List::InactiveAnon) as f64 / pages as f64;
        assert!((share * 29.0 - 1.0).abs() < 0.1, "{share}, one in 29");
    }
}
