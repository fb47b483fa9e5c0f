//! Puts the rows of a look together.
//!
//! In: a [`Survey`]. Out: a [`Look`]. Must not: watch, or leave out what could not be seen.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use terrace_core::units::{Bytes, Time};

use super::estimate::{Estimate, Limits, Part, estimate};
use super::groups::{Group, Member, groups};
use super::view::{Cost, Idle, Kind, Look, Machine, Row, SCHEMA_VERSION, Unseen};
use super::{Known, LEAST, Survey, own_seconds, programs};
use crate::cgroup_charges::Charge;
use crate::cgroup_memory::{CgroupMemory, kept};
use crate::pressure::meminfo_bytes;
use crate::swap_saving::SwapFigures;
use crate::trackers::Tracker;

/// How often it is read what cgroups are charged with and allow.
const CHARGES_EVERY: Duration = Duration::from_secs(20);
/// Processes of a row that are named.
const MOST_PIDS: usize = 32;

/// What the cgroup of a row says, and when it was read.
#[derive(Clone, Debug, Default)]
pub(super) struct RowFacts {
    read: Option<Time>,
    charge: Option<Charge>,
    limits: Limits,
}

pub(super) fn look(survey: &mut Survey) -> Look {
    let now = survey.now();
    let watched = survey.ready.map_or(Duration::ZERO, |ready| now.since(ready)).as_secs_f64();
    let members: Vec<Member> = survey.known.values().map(|known| known.listed.member.clone()).collect();
    let user = |user| programs::user_name(&survey.passwd, user);
    let groups = groups(&members, survey.base.as_deref(), survey.options.by_program, user);
    let mut pids: BTreeMap<Group, Vec<u32>> = BTreeMap::new();
    for (pid, group) in groups {
        pids.entry(group).or_default().push(pid);
    }
    survey.rows.retain(|group, _| pids.contains_key(group));
    read_cgroups(survey, now, &mut pids);
    let mut rows: Vec<Row> = pids.iter().map(|(group, pids)| row(survey, group, pids, watched)).collect();
    rows.sort_by_key(|row| std::cmp::Reverse((row.gives_back_bytes, row.memory_bytes)));
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Look {
        schema_version: SCHEMA_VERSION,
        time: seconds.as_secs_f64(),
        watched_seconds: watched,
        in_container: survey.in_container,
        memory: machine(&meminfo),
        rows,
        unseen: unseen(survey, &meminfo),
        cost: cost(survey, now),
        notes: notes(survey),
    }
}

/// Sorts the processes of each row, the largest first, and reads what its cgroup says, if that is due.
fn read_cgroups(survey: &mut Survey, now: Time, pids: &mut BTreeMap<Group, Vec<u32>>) {
    let mut levels = CgroupMemory::read(Path::new("/"));
    for (group, pids) in pids {
        let size = |pid: &u32| survey.known.get(pid).map_or(Bytes::ZERO, |known| known.listed.resident);
        pids.sort_unstable_by_key(|pid| std::cmp::Reverse((size(pid), *pid)));
        let facts = survey.rows.entry(group.clone()).or_default();
        if facts.read.is_some_and(|read| now.since(read) < CHARGES_EVERY) {
            continue;
        }
        let anonymous = pids.iter().filter_map(|pid| survey.known.get(pid)).map(|known| known.listed.anonymous);
        let anonymous = anonymous.fold(Bytes::ZERO, |sum, bytes| sum + bytes);
        let found = levels.levels(pids[0]);
        facts.limits =
            Limits { kept: kept(&found, anonymous), swap_left: found.iter().filter_map(|level| level.swap_left).min() };
        facts.charge = group.cgroup.as_ref().and_then(|cgroup| survey.charges.of(cgroup));
        facts.read = Some(now);
    }
}

fn row(survey: &Survey, group: &Group, pids: &[u32], watched: f64) -> Row {
    let members: Vec<&Known> = pids.iter().filter_map(|pid| survey.known.get(pid)).collect();
    let sum = |of: fn(&Known) -> Bytes| members.iter().fold(Bytes::ZERO, |sum, known| sum + of(known)).get();
    let resident = sum(|known| known.listed.resident);
    let facts = survey.rows.get(group).cloned().unwrap_or_default();
    let parts: Vec<Part> = members
        .iter()
        .filter_map(|known| {
            let watch = known.watch.as_ref()?;
            let eligible = watch.eligible.max(watch.figures.present);
            Some(Part { eligible, figures: watch.figures, contents: watch.contents, cores: known.cores })
        })
        .collect();
    let found: Estimate = estimate(&parts, &facts.limits, watched);
    let memory_bytes = facts.charge.map_or(resident, |charge| charge.memory);
    let [one_minute_bytes, two_minutes_bytes, five_minutes_bytes] = found.idle;
    Row {
        kind: group.kind,
        name: group.name.clone(),
        program: members.first().map(|known| known.listed.member.name.clone()).unwrap_or_default(),
        executable: members.first().and_then(|known| known.listed.member.exe.clone()),
        cgroup: group.cgroup.clone(),
        pids: match (group.kind, group.leader) {
            // Who is to be named to Terrace comes first: its children follow it.
            (Kind::Program, Some(leader)) => {
                let others = pids.iter().copied().filter(|pid| *pid != leader);
                std::iter::once(leader).chain(others).take(MOST_PIDS).collect()
            }
            _ => pids.iter().copied().take(MOST_PIDS).collect(),
        },
        processes: pids.len() as u64,
        memory_bytes,
        anonymous_bytes: sum(|known| known.listed.anonymous),
        swapped_bytes: sum(|known| known.listed.swapped),
        watched_bytes: found.watched,
        sampled_share: found.sampled_share,
        idle: Idle { one_minute_bytes, two_minutes_bytes, five_minutes_bytes },
        compressed_share: found.compressed,
        filled_share: found.filled,
        file_active_bytes: facts.charge.map(|charge| charge.file_active),
        file_inactive_bytes: facts.charge.map(|charge| charge.file_inactive),
        gives_back_bytes: found.gives_back,
        gives_back_share: found.gives_back.map(|bytes| bytes as f64 / memory_bytes.max(1) as f64),
        idle_wanted_seconds: found.idle_wanted,
        came_back_bytes_per_second: found.came_back,
        huge_in_use_bytes: found.huge_in_use,
        limited_by: found.limited_by,
    }
}

