//! `damon`: the kernel's own access monitor (CONFIG_DAMON_SYSFS), by regions of memory that it splits and merges.
//!
//! In: the targets, and DAMON's directory in /sys. Out: PTE states, all pages of a region alike. Must not: take DAMON over from
//! another program (the kernel's default of one set of monitors at a time is respected: `nr_kdamonds` must be 0), or leave
//! anything behind: what is set up is claimed ([`DamonClaim`]), and the guard takes it away if Terrace is killed.
//!
//! By virtual addresses (`vaddr`) each target has a monitor of its own. Where the kernel has only physical addresses
//! (`paddr`), one monitor watches all memory and each page takes the word of the region its frame is in: measured on a random
//! hot set this is no better than chance (precision 0.03 where chance is 0.03), so the proof is expected to refuse it.

use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use terrace_core::observation::PteState;
use terrace_core::units::{Bytes, PAGE_BYTES, SpaceId, Vpn};

mod claim;

pub use claim::DamonClaim;

use super::rotation::Rotation;
use super::{Grade, ProofKind, Round, Sink, TrackError, Tracker};
use crate::guard::{Guard, ProtectToken, Undo, Undone};
use crate::pagemap::{Pagemap, PagemapEntry};

const NAME: &str = "damon";
const ADMIN: &str = "/sys/kernel/mm/damon/admin";
/// DAMON's own defaults (admin-guide/mm/damon/usage.rst): a sample every 5 ms, a verdict every 100 ms.
const SAMPLE_MICROS: u64 = 5_000;
const AGGREGATION: Duration = Duration::from_millis(100);
const UPDATE_MICROS: u64 = 1_000_000;
const REGIONS: Range<u64> = 10..1_000;

/// How DAMON addresses memory here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operations {
    /// By the virtual addresses of each process.
    Virtual,
    /// By physical addresses, for the whole machine.
    Physical,
}

/// A region and how often it was seen accessed in an aggregation interval.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Region {
    addresses: Range<u64>,
    accesses: u64,
}

/// The tracker.
#[derive(Debug)]
pub struct Damon {
    admin: PathBuf,
    operations: Operations,
    /// The processes it is set up for, in the order of their monitors; empty while nothing is set up.
    pids: Vec<u32>,
    rotation: Rotation,
    mean_region: Bytes,
    /// What is set up now.
    claimed: Option<Claimed>,
    /// After the claim, so that it goes last. `None` for a directory that is not the kernel's.
    guard: Option<Guard>,
}

/// Monitors that are set up, and the record that would take them away.
#[derive(Debug)]
struct Claimed {
    claim: DamonClaim,
    token: Option<ProtectToken>,
}

impl Damon {
    /// Finds out whether DAMON is there and free. Nothing is set up before the first round.
    ///
    /// # Errors
    /// When the kernel has none, another program uses it, or the rights are missing.
    pub fn open() -> Result<Damon, TrackError> {
        Damon::open_under(Path::new(ADMIN))
    }

    /// Uses a directory laid out like DAMON's own, which tests make.
    ///
    /// # Errors
    /// As [`Damon::open`].
    pub fn open_under(admin: &Path) -> Result<Damon, TrackError> {
        let unavailable = |reason| TrackError::Unavailable { tracker: NAME, reason };
        let path = admin.join("kdamonds/nr_kdamonds");
        let count = fs::read_to_string(&path).map_err(|error| {
            unavailable(match error.kind() {
                io::ErrorKind::NotFound => {
                    format!("no {}: the kernel is built without CONFIG_DAMON_SYSFS", path.display())
                }
                io::ErrorKind::PermissionDenied => format!("{}: needs root", path.display()),
                _ => format!("{}: {error}", path.display()),
            })
        })?;
        if count.trim() != "0" {
            let state = fs::read_to_string(admin.join("kdamonds/0/state")).unwrap_or_default();
            return Err(unavailable(format!(
                "another program has set DAMON up (nr_kdamonds is {}, kdamond 0 is {}) and Terrace does not take it over: end that \
                 program, or write off to kdamonds/0/state and 0 to {} yourself",
                count.trim(),
                state.trim(),
                path.display()
            )));
        }
        // A directory that is not the kernel's needs no protection, and has nobody who would serve it.
        let guard = if admin == Path::new(ADMIN) {
            Some(Guard::start().map_err(|error| unavailable(error.to_string()))?)
        } else {
            None
        };
        let mut damon = Damon {
            admin: admin.to_owned(),
            operations: Operations::Virtual,
            pids: Vec::new(),
            rotation: Rotation::default(),
            mean_region: Bytes::ZERO,
            claimed: None,
            guard,
        };
        // Which kinds of addresses there are shows only once a monitor is set up.
        let claim = damon.claim(1).map_err(|error| match error {
            TrackError::Call { source, .. } if source.raw_os_error() == Some(libc::EBUSY) => {
                unavailable("another monitor of this kernel runs (EBUSY), such as damon_stat, damon_reclaim or damon_lru_sort: turn it off".to_owned())
            }
            other => other,
        })?;
        let available = damon.mark(0, &claim).and_then(|context| damon.read(&context.join("avail_operations")));
        damon.stop();
        let available = available?;
        damon.operations = match available.split_ascii_whitespace().find(|&name| name == "vaddr" || name == "paddr") {
            Some(_) if available.split_ascii_whitespace().any(|name| name == "vaddr") => Operations::Virtual,
            Some(_) => Operations::Physical,
            None => {
                return Err(unavailable(format!(
                    "DAMON offers neither vaddr nor paddr here, only {:?}",
                    available.trim()
                )));
            }
        };
        Ok(damon)
    }

