//! What tests of research share with those of the command, and what guests need.
//!
//! In: the program as it was built. Out: its runs. Must not: leave anything behind.
#![allow(dead_code, reason = "each test program uses its part")]
#![allow(unused_imports, reason = "each test program uses its part")]

#[path = "../../../cli/tests/common/mod.rs"]
mod shared;

use std::path::Path;

pub(crate) use shared::*;
use terrace_lab::Cache;

/// Why no guest can be booted here, with this plugin and this command in it.
pub(crate) fn no_guest(plugin: &Path, terrace: &Path, kernel: &str) -> Option<String> {
    if std::env::var_os("TERRACE_LAB").is_none_or(|given| given != "1") {
        return Some("boots a guest: set TERRACE_LAB=1 to run it (make check-all does)".to_owned());
    }
    if let Err(error) = terrace_lab::plugin::check("qemu-system-x86_64", "qemu-system-x86") {
        return Some(error.to_string());
    }
    for (file, make) in [(plugin, "make qemu-plugin"), (terrace, "make build")] {
        if !file.exists() {
            return Some(format!("there is no {}: `{make}` makes it", file.display()));
        }
    }
    // Without a network there is no kernel; everything after that must work.
    let fetched = Cache::of_user().and_then(|cache| cache.busybox().and_then(|_| cache.kernel(kernel, false)));
    fetched.err().map(|error| error.to_string())
}
