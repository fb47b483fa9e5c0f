//! The kernel's NUMA scanner, set to mark pages of slow nodes and to leave promotion to Terrace.
//!
//! In: the root below which /proc and /sys lie. Out: a scanner that runs from [`Scanner::start`] until it is stopped or dropped; what
//! stood in the settings is put back then, and by the guard if Terrace is killed. Must not: start where another program uses the
//! scanner in this way.
//!
//! `numa_balancing=2` (memory tiering) marks the pages of nodes that are not of the kernel's top tier, and promotes a page
//! whose use followed its marking soon enough, as far as a rate allows (admin-guide/sysctl/kernel.rst). A rate of 0 MB/s
//! forbids it always, but for one case: while the fast node has more than 1 GiB (or a sixteenth of it) free above its
//! watermarks, the kernel promotes without asking for the rate. Nothing turns that off; [`Scanner::open`] says so where it
//! is the case.

use std::io;
use std::path::{Path, PathBuf};

use terrace_core::policy::HintScan;
use terrace_core::units::Bytes;

use crate::guard::{Guard, GuardError, ProtectToken, Undo, Undone, restore};
use crate::topology::nodes::free_memory;
use crate::topology::{Topology, TopologyError};

const MODE: &str = "proc/sys/kernel/numa_balancing";
const RATE: &str = "proc/sys/kernel/numa_balancing_promote_rate_limit_MBps";
const SCANNER: &str = "sys/kernel/debug/sched/numa_balancing";
/// Memory tiering, without the balancing between equal nodes.
const TIERING: &str = "2";
/// No promotion.
const NO_PROMOTION: &str = "0";

