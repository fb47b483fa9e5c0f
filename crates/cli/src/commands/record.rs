//! `terrace record`: every access of a program, as a trace.
//!
//! In: a program. Out: a trace of what it did under QEMU's user mode with the plugin, and how much slower that was; or with --hook
//! the flags that make a program record itself. Must not: run a compiler, or replace a file that is something else.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufReader, BufWriter};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use terrace_core::text::visible;
use terrace_core::units::Bytes;
use terrace_files::Output;
use terrace_lab::plugin;
use terrace_trace::hook::{RECORDER_COMPILE_FLAGS, RECORDER_FILE_NAME, RECORDER_SOURCE, flags, hook_flags};
use terrace_trace::import::{ImportFormat, ImportOptions, import};
use terrace_trace::tools::{Info, info};

use crate::args::RecordArguments;
use crate::options::misuse;
use crate::session::program;

/// QEMU for the processor that programs here are made for.
const QEMU: &str = if cfg!(target_arch = "aarch64") { "qemu-aarch64" } else { "qemu-x86_64" };
const PACKAGE: &str = "qemu-user";

pub(super) fn run(arguments: &RecordArguments) -> anyhow::Result<ExitCode> {
    if arguments.hook { hook(arguments) } else { record(arguments) }
}

fn record(arguments: &RecordArguments) -> anyhow::Result<ExitCode> {
    let cache = cache_size(arguments.cache.as_deref())?;
    let tools = Tools::find(&arguments.command)?;
    let native = if arguments.once { None } else { Some(native(&arguments.command)?) };
    let done = tools.record(&arguments.command, &arguments.output, cache, arguments.period, Stdio::inherit())?;
    let slowdown = native.map(|native| done.wall.as_secs_f64() / native.as_secs_f64().max(1e-6));
    show(arguments, &done, slowdown)?;
    Ok(exit_code(done.status))
}

/// What a recording needs: the program, and the plugin for a QEMU that is there.
pub(crate) struct Tools {
    program: PathBuf,
    plugin: PathBuf,
}

/// A recording that was made.
pub(crate) struct Recorded {
    /// How the program ended.
    pub status: ExitStatus,
    /// What the trace holds.
    pub held: Info,
    pub wall: Duration,
    /// Other programs that it started, by their paths: they ran natively, and are not in the trace.
    pub started: Vec<String>,
}

impl Recorded {
    /// What the trace lacks, if it lacks anything.
    pub(super) fn lacks(&self, name: &str) -> Option<String> {
        let mut names: Vec<&str> =
            self.started.iter().filter_map(|path| Path::new(path).file_name()?.to_str()).collect();
        names.dedup();
        (!names.is_empty()).then(|| {
            format!(
                "{name} started other programs, which ran but were not recorded: {}; `terrace lab record` and `terrace lab compare` see them too",
                visible(&names.join(", "))
            )
        })
    }
}

/// Most of the list of started programs that is read.
const LONGEST_STARTED: u64 = 1 << 20;

impl Tools {
    /// # Errors
    /// When the program cannot be recorded, or QEMU or the plugin is missing, with what to do.
    pub(crate) fn find(command: &[OsString]) -> anyhow::Result<Tools> {
        let program = program::find(&command[0])?;
        refuse_script(&program).map_err(|error| match no_script(&command[0]) {
            Some(other) => anyhow::anyhow!("{error}; or name {}, which is a program", other.display()),
            None => error,
        })?;
        plugin::check(QEMU, PACKAGE)?;
        Ok(Tools { program, plugin: plugin::plugin()? })
    }

    /// Runs the program once, and writes what it accessed.
    pub(crate) fn record(
        &self,
        command: &[OsString],
        trace: &Path,
        cache: Bytes,
        period: u64,
        stdout: Stdio,
    ) -> anyhow::Result<Recorded> {
        let Pipe { path: pipe, reader, until_the_end, folder } = Pipe::new()?;
        let started = folder.path().join("started");
        terrace_files::write(&started, "").with_context(|| started.display().to_string())?;
        let text = |path: &Path| path.display().to_string().replace(',', ",,");
        let option = format!(
            "file={},mode=record,out={},cache={},period={period},started={}",
            text(&self.plugin),
            text(&pipe),
            cache.get(),
            text(&started)
        );
        let mut output = Output::create_file(trace).with_context(|| trace.display().to_string())?;
        let began = Instant::now();
        let mut child = Command::new(QEMU)
            .args(["-plugin", &option])
            .arg(&self.program)
            .args(&command[1..])
            .stdout(stdout)
            .spawn()
            .with_context(|| format!("{QEMU} could not be started"))?;
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let status = child.wait();
            drop(until_the_end);
            // The receiver is gone only if this command is ending with an error of its own.
            let _ = sender.send((status, Instant::now()));
        });
        let accesses = BufReader::with_capacity(1 << 20, reader);
        let words: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
        let options = ImportOptions {
            workload: words.join(" "),
            period: (period > 1).then_some(period),
            keep_whole_prefix: true,
            ..ImportOptions::default()
        };
        let imported = import(&ImportFormat::Hook, accesses, BufWriter::new(&mut output), &options);
        let (status, ended) = receiver.recv().context("the program's end was missed")?;
        let status = status?;
        let report = imported.with_context(|| format!("nothing was recorded; {QEMU} ended with {status}"))?;
        if let Some(damage) = &report.damage {
            eprintln!("terrace: the recording ends early: {damage}");
        }
        let held = info(BufReader::new(output.read_back()?))?;
        output.finish().with_context(|| trace.display().to_string())?;
        let started = terrace_files::read_to_string(&started, LONGEST_STARTED)?;
        let started: BTreeSet<&str> = started.lines().collect();
        let started = started.into_iter().map(str::to_owned).collect();
        Ok(Recorded { status, held, wall: ended - began, started })
    }
}

