//! Terrace's own kernel module (`kmod/terrace_mm`): whether it is loaded and fits, and page-table walks through it.
//!
//! In: /dev/terrace_mm, processes, ranges of addresses. Out: what the module saw of each page ([`Seen`]). Must not: load the module,
//! which is an operator's decision, or take a module for another that speaks otherwise.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use terrace_core::units::{PAGE_BYTES, Vpn};

use crate::process::Process;
use crate::sys::terrace_mm as abi;

/// Where it is.
pub const DEVICE: &str = "/dev/terrace_mm";

/// The module can walk page tables (`TERRACE_MM_CAN_WALK`).
const CAN_WALK: u32 = 1;
const CAN_KVM: u32 = 2;
const CAN_LISTS: u32 = 4;
const WALK_CLEAR: u32 = 1;
const WALK_SKIP_IDLE: u32 = 2;
/// Most scans of one walk (`TERRACE_MM_MOST_SCANS`), the largest value of a page's counter.
pub const MOST_SCANS: u32 = 31;

/// The module, opened.
#[derive(Debug)]
pub struct KernelModule {
    pub(crate) device: File,
    can: u32,
    bytes: Vec<u8>,
}

/// A process as the module knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot(pub(crate) u32);

/// How to walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Walk {
    /// The first page.
    pub first: Vpn,
    /// How many.
    pub pages: u64,
    /// Whether the marks are cleared as well as read; then the TLBs are flushed, too.
    pub clear: bool,
    /// How often to scan: 1 to [`MOST_SCANS`]; more than once only with `clear`.
    pub scans: u32,
    /// Microseconds between two scans.
    pub interval_us: u32,
}

/// What a walk came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Walked {
    /// Pages with memory behind them.
    pub present: u64,
    /// The sum of all pages' counts.
    pub accessed: u64,
    /// Last-level page tables that later scans passed over, as nothing below them was used since the scan before.
    pub skipped: u64,
}

/// What a walk saw of one page (`TERRACE_MM_RESULT_*`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen(pub u16);

impl Seen {
    /// How many scans found it accessed.
    pub const fn count(self) -> u32 {
        (self.0 & 0x1f) as u32
    }

    /// Whether it is in memory.
    pub const fn present(self) -> bool {
        self.0 & 0x20 != 0
    }

    /// Whether it is part of a 2 MiB mapping.
    pub const fn huge(self) -> bool {
        self.0 & 0x40 != 0
    }

    /// Whether it is in swap; also while it is being moved.
    pub const fn swapped(self) -> bool {
        self.0 & 0x80 != 0
    }

    /// The node of a page that is in memory, where the kernel knows one.
    pub fn node(self) -> Option<u32> {
        let node = u32::from(self.0 >> 8);
        (self.present() && node < 255).then_some(node)
    }
}

/// Why the module cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ModuleError {
    /// It is not loaded.
    #[error("no {0}: the kernel module terrace_mm is not loaded (kmod/README.md; then modprobe terrace_mm)")]
    NotLoaded(
        /// Its device.
        String,
    ),
    /// The caller may not.
    #[error("{0}: needs root (CAP_SYS_ADMIN)")]
    NotPermitted(
        /// Its device.
        String,
    ),
    /// The device is another's.
    #[error("{device} is not Terrace's module: {source}")]
    Foreign {
        /// The device.
        device: String,
        /// What the question for the version led to.
        source: io::Error,
    },
    /// It is of another release.
    #[error("{device}: the module speaks version {found} and this Terrace version {wanted}: build the module of this release", wanted = abi::ABI)]
    Version {
        /// The device.
        device: String,
        /// The module's version.
        found: u32,
    },
    /// A call failed.
    #[error("{what}: {source}")]
    Call {
        /// The device, and for what.
        what: String,
        /// What the kernel said.
        source: io::Error,
    },
}

impl KernelModule {
    /// Opens the module, with memory for walks of `result_pages` pages.
    ///
    /// # Errors
    /// In one line what is missing and what to do.
    pub fn open(result_pages: u64) -> Result<KernelModule, ModuleError> {
        KernelModule::open_at(Path::new(DEVICE), result_pages)
    }

