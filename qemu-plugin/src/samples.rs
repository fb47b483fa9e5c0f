//! Hardware sampling for a guest that has none: one access per period goes into memory that the guest shares.
//!
//! In: accesses that missed the modelled cache, and stores. Out: records in a file that QEMU shows to the guest as a device
//! (`ivshmem-plain`), in the form of a perf ring. Must not: call into QEMU, or sample what the guest did not ask for.
//!
//! The guest's side is `crates/linux/src/trackers/emulated.rs`; what both must agree on is in one file (`emulated_ring`). The file is written with
//! system calls and not mapped: QEMU maps it, and the kernel keeps both views one.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::emulated_ring::{LOADS, MAGIC, STORES, VERSION, WORDS_OFFSET, Word};

const PAGE: u64 = 4096;
/// Where `struct perf_event_mmap_page` has the ends of what is written and of what was read.
const HEAD: u64 = 1024;
const TAIL: u64 = 1032;
/// PERF_RECORD_SAMPLE and PERF_RECORD_LOST.
const SAMPLE: u32 = 9;
const LOST: u32 = 2;
/// Bytes of a sample: head, identifier, process and thread, address, period, source.
const SAMPLE_BYTES: u16 = 48;
const LOST_BYTES: u16 = 24;
/// The operation and the level of `union perf_mem_data_src`: a load from local memory, a store.
const LOAD_FROM_MEMORY: u64 = 2 | 0x80 << 5;
const STORE: u64 = 4;
/// Events between two looks at a period of 0, which the guest may change.
const IDLE_LOOK: u64 = 256;

/// What is sampled, by its identifier in the records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A load that missed the cache.
    Load = LOADS as isize,
    /// A store.
    Store = STORES as isize,
}

impl Kind {
    /// The word in which the guest says how often it wants one.
    const fn period(self) -> Word {
        match self {
            Kind::Load => Word::LoadPeriod,
            Kind::Store => Word::StorePeriod,
        }
    }
}

/// Where a word of control lies in the file.
const fn at(word: Word) -> u64 {
    WORDS_OFFSET + 8 * word as u64
}

/// The ring, seen from its writer.
#[derive(Debug)]
pub(crate) struct SampleRing {
    file: File,
    data_bytes: u64,
    head: u64,
    lost: u64,
    /// Events until the next sample, or until the next look where none are wanted.
    countdown: [u64; 2],
    /// The period that the countdown was started with, 0 for none.
    periods: [u64; 2],
}

impl SampleRing {
    /// Writes the first page of a file of a page more than a power of two, which QEMU was given as the device's memory or a part of it.
    ///
    /// # Errors
    /// When the file cannot be written or is too small.
    pub(crate) fn begin(path: &Path) -> io::Result<SampleRing> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let pages = (file.metadata()?.len() / PAGE).saturating_sub(1);
        // Memory of a device is a power of two itself, so half of it is data.
        let data_pages = match pages.checked_ilog2() {
            Some(log) => 1u64 << log,
            None => return Err(io::Error::new(io::ErrorKind::InvalidInput, "it has less than two pages")),
        };
        let ring = SampleRing {
            file,
            data_bytes: data_pages * PAGE,
            head: 0,
            lost: 0,
            countdown: [IDLE_LOOK; 2],
            periods: [0; 2],
        };
        for (place, word) in [(Word::Magic, MAGIC), (Word::Version, VERSION), (Word::DataPages, data_pages)] {
            ring.set_word(at(place), word)?;
        }
        for kind in [Kind::Load, Kind::Store] {
            ring.set_word(at(kind.period()), 0)?;
        }
        ring.set_word(HEAD, 0)?;
        ring.set_word(TAIL, 0)?;
        Ok(ring)
    }

    /// An event; one per period is recorded.
    ///
    /// # Errors
    /// When the file cannot be read or written.
    #[inline]
    pub(crate) fn event(&mut self, kind: Kind, address: u64) -> io::Result<()> {
        let which = kind as usize - 1;
        self.countdown[which] -= 1;
        if self.countdown[which] == 0 { self.due(kind, address) } else { Ok(()) }
    }

    #[cold]
    fn due(&mut self, kind: Kind, address: u64) -> io::Result<()> {
        let which = kind as usize - 1;
        let period = self.periods[which];
        self.periods[which] = self.word(at(kind.period()))?;
        self.countdown[which] = if self.periods[which] > 0 { self.periods[which] } else { IDLE_LOOK };
        if period == 0 {
            return Ok(());
        }
        let room = self.data_bytes - self.head.wrapping_sub(self.word(TAIL)?);
        if room < u64::from(SAMPLE_BYTES + LOST_BYTES) {
            self.lost += 1;
            return Ok(());
        }
        let mut record = Vec::with_capacity(usize::from(SAMPLE_BYTES + LOST_BYTES));
        if self.lost > 0 {
            record.extend(head(LOST, LOST_BYTES));
            record.extend([0, self.lost].map(u64::to_le_bytes).concat());
            self.lost = 0;
        }
        let source = if kind == Kind::Load { LOAD_FROM_MEMORY } else { STORE };
        record.extend(head(SAMPLE, SAMPLE_BYTES));
        // The process is not known.
        record.extend([kind as u64, 0, address, period, source].map(u64::to_le_bytes).concat());
        let from = self.head % self.data_bytes;
        let before_end = record.len().min((self.data_bytes - from) as usize);
        self.file.write_all_at(&record[..before_end], PAGE + from)?;
        self.file.write_all_at(&record[before_end..], PAGE)?;
        self.head += record.len() as u64;
        self.set_word(HEAD, self.head)
    }

    fn word(&self, offset: u64) -> io::Result<u64> {
        let mut bytes = [0; 8];
        self.file.read_exact_at(&mut bytes, offset)?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn set_word(&self, offset: u64, word: u64) -> io::Result<()> {
        self.file.write_all_at(&word.to_le_bytes(), offset)
    }
}

