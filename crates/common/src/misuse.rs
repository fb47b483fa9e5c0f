//! What makes no sense on a command line, and the readers of what several commands take.
//!
//! In: options and texts. Out: values, or a [`Misuse`] that names the option, what was given and what was expected. Must not: call misuse what the
//! caller could not have prevented.

use std::collections::BTreeMap;

use terrace_core::text::{did_you_mean, meant};
use terrace_core::units::parse_share;

/// Something was asked for that makes no sense: exit code 2 of the command, `ValueError` in Python.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Misuse(pub String);

/// A [`Misuse`] about one option, in the words of the command line.
pub fn misuse(option: &str, given: &str, why: impl std::fmt::Display) -> Misuse {
    Misuse(format!("{option} {given}: {why}"))
}

/// What an option takes as KEY=VALUE, by key; `such_as` is an example.
///
/// # Errors
/// When a text is no such pair: misuse.
pub fn settings(option: &str, texts: &[String], such_as: &str) -> Result<BTreeMap<String, String>, Misuse> {
    let pair = |text: &String| match text.split_once('=') {
        Some((key, value)) => Ok((key.trim().to_owned(), value.trim().to_owned())),
        None => Err(misuse(option, text, format!("expected KEY=VALUE, such as {such_as}"))),
    };
    texts.iter().map(pair).collect()
}

/// `--max-slowdown`: above 0 and at most 1.
///
/// # Errors
/// What is wrong: misuse.
pub fn max_slowdown(text: &str) -> Result<f64, Misuse> {
    let read = |text: &str| parse_share(text).ok().filter(|share| *share > 0.0 && *share <= 1.0);
    read(text).ok_or_else(|| {
        let forms = did_you_mean("--max-slowdown ", &meant(text, |form| read(form).is_some()));
        misuse("--max-slowdown", text, format!("expected a share above 0% and at most 100%, such as 5%{forms}"))
    })
}

/// The known name nearest to a wrong one, if one is near enough.
pub fn nearest<'a>(wrong: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    /// A text much longer than any name is not a misspelt name, and comparing it would take long.
    const LONGEST: usize = 64;
    if wrong.len() > LONGEST {
        return None;
    }
    known
        // Two letters in the wrong order are one mistake.
        .map(|name| (strsim::osa_distance(wrong, name), name))
        .filter(|(far, name)| *far <= name.len().div_ceil(3))
        .min()
        .map(|(_, name)| name)
}
