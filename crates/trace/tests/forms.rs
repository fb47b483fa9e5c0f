//! What tools really write: each form of text, the program's own output between, other line ends, and compressed files.
#![allow(clippy::unwrap_used)] // These are tests.

mod common;

use std::io::Write;

use common::accesses;
use terrace_trace::import::{AddressBase, Column, CsvColumns, ImportFormat, ImportOptions, ImportReport, import};
use terrace_trace::{Access, Reader, TraceError};

macro_rules! sample {
    ($name:literal) => {
        include_bytes!(concat!("samples/", $name)).as_slice()
    };
}

fn with(format: &ImportFormat, input: &[u8], options: &ImportOptions) -> Result<(Vec<u8>, ImportReport), TraceError> {
    let mut bytes = Vec::new();
    let report = import(format, input, &mut bytes, options)?;
    Ok((bytes, report))
}

fn bring(format: &ImportFormat, input: &[u8]) -> Result<(Vec<u8>, ImportReport), TraceError> {
    with(format, input, &ImportOptions::default())
}

fn refusal(format: &ImportFormat, input: &[u8]) -> String {
    bring(format, input).unwrap_err().to_string()
}

/// Address of the line, and whether it is written.
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

/// Columns by their place, in the words of `--columns`.
fn columns(separator: u8, kinds: &str) -> CsvColumns {
    let mut columns =
        CsvColumns { separator, names: false, operation: None, thread: None, time: None, ..CsvColumns::default() };
    for (kind, place) in kinds.split(',').map(|text| text.split_once('=').unwrap()) {
        let column: Column = place.parse().unwrap();
        match kind {
            "address" => columns.address = column,
            "object" => (columns.address, columns.objects) = (column, true),
            "operation" => columns.operation = Some(column),
            "time" => columns.time = Some(column),
            "size" => columns.size = Some(column),
            other => panic!("{other}"),
        }
    }
    columns
}

fn csv(separator: u8, kinds: &str) -> ImportFormat {
    ImportFormat::Csv(columns(separator, kinds))
}

