//! The daemon on this kernel: several programs at once, reloads, promises, targets, proof, an end that leaves nothing behind.
//!
//! In: nothing, or a part of a test's name. Out: lines on what was seen. Must not: leave anything behind, or judge by the time
//! anything took.
//!
//! The programs check every read and, at their end, every page against what they wrote; an exit code of 0 says all was right.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test program: it speaks, and panics are its failures")]

mod common;

use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use common::daemon::{Daemon, EAGER, MIB, class, ends_well, named, terraced, workload};
use common::{PATIENCE, Running, run_live_tests, terrace, wait_until, zram_of};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use terrace_daemon::protocol::Verb;

fn main() -> ExitCode {
    run_live_tests(
        "live_daemon",
        &[
            ("three_programs_in_two_classes", three_programs_in_two_classes),
            ("an_idle_class_gives_back_fast_memory", an_idle_class_gives_back_fast_memory),
            ("a_bad_reload_changes_nothing", a_bad_reload_changes_nothing),
            ("programs_come_go_and_become_others", programs_come_go_and_become_others),
            ("promises_are_kept_and_audited", promises_are_kept_and_audited),
            ("proof_mode_takes_turns", proof_mode_takes_turns),
            ("a_dry_run_sets_nothing_up_and_moves_nothing", a_dry_run_sets_nothing_up_and_moves_nothing),
            ("a_target_is_tuned_to", a_target_is_tuned_to),
            ("a_program_over_its_target_gets_its_memory_back", a_program_over_its_target_gets_its_memory_back),
            ("beyond_the_machine_a_token_and_tls_are_wanted", beyond_the_machine_a_token_and_tls_are_wanted),
        ],
    )
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
    // The sleeper's time is over when it wakes up, so that it ends with a look at all of its data. The worker works as long as it takes.
    let (one, mut other) = (workload("sleeper", "96MiB", 30, &["hot=1"]), workload("worker", "96MiB", 600, &["hot=1"]));
    wait_until(PATIENCE, "both are known whole", || {
        daemon.figure("sleeper", "footprint_bytes") > 90 * MIB && daemon.figure("worker", "footprint_bytes") > 90 * MIB
    });
    let answer = daemon.ask(Verb::Set { key: "budget.fast".to_owned(), value: "120MiB".to_owned() });
    assert_eq!(answer["set"], "budget.fast");
    // It stops during its work, and stays as it is. Its memory goes to the class that uses more than its share, and to no other.
    let stopped = Pid::from_raw(one.pid() as i32).unwrap();
    kill_process(stopped, Signal::STOP).unwrap();
    wait_until(Duration::from_secs(180), "the sleeper is down to its floor", || {
        let fast = daemon.figure("sleeper", "fast_bytes");
        fast < 40 * MIB
    });
    let (fast, granted) = (daemon.figure("sleeper", "fast_bytes"), daemon.figure("worker", "granted_bytes"));
    println!("    the sleeper holds {} MiB, the worker is granted {} MiB", fast / MIB, granted / MIB);
    assert!(fast >= 15 * MIB, "its floor holds: {fast}; {:#}", daemon.class("sleeper"));
    assert!(granted > 70 * MIB, "what it gave is the worker's: {granted}");
    kill_process(stopped, Signal::CONT).unwrap();
    ends_well(one, "sleeper");
    assert!(other.is_running());
    drop(other);
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
    let socket = daemon.place.path().join("socket");
    let set = terrace().args(["set", "class.frnt.floor", "1MiB", "--socket"]).arg(&socket).output().unwrap();
    let told = String::from_utf8(set.stderr).unwrap();
    assert_eq!(set.status.code(), Some(2));
    assert!(told.contains("there is no class frnt; there are: front"), "{told}");

    let more = good.replace("goal = \"best\"", "goal = \"50%\"\nweight = 7") + &class("other", "other", "");
    std::fs::write(&path, more.replace("512MiB", "256MiB")).unwrap();
    let answer = daemon.ask(Verb::Reload {});
    assert_eq!(answer["needs_restart"], serde_json::json!(["memory.slow"]));
    assert_eq!(daemon.ask(Verb::Reload {}), answer, "it is not forgotten");
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

fn promises_are_kept_and_audited() {
    let promised = class("promised", "promised", "goal = \"never-slow\"");
    let pressed = class("pressed", "pressed", "goal = \"best\"");
    let nowhere = class("nowhere", "nowhere", "goal = \"never-fast\"");
    let daemon = Daemon::start(&format!("{promised}{pressed}{nowhere}"));
    let programs = [
        workload("promised", "64MiB", 25, &[]),
        workload("pressed", "64MiB", 25, &[]),
        workload("nowhere", "16MiB", 25, &[]),
    ];
    wait_until(PATIENCE, "both are known whole", || {
        ["promised", "pressed"].iter().all(|name| daemon.figure(name, "footprint_bytes") > 60 * MIB)
    });
    // Far less than both have: the one without a promise gives it all.
    daemon.ask(Verb::Set { key: "budget.fast".to_owned(), value: "80MiB".to_owned() });
    wait_until(PATIENCE, "the other one gives", || daemon.figure("pressed", "slow_bytes") > 30 * MIB);
    let kept = &daemon.class("promised")["contract"];
    println!("    {kept}");
    assert_eq!(kept["promise"], "never-slow");
    for none in ["violating_bytes", "worst_bytes", "own_moves_against_it"] {
        assert_eq!(kept[none], 0, "{kept:#}");
    }
    let metrics = daemon.get("/metrics");
    assert!(metrics.contains("terrace_class_contract_violating_bytes{class=\"promised\"} 0\n"), "{metrics}");
    // A promise that swap cannot keep is refused with the reason, and so is the process.
    wait_until(PATIENCE, "the third class says why not", || daemon.class("nowhere")["state"] == "failed");
    let why = daemon.class("nowhere")["reason"].as_str().unwrap().to_owned();
    assert!(why.contains("never-fast cannot be kept") && why.contains("is swap"), "{why}");
    let refused = daemon.ask(Verb::Status {})["refused"].clone();
    assert_eq!((refused[0]["class"].as_str(), refused[0]["reason"].as_str()), (Some("nowhere"), Some(why.as_str())));
    for (program, what) in programs.into_iter().zip(["promised", "pressed", "nowhere"]) {
        ends_well(program, what);
    }
    daemon.end();
}

/// Fills 48 MiB, and reads all of it once a file is there.
const READER: &str = "import mmap,os,sys,time\n\
                      m=mmap.mmap(-1,48<<20,mmap.MAP_PRIVATE|mmap.MAP_ANONYMOUS)\n\
                      [m.__setitem__(slice(at,at+8),b'contents') for at in range(0,48<<20,4096)]\n\
                      while not os.path.exists(sys.argv[1]): time.sleep(0.05)\n\
                      assert all(m[at:at+8]==b'contents' for at in range(0,48<<20,4096))\n\
                      print('right',flush=True)\ntime.sleep(600)\n";

fn proof_mode_takes_turns() {
    let place = tempfile::tempdir().unwrap();
    let (reader, sign) = (place.path().join(format!("reader-{}", std::process::id())), place.path().join("sign"));
    let asked = Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output().unwrap();
    std::os::unix::fs::symlink(String::from_utf8(asked.stdout).unwrap().trim(), &reader).unwrap();
    let name = reader.file_name().unwrap();
    let daemon = Daemon::start(&format!("[class.front]\nmatch = [{{ name = {name:?} }}]\nproof = \"10s\"\n{EAGER}"));
    let mut program = Running::start(Command::new(&reader).args(["-c", READER]).arg(&sign));
    wait_until(PATIENCE, "most of it is out", || daemon.figure("front", "slow_bytes") > 30 * MIB);
    wait_until(PATIENCE, "it is left alone", || daemon.class("front")["state"] == "held");
    let before = daemon.class("front");
    // Two windows of ten seconds in turn leave it alone. What it needs meanwhile comes back, and is counted meanwhile.
    std::fs::write(&sign, "").unwrap();
    program.wait_for_output("right", PATIENCE);
    let faults = |class: &Value| class["major_faults"].as_u64().unwrap();
    let mut after = daemon.class("front");
    wait_until(PATIENCE, "what came back is counted", || {
        after = daemon.class("front");
        faults(&after) > faults(&before) + 1000
    });
    assert_eq!(after["state"], "held", "{after:#}");
    for still in ["rounds", "demoted_pages", "promoted_pages"] {
        assert_eq!(after[still], before[still], "no page is looked at and nothing moves");
    }
    wait_until(PATIENCE, "it is managed again", || {
        daemon.happened("state").iter().any(|line| line == "proof: managed for 10 s")
    });
    let proof = daemon.class("front")["proof"].clone();
    println!("    {} faults while left alone; {proof}", faults(&after) - faults(&before));
    // It sleeps, so its time says nothing, and nothing is what the proof says.
    assert!(proof["verdict"] == "measuring" && proof["frozen"] == false && proof["gain"].is_null(), "{proof:#}");
    assert!(program.is_running());
    drop(program);
    daemon.end();
}

fn a_dry_run_sets_nothing_up_and_moves_nothing() {
    let daemon = Daemon::spawn(&class("front", "front", ""), "512MiB", "500ms", |command| {
        command.arg("--dry-run");
    });
    daemon.wait_until_it_answers();
    let program = workload("front", "64MiB", 25, &[]);
    let mut would = 0;
    wait_until(PATIENCE, "it says how much would move", || {
        would = daemon.class("front")["failed_pages"]["dry_run"].as_u64().unwrap_or(0);
        would > 5000
    });
    assert!(zram_of(daemon.pid()).is_none(), "no swap was set up");
    let front = daemon.class("front");
    assert_eq!((front["slow_bytes"].as_u64(), front["demoted_pages"].as_u64()), (Some(0), Some(0)), "{front:#}");
    let socket = daemon.place.path().join("socket");
    let told = terrace().args(["classes", "front", "--socket"]).arg(&socket).output().unwrap();
    let told = String::from_utf8(told.stdout).unwrap();
    println!("    {would} pages would move");
    for part in ["pages would have moved", "the policy's lines: cold at", "share of the recent past"] {
        assert!(told.contains(part), "{part}: {told}");
    }
    let status = terrace().args(["status", "--socket"]).arg(&socket).output().unwrap();
    assert!(String::from_utf8(status.stdout).unwrap().contains("dry run: nothing moves"));
    ends_well(program, "front");
    daemon.end();
}

fn a_target_is_tuned_to() {
    let daemon = Daemon::start(&class("front", "front", "goal = \"tuned\"\nmax_slowdown = \"5%\""));
    let mut program = workload("front", "64MiB", 240, &[]);
    wait_until(PATIENCE, "it is managed", || daemon.figure("front", "processes") == 1);
    assert_eq!(daemon.class("front")["tuned"]["max_slowdown"], 0.05);
    wait_until(PATIENCE, "the tuner begins", || daemon.class("front")["tuned"]["waits"].is_null());
    let sizing = |daemon: &Daemon| daemon.ask(Verb::Sizing { class: "front".to_owned() });
    wait_until(PATIENCE, "the tuner has taken some away", || {
        daemon.class("front")["tuned"]["fast_share"].as_f64().unwrap() < 0.9
            && daemon.figure("front", "slow_bytes") > 2 * MIB
    });
    let view = sizing(&daemon);
    assert_eq!(view["max_slowdown"].as_f64(), Some(0.05), "{view:#}");
    assert!(view["inputs"].as_str().unwrap().starts_with("observed"), "{view:#}");
    assert!(view["decisions"].as_array().unwrap().iter().any(|one| one["action"] == "shrunk"), "{view:#}");
    let tuned = daemon.class("front")["tuned"].clone();
    println!("    {tuned}");
    assert!(daemon.get("/metrics").contains("terrace_class_tuned_fast_ratio{class=\"front\"} 0."));
    let json: Value = serde_json::from_str(&daemon.get("/api/v1/bins?class=front")).unwrap();
    assert_eq!(json["bins"].as_array().unwrap().len(), 16);
    assert!(program.is_running());
    drop(program);
    daemon.end();
}

fn a_program_over_its_target_gets_its_memory_back() {
    let daemon = Daemon::start(&class("front", "front", "goal = \"tuned\"\nmax_slowdown = \"5%\""));
    // Which half is hot changes once a minute: what was withheld until then is what the program needs from then on.
    let mut program = workload("front", "512MiB", 900, &["hot=0.5", "shift_seconds=60"]);
    wait_until(PATIENCE, "the tuner begins", || {
        daemon.figure("front", "processes") == 1 && daemon.class("front")["tuned"]["waits"].is_null()
    });
    let decisions = || daemon.ask(Verb::Sizing { class: "front".to_owned() })["decisions"].as_array().unwrap().clone();
    let (mut most_slow, mut broken) = (0, None);
    wait_until(Duration::from_secs(400), "the program is pushed over its target", || {
        most_slow = daemon.figure("front", "slow_bytes").max(most_slow);
        broken = decisions().windows(2).find(|pair| pair[1]["action"] == "backed_off").map(<[Value]>::to_vec);
        broken.is_some()
    });
    let broken = broken.unwrap();
    let share = |decision: &Value| decision["fast_share"].as_f64().unwrap();
    assert!(broken[1]["observed_loss"].as_f64().unwrap() > 0.025, "no break without a loss: {broken:?}");
    assert!(share(&broken[1]) > share(&broken[0]), "more is allowed at once: {broken:?}");
    let told = daemon.happened("budget");
    let told = told.iter().find(|line| line.contains("its share of fast memory grows")).expect("the history says so");
    println!("    {} MiB slow, then {told}", most_slow / MIB);
    // And it has it: no more is slow than the share leaves, though the program asks for some of it only.
    let footprint = daemon.figure("front", "footprint_bytes");
    let allowed = (footprint as f64 * (1.0 - share(&broken[1]))) as u64 + footprint / 50;
    let took = wait_until(PATIENCE, "what was given back is fast", || daemon.figure("front", "slow_bytes") <= allowed);
    println!("    at most {} MiB slow {:.1} s after it was seen", allowed / MIB, took.as_secs_f64());
    assert!(program.is_running());
    drop(program);
    daemon.end();
}

/// Asks as a browser, as Prometheus and as a stranger do; one more connects and says nothing.
const ASK: &str = r#"
import base64, hashlib, http.client, socket, ssl, sys
served = set()
port, certificate, token = int(sys.argv[1]), sys.argv[2], sys.argv[3]
silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(4)]
context = ssl.create_default_context(cafile=certificate)
def ask(path, **headers):
    connection = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=20)
    connection.request("GET", path, headers=headers)
    served.add(hashlib.sha256(connection.sock.getpeercert(True)).hexdigest()[:8])
    answer = connection.getresponse()
    body = answer.read()
    return f"{answer.status}:{len(body) > 500}"
