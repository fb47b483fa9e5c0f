//! What moving costs: a child's memory goes to compressed swap and comes back, and the CPU time is split into the
//! kernel's work and Terrace's own.
//!
//! In: `--pages N` (default 65536: 256 MiB), `--rounds N`, `--huge`, `--json`. Out: microseconds a page and CPU-seconds a
//! GiB, in text or JSON. Must not: judge the figures, or leave the zram behind.
//!
//! Run: `cargo run --release -p terrace-linux --example move_cost`. Needs root and zram.

#[path = "../tests/common/patterned.rs"]
mod patterned;

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use patterned::{Mode, Patterned};
use terrace_core::units::{Bytes, TierId, Vpn};
use terrace_linux::guard::{GUARD_ARGUMENT, Guard, run_guardian};
use terrace_linux::movers::{MoveCost, Mover, Movers, PageMove, STALL_DEADLINE};
use terrace_linux::process::Process;
use terrace_linux::topology::{TierMap, Topology};
use terrace_linux::usage::{Who, usage};
use terrace_linux::zram::{ZramOptions, ZramSwap};

/// One way, all rounds together.
#[derive(serde::Serialize)]
struct Figures {
    way: &'static str,
    mapping: &'static str,
    asked_pages: u64,
    moved_pages: u64,
    calls: u64,
    wall_us_per_page: f64,
    kernel_cpu_us_per_page: f64,
    own_cpu_us_per_page: f64,
    own_cpu_seconds_per_gib: f64,
    kernel_cpu_seconds_per_gib: f64,
    longest_call_ms: f64,
}

