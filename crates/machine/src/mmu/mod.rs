//! The memory management unit: translation with its page tables, and hotness counters for the pieces of huge pages.
//!
//! In: each core's accesses, by page and size of mapping. Out: nanoseconds a core waits for translation and counting, lines
//! that walks and counters touch, accessed bits, counters. Must not: know a policy, or where data is beyond its inputs.
//!
//! Source: hotness walk (course report, undated; its latest references are of 2023). When a core translates through a PMD
//! entry that maps 2 MiB, the MMU may also increment a counter of the 4 KiB piece that was used, in memory right behind the
//! PMD table. [`spec`] has the constants and which of them the paper states; [`tables`] the radix trees, [`counters`] the
//! counters, [`contention`] what updates from several cores cost, [`sweep`] how an operating system reads it all.
//!
//! Translation is that of [`crate::tlb`], with a TLB for 1 GiB entries beside it. What a walk reads passes through the
//! caller's cache hierarchy ([`Lines`]), and so costs what the tier of the table costs where it is not cached. Walks of one core
//! overlap with its other loads as those do among each other, and with each other as long as a walker is free.

pub mod contention;
pub mod counters;
pub mod spec;
pub mod sweep;
pub mod tables;
pub mod walk_cache;

use terrace_core::units::{SpaceId, TierId};

use crate::associative::Associative;
use crate::tlb::{Tlb, Translation};
use contention::Contention;
use counters::Counters;
pub use spec::{CounterSpec, Layout, MmuSpec, NotOffered, Size, Sync, TablePlacement, When, Width};
pub use sweep::SweepCost;
use tables::{REGION_SHIFT, Step, Tables};
use walk_cache::WalkCache;

/// Entries for 1 GiB pages of the two levels; see the table in [`spec`].
const GIANT_FIRST: u64 = 4;
const GIANT_SECOND: u64 = 16;

/// The cache hierarchy and memory that walks and counter updates go through.
pub trait Lines {
    /// One line is read, or read and written; `tier` is where it lies. Returns the nanoseconds until it is there.
    fn touch(&mut self, line: u64, write: bool, tier: TierId) -> f64;
}

/// One access, as the MMU sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Use {
    /// The page.
    pub page: u32,
    /// How it is mapped.
    pub size: Size,
    /// Whether it is written.
    pub store: bool,
    /// Where it lies.
    pub tier: TierId,
    /// Share of the time until the translation is there that the core waits for: 1 where the address came from the load before,
    /// 1/n where n loads are under way at a time.
    pub share: f64,
}

/// What a core did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CoreTotals {
    /// Translations found in the second level.
    pub second_hits: u64,
    /// Translations that walked.
    pub walks: u64,
    /// Entries that walks read.
    pub entries: u64,
    /// Nanoseconds it waited for walks and for hits in the second level, queues included.
    pub walk_ns: f64,
    /// Of these, for a walker to be free.
    pub queued_ns: f64,
    /// Accesses through entries of 2 MiB.
    pub huge_accesses: u64,
    /// Of `walk_ns`, for the translation of these.
    pub huge_walk_ns: f64,
    /// Counters it updated.
    pub updates: u64,
    /// Nanoseconds it waited for their synchronisation.
    pub sync_ns: f64,
}

/// One core's part.
#[derive(Clone, Debug)]
struct Core {
    tlb: Tlb,
    giant: [Associative; 2],
    last_giant: u32,
    walk_cache: WalkCache,
    /// When each walker is free again, in the core's own nanoseconds.
    walkers: Vec<f64>,
    /// Accesses to huge pages until the next that is counted, where every so-many-th is.
    left: u32,
    random: u64,
    totals: CoreTotals,
}

impl Core {
    /// A walk that takes so long could begin at `from`. Returns how long it must wait for a walker.
    #[inline]
    fn walk(&mut self, from: f64, nanos: f64) -> f64 {
        let (mut first, mut free) = (0, f64::INFINITY);
        for (number, &at) in self.walkers.iter().enumerate() {
            if at < free {
                (first, free) = (number, at);
            }
        }
        let begin = from.max(free);
        self.walkers[first] = begin + nanos;
        begin - from
    }
}

