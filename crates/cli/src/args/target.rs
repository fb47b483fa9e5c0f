//! The grammar of what runs already: by pid, by name, by cgroup, by systemd unit.
//!
//! In: what the user typed. Out: raw arguments. Must not: look for a process; `commands::named` does.

use clap::Args;

use super::pid;

/// What runs already, in one of four ways.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct TargetArguments {
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
}