#[test]
fn text_traces_of_simulators_are_read_as_they_are() {
    let line = |address: u64, write: bool| (address & !63, write);
    for (name, format, bytes, expected, left_out) in [
        (
            "pinatrace",
            csv(b' ', "address=2,operation=1"),
            sample!("pinatrace.out"),
            vec![line(0x7ffd_1000, false), line(0x7ffd_2008, true)],
            "marker of the end",
        ),
        (
            "ramulator LD/ST",
            csv(b' ', "operation=0,address=1"),
            sample!("ramulator2-ldst.trace"),
            vec![line(0x229f_6f80, false), line(0x2baa_9440, true), line(0x3c65_c1c0, false)],
            "",
        ),
        (
            "ramulator R/W",
            csv(b' ', "address=0,operation=1"),
            sample!("ramulator-rw.trace"),
            vec![line(0x1234_5680, false), line(0x4cbd_56c0, true)],
            "",
        ),
        (
            "DRAMSys",
            csv(b'\t', "time=0,operation=1,address=2"),
            sample!("dramsys.stl"),
            vec![line(0x7ffd_e068_9818, true), line(0x7fec_7438_ce68, false)],
            "comment",
        ),
        (
            "dinero",
            csv(b' ', "operation=0,address=1"),
            sample!("dinero.din"),
            vec![line(0x7_fffe_7ff8, false), line(0x43_0d70, true), line(0x7_fffe_7ffc, false)],
            "instruction fetch",
        ),
        (
            "execlog",
            ImportFormat::Execlog,
            sample!("execlog.txt"),
            vec![line(0x2_1000, false), line(0x2_2040, false), line(0x2_2040, true)],
            "instruction without data",
        ),
    ] {
        let (trace, report) = bring(&format, bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(places(&trace), expected, "{name}");
        let skipped: Vec<_> = report.skipped.iter().map(|(reason, count)| (*reason, *count)).collect();
        assert_eq!(skipped, if left_out.is_empty() { vec![] } else { vec![(left_out, 1)] }, "{name}");
    }
}

#[test]
fn a_trace_of_blocks_is_decimal_by_its_sectors() {
    let columns = CsvColumns { time_unit_nanos: 100, ..columns(b',', "time=0,operation=3,address=4,size=5") };
    let (trace, report) = bring(&ImportFormat::Csv(columns), sample!("msr.csv")).unwrap();
    let found = places(&trace);
    assert_eq!((found[0], found.last()), ((7_014_609_920, false), Some(&(1_317_441_536 + 8192 - 64, true))));
    assert_eq!((report.records, found.len()), (2, (24576 + 8192) / 64));
    assert_eq!(report.notes, ["addresses without 0x were read as decimal"]);
}

#[test]
fn objects_named_by_text_are_the_same_page_each_time() {
    let (trace, report) = bring(&csv(b',', "time=0,object=1,operation=5"), sample!("twitter.csv")).unwrap();
    let found = places(&trace);
    assert_eq!(found[0].0, found[2].0);
    assert_ne!(found[0].0, found[1].0);
    assert_eq!(found.iter().map(|(_, write)| *write).collect::<Vec<_>>(), [false, true, false]);
    assert!(report.notes[0].contains("a hash"), "{:?}", report.notes);
}

#[test]
fn hexadecimal_without_0x_is_told_by_the_whole_column() {
    let format = csv(b' ', "operation=0,address=1");
    let expected = [(0x1_1409_0000, false), (0x7ffe_e32b_8fc0, true)];
    let (trace, report) = bring(&format, b"R 114090004\nW 7ffee32b8ff8\n").unwrap();
    assert_eq!(places(&trace), expected);
    assert!(report.notes[0].contains("hexadecimal"), "{:?}", report.notes);
    // A marked number beside it changes nothing.
    let (trace, _) = bring(&format, b"R 0x114090004\nW 7ffee32b8ff8\n").unwrap();
    assert_eq!(places(&trace), expected);
    // Numbers of C: 0x is hexadecimal, all others are not.
    let (trace, _) = bring(&format, b"R 0x1000\nW 8256\n").unwrap();
    assert_eq!(places(&trace), [(0x1000, false), (0x2040, true)]);
}

#[test]
fn addresses_of_digits_only_are_asked_for() {
    let text = b"\nR 114090004\nW 114091010\nR 200000\n";
    let kinds = "operation=0,address=1";
    assert_eq!(
        refusal(&csv(b' ', kinds), text),
        "CSV input, line 2: addresses of digits only, which may be decimal or hexadecimal: \"R 114090004\"; \
         say --hex or --decimal"
    );
    for (base, first) in [(AddressBase::Hexadecimal, 0x1_1409_0000), (AddressBase::Decimal, 114_090_004 & !63)] {
        let (trace, _) = bring(&ImportFormat::Csv(CsvColumns { base, ..columns(b' ', kinds) }), text).unwrap();
        assert_eq!(places(&trace)[0], (first, false));
    }
    // Many of them without a letter are decimal; one digit is the same in both.
    let many: String = (0..64).map(|number| format!("R {}\n", 1_000_000 + 104 * number)).collect();
    assert_eq!(places(&bring(&csv(b' ', kinds), many.as_bytes()).unwrap().0)[0], (1_000_000, false));
    assert!(bring(&csv(b' ', kinds), b"R 0\nW 8\n").is_ok());
}

#[test]
fn a_late_letter_ends_the_import_and_never_misreads() {
    // Past what is looked at first.
    let mut text: String = (0..90_000).map(|number| format!("R {}\n", 10_000_000 + 8 * number)).collect();
    assert!(text.len() < 1 << 20);
    text += &"# padding\n".repeat(20_000);
    text += "W 7ffe\n";
    let options = ImportOptions { skip_bad_lines: true, ..ImportOptions::default() };
    let error = with(&csv(b' ', "operation=0,address=1"), text.as_bytes(), &options).unwrap_err().to_string();
    assert!(
        error.contains("line 110001: the address is hexadecimal, and those before it were read as decimal"),
        "{error}"
    );
    assert!(error.ends_with("; say --hex or --decimal"), "{error}");
}

#[test]
fn lackey_is_read_with_any_blanks_and_output_between() {
    let (trace, report) = bring(&ImportFormat::Lackey, sample!("lackey-mixed.txt")).unwrap();
    let mut expected: Vec<_> = (0..8).map(|page| (0x40_3000 + 4096 * page, true)).collect();
    for page in 0..8 {
        expected.extend([(0x40_3040 + 4096 * page, false), (0x40_3040 + 4096 * page, true)]);
    }
    assert_eq!(places(&trace), expected);
    let foreign = "line of no form of this tool, such as output of the program itself";
    assert_eq!(report.skipped[foreign], 2, "{:?}", report.skipped);
    let text = b"I 04016b80,3\nL 1000,8\n\tS\t2000, 8\r\n M 0x3000,8\nI think, therefore\n#eof\n";
    let (trace, report) = bring(&ImportFormat::Lackey, text).unwrap();
    assert_eq!(places(&trace), [(0x1000, false), (0x2000, true), (0x3000, false), (0x3000, true)]);
    assert_eq!((report.skipped["instruction fetch"], report.skipped[foreign]), (1, 1));
}

#[test]
fn line_ends_and_marks_of_other_systems_are_no_damage() {
    let format = csv(b',', "operation=0,address=1");
    let expected = [(0x1000, false), (0x2000, true)];
    for text in [
        &b"R,0x1000\r\nW,0x2000\r\n"[..],
        b"R,0x1000\rW,0x2000\r",
        b"\xef\xbb\xbfR,0x1000\nW,0x2000",
        b"\r\n  R , \"0x1000\" \n\n\tW:,0x2000:\n\x1a",
    ] {
        let options = ImportOptions { skip_bad_lines: text.ends_with(b"\x1a"), ..ImportOptions::default() };
        assert_eq!(places(&with(&format, text, &options).unwrap().0), expected);
    }
    let error = refusal(&format, b"\xff\xfeR\0,\x000\0\n\0");
    assert!(error.contains("line 1: the text is UTF-16") && error.contains("iconv -f UTF-16"), "{error}");
}

#[test]
fn names_may_stand_in_a_comment() {
    let named = |name: &str| Column::Name(name.to_owned());
    let columns =
        CsvColumns { names: true, address: named("addr"), operation: Some(named("op")), ..columns(b' ', "address=0") };
    let text = b"# by tool 1.2\n# op addr\nR 0x1000\n// middle\nW 0x2000\n";
    let (trace, report) = bring(&ImportFormat::Csv(columns), text).unwrap();
    assert_eq!(places(&trace), [(0x1000, false), (0x2000, true)]);
    assert_eq!(report.skipped["comment"], 2);
}

#[test]
fn a_first_line_of_anything_is_shown_short_and_escaped() {
    let line = [&b"\x1b[2J"[..], &vec![b'x'; 1 << 19], b"\n"].concat();
    let error = refusal(&ImportFormat::Csv(CsvColumns::default()), &line);
    assert!(error.contains("no column is called \"address\"") && error.contains("\\u{1b}[2J"), "{error}");
    assert!(error.len() < 300, "{}", error.len());
}

fn zstd_of(bytes: &[u8]) -> Vec<u8> {
    zstd::encode_all(bytes, 3).unwrap()
}

fn gzip_of(bytes: &[u8]) -> Vec<u8> {
    let mut to = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    to.write_all(bytes).unwrap();
    to.finish().unwrap()
}

type Pack = fn(&[u8]) -> Vec<u8>;

#[test]
fn compressed_recordings_are_read_as_they_are() {
    let plain = bring(&ImportFormat::Lackey, sample!("lackey.txt")).unwrap();
    for packed in [sample!("lackey.txt.gz"), sample!("lackey.txt.zst")] {
        assert_eq!(bring(&ImportFormat::Lackey, packed).unwrap(), plain);
    }
    let champsim = bring(&ImportFormat::ChampSim, sample!("champsim.trace")).unwrap();
    for pack in [zstd_of as Pack, gzip_of] {
        assert_eq!(bring(&ImportFormat::ChampSim, &pack(sample!("champsim.trace"))).unwrap(), champsim);
        // Parallel compressors write several streams, one after another.
        let (one, two) = sample!("lackey.txt").split_at(3000);
        assert_eq!(bring(&ImportFormat::Lackey, &[pack(one), pack(two)].concat()).unwrap(), plain);
    }
}

#[test]
fn a_compressed_recording_that_is_cut_says_so() {
    let text: Vec<u8> =
        (0..60_000).flat_map(|n: u64| format!(" L {:x},8\n", n * n * 64 % (1 << 40)).into_bytes()).collect();
    for (pack, name) in [(zstd_of as Pack, "zstd"), (gzip_of, "gzip")] {
        let packed = pack(&text);
        let cut = &packed[..packed.len() - 9];
        let error = refusal(&ImportFormat::Lackey, cut);
        assert!(error.contains(&format!("its {name} data is cut off or damaged")), "{error}");
        assert!(error.contains("--keep-whole"), "{error}");
        let options = ImportOptions { keep_whole_prefix: true, ..ImportOptions::default() };
        let (trace, report) = with(&ImportFormat::Lackey, cut, &options).unwrap();
        assert!(report.damage.is_some());
        assert_eq!(accesses(&trace).len() as u64, report.records);
        assert!(report.records > 10_000, "{}", report.records);
    }
}

#[test]
fn a_bomb_ends_at_its_bound() {
    for pack in [zstd_of as Pack, gzip_of] {
        let packed = pack(&b" L 1000,8\n".repeat(400_000));
        assert!(packed.len() < 1 << 16);
        let options = ImportOptions { most_unpacked: 1 << 20, ..ImportOptions::default() };
        let error = with(&ImportFormat::Lackey, &packed, &options).unwrap_err().to_string();
        assert!(error.contains("more than 1048576 bytes; --max-unpacked takes more"), "{error}");
        // A recording of just that size is whole.
        let options = ImportOptions { most_unpacked: 4_000_000, ..ImportOptions::default() };
        assert_eq!(with(&ImportFormat::Lackey, &packed, &options).unwrap().1.records, 400_000);
    }
}

#[test]
fn other_compressions_are_named_with_what_decompresses() {
    for (bytes, command) in [
        (&b"\xfd7zXZ\0 and so on"[..], "xz -dc FILE"),
        (b"BZh91AY&SY", "bzip2 -dc FILE"),
        (b"\x04\x22\x4d\x18\x64", "lz4 -dc FILE"),
        (b"PK\x03\x04\x14", "unzip -p FILE"),
    ] {
        for format in [ImportFormat::ChampSim, ImportFormat::Lackey, csv(b',', "address=0")] {
            let error = refusal(&format, bytes);
            assert!(error.contains(command), "{error}");
        }
    }
}

#[test]
fn empty_recordings_of_every_form_are_refused() {
    for format in [ImportFormat::Lackey, ImportFormat::Execlog, csv(b',', "address=0"), ImportFormat::ChampSim] {
        for bytes in [Vec::new(), zstd_of(b""), gzip_of(b""), b"\x1f\x8b".to_vec()] {
            if format == ImportFormat::ChampSim && bytes.len() == 2 {
                continue;
            }
            let options = ImportOptions { skip_bad_lines: true, ..ImportOptions::default() };
            let error = with(&format, &bytes, &options).unwrap_err();
            assert!(matches!(error, TraceError::NoAccesses { .. }), "{error}");
        }
    }
}

#[test]
fn a_line_without_end_is_counted_if_bad_ones_are() {
    let text = [&b" L 1000,8\n"[..], &vec![b'.'; 3 << 20], b"\n S 2000,8\n"].concat();
    let error = refusal(&ImportFormat::Lackey, &text);
    assert!(error.contains("line 2: the line is longer than 1 MiB") && error.contains("--skip-bad-lines"), "{error}");
    let options = ImportOptions { skip_bad_lines: true, ..ImportOptions::default() };
    let (trace, report) = with(&ImportFormat::Lackey, &text, &options).unwrap();
    assert_eq!(places(&trace), [(0x1000, false), (0x2000, true)]);
    assert_eq!(report.skipped["line longer than 1 MiB"], 1);
}
