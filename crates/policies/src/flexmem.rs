//! `flexmem`: FlexMem. Two profilers, hardware samples and hint faults, and one migration thread that serves both.
//!
//! In: samples, hint faults, births, outcomes. Out: demotions of as many pages as Algorithm 1 says, then promotions in turn
//! from the slow active list (faults) and the hot bins (samples). Must not: promote in the fault path, walk all
//! pages, or do more work at a wake than it moves, skips or fails to place.
//!
//! Source: FlexMem (USENIX ATC 2024), sections 5 to 7; A1 to A10 are the ambiguities of the specification (section 1).
//!
//! | constant | default | source |
//! |---|---|---|
//! | bins | 16, log2, kept as page lists by tier | section 5; scaling as MEMTIS, a sample adds 512 (A9) |
//! | `adapt_samples` | 100,000 | section 5: threshold and migration together (`couple=samples`, A3) |
//! | `cool_samples` | 2,000,000 | section 4.2 (Silo); also at 10 GiB of growth, as MEMTIS |
//! | `k` | 0.5 | not stated; MEMTIS's halving is an EMA with one half (A1) |
//! | `beta` | 0.20 | not stated; the paper varies it from 10 % to 40 % (A2) |
//! | `countdown` | 5 | section 5 |
//! | alpha | 1 at first, then 1 - m/tp, kept while tp = 0 | section 6, equation 3 (A5) |
//! | m, tp | of one interval | Algorithm 1: both start again from 0 at each rate; mistakes without a promotion (tp = 0) wait for the next |
//! | `mistake` | bin | section 6: "not promoted to any bin before the timer reaches 0", so any rise of its bin clears a page |
//! | promotion leaves free | 3 % (100 to 1500 MiB) | as MEMTIS; at most a tenth of the memory (`reserve`) |
//! | sampling periods | as MEMTIS, held to its quota | section 5 |
//! | `sampling` | all-cores | section 8: built upon MEMTIS, whose counters see the main thread alone (`main-thread`) |
//! | `touches` | 2 | section 2.2: to be on the active list a page is accessed twice |
//! | hint scanner | 256 MiB a step, period by resident size | section 5 and the kernel (A10) |
//! | `failures` | once | section 6: the hot pages "to promote but fails"; a page that waits for room is one failure, however long it waits |
//! | `alpha_limits` | demotion | section 5: active list and bins have "equal opportunities"; alpha weighs what is demoted for the list |
//! | `active_aging` | on | section 5: the active list is an LRU list; a pass of the scanner without a use ends a page's stay |
//! | `active_order` | newest | not stated; hint faults are to "opportunistically capture the emerging hot pages" (section 1) |
//! | `dr_gate` | literal | section 6, equation 2: cold pages leave, asked for or not (A4) |
//! | `direct` | on | section 8: built by extending MEMTIS, whose demoter allocations wake |
//! | `split` | on | section 8: of MEMTIS too; its decision is `parts/huge_split.rs` as it is there |
//!
//! At the end of an interval, in this order: T_hot from the histogram, the bins from 15 down that fit fast memory (at least
//! bin 1); Algorithm 2, warm bins below T_hot while MS >= beta * BS; Algorithm 1,
//! DR = N_fc + promo_fail_histo + alpha * promo_fail_pf; demotion of up to DR pages, coldest bin first; promotion, in turn of the active
//! list and the hot bins, until fast memory is full. What then still waits for room has failed, each page once until it is promoted
//! or found hot again. A fault-sourced page in a cold bin is passed over five times, unless samples or a lower T_hot make it hot; if its
//! bin never rose by then, its promotion was a mistake (A8).
//!
//! `pebs=off` leaves no histogram to demote by: all fast pages are then cold, in the order they came, and the rate is held to need.
//!
//! The file is long because each reading of an ambiguity is a setting with its test beside the code.
//!
//! Memory beside the eight common bytes: 4 for the count, 8 for the bin lists (the paper's 0.195 %), 8 for the active list
//! (the kernel's own in the paper). `heat` holds the countdown, marks and the number of the plan that last named the page; a page whose
//! countdown runs costs 4 more.
use std::time::Duration;

use terrace_core::observation::{Observation, Observations};
use terrace_core::pages::Pages;
use terrace_core::plan::{Action, Failure, MoveRequests, Outcome, Reason, Rejection};
use terrace_core::policy::{
    Cadence, CapacityView, Feedback, Kernel, Metric, Movers, Needs, Policy, PolicyReport, Profile, Remap, Schedule,
    Setup,
};
use terrace_core::units::{BlockId, PageId, TierId, Time};

use crate::memtis;
use crate::parts::bin_lists::BinLists;
use crate::parts::bins::{BINS, FINE_BINS, fine_bin, fit, visible_bin};
use crate::parts::heat::{Class, Heat};
use crate::parts::hint_scanner::{self, HintScanner};
use crate::parts::huge_split::{SPLITS_A_PASS, SplitDecision};
use crate::parts::lists::Lists;
use crate::parts::period_control::PeriodControl;
use crate::parts::support::{self, MemtisMarks};
use crate::{PolicyInfo, SettingInfo, Settings, SettingsError};

