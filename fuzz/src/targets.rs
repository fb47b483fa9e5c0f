//! The targets: each hands bytes to a decoder or parser and says where they came to.
//!
//! In: any bytes. Out: a number that stands for the result. Must not: panic of itself, or write anywhere but into memory and a scratch
//! file. What must hold of a result is asserted here.

use std::collections::BTreeSet;
use std::io::{self, Cursor, Write};
use std::time::{Duration, Instant};

use terrace_core::random::mix;
use terrace_core::units::Vpn;
use terrace_daemon::config::{Config, Source};
use terrace_lab::btf::Types;
use terrace_lab::expression::evaluate;
use terrace_lab::scenario::Scenario;
use terrace_linux::pagemap::{Pagemap, PagemapEntry};
use terrace_linux::perf::record::{Layout, Records};
use terrace_linux::perf::spe;
use terrace_linux::process::{RangeOptions, parse_locked, parse_maps, parse_placed};
use terrace_linux::topology::declared::parse_declared;
use terrace_machine::preset::Machine;
use terrace_sizing::database::Database;
use terrace_trace::import::{CsvColumns, DamonOptions, ImportFormat, ImportOptions, PerfField, import};
use terrace_trace::tools::{Cut, cut, info};
use terrace_trace::{Access, Index, Reader, TraceError, export};

use crate::record_bytes::SAMPLE_FIELDS;
use crate::seal;

/// Makes of an open form what a decoder reads.
type Seal = fn(&[u8]) -> Vec<u8>;

/// One decoder under test.
pub(crate) struct Target {
    /// Its name, and that of its folder in fuzz/corpus.
    pub(crate) name: &'static str,
    /// Makes of an input's open form what the decoder reads.
    pub(crate) seal: Option<Seal>,
    /// Words that the format knows.
    pub(crate) words: &'static [&'static str],
    /// Decodes.
    pub(crate) run: fn(&[u8]) -> u64,
}

