//! What the live tests share: the question whether this machine lets them run at all, and how they are run where they have their own
//! `main`.
// Each test binary uses a part of it, and the output lists skipped tests.
#![allow(dead_code, clippy::print_stdout)]

use std::fmt::Debug;
use std::process::ExitCode;
use std::time::Instant;

/// A live test: its name, and what is done; it fails by a panic.
pub(crate) type LiveTest = (&'static str, fn());

/// Runs the tests whose names contain the first word of the command line, one after another. `ready` says why not and returns
/// `None` where they cannot run here; what it returns is held until the last one is over. `state` is what each must leave as it was.
pub(crate) fn run_live_tests<H, S: PartialEq + Debug>(
    tests: &[LiveTest],
    ready: impl FnOnce() -> Option<H>,
    state: impl Fn() -> S,
) -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--list") {
        tests.iter().for_each(|(name, _)| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    let Some(_held) = ready() else { return ExitCode::SUCCESS };
    let filter = arguments.iter().find(|argument| !argument.starts_with('-'));
    let passes = |test: &fn()| {
        let before = state();
        let ended = std::panic::catch_unwind(test);
        let after = state();
        if after != before {
            println!("left behind: {after:?} instead of {before:?}");
        }
        ended.is_ok() && after == before
    };
    let (mut passed, mut failed, mut flaky) = (0, 0, 0);
    for (name, test) in tests {
        if filter.is_some_and(|filter| !name.contains(filter.as_str())) {
            continue;
        }
        let began = Instant::now();
        // The machine's other work can make a live test fail. One that fails runs once more, which tells the two kinds apart; the first
        // failure is printed, and `scripts/test` fails for it as well.
        let first = passes(test);
        let good = first || passes(test);
        passed += u32::from(good);
        failed += u32::from(!good);
        flaky += u32::from(good && !first);
        let outcome = match (first, good) {
            (true, _) => "ok",
            (false, true) => "ok at the second try (FLAKY: the first failed as told above)",
            (false, false) => "FAILED",
        };
        println!("test {name} ... {outcome} ({:.2} s)", began.elapsed().as_secs_f64());
    }
    println!("test result: {passed} passed, {failed} failed, {flaky} flaky");
    ExitCode::from(u8::from(failed > 0))
}

/// The lock of all tests that need the machine's swap, or compare settings of the whole machine; held until it is dropped.
pub(crate) fn whole_machine() -> std::fs::File {
    let path = std::env::temp_dir().join("terrace-live-swap.lock");
    let lock = std::fs::File::create(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    lock.lock().unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    lock
}

/// Prints why a test did not run, in the form that CI counts.
pub(crate) fn skipped(test: &str, reason: &str) {
    println!("SKIPPED {test}: {reason}");
}

/// Whether the test may run: root with all it needs. If not, says so.
pub(crate) fn need_root(test: &str) -> bool {
    let root = capabilities().is_some_and(|held| held & CAP_SYS_ADMIN != 0);
    if !root {
        skipped(test, "needs root (CAP_SYS_ADMIN)");
    }
    root
}

/// Whether the kernel describes its types, which the eBPF programs need. If not, says so.
pub(crate) fn need_btf(test: &str) -> bool {
    let there = std::path::Path::new("/sys/kernel/btf/vmlinux").exists();
    if !there {
        skipped(test, "needs a kernel with BTF (/sys/kernel/btf/vmlinux)");
    }
    there
}

/// CAP_SYS_ADMIN as a bit of /proc/self/status (linux/capability.h).
const CAP_SYS_ADMIN: u64 = 1 << 21;

fn capabilities() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let held = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(held.trim(), 16).ok()
}
