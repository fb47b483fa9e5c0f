//! The rights of a running daemon's clients under load: every verb and every route as a stranger, a thousand hostile connections,
//! a configuration that is no file, and a loop that hangs.
//!
//! In: nothing, or a part of a test's name; TERRACE_HOSTILE_SECONDS for how long the hostile connections go on (20). Out: lines on what
//! was seen. Must not: set anything up (the daemons here run with --dry-run), or leave anything behind.
//!
//! A stranger is this program started again as uid 12345, since a process cannot take that user and come back.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test program: it speaks, and panics are its failures")]

mod common;

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use common::daemon::Daemon;
use common::{PATIENCE, terrace, wait_until};
use rustix::process::Signal;
use serde_json::Value;

const STRANGER: u32 = 12345;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["--stranger-asks", address, request] => return ask_and_print(address, request),
        ["--stranger-attacks", socket, port] => return attack(Path::new(socket), port.parse().unwrap()),
        _ => {}
    }
    let tests: &[(&str, fn())] = &[
        ("every_verb_is_refused_to_a_stranger_but_hello", every_verb_is_refused_to_a_stranger_but_hello),
        ("every_route_shows_a_stranger_aggregates_only", every_route_shows_a_stranger_aggregates_only),
        ("what_is_no_file_is_no_configuration", what_is_no_file_is_no_configuration),
        ("a_loop_that_hangs_is_told_and_ended", a_loop_that_hangs_is_told_and_ended),
        ("a_thousand_hostile_connections_keep_nobody_out", a_thousand_hostile_connections_keep_nobody_out),
    ];
    if arguments.iter().any(|argument| argument == "--list") {
        tests.iter().for_each(|(name, _)| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED live_access: needs root, to be uid {STRANGER} as well");
        return ExitCode::SUCCESS;
    }
    let filter = arguments.iter().find(|argument| !argument.starts_with('-'));
    let mut failed = 0;
    for (name, test) in tests.iter().filter(|(name, _)| filter.is_none_or(|filter| name.contains(filter.as_str()))) {
        let began = Instant::now();
        let good = std::panic::catch_unwind(test).is_ok();
        failed += u32::from(!good);
        println!("test {name} ... {} ({:.2} s)", if good { "ok" } else { "FAILED" }, began.elapsed().as_secs_f64());
    }
    println!("test result: {failed} failed");
    ExitCode::from(u8::from(failed > 0))
}

