//! The jobs of the demo that need rights: manage a program, or observe it.
//!
//! In: a machine on which that was found to work. Out: the run's report and its result in a sentence. Must not: end a program that the demo did
//! not start, or take more memory than there is.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};
use terrace_core::units::Bytes;
use terrace_linux::cgroup_memory::{CgroupMemory, memory_left};
use terrace_linux::pressure::available_memory;
use terrace_run::spec::RunSpec;

use super::Demo;
use crate::program;
use crate::programs::{self, RESEARCH};
use crate::report::text::headline;
use crate::report::{Report, units};
use crate::session::{Plan, TargetSpec, observing, probe, run_with};

/// What the load needs besides the server.
const REDIS: [&str; 3] = ["redis-server", "redis-benchmark", "redis-cli"];
/// Without it the load is a workload of `terrace-research`.
const NO_REDIS: &str = "redis-server is not installed: apt-get install redis-server";
/// Values that are stored where memory suffices; each has a KiB.
const VALUES: u64 = 300_000;
/// The footprint of a workload of Terrace's own, and about that of redis-server with all values.
const FOOTPRINT: Bytes = Bytes::mib(512);
/// The share of available memory that the demo takes at most.
const MOST_OF_MEMORY: f64 = 0.25;
/// How long the server may take to answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// The modelled machine whose advice is the result; the page has all.
const MACHINE: &str = "cxl-170";

pub(super) fn could_manage() -> anyhow::Result<()> {
    could_load()?;
    probe(&RunSpec::default())
}

pub(super) fn could_observe() -> anyhow::Result<()> {
    could_load()?;
    probe(&observing())
}

/// Whether there is a program to show anything on.
fn could_load() -> anyhow::Result<()> {
    if !has_redis() {
        programs::find(RESEARCH, "workload").context(NO_REDIS)?;
    }
    Ok(())
}

/// The program, and why it is not redis-server, if it is not.
pub(super) fn subject() -> String {
    match has_redis() {
        true => "redis-server under load".to_owned(),
        false => format!("a workload of Terrace's own ({NO_REDIS})"),
    }
}

fn has_redis() -> bool {
    REDIS.iter().all(|name| program::check(name.as_ref()).is_ok())
}

pub(super) fn manage(demo: &Demo) -> anyhow::Result<String> {
    let (_, report) = under_load(demo, |target| {
        let plan = Plan {
            target,
            spec: RunSpec::default(),
            goal_text: "min".to_owned(),
            output: demo.output(),
            duration: None,
            verbose: false,
        };
        run_with(&plan, None)
    })?;
    refuse_if_nothing_moved(&report)?;
    let (saved, held) = (report.fast_bytes_saved_end, report.tiers.iter().map(|tier| tier.end_used_bytes).sum());
    let at_the_end = format!(
        "at the end {} of {} ({})",
        units::bytes(saved),
        units::bytes(held),
        units::percent(units::share_of(saved, held))
    );
    Ok(format!("{}; {at_the_end}", headline(&report)))
}

/// A run that was to move pages and could not is none that shows anything.
fn refuse_if_nothing_moved(report: &Report) -> anyhow::Result<()> {
    let moved = &report.moved_pages;
    if moved.demoted > 0 || moved.failed == 0 {
        return Ok(());
    }
    let causes: Vec<String> =
        moved.failed_by_cause.iter().map(|(cause, pages)| format!("{cause}: {}", units::count(*pages))).collect();
    bail!("no page left fast memory, though {} should have ({})", units::count(moved.failed), causes.join(", "))
}

pub(super) fn observe(demo: &Demo) -> anyhow::Result<String> {
    match programs::find(RESEARCH, "size advise") {
        Ok(_) => advised(demo),
        Err(missing) => {
            demo.say(&format!("how much fast memory it needs is not said here: {missing}"))?;
            let (_, report) =
                under_load(demo, |target| run_with(&Plan::observe(target, observing(), demo.output(), None)?, None))?;
            Ok(headline(&report))
        }
    }
}

/// `terrace-research` watches the program, and says how much fast memory it needs.
fn advised(demo: &Demo) -> anyhow::Result<String> {
    under_load(demo, |target| {
        let TargetSpec::Command(command) = target else { bail!("the demo starts its program itself") };
        let mut words: Vec<OsString> = ["size", "advise", "--report"].map(OsString::from).into();
        words.push(demo.place.clone().into());
        words.push("--".into());
        demo.research(words.into_iter().chain(command))
    })?;
    let advice = demo.report()?;
    let machines = advice["machines"].as_array().context("advice names machines")?;
    let share = machines.iter().find(|one| one["machine"] == MACHINE).and_then(|one| one["fast_share"].as_f64());
    Ok(share.map_or_else(
        || "how much fast memory it needs is not known yet: observe for longer".to_owned(),
        |share| format!("on {MACHINE} {} of it as fast memory is enough (forecast)", units::percent(share)),
    ))
}

