//! `terraced`: one daemon for a whole server.
//!
//! Entry: [`daemon`], the loop.
//! In: a configuration, and the processes of the machine.
//! Out: classes of workloads managed side by side within one budget, and their state.
//! Must not: decide which pages move (the engine does), make system calls that `terrace-linux` has, or stall a program it manages.
//!
//! [`spec`] is what a run and a class have in common, [`config`] the configuration, [`class`] a running class, [`bargain`] its claims and
//! how it applies a grant. [`table`] and [`watcher`] decide which process belongs to which class. [`bins`] is the histogram of its pages
//! by policy score. [`control`] with [`protocol`], and [`http`] with [`access`] and [`metrics`], answer from [`shared`] in the form of
//! [`view`]; [`otlp`] sends it. [`rights`] decides who may do what, [`client`] sends requests, [`heartbeat`] detects a hung loop. [`tell`]
//! prints clap's messages for the daemon and the command.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod access;
pub mod bargain;
pub mod bins;
pub mod class;
pub mod client;
pub mod config;
pub mod control;
pub mod daemon;
mod explain;
pub mod handover;
pub mod heartbeat;
pub mod heat;
pub mod http;
pub mod metrics;
pub mod otlp;
pub mod proof;
pub mod protocol;
mod reload;
pub mod rights;
mod serve;
pub mod shared;
pub mod spec;
pub mod table;
pub mod tell;
pub mod view;
pub mod watcher;
