//! `terrace top`: the machine in the terminal, and the daemon at work if it runs.

use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyModifiers};
use terrace_daemon::client::{Client, ClientError};
use terrace_daemon::protocol::Verb;
use terrace_daemon::view::{Class, Status};
use terrace_linux::survey::view::SCHEMA_VERSION;
use terrace_linux::survey::{Look as MachineLook, Survey, SurveyOptions};

use crate::args::{RowsBy, TopArguments};
use crate::options::{Misuse, duration, misuse};
use crate::render::machine::{self, Board, HISTORY, Order};
use crate::render::top::{self, Look};

/// Lines of news kept.
const NEWS: usize = 100;
/// How often it is looked whether the service runs.
const KNOCK: Duration = Duration::from_secs(5);
/// Longest time without a look at the keys.
const NAP: Duration = Duration::from_secs(1);
/// The longest line of a file to replay: a look at thousands of rows is a MiB or two.
const LONGEST_LINE: u64 = 64 << 20;

pub(super) fn run(arguments: &TopArguments) -> anyhow::Result<()> {
    let interval = duration("--interval", &arguments.interval)?;
    if interval < Duration::from_millis(200) {
        return Err(misuse("--interval", &arguments.interval, "expected 200ms or more; nothing changes faster"));
    }
    let replayed = arguments.replay.as_deref().map(replay).transpose()?;
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        return Err(Misuse(
            "terrace top needs a terminal; `terrace survey --json` and `terrace status --json` are for programs"
                .to_owned(),
        )
        .into());
    }
    let mut shown = Shown { interval, ..Shown::default() };
    match replayed {
        Some(looks) => {
            shown.board.replay = true;
            looks.into_iter().for_each(|look| shown.board.push(look));
        }
        None => {
            let survey = Survey::open(SurveyOptions { by_program: arguments.by == RowsBy::Program });
            shown.board.blind = survey.blind().map(|why| why.lines().next().unwrap_or_default().to_owned());
            shown.survey = Some(survey);
        }
    }
    let mut terminal = ratatui::try_init()?;
    let result = show(&mut terminal, arguments, shown);
    ratatui::restore();
    result
}

/// The looks that a file has, one a line.
fn replay(path: &Path) -> anyhow::Result<Vec<MachineLook>> {
    let name = path.display();
    let file = File::open(path).with_context(|| format!("--replay {name}: the file could not be read"))?;
    let mut lines = BufReader::new(file);
    let (mut looks, mut number) = (Vec::new(), 0);
    loop {
        let mut line = String::new();
        let mut bounded = std::io::Read::take(&mut lines, LONGEST_LINE);
        let read = bounded.read_line(&mut line).with_context(|| format!("--replay {name}: line {}", number + 1))?;
        if read == 0 {
            break;
        }
        number += 1;
        let look: MachineLook = serde_json::from_str(&line).map_err(|error| {
            Misuse(format!("--replay {name}: line {number} is no look at a machine, as `terrace survey --watch --json` writes them: {error}"))
        })?;
        if look.schema_version != SCHEMA_VERSION {
            let (has, knows) = (look.schema_version, SCHEMA_VERSION);
            return Err(Misuse(format!(
                "--replay {name}: line {number} has schema_version {has}, and this terrace knows {knows}"
            ))
            .into());
        }
        looks.push(look);
        if looks.len() > HISTORY {
            looks.remove(0);
        }
    }
    if looks.is_empty() {
        return Err(
            Misuse(format!("--replay {name}: the file is empty; `terrace survey --watch --json` writes one")).into()
        );
    }
    Ok(looks)
}

/// What is shown, and where it comes from.
#[derive(Default)]
struct Shown {
    interval: Duration,
    survey: Option<Survey>,
    board: Board,
    /// The service's own screen, and whether it is the one in front.
    service: Look,
    in_front: bool,
    client: Option<Client>,
}

