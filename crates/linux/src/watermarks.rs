//! Fast memory held down by the kernel's own watermarks: so much of it is kept free, and kswapd sees to that.
//!
//! In: how much of the fast nodes should be free. Out: `vm.min_free_kbytes`, set so that the marks are there; what stood in it
//! comes back when this is dropped, and by the guard if Terrace is killed. Must not: raise the minimum above what is free, as programs would
//! then reclaim in their own allocations, or run together with another Terrace that does the same.
//!
//! Source: Tuna, section 4: kswapd begins where less is free than should be, and ends where as much is. The paper's kernel was changed
//! so that its low and high watermarks are the same. A stock kernel derives both from the minimum (admin-guide/sysctl/vm.rst,
//! `min_free_kbytes` and `watermark_scale_factor`): with `gap = max(min / 4, zone * factor / 10,000)`, low is `min + gap` and high
//! `min + 2 gap`, and once begun it frees up to high: where much is free already, many times what was asked for. So the marks
//! stand with high at what should be free. Where less is, low is raised to it for a moment, kswapd is woken, and the marks go back as soon
//! as enough is free, which ends its work.
//!
//! kswapd must be woken: the kernel does so when an allocation finds a zone below its low mark, and a program that holds its memory
//! makes none, or is served by the next node without waking anyone. Terrace makes one, bound to the node.
//!
//! The setting is for the whole machine. The kernel shares the minimum out among all zones by their size, so that slow nodes keep as large
//! a share of theirs free; and it reclaims cold pages of any owner, page cache first. Slow nodes are used only if it may
//! demote (`/sys/kernel/mm/numa/demotion_enabled`).

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use terrace_core::units::Bytes;

use crate::guard::{Guard, GuardError, ProtectToken, Undo, restore};
use crate::pressure::meminfo_bytes;
use crate::sys::placement::take_memory_from;
use crate::sys::private_memory::PrivateMemory;

const MINIMUM: &str = "proc/sys/vm/min_free_kbytes";
const FACTOR: &str = "proc/sys/vm/watermark_scale_factor";
/// The minimum is at most this share of what is free now: below it an allocation would reclaim by itself. The mark rises by and by, as
/// kswapd follows.
const OF_FREE: f64 = 0.95;
/// A mark that differs by less is left: each change has the kernel compute the marks of all zones again.
const LEAST_CHANGE: f64 = 0.01;
/// Longest that kswapd works at a time before marks and free memory are compared again; what is managed meanwhile waits as long.
const MOST_AT_A_TIME: Duration = Duration::from_millis(100);
/// So often it is looked whether enough is free: kswapd frees some MiB in between.
const LOOK: Duration = Duration::from_millis(1);

/// Pages that the kernel itself has moved between tiers since boot, of all programs (/proc/vmstat).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelMoves {
    /// To slower nodes and into swap.
    pub demoted: u64,
    /// From slower nodes. What comes back from swap does so by a fault of its program, and is counted there.
    pub promoted: u64,
}

impl KernelMoves {
    /// Reads the counters. What a kernel does not have (`pgdemote_*` came with 5.15, `pgpromote_success` with 5.18) it does not do.
    ///
    /// # Errors
    /// When /proc/vmstat cannot be read.
    pub fn read(root: &Path) -> Result<KernelMoves, WatermarkError> {
        let text = read(&root.join("proc/vmstat"))?;
        let mut moves = KernelMoves::default();
        for (name, count) in text.lines().filter_map(|line| line.split_once(' ')) {
            let Ok(count) = count.trim().parse::<u64>() else { continue };
            match name {
                "pswpout" => moves.demoted += count,
                name if name.starts_with("pgdemote_") => moves.demoted += count,
                "pgpromote_success" => moves.promoted += count,
                _ => {}
            }
        }
        Ok(moves)
    }
}

/// Why the watermarks cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum WatermarkError {
    /// A file cannot be read or written.
    #[error("{path}: {source}: the kernel's watermarks are set by root", path = path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// A file does not hold what it should.
    #[error("{path}: it holds {text:?}, expected {expected}", path = path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// Its text, or the beginning of it.
        text: String,
        /// What was expected.
        expected: &'static str,
    },
    /// Another Terrace holds them.
    #[error("another Terrace holds fast memory down by the watermarks, and there is one setting for the whole machine")]
    InUse,
    /// The kernel gave no page of a node.
    #[error("node {node}: kswapd could not be woken: {source}")]
    Wake {
        /// The node.
        node: u32,
        /// What the kernel said.
        source: io::Error,
    },
    /// What would be changed could not be protected.
    #[error(transparent)]
    Guard(#[from] GuardError),
}

