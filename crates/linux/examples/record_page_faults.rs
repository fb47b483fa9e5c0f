//! Records the page faults of first touches into a file, as the kernel writes them: the fixture of the record reader's tests.
//!
//! In: a file name. Out: the address of the first page, the pid, then the raw records. Must not: be needed to run the tests.
//!
//! `cargo run -p terrace-linux --example record_page_faults -- crates/linux/tests/fixtures/page_faults_6_18.perf`

use perf_event_open_sys::bindings::{self as perf, perf_event_attr};
use terrace_linux::sys::perf::{MappedRing, enable, open};
use terrace_linux::sys::private_memory::PrivateMemory;

const PAGES: usize = 64;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("give the file to write")?;
    let mut event = perf_event_attr {
        type_: perf::PERF_TYPE_SOFTWARE,
        config: perf::PERF_COUNT_SW_PAGE_FAULTS_MIN.into(),
        ..Default::default()
    };
    event.__bindgen_anon_1.sample_period = 1;
    event.sample_type = u64::from(
        perf::PERF_SAMPLE_IDENTIFIER
            | perf::PERF_SAMPLE_IP
            | perf::PERF_SAMPLE_TID
            | perf::PERF_SAMPLE_TIME
            | perf::PERF_SAMPLE_ADDR
            | perf::PERF_SAMPLE_CPU
            | perf::PERF_SAMPLE_PERIOD
            | perf::PERF_SAMPLE_PHYS_ADDR
            | perf::PERF_SAMPLE_DATA_PAGE_SIZE,
    );
    event.set_disabled(1);
    event.set_sample_id_all(1);
    event.set_exclude_kernel(1);
    event.set_mmap(1);
    event.set_mmap2(1);
    event.set_mmap_data(1);
    let fd = open(&event, 0, -1)?;
    let mut ring = MappedRing::map(&fd, 8, 0)?;
    enable(&fd)?;
    // Mapped while the event runs, so that a mapping's record stands among the samples.
    let mut memory = PrivateMemory::map(PAGES)?;
    for page in 0..PAGES {
        memory.write(page, 1);
    }
    let mut file = memory.address().to_ne_bytes().to_vec();
    file.extend(u64::from(std::process::id()).to_ne_bytes());
    let ((first, second), end) = ring.unread();
    file.extend(first);
    file.extend(second);
    ring.consume(end);
    std::fs::write(path, file)?;
    Ok(())
}
