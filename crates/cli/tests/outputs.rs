//! What the command and the daemon write, read and bind: nothing but files is replaced, nothing endless is read, and no name acts on a
//! terminal. Needs no rights; what only root can set up is left out elsewhere, with a line that says so.
#![allow(clippy::unwrap_used, reason = "panics are a test's failures")]

mod common;

use std::fs::File;
use std::os::unix::fs::{FileTypeExt, symlink};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use common::daemon::terraced;

const NAME: &str = "\x1b]0;PWN\x07\x1b[2J";

fn terrace(words: &[&str]) -> Output {
    Command::new(common::program()).args(words).output().unwrap()
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// A small trace, whose program has a hostile name.
fn trace(folder: &Path) -> String {
    let (csv, trace) = (folder.join("in.csv"), folder.join("in.trace"));
    std::fs::write(&csv, "address,operation\n4096,read\n8192,write\n").unwrap();
    let (csv, trace) = (csv.to_str().unwrap(), trace.to_str().unwrap().to_owned());
    let columns = ["--columns", "address=address", "--columns", "operation=operation"];
    let words = ["trace", "import", "--format", "csv", "--workload", NAME, csv, &trace];
    let done = terrace(&[&words[..], &columns[..]].concat());
    assert!(done.status.success(), "{}", said(&done));
    trace
}

fn device(path: &Path) -> bool {
    let (kind, number) = (rustix::fs::FileType::CharacterDevice, rustix::fs::makedev(1, 3));
    rustix::fs::mknodat(rustix::fs::CWD, path, kind, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR, number).is_ok()
        && File::options().write(true).open(path).is_ok()
}

/// Every command that writes a file, with `OUT` for it.
fn writers(trace: &str) -> Vec<Vec<String>> {
    let of = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let csv = trace.replace(".trace", ".csv");
    vec![
        of(&["trace", "import", "--format", "csv", "--columns", "address=address", &csv, "OUT"]),
        of(&["trace", "export", "--format", "csv", trace, "OUT"]),
        of(&["trace", "export", "--format", "parquet", trace, "OUT"]),
        of(&["trace", "cut", "--accesses", "0-1", trace, "OUT"]),
        of(&["size", "build", "--records", "2", "--out", "OUT"]),
        of(&["record", "--hook", "--write", "OUT"]),
    ]
}

fn write_to(words: &[String], out: &Path) -> Output {
    let out = out.to_str().unwrap();
    let words: Vec<&str> = words.iter().map(|word| if word == "OUT" { out } else { word.as_str() }).collect();
    terrace(&words)
}

#[test]
fn a_device_under_an_outputs_path_stays_a_device() {
    let folder = tempfile::tempdir().unwrap();
    let trace = trace(folder.path());
    let node = folder.path().join("node");
    if !device(&node) {
        println!("SKIPPED: device nodes cannot be made here (root, and no nodev)");
        return;
    }
    for words in writers(&trace) {
        let done = write_to(&words, &node);
        assert!(node.symlink_metadata().unwrap().file_type().is_char_device(), "{words:?}: {}", said(&done));
    }
}

#[test]
fn a_link_under_an_outputs_path_stays_a_link() {
    let folder = tempfile::tempdir().unwrap();
    let trace = trace(folder.path());
    for (index, words) in writers(&trace).iter().enumerate() {
        let (link, file) = (folder.path().join(format!("link{index}")), folder.path().join(format!("file{index}")));
        std::fs::write(&file, "").unwrap();
        symlink(&file, &link).unwrap();
        let done = write_to(words, &link);
        assert!(link.symlink_metadata().unwrap().is_symlink(), "{words:?}: {}", said(&done));
        if words[0] != "record" {
            assert!(done.status.success(), "{words:?}: {}", said(&done));
            assert!(file.metadata().unwrap().len() > 0, "{words:?} wrote what the link leads to");
        }
    }
}

#[test]
fn directories_and_sockets_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let trace = trace(folder.path());
    let socket = folder.path().join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    for words in writers(&trace) {
        let done = write_to(&words, &socket);
        assert!(!done.status.success(), "{words:?}");
        assert!(said(&done).contains(socket.to_str().unwrap()), "{words:?}: {}", said(&done));
        assert!(socket.symlink_metadata().unwrap().file_type().is_socket(), "{words:?}");
    }
}

#[test]
fn help_that_cannot_be_written_is_a_failure() {
    for program in [Path::new(env!("CARGO_BIN_EXE_terrace")), terraced()] {
        for word in ["--help", "--version"] {
            let full = File::options().write(true).open("/dev/full").unwrap();
            let done = Command::new(program).arg(word).stdout(full).stderr(Stdio::null()).status().unwrap();
            assert_eq!(done.code(), Some(1), "{program:?} {word} > /dev/full");
            let done = Command::new(program).arg(word).stdout(Stdio::null()).status().unwrap();
            assert_eq!(done.code(), Some(0), "{program:?} {word}");
        }
        let done = Command::new(program).arg("--no-such-option").stderr(Stdio::null()).status().unwrap();
        assert_eq!(done.code(), Some(2));
    }
}

