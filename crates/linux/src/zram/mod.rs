//! Compressed swap for a run: a zram device of Terrace's own, set up and taken away again.
//!
//! In: a size and a priority. Out: a [`ZramSwap`] that is active, and is gone when dropped. Must not: touch a device
//! that it did not add itself, in use or not, nor leave one behind without saying so.
//!
//! The device is always a new one (`hot_add`): /dev/zram0 may look unused and still be meant for someone. If its owner is killed
//! the guard (see [`crate::guard`]) removes it within seconds.

mod compression;
pub(crate) mod device;
mod recompression;
pub mod trial;

use std::path::{Path, PathBuf};

use terrace_core::units::Bytes;

use crate::guard::Guard;
use crate::pressure::ZramUse;
use crate::sys;
use crate::topology::swap::{SwapArea, read_swaps};

pub use compression::{Compression, Tried};
pub use device::{Leftover, Owner, ZramError, ZramIdentity, belongs_to_a_run, has_pids_of_machine, leftovers};
use device::{OwnDevice, make_swap, path_text, step};
use recompression::SecondPass;

/// Compressors from best to worst for a swap tier where none is tried on the program's own pages ([`trial`]): speed counts more than
/// density, a refault waits for it.
const ALGORITHMS: [&str; 4] = ["lz4", "lzo-rle", "lzo", "zstd"];

/// What to set up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZramOptions {
    /// How much it holds, before compression.
    pub size: Bytes,
    /// Its swap priority, 0 to 32767. `None`: one more than the highest there is. Priorities are global: page-outs of
    /// every program go to the area with the highest one, so with a lower priority than another area's the pages that
    /// Terrace moves would end up there instead; with the highest, other programs' page-outs come here too.
    pub priority: Option<u16>,
    /// The compressor. `None`: lz4, or the fastest that the kernel has.
    pub algorithm: Option<String>,
}

impl ZramOptions {
    /// A device of this size, with default settings otherwise.
    pub fn of_size(size: Bytes) -> ZramOptions {
        ZramOptions { size, priority: None, algorithm: None }
    }
}

/// An active compressed swap area that belongs to this process. Dropping it takes it away.
#[derive(Debug)]
pub struct ZramSwap {
    /// What compresses again what stays, where the kernel can. It stands first: dropped, it ends before the device goes.
    second_pass: Option<SecondPass>,
    own: OwnDevice,
    size: Bytes,
    algorithm: String,
    priority: u16,
}

impl ZramSwap {
    /// Adds a zram device, makes it swap, and switches it on. With a guard, it is removed even if this process is killed.
    ///
    /// # Errors
    /// When the module, the rights, the memory or the compressor are missing; nothing is left behind then.
    pub fn set_up(options: &ZramOptions, guard: Option<&Guard>) -> Result<ZramSwap, ZramError> {
        let least = Bytes::mib(1);
        if options.size < least || options.size > Bytes::gib(1 << 20) {
            return Err(ZramError::Size { size: options.size, least });
        }
        let swaps = read_swaps(Path::new("/")).map_err(|source| step("/proc/swaps", source))?;
        let priority = options.priority.map_or_else(|| priority_above(&swaps), |wanted| wanted.min(MOST_PRIORITY));
        if options.priority.is_none()
            && let Some(area) = swaps.iter().find(|area| area.priority >= i32::from(MOST_PRIORITY))
        {
            return Err(ZramError::NoPriorityLeft { device: area.device.clone() });
        }
        // From here on, leaving by `?` drops the device and thereby removes it.
        let own = OwnDevice::add(guard)?;
        let mut swap = ZramSwap { own, size: options.size, algorithm: String::new(), priority, second_pass: None };
        swap.algorithm = swap.configure(options)?;
        swap.switch_on()?;
        tracing::info!(
            device = %swap.device().display(),
            size = %swap.size,
            algorithm = swap.algorithm,
            priority,
            second_pass = swap.second_pass.is_some(),
            "compressed swap is on"
        );
        Ok(swap)
    }

    /// Its device file, such as /dev/zram1.
    pub fn device(&self) -> PathBuf {
        self.own.identity.device()
    }

    /// Which device it is, beyond doubt.
    pub fn identity(&self) -> &ZramIdentity {
        &self.own.identity
    }

    /// Its number: 1 for /dev/zram1.
    pub fn id(&self) -> u32 {
        self.own.identity.id
    }

    /// How much it holds, before compression.
    pub fn size(&self) -> Bytes {
        self.size
    }

    /// Its compressor.
    pub fn algorithm(&self) -> &str {
        &self.algorithm
    }

    /// Its swap priority.
    pub fn priority(&self) -> u16 {
        self.priority
    }

    /// What it holds now, and what memory that takes.
    ///
    /// # Errors
    /// When the device was taken away by someone else.
    pub fn usage(&self) -> Result<ZramUse, crate::pressure::PressureError> {
        ZramUse::read(Path::new("/"), self.own.identity.id)
    }

    /// Takes every page back into memory and removes the device.
    ///
    /// # Errors
    /// When memory does not suffice, or someone holds the device; it then stays as it is, and the error says what to do.
    pub fn tear_down(mut self) -> Result<(), ZramError> {
        self.take_away()
    }

