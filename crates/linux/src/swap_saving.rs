//! What pages in swap really save: the one place that says it.
//!
//! In: the kernel's figures of swap (/proc/swaps, SwapCached, Zswap and Zswapped of /proc/meminfo, mm_stat of each zram), and how many pages with
//! a swap entry are meant. Out: their parts, by where their data are and what memory that takes ([`saving`]), and the room that is left
//! ([`SwapFigures::room`]). Must not: read anything in [`saving`], which is a function of the figures alone.
//!
//! A page with a swap entry saves a page of memory, but for what holds its data:
//!
//! - a page of zeros has none: since Linux 6.12 the swap core notes it and writes nothing;
//! - zswap, where it is on, takes pages before any swap area, and compresses them into a pool of its own. What it rejects goes on to the area;
//! - zram holds it compressed. Where its `mem_limit` is met, writes fail, and the page stays in the swap cache;
//! - a page in the swap cache is in memory, whatever the page table says;
//! - a disk takes no memory.
//!
//! The kernel counts pools by the machine, not by the process: of what several share, each page counts alike.

use std::io;
use std::path::Path;

use terrace_core::units::Bytes;

use crate::pressure::{ZramUse, meminfo_bytes};
use crate::topology::swap::read_swaps;

/// zram takes memory by up to 16 pages at a time (zsmalloc's chains): this close to its limit nothing more fits.
const LEAST_ROOM: Bytes = Bytes::kib(64);

/// What the kernel says of swap, at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SwapFigures {
    /// The active areas, the highest priority first.
    pub areas: Vec<AreaFigures>,
    /// Pages that are in memory and have a place in swap, too: read from it or on the way to it, or mapped again since (SwapCached).
    pub cached: Bytes,
    /// Memory that zswap takes (Zswap).
    pub zswap_pool: Bytes,
    /// What it holds, before compression (Zswapped).
    pub zswap_stored: Bytes,
    /// Whether it takes more.
    pub zswap_enabled: bool,
    /// Swap entries of all processes, if they were counted.
    pub entries: Option<Bytes>,
}

/// One area.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AreaFigures {
    /// Its device or file.
    pub device: String,
    /// What it can hold.
    pub size: Bytes,
    /// Places taken.
    pub used: Bytes,
    /// What it is, if it is compressed memory.
    pub zram: Option<ZramUse>,
}

/// Pages in swap by where their data are, and what memory that takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwapSaving {
    /// Pages with a swap entry.
    pub swapped: Bytes,
    /// Of these, pages of zeros, which are stored nowhere.
    pub zeros: Bytes,
    /// In zram, before compression.
    pub zram_stored: Bytes,
    /// Memory that zram takes for it.
    pub zram_memory: Bytes,
    /// In zswap, before compression.
    pub zswap_stored: Bytes,
    /// Memory that zswap takes for it.
    pub zswap_pool: Bytes,
    /// Still in memory (the swap cache).
    pub swap_cache: Bytes,
    /// On a disk.
    pub disk: Bytes,
}

impl SwapSaving {
    /// Memory that holds their data compressed.
    pub fn occupied(&self) -> Bytes {
        self.zram_memory + self.zswap_pool
    }

    /// Memory that others can use because these pages are in swap; below zero where their data take more than they did.
    pub fn saved(&self) -> i64 {
        self.swapped.get() as i64 - (self.occupied() + self.swap_cache).get() as i64
    }
}