/// The policy's entry in the registry.
pub const INFO: PolicyInfo = PolicyInfo {
    name: "flexmem",
    summary: "FlexMem: samples and hint faults together, adaptive demotion rate, adaptive warm bins",
    source: "FlexMem, USENIX ATC 2024",
    settings: &[
        SettingInfo { key: "k", default: "0.5", meaning: "weight of the running interval in the moving average (A1)" },
        SettingInfo { key: "beta", default: "0.2", meaning: "share of a bin that must move up for it to be warm (A2)" },
        SettingInfo {
            key: "couple",
            default: "samples",
            meaning: "threshold and migration every adapt_samples (samples), every period (timer), or apart (decoupled) (A3)",
        },
        SettingInfo { key: "period", default: "500ms", meaning: "time between wakes with couple=timer or decoupled" },
        SettingInfo {
            key: "dr_gate",
            default: "literal",
            meaning: "literal: Algorithm 1's rate, asked for or not; need: no more than room asks for (A4)",
        },
        SettingInfo {
            key: "demote_into_warm",
            default: "auto",
            meaning: "auto: failures may be met from warm bins; off (A4)",
        },
        SettingInfo { key: "warm", default: "adaptive", meaning: "adaptive, single (as MEMTIS) or none (A7)" },
        SettingInfo { key: "demotion", default: "adaptive", meaning: "adaptive, or fixed: MEMTIS's watermarks" },
        SettingInfo {
            key: "direct",
            default: "on",
            meaning: "cold pages go at once when an allocation finds fast memory short, as MEMTIS does",
        },
        SettingInfo { key: "split", default: "on", meaning: "split skewed huge pages, as MEMTIS does" },
        SettingInfo { key: "fast_ns", default: "80", meaning: "latency of fast memory in the split formula" },
        SettingInfo {
            key: "slow_ns",
            default: "270",
            meaning: "latency of slow memory in the split formula; 170 for CXL",
        },
        SettingInfo { key: "countdown", default: "5", meaning: "times a fault-sourced page is passed over; 0 is none" },
        SettingInfo { key: "alpha", default: "adaptive", meaning: "adaptive, or a fixed number from 0 to 1 (A5)" },
        SettingInfo {
            key: "mistake",
            default: "bin",
            meaning: "a fault's promotion was one if the page's bin did not rise (bin), or never was hot (hot), by the countdown's end",
        },
        SettingInfo { key: "fault_profiler", default: "on", meaning: "use hint faults" },
        SettingInfo { key: "touches", default: "2", meaning: "hint faults that put a page on the active list" },
        SettingInfo {
            key: "failures",
            default: "once",
            meaning: "once: a page that waits for room; standing: the same at each interval; attempts: one a source and interval",
        },
        SettingInfo {
            key: "alpha_limits",
            default: "demotion",
            meaning: "demotion for the active list; promotion: of the list too, 1/16 of it as a trial",
        },
        SettingInfo {
            key: "active_aging",
            default: "on",
            meaning: "a page that no fault finds used in a pass of the scanner leaves the active list",
        },
        SettingInfo {
            key: "active_order",
            default: "newest",
            meaning: "promote the active list's oldest or newest first",
        },
        SettingInfo { key: "pebs", default: "on", meaning: "use hardware samples" },
        SettingInfo { key: "adapt_samples", default: "100000", meaning: "samples of an interval" },
        SettingInfo { key: "cool_samples", default: "2000000", meaning: "samples between coolings; 0 never cools" },
        SettingInfo { key: "cool_growth", default: "10GiB", meaning: "growth of the footprint that cools too" },
        SettingInfo {
            key: "quota",
            default: "30",
            meaning: "permil of a processor for the sampler; 0 holds it to nothing",
        },
        SettingInfo {
            key: "sampling",
            default: "all-cores",
            meaning: "all-cores (repaired), or main-thread: only the program's first thread, as published (simulator only)",
        },
        support::RESERVE,
        hint_scanner::SETTINGS[0],
        hint_scanner::SETTINGS[1],
        hint_scanner::SETTINGS[2],
        hint_scanner::SETTINGS[3],
    ],
    build: |settings| Ok(Box::new(FlexMem::new(settings)?)),
};

const COUNTDOWN_MASK: u16 = 7;
const FROM_FAULT: u16 = 8;
/// Of a fast page, in the place of `TOUCHED`: its bin rose while its countdown ran.
const ROSE: u16 = 0x10;
/// The page waits for room, and its failure is counted.
const COUNTED: u16 = 0x100;
/// The pass of the scanner in which a page was first found used, modulo 15, plus one; 0 for none. What was touched 15 passes ago is
/// taken for new, which is rare: it needs a page that no fault found in between.
const TOUCHED: u16 = 0xf0;
const TOUCHED_SHIFT: u32 = 4;
const PASSES_TOLD: u64 = 15;
/// Lists of the active list: pages found used in this pass of the scanner, and in the one before.
const YOUNG: usize = 0;
const OLD: usize = 1;
/// Share of the active list's promotions that goes on whatever alpha is. Without promotions alpha would never change again; the paper
/// does not say how it rises from 0, and its figure 12 shows that it does.
const TRIAL: f64 = 1.0 / 16.0;
const FLAGS: u16 = 0x1ff;
const SERIAL_SHIFT: u32 = 9;
const SERIALS: u16 = 0x7f;
/// MEMTIS's rule of its one warm bin, for `warm=single`.
const WARM_BELOW: f64 = 0.75;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Couple {
    Samples,
    Timer,
    Decoupled,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Warm {
    Adaptive,
    Single,
    None,
}

/// What counts as a failed promotion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failing {
    Once,
    Attempts,
    Standing,
}

