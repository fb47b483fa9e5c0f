//! `terrace lab record`: programs in a guest as a trace, with the page sizes that the guest's kernel chose.
//!
//! In: a machine, programs of this host. Out: a trace of what each process did, and what it holds. Must not: run a program here unless
//! that is asked for, or record anything itself: the plugin does, and `terrace-trace` reads it.

use std::io::{BufReader, BufWriter, Read};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use terrace_common::say;

use anyhow::{Context, bail};
use terrace_core::units::Bytes;
use terrace_files::Output;
use terrace_lab::record::{RecordJob, RecordReport, Recorded};
use terrace_trace::TraceError;
use terrace_trace::import::{ImportFormat, ImportOptions, import};
use terrace_trace::tools::{Info, info};

use super::brought::{brought, file, line_of};
use super::{lab, machine, time_limit};
use crate::args::LabRecordArguments;
use crate::commands::record::{cache_size, native};
use crate::recorder::Pipe;
use crate::report::units;

pub(super) fn run(arguments: &LabRecordArguments) -> anyhow::Result<ExitCode> {
    let mut files = arguments.files.iter().map(|text| file(text)).collect::<anyhow::Result<Vec<_>>>()?;
    let mut programs = vec![Recorded::Words(words(arguments, &mut files)?)];
    for line in &arguments.beside {
        programs.push(Recorded::Line(line_of("--beside", line, &mut files)?));
    }
    let pipe = Pipe::new()?;
    let job = RecordJob {
        kernel: arguments.machine.kernel.clone(),
        machine: machine(&arguments.machine)?,
        modules: arguments.machine.modules.clone(),
        huge_pages: arguments.huge_pages.clone(),
        programs,
        files,
        cache: cache_size(arguments.cache.as_deref())?,
        period: arguments.period,
        output: pipe.path.clone(),
        time_limit: time_limit(&arguments.time_limit)?,
    };
    let lab = lab(&arguments.host)?;
    let native = if arguments.native { Some(native(&arguments.command)?) } else { None };
    let mut output = Output::create_file(&arguments.output).with_context(|| arguments.output.display().to_string())?;
    let (reader, until_the_end) = (pipe.reader, pipe.until_the_end);
    let guest = std::thread::spawn(move || {
        let report = lab.record(&job);
        drop(until_the_end);
        report
    });
    let mut watched = Watched { inner: reader, bytes: 0, first: None, last: None };
    let command: Vec<_> = arguments.command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let options = ImportOptions {
        workload: std::iter::once(command.join(" "))
            .chain(arguments.beside.iter().cloned())
            .collect::<Vec<_>>()
            .join(" & "),
        period: (arguments.period > 1).then_some(arguments.period),
        keep_whole_prefix: true,
        ..ImportOptions::default()
    };
    let input = BufReader::with_capacity(1 << 20, &mut watched);
    let imported = import(&ImportFormat::Hook, input, BufWriter::new(&mut output), &options);
    let recording = watched.first.zip(watched.last).map(|(first, last)| last - first);
    // So that the plugin ends the guest if the trace could not be written.
    drop(watched);
    let report = guest.join().map_err(|_| anyhow::anyhow!("the guest's thread ended with a panic"))?;
    if let Err(error @ TraceError::Io { .. }) = imported {
        return Err(anyhow::Error::new(error).context(arguments.output.display().to_string()));
    }
    let report = report?;
    let imported = imported.context("the guest ended, and its recording is not one")?;
    if let Some(damage) = &imported.damage {
        bail!("the recording ends early: {damage}");
    }
    let held = info(BufReader::new(output.read_back()?))?;
    output.finish().with_context(|| arguments.output.display().to_string())?;
    if held.summary.accesses == 0 {
        bail!("nothing was recorded: {}", ends(&report));
    }
    let wall = recording.unwrap_or_default();
    let slowdown = native.map(|native| wall.as_secs_f64() / native.as_secs_f64().max(1e-6));
    show(arguments, &held, &report, wall, slowdown)?;
    let exit = report.programs.first().map_or(1, |program| program.exit);
    Ok(ExitCode::from(u8::try_from(exit).unwrap_or(1)))
}

/// The program and its arguments; a program of this host is brought along.
fn words(arguments: &LabRecordArguments, files: &mut Vec<(PathBuf, String)>) -> anyhow::Result<Vec<String>> {
    let mut words: Vec<String> = arguments.command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    words[0] = brought(&words[0], files)?;
    Ok(words)
}

/// Knows when the first chunk came, and the last.
struct Watched<R> {
    inner: R,
    bytes: u64,
    first: Option<Instant>,
    last: Option<Instant>,
}

/// The head comes as soon as QEMU starts; a program's beginning is the first thing after it.
const HEAD_BYTES: u64 = 40;

impl<R: Read> Read for Watched<R> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let count = self.inner.read(into)?;
        self.bytes += count as u64;
        if count > 0 && self.bytes > HEAD_BYTES {
            let now = Instant::now();
            self.first.get_or_insert(now);
            self.last = Some(now);
        }
        Ok(count)
    }
}

/// How the programs ended, for an error.
fn ends(report: &RecordReport) -> String {
    let end = |program: &terrace_lab::record::ProgramEnd| {
        let said = program.said.trim();
        let said = if said.is_empty() { String::new() } else { format!(" and said {said:?}") };
        format!("a program ended with {}{said}", program.exit)
    };
    report.programs.iter().map(end).collect::<Vec<_>>().join("; ")
}

fn show(
    arguments: &LabRecordArguments,
    held: &Info,
    report: &RecordReport,
    wall: Duration,
    slowdown: Option<f64>,
) -> anyhow::Result<()> {
    let accesses = held.summary.accesses;
    if arguments.json {
        return crate::commands::print_json(&serde_json::json!({
            "trace": arguments.output, "accesses": accesses, "writes": held.summary.writes,
            "unique_pages": held.touched_pages, "threads": held.summary.threads, "trace_bytes": held.bytes,
            "wall_seconds": wall.as_secs_f64(), "slowdown": slowdown,
            "page_sizes": held.page_sizes, "processes": held.processes, "guest": report,
        }));
    }
    for program in &report.programs {
        crate::commands::print_text(&program.said)?;
    }
    say!(
        "terrace: {}: {} accesses to {} pages, {} ({:.1} bytes an access), in {:.1} s{}\n",
        arguments.output.display(),
        units::count(accesses),
        units::count(held.touched_pages),
        Bytes::new(held.bytes),
        held.bytes_per_access(),
        wall.as_secs_f64(),
        slowdown.map(|factor| format!(", {factor:.1} times as long as natively")).unwrap_or_default()
    );
    if let Some(sizes) = &held.page_sizes {
        say!(
            "terrace: huge pages {} on {}: {} accesses to {} pages of 2 MiB, {} to {} of 4 KiB; {} collapsed, {} split\n",
            report.huge_pages,
            report.kernel,
            units::count(sizes.accesses_2m),
            units::count(sizes.pages_2m),
            units::count(sizes.accesses_4k),
            units::count(sizes.pages_4k),
            units::count(sizes.collapsed),
            units::count(sizes.split),
        );
    }
    for process in &held.processes {
        let (accesses, pages) = (units::count(process.accesses), units::count(process.touched_pages));
        say!("terrace: {} ({}): {accesses} accesses to {pages} pages\n", process.name, process.pid);
    }
    Ok(())
}
