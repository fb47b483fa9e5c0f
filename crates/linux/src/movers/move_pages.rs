//! Moves pages between NUMA nodes with move_pages(2).
//!
//! In: moves between node tiers. Out: for each the truth from the kernel's status array, errno by errno. Must not: move
//! pages that others map as well (`MPOL_MF_MOVE` only), or to nodes that the target's cpuset excludes.
//!
//! Of a tier with several nodes a page goes to the one nearest to where it lies (its peer) as long as that has room, else to the
//! roomiest: each socket keeps to its own memory.
//!
//! The call works through its array until a page fails to migrate, then stops: what was not reached keeps the mark that
//! the array was filled with. So a batch is resumed after the place where it stopped, and pages that were reached without
//! a verdict are asked for once. A huge page is one address, and moves whole.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use terrace_core::plan::Failure;
use terrace_core::units::{Bytes, TierId};

use super::process_madvise::by_unit;
use super::{BatchSize, MoveCost, MoveResult, Mover, PageMove};
use crate::process::Process;
use crate::sys;
use crate::topology::nodes::free_memory;
use crate::topology::{TierKind, TierMap, parse_list};

/// A status that the kernel never writes: no node, and no errno (those end at -4095).
const UNTOUCHED: i32 = i32::MIN;
/// A node with less than this free is full: the kernel keeps some for itself, and would reclaim for the rest.
const SPARE: Bytes = Bytes::mib(64);

/// The mover between NUMA nodes. Its memory is that of one batch: 16 bytes a page.
#[derive(Debug)]
pub struct MovePages {
    batch: BatchSize,
    addresses: Vec<u64>,
    nodes: Vec<i32>,
    status: Vec<i32>,
    query: Vec<usize>,
    /// The cpuset exclusion already reported, so that it is reported once per process.
    told: Option<(u32, TierId)>,
}

/// move_pages(2) on one process: addresses, nodes or a question, statuses. Tests put a model in its place, because a
/// machine with one node never refuses a move.
type Kernel<'a> = dyn FnMut(&[u64], Option<&[i32]>, &mut [i32]) -> io::Result<usize> + 'a;

/// A node to move to, and its memory that is still free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Destination {
    node: u32,
    free: Bytes,
}

impl MovePages {
    /// A mover whose calls stay within `deadline` where 64 pages can.
    pub fn new(deadline: Duration) -> MovePages {
        MovePages {
            batch: BatchSize::new(512, 64, 16384, deadline),
            addresses: Vec::new(),
            nodes: Vec::new(),
            status: Vec::new(),
            query: Vec::new(),
            told: None,
        }
    }

    /// Moves one batch, each page to its node in `self.nodes`, and pushes its results. `kernel` is move_pages(2) on the target.
    fn carry(
        &mut self,
        kernel: &mut Kernel<'_>,
        moves: &[PageMove],
        tier_nodes: &[u32],
        results: &mut Vec<MoveResult>,
        cost: &mut MoveCost,
    ) {
        debug_assert_eq!((self.addresses.len(), self.nodes.len()), (moves.len(), moves.len()));
        self.status.clear();
        self.status.resize(moves.len(), UNTOUCHED);
        let mut done = 0;
        let mut whole_call = None;
        while done < moves.len() {
            let started = Instant::now();
            let moved = kernel(&self.addresses[done..], Some(&self.nodes[done..]), &mut self.status[done..]);
            cost.add_call(started.elapsed());
            match moved {
                Ok(0) => done = moves.len(),
                Ok(_) => done = self.after_stop(kernel, done, cost),
                // ENOENT as a whole: none of the pages is there; the status array has it page by page.
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => done = self.after_stop(kernel, done, cost),
                Err(error) => {
                    whole_call = Some(failure_of(&error));
                    break;
                }
            }
        }
        for (index, item) in moves.iter().enumerate() {
            results.push(match (self.status[index], whole_call) {
                (UNTOUCHED, Some(failure)) => MoveResult::none(failure),
                (UNTOUCHED, None) => MoveResult::none(Failure::Stayed),
                (status, _) => verdict(status, tier_nodes, item.pages),
            });
        }
    }

