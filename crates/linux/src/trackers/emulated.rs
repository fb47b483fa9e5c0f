//! Samples of a processor that is emulated: the lab's QEMU plugin writes them into memory it shares with the guest.
//!
//! In: the guest's PCI devices. Out: the same ring and the same records that perf has. Must not: take a shared memory for the
//! plugin's that does not say so.
//!
//! The device is `ivshmem-plain`, whose second memory region is a file of the host. Its first page is laid out as that of a perf
//! ring (`struct perf_event_mmap_page`): the head is the plugin's, the tail ours. From the middle of that page on stand the words
//! of [`Word`]. The records are samples in the layout of the `samples` tracker; their identifier says what was sampled
//! (1 loads, 2 stores), and their process is 0: the plugin sees addresses and no processes.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use terrace_core::policy::SamplePeriods;
use terrace_core::units::PAGE_BYTES;

pub use super::emulated_ring::{LOADS, STORES};
use super::emulated_ring::{MAGIC, VERSION, WORDS_OFFSET, Word};
use crate::perf::record::{Layout, Record, Sample};
use crate::perf::ring::{Ring, RingCounts};

const DEVICES: &str = "/sys/bus/pci/devices";
/// Red Hat's number, and ivshmem's among its own (QEMU, docs/specs/ivshmem-spec.rst).
const VENDOR_AND_DEVICE: (&str, &str) = ("0x1af4", "0x1110");
/// [`Ring::spare_word`] counts from the middle of the page.
const _: () = assert!(WORDS_OFFSET == PAGE_BYTES / 2);
/// No interrupt announces samples, so they are fetched at this interval.
const FETCH: Duration = Duration::from_millis(20);

/// The plugin's ring.
#[derive(Debug)]
pub struct EmulatedSamples {
    ring: Ring,
    timer: OwnedFd,
}

impl EmulatedSamples {
    /// Finds the device and begins to sample; `None` where there is none of the plugin's.
    ///
    /// # Errors
    /// When there is one and it cannot be mapped.
    pub fn open(layout: Layout, periods: SamplePeriods) -> io::Result<Option<EmulatedSamples>> {
        let Ok(devices) = fs::read_dir(DEVICES) else { return Ok(None) };
        for device in devices.flatten().map(|entry| entry.path()).filter(|device| is_shared_memory(device)) {
            // The kernel lets a region be mapped only while its device is enabled.
            terrace_files::set(&device.join("enable"), "1")?;
            let region = OpenOptions::new().read(true).write(true).open(device.join("resource2"))?;
            let first = Ring::map(&region, layout, 1)?;
            let word = |word: Word| first.spare_word(word as usize).load(Ordering::Relaxed);
            if word(Word::Magic) != MAGIC || word(Word::Version) != VERSION {
                continue;
            }
            let pages = usize::try_from(word(Word::DataPages)).ok().filter(|pages| pages.is_power_of_two());
            let pages = pages.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the ring's size"))?;
            let ring = Ring::map(&region, layout, pages)?;
            let timer = rustix::time::timerfd_create(
                TimerfdClockId::Monotonic,
                TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
            )?;
            let every = Timespec { tv_sec: 0, tv_nsec: FETCH.as_nanos() as i64 };
            let spec = Itimerspec { it_interval: every, it_value: every };
            rustix::time::timerfd_settime(&timer, TimerfdTimerFlags::empty(), &spec)?;
            let samples = EmulatedSamples { ring, timer };
            samples.set_periods(periods);
            return Ok(Some(samples));
        }
        Ok(None)
    }

    /// Sets how often the plugin samples.
    pub fn set_periods(&self, periods: SamplePeriods) {
        for (word, period) in [(Word::LoadPeriod, periods.loads), (Word::StorePeriod, periods.stores)] {
            self.ring.spare_word(word as usize).store(period.into(), Ordering::Relaxed);
        }
    }

    /// Hands over what there is.
    pub fn drain(&mut self, each: &mut dyn FnMut(&Sample)) {
        // What the timer counted is of no interest, only that it stops saying so.
        let _ = rustix::io::read(&self.timer, &mut [0; 8]);
        self.ring.drain(&mut |record| {
            if let Record::Sample(sample) = record {
                each(&sample);
            }
        });
    }

    /// What went missing.
    pub fn counts(&self) -> RingCounts {
        self.ring.counts()
    }

    /// Becomes readable when it is time to fetch.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }
}

impl Drop for EmulatedSamples {
    fn drop(&mut self) {
        self.set_periods(SamplePeriods { loads: 0, stores: 0 });
    }
}

fn is_shared_memory(device: &Path) -> bool {
    let is = |file: &str, wanted: &str| fs::read_to_string(device.join(file)).is_ok_and(|text| text.trim() == wanted);
    is("vendor", VENDOR_AND_DEVICE.0) && is("device", VENDOR_AND_DEVICE.1)
}
