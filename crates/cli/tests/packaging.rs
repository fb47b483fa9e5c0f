//! The package's files are what those who read them understand.
//!
//! In: `packaging/`. Out: nothing. Must not: need a running systemd; `systemd-analyze verify` reads files alone.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test says what it could not look at")]

use std::process::Command;

const UNIT: &str = include_str!("../../../packaging/systemd/terraced.service");
const SLICE: &str = include_str!("../../../packaging/systemd/terrace.slice");

#[test]
fn the_unit_is_understood_by_systemd() {
    let place = tempfile::tempdir().unwrap();
    // The programs lie elsewhere here, and manual pages are not installed.
    let unit = UNIT
        .replace("/usr/bin/terraced", env!("CARGO_BIN_EXE_terraced"))
        .replace("/usr/bin/terrace ", &format!("{} ", env!("CARGO_BIN_EXE_terrace")))
        .replace("Documentation=man:terraced(8)\n", "");
    assert!(unit.contains(env!("CARGO_BIN_EXE_terraced")) && !unit.contains("man:"));
    std::fs::write(place.path().join("terraced.service"), unit).unwrap();
    std::fs::write(place.path().join("terrace.slice"), SLICE).unwrap();
    let verify = Command::new("systemd-analyze")
        .args(["verify", "./terraced.service", "./terrace.slice"])
        .current_dir(place.path())
        .output();
    let Ok(verify) = verify else {
        println!("SKIPPED the_unit_is_understood_by_systemd: there is no systemd-analyze");
        return;
    };
    let told = String::from_utf8_lossy(&verify.stderr).into_owned();
    assert!(verify.status.success() && told.is_empty(), "{told}");
}