/// What `pages` in swap save. `device` is the area that they went to: they are in it as far as it goes, and else in the next.
pub fn saving(figures: &SwapFigures, device: Option<&str>, pages: Bytes) -> SwapSaving {
    let places = figures.used();
    let swapped = pages.min(places);
    let in_memory = figures.in_memory(swapped);
    let mut parts = SwapSaving {
        swapped,
        swap_cache: part(in_memory, swapped, figures.entries(swapped)),
        zswap_stored: part(figures.zswap_stored.min(places), swapped, places),
        zswap_pool: part(figures.zswap_pool, swapped, places),
        ..SwapSaving::default()
    };
    let mut left = swapped;
    let first = figures.areas.iter().filter(|area| Some(area.device.as_str()) == device);
    let others = figures.areas.iter().filter(|area| Some(area.device.as_str()) != device);
    for area in first.chain(others) {
        let here = left.min(area.used);
        left = left.saturating_sub(here);
        // What zswap holds has a place in the area and was never written to it, and neither was what is still in memory for want of room.
        let elsewhere = part(figures.zswap_stored, area.used, places) + part(in_memory, area.used, places);
        let written = area.used.saturating_sub(elsewhere);
        let Some(zram) = &area.zram else {
            parts.disk += part(written, here, area.used);
            continue;
        };
        let stored = zram.orig_data_bytes.min(area.used);
        parts.zram_stored += part(stored, here, area.used);
        parts.zeros += part(written.saturating_sub(stored), here, area.used);
        // Data of places given back just now are there a little longer, and not for these pages.
        parts.zram_memory += part(zram.mem_used_bytes, here, area.used.max(zram.orig_data_bytes));
    }
    parts
}

/// The part of `whole` that goes by `some` of `all`.
fn part(whole: Bytes, some: Bytes, all: Bytes) -> Bytes {
    if all == Bytes::ZERO {
        return Bytes::ZERO;
    }
    Bytes::new((u128::from(whole.get()) * u128::from(some.get()) / u128::from(all.get())) as u64)
}

impl SwapFigures {
    /// Reads them below `root`.
    ///
    /// # Errors
    /// When /proc/swaps or /proc/meminfo cannot be read. A zram that goes away meanwhile counts as one that holds nothing.
    pub fn read(root: &Path) -> io::Result<SwapFigures> {
        let meminfo = std::fs::read_to_string(root.join("proc/meminfo"))?;
        // Kernels before 5.19, or without zswap, have no such lines: what they do not say is not there, or cannot be known.
        let line = |name| meminfo_bytes(&meminfo, name).unwrap_or(Bytes::ZERO);
        let areas = read_swaps(root)?.into_iter().map(|area| {
            let id = area.device.strip_prefix("/dev/zram").and_then(|id| id.parse().ok()).filter(|_| area.compressed);
            AreaFigures {
                zram: id.map(|id| ZramUse::read(root, id).unwrap_or_default()),
                device: area.device,
                size: area.size_bytes,
                used: area.used_bytes,
            }
        });
        Ok(SwapFigures {
            areas: areas.collect(),
            cached: line("SwapCached:"),
            zswap_pool: line("Zswap:"),
            zswap_stored: line("Zswapped:"),
            zswap_enabled: zswap_is_on(root),
            entries: None,
        })
    }

    /// Whether it matters to `pages` in swap how much of the swap cache is mapped: only then is it worth counting the entries of all processes.
    pub fn needs_entries(&self, pages: Bytes) -> bool {
        self.cached.min(pages).get() > pages.get() / 128
    }

    /// Memory that compressed swap takes for all it holds in this area.
    pub fn occupied(&self, device: &str) -> Bytes {
        let area = self.areas.iter().find(|area| area.device == device);
        let zram = area.and_then(|area| area.zram).map_or(Bytes::ZERO, |zram| zram.mem_used_bytes);
        zram + area.map_or(Bytes::ZERO, |area| part(self.zswap_pool, area.used, self.used()))
    }

    /// The zram `device`, and the limit that it has met (its `mem_limit`).
    pub fn limit_met(&self, device: &str) -> Option<Bytes> {
        let zram = self.areas.iter().find(|area| area.device == device)?.zram?;
        zram.room().filter(|room| *room < LEAST_ROOM).map(|_| zram.limit_bytes)
    }

