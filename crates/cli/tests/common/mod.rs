//! What the end-to-end tests of the command share.
//!
//! In: the command as it was built. Out: its runs, the state of the machine before and after, and a `main` that runs tests one
//! by one. Must not: leave anything behind.
#![allow(dead_code, reason = "each test program uses its part")]
#![allow(unused_imports, reason = "each test program uses its part")]
#![allow(clippy::print_stdout, reason = "the live tests have their own main, and speak")]

pub(crate) mod daemon;
pub(crate) mod namespace;
pub(crate) mod own_swap;

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Output, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use terrace_fixtures::live;
pub(crate) use terrace_fixtures::live::{GUARD_LIMIT, LiveTest};
pub(crate) use terrace_fixtures::machine::{State, read, status_bytes, wait_for_state, zram_devices, zram_of};
pub(crate) use terrace_fixtures::{PATIENCE, wait_until};

/// The program under test: `terrace`, or in the tests of research `terrace-research`, which is typed in the same way.
const PROGRAM: Option<&str> = match option_env!("CARGO_BIN_EXE_terrace") {
    Some(path) => Some(path),
    None => option_env!("CARGO_BIN_EXE_terrace-research"),
};

/// See [`PROGRAM`]; the other one lies beside it.
pub(crate) fn program() -> &'static Path {
    let program = Path::new(PROGRAM.expect("cargo says where the program under test is"));
    let other = if program.ends_with("terrace") { "terrace-research" } else { "terrace" };
    built(other);
    program
}

/// A program of another package, built from what is there now: cargo does not build it for these tests. With the features of the whole workspace, so
/// that after `make test` has built all there is nothing left to build; it says so by TERRACE_TESTS_BUILT, and cargo is not asked, which would
/// wait for whatever else it builds.
pub(crate) fn built(name: &'static str) -> PathBuf {
    static BUILT: Mutex<BTreeSet<&str>> = Mutex::new(BTreeSet::new());
    // Beside the program under test, in the folder of the profile; that of `dev` is called debug.
    let folder = Path::new(PROGRAM.expect("cargo says where the program under test is")).parent().unwrap();
    let mut done = BUILT.lock().unwrap();
    if std::env::var_os("TERRACE_TESTS_BUILT").is_none() && done.insert(name) {
        let profile = match folder.file_name().and_then(|name| name.to_str()).unwrap() {
            "debug" => "dev",
            other => other,
        };
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--locked", "--workspace", "--bin", name, "--profile", profile]);
        cargo.arg("--target-dir").arg(folder.parent().unwrap()).current_dir(env!("CARGO_MANIFEST_DIR"));
        assert!(cargo.status().unwrap().success(), "{name} was not built: {cargo:?}");
    }
    folder.join(name)
}

/// The command under test.
pub(crate) fn terrace() -> Command {
    let mut command = Command::new(program());
    // Logs of the environment's choosing would be taken for messages.
    // A terminal's width would be the help's.
    command.env_remove("TERRACE_LOG").env("COLUMNS", "100").stdin(Stdio::null());
    command
}

/// The command with these words, run to its end.
pub(crate) fn output(words: &[&str]) -> Output {
    terrace().args(words).output().unwrap()
}

