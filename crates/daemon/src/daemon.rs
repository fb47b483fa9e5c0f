//! The daemon's loop: processes join and leave, classes work, the arbiter divides the budgets, orders are carried out.
//!
//! In: a configuration, signals, orders. Out: managed classes, and their published state. Must not: wait for a client, or stop because one
//! class cannot be managed.
//!
//! One thread does all of this. Classes take turns. A turn ends after one scan, or one plan of moves of at most some tens of milliseconds,
//! so that no class delays the others. Other threads answer questions from the published state.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::TryRecvError;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use terrace_core::arbiter::share_out;
use terrace_core::units::Bytes;
use terrace_linux::doctor::rivals;
use terrace_linux::live_tuner::loss_shows;
use terrace_linux::machine::{Machine, Wanted};
use terrace_linux::pressure::available_memory;
use terrace_linux::process::children;
use terrace_linux::process_events::ProcessEvents;
use terrace_linux::processes::Facts;
use terrace_linux::swap_saving::SwapFigures;
use terrace_linux::topology::TierKind;
use terrace_linux::topology::presence::Presence;
use terrace_linux::trackers::accessed_bits;
use terrace_linux::usage::{Who, usage};

use crate::access::Keys;
use crate::claims::Grant;
use crate::class::{Running, State};
use crate::config::{self, Class, Config, ConfigErrors, FastBudget, Source};
use crate::explain::explain;
use crate::protocol::{Code, Response, Verb};
use crate::reload::{LIMIT, Reading, ReloadError, problem_of};
use crate::shared::{Order, Orders, Reply, Shared, wall_clock};
use crate::table::Change;
use crate::view::{self, SCHEMA_VERSION};
use crate::watcher::Watcher;

/// The request of a signal or of the service manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// Read the configuration again.
    Reload,
    /// Drain, undo all changes, end.
    Stop,
}

/// The host of the loop: signals in, messages to the service manager out.
pub trait HostEnv {
    /// The descriptor that becomes readable on a signal.
    fn fd(&self) -> std::os::fd::BorrowedFd<'_>;
    /// The requests since the last call.
    fn take(&mut self) -> Vec<Signal>;
    /// Reports that the loop is alive; `status` says in one line what it does.
    fn alive(&mut self, status: &str);
    /// Reports that a reload starts or has ended.
    fn reloading(&mut self, begins: bool);
}

/// Interval of the search for others who move pages.
const RIVALS_EVERY: Duration = Duration::from_secs(30);
/// Interval of the check that the tiers still exist.
const PRESENCE_EVERY: Duration = Duration::from_secs(5);
/// Time constant of the daemon's own use as shown.
const OWN_WINDOW: Duration = Duration::from_secs(60);
/// Time limit of the drain at the end. The rest comes back when the slow tier is removed, or stays valid where it is.
const LAST_DRAIN: Duration = Duration::from_secs(20);
/// Time limit of the whole end: below the package's TimeoutStopSec, so that the daemon ends by itself and says why.
pub const STOP_LIMIT: Duration = Duration::from_secs(540);
/// Number of refusals kept.
const REFUSALS: usize = 100;

/// See the module's header.
pub struct Daemon {
    path: PathBuf,
    sources: Vec<Source>,
    overrides: Vec<(String, String)>,
    config: Config,
    machine: Machine,
    tiers: Vec<String>,
    classes: Vec<Running>,
    watcher: Watcher,
    refused: BTreeMap<u32, view::Refused>,
    shared: Arc<Shared>,
    orders: Orders,
    waker: UnixStream,
    began: Instant,
    share_at: Instant,
    rivals: Vec<view::Rival>,
    rivals_at: Instant,
    presence: Presence,
    presence_at: Instant,
    /// Processor time and moment of the last division of the budgets, and the smoothed shares: in total, and outside all classes.
    own: Own,
    paused: bool,
    fast_budget: Bytes,
    /// Who has which right, and the secrets of the HTTP server.
    keys: Arc<Keys>,
    reading: Option<Reading>,
}

