//! Live tests of the survey: forty programs of which five are idle with much memory, what it says of them against what a managed run saves, what it costs, and
//! what it says without rights.
//!
//! In: nothing, or a part of a test's name. Out: a line a test, and the figures of each program. Must not: leave anything behind.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test program: it speaks, and panics are its failures")]

mod common;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use common::{PATIENCE, Running, read, run_live_tests, terrace, wait_until};
use rustix::process::Signal;
use serde_json::Value;
use terrace_fixtures::live;
use terrace_linux::usage::{Who, usage};

const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/resident.py");
const MIB: f64 = 1048576.0;
/// Name, the share that is used, and what the memory holds.
const IDLE: [[&str; 3]; 5] = [
    ["sv-text", "0", "text"],
    ["sv-half", "0.1", "half"],
    ["sv-zeros", "0", "zeros"],
    ["sv-part", "0.25", "text"],
    ["sv-half-2", "0", "half"],
];

fn main() -> ExitCode {
    if !live::can_run("live_survey", live::need_program("python3")) {
        return ExitCode::SUCCESS;
    }
    run_live_tests(
        "live_survey",
        &[
            ("idle_programs_are_on_top_and_give_back_what_was_said", idle_programs_are_on_top),
            ("what_another_terrace_watches_is_left_to_it", what_another_terrace_watches_is_left_to_it),
            ("looks_go_on_until_they_are_ended", looks_go_on_until_they_are_ended),
            ("without_rights_it_says_what_it_needs_and_shows_the_rest", without_rights),
        ],
    )
}

/// Programs that hold memory until this is dropped.
struct Programs {
    place: tempfile::TempDir,
    running: Vec<(String, Running)>,
}

impl Programs {
    fn new() -> Programs {
        Programs { place: tempfile::tempdir().unwrap(), running: Vec::new() }
    }

    fn start(&mut self, name: &str, mib: u32, hot: &str, what: &str) {
        let mut command = Command::new("python3");
        command.args([PROGRAM, name, &mib.to_string(), hot, what]).arg(self.place.path().join("end"));
        self.running.push((name.to_owned(), Running::start(command.stdin(Stdio::null()))));
    }

    fn wait_until_filled(&mut self) {
        for (name, running) in &mut self.running {
            let file = self.place.path().join(format!("end.{name}"));
            wait_until(PATIENCE, "a program has filled its memory", || {
                assert!(running.is_running(), "{}", running.stderr());
                file.metadata().is_ok_and(|file| file.len() > 0)
            });
        }
    }

    fn pid(&self, name: &str) -> u32 {
        read(&self.place.path().join(format!("end.{name}"))).parse().unwrap()
    }

    /// Ends them; each has all of its data.
    fn end(mut self) {
        std::fs::write(self.place.path().join("end"), "").unwrap();
        for (name, running) in &mut self.running {
            let done = running.finish(PATIENCE);
            assert_eq!(done.code, 0, "{name} found other data than it wrote: {}", done.stderr);
        }
    }
}

/// The row of a program.
#[track_caller]
fn row<'a>(look: &'a Value, name: &str) -> &'a Value {
    let rows = look["rows"].as_array().unwrap();
    rows.iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("no row {name}: {look}"))
}

fn number(row: &Value, field: &str) -> f64 {
    row[field].as_f64().unwrap_or_else(|| panic!("no {field}: {row}"))
}

fn idle_programs_are_on_top() {
    let mut programs = Programs::new();
    for [name, hot, what] in IDLE {
        programs.start(name, 300, hot, what);
    }
    for busy in 0..35 {
        programs.start(&format!("sv-busy-{busy}"), 6, "1", "text");
    }
    programs.wait_until_filled();
    let (began, before) = (Instant::now(), usage(Who::WaitedChildren));
    let mut survey = Running::start(terrace().args(["survey", "--by", "program", "--json"]));
    let done = survey.finish(Duration::from_secs(400));
    let (wall, after) = (began.elapsed().as_secs_f64(), usage(Who::WaitedChildren));
    assert_eq!(done.code, 0, "{}", done.stderr);
    let used = after.user_seconds + after.system_seconds - before.user_seconds - before.system_seconds;
    let look = done.report();
    println!(
        "    {:.2} % of a core ({used:.2} s of {wall:.0} s), {} blocks",
        used / wall * 100.0,
        look["cost"]["blocks"]
    );
    assert!(used / wall <= 0.01, "{used} s in {wall} s");
    let rows = look["rows"].as_array().unwrap();
    let ours: Vec<&Value> = rows.iter().filter(|row| row["name"].as_str().unwrap().starts_with("sv-")).collect();
    assert_eq!(ours.len(), 40, "{look}");
    let (first, rest) = ours.split_at(5);
    assert!(first.iter().all(|row| !row["name"].as_str().unwrap().starts_with("sv-busy")), "{first:?}");
    // What is in use all the time gives nothing back but the interpreter's own start.
    for row in rest {
        assert!(number(row, "gives_back_bytes") < 8.0 * MIB, "{row}");
    }
    // Each is managed for a minute; at a landing those two that differ most.
    let lands = std::env::var("TERRACE_SOAK_SECONDS").is_ok_and(|seconds| seconds == "0");
    for [name, hot, what] in IDLE {
        let said = row(&look, name);
        let idle = said["idle"]["two_minutes_bytes"].as_f64().unwrap();
        let cold = 300.0 * MIB * (1.0 - hot.parse::<f64>().unwrap());
        assert!((idle - cold).abs() < 0.05 * 300.0 * MIB, "{name}: {} MiB idle: {said}", idle / MIB);
        assert_eq!(said["idle"]["five_minutes_bytes"], Value::Null, "nobody watched for so long");
        if lands && !["sv-zeros", "sv-part"].contains(&name) {
            continue;
        }
        let pid = programs.pid(name).to_string();
        let words = ["attach", "--pid", &pid, "--duration", "50s", "--tier-slow", "zram:512MiB", "--json"];
        let managed = Running::start(terrace().args(words)).finish(Duration::from_secs(200));
        assert_eq!(managed.code, 0, "{}", managed.stderr);
        let memory = number(said, "memory_bytes");
        let saved = number(&managed.report(), "fast_bytes_saved_end") / memory;
        let share = number(said, "gives_back_share");
        println!("    {name} ({what}): said {:.1} %, managed {:.1} %", share * 100.0, saved * 100.0);
        assert!((share - saved).abs() <= 0.05, "{name}: said {share}, managed {saved}: {}", managed.stderr);
    }
    programs.end();
}

