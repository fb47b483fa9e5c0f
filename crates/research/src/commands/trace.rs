//! `terrace trace`: look into traces, cut them, and convert them.
//!
//! In: files. Out: text, JSON, or a new file that is there whole or not at all. Must not: know a format: `terrace-trace` does.

use std::fs::File;
use std::io::{BufReader, BufWriter, IsTerminal, Read, Write};
use std::ops::Range;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use terrace_core::text::visible;
use terrace_core::units::{Bytes, Time};
use terrace_files::Output;
use terrace_trace::import::{AddressBase, Column, CsvColumns, DamonOptions, ImportFormat, ImportOptions, PerfField};
use terrace_trace::tools::{self, CatForm, Cut, Info};
use terrace_trace::{Reader, TraceError, export, import};

use crate::args::{
    TraceCatArguments, TraceCommand, TraceCutArguments, TraceExportArguments, TraceImportArguments, TraceInfoArguments,
};
use crate::options::{Misuse, duration, misuse};
use crate::report::units;

pub(super) fn run(command: &TraceCommand) -> anyhow::Result<ExitCode> {
    let done = match command {
        TraceCommand::Info(arguments) => return info(arguments),
        TraceCommand::Cat(arguments) => cat(arguments),
        TraceCommand::Cut(arguments) => cut(arguments),
        TraceCommand::Import(arguments) => import_recording(arguments),
        TraceCommand::Export(arguments) => export_trace(arguments),
    };
    done.map(|()| ExitCode::SUCCESS)
}

/// A file that cannot be opened, is no trace, or of another version, is misuse; damage further in is a failure.
fn open(path: &Path) -> anyhow::Result<BufReader<File>> {
    let file = File::open(path).map_err(|error| Misuse(format!("{}: {error}", path.display())))?;
    Ok(BufReader::with_capacity(1 << 20, file))
}

fn wrong(path: &Path, error: TraceError) -> anyhow::Error {
    match error {
        TraceError::NotATrace { .. } | TraceError::Version { .. } | TraceError::Header(_) => {
            Misuse(format!("{}: {error}", path.display())).into()
        }
        // The cause stays, so that a closed pipe is seen as one.
        other => anyhow::Error::new(other).context(path.display().to_string()),
    }
}

/// Runs `write` into a file that gets its name when it is whole.
fn whole<T>(path: &Path, write: impl FnOnce(&mut BufWriter<Output>) -> anyhow::Result<T>) -> anyhow::Result<T> {
    let named = || format!("{}: the file could not be written", path.display());
    let mut output = BufWriter::with_capacity(1 << 20, Output::create(path).with_context(named)?);
    let done = write(&mut output)?;
    let output = output.into_inner().map_err(std::io::IntoInnerError::into_error)?;
    output.finish().with_context(named)?;
    Ok(done)
}

