//! `terraced`, the daemon.
//!
//! In: a configuration file, signals. Out: managed workloads until a signal to end. Must not: hold logic; `daemon` is the loop.
//!
//! SIGTERM and SIGINT drain and undo all changes; SIGHUP reads the configuration again. If the loop hangs or the end takes too long, the
//! daemon exits after SIGTERM all the same, and its guard undoes what was set up. Under systemd it reports when it is ready, that it is
//! alive (the watchdog), and what it does; its log goes to the journal with its fields.

use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Parser;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::backend::SignalDelivery;
use signal_hook::iterator::exfiltrator::SignalOnly;
use terrace_common::tell::tell;
use terrace_core::text::visible_lines;
use terrace_daemon::access::Keys;
use terrace_daemon::config::{self, Config, ConfigErrors};
use terrace_daemon::control::Control;
use terrace_daemon::daemon::{Daemon, HostEnv, STOP_LIMIT, Signal};
use terrace_daemon::handover::{self, Passed};
use terrace_daemon::http::Http;
use terrace_daemon::shared::Shared;
use terrace_linux::processes::group_id;
use terrace_linux::usage::lock_own_memory;
use tracing_subscriber::Layer;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Manages the tiered memory of a server: classes of workloads side by side, within one budget.
#[derive(Debug, Parser)]
#[command(name = "terraced", version, max_term_width = 110)]
struct Arguments {
    /// The configuration; drop-ins are in conf.d next to it.
    #[arg(long, value_name = "FILE", default_value = config::DEFAULT_PATH)]
    config: PathBuf,
    /// Watch and decide, but move nothing: `terrace classes` then shows how much would move, as cause dry_run.
    #[arg(long)]
    dry_run: bool,
    /// Open the sockets that the unit's sandbox forbids, give them to systemd, and end: for ExecStartPre=+ of the unit.
    #[arg(long, conflicts_with = "dry_run")]
    hand_over: bool,
    /// Log more (twice: debug messages too).
    #[arg(short, long, action = clap::ArgAction::Count)]
    verbose: u8,
}

fn main() -> ExitCode {
    // The undo guard is this program run again; it must not depend on the command line's grammar.
    if std::env::args_os().nth(1).is_some_and(|argument| argument == terrace_linux::guard::GUARD_ARGUMENT) {
        return ExitCode::from(terrace_linux::guard::run_guardian(std::io::stdin()));
    }
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(told) => return tell(&told),
    };
    // Before anything else is opened: what is passed are numbers of descriptors.
    let passed = Passed::receive();
    start_log(arguments.verbose);
    match run(&arguments, passed) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("terraced: {}", visible_lines(&terrace_common::tell::causes(&error)));
            // An invalid configuration is misuse, as in the command.
            if error.is::<ConfigErrors>() { ExitCode::from(2) } else { ExitCode::FAILURE }
        }
    }
}

fn start_log(verbose: u8) {
    let level = ["info", "debug", "trace"][usize::from(verbose.min(2))];
    let filter = || {
        tracing_subscriber::EnvFilter::try_from_env("TERRACE_LOG")
            .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(level))
    };
    // systemd announces that stderr goes to the journal; the journal's own protocol keeps the fields separate.
    if std::env::var_os("JOURNAL_STREAM").is_some()
        && let Ok(journal) = tracing_journald::layer()
    {
        tracing_subscriber::registry().with(journal.with_filter(filter())).init();
        return;
    }
    let terminal = std::io::IsTerminal::is_terminal(&std::io::stderr());
    let colour = terminal && std::env::var_os("NO_COLOR").is_none();
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(colour).with_target(false);
    tracing_subscriber::registry().with(lines.without_time().with_filter(filter())).init();
}

fn run(arguments: &Arguments, passed: anyhow::Result<Passed>) -> anyhow::Result<()> {
    // Check everything that can be refused before changing anything.
    let config = Config::load(&arguments.config)?;
    if arguments.hand_over {
        return handover::hand_over(&config);
    }
    let passed = passed?;
    let mut host = System::new().context("signals cannot be received")?;
    let (shared, orders, waker) = Shared::new().context("cannot create a socket pair")?;
    let keys = Arc::new(Keys::from_config(&config.access)?);
    let control = Control::start(&config.socket, config.mode, &config.group, Arc::clone(&keys), Arc::clone(&shared))?;
    let group = group_id(&config.group);
    let http =
        Http::start(&config.listen, passed.metrics, config.socket_mode, group, Arc::clone(&keys), Arc::clone(&shared))?;
    end_when_told(Arc::clone(&shared)).context("cannot start the thread that ends the daemon")?;
    if let Some(http) = &http {
        tracing::info!(address = http.address, "metrics and the web interface are served");
    }
    let shared_by_survey = Arc::clone(&shared);
    let daemon = Daemon::new(arguments.config.clone(), !arguments.dry_run, shared, orders, waker, keys, passed.events)?;
    // Before memory is locked: its tracker is tried on memory of this process.
    if config.survey {
        terrace_daemon::survey::start(shared_by_survey).context("cannot start the thread of the survey")?;
    }
    if let Err(error) = lock_own_memory() {
        tracing::warn!(%error, "memory cannot be locked (LimitMEMLOCK=infinity, or CAP_IPC_LOCK): under pressure the daemon may be slow");
    }
    host.ready();
    let result = daemon.run(&mut host);
    drop(http);
    drop(control);
    result?;
    tracing::info!("ended; all changes are undone");
    Ok(())
}

