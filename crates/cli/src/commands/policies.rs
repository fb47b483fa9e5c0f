//! `terrace policies`: the policies and their settings.

use std::fmt::Write;
use std::process::ExitCode;

use terrace_policies::{POLICIES, PolicyInfo, Settings};

use crate::args::OutputArguments;

pub(super) fn run(arguments: &OutputArguments) -> anyhow::Result<ExitCode> {
    if arguments.json {
        let list: Vec<_> = POLICIES
            .iter()
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
        super::print_json(&serde_json::json!({ "policies": list }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut text = String::new();
    for info in POLICIES {
        let live = if live(info) { "live and simulated" } else { "simulated only" };
        writeln!(text, "{}: {} ({}; {live})", info.name, info.summary, info.source)?;
        for setting in info.settings {
            writeln!(text, "    {}={}  {}", setting.key, setting.default, setting.meaning)?;
        }
    }
    super::print_text(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Whether the policy can manage a running program.
fn live(info: &PolicyInfo) -> bool {
    terrace_policies::build(info.name, Settings::default())
        .is_ok_and(|policy| terrace_policies::only_simulated(policy.profile().needs()).is_none())
}
