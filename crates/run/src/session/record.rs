//! What the report will show, gathered while the program runs.
//!
//! In: the manager's figures once a second, and every walk (as a [`Observer`]). Out: the [`Report`]. Must not: grow without
//! bound; a long run is kept in coarser steps.

use std::collections::{BTreeMap, VecDeque};
use std::io::IsTerminal;
use std::path::Path;
use std::time::Duration;

use crate::heat::{HeatRecorder, OF_A_RUN};
use terrace_core::ledger::Route;
use terrace_core::observation::PteState;
use terrace_core::units::{BLOCK_PAGES, Bytes, PAGE_BYTES, SpaceId, TierId, Time, Vpn};
use terrace_linux::manager::Manager;
use terrace_linux::observer::Observer;
use terrace_linux::swap_saving::{SwapSaving, zswap_rejected};
use terrace_linux::topology::TierKind;
use terrace_linux::usage::{Who, usage};

use super::live::LiveView;
use super::machine::Facts;
use super::target::Target;
use super::{Plan, TargetSpec};
use terrace_report::{
    AgeBin, CostReport, HeatMap, IS_LEFT_ALONE, InsideReport, ManagerReport, MovedByUnit, MovedPages, Point, Report,
    SCHEMA_VERSION, SwapReport, TargetReport, TierReport,
};

/// Most points of the timeline; beyond, every second one is dropped and the step doubles.
const MOST_POINTS: usize = 1800;
/// How often it is counted how much lies in huge pages: one look at each block.
const HUGE_EVERY: Duration = Duration::from_secs(2);
/// The last of a program that ends: what it reads back then no budget of later time pays for.
const ENDING: Duration = Duration::from_secs(5);
const BLOCK_BYTES: u64 = BLOCK_PAGES as u64 * PAGE_BYTES;
/// Edges of the age histogram, in seconds.
const AGES: [f64; 11] = [0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0];

/// See the module's header.
pub(crate) struct Recorder {
    began: Time,
    points: Vec<Point>,
    step: u64,
    seen: u64,
    heat: HeatRecorder,
    tiers: Vec<TierSums>,
    sums: Sums,
    pids: BTreeMap<SpaceId, u32>,
    ages: Vec<AgeBin>,
    ages_at: Time,
    progress: bool,
    live: Option<LiveView>,
    /// Refaults up to each of the latest points, for those of the ending.
    latest: VecDeque<(Time, u64)>,
    cpu_at_start: (f64, f64),
    target_cpu: f64,
    peak_resident: u64,
    inside: InsideReport,
    huge_at: Time,
}

/// Sums over time for the means.
#[derive(Default)]
struct Sums {
    last: Option<Time>,
    seconds: f64,
    saved: f64,
    saved_end: i64,
    saved_peak: i64,
    swap_end: SwapReport,
    swap_peak: SwapReport,
    others: f64,
    others_end: u64,
    others_peak: u64,
    incompressible_peak: u64,
    footprint_peak: u64,
}

#[derive(Clone, Default)]
struct TierSums {
    used: f64,
    end: u64,
    occupied: f64,
}

impl Recorder {
    pub(crate) fn new(now: Time, plan: &Plan) -> Recorder {
        Recorder {
            began: now,
            points: Vec::new(),
            step: 1,
            seen: 0,
            heat: HeatRecorder::new(OF_A_RUN, now),
            tiers: Vec::new(),
            sums: Sums::default(),
            pids: BTreeMap::new(),
            ages: Vec::new(),
            ages_at: Time::ZERO,
            progress: !plan.output.quiet && !plan.output.live && std::io::stderr().is_terminal(),
            live: plan.output.live.then(LiveView::enter),
            latest: VecDeque::new(),
            cpu_at_start: own_cpu(),
            target_cpu: 0.0,
            peak_resident: 0,
            inside: InsideReport::default(),
            huge_at: Time::ZERO,
        }
    }

