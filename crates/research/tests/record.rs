//! `terrace record` sees what a program does: its pages, its accesses, its exit code. Needs QEMU's user mode and the plugin.
#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The plugin as `make qemu-plugin` leaves it, or why this cannot be tried here.
fn plugin(test: &str) -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let path = root.join("qemu-plugin/target/release/libterrace_qemu_plugin.so");
    let version = Command::new("qemu-x86_64").arg("--version").output();
    let reason = match version {
        Err(_) => Some("qemu-user is not installed".to_owned()),
        Ok(output) if !String::from_utf8_lossy(&output.stdout).contains("version 7.") => {
            Some("this QEMU loads no plugin of interface 1".to_owned())
        }
        Ok(_) if !path.exists() => Some(format!("there is no {}: `make qemu-plugin`", path.display())),
        Ok(_) => None,
    };
    match reason {
        Some(reason) => {
            println!("SKIPPED {test}: {reason}");
            None
        }
        None => Some(path),
    }
}

fn terrace(plugin: &Path, words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_terrace-research"))
        .args(words)
        .env("TERRACE_QEMU_PLUGIN", plugin)
        .output()
        .unwrap()
}

/// The JSON object that follows the program's own output.
fn object(output: &Output) -> serde_json::Value {
    let text = String::from_utf8_lossy(&output.stdout);
    let last = text.lines().last().unwrap_or_default();
    serde_json::from_str(last).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn a_program_is_recorded_whole_and_its_trace_replayed() {
    let Some(plugin) = plugin("a_program_is_recorded_whole_and_its_trace_replayed") else { return };
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("awk.trace");
    let trace = trace.to_str().unwrap();
    let program =
        ["awk", "BEGIN { for (i = 0; i < 20000; i++) a[i] = i; for (i = 0; i < 20000; i++) s += a[i]; print s }"];
    let words = [&["record", "--json", "--output", trace, "--"][..], &program].concat();
    let output = terrace(&plugin, &words);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stdout).starts_with("199990000\n"), "the program's own output comes first");
    let report = object(&output);
    let number = |key: &str| report[key].as_f64().unwrap_or_else(|| panic!("{key} in {report}"));
    // 20,000 elements of 40 bytes at least, written once and read once.
    assert!(number("unique_pages") > 200.0 && number("accesses") > 1e6, "{report}");
    assert_eq!(number("trace_bytes"), std::fs::metadata(trace).unwrap().len() as f64);
    assert!(number("slowdown") > 1.0, "{report}");

    let filtered = folder.path().join("filtered.trace");
    let words = [
        &["record", "--json", "--once", "--cache", "1MiB", "--output", filtered.to_str().unwrap(), "--"][..],
        &program,
    ];
    let less = object(&terrace(&plugin, &words.concat()));
    assert!(less["accesses"].as_f64().unwrap() < number("accesses") / 10.0, "a cache serves most: {less}");
    assert!(less["slowdown"].is_null());

    let words = ["sim", "run", "--trace", filtered.to_str().unwrap(), "--policy", "age", "--scale", "1", "--json"];
    let replayed = terrace(&plugin, &words);
    assert!(replayed.status.success(), "{}", String::from_utf8_lossy(&replayed.stderr));

    // The same accesses through the modelled MMU: the run says how large pages are, as the recording does not.
    let on_the_mmu = |pages: &str| {
        let policy = ["--policy", "hotness-walk", "--counters", "random:16", "--fast", "25%", "--scale", "1"];
        let words = ["sim", "run", "--trace", filtered.to_str().unwrap(), "--pages", pages, "--json"];
        object(&terrace(&plugin, &[&words[..], &policy].concat()))
    };
    let (small, huge) = (on_the_mmu("4k"), on_the_mmu("2m"));
    assert_eq!(small["accesses"], huge["accesses"]);
    let core = |report: &serde_json::Value, key: &str| report["mmu"]["cores"][0][key].as_f64().unwrap();
    assert!(core(&huge, "updates") > 0.0 && core(&small, "updates") == 0.0, "counters are of huge pages");
    assert!(core(&huge, "walk_share") < core(&small, "walk_share"), "{huge} {small}");
}

#[test]
fn the_programs_exit_code_is_passed_through_and_scripts_are_refused() {
    let Some(plugin) = plugin("the_programs_exit_code_is_passed_through_and_scripts_are_refused") else { return };
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("x.trace");
    let record = ["record", "--once", "--output", trace.to_str().unwrap(), "--"];
    let ended = terrace(&plugin, &[&record[..], &["sh", "-c", "exit 7"]].concat());
    assert_eq!(ended.status.code(), Some(7), "{}", String::from_utf8_lossy(&ended.stderr));
    let script = folder.path().join("script");
    std::fs::write(&script, "#!/bin/sh\n").unwrap();
    let mut mode = std::fs::metadata(&script).unwrap().permissions();
    std::os::unix::fs::PermissionsExt::set_mode(&mut mode, 0o755);
    std::fs::set_permissions(&script, mode).unwrap();
    let refused = terrace(&plugin, &[&record[..], &[script.to_str().unwrap()]].concat());
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("record its interpreter"));
    assert_eq!(terrace(&plugin, &[&record[..], &["no-such-program"]].concat()).status.code(), Some(127));
}