/// See the module's header.
pub struct FlexMem {
    scale: u32,
    reserve: Option<f64>,
    full: Amounts,
    k: f64,
    beta: f64,
    couple: Couple,
    period: Duration,
    only_need: bool,
    into_warm: bool,
    warm: Warm,
    fixed_demotion: bool,
    countdown: u16,
    fixed_alpha: Option<f64>,
    touches: u8,
    failing: Failing,
    /// A promotion is a mistake unless the page became hot; else, unless its bin rose.
    must_get_hot: bool,
    limits_promotion: bool,
    aging: bool,
    main_thread: bool,
    /// Passes of the scanner that the active list has seen end.
    passes: u64,
    /// What the active list may still promote before its next turn is due.
    credit: f64,
    newest_first: bool,
    faults: bool,
    pebs: bool,
    amounts: Amounts,
    control: PeriodControl,
    scanner: HintScanner,
    heat: Heat,
    split: bool,
    splitting: SplitDecision,
    to_split: Vec<BlockId>,
    splits: u64,
    /// The hot threshold if every page were a base page, and how often counts were halved.
    base_hot: usize,
    coolings: u64,
    bins: BinLists,
    /// The slow active list: pages the fault profiler calls promising.
    active: Lists,
    active_pages: u64,
    /// Fast pages whose countdown ran when the list was last gone through, and those whose countdown began since.
    guarded: Vec<PageId>,
    moved_up: [u64; BINS],
    hot: usize,
    warm_bin: usize,
    alpha: f64,
    mistaken: u64,
    promoted_by_faults: u64,
    failed: Failures,
    samples: u64,
    pages_at_cooling: u64,
    limit: Option<u64>,
    threshold_due: bool,
    wake: Time,
    direct: bool,
    /// When allocations ask for room next, and when they last did.
    room_at: Option<Time>,
    made_room: Option<Time>,
    interval: Interval,
    serial: u16,
    totals: Totals,
}

/// Amounts that shrink with the machine: full-size as set, and as they are here.
#[derive(Clone, Copy, Debug)]
struct Amounts {
    adapt_samples: u64,
    cool_samples: u64,
    cool_growth: u64,
}

/// Promotions that found no room since the last interval, by source, in 4 KiB pages.
#[derive(Clone, Copy, Debug, Default)]
struct Failures {
    histogram: f64,
    faults: f64,
}

/// What is left to do of the interval that is being worked off.
#[derive(Clone, Copy, Debug, Default)]
struct Interval {
    open: bool,
    rate: u64,
    cold_left: u64,
    warm_left: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    intervals: u64,
    mistaken: u64,
    promoted_by_faults: u64,
    promoted_by_histogram: u64,
    failed_histogram: u64,
    failed_faults: u64,
    passed_over: u64,
}

impl FlexMem {
    /// Reads the settings.
    ///
    /// # Errors
    /// When a value is none of its kind.
    pub fn new(settings: &mut Settings) -> Result<FlexMem, SettingsError> {
        let pebs = settings.switch("pebs")?;
        let couple = [("samples", Couple::Samples), ("timer", Couple::Timer), ("decoupled", Couple::Decoupled)];
        let couple = settings.choice("couple", &couple)?;
        let adapt = settings.number("adapt_samples", 1..=u64::from(u32::MAX))?;
        let cool = settings.number("cool_samples", 0..=u64::from(u32::MAX))?;
        let full = Amounts {
            adapt_samples: adapt,
            cool_samples: if cool == 0 { u64::MAX } else { cool },
            cool_growth: support::size(settings, "cool_growth")?.pages(),
        };
        let warm = [("adaptive", Warm::Adaptive), ("single", Warm::Single), ("none", Warm::None)];
        let failing = [("once", Failing::Once), ("attempts", Failing::Attempts), ("standing", Failing::Standing)];
        let fixed_alpha = settings.take("alpha", "adaptive or a number from 0 to 1", |text| match text {
            "adaptive" => Some(None),
            number => number.parse::<f64>().ok().filter(|alpha| (0.0..=1.0).contains(alpha)).map(Some),
        })?;
        let need = settings.choice("dr_gate", &[("literal", false), ("need", true)])?;
        let quota = settings.number("quota", 0..=1000)?;
        let split = settings.switch("split")? && pebs;
        let [fast_ns, slow_ns] =
            [settings.number("fast_ns", 1.0..=100_000.0)?, settings.number("slow_ns", 1.0..=100_000.0)?];
        Ok(FlexMem {
            scale: 1,
            reserve: support::reserve(settings)?,
            full,
            amounts: full,
            k: settings.number("k", 0.01..=1.0)?,
            beta: settings.number("beta", 0.0..=1.0)?,
            // Without samples nothing but time can end an interval.
            couple: if pebs { couple } else { Couple::Timer },
            period: settings.duration("period")?,
            only_need: need || !pebs,
            into_warm: settings.choice("demote_into_warm", &[("auto", true), ("off", false)])?,
            warm: settings.choice("warm", &warm)?,
            fixed_demotion: settings.choice("demotion", &[("adaptive", false), ("fixed", true)])?,
            countdown: settings.number("countdown", 0..=COUNTDOWN_MASK)?,
            fixed_alpha,
            touches: settings.number("touches", 1..=2)?,
            failing: settings.choice("failures", &failing)?,
            must_get_hot: settings.choice("mistake", &[("bin", false), ("hot", true)])?,
            limits_promotion: settings.choice("alpha_limits", &[("promotion", true), ("demotion", false)])?,
            aging: settings.switch("active_aging")?,
            main_thread: settings.choice("sampling", &[("all-cores", false), ("main-thread", true)])?,
            passes: 0,
            credit: 0.0,
            newest_first: settings.choice("active_order", &[("oldest", false), ("newest", true)])?,
            faults: settings.switch("fault_profiler")?,
            pebs,
            control: PeriodControl::new(quota, Duration::from_secs(15)),
            scanner: HintScanner::new(settings, hint_scanner::SLOW_TIERS, false)?,
            heat: Heat::new(split),
            split,
            splitting: SplitDecision::new(split, fast_ns, slow_ns, full.cool_samples.min(1 << 40)),
            to_split: Vec::new(),
            splits: 0,
            base_hot: 1,
            coolings: 0,
            bins: BinLists::default(),
            active: Lists::new(2),
            active_pages: 0,
            guarded: Vec::new(),
            moved_up: [0; BINS],
            hot: 1,
            warm_bin: 1,
            alpha: fixed_alpha.unwrap_or(1.0),
            mistaken: 0,
            promoted_by_faults: 0,
            failed: Failures::default(),
            samples: 0,
            pages_at_cooling: 0,
            limit: None,
            threshold_due: false,
            wake: Time::ZERO,
            direct: settings.switch("direct")?,
            room_at: None,
            made_room: None,
            interval: Interval::default(),
            serial: 0,
            totals: Totals::default(),
        })
    }

