//! `terrace topology`: the tiers of memory this machine has, and how fast they are when they are measured.

use std::path::Path;

use serde::Serialize;
use terrace_linux::topology::Topology;
use terrace_linux::topology::measure::{Measured, measure};

use crate::args::TopologyArguments;
use crate::render::topology as render;

#[derive(Serialize)]
struct Report<'a> {
    #[serde(flatten)]
    topology: &'a Topology,
    #[serde(skip_serializing_if = "Option::is_none")]
    measured: Option<&'a Measured>,
}

pub(super) fn run(arguments: &TopologyArguments) -> anyhow::Result<()> {
    let root = Path::new("/");
    let topology = Topology::discover(root)?;
    let measured = arguments.measure.then(|| measure(root, &topology));
    super::print(arguments.output.json, &Report { topology: &topology, measured: measured.as_ref() }, |screen| {
        let measured = measured.as_ref().map(|measured| render::measured(&topology, measured, screen));
        render::table(&topology, screen) + &measured.unwrap_or_default()
    })
}