#[derive(Default)]
struct Own {
    at: Option<Instant>,
    cpu: f64,
    of_classes: f64,
    share: f64,
    overhead: f64,
}

impl Daemon {
    /// Sets up the machine and starts to watch processes; [`Daemon::run`] starts to manage. Without `moves` it sets up and moves nothing:
    /// each move counts as failed with the cause `dry_run`. `events` are process events that another process opened.
    ///
    /// # Errors
    /// The configuration, the tiers or the slow tier are not usable. Nothing is left behind then.
    pub fn new(
        path: PathBuf,
        moves: bool,
        shared: Arc<Shared>,
        orders: Orders,
        waker: UnixStream,
        keys: Arc<Keys>,
        events: Option<ProcessEvents>,
    ) -> anyhow::Result<Daemon> {
        let sources = config::read_files(&path, false)?;
        let config = Config::of(&sources)?;
        let wanted = match &config.tiers {
            Some(tiers) => Wanted::Tiers(tiers),
            None => Wanted::Slow(&config.slow),
        };
        let machine = Machine::prepare(&wanted, config.swap_in, moves, None)?;
        // Said once: it changes nothing for what follows.
        for line in machine.background.iter().cloned().chain(accessed_bits::other_clearer()) {
            tracing::info!("{line}");
        }
        let never = [Some(std::process::id()), machine.held.guard_pid()];
        let watcher = Watcher::new(&config, never.into_iter().flatten(), events)?;
        let now = Instant::now();
        let presence = Presence::of(Path::new("/"), &machine.tiers);
        let daemon = Daemon {
            tiers: machine.tiers.tiers().iter().map(|tier| tier.name.clone()).collect(),
            classes: config.classes.iter().cloned().map(Running::new).collect(),
            path,
            sources,
            overrides: Vec::new(),
            config,
            machine,
            watcher,
            refused: BTreeMap::new(),
            shared,
            orders,
            waker,
            began: now,
            share_at: now,
            rivals: Vec::new(),
            rivals_at: now,
            presence,
            presence_at: now + PRESENCE_EVERY,
            own: Own::default(),
            paused: false,
            fast_budget: Bytes::ZERO,
            keys,
            reading: None,
        };
        daemon.shared.happened("state", None, format!("started; {}", daemon.watcher.how));
        if let Some(why) = &daemon.machine.no_page_out {
            daemon.shared.happened(
                "fault",
                None,
                format!("a trial on pages of the daemon: {why}; those of a program in another cgroup may leave"),
            );
        }
        if daemon.tiers.len() == 1 {
            daemon.shared.happened("fault", None, "there is one tier only, so nothing can move: see memory.slow");
        }
        Ok(daemon)
    }

    /// Runs until a request to end, then drains and undoes all changes.
    ///
    /// # Errors
    /// The slow tier cannot be removed; its guard then keeps trying.
    pub fn run(mut self, host: &mut dyn HostEnv) -> anyhow::Result<()> {
        loop {
            self.shared.heartbeat.beat(self.config.watchdog);
            host.alive(&self.line());
            for signal in host.take() {
                match signal {
                    Signal::Stop => return self.end(host),
                    Signal::Reload => {
                        host.reloading(true);
                        if let Err(why) = self.begin_reload(None) {
                            self.shared.happened("config", None, format!("not reloaded, nothing changed: {why}"));
                            host.reloading(false);
                        }
                    }
                }
            }
            self.finish_reload(host);
            self.take_orders();
            for change in self.watcher.turn() {
                self.apply(change);
            }
            let wait = self.turns();
            if Instant::now() >= self.share_at {
                self.share_at = Instant::now() + self.config.period;
                self.period();
            }
            self.wait(wait, host);
        }
    }

    /// Gives every class a turn. Returns the time until the next one is due.
    fn turns(&mut self) -> Duration {
        let mut wait = Duration::from_secs(3600);
        for class in &mut self.classes {
            match class.turn() {
                Ok(due) => wait = wait.min(due.unwrap_or(wait)),
                Err(error) => {
                    let text = format!("management stopped; the next try is in a minute: {error}");
                    self.shared.happened("fault", Some(&class.class.name), text);
                }
            }
        }
        wait
    }

