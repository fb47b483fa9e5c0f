//! A running class: its engine, trackers and movers, its claims and its grant.
//!
//! In: processes that join and leave, grants of the arbiter. Out: claims, figures for the view. Must not: know the other classes. The
//! arbiter divides what they share.
//!
//! The file is long because a class is one state machine: starting, pausing, draining and ending it use the same few fields.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use terrace_core::arbiter::Activity;
use terrace_core::engine::Input;
use terrace_core::governor::{FREE, GovernorConfig, Throttle};
use terrace_core::ledger::Route;
use terrace_core::plan::Reason;
use terrace_core::policy::FastGoal;
use terrace_core::units::{Bytes, SpaceId, TierId, Time};
use terrace_linux::cgroup::Cgroup;
use terrace_linux::life_cycle::LifeCycle;
use terrace_linux::live_proof::LiveProof;
use terrace_linux::live_tuner::{INPUTS, LiveTuner};
use terrace_linux::machine::Machine;
use terrace_linux::manager::Manager;
use terrace_linux::move_cost::{Interval, MoveCost};
use terrace_linux::process::ProcessError;
use terrace_linux::trackers::TrackError;
use terrace_linux::usage::{lock_own_memory, unlock_own_memory};
use terrace_policies::SettingsError;
use terrace_run::heat::{HeatRecorder, LATEST, Map};
use terrace_run::session::Files;
use terrace_run::spec::{Found, Goal, RunSpec};
use terrace_tuning::{Action, Interval as Decision, Mode, TunerConfig};

use crate::bins;
use crate::claims::{self, Claims, Grant, Orders, Standing, differs};
use crate::config::Class;
use crate::proof;
use crate::shared::{Pictures, wall_clock};
use crate::view;

/// The state of a class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// No process matches.
    Waiting,
    /// Its processes are managed.
    Running,
    /// Proof mode leaves it unmanaged for one window.
    Held,
    /// Proof mode showed harm.
    Stopped,
    /// Someone paused it.
    Paused,
    /// Its pages are being promoted.
    Draining,
    /// All pages are promoted, and it is left unmanaged.
    Drained,
    /// It cannot be managed; the daemon tries again later.
    Failed(String),
}

impl State {
    fn name(&self) -> &'static str {
        match self {
            State::Waiting => "waiting",
            State::Running => "running",
            State::Held => "held",
            State::Stopped => "stopped",
            State::Paused => "paused",
            State::Draining => "draining",
            State::Drained => "drained",
            State::Failed(_) => "failed",
        }
    }
}

