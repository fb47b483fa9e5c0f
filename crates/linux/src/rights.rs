//! Rights: what this process may do to others, and what is missing.
//!
//! In: /proc/self/status and kernel.perf_event_paranoid. Out: which capability is missing, what it is needed for, and what
//! still works without it. Must not: try to gain rights.

use std::io;

mod least;

pub use least::{Job, container_options, kubernetes_line};

/// The capabilities that matter (capabilities(7)): name, number, what it is for.
const CAPABILITIES: [(&str, u32, &str); 7] = [
    ("CAP_BPF", 39, "the accessed-bits tracker: loading its eBPF program"),
    (
        "CAP_PERFMON",
        38,
        "the accessed-bits tracker (reading page tables), samples of other users' programs and of the whole machine",
    ),
    ("CAP_SYS_PTRACE", 19, "looking at and advising the memory of other users' programs"),
    ("CAP_SYS_NICE", 23, "moving the pages of another program (process_madvise, move_pages)"),
    ("CAP_SYS_ADMIN", 21, "frame numbers in /proc/PID/pagemap, swapon, setting up zram"),
    ("CAP_DAC_OVERRIDE", 1, "clear_refs of other users' programs, writing to /sys (DAMON, page_idle)"),
    ("CAP_IPC_LOCK", 14, "rings larger than kernel.perf_event_mlock_kb"),
];

/// One capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Capability {
    /// Its name, as setcap(8) takes it.
    pub name: &'static str,
    /// Whether this process holds it.
    pub held: bool,
    /// What it is needed for.
    pub needed_for: &'static str,
}

/// What this process may do.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Rights {
    /// Its effective user.
    pub user_id: u32,
    /// Every capability that matters.
    pub capabilities: Vec<Capability>,
    /// kernel.perf_event_paranoid; `None` where the kernel has no perf events.
    pub perf_event_paranoid: Option<i32>,
    /// The capabilities that are missing.
    pub missing: Vec<&'static str>,
    /// What works with what there is, in lines for the user.
    pub still_works: Vec<&'static str>,
}

impl Rights {
    /// Reads the rights of this process.
    pub fn of_this_process() -> Rights {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let paranoid = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").ok();
        Rights::parse(&status, paranoid.as_deref())
    }

    fn parse(status: &str, paranoid: Option<&str>) -> Rights {
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let effective = field("CapEff").and_then(|text| u64::from_str_radix(text.trim(), 16).ok()).unwrap_or(0);
        let user_id =
            field("Uid").and_then(|text| text.split_ascii_whitespace().nth(1)?.parse().ok()).unwrap_or(u32::MAX);
        let has = |number: u32| effective >> number & 1 == 1;
        // capabilities(7): CAP_SYS_ADMIN includes what CAP_BPF and CAP_PERFMON allow.
        let implied = |name: &str| has(21) && matches!(name, "CAP_BPF" | "CAP_PERFMON");
        let capabilities: Vec<Capability> = CAPABILITIES
            .iter()
            .map(|&(name, number, needed_for)| Capability { name, held: has(number) || implied(name), needed_for })
            .collect();
        let missing =
            capabilities.iter().filter(|capability| !capability.held).map(|capability| capability.name).collect();
        let mut rights = Rights {
            user_id,
            capabilities,
            perf_event_paranoid: paranoid.and_then(|text| text.trim().parse().ok()),
            missing,
            still_works: Vec::new(),
        };
        rights.still_works = rights.what_works();
        rights
    }

    /// Whether a capability is held. Unknown names are not.
    pub fn holds(&self, name: &str) -> bool {
        self.capabilities.iter().any(|capability| capability.name == name && capability.held)
    }

    /// Whether perf events may count what happens in the kernel on a program's behalf.
    pub fn may_watch_kernel(&self) -> bool {
        self.holds("CAP_PERFMON") || self.perf_event_paranoid.is_some_and(|level| level <= 1)
    }

    /// Whether perf events may watch every program of the machine.
    pub fn may_watch_machine(&self) -> bool {
        self.holds("CAP_PERFMON") || self.perf_event_paranoid.is_some_and(|level| level <= 0)
    }

