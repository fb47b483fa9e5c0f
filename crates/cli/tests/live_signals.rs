//! Signals and job control as a shell user knows them: a terminal's keys, kill(1) of Terrace, of its group, of a program in a group of its own.
//!
//! In: nothing, or a part of a test's name. Out: one line a test; SKIPPED and the reason where they cannot run. Must not: leave a process behind.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test program: it speaks, and panics are its failures")]

mod common;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};
use std::time::Instant;

use common::{PATIENCE, read, run_live_tests, wait_until};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use terrace_fixtures::live;

const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/signals.py");
/// What a terminal makes signals of.
const CTRL_C: &str = "\x03";
const CTRL_BACKSLASH: &str = "\x1c";
const CTRL_Z: &str = "\x1a";
const FROM_NULL: &str = "</dev/null";

fn main() -> ExitCode {
    // script(1) has a terminal for us, and bash the job control.
    for needed in ["python3", "script", "bash"] {
        if !live::can_run("live_signals", live::need_program(needed)) {
            return ExitCode::SUCCESS;
        }
    }
    run_live_tests(
        "live_signals",
        &[
            ("a_terminals_keys_reach_the_program_once", a_terminals_keys_reach_the_program_once),
            ("a_signal_to_terrace_alone_is_passed_on_once", a_signal_to_terrace_alone_is_passed_on_once),
            ("a_signal_to_the_whole_group_comes_once", a_signal_to_the_whole_group_comes_once),
            ("a_program_that_left_the_group_gets_it_once", a_program_that_left_the_group_gets_it_once),
            ("a_hangup_of_the_session_reaches_the_program", a_hangup_of_the_session_reaches_the_program),
            ("ctrl_z_stops_both_and_fg_and_bg_continue_both", ctrl_z_stops_both_and_fg_and_bg_continue_both),
            ("stop_and_continuation_of_terrace_alone_take_both", stop_and_continuation_of_terrace_alone_take_both),
            ("terrace_goes_on_with_a_program_that_does_not_stop", terrace_goes_on_with_a_program_that_does_not_stop),
            ("a_program_stopped_by_itself_does_not_stop_terrace", a_program_stopped_by_itself_does_not_stop_terrace),
            ("what_terrace_ignores_the_program_ignores", what_terrace_ignores_the_program_ignores),
            ("an_attached_program_gets_no_signal", an_attached_program_gets_no_signal),
        ],
    )
}

/// A shell on a terminal of its own, with Terrace and the program as a job of it.
struct Session {
    terminal: Child,
    keys: ChildStdin,
    place: tempfile::TempDir,
    terrace: u32,
    program: u32,
}

impl Session {
    /// Types the command into a shell; `after` stands behind it, as a redirection does.
    fn start(way: &str, after: &str) -> Session {
        let mut session = Session::open("bash --norc --noprofile -i");
        let line = format!("{}{after}\n", session.line(way));
        session.types(&line);
        session.wait_until_ready();
        session
    }

    fn open(command: &str) -> Session {
        let place = tempfile::tempdir().unwrap();
        let mut terminal = Command::new("script")
            .args(["-q", "-e", "-c", command, "/dev/null"])
            .env_remove("TERRACE_LOG")
            .env("SHELL", "/bin/sh")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let keys = terminal.stdin.take().unwrap();
        Session { terminal, keys, place, terrace: 0, program: 0 }
    }

    fn file(&self) -> PathBuf {
        self.place.path().join("signals")
    }

    fn line(&self, way: &str) -> String {
        line(&self.file(), &self.place.path().join("report.json"), way)
    }

