//! The least rights of each job, by setpriv(1): exactly these suffice, and without one of them the job is refused and that right is named.
//! And what a cgroup, a full swap, a read-only /sys or a seccomp filter refuses: each in a clear line, with nothing left behind.
//!
//! In: nothing, or a part of a test's name. Out: a line a test. Must not: leave anything behind.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test program: it speaks, and panics are its failures")]

mod common;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use common::{PATIENCE, Running, run_live_tests};
use terrace_linux::rights::Job;

/// A user without files or rights, on any system.
const NOBODY: &str = "65534";

fn main() -> ExitCode {
    run_live_tests(
        "live_rights",
        &[
            ("watching_needs_two_rights", watching_needs_two_rights),
            ("moving_to_swap_that_is_there_needs_three", moving_to_swap_that_is_there_needs_three),
            ("setting_swap_up_needs_two_of_root", setting_swap_up_needs_two_of_root),
            ("a_full_swap_is_found_before_anything_moves", a_full_swap_is_found_before_anything_moves),
            ("a_call_that_seccomp_refuses_is_named", a_call_that_seccomp_refuses_is_named),
            ("a_read_only_sys_gets_no_device_that_could_not_be_removed", a_read_only_sys_gets_no_device),
            ("a_demo_without_a_place_for_files_says_so", a_demo_without_a_place_for_files_says_so),
        ],
    )
}

/// The command where every user can start it.
struct Programs {
    _folder: tempfile::TempDir,
    terrace: PathBuf,
}

impl Programs {
    fn new() -> Programs {
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let terrace = folder.path().join("terrace");
        for name in ["terrace", "terrace-research"] {
            let built = Path::new(env!("CARGO_BIN_EXE_terrace")).with_file_name(name);
            std::fs::copy(built, folder.path().join(name)).unwrap();
        }
        Programs { _folder: folder, terrace }
    }

    /// `terrace` as a user with these capabilities and no others.
    fn with(&self, user: &str, capabilities: &[&str]) -> Command {
        let list: String =
            capabilities.iter().map(|name| format!(",+{}", name.trim_start_matches("CAP_").to_lowercase())).collect();
        let mut command = Command::new("setpriv");
        command.args(["--no-new-privs", &format!("--bounding-set=-all{list}")]);
        if user == "0" {
            command.arg("--inh-caps=-all");
        } else {
            command.args([&format!("--reuid={user}"), &format!("--regid={user}"), "--clear-groups"]);
            command.args([&format!("--inh-caps=-all{list}"), &format!("--ambient-caps=-all{list}")]);
        }
        command.arg(&self.terrace).env_remove("TERRACE_LOG").current_dir("/");
        command
    }

    /// A workload of which a part is cold at once, as words after `--`.
    fn workload(&self) -> Vec<String> {
        let words =
            ["--", self.terrace.to_str().unwrap(), "workload", "hot-cold", "--size", "64MiB", "--duration", "8s"];
        words.map(str::to_owned).into()
    }
}

/// Exactly the rights of a job suffice; without one of them it is refused, and the line on what would enable it names that one alone.
fn are_the_least(
    programs: &Programs,
    user: &str,
    job: Job,
    words: &[&str],
    wanted: impl Fn(&serde_json::Value) -> bool,
) {
    let needs = job.needs();
    let run = |rights: &[&str]| {
        let mut command = programs.with(user, rights);
        Running::start(command.args(words).args(["--json", "--quiet"]).args(programs.workload())).finish(PATIENCE)
    };
    let done = run(needs);
    assert_eq!(done.code, 0, "{job:?} with {needs:?}: {}", done.stderr);
    assert!(wanted(&done.report()), "{}", done.report());
    for taken in needs {
        let rights: Vec<&str> = needs.iter().copied().filter(|name| name != taken).collect();
        let done = run(&rights);
        assert_eq!(done.code, 1, "{job:?} without {taken}: {}", done.stderr);
        let lines: Vec<&str> = done.stderr.lines().filter(|line| !line.contains(" WARN ")).collect();
        assert!(lines.len() == 3 && lines[0].starts_with("terrace: "), "{}", done.stderr);
        let names = lines[1].strip_prefix("to enable it: ").unwrap();
        let named: Vec<&&str> = needs.iter().filter(|name| names.contains(**name)).collect();
        assert_eq!(named, [taken], "{names}");
        assert!(lines[2].starts_with("works here: terrace "), "{}", lines[2]);
        println!("    {job:?} without {taken}: {}", lines[2]);
    }
}

