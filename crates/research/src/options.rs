//! Raw arguments become validated options, exactly once, before anything is touched.
//!
//! In: `args`. Out: typed options, or a [`Misuse`]. Must not: start or change anything.

pub(crate) use terrace_run::options::{Misuse, duration, misuse};
pub(crate) use terrace_study::options::footprint;

/// Whether the command line asks for something that makes no sense: exit code 2.
pub(crate) fn is_misuse(error: &anyhow::Error) -> bool {
    error.is::<Misuse>() || error.downcast_ref::<terrace_study::Error>().is_some_and(terrace_study::Error::is_misuse)
}