const fn target(name: &'static str, words: &'static [&'static str], run: fn(&[u8]) -> u64) -> Target {
    Target { name, seal: None, words, run }
}

/// All of them.
pub(crate) const ALL: &[Target] = &[
    Target { seal: Some(seal::trace), ..target("trace-blocks", &[], trace) },
    target("trace-bytes", &[], trace),
    target("database", &["PAR1", "seconds_001", "\"records\":", "\"sizes\":100"], database),
    target("import-lackey", &[" L ", " S ", " M ", "I  ", "==", ",8\n"], |bytes| {
        imported(&ImportFormat::Lackey, bytes)
    }),
    target("import-drmemtrace", &[], |bytes| imported(&ImportFormat::Drmemtrace, bytes)),
    target("import-view", &["<marker: timestamp ", "byte(s) @ 0x", "read", "write", " T1 "], |bytes| {
        imported(&ImportFormat::DrmemtraceView, bytes)
    }),
    target("import-perf", &["|OP LOAD|LVL L3 hit|", "cpu/mem-loads,ldlat=30/P:", " 2M\n", "4K", "[000]"], |bytes| {
        imported(&ImportFormat::PerfScript(fields()), bytes)
    }),
    target(
        "import-damon",
        &["damon:damon_aggregated:", "target_id=", "nr_regions=", "0-4096: 1\n", " ms\n"],
        |bytes| imported(&ImportFormat::Damon(DamonOptions::default()), bytes),
    ),
    target(
        "import-csv",
        &["address,operation,thread,time_ns\n", "0x", ",R,", "\"", "W", "7ffe", "#eof\n", "\r"],
        |bytes| imported(&ImportFormat::Csv(CsvColumns::default()), bytes),
    ),
    target("import-libcachesim", &["time,obj_id,obj_size,op\n", ",get\n", ",set\n", "delete"], |bytes| {
        imported(&ImportFormat::Csv(CsvColumns::libcachesim()), bytes)
    }),
    target("import-champsim", &[], |bytes| imported(&ImportFormat::ChampSim, bytes)),
    target("import-gem5", &["gem5", "system.cpu.data"], |bytes| imported(&ImportFormat::Gem5, bytes)),
    target("import-gem5-text", &["r,", "w,", "u,", ",64,"], |bytes| imported(&ImportFormat::Gem5Text, bytes)),
    target("import-execlog", &["0, 0xa12, 0xf8, \"", "\", load, 0x", ", store, 0x", ", RAM"], |bytes| {
        imported(&ImportFormat::Execlog, bytes)
    }),
    target("import-oracle", &[], |bytes| imported(&ImportFormat::OracleGeneral, bytes)),
    target("import-hook", &["TRRHOOK1"], |bytes| imported(&ImportFormat::Hook, bytes)),
    target(
        "configuration",
        &["[class.a]\n", "match = [", "{ exe = \"", "\"1GiB\"", "50%", "= \"", "\n[["],
        configuration,
    ),
    target("protocol", &["{\"terrace\":1,", "\"verb\":\"", "status", "explain", "\"pid\":", "[[[[", "null"], protocol),
    target("http", &["GET ", " HTTP/1.1\r\n", "Host: localhost\r\n", "/api/v1/heat?class=", "%00", "\r\n\r\n"], http),
    target("btf", &[".BTF", "task_struct", "mm", "\x7fELF"], btf),
    target("maps", &["-", " rw-p ", " rw-s ", "[heap]", "VmFlags: rd lo", "bind:0-3", "interleave", "\n"], maps),
    target("pagemap", &[], pagemap),
    target("perf-records", &[], perf_records),
    target("spe", &[], spe_records),
    target(
        "scenario",
        &["[[steps]]\n", "run = '''", "topology = \"", "kernels = [", "time_limit = \"", "= [\""],
        scenario,
    ),
    target("expression", &["length(", " == ", " and ", "max(", ".0.", "not ", ")))"], expression),
    target("machine", &["[[tiers]]\n", "value = ", "source = \"", "kind = \"memory\"", "1e308", "-1", "nan"], machine),
    target("tiers", &["fast=", "node:", "zram:1GiB", "slow=", ",", "0-3"], |bytes| {
        ended(parse_declared(&String::from_utf8_lossy(bytes)).map_err(|error| error.to_string()))
    }),
];

/// Where a result stands, without what is of one input alone: of an error its text without figures and what it quotes.
fn ended<T>(result: Result<T, impl ToString>) -> u64 {
    match result {
        Ok(_) => 1,
        Err(error) => {
            let text = error.to_string();
            let said = text.split(['`', '"', '\'']).step_by(2).flat_map(str::split_whitespace);
            let said =
                said.filter(|word| !word.bytes().any(|byte| byte.is_ascii_digit())).flat_map(str::bytes).take(64);
            said.fold(2, |sum, byte| mix(sum ^ u64::from(byte)))
        }
    }
}

/// The power of two below a count: ends differ by orders, not by one.
fn order(count: u64) -> u64 {
    u64::from(count.checked_ilog2().map_or(0, |order| order + 1))
}

/// How long one input is followed, where it can stand for a million million accesses: what fills memory does so sooner.
const FOLLOWED: Duration = Duration::from_millis(250);

/// An output that takes 64 MiB, and as much as comes in [`FOLLOWED`], and then says that it is full.
struct Sink {
    left: usize,
    end: Instant,
}

impl Sink {
    fn new() -> Sink {
        Sink { left: 64 << 20, end: Instant::now() + FOLLOWED }
    }
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.left = match self.left.checked_sub(bytes.len()) {
            Some(left) if Instant::now() < self.end => left,
            _ => return Err(io::ErrorKind::StorageFull.into()),
        };
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn trace(bytes: &[u8]) -> u64 {
    let mut end = match Reader::new(bytes) {
        Ok(mut reader) => {
            let mut batch = vec![Access::default(); 4096];
            let (mut accesses, mut events, until) = (0, 0, Instant::now() + FOLLOWED);
            let result = loop {
                match reader.fill(&mut batch) {
                    Ok(0) if reader.take_event().is_some() => events += 1,
                    Ok(0) => break Ok(()),
                    Ok(_) if Instant::now() > until => break Ok(()),
                    Ok(count) => accesses += count as u64,
                    Err(error) => break Err(error.to_string()),
                }
            };
            mix(ended(result) ^ order(accesses) << 8 ^ order(events) << 16)
        }
        Err(error) => return ended::<()>(Err(error.to_string())),
    };
    if let Ok((_, index)) = Index::read(&mut Cursor::new(bytes)) {
        end = mix(end ^ ended(index.map(&mut Cursor::new(bytes)).map_err(|error| error.to_string())));
    }
    // The same bytes, by the ways on which more is kept; a copy of what is large takes too long to be tried each time.
    if bytes.len() < 1 << 16 {
        let _ = info(bytes);
        let _ = cut(bytes, Sink::new(), &Cut { keep_whole_prefix: true, ..Cut::default() });
        let _ = Reader::new(bytes).map(|mut reader| export::csv(&mut reader, Sink::new()));
    }
    end
}

fn database(bytes: &[u8]) -> u64 {
    ended(Database::from_parquet(bytes.to_vec().into()).map_err(|error| error.to_string()))
}

fn fields() -> Vec<PerfField> {
    let names = "comm,pid,tid,cpu,time,period,event,addr,data_src,weight,ip,data_page_size";
    names.split(',').filter_map(|name| name.parse().ok()).collect()
}

fn imported(format: &ImportFormat, bytes: &[u8]) -> u64 {
    let skip_bad_lines = bytes.len().is_multiple_of(2);
    let options = ImportOptions { skip_bad_lines, most_unpacked: 4 << 20, ..ImportOptions::default() };
    let strict = import(format, bytes, Sink::new(), &options);
    let reached = |error: &TraceError| ended::<()>(Err(error.to_string()));
    strict.map_or_else(
        |error| reached(&error),
        |report| {
            let skipped = report.skipped.keys().flat_map(|reason| reason.bytes());
            let skipped = skipped.fold(0, |sum, byte| mix(sum ^ u64::from(byte)));
            mix(skipped ^ order(report.summary.accesses) ^ order(report.summary.events) << 8)
        },
    )
}

fn configuration(bytes: &[u8]) -> u64 {
    let source = Source { name: "fuzz.toml".to_owned(), text: String::from_utf8_lossy(bytes).into_owned() };
    ended(Config::of(&[source]).map_err(|errors| errors.to_string()))
}

fn protocol(bytes: &[u8]) -> u64 {
    match terrace_daemon::protocol::parse(bytes) {
        Ok(request) => {
            let verb = format!("{:?}", request.verb);
            mix(verb.bytes().take(12).fold(1, |sum, byte| mix(sum ^ u64::from(byte))))
        }
        Err(response) => {
            let line = response.line();
            assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1, "an answer is one line");
            ended::<()>(Err(response.error.unwrap_or_default()))
        }
    }
}

fn http(bytes: &[u8]) -> u64 {
    match terrace_daemon::http::status_of(bytes) {
        Ok(Some(code)) => u64::from(code),
        Ok(None) => 1,
        // No pair of sockets, for want of descriptors: nothing about the input.
        Err(_) => 0,
    }
}

fn btf(bytes: &[u8]) -> u64 {
    match Types::of_image(bytes) {
        Ok(types) => {
            let found = ["flags", "mm", "pgd"].map(|member| types.offset("task", member).is_some());
            found.iter().fold(2, |sum, found| sum << 1 | u64::from(*found))
        }
        Err(error) => ended(Err::<(), _>(error)),
    }
}

fn maps(bytes: &[u8]) -> u64 {
    let text = String::from_utf8_lossy(bytes);
    let ranges = parse_maps(&text, RangeOptions { files: true, shared: true });
    assert!(ranges.iter().all(|range| range.start < range.end));
    let locked = parse_locked(&text).len() as u64;
    let placed = parse_placed(&text, &BTreeSet::from([0, 1])).len() as u64;
    order(ranges.len() as u64) << 16 | order(locked) << 8 | order(placed)
}

fn pagemap(bytes: &[u8]) -> u64 {
    let looked = || -> io::Result<u64> {
        let mut file = tempfile::tempfile()?;
        file.write_all(bytes)?;
        let mut pages = Pagemap::of_file(file);
        let mut entries = vec![PagemapEntry::default(); bytes.len() / 8 + 3];
        pages.entries(Vpn(0), &mut entries)?;
        let count = pages.count(Vpn(0), Vpn(entries.len() as u64))?;
        Ok(format!("{count:?}").bytes().fold(1, |sum, byte| mix(sum ^ u64::from(byte))) % 4096)
    };
    looked().unwrap_or(0)
}

/// The records of a ring, cut anywhere: where it is cut makes no difference, and every step goes forward. The first words of an input
/// say which fields are sampled, and where the ring ends.
fn perf_records(bytes: &[u8]) -> u64 {
    let Some((head, bytes)) = bytes.split_first_chunk::<8>() else { return 0 };
    let word = u64::from_le_bytes(*head);
    if let Some(layout) = Layout::new(word) {
        assert_eq!(layout.sample_type(), word);
    }
    // All of these are of fixed size.
    let Some(layout) = Layout::new(word & u64::from(SAMPLE_FIELDS)) else { return 1 };
    let (first, second) = bytes.split_at((word >> 40) as usize % (bytes.len() + 1));
    let whole: Vec<_> = Records::new(layout, bytes, &[]).collect();
    let mut parts = Records::new(layout, first, second);
    assert_eq!(parts.by_ref().collect::<Vec<_>>(), whole);
    assert!(whole.len() <= bytes.len() / 8 + 1 && parts.offset() <= bytes.len());
    assert!(whole.iter().rev().skip(1).all(Result::is_ok), "only the last may be an error");
    if let Some(Err(error)) = whole.last() {
        assert!(error.offset < bytes.len());
    }
    order(whole.len() as u64) << 1 | u64::from(whole.last().is_some_and(Result::is_err))
}

fn spe_records(bytes: &[u8]) -> u64 {
    let mut records = spe::Records::new(bytes);
    let count = records.by_ref().count();
    assert!(count <= bytes.len());
    assert!(records.next().is_none(), "what has ended stays ended");
    order(count as u64) << 1 | u64::from(records.truncated())
}

fn scenario(bytes: &[u8]) -> u64 {
    ended(Scenario::parse("fuzz", &String::from_utf8_lossy(bytes)))
}

fn expression(bytes: &[u8]) -> u64 {
    ended(evaluate(&String::from_utf8_lossy(bytes), &std::collections::BTreeMap::new()))
}

fn machine(bytes: &[u8]) -> u64 {
    ended(Machine::from_toml(&String::from_utf8_lossy(bytes)).map_err(|error| error.to_string()))
}