    fn wait(&mut self, longest: Duration, host: &dyn HostEnv) {
        let now = Instant::now();
        let due = self.share_at.min(self.watcher.due()).saturating_duration_since(now);
        let longest = longest.min(due);
        let managers = self.classes.iter().filter_map(Running::manager);
        let descriptors = managers.flat_map(|manager| manager.descriptors());
        let all = [self.waker.as_fd(), host.fd()].into_iter().chain(self.watcher.fds()).chain(descriptors);
        let mut fds: Vec<PollFd<'_>> = all.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let timeout = Timespec { tv_sec: longest.as_secs() as i64, tv_nsec: i64::from(longest.subsec_nanos()) };
        // Interrupted or not, the next turn checks everything.
        let _ = poll(&mut fds, Some(&timeout));
        drop(fds);
        let mut sink = [0; 64];
        while (&self.waker).read(&mut sink).is_ok_and(|count| count > 0) {}
    }

    fn apply(&mut self, change: Change) {
        match change {
            Change::Join { pid, start_time, class } => self.join(pid, start_time, &class),
            Change::Leave { pid, class } => {
                self.refused.remove(&pid);
                if let Some(running) = self.classes.iter_mut().find(|running| running.class.name == class) {
                    running.leave(pid);
                    self.shared.happened("process", Some(&class), format!("pid {pid} left"));
                }
            }
        }
    }

    fn join(&mut self, pid: u32, start_time: u64, class: &str) {
        let Some(running) = self.classes.iter_mut().find(|running| running.class.name == class) else { return };
        let name = self.watcher.table.get(pid).map_or_else(String::new, |known| known.name.clone());
        // Ask again whether it is a guest: a virtual machine opens KVM after its start.
        let kvm = Facts::read(pid).ok().flatten().and_then(|facts| facts.guest).is_some_and(|guest| guest.kvm);
        let wanted = self.config.tracker.as_deref();
        match running.join(pid, start_time, kvm, &self.machine, wanted) {
            Ok(()) => {
                // A class that starts while everything is paused is paused too.
                if self.paused && running.state == State::Running {
                    running.set_state(State::Paused);
                }
                self.refused.remove(&pid);
                self.shared.happened("process", Some(class), format!("pid {pid} ({name}) joined"));
            }
            Err(error) => {
                let reason = error.to_string();
                // A process that exited meanwhile is not worth a message.
                if Facts::read(pid).is_err() {
                    return;
                }
                // A class without a tracker may have hundreds of processes: report its reason once.
                let told =
                    self.refused.values().any(|one| one.class == class && one.reason == reason && one.pid != pid);
                let why = if told { "for the same reason as others of its class" } else { reason.as_str() };
                self.shared.happened("fault", Some(class), format!("pid {pid} ({name}) is not managed: {why}"));
                if self.refused.len() < REFUSALS {
                    let class = class.to_owned();
                    self.refused.insert(pid, view::Refused { pid, name, class, reason });
                }
            }
        }
    }

    /// Once per period: history, division of the budgets, published state.
    fn period(&mut self) {
        for index in 0..self.classes.len() {
            if self.classes[index].retries() {
                let class = self.classes[index].class.name.clone();
                let again: Vec<u32> =
                    self.refused.values().filter(|one| one.class == class).map(|one| one.pid).collect();
                for pid in again {
                    let known = self.watcher.table.get(pid).map(|known| known.start_time);
                    if let Some(start_time) = known {
                        self.join(pid, start_time, &class);
                    }
                }
            }
            let lines = self.classes[index].observe(&self.tiers);
            let class = &self.classes[index].class.name;
            for (kind, text) in lines {
                self.shared.happened(kind, Some(class), text);
            }
        }
        if Instant::now() >= self.rivals_at {
            self.rivals_at = Instant::now() + RIVALS_EVERY;
            self.look_for_rivals();
        }
        if Instant::now() >= self.presence_at {
            self.presence_at = Instant::now() + PRESENCE_EVERY;
            self.look_for_tiers();
        }
        self.begin_tuning();
        self.account();
        self.share();
        self.publish();
    }