basic = base64.b64encode(b"anyone:" + token.encode()).decode()
print(ask("/metrics"), ask("/metrics", Authorization="Bearer " + token), ask("/", Authorization="Basic " + basic),
      ask("/api/v1/status", Authorization="Bearer " + token[:-1]), ask("/healthz"),
      ask("/metrics", Authorization="Bearer " + token, Host="evil.example"),
      ask("/metrics", Authorization="Bearer " + token, Host=f"tiers.example:{port}"))
try:
    http.client.HTTPConnection("127.0.0.1", port, timeout=20).request("GET", "/healthz")
    plain = socket.create_connection(("127.0.0.1", port)); plain.settimeout(20)
    plain.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    print("plain" if b"200 OK" in plain.recv(1000) else "refused")
except OSError:
    print("refused")
print(*served)
"#;

fn beyond_the_machine_a_token_and_tls_are_wanted() {
    let place = tempfile::tempdir().unwrap();
    let path = |name: &str| place.path().join(name).display().to_string();
    let (certificate, old_certificate, key, token) =
        (path("certificate.pem"), path("old.pem"), path("key.pem"), path("token"));
    let make = || {
        let made = Command::new("openssl")
            .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=terrace.test"])
            .args(["-addext", "subjectAltName=IP:127.0.0.1,DNS:tiers.example"])
            .args(["-addext", "basicConstraints=critical,CA:FALSE", "-keyout", &key, "-out", &certificate])
            .stderr(Stdio::null())
            .status();
        made.is_ok_and(|status| status.success())
    };
    if !make() {
        println!(
            "SKIPPED beyond_the_machine_a_token_and_tls_are_wanted: there is no `openssl` to make a certificate with"
        );
        return;
    }
    let secret = "0123456789abcdef0123456789abcdef";
    std::fs::write(&token, secret).unwrap();
    Command::new("chmod").args(["600", &key, &token]).status().unwrap();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    std::fs::create_dir(place.path().join("conf.d")).unwrap();
    let drop_in = |keys: &str| {
        let text = format!("[metrics]\nlisten = \"0.0.0.0:{port}\"\n{keys}");
        std::fs::write(place.path().join("conf.d/50.toml"), text).unwrap();
    };
    // Without both it is refused before anything is set up.
    drop_in(&format!("token = \"{token}\"\n"));
    std::fs::write(place.path().join("terrace.toml"), "# The defaults.\n").unwrap();
    let refused =
        Command::new(terraced()).args(["--config", &path("terrace.toml")]).env_remove("TERRACE_LOG").output().unwrap();
    let told = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(2));
    assert!(told.contains("50.toml:2: metrics.listen") && told.contains("from other machines"), "{told}");
    drop_in(&format!("token = \"{token}\"\ncertificate = \"{certificate}\"\nkey = \"{key}\"\n"));
    let daemon = Daemon::spawn_in(place, "", "64MiB", "500ms", |_| {});
    daemon.wait_until_it_answers();
    let ask = |certificate: &str| {
        let output =
            Command::new("python3").args(["-c", ASK, &port.to_string(), certificate, secret]).output().unwrap();
        let told = String::from_utf8(output.stdout).unwrap();
        println!("    {}", told.trim().replace('\n', "; "));
        let expected = "401:False 200:True 200:True 401:False 200:False 403:False 200:True\nrefused\n";
        let served = told.strip_prefix(expected);
        let trouble = String::from_utf8_lossy(&output.stderr).into_owned();
        served.unwrap_or_else(|| panic!("{told}{trouble}{}", daemon.log())).trim().to_owned()
    };
    let first = ask(&certificate);
    // A renewal in two steps. After the first the pair does not fit: nothing changes, and what was served is served on.
    let old_key = std::fs::read(&key).unwrap();
    std::fs::copy(&certificate, &old_certificate).unwrap();
    assert!(make());
    let new_key = std::fs::read(&key).unwrap();
    std::fs::write(&key, &old_key).unwrap();
    daemon.signal(Signal::HUP);
    wait_until(PATIENCE, "a certificate without its key is refused", || {
        daemon.happened("config").iter().any(|line| line.contains("nothing changed") && line.contains("metrics.key"))
    });
    assert_eq!(ask(&old_certificate), first);
    std::fs::write(&key, &new_key).unwrap();
    let answer = daemon.ask(Verb::Reload {});
    assert_eq!(answer["needs_restart"], serde_json::json!([]));
    assert_ne!(ask(&certificate), first, "the new one is served");
    assert!(daemon.happened("config").iter().any(|line| line == "reloaded; a new certificate is in force"));
    daemon.end();
}
