//! The record parser on a real recording, on made-up streams and on noise.

use proptest::prelude::*;

use super::record_bytes::{SAMPLE_FIELDS, record};
use super::*;

fn layout() -> Layout {
    let fields = SAMPLE_FIELDS & !(perf::PERF_SAMPLE_WEIGHT | perf::PERF_SAMPLE_DATA_SRC);
    Layout::new(fields.into()).unwrap()
}

fn all(layout: Layout, bytes: &[u8]) -> Vec<Result<Record, RecordError>> {
    Records::new(layout, bytes, &[]).collect()
}

#[test]
fn every_field_lands_in_its_place() {
    let words = [10, 11, 12 | 13 << 32, 14, 15, 16, 17, 18, 19, 20, 21];
    let seen = all(Layout::new(SAMPLE_FIELDS.into()).unwrap(), &record(perf::PERF_RECORD_SAMPLE, &words));
    let sample = Sample {
        identifier: 10,
        instruction: 11,
        pid: 12,
        tid: 13,
        time_ns: 14,
        address: 15,
        cpu: 16,
        period: 17,
        weight: 18,
        data_source: 19,
        physical_address: 20,
        data_page_bytes: 21,
    };
    assert_eq!(seen, [Ok(Record::Sample(sample))]);
}

#[test]
fn other_kinds_are_read_or_stepped_over() {
    let layout = Layout::new(perf::PERF_SAMPLE_TID.into()).unwrap();
    let task = Task { pid: 1, parent_pid: 2, tid: 3, parent_tid: 4 };
    let (ids, tids) = (1 | 2 << 32, 3 | 4 << 32);
    let bytes = [
        record(perf::PERF_RECORD_LOST, &[5, 6, 0]),
        record(perf::PERF_RECORD_LOST_SAMPLES, &[7, 0]),
        record(perf::PERF_RECORD_THROTTLE, &[0; 4]),
        record(perf::PERF_RECORD_UNTHROTTLE, &[0; 4]),
        record(perf::PERF_RECORD_FORK, &[ids, tids, 9, 0]),
        record(perf::PERF_RECORD_EXIT, &[ids, tids, 9, 0]),
        record(perf::PERF_RECORD_MMAP2, &[1; 12]),
        record(perf::PERF_RECORD_AUX, &[8, 9, 1, 0]),
    ]
    .concat();
    let seen: Vec<Record> = all(layout, &bytes).into_iter().map(Result::unwrap).collect();
    assert_eq!(
        seen,
        [
            Record::Lost(6),
            Record::LostSamples(7),
            Record::Throttle,
            Record::Unthrottle,
            Record::Fork(task),
            Record::Exit(task),
            Record::Other(perf::PERF_RECORD_MMAP2),
            Record::Auxiliary { offset: 8, bytes: 9, flags: 1 },
        ]
    );
}

#[test]
fn damage_is_named_with_its_offset_and_ends_the_reading() {
    let layout = Layout::new((perf::PERF_SAMPLE_TID | perf::PERF_SAMPLE_ADDR).into()).unwrap();
    let good = record(perf::PERF_RECORD_SAMPLE, &[1, 2]);
    let mut no_multiple = good.clone();
    no_multiple[6] = 12;
    let mut no_length = good.clone();
    no_length[6] = 0;
    let cases = [
        (vec![9, 0, 0], Problem::HeadCut { left: 3 }),
        (no_multiple, Problem::BadLength { bytes: 12 }),
        (no_length, Problem::BadLength { bytes: 0 }),
        (good[..16].to_vec(), Problem::BodyCut { bytes: 24, left: 16 }),
        (record(9, &[1]), Problem::TooShort { kind: 9, bytes: 16, needed: 24 }),
        (record(2, &[1, 2]), Problem::TooShort { kind: 2, bytes: 24, needed: 32 }),
    ];
    for (bad, problem) in cases {
        let seen = all(layout, &[good.clone(), bad].concat());
        assert_eq!(seen.len(), 2);
        assert_eq!(seen[1], Err(RecordError { offset: good.len(), problem }));
    }
    let line = RecordError { offset: 24, problem: Problem::HeadCut { left: 3 } }.to_string();
    assert_eq!(line, "perf record at offset 24: 3 bytes left, a record's head needs 8");
}

