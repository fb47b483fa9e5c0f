//! Movers: how a page changes tier.
//!
//! In: pages by address and where they should go. Out: what really happened, read back from the kernel. Must
//! not: choose pages, retry on its own, or count a request as a move.

mod blocks;
pub mod dry_run;
mod failed_writes;
mod low_priority;
pub mod move_pages;
pub mod process_madvise;
mod same_processor;
mod side_by_side;
mod splitter;

use std::collections::BTreeMap;
use std::time::Duration;

use terrace_core::plan::Failure;
use terrace_core::units::{TierId, Vpn};

pub use blocks::Apart;
pub(crate) use blocks::MADV_COLLAPSE;
pub use dry_run::DryRun;
pub use move_pages::MovePages;
pub use process_madvise::ProcessMadvise;
pub use side_by_side::SideBySide;
pub use splitter::{Resize, Splitter, Unsplit};

use crate::process::Process;
use crate::topology::{TierKind, TierMap};

/// Pages of one process to move, in the order they should move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageMove {
    /// The first page.
    pub vpn: Vpn,
    /// Consecutive pages that go together: 1, or 512 for a huge page.
    pub pages: u32,
    /// Where they are.
    pub from: TierId,
    /// Where they should go.
    pub to: TierId,
}

/// What became of one [`PageMove`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MoveResult {
    /// Pages that are now in the wanted tier.
    pub done: u32,
    /// Why the others are not.
    pub failure: Option<Failure>,
}

/// Pages that went to slower memory, by what the kernel unmapped at once. Each unit interrupts the processors that run the program once.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct MoveCounts {
    /// Pages that went one by one.
    pub single: u64,
    /// Of these the ones that went from the processor of the program's only busy thread: they interrupted nobody.
    pub local: u64,
    /// Pages of huge pages that went whole.
    pub huge: u64,
    /// Pages of blocks that were made one huge page first, and went whole.
    pub collapsed: u64,
    /// Of the single pages those that made up whole blocks, by the reason why they were not collapsed.
    pub apart: BTreeMap<Apart, u64>,
    /// Blocks that were split to look inside, and blocks made huge again because that was in vain.
    pub split: u64,
    /// See `split`.
    pub huge_again: u64,
    /// Blocks that were to be split and are whole, by the reason.
    pub unsplit: BTreeMap<Unsplit, u64>,
    /// Wall time of collapsing.
    #[serde(skip)]
    pub collapsing: Duration,
    /// Processor time of splits, and of making huge again.
    #[serde(skip)]
    pub resizing: Duration,
}

impl MoveCounts {
    /// All of them.
    pub fn pages(&self) -> u64 {
        self.single + self.huge + self.collapsed
    }

    /// Adds what another batch took.
    pub fn add(&mut self, other: &MoveCounts) {
        self.single += other.single;
        self.local += other.local;
        self.huge += other.huge;
        self.collapsed += other.collapsed;
        self.collapsing += other.collapsing;
        self.resizing += other.resizing;
        self.split += other.split;
        self.huge_again += other.huge_again;
        for (why, pages) in &other.apart {
            *self.apart.entry(*why).or_default() += pages;
        }
        for (why, blocks) in &other.unsplit {
            *self.unsplit.entry(*why).or_default() += blocks;
        }
    }
}

/// What a batch cost.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MoveCost {
    /// Wall time of the calls, of all threads together.
    pub elapsed: Duration,
    /// The longest single call: an upper bound of how long the target was held up by it.
    pub longest_call: Duration,
    /// System calls made.
    pub calls: u64,
    /// Pages that got a place in swap, could not be written, and were taken back.
    pub unwritten: u64,
    /// Pages whose move interrupts the program, by kind.
    pub counts: MoveCounts,
}

impl MoveCost {
    /// Counts one call that moved pages.
    fn add_call(&mut self, took: Duration) {
        self.elapsed += took;
        self.longest_call = self.longest_call.max(took);
        self.calls += 1;
    }

    /// Adds what another batch cost.
    pub fn add(&mut self, other: &MoveCost) {
        self.elapsed += other.elapsed;
        self.longest_call = self.longest_call.max(other.longest_call);
        self.calls += other.calls;
        self.unwritten += other.unwritten;
        self.counts.add(&other.counts);
    }
}

impl MoveResult {
    /// All pages are where they should be.
    const fn all(pages: u32) -> MoveResult {
        MoveResult { done: pages, failure: None }
    }

    /// None are.
    const fn none(failure: Failure) -> MoveResult {
        MoveResult { done: 0, failure: Some(failure) }
    }
}

/// How large a batch may be so that one call stays within a deadline: doubled while calls are short, cut in
/// proportion as soon as one was too long. The target waits for a lock that the call holds, so the deadline bounds its stall.
#[derive(Clone, Copy, Debug)]
struct BatchSize {
    pages: u32,
    least: u32,
    most: u32,
    deadline: Duration,
}

