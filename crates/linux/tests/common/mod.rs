//! What the live tests share: the question whether this machine lets them run at all.
// Each test binary uses a part of it, and what was skipped is told to whoever reads the output.
#![allow(dead_code, clippy::print_stdout)]

/// Prints why a test did not run, in the form that CI counts.
pub(crate) fn skipped(test: &str, reason: &str) {
    println!("SKIPPED {test}: {reason}");
}

/// Whether the test may run: root with all it needs. If not, says so.
pub(crate) fn need_root(test: &str) -> bool {
    let root = capabilities().is_some_and(|held| held & CAP_SYS_ADMIN != 0);
    if !root {
        skipped(test, "needs root (CAP_SYS_ADMIN)");
    }
    root
}

/// Whether the kernel describes its types, which the eBPF programs need. If not, says so.
pub(crate) fn need_btf(test: &str) -> bool {
    let there = std::path::Path::new("/sys/kernel/btf/vmlinux").exists();
    if !there {
        skipped(test, "needs a kernel with BTF (/sys/kernel/btf/vmlinux)");
    }
    there
}

/// CAP_SYS_ADMIN as a bit of /proc/self/status (linux/capability.h).
const CAP_SYS_ADMIN: u64 = 1 << 21;

fn capabilities() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let held = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(held.trim(), 16).ok()
}
