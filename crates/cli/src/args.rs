//! The command line's grammar. Texts become values in `options`, once.
//!
//! In: what the user typed. Out: raw arguments. Must not: look at the machine.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

mod demo;
mod groups;
mod guess;
mod lab;
mod laboratory;
mod service;
mod sizing;
mod spec;
mod target;

pub(crate) use demo::*;
pub(crate) use groups::{command, with_nearest};
pub(crate) use guess::with_guess;
pub(crate) use lab::*;
pub(crate) use laboratory::*;
pub(crate) use service::*;
pub(crate) use sizing::*;
pub(crate) use spec::*;
pub(crate) use target::*;

/// What can be a pid: the kernel's PID_MAX_LIMIT is 2^22 (proc_sys_kernel(5), pid_max).
const PIDS: std::ops::RangeInclusive<u32> = 1..=(1 << 22);

/// A pid as people write it.
fn pid(text: &str) -> Result<u32, String> {
    match text.parse::<u32>() {
        Ok(pid) if PIDS.contains(&pid) => Ok(pid),
        Err(_) if text.chars().any(|letter| !letter.is_ascii_digit()) => {
            Err(format!("expected a number; by name: --name {text}"))
        }
        _ => Err(format!("a pid is {} to {}", PIDS.start(), PIDS.end())),
    }
}

/// Manages tiered memory: keeps the pages a program uses in fast memory, moves the rest, and says what that saved and cost.
#[derive(Debug, Parser)]
#[command(name = "terrace", version, max_term_width = 110)]
pub(crate) struct Arguments {
    /// Log more on stderr (twice: debug messages too).
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show what Terrace does, by the best that works on this machine.
    ///
    /// Manages a program (redis-server under load where it is installed, else a workload of Terrace's own); where pages cannot be moved, observes it and says
    /// how much fast memory it needs; without rights, records a program in QEMU's user mode and compares policies on what it did; without QEMU,
    /// compares them on a recording that is part of Terrace. The first line says which, why nothing better, and what would enable that. Ends with a
    /// result and a page.
    Demo(DemoArguments),
    /// Run a program and manage its memory.
    ///
    /// The program is not changed. Its cold pages leave fast memory, for a slower NUMA node or for compressed swap, which
    /// Terrace sets up for the run and removes afterwards. Children are followed; the exit code is the program's, 128 + n
    /// if signal n ended it. As with env(1): 127 if there is no such program, 126 if it cannot be executed. Terrace's own:
    /// 1 if the machine cannot serve the run (the program was not started then), 2 if an option makes no sense.
    Run(Box<RunArguments>),
    /// Manage running processes and their children, a cgroup or a unit, until they end or Ctrl-C.
    Attach(Box<AttachArguments>),
    /// Watch which memory a program uses, and move nothing.
    Observe(Box<ObserveArguments>),
    /// Show the tiers of memory this machine has.
    Topology(TopologyArguments),
    /// Show what works here: trackers, movers, rights, and who else manages memory.
    Doctor(DoctorArguments),
    /// List the policies and their settings.
    Policies(PoliciesArguments),
    /// Show the state of the service and its classes.
    Status(ReachArguments),
    /// Show the classes in detail, or one class and how its pages are ranked.
    Classes(OneClassArguments),
    /// Show why a process, or a page of it, is where it is.
    Explain(ExplainArguments),
    /// Show the history of events.
    History(HistoryArguments),
    /// Show the service live, in the terminal.
    Top(TopArguments),
    /// Stop scanning and moving until `terrace resume`.
    Pause(OneClassArguments),
    /// Go on after a pause or a drain.
    Resume(OneClassArguments),
    /// Promote what was moved to slower memory, then pause.
    Drain(OneClassArguments),
    /// Read the configuration again; a bad one changes nothing.
    Reload(ReachArguments),
    /// Change one key until the next reload.
    Set(SetArguments),
    /// Check, show and explain the configuration.
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Run a workload of the catalogue as a real process (`terrace workload list` names them).
    Workload(WorkloadArguments),
    /// Simulate policies on modelled hardware: which is best for a program on a machine, and why.
    #[command(subcommand)]
    Sim(SimCommand),
    /// Find how little fast memory a program needs for a slowdown that is accepted.
    #[command(subcommand)]
    Size(SizeCommand),
    /// Show page-access traces, and convert them from and to the formats of other tools.
    #[command(subcommand)]
    Trace(TraceCommand),
    /// Record every access that a program makes to memory, without rights and without recompiling it.
    ///
    /// The program runs in QEMU's user mode (Debian: qemu-user), some ten times slower. Programs that it starts are not recorded.
    /// The exit code is the program's.
    Record(RecordArguments),
    /// Print completions for a shell: `source <(terrace completions bash)`.
    Completions(CompletionsArguments),
    /// Print the version.
    #[command(hide = true)]
    Version,
    /// Write manual pages and completions into a directory, for packages.
    #[command(hide = true)]
    Generate(GenerateArguments),
    /// Run the papers' experiments on modelled hardware: each paper's figure next to ours.
    Reproduce(ReproduceArguments),
    /// Find the best policy for a program, and how much fast memory it needs.
    ///
    /// The program runs once in QEMU's user mode, as by `terrace record`, and what it accessed is replayed under each policy at each size on a
    /// modelled machine. Its own output goes to stderr.
    Compare(Box<CompareArguments>),
    /// Run machines, programs, policies, settings, sizes and seeds into one table, on all cores.
    ///
    /// FILE.toml says what (docs/simulator.md has an example). Every row can be repeated by `terrace rerun`. While it runs, OUTPUT.partial holds
    /// what is finished; started again, the sweep goes on there, and ends with the same bytes.
    Sweep(SweepArguments),
    /// Repeat the runs behind rows of results, and say where figures differ.
    ///
    /// A row says what made it: the command, the version, hashes of machine and trace. The exit code is 0 if all figures came out the same,
    /// 1 if not, with a table; 2 if a row cannot be repeated, and then none was.
    Rerun(RerunArguments),
    /// Try stock kernels in QEMU, on machines with fast and slow memory.
    #[command(subcommand)]
    Lab(LabCommand),
}

