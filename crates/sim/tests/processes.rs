//! A trace of several processes with page sizes, as a recorded guest gives one: each is a space of its own, pages are as large as told.
#![allow(clippy::unwrap_used)] // These are tests.

use std::io::Cursor;

use terrace_core::units::{Bytes, PageId, TierId, Time, Vpn};
use terrace_machine::mmu::{CounterSpec, When};
use terrace_machine::preset::Machine;
use terrace_sim::fixed::Fixed;
use terrace_sim::processes::Placement;
use terrace_sim::run::run_alone;
use terrace_sim::{FastSize, MmuConfig, Pages, Report, SimConfig, SimError, TraceSource};
use terrace_trace::{
    Access, AccessSource, Change, Event, Extent, Header, Index, MapPiece, PageMap, Process, ProcessId, Reader,
    ThreadId, Writer,
};

/// Block 0 is of the first process and huge; block 1 of the second, at the same address, small at first and collapsed later; block 2
/// is of the second and goes with it.
fn trace() -> Vec<u8> {
    let header = Header { processes: true, ..Header::default() };
    let mut writer = Writer::new(Vec::new(), header).unwrap();
    for (number, name) in [(0, "first"), (1, "second")] {
        let process = Process { pid: 70 + u64::from(number), name: name.to_owned() };
        writer.map(&MapPiece::Process(ProcessId(number), process)).unwrap();
    }
    for (block, process, vpn) in [(0_u32, 0, 0x400), (1, 1, 0x400), (2, 1, 0x800)] {
        let extent = Extent { first: PageId(block << 9), vpn: Vpn(vpn), count: 512, process: ProcessId(process) };
        writer.map(&MapPiece::Extent(extent)).unwrap();
    }
    let event = |writer: &mut Writer<Vec<u8>>, change: fn(terrace_trace::Pages) -> Change, block: u32| {
        let pages = terrace_trace::Pages { first: PageId(block << 9), count: 512 };
        writer.event(Event { time: Time::ZERO, change: change(pages) }).unwrap();
    };
    event(&mut writer, Change::Huge, 0);
    event(&mut writer, Change::Split, 1);
    event(&mut writer, Change::Split, 2);
    for round in 0..100 {
        for page in 0..50 {
            writer.access(Access::read(PageId(page)).on_line(round)).unwrap();
            writer.access(Access::write(PageId(512 + page)).on_line(round).by(ThreadId(1))).unwrap();
        }
        writer.access(Access::read(PageId(1024))).unwrap();
        if round == 49 {
            event(&mut writer, Change::Huge, 1);
        }
    }
    event(&mut writer, Change::Gone, 1);
    event(&mut writer, Change::Gone, 2);
    writer.access(Access::read(PageId(0))).unwrap();
    writer.finish().unwrap().0
}

fn map(trace: &[u8]) -> PageMap {
    Index::read(&mut Cursor::new(trace)).unwrap().1.map(&mut Cursor::new(trace)).unwrap()
}

fn replayed(pages: Pages) -> Report {
    let trace = trace();
    let placement = Some(Placement::of(&map(&trace), 3 * 512).unwrap());
    let open = move || {
        let reader = Reader::new(Cursor::new(trace.clone())).map_err(|error| SimError::Source(error.to_string()))?;
        Ok(Box::new(reader) as Box<dyn AccessSource>)
    };
    let footprint = Bytes::of_pages(3 * 512);
    let source = TraceSource { name: "a guest".to_owned(), footprint, open, placement };
    let mut config = SimConfig::new(Machine::preset("cxl-pond").unwrap(), footprint, FastSize::Share(1.0));
    config.pages = pages;
    config.cache = false;
    let counters = Some(CounterSpec { when: When::Every, ..CounterSpec::default() });
    config.mmu = Some(MmuConfig { counters, ..MmuConfig::new(2) });
    run_alone(&config, &source, Box::new(Fixed(TierId::FAST))).unwrap()
}

fn updates(report: &Report) -> u64 {
    report.mmu.as_ref().unwrap().cores.iter().map(|core| core.updates).sum()
}

#[test]
fn each_process_of_a_trace_is_told_what_it_was_served() {
    let report = replayed(Pages::Traced);
    let of: Vec<_> =
        report.processes.iter().map(|process| (process.workload.as_str(), process.tier_accesses[0])).collect();
    assert_eq!(of, [("first (70)", 5001), ("second (71)", 5100)]);
    let again = replayed(Pages::Traced);
    assert_eq!((report.seconds, report.processes), (again.seconds, again.processes), "and two runs are equal");
}

#[test]
fn pages_are_as_large_as_the_trace_tells_while_it_does() {
    // Of the first process all, and of the second what came after the collapse; nobody had touched all of that block.
    let report = replayed(Pages::Traced);
    assert_eq!(updates(&report), 5001 + 50 * 50);
    assert_eq!(report.splits_and_collapses, [0, 1]);
    assert_eq!(updates(&replayed(Pages::Small)), 0, "where the run says otherwise, it is as the run says");
}
