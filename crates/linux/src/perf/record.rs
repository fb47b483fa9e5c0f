//! Reads the records that perf events leave in their ring (perf_event_open(2), "MMAP layout").
//!
//! In: bytes, as one or two slices (the ring's end may lie within), and the sample layout the events were opened
//! with. Out: [`Record`]s, or an error that names the offset. Must not: call the system, panic, or guess at
//! bytes it does not know.

use perf_event_open_sys::bindings as perf;

/// Which fields a sample has. Built from `perf_event_attr.sample_type`; all events of one ring share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    sample_type: u64,
}

/// The fields of fixed size, in the order the kernel writes them into a sample.
const FIELDS: [u64; 16] = [
    perf::PERF_SAMPLE_IDENTIFIER as u64,
    perf::PERF_SAMPLE_IP as u64,
    perf::PERF_SAMPLE_TID as u64,
    perf::PERF_SAMPLE_TIME as u64,
    perf::PERF_SAMPLE_ADDR as u64,
    perf::PERF_SAMPLE_ID as u64,
    perf::PERF_SAMPLE_STREAM_ID as u64,
    perf::PERF_SAMPLE_CPU as u64,
    perf::PERF_SAMPLE_PERIOD as u64,
    perf::PERF_SAMPLE_WEIGHT as u64,
    perf::PERF_SAMPLE_WEIGHT_STRUCT as u64,
    perf::PERF_SAMPLE_DATA_SRC as u64,
    perf::PERF_SAMPLE_TRANSACTION as u64,
    perf::PERF_SAMPLE_PHYS_ADDR as u64,
    perf::PERF_SAMPLE_CGROUP as u64,
    perf::PERF_SAMPLE_DATA_PAGE_SIZE as u64,
];

/// The fields that records other than samples carry at their end when `sample_id_all` is set.
const TRAILER: [u64; 6] = [
    perf::PERF_SAMPLE_TID as u64,
    perf::PERF_SAMPLE_TIME as u64,
    perf::PERF_SAMPLE_ID as u64,
    perf::PERF_SAMPLE_STREAM_ID as u64,
    perf::PERF_SAMPLE_CPU as u64,
    perf::PERF_SAMPLE_IDENTIFIER as u64,
];

impl Layout {
    /// The layout of `sample_type`; `None` if it asks for a field of varying size, which this reader does not know.
    pub const fn new(sample_type: u64) -> Option<Layout> {
        let mut known = 0;
        let mut index = 0;
        while index < FIELDS.len() {
            known |= FIELDS[index];
            index += 1;
        }
        if sample_type & !known == 0 { Some(Layout { sample_type }) } else { None }
    }

    /// The `sample_type` to open events with.
    pub const fn sample_type(self) -> u64 {
        self.sample_type
    }

    fn trailer_bytes(self) -> usize {
        TRAILER.iter().filter(|&&field| self.sample_type & field != 0).count() * 8
    }
}

/// A sample. Fields that the layout does not have are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Which event it is from, as `PERF_EVENT_IOC_ID` gives it.
    pub identifier: u64,
    /// Instruction address.
    pub instruction: u64,
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// Nanoseconds on the event's clock.
    pub time_ns: u64,
    /// The data address.
    pub address: u64,
    /// CPU it happened on.
    pub cpu: u32,
    /// Events it stands for.
    pub period: u64,
    /// Cost of the access, in a unit of the processor's own (cycles, mostly).
    pub weight: u64,
    /// Where the data came from (`union perf_mem_data_src`).
    pub data_source: u64,
    /// The physical address, 0 if it was not known.
    pub physical_address: u64,
    /// Size in bytes of the page that `address` lies in.
    pub data_page_bytes: u64,
}

/// A process or thread that began or ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task {
    /// Process.
    pub pid: u32,
    /// Its parent, or the process that began it.
    pub parent_pid: u32,
    /// Thread.
    pub tid: u32,
    /// The thread that began it.
    pub parent_tid: u32,
}