/// A daemon that sets nothing up, in a place that a stranger can reach, with this configuration beside the usual one.
fn daemon(more: &str) -> Daemon {
    let place = tempfile::tempdir().unwrap();
    std::fs::set_permissions(place.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::create_dir(place.path().join("conf.d")).unwrap();
    std::fs::write(place.path().join("conf.d/50.toml"), format!("[memory]\nslow = \"none\"\n{more}")).unwrap();
    let daemon = Daemon::spawn_in(place, "", "64MiB", "500ms", |command| {
        command.arg("--dry-run");
    });
    daemon.wait_until_it_answers();
    daemon
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// This program as a file that a stranger can reach: the folder that it was built into may be private.
fn reachable(place: &Path) -> PathBuf {
    let path = place.join("stranger");
    if !path.exists() {
        std::fs::copy(std::env::current_exe().unwrap(), &path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    path
}

fn stranger(place: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(reachable(place));
    command.args(words).uid(STRANGER).gid(STRANGER).current_dir("/").stdin(Stdio::null());
    command
}

/// What a stranger is answered; `address` is a port of this machine or a socket's path.
fn as_stranger(daemon: &Daemon, address: &str, request: &str) -> String {
    let output = stranger(daemon.place.path(), &["--stranger-asks", address, request]).output().unwrap();
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn ask_and_print(address: &str, request: &str) -> ExitCode {
    assert_eq!(rustix::process::geteuid().as_raw(), STRANGER);
    println!("{}", exchange(address, request).unwrap_or_else(|error| format!("{:?}", error.kind())));
    ExitCode::SUCCESS
}

/// Sends a request and reads until the other end closes, or through the first line on a control socket.
fn exchange(address: &str, request: &str) -> std::io::Result<String> {
    let limit = Some(Duration::from_secs(20));
    let mut told = Vec::new();
    match address.parse::<u16>() {
        Ok(port) => {
            let mut stream = TcpStream::connect(("127.0.0.1", port))?;
            stream.set_read_timeout(limit)?;
            stream.write_all(request.as_bytes())?;
            stream.read_to_end(&mut told)?;
        }
        Err(_) => {
            let mut stream = UnixStream::connect(address)?;
            stream.set_read_timeout(limit)?;
            stream.write_all(request.as_bytes())?;
            stream.shutdown(std::net::Shutdown::Write)?;
            stream.read_to_end(&mut told)?;
        }
    }
    Ok(String::from_utf8_lossy(&told).into_owned())
}

/// Every verb, and the least right that answers it.
const VERBS: [(&str, &str); 14] = [
    (r#""verb":"hello""#, "metrics"),
    (r#""verb":"status""#, "read"),
    (r#""verb":"history""#, "read"),
    (r#""verb":"timeline""#, "read"),
    (r#""verb":"heat","class":"web""#, "read"),
    (r#""verb":"bins","class":"web""#, "read"),
    (r#""verb":"sizing","class":"web""#, "read"),
    (r#""verb":"explain","pid":1"#, "read"),
    (r#""verb":"pause""#, "operate"),
    (r#""verb":"resume""#, "operate"),
    (r#""verb":"drain""#, "operate"),
    (r#""verb":"wake","class":"web""#, "operate"),
    (r#""verb":"reload""#, "admin"),
    (r#""verb":"set","key":"budget.cpu","value":"3%""#, "admin"),
];
const RIGHTS: [&str; 4] = ["metrics", "read", "operate", "admin"];

fn every_verb_is_refused_to_a_stranger_but_hello() {
    let closed = daemon("");
    let socket = closed.place.path().join("socket").display().to_string();
    assert_eq!(as_stranger(&closed, &socket, "{\"terrace\":1,\"verb\":\"hello\"}\n").trim(), "PermissionDenied");
    closed.end();
    let rank = |right: &str| RIGHTS.iter().position(|one| *one == right).unwrap();
    let secret = "0123456789abcdef0123456789abcdef";
    // What the stranger is given by name, and by a token that it knows.
    for (given, by_token) in
        [("metrics", false), ("read", false), ("operate", false), ("admin", false), ("operate", true)]
    {
        let place = tempfile::tempdir().unwrap();
        let token = place.path().join("token");
        std::fs::write(&token, secret).unwrap();
        std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o600)).unwrap();
        let principal = match by_token {
            true => format!("token:{}", token.display()),
            false => format!("user:{STRANGER}"),
        };
        let access =
            if given == "metrics" { String::new() } else { format!("[access]\n{given} = [\"{principal}\"]\n") };
        let daemon = daemon(&format!("[daemon]\nsocket_mode = \"666\"\n{access}"));
        let socket = daemon.place.path().join("socket").display().to_string();
        for (verb, needs) in VERBS {
            let tokens = if by_token { [Some(secret), None] } else { [None, Some("wrong")] };
            for token in tokens {
                let field = token.map_or_else(String::new, |token| format!("\"token\":\"{token}\","));
                let told = as_stranger(&daemon, &socket, &format!("{{\"terrace\":1,{field}{verb}}}\n"));
                let answer: Value =
                    serde_json::from_str(&told).unwrap_or_else(|error| panic!("{verb}: {error}: {told}"));
                let has = if by_token && token.is_none() { "metrics" } else { given };
                let denied = answer["code"] == "denied";
                assert_eq!(denied, rank(needs) > rank(has), "{verb} with {has}: {answer}");
                assert!(!denied || answer["data"].is_null(), "{answer}");
            }
        }
        if by_token {
            // The command finds the token where the environment says; as root it needs none, so the stranger's copy is asked.
            let command = place.path().join("terrace");
            std::fs::copy(env!("CARGO_BIN_EXE_terrace"), &command).unwrap();
            for path in [place.path(), &command] {
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
            }
            let known = place.path().join("known");
            std::fs::write(&known, secret).unwrap();
            let pause = |token: Option<&Path>| {
                let mut asks = Command::new(&command);
                asks.args(["pause", "--socket", &socket]).uid(STRANGER).gid(STRANGER).current_dir("/");
                asks.envs(token.map(|path| ("TERRACE_TOKEN_FILE", path)));
                asks.output().unwrap()
            };
            assert!(pause(Some(&known)).status.success() && !pause(None).status.success());
            let told = pause(Some(&token));
            assert!(String::from_utf8_lossy(&told.stderr).contains("TERRACE_TOKEN_FILE="), "{told:?}");
        }
        println!(
            "    with {given}{}: {} verbs as they should be",
            if by_token { " by a token" } else { "" },
            VERBS.len()
        );
        daemon.end();
    }
}

const ROUTES: [(&str, bool); 11] = [
    ("/healthz", true),
    ("/metrics", true),
    ("/", false),
    ("/page.css", false),
    ("/page.js", false),
    ("/api/v1/status", false),
    ("/api/v1/timeline", false),
    ("/api/v1/history", false),
    ("/api/v1/heat?class=web", false),
    ("/api/v1/bins?class=web", false),
    ("/api/v1/sizing?class=web", false),
];

fn every_route_shows_a_stranger_aggregates_only() {
    let port = free_port();
    let over_tcp = daemon(&format!("[metrics]\nlisten = \"127.0.0.1:{port}\"\n"));
    let over_unix = daemon("[metrics]\nsocket_mode = \"666\"\n");
    let path = over_unix.place.path().join("metrics").display().to_string();
    let closed = daemon("");
    for (route, open) in ROUTES {
        let request = format!("GET {route} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        for (daemon, address) in [(&over_tcp, port.to_string()), (&over_unix, path.clone())] {
            let told = as_stranger(daemon, &address, &request);
            let code = if open { "HTTP/1.1 200 " } else { "HTTP/1.1 403 " };
            assert!(told.starts_with(code), "{route} at {address}: {told}");
            let names = [format!("pid=\"{}", daemon.pid()), "address".to_owned(), "0x".to_owned()];
            let body = told.split_once("\r\n\r\n").unwrap().1;
            assert!(!names.iter().any(|name| body.contains(name.as_str())), "{route}: {told}");
        }
        // Root comes through the socket, and not over TCP: nothing proves that it is root.
        let as_root = |address: &str| exchange(address, &request).unwrap();
        assert!(!as_root(&path).starts_with("HTTP/1.1 403 "), "{route}");
        assert_eq!(as_root(&port.to_string()).starts_with("HTTP/1.1 200 "), open, "{route}");
    }
    let shut = closed.place.path().join("metrics").display().to_string();
    assert_eq!(as_stranger(&closed, &shut, "GET /metrics HTTP/1.1\r\n\r\n").trim(), "PermissionDenied");
    for daemon in [over_tcp, over_unix, closed] {
        daemon.end();
    }
}

fn what_is_no_file_is_no_configuration() {
    let daemon = daemon("[class.batch]\nmatch = [{ exe = \"/no/such/program\" }]\n");
    let path = daemon.place.path().join("conf.d/50.toml");
    let good = std::fs::read_to_string(&path).unwrap();
    let uptime = || daemon.ask(terrace_daemon::protocol::Verb::Status {})["uptime_seconds"].as_f64().unwrap();
    let fifo = || {
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, mode).unwrap();
    };
    let zero = || std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
    let large = || std::fs::write(&path, "#".repeat((1 << 20) + 1)).unwrap();
    let cases: [(&str, &dyn Fn()); 5] = [
        ("it is a FIFO", &fifo),
        ("it is a character device", &zero),
        ("it is a directory", &|| std::fs::create_dir(&path).unwrap()),
        ("more than 1048576 bytes", &large),
        ("the file is empty and was not before", &|| std::fs::write(&path, "\n").unwrap()),
    ];
    for (why, make) in cases {
        if path.is_dir() {
            std::fs::remove_dir(&path).unwrap();
        } else {
            std::fs::remove_file(&path).unwrap();
        }
        make();
        let refused = terrace().args(["reload", "--socket"]).arg(daemon.place.path().join("socket")).output().unwrap();
        let told = String::from_utf8(refused.stderr).unwrap();
        assert!(refused.status.code() == Some(1) && told.contains(why) && told.contains("50.toml"), "{why}: {told}");
        daemon.signal(Signal::HUP);
        wait_until(PATIENCE, "the signal's reload is refused as well", || {
            daemon.happened("config").iter().any(|line| line.contains("nothing changed") && line.contains(why))
        });
        let before = uptime();
        wait_until(PATIENCE, "the loop goes on", || uptime() > before);
        assert_eq!(daemon.class("batch")["state"], "waiting", "nothing changed");
    }
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, good).unwrap();
    assert_eq!(daemon.ask(terrace_daemon::protocol::Verb::Reload {})["reloaded"], true);
    daemon.end();
}

/// The log goes into a pipe that nobody reads: the loop hangs in the middle of a line, as it would at a disk that does not answer.
fn a_loop_that_hangs_is_told_and_ended() {
    let place = tempfile::tempdir().unwrap();
    let port = free_port();
    std::fs::create_dir(place.path().join("conf.d")).unwrap();
    let more =
        format!("[daemon]\nwatchdog = \"2s\"\n[memory]\nslow = \"none\"\n[metrics]\nlisten = \"127.0.0.1:{port}\"\n");
    std::fs::write(place.path().join("conf.d/50.toml"), more).unwrap();
    let (_reader, writer) = rustix::pipe::pipe().unwrap();
    rustix::pipe::fcntl_setpipe_size(&writer, 4096).unwrap();
    let mut daemon = Daemon::spawn_in(place, "", "64MiB", "500ms", |command| {
        command.arg("--dry-run").stderr(writer);
    });
    daemon.wait_until_it_answers();
    let health = || exchange(&port.to_string(), "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    assert!(health().starts_with("HTTP/1.1 200 "), "{}", health());
    let status = || terrace().args(["status", "--socket"]).arg(daemon.place.path().join("socket")).output().unwrap();
    assert_eq!(status().status.code(), Some(0));
    let began = Instant::now();
    // Each reload is a line or more.
    wait_until(PATIENCE, "the health says that the loop hangs", || {
        daemon.signal(Signal::HUP);
        health().starts_with("HTTP/1.1 503 ")
    });
    println!("    /healthz says 503 after {:.1} s, with a watchdog of 2 s", began.elapsed().as_secs_f64());
    let told = status();
    let text = String::from_utf8(told.stderr).unwrap();
    assert!(told.status.code() == Some(1) && text.contains("its loop has not turned for"), "{text}");
    assert!(String::from_utf8(told.stdout).unwrap().contains("hung"));
    let metrics = exchange(&port.to_string(), "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    assert!(metrics.contains("\nterrace_loop_age_seconds "), "{metrics}");
    let began = Instant::now();
    daemon.signal(Signal::TERM);
    wait_until(PATIENCE, "it ends all the same", || daemon.child.try_wait().unwrap().is_some());
    println!("    SIGTERM ended it after {:.1} s", began.elapsed().as_secs_f64());
    assert_eq!(daemon.child.try_wait().unwrap().unwrap().code(), Some(1));
}

/// A thousand connections of a stranger who may look, on both servers: idle ones, ones that drip, ones that ask without end and do not
/// read, ones that begin again and again. Root's pause and the scrapes of another go on beside them.
fn a_thousand_hostile_connections_keep_nobody_out() {
    let seconds = std::env::var("TERRACE_HOSTILE_SECONDS").map_or(20, |text| text.parse().unwrap());
    let port = free_port();
    let more = format!(
        "[daemon]\nsocket_mode = \"666\"\n[access]\nread = [\"user:{STRANGER}\"]\n[metrics]\nlisten = \"127.0.0.1:{port}\"\n"
    );
    let daemon = daemon(&more);
    let socket = daemon.place.path().join("socket");
    let words = ["--stranger-attacks", socket.to_str().unwrap(), &port.to_string()];
    let attacker = stranger(daemon.place.path(), &words).stdout(Stdio::piped()).spawn().unwrap();
    let mut attacker = Attacker(attacker);
    // It says so when all of its connections were open once.
    let mut ready = [0; 6];
    attacker.0.stdout.as_mut().unwrap().read_exact(&mut ready).unwrap();
    let (mut pauses, mut scrapes, mut answered) = (Vec::new(), 0, 0);
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(seconds) {
        let asked = Instant::now();
        let verb = if pauses.len() % 2 == 0 { "pause" } else { "resume" };
        let told = exchange(socket.to_str().unwrap(), &format!("{{\"terrace\":1,\"verb\":\"{verb}\"}}\n"));
        let answer = told.as_deref().unwrap_or("");
        assert!(answer.contains("\"ok\":true"), "{told:?}");
        pauses.push(asked.elapsed());
        scrapes += 1;
        let scrape = exchange(&port.to_string(), "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
        match scrape {
            Ok(text) if text.starts_with("HTTP/1.1 200 ") && text.contains("terrace_uptime_seconds") => answered += 1,
            other => println!("    a scrape failed: {other:?}"),
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(attacker.0.try_wait().unwrap().is_none(), "the attack went on to the end");
    pauses.sort_unstable();
    let (worst, median) = (pauses[pauses.len() - 1], pauses[pauses.len() / 2]);
    let status = daemon.ask(terrace_daemon::protocol::Verb::Status {});
    println!(
        "    {seconds} s: {} orders of root, worst {:.0} ms, median {:.0} ms; {answered} of {scrapes} scrapes answered; \
         own CPU {:.2} of a core, resident {} MiB, {} threads",
        pauses.len(),
        worst.as_secs_f64() * 1e3,
        median.as_secs_f64() * 1e3,
        status["own"]["cpu_share"].as_f64().unwrap(),
        status["own"]["resident_bytes"].as_u64().unwrap() >> 20,
        std::fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap().count(),
    );
    assert!(worst < Duration::from_secs(1), "root's order took {worst:?}");
    assert!(answered * 100 >= scrapes * 99, "{answered} of {scrapes}");
    drop(attacker);
    daemon.end();
}

/// Killed when dropped.
struct Attacker(Child);

impl Drop for Attacker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

enum Hostile {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Hostile {
    fn open(socket: &Path, port: u16, tcp: bool) -> Option<Hostile> {
        if tcp {
            let stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
            stream.set_nonblocking(true).ok()?;
            return Some(Hostile::Tcp(stream));
        }
        let stream = UnixStream::connect(socket).ok()?;
        stream.set_nonblocking(true).ok()?;
        Some(Hostile::Unix(stream))
    }

    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            Hostile::Unix(stream) => stream.write(bytes),
            Hostile::Tcp(stream) => stream.write(bytes),
        }
    }

    /// Whether the other end has closed; takes nothing in that there is to read.
    fn is_closed(&mut self) -> bool {
        let mut sink = [0; 1];
        let read = match self {
            Hostile::Unix(stream) => stream.read(&mut sink),
            Hostile::Tcp(stream) => stream.peek(&mut sink),
        };
        match read {
            Ok(length) => length == 0,
            Err(error) => error.kind() != ErrorKind::WouldBlock,
        }
    }
}

/// Holds a thousand connections, half of them on each server, until it is killed.
fn attack(socket: &Path, port: u16) -> ExitCode {
    let _ = rustix::process::setrlimit(
        rustix::process::Resource::Nofile,
        rustix::process::Rlimit { current: Some(4096), maximum: Some(4096) },
    );
    let mut open: Vec<Option<Hostile>> = (0..1000).map(|_| None).collect();
    let mut told = false;
    for turn in 0u64.. {
        for (index, connection) in open.iter_mut().enumerate() {
            let tcp = index % 2 == 0;
            if connection.as_mut().is_none_or(Hostile::is_closed) {
                *connection = Hostile::open(socket, port, tcp);
            }
            let Some(stream) = connection else { continue };
            let explain = "{\"terrace\":1,\"verb\":\"explain\",\"pid\":1}\n{\"terrace\":1,\"verb\":\"timeline\"}\n";
            let _ = match (index / 2 % 4, tcp) {
                // Nothing at all.
                (0, _) => Ok(0),
                // A byte now and then.
                (1, _) if turn % 20 == 0 => stream.write(b"G"),
                (1, _) => Ok(0),
                // Whole requests, and nothing is read.
                (2, true) => stream.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"),
                (2, false) => stream.write(explain.as_bytes()),
                // Half a request, and away.
                (_, true) => stream.write(b"GET /api/v1/status HTTP/1.1\r\n"),
                (_, false) => stream.write(b"{\"terrace\":1,\"verb\":"),
            };
            if index / 2 % 4 == 3 && turn % 3 == 0 {
                *connection = None;
            }
        }
        if !told {
            told = true;
            println!("ready");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    ExitCode::SUCCESS
}