    /// Classes with a target that have just started get a tuner.
    fn begin_tuning(&mut self) {
        if !self.classes.iter().any(Running::wants_tuner) {
            return;
        }
        let (shows, page_out) = (loss_shows(&self.machine.tiers), self.machine.page_out_cost());
        for class in self.classes.iter_mut().filter(|class| class.wants_tuner()) {
            class.begin_tuning(shows, page_out);
        }
    }

    /// Unplugged or offline memory takes no more pages; the engines learn of it before they plan again.
    fn look_for_tiers(&mut self) {
        for change in self.presence.look(Path::new("/"), &mut self.machine.tiers) {
            self.shared.happened("fault", None, change.text);
            for class in &mut self.classes {
                class.resize(change.tier, change.now);
            }
        }
    }

    fn look_for_rivals(&mut self) {
        let found: Vec<view::Rival> = rivals(Path::new("/"), std::process::id())
            .into_iter()
            .map(|rival| view::Rival { name: rival.name.to_owned(), state: rival.state, effect: rival.effect })
            .collect();
        for rival in found.iter().filter(|rival| !self.rivals.contains(rival)) {
            self.shared.happened("rival", None, format!("{} ({}): {}", rival.name, rival.state, rival.effect));
        }
        self.rivals = found;
    }

    /// The daemon's own use: in total, and outside its classes.
    fn account(&mut self) {
        let own = usage(Who::Myself);
        let cpu = own.user_seconds + own.system_seconds;
        let of_classes: f64 = self.classes.iter().map(|class| class.cpu().as_secs_f64()).sum();
        if let Some(at) = self.own.at {
            let seconds = at.elapsed().as_secs_f64().max(1e-3);
            let keep = 0.5f64.powf(seconds / (OWN_WINDOW / 2).as_secs_f64());
            let share = (cpu - self.own.cpu) / seconds;
            let of_classes = (of_classes - self.own.of_classes).max(0.0) / seconds;
            self.own.share = self.own.share * keep + share * (1.0 - keep);
            self.own.overhead = self.own.overhead * keep + (share - of_classes).max(0.0) * (1.0 - keep);
        }
        (self.own.at, self.own.cpu, self.own.of_classes) = (Some(Instant::now()), cpu, of_classes);
    }

    /// Divides each budget among the classes.
    fn share(&mut self) {
        let fast_tier = self.machine.tiers.tiers()[0].capacity_bytes;
        let used: u64 = self.classes.iter().map(|class| class.tier_bytes(1)[0]).sum();
        self.fast_budget = match self.config.fast {
            FastBudget::Quantity(amount) => amount.of(fast_tier),
            FastBudget::All => {
                // Where the kernel does not report it, the tier's size is the only limit known.
                let available = available_memory(Path::new("/")).unwrap_or(fast_tier);
                let spare = available.saturating_sub(self.config.reserve.of(fast_tier));
                Bytes::new(used.saturating_add(spare.get()).min(fast_tier.get()))
            }
        };
        let bandwidth = self.config.bandwidth.or(self.machine.default_rate).map(Bytes::get);
        // Use outside the classes is subtracted first, but never all of the budget.
        let cpu = (self.config.cpu - self.own.overhead).max(self.config.cpu / 4.0);
        let (rate, millionths) = (bandwidth.unwrap_or(0), (cpu * 1e6) as u64);
        let claims: Vec<_> = self.classes.iter().map(|class| class.claims(rate, millionths)).collect();
        let fast = share_out(self.fast_budget.pages(), &claims.iter().map(|claim| claim.fast).collect::<Vec<_>>());
        let rates = share_out(rate, &claims.iter().map(|claim| claim.bandwidth).collect::<Vec<_>>());
        let cpus = share_out(millionths, &claims.iter().map(|claim| claim.cpu).collect::<Vec<_>>());
        for (index, class) in self.classes.iter_mut().enumerate() {
            let grant =
                Grant { fast: fast[index], bandwidth: bandwidth.map(|_| rates[index]), cpu: cpus[index] as f64 / 1e6 };
            class.take(grant, self.config.cpu_burst);
        }
    }