    /// The hot threshold and the lowest warm bin.
    pub fn thresholds(&self) -> (usize, usize) {
        (self.hot, self.warm_bin)
    }

    fn marks(&self, limit: u64) -> MemtisMarks {
        MemtisMarks::new(limit, self.scale, self.reserve)
    }

    /// Keeps the lists in step with the histogram.
    fn apply_changes(&mut self, pages: &mut Pages) {
        let changes = self.heat.take_changes();
        for change in &changes {
            self.bins.apply(change);
            if change.before.is_none() {
                pages[change.unit].heat = 0;
            }
            let stays_slow = change.after.is_some_and(|spot| spot.slow);
            if !stays_slow && self.active.remove(change.unit.0) {
                self.active_pages -= change.pages;
            }
        }
        self.heat.give_back(changes);
    }

    fn refresh(&mut self, page: PageId, pages: &mut Pages) {
        self.heat.refresh(page, pages);
        self.apply_changes(pages);
    }

    fn on_sample(&mut self, now: Time, page: PageId, pages: &mut Pages) {
        let Some(hit) = self.heat.sample(page, pages) else { return };
        self.apply_changes(pages);
        let (before, after) = (visible_bin(hit.before.fine), visible_bin(hit.after.fine));
        if hit.before.class != Class::Unseen && after > before {
            self.moved_up[before] += self.heat.unit_pages(hit.unit);
        }
        let heat = &mut pages[hit.unit].heat;
        if after > before && *heat & COUNTDOWN_MASK > 0 {
            *heat |= ROSE;
        }
        if after >= self.hot {
            *heat &= !COUNTDOWN_MASK;
            // A page that becomes hot asks for a promotion of its own.
            *heat &= if before < self.hot { !COUNTED } else { u16::MAX };
        }
        self.splitting.sample(!hit.after.slow, visible_bin(fine_bin(hit.page_before)) >= self.base_hot);
        self.samples += 1;
        if self.samples.is_multiple_of(self.amounts.cool_samples) {
            self.cool(pages);
        }
        if self.samples.is_multiple_of(self.amounts.adapt_samples) {
            self.threshold_due = true;
            if self.couple == Couple::Samples {
                self.wake = now;
            }
        }
    }

    /// A hint fault: the page is promising, and stays where it is until the migration thread wakes.
    fn on_fault(&mut self, page: PageId, pages: &mut Pages) {
        self.refresh(page, pages);
        let unit = pages.unit(page).start;
        let slow = self.heat.spot(unit, pages).is_some_and(|spot| spot.slow);
        self.scanner.fault(!slow);
        if !slow || !self.faults {
            return;
        }
        if self.active.remove(unit.0) {
            self.active.push_front(YOUNG, unit.0);
            return;
        }
        if self.touches > 1 && !self.was_touched(pages[unit].heat) {
            pages[unit].heat = pages[unit].heat & !TOUCHED | touched_in(self.passes);
            return;
        }
        pages[unit].heat &= !(TOUCHED | COUNTED);
        self.active.push_front(YOUNG, unit.0);
        self.active_pages += self.heat.unit_pages(unit);
    }

    /// Whether a fault found the page used before: in this pass of the scanner or the one before, or ever without aging.
    fn was_touched(&self, heat: u16) -> bool {
        let mark = heat & TOUCHED;
        match self.aging {
            true => mark == touched_in(self.passes) || mark == touched_in(self.passes + PASSES_TOLD - 1),
            false => mark != 0,
        }
    }

    /// Time passed: the scanner goes on, and at the end of its pass the active list ages.
    fn tick(&mut self, now: Time, footprint: u64) {
        self.scanner.tick(now, footprint);
        if self.passes == self.scanner.passes() {
            return;
        }
        self.passes = self.scanner.passes();
        if self.aging {
            while let Some(unit) = self.active.back(OLD) {
                self.active.remove(unit);
                self.active_pages -= self.heat.unit_pages(PageId(unit));
            }
            self.active.splice_back(YOUNG, OLD);
        }
    }

    fn cool(&mut self, pages: &mut Pages) {
        self.pages_at_cooling = self.heat.tracked_pages();
        if self.k == 0.5 {
            self.heat.cool();
            self.bins.cool();
        } else {
            self.heat.cool_by(1.0 - self.k, pages);
            self.apply_changes(pages);
        }
        self.coolings += 1;
        self.base_hot = self.base_hot.saturating_sub(1).max(1);
        let fast = self.limit.unwrap_or(u64::MAX >> 1);
        let chosen = self.splitting.decide(&self.heat, pages, self.base_hot, fast, self.coolings);
        if !chosen.is_empty() {
            self.to_split = chosen;
        }
    }

    /// Ends the countdown of pages that T_hot passed, and forgets those that have none.
    fn release_hot(&mut self, pages: &mut Pages) {
        let (heat, hot) = (&self.heat, self.hot);
        self.guarded.retain(|&page| {
            let is_guarded = pages.block(page.block()).is_some()
                && pages.unit(page).start == page
                && pages[page].heat & COUNTDOWN_MASK > 0;
            let spot = if is_guarded { heat.spot(page, pages) } else { None };
            let Some(spot) = spot else { return false };
            if spot.slow || visible_bin(spot.fine) >= hot {
                pages[page].heat &= !COUNTDOWN_MASK;
                return false;
            }
            true
        });
    }

