//! `terrace size` from the command line: what it prints, a build that is killed, and bad input. Needs no rights.
//!
//! In: small databases. Out: keys, exit codes, files. Must not: judge a prediction.
#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

mod common;
use common::{json, misuse, output as terrace};

const VECTOR: &str = "5e8,1e6,100,200,40,16e9,2,24";

fn build(path: &Path, records: &str) -> Value {
    json(&["size", "build", "--records", records, "--out", path.to_str().unwrap(), "--json"])
}

#[test]
fn a_database_is_built_and_asked() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("db.parquet");
    let built = build(&path, "300");
    assert_eq!((built["records"].as_u64(), built["sizes"].as_u64()), (Some(300), Some(100)));
    let file = path.to_str().unwrap();
    let answer =
        json(&["size", "query", "--db", file, "--vector", VECTOR, "--max-slowdown", "5%", "--k", "3", "--json"]);
    for key in ["fast_bytes", "fast_share", "predicted_loss", "query_microseconds"] {
        assert!(answer[key].as_f64().unwrap() >= 0.0, "{key}");
    }
    assert_eq!(answer["neighbours"].as_array().unwrap().len(), 3);
    assert!(answer["in_coverage"].is_boolean() && answer["predicted_loss"].as_f64().unwrap() <= 0.05);
    let far = json(&["size", "query", "--db", file, "--vector", "5e8,0,0,0,40,9e15,2,24", "--json"]);
    assert_eq!(far["in_coverage"], Value::Bool(false));
    let text = terrace(&["size", "query", "--db", file, "--vector", "5e8,0,0,0,40,9e15,2,24"]);
    assert!(String::from_utf8_lossy(&text.stdout).contains("warning: the database does not cover this"));
}