fn info(arguments: &TraceInfoArguments) -> anyhow::Result<ExitCode> {
    let most = crate::options::footprint(&arguments.max_footprint)?.pages();
    let info = tools::info_within(open(&arguments.file)?, most).map_err(|error| wrong(&arguments.file, error))?;
    super::print(arguments.json, &info, |_| info_text(&info))?;
    // The intact part is shown; damage is still a failure.
    Ok(if info.damage.is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn info_text(info: &Info) -> String {
    let (header, summary) = (&info.header, &info.summary);
    let mut rows = vec![
        (
            "program",
            if header.workload.is_empty() { "not stated".to_owned() } else { visible(&header.workload).into_owned() },
        ),
        ("seen", format!("{:?}", header.provenance).to_lowercase()),
        ("scale", format!("1:{}", header.scale)),
        ("accesses", format!("{}, {} of them writes", units::count(summary.accesses), units::count(summary.writes))),
        ("events", units::count(summary.events)),
        ("threads", units::count(u64::from(summary.threads))),
        ("pages touched", format!("{} ({})", units::count(info.touched_pages), units::pages(info.touched_pages))),
        ("page numbers", units::count(summary.page_ids)),
        ("lines", if header.lines { "kept" } else { "not kept" }.to_owned()),
        (
            "time",
            match header.time_resolution_nanos {
                None => "not kept".to_owned(),
                Some(_) => units::seconds(summary.last_time.as_secs_f64() - summary.first_time.as_secs_f64()),
            },
        ),
        ("file", format!("{}, {:.2} bytes an access", units::bytes(info.bytes), info.bytes_per_access())),
    ];
    if let Some(sizes) = &info.page_sizes {
        let of =
            |accesses: u64, pages: u64| format!("{} accesses to {} pages", units::count(accesses), units::count(pages));
        rows.push(("mapped by 2 MiB", of(sizes.accesses_2m, sizes.pages_2m)));
        rows.push(("mapped by 4 KiB", of(sizes.accesses_4k, sizes.pages_4k)));
        let (collapsed, split) = (units::count(sizes.collapsed), units::count(sizes.split));
        rows.push(("page sizes", format!("{collapsed} collapsed, {split} split")));
    }
    rows.extend(info.damage.iter().map(|damage| ("damage", damage.clone())));
    let mut text: String = rows.iter().map(|(name, value)| format!("{name:16}{value}\n")).collect();
    for process in &info.processes {
        let (accesses, pages) = (units::count(process.accesses), units::count(process.touched_pages));
        text += &format!(
            "{:16}{} ({}), {accesses} accesses to {pages} pages\n",
            "  process",
            visible(&process.name),
            process.pid
        );
    }
    for (region, pages) in &info.touched_pages_by_region {
        text += &format!("{:16}{} in {}\n", "  pages", units::count(*pages), visible(region));
    }
    text
}

fn cat(arguments: &TraceCatArguments) -> anyhow::Result<()> {
    let range = match &arguments.accesses {
        Some(text) => places(text)?,
        None => 0..u64::MAX,
    };
    let form = if arguments.json { CatForm::JsonLines } else { CatForm::Text };
    let mut output = Pipe { stdout: crate::terminal::stdout(), closed: false };
    let done = tools::cat(open(&arguments.file)?, &mut output, form, range);
    if output.closed { Ok(()) } else { done.map(drop).map_err(|error| wrong(&arguments.file, error)) }
}

/// Standard output that remembers whether its reader went away, which is no failure.
struct Pipe<W> {
    stdout: W,
    closed: bool,
}

impl<W: Write> Write for Pipe<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let written = self.stdout.write(bytes);
        self.closed |= written.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe);
        written
    }
    fn flush(&mut self) -> std::io::Result<()> {
        self.stdout.flush()
    }
}

fn places(text: &str) -> anyhow::Result<Range<u64>> {
    let range = text.split_once('-').and_then(|(from, to)| Some(from.trim().parse().ok()?..to.trim().parse().ok()?));
    match range {
        Some(range) if range.start < range.end => Ok(range),
        _ => Err(misuse("--accesses", text, "expected FROM-TO, two numbers, the second larger")),
    }
}

fn cut(arguments: &TraceCutArguments) -> anyhow::Result<()> {
    let times = match &arguments.times {
        None => None,
        Some(text) => {
            let Some((from, to)) = text.split_once('-') else {
                return Err(misuse("--times", text, "expected FROM-TO, such as 10s-20s"));
            };
            let time = |part: &str| match part.trim() {
                "0" | "0s" => Ok(Time::ZERO),
                other => duration("--times", other).map(|span| Time::from_nanos(span.as_nanos() as u64)),
            };
            let (from, to) = (time(from)?, time(to)?);
            if from >= to {
                return Err(misuse("--times", text, "expected a second time after the first"));
            }
            Some(from..to)
        }
    };
    let options = Cut {
        accesses: arguments.accesses.as_deref().map(places).transpose()?,
        times,
        threads: arguments.threads.clone(),
        pages: None,
        every: arguments.every,
        keep_whole_prefix: arguments.keep_whole,
    };
    let input = open(&arguments.file)?;
    let report = whole(&arguments.output, |output| {
        tools::cut(input, output, &options).map_err(|error| wrong(&arguments.file, error))
    })?;
    super::print(arguments.json, &report, |_| {
        let mut text = format!("{} accesses, {} events\n", report.summary.accesses, report.summary.events);
        text.extend(report.damage.iter().map(|damage| format!("the old trace ends early: {damage}\n")));
        text
    })
}

