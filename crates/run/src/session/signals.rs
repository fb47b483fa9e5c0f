//! Signals that Terrace receives, each with whether the program has had it as well.
//!
//! A terminal's Ctrl-C goes to a whole process group, and so do `kill %1` and timeout(1); `kill PID` goes to one process. What a process
//! learns of a signal (siginfo) is the same for a group and for one. So a child of Terrace's, the witness, lies in its group and counts too:
//! what it received was sent to the group, or to the whole cgroup as systemd does.
//!
//! In: the process's signals. Out: per signal, how many came to Terrace alone and how many to the group. Must not: lose one that came while
//! nobody looked, take one that Terrace was started to ignore (nohup(1)), or leave the witness behind: it ends when its pipe closes.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;
use signal_hook::iterator::backend::SignalDelivery;
use signal_hook::iterator::exfiltrator::WithRawSiginfo;

/// The first argument that makes this program a witness. `main` hands over to [`run_witness`] when it sees it.
pub const WITNESS_ARGUMENT: &str = "__witness";

/// What is received. A terminal stops a job that reads it from the background by SIGTTIN; that stops the group, Terrace in it, by itself.
const RECEIVED: [Signal; 8] =
    [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2, Signal::TSTP, Signal::CONT];
/// How often each came, in the order of [`RECEIVED`].
type Counts = [u8; RECEIVED.len()];
type Delivery = SignalDelivery<UnixStream, WithRawSiginfo>;

/// How long the witness may take to start.
const START: Duration = Duration::from_secs(10);
/// How long it may take to answer, on a machine that is busy.
const ANSWER: Duration = Duration::from_secs(1);
/// How long the kernel may take to go through a group.
const GROUP: Duration = Duration::from_millis(5);
/// For so long, one that the witness has had is expected here.
const EARLY: Duration = Duration::from_millis(50);

/// A signal that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Received {
    pub signal: Signal,
    /// How often to Terrace alone.
    pub alone: u8,
    /// How often to all of its process group.
    pub group: u8,
}

/// See the module's header.
pub(super) struct Signals {
    delivery: Delivery,
    witness: Option<Witness>,
    /// What the witness has had before Terrace, and when.
    early: (Counts, Instant),
}

impl Signals {
    /// From here on signals are kept, and end or stop Terrace no more. Without a witness all count as sent to Terrace alone.
    ///
    /// # Errors
    /// When they cannot be received, or the witness does not start.
    pub(super) fn receive(with_witness: bool) -> anyhow::Result<Signals> {
        let delivery = delivery().context("signals cannot be received")?;
        let witness = with_witness.then(Witness::start).transpose().context(
            "the process that tells a terminal's signals from those to Terrace alone could not be started; see `ulimit -u`",
        )?;
        Ok(Signals { delivery, witness, early: (Counts::default(), Instant::now()) })
    }

    /// Readable when one came.
    pub(super) fn descriptor(&self) -> &impl AsFd {
        self.delivery.get_read()
    }

    /// What came since the last time.
    pub(super) fn take(&mut self) -> Vec<Received> {
        let own = count(&mut self.delivery);
        if own == Counts::default() {
            return Vec::new();
        }
        let mut group = if self.early.1.elapsed() < EARLY { self.early.0 } else { Counts::default() };
        add(&mut group, self.seen());
        // The kernel signals a group from its newest process on, so the witness is before Terrace; elsewhere it may still be on its way.
        if self.witness.is_some() && own.iter().zip(&group).any(|(own, group)| own > group) {
            std::thread::sleep(GROUP);
            add(&mut group, self.seen());
        }
        self.early = (std::array::from_fn(|index| group[index].saturating_sub(own[index])), Instant::now());
        let each = RECEIVED.iter().zip(own.into_iter().zip(group));
        each.filter(|(_, (own, _))| *own > 0)
            .map(|(&signal, (own, group))| Received { signal, alone: own.saturating_sub(group), group: own.min(group) })
            .collect()
    }

    fn seen(&mut self) -> Counts {
        let Some(witness) = &mut self.witness else { return Counts::default() };
        witness.seen(ANSWER).unwrap_or_else(|error| {
            tracing::warn!(%error, "the witness of signals is gone; the program may get a terminal's Ctrl-C twice from now on");
            self.witness = None;
            Counts::default()
        })
    }
}

/// The witness, until it is dropped.
struct Witness {
    child: Child,
    questions: Option<ChildStdin>,
    answers: ChildStdout,
}

impl Witness {
    fn start() -> io::Result<Witness> {
        let mut child = Command::new("/proc/self/exe")
            .arg0("signal-witness")
            .arg(WITNESS_ARGUMENT)
            .current_dir("/")
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let lacks = || io::Error::other("it has no pipe");
        let questions = Some(child.stdin.take().ok_or_else(lacks)?);
        let answers = child.stdout.take().ok_or_else(lacks)?;
        let mut witness = Witness { child, questions, answers };
        // It answers once it receives signals.
        witness.seen(START)?;
        Ok(witness)
    }

    /// What it received since the last time.
    fn seen(&mut self, longest: Duration) -> io::Result<Counts> {
        if let Some(questions) = &mut self.questions {
            questions.write_all(&[0])?;
        }
        if !readable(&self.answers, longest)? {
            return Err(ErrorKind::TimedOut.into());
        }
        let mut counts = Counts::default();
        self.answers.read_exact(&mut counts)?;
        Ok(counts)
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.questions = None;
        // It may have been stopped by somebody; the pipe's end then tells it nothing.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The witness: answers each byte of stdin by what it received since the last one. A signal that was there before the question is handled
/// before the read returns. Returns the exit code.
pub fn run_witness() -> u8 {
    u8::from(answer(io::stdin(), io::stdout()).is_err())
}

fn answer(mut questions: impl Read, mut answers: impl Write) -> io::Result<()> {
    let mut delivery = delivery()?;
    // Not one that `pkill terrace` finds: it means Terrace alone.
    let _ = rustix::thread::set_name(c"signal-witness");
    let mut question = [0];
    loop {
        match questions.read(&mut question) {
            Ok(0) => return Ok(()),
            Ok(_) => {
                answers.write_all(&count(&mut delivery))?;
                answers.flush()?;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn delivery() -> io::Result<Delivery> {
    let (reader, writer) = UnixStream::pair()?;
    // A program inherits that a signal is ignored, but not that it has a handler.
    let taken = RECEIVED.map(Signal::as_raw).into_iter().filter(|signal| !is_ignored(*signal));
    SignalDelivery::with_pipe(reader, writer, WithRawSiginfo, taken)
}

/// Whether this process ignores a signal, as it does from the start where its parent wanted it.
pub fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

fn count(delivery: &mut Delivery) -> Counts {
    let mut counts = Counts::default();
    for info in delivery.pending() {
        if let Some(place) = RECEIVED.iter().position(|signal| signal.as_raw() == info.si_signo) {
            counts[place] = counts[place].saturating_add(1);
        }
    }
    counts
}

fn add(to: &mut Counts, more: Counts) {
    for (sum, more) in to.iter_mut().zip(more) {
        *sum = sum.saturating_add(more);
    }
}

/// Whether it can be read within this time.
pub(super) fn readable(descriptor: &impl AsFd, longest: Duration) -> io::Result<bool> {
    let until = Instant::now() + longest;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(descriptor, PollFlags::IN)], Some(&left)) {
            Ok(ready) => return Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
