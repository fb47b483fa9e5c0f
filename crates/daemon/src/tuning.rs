//! The tuner at the wheel of live processes: what was seen becomes windows, decisions become shares of fast memory.
//!
//! In: a manager, every interval, and a performance database. Out: the share of the footprint that should be fast from now on.
//! Must not: decide; `terrace_sizing::Tuner` does, the same code as in the simulator. `terrace size tune` and classes with `tau`
//! both use this.
//!
//! Where there are no counters of accesses by tier, as in most virtual machines, the vector is estimated: pages that a tracker
//! saw accessed within the interval count as the accesses that would keep them fast (the threshold times their number), pages that
//! came back by a fault as slow accesses and promotions, and the program's CPU time as its operations. The loss of a window is
//! the time those faults cost, as a refault was measured at the start, over what is left of the CPU time.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

use terrace_core::units::{Bytes, TierId, Time};
use terrace_linux::manager::Manager;
use terrace_linux::watermarks::KernelMoves;
use terrace_machine::preset::Machine;
use terrace_policies::age::idle_time;
use terrace_sizing::database::{Origin, machine_checksum};
use terrace_sizing::microbench::FastDivisor;
use terrace_sizing::sampling::Design;
use terrace_sizing::steer::FIXED_THRESHOLD;
use terrace_sizing::tuner::{Action, Interval, Tuner, TunerConfig, Window};
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
}

/// See the module's header.
pub struct LiveTuner {
    tuner: Tuner,
    index: Arc<Index>,
    frequency_hertz: f64,
    refault_cost: Option<Duration>,
    counts_kernel_moves: bool,
    last: Option<Reading>,
    due: Time,
    curve: Option<Curve>,
    held_share: f64,
}

/// Where a live run's vector comes from without counters.
pub const INPUTS: &str = "estimated: accesses by tier from the tracker's marks and from refaults, operations from CPU time; no hardware counters";

/// Decisions that are shown.
const DECISIONS: usize = 120;
/// A look passes over all pages, at about a nanosecond each: with much memory looks are made more seldom, so that they take one
/// two-hundredth of the time at most.
const PAUSE_PER_COST: u32 = 200;

impl LiveTuner {
    /// A tuner of processes that have everything fast, on a machine whose processor runs at so many hertz.
    pub fn new(config: TunerConfig, index: Arc<Index>, frequency_hertz: f64) -> LiveTuner {
        LiveTuner {
            tuner: Tuner::new(config),
            index,
            frequency_hertz,
            refault_cost: None,
            counts_kernel_moves: false,
            last: None,
            due: Time::ZERO,
            curve: None,
            held_share: 1.0,
        }
    }

    /// What one refault costs on this machine, if it was measured: without it no loss is observed.
    pub fn begin(&mut self, refault_cost: Option<Duration>) {
        self.refault_cost = refault_cost;
    }

    /// What the kernel moves by itself counts as well: for machines where the kernel holds the limit.
    #[must_use]
    pub fn counting_kernel_moves(self) -> LiveTuner {
        LiveTuner { counts_kernel_moves: true, ..self }
    }

    /// When it wants to look next.
    pub fn due(&self) -> Time {
        self.due
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
            inputs: INPUTS.to_owned(),
            decisions: intervals[intervals.len().saturating_sub(DECISIONS)..].iter().map(decision).collect(),
        }
    }

    /// The current window tells nothing: management was interrupted within it.
    pub fn interrupt(&mut self) {
        self.last = None;
    }

    /// Looks, if it is time. The share of the footprint that should be fast from now on, if that was decided.
    pub fn look(&mut self, manager: &Manager) -> Option<f64> {
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
        };
        let before = self.last.replace(reading)?;
        let window = self.window(manager, &before, &reading)?;
        self.held_share = 1.0 - window.saved_share;
        let asked = window.vector.over_interval(window.length.as_secs_f64());
        if let Ok(answer) = self.index.query(&asked, self.tuner.config().neighbours) {
            self.curve = Some(answer.curve);
        }
        let decided = self.tuner.decide(&window, &self.index);
        self.due = now + self.tuner.config().interval.max(began.elapsed() * PAUSE_PER_COST);
        match decided {
            Ok(share) => Some(share),
            // A window that cannot be a program's says nothing: the limit stays.
            Err(error) => {
                tracing::debug!(%error, "an interval was passed over");
                None
            }
        }
    }

    fn window(&self, manager: &Manager, before: &Reading, now: &Reading) -> Option<Window> {
        let pages = manager.engine().pages();
        let footprint = pages.footprint_of_all();
        if footprint == 0 {
            return None;
        }
        let length = now.at.since(before.at);
        let mut touched = 0u64;
        for (block, _) in pages.blocks() {
            let used = |page: &&terrace_core::pages::Page| {
                page.tier() == Some(TierId::FAST) && idle_time(page, now.at).is_some_and(|idle| idle <= length)
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
        let loss = self.refault_cost.filter(|_| cpu > 0.0).map(|cost| {
            let lost = refaults as f64 * cost.as_secs_f64();
            lost / (cpu - lost).max(cpu * 0.01)
        });
        Some(Window {
            end: now.at,
            length,
            vector,
            held_share: share(fast),
            saved_share: 1.0 - share(fast + occupied),
            loss,
            used_share: share(fast),
            // The limit is a share of what the processes have, and grows with it; refaults are of pages that it put out.
            growth_share: 0.0,
            left_room: false,
            return_seconds: self.refault_cost.map(|cost| footprint as f64 * cost.as_secs_f64()),
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
