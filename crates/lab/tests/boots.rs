//! Boots stock kernels and lets Terrace manage real memory nodes in them: the scenarios of `lab/scenarios` that CI runs.
//!
//! All of it takes an hour of a processor: it runs when TERRACE_LAB=1 (`make check-all`). With CI=true, as each landing has it, two guests boot.
//! It needs QEMU, a Debian archive and the built command.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use terrace_lab::{Cache, Kernel, Lab, LabError, Machine, Mode, Scenario, ScenarioReport};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The tests that each landing runs: tiers are seen, and pages move between real nodes.
const AT_EACH_LANDING: [&str; 2] =
    ["terrace_sees_the_tiers_of_stock_kernels", "terrace_manages_real_nodes_and_does_the_same_each_time"];

/// The laboratory, or why there is none here.
fn lab(test: &str, mode: Mode) -> Result<Lab, String> {
    let wanted = |name: &str, value: &str| std::env::var(name).is_ok_and(|given| given == value);
    let lands = wanted("CI", "true") && AT_EACH_LANDING.contains(&test);
    if !lands && !wanted("TERRACE_LAB", "1") {
        return Err("takes minutes: set TERRACE_LAB=1 to run it (make check-all does)".to_owned());
    }
    terrace_lab::qemu_version().map_err(|error| error.to_string())?;
    let terrace = match std::env::var_os("TERRACE_BINARY") {
        Some(path) => PathBuf::from(path),
        None => root().join("target/release/terrace"),
    };
    if !terrace.exists() {
        return Err(format!("there is no {}: `make build`", terrace.display()));
    }
    let cache = Cache::of_user().map_err(|error| error.to_string())?;
    Ok(Lab { cache, terrace, mode, refresh: false, keep: None })
}

/// Fetches the kernel first: without a network that is a reason to skip, while everything after it must work.
fn kernel(lab: &Lab, version: &str) -> Result<Kernel, String> {
    lab.cache.busybox().map_err(|error| error.to_string())?;
    lab.cache.kernel(version, false).map_err(|error| error.to_string())
}

fn ready(test: &str, mode: Mode, version: &str) -> Option<Lab> {
    match lab(test, mode).and_then(|lab| kernel(&lab, version).map(|_| lab)) {
        Ok(lab) => Some(lab),
        Err(reason) => {
            println!("SKIPPED {test}: {}", reason.lines().next().unwrap_or_default());
            None
        }
    }
}

fn passes(lab: &Lab, scenario: &str, version: &str) -> ScenarioReport {
    let mut scenario = Scenario::read(&root().join("lab/scenarios").join(scenario).with_extension("toml")).unwrap();
    // Cargo starts tests in the crate's folder.
    scenario.module_sources.iter_mut().for_each(|source| *source = root().join(&*source));
    scenario.files.iter_mut().for_each(|file| file.host = root().join(&file.host).to_string_lossy().into_owned());
    let report = lab.run(&scenario, Some(version)).unwrap();
    println!(
        "{} on {}: boot {:.1} s, {:.1} s in all, {:?}",
        report.scenario, report.release, report.boot_seconds, report.wall_seconds, report.figures
    );
    let failed: Vec<_> = report.assertions.iter().filter(|assertion| !assertion.passed).collect();
    assert!(report.passed, "{failed:#?}\n{}", report.console_tail.unwrap_or_default());
    report
}

#[test]
fn terrace_sees_the_tiers_of_stock_kernels() {
    for version in ["6.12", "6.1"] {
        let Some(lab) = ready("terrace_sees_the_tiers_of_stock_kernels", Mode::Deterministic, version) else { return };
        passes(&lab, "topology", version);
    }
}

#[test]
fn terrace_manages_real_nodes_and_does_the_same_each_time() {
    let Some(lab) = ready("terrace_manages_real_nodes_and_does_the_same_each_time", Mode::Deterministic, "6.12") else {
        return;
    };
    let first = passes(&lab, "cold-leaves", "6.12");
    let again = passes(&lab, "cold-leaves", "6.12");
    assert_eq!(
        first.values["run"]["moved_pages"], again.values["run"]["moved_pages"],
        "instruction-counted time is reproducible"
    );
    assert_eq!(first.guest_seconds, again.guest_seconds);
}