/// The watermarks, as long as Terrace sets them.
#[derive(Debug)]
pub struct Watermarks {
    root: PathBuf,
    nodes: Vec<u32>,
    /// As found, in KiB; never less.
    before: u64,
    /// As set last, in KiB.
    set: u64,
    /// The fast nodes' memory, and all memory.
    sizes: (Bytes, Bytes),
    /// Ten-thousandths of a zone that lie between two marks at least.
    factor: u64,
    /// The setting itself, locked: nobody else who asks for the lock gets it.
    _lock: File,
    token: Option<ProtectToken>,
    /// After the record, so that it goes last.
    _guard: Option<Guard>,
}

impl Watermarks {
    /// Makes ready to set the marks of these nodes. Nothing is changed yet.
    ///
    /// # Errors
    /// See [`WatermarkError`].
    pub fn open(root: &Path, nodes: &[u32]) -> Result<Watermarks, WatermarkError> {
        let path = root.join(MINIMUM);
        let failed = |source| WatermarkError::File { path: path.clone(), source };
        // Opened for writing, so that missing rights are reported before anything runs.
        let lock = File::options().read(true).write(true).open(&path).map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(std::fs::TryLockError::WouldBlock) => return Err(WatermarkError::InUse),
            Err(std::fs::TryLockError::Error(source)) => return Err(failed(source)),
        }
        let (before, factor) = (number(&path)?, number(&root.join(FACTOR))?);
        let fast = nodes_bytes(root, nodes, "MemTotal:")?;
        let all = file_bytes(&root.join("proc/meminfo"), "MemTotal:")?;
        let (mut guard, mut token) = (None, None);
        // A tree that is not this machine's needs no protection, and has nobody who would serve it.
        if root == Path::new("/") {
            let started = Guard::start()?;
            token = Some(started.protect(record(&path, before, [before, before]))?);
            guard = Some(started);
        }
        let sizes = (fast, all.max(fast));
        let (root, nodes) = (root.to_owned(), nodes.to_vec());
        Ok(Watermarks { root, nodes, before, set: before, sizes, factor, _lock: lock, token, _guard: guard })
    }

    /// Free memory of the nodes now.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn free(&self) -> Result<Bytes, WatermarkError> {
        nodes_bytes(&self.root, &self.nodes, "MemFree:")
    }

    /// Has the kernel keep `wanted` of the nodes free from now on, as far as what is free already allows; to be called again and
    /// again. Where less is free, kswapd works for up to a tenth of a second. Returns what is free then.
    ///
    /// # Errors
    /// When the setting cannot be read or written, or the kernel gives no page to wake kswapd by.
    pub fn keep_free(&mut self, wanted: Bytes) -> Result<Bytes, WatermarkError> {
        let mut free = self.free()?;
        if free < wanted && self.minimum(wanted, 1, free) > self.before {
            self.write(self.minimum(wanted, 1, free))?;
            let began = Instant::now();
            let woken = self.wake();
            while woken.is_ok() && free < wanted && began.elapsed() < MOST_AT_A_TIME {
                std::thread::sleep(LOOK);
                free = self.free()?;
            }
            self.write(self.minimum(wanted, 2, free))?;
            woken?;
            return Ok(free);
        }
        let minimum = self.minimum(wanted, 2, free);
        if minimum.abs_diff(self.set) as f64 > LEAST_CHANGE * self.set as f64 || minimum == self.before {
            self.write(minimum)?;
        }
        Ok(free)
    }

    /// The setting in KiB, of all memory, that puts a mark of the nodes at `free_wanted`: the low one, which is a gap above the
    /// minimum, or the high one, which is two.
    fn minimum(&self, wanted: Bytes, gaps: u32, free: Bytes) -> u64 {
        let gaps = f64::from(gaps);
        // A gap is a quarter of the minimum, or the least gap.
        let minimum = wanted.share(1.0 / (1.0 + gaps / 4.0)).min(wanted.saturating_sub(self.least_gap().share(gaps)));
        let minimum = minimum.min(free.share(OF_FREE));
        ((minimum.get() as f64 / self.part() / 1024.0) as u64).max(self.before)
    }

    /// Wakes kswapd of each node by a page that must come from there.
    fn wake(&self) -> Result<(), WatermarkError> {
        // A tree that is not this machine's has no kswapd.
        if self.root != Path::new("/") {
            return Ok(());
        }
        self.nodes.iter().try_for_each(|&node| {
            let touch = move || {
                // For this thread alone, which ends here.
                match take_memory_from(node) {
                    // A kernel without nodes has one.
                    Err(error) if error.kind() == io::ErrorKind::Unsupported => {}
                    taken => taken?,
                }
                PrivateMemory::map(1).map(|mut page| page.write(0, 1))
            };
            let woken = std::thread::scope(|scope| scope.spawn(touch).join());
            woken
                .unwrap_or_else(|_| Err(io::Error::other("the thread that asked for it failed")))
                .map_err(|source| WatermarkError::Wake { node, source })
        })
    }

    /// The high mark of the nodes: kswapd, once begun, ends there.
    pub fn high(&self) -> Bytes {
        let minimum = Bytes::kib(self.set).share(self.part());
        minimum + minimum.share(0.25).max(self.least_gap()).share(2.0)
    }

    /// What part of all memory the nodes are: the kernel shares the minimum out by size.
    fn part(&self) -> f64 {
        self.sizes.0.get() as f64 / self.sizes.1.get().max(1) as f64
    }

    fn least_gap(&self) -> Bytes {
        self.sizes.0.share(self.factor as f64 / 10_000.0)
    }

    fn write(&mut self, minimum: u64) -> Result<(), WatermarkError> {
        let path = self.root.join(MINIMUM);
        if let Some(token) = &self.token {
            // Before the change: killed in between, the setting is still what was set last.
            token.replace(record(&path, self.before, [self.set, minimum]))?;
        }
        terrace_files::set(&path, minimum.to_string()).map_err(|source| WatermarkError::File { path, source })?;
        self.set = minimum;
        Ok(())
    }
}

