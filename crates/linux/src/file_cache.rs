//! The file cache of one cgroup of version 2: read, and asked back through `memory.reclaim`.
//!
//! In: the cgroup, and a rule (`terrace_core::file_cache`). Out: what left and what that cost, counted by the kernel's own figures. Must not: ask for
//! anonymous memory, count what was asked for as what left, or end the run: what is not possible here is an error with a reason, and nothing is
//! lost by it.
//!
//! A write of `N swappiness=0` to `memory.reclaim` (Linux 6.11) makes the kernel take up to N bytes of file cache, and no anonymous page. Linux
//! 5.19 to 6.10 have the file without the key and answer EINVAL; there `memory.reclaim` would swap as the machine's swappiness says, past all
//! bounds of Terrace, so that nothing is asked for. `0 swappiness=0` reclaims nothing and tells one from the other. EAGAIN says that less was
//! taken than was asked for.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;
use terrace_core::file_cache::{Figures, FileCache, Limits, RuleName};
use terrace_core::units::{Bytes, Time};

use crate::cgroup::Cgroup;
use crate::cgroup_charges::{self, Charges};
use crate::cgroup_memory::read_level;
use crate::pressure::stall;

/// The file by which memory is asked back.
const RECLAIM: &str = "memory.reclaim";
/// What a page read again costs where no disk has said so yet: a fast SSD without readahead.
pub const ASSUMED_READ: Duration = Duration::from_micros(100);
/// Sectors of 512 bytes that must have been read before their mean is a price: 64 MiB.
const ENOUGH_SECTORS: u64 = 131_072;
/// A tenth of a turn of a slow disk, and a cached read: a price beyond these is an error of the counters.
const PRICES: [Duration; 2] = [Duration::from_micros(1), Duration::from_millis(20)];

/// Why the file cache of a cgroup is left alone.
#[derive(Debug, thiserror::Error)]
pub enum NoFileCache {
    /// The memory controller is on version 1.
    #[error(
        "the file cache of {name} is left alone: the memory controller is on cgroup version 1, which has no memory.reclaim; boot with \
         systemd.unified_cgroup_hierarchy=1"
    )]
    OnVersion1 {
        /// The cgroup.
        name: String,
    },
    /// The cgroup has no memory controller.
    #[error(
        "the file cache of {name} is left alone: it has no memory controller; write +memory to the cgroup.subtree_control above it"
    )]
    NoController {
        /// The cgroup.
        name: String,
    },
    /// The kernel has no `memory.reclaim`.
    #[error("the file cache of {name} is left alone: Linux {release} has no memory.reclaim; 6.11 or later does this")]
    NoReclaim {
        /// The cgroup.
        name: String,
        /// The kernel.
        release: String,
    },
    /// It has one that cannot be limited to file cache.
    #[error(
        "the file cache of {name} is left alone: memory.reclaim of Linux {release} takes no swappiness=, so that it would swap as well; 6.11 or \
         later does this"
    )]
    NoSwappiness {
        /// The cgroup.
        name: String,
        /// The kernel.
        release: String,
    },
    /// It may not be written.
    #[error(
        "the file cache of {name} is left alone: {path} may not be written ({source}); run as root, and in a service without \
         ProtectControlGroups"
    )]
    NotPermitted {
        /// The cgroup.
        name: String,
        /// The file.
        path: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// The kernel refused a request.
    #[error(
        "the file cache of {name} is left alone from now on: {path} refused {request:?} ({source}); the run goes on without it"
    )]
    Refused {
        /// The cgroup.
        name: String,
        /// The file.
        path: String,
        /// What was written.
        request: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// A file could not be read, or did not hold what it should.
    #[error(
        "the file cache of {name} is left alone: {path} cannot be read ({source}); look whether the cgroup is still there"
    )]
    Unread {
        /// The cgroup.
        name: String,
        /// The file.
        path: String,
        /// What the kernel said.
        source: io::Error,
    },
}

/// The files of one cgroup.
#[derive(Clone, Debug)]
pub struct CgroupFiles {
    name: String,
    directory: PathBuf,
    release: String,
}

