//! The system calls that no safe wrapper serves. The only file of this crate with unsafe code.
//!
//! In: checked arguments. Out: results as `io::Result`. Must not: hold policy, or keep a raw pointer past a call.
//!
//! It is long because all unsafe code is in one place, to be audited as a whole.
#![allow(unsafe_code)]

// ---- perf events: opening, control, and the ring the kernel writes records into ----

/// Opening, controlling and mapping perf events (perf_event_open(2)).
pub mod perf {
    use std::io;
    use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
    use std::sync::atomic::{AtomicU64, Ordering};

    use memmap2::{MmapOptions, MmapRaw};
    use perf_event_open_sys::bindings::{PERF_FLAG_FD_CLOEXEC, perf_event_attr, perf_event_mmap_page};
    use perf_event_open_sys::ioctls;

    /// Opens an event on a thread (`pid` -1: every thread) and a CPU (`cpu` -1: every CPU), close-on-exec.
    ///
    /// # Errors
    /// What the kernel says: ENOENT no such event here, EACCES or EPERM rights, EMFILE descriptors, ESRCH no such thread.
    pub fn open(attributes: &perf_event_attr, pid: i32, cpu: i32) -> io::Result<OwnedFd> {
        let mut attributes = *attributes;
        attributes.size = size_of::<perf_event_attr>() as u32;
        // SAFETY: `attributes` is a fully initialised structure of the size it states and outlives the call.
        let fd = unsafe {
            perf_event_open_sys::perf_event_open(&mut attributes, pid, cpu, -1, u64::from(PERF_FLAG_FD_CLOEXEC))
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just returned this descriptor to us, so nothing else owns it.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    fn checked(result: i32) -> io::Result<()> {
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Starts an event, and those that threads inherited from it.
    ///
    /// # Errors
    /// When the descriptor is not a perf event.
    pub fn enable(event: impl AsFd) -> io::Result<()> {
        // SAFETY: takes no pointer; the kernel refuses a descriptor that is not a perf event.
        checked(unsafe { ioctls::ENABLE(event.as_fd().as_raw_fd(), 0) })
    }

    /// Stops an event, and those that threads inherited from it.
    ///
    /// # Errors
    /// When the descriptor is not a perf event.
    pub fn disable(event: impl AsFd) -> io::Result<()> {
        // SAFETY: takes no pointer; the kernel refuses a descriptor that is not a perf event.
        checked(unsafe { ioctls::DISABLE(event.as_fd().as_raw_fd(), 0) })
    }

    /// Changes an event's sampling period. Events that threads have inherited already keep theirs.
    ///
    /// # Errors
    /// When the event is not a sampling event, or the period is too long for the hardware.
    pub fn set_period(event: impl AsFd, period: u64) -> io::Result<()> {
        let mut period = period;
        // SAFETY: the kernel reads one u64 through the pointer during the call, and `period` lives until it returns.
        checked(unsafe {
            libc::ioctl(event.as_fd().as_raw_fd(), perf_event_open_sys::bindings::PERIOD as _, &raw mut period)
        })
    }

    /// The number that this event's samples carry (PERF_SAMPLE_IDENTIFIER).
    ///
    /// # Errors
    /// When the descriptor is not a perf event.
    pub fn id(event: impl AsFd) -> io::Result<u64> {
        let mut id = 0_u64;
        // SAFETY: the kernel writes one u64 through the pointer during the call, and `id` lives until it returns.
        checked(unsafe { ioctls::ID(event.as_fd().as_raw_fd(), &raw mut id) })?;
        Ok(id)
    }

    /// Sends an event's records to another event's ring. Both must be of one CPU.
    ///
    /// # Errors
    /// When the two do not fit together.
    pub fn set_output(event: impl AsFd, ring_owner: impl AsFd) -> io::Result<()> {
        // SAFETY: takes two descriptors and no pointer.
        checked(unsafe { ioctls::SET_OUTPUT(event.as_fd().as_raw_fd(), ring_owner.as_fd().as_raw_fd()) })
    }

    /// The ring that the kernel writes an event's records into, and the one for raw trace data where there is one.
    #[derive(Debug)]
    pub struct MappedRing {
        header: MmapRaw,
        data_bytes: usize,
        page_bytes: usize,
        auxiliary: Option<MmapRaw>,
    }

    /// The two parts of what is unread; the second is not empty only where the ring's end lies within.
    pub type Unread<'a> = (&'a [u8], &'a [u8]);

    impl MappedRing {
        /// Maps an event's ring of `data_pages` pages (a power of two), with `auxiliary_pages` (0, or a power of two)
        /// for raw trace data.
        ///
        /// # Errors
        /// EPERM when it is more locked memory than is allowed (kernel.perf_event_mlock_kb), EINVAL for bad sizes.
        pub fn map(event: impl AsFd, data_pages: usize, auxiliary_pages: usize) -> io::Result<MappedRing> {
            let page_bytes = rustix::param::page_size();
            let data_bytes = data_pages * page_bytes;
            let fd = event.as_fd().as_raw_fd();
            let part = |bytes: usize, offset: u64| MmapOptions::new().offset(offset).len(bytes).map_raw(fd);
            let mut ring =
                MappedRing { header: part(page_bytes + data_bytes, 0)?, data_bytes, page_bytes, auxiliary: None };
            if auxiliary_pages > 0 {
                let (offset, bytes) = ((page_bytes + data_bytes) as u64, auxiliary_pages * page_bytes);
                let page = ring.page();
                // SAFETY: the page is mapped and writable; these two fields are ours to set before the second mmap,
                // and the kernel reads them only during it.
                unsafe {
                    (&raw mut (*page).aux_offset).write_volatile(offset);
                    (&raw mut (*page).aux_size).write_volatile(bytes as u64);
                }
                ring.auxiliary = Some(part(bytes, offset)?);
            }
            Ok(ring)
        }

        fn page(&self) -> *mut perf_event_mmap_page {
            self.header.as_mut_ptr().cast()
        }

        fn counter(&self, field: *mut u64) -> &AtomicU64 {
            // SAFETY: `field` is an aligned u64 within the mapped header page, which lives as long as `self`; both
            // sides only access it as a whole word.
            unsafe { AtomicU64::from_ptr(field) }
        }

        /// A word of the first page's second half, which perf leaves unused: a ring that somebody else than perf writes may
        /// be controlled there.
        ///
        /// # Panics
        /// When there are fewer words in it.
        pub fn spare_word(&self, index: usize) -> &AtomicU64 {
            let offset = self.page_bytes / 2 + index * size_of::<u64>();
            assert!(offset < self.page_bytes, "word {index} of a ring's first page");
            self.counter(self.header.as_mut_ptr().wrapping_add(offset).cast())
        }

        fn heads(&self) -> [&AtomicU64; 4] {
            let page = self.page();
            // SAFETY: only addresses of fields within the mapped page are taken, nothing is read.
            let fields = unsafe {
                [
                    &raw mut (*page).data_head,
                    &raw mut (*page).data_tail,
                    &raw mut (*page).aux_head,
                    &raw mut (*page).aux_tail,
                ]
            };
            fields.map(|field| self.counter(field))
        }

        fn span(start: *const u8, size: usize, tail: u64, head: u64) -> (NonNullSpan, NonNullSpan) {
            let unread = usize::try_from(head.wrapping_sub(tail)).unwrap_or(usize::MAX).min(size);
            let from = (tail % size as u64) as usize;
            let before_end = unread.min(size - from);
            // Wrapping arithmetic computes addresses without claiming anything; `slices` says why they are valid.
            ((start.wrapping_add(from), before_end), (start, unread - before_end))
        }

        /// What the kernel wrote and [`MappedRing::consume`] has not given back yet, with the position of its end.
        pub fn unread(&mut self) -> (Unread<'_>, u64) {
            let [head, tail, ..] = self.heads();
            // Acquire pairs with the kernel's barrier before it publishes the head: what lies below it is written.
            let (head, tail) = (head.load(Ordering::Acquire), tail.load(Ordering::Relaxed));
            let data = self.header.as_mut_ptr().wrapping_add(self.page_bytes);
            (slices(self, MappedRing::span(data, self.data_bytes, tail, head)), head)
        }

        /// Gives everything up to `end` back to the kernel.
        pub fn consume(&mut self, end: u64) {
            // Release: our reads of the records are over before the kernel may overwrite them.
            self.heads()[1].store(end, Ordering::Release);
        }

        /// Unread raw trace data, with the position of its end; nothing where the event has no such buffer.
        pub fn unread_auxiliary(&mut self) -> (Unread<'_>, u64) {
            let Some((start, bytes)) = self.auxiliary.as_ref().map(|part| (part.as_mut_ptr(), part.len())) else {
                return ((&[], &[]), 0);
            };
            let [_, _, head, tail] = self.heads();
            let (head, tail) = (head.load(Ordering::Acquire), tail.load(Ordering::Relaxed));
            (slices(self, MappedRing::span(start, bytes, tail, head)), head)
        }

        /// Gives raw trace data up to `end` back to the kernel.
        pub fn consume_auxiliary(&mut self, end: u64) {
            self.heads()[3].store(end, Ordering::Release);
        }
    }

    type NonNullSpan = (*const u8, usize);

    fn slices(_owner: &mut MappedRing, (first, second): (NonNullSpan, NonNullSpan)) -> Unread<'_> {
        // SAFETY: both spans lie within the data mapping (`span` bounds them by its size), which lives as long as the
        // borrowed owner. The kernel does not write between tail and head, and the tail only moves through `consume`,
        // which needs the owner mutably and so cannot run while these slices live.
        unsafe { (std::slice::from_raw_parts(first.0, first.1), std::slice::from_raw_parts(second.0, second.1)) }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn what_is_unread_is_cut_at_the_ring_s_end() {
            let start = std::ptr::without_provenance::<u8>(0x1000);
            let ((first, length), (second, rest)) = MappedRing::span(start, 64, 48, 80);
            assert_eq!((first as usize, length, second as usize, rest), (0x1030, 16, 0x1000, 16));
            let ((_, length), (_, rest)) = MappedRing::span(start, 64, 0, 64);
            assert_eq!((length, rest), (64, 0), "a full ring is read whole");
        }
    }
}

// ---- memory of our own on which trackers are proven ----

/// A private anonymous mapping of 4 KiB pages, touched page by page.
pub mod private_memory {
    use std::io;
    use std::ptr::NonNull;

    const PAGE: usize = 4096;
    /// A cache line of all processors this runs on.
    const LINE: usize = 64;

    /// The mapping. Its pages have no memory behind them until they are touched.
    #[derive(Debug)]
    pub struct PrivateMemory {
        start: NonNull<u8>,
        pages: usize,
    }

    impl PrivateMemory {
        /// Maps `pages` pages, 2 MiB aligned, never as huge pages.
        ///
        /// # Errors
        /// When there is no memory for it.
        pub fn map(pages: usize) -> io::Result<PrivateMemory> {
            const BLOCK: usize = 512 * PAGE;
            let bytes = pages * PAGE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
            let raw = unsafe { libc::mmap(std::ptr::null_mut(), bytes + BLOCK, protection, flags, -1, 0) };
            if raw == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            let skip = raw.addr().next_multiple_of(BLOCK) - raw.addr();
            let start: *mut u8 = raw.cast::<u8>().wrapping_add(skip);
            // SAFETY: what lies before and behind the aligned part is the rest of the mapping just made; nothing uses it.
            unsafe {
                if skip > 0 {
                    libc::munmap(raw, skip);
                }
                if BLOCK > skip {
                    libc::munmap(start.wrapping_add(bytes).cast(), BLOCK - skip);
                }
                // Refused only by kernels without huge pages, where there is nothing to prevent.
                libc::madvise(start.cast(), bytes, libc::MADV_NOHUGEPAGE);
            }
            let start = NonNull::new(start).ok_or_else(|| io::Error::other("mmap returned address 0"))?;
            Ok(PrivateMemory { start, pages })
        }

        /// The address of its first byte.
        pub fn address(&self) -> u64 {
            self.start.as_ptr().addr() as u64
        }

        /// How many pages it has.
        pub fn pages(&self) -> usize {
            self.pages
        }

        fn word(&self, page: usize, line: usize) -> *mut u64 {
            assert!(page < self.pages, "page {page} of {}", self.pages);
            self.start.as_ptr().wrapping_add(page * PAGE + line * LINE % PAGE).cast()
        }

        /// Frees the memory behind `pages` pages; the next read returns zero.
        ///
        /// # Errors
        /// As madvise(2): pages that are locked cannot be given back.
        pub fn give_back(&mut self, first: usize, pages: usize) -> io::Result<()> {
            assert!(first + pages <= self.pages, "pages {first} to {} of {}", first + pages, self.pages);
            let start = self.start.as_ptr().wrapping_add(first * PAGE);
            // SAFETY: within the mapping, and borrowed mutably by way of `self`: nobody holds a reference to what becomes zero.
            match unsafe { libc::madvise(start.cast(), pages * PAGE, libc::MADV_DONTNEED) } {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        }

        /// Reads the first word of a page.
        pub fn read(&self, page: usize) -> u64 {
            self.read_line(page, 0)
        }

        /// Writes the first word of a page.
        pub fn write(&mut self, page: usize, value: u64) {
            self.write_line(page, 0, value);
        }

        /// Reads the first word of a cache line of a page; after the last line comes the first again.
        pub fn read_line(&self, page: usize, line: usize) -> u64 {
            // SAFETY: the word is within the mapping and aligned, mapped readable, and any bytes are a valid u64.
            unsafe { self.word(page, line).read_volatile() }
        }

        /// Writes the first word of a cache line of a page; after the last line comes the first again.
        pub fn write_line(&mut self, page: usize, line: usize, value: u64) {
            // SAFETY: the word is within the mapping and aligned, mapped writable, and borrowed mutably by way of `self`.
            unsafe { self.word(page, line).write_volatile(value) }
        }
    }

    impl Drop for PrivateMemory {
        fn drop(&mut self) {
            // SAFETY: exactly the aligned part that `map` kept; no reference into it exists.
            unsafe { libc::munmap(self.start.as_ptr().cast(), self.pages * PAGE) };
        }
    }
}

// ---- Moving pages, swap, page residency, signals (movers, zram, pagemap, guard) --------------------------------

/// A stretch of another process's address space, laid out as the kernel's `struct iovec`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteRange {
    /// Its first address.
    pub address: usize,
    /// Its length in bytes.
    pub length: usize,
}

/// One run of pages with the same categories, as `PAGEMAP_SCAN` reports it (`struct page_region`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageRegion {
    /// Its first address.
    pub start: u64,
    /// The address after its last.
    pub end: u64,
    /// Its categories, `PAGE_IS_*`.
    pub categories: u64,
}

/// What to ask of `PAGEMAP_SCAN` (`struct pm_scan_arg` without its sizes and pointers; admin-guide/mm/pagemap.rst).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageScan {
    /// `PM_SCAN_*` flags.
    pub flags: u64,
    /// The first address.
    pub start: u64,
    /// The address after the last.
    pub end: u64,
    /// Stop after this many pages; 0 for all.
    pub max_pages: u64,
    /// Categories whose sense is turned round.
    pub category_inverted: u64,
    /// Pages must have all of these.
    pub category_mask: u64,
    /// Pages must have one of these, if it is not 0.
    pub category_anyof_mask: u64,
    /// Categories to report for each run.
    pub return_mask: u64,
}

