//! The format: what is written is read, what is damaged is named, and what is whole before damage is still read.
#![allow(clippy::unwrap_used)] // These are tests.

mod common;

use std::io::Cursor;

use common::{Item, read, write};
use proptest::prelude::*;
use terrace_core::units::{PageId, Time, Vpn};
use terrace_trace::{
    Access, BLOCK_RECORDS, BlockKind, Change, Event, Extent, Header, Index, LatencyUnit, MapPiece, Pages, ProcessId,
    Provenance, Reader, Region, ThreadId, TraceError, VERSION, Writer,
};

fn any_access() -> impl Strategy<Value = Access> {
    (any::<u32>(), any::<bool>(), 0_u8..64, 0_u64..1 << 57, any::<u16>(), any::<u16>()).prop_map(
        |(page, write, line, nanos, thread, latency)| {
            let access = if write { Access::write(PageId(page)) } else { Access::read(PageId(page)) };
            access.on_line(line).at(Time::from_nanos(nanos)).by(ThreadId(thread)).taking(u32::from(latency))
        },
    )
}

fn any_event() -> impl Strategy<Value = Event> {
    let pages = (any::<u32>(), any::<u32>())
        .prop_map(|(first, count)| Pages { first: PageId(first), count: count.min(!first) });
    let change = (pages, 0..6, any::<u32>(), any::<u32>()).prop_map(|(pages, kind, accesses, age)| match kind {
        0 => Change::Born(pages),
        1 => Change::Gone(pages),
        2 => Change::Huge(pages),
        3 => Change::Split(pages),
        4 => Change::Region { pages, accesses, age },
        _ => Change::Period(u64::from(age)),
    });
    (any::<u64>(), change).prop_map(|(nanos, change)| Event { time: Time::from_nanos(nanos), change })
}

fn any_items() -> impl Strategy<Value = Vec<Item>> {
    let item = prop_oneof![9 => any_access().prop_map(Item::Access), 1 => any_event().prop_map(Item::Event)];
    prop::collection::vec(item, 0..600)
}

fn full_header() -> Header {
    Header {
        workload: "test".to_owned(),
        time_resolution_nanos: Some(1),
        latency: Some(LatencyUnit::Nanoseconds),
        ..Header::default()
    }
}

/// Long enough for several blocks, and different everywhere.
fn long_items(count: usize) -> Vec<Item> {
    (0..count as u64)
        .map(|index| {
            let page = (index.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 44) as u32;
            let access = if index % 3 == 0 { Access::write(PageId(page)) } else { Access::read(PageId(page)) };
            Item::Access(
                access.on_line(index as u8 & 63).at(Time::from_nanos(index * 7)).by(ThreadId((index >> 12) as u16)),
            )
        })
        .collect()
}

proptest! {
    #[test]
    fn every_record_comes_back_in_its_place(items in any_items(), batch in 1_usize..300) {
        let bytes = write(&full_header(), &items);
        prop_assert_eq!(read(&bytes, batch), (items, None));
    }

    #[test]
    fn a_header_leaves_out_exactly_what_it_says(items in any_items()) {
        let header = Header { lines: false, ..Header::default() };
        let kept: Vec<Item> = items.iter().map(|item| match item {
            Item::Access(access) => Item::Access(access.on_line(0).at(Time::ZERO).taking(0)),
            Item::Event(event) => Item::Event(*event),
        }).collect();
        prop_assert_eq!(read(&write(&header, &items), 64), (kept, None));
    }

    #[test]
    fn times_are_kept_in_whole_units(items in any_items(), unit in 1_u64..1 << 40) {
        let header = Header { time_resolution_nanos: Some(unit), ..full_header() };
        let kept: Vec<Item> = items.iter().map(|item| match item {
            Item::Access(access) => Item::Access(access.at(Time::from_nanos(access.time().as_nanos() / unit * unit))),
            Item::Event(event) => Item::Event(*event),
        }).collect();
        prop_assert_eq!(read(&write(&header, &items), 64), (kept, None));
    }

    #[test]
    fn arbitrary_bytes_are_refused_without_panic(bytes: Vec<u8>) {
        prop_assert!(read(&bytes, 10).1.is_some());
        prop_assert!(Index::read(&mut Cursor::new(&bytes)).is_err());
    }

    #[test]
    fn arbitrary_bytes_behind_a_header_are_refused_without_panic(tail: Vec<u8>) {
        let mut bytes = write(&full_header(), &[]);
        bytes.truncate(bytes.len() - 24 - 32 - 8);
        bytes.extend_from_slice(&tail);
        prop_assert!(read(&bytes, 10).1.is_some());
    }

    #[test]
    fn any_changed_byte_is_noticed(at in any::<prop::sample::Index>(), flip in 1_u8..) {
        let items = long_items(500);
        let mut bytes = write(&full_header(), &items);
        let at = at.index(bytes.len());
        bytes[at] ^= flip;
        let (got, error) = read(&bytes, 100);
        // Two reserved bytes of the header are covered by its checksum like all others.
        prop_assert!(error.is_some(), "byte {at} changed unnoticed");
        prop_assert!(got.is_empty() || got == items);
    }
}

