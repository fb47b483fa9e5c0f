//! Several processes in one run: whose pages are whose, and what each got of fast memory.
//!
//! In: the first page of each process, accesses by tier. Out: the space of a page, a [`ProcessReport`] for each. Must not: order the
//! processes' accesses: who feeds them does.
//!
//! A process is a space of its own to the engine and to the page tables: what a policy keeps for each space, it keeps for each process.
//! Its pages begin on a boundary of 1 GiB behind those of the one before, as page tables are modelled by the GiB.

use terrace_core::units::{BLOCK_PAGES, BLOCK_SHIFT, Bytes, PageId, SpaceId, TierId};
use terrace_machine::mmu::tables::{FIRST_FRAME, REGION_SHIFT};
use terrace_trace::{Access, PageMap, Pages};

use crate::error::SimError;

/// A process of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its name in reports.
    pub name: String,
    /// Its first page, as the simulation numbers pages: that of the next is the end of it. A multiple of 1 GiB, 0 for the first.
    pub first_page: u32,
}

/// What one of several processes got.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct ProcessReport {
    /// Its workload.
    pub workload: String,
    /// Memory it had, the mean over the run's accesses, those of a process that is played along left out.
    pub mean_resident_bytes: u64,
    /// Of that, in the fastest tier.
    pub mean_fast_bytes: u64,
    /// Accesses served by each tier.
    pub tier_accesses: Vec<u64>,
    /// Share of its memory accesses that the fastest tier served.
    pub fast_hit_share: f64,
}

/// What each process was served, and had.
#[derive(Clone, Debug)]
pub(crate) struct Served {
    starts: Vec<u32>,
    tiers: Vec<[u64; TierId::MAX]>,
    /// Accesses over which the means are taken.
    over: u64,
    /// Pages with memory and pages in fast memory, times the accesses they were so.
    sums: Vec<[u64; 2]>,
}

impl Served {
    /// Of processes that begin at these pages.
    pub(crate) fn new(starts: Vec<u32>) -> Served {
        let (tiers, sums) = (vec![[0; TierId::MAX]; starts.len()], vec![[0; 2]; starts.len()]);
        Served { starts, tiers, over: 0, sums }
    }

    #[inline(always)]
    pub(crate) fn add(&mut self, page: u32, tier: usize) {
        self.tiers[place(&self.starts, page)][tier] += 1;
    }

    /// Records accesses fed while each process had these pages, in all and in fast memory.
    pub(crate) fn held(&mut self, accesses: u64, pages: impl Fn(SpaceId) -> [u64; 2]) {
        self.over += accesses;
        for (space, sums) in (0..).map(SpaceId).zip(&mut self.sums) {
            let [resident, fast] = pages(space);
            sums[0] += resident * accesses;
            sums[1] += fast * accesses;
        }
    }

    /// The share of each of them, on a machine with `tiers` tiers.
    pub(crate) fn reports(&self, processes: &[Process], tiers: usize) -> Vec<ProcessReport> {
        let mean = |sum: u64| Bytes::of_pages(sum.checked_div(self.over).unwrap_or(0)).get();
        let one = |(process, (served, sums)): (&Process, (&[u64; TierId::MAX], &[u64; 2]))| {
            let all: u64 = served.iter().sum();
            ProcessReport {
                workload: process.name.clone(),
                mean_resident_bytes: mean(sums[0]),
                mean_fast_bytes: mean(sums[1]),
                tier_accesses: served[..tiers].to_vec(),
                fast_hit_share: if all > 0 { served[0] as f64 / all as f64 } else { 0.0 },
            }
        };
        processes.iter().zip(self.tiers.iter().zip(&self.sums)).map(one).collect()
    }
}

/// Which process a page is of. The first begins at page 0.
#[inline]
pub(crate) fn place(starts: &[u32], page: u32) -> usize {
    starts.partition_point(|start| *start <= page).saturating_sub(1)
}

/// Where a simulation has the pages of a trace of several processes, which numbers them as they come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The page at which each block of the trace's begins.
    blocks: Vec<u32>,
    processes: Vec<Process>,
}

