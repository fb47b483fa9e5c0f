//! Perf records as a kernel writes them, for the tests of the reader and for its fuzz target.
//!
//! In: a kind and its words, or nothing. Out: bytes, or the fields that a sample may have. Must not: be part of the product.

use perf_event_open_sys::bindings as perf;

/// The fields that a sample of ours has, in the kernel's order.
pub(crate) const SAMPLE_FIELDS: u32 = perf::PERF_SAMPLE_IDENTIFIER
    | perf::PERF_SAMPLE_IP
    | perf::PERF_SAMPLE_TID
    | perf::PERF_SAMPLE_TIME
    | perf::PERF_SAMPLE_ADDR
    | perf::PERF_SAMPLE_CPU
    | perf::PERF_SAMPLE_PERIOD
    | perf::PERF_SAMPLE_WEIGHT
    | perf::PERF_SAMPLE_DATA_SRC
    | perf::PERF_SAMPLE_PHYS_ADDR
    | perf::PERF_SAMPLE_DATA_PAGE_SIZE;

/// A record: its head (perf_event_open(2), `struct perf_event_header`) and these words.
pub(crate) fn record(kind: u32, words: &[u64]) -> Vec<u8> {
    let mut bytes = kind.to_ne_bytes().to_vec();
    bytes.extend([0, 0]);
    bytes.extend((8 + words.len() as u16 * 8).to_ne_bytes());
    words.iter().for_each(|word| bytes.extend(word.to_ne_bytes()));
    bytes
}