    /// Takes a point, about once a second.
    pub(crate) fn point(&mut self, manager: &Manager) {
        let now = manager.now();
        let pages = manager.engine().pages();
        let ledger = manager.engine().ledger();
        let stats = manager.stats();
        self.latest.push_back((now, ledger.refaults()));
        while self.latest.get(1).is_some_and(|(at, _)| now.since(*at) >= ENDING) {
            self.latest.pop_front();
        }
        for space in pages.spaces() {
            if let Some(pid) = manager.pid(space) {
                self.pids.insert(space, pid);
            }
        }
        let tiers = manager.tiers().tiers();
        let used: Vec<u64> = tiers.iter().map(|tier| Bytes::of_pages(pages.used_in_all(tier.id)).get()).collect();
        // Of a program that is just exiting, pages that are known here are gone already.
        if stats.swapped.is_none() {
            return;
        }
        let moved = moved_to_swap(manager, &used);
        let swap = manager.saving(Bytes::new(moved));
        let occupied = swap.occupied().get();
        let (saved, others) = saved(manager, &used, moved, &swap);
        let (user, system) = own_cpu();
        let throttle = manager.engine().governor().throttle();
        let point = Point {
            seconds: now.since(self.began).as_secs_f64(),
            fast_bytes: used[0],
            slow_bytes: used[1..].iter().sum(),
            slow_occupied_bytes: occupied,
            saved_bytes: saved.max(0) as u64,
            swapped_by_others_bytes: others,
            resident_bytes: stats.resident_bytes,
            demoted_pages: ledger.demoted(),
            promoted_pages: ledger.promoted(),
            refaults: ledger.refaults(),
            manager_cpu_seconds: user + system - self.cpu_at_start.0 - self.cpu_at_start.1,
            lost_seconds: lost_so_far(manager).iter().sum(),
            accessed_share: match stats.last_round.pages {
                0 => 0.0,
                pages => stats.last_round.accessed as f64 / pages as f64,
            },
            page_outs: throttle.into(),
            throttled: throttle.is_some(),
        };
        self.sum(now, &used, &swap, saved, &point);
        let left = Bytes::of_pages(stats.incompressible_pages).get();
        self.sums.incompressible_peak = self.sums.incompressible_peak.max(left);
        if self.progress {
            terrace_report::text::print_progress(&point, self.points.last());
        }
        self.draw(manager, &point);
        // Before the first walk and after the exit nothing is known of the pages; a point of zeros would look like a fact.
        if point.fast_bytes + point.slow_bytes > 0 {
            if self.seen.is_multiple_of(self.step) {
                self.points.push(point);
            }
            self.seen += 1;
        }
        if self.points.len() == MOST_POINTS {
            let mut keep = false;
            self.points.retain(|_| {
                keep = !keep;
                keep
            });
            self.step *= 2;
        }
        // A program that is just exiting has none any more.
        if now.since(self.huge_at) > HUGE_EVERY {
            self.huge_at = now;
            self.inside.huge_bytes = pages.blocks().filter(|(_, block)| block.huge).count() as u64 * BLOCK_BYTES;
        }
        note_inside(manager, &mut self.inside);
        let every = if self.live.is_some() { Duration::from_secs(1) } else { Duration::from_secs(5) };
        if now.since(self.ages_at) > every && manager.engine().policy_name() == "age" {
            self.ages_at = now;
            self.ages = age_histogram(manager, now);
        }
    }

    /// Before Terrace stops: the shell writes on the screen meanwhile.
    pub(crate) fn give_screen_back(&self) {
        self.live.iter().for_each(LiveView::give_back);
    }

    /// After Terrace was stopped.
    pub(crate) fn take_screen(&self) {
        self.live.iter().for_each(LiveView::take);
    }

    /// Shows the state, if the user asked to see it. A process that ended leaves the picture.
    fn draw(&self, manager: &Manager, point: &Point) {
        if let Some(view) = &self.live {
            let alive = manager.processes().map(|(space, process, _)| (space, process.pid())).collect();
            view.draw(point, self.points.last(), &self.ages, &heat_map(&self.heat, &alive));
        }
    }

