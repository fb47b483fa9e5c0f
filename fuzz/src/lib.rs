//! Fuzz targets of Terrace's decoders and parsers, one test each.
//!
//! In: bytes that a fuzzer makes up. Out: a failure when a decoder panics, does not end, or reads past what it has. Must
//! not: touch the system.
//!
//! `cargo test` tries each target on random bytes for a second or so. With cargo-bolero and a nightly compiler,
//! `cargo bolero test perf_records --sanitizer address` searches on, guided by coverage, for as long as it is let.

#[cfg(test)]
mod tests {
    use perf_event_open_sys::bindings as perf;
    use terrace_linux::perf::record::{Layout, Records};
    use terrace_linux::perf::spe;

    const FIELDS: u32 = perf::PERF_SAMPLE_IDENTIFIER
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

    /// The records of a ring, cut anywhere: where it is cut must make no difference, and every step goes forward.
    #[test]
    fn perf_records() {
        bolero::check!().with_type::<(u32, u16, Vec<u8>)>().for_each(|(fields, cut, bytes)| {
            let layout = Layout::new(u64::from(fields & FIELDS)).expect("all of these fields are of fixed size");
            let (first, second) = bytes.split_at(usize::from(*cut) % (bytes.len() + 1));
            let whole: Vec<_> = Records::new(layout, bytes, &[]).collect();
            let mut parts = Records::new(layout, first, second);
            assert_eq!(parts.by_ref().collect::<Vec<_>>(), whole);
            assert!(whole.len() <= bytes.len() / 8 + 1);
            assert!(parts.offset() <= bytes.len());
            assert!(whole.iter().rev().skip(1).all(Result::is_ok), "only the last may be an error");
            if let Some(Err(error)) = whole.last() {
                assert!(error.offset < bytes.len());
            }
        });
    }

    /// Any layout is either known or refused.
    #[test]
    fn perf_layouts() {
        bolero::check!().with_type::<u64>().for_each(|fields| {
            if let Some(layout) = Layout::new(*fields) {
                assert_eq!(layout.sample_type(), *fields);
            }
        });
    }

    /// Arm's sample records.
    #[test]
    fn spe_records() {
        bolero::check!().for_each(|bytes: &[u8]| {
            let mut records = spe::Records::new(bytes);
            assert!(records.by_ref().count() <= bytes.len());
            assert!(records.next().is_none(), "what has ended stays ended");
        });
    }
}
