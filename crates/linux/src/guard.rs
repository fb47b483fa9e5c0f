//! The undo guard: what Terrace changed in the system is put back even if Terrace is killed with SIGKILL.
//!
//! In: undo records, over a pipe. Out: their effect, once the pipe closes. A guardian process (the same program, started
//! again with the hidden argument [`GUARD_ARGUMENT`]) sleeps on the pipe and holds the records; on a clean exit Terrace
//! undoes each itself and sends it a release; when Terrace dies the kernel closes the pipe, and the guardian
//! performs what is left, newest first. Must not: undo what someone else did; every record says how to recognise that ([`Undo`]).
//!
//! The guardian has a session of its own and ignores the signals that end a terminal job, so that ^C, which ends
//! Terrace, does not end it as well. It cannot outlive a SIGKILL of its own, nor the end of its container.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::sys;
use crate::zram::device::ZramError;

mod undo;

pub(crate) use undo::restore;
pub use undo::{Undo, UndoError, Undone};

/// The first argument that makes a program a guardian. Its `main` must hand over to [`run_guardian`] when it sees it.
pub const GUARD_ARGUMENT: &str = "__guard";
/// What the guardian says when it holds the pipe and no signal of the terminal can end it any more.
const READY: &str = "terrace-guard ready";
/// How long the guardian tries a record that fails for any reason but missing memory.
const PERSISTENCE: Duration = Duration::from_secs(60);
/// How long a clean exit waits for a guardian that still has something to undo.
const FINISH_WAIT: Duration = Duration::from_secs(30);

/// Why the guard does not work.
#[derive(Debug, thiserror::Error)]
pub enum GuardError {
    /// The guardian could not be started.
    #[error("the undo guard could not be started: {source}")]
    Start {
        /// What the system said.
        source: io::Error,
    },
    /// The started program is not a guardian.
    #[error("the undo guard did not answer: this program's main does not serve `{GUARD_ARGUMENT}`")]
    NotServed,
    /// The guardian is gone.
    #[error("the undo guard (pid {pid}) is gone: {source}; what Terrace changed would not survive its being killed")]
    Lost {
        /// Its pid.
        pid: u32,
        /// What the pipe said.
        source: io::Error,
    },
}

/// A line that Terrace writes to its guardian.
#[derive(serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
enum Message {
    Protect { record: u64, undo: Undo },
    Forget { record: u64 },
}

/// The guardian as Terrace holds it. Dropping it lets the guardian perform what is left, and waits a while for it.
#[derive(Debug)]
pub struct Guard {
    line: Arc<Line>,
    child: Child,
}

/// The pipe to the guardian, shared with the tokens.
#[derive(Debug)]
struct Line {
    pid: u32,
    state: Mutex<LineState>,
}

#[derive(Debug)]
struct LineState {
    pipe: Option<ChildStdin>,
    next_record: u64,
}

/// A record that the guardian holds. Dropping it leaves the record in force; only [`ProtectToken::forget`] ends it.
#[derive(Debug)]
pub struct ProtectToken {
    line: Arc<Line>,
    record: u64,
}