    fn types(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    fn wait_until_ready(&mut self) {
        let file = self.file();
        wait_until(PATIENCE, "the program runs", || read(&file).contains('\n'));
        let text = read(&file);
        let words: Vec<u32> = text.split_whitespace().skip(1).map(|word| word.parse().unwrap()).collect();
        (self.program, self.terrace) = (words[0], words[1]);
        // Management has begun once it takes signals from the loop.
        self.settled();
    }

    /// The signals that the program got so far, without those that [`Session::settled`] sends.
    fn got(&self) -> Vec<String> {
        let text = read(&self.file());
        text.lines().skip(1).filter(|name| *name != "SIGUSR1").map(str::to_owned).collect()
    }

    /// How often a signal came by now.
    fn times(&self, name: &str) -> usize {
        self.got().iter().filter(|one| *one == name).count()
    }

    fn wait_for(&self, name: &str, times: usize) {
        wait_until(PATIENCE, name, || self.times(name) >= times);
    }

    /// After this all that Terrace had to pass on has been passed on: it does so in order, and one that was sent now has come.
    fn settled(&self) {
        let before = read(&self.file()).matches("SIGUSR1").count();
        self.signals(Signal::USR1);
        wait_until(PATIENCE, "a signal is passed on", || read(&self.file()).matches("SIGUSR1").count() > before);
    }

    /// Sends one to Terrace alone.
    fn signals(&self, signal: Signal) {
        kill_process(pid(self.terrace), signal).unwrap();
    }

    fn both_stop(&self) {
        wait_until(PATIENCE, "program and Terrace stop", || stopped(self.program) && stopped(self.terrace));
    }

    fn both_go_on(&self) {
        wait_until(PATIENCE, "program and Terrace go on", || !stopped(self.program) && !stopped(self.terrace));
        self.settled();
    }

    /// Lets the program end, and the shell; the report of the run.
    fn end(mut self) -> serde_json::Value {
        std::fs::write(self.place.path().join("signals.end"), "").unwrap();
        let report = self.place.path().join("report.json");
        wait_until(PATIENCE, "the run ends", || report.exists());
        self.types("exit\n");
        wait_until(PATIENCE, "the shell ends", || self.terminal.try_wait().unwrap().is_some());
        serde_json::from_str(&read(&report)).unwrap()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = std::fs::write(self.place.path().join("signals.end"), "");
        for one in [self.terrace, self.program] {
            if std::thread::panicking() && one > 0 && ours(one, self.place.path()) {
                let _ = kill_process(pid(one), Signal::KILL);
            }
        }
        let _ = self.terminal.kill();
        let _ = self.terminal.wait();
    }
}

fn line(file: &Path, report: &Path, way: &str) -> String {
    let terrace = env!("CARGO_BIN_EXE_terrace");
    format!("{terrace} observe --quiet --json-file {} -- python3 {PROGRAM} {} {way} ", report.display(), file.display())
}

/// Whether a pid is still that of a process of this test.
fn ours(pid: u32, place: &Path) -> bool {
    read(Path::new(&format!("/proc/{pid}/cmdline"))).contains(place.to_str().unwrap())
}

fn pid(number: u32) -> Pid {
    Pid::from_raw(number as i32).unwrap()
}

fn stopped(pid: u32) -> bool {
    let text = read(Path::new(&format!("/proc/{pid}/stat")));
    text.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
}

fn a_terminals_keys_reach_the_program_once() {
    for stdin in ["", FROM_NULL] {
        let mut session = Session::start("", stdin);
        for (key, name) in [(CTRL_C, "SIGINT"), (CTRL_BACKSLASH, "SIGQUIT")] {
            for times in 1..=2 {
                session.types(key);
                session.wait_for(name, times);
                session.settled();
                assert_eq!(session.times(name), times, "stdin {stdin:?}");
            }
        }
        session.end();
    }
}

fn a_signal_to_terrace_alone_is_passed_on_once() {
    for stdin in ["", FROM_NULL] {
        let session = Session::start("", stdin);
        let names = ["SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR2"];
        let signals = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT, Signal::USR2];
        for (signal, name) in signals.into_iter().zip(names) {
            // The second within a second.
            for times in 1..=2 {
                session.signals(signal);
                session.wait_for(name, times);
                session.settled();
                assert_eq!(session.times(name), times, "stdin {stdin:?}");
            }
        }
        session.end();
    }
}

fn a_signal_to_the_whole_group_comes_once() {
    let session = Session::start("", "");
    let names = ["SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR2", "SIGCONT"];
    let signals = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT, Signal::USR2, Signal::CONT];
    for (signal, name) in signals.into_iter().zip(names) {
        // A job's group has the pid of its first process.
        kill_process_group(pid(session.terrace), signal).unwrap();
        session.wait_for(name, 1);
        session.settled();
        // The next to Terrace alone is one to Terrace alone.
        session.signals(signal);
        session.wait_for(name, 2);
        session.settled();
        assert_eq!(session.times(name), 2);
    }
    session.end();
}

fn a_program_that_left_the_group_gets_it_once() {
    for way in ["group", "session"] {
        let mut session = Session::start(way, "");
        session.types(CTRL_C);
        session.wait_for("SIGINT", 1);
        session.signals(Signal::INT);
        session.wait_for("SIGINT", 2);
        session.settled();
        assert_eq!(session.got(), ["SIGINT", "SIGINT"], "{way}");
        session.end();
    }
}

fn a_hangup_of_the_session_reaches_the_program() {
    // Terrace is the first process of the session; the kernel tells only that one of a terminal that is gone.
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("signals");
    let mut session = Session::open(&format!("exec {}", line(&file, &place.path().join("report.json"), "")));
    session.place = place;
    session.wait_until_ready();
    session.terminal.kill().unwrap();
    session.wait_for("SIGHUP", 1);
    session.settled();
    assert_eq!(session.times("SIGHUP"), 1);
    std::fs::write(session.place.path().join("signals.end"), "").unwrap();
    wait_until(PATIENCE, "the run ends", || session.place.path().join("report.json").exists());
}