#[test]
fn nothing_but_a_socket_is_removed_where_a_socket_is_to_be() {
    let folder = tempfile::tempdir().unwrap();
    let (config, precious) = (folder.path().join("terrace.toml"), folder.path().join("precious.txt"));
    std::fs::write(&precious, "text").unwrap();
    let place = precious.to_str().unwrap();
    let free = folder.path().join("free.sock");
    let texts = [
        (format!("[daemon]\nsocket = \"{place}\"\n[metrics]\nlisten = \"off\"\n"), "daemon.socket"),
        (
            format!("[daemon]\nsocket = \"{}\"\n[metrics]\nlisten = \"unix:{place}\"\n", free.display()),
            "metrics.listen",
        ),
    ];
    for (text, key) in texts {
        std::fs::write(&config, text).unwrap();
        let config = config.to_str().unwrap();
        let checked = terrace(&["config", "check", "--config", config]);
        assert_eq!(checked.status.code(), Some(1), "{}", said(&checked));
        let started = Command::new(terraced()).args(["--dry-run", "--config", config]).output().unwrap();
        assert!(!started.status.success());
        for done in [checked, started] {
            let said = said(&done);
            assert!(said.contains(key) && said.contains(place) && said.contains("a regular file"), "{said}");
        }
        assert_eq!(std::fs::read_to_string(&precious).unwrap(), "text");
    }
}

#[test]
fn a_configuration_that_is_empty_endless_or_no_file_is_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let (empty, fifo, zero) = (folder.path().join("empty"), folder.path().join("fifo"), folder.path().join("zero"));
    std::fs::write(&empty, "\n").unwrap();
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    symlink("/dev/zero", &zero).unwrap();
    for (path, why) in [(&empty, "it is empty"), (&fifo, "a FIFO"), (&zero, "a character device")] {
        let done = terrace(&["config", "check", "--config", path.to_str().unwrap()]);
        assert_eq!(done.status.code(), Some(1));
        let said = said(&done);
        assert!(said.contains(why) && said.contains(path.to_str().unwrap()), "{said}");
    }
}

#[test]
fn no_name_acts_on_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let trace = trace(folder.path());
    let known = terrace(&["trace", "info", &trace]);
    assert!(known.status.success());
    assert!(said(&known).contains(r"\x1b]0;PWN\x07\x1b[2J"), "{}", said(&known));
    // An error that quotes what was given goes the same way.
    let missing = terrace(&["trace", "info", &format!("{}/{NAME}", folder.path().display())]);
    assert_eq!(missing.status.code(), Some(2));
    for done in [known, missing] {
        assert!(!said(&done).contains(['\x1b', '\x07']), "{:?}", said(&done));
    }
}

#[test]
fn a_recording_that_is_cut_off_or_holds_no_access_leaves_no_trace() {
    let folder = tempfile::tempdir().unwrap();
    let (input, out) = (folder.path().join("recording"), folder.path().join("new.trace"));
    let whole = [&b"gem5\x02\x18\x01"[..], b"\x08\x08\x00\x10\x01\x18\x40\x20\x08"].concat();
    for (format, bytes, code, reason) in [
        ("gem5", &whole[..], 0, ""),
        ("gem5", &whole[..whole.len() - 1], 1, "gem5 input, byte 7: the last message is cut off"),
        ("gem5", &whole[..7], 1, "the recording holds no access;"),
        ("champsim", &[0; 64], 1, "the recording holds no access, 1 x instruction without data;"),
        ("champsim", &[0; 65], 1, "ChampSim input, byte 64: the last record is cut off"),
        ("lackey", b"I  00401000,3\n", 1, "the recording holds no access, 1 x instruction fetch;"),
        ("lackey", b" L 1000,8\n S 20", 1, "lackey input, line 2: no comma between address and size"),
        ("libcachesim-csv", b"time,obj_id,obj_size,op\n", 1, "the recording holds no access;"),
        ("libcachesim-csv", b"time,object\n", 1, "no column is called \"obj_id\"; the first line has: time, object"),
    ] {
        std::fs::write(&input, bytes).unwrap();
        let done = terrace(&["trace", "import", "--format", format, input.to_str().unwrap(), out.to_str().unwrap()]);
        assert_eq!(done.status.code(), Some(code), "{format}: {}", said(&done));
        assert!(said(&done).contains(reason), "{format}: {}", said(&done));
        assert_eq!(out.exists(), code == 0, "{format}: a file is there whole or not at all");
        let _ = std::fs::remove_file(&out);
    }
    let words = ["trace", "import", "--format", "libcachesim-csv", "--no-names"];
    let done = terrace(&[&words[..], &[input.to_str().unwrap(), out.to_str().unwrap()]].concat());
    assert_eq!(done.status.code(), Some(2), "{}", said(&done));
    assert!(said(&done).contains("--no-names: expected --columns beside it"), "{}", said(&done));
}
