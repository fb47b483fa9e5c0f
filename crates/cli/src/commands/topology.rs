//! `terrace topology`: the tiers of memory this machine has.

use std::path::Path;
use std::process::ExitCode;

use terrace_linux::topology::Topology;

use crate::args::OutputArguments;

pub(super) fn run(arguments: &OutputArguments) -> anyhow::Result<ExitCode> {
    let topology = Topology::discover(Path::new("/"))?;
    if arguments.json {
        super::print_json(&topology)?;
    } else {
        super::print_text(&crate::render::topology::table(&topology))?;
    }
    Ok(ExitCode::SUCCESS)
}