/// What puts the setting back, if it holds one of these.
fn record(path: &Path, before: u64, ours: [u64; 2]) -> Undo {
    let ours = ours.map(|minimum| minimum.to_string()).to_vec();
    Undo::WriteFile { path: path.to_owned(), previous: before.to_string(), ours }
}

impl Drop for Watermarks {
    fn drop(&mut self) {
        // What someone else set meanwhile is theirs.
        let restored = restore(&self.root.join(MINIMUM), &self.before.to_string(), &[self.set.to_string()]);
        match restored {
            // Should the guardian be gone, the record went with it.
            Ok(_) => drop(self.token.take().map(ProtectToken::forget)),
            Err(error) => tracing::warn!(%error, "the watermarks could not be put back yet; the guard goes on trying"),
        }
    }
}

fn read(path: &Path) -> Result<String, WatermarkError> {
    std::fs::read_to_string(path).map_err(|source| WatermarkError::File { path: path.to_owned(), source })
}

fn number(path: &Path) -> Result<u64, WatermarkError> {
    let text = read(path)?;
    let content = || WatermarkError::Content {
        path: path.to_owned(),
        text: text.trim().chars().take(40).collect(),
        expected: "a whole number",
    };
    text.trim().parse().map_err(|_| content())
}

fn nodes_bytes(root: &Path, nodes: &[u32], name: &'static str) -> Result<Bytes, WatermarkError> {
    nodes.iter().try_fold(Bytes::ZERO, |sum, node| {
        Ok(sum + file_bytes(&root.join(format!("sys/devices/system/node/node{node}/meminfo")), name)?)
    })
}

