//! `terrace top`: the daemon at work, in the terminal.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{self, Event, KeyCode, KeyModifiers};
use terrace_daemon::client::{Client, ClientError};
use terrace_daemon::protocol::Verb;
use terrace_daemon::view::Status;

use crate::args::TopArguments;
use crate::options::{Misuse, duration, misuse};
use crate::render::top::{Look, draw};

/// Lines of news kept.
const NEWS: usize = 100;

pub(super) fn run(arguments: &TopArguments) -> anyhow::Result<()> {
    let interval = duration("--interval", &arguments.interval)?;
    if interval < Duration::from_millis(200) {
        return Err(misuse("--interval", &arguments.interval, "expected 200ms or more; nothing changes faster"));
    }
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        return Err(Misuse("terrace top needs a terminal; `terrace status --json` is for programs".to_owned()).into());
    }
    // Connect before taking over the screen: without a daemon the error is printed normally.
    let mut client = Client::connect(&arguments.socket)?;
    let mut look = Look::default();
    refresh(&mut client, &mut look, interval)?;
    let mut terminal = ratatui::try_init()?;
    let result = show(&mut terminal, arguments, client, look, interval);
    ratatui::restore();
    result
}

fn show(
    terminal: &mut ratatui::DefaultTerminal,
    arguments: &TopArguments,
    client: Client,
    mut look: Look,
    interval: Duration,
) -> anyhow::Result<()> {
    let mut client = Some(client);
    let mut next = Instant::now() + interval;
    loop {
        terminal.draw(|frame| draw(frame, &look))?;
        if event::poll(next.saturating_duration_since(Instant::now()))? {
            if let Event::Key(key) = event::read()?
                && key.is_press()
            {
                let last = look.status.classes.len().saturating_sub(1);
                match key.code {
                    KeyCode::Char('q') | KeyCode::Esc => return Ok(()),
                    KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Ok(()),
                    KeyCode::Up | KeyCode::Char('k') => look.chosen = look.chosen.saturating_sub(1),
                    KeyCode::Down | KeyCode::Char('j') => look.chosen = (look.chosen + 1).min(last),
                    _ => continue,
                }
                look.heat = None;
                next = Instant::now();
            }
            continue;
        }
        next = Instant::now() + interval;
        // A daemon that restarts is found again.
        let asked = match &mut client {
            Some(client) => refresh(client, &mut look, interval),
            None => Client::connect(&arguments.socket).and_then(|mut fresh| {
                refresh(&mut fresh, &mut look, interval)?;
                client = Some(fresh);
                Ok(())
            }),
        };
        look.trouble = asked.err().map(|error| {
            client = None;
            error.to_string()
        });
    }
}

fn refresh(client: &mut Client, look: &mut Look, interval: Duration) -> Result<(), ClientError> {
    let status: Status = client.get(Verb::Status {})?;
    let sum =
        |status: &Status, of: fn(&terrace_daemon::view::Class) -> u64| -> u64 { status.classes.iter().map(of).sum() };
    if look.status.pid == status.pid {
        let rate = |of: fn(&terrace_daemon::view::Class) -> u64| {
            let seconds = (status.uptime_seconds - look.status.uptime_seconds).max(interval.as_secs_f64() / 2.0);
            sum(&status, of).saturating_sub(sum(&look.status, of)) as f64 / seconds
        };
        // Between two publications nothing is new; the rates of before then still hold.
        if status.uptime_seconds > look.status.uptime_seconds {
            look.rates =
                (rate(|class| class.demoted_pages), rate(|class| class.promoted_pages), rate(|class| class.refaults));
        }
    } else {
        look.news.clear();
    }
    look.chosen = look.chosen.min(status.classes.len().saturating_sub(1));
    let after = look.news.last().map_or(0, |last| last.number);
    look.news.extend(client.get::<Vec<_>>(Verb::History { after, limit: Some(NEWS), class: None })?);
    let surplus = look.news.len().saturating_sub(NEWS);
    look.news.drain(..surplus);
    look.heat = match status.classes.get(look.chosen).filter(|class| class.rounds > 0) {
        Some(class) => client.get(Verb::Heat { class: class.name.clone() }).ok(),
        None => None,
    };
    look.status = status;
    Ok(())
}
