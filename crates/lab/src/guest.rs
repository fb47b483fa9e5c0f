//! A running guest: QEMU started, watched, and always ended.
//!
//! In: QEMU's arguments and a time limit. Out: the results port's bytes and the console's log. Must not: outlive its owner or
//! its limit: QEMU is killed when either ends, and also when the owner itself is killed (setpriv sets a death signal).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::error::{LabError, file_error, tail};
use crate::results::Results;
use crate::tools::{line_of, start_error};

/// Lines of the console log that an error shows.
const TAIL_LINES: usize = 40;
const POLL: Duration = Duration::from_millis(20);

/// QEMU with its two serial ports.
#[derive(Debug)]
pub(crate) struct Guest {
    qemu: Child,
    started: Instant,
    folder: PathBuf,
}

/// How a guest went.
#[derive(Clone, Debug)]
pub(crate) struct Ended {
    pub results: Results,
    pub console: String,
    /// Wall time until the first step.
    pub boot: Option<Duration>,
    /// Wall time in all.
    pub wall: Duration,
}

impl Guest {
    /// Starts QEMU. `folder` takes the logs; it must be empty.
    pub(crate) fn start(arguments: &[String], folder: &Path) -> Result<Guest, LabError> {
        let mut command = qemu();
        command.args(arguments);
        let serial = |name: &str| format!("file:{}", folder.join(name).display());
        command.args(["-monitor", "none", "-serial", &serial("console"), "-serial", &serial("results")]);
        tracing::debug!(command = line_of(&command), "starting the guest");
        let log = folder.join("qemu");
        let log = terrace_files::create_new(&log).map_err(file_error(&log))?;
        let qemu = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn();
        let qemu = qemu.map_err(|source| start_error(&command, "util-linux", source))?;
        Ok(Guest { qemu, started: Instant::now(), folder: folder.to_owned() })
    }

    /// Waits until the guest has powered off, and reads what it said.
    pub(crate) fn wait(mut self, limit: Duration) -> Result<Ended, LabError> {
        let mut boot = None;
        let mut shown = 0;
        let status = loop {
            if boot.is_none() && fs::metadata(self.folder.join("results")).is_ok_and(|data| data.len() > 0) {
                boot = Some(self.started.elapsed());
            }
            shown = self.show_console(shown);
            if let Some(status) = self.qemu.try_wait().map_err(file_error(Path::new("qemu-system-x86_64")))? {
                break status;
            }
            if self.started.elapsed() > limit {
                self.end();
                return Err(LabError::TimeLimit { limit, tail: tail(&self.console(), TAIL_LINES) });
            }
            std::thread::sleep(POLL);
        };
        let wall = self.started.elapsed();
        self.show_console(shown);
        let console = self.console();
        let failed = |what: String| LabError::Guest { what, tail: tail(&console, TAIL_LINES) };
        let bytes = fs::read(self.folder.join("results")).unwrap_or_default();
        let results = Results::parse(&bytes).map_err(|error| failed(error.to_string()))?;
        if results.ended_seconds.is_none() {
            return Err(failed(self.why_cut_short(status, &results)));
        }
        Ok(Ended { results, console, boot, wall })
    }

    fn why_cut_short(&self, status: ExitStatus, results: &Results) -> String {
        let said = fs::read_to_string(self.folder.join("qemu")).unwrap_or_default();
        if !status.success() {
            return format!("QEMU ended with {status}: {}", tail(&said, 5));
        }
        match (results.began_seconds, results.steps.last()) {
            (None, _) => "the guest ended before its first step (a kernel panic?)".to_owned(),
            (_, None) => "the guest ended in its first step (a kernel panic?)".to_owned(),
            (_, Some(step)) => format!("the guest ended after step {} (a kernel panic?)", step.name),
        }
    }

    fn console(&self) -> String {
        let bytes = fs::read(self.folder.join("console")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).replace('\r', "")
    }

    /// Passes new whole lines of the console on to the log. Returns how much of the console has been passed on.
    fn show_console(&self, shown: usize) -> usize {
        if !tracing::enabled!(target: "console", tracing::Level::INFO) {
            return shown;
        }
        let bytes = fs::read(self.folder.join("console")).unwrap_or_default();
        let fresh = bytes.get(shown..).unwrap_or_default();
        let Some(end) = fresh.iter().rposition(|byte| *byte == b'\n') else { return shown };
        for line in String::from_utf8_lossy(&fresh[..end]).lines() {
            tracing::info!(target: "console", "{}", line.trim_end_matches('\r'));
        }
        shown + end + 1
    }

    /// Ends QEMU at once. The guest has nothing that could be lost.
    fn end(&mut self) {
        // It may have ended by itself in the meantime; then there is nothing to kill.
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.end();
    }
}

/// QEMU, set to end when this process does, however that ends.
pub(crate) fn qemu() -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--", "qemu-system-x86_64"]);
    command
}

/// Whether QEMU can be started here.
///
/// # Errors
/// With what to install.
pub fn qemu_version() -> Result<String, LabError> {
    let mut command = Command::new("qemu-system-x86_64");
    let text = crate::tools::text_of(command.arg("--version"), "qemu-system-x86")?;
    Ok(text.lines().next().unwrap_or_default().to_owned())
}