    /// T_hot, then Algorithm 2.
    fn adapt(&mut self, pages: &mut Pages) {
        let Some(limit) = self.limit else { return };
        self.threshold_due = false;
        let sizes = self.heat.histogram();
        let capacity = if self.fixed_demotion { limit.saturating_sub(self.marks(limit).promote) } else { limit };
        let found = fit(&sizes, capacity);
        self.hot = found.lowest.clamp(1, BINS - 1);
        self.base_hot = fit(&self.heat.base_histogram(), capacity).lowest.clamp(1, BINS - 1);
        self.release_hot(pages);
        self.warm_bin = match self.warm {
            Warm::Adaptive => lowest_warm_bin(self.hot, self.beta, &sizes, &self.moved_up),
            Warm::Single if (found.pages as f64) < WARM_BELOW * capacity as f64 => self.hot - 1,
            Warm::Single | Warm::None => self.hot,
        };
        self.moved_up[..self.hot].fill(0);
        let newborn = if self.pebs { (1 << (self.hot as u32 + 1)) + 1 } else { 1 };
        self.heat.set_newborn(newborn);
    }

    /// Algorithm 1, and the gate of A4: what this interval may demote.
    fn open_interval(&mut self, capacity: &CapacityView<'_>) -> Interval {
        let limit = support::fast_limit(capacity);
        let cold: u64 = self.heat.histogram_of(false)[..self.warm_bin].iter().sum();
        let (mistaken, promoted) = (self.mistaken as f64, self.promoted_by_faults as f64);
        if promoted > 0.0 {
            (self.mistaken, self.promoted_by_faults) = (0, 0);
            let alpha = (1.0 - mistaken / promoted).clamp(0.0, 1.0);
            self.alpha = self.fixed_alpha.unwrap_or(alpha);
        }
        let waiting = match self.failing {
            Failing::Standing => self.active_pages as f64,
            Failing::Once | Failing::Attempts => self.failed.faults,
        };
        let promising = self.alpha * waiting;
        let unmet = (self.failed.histogram + self.alpha * self.failed.faults) as u64;
        let rate = cold + unmet;
        self.failed = Failures::default();
        self.totals.intervals += 1;
        let used = capacity.tiers[0].used;
        let marks = self.marks(limit);
        if self.fixed_demotion {
            let need = marks.need(limit, used, self.hot_slow());
            return Interval { open: true, rate: need, cold_left: need, warm_left: 0 };
        }
        // Promising pages are worth room as far as the latest of them proved hot (section 6), and as the last attempts found none.
        let bound = match self.only_need {
            true => (used + marks.promote + self.hot_slow() + promising as u64).saturating_sub(limit),
            false => u64::MAX,
        };
        let warm_left = if self.into_warm { unmet.min(bound) } else { 0 };
        Interval { open: true, rate, cold_left: rate.min(bound), warm_left }
    }

    /// An allocation that finds fast memory short wakes the migration thread, as often as MEMTIS's.
    fn on_born(&mut self, now: Time, tier: TierId, pages: &Pages) {
        let Some(limit) = self.limit.filter(|_| self.direct) else { return };
        let short = pages.used_in_all(TierId::FAST) + self.marks(limit).demote >= limit;
        if (tier > TierId::FAST || short) && self.room_at.is_none() {
            let gap = self.period / memtis::DIRECT_GAP;
            self.room_at = Some(self.made_room.map_or(now, |last| (last + gap).max(now)));
        }
    }

    /// Demotes cold pages for allocations: what MEMTIS frees for them, and nothing that is warm.
    fn make_room(&mut self, now: Time, capacity: &CapacityView<'_>, pages: &mut Pages, requests: &mut MoveRequests) {
        (self.room_at, self.made_room) = (None, Some(now));
        let limit = support::fast_limit(capacity);
        let need = (capacity.tiers[0].used + self.marks(limit).promote).saturating_sub(limit);
        if need > 0 {
            let left = need + self.marks(limit).direct_extra;
            self.interval.cold_left = left;
            self.demote(pages, requests);
            self.interval.cold_left = 0;
        }
    }

    /// Hot pages in slow memory by the histogram.
    fn hot_slow(&self) -> u64 {
        self.heat.histogram_of(true)[self.hot..].iter().sum()
    }

    /// Demotes what the interval still allows, coldest bin first. Returns the pages requested for.
    fn demote(&mut self, pages: &mut Pages, requests: &mut MoveRequests) -> u64 {
        let mut total = 0;
        // Half of a long list is for the promotions that the demotions make room for.
        let mut slots = (requests.left() / 2).max(1);
        for bin in 0..self.hot {
            let is_warm = bin >= self.warm_bin;
            let left =
                if is_warm { self.interval.warm_left.min(self.interval.cold_left) } else { self.interval.cold_left };
            let mut wanted = left;
            let reason = if is_warm { Reason::MakeRoom } else { Reason::Cold };
            for class in [Class::Unseen, Class::Settled, Class::Fresh] {
                let (bins, heat) = (&self.bins, &self.heat);
                for unit in bins.back_to_front(false, class, bin) {
                    if wanted == 0 || slots == 0 {
                        break;
                    }
                    if pages[unit].moving() || pages[unit].pinned() {
                        continue;
                    }
                    if pages[unit].heat & COUNTDOWN_MASK > 0 {
                        pages[unit].heat -= 1;
                        self.totals.passed_over += 1;
                        let rose = pages[unit].heat & ROSE != 0 && !self.must_get_hot;
                        if pages[unit].heat & COUNTDOWN_MASK == 0 && !rose {
                            self.mistaken += heat.unit_pages(unit);
                            self.totals.mistaken += heat.unit_pages(unit);
                        }
                        continue;
                    }
                    let size = heat.unit_pages(unit);
                    requests.move_to(unit, TierId::FAST.below(), reason);
                    slots -= 1;
                    wanted = wanted.saturating_sub(size);
                    total += size;
                }
            }
            let done = left - wanted;
            self.interval.cold_left -= done;
            if is_warm {
                self.interval.warm_left -= done;
            }
        }
        total
    }

