//! `terraced`: one daemon for a whole server.
//!
//! Entry: [`daemon`], the loop.
//! In: a configuration, and the processes of the machine.
//! Out: classes of workloads managed side by side within one budget, and their state.
//! Must not: decide which pages move (the engine does), make system calls that `terrace-linux` has, or stall a program it manages.
//!
//! What a run and a class have in common is in `terrace_run`; [`config`] is the configuration, [`class`] a running class, [`claims`] its claims and
//! how it applies a grant. [`table`] and [`watcher`] decide which process belongs to which class. [`bins`] is the histogram of its pages
//! by policy score. [`control`] with [`protocol`], and [`http`] with [`access`] and [`metrics`], answer from [`shared`] in the form of
//! [`view`]; [`survey`] adds what the rest of the machine holds idle. [`rights`] decides who may do what, [`client`] sends requests, [`heartbeat`] detects a hung loop.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod access;
pub mod bins;
pub mod claims;
pub mod class;
pub mod client;
pub mod config;
pub mod control;
pub mod daemon;
mod explain;
pub mod handover;
pub mod heartbeat;
pub mod http;
pub mod metrics;
pub mod proof;
pub mod protocol;
mod reload;
pub mod rights;
mod serve;
pub mod shared;
pub mod survey;
pub mod table;
pub mod view;
pub mod watcher;
