//! The rivals: what each tracker would know of the same accesses, and what knowing it costs.
//!
//! In: accesses one by one, windows that end. Out: an estimate for each page, and costs. Must not: disturb the run: all watch the
//! same program, whose time none of them changes; what each would cost is counted beside.
//!
//! | tracker | what it is | source |
//! |---|---|---|
//! | hotness-walk WHEN | counters of pieces of huge pages, accessed bits of 4 KiB pages | hotness walk, section 3 |
//! | accessed-bits | one bit for each page of the operating system | TPP; hotness walk, section 2.2 |
//! | pebs-N | one in N loads that miss the last-level cache, one in 503 N stores | MEMTIS: 199 to 19997, stores at 100,007 |
//! | memtis-split | pebs-199 by huge page; by 4 KiB where its rule has split the page | MEMTIS |
//! | telescope | regions, accessed bits of upper levels | Telescope |
//! | pcc | 128 candidates of 2 MiB, counted at page walks of 4 KiB pages, least frequent out | PCC (MICRO 2023) |
//! | damon | regions, one sampled page each | DAMON |
//!
//! | constant | value | source |
//! |---|---|---|
//! | bytes of a sample | 64, written and read | Assumption: address, time, thread and kind in a perf record |
//! | bytes a page of samples' counts | 8 | MEMTIS |
//! | bytes of a region | 88 | size of DAMON's region structure |
//! | cache that counter lines find | an eighth of the last level | Assumption: they share it with the program's data |

use terrace_core::pages::Pages as CorePages;
use terrace_core::units::{BLOCK_PAGES, BLOCK_SHIFT, Bytes, PageId, SpaceId, TierId, Vpn};
use terrace_machine::cache::{Cache, Filtered, LINE_BYTES};
use terrace_machine::mmu::When;
use terrace_machine::mmu::counters::Counters;
use terrace_machine::mmu::{Layout, Width};
use terrace_machine::preset::Management;
use terrace_policies::parts::bins::fit;
use terrace_policies::parts::heat::Heat;
use terrace_policies::parts::huge_split::SplitDecision;

use super::regions::Regions;
use super::uses::Uses;
use terrace_core::random::mix;

const SAMPLE_BYTES: u64 = 64;
const STORE_FACTOR: u32 = 503;
const PCC_ENTRIES: usize = 128;
const REGION_BYTES: u64 = 88;
const GIB_PAGES: u64 = 1 << 18;
const UNKNOWN: u32 = u32::MAX;

/// One access as the trackers see it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Access {
    pub(crate) page: u32,
    pub(crate) huge: bool,
    pub(crate) store: bool,
    /// It reached memory.
    pub(crate) missed: bool,
    /// 0: found in the first-level TLB, 1: in the second, 2: walked.
    pub(crate) found: u8,
}

/// What a tracker cost so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Cost {
    /// Nanoseconds of processor time that do not depend on how much memory there is.
    pub(crate) fixed_ns: f64,
    /// Those that grow with memory, for the same knowledge of each page.
    pub(crate) linear_ns: f64,
    /// Bytes moved between processor and memory.
    pub(crate) bytes: u64,
    /// Entries, counters or list members looked at to find candidates.
    pub(crate) searched: u64,
}

