//! What reading and clearing accessed bits costs, in nanoseconds a 4 KiB page.
//!
//! In: sizes, such as `1GiB 4GiB 8GiB`, and `--json`. Out: a line a size and kind of page, medians of several rounds.
//! The target is a child of this program that touches all its memory before each clearing. Must not: judge; times
//! depend on the machine and on what else runs.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use terrace_core::observation::PteState;
use terrace_core::units::{Bytes, SpaceId, Time, Vpn};
use terrace_linux::process::{Backing, MemoryRange, Process};
use terrace_linux::topology::TierMap;
use terrace_linux::trackers::accessed_bits::{AccessedBits, TimeSpent};
use terrace_linux::trackers::{Event, Round, Sink, Target, Tracker};

/// Clearing rounds a size, each after the child touched everything; the median counts.
const ROUNDS: usize = 7;
const PAGE: usize = 4096;

#[derive(serde::Serialize)]
struct Row {
    size_bytes: u64,
    page_bytes: u64,
    /// Copying the page tables, nothing else.
    read_ns_per_page: f64,
    /// Turning the copies into PTE states and handing them over.
    translate_ns_per_page: f64,
    /// Clearing when every page had been used.
    clear_ns_per_page: f64,
    /// A whole round without any clearing.
    round_ms_reading: f64,
    /// A whole round in which everything was cleared.
    round_ms_clearing: f64,
    /// The longest clearing of one window of 256 MiB.
    longest_clear_ms: f64,
    /// What one touch of a page costs the child more after its bit was cleared.
    target_ns_per_cleared_page: f64,
    /// Most pages in a round that were used and not seen as used: another clearer of accessed bits was faster (DAMON).
    missed_pages: u64,
    /// Resident memory of this process after the rounds.
    tracker_rss_bytes: u64,
}

#[derive(Default)]
struct Count {
    present: u64,
    accessed: u64,
    huge: u64,
}

impl Sink for Count {
    fn scan(&mut self, _: SpaceId, _: Vpn, ptes: &[PteState], _: Option<Duration>, _: bool) {
        for pte in ptes {
            self.present += u64::from(pte.tier().is_some());
            self.accessed += u64::from(pte.accessed());
            self.huge += u64::from(pte.huge());
        }
    }

    fn event(&mut self, _: SpaceId, _: Vpn, _: Event) {}
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.first().map(String::as_str) {
        Some("child") => child(&arguments[1..]),
        _ => measure(&arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "track_cost: {error}");
            ExitCode::FAILURE
        }
    }
}

type Failure = Box<dyn std::error::Error>;

fn measure(arguments: &[String]) -> Result<(), Failure> {
    let json = arguments.iter().any(|argument| argument == "--json");
    let sizes = arguments.iter().filter(|argument| *argument != "--json");
    let sizes: Vec<Bytes> = sizes.map(|size| size.parse()).collect::<Result<_, _>>()?;
    let mut rows = Vec::new();
    let mut out = std::io::stdout();
    if !json {
        writeln!(
            out,
            "{:>8} {:>6} {:>8} {:>10} {:>8} {:>10} {:>11} {:>11} {:>12} {:>8} {:>8}",
            "size",
            "pages",
            "read ns",
            "translate",
            "clear ns",
            "round ms",
            "+clear ms",
            "longest ms",
            "target ns",
            "missed",
            "RSS"
        )?;
    }
    for size in if sizes.is_empty() { vec![Bytes::gib(1)] } else { sizes } {
        for huge in [false, true] {
            let row = measure_one(size, huge)?;
            if !json {
                writeln!(
                    out,
                    "{:>8} {:>6} {:>8.3} {:>10.3} {:>8.2} {:>10.3} {:>11.2} {:>11.2} {:>12.1} {:>8} {:>8}",
                    size.to_string(),
                    if huge { "2MiB" } else { "4KiB" },
                    row.read_ns_per_page,
                    row.translate_ns_per_page,
                    row.clear_ns_per_page,
                    row.round_ms_reading,
                    row.round_ms_clearing,
                    row.longest_clear_ms,
                    row.target_ns_per_cleared_page,
                    row.missed_pages,
                    Bytes::new(row.tracker_rss_bytes).to_string(),
                )?;
            }
            rows.push(row);
        }
    }
    if json {
        writeln!(out, "{}", serde_json::to_string_pretty(&rows)?)?;
    }
    Ok(())
}

