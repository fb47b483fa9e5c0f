//! Traces of some kilobytes that stand for gigabytes: read within 256 MiB, or refused.
#![allow(clippy::unwrap_used)] // These are tests.
#![allow(clippy::disallowed_methods)] // The kernel says how much memory this process has held.

use std::sync::{Mutex, MutexGuard, PoisonError};

use terrace_trace::tools::{Cut, cut, info};
use terrace_trace::{Header, Index, SIGNATURE, Writer};

/// Promised for any input of up to 1 MiB, in bytes.
const MOST_MEMORY: u64 = 256 << 20;

/// The peak is that of the whole process, so one test goes after another.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// A block of this kind with right checksums.
fn block(kind: u8, counts: [u32; 2], raw: &[u8]) -> Vec<u8> {
    let stored = zstd::bulk::compress(raw, 1).unwrap();
    let mut bytes = 0x4b4c_4254_u32.to_le_bytes().to_vec();
    bytes.extend([kind, 0, 0, 0]);
    for word in [counts[0], counts[1], raw.len() as u32, stored.len() as u32, crc32fast::hash(&stored)] {
        bytes.extend(word.to_le_bytes());
    }
    let checksum = crc32fast::hash(&bytes);
    bytes.extend(checksum.to_le_bytes());
    bytes.extend(stored);
    bytes
}

/// A trace of these blocks; the last is its index, if it has one.
fn trace(blocks: &[Vec<u8>]) -> Vec<u8> {
    let empty = Writer::new(Vec::new(), Header::default()).unwrap().finish().unwrap().0;
    assert_eq!(empty[..8], SIGNATURE);
    let head = 20 + u32::from_le_bytes(empty[12..16].try_into().unwrap()) as usize;
    let mut bytes = [&empty[..head], &blocks.concat()].concat();
    let (index_at, start) = (bytes.len() - blocks.last().map_or(0, Vec::len), bytes.len());
    bytes.extend((index_at as u64).to_le_bytes());
    bytes.extend(0_u64.to_le_bytes());
    let checksum = crc32fast::hash(&bytes[start..]);
    bytes.extend(checksum.to_le_bytes());
    bytes.extend(0x444e_4554_u32.to_le_bytes());
    bytes
}

/// Reads a trace by every way, and says how it ended.
#[track_caller]
fn looked_at(bytes: &[u8]) -> String {
    // The promise is for 1 MiB; what holds for more holds for less.
    assert!(bytes.len() <= 2 << 20, "{} bytes", bytes.len());
    let damage = info(bytes).unwrap().damage.unwrap_or_default();
    let copied = cut(bytes, std::io::sink(), &Cut { keep_whole_prefix: true, ..Cut::default() });
    assert!(copied.is_ok(), "{copied:?}");
    if let Ok((_, index)) = Index::read(&mut std::io::Cursor::new(bytes)) {
        let _ = index.map(&mut std::io::Cursor::new(bytes));
    }
    let peak = peak_memory();
    assert!(peak <= MOST_MEMORY, "{} MiB for {} bytes", peak >> 20, bytes.len());
    damage
}

#[test]
fn a_page_map_of_millions_of_pieces_is_refused_before_it_fills_memory() {
    let _turn = alone();
    // Extents of one page, each with another first id, as varints.
    let extents = |block: u32| -> Vec<u8> {
        let id = |id: u32| (0..5).map(move |part| (id >> (7 * part)) as u8 & 0x7f | if part < 4 { 0x80 } else { 0 });
        (0..1_500_000).flat_map(|number| [1].into_iter().chain(id(block << 21 | number)).chain([0, 1])).collect()
    };
    let damage = looked_at(&trace(&[block(2, [0, 0], &extents(0))]));
    assert!(damage.contains("more pieces than a reader takes"), "{damage}");
    // Regions without a name, and with a long one.
    let long = [&[2, 0, 1, 0x80, 0x80, 0x40][..], &vec![b'x'; 1 << 20]].concat();
    for raw in [[2, 0, 1, 0].repeat(4_000_000), long.repeat(15)] {
        let damage = looked_at(&trace(&vec![block(2, [0, 0], &raw); 20]));
        assert!(damage.contains("more pieces than a reader takes"), "{damage}");
    }
}

#[test]
fn blocks_of_records_and_of_the_map_unpack_to_16_mib_at_most() {
    let _turn = alone();
    let damage = looked_at(&trace(&[block(2, [0, 0], &vec![0; (16 << 20) + 1])]));
    assert!(damage.contains("its sizes are impossible"), "{damage}");
}

#[test]
fn an_index_has_no_more_blocks_than_there_is_room_for() {
    let _turn = alone();
    let raw = [&[0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0x1f][..], &[32, 1, 0, 0, 0].repeat(3_000_000)].concat();
    let damage = looked_at(&trace(&[block(3, [0, 0], &raw)]));
    assert!(damage.contains("it makes no sense"), "{damage}");
}

#[test]
fn an_access_far_away_costs_no_array_up_to_it() {
    let _turn = alone();
    // One access without a line's place in its page: the change to the page before, whether it writes, a run of a thread, no events.
    let place = (u64::from(u32::MAX) << 6) << 1;
    let mut pages = Vec::new();
    let mut rest = place;
    while rest > 0x7f {
        pages.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    pages.push(rest as u8);
    let raw = [&[pages.len() as u8][..], &pages, &[1, 0, 2, 1, 0, 0, 0, 0]].concat();
    let damage = looked_at(&trace(&[block(1, [1, 0], &raw)]));
    assert!(damage.contains("page 4294967295 lies beyond") && damage.contains("--max-footprint"), "{damage}");
}
