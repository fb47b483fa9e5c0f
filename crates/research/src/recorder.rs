//! Recording a program: it runs under QEMU's user mode with the plugin, which tells every access.
//!
//! In: a command. Out: a trace of what it did. Must not: replace a file that is something else, or leave its pipe behind.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{BufReader, BufWriter};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use terrace_common::say;

use anyhow::{Context, bail};
use terrace_core::text::visible;
use terrace_core::units::Bytes;
use terrace_files::Output;
use terrace_lab::plugin;
use terrace_trace::import::{ImportFormat, ImportOptions, import};
use terrace_trace::tools::{Info, info};

use crate::program;

/// QEMU for the processor that programs here are made for.
const QEMU: &str = if cfg!(target_arch = "aarch64") { "qemu-aarch64" } else { "qemu-x86_64" };
const PACKAGE: &str = "qemu-user";

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
    pub(crate) fn lacks(&self, name: &str) -> Option<String> {
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
            say!("terrace: the recording ends early: {damage}\n");
        }
        let held = info(BufReader::new(output.read_back()?))?;
        output.finish().with_context(|| trace.display().to_string())?;
        let started = terrace_files::read_to_string(&started, LONGEST_STARTED)?;
        let started: BTreeSet<&str> = started.lines().collect();
        let started = started.into_iter().map(str::to_owned).collect();
        Ok(Recorded { status, held, wall: ended - began, started })
    }
}

/// The pipe through which the plugin delivers. Both ends are opened here first: so opening waits for nobody, and the reader meets the
/// end when the second one is closed, even if the plugin never opened the pipe.
pub(crate) struct Pipe {
    pub path: PathBuf,
    pub reader: File,
    pub until_the_end: File,
    /// Goes with the pipe in it.
    pub folder: tempfile::TempDir,
}

impl Pipe {
    pub(crate) fn new() -> anyhow::Result<Pipe> {
        let folder = temporary_folder()?;
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
pub(crate) fn refuse_script(program: &Path) -> anyhow::Result<()> {
    let mut start = [0; 2];
    let read = File::open(program).and_then(|mut file| std::io::Read::read_exact(&mut file, &mut start));
    if read.is_ok() && start == *b"#!" {
        bail!("{} is a script: record its interpreter, as in `terrace record -- sh SCRIPT`", program.display());
    }
    Ok(())
}

/// The next program of this name along PATH that is no script: what a version manager's script stands before, such as python3.
fn no_script(name: &OsStr) -> Option<PathBuf> {
    let bare = !name.as_encoded_bytes().contains(&b'/');
    let folders = std::env::var_os("PATH").filter(|_| bare)?;
    let candidates = std::env::split_paths(&folders).map(|folder| folder.join(name));
    candidates.into_iter().find(|path| program::check(path.as_os_str()).is_ok() && refuse_script(path).is_ok())
}

/// A directory for temporary files, removed when dropped.
///
/// # Errors
/// When none can be made; the error says where one was wanted.
pub(crate) fn temporary_folder() -> anyhow::Result<tempfile::TempDir> {
    tempfile::tempdir().map_err(|error| {
        let place = std::env::temp_dir();
        anyhow::anyhow!(
            "no temporary files can be made in {}: {}; TMPDIR names another directory",
            place.display(),
            error.kind()
        )
    })
}
