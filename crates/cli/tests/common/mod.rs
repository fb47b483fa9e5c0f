//! What the end-to-end tests of the command share.
//!
//! In: the command as it was built. Out: its runs, the state of the machine before and after, and a `main` that runs tests one
//! by one. Must not: leave anything behind, nor judge what another program does to the machine meanwhile.
#![allow(dead_code, reason = "each test program uses its part")]
#![allow(clippy::print_stdout, reason = "the live tests have their own main, and speak")]

pub(crate) mod daemon;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use terrace_lab::Cache;

/// How long anything that should end by itself may take before the test gives up: a loaded machine is slow.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// How long the undo guard may take (issue: zram is gone when Terrace is, killed or not).
pub(crate) const GUARD_LIMIT: Duration = Duration::from_secs(30);

/// The command under test.
pub(crate) fn terrace() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_terrace"));
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
    names.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help").map(str::to_owned).collect()
}

/// Every command that does something, below these words: its words, and its help.
pub(crate) fn leaves(path: &[&str]) -> Vec<(String, String)> {
    let help = text(&[path, &["--help"]].concat());
    match subcommands(&help) {
        below if below.is_empty() => vec![(path.join(" "), help)],
        below => below.iter().flat_map(|name| leaves(&[path, &[name]].concat())).collect(),
    }
}

/// Why no guest can be booted here, with this plugin and this command in it.
pub(crate) fn no_guest(plugin: &Path, terrace: &Path, kernel: &str) -> Option<String> {
    let wanted = |name: &str, value: &str| std::env::var(name).is_ok_and(|given| given == value);
    if !wanted("CI", "true") && !wanted("TERRACE_LAB", "1") {
        return Some("boots a guest: set TERRACE_LAB=1 to run it".to_owned());
    }
    if let Err(error) = terrace_lab::plugin::check("qemu-system-x86_64", "qemu-system-x86") {
        return Some(error.to_string());
    }
    for (file, make) in [(plugin, "make qemu-plugin"), (terrace, "make build")] {
        if !file.exists() {
            return Some(format!("there is no {}: `{make}` makes it", file.display()));
        }
    }
    // Without a network there is no kernel; everything after that must work.
    let fetched = Cache::of_user().and_then(|cache| cache.busybox().and_then(|_| cache.kernel(kernel, false)));
    fetched.err().map(|error| error.to_string())
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

/// A text file; what is not there yet is empty.
pub(crate) fn read(path: &Path) -> String {
    let mut bytes = Vec::new();
    if let Ok(mut file) = File::open(path) {
        file.read_to_end(&mut bytes).unwrap();
    }
    String::from_utf8_lossy(&bytes).into_owned()
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

/// Whether a workload's output says that all its data were right.
pub(crate) fn verified(output: &str) -> Option<String> {
    let last: Value = serde_json::from_str(output.lines().last()?).ok()?;
    last.get("verified")?;
    Some(last.get("checksum")?.as_str()?.to_owned())
}

/// Waits until something holds.
pub(crate) fn wait_until(limit: Duration, what: &str, mut condition: impl FnMut() -> bool) -> Duration {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < limit, "not within {limit:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
    began.elapsed()
}

/// A field of /proc/PID/status in bytes; `None` if the process is gone.
pub(crate) fn status_bytes(pid: u32, field: &str) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
}

/// The zram devices by name, with their size and the pid of the Terrace that labelled them.
pub(crate) fn zram_devices() -> BTreeMap<String, (String, Option<u32>)> {
    let entries = std::fs::read_dir("/sys/block").unwrap().flatten();
    let names =
        entries.filter_map(|entry| entry.file_name().into_string().ok()).filter(|name| name.starts_with("zram"));
    names
        .map(|name| {
            let size = std::fs::read_to_string(format!("/sys/block/{name}/disksize")).unwrap_or_default();
            let owner = owner(&name);
            (name, (size.trim().to_owned(), owner))
        })
        .collect()
}

/// N of the label `terrace-N` in a swap header (16 bytes at 1052, `union swap_header` of linux/swap.h).
fn owner(name: &str) -> Option<u32> {
    let mut label = [0; 16];
    File::open(format!("/dev/{name}")).ok()?.read_exact_at(&mut label, 1052).ok()?;
    std::str::from_utf8(&label).ok()?.trim_end_matches('\0').strip_prefix("terrace-")?.parse().ok()
}

/// The zram device that this Terrace set up.
pub(crate) fn zram_of(pid: u32) -> Option<String> {
    zram_devices().into_iter().find(|(_, (_, owner))| *owner == Some(pid)).map(|(name, _)| name)
}

/// What must be after a run as it was before: swap areas, zram devices, DAMON, the settings of memory management.
///
/// A compressed swap labelled by another Terrace that still runs is that one's business.
pub(crate) fn machine_state() -> BTreeMap<String, String> {
    let mut state = BTreeMap::new();
    let mut others = Vec::new();
    for (name, (size, owner)) in zram_devices() {
        if owner.is_some_and(|pid| Path::new(&format!("/proc/{pid}")).exists()) {
            others.push(format!("/dev/{name}"));
        } else {
            state.insert(format!("/sys/block/{name}/disksize"), size);
        }
    }
    for line in read(Path::new("/proc/swaps")).lines().skip(1) {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        if !others.contains(&fields[0].to_owned()) {
            // All but how much is used.
            state.insert(format!("swap {}", fields[0]), format!("{} {} {}", fields[1], fields[2], fields[4]));
        }
    }
    files(Path::new("/proc/sys/vm"), 0, &mut state);
    files(Path::new("/sys/kernel/mm/damon/admin"), 3, &mut state);
    for directory in ["transparent_hugepage", "transparent_hugepage/khugepaged", "lru_gen", "swap", "numa"] {
        files(&Path::new("/sys/kernel/mm").join(directory), 0, &mut state);
    }
    let paranoid = Path::new("/proc/sys/kernel/perf_event_paranoid");
    state.insert(paranoid.display().to_string(), read(paranoid));
    state
}

/// The texts of the files below a directory, as deep as said. Statistics, and files that only take commands, are left out.
fn files(directory: &Path, depth: u32, into: &mut BTreeMap<String, String>) {
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    for path in entries.flatten().map(|entry| entry.path()) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let no_setting = ["stat_refresh", "compact_memory", "drop_caches", "full_scans", "pages_collapsed", "pid"];
        if no_setting.contains(&name.as_ref()) {
            continue;
        }
        match std::fs::symlink_metadata(&path) {
            Ok(found) if found.is_dir() && depth > 0 => files(&path, depth - 1, into),
            Ok(found) if found.is_file() => {
                if let Ok(text) = std::fs::read_to_string(&path) {
                    into.insert(path.display().to_string(), text.trim().to_owned());
                }
            }
            _ => {}
        }
    }
}

