//! The tuner at the wheel of live processes: what was seen becomes windows, decisions become shares of fast memory.
//!
//! In: a manager, every interval, and a performance database. Out: the share of the footprint that should be fast from now on.
//! Must not: decide; `terrace_sizing::Tuner` does, the same code as in the simulator. `terrace size tune` and classes with `tau`
//! both use this.
//!
//! Where there are no counters of accesses by tier, as in most virtual machines, the vector is estimated: pages that a tracker
//! saw accessed within the interval count as the accesses that would keep them fast (the threshold times their number), pages that
//! came back by a fault as slow accesses and promotions, and the program's CPU time as its operations.
//!
//! The loss of a window is what the processes lost over what is left of their CPU time, in the parts of [`Loss`]:
//! - faults on pages that came back, at the cost of one, and as many page-outs as took those pages' places;
//! - all other page-outs, at what one takes of a thread that runs meanwhile, for each thread that ran. Both costs were measured
//!   at the start; where the second could not be, as on a machine whose processors are all taken, a page-out costs a thread what it takes itself,
//!   at most: it interrupts the thread for a part of that ([`PageOutPrice`]);
//! - processor time that management took while somebody waited for a processor, the kernel's reclaim included where it holds the
//!   limit. The processes are taken to have waited for their part of all that ran. At most all of it was theirs, at least none.
//!
//! What is not seen: caches that compressing empties, and memory bandwidth that it takes.
//!
//! When the target was broken pages are brought back at once: by its faults alone a program would have them back only when it
//! has paid for each.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

use terrace_core::engine::{Engine, Input};
use terrace_core::units::{Bytes, TierId, Time};
use terrace_linux::manager::Manager;
use terrace_linux::move_cost::{Interval as MoveInterval, MoveCost, others_can_be_interrupted};
use terrace_linux::processors::{ProcessorUse, reclaim_threads};
use terrace_linux::watermarks::KernelMoves;
use terrace_machine::preset::Machine;
use terrace_policies::age::idle_time;
use terrace_sizing::database::{Origin, machine_checksum};
use terrace_sizing::microbench::FastDivisor;
use terrace_sizing::sampling::Design;
use terrace_sizing::steer::FIXED_THRESHOLD;
use terrace_sizing::tuner::{Action, Interval, Loss, Tuner, TunerConfig, Window};
use terrace_sizing::{ConfigVector, Curve, Database, Index, model};

use crate::view;

/// What is counted at the end of a window.
#[derive(Clone, Copy, Debug, Default)]
struct Reading {
    at: Time,
    refaults: u64,
    promoted: u64,
    demoted: u64,
    kernel: KernelMoves,
    cpu_seconds: f64,
    /// Of the manager's own: processor time, and that part of it in which pages moved.
    own: Duration,
    moving: Duration,
    processors: Option<ProcessorUse>,
    rounds: u64,
    footprint: u64,
}

/// Where the price of a page-out is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PageOutPrice {
    /// Page-outs cost no thread anything that is known: there is one processor, or nothing was told of this machine.
    None,
    /// It was measured at the start.
    Measured,
    /// It could not be, and no page went out yet: the price of a refault stands in, to pace the first that go.
    Refault,
    /// It could not be: what the page-outs themselves took.
    Duration,
}

impl PageOutPrice {
    /// What is to be said of it beside the inputs; nothing where it was measured.
    pub const fn remark(self) -> &'static str {
        match self {
            PageOutPrice::None | PageOutPrice::Measured => "",
            PageOutPrice::Refault => "; what page-outs cost could not be measured, a refault's price stands in",
            PageOutPrice::Duration => {
                "; what page-outs cost could not be measured, they are counted as long as they took"
            }
        }
    }
}

/// See the module's header.
pub struct LiveTuner {
    tuner: Tuner,
    index: Arc<Index>,
    frequency_hertz: f64,
    costs: MoveCost,
    price: PageOutPrice,
    /// What a page-out costs the processes of late, waiting for processors included, in seconds; as measured at first.
    page_out_seconds: Option<f64>,
    counts_kernel_moves: bool,
    /// The kernel's threads whose time counts then.
    reclaim_threads: Vec<u32>,
    /// What a round of marks costs the processes of late, in seconds; and how far rounds are set apart for it.
    round_seconds: Option<f64>,
    spacing: Duration,
    look_cost: Duration,
    last: Option<Reading>,
    due: Time,
    curve: Option<Curve>,
    held_share: f64,
    /// The share up to which pages are being brought back, and when to see how far that is.
    bringing_back: Option<(f64, Time)>,
}

/// So often it is seen how far pages that are brought back have come: some tens of MiB.
const LOOK: Duration = Duration::from_millis(50);

