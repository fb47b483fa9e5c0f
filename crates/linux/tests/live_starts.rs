//! Every start of `accessed-bits` is proven, whatever lies in memory and whatever the machine does meanwhile.
//!
//! Each start is a process of its own, as with every command, since the search for the kernel's map of memory depends on where a process's top
//! table lies. `TERRACE_STARTS` is how many starts run under the storm, 40 without it; `TERRACE_FILL` is the share of the free memory that is
//! filled with a misleading word, 0.6 without it.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use terrace_core::policy::Needs;
use terrace_fixtures::live;
use terrace_linux::doctor::choose_tracker;
use terrace_linux::trackers::accessed_bits::NAME;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// A word that, taken for an entry, is a leaf of 1 GiB a little below the end of memory: starts of the map that are too low by less
/// than that lead to memory by it.
fn misleading(total_bytes: u64) -> u64 {
    (total_bytes.saturating_sub(1) >> 30) << 30 | 0x81
}

/// Free memory that the filler leaves alone, for whatever else runs.
const SPARED: u64 = 3 << 30;

/// One start in a process of its own.
#[derive(Debug)]
struct Start {
    /// Why it was refused, if it was.
    refused: Option<String>,
    /// Wrong starts of the map that led to memory of somebody else and were passed over.
    passed_over: u64,
    /// Tries from the start beyond the first.
    again: u64,
}

fn start() -> Start {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "the_starting_child", "--nocapture"])
        .env("TERRACE_STARTS_CHILD", "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("child:")).collect();
    let number = |line: &&str| line.split_once("passed_over=")?.1.split(' ').next()?.parse::<u64>().ok();
    Start {
        refused: (lines.last() != Some(&"proven")).then(|| format!("{}: {text}", output.status)),
        passed_over: lines.iter().filter_map(number).sum(),
        again: lines.iter().filter(|line| line.contains("once more from the start")).count() as u64,
    }
}

/// Prints what the tracker says of its start.
struct Printer;

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0 += &format!("{}={value:?} ", field.name());
    }
}

impl Subscriber for Printer {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("terrace_")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        println!("child:{}", line.0.replace('\n', " "));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[test]
#[ignore = "a child of the other tests; does nothing without them"]
fn the_starting_child() {
    if std::env::var_os("TERRACE_STARTS_CHILD").is_none() {
        return;
    }
    println!();
    let chosen = tracing::subscriber::with_default(Printer, || {
        choose_tracker(Needs { scans: true, ..Needs::default() }, Some(NAME)).map(|(tracker, _)| tracker.name())
    });
    match chosen {
        Ok(name) => println!("child:{}", if name == NAME { "proven" } else { name }),
        Err(error) => println!("child:refused {error}"),
    }
}

/// Memory that is written with one word, again and again if asked for, until it is dropped.
struct Filler(Child);

impl Filler {
    fn start(bytes: u64, over_and_over: bool) -> Filler {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "the_filling_child", "--nocapture"])
            .env("TERRACE_STARTS_FILLER", format!("{bytes} {over_and_over}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let full = output.lines().map_while(Result::ok).any(|line| line == "child:full");
        assert!(full, "the filler ended before {bytes} bytes were full");
        Filler(child)
    }
}

impl Drop for Filler {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
#[ignore = "a child of the other tests; does nothing without them"]
fn the_filling_child() {
    let Ok(order) = std::env::var("TERRACE_STARTS_FILLER") else { return };
    let (bytes, again) = order.split_once(' ').unwrap();
    let over_and_over = again == "true";
    let bytes: usize = bytes.parse().unwrap();
    // Should the machine run short, this goes first.
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    let word = misleading(meminfo_bytes("MemTotal"));
    let fill = || {
        let mut memory = memmap2::MmapMut::map_anon(bytes).unwrap();
        memory.as_chunks_mut::<8>().0.fill(word.to_ne_bytes());
        memory
    };
    let mut memory = fill();
    println!("\nchild:full");
    // Until the parent is done, or gone.
    let done = std::thread::spawn(|| std::io::stdin().read_to_end(&mut Vec::new()));
    while over_and_over && !done.is_finished() {
        drop(memory);
        memory = fill();
    }
    let _ = done.join();
}

fn meminfo_bytes(name: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

fn from_environment<T: std::str::FromStr>(name: &str, default: T) -> T {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

/// The sum of what was passed over, and how many starts needed a second try, if all were proven.
fn all_proven(starts: &[Start]) -> (u64, usize) {
    let refused: Vec<&String> = starts.iter().filter_map(|start| start.refused.as_ref()).collect();
    assert!(refused.is_empty(), "{} of {} starts were refused: {refused:#?}", refused.len(), starts.len());
    let sum = starts.iter().map(|start| start.passed_over).sum();
    (sum, starts.iter().filter(|start| start.again > 0).count())
}

#[test]
fn starts_beside_memory_full_of_a_misleading_word_are_proven() {
    let name = "starts_beside_memory_full_of_a_misleading_word_are_proven";
    if !live::can_run(name, live::need_root().and(live::need_btf())) {
        return;
    }
    let _machine = live::whole_machine();
    let available = meminfo_bytes("MemAvailable");
    let share: f64 = from_environment("TERRACE_FILL", 0.6);
    let bytes = ((available as f64 * share) as u64).min(available.saturating_sub(SPARED)) >> 21 << 21;
    if bytes < 1 << 30 {
        return live::skipped(name, "needs 4 GiB of free memory to fill 1 GiB of it");
    }
    let filler = Filler::start(bytes, false);
    let starts: Vec<Start> = (0..12).map(|_| start()).collect();
    drop(filler);
    let (passed_over, again) = all_proven(&starts);
    println!(
        "{} starts proven beside {} MiB of the word {:#x}, of {} MiB free: {passed_over} wrong starts led to memory and were passed over; {again} \
         tried more than once",
        starts.len(),
        bytes >> 20,
        misleading(meminfo_bytes("MemTotal")),
        available >> 20
    );
    if passed_over == 0 {
        live::skipped(
            name,
            "the memory that could be filled was too little to mislead any start; TERRACE_FILL=0.85 fills more",
        );
    }
}

/// What goes on while starts are tried; each ends and undoes what it did when the storm is dropped.
struct Storm {
    over: Arc<AtomicBool>,
    threads: Vec<(&'static str, Arc<AtomicU64>, JoinHandle<()>)>,
}

impl Storm {
    fn begin() -> Storm {
        Storm { over: Arc::new(AtomicBool::new(false)), threads: Vec::new() }
    }

    /// Does `once` over and over; it says whether it worked.
    fn add(&mut self, name: &'static str, mut once: impl FnMut() -> bool + Send + 'static) {
        let (over, count) = (Arc::clone(&self.over), Arc::new(AtomicU64::new(0)));
        let counted = Arc::clone(&count);
        let thread = std::thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                if once() {
                    counted.fetch_add(1, Ordering::Relaxed);
                } else {
                    std::thread::sleep(Duration::from_millis(200));
                }
            }
        });
        self.threads.push((name, count, thread));
    }

    /// Ends it, and says how often each thing was done.
    fn end(&mut self) -> String {
        self.over.store(true, Ordering::Relaxed);
        let ended = self.threads.drain(..).map(|(name, count, thread)| {
            thread.join().unwrap_or_else(|_| panic!("{name} failed"));
            format!("{} {name}", count.load(Ordering::Relaxed))
        });
        ended.collect::<Vec<_>>().join(", ")
    }
}

impl Drop for Storm {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        for (_, _, thread) in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// A setting that is as it was when this is dropped.
struct Setting {
    path: PathBuf,
    before: String,
}

impl Setting {
    /// `None` where the kernel has none, or does not let us write it.
    fn of(path: &str) -> Option<Setting> {
        let text = std::fs::read_to_string(path).ok()?;
        let chosen = text.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map(|(chosen, _)| chosen);
        let setting = Setting { path: PathBuf::from(path), before: chosen.unwrap_or(text.trim()).to_owned() };
        setting.set(&setting.before).then_some(setting)
    }