/// What differs between two states, in lines.
pub(crate) fn differences(before: &BTreeMap<String, String>, after: &BTreeMap<String, String>) -> Vec<String> {
    let keys: std::collections::BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    keys.into_iter()
        .filter(|key| before.get(*key) != after.get(*key))
        .map(|key| format!("{key}: {:?} became {:?}", before.get(key), after.get(key)))
        .collect()
}

/// Waits until the machine is as it was; what is still different in the end.
pub(crate) fn wait_for_state(before: &BTreeMap<String, String>, limit: Duration) -> Vec<String> {
    let began = Instant::now();
    loop {
        let differences = differences(before, &machine_state());
        if differences.is_empty() || began.elapsed() > limit {
            return differences;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A test that needs the machine to itself.
pub(crate) type LiveTest = (&'static str, fn());

/// Runs live tests one after the other, each between two looks at the machine's state.
pub(crate) fn run_live_tests(program: &str, tests: &[LiveTest]) -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--list") {
        tests.iter().for_each(|(name, _)| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    if let Some(reason) = cannot_run() {
        println!("SKIPPED {program}: {reason}");
        return ExitCode::SUCCESS;
    }
    // The same lock as the live tests of movers: swap belongs to the whole machine.
    let lock = File::create(std::env::temp_dir().join("terrace-live-swap.lock")).unwrap();
    lock.lock().unwrap();
    let filter = arguments.iter().find(|argument| !argument.starts_with('-'));
    let (mut passed, mut failed, mut flaky) = (0, 0, 0);
    for (name, test) in tests {
        if filter.is_some_and(|filter| !name.contains(filter.as_str())) {
            continue;
        }
        let began = Instant::now();
        // The machine's other work can make a live test fail. One that fails runs once more, which tells the two kinds apart; the first
        // failure is printed, and `scripts/test` fails for it as well.
        let first = passes(test);
        let good = first || passes(test);
        passed += u32::from(good);
        failed += u32::from(!good);
        flaky += u32::from(good && !first);
        let outcome = match (first, good) {
            (true, _) => "ok",
            (false, true) => "ok at the second try (FLAKY: the first failed as told above)",
            (false, false) => "FAILED",
        };
        println!("test {name} ... {outcome} ({:.2} s)", began.elapsed().as_secs_f64());
    }
    println!("test result: {passed} passed, {failed} failed, {flaky} flaky");
    ExitCode::from(u8::from(failed > 0))
}

/// Runs a live test; it passes if it leaves the machine as it was, too.
fn passes(test: &fn()) -> bool {
    let before = machine_state();
    let ended = std::panic::catch_unwind(test);
    let left = wait_for_state(&before, GUARD_LIMIT);
    for difference in &left {
        println!("    not as before: {difference}");
    }
    ended.is_ok() && left.is_empty()
}

/// Why live tests cannot run here.
fn cannot_run() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("needs root".to_owned());
    }
    if !terrace_linux::topology::declared::zram_is_there(Path::new("/")) {
        return Some("this kernel has no zram (`modprobe zram`)".to_owned());
    }
    if !terrace_linux::zram::has_pids_of_machine() {
        return Some("swap of a Terrace is known by its pid, and pids here are not the machine's".to_owned());
    }
    let doctor: Value = serde_json::from_str(&run(&["doctor", "--json"]).stdout).unwrap();
    doctor["chosen_tracker"].is_null().then(|| "no tracker works here, see `terrace doctor`".to_owned())
}