    /// What `device` can still take of what `free` says of all areas: where zram has a limit, no more than what fits into it as its data compress
    /// now. Places of other areas come into use only when it has none left.
    pub fn room(&self, device: &str, free: Bytes) -> Bytes {
        let area = self.areas.iter().find(|area| area.device == device);
        let limited = area.and_then(|area| {
            let zram = area.zram?;
            let room = zram.room()?;
            let fits = if room < LEAST_ROOM { 0.0 } else { room.get() as f64 * zram.ratio().unwrap_or(1.0).max(1.0) };
            Some(Bytes::new(fits as u64).min(area.size.saturating_sub(area.used)))
        });
        // zswap comes first, whatever the area's limit.
        limited.filter(|_| !self.zswap_enabled).map_or(free, |room| room.min(free))
    }

    /// Places taken in all areas.
    fn used(&self) -> Bytes {
        self.areas.iter().fold(Bytes::ZERO, |sum, area| sum + area.used)
    }

    /// Swap entries of all processes; as many as there are places, where they were not counted.
    fn entries(&self, own: Bytes) -> Bytes {
        let places = self.used();
        self.entries.map_or(places, |entries| entries.max(own).min(places))
    }

    /// Pages with a swap entry that are in memory. A cached page that is mapped again has a place in swap, and no entry.
    fn in_memory(&self, own: Bytes) -> Bytes {
        let entries = self.entries(own);
        let mapped = self.used().saturating_sub(entries);
        self.cached.saturating_sub(mapped).min(entries)
    }
}

/// Whether zswap takes what goes to swap.
pub fn zswap_is_on(root: &Path) -> bool {
    let text = std::fs::read_to_string(root.join("sys/module/zswap/parameters/enabled"));
    text.is_ok_and(|text| matches!(text.trim(), "Y" | "1"))
}

/// Pages that zswap has rejected since the machine started, which went on to the area behind it; `None` where debugfs is not to be read.
pub fn zswap_rejected(root: &Path) -> Option<u64> {
    let directory = std::fs::read_dir(root.join("sys/kernel/debug/zswap")).ok()?;
    let counts = directory.filter_map(|entry| {
        let entry = entry.ok()?;
        entry.file_name().to_str()?.starts_with("reject_").then_some(())?;
        std::fs::read_to_string(entry.path()).ok()?.trim().parse::<u64>().ok()
    });
    Some(counts.sum())
}

/// Swap entries of all processes below `root`, as far as they may be read.
pub fn entries_of_all(root: &Path) -> Option<Bytes> {
    let processes = std::fs::read_dir(root.join("proc")).ok()?;
    let pids = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    Some(pids.filter_map(|pid| swapped(root, pid)).fold(Bytes::ZERO, |sum, one| sum + one))
}