#[test]
fn a_build_that_is_killed_goes_on_and_ends_with_the_same_bytes() {
    let place = tempfile::tempdir().unwrap();
    let (whole, cut) = (place.path().join("whole"), place.path().join("cut"));
    build(&whole, "3000");
    let words = ["size", "build", "--records", "3000", "--out", cut.to_str().unwrap(), "--json"];
    let mut child = common::terrace().args(words).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let partial = place.path().join("cut.partial");
    // Killed once something is written; if it is over before that is seen, the rest of the test is about nothing.
    while child.try_wait().unwrap().is_none()
        && std::fs::metadata(&partial).map_or(0, |metadata| metadata.len()) < 10_000
    {
        std::thread::sleep(Duration::from_millis(1));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(partial.exists() && !cut.exists(), "it was killed on its way");
    let resumed = json(&words);
    assert!(resumed["resumed_records"].as_u64().unwrap() > 0, "{resumed}");
    assert_eq!(std::fs::read(&whole).unwrap(), std::fs::read(&cut).unwrap());
    assert!(!partial.exists());
}

#[test]
fn the_microbench_says_what_it_did() {
    let vector = "2e5,1e4,50,100,3,128MiB,3,4";
    let done = json(&["size", "microbench", "--executor", "simulator", "--vector", vector, "--fast", "80%", "--json"]);
    assert_eq!(done["performed"]["promotions"], done["asked"]["promotions"]);
    assert!(done["performed"]["seconds"].as_f64().unwrap() > 0.0);
    let model = json(&["size", "microbench", "--executor", "model", "--vector", vector, "--json"]);
    assert!(model["performed"].is_null() && model["seconds"].as_f64().unwrap() > 0.0);
}

#[test]
fn a_forecast_names_size_and_policy_and_is_the_same_every_time() {
    let words = [
        "size",
        "forecast",
        "--workload",
        "hot-cold",
        "--size",
        "8MiB",
        "--operations",
        "300000",
        "--scale",
        "64",
        "--pages",
        "4k",
        "--policies",
        "tpp",
        "--fast",
        "50%,90%",
        "--sample",
        "512",
        "--groups",
        "3",
        "--json",
    ];
    let said = json(&words);
    let policies = said["policies"].as_array().unwrap();
    let names: Vec<_> = policies.iter().map(|policy| policy["policy"].as_str().unwrap()).collect();
    assert_eq!(names, ["first-touch", "tpp"]);
    assert!(names.contains(&said["policy"].as_str().unwrap()));
    assert_eq!((said["sample_one_in"].as_u64(), said["groups"].as_u64()), (Some(4), Some(3)));
    for point in policies.iter().flat_map(|policy| policy["curve"].as_array().unwrap()) {
        let [low, loss, high, probability] =
            ["loss_low", "loss", "loss_high", "probability_over_target"].map(|key| point[key].as_f64().unwrap());
        assert!(low <= loss && loss <= high && (0.0..=1.0).contains(&probability), "{point}");
    }
    let careful = said["fast_share"].as_f64().unwrap();
    assert!(careful >= said["fast_share_expected"].as_f64().unwrap());
    assert!(said["probability_over_target"].as_f64().unwrap() <= 0.02);
    let losses = |value: &Value| value["policies"].clone();
    assert_eq!(losses(&json(&words)), losses(&said));
    misuse(&["size", "forecast", "--workload", "gups", "--fast", "100%"], "--fast");
    misuse(&["size", "forecast", "--workload", "gups", "--policies", "all-fast"], "--policies");
    misuse(&["size", "forecast", "--workload", "gups", "--size", "8MiB", "--cores", "2"], "the MMU cannot be modelled");
    misuse(&["size", "forecast", "--trace", "/nowhere/at/all"], "/nowhere/at/all");
    // A machine of one's own, and one with nonsense.
    let place = tempfile::tempdir().unwrap();
    let own = place.path().join("own.toml");
    let text =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../machines/optane-6252.toml")).unwrap();
    std::fs::write(&own, &text).unwrap();
    let of_file = json(&[&words[..], &["--machine", own.to_str().unwrap()]].concat());
    assert_eq!(losses(&of_file), losses(&said));
    std::fs::write(&own, "name = 7").unwrap();
    misuse(&["size", "forecast", "--workload", "gups", "--machine", own.to_str().unwrap()], "does not read");
}

/// The interface others rely on: the careful size, its policy, its probability and its curve, by the same forecast as `size forecast`.
#[test]
fn advice_is_the_forecast_machine_by_machine() {
    let program =
        ["--workload", "hot-cold", "--size", "8MiB", "--operations", "300000", "--scale", "64", "--pages", "4k"];
    let sizes = ["--policies", "tpp", "--fast", "50%,90%", "--sample", "512", "--groups", "3", "--json"];
    let of = |command: &str, machines: &[&str]| json(&[&["size", command][..], &program, machines, &sizes].concat());
    let advice = of("advise", &["--machines", "cxl-pond,zram-vm"]);
    let machines = advice["machines"].as_array().unwrap();
    assert_eq!(machines.len(), 2);
    for said in machines {
        let name = said["machine"].as_str().unwrap();
        let forecast = of("forecast", &["--machine", name]);
        for key in ["fast_share", "fast_share_expected", "policy", "probability_over_target", "policies"] {
            assert_eq!(said[key], forecast[key], "{name}: {key}");
        }
        assert_eq!(said["curve"].as_array().unwrap().len(), 2);
        assert!(said["fast_share"].as_f64().unwrap() >= said["fast_share_expected"].as_f64().unwrap());
        assert!(said["probability_over_target"].as_f64().unwrap() <= 0.02);
    }
    assert_eq!((advice["basis"].as_str(), &advice["not_enough_seen"]), (Some("accesses"), &Value::Null));
    let words = [&["size", "advise", "--machines", "cxl-pond"][..], &program, &sizes[..8]].concat();
    let text = String::from_utf8(terrace(&words).stdout).unwrap();
    let header = text.lines().find(|line| line.trim_start().starts_with("machine")).unwrap();
    assert!(header.find("carefully").unwrap() < header.find("expected").unwrap(), "{text}");
    misuse(&["size", "advise", "--workload", "gups", "--pid", "1"], "cannot be used with");
    misuse(&["size", "advise", "--size", "8MiB", "--", "true"], "cannot be used with");
    misuse(&["size", "advise", "--workload", "gups", "--machines", "no-such-machine"], "no-such-machine");
    misuse(&["size", "advise"], "required");
}

/// The commands of "From nothing to a purchase", as docs/sizing.md has them.
fn purchase() -> Vec<Vec<String>> {
    let page = include_str!("../../../docs/sizing.md");
    let section = page.split("\n## ").find(|section| section.starts_with("From nothing to a purchase\n")).unwrap();
    let block = section.split("```").nth(1).unwrap();
    block.trim().lines().map(|line| line.split(' ').map(str::to_owned).collect()).collect()
}

/// A small program where `./program` stands, or a trace of some accesses where programs cannot be recorded.
fn recorded(command: &mut Command, program_trace: &str) {
    let plugin =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../qemu-plugin/target/release/libterrace_qemu_plugin.so");
    let version = Command::new("qemu-x86_64").arg("--version").output();
    let loads = version.is_ok_and(|version| String::from_utf8_lossy(&version.stdout).contains("version 7."));
    if loads && plugin.exists() {
        let output = command.env("TERRACE_QEMU_PLUGIN", &plugin).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        return;
    }
    println!(
        "SKIPPED terrace record: QEMU 7 or {} is missing (`make qemu-plugin`); a trace is imported",
        plugin.display()
    );
    let lackey = format!("{program_trace}.lackey");
    let pages: String =
        (0..40_000u64).map(|at| format!(" L {:08x},8\n", (at * 977 % 400) * 4096 + at % 64 * 64)).collect();
    std::fs::write(&lackey, pages).unwrap();
    let done = terrace(&["trace", "import", "--format", "lackey", &lackey, program_trace]);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

#[test]
fn a_planner_comes_from_nothing_to_a_purchase() {
    let place = tempfile::tempdir().unwrap();
    let trace = place.path().join("program.trace").to_str().unwrap().to_owned();
    let commands = purchase();
    let names: Vec<String> = commands.iter().map(|words| words[1..3].join(" ")).collect();
    assert_eq!(names, ["record --output", "trace info", "size advise", "size forecast", "sim run"]);
    // What is bought: found out by one command, and given to the next.
    let (mut machine, mut policy, mut share) = (String::new(), String::new(), String::new());
    for words in commands {
        let filled: Vec<String> = words[1..]
            .iter()
            .flat_map(|word| match word.as_str() {
                "program.trace" => vec![trace.clone()],
                "./program" => ["awk", "BEGIN { for (i = 0; i < 3000; i++) a[i] = i }"].map(str::to_owned).to_vec(),
                "MACHINE" => vec![machine.clone()],
                "POLICY" => vec![policy.clone()],
                "SHARE" => vec![share.clone()],
                other => vec![other.to_owned()],
            })
            .collect();
        let mut filled: Vec<&str> = filled.iter().map(String::as_str).collect();
        match (filled[0], filled[1]) {
            ("record", _) => recorded(common::terrace().args(&filled), &trace),
            ("trace", "info") => {
                filled.push("--json");
                assert!(json(&filled)["summary"]["accesses"].as_u64().unwrap() > 1000);
            }
            ("size", which) => {
                // Few and small, so that it is seconds.
                filled.extend(["--policies", "tpp", "--fast", "50%,90%", "--groups", "2", "--sample", "256", "--json"]);
                if which == "advise" {
                    filled.extend(["--machines", "cxl-pond,cxl-250"]);
                    let advice = json(&filled);
                    let machines = advice["machines"].as_array().unwrap();
                    let cost = |one: &&Value| (one["cost_saved_share"].as_f64().unwrap() * 1e6) as i64;
                    let best = machines.iter().max_by_key(cost).unwrap();
                    machine = best["machine"].as_str().unwrap().to_owned();
                } else {
                    let forecast = json(&filled);
                    policy = forecast["policy"].as_str().unwrap().to_owned();
                    share = format!("{:.0}%", forecast["fast_share"].as_f64().unwrap() * 100.0);
                }
            }
            _ => {
                filled.push("--json");
                let tried = json(&filled);
                assert!(tried["slowdown_vs_all_fast"].as_f64().unwrap() >= 0.9, "{tried}");
            }
        }
    }
}

/// The way of the paper: a vector, a database of its machine, and a query.
#[test]
fn a_vector_is_what_a_query_takes() {
    let place = tempfile::tempdir().unwrap();
    let database = place.path().join("db.parquet");
    let database = database.to_str().unwrap();
    let program = ["--workload", "hot-cold", "--size", "8MiB", "--operations", "300000", "--machine", "cxl-pond"];
    let vector = terrace(&[&["size", "vector"][..], &program].concat());
    assert!(vector.status.success(), "{}", String::from_utf8_lossy(&vector.stderr));
    let vector = String::from_utf8(vector.stdout).unwrap();
    json(&["size", "build", "--machine", "cxl-pond", "--records", "300", "--out", database, "--json"]);
    let query = ["size", "query", "--machine", "cxl-pond", "--db", database, "--vector", vector.trim(), "--json"];
    assert!(json(&query)["fast_share"].as_f64().unwrap() > 0.0);
}

#[test]
fn bad_input_is_refused_before_anything_is_started() {
    let place = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &[u8]| {
        let path = place.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let mark = place.path().join("started");
    let mark = mark.to_str().unwrap();
    for max_slowdown in ["0", "0%", "101%", "-1%", "much"] {
        misuse(&["size", "tune", &format!("--max-slowdown={max_slowdown}"), "--", "touch", mark], "--max-slowdown");
        misuse(&["size", "query", "--vector", VECTOR, &format!("--max-slowdown={max_slowdown}")], "--max-slowdown");
        misuse(&["size", "advise", &format!("--max-slowdown={max_slowdown}"), "--", "touch", mark], "--max-slowdown");
    }
    let empty = file("empty", b"");
    misuse(&["size", "tune", "--paper", "--db", &empty, "--", "touch", mark], "it is empty");
    misuse(&["size", "query", "--db", &empty, "--vector", VECTOR], "it is empty");
    let text = file("text", b"this is no database, it is a text");
    misuse(&["size", "query", "--db", &text, "--vector", VECTOR], "no Parquet file");
    misuse(&["size", "query", "--db", "/nowhere/at/all", "--vector", VECTOR], "/nowhere/at/all");
    let database = place.path().join("db.parquet");
    build(&database, "20");
    let database = database.to_str().unwrap();
    misuse(
        &["size", "tune", "--paper", "--db", database, "--", "touch", mark],
        "of machine optane-6252, not of zram-vm",
    );
    misuse(&["size", "query", "--db", database, "--machine", "cxl-pond", "--vector", VECTOR], "not of cxl-pond");
    let cut = file("cut", &std::fs::read(database).unwrap()[..5000]);
    misuse(&["size", "query", "--db", &cut, "--vector", VECTOR], "damaged");
    let mut bytes = std::fs::read(database).unwrap();
    // Past the first page's header: within the figures.
    bytes[2000] ^= 0x10;
    let flipped = file("flipped", &bytes);
    misuse(&["size", "tune", "--paper", "--db", &flipped, "--machine", "optane-6252", "--", "touch", mark], "damaged");
    misuse(&["size", "query", "--vector", "1,2,3"], "expected 8 figures");
    misuse(&["size", "tune", "--every", "1ms", "--", "touch", mark], "--every");
    misuse(&["size", "tune", "--metric", "nonsense:", "--", "touch", mark], "--metric");
    misuse(&["size", "tune", "--metric", "cpu", "--metric-window", "1s", "--", "touch", mark], "expected 2s or more");
    misuse(&["size", "tune", "--metric", "cpu", "--hold", "watermarks", "--", "touch", mark], "use --hold pages");
    misuse(&["size", "advise", "--prices", "cheap", "--", "touch", mark], "--prices");
    misuse(&["size", "microbench", "--vector", VECTOR, "--fast", "0%", "--executor", "model"], "fast is 0");
    let journal = file("foreign.partial", b"not a journal at all, but something else");
    misuse(&["size", "build", "--records", "10", "--out", journal.trim_end_matches(".partial")], "another build");
    assert!(!Path::new(mark).exists(), "no program was started");
}