    /// Says for each page of a batch which node it goes to.
    fn choose(
        &mut self,
        kernel: &mut Kernel<'_>,
        moves: &[PageMove],
        tiers: &TierMap,
        destinations: &mut [Destination],
        cost: &mut MoveCost,
    ) {
        self.addresses.clear();
        self.addresses.extend(moves.iter().map(|item| item.vpn.address()));
        self.status.clear();
        self.status.resize(moves.len(), UNTOUCHED);
        if destinations.len() > 1 {
            let started = Instant::now();
            // Where it lies is a question that holds nobody up. What it does not answer goes where there is room.
            let _ = kernel(&self.addresses, None, &mut self.status);
            cost.elapsed += started.elapsed();
            cost.calls += 1;
        }
        self.nodes.clear();
        for (item, status) in moves.iter().zip(&self.status) {
            let from = u32::try_from(*status).ok();
            let place = nearest(destinations, from, Bytes::of_pages(u64::from(item.pages)), tiers);
            let destination = &mut destinations[place];
            destination.free = destination.free.saturating_sub(Bytes::of_pages(u64::from(item.pages)));
            self.nodes.push(i32::try_from(destination.node).unwrap_or(i32::MAX));
        }
    }

    /// After a call that stopped early: asks where the pages are that it reached without a verdict, and says where to
    /// go on. The last page with a verdict is where it stopped; without one it reached the end.
    fn after_stop(&mut self, kernel: &mut Kernel<'_>, from: usize, cost: &mut MoveCost) -> usize {
        let reached = match self.status[from..].iter().rposition(|status| *status != UNTOUCHED) {
            Some(last) => from + last + 1,
            None => self.status.len(),
        };
        self.query.clear();
        self.query.extend((from..reached).filter(|index| self.status[*index] == UNTOUCHED));
        if self.query.is_empty() {
            return reached;
        }
        let addresses: Vec<u64> = self.query.iter().map(|index| self.addresses[*index]).collect();
        let mut places = vec![UNTOUCHED; addresses.len()];
        let started = Instant::now();
        let asked = kernel(&addresses, None, &mut places);
        // A question holds nobody up, so it counts as a call and as time, not as a stall.
        cost.elapsed += started.elapsed();
        cost.calls += 1;
        if asked.is_ok() {
            for (index, place) in self.query.iter().zip(places) {
                self.status[*index] = place;
            }
        }
        reached
    }

    /// The nodes of the tier that the target's cpuset allows, with their free memory.
    fn destinations(
        &mut self,
        process: &Process,
        tier: TierId,
        tier_nodes: &[u32],
    ) -> Result<Vec<Destination>, Failure> {
        let allowed = allowed_nodes(process.pid()).map_err(|error| failure_of(&error))?;
        let usable: Vec<Destination> = tier_nodes
            .iter()
            .filter(|node| allowed.contains(node))
            .map(|node| Destination { node: *node, free: free_memory(Path::new("/"), *node).unwrap_or_default() })
            .collect();
        if !usable.is_empty() {
            return Ok(usable);
        }
        if self.told.replace((process.pid(), tier)) != Some((process.pid(), tier)) {
            tracing::warn!(
                pid = process.pid(),
                tier = tier.0,
                ?tier_nodes,
                ?allowed,
                "the process's cpuset allows none of the tier's nodes: its pages cannot go there"
            );
        }
        // What the kernel itself says of a node outside the cpuset; it is permanent, so the page is not asked for again.
        Err(Failure::Errno(libc::EACCES))
    }
}