#[repr(C)]
struct PageScanArgument {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// `_IOWR('f', 16, struct pm_scan_arg)` of linux/fs.h, 6.7 and later.
const PAGEMAP_SCAN: u64 = (3 << 30) | ((size_of::<PageScanArgument>() as u64) << 16) | (0x66 << 8) | 16;

/// Turns the result of a raw system call into a count or an error.
fn checked(result: i64) -> std::io::Result<usize> {
    usize::try_from(result).map_err(|_| std::io::Error::last_os_error())
}

/// move_pages(2) with `MPOL_MF_MOVE`: moves each page to its node in `nodes`, or asks where it is if that is `None`.
/// `status` receives a node or a negative errno for each page that the kernel came to; the others stay unchanged.
/// Returns the number of pages that were not moved.
///
/// # Errors
/// As move_pages(2); `EINVAL` where the slices' lengths differ.
pub fn move_pages(pid: u32, addresses: &[u64], nodes: Option<&[i32]>, status: &mut [i32]) -> std::io::Result<usize> {
    const MPOL_MF_MOVE: i64 = 2;
    if addresses.len() != status.len() || nodes.is_some_and(|nodes| nodes.len() != addresses.len()) {
        return Err(std::io::Error::from_raw_os_error(libc::EINVAL));
    }
    let nodes = nodes.map_or(std::ptr::null(), <[i32]>::as_ptr);
    // SAFETY: all three arrays live through the call and have `addresses.len()` elements, checked above; the kernel
    // only reads the first two and only writes the third. The addresses are the other process's and never followed here.
    let result = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            i64::from(pid),
            addresses.len(),
            addresses.as_ptr(),
            nodes,
            status.as_mut_ptr(),
            MPOL_MF_MOVE,
        )
    };
    checked(result)
}