/// Why the scanner cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ScannerError {
    /// The kernel has none.
    #[error("no /{0}: the kernel is older than 6.1, or built without CONFIG_NUMA_BALANCING")]
    Missing(&'static str),
    /// The kernel would mark nothing.
    #[error("the kernel holds all memory in one tier, so its scanner marks no page as slow: {0}")]
    OneTier(String),
    /// Another Terrace, or a person, has set it like this.
    #[error(
        "the scanner is set to mark and to promote nothing already: another Terrace uses it; if none runs, write a rate \
         into /{RATE}"
    )]
    InUse,
    /// A setting cannot be written.
    #[error("{path}: {source}: needs root", path = path.display())]
    Setting {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The tiers cannot be found out.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// What would be changed could not be protected.
    #[error(transparent)]
    Guard(#[from] GuardError),
}

/// The scanner, as Terrace set it.
#[derive(Debug)]
pub struct Scanner {
    root: PathBuf,
    slow_node: u32,
    running: bool,
    /// In the order of writing; put back in the opposite order.
    changed: Vec<Changed>,
    /// After the records, so that it goes last.
    guard: Option<Guard>,
}

#[derive(Debug)]
struct Changed {
    path: PathBuf,
    previous: String,
    /// What was written last.
    written: String,
    token: Option<ProtectToken>,
}

impl Scanner {
    /// Finds out whether it could run; changes nothing.
    ///
    /// # Errors
    /// See [`ScannerError`].
    pub fn open(root: &Path) -> Result<Scanner, ScannerError> {
        free_to_use(root)?;
        let slow_node = slow_node(root)?;
        // A tree that is not this machine's needs no protection, and has nobody who would serve it.
        let guard = if root == Path::new("/") { Some(Guard::start()?) } else { None };
        Ok(Scanner { root: root.to_owned(), slow_node, running: false, changed: Vec::new(), guard })
    }

    /// Has it mark pages, if it does not yet.
    ///
    /// # Errors
    /// See [`ScannerError`]; what was changed until then is put back.
    pub fn start(&mut self) -> Result<(), ScannerError> {
        if self.running {
            return Ok(());
        }
        free_to_use(&self.root)?;
        // The rate first: with tiering on and a rate the kernel would promote at once.
        let started = self.set(RATE, NO_PROMOTION).and_then(|()| self.set(MODE, TIERING));
        self.running = started.is_ok();
        started.inspect_err(|_| self.stop())
    }

    /// Puts back what stood in the settings, where they still hold what was written here.
    pub fn stop(&mut self) {
        self.running = false;
        for changed in self.changed.drain(..).rev() {
            match restore(&changed.path, &changed.previous, std::slice::from_ref(&changed.written)) {
                Ok(undone) => {
                    if undone == Undone::Theirs {
                        let path = changed.path.display();
                        tracing::warn!("{path}: somebody else has changed it meanwhile; it stays as it is");
                    }
                    // Should the guardian be gone, the record went with it.
                    drop(changed.token.map(ProtectToken::forget));
                }
                Err(error) => tracing::warn!(path = %changed.path.display(), %error, "could not be put back yet"),
            }
        }
    }

    /// A node whose pages are marked.
    pub fn slow_node(&self) -> u32 {
        self.slow_node
    }

    /// Marks as fast as a policy wants it, for a process of this size. The kernel derives its steps from the size of a process;
    /// what is written makes it come to the same. Without debugfs it goes at its own pace.
    pub fn pace(&mut self, wanted: HintScan, resident: Bytes) {
        let windows = resident.pages().div_ceil(wanted.window_pages.max(1)).max(1);
        let pass = (wanted.period * u32::try_from(windows).unwrap_or(u32::MAX)).as_millis().clamp(1, 1 << 31);
        let size = (wanted.window_pages >> 8).max(1);
        for (name, value) in [
            ("scan_size_mb", size.to_string()),
            ("scan_period_max_ms", pass.to_string()),
            ("scan_period_min_ms", pass.to_string()),
        ] {
            let path = format!("{SCANNER}/{name}");
            if !self.root.join(&path).exists() {
                return;
            }
            if let Err(error) = self.set(&path, &value) {
                tracing::debug!(%error, "the kernel's scanner keeps its own pace");
            }
        }
    }

    /// Writes a setting, and keeps what stood in it the first time.
    fn set(&mut self, name: &str, value: &str) -> Result<(), ScannerError> {
        let path = self.root.join(name);
        let failed = |source| ScannerError::Setting { path: path.clone(), source };
        let before = std::fs::read_to_string(&path).map_err(failed)?.trim().to_owned();
        if before == value {
            return Ok(());
        }
        let record = |previous: &str| Undo::WriteFile {
            path: path.clone(),
            previous: previous.to_owned(),
            // Before the change: killed in between, the setting is still what it is now.
            ours: vec![before.clone(), value.to_owned()],
        };
        let known = self.changed.iter().position(|changed| changed.path == path);
        match known.map(|index| &self.changed[index]) {
            // A value that another program wrote meanwhile is not overwritten, now or at the end.
            Some(changed) if changed.written != before => return Ok(()),
            Some(changed) => {
                changed.token.as_ref().map(|token| token.replace(record(&changed.previous))).transpose()?;
            }
            None => {
                let token = self.guard.as_ref().map(|guard| guard.protect(record(&before))).transpose()?;
                self.changed.push(Changed { path: path.clone(), previous: before.clone(), written: before, token });
            }
        }
        terrace_files::set(&path, value).map_err(|source| ScannerError::Setting { path: path.clone(), source })?;
        // Only now: what the kernel refused is not in the file.
        let index = known.unwrap_or(self.changed.len() - 1);
        self.changed[index].written = value.to_owned();
        Ok(())
    }
}

impl Drop for Scanner {
    fn drop(&mut self) {
        self.stop();
    }
}

fn read(root: &Path, name: &'static str) -> Result<String, ScannerError> {
    match std::fs::read_to_string(root.join(name)) {
        Ok(text) => Ok(text.trim().to_owned()),
        Err(_) => Err(ScannerError::Missing(name)),
    }
}

/// Whether the kernel has a scanner that nobody else uses like this.
fn free_to_use(root: &Path) -> Result<(), ScannerError> {
    let mode = read(root, MODE)?;
    let rate = read(root, RATE)?;
    if mode == TIERING && rate == NO_PROMOTION { Err(ScannerError::InUse) } else { Ok(()) }
}

/// A node with memory that is not of the kernel's top tier.
fn slow_node(root: &Path) -> Result<u32, ScannerError> {
    let topology = Topology::discover(root)?;
    let tiers = &topology.memory_tiers;
    let one = |why: &str| ScannerError::OneTier(why.to_owned());
    let slower = tiers.iter().skip(1).flat_map(|tier| &tier.nodes).copied();
    let with_memory =
        |number: &u32| topology.nodes.iter().any(|node| node.number == *number && node.memory_bytes > Bytes::ZERO);
    let found = slower.filter(with_memory).max();
    let found = found.ok_or_else(|| match topology.nodes.len() {
        0 | 1 => one("there is one node"),
        _ => one("up to 6.6 it goes by the driver of the memory (kmem) and not by HMAT"),
    })?;
    let fast = tiers.iter().take(1).flat_map(|tier| &tier.nodes);
    for node in fast {
        let free = free_memory(root, *node).unwrap_or(Bytes::ZERO);
        if free > Bytes::gib(1) {
            tracing::warn!(node, free = %free, "more than 1 GiB is free there, so the kernel promotes pages by itself");
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::topology::fixtures::{Machine, NodeSpec};

    fn machine() -> Machine {
        let machine = Machine::new(&[NodeSpec::dram(0), NodeSpec::memory_only(1)]);
        let machine = machine.memory_tier(4, "0").memory_tier(22, "1").file(MODE, "1").file(RATE, "65536");
        ["scan_size_mb", "scan_period_min_ms", "scan_period_max_ms"]
            .iter()
            .fold(machine, |machine, name| machine.file(&format!("{SCANNER}/{name}"), "7"))
    }

    #[test]
    fn the_settings_are_written_and_put_back() {
        let machine = machine();
        let root = machine.root();
        let text = |name: &str| std::fs::read_to_string(root.join(name)).unwrap();
        let mut scanner = Scanner::open(root).unwrap();
        assert_eq!((text(MODE).as_str(), text(RATE).as_str()), ("1", "65536"), "opened, it marks nothing yet");
        scanner.start().unwrap();
        scanner.start().unwrap();
        assert_eq!((scanner.slow_node(), text(MODE).as_str(), text(RATE).as_str()), (1, "2", "0"));
        let scan = HintScan { window_pages: 65536, period: Duration::from_millis(200), tiers: 2 };
        scanner.pace(scan, Bytes::gib(1));
        scanner.pace(scan, Bytes::gib(2));
        let min = format!("{SCANNER}/scan_period_min_ms");
        assert_eq!((text(&min).as_str(), text(&format!("{SCANNER}/scan_size_mb")).as_str()), ("1600", "256"));
        assert!(matches!(Scanner::open(root), Err(ScannerError::InUse)), "a second one is refused");
        let before = || (text(MODE), text(RATE), text(&min));
        scanner.stop();
        assert_eq!(before(), ("1".to_owned(), "65536".to_owned(), "7".to_owned()));
        let mut other = Scanner::open(root).unwrap();
        other.start().unwrap();
        assert!(matches!(scanner.start(), Err(ScannerError::InUse)), "another one took it in the meantime");
        drop(other);
        scanner.start().unwrap();
        drop(scanner);
        assert_eq!(before(), ("1".to_owned(), "65536".to_owned(), "7".to_owned()));
    }

    #[test]
    fn a_setting_that_an_administrator_changed_meanwhile_stays() {
        let machine = machine();
        let root = machine.root().to_owned();
        let text = |name: &str| std::fs::read_to_string(root.join(name)).unwrap();
        let size = format!("{SCANNER}/scan_size_mb");
        let mut scanner = Scanner::open(&root).unwrap();
        scanner.start().unwrap();
        let scan = |pages: u64| HintScan { window_pages: pages, period: Duration::from_millis(200), tiers: 2 };
        scanner.pace(scan(65536), Bytes::gib(1));
        std::fs::write(root.join(RATE), "100\n").unwrap();
        std::fs::write(root.join(&size), "31\n").unwrap();
        scanner.pace(scan(32768), Bytes::gib(1));
        assert_eq!(text(&size), "31\n", "not written over while it runs");
        drop(scanner);
        assert_eq!((text(MODE).as_str(), text(RATE).as_str(), text(&size).as_str()), ("1", "100\n", "31\n"));
    }

    #[test]
    fn what_is_missing_is_told_in_one_line() {
        let says = |machine: Machine, what: &str| {
            let line = Scanner::open(machine.root()).unwrap_err().to_string();
            assert!(line.contains(what) && !line.contains('\n'), "{line}");
        };
        says(Machine::new(&[NodeSpec::dram(0)]), "CONFIG_NUMA_BALANCING");
        says(Machine::new(&[NodeSpec::dram(0)]).file(MODE, "1").file(RATE, "65536"), "one node");
        let flat = Machine::new(&[NodeSpec::dram(0), NodeSpec::memory_only(1)]).memory_tier(4, "0-1");
        says(flat.file(MODE, "1").file(RATE, "65536"), "up to 6.6");
    }
}
