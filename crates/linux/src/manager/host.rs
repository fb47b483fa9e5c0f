//! What the manager reads of its surroundings, twice a second: what its work costs the programs, what it saves, and how much room there is.
//!
//! In: the processes' faults and processor time, pressure-stall information, swap, nodes, prices of moves. Out: [`Input::Pressure`] and
//! [`Input::Capacity`] for the engine, the budget for watching brought up to date, our own compressed store kept without holes. Must not:
//! move a page, or judge what it reads.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use terrace_core::engine::Input;
use terrace_core::governor::{Pressure, SpaceLimits};
use terrace_core::plan::{Failure, Outcome, Plan};
use terrace_core::prices::ProcessorCounts;
use terrace_core::units::{BLOCK_PAGES, Bytes, SpaceId, TierId, Time};

use super::{Manager, ORIGIN};
use crate::cgroup_memory::{CgroupMemory, kept};
use crate::move_cost::{self, MoveCost};
use crate::movers::{MoveCounts, STALL_DEADLINE};
use crate::pressure::PressureReading;
use crate::processors::ProcessorUse;
use crate::split_cost;
use crate::swap_saving::{SwapFigures, SwapSaving, entries_of_all, saving, swapped};
use crate::topology::nodes::available_memory;
use crate::topology::{Tier, TierKind};

/// How often the cost of moves is read: often enough to throttle before a second's worth of mistakes is made.
const PRESSURE_INTERVAL: Duration = Duration::from_millis(500);
/// With more processes it is read less often: a reading takes some 15 us per process, and as much again of one with pages in swap, 0.6 % of a core
/// at this rate.
const PRESSURE_PER_PROCESS: Duration = Duration::from_millis(5);
/// Pages that come back leave holes in the compressed store, which the kernel closes only on request or under pressure. More
/// than this much waste, and more than a quarter of what is stored, is worth closing, at most once in `COMPACT_INTERVAL`.
const COMPACT_FROM: Bytes = Bytes::mib(16);
const COMPACT_INTERVAL: Duration = Duration::from_secs(10);
/// The compression ratio of a few pages says nothing: from this much stored data on it counts.
const COMPRESSION_TELLS_FROM: Bytes = Bytes::mib(16);
/// How often what moves cost is measured again: 60 to 130 ms of a processor, two ten-thousandths of the time at most.
const PRICE_INTERVAL: Duration = Duration::from_secs(600);
/// How often it is read what cgroups protect: three small files a cgroup. What an administrator changes counts within this time.
const PROTECTION_INTERVAL: Duration = Duration::from_secs(2);
/// Of processes that sleep one in sixteen is asked each time: all of them within half a minute.
const ASLEEP_PROTECTION_PARTS: u64 = 16;
/// Processes that are asked how long they waited for a processor while something moves.
const MOST_ASKED: usize = 64;
/// How long no page goes to swap after writes to it failed, at first and at most: each time that they fail again, twice as long.
pub(super) const SWAP_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_SWAP_PAUSE: Duration = Duration::from_secs(64);
/// How often the swap entries of all processes are counted, where that matters: a file a process.
const ENTRIES_INTERVAL: Duration = Duration::from_secs(5);

/// What a stretch of time was to a program.
struct Spent {
    space: SpaceId,
    window: Duration,
    refaults: u64,
    cores: f64,
}

impl Manager {
    /// What moves have cost the programs so far, but for the pages that came back.
    pub fn moving_cost(&self) -> Duration {
        self.moving.total()
    }

    /// What watching has cost them: what they paid for cleared bits, and the tracker's processor time as far as they waited for it.
    pub fn watching_cost(&self) -> Duration {
        self.watching.cost().program + self.moving.watching()
    }

    /// What moves cost, as measured last.
    pub fn move_cost(&self) -> MoveCost {
        self.parts.move_cost
    }