impl CgroupFiles {
    /// Those of a cgroup below `root`, once it is certain that its file cache alone can be asked back. Reclaims nothing.
    ///
    /// # Errors
    /// Why it cannot.
    pub fn open(root: &Path, cgroup: &Cgroup) -> Result<CgroupFiles, NoFileCache> {
        let release = std::fs::read_to_string(root.join("proc/sys/kernel/osrelease")).unwrap_or_default();
        let name = cgroup.name().to_owned();
        let files = CgroupFiles {
            name: name.clone(),
            directory: cgroup.directory().to_owned(),
            release: release.trim().to_owned(),
        };
        if !files.directory.join(RECLAIM).exists() {
            return Err(if Charges::find(root).is_version_one() {
                NoFileCache::OnVersion1 { name }
            } else if files.directory.join("memory.stat").exists() {
                NoFileCache::NoReclaim { name, release: files.release }
            } else {
                NoFileCache::NoController { name }
            });
        }
        files.figures()?;
        files.ask(Bytes::ZERO)?;
        Ok(files)
    }

    /// What the kernel says of it now. Without pressure-stall information (CONFIG_PSI) no stalls.
    ///
    /// # Errors
    /// `memory.stat` or `memory.current` cannot be read.
    pub fn figures(&self) -> Result<Figures, NoFileCache> {
        let stat = self.read("memory.stat")?;
        let count = |key: &str| cgroup_charges::count(&stat, key).unwrap_or(0);
        let all = count("file");
        Ok(Figures {
            current: Bytes::new(self.read("memory.current")?.trim().parse().unwrap_or(0)),
            // `file` has tmpfs and shared memory in it, which swappiness=0 leaves alone.
            file: Bytes::new(all.saturating_sub(count("shmem"))),
            inactive_file: Bytes::new(count("inactive_file")),
            active_file: Bytes::new(count("active_file")),
            inactive_anonymous: Bytes::new(count("inactive_anon")),
            refaults: count("workingset_refault_file"),
            scanned: count("pgscan"),
            reclaimed: count("pgsteal"),
            stalled: std::fs::read_to_string(self.directory.join("memory.pressure"))
                .ok()
                .and_then(|text| stall(&text, "some", "total="))
                .map_or(Duration::ZERO, Duration::from_micros),
        })
    }

    /// Asks for so much of the file cache. The kernel may take less.
    ///
    /// # Errors
    /// It refused.
    pub fn ask(&self, bytes: Bytes) -> Result<(), NoFileCache> {
        let request = format!("{} swappiness=0", bytes.get());
        let path = self.directory.join(RECLAIM);
        let written =
            OpenOptions::new().write(true).open(&path).and_then(|mut file| file.write_all(request.as_bytes()));
        match written {
            Ok(()) => Ok(()),
            Err(source) => self.answer(source, bytes, request),
        }
    }

    /// What an error of a request means.
    fn answer(&self, source: io::Error, bytes: Bytes, request: String) -> Result<(), NoFileCache> {
        let (name, path) = (self.name.clone(), self.directory.join(RECLAIM).display().to_string());
        match Errno::from_io_error(&source) {
            // Less was taken than was asked for, or a signal came in between: memory.stat says what left.
            Some(Errno::AGAIN | Errno::INTR) => Ok(()),
            Some(Errno::INVAL) if bytes == Bytes::ZERO => {
                Err(NoFileCache::NoSwappiness { name, release: self.release.clone() })
            }
            Some(Errno::ACCESS | Errno::PERM | Errno::ROFS) => Err(NoFileCache::NotPermitted { name, path, source }),
            _ => Err(NoFileCache::Refused { name, path, request, source }),
        }
    }

    /// What may leave before it, or a cgroup above it, falls below its protection.
    fn unprotected(&self) -> Bytes {
        let levels = self.directory.ancestors().map_while(read_level).filter(|level| level.protected > Bytes::ZERO);
        levels.map(|level| level.current.saturating_sub(level.protected)).min().unwrap_or(Bytes::new(u64::MAX))
    }

    fn read(&self, file: &str) -> Result<String, NoFileCache> {
        let path = self.directory.join(file);
        std::fs::read_to_string(&path).map_err(|source| NoFileCache::Unread {
            name: self.name.clone(),
            path: path.display().to_string(),
            source,
        })
    }
}

