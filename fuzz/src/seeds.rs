//! The corpus: a few small good inputs for each target, from which all others are made.
//!
//! In: nothing. Out: the files below fuzz/corpus. Must not: depend on the machine; the same call writes the same bytes.

use std::path::Path;

use anyhow::Context;
use terrace_core::units::{PageId, Time, Vpn};
use terrace_machine::preset::Machine;
use terrace_sizing::database::{Database, machine_checksum};
use terrace_sizing::microbench::FastDivisor;
use terrace_sizing::sampling::Design;
use terrace_sizing::{database::Origin, model};
use terrace_trace::{
    Access, Change, Event, Extent, Header, LatencyUnit, MapPiece, Pages, Process, ProcessId, Region, ThreadId, Writer,
};

use crate::seal;

/// Texts of the formats that are text, by target.
const TEXTS: &[(&str, &str)] = &[
    (
        "import-lackey",
        "==123== Command: ls\nI  04016b80,3\n L 1ffefff7e0,8\n S 1ffefff7d8,8\n M 04222cac,4\n L 1ffefff7bc,8\n==123== \n",
    ),
    (
        "import-view",
        "Output format:\n<record#>: T<tid> <record details>\n------------------\n1: T17 <marker: version 4>\n\
         2: T17 <marker: timestamp 13309323446399692>\n4: T17 read 8 byte(s) @ 0x00007f8881e37c40 by PC 0x402680\n\
         T18     write 4 byte(s) @ 0x7f8881e38080\n70 49: 3854659 read 2 byte(s) @ 0x7f8881e39000 by PC 0x1\n\
         71 49: W0.T18 write 2 byte(s) @ 0x7f8881e39000 by PC 0x1\n",
    ),
    (
        "import-perf",
        "# comment\nmy prog  1234/1235  [003]  5678.000001: 1009 cpu/mem-loads,ldlat=30/P: 7f1200000040 68100142 \
         |OP LOAD|LVL L3 hit|SNP None|TLB L1 or L2 hit|LCK No|BLK  N/A 321 55d0000 2M\n\
         my prog  1234/1236  [001]  5678.000011: 1009 cpu/mem-stores/P: 7f1200001000 5080144 \
         |OP STORE|LVL L1 hit|SNP N/A|TLB N/A|LCK No 0 55d0001 4K\n",
    ),
    (
        "import-damon",
        "kdamond.0  4452 [000] 82877.315633: damon:damon_aggregated: target_id=0 nr_regions=2 4096-12288: 5 3\n\
         kdamond.0  4452 [000] 82877.415633: damon:damos_before_apply: ctx_idx=0 scheme_idx=0 target_idx=0 nr_regions=1 4096-8192: 20\n",
    ),
    (
        "import-damon",
        "base_time_absolute: 8 m 59.809 s\n\nmonitoring_start:                0 ns\nmonitoring_end:            104.599 ms\n\
         monitoring_duration:       104.599 ms\ntarget_id: 18446623438842320000\nnr_regions: 2\n\
         563ebaa00000-563ebaa02000(   8.000 KiB):        1\n7f938d7e1000-7f938d7e3000(   8.000 KiB):        0\n\n",
    ),
    (
        "configuration",
        "[budget]\nfast = \"8GiB\"\nreserve = \"5%\"\n[daemon]\nevents = \"poll\"\nexclude = [{ name = \"sshd\", children = true }]\n\
         [metrics]\nlisten = \"127.0.0.1:9464\"\n[class.web]\nmatch = [{ exe = \"/usr/bin/redis-*\" }, { cgroup = \"/batch\", user = \"root\" }]\n\
         goal = \"least\"\ntau = \"5%\"\nfloor = \"1GiB\"\nceiling = \"4GiB\"\nset = { idle = \"30s\" }\n",
    ),
    ("protocol", "{\"terrace\":1,\"verb\":\"status\"}\n"),
    ("protocol", "{\"terrace\":1,\"verb\":\"explain\",\"pid\":17,\"address\":4096}\n"),
    ("protocol", "{\"terrace\":1,\"verb\":\"set\",\"key\":\"class.web.floor\",\"value\":\"\\\"1GiB\\\"\"}\n"),
    ("http", "GET /metrics HTTP/1.1\r\nHost: localhost:9464\r\nAccept: */*\r\n\r\n"),
    ("http", "GET /api/v1/history?after=17 HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Basic Zm9vOmJhcg==\r\n\r\n"),
    ("http", "HEAD /api/v1/heat?class=web HTTP/1.0\r\nHost: [::1]\r\n\r\n"),
    (
        "maps",
        "555500000000-555500021000 rw-p 00000000 00:00 0                          [heap]\n\
         7f0000000000-7f0000400000 rw-p 00000000 00:00 0 \n7f0010000000-7f0010001000 r-xp 00000000 08:01 1234 /usr/lib/libc.so.6\n\
         7f0020000000-7f0020001000 rw-s 00000000 00:01 7 /dev/shm/x\n",
    ),
    (
        "maps",
        "7f0000000000-7f0000400000 rw-p 00000000 00:00 0 \nSize:               4096 kB\nRss:                 512 kB\n\
         VmFlags: rd wr mr mw me lo ac sd\n7f0000000000 bind:0-1 anon=3 dirty=3 N0=3 kernelpagesize_kB=4\n\
         7f0010000000 interleave=static:0,2 anon=1 N0=1\n",
    ),
    (
        "scenario",
        "description = \"Two nodes.\"\nkernels = [\"6.12\", \"6.1\"]\ntopology = \"fast-slow\"\ncpus = 2\ntime_limit = \"60s\"\n\
         assertions = [\"length(topology.tiers) == 2\"]\n\n[[steps]]\nname = \"topology\"\nrun = \"terrace topology --json > $OUT/topology.json\"\n",
    ),
    ("expression", "length(topology.nodes.0.cpus) == 1 and not max(1, 2 * 3) > 4 or topology.grouping == \"one\""),
    ("machine", include_str!("../../machines/cxl-170.toml")),
    ("tiers", "fast=node:0,slow=node:1"),
    ("tiers", "fast=0-1,near=2,slow=zram:2GiB"),
];

