//! The live loop: drives the engine with trackers and movers on real processes.
//!
//! In: processes to manage, a tracker, a mover, an engine. Out: moves, and the figures of the run. Must not: decide
//! what moves; it only carries observations in and plans out, keeps the processes' ranges current, and reads what the moves cost.
//!
//! Allocations and frees, if they are reported as they happen (`life_cycle.rs`), go the same way.
//!
//! One observation's way: tracker → `Intake` (address to page, `intake.rs`) → engine → plan → `Manager::carry_out` (page to address) →
//! mover → outcome → engine.
//!
//! It is long because one loop owns all of its state; what has a name of its own is in `manager/`.

mod activity;
mod children;
mod difference;
mod ends;
mod exits;
mod host;
mod moving;
mod ownership;
mod scarcity;
mod shared;
mod stats;
mod vetting;

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use terrace_core::arbiter::Allowance;
use terrace_core::engine::{Engine, Input, Output};
use terrace_core::plan::{Action, Failure, Move, Outcome, Plan};
use terrace_core::policy::{Cadence, FastGoal, ListMark, ScanReport};
use terrace_core::sleep::SOME_TENS;
use terrace_core::units::{Bytes, SpaceId, Time, Vpn};
use terrace_core::watching::{ScanBill, WatchBudget, WatchCost, WatchPrices};

use self::activity::Activity;
use self::children::Children;
pub use self::children::LeftAlone;
use self::difference::difference;
use self::exits::Exits;
use self::moving::MovingAccount;
use self::scarcity::Scarcity;
pub use self::stats::ManagerStats;
use crate::compressibility::{self, Compressibility};
use crate::fetch_ahead::Worth;
use crate::intake::Intake;
use crate::kernel_lists::KernelLists;
use crate::kernel_module::Slot;
use crate::life_cycle::LifeCycle;
use crate::move_cost::MoveCost;
use crate::movers::{self, MoveCounts, MoveResult, Mover, PageMove, Resize};
use crate::observer::{NoTap, Observer};
use crate::process::{MemoryRange, Process, ProcessError, RangeOptions, Refuses};
use crate::processors::ProcessorUse;
use crate::shared_memory::SharedMemory;
use crate::swap_slots::SwapSlots;
use crate::topology::{Tier, TierMap};
use crate::trackers::places::{Places, pause_after};
use crate::trackers::{Round, Target, TrackError, Tracker};
use crate::usage::thread_cpu;

/// What a manager is made of.
pub struct ManagerParts {
    /// The decisions.
    pub engine: Engine,
    /// The eyes.
    pub tracker: Box<dyn Tracker>,
    /// The hands.
    pub mover: Box<dyn Mover>,
    /// The tiers of this machine, as the engine knows them.
    pub tiers: TierMap,
    /// The zram device whose figures show what page-outs really save, if the slow tier is one.
    pub zram: Option<u32>,
    /// Whether that device is our own, so that we may have it compacted.
    pub zram_is_ours: bool,
    /// Which memory may be managed.
    pub ranges: RangeOptions,
    /// The kernel's own page lists, for a policy that orders those and leaves the moving to the kernel.
    pub kernel_lists: Option<KernelLists>,
    /// Allocations and frees as they happen, if the policy needs them and the kernel reports them.
    pub life_cycle: Option<LifeCycle>,
    /// Share of the programs' processor time that watching them may cost, above 0 and up to 1.
    pub max_overhead: f64,
    /// What moves cost, as far as that was measured.
    pub move_cost: MoveCost,
    /// Whether memory that the programs' cgroups protect may go to swap, too.
    pub ignores_protection: bool,
}

struct Space {
    process: Process,
    /// What the process has mapped of the kinds that may be managed, as last read.
    mapped: Vec<MemoryRange>,
    /// What of it is managed: all but what a NUMA memory policy placed.
    ranges: Vec<MemoryRange>,
    /// Whether the user was warned that some of it is not managed.
    told: bool,
    /// Its memory is gone and it is not: nothing is asked of it until it exits.
    without_memory: bool,
    major_faults: u64,
    cpu_ticks: u64,
    /// Its number with the kernel module, if the policy orders the kernel's lists.
    slot: Option<Slot>,
    activity: Activity,
    /// Areas of its map list, as last read.
    areas: usize,
}

