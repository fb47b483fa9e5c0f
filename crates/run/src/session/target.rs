//! The program under management: started as a child, or found by pid or cgroup.
//!
//! In: a command, pids or a cgroup. Out: its pid, its exit, its resources; signals sent to Terrace are passed on to it, and it stops with it. Must not:
//! change its environment, its descriptors or its limits.

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, getppid, kill_process, waitid};
use terrace_linux::cgroup::Cgroup;
use terrace_linux::machine_programs::Never;
use terrace_linux::process::{Process, Stat};
use terrace_linux::usage::{Usage, Who, usage};

use super::signals::{Signals, readable};
use crate::program::NotStarted;

/// How long the program may take to stop after the signal, before Terrace looks at other things again.
const STOPS_WITHIN: Duration = Duration::from_secs(1);
/// How often it is looked whether it has.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// How often a program that is no longer managed is looked at: it may stop by a terminal of its own.
const LOOK: Duration = Duration::from_secs(1);

/// What signals ask of Terrace itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    Nothing,
    /// To let go of a program that it only attached to.
    End,
    /// To stop, as the program has: see [`Target::stop_with_it`].
    Stop,
    /// The program and Terrace were stopped, and go on.
    GoesOn,
}

/// Which program.
#[derive(Clone, Debug)]
pub enum TargetSpec {
    /// Start this.
    Command(Vec<OsString>),
    /// Manage these processes and their children.
    Pids(Vec<u32>),
    /// Manage what is in this cgroup.
    Cgroup(Cgroup),
    /// Manage all processes but these.
    All(Never),
}

impl TargetSpec {
    /// A process of it that runs already: the first, whose cgroup says what may go to swap.
    pub(crate) fn pid(&self) -> Option<u32> {
        match self {
            TargetSpec::Pids(pids) => pids.first().copied(),
            TargetSpec::Cgroup(cgroup) => cgroup.members().first().copied(),
            TargetSpec::Command(_) | TargetSpec::All(_) => None,
        }
    }
}

/// A program under management.
pub(crate) struct Target {
    pid: u32,
    child: Option<Child>,
    exit: Option<ExitStatus>,
    signals: Signals,
    /// Whether SIGTSTP came and SIGCONT did not yet.
    told_to_stop: bool,
    started: Instant,
    ended: Option<Duration>,
    /// What children had used before: who called exec on Terrace may have had some, as a script that builds first.
    used_before: Usage,
}

impl Target {
    /// Starts the program, or takes hold of the process.
    pub(super) fn start(spec: &TargetSpec, signals: Signals) -> anyhow::Result<Target> {
        let used_before = usage(Who::WaitedChildren);
        let (pid, child) = match spec {
            TargetSpec::Pids(pids) => (*pids.first().context("a process must be given")?, None),
            // The first of them stands for all in reports; there may be none yet.
            TargetSpec::Cgroup(cgroup) => (cgroup.members().first().copied().unwrap_or(0), None),
            TargetSpec::All(_) => (0, None),
            TargetSpec::Command(command) => {
                let (name, cooldown) = command.split_first().context("a program must be given")?;
                let child =
                    Command::new(name).args(cooldown).spawn().map_err(|source| NotStarted::new(name, source))?;
                (child.id(), Some(child))
            }
        };
        Ok(Target {
            pid,
            child,
            exit: None,
            signals,
            told_to_stop: false,
            started: Instant::now(),
            ended: None,
            used_before,
        })
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
        self.signals.descriptor()
    }

