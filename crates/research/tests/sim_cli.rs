//! The laboratory from the command line: the keys of its JSON, as docs/reference/sim.md states them, and bad files.
//!
//! In: tiny runs. Out: keys, exit codes, files. Must not: judge a figure.
#![allow(clippy::unwrap_used, missing_docs)]

use std::collections::BTreeSet;

use serde_json::Value;

mod common;
use common::{json, misuse, output as terrace, text};

const PAGE: &str = include_str!("../../../docs/reference/sim.md");
const TINY: [&str; 8] = ["--size", "4MiB", "--threads", "2", "--operations", "20000", "--scale", "1024"];

/// The keys in the table under this heading of the page.
fn documented(heading: &str) -> BTreeSet<String> {
    let section = PAGE.split("\n## ").find(|section| section.lines().next() == Some(heading));
    let section = section.unwrap_or_else(|| panic!("docs/reference/sim.md has no section {heading:?}"));
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.map(|row| row.split('`').next().unwrap().to_owned()).collect()
}

/// The same, and what made it.
fn documented_result(heading: &str) -> BTreeSet<String> {
    documented(heading).into_iter().chain(documented("provenance")).collect()
}

fn keys(value: &Value) -> BTreeSet<String> {
    value.as_object().unwrap().keys().cloned().collect()
}

#[test]
fn a_run_prints_what_the_page_says_and_the_same_again_for_the_same_seed() {
    let words = [&["sim", "run", "--workload", "gups", "--policy", "memtis", "--json"][..], &TINY].concat();
    let first = text(&words);
    let value: Value = serde_json::from_str(&first).unwrap();
    assert_eq!(keys(&value), documented_result("terrace sim run"));
    assert!(value["seconds"].as_f64().unwrap() > 0.0 && value["slowdown_vs_all_fast"].as_f64().unwrap() > 0.0);
    assert_eq!((value["scale"].as_u64(), value["seed"].as_u64()), (Some(1024), Some(1)));
    assert_eq!(first, text(&words));
}

#[test]
fn a_comparison_prints_cells_and_means_and_writes_its_files() {
    let place = tempfile::tempdir().unwrap();
    let (csv, report) = (place.path().join("cells.csv"), place.path().join("report"));
    let matrix = [
        "sim",
        "compare",
        "--workloads",
        "gups,hot-cold",
        "--policies",
        "memtis,first-touch",
        "--fast",
        "50%",
        "--seeds",
        "2",
        "--json",
        "--csv",
        csv.to_str().unwrap(),
        "--report",
        report.to_str().unwrap(),
    ];
    let value = json(&[&matrix[..], &TINY].concat());
    assert_eq!(keys(&value), documented_result("terrace sim compare"));
    assert_eq!(value["cells"].as_array().unwrap().len(), 8);
    assert_eq!(keys(&value["cells"][0]), documented_result("cells"));
    let mean = keys(&value["geomean"][0]);
    assert!(["policy", "gain_over_all_slow", "low", "high"].iter().all(|key| mean.contains(*key)), "{mean:?}");
    let table = std::fs::read_to_string(csv).unwrap();
    assert_eq!(table.lines().count(), 9);
    assert!(table.contains("\"\"memtis."), "settings are JSON, quoted as CSV: {table}");
    let columns: BTreeSet<String> = table.lines().next().unwrap().split(',').map(str::to_owned).collect();
    assert_eq!(columns, documented_result("cells"));
    let page = std::fs::read_to_string(report.join("report.html")).unwrap();
    assert!(page.contains("id=\"run-times\"") && page.contains("id=\"hit-ratio\"") && !page.contains("{{"));
}

#[test]
fn a_page_of_a_run_is_explained() {
    let page = ["sim", "explain", "--workload", "gups", "--policy", "tpp", "--page", "0x100000001000", "--json"];
    let value = json(&[&page[..], &TINY].concat());
    assert_eq!(keys(&value), documented("terrace sim explain"));
    assert_eq!(value["moments"][0]["what"], "allocated");
    assert_eq!(value["moments"][0]["address"], "0x100000001000");
}

#[test]
fn machines_and_the_list_of_figures_print_what_the_page_says() {
    let value = json(&["sim", "machines", "--json"]);
    assert_eq!(keys(&value), documented("terrace sim machines"));
    let sources = value["machines"][0]["numbers"].as_array().unwrap();
    assert!(sources.iter().all(|number| !number["source"].as_str().unwrap().is_empty()));
    let value = json(&["reproduce", "list", "--json"]);
    assert_eq!(keys(&value), documented("terrace reproduce list"));
    assert!(value["rows"].as_array().unwrap().iter().any(|row| row["id"] == "FM.fig6.ft.tpp"));
}