fn head(kind: u32, bytes: u16) -> Vec<u8> {
    [kind.to_le_bytes().to_vec(), vec![0, 0], bytes.to_le_bytes().to_vec()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(name: &str, pages: u64) -> (SampleRing, std::path::PathBuf) {
        let path = std::env::temp_dir().join(format!("terrace-samples-{}-{name}", std::process::id()));
        File::create(&path).unwrap().set_len(pages * PAGE).unwrap();
        (SampleRing::begin(&path).unwrap(), path)
    }

    fn words(ring: &SampleRing, from: u64, count: u64) -> Vec<u64> {
        (0..count).map(|index| ring.word(PAGE + (from + 8 * index) % ring.data_bytes).unwrap()).collect()
    }

    #[test]
    fn every_so_many_th_is_written_once_the_guest_asks() {
        let (mut ring, path) = ring("periods", 16);
        assert_eq!((ring.word(at(Word::Magic)).unwrap(), ring.word(at(Word::DataPages)).unwrap()), (MAGIC, 8));
        for address in 0..IDLE_LOOK {
            ring.event(Kind::Load, address).unwrap();
        }
        assert_eq!(ring.head, 0, "nobody asked");
        ring.set_word(at(Word::LoadPeriod), 100).unwrap();
        for address in 0..IDLE_LOOK + 250 {
            ring.event(Kind::Load, address).unwrap();
        }
        assert_eq!(ring.word(HEAD).unwrap(), 2 * u64::from(SAMPLE_BYTES));
        let first = words(&ring, 0, 6);
        assert_eq!(first[0], 9 | 48 << 48);
        assert_eq!(first[1..], [1, 0, IDLE_LOOK + 99, 100, LOAD_FROM_MEMORY]);
        assert_eq!(words(&ring, 48, 6)[3], IDLE_LOOK + 199);
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn what_finds_no_room_is_counted_and_told_later_and_records_wrap() {
        let (mut ring, path) = ring("lost", 2);
        ring.set_word(at(Word::StorePeriod), 1).unwrap();
        // The first look takes the period up, then every store is one.
        for address in 0..IDLE_LOOK + 100 {
            ring.event(Kind::Store, address).unwrap();
        }
        // 84 records of 48 bytes leave 64 bytes of 4096, less than a sample and a word of losses need.
        assert_eq!((ring.head, ring.lost), (84 * 48, 16));
        ring.set_word(TAIL, ring.head).unwrap();
        ring.event(Kind::Store, 7).unwrap();
        let told = words(&ring, 84 * 48, 9);
        assert_eq!((told[0], told[2]), (2 | 24 << 48, 16));
        assert_eq!((told[3], told[6]), (9 | 48 << 48, 7), "the record lies across the end");
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_file_too_small_is_refused() {
        let path = std::env::temp_dir().join(format!("terrace-samples-{}-small", std::process::id()));
        File::create(&path).unwrap().set_len(PAGE).unwrap();
        assert!(SampleRing::begin(&path).is_err());
        std::fs::remove_file(path).unwrap();
    }
}