fn watching_needs_two_rights() {
    let seen = |report: &serde_json::Value| report["target"]["peak_footprint_bytes"].as_u64().unwrap() > 60 << 20;
    are_the_least(&Programs::new(), NOBODY, Job::Watch, &["observe"], seen);
}

fn moving_to_swap_that_is_there_needs_three() {
    let swap = Swap::on("256M");
    let device = format!("swap:{}", swap.device);
    let moved = |report: &serde_json::Value| report["moved_pages"]["demoted"].as_u64().unwrap() > 100;
    let words = ["run", "--tier-slow", &device, "--set", "idle=2s"];
    are_the_least(&Programs::new(), NOBODY, Job::Move, &words, moved);
}

fn setting_swap_up_needs_two_of_root() {
    let moved = |report: &serde_json::Value| report["moved_pages"]["demoted"].as_u64().unwrap() > 100;
    let words = ["run", "--tier-slow", "zram:256MiB", "--set", "idle=2s"];
    are_the_least(&Programs::new(), "0", Job::MoveToOwnSwap, &words, moved);
}

/// Swap that is no Terrace's, taken away when dropped.
struct Swap {
    number: String,
    device: String,
}

impl Swap {
    fn on(size: &str) -> Swap {
        let number = std::fs::read_to_string("/sys/class/zram-control/hot_add").unwrap().trim().to_owned();
        let swap = Swap { device: format!("/dev/zram{number}"), number };
        std::fs::write(format!("/sys/block/zram{}/disksize", swap.number), size).unwrap();
        assert!(Command::new("mkswap").arg(&swap.device).output().unwrap().status.success());
        assert!(Command::new("swapon").args(["-p", "32000", &swap.device]).output().unwrap().status.success());
        swap
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        let _ = Command::new("swapoff").arg(&self.device).output();
        let _ = std::fs::write(format!("/sys/block/zram{}/reset", self.number), "1");
        let _ = std::fs::write("/sys/class/zram-control/hot_remove", &self.number);
    }
}

/// Runs `terrace` through a shell or an interpreter, and returns its refusal: exit code 1, one reason, what works instead.
#[track_caller]
fn refusal(command: &mut Command) -> Vec<String> {
    let done = Running::start(command.env_remove("TERRACE_LOG")).finish(PATIENCE);
    assert_eq!(done.code, 1, "{}", done.stderr);
    let lines: Vec<String> = done.stderr.lines().filter(|line| !line.contains(" WARN ")).map(str::to_owned).collect();
    assert!(lines.len() <= 3 && lines[0].starts_with("terrace: "), "{}", done.stderr);
    assert!(lines.last().unwrap().starts_with("works here: terrace "), "{}", done.stderr);
    assert!(!done.stdout.contains("started"), "the program was started");
    println!("    {}", lines[0]);
    lines
}

fn a_full_swap_is_found_before_anything_moves() {
    let swap = Swap::on("1M");
    // A program of this size fills it, and then keeps it.
    let fill = "import ctypes, mmap, time\n\
                memory = mmap.mmap(-1, 16 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n\
                memory[:] = bytes(range(256)) * (len(memory) // 256)\n\
                for again in range(20):\n\
                \x20   memory.madvise(21)\n\
                print('full', flush=True)\n\
                time.sleep(60)\n";
    let mut filler = Running::start(Command::new("python3").args(["-c", fill]));
    filler.wait_for_output("full", PATIENCE);
    let words = ["run", "--tier-slow", &format!("swap:{}", swap.device), "--", "echo", "started"];
    let said = refusal(Command::new(env!("CARGO_BIN_EXE_terrace")).args(words));
    assert!(said[0].contains("has no room") && said[0].contains(&swap.device), "{}", said[0]);
    drop(filler);
}