impl Space {
    /// These ranges without those that a NUMA memory policy placed. Asked for only when the mappings changed: a policy that
    /// is set on a part of a range splits it, and one for a whole new range is there when the range is first seen.
    fn without_placed(&mut self, mapped: &[MemoryRange], nodes: &BTreeSet<u32>) -> Vec<MemoryRange> {
        if nodes.len() < 2 || mapped.is_empty() {
            return mapped.to_vec();
        }
        let placed = match self.process.placed_by_policy(nodes) {
            Ok(placed) => placed,
            Err(error) => {
                // Not knowing the policies must not mean breaking them.
                tracing::warn!(%error, "its NUMA memory policies cannot be read: its memory is left alone");
                return Vec::new();
            }
        };
        let (left, ranges): (Vec<MemoryRange>, _) = mapped.iter().partition(|range| placed.contains(&range.start));
        if !left.is_empty() && !self.told {
            self.told = true;
            let bytes = Bytes::of_pages(left.iter().map(|range| range.end.0 - range.start.0).sum());
            let pid = self.process.pid();
            tracing::warn!(pid, "{bytes} are bound to nodes or interleaved by a NUMA memory policy and left alone");
        }
        ranges
    }
}

/// The nodes between which pages could be moved: those of all tiers, if more than one tier consists of nodes.
fn movable_nodes(tiers: &TierMap) -> BTreeSet<u32> {
    if tiers.has_several_node_tiers() {
        tiers.tiers().iter().filter_map(Tier::nodes).flatten().copied().collect()
    } else {
        BTreeSet::new()
    }
}

/// Why the loop returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// One of the caller's descriptors is readable.
    ByCaller,
    /// The time the caller asked for has come.
    ByTime,
    /// No managed process is left.
    AllGone,
}

/// See the module's header.
pub struct Manager {
    parts: ManagerParts,
    origin: Instant,
    spaces: BTreeMap<SpaceId, Space>,
    next_space: u32,
    /// Who of them has exited; `None` until the first is there.
    exits: Option<Exits>,
    /// Between which pages are moved; empty where only swap is slower.
    nodes: BTreeSet<u32>,
    /// What the processes share, if that may be managed.
    shared: SharedMemory,
    /// Who put what into swap.
    slots: SwapSlots,
    /// Finds what does not compress, if the slow tier is compressed.
    compressibility: Option<Compressibility>,
    /// Processes that the managed ones started, and that are not managed.
    children: Children,
    /// How short memory is.
    scarcity: Scarcity,
    /// Whether fetching ahead pays here.
    fetch_worth: Worth,
    /// Pages moved of each process, and pages read in rounds, since the last reading.
    moved_of: BTreeMap<SpaceId, u64>,
    read_of: BTreeMap<SpaceId, u64>,
    /// When a flood of events was read last.
    flooded: Time,
    cadence: Cadence,
    /// How much of what the cadence asks for the programs can afford.
    watching: WatchBudget,
    watches_fully: bool,
    /// What moving costs them.
    moving: MovingAccount,
    /// What watching had cost at the last reading, and when the price of page-outs was measured.
    watched: WatchCost,
    /// How busy the processors were then.
    processors: Option<ProcessorUse>,
    priced_at: Time,
    /// What moves had cost then.
    priced_for: Duration,
    /// When the latest round began, and how soon after it the next may.
    round_began: Time,
    spacing: Duration,
    wake: Time,
    pressure_at: Time,
    pressure_read: Option<Time>,
    /// When it was last read what cgroups protect.
    protection_read: Time,
    protection_readings: u64,
    /// Until when no page goes to swap because writes failed, how long that is the next time, and how many had failed at the last look.
    swap_shut: Time,
    swap_pause: Duration,
    unwritten_before: u64,
    /// Swap entries of processes that are not managed, and when they were counted.
    others_in_swap: Option<(Time, Bytes)>,
    /// When to look next where pages are; `None` until the policy has said how it wants to look.
    places_at: Option<Time>,
    places: Places,
    /// When allocations wait for a new reading of their process's ranges, and when those were read last.
    births_at: Option<Time>,
    followed: Time,
    compacted: Time,
    stats: ManagerStats,
    results: Vec<MoveResult>,
    resized: Vec<MoveResult>,
    marks: Vec<ListMark>,
    held: bool,
    allowance: Option<Allowance>,
    /// Processor time of the current turn that was entered into the allowance already.
    spent_in_turn: Duration,
    /// Errors about processes that are there, since the last complete round.
    unexplained: u32,
}

/// How often children are looked for while no scan does it.
const HELD_FOLLOWS: Duration = Duration::from_secs(1);
/// How soon the ranges may be read again because of allocations outside of the known ones: a reading takes some 50 us.
const RANGES_INTERVAL: Duration = Duration::from_millis(10);
/// How soon events are read again after some were: faults of a program that wakes come in thousands.
const EVENTS_INTERVAL: Duration = Duration::from_millis(5);
/// Where a manager's clock starts: one hour, so that "a while ago" is never before it.
const ORIGIN: Time = Time::from_nanos(3600 * 1_000_000_000);