    /// How DAMON addresses memory here.
    pub fn operations(&self) -> Operations {
        self.operations
    }

    fn read(&self, path: &Path) -> Result<String, TrackError> {
        fs::read_to_string(path).map_err(|source| TrackError::call(NAME, format!("read {}", path.display()), source))
    }

    fn write(&self, path: &Path, value: &str) -> Result<(), TrackError> {
        let failed = |source| TrackError::call(NAME, format!("write {value:?} to {}", path.display()), source);
        terrace_files::set(path, value).map_err(failed)
    }

    fn monitor(&self, index: usize) -> PathBuf {
        self.admin.join("kdamonds").join(index.to_string())
    }

    /// Sets monitors up for these processes and starts them.
    fn start(&mut self, pids: &[u32]) -> Result<(), TrackError> {
        self.stop();
        let count_path = self.admin.join("kdamonds/nr_kdamonds");
        let count = self.read(&count_path)?;
        if count.trim() != "0" {
            let reason = format!("another program has set DAMON up meanwhile (nr_kdamonds is {})", count.trim());
            return Err(TrackError::Unavailable { tracker: NAME, reason });
        }
        let monitors = if self.operations == Operations::Virtual { pids.len() } else { 1 };
        let claim = self.claim(monitors)?;
        self.pids = pids.to_vec();
        for (index, pid) in pids.iter().enumerate().take(monitors) {
            let context = self.mark(index, &claim)?;
            let operations = if self.operations == Operations::Virtual { "vaddr" } else { "paddr" };
            let settings = [
                ("operations", operations.to_owned()),
                ("monitoring_attrs/intervals/sample_us", SAMPLE_MICROS.to_string()),
                ("monitoring_attrs/intervals/aggr_us", AGGREGATION.as_micros().to_string()),
                ("monitoring_attrs/intervals/update_us", UPDATE_MICROS.to_string()),
                ("monitoring_attrs/nr_regions/max", REGIONS.end.to_string()),
                ("monitoring_attrs/nr_regions/min", REGIONS.start.to_string()),
                ("targets/nr_targets", "1".to_owned()),
                ("schemes/0/action", "stat".to_owned()),
                ("schemes/0/access_pattern/nr_accesses/max", u32::MAX.to_string()),
                ("schemes/0/access_pattern/age/max", u32::MAX.to_string()),
            ];
            for (file, value) in settings {
                self.write(&context.join(file), &value)?;
            }
            if self.operations == Operations::Virtual {
                self.write(&context.join("targets/0/pid_target"), &pid.to_string())?;
            } else {
                self.physical_regions(&context.join("targets/0/regions"))?;
            }
            self.write(&self.monitor(index).join("state"), "on")?;
        }
        Ok(())
    }

    /// Gives DAMON the machine's memory to watch.
    fn physical_regions(&self, directory: &Path) -> Result<(), TrackError> {
        let map = self.read(Path::new("/proc/iomem"))?;
        let memory = system_memory(&map);
        self.write(&directory.join("nr_regions"), &memory.len().to_string())?;
        for (index, range) in memory.iter().enumerate() {
            self.write(&directory.join(format!("{index}/start")), &range.start.to_string())?;
            self.write(&directory.join(format!("{index}/end")), &range.end.to_string())?;
        }
        Ok(())
    }

