//! The simulation stays open: few parts, each of which owns its state.
//!
//! In: the simulation's sources. Out: whether it has at most fifteen fields, all private, and no part shows a field to its neighbours.
#![allow(clippy::unwrap_used)] // These are tests.

use std::path::Path;

/// The lines of the struct that begins with `head`.
fn fields(source: &str, head: &str) -> Vec<String> {
    let body = source.split_once(head).unwrap_or_else(|| panic!("no {head}")).1;
    let body = body.split_once("\n}").unwrap().0;
    let lines = body.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("//"));
    lines.map(str::to_owned).collect()
}

#[test]
fn a_simulation_has_few_parts_and_each_writes_its_own_state() {
    let sim = Path::new(env!("CARGO_MANIFEST_DIR")).join("../sim/src");
    let read = |name: &str| std::fs::read_to_string(sim.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    let whole = fields(&read("simulation.rs"), "pub struct Simulation {");
    assert!((5..=15).contains(&whole.len()), "{} fields: {whole:?}", whole.len());
    for (file, part) in [
        ("clock.rs", "Clock"),
        ("link.rs", "EngineLink"),
        ("trackers.rs", "Trackers"),
        ("kernel.rs", "KernelModel"),
        ("mover.rs", "Mover"),
        ("books.rs", "Books"),
        ("limit.rs", "Limit"),
        ("spaces.rs", "Spaces"),
        ("cores.rs", "Cores"),
        ("foresight.rs", "Foresight"),
    ] {
        let part = fields(&read(&format!("simulation/{file}")), &format!("pub(super) struct {part} {{"));
        assert!(!part.is_empty());
        for field in whole.iter().chain(&part) {
            assert!(!field.starts_with("pub"), "{file}: {field}: its own file alone writes it");
        }
    }
}
