//! The state of a running program on the whole terminal, drawn again every second or two.
//!
//! In: the latest point, idle times and heat. Out: one screen on stderr. Must not: leave the terminal on its alternate screen, or draw
//! more than it holds.

use std::io::{IsTerminal, Write};
use terrace_common::say;

use crate::options::Misuse;
use terrace_report::terminal::Screen;
use terrace_report::text::live_screen;
use terrace_report::{AgeBin, HeatMap, Point};

/// xterm control sequences: the alternate screen, its top left corner, and what lies below.
const ENTER: &str = "\x1b[?1049h";
const LEAVE: &str = "\x1b[?1049l";
const HOME: &str = "\x1b[H";
const ERASE_LINE: &str = "\x1b[K";
const ERASE_BELOW: &str = "\x1b[J";

/// The alternate screen of a terminal, until it is dropped.
pub(super) struct LiveView(());

impl LiveView {
    /// Whether there is a terminal to draw on. Asked before a program is started.
    ///
    /// # Errors
    /// When stderr is none.
    pub(super) fn check() -> anyhow::Result<()> {
        if std::io::stderr().is_terminal() {
            return Ok(());
        }
        Err(Misuse(
            "--live: stderr is not a terminal; leave it off, the closing lines show the same at the end".to_owned(),
        )
        .into())
    }

    /// Takes the terminal over.
    pub(super) fn enter() -> LiveView {
        let view = LiveView(());
        view.take();
        view
    }

    /// Shows the alternate screen.
    pub(super) fn take(&self) {
        say!("{ENTER}");
    }

    /// Shows what was there before.
    pub(super) fn give_back(&self) {
        say!("{LEAVE}");
    }

    /// Draws the state.
    pub(super) fn draw(&self, point: &Point, before: Option<&Point>, ages: &[AgeBin], heat: &HeatMap) {
        let screen = Screen::of(std::io::stderr());
        let rows = terminal_size::terminal_size_of(std::io::stderr()).map_or(24, |(_, rows)| usize::from(rows.0));
        let mut text = HOME.to_owned();
        for line in live_screen(point, before, ages, heat, &screen, rows).lines() {
            text += &format!("{line}{ERASE_LINE}\r\n");
        }
        text += ERASE_BELOW;
        // A closed terminal does not stop the management.
        let _ = std::io::stderr().lock().write_all(text.as_bytes());
    }
}

impl Drop for LiveView {
    fn drop(&mut self) {
        self.give_back();
    }
}