/// A tracker.
pub(crate) enum Tracker {
    Counted(Box<Counted>),
    Bits { heat: Vec<f32>, cost: Cost },
    Pebs(Pebs),
    Memtis(Box<MemtisSplit>),
    Regions { name: &'static str, regions: Regions, cost: Cost },
    Pcc { table: Vec<(u32, u8)>, cost: Cost },
}

/// Counters of pieces, counted by a policy of their own.
pub(crate) struct Counted {
    when: When,
    counters: Counters,
    left: u32,
    random: u64,
    sync_ns: f64,
    lines: Cache,
    /// Of 4 KiB mappings.
    small: Vec<f32>,
    cost: Cost,
}

/// Samples of a period.
pub(crate) struct Pebs {
    period: u32,
    loads: u32,
    stores: u32,
    heat: Vec<f32>,
    samples: u64,
    cost: Cost,
}

/// MEMTIS's counts and its own rule of splitting.
pub(crate) struct MemtisSplit {
    pebs: Pebs,
    heat: Heat,
    pages: CorePages,
    decision: SplitDecision,
    /// Whether a page's unit would lie in fast memory by what was known at the last window.
    fast: Vec<bool>,
    hot_bin: usize,
    windows: u64,
    /// First number of each block in its own record of pages; [`UNKNOWN`] where nothing was used yet.
    blocks: Vec<u32>,
    /// Pages it has records of.
    known: u64,
}

impl Pebs {
    fn new(period: u32) -> Pebs {
        let cost = Cost::default();
        Pebs { period, loads: period, stores: period.saturating_mul(STORE_FACTOR), heat: Vec::new(), samples: 0, cost }
    }

    fn samples(&mut self, access: &Access) -> bool {
        let (left, period) = match (access.store, access.missed) {
            (true, _) => (&mut self.stores, self.period.saturating_mul(STORE_FACTOR)),
            (false, true) => (&mut self.loads, self.period),
            (false, false) => return false,
        };
        *left -= 1;
        if *left > 0 {
            return false;
        }
        *left = period;
        self.samples += 1;
        true
    }

    fn charge(&mut self, management: &Management) {
        self.cost.linear_ns = self.samples as f64 * management.sample_ns;
        self.cost.bytes = self.samples * 2 * SAMPLE_BYTES;
    }
}

impl Tracker {
    /// All rivals. `cycle_ns` is a cycle of a core, `cache` the last-level cache.
    pub(crate) fn all(cycle_ns: f64, cache: Bytes, fast_ns: f64, slow_ns: f64) -> Vec<Tracker> {
        let counted = |when: When| {
            Tracker::Counted(Box::new(Counted {
                when,
                counters: Counters::new(Layout::Full, Width::W16),
                left: 1,
                random: 5,
                sync_ns: 100.0 * cycle_ns,
                lines: Cache::new(Bytes::new((cache.get() / 8).max(1024)), 16),
                small: Vec::new(),
                cost: Cost::default(),
            }))
        };
        let regions = |name, upper| Tracker::Regions { name, regions: Regions::new(upper), cost: Cost::default() };
        vec![
            counted(When::FirstMiss),
            counted(When::SecondMiss),
            counted(When::Random(64)),
            counted(When::Nth(64)),
            counted(When::Every),
            Tracker::Bits { heat: Vec::new(), cost: Cost::default() },
            Tracker::Pebs(Pebs::new(199)),
            Tracker::Pebs(Pebs::new(1999)),
            Tracker::Pebs(Pebs::new(19997)),
            Tracker::Memtis(Box::new(MemtisSplit {
                pebs: Pebs::new(199),
                heat: Heat::new(true),
                pages: CorePages::new(),
                decision: SplitDecision::new(true, fast_ns, slow_ns, 100_000),
                fast: Vec::new(),
                hot_bin: 1,
                windows: 0,
                blocks: Vec::new(),
                known: 0,
            })),
            regions("telescope", true),
            Tracker::Pcc { table: Vec::new(), cost: Cost::default() },
            regions("damon", false),
        ]
    }

    pub(crate) fn name(&self) -> String {
        match self {
            Tracker::Counted(counted) => format!("hotness-walk {}", counted.when),
            Tracker::Bits { .. } => "accessed-bits".to_owned(),
            Tracker::Pebs(pebs) => format!("pebs-{}", pebs.period),
            Tracker::Memtis(_) => "memtis-split".to_owned(),
            Tracker::Regions { name, .. } => (*name).to_owned(),
            Tracker::Pcc { .. } => "pcc".to_owned(),
        }
    }