/// Where a live run's vector comes from without counters.
pub const INPUTS: &str = "estimated: accesses by tier from the tracker's marks and from refaults, operations from CPU time; no hardware counters";

/// Of the target, what rounds of marks may cost: the rest is for what they are for.
const OF_TARGET_FOR_ROUNDS: f64 = 0.2;
/// Rounds are no further apart than this: the ages of pages would say too little.
const MOST_SPACING: Duration = Duration::from_secs(10);
/// With fewer page-outs in a window their price says more of other things.
const LEAST_PAGES_TO_LEARN: f64 = 256.0;
/// Decisions that are shown.
const DECISIONS: usize = 120;
/// A look passes over all pages, at about a nanosecond each: with much memory looks are made more seldom, so that they take one
/// two-hundredth of the time at most. Of the last two the cheaper counts: one that was interrupted would stop the tuner for a minute.
const PAUSE_PER_COST: u32 = 200;

impl LiveTuner {
    /// A tuner of processes that have everything fast, on a machine whose processor runs at so many hertz.
    pub fn new(config: TunerConfig, index: Arc<Index>, frequency_hertz: f64) -> LiveTuner {
        LiveTuner {
            tuner: Tuner::new(config),
            index,
            frequency_hertz,
            costs: MoveCost::default(),
            price: PageOutPrice::None,
            page_out_seconds: None,
            counts_kernel_moves: false,
            reclaim_threads: Vec::new(),
            round_seconds: None,
            spacing: Duration::ZERO,
            look_cost: Duration::ZERO,
            last: None,
            due: Time::ZERO,
            curve: None,
            held_share: 1.0,
            bringing_back: None,
        }
    }

    /// What moves cost on this machine, if that was measured: without the cost of a refault no loss is observed.
    pub fn begin(&mut self, costs: MoveCost) {
        self.begin_beside(costs, others_can_be_interrupted());
    }

    fn begin_beside(&mut self, costs: MoveCost, others: bool) {
        self.costs = costs;
        self.price = match (costs.page_out, costs.refault) {
            (Some(_), _) => PageOutPrice::Measured,
            (None, Some(_)) if others => PageOutPrice::Refault,
            (None, _) => PageOutPrice::None,
        };
        let stands_in = costs.refault.filter(|_| self.price == PageOutPrice::Refault);
        self.page_out_seconds = costs.page_out.map(|cost| cost.median).or(stands_in).map(|cost| cost.as_secs_f64());
    }

    /// Where the price of page-outs is from.
    pub fn page_out_price(&self) -> PageOutPrice {
        self.price
    }

    /// Takes the price from the page-outs themselves where it could not be measured: `pages` that took so long. A thread loses a part of that
    /// time to each.
    fn price_by_duration(&mut self, pages: u64, moving: Duration) {
        if matches!(self.price, PageOutPrice::Refault | PageOutPrice::Duration) && pages as f64 >= LEAST_PAGES_TO_LEARN
        {
            let each = moving.div_f64(pages as f64);
            self.costs.page_out = Some(MoveInterval { median: each, low: Duration::ZERO, high: each });
            self.price = PageOutPrice::Duration;
        }
    }

    /// What moves cost.
    pub fn costs(&self) -> MoveCost {
        self.costs
    }

    /// What the kernel moves by itself counts as well: for machines where the kernel holds the limit.
    #[must_use]
    pub fn counting_kernel_moves(self) -> LiveTuner {
        LiveTuner { counts_kernel_moves: true, reclaim_threads: reclaim_threads(Path::new("/")), ..self }
    }

    /// When it wants to look next, or to see how far pages that are brought back have come.
    pub fn due(&self) -> Time {
        self.bringing_back.map_or(self.due, |(_, look)| look.min(self.due))
    }

    /// Has pages brought back if the latest decision was that the target is broken. For who holds the limit by pages.
    pub fn answer(&mut self, now: Time) {
        let last = self.tuner.intervals().last();
        if let Some(broken) = last.filter(|interval| interval.action == Action::BackedOff) {
            self.bringing_back = Some((broken.fast_share, now));
        }
    }

    /// Brings pages back as long as there are some and the share is not reached; at each look, as not all come at the first try.
    /// Returns when to look again, if it goes on.
    pub fn bring_back(&mut self, manager: &mut Manager) -> Option<Time> {
        if let Some(drain) = self.order(manager.engine(), manager.now()) {
            manager.tell(Input::Drain(drain));
        }
        self.bringing_back.map(|(_, look)| look)
    }

