//! `terrace policies`: the policies and their settings.

use std::fmt::Write;

use terrace_core::text::nearest;
use terrace_policies::{POLICIES, PolicyInfo, Settings};

use crate::args::PoliciesArguments;
use crate::options::Misuse;

pub(super) fn run(arguments: &PoliciesArguments) -> anyhow::Result<()> {
    let known = || POLICIES.iter().map(|info| info.name);
    if let Some(unknown) = arguments.names.iter().find(|name| !known().any(|known| known == **name)) {
        let hint = nearest(unknown, known()).map_or_else(String::new, |near| format!("; did you mean {near}?"));
        let names: Vec<&str> = known().collect();
        return Err(Misuse(format!("there is no policy {unknown}; there are: {}{hint}", names.join(", "))).into());
    }
    let asked = |info: &&PolicyInfo| arguments.names.is_empty() || arguments.names.iter().any(|name| name == info.name);
    if arguments.output.json {
        let list: Vec<_> = POLICIES
            .iter()
            .filter(asked)
            .map(|info| {
                let settings: Vec<_> = info
                    .settings
                    .iter()
                    .map(|setting| {
                        serde_json::json!({ "key": setting.key, "default": setting.default, "meaning": setting.meaning })
                    })
                    .collect();
                serde_json::json!({
                    "name": info.name, "summary": info.summary, "source": info.source, "live": live(info),
                    "settings": settings,
                })
            })
            .collect();
        return super::print_json(&serde_json::json!({ "policies": list }));
    }
    let mut text = String::new();
    for info in POLICIES.iter().filter(asked) {
        let live = if live(info) { "live and simulated" } else { "simulated only" };
        writeln!(text, "{}: {} ({}; {live})", info.name, info.summary, info.source)?;
        for setting in info.settings {
            writeln!(text, "    {}={}  {}", setting.key, setting.default, setting.meaning)?;
        }
    }
    super::print_text(&text)
}

/// Whether the policy can manage a running program.
fn live(info: &PolicyInfo) -> bool {
    terrace_policies::build(info.name, Settings::default())
        .is_ok_and(|policy| terrace_policies::only_simulated(policy.profile().needs()).is_none())
}