#[test]
fn the_same_records_give_the_same_bytes() {
    let items = long_items(BLOCK_RECORDS + 100);
    assert_eq!(write(&full_header(), &items), write(&full_header(), &items));
}

#[test]
fn cut_off_at_any_byte_the_whole_blocks_before_are_read() {
    // Three blocks: map, and events end a block, so that they can be small.
    let mut writer = Writer::new(Vec::new(), full_header()).unwrap();
    writer
        .map(&MapPiece::Extent(Extent { first: PageId(0), vpn: Vpn(0x1000), count: 512, process: ProcessId(0) }))
        .unwrap();
    let event = Event { time: Time::ZERO, change: Change::Born(Pages { first: PageId(0), count: 1 }) };
    let mut wrote = Vec::new();
    for index in 0..40_000_u32 {
        if index % 100 == 0 {
            let access = Access::read(PageId(index));
            writer.access(access).unwrap();
            wrote.push(Item::Access(access));
        }
        writer.event(event).unwrap();
        wrote.push(Item::Event(event));
    }
    let (bytes, _) = writer.finish().unwrap();
    assert_eq!(read(&bytes, 64), (wrote.clone(), None));
    let (_, index) = Index::read(&mut Cursor::new(&bytes)).unwrap();
    let records: Vec<_> = index.blocks.iter().filter(|block| block.kind == BlockKind::Records).collect();
    assert_eq!(records.len(), 3);
    let head = index.blocks[0].offset as usize;
    let mut ends: Vec<(u64, usize)> = Vec::new();
    for block in &index.blocks {
        ends.push((block.offset, ends.len()));
    }
    for end in 0..bytes.len() {
        let (items, error) = read(&bytes[..end], 64);
        match error.expect("a cut trace must not look whole") {
            TraceError::NotATrace { found } => assert!(end == 0 && found.is_empty(), "{end}"),
            TraceError::Truncated { offset, end: named, within } => {
                assert_eq!(named, end as u64, "{within}");
                assert!(offset <= end as u64);
                assert_eq!(end < head, within == "the header", "{end}");
                let whole = records.iter().filter(|block| block_end(&index, block.offset, &bytes) <= offset).count();
                let expected: usize = [0, 16_384 + 164, 2 * 16_384 + 328, wrote.len()][whole];
                assert!(items.len().abs_diff(expected) <= 1, "cut at {end}: {} items, {whole} blocks", items.len());
                assert_eq!(items, wrote[..items.len()]);
            }
            other => panic!("cut at {end}: {other}"),
        }
    }
}

/// Where the block that begins at `offset` ends: at the next one, or at the index.
fn block_end(index: &Index, offset: u64, bytes: &[u8]) -> u64 {
    let trailer = &bytes[bytes.len() - 24..];
    let index_at = u64::from_le_bytes(trailer[..8].try_into().unwrap());
    index.blocks.iter().map(|block| block.offset).find(|&next| next > offset).unwrap_or(index_at)
}

#[test]
fn damage_in_each_block_is_named_and_what_is_before_is_read() {
    let items = long_items(3 * BLOCK_RECORDS + 1000);
    let bytes = write(&full_header(), &items);
    let (_, index) = Index::read(&mut Cursor::new(&bytes)).unwrap();
    assert_eq!(index.blocks.len(), 4);
    for (number, block) in index.blocks.iter().enumerate() {
        for within in [0, 5, 30, 32, 100] {
            let mut damaged = bytes.clone();
            damaged[block.offset as usize + within] ^= 0x40;
            let (got, error) = read(&damaged, 1 << 12);
            assert!(got == items[..number * BLOCK_RECORDS], "block {number}, byte {within}: {} items", got.len());
            match error {
                Some(TraceError::Corrupt { offset, .. }) => assert_eq!(offset, block.offset),
                other => panic!("block {number}, byte {within}: {other:?}"),
            }
        }
    }
    let mut reader = Reader::new(&bytes[..bytes.len() - 1]).unwrap();
    let mut batch = vec![Access::default(); 1 << 16];
    while reader.fill(&mut batch).is_ok() {}
    let again = reader.fill(&mut batch);
    assert!(matches!(again, Err(TraceError::Truncated { within: "the trailer", .. })), "{again:?} must be repeated");
}

