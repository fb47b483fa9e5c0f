//! What a run depends on beside its program, seed and scale, as digests: a kept result holds as long as these are the same.
//!
//! In: a case. Out: [`Origin`], and of two the difference. Must not: know a commit.

use std::collections::BTreeMap;
use std::sync::{LazyLock, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use terrace_machine::preset::{Machine, TierKind};

use crate::case::Case;
use crate::error::{Error, RunError};
use crate::outcome::Asked;
use crate::run::Plan;
use crate::sources::digest_of;

/// What the build script found: names, each with its digest.
const DIGESTS: &str = env!("TERRACE_DIGESTS");

/// Digests of all that makes a run's result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Origin {
    /// Of every value of its setting, and of the policy's settings.
    pub run: String,
    /// Of the machine's numbers.
    pub machine: String,
    /// Of the sources of core, modelled hardware and simulator.
    pub model: String,
    /// Of those of its program.
    pub program: String,
    /// Of those of its policy.
    pub policy: String,
    /// Of those of database, tuner and forecast, where it needs them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sizing: Option<String>,
}

impl Origin {
    /// That of a case of this plan, by the sources that this program is built from.
    ///
    /// # Errors
    /// When there is no such machine.
    pub(crate) fn of(plan: &Plan<'_>, case: &Case, asked: &Asked) -> Result<Origin, Error> {
        let setting = &case.setting;
        let given = format!(
            "{} {:?} {:?} {:?} {} {} {:?} {:?} {:?} {} {} {:?} {:?} {} {:?}",
            setting.workload,
            setting.options,
            setting.size,
            setting.fast,
            setting.threads,
            setting.machine,
            setting.huge,
            setting.operations,
            setting.mmu_miss_cycles,
            setting.room_over_peak,
            case.policy,
            case.policy_settings,
            case.at,
            case.bounds,
            plan.options.set,
        );
        let asks = case.needs_database() || !asked.shares.is_empty();
        let OfMachine { machine, model } = of_machine(&setting.machine)?;
        Ok(Origin {
            run: digest_of(&given),
            machine,
            model,
            program: known(&format!("program/{}", setting.workload)),
            policy: known(&format!("policy/{}", case.policy)),
            sizing: asks.then(|| known("sizing")),
        })
    }

    /// That of the time of queries to the database of a machine.
    pub(crate) fn of_query(machine: &str) -> Result<Origin, Error> {
        let none = String::new;
        let OfMachine { machine, .. } = of_machine(machine)?;
        Ok(Origin {
            run: none(),
            machine,
            model: none(),
            program: none(),
            policy: none(),
            sizing: Some(known("sizing")),
        })
    }

    /// What is another now, in words.
    pub(crate) fn changed(&self, now: &Origin) -> Vec<&'static str> {
        let parts = [
            ("run", self.run == now.run),
            ("machine", self.machine == now.machine),
            ("simulator", self.model == now.model),
            ("program", self.program == now.program),
            ("policy", self.policy == now.policy),
            ("sizing", self.sizing == now.sizing),
        ];
        parts.into_iter().filter(|(_, same)| !same).map(|(name, _)| name).collect()
    }

    /// All of it in one text.
    pub(crate) fn text(&self) -> String {
        let Origin { run, machine, model, program, policy, sizing } = self;
        format!("{run} {machine} {model} {program} {policy} {sizing:?}")
    }
}

/// Of a machine's numbers, and of what computes any run on it.
#[derive(Clone)]
struct OfMachine {
    machine: String,
    model: String,
}