fn ctrl_z_stops_both_and_fg_and_bg_continue_both() {
    let began = Instant::now();
    let mut session = Session::start("", "");
    for (times, command) in [(1, "fg\n"), (2, "bg\n")] {
        session.types(CTRL_Z);
        session.both_stop();
        let stopped = Instant::now();
        // The shell has the terminal again.
        let shell = session.place.path().join(format!("shell{times}"));
        session.types(&format!("echo > {}\n", shell.display()));
        wait_until(PATIENCE, "the shell answers", || shell.exists());
        std::thread::sleep(std::time::Duration::from_secs(2));
        assert!(stopped.elapsed().as_secs() >= 2);
        session.types(command);
        session.both_go_on();
        session.wait_for("SIGCONT", times);
        session.settled();
        assert_eq!(session.got(), vec!["SIGCONT"; times]);
    }
    let report = session.end();
    // Four seconds in which nothing could be used are no time in which pages were idle.
    // What is left may be shorter than the time to the first point.
    let seconds = report["timeline"].as_array().unwrap().last().map_or(0.0, |point| point["seconds"].as_f64().unwrap());
    let wall = began.elapsed().as_secs_f64();
    assert!(seconds < wall - 3.5, "the clock of management stood: {seconds} of {wall} s");
}

fn stop_and_continuation_of_terrace_alone_take_both() {
    let session = Session::start("", "");
    session.signals(Signal::TSTP);
    session.both_stop();
    session.signals(Signal::CONT);
    session.both_go_on();
    assert_eq!(session.got(), ["SIGCONT"]);
    session.end();
}

fn terrace_goes_on_with_a_program_that_does_not_stop() {
    let mut session = Session::start("deaf", "");
    session.types(CTRL_Z);
    session.wait_for("SIGTSTP", 1);
    session.settled();
    session.signals(Signal::TSTP);
    session.wait_for("SIGTSTP", 2);
    session.settled();
    assert!(!stopped(session.terrace) && !stopped(session.program));
    assert_eq!(session.got(), ["SIGTSTP", "SIGTSTP"]);
    session.end();
}

fn a_program_stopped_by_itself_does_not_stop_terrace() {
    let session = Session::start("", "");
    kill_process(pid(session.program), Signal::STOP).unwrap();
    wait_until(PATIENCE, "the program stops", || stopped(session.program));
    // It takes it, though nobody reads it yet: the loop has turned.
    session.signals(Signal::USR1);
    std::thread::sleep(std::time::Duration::from_millis(1500));
    assert!(!stopped(session.terrace));
    kill_process(pid(session.program), Signal::CONT).unwrap();
    session.both_go_on();
    session.end();
}

fn what_terrace_ignores_the_program_ignores() {
    // As below nohup(1), and in the background of a shell without job control.
    let ignored = |before: &str| {
        let shell = format!("{before} exec \"$@\"");
        let mut command = Command::new("sh");
        command.args(["-c", &shell, "sh", env!("CARGO_BIN_EXE_terrace"), "observe", "--quiet", "--"]);
        let done = command.args(["grep", "SigIgn", "/proc/self/status"]).stdin(Stdio::null()).output().unwrap();
        let text = String::from_utf8(done.stdout).unwrap();
        let mask = text.trim_start_matches("SigIgn:").trim();
        u64::from_str_radix(mask, 16).unwrap_or_else(|_| panic!("{text:?} {}", String::from_utf8_lossy(&done.stderr)))
    };
    let wanted = [Signal::HUP, Signal::INT, Signal::QUIT].map(|signal| 1 << (signal.as_raw() - 1)).iter().sum::<u64>();
    assert_eq!(ignored("trap '' HUP INT QUIT;") & wanted, wanted);
    assert_eq!(ignored("trap '' HUP INT QUIT; trap - HUP INT QUIT;") & wanted, ignored("") & wanted);
}

fn an_attached_program_gets_no_signal() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("signals");
    let mut program = Command::new("python3").arg(PROGRAM).arg(&file).stdin(Stdio::null()).spawn().unwrap();
    wait_until(PATIENCE, "the program runs", || read(&file).contains('\n'));
    let mut session = Session::open("bash --norc --noprofile -i");
    let report = session.place.path().join("report.json");
    let said = session.place.path().join("said");
    session.types(&format!(
        "{} -vv observe --json-file {} --pid {} > {} 2>&1\n",
        env!("CARGO_BIN_EXE_terrace"),
        report.display(),
        program.id(),
        said.display()
    ));
    wait_until(PATIENCE, "it manages", || read(&said).contains("managing"));
    session.types(CTRL_C);
    wait_until(PATIENCE, "Ctrl-C ends the watching", || report.exists());
    assert_eq!(read(&file).lines().count(), 1, "{}", read(&file));
    std::fs::write(place.path().join("signals.end"), "").unwrap();
    assert!(program.wait().unwrap().success());
}
