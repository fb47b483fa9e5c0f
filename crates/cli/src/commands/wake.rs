//! `terrace wake`: what a program has in swap comes back at once, ahead of its use.
//!
//! In: a class or a pid. Out: how much came back, in what time. Must not: wake what the service manages behind its back: it would take each page that
//! comes back for a mistake of its own.

use std::time::Instant;

use terrace_common::figures::{bytes, counted, seconds};
use terrace_core::units::Bytes;
use terrace_daemon::client::{Client, ClientError};
use terrace_daemon::protocol::{Code, Verb};
use terrace_daemon::view::Awake;
use terrace_linux::fetch_ahead;
use terrace_linux::process::{Process, children};

use crate::args::WakeArguments;
use crate::options::Misuse;

pub(super) fn run(arguments: &WakeArguments) -> anyhow::Result<()> {
    let woken = match arguments.target.parse::<u32>() {
        Ok(pid) => process(pid, arguments)?,
        Err(_) => class(arguments)?,
    };
    super::print(arguments.reach.json, &woken, |_| line(&arguments.target, &woken))
}

/// Of a class only the service knows.
fn class(arguments: &WakeArguments) -> anyhow::Result<Awake> {
    let name = &arguments.target;
    let answer = Client::connect(&arguments.reach.socket)
        .and_then(|mut client| client.get(Verb::Wake { class: Some(name.clone()), pid: None }));
    answer.map_err(|error| match error {
        ClientError::Refused { code: Code::Unknown, text } => Misuse(text).into(),
        error @ ClientError::NotThere { .. } => anyhow::Error::new(error)
            .context(format!("{name} is a class, which only the service has; a process is named by its pid")),
        other => other.into(),
    })
}

/// A process that the service manages is the service's to wake; any other is fetched here.
fn process(pid: u32, arguments: &WakeArguments) -> anyhow::Result<Awake> {
    let asked = Client::connect(&arguments.reach.socket)
        .and_then(|mut client| client.get(Verb::Wake { class: None, pid: Some(pid) }));
    match asked {
        Ok(woken) => Ok(woken),
        // No service, or none that has this process.
        Err(
            ClientError::NotThere { .. }
            | ClientError::NotPermitted { .. }
            | ClientError::Refused { code: Code::Unknown, .. },
        ) => fetched(pid),
        Err(other) => Err(other.into()),
    }
}

/// Fetches all that a process and its children have in swap.
fn fetched(pid: u32) -> anyhow::Result<Awake> {
    let began = Instant::now();
    let first = Process::open(pid)?;
    let mut woken = Awake::default();
    let mut due = vec![pid];
    let mut first = Some(first);
    while let Some(next) = due.pop() {
        due.extend(children(next));
        let process = match first.take().map_or_else(|| Process::open(next), Ok) {
            Ok(process) => process,
            // A child may end at any time, or belong to somebody else by now.
            Err(_) => continue,
        };
        match fetch_ahead::everything(&process) {
            Ok(fetched) => {
                woken.processes += 1;
                woken.bytes += Bytes::of_pages(fetched.pages).get();
            }
            Err(_) if next != pid => {}
            Err(error) => return Err(error.into()),
        }
    }
    woken.seconds = began.elapsed().as_secs_f64();
    Ok(woken)
}

fn line(target: &str, woken: &Awake) -> String {
    let of = counted(woken.processes, "process", "processes");
    match woken.bytes {
        0 => format!("{target}: nothing of {of} was in swap\n"),
        came => format!("{target}: {} of {of} came back in {}\n", bytes(came), seconds(woken.seconds)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_linux::process::ProcessError;

    #[test]
    fn the_line_says_how_much_came_back_and_in_what_time() {
        let woken = Awake { processes: 3, bytes: 200 << 20, seconds: 0.125 };
        assert_eq!(line("web", &woken), "web: 200.0 MiB of 3 processes came back in 125 ms\n");
        let woken = Awake { processes: 1, ..Awake::default() };
        assert_eq!(line("7", &woken), "7: nothing of 1 process was in swap\n");
    }

    #[test]
    fn a_process_without_swap_is_woken_at_once() {
        let woken = fetched(std::process::id()).unwrap();
        assert!(woken.processes >= 1 && woken.seconds < 60.0, "{woken:?}");
        assert!(matches!(fetched(1 << 22).unwrap_err().downcast::<ProcessError>(), Ok(ProcessError::Gone { .. })));
    }
}