    /// Whether candidates are kept for each process apart: then one process cannot crowd out another's.
    pub(crate) fn is_per_process(&self) -> bool {
        matches!(self, Tracker::Counted(_))
    }

    pub(crate) fn cost(&self) -> Cost {
        match self {
            Tracker::Counted(counted) => counted.cost,
            Tracker::Bits { cost, .. } | Tracker::Regions { cost, .. } | Tracker::Pcc { cost, .. } => *cost,
            Tracker::Pebs(pebs) => pebs.cost,
            Tracker::Memtis(memtis) => memtis.pebs.cost,
        }
    }

    /// Bytes of memory for each GiB that is managed.
    pub(crate) fn bytes_per_gib(&self, gib: f64) -> f64 {
        match self {
            Tracker::Counted(_) => Counters::region_bytes(Layout::Full, Width::W16) as f64,
            Tracker::Bits { .. } | Tracker::Pcc { .. } => 0.0,
            Tracker::Pebs(_) | Tracker::Memtis(_) => (GIB_PAGES * 8) as f64,
            Tracker::Regions { regions, .. } => (regions.len() as u64 * REGION_BYTES) as f64 / gib,
        }
    }

    #[inline]
    pub(crate) fn see(&mut self, access: &Access) {
        match self {
            Tracker::Counted(counted) => counted.see(access),
            Tracker::Pebs(pebs) => {
                if pebs.samples(access) {
                    grow(&mut pebs.heat, access.page);
                    pebs.heat[access.page as usize] += 1.0;
                }
            }
            Tracker::Memtis(memtis) => memtis.see(access),
            Tracker::Pcc { table, .. } => {
                if access.found == 2 && !access.huge {
                    see_candidate(table, access.page >> BLOCK_SHIFT);
                }
            }
            Tracker::Bits { .. } | Tracker::Regions { .. } => {}
        }
    }

    /// A check of the region trackers.
    pub(crate) fn check(&mut self, uses: &Uses, tick: u32) {
        if let Tracker::Regions { regions, .. } = self {
            regions.check(uses, tick);
        }
    }