/// See the module's header.
#[derive(Clone, Debug)]
pub struct Mmu {
    spec: MmuSpec,
    cores: Vec<Core>,
    /// The page tables.
    pub tables: Tables,
    counters: Option<Counters>,
    contention: Option<Contention>,
    /// Bit k: a translation found at level k of [`Translation`] is counted. 8: accesses are counted down instead.
    counted: u8,
    sync_ns: f64,
    /// TLB shootdowns so far.
    pub shootdowns: u64,
}

const BY_COUNTDOWN: u8 = 8;

impl Mmu {
    /// An MMU with empty tables and no spaces.
    pub fn new(spec: MmuSpec) -> Mmu {
        let region_bytes = spec.counters.map_or(0, |counters| Counters::region_bytes(counters.layout, counters.width));
        let counted = match spec.counters.map(|counters| counters.when) {
            None => 0,
            Some(When::FirstMiss) => 0b110,
            Some(When::SecondMiss) => 0b100,
            Some(When::Every) => 0b111,
            Some(When::Random(_) | When::Nth(_)) => BY_COUNTDOWN,
        };
        let coherent = spec.counters.is_some_and(|counters| counters.sync == Sync::Coherent);
        let core = |number: usize| Core {
            tlb: Tlb::new(&spec.tlb, spec.scale),
            giant: [
                Associative::new(spec.scale.count(GIANT_FIRST, 4), 4),
                Associative::new(spec.scale.count(GIANT_SECOND, 4), 4),
            ],
            last_giant: u32::MAX,
            walk_cache: WalkCache::default(),
            walkers: vec![0.0; spec.tlb.walkers.max(1) as usize],
            left: 0,
            random: 0x9e37_79b9_7f4a_7c15 ^ (number as u64) << 32,
            totals: CoreTotals::default(),
        };
        let mut mmu = Mmu {
            cores: (0..spec.cores.max(1)).map(core).collect(),
            tables: Tables::new(region_bytes),
            counters: spec.counters.map(|counters| Counters::new(counters.layout, counters.width)),
            contention: coherent.then(|| Contention::new(region_bytes, spec.frequency_hertz)),
            counted,
            sync_ns: match spec.counters.map(|counters| counters.sync) {
                Some(Sync::Cycles(cycles)) => f64::from(cycles) * 1e9 / spec.frequency_hertz,
                _ => 0.0,
            },
            shootdowns: 0,
            spec,
        };
        for core in 0..mmu.cores.len() {
            mmu.cores[core].left = mmu.reload(core);
        }
        mmu
    }

    /// What it was asked to be.
    pub fn spec(&self) -> &MmuSpec {
        &self.spec
    }

    /// Makes a space known; see [`Tables::add_space`].
    pub fn add_space(&mut self, id: SpaceId, first: u32, base: u64) {
        let tier = if self.spec.placement == TablePlacement::Slow { self.spec.slow } else { TierId::FAST };
        self.tables.add_space(id, first, base, tier);
    }

    /// One access of a core; `now` is the core's own time, in nanoseconds. A page that the tables do not hold at that size is
    /// entered. Returns the nanoseconds the core waits.
    #[inline(always)]
    pub fn access(&mut self, core: usize, used: Use, now: f64, lines: &mut impl Lines) -> f64 {
        let found = match used.size {
            Size::Giant => self.translate_giant(core, used.page),
            size => self.cores[core].tlb.translate(used.page, size == Size::Huge),
        };
        let mut waited = 0.0;
        if found != Translation::First {
            waited = self.missed(core, used, found, now, lines);
        }
        if used.size == Size::Huge {
            let totals = &mut self.cores[core].totals;
            totals.huge_accesses += 1;
            totals.huge_walk_ns += waited;
            if self.counted != 0 && self.is_counted(core, found) {
                waited += self.count(core, used.page, now + waited, lines);
            }
        }
        waited
    }

