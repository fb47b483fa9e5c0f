//! Importers on the files of other tools in `samples/`, each exported and imported again; cut-off and empty recordings.
#![allow(clippy::unwrap_used)] // These are tests.

mod common;

use common::{accesses, events};
use terrace_trace::import::{
    Column, CsvColumns, DamonOptions, ImportFormat, ImportOptions, ImportReport, PerfField, import,
};
use terrace_trace::{Access, Change, Reader, TraceError, export};

macro_rules! sample {
    ($name:literal) => {
        include_bytes!(concat!("samples/", $name)).as_slice()
    };
}

fn bring(format: &ImportFormat, input: &[u8]) -> Result<(Vec<u8>, ImportReport), TraceError> {
    let mut bytes = Vec::new();
    let report = import(format, input, &mut bytes, &ImportOptions::default())?;
    Ok((bytes, report))
}

fn perf() -> ImportFormat {
    let fields = "comm,pid,tid,time,period,event,addr";
    ImportFormat::PerfScript(fields.split(',').map(|field| field.parse().unwrap()).collect::<Vec<PerfField>>())
}

fn by_place() -> ImportFormat {
    ImportFormat::Csv(CsvColumns {
        names: false,
        address: Column::Place(1),
        time: Some(Column::Place(0)),
        operation: None,
        ..CsvColumns::libcachesim()
    })
}

/// Every sample that holds accesses.
fn samples() -> Vec<(&'static str, ImportFormat, &'static [u8])> {
    vec![
        ("lackey", ImportFormat::Lackey, sample!("lackey.txt")),
        ("perf-script", perf(), sample!("perf-script.txt")),
        ("libcachesim-csv", ImportFormat::Csv(CsvColumns::libcachesim()), sample!("libcachesim.csv")),
        ("libcachesim-csv by place", by_place(), sample!("oracle-general.txt")),
        ("oracle-general", ImportFormat::OracleGeneral, sample!("oracle-general.bin")),
        ("drmemtrace", ImportFormat::Drmemtrace, sample!("drmemtrace.bin")),
        ("drmemtrace-view", ImportFormat::DrmemtraceView, sample!("drmemtrace-view.txt")),
        ("gem5", ImportFormat::Gem5, sample!("gem5.trc")),
        ("gem5-text", ImportFormat::Gem5Text, sample!("gem5.txt")),
        ("champsim", ImportFormat::ChampSim, sample!("champsim.trace")),
    ]
}

fn sample(name: &str) -> (Vec<u8>, ImportReport) {
    let (_, format, bytes) = samples().into_iter().find(|(found, ..)| *found == name).unwrap();
    bring(&format, bytes).unwrap()
}

/// Address of the line (without map: of the object), and whether it is written.
fn places(bytes: &[u8]) -> Vec<(u64, bool)> {
    let mut reader = Reader::new(bytes).unwrap();
    let mut batch = [Access::default(); 100];
    let mut places = Vec::new();
    loop {
        let count = reader.fill(&mut batch).unwrap();
        for access in &batch[..count] {
            let page = reader.map().vpn(access.page()).expect("an imported page has a number").0;
            places.push(((page << 12) + u64::from(access.line()) * 64, access.is_write()));
        }
        if count == 0 && reader.take_event().is_none() {
            return places;
        }
    }
}

fn pages(bytes: &[u8]) -> Vec<u64> {
    places(bytes).iter().map(|(address, _)| address >> 12).collect()
}

fn nanos(bytes: &[u8]) -> Vec<u64> {
    accesses(bytes).iter().map(|access| access.time().as_nanos()).collect()
}

#[test]
fn what_valgrind_recorded_of_walk_is_what_walk_does() {
    let (bytes, report) = sample("lackey");
    let room: Vec<_> = places(&bytes);
    let first = room[0].0 >> 12 << 12;
    let mut expected: Vec<_> = (0..32).step_by(2).map(|page| (first + page * 4096 + page * 64 % 4096, true)).collect();
    for page in (0..32).step_by(2) {
        let (at, start) = (first + page * 4096 + page * 64, first + page * 4096);
        // A byte that is changed in place is one modify, or a load and a store.
        expected.extend([(at, false), (start, false), (start, true)]);
    }
    assert_eq!(room, expected);
    assert!(report.skipped["instruction fetch"] > 300);
}

