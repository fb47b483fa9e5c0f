//! `terrace doctor`: what works on this machine, what does not, and why.

use std::process::ExitCode;

use terrace_linux::doctor::Doctor;

use crate::args::DoctorArguments;

pub(super) fn run(arguments: &DoctorArguments) -> anyhow::Result<ExitCode> {
    let doctor = Doctor::examine()?;
    if arguments.output.json {
        super::print_json(&doctor)?;
    } else {
        super::print_text(&crate::render::doctor::table(&doctor))?;
    }
    match missing(&doctor) {
        Some(what) if arguments.check => Err(anyhow::anyhow!("{what}; see above for each reason")),
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// What Terrace cannot do without and this machine does not give.
fn missing(doctor: &Doctor) -> Option<&'static str> {
    match (doctor.chosen_tracker, doctor.movers.iter().any(|mover| mover.available)) {
        (None, false) => Some("neither a tracker nor a mover works here"),
        (None, true) => Some("no tracker works here"),
        (Some(_), false) => Some("no mover works here"),
        (Some(_), true) => None,
    }
}