    /// Asks the host to bring what translating the page may read into its cache: the last entry of a walk, or the counter.
    /// Returns the line of the machine's memory that it lies on, if it is known.
    #[inline]
    pub fn prefetch(&self, page: u32, huge: bool) -> Option<u64> {
        if !huge {
            return self.tables.prefetch(page);
        }
        let counters = self.counters.as_ref()?;
        counters.prefetch(page);
        self.tables.is_region(page).then(|| self.tables.counter_line(page).0 + counters.line(page))
    }

    #[inline(always)]
    fn is_counted(&mut self, core: usize, found: Translation) -> bool {
        if self.counted != BY_COUNTDOWN {
            return self.counted >> found as u8 & 1 != 0;
        }
        let left = &mut self.cores[core].left;
        *left -= 1;
        if *left > 0 {
            return false;
        }
        self.cores[core].left = self.reload(core);
        true
    }

    /// Accesses until the next that is counted: always as many, or drawn so that each is counted with the same probability.
    fn reload(&mut self, core: usize) -> u32 {
        match self.spec.counters.map(|counters| counters.when) {
            Some(When::Nth(n)) => n,
            Some(When::Random(n)) => {
                let state = &mut self.cores[core].random;
                *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                // Uniform above 0 and up to 1; the gap between successes of probability 1/n is geometric.
                let unit = ((*state >> 11) + 1) as f64 / (1u64 << 53) as f64;
                let gap = unit.ln() / (1.0 - 1.0 / f64::from(n)).ln();
                1 + gap.min(f64::from(u32::MAX - 1)) as u32
            }
            _ => u32::MAX,
        }
    }

    /// The slow half of `access`, apart so that the fast half stays small.
    #[inline(never)]
    fn missed(&mut self, core: usize, used: Use, found: Translation, now: f64, lines: &mut impl Lines) -> f64 {
        let Use { page, size, store, tier, share } = used;
        let second = self.spec.tlb.second_hit_ns + f64::from(self.spec.miss_cycles) * 1e9 / self.spec.frequency_hertz;
        if found == Translation::Second {
            let totals = &mut self.cores[core].totals;
            totals.second_hits += 1;
            totals.walk_ns += second * share;
            return second * share;
        }
        if self.tables.size_of(page) != Some(size) {
            self.enter(page, size, tier);
        }
        let root = self.tables.step(page, 4);
        let root_entry = root.table * 512 + root.index;
        let core = &mut self.cores[core];
        let top = core.walk_cache.start(page, size, root_entry);
        let lowest = match size {
            Size::Small => 1,
            Size::Huge => 2,
            Size::Giant => 3,
        };
        let mut walk = 0.0;
        for level in (lowest..=top).rev() {
            let step: Step = self.tables.step(page, level);
            let changed = self.tables.mark(step, store);
            let (line, tier) = self.tables.line(step);
            walk += lines.touch(line, changed, tier);
        }
        let queued = core.walk(now + second, walk);
        let waited = queued + (second + walk) * share;
        core.totals.walks += 1;
        core.totals.entries += u64::from(top - lowest + 1);
        core.totals.walk_ns += waited;
        core.totals.queued_ns += queued;
        waited
    }

    /// Enters a page into the tables as it is mapped now.
    #[cold]
    fn enter(&mut self, page: u32, size: Size, tier: TierId) {
        let first = page & !(size.pages() - 1);
        for page in first..first + size.pages() {
            self.tables.unmap(page);
        }
        let tier = match self.spec.placement {
            TablePlacement::Fast => TierId::FAST,
            TablePlacement::Slow => self.spec.slow,
            TablePlacement::WithData => tier,
        };
        self.tables.map(page, size, tier);
    }

    /// Increments the counter of a piece of a huge page. Returns the nanoseconds the core waits.
    #[inline(never)]
    fn count(&mut self, core: usize, page: u32, now: f64, lines: &mut impl Lines) -> f64 {
        let Some(counters) = &mut self.counters else { return 0.0 };
        counters.increment(page);
        let line = counters.line(page);
        let (first, tier) = self.tables.counter_line(page);
        let fetch = lines.touch(first + line, true, tier);
        let waited = match &mut self.contention {
            Some(contention) => contention.update(page, line, core, now, fetch),
            None => self.sync_ns,
        };
        let totals = &mut self.cores[core].totals;
        totals.updates += 1;
        totals.sync_ns += waited;
        waited
    }