    fn sum(&mut self, now: Time, used: &[u64], swap: &SwapSaving, saved: i64, point: &Point) {
        // A program that has just exited shows nothing; its last living moment is the end.
        if used.iter().all(|bytes| *bytes == 0) {
            return;
        }
        let seconds = now.since(self.sums.last.unwrap_or(self.began)).as_secs_f64();
        self.sums.last = Some(now);
        self.sums.seconds += seconds;
        self.sums.saved += saved as f64 * seconds;
        self.sums.saved_end = saved;
        self.sums.swap_end = swap_report(swap);
        if saved > self.sums.saved_peak {
            (self.sums.saved_peak, self.sums.swap_peak) = (saved, swap_report(swap));
        }
        self.sums.others += point.swapped_by_others_bytes as f64 * seconds;
        self.sums.others_end = point.swapped_by_others_bytes;
        self.sums.others_peak = self.sums.others_peak.max(point.swapped_by_others_bytes);
        self.sums.footprint_peak = self.sums.footprint_peak.max(used.iter().sum());
        self.peak_resident = self.peak_resident.max(point.resident_bytes);
        self.tiers.resize(used.len(), TierSums::default());
        for (sums, &bytes) in self.tiers.iter_mut().zip(used) {
            sums.used += bytes as f64 * seconds;
            sums.end = bytes;
        }
        if let Some(last) = self.tiers.last_mut() {
            last.occupied += swap.occupied().get() as f64 * seconds;
        }
    }

    /// The report of a run that is over.
    pub(crate) fn finish(
        mut self,
        plan: &Plan,
        manager: &Manager,
        target: &mut Target,
        facts: &Facts,
    ) -> anyhow::Result<Report> {
        if self.progress {
            terrace_report::text::end_progress();
        }
        self.live = None;
        let (stats, engine) = (manager.stats(), manager.engine());
        let ledger = engine.ledger();
        let used = target.used();
        // Of a child that has ended the kernel reports the total; of every other, the readings taken twice per second count.
        self.target_cpu = match used {
            Some(used) => used.user_seconds + used.system_seconds,
            None => stats.cpu_ticks as f64 / rustix::param::clock_ticks_per_second() as f64,
        };
        let children_peak = used.map_or(0, |used| used.max_rss_bytes);
        let seconds = self.sums.seconds.max(f64::MIN_POSITIVE);
        let (user, system) = own_cpu();
        let (user, system) = (user - self.cpu_at_start.0, system - self.cpu_at_start.1);
        let target = self.target_report(plan, target, stats.processes, children_peak);
        let refaults_at_end = match target.ended {
            true => at_end(self.began, manager.now(), &self.latest, ledger.refaults()),
            false => 0,
        };
        let cost = cost(&target, refaults_at_end, manager, user + system);
        let heat_map = heat_map(&self.heat, &self.pids);
        Ok(Report {
            schema_version: SCHEMA_VERSION,
            target,
            tracker: facts.tracker.clone(),
            tracker_reasons: facts.tracker_reasons.clone(),
            policy: plan.spec.policy.clone(),
            policy_settings: plan.spec.settings.clone(),
            fast_goal: plan.goal_text.clone(),
            max_slowdown: (!plan.spec.observes()).then_some(plan.spec.max_slowdown),
            invest: plan.spec.invest,
            max_promotions: plan.spec.max_promotions,
            invested_seconds: stats.invested.as_secs_f64(),
            tiers: self.tier_reports(manager, seconds),
            fast_bytes_saved_mean: (self.sums.saved / seconds).max(0.0) as u64,
            fast_bytes_saved_end: self.sums.saved_end.max(0) as u64,
            fast_bytes_saved_peak: self.sums.saved_peak.max(0) as u64,
            swap_end: self.sums.swap_end,
            swap_peak: self.sums.swap_peak,
            swapped_by_others_bytes_mean: (self.sums.others / seconds) as u64,
            swapped_by_others_bytes_end: self.sums.others_end,
            swapped_by_others_bytes_peak: self.sums.others_peak,
            incompressible_bytes_peak: self.sums.incompressible_peak,
            moved_pages: moved_pages(manager),
            inside: inside(manager, self.inside),
            refaults: ledger.refaults(),
            refaults_at_end,
            ping_pong_pages: ledger.ping_pong_pages(),
            promotions_p98: engine.governor().promotions(),
            page_outs_seconds: stats.page_outs().into_iter().map(|(state, time)| seconds_of(state, time)).collect(),
            throttled_seconds: stats.throttled.iter().map(|(cause, time)| seconds_of(cause.name(), *time)).collect(),
            rejected_pages: engine
                .governor()
                .rejections()
                .iter()
                .map(|(rejection, count)| (rejection.name().to_owned(), *count))
                .collect(),
            manager: manager_report(manager, facts, &cost, user),
            cost,
            proof: None,
            file_cache: None,
            timeline: self.points,
            heat_map,
            age_histogram: self.ages,
            notes: notes(plan, manager, facts),
            background_notes: facts.background.len(),
        })
    }

