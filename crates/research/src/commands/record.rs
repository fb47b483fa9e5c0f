//! `terrace record`: every access of a program, as a trace.
//!
//! In: a program. Out: a trace of what it did under QEMU's user mode with the plugin, and how much slower that was; or with --hook
//! the flags that make a program record itself. Must not: run a compiler, or replace a file that is something else.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use terrace_common::say;

use anyhow::Context;
use terrace_core::units::Bytes;
use terrace_trace::hook::{RECORDER_COMPILE_FLAGS, RECORDER_FILE_NAME, RECORDER_SOURCE, flags, hook_flags};

use crate::args::RecordArguments;
use crate::options::misuse;
use crate::program::NotStarted;
use crate::recorder::{Recorded, Tools};

pub(super) fn run(arguments: &RecordArguments) -> anyhow::Result<ExitCode> {
    if arguments.hook {
        return hook(arguments);
    }
    if arguments.check {
        Tools::find(&arguments.command)?;
        return Ok(ExitCode::SUCCESS);
    }
    record(arguments)
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

/// The cache in front of the recorder.
pub(super) fn cache_size(asked: Option<&str>) -> anyhow::Result<Bytes> {
    let Some(text) = asked else { return Ok(Bytes::ZERO) };
    match text.parse::<Bytes>() {
        Ok(cache) if cache <= Bytes::gib(1) => Ok(cache),
        Ok(cache) => Err(misuse("--cache", &cache.to_string(), "expected 1GiB at most")),
        Err(error) => Err(misuse("--cache", text, error)),
    }
}

/// How long the program takes by itself.
pub(super) fn native(command: &[OsString]) -> anyhow::Result<Duration> {
    say!("terrace: running the program natively first, to tell the slowdown (--once leaves that out)\n");
    let began = Instant::now();
    Command::new(&command[0])
        .args(&command[1..])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()
        .map_err(|source| NotStarted::new(&command[0], source))?;
    Ok(began.elapsed())
}

fn show(arguments: &RecordArguments, done: &Recorded, slowdown: Option<f64>) -> anyhow::Result<()> {
    let (held, wall) = (&done.held, done.wall);
    if let Some(lacks) = done.lacks(&arguments.command[0].to_string_lossy()) {
        say!("terrace: {lacks}\n");
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
    say!(
        "terrace: {}: {accesses} accesses to {} pages, {} ({:.1} bytes an access), in {:.1} s ({rate:.1} million a second){}\n",
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