    /// Passes on to the program that Terrace started what it did not get itself: signals to Terrace alone, and those to the process group if the
    /// program has left it. Returns what is asked of Terrace. A program that it only attached to is not to be disturbed, so then the signal is
    /// for Terrace.
    pub(crate) fn pass_signals_on(&mut self) -> Asked {
        let received = self.signals.take();
        let has = |signal| received.iter().any(|one| one.signal == signal);
        // Of a program that has ended only others are left, which are not Terrace's to signal.
        if self.child.is_none() || self.exit.is_some() {
            let ends = |signal| matches!(signal, Signal::INT | Signal::TERM | Signal::HUP | Signal::QUIT);
            return match received.iter().any(|one| ends(one.signal)) {
                true => Asked::End,
                false if has(Signal::TSTP) && !orphaned() => Asked::Stop,
                false => Asked::Nothing,
            };
        }
        // Once waited for, its pid may be another's.
        let Some(pid) = Pid::from_raw(self.pid as i32).filter(|_| self.exit.is_none()) else { return Asked::Nothing };
        let shares_group = same(self.pid, |stat| stat.group);
        for one in &received {
            let times = if shares_group { one.alone } else { one.alone.saturating_add(one.group) };
            for _ in 0..times {
                // It may have exited in the meantime; then there is nothing to tell.
                let _ = kill_process(pid, one.signal);
            }
        }
        if has(Signal::CONT) {
            self.told_to_stop = false;
            if has_news(pid, WaitIdOptions::CONTINUED).is_some() {
                return Asked::GoesOn;
            }
        }
        let stopped = if has(Signal::TSTP) {
            self.told_to_stop = true;
            self.stops(pid)
        } else {
            has_news(pid, WaitIdOptions::STOPPED)
        };
        // One that somebody stopped by SIGSTOP alone is continued by him, too. A job of a group of its own has the terminal to itself.
        let by_terminal = |signal| [Signal::TSTP, Signal::TTIN, Signal::TTOU].map(Signal::as_raw).contains(&signal);
        match stopped {
            Some(signal) if (self.told_to_stop || !shares_group && by_terminal(signal)) && !orphaned() => Asked::Stop,
            _ => Asked::Nothing,
        }
    }

    /// Waits until the program stops, which it need not: it may ignore the signal.
    fn stops(&self, pid: Pid) -> Option<i32> {
        let until = Instant::now() + STOPS_WITHIN;
        while Instant::now() < until {
            let stopped = has_news(pid, WaitIdOptions::STOPPED);
            if stopped.is_some() || readable(self.signals.descriptor(), LOOK_AGAIN).unwrap_or(true) {
                return stopped;
            }
        }
        None
    }

    /// Stops Terrace, for its shell to see, until SIGCONT. Returns how long the program was stopped as well.
    pub(crate) fn stop_with_it(&mut self) -> Duration {
        let began = Instant::now();
        // SIGTSTP itself has a handler. This one cannot fail: it takes no pid.
        let _ = signal_hook::low_level::raise(Signal::STOP.as_raw());
        self.told_to_stop = false;
        if self.child.is_some() { began.elapsed() } else { Duration::ZERO }
    }

    /// Waits until a signal came in, and no longer than this.
    pub(crate) fn wait_for_signal(&self, longest: Duration) -> anyhow::Result<()> {
        readable(self.signals.descriptor(), longest).map(drop).context("waiting for a process")
    }

    /// The exit code of the program that Terrace started, once it has ended; what it started may run on.
    pub(crate) fn exit_now(&mut self) -> anyhow::Result<Option<i32>> {
        if self.exit.is_none()
            && let Some(child) = &mut self.child
        {
            self.exit = child.try_wait().context("asking after the program")?;
        }
        Ok(self.exit())
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
        while !process.has_ended() {
            let mut fds = [
                PollFd::from_borrowed_fd(process.pidfd(), PollFlags::IN),
                PollFd::new(self.signals.descriptor(), PollFlags::IN),
            ];
            let longest = rustix::event::Timespec { tv_sec: LOOK.as_secs() as i64, tv_nsec: 0 };
            match poll(&mut fds, Some(&longest)) {
                // A signal interrupted it; its handler has written to the pipe.
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error).context("waiting for the program"),
            }
            if self.pass_signals_on() == Asked::Stop {
                self.stop_with_it();
            }
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

/// What wait(2) has to say of a child: the signal of the stop, or of the continuation. It is said once; an exit is left for who waits.
fn has_news(pid: Pid, of: WaitIdOptions) -> Option<i32> {
    let status = waitid(WaitId::Pid(pid), of | WaitIdOptions::NOHANG).ok().flatten()?;
    status.stopping_signal().or_else(|| status.continued().then_some(Signal::CONT.as_raw()))
}

/// Whether no shell of this session waits for Terrace: nobody would continue it.
fn orphaned() -> bool {
    getppid().is_none_or(|parent| !same(parent.as_raw_nonzero().get() as u32, |stat| stat.session))
}

/// Whether a process has the same group, or session, as Terrace. From /proc, since getpgid(2) and getsid(2) answer 0 for a leader outside of the
/// PID namespace, which rustix takes for impossible; so does the first process of a guest have it.
fn same(pid: u32, of: impl Fn(&Stat) -> u32) -> bool {
    let (own, other) = (Stat::read(std::process::id()), Stat::read(pid));
    own.is_ok_and(|own| other.is_ok_and(|other| of(&own) == of(&other)))
}
