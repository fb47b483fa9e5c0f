//! Writes a program's accesses down, as the recorder for recompiled programs does, so that one importer reads both.
//!
//! In: accesses by virtual address, a virtual CPU at a time. Out: chunks of a [`Stream`]. Must not: call into QEMU, or write for a
//! process that was forked off: two writers in one stream make neither readable.

use std::io;
use std::time::Instant;

use crate::options::RecordOptions;
use crate::stream::{CHUNK_WORDS, Filter, Kind, Place, Stream, cache_bytes, word};

/// The stream that all virtual CPUs share.
pub(crate) struct Recording {
    stream: Stream,
    began: Instant,
    process: u32,
    cache_bytes: u64,
    period: u64,
}

/// What one virtual CPU has in hand: in user mode it is a thread.
pub(crate) struct Cpu {
    number: u64,
    words: Vec<u64>,
    first_nanos: u64,
    filter: Filter,
}

impl Recording {
    /// Begins the stream.
    pub(crate) fn begin(options: &RecordOptions) -> io::Result<Recording> {
        let cache_bytes = cache_bytes(options.cache_bytes);
        Ok(Recording {
            stream: Stream::begin(&options.output, 1, cache_bytes)?,
            began: Instant::now(),
            process: std::process::id(),
            cache_bytes,
            period: options.period,
        })
    }

    /// A virtual CPU that has seen nothing.
    pub(crate) fn cpu(&self, number: u64) -> Cpu {
        Cpu {
            number,
            words: Vec::with_capacity(CHUNK_WORDS),
            first_nanos: self.nanos(),
            filter: Filter::new(self.cache_bytes, self.period),
        }
    }

    fn nanos(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    /// One access.
    #[inline]
    pub(crate) fn access(&self, cpu: &mut Cpu, address: u64, size_shift: u32, write: bool) {
        if !cpu.filter.passes(address, 0, write) {
            return;
        }
        cpu.words.push(word(address, size_shift, write));
        if cpu.words.len() == CHUNK_WORDS {
            self.flush(cpu);
        }
    }

    /// Writes what a virtual CPU has in hand.
    pub(crate) fn flush(&self, cpu: &mut Cpu) {
        let now = self.nanos();
        if !cpu.words.is_empty() && std::process::id() == self.process {
            let place = Place { process: 0, thread: cpu.number, nanos: (cpu.first_nanos, now) };
            self.stream.words(Kind::Accesses, place, &mut cpu.words);
        }
        cpu.words.clear();
        cpu.first_nanos = now;
    }

    /// Writes what is mapped where, so that ranges have names.
    pub(crate) fn maps(&self, text: &str) {
        let now = self.nanos();
        if std::process::id() == self.process {
            self.stream.chunk(Kind::Maps, Place { nanos: (now, now), ..Place::default() }, text.as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recording_is_a_head_and_chunks_of_words() {
        let path = std::env::temp_dir().join(format!("terrace-plugin-{}", std::process::id()));
        let recording =
            Recording::begin(&RecordOptions { output: path.clone(), cache_bytes: 0, period: 1, started: None })
                .unwrap();
        let mut cpu = recording.cpu(5);
        recording.access(&mut cpu, 0x1000, 3, true);
        recording.flush(&mut cpu);
        let bytes = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(bytes[..12], *b"TRRHOOK1\x01\0\0\0");
        assert_eq!((bytes.len(), bytes[44], bytes[48], bytes[72]), (96, 1, 5, 8), "kind, thread, length");
        assert_eq!(bytes[88..], word(0x1000, 3, true).to_le_bytes());
    }
}
