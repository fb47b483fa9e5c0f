//! A claim on DAMON: which monitors Terrace set up, distinguished from others, and how they are removed.
//!
//! In: DAMON's directory in /sys, and how many monitors. Out: their removal, by the tracker, its guardian or a later Terrace. Must not:
//! touch monitors that carry another mark.
//!
//! Nothing in DAMON's directory says who set it up. The mark is therefore a setting that has no effect at this size: the largest region
//! that the counting scheme covers, a number above 2^63, which no region reaches.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::guard::Undone;

/// The position of the mark in a monitor's context.
pub(super) const MARK_FILE: &str = "schemes/0/access_pattern/sz/max";
/// A set-up without a mark is Terrace's own, killed before it came to writing one, if it is not continued within this time. A program that is
/// setting DAMON up takes some milliseconds.
const ABANDONED: Duration = Duration::from_secs(1);

/// Monitors of DAMON that Terrace set up.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct DamonClaim {
    admin: PathBuf,
    monitors: usize,
    mark: u64,
}

/// Whose the monitors are that there are now.
#[derive(Debug, PartialEq, Eq)]
enum Whose {
    Ours,
    /// Off, and without any scheme that could carry a mark.
    Bare,
    Theirs,
}

impl DamonClaim {
    /// A claim for `monitors` monitors that are yet to be set up. No two claims of a boot have the same mark.
    pub(super) fn new(admin: &Path, monitors: usize) -> DamonClaim {
        let boot = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let microseconds = boot.tv_sec as u64 * 1_000_000 + boot.tv_nsec as u64 / 1_000;
        // 22 bits hold every pid (PID_MAX_LIMIT), 41 bits of microseconds 25 days.
        let mark = 1 << 63 | (u64::from(std::process::id()) & 0x3f_ffff) << 41 | microseconds & ((1 << 41) - 1);
        DamonClaim { admin: admin.to_owned(), monitors, mark }
    }

    /// DAMON's directory.
    pub(crate) fn admin(&self) -> &Path {
        &self.admin
    }

    /// The mark, as it is written to [`MARK_FILE`].
    pub(super) fn mark(&self) -> u64 {
        self.mark
    }