    fn target_report(&self, plan: &Plan, target: &mut Target, processes: u32, children_peak: u64) -> TargetReport {
        TargetReport {
            command: match &plan.target {
                TargetSpec::Command(command) => {
                    command.iter().map(|word| word.to_string_lossy().into_owned()).collect()
                }
                TargetSpec::Pids(_) | TargetSpec::Cgroup(_) | TargetSpec::All(_) => Vec::new(),
            },
            pid: target.pid(),
            cgroup: match &plan.target {
                TargetSpec::Cgroup(cgroup) => Some(cgroup.name().to_owned()),
                _ => None,
            },
            everything: matches!(plan.target, TargetSpec::All(_)),
            ended: target.has_ended(),
            exit_code: target.exit(),
            wall_seconds: target.wall().as_secs_f64(),
            cpu_seconds: self.target_cpu,
            peak_rss_bytes: self.peak_resident.max(children_peak),
            peak_footprint_bytes: self.sums.footprint_peak,
            processes,
        }
    }

    fn tier_reports(&self, manager: &Manager, seconds: f64) -> Vec<TierReport> {
        let tiers = manager.tiers().tiers().iter();
        let sums = self.tiers.iter().cloned().chain(std::iter::repeat(TierSums::default()));
        tiers
            .zip(sums)
            .map(|(tier, sums)| {
                let compressed = matches!(tier.kind, TierKind::Swap { compressed: true, .. });
                TierReport {
                    name: tier.name.clone(),
                    kind: match tier.kind {
                        TierKind::Nodes { .. } => "nodes".to_owned(),
                        TierKind::Swap { .. } => "swap".to_owned(),
                    },
                    capacity_bytes: tier.capacity_bytes.get(),
                    mean_used_bytes: (sums.used / seconds) as u64,
                    end_used_bytes: sums.end,
                    mean_occupied_bytes: compressed.then_some((sums.occupied / seconds) as u64),
                }
            })
            .collect()
    }
}

/// Seconds that the program lost so far: to being watched, to moves, and to pages that came back.
fn lost_so_far(manager: &Manager) -> [f64; 3] {
    let refaults = manager.engine().ledger().refaults() as f64 * refault(manager);
    [manager.watching_cost().as_secs_f64(), manager.moving_cost().as_secs_f64(), refaults]
}

/// Seconds that a refault costs, by the price that the bound is kept with; zero without swap.
fn refault(manager: &Manager) -> f64 {
    manager.engine().governor().swap_costs().map_or(0.0, |costs| costs.back)
}

/// What the program paid.
fn cost(target: &TargetReport, refaults_at_end: u64, manager: &Manager, own_cpu_seconds: f64) -> CostReport {
    let watching = manager.watching();
    let [watching_seconds, moving_seconds, refault_seconds] = lost_so_far(manager);
    let mut cost = CostReport {
        watching_seconds,
        moving_seconds,
        refault_seconds,
        ending_seconds: refaults_at_end as f64 * refault(manager),
        own_cpu_seconds,
        lost_share: 0.0,
        share_of_target: 0.0,
        touched_bits: watching.cost().touched,
        touch_nanoseconds: watching.prices().touch_ns,
        back_off: watching.step(),
    };
    let lost = cost.watching_seconds + cost.moving_seconds + cost.refault_seconds;
    cost.lost_share = target.share_of_time(lost);
    if target.cpu_seconds > 0.0 {
        cost.share_of_target = lost / target.cpu_seconds;
    }
    cost
}

/// Refaults of the last seconds beyond what came back at the rate until then; `latest` has the refaults up to the latest points. Of a short run the
/// last quarter counts.
fn at_end(began: Time, now: Time, latest: &VecDeque<(Time, u64)>, refaults: u64) -> u64 {
    let span = ENDING.min(now.since(began) / 4);
    let Some((at, before)) = latest.iter().rev().find(|(at, _)| now.since(*at) >= span) else { return 0 };
    let (ending, until_then) = (now.since(*at).as_secs_f64(), at.since(began).as_secs_f64());
    let usual = if until_then > 0.0 { *before as f64 / until_then * ending } else { 0.0 };
    refaults.saturating_sub(*before).saturating_sub(usual as u64)
}

