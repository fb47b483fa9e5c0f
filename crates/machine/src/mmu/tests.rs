//! The MMU against cases computed by hand and against theory.

use super::*;
use crate::preset::Machine;
use crate::scale::Scale;

/// No cache: every line costs the latency of its tier, and is written down.
#[derive(Default)]
struct Plain {
    lines: Vec<(u64, bool, TierId)>,
}

impl Lines for Plain {
    fn touch(&mut self, line: u64, write: bool, tier: TierId) -> f64 {
        self.lines.push((line, write, tier));
        if tier == TierId::FAST { 80.0 } else { 170.0 }
    }
}

fn spec(counters: Option<CounterSpec>) -> MmuSpec {
    let processor = Machine::preset("cxl-pond").unwrap().processor;
    MmuSpec {
        tlb: processor.tlb,
        scale: Scale::FULL,
        cores: 2,
        frequency_hertz: 2e9,
        placement: TablePlacement::Fast,
        slow: TierId(1),
        miss_cycles: 0,
        counters,
    }
}

fn mmu(counters: Option<CounterSpec>) -> Mmu {
    let mut mmu = Mmu::new(spec(counters));
    mmu.add_space(SpaceId(0), 0, 0x1000_0000_0000 >> 12);
    mmu
}

fn touch(mmu: &mut Mmu, core: usize, page: u32, size: Size) -> f64 {
    mmu.access(core, Use { page, size, store: false, tier: TierId::FAST, share: 1.0 }, 0.0, &mut Plain::default())
}

fn walked(mmu: &mut Mmu, page: u32, size: Size) -> u64 {
    let before = mmu.totals().next().unwrap().entries;
    touch(mmu, 0, page, size);
    mmu.totals().next().unwrap().entries - before
}

#[test]
fn walks_read_the_entries_that_no_paging_structure_cache_holds() {
    let mut mmu = mmu(None);
    assert_eq!(walked(&mut mmu, 0, Size::Small), 4, "nothing is cached");
    assert_eq!(walked(&mut mmu, 0, Size::Small), 0, "the TLB has it");
    assert_eq!(walked(&mut mmu, 9, Size::Small), 1, "the PDE cache leads to the last table");
    assert_eq!(walked(&mut mmu, 512, Size::Small), 2, "the PDPTE cache leads to the PMD table");
    assert_eq!(walked(&mut mmu, 1 << 18, Size::Small), 3, "the PML4E cache leads to the PDPT");
    assert_eq!(walked(&mut mmu, 1 << 27, Size::Small), 4, "another entry of the root");
    assert_eq!(walked(&mut mmu, 4 << 9, Size::Huge), 1, "a huge page ends at the PMD table");
    assert_eq!(walked(&mut mmu, 5 << 18, Size::Giant), 1, "a giant one at the PDPT");
    assert_eq!(walked(&mut mmu, (5 << 18) + 77_777, Size::Giant), 0);
    assert_eq!(mmu.totals().next().unwrap().walks, 7);
    // The other core has TLBs and caches of its own.
    assert!(touch(&mut mmu, 1, 0, Size::Small) >= 4.0 * 80.0);
}

#[test]
fn a_walk_costs_what_its_tables_lie_on() {
    for (placement, nanos) in
        [(TablePlacement::Fast, 80.0), (TablePlacement::Slow, 170.0), (TablePlacement::WithData, 170.0)]
    {
        let mut mmu = Mmu::new(MmuSpec { placement, ..spec(None) });
        mmu.add_space(SpaceId(0), 0, 0);
        let mut lines = Plain::default();
        let slow_data = TierId(1);
        mmu.access(0, Use { page: 3, size: Size::Small, store: false, tier: slow_data, share: 1.0 }, 0.0, &mut lines);
        let waited = mmu.access(
            0,
            Use { page: 4, size: Size::Small, store: false, tier: slow_data, share: 1.0 },
            0.0,
            &mut lines,
        );
        assert!((waited - (3.5 + nanos)).abs() < 1e-9, "{placement:?}: {waited}");
    }
}

