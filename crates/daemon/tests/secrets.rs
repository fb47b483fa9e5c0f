//! The secrets of the metrics server with real certificates: the names it answers for, and what a reload accepts.
//!
//! In: certificates that `openssl` makes; without it the tests say SKIPPED. Out: nothing. Must not: need root, or a network.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test says what it could not look at")]

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use terrace_daemon::access::{Access, AccessConfig, Keys};
use terrace_daemon::rights::{Grants, Right};

/// Makes a certificate for a name and 192.0.2.7, and its key.
fn certificate(place: &Path, name: &str) -> bool {
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"])
        .args(["-subj", "/CN=common.example", "-addext"])
        .arg(format!("subjectAltName=DNS:{name},DNS:*.tiers.example,IP:192.0.2.7"))
        .arg("-keyout")
        .arg(place.join("key"))
        .arg("-out")
        .arg(place.join("certificate"))
        .stderr(Stdio::null())
        .status();
    let made = made.is_ok_and(|status| status.success());
    if made {
        private(&place.join("key"));
    }
    made
}

fn private(path: &Path) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
}

fn paths(place: &Path) -> AccessConfig {
    std::fs::write(place.join("token"), "t".repeat(40)).unwrap();
    private(&place.join("token"));
    let path = |name: &str| Some(place.join(name));
    AccessConfig { token: path("token"), certificate: path("certificate"), key: path("key"), ..AccessConfig::default() }
}

#[test]
fn it_answers_for_the_names_of_its_certificate_and_for_no_other() {
    let place = tempfile::tempdir().unwrap();
    if !certificate(place.path(), "one.example") {
        println!("SKIPPED it_answers_for_the_names_of_its_certificate_and_for_no_other: there is no `openssl`");
        return;
    }
    let access = Access::from_config(&paths(place.path())).unwrap();
    for ours in ["one.example", "ONE.example:9464", "a.tiers.example", "localhost:1", "127.0.0.1", "[::1]:9464"] {
        assert!(access.answers_for(ours), "{ours}");
    }
    // Any address: another site's DNS cannot redirect it. With a token only.
    assert!(access.answers_for("198.51.100.1:9464") && access.answers_for("[2001:db8::1]"));
    assert!(!Access::default().answers_for("198.51.100.1:9464"));
    // A common name does not count (RFC 9525, section 2).
    for other in
        ["evil.example", "one.example.evil.example", "tiers.example", "common.example", "", ":", "one.example:x", "::1"]
    {
        assert!(!access.answers_for(other), "{other:?}");
    }
}

#[test]
fn a_renewed_certificate_is_taken_in_whole_or_not_at_all() {
    let place = tempfile::tempdir().unwrap();
    if !certificate(place.path(), "one.example") {
        println!("SKIPPED a_renewed_certificate_is_taken_in_whole_or_not_at_all: there is no `openssl`");
        return;
    }
    let keys = Keys::from_config(&paths(place.path())).unwrap();
    let unchanged = keys.read_again(&Grants::default()).unwrap();
    assert_eq!(keys.take(unchanged), None);

    // A new certificate with the old key, as in the middle of a renewal: refused, and the old pair stays in force.
    let old_key = std::fs::read(place.path().join("key")).unwrap();
    assert!(certificate(place.path(), "two.example"));
    let new_key = std::fs::read(place.path().join("key")).unwrap();
    std::fs::write(place.path().join("key"), &old_key).unwrap();
    let told = format!("{:#}", keys.read_again(&Grants::default()).err().unwrap());
    assert!(told.contains("metrics.certificate = ") && told.contains("metrics.key = "), "{told}");
    assert!(keys.now().answers_for("one.example") && !keys.now().answers_for("two.example"));

    std::fs::write(place.path().join("key"), &new_key).unwrap();
    let before = keys.now();
    let fresh = keys.read_again(&Grants::default()).unwrap();
    assert_eq!(keys.take(fresh), Some("a new certificate is in force"));
    assert!(keys.now().answers_for("two.example") && !keys.now().answers_for("one.example"));
    assert!(before.answers_for("one.example"), "a connection that was open keeps what it began with");

    std::fs::write(place.path().join("token"), "u".repeat(40)).unwrap();
    let fresh = keys.read_again(&Grants::default()).unwrap();
    assert_eq!(keys.take(fresh), Some("a new token is in force"));
    assert_eq!(keys.now().rules.right_here(None, Some("u".repeat(40).as_bytes())), Right::Read);
    assert_eq!(keys.now().rules.right_here(None, Some("t".repeat(40).as_bytes())), Right::Alive);
}