    /// Reads what the moves so far cost the processes.
    pub(super) fn read_pressure(&mut self, now: Time) {
        let first_reading = self.pressure_read.is_none();
        // The first reading is of the time since the manager began: what it lasted earns the budget of page-outs.
        let window = now.since(self.pressure_read.replace(now).unwrap_or(ORIGIN));
        self.look_at_clocks(now);
        // Each process that runs costs a file to read; with hundreds of them the reading must not become the work.
        let running = self.spaces.values().filter(|space| !space.activity.asleep).count();
        let interval = PRESSURE_INTERVAL.max(PRESSURE_PER_PROCESS * running as u32);
        self.pressure_at = now + interval;
        let hertz = rustix::param::clock_ticks_per_second() as f64;
        let (mut faults, mut refaults, mut resident, mut used_ticks) = (0, 0, 0, 0);
        let mut programs: Vec<Spent> = Vec::new();
        let (swap, pages) = (self.parts.tiers.swap_tier(), self.parts.engine.pages());
        for (id, space) in &mut self.spaces {
            if space.activity.is_unchanged() {
                resident += space.activity.resident.get();
                continue;
            }
            let Ok(stat) = space.process.stat() else { continue };
            let major = stat.major_faults.saturating_sub(space.major_faults);
            space.major_faults = stat.major_faults;
            let ticks = (stat.user_ticks + stat.system_ticks).saturating_sub(space.cpu_ticks);
            space.cpu_ticks += ticks;
            let activity = &mut space.activity;
            activity.note_resident(stat.resident);
            // Without swap nobody knows whose a fault is: all of them count.
            let returns =
                swap.map_or(major, |swap| activity.returns(major, pages.demoted(*id, swap), pages.used(*id, swap)));
            (faults, refaults, used_ticks) = (faults + major, refaults + returns, used_ticks + ticks);
            resident += stat.resident.get();
            if !activity.asleep {
                let window = now.since(std::mem::replace(&mut activity.read, now));
                let window = if first_reading { window.max(now.since(ORIGIN)) } else { window };
                let cores = activity.uses(window, Duration::from_secs_f64(ticks as f64 / hertz));
                programs.push(Spent { space: *id, window, refaults: returns, cores });
            }
        }
        self.stats.cpu_ticks += used_ticks;
        if !first_reading {
            self.watching.on_program(window, Duration::from_secs_f64(used_ticks as f64 / hertz));
        }
        self.weigh_watching(now);
        self.stats.major_faults += faults;
        self.stats.resident_bytes = resident;
        let before = self.stats.pressure;
        match PressureReading::read(Path::new("/"), self.parts.zram) {
            Ok(reading) => self.stats.pressure = reading,
            Err(error) => self.stats.pressure_error = Some(error.to_string()),
        }
        self.read_swap(now);
        self.compact(now);
        let reading = self.stats.pressure;
        if let Some(throttle) = self.parts.engine.governor().throttle() {
            *self.stats.throttled.entry(throttle).or_default() += window.min(2 * interval);
        }
        if self.parts.engine.governor().invests() {
            self.stats.invested += window.min(2 * interval);
        }
        // A dry run may plan for swap that is not there; its room is what was declared, and free swap says nothing of it.
        let is_active = |tier: &TierId| matches!(&self.parts.tiers.tier(*tier).kind, TierKind::Swap { device, .. } if device.starts_with('/'));
        if let Some(tier) = self.parts.tiers.swap_tier().filter(is_active) {
            let room = self.room_in_swap(now, tier, reading.swap_free_bytes);
            let used = self.parts.engine.pages().used_in_all(tier);
            self.drain_engine(Input::Capacity(tier, used + room.pages()));
        }
        self.read_room();
        self.respect_protection(now);
        self.price_again(now);
        self.read_processors(window);
        let cores = self.watching.cores();
        let awake = self.spaces.values().filter(|space| !space.activity.asleep);
        let pids: Vec<u32> = awake.map(|space| space.process.pid()).take(MOST_ASKED).collect();
        let watched = self.watching.cost();
        let earlier = std::mem::replace(&mut self.watched, watched);
        let tracker = watched.own.saturating_sub(earlier.own);
        let moved = self.moving.read(Path::new("/"), window, tracker, cores, pids.into_iter());
        if let Some(taken) = moved.taken {
            self.watching.on_taken(taken);
        }
        let watching = moved.watching + watched.program.saturating_sub(earlier.program);
        let stalled = Duration::from_micros(reading.some_total_us.saturating_sub(before.some_total_us));
        let first = before == PressureReading::default();
        let stall_share = (reading.stalls_counted && !first).then(|| stalled.as_secs_f64() / window.as_secs_f64());
        if self.knows_sleep() {
            let short = self.scarcity.read(Path::new("/"), now, stall_share);
            self.stats.short_by = short;
            self.parts.engine.handle(now, Input::ShortBy(short.pages()));
        }
        let pressure = Pressure {
            window,
            refaults,
            moving: moved.cost,
            page_out_cost: moved.page_out,
            single_out_cost: moved.single_out,
            block_out_cost: moved.block_out,
            split_cost: moved.split,
            collapse_cost: moved.collapse,
            // Nothing counts page walks here.
            translating: Duration::ZERO,
            watching,
            cores,
            stall_share,
            compression: reading
                .zram
                .filter(|zram| zram.orig_data_bytes >= COMPRESSION_TELLS_FROM)
                .and_then(|zram| zram.compressibility()),
        };
        self.judge_each(now, &programs, &pressure);
        for space in self.spaces.values_mut() {
            space.activity.touched &= !space.activity.asleep;
        }
        self.drain_engine(Input::Pressure(pressure));
    }

