//! A person's first guess: it is understood, or answered with the line to type.
//!
//! In: lines typed by habits of git, systemctl, perf, ps, docker and kubectl, with and without units. Out: one table of guesses and answers, as a
//! snapshot; CONTRIBUTING.md says how to accept a difference. Must not: start the program of a guess, or need rights.
#![allow(clippy::unwrap_used, reason = "panics are a test's failures")]

mod common;

use common::Transcript;
use insta::assert_snapshot;

/// Answered with the line to type: exit code 2, or 127 where a program is named that does not exist.
const ANSWERED: &[&str] = &[
    // systemctl, docker, kubectl
    "start",
    "start ./program",
    "stop",
    "restart",
    "enable",
    "status redis",
    "ps aux",
    "ls",
    "logs -f",
    "log",
    "events",
    "stats",
    "inspect redis",
    "describe redis",
    "exec -- ls -l",
    "unpause",
    "edit",
    "daemon",
    "get budget.cpu",
    "status -o json",
    "classes --output=json",
    "history redis",
    // git
    "config list",
    "config get budget.cpu",
    "config set class.web.floor 1GiB",
    "config edit",
    "config validate /etc/terrace/terrace.toml",
    "set class.web.floor=1GiB",
    // perf, strace, top
    "stat -- ls -l",
    "stat -p 1234",
    "record ls -l",
    "record -p 1234",
    "trace ls -l",
    "trace -p 1234",
    "trace run.trace",
    "explain --pid 1234",
    "-p 1234",
    "1234",
    "ls -l /",
    "-- true",
    "info",
    "check",
    // what runs already, and what is to be started
    "attach redis-server",
    "attach 1234",
    "attach 1234 1235 --duration 5s",
    "attach -- redis-server",
    "attach ./redis-server",
    "attach",
    "observe",
    "observe 1234",
    "observe --process 1234",
    "observe --time 5s -- true",
    "run",
    "run 1234",
    "run -p 1234",
    "run --name redis-server",
    "run --memory 2GiB -- true",
    "run --slow zram -- true",
    "run --slowdown 5% -- true",
    // units and forms
    "observe --duration 5 -- true",
    "observe --duration 1.5 -- true",
    "run --fast 2 -- true",
    "run --fast 25 -- true",
    "run --fast 0.5 -- true",
    "run --max-slowdown 5 -- true",
    "run --interval 500 -- true",
    "run --rate 200 -- true",
    "run --tier-slow zram:2 -- true",
    "run --tier-slow 2GiB -- true",
    "run --tier-slow node1 -- true",
    "run --tier-slow /dev/zram0 -- true",
    "run --set idle=12 -- true",
    // research
    "simulate --workload btree",
    "sim btree",
    "sim list",
    "sim compare gups age,tpp",
    "sim compare --workload gups --policies age",
    "sim run --workloads gups",
    "size ./program",
    "advise -- ./program",
    "size query --vector 1 --max-slowdown 5",
    "workload",
    "machines",
    "replay run.trace",
];

/// Understood as they are; none starts anything or needs rights.
const UNDERSTOOD: &[&str] = &[
    "version",
    "-V",
    "help run",
    "policies age",
    "config check PLACE/terrace.toml",
    "config show PLACE/terrace.toml",
    "sim run gups --size 4MiB --threads 2 --operations 2000 --scale 1024",
    "size build --records 1 -o PLACE/database.parquet",
];

#[test]
fn a_guess_is_understood_or_answered_with_the_line_to_type() {
    let mut transcript = Transcript::new();
    std::fs::write(transcript.path("terrace.toml"), "# All as it is by default.\n").unwrap();
    let mut table = String::new();
    for line in ANSWERED {
        let done = transcript.run(line);
        assert!(matches!(done.code, 2 | 127), "{line}: exit code {}: {}", done.code, done.stderr);
        assert_eq!(done.stdout, "", "{line}: stdout is for data");
        let answers: Vec<&str> = done.stderr.lines().filter_map(answer).collect();
        assert!(!answers.is_empty(), "{line}: {}", done.stderr);
        table += &format!("terrace {line}\n");
        answers.iter().for_each(|answer| table += &format!("    {answer}\n"));
    }
    for line in UNDERSTOOD {
        let done = transcript.run(line);
        assert_eq!(done.code, 0, "{line}: {}", done.stderr);
        table += &format!("terrace {line}\n    understood\n");
    }
    assert!(ANSWERED.len() + UNDERSTOOD.len() >= 60);
    assert_snapshot!(table);
}

/// What a line of a message tells to type.
fn answer(line: &str) -> Option<&str> {
    ["type: ", "did you mean "].iter().find_map(|lead| line.split_once(lead).map(|(_, rest)| rest))
}