    /// What the engine is to be told now, if anything: to bring pages back, or that it is enough.
    fn order(&mut self, engine: &Engine, now: Time) -> Option<bool> {
        let (share, look) = self.bringing_back?;
        if now < look {
            return None;
        }
        let (fast, all) = (engine.pages().used_in_all(TierId::FAST), engine.pages().footprint_of_all());
        let wanted = engine.has_pages_to_bring_back() && (fast as f64) < all as f64 * share;
        self.bringing_back = wanted.then(|| (share, now + LOOK));
        Some(wanted)
    }

    /// Whether pages are being brought back.
    pub fn brings_back(&self) -> bool {
        self.bringing_back.is_some()
    }

    /// The decisions so far.
    pub fn tuner(&self) -> &Tuner {
        &self.tuner
    }

    /// The database.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// Keeps no more than the latest windows; see [`Tuner::forget_all_but`].
    pub fn forget_all_but(&mut self, windows: usize) {
        self.tuner.forget_all_but(windows);
    }

    /// What is shown of it.
    pub fn view(&self, class: &str) -> view::Sizing {
        let database = self.index.database();
        let intervals = self.tuner.intervals();
        view::Sizing {
            class: class.to_owned(),
            tau: self.tuner.config().tau,
            fast_share: self.tuner.share(),
            held_share: self.held_share,
            curve: self.curve.as_ref().map_or_else(Vec::new, |curve| curve.losses().to_vec()),
            machine: database.meta().machine.clone(),
            records: database.len() as u64,
            inputs: format!("{INPUTS}{}", self.price.remark()),
            decisions: intervals[intervals.len().saturating_sub(DECISIONS)..].iter().map(decision).collect(),
        }
    }

    /// The current window tells nothing: management was interrupted within it. What was brought back for its sake is left as it is.
    pub fn interrupt(&mut self) {
        self.last = None;
        self.bringing_back = None;
    }

    /// Looks, if it is time. The share of the footprint that should be fast from now on, if that was decided.
    pub fn look(&mut self, manager: &mut Manager) -> Option<f64> {
        let now = manager.now();
        if now < self.due {
            return None;
        }
        let began = Instant::now();
        self.due = now + self.tuner.config().interval;
        let ledger = manager.engine().ledger();
        let reading = Reading {
            at: now,
            refaults: manager.stats().major_faults,
            promoted: ledger.promoted(),
            demoted: ledger.demoted(),
            kernel: self.kernel_moves(),
            cpu_seconds: manager.stats().cpu_ticks as f64 / rustix::param::clock_ticks_per_second() as f64,
            own: manager.stats().cpu,
            moving: manager.stats().move_time,
            rounds: manager.stats().rounds,
            footprint: manager.engine().pages().footprint_of_all(),
            processors: ProcessorUse::read(Path::new("/"), &self.reclaim_threads),
        };
        let before = self.last.replace(reading)?;
        self.price_by_duration(
            reading.demoted.saturating_sub(before.demoted),
            reading.moving.saturating_sub(before.moving),
        );
        let window = self.window(manager, &before, &reading)?;
        self.learn_price(&window);
        let seconds = window.loss.map_or(0.0, |loss| loss.managing * window.length.as_secs_f64());
        manager.space_rounds(self.space(seconds, reading.rounds - before.rounds));
        self.held_share = 1.0 - window.saved_share;
        let asked = window.vector.over_interval(window.length.as_secs_f64());
        if let Ok(answer) = self.index.query(&asked, self.tuner.config().neighbours) {
            self.curve = Some(answer.curve);
        }
        let decided = self.tuner.decide(&window, &self.index);
        self.due = now + self.pause(began.elapsed());
        match decided {
            Ok(share) => Some(share),
            // A window that cannot be a program's says nothing: the limit stays.
            Err(error) => {
                tracing::debug!(%error, "an interval was passed over");
                None
            }
        }
    }

    /// Page-outs cost more than their interruptions where processors are short: as much as they were seen to.
    fn learn_price(&mut self, window: &Window) {
        let Some(loss) = window.loss.filter(|_| window.vector.demotions >= LEAST_PAGES_TO_LEARN) else { return };
        let seen = loss.moving * window.length.as_secs_f64() / window.vector.demotions;
        let measured = self.costs.page_out.map_or(0.0, |cost| cost.median.as_secs_f64());
        self.page_out_seconds = Some(f64::midpoint(self.page_out_seconds.unwrap_or(seen), seen).max(measured));
    }

    /// How long until the next look, after one that took so long.
    fn pause(&mut self, cost: Duration) -> Duration {
        let before = std::mem::replace(&mut self.look_cost, cost);
        self.tuner.config().interval.max(cost.min(before) * PAUSE_PER_COST)
    }