fn seconds_of(name: &str, time: Duration) -> (String, f64) {
    (name.to_owned(), time.as_secs_f64())
}

/// What Terrace itself did and used.
fn manager_report(manager: &Manager, facts: &Facts, cost: &CostReport, user_cpu_seconds: f64) -> ManagerReport {
    let stats = manager.stats();
    ManagerReport {
        cpu_seconds: cost.own_cpu_seconds,
        user_cpu_seconds,
        max_rss_bytes: usage(Who::Myself).max_rss_bytes,
        stall_seconds: cost.watching_seconds + cost.moving_seconds + cost.refault_seconds,
        refault_microseconds: facts.refault_cost.map(|cost| cost.as_secs_f64() * 1e6),
        rounds: stats.rounds,
        hint_faults: stats.hint_faults,
        births: stats.births,
        deaths: stats.deaths,
        kernel_lists: stats.kernel_lists,
        round_milliseconds_mean: match stats.rounds {
            0 => 0.0,
            rounds => stats.round_time.as_secs_f64() * 1e3 / rounds as f64,
        },
        longest_move_call_milliseconds: stats.longest_move_call.as_secs_f64() * 1e3,
    }
}

fn moved_pages(manager: &Manager) -> MovedPages {
    let (stats, ledger) = (manager.stats(), manager.engine().ledger());
    MovedPages {
        demoted: ledger.demoted(),
        promoted: ledger.promoted(),
        failed: ledger.failed().values().sum(),
        failed_by_cause: ledger.failed().iter().map(|(cause, pages)| (cause.name(), *pages)).collect(),
        measuring: manager.move_cost().measured_pages,
        moved_by_reason: by_reason(ledger.moved()),
        by_unit: MovedByUnit {
            single: stats.counts.single,
            local: stats.counts.local,
            huge: stats.counts.huge,
            collapsed: stats.counts.collapsed,
            apart: stats.counts.apart.iter().map(|(why, pages)| (why.name().to_owned(), *pages)).collect(),
        },
    }
}

/// What was found inside of huge pages so far, as far as the policy looked: its figures are of the program as it is, so that what left is kept at its most.
fn note_inside(manager: &Manager, found: &mut InsideReport) {
    let metrics = manager.engine().policy_metrics();
    let metric = |name: &str| metrics.iter().find(|metric| metric.name == name).map(|metric| metric.value);
    // Without huge pages the policy has no figures of them, and before the first nothing is known.
    let Some(looked_into) = metric("inside_blocks_looked_into") else { return };
    let count = |name| metric(name).unwrap_or(0.0) as u64;
    let blocks = metric("inside_blocks_unseen").unwrap_or(0.0) + metric("inside_blocks_split_now").unwrap_or(0.0);
    let share = |name| metric(name).filter(|_| looked_into > 0.0);
    let estimate = |name| share(name).map(|share| (share * blocks * BLOCK_BYTES as f64) as u64);
    *found = InsideReport {
        looked: true,
        looked_into_blocks: looked_into as u64,
        sparse_blocks: count("inside_blocks_sparse"),
        even_blocks: count("inside_blocks_even"),
        left_bytes: found.left_bytes.max(Bytes::of_pages(count("inside_pages_left")).get()),
        used_bytes: estimate("inside_used_share"),
        used_bytes_low: estimate("inside_used_share_low"),
        used_bytes_high: estimate("inside_used_share_high"),
        ..found.clone()
    };
}

/// The same with what the driver counted.
fn inside(manager: &Manager, found: InsideReport) -> InsideReport {
    let counts = &manager.stats().counts;
    InsideReport {
        split_blocks: counts.split,
        huge_again_blocks: counts.huge_again,
        left_whole_blocks: counts.unsplit.iter().map(|(why, blocks)| (why.name().to_owned(), *blocks)).collect(),
        ..found
    }
}