fn file_bytes(path: &Path, name: &'static str) -> Result<Bytes, WatermarkError> {
    let text = read(path)?;
    meminfo_bytes(&text, name).ok_or_else(|| WatermarkError::Content {
        path: path.to_owned(),
        text: text.chars().take(40).collect(),
        expected: name,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::fixtures::{Machine, NodeSpec};

    /// Nodes of 1 GiB with half of it free; the kernel's own minimum for so much.
    fn machine(nodes: u32, minimum: &str) -> Machine {
        let nodes: Vec<NodeSpec> = (0..nodes).map(NodeSpec::dram).collect();
        Machine::new(&nodes).file(MINIMUM, minimum).file(FACTOR, "10\n")
    }

    fn setting(machine: &Machine) -> String {
        std::fs::read_to_string(machine.root().join(MINIMUM)).unwrap()
    }

    #[test]
    fn marks_stand_with_the_high_one_at_what_should_be_free() {
        let machine = machine(1, "4096\n");
        let mut marks = Watermarks::open(machine.root(), &[0]).unwrap();
        assert_eq!(setting(&machine), "4096\n", "nothing is changed before it is asked for");
        // Minimum and two quarters of it: 300 MiB.
        assert_eq!(marks.keep_free(Bytes::mib(300)).unwrap(), Bytes::mib(512));
        assert_eq!(setting(&machine), (200 * 1024).to_string());
        marks.keep_free(Bytes::ZERO).unwrap();
        assert_eq!(setting(&machine), "4096", "never below what was there");
    }

    #[test]
    fn what_is_missing_is_reclaimed_with_the_low_mark_there_and_the_minimum_below_what_is_free() {
        let machine = machine(1, "4096");
        let marks = Watermarks::open(machine.root(), &[0]).unwrap();
        assert_eq!(marks.minimum(Bytes::mib(550), 1, Bytes::mib(512)), 440 * 1024);
        // Much more than is free is reached by and by.
        assert_eq!(marks.minimum(Bytes::mib(900), 1, Bytes::mib(512)), (512.0 * 1024.0 * 0.95) as u64);
        let mut marks = marks;
        // Nobody reclaims here: it gives up after a while, and marks that would have every allocation reclaim do not stay.
        assert_eq!(marks.keep_free(Bytes::mib(550)).unwrap(), Bytes::mib(512));
        assert_eq!(setting(&machine), (550.0_f64 * 1024.0 / 1.5).floor().to_string());
    }

    #[test]
    fn the_fast_node_gets_its_mark_though_the_setting_is_for_all() {
        let machine = machine(2, "4096");
        let mut marks = Watermarks::open(machine.root(), &[0]).unwrap();
        marks.keep_free(Bytes::mib(300)).unwrap();
        assert_eq!(setting(&machine), (400 * 1024).to_string());
    }

    #[test]
    fn a_large_least_gap_comes_off_the_minimum() {
        // 10 % of the zone between two marks: 102.4 MiB of 1 GiB.
        let machine = machine(1, "4096").file(FACTOR, "1000");
        let mut marks = Watermarks::open(machine.root(), &[0]).unwrap();
        marks.keep_free(Bytes::mib(300)).unwrap();
        assert_eq!(setting(&machine), ((300.0_f64 - 204.8) * 1024.0).floor().to_string());
    }

    #[test]
    fn what_stood_there_comes_back_unless_someone_else_changed_it() {
        let machine = machine(1, "4096\n");
        let mut marks = Watermarks::open(machine.root(), &[0]).unwrap();
        marks.keep_free(Bytes::mib(100)).unwrap();
        assert!(matches!(Watermarks::open(machine.root(), &[0]), Err(WatermarkError::InUse)));
        drop(marks);
        assert_eq!(setting(&machine), "4096");
        let mut marks = Watermarks::open(machine.root(), &[0]).unwrap();
        marks.keep_free(Bytes::mib(100)).unwrap();
        let machine = machine.file(MINIMUM, "70000");
        drop(marks);
        assert_eq!(setting(&machine), "70000", "an administrator's value stays");
    }

    #[test]
    fn the_kernels_own_moves_are_counted() {
        let text =
            "pswpin 7\npswpout 5\npgpromote_success 3\npgpromote_candidate 90\npgdemote_kswapd 10\npgdemote_direct 1\n";
        let machine = machine(1, "4096").file("proc/vmstat", text);
        assert_eq!(KernelMoves::read(machine.root()).unwrap(), KernelMoves { demoted: 16, promoted: 3 });
    }

    #[test]
    fn what_is_missing_is_named() {
        let empty = Machine::new(&[NodeSpec::dram(0)]);
        let error = Watermarks::open(empty.root(), &[0]).unwrap_err().to_string();
        assert!(error.contains(MINIMUM) && error.contains("root"), "{error}");
        let odd = machine(1, "many");
        let error = Watermarks::open(odd.root(), &[0]).unwrap_err().to_string();
        assert!(error.contains("\"many\", expected a whole number"), "{error}");
    }
}
