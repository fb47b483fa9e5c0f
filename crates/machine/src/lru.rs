//! Active and inactive lists of anonymous and file pages, by tier, as reclaim keeps them.
//!
//! In: units (a page, or the first page of a huge block) that enter, leave and change lists. Out: list ends, and lengths
//! in pages. Must not: decide what is reclaimed.
//!
//! Links are page numbers in two dense arrays: eight bytes a page, every change in constant time.

use terrace_core::units::TierId;

const END: u32 = u32::MAX;

/// Which of a tier's lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum List {
    /// Anonymous pages not used lately.
    InactiveAnon = 0,
    /// Anonymous pages in use.
    ActiveAnon = 1,
    /// File pages not used lately.
    InactiveFile = 2,
    /// File pages in use.
    ActiveFile = 3,
}

impl List {
    /// The list of a page that is active or not, of a file or not.
    pub const fn of(active: bool, file: bool) -> List {
        match (active, file) {
            (false, false) => List::InactiveAnon,
            (true, false) => List::ActiveAnon,
            (false, true) => List::InactiveFile,
            (true, true) => List::ActiveFile,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Ends {
    head: u32,
    tail: u32,
    pages: u64,
}

/// The lists of all tiers.
#[derive(Clone, Debug)]
pub struct Lists {
    next: Vec<u32>,
    previous: Vec<u32>,
    ends: Vec<[Ends; 4]>,
}

impl Lists {
    /// Empty lists for `tiers` tiers.
    pub fn new(tiers: usize) -> Lists {
        let empty = Ends { head: END, tail: END, pages: 0 };
        Lists { next: Vec::new(), previous: Vec::new(), ends: vec![[empty; 4]; tiers] }
    }

    /// Makes room for page numbers below `pages`.
    pub fn grow(&mut self, pages: usize) {
        if self.next.len() < pages {
            self.next.resize(pages, END);
            self.previous.resize(pages, END);
        }
    }

    /// Pages on a list; a huge block counts 512.
    pub fn pages(&self, tier: TierId, list: List) -> u64 {
        self.ends[tier.index()][list as usize].pages
    }

    /// Puts a unit of `weight` pages at the head: the end of what was used last.
    pub fn push(&mut self, tier: TierId, list: List, unit: u32, weight: u64) {
        let ends = &mut self.ends[tier.index()][list as usize];
        let old = ends.head;
        self.previous[unit as usize] = END;
        self.next[unit as usize] = old;
        ends.head = unit;
        ends.pages += weight;
        if old == END {
            ends.tail = unit;
        } else {
            self.previous[old as usize] = unit;
        }
    }

    /// Takes a unit of `weight` pages off the list it is on.
    pub fn remove(&mut self, tier: TierId, list: List, unit: u32, weight: u64) {
        let ends = &mut self.ends[tier.index()][list as usize];
        let (before, after) = (self.previous[unit as usize], self.next[unit as usize]);
        if before == END {
            ends.head = after;
        } else {
            self.next[before as usize] = after;
        }
        if after == END {
            ends.tail = before;
        } else {
            self.previous[after as usize] = before;
        }
        ends.pages -= weight;
    }

    /// The unit at the tail: the one not used for longest.
    pub fn tail(&self, tier: TierId, list: List) -> Option<u32> {
        let tail = self.ends[tier.index()][list as usize].tail;
        (tail != END).then_some(tail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: List = List::InactiveAnon;
    const TIER: TierId = TierId(0);

    #[test]
    fn units_leave_in_the_order_they_came_unless_taken_out() {
        let mut lists = Lists::new(1);
        lists.grow(10);
        for unit in 0..5 {
            lists.push(TIER, LIST, unit, 1);
        }
        lists.remove(TIER, LIST, 0, 1);
        lists.remove(TIER, LIST, 2, 1);
        lists.remove(TIER, LIST, 4, 1);
        lists.push(TIER, List::ActiveAnon, 4, 512);
        let mut order = Vec::new();
        while let Some(unit) = lists.tail(TIER, LIST) {
            lists.remove(TIER, LIST, unit, 1);
            order.push(unit);
        }
        assert_eq!(order, [1, 3]);
        assert_eq!((lists.pages(TIER, LIST), lists.pages(TIER, List::ActiveAnon)), (0, 512));
    }
}