    /// Has the kernel create `monitors` monitors. From here on they are ours, also if the rest fails or Terrace is killed.
    fn claim(&mut self, monitors: usize) -> Result<DamonClaim, TrackError> {
        let claim = DamonClaim::new(&self.admin, monitors);
        let record = Undo::Damon { claim: claim.clone() };
        let token = self.guard.as_ref().map(|guard| guard.protect(record)).transpose();
        let token = token.map_err(|error| TrackError::Unavailable { tracker: NAME, reason: error.to_string() })?;
        self.claimed = Some(Claimed { claim: claim.clone(), token });
        let made = self.write(&self.admin.join("kdamonds/nr_kdamonds"), &monitors.to_string());
        made.map(|()| claim).inspect_err(|_| {
            // Nothing was made, so that there is nothing to take away.
            if let Some(token) = self.claimed.take().and_then(|claimed| claimed.token) {
                drop(token.forget());
            }
        })
    }

    /// Gives a monitor its context, and in it a scheme that only counts, over all regions (its tried regions are what DAMON knows) and
    /// carries the claim's mark. Returns the context's directory.
    fn mark(&self, index: usize, claim: &DamonClaim) -> Result<PathBuf, TrackError> {
        let contexts = self.monitor(index).join("contexts");
        let context = contexts.join("0");
        self.write(&contexts.join("nr_contexts"), "1")?;
        self.write(&context.join("schemes/nr_schemes"), "1")?;
        self.write(&context.join(claim::MARK_FILE), &claim.mark().to_string())?;
        Ok(context)
    }

    /// Stops our monitors and takes them away. Does nothing where none is ours.
    fn stop(&mut self) {
        self.pids.clear();
        let Some(Claimed { claim, token }) = self.claimed.take() else { return };
        match claim.take_away() {
            Ok(undone) => {
                if undone == Undone::Theirs {
                    tracing::warn!("another program has set DAMON up in place of Terrace's monitors; it is left alone");
                }
                // Should the guardian be gone, the record went with it.
                drop(token.map(ProtectToken::forget));
            }
            Err((path, error)) => {
                tracing::warn!("{}: {error}: DAMON is left set up; the guard goes on trying", path.display());
            }
        }
    }

    /// What a monitor knows now.
    fn regions(&self, monitor: usize) -> Result<Vec<Region>, TrackError> {
        let state = self.monitor(monitor).join("state");
        self.write(&state, "update_schemes_tried_regions")?;
        let directory = self.monitor(monitor).join("contexts/0/schemes/0/tried_regions");
        let failed = |path: &Path, source| TrackError::call(NAME, format!("read {}", path.display()), source);
        let entries = fs::read_dir(&directory).map_err(|source| failed(&directory, source))?;
        let mut regions = Vec::new();
        for entry in entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()) {
            let number = |file: &str| -> Result<u64, TrackError> {
                let path = entry.join(file);
                let text = self.read(&path)?;
                let invalid = || io::Error::new(io::ErrorKind::InvalidData, format!("{text:?} is no number"));
                text.trim().parse().map_err(|_| failed(&path, invalid()))
            };
            regions.push(Region { addresses: number("start")?..number("end")?, accesses: number("nr_accesses")? });
        }
        regions.sort_unstable_by_key(|region| region.addresses.start);
        Ok(regions)
    }
}

/// Whether the region that an address lies in was accessed; `None` if it lies in none.
fn accessed_at(regions: &[Region], address: u64) -> Option<bool> {
    let after = regions.partition_point(|region| region.addresses.start <= address);
    let region = regions.get(after.checked_sub(1)?)?;
    region.addresses.contains(&address).then_some(region.accesses > 0)
}

/// The ranges of ordinary memory in /proc/iomem.
fn system_memory(map: &str) -> Vec<Range<u64>> {
    let line = |line: &str| {
        let (range, name) = line.split_once(" : ")?;
        let (start, last) = range.split_once('-')?;
        let number = |text: &str| u64::from_str_radix(text.trim(), 16).ok();
        (name == "System RAM").then_some(number(start)?..number(last)? + 1)
    };
    map.lines().filter_map(line).filter(|range| range.end > 1).collect()
}

