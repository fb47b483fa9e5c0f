//! `terrace doctor`: what works on this machine, what does not, and why.

use std::process::ExitCode;

use terrace_linux::doctor::Doctor;

use crate::args::OutputArguments;

pub(super) fn run(arguments: &OutputArguments) -> anyhow::Result<ExitCode> {
    let doctor = Doctor::examine()?;
    if arguments.json {
        super::print_json(&doctor)?;
    } else {
        super::print_text(&crate::render::doctor::table(&doctor))?;
    }
    Ok(ExitCode::SUCCESS)
}