#[test]
fn cycles_for_every_miss_are_charged_whatever_the_page_size() {
    let mut mmu = Mmu::new(MmuSpec { miss_cycles: 100, ..spec(None) });
    mmu.add_space(SpaceId(0), 0, 0);
    // 100 cycles at 2 GHz beside the 3.5 ns of the second level and four lines of 80 ns.
    assert!((touch(&mut mmu, 0, 3, Size::Small) - (50.0 + 3.5 + 320.0)).abs() < 1e-9);
    assert_eq!(touch(&mut mmu, 0, 3, Size::Small), 0.0);
}

#[test]
fn accessed_bits_are_written_once_and_a_store_dirties_its_leaf() {
    let mut mmu = mmu(None);
    let mut lines = Plain::default();
    mmu.access(0, Use { page: 3, size: Size::Small, store: false, tier: TierId::FAST, share: 1.0 }, 0.0, &mut lines);
    assert_eq!(lines.lines.iter().filter(|line| line.1).count(), 4, "four entries were marked");
    mmu.shootdown(3, Size::Small);
    lines.lines.clear();
    mmu.access(0, Use { page: 3, size: Size::Small, store: true, tier: TierId::FAST, share: 1.0 }, 0.0, &mut lines);
    assert_eq!(lines.lines.iter().filter(|line| line.1).count(), 1, "only the leaf, which is dirty now");
}

#[test]
fn uniform_access_misses_in_proportion_to_what_the_tlb_does_not_reach() {
    // 1536 entries of the second level; N pages at random: 1 - 1536/N of the accesses walk.
    for (pages, size) in [(15_360u32, Size::Small), (6144, Size::Small), (3072, Size::Huge)] {
        let mut mmu = mmu(None);
        let mut state = 1u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 33) % u64::from(pages)) as u32 * size.pages()
        };
        for _ in 0..60_000 {
            touch(&mut mmu, 0, next(), size);
        }
        let before = mmu.totals().next().unwrap().walks;
        for _ in 0..200_000 {
            touch(&mut mmu, 0, next(), size);
        }
        let share = (mmu.totals().next().unwrap().walks - before) as f64 / 200_000.0;
        let expected = 1.0 - 1536.0 / f64::from(pages);
        assert!((share - expected).abs() < 0.012, "{pages} pages: {share}, expected {expected}");
    }
}

#[test]
fn counting_every_access_gives_the_true_counts() {
    let mut mmu = mmu(Some(CounterSpec { when: When::Every, width: Width::W64, ..CounterSpec::default() }));
    let mut truth = vec![0u64; 4096];
    let mut state = 7u64;
    for _ in 0..100_000 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let page = ((state >> 40) % 64 * (state >> 50) % 4096) as u32;
        truth[page as usize] += 1;
        touch(&mut mmu, (state >> 35 & 1) as usize, page, Size::Huge);
    }
    let counters = mmu.counters().unwrap();
    for (page, &count) in truth.iter().enumerate() {
        assert_eq!(counters.get(page as u32), count, "page {page}");
    }
    assert_eq!(mmu.totals().map(|core| core.updates).sum::<u64>(), 100_000);
    // 100 cycles at 2 GHz for each.
    assert!((mmu.totals().map(|core| core.sync_ns).sum::<f64>() - 100_000.0 * 50.0).abs() < 1e-3);
}

#[test]
fn each_sampling_policy_counts_what_it_says() {
    let run = |when: When| {
        let mut mmu = mmu(Some(CounterSpec { when, ..CounterSpec::default() }));
        // 64 huge pages in turn: all miss the 32 entries of the first level, all hit the 1536 of the second from the
        // second round on.
        for round in 0..100u32 {
            for block in 0..64u32 {
                touch(&mut mmu, 0, (block << 9) + round % 7, Size::Huge);
            }
        }
        mmu.totals().next().unwrap().updates
    };
    assert_eq!(run(When::Every), 6400);
    let first = run(When::FirstMiss);
    assert!((3000..=6400).contains(&first), "{first}");
    assert_eq!(run(When::SecondMiss), 64);
    assert_eq!(run(When::Nth(10)), 640);
    let random = run(When::Random(10));
    assert!((540..740).contains(&random), "{random}: 640 with a standard deviation of 24");
    // 4 KiB mappings have no counters.
    let mut small = mmu(Some(CounterSpec { when: When::Every, ..CounterSpec::default() }));
    touch(&mut small, 0, 3, Size::Small);
    assert_eq!((small.totals().next().unwrap().updates, small.counters().unwrap().get(3)), (0, 0));
}