#[test]
fn what_perf_recorded_of_walk_is_its_first_touches() {
    let (bytes, report) = sample("perf-script");
    assert_eq!(report.records, 17);
    let (perf, lackey) = (places(&bytes), sample("lackey").0);
    // The first fault is that of the code.
    let data: Vec<_> = perf[1..].iter().map(|(address, _)| *address).collect();
    assert_eq!(data, places(&lackey)[..16].iter().map(|(address, _)| *address).collect::<Vec<_>>());
    assert!(nanos(&bytes).is_sorted());
}

#[test]
fn what_damon_reported_are_its_regions() {
    let (bytes, report) =
        bring(&ImportFormat::Damon(DamonOptions::default()), sample!("damon-perf-script.txt")).unwrap();
    assert_eq!((report.records, report.summary.accesses), (40, 0));
    let pages: u64 = events(&bytes)
        .iter()
        .map(|event| match event.change {
            Change::Region { pages, .. } => u64::from(pages.count),
            other => panic!("{other:?} is no region"),
        })
        .sum();
    let text = String::from_utf8(sample!("damon-perf-script.txt").to_vec()).unwrap();
    let bytes_of = |line: &str| {
        let range = line.split_whitespace().find(|word| word.ends_with(':') && word.contains('-')).unwrap();
        let (start, end) = range.trim_end_matches(':').split_once('-').unwrap();
        end.parse::<u64>().unwrap() - start.parse::<u64>().unwrap()
    };
    assert_eq!(pages * 4096, text.lines().map(bytes_of).sum::<u64>());
}

#[test]
fn what_libcachesim_wrote_is_what_it_read() {
    let (csv, report) = sample("libcachesim-csv");
    assert_eq!((report.summary.accesses, report.summary.page_ids), (64, 7));
    let writes = String::from_utf8(sample!("libcachesim.csv").to_vec()).unwrap().matches(",set\n").count() as u64;
    assert_eq!(report.summary.writes, writes);
    for name in ["oracle-general", "libcachesim-csv by place"] {
        let (other, _) = sample(name);
        assert_eq!(pages(&other), pages(&csv), "{name}");
        assert_eq!(nanos(&other), nanos(&csv), "{name}");
    }
}

#[test]
fn both_forms_of_a_recording_hold_the_same() {
    for (one, other, count) in [("drmemtrace", "drmemtrace-view", 40), ("gem5", "gem5-text", 40)] {
        let ((one, report), (other, _)) = (sample(one), sample(other));
        assert_eq!(report.records, count);
        assert_eq!(places(&one), places(&other));
        assert_eq!(nanos(&one), nanos(&other));
        let threads = |bytes: &[u8]| accesses(bytes).iter().map(|access| access.thread().0).collect::<Vec<_>>();
        assert_eq!(threads(&one), threads(&other));
    }
    let (gem5, report) = sample("gem5");
    assert_eq!(report.skipped["command other than ReadReq and WriteReq"], 8);
    assert_eq!(places(&gem5)[..2], [(0x8000_0000, false), (0x8000_d040, false)]);
    // 77000 ps is time 0; packets are 500 ps apart, and the trace's unit is a microsecond.
    assert_eq!(nanos(&gem5)[39], 0);
    let options = ImportOptions { time_resolution_nanos: 1, ..ImportOptions::default() };
    let mut fine = Vec::new();
    import(&ImportFormat::Gem5, sample!("gem5.trc"), &mut fine, &options).unwrap();
    assert_eq!(nanos(&fine)[39], 23);
}

#[test]
fn a_champsim_instruction_loads_then_stores() {
    let (bytes, report) = sample("champsim");
    let mut expected = Vec::new();
    let mut without = 0;
    for index in 0..40_u64 {
        let before = expected.len();
        let line = |address: u64| address & !63;
        if index % 3 == 0 {
            expected.push((line(0x7ffe_0000_1000 + index * 4104), false));
        }
        if index % 5 == 0 {
            expected.push((line(0x5555_0000_0000 + index * 64), false));
        }
        if index % 4 == 1 {
            expected.push((line(0x7ffe_0000_1000 + index * 8192), true));
        }
        without += u64::from(expected.len() == before);
    }
    assert_eq!(places(&bytes), expected);
    assert_eq!(report.skipped["instruction without data"], without);
}