    fn publish(&mut self) {
        let managers = self.classes.iter().filter_map(Running::manager);
        let managed = managers.flat_map(|manager| manager.processes().map(|(_, process, _)| process.pid())).collect();
        self.shared.publish_managed(managed);
        let status = self.status();
        let sum = |of: fn(&view::Class) -> u64| status.classes.iter().map(of).sum();
        let point = view::Point {
            time: wall_clock(),
            tier_bytes: status.tiers.iter().map(|tier| tier.used_bytes).collect(),
            occupied_bytes: status.tiers.iter().filter_map(|tier| tier.occupied_bytes).sum(),
            class_fast_bytes: status.classes.iter().map(|class| class.fast_bytes).collect(),
            demoted_pages: sum(|class| class.demoted_pages),
            promoted_pages: sum(|class| class.promoted_pages),
            refaults: sum(|class| class.refaults),
            cpu_share: self.own.share,
        };
        // Heat maps first: a reader who sees them in the status can then read them.
        for class in &mut self.classes {
            if let Some(pictures) = class.pictures() {
                self.shared.publish_pictures(&class.class.name, pictures);
            }
        }
        self.shared.publish(status, point);
    }

    fn status(&self) -> view::Status {
        let classes: Vec<view::Class> = self.classes.iter().map(|class| class.view(&self.tiers)).collect();
        let in_tiers: Vec<Vec<u64>> = self.classes.iter().map(|class| class.tier_bytes(self.tiers.len())).collect();
        let swap = SwapFigures::read(Path::new("/")).ok();
        let tiers = self.machine.tiers.tiers().iter().enumerate().map(|(index, tier)| {
            let compressed = match &tier.kind {
                TierKind::Swap { compressed: true, device } => Some(device),
                _ => None,
            };
            view::Tier {
                name: tier.name.clone(),
                kind: if matches!(tier.kind, TierKind::Nodes { .. }) { "nodes" } else { "swap" }.to_owned(),
                capacity_bytes: tier.capacity_bytes.get(),
                used_bytes: in_tiers.iter().map(|bytes| bytes[index]).sum(),
                occupied_bytes: swap.as_ref().zip(compressed).map(|(swap, device)| swap.occupied(device).get()),
            }
        });
        let resident = terrace_linux::process::Stat::read(std::process::id()).map_or(0, |stat| stat.resident.get());
        let mut notes = self.machine.notes.clone();
        if !self.machine.moves {
            notes.push("dry run: nothing moves; `terrace classes` shows how many pages would have moved".to_owned());
        }
        if self.watcher.lost() > 0 {
            notes.push(format!("process events were lost {} times; /proc was scanned instead", self.watcher.lost()));
        }
        view::Status {
            schema_version: SCHEMA_VERSION,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_seconds: self.began.elapsed().as_secs_f64(),
            state: self.state().to_owned(),
            loop_age_seconds: self.shared.heartbeat.age().as_secs_f64(),
            process_events: self.watcher.how.clone(),
            budget: view::Budget {
                fast_bytes: self.fast_budget.get(),
                fast_used_bytes: in_tiers.iter().map(|bytes| bytes[0]).sum(),
                bandwidth_bytes_per_second: self.config.bandwidth.or(self.machine.default_rate).map_or(0, Bytes::get),
                cpu_share: self.config.cpu,
                cpu_overhead_share: self.own.overhead,
            },
            own: view::Own {
                cpu_seconds: self.own.cpu,
                cpu_share: self.own.share,
                resident_bytes: resident,
                page_state_bytes: self.classes.iter().map(Running::state_bytes).sum(),
            },
            tiers: tiers.collect(),
            classes,
            refused: self.refused.values().cloned().collect(),
            rivals: self.rivals.clone(),
            notes,
            survey: self.shared.survey(),
        }
    }