#[test]
fn a_counter_update_reads_and_writes_the_line_behind_the_pmd_table() {
    let mut mmu = mmu(Some(CounterSpec { when: When::Every, sync: Sync::Nothing, ..CounterSpec::default() }));
    let mut lines = Plain::default();
    mmu.access(
        0,
        Use { page: 512 + 33, size: Size::Huge, store: false, tier: TierId::FAST, share: 1.0 },
        0.0,
        &mut lines,
    );
    let (first, _) = mmu.tables.counter_line(512);
    // 545 counters of two bytes: line 17.
    assert_eq!(lines.lines.last(), Some(&(first + 17, true, TierId::FAST)));
    assert_eq!(mmu.memory_bytes().1, 512 << 10, "a PMD table's counters, 16 bits each");
    lines.lines.clear();
    assert_eq!(
        mmu.access(
            0,
            Use { page: 512 + 33, size: Size::Huge, store: false, tier: TierId::FAST, share: 1.0 },
            0.0,
            &mut lines
        ),
        0.0,
        "posted: nobody waits"
    );
    assert_eq!(lines.lines.len(), 1);
}

#[test]
fn coherent_updates_of_one_line_wait_for_each_other() {
    let mut mmu = mmu(Some(CounterSpec { when: When::Every, sync: Sync::Coherent, ..CounterSpec::default() }));
    let mut lines = Plain::default();
    let mut at = |mmu: &mut Mmu, core, now| {
        mmu.access(
            core,
            Use { page: 5, size: Size::Huge, store: false, tier: TierId::FAST, share: 1.0 },
            now,
            &mut lines,
        )
    };
    at(&mut mmu, 0, 0.0);
    at(&mut mmu, 1, 0.0);
    // Both have the translation now. A line of its own costs a core 20 cycles, 10 ns.
    assert!((at(&mut mmu, 1, 10_000.0) - 10.0).abs() < 1e-9);
    // From the other core's cache: 100 cycles more. And one more core at the same time waits for that as well.
    assert!((at(&mut mmu, 0, 20_000.0) - 60.0).abs() < 1e-9);
    assert!((at(&mut mmu, 1, 20_000.0) - 120.0).abs() < 1e-9);
    assert!(mmu.contended().unwrap().wait_ns >= 60.0);
}

#[test]
fn spaces_are_isolated_and_shootdowns_reach_every_core() {
    let mut mmu = mmu(Some(CounterSpec { when: When::Every, ..CounterSpec::default() }));
    mmu.add_space(SpaceId(1), 1 << 20, 0x1000_0000_0000 >> 12);
    // The same virtual addresses in both.
    touch(&mut mmu, 0, 7, Size::Huge);
    touch(&mut mmu, 0, 7, Size::Huge);
    touch(&mut mmu, 0, (1 << 20) + 7, Size::Huge);
    let counters = mmu.counters().unwrap();
    assert_eq!((counters.get(7), counters.get((1 << 20) + 7)), (2, 1));
    let mut seen = Vec::new();
    mmu.tables.sweep(SpaceId(1), true, &mut SweepCost::default(), &mut |page, _, was| seen.push((page, was)));
    assert_eq!(seen, [(1 << 20, true)], "one space's sweep sees that space alone");
    touch(&mut mmu, 1, 7, Size::Huge);
    assert_eq!(touch(&mut mmu, 1, 7, Size::Huge), 50.0, "translated: only the count costs");
    mmu.shootdown(7, Size::Huge);
    for core in 0..2 {
        assert!(touch(&mut mmu, core, 7, Size::Huge) > 100.0, "core {core} walks again");
    }
}

