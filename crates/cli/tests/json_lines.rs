//! `--json`: one line of JSON on stdout and nothing else there, for every command that has the option, and what made the result in it.
//!
//! In: the grammar as `--help` states it, so that a new command cannot be forgotten. Out: commands run with small inputs; of the daemon, a
//! stand-in answers. Must not: judge a figure. Commands that need rights, a tracker or a guest are run by the live tests; that all print by the same
//! function is looked up in the source.
#![allow(clippy::unwrap_used, missing_docs)]

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use terrace_daemon::view::{Awake, Explanation, Happening, Status};

mod common;
use common::{leaves, terrace};

/// How a command with `--json` is tried.
enum Way {
    /// With these words behind its name.
    Here(&'static [&'static str]),
    /// With these words, and the stand-in of the daemon.
    Daemon(&'static [&'static str]),
    /// Not here: it needs this.
    Needs(&'static str),
}

use Way::{Daemon, Here, Needs};

const RIGHTS: &str = "rights and a tracker; live_run and live_size read its last line";
const GUEST: &str = "a guest; lab_compare and lab_record read it";
const VECTOR: &str = "2e5,1e4,50,100,3,128MiB,3,4";

/// Every command that has `--json`. `@` is a folder with a trace, `own.toml` and a database in it.
const COMMANDS: &[(&str, Way)] = &[
    ("attach", Needs(RIGHTS)),
    ("classes", Daemon(&[])),
    ("compare", Needs("QEMU's user mode and the plugin; tests/record.rs reads it")),
    ("demo", Here(&["--from", "replay", "--report", "@/demo"])),
    ("doctor", Here(&[])),
    ("drain", Daemon(&[])),
    ("explain", Daemon(&["7"])),
    ("history", Daemon(&[])),
    ("lab boot", Needs(GUEST)),
    ("lab compare", Needs(GUEST)),
    ("lab kernels", Here(&[])),
    ("lab record", Needs(GUEST)),
    ("lab run", Needs(GUEST)),
    ("observe", Needs(RIGHTS)),
    ("pause", Daemon(&[])),
    ("policies", Here(&[])),
    ("record", Here(&["--hook"])),
    ("reload", Daemon(&[])),
    ("reproduce", Here(&["T", "--experiments", "@/own.toml", "--quick"])),
    ("resume", Daemon(&[])),
    ("run", Needs(RIGHTS)),
    ("set", Daemon(&["class.web.floor", "1GiB"])),
    ("survey", Needs("rights and a tracker; live_survey reads it")),
    (
        "sim compare",
        Here(&["--workloads", "gups", "--policies", "tpp", "--seeds", "1", "--size", "4MiB", "--operations", "2000"]),
    ),
    ("sim explain", Here(&["--trace", "@/trace", "--page", "0x1000", "--policy", "tpp"])),
    ("sim hotness", Here(&["--workload", "gups", "--size", "8MiB", "--operations", "200000", "--window", "50ms"])),
    ("sim machines", Here(&[])),
    ("sim run", Here(&["--workload", "gups", "--size", "4MiB", "--operations", "2000"])),
    (
        "size advise",
        Here(&[
            "--workload",
            "gups",
            "--size",
            "4MiB",
            "--operations",
            "20000",
            "--machines",
            "cxl-pond",
            "--policies",
            "tpp",
            "--fast",
            "50%",
            "--groups",
            "2",
        ]),
    ),
    ("size build", Here(&["--records", "20", "--out", "@/db"])),
    (
        "size forecast",
        Here(&[
            "--workload",
            "gups",
            "--size",
            "4MiB",
            "--operations",
            "20000",
            "--policies",
            "tpp",
            "--fast",
            "50%",
            "--groups",
            "2",
        ]),
    ),
    ("size microbench", Here(&["--executor", "model", "--vector", VECTOR])),
    ("size query", Here(&["--db", "@/database", "--vector", VECTOR])),
    ("size tune", Needs(RIGHTS)),
    ("size vector", Here(&["--workload", "gups", "--size", "4MiB", "--operations", "200000"])),
    ("status", Daemon(&[])),
    ("sweep", Here(&["@/sweep.toml", "--output", "@/sweep.csv"])),
    ("topology", Here(&[])),
    ("trace cat", Here(&["@/trace"])),
    ("trace cut", Here(&["@/trace", "@/cut", "--accesses", "0-10"])),
    ("trace export", Here(&["@/trace", "@/csv", "--format", "csv"])),
    ("trace import", Here(&["@/lackey", "@/imported", "--format", "lackey"])),
    ("trace info", Here(&["@/trace"])),
    ("wake", Daemon(&["7"])),
    ("workload", Here(&["list"])),
];

