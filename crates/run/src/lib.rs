//! A run of a program under management, as `terrace run` and a class of the service have it.
//!
//! Entry: [`session`], a run from set-up to record.
//! In: a specification ([`spec`]), read from flags ([`args`]) or from the keys of a class.
//! Out: a manager; for a run its record, its summary and the exit code.
//! Must not: know a simulator, or the protocol of the service.
//!
//! [`heat`] records which share of each address range was accessed. [`named`] finds what runs already, [`program`] what is to be started, [`tune`] is
//! `terrace size tune`. [`programs`] hands a command over to the other program, [`entry`] is what both programs begin and end with.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod args;
pub mod entry;
pub mod heat;
pub mod named;
pub mod options;
pub mod program;
pub mod programs;
pub mod session;
pub mod spec;
pub mod tune;

/// Where the configuration of the service lies.
pub const CONFIGURATION: &str = "/etc/terrace/terrace.toml";