/// The cache in front of the recorder.
pub(super) fn cache_size(asked: Option<&str>) -> anyhow::Result<Bytes> {
    let Some(text) = asked else { return Ok(Bytes::ZERO) };
    match text.parse::<Bytes>() {
        Ok(cache) if cache <= Bytes::gib(1) => Ok(cache),
        Ok(cache) => Err(misuse("--cache", &cache.to_string(), "expected 1GiB at most")),
        Err(error) => Err(misuse("--cache", text, error)),
    }
}

/// The pipe through which the plugin delivers. Both ends are opened here first: so opening waits for nobody, and the reader meets the
/// end when the second one is closed, even if the plugin never opened the pipe.
pub(super) struct Pipe {
    pub path: PathBuf,
    pub reader: File,
    pub until_the_end: File,
    /// Goes with the pipe in it.
    pub folder: tempfile::TempDir,
}

impl Pipe {
    pub(super) fn new() -> anyhow::Result<Pipe> {
        let folder = super::temporary_folder()?;
        let path = folder.path().join("accesses");
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0)?;
        let nonblocking = rustix::fs::OFlags::NONBLOCK.bits() as i32;
        let reader = File::options().read(true).custom_flags(nonblocking).open(&path)?;
        let until_the_end = File::options().write(true).open(&path)?;
        rustix::fs::fcntl_setfl(&reader, rustix::fs::OFlags::empty())?;
        Ok(Pipe { path, reader, until_the_end, folder })
    }
}

/// A script's interpreter would be started by the kernel, outside of QEMU.
pub(super) fn refuse_script(program: &Path) -> anyhow::Result<()> {
    let mut start = [0; 2];
    let read = File::open(program).and_then(|mut file| std::io::Read::read_exact(&mut file, &mut start));
    if read.is_ok() && start == *b"#!" {
        bail!("{} is a script: record its interpreter, as in `terrace record -- sh SCRIPT`", program.display());
    }
    Ok(())
}

/// The next program of this name along PATH that is no script: what a version manager's script stands before, such as python3.
fn no_script(name: &std::ffi::OsStr) -> Option<PathBuf> {
    let bare = !name.as_encoded_bytes().contains(&b'/');
    let folders = std::env::var_os("PATH").filter(|_| bare)?;
    let candidates = std::env::split_paths(&folders).map(|folder| folder.join(name));
    candidates.into_iter().find(|path| program::check(path.as_os_str()).is_ok() && refuse_script(path).is_ok())
}

/// How long the program takes by itself.
pub(super) fn native(command: &[OsString]) -> anyhow::Result<Duration> {
    eprintln!("terrace: running the program natively first, to tell the slowdown (--once leaves that out)");
    let began = Instant::now();
    Command::new(&command[0])
        .args(&command[1..])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()
        .map_err(|source| program::NotStarted::new(&command[0], source))?;
    Ok(began.elapsed())
}

fn show(arguments: &RecordArguments, done: &Recorded, slowdown: Option<f64>) -> anyhow::Result<()> {
    let (held, wall) = (&done.held, done.wall);
    if let Some(lacks) = done.lacks(&arguments.command[0].to_string_lossy()) {
        eprintln!("terrace: {lacks}");
    }
    let accesses = held.summary.accesses;
    if arguments.json {
        return super::print_json(&serde_json::json!({
            "trace": arguments.output, "accesses": accesses, "writes": held.summary.writes,
            "unique_pages": held.touched_pages, "threads": held.summary.threads, "trace_bytes": held.bytes,
            "wall_seconds": wall.as_secs_f64(), "slowdown": slowdown, "started": done.started,
        }));
    }
    let rate = accesses as f64 / wall.as_secs_f64() / 1e6;
    // The program's own output is on stdout.
    eprintln!(
        "terrace: {}: {accesses} accesses to {} pages, {} ({:.1} bytes an access), in {:.1} s ({rate:.1} million a second){}",
        arguments.output.display(),
        held.touched_pages,
        Bytes::new(held.bytes),
        held.bytes_per_access(),
        wall.as_secs_f64(),
        slowdown.map(|factor| format!(", {factor:.1} times as long as natively")).unwrap_or_default()
    );
    Ok(())
}

fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}

fn hook(arguments: &RecordArguments) -> anyhow::Result<ExitCode> {
    if let Some(path) = &arguments.write {
        if path.exists() && std::fs::read(path).is_ok_and(|text| text != RECORDER_SOURCE.as_bytes()) {
            let why = format!("it exists and is something else; name a new file, such as {RECORDER_FILE_NAME}");
            return Err(misuse("--write", &path.display().to_string(), why));
        }
        terrace_files::write(path, RECORDER_SOURCE)
            .with_context(|| format!("{}: the recorder's source could not be written", path.display()))?;
    }
    let source = arguments.write.as_ref().map_or(RECORDER_FILE_NAME.to_owned(), |path| path.display().to_string());
    let compile = format!("cc {} {source} -o {}", RECORDER_COMPILE_FLAGS.join(" "), arguments.object);
    if arguments.json {
        let flags = flags(&arguments.object);
        super::print_json(&serde_json::json!({
            "compile_recorder": compile, "compile": flags.compile, "link": flags.link, "written": arguments.write,
        }))?;
    } else {
        let record =
            "# then run the program with TERRACE_RECORD=FILE, and: terrace trace import --format hook FILE NEW\n";
        super::print_text(&format!("{compile}\n{}{record}", hook_flags(&arguments.object)))?;
    }
    Ok(ExitCode::SUCCESS)
}