impl Guard {
    /// Starts the guardian from /proc/self/exe, and returns once it is ready.
    ///
    /// # Errors
    /// When it cannot be started, or the program does not serve [`GUARD_ARGUMENT`].
    pub fn start() -> Result<Guard, GuardError> {
        let mut child = Command::new("/proc/self/exe")
            .arg0("terrace-guard")
            .arg(GUARD_ARGUMENT)
            .current_dir("/")
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|source| GuardError::Start { source })?;
        let mut answer = String::new();
        if let Some(stdout) = child.stdout.take() {
            BufReader::new(stdout).read_line(&mut answer).map_err(|source| GuardError::Start { source })?;
        }
        if answer.trim_end() != READY {
            // It is our own child and was given nothing to do yet, so ending it harms nothing.
            let _ = child.kill();
            let _ = child.wait();
            return Err(GuardError::NotServed);
        }
        let state = Mutex::new(LineState { pipe: child.stdin.take(), next_record: 1 });
        Ok(Guard { line: Arc::new(Line { pid: child.id(), state }), child })
    }

    /// The guardian's pid.
    pub fn pid(&self) -> u32 {
        self.line.pid
    }

    /// Hands a record over, before or right after the change that it undoes. Once this returns the record survives us.
    ///
    /// # Errors
    /// When the guardian is gone.
    pub fn protect(&self, undo: Undo) -> Result<ProtectToken, GuardError> {
        let mut state = self.line.lock();
        let record = state.next_record;
        state.next_record += 1;
        self.line.write(&mut state, &Message::Protect { record, undo })?;
        Ok(ProtectToken { line: Arc::clone(&self.line), record })
    }

    /// Closes the pipe and waits until the guardian has performed what is left, at most `limit`. Says whether it has.
    pub fn finish(mut self, limit: Duration) -> bool {
        self.close_and_wait(limit)
    }

    fn close_and_wait(&mut self, limit: Duration) -> bool {
        self.line.lock().pipe = None;
        let deadline = Instant::now() + limit;
        let mut pause = Duration::from_millis(1);
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return status.success(),
                Ok(None) if Instant::now() < deadline => sleep(pause),
                Ok(None) | Err(_) => return false,
            }
            pause = (pause * 2).min(Duration::from_millis(50));
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.close_and_wait(FINISH_WAIT) {
            tracing::warn!(pid = self.line.pid, "the undo guard has work left and goes on by itself");
        }
    }
}

impl Line {
    fn lock(&self) -> MutexGuard<'_, LineState> {
        // A panic elsewhere must not keep undo records from being written.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, state: &mut LineState, message: &Message) -> Result<(), GuardError> {
        let lost = |source: io::Error| GuardError::Lost { pid: self.pid, source };
        let mut text = serde_json::to_string(message).map_err(|error| lost(error.into()))?;
        text.push('\n');
        let pipe = state.pipe.as_mut().ok_or_else(|| lost(io::ErrorKind::BrokenPipe.into()))?;
        pipe.write_all(text.as_bytes()).map_err(lost)
    }
}

impl ProtectToken {
    /// Puts another record in this one's place: before a further change of the same thing.
    ///
    /// # Errors
    /// When the guardian is gone.
    pub fn replace(&self, undo: Undo) -> Result<(), GuardError> {
        self.line.write(&mut self.line.lock(), &Message::Protect { record: self.record, undo })
    }

    /// Says that the change has been undone and the record is void.
    ///
    /// # Errors
    /// When the guardian is gone.
    pub fn forget(self) -> Result<(), GuardError> {
        self.line.write(&mut self.line.lock(), &Message::Forget { record: self.record })
    }
}

/// The guardian: reads records from `commands` until it closes, then performs those that were not forgotten, newest
/// first. Returns the exit code: 0, or 1 if something could not be undone.
///
/// What cannot be undone for want of memory is tried for as long as it takes, everything else for a minute; each is
/// named on stderr with what to do by hand.
pub fn run_guardian(commands: impl Read) -> u8 {
    leave_the_terminal();
    let mut stdout = io::stdout();
    if writeln!(stdout, "{READY}").and_then(|()| stdout.flush()).is_err() {
        return 1;
    }
    let mut failed = 0;
    for undo in read_records(commands).into_values().rev() {
        match persist(&undo, PERSISTENCE) {
            Ok(Undone::Theirs) => say(&format!("somebody else has changed it since, so it stays as it is: {undo}")),
            Ok(_) => {}
            Err(error) => {
                say(&format!("could not be undone: {error}"));
                failed = 1;
            }
        }
    }
    failed
}

/// Leaves the process group and session that ^C, a closed terminal and job control reach.
fn leave_the_terminal() {
    // It fails only for a process group leader, which a child of Terrace is not; the signals are ignored anyway.
    let _ = rustix::process::setsid();
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT, libc::SIGPIPE, libc::SIGTSTP] {
        if let Err(error) = sys::ignore_signal(signal) {
            say(&format!("signal {signal} cannot be ignored: {error}"));
        }
    }
    let _ = rustix::thread::set_name(c"terrace-guard");
}

