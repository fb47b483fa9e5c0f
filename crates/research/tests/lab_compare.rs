//! `terrace lab compare` with a small program: what an evaluator runs to see who serves more from fast memory; and memtierd in a guest.
//!
//! They boot guests, so they run when TERRACE_LAB=1; they need QEMU, its plugin and a Debian archive, the other one memtierd as well.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::path::{Path, PathBuf};
use std::process::Command;

use terrace_lab::compare::Manager;

mod common;
use common::no_guest;

const KERNEL: &str = "6.12";

/// Plugin and command, unless something is missing.
fn ready(test: &str) -> Option<(PathBuf, PathBuf)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    let plugin = root.join("qemu-plugin/target/release/libterrace_qemu_plugin.so");
    let terrace = root.join("target/release/terrace");
    let numactl = || (!Path::new("/usr/bin/numactl").exists()).then(|| "numactl is not installed".to_owned());
    match no_guest(&plugin, &terrace, KERNEL).or_else(numactl) {
        None => Some((plugin, terrace)),
        Some(reason) => {
            println!("SKIPPED {test}: {}", reason.lines().next().unwrap_or_default());
            None
        }
    }
}

/// The rows of one small program under these managers.
fn rows(plugin: &Path, terrace: &Path, operations: &str, managers: &str) -> Vec<serde_json::Value> {
    let output = Command::new(terrace)
        .args(["lab", "compare", "--kernel", KERNEL, "--workload", "hot-cold", "--size", "32MiB", "--fast", "40%"])
        .args(["--operations", operations, "--managers", managers, "--json"])
        .env("TERRACE_QEMU_PLUGIN", plugin)
        .env("TERRACE_BINARY", terrace)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    report["rows"].as_array().unwrap().clone()
}

#[test]
fn a_scattered_hot_set_is_served_fast_under_terrace_and_not_without() {
    let Some((plugin, terrace)) = ready("a_scattered_hot_set_is_served_fast") else { return };
    let rows = rows(&plugin, &terrace, "4000000", "none,terrace:age");
    let row = |manager: &str| rows.iter().find(|row| row["manager"] == manager).unwrap();
    let late = |manager: &str| row(manager)["fast_hit_share_late"].as_f64().unwrap();
    println!("late fast share: {:.2} under nobody, {:.2} under Terrace", late("none"), late("terrace"));
    // A quarter of the pages is hot and 40 % of the memory is fast: first touch serves about that share from fast memory, a policy that
    // knows the hot pages nearly all.
    assert!((0.25..0.55).contains(&late("none")), "{rows:#?}");
    assert!(late("terrace") > late("none") + 0.2, "{rows:#?}");
    // All of it is counted by the plugin, for both alike; an access that faults is tried again.
    let accesses = |manager: &str| row(manager)["accesses"].as_f64().unwrap();
    assert!((accesses("none") / accesses("terrace") - 1.0).abs() < 0.001, "{rows:#?}");
    assert!(row("terrace")["promoted_pages"].as_u64().unwrap() > 500, "{rows:#?}");
}

#[test]
fn memtierd_sees_the_program_by_damon_and_moves_its_pages() {
    let Some((plugin, terrace)) = ready("memtierd_sees_the_program_by_damon") else { return };
    if let Err(error) = Manager::parse("memtierd").unwrap().check() {
        println!("SKIPPED memtierd_sees_the_program_by_damon: {error}");
        return;
    }
    let rows = rows(&plugin, &terrace, "4000000", "none,memtierd");
    let number = |manager: &str, key: &str| {
        let row = rows.iter().find(|row| row["manager"] == manager).unwrap();
        row[key].as_f64().unwrap()
    };
    // It knew the program's memory, moved some of it, and had to work for that.
    let moved = number("memtierd", "promoted_pages") + number("memtierd", "demoted_pages");
    assert!(moved > 100.0, "{rows:#?}");
    assert!(number("memtierd", "manager_cpu_seconds") > number("none", "manager_cpu_seconds"), "{rows:#?}");
    // What memtierd and bpftrace access themselves is not taken for the program's.
    assert!((number("none", "accesses") / number("memtierd", "accesses") - 1.0).abs() < 0.001, "{rows:#?}");
}

#[test]
fn a_program_of_the_host_is_brought_along_and_counted_with_its_children() {
    let Some((plugin, terrace)) = ready("a_program_of_the_host_is_brought_along") else { return };
    // A shell that starts the program twice, one after the other: each has some 8 MiB.
    let work = "BEGIN { for (pass = 0; pass < 3; pass++) for (i = 0; i < 40000; i++) a[i] += i; print a[7] }";
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), work).unwrap();
    let file = format!("{}:/work.awk", file.path().display());
    let output = Command::new(&terrace)
        .args(["lab", "compare", "--kernel", KERNEL, "--fast", "50%", "--managers", "none", "--json", "--file", &file])
        .args(["--", "sh", "-c", "awk -f /work.awk && awk -f /work.awk"])
        .env("TERRACE_QEMU_PLUGIN", &plugin)
        .env("TERRACE_BINARY", &terrace)
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let row = &report["rows"][0];
    assert_eq!(row["workload"], "sh -c 'awk -f /work.awk && awk -f /work.awk'");
    assert!(row["seed"].is_null() && row["workload_settings"] == serde_json::json!({}), "{row}");
    let number = |key: &str| row[key].as_f64().unwrap();
    let footprint = number("size_bytes") / f64::from(1 << 20);
    assert!((2.0..64.0).contains(&footprint), "measured: {footprint} MiB");
    assert_eq!(number("fast_bytes") * 2.0, number("size_bytes"));
    // Two awks, with six passes over 40,000 elements: a shell alone has far less.
    assert!(number("accesses") > 1e7, "{row}");
    assert!((0.0..1.0).contains(&number("fast_hit_share")) && number("fast_bytes_mean") > 0.0, "{row}");
}
