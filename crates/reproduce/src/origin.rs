//! What a run depends on beside its program's size, seed and scale: a kept result holds as long as all of this is the same.
//!
//! In: a case, and what the canaries of this program come to. Out: [`Origin`], and of two the difference. Must not: know a commit or a source.

use std::collections::BTreeMap;
use std::sync::{LazyLock, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use terrace_core::units::Bytes;
use terrace_machine::preset::Machine;

use crate::canary::{Canaries, Canary};
use crate::case::{Case, Fast, Limit, Operations};
use crate::digest::digest_of;
use crate::error::{Error, RunError};
use crate::fingerprints::Fingerprints;
use crate::run::Plan;

/// The digest of what was asked for, that of the machine's numbers, and the fingerprints of what computed it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Origin {
    /// Of every value of its setting, and of the policy's settings.
    pub run: String,
    /// Of the machine's numbers.
    pub machine: String,
    /// What the machine does under no policy.
    pub simulator: String,
    /// What its program does.
    pub program: String,
    /// What its policy does on the machine.
    pub policy: String,
    /// What database, tuner and forecast do, where it needs them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sizing: Option<String>,
}

/// What a run is asked to be; its scale and seed are keys of the store.
#[derive(Serialize)]
struct Given<'g> {
    workload: &'g str,
    options: &'g BTreeMap<String, String>,
    size: Bytes,
    operations: Operations,
    threads: usize,
    machine: &'g str,
    fast: Option<Fast>,
    huge: bool,
    mmu_miss_cycles: Option<u32>,
    room_over_peak: f64,
    policy: &'g str,
    policy_settings: &'g BTreeMap<String, String>,
    at: &'g Option<Limit>,
    bounds: bool,
}

impl Origin {
    /// That of a case of this plan, if this program computes it.
    ///
    /// # Errors
    /// When there is no such machine, or a canary does not run.
    pub(crate) fn of(plan: &Plan<'_>, case: &Case, prints: &Fingerprints) -> Result<Origin, Error> {
        let setting = &case.setting;
        let settings = plan.settings_of(case);
        let given = Given {
            workload: &setting.workload,
            options: &setting.options,
            size: setting.size,
            operations: setting.operations,
            threads: setting.threads,
            machine: &setting.machine,
            fast: setting.fast,
            huge: setting.huge,
            mmu_miss_cycles: setting.mmu_miss_cycles,
            room_over_peak: setting.room_over_peak,
            policy: &case.policy,
            policy_settings: &settings,
            at: &case.at,
            bounds: case.bounds,
        };
        let canaries = Canaries::of(case, &settings, &plan.asked_of(case));
        Ok(Origin {
            run: digest_of(serde_json::to_string(&given).expect("its keys are texts")),
            machine: numbers(&setting.machine)?,
            simulator: prints.of(&canaries.machine)?,
            program: prints.of(&canaries.program)?,
            policy: prints.of(&canaries.policy)?,
            sizing: canaries.sizing.as_ref().map(|canary| prints.of(canary)).transpose()?,
        })
    }

    /// That of the time of queries to the database of a machine.
    pub(crate) fn of_query(machine: &str, prints: &Fingerprints) -> Result<Origin, Error> {
        let [run, simulator, program, policy] = [const { String::new() }; 4];
        let sizing = Some(prints.of(&Canary::query(machine))?);
        Ok(Origin { run, machine: numbers(machine)?, simulator, program, policy, sizing })
    }

    /// What is another now, in words. What runs on something that is another is not told as well: it could not be the same.
    pub(crate) fn changed(&self, now: &Origin) -> Vec<&'static str> {
        let alone = [("run", self.run == now.run), ("program", self.program == now.program)];
        let upon_each_other = [
            ("machine", self.machine == now.machine),
            ("simulator", self.simulator == now.simulator),
            ("policy", self.policy == now.policy),
            ("sizing", self.sizing == now.sizing),
        ];
        let first = upon_each_other.into_iter().find(|(_, same)| !same);
        alone.into_iter().filter(|(_, same)| !same).chain(first).map(|(name, _)| name).collect()
    }

    /// All of it in one text.
    pub(crate) fn text(&self) -> String {
        let Origin { run, machine, simulator, program, policy, sizing } = self;
        format!("{run} {machine} {simulator} {program} {policy} {sizing:?}")
    }
}

/// The digest of a machine's numbers.
fn numbers(name: &str) -> Result<String, Error> {
    /// By machine: the page asks for each run.
    static KNOWN: LazyLock<Mutex<BTreeMap<String, String>>> = LazyLock::new(Mutex::default);
    let mut met = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(digest) = met.get(name) {
        return Ok(digest.clone());
    }
    let failed =
        |source| Error::Run { case: format!("the machine {name}"), seed: 0, source: RunError::Simulation(source) };
    let machine = Machine::preset(name).map_err(|error| failed(error.into()))?;
    let numbers: String = machine.sources.iter().map(|source| format!("{} = {}\n", source.key, source.value)).collect();
    Ok(met.entry(name.to_owned()).or_insert(digest_of(numbers)).clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_origins_say_what_is_another() {
        let prints = Fingerprints::default();
        let now = Origin::of_query("optane-6252", &prints).unwrap();
        let other = || "p".to_owned();
        let then = Origin { sizing: None, ..now.clone() };
        assert_eq!(then.changed(&now), ["sizing"]);
        assert_eq!(Origin { policy: other(), ..then.clone() }.changed(&now), ["policy"]);
        assert_eq!(Origin { simulator: other(), program: other(), ..then }.changed(&now), ["program", "simulator"]);
        assert!(now.changed(&now).is_empty());
        let elsewhere = Origin::of_query("cxl-170", &prints).unwrap();
        assert_eq!(now.changed(&elsewhere), ["machine"]);
        assert_ne!(now.text(), elsewhere.text());
    }
}
