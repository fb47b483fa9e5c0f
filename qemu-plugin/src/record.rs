//! Writes accesses down, as the recorder for recompiled programs does, so that one importer reads both.
//!
//! In: accesses by virtual address, a virtual CPU at a time. Out: the stream that `terrace trace import --format hook` reads.
//! Must not: call into QEMU, or write for a process that was forked off: two writers in one stream make neither readable.
//!
//! The cache is direct mapped with lines of 64 bytes, one for each virtual CPU; what it holds is not written down. A read that
//! hits leaves no trace, a write that hits a line which was only read so far does: the line must be known as written.

use std::fs::File;
use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use crate::options::RecordOptions;

const SIGNATURE: &[u8; 8] = b"TRRHOOK1";
const CHUNK_MARK: u32 = 0x4b48_4352;
const KIND_ACCESSES: u32 = 1;
const KIND_MAPS: u32 = 2;
/// Accesses of one chunk: 128 KiB.
const CHUNK_WORDS: usize = 16_384;
const ADDRESS_MASK: u64 = (1 << 57) - 1;
const SIZE_SHIFT: u32 = 57;
const WRITE: u64 = 1 << 63;
const LINE_SHIFT: u32 = 6;
/// Set in a cache slot whose line was written.
const DIRTY: u64 = 1 << 63;

/// The stream that all virtual CPUs share.
pub(crate) struct Recording {
    output: Mutex<File>,
    began: Instant,
    process: u32,
    cache_lines: usize,
    period: u64,
}

/// What one virtual CPU has in hand.
pub(crate) struct Cpu {
    number: u64,
    words: Vec<u64>,
    first_nanos: u64,
    /// Line number and [`DIRTY`]; `u64::MAX` is empty.
    cache: Vec<u64>,
    skip: u64,
}

impl Recording {
    /// Begins the stream.
    pub(crate) fn begin(options: &RecordOptions) -> io::Result<Recording> {
        let mut output = File::options().write(true).create(true).truncate(true).open(&options.output)?;
        let mut head = SIGNATURE.to_vec();
        head.extend_from_slice(&1_u32.to_le_bytes());
        head.extend_from_slice(&0_u32.to_le_bytes());
        let cache_lines = (options.cache_bytes >> LINE_SHIFT) as usize;
        let cache_lines = if cache_lines == 0 { 0 } else { cache_lines.next_power_of_two() };
        head.extend_from_slice(&((cache_lines as u64) << LINE_SHIFT).to_le_bytes());
        head.extend_from_slice(&u64::from(std::process::id()).to_le_bytes());
        head.extend_from_slice(&0_u64.to_le_bytes());
        output.write_all(&head)?;
        Ok(Recording {
            output: Mutex::new(output),
            began: Instant::now(),
            process: std::process::id(),
            cache_lines,
            period: options.period,
        })
    }

    /// A virtual CPU that has seen nothing.
    pub(crate) fn cpu(&self, number: u64) -> Cpu {
        Cpu {
            number,
            words: Vec::with_capacity(CHUNK_WORDS),
            first_nanos: self.nanos(),
            cache: vec![u64::MAX; self.cache_lines],
            skip: 0,
        }
    }