    fn open_at(path: &Path, result_pages: u64) -> Result<KernelModule, ModuleError> {
        let name = || path.display().to_string();
        let device = OpenOptions::new().read(true).write(true).open(path).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => ModuleError::NotLoaded(name()),
            io::ErrorKind::PermissionDenied => ModuleError::NotPermitted(name()),
            _ => ModuleError::Call { what: name(), source },
        })?;
        let version = abi::version(&device).map_err(|source| ModuleError::Foreign { device: name(), source })?;
        if version.abi != abi::ABI {
            return Err(ModuleError::Version { device: name(), found: version.abi });
        }
        let what = format!("{}: memory for results", name());
        abi::set_results(&device, result_pages).map_err(|source| ModuleError::Call { what, source })?;
        Ok(KernelModule { device, can: version.can, bytes: Vec::new() })
    }

    /// Whether it can walk page tables on this kernel.
    pub fn can_walk(&self) -> bool {
        self.can & CAN_WALK != 0
    }

    /// Whether its walks see what virtual machines (KVM) do with a process's memory.
    pub fn sees_guests(&self) -> bool {
        self.can & CAN_KVM != 0
    }

    /// Whether it can order the kernel's page lists and move pages on this kernel.
    pub fn can_order_lists(&self) -> bool {
        self.can & CAN_LISTS != 0
    }

    /// Names a process to the module.
    ///
    /// # Errors
    /// ESRCH if it is gone, ENOSPC if the module has no number left.
    pub fn add(&self, process: &Process) -> io::Result<Slot> {
        let pid = i32::try_from(process.pid()).map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))?;
        let slot = abi::add_target(&self.device, pid)?;
        // The pid may have gone to another process just before; while ours lives, the number is its own.
        if process.is_alive() {
            return Ok(Slot(slot));
        }
        abi::forget_target(&self.device, slot)?;
        Err(io::Error::from_raw_os_error(libc::ESRCH))
    }

    /// Gives a process's number back.
    ///
    /// # Errors
    /// When it has been given back already.
    pub fn forget(&self, slot: Slot) -> io::Result<()> {
        abi::forget_target(&self.device, slot.0)
    }

    /// Walks a range of a process; `seen` then has one entry a page.
    ///
    /// # Errors
    /// ESRCH if the process has ended or runs another program now, EINTR if a signal came, ENOSPC for a range beyond the results.
    pub fn walk(&mut self, slot: Slot, walk: Walk, seen: &mut Vec<Seen>) -> io::Result<Walked> {
        let start = walk.first.0 * PAGE_BYTES;
        let mut argument = abi::Walk {
            slot: slot.0,
            flags: if walk.clear { WALK_CLEAR | WALK_SKIP_IDLE } else { 0 },
            start,
            end: start + walk.pages * PAGE_BYTES,
            scans: walk.scans,
            interval_us: walk.interval_us,
            ..abi::Walk::default()
        };
        abi::walk(&self.device, &mut argument)?;
        self.bytes.resize(walk.pages as usize * 2, 0);
        self.device.read_exact_at(&mut self.bytes, 0)?;
        seen.clear();
        seen.extend(self.bytes.as_chunks::<2>().0.iter().map(|pair| Seen(u16::from_ne_bytes(*pair))));
        Ok(Walked { present: argument.present, accessed: argument.accessed, skipped: argument.skipped })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The value behind `#define NAME` in the module's header.
    pub(crate) fn defined(name: &str) -> u64 {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../kmod/terrace_mm/terrace_mm_abi.h");
        let text = std::fs::read_to_string(path).unwrap();
        let line = text.lines().find(|line| line.split_whitespace().nth(1) == Some(name));
        let value = line.unwrap_or_else(|| panic!("no {name}")).split_whitespace().nth(2).unwrap();
        let value = value.trim_end_matches("ULL");
        match value.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).unwrap(),
            None => value.parse().unwrap(),
        }
    }

    #[test]
    fn numbers_are_those_of_the_module_s_header() {
        for (name, value) in [
            ("TERRACE_MM_ABI", u64::from(abi::ABI)),
            ("TERRACE_MM_CAN_WALK", u64::from(CAN_WALK)),
            ("TERRACE_MM_CAN_KVM", u64::from(CAN_KVM)),
            ("TERRACE_MM_CAN_LISTS", u64::from(CAN_LISTS)),
            ("TERRACE_MM_COUNTS", abi::COUNTS as u64),
            ("TERRACE_MM_WALK_CLEAR", u64::from(WALK_CLEAR)),
            ("TERRACE_MM_WALK_SKIP_IDLE", u64::from(WALK_SKIP_IDLE)),
            ("TERRACE_MM_MOST_SCANS", u64::from(MOST_SCANS)),
            ("TERRACE_MM_IOCTL", 0xBE),
            ("TERRACE_MM_RESULT_NODE_SHIFT", 8),
        ] {
            assert_eq!(defined(name), value, "{name}");
        }
        assert_eq!(u64::from(Seen(0xffff).count()), defined("TERRACE_MM_RESULT_COUNT"));
        let bit = |name: &str| Seen(u16::try_from(defined(name)).unwrap());
        assert!(bit("TERRACE_MM_RESULT_PRESENT").present());
        assert!(bit("TERRACE_MM_RESULT_HUGE").huge());
        assert!(bit("TERRACE_MM_RESULT_SWAPPED").swapped());
    }

    #[test]
    fn a_result_is_read_as_the_module_writes_it() {
        let seen = Seen(3 | 0x20 | 1 << 8);
        assert_eq!((seen.count(), seen.present(), seen.huge(), seen.node()), (3, true, false, Some(1)));
        assert_eq!(Seen(0x20 | 255 << 8).node(), None);
        assert_eq!(Seen(0x80).node(), None, "what is not in memory is on no node");
    }

    #[test]
    fn another_file_is_not_taken_for_the_module() {
        let error = KernelModule::open_at(Path::new("/nowhere/terrace_mm"), 1).unwrap_err();
        assert!(matches!(&error, ModuleError::NotLoaded(device) if device == "/nowhere/terrace_mm"), "{error}");
        let error = KernelModule::open_at(Path::new("/dev/null"), 1).unwrap_err();
        assert!(matches!(error, ModuleError::Foreign { .. }), "{error}");
    }
}