    fn state(&self) -> &'static str {
        let any = |state: &State| self.classes.iter().any(|class| class.state == *state);
        let settled = |class: &Running| matches!(class.state, State::Drained | State::Waiting | State::Failed(_));
        if any(&State::Draining) {
            "draining"
        } else if any(&State::Drained) && self.classes.iter().all(settled) {
            "drained"
        } else if self.paused {
            "paused"
        } else {
            "running"
        }
    }

    /// One line for the service manager.
    fn line(&self) -> String {
        let managers = self.classes.iter().filter_map(Running::manager);
        let processes: usize = managers.map(|manager| manager.processes().count()).sum();
        format!(
            "{}: {processes} processes in {} classes, {:.1} % of a core",
            self.state(),
            self.classes.len(),
            self.own.share * 100.0
        )
    }

    fn take_orders(&mut self) {
        let due = self.orders.for_one_turn();
        // There may be more work than one turn takes; then do not wait.
        if !due.is_empty() {
            self.shared.wake();
        }
        for Order { verb, reply } in due {
            match verb {
                // The answer follows when the files are read.
                Verb::Reload {} => match self.reading {
                    Some(_) => reply.send(&Response::failed(Code::Busy, ReloadError::BeingRead.to_string())),
                    None => drop(self.begin_reload(Some(reply))),
                },
                verb => reply.send(&self.carry_out(verb)),
            }
        }
    }

    fn carry_out(&mut self, verb: Verb) -> Response {
        match verb {
            Verb::Explain { pid, address } => {
                explain(pid, address, &self.watcher.table, &self.classes, &self.tiers, &self.refused)
            }
            Verb::Pause { class } => self.put(class.as_deref(), State::Paused, "paused"),
            Verb::Resume { class } => self.put(class.as_deref(), State::Running, "resumed"),
            Verb::Drain { class } => {
                self.put(class.as_deref(), State::Draining, "drains: moved pages return to fast memory")
            }
            Verb::Wake { class, pid } => self.wake(class.as_deref(), pid),
            Verb::Set { key, value } => self.set(&key, &value),
            other => Response::failed(Code::Failed, format!("{other:?} is not an order")),
        }
    }

    fn put(&mut self, class: Option<&str>, state: State, what: &str) -> Response {
        if let Some(class) = class.filter(|class| !self.classes.iter().any(|running| running.class.name == *class)) {
            return self.no_class(class);
        }
        for running in self.classes.iter_mut().filter(|running| class.is_none_or(|class| running.class.name == class)) {
            // A class without processes cannot be paused; it keeps waiting.
            if running.manager().is_some() {
                running.set_state(state.clone());
            }
        }
        if class.is_none() {
            self.paused = matches!(state, State::Paused | State::Draining);
        }
        self.shared.happened("state", class, what);
        self.publish();
        Response::done(serde_json::json!({ "state": self.state() }))
    }

    /// Brings back what a class, or a process of one and its children, used when it was awake last.
    fn wake(&mut self, class: Option<&str>, pid: Option<u32>) -> Response {
        let (what, only) = match (class, pid) {
            (Some(class), None) => {
                if !self.classes.iter().any(|running| running.class.name == class) {
                    return self.no_class(class);
                }
                (format!("class {class}"), None)
            }
            (None, Some(pid)) => (format!("process {pid}"), Some(family(pid))),
            _ => return Response::failed(Code::Malformed, "wake needs a class or a pid, and not both"),
        };
        let meant = self.classes.iter_mut().filter(|running| class.is_none_or(|class| running.class.name == class));
        let found: Vec<(String, view::Awake)> =
            meant.filter_map(|running| Some((running.class.name.clone(), running.wake(only.as_ref())?))).collect();
        let mut sum = view::Awake::default();
        for (class, awake) in &found {
            sum.processes += awake.processes;
            sum.bytes += awake.bytes;
            sum.seconds += awake.seconds;
            let text =
                format!("{what} is woken: {} came back in {:.0} ms", Bytes::new(awake.bytes), awake.seconds * 1e3);
            self.shared.happened("state", Some(class), text);
        }
        match (found.is_empty(), pid) {
            (true, Some(pid)) => {
                Response::failed(Code::Unknown, format!("process {pid} is in no class: see `terrace explain {pid}`"))
            }
            // A class that waits for processes has nothing to bring back.
            _ => Response::done(sum),
        }
    }

    fn no_class(&self, class: &str) -> Response {
        let names: Vec<&str> = self.classes.iter().map(|running| running.class.name.as_str()).collect();
        Response::failed(Code::Unknown, format!("there is no class {class}; there are: {}", names.join(", ")))
    }

    fn set(&mut self, key: &str, value: &str) -> Response {
        let Some(info) = config::schema::find(key) else {
            return Response::failed(Code::Unknown, format!("there is no key {key}; {}", config::similar(key)));
        };
        if key.starts_with("access.") {
            let error = format!("{key} gives rights: change it in the configuration file, and reload");
            return Response::failed(Code::Failed, error);
        }
        if info.restart {
            let error =
                format!("{key} cannot be changed while the daemon runs: write it into the configuration and restart");
            return Response::failed(Code::Failed, error);
        }
        // For a class that does not exist, the key would create one.
        if let Some(name) = key.strip_prefix("class.").and_then(|rest| rest.split('.').next())
            && !self.classes.iter().any(|running| running.class.name == name)
        {
            return self.no_class(name);
        }
        let mut overrides = self.overrides.clone();
        overrides.retain(|(old, _)| old != key);
        overrides.push((key.to_owned(), value.to_owned()));
        match self.take_in(self.sources.clone(), overrides) {
            Ok(_) => {
                self.shared.happened("config", None, format!("{key} = {value}, until the next reload"));
                Response::done(serde_json::json!({ "set": key, "value": value }))
            }
            Err(errors) => Response::failed(Code::Failed, format!("nothing changed: {errors}")),
        }
    }

    /// Starts to read the configuration, on another thread.
    fn begin_reload(&mut self, reply: Option<Reply>) -> Result<(), ReloadError> {
        if self.reading.is_some() {
            return Err(ReloadError::BeingRead);
        }
        self.reading = Some(Reading::begin(&self.path, &self.sources, &self.keys, &self.shared, reply)?);
        Ok(())
    }

    /// Applies the configuration once it is read.
    fn finish_reload(&mut self, host: &mut dyn HostEnv) {
        let Some(reading) = &mut self.reading else { return };
        let fresh = match reading.fresh.try_recv() {
            Ok(fresh) => fresh,
            Err(TryRecvError::Empty) if reading.given_up || Instant::now() < reading.limit => return,
            Err(TryRecvError::Empty) => {
                // The thread cannot be ended; until it ends, no second one starts.
                reading.given_up = true;
                let limit = LIMIT.as_secs();
                let problem = format!("the files were not read within {limit} s: does their file system hang?");
                let reply = reading.reply.take();
                return self.reloaded(Err(problem_of(&self.path, problem)), reply, host);
            }
            Err(TryRecvError::Disconnected) => {
                Err(problem_of(&self.path, "the files could not be read: the reading thread ended".to_owned()))
            }
        };
        let Some(Reading { reply, given_up, .. }) = self.reading.take() else { return };
        if given_up {
            self.shared.happened("config", None, "the reload that took too long has ended; nothing of it was applied");
            return;
        }
        let result = fresh.and_then(|(sources, access)| {
            let restart = self.take_in(sources, Vec::new())?;
            let mut text = "reloaded".to_owned();
            if let Some(news) = self.keys.take(access) {
                text = format!("{text}; {news}");
            }
            if !restart.is_empty() {
                text = format!("{text}; a restart is needed for {}", restart.join(", "));
            }
            self.shared.happened("config", None, text);
            Ok(restart)
        });
        self.reloaded(result, reply, host);
    }

    /// Sends the result of a reload to the client that asked for it.
    fn reloaded(&self, result: Result<Vec<&'static str>, ConfigErrors>, reply: Option<Reply>, host: &mut dyn HostEnv) {
        let response = match result {
            Ok(restart) => Response::done(serde_json::json!({ "reloaded": true, "needs_restart": restart })),
            Err(errors) => {
                let text = format!("not reloaded, nothing changed:\n{errors}");
                if reply.is_none() {
                    self.shared.happened("config", None, text.as_str());
                }
                Response::failed(Code::Failed, text)
            }
        };
        match reply {
            Some(reply) => reply.send(&response),
            None => host.reloading(false),
        }
    }

    /// Applies a new configuration as a whole, or not at all.
    fn take_in(
        &mut self,
        sources: Vec<Source>,
        overrides: Vec<(String, String)>,
    ) -> Result<Vec<&'static str>, ConfigErrors> {
        let laid_over =
            overrides.iter().map(|(key, value)| Source { name: "<set>".to_owned(), text: written(key, value) });
        let wanted = Config::of(&sources.iter().cloned().chain(laid_over).collect::<Vec<_>>())?;
        let restart = self.config.needs_restart(&wanted);
        let new = wanted.until_restart(&self.config)?;
        let mut before: BTreeMap<String, Running> =
            self.classes.drain(..).map(|running| (running.class.name.clone(), running)).collect();
        let mut anew: Vec<String> = Vec::new();
        let classes: Vec<Class> = new.classes.clone();
        for class in classes {
            match before.remove(&class.name) {
                Some(mut running) if running.can_become(&class) => {
                    running.become_class(class);
                    self.classes.push(running);
                }
                // An engine with another policy starts empty; its first scan finds where pages are.
                other => {
                    anew.extend(other.map(|running| running.class.name.clone()));
                    self.classes.push(Running::new(class));
                }
            }
        }
        for gone in before.into_keys().chain(anew.iter().cloned()) {
            self.shared.forget_pictures(&gone);
        }
        (self.sources, self.overrides, self.config) = (sources, overrides, new);
        self.watcher.set_config(&self.config);
        // A restarted class has lost its processes: the table must not treat them as settled.
        let lost: Vec<u32> = self
            .watcher
            .table
            .pids()
            .into_iter()
            .filter(|pid| match self.watcher.table.get(*pid).map(|known| &known.place) {
                Some(crate::table::Place::Class { name, .. }) => anew.contains(name),
                _ => false,
            })
            .collect();
        for pid in lost {
            self.watcher.table.vanish(pid);
        }
        for change in self.watcher.turn() {
            self.apply(change);
        }
        self.share_at = Instant::now();
        Ok(restart)
    }

    /// Promotes what was moved and removes what was set up.
    fn end(mut self, host: &mut dyn HostEnv) -> anyhow::Result<()> {
        self.shared.heartbeat.beat(STOP_LIMIT);
        self.shared.happened("state", None, "stopping: moved pages return to fast memory");
        // Removing our own compressed swap empties it faster than page-by-page promotion.
        if self.machine.moves && !self.machine.held.has_zram() {
            let limit = Instant::now() + LAST_DRAIN;
            let generous = Grant { fast: u64::MAX >> 12, bandwidth: None, cpu: 1.0 };
            for class in self.classes.iter_mut().filter(|class| class.manager().is_some()) {
                class.take(generous, Duration::from_secs(60));
                class.set_state(State::Draining);
            }
            while Instant::now() < limit && self.classes.iter().any(|class| class.state == State::Draining) {
                host.alive("draining before the end");
                self.turns();
                for class in &mut self.classes {
                    class.observe(&self.tiers);
                }
            }
        }
        host.alive("removing what was set up");
        self.classes.clear();
        self.machine.held.release()?;
        Ok(())
    }
}

/// A process and all that it started, as far as they run.
fn family(pid: u32) -> BTreeSet<u32> {
    let (mut found, mut due) = (BTreeSet::new(), vec![pid]);
    while let Some(pid) = due.pop() {
        if found.insert(pid) {
            due.extend(children(pid));
        }
    }
    found
}

/// A key and its value as a configuration text. A value that is not valid TOML by itself is taken as a string.
fn written(key: &str, value: &str) -> String {
    let as_is = format!("{key} = {value}\n");
    match config::node::parse("<set>", &as_is) {
        Ok(_) => as_is,
        Err(_) => format!("{key} = {}\n", config::node::Value::Text(value.to_owned())),
    }
}