    fn configure(&mut self, options: &ZramOptions) -> Result<String, ZramError> {
        let identity = &self.own.identity;
        let available = compression::offered(&identity.read("comp_algorithm")?);
        let available: Vec<&str> = available.iter().map(String::as_str).collect();
        let wanted: Vec<&str> = match &options.algorithm {
            Some(wanted) => available.iter().copied().filter(|name| name == wanted).collect(),
            None => ALGORITHMS.iter().chain(&available).copied().filter(|name| available.contains(name)).collect(),
        };
        let none = options.algorithm.clone().unwrap_or_default();
        let mut chosen = Err(ZramError::Algorithm { wanted: none, available: available.join(", ") });
        // Up to 6.6 the kernel names compressors whose module it may not find, and refuses those here.
        for name in wanted {
            chosen = identity.write("comp_algorithm", name).map(|()| name);
            if chosen.is_ok() {
                break;
            }
        }
        let algorithm = chosen?;
        let whole_pages = Bytes::of_pages(options.size.pages());
        let directory = identity.directory();
        let again = recompression::is_there(&directory)
            && algorithm != recompression::DENSE
            && available.contains(&recompression::DENSE);
        // The kernel takes it before the size only.
        let again = again.then(|| recompression::configure(&directory));
        identity.write("disksize", &whole_pages.get().to_string())?;
        make_swap(&identity.device(), whole_pages)?;
        match again.map(|configured| configured.and_then(|()| SecondPass::start(&directory))) {
            None => {}
            Some(Ok(pass)) => self.second_pass = Some(pass),
            // It saves more, and is not needed.
            Some(Err(error)) => tracing::warn!(%error, "what stays in compressed swap is not compressed again"),
        }
        Ok(algorithm.to_owned())
    }

    fn switch_on(&self) -> Result<(), ZramError> {
        let device = self.device();
        sys::swapon(&path_text(&device), self.priority)
            .map_err(|source| step(&format!("swapon {}", device.display()), source))
    }

    fn take_away(&mut self) -> Result<(), ZramError> {
        self.second_pass = None;
        self.own.take_away()
    }
}

/// The highest priority that a swap area can have (swapon(2)).
const MOST_PRIORITY: u16 = 32767;

/// One more than the highest priority of the active areas. Areas without one of their own have negative priorities.
fn priority_above(swaps: &[SwapArea]) -> u16 {
    let highest = swaps.iter().map(|area| area.priority).max().unwrap_or(-1);
    u16::try_from(highest.saturating_add(1).clamp(0, 32767)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::device::write_header;
    use super::*;

    #[test]
    fn the_kernel_takes_our_header_for_a_swap_area() {
        let name = "the_kernel_takes_our_header_for_a_swap_area";
        // Root of a container may lack the right, or have /sys read-only.
        let read_only = |path: &str| {
            let flags = rustix::fs::statvfs(path).map(|found| found.f_flag);
            flags.is_ok_and(|flags| flags.contains(rustix::fs::StatVfsMountFlags::RDONLY))
        };
        let missing = if !Path::new("/sys/class/zram-control").exists() {
            Some("zram")
        } else if !crate::rights::Rights::of_this_process().holds("CAP_SYS_ADMIN") {
            Some("CAP_SYS_ADMIN, to swap to a device")
        } else if read_only("/sys") {
            Some("a /sys that can be written")
        } else {
            None
        };
        if let Some(missing) = missing {
            println!("SKIPPED {name}: needs {missing}");
            return;
        }
        // The same lock as the live tests: they list the zram devices.
        let _machine = terrace_fixtures::live::whole_machine();
        let size = Bytes::mib(8);
        let own = OwnDevice::add(None).unwrap();
        let mut swap = ZramSwap { own, size, algorithm: String::new(), priority: 0, second_pass: None };
        swap.identity().write("disksize", &size.get().to_string()).unwrap();
        write_header(&swap.device(), size, "terrace-1").unwrap();
        swap.switch_on().unwrap();
        let area = read_swaps(Path::new("/")).unwrap();
        let area = area.iter().find(|area| Path::new(&area.device) == swap.device()).unwrap().clone();
        assert_eq!(area.size_bytes, Bytes::of_pages(size.pages() - 1), "all but the header's page");
        // Another instance under the same number is not ours, and stays.
        let other = ZramIdentity { diskseq: Some(u64::MAX), ..swap.identity().clone() };
        assert!(matches!(other.take_away(), Err(ZramError::NotOurs { .. })));
        assert!(swap.identity().directory().exists());
        swap.take_away().unwrap();
        assert!(!swap.identity().directory().exists());
    }

    #[test]
    fn the_priority_is_above_all_others_and_stays_in_range() {
        let area = |priority| SwapArea {
            device: "/dev/sda2".to_owned(),
            compressed: false,
            size_bytes: Bytes::gib(1),
            used_bytes: Bytes::ZERO,
            priority,
        };
        assert_eq!(priority_above(&[]), 0);
        assert_eq!(priority_above(&[area(-2)]), 0);
        assert_eq!(priority_above(&[area(5), area(100)]), 101);
        assert_eq!(priority_above(&[area(32767)]), 32767);
    }

    #[test]
    fn a_size_of_nothing_is_refused_before_anything_is_touched() {
        let error = ZramSwap::set_up(&ZramOptions::of_size(Bytes::ZERO), None).unwrap_err();
        assert!(matches!(error, ZramError::Size { .. }));
        assert!(error.to_string().contains("zram:2GiB"), "{error}");
    }
}