fn show(terminal: &mut ratatui::DefaultTerminal, arguments: &TopArguments, mut shown: Shown) -> anyhow::Result<()> {
    let (mut next, mut knock) = (Instant::now(), Instant::now());
    loop {
        let now = Instant::now();
        let mut idle = NAP;
        if let Some(survey) = &mut shown.survey {
            idle = survey.step();
            let live = now >= next;
            if live {
                shown.board.push(survey.look());
            }
        }
        if now >= next {
            next = now + shown.interval;
            if !shown.board.replay {
                if shown.client.is_none() && now >= knock {
                    knock = now + KNOCK;
                    shown.client = Client::connect(&arguments.socket).ok();
                }
                shown.ask_service();
            }
            shown.draw(terminal)?;
        }
        let wait = idle.min(next.saturating_duration_since(Instant::now())).min(NAP);
        let wait = if shown.board.replay { NAP } else { wait };
        if !event::poll(wait)? {
            continue;
        }
        match event::read()? {
            Event::Key(key) if key.is_press() => {
                if shown.key(key) {
                    return Ok(());
                }
            }
            Event::Resize(..) => {}
            _ => continue,
        }
        shown.draw(terminal)?;
    }
}

impl Shown {
    fn draw(&self, terminal: &mut ratatui::DefaultTerminal) -> anyhow::Result<()> {
        terminal.draw(|frame| {
            if self.in_front { top::draw(frame, &self.service) } else { machine::draw(frame, &self.board) }
        })?;
        Ok(())
    }

    /// What the service says now. One that ends is looked for again later.
    fn ask_service(&mut self) {
        let Some(client) = &mut self.client else { return };
        match refresh(client, &mut self.service, self.interval) {
            Ok(()) => {
                self.service.trouble = None;
                self.board.service = Some(self.service.status.clone());
                self.board.refaults = self.service.rates.2;
            }
            Err(error) => {
                self.service.trouble = Some(error.to_string());
                self.board.said = Some(error.to_string());
                self.board.service = None;
                self.client = None;
            }
        }
    }

    /// Takes a key. Returns whether that was the end.
    fn key(&mut self, key: KeyEvent) -> bool {
        if key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL) {
            return true;
        }
        if let Some(order) = self.board.asks.take() {
            if key.code == KeyCode::Char('y') {
                self.give(order);
            }
            return false;
        }
        if self.board.typing {
            self.type_filter(key.code);
            return false;
        }
        self.board.said = None;
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return true,
            KeyCode::Tab if self.board.service.is_some() => self.in_front = !self.in_front,
            KeyCode::Tab => self.in_front = false,
            KeyCode::Char('p') => self.ask_for(Order::Pause),
            KeyCode::Char('d') => self.ask_for(Order::Drain),
            KeyCode::Char('r') => self.ask_for(Order::Resume),
            code if self.in_front => self.move_in_service(code),
            code => self.move_in_machine(code),
        }
        false
    }

    fn type_filter(&mut self, code: KeyCode) {
        let board = &mut self.board;
        match code {
            KeyCode::Enter => board.typing = false,
            KeyCode::Esc => {
                board.typing = false;
                board.filter.clear();
            }
            KeyCode::Backspace => drop(board.filter.pop()),
            KeyCode::Char(letter) => board.filter.push(letter),
            _ => {}
        }
        board.chosen = 0;
    }

    fn move_in_service(&mut self, code: KeyCode) {
        let last = self.service.status.classes.len().saturating_sub(1);
        match code {
            KeyCode::Up | KeyCode::Char('k') => self.service.chosen = self.service.chosen.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => self.service.chosen = (self.service.chosen + 1).min(last),
            _ => return,
        }
        self.service.heat = None;
        self.ask_service();
    }

    fn move_in_machine(&mut self, code: KeyCode) {
        const PAGE: usize = 10;
        let board = &mut self.board;
        let last = board.lines().saturating_sub(1);
        match code {
            KeyCode::Up | KeyCode::Char('k') => board.chosen = board.chosen.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => board.chosen = (board.chosen + 1).min(last),
            KeyCode::PageUp => board.chosen = board.chosen.saturating_sub(PAGE),
            KeyCode::PageDown => board.chosen = (board.chosen + PAGE).min(last),
            KeyCode::Left => board.scroll(-1),
            KeyCode::Right => board.scroll(1),
            KeyCode::Home => board.scroll(-(HISTORY as isize)),
            KeyCode::End => board.at = None,
            KeyCode::Char('s') => board.sort = board.sort.next(),
            KeyCode::Char('t') => board.tree = !board.tree,
            KeyCode::Char('/') => board.typing = true,
            _ => {}
        }
    }

    fn ask_for(&mut self, order: Order) {
        if self.board.service.is_some() {
            // The question is on the screen of the machine.
            self.in_front = false;
            self.board.asks = Some(order);
        } else {
            self.board.said = Some("the service does not run: there is nothing to pause or drain".to_owned());
        }
    }

    fn give(&mut self, order: Order) {
        let Some(client) = &mut self.client else { return };
        let (verb, done) = match order {
            Order::Pause => (Verb::Pause { class: None }, "paused: nothing is looked at and nothing moves"),
            Order::Drain => (Verb::Drain { class: None }, "draining: what was moved comes back to memory"),
            Order::Resume => (Verb::Resume { class: None }, "resumed"),
        };
        self.board.said = Some(match client.ask(verb) {
            Ok(_) => done.to_owned(),
            Err(error) => error.to_string(),
        });
    }
}