    /// Stops the monitors and takes them away, if they are this claim's.
    ///
    /// # Errors
    /// The file that could not be written, and what the kernel said.
    pub(crate) fn take_away(&self) -> Result<Undone, (PathBuf, io::Error)> {
        let count = self.admin.join("kdamonds/nr_kdamonds");
        match fs::read_to_string(&count) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Undone::Nothing),
            Err(error) => return Err((count, error)),
            Ok(text) if text.trim() == "0" => return Ok(Undone::Nothing),
            Ok(text) if text.trim() != self.monitors.to_string() => return Ok(Undone::Theirs),
            Ok(_) => {}
        }
        let began = Instant::now();
        loop {
            match self.whose() {
                Whose::Theirs => return Ok(Undone::Theirs),
                Whose::Ours => break,
                Whose::Bare if began.elapsed() >= ABANDONED => break,
                Whose::Bare => sleep(Duration::from_millis(50)),
            }
        }
        for number in 0..self.monitors {
            let state = self.monitor(number).join("state");
            // One whose process has ended is off already, and may end between the two calls; the count shows whether all are.
            if fs::read_to_string(&state).is_ok_and(|text| text.trim() != "off") {
                let _ = terrace_files::set(&state, "off");
            }
        }
        terrace_files::set(&count, "0").map(|()| Undone::PutBack).map_err(|error| (count, error))
    }

    fn whose(&self) -> Whose {
        let mut marked = 0;
        for number in 0..self.monitors {
            let monitor = self.monitor(number);
            let text = |file: &str| fs::read_to_string(monitor.join(file)).map(|text| text.trim().to_owned()).ok();
            if text(&format!("contexts/0/{MARK_FILE}")).is_some_and(|mark| mark == self.mark.to_string()) {
                marked += 1;
                continue;
            }
            let off = text("state").is_none_or(|state| state == "off");
            let empty = text("contexts/0/schemes/nr_schemes").is_none_or(|schemes| schemes == "0")
                || text("contexts/nr_contexts").is_none_or(|contexts| contexts == "0");
            if !off || !empty {
                // A scheme that was made just before the kill has the kernel's own zero where the mark belongs.
                let unmarked = text(&format!("contexts/0/{MARK_FILE}")).is_some_and(|mark| mark == "0");
                if !off || !unmarked {
                    return Whose::Theirs;
                }
            }
        }
        if marked > 0 { Whose::Ours } else { Whose::Bare }
    }

    fn monitor(&self, number: usize) -> PathBuf {
        self.admin.join("kdamonds").join(number.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Tree(tempfile::TempDir);

    impl Tree {
        fn new(monitors: usize) -> Tree {
            let tree = Tree(tempfile::tempdir().unwrap());
            tree.put("kdamonds/nr_kdamonds", &monitors.to_string());
            for number in 0..monitors {
                tree.put(&format!("kdamonds/{number}/state"), "off\n");
                tree.put(&format!("kdamonds/{number}/contexts/nr_contexts"), "0\n");
            }
            tree
        }

        fn put(&self, path: &str, text: &str) {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn set_up(&self, number: usize, mark: u64, state: &str) {
            let monitor = format!("kdamonds/{number}");
            self.put(&format!("{monitor}/contexts/nr_contexts"), "1\n");
            self.put(&format!("{monitor}/contexts/0/schemes/nr_schemes"), "1\n");
            self.put(&format!("{monitor}/contexts/0/{MARK_FILE}"), &format!("{mark}\n"));
            self.put(&format!("{monitor}/state"), state);
        }

        fn get(&self, path: &str) -> String {
            fs::read_to_string(self.0.path().join(path)).unwrap().trim().to_owned()
        }
    }

    #[test]
    fn monitors_of_the_claim_are_stopped_and_taken_away() {
        let tree = Tree::new(2);
        let claim = DamonClaim::new(tree.0.path(), 2);
        tree.set_up(0, claim.mark(), "on\n");
        tree.set_up(1, claim.mark(), "on\n");
        assert_eq!(claim.take_away().unwrap(), Undone::PutBack);
        assert_eq!(
            (tree.get("kdamonds/nr_kdamonds"), tree.get("kdamonds/1/state")),
            ("0".to_owned(), "off".to_owned())
        );
        assert_eq!(claim.take_away().unwrap(), Undone::Nothing);
    }

    #[test]
    fn monitors_that_somebody_else_set_up_meanwhile_are_left_alone() {
        for (monitors, mark, state) in [(1, u64::MAX, "on\n"), (1, u64::MAX, "off\n"), (2, u64::MAX, "on\n")] {
            let tree = Tree::new(monitors);
            tree.set_up(0, mark, state);
            let claim = DamonClaim::new(tree.0.path(), 1);
            assert_eq!(claim.take_away().unwrap(), Undone::Theirs, "{monitors} {state}");
            assert_eq!(tree.get("kdamonds/nr_kdamonds"), monitors.to_string());
            assert_eq!(tree.get("kdamonds/0/state"), state.trim());
        }
        // Terrace's, of another run.
        let tree = Tree::new(1);
        tree.set_up(0, DamonClaim::new(tree.0.path(), 1).mark() ^ 1, "on\n");
        assert_eq!(DamonClaim::new(tree.0.path(), 1).take_away().unwrap(), Undone::Theirs);
    }

    #[test]
    fn a_kill_in_the_middle_of_setting_up_leaves_nothing() {
        // Marked in part; then not marked at all, which takes a second of nobody going on with it.
        let tree = Tree::new(3);
        let claim = DamonClaim::new(tree.0.path(), 3);
        tree.set_up(0, claim.mark(), "on\n");
        tree.set_up(1, 0, "off\n");
        assert_eq!(claim.take_away().unwrap(), Undone::PutBack);
        assert_eq!(tree.get("kdamonds/nr_kdamonds"), "0");
        let tree = Tree::new(2);
        let claim = DamonClaim::new(tree.0.path(), 2);
        let began = Instant::now();
        assert_eq!(claim.take_away().unwrap(), Undone::PutBack);
        assert!(began.elapsed() >= ABANDONED);
    }

    #[test]
    fn a_kernel_without_damon_needs_nothing() {
        let nowhere = tempfile::tempdir().unwrap();
        assert_eq!(DamonClaim::new(nowhere.path(), 1).take_away().unwrap(), Undone::Nothing);
    }
}
