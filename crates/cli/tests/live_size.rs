//! `terrace size` on this machine, with compressed swap as slow memory. Needs root and zram.
//!
//! In: nothing, or a part of a test's name. Out: one line a test; SKIPPED and why where it cannot be tried. Must not: leave
//! anything behind; swap, zram and sysctls are compared before and after each test.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test program: it speaks, and panics are its failures")]

mod common;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use common::{
    Finished, PATIENCE, Running, State, number, run, run_live_tests, status_bytes, terrace, verified, wait_until,
    workload,
};
use rustix::process::Signal;
use serde_json::Value;
use terrace_fixtures::live;
use terrace_linux::process::Stat;

fn main() -> ExitCode {
    run_live_tests(
        "live_size",
        &[
            ("the_micro_benchmark_performs_what_was_asked_for", the_micro_benchmark_performs_what_was_asked_for),
            ("a_program_that_ends_before_the_first_interval", a_program_that_ends_before_the_first_interval),
            ("a_tuned_program_ends_with_a_report", a_tuned_program_ends_with_a_report),
            ("a_tuned_program_is_compared_with_itself", a_tuned_program_is_compared_with_itself),
            ("advice_of_a_few_seconds_is_none", advice_of_a_few_seconds_is_none),
            ("advice_looks_at_every_page_in_every_window", advice_looks_at_every_page_in_every_window),
            ("a_live_run_and_a_simulated_one_agree", a_live_run_and_a_simulated_one_agree),
        ],
    )
}

/// What was printed with `--json`, which is more than a line here.
fn printed(done: &Finished) -> Value {
    assert_eq!(done.code, 0, "{}", done.stderr);
    serde_json::from_str(&done.stdout).unwrap_or_else(|error| panic!("{error}: {}", done.stdout))
}

/// Counted accesses, migrations and operations are within 2 % of what was asked for: where pages are visited about once, where few
/// slow ones are visited over and over, and where more is moved than there are pages.
fn the_micro_benchmark_performs_what_was_asked_for() {
    for (vector, fast) in [
        ("4e5,2e4,500,1000,10,128MiB,2,2", "70%"),
        ("1e6,3e4,0,2000,3,64MiB,3,1", "80%"),
        ("5e5,0,1500,0,40,96MiB,2,2", "90%"),
        ("1e6,6e4,9000,9000,3,32MiB,2,2", "50%"),
    ] {
        let done = run(&[
            "size",
            "microbench",
            "--executor",
            "native",
            "--tier-slow",
            "zram:512MiB",
            "--vector",
            vector,
            "--fast",
            fast,
            "--json",
        ]);
        let report = printed(&done);
        assert_eq!(report["performed"]["slow_faults"], Value::Bool(true));
        let visits = |accesses: &str, a_visit: &str| {
            (number(&report, &format!("/asked/{accesses}")) / number(&report, &format!("/asked/{a_visit}")).max(1.0))
                .ceil()
        };
        // A visit to a slow page is one fault; what else the visit does is served by fast memory.
        let faults = visits("slow_accesses", "slow_accesses_a_visit")
            + visits("overflow_accesses", "fast_accesses_a_visit")
            + number(&report, "/asked/promotions");
        let asked_in =
            |names: &[&str]| -> f64 { names.iter().map(|name| number(&report, &format!("/asked/{name}"))).sum() };
        let slow_pages_fast = asked_in(&["slow_accesses", "overflow_accesses"])
            + asked_in(&["promotions"]) * asked_in(&["accesses_a_promotion"])
            - faults;
        let fast_accesses = asked_in(&["fast_accesses", "spared_accesses", "demotions"]) + slow_pages_fast;
        for (what, asked, performed) in [
            ("accesses in fast memory", fast_accesses, "fast_accesses"),
            ("faults on slow pages", faults, "slow_accesses"),
            ("promotions", number(&report, "/asked/promotions"), "promotions"),
            ("demotions", number(&report, "/asked/demotions"), "demotions"),
            ("operations", number(&report, "/asked/operations"), "operations"),
        ] {
            let performed = number(&report, &format!("/performed/{performed}"));
            println!("    {vector} at {fast}: {what}: asked {asked}, performed {performed}");
            assert!((performed - asked).abs() <= (0.02 * asked).max(2.0), "{vector}: {what}: {performed}, not {asked}");
        }
    }
}