fn of_machine(name: &str) -> Result<OfMachine, Error> {
    /// By machine: the page asks for each run.
    static KNOWN: LazyLock<Mutex<BTreeMap<String, OfMachine>>> = LazyLock::new(Mutex::default);
    let mut met = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(digests) = met.get(name) {
        return Ok(digests.clone());
    }
    let failed =
        |source| Error::Run { case: format!("the machine {name}"), seed: 0, source: RunError::Simulation(source) };
    let machine = Machine::preset(name).map_err(|error| failed(error.into()))?;
    let numbers: String = machine.sources.iter().map(|source| format!("{} = {}\n", source.key, source.value)).collect();
    let is_swap = machine.tiers.iter().any(|tier| tier.kind == TierKind::Compressed);
    let model = if is_swap { digest_of(&format!("{} {}", known("model"), known("swap"))) } else { known("model") };
    let digests = OfMachine { machine: digest_of(&numbers), model };
    Ok(met.entry(name.to_owned()).or_insert(digests).clone())
}

fn known(name: &str) -> String {
    let found = DIGESTS.split(';').find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    found.expect("a test finds each policy and each program in the list").to_owned()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::sources::{self, Digests, Sources, digests};

    fn read(crates: &Path, folder: &Path, into: &mut Sources) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                read(crates, &path, into);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                let name = path.strip_prefix(crates).unwrap().to_string_lossy().into_owned();
                into.insert(name, std::fs::read_to_string(&path).unwrap());
            }
        }
    }

    fn all() -> Sources {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut found = Sources::new();
        sources::CRATES.iter().for_each(|name| read(&crates, &crates.join(name).join("src"), &mut found));
        found
    }

    /// The policies and programs whose digest is another after a change, and whether that of all runs is.
    fn changed(file: &str, change: impl Fn(&str) -> String) -> (Vec<String>, Vec<String>, bool, bool) {
        static ALL: LazyLock<(Sources, Digests)> = LazyLock::new(|| {
            let all = all();
            let digests = digests(&all);
            (all, digests)
        });
        let (before, digests_before) = &*ALL;
        let mut after = before.clone();
        let text = before.get(file).map_or("", String::as_str);
        assert!(!text.is_empty() || file.ends_with("new.rs"), "{file} is gone: name another here");
        after.insert(file.to_owned(), change(text));
        let (before, after): (&Digests, Digests) = (digests_before, digests(&after));
        let other = |old: &BTreeMap<String, String>, new: &BTreeMap<String, String>| {
            old.iter().filter(|(name, digest)| new[*name] != **digest).map(|(name, _)| name.clone()).collect()
        };
        let policies = other(&before.policies, &after.policies);
        (policies, other(&before.programs, &after.programs), before.model != after.model, before.sizing != after.sizing)
    }

    fn code(text: &str) -> String {
        format!("{text}\nfn one_more() {{}}\n")
    }

    #[test]
    fn every_policy_and_program_has_a_digest_and_nothing_counts_what_is_left_out() {
        terrace_policies::POLICIES
            .iter()
            .for_each(|info| assert_eq!(known(&format!("policy/{}", info.name)).len(), 12));
        terrace_workloads::workloads()
            .iter()
            .for_each(|info| assert_eq!(known(&format!("program/{}", info.name)).len(), 12));
        let sources = all();
        assert_eq!(sources::named_and_left_out(&sources), Vec::<String>::new());
        sources::LEFT_OUT.iter().for_each(|file| assert!(sources.contains_key(*file), "{file} is gone"));
        let now = digests(&sources);
        assert_eq!(
            (now.model.as_str(), now.sizing.as_str()),
            (known("model").as_str(), known("sizing").as_str()),
            "the build script saw other sources"
        );
        assert_ne!(now.policies["tpp"], now.policies["memtis"]);
    }

    #[test]
    fn what_concerns_no_run_changes_no_digest() {
        let nothing = (Vec::new(), Vec::new(), false, false);
        let comment = |text: &str| {
            format!("//! A comment.\n{text}\n// One more.\n/* And this. */\n#[cfg(test)]\nmod more {{ fn f() {{}} }}\n")
        };
        for file in
            ["sim/src/hot.rs", "policies/src/flexmem.rs", "core/src/engine.rs", "workloads/src/programs/gups.rs"]
        {
            assert_eq!(changed(file, comment), nothing, "{file}");
        }
        for file in [
            "core/src/engine/tests.rs",
            "core/src/watching.rs",
            "sim/src/compare.rs",
            "policies/src/lib.rs",
            "policies/src/rig.rs",
            "reproduce/src/page.rs",
            "reproduce/src/verdict.rs",
            "workloads/src/native.rs",
            "workloads/src/programs/mod.rs",
            "policies/src/new.rs",
        ] {
            assert_eq!(changed(file, code), nothing, "{file}");
        }
        let preset = |text: &str| {
            let list = "(\"zram-vm\", include_str!";
            assert!(text.contains(list));
            text.replace(list, "(\"more\", include_str!(\"more.toml\")), (\"zram-vm\", include_str!")
        };
        assert_eq!(changed("machine/src/preset.rs", preset), nothing, "one more machine");
    }

    #[test]
    fn a_change_concerns_the_runs_that_pass_through_it() {
        let names = |list: &[&str]| list.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let one = |list: &[&str]| (names(list), Vec::new(), false, false);
        assert_eq!(changed("policies/src/flexmem.rs", code), one(&["flexmem"]));
        assert_eq!(changed("policies/src/hotness_walk/lists.rs", code), one(&["hotness-walk"]));
        // FlexMem is built upon MEMTIS.
        assert_eq!(changed("policies/src/memtis.rs", code), one(&["flexmem", "memtis"]));
        let (policies, programs, model, sizing) = changed("policies/src/parts/lru.rs", code);
        assert!(policies.contains(&"memtis".to_owned()) && !policies.contains(&"hemem".to_owned()), "{policies:?}");
        assert!(programs.is_empty() && !model && !sizing);
        let grid = (Vec::new(), names(&["npb-lu", "npb-sp"]), false, false);
        assert_eq!(changed("workloads/src/programs/npb_grid.rs", code), grid);
        let (_, programs, ..) = changed("workloads/src/memory.rs", code);
        assert_eq!(programs.len(), terrace_workloads::workloads().len());
        let (policies, ..) = changed("policies/src/settings.rs", code);
        assert_eq!(policies.len(), terrace_policies::POLICIES.len());
        for file in ["sim/src/hot.rs", "core/src/governor.rs", "machine/src/cache.rs", "reproduce/src/prepare.rs"] {
            assert_eq!(changed(file, code), (Vec::new(), Vec::new(), true, false), "{file}");
        }
        for file in ["core/src/governor/pace.rs", "core/src/governor/strain.rs"] {
            assert_eq!(changed(file, code), (Vec::new(), Vec::new(), false, false), "{file}");
        }
        assert_eq!(changed("tuning/src/tuner.rs", code), (Vec::new(), Vec::new(), false, true));
        let constant = |text: &str| {
            assert!(text.contains("AHEAD: f64 = 2.0"), "name another constant here");
            text.replacen("AHEAD: f64 = 2.0", "AHEAD: f64 = 2.5", 1)
        };
        assert_eq!(changed("sizing/src/sim_driver.rs", constant), (Vec::new(), Vec::new(), false, true));
    }

    #[test]
    fn the_pace_of_page_outs_concerns_the_runs_on_compressed_swap() {
        assert_eq!(of_machine("optane-6252").unwrap().model, known("model"));
        assert_eq!(of_machine("zram-vm").unwrap().model, digest_of(&format!("{} {}", known("model"), known("swap"))));
        let before = digests(&all()).swap;
        for file in ["core/src/governor/pace.rs", "core/src/governor/strain.rs"] {
            let mut sources = all();
            sources.entry(file.to_owned()).and_modify(|text| *text = code(text));
            assert_ne!(digests(&sources).swap, before, "{file}");
        }
    }

    #[test]
    fn two_origins_say_what_is_another() {
        let now = Origin::of_query("optane-6252").unwrap();
        let then = Origin { policy: "p".to_owned(), sizing: None, ..now.clone() };
        assert_eq!(then.changed(&now), ["policy", "sizing"]);
        assert!(now.changed(&now).is_empty() && now.text() != then.text());
        assert_ne!(now.machine, Origin::of_query("cxl-170").unwrap().machine);
    }
}