/// Ends the process after SIGTERM or SIGINT if the loop does not: a hung loop takes no signals. The guard, a separate process, then undoes
/// what was set up, as after kill -9.
fn end_when_told(shared: Arc<Shared>) -> std::io::Result<()> {
    let (mut reader, writer) = UnixStream::pair()?;
    for signal in [SIGTERM, SIGINT] {
        signal_hook::low_level::pipe::register(signal, writer.try_clone()?)?;
    }
    let watch = move || {
        let mut sink = [0; 1];
        if reader.read_exact(&mut sink).is_err() {
            return;
        }
        let told = Instant::now();
        let why = loop {
            if let Some(age) = shared.heartbeat.overdue() {
                break format!("the loop has not turned for {} s", age.as_secs());
            }
            if told.elapsed() > STOP_LIMIT {
                break format!("stopping has taken {} s", STOP_LIMIT.as_secs());
            }
            std::thread::sleep(Duration::from_millis(200));
        };
        // The log may be what the loop hangs on: give it one second.
        std::thread::spawn(move || {
            eprintln!("terraced: {why}; it exits now, and its guard undoes what was set up");
        });
        std::thread::sleep(Duration::from_secs(1));
        signal_hook::low_level::exit(1);
    };
    std::thread::Builder::new().name("end".to_owned()).stack_size(128 << 10).spawn(watch).map(drop)
}

/// Signals in, messages to systemd out.
struct System {
    signals: SignalDelivery<UnixStream, SignalOnly>,
    said: Instant,
    line: String,
    /// Half of what the watchdog allows.
    watchdog: Option<Duration>,
}

impl System {
    fn new() -> std::io::Result<System> {
        let (reader, writer) = UnixStream::pair()?;
        Ok(System {
            signals: SignalDelivery::with_pipe(reader, writer, SignalOnly, [SIGTERM, SIGINT, SIGHUP])?,
            said: Instant::now(),
            line: String::new(),
            watchdog: sd_notify::watchdog_enabled().map(|limit| limit / 2),
        })
    }

    fn ready(&self) {
        say(&[sd_notify::NotifyState::Ready]);
    }
}

/// Without systemd this does nothing.
fn say(states: &[sd_notify::NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(%error, "cannot notify the service manager");
    }
}

impl HostEnv for System {
    fn fd(&self) -> BorrowedFd<'_> {
        self.signals.get_read().as_fd()
    }

    fn take(&mut self) -> Vec<Signal> {
        let asks = |signal: i32| if signal == SIGHUP { Signal::Reload } else { Signal::Stop };
        let signals: Vec<Signal> = self.signals.pending().map(asks).collect();
        if signals.contains(&Signal::Stop) {
            say(&[sd_notify::NotifyState::Stopping]);
        }
        signals
    }

    fn alive(&mut self, status: &str) {
        let due = self.watchdog.unwrap_or(Duration::from_secs(10)).min(Duration::from_secs(10));
        if self.said.elapsed() < due && !self.line.is_empty() {
            return;
        }
        self.said = Instant::now();
        let mut states = Vec::new();
        if self.watchdog.is_some() {
            states.push(sd_notify::NotifyState::Watchdog);
        }
        if self.line != status {
            self.line = status.to_owned();
            states.push(sd_notify::NotifyState::Status(status));
        }
        if !states.is_empty() {
            say(&states);
        }
    }

    fn reloading(&mut self, begins: bool) {
        if begins {
            match sd_notify::NotifyState::monotonic_usec_now() {
                Ok(now) => say(&[sd_notify::NotifyState::Reloading, now]),
                Err(error) => tracing::debug!(%error, "no monotonic time for the service manager"),
            }
        } else {
            say(&[sd_notify::NotifyState::Ready]);
        }
    }
}
