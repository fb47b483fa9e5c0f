//! Reads the trace of Arm's Statistical Profiling Extension: one record an operation that was sampled.
//!
//! In: the bytes of the auxiliary buffer. Out: loads and stores with their virtual addresses. Must not: fail on a packet
//! it has no use for, or trust one that is cut. The formats are those of the Arm Architecture Reference Manual (DDI 0487),
//! chapter "Statistical Profiling Extension sample record specification".
//!
//! A record is a run of packets, ended by an End or a Timestamp packet. A packet is a one- or two-byte header and a payload
//! of 1, 2, 4 or 8 bytes, as bits 5:4 of its last header byte say; so a packet of unknown meaning can be stepped over.

/// A load or store that was sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryOperation {
    /// The virtual address of the data.
    pub address: u64,
    /// Whether it was a store.
    pub store: bool,
    /// Whether it missed the last-level cache, as the events packet says (bit 9); `None` without such a packet.
    pub missed_last_level: Option<bool>,
}

/// Reads records one after the other.
#[derive(Clone, Debug)]
pub struct Records<'a> {
    bytes: &'a [u8],
    truncated: bool,
}

const PADDING: u8 = 0x00;
const END: u8 = 0x01;
const TIMESTAMP: u8 = 0x71;
/// Address packets are 0b10110iii; index 2 is the data's virtual address.
const DATA_VIRTUAL_ADDRESS: u8 = 0b1011_0010;
/// Operation type packets are 0b010010cc; class 1 is a load, store or atomic.
const LOAD_OR_STORE: u8 = 0b0100_1001;
/// Events packets are 0b01ss0010, with a payload of 1 << ss bytes.
const EVENTS: u8 = 0b0100_0010;
/// Two-byte headers begin with 0b001000hh, hh being the high bits of an index.
const EXTENDED: u8 = 0b0010_0000;

impl<'a> Records<'a> {
    /// Reads a buffer that begins at a record's start.
    pub fn new(bytes: &'a [u8]) -> Records<'a> {
        Records { bytes, truncated: false }
    }

    /// Whether the buffer ended in the middle of a record.
    pub fn truncated(&self) -> bool {
        self.truncated
    }

    /// One packet: its last header byte and its payload, zero-extended.
    fn packet(&mut self) -> Option<(u8, u64)> {
        let (&first, rest) = self.bytes.split_first()?;
        if matches!(first, PADDING | END) {
            self.bytes = rest;
            return Some((first, 0));
        }
        let (header, rest, high_index) = if first & 0b1111_1100 == EXTENDED {
            let (&second, rest) = rest.split_first()?;
            (second, rest, first & 0b11 != 0)
        } else {
            (first, rest, false)
        };
        let size = 1_usize << (header >> 4 & 0b11);
        let payload = rest.get(..size)?;
        self.bytes = &rest[size..];
        let mut value = [0; 8];
        value[..size].copy_from_slice(payload);
        // Indices above 7 come in extended headers; none of them is of use here, and they must not be taken for one that is.
        Some((if high_index { EXTENDED } else { header }, u64::from_le_bytes(value)))
    }
}

impl Iterator for Records<'_> {
    type Item = MemoryOperation;

    fn next(&mut self) -> Option<MemoryOperation> {
        loop {
            let (mut address, mut store, mut missed, mut begun) = (None, None, None, false);
            loop {
                if self.bytes.is_empty() && !begun {
                    return None;
                }
                let Some((header, payload)) = self.packet() else {
                    self.truncated = true;
                    self.bytes = &[];
                    return None;
                };
                begun |= header != PADDING;
                match header {
                    END | TIMESTAMP => break,
                    DATA_VIRTUAL_ADDRESS => address = Some(virtual_address(payload)),
                    LOAD_OR_STORE => store = Some(payload & 1 == 1),
                    header if header & 0b1100_1111 == EVENTS => missed = events_missed(header, payload),
                    _ => {}
                }
            }
            if let (Some(address), Some(store)) = (address, store) {
                return Some(MemoryOperation { address, store, missed_last_level: missed });
            }
        }
    }
}

/// The top byte of a data address may be a tag; the address proper is the lower 56 bits, sign-extended.
fn virtual_address(payload: u64) -> u64 {
    ((payload << 8) as i64 >> 8) as u64
}

/// Event bit 8 is a last-level access, bit 9 a last-level miss; both need a payload of two bytes or more.
fn events_missed(header: u8, payload: u64) -> Option<bool> {
    (header >> 4 & 0b11 >= 1).then_some(payload >> 9 & 1 == 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn record(address: u64, store: bool) -> Vec<u8> {
        let mut bytes = vec![0xb0];
        bytes.extend(0xffff_0000_1000_u64.to_le_bytes()); // the instruction's address
        bytes.extend([0x64, 1, 0, 0, 0]); // context
        bytes.extend([0x49, u8::from(store)]);
        bytes.extend([0x52, 0x00, 0x02]); // events: last-level miss
        bytes.extend([0x98, 7, 0]); // a counter
        bytes.push(0xb2);
        bytes.extend(address.to_le_bytes());
        bytes.extend([0x43, 0x0d]); // data source
        bytes.push(0x71);
        bytes.extend(99_u64.to_le_bytes());
        bytes
    }

    #[test]
    fn loads_and_stores_are_read_and_tags_removed() {
        let mut bytes = vec![0, 0];
        bytes.extend(record(0x5a00_7fff_1234_5678, false));
        bytes.extend([0x4a, 0x01, 0x01]); // a branch, ended at once
        bytes.extend(record(0x0000_7fff_0000_0008, true));
        let mut records = Records::new(&bytes);
        let seen: Vec<_> = records.by_ref().collect();
        let operation = |address, store| MemoryOperation { address, store, missed_last_level: Some(true) };
        assert_eq!(seen, [operation(0x7fff_1234_5678, false), operation(0x7fff_0000_0008, true)]);
        assert!(!records.truncated());
    }

    #[test]
    fn a_high_index_in_a_two_byte_header_is_no_data_address() {
        // The header 0x21 0xb2 means address index 10.
        let mut bytes = vec![0x49, 0x00, 0x21, 0xb2];
        bytes.extend(77_u64.to_le_bytes());
        bytes.push(0x01);
        assert_eq!(Records::new(&bytes).count(), 0);
    }

    #[test]
    fn a_cut_record_is_told_and_not_guessed() {
        let bytes = record(0x1000, true);
        for end in 1..bytes.len() {
            let mut records = Records::new(&bytes[..end]);
            assert_eq!(records.by_ref().count(), 0, "cut at {end}");
            assert!(records.truncated(), "cut at {end}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_end(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut records = Records::new(&bytes);
            prop_assert!(records.by_ref().count() <= bytes.len());
        }
    }
}