fn what_another_terrace_watches_is_left_to_it() {
    let mut programs = Programs::new();
    programs.start("sv-taken", 32, "0", "text");
    programs.start("sv-free", 32, "0", "text");
    programs.wait_until_filled();
    let pid = programs.pid("sv-taken").to_string();
    let mut other = Running::start(terrace().args(["observe", "--pid", &pid, "--duration", "60s", "--json", "-v"]));
    let holds = |pid: u32| {
        let entries = std::fs::read_dir(format!("/proc/{pid}/fdinfo")).unwrap().flatten();
        entries.filter_map(|entry| std::fs::read_to_string(entry.path()).ok()).any(|text| text.contains("\nPid:\t"))
    };
    wait_until(PATIENCE, "the other has taken it up", || {
        assert!(other.is_running(), "{}", other.stderr());
        holds(other.pid())
    });
    let words = ["survey", "--by", "program", "--duration", "20s", "--json"];
    let done = Running::start(terrace().args(words)).finish(PATIENCE);
    assert_eq!(done.code, 0, "{}", done.stderr);
    let look = done.report();
    assert_eq!(row(&look, "sv-taken")["gives_back_bytes"], Value::Null, "{look}");
    assert!(number(row(&look, "sv-free"), "gives_back_bytes") > 20.0 * MIB, "{look}");
    let unseen = look["unseen"].to_string();
    assert!(unseen.contains(&format!("terrace (pid {}) watches already", other.pid())), "{unseen}");
    other.signal(Signal::INT);
    assert_eq!(other.finish(PATIENCE).code, 0);
    programs.end();
}

fn looks_go_on_until_they_are_ended() {
    let mut programs = Programs::new();
    programs.start("sv-one", 32, "0", "text");
    programs.wait_until_filled();
    let mut watch = Running::start(terrace().args(["survey", "--watch", "--interval", "2s", "--json"]));
    wait_until(PATIENCE, "three looks", || watch.stdout().lines().count() >= 3);
    watch.signal(Signal::INT);
    let done = watch.finish(PATIENCE);
    assert_eq!(done.code, 0, "{}", done.stderr);
    let looks: Vec<Value> = done.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(looks.windows(2).all(|pair| number(&pair[1], "time") > number(&pair[0], "time")));
    // Ctrl-C ends a survey early, with what is known by then.
    let mut early = Running::start(terrace().args(["survey", "--by", "program"]));
    std::thread::sleep(Duration::from_secs(4));
    early.signal(Signal::INT);
    let done = early.finish(PATIENCE);
    assert!(done.code == 0 && done.stdout.contains("sv-one"), "{}{}", done.stdout, done.stderr);
    programs.end();
}

fn without_rights() {
    let mut programs = Programs::new();
    programs.start("sv-seen", 32, "0", "text");
    programs.wait_until_filled();
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let terrace = folder.path().join("terrace");
    std::fs::copy(Path::new(env!("CARGO_BIN_EXE_terrace")), &terrace).unwrap();
    let mut command = Command::new("setpriv");
    command.args(["--no-new-privs", "--bounding-set=-all", "--reuid=65534", "--regid=65534", "--clear-groups"]);
    command.arg("--inh-caps=-all").arg(&terrace).env_remove("TERRACE_LOG").current_dir("/");
    let done = Running::start(command.args(["survey", "--by", "program", "-n", "500"])).finish(PATIENCE);
    println!("    {}", done.stderr.lines().collect::<Vec<_>>().join("\n    "));
    assert_eq!(done.code, 1, "{}", done.stderr);
    assert!(
        done.stdout.contains("how much of it is idle was not seen") && done.stdout.contains("sv-seen"),
        "{}",
        done.stdout
    );
    for word in ["only how much there is", "to enable it: root (sudo), or CAP_BPF, CAP_PERFMON", "CAP_SYS_PTRACE"] {
        assert!(done.stderr.contains(word), "{word}: {}", done.stderr);
    }
    programs.end();
}
