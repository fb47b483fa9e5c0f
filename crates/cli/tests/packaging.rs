//! The package's files are what those who read them understand.
//!
//! In: `packaging/` and this crate's Cargo.toml. Out: nothing. Must not: need a running systemd; `systemd-analyze` reads files alone.
//! `scripts/unit-test` runs the unit under a systemd.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test says what it could not look at")]

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
    // In tenths, as systemd 252 counts; what is left are the rights that Terrace lives on, and the network of the metrics.
    let words = ["security", "--offline=true", "--no-pager", "--threshold=39", "./terraced.service"];
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
fn all_that_the_package_holds_is_there() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let manifest = std::fs::read_to_string(folder.join("Cargo.toml")).unwrap();
    let package = manifest.split("[package.metadata.deb]").nth(1).unwrap().split("\n[").next().unwrap();
    let sources: Vec<&str> =
        package.lines().filter_map(|line| line.trim().strip_prefix("[\"")?.split('"').next()).collect();
    assert!(sources.len() > 10, "{sources:?}");
    for source in sources {
        // What is built is not there yet: the programs, and what `terrace generate` writes.
        if !source.starts_with("target/") && !source.starts_with("../../target/") {
            let path = folder.join(source.trim_end_matches('*'));
            assert!(path.exists(), "Cargo.toml puts {source} into the package");
        }
    }
    for script in ["postinst", "prerm", "postrm"] {
        let path = folder.join("../../packaging/debian").join(script);
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o755, "{script}");
        assert!(Command::new("sh").arg("-n").arg(&path).status().unwrap().success(), "{script}");
    }
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