    /// Writes down what it knows of each page at the end of a window that began at `since`, and lets its knowledge age.
    pub(crate) fn end_window(
        &mut self,
        uses: &Uses,
        since: u32,
        fast: usize,
        management: &Management,
        out: &mut Vec<f32>,
    ) {
        let pages = uses.pages() as usize;
        out.clear();
        out.resize(pages, 0.0);
        match self {
            Tracker::Counted(counted) => counted.end_window(uses, since, management, out),
            Tracker::Bits { heat, cost } => {
                let read = accessed_bits(heat, uses, since, 1.0);
                charge_bits(cost, read, management);
                cost.linear_ns += read.1 as f64 * management.scan_reset_ns;
                cost.searched += read.0;
                out.copy_from_slice(&heat[..pages]);
            }
            Tracker::Pebs(pebs) => {
                pebs.heat.resize(pages.max(pebs.heat.len()), 0.0);
                out.copy_from_slice(&pebs.heat[..pages]);
                let known = pebs.heat.iter().filter(|heat| **heat > 0.0).count() as u64;
                pebs.heat.iter_mut().for_each(|heat| *heat = if *heat >= 0.1 { *heat / 2.0 } else { 0.0 });
                pebs.charge(management);
                pebs.cost.searched += known;
            }
            Tracker::Memtis(memtis) => memtis.end_window(uses, fast, management, out),
            Tracker::Regions { regions, cost, .. } => {
                regions.estimate(out);
                cost.fixed_ns = regions.checked as f64 * (management.scan_read_ns + management.scan_clear_ns);
                cost.bytes = regions.checked * 2 * LINE_BYTES;
                cost.searched += regions.len() as u64;
            }
            Tracker::Pcc { table, cost } => {
                for (block, count) in table.iter() {
                    let from = (*block << BLOCK_SHIFT) as usize;
                    let to = (from + BLOCK_PAGES as usize).min(pages);
                    out[from.min(to)..to].fill(f32::from(*count));
                }
                table.iter_mut().for_each(|(_, count)| *count /= 2);
                cost.fixed_ns += table.len() as f64 * management.scan_read_ns;
                cost.searched += table.len() as u64;
            }
        }
    }
}

fn grow(heat: &mut Vec<f32>, page: u32) {
    if heat.len() <= page as usize {
        heat.resize((page as usize + 1).next_multiple_of(BLOCK_PAGES as usize), 0.0);
    }
}

/// The candidate table of PCC: counts a region, in the place of the least frequent if it is new; a full count halves all.
fn see_candidate(table: &mut Vec<(u32, u8)>, block: u32) {
    if let Some((_, count)) = table.iter_mut().find(|(held, _)| *held == block) {
        *count += 1;
        if *count == u8::MAX {
            table.iter_mut().for_each(|(_, count)| *count /= 2);
        }
    } else if table.len() < PCC_ENTRIES {
        table.push((block, 1));
    } else if let Some(least) = table.iter_mut().min_by_key(|(_, count)| *count) {
        *least = (block, 1);
    }
}

/// One round of accessed bits at the operating system's page size: heat halves, and a page used since gains `worth`. Returns
/// entries read and bits cleared.
fn accessed_bits(heat: &mut Vec<f32>, uses: &Uses, since: u32, worth: f32) -> (u64, u64) {
    let pages = uses.pages();
    if heat.len() < pages as usize {
        heat.resize(pages as usize, 0.0);
    }
    let (mut read, mut cleared) = (0, 0);
    for block in 0..pages.div_ceil(BLOCK_PAGES) {
        let first = block << BLOCK_SHIFT;
        let range = first as usize..(first + BLOCK_PAGES).min(pages) as usize;
        let used = uses.used_block(block, since);
        read += 1;
        if uses.is_huge(first) {
            cleared += u64::from(used);
            let gain = if used { worth } else { 0.0 };
            heat[range].iter_mut().for_each(|heat| *heat = *heat / 2.0 + gain);
            continue;
        }
        read += if used { u64::from(BLOCK_PAGES) } else { 0 };
        for page in range {
            let used = uses.used_page(page as u32, since);
            cleared += u64::from(used);
            heat[page] = heat[page] / 2.0 + if used { worth } else { 0.0 };
        }
    }
    (read, cleared)
}

fn charge_bits(cost: &mut Cost, (read, cleared): (u64, u64), management: &Management) {
    cost.linear_ns += read as f64 * management.scan_read_ns + cleared as f64 * management.scan_clear_ns;
    cost.bytes += read * 8 + cleared * LINE_BYTES;
}

impl Counted {
    #[inline]
    fn see(&mut self, access: &Access) {
        if !access.huge {
            return;
        }
        let counted = match self.when {
            When::FirstMiss => access.found > 0,
            When::SecondMiss => access.found > 1,
            When::Every => true,
            When::Random(_) | When::Nth(_) => {
                self.left -= 1;
                self.left == 0
            }
        };
        if !counted {
            return;
        }
        self.left = match self.when {
            When::Nth(n) => n,
            When::Random(n) => {
                self.random = mix(self.random);
                let unit = ((self.random >> 11) + 1) as f64 / (1u64 << 53) as f64;
                1 + (unit.ln() / (1.0 - 1.0 / f64::from(n)).ln()) as u32
            }
            _ => u32::MAX,
        };
        self.counters.increment(access.page);
        self.cost.fixed_ns += self.sync_ns;
        let line = (u64::from(access.page) >> 18 << 16) + self.counters.line(access.page);
        if let Filtered::Miss { writeback } = self.lines.access(line, true) {
            self.cost.bytes += LINE_BYTES * (1 + u64::from(writeback.is_some()));
        }
    }