impl Manager {
    /// A manager without processes.
    pub fn new(parts: ManagerParts) -> Manager {
        let mut watching = WatchBudget::new(parts.max_overhead);
        if let Some(prices) = parts.tracker.prices() {
            watching.set_prices(prices);
        } else {
            watching.set_prices(WatchPrices { touch_ns: 0.0, touch_huge_ns: 0.0, ..WatchPrices::ASSUMED });
        }
        let mut manager = Manager {
            watching,
            watches_fully: false,
            moving: MovingAccount::new(&parts.move_cost),
            watched: WatchCost::default(),
            processors: None,
            priced_at: Time::ZERO,
            priced_for: Duration::ZERO,
            nodes: movable_nodes(&parts.tiers),
            shared: SharedMemory::default(),
            slots: SwapSlots::default(),
            compressibility: compressibility(&parts),
            parts,
            origin: Instant::now(),
            spaces: BTreeMap::new(),
            next_space: 0,
            exits: None,
            children: Children::default(),
            scarcity: Scarcity::default(),
            fetch_worth: Worth::default(),
            moved_of: BTreeMap::new(),
            read_of: BTreeMap::new(),
            flooded: Time::ZERO,
            cadence: Cadence::default(),
            wake: Time::ZERO,
            pressure_at: Time::ZERO,
            pressure_read: None,
            protection_read: Time::ZERO,
            protection_readings: 0,
            swap_shut: Time::ZERO,
            swap_pause: host::SWAP_PAUSE,
            unwritten_before: 0,
            others_in_swap: None,
            round_began: Time::ZERO,
            spacing: Duration::ZERO,
            places_at: None,
            places: Places::default(),
            births_at: None,
            followed: Time::ZERO,
            compacted: Time::ZERO,
            stats: ManagerStats::default(),
            results: Vec::new(),
            resized: Vec::new(),
            marks: Vec::new(),
            held: false,
            allowance: None,
            spent_in_turn: Duration::ZERO,
            unexplained: 0,
        };
        manager.tell_prices();
        manager.try_shared_memory();
        manager
    }

    /// The time of this manager's clock, which starts at `ORIGIN`.
    pub fn now(&self) -> Time {
        ORIGIN + self.origin.elapsed()
    }

    /// Takes up a process.
    ///
    /// # Errors
    /// When it is gone or not ours, or its exit cannot be waited for.
    pub fn add_process(&mut self, pid: u32) -> Result<SpaceId, ProcessError> {
        let process = Process::open(pid)?;
        let stat = process.stat()?;
        let no_watch = |source| ProcessError::Read { path: format!("epoll on the pidfd of {pid}"), source };
        if self.exits.is_none() {
            self.exits = Some(Exits::new().map_err(no_watch)?);
        }
        if let Some(exits) = &self.exits {
            exits.add(SpaceId(self.next_space), &process).map_err(no_watch)?;
        }
        let slot = self.parts.kernel_lists.as_ref().and_then(|lists| {
            lists.add(&process).map_err(|error| tracing::warn!(pid, %error, "its pages cannot be ordered")).ok()
        });
        let space = SpaceId(self.next_space);
        self.next_space += 1;
        let activity = Activity::new(self.now());
        self.spaces.insert(
            space,
            Space {
                process,
                mapped: Vec::new(),
                ranges: Vec::new(),
                told: false,
                without_memory: false,
                major_faults: stat.major_faults,
                cpu_ticks: stat.user_ticks + stat.system_ticks,
                slot,
                activity,
                areas: 0,
            },
        );
        if let Some(life) = &self.parts.life_cycle
            && let Err(error) = life.watch(pid)
        {
            tracing::warn!(pid, %error, "births and deaths of its pages are found late");
        }
        self.stats.processes += 1;
        Ok(space)
    }

    /// The engine, to be read.
    pub fn engine(&self) -> &Engine {
        &self.parts.engine
    }

    /// Changes how much fast memory is kept.
    pub fn set_goal(&mut self, goal: FastGoal) {
        self.watching.restore();
        self.drain_engine(Input::Goal(goal));
    }

    /// The tiers.
    pub fn tiers(&self) -> &TierMap {
        &self.parts.tiers
    }

    /// The tracker, to be read.
    pub fn tracker(&self) -> &dyn Tracker {
        &*self.parts.tracker
    }

    /// Figures so far.
    pub fn stats(&self) -> &ManagerStats {
        &self.stats
    }

    /// What watching costs, and how much of it is allowed.
    pub fn watching(&self) -> &WatchBudget {
        &self.watching
    }

    /// From now on watching does not back off where nothing comes of it: for who goes by how many pages are in use, and not by moves.
    pub fn watch_fully(&mut self) {
        self.watches_fully = true;
        self.watching.restore();
    }

