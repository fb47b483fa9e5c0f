//! A daemon under test, and the programs that it manages.
//!
//! In: classes as configuration. Out: a `terraced` in a place of its own, and what it answers. Must not: leave it running.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use terrace_daemon::client::Client;
use terrace_daemon::protocol::Verb;

use super::{PATIENCE, Running, read, verified, wait_until, zram_of};

pub(crate) const MIB: u64 = 1 << 20;

/// A daemon with a place of its own; ended when dropped.
pub(crate) struct Daemon {
    pub(crate) child: Child,
    pub(crate) place: tempfile::TempDir,
}

/// In a hurry.
pub(crate) const EAGER: &str = "policy = \"age\"\nset = { idle = \"2s\", interval = \"500ms\" }\n";
/// Whatever a page-out costs on a machine that is slow or busy.
pub(crate) const AT_ANY_PRICE: &str = "max_slowdown = \"100%\"\n";

impl Daemon {
    pub(crate) fn start(classes: &str) -> Daemon {
        Daemon::with_slow(classes, "512MiB")
    }

    /// A daemon whose compressed swap holds so much.
    pub(crate) fn with_slow(classes: &str, size: &str) -> Daemon {
        let daemon = Daemon::spawn(classes, size, "500ms", |_| {});
        daemon.wait_until_it_answers();
        daemon
    }

    /// A daemon that has just been started, looks through /proc so often, and is started as `more` says.
    pub(crate) fn spawn(classes: &str, size: &str, poll: &str, more: impl FnOnce(&mut Command)) -> Daemon {
        Daemon::spawn_in(tempfile::tempdir().unwrap(), classes, size, poll, more)
    }

    /// The same in a place that is there already, with drop-ins perhaps.
    pub(crate) fn spawn_in(
        place: tempfile::TempDir,
        classes: &str,
        size: &str,
        poll: &str,
        more: impl FnOnce(&mut Command),
    ) -> Daemon {
        let own = place.path().display();
        let text = format!(
            "[daemon]\nsocket = \"{own}/socket\"\ngroup = \"no-such-group\"\npoll = \"{poll}\"\n\
             [memory]\nslow = \"zram:{size}\"\n[budget]\ncpu = \"80%\"\nperiod = \"500ms\"\n\
             [metrics]\nlisten = \"unix:{own}/metrics\"\n{classes}"
        );
        std::fs::write(place.path().join("terrace.toml"), text).unwrap();
        let log = std::fs::File::create(place.path().join("log")).unwrap();
        let mut command = Command::new(terraced());
        command
            .arg("--config")
            .arg(place.path().join("terrace.toml"))
            .env_remove("TERRACE_LOG")
            .env_remove("JOURNAL_STREAM")
            .env_remove("NOTIFY_SOCKET")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        more(&mut command);
        Daemon { child: command.spawn().unwrap(), place }
    }

    /// The lines of what happened, of one kind.
    pub(crate) fn happened(&self, kind: &str) -> Vec<String> {
        let history = self.ask(Verb::History { after: 0, limit: Some(2000), class: None });
        let lines = history.as_array().unwrap().iter().filter(|one| one["kind"] == kind);
        lines.map(|one| one["text"].as_str().unwrap().to_owned()).collect()
    }

    pub(crate) fn wait_until_it_answers(&self) {
        // The tiers, the swap and the refault's cost are made ready before the first status.
        wait_until(PATIENCE, "the daemon answers", || {
            self.try_ask(Verb::Status {}).is_some_and(|status| status["uptime_seconds"].as_f64() > Some(0.0))
        });
    }

    pub(crate) fn try_ask(&self, verb: Verb) -> Option<Value> {
        Client::connect(&self.place.path().join("socket")).ok()?.ask(verb).ok()
    }