#[test]
fn a_reproduction_prints_what_the_page_says_of_experiments_of_ones_own() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("own.toml");
    let own = |measure: &str| {
        format!(
            "[paper]\nprefix = \"T\"\nname = \"own\"\ntitle = \"Own\"\nagree = \"20%\"\n\
             [settings.gups]\nworkload = \"gups\"\nsize = \"32GiB\"\nfast = \"1:3\"\nthreads = 2\n\
             machine = \"optane-6252\"\npages = \"4KiB\"\n\
             [[row]]\nid = \"T.gain\"\nquantity = \"a gain\"\npaper = 10\nunit = \"%\"\nsource = \"nowhere\"\n\
             measure = \"{measure}\"\nsettings = [\"gups\"]\npolicies = [\"tpp\", \"first-touch\"]\n"
        )
    };
    std::fs::write(&file, own("gain")).unwrap();
    let path = file.to_str().unwrap();
    let value = json(&["reproduce", "T", "--experiments", path, "--quick", "--json"]);
    assert_eq!(keys(&value), documented_result("terrace reproduce"));
    assert_eq!(value["schema_version"].as_u64(), Some(1));
    assert!(value["command"].as_str().unwrap().starts_with("terrace reproduce T --experiments "), "{value}");
    let row = &value["rows"][0];
    for key in [
        "id",
        "quantity",
        "unit",
        "paper",
        "paper_source",
        "ours",
        "ours_low",
        "ours_high",
        "verdict",
        "scale",
        "seeds",
        "config",
    ] {
        assert!(keys(row).contains(key), "{key}: {row}");
    }
    assert_eq!(
        (row["paper"].as_f64(), row["scale"].as_u64(), row["seeds"][0].as_u64()),
        (Some(10.0), Some(4096), Some(1))
    );
    assert!(row["ours"].is_f64() && value["runs"].as_array().unwrap().len() == 2, "{row}");
    std::fs::write(&file, own("grain")).unwrap();
    misuse(&["reproduce", "T", "--experiments", path], "own.toml:19: T.gain, key `measure`: ");
    misuse(&["reproduce", "T", "--experiments", "no/such.toml"], "cannot read no/such.toml");
}

#[test]
fn trackers_are_scored_with_every_promised_key_and_draw_their_picture() {
    let place = tempfile::tempdir().unwrap();
    let picture = place.path().join("heat.svg");
    let words = [
        "sim",
        "hotness",
        "--workload",
        "gups",
        "--size",
        "8MiB",
        "--operations",
        "1200000",
        "--scale",
        "64",
        "--window",
        "200ms",
        "--beside",
        "hot-cold",
        "--json",
        "--heatmap",
    ];
    let value = json(&[&words[..], &[picture.to_str().unwrap()]].concat());
    assert_eq!(keys(&value), documented_result("terrace sim hotness"));
    let trackers = value["trackers"].as_array().unwrap();
    assert_eq!(keys(&trackers[0]), documented("trackers"));
    let of = |name: &str| trackers.iter().find(|tracker| tracker["name"] == name).unwrap();
    // Counting every access is the truth; one bit for 2 MiB says nothing of its pieces.
    assert!(of("hotness-walk every")["rank_correlation"].as_f64().unwrap() > 0.98);
    assert!(of("accessed-bits")["rank_correlation"].as_f64().unwrap() < 0.9);
    assert_eq!(of("hotness-walk l1-miss")["bytes_per_gib"].as_f64(), Some(524_288.0));
    assert!(of("pebs-199")["growth"][4]["cpu_share"].as_f64() > of("pebs-199")["growth"][0]["cpu_share"].as_f64());
    let picture = std::fs::read_to_string(picture).unwrap();
    assert!(picture.starts_with("<svg") && picture.trim_end().ends_with("</svg>") && picture.len() < 4 << 20);
}

#[test]
fn the_mmu_is_modelled_when_asked_for() {
    let run = |more: &[&str]| {
        json(&[&["sim", "run", "--workload", "gups", "--json", "--policy", "hotness-walk"][..], &TINY, more].concat())
    };
    let value = run(&["--pages", "2m", "--cores", "2", "--counters", "random:16"]);
    assert_eq!(value["mmu"]["cores"].as_array().unwrap().len(), 2);
    assert_eq!((&value["pages"], &value["mmu"]["counted"]), (&Value::from("whole"), &Value::from("random:16")));
    assert!(value["mmu"]["cores"][0]["updates"].as_u64().unwrap() > 0);
    assert_eq!(run(&["--pages", "4k"])["mmu"]["cores"][0]["updates"], 0, "4 KiB mappings have no counters");
    let value = run(&["--pages", "2m", "--cores", "2", "--beside", "hot-cold", "--every", "4"]);
    let processes = value["processes"].as_array().unwrap();
    assert_eq!(
        (&processes[0]["workload"], &processes[1]["workload"]),
        (&Value::from("gups"), &Value::from("hot-cold"))
    );
    let served = |process: &Value| -> u64 {
        process["tier_accesses"].as_array().unwrap().iter().filter_map(Value::as_u64).sum()
    };
    let all: u64 = value["tier_accesses"].as_array().unwrap().iter().filter_map(Value::as_u64).sum();
    assert_eq!(served(&processes[0]) + served(&processes[1]), all, "each access is one process's");
    assert_eq!(run(&["--pages", "2m"])["processes"].as_array().map(Vec::len), Some(0));
}