impl Tracker for Damon {
    fn name(&self) -> &'static str {
        NAME
    }

    fn grade(&self) -> Grade {
        // A region may be one page, but the resolution is the mean size of its regions, once there are some.
        let granularity_bytes = if self.mean_region == Bytes::ZERO { Bytes::new(PAGE_BYTES) } else { self.mean_region };
        Grade { granularity_bytes, reads: true, writes: true, cost_ns_per_page: None }
    }

    fn scan(&mut self, round: &Round<'_>, sink: &mut dyn Sink) -> Result<(), TrackError> {
        let &Round { now, targets, tiers, share } = round;
        if targets.is_empty() {
            self.stop();
            return Ok(());
        }
        let pids: Vec<u32> = targets.iter().map(|target| target.process.pid()).collect();
        let fresh = self.pids != pids;
        if fresh {
            // A pid that is gone is an invalid one to DAMON.
            self.start(&pids).map_err(|error| match targets.iter().find(|target| !target.process.is_alive()) {
                Some(gone) => TrackError::Gone { pid: gone.process.pid() },
                None => error,
            })?;
        }
        let physical = match self.operations {
            Operations::Physical if !fresh => Some(self.regions(0)?),
            _ => None,
        };
        let (mut bytes, mut count) = (0, 0);
        for (index, target) in targets.iter().enumerate() {
            let regions = match &physical {
                Some(regions) => regions.clone(),
                None if fresh => Vec::new(),
                None => match self.regions(index) {
                    Err(_) if !target.process.is_alive() => continue,
                    result => result?,
                },
            };
            bytes += regions.iter().map(|region| region.addresses.end - region.addresses.start).sum::<u64>();
            count += regions.len() as u64;
            let call = |source| TrackError::call(NAME, format!("/proc/{}/pagemap", target.process.pid()), source);
            let mut pagemap = match Pagemap::open(target.process.pid()) {
                Err(_) if !target.process.is_alive() => continue,
                result => result.map_err(call)?,
            };
            let mut entries = [PagemapEntry::default(); 512];
            let mut ptes = Vec::with_capacity(512);
            for piece in self.rotation.pieces(now, target, share) {
                let entries = &mut entries[..piece.pages];
                pagemap.entries(piece.first, entries).map_err(call)?;
                ptes.clear();
                for (page, entry) in entries.iter().enumerate() {
                    let address = match self.operations {
                        Operations::Virtual => Vpn(piece.first.0 + page as u64).address(),
                        Operations::Physical => entry.frame().unwrap_or(0) * PAGE_BYTES,
                    };
                    ptes.push(if entry.present() {
                        let tier = tiers.tier_of_frame(entry.frame().unwrap_or(0));
                        PteState::placed(tier).with_accessed(accessed_at(&regions, address) == Some(true))
                    } else {
                        tiers.swap_tier().filter(|_| entry.swapped()).map_or(PteState::ABSENT, PteState::placed)
                    });
                }
                // The marks are DAMON's own: its result always covers its last aggregation interval.
                let window = (piece.turn && !fresh).then_some(AGGREGATION);
                sink.scan(target.space, piece.first, &ptes, window, piece.turn);
            }
        }
        self.mean_region = bytes.checked_div(count).map_or(self.mean_region, Bytes::new);
        Ok(())
    }

    fn sees_virtual_machines(&self) -> bool {
        true
    }

    fn forget(&mut self, space: SpaceId) {
        self.rotation.forget(space);
    }

    fn proof_kind(&self) -> ProofKind {
        // Regions take about ten aggregation intervals to settle.
        ProofKind::Marks { dwell: Duration::from_secs(1) }
    }
}

