//! Address translation of one core: two levels of TLB, entries of 4 KiB and 2 MiB.
//!
//! In: page numbers and whether they are mapped huge. Out: where the translation was found. Must not: hold page tables,
//! or know costs; a walk's price is the preset's, and a walker with tables and counters of its own can stand behind
//! [`Translation::Walk`], or be handed to [`Tlb::run`], without a change here.
//!
//! Both levels are set-associative with hashed sets and replace by the one-bit approximation of LRU of
//! [`crate::associative`]. The second level is asked and filled only where the first missed; an entry that leaves one
//! level stays in the other. The page of the latest translation is known without asking, which leaves no trace in the
//! use bits.

use crate::associative::Associative;
use crate::preset::TlbSpec;
use crate::scale::Scale;
use terrace_core::units::BLOCK_SHIFT;

/// Marks keys of 2 MiB entries in the shared second level. Page numbers stay below it: 2^31 pages are 8 TiB.
const HUGE_KEY: u32 = 1 << 31;

/// Where a translation was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Translation {
    /// In the first level.
    First = 0,
    /// In the second level.
    Second = 1,
    /// Nowhere: the page table is walked.
    Walk = 2,
}

/// A page to translate, and how it is mapped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Request(u32);

impl Request {
    /// A page below 2^31.
    #[inline(always)]
    pub const fn new(page: u32, huge: bool) -> Request {
        Request(page | (huge as u32) << 31)
    }

    /// The page.
    #[inline(always)]
    pub const fn page(self) -> u32 {
        self.0 & !HUGE_KEY
    }

    /// Whether a 2 MiB entry maps it.
    #[inline(always)]
    pub const fn huge(self) -> bool {
        self.0 & HUGE_KEY != 0
    }

    #[inline(always)]
    const fn key(self) -> u32 {
        if self.huge() { (self.page() >> BLOCK_SHIFT) | HUGE_KEY } else { self.page() }
    }
}

/// What a run of translations found beyond the first level, small pages first, then huge ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Found in the second level.
    pub second: [u32; 2],
    /// Walked.
    pub walks: [u32; 2],
}

/// The TLBs of one core.
#[derive(Clone, Debug)]
pub struct Tlb {
    first_small: Associative,
    first_huge: Associative,
    second: Associative,
    /// The page of the latest translation: programs stay on a page for several accesses.
    last: u32,
}

impl Tlb {
    /// TLBs of the size the preset states, shrunk by the scale to no less than one set each, so that their reach keeps
    /// its share of the footprint.
    pub fn new(spec: &TlbSpec, scale: Scale) -> Tlb {
        let table = |level: crate::preset::TlbLevel| {
            Associative::new(scale.count(u64::from(level.entries), u64::from(level.ways)), level.ways)
        };
        Tlb {
            first_small: table(spec.first_small),
            first_huge: table(spec.first_huge),
            second: table(spec.second),
            last: u32::MAX,
        }
    }

    /// Translates a page, and fills what missed.
    #[inline]
    pub fn translate(&mut self, page: u32, huge: bool) -> Translation {
        let request = Request::new(page, huge);
        if request.page() == self.last {
            return Translation::First;
        }
        self.last = request.page();
        if self.first(request).touch(request.key()) {
            Translation::First
        } else if self.second.touch(request.key()) {
            Translation::Second
        } else {
            Translation::Walk
        }
    }

    /// Translates a run of pages in order and calls `walk` for each that neither level knew, in order too. `missed` is
    /// room for the run, and holds nothing of worth afterwards. `meanwhile` is called once for each request, with its
    /// place in the run: looking up is computing only, and leaves the host time to fetch what comes next. Either may be
    /// `|_| ()` and then costs nothing.
    ///
    /// The levels are gone through one after the other for the whole run, as neither looks at the other's state: what
    /// the first level misses is collected without a branch, since it cannot be foretold.
    ///
    /// # Panics
    /// When `missed` is shorter than `requests`.
    #[inline]
    pub fn run(
        &mut self,
        requests: &[Request],
        missed: &mut [Request],
        walk: impl FnMut(Request),
        meanwhile: impl FnMut(usize),
    ) -> Found {
        let all_small = !requests.iter().fold(Request::default(), |all, one| Request(all.0 | one.0)).huge();
        match (self.first_small.vectors(), self.first_huge.vectors(), self.second.vectors(), all_small) {
            // The ways of all cores we have presets of.
            (1, 1, 3, true) => {
                let first = |tlb: &mut Tlb, request: Request| tlb.first_small.touch_in::<1>(request.page());
                let second = |tlb: &mut Tlb, request: Request| tlb.second.touch_in::<3>(request.page());
                self.run_in(requests, missed, walk, meanwhile, first, second)
            }
            (1, 1, 3, false) => {
                let first = |tlb: &mut Tlb, request: Request| tlb.first(request).touch_in::<1>(request.key());
                let second = |tlb: &mut Tlb, request: Request| tlb.second.touch_in::<3>(request.key());
                self.run_in(requests, missed, walk, meanwhile, first, second)
            }
            _ => {
                let first = |tlb: &mut Tlb, request: Request| tlb.first(request).touch(request.key());
                let second = |tlb: &mut Tlb, request: Request| tlb.second.touch(request.key());
                self.run_in(requests, missed, walk, meanwhile, first, second)
            }
        }
    }

