//! What `terrace trace` does with whole and damaged traces.
#![allow(clippy::unwrap_used)] // These are tests.

mod common;

use common::{Item, accesses, events, write};
use terrace_core::units::{PageId, Time, Vpn};
use terrace_trace::tools::{CatForm, Cut, cat, cut, info};
use terrace_trace::{
    Access, BLOCK_RECORDS, Change, Event, Extent, Header, Index, MapPiece, Pages, ProcessId, Provenance, Reader,
    Region, ThreadId, TraceError, Writer,
};

fn small() -> Vec<u8> {
    let header = Header { time_resolution_nanos: Some(1), ..Header::default() };
    let mut writer = Writer::new(Vec::new(), header).unwrap();
    writer
        .map(&MapPiece::Extent(Extent { first: PageId(0), vpn: Vpn(0x100), count: 512, process: ProcessId(0) }))
        .unwrap();
    writer.map(&MapPiece::Region(Region { start: 0x10_0000, end: 0x10_2000, name: "[heap]".to_owned() })).unwrap();
    writer.map(&MapPiece::Thread(ThreadId(0), 1001)).unwrap();
    writer.map(&MapPiece::Thread(ThreadId(1), 1002)).unwrap();
    let pages = Pages { first: PageId(0), count: 512 };
    writer.event(Event { time: Time::ZERO, change: Change::Born(pages) }).unwrap();
    for index in 0..10_u32 {
        let access = if index % 2 == 0 { Access::read(PageId(index / 3)) } else { Access::write(PageId(index / 3)) };
        let time = Time::from_nanos(u64::from(index) * 10);
        writer.access(access.at(time).by(ThreadId((index % 2) as u16)).on_line(1)).unwrap();
    }
    writer.event(Event { time: Time::from_nanos(95), change: Change::Region { pages, accesses: 3, age: 0 } }).unwrap();
    writer.finish().unwrap().0
}

#[test]
fn info_counts_what_is_there() {
    let bytes = small();
    let info = info(bytes.as_slice()).unwrap();
    assert_eq!((info.summary.accesses, info.summary.writes, info.summary.events), (10, 5, 2));
    assert_eq!((info.touched_pages, info.summary.page_ids, info.blocks), (4, 512, 1));
    assert_eq!(info.accesses_by_thread.into_iter().collect::<Vec<_>>(), [(1001, 5), (1002, 5)]);
    let regions: Vec<_> = info.touched_pages_by_region.iter().map(|(name, pages)| (name.as_str(), *pages)).collect();
    assert_eq!(regions, [("(unmapped)", 2), ("[heap]", 2)]);
    assert_eq!((info.damage, info.bytes), (None, bytes.len() as u64));
}

fn cut_in_second_block(bytes: &[u8]) -> &[u8] {
    let (_, index) = Index::read(&mut std::io::Cursor::new(bytes)).unwrap();
    &bytes[..index.blocks[1].offset as usize + 5]
}

#[test]
fn info_of_a_damaged_trace_says_what_is_whole() {
    let items: Vec<Item> = (0..BLOCK_RECORDS as u32 + 5).map(|page| Item::Access(Access::read(PageId(page)))).collect();
    let bytes = write(&Header::default(), &items);
    let whole = info(bytes.as_slice()).unwrap();
    assert_eq!(whole.summary.accesses, BLOCK_RECORDS as u64 + 5);
    let damaged = info(cut_in_second_block(&bytes)).unwrap();
    assert_eq!(damaged.summary.accesses, BLOCK_RECORDS as u64);
    let text = damaged.damage.unwrap();
    assert!(text.contains(&format!("everything before byte {} is whole", damaged.bytes)), "{text}");
}

#[test]
fn cat_writes_text_and_json() {
    let bytes = small();
    let mut text = Vec::new();
    assert_eq!(cat(bytes.as_slice(), &mut text, CatForm::Text, 0..2).unwrap(), 2);
    let text = String::from_utf8(text).unwrap();
    assert_eq!(text, "0 event born page 0 count 512\n0 1001 R 0x100040 0 1 0\n10 1002 W 0x100040 0 1 0\n");
    let mut lines = Vec::new();
    assert_eq!(cat(bytes.as_slice(), &mut lines, CatForm::JsonLines, 9..u64::MAX).unwrap(), 1);
    let lines: Vec<serde_json::Value> =
        String::from_utf8(lines).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((&lines[0]["address"], &lines[0]["write"]), (&"0x103040".into(), &true.into()));
    assert_eq!((&lines[1]["event"], &lines[1]["accesses"]), (&"region".into(), &3.into()));
}

#[test]
fn cut_keeps_what_it_is_asked_for() {
    let bytes = small();
    let run = |how: &Cut| {
        let mut output = Vec::new();
        cut(bytes.as_slice(), &mut output, how).unwrap();
        output
    };
    let all = run(&Cut::default());
    assert_eq!((accesses(&all), events(&all)), (accesses(&bytes), events(&bytes)));
    let part = run(&Cut { accesses: Some(2..5), ..Cut::default() });
    assert_eq!(accesses(&part), accesses(&bytes)[2..5]);
    assert_eq!(events(&part).len(), 1, "the birth still holds, the region is of another time");
    let part = run(&Cut { times: Some(Time::from_nanos(30)..Time::from_nanos(60)), ..Cut::default() });
    assert_eq!(accesses(&part), accesses(&bytes)[3..6]);
    let part = run(&Cut { threads: Some(vec![1002]), pages: Some(1..2), ..Cut::default() });
    assert_eq!(accesses(&part).iter().map(|a| a.time().as_nanos()).collect::<Vec<_>>(), [30, 50]);
    let part = run(&Cut { every: 4, ..Cut::default() });
    assert_eq!(accesses(&part).iter().map(|a| a.time().as_nanos()).collect::<Vec<_>>(), [0, 40, 80]);
    let reader = Reader::new(part.as_slice()).unwrap();
    assert_eq!(reader.header().provenance, Provenance::Sampled { period: 4 });
    // Who replays it learns that before the first access.
    let mut replayed = reader.told_its_period();
    assert_eq!(replayed.fill(&mut [Access::default(); 8]).unwrap(), 0);
    assert_eq!(replayed.take_event().map(|event| event.change), Some(Change::Period(4)));
    let mut whole = Reader::new(bytes.as_slice()).unwrap().told_its_period();
    assert_eq!(whole.fill(&mut [Access::default(); 8]).unwrap(), 0);
    assert!(matches!(whole.take_event().map(|event| event.change), Some(Change::Born(_))), "each stands for itself");
}

#[test]
fn cut_makes_a_damaged_trace_whole_if_asked() {
    let items: Vec<Item> = (0..BLOCK_RECORDS as u32 + 5).map(|page| Item::Access(Access::read(PageId(page)))).collect();
    let bytes = write(&Header::default(), &items);
    let damaged = cut_in_second_block(&bytes);
    let mut output = Vec::new();
    let error = cut(damaged, &mut output, &Cut::default()).unwrap_err();
    assert!(matches!(error, TraceError::Truncated { .. }), "{error}");
    output.clear();
    let report = cut(damaged, &mut output, &Cut { keep_whole_prefix: true, ..Cut::default() }).unwrap();
    assert!(report.damage.is_some());
    assert_eq!(accesses(&output).len(), BLOCK_RECORDS);
}