    /// Promotes in turn from the active list and the hot bins until fast memory is full. What is left over has failed.
    fn promote(&mut self, capacity: &CapacityView<'_>, freed: u64, pages: &mut Pages, requests: &mut MoveRequests) {
        let limit = support::fast_limit(capacity);
        let reserve = self.marks(limit).promote;
        let mut left = (limit + freed).saturating_sub(capacity.tiers[0].used + reserve);
        self.serial = if self.serial == SERIALS { 1 } else { self.serial + 1 };
        let mark = self.serial << SERIAL_SHIFT;
        let (mut from_active, mut from_bins) = (0, 0);
        let active = &self.active;
        let front_to_back = |list| std::iter::successors(active.front(list), |&id| active.toward_back(id));
        let mut promising: Box<dyn Iterator<Item = u32>> = match self.newest_first {
            true => Box::new(front_to_back(YOUNG).chain(front_to_back(OLD))),
            false => Box::new(active.back_to_front(OLD).chain(active.back_to_front(YOUNG))),
        };
        let bins = &self.bins;
        let mut hot = (self.hot..FINE_BINS).rev().flat_map(|fine| {
            let classes = [Class::Fresh, Class::Settled].into_iter();
            classes.flat_map(move |class| bins.fine_back_to_front(true, class, fine))
        });
        let mut turn_of_faults = true;
        let (mut active_done, mut bins_done) = (false, false);
        // Alpha of the room at most, and of the turns while the bins have pages too.
        let share = if self.limits_promotion { self.alpha.max(TRIAL) } else { 1.0 };
        let active_most = (share * left as f64).ceil() as u64;
        let (mut credit, mut unmet) = (self.credit, [0; 2]);
        while !(active_done && bins_done) && requests.left() > 0 {
            let from_fault = turn_of_faults && !active_done || bins_done;
            turn_of_faults = !from_fault;
            if from_fault {
                credit += share;
                if credit < 1.0 {
                    continue;
                }
            }
            let unit = if from_fault { promising.next().map(PageId) } else { hot.next() };
            let Some(unit) = unit.filter(|_| !from_fault || from_active < active_most || left == 0) else {
                *(if from_fault { &mut active_done } else { &mut bins_done }) = true;
                continue;
            };
            let page = &mut pages[unit];
            if page.heat & !FLAGS == mark || page.moving() || page.pinned() {
                continue;
            }
            let size = self.heat.unit_pages(unit);
            // A unit too large for what is left ends its source too, so that no list is searched for a smaller one.
            if size > left {
                unmet[usize::from(from_fault)] = size;
                *(if from_fault { &mut active_done } else { &mut bins_done }) = true;
                continue;
            }
            page.heat = (page.heat & FLAGS & !FROM_FAULT) | mark | if from_fault { FROM_FAULT } else { 0 };
            left -= size;
            *(if from_fault { &mut from_active } else { &mut from_bins }) += size;
            credit -= if from_fault { 1.0 } else { 0.0 };
            requests.move_to(unit, TierId::FAST, Reason::Hot);
        }
        drop(promising);
        drop(hot);
        self.credit = credit.min(1.0);
        let is_last = requests.left() > 0;
        let failed = match self.failing {
            Failing::Attempts => unmet,
            Failing::Once if is_last => self.newly_waiting(unmet.map(|pages| pages > 0), mark, pages),
            Failing::Standing if is_last => {
                [self.hot_slow().saturating_sub(from_bins), self.active_pages.saturating_sub(from_active)]
            }
            Failing::Once | Failing::Standing => [0; 2],
        };
        self.fail(false, failed[0]);
        self.fail(true, failed[1]);
    }

    /// Pages of the sources that ran out of room, hot bins and active list, that still wait and were not counted for it yet. This plan has the
    /// number `mark`.
    fn newly_waiting(&self, is_short: [bool; 2], mark: u16, pages: &mut Pages) -> [u64; 2] {
        let mut found = [0; 2];
        let mut count = |source: usize, unit: PageId| {
            let page = &mut pages[unit];
            if page.heat & !FLAGS == mark || page.heat & COUNTED != 0 || page.moving() || page.pinned() {
                return;
            }
            page.heat |= COUNTED;
            found[source] += self.heat.unit_pages(unit);
        };
        if is_short[0] {
            for (fine, class) in (self.hot..FINE_BINS).flat_map(|fine| [(fine, Class::Fresh), (fine, Class::Settled)]) {
                self.bins.fine_back_to_front(true, class, fine).for_each(|unit| count(0, unit));
            }
        }
        if is_short[1] {
            let lists = [YOUNG, OLD].into_iter();
            lists.flat_map(|list| self.active.back_to_front(list)).for_each(|unit| count(1, PageId(unit)));
        }
        found
    }

    fn fail(&mut self, from_fault: bool, pages: u64) {
        let (now, ever) = match from_fault {
            true => (&mut self.failed.faults, &mut self.totals.failed_faults),
            false => (&mut self.failed.histogram, &mut self.totals.failed_histogram),
        };
        *now += pages as f64;
        *ever += pages;
    }