impl Mover for MovePages {
    fn name(&self) -> &'static str {
        "move_pages"
    }

    fn can(&self, tiers: &TierMap, from: TierId, to: TierId) -> bool {
        let nodes = |tier: TierId| matches!(tiers.tier(tier).kind, TierKind::Nodes { .. });
        from != to && nodes(from) && nodes(to)
    }

    fn execute(
        &mut self,
        process: &Process,
        moves: &[PageMove],
        tiers: &TierMap,
        results: &mut Vec<MoveResult>,
    ) -> MoveCost {
        let mut cost = MoveCost::default();
        for run in moves.chunk_by(|one, next| one.to == next.to) {
            let fail_all = |results: &mut Vec<MoveResult>, count: usize, failure| {
                results.extend(std::iter::repeat_n(MoveResult::none(failure), count));
            };
            let TierKind::Nodes { nodes } = &tiers.tier(run[0].to).kind else {
                fail_all(results, run.len(), Failure::Errno(libc::EOPNOTSUPP));
                continue;
            };
            let mut destinations = match self.destinations(process, run[0].to, nodes) {
                Ok(destinations) => destinations,
                Err(failure) => {
                    fail_all(results, run.len(), failure);
                    continue;
                }
            };
            let mut rest = run;
            while !rest.is_empty() {
                // A pid that now belongs to another process must never be touched: the start time shows it.
                if !process.is_alive() {
                    fail_all(results, rest.len(), Failure::Gone);
                    break;
                }
                let (count, pages) = take(rest, self.batch.pages);
                let longest_before = std::mem::take(&mut cost.longest_call);
                let mut kernel = |addresses: &[u64], nodes: Option<&[i32]>, status: &mut [i32]| {
                    sys::move_pages(process.pid(), addresses, nodes, status)
                };
                self.choose(&mut kernel, &rest[..count], tiers, &mut destinations, &mut cost);
                let before = results.len();
                self.carry(&mut kernel, &rest[..count], nodes, results, &mut cost);
                cost.counts.add(&by_unit(&rest[..count], &results[before..]));
                self.batch.learn(pages, cost.longest_call);
                cost.longest_call = cost.longest_call.max(longest_before);
                rest = &rest[count..];
            }
        }
        cost
    }
}

/// The place of the nearest destination with room for so much; of equals, and where none has room, the roomiest.
fn nearest(destinations: &[Destination], from: Option<u32>, bytes: Bytes, tiers: &TierMap) -> usize {
    let rank = |destination: &Destination| {
        let far = from.map_or(0, |from| tiers.distance(from, destination.node));
        let full = destination.free < bytes + SPARE;
        (full, if full { 0 } else { far }, std::cmp::Reverse(destination.free))
    };
    let ranked = destinations.iter().enumerate().min_by_key(|(_, destination)| rank(destination));
    ranked.map_or(0, |(place, _)| place)
}

/// How many of the moves make a batch of at most `limit` pages (one move at least), and how many pages those are.
pub(super) fn take(moves: &[PageMove], limit: u32) -> (usize, u32) {
    let mut pages = 0;
    for (count, item) in moves.iter().enumerate() {
        if count > 0 && pages + item.pages > limit {
            return (count, pages);
        }
        pages += item.pages;
    }
    (moves.len(), pages)
}

/// What a status says: a node, or a negative errno.
fn verdict(status: i32, tier_nodes: &[u32], pages: u32) -> MoveResult {
    match u32::try_from(status) {
        Ok(node) if tier_nodes.contains(&node) => MoveResult::all(pages),
        Ok(_) => MoveResult::none(Failure::Stayed),
        Err(_) if status == -libc::ENOMEM => MoveResult::none(Failure::NoRoom),
        Err(_) => MoveResult::none(Failure::Errno(-status)),
    }
}

fn failure_of(error: &io::Error) -> Failure {
    match error.raw_os_error() {
        Some(libc::ESRCH | libc::ENOENT) => Failure::Gone,
        Some(libc::ENOMEM) => Failure::NoRoom,
        errno => Failure::Errno(errno.unwrap_or(libc::EIO)),
    }
}

/// The nodes that a process may use: Mems_allowed_list of /proc/PID/status, which follows its cpuset.
pub(crate) fn allowed_nodes(pid: u32) -> io::Result<Vec<u32>> {
    let status = std::fs::read(format!("/proc/{pid}/status"))?;
    let status = String::from_utf8_lossy(&status);
    let list = status.lines().find_map(|line| line.strip_prefix("Mems_allowed_list:"));
    // A kernel without cpusets has no such line, and no limits.
    Ok(list.and_then(parse_list).unwrap_or_else(|| (0..1024).collect()))
}

