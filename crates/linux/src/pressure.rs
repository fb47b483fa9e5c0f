//! Pressure: the figures by which the governor throttles.
//!
//! In: /proc/pressure/memory, the free swap, and mm_stat of a zram device. Out: a [`PressureReading`]. Must not: judge
//! it. Major faults are counted per process, see `process`.

use std::io;
use std::path::Path;
use std::str::FromStr;

use terrace_core::units::Bytes;

/// What compressed swap holds and what that costs (/sys/block/zramN/mm_stat; admin-guide/blockdev/zram.rst).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct ZramUse {
    /// Bytes stored, before compression; pages filled with one value do not count.
    pub orig_data_bytes: Bytes,
    /// The same after compression.
    pub compressed_bytes: Bytes,
    /// Memory that it really takes, with the allocator's waste.
    pub mem_used_bytes: Bytes,
    /// What that may be at most (`mem_limit`); 0 without a limit.
    pub limit_bytes: Bytes,
    /// Pages filled with one value, which take no memory.
    pub same_filled_pages: u64,
    /// Pages that would not compress and are stored as they are.
    pub incompressible_pages: u64,
}

impl ZramUse {
    /// Bytes stored for each byte of memory taken; `None` while it holds nothing.
    pub fn ratio(&self) -> Option<f64> {
        let stored = self.orig_data_bytes + Bytes::of_pages(self.same_filled_pages);
        (stored > Bytes::ZERO).then(|| stored.get() as f64 / self.mem_used_bytes.get().max(1) as f64)
    }

    /// Bytes stored for each byte they compress to: how well the data compresses, whatever holes freed data left in the
    /// allocator's pages. `None` while it holds nothing.
    pub fn compressibility(&self) -> Option<f64> {
        let stored = self.orig_data_bytes + Bytes::of_pages(self.same_filled_pages);
        (stored > Bytes::ZERO).then(|| stored.get() as f64 / self.compressed_bytes.get().max(1) as f64)
    }

    /// Memory that compaction could give back: what is taken beyond the compressed data.
    pub fn wasted_bytes(&self) -> Bytes {
        self.mem_used_bytes.saturating_sub(self.compressed_bytes)
    }

    /// Memory that it may still take; `None` without a limit.
    pub fn room(&self) -> Option<Bytes> {
        (self.limit_bytes > Bytes::ZERO).then(|| self.limit_bytes.saturating_sub(self.mem_used_bytes))
    }

    /// Parses mm_stat: orig, compressed, used, limit, maximum, same pages, compacted, huge pages, ...
    pub fn parse(text: &str) -> Option<ZramUse> {
        let fields: Vec<u64> = text.split_ascii_whitespace().map_while(|field| field.parse().ok()).collect();
        Some(ZramUse {
            orig_data_bytes: Bytes::new(*fields.first()?),
            compressed_bytes: Bytes::new(*fields.get(1)?),
            mem_used_bytes: Bytes::new(*fields.get(2)?),
            limit_bytes: Bytes::new(*fields.get(3)?),
            same_filled_pages: *fields.get(5)?,
            // The column came with 4.19; Terrace asks for 5.10 at least, so it is there.
            incompressible_pages: fields.get(7).copied().unwrap_or(0),
        })
    }

    /// Reads the mm_stat of /dev/zram`id` below `root`.
    ///
    /// # Errors
    /// When the device is gone.
    pub fn read(root: &Path, id: u32) -> Result<ZramUse, PressureError> {
        let path = root.join(format!("sys/block/zram{id}/mm_stat"));
        let text = read(&path)?;
        ZramUse::parse(&text).ok_or_else(|| PressureError::Content { path: path.display().to_string(), text })
    }
}

/// How hard memory is pressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct PressureReading {
    /// Whether the kernel counts stalls (CONFIG_PSI, booted with psi=1 where that is needed). If not, the next three are 0.
    pub stalls_counted: bool,
    /// Share of the last ten seconds in which some task waited for memory, in percent.
    pub some_avg10: f64,
    /// Time in which some task waited for memory, since boot, in microseconds. Refaults from zram count.
    pub some_total_us: u64,
    /// Time in which every task that could have run waited, since boot, in microseconds.
    pub full_total_us: u64,
    /// Swap that is free, over all devices.
    pub swap_free_bytes: Bytes,
    /// The zram device asked for.
    pub zram: Option<ZramUse>,
}