    fn nanos(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    /// One access.
    #[inline]
    pub(crate) fn access(&self, cpu: &mut Cpu, address: u64, size_shift: u32, write: bool) {
        if !cpu.cache.is_empty() && cpu.hits(address >> LINE_SHIFT, write) {
            return;
        }
        if self.period > 1 {
            cpu.skip += 1;
            if cpu.skip < self.period {
                return;
            }
            cpu.skip = 0;
        }
        let size = u64::from(size_shift.min(6)) << SIZE_SHIFT;
        cpu.words.push((address & ADDRESS_MASK) | size | if write { WRITE } else { 0 });
        if cpu.words.len() == CHUNK_WORDS {
            self.flush(cpu);
        }
    }

    /// Writes what a virtual CPU has in hand.
    pub(crate) fn flush(&self, cpu: &mut Cpu) {
        let now = self.nanos();
        if !cpu.words.is_empty() && std::process::id() == self.process {
            let bytes: Vec<u8> = cpu.words.iter().flat_map(|word| word.to_le_bytes()).collect();
            self.chunk(KIND_ACCESSES, cpu.number, (cpu.first_nanos, now), &bytes);
        }
        cpu.words.clear();
        cpu.first_nanos = now;
    }

    /// Writes what is mapped where, so that ranges have names.
    pub(crate) fn maps(&self, text: &str) {
        let now = self.nanos();
        if std::process::id() == self.process {
            self.chunk(KIND_MAPS, 0, (now, now), text.as_bytes());
        }
    }

    fn chunk(&self, kind: u32, thread: u64, nanos: (u64, u64), payload: &[u8]) {
        let mut bytes = Vec::with_capacity(48 + payload.len());
        for word in [CHUNK_MARK, kind] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        for word in [thread, nanos.0, nanos.1] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes.extend_from_slice(&(payload.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&[0; 12]);
        bytes.extend_from_slice(payload);
        let mut output = self.output.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = output.write_all(&bytes) {
            // The reader has gone, or the disk is full: the program runs on for nothing, so it is ended here.
            eprintln!("terrace-qemu-plugin: the recording cannot be written: {error}");
            std::process::exit(74);
        }
    }
}

impl Cpu {
    /// Whether the cache serves the access. A line that was only read and is now written counts once more.
    fn hits(&mut self, line: u64, write: bool) -> bool {
        let slot = (line as usize) & (self.cache.len() - 1);
        let held = self.cache[slot];
        let dirty = if write { DIRTY } else { 0 };
        if held != u64::MAX && held & !DIRTY == line {
            let known = held | dirty == held;
            self.cache[slot] = held | dirty;
            return known;
        }
        self.cache[slot] = line | dirty;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded(cache_bytes: u64, period: u64, accesses: &[(u64, bool)]) -> Vec<u64> {
        let folder = std::env::temp_dir().join(format!("terrace-plugin-{}-{cache_bytes}-{period}", std::process::id()));
        let options = RecordOptions { output: folder.clone(), cache_bytes, period };
        let recording = Recording::begin(&options).unwrap();
        let mut cpu = recording.cpu(0);
        accesses.iter().for_each(|&(address, write)| recording.access(&mut cpu, address, 3, write));
        recording.flush(&mut cpu);
        let bytes = std::fs::read(&folder).unwrap();
        std::fs::remove_file(&folder).unwrap();
        assert_eq!(&bytes[..8], SIGNATURE);
        assert_eq!(u32::from_le_bytes(bytes[40..44].try_into().unwrap()), CHUNK_MARK);
        bytes[88..].chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect()
    }

    #[test]
    fn every_access_is_a_word_with_size_and_direction() {
        let words = recorded(0, 1, &[(0x7f00_1234_5678, false), (0x7f00_1234_5678, true)]);
        assert_eq!(words[0], 0x7f00_1234_5678 | 3 << SIZE_SHIFT);
        assert_eq!(words[1], words[0] | WRITE);
    }

    #[test]
    fn the_cache_keeps_what_it_holds_and_tells_the_first_write() {
        let words =
            recorded(4096, 1, &[(64, false), (72, false), (64, true), (64, true), (64 + 4096, false), (64, true)]);
        let seen: Vec<(u64, bool)> = words.iter().map(|word| (word & ADDRESS_MASK, word & WRITE != 0)).collect();
        assert_eq!(seen, [(64, false), (64, true), (4160, false), (64, true)]);
    }

    #[test]
    fn of_a_period_every_nth_is_kept() {
        let all: Vec<(u64, bool)> = (0..100).map(|page| (page * 4096, false)).collect();
        let words = recorded(0, 10, &all);
        assert_eq!(words.len(), 10);
        assert_eq!(words[0] & ADDRESS_MASK, 9 * 4096);
    }
}
