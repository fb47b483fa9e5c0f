//! The command line of `terrace` and `terrace-research`: one grammar, so that help, completions and guesses are the same whichever is asked.
//!
//! Entry: [`parsed`], [`Command`].
//! In: what the user typed.
//! Out: raw arguments, and which program a command is of.
//! Must not: look at the machine, or run a command.
#![cfg_attr(test, allow(clippy::unwrap_used))]
// A doc comment on arguments is help that a person reads; a struct of arguments is documented by the command whose help it is.
#![allow(missing_docs)]

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Args, FromArgMatches, Parser, Subcommand};
use terrace_common::tell::tell;

mod demo;
pub mod generate;
mod groups;
mod guess;
mod lab;
mod laboratory;
mod service;
mod sizing;
mod survey;

pub use demo::*;
pub use groups::{RESEARCH, command, of_research, with_nearest};
pub use guess::with_guess;
pub use lab::*;
pub use laboratory::*;
pub use service::*;
pub use sizing::*;
pub use survey::*;
pub use terrace_run::args::*;

/// Manages tiered memory: keeps what a program uses fast, moves the rest, says what that saved and cost.
#[derive(Debug, Parser)]
#[command(name = "terrace", version, max_term_width = 110)]
pub struct Arguments {
    /// Log more on stderr (twice: debug messages too).
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show what Terrace does, by the best that works on this machine: `terrace demo`.
    ///
    /// Manages a program (redis-server under load where it is installed, else a workload of Terrace's own); where pages cannot be moved, observes it and says
    /// how much fast memory it needs; without rights, records a program in QEMU's user mode and compares policies on what it did; without QEMU,
    /// compares them on a recording that is part of Terrace. The first line says which, why nothing better, and what would enable that. Ends with a
    /// result and a page.
    Demo(DemoArguments),
    /// Run a program and manage its memory: `terrace run --report report -- ./program`.
    ///
    /// The program is not changed. Its cold pages leave fast memory, for a slower NUMA node or for compressed swap, which
    /// Terrace sets up for the run and removes afterwards. Children are followed; the exit code is the program's, 128 + n
    /// if signal n ended it. As with env(1): 127 if there is no such program, 126 if it cannot be executed. Terrace's own:
    /// 1 if the machine cannot serve the run (the program was not started then) or a report could not be written, 2 if an option makes no sense.
    ///
    /// A signal reaches the program once: a terminal's Ctrl-C as ever, one to Terrace alone by Terrace. Ctrl-Z stops both, fg and bg continue both.
    Run(Box<RunArguments>),
    /// Manage running programs: `terrace attach --name redis-server --duration 10m`.
    ///
    /// By name, pids, cgroup or unit, with all children, or everything (`--all`), until they end or Ctrl-C, which ends the management and not the
    /// program.
    Attach(Box<AttachArguments>),
    /// Watch which memory is in use, move nothing: `terrace observe --name redis-server`.
    ///
    /// By name, pids, cgroup or unit, or a program to start: `terrace observe -- ./program`. Ends with the memory by idle time: memory that has
    /// been idle for long can leave.
    Observe(Box<ObserveArguments>),
    /// Show which programs hold memory that nobody uses, and what Terrace would give back.
    ///
    /// Looks at the whole machine, or at this container, and moves nothing. It clears accessed bits of a part of each program's memory in turn, which
    /// takes at most a hundredth of one core. A row is a service, a container, a user's sessions, a cgroup, or else a program. Ctrl-C ends it early,
    /// with what is known by then.
    Survey(SurveyArguments),
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
    /// Show why a process, or a page of it, is where it is: `terrace explain 4711:0x7f0012345000`.
    Explain(ExplainArguments),
    /// Show the history of events: `terrace history --follow`.
    History(HistoryArguments),
    /// Show the machine live, in the terminal, and the service if it runs.
    Top(TopArguments),
    /// Stop scanning and moving until `terrace resume`.
    Pause(OneClassArguments),
    /// Go on after a pause or a drain.
    Resume(OneClassArguments),
    /// Promote what was moved to slower memory, then pause.
    Drain(OneClassArguments),
    /// Bring back at once what a program has in swap, ahead of its use.
    ///
    /// For who knows first that a sleeping program is about to be used: a scheduler, a proxy, a script. A class, or a process that the service
    /// manages, gets back what it used when it was awake last; any other process and its children all that they have in swap. Prints how much came
    /// back in what time.
    Wake(WakeArguments),
    /// Read the configuration again; a bad one changes nothing.
    Reload(ReachArguments),
    /// Change one key until the next reload: `terrace set class.web.floor 512MiB`.
    Set(SetArguments),
    /// Check, show and explain the configuration: `terrace config check`.
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Run a workload as a real process: `terrace workload hot-cold`. See `terrace workload list`.
    Workload(WorkloadArguments),
    /// Simulate policies on modelled hardware: `terrace sim run btree --policy tpp --fast 25%`.
    #[command(subcommand)]
    Sim(SimCommand),
    /// Find how little fast memory a program needs: `terrace size advise -- ./program`.
    #[command(subcommand)]
    Size(SizeCommand),
    /// Show page-access traces, and convert from and to other formats: `terrace trace info FILE`.
    #[command(subcommand)]
    Trace(TraceCommand),
    /// Record every memory access of a program, without rights: `terrace record -- ./program`.
    ///
    /// The program needs no recompiling. It runs in QEMU's user mode (Debian: qemu-user), some ten times slower. Programs that it starts are not
    /// recorded.
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
    /// Run the papers' experiments, each figure next to ours: `terrace reproduce FM.fig6 --quick`.
    Reproduce(ReproduceArguments),
    /// Find the best policy for a program, and the memory it needs: `terrace compare -- ./program`.
    ///
    /// The program runs once in QEMU's user mode, as by `terrace record`, and what it accessed is replayed under each policy at each size on a
    /// modelled machine. Its own output goes to stderr.
    Compare(Box<CompareArguments>),
    /// Run many settings into one table: `terrace sweep FILE.toml --output FILE.parquet`.
    ///
    /// FILE.toml defines the sweep: machines, programs, policies, settings, sizes, seeds (docs/simulator.md has an example). Every row can be
    /// repeated by `terrace rerun`. While it runs, OUTPUT.partial holds what is finished; started again, the sweep goes on there, and ends with the same bytes.
    Sweep(SweepArguments),
    /// Repeat the runs behind results, and say where figures differ: `terrace rerun cells.json`.
    ///
    /// A row says what made it: the command, the version, hashes of machine and trace. The exit code is 0 if all figures came out the same,
    /// 1 if not, with a table; 2 if a row cannot be repeated, and then none was.
    Rerun(RerunArguments),
    /// Try stock kernels in QEMU, with fast and slow memory: `terrace lab run cold-leaves`.
    #[command(subcommand)]
    Lab(LabCommand),
}

