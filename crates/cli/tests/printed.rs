//! What the command prints for people: help texts, tables and refusals, each as a snapshot in `snapshots`.
//!
//! In: commands whose output depends on neither machine nor moment. Out: a failure with the difference; CONTRIBUTING.md says how to
//! accept one. Must not: need rights, or hold figures that the machine measures.
#![allow(clippy::unwrap_used, reason = "panics are a test's failures")]

mod common;

use common::{Transcript, subcommands};
use insta::assert_snapshot;

/// A program so small that each run takes a moment.
const TINY: &str = "--size 4MiB --threads 2 --operations 20000 --scale 1024";

/// One transcript of these lines; PLACE stands for a directory that is gone afterwards.
fn printed(lines: &[&str]) -> String {
    let mut transcript = Transcript::new();
    for line in lines {
        let done = transcript.run(line);
        assert_eq!(done.code, 0, "{line}: {}", done.stderr);
    }
    transcript.text
}

/// The same of lines that are refused as misuse.
#[track_caller]
fn refused(lines: &[&str]) -> String {
    let mut transcript = Transcript::new();
    lines.iter().for_each(|line| transcript.refused(2, line));
    transcript.text
}

/// The help of a command and of all below it.
fn help(transcript: &mut Transcript, path: &str) {
    let done = transcript.run(&format!("{path} --help"));
    for name in subcommands(&done.stdout) {
        help(transcript, &format!("{path} {name}"));
    }
}

#[test]
fn help_texts() {
    let mut all = Transcript::new();
    let top = all.run("--help").stdout;
    assert_snapshot!("help", all.text);
    for name in subcommands(&top) {
        let mut transcript = Transcript::new();
        help(&mut transcript, &name);
        assert_snapshot!(format!("help_{name}"), transcript.text);
    }
}

#[test]
fn tables_of_what_there_is() {
    assert_snapshot!("policies", printed(&["policies"]));
    assert_snapshot!("workloads", printed(&["workload list"]));
    assert_snapshot!("machines", printed(&["sim machines"]));
    assert_snapshot!("key", printed(&["config explain class.web.max_slowdown"]));
}

#[test]
fn tables_of_simulations() {
    let run = format!("sim run --workload gups --policy memtis {TINY}");
    let compare = format!("sim compare --workloads gups,hot-cold --policies memtis,first-touch --seeds 2 {TINY}");
    let explain = format!("sim explain --workload gups --policy tpp --page 0x100000001000 {TINY}");
    assert_snapshot!("simulations", printed(&[&run, &compare, &explain]));
}

#[test]
fn refusals_of_simulations() {
    let bad = [
        "sim run",
        "sim run --workload nonsense",
        "sim run --workload gups --policy nonsense",
        "sim run --workload gups --machine nonsense",
        "sim run --workload gups --machine PLACE/absent.toml",
        "sim run --workload gups --size 0",
        "sim run --workload gups --operations 18446744073709551615",
        "sim run --workload gups --threads 4000000000",
        "sim run --workload gups --threads 0",
        "sim run --workload gups --size 8MiB --fast 9MiB",
        "sim run --workload gups --fast 101%",
        "sim run --workload gups --fast 0%",
        "sim run --workload gups --fast NaN%",
        "sim run --workload gups --set flexmem.beta=NaN",
        "sim run --workload gups --set flexmem.bananas=3",
        "sim run --workload gups --set tpp.x=3",
        "sim run --workload gups --workload-set bananas=3",
        "sim run --workload gups --scale 0",
        "sim run --workload gups --beside doom",
        "sim run --workload gups --size 2GiB --beside gups",
        "sim run --workload gups --threads 2 --cores 3",
        "sim run --workload gups --threads 2 --cores 0",
        "sim run --workload gups --threads 2 --counter-width 12",
        "sim run --workload gups --threads 2 --counters often",
        "sim run --workload gups --threads 2 --counter-layout odd",
        "sim run --workload gups --threads 2 --counter-sync much",
        "sim run --workload gups --threads 2 --page-tables moon",
        "sim run --workload gups --threads 2 --tlb-flush never",
        "sim hotness --workload gups --window 0ms",
        "sim hotness --workload gups --fast 100%",
        "sim compare --workloads gups,x --policies tpp",
        "sim compare --workloads gups --policies tpp --seeds 0",
        "sim explain --workload gups --page here",
        "sim explain --workload gups --range 5-4",
        "reproduce FM.nonsense",
        "reproduce FM.fig6.spp",
        "reproduce FM.fig6.sp --svg x.svg",
        "reproduce FM.fig6.sp --scale 8192",
        "reproduce FH.cost",
        "reproduce T --experiments PLACE/absent.toml",
    ];
    assert_snapshot!(refused(&bad));
}