/// What it costs to read a page of 4 KiB again: the mean of all reads of this machine's disks since it started (/proc/diskstats), with their
/// readahead; [`ASSUMED_READ`] where they have read too little to say so.
pub fn read_price(root: &Path) -> Duration {
    let text = std::fs::read_to_string(root.join("proc/diskstats")).unwrap_or_default();
    let (mut sectors, mut milliseconds) = (0_u64, 0_u64);
    for line in text.lines() {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let number = |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
        // Memory is no disk, and what lies on another device is counted there.
        if fields
            .get(2)
            .is_some_and(|name| !["ram", "zram", "loop", "dm-", "md"].iter().any(|kind| name.starts_with(kind)))
        {
            sectors = sectors.saturating_add(number(5));
            milliseconds = milliseconds.saturating_add(number(6));
        }
    }
    if sectors < ENOUGH_SECTORS {
        return ASSUMED_READ;
    }
    let [least, most] = PRICES;
    Duration::from_secs_f64(milliseconds as f64 / 1e3 / (sectors as f64 / 8.0)).clamp(least, most)
}

/// What is to become of the file cache of a cgroup.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wanted {
    /// The rule.
    pub rule: RuleName,
    /// Share of its time that the cgroup may lose, 0 to 1; only the rule `bound` asks for it.
    pub max_slowdown: f64,
    /// Whether what `memory.min` and `memory.low` protect may leave, too. The kernel does not hold a cgroup's own protection against a request for
    /// that very cgroup.
    pub ignores_protection: bool,
}

/// What a [`FileCacheKeeper`] has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileCacheTotals {
    /// File cache that left at its requests.
    pub left: Bytes,
    /// File cache that was there at the last look.
    pub there: Bytes,
    /// Pages of the cgroup that were read again, whatever had taken them.
    pub refaults: u64,
    /// Time in which tasks of the cgroup waited for memory.
    pub stalled: Duration,
    /// Time for which it was looked after.
    pub span: Duration,
}

/// A cgroup whose file cache is asked back by a rule.
#[derive(Debug)]
pub struct FileCacheKeeper {
    files: CgroupFiles,
    rule: FileCache,
    ignores_protection: bool,
    due: Time,
    began: Time,
    at_start: Figures,
    totals: FileCacheTotals,
    stopped: bool,
    held: bool,
}

impl FileCacheKeeper {
    /// Begins with a cgroup below `root`; nothing is asked for yet.
    ///
    /// # Errors
    /// Why its file cache cannot be asked back.
    pub fn begin(root: &Path, cgroup: &Cgroup, wanted: Wanted, now: Time) -> Result<FileCacheKeeper, NoFileCache> {
        let files = CgroupFiles::open(root, cgroup)?;
        let at_start = files.figures()?;
        let limits = Limits { max_slowdown: wanted.max_slowdown, read: read_price(root) };
        tracing::debug!(cgroup = cgroup.name(), rule = %wanted.rule, price = ?limits.read, "file cache is asked back");
        Ok(FileCacheKeeper {
            files,
            rule: FileCache::new(wanted.rule, limits),
            ignores_protection: wanted.ignores_protection,
            due: now,
            began: now,
            at_start,
            totals: FileCacheTotals { there: at_start.file, ..FileCacheTotals::default() },
            stopped: false,
            held: false,
        })
    }

    /// When to look next.
    pub fn due(&self) -> Time {
        self.due
    }

    /// What has been done so far.
    pub fn totals(&self) -> FileCacheTotals {
        self.totals
    }

    /// Leaves it alone for a while, or goes on.
    pub fn hold(&mut self, held: bool) {
        self.held = held;
    }

    /// Does what is due. A cgroup that has vanished ends it without a word.
    ///
    /// # Errors
    /// The kernel refused. Said once; nothing is asked for afterwards.
    pub fn look(&mut self, now: Time) -> Result<(), NoFileCache> {
        if now < self.due || self.stopped {
            return Ok(());
        }
        let done = self.take_a_step(now);
        if done.is_err() {
            self.stopped = true;
            self.due = Time::FAR_FUTURE;
        }
        if self.files.directory.exists() { done } else { Ok(()) }
    }

    fn take_a_step(&mut self, now: Time) -> Result<(), NoFileCache> {
        let before = self.files.figures()?;
        if self.held {
            self.rule.pass_over(now, &before);
            self.due = now + Duration::from_secs(1);
            return Ok(());
        }
        let step = self.rule.step(now, &before);
        self.due = now + step.next;
        self.note(now, &before);
        let ask = if self.ignores_protection { step.ask } else { step.ask.min(self.files.unprotected()) };
        if ask.pages() > 0 {
            self.files.ask(Bytes::of_pages(ask.pages()))?;
            let after = self.files.figures()?;
            self.totals.left += before.file.saturating_sub(after.file);
            self.note(now, &after);
        }
        Ok(())
    }