fn measure_one(size: Bytes, huge: bool) -> Result<Row, Failure> {
    let mut child = Command::new(std::env::current_exe()?)
        .args(["child", &size.pages().to_string(), &huge.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let (mut orders, answers) = (child.stdin.take().ok_or("no pipe")?, child.stdout.take().ok_or("no pipe")?);
    let mut answers = BufReader::new(answers).lines();
    let mut answer = move || -> Result<u64, Failure> { Ok(answers.next().ok_or("the child ended")??.parse()?) };
    let start = Vpn::of_address(answer()?);
    let process = Process::open(child.id())?;
    let ranges = [MemoryRange { start, end: Vpn(start.0 + size.pages()), backing: Backing::Anonymous }];
    let targets = [Target { space: SpaceId(0), process: &process, ranges: &ranges }];
    let tiers = TierMap::new(Vec::new(), Vec::new());
    let mut tracker = AccessedBits::open()?;
    let pages = size.pages() as f64;
    let mut run = |share: f64| -> Result<(TimeSpent, Duration, Count), Failure> {
        let (before, began, mut count) = (tracker.time_spent(), Instant::now(), Count::default());
        tracker.scan(&Round { now: Time::ZERO, targets: &targets, tiers: &tiers, share }, &mut count)?;
        let (after, elapsed) = (tracker.time_spent(), began.elapsed());
        let spent = TimeSpent {
            reading: after.reading - before.reading,
            clearing: after.clearing - before.clearing,
            translating: after.translating - before.translating,
            longest_clear: after.longest_clear,
        };
        Ok((spent, elapsed, count))
    };
    let nanos = |duration: Duration| duration.as_nanos() as f64;
    let (mut read, mut translate, mut idle_round) = (Vec::new(), Vec::new(), Vec::new());
    let (mut clear, mut clear_round, mut longest) = (Vec::new(), Vec::new(), 0.0f64);
    let (mut touch_set, mut touch_cleared) = (Vec::new(), Vec::new());
    let mut missed = 0;
    let mut touch = || -> Result<f64, Failure> {
        writeln!(orders, "touch")?;
        Ok(answer()? as f64)
    };
    touch()?;
    for _ in 0..ROUNDS {
        let (spent, elapsed, count) = run(0.0)?;
        if count.present != size.pages() || huge != (count.huge * 2 > size.pages()) {
            return Err(format!("{} of {pages} pages are there, {} of them huge", count.present, count.huge).into());
        }
        read.push(nanos(spent.reading) / pages);
        translate.push(nanos(spent.translating) / pages);
        idle_round.push(nanos(elapsed) / 1e6);
        touch_set.push(touch()?);
        let (spent, elapsed, count) = run(1.0)?;
        missed = missed.max(size.pages() - count.accessed);
        clear.push(nanos(spent.clearing) / pages);
        clear_round.push(nanos(elapsed) / 1e6);
        longest = longest.max(nanos(spent.longest_clear) / 1e6);
        touch_cleared.push(touch()?);
    }
    child.kill()?;
    child.wait()?;
    let resident = Process::open(std::process::id())?.stat()?.resident;
    Ok(Row {
        size_bytes: size.get(),
        page_bytes: if huge { 2 << 20 } else { 4096 },
        read_ns_per_page: median(&mut read),
        translate_ns_per_page: median(&mut translate),
        clear_ns_per_page: median(&mut clear),
        round_ms_reading: median(&mut idle_round),
        round_ms_clearing: median(&mut clear_round),
        longest_clear_ms: longest,
        target_ns_per_cleared_page: (median(&mut touch_cleared) - median(&mut touch_set)) / pages,
        missed_pages: missed,
        tracker_rss_bytes: resident.get(),
    })
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Maps memory, says where, and touches all of it at each order, answering with the nanoseconds that took.
fn child(arguments: &[String]) -> Result<(), Failure> {
    let [pages, huge] = arguments else { return Err("child needs a number of pages and a kind".into()) };
    let pages: usize = pages.parse()?;
    let mut memory = memmap2::MmapMut::map_anon((pages + 512) * PAGE)?;
    let skip = (memory.as_ptr() as usize).next_multiple_of(512 * PAGE) - memory.as_ptr() as usize;
    memory.advise(if huge == "true" { memmap2::Advice::HugePage } else { memmap2::Advice::NoHugePage })?;
    for page in 0..pages {
        memory[skip + page * PAGE] = 1;
    }
    let mut out = std::io::stdout();
    writeln!(out, "{}", memory.as_ptr() as usize + skip)?;
    for order in std::io::stdin().lines() {
        order?;
        let began = Instant::now();
        let mut sum = 0u64;
        for page in 0..pages {
            sum = sum.wrapping_add(u64::from(memory[skip + page * PAGE]));
        }
        std::hint::black_box(sum);
        writeln!(out, "{}", began.elapsed().as_nanos())?;
    }
    Ok(())
}