fn machine(meminfo: &str) -> Machine {
    let line = |name| meminfo_bytes(meminfo, name).unwrap_or(Bytes::ZERO).get();
    Machine {
        total_bytes: line("MemTotal:"),
        available_bytes: line("MemAvailable:"),
        file_active_bytes: line("Active(file):"),
        file_inactive_bytes: line("Inactive(file):"),
        swapped_bytes: line("SwapTotal:").saturating_sub(line("SwapFree:")),
        swap_takes_bytes: takes(),
    }
}

/// Memory that holds what is in swap.
fn takes() -> u64 {
    let Ok(figures) = SwapFigures::read(Path::new("/")) else { return 0 };
    let zrams = figures.areas.iter().filter_map(|area| area.zram).map(|zram| zram.mem_used_bytes.get());
    zrams.sum::<u64>() + figures.zswap_pool.get()
}

/// Everything that is memory and was not looked at.
fn unseen(survey: &Survey, meminfo: &str) -> Vec<Unseen> {
    let mut reasons: BTreeMap<&str, (u64, Bytes)> = BTreeMap::new();
    let (mut small, mut small_bytes) = (0_u64, Bytes::ZERO);
    for known in survey.known.values().filter(|known| known.watch.is_none()) {
        let size = known.listed.anonymous;
        if let Some(why) = &known.refusal {
            let (count, bytes) = reasons.entry(why).or_default();
            (*count, *bytes) = (*count + 1, *bytes + size);
        } else if size < LEAST {
            (small, small_bytes) = (small + 1, small_bytes + size);
        }
    }
    let mut unseen: Vec<Unseen> = reasons
        .into_iter()
        .map(|(why, (count, bytes))| {
            let what = if count == 1 { "a process".to_owned() } else { format!("{count} processes") };
            Unseen { what, bytes: bytes.get(), why: why.to_owned() }
        })
        .collect();
    let mut say = |what: String, bytes: Bytes, why: &str| {
        if bytes > Bytes::ZERO {
            unseen.push(Unseen { what, bytes: bytes.get(), why: why.to_owned() });
        }
    };
    say(format!("{small} processes below {LEAST}"), small_bytes, "each too small to be watched");
    let line = |name| meminfo_bytes(meminfo, name).unwrap_or(Bytes::ZERO);
    say(
        "shared memory and tmpfs".to_owned(),
        line("Shmem:"),
        "several may use it; `terrace attach --shared` manages it",
    );
    let kernel = ["Slab:", "PageTables:", "KernelStack:", "Percpu:"].map(line);
    say(
        "the kernel's own".to_owned(),
        kernel.into_iter().fold(Bytes::ZERO, |sum, bytes| sum + bytes),
        "it does not move",
    );
    say("huge pages of hugetlbfs".to_owned(), line("Hugetlb:"), "set aside by the administrator; they do not move");
    unseen
}

fn cost(survey: &Survey, now: Time) -> Cost {
    let cpu_seconds = own_seconds() - survey.used_before;
    let watches = || survey.known.values().filter_map(|known| known.watch.as_ref());
    let touched: u64 = watches().map(|watch| watch.ages.touched()).sum();
    let price = survey.tracker.as_ref().and_then(Tracker::prices).map_or(0.0, |prices| prices.touch_ns);
    Cost {
        cpu_seconds,
        cpu_share: cpu_seconds / now.as_secs_f64().max(1e-3),
        program_seconds: touched as f64 * price * 1e-9,
        blocks: watches().map(|watch| watch.ages.peopled().len() as u64).sum(),
    }
}

fn notes(survey: &Survey) -> Vec<String> {
    let mut notes = Vec::new();
    if survey.in_container {
        notes.push(
            "this is a container: only its own programs are seen; the memory of the machine is that of its host"
                .to_owned(),
        );
    }
    if let Some(tracker) = &survey.tracker {
        notes.extend(tracker.notes());
    }
    if survey.charges.is_version_one() {
        notes.push(
            "the memory controller is on cgroup version 1: file cache is shown, and cannot be given back".to_owned(),
        );
    }
    let huge: u64 =
        survey.known.values().filter_map(|known| known.watch.as_ref()).map(|watch| watch.figures.huge_in_use).sum();
    if huge > 0 {
        notes.push(
            "of a huge block only that it is used is seen: with one page in use it leaves only when it is split"
                .to_owned(),
        );
    }
    notes
}