/// Asks where a page of this process is, which takes the same path and rights as a move.
pub(super) fn try_on_self() -> io::Result<()> {
    let page = vec![1_u8; 8192];
    let mut status = [UNTOUCHED];
    sys::move_pages(std::process::id(), &[page.as_ptr() as u64], None, &mut status)?;
    if status[0] >= 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(-status[0])) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_core::units::Vpn;

    #[test]
    fn a_batch_holds_whole_moves() {
        let item = |pages| PageMove { vpn: Vpn(0), pages, from: TierId(0), to: TierId(1) };
        assert_eq!(take(&[item(1); 5], 3), (3, 3));
        assert_eq!(take(&[item(512), item(512)], 64), (1, 512), "a huge page goes even if it is over the limit");
        assert_eq!(take(&[item(1), item(512), item(1)], 600), (3, 514));
        assert_eq!(take(&[item(1), item(512)], 512), (1, 1));
    }

    #[test]
    fn a_status_is_a_node_or_an_errno() {
        assert_eq!(verdict(1, &[1, 2], 512), MoveResult::all(512));
        assert_eq!(verdict(2, &[1, 2], 1), MoveResult::all(1), "another node of the tier is as good");
        assert_eq!(verdict(0, &[1], 1), MoveResult::none(Failure::Stayed));
        assert_eq!(verdict(-libc::ENOMEM, &[1], 1), MoveResult::none(Failure::NoRoom));
        assert_eq!(verdict(-libc::EBUSY, &[1], 1), MoveResult::none(Failure::Errno(libc::EBUSY)));
    }

    /// A page of the model below.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum ModelPage {
        At(i32),
        /// Isolated for migration, but cannot be migrated.
        Stuck(i32),
        Missing,
    }

    /// What move_pages(2) does, by its manual page: pages are gathered until one gives an error of its own or is there
    /// already, then the gathered ones are migrated; if any of them fails, the call ends, and statuses not yet written
    /// are left as they were.
    fn model(pages: &mut [ModelPage], addresses: &[u64], nodes: Option<&[i32]>, status: &mut [i32]) -> usize {
        let index = |place: usize| (addresses[place] >> 12) as usize;
        let migrate = |pages: &mut [ModelPage], gathered: &mut Vec<usize>, status: &mut [i32], node: i32| -> usize {
            let mut failed = 0;
            for place in gathered.iter() {
                match &mut pages[index(*place)] {
                    ModelPage::At(at) => *at = node,
                    _ => failed += 1,
                }
            }
            if failed == 0 {
                gathered.iter().for_each(|place| status[*place] = node);
            }
            gathered.clear();
            failed
        };
        let mut gathered = Vec::new();
        for place in 0..addresses.len() {
            let page = pages[index(place)];
            let Some(nodes) = nodes else {
                status[place] = match page {
                    ModelPage::At(node) | ModelPage::Stuck(node) => node,
                    ModelPage::Missing => -libc::ENOENT,
                };
                continue;
            };
            match page {
                ModelPage::At(node) if node == nodes[place] => status[place] = node,
                ModelPage::Missing => status[place] = -libc::ENOENT,
                _ => {
                    gathered.push(place);
                    continue;
                }
            }
            let failed = migrate(pages, &mut gathered, status, nodes[place]);
            if failed > 0 {
                return failed + addresses.len() - place - 1;
            }
        }
        nodes.map_or(0, |nodes| migrate(pages, &mut gathered, status, nodes.first().copied().unwrap_or(0)))
    }

    proptest::proptest! {
        #[test]
        fn whatever_fails_every_page_is_tried_and_told_truly(kinds in proptest::collection::vec(0_u8..8, 1..200)) {
            let mut pages: Vec<ModelPage> = kinds
                .iter()
                .map(|kind| match kind {
                    0 => ModelPage::Stuck(0),
                    1 => ModelPage::Missing,
                    2 => ModelPage::At(1),
                    _ => ModelPage::At(0),
                })
                .collect();
            let moves: Vec<PageMove> = (0..pages.len() as u64)
                .map(|vpn| PageMove { vpn: Vpn(vpn), pages: 1, from: TierId(0), to: TierId(1) })
                .collect();
            let mut results = Vec::new();
            let mut cost = MoveCost::default();
            let mut kernel = |addresses: &[u64], nodes: Option<&[i32]>, status: &mut [i32]| {
                Ok(model(&mut pages, addresses, nodes, status))
            };
            let mut mover = MovePages::new(super::super::STALL_DEADLINE);
            let mut only = [Destination { node: 1, free: Bytes::gib(1) }];
            mover.choose(&mut kernel, &moves, &TierMap::new(Vec::new(), Vec::new()), &mut only, &mut cost);
            mover.carry(&mut kernel, &moves, &[1], &mut results, &mut cost);
            for (page, result) in pages.iter().zip(&results) {
                let truth = match page {
                    ModelPage::At(1) => MoveResult::all(1),
                    ModelPage::Stuck(_) => MoveResult::none(Failure::Stayed),
                    ModelPage::Missing => MoveResult::none(Failure::Errno(libc::ENOENT)),
                    ModelPage::At(_) => return Err(proptest::test_runner::TestCaseError::fail("a page was never tried")),
                };
                proptest::prop_assert_eq!(*result, truth);
            }
            let stuck = kinds.iter().filter(|kind| **kind == 0).count() as u64;
            proptest::prop_assert!(cost.calls <= 3 * stuck + 3, "{} calls for {stuck} stuck pages", cost.calls);
        }
    }

    #[test]
    fn a_page_goes_to_the_peer_of_where_it_lies_while_that_has_room() {
        use crate::topology::fixtures::{Machine, NodeSpec};
        let nodes = [NodeSpec::dram(0), NodeSpec::dram(1), NodeSpec::memory_only(2), NodeSpec::memory_only(3)];
        let rows = ["10 21 17 28", "21 10 28 17", "17 28 10 28", "28 17 28 10"];
        let machine = Machine::new(&nodes).distances(&rows).memory_tier(4, "0-1").memory_tier(22, "2-3");
        let topology = crate::topology::Topology::discover(machine.root()).unwrap();
        assert_eq!((topology.peers(0), topology.peers(1), topology.peers(2)), (vec![2], vec![3], vec![0]));
        let tiers = topology.tier_map().unwrap();
        let at = [0, 1, 1, -libc::ENOENT];
        let moves: Vec<PageMove> =
            (0..4).map(|vpn| PageMove { vpn: Vpn(vpn), pages: 1, from: TierId(0), to: TierId(1) }).collect();
        let mut kernel = |addresses: &[u64], nodes: Option<&[i32]>, status: &mut [i32]| {
            assert!(nodes.is_none(), "only asked");
            addresses.iter().zip(status).for_each(|(address, status)| *status = at[(address >> 12) as usize]);
            Ok(0)
        };
        let mut mover = MovePages::new(super::super::STALL_DEADLINE);
        let mut cost = MoveCost::default();
        let mut choose = |free: [u64; 2]| {
            let mut destinations =
                [(2, free[0]), (3, free[1])].map(|(node, mebibytes)| Destination { node, free: Bytes::mib(mebibytes) });
            mover.choose(&mut kernel, &moves, &tiers, &mut destinations, &mut cost);
            mover.nodes.clone()
        };
        assert_eq!(choose([500, 900]), [2, 3, 3, 3], "what cannot be told goes where there is most room");
        assert_eq!(choose([10, 900]), [3, 3, 3, 3], "a full peer is passed over");
        assert_eq!(choose([10, 20]), [3, 3, 3, 3], "where all are full the roomiest says so");
    }

    #[test]
    fn this_process_may_use_some_node_and_its_pages_can_be_asked_for() {
        assert!(!allowed_nodes(std::process::id()).unwrap().is_empty());
        try_on_self().unwrap();
    }
}