/// Nothing was tuned, which is said with exit code 2; the machine is as before.
fn a_program_that_ends_before_the_first_interval() {
    let before = State::read();
    let done = run(&["size", "tune", "--tier-slow", "zram:128MiB", "--quiet", "--", "true"]);
    assert_eq!(done.code, 2, "{}", done.stderr);
    assert!(
        done.stderr.contains("true: ") && done.stderr.contains("before the first interval of 2.5 s"),
        "{}",
        done.stderr
    );
    assert_eq!(State::read(), before);
    let done = run(&["size", "advise", "--", "true"]);
    assert_eq!(done.code, 2, "{}", done.stderr);
    assert!(done.stderr.contains("before the first window of 1s"), "{}", done.stderr);
    assert_eq!(State::read(), before);
}

/// The interfaces others rely on, and the program's own exit code.
fn a_tuned_program_ends_with_a_report() {
    let program = std::env::current_exe().unwrap();
    let terrace = program.parent().unwrap().parent().unwrap().join("terrace");
    let terrace = terrace.to_str().unwrap();
    // The program speaks on stdout, too.
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("report.json");
    let done = run(&[
        "size",
        "tune",
        "--tier-slow",
        "zram:256MiB",
        "--every",
        "1s",
        "--quiet",
        "--json-file",
        file.to_str().unwrap(),
        "--",
        terrace,
        "workload",
        "hot-cold",
        "--size",
        "96MiB",
        "--duration",
        "8s",
    ]);
    assert_eq!(done.code, 0, "{}", done.stderr);
    let report: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    for key in ["saved_share_mean", "saved_share_max", "max_slowdown"] {
        assert!((0.0..=1.0).contains(&number(&report, &format!("/{key}"))), "{key}: {report}");
    }
    // A window in which all that is out comes back may take several times as long.
    assert!(number(&report, "/loss") >= 0.0 && number(&report, "/loss_p95") >= 0.0, "{report}");
    assert_eq!((number(&report, "/max_slowdown"), report["held_by"].as_str()), (0.05, Some("pages")));
    let [low, loss, high] = ["/loss_low", "/loss", "/loss_high"].map(|key| number(&report, key));
    assert!(low <= loss && loss <= high, "{low} to {high} is no interval of {loss}");
    assert!(number(&report, "/refault_microseconds") > 0.0, "{report}");
    if std::thread::available_parallelism().is_ok_and(|processors| processors.get() > 1) {
        let [low, median, high] = [0, 1, 2].map(|place| number(&report, &format!("/page_out_microseconds/{place}")));
        assert!(low <= median && median <= high && high > 0.0, "{report}");
    }
    // Nothing was compared, and that is said; a saving in steady state or why there is none.
    for key in ["measured_loss", "measured_loss_low", "measured_loss_high", "coverage"] {
        assert!(report[key].is_null(), "{key}: {report}");
    }
    assert!(report["not_measured"].as_str().unwrap().contains("no --metric was given"), "{report}");
    assert_ne!(report["resident_saved_share_steady"].is_null(), report["not_steady"].is_null(), "{report}");
    let intervals = report["intervals"].as_array().unwrap();
    assert!(intervals.len() >= 4, "{} decisions in 8 s", intervals.len());
    let least = intervals.iter().map(|interval| number(interval, "/fast_share")).fold(1.0, f64::min);
    assert!(least < 1.0, "a program with cold memory is tuned: {report}");
}

/// With a metric the loss is measured by windows managed and left alone; a database that is like none of the windows is not gone by.
fn a_tuned_program_is_compared_with_itself() {
    let program = std::env::current_exe().unwrap();
    let terrace = program.parent().unwrap().parent().unwrap().join("terrace");
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("report.json");
    let words =
        ["size", "tune", "--tier-slow", "zram:256MiB", "--every", "500ms", "--quiet", "--paper", "--metric", "cpu"];
    let more = ["--metric-window", "2s", "--json-file", file.to_str().unwrap(), "--", terrace.to_str().unwrap()];
    let work = ["workload", "hot-cold", "--size", "64MiB", "--duration", "40s"];
    let done = run(&[&words[..], &more, &work].concat());
    assert_eq!(done.code, 0, "{}", done.stderr);
    let report: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    assert_eq!(report["measured_by"], "cpu");
    assert!(number(&report, "/measured_windows") >= 2.0 && number(&report, "/measured_loss") > -1.0, "{report}");
    match number(&report, "/measured_windows") >= 12.0 {
        true => {
            let [low, loss, high] =
                ["/measured_loss_low", "/measured_loss", "/measured_loss_high"].map(|key| number(&report, key));
            assert!(low <= loss && loss <= high && report["not_measured"].is_null(), "{report}");
        }
        // On a machine that is busy a window may be lost.
        false => assert!(report["not_measured"].as_str().unwrap().contains("six pairs"), "{report}"),
    }
    assert!(number(&report, "/coverage") < 0.9, "{report}");
    let intervals = report["intervals"].as_array().unwrap();
    let unused = intervals.iter().filter(|interval| interval["database_used"] == Value::Bool(false)).count();
    assert_eq!(number(&report, "/database_unused_intervals"), unused as f64);
    assert!(unused > 0 && done.stderr.contains("not used"), "{}", done.stderr);
}