/// process_madvise(2): gives `advice` for `ranges` of the process behind `pidfd`. Returns the bytes advised, which may
/// be fewer than asked for, and says nothing of what the advice brought about.
///
/// # Errors
/// As process_madvise(2) and madvise(2).
pub fn process_madvise(
    pidfd: std::os::fd::BorrowedFd<'_>,
    ranges: &[RemoteRange],
    advice: i32,
) -> std::io::Result<usize> {
    use std::os::fd::AsRawFd;
    // SAFETY: `RemoteRange` has the layout of `struct iovec` (two words, repr(C)); the array lives through the call and
    // is only read. The addresses in it belong to the other process.
    let result = unsafe {
        libc::syscall(
            libc::SYS_process_madvise,
            i64::from(pidfd.as_raw_fd()),
            ranges.as_ptr(),
            ranges.len(),
            i64::from(advice),
            0_i64,
        )
    };
    checked(result)
}

/// process_vm_readv(2): copies `ranges` of another process into `into`, one after the other. Returns the bytes copied.
///
/// # Errors
/// As process_vm_readv(2); `EINVAL` where `into` is shorter than the ranges together.
pub fn process_vm_readv(pid: u32, into: &mut [u8], ranges: &[RemoteRange]) -> std::io::Result<usize> {
    let wanted = ranges.iter().try_fold(0_usize, |sum, range| sum.checked_add(range.length));
    if wanted.is_none_or(|wanted| wanted > into.len()) {
        return Err(std::io::Error::from_raw_os_error(libc::EINVAL));
    }
    let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    // SAFETY: the one local vector is `into`, which lives through the call and is written only within its length;
    // `ranges` has the layout of an array of `struct iovec` and is only read.
    let result = unsafe {
        libc::syscall(
            libc::SYS_process_vm_readv,
            i64::from(pid),
            &raw const local,
            1_usize,
            ranges.as_ptr(),
            ranges.len(),
            0_usize,
        )
    };
    checked(result)
}