#[test]
fn a_program_is_compared_at_four_sizes_and_one_that_dies_is_not() {
    let Some(plugin) = plugin("a_program_is_compared_at_four_sizes_and_one_that_dies_is_not") else { return };
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("report");
    let words =
        ["compare", "--json", "--policies", "tpp,first-touch,clairvoyant", "--report", page.to_str().unwrap(), "--"];
    let program =
        ["awk", "BEGIN { for (i = 0; i < 20000; i++) a[i] = i; for (i = 0; i < 20000; i++) s += a[i]; print s }"];
    let output = terrace(&plugin, &[&words[..], &program].concat());
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{stderr}");
    assert!(stderr.contains("199990000\n"), "the program's own output is no part of the result: {stderr}");
    assert_eq!(String::from_utf8_lossy(&output.stdout).lines().count(), 1);
    let result = object(&output);
    let verdicts = result["verdicts"].as_array().unwrap();
    assert_eq!(
        verdicts.iter().map(|one| one["fast"].as_str().unwrap()).collect::<Vec<_>>(),
        ["12.5%", "25%", "50%", "75%"]
    );
    assert!(verdicts.iter().all(|one| one["bound_loss"].is_f64() && !one["policies"].as_array().unwrap().is_empty()));
    assert_eq!(result["cells"].as_array().unwrap().len(), 12);
    assert!(result["accesses"].as_u64().unwrap() > 1_000_000 && result["answer"].is_string(), "{result}");
    assert!(page.join("report.html").exists());
    assert_eq!(result["started"], serde_json::json!([]), "awk starts nothing");
    // A person gets a page without asking.
    let mut plain = Command::new(env!("CARGO_BIN_EXE_terrace-research"));
    plain.args(["compare", "--policies", "tpp", "--fast", "50%", "--", "awk", "BEGIN { print 1 }"]);
    let plain = plain.env("TERRACE_QEMU_PLUGIN", &plugin).current_dir(folder.path()).output().unwrap();
    assert!(plain.status.success() && String::from_utf8_lossy(&plain.stderr).contains("compare-report/report.html"));
    assert!(folder.path().join("compare-report/report.html").exists());
    let words = ["compare", "--json", "--policies", "tpp", "--fast", "50%", "--", "sh", "-c", "cat /dev/null; exit 0"];
    let shell = terrace(&plugin, &words);
    let stderr = String::from_utf8_lossy(&shell.stderr).into_owned();
    assert!(stderr.contains("sh started other programs") && stderr.contains("not recorded: cat;"), "{stderr}");
    assert!(object(&shell)["started"][0].as_str().unwrap().ends_with("/cat"));
    let died = terrace(&plugin, &["compare", "--", "sh", "-c", "kill -SEGV $$"]);
    let stderr = String::from_utf8_lossy(&died.stderr).into_owned();
    assert_eq!(died.status.code(), Some(1), "{stderr}");
    assert!(died.stdout.is_empty() && stderr.contains("sh died under emulation of signal 11"), "{stderr}");
}

#[test]
fn what_a_comparison_needs_is_said_before_the_program_runs() {
    let folder = tempfile::tempdir().unwrap();
    let mark = folder.path().join("ran");
    let refused = |words: &[&str], code: i32, says: &str| {
        let touch = ["--", "/usr/bin/touch", mark.to_str().unwrap()];
        let mut command = Command::new(env!("CARGO_BIN_EXE_terrace-research"));
        let output = command.arg("compare").args(words).args(touch).env("PATH", folder.path()).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{stderr}");
        assert!(output.stdout.is_empty() && stderr.contains(says) && stderr.lines().count() == 1, "{stderr}");
        assert!(!mark.exists());
    };
    refused(&[], 1, "qemu-user");
    refused(&["--machine", "nonsense"], 2, "no machine is called \"nonsense\"");
    refused(&["--policies", "tpp,nonsense"], 2, "no policy \"nonsense\"");
    refused(&["--fast", "0%"], 2, "--fast 0%");
    refused(&["--max-slowdown", "0"], 2, "--max-slowdown 0");
    refused(&["--cache", "much"], 2, "--cache much");
    let output = Command::new(env!("CARGO_BIN_EXE_terrace-research"))
        .args(["compare", "--", "/nowhere/at/all"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(127));
}