#[test]
fn fields_of_varying_size_are_refused() {
    for field in
        [perf::PERF_SAMPLE_READ, perf::PERF_SAMPLE_CALLCHAIN, perf::PERF_SAMPLE_RAW, perf::PERF_SAMPLE_STACK_USER]
    {
        assert_eq!(Layout::new((field | perf::PERF_SAMPLE_IP).into()), None);
    }
}

/// 64 first touches of consecutive pages by a child, recorded on Linux 6.18 by `examples/record_page_faults.rs`; the address
/// of the first page and the child's pid are the file's first two words.
const RECORDED: &[u8] = include_bytes!("../../tests/fixtures/page_faults_6_18.perf");

fn recorded() -> (u64, u32, &'static [u8]) {
    let word = |at: usize| u64::from_ne_bytes(RECORDED[at..at + 8].try_into().unwrap());
    (word(0), word(8) as u32, &RECORDED[16..])
}

#[test]
fn a_recording_of_this_kernel_holds_the_faults_that_were_made() {
    let (first, pid, bytes) = recorded();
    let samples: Vec<Sample> = all(layout(), bytes)
        .into_iter()
        .filter_map(|record| match record.unwrap() {
            Record::Sample(sample) if (first..first + 64 * 4096).contains(&sample.address) => Some(sample),
            _ => None,
        })
        .collect();
    let pages: Vec<u64> = samples.iter().map(|sample| (sample.address - first) / 4096).collect();
    assert_eq!(pages, (0..64).collect::<Vec<_>>());
    assert!(samples.iter().all(|sample| sample.pid == pid && sample.period == 1 && sample.data_page_bytes == 4096));
    assert!(samples.is_sorted_by_key(|sample| sample.time_ns));
}

#[test]
fn where_the_ring_ends_makes_no_difference() {
    let (_, _, bytes) = recorded();
    let whole = all(layout(), bytes);
    for cut in 0..=bytes.len().min(400) {
        let parts: Vec<_> = Records::new(layout(), &bytes[..cut], &bytes[cut..]).collect();
        assert_eq!(parts, whole, "cut at {cut}");
    }
}

proptest! {
    #[test]
    fn any_bytes_end_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600), cut in 0_usize..600) {
        let (first, second) = bytes.split_at(cut.min(bytes.len()));
        let mut records = Records::new(layout(), first, second);
        let count = records.by_ref().count();
        prop_assert!(count <= bytes.len() / 8 + 1);
        prop_assert!(records.offset() <= bytes.len());
    }

    #[test]
    fn a_recording_with_flipped_bytes_is_read_or_refused(at in 0_usize..4096, value in any::<u8>(), cut in 0_usize..4096) {
        let (_, _, bytes) = recorded();
        let mut bytes = bytes.to_vec();
        let at = at % bytes.len();
        bytes[at] = value;
        let (first, second) = bytes.split_at(cut % bytes.len());
        for record in Records::new(layout(), first, second) {
            if let Err(error) = record {
                prop_assert!(error.offset <= bytes.len());
            }
        }
    }

    #[test]
    fn what_is_written_is_read(samples in proptest::collection::vec(any::<[u64; 9]>(), 0..20)) {
        let bytes: Vec<u8> = samples.iter().flat_map(|words| record(perf::PERF_RECORD_SAMPLE, words)).collect();
        let read: Vec<u64> = all(layout(), &bytes).into_iter().map(|record| match record {
            Ok(Record::Sample(sample)) => sample.address,
            other => panic!("{other:?}"),
        }).collect();
        prop_assert_eq!(read, samples.iter().map(|words| words[4]).collect::<Vec<_>>());
    }
}