/// The `PAGEMAP_SCAN` ioctl on an open /proc/PID/pagemap. Returns how many of `regions` were filled, and the address
/// up to which the walk came.
///
/// # Errors
/// `ENOTTY` on kernels before 6.7, otherwise as the ioctl.
pub fn pagemap_scan(
    pagemap: std::os::fd::BorrowedFd<'_>,
    scan: &PageScan,
    regions: &mut [PageRegion],
) -> std::io::Result<(usize, u64)> {
    use std::os::fd::AsRawFd;
    let mut argument = PageScanArgument {
        size: size_of::<PageScanArgument>() as u64,
        flags: scan.flags,
        start: scan.start,
        end: scan.end,
        walk_end: scan.start,
        vec: regions.as_mut_ptr() as u64,
        vec_len: regions.len() as u64,
        max_pages: scan.max_pages,
        category_inverted: scan.category_inverted,
        category_mask: scan.category_mask,
        category_anyof_mask: scan.category_anyof_mask,
        return_mask: scan.return_mask,
    };
    // SAFETY: the argument is the kernel's struct with its size in the first field; `vec` points at `regions`, which
    // lives through the call and is written only within `vec_len` elements of matching layout.
    let filled = unsafe { libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN as libc::Ioctl, &raw mut argument) };
    Ok((checked(i64::from(filled))?, argument.walk_end))
}

/// What the page cache of a file says of a range, in pages (`struct cachestat` of linux/mman.h).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStat {
    /// In memory.
    pub cached: u64,
    /// Of those, dirty.
    pub dirty: u64,
    /// Of those, being written.
    pub writeback: u64,
    /// Evicted, and remembered. Of shared memory: in swap.
    pub evicted: u64,
    /// Evicted a short while ago.
    pub recently_evicted: u64,
}

/// `struct cachestat_range`.
#[repr(C)]
struct CacheRange {
    offset: u64,
    length: u64,
}

/// cachestat(2): how much of `length` bytes of a file from `offset` on is in the page cache, and how much was evicted from it.
///
/// # Errors
/// `ENOSYS` on kernels before 6.5, otherwise as cachestat(2).
pub fn cachestat(file: std::os::fd::BorrowedFd<'_>, offset: u64, length: u64) -> std::io::Result<CacheStat> {
    use std::os::fd::AsRawFd;
    /// The same number on every architecture but alpha (arch/*/syscalls); libc has none yet.
    const SYS_CACHESTAT: libc::c_long = 451;
    let range = CacheRange { offset, length };
    let mut found = CacheStat::default();
    // SAFETY: both structs have the kernel's layout (words, repr(C)) and live through the call; it reads the first and writes the second.
    let result = unsafe { libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), &raw const range, &raw mut found, 0) };
    checked(result).map(|_| found)
}

/// swapon(2) with a priority of its own, 0 to 32767.
///
/// # Errors
/// As swapon(2).
pub fn swapon(device: &std::ffi::CStr, priority: u16) -> std::io::Result<()> {
    const SWAP_FLAG_PREFER: i32 = 0x8000;
    // SAFETY: the path is a C string that lives through the call.
    let result = unsafe { libc::swapon(device.as_ptr(), SWAP_FLAG_PREFER | i32::from(priority & 0x7fff)) };
    checked(i64::from(result)).map(|_| ())
}