/// The interface others rely on where not enough was seen: a reason, and no number.
fn advice_of_a_few_seconds_is_none() {
    for program in [
        "sleep 6",
        "head -c 40000000 /dev/zero | tail -c 1 >/dev/null; end=$(($(date +%s) + 6)); while [ $(date +%s) -lt $end ]; do x=1; done",
    ] {
        let words =
            ["size", "advise", "--json", "--machines", "cxl-pond,zram-vm", "--duration", "4s", "--", "sh", "-c"];
        let report = printed(&run(&[&words[..], &[program]].concat()));
        assert!(report["not_enough_seen"].as_str().unwrap().contains("and it takes 10"), "{report}");
        let machines = report["machines"].as_array().unwrap();
        assert_eq!(machines.len(), 2);
        for machine in machines {
            assert!(machine["fast_share"].is_null() && machine["curve"].as_array().unwrap().is_empty(), "{machine}");
        }
    }
}

/// A quarter of the memory is in use all the time: so it is seen, and not as in use now and then.
fn advice_looks_at_every_page_in_every_window() {
    let program = std::env::current_exe().unwrap();
    let terrace = program.parent().unwrap().parent().unwrap().join("terrace");
    let place = tempfile::tempdir().unwrap();
    let directory = place.path().join("report");
    let done = run(&[
        "size",
        "advise",
        "--duration",
        "13s",
        "--machines",
        "cxl-pond",
        "--policies",
        "tpp",
        "--report",
        directory.to_str().unwrap(),
        "--",
        terrace.to_str().unwrap(),
        "workload",
        "hot-cold",
        "--size",
        "64MiB",
        "--duration",
        "15s",
        "--set",
        "layout=scattered",
    ]);
    assert_eq!(done.code, 0, "{}", done.stderr);
    let report: Value = serde_json::from_str(&std::fs::read_to_string(directory.join("report.json")).unwrap()).unwrap();
    let pages: Vec<f64> =
        report["profile"]["pages_by_windows"].as_array().unwrap().iter().map(|pages| pages.as_f64().unwrap()).collect();
    let often: f64 = pages[pages.len() * 2 / 3..].iter().sum();
    let share = often / pages.iter().sum::<f64>();
    assert!((0.2..0.35).contains(&share), "{share} of the pages in two windows of three: {pages:?}");
    // What is in use all the time has to be fast, if it is used as much as it may be; the rest need not.
    let advice = &report["machines"][0];
    assert_eq!((report["basis"].as_str(), &report["not_enough_seen"]), (Some("marks"), &Value::Null));
    let careful = number(advice, "/fast_share");
    assert!((0.2..0.6).contains(&careful) && careful >= number(advice, "/fast_share_expected"), "{advice}");
    assert!(number(advice, "/probability_over_target") <= 0.02 && advice["policy"].is_string(), "{advice}");
    for point in advice["curve"].as_array().unwrap() {
        let [low, loss, high] = ["/loss_low", "/loss", "/loss_high"].map(|key| number(point, key));
        assert!(low <= loss && loss <= high, "{point}");
    }
}

/// What a program is given, in seconds of its own, and how far the two may differ: in the share of it that has left, and in what it lost.
const SECONDS: f64 = 45.0;
const AGREE_OUT: f64 = 0.05;
const AGREE_LOSS: f64 = 0.02;
/// Share of the time in which something may wait for a processor on a machine that is quiet.
const QUIET_PERCENT: f64 = 15.0;
/// Share of the time in which a busy program runs on a machine of its own.
const ALONE: f64 = 0.9;
/// USER_HZ, the unit of times in /proc/PID/stat.
const TICKS_A_SECOND: f64 = 100.0;

/// Share of a program that has left, and what that cost it.
struct Left {
    out: f64,
    loss: f64,
}

