//! The grammar of `terrace survey` and `terrace top`: the machine as a whole.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// What a row stands for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum RowsBy {
    // No words here: the help of a value in lines of its own is longer than what it says.
    #[default]
    Auto,
    Program,
}

#[derive(Debug, Args)]
pub struct SurveyArguments {
    /// How long programs are watched, at least 15s. What was idle for five minutes shows after 5m.
    #[arg(long, value_name = "TIME", default_value = "2m")]
    pub duration: String,
    /// What a row stands for: program, with those of its children that run the same; auto: the service, container, user's sessions or cgroup that it is in.
    #[arg(long, value_enum, default_value_t, value_name = "WHAT")]
    pub by: RowsBy,
    /// Show at most this many rows; all are in --json and --report.
    #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 20)]
    pub rows: usize,
    /// Go on until Ctrl-C, and show the rows again after each --interval; with --json an object a line, as `terrace top --replay` reads it.
    #[arg(short, long, conflicts_with_all = ["duration", "report"])]
    pub watch: bool,
    /// With --watch: the time between two looks, at least 1s.
    #[arg(long, value_name = "TIME", default_value = "10s", requires = "watch")]
    pub interval: String,
    /// Write report.json and report.html into this directory.
    #[arg(long, value_name = "DIR")]
    pub report: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct TopArguments {
    /// The daemon's control socket.
    #[arg(long, value_name = "PATH", default_value = "/run/terrace/terrace.sock")]
    pub socket: PathBuf,
    /// Time between updates, at least 200ms.
    #[arg(long, value_name = "TIME", default_value = "2s")]
    pub interval: String,
    /// What a row stands for.
    #[arg(long, value_enum, default_value_t, value_name = "WHAT")]
    pub by: RowsBy,
    /// Show what `terrace survey --watch --json` has written into this file, and ask nobody.
    #[arg(long, value_name = "FILE")]
    pub replay: Option<PathBuf>,
}