    /// How far apart rounds are to begin, after a window in which managing cost the processes so many seconds: so that it costs a fifth
    /// of the target. Where a processor is free it costs nothing, and the policy's own cadence holds.
    fn space(&mut self, seconds: f64, rounds: u64) -> Duration {
        if rounds > 0 {
            let each = seconds / rounds as f64;
            let smoothed = f64::midpoint(self.round_seconds.unwrap_or(each), each);
            self.round_seconds = Some(smoothed);
            let wanted = smoothed / (self.tuner.config().tau * OF_TARGET_FOR_ROUNDS);
            self.spacing = Duration::from_secs_f64(wanted).min(MOST_SPACING);
        }
        self.spacing
    }

    fn window(&self, manager: &Manager, before: &Reading, now: &Reading) -> Option<Window> {
        let pages = manager.engine().pages();
        let footprint = pages.footprint_of_all();
        if footprint == 0 {
            return None;
        }
        let length = now.at.since(before.at);
        // Where rounds are further apart than windows, what was used is known from the round before.
        let lately = length.max(self.spacing.mul_f64(1.5));
        let mut touched = 0u64;
        for (block, _) in pages.blocks() {
            let used = |page: &&terrace_core::pages::Page| {
                page.tier() == Some(TierId::FAST) && idle_time(page, now.at).is_some_and(|idle| idle <= lately)
            };
            touched += pages.block_pages(block).iter().filter(used).count() as u64;
        }
        let refaults = now.refaults.saturating_sub(before.refaults);
        let cpu = (now.cpu_seconds - before.cpu_seconds).max(0.0);
        let accesses = touched as f64 * FIXED_THRESHOLD + refaults as f64 * FIXED_THRESHOLD;
        let vector = ConfigVector {
            fast_accesses: touched as f64 * FIXED_THRESHOLD,
            slow_accesses: refaults as f64 * FIXED_THRESHOLD,
            demotions: (now.demoted.saturating_sub(before.demoted)
                + now.kernel.demoted.saturating_sub(before.kernel.demoted)) as f64,
            promotions: (now.promoted.saturating_sub(before.promoted)
                + now.kernel.promoted.saturating_sub(before.kernel.promoted)
                + refaults) as f64,
            intensity: cpu * self.frequency_hertz / accesses.max(1.0),
            resident_bytes: Bytes::of_pages(footprint).get() as f64,
            hot_threshold: FIXED_THRESHOLD,
            threads: (cpu / length.as_secs_f64()).ceil().max(1.0),
        };
        let fast = pages.used_in_all(TierId::FAST);
        // Compressed memory lies in fast memory, too: what it takes is not saved.
        let occupied = self.occupied(manager, footprint - fast);
        let share = |amount: u64| (amount as f64 / footprint as f64).min(1.0);
        let moved_out = vector.demotions as u64;
        let passed = Passed {
            seconds: length.as_secs_f64(),
            cpu,
            refaults,
            moved_out,
            own: now.own.saturating_sub(before.own).as_secs_f64(),
            moving: now.moving.saturating_sub(before.moving).as_secs_f64(),
            processors: now.processors.zip(before.processors).map(|(now, before)| now.since(&before)),
        };
        Some(Window {
            end: now.at,
            length,
            vector,
            held_share: share(fast),
            saved_share: 1.0 - share(fast + occupied),
            loss: passed.loss(&self.costs),
            used_share: share(fast),
            // The limit is a share of what the processes have, and grows with it; refaults are of pages that it put out.
            growth_share: 0.0,
            followed_share: share(footprint.saturating_sub(before.footprint)),
            left_room: false,
            return_seconds: self.costs.refault.map(|cost| footprint as f64 * cost.as_secs_f64()),
            // Of each thread that runs, as much; and a loss is a share of what they run.
            move_seconds: self.page_out_seconds.map(|cost| footprint as f64 * cost),
        })
    }

    /// What the kernel moved by itself, where that counts.
    fn kernel_moves(&self) -> KernelMoves {
        let moves = self.counts_kernel_moves.then(|| KernelMoves::read(Path::new("/")).ok()).flatten();
        moves.unwrap_or_default()
    }

    /// Fast memory that compressed pages take: of the whole device's, the part of those `slow` pages that lie in it.
    fn occupied(&self, manager: &Manager, slow: u64) -> u64 {
        let Some(zram) = manager.stats().pressure.zram else { return 0 };
        let stored = zram.orig_data_bytes.pages().max(1);
        (zram.mem_used_bytes.pages() as f64 * (slow as f64 / stored as f64).min(1.0)) as u64
    }
}

/// What passed in a window, as far as it says what the processes lost.
#[derive(Clone, Copy, Debug)]
struct Passed {
    seconds: f64,
    /// CPU time of the processes.
    cpu: f64,
    refaults: u64,
    moved_out: u64,
    /// Processor time of the manager, and time in which it moved pages.
    own: f64,
    moving: f64,
    processors: Option<ProcessorUse>,
}