    /// A promotion found no room after all.
    fn no_room(&mut self, unit: PageId, pages: &mut Pages) {
        let heat = &mut pages[unit].heat;
        let (from_fault, counted) = (*heat & FROM_FAULT != 0, *heat & COUNTED != 0);
        *heat = (*heat & !FROM_FAULT) | COUNTED;
        if !counted || self.failing != Failing::Once {
            self.fail(from_fault, self.heat.unit_pages(unit));
        }
    }
}

/// The mark of a first use in this pass.
fn touched_in(pass: u64) -> u16 {
    ((pass % PASSES_TOLD) as u16 + 1) << TOUCHED_SHIFT
}

/// Algorithm 2: the warm range grows downward from T_hot - 1 while a bin has at least beta of its pages moving up.
fn lowest_warm_bin(hot: usize, beta: f64, sizes: &[u64; BINS], moved_up: &[u64; BINS]) -> usize {
    let is_warm = |bin: usize| moved_up[bin] as f64 >= beta * sizes[bin] as f64;
    (0..hot).rev().take_while(|&bin| is_warm(bin)).last().unwrap_or(hot)
}

impl FlexMem {
    fn set_scale(&mut self, factor: u32) {
        let scaled = |full| support::scaled_count(full, factor);
        self.scale = factor;
        self.scanner.set_scale(factor);
        self.amounts = Amounts {
            adapt_samples: scaled(self.full.adapt_samples),
            cool_samples: scaled(self.full.cool_samples),
            cool_growth: scaled(self.full.cool_growth),
        };
        self.splitting.set_cool_samples(self.amounts.cool_samples.min(1 << 40));
    }

    fn set_folded(&mut self, parts: u32) {
        self.heat.set_folded(parts);
        let samples = |full| support::scaled_samples(full, self.scale, parts);
        self.amounts.adapt_samples = samples(self.full.adapt_samples);
        self.amounts.cool_samples = samples(self.full.cool_samples);
        self.splitting.set_cool_samples(self.amounts.cool_samples.min(1 << 40));
    }

    /// Pages split since the last decision, before anything moves: their pieces then move by their own counts.
    fn request_splits(&mut self, pages: &Pages, requests: &mut MoveRequests) {
        let count = self.to_split.len().min(SPLITS_A_PASS);
        for block in self.to_split.drain(..count) {
            if pages.block(block).is_some_and(|info| info.huge) {
                requests.push(block.first_page(), Action::Split, Reason::PageSize);
            }
        }
    }

    fn outcome(&mut self, done: &[Outcome], pages: &mut Pages) {
        for outcome in done {
            let item = outcome.item;
            if pages.block(item.page.block()).is_none() {
                continue;
            }
            let promotion = item.action == Action::MoveTo(TierId::FAST);
            let from_fault = pages[item.page].heat & FROM_FAULT != 0;
            for offset in 0..item.pages {
                self.refresh(item.page.plus(offset), pages);
            }
            if item.action == Action::Split {
                self.splits += u64::from(outcome.done > 0);
                continue;
            }
            if !promotion {
                if outcome.done > 0 {
                    pages[item.page].heat &= !(COUNTDOWN_MASK | TOUCHED | COUNTED);
                }
                continue;
            }
            if outcome.done == item.pages {
                pages[item.page].heat &= !(FROM_FAULT | COUNTDOWN_MASK | TOUCHED | COUNTED);
                let count = u64::from(item.pages);
                if from_fault {
                    let bin = self.heat.spot(item.page, pages).map_or(0, |spot| visible_bin(spot.fine));
                    if bin < self.hot && self.countdown > 0 {
                        pages[item.page].heat |= self.countdown;
                        self.guarded.push(item.page);
                    }
                    self.promoted_by_faults += count;
                    self.totals.promoted_by_faults += count;
                } else {
                    self.totals.promoted_by_histogram += count;
                }
            } else if outcome.failure == Some(Failure::NoRoom) {
                self.no_room(item.page, pages);
            }
        }
    }
}

impl Policy for FlexMem {
    /// Samples of a page that nobody knows yet are lost; the kernel, in which it works, knows each from its fault on.
    fn profile(&self) -> Profile {
        Profile::new(
            INFO.name,
            Needs {
                samples: self.pebs,
                hint_faults: self.faults,
                life_cycle: self.pebs,
                first_thread: self.pebs && self.main_thread,
                ..Needs::default()
            },
        )
        .above(Kernel { movers: Movers::EachTier, ..Kernel::default() })
        .splitting(self.split)
    }

    fn configure(&mut self, setup: Setup) {
        if let Some(factor) = setup.scale {
            self.set_scale(factor);
        }
        if let Some(parts) = setup.sample_parts {
            self.set_folded(parts);
        }
    }

    fn remap(&mut self, now: Time, change: Remap<'_>, pages: &mut Pages) {
        match change {
            Remap::Mapped(_) => {
                self.heat.fit(pages);
                self.bins.fit(pages.capacity());
                self.active.fit(pages.capacity());
                self.scanner.begin(now);
            }
            Remap::Unmapping(space, range) => {
                support::each_page(pages, space, &range, |page| self.heat.forget(page, pages));
                let changes = self.heat.take_changes();
                for change in &changes {
                    self.bins.apply(change);
                    if self.active.remove(change.unit.0) {
                        self.active_pages -= change.pages;
                    }
                }
                self.heat.give_back(changes);
            }
        }
    }

    fn observe(&mut self, now: Time, seen: Observations<'_>, pages: &mut Pages) {
        match seen {
            Observations::Scan(scan) => {
                (0..scan.ptes.len() as u32).for_each(|offset| self.refresh(scan.first.plus(offset), pages));
            }
            Observations::Events(events) => {
                for event in events {
                    match *event {
                        Observation::Sampled { page, .. } if self.pebs => self.on_sample(now, page, pages),
                        Observation::HintFault { page, .. } => self.on_fault(page, pages),
                        Observation::Allocated { page, tier } => {
                            self.refresh(page, pages);
                            self.on_born(now, tier, pages);
                        }
                        _ => self.refresh(event.page(), pages),
                    }
                }
            }
        }
        self.tick(now, pages.footprint_of_all());
        if self.heat.tracked_pages() >= self.pages_at_cooling.saturating_add(self.amounts.cool_growth) {
            self.cool(pages);
        }
    }