impl BatchSize {
    fn new(start: u32, least: u32, most: u32, deadline: Duration) -> BatchSize {
        BatchSize { pages: start, least, most, deadline }
    }

    /// Learns from a call that carried `pages` pages.
    fn learn(&mut self, pages: u32, took: Duration) {
        // A batch that was cut short by the end of the work says little about a full one.
        if took < self.deadline && pages < self.pages {
            return;
        }
        let per_page = took.as_secs_f64() / f64::from(pages.max(1));
        // Aim at three quarters: the next call may be dearer than the last.
        let fitting = self.deadline.as_secs_f64() * 0.75 / per_page.max(1e-9);
        let wanted = fitting.min(f64::from(self.pages) * 2.0);
        self.pages = (wanted as u32).clamp(self.least, self.most);
    }
}

/// A way to move pages.
pub trait Mover {
    /// Its name, as reports show it.
    fn name(&self) -> &'static str;

    /// Whether it can carry a page from one tier to another.
    fn can(&self, tiers: &TierMap, from: TierId, to: TierId) -> bool;

    /// Carries out `moves` on one process, pushes one result a move, in order, and says what it cost.
    fn execute(
        &mut self,
        process: &Process,
        moves: &[PageMove],
        tiers: &TierMap,
        results: &mut Vec<MoveResult>,
    ) -> MoveCost;

    /// Splits blocks of one process, or makes them huge again; pushes one result each, in order. One that only says what it would do says so.
    fn resize(&mut self, _process: &Process, wanted: &[(Vpn, Resize)], results: &mut Vec<MoveResult>) -> MoveCost {
        results.extend(wanted.iter().map(|_| MoveResult::none(Failure::DryRun)));
        MoveCost::default()
    }
}

/// How long one call may take, by default: users of the peers ask for the same (katalyst-core, pull request 477).
pub const STALL_DEADLINE: Duration = Duration::from_millis(20);

/// Moves of one direction that are worth a call of their own. Where directions alternate, as in exchanges, as many are sorted by it before they are carried
/// out: a call drains the processors' lists of pages and reads where the target may go, whether it moves one page or hundreds.
const TOGETHER: usize = 512;

/// All movers of this machine as one: each move goes to the first mover that can carry it.
///
/// What leaves goes before what comes, so that there is room for it: order within a direction is kept, order between directions is not.
pub struct Movers {
    movers: Vec<Box<dyn Mover>>,
    /// Splits huge pages, where that is not only planned.
    splitter: Option<Splitter>,
}

impl std::fmt::Debug for Movers {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_list().entries(self.movers.iter().map(|mover| mover.name())).finish()
    }
}

impl Movers {
    /// These movers, the preferred ones first.
    pub fn new(movers: Vec<Box<dyn Mover>>) -> Movers {
        Movers { movers, splitter: None }
    }

    /// The movers that these tiers need: `move_pages` between nodes, `process_madvise` to and from swap.
    pub fn for_tiers(tiers: &TierMap, deadline: Duration) -> Movers {
        let mut movers: Vec<Box<dyn Mover>> = Vec::new();
        if tiers.tiers().iter().filter(|tier| matches!(tier.kind, TierKind::Nodes { .. })).count() > 1 {
            let processors = std::thread::available_parallelism().map_or(1, usize::from);
            movers.push(Box::new(SideBySide::for_processors(processors, deadline)));
        }
        if tiers.swap_tier().is_some() {
            movers.push(Box::new(ProcessMadvise::new(deadline)));
        }
        Movers { movers, splitter: Some(Splitter::new(deadline)) }
    }

    /// A mover that only says what it would do.
    pub fn dry_run() -> Movers {
        Movers::new(vec![Box::new(DryRun)])
    }

    /// One that moves nothing and splits: to look inside of huge pages where no page is to leave.
    pub fn that_only_split(deadline: Duration) -> Movers {
        Movers { splitter: Some(Splitter::new(deadline)), ..Movers::dry_run() }
    }

    /// Their names.
    pub fn names(&self) -> Vec<&'static str> {
        self.movers.iter().map(|mover| mover.name()).collect()
    }

    fn find(&self, tiers: &TierMap, item: &PageMove) -> Option<usize> {
        self.movers.iter().position(|mover| mover.can(tiers, item.from, item.to))
    }
}

