//! The daemon on this kernel: several programs at once, reloads, faults, an end that leaves nothing behind.
//!
//! In: nothing, or a part of a test's name; TERRACE_KILLS says how many kills (4 without). Out: lines on what was seen. Must not:
//! leave anything behind, or judge by the time anything took.
//!
//! The programs check every read and, at their end, every page against what they wrote; an exit code of 0 says all was right.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test program: it speaks, and panics are its failures")]

mod common;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use common::{PATIENCE, Running, read, run_live_tests, status_bytes, terrace, verified, wait_until, zram_of};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use terrace_daemon::client::Client;
use terrace_daemon::protocol::Verb;

const MIB: u64 = 1 << 20;

fn main() -> ExitCode {
    run_live_tests(
        "live_daemon",
        &[
            ("three_programs_in_two_classes", three_programs_in_two_classes),
            ("an_idle_class_gives_back_fast_memory", an_idle_class_gives_back_fast_memory),
            ("a_bad_reload_changes_nothing", a_bad_reload_changes_nothing),
            ("programs_come_go_and_become_others", programs_come_go_and_become_others),
            ("a_fork_storm_and_ten_thousand_mappings", a_fork_storm_and_ten_thousand_mappings),
            ("a_full_slow_tier_stops_nothing", a_full_slow_tier_stops_nothing),
            ("a_hostile_socket_disturbs_nobody", a_hostile_socket_disturbs_nobody),
            ("data_survive_kills_of_the_daemon", data_survive_kills_of_the_daemon),
        ],
    )
}

/// A daemon with a place of its own; ended when dropped.
struct Daemon {
    child: Child,
    place: tempfile::TempDir,
}

/// In a hurry, and with processor time to hurry with.
const EAGER: &str = "policy = \"age\"\nset = { idle = \"2s\", interval = \"500ms\" }\n";

impl Daemon {
    fn start(classes: &str) -> Daemon {
        Daemon::with_slow(classes, "512MiB")
    }

    /// A daemon whose compressed swap holds so much.
    fn with_slow(classes: &str, size: &str) -> Daemon {
        let place = tempfile::tempdir().unwrap();
        let own = place.path().display();
        let text = format!(
            "[daemon]\nsocket = \"{own}/socket\"\ngroup = \"no-such-group\"\npoll = \"500ms\"\n\
             [memory]\nslow = \"zram:{size}\"\n[budget]\ncpu = \"80%\"\nperiod = \"500ms\"\n\
             [metrics]\nlisten = \"unix:{own}/metrics\"\n{classes}"
        );
        std::fs::write(place.path().join("terrace.toml"), text).unwrap();
        let log = std::fs::File::create(place.path().join("log")).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_terraced"))
            .arg("--config")
            .arg(place.path().join("terrace.toml"))
            .env_remove("TERRACE_LOG")
            .env_remove("JOURNAL_STREAM")
            .env_remove("NOTIFY_SOCKET")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let daemon = Daemon { child, place };
        daemon.wait_until_it_answers();
        daemon
    }

    fn wait_until_it_answers(&self) {
        // The tiers, the swap and the refault's cost are made ready before the first status.
        wait_until(PATIENCE, "the daemon answers", || {
            self.try_ask(Verb::Status {}).is_some_and(|status| status["uptime_seconds"].as_f64() > Some(0.0))
        });
    }

    fn try_ask(&self, verb: Verb) -> Option<Value> {
        Client::connect(&self.place.path().join("socket")).ok()?.ask(verb).ok()
    }

    fn ask(&self, verb: Verb) -> Value {
        let mut client = Client::connect(&self.place.path().join("socket"))
            .unwrap_or_else(|error| panic!("{error}\n{}", self.log()));
        client.ask(verb).unwrap_or_else(|error| panic!("{error}\n{}", self.log()))
    }

    fn class(&self, name: &str) -> Value {
        let status = self.ask(Verb::Status {});
        let classes = status["classes"].as_array().unwrap();
        classes.iter().find(|class| class["name"] == name).unwrap_or_else(|| panic!("no class {name}")).clone()
    }

    /// A figure of a class.
    fn figure(&self, class: &str, name: &str) -> u64 {
        self.class(class)[name].as_u64().unwrap()
    }