/// Why a process, or a class as a whole, is not managed.
#[derive(Debug, thiserror::Error)]
pub enum NotManaged {
    /// The slow tier, named here, does not suit the goal.
    #[error(
        "goal never-fast cannot be kept: the slow tier {0} is swap, and a page there must come to fast memory to be used"
    )]
    NeverFast(String),
    /// The class failed before, and is not tried again yet.
    #[error("{0}")]
    NotYet(String),
    /// The tracker of the class does not see guests.
    #[error(
        "it is a KVM guest: its accesses are marked in tables of the processor's own, which {tracker} does not see; set \
         class.{class}.tracker to walker, damon or idle-pages, which see them, or give guests a class of their own"
    )]
    UnseenGuest {
        /// The tracker.
        tracker: String,
        /// The class.
        class: String,
    },
    /// The class does not run.
    #[error("its class is not running")]
    NotRunning,
    /// Another process has the pid now.
    #[error("its pid now belongs to another process")]
    PidReused,
    /// The policy wants to order the kernel's lists.
    #[error("lists=kernel: the kernel's lists can be ordered by one program at a time, which is terrace run or attach")]
    KernelLists,
    /// No tracker works: why, by tracker.
    #[error("{}", .0.join("; "))]
    NoTracker(Vec<String>),
    /// The policy cannot be built.
    #[error(transparent)]
    Policy(#[from] SettingsError),
    /// The process cannot be managed.
    #[error(transparent)]
    Process(#[from] ProcessError),
}

/// Figures of the last period, to compute the change.
#[derive(Clone, Debug, Default)]
struct Last {
    moved: BTreeMap<Route, u64>,
    moved_pages: u64,
    cpu: Duration,
    refaults: u64,
    throttle: Option<Throttle>,
    at: Option<Instant>,
}

/// See the module's header.
pub struct Running {
    /// As configured.
    pub class: Class,
    /// What it is doing.
    pub state: State,
    manager: Option<Manager>,
    observer: HeatRecorder,
    tracker: Option<String>,
    sees_virtual_machines: bool,
    activity: Activity,
    active: u64,
    grant: Grant,
    told: Option<Orders>,
    tuner: Option<LiveTuner>,
    last: Last,
    bandwidth_used: u64,
    cpu_used: f64,
    hits: (f64, f64),
    contract_worst: u64,
    proof: Option<LiveProof>,
    /// Why there is no proof though it is asked for; told once.
    no_proof: Option<String>,
    retry_at: Option<Instant>,
    heat_at: Option<Instant>,
    move_cost: MoveCost,
    /// The file cache, if it is a whole cgroup.
    files: Option<Files>,
}

/// Time after which a class whose tracker failed is tried again.
const RETRY: Duration = Duration::from_secs(60);
/// Windows of its tuner to keep: one hour at the default length.
const WINDOWS: usize = 1440;
/// Why a class with a target keeps everything fast on such a machine.
const BLIND: &str = "programs use the slow tier in place, where what it costs them cannot be observed: everything stays fast; a target \
    needs swap as the slow tier (memory.slow)";
/// Decisions of its tuner to show.
const DECISIONS: usize = 120;
/// Time constant of smoothed rates.
const SMOOTHING: Duration = Duration::from_secs(20);

impl Running {
    /// A class without processes.
    pub fn new(class: Class) -> Running {
        let (proof, no_proof) = proof::begin(&class);
        Running {
            class,
            state: State::Waiting,
            manager: None,
            observer: HeatRecorder::new(LATEST, Time::ZERO),
            tracker: None,
            sees_virtual_machines: false,
            activity: Activity::default(),
            active: 0,
            grant: Grant::default(),
            told: None,
            tuner: None,
            last: Last::default(),
            bandwidth_used: 0,
            cpu_used: 0.0,
            hits: (0.0, 0.0),
            contract_worst: 0,
            proof,
            no_proof,
            retry_at: None,
            heat_at: None,
            move_cost: MoveCost::default(),
            files: None,
        }
    }

    /// Whether a new configuration can be applied while the class runs. Settings of the engine or the trackers cannot.
    pub fn can_become(&self, class: &Class) -> bool {
        let old = &self.class.spec;
        // What is left of a new specification once everything is as before that can change while pages are managed.
        let rest = |new: &RunSpec| RunSpec {
            goal: if new.goal == Goal::Tuned { new.goal } else { Goal::Least },
            max_overhead: 0.0,
            metric: None,
            proof_window: None,
            ..new.clone()
        };
        rest(old) == rest(&class.spec)
    }

    /// Applies a new configuration of the class.
    pub fn become_class(&mut self, class: Class) {
        if self.class.spec.proof() != class.spec.proof() {
            (self.proof, self.no_proof) = proof::begin(&class);
            if matches!(self.state, State::Held | State::Stopped) {
                self.set_state(State::Running);
            }
        }
        if let Some(manager) = &mut self.manager {
            manager.set_max_overhead(class.spec.watching_share());
        }
        self.class = class;
        self.told = None;
    }

    /// The manager, if there is one.
    pub fn manager(&self) -> Option<&Manager> {
        self.manager.as_ref()
    }

    /// Adds a process. The first one starts the class.
    ///
    /// # Errors
    /// Why it is not managed, in one line.
    pub fn join(
        &mut self,
        pid: u32,
        start_time: u64,
        kvm_guest: bool,
        machine: &Machine,
        wanted: Option<&str>,
    ) -> Result<(), NotManaged> {
        if let (Goal::NeverFast, Some(swap)) = (self.class.spec.goal, machine.tiers.swap_tier()) {
            let why = NotManaged::NeverFast(machine.tiers.tier(swap).name.clone());
            self.set_state(State::Failed(why.to_string()));
            return Err(why);
        }
        if self.manager.is_none() {
            if self.retry_at.is_some_and(|at| Instant::now() < at) {
                let reason = self.reason().unwrap_or_else(|| "it is tried again soon".to_owned());
                return Err(NotManaged::NotYet(reason));
            }
            if let Err(error) = self.start(machine, wanted, kvm_guest) {
                self.retry_at = Some(Instant::now() + RETRY);
                self.set_state(State::Failed(error.to_string()));
                return Err(error);
            }
        }
        if let Some(tracker) = self.tracker.as_deref().filter(|_| kvm_guest && !self.sees_virtual_machines) {
            return Err(NotManaged::UnseenGuest { tracker: tracker.to_owned(), class: self.class.name.clone() });
        }
        let Some(manager) = &mut self.manager else { return Err(NotManaged::NotRunning) };
        let space = manager.add_process(pid)?;
        let opened = manager.processes().find(|(id, ..)| *id == space).map(|(_, process, _)| process.start_time());
        if opened != Some(start_time) {
            manager.remove_process(pid);
            return Err(NotManaged::PidReused);
        }
        if self.state == State::Waiting {
            self.set_state(State::Running);
        }
        Ok(())
    }

    /// Removes a process.
    pub fn leave(&mut self, pid: u32) {
        if let Some(manager) = &mut self.manager {
            manager.remove_process(pid);
        }
        self.settle();
    }

    /// Sets a class without processes to waiting.
    fn settle(&mut self) {
        let empty = self.manager.as_ref().is_none_or(|manager| manager.processes().next().is_none());
        if empty && matches!(self.state, State::Running | State::Held) {
            self.set_state(State::Waiting);
            // Observations of processes that left do not apply to new ones.
            self.tuner = None;
        }
    }

    fn start(&mut self, machine: &Machine, wanted: Option<&str>, kvm_guest: bool) -> Result<(), NotManaged> {
        let class = &self.class;
        let policy = class.spec.build_policy()?;
        let profile = policy.profile();
        if profile.kernel.lists.is_some() {
            return Err(NotManaged::KernelLists);
        }
        let locked = unlock_own_memory();
        // Before the tracker starts: it loses events that nobody reads.
        let life_cycle = LifeCycle::for_needs(profile.needs());
        let wanted_by_name = class.spec.tracker.as_deref().or(wanted);
        let found = first_that_works(&trackers_for(wanted_by_name, kvm_guest), |name| {
            let (tracker, needs, reasons) = machine.tracker(&profile.needs, name).map_err(|error| error.to_string())?;
            // The walker can do without KVM's bits; `join` refuses a guest for a tracker that the operator named.
            if kvm_guest && wanted_by_name.is_none() && !tracker.sees_virtual_machines() {
                return Err(format!("{} does not see them on this kernel", tracker.name()));
            }
            Ok((tracker, needs, reasons))
        });
        if locked.is_ok()
            && let Err(error) = lock_own_memory()
        {
            tracing::debug!(%error, "memory is not locked");
        }
        let (tracker, granted, reasons) = found?;
        for reason in reasons {
            tracing::debug!(class = class.name, "{reason}");
        }
        match &life_cycle {
            Some((Some(_), line)) => tracing::debug!(class = class.name, "{line}"),
            Some((None, line)) => tracing::warn!(class = class.name, "{line}"),
            None => {}
        }
        let life_cycle = life_cycle.and_then(|(cycle, _)| cycle);
        self.tracker = Some(tracker.name().to_owned());
        self.sees_virtual_machines = tracker.sees_virtual_machines();
        self.move_cost = machine.move_cost;
        let found = Found { policy, tracker, granted, life_cycle, kernel_lists: None };
        // Its fast memory comes by grants of the arbiter.
        let mut manager = class.spec.manager(machine, found, FastGoal::Pages(u64::MAX));
        // The selectors say which processes belong to the class, not the parents.
        manager.follow_children(false);
        if class.is_tuned() {
            manager.watch_fully();
        }
        self.observer = HeatRecorder::new(LATEST, Time::ZERO);
        self.manager = Some(manager);
        self.told = None;
        self.tuner = None;
        self.last = Last::default();
        self.retry_at = None;
        self.set_state(State::Running);
        self.tell();
        self.begin_files();
        Ok(())
    }

    /// Begins to look after its file cache, if it is a whole cgroup that is there. What left before still counts.
    fn begin_files(&mut self) {
        if let (None, Some(path)) = (&self.files, self.class.whole_cgroup()) {
            let cgroup = Cgroup::open(Path::new("/"), path).ok();
            self.files = cgroup.and_then(|cgroup| Files::begin(&self.class.spec, &cgroup));
        }
    }

    /// Does what is due of its file cache. Returns the time until the next look.
    fn look_at_files(&mut self) -> Option<Duration> {
        let files = self.files.as_mut()?;
        files.look(self.state != State::Running);
        if let Some(why) = files.news() {
            tracing::warn!(class = self.class.name, "{why}");
        }
        files.wait()
    }

    /// Changes the state of the class and informs its manager.
    pub fn set_state(&mut self, state: State) {
        self.state = state;
        if self.state != State::Running
            && let Some(tuner) = &mut self.tuner
        {
            tuner.interrupt();
        }
        let Some(manager) = &mut self.manager else { return };
        manager.tell(Input::Drain(self.state == State::Draining));
        manager.hold(!matches!(self.state, State::Running | State::Draining | State::Waiting));
    }

    /// Does the work that is due. Returns the time until the next work. An error stops management of the class for a while.
    ///
    /// # Errors
    /// The tracker failed.
    pub fn turn(&mut self) -> Result<Option<Duration>, TrackError> {
        let files = self.look_at_files();
        let Some(manager) = &mut self.manager else { return Ok(None) };
        // When the target is exceeded, the engine promotes pages as in a drain. An order to drain, hold or pause takes precedence.
        let again = match (&mut self.tuner, &self.state) {
            (Some(tuner), State::Running) => tuner.bring_back(manager),
            _ => None,
        };
        match manager.turn(&mut self.observer) {
            Ok(at) => {
                let wait = again.map_or(at, |again| again.min(at)).since(manager.now());
                self.settle();
                Ok(Some(files.map_or(wait, |files| files.min(wait))))
            }
            Err(error) => {
                self.manager = None;
                self.told = None;
                self.tuner = None;
                self.retry_at = Some(Instant::now() + RETRY);
                self.state = State::Failed(error.to_string());
                Err(error)
            }
        }
    }

    /// Brings back at once what its processes used when they were awake last; with `only`, those of these pids. `None` if it has none of them.
    pub fn wake(&mut self, only: Option<&BTreeSet<u32>>) -> Option<view::Awake> {
        let manager = self.manager.as_mut()?;
        let pids: Vec<u32> = manager.processes().map(|(_, process, _)| process.pid()).collect();
        let meant: Vec<u32> = pids.into_iter().filter(|pid| only.is_none_or(|only| only.contains(pid))).collect();
        if meant.is_empty() {
            return None;
        }
        let began = Instant::now();
        let pages: u64 = match only {
            None => manager.wake(None).map_or(0, |fetched| fetched.pages),
            Some(_) => meant.iter().filter_map(|pid| manager.wake(Some(*pid))).map(|fetched| fetched.pages).sum(),
        };
        Some(view::Awake {
            processes: meant.len() as u64,
            bytes: Bytes::of_pages(pages).get(),
            seconds: began.elapsed().as_secs_f64(),
        })
    }

    /// Whether a failed class may be tried again now. The call itself counts as a try.
    pub fn retries(&mut self) -> bool {
        let due = matches!(self.state, State::Failed(_)) && self.retry_at.is_some_and(|at| Instant::now() >= at);
        if due {
            self.retry_at = None;
            self.state = State::Waiting;
        }
        due
    }

    /// Why it is not running.
    fn reason(&self) -> Option<String> {
        match &self.state {
            State::Failed(why) => Some(why.clone()),
            State::Stopped => Some(
                "proof mode showed that managing it costs more than max_slowdown allows; it is tried again later"
                    .to_owned(),
            ),
            State::Waiting => Some("no process matches".to_owned()),
            _ => None,
        }
    }

    /// Reads activity and rates of the last period. Returns lines for the history.
    pub fn observe(&mut self, tiers: &[String]) -> Vec<(&'static str, String)> {
        let mut lines = Vec::new();
        let Some(manager) = &self.manager else { return lines };
        let (now, stats, engine) = (manager.now(), manager.stats(), manager.engine());
        let footprint = engine.pages().footprint_of_all();
        let round = stats.last_round;
        let seen = match round.pages {
            0 => footprint,
            pages => (footprint as f64 * (round.accessed as f64 / pages as f64)).ceil() as u64,
        };
        self.active = self.activity.update(now, seen).min(footprint);
        let elapsed = self.last.at.map(|at| at.elapsed()).unwrap_or_default();
        self.last.at = Some(Instant::now());
        let ledger = engine.ledger();
        let moved = ledger.demoted() + ledger.promoted();
        if !elapsed.is_zero() {
            let seconds = elapsed.as_secs_f64();
            let keep = 0.5f64.powf(seconds / SMOOTHING.as_secs_f64());
            let rate = Bytes::of_pages(moved - self.last.moved_pages).get() as f64 / seconds;
            self.bandwidth_used = (self.bandwidth_used as f64 * keep + rate * (1.0 - keep)) as u64;
            let share = stats.cpu.saturating_sub(self.last.cpu).as_secs_f64() / seconds;
            self.cpu_used = self.cpu_used * keep + share * (1.0 - keep);
            // The next scan finds a page that came back from swap in fast memory; it was in slow memory before.
            let returned = ledger.refaults() - self.last.refaults;
            let (fast, slow) = self.observer.take_hits();
            let fast = fast.saturating_sub(returned);
            // Promoting pages touches each of them. Those accesses are not the program's.
            if self.state == State::Running && !self.tuner.as_ref().is_some_and(LiveTuner::brings_back) {
                self.hits = (self.hits.0 * keep + fast as f64, self.hits.1 * keep + (slow + returned) as f64);
            }
        }
        for (route, pages) in ledger.moved() {
            let new = pages - self.last.moved.get(route).copied().unwrap_or(0);
            if new > 0 {
                let name = |tier: TierId| tiers.get(tier.index()).map_or("?", String::as_str);
                let (from, to) = (name(route.from), name(route.to));
                lines.push(("move", format!("{} from {from} to {to}: {}", Bytes::of_pages(new), told(route.reason))));
            }
        }
        let throttle = engine.governor().throttle();
        if throttle.map(Throttle::state) != self.last.throttle.map(Throttle::state) {
            lines.push((
                "throttle",
                match throttle {
                    Some(Throttle::Refaults) => format!(
                        "page-outs are {}: that costs {:.1} % of the time, {:.1} % are allowed",
                        Throttle::Refaults.in_words(),
                        engine.governor().stall_share() * 100.0,
                        self.class.spec.max_slowdown * 100.0
                    ),
                    Some(throttle) => format!("page-outs are {}", throttle.in_words()),
                    None => "page-outs are not limited any more".to_owned(),
                },
            ));
        }
        self.last = Last {
            moved: ledger.moved().clone(),
            moved_pages: moved,
            cpu: stats.cpu,
            refaults: ledger.refaults(),
            throttle,
            at: self.last.at,
        };
        let misplaced = self.misplaced();
        self.contract_worst = self.contract_worst.max(misplaced);
        lines.extend(self.look_at_proof());
        lines.extend(self.tune().map(|line| ("budget", line)));
        if self.state == State::Draining
            && self.manager.as_ref().is_some_and(|manager| !manager.engine().has_pages_to_bring_back())
        {
            self.set_state(State::Drained);
            lines.push(("state", "drained: all moved pages are back in fast memory".to_owned()));
        } else if self.state == State::Draining
            && let Some(manager) = &mut self.manager
        {
            // Pages that were not promoted at the first try are tried again.
            manager.tell(Input::Drain(true));
        }
        lines
    }

    /// The cost of one refault: as measured, or else as the governor assumes it.
    fn refault_cost(&self) -> Duration {
        self.move_cost.refault.unwrap_or(GovernorConfig::default().refault_cost)
    }

    /// Looks at the class's metric, and switches windows.
    fn look_at_proof(&mut self) -> Vec<(&'static str, String)> {
        let mut lines = Vec::new();
        lines.extend(self.no_proof.take().map(|why| ("state", format!("proof: {why}; the class is managed without"))));
        let (Some(proof), Some(manager)) = (&mut self.proof, &self.manager) else { return lines };
        if !matches!(self.state, State::Running | State::Held | State::Stopped) {
            // A window that was interrupted says nothing.
            proof.interrupt();
            return lines;
        }
        if self.state == State::Running {
            // Management rests in another state: somebody resumed it.
            proof.resume();
        }
        let news = proof.look(manager);
        let (window, frozen) = (proof.length().as_secs(), proof.state().frozen);
        let next = match proof.manages() {
            true => State::Running,
            false if frozen => State::Stopped,
            false => State::Held,
        };
        let metric = self.class.spec.metric.as_ref().map_or("", |metric| metric.text.as_str());
        let allowed = self.class.spec.max_slowdown * 100.0;
        lines.extend(news.iter().map(|news| ("state", proof::told(news, metric, allowed))));
        if self.state != next {
            match next {
                State::Running => lines.push(("state", format!("proof: managed for {window} s"))),
                State::Held => lines.push(("state", format!("proof: unmanaged for {window} s"))),
                _ => {}
            }
            self.set_state(next);
        }
        lines
    }

    /// Bytes in a tier where the goal allows none.
    fn misplaced(&self) -> u64 {
        let Some(manager) = &self.manager else { return 0 };
        let pages = manager.engine().pages();
        let fast = pages.used_in_all(TierId::FAST);
        Bytes::of_pages(match self.class.spec.goal {
            Goal::NeverSlow => pages.footprint_of_all() - fast,
            Goal::NeverFast => fast,
            _ => 0,
        })
        .get()
    }

    /// The current use, for the arbiter.
    fn standing(&self) -> Standing {
        let (footprint, fast) = self.manager.as_ref().map_or((0, 0), |manager| {
            let pages = manager.engine().pages();
            (pages.footprint_of_all(), pages.used_in_all(TierId::FAST))
        });
        Standing {
            footprint,
            fast,
            active: self.active,
            // Until the tuner decides, the class has everything fast: that is its baseline.
            tuned: self.class.is_tuned().then(|| self.tuner.as_ref().map_or(1.0, |tuner| tuner.tuner().share())),
            works: matches!(self.state, State::Running | State::Draining),
            bandwidth_used: self.bandwidth_used,
            cpu_used: self.cpu_used,
        }
    }

    /// The claims of the class: at most `bandwidth` bytes per second and `cpu` millionths of a core.
    pub fn claims(&self, bandwidth: u64, cpu: u64) -> Claims {
        claims::of_class(&self.class, &self.standing(), bandwidth, cpu)
    }

    /// Takes a grant of the arbiter.
    pub fn take(&mut self, grant: Grant, burst: Duration) {
        self.grant = grant;
        if let Some(manager) = &mut self.manager {
            manager.bound_cpu(grant.cpu.max(1e-4), burst);
        }
        self.tell();
    }

    /// Passes new limits to the engine if they changed enough to matter.
    fn tell(&mut self) {
        let standing = self.standing();
        let Some(manager) = &mut self.manager else { return };
        let mut orders = claims::orders(&self.class, &standing, &self.grant);
        let before = self.told;
        let tuned = standing.tuned.is_some();
        if before.is_none_or(|old| differs(old.goal, orders.goal, tuned)) {
            manager.tell(Input::Goal(orders.goal));
        }
        if before.is_none_or(|old| old.limits != orders.limits) {
            manager.tell(Input::TotalLimits(orders.limits));
        }
        if before.is_none_or(|old| old.rate != orders.rate) {
            manager.tell(Input::Rate(orders.rate));
        }
        if let Some(old) = before.filter(|old| !differs(old.goal, orders.goal, tuned)) {
            orders.goal = old.goal;
        }
        self.told = Some(orders);
    }

    /// Sets the current capacity of a tier.
    pub fn resize(&mut self, tier: TierId, capacity: Bytes) {
        if let Some(manager) = &mut self.manager {
            manager.tell(Input::Capacity(tier, capacity.pages()));
        }
    }

    /// Whether it has a target, is running, and has no tuner yet.
    pub fn wants_tuner(&self) -> bool {
        self.class.is_tuned() && self.manager.is_some() && self.tuner.is_none()
    }

    /// Gives it a tuner, and the cost of a page-out to a thread on this machine, if it was measured. Where the cost of a size cannot be
    /// observed, the tuner stays idle and everything stays fast.
    pub fn begin_tuning(&mut self, loss_shows: bool, page_out: Option<Interval>) {
        if !self.class.is_tuned() {
            return;
        }
        let mut tuner = LiveTuner::new(TunerConfig::new(self.class.spec.max_slowdown, Mode::Measured));
        tuner.begin(MoveCost { refault: loss_shows.then(|| self.refault_cost()), page_out, ..MoveCost::default() });
        self.tuner = Some(tuner);
        // Show it at once.
        self.heat_at = None;
    }

    /// Runs the tuner. Returns a line if the target was exceeded.
    fn tune(&mut self) -> Option<String> {
        let (Some(tuner), Some(manager)) = (&mut self.tuner, &mut self.manager) else { return None };
        if self.state != State::Running {
            tuner.interrupt();
            return None;
        }
        let before = tuner.tuner().share();
        let share = tuner.look(manager)?;
        tuner.answer(manager.now());
        tuner.forget_all_but(WINDOWS);
        let last = tuner.tuner().intervals().last()?;
        (last.action == Action::BackedOff).then(|| {
            format!(
                "{:.1} % slower in the last {:.1} s, {:.1} % are allowed: its share of fast memory grows from {:.0} to {:.0} %",
                last.observed_loss.unwrap_or_default() * 100.0,
                last.window_seconds,
                self.class.spec.max_slowdown * 100.0,
                before * 100.0,
                share * 100.0
            )
        })
    }

    /// Its heat map and histogram, if new ones are due.
    pub fn pictures(&mut self) -> Option<Pictures> {
        let manager = self.manager.as_ref()?;
        if self.heat_at.is_some_and(|at| at.elapsed() < Duration::from_secs(5)) {
            return None;
        }
        self.heat_at = Some(Instant::now());
        let pids: BTreeMap<SpaceId, u32> =
            manager.processes().map(|(space, process, _)| (space, process.pid())).collect();
        let name = &self.class.name;
        Some(Pictures {
            heat: Some(Arc::new(heat(name, self.observer.map(&pids), wall_clock() - manager.now().as_secs_f64()))),
            bins: Some(Arc::new(bins::of(name, manager.engine()))),
            sizing: self.tuner.as_ref().map(|tuner| Arc::new(sizing(name, tuner))),
        })
    }

    /// Bytes of the class in each tier.
    pub fn tier_bytes(&self, tiers: usize) -> Vec<u64> {
        let pages = self.manager.as_ref().map(|manager| manager.engine().pages());
        (0..tiers)
            .map(|tier| pages.map_or(0, |pages| Bytes::of_pages(pages.used_in_all(TierId(tier as u8))).get()))
            .collect()
    }

    /// Memory for page state.
    pub fn state_bytes(&self) -> u64 {
        let engine = self.manager.as_ref().map(Manager::engine);
        engine.map_or(0, |engine| (engine.pages().memory_bytes() + engine.policy_memory_bytes()) as u64)
    }

    /// Processor time spent on it.
    pub fn cpu(&self) -> Duration {
        self.manager.as_ref().map_or(Duration::ZERO, |manager| manager.stats().cpu)
    }

    fn tuned(&self) -> view::Tuned {
        let summary = self.tuner.as_ref().map(|tuner| tuner.tuner().summary());
        view::Tuned {
            max_slowdown: self.class.spec.max_slowdown,
            fast_share: self.tuner.as_ref().map_or(1.0, |tuner| tuner.tuner().share()),
            loss: summary.as_ref().and_then(|summary| summary.loss),
            loss_p95: summary.as_ref().and_then(|summary| summary.loss_p95),
            waits: match &self.tuner {
                Some(tuner) if tuner.costs().refault.is_none() => Some(BLIND.to_owned()),
                Some(_) => None,
                None if self.manager.is_none() => Some("no process matches".to_owned()),
                None => Some("the tuner starts when the budgets are next divided".to_owned()),
            },
        }
    }

    /// The view of the class.
    pub fn view(&self, tiers: &[String]) -> view::Class {
        let bytes = |pages: u64| Bytes::of_pages(pages).get();
        let mut view = view::Class {
            name: self.class.name.clone(),
            state: self.state.name().to_owned(),
            reason: self.reason(),
            policy: self.class.spec.policy.clone(),
            goal: self.class.spec.goal.to_string(),
            tracker: self.tracker.clone(),
            weight: self.class.weight,
            ceiling_bytes: self.class.ceiling.map(Bytes::get),
            granted_bytes: bytes(self.grant.fast),
            bandwidth_bytes_per_second: self.grant.bandwidth.unwrap_or(0),
            cpu_granted_share: self.grant.cpu,
            backoff: 1.0,
            proof: self.proof.as_ref().map(proof::view),
            tuned: self.class.is_tuned().then(|| self.tuned()),
            file_cache: self.files.as_ref().map(file_cache),
            ..view::Class::default()
        };
        let Some(manager) = &self.manager else { return view };
        let (stats, engine) = (manager.stats(), manager.engine());
        let (pages, ledger, governor) = (engine.pages(), engine.ledger(), engine.governor());
        let name = |tier: TierId| tiers.get(tier.index()).cloned().unwrap_or_default();
        let footprint = pages.footprint_of_all();
        let fast = pages.used_in_all(TierId::FAST);
        view.processes = manager.processes().count() as u64;
        view.footprint_bytes = bytes(footprint);
        view.fast_bytes = bytes(fast);
        view.slow_bytes = bytes(footprint - fast);
        view.active_bytes = bytes(self.active.min(footprint));
        view.floor_bytes = bytes(claims::floor(&self.class, footprint));
        view.cpu_seconds = stats.cpu.as_secs_f64();
        view.short_of_cpu = stats.short_of_cpu;
        let returned = self.hits.1;
        let all = self.hits.0 + returned;
        view.hit_share = (all > 0.0).then(|| self.hits.0 / all);
        view.demoted_pages = ledger.demoted();
        view.promoted_pages = ledger.promoted();
        view.failed_pages = ledger.failed().iter().map(|(cause, pages)| (cause.name(), *pages)).collect();
        view.moves = ledger
            .moved()
            .iter()
            .map(|(route, pages)| view::Moves {
                from: name(route.from),
                to: name(route.to),
                reason: route.reason.name().to_owned(),
                pages: *pages,
            })
            .collect();
        view.rejected_pages =
            governor.rejections().iter().map(|(rejection, count)| (rejection.name().to_owned(), *count)).collect();
        view.refaults = ledger.refaults();
        view.ping_pong_pages = ledger.ping_pong_pages();
        view.promotions_p98 = governor.promotions();
        view.asleep = u64::from(stats.asleep);
        view.fetched_ahead_pages = stats.fetched_ahead;
        view.major_faults = stats.major_faults;
        view.stall_share = governor.stall_share();
        view.bound_share = Some(self.class.spec.max_slowdown);
        let watched = manager.watching().cost();
        view.watching_seconds = (watched.own + watched.program).as_secs_f64();
        view.moving_seconds = manager.moving_cost().as_secs_f64();
        view.watching_back_off = manager.watching().step();
        view.backoff = governor.backoff();
        view.page_outs = governor.throttle().map_or(FREE, Throttle::state).to_owned();
        view.page_outs_seconds =
            stats.page_outs().into_iter().map(|(state, time)| (state.to_owned(), time.as_secs_f64())).collect();
        view.throttle = governor.throttle().map(|throttle| throttle.name().to_owned());
        view.throttled_seconds =
            stats.throttled.iter().map(|(cause, time)| (cause.name().to_owned(), time.as_secs_f64())).collect();
        view.rounds = stats.rounds;
        view.round_seconds = stats.round_time.as_secs_f64();
        view.longest_move_call_seconds = stats.longest_move_call.as_secs_f64();
        view.lost_events = stats.lost_events;
        let promise = match self.class.spec.goal {
            Goal::NeverSlow => Some(("never-slow", view.demoted_pages)),
            Goal::NeverFast => Some(("never-fast", view.promoted_pages)),
            _ => None,
        };
        view.contract = promise.map(|(promise, own_moves_against_it)| view::Contract {
            promise: promise.to_owned(),
            violating_bytes: self.misplaced(),
            worst_bytes: self.contract_worst,
            own_moves_against_it,
        });
        view
    }
}

/// The trackers to try in order, `None` for the best available. Only some see a guest's accesses.
fn trackers_for(wanted: Option<&str>, kvm_guest: bool) -> Vec<Option<&str>> {
    match (wanted, kvm_guest) {
        (Some(name), _) => vec![Some(name)],
        (None, true) => ["walker", "damon", "idle-pages"].map(Some).to_vec(),
        (None, false) => vec![None],
    }
}

/// The first tracker that works, or why none does.
fn first_that_works<T, E: std::fmt::Display>(
    names: &[Option<&str>],
    mut open: impl FnMut(Option<&str>) -> Result<T, E>,
) -> Result<T, NotManaged> {
    let mut reasons = Vec::new();
    for name in names {
        match open(*name) {
            Ok(found) => return Ok(found),
            Err(error) => reasons.push(error.to_string()),
        }
    }
    if names.len() > 1 {
        reasons.insert(
            0,
            "its first process is a KVM guest, whose accesses only walker, damon and idle-pages see".to_owned(),
        );
    }
    Err(NotManaged::NoTracker(reasons))
}

/// A reason in words.
pub fn told(reason: Reason) -> &'static str {
    match reason {
        Reason::Cold => "used too rarely for the memory it occupies",
        Reason::Asleep => "of a program that sleeps",
        Reason::Hot => "used often enough to deserve faster memory",
        Reason::OverLimit => "the class is over its limit of fast memory",
        Reason::MakeRoom => "makes room for hotter pages",
        Reason::Prefetch => "its neighbours came back, so it is expected to be used next",
        Reason::Drain => "Terrace brings it back",
        Reason::PageSize => "hot and cold pieces lie in one huge page",
        Reason::Inside => "what is used inside of a huge page shows by the page",
    }
}

