//! The package's files are what those who read them understand.
//!
//! In: `packaging/`. Out: nothing. Must not: need a running systemd; `systemd-analyze` reads files alone.
//! `scripts/unit-test` runs the unit under a systemd.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test says what it could not look at")]

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

mod common;

use common::daemon::terraced;

const UNIT: &str = include_str!("../../../packaging/systemd/terraced.service");
const SLICE: &str = include_str!("../../../packaging/systemd/terrace.slice");

/// The unit as a file in a place of its own: the programs lie elsewhere here, and manual pages are not installed.
fn unit() -> tempfile::TempDir {
    let place = tempfile::tempdir().unwrap();
    let program = terraced().to_str().unwrap();
    let unit = UNIT
        .replace("/usr/bin/terraced", program)
        .replace("/usr/bin/terrace ", &format!("{} ", env!("CARGO_BIN_EXE_terrace")))
        .replace("Documentation=man:terraced(8)\n", "");
    assert!(unit.contains(program) && !unit.contains("man:"));
    std::fs::write(place.path().join("terraced.service"), unit).unwrap();
    std::fs::write(place.path().join("terrace.slice"), SLICE).unwrap();
    place
}

/// What systemd-analyze says; `None` where there is none.
fn analyze(test: &str, words: &[&str]) -> Option<(bool, String)> {
    let place = unit();
    let Ok(output) = Command::new("systemd-analyze").args(words).current_dir(place.path()).output() else {
        println!("SKIPPED {test}: there is no systemd-analyze");
        return None;
    };
    let told = [output.stdout, output.stderr].concat();
    Some((output.status.success(), String::from_utf8_lossy(&told).into_owned()))
}

#[test]
fn the_unit_is_understood_by_systemd() {
    let words = ["verify", "./terraced.service", "./terrace.slice"];
    let Some((good, told)) = analyze("the_unit_is_understood_by_systemd", &words) else { return };
    assert!(good && told.is_empty(), "{told}");
}

#[test]
fn the_unit_gives_away_no_more_than_it_must() {
    // In tenths, as systemd 252 counts: below 3.0. What is left are the rights that Terrace lives on.
    let words = ["security", "--offline=true", "--no-pager", "--threshold=29", "./terraced.service"];
    let Some((good, told)) = analyze("the_unit_gives_away_no_more_than_it_must", &words) else { return };
    if told.contains("unrecognized option") {
        println!("SKIPPED the_unit_gives_away_no_more_than_it_must: this systemd-analyze reads no files (before 250)");
        return;
    }
    assert!(good, "{told}");
}

#[test]
fn the_guard_is_not_killed_with_the_daemon() {
    // systemd kills what is left of a dead service with every other mode, at once (systemd.kill(5)); scripts/unit-test shows it.
    assert!(UNIT.lines().any(|line| line == "KillMode=process"));
}

#[test]
fn a_daemon_that_hangs_is_noticed_within_half_a_minute() {
    let has = |line: &str| UNIT.lines().any(|one| one == line);
    assert!(has("WatchdogSec=30s") && has("StartLimitBurst=5"));
    let watchdog = terrace_daemon::config::schema::find("daemon.watchdog").unwrap();
    assert_eq!(watchdog.default, "\"30s\"", "the unit and the daemon mean the same");
    // The daemon's own bound for its end comes before systemd's, so that it says why.
    assert!(has("TimeoutStopSec=10min") && terrace_daemon::daemon::STOP_LIMIT.as_secs() < 600);
}

#[test]
fn all_that_the_packages_hold_is_there() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for (name, least) in [("contents", 20), ("contents-dkms", 3), ("contents-record", 2), ("contents-research", 6)] {
        let list = std::fs::read_to_string(folder.join("packaging").join(name)).unwrap();
        let rows: Vec<Vec<&str>> = list
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with('#'))
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert!(rows.len() >= least, "packaging/{name} has {} rows", rows.len());
        for row in rows {
            let [source, place, mode, rest @ ..] = row.as_slice() else { panic!("packaging/{name}: {row:?}") };
            assert!(["644", "755"].contains(mode) && !place.starts_with('/'), "packaging/{name}: {row:?}");
            assert!(rest.is_empty() || rest == ["config"], "packaging/{name}: {row:?}");
            // What is built is not there yet: the programs, and what `terrace generate` writes.
            if !source.starts_with("target/") && !source.starts_with("qemu-plugin/target/") {
                let path =
                    source.rsplit_once('/').filter(|(_, file)| file.starts_with('*')).map_or(*source, |(path, _)| path);
                assert!(folder.join(path).exists(), "packaging/{name} names {source}, which is not there");
            }
        }
    }
    let scripts = ["debian/postinst", "debian/prerm", "debian/postrm", "debian-dkms/postinst", "debian-dkms/prerm"];
    for script in scripts {
        let path = folder.join("packaging").join(script);
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o755, "{script}");
        assert!(Command::new("sh").arg("-n").arg(&path).status().unwrap().success(), "{script}");
    }
}

#[test]
fn the_module_and_the_chart_have_the_version_of_the_programs() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../");
    let version = env!("CARGO_PKG_VERSION");
    for (file, line) in [
        ("kmod/terrace_mm/dkms.conf", format!("PACKAGE_VERSION=\"{version}\"")),
        ("packaging/helm/terrace/Chart.yaml", format!("version: {version}")),
        ("packaging/helm/terrace/Chart.yaml", format!("appVersion: {version}")),
    ] {
        let text = std::fs::read_to_string(folder.join(file)).unwrap();
        assert!(text.lines().any(|one| one == line), "{file} lacks the line {line}");
    }
}

#[test]
fn the_chart_knows_the_keys_of_a_class() {
    // The daemon's page is held to the daemon by a test of its own.
    let page = include_str!("../../../docs/reference/daemon.md");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `class.NAME.")?.split('`').next());
    let known: BTreeSet<&str> = rows.collect();
    let text = include_str!("../../../packaging/helm/terrace/values.schema.json");
    let schema: serde_json::Value = serde_json::from_str(text).unwrap();
    let class = &schema["properties"]["classes"]["additionalProperties"]["properties"];
    let in_chart: BTreeSet<&str> = class.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(in_chart, known, "left: keys of a class in values.schema.json; right: in docs/reference/daemon.md");
}

#[test]
fn prometheus_takes_the_alert_rules() {
    let rules = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/prometheus/terrace.rules.yml");
    let Ok(output) = Command::new("promtool").args(["check", "rules"]).arg(rules).output() else {
        println!("SKIPPED prometheus_takes_the_alert_rules: there is no promtool (apt install prometheus)");
        return;
    };
    let told = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&told));
}
