//! Importers on small recordings, and exporters whose output is imported again.
#![allow(clippy::unwrap_used)] // These are tests.

mod common;

use common::{Item, accesses, events, read};
use proptest::prelude::*;
use terrace_core::units::{PageId, Time, Vpn};
use terrace_trace::export::{self, NEXT_NOT_GIVEN, NO_NEXT};
use terrace_trace::import::{
    Column, CsvColumns, DamonOptions, ImportFormat, ImportOptions, ImportReport, PerfField, import,
};
use terrace_trace::tools::{PageSizes, info};
use terrace_trace::{
    Access, Change, Extent, Header, Index, LatencyUnit, MapPiece, NumberBy, Pages, ProcessId, Provenance, Reader,
    ThreadId, TraceError, Writer,
};

fn bring(format: &ImportFormat, input: &[u8]) -> Result<(Vec<u8>, ImportReport), TraceError> {
    bring_with(format, input, &ImportOptions::default())
}

fn bring_with(
    format: &ImportFormat,
    input: &[u8],
    options: &ImportOptions,
) -> Result<(Vec<u8>, ImportReport), TraceError> {
    let mut bytes = Vec::new();
    let report = import(format, input, &mut bytes, options)?;
    Ok((bytes, report))
}

/// What was accessed, by address: (address of the line, write).
fn places(bytes: &[u8]) -> Vec<(u64, bool)> {
    let mut reader = Reader::new(bytes).unwrap();
    let mut batch = [Access::default(); 100];
    let mut places = Vec::new();
    loop {
        let count = reader.fill(&mut batch).unwrap();
        for access in &batch[..count] {
            let page = reader.map().address(access.page()).expect("an imported page has an address");
            places.push((page + u64::from(access.line()) * 64, access.is_write()));
        }
        if count == 0 && reader.take_event().is_none() {
            return places;
        }
    }
}

const LACKEY: &[u8] = b"==123== Lackey, an example Valgrind tool\n==123== Command: ls\nI  04016b80,3\n L 1ffefff7e0,8\n S 1ffefff7d8,8\n M 04222cac,4\n L 1ffefff7bc,8\n==123== \n";

#[test]
fn lackey_is_read() {
    let (bytes, report) = bring(&ImportFormat::Lackey, LACKEY).unwrap();
    let expected = [
        (0x1f_feff_f7c0, false),
        (0x1f_feff_f7c0, true),
        (0x0422_2c80, false),
        (0x0422_2c80, true),
        // Eight bytes at ...7bc lie on two lines.
        (0x1f_feff_f780, false),
        (0x1f_feff_f7c0, false),
    ];
    assert_eq!(places(&bytes), expected);
    assert_eq!((report.records, report.skipped["instruction fetch"]), (5, 1));
    assert_eq!(report.summary.page_ids, 512 + 0x22 + 1, "the second block is numbered behind the first");
    let header = Reader::new(bytes.as_slice()).unwrap().header().clone();
    assert_eq!((header.provenance, header.time_resolution_nanos), (Provenance::Exact, None));
}

#[test]
fn a_bad_line_is_named_and_can_be_skipped() {
    let text = b" L 1000,8\n L xyz,8\n S 2000,8\n";
    let error = bring(&ImportFormat::Lackey, text).unwrap_err();
    let expected = "lackey input, line 2: the address is no hexadecimal number: \" L xyz,8\"; \
                    --skip-bad-lines leaves such lines out and counts them";
    assert_eq!(error.to_string(), expected);
    let skipping = ImportOptions { skip_bad_lines: true, ..ImportOptions::default() };
    let (bytes, report) = bring_with(&ImportFormat::Lackey, text, &skipping).unwrap();
    assert_eq!(places(&bytes), [(0x1000, false), (0x2000, true)]);
    assert_eq!(report.skipped["line not understood"], 1);
    let keeping = ImportOptions { keep_whole_prefix: true, ..ImportOptions::default() };
    let (bytes, report) = bring_with(&ImportFormat::Lackey, text, &keeping).unwrap();
    assert_eq!(places(&bytes), [(0x1000, false)]);
    assert!(matches!(report.damage, Some(TraceError::Line { line: 2, .. })));
}

