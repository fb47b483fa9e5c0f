//! `terraced`: one daemon for a whole server.
//!
//! In: a configuration, and the processes of the machine. Out: classes of workloads managed side by side, within one budget,
//! and everything one needs to see what is done and why. Must not: decide what moves (the engine does), talk to the kernel by
//! itself where `terrace-linux` can, or stall a program it manages.
//!
//! [`config`] is what may be configured, [`daemon`] the loop, [`class`] a class as it runs, [`table`] and [`watcher`] who belongs
//! to it. [`control`] with [`protocol`] and [`http`] with [`metrics`] answer from what [`shared`] holds, in the form of
//! [`view`]; [`client`] asks.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod class;
pub mod client;
pub mod config;
pub mod control;
pub mod daemon;
mod explain;
pub mod heat;
pub mod http;
pub mod metrics;
pub mod proof;
pub mod protocol;
pub mod shared;
pub mod table;
pub mod view;
pub mod watcher;