    fn end_window(&mut self, uses: &Uses, since: u32, management: &Management, out: &mut [f32]) {
        let (mut counted, mut sum, mut live, mut tables) = (0u64, 0.0f64, 0u64, 3u64);
        let blocks = (out.len() as u32).div_ceil(BLOCK_PAGES);
        for block in 0..blocks {
            let first = block << BLOCK_SHIFT;
            tables += u64::from(block % BLOCK_PAGES == 0);
            if !uses.is_huge(first) {
                continue;
            }
            let before = counted;
            for page in first..(first + BLOCK_PAGES).min(out.len() as u32) {
                let count = self.counters.get(page);
                out[page as usize] = count as f32;
                counted += u64::from(count > 0);
                sum += count as f64;
            }
            live += u64::from(counted > before);
            self.counters.halve(first);
        }
        // As the policy does it: a 4 KiB mapping's accessed bit counts as the mean piece does.
        let worth = if counted > 0 { (sum / counted as f64) as f32 } else { 16.0 };
        let (read, cleared) = accessed_bits(&mut self.small, uses, since, worth);
        for (page, out) in out.iter_mut().enumerate() {
            if !uses.is_huge(page as u32) {
                *out = self.small[page];
            }
        }
        charge_bits(&mut self.cost, (read + tables * u64::from(BLOCK_PAGES), cleared), management);
        let lines = live * u64::from(BLOCK_PAGES) * Width::W16.bytes() / LINE_BYTES;
        self.cost.linear_ns += lines as f64 * 2.0 * 8.0 * management.scan_read_ns;
        self.cost.bytes += lines * 2 * LINE_BYTES;
        self.cost.searched += live * u64::from(BLOCK_PAGES) + read;
    }
}

impl MemtisSplit {
    fn see(&mut self, access: &Access) {
        if !self.pebs.samples(access) {
            return;
        }
        let page = self.know(access.page >> BLOCK_SHIFT, access.huge).plus(access.page & (BLOCK_PAGES - 1));
        let marked = self.heat.sample(page, &mut self.pages).is_some() && {
            let value = self.heat.value(page, &self.pages);
            terrace_policies::parts::bins::visible_bin(terrace_policies::parts::bins::fine_bin(value)) >= self.hot_bin
        };
        let fast = self.fast.get(access.page as usize).copied().unwrap_or(false);
        self.decision.sample(fast, marked);
    }

    /// Its own record of pages has this block, huge if it is. Returns its first number there: between two processes lie numbers that
    /// nobody uses.
    fn know(&mut self, block: u32, huge: bool) -> PageId {
        if self.blocks.len() <= block as usize {
            self.blocks.resize(block as usize + 1, UNKNOWN);
        }
        if self.blocks[block as usize] != UNKNOWN {
            return PageId(self.blocks[block as usize]);
        }
        let start = u64::from(block << BLOCK_SHIFT);
        for new in self.pages.map(SpaceId(0), Vpn(start)..Vpn(start + u64::from(BLOCK_PAGES))) {
            self.blocks[block as usize] = new.first_page().0;
            self.pages.set_huge(new, huge);
            (0..BLOCK_PAGES).for_each(|offset| {
                self.pages.set_tier(new.first_page().plus(offset), Some(TierId::FAST));
            });
        }
        let first = PageId(self.blocks[block as usize]);
        self.known += u64::from(BLOCK_PAGES);
        self.heat.fit(&self.pages);
        self.heat.refresh(first, &mut self.pages);
        first
    }