impl Placement {
    /// Lays out what a trace holds. `page_ids`: one more than its highest page.
    ///
    /// # Errors
    /// When its processes take more than page tables are modelled for.
    pub fn of(map: &PageMap, page_ids: u64) -> Result<Placement, SimError> {
        let blocks = page_ids.div_ceil(u64::from(BLOCK_PAGES)) as u32;
        let owners: Vec<usize> =
            (0..blocks).map(|block| usize::from(map.process_of(PageId(block << BLOCK_SHIFT)).0)).collect();
        let mut counts = vec![0_u64; owners.iter().max().map_or(1, |most| most + 1)];
        owners.iter().for_each(|owner| counts[*owner] += u64::from(BLOCK_PAGES));
        let mut end = 0;
        let mut next: Vec<u64> = Vec::with_capacity(counts.len());
        for count in counts {
            next.push(end);
            end += count.max(1).next_multiple_of(1 << REGION_SHIFT);
        }
        if end >= u64::from(FIRST_FRAME) {
            return Err(SimError::Parameter {
                name: "trace",
                value: format!("of {} processes that take {} when each begins a GiB", next.len(), Bytes::of_pages(end)),
                wanted: format!("below {}: record fewer processes at once", Bytes::of_pages(u64::from(FIRST_FRAME))),
            });
        }
        let name = |number: usize| {
            let known = map.processes().iter().find(|(process, _)| usize::from(process.0) == number);
            known.map_or_else(
                || format!("process {number}"),
                |(_, process)| format!("{} ({})", process.name, process.pid),
            )
        };
        let processes =
            (0..).zip(&next).map(|(number, first)| Process { name: name(number), first_page: *first as u32 });
        let processes = processes.collect();
        let blocks = owners
            .into_iter()
            .map(|owner| {
                let first = next[owner] as u32;
                next[owner] += u64::from(BLOCK_PAGES);
                first
            })
            .collect();
        Ok(Placement { blocks, processes })
    }

    /// The processes.
    pub fn processes(&self) -> &[Process] {
        &self.processes
    }

    fn page(&self, page: u32) -> u32 {
        self.blocks[(page >> BLOCK_SHIFT) as usize] + (page & (BLOCK_PAGES - 1))
    }

    /// Accesses as the simulation numbers their pages.
    pub(crate) fn place(&self, batch: &mut [Access]) {
        for access in batch {
            *access = access.of_page(PageId(self.page(access.page().0)));
        }
    }

    /// Pages as the simulation numbers them, a run for each block.
    pub(crate) fn runs(&self, pages: Pages) -> impl Iterator<Item = Pages> + '_ {
        let end = u64::from(pages.first.0) + u64::from(pages.count);
        let mut at = u64::from(pages.first.0);
        std::iter::from_fn(move || {
            (at < end).then(|| {
                let first = at as u32;
                let next = ((at >> BLOCK_SHIFT) + 1) << BLOCK_SHIFT;
                at = next.min(end);
                Pages { first: PageId(self.page(first)), count: (at - u64::from(first)) as u32 }
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_core::units::Vpn;
    use terrace_trace::{Extent, MapPiece, ProcessId};

    /// Blocks 0 and 2 of the first process, 1 and 3 of the third; the second made no access.
    fn map() -> PageMap {
        let mut map = PageMap::default();
        for block in 0..4_u32 {
            let process = ProcessId(if block % 2 == 0 { 0 } else { 2 });
            let extent = Extent { first: PageId(block << 9), vpn: Vpn(0x400), count: 512, process };
            map.add(&MapPiece::Extent(extent));
        }
        map.add(&MapPiece::Process(ProcessId(2), terrace_trace::Process { pid: 81, name: "awk".to_owned() }));
        map
    }

    #[test]
    fn each_process_begins_on_a_gigabyte_and_is_in_one_piece() {
        let placement = Placement::of(&map(), 4 * 512 - 100).unwrap();
        let gib = 1 << REGION_SHIFT;
        let found: Vec<_> =
            placement.processes().iter().map(|process| (process.name.as_str(), process.first_page)).collect();
        assert_eq!(found, [("process 0", 0), ("process 1", gib), ("awk (81)", 2 * gib)]);
        let pages = [5, 512 + 6, 1024 + 7, 1536 + 8].map(|page| placement.page(page));
        assert_eq!(pages, [5, 2 * gib + 6, 512 + 7, 2 * gib + 512 + 8]);
        let runs: Vec<_> = placement
            .runs(Pages { first: PageId(500), count: 600 })
            .map(|pages| (pages.first.0, pages.count))
            .collect();
        assert_eq!(runs, [(500, 12), (2 * gib, 512), (512, 76)]);
        let mut batch = [Access::write(PageId(1536 + 8)).on_line(3)];
        placement.place(&mut batch);
        assert_eq!(batch, [Access::write(PageId(2 * gib + 512 + 8)).on_line(3)]);
    }

    #[test]
    fn more_processes_than_tables_are_modelled_for_are_refused() {
        let mut map = PageMap::default();
        for process in 0..300_u16 {
            let first = PageId(u32::from(process) << 9);
            map.add(&MapPiece::Extent(Extent { first, vpn: Vpn(0), count: 512, process: ProcessId(process) }));
        }
        let error = Placement::of(&map, 300 << 9).unwrap_err().to_string();
        assert!(error.contains("300 processes"), "{error}");
    }

    #[test]
    fn a_page_is_of_the_process_that_begins_last_before_it() {
        assert_eq!([0, 7, 8, 20].map(|page| place(&[0, 8, 16], page)), [0, 0, 1, 2]);
        assert_eq!(place(&[], 20), 0, "one process");
    }
}