/// Why pressure could not be read.
#[derive(Debug, thiserror::Error)]
pub enum PressureError {
    /// A file could not be read.
    #[error("{path}: {source}")]
    Read {
        /// The file.
        path: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// A file did not hold what it should.
    #[error("{path}: unexpected content {text:?}")]
    Content {
        /// The file.
        path: String,
        /// What stood in it.
        text: String,
    },
}

/// Memory that could be had without swapping, as the kernel estimates it (MemAvailable).
///
/// # Errors
/// When /proc/meminfo cannot be read or has no such line.
pub fn available_memory(root: &Path) -> Result<Bytes, PressureError> {
    let path = root.join("proc/meminfo");
    meminfo_bytes(&read(&path)?, "MemAvailable:").ok_or_else(|| PressureError::Content {
        path: path.display().to_string(),
        text: "no line MemAvailable".to_owned(),
    })
}

impl PressureReading {
    /// Reads the machine's figures, and those of one zram device if `zram` names one, below `root` ("/" or a fixture).
    ///
    /// # Errors
    /// When /proc/meminfo or the device cannot be read, or holds something else than it should.
    pub fn read(root: &Path, zram: Option<u32>) -> Result<PressureReading, PressureError> {
        let mut reading = PressureReading::default();
        let path = root.join("proc/pressure/memory");
        match std::fs::read_to_string(&path) {
            Ok(text) => {
                let stalls = parse_stalls(&text)
                    .ok_or_else(|| PressureError::Content { path: path.display().to_string(), text })?;
                (reading.some_avg10, reading.some_total_us, reading.full_total_us) = stalls;
                reading.stalls_counted = true;
            }
            // Not built in, or built in and switched off: the kernel says ENOENT or EOPNOTSUPP.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EOPNOTSUPP)) => {}
            Err(source) => return Err(PressureError::Read { path: path.display().to_string(), source }),
        }
        let path = root.join("proc/meminfo");
        let text = read(&path)?;
        reading.swap_free_bytes = meminfo_bytes(&text, "SwapFree:").ok_or_else(|| PressureError::Content {
            path: path.display().to_string(),
            text: "no line SwapFree".to_owned(),
        })?;
        reading.zram = zram.map(|id| ZramUse::read(root, id)).transpose()?;
        Ok(reading)
    }
}

/// The value of a line of /proc/meminfo, or of a node's meminfo without its "Node N" in front.
pub(crate) fn meminfo_bytes(text: &str, name: &str) -> Option<Bytes> {
    text.lines().find_map(|line| {
        let mut fields = line.split_ascii_whitespace().skip_while(|field| *field != name);
        fields.next()?;
        let kib: u64 = fields.next()?.parse().ok()?;
        Some(Bytes::kib(kib))
    })
}

fn read(path: &Path) -> Result<String, PressureError> {
    std::fs::read_to_string(path).map_err(|source| PressureError::Read { path: path.display().to_string(), source })
}

/// The averages and totals of /proc/pressure/memory: some avg10, some total, full total.
fn parse_stalls(text: &str) -> Option<(f64, u64, u64)> {
    Some((stall(text, "some", "avg10=")?, stall(text, "some", "total=")?, stall(text, "full", "total=")?))
}

/// A figure of a file of /proc/pressure, by the beginning of its line and its key (Documentation/accounting/psi.rst).
pub(crate) fn stall<T: FromStr>(text: &str, line: &str, key: &str) -> Option<T> {
    let line = text.lines().find(|candidate| candidate.starts_with(line))?;
    line.split_ascii_whitespace().find_map(|field| field.strip_prefix(key))?.parse().ok()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn all_figures_are_read() {
        let root = tree(&[
            (
                "proc/pressure/memory",
                "some avg10=1.25 avg60=0.50 avg300=0.10 total=12345\nfull avg10=0.75 avg60=0.1 avg300=0.0 total=678\n",
            ),
            ("proc/meminfo", "MemTotal: 100 kB\nSwapTotal: 2048 kB\nSwapFree:       1024 kB\n"),
            (
                "sys/block/zram1/mm_stat",
                "  8388608  2097152  2228224        0  2228224      512        0     3     3\n",
            ),
        ]);
        let reading = PressureReading::read(root.path(), Some(1)).unwrap();
        assert!(reading.stalls_counted);
        assert_eq!((reading.some_avg10, reading.some_total_us, reading.full_total_us), (1.25, 12345, 678));
        assert_eq!(reading.swap_free_bytes, Bytes::mib(1));
        let zram = reading.zram.unwrap();
        assert_eq!((zram.orig_data_bytes, zram.compressed_bytes), (Bytes::mib(8), Bytes::mib(2)));
        assert_eq!((zram.same_filled_pages, zram.incompressible_pages), (512, 3));
        assert!((zram.ratio().unwrap() - 10_485_760.0 / 2_228_224.0).abs() < 1e-9);
        // Freed holes in the allocator's pages say nothing of how well the data compresses: a throttle on them never lets go.
        let holes = ZramUse { mem_used_bytes: zram.orig_data_bytes, ..zram };
        assert_eq!(holes.compressibility(), zram.compressibility());
        assert_eq!(holes.wasted_bytes(), zram.orig_data_bytes.saturating_sub(zram.compressed_bytes));
    }

    #[test]
    fn a_kernel_without_stall_counts_is_said_to_be_one() {
        let root = tree(&[("proc/meminfo", "SwapFree: 0 kB\n")]);
        let reading = PressureReading::read(root.path(), None).unwrap();
        assert!(!reading.stalls_counted);
        assert_eq!(reading.zram, None);
    }

    #[test]
    fn missing_and_broken_files_are_named() {
        let root = tree(&[("proc/meminfo", "SwapFree: 0 kB\n"), ("sys/block/zram2/mm_stat", "what\n")]);
        let gone = PressureReading::read(root.path(), Some(1)).unwrap_err().to_string();
        assert!(gone.contains("zram1/mm_stat"), "{gone}");
        let broken = PressureReading::read(root.path(), Some(2)).unwrap_err().to_string();
        assert!(broken.contains("what"), "{broken}");
        let root = tree(&[("proc/pressure/memory", "nonsense"), ("proc/meminfo", "SwapFree: 0 kB\n")]);
        assert!(PressureReading::read(root.path(), None).is_err());
    }
}
