//! Outputs on file systems that are full, read-only or at a quota. Needs root, for the mounts.
//!
//! In: nothing, or a part of a test's name. Out: one line a test; SKIPPED and the reason where they cannot run. Must not: leave a mount behind.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test program: it speaks, and panics are its failures")]

mod common;

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::{Command, ExitCode, Output, Stdio};

use common::{output, run_live_tests, terrace};
use terrace_fixtures::live;

const PROGRAM_RAN: &str = "the program ran\n";

fn main() -> ExitCode {
    run_live_tests(
        "live_outputs",
        &[
            ("a_full_file_system_is_told_and_ends_with_1", a_full_file_system_is_told_and_ends_with_1),
            ("a_read_only_file_system_is_told_and_ends_with_1", a_read_only_file_system_is_told_and_ends_with_1),
            ("a_quota_is_told_and_ends_with_1", a_quota_is_told_and_ends_with_1),
            ("a_limit_of_file_size_is_told_and_ends_with_1", a_limit_of_file_size_is_told_and_ends_with_1),
            ("one_output_that_fails_keeps_no_other_from_its_file", one_output_that_fails_keeps_no_other_from_its_file),
        ],
    )
}

/// A file system of its own, unmounted when dropped.
struct Mount(tempfile::TempDir);

impl Mount {
    fn tmpfs(options: &str) -> Result<Mount, String> {
        let place = tempfile::tempdir().unwrap();
        let done = Command::new("mount").args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(place.path()).output();
        let done = done.map_err(|error| format!("mount: {error}"))?;
        if done.status.success() { Ok(Mount(place)) } else { Err(said(&done)) }
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Leaves less than a page free.
    fn fill(&self) {
        let mut file = File::create(self.path().join("filler")).unwrap();
        while file.write_all(&[1; 4096]).is_ok() {}
    }

    fn make_read_only(&self) {
        assert!(Command::new("mount").args(["-o", "remount,ro"]).arg(self.path()).status().unwrap().success());
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.path()).stderr(Stdio::null()).status();
    }
}

fn said(done: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr))
}

/// What the commands read.
struct Inputs(tempfile::TempDir);

impl Inputs {
    fn new() -> Inputs {
        let inputs = Inputs(tempfile::tempdir().unwrap());
        let lines: String = (0..40_000u64).map(|n| format!(" L {:08x},8\n", n * 977 % 5000 * 4096)).collect();
        std::fs::write(inputs.at("lackey"), lines).unwrap();
        let sweep = "machines = [\"cxl-170\"]\npolicies = [\"tpp\"]\nworkloads = [\"gups\"]\nfast = [\"50%\"]\nsize = \"4MiB\"\noperations = 2000\n";
        std::fs::write(inputs.at("sweep.toml"), sweep).unwrap();
        let done = output(&["trace", "import", "--format", "lackey", &inputs.at("lackey"), &inputs.at("trace")]);
        assert!(done.status.success(), "{}", said(&done));
        inputs
    }

    fn at(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }
}

/// Every way to write a file that needs neither a guest nor QEMU: `@` is the folder of the inputs, OUT the output, and whether a program runs.
const WRITERS: &[(&str, bool)] = &[
    ("trace import --format lackey @/lackey OUT", false),
    ("trace export --format csv @/trace OUT", false),
    ("trace export --format parquet @/trace OUT", false),
    ("trace cut --accesses 0-30000 @/trace OUT", false),
    ("record --hook --write OUT", false),
    ("size build --records 20 --out OUT", false),
    ("sweep @/sweep.toml --output OUT.csv", false),
    ("sim compare --workloads gups --policies tpp --seeds 1 --size 4MiB --operations 2000 --csv OUT", false),
    ("sim compare --workloads gups --policies tpp --seeds 1 --size 4MiB --operations 2000 --report OUT", false),
    ("sim run --workload gups --size 4MiB --operations 2000 --report OUT", false),
    ("sim hotness --workload gups --size 8MiB --operations 200000 --window 50ms --heatmap OUT.svg", false),
    ("observe --quiet --report OUT -- echo the program ran", true),
    ("observe --quiet --json-file OUT -- echo the program ran", true),
    ("run --quiet --tier-slow none --report OUT -- echo the program ran", true),
];

fn command(line: &str, inputs: &Inputs, out: &Path) -> Command {
    let mut command = terrace();
    let words = line.split(' ').map(|word| word.replace('@', inputs.0.path().to_str().unwrap()));
    command.args(words.map(|word| word.replace("OUT", out.to_str().unwrap())));
    command
}