    #[inline(always)]
    fn first(&mut self, request: Request) -> &mut Associative {
        if request.huge() { &mut self.first_huge } else { &mut self.first_small }
    }

    #[inline(always)]
    fn run_in(
        &mut self,
        requests: &[Request],
        missed: &mut [Request],
        mut walk: impl FnMut(Request),
        mut meanwhile: impl FnMut(usize),
        first: impl Fn(&mut Tlb, Request) -> bool,
        second: impl Fn(&mut Tlb, Request) -> bool,
    ) -> Found {
        let missed = &mut missed[..requests.len()];
        let mut count = 0;
        let mut last = self.last;
        for (at, &request) in requests.iter().enumerate() {
            meanwhile(at);
            if request.page() == last {
                continue;
            }
            last = request.page();
            let hit = first(self, request);
            missed[count] = request;
            count += usize::from(!hit);
        }
        self.last = last;
        let mut found = Found::default();
        let (mut huge, mut walks, mut huge_walks) = (0, 0, 0);
        for &request in &missed[..count] {
            let hit = second(self, request);
            huge += u32::from(request.huge());
            walks += u32::from(!hit);
            huge_walks += u32::from(!hit & request.huge());
            if !hit {
                walk(request);
            }
        }
        found.walks = [walks - huge_walks, huge_walks];
        found.second = [count as u32 - huge - found.walks[0], huge - huge_walks];
        found
    }

    /// Forgets one page, or the whole huge page it belongs to.
    pub fn flush_page(&mut self, page: u32, huge: bool) {
        let key = Request::new(page, huge).key();
        let first = if huge { &mut self.first_huge } else { &mut self.first_small };
        first.remove(first.set_of(u64::from(key)), key);
        self.second.remove(self.second.set_of(u64::from(key)), key);
        self.last = u32::MAX;
    }

    /// Forgets everything.
    pub fn flush(&mut self) {
        self.first_small.clear();
        self.first_huge.clear();
        self.second.clear();
        self.last = u32::MAX;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::preset::Machine;

    fn tlb() -> Tlb {
        Tlb::new(&Machine::preset("optane-6252").unwrap().processor.tlb, Scale::FULL)
    }

    fn walks(tlb: &mut Tlb, pages: impl Iterator<Item = u32>, huge: bool) -> usize {
        pages.filter(|&page| tlb.translate(page, huge) == Translation::Walk).count()
    }

    #[test]
    fn what_fits_walks_once_and_huge_entries_reach_512_times_as_far() {
        let mut small = tlb();
        assert_eq!(walks(&mut small, 0..1000, false), 1000);
        assert!(walks(&mut small, 0..1000, false) < 50, "1000 pages fit 1536 entries");
        // 1000 huge pages: touched once a block they walk 1000 times, and then hardly ever over 512,000 pages.
        let mut huge = tlb();
        assert_eq!(walks(&mut huge, (0..1000).map(|block| block << BLOCK_SHIFT), true), 1000);
        assert!(walks(&mut huge, (0..512_000).step_by(7), true) < 50);
    }

    #[test]
    fn uniform_access_hits_in_proportion_to_the_reach() {
        // 1536 entries for 15,360 pages at random: one access in ten is found.
        let mut tlb = tlb();
        let mut state = 1u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 33) % 15_360) as u32
        };
        let warm: Vec<u32> = (0..50_000).map(|_| next()).collect();
        walks(&mut tlb, warm.into_iter(), false);
        let pages: Vec<u32> = (0..200_000).map(|_| next()).collect();
        let share = walks(&mut tlb, pages.into_iter(), false) as f64 / 200_000.0;
        assert!((share - 0.9).abs() < 0.01, "{share}");
    }

    #[test]
    fn a_flush_makes_the_next_translation_walk() {
        let mut tlb = tlb();
        tlb.translate(7, false);
        tlb.translate(1024, true);
        assert_eq!(tlb.translate(7, false), Translation::First);
        tlb.flush_page(7, false);
        assert_eq!(tlb.translate(7, false), Translation::Walk);
        tlb.flush_page(1030, true);
        assert_eq!(tlb.translate(1024, true), Translation::Walk);
        tlb.flush();
        assert_eq!(tlb.translate(7, false), Translation::Walk);
    }

    #[test]
    fn a_run_finds_what_one_translation_after_the_other_finds_and_names_each_walk() {
        let (mut one, mut many) = (tlb(), tlb());
        let (mut state, mut page) = (3u64, 0);
        for _ in 0..200 {
            let requests: Vec<Request> = (0..100)
                .map(|_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    // The upper half is mapped huge; one page in four comes again at once.
                    let again = state >> 62 == 3;
                    page = if again { page } else { ((state >> 33) % 8192) as u32 };
                    Request::new(page, page >= 4096)
                })
                .collect();
            let mut walked = Vec::new();
            let mut expected = (Found::default(), Vec::new());
            let found = many.run(&requests, &mut vec![Request::default(); 100], |request| walked.push(request), |_| ());
            for &request in &requests {
                match one.translate(request.page(), request.huge()) {
                    Translation::First => {}
                    Translation::Second => expected.0.second[usize::from(request.huge())] += 1,
                    Translation::Walk => {
                        expected.0.walks[usize::from(request.huge())] += 1;
                        expected.1.push(request);
                    }
                }
            }
            assert_eq!((found, walked), expected);
        }
    }
}