/// The records in force when the pipe closed, by age. A line cut short by the writer's death does not count.
fn read_records(commands: impl Read) -> BTreeMap<u64, Undo> {
    let mut records = BTreeMap::new();
    for line in BufReader::with_capacity(4096, commands).lines() {
        let Ok(line) = line else { break };
        match serde_json::from_str::<Message>(&line) {
            Ok(Message::Protect { record, undo }) => drop(records.insert(record, undo)),
            Ok(Message::Forget { record }) => drop(records.remove(&record)),
            Err(error) => say(&format!("a record could not be read ({error}): {line}")),
        }
    }
    records
}

/// Performs a record, again and again where waiting may help.
fn persist(undo: &Undo, limit: Duration) -> Result<Undone, UndoError> {
    let deadline = Instant::now() + limit;
    let mut pause = Duration::from_millis(100);
    let mut told = false;
    loop {
        let error = match undo.perform() {
            Ok(undone) => return Ok(undone),
            Err(error) => error,
        };
        match &error {
            // Waiting is right however long it takes: the pages are safe where they are, and taking them back would not be.
            UndoError::Zram(ZramError::NoRoomToTakeBack { .. }) if told => {}
            UndoError::Zram(ZramError::NoRoomToTakeBack { .. }) => {
                say(&format!("waiting: {error}"));
                told = true;
            }
            _ if Instant::now() >= deadline => return Err(error),
            _ => {}
        }
        sleep(pause);
        pause = (pause * 2).min(Duration::from_secs(5));
    }
}

/// stderr may be closed by now; nothing more can be reported.
fn say(text: &str) {
    let _ = writeln!(io::stderr(), "terrace-guard: {text}");
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn line(message: &Message) -> String {
        serde_json::to_string(message).unwrap() + "\n"
    }

    fn write_file(path: &Path, previous: &str, ours: &str) -> Undo {
        Undo::WriteFile { path: path.to_owned(), previous: previous.to_owned(), ours: vec![ours.to_owned()] }
    }

    #[test]
    fn forgotten_records_and_torn_lines_are_not_performed() {
        let undo = |name: &str| Undo::RemoveDirectory { path: name.into() };
        let mut text = String::new();
        text += &line(&Message::Protect { record: 1, undo: undo("a") });
        text += &line(&Message::Protect { record: 2, undo: undo("b") });
        text += &line(&Message::Forget { record: 1 });
        text += &line(&Message::Protect { record: 3, undo: undo("c") });
        text += "{\"protect\":{\"record\":4,\"un";
        let records = read_records(text.as_bytes());
        assert_eq!(records.into_values().rev().collect::<Vec<_>>(), [undo("c"), undo("b")], "newest first");
    }

    #[test]
    fn the_newest_record_of_a_file_is_undone_first_so_that_the_oldest_text_wins() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("knob");
        std::fs::write(&path, "third").unwrap();
        let text = line(&Message::Protect { record: 1, undo: write_file(&path, "first", "second") })
            + &line(&Message::Protect { record: 2, undo: write_file(&path, "second", "third") });
        for undo in read_records(text.as_bytes()).into_values().rev() {
            persist(&undo, Duration::ZERO).unwrap();
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "first");
    }

    #[test]
    fn a_record_of_the_same_number_takes_the_place_of_the_one_before() {
        let path = Path::new("/nowhere/knob");
        let text = line(&Message::Protect { record: 1, undo: write_file(path, "0", "1") })
            + &line(&Message::Protect { record: 1, undo: write_file(path, "0", "2") });
        let records = read_records(text.as_bytes());
        assert_eq!(records.into_values().collect::<Vec<_>>(), [write_file(path, "0", "2")]);
    }

    #[test]
    fn a_program_that_does_not_serve_as_guardian_is_found_out() {
        // This very test program takes the argument for the name of a test, and finds none.
        assert!(matches!(Guard::start(), Err(GuardError::NotServed)));
    }

    #[test]
    fn what_cannot_be_undone_is_reported_with_its_path() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("inhabitant"), "").unwrap();
        let undo = Undo::RemoveDirectory { path: folder.path().to_owned() };
        let error = persist(&undo, Duration::ZERO).unwrap_err().to_string();
        assert!(error.contains(&folder.path().display().to_string()), "{error}");
    }
}