fn import_recording(arguments: &TraceImportArguments) -> anyhow::Result<()> {
    let format = import_format(arguments)?;
    let options = ImportOptions {
        workload: arguments.workload.clone(),
        number_by: None,
        lines: !arguments.no_lines,
        time_resolution_nanos: arguments.resolution,
        period: arguments.period,
        scale: arguments.scale,
        skip_bad_lines: arguments.skip_bad_lines,
        keep_whole_prefix: arguments.keep_whole,
        most_unpacked: arguments
            .max_unpacked
            .parse::<Bytes>()
            .map_err(|error| misuse("--max-unpacked", &arguments.max_unpacked, error))?
            .get(),
    };
    if !(options.scale.is_finite() && options.scale > 0.0) {
        return Err(misuse("--scale", &options.scale.to_string(), "expected a number above 0"));
    }
    let input: Box<dyn Read> = if arguments.file == Path::new("-") {
        if std::io::stdin().is_terminal() {
            return Err(Misuse("-: expected a recording on stdin, and that is a terminal".to_owned()).into());
        }
        Box::new(std::io::stdin().lock())
    } else {
        Box::new(open(&arguments.file)?)
    };
    let report = whole(&arguments.output, |output| {
        import::import(&format, BufReader::with_capacity(1 << 20, input), output, &options)
            .map_err(|error| anyhow::Error::new(error).context(arguments.file.display().to_string()))
    })?;
    super::print(arguments.json, &report, |_| {
        let summary = &report.summary;
        let mut text = format!(
            "{} records: {} accesses, {} events, {} page numbers\n",
            report.records, summary.accesses, summary.events, summary.page_ids
        );
        text.extend(report.skipped.iter().map(|(reason, count)| format!("{count} records left out: {reason}\n")));
        text.extend(report.notes.iter().map(|note| format!("{note}\n")));
        text.extend(report.damage.iter().map(|damage| format!("the recording ends early: {damage}\n")));
        text
    })
}

/// The fields of a `perf script -F` that a trace has use for.
const USUAL_FIELDS: [&str; 7] = ["comm", "pid", "tid", "time", "event", "addr", "weight"];

fn import_format(arguments: &TraceImportArguments) -> anyhow::Result<ImportFormat> {
    Ok(match arguments.format.as_str() {
        "lackey" => ImportFormat::Lackey,
        "drmemtrace" => ImportFormat::Drmemtrace,
        "drmemtrace-view" => ImportFormat::DrmemtraceView,
        "perf-script" => {
            let usual = USUAL_FIELDS.map(str::to_owned);
            let names = if arguments.fields.is_empty() { &usual[..] } else { &arguments.fields };
            let fields: Result<Vec<PerfField>, TraceError> = names.iter().map(|name| name.parse()).collect();
            ImportFormat::PerfScript(fields.map_err(|error| misuse("--fields", &arguments.fields.join(","), error))?)
        }
        "damon" => {
            let nanos = |option: &str, text: &Option<String>| match text {
                Some(text) => duration(option, text).map(|span| span.as_nanos() as u64),
                None => Ok(0),
            };
            ImportFormat::Damon(DamonOptions {
                sample_nanos: nanos("--damon-sample", &arguments.damon_sample)?,
                aggregation_nanos: nanos("--damon-aggregation", &arguments.damon_aggregation)?,
                target: None,
            })
        }
        "csv" => ImportFormat::Csv(csv_columns(arguments, CsvColumns::default())?),
        "libcachesim-csv" => ImportFormat::Csv(csv_columns(arguments, CsvColumns::libcachesim())?),
        "champsim" => ImportFormat::ChampSim,
        "gem5" => ImportFormat::Gem5,
        "gem5-text" => ImportFormat::Gem5Text,
        "execlog" => ImportFormat::Execlog,
        "oracle-general" => ImportFormat::OracleGeneral,
        _ => ImportFormat::Hook,
    })
}