    fn what_works(&self) -> Vec<&'static str> {
        let mut works = Vec::new();
        if self.holds("CAP_BPF") && self.holds("CAP_PERFMON") {
            works.push("reading accessed bits of other programs (accessed-bits)");
        }
        if self.holds("CAP_SYS_PTRACE") && self.holds("CAP_SYS_NICE") {
            works.push("moving pages of every user's programs (process_madvise, move_pages)");
        } else if self.holds("CAP_SYS_NICE") {
            works.push("moving pages of this user's programs");
        }
        if self.holds("CAP_SYS_ADMIN") {
            works.push("setting up compressed swap (zram) for a run");
        }
        match self.perf_event_paranoid {
            Some(_) if self.may_watch_kernel() => works.push("births and refaults with addresses (page-faults)"),
            Some(2) => works.push(
                "births and refaults of this user's programs, as far as their own code touches the page (page-faults)",
            ),
            _ => {}
        }
        works.push("residency of this user's programs: which pages are present or swapped, without frames (pagemap)");
        works
    }

    /// Says in one line why a perf event could not be opened, and what to do.
    pub fn explain_perf(&self, error: &io::Error) -> String {
        match error.raw_os_error() {
            Some(libc::EACCES | libc::EPERM) => format!(
                "perf events are refused ({error}): run as root, or give CAP_PERFMON and CAP_IPC_LOCK, or lower kernel.perf_event_paranoid \
                 (it is {})",
                self.perf_event_paranoid.map_or_else(|| "absent".to_owned(), |level| level.to_string())
            ),
            Some(libc::ENOENT | libc::ENODEV | libc::EOPNOTSUPP) => {
                "no hardware performance counters (virtual machine without a vPMU)".to_owned()
            }
            Some(libc::ENOSYS) => "this kernel is built without perf events (CONFIG_PERF_EVENTS)".to_owned(),
            Some(libc::EMFILE) => {
                "too many open files: raise the limit (ulimit -n); one is needed for each thread, CPU and event"
                    .to_owned()
            }
            _ => format!("perf_event_open: {error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rights(effective: &str, paranoid: Option<&str>) -> Rights {
        Rights::parse(&format!("Name:\tx\nUid:\t1000\t1000\t1000\t1000\nCapEff:\t{effective}\n"), paranoid)
    }

    #[test]
    fn missing_capabilities_are_named() {
        let none = rights("0000000000000000", Some("2\n"));
        assert_eq!(none.user_id, 1000);
        assert_eq!(none.missing.len(), CAPABILITIES.len());
        assert!(!none.may_watch_kernel() && none.still_works.iter().any(|line| line.contains("page-faults")));
        let all = rights("000001ffffffffff", Some("4"));
        assert!(all.missing.is_empty() && all.may_watch_machine());
    }

    #[test]
    fn the_admin_capability_includes_bpf_and_perfmon() {
        let admin = rights(&format!("{:016x}", 1_u64 << 21), Some("2"));
        assert!(admin.holds("CAP_BPF") && admin.holds("CAP_PERFMON") && !admin.holds("CAP_SYS_NICE"));
    }

    #[test]
    fn a_low_paranoia_level_stands_in_for_the_capability() {
        assert!(rights("0", Some("1")).may_watch_kernel());
        assert!(!rights("0", Some("1")).may_watch_machine());
        assert!(rights("0", Some("-1")).may_watch_machine());
        assert!(!rights("0", None).may_watch_kernel());
    }

    #[test]
    fn refusals_say_what_to_do() {
        let line = rights("0", Some("3")).explain_perf(&io::Error::from_raw_os_error(libc::EACCES));
        assert!(line.contains("CAP_PERFMON") && line.contains("it is 3"), "{line}");
        let line = rights("0", Some("2")).explain_perf(&io::Error::from_raw_os_error(libc::ENOENT));
        assert_eq!(line, "no hardware performance counters (virtual machine without a vPMU)");
    }
}