#[derive(Default)]
struct Sum {
    asked: u64,
    moved: u64,
    wall: Duration,
    user: Duration,
    system: Duration,
    cost: MoveCost,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some(GUARD_ARGUMENT) => return ExitCode::from(run_guardian(std::io::stdin())),
        Some(patterned::CHILD_ARGUMENT) => {
            patterned::run_child(&arguments[1..]);
            return ExitCode::SUCCESS;
        }
        _ => {}
    }
    let number = |name: &str, default: usize| {
        let place = arguments.iter().position(|argument| argument == name);
        place.and_then(|place| arguments.get(place + 1)?.parse().ok()).unwrap_or(default)
    };
    let pages = number("--pages", 65536).next_multiple_of(512);
    let rounds = number("--rounds", 3);
    let huge = arguments.iter().any(|argument| argument == "--huge");
    match measure(pages, rounds, huge) {
        Ok(figures) => {
            let json = arguments.iter().any(|argument| argument == "--json");
            let text = if json { as_json(&figures) } else { as_text(&figures) };
            // A reader that closed the pipe has seen enough.
            let _ = writeln!(std::io::stdout(), "{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "move_cost: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(pages: usize, rounds: usize, huge: bool) -> Result<Vec<Figures>, Box<dyn std::error::Error>> {
    let mut child = Patterned::start(if huge { Mode::Huge } else { Mode::Plain }, pages);
    let guard = Guard::start()?;
    let size = Bytes::of_pages(pages as u64 + 4096);
    let zram = ZramSwap::set_up(&ZramOptions::of_size(size), Some(&guard))?;
    let mut topology = Topology::discover(Path::new("/"))?;
    topology.add_swap_device(Path::new("/"), &zram.device())?;
    let tiers = topology.tier_map()?;
    let swap = tiers.swap_tier().ok_or("no swap tier")?;
    let process = Process::open(child.pid())?;
    let first = child.pieces[0].first;
    let step = if huge { 512 } else { 1 };
    let out: Vec<PageMove> = (0..pages as u64 / step)
        .map(|index| PageMove { vpn: Vpn(first.0 + index * step), pages: step as u32, from: TierId::FAST, to: swap })
        .collect();
    let back: Vec<PageMove> = out.iter().map(|item| PageMove { from: swap, to: TierId::FAST, ..*item }).collect();
    let mut movers = Movers::for_tiers(&tiers, STALL_DEADLINE);
    let (mut going, mut coming) = (Sum::default(), Sum::default());
    for _ in 0..rounds {
        run(&mut movers, &process, &out, &tiers, &mut going)?;
        run(&mut movers, &process, &back, &tiers, &mut coming)?;
    }
    let answer = child.check();
    if answer != "intact" {
        return Err(format!("the child's memory is not as it was: {answer}").into());
    }
    zram.tear_down()?;
    // After the first round a huge mapping has come back as small pages.
    let mapping = if huge { "huge at first" } else { "4 KiB" };
    Ok(vec![going.figures("out", mapping), coming.figures("back", mapping)])
}

fn run(
    movers: &mut Movers,
    process: &Process,
    moves: &[PageMove],
    tiers: &TierMap,
    sum: &mut Sum,
) -> Result<(), Box<dyn std::error::Error>> {
    // In pieces of 64 MiB, as plans come, so that the results' memory is no part of the cost.
    let mut results = Vec::with_capacity(16384);
    for part in moves.chunks(16384) {
        results.clear();
        let (user, system) = cpu_time();
        let started = Instant::now();
        let cost = movers.execute(process, part, tiers, &mut results);
        sum.wall += started.elapsed();
        let (user_after, system_after) = cpu_time();
        sum.user += user_after.saturating_sub(user);
        sum.system += system_after.saturating_sub(system);
        sum.asked += part.iter().map(|item| u64::from(item.pages)).sum::<u64>();
        sum.moved += results.iter().map(|result| u64::from(result.done)).sum::<u64>();
        sum.cost.add(&cost);
    }
    if process.is_alive() { Ok(()) } else { Err("the child ended early".into()) }
}

/// User and system time of this process. The kernel splits them by ticks, so only a run of seconds says something.
fn cpu_time() -> (Duration, Duration) {
    let usage = usage(Who::Myself);
    (Duration::from_secs_f64(usage.user_seconds), Duration::from_secs_f64(usage.system_seconds))
}

impl Sum {
    fn figures(&self, way: &'static str, mapping: &'static str) -> Figures {
        let moved = self.moved.max(1) as f64;
        let gib = moved * 4096.0 / f64::from(1 << 30);
        Figures {
            way,
            mapping,
            asked_pages: self.asked,
            moved_pages: self.moved,
            calls: self.cost.calls,
            wall_us_per_page: self.wall.as_secs_f64() * 1e6 / moved,
            kernel_cpu_us_per_page: self.system.as_secs_f64() * 1e6 / moved,
            own_cpu_us_per_page: self.user.as_secs_f64() * 1e6 / moved,
            own_cpu_seconds_per_gib: self.user.as_secs_f64() / gib,
            kernel_cpu_seconds_per_gib: self.system.as_secs_f64() / gib,
            longest_call_ms: self.cost.longest_call.as_secs_f64() * 1e3,
        }
    }
}

fn as_json(figures: &[Figures]) -> String {
    serde_json::to_string_pretty(figures).unwrap_or_default()
}

fn as_text(figures: &[Figures]) -> String {
    let mut text = String::from(
        "way   mapping        pages moved of asked  calls  wall us/page  kernel us/page  own us/page  own CPU s/GiB  longest call ms",
    );
    for row in figures {
        text += &format!(
            "\n{:<5} {:<13} {:>10} {:>9} {:>6} {:>13.2} {:>15.2} {:>12.3} {:>14.4} {:>16.1}",
            row.way,
            row.mapping,
            row.moved_pages,
            row.asked_pages,
            row.calls,
            row.wall_us_per_page,
            row.kernel_cpu_us_per_page,
            row.own_cpu_us_per_page,
            row.own_cpu_seconds_per_gib,
            row.longest_call_ms
        );
    }
    text
}