#[test]
fn a_trace_goes_in_and_out_and_is_simulated() {
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name).to_str().unwrap().to_owned();
    let lines: String = (0..4000u64)
        .map(|n| format!(" {} {:08x},8\n", if n % 4 == 0 { "S" } else { "L" }, n * 977 % 500 * 4096))
        .collect();
    std::fs::write(at("lackey"), lines).unwrap();
    text(&["trace", "import", "--format", "lackey", &at("lackey"), &at("trace")]);
    let info = json(&["trace", "info", &at("trace"), "--json"]);
    assert_eq!(info["summary"]["accesses"], 4000);
    assert_eq!(
        text(&["trace", "cat", &at("trace"), "--accesses", "10-20"])
            .lines()
            .filter(|line| !line.contains("event"))
            .count(),
        10
    );
    text(&["trace", "cut", &at("trace"), &at("half"), "--accesses", "0-2000"]);
    text(&["trace", "export", "--format", "csv", &at("half"), &at("csv")]);
    assert_eq!(std::fs::read_to_string(at("csv")).unwrap().lines().count(), 2001);
    text(&["trace", "export", "--format", "parquet", &at("half"), &at("parquet")]);
    let run = json(&["sim", "run", "--trace", &at("trace"), "--policy", "memtis", "--json"]);
    assert_eq!((run["accesses"].as_u64(), run["scale"].as_u64()), (Some(4000), Some(1)));
    misuse(&["sim", "run", "--trace", &at("trace"), "--policy", "hotness-walk"], "does not tell the size of its pages");
    let huge = json(&["sim", "run", "--trace", &at("trace"), "--policy", "hotness-walk", "--pages", "2m", "--json"]);
    assert_eq!((huge["accesses"].as_u64(), &huge["pages"]), (Some(4000), &Value::from("huge")));
    misuse(&["sim", "run", "--trace", &at("lackey")], "--trace");
    misuse(&["trace", "info", &at("lackey")], "lackey");
    misuse(&["trace", "info", &at("absent")], "absent");
    let mut bytes = std::fs::read(at("trace")).unwrap();
    bytes.truncate(bytes.len() / 2);
    std::fs::write(at("torn"), bytes).unwrap();
    assert_eq!(terrace(&["trace", "info", &at("torn")]).status.code(), Some(1));
    misuse(&["sim", "run", "--trace", &at("torn")], "--keep-whole");
}

#[test]
fn the_recorder_is_written_and_nothing_else_is_overwritten() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("recorder.c");
    let file = file.to_str().unwrap();
    assert!(text(&["record", "--hook", "--write", file]).contains("-fsanitize=thread"));
    text(&["record", "--hook", "--write", file]);
    std::fs::write(file, "mine").unwrap();
    misuse(&["record", "--hook", "--write", file], "something else");
}

#[test]
fn a_program_larger_than_the_machine_is_refused() {
    // The messages name this machine's memory, so no snapshot has them.
    let run = |size: &str, says: &str| misuse(&["sim", "run", "--workload", "gups", "--size", size], says);
    run("64TiB", "of memory: expected at most");
    run("18446744073709551615", "--scale 1024");
}

#[test]
fn a_machine_of_ones_own_is_taken_by_its_file() {
    let place = tempfile::tempdir().unwrap();
    let preset = include_str!("../../../machines/cxl-170.toml");
    let write = |name: &str, text: &str| {
        let path = place.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let run = |machine: &str| {
        let words = ["sim", "run", "--workload", "gups", "--operations", "20000", "--size", "8MiB", "--threads", "2"];
        let more = ["--scale", "4096", "--policy", "tpp", "--fast", "25%", "--json", "--machine", machine];
        serde_json::from_str::<Value>(&text(&[&words[..], &more].concat())).unwrap()
    };
    let mine = write("mine.toml", &preset.replace("name = \"cxl-170\"", "name = \"mine\""));
    let (own, known) = (run(&mine), run("cxl-170"));
    assert_eq!((&own["machine"], &own["seconds"]), (&"mine".into(), &known["seconds"]));
    assert_ne!(own["machine_hash"], known["machine_hash"]);
    // The keys that other tools read.
    for key in
        ["schema_version", "version", "command", "settings", "scale", "seed", "tier_bytes", "slowdown_vs_all_fast"]
            .into_iter()
            .chain(["gain_over_all_slow", "fast_hit_share", "promoted_pages", "demoted_pages", "kernel_seconds"])
    {
        assert!(!own[key].is_null(), "{key}");
    }
    let refused = |machine: &str, says: &str| misuse(&["sim", "run", "--workload", "gups", "--machine", machine], says);
    refused("nowhere/at-all.toml", "nowhere/at-all.toml");
    refused(&write("broken.toml", "name = "), "does not read");
    refused(&write("slower.toml", &preset.replacen("ns\"", "5ns\"", 1)), "a preset is called \"cxl-170\"");
    refused(
        &write(
            "odd.toml",
            &preset.replace("name = \"cxl-170\"", "name = \"odd\"").replacen(
                "cores = { value = ",
                "cores = { value = -",
                1,
            ),
        ),
        "cores",
    );
}