    fn end_window(&mut self, uses: &Uses, fast: usize, management: &Management, out: &mut [f32]) {
        self.windows += 1;
        for (block, out) in (0..).zip(out.chunks_mut(BLOCK_PAGES as usize)) {
            // Time begins at 1; what was used then or later has memory.
            if !uses.used_block(block, 1) {
                continue;
            }
            let first = self.know(block, uses.is_huge(block << BLOCK_SHIFT));
            let huge = self.pages.block(first.block()).is_some_and(|info| info.huge);
            for (offset, out) in (0..).zip(out) {
                // The counts start at 1: what was never sampled is not hot.
                let count = match huge {
                    true => self.heat.unit_value(first, &self.pages),
                    false => self.heat.value(first.plus(offset), &self.pages),
                };
                *out = count.saturating_sub(1) as f32;
            }
        }
        let capacity = fast as u64;
        self.hot_bin = fit(&self.heat.base_histogram(), capacity).lowest.max(1);
        let picks = super::score::hottest(out, fast);
        self.fast.clear();
        self.fast.resize(out.len(), false);
        picks.iter().for_each(|page| self.fast[*page as usize] = true);
        let split = self.decision.decide(&self.heat, &self.pages, self.hot_bin, capacity, self.windows);
        for block in split {
            self.pages.set_huge(block, false);
            (0..BLOCK_PAGES).for_each(|offset| self.heat.refresh(block.first_page().plus(offset), &mut self.pages));
        }
        self.heat.cool();
        let changes = self.heat.take_changes();
        self.heat.give_back(changes);
        self.pebs.charge(management);
        // Cooling and the choice of splits look at every page.
        self.pebs.cost.searched += self.known;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_candidate_table_keeps_the_frequent() {
        let mut table = Vec::new();
        for _ in 0..50 {
            for block in 0..10 {
                see_candidate(&mut table, block);
            }
        }
        (1000..1300).for_each(|block| see_candidate(&mut table, block));
        assert_eq!(table.len(), PCC_ENTRIES);
        for block in 0..10 {
            assert!(table.contains(&(block, 50)), "block {block}");
        }
        (0..300).for_each(|_| see_candidate(&mut table, 3));
        let count = |block| table.iter().find(|(held, _)| *held == block).unwrap().1;
        assert!(count(3) > 100 && count(4) <= 25, "a full count halves all: {} {}", count(3), count(4));
    }

    #[test]
    fn accessed_bits_see_one_bit_for_a_huge_page_and_each_page_otherwise() {
        let mut uses = Uses::default();
        uses.fit(1024);
        uses.see(5, 1, true);
        (512..1024).for_each(|page| uses.see(page, 0, false));
        uses.see(600, 1, false);
        let mut heat = Vec::new();
        let (read, cleared) = accessed_bits(&mut heat, &uses, 1, 1.0);
        assert_eq!((read, cleared), (2 + 512, 2));
        assert!(heat[..512].iter().all(|heat| *heat == 1.0), "all pieces look alike");
        assert_eq!((heat[600], heat[601]), (1.0, 0.0));
    }

    #[test]
    fn memtis_keeps_records_of_what_is_used_and_of_nothing_between_two_processes() {
        let management = terrace_machine::preset::Machine::preset("cxl-pond").unwrap().management;
        let far = 1u32 << 20;
        let mut all = Tracker::all(0.5, Bytes::mib(1), 80.0, 170.0);
        let memtis = all.iter_mut().find(|tracker| tracker.name() == "memtis-split").unwrap();
        let mut uses = Uses::default();
        for page in [3, far + 700] {
            uses.see(page, 1, true);
            // 199 loads that reach memory are one sample.
            for _ in 0..199 * 5 {
                memtis.see(&Access { page, huge: true, store: false, missed: true, found: 0 });
            }
        }
        let mut out = Vec::new();
        memtis.end_window(&uses, 1, 100, &management, &mut out);
        assert!(out[3] > 0.0 && out[3] == out[500], "a huge page is known as one");
        assert_eq!((out[512], out[far as usize + 100]), (0.0, 0.0));
        assert_eq!(out[far as usize + 700], out[3]);
        let searched = memtis.cost().searched;
        assert_eq!(searched, 2 * 512, "two huge pages, not the 4 GiB between them");
    }
}