impl Passed {
    /// The loss; `None` where the cost of a refault is not known, or nothing ran.
    fn loss(&self, costs: &MoveCost) -> Option<Loss> {
        let refault = costs.refault?.as_secs_f64();
        if self.cpu <= 0.0 || self.seconds <= 0.0 {
            return None;
        }
        let back = self.refaults as f64 * refault;
        // A page-out interrupts each thread that runs.
        let threads = self.cpu / self.seconds;
        let out = costs.page_out.unwrap_or_default();
        let [low, median, high] = [out.low, out.median, out.high].map(|cost| cost.as_secs_f64() * threads);
        let replaced = self.moved_out.min(self.refaults) as f64;
        let (taken, most_taken) = self.taken();
        // Of the processor time that was taken, so much went into moves.
        let of_moves = if self.own > 0.0 { (self.moving / self.own).min(1.0) } else { 0.0 };
        let out_pages = self.moved_out as f64;
        // Faults and interruptions are within the CPU time, waiting is not.
        let without = (self.cpu - back - out_pages * median).max(self.cpu * 0.01);
        Some(Loss {
            standing: (back + replaced * median) / without,
            moving: ((out_pages - replaced) * median + taken * of_moves) / without,
            managing: taken * (1.0 - of_moves) / without,
            low: (back + out_pages * low) / without,
            high: (back + out_pages * high + most_taken) / without,
        })
    }

    /// Processor time that management took of the processes, and at most.
    fn taken(&self) -> (f64, f64) {
        let Some(processors) = self.processors else { return (0.0, self.own) };
        let all = self.own + processors.reclaim.as_secs_f64();
        // Nobody waited for longer because of management than it ran.
        let most = processors.waited.map_or(all, |waited| all.min(waited.as_secs_f64()));
        let others = (processors.busy.as_secs_f64() - all).max(self.cpu);
        (most * self.cpu / others, most)
    }
}

fn decision(interval: &Interval) -> view::Decision {
    view::Decision {
        seconds: interval.seconds,
        observed_loss: interval.observed_loss,
        predicted_loss: interval.predicted_loss,
        fast_share: interval.fast_share,
        action: match interval.action {
            Action::Waited => "waited",
            Action::Kept => "kept",
            Action::Shrunk => "shrunk",
            Action::Grew => "grew",
            Action::BackedOff => "backed_off",
        }
        .to_owned(),
    }
}

/// A performance database that is being made ready beside the loop.
pub enum Sizing {
    /// No class asked for one yet.
    Unasked,
    /// It is read or built.
    Preparing(Receiver<Result<Arc<Index>, String>>),
    /// It is there.
    Ready(Arc<Index>),
    /// It cannot be had.
    Failed(String),
}

/// Records of a database that is built in memory. `terrace size` takes five times as many for one command; here the programs go on
/// meanwhile, and what is observed corrects what is coarse.
const RECORDS: u64 = 4_000;
const SEED: u64 = 1;
/// It is built while programs run, behind them; the lowest priority of all would wait for ever on a busy machine.
const NICE: i32 = 10;

impl Sizing {
    /// Begins to read the database, or to build one by the model; both in a thread of their own.
    pub fn prepare(machine: Machine, file: Option<PathBuf>) -> Sizing {
        let (sender, receiver) = channel();
        let work = move || {
            // Slower than asked for is no harm.
            let _ = rustix::process::setpriority_process(None, NICE);
            // Nobody waits any more where the daemon has ended.
            let _ = sender.send(index(&machine, file.as_deref()).map(Arc::new));
        };
        match std::thread::Builder::new().name("sizing".to_owned()).spawn(work) {
            Ok(_) => Sizing::Preparing(receiver),
            Err(error) => Sizing::Failed(format!("no thread to make the performance database ready: {error}")),
        }
    }

    /// Whether it has just become ready, or failed.
    pub fn settle(&mut self) -> bool {
        let Sizing::Preparing(receiver) = self else { return false };
        *self = match receiver.try_recv() {
            Ok(Ok(index)) => Sizing::Ready(index),
            Ok(Err(why)) => Sizing::Failed(why),
            Err(TryRecvError::Empty) => return false,
            Err(TryRecvError::Disconnected) => {
                Sizing::Failed("making the performance database ready failed".to_owned())
            }
        };
        true
    }
}

fn index(machine: &Machine, file: Option<&Path>) -> Result<Index, String> {
    let database = match file {
        Some(path) => read(machine, path).map_err(|why| format!("sizing.database = \"{}\": {why}", path.display()))?,
        None => modelled(machine)?,
    };
    Index::new(database).map_err(|error| format!("the records cannot be indexed: {error}"))
}