/// Starts what follows with a seccomp filter under which a system call fails with EPERM: struct sock_filter and struct seccomp_data of the kernel's
/// headers, prctl(2).
const FILTER: &str = "\
import ctypes, os, struct, sys
number = int(sys.argv[1])
load, jump, answer = (0x20, 0, 0, 0), (0x15, 0, 1, number), 0x06
code = [load, jump, (answer, 0, 0, 0x00050000 | 1), (answer, 0, 0, 0x7fff0000)]
filters = ctypes.create_string_buffer(b''.join(struct.pack('HBBI', *step) for step in code))
program = struct.pack('HxxxxxxQ', len(code), ctypes.addressof(filters))
libc = ctypes.CDLL(None, use_errno=True)
if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, program, 0, 0):
    sys.exit(f'prctl: {ctypes.get_errno()}')
os.execvp(sys.argv[2], sys.argv[2:])
";

fn without_call(number: i64, words: &[&str]) -> Command {
    let mut command = Command::new("python3");
    command.args(["-c", FILTER, &number.to_string(), env!("CARGO_BIN_EXE_terrace")]).args(words);
    command
}

fn a_call_that_seccomp_refuses_is_named() {
    let run = ["run", "--tier-slow", "zram:64MiB", "--", "echo", "started"];
    let said = refusal(&mut without_call(libc::SYS_process_madvise, &run));
    assert!(said[0].contains("process_madvise is refused") && said[0].contains("seccomp"), "{}", said[0]);
    let said =
        refusal(&mut without_call(libc::SYS_bpf, &[&["run", "--tracker", "accessed-bits"][..], &run[1..]].concat()));
    assert!(said[0].contains("accessed-bits") && said[0].contains("not permitted"), "{}", said[0]);
    for (call, tracker) in [(libc::SYS_perf_event_open, "page-faults"), (libc::SYS_userfaultfd, "write-tracking")] {
        let mut command = without_call(call, &["observe", "--tracker", tracker, "--", "echo", "started"]);
        let said = refusal(&mut command);
        assert!(said[0].contains(tracker), "{}", said[0]);
        // Neither is needed by the usual tracker.
        let done = Running::start(&mut without_call(call, &["observe", "--quiet", "--", "true"])).finish(PATIENCE);
        assert_eq!(done.code, 0, "{}", done.stderr);
    }
}

fn a_read_only_sys_gets_no_device() {
    let script = "mount --bind /sys /sys && mount -o remount,bind,ro /sys && exec \"$@\"";
    let words = [env!("CARGO_BIN_EXE_terrace"), "run", "--tier-slow", "zram:64MiB", "--", "echo", "started"];
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", script, "sh"]).args(words);
    let said = refusal(&mut command);
    assert!(said[0].contains("hot_remove") && said[0].contains("not permitted"), "{}", said[0]);
}

fn a_demo_without_a_place_for_files_says_so() {
    let words = ["demo", "--from", "replay"];
    let done = Running::start(
        Command::new(env!("CARGO_BIN_EXE_terrace"))
            .args(words)
            .env("TMPDIR", "/nowhere")
            .current_dir(Path::new("/proc/self")),
    )
    .finish(PATIENCE);
    assert_eq!(done.code, 1, "{}", done.stderr);
    let lines: Vec<&str> = done.stderr.lines().collect();
    assert!(
        lines.len() == 1 && lines[0].contains("no page can be written") && lines[0].contains("--report"),
        "{lines:?}"
    );
}
