//! What made a simulated result: the same as of every result, and the modelled machine.
//!
//! In: a machine. Out: a [`Provenance`] that names it. Must not: change what results of other commands say.

pub use terrace_common::provenance::*;
use terrace_machine::preset::Machine;

/// Results of modelled machines.
pub trait Modelled {
    /// On a modelled machine.
    #[must_use]
    fn on(self, machine: &Machine) -> Self;
}

impl Modelled for Provenance {
    fn on(mut self, machine: &Machine) -> Provenance {
        (self.machine, self.machine_hash) = (Some(machine.name.clone()), Some(machine_hash(machine)));
        self
    }
}

/// SHA-256 of a machine's description: its name, every number and its place.
pub fn machine_hash(machine: &Machine) -> String {
    let numbers = machine.sources.iter().map(|source| format!("\n{} = {}", source.key, source.value));
    text_hash(&(machine.name.clone() + &numbers.collect::<String>()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_tell_machines_apart() {
        let names = Machine::preset_names();
        let hashes: std::collections::BTreeSet<String> =
            names.iter().map(|name| machine_hash(&Machine::preset(name).unwrap())).collect();
        assert_eq!(hashes.len(), names.len());
        assert!(hashes.iter().all(|hash| hash.len() == 64));
    }
}