    /// Passes to the engine what the work of this stretch of time cost each program: what moves and watching cost all of them, by how many of its pages
    /// were moved and read, and what came back of its own.
    fn judge_each(&mut self, now: Time, programs: &[Spent], all: &Pressure) {
        let (moved, read) = (std::mem::take(&mut self.moved_of), std::mem::take(&mut self.read_of));
        let part = |of: &BTreeMap<SpaceId, u64>, space: SpaceId| {
            let sum: u64 = of.values().sum();
            match of.get(&space) {
                Some(own) => *own as f64 / sum.max(1) as f64,
                None if sum == 0 => 1.0 / programs.len() as f64,
                None => 0.0,
            }
        };
        let alone = self.spaces.len() == 1;
        for Spent { space, window, refaults, cores } in programs {
            // Alone it is all there is, as the budget for watching counts it.
            let cores = if alone { all.cores } else { *cores };
            let [page_out, single, block, split, collapse] = self.moving.prices(cores);
            let own = Pressure {
                window: if alone { all.window } else { *window },
                refaults: *refaults,
                moving: all.moving.mul_f64(part(&moved, *space)),
                page_out_cost: page_out,
                single_out_cost: single,
                block_out_cost: block,
                split_cost: split,
                collapse_cost: collapse,
                translating: all.translating,
                watching: all.watching.mul_f64(part(&read, *space)),
                cores,
                // Who of several waited for memory is not known.
                stall_share: all.stall_share.filter(|_| alone),
                compression: all.compression,
            };
            self.parts.engine.handle(now, Input::ProgramPressure(*space, own));
        }
    }

    /// What of `moved` pages in swap is where, and what that saves, by the latest reading. More than the kernel counts are not in swap any more.
    pub fn saving(&self, moved: Bytes) -> SwapSaving {
        let shares = self.spaces.values().any(|space| space.process.offers_shared());
        let counted = self.stats.swapped.filter(|_| !shares);
        saving(&self.stats.swap, self.swap_device(), counted.map_or(moved, |counted| moved.min(counted)))
    }

    /// The device of the swap tier.
    pub fn swap_device(&self) -> Option<&str> {
        match &self.parts.tiers.tier(self.parts.tiers.swap_tier()?).kind {
            TierKind::Swap { device, .. } => Some(device),
            TierKind::Nodes { .. } => None,
        }
    }