    fn feedback(&mut self, now: Time, feedback: Feedback<'_>, pages: &mut Pages) {
        match feedback {
            Feedback::Moved(done) => self.outcome(done, pages),
            Feedback::Rejected(request, rejection) => {
                let no_room = matches!(rejection, Rejection::NoRoom | Rejection::Ceiling);
                if no_room
                    && request.action == Action::MoveTo(TierId::FAST)
                    && pages.block(request.page.block()).is_some()
                {
                    self.no_room(request.page, pages);
                }
            }
            Feedback::SamplerTime(spent) => self.control.spend(now, spent),
            _ => {}
        }
    }

    fn plan(&mut self, now: Time, capacity: &CapacityView<'_>, pages: &mut Pages, requests: &mut MoveRequests) {
        self.limit = Some(support::fast_limit(capacity));
        self.tick(now, capacity.footprint);
        if capacity.tiers.len() < 2 {
            self.room_at = None;
            return;
        }
        self.request_splits(pages, requests);
        if self.threshold_due && self.couple != Couple::Timer {
            self.adapt(pages);
            if self.couple == Couple::Samples {
                self.interval = self.open_interval(capacity);
            }
        }
        if self.wake <= now && self.couple != Couple::Samples {
            if self.couple == Couple::Timer {
                if !self.pebs {
                    self.cool(pages);
                }
                self.adapt(pages);
            }
            self.interval = self.open_interval(capacity);
        }
        self.wake = match self.couple {
            Couple::Samples => Time::FAR_FUTURE,
            Couple::Timer | Couple::Decoupled if self.wake <= now => now + self.period,
            Couple::Timer | Couple::Decoupled => self.wake,
        };
        if self.interval.open {
            let hot_slow = self.hot_slow();
            let begin = requests.len();
            let freed = self.demote(pages, requests);
            let demoted = requests.len();
            if self.fixed_demotion && freed < hot_slow.min(self.interval.rate) && requests.left() > 0 {
                // MEMTIS's own: warm pages lose their protection until the next threshold.
                self.warm_bin = self.hot;
            }
            self.promote(capacity, freed, pages, requests);
            self.interval.open = requests.left() == 0;
            // The threads of both nodes work at the same time: what is left for later must not be the promotions alone, for which room was made.
            requests.alternate(begin, demoted);
        } else if self.room_at.is_some_and(|at| at <= now) {
            self.make_room(now, capacity, pages, requests);
        }
    }

    fn schedule(&self) -> Schedule {
        let sampling = self.pebs.then(|| self.control.periods());
        let hint_scan = self.scanner.hint_scan().filter(|_| self.faults);
        let scanner = self.scanner.next_change().filter(|_| self.faults);
        Schedule {
            cadence: Cadence { sampling, hint_scan, ..Cadence::default() },
            wake_at: [Some(self.wake).filter(|wake| *wake < Time::FAR_FUTURE), scanner, self.room_at]
                .into_iter()
                .flatten()
                .min(),
        }
    }

    fn report(&self) -> PolicyReport {
        let sizes = self.heat.histogram();
        let fast = self.heat.histogram_of(false);
        let mut metrics = vec![
            Metric { name: "hot_threshold_bin", value: self.hot as f64 },
            Metric { name: "warm_threshold_bin", value: self.warm_bin as f64 },
            Metric { name: "hot_pages", value: sizes[self.hot..].iter().sum::<u64>() as f64 },
            Metric { name: "warm_pages", value: sizes[self.warm_bin..self.hot].iter().sum::<u64>() as f64 },
            Metric { name: "cold_fast_pages", value: fast[..self.warm_bin].iter().sum::<u64>() as f64 },
            Metric { name: "active_slow_pages", value: self.active_pages as f64 },
            Metric { name: "alpha", value: self.alpha },
            Metric { name: "demotion_rate_pages", value: self.interval.rate as f64 },
            Metric { name: "samples", value: self.samples as f64 },
            Metric { name: "intervals", value: self.totals.intervals as f64 },
            Metric { name: "mistaken_pages", value: self.totals.mistaken as f64 },
            Metric { name: "passed_over_pages", value: self.totals.passed_over as f64 },
            Metric { name: "promoted_by_faults_pages", value: self.totals.promoted_by_faults as f64 },
            Metric { name: "promoted_by_histogram_pages", value: self.totals.promoted_by_histogram as f64 },
            Metric { name: "promotion_failures_faults", value: self.totals.failed_faults as f64 },
            Metric { name: "promotion_failures_histogram", value: self.totals.failed_histogram as f64 },
            Metric { name: "metadata_bytes_per_page", value: METADATA_BYTES },
        ];
        metrics.extend(crate::parts::bins::metrics(&sizes));
        if self.splits > 0 {
            metrics.push(Metric { name: "splits", value: self.splits as f64 });
        }
        PolicyReport {
            memory_bytes: self.heat.memory_bytes()
                + self.bins.memory_bytes()
                + self.active.memory_bytes()
                + self.guarded.capacity() * size_of::<PageId>(),
            metrics,
        }
    }
}

/// Common state, count, bin lists, active list.
const METADATA_BYTES: f64 =
    8.0 + crate::parts::heat::BYTES_PER_PAGE + 2.0 * crate::parts::lists::BYTES_PER_ENTRY as f64;

#[cfg(test)]
mod tests;