/// The arguments of this process.
///
/// # Errors
/// The exit code, after help, a version or a message were printed: the message has the line that was probably meant.
pub fn parsed(grammar: clap::Command) -> Result<Arguments, ExitCode> {
    let told = match grammar.clone().try_get_matches().and_then(|given| Arguments::from_arg_matches(&given)) {
        Ok(arguments) => return Ok(arguments),
        Err(told) => told,
    };
    let words: Vec<String> = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    Err(tell(&with_guess(with_nearest(told), &command(), &words)))
}

impl Command {
    /// Its name, as it is typed.
    pub fn name(&self) -> &'static str {
        match self {
            Command::Demo(_) => "demo",
            Command::Run(_) => "run",
            Command::Attach(_) => "attach",
            Command::Observe(_) => "observe",
            Command::Survey(_) => "survey",
            Command::Topology(_) => "topology",
            Command::Doctor(_) => "doctor",
            Command::Policies(_) => "policies",
            Command::Status(_) => "status",
            Command::Classes(_) => "classes",
            Command::Explain(_) => "explain",
            Command::History(_) => "history",
            Command::Top(_) => "top",
            Command::Pause(_) => "pause",
            Command::Resume(_) => "resume",
            Command::Drain(_) => "drain",
            Command::Wake(_) => "wake",
            Command::Reload(_) => "reload",
            Command::Set(_) => "set",
            Command::Config(_) => "config",
            Command::Workload(_) => "workload",
            Command::Sim(_) => "sim",
            Command::Size(_) => "size",
            Command::Trace(_) => "trace",
            Command::Record(_) => "record",
            Command::Completions(_) => "completions",
            Command::Version => "version",
            Command::Generate(_) => "generate",
            Command::Reproduce(_) => "reproduce",
            Command::Compare(_) => "compare",
            Command::Sweep(_) => "sweep",
            Command::Rerun(_) => "rerun",
            Command::Lab(_) => "lab",
        }
    }

    /// The name of a command that `terrace-research` has. Of `size` it has all but the tuner by observation, which operators use.
    pub fn of_research(&self) -> Option<&'static str> {
        match self {
            Command::Size(SizeCommand::Tune(arguments)) if !arguments.paper => None,
            Command::Size(_) => Some("size"),
            other => RESEARCH.contains(&other.name()).then(|| other.name()),
        }
    }
}