/// A 64th of the live program on the model of this kind of machine. 15 million operations take some 44 seconds there.
fn simulated(seconds: f64) -> Left {
    let operations = format!("{:.0}", 15e6 / 44.0 * seconds);
    let model = ["sim", "run", "hot-cold", "--size", "8MiB", "--scale", "64", "--pages", "4k", "--threads", "1"];
    let terms = ["--operations", &operations, "--workload-set", "layout=contiguous"];
    let machine = ["--machine", "zram-vm", "--policy", "age", "--fast", "100%", "--json"];
    let report = printed(&run(&[&model[..], &terms[..], &machine[..]].concat()));
    let gone = number(&report, "/demoted_pages") - number(&report, "/promoted_pages");
    Left {
        out: gone * 4096.0 / number(&report, "/footprint_bytes"),
        loss: number(&report, "/slowdown_vs_all_fast") - 1.0,
    }
}

/// Waits until nothing else competes for the processors, as after a build; where that does not end the figures that follow say more of it.
fn wait_for_a_quiet_machine() {
    let waiting = || -> Option<f64> {
        let text = std::fs::read_to_string("/proc/pressure/cpu").ok()?;
        text.strip_prefix("some avg10=")?.split_whitespace().next()?.parse().ok()
    };
    let began = Instant::now();
    while let Some(percent) = waiting().filter(|percent| *percent > QUIET_PERCENT) {
        if began.elapsed() > PATIENCE {
            println!("    the machine is not quiet: in {percent} % of the time something waits for a processor");
            return;
        }
        std::thread::sleep(Duration::from_millis(500));
    }
}

/// hot-cold, a quarter of it hot, under `age` with its defaults: 512 MiB here, and the same on the model for as long. Here the program is left alone
/// before it ends: then it reads each page once more, which the model does not, and how many had come back at the last point and in the account was
/// chance (67,409 of 98,304 on one run, a loss of 1.3 %). And the run lasts until as much has left as there, and for as many of the program's own
/// seconds: on a machine with other work it gets 30 of 45, and what leaves within the same bound takes longer.
fn a_live_run_and_a_simulated_one_agree() {
    let model = simulated(SECONDS);
    wait_for_a_quiet_machine();
    let mut program = workload("512MiB", 3600, 1, &["layout=contiguous"]);
    let pid = program.pid();
    let attach = ["attach", "--quiet", "--json", "--policy", "age", "--tier-slow", "zram:1GiB", "--pid"];
    let mut manager = Running::start(terrace().args(attach).arg(pid.to_string()));
    let out = || {
        let [here, gone] = ["VmRSS", "VmSwap"].map(|field| status_bytes(pid, field).unwrap_or(0) as f64);
        gone / (here + gone).max(1.0)
    };
    wait_until(PATIENCE * 5, "as much has left as on the model", || out() >= model.out - AGREE_OUT);
    wait_until(PATIENCE * 5, "the program has run for as long as there", || {
        let stat = Stat::read(pid).unwrap();
        (stat.user_ticks + stat.system_ticks) as f64 / TICKS_A_SECOND >= SECONDS
    });
    manager.signal(Signal::INT);
    let done = manager.finish(PATIENCE);
    assert_eq!(done.code, 0, "{}", done.stderr);
    program.end_early();
    let ended = program.finish(PATIENCE);
    assert!(verified(&ended.stdout).is_some(), "{}{}", ended.stdout, ended.stderr);
    let report = done.report();
    let [fast, slow] = ["/tiers/0/end_used_bytes", "/tiers/1/end_used_bytes"].map(|tier| number(&report, tier));
    let here = Left { out: slow / (fast + slow), loss: number(&report, "/cost/share_of_target") };
    let model = simulated(number(&report, "/target/cpu_seconds"));
    let percent = |share: f64| format!("{:.1} %", share * 100.0);
    println!("    out {} live, {} simulated", percent(here.out), percent(model.out));
    println!("    lost {} live, {} simulated", percent(here.loss), percent(model.loss));
    assert!((here.out - model.out).abs() <= AGREE_OUT, "{report}");
    // The program never waits by itself. Where others took its processor they took the mover's and the tracker's as well, and of others the model has none.
    let ran = number(&report, "/target/cpu_seconds") / number(&report, "/target/wall_seconds");
    if ran < ALONE {
        let why = format!(
            "the program ran in {} of the time: other work on this machine, of which the model has none",
            percent(ran)
        );
        live::skipped("a_live_run_and_a_simulated_one_agree, what was lost", &why);
        return;
    }
    assert!((here.loss - model.loss).abs() <= AGREE_LOSS, "{report}");
}