impl Mover for Movers {
    fn name(&self) -> &'static str {
        "movers"
    }

    fn can(&self, tiers: &TierMap, from: TierId, to: TierId) -> bool {
        self.movers.iter().any(|mover| mover.can(tiers, from, to))
    }

    fn execute(
        &mut self,
        process: &Process,
        moves: &[PageMove],
        tiers: &TierMap,
        results: &mut Vec<MoveResult>,
    ) -> MoveCost {
        let mut cost = MoveCost::default();
        let direction = |item: &PageMove| (std::cmp::Reverse(item.to), item.from);
        let mut rest = moves;
        while let Some(first) = rest.first() {
            let alike = rest.iter().take_while(|item| direction(item) == direction(first)).count();
            let (now, later) = rest.split_at(alike.max(TOGETHER).min(rest.len()));
            rest = later;
            let mut order: Vec<usize> = (0..now.len()).collect();
            order.sort_by_key(|index| direction(&now[*index]));
            let sorted: Vec<PageMove> = order.iter().map(|index| now[*index]).collect();
            let mut answers = Vec::with_capacity(now.len());
            for run in sorted.chunk_by(|one, next| direction(one) == direction(next)) {
                let before = answers.len();
                match self.find(tiers, &run[0]) {
                    Some(index) => cost.add(&self.movers[index].execute(process, run, tiers, &mut answers)),
                    // Nothing carries pages this way: said plainly, and not held against the page.
                    None => answers.extend(run.iter().map(|_| MoveResult::none(Failure::Errno(libc::EOPNOTSUPP)))),
                }
                debug_assert_eq!(answers.len() - before, run.len(), "one result a move");
            }
            let first = results.len();
            results.resize(first + now.len(), MoveResult::none(Failure::Stayed));
            order.into_iter().zip(answers).for_each(|(index, answer)| results[first + index] = answer);
        }
        cost
    }

    fn resize(&mut self, process: &Process, wanted: &[(Vpn, Resize)], results: &mut Vec<MoveResult>) -> MoveCost {
        match &mut self.splitter {
            Some(splitter) => splitter.resize(process, wanted, results),
            None => DryRun.resize(process, wanted, results),
        }
    }
}

/// What `terrace doctor` says of a mover.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct MoverReport {
    /// Its name.
    pub name: &'static str,
    /// Whether its system call worked on a page of this process just now.
    pub available: bool,
    /// Whether these tiers have a use for it.
    pub useful: bool,
    /// Why not, or what it is for.
    pub reason: String,
}