#[derive(Debug, Args)]
pub struct WorkloadArguments {
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
pub struct OutputArguments {
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct PoliciesArguments {
    /// Only these policies.
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,
    #[command(flatten)]
    pub output: OutputArguments,
}

#[derive(Debug, Args)]
pub struct DoctorArguments {
    /// For scripts: exit with 1 unless a tracker and a mover work here, and say what is missing.
    #[arg(long)]
    pub check: bool,
    /// Measure what page-outs cost, by what goes at once: single pages, folios, whole blocks; and what it costs to look inside huge pages. Sets up
    /// compressed swap for it as `terrace run` does, and sets the kernel's sizes of folios for some tenths of a second; both are put back.
    #[arg(long)]
    pub prices: bool,
    /// Try the compressors of zram on pages of this process, by a zram device that goes again: what the pages take, and the time. It says which one
    /// `terrace attach` would use.
    #[arg(short, long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..=1 << 22))]
    pub pid: Option<u32>,
    #[command(flatten)]
    pub output: OutputArguments,
}

#[derive(Debug, Args)]
pub struct CompletionsArguments {
    /// The shell.
    pub shell: clap_complete::Shell,
}

#[derive(Debug, Args)]
pub struct TopologyArguments {
    /// Measure each node as well: the time of a load, and the bandwidth from its CPUs. Takes some seconds of them.
    #[arg(long)]
    pub measure: bool,
    #[command(flatten)]
    pub output: OutputArguments,
}

#[derive(Debug, Args)]
pub struct RunArguments {
    #[command(flatten)]
    pub spec: SpecArguments<ToManage>,
    #[command(flatten)]
    pub output: ReportArguments,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("target").required(true).args(["pid", "name", "cgroup", "unit", "all"]))]
pub struct AttachArguments {
    #[command(flatten)]
    pub spec: SpecArguments<ToManage>,
    #[command(flatten)]
    pub output: ReportArguments,
    #[command(flatten)]
    pub target: TargetArguments,
    /// All processes of this machine (in a container: of it) and those that come later, but for what holds it up: the first process, systemd, sshd,
    /// container runtimes, display servers and the like, what locks its memory or runs in real time, and what started Terrace.
    #[arg(long)]
    pub all: bool,
    /// With --all: names that are never touched either, with commas between; a star at the end stands for any rest. `terrace config explain
    /// daemon.never` has those that are known.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', conflicts_with_all = ["pid", "name", "cgroup", "unit"])]
    pub never: Vec<String>,
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("target").required(true).args(["pid", "name", "cgroup", "unit", "command"]))]
pub struct ObserveArguments {
    #[command(flatten)]
    pub spec: SpecArguments<ToWatch>,
    /// Split some huge pages, and estimate from them how much is used inside all of them: one page in use makes the whole look used.
    #[arg(long)]
    pub inside: bool,
    #[command(flatten)]
    pub output: ReportArguments,
    #[command(flatten)]
    pub target: TargetArguments,
    /// The program and its arguments.
    #[arg(trailing_var_arg = true, value_name = "CMD")]
    pub command: Vec<OsString>,
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