#[test]
fn split_collapse_and_unmap_change_what_is_walked_and_counted() {
    let mut mmu = mmu(Some(CounterSpec { when: When::Every, ..CounterSpec::default() }));
    touch(&mut mmu, 0, 600, Size::Huge);
    mmu.split(600);
    assert_eq!(mmu.tables.size_of(600), Some(Size::Small));
    assert_eq!(mmu.counters().unwrap().get(600), 0, "4 KiB mappings have no counters");
    assert_eq!(walked(&mut mmu, 601, Size::Small), 4, "the shootdown emptied the paging-structure caches too");
    mmu.collapse(700, TierId::FAST);
    assert_eq!(mmu.tables.size_of(512), Some(Size::Huge));
    touch(&mut mmu, 0, 600, Size::Huge);
    assert_eq!(mmu.counters().unwrap().get(600), 1);
    mmu.unmap(512..1024);
    assert_eq!((mmu.tables.size_of(600), mmu.counters().unwrap().get(600)), (None, 0));
    // A page that comes back at another size is entered as it is now.
    touch(&mut mmu, 0, 600, Size::Small);
    assert_eq!(mmu.tables.size_of(600), Some(Size::Small));
    assert!(mmu.host_bytes() < 64 << 10, "{}", mmu.host_bytes());
}

#[test]
fn the_same_accesses_give_the_same_state() {
    let run = || {
        let mut mmu = mmu(Some(CounterSpec { when: When::Random(5), ..CounterSpec::default() }));
        let mut sum = 0.0;
        for step in 0..20_000u32 {
            let page = step.wrapping_mul(2_654_435_761) >> 14;
            sum += touch(&mut mmu, (step % 2) as usize, page, Size::Huge);
        }
        let counts: Vec<u64> = (0..1 << 18).map(|page| mmu.counters().unwrap().get(page)).collect();
        (sum.to_bits(), counts)
    };
    assert!(run() == run());
}

#[test]
fn walks_overlap_up_to_the_number_of_walkers_and_a_third_waits_for_the_first() {
    let mut mmu = mmu(None);
    assert_eq!(mmu.spec().tlb.walkers, 2);
    let mut lines = Plain::default();
    let mut walk = |page: u32, share: f64, now: f64| {
        mmu.access(0, Use { page, size: Size::Small, store: false, tier: TierId::FAST, share }, now, &mut lines)
    };
    // Four lines of 80 ns, of which a core with four loads under way waits for a quarter, as for the 3.5 ns before them.
    assert!((walk(0, 0.25, 0.0) - 323.5 / 4.0).abs() < 1e-9);
    // From here on one line a walk. The second walker has it at once.
    assert!((walk(8, 0.25, 100.0) - 83.5 / 4.0).abs() < 1e-9);
    // Walkers are busy until 323.5 and 183.5: a miss at 150 asks at 153.5 and waits 30 ns for the second.
    assert!((walk(16, 0.25, 150.0) - (30.0 + 83.5 / 4.0)).abs() < 1e-9);
    // A load that needs its address first waits for all of its walk.
    assert!((walk(24, 1.0, 400.0) - 83.5).abs() < 1e-9);
    let totals = *mmu.totals().next().unwrap();
    assert!((totals.queued_ns - 30.0).abs() < 1e-9 && totals.walks == 4);
    // A core that does nothing but walk is as fast as its walkers: one line a walk, two at a time.
    let (mut now, begin) = (1000.0, 1000.0);
    for page in 0..400u32 {
        now += mmu.access(
            0,
            Use { page: 4096 + page * 8, size: Size::Small, store: false, tier: TierId::FAST, share: 0.25 },
            now,
            &mut lines,
        );
    }
    let each = (now - begin) / 400.0;
    assert!((each - 83.5 / 2.0).abs() < 2.0, "{each}");
}