/// What it prints on stdout where it succeeds.
#[track_caller]
pub(crate) fn text(words: &[&str]) -> String {
    let output = output(words);
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The JSON object that it prints where it succeeds.
#[track_caller]
pub(crate) fn json(words: &[&str]) -> Value {
    serde_json::from_str(&text(words)).unwrap()
}

/// A number of a report, by its JSON pointer.
#[track_caller]
pub(crate) fn number(report: &Value, pointer: &str) -> f64 {
    report.pointer(pointer).and_then(Value::as_f64).unwrap_or_else(|| panic!("no number at {pointer}: {report}"))
}

/// The commands in a help text, without `help` itself: they stand two blanks in, before the options. The command's own help has them in groups,
/// under headings of their own; what stands further in goes on with the text of the line before.
pub(crate) fn subcommands(help: &str) -> Vec<String> {
    let list = help.lines().take_while(|line| !matches!(*line, "Options:" | "Arguments:"));
    let names = list.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names = names.flat_map(|line| match line.split_whitespace().next() {
        // Those of research stand in one line.
        Some(first) if first.ends_with(',') => line.split(',').map(str::trim).collect(),
        first => Vec::from_iter(first),
    });
    names.filter(|name| *name != "help").map(str::to_owned).collect()
}

/// Every command that does something, below these words: its words, and its help.
pub(crate) fn leaves(path: &[&str]) -> Vec<(String, String)> {
    let help = text(&[path, &["--help"]].concat());
    match subcommands(&help) {
        below if below.is_empty() => vec![(path.join(" "), help)],
        below => below.iter().flat_map(|name| leaves(&[path, &[name]].concat())).collect(),
    }
}

/// Words that are refused with exit code 2, nothing on stdout, and this in the message.
#[track_caller]
pub(crate) fn misuse(words: &[&str], says: &str) {
    let output = output(words);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{words:?}: {stderr}");
    assert!(output.stdout.is_empty() && stderr.contains(says), "{words:?}: {says:?} is not in {stderr:?}");
}

/// Command lines and what a person sees of them: the text of a snapshot. PLACE in a line is a directory of this transcript's own.
pub(crate) struct Transcript {
    place: tempfile::TempDir,
    /// Each line as typed, its output and its exit code.
    pub(crate) text: String,
}

impl Transcript {
    pub(crate) fn new() -> Transcript {
        Transcript { place: tempfile::tempdir().unwrap(), text: String::new() }
    }

    /// A file in PLACE.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    /// Runs `terrace` with these words and keeps what it prints. Words stand one blank apart; '' is an empty one.
    pub(crate) fn run(&mut self, line: &str) -> Finished {
        let place = self.place.path().to_str().unwrap();
        let words: Vec<String> = line
            .split(' ')
            .map(|word| if word == "''" { String::new() } else { word.replace("PLACE", place) })
            .collect();
        let done = run(&words.iter().map(String::as_str).collect::<Vec<_>>());
        let code = if done.code == 0 { String::new() } else { format!("[exit code {}]\n", done.code) };
        let text = format!("$ terrace {line}\n{}{}{code}\n", done.stdout, done.stderr);
        self.text.push_str(&text.replace(place, "PLACE"));
        done
    }

    /// Runs a line that is refused with this exit code: nothing on stdout, one reason on stderr, no panic.
    #[track_caller]
    pub(crate) fn refused(&mut self, code: i32, line: &str) {
        let done = self.run(line);
        is_refusal(&done, code, line);
    }
}

/// What holds for every refusal: the exit code, nothing on stdout, one reason on stderr, no panic.
#[track_caller]
pub(crate) fn is_refusal(done: &Finished, code: i32, line: &str) {
    assert_eq!((done.code, done.signal), (code, None), "{line}: {}", done.stderr);
    assert_eq!(done.stdout, "", "{line}: stdout is for data");
    let reasons = done.stderr.lines().filter(|line| line.starts_with("terrace: ") || line.starts_with("error: "));
    assert_eq!(reasons.count(), 1, "{line}: one reason: {}", done.stderr);
    assert!(!done.stderr.contains("panicked") && !done.stderr.contains("RUST_BACKTRACE"), "{}", done.stderr);
}

/// A run that is over.
#[derive(Debug)]
pub(crate) struct Finished {
    /// Exit code; 128 + n if signal n ended Terrace itself, as `signal` says.
    pub(crate) code: i32,
    pub(crate) signal: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Finished {
    /// The JSON object on the last line of stdout.
    pub(crate) fn report(&self) -> Value {
        let last = self.stdout.lines().last().unwrap_or_else(|| panic!("no output; stderr: {}", self.stderr));
        serde_json::from_str(last).unwrap_or_else(|error| panic!("{error}: {last}"))
    }
}

/// A run that may still be going on; killed and waited for when dropped.
pub(crate) struct Running {
    child: Child,
    stdout: PathBuf,
    stderr: PathBuf,
    _place: tempfile::TempDir,
}

impl Running {
    /// Starts a command with its output in files, so that no pipe can fill up and no orphan can hold one open.
    pub(crate) fn start(command: &mut Command) -> Running {
        let place = tempfile::tempdir().unwrap();
        let (stdout, stderr) = (place.path().join("stdout"), place.path().join("stderr"));
        let child = command
            .stdout(File::create(&stdout).unwrap())
            .stderr(File::create(&stderr).unwrap())
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        Running { child, stdout, stderr, _place: place }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn stdout(&self) -> String {
        read(&self.stdout)
    }

    pub(crate) fn stderr(&self) -> String {
        read(&self.stderr)
    }

    /// Waits until its stdout has this. A command that ends without it is not waited for: its stderr is shown.
    #[track_caller]
    pub(crate) fn wait_for_output(&mut self, text: &str, limit: Duration) {
        let began = Instant::now();
        loop {
            // Asked first: what it wrote before it ended is in the file by then.
            let ended = self.child.try_wait().unwrap();
            if self.stdout().contains(text) {
                return;
            }
            assert!(ended.is_none(), "{text:?} was not said before {}; stderr: {}", ended.unwrap(), self.stderr());
            assert!(began.elapsed() < limit, "{text:?} was not said within {limit:?}; stderr: {}", self.stderr());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Tells a workload of some seconds that they are over; it verifies its data and ends.
    #[track_caller]
    pub(crate) fn end_early(&mut self) {
        // It listens from before its first line on.
        self.wait_for_output("\"phase\"", PATIENCE);
        if self.is_running() {
            self.signal(Signal::USR1);
        }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.child.id() as i32).unwrap(), signal).unwrap();
    }

    /// Waits for its end.
    pub(crate) fn finish(&mut self, limit: Duration) -> Finished {
        let began = Instant::now();
        let status: ExitStatus = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(began.elapsed() < limit, "still running after {limit:?}; stderr: {}", self.stderr());
            std::thread::sleep(Duration::from_millis(5));
        };
        let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap());
        Finished { code, signal: status.signal(), stdout: self.stdout(), stderr: self.stderr() }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs Terrace to its end.
pub(crate) fn run(arguments: &[&str]) -> Finished {
    Running::start(terrace().args(arguments)).finish(PATIENCE)
}

/// Starts the workload whose every read and every page is checked against what was written.
pub(crate) fn workload(size: &str, seconds: u32, seed: u64, settings: &[&str]) -> Running {
    Running::start(workload_command(size, seconds, seed, settings).stdin(Stdio::null()))
}

fn workload_command(size: &str, seconds: u32, seed: u64, settings: &[&str]) -> Command {
    let mut command = terrace();
    let (seconds, seed) = (format!("{seconds}s"), seed.to_string());
    command.args(["workload", "hot-cold", "--size", size, "--duration", &seconds, "--seed", &seed]);
    for setting in settings {
        command.args(["--set", setting]);
    }
    command
}

/// The same as words of a shell.
pub(crate) fn workload_words(size: &str, seconds: u32, seed: u64, settings: &[&str]) -> String {
    let command = workload_command(size, seconds, seed, settings);
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| format!("'{}'", word.to_str().unwrap())).collect::<Vec<_>>().join(" ")
}

/// Random numbers of a seed: the same for the same seed.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// One of 0 up to, not including, `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(1);
        terrace_core::random::mix(self.0) % bound
    }
}

/// Whether a workload's output says that all its data were right.
pub(crate) fn verified(output: &str) -> Option<String> {
    let last: Value = serde_json::from_str(output.lines().last()?).ok()?;
    last.get("verified")?;
    Some(last.get("checksum")?.as_str()?.to_owned())
}

/// Runs live tests of the command.
pub(crate) fn run_live_tests(program: &str, tests: &[LiveTest]) -> ExitCode {
    live::run(program, tests, ready)
}

/// Why they cannot run here.
fn ready() -> Result<(), String> {
    live::need(rustix::process::geteuid().is_root(), "needs root")?;
    live::need(terrace_linux::topology::declared::zram_is_there(Path::new("/")), live::NO_ZRAM)?;
    let pids = "swap of a Terrace is known by its pid, and pids here are not the machine's";
    live::need(terrace_linux::zram::has_pids_of_machine(), pids)?;
    let doctor: Value = serde_json::from_str(&run(&["doctor", "--json"]).stdout).unwrap();
    live::need(!doctor["chosen_tracker"].is_null(), "no tracker works here, see `terrace doctor`")
}
