//! Everything managed, and programs woken on request, in a pid namespace of its own: what else runs on this machine is not part of the test. Needs root, zram, a
//! tracker, python3, and leave to make a namespace.
//!
//! In: nothing, or a part of a test's name. Out: one line a test; SKIPPED and the reason where they cannot run. Must not: touch a process outside of the
//! namespace, or leave anything behind.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test program: it speaks, and panics are its failures")]

mod common;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use common::daemon::{named, terraced};
use common::namespace::{Swap, inside, refused, words};
use common::{Finished, read, run_live_tests};
use serde_json::Value;

/// A policy in a hurry.
const EAGER: [&str; 6] = ["--set", "idle=1s", "--interval", "250ms", "--max-slowdown", "100%"];
const IDLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/asleep.py");
const MIB: u64 = 1 << 20;
/// What each idle program fills.
const FILLED: u64 = 48 * MIB;

fn main() -> ExitCode {
    let python =
        Command::new("python3").arg("--version").stdout(Stdio::null()).status().is_ok_and(|status| status.success());
    if let Some(reason) = refused().or_else(|| (!python).then(|| "python3 is not there".to_owned())) {
        println!("SKIPPED live_all: needs a pid namespace of its own, and python3: {reason}");
        return ExitCode::SUCCESS;
    }
    run_live_tests(
        "live_all",
        &[
            ("idle_programs_leave_and_what_holds_the_machine_stays", idle_programs_leave),
            ("programs_that_come_change_and_go_are_followed", programs_that_come_change_and_go),
            ("children_nobody_waits_for_cost_nothing", children_nobody_waits_for),
            ("the_service_has_everything_and_wakes_it", the_service_has_everything),
        ],
    )
}

/// A folder with the functions that the scripts use, and what they print, by name.
struct Place {
    folder: tempfile::TempDir,
    swap: Swap,
}

