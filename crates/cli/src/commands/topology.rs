//! `terrace topology`: the tiers of memory this machine has, and how fast they are when they are measured.

use std::path::Path;
use std::process::ExitCode;

use serde::Serialize;
use terrace_linux::topology::Topology;
use terrace_linux::topology::measure::{Measured, measure};

use crate::args::TopologyArguments;

#[derive(Serialize)]
struct Report<'a> {
    #[serde(flatten)]
    topology: &'a Topology,
    #[serde(skip_serializing_if = "Option::is_none")]
    measured: Option<&'a Measured>,
}

pub(super) fn run(arguments: &TopologyArguments) -> anyhow::Result<ExitCode> {
    let root = Path::new("/");
    let topology = Topology::discover(root)?;
    let measured = arguments.measure.then(|| measure(root, &topology));
    if arguments.output.json {
        super::print_json(&Report { topology: &topology, measured: measured.as_ref() })?;
    } else {
        let mut text = crate::render::topology::table(&topology);
        if let Some(measured) = &measured {
            text.push_str(&crate::render::topology::measured(&topology, measured));
        }
        super::print_text(&text)?;
    }
    Ok(ExitCode::SUCCESS)
}