/// swapoff(2). Returns when every page is back in memory.
///
/// # Errors
/// As swapoff(2).
pub fn swapoff(device: &std::ffi::CStr) -> std::io::Result<()> {
    // SAFETY: the path is a C string that lives through the call.
    let result = unsafe { libc::swapoff(device.as_ptr()) };
    checked(i64::from(result)).map(|_| ())
}

/// The descriptors that a service manager passed to this process, with their names (sd_listen_fds(3)): `LISTEN_PID` is this process,
/// `LISTEN_FDS` counts them from number 3 on, `LISTEN_FDNAMES` has their names. All are sockets, and close-on-exec from now on. Without these
/// variables there are none. Call it before anything else is opened; there are none the second time.
///
/// # Errors
/// The variables make no sense, or a descriptor is not an open socket. Nothing is taken then.
pub fn passed_sockets() -> std::io::Result<Vec<(String, std::os::fd::OwnedFd)>> {
    use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};
    use std::sync::atomic::{AtomicBool, Ordering};
    const FIRST: i32 = 3;
    static TAKEN: AtomicBool = AtomicBool::new(false);

    let wrong = |text: String| std::io::Error::new(std::io::ErrorKind::InvalidInput, text);
    let variable = |name: &str| std::env::var(name).ok();
    let mine = variable("LISTEN_PID").is_some_and(|pid| pid == std::process::id().to_string());
    let Some(count) = variable("LISTEN_FDS").filter(|_| mine) else { return Ok(Vec::new()) };
    let end = count.parse().ok().and_then(|count: u16| FIRST.checked_add(i32::from(count)));
    let end = end.ok_or_else(|| wrong(format!("LISTEN_FDS={count:?} is no count of descriptors")))?;
    let names = variable("LISTEN_FDNAMES").unwrap_or_default();
    let mut names = names.split(':').map(str::to_owned);
    for number in FIRST..end {
        // SAFETY: it is borrowed for the two calls only, which fail for a number that is not open.
        let passed = unsafe { BorrowedFd::borrow_raw(number) };
        rustix::net::sockopt::socket_type(passed)
            .and_then(|_| rustix::io::fcntl_setfd(passed, rustix::io::FdFlags::CLOEXEC))
            .map_err(|errno| {
                wrong(format!("LISTEN_FDS={count}: descriptor {number} is not an open socket: {errno}"))
            })?;
    }
    if TAKEN.swap(true, Ordering::SeqCst) {
        return Ok(Vec::new());
    }
    // SAFETY: the manager passed them to this process, as LISTEN_PID says, for it to own; they are open, and taken once.
    Ok((FIRST..end).map(|number| (names.next().unwrap_or_default(), unsafe { OwnedFd::from_raw_fd(number) })).collect())
}

/// Ignores a signal from now on.
///
/// # Errors
/// When the number is not a signal, or one that cannot be ignored.
pub fn ignore_signal(signal: i32) -> std::io::Result<()> {
    // SAFETY: SIG_IGN runs no code of ours, so nothing has to be async-signal-safe.
    let previous = unsafe { libc::signal(signal, libc::SIG_IGN) };
    if previous == libc::SIG_ERR { Err(std::io::Error::last_os_error()) } else { Ok(()) }
}

// ---- asynchronous write protection of our own memory (userfaultfd) ----

/// userfaultfd(2) with `UFFD_FEATURE_WP_ASYNC`: the kernel records writes itself, and no fault needs an answer.
pub mod write_tracking {
    use std::io;
    use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

    /// `struct uffdio_api` of linux/userfaultfd.h.
    #[repr(C)]
    struct Api {
        api: u64,
        features: u64,
        ioctls: u64,
    }

    /// `struct uffdio_register`.
    #[repr(C)]
    struct Register {
        start: u64,
        bytes: u64,
        mode: u64,
        ioctls: u64,
    }

    const VERSION: u64 = 0xAA;
    const FEATURE_WP_UNPOPULATED: u64 = 1 << 13;
    const FEATURE_WP_ASYNC: u64 = 1 << 15;
    const MODE_WP: u64 = 1 << 1;

    /// `_IOWR(0xAA, number, size)`.
    const fn code(number: u64, bytes: usize) -> libc::Ioctl {
        ((3 << 30) | ((bytes as u64) << 16) | (VERSION << 8) | number) as libc::Ioctl
    }

    /// Opens a descriptor for the memory of this process.
    ///
    /// # Errors
    /// EPERM where vm.unprivileged_userfaultfd forbids it, ENOSYS or EINVAL where the kernel lacks it.
    pub fn create() -> io::Result<OwnedFd> {
        // SAFETY: takes no pointer.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just returned this descriptor to us, so nothing else owns it.
        let descriptor = unsafe { OwnedFd::from_raw_fd(fd as i32) };
        let mut api = Api { api: VERSION, features: FEATURE_WP_ASYNC | FEATURE_WP_UNPOPULATED, ioctls: 0 };
        // SAFETY: the argument is the kernel's struct for this code and lives through the call.
        let result = unsafe { libc::ioctl(descriptor.as_raw_fd(), code(0x3F, size_of::<Api>()), &raw mut api) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(descriptor) }
    }