/// Writes a trace, given as its bytes, in a format, with what reads that again.
type Export = fn(&[u8]) -> Vec<u8>;

fn exports() -> [(&'static str, Export, ImportFormat); 6] {
    fn into(bytes: &[u8], write: impl FnOnce(&mut Reader<&[u8]>, &mut Vec<u8>)) -> Vec<u8> {
        let mut output = Vec::new();
        write(&mut Reader::new(bytes).unwrap(), &mut output);
        output
    }
    [
        (
            "lackey",
            |bytes| into(bytes, |reader, output| assert!(export::lackey(reader, output).is_ok())),
            ImportFormat::Lackey,
        ),
        (
            "csv",
            |bytes| into(bytes, |reader, output| assert!(export::csv(reader, output).is_ok())),
            ImportFormat::Csv(CsvColumns::default()),
        ),
        (
            "champsim",
            |bytes| into(bytes, |reader, output| assert!(export::champsim(reader, output).is_ok())),
            ImportFormat::ChampSim,
        ),
        (
            "gem5",
            |bytes| into(bytes, |reader, output| assert!(export::gem5(reader, output).is_ok())),
            ImportFormat::Gem5,
        ),
        (
            "libcachesim-csv",
            |bytes| into(bytes, |reader, output| assert!(export::libcachesim_csv(reader, output).is_ok())),
            ImportFormat::Csv(CsvColumns::libcachesim()),
        ),
        (
            "oracle-general",
            |bytes| into(bytes, |reader, output| assert!(export::oracle_general(reader, output, true).is_ok())),
            ImportFormat::OracleGeneral,
        ),
    ]
}

#[test]
fn every_sample_comes_back_from_every_export() {
    for (name, _, _) in samples() {
        let (trace, _) = sample(name);
        for (form, write, read) in exports() {
            let (again, _) = bring(&read, &write(&trace)).unwrap_or_else(|error| panic!("{name}, {form}: {error}"));
            match form {
                // Reads only.
                "oracle-general" => assert_eq!(pages(&again), pages(&trace), "{name}, {form}"),
                "libcachesim-csv" => {
                    let page =
                        |bytes: &[u8]| places(bytes).iter().map(|(at, write)| (at >> 12, *write)).collect::<Vec<_>>();
                    assert_eq!(page(&again), page(&trace), "{name}, {form}");
                }
                _ => assert_eq!(places(&again), places(&trace), "{name}, {form}"),
            }
            if form == "csv" || form == "gem5" {
                let first = nanos(&trace)[0];
                let since: Vec<_> = nanos(&trace).iter().map(|time| time - first).collect();
                assert_eq!(nanos(&again), since, "{name}, {form}");
            }
        }
    }
}

#[test]
fn a_binary_recording_that_is_cut_off_says_where() {
    for (format, bytes, offset) in [
        (ImportFormat::ChampSim, sample!("champsim.trace"), 39 * 64),
        (ImportFormat::OracleGeneral, sample!("oracle-general.bin"), 63 * 24),
        (ImportFormat::Drmemtrace, sample!("drmemtrace.bin"), 91 * 12),
    ] {
        let error = bring(&format, &bytes[..bytes.len() - 1]).unwrap_err();
        assert!(error.to_string().contains("cut off"), "{error}");
        assert!(matches!(error, TraceError::Record { offset: at, .. } if at == offset), "{error}");
    }
    let bytes = sample!("gem5.trc");
    for end in [bytes.len() - 1, 5, 4] {
        let error = bring(&ImportFormat::Gem5, &bytes[..end]).unwrap_err().to_string();
        assert!(error.contains("cut off") || error.contains("ends before the header"), "{error}");
    }
    let options = ImportOptions { keep_whole_prefix: true, ..ImportOptions::default() };
    let report = import(&ImportFormat::Gem5, &bytes[..bytes.len() - 1], Vec::new(), &options).unwrap();
    assert_eq!(report.records, 39);
    assert!(report.damage.is_some());
}

#[test]
fn a_text_recording_that_is_cut_off_names_its_last_line() {
    for (name, format, bytes) in samples().into_iter().filter(|(_, _, bytes)| bytes.is_ascii()) {
        // Somewhere in the middle of a line of an access.
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        let lines: Vec<_> = text.lines().collect();
        let (at, line) = match name {
            "lackey" => lines.iter().enumerate().find(|(_, line)| line.starts_with(" S")).unwrap(),
            "drmemtrace-view" => lines.iter().enumerate().rfind(|(_, line)| line.contains("write")).unwrap(),
            _ => (lines.len() - 1, lines.last().unwrap()),
        };
        let end = match name {
            "libcachesim-csv" | "libcachesim-csv by place" => line.find(',').unwrap(),
            "drmemtrace-view" => line.find("0x").unwrap() + 2,
            // A line without its last field is a line without flags.
            "gem5-text" => line.match_indices(',').nth(3).unwrap().0,
            _ => line.rfind([',', ' ']).unwrap(),
        };
        let cut = [&lines[..at].join("\n"), "\n", &line[..end]].concat();
        match bring(&format, cut.as_bytes()) {
            Err(TraceError::Line { line, .. }) => assert_eq!(line, at as u64 + 1, "{name}"),
            other => panic!("{name}: {:?}", other.map(|(_, report)| report)),
        }
    }
}

#[test]
fn a_recording_of_no_accesses_says_so() {
    let header = &sample!("gem5.trc")[..sample!("gem5.trc").len() - 1];
    let length = usize::from(header[4]) + 5;
    for (format, bytes) in [
        (ImportFormat::Lackey, &b"==1== Lackey, an example Valgrind tool\nI  00401000,3\n"[..]),
        (ImportFormat::ChampSim, &[0; 128]),
        (ImportFormat::ChampSim, b""),
        (ImportFormat::Gem5, &header[..length]),
        (ImportFormat::Gem5Text, b"1,u,4096,64,0,77000\n"),
        (ImportFormat::OracleGeneral, b""),
        (ImportFormat::Drmemtrace, b""),
        (ImportFormat::DrmemtraceView, b"Output format:\n"),
        (ImportFormat::Damon(DamonOptions::default()), b"\n"),
        (ImportFormat::Csv(CsvColumns::libcachesim()), b"time,obj_id,obj_size,op\n5,1,4096,delete\n"),
        (perf(), b"# nothing\n"),
    ] {
        let error = bring(&format, bytes).unwrap_err();
        assert!(matches!(error, TraceError::NoAccesses { .. }), "{format:?}: {error}");
    }
    let error = bring(&ImportFormat::Lackey, b"I  00401000,3\n").unwrap_err().to_string();
    assert!(error.starts_with("the recording holds no access, 1 x instruction fetch;"), "{error}");
}

#[test]
fn what_is_not_the_format_is_refused_at_its_place() {
    for (format, bytes, reason) in [
        (ImportFormat::ChampSim, &b"\xfd7zXZ\0 and so on"[..], "xz -dc"),
        (ImportFormat::ChampSim, &[9; 64], "is_branch"),
        (ImportFormat::Gem5, b"\x1f\x8b\x08\0", "gzip data is cut off or damaged"),
        (ImportFormat::Gem5, b"trace", "does not begin with \"gem5\""),
        (ImportFormat::Gem5, b"gem5\x02\x18\0", "no tick frequency"),
        (ImportFormat::Gem5, b"gem5\x02\x18\x01\x02\x08\x01", "lacks its tick, command, address or size"),
        (ImportFormat::Gem5, b"gem5\x02\x18\x01\x02\x0f\x01", "no protobuf"),
        (ImportFormat::Gem5, b"gem5\xff\xff\xff\xff\x0f", "more than 1 MiB"),
        (ImportFormat::Gem5Text, b"r,4096,99999,77000\n", "larger than 65536"),
        (ImportFormat::Gem5Text, b"4096 r\n", "neither the first nor the second field"),
        (ImportFormat::Csv(CsvColumns::libcachesim()), b"time,obj,op\n", "no column is called \"obj_id\""),
    ] {
        let error = bring(&format, bytes).unwrap_err().to_string();
        assert!(error.contains(reason), "{format:?}: {error}");
    }
}