/// The view of a heat map. `epoch` is the beginning of its time, in seconds since 1970.
fn heat(class: &str, map: Map, epoch: f64) -> view::Heat {
    view::Heat {
        class: class.to_owned(),
        columns: map.columns.into_iter().map(|seconds| epoch + seconds).collect(),
        rows: map.rows,
        cells: map.cells,
        processes_left_out: map.left_out,
    }
}

/// The view of its file cache.
fn file_cache(files: &Files) -> view::FileCache {
    let totals = files.totals();
    view::FileCache {
        rule: files.rule().to_owned(),
        left_bytes: totals.left.get(),
        there_bytes: totals.there.get(),
        refaulted_pages: totals.refaults,
        stalled_seconds: totals.stalled.as_secs_f64(),
        not_possible: files.not_possible().map(str::to_owned),
    }
}

/// The view of a tuner.
fn sizing(class: &str, live: &LiveTuner) -> view::Sizing {
    let tuner = live.tuner();
    let intervals = tuner.intervals();
    view::Sizing {
        class: class.to_owned(),
        max_slowdown: tuner.config().max_slowdown,
        fast_share: tuner.share(),
        held_share: live.held_share(),
        inputs: format!("{INPUTS}{}", live.page_out_price().remark()),
        decisions: intervals[intervals.len().saturating_sub(DECISIONS)..].iter().map(decision).collect(),
    }
}

fn decision(interval: &Decision) -> view::Decision {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_is_seen_by_what_sees_guests_unless_the_operator_says_otherwise() {
        assert_eq!(trackers_for(None, false), [None]);
        assert_eq!(trackers_for(None, true), ["walker", "damon", "idle-pages"].map(Some));
        assert_eq!(trackers_for(Some("accessed-bits"), true), [Some("accessed-bits")]);
        let refuse = |name: Option<&str>| Err::<(), _>(format!("{} is not there", name.unwrap_or("any")));
        let why = first_that_works(&trackers_for(None, true), refuse).unwrap_err();
        assert_eq!(
            why.to_string(),
            "its first process is a KVM guest, whose accesses only walker, damon and idle-pages see; walker is not there; \
             damon is not there; idle-pages is not there"
        );
        let second = first_that_works(&trackers_for(None, true), |name| match name {
            Some("idle-pages") => Ok(2),
            _ => Err("no"),
        });
        assert_eq!(second.unwrap(), 2);
    }
}
