//! Choosing the best n of many pages in two passes and without a sort of all of them.
//!
//! In: a rank for every candidate, a small number, 0 best. Out: a [`Cut`] that lets exactly the wanted number through.
//! Must not: hold a list as long as the memory; the caller's list stays as short as what it wants.

/// How many pages have each rank: the first pass.
#[derive(Clone, Debug)]
pub struct Tally {
    by_rank: Vec<u64>,
}

impl Tally {
    /// An empty tally of ranks 0 to `ranks - 1`.
    pub fn new(ranks: usize) -> Tally {
        Tally { by_rank: vec![0; ranks] }
    }

    /// Counts `pages` candidates of a rank.
    pub fn add(&mut self, rank: usize, pages: u64) {
        self.by_rank[rank] += pages;
    }

    /// Candidates counted.
    pub fn total(&self) -> u64 {
        self.by_rank.iter().sum()
    }

    /// Candidates by rank.
    pub fn as_slice(&self) -> &[u64] {
        &self.by_rank
    }

    /// The cut that lets the `wanted` best through.
    pub fn cut(&self, wanted: u64) -> Cut {
        let mut better = 0;
        for (rank, pages) in self.by_rank.iter().enumerate() {
            if better + pages >= wanted {
                return Cut { rank, of_last: wanted - better };
            }
            better += pages;
        }
        Cut { rank: self.by_rank.len(), of_last: 0 }
    }
}

/// Asked for every candidate again, in any order: the second pass.
#[derive(Clone, Debug)]
pub struct Cut {
    rank: usize,
    of_last: u64,
}

impl Cut {
    /// Whether a candidate of `pages` pages is among the wanted: all ranks better than the last one are, and of the last as
    /// many as are missing. A huge page that is only partly wanted is taken whole.
    pub fn take(&mut self, rank: usize, pages: u64) -> bool {
        if rank == self.rank && self.of_last > 0 {
            self.of_last = self.of_last.saturating_sub(pages);
            return true;
        }
        rank < self.rank
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exactly_the_wanted_number_passes_and_none_is_worse_than_one_left_out() {
        let ranks: Vec<usize> = (0..1000).map(|n| n * 7919 % 64).collect();
        for wanted in [0, 1, 15, 16, 500, 999, 1000, 2000] {
            let mut tally = Tally::new(64);
            ranks.iter().for_each(|&rank| tally.add(rank, 1));
            let mut cut = tally.cut(wanted);
            let (taken, left): (Vec<usize>, Vec<usize>) = ranks.iter().partition(|&&rank| cut.take(rank, 1));
            assert_eq!(taken.len() as u64, wanted.min(1000));
            assert!(taken.iter().max() <= left.iter().min() || left.is_empty() || taken.is_empty());
        }
    }
}