/// Those whose results carry what made them, as far as they are run here.
const STAMPED: [&str; 11] = [
    "reproduce",
    "sim compare",
    "sim hotness",
    "sim run",
    "size advise",
    "size build",
    "size forecast",
    "size microbench",
    "size query",
    "size vector",
    "sweep",
];

const OWN: &str = "[paper]\nprefix = \"T\"\nname = \"own\"\ntitle = \"Own\"\nagree = \"20%\"\n\
     [settings.gups]\nworkload = \"gups\"\nsize = \"16GiB\"\nfast = \"1:3\"\nthreads = 2\nmachine = \"optane-6252\"\npages = \"4KiB\"\n\
     [[row]]\nid = \"T.gain\"\nquantity = \"a gain\"\npaper = 10\nunit = \"%\"\nsource = \"nowhere\"\nmeasure = \"gain\"\n\
     settings = [\"gups\"]\npolicies = [\"tpp\", \"first-touch\"]\n";

/// The keys of the table under "provenance" of docs/reference/sim.md.
fn provenance() -> BTreeSet<&'static str> {
    let page = include_str!("../../../docs/reference/sim.md");
    let section = page.split("\n## ").find(|section| section.lines().next() == Some("provenance")).unwrap();
    section.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect()
}

/// Answers as the daemon does, one connection after the other.
fn stand_in(socket: &Path) {
    let listener = UnixListener::bind(socket).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut line = String::new();
            BufReader::new(stream.try_clone().unwrap()).read_line(&mut line).unwrap();
            let request: Value = serde_json::from_str(&line).unwrap();
            let asked = request.to_string();
            let data = match () {
                () if asked.contains("status") => json!(Status::default()),
                () if asked.contains("explain") => json!(Explanation::default()),
                () if asked.contains("wake") => json!(Awake::default()),
                () if asked.contains("history") => json!([Happening::default()]),
                () => json!({ "done": true, "text": "two\nlines" }),
            };
            writeln!(stream, "{}", json!({ "terrace": 1, "ok": true, "data": data })).unwrap();
        }
    });
}

/// A folder with what the commands read.
fn place() -> tempfile::TempDir {
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name).to_str().unwrap().to_owned();
    let lines: String = (0..400u64).map(|n| format!(" L {:08x},8\n", n * 977 % 50 * 4096)).collect();
    std::fs::write(at("lackey"), lines).unwrap();
    std::fs::write(at("own.toml"), OWN).unwrap();
    std::fs::write(at("terrace.toml"), "[class.web]\nmatch = [{ name = \"web\" }]\n").unwrap();
    let gups = ["sim", "run", "--workload", "gups", "--size", "4MiB", "--operations", "2000", "--json"];
    std::fs::write(at("runs"), terrace().args(gups).output().unwrap().stdout).unwrap();
    let sweep = "machines = [\"cxl-170\"]\npolicies = [\"tpp\"]\nworkloads = [\"gups\"]\nfast = [\"50%\"]\nsize = \"4MiB\"\noperations = 2000\n";
    std::fs::write(at("sweep.toml"), sweep).unwrap();
    for words in [
        vec!["trace", "import", "--format", "lackey", &at("lackey"), &at("trace")],
        vec!["size", "build", "--records", "20", "--out", &at("database")],
    ] {
        assert!(terrace().args(&words).output().unwrap().status.success(), "{words:?}");
    }
    place
}

/// A command with small inputs, all in `place`.
fn command(name: &str, words: &[&str], daemon: bool, place: &Path) -> Command {
    let mut command = terrace();
    command.args(name.split(' '));
    command.args(words.iter().map(|word| word.replace('@', place.to_str().unwrap())));
    if daemon {
        command.arg("--socket").arg(place.join("socket"));
    }
    command
}

/// Commands without `--json`.
const TEXTS: &[(&str, Way)] = &[
    ("completions", Here(&["bash"])),
    ("config check", Here(&["--config", "@/terrace.toml"])),
    ("config default", Here(&[])),
    ("config explain", Here(&["daemon.socket"])),
    ("config show", Here(&["--config", "@/terrace.toml"])),
    ("lab shell", Needs(GUEST)),
    ("rerun", Here(&["@/runs"])),
    ("top", Needs("a terminal")),
    ("workload", Here(&["hot-cold", "--size", "4MiB", "--operations", "2000"])),
];