/// Writes the corpus.
pub(crate) fn write() -> anyhow::Result<()> {
    for (index, (target, text)) in TEXTS.iter().enumerate() {
        put(target, &format!("{index:02}"), text.as_bytes())?;
    }
    bombs()?;
    let trace = trace()?;
    put("trace-bytes", "small", &trace)?;
    put("trace-blocks", "small", &seal::open_trace(&trace).context("the seed is a whole trace")?)?;
    let mut csv = Vec::new();
    terrace_trace::export::csv(&mut terrace_trace::Reader::new(trace.as_slice())?, &mut csv)?;
    put("import-csv", "small", &csv)?;
    let mut oracle = Vec::new();
    terrace_trace::export::oracle_general(&mut terrace_trace::Reader::new(trace.as_slice())?, &mut oracle, true)?;
    put("import-oracle", "small", &oracle)?;
    put("import-libcachesim", "small", include_bytes!("../../crates/trace/tests/samples/libcachesim.csv"))?;
    put("import-champsim", "small", include_bytes!("../../crates/trace/tests/samples/champsim.trace"))?;
    put("import-gem5", "small", include_bytes!("../../crates/trace/tests/samples/gem5.trc"))?;
    put("import-csv", "hexadecimal", b"address,operation,thread,time_ns\n7ffe1000:,W,0,0:\n200000,R,0,8:\n#eof\n")?;
    put("import-execlog", "small", include_bytes!("../../crates/trace/tests/samples/execlog.txt"))?;
    put("import-lackey", "gzip", include_bytes!("../../crates/trace/tests/samples/lackey.txt.gz"))?;
    put("import-lackey", "zstd", include_bytes!("../../crates/trace/tests/samples/lackey.txt.zst"))?;
    put("import-gem5-text", "small", include_bytes!("../../crates/trace/tests/samples/gem5.txt"))?;
    put("import-hook", "small", &hook())?;
    put("import-drmemtrace", "small", &drmemtrace())?;
    let database = database()?;
    put("database", "bomb-rows", &with_rows(&database, 1 << 34).context("the seed has a footer")?)?;
    put("database", "small", &database)?;
    put("btf", "small", &image())?;
    let entries: [u64; 6] =
        [0, 1 << 63 | 0x1234, 1 << 62 | 5 << 5 | 1, 1 << 63 | 1 << 55 | 7, 1 << 61 | 1 << 63, u64::MAX];
    put("pagemap", "small", &words(&entries))?;
    put("perf-records", "small", &perf_records())?;
    put("spe", "small", &spe())
}