/// Swap entries of one process by the kernel's count (VmSwap), shared memory not included; `None` if it has no memory any more. One whose first
/// thread has ended shows it by its other threads.
pub fn swapped(root: &Path, pid: u32) -> Option<Bytes> {
    let of = |path: std::path::PathBuf| meminfo_bytes(&std::fs::read_to_string(path).ok()?, "VmSwap:");
    let process = root.join(format!("proc/{pid}"));
    of(process.join("status")).or_else(|| {
        let threads = std::fs::read_dir(process.join("task")).ok()?;
        threads.filter_map(|entry| of(entry.ok()?.path().join("status"))).next()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pressure::tests::tree;

    const DEVICE: Option<&str> = Some("/dev/zram1");

    fn zram(stored: u64, memory: u64, limit: u64) -> ZramUse {
        let mib = Bytes::mib;
        ZramUse {
            orig_data_bytes: mib(stored),
            mem_used_bytes: mib(memory),
            limit_bytes: mib(limit),
            ..ZramUse::default()
        }
    }

    fn area(device: &str, used: u64, zram: Option<ZramUse>) -> AreaFigures {
        AreaFigures { device: device.to_owned(), size: Bytes::mib(1000), used: Bytes::mib(used), zram }
    }

    fn of(areas: Vec<AreaFigures>) -> SwapFigures {
        SwapFigures { areas, ..SwapFigures::default() }
    }

    fn mib(bytes: Bytes) -> u64 {
        bytes.get() >> 20
    }

    #[test]
    fn own_zram_costs_what_it_takes() {
        let figures = of(vec![area("/dev/zram1", 400, Some(zram(400, 100, 0)))]);
        let parts = saving(&figures, DEVICE, Bytes::mib(400));
        assert_eq!((mib(parts.zram_stored), mib(parts.zram_memory), mib(parts.zeros)), (400, 100, 0));
        assert_eq!(parts.saved(), 300 << 20);
    }

    #[test]
    fn pages_of_zeros_save_all_of_themselves() {
        let figures = of(vec![area("/dev/zram1", 400, Some(zram(40, 10, 0)))]);
        let parts = saving(&figures, DEVICE, Bytes::mib(400));
        assert_eq!((mib(parts.zeros), mib(parts.zram_stored)), (360, 40));
        assert_eq!(parts.saved(), 390 << 20);
    }

    #[test]
    fn of_a_zram_that_others_use_counts_the_part_that_goes_by_pages() {
        let figures = of(vec![area("/dev/zram1", 400, Some(zram(400, 100, 0)))]);
        let parts = saving(&figures, DEVICE, Bytes::mib(100));
        assert_eq!((mib(parts.zram_stored), mib(parts.zram_memory)), (100, 25));
        assert_eq!(parts.saved(), 75 << 20);
    }

    #[test]
    fn what_a_full_zram_cannot_hold_is_on_the_disk_behind_it() {
        let figures = of(vec![area("/dev/zram1", 300, Some(zram(300, 75, 0))), area("/dev/sda2", 200, None)]);
        let parts = saving(&figures, DEVICE, Bytes::mib(400));
        assert_eq!((mib(parts.zram_memory), mib(parts.disk)), (75, 100));
        assert_eq!(parts.saved(), 325 << 20);
        // Of other areas it does not matter which comes first.
        let parts = saving(&figures, Some("/dev/sda2"), Bytes::mib(200));
        assert_eq!((mib(parts.disk), parts.occupied()), (200, Bytes::ZERO));
    }

    #[test]
    fn zswap_in_front_costs_its_pool_and_the_area_what_it_rejected() {
        let figures = SwapFigures {
            zswap_stored: Bytes::mib(300),
            zswap_pool: Bytes::mib(90),
            ..of(vec![area("/dev/zram1", 400, Some(zram(50, 50, 0)))])
        };
        let parts = saving(&figures, DEVICE, Bytes::mib(400));
        assert_eq!((mib(parts.zswap_stored), mib(parts.zswap_pool)), (300, 90));
        assert_eq!((mib(parts.zram_stored), mib(parts.zeros)), (50, 50));
        assert_eq!(parts.saved(), (400 - 90 - 50) << 20);
        let disk = SwapFigures { areas: vec![area("/dev/sda2", 400, None)], ..figures };
        let parts = saving(&disk, Some("/dev/sda2"), Bytes::mib(400));
        assert_eq!((mib(parts.disk), mib(parts.occupied())), (100, 90));
    }

    #[test]
    fn entries_of_pages_in_the_swap_cache_save_nothing() {
        // A limit of 16 MiB was met at 40 MiB; 24 more have an entry and are in memory.
        let met = SwapFigures { cached: Bytes::mib(24), ..of(vec![area("/dev/zram1", 64, Some(zram(40, 16, 16)))]) };
        let parts = saving(&met, DEVICE, Bytes::mib(64));
        assert_eq!((mib(parts.swap_cache), mib(parts.zram_stored), mib(parts.zeros)), (24, 40, 0));
        assert_eq!(parts.saved(), (64 - 24 - 16) << 20);
        // 10 of them were touched since: cached still, with a place, without an entry.
        let touched = SwapFigures { entries: Some(Bytes::mib(54)), ..met.clone() };
        let parts = saving(&touched, DEVICE, Bytes::mib(54));
        assert_eq!(mib(parts.swap_cache), 14);
        // Of another process's, too: of the cache each entry counts alike.
        let parts = saving(&SwapFigures { entries: Some(Bytes::mib(64)), ..met }, DEVICE, Bytes::mib(32));
        assert_eq!(mib(parts.swap_cache), 12);
    }

    #[test]
    fn more_pages_than_places_are_pages_that_came_back_meanwhile() {
        let figures = of(vec![area("/dev/zram1", 100, Some(zram(100, 25, 0)))]);
        assert_eq!(saving(&figures, DEVICE, Bytes::mib(400)).saved(), 75 << 20);
        assert_eq!(saving(&SwapFigures::default(), DEVICE, Bytes::mib(400)).saved(), 0);
        assert_eq!(saving(&figures, DEVICE, Bytes::ZERO), SwapSaving::default());
    }

    #[test]
    fn a_limit_bounds_the_room_of_zram() {
        let free = Bytes::mib(900);
        let room = |stored, memory, limit, on| {
            let areas = vec![area("/dev/zram1", 100, Some(zram(stored, memory, limit)))];
            SwapFigures { zswap_enabled: on, ..of(areas) }.room("/dev/zram1", free)
        };
        assert_eq!(room(100, 25, 0, false), free, "no limit");
        assert_eq!(room(100, 25, 50, false), Bytes::mib(100), "25 MiB at 4:1");
        assert_eq!(room(100, 50, 50, false), Bytes::ZERO);
        assert_eq!(room(100, 50, 50, true), free, "zswap takes it first");
        let met = of(vec![area("/dev/zram1", 100, Some(zram(100, 50, 50)))]);
        assert_eq!(met.limit_met("/dev/zram1"), Some(Bytes::mib(50)));
        assert_eq!(met.limit_met("/dev/zram2"), None);
        assert_eq!(of(vec![area("/dev/zram1", 100, Some(zram(100, 25, 50)))]).limit_met("/dev/zram1"), None);
    }

    #[test]
    fn the_figures_are_read_from_the_kernel_s_files() {
        let root = tree(&[
            ("proc/meminfo", "SwapCached: 8 kB\nZswap: 16 kB\nZswapped: 64 kB\n"),
            ("proc/swaps", "Filename\n/dev/zram3 partition 1024 256 5\n/dev/sda2 partition 2048 0 -2\n"),
            ("sys/block/zram3/mm_stat", "131072 4096 8192 65536 8192 0 0 0 0\n"),
            ("sys/module/zswap/parameters/enabled", "Y\n"),
            ("sys/kernel/debug/zswap/reject_alloc_fail", "3\n"),
            ("sys/kernel/debug/zswap/reject_compress_poor", "4\n"),
            ("sys/kernel/debug/zswap/written_back_pages", "100\n"),
            ("proc/7/status", "Name: a\nVmSwap:\t     128 kB\n"),
            ("proc/8/status", "Name: first thread has ended\n"),
            ("proc/8/task/8/status", "Name: first thread has ended\n"),
            ("proc/8/task/9/status", "Name: b\nVmSwap:\t      32 kB\n"),
            ("proc/9/status", "Name: a kernel thread\n"),
        ]);
        let figures = SwapFigures::read(root.path()).unwrap();
        assert_eq!(
            (figures.cached, figures.zswap_pool, figures.zswap_stored),
            (Bytes::kib(8), Bytes::kib(16), Bytes::kib(64))
        );
        assert!(figures.zswap_enabled);
        assert_eq!(figures.areas[0].zram.unwrap().limit_bytes, Bytes::kib(64));
        assert_eq!((figures.areas[0].used, figures.areas[1].zram), (Bytes::kib(256), None));
        assert_eq!(zswap_rejected(root.path()), Some(7));
        assert_eq!((swapped(root.path(), 7), swapped(root.path(), 9)), (Some(Bytes::kib(128)), None));
        assert_eq!(entries_of_all(root.path()), Some(Bytes::kib(160)));
        assert!(figures.needs_entries(Bytes::kib(256)) && !figures.needs_entries(Bytes::mib(256)));
    }
}
