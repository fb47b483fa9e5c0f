//! Why the value of an option or of a key is refused.
//!
//! In: what was given, and what it should have been. Out: one sentence for the operator. Must not: name the option or the key; who read the
//! value knows it.

use terrace_core::units::ParseUnitError;
use terrace_linux::machine_programs::NameError;
use terrace_linux::metric::NotAMetric;
use terrace_linux::topology::TopologyError;

/// A value that is refused.
#[derive(Debug, thiserror::Error)]
pub enum ValueError {
    /// Something else was expected.
    #[error("expected {0}")]
    Expected(&'static str),
    /// More was expected.
    #[error("{expected}: {because}")]
    TooLittle {
        /// How much.
        expected: &'static str,
        /// Why there is no less.
        because: &'static str,
    },
    /// A text that does not serve.
    #[error("{text:?}{fault}")]
    Text {
        /// The text.
        text: String,
        /// What is wrong, as it goes on behind the text.
        fault: &'static str,
    },
    /// A TOML value that does not serve.
    #[error("{value} is {fault}")]
    Value {
        /// The value as TOML.
        value: String,
        /// What it is, or is not.
        fault: &'static str,
    },
    /// A TOML value of a kind that does not serve.
    #[error("{value} is {kind}, not {wanted}")]
    Kind {
        /// The value as TOML.
        value: String,
        /// Its kind.
        kind: &'static str,
        /// The kind that serves.
        wanted: &'static str,
    },
    /// A number out of its range, or none.
    #[error("{value} is not a whole number from {least} to {most}")]
    Range {
        /// The value as TOML.
        value: String,
        /// The least number.
        least: i64,
        /// The greatest.
        most: i64,
    },
    /// No tracker has this name.
    #[error("unknown tracker {name:?}; expected auto, {known}")]
    Tracker {
        /// The name.
        name: String,
        /// Those that are.
        known: String,
    },
    /// Nobody has this name.
    #[error("there is no {kind} {name:?} on this machine")]
    Nobody {
        /// "user" or "group".
        kind: &'static str,
        /// The name.
        name: String,
    },
    /// The first tier that was declared is not of nodes.
    #[error("the first tier, {0}, must be of nodes: a program runs in memory")]
    FirstTier(String),
    /// An address that others can reach, without what protects it.
    #[error(
        "{0} can be reached from other machines: set metrics.token, metrics.certificate and metrics.key as well, or let a \
         proxy that has both ask 127.0.0.1"
    )]
    Exposed(std::net::SocketAddr),
    /// What a text is to be without.
    #[error("{0}")]
    Lacks(&'static str),
    /// No size of folios.
    #[error("{0}, or off")]
    FolioSize(terrace_linux::swap_in::NotAFolioSize),
    /// No amount.
    #[error(transparent)]
    Unit(#[from] ParseUnitError),
    /// No tier.
    #[error(transparent)]
    Tier(#[from] TopologyError),
    /// No measure of a program.
    #[error(transparent)]
    Metric(#[from] NotAMetric),
    /// No name for the list of what is never touched.
    #[error(transparent)]
    Name(#[from] NameError),
    /// Something with an address that is none.
    #[error("{text:?}: {why}")]
    Address {
        /// The whole of it.
        text: String,
        /// What is wrong.
        why: NotAMetric,
    },
}

impl ValueError {
    /// A text with what is wrong with it, which goes on behind the text.
    pub fn text(text: &str, fault: &'static str) -> ValueError {
        ValueError::Text { text: text.to_owned(), fault }
    }

    /// A TOML value with what it is, or is not.
    pub fn value(value: &impl ToString, fault: &'static str) -> ValueError {
        ValueError::Value { value: value.to_string(), fault }
    }
}