#[test]
fn without_lines_an_access_counts_once_for_each_page() {
    let options = ImportOptions { lines: false, ..ImportOptions::default() };
    let (bytes, _) = bring_with(&ImportFormat::Lackey, b" L 00000fbc,8\n S 00000ffc,8\n", &options).unwrap();
    assert_eq!(places(&bytes), [(0, false), (0, true), (0x1000, true)]);
}

fn drmemtrace(records: &[(u16, u16, u64)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (kind, size, value) in records {
        bytes.extend_from_slice(&kind.to_le_bytes());
        bytes.extend_from_slice(&size.to_le_bytes());
        bytes.extend_from_slice(&value.to_le_bytes());
    }
    bytes
}

#[test]
fn drmemtrace_records_are_read() {
    let records = [
        (25, 0, 7),
        (22, 0, 100),
        (24, 0, 99),
        (28, 2, 5_000_000),
        (10, 4, 0x40_1000),
        (0, 8, 0x7f00_0010),
        (28, 2, 5_000_250),
        (22, 0, 101),
        (1, 4, 0x7f00_1000),
        (5, 1, 0x7f00_1000),
        (23, 0, 101),
        (26, 0, 0),
    ];
    let bytes = drmemtrace(&records);
    let (trace, report) = bring(&ImportFormat::Drmemtrace, &bytes).unwrap();
    let got = accesses(&trace);
    assert_eq!(places(&trace), [(0x7f00_0000, false), (0x7f00_1000, true)]);
    let when: Vec<_> = got.iter().map(|access| (access.thread(), access.time().as_nanos())).collect();
    assert_eq!(when, [(ThreadId(0), 0), (ThreadId(1), 250_000)]);
    assert_eq!((report.skipped["instruction fetch"], report.skipped["prefetch"]), (1, 1));
    let error = bring(&ImportFormat::Drmemtrace, &bytes[..40]).unwrap_err();
    assert!(matches!(error, TraceError::Record { offset: 36, .. }), "{error}");
    let error = bring(&ImportFormat::Drmemtrace, &bytes[12..]).unwrap_err();
    assert!(error.to_string().contains("header record"), "{error}");
}

#[test]
fn drmemtrace_view_text_of_three_versions_is_read() {
    let text = b"Output format:\n<record#>: T<tid> <record details>\n------------------\n\
        1: T17 <marker: version 4>\n\
        2: T17 <marker: timestamp 13309323446399692>\n\
        3: T17 ifetch       3 byte(s) @ 0x0000000000402680 f3 48 a5             rep movsq\n\
        4: T17 read         8 byte(s) @ 0x00007f8881e37c40 by PC 0x0000000000402680\n\
        T18     write 4 byte(s) @ 0x7f8881e38080\n\
        69          49:     3854659 <marker: timestamp 13309323446399695>\n\
        70          49:     3854659 read      2 byte(s) @ 0x7f8881e39000 by PC 0x1\n\
        71          49:       W0.T18 write      2 byte(s) @ 0x7f8881e39000 by PC 0x1\n";
    let (bytes, _) = bring(&ImportFormat::DrmemtraceView, text).unwrap();
    let base = 0x7f88_81e3_0000;
    let expected = [(base + 0x7c40, false), (base + 0x8080, true), (base + 0x9000, false), (base + 0x9000, true)];
    assert_eq!(places(&bytes), expected);
    let when: Vec<_> = accesses(&bytes).iter().map(|access| (access.thread().0, access.time().as_nanos())).collect();
    assert_eq!(when, [(0, 0), (1, 0), (2, 3000), (1, 3000)]);
}

#[test]
fn perf_samples_keep_period_weight_and_page_size() {
    let text = b"# comment\n\
        my prog  1234/1235  [003]  5678.000001:       1009 cpu/mem-loads,ldlat=30/P:     7f1200000040         68100142 |OP LOAD|LVL L3 hit|SNP None|TLB L1 or L2 hit|LCK No|BLK  N/A              321     55d0000 2M\n\
        my prog  1234/1236  [001]  5678.000011:       1009 cpu/mem-stores/P:     7f1200001000          5080144 |OP STORE|LVL L1 hit|SNP N/A|TLB N/A|LCK No                0     55d0001 4K\n\
        my prog  1234/1235  [003]  5678.000021:       2003 cpu/mem-loads,ldlat=30/P:     0         68100142 |OP LOAD|LVL L3 hit|SNP None|TLB N/A|LCK No|BLK  N/A              300     55d0000 N/A\n\
        my prog  1234/1235  [003]  5678.000031:       2003 cpu/mem-loads,ldlat=30/P:  ffffffff81000000         68100142 |OP LOAD|LVL L3 hit|SNP None|TLB N/A|LCK No|BLK  N/A              300     55d0000 4K\n";
    let fields = "comm,pid,tid,cpu,time,period,event,addr,data_src,weight,ip,data_page_size";
    let fields: Vec<PerfField> = fields.split(',').map(|field| field.parse().unwrap()).collect();
    let (bytes, report) = bring(&ImportFormat::PerfScript(fields), text).unwrap();
    assert_eq!(places(&bytes), [(0x7f12_0000_0040, false), (0x7f12_0000_1000, true)]);
    let got = accesses(&bytes);
    let parts: Vec<_> = got.iter().map(|a| (a.latency(), a.thread().0, a.time().as_nanos())).collect();
    assert_eq!(parts, [(321, 0, 0), (0, 1, 10_000)]);
    let changes: Vec<_> = events(&bytes).iter().map(|event| event.change).collect();
    let huge = Change::Huge(Pages { first: PageId(0), count: 512 });
    assert_eq!(changes, [Change::Period(1009), huge, Change::Period(2003)]);
    assert_eq!((report.skipped["sample without address"], report.skipped["address of the kernel"]), (1, 1));
    let header = Reader::new(bytes.as_slice()).unwrap().header().clone();
    assert_eq!((header.provenance, header.latency), (Provenance::Sampled { period: 0 }, Some(LatencyUnit::Cycles)));
}

#[test]
fn perf_without_data_source_tells_stores_by_the_event() {
    let fields = vec![PerfField::Tid, PerfField::Time, PerfField::Event, PerfField::Address];
    let text = b"  77 1.000000: mem_inst_retired.all_stores:  1040\n  77 1.5: ibs_op//: 2000\n";
    let options = ImportOptions { period: Some(4000), ..ImportOptions::default() };
    let (bytes, _) = bring_with(&ImportFormat::PerfScript(fields), text, &options).unwrap();
    assert_eq!(places(&bytes), [(0x1040, true), (0x2000, false)]);
    let header = Reader::new(bytes.as_slice()).unwrap().header().clone();
    assert_eq!(header.provenance, Provenance::Sampled { period: 4000 });
    let error = bring(&ImportFormat::PerfScript(vec![PerfField::Time]), text).unwrap_err();
    assert!(error.to_string().contains("event is missing"), "{error}");
}

#[test]
fn damon_tracepoints_become_regions() {
    let text = b"kdamond.0  4452 [000] 82877.315633: damon:damon_aggregated: target_id=0 nr_regions=2 4096-12288: 5 3\n\
        kdamond.0  4452 [000] 82877.315640: damon:damon_aggregated: target_id=0 nr_regions=2 12288-4194304: 0 9\n\
        kdamond.0  4452 [000] 82877.315650: damon:damon_aggregated: target_id=1 nr_regions=1 0-4096: 1\n\
        kdamond.0  4452 [000] 82877.415633: damon:damos_before_apply: ctx_idx=0 scheme_idx=0 target_idx=0 nr_regions=1 4096-8192: 20\n\
        kdamond.0  4452 [000] 82877.415650: damon:damon_monitor_intervals_tune: sample_us=5000\n";
    let damon = DamonOptions { sample_nanos: 5_000_000, aggregation_nanos: 100_000_000, target: None };
    let (bytes, report) = bring(&ImportFormat::Damon(damon), text).unwrap();
    let region =
        |first, count, accesses, age| Change::Region { pages: Pages { first: PageId(first), count }, accesses, age };
    let got: Vec<_> = events(&bytes).iter().map(|event| (event.time.as_nanos(), event.change)).collect();
    let expected = [(0, region(1, 2, 5, 3)), (7000, region(3, 1021, 0, 9)), (100_000_000, region(1, 1, 20, 0))];
    assert_eq!(got, expected);
    assert_eq!((report.skipped["region of another target"], report.skipped["other tracepoint"]), (1, 1));
    let header = Reader::new(bytes.as_slice()).unwrap().header().clone();
    let provenance = Provenance::Regional { sample_nanos: 5_000_000, aggregation_nanos: 100_000_000 };
    assert_eq!(header.provenance, provenance);
}

#[test]
fn damon_raw_text_becomes_regions() {
    let text = b"base_time_absolute: 8 m 59.809 s\n\nmonitoring_start:                0 ns\n\
        monitoring_end:            104.599 ms\nmonitoring_duration:       104.599 ms\n\
        target_id: 18446623438842320000\nnr_regions: 2\n\
        563ebaa00000-563ebaa02000(   8.000 KiB):        1\n\
        7f938d7e1000-7f938d7e3000(   8.000 KiB):        0\n\n\
        monitoring_start:          104.599 ms\nmonitoring_end:            208.590 ms\n\
        target_id: 18446623438842320000\nnr_regions: 1\n563ebaa00000-563ebaa01000(   4.000 KiB):        20\n";
    let (bytes, report) = bring(&ImportFormat::Damon(DamonOptions::default()), text).unwrap();
    assert_eq!(report.records, 3);
    let got: Vec<_> = events(&bytes).iter().map(|event| (event.time.as_nanos(), event.change)).collect();
    let region =
        |first, count, accesses| Change::Region { pages: Pages { first: PageId(first), count }, accesses, age: 0 };
    assert_eq!(got, [(0, region(0, 2, 1)), (0, region(993, 2, 0)), (103_991_000, region(0, 1, 20))]);
    // What is no region, perf or the program said; a region without the beginning of its snapshot is damage.
    let error = bring(&ImportFormat::Damon(DamonOptions::default()), b"hello\n").unwrap_err();
    assert!(matches!(error, TraceError::NoAccesses { .. }), "{error}");
    let orphan = b"hello\n7f938d7e1000-7f938d7e3000(   8.000 KiB):        0\n";
    let error = bring(&ImportFormat::Damon(DamonOptions::default()), orphan).unwrap_err();
    assert!(matches!(error, TraceError::Line { line: 2, .. }), "{error}");
}

#[test]
fn csv_columns_go_where_they_are_told() {
    let named = |name: &str| Some(name.parse::<Column>().unwrap());
    let columns = CsvColumns {
        address: "addr".parse().unwrap(),
        operation: named("rw"),
        time: named("sec"),
        time_unit_nanos: 1_000_000_000,
        thread: None,
        latency: named("lat"),
        ..CsvColumns::default()
    };
    let text = b"sec,rw,addr,lat\n1.5,R,0x1000,90\n1.500002,\"W\",8256,70000\n";
    let (bytes, _) = bring(&ImportFormat::Csv(columns.clone()), text).unwrap();
    assert_eq!(places(&bytes), [(0x1000, false), (0x2040, true)]);
    let parts: Vec<_> = accesses(&bytes).iter().map(|a| (a.time().as_nanos(), a.latency())).collect();
    assert_eq!(parts, [(0, 90), (2000, u16::MAX)]);
    let error = bring(&ImportFormat::Csv(columns.clone()), b"time,rw,addr,lat\n").unwrap_err();
    assert!(error.to_string().contains("no column is called \"sec\""), "{error}");
    let error = bring(&ImportFormat::Csv(columns), b"sec,rw,addr,lat\n1,X,0,0\n").unwrap_err();
    assert!(matches!(error, TraceError::Line { line: 2, .. }), "{error}");
    // The form of cori's Pin traces: blanks between, the address first, nothing else known.
    let columns = CsvColumns {
        separator: b' ',
        names: false,
        address: Column::Place(0),
        operation: None,
        thread: None,
        time: None,
        ..CsvColumns::default()
    };
    let (bytes, _) = bring(&ImportFormat::Csv(columns), b"0x5000 1 2\n0x6000 3 4\n").unwrap();
    assert_eq!(places(&bytes), [(0x5000, false), (0x6000, false)]);
}

fn oracle(records: &[(u32, u64, i64)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (seconds, object, next) in records {
        bytes.extend_from_slice(&seconds.to_le_bytes());
        bytes.extend_from_slice(&object.to_le_bytes());
        bytes.extend_from_slice(&4096_u32.to_le_bytes());
        bytes.extend_from_slice(&next.to_le_bytes());
    }
    bytes
}

#[test]
fn oracle_general_goes_in_and_out_unchanged() {
    // Object numbers are any 64 bits; -1 and such are hashes, not errors.
    let input = oracle(&[(5, 7, 2), (6, u64::MAX, 3), (7, 7, NO_NEXT), (9, u64::MAX, NO_NEXT), (9, 1 << 60, NO_NEXT)]);
    let (bytes, report) = bring(&ImportFormat::OracleGeneral, &input).unwrap();
    assert_eq!(report.summary.page_ids, 3);
    let mut output = Vec::new();
    export::oracle_general(&mut Reader::new(bytes.as_slice()).unwrap(), &mut output, true).unwrap();
    let shifted = [(0, 7, 2), (1, u64::MAX, 3), (2, 7, NO_NEXT), (4, u64::MAX, NO_NEXT), (4, 1 << 60, NO_NEXT)];
    assert_eq!(output, oracle(&shifted));
    output.clear();
    export::oracle_general(&mut Reader::new(bytes.as_slice()).unwrap(), &mut output, false).unwrap();
    assert_eq!(output, oracle(&shifted.map(|(seconds, object, _)| (seconds, object, NEXT_NOT_GIVEN))));
    let error = bring(&ImportFormat::OracleGeneral, &input[..30]).unwrap_err();
    assert!(matches!(error, TraceError::Record { offset: 24, .. }), "{error}");
}

/// A trace as an importer would make it: blocks in order of first touch.
fn imported(touches: &[(u32, u8, bool, u16, u64)]) -> Vec<u8> {
    let header = Header { time_resolution_nanos: Some(1000), ..Header::default() };
    let mut writer = Writer::new(Vec::new(), header).unwrap();
    writer
        .map(&MapPiece::Extent(Extent {
            first: PageId(0),
            vpn: Vpn(0x7f_0000_0000),
            count: 4096,
            process: ProcessId(0),
        }))
        .unwrap();
    for (page, line, write, thread, micros) in touches {
        let access = if *write { Access::write(PageId(*page)) } else { Access::read(PageId(*page)) };
        writer.access(access.on_line(*line).by(ThreadId(*thread)).at(Time::from_nanos(micros * 1000))).unwrap();
    }
    writer.finish().unwrap().0
}

proptest! {
    #[test]
    fn exports_are_imported_as_the_same_accesses(
        touches in prop::collection::vec((0_u32..4096, 0_u8..64, any::<bool>(), 0_u16..4, 0_u64..1 << 30), 1..200)
    ) {
        let trace = imported(&touches);
        let mut text = Vec::new();
        export::lackey(&mut Reader::new(trace.as_slice()).unwrap(), &mut text).unwrap();
        let (again, _) = bring(&ImportFormat::Lackey, &text).unwrap();
        prop_assert_eq!(places(&again), places(&trace));

        let mut text = Vec::new();
        export::csv(&mut Reader::new(trace.as_slice()).unwrap(), &mut text).unwrap();
        let (again, _) = bring(&ImportFormat::Csv(CsvColumns::default()), &text).unwrap();
        prop_assert_eq!(places(&again), places(&trace));
        let first = touches.first().map_or(0, |touch| touch.4 * 1000);
        let times = |bytes: &[u8]| accesses(bytes).iter().map(|a| a.time().as_nanos()).collect::<Vec<_>>();
        let since: Vec<u64> = times(&trace).iter().map(|time| time.saturating_sub(first)).collect();
        prop_assert_eq!(times(&again), since);

        let mut records = Vec::new();
        export::oracle_general(&mut Reader::new(trace.as_slice()).unwrap(), &mut records, true).unwrap();
        let (again, _) = bring(&ImportFormat::OracleGeneral, &records).unwrap();
        let pages = |bytes: &[u8]| places(bytes).iter().map(|(address, _)| address >> 12).collect::<Vec<_>>();
        prop_assert_eq!(pages(&again), pages(&trace));
    }

    #[test]
    fn arbitrary_bytes_never_panic_an_importer(bytes: Vec<u8>, lines: bool, by_page: bool) {
        let number_by = by_page.then_some(NumberBy::Page);
        let options = ImportOptions { lines, number_by, keep_whole_prefix: true, ..ImportOptions::default() };
        for format in all_formats() {
            let prefix: &[u8] = match format {
                ImportFormat::Drmemtrace => &[25, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
                // A header of 1 tick a second, and the length of a packet.
                ImportFormat::Gem5 => b"gem5\x02\x18\x01\x0a",
                // A whole head, and the head of a chunk of 64 bytes of accesses.
                ImportFormat::Hook => HOOK_PREFIX,
                _ => b"",
            };
            let input = [prefix, bytes.as_slice()].concat();
            if let Ok((trace, _)) = bring_with(&format, &input, &options) {
                prop_assert_eq!(read(&trace, 100).1, None);
            }
        }
    }

    #[test]
    fn arbitrary_text_never_panics_an_importer(text in "([ LSMI=:,.0-9a-fx|@T/-]{0,30}\n){0,5}") {
        let options = ImportOptions { skip_bad_lines: true, ..ImportOptions::default() };
        for format in all_formats() {
            let _ = bring_with(&format, text.as_bytes(), &options);
        }
    }
}

const HOOK_PREFIX: &[u8] = b"TRRHOOK1\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\
    RCHK\x01\0\0\0\x05\0\0\0\0\0\0\0\x05\0\0\0\0\0\0\0\x07\0\0\0\0\0\0\0\x40\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";

fn all_formats() -> [ImportFormat; 11] {
    let fields = "tid,time,period,event,addr,data_src,weight,data_page_size";
    [
        ImportFormat::Lackey,
        ImportFormat::Drmemtrace,
        ImportFormat::DrmemtraceView,
        ImportFormat::PerfScript(fields.split(',').map(|field| field.parse().unwrap()).collect()),
        ImportFormat::Damon(DamonOptions::default()),
        ImportFormat::Csv(CsvColumns {
            names: false,
            address: Column::Place(0),
            operation: None,
            thread: None,
            time: None,
            ..CsvColumns::default()
        }),
        ImportFormat::OracleGeneral,
        ImportFormat::ChampSim,
        ImportFormat::Gem5,
        ImportFormat::Gem5Text,
        ImportFormat::Hook,
    ]
}

#[cfg(feature = "parquet")]
#[test]
fn parquet_holds_every_access() {
    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::RowAccessor;
    let trace = imported(&[(1, 2, true, 3, 4), (5, 6, false, 0, 8)]);
    let mut bytes = Vec::new();
    let report = export::parquet(&mut Reader::new(trace.as_slice()).unwrap(), &mut bytes).unwrap();
    assert_eq!(report.accesses, 2);
    let file = tempfile::tempfile().unwrap();
    std::io::Write::write_all(&mut &file, &bytes).unwrap();
    let reader = SerializedFileReader::new(file).unwrap();
    let rows: Vec<_> = reader.get_row_iter(None).unwrap().map(Result::unwrap).collect();
    let row = |at: usize| (rows[at].get_long(0).unwrap(), rows[at].get_long(1).unwrap(), rows[at].get_bool(3).unwrap());
    assert_eq!(row(0), (1, 0x7f_0000_0001_i64 << 12 | 128, true));
    assert_eq!(row(1), (5, 0x7f_0000_0005_i64 << 12 | 384, false));
    assert_eq!((rows[0].get_long(4).unwrap(), rows[1].get_long(5).unwrap()), (3, 8000));
}

/// A chunk as the QEMU plugin writes it of a guest.
fn guest_chunk(kind: u32, process: u32, thread: u64, nanos: u64, payload: &[u8]) -> Vec<u8> {
    let mut bytes = [0x4b48_4352_u32, kind].map(u32::to_le_bytes).concat();
    bytes.extend([thread, nanos, nanos].map(u64::to_le_bytes).concat());
    bytes.extend([payload.len() as u32, 0, process, 0].map(u32::to_le_bytes).concat());
    bytes.extend_from_slice(payload);
    bytes
}

#[test]
fn a_guests_processes_and_page_sizes_are_told_apart() {
    let words = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let named = |pid: u64, name: &str| [&pid.to_le_bytes()[..], name.as_bytes()].concat();
    let mut recording = [&b"TRRHOOK1"[..], &2_u32.to_le_bytes(), &[0; 4], &words(&[4096, 1, 0])].concat();
    for chunk in [
        guest_chunk(3, 0, 0, 0, &named(71, "first")),
        guest_chunk(4, 0, 0, 0, &words(&[0x20_0000 | 1])),
        guest_chunk(1, 0, 71, 10, &words(&[0x20_1000, 0x20_2000])),
        guest_chunk(3, 1, 0, 20, &named(72, "second")),
        guest_chunk(4, 1, 0, 20, &words(&[0x20_0000])),
        guest_chunk(1, 1, 72, 20, &words(&[0x20_1000 | 1 << 63])),
        guest_chunk(4, 0, 0, 30, &words(&[0x20_0000])),
        guest_chunk(1, 0, 71, 30, &words(&[0x20_3000])),
        guest_chunk(5, 1, 0, 40, &[]),
    ] {
        recording.extend(chunk);
    }
    let mut trace = Vec::new();
    let report = import(&ImportFormat::Hook, recording.as_slice(), &mut trace, &ImportOptions::default()).unwrap();
    assert_eq!((report.summary.accesses, report.summary.events), (4, 4));
    let (items, error) = read(&trace, 1000);
    assert_eq!(error, None);
    let mut before = 0;
    let mut found = Vec::new();
    for item in items {
        match item {
            Item::Access(_) => before += 1,
            Item::Event(event) => found.push((before, event.change)),
        }
    }
    let block = |first: u32| Pages { first: PageId(first), count: 512 };
    let expected = [
        (0, Change::Huge(block(0))),
        (2, Change::Split(block(512))),
        (3, Change::Split(block(0))),
        (4, Change::Gone(block(512))),
    ];
    assert_eq!(found, expected);
    let mut reader = Reader::new(trace.as_slice()).unwrap();
    assert!(reader.header().processes);
    assert_eq!(reader.header().provenance, Provenance::Filtered { cache_bytes: 4096 });
    while reader.fill(&mut [Access::default(); 8]).unwrap() > 0 || reader.take_event().is_some() {}
    let map = Index::read(&mut std::io::Cursor::new(&trace)).unwrap().1.map(&mut std::io::Cursor::new(&trace)).unwrap();
    assert_eq!(&map, reader.map(), "the index finds the whole map");
    let names: Vec<_> = map.processes().values().map(|process| (process.pid, process.name.as_str())).collect();
    assert_eq!(names, [(71, "first"), (72, "second")]);
    let pages: Vec<_> =
        accesses(&trace).iter().map(|access| (access.page().0, map.process_of(access.page()).0)).collect();
    assert_eq!(pages, [(1, 0), (2, 0), (513, 1), (3, 0)]);
    assert_eq!(map.address(PageId(513)), Some(0x20_1000));
    let info = info(trace.as_slice()).unwrap();
    let sizes = PageSizes { accesses_4k: 2, accesses_2m: 2, pages_4k: 2, pages_2m: 1, collapsed: 0, split: 1 };
    assert_eq!(info.page_sizes, Some(sizes));
    let shares: Vec<_> =
        info.processes.iter().map(|process| (process.name.as_str(), process.accesses, process.touched_pages)).collect();
    assert_eq!(shares, [("first", 3, 3), ("second", 1, 1)]);
}