    fn translate_giant(&mut self, core: usize, page: u32) -> Translation {
        let key = page >> REGION_SHIFT;
        let core = &mut self.cores[core];
        if core.last_giant == key {
            return Translation::First;
        }
        core.last_giant = key;
        let [first, second] = &mut core.giant;
        if first.touch(key) {
            Translation::First
        } else if second.touch(key) {
            Translation::Second
        } else {
            Translation::Walk
        }
    }

    /// A page's mapping changed or goes: every core forgets it, and its paging-structure caches, as INVLPG does.
    pub fn shootdown(&mut self, page: u32, size: Size) {
        self.shootdowns += 1;
        for core in &mut self.cores {
            match size {
                Size::Giant => {
                    let key = page >> REGION_SHIFT;
                    for level in &mut core.giant {
                        level.remove(level.set_of(u64::from(key)), key);
                    }
                    core.last_giant = u32::MAX;
                }
                _ => core.tlb.flush_page(page, size == Size::Huge),
            }
            core.walk_cache.flush();
        }
    }

    /// Every core forgets every translation.
    pub fn flush(&mut self) {
        for core in &mut self.cores {
            core.tlb.flush();
            core.giant.iter_mut().for_each(Associative::clear);
            core.last_giant = u32::MAX;
            core.walk_cache.flush();
        }
    }

    /// Pages vanish: their entries, translations and counters go.
    pub fn unmap(&mut self, pages: std::ops::Range<u32>) {
        let mut page = pages.start;
        while page < pages.end {
            let size = self.tables.unmap(page);
            if let Some(size) = size {
                self.shootdown(page, size);
                if let (Size::Huge, Some(counters)) = (size, &mut self.counters) {
                    counters.forget(page);
                }
            }
            let step = size.unwrap_or(Size::Small).pages();
            page = (page & !(step - 1)) + step;
        }
    }

    /// The 2 MiB page of `page` is mapped by 4 KiB entries from now on. 4 KiB mappings have no counters.
    pub fn split(&mut self, page: u32) {
        if self.tables.size_of(page) == Some(Size::Huge) {
            self.tables.split(page);
        }
        if let Some(counters) = &mut self.counters {
            counters.forget(page);
        }
        self.shootdown(page, Size::Huge);
    }

    /// The 2 MiB around `page`, which lie in `tier`, are mapped by one entry from now on.
    pub fn collapse(&mut self, page: u32, tier: TierId) {
        let first = page & !(Size::Huge.pages() - 1);
        for page in first..first + Size::Huge.pages() {
            if self.tables.size_of(page) == Some(Size::Small) {
                self.shootdown(page, Size::Small);
            }
        }
        let tier = match self.spec.placement {
            TablePlacement::Fast => TierId::FAST,
            TablePlacement::Slow => self.spec.slow,
            TablePlacement::WithData => tier,
        };
        if self.tables.size_of(first) != Some(Size::Huge) {
            self.tables.collapse(first, tier);
        }
    }

    /// The counters, if there are any.
    pub fn counters(&self) -> Option<&Counters> {
        self.counters.as_ref()
    }

    /// The counters, to halve.
    pub fn counters_mut(&mut self) -> Option<&mut Counters> {
        self.counters.as_mut()
    }

    /// What contention cost so far, where it is modelled.
    pub fn contended(&self) -> Option<contention::Contended> {
        self.contention.as_ref().map(|contention| contention.contended)
    }

    /// What each core did.
    pub fn totals(&self) -> impl ExactSizeIterator<Item = &CoreTotals> {
        self.cores.iter().map(|core| &core.totals)
    }

    /// Bytes the machine spends on page tables, and on counters.
    pub fn memory_bytes(&self) -> (u64, u64) {
        self.tables.bytes()
    }

    /// Bytes this model occupies on the host.
    pub fn host_bytes(&self) -> usize {
        self.tables.host_bytes() + self.counters.as_ref().map_or(0, Counters::host_bytes)
    }
}

#[cfg(test)]
mod tests;