/// What else is to be said of the run.
fn notes(plan: &Plan, manager: &Manager, facts: &Facts) -> Vec<String> {
    let (stats, engine) = (manager.stats(), manager.engine());
    let mut notes = Vec::new();
    swap_notes(manager, facts, &mut notes);
    notes.extend(facts.notes.iter().cloned());
    notes.extend(
        stats
            .shared_refused
            .iter()
            .map(|reason| format!("shared memory was left alone, since its pages in swap cannot be found: {reason}")),
    );
    notes.extend(stats.left_alone.iter().map(|(pid, why)| format!("process {pid} {IS_LEFT_ALONE}: {}", why.reason())));
    notes.extend(dear_rounds(manager));
    notes.extend(engine.governor().sweep_period().map(|period| {
        format!(
            "the program goes through most of its memory every {} s: what the next time would bring back stays",
            period.as_secs().max(1)
        )
    }));
    notes.extend(stats.pressure_error.iter().map(|error| format!("memory pressure could not be read: {error}")));
    if stats.lost_events > 0 {
        notes.push(format!("the tracker lost {} events", stats.lost_events));
    }
    if stats.lost_births_and_deaths > 0 {
        let lost = stats.lost_births_and_deaths;
        notes.push(format!(
            "{lost} records of births and deaths were lost; those pages were found at the next look at places"
        ));
    }
    if !plan.spec.moves && !plan.spec.observes() {
        notes.push("dry run: nothing was moved; what would have moved is counted by the cause dry_run".to_owned());
    }
    if let Some(cost) = manager.move_cost().between_nodes {
        let micros = |time: Duration| time.as_secs_f64() * 1e6;
        let (mover, copy) = (micros(cost.mover), micros(cost.copy));
        let thread =
            cost.interrupt.map_or("not measured".to_owned(), |found| format!("{:.2} µs", micros(found.median)));
        notes.push(format!(
            "a page moved between nodes takes {mover:.2} µs of a processor, {copy:.2} µs of it the copy, and of each thread that runs {thread}"
        ));
    }
    if engine.policy_name() != "age" {
        notes.push(format!("no age histogram: the policy {} keeps no ages", engine.policy_name()));
    }
    notes.extend(facts.background.iter().cloned());
    notes
}

/// A round that comes this much later than the policy wanted it misses what is idle.
const LATE: Duration = Duration::from_secs(5);

/// That the rounds were rare because each is dear, and what makes it so.
fn dear_rounds(manager: &Manager) -> Option<String> {
    let (stats, late) = (manager.stats(), manager.rounds_come_late());
    (stats.rounds > 0 && late >= LATE).then(|| {
        format!(
            "watching is dear: the program has {} areas of memory, whose list takes {:.0} ms to read, and a round came {:.0} s later than the \
             policy wanted it; --max-overhead allows more",
            stats.areas,
            stats.areas_time.as_secs_f64() * 1e3,
            late.as_secs_f64()
        )
    })
}

impl Observer for Recorder {
    fn scan(&mut self, now: Time, space: SpaceId, first: Vpn, ptes: &[PteState], window: Option<Duration>) {
        self.heat.scan(now, space, first, ptes, window);
    }
}

/// Bytes in swap that Terrace moved there, where a tier is swap.
fn moved_to_swap(manager: &Manager, used: &[u64]) -> u64 {
    let Some(swap) = manager.tiers().swap_tier() else { return 0 };
    // Where the policy orders the kernel's lists, the kernel moves on its behalf.
    match manager.stats().kernel_lists {
        Some(_) => used[swap.index()],
        None => Bytes::of_pages(manager.engine().pages().demoted_in_all(swap)).get(),
    }
}

/// Bytes of fast memory that Terrace saved, and bytes in swap that others put there. `swap` is what those that Terrace moved there save.
fn saved(manager: &Manager, used: &[u64], moved: u64, swap: &SwapSaving) -> (i64, u64) {
    let slow: u64 = used[1..].iter().sum();
    let Some(tier) = manager.tiers().swap_tier() else { return (slow as i64, 0) };
    let swapped = used[tier.index()];
    ((slow - swapped) as i64 + swap.saved(), swapped - moved)
}

fn swap_report(swap: &SwapSaving) -> SwapReport {
    SwapReport {
        swapped_bytes: swap.swapped.get(),
        zeros_bytes: swap.zeros.get(),
        zram_stored_bytes: swap.zram_stored.get(),
        zram_bytes: swap.zram_memory.get(),
        zswap_stored_bytes: swap.zswap_stored.get(),
        zswap_pool_bytes: swap.zswap_pool.get(),
        swap_cache_bytes: swap.swap_cache.get(),
        disk_bytes: swap.disk.get(),
    }
}