    /// How much later than the policy wanted it a round came, or will come, because watching may cost no more.
    pub fn rounds_come_late(&self) -> Duration {
        self.stats.latest_round.max(self.late())
    }

    fn late(&self) -> Duration {
        match (self.watching.grant(&self.cadence).scan_at, self.cadence.scan_at) {
            (Some(granted), Some(wanted)) => granted.since(wanted),
            _ => Duration::ZERO,
        }
    }

    /// Changes the share of the programs' processor time that watching them may cost.
    pub fn set_max_overhead(&mut self, max_overhead: f64) {
        self.watching.set_max_overhead(max_overhead);
    }

    /// The pid of a space under management.
    pub fn pid(&self, space: SpaceId) -> Option<u32> {
        self.spaces.get(&space).map(|space| space.process.pid())
    }

    /// Works until one of `wake_on` is readable, `until` has come, or no process is left.
    ///
    /// # Errors
    /// When the tracker breaks in a way that has nothing to do with a process exiting.
    pub fn run(
        &mut self,
        wake_on: &[BorrowedFd<'_>],
        until: Time,
        observer: &mut dyn Observer,
    ) -> Result<Woken, TrackError> {
        loop {
            let deadline = self.turn(observer)?;
            if self.spaces.is_empty() {
                return Ok(Woken::AllGone);
            }
            let now = self.now();
            if now >= until {
                return Ok(Woken::ByTime);
            }
            if self.wait(wake_on, deadline.min(until).since(now)) {
                return Ok(Woken::ByCaller);
            }
        }
    }

    /// Does what is due and says when more will be, at the latest; news on one of [`Manager::descriptors`] may come before.
    /// For a driver with several managers and a wait of its own.
    ///
    /// # Errors
    /// When the tracker breaks in a way that has nothing to do with a process exiting.
    pub fn turn(&mut self, observer: &mut dyn Observer) -> Result<Time, TrackError> {
        let began = thread_cpu();
        let result = self.work(observer);
        let spent = thread_cpu().saturating_sub(began);
        self.stats.cpu += spent;
        let now = self.now();
        if let Some(allowance) = &mut self.allowance {
            allowance.spend(now, spent.saturating_sub(std::mem::take(&mut self.spent_in_turn)));
        }
        result
    }

    fn work(&mut self, observer: &mut dyn Observer) -> Result<Time, TrackError> {
        self.drop_exited();
        if self.spaces.is_empty() {
            return Ok(Time::FAR_FUTURE);
        }
        let now = self.now();
        if now >= self.pressure_at {
            self.read_pressure(now);
        }
        // Also while held: a death that nobody heard of would leave a count to the page's next life.
        self.take_births()?;
        if self.held {
            // Children of a process that ends meanwhile would be lost.
            if now >= self.followed + HELD_FOLLOWS {
                self.follow();
            }
            return Ok(self.pressure_at);
        }
        self.take_events()?;
        self.fetch_ahead();
        let allowed_at = self.allowance.as_mut().map_or(now, |allowance| allowance.ready(now));
        if allowed_at > now {
            self.stats.short_of_cpu = true;
            return Ok(allowed_at.min(self.pressure_at));
        }
        self.stats.short_of_cpu = false;
        match self.scan_at() {
            _ if self.is_at_rest() => {}
            Some(at) if at <= now => self.round(observer)?,
            None if self.places_at.is_some_and(|at| at <= now) => self.look_at_places(observer)?,
            _ => {}
        }
        let backlog = self.drain_engine(Input::Tick);
        self.fetch_ahead();
        self.order_lists();
        let look_at = self.scan_at().or(self.places_at).filter(|_| !self.is_at_rest());
        let events_at = Some(self.flooded + EVENTS_INTERVAL).filter(|at| *at > self.now());
        let due = [Some(self.wake), look_at, Some(self.pressure_at), self.births_at, events_at];
        Ok(if backlog { self.now() } else { due.into_iter().flatten().min().unwrap_or(self.pressure_at) })
    }

    /// What becomes readable when there is news: a process that exits, an event of the tracker.
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let exits = self.exits.as_ref().map(AsFd::as_fd).into_iter();
        // Events that are not read while held, or without a process, would wake the caller forever.
        let takes_events = !self.held && !self.spaces.is_empty() && !self.is_flooded();
        let births = self.parts.life_cycle.as_ref().map(LifeCycle::event_fd).filter(|_| !self.spaces.is_empty());
        exits.chain(self.parts.tracker.event_fd().filter(|_| takes_events)).chain(births).collect()
    }

    /// Bounds the processor time this manager uses: `share` of a core as a mean, of which `depth`'s worth may be saved up.
    pub fn bound_cpu(&mut self, share: f64, depth: Duration) {
        let now = self.now();
        match &mut self.allowance {
            Some(allowance) => allowance.set_share(now, share),
            None => self.allowance = Some(Allowance::new(share, depth)),
        }
    }