    fn note(&mut self, now: Time, figures: &Figures) {
        self.totals.there = figures.file;
        self.totals.refaults = figures.refaults.saturating_sub(self.at_start.refaults);
        self.totals.stalled = figures.stalled.saturating_sub(self.at_start.stalled);
        self.totals.span = now.since(self.began);
    }

    /// Reads the figures once more, for the end.
    pub fn finish(&mut self, now: Time) -> FileCacheTotals {
        if let Ok(figures) = self.files.figures() {
            self.note(now, &figures);
        }
        self.totals
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pressure::tests::tree;

    const STAT: &str = "anon 1048576\nfile 2097152000\nshmem 97152000\ninactive_anon 4096\ninactive_file 1500000000\n\
        active_file 500000000\nworkingset_refault_anon 7\nworkingset_refault_file 12\npgscan 40\npgsteal 30\n";
    const V2: &str = "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n";

    fn machine(more: &[(&str, &str)]) -> tempfile::TempDir {
        let mut files = vec![
            ("proc/mounts", V2),
            ("proc/sys/kernel/osrelease", "6.12.9\n"),
            ("sys/fs/cgroup/jobs/cgroup.procs", "7\n"),
            ("sys/fs/cgroup/jobs/memory.stat", STAT),
            ("sys/fs/cgroup/jobs/memory.current", "3000000000\n"),
            (
                "sys/fs/cgroup/jobs/memory.pressure",
                "some avg10=0.00 avg60=0.00 avg300=0.00 total=2500\nfull avg10=0 total=9\n",
            ),
        ];
        files.extend(more);
        tree(&files)
    }

    const BOUND: Wanted = Wanted { rule: RuleName::Bound, max_slowdown: 0.02, ignores_protection: false };
    const WITH: (&str, &str) = ("sys/fs/cgroup/jobs/memory.reclaim", "");

    fn open(root: &Path) -> Result<CgroupFiles, NoFileCache> {
        CgroupFiles::open(root, &Cgroup::open(root, "/jobs").unwrap())
    }

    #[test]
    fn the_figures_are_the_kernel_s() {
        let root = machine(&[WITH]);
        let figures = open(root.path()).unwrap().figures().unwrap();
        assert_eq!(figures.file, Bytes::new(2_000_000_000), "without tmpfs");
        assert_eq!((figures.inactive_file, figures.active_file), (Bytes::new(1_500_000_000), Bytes::new(500_000_000)));
        assert_eq!((figures.refaults, figures.scanned, figures.reclaimed), (12, 40, 30));
        assert_eq!(figures.stalled, Duration::from_micros(2500));
    }

    #[test]
    fn what_is_asked_for_is_file_cache_alone() {
        let root = machine(&[WITH]);
        let files = open(root.path()).unwrap();
        let written = || std::fs::read_to_string(root.path().join("sys/fs/cgroup/jobs/memory.reclaim")).unwrap();
        assert_eq!(written(), "0 swappiness=0", "opening reclaims nothing");
        files.ask(Bytes::mib(64)).unwrap();
        assert_eq!(written(), "67108864 swappiness=0");
    }

    #[test]
    fn why_it_is_not_possible_is_told() {
        let told = |root: &tempfile::TempDir| open(root.path()).unwrap_err().to_string();
        let old = machine(&[("proc/sys/kernel/osrelease", "5.15.0\n")]);
        assert!(told(&old).contains("Linux 5.15.0 has no memory.reclaim; 6.11 or later"), "{}", told(&old));
        let first = machine(&[("proc/mounts", "cgroup /sys/fs/cgroup cgroup rw,memory 0 0\n")]);
        assert!(told(&first).contains("on cgroup version 1"), "{}", told(&first));
        let without = machine(&[]);
        std::fs::remove_file(without.path().join("sys/fs/cgroup/jobs/memory.stat")).unwrap();
        assert!(told(&without).contains("+memory"), "{}", told(&without));
    }

    #[test]
    fn the_kernel_s_answers_are_told_apart() {
        let root = machine(&[WITH]);
        let files = open(root.path()).unwrap();
        let answer = |errno: Errno, bytes| files.answer(errno.into(), bytes, "4096 swappiness=0".to_owned());
        assert!(answer(Errno::AGAIN, Bytes::mib(1)).is_ok() && answer(Errno::INTR, Bytes::mib(1)).is_ok());
        assert!(matches!(answer(Errno::INVAL, Bytes::ZERO), Err(NoFileCache::NoSwappiness { .. })));
        assert!(matches!(answer(Errno::INVAL, Bytes::mib(1)), Err(NoFileCache::Refused { .. })));
        let told = answer(Errno::ROFS, Bytes::ZERO).unwrap_err().to_string();
        assert!(told.contains("memory.reclaim may not be written") && told.contains("ProtectControlGroups"), "{told}");
    }

    #[test]
    fn a_refused_request_is_said_once_and_nothing_is_asked_afterwards() {
        let root = machine(&[WITH]);
        let group = Cgroup::open(root.path(), "/jobs").unwrap();
        let mut keeper = FileCacheKeeper::begin(root.path(), &group, BOUND, Time::ZERO).unwrap();
        let file = root.path().join("sys/fs/cgroup/jobs/memory.reclaim");
        std::fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink("/dev/full", &file).unwrap();
        let told = keeper.look(Time::ZERO).unwrap_err().to_string();
        assert!(told.contains("refused") && told.contains("the run goes on without it"), "{told}");
        assert_eq!(keeper.due(), Time::FAR_FUTURE);
        assert!(keeper.look(Time::FAR_FUTURE).is_ok(), "once");
        assert_eq!(keeper.totals().left, Bytes::ZERO);
    }

    #[test]
    fn what_left_is_what_memory_stat_says() {
        let root = machine(&[WITH]);
        let group = Cgroup::open(root.path(), "/jobs").unwrap();
        let mut keeper = FileCacheKeeper::begin(root.path(), &group, BOUND, Time::ZERO).unwrap();
        keeper.look(Time::ZERO).unwrap();
        // A file that only takes what is written: nothing left, whatever was asked for.
        assert_eq!(keeper.totals().left, Bytes::ZERO);
        assert_eq!(keeper.totals().there, Bytes::new(2_000_000_000));
        std::fs::write(root.path().join("sys/fs/cgroup/jobs/memory.stat"), "file 4096\nworkingset_refault_file 20\n")
            .unwrap();
        let end = keeper.finish(Time::ZERO + Duration::from_secs(5));
        assert_eq!((end.there, end.refaults, end.span), (Bytes::kib(4), 8, Duration::from_secs(5)));
        // A cgroup that vanishes is no error.
        std::fs::remove_dir_all(root.path().join("sys/fs/cgroup/jobs")).unwrap();
        assert!(keeper.look(Time::ZERO + Duration::from_secs(6)).is_ok());
    }

    #[test]
    fn what_is_protected_stays_unless_it_is_to_be_ignored() {
        for (low, ignores_protection, asked) in
            [("max", false, "0"), ("2999000000", false, "999424"), ("max", true, "23437312"), ("0", false, "23437312")]
        {
            let root = machine(&[WITH, ("sys/fs/cgroup/jobs/memory.low", low)]);
            let group = Cgroup::open(root.path(), "/jobs").unwrap();
            let wanted = Wanted { ignores_protection, ..BOUND };
            FileCacheKeeper::begin(root.path(), &group, wanted, Time::ZERO).unwrap().look(Time::ZERO).unwrap();
            let written = std::fs::read_to_string(root.path().join(WITH.0)).unwrap();
            assert_eq!(written, format!("{asked} swappiness=0"), "memory.low {low}, ignored: {ignores_protection}");
        }
    }

    #[test]
    fn a_read_costs_what_the_disks_took() {
        let root =
            tree(&[("proc/diskstats", "8 0 sda 1000 0 800000 5000 1 1 1 1\n253 0 zram0 9 0 9000000 1 0 0 0 0\n")]);
        assert_eq!(read_price(root.path()), Duration::from_micros(50), "5 s for 100,000 pages");
        let idle = tree(&[("proc/diskstats", "8 0 sda 1 0 8 5000 1 1 1 1\n")]);
        assert_eq!(read_price(idle.path()), ASSUMED_READ);
    }
}