#[test]
fn a_full_stdout_ends_every_command_with_1_and_a_line() {
    let place = place();
    stand_in(&place.path().join("socket"));
    let full = || File::options().write(true).open("/dev/full").unwrap();
    let names: BTreeSet<&str> = COMMANDS.iter().chain(TEXTS).map(|(name, _)| *name).collect();
    let all = leaves(&[]);
    assert_eq!(
        names,
        all.iter().map(|(name, _)| name.as_str()).collect(),
        "left: COMMANDS and TEXTS, right: all commands"
    );
    for (name, way) in COMMANDS.iter().chain(TEXTS) {
        let (words, daemon) = match way {
            Here(words) => (*words, false),
            Daemon(words) => (*words, true),
            Needs(_) => continue,
        };
        let has_json = COMMANDS.iter().any(|(with, _)| with == name) && words.first() != Some(&"hot-cold");
        for option in [None, Some("--json")].into_iter().take(1 + usize::from(has_json)) {
            let mut command = command(name, words, daemon, place.path());
            let done = command.args(option).stdout(full()).output().unwrap();
            let stderr = String::from_utf8_lossy(&done.stderr).into_owned();
            assert_eq!(done.status.code(), Some(1), "{name} {option:?} > /dev/full: {stderr}");
            let says = stderr.contains("stdout could not be written: No space left on device");
            assert!(says, "{name} {option:?} > /dev/full: {stderr:?}");
            // Nor does a stderr that is full make it panic.
            let done = command.stdout(full()).stderr(full()).status().unwrap();
            assert_eq!(done.code(), Some(1), "{name} {option:?} > /dev/full 2>&1");
        }
    }
}

#[test]
fn every_command_with_json_is_in_the_table() {
    let with_json: BTreeSet<String> = leaves(&[])
        .into_iter()
        .filter(|(_, help)| help.lines().any(|line| line.trim_start().starts_with("--json") && !line.contains("file")))
        .map(|(name, _)| name)
        .collect();
    assert!(with_json.len() > 30, "{with_json:?}");
    let table: BTreeSet<String> = COMMANDS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(with_json, table, "left: commands that have --json; right: COMMANDS, which says how each is tried");
}

#[test]
fn json_is_one_line_of_stdout_and_says_what_made_it() {
    let place = place();
    let socket = place.path().join("socket");
    stand_in(&socket);
    let keys = provenance();
    assert!(keys.len() > 10, "{keys:?}");
    let mut stamped = BTreeSet::new();
    for (name, way) in COMMANDS {
        let (words, daemon) = match way {
            Here(words) => (*words, false),
            Daemon(words) => (*words, true),
            Needs(what) => {
                assert!(!what.is_empty(), "{name}: why is it not tried here?");
                continue;
            }
        };
        let mut command = command(name, words, daemon, place.path());
        let output = command.arg("--json").output().unwrap();
        let stdout = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
        assert!(stdout.ends_with('\n'), "{name}: {stdout:?}");
        // A trace's accesses are a line each.
        assert!(*name == "trace cat" || stdout.lines().count() == 1, "{name}: {} lines", stdout.lines().count());
        for line in stdout.lines() {
            let value: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{name}: {error}: {line}"));
            let missing: Vec<_> = keys.iter().filter(|key| value.get(**key).is_none()).collect();
            if missing.is_empty() {
                stamped.insert(*name);
                assert!(value["command"].as_str().unwrap().starts_with(&format!("terrace {name} ")), "{line}");
                assert_eq!(value["version"], env!("CARGO_PKG_VERSION"), "{name}");
                // What plays several policies has the settings of each.
                let several = matches!(*name, "size advise" | "size forecast");
                let settings = value["settings"].as_object().unwrap();
                assert!(!several || settings.keys().any(|key| key.starts_with("tpp.")), "{name}: {settings:?}");
            }
            for row in ["cells", "rows"].iter().filter_map(|key| value[*key].as_array()).flatten() {
                assert!(missing.len() > 10 || keys.iter().all(|key| row.get(*key).is_some()), "{name}: {row}");
            }
        }
    }
    assert_eq!(stamped, BTreeSet::from(STAMPED), "commands whose results say what made them");
}

#[test]
fn json_is_printed_by_one_function() {
    let crates = ["cli", "research", "run", "report", "grammar"];
    let mut pending: Vec<_> =
        crates.iter().map(|name| Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../{name}/src"))).collect();
    let mut found = Vec::new();
    while let Some(folder) = pending.pop() {
        for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                pending.push(path);
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            for _ in text.lines().filter(|line| line.contains("serde_json::to_writer")) {
                found.push(path.file_name().unwrap().to_owned());
            }
        }
    }
    assert_eq!(found, ["terminal.rs"], "print_json in terminal.rs is the one place");
}
