//! Tables and other text for a terminal, as in the command.
//!
//! In: what a command found. Out: text, no wider than the screen. Must not: print, or find out anything itself.

pub(crate) mod lab;

use crate::terminal::Screen;