fn read(machine: &Machine, path: &Path) -> Result<Database, String> {
    let bytes = std::fs::read(path).map_err(|error| error.to_string())?;
    let database = Database::from_parquet(bytes.into()).map_err(|error| error.to_string())?;
    match database.is_foreign_to(machine) {
        Some(why) => Err(format!("{why}; see sizing.machine")),
        None => Ok(database),
    }
}

fn modelled(machine: &Machine) -> Result<Database, String> {
    let design = Design::new(machine, SEED);
    let (mut vectors, mut seconds) = (Vec::new(), Vec::new());
    for number in 0..RECORDS {
        let vector = design.vector(number);
        let record = model::record(&vector, machine, FastDivisor::default());
        seconds.extend(record.map_err(|error| format!("record {number} of the model: {error}"))?);
        vectors.push(vector);
    }
    let origin = Origin {
        machine: machine.name.clone(),
        machine_checksum: machine_checksum(machine),
        seed: SEED,
        fast_divisor: FastDivisor::default(),
    };
    Database::new(origin, vectors, seconds).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use terrace_core::engine::{EngineConfig, Output};
    use terrace_core::governor::GovernorConfig;
    use terrace_core::observation::{Scan, Seen, Sight};
    use terrace_core::pages::Pages;
    use terrace_core::plan::{Move, Outcome, Reason, Wishes};
    use terrace_core::policy::{Cadence, FastGoal, Metric, Needs, Policy, Room, Round};
    use terrace_core::units::{BLOCK_PAGES, SpaceId, Vpn};
    use terrace_linux::move_cost::Interval as Measured;
    use terrace_sizing::tuner::Mode;

    use super::*;

    const MICRO: f64 = 1e-6;

    fn costs() -> MoveCost {
        let out = Measured {
            median: Duration::from_micros(10),
            low: Duration::from_micros(8),
            high: Duration::from_micros(14),
        };
        MoveCost { refault: Some(Duration::from_micros(9)), page_out: Some(out) }
    }

    fn processors(busy: f64, waited: Option<f64>) -> Option<ProcessorUse> {
        let [busy, reclaim] = [busy, 0.0].map(Duration::from_secs_f64);
        Some(ProcessorUse { busy, waited: waited.map(Duration::from_secs_f64), reclaim })
    }

    /// A second of a program with one thread that runs all the time, and a processor to spare.
    fn second() -> Passed {
        let processors = processors(1.3, Some(0.0));
        Passed { seconds: 1.0, cpu: 1.0, refaults: 0, moved_out: 0, own: 0.3, moving: 0.2, processors }
    }

    #[test]
    fn page_outs_cost_each_thread_that_runs_though_nothing_comes_back() {
        let one = Passed { moved_out: 13_000, ..second() }.loss(&costs()).unwrap();
        let lost = 13_000.0 * 10.0 * MICRO;
        assert!((one.moving - lost / (1.0 - lost)).abs() < 1e-9, "{one:?}");
        assert_eq!((one.standing, one.managing), (0.0, 0.0));
        assert!(one.low < one.total() && one.total() < one.high, "{one:?}");
        // Two threads lose twice the time, of twice the time; one that hardly runs loses hardly anything.
        let two = Passed { cpu: 2.0, moved_out: 13_000, ..second() }.loss(&costs()).unwrap();
        assert!((two.moving - one.moving).abs() < 1e-9, "{two:?}");
        // On one processor there is no other to interrupt.
        let none = Passed { moved_out: 13_000, ..second() }.loss(&MoveCost { page_out: None, ..costs() }).unwrap();
        assert_eq!(none.total(), 0.0);
    }

    #[test]
    fn what_could_not_be_measured_is_priced_by_the_page_outs_themselves() {
        let index = Arc::new(Index::new(modelled(&Machine::preset("zram-vm").unwrap()).unwrap()).unwrap());
        let mut live = LiveTuner::new(TunerConfig::new(0.05, Mode::Measured), index, 2.5e9);
        live.begin_beside(costs(), true);
        assert_eq!(live.page_out_price(), PageOutPrice::Measured);
        live.price_by_duration(1000, Duration::from_millis(25));
        assert_eq!(live.costs(), costs(), "what was measured stays");
        let unpriced = MoveCost { page_out: None, ..costs() };
        live.begin_beside(unpriced, false);
        assert_eq!((live.page_out_price(), live.page_out_seconds), (PageOutPrice::None, None));
        live.begin_beside(unpriced, true);
        assert_eq!(live.page_out_price(), PageOutPrice::Refault);
        assert_eq!(live.page_out_seconds, unpriced.refault.map(|cost| cost.as_secs_f64()), "the first are paced, too");
        live.price_by_duration(10, Duration::from_millis(25));
        assert_eq!(live.page_out_price(), PageOutPrice::Refault, "ten pages say more of other things");
        live.price_by_duration(1000, Duration::from_millis(25));
        assert_eq!(live.page_out_price(), PageOutPrice::Duration);
        let priced = live.costs().page_out.unwrap();
        assert_eq!((priced.low, priced.median), (Duration::ZERO, Duration::from_micros(25)));
        assert_eq!(priced.high, priced.median, "a thread is not interrupted for longer");
        // A window of them is a loss now.
        let loss = Passed { moved_out: 1000, ..second() }.loss(&live.costs()).unwrap();
        assert!(loss.moving > 0.02 && loss.low == 0.0, "{loss:?}");
    }

    #[test]
    fn page_outs_in_the_place_of_pages_that_came_back_are_the_sizes() {
        let loss = Passed { refaults: 1000, moved_out: 1500, ..second() }.loss(&costs()).unwrap();
        let without = 1.0 - (1000.0 * 9.0 + 1500.0 * 10.0) * MICRO;
        assert!((loss.standing - 1000.0 * 19.0 * MICRO / without).abs() < 1e-9, "{loss:?}");
        assert!((loss.moving - 500.0 * 10.0 * MICRO / without).abs() < 1e-9, "{loss:?}");
    }

    #[test]
    fn processor_time_counts_as_taken_while_somebody_waits_for_some() {
        // Two processors, a server and its load: what management runs they wait for, one as long as the other.
        let busy = Passed { processors: processors(2.0, Some(0.9)), ..second() };
        let loss = busy.loss(&costs()).unwrap();
        let taken = 0.3 * 1.0 / 1.7;
        assert!((loss.total() - taken).abs() < 1e-9 && (loss.high - 0.3).abs() < 1e-9, "{loss:?}");
        assert!((loss.moving - taken * 2.0 / 3.0).abs() < 1e-9 && loss.standing == 0.0 && loss.low == 0.0, "{loss:?}");
        let hardly = Passed { processors: processors(1.5, Some(0.01)), ..second() };
        assert!(hardly.loss(&costs()).unwrap().high <= 0.01 + 1e-9);
        // Where waiting is not counted, it may have been all of it.
        let unknown = Passed { processors: processors(1.3, None), ..second() };
        assert!((unknown.loss(&costs()).unwrap().high - 0.3).abs() < 1e-9);
    }

    #[test]
    fn rounds_are_set_apart_until_they_cost_a_fifth_of_the_target() {
        let index = Arc::new(Index::new(modelled(&Machine::preset("zram-vm").unwrap()).unwrap()).unwrap());
        let mut live = LiveTuner::new(TunerConfig::new(0.05, Mode::Measured), index, 2.5e9);
        assert_eq!(live.space(0.0, 2), Duration::ZERO, "a processor is free");
        // Two rounds of 20 ms each second, then fewer, as it is told; a window may have none.
        let mut apart = Duration::from_millis(500);
        for window in 0..40 {
            let each = apart.max(Duration::from_millis(500)).as_secs();
            let rounds = if each == 0 { 2 } else { u64::from(window % each == 0) };
            apart = live.space(0.02 * rounds as f64, rounds);
        }
        assert!((apart.as_secs_f64() - 2.0).abs() < 0.1, "{apart:?}");
        assert_eq!((0..20).map(|_| live.space(1.0, 1)).next_back(), Some(MOST_SPACING));
    }

    #[test]
    fn a_look_that_was_interrupted_does_not_stop_the_tuner_and_dear_looks_are_seldom() {
        let index = Arc::new(Index::new(modelled(&Machine::preset("zram-vm").unwrap()).unwrap()).unwrap());
        let mut live = LiveTuner::new(TunerConfig::new(0.05, Mode::Measured), index, 2.5e9);
        let seconds =
            [1, 400, 1, 400, 400].map(|milliseconds| live.pause(Duration::from_millis(milliseconds)).as_secs_f64());
        assert_eq!(seconds, [2.5, 2.5, 2.5, 2.5, 80.0]);
    }

    #[test]
    fn without_the_cost_of_a_refault_or_a_program_that_runs_nothing_is_observed() {
        assert_eq!(second().loss(&MoveCost::default()), None);
        assert_eq!(Passed { cpu: 0.0, ..second() }.loss(&costs()), None);
    }

    const SLOW: TierId = TierId(1);

    /// Wishes every second page away.
    struct Half;

    impl Policy for Half {
        fn name(&self) -> &'static str {
            "half"
        }
        fn needs(&self) -> Needs {
            Needs { scans: true, ..Needs::default() }
        }
        fn observe(&mut self, _: Time, _: Seen<'_>, _: &mut Pages) {}
        fn plan(&mut self, _: Time, _: &Room<'_>, pages: &mut Pages, wishes: &mut Wishes) {
            let blocks: Vec<_> = pages.blocks().map(|(block, _)| block).collect();
            for offset in (0..BLOCK_PAGES).step_by(2) {
                for block in &blocks {
                    wishes.move_to(block.first_page().plus(offset), SLOW, Reason::Cold);
                }
            }
        }
        fn cadence(&self) -> Cadence {
            Cadence::default()
        }
        fn next_wake(&self) -> Option<Time> {
            None
        }
        fn metrics(&self) -> Vec<Metric> {
            Vec::new()
        }
    }

    /// An engine whose policy has put half of a block's pages into slow memory.
    fn half_out() -> Engine {
        let config = EngineConfig {
            tiers: vec![1 << 20, 1 << 20],
            goal: FastGoal::Share(0.5),
            governor: GovernorConfig::default(),
        };
        let mut engine = Engine::new(config, Box::new(Half));
        engine.handle(Time::ZERO, Input::Mapped(SpaceId(0), Vpn(0)..Vpn(u64::from(BLOCK_PAGES))));
        let now = Time::ZERO + Duration::from_secs(100);
        let first = engine.pages().find(SpaceId(0), Vpn(0)).unwrap();
        let sights = vec![Sight::placed(TierId::FAST); BLOCK_PAGES as usize];
        let scan = Scan { first, sights: &sights, window: Some(Duration::from_secs(1)), cleared: true };
        engine.handle(now, Input::Seen(Seen::Scan(scan)));
        engine.handle(now, Input::Round(Round::default()));
        carry_out(&mut engine, now);
        let out = engine.pages().used_in_all(SLOW);
        assert_eq!(out, u64::from(BLOCK_PAGES) / 2);
        engine
    }

    /// Carries out what the engine wants moved now; how many pages that were.
    fn carry_out(engine: &mut Engine, now: Time) -> u64 {
        let mut moved = 0;
        loop {
            match engine.poll(now) {
                Output::Wake(_) => return moved,
                Output::Move(plan) => {
                    let done = |&item: &Move| Outcome { item, done: item.pages, failure: None };
                    let outcomes: Vec<Outcome> = plan.moves.iter().map(done).collect();
                    moved += plan.moves.iter().map(|item| u64::from(item.pages)).sum::<u64>();
                    engine.handle(now, Input::Moved(&outcomes));
                }
                Output::Track(_) => {}
            }
        }
    }

    #[test]
    fn a_broken_target_brings_pages_back_at_once_and_up_to_the_share() {
        let index = Arc::new(Index::new(modelled(&Machine::preset("zram-vm").unwrap()).unwrap()).unwrap());
        let mut live = LiveTuner::new(TunerConfig::new(0.05, Mode::Measured), index.clone(), 2.5e9);
        let mut engine = half_out();
        let out = engine.pages().used_in_all(SLOW);
        let now = Time::ZERO + Duration::from_secs(310);
        live.answer(now);
        assert_eq!(live.order(&engine, now), None, "nothing was broken");
        // Three windows in which the size holds, so that it shrinks, and one in which it does not.
        for number in 1..=4u64 {
            let standing = if number == 4 { 0.4 } else { 0.0 };
            let window = Window {
                end: Time::from_nanos(number * 2_500_000_000),
                length: Duration::from_millis(2500),
                vector: ConfigVector::from_array([1e6, 1e3, 0.0, 0.0, 20.0, 1e9, 2.0, 1.0]),
                held_share: live.tuner.share(),
                saved_share: 1.0 - live.tuner.share(),
                loss: Some(Loss::of_size(standing)),
                used_share: live.tuner.share(),
                growth_share: 0.0,
                followed_share: 0.0,
                left_room: false,
                return_seconds: None,
                move_seconds: None,
            };
            live.tuner.decide(&window, &index).unwrap();
        }
        let share = live.tuner.share();
        live.answer(now);
        assert!(live.brings_back() && share > 0.9, "{:?}", live.tuner.intervals().last());
        assert_eq!(live.order(&engine, now), Some(true));
        engine.handle(now, Input::Drain(true));
        assert!(carry_out(&mut engine, now) > out / 2, "they do not wait for faults, and rest from no move");
        assert_eq!(live.order(&engine, now), None, "it is looked again in a moment");
        let later = now + LOOK;
        assert_eq!(live.order(&engine, later), Some(false), "enough is back");
        assert!(!live.brings_back() && live.order(&engine, later + LOOK).is_none());
        // Another order in between ends it.
        live.answer(later);
        live.interrupt();
        assert_eq!(live.order(&engine, later), None);
    }
}