    pub(crate) fn ask(&self, verb: Verb) -> Value {
        let mut client = Client::connect(&self.place.path().join("socket"))
            .unwrap_or_else(|error| panic!("{error}\n{}", self.log()));
        client.ask(verb).unwrap_or_else(|error| panic!("{error}\n{}", self.log()))
    }

    pub(crate) fn class(&self, name: &str) -> Value {
        let status = self.ask(Verb::Status {});
        let classes = status["classes"].as_array().unwrap();
        classes.iter().find(|class| class["name"] == name).unwrap_or_else(|| panic!("no class {name}")).clone()
    }

    /// A figure of a class.
    pub(crate) fn figure(&self, class: &str, name: &str) -> u64 {
        self.class(class)[name].as_u64().unwrap()
    }

    pub(crate) fn log(&self) -> String {
        read(&self.place.path().join("log"))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.pid() as i32).unwrap(), signal).unwrap();
    }

    /// Ends it as a service manager does; it must put everything back.
    pub(crate) fn end(mut self) {
        self.signal(Signal::TERM);
        let mut code = None;
        wait_until(PATIENCE, "the daemon ends", || {
            code = self.child.try_wait().unwrap();
            code.is_some()
        });
        assert!(code.unwrap().success(), "{code:?}\n{}", self.log());
        assert!(!self.place.path().join("socket").exists() && zram_of(self.pid()).is_none());
    }

    /// What its metrics' server answers.
    pub(crate) fn get(&self, path: &str) -> String {
        let mut stream = UnixStream::connect(self.place.path().join("metrics")).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        answer.split_once("\r\n\r\n").unwrap().1.to_owned()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("    the daemon's log:\n{}", self.log());
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A place in a cgroup hierarchy where groups can be made: version 2, else any of version 1.
pub(crate) fn cgroup_root() -> Option<PathBuf> {
    let mounts = read(Path::new("/proc/mounts"));
    let of = |kind: &str| {
        let lines = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        lines.filter(|fields| fields[2] == kind).map(|fields| PathBuf::from(fields[1])).collect::<Vec<_>>()
    };
    let roots = of("cgroup2").into_iter().chain(of("cgroup").into_iter().filter(|path| path.ends_with("pids")));
    roots.into_iter().find(|root| {
        let trial = root.join(format!("terrace-trial-{}", std::process::id()));
        std::fs::create_dir(&trial).is_ok() && std::fs::remove_dir(&trial).is_ok()
    })
}

/// The daemon's program.
pub(crate) fn terraced() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| super::built("terraced"))
}

/// The workload under a name of its own, so that its path selects it.
pub(crate) fn named(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_file(&path);
    std::fs::hard_link(super::built("terrace-research"), &path).unwrap();
    path
}

pub(crate) fn workload(name: &str, size: &str, seconds: u32, settings: &[&str]) -> Running {
    let mut command = Command::new(named(name));
    let seconds = format!("{seconds}s");
    command
        .args(["workload", "hot-cold", "--size", size, "--duration", &seconds, "--seed", "7"])
        .env_remove("TERRACE_LOG");
    for setting in settings {
        command.args(["--set", setting]);
    }
    Running::start(command.stdin(Stdio::null()))
}

pub(crate) fn class(name: &str, exe: &str, more: &str) -> String {
    let price = if more.contains("max_slowdown") { "" } else { AT_ANY_PRICE };
    format!("[class.{name}]\nmatch = [{{ exe = \"{}/{exe}\" }}]\n{EAGER}{price}{more}\n", env!("CARGO_TARGET_TMPDIR"))
}

/// Ends with all its data right; before its time, since what the test wanted to see of it has been seen.
pub(crate) fn ends_well(mut program: Running, what: &str) {
    program.end_early();
    let finished = program.finish(Duration::from_secs(180));
    assert_eq!(finished.code, 0, "{what}: {}{}", finished.stdout, finished.stderr);
    assert!(verified(&finished.stdout).is_some(), "{what}: {}", finished.stdout);
}