    fn log(&self) -> String {
        read(&self.place.path().join("log"))
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.pid() as i32).unwrap(), signal).unwrap();
    }

    /// Ends it as a service manager does; it must put everything back.
    fn end(mut self) {
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
    fn get(&self, path: &str) -> String {
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

/// The workload under a name of its own, so that its path selects it.
fn named(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_file(&path);
    std::fs::hard_link(env!("CARGO_BIN_EXE_terrace"), &path).unwrap();
    path
}

fn workload(name: &str, size: &str, seconds: u32, settings: &[&str]) -> Running {
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

fn class(name: &str, exe: &str, more: &str) -> String {
    format!("[class.{name}]\nmatch = [{{ exe = \"{}/{exe}\" }}]\n{EAGER}{more}\n", env!("CARGO_TARGET_TMPDIR"))
}

/// Ends with all its data right.
fn ends_well(mut program: Running, what: &str) {
    let finished = program.finish(Duration::from_secs(180));
    assert_eq!(finished.code, 0, "{what}: {}{}", finished.stdout, finished.stderr);
    assert!(verified(&finished.stdout).is_some(), "{what}: {}", finished.stdout);
}

fn three_programs_in_two_classes() {
    let front_class = class("front", "front", "goal = \"best\"\nfloor = \"48MiB\"\nweight = 300");
    let daemon = Daemon::start(&format!("{front_class}{}", class("batch", "batch-*", "goal = \"least\"")));
    let front = workload("front", "64MiB", 40, &[]);
    let batch = [workload("batch-1", "64MiB", 40, &[]), workload("batch-2", "64MiB", 40, &[])];
    wait_until(PATIENCE, "all three are managed", || {
        daemon.figure("front", "processes") == 1 && daemon.figure("batch", "processes") == 2
    });
    wait_until(PATIENCE, "the cold half of batch is in slow memory", || {
        daemon.figure("batch", "slow_bytes") > 60 * MIB
    });
    assert!(daemon.figure("front", "fast_bytes") >= 48 * MIB, "the floor holds: {:#}", daemon.class("front"));
    assert!(daemon.figure("front", "slow_bytes") < MIB, "nobody needs front's memory: {:#}", daemon.class("front"));

    // An operator sees it: over the socket, in the command, in the metrics.
    let status = daemon.ask(Verb::Status {});
    println!(
        "    own CPU {:.3}, resident {} MiB",
        status["own"]["cpu_share"],
        status["own"]["resident_bytes"].as_u64().unwrap() / MIB
    );
    let metrics = daemon.get("/metrics");
    assert!(metrics.contains("terrace_class_processes{class=\"batch\"} 2\n"), "{metrics}");
    let moved = metrics.lines().find(|line| line.starts_with("terrace_moved_bytes_total{class=\"batch\""));
    assert!(moved.is_some_and(|line| line.contains("reason=\"cold\"")), "{metrics}");
    for path in ["/api/v1/status", "/api/v1/timeline", "/api/v1/history", "/api/v1/heat?class=batch"] {
        let json: Value = serde_json::from_str(&daemon.get(path)).unwrap();
        assert!(!json.is_null(), "{path}");
    }
    let socket = daemon.place.path().join("socket");
    let ask = |words: &[&str]| {
        let output = terrace().args(words).arg("--socket").arg(&socket).output().unwrap();
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(ask(&["status"]).contains("batch") && ask(&["classes"]).contains("policy age"));
    let pid = batch[0].pid().to_string();
    let told = ask(&["explain", &pid]);
    assert!(told.contains("class batch") && told.contains("selector 1"), "{told}");
    let why = explained_page(&daemon, batch[0].pid());
    println!("    {why}");
    assert!(ask(&["history"]).contains("joined"));

    // Less memory for all: the floor still holds, and batch gives.
    ask(&["set", "budget.fast", "80MiB"]);
    wait_until(PATIENCE, "the grants follow the budget", || {
        let granted = |class| daemon.figure(class, "granted_bytes");
        granted("front") + granted("batch") <= 80 * MIB && granted("front") >= 48 * MIB
    });
    for (program, what) in [(front, "front"), (batch.into_iter().next().unwrap(), "batch-1")] {
        ends_well(program, what);
    }
    daemon.end();
}

/// Why a page of a process that lies in slow memory does: asked for pages of its mappings until one is found.
fn explained_page(daemon: &Daemon, pid: u32) -> String {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let ranges = maps.lines().filter_map(|line| {
        let (start, end) = line.split_whitespace().next()?.split_once('-')?;
        Some((u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?))
    });
    let large = ranges.filter(|(start, end)| end - start > 32 * MIB);
    for (start, end) in large {
        for page in 0..64 {
            let address = start + (end - start) / 64 * page;
            let answer = daemon.ask(Verb::Explain { pid, address: Some(address) });
            let page = &answer["page"];
            if page["demoted"] == true {
                assert!(page["because"].as_str().unwrap().contains("used too rarely"), "{page:#}");
                assert!(!page["decisions"].as_array().unwrap().is_empty(), "{page:#}");
                return page["because"].as_str().unwrap().to_owned();
            }
        }
    }
    panic!("no page of pid {pid} was found in slow memory");
}

fn an_idle_class_gives_back_fast_memory() {
    let sleeper = class("sleeper", "sleeper", "goal = \"best\"\nfloor = \"16MiB\"");
    let worker = class("worker", "worker", "goal = \"best\"");
    let daemon = Daemon::start(&format!("{sleeper}{worker}"));
    let (one, other) = (workload("sleeper", "96MiB", 150, &["hot=1"]), workload("worker", "96MiB", 150, &["hot=1"]));
    wait_until(PATIENCE, "both are known whole", || {
        daemon.figure("sleeper", "footprint_bytes") > 90 * MIB && daemon.figure("worker", "footprint_bytes") > 90 * MIB
    });
    let answer = daemon.ask(Verb::Set { key: "budget.fast".to_owned(), value: "120MiB".to_owned() });
    assert_eq!(answer["set"], "budget.fast");
    // It stops in mid work, and stays as it is. What it has goes to whoever uses more than its share, and to nobody else.
    let stopped = Pid::from_raw(one.pid() as i32).unwrap();
    kill_process(stopped, Signal::STOP).unwrap();
    wait_until(Duration::from_secs(180), "the sleeper is down to its floor", || {
        let fast = daemon.figure("sleeper", "fast_bytes");
        fast < 40 * MIB
    });
    let (fast, granted) = (daemon.figure("sleeper", "fast_bytes"), daemon.figure("worker", "granted_bytes"));
    println!("    the sleeper holds {} MiB, the worker is granted {} MiB", fast / MIB, granted / MIB);
    assert!(fast >= 15 * MIB, "its floor holds: {fast}");
    assert!(granted > 70 * MIB, "what it gave is the worker's: {granted}");
    kill_process(stopped, Signal::CONT).unwrap();
    ends_well(one, "sleeper");
    ends_well(other, "worker");
    daemon.end();
}

fn a_bad_reload_changes_nothing() {
    let daemon = Daemon::start(&class("front", "front", "goal = \"best\""));
    let before = daemon.class("front");
    let path = daemon.place.path().join("terrace.toml");
    let good = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, good.replace("goal = \"best\"", "goal = \"better\"")).unwrap();
    let line = good.lines().position(|line| line.contains("goal =")).unwrap() + 1;
    let refused = terrace().args(["reload", "--socket"]).arg(daemon.place.path().join("socket")).output().unwrap();
    let told = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(told.contains(&format!("terrace.toml:{line}: class.front.goal: \"better\"")), "{told}");
    daemon.signal(Signal::HUP);
    wait_until(PATIENCE, "the log says so as well", || daemon.log().contains("not reloaded, nothing changed"));
    assert_eq!(daemon.class("front")["goal"], before["goal"]);

    let more = good.replace("goal = \"best\"", "goal = \"50%\"\nweight = 7") + &class("other", "other", "");
    std::fs::write(&path, more.replace("512MiB", "256MiB")).unwrap();
    let answer = daemon.ask(Verb::Reload {});
    assert_eq!(answer["needs_restart"], serde_json::json!(["memory.slow"]));
    wait_until(PATIENCE, "the new classes show", || {
        let status = daemon.ask(Verb::Status {});
        status["classes"].as_array().unwrap().len() == 2
    });
    let front = daemon.class("front");
    assert_eq!((front["goal"].as_str(), front["weight"].as_u64()), (Some("50%"), Some(7)));
    daemon.end();
}

fn programs_come_go_and_become_others() {
    let daemon = Daemon::start(&format!("{}{}", class("first", "first", ""), class("second", "second", "")));
    // exec: one pid, two programs, two classes.
    let (first, second) = (named("first"), named("second"));
    let script = format!(
        "'{}' workload hot-cold --size 16MiB --duration 3s >/dev/null; exec '{}' workload hot-cold --size 16MiB --duration 6s",
        first.display(),
        second.display()
    );
    let shell = Running::start(Command::new("sh").args(["-c", &script]).stdin(Stdio::null()));
    wait_until(PATIENCE, "the first program is managed", || daemon.figure("first", "processes") == 1);
    wait_until(PATIENCE, "the second is managed, under the shell's pid", || daemon.figure("second", "processes") == 1);
    wait_until(PATIENCE, "the first is let go", || daemon.figure("first", "processes") == 0);
    let explained = daemon.ask(Verb::Explain { pid: shell.pid(), address: None });
    assert_eq!(explained["class"], "second", "{explained:#}");
    ends_well(shell, "the shell's second program");
    // Killed in the middle of walks and moves.
    for _ in 0..6 {
        let program = workload("first", "48MiB", 60, &[]);
        wait_until(PATIENCE, "it is managed", || daemon.figure("first", "processes") == 1);
        wait_until(PATIENCE, "it is being moved", || daemon.figure("first", "slow_bytes") > MIB);
        drop(program);
        wait_until(PATIENCE, "it is let go", || daemon.figure("first", "processes") == 0);
    }
    assert_eq!(daemon.figure("first", "footprint_bytes"), 0, "nothing is kept of those that are gone");
    assert_eq!(daemon.class("first")["state"], "waiting");
    daemon.end();
}

fn a_fork_storm_and_ten_thousand_mappings() {
    // Everything with these names belongs to the class, so that every one of the storm that lives long enough is looked at. The
    // names are this test's own: other people's processes are not ours to manage.
    let place = tempfile::tempdir().unwrap();
    let ours = |name: &str, program: &str| {
        let link = place.path().join(format!("{name}-{}", std::process::id()));
        std::os::unix::fs::symlink(program, &link).unwrap();
        link
    };
    // Not by PATH, where a version manager's script may stand for the interpreter.
    let asked = Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output().unwrap();
    let (quick, python) = (ours("quick", "/bin/true"), ours("many", String::from_utf8(asked.stdout).unwrap().trim()));
    let names = [&quick, &python].map(|link| format!("{{ name = {:?} }}", link.file_name().unwrap()));
    let daemon = Daemon::start(&format!("[class.all]\nmatch = [{}]\n", names.join(", ")));
    let before = status_bytes(daemon.pid(), "VmRSS").unwrap();
    let began = Instant::now();
    for _ in 0..100 {
        let children: Vec<Child> = (0..10).map(|_| Command::new(&quick).spawn().unwrap()).collect();
        children.into_iter().for_each(|mut child| assert!(child.wait().unwrap().success()));
    }
    println!("    1,000 processes in {:.1} s", began.elapsed().as_secs_f64());
    wait_until(PATIENCE, "all of them are forgotten", || daemon.figure("all", "processes") == 0);
    // Mappings of two kinds side by side cannot be merged: 10,000 of them.
    let program = "import mmap,sys,time\n\
                   held=[mmap.mmap(-1,8192,mmap.MAP_PRIVATE|mmap.MAP_ANONYMOUS,\n\
                   \x20 (mmap.PROT_READ|mmap.PROT_WRITE) if i%2 else mmap.PROT_READ) for i in range(10000)]\n\
                   [m.__setitem__(0,1) for m in held[1::2]]\nprint('ready',flush=True)\ntime.sleep(600)\n";
    let mut many = Command::new(&python).args(["-c", program]).stdout(Stdio::piped()).spawn().unwrap();
    let mut ready = [0; 5];
    many.stdout.as_mut().unwrap().read_exact(&mut ready).unwrap();
    let mappings = std::fs::read_to_string(format!("/proc/{}/maps", many.id())).unwrap().lines().count();
    wait_until(PATIENCE, "they are walked", || daemon.figure("all", "footprint_bytes") > 20 * MIB);
    let walks = daemon.figure("all", "rounds");
    wait_until(PATIENCE, "and walked again", || daemon.figure("all", "rounds") > walks + 2);
    let after = status_bytes(daemon.pid(), "VmRSS").unwrap();
    println!("    {mappings} mappings; the daemon's memory went from {} to {} MiB", before / MIB, after / MIB);
    assert!(mappings > 10_000, "{mappings}");
    assert!(after < before + 64 * MIB, "no unbounded growth: {before} to {after}");
    many.kill().unwrap();
    many.wait().unwrap();
    wait_until(PATIENCE, "they are let go", || daemon.figure("all", "processes") == 0);
    daemon.end();
}

fn a_full_slow_tier_stops_nothing() {
    // Much smaller than what is cold.
    let daemon = Daemon::with_slow(&class("all", "full", ""), "16MiB");
    let program = workload("full", "96MiB", 20, &[]);
    wait_until(PATIENCE, "the slow tier is full", || daemon.figure("all", "slow_bytes") > 14 * MIB);
    std::thread::sleep(Duration::from_secs(3));
    let class = daemon.class("all");
    println!(
        "    slow {} MiB; failed {}, vetoed {}",
        class["slow_bytes"].as_u64().unwrap() / MIB,
        class["failed_pages"],
        class["vetoed_pages"]
    );
    assert!(class["slow_bytes"].as_u64().unwrap() <= 16 * MIB);
    assert_eq!(class["state"], "running");
    ends_well(program, "full");
    daemon.end();
}

fn a_hostile_socket_disturbs_nobody() {
    let daemon = Daemon::start(&class("front", "front", ""));
    let program = workload("front", "32MiB", 25, &[]);
    wait_until(PATIENCE, "it is managed", || daemon.figure("front", "processes") == 1);
    let socket = daemon.place.path().join("socket");
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    // Noise, half lines, lines without an end, and requests that are nearly right.
    for round in 0..200 {
        let mut stream = UnixStream::connect(&socket).unwrap();
        let length = (random() % 3000) as usize;
        let mut bytes: Vec<u8> = (0..length).map(|_| random() as u8).collect();
        if round % 3 == 0 {
            bytes = br#"{"terrace":1,"verb":"history","after":"#.to_vec();
            bytes.extend(random().to_string().bytes());
            bytes.extend(if round % 2 == 0 { b"}\n".to_vec() } else { vec![0, b'\n'] });
        }
        let _ = stream.write_all(&bytes);
    }
    let mut flood = UnixStream::connect(&socket).unwrap();
    let _ = flood.write_all(&vec![b'x'; 1 << 20]);
    // Readers that ask for much and read nothing, on both servers, more of them than are let in.
    let slow: Vec<UnixStream> = (0..60)
        .map(|turn| {
            let metrics = daemon.place.path().join("metrics");
            let mut stream = UnixStream::connect(if turn % 2 == 0 { &socket } else { &metrics }).unwrap();
            let request = if turn % 2 == 0 {
                "{\"terrace\":1,\"verb\":\"timeline\"}\n".repeat(50)
            } else {
                "GET /metrics HTTP/1.1\r\n\r\n".to_owned()
            };
            let _ = stream.write_all(request.as_bytes());
            stream
        })
        .collect();
    drop((flood, slow));
    wait_until(PATIENCE, "it answers again", || daemon.try_ask(Verb::Status {}).is_some());
    let walks = daemon.figure("front", "rounds");
    wait_until(PATIENCE, "and it has gone on managing", || daemon.figure("front", "rounds") > walks);
    let threads = std::fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap().count();
    println!("    {threads} threads, {} MiB resident", status_bytes(daemon.pid(), "VmRSS").unwrap() / MIB);
    wait_until(PATIENCE, "the threads of those who left end", || {
        std::fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap().count() <= 8
    });
    ends_well(program, "front");
    daemon.end();
}

fn data_survive_kills_of_the_daemon() {
    let kills: u32 = std::env::var("TERRACE_KILLS").map_or(4, |text| text.parse().unwrap());
    let classes = class("front", "front", "");
    let program = workload("front", "64MiB", 10 + 6 * kills, &["shift_seconds=2"]);
    let mut state = 12345u64;
    let mut with_memory_out = 0;
    for kill in 0..kills {
        let mut daemon = Daemon::start(&classes);
        wait_until(PATIENCE, "the one that runs already is taken up", || daemon.figure("front", "processes") == 1);
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        std::thread::sleep(Duration::from_millis(500 + (state >> 33) % 3500));
        with_memory_out += u32::from(status_bytes(program.pid(), "VmSwap").unwrap() > 0);
        let zram = zram_of(daemon.pid());
        daemon.child.kill().unwrap();
        daemon.child.wait().unwrap();
        let gone = wait_until(PATIENCE, "the guard takes the swap away", || zram_of(daemon.pid()).is_none());
        println!("    kill {}: {zram:?} gone after {:.2} s", kill + 1, gone.as_secs_f64());
        assert!(Path::new(&daemon.place.path().join("socket")).exists(), "a killed daemon leaves its socket's file");
    }
    println!("    {with_memory_out} of {kills} kills while memory was out");
    ends_well(program, "front");
}