    /// Rounds of marks begin no sooner after each other than this, whatever the policy wants: for who has found out that they cost too much.
    pub fn space_rounds(&mut self, spacing: Duration) {
        self.spacing = spacing;
    }

    /// While held, no page is scanned and nothing moves. Exits and children are still handled, and faults counted: pages moved before go on
    /// costing, and proof mode compares by it.
    pub fn hold(&mut self, hold: bool) {
        self.held = hold;
    }

    /// Leaves time out of this manager's clock in which it and all that it manages were stopped: no page was idle then.
    pub fn leave_out(&mut self, stopped: Duration) {
        self.origin += stopped;
    }

    /// Passes an input to the engine that does not come from the kernel: a goal, limits, a rate. It takes effect at the next turn.
    pub fn tell(&mut self, input: Input<'_>) {
        let now = self.now();
        if matches!(input, Input::Goal(_)) {
            self.watching.restore();
        }
        self.parts.engine.handle(now, input);
    }

    /// The processes under management.
    pub fn processes(&self) -> impl Iterator<Item = (SpaceId, &Process, usize)> {
        self.spaces.iter().map(|(space, held)| (*space, &held.process, held.ranges.len()))
    }

    /// Releases a process; its pages stay where they are.
    pub fn remove_process(&mut self, pid: u32) {
        let space = self.spaces.iter().find(|(_, space)| space.process.pid() == pid).map(|(id, _)| *id);
        if let Some(space) = space {
            self.let_go(space);
        }
    }