/// Tries each mover's system call on a page of this process, and says which of them these tiers need.
pub fn survey(tiers: &TierMap) -> Vec<MoverReport> {
    let node_tiers = tiers.tiers().iter().filter(|tier| matches!(tier.kind, TierKind::Nodes { .. })).count();
    let report =
        |name, tried: std::io::Result<()>, useful: bool, purpose: &str, unused: &str, rights: &str| MoverReport {
            name,
            available: tried.is_ok(),
            useful,
            reason: match tried {
                Err(error) if matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES)) => {
                    format!("{error}: {rights}")
                }
                Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => format!("this kernel has no {name}"),
                Err(error) => error.to_string(),
                Ok(()) => (if useful { purpose } else { unused }).to_owned(),
            },
        };
    vec![
        report(
            "move_pages",
            move_pages::try_on_self(),
            node_tiers > 1,
            "moves pages between nodes",
            "works, but there is one tier of nodes only",
            "needs CAP_SYS_NICE",
        ),
        report(
            "process_madvise",
            process_madvise::try_on_self(),
            tiers.swap_tier().is_some(),
            "moves pages to swap and back",
            "works, but no swap is a tier",
            "needs CAP_SYS_PTRACE and CAP_SYS_NICE",
        ),
        MoverReport {
            name: "dry-run",
            available: true,
            useful: true,
            reason: "moves nothing, says what would move".to_owned(),
        },
    ]
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::topology::Tier;
    use terrace_core::units::Bytes;

    pub(crate) fn tier(id: u8, kind: TierKind) -> Tier {
        Tier {
            id: TierId(id),
            name: format!("tier{id}"),
            kind,
            capacity_bytes: Bytes::gib(1),
            read_latency_ns: None,
            read_bandwidth_mbps: None,
        }
    }

    fn two_nodes_and_swap() -> TierMap {
        let swap = TierKind::Swap { device: "/dev/zram9".to_owned(), compressed: true };
        let tiers = vec![
            tier(0, TierKind::Nodes { nodes: vec![0] }),
            tier(1, TierKind::Nodes { nodes: vec![1] }),
            tier(2, swap),
        ];
        TierMap::new(tiers, vec![(1000..2000, TierId(1))])
    }

    /// Notes what it is given, and says that everything went.
    struct Recorder {
        name: &'static str,
        pairs: Vec<(u8, u8)>,
        batches: std::rc::Rc<std::cell::RefCell<Vec<(&'static str, usize)>>>,
    }

    impl Mover for Recorder {
        fn name(&self) -> &'static str {
            self.name
        }
        fn can(&self, _: &TierMap, from: TierId, to: TierId) -> bool {
            self.pairs.contains(&(from.0, to.0))
        }
        fn execute(&mut self, _: &Process, moves: &[PageMove], _: &TierMap, results: &mut Vec<MoveResult>) -> MoveCost {
            self.batches.borrow_mut().push((self.name, moves.len()));
            results.extend(moves.iter().map(|item| MoveResult::all(item.pages)));
            MoveCost { calls: 1, ..MoveCost::default() }
        }
    }

    #[test]
    fn each_run_goes_to_the_mover_that_can_and_order_is_kept() {
        let batches = std::rc::Rc::default();
        let recorder = |name, pairs: &[(u8, u8)]| -> Box<dyn Mover> {
            Box::new(Recorder { name, pairs: pairs.to_vec(), batches: std::rc::Rc::clone(&batches) })
        };
        let mut movers = Movers::new(vec![recorder("nodes", &[(0, 1), (1, 0)]), recorder("swap", &[(0, 2), (2, 0)])]);
        let go = |from, to| PageMove { vpn: Vpn(1), pages: 1, from: TierId(from), to: TierId(to) };
        let moves = [go(0, 1), go(0, 1), go(0, 2), go(2, 1), go(1, 0), go(0, 1)];
        let me = Process::open(std::process::id()).unwrap();
        let mut results = Vec::new();
        let cost = movers.execute(&me, &moves, &two_nodes_and_swap(), &mut results);
        assert_eq!(*batches.borrow(), [("swap", 1), ("nodes", 3), ("nodes", 1)], "what leaves goes first");
        assert_eq!((results.len(), cost.calls), (6, 3));
        assert_eq!(results[3], MoveResult::none(Failure::Errno(libc::EOPNOTSUPP)));
        assert!(!results[3].failure.unwrap().is_permanent(), "a missing mover is not the page's fault");
    }

    #[test]
    fn exchanges_are_carried_out_by_direction_and_a_long_run_stays_whole() {
        let batches = std::rc::Rc::default();
        let mut movers = Movers::new(vec![Box::new(Recorder {
            name: "nodes",
            pairs: vec![(0, 1), (1, 0)],
            batches: std::rc::Rc::clone(&batches),
        })]);
        let go = |from, to| PageMove { vpn: Vpn(1), pages: 1, from: TierId(from), to: TierId(to) };
        let me = Process::open(std::process::id()).unwrap();
        let exchanges: Vec<PageMove> = (0..300).flat_map(|_| [go(0, 1), go(1, 0)]).collect();
        let mut results = Vec::new();
        movers.execute(&me, &exchanges, &two_nodes_and_swap(), &mut results);
        assert_eq!(batches.take().iter().map(|batch| batch.1).collect::<Vec<_>>(), [256, 256, 44, 44]);
        movers.execute(&me, &[go(0, 1); 5000], &two_nodes_and_swap(), &mut results);
        assert_eq!(*batches.borrow(), [("nodes", 5000)], "a batch for several threads");
        assert_eq!(results, [MoveResult::all(1); 5600]);
    }

    #[test]
    fn the_tiers_choose_the_movers() {
        let both = Movers::for_tiers(&two_nodes_and_swap(), STALL_DEADLINE);
        assert_eq!(both.names(), ["move_pages", "process_madvise"]);
        let pairs = |from, to| both.can(&two_nodes_and_swap(), TierId(from), TierId(to));
        assert!(pairs(0, 1) && pairs(1, 0) && pairs(0, 2) && pairs(1, 2) && pairs(2, 0));
        assert!(!pairs(2, 1), "what comes back from swap lands where the program runs, not where we say");
    }

    #[test]
    fn a_dry_run_moves_nothing_and_says_so() {
        let me = Process::open(std::process::id()).unwrap();
        let moves = [PageMove { vpn: Vpn(1), pages: 1, from: TierId(0), to: TierId(2) }; 3];
        let mut results = Vec::new();
        let cost = Movers::dry_run().execute(&me, &moves, &two_nodes_and_swap(), &mut results);
        assert_eq!(results, [MoveResult::none(Failure::DryRun); 3]);
        assert_eq!(cost, MoveCost::default());
    }

    #[test]
    fn batches_grow_while_calls_are_short_and_shrink_at_once_when_one_is_long() {
        let mut size = BatchSize::new(512, 64, 16384, Duration::from_millis(20));
        for _ in 0..10 {
            let pages = size.pages;
            size.learn(pages, Duration::from_micros(1) * pages);
        }
        assert_eq!(size.pages, 15000, "at 1 us a page, three quarters of 20 ms");
        size.learn(15000, Duration::from_millis(200));
        assert_eq!(size.pages, 1125);
        size.learn(1125, Duration::from_secs(2));
        assert_eq!(size.pages, 64, "never below the least");
        size.learn(3, Duration::from_micros(1));
        assert_eq!(size.pages, 64, "a small rest teaches nothing");
    }
}