/// One record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// An event happened often enough to be sampled.
    Sample(Sample),
    /// This many records did not fit into the ring.
    Lost(u64),
    /// The hardware lost this many samples.
    LostSamples(u64),
    /// The kernel stopped the event for a while because it came too often.
    Throttle,
    /// It goes on.
    Unthrottle,
    /// A task began. It carries on the events of the one that began it.
    Fork(Task),
    /// A task ended.
    Exit(Task),
    /// Raw trace data was written to the auxiliary buffer.
    Auxiliary {
        /// Position of the first new byte.
        offset: u64,
        /// Bytes written.
        bytes: u64,
        /// `PERF_AUX_FLAG_*`: 1 truncated, 4 partial, 8 collision.
        flags: u64,
    },
    /// Something else, such as a mapping (MMAP2), skipped by its length.
    Other(u32),
}

/// Bytes that are not what the kernel writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("perf record at offset {offset}: {problem}")]
pub struct RecordError {
    /// Where the record begins, counted from the first unread byte.
    pub offset: usize,
    /// What is wrong with it.
    pub problem: Problem,
}

/// What is wrong with a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// Fewer bytes are left than a record's head has.
    #[error("{left} bytes left, a record's head needs 8")]
    HeadCut {
        /// Bytes left.
        left: usize,
    },
    /// The length it states is less than its own head, or no multiple of 8.
    #[error("a length of {bytes} bytes is no multiple of 8, or less than 8")]
    BadLength {
        /// The length.
        bytes: usize,
    },
    /// It states more bytes than are left.
    #[error("{bytes} bytes long, {left} bytes left")]
    BodyCut {
        /// The length.
        bytes: usize,
        /// Bytes left, its head included.
        left: usize,
    },
    /// Its body is shorter than its kind needs.
    #[error("kind {kind} needs {needed} bytes, it has {bytes}")]
    TooShort {
        /// `perf_event_header.type`.
        kind: u32,
        /// The length.
        bytes: usize,
        /// Bytes it would need.
        needed: usize,
    },
}

/// Reads records one after the other. After an error it ends: where the next record begins is not known any more.
#[derive(Clone, Debug)]
pub struct Records<'a> {
    layout: Layout,
    first: &'a [u8],
    second: &'a [u8],
    offset: usize,
    broken: bool,
}