/// What is to be said of the swap that pages went to: zswap in front of it, and a limit that was met.
fn swap_notes(manager: &Manager, facts: &Facts, notes: &mut Vec<String>) {
    let stats = manager.stats();
    let device = manager.swap_device().map_or("swap", |device| device.rsplit('/').next().unwrap_or(device));
    let unwritten = Bytes::of_pages(stats.unwritten_pages);
    match stats.zram_limit {
        Some(limit) if unwritten > Bytes::ZERO => notes.push(format!(
            "{device} is at its limit of {limit} (mem_limit): nothing more leaves; {unwritten} could not be written and are still in memory. \
             To let it take more: raise /sys/block/{device}/mem_limit"
        )),
        Some(limit) => notes.push(format!(
            "{device} is at its limit of {limit} (mem_limit): nothing more leaves. To let it take more: raise /sys/block/{device}/mem_limit"
        )),
        None if unwritten > Bytes::ZERO => notes.push(format!(
            "{unwritten} could not be written to {device} and are still in memory: it had no memory for them (failed writes in \
             /sys/block/{device}/io_stat)"
        )),
        None => {}
    }
    if stats.zswap_stored_peak > Bytes::ZERO {
        let rejected = zswap_rejected(Path::new("/")).zip(facts.zswap_rejected);
        let rejected = rejected.map_or_else(String::new, |(now, before)| {
            format!("; it rejected {}, which went on to {device}", Bytes::of_pages(now.saturating_sub(before)))
        });
        notes.push(format!(
            "zswap stood in front of {device}: it held up to {} of the machine's pages in swap, in a pool of its own{rejected}",
            stats.zswap_stored_peak
        ));
    }
}

fn by_reason(moved: &BTreeMap<Route, u64>) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for (route, pages) in moved {
        *sums.entry(route.reason.name().to_owned()).or_default() += pages;
    }
    sums
}

fn age_histogram(manager: &Manager, now: Time) -> Vec<AgeBin> {
    let pages = manager.engine().pages();
    let mut bins: Vec<AgeBin> = AGES
        .iter()
        .enumerate()
        .map(|(bin, &from)| AgeBin {
            from_seconds: from,
            to_seconds: AGES.get(bin + 1).copied(),
            fast_bytes: 0,
            slow_bytes: 0,
        })
        .collect();
    for (block, _) in pages.blocks() {
        for page in pages.block_pages(block) {
            let (Some(tier), Some(idle)) = (page.tier(), terrace_policies::age::idle_time(page, now)) else { continue };
            let bin = AGES.partition_point(|&from| from <= idle.as_secs_f64()) - 1;
            let bytes = if tier == TierId::FAST { &mut bins[bin].fast_bytes } else { &mut bins[bin].slow_bytes };
            *bytes += Bytes::of_pages(1).get();
        }
    }
    bins
}

/// The heat map of these processes, as the report has it.
fn heat_map(heat: &HeatRecorder, pids: &BTreeMap<SpaceId, u32>) -> HeatMap {
    let map = heat.map(pids);
    HeatMap { column_seconds: map.columns, rows: map.rows, cells: map.cells }
}

/// CPU seconds of this process, user and system.
fn own_cpu() -> (f64, f64) {
    let usage = usage(Who::Myself);
    (usage.user_seconds, usage.system_seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_ending_program_reads_back_is_what_exceeds_the_rate_before() {
        let at = |seconds: u64| Time::ZERO + Duration::from_secs(seconds);
        // A hundred a second for a minute, and then a thousand more in the last five.
        let latest: VecDeque<(Time, u64)> = (50..=60).map(|second| (at(second), second * 100)).collect();
        assert_eq!(at_end(Time::ZERO, at(60), &latest, 7000), 1000);
        assert_eq!(at_end(Time::ZERO, at(60), &latest, 6000), 0, "at the rate that it had all along");
        // Of eight seconds the last two.
        let short: VecDeque<(Time, u64)> = (0..8).map(|second| (at(second), 0)).collect();
        assert_eq!(at_end(Time::ZERO, at(8), &short, 300), 300);
        assert_eq!(at_end(Time::ZERO, at(8), &VecDeque::new(), 300), 0);
    }
}
