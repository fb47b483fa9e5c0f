//! What commands and results have in common, with and without a simulator.
//!
//! Entry: [`provenance::Provenance`], [`Misuse`].
//! In: plain values and texts.
//! Out: [`provenance`], what every result says of its making; [`figures`], numbers as people read them; [`arguments`] of a simulation, as the command
//! line and the Python package have them; [`Misuse`]; [`tell`], the last words of a command.
//! Must not: know a simulator or a manager: the operator's programs link this.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod arguments;
pub mod figures;
mod misuse;
pub mod provenance;
pub mod tell;

pub use misuse::{Misuse, max_slowdown, misuse, nearest, settings};

/// Says something on stderr, beside the data. That nobody can read it is no reason to end, as `eprint!` would.
#[macro_export]
macro_rules! say {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = std::io::stderr().lock().write_fmt(format_args!($($text)*));
    }};
}