#[derive(Debug, Args)]
pub(crate) struct WorkloadArguments {
    /// The workload, or `list`.
    pub name: String,
    /// Its footprint.
    #[arg(long, default_value = "1GiB", value_name = "BYTES")]
    pub size: String,
    /// Threads.
    #[arg(long, default_value_t = 1)]
    pub threads: usize,
    /// Seed of everything random.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Amount of work, in the workload's own operations.
    #[arg(long, conflicts_with = "duration")]
    pub operations: Option<u64>,
    /// Duration of the measured part, for workloads that run until stopped.
    #[arg(long, value_name = "TIME")]
    pub duration: Option<String>,
    /// An option of the workload. May be given several times.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub settings: Vec<String>,
    /// With `list`: print one JSON object. A run prints JSON lines in any case.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct OutputArguments {
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct PoliciesArguments {
    /// Only these policies.
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,
    #[command(flatten)]
    pub output: OutputArguments,
}

#[derive(Debug, Args)]
pub(crate) struct DoctorArguments {
    /// For scripts: exit with 1 unless a tracker and a mover work here, and say what is missing.
    #[arg(long)]
    pub check: bool,
    /// Measure what page-outs cost, by what goes at once: single pages, folios, whole blocks. Sets up compressed swap for it as `terrace run` does,
    /// and sets the kernel's sizes of folios for some tenths of a second; both are put back.
    #[arg(long)]
    pub prices: bool,
    #[command(flatten)]
    pub output: OutputArguments,
}

#[derive(Debug, Args)]
pub(crate) struct CompletionsArguments {
    /// The shell.
    pub shell: clap_complete::Shell,
}

#[derive(Debug, Args)]
pub(crate) struct TopologyArguments {
    /// Measure each node as well: the time of a load, and the bandwidth from its CPUs. Takes some seconds of them.
    #[arg(long)]
    pub measure: bool,
    #[command(flatten)]
    pub output: OutputArguments,
}

#[derive(Debug, Args)]
pub(crate) struct RunArguments {
    #[command(flatten)]
    pub spec: SpecArguments<ToManage>,
    #[command(flatten)]
    pub output: ReportArguments,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("target").required(true).args(["pid", "name", "cgroup", "unit"]))]
pub(crate) struct AttachArguments {
    #[command(flatten)]
    pub spec: SpecArguments<ToManage>,
    #[command(flatten)]
    pub output: ReportArguments,
    #[command(flatten)]
    pub target: TargetArguments,
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("target").required(true).args(["pid", "name", "cgroup", "unit", "command"]))]
pub(crate) struct ObserveArguments {
    #[command(flatten)]
    pub spec: SpecArguments<ToWatch>,
    #[command(flatten)]
    pub output: ReportArguments,
    #[command(flatten)]
    pub target: TargetArguments,
    /// The program and its arguments.
    #[arg(trailing_var_arg = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

/// Where the results of a run go.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ReportArguments {
    /// Write report.json and report.html into this directory.
    #[arg(short = 'o', long, alias = "output", value_name = "DIR")]
    pub report: Option<PathBuf>,
    /// Print the report as one JSON object on stdout, after the program's own output.
    #[arg(long)]
    pub json: bool,
    /// Write the report as one JSON object into this file.
    #[arg(long, value_name = "FILE")]
    pub json_file: Option<PathBuf>,
    /// Print no progress line and no closing lines.
    #[arg(short, long)]
    pub quiet: bool,
    /// Show the memory by idle time and by address on the whole terminal while it runs.
    #[arg(long, conflicts_with = "quiet")]
    pub live: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(words: &[&str]) -> Vec<String> {
        let words = [&["terrace"], words].concat();
        match Arguments::try_parse_from(words).unwrap().command {
            Command::Run(run) => run.command.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_program_may_stand_with_or_without_two_dashes_before_it() {
        assert_eq!(program(&["run", "--quiet", "ls", "-l", "--json"]), ["ls", "-l", "--json"]);
        assert_eq!(program(&["run", "--quiet", "--", "ls", "-l"]), ["ls", "-l"]);
        assert!(
            Arguments::try_parse_from(["terrace", "run", "--fats", "50%", "ls"]).is_err(),
            "a misspelt option is none"
        );
    }

    #[test]
    fn a_name_in_place_of_a_pid_is_answered_with_the_option_for_it() {
        let told = Arguments::try_parse_from(["terrace", "attach", "--pid", "redis"]).unwrap_err().to_string();
        assert!(told.contains("--name redis"), "{told}");
    }
}
