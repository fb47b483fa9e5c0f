//! `terrace sim machines`: the presets and where their numbers come from.
//!
//! In: the presets. Out: text or JSON. Must not: leave out a source.

use std::fmt::Write;

use terrace_machine::preset::Machine;

use crate::args::OutputArguments;

pub(super) fn run(arguments: &OutputArguments) -> anyhow::Result<()> {
    let machines: Result<Vec<Machine>, _> = Machine::preset_names().into_iter().map(Machine::preset).collect();
    let machines = machines?;
    if arguments.json {
        let list: Vec<_> = machines
            .iter()
            .map(|machine| {
                let numbers: Vec<_> = machine
                    .sources
                    .iter()
                    .map(|source| serde_json::json!({ "key": source.key, "value": source.value, "source": source.source }))
                    .collect();
                serde_json::json!({ "name": machine.name, "summary": machine.summary, "numbers": numbers })
            })
            .collect();
        return super::super::print_json(&serde_json::json!({ "machines": list }));
    }
    let mut text = String::new();
    for machine in &machines {
        writeln!(text, "{}: {}", machine.name, machine.summary)?;
        for source in &machine.sources {
            writeln!(text, "    {} = {}  ({})", source.key, source.value, source.source)?;
        }
    }
    super::super::print_text(&text)
}
