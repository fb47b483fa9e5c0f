//! Live tests of the trial of compressors, on the kernel at hand. They need root and zram.
//!
//! In: nothing, or a part of a test's name. Out: one line a test, with the figures; lines that start with SKIPPED say what could not be tried
//! and why. Must not: leave a device behind; each test is followed by a comparison of the zram devices with what they were at the start.
//!
//! It has its own `main`, because the guard starts the running program again, and the children are this program too. One run at a time, as all tests
//! that set up zram. The second pass of compression is not among them: the kernels at hand lack it, so its unit tests use a directory of files.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test program: it speaks, and panics are its failures")]

#[path = "common/swap.rs"]
mod swap;

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Instant;

use memmap2::{Advice, MmapMut};
use terrace_core::units::Bytes;
use terrace_fixtures::live;
use terrace_linux::guard::{GUARD_ARGUMENT, Guard, run_guardian};
use terrace_linux::pagemap::Pagemap;
use terrace_linux::process::{Process, RangeOptions};
use terrace_linux::zram::trial::{CompressorTrial, LEAST_PAGES, MOST_PAGES, Sample, TrialError, choose, try_on};
use terrace_linux::zram::{Compression, ZramOptions, ZramSwap};

/// Makes this program a child with memory of a kind.
const CHILD_ARGUMENT: &str = "__memory";
/// What a child holds: more than is sampled.
const BYTES: usize = 16 << 20;

const TESTS: &[live::LiveTest] = &[
    ("text_compresses_and_noise_does_not", text_compresses_and_noise_does_not),
    ("a_trial_brings_nothing_back_from_swap", a_trial_brings_nothing_back_from_swap),
    ("the_doctor_says_what_there_is", the_doctor_says_what_there_is),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some(GUARD_ARGUMENT) => return ExitCode::from(run_guardian(std::io::stdin())),
        Some(CHILD_ARGUMENT) => return hold(&arguments[1]),
        _ => {}
    }
    live::run("live_compressors", TESTS, || live::need_root().and(swap::need_zram()))
}

/// Bytes from a fixed seed (xorshift64).
fn random() -> impl FnMut() -> u64 {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    }
}

/// The child's side: memory of a kind, until stdin closes.
fn hold(kind: &str) -> ExitCode {
    let mut map = MmapMut::map_anon(BYTES).unwrap();
    map.advise(Advice::NoHugePage).unwrap();
    let mut random = random();
    match kind {
        "noise" => map.as_chunks_mut::<8>().0.iter_mut().for_each(|bytes| *bytes = random().to_ne_bytes()),
        // Lines of a log: words that recur, numbers that do not.
        "text" => {
            let mut text = String::with_capacity(BYTES + 256);
            while text.len() < BYTES {
                let (user, bytes, page) = (random() % 100_000, random() % 1_000_000, random() % 500);
                text.push_str(&format!("user={user} GET /shop/item/{page}.html HTTP/1.1 status=200 bytes={bytes}\n"));
            }
            map.copy_from_slice(&text.as_bytes()[..BYTES]);
        }
        _ => panic!("no memory of kind {kind:?}"),
    }
    println!("ready");
    let _ = std::io::stdin().read(&mut [0]);
    ExitCode::SUCCESS
}

/// A child that ends with this.
struct Holder(Child);

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(kind: &str) -> Holder {
    let mut command = Command::new("/proc/self/exe");
    command.args([CHILD_ARGUMENT, kind]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    Holder(child)
}

/// The trial on a child of a kind; `None` where zram has one compressor only.
fn tried(kind: &str) -> Option<Vec<CompressorTrial>> {
    let child = start(kind);
    let guard = Guard::start().unwrap();
    let began = Instant::now();
    let sample = Sample::of(child.0.id()).unwrap();
    assert!((LEAST_PAGES..=MOST_PAGES).contains(&sample.pages()), "{sample:?}");
    let trials = match try_on(&sample, Some(&guard)) {
        Err(TrialError::NoChoice { offered }) => {
            live::skipped(kind, &format!("zram offers {offered} only"));
            return None;
        }
        trials => trials.unwrap(),
    };
    let took = began.elapsed();
    println!("    {kind}: {} pages in {took:.1?}, {} is taken", sample.pages(), choose(&trials).unwrap().algorithm);
    trials.iter().for_each(|trial| println!("      {trial}"));
    Some(trials)
}

fn text_compresses_and_noise_does_not() {
    let (Some(text), Some(noise)) = (tried("text"), tried("noise")) else { return };
    for trial in &text {
        assert!((1.5..20.0).contains(&trial.ratio), "{trial}");
    }
    for trial in &noise {
        // Noise stays whole; a few pages of the sample are the child's stack and heap.
        assert!((0.99..1.2).contains(&trial.ratio), "{trial}");
    }
    for trial in text.iter().chain(&noise) {
        assert!(trial.write_us_per_page > 0.05 && trial.read_us_per_page > 0.05, "{trial} is faster than a copy");
    }
}

fn a_trial_brings_nothing_back_from_swap() {
    let child = start("text");
    let (_zram, tiers) = swap::zram_tiers(Bytes::mib(64));
    swap::settle(&tiers);
    let process = Process::open(child.0.id()).unwrap();
    let largest = process.ranges(RangeOptions::default()).unwrap();
    let range = *largest.iter().max_by_key(|range| range.end.0 - range.start.0).unwrap();
    let page_out = format!("{} {}", range.start.address(), range.end.address());
    let half = range.start.0 + (range.end.0 - range.start.0) / 2;
    let advice = terrace_linux::sys::RemoteRange {
        address: range.start.address() as usize,
        length: ((half - range.start.0) * 4096) as usize,
    };
    terrace_linux::sys::process_madvise(process.pidfd(), &[advice], libc::MADV_PAGEOUT).unwrap();
    let swapped = || Pagemap::open(child.0.id()).unwrap().count(range.start, range.end).unwrap().swapped_pages;
    let before = swapped();
    assert!(before > 1000, "{before} pages of {page_out} went");
    Sample::of(child.0.id()).unwrap();
    assert_eq!(swapped(), before);
}

fn the_doctor_says_what_there_is() {
    let found = Compression::examine();
    println!("    {}", found.reason);
    let zram = ZramSwap::set_up(&ZramOptions::of_size(Bytes::mib(16)), None).unwrap();
    assert_eq!(found.usual.as_deref(), Some(zram.algorithm()));
    assert!(found.offered.iter().any(|name| name == zram.algorithm()), "{found:?}");
}
