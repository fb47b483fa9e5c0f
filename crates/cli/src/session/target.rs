//! The program under management: started as a child, or found by pid or cgroup.
//!
//! In: a command, pids or a cgroup. Out: its pid, its exit, its resources; signals sent to Terrace are passed on to it. Must not:
//! change its environment, its descriptors or its limits.

use std::ffi::OsString;
use std::io::{IsTerminal, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use terrace_linux::cgroup::Cgroup;
use terrace_linux::process::Process;

use crate::program::NotStarted;

/// Which program.
#[derive(Clone, Debug)]
pub(crate) enum TargetSpec {
    /// Start this.
    Command(Vec<OsString>),
    /// Manage these processes and their children.
    Pids(Vec<u32>),
    /// Manage what is in this cgroup.
    Cgroup(Cgroup),
}

impl TargetSpec {
    /// A process of it that runs already: the first, whose cgroup says what may go to swap.
    pub(crate) fn pid(&self) -> Option<u32> {
        match self {
            TargetSpec::Pids(pids) => pids.first().copied(),
            TargetSpec::Cgroup(cgroup) => cgroup.members().first().copied(),
            TargetSpec::Command(_) => None,
        }
    }
}

/// A program under management.
pub(crate) struct Target {
    pid: u32,
    child: Option<Child>,
    exit: Option<ExitStatus>,
    signals: SignalPipe,
    started: Instant,
    ended: Option<Duration>,
}

impl Target {
    /// Starts the program, or takes hold of the process.
    pub(crate) fn start(spec: &TargetSpec) -> anyhow::Result<Target> {
        // Before the program starts, so that a signal meant for both finds both ready.
        let signals = SignalPipe::new().context("signals cannot be received")?;
        let (pid, child) = match spec {
            TargetSpec::Pids(pids) => (*pids.first().context("a process must be given")?, None),
            // The first of them stands for all in reports; there may be none yet.
            TargetSpec::Cgroup(cgroup) => (cgroup.members().first().copied().unwrap_or(0), None),
            TargetSpec::Command(command) => {
                let (name, cooldown) = command.split_first().context("a program must be given")?;
                let child =
                    Command::new(name).args(cooldown).spawn().map_err(|source| NotStarted::new(name, source))?;
                (child.id(), Some(child))
            }
        };
        Ok(Target { pid, child, exit: None, signals, started: Instant::now(), ended: None })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether Terrace started it.
    pub(crate) fn is_child(&self) -> bool {
        self.child.is_some()
    }

    /// Readable when a signal came in.
    pub(crate) fn signals(&self) -> &impl AsFd {
        &self.signals
    }

    /// Passes signals on to the program that Terrace started. Returns whether Terrace itself should stop: a program that it
    /// only attached to is not to be disturbed, so then the signal is for Terrace.
    pub(crate) fn pass_signals_on(&mut self) -> anyhow::Result<bool> {
        for signal in self.signals.take() {
            if self.child.is_none() {
                if matches!(signal, SIGUSR1 | SIGUSR2) {
                    continue;
                }
                return Ok(true);
            }
            // From a terminal, Ctrl-C and Ctrl-\ reach the whole foreground group, the program included.
            let from_terminal = matches!(signal, SIGINT | SIGQUIT) && std::io::stdin().is_terminal();
            if !from_terminal
                && let (Some(pid), Some(signal)) = (Pid::from_raw(self.pid as i32), Signal::from_named_raw(signal))
            {
                // It may have exited in the meantime; then there is nothing to tell.
                let _ = kill_process(pid, signal);
            }
        }
        Ok(false)
    }

    /// Waits until a signal came in, and no longer than this.
    pub(crate) fn wait_for_signal(&self, longest: Duration) -> anyhow::Result<()> {
        let mut fds = [PollFd::from_borrowed_fd(self.signals.as_fd(), PollFlags::IN)];
        let longest =
            rustix::event::Timespec { tv_sec: longest.as_secs() as i64, tv_nsec: longest.subsec_nanos().into() };
        match poll(&mut fds, Some(&longest)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error).context("waiting for a process"),
        }
    }

    /// Waits for the program's exit, if Terrace started it.
    pub(crate) fn wait(&mut self) -> anyhow::Result<()> {
        self.ended.get_or_insert(self.started.elapsed());
        if let Some(child) = &mut self.child {
            self.exit = Some(child.wait().context("waiting for the program")?);
        }
        Ok(())
    }

    /// Waits for the program that Terrace started and no longer manages, and passes signals on to it meanwhile.
    pub(crate) fn outlast(&mut self) -> anyhow::Result<()> {
        if self.exit.is_some() || self.child.is_none() {
            return Ok(());
        }
        let process = Process::open(self.pid)?;
        while process.is_alive() {
            let mut fds = [
                PollFd::from_borrowed_fd(process.pidfd(), PollFlags::IN),
                PollFd::from_borrowed_fd(self.signals.as_fd(), PollFlags::IN),
            ];
            match poll(&mut fds, None) {
                // A signal interrupted it; its handler has written to the pipe.
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error).context("waiting for the program"),
            }
            self.pass_signals_on()?;
        }
        self.wait()
    }

    /// Whether it was over before Terrace let go of it.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.is_some()
    }

    /// How long it ran under Terrace.
    pub(crate) fn wall(&self) -> Duration {
        self.ended.unwrap_or_else(|| self.started.elapsed())
    }

    /// Its exit code, 128 + n when signal n ended it; `None` while it runs, or if it is not Terrace's child.
    pub(crate) fn exit(&self) -> Option<i32> {
        self.exit.map(|status| status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)))
    }

    /// The code for Terrace itself: the program's own.
    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.exit().unwrap_or(0) as u8)
    }
}

impl Drop for Target {
    /// If management failed after the start, the program is waited for all the same: it must not lose its parent.
    fn drop(&mut self) {
        if self.exit.is_none()
            && let Some(child) = &mut self.child
        {
            let _ = child.wait();
        }
    }
}

/// The signals that are passed on, as flags and as a descriptor that wakes the loop.
struct SignalPipe {
    reader: UnixStream,
    flags: Vec<(i32, Arc<AtomicBool>)>,
}

impl SignalPipe {
    fn new() -> std::io::Result<SignalPipe> {
        let (reader, writer) = UnixStream::pair()?;
        reader.set_nonblocking(true)?;
        writer.set_nonblocking(true)?;
        let mut flags = Vec::new();
        for signal in [SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2] {
            let flag = Arc::new(AtomicBool::new(false));
            signal_hook::flag::register(signal, Arc::clone(&flag))?;
            // Registered second, so that the flag is set before the loop wakes.
            signal_hook::low_level::pipe::register(signal, writer.try_clone()?)?;
            flags.push((signal, flag));
        }
        Ok(SignalPipe { reader, flags })
    }

    fn take(&mut self) -> Vec<i32> {
        let mut sink = [0; 64];
        while (&self.reader).read(&mut sink).is_ok_and(|count| count > 0) {}
        self.flags.iter().filter(|(_, flag)| flag.swap(false, Ordering::SeqCst)).map(|(signal, _)| *signal).collect()
    }
}

impl AsFd for SignalPipe {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }
}