#[test]
fn memory_that_a_policy_placed_stays() {
    // Time by instructions: on a busy machine a guest of wall time would look at a program that has ended.
    let Some(lab) = ready("memory_that_a_policy_placed_stays", Mode::Deterministic, "6.12") else { return };
    passes(&lab, "bound-stays", "6.12");
}

#[test]
fn a_file_read_once_leaves_its_cgroup() {
    let Some(lab) = ready("a_file_read_once_leaves_its_cgroup", Mode::Deterministic, "6.12") else { return };
    passes(&lab, "file-cache", "6.12");
}

#[test]
fn hint_faults_are_seen_and_promote() {
    let Some(lab) = ready("hint_faults_are_seen_and_promote", Mode::Deterministic, "6.12") else { return };
    passes(&lab, "hint-faults", "6.12");
}

#[test]
fn the_kernel_module_is_built_loads_and_leaves() {
    let Some(lab) = ready("the_kernel_module_is_built_loads_and_leaves", Mode::Fast, "6.12") else { return };
    passes(&lab, "module", "6.12");
}

/// Whether a test program of another crate is there: a run of all tests has built them, a run of this crate's alone may not have.
fn built(test: &str, program: &str) -> bool {
    let deps = std::fs::read_dir(root().join("target/debug/deps")).into_iter().flatten().flatten();
    let found =
        deps.map(|entry| entry.file_name()).any(|file| file.to_string_lossy().starts_with(&format!("{program}-")));
    if !found {
        println!("SKIPPED {test}: {program} is not built: `cargo test -p terrace-linux --no-run`");
    }
    found
}

#[test]
fn the_module_sees_what_a_virtual_machine_uses() {
    let name = "the_module_sees_what_a_virtual_machine_uses";
    let Some(lab) = ready(name, Mode::Deterministic, "6.12") else { return };
    if !built(name, "live_walker") {
        return;
    }
    let made = Command::new("make").arg("-C").arg(root()).arg("target/lab/kvm-guest").status().unwrap();
    assert!(made.success());
    passes(&lab, "virtual-machine", "6.12");
}

#[test]
fn the_module_orders_the_kernel_s_lists_and_withstands_a_fuzzer() {
    let name = "the_module_orders_the_kernel_s_lists_and_withstands_a_fuzzer";
    // In one emulation thread: with several, a stock kernel that switches a tracepoint may die of it (kmod/README.md).
    let Some(lab) = ready(name, Mode::Deterministic, "6.12") else { return };
    if !built(name, "live_lists") {
        return;
    }
    passes(&lab, "lists", "6.12");
}

#[test]
fn a_guest_that_hangs_or_dies_is_an_error_with_its_console() {
    let Some(lab) = ready("a_guest_that_hangs_or_dies_is_an_error_with_its_console", Mode::Fast, "6.1") else { return };
    let scenario = |run: &str| {
        let text = format!(
            "description = \"x\"\nkernels = [\"6.1\"]\ntime_limit = \"20s\"\n[[steps]]\nname = \"end\"\nrun = {run:?}\n"
        );
        Scenario::parse("end", &text).unwrap()
    };
    match lab.run(&scenario("echo now it hangs; sleep 1000"), None) {
        Err(LabError::TimeLimit { limit, tail }) => {
            assert_eq!(limit, Duration::from_secs(20));
            assert!(tail.contains("now it hangs"), "{tail}");
        }
        other => panic!("expected a time limit: {other:?}"),
    }
    match lab.run(&scenario("echo c >/proc/sysrq-trigger"), None) {
        Err(LabError::Guest { what, tail }) => {
            assert!(what.contains("first step") && tail.contains("sysrq"), "{what}\n{tail}");
        }
        other => panic!("expected a dead guest: {other:?}"),
    }
    let report = lab.run(&scenario("echo some reason; exit 3"), None).unwrap();
    assert!(!report.passed && report.steps[0].exit == 3 && report.console_tail.unwrap().contains("some reason"));
    let error = lab.boot(&Machine { cpus: 99, ..Machine::default() }, "6.1", &[], Duration::from_secs(9)).unwrap_err();
    assert!(error.to_string().contains("99 processors"), "{error}");
}