    /// Reads what is in swap and where. What the processes have there is read last: what a process that exits meanwhile gives back then counts as
    /// not saved, and never as saved at no cost.
    fn read_swap(&mut self, now: Time) {
        let swap = self.parts.tiers.swap_tier();
        let pages = self.parts.engine.pages();
        let used = |id| swap.map_or(0, |swap| pages.used(id, swap));
        let of = |space: &super::Space| swapped(Path::new("/"), space.process.pid());
        // A file a process: of those that have nothing in swap it is enough to know whether one has memory.
        let mut rest = self.spaces.iter().filter(|(id, _)| used(**id) == 0);
        let there = rest.any(|(_, space)| {
            let asleep = space.activity.asleep && space.activity.resident > Bytes::ZERO;
            asleep || space.process.has_memory() || of(space).is_some()
        });
        if swap.is_none() {
            self.stats.swapped = there.then_some(Bytes::ZERO);
            return;
        }
        let mut figures = match SwapFigures::read(Path::new("/")) {
            Ok(figures) => figures,
            Err(error) => {
                self.stats.pressure_error = Some(format!("swap: {error}"));
                return;
            }
        };
        let in_swap = self.spaces.iter_mut().filter(|(id, _)| used(**id) > 0);
        let counted = in_swap.filter_map(|(id, space)| {
            let pid = space.process.pid();
            space.activity.swapped(now, used(*id), || swapped(Path::new("/"), pid))
        });
        let own: Option<Bytes> = counted.chain(there.then_some(Bytes::ZERO)).reduce(|sum, one| sum + one);
        if let Some(own) = own.filter(|own| figures.needs_entries(*own)) {
            let fresh = self.others_in_swap.filter(|(at, _)| now.since(*at) < ENTRIES_INTERVAL);
            let others = fresh.or_else(|| entries_of_all(Path::new("/")).map(|all| (now, all.saturating_sub(own))));
            self.others_in_swap = others;
            figures.entries = others.map(|(_, others)| own + others);
        }
        self.stats.zswap_stored_peak = self.stats.zswap_stored_peak.max(figures.zswap_stored);
        (self.stats.swap, self.stats.swapped) = (figures, own);
    }

    /// After writes to swap failed nothing more goes there for a while, longer each time.
    pub(super) fn shut_swap(&mut self, now: Time) {
        let failed =
            self.stats.unwritten_pages > std::mem::replace(&mut self.unwritten_before, self.stats.unwritten_pages);
        if let Some(tier) = self.parts.tiers.swap_tier().filter(|_| failed) {
            self.swap_shut = now + self.swap_pause;
            self.swap_pause = (self.swap_pause * 2).min(LONGEST_SWAP_PAUSE);
            let used = self.parts.engine.pages().used_in_all(tier);
            self.parts.engine.handle(now, Input::Capacity(tier, used));
        }
    }

    /// How much more may go to swap.
    fn room_in_swap(&mut self, now: Time, tier: TierId, free: Bytes) -> Bytes {
        if now > self.swap_shut + self.swap_pause {
            self.swap_pause = SWAP_PAUSE;
        }
        let TierKind::Swap { device, .. } = &self.parts.tiers.tier(tier).kind else { return free };
        let limit = self.stats.swap.limit_met(device).filter(|_| !self.stats.swap.zswap_enabled);
        self.stats.zram_limit = limit.or(self.stats.zram_limit);
        if now < self.swap_shut { Bytes::ZERO } else { self.stats.swap.room(device, free) }
    }

    /// Passes the results of tracking to its budget.
    fn weigh_watching(&mut self, now: Time) {
        let (ledger, pages) = (self.parts.engine.ledger(), self.parts.engine.pages());
        // A dry run would have moved these.
        let dry: u64 = ledger.failed().get(&Failure::DryRun).copied().unwrap_or(0);
        // What comes of a split is known after a few more rounds, which it is to have.
        let split = ledger.splits() * u64::from(BLOCK_PAGES);
        let moved = ledger.demoted() + ledger.promoted() + dry + split;
        let can_move = self.parts.tiers.tiers().len() > 1 && !self.watches_fully;
        self.watching.on_result(now, moved, pages.footprint_of_all(), can_move);
    }