impl Drop for Damon {
    fn drop(&mut self) {
        self.stop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::{Backing, MemoryRange, Process};
    use crate::topology::TierMap;
    use crate::trackers::Target;
    use terrace_core::units::Time;

    /// DAMON's directory as the kernel lays it out for one monitor, as plain files.
    fn fixture(kdamonds: &str, operations: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let context = root.path().join("kdamonds/0/contexts/0");
        for directory in [
            "monitoring_attrs/intervals",
            "monitoring_attrs/nr_regions",
            "targets/0",
            "schemes/0/access_pattern/sz",
            "schemes/0/access_pattern/nr_accesses",
            "schemes/0/access_pattern/age",
            "schemes/0/tried_regions",
        ] {
            fs::create_dir_all(context.join(directory)).unwrap();
        }
        fs::write(root.path().join("kdamonds/nr_kdamonds"), kdamonds).unwrap();
        fs::write(root.path().join("kdamonds/0/state"), "off\n").unwrap();
        fs::write(context.join("avail_operations"), operations).unwrap();
        // The kernel has made every file that may be written: what is written to one that is not there is an error.
        for file in [
            "../nr_contexts",
            "operations",
            "monitoring_attrs/intervals/sample_us",
            "monitoring_attrs/intervals/aggr_us",
            "monitoring_attrs/intervals/update_us",
            "monitoring_attrs/nr_regions/max",
            "monitoring_attrs/nr_regions/min",
            "targets/nr_targets",
            "targets/0/pid_target",
            "targets/0/regions/nr_regions",
            "schemes/nr_schemes",
            "schemes/0/action",
            "schemes/0/access_pattern/sz/max",
            "schemes/0/access_pattern/nr_accesses/max",
            "schemes/0/access_pattern/age/max",
        ] {
            let path = context.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        root
    }

    #[derive(Default)]
    struct Accessed(Vec<bool>, Option<Duration>);

    impl Sink for Accessed {
        fn scan(&mut self, _: SpaceId, _: Vpn, ptes: &[PteState], window: Option<Duration>, _: bool) {
            self.0.extend(ptes.iter().map(|pte| pte.accessed()));
            self.1 = window;
        }
        fn event(&mut self, _: SpaceId, _: Vpn, _: super::super::Event) {}
    }

    #[test]
    fn one_that_is_in_use_is_refused_and_left_alone() {
        let root = fixture("1\n", "vaddr\npaddr\n");
        fs::write(root.path().join("kdamonds/0/state"), "on\n").unwrap();
        let line = Damon::open_under(root.path()).unwrap_err().to_string();
        assert!(
            line.contains("nr_kdamonds is 1") && line.contains("kdamond 0 is on") && !line.contains('\n'),
            "{line}"
        );
        assert_eq!(fs::read_to_string(root.path().join("kdamonds/nr_kdamonds")).unwrap(), "1\n");
        assert_eq!(fs::read_to_string(root.path().join("kdamonds/0/state")).unwrap(), "on\n");
    }

    #[test]
    fn virtual_addresses_are_preferred_and_all_is_put_back() {
        let root = fixture("0\n", "vaddr\nfvaddr\npaddr\n");
        let read = |file: &str| fs::read_to_string(root.path().join("kdamonds").join(file)).unwrap();
        let memory = vec![1_u8; 4 * PAGE_BYTES as usize];
        let first = Vpn::of_address(memory.as_ptr() as u64 + PAGE_BYTES - 1);
        let process = Process::open(std::process::id()).unwrap();
        let ranges = [MemoryRange { start: first, end: Vpn(first.0 + 3), backing: Backing::Anonymous }];
        let targets = [Target { space: SpaceId(0), process: &process, ranges: &ranges }];
        let tiers = TierMap::new(Vec::new(), Vec::new());
        {
            let mut damon = Damon::open_under(root.path()).unwrap();
            assert_eq!(damon.operations(), Operations::Virtual);
            assert_eq!(read("nr_kdamonds"), "0", "looking leaves nothing set up");
            let mut seen = Accessed::default();
            damon.scan(&Round::of_all(Time::ZERO, &targets, &tiers), &mut seen).unwrap();
            assert_eq!(seen.1, None, "the first round only sets up");
            assert_eq!((read("nr_kdamonds").as_str(), read("0/state").as_str()), ("1", "on"));
            assert_eq!(read("0/contexts/0/targets/0/pid_target"), std::process::id().to_string());
            for (index, (from, to, accesses)) in [(0, 1, 3), (1, 3, 0)].into_iter().enumerate() {
                let region = root.path().join(format!("kdamonds/0/contexts/0/schemes/0/tried_regions/{index}"));
                fs::create_dir_all(&region).unwrap();
                let address = |pages: u64| Vpn(first.0 + pages).address().to_string();
                for (file, value) in
                    [("start", address(from)), ("end", address(to)), ("nr_accesses", accesses.to_string())]
                {
                    fs::write(region.join(file), value).unwrap();
                }
            }
            let mut seen = Accessed::default();
            damon.scan(&Round::of_all(Time::ZERO, &targets, &tiers), &mut seen).unwrap();
            assert_eq!((seen.0, seen.1), (vec![true, false, false], Some(AGGREGATION)));
            assert_eq!(
                damon.grade().granularity_bytes,
                Bytes::new(PAGE_BYTES * 3 / 2),
                "coarser than a page, and it says so"
            );
        }
        assert_eq!((read("nr_kdamonds").as_str(), read("0/state").as_str()), ("0", "off"));
    }

    #[test]
    fn ordinary_memory_is_found_in_iomem() {
        let map = "00000000-00000fff : Reserved\n00001000-0009fbff : System RAM\n  00002000-00003000 : Kernel code\n100000000-1ffffffff : System RAM\n";
        assert_eq!(system_memory(map), [0x1000..0x9_fc00, 0x1_0000_0000..0x2_0000_0000]);
        assert_eq!(
            system_memory("00000000-00000000 : System RAM\n"),
            Vec::<Range<u64>>::new(),
            "without rights all is 0"
        );
    }
}