    /// Waits for a descriptor of the caller, of a process or of the tracker. Returns whether it was one of the caller's.
    fn wait(&self, wake_on: &[BorrowedFd<'_>], longest: Duration) -> bool {
        let mut fds: Vec<PollFd<'_>> = Vec::with_capacity(wake_on.len() + 3);
        fds.extend(wake_on.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)));
        fds.extend(self.exits.iter().map(|exits| PollFd::new(exits, PollFlags::IN)));
        let births = self.parts.life_cycle.as_ref().map(LifeCycle::event_fd);
        let told = self.parts.tracker.event_fd().filter(|_| !self.is_flooded()).into_iter().chain(births);
        fds.extend(told.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        let timeout =
            Timespec { tv_sec: longest.as_secs().min(3600) as i64, tv_nsec: i64::from(longest.subsec_nanos()) };
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) => fds[..wake_on.len()].iter().any(|fd| !fd.revents().is_empty()),
            // Interrupted by a signal: the caller's handler has written to its descriptor, or the signal meant nothing.
            Err(_) => false,
        }
    }

    /// Whether events come so fast that they are read now and then, and not as they come.
    fn is_flooded(&self) -> bool {
        self.now() < self.flooded + EVENTS_INTERVAL
    }

    /// Takes up new children, and follows what the processes mapped and unmapped.
    fn follow(&mut self) {
        self.followed = self.now();
        self.take_up_children();
        let began = thread_cpu();
        let mut areas = 0;
        let refuses = if self.nodes.is_empty() { Refuses::Kernel } else { Refuses::Nobody };
        let spaces: Vec<SpaceId> = self.spaces.keys().copied().collect();
        for id in spaces {
            let Some(space) = self.spaces.get_mut(&id) else { continue };
            if space.activity.asleep {
                areas += space.areas;
                continue;
            }
            let mut mapped = match space.process.ranges_where(self.parts.ranges, refuses) {
                Ok(mapped) => mapped,
                Err(ProcessError::Gone { .. }) => {
                    space.without_memory = true;
                    Vec::new()
                }
                Err(error) => {
                    let pid = space.process.pid();
                    self.leave_alone(pid, LeftAlone::Refused, &error);
                    continue;
                }
            };
            areas += mapped.len();
            space.areas = mapped.len();
            if space.process.seen_by() != space.process.pid() {
                let pid = space.process.pid();
                self.leave_alone(pid, LeftAlone::FirstThreadEnded, &"no call reaches its memory");
                mapped.clear();
                if self.spaces.get(&id).is_some_and(|space| !space.without_memory) {
                    self.lose_memory(id);
                }
            }
            if self.parts.ranges.shared {
                self.follow_shared(id, &mut mapped);
            }
            let Some(space) = self.spaces.get_mut(&id) else { continue };
            // Where another thread than the first, which has ended, executes a program, there is memory again.
            space.without_memory &= mapped.is_empty();
            if mapped == space.mapped {
                continue;
            }
            let ranges = space.without_placed(&mapped, &self.nodes);
            let vanished = difference(&space.ranges, &ranges);
            space.mapped = mapped;
            space.ranges = ranges;
            for range in vanished {
                self.unmapped(id, range);
            }
        }
        self.stats.areas = areas;
        self.stats.areas_time = thread_cpu().saturating_sub(began);
    }

    /// When the next round is due: as the policy wants it, and no sooner than its cost allows and rounds may follow each other.
    fn scan_at(&self) -> Option<Time> {
        self.watching.grant(&self.cadence).scan_at.map(|at| at.max(self.round_began + self.spacing))
    }

    /// One round of accessed bits over all processes, as far as the budget for watching goes.
    fn round(&mut self, observer: &mut dyn Observer) -> Result<(), TrackError> {
        let cpu = thread_cpu();
        self.look_at_clocks(self.now());
        if self.is_at_rest() {
            return Ok(());
        }
        self.stats.latest_round = self.stats.latest_round.max(self.late());
        self.follow();
        let now = self.now();
        self.round_began = now;
        let began = Instant::now();
        let grant = self.watching.grant(&self.cadence);
        self.parts.tracker.watch_within(grant.within);
        let targets = awake(&self.spaces);
        let swap = self.parts.tiers.swap_tier();
        let mut intake = Intake::new(&mut self.parts.engine, observer, now).with_swap(&mut self.slots, swap);
        let mut sink = self.shared.over(swap, true, &mut intake);
        let woke = |target: &Target<'_>| self.spaces.get(&target.space).is_some_and(|held| held.activity.woke);
        let (woken, targets): (Vec<_>, Vec<_>) = targets.into_iter().partition(woke);
        let due = Round { now, targets: &targets, tiers: &self.parts.tiers, share: grant.share };
        let mut scanned = self.parts.tracker.scan(&due, &mut sink);
        if scanned.is_ok() && !woken.is_empty() {
            self.parts.tracker.watch_within(1.0);
            scanned = self.parts.tracker.scan(&Round { targets: &woken, share: 1.0, ..due }, &mut sink);
        }
        sink.sweep();
        let mut round = ScanReport { share: grant.share, ..intake.round };
        let mut bill = ScanBill { share: grant.share, ..intake.bill };
        for (space, pages) in std::mem::take(&mut intake.read_of) {
            *self.read_of.entry(space).or_default() += pages;
        }
        self.tell_owners(scanned.is_ok());
        if scanned.is_ok() {
            self.note_round();
        }
        // Those after a target that ended have their turn in the next round.
        self.outlive_round(scanned)?;
        round.walk = began.elapsed();
        bill.own = thread_cpu().saturating_sub(cpu);
        self.watching.on_scan(self.now(), &bill);
        tracing::debug!(?bill, next = ?self.watching.grant(&self.cadence), "a round");
        self.stats.rounds += 1;
        self.stats.round_time += round.walk;
        // A round so small that no block had its turn says nothing of the program.
        if round.pages > 0 {
            self.stats.last_round = round;
        }
        self.drain_engine(Input::ScanDone(round));
        Ok(())
    }

    /// Where pages are, for a policy that asks for no rounds: events come by address, and nobody else says it.
    fn look_at_places(&mut self, observer: &mut dyn Observer) -> Result<(), TrackError> {
        self.follow();
        let now = self.now();
        // Its own time, not that of the clock: waiting for a processor costs nobody anything, and on a busy machine it is most of it.
        let began = thread_cpu();
        let targets = awake(&self.spaces);
        let swap = self.parts.tiers.swap_tier();
        let mut intake = Intake::new(&mut self.parts.engine, observer, now).with_swap(&mut self.slots, swap);
        // The tracker has a turn as well, at no share of the blocks: it takes up threads that began unseen.
        let mut sink = self.shared.over(swap, false, &mut intake);
        let threads_alone = Round { now, targets: &targets, tiers: &self.parts.tiers, share: 0.0 };
        let scanned = self.parts.tracker.scan(&threads_alone, &mut sink);
        let walked = scanned.and_then(|()| {
            let walked = self.places.walk(&targets, &self.parts.tiers, &mut sink);
            walked.map(drop).map_err(|source| TrackError::Call {
                tracker: self.parts.tracker.name(),
                call: "reading /proc/PID/pagemap".to_owned(),
                source,
            })
        });
        self.stats.hint_faults += intake.hint_faults;
        self.tell_owners(walked.is_ok());
        self.outlive_round(walked)?;
        self.places_at = Some(now + pause_after(thread_cpu().saturating_sub(began)));
        Ok(())
    }

    /// Handles reported allocations and frees. Before other events: a sample of an unknown page is lost.
    fn take_births(&mut self) -> Result<(), TrackError> {
        let Some(life) = &mut self.parts.life_cycle else { return Ok(()) };
        life.read()
            .map_err(|error| TrackError::Unavailable { tracker: "births and deaths", reason: error.to_string() })?;
        self.births_at = None;
        let mut fresh = false;
        loop {
            let now = self.now();
            let targets = targets(&self.spaces);
            let Some(life) = &mut self.parts.life_cycle else { return Ok(()) };
            let mut observer = NoTap;
            let swap = self.parts.tiers.swap_tier();
            let mut intake = Intake::new(&mut self.parts.engine, &mut observer, now).with_swap(&mut self.slots, swap);
            let all = life.deliver(&targets, &self.parts.tiers, &mut self.places, fresh, &mut intake);
            self.stats.births += intake.births;
            self.stats.deaths += intake.deaths;
            let lost = life.lost();
            if lost > self.stats.lost_births_and_deaths {
                self.stats.lost_births_and_deaths = lost;
                // The scan of tiers shows what was not reported.
                self.places_at = self.places_at.map(|_| now);
            }
            if all {
                return Ok(());
            }
            let readable = self.followed + RANGES_INTERVAL;
            if now < readable {
                self.births_at = Some(readable);
                return Ok(());
            }
            self.follow();
            fresh = true;
        }
    }

    fn take_events(&mut self) -> Result<(), TrackError> {
        let now = self.now();
        let targets = targets(&self.spaces);
        let mut observer = NoTap;
        let swap = self.parts.tiers.swap_tier();
        let mut intake = Intake::new(&mut self.parts.engine, &mut observer, now).with_swap(&mut self.slots, swap);
        let taken = self.parts.tracker.events(now, &targets, &mut intake);
        self.stats.hint_faults += intake.hint_faults;
        self.stats.lost_events = self.parts.tracker.lost();
        // Samples come all the time, and may wait until there are enough of them.
        if intake.events >= u64::from(SOME_TENS) && self.parts.tracker.reads_page_tables() {
            self.flooded = now;
        }
        self.outlive(taken)
    }

    /// Passes on what the policy says of the kernel's own lists, and notes what the module has done by it.
    fn order_lists(&mut self) {
        let Some(lists) = &mut self.parts.kernel_lists else { return };
        self.marks.clear();
        self.parts.engine.list_marks(&mut self.marks);
        let pages = self.parts.engine.pages();
        lists.pass_on(&mut self.marks, |page| {
            // What was unmapped since has no place any more.
            let space = self.spaces.get(&pages.block(page.block())?.space)?;
            Some((space.slot?, pages.locate(page).1))
        });
        self.stats.dropped_marks = lists.dropped();
        let counts = lists.counts().inspect_err(|error| tracing::warn!(%error, "the module does not tell what it did"));
        self.stats.kernel_lists = counts.ok();
    }

    /// Gives the engine one input and does what it answers. Returns whether work is left that waited only because a
    /// round or a reading is due first.
    fn drain_engine(&mut self, input: Input<'_>) -> bool {
        let now = self.now();
        self.parts.engine.handle(now, input);
        if self.held {
            return false;
        }
        self.believe_what_is_found(now);
        loop {
            let now = self.now();
            match self.parts.engine.poll(now) {
                Output::Track(cadence) => {
                    if let Some(periods) = cadence.sampling {
                        self.parts.tracker.set_sample_periods(periods);
                    }
                    if let Some(scan) = cadence.hint_scan {
                        self.parts.tracker.set_hint_scan(scan);
                    }
                    self.cadence = cadence;
                    self.places_at.get_or_insert(now);
                }
                Output::Wake(at) => {
                    self.wake = at;
                    return false;
                }
                Output::Move(plan) => {
                    self.price_splits(&plan);
                    let began = thread_cpu();
                    let (outcomes, counts) = self.carry_out(&plan);
                    self.account_for(thread_cpu().saturating_sub(began), &counts, &outcomes);
                    let now = self.now();
                    self.parts.engine.handle(now, Input::Moved(&outcomes));
                    self.shut_swap(now);
                    if let Some(allowance) = &mut self.allowance {
                        let spent = thread_cpu().saturating_sub(began);
                        allowance.spend(now, spent);
                        self.spent_in_turn += spent;
                        let ready = allowance.ready(now);
                        if ready > now {
                            self.stats.short_of_cpu = true;
                            self.wake = ready;
                            return false;
                        }
                    }
                    let round = self.scan_at().is_some_and(|at| at <= now) && !self.is_at_rest();
                    if round || self.pressure_at <= now {
                        self.wake = now;
                        return true;
                    }
                }
            }
        }
    }

    /// Page ids to addresses, addresses to the mover, results to outcomes: one for each move, in order.
    fn carry_out(&mut self, plan: &Plan) -> (Vec<Outcome>, MoveCounts) {
        let mut outcomes = Vec::with_capacity(plan.moves.len());
        let mut counts = MoveCounts::default();
        let mut at = 0;
        while at < plan.moves.len() {
            let run = self.same_space(&plan.moves[at..]);
            let moves = &plan.moves[at..at + run];
            counts.add(&self.carry_out_in_one_space(moves, &mut outcomes));
            at += run;
        }
        (outcomes, counts)
    }

    /// How many moves from the front belong to one space.
    fn same_space(&self, moves: &[Move]) -> usize {
        let space_of = |item: &Move| self.parts.engine.pages().block(item.page.block()).map(|block| block.space);
        let first = space_of(&moves[0]);
        moves.iter().take_while(|item| space_of(item) == first).count()
    }

    fn carry_out_in_one_space(&mut self, moves: &[Move], outcomes: &mut Vec<Outcome>) -> MoveCounts {
        let id = self.parts.engine.pages().block(moves[0].page.block()).map(|block| block.space);
        let vetoes = id.map_or_else(Vec::new, |id| self.vet(id, moves));
        let vetoed = |at: usize| vetoes.get(at).copied().flatten();
        let pages = self.parts.engine.pages();
        let Some(space) = id.and_then(|id| self.spaces.get(&id)) else {
            // The process went while its plan was made.
            outcomes.extend(moves.iter().map(|&item| Outcome { item, done: 0, failure: Some(Failure::Gone) }));
            return MoveCounts::default();
        };
        let left_in = || moves.iter().enumerate().filter(|(at, _)| vetoed(*at).is_none()).map(|(_, item)| item);
        let address = |item: &Move| pages.locate(item.page).1;
        let resizes: Vec<(Vpn, Resize)> = left_in()
            .filter_map(|item| match item.action {
                Action::Split => Some((address(item).block_start(), Resize::Split)),
                Action::Collapse => Some((address(item).block_start(), Resize::Collapse)),
                Action::MoveTo(_) => None,
            })
            .collect();
        let wanted: Vec<PageMove> = left_in()
            .filter_map(|item| match item.action {
                Action::MoveTo(to) => Some(PageMove { vpn: address(item), pages: item.pages, from: item.from, to }),
                Action::Split | Action::Collapse => None,
            })
            .collect();
        self.resized.clear();
        if let Some(id) = id {
            *self.moved_of.entry(id).or_default() += wanted.iter().map(|item| u64::from(item.pages)).sum::<u64>();
        }
        self.results.clear();
        let mut cost = if resizes.is_empty() {
            movers::MoveCost::default()
        } else {
            self.parts.mover.resize(&space.process, &resizes, &mut self.resized)
        };
        cost.add(&self.parts.mover.execute(&space.process, &wanted, &self.parts.tiers, &mut self.results));
        self.stats.move_time += cost.elapsed;
        self.stats.move_calls += cost.calls;
        self.stats.unwritten_pages += cost.unwritten;
        self.stats.longest_move_call = self.stats.longest_move_call.max(cost.longest_call);
        let (mut results, mut resized) = (self.results.iter(), self.resized.iter());
        outcomes.extend(moves.iter().enumerate().map(|(at, &item)| match vetoed(at) {
            Some(failure) => Outcome { item, done: 0, failure: Some(failure) },
            None => {
                let answers = if item.action.remaps() { &mut resized } else { &mut results };
                let result = answers.next().expect("the mover answers every move");
                Outcome { item, done: result.done.min(item.pages), failure: result.failure }
            }
        }));
        if let Some(id) = id {
            self.note_slots(id, &wanted);
            self.spaces.get_mut(&id).into_iter().for_each(|space| space.activity.touched = true);
        }
        cost.counts
    }
}

/// What finds out whether memory compresses, where pages go to compressed swap.
fn compressibility(parts: &ManagerParts) -> Option<Compressibility> {
    let algorithm = compressibility::algorithm_of(Path::new("/"), parts.zram?)?;
    let made = Compressibility::new(&algorithm);
    made.inspect_err(|error| tracing::warn!(%error, "what does not compress is not found beforehand")).ok()
}

/// The processes as a tracker is given them. A function of the map alone, so that the tracker and the engine stay free to change.
fn targets(spaces: &BTreeMap<SpaceId, Space>) -> Vec<Target<'_>> {
    let there = spaces.iter().filter(|(_, held)| !held.without_memory);
    there.map(|(&space, held)| Target { space, process: &held.process, ranges: &held.ranges }).collect()
}

/// Those that run: of the others a round would read what it has read before.
fn awake(spaces: &BTreeMap<SpaceId, Space>) -> Vec<Target<'_>> {
    let awake = |target: &Target<'_>| spaces.get(&target.space).is_some_and(|held| !held.activity.asleep);
    let mut targets = targets(spaces);
    targets.retain(awake);
    targets
}
