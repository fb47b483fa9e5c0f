//! Tiering policies, one file each, and the registry that finds them by name.
//!
//! Entry: [`POLICIES`], the registry, and `age.rs`, a whole policy.
//! In: a name and settings as people write them (`beta=0.3`).
//! Out: a boxed [`Policy`].
//! Must not: do I/O, read a clock, or share state between policies.
//!
//! Each file opens with its source and its table of constants, so that it can be read beside the paper.
#![cfg_attr(test, allow(clippy::unwrap_used))]
// [P], [C], [R] in the tables of constants say where a value comes from; they are no links.
#![allow(rustdoc::broken_intra_doc_links)]

use terrace_core::policy::{Needs, Policy};

pub mod age;
pub mod all_fast;
pub mod all_slow;
pub mod alto;
pub mod arms;
pub mod autonuma;
pub mod chrono;
pub mod clairvoyant;
pub mod colloid;
pub mod first_touch;
pub mod flexhm;
pub mod flexmem;
pub mod hemem;
pub mod hotness_walk;
pub mod hybridtier;
pub mod interleave;
pub mod memory_mode;
pub mod memtis;
pub mod nomad;
pub mod numab2;
pub mod pact;
pub mod parts;
pub mod pond_static;
#[cfg(test)]
mod rig;
pub mod settings;
pub mod terrace;
pub mod thermostat;
pub mod tieredmms;
pub mod tiering08;
pub mod tpp;

pub use settings::{Settings, SettingsError};

/// A policy as the registry knows it.
#[derive(Clone, Copy, Debug)]
pub struct PolicyInfo {
    /// The name it is chosen by.
    pub name: &'static str,
    /// One line on what it does.
    pub summary: &'static str,
    /// Where it comes from.
    pub source: &'static str,
    /// Its settings, with defaults.
    pub settings: &'static [SettingInfo],
    /// Makes one.
    pub build: fn(&mut Settings) -> Result<Box<dyn Policy>, SettingsError>,
}

/// One setting of a policy.
#[derive(Clone, Copy, Debug)]
pub struct SettingInfo {
    /// The key, as in `--set policy.key=value`.
    pub key: &'static str,
    /// Its default, as it would be written.
    pub default: &'static str,
    /// What it means.
    pub meaning: &'static str,
}

/// All policies, by name.
pub static POLICIES: &[PolicyInfo] = &[
    age::INFO,
    all_fast::INFO,
    all_slow::INFO,
    alto::INFO,
    arms::INFO,
    autonuma::INFO,
    chrono::INFO,
    clairvoyant::INFO,
    colloid::INFO,
    first_touch::INFO,
    flexhm::INFO,
    flexmem::INFO,
    hemem::INFO,
    hotness_walk::INFO,
    hybridtier::INFO,
    interleave::INFO,
    memory_mode::INFO,
    memtis::INFO,
    nomad::INFO,
    numab2::INFO,
    pact::INFO,
    pond_static::INFO,
    terrace::INFO,
    thermostat::INFO,
    tieredmms::INFO,
    tiering08::INFO,
    tpp::INFO,
];

/// Policies that show what could be had and cannot be chosen on a real machine: comparisons measure by them, and rank them apart.
pub const BOUNDS: [&str; 3] = [all_fast::INFO.name, all_slow::INFO.name, clairvoyant::INFO.name];

/// Makes the policy of that name. Every setting must be one it knows.
///
/// # Errors
/// When there is no such policy, or a setting is unknown, out of range or no value of its kind.
pub fn build(name: &str, settings: Settings) -> Result<Box<dyn Policy>, SettingsError> {
    let info = POLICIES.iter().find(|info| info.name == name).ok_or_else(|| SettingsError::UnknownPolicy {
        name: name.to_owned(),
        known: terrace_core::text::instead(name, &POLICIES.iter().map(|info| info.name).collect::<Vec<_>>()),
    })?;
    let mut settings = settings.for_policy(info);
    let policy = (info.build)(&mut settings)?;
    settings.finish(info)?;
    Ok(policy)
}

/// Why a policy can be simulated and not run live, if that is so.
pub fn only_simulated(needs: Needs) -> Option<&'static str> {
    if needs.counters {
        Some("it reads counters that no MMU has yet, which only the simulator can model")
    } else if needs.own_marks {
        Some("it wants to know when each page was marked, or to choose which ones are, and a kernel shows neither")
    } else if needs.future {
        Some("it knows the future of a trace, which a running program does not show")
    } else if needs.first_thread {
        Some("it is to sample one thread alone, a fault of published code that only the simulator repeats")
    } else if !needs.scans && !needs.samples && !needs.hint_faults {
        Some("it decides where new pages go, or leaves all to hardware, which only the simulator can do")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_policy_builds_with_its_documented_defaults_and_refuses_the_rest() {
        for info in POLICIES {
            let policy = build(info.name, Settings::default()).unwrap();
            assert_eq!(policy.profile().name, info.name);
            for setting in info.settings {
                let one = Settings::from_pairs([(setting.key, setting.default)]);
                build(info.name, one).unwrap_or_else(|error| panic!("{}.{}: {error}", info.name, setting.key));
            }
            let error = build(info.name, Settings::from_pairs([("no_such_key", "1")])).err().unwrap().to_string();
            assert!(error.contains("no_such_key") && error.contains(info.name), "{error}");
        }
        let error = build("no-such-policy", Settings::default()).err().unwrap().to_string();
        assert!(error.contains("no-such-policy") && error.contains("flexhm"), "{error}");
    }
}