#[test]
fn another_version_is_refused_by_name() {
    let mut bytes = write(&full_header(), &[]);
    bytes[8] = 7;
    let error = Reader::new(bytes.as_slice()).err().unwrap();
    assert_eq!(error, TraceError::Version { found: 7, supported: VERSION });
    assert!(error.to_string().contains("version 7"), "{error}");
}

#[test]
fn the_index_tells_what_the_trace_holds() {
    let header = Header { provenance: Provenance::Sampled { period: 100 }, ..full_header() };
    let mut writer = Writer::new(Vec::new(), header.clone()).unwrap();
    writer.map(&MapPiece::Thread(ThreadId(0), 4711)).unwrap();
    writer.map(&MapPiece::Region(Region { start: 0x1000, end: 0x5000, name: "[heap]".to_owned() })).unwrap();
    writer.access(Access::write(PageId(9)).at(Time::from_nanos(50))).unwrap();
    writer.access(Access::read(PageId(3)).at(Time::from_nanos(20)).by(ThreadId(2))).unwrap();
    let (bytes, summary) = writer.finish().unwrap();
    let (got, index) = Index::read(&mut Cursor::new(&bytes)).unwrap();
    assert_eq!((got, index.summary), (header, summary));
    assert_eq!((summary.accesses, summary.writes, summary.page_ids, summary.threads), (2, 1, 10, 3));
    assert_eq!((summary.first_time.as_nanos(), summary.last_time.as_nanos()), (20, 50));
    let mut reader = Reader::new(bytes.as_slice()).unwrap();
    assert_eq!(reader.summary(), None, "nothing is known before the end was read");
    let mut batch = [Access::default(); 8];
    while reader.fill(&mut batch).unwrap() > 0 {}
    assert_eq!(reader.summary(), Some(&summary));
    assert_eq!(reader.map().thread(ThreadId(0)), Some(4711));
    assert_eq!(reader.map().region(0x1fff).map(|region| region.name.as_str()), Some("[heap]"));
    assert_eq!(reader.offset(), bytes.len() as u64);
}

#[test]
fn pages_past_the_last_id_cannot_be_written() {
    let mut writer = Writer::new(Vec::new(), full_header()).unwrap();
    let pages = Pages { first: PageId(u32::MAX), count: 2 };
    let error = writer.event(Event { time: Time::ZERO, change: Change::Gone(pages) }).unwrap_err();
    assert!(matches!(error, TraceError::Unwritable { record: 0, .. }), "{error}");
}

#[test]
fn pages_numbered_one_at_a_time_are_one_extent_where_they_follow_each_other() {
    let mut writer = Writer::new(Vec::new(), Header::default()).unwrap();
    let one = |id: u32, vpn: u64, process: u16| {
        MapPiece::Extent(Extent { first: PageId(id), vpn: Vpn(vpn), count: 1, process: ProcessId(process) })
    };
    for page in 0..1000 {
        writer.map(&one(page, 5000 + u64::from(page), 0)).unwrap();
    }
    // A gap in addresses, another process, a gap in ids.
    writer.map(&one(1000, 9000, 0)).unwrap();
    writer.map(&one(1001, 9001, 1)).unwrap();
    writer.map(&one(1003, 9002, 1)).unwrap();
    writer.access(Access::read(PageId(999))).unwrap();
    let trace = writer.finish().unwrap().0;
    let map = Index::read(&mut Cursor::new(&trace[..])).unwrap().1.map(&mut Cursor::new(&trace[..])).unwrap();
    let extents: Vec<_> = map.extents().map(|extent| (extent.first.0, extent.vpn.0, extent.count)).collect();
    assert_eq!(extents, [(0, 5000, 1000), (1000, 9000, 1), (1001, 9001, 1), (1003, 9002, 1)]);
}