fn refresh(client: &mut Client, look: &mut Look, interval: Duration) -> Result<(), ClientError> {
    let status: Status = client.get(Verb::Status {})?;
    let sum = |status: &Status, of: fn(&Class) -> u64| -> u64 { status.classes.iter().map(of).sum() };
    if look.status.pid == status.pid {
        let rate = |of: fn(&Class) -> u64| {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        file
    }

    #[test]
    fn what_was_written_is_replayed_and_what_is_no_look_is_named() {
        let look = MachineLook { schema_version: SCHEMA_VERSION, time: 5.0, ..MachineLook::default() };
        let line = serde_json::to_string(&look).unwrap();
        let good = file(&format!("{line}\n{line}\n"));
        assert_eq!(replay(good.path()).unwrap(), [look.clone(), look]);
        for (text, says) in [
            ("".to_owned(), "is empty"),
            (format!("{line}\nnonsense\n"), "line 2 is no look"),
            (line.replace("\"schema_version\":1", "\"schema_version\":7"), "schema_version 7"),
        ] {
            let told = format!("{:#}", replay(file(&text).path()).unwrap_err());
            assert!(told.contains(says), "{told}");
        }
        let told = format!("{:#}", replay(Path::new("/no/such/file")).unwrap_err());
        assert!(told.contains("--replay /no/such/file"), "{told}");
    }

    fn press(shown: &mut Shown, keys: &str) {
        for key in keys.chars() {
            let code = match key {
                '\n' => KeyCode::Enter,
                '<' => KeyCode::Left,
                other => KeyCode::Char(other),
            };
            assert!(!shown.key(KeyEvent::new(code, KeyModifiers::NONE)));
        }
    }

    #[test]
    fn keys_filter_sort_and_scroll_and_ask_before_they_order() {
        let mut shown = Shown::default();
        (0..3).for_each(|_| shown.board.push(MachineLook::default()));
        press(&mut shown, "st/re q\n<");
        assert_eq!((shown.board.filter.as_str(), shown.board.tree, shown.board.at), ("re q", true, Some(1)));
        press(&mut shown, "d");
        assert!(shown.board.asks.is_none() && shown.board.said.as_ref().unwrap().contains("does not run"));
        shown.board.service = Some(Status::default());
        press(&mut shown, "d");
        assert_eq!(shown.board.asks, Some(Order::Drain));
        press(&mut shown, "n");
        assert_eq!((shown.board.asks, &shown.board.said), (None, &None), "any other key is a no");
        assert!(shown.key(KeyEvent::new(KeyCode::Char('q'), KeyModifiers::NONE)));
        assert!(shown.key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)));
    }
}