/// Traces of a few kilobytes that stand for gigabytes, in their open form.
fn bombs() -> anyhow::Result<()> {
    let header = Header { time_resolution_nanos: None, ..Header::default() };
    let empty = seal::open_trace(&Writer::new(Vec::new(), header)?.finish()?.0).context("an empty trace is whole")?;
    let head = &empty[..4 + u32::from_le_bytes([empty[0], empty[1], empty[2], empty[3]]) as usize];
    let block = |kind: u8, counts: [u32; 2], times: u16, raw: &[u8]| {
        let mut block = vec![kind];
        counts.into_iter().for_each(|count| block.extend(count.to_le_bytes()));
        block.extend(times.to_le_bytes());
        block.extend((raw.len() as u32).to_le_bytes());
        block.extend(raw);
        block
    };
    let bomb = |name: &str, blocks: &[Vec<u8>]| put("trace-blocks", name, &[head, &blocks.concat()].concat());
    // Extents of one page that all differ: kind, first id, page number, count. A block of them, again and again.
    let extents: Vec<u8> = (0..100_u8).flat_map(|id| [1, id, 0, 1]).collect();
    bomb("bomb-map", &vec![block(2, [0, 0], 30_000, &extents); 20])?;
    // Regions without a name, and one with a long name.
    bomb("bomb-regions", &vec![block(2, [0, 0], 30_000, &[2, 0, 1, 0].repeat(100)); 20])?;
    let long = [&[2, 0, 1, 0x80, 0x80, 0x80, 0x07][..], &[b'x'; 1024]].concat();
    bomb("bomb-names", &vec![block(2, [0, 0], 14_000, &long); 20])?;
    // An index of many blocks: totals, a count of blocks, then five numbers for each.
    let index = [&[0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0x7f][..], &[0, 1, 0, 0, 0].repeat(200)].concat();
    bomb("bomb-index", &[block(3, [0, 0], 60_000, &index)])?;
    // One access to the last page of all: its change as zigzag varint, then whether it writes, who, and nothing of the rest.
    let far = [&[5, 0xfe, 0xff, 0xff, 0xff, 0x1f, 1, 0, 2, 1, 0, 0, 0, 0][..]].concat();
    bomb("bomb-far", &[block(1, [1, 0], 1, &far)])
}

/// A database that claims this many rows, in Parquet's footer (thrift's compact protocol) and in its own description.
fn with_rows(database: &[u8], rows: u64) -> Option<Vec<u8>> {
    let end = database.len() - 8;
    let length = u32::from_le_bytes(*database[end..].first_chunk()?) as usize;
    let mut footer = database[end - length..end].to_vec();
    let varint = |mut value: u64| {
        let mut bytes = Vec::new();
        while value > 0x7f {
            bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        bytes.push(value as u8);
        bytes
    };
    // Field 3, a number: three rows in zigzag; field 4, a list, comes next.
    let at = footer.windows(3).position(|part| part == [0x16, 6, 0x19])?;
    footer.splice(at + 1..at + 2, varint(rows << 1));
    let text = footer.windows(11).position(|part| part == b"{\"version\":")?;
    let number = text + footer[text..].windows(11).position(|part| part == b"\"records\":3")? + 10;
    footer.splice(number..number + 1, rows.to_string().into_bytes());
    let more = rows.to_string().len() - 1;
    let before = usize::from(footer[text - 2] & 0x7f) | usize::from(footer[text - 1]) << 7;
    footer.splice(text - 2..text, varint((before + more) as u64));
    let mut bytes = database[..end - length].to_vec();
    bytes.extend(&footer);
    bytes.extend((footer.len() as u32).to_le_bytes());
    bytes.extend(b"PAR1");
    Some(bytes)
}

fn put(target: &str, name: &str, bytes: &[u8]) -> anyhow::Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    terrace_files::write(&folder.join(name), bytes).with_context(|| folder.display().to_string())
}