    /// Passes the capacity of the nodes for the processes to the engine: what they use of them, and what is left. Others live there too, and a
    /// policy that knows only how large a node is would promote into one that is full, and never make room.
    fn read_room(&mut self) {
        let nodes_of = |tier: &Tier| Some((tier.id, tier.capacity_bytes.pages(), tier.nodes()?.to_vec()));
        let tiers: Vec<_> = self.parts.tiers.tiers().iter().filter_map(nodes_of).collect();
        // With one tier of nodes nothing is promoted into it but what comes back from swap, which the kernel makes room for.
        if tiers.len() < 2 {
            return;
        }
        let zoneinfo = std::fs::read_to_string("/proc/zoneinfo").unwrap_or_default();
        for (tier, capacity, nodes) in tiers {
            let left = nodes.iter().map(|node| available_memory(Path::new("/"), *node, &zoneinfo).map(Bytes::pages));
            let Some(left) = left.sum::<Option<u64>>() else { continue };
            let used = self.parts.engine.pages().used_in_all(tier);
            self.drain_engine(Input::Capacity(tier, capacity.min(used + left)));
        }
    }

    /// A node holds what is found on it: pages that are found after its room was read were there already. Otherwise they would all count as over
    /// its room, and have to leave.
    pub(super) fn believe_what_is_found(&mut self, now: Time) {
        for (tier, use_of) in self.parts.tiers.tiers().iter().zip(self.parts.engine.tier_use()) {
            if tier.nodes().is_some() && use_of.used > use_of.capacity {
                self.parts.engine.handle(now, Input::Capacity(tier.id, use_of.used));
            }
        }
    }

    /// Passes to the engine how much of each process must not go to swap: the kernel holds `memory.min` and `memory.low` against reclaim
    /// under pressure, and not against who pages out by advice. What goes to another node stays charged, and is bounded all the same.
    fn respect_protection(&mut self, now: Time) {
        let due = self.protection_read == Time::ZERO || now.since(self.protection_read) >= PROTECTION_INTERVAL;
        if self.parts.ignores_protection || self.parts.tiers.swap_tier().is_none() || !due {
            return;
        }
        self.protection_read = now;
        self.protection_readings += 1;
        let mut groups = CgroupMemory::read(Path::new("/"));
        for (id, space) in &self.spaces {
            // Three files a process: of those that sleep one in sixteen has its turn.
            let turn = u64::from(id.0) % ASLEEP_PROTECTION_PARTS == self.protection_readings % ASLEEP_PROTECTION_PARTS;
            if space.activity.asleep && !turn {
                continue;
            }
            let levels = groups.levels(space.process.pid());
            let Ok(stat) = space.process.stat() else { continue };
            // Of what is resident only a part is managed; the rest stays anyway.
            let managed = Bytes::of_pages(self.parts.engine.pages().used(*id, TierId::FAST));
            let others = stat.resident.saturating_sub(managed);
            let floor = kept(&levels, stat.resident).saturating_sub(others).pages();
            let limits = SpaceLimits { floor, ceiling: u64::MAX };
            self.parts.engine.handle(now, Input::Limits(*id, limits));
        }
    }

    /// Closes the holes in our own compressed store when they have grown worth it: memory they take is memory not saved.
    fn compact(&mut self, now: Time) {
        let (Some(id), Some(zram)) = (self.parts.zram, self.stats.pressure.zram) else { return };
        let waste = zram.wasted_bytes();
        let worth_it = waste > COMPACT_FROM && waste.get() * 4 > zram.compressed_bytes.get();
        if self.parts.zram_is_ours && worth_it && now.since(self.compacted) >= COMPACT_INTERVAL {
            self.compacted = now;
            if let Err(error) = terrace_files::set(Path::new(&format!("/sys/block/zram{id}/compact")), "1") {
                tracing::warn!(%error, "the compressed store could not be compacted");
            }
        }
    }

    /// Passes to the policy how busy the processors are, where it weighs moves between nodes: a mover on one that idles takes time from nobody.
    fn read_processors(&mut self, window: Duration) {
        if self.parts.tiers.tiers().iter().filter(|tier| tier.nodes().is_some()).count() < 2 {
            return;
        }
        let Some(now) = ProcessorUse::read(Path::new("/"), &[]) else { return };
        let Some(before) = self.processors.replace(now) else { return };
        let in_use = now.since(&before).busy.as_secs_f64() / (window.as_secs_f64().max(1e-3) * f64::from(now.online));
        let cores = self.watching.cores().round().max(1.0) as u32;
        let counts = ProcessorCounts { cores, in_use: in_use.clamp(0.0, 1.0), ..ProcessorCounts::default() };
        self.drain_engine(Input::Processor(counts));
    }