impl Place {
    fn new() -> Place {
        Place { folder: tempfile::tempdir().unwrap(), swap: Swap::set_up() }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Words of `attach --all` with that swap.
    fn attach(&self, more: &[&str]) -> String {
        let tier = format!("swap:{}", self.swap.device());
        words(&[&["attach", "--all", "--tier-slow", &tier][..], &EAGER, more].concat())
    }

    /// Runs a script in the namespace. `idle NAME WORDS...` starts a program that it waits for to be filled, its pid is in `$NAME`; `swapped NAME` keeps
    /// its swap; `wake_up` has all read what they have.
    fn run(&self, script: &str) -> Finished {
        let functions = format!(
            "cd '{}' || exit 9; started=; \
             idle() {{ name=$1; shift; \"$@\" >$name.out 2>&1 & eval $name=$!; started=\"$started $!\"; \
               for try in $(seq 300); do grep -q ready $name.out && return; sleep 0.1; done; cat $name.out >&2; exit 8; }}; \
             swapped() {{ for name; do eval pid=\\$$name; sed -n 's/^VmSwap:\\s*//p' /proc/$pid/status >$name.swap; done; }}; \
             wake_up() {{ kill -USR1 $started; wait $started; }}; ",
            self.folder.path().display()
        );
        inside(&(functions + script))
    }

    /// Bytes that a program had in swap when the script asked.
    fn swapped(&self, name: &str) -> u64 {
        let text = read(&self.file(&format!("{name}.swap")));
        let kilobytes: u64 = text
            .split_whitespace()
            .next()
            .and_then(|word| word.parse().ok())
            .unwrap_or_else(|| panic!("{name}: {text:?}"));
        kilobytes << 10
    }

    /// Whether a program found its data as it had left them.
    fn is_whole(&self, name: &str) -> bool {
        read(&self.file(&format!("{name}.out"))).ends_with("whole\n")
    }

    fn json(&self, name: &str) -> Value {
        let text = read(&self.file(name));
        serde_json::from_str(text.trim()).unwrap_or_else(|error| panic!("{name}: {error}: {text}"))
    }
}

/// Python under a name of its own.
fn python_as(name: &str, place: &Place) -> String {
    let real = Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output().unwrap();
    let real = String::from_utf8(real.stdout).unwrap();
    let link = place.file(name);
    std::os::unix::fs::symlink(real.trim(), &link).unwrap();
    link.display().to_string()
}

fn idle_programs_leave() {
    let place = Place::new();
    let sshd = python_as("sshd", &place);
    let real_time = Command::new("chrt").args(["-f", "1", "true"]).status().is_ok_and(|status| status.success());
    let chrt = if real_time { "chrt -f 1" } else { "" };
    let attach = place.attach(&["--never", "vault*", "--duration", "14s", "--json-file", "report.json"]);
    let vault = python_as("vault-agent", &place);
    let wake = words(&["wake", "--json", "--socket", "/no-socket"]);
    let done = place.run(&format!(
        "idle one python3 {IDLE} 48; idle two python3 {IDLE} 48; idle ssh {sshd} {IDLE} 48; idle safe {vault} {IDLE} 48; \
         idle locked python3 {IDLE} 48 lock; idle urgent {chrt} python3 {IDLE} 48; \
         {attach} 2>told; code=$?; swapped one two ssh safe locked urgent; \
         {wake} $one >woken.json; sed -n 's/^VmSwap:\\s*//p' /proc/$one/status >after.swap; wake_up; exit $code"
    ));
    assert_eq!(done.code, 0, "{}{}", done.stderr, read(&place.file("told")));
    for name in ["one", "two"] {
        assert!(place.swapped(name) > FILLED * 6 / 10, "{name}: {}", place.swapped(name));
    }
    for name in ["ssh", "safe", "locked"] {
        assert_eq!(place.swapped(name), 0, "{name} is never touched");
    }
    if real_time {
        assert_eq!(place.swapped("urgent"), 0, "what runs in real time is never touched");
    } else {
        println!("SKIPPED the part in real time: chrt -f is not permitted here");
    }
    let report = place.json("report.json");
    assert_eq!(
        (&report["target"]["everything"], &report["target"]["pid"]),
        (&Value::Bool(true), &Value::from(0)),
        "{report}"
    );
    let told = read(&place.file("told"));
    for part in [
        "processes are managed",
        "never touched",
        "sshd*",
        "vault*",
        "with all memory locked",
        "Terrace and what started it",
    ] {
        assert!(told.contains(part), "{part:?} is not in {told:?}");
    }
    // Woken without a service: all of it, and nothing of the others.
    let woken = place.json("woken.json");
    assert!(woken["bytes"].as_u64().unwrap() > FILLED * 6 / 10 && woken["seconds"].as_f64().unwrap() < 5.0, "{woken}");
    assert!(place.swapped("after") < MIB, "{}", place.swapped("after"));
    for name in ["one", "two", "ssh", "safe", "locked", "urgent"] {
        assert!(place.is_whole(name), "{name}");
    }
}

fn programs_that_come_change_and_go() {
    let place = Place::new();
    let sshd = python_as("sshd", &place);
    let attach = place.attach(&["--duration", "22s", "--json-file", "report.json"]);
    // One comes later, one becomes what is never touched, and many are over at once.
    let done = place.run(&format!(
        "idle early python3 {IDLE} 48; {attach} 2>told & attach=$!; sleep 3; \
         idle late python3 {IDLE} 48; idle changed sh -c 'sleep 2; exec {sshd} {IDLE} 48'; \
         for birth in $(seq 300); do true & /bin/true; done; \
         wait $attach; code=$?; swapped early late changed; wake_up; exit $code"
    ));
    assert_eq!(done.code, 0, "{}{}", done.stderr, read(&place.file("told")));
    for name in ["early", "late"] {
        assert!(place.swapped(name) > FILLED * 6 / 10, "{name}: {}", place.swapped(name));
    }
    assert!(place.swapped("changed") < FILLED / 4, "it is sshd from two seconds on: {}", place.swapped("changed"));
    for name in ["early", "late", "changed"] {
        assert!(place.is_whole(name), "{name}");
    }
    let managed = place.json("report.json")["target"]["processes"].as_u64().unwrap();
    assert!(managed < 40, "{managed} processes: those that ended at once are not taken up");
}

fn children_nobody_waits_for() {
    let place = Place::new();
    let attach = place.attach(&["--duration", "15s", "--json-file", "report.json"]);
    // A process that never waits for a thousand children that ended.
    let parent = "python3 -c 'import os, signal, time\nfor n in range(1000):\n  if not os.fork(): os._exit(0)\nprint(\"ready\", flush=True)\n\
                  signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1]); signal.sigwait([signal.SIGUSR1])'";
    let done = place.run(&format!(
        "idle parent {parent}; idle one python3 {IDLE} 48; ls /proc | grep -c '^[0-9]' >processes; {attach} 2>told; code=$?; swapped one; wake_up; exit $code"
    ));
    assert_eq!(done.code, 0, "{}{}", done.stderr, read(&place.file("told")));
    assert!(read(&place.file("processes")).trim().parse::<u32>().unwrap() > 1000);
    assert!(place.swapped("one") > FILLED * 6 / 10, "{}", place.swapped("one"));
    let report = place.json("report.json");
    let processes = report["target"]["processes"].as_u64().unwrap();
    assert!(processes < 10, "{processes}: what has ended is not managed");
    println!(
        "    with 1,000 children that ended: own CPU {} s of {} s",
        report["manager"]["cpu_seconds"], report["target"]["wall_seconds"]
    );
}

fn the_service_has_everything() {
    let place = Place::new();
    let sshd = python_as("sshd", &place);
    let web = named("all-web");
    let config = format!(
        "[daemon]\nsocket = \"{0}/socket\"\npoll = \"500ms\"\n[memory]\nslow = \"swap:{1}\"\n[budget]\ncpu = \"80%\"\nperiod = \"500ms\"\n\
         [metrics]\nlisten = \"off\"\n[class.rest]\nmatch = [{{ all = true }}]\npolicy = \"age\"\nset = {{ idle = \"1s\", interval = \"250ms\" }}\n\
         max_slowdown = \"100%\"\n[class.web]\nmatch = [{{ exe = \"{2}\" }}]\n",
        place.folder.path().display(),
        place.swap.device(),
        web.display()
    );
    std::fs::write(place.file("terrace.toml"), config).unwrap();
    let ask = |words_: &[&str]| words(&[words_, &["--socket", place.file("socket").to_str().unwrap()]].concat());
    let done = place.run(&format!(
        "idle one python3 {IDLE} 48; idle ssh {sshd} {IDLE} 48; '{terraced}' --config '{config}' 2>log & daemon=$!; \
         for try in $(seq 300); do {status} >status.json 2>/dev/null && break; sleep 0.2; done; \
         {web} workload hot-cold --size 8MiB --duration 20s >web.out 2>&1 & web=$!; \
         for try in $(seq 150); do swapped one; [ $(cut -d' ' -f1 one.swap) -gt 30000 ] && break; sleep 0.2; done; swapped ssh; \
         {status} >status.json; {explain} $ssh >ssh.json; {explain} $web >web.json; \
         {pause} rest >/dev/null; {wake} rest >class.json; sed -n 's/^VmSwap:\\s*//p' /proc/$one/status >after.swap; \
         {wake} $one >process.json; {wake} nobody 2>nobody; echo $? >nobody.code; {wake} $ssh >ssh-woken.json; \
         {wake} 4194304 2>gone; echo $? >gone.code; wake_up; kill $web; kill $daemon; wait $daemon; exit $?",
        terraced = terraced().display(),
        config = place.file("terrace.toml").display(),
        web = web.display(),
        status = ask(&["status", "--json"]),
        explain = ask(&["explain", "--json"]),
        pause = ask(&["pause", "--json"]),
        wake = ask(&["wake", "--json"]),
    ));
    let log = read(&place.file("log"));
    assert_eq!(done.code, 0, "{}\n{log}", done.stderr);
    assert!(place.swapped("one") > FILLED * 6 / 10, "{}\n{log}", place.swapped("one"));
    assert_eq!(place.swapped("ssh"), 0);
    let why = place.json("ssh.json")["why"].as_str().unwrap().to_owned();
    assert!(why.contains("holds the machine up") && why.contains("sshd*") && why.contains("daemon.never"), "{why}");
    assert_eq!(place.json("web.json")["class"], "web", "what another class names is not everything's");
    let woken = place.json("class.json");
    assert!(woken["bytes"].as_u64().unwrap() > FILLED / 2, "{woken}\n{log}");
    assert!(place.swapped("after") < FILLED / 4, "{}: {woken}", place.swapped("after"));
    assert_eq!(place.json("process.json")["processes"], 1);
    assert_eq!(read(&place.file("nobody.code")).trim(), "2");
    assert!(
        read(&place.file("nobody")).contains("there is no class nobody; there are: rest, web"),
        "{}",
        read(&place.file("nobody"))
    );
    assert_eq!(place.json("ssh-woken.json")["bytes"], 0, "it has nothing in swap, and is in no class");
    assert_eq!(read(&place.file("gone.code")).trim(), "1");
    assert!(read(&place.file("gone")).contains("process 4194304 is gone"), "{}", read(&place.file("gone")));
    for name in ["one", "ssh"] {
        assert!(place.is_whole(name), "{name}");
    }
    assert!(Path::new(&place.file("socket")).exists().then_some(()).is_none(), "the daemon removed its socket");
}