/// Runs `work` on a program that is under load meanwhile.
fn under_load<T>(demo: &Demo, work: impl FnOnce(TargetSpec) -> anyhow::Result<T>) -> anyhow::Result<T> {
    let share = share_of_footprint()?;
    if !has_redis() {
        let size = FOOTPRINT.share(share);
        let seconds = format!("{}s", demo.duration.as_secs().max(1));
        let research = programs::find(RESEARCH, "workload").context(NO_REDIS)?;
        let words =
            ["workload", "hot-cold", "--size", &size.get().to_string(), "--duration", &seconds].map(OsString::from);
        return work(TargetSpec::Command(std::iter::once(research.into_os_string()).chain(words).collect()));
    }
    // A socket of its own: no port that another program may have, no network that may be missing.
    let folder = tempfile::tempdir().context("no temporary files can be made; TMPDIR names another directory")?;
    let socket = folder.path().join("socket");
    let words: Vec<OsString> = [
        "redis-server",
        "--port",
        "0",
        "--unixsocket",
        &socket.display().to_string(),
        "--save",
        "",
        "--appendonly",
        "no",
        "--loglevel",
        "warning",
    ]
    .map(OsString::from)
    .into();
    let values = (VALUES as f64 * share) as u64;
    demo.say(&format!(
        "{} of values are stored, then a tenth of them is read for {} s",
        Bytes::kib(values),
        demo.duration.as_secs()
    ))?;
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let load = scope.spawn(|| load(&socket, values, demo.duration, &over));
        let done = work(TargetSpec::Command(words));
        over.store(true, Ordering::SeqCst);
        let loaded = load.join().unwrap_or_else(|_| Err(anyhow::anyhow!("the load ended by a fault of its own")));
        // What the manager says is the cause; that nobody could load a server which never started is its effect.
        let done = done?;
        loaded?;
        Ok(done)
    })
}

/// The share of the demo's usual footprint that suits this machine, or this container.
fn share_of_footprint() -> anyhow::Result<f64> {
    let root = Path::new("/");
    let levels = CgroupMemory::read(root).levels(std::process::id());
    let here = available_memory(root)?;
    let available = memory_left(&levels).map_or(here, |left| left.min(here));
    let share = (available.get() as f64 * MOST_OF_MEMORY / FOOTPRINT.get() as f64).min(1.0);
    if share < 0.05 {
        bail!("only {available} of memory is available: too little to show anything on");
    }
    Ok(share)
}

/// Stores values, reads a tenth of them, and ends the server.
fn load(socket: &Path, values: u64, duration: Duration, over: &AtomicBool) -> anyhow::Result<()> {
    let began = Instant::now();
    while !runs(Command::new("redis-cli").arg("-s").arg(socket).arg("ping")) {
        if over.load(Ordering::SeqCst) {
            bail!("redis-server ended before it answered");
        }
        if began.elapsed() > PATIENCE {
            end_server();
            bail!("redis-server did not answer on {} within {} s", socket.display(), PATIENCE.as_secs());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    let benchmark = |what: &str, requests: u64, keys: u64, rest: &[&str]| {
        let mut command = Command::new("redis-benchmark");
        command.arg("-s").arg(socket).args(["-q", "-t", what]).args(rest);
        command.arg("-n").arg(requests.to_string()).arg("-r").arg(keys.max(1).to_string());
        runs(&mut command)
    };
    let stored = benchmark("set", values * 2, values, &["-d", "1024", "-P", "64"]);
    let began = Instant::now();
    while stored && began.elapsed() < duration && !over.load(Ordering::SeqCst) {
        if !benchmark("get", 20_000, values / 10, &[]) {
            break;
        }
    }
    // It ends the connection, so that redis-cli may call this an error.
    runs(Command::new("redis-cli").arg("-s").arg(socket).args(["shutdown", "nosave"]));
    if !stored {
        bail!("redis-benchmark could not store values in redis-server");
    }
    Ok(())
}

/// Whether a program runs and succeeds; what it prints is not the demo's.
fn runs(command: &mut Command) -> bool {
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

/// Ends the redis-server that is a child of this process, or of the `terrace-research` that is one.
fn end_server() {
    let own = std::process::id().cast_signed();
    let below: Vec<i32> = children(own).into_iter().flat_map(|pid| [vec![pid], children(pid)].concat()).collect();
    for pid in below {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        if let (Some(pid), true) = (Pid::from_raw(pid), name.trim() == REDIS[0]) {
            // If it is gone by now, that is what was wanted.
            let _ = kill_process(pid, Signal::TERM);
        }
    }
}

/// Children of a process; those of its first thread, as these programs start others from no other.
fn children(pid: i32) -> Vec<i32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}