    /// Enters what a plan cost: the mover's processor time, and the pages that went, by what interrupts the program.
    pub(super) fn account_for(&mut self, cpu: Duration, counts: &MoveCounts, outcomes: &[Outcome]) {
        let moved = outcomes
            .iter()
            .filter(|outcome| !outcome.item.action.remaps())
            .map(|outcome| u64::from(outcome.done))
            .sum();
        self.moving.carried_out(cpu, counts, moved);
        self.stats.counts.add(counts);
    }

    /// Passes the prices of moves between nodes to the policy, where they were measured.
    pub(super) fn tell_prices(&mut self) {
        if let Some(prices) = self.parts.move_cost.prices(&self.parts.tiers) {
            let now = self.now();
            self.parts.engine.handle(now, Input::Prices(prices));
        }
    }

    /// Measures what splits cost before the first of them: a quarter of a second that a program without huge pages need not wait for. Nothing where what moves
    /// cost is not measured either, since none is carried out.
    pub(super) fn price_splits(&mut self, plan: &Plan) {
        let cost = &self.parts.move_cost;
        let measures = cost.page_out_mover.is_some() || cost.between_nodes.is_some();
        if cost.inside.is_some() || !measures || !plan.moves.iter().any(|item| item.action.remaps()) {
            return;
        }
        let found = split_cost::inside(Path::new("/"), &self.parts.tiers, STALL_DEADLINE);
        let found = found.inspect_err(|error| tracing::warn!(%error, "what a split costs is assumed"));
        self.parts.move_cost.inside = Some(found.unwrap_or_default());
        let costs = self.parts.move_cost;
        self.moving.set_prices(&costs);
        self.moving.set_prices_of_splits(&costs);
        self.tell_prices();
    }

    /// Measures again what moves cost, where some have moved since that was last measured.
    fn price_again(&mut self, now: Time) {
        if self.priced_at == Time::ZERO {
            self.priced_at = now;
        }
        let moved = self.moving.total();
        if now.since(self.priced_at) < PRICE_INTERVAL || moved <= self.priced_for {
            return;
        }
        (self.priced_at, self.priced_for) = (now, moved);
        let cost = self.parts.move_cost;
        // Too few pages moved, as where swap is full: what was measured before stands.
        if let Some(swap) = self.parts.tiers.swap_tier().filter(|_| cost.page_out.is_some()) {
            match move_cost::page_out(&self.parts.tiers, swap, STALL_DEADLINE) {
                Ok(found) => self.parts.move_cost.page_out = found.or(cost.page_out),
                Err(error) => tracing::warn!(%error, "what a page-out costs could not be measured again"),
            }
            match move_cost::block_out(&self.parts.tiers, swap, STALL_DEADLINE) {
                Ok(found) => self.parts.move_cost.block_out = found.or(cost.block_out),
                Err(error) => tracing::warn!(%error, "what a whole block costs could not be measured again"),
            }
        }
        if cost.inside.is_some() {
            match split_cost::inside(Path::new("/"), &self.parts.tiers, STALL_DEADLINE) {
                Ok(found) => self.parts.move_cost.inside = Some(found),
                Err(error) => tracing::warn!(%error, "what a split costs could not be measured again"),
            }
        }
        if cost.between_nodes.is_some() {
            match move_cost::between_nodes(&self.parts.tiers, STALL_DEADLINE) {
                Ok((found, pages)) => {
                    self.parts.move_cost.between_nodes = found.or(cost.between_nodes);
                    self.parts.move_cost.measured_pages += pages;
                    self.tell_prices();
                }
                Err(error) => tracing::warn!(%error, "what a move between nodes costs could not be measured again"),
            }
        }
        let costs = self.parts.move_cost;
        self.moving.set_prices(&costs);
    }
}