impl<'a> Records<'a> {
    /// Reads `first` and then `second` as one stream.
    pub fn new(layout: Layout, first: &'a [u8], second: &'a [u8]) -> Records<'a> {
        Records { layout, first, second, offset: 0, broken: false }
    }

    /// Bytes read so far: where the next record begins.
    pub fn offset(&self) -> usize {
        self.offset
    }

    fn left(&self) -> usize {
        self.first.len() + self.second.len() - self.offset
    }

    /// Eight bytes at `at`, which the caller has checked to lie within. The kernel never splits a word at the ring's end, but
    /// bytes from elsewhere may.
    fn word(&self, at: usize) -> u64 {
        let from = |bytes: &[u8], at: usize| bytes.get(at..at + 8)?.try_into().ok().map(u64::from_ne_bytes);
        let whole = if at < self.first.len() { from(self.first, at) } else { from(self.second, at - self.first.len()) };
        whole.unwrap_or_else(|| {
            let mut bytes = [0; 8];
            let stream = self.first.iter().chain(self.second).skip(at);
            bytes.iter_mut().zip(stream).for_each(|(to, from)| *to = *from);
            u64::from_ne_bytes(bytes)
        })
    }

    fn read(&mut self) -> Result<Record, Problem> {
        let (start, left) = (self.offset, self.left());
        if left < 8 {
            return Err(Problem::HeadCut { left });
        }
        // struct perf_event_header: u32 type, u16 misc, u16 size.
        let head = self.word(start).to_ne_bytes();
        let (kind, bytes) = (halves(self.word(start)).0, usize::from(u16::from_ne_bytes([head[6], head[7]])));
        if bytes < 8 || bytes % 8 != 0 {
            return Err(Problem::BadLength { bytes });
        }
        if bytes > left {
            return Err(Problem::BodyCut { bytes, left });
        }
        let body = start + 8;
        let record = match kind {
            perf::PERF_RECORD_SAMPLE => self.sample(body, bytes)?,
            perf::PERF_RECORD_LOST => self.fixed(kind, bytes, 16).map(|()| Record::Lost(self.word(body + 8)))?,
            perf::PERF_RECORD_LOST_SAMPLES => {
                self.fixed(kind, bytes, 8).map(|()| Record::LostSamples(self.word(body)))?
            }
            perf::PERF_RECORD_THROTTLE => self.fixed(kind, bytes, 24).map(|()| Record::Throttle)?,
            perf::PERF_RECORD_UNTHROTTLE => self.fixed(kind, bytes, 24).map(|()| Record::Unthrottle)?,
            perf::PERF_RECORD_FORK | perf::PERF_RECORD_EXIT => {
                self.fixed(kind, bytes, 24)?;
                let ((pid, parent_pid), (tid, parent_tid)) = (halves(self.word(body)), halves(self.word(body + 8)));
                let task = Task { pid, parent_pid, tid, parent_tid };
                if kind == perf::PERF_RECORD_FORK { Record::Fork(task) } else { Record::Exit(task) }
            }
            perf::PERF_RECORD_AUX => {
                self.fixed(kind, bytes, 24)?;
                Record::Auxiliary { offset: self.word(body), bytes: self.word(body + 8), flags: self.word(body + 16) }
            }
            other => Record::Other(other),
        };
        self.offset = start + bytes;
        Ok(record)
    }

    /// Checks that a record other than a sample has the body of its kind and the trailer of the layout.
    fn fixed(&self, kind: u32, bytes: usize, body: usize) -> Result<(), Problem> {
        let needed = 8 + body + self.layout.trailer_bytes();
        if bytes < needed { Err(Problem::TooShort { kind, bytes, needed }) } else { Ok(()) }
    }

    fn sample(&self, body: usize, bytes: usize) -> Result<Record, Problem> {
        let present = FIELDS.iter().filter(|&&field| self.layout.sample_type & field != 0);
        let needed = 8 + present.clone().count() * 8;
        if bytes < needed {
            return Err(Problem::TooShort { kind: perf::PERF_RECORD_SAMPLE, bytes, needed });
        }
        let mut sample = Sample::default();
        for (index, &field) in present.enumerate() {
            let word = self.word(body + index * 8);
            match field as u32 {
                perf::PERF_SAMPLE_IDENTIFIER | perf::PERF_SAMPLE_ID => sample.identifier = word,
                perf::PERF_SAMPLE_IP => sample.instruction = word,
                perf::PERF_SAMPLE_TID => (sample.pid, sample.tid) = halves(word),
                perf::PERF_SAMPLE_TIME => sample.time_ns = word,
                perf::PERF_SAMPLE_ADDR => sample.address = word,
                perf::PERF_SAMPLE_CPU => sample.cpu = halves(word).0,
                perf::PERF_SAMPLE_PERIOD => sample.period = word,
                // WEIGHT_STRUCT keeps the latency in its low half (union perf_sample_weight).
                perf::PERF_SAMPLE_WEIGHT => sample.weight = word,
                perf::PERF_SAMPLE_WEIGHT_STRUCT => sample.weight = word & 0xffff_ffff,
                perf::PERF_SAMPLE_DATA_SRC => sample.data_source = word,
                perf::PERF_SAMPLE_PHYS_ADDR => sample.physical_address = word,
                perf::PERF_SAMPLE_DATA_PAGE_SIZE => sample.data_page_bytes = word,
                _ => {}
            }
        }
        Ok(Record::Sample(sample))
    }
}

impl Iterator for Records<'_> {
    type Item = Result<Record, RecordError>;

    fn next(&mut self) -> Option<Result<Record, RecordError>> {
        if self.broken || self.left() == 0 {
            return None;
        }
        let offset = self.offset;
        let result = self.read().map_err(|problem| RecordError { offset, problem });
        self.broken = result.is_err();
        Some(result)
    }
}

/// The two 32-bit words of a 64-bit one, in the order they lie in memory.
fn halves(word: u64) -> (u32, u32) {
    let bytes = word.to_ne_bytes();
    let half = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    (half(0), half(4))
}

#[cfg(test)]
#[path = "record_bytes.rs"]
mod record_bytes;
#[cfg(test)]
#[path = "record_tests.rs"]
mod tests;
