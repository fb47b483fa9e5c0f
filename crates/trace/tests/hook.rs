//! The recorder for programs that can be recompiled: compiled, linked, run, and counted.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)] // These tests run a compiler and read what a program wrote.

mod common;

use std::path::Path;
use std::process::Command;

use common::accesses;
use terrace_trace::hook::{RECORDER_COMPILE_FLAGS, RECORDER_FILE_NAME, RECORDER_SOURCE, flags};
use terrace_trace::import::{ImportFormat, ImportOptions, import};
use terrace_trace::{Access, Provenance, Reader};

/// Global arrays, so that addresses come from the program and not from an allocator; one line apart from each other.
const PROGRAM: &str = r#"
#include <pthread.h>
#include <string.h>
#define ALIGNED __attribute__((aligned(4096)))
static ALIGNED long table[1024];
static ALIGNED _Atomic int counter;
#ifdef __x86_64__
static ALIGNED _Atomic unsigned __int128 pair;
#endif
static ALIGNED char from[8192], to[8192];
static ALIGNED volatile short flag;
static void *work(void *argument) {
    for (int i = 0; i < 1000; i++) counter++;
    return argument;
}
int main(void) {
    pthread_t thread;
    volatile long *cells = table;
    for (int i = 0; i < 1024; i++) cells[i] = i;
    long sum = 0;
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < 1024; i++) sum += cells[i];
    if (pthread_create(&thread, 0, work, 0)) return 2;
    work(0);
    pthread_join(thread, 0);
    volatile size_t length = 8192;
    memset(from, 7, length);
    memcpy(to, from, length);
    flag = 1;
#ifdef __x86_64__
    pair = ((unsigned __int128)1 << 64) | 2;
    unsigned __int128 old = pair;
    if ((long)(old >> 64) != 1 || (long)old != 2) return 3;
#endif
    return counter == 2000 && sum == 1023 * 1024 && to[8191] == 7 ? 0 : 1;
}
"#;

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{text}", output.status);
}

/// Builds the program with the flags we hand out; `None` where the compiler is missing.
fn build(compiler: &str, directory: &Path) -> Option<std::path::PathBuf> {
    if Command::new(compiler).arg("--version").output().is_err() {
        eprintln!("SKIPPED there is no {compiler} here");
        return None;
    }
    let path = |name: &str| directory.join(name);
    std::fs::write(path(RECORDER_FILE_NAME), RECORDER_SOURCE).unwrap();
    std::fs::write(path("program.c"), PROGRAM).unwrap();
    let recorder = path("recorder.o");
    run(Command::new(compiler)
        .args(RECORDER_COMPILE_FLAGS)
        .args(["-Wall", "-Wextra", "-Werror"])
        .arg(path(RECORDER_FILE_NAME))
        .arg("-o")
        .arg(&recorder));
    let flags = flags(recorder.to_str().unwrap());
    run(Command::new(compiler)
        .args(&flags.compile)
        .args(["-O1", "-fno-pie", "-c"])
        // clang hands 16-byte atomics over only where it may use the instruction for them.
        .args(cfg!(target_arch = "x86_64").then_some("-mcx16"))
        .arg(path("program.c"))
        .arg("-o")
        .arg(path("program.o")));
    // The compile flags stand on the link line too, as they do in most Makefiles.
    run(Command::new(compiler)
        .args(&flags.compile)
        .args(["-no-pie"])
        .arg(path("program.o"))
        .arg("-o")
        .arg(path("program"))
        .args(&flags.link));
    Some(path("program"))
}

fn record(program: &Path, cache: Option<&str>) -> Vec<u8> {
    let file = program.with_extension("recording");
    let mut command = Command::new(program);
    command.env("TERRACE_RECORD", &file);
    if let Some(cache) = cache {
        command.env("TERRACE_RECORD_CACHE", cache);
    }
    run(&mut command);
    std::fs::read(file).unwrap()
}