fn csv_columns(arguments: &TraceImportArguments, named: CsvColumns) -> anyhow::Result<CsvColumns> {
    let separator = match arguments.separator.as_str() {
        "tab" | "\\t" => b'\t',
        "blank" | "blanks" => b' ',
        text => match text.as_bytes() {
            [separator] => *separator,
            _ => return Err(misuse("--separator", text, "expected one character, tab or blank")),
        },
    };
    let names = !arguments.no_names;
    let base = match (arguments.hex, arguments.decimal) {
        (true, _) => AddressBase::Hexadecimal,
        (false, true) => AddressBase::Decimal,
        (false, false) => AddressBase::ByColumn,
    };
    let time_unit_nanos = arguments.time_unit.unwrap_or(named.time_unit_nanos);
    let usual = CsvColumns { separator, names, base, time_unit_nanos, ..named };
    if arguments.columns.is_empty() {
        if !names {
            let wanted = "expected --columns beside it, as the first line does not say which column is which";
            return Err(Misuse(format!("--no-names: {wanted}")).into());
        }
        return Ok(usual);
    }
    let mut columns = CsvColumns { operation: None, size: None, thread: None, time: None, latency: None, ..usual };
    let mut addressed = false;
    for text in &arguments.columns {
        let wanted =
            "expected KIND=COLUMN, with a kind of address, page, object, operation, size, thread, time, latency";
        let Some((kind, column)) = text.split_once('=') else {
            return Err(misuse("--columns", text, wanted));
        };
        let column: Column = column.parse().map_err(|error| misuse("--columns", text, error))?;
        if let (Column::Name(_), false) = (&column, names) {
            return Err(misuse("--columns", text, "expected a place from 0, as the first line holds no names"));
        }
        match kind {
            "address" | "page" | "object" => {
                (columns.address, addressed) = (column, true);
                (columns.pages, columns.objects) = (kind == "page", kind == "object");
            }
            "operation" => columns.operation = Some(column),
            "size" => columns.size = Some(column),
            "thread" => columns.thread = Some(column),
            "time" => columns.time = Some(column),
            "latency" => columns.latency = Some(column),
            _ => return Err(misuse("--columns", text, wanted)),
        }
    }
    if !addressed {
        return Err(misuse(
            "--columns",
            &arguments.columns.join(","),
            "expected an address, a page or an object among them",
        ));
    }
    Ok(columns)
}

fn export_trace(arguments: &TraceExportArguments) -> anyhow::Result<()> {
    let mut reader = Reader::new(open(&arguments.file)?).map_err(|error| wrong(&arguments.file, error))?;
    let report = whole(&arguments.output, |output| {
        let done = match arguments.format.as_str() {
            "lackey" => export::lackey(&mut reader, output),
            "oracle-general" => export::oracle_general(&mut reader, output, !arguments.no_next),
            "csv" => export::csv(&mut reader, output),
            "libcachesim-csv" => export::libcachesim_csv(&mut reader, output),
            "champsim" => export::champsim(&mut reader, output),
            "gem5" => export::gem5(&mut reader, output),
            _ => export::parquet(&mut reader, output),
        };
        done.map_err(|error| wrong(&arguments.file, error))
    })?;
    super::print(arguments.json, &report, |_| {
        format!("{} accesses, {} events left out\n", report.accesses, report.events_left_out)
    })
}
