//! The laboratory by hand: `cargo run --release -p terrace-lab --example lab -- boot|run|shell`.
//!
//! In: arguments. Out: a report on stdout, the guest's console on stderr with -v; exit code 0 passed, 1 failed. Must not: hold
//! logic that the command `terrace lab` would need as well.
#![allow(clippy::print_stdout, reason = "a command")]

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use terrace_core::units::Bytes;
use terrace_lab::{Cache, Lab, Machine, Mode, Scenario, ScenarioReport, Topology};

#[derive(Parser)]
#[command(name = "lab")]
struct Arguments {
    /// The guest's console on stderr; twice: commands too.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    verbose: u8,
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    command: Command,
}

#[derive(Args)]
struct Common {
    /// The terrace command that goes into the guest; TERRACE_BINARY, or target/release/terrace, without it.
    #[arg(long, global = true)]
    binary: Option<PathBuf>,
    /// Time by instructions: reproducible, two to four times slower. Usual in CI.
    #[arg(long, global = true)]
    deterministic: bool,
    /// Time by the host's clock. Usual outside CI.
    #[arg(long, global = true, conflicts_with = "deterministic")]
    real_time: bool,
    /// Look for newer kernels than those in the cache.
    #[arg(long, global = true)]
    refresh: bool,
    /// A Debian archive other than that of the host's apt sources.
    #[arg(long, global = true)]
    mirror: Option<String>,
    /// Keep console log and raw results in this folder.
    #[arg(long, global = true)]
    keep: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Subcommand)]
enum Command {
    /// Boot a machine, describe it, power it off.
    Boot(MachineArguments),
    /// Run scenarios.
    Run {
        /// Scenario files.
        #[arg(required = true)]
        scenarios: Vec<PathBuf>,
        /// A kernel instead of the scenario's first: 6.1, 6.12, newest; `all` runs it on each that the scenario names.
        #[arg(long)]
        kernel: Option<String>,
    },
    /// A shell in the guest.
    Shell(MachineArguments),
}

#[derive(Args)]
struct MachineArguments {
    /// 6.1, 6.12, newest, or a whole version.
    #[arg(long, default_value = "6.12")]
    kernel: String,
    #[arg(long, default_value = "1GiB")]
    fast: Bytes,
    #[arg(long, default_value = "1GiB")]
    slow: Bytes,
    #[arg(long, default_value = "512MiB")]
    zram: Bytes,
    #[arg(long, default_value_t = 1)]
    cpus: u32,
    #[arg(long, value_enum, default_value_t = TopologyArgument::FastSlow)]
    topology: TopologyArgument,
    /// Modules to load, with what they need.
    #[arg(long)]
    module: Vec<String>,
}

#[derive(Clone, Copy, ValueEnum)]
enum TopologyArgument {
    FastSlow,
    ThreeTiers,
    TwoSockets,
}

impl MachineArguments {
    fn machine(&self) -> Machine {
        let topology = match self.topology {
            TopologyArgument::FastSlow => Topology::FastSlow,
            TopologyArgument::ThreeTiers => Topology::ThreeTiers,
            TopologyArgument::TwoSockets => Topology::TwoSockets,
        };
        Machine { topology, fast: self.fast, slow: self.slow, zram: self.zram, cpus: self.cpus }
    }
}

fn main() -> ExitCode {
    run(Arguments::parse()).unwrap_or_else(|error| {
        eprintln!("lab: {error}");
        ExitCode::FAILURE
    })
}

fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let level = ["warn", "info", "debug"][usize::from(arguments.verbose.min(2))];
    tracing_subscriber::fmt().with_env_filter(level).with_writer(std::io::stderr).without_time().init();
    let common = arguments.common;
    let mode = match (common.deterministic, common.real_time) {
        (true, _) => Mode::Deterministic,
        (_, true) => Mode::Fast,
        _ => Mode::of_environment(),
    };
    let cache = Cache::of_user()?.with_mirror(common.mirror);
    let terrace = common.binary.unwrap_or_else(Lab::usual_terrace);
    let lab = Lab { cache, terrace, mode, refresh: common.refresh, keep: common.keep };
    let mut passed = true;
    let mut show = |report: &ScenarioReport| -> anyhow::Result<()> {
        passed &= report.passed;
        if common.json {
            println!("{}", serde_json::to_string_pretty(report)?);
        } else {
            print(report);
        }
        Ok(())
    };
    match arguments.command {
        Command::Boot(machine) => show(&lab.boot(&machine.machine(), &machine.kernel, Duration::from_secs(300))?)?,
        Command::Run { scenarios, kernel } => {
            for path in scenarios {
                let scenario = Scenario::read(&path)?;
                let kernels = match kernel.as_deref() {
                    Some("all") => scenario.kernels.clone(),
                    Some(kernel) => vec![kernel.to_owned()],
                    None => vec![scenario.kernels[0].clone()],
                };
                for kernel in kernels {
                    show(&lab.run(&scenario, Some(&kernel))?)?;
                }
            }
        }
        Command::Shell(machine) => {
            let status = lab.shell(&machine.machine(), &machine.kernel, &machine.module)?;
            return Ok(ExitCode::from(u8::from(!status.success())));
        }
    }
    Ok(ExitCode::from(u8::from(!passed)))
}

fn print(report: &ScenarioReport) {
    let verdict = if report.passed { "passed" } else { "FAILED" };
    println!(
        "{} on {} ({}): {verdict}; boot {:.1} s, {:.1} s in all, {:.1} s in the guest",
        report.scenario,
        report.release,
        report.mode.name(),
        report.boot_seconds,
        report.wall_seconds,
        report.guest_seconds
    );
    for step in &report.steps {
        println!("  step {:<20} exit {} after {:.2} s", step.name, step.exit, step.seconds);
    }
    for assertion in &report.assertions {
        let values: Vec<String> = assertion.values.iter().map(|(path, value)| format!("{path} = {value}")).collect();
        let mark = if assertion.passed { "ok  " } else { "FAIL" };
        println!("  {mark} {}", assertion.text);
        match &assertion.error {
            Some(error) => println!("       {error}"),
            None => println!("       {}", values.join(", ")),
        }
    }
    for (name, value) in &report.figures {
        println!("  {name}: {value}");
    }
    if let Some(tail) = &report.console_tail {
        println!("  the end of the console:\n{tail}");
    }
}
