//! What a trace costs: nanoseconds to write and to read an access, and bytes on disk, for three kinds of stream.
//!
//! In: nothing (`cargo run --release -p terrace-trace --example trace_cost`). Out: a table. Must not: assert anything
//! about time.
#![allow(clippy::print_stdout, clippy::disallowed_types, clippy::unwrap_used)] // A measurement: clock and terminal.

use std::time::Instant;

use terrace_core::units::{PageId, Time};
use terrace_trace::{Access, Header, Reader, ThreadId, Writer};

const COUNT: usize = 32 << 20;

/// xorshift64*, so that the example needs no crate for its three streams.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

fn sequential() -> Vec<Access> {
    (0..COUNT as u64)
        .map(|index| {
            let line = index / 8;
            Access::read(PageId((line >> 6) as u32)).on_line(line as u8 & 63).at(Time::from_nanos(index))
        })
        .collect()
}

/// Zipf-like by inversion of the continuous law with exponent 0.99 over 16 Mi pages, scrambled, random lines.
fn zipf() -> Vec<Access> {
    let mut random = Random(1);
    let pages = (1_u64 << 24) as f64;
    let top = pages.powf(0.01) - 1.0;
    (0..COUNT as u64)
        .map(|index| {
            let rank = ((random.unit() * top + 1.0).powf(100.0)) as u64;
            let page = rank.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
            let write = random.next().is_multiple_of(10);
            let access = if write { Access::write(PageId(page as u32)) } else { Access::read(PageId(page as u32)) };
            access
                .on_line(random.next() as u8 & 63)
                .at(Time::from_nanos(index * 3))
                .by(ThreadId((index >> 14) as u16 & 1))
        })
        .collect()
}

/// As PageRank pulls: the edge list and one row pointer in sequence, and a vertex value at random for each edge.
fn page_rank_like() -> Vec<Access> {
    let mut random = Random(2);
    let place = |address: u64| (PageId((address >> 12) as u32), (address >> 6) as u8 & 63);
    let vertices = 1_u64 << 20;
    (0..COUNT as u64)
        .map(|index| {
            let edge = index / 2;
            let address = if index % 2 == 0 {
                (1 << 30) + edge * 4
            } else {
                let skewed = random.unit() * random.unit() * random.unit();
                (skewed * vertices as f64) as u64 * 4
            };
            let (page, line) = place(address);
            let access = if index % 33 == 32 { Access::write(page) } else { Access::read(page) };
            access.on_line(line).at(Time::from_nanos(index))
        })
        .collect()
}

fn main() {
    println!(
        "{:<28} {:>10} {:>10} {:>10} {:>12}",
        "stream (32 Mi accesses)", "write ns", "read ns", "M reads/s", "bytes/access"
    );
    type Stream = (&'static str, fn() -> Vec<Access>);
    let streams: [Stream; 3] =
        [("sequential", sequential), ("zipf 0.99, 16 Mi pages", zipf), ("PageRank-like", page_rank_like)];
    for (name, make) in streams {
        let accesses = make();
        for (what, timed) in [("page, line, time", true), ("page, line", false)] {
            let header = Header { time_resolution_nanos: timed.then_some(1000), ..Header::default() };
            let begin = Instant::now();
            let mut writer = Writer::new(Vec::new(), header).unwrap();
            writer.accesses(&accesses).unwrap();
            let (bytes, _) = writer.finish().unwrap();
            let write = begin.elapsed().as_secs_f64() * 1e9 / COUNT as f64;
            let mut best = f64::INFINITY;
            let mut batch = vec![Access::default(); 2048];
            for _ in 0..3 {
                let begin = Instant::now();
                let mut reader = Reader::new(bytes.as_slice()).unwrap();
                let (mut seen, mut sum) = (0, 0_u64);
                loop {
                    let count = reader.fill(&mut batch).unwrap();
                    if count == 0 {
                        break;
                    }
                    seen += count;
                    sum += batch[..count].iter().map(|access| u64::from(access.page().0)).sum::<u64>();
                }
                std::hint::black_box(sum);
                assert_eq!(seen, COUNT);
                best = best.min(begin.elapsed().as_secs_f64() * 1e9 / COUNT as f64);
            }
            let size = bytes.len() as f64 / COUNT as f64;
            println!("{:<28} {write:>10.1} {best:>10.1} {:>10.1} {size:>12.2}", format!("{name}: {what}"), 1e3 / best);
        }
    }
}