/// It failed, and said which output and why; nothing but what was there is left under the path.
fn fails_with(done: &Output, line: &str, out: &Path, why: &str) {
    let stderr = String::from_utf8_lossy(&done.stderr).into_owned();
    assert_eq!(done.status.code(), Some(1), "{line}: {}", said(done));
    let told = stderr.lines().any(|line| line.contains(out.to_str().unwrap()) && line.contains(why));
    assert!(told, "{line}: {why:?} and the path are not in one line of {stderr:?}");
}

fn a_full_file_system_is_told_and_ends_with_1() {
    let inputs = Inputs::new();
    for (line, runs) in WRITERS {
        let mount = Mount::tmpfs("size=64k").unwrap();
        mount.fill();
        let out = mount.path().join("out");
        let done = command(line, &inputs, &out).output().unwrap();
        fails_with(&done, line, &out, "No space left on device");
        assert_eq!(*runs, said(&done).contains(PROGRAM_RAN), "{line}: {}", said(&done));
        assert!(!out.is_file(), "{line}: half a file");
    }
}

fn a_read_only_file_system_is_told_and_ends_with_1() {
    let inputs = Inputs::new();
    let mount = Mount::tmpfs("size=1m").unwrap();
    mount.make_read_only();
    for (line, _) in WRITERS {
        let out = mount.path().join("out");
        let done = command(line, &inputs, &out).output().unwrap();
        fails_with(&done, line, &out, "Read-only file system");
        assert!(!said(&done).contains(PROGRAM_RAN), "{line}: refused before the program runs in vain");
    }
}

fn a_quota_is_told_and_ends_with_1() {
    // Root is above quotas.
    const OTHER: &str = "65534";
    let mount = match Mount::tmpfs("size=1m,mode=1777,usrquota,usrquota_block_hardlimit=4096") {
        Ok(mount) => mount,
        Err(reason) => return println!("SKIPPED a_quota_is_told_and_ends_with_1: {}", reason.trim()),
    };
    if !live::can_run("a_quota_is_told_and_ends_with_1", live::need_program("setpriv")) {
        return;
    }
    let inputs = Inputs::new();
    let line = "trace export --format csv /dev/stdin OUT";
    let (trace, binary) = (File::open(inputs.at("trace")).unwrap(), mount.path().with_extension("terrace"));
    // Where the binary lies may be root's alone.
    std::fs::copy(env!("CARGO_BIN_EXE_terrace"), &binary).unwrap();
    let out = mount.path().join("out");
    let words = line.replace("OUT", out.to_str().unwrap());
    let mut command = Command::new("setpriv");
    command.args(["--reuid", OTHER, "--regid", OTHER, "--clear-groups", "--"]).arg(&binary).args(words.split(' '));
    let done = command.stdin(trace).output();
    std::fs::remove_file(&binary).unwrap();
    fails_with(&done.unwrap(), line, &out, "quota exceeded");
}

fn a_limit_of_file_size_is_told_and_ends_with_1() {
    let (inputs, place) = (Inputs::new(), tempfile::tempdir().unwrap());
    let out = place.path().join("out");
    for line in ["trace export --format csv @/trace OUT", "observe --quiet --json-file OUT -- echo the program ran"] {
        let inner = command(line, &inputs, &out);
        // In blocks of 512 bytes (dash) or of 1 KiB (bash): either is too little.
        let mut limited = Command::new("sh");
        limited.args(["-c", "ulimit -f 1; exec \"$@\"", "sh"]).arg(inner.get_program()).args(inner.get_args());
        let done = limited.stdin(Stdio::null()).output().unwrap();
        fails_with(&done, line, &out, "File too large");
    }
}

fn one_output_that_fails_keeps_no_other_from_its_file() {
    let place = tempfile::tempdir().unwrap();
    let (report, json) = (place.path().join("report"), place.path().join("report.json"));
    let full = || File::options().write(true).open("/dev/full").unwrap();
    let line = format!("observe --json --report {} --json-file {} -- true", report.display(), json.display());
    let done = terrace().args(line.split(' ')).stdout(full()).output().unwrap();
    let stderr = String::from_utf8_lossy(&done.stderr).into_owned();
    assert_eq!(done.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("stdout could not be written: No space left on device"), "{stderr}");
    // Nor does a stderr without room, on which the closing lines are lost.
    let lost = terrace().args(line.split(' ')).stderr(full()).output().unwrap();
    assert_eq!(lost.status.code(), Some(1));
    for file in [report.join("report.html"), report.join("report.json"), json] {
        assert!(file.metadata().unwrap().len() > 0, "{}", file.display());
    }
    assert!(serde_json::from_slice::<serde_json::Value>(&lost.stdout).unwrap().is_object());
    // The program's own code is what its caller asked for.
    let failed = terrace().args(["observe", "--json", "--", "sh", "-c", "exit 7"]).stdout(full()).output().unwrap();
    assert_eq!(failed.status.code(), Some(7), "{}", said(&failed));
}