    fn set(&self, value: &str) -> bool {
        std::fs::write(&self.path, value).is_ok()
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        let before = &self.before;
        assert!(self.set(before) || std::thread::panicking(), "{} is not {before} again", self.path.display());
    }
}

/// A zram device that comes, is swapped to, and goes.
fn zram_once() -> bool {
    let Ok(number) = std::fs::read_to_string("/sys/class/zram-control/hot_add") else { return false };
    let number = number.trim().to_owned();
    let device = format!("/dev/zram{number}");
    let run = |program: &str| {
        Command::new(program)
            .arg(&device)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    };
    let there =
        std::fs::write(format!("/sys/block/zram{number}/disksize"), "256M").is_ok() && run("mkswap") && run("swapon");
    std::thread::sleep(Duration::from_millis(50));
    let off = !there || run("swapoff");
    let reset = std::fs::write(format!("/sys/block/zram{number}/reset"), "1").is_ok();
    // It may still be open for a moment, by whatever looks at new devices.
    let gone = (0..100).any(|_| {
        let removed = std::fs::write("/sys/class/zram-control/hot_remove", &number).is_ok();
        if !removed {
            std::thread::sleep(Duration::from_millis(50));
        }
        removed
    });
    assert!(off && reset && gone, "{device} did not go away: off {off}, reset {reset}, gone {gone}");
    there
}

#[test]
fn starts_in_a_row_under_a_storm_are_all_proven() {
    let name = "starts_in_a_row_under_a_storm_are_all_proven";
    if !live::can_run(name, live::need_root().and(live::need_btf())) {
        return;
    }
    let _machine = live::whole_machine();
    let wanted: usize = from_environment("TERRACE_STARTS", 40);
    let pressure = (meminfo_bytes("MemAvailable") / 3).min(6 << 30) >> 21 << 21;
    let _presses = Filler::start(pressure, true);
    let mut storm = Storm::begin();
    storm.add("forks", || Command::new("/bin/true").status().is_ok());
    storm.add("forks beside them", || Command::new("/bin/true").status().is_ok());
    if let Some(huge) = Setting::of("/sys/kernel/mm/transparent_hugepage/enabled") {
        let mut turn = 0;
        storm.add("settings of huge pages", move || {
            turn += 1;
            std::thread::sleep(Duration::from_millis(5));
            huge.set(["always", "never", "madvise"][turn % 3])
        });
    }
    let compact = Path::new("/proc/sys/vm/compact_memory");
    if compact.exists() {
        storm.add("compactions", move || {
            std::thread::sleep(Duration::from_millis(20));
            std::fs::write(compact, "1").is_ok()
        });
    }
    if Path::new("/sys/class/zram-control").exists() {
        storm.add("zram devices", zram_once);
    }
    let began = Instant::now();
    let starts: Vec<Start> = (0..wanted).map(|_| start()).collect();
    let elapsed = began.elapsed();
    let did = storm.end();
    let (passed_over, again) = all_proven(&starts);
    println!(
        "{} of {wanted} starts proven in {:.1} s; {passed_over} wrong starts of the map led to memory and were passed over; {again} starts tried \
         more than once; meanwhile {did}, and {} MiB filled over and over",
        starts.len(),
        elapsed.as_secs_f64(),
        pressure >> 20
    );
}
