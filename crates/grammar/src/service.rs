//! The grammar of the commands that concern the daemon, `terraced`.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};

/// Where the configuration lies.
#[derive(Debug, Args)]
pub struct ConfigPlace {
    /// The configuration; drop-ins are in conf.d next to it.
    #[arg(long, value_name = "FILE", default_value = terrace_run::CONFIGURATION)]
    config: PathBuf,
    /// The configuration, as with --config.
    #[arg(value_name = "FILE", conflicts_with = "config")]
    file: Option<PathBuf>,
}

impl ConfigPlace {
    /// The configuration that is meant.
    pub fn path(&self) -> &Path {
        self.file.as_ref().unwrap_or(&self.config)
    }
}

#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Check the configuration and report all problems.
    Check(ConfigPlace),
    /// Show the values in force: every key, its value, and its source.
    Show(ConfigPlace),
    /// Print a configuration with all defaults and the meaning of each key.
    Default,
    /// Explain a key, such as budget.cpu or class.web.floor.
    Explain {
        /// The key.
        #[arg(value_name = "KEY")]
        key: String,
    },
}

/// How to reach the daemon.
#[derive(Debug, Args)]
pub struct Reach {
    /// The daemon's control socket.
    #[arg(long, value_name = "PATH", default_value = "/run/terrace/terrace.sock")]
    pub socket: PathBuf,
    /// Print the daemon's answer as one JSON object.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct ReachArguments {
    #[command(flatten)]
    pub reach: Reach,
}

#[derive(Debug, Args)]
pub struct OneClassArguments {
    /// The class; by default all of them.
    #[arg(value_name = "CLASS")]
    pub class: Option<String>,
    #[command(flatten)]
    pub reach: Reach,
}

#[derive(Debug, Args)]
pub struct ExplainArguments {
    /// The process, and optionally an address in it: 4711 or 4711:0x7f0012345000.
    #[arg(value_name = "PID[:ADDRESS]")]
    pub place: String,
    #[command(flatten)]
    pub reach: Reach,
}

#[derive(Debug, Args)]
pub struct HistoryArguments {
    /// Only events of this class.
    #[arg(long, value_name = "CLASS")]
    pub class: Option<String>,
    /// Show at most this many, the latest.
    #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 50)]
    pub lines: usize,
    /// Show new events as they happen, until Ctrl-C.
    #[arg(short, long)]
    pub follow: bool,
    #[command(flatten)]
    pub reach: Reach,
}

#[derive(Debug, Args)]
pub struct WakeArguments {
    /// The class, or the pid of a process.
    #[arg(value_name = "CLASS|PID")]
    pub target: String,
    #[command(flatten)]
    pub reach: Reach,
}

#[derive(Debug, Args)]
pub struct SetArguments {
    /// The key, such as class.web.floor.
    #[arg(value_name = "KEY")]
    pub key: String,
    /// Its value, such as 512MiB.
    #[arg(value_name = "VALUE")]
    pub value: String,
    #[command(flatten)]
    pub reach: Reach,
}

#[derive(Debug, Args)]
pub struct GenerateArguments {
    /// The directory; it is made.
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
}
