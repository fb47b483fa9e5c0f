//! Raw arguments become validated options, exactly once, before anything is touched.
//!
//! In: `args`. Out: typed options, or a [`Misuse`] that names the option, what was given, and what was expected. Must not:
//! start or change anything.

use std::time::Duration;

use crate::spec::options::span;

pub use terrace_common::Misuse;
use terrace_core::text::{did_you_mean, meant};

/// Whether the command line asks for something that makes no sense: exit code 2.
pub fn is_misuse(error: &anyhow::Error) -> bool {
    error.is::<Misuse>()
}

/// A [`Misuse`] about one option.
pub fn misuse(option: &str, given: &str, why: impl std::fmt::Display) -> anyhow::Error {
    terrace_common::misuse(option, given, why).into()
}

/// The value of an option that is a time longer than zero.
pub fn duration(option: &str, text: &str) -> anyhow::Result<Duration> {
    let read = |text: &str| span(text, Duration::from_nanos(1));
    // A number alone is meant in seconds, as by sleep(1) and timeout(1).
    let forms = || meant(text, |form| read(form).is_ok() && !form.ends_with("ms"));
    read(text).map_err(|why| misuse(option, text, why.to_string() + &did_you_mean(&format!("{option} "), &forms())))
}