fn words(of: &[u64]) -> Vec<u8> {
    of.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// A trace with every kind of piece, event and column.
pub(crate) fn trace() -> anyhow::Result<Vec<u8>> {
    let header = Header {
        workload: "seed".to_owned(),
        time_resolution_nanos: Some(1000),
        latency: Some(LatencyUnit::Cycles),
        processes: true,
        ..Header::default()
    };
    let mut writer = Writer::new(Vec::new(), header)?;
    for number in 0..2 {
        let name = format!("program {number}");
        writer.map(&MapPiece::Process(ProcessId(number), Process { pid: 100 + u64::from(number), name }))?;
        let (first, vpn) = (PageId(u32::from(number) * 512), Vpn(0x7f_0000_0000));
        writer.map(&MapPiece::Extent(Extent { first, vpn, count: 512, process: ProcessId(number) }))?;
    }
    writer.map(&MapPiece::Region(Region {
        start: 0x07f0_0000_0000,
        end: 0x07f0_0020_0000,
        name: "[heap]".to_owned(),
    }))?;
    writer.map(&MapPiece::Thread(ThreadId(1), 4711))?;
    let pages = Pages { first: PageId(0), count: 512 };
    let changes =
        [Change::Born(pages), Change::Huge(pages), Change::Split(pages), Change::Period(97), Change::Gone(pages)];
    for turn in 0..60_u32 {
        let page = PageId(turn * 37 % 1024);
        let access = if turn % 3 == 0 { Access::write(page) } else { Access::read(page) };
        let access = access.on_line((turn % 64) as u8).by(ThreadId((turn / 20) as u16));
        writer.access(access.at(Time::from_nanos(u64::from(turn) * 1000)).taking(turn * 3))?;
        if let Some(change) = changes.get(turn as usize / 12).filter(|_| turn % 12 == 5) {
            writer.event(Event { time: Time::from_nanos(u64::from(turn) * 1000), change: *change })?;
        }
    }
    Ok(writer.finish()?.0)
}

/// A database of three records.
fn database() -> anyhow::Result<Vec<u8>> {
    let machine = Machine::preset("optane-6252")?;
    let design = Design::new(&machine, 1);
    let (mut vectors, mut seconds) = (Vec::new(), Vec::new());
    for number in 0..3 {
        let vector = design.vector(number);
        seconds.extend(model::record(&vector, &machine, FastDivisor::default())?);
        vectors.push(vector);
    }
    let fast_divisor = FastDivisor::default();
    let machine_checksum = machine_checksum(&machine);
    let origin = Origin { machine: machine.name, machine_checksum, seed: 1, fast_divisor };
    Ok(Database::new(origin, vectors, seconds)?.to_parquet()?)
}

/// Records of drmemtrace: kind, size, value.
fn drmemtrace() -> Vec<u8> {
    let records: [(u16, u16, u64); 10] = [
        (25, 0, 7),
        (22, 0, 100),
        (24, 0, 99),
        (28, 2, 5_000_000),
        (10, 4, 0x40_1000),
        (0, 8, 0x7f00_0010),
        (28, 2, 5_000_250),
        (1, 4, 0x7f00_1000),
        (23, 0, 101),
        (26, 0, 0),
    ];
    let bytes = |(kind, size, value): (u16, u16, u64)| {
        [&kind.to_le_bytes()[..], &size.to_le_bytes(), &value.to_le_bytes()].concat()
    };
    records.into_iter().flat_map(bytes).collect()
}

/// A recording of the hook, with a chunk of every kind.
fn hook() -> Vec<u8> {
    let mut bytes = b"TRRHOOK1".to_vec();
    bytes.extend(2_u32.to_le_bytes());
    bytes.extend(0_u32.to_le_bytes());
    bytes.extend(words(&[0, 0, 1_000_000]));
    let process = [&words(&[100])[..], b"program"].concat();
    let maps = b"7f0000000000-7f0000400000 rw-p 00000000 00:00 0 [heap]\n".to_vec();
    let touches = words(&[0x7f00_0000_0040, 1 << 63 | 3 << 57 | 0x7f00_0000_1000, 1 << 61 | 0x7f00_0000_2000, 300]);
    let huge = words(&[0x7f00_0000_0001]);
    for (kind, payload) in [(3_u32, process), (2, maps), (4, huge), (1, touches), (5, Vec::new())] {
        bytes.extend(0x4b48_4352_u32.to_le_bytes());
        bytes.extend(kind.to_le_bytes());
        bytes.extend(words(&[17, 1_000_100, 1_000_900]));
        bytes.extend((payload.len() as u32).to_le_bytes());
        bytes.extend([0; 12]);
        bytes.extend(payload);
    }
    bytes
}

/// An ELF file of one section, in which are `struct task { int flags; struct { long mm; }; }`.
fn image() -> Vec<u8> {
    let types: Vec<u8> = [1_u32, 1 << 24, 4, 32, 0, 4 << 24 | 1, 8, 16, 1, 64, 5, 4 << 24 | 2, 16, 10, 1, 32, 0, 2, 64]
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .collect();
    let strings = b"\0int\0task\0flags\0mm\0";
    let mut btf = vec![0x9f, 0xeb, 1, 0];
    for word in [24, 0, types.len(), types.len(), strings.len()] {
        btf.extend((word as u32).to_le_bytes());
    }
    btf.extend(types);
    btf.extend(strings);
    let names = b"\0.BTF\0";
    let (names_at, btf_at) = (0x40, 0x40 + names.len());
    let headers = btf_at + btf.len();
    let mut image = vec![0; 0x40];
    image[..6].copy_from_slice(b"\x7fELF\x02\x01");
    image[0x28..0x30].copy_from_slice(&(headers as u64).to_le_bytes());
    for (at, value) in [(0x3a, 0x40_u16), (0x3c, 2), (0x3e, 1)] {
        image[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }
    image.extend(names);
    let size = btf.len();
    image.extend(btf);
    for (name, from, length) in [(1_u32, btf_at, size), (0, names_at, names.len())] {
        let mut header = [0; 0x40];
        header[..4].copy_from_slice(&name.to_le_bytes());
        header[0x18..0x20].copy_from_slice(&(from as u64).to_le_bytes());
        header[0x20..0x28].copy_from_slice(&(length as u64).to_le_bytes());
        image.extend(header);
    }
    image
}

/// The fields and the cut, then a sample, lost samples, and the end of a process (perf_event_open(2)).
fn perf_records() -> Vec<u8> {
    use perf_event_open_sys::bindings as perf;

    use crate::record_bytes::record;
    let fields = u64::from(perf::PERF_SAMPLE_TID | perf::PERF_SAMPLE_TIME | perf::PERF_SAMPLE_ADDR);
    let sample = record(perf::PERF_RECORD_SAMPLE, &[100 << 32 | 100, 1_000, 0x7f00_0000_1000]);
    let lost = record(perf::PERF_RECORD_LOST, &[1, 5]);
    let exit = record(perf::PERF_RECORD_EXIT, &[100 << 32 | 1, 100 << 32 | 1, 2_000]);
    [words(&[24 << 40 | fields]), sample, lost, exit].concat()
}

/// Packets of Arm's statistical profiling: an address, a type, counters, padding, the end (Arm ARM, chapter D10).
fn spe() -> Vec<u8> {
    let mut bytes = vec![0xb0];
    bytes.extend(0x40_1000_u64.to_le_bytes());
    bytes.extend([0x49, 0x00, 0x52, 0x16, 0x00, 0x99, 0x20, 0x00, 0xb2]);
    bytes.extend(0x7f00_0000_1040_u64.to_le_bytes());
    bytes.extend([0x65, 0, 0, 0, 0, 0x71]);
    bytes.extend(123_456_u64.to_le_bytes());
    bytes.extend([0, 0, 0x01]);
    bytes
}
