//! A ring that the kernel writes perf records into: drained whole, and nothing that went missing is left uncounted.
//!
//! In: an event that was opened. Out: its records, and how many were lost, throttled or unreadable. Must not:
//! interpret samples, or give bytes back to the kernel before they are read.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::AtomicU64;

use super::record::{Layout, Record, Records};
use crate::sys::perf::MappedRing;

/// A mapped ring with its counters.
#[derive(Debug)]
pub struct Ring {
    map: MappedRing,
    layout: Layout,
    counts: RingCounts,
}

/// What did not arrive as a sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct RingCounts {
    /// Samples that found no room, or that the hardware lost.
    pub lost: u64,
    /// Times the kernel stopped an event because it came too often.
    pub throttled: u64,
    /// Times the rest of a ring was thrown away because a record in it could not be read.
    pub unreadable: u64,
}

impl RingCounts {
    /// Adds another ring's counts.
    pub fn add(&mut self, other: RingCounts) {
        self.lost += other.lost;
        self.throttled += other.throttled;
        self.unreadable += other.unreadable;
    }

    /// Counts a record.
    fn note(&mut self, record: &Record) {
        match record {
            Record::Lost(samples) | Record::LostSamples(samples) => self.lost = self.lost.saturating_add(*samples),
            Record::Throttle => self.throttled += 1,
            _ => {}
        }
    }
}

impl Ring {
    /// Maps the ring of an event; `data_pages` is a power of two.
    ///
    /// # Errors
    /// EPERM when it is more locked memory than `kernel.perf_event_mlock_kb` allows without CAP_IPC_LOCK.
    pub fn map(event: impl AsFd, layout: Layout, data_pages: usize) -> io::Result<Ring> {
        Ok(Ring { map: MappedRing::map(event, data_pages, 0)?, layout, counts: RingCounts::default() })
    }

    /// The same with a buffer for raw trace data of `auxiliary_pages`, a power of two.
    ///
    /// # Errors
    /// As [`Ring::map`].
    pub fn map_with_auxiliary(
        event: impl AsFd,
        layout: Layout,
        data_pages: usize,
        auxiliary_pages: usize,
    ) -> io::Result<Ring> {
        Ok(Ring { map: MappedRing::map(event, data_pages, auxiliary_pages)?, layout, counts: RingCounts::default() })
    }

    /// Hands every record that is there to `each`, then gives their room back.
    pub fn drain(&mut self, each: &mut dyn FnMut(Record)) {
        let (layout, counts) = (self.layout, &mut self.counts);
        let ((first, second), end) = self.map.unread();
        read_all(layout, first, second, counts, each);
        self.map.consume(end);
    }

    /// A word of the first page that perf leaves unused ([`MappedRing::spare_word`]).
    pub fn spare_word(&self, index: usize) -> &AtomicU64 {
        self.map.spare_word(index)
    }

    /// Hands the raw trace data that is there to `each`, then gives its room back. Where the buffer's end lies within, the
    /// two parts are joined first, since a trace packet may lie across.
    pub fn drain_auxiliary(&mut self, each: &mut dyn FnMut(&[u8])) {
        let ((first, second), end) = self.map.unread_auxiliary();
        match (first.is_empty(), second.is_empty()) {
            (true, true) => return,
            (_, true) => each(first),
            _ => each(&[first, second].concat()),
        }
        self.map.consume_auxiliary(end);
    }

    /// What went missing so far.
    pub fn counts(&self) -> RingCounts {
        self.counts
    }
}

fn read_all(layout: Layout, first: &[u8], second: &[u8], counts: &mut RingCounts, each: &mut dyn FnMut(Record)) {
    for record in Records::new(layout, first, second) {
        match record {
            Ok(record) => {
                counts.note(&record);
                each(record);
            }
            Err(error) => {
                // Never seen from a real kernel. The ring goes on behind the damage, and the report shows it.
                counts.unreadable += 1;
                tracing::warn!(%error, "the rest of a perf ring is skipped");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lost_is_counted_and_damage_ends_the_batch() {
        let layout = Layout::new(0).unwrap();
        let head =
            |kind: u32, bytes: u16| [kind.to_ne_bytes().to_vec(), vec![0, 0], bytes.to_ne_bytes().to_vec()].concat();
        let mut stream = Vec::new();
        for (kind, words) in [(2_u32, vec![7_u64, 5]), (13, vec![3]), (5, vec![0; 3]), (6, vec![0; 3])] {
            stream.extend(head(kind, 8 + 8 * words.len() as u16));
            words.iter().for_each(|word| stream.extend(word.to_ne_bytes()));
        }
        stream.extend(head(9, 4));
        let (mut counts, mut seen) = (RingCounts::default(), 0);
        read_all(layout, &stream, &[], &mut counts, &mut |_| seen += 1);
        assert_eq!((seen, counts), (4, RingCounts { lost: 8, throttled: 1, unreadable: 1 }));
    }
}