    /// Registers memory of this process. Nothing in it changes until a scan protects it; closing the descriptor ends it.
    ///
    /// # Errors
    /// EINVAL for memory that cannot be registered, EBUSY for memory registered elsewhere.
    pub fn register(descriptor: impl AsFd, start: u64, bytes: u64) -> io::Result<()> {
        let mut register = Register { start, bytes, mode: MODE_WP, ioctls: 0 };
        let fd = descriptor.as_fd().as_raw_fd();
        // SAFETY: the argument is the kernel's struct for this code and lives through the call. Registering for asynchronous
        // write protection changes no content and blocks no access, so users of that memory are not disturbed.
        let result = unsafe { libc::ioctl(fd, code(0, size_of::<Register>()), &raw mut register) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

// ---- Terrace's own kernel module -------------------------------------------------------------------------------

/// The calls of /dev/terrace_mm; kmod/terrace_mm/terrace_mm_abi.h defines them, and a test compares the two.
pub mod terrace_mm {
    use std::io;
    use std::os::fd::{AsFd, AsRawFd};
    use std::sync::atomic::{AtomicU64, Ordering};

    /// What a module must answer to be understood.
    pub const ABI: u32 = 1;
    const GROUP: u64 = 0xBE;

    /// `struct terrace_mm_version`.
    #[repr(C)]
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Version {
        /// Out: the interface's version.
        pub abi: u32,
        /// Out: what it can do here.
        pub can: u32,
    }

    /// `struct terrace_mm_target`.
    #[repr(C)]
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Target {
        /// In: the process.
        pub pid: i32,
        /// Out: its number.
        pub slot: u32,
    }

    /// `struct terrace_mm_walk`.
    #[repr(C)]
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Walk {
        /// In: the target's number.
        pub slot: u32,
        /// In: flags.
        pub flags: u32,
        /// In: the first address.
        pub start: u64,
        /// In: the address behind the last byte.
        pub end: u64,
        /// In: how often to scan.
        pub scans: u32,
        /// In: microseconds between two scans.
        pub interval_us: u32,
        /// Out: pages with memory.
        pub present: u64,
        /// Out: the sum of all counts.
        pub accessed: u64,
        /// Out: page tables passed over as idle.
        pub skipped: u64,
    }

    /// `struct terrace_mm_start`.
    #[repr(C)]
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Start {
        /// Nodes that pages are demoted from, a bit each.
        pub fast_nodes: u64,
        /// Nodes that they go to.
        pub slow_nodes: u64,
        /// Entries of a ring: a power of two.
        pub ring_entries: u32,
        /// In 1/10000 of a node.
        pub high_watermark: u32,
        /// In 1/10000 of a node.
        pub low_watermark: u32,
        /// Milliseconds between two looks.
        pub period_ms: u32,
        /// Rear share of a list that may be demoted.
        pub candidates_percent: u32,
        /// Tail share of the active list that a cooling makes inactive.
        pub deactivate_percent: u32,
        /// 0.
        pub reserved: u64,
    }

    /// How many counts there are.
    pub const COUNTS: usize = 11;

    /// `_IOC(direction, 0xBE, number, size)`; 1 is what the caller writes, 2 what it reads.
    const fn code<T>(direction: u64, number: u64) -> u64 {
        (direction << 30) | ((size_of::<T>() as u64) << 16) | (GROUP << 8) | number
    }

    fn call<T>(device: impl AsFd, direction: u64, number: u64, argument: &mut T) -> io::Result<()> {
        let fd = device.as_fd().as_raw_fd();
        // SAFETY: the code carries the argument's size, so whatever answers it reads and writes no more than that much, through
        // a pointer that lives through the call. Every argument type here is plain numbers, for which all bytes are a value.
        let result =
            unsafe { libc::ioctl(fd, code::<T>(direction, number) as libc::Ioctl, std::ptr::from_mut(argument)) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Asks for the version.
    ///
    /// # Errors
    /// ENOTTY for a file that is none of the module's.
    pub fn version(device: impl AsFd) -> io::Result<Version> {
        let mut version = Version::default();
        call(device, 2, 0, &mut version)?;
        Ok(version)
    }

    /// Names a process. Returns its number.
    ///
    /// # Errors
    /// ESRCH for no process with memory of its own, ENOSPC when all numbers are taken.
    pub fn add_target(device: impl AsFd, pid: i32) -> io::Result<u32> {
        let mut target = Target { pid, slot: 0 };
        call(device, 3, 1, &mut target)?;
        Ok(target.slot)
    }

    /// Gives a number back.
    ///
    /// # Errors
    /// ENOENT when nobody has it.
    pub fn forget_target(device: impl AsFd, slot: u32) -> io::Result<()> {
        let mut slot = slot;
        call(device, 1, 2, &mut slot)
    }

    /// Sets memory for results aside, once an open file.
    ///
    /// # Errors
    /// EBUSY the second time, EINVAL for too much, ENOMEM.
    pub fn set_results(device: impl AsFd, pages: u64) -> io::Result<()> {
        let mut pages = pages;
        call(device, 1, 3, &mut pages)
    }

    /// Walks page tables; the results are then read from the start of the file.
    ///
    /// # Errors
    /// ESRCH when the target's memory is gone, EINTR when a signal came first, EINVAL, ENOSPC for more than the results hold.
    pub fn walk(device: impl AsFd, walk: &mut Walk) -> io::Result<()> {
        call(device, 3, 4, walk)
    }

    /// Starts rings and migration, until the file is closed.
    ///
    /// # Errors
    /// EBUSY when another file has them, EOPNOTSUPP where the kernel does not let the module, EINVAL.
    pub fn start(device: impl AsFd, start: &Start) -> io::Result<()> {
        call(device, 1, 5, &mut { *start })
    }

    /// Wakes the demotion threads.
    ///
    /// # Errors
    /// ENOENT when nothing was started.
    pub fn wake(device: impl AsFd, why: u32) -> io::Result<()> {
        call(device, 1, 6, &mut { why })
    }

    /// What was done since the start, in the order of `TERRACE_MM_ENTRIES_HOT` and so on.
    ///
    /// # Errors
    /// ENOENT when nothing was started.
    pub fn counts(device: impl AsFd) -> io::Result<[u64; COUNTS]> {
        let mut counts = [0; COUNTS];
        call(device, 2, 7, &mut counts)?;
        Ok(counts)
    }

    /// Any call at all, for tests that the module withstands it. `size` is what the call claims; more than the argument has is cut.
    ///
    /// # Errors
    /// Whatever the module answers.
    pub fn any(
        device: impl AsFd,
        direction: u8,
        number: u8,
        size: u16,
        argument: &mut [u8; 1 << 14],
    ) -> io::Result<i32> {
        let size = u64::from(size).min((1 << 14) - 1);
        let code = (u64::from(direction & 3) << 30) | (size << 16) | (GROUP << 8) | u64::from(number);
        // SAFETY: as in `call`: no code claims more bytes than the argument has.
        let result = unsafe { libc::ioctl(device.as_fd().as_raw_fd(), code as libc::Ioctl, argument.as_mut_ptr()) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
    }

    /// A ring that the module reads: one writer, one reader, no call between them.
    #[derive(Debug)]
    pub struct Ring {
        map: memmap2::MmapRaw,
        entries: u64,
        head: u64,
    }

    impl Ring {
        const TAIL: u64 = 8;
        const START: u64 = 512;

        /// Maps the ring at this offset of the device.
        ///
        /// # Errors
        /// EINVAL when nothing was started, or with another number of entries.
        pub fn map(device: &std::fs::File, offset: u64, entries: u32) -> io::Result<Ring> {
            let entries = u64::from(entries);
            let bytes = (Ring::START + entries) as usize * 8;
            let map = memmap2::MmapOptions::new().offset(offset).len(bytes).map_raw(device)?;
            Ok(Ring { map, entries, head: 0 })
        }

        fn word(&self, index: u64) -> &AtomicU64 {
            assert!(index < Ring::START + self.entries, "word {index} of a ring");
            // SAFETY: the word lies within the mapping, checked above, which is page-aligned and lives as long as `self`; the
            // other side is the kernel, and both sides access it as a whole word only.
            unsafe { AtomicU64::from_ptr(self.map.as_mut_ptr().cast::<u64>().add(index as usize)) }
        }

        /// Puts an entry in. Returns whether there was room.
        pub fn push(&mut self, entry: u64) -> bool {
            // Acquire pairs with the module's release: it has read what we write over.
            let tail = self.word(Ring::TAIL).load(Ordering::Acquire);
            if self.head.wrapping_sub(tail) >= self.entries {
                return false;
            }
            self.word(Ring::START + self.head % self.entries).store(entry, Ordering::Relaxed);
            self.head = self.head.wrapping_add(1);
            // Release: the entry is there before the module learns of it.
            self.word(0).store(self.head, Ordering::Release);
            true
        }

        /// Whether the module has worked everything off.
        pub fn is_empty(&self) -> bool {
            self.word(Ring::TAIL).load(Ordering::Acquire) == self.head
        }

        /// Writes any word of the ring, past all rules, for tests that the module withstands it.
        pub fn scribble(&self, index: u64, value: u64) {
            self.word(index % (Ring::START + self.entries)).store(value, Ordering::Relaxed);
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn codes_are_those_of_the_module() {
            // As the kernel's macros make them of terrace_mm_abi.h (printed by a C program).
            assert_eq!(code::<Version>(2, 0), 0x8008_be00);
            assert_eq!(code::<Target>(3, 1), 0xc008_be01);
            assert_eq!(code::<u32>(1, 2), 0x4004_be02);
            assert_eq!(code::<u64>(1, 3), 0x4008_be03);
            assert_eq!(code::<Walk>(3, 4), 0xc038_be04);
            assert_eq!(code::<Start>(1, 5), 0x4030_be05);
            assert_eq!(code::<u32>(1, 6), 0x4004_be06);
            assert_eq!(code::<[u64; COUNTS]>(2, 7), 0x8058_be07);
        }
    }
}

// ---- What we used ----------------------------------------------------------------------------------------------

/// getrusage(2): CPU time in user mode and in the kernel, and highest resident memory in KiB, of this process or of its
/// children that were waited for.
pub fn resource_usage(children: bool) -> (std::time::Duration, std::time::Duration, u64) {
    let who = if children { libc::RUSAGE_CHILDREN } else { libc::RUSAGE_SELF };
    // SAFETY: rusage is plain data, for which all zero bytes are a value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a live rusage, which the call fills; it fails only for an unknown `who`.
    unsafe { libc::getrusage(who, &raw mut usage) };
    let span =
        |time: libc::timeval| std::time::Duration::new(time.tv_sec.max(0) as u64, time.tv_usec.max(0) as u32 * 1000);
    (span(usage.ru_utime), span(usage.ru_stime), usage.ru_maxrss.max(0) as u64)
}

/// The processor time of all threads of a process so far, to the nanosecond: its processor clock, as clock_getcpuclockid(3) names it. A thread that
/// runs now is behind by a tick at most.
///
/// # Errors
/// `EINVAL` where there is no such process.
pub fn process_clock(pid: u32) -> std::io::Result<std::time::Duration> {
    // CPUCLOCK_SCHED of a process (linux/posix-timers.h): the complement of the pid, and 2 in the low three bits.
    let clock = (!(pid as libc::clockid_t) << 3) | 2;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a live timespec, which the call fills or leaves alone.
    if unsafe { libc::clock_gettime(clock, &raw mut time) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    Ok(std::time::Duration::new(time.tv_sec.max(0) as u64, time.tv_nsec.max(0) as u32))
}

/// Major faults of this thread so far (getrusage(2) with RUSAGE_THREAD), those on other processes' pages that it reads included.
pub fn thread_major_faults() -> u64 {
    // SAFETY: rusage is plain data, for which all zero bytes are a value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a live rusage, which the call fills; it fails only for an unknown `who`.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
    usage.ru_majflt.max(0) as u64
}

// ---- where this thread's memory comes from (measuring nodes) ----

/// Memory from a node of choice, in huge pages where they can be had.
pub mod placement {
    use std::io;

    /// New memory of this thread comes from this node alone, from now on (set_mempolicy(2) with MPOL_BIND).
    ///
    /// # Errors
    /// When there is no such node, or the thread may not use it.
    pub fn take_memory_from(node: u32) -> io::Result<()> {
        set_policy(libc::MPOL_BIND, node)
    }

    /// New memory of this thread comes from this node as long as it has some, from now on (set_mempolicy(2) with MPOL_PREFERRED).
    ///
    /// # Errors
    /// As [`take_memory_from`].
    pub fn prefer_memory_from(node: u32) -> io::Result<()> {
        set_policy(libc::MPOL_PREFERRED, node)
    }

    fn set_policy(mode: libc::c_int, node: u32) -> io::Result<()> {
        const BITS: usize = u64::BITS as usize;
        /// MAX_NUMNODES of the largest kernels (CONFIG_NODES_SHIFT 10).
        const NODES: usize = 1024;
        let mut mask = [0u64; NODES / BITS];
        let Some(word) = mask.get_mut(node as usize / BITS) else { return Err(io::ErrorKind::InvalidInput.into()) };
        *word |= 1 << (node as usize % BITS);
        // SAFETY: the mask is an array of NODES bits that lives through the call; the kernel reads one bit less than the argument says.
        let result = unsafe { libc::syscall(libc::SYS_set_mempolicy, mode, mask.as_ptr(), NODES + 1) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Asks for huge pages behind these values, best before they are touched. What the kernel cannot give stays small.
    pub fn ask_for_huge_pages<T: Copy>(values: &mut [T]) {
        advise(values, libc::MADV_HUGEPAGE);
    }

    /// Has the pages behind these values stay small. Those touched before stay what they are.
    pub fn ask_for_small_pages<T: Copy>(values: &mut [T]) {
        advise(values, libc::MADV_NOHUGEPAGE);
    }

    fn advise<T: Copy>(values: &mut [T], advice: libc::c_int) {
        const PAGE: usize = 4096;
        let start = (values.as_ptr() as usize).next_multiple_of(PAGE);
        let end = (values.as_ptr() as usize + size_of_val(values)) & !(PAGE - 1);
        if end > start {
            // SAFETY: whole pages within memory that is borrowed mutably; the advice changes how they are mapped, never what
            // they hold.
            unsafe { libc::madvise(start as *mut libc::c_void, end - start, advice) };
        }
    }

    /// Memory of this process that lies in huge pages, bytes; `None` if the kernel does not report it.
    pub fn huge_bytes_of_this_process() -> Option<u64> {
        let text = std::fs::read_to_string("/proc/self/smaps_rollup").ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("AnonHugePages:"))?;
        Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
    }
}

// ---- the allocator of a program that keeps large tables ----

/// An allocator that can ask for huge pages behind large allocations.
pub mod allocator {
    use std::alloc::{GlobalAlloc, Layout, System};
    use std::sync::atomic::{AtomicBool, Ordering};

    /// Least allocation that huge pages are asked for: a few of them, so that what lies in part on its edges is small.
    const LARGE: usize = 16 << 20;
    static ASKED: AtomicBool = AtomicBool::new(false);

    /// Asks for huge pages behind every large allocation from now on. A simulator's tables are read at random, and most of an access
    /// is then the host's own page walk. Never in a program whose own memory is measured or managed.
    pub fn use_huge_pages() {
        ASKED.store(true, Ordering::Relaxed);
    }

    /// The system's allocator, and the advice.
    #[derive(Debug)]
    pub struct WithHugePages;

    fn advise(start: *mut u8, size: usize) {
        const PAGE: usize = 4096;
        if size < LARGE || start.is_null() || !ASKED.load(Ordering::Relaxed) {
            return;
        }
        let (first, end) = ((start as usize).next_multiple_of(PAGE), (start as usize + size) & !(PAGE - 1));
        // SAFETY: whole pages within an allocation that was just made; the advice changes how they are mapped, never what they hold.
        unsafe { libc::madvise(first as *mut libc::c_void, end - first, libc::MADV_HUGEPAGE) };
    }

    // SAFETY: every call is the system allocator's with the caller's own arguments; the advice touches no content.
    unsafe impl GlobalAlloc for WithHugePages {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            // SAFETY: the caller's promise.
            let start = unsafe { System.alloc(layout) };
            advise(start, layout.size());
            start
        }
        unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
            // SAFETY: the caller's promise.
            let start = unsafe { System.alloc_zeroed(layout) };
            advise(start, layout.size());
            start
        }
        unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
            // SAFETY: the caller's promise.
            unsafe { System.dealloc(start, layout) };
        }
        unsafe fn realloc(&self, start: *mut u8, layout: Layout, size: usize) -> *mut u8 {
            // SAFETY: the caller's promise.
            let moved = unsafe { System.realloc(start, layout, size) };
            advise(moved, size);
            moved
        }
    }
}
