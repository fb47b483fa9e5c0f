//! `terrace doctor`: what works on this machine, what does not, and why.

use terrace_linux::doctor::Doctor;
use terrace_linux::machine::{Machine, Wanted};
use terrace_linux::prices::KindPrice;
use terrace_linux::rights::Job;
use terrace_linux::topology::declared::SlowTier;
use terrace_linux::trials::Trial;
use terrace_linux::zram::Tried;

use crate::args::DoctorArguments;
use crate::session::refusal::Refusal;

pub(super) fn run(arguments: &DoctorArguments) -> anyhow::Result<()> {
    let mut doctor = Doctor::examine()?;
    if arguments.prices {
        let (prices, folios) = prices()?;
        doctor.prices = Some(prices);
        doctor.trials.retain(|trial| trial.name != folios.name);
        doctor.trials.push(folios);
    }
    if let Some(pid) = arguments.pid {
        doctor.compression.tried = Some(Tried::on(pid)?);
    }
    super::print(arguments.output.json, &doctor, |screen| crate::render::doctor::table(&doctor, screen))?;
    match missing(&doctor) {
        Some(what) if arguments.check => Err(anyhow::anyhow!("{what}; see above for each reason")),
        _ => Ok(()),
    }
}

/// Prices of page-outs on the swap that a run would use, and whether pages come back from it in folios.
fn prices() -> anyhow::Result<(Vec<KindPrice>, Trial)> {
    let slow = SlowTier::Auto;
    let mut machine = Machine::prepare(&Wanted::Slow(&slow), None, true, None)
        .map_err(|error| Refusal::of(&error, Job::MoveToOwnSwap))?;
    let prices = machine.held.prices(&machine.tiers);
    let folios = machine.held.try_folios(&machine.tiers);
    crate::session::machine::release(machine.held)?;
    Ok((prices?, folios?))
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
