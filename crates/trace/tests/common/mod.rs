//! What several tests of traces share.
#![allow(dead_code)] // Each test file uses its own part of this.

use terrace_trace::{Access, Event, Header, Reader, TraceError, Writer};

/// A record of a trace in its place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Item {
    Access(Access),
    Event(Event),
}

pub(crate) fn write(header: &Header, items: &[Item]) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), header.clone()).unwrap();
    for item in items {
        match item {
            Item::Access(access) => writer.access(*access).unwrap(),
            Item::Event(event) => writer.event(*event).unwrap(),
        }
    }
    writer.finish().unwrap().0
}

/// Everything that can be read, and the error that ended it if one did.
pub(crate) fn read(bytes: &[u8], batch: usize) -> (Vec<Item>, Option<TraceError>) {
    let mut items = Vec::new();
    let mut reader = match Reader::new(bytes) {
        Ok(reader) => reader,
        Err(error) => return (items, Some(error)),
    };
    let mut batch = vec![Access::default(); batch];
    loop {
        match reader.fill(&mut batch) {
            Err(error) => return (items, Some(error)),
            Ok(0) => match reader.take_event() {
                Some(event) => items.push(Item::Event(event)),
                None => return (items, None),
            },
            Ok(count) => items.extend(batch[..count].iter().map(|access| Item::Access(*access))),
        }
    }
}

pub(crate) fn accesses(bytes: &[u8]) -> Vec<Access> {
    let (items, error) = read(bytes, 1000);
    assert_eq!(error, None);
    items.iter().filter_map(|item| if let Item::Access(access) = item { Some(*access) } else { None }).collect()
}

pub(crate) fn events(bytes: &[u8]) -> Vec<Event> {
    let (items, error) = read(bytes, 1000);
    assert_eq!(error, None);
    items.iter().filter_map(|item| if let Item::Event(event) = item { Some(*event) } else { None }).collect()
}
