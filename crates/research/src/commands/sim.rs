//! `terrace sim`: policies on modelled hardware.
//!
//! In: raw arguments. Out: what a run or a comparison found, as text, JSON, CSV or a page. Must not: model
//! anything: `terrace-sim` does, and this lends it files, threads and a clock.

use crate::args::SimCommand;

pub(crate) mod compare;
mod explain;
mod hotness;
mod machines;
pub(crate) mod single;

pub(crate) use terrace_study::options;

pub(super) fn run(command: &SimCommand) -> anyhow::Result<()> {
    match command {
        SimCommand::Run(arguments) => single::run(arguments),
        SimCommand::Compare(arguments) => compare::run(arguments),
        SimCommand::Explain(arguments) => explain::run(arguments),
        SimCommand::Hotness(arguments) => hotness::run(arguments),
        SimCommand::Machines(arguments) => machines::run(arguments),
    }
}