/// Reads and writes in the pages from `symbol` on; addresses come from the program's symbol table.
fn counts(trace: &[u8], program: &Path, symbol: &str, bytes: u64) -> (u64, u64) {
    let symbols = Command::new("nm").arg(program).output().unwrap();
    let symbols = String::from_utf8(symbols.stdout).unwrap();
    let line =
        symbols.lines().find(|line| line.ends_with(&format!(" {symbol}"))).expect("the symbol is in the program");
    let start = u64::from_str_radix(line.split(' ').next().unwrap(), 16).unwrap();
    let mut reader = Reader::new(trace).unwrap();
    while reader.fill(&mut [Access::default(); 512]).unwrap() > 0 || reader.take_event().is_some() {}
    let within = |access: &&Access| {
        let address = reader.map().address(access.page()).unwrap();
        (start..start + bytes).contains(&address)
    };
    let all = accesses(trace);
    let writes = all.iter().filter(within).filter(|access| access.is_write()).count() as u64;
    (all.iter().filter(within).count() as u64 - writes, writes)
}

fn check(compiler: &str) {
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = build(compiler, directory.path()) else { return };
    run(Command::new(&program).env_remove("TERRACE_RECORD"));

    let recording = record(&program, None);
    let mut trace = Vec::new();
    let report = import(&ImportFormat::Hook, recording.as_slice(), &mut trace, &ImportOptions::default()).unwrap();
    assert!(report.skipped.is_empty(), "{:?}", report.skipped);
    let reader = Reader::new(trace.as_slice()).unwrap();
    assert_eq!(reader.header().provenance, Provenance::Exact);
    let count = |symbol, bytes| counts(&trace, &program, symbol, bytes);
    assert_eq!(count("table", 8192), (2048, 1024));
    assert_eq!(count("counter", 4), (1, 2000), "a read-modify-write counts as a write, the last check as a read");
    assert_eq!(count("flag", 2), (0, 1));
    if cfg!(target_arch = "x86_64") {
        assert_eq!(count("pair", 16), (1, 1));
    }
    assert_eq!(count("from", 8192), (128, 128), "copies count once for each line");
    assert_eq!(count("to", 8192), (1, 128));
    let threads = accesses(&trace).iter().map(|access| access.thread().0).max();
    assert_eq!(threads, Some(1));
    let mut named = Reader::new(trace.as_slice()).unwrap();
    while named.fill(&mut [Access::default(); 512]).unwrap() > 0 {}
    assert!(named.map().regions().iter().any(|region| region.name.ends_with("/program")));

    // A cache of 4 KiB has 64 lines: the table's 128 lines miss in every round, but each only once a line.
    let recording = record(&program, Some("4K"));
    let mut trace = Vec::new();
    import(&ImportFormat::Hook, recording.as_slice(), &mut trace, &ImportOptions::default()).unwrap();
    let reader = Reader::new(trace.as_slice()).unwrap();
    assert_eq!(reader.header().provenance, Provenance::Filtered { cache_bytes: 4096 });
    assert_eq!(counts(&trace, &program, "table", 8192), (256, 128));

    // A program that was killed leaves a recording that ends anywhere; what is whole is kept.
    let whole = record(&program, None);
    let options = ImportOptions { keep_whole_prefix: true, ..ImportOptions::default() };
    for end in (40..whole.len()).step_by(whole.len() / 50) {
        let mut trace = Vec::new();
        let report = import(&ImportFormat::Hook, &whole[..end], &mut trace, &options).unwrap();
        let got = accesses(&trace);
        assert_eq!(got.len() as u64, report.summary.accesses);
        assert!(report.damage.is_some() || end == 40, "cut at {end}");
    }
}

#[test]
fn a_program_built_with_gcc_is_recorded_exactly() {
    check("gcc");
}

#[test]
fn a_program_built_with_clang_is_recorded_exactly() {
    check("clang-14");
}
