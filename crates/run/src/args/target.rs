//! The grammar of what runs already, by pid, by name, by cgroup, by systemd unit, and for how long it is looked after.
//!
//! In: what the user typed. Out: raw arguments, and a checked time. Must not: look for a process; `commands::named` does.

use std::time::Duration;

use clap::Args;

use super::pid;
use crate::options::duration;

/// What runs already, in one of four ways.
#[derive(Clone, Debug, Default, Args)]
pub struct TargetArguments {
    /// The process and its children; several with commas between.
    #[arg(short, long, value_name = "PID", value_delimiter = ',', value_parser = pid)]
    pub pid: Vec<u32>,
    /// The process of this name and its children.
    #[arg(long)]
    pub name: Option<String>,
    /// All processes of this cgroup and of those below it, also those that come later, until it is removed: /jobs.slice.
    #[arg(long, value_name = "PATH")]
    pub cgroup: Option<String>,
    /// All processes of this systemd unit, as of its cgroup: redis-server or redis-server.service.
    #[arg(long, value_name = "NAME")]
    pub unit: Option<String>,
    /// Stop after this long, such as 60s.
    #[arg(long, value_name = "TIME")]
    pub duration: Option<String>,
}

impl TargetArguments {
    /// For how long, if not to the end.
    ///
    /// # Errors
    /// When it is no time: misuse.
    pub fn limit(&self) -> anyhow::Result<Option<Duration>> {
        self.duration.as_deref().map(|text| duration("--duration", text)).transpose()
    }
}
