//! The commands that ask the daemon, and those that order it about.

use std::io::Write;
use std::time::Duration;

use terrace_daemon::client::{Client, ClientError};
use terrace_daemon::protocol::{Code, Verb};
use terrace_daemon::view::{Bins, Explanation, HUNG, Happening, Status};

use crate::args::{ExplainArguments, HistoryArguments, OneClassArguments, Reach, ReachArguments, SetArguments};
use crate::options::{Misuse, misuse};
use crate::render::service;

pub(super) fn status(arguments: &ReachArguments) -> anyhow::Result<()> {
    let status: Status = ask(&arguments.reach, Verb::Status {})?;
    super::print(arguments.reach.json, &status, |screen| service::status(&status, screen))?;
    // What is shown is then as old as that; who watches the exit code must not take it for a daemon that works.
    if status.state == HUNG {
        anyhow::bail!(
            "terraced hangs: its loop has not turned for {:.0} s; see its log, and restart it (systemctl restart terraced)",
            status.loop_age_seconds
        );
    }
    Ok(())
}

pub(super) fn classes(arguments: &OneClassArguments) -> anyhow::Result<()> {
    let mut status: Status = ask(&arguments.reach, Verb::Status {})?;
    let mut bins = None;
    if let Some(class) = &arguments.class {
        let names: Vec<String> = status.classes.iter().map(|one| one.name.clone()).collect();
        status.classes.retain(|one| one.name == *class);
        let Some(one) = status.classes.first() else {
            return Err(Misuse(format!("there is no class {class}; there are: {}", names.join(", "))).into());
        };
        // Before the first walk there is nothing to spread.
        if one.rounds > 0 && !arguments.reach.json {
            bins = Some(ask::<Bins>(&arguments.reach, Verb::Bins { class: class.clone() })?);
        }
    }
    super::print(arguments.reach.json, &status.classes, |screen| service::classes(&status, bins.as_ref(), screen))
}

pub(super) fn explain(arguments: &ExplainArguments) -> anyhow::Result<()> {
    let (pid, address) = place(&arguments.place)?;
    let explanation: Explanation = ask(&arguments.reach, Verb::Explain { pid, address })?;
    super::print(arguments.reach.json, &explanation, |_| service::explanation(&explanation))
}

pub(super) fn history(arguments: &HistoryArguments) -> anyhow::Result<()> {
    let mut client = Client::connect(&arguments.reach.socket)?;
    let mut after = 0;
    loop {
        let verb = Verb::History { after, limit: Some(arguments.lines), class: arguments.class.clone() };
        let news: Vec<Happening> = client.get(verb)?;
        if arguments.reach.json && !arguments.follow {
            super::print_json(&news)?;
        } else {
            let mut stdout = crate::terminal::stdout();
            for one in &news {
                match arguments.reach.json {
                    true => writeln!(stdout, "{}", serde_json::to_string(one)?)?,
                    false => writeln!(stdout, "{}", service::happening(one))?,
                }
            }
            stdout.flush()?;
        }
        if !arguments.follow {
            return Ok(());
        }
        after = news.last().map_or(after, |last| last.number);
        std::thread::sleep(Duration::from_millis(500));
    }
}

pub(super) fn pause(arguments: &OneClassArguments) -> anyhow::Result<()> {
    order(
        &arguments.reach,
        Verb::Pause { class: arguments.class.clone() },
        "paused: nothing is looked at and nothing moves",
    )
}

pub(super) fn resume(arguments: &OneClassArguments) -> anyhow::Result<()> {
    order(&arguments.reach, Verb::Resume { class: arguments.class.clone() }, "resumed")
}

pub(super) fn drain(arguments: &OneClassArguments) -> anyhow::Result<()> {
    let done = "draining: what was moved comes back to fast memory; `terrace status` says when it is done";
    order(&arguments.reach, Verb::Drain { class: arguments.class.clone() }, done)
}

pub(super) fn reload(arguments: &ReachArguments) -> anyhow::Result<()> {
    let answer = talk(&arguments.reach, Verb::Reload {})?;
    let keys: Vec<&str> =
        answer["needs_restart"].as_array().into_iter().flatten().filter_map(|key| key.as_str()).collect();
    super::print(arguments.reach.json, &answer, |_| match keys.as_slice() {
        [] => "reloaded\n".to_owned(),
        keys => format!("reloaded; a restart of terraced is needed for {}\n", keys.join(", ")),
    })
}

pub(super) fn set(arguments: &SetArguments) -> anyhow::Result<()> {
    let done = format!(
        "{} = {} until the next reload; write it into the configuration to keep it",
        arguments.key, arguments.value
    );
    order(&arguments.reach, Verb::Set { key: arguments.key.clone(), value: arguments.value.clone() }, &done)
}

fn order(reach: &Reach, verb: Verb, done: &str) -> anyhow::Result<()> {
    super::print(reach.json, &talk(reach, verb)?, |_| format!("{done}\n"))
}

fn talk(reach: &Reach, verb: Verb) -> anyhow::Result<serde_json::Value> {
    Client::connect(&reach.socket)?.ask(verb).map_err(understood)
}

fn ask<T: serde::de::DeserializeOwned>(reach: &Reach, verb: Verb) -> anyhow::Result<T> {
    Client::connect(&reach.socket)?.get(verb).map_err(understood)
}

/// A class or key that does not exist is misuse of the command; all else is a failure.
fn understood(error: ClientError) -> anyhow::Error {
    match error {
        ClientError::Refused { code: Code::Unknown, text } => Misuse(text).into(),
        other => other.into(),
    }
}

/// PID or PID:ADDRESS.
fn place(text: &str) -> anyhow::Result<(u32, Option<u64>)> {
    let (pid, address) = text.split_once(':').map_or((text, None), |(pid, address)| (pid, Some(address)));
    let pid = pid.parse().map_err(|_| misuse("explain", text, "expected a pid, as in 4711 or 4711:0x7f0012345000"))?;
    let address = address
        .map(|address| {
            let digits = address.strip_prefix("0x").unwrap_or(address);
            u64::from_str_radix(digits, 16).map_err(|_| {
                misuse("explain", text, "expected a hexadecimal address behind the colon, as in 4711:0x7f0012345000")
            })
        })
        .transpose()?;
    Ok((pid, address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_a_pid_with_or_without_an_address() {
        assert_eq!(place("7").unwrap(), (7, None));
        assert_eq!(place("7:0x7f00").unwrap(), (7, Some(0x7f00)));
        assert_eq!(place("7:7f00").unwrap(), (7, Some(0x7f00)));
        for wrong in ["", "x", "7:", "7:zz", "-1"] {
            assert!(place(wrong).unwrap_err().is::<Misuse>(), "{wrong}");
        }
    }
}
