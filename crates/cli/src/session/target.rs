//! The program under management: started as a child, or found by pid or cgroup.
//!
//! In: a command, pids or a cgroup. Out: its pid, its exit, its resources; signals sent to Terrace are passed on to it. Must not:
//! change its environment, its descriptors or its limits.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::backend::SignalDelivery;
use signal_hook::iterator::exfiltrator::SignalOnly;
use terrace_linux::cgroup::Cgroup;
use terrace_linux::process::Process;
use terrace_linux::usage::{Usage, Who, usage};

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
    signals: SignalDelivery<UnixStream, SignalOnly>,
    started: Instant,
    ended: Option<Duration>,
    /// What children had used before: who called exec on Terrace may have had some, as a script that builds first.
    used_before: Usage,
}

impl Target {
    /// Starts the program, or takes hold of the process.
    pub(crate) fn start(spec: &TargetSpec) -> anyhow::Result<Target> {
        // Before the program starts, so that a signal meant for both finds both ready.
        let signals = receive_signals().context("signals cannot be received")?;
        let used_before = usage(Who::WaitedChildren);
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
        Ok(Target { pid, child, exit: None, signals, started: Instant::now(), ended: None, used_before })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// What it used and its children that it waited for, as the kernel says once a program that Terrace started is over. The highest resident memory
    /// is 0 where an earlier child had more.
    pub(crate) fn used(&self) -> Option<Usage> {
        (self.child.is_some() && self.has_ended()).then(|| {
            let (before, now) = (self.used_before, usage(Who::WaitedChildren));
            Usage {
                user_seconds: now.user_seconds - before.user_seconds,
                system_seconds: now.system_seconds - before.system_seconds,
                max_rss_bytes: if now.max_rss_bytes > before.max_rss_bytes { now.max_rss_bytes } else { 0 },
            }
        })
    }

    /// Readable when a signal came in.
    pub(crate) fn signals(&self) -> &impl AsFd {
        self.signals.get_read()
    }

    /// Passes signals on to the program that Terrace started. Returns whether Terrace itself should stop: a program that it
    /// only attached to is not to be disturbed, so then the signal is for Terrace.
    pub(crate) fn pass_signals_on(&mut self) -> anyhow::Result<bool> {
        for signal in self.signals.pending() {
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
        let mut fds = [PollFd::new(self.signals.get_read(), PollFlags::IN)];
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
                PollFd::new(self.signals.get_read(), PollFlags::IN),
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

/// The signals that are passed on, and a descriptor that wakes the loop.
fn receive_signals() -> std::io::Result<SignalDelivery<UnixStream, SignalOnly>> {
    let (reader, writer) = UnixStream::pair()?;
    SignalDelivery::with_pipe(reader, writer, SignalOnly, [SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2])
}
