//! `terraced`: one daemon for a whole server.
//!
//! In: a configuration, and the processes of the machine. Out: classes of workloads managed side by side, within one budget,
//! and everything one needs to see what is done and why. Must not: decide what moves (the engine does), talk to the kernel by
//! itself where `terrace-linux` can, or stall a program it manages.
//!
//! [`config`] is what may be configured, [`daemon`] the loop, [`class`] a class as it runs, [`bargain`] what it asks for and makes of
//! what it gets, [`table`] and [`watcher`] who belongs to it. [`bins`] is how its pages
//! spread over what the policy ranks them by. [`control`] with [`protocol`], and [`http`] with [`access`] and [`metrics`], answer from what [`shared`] holds, in the form of
//! [`view`]; [`rights`] says who may do what, [`client`] asks, [`heartbeat`] tells whether the loop turns. [`tell`] is how this and the command print what
//! clap says.
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
pub mod heartbeat;
pub mod heat;
pub mod http;
pub mod metrics;
pub mod proof;
pub mod protocol;
mod reload;
pub mod rights;
mod serve;
pub mod shared;
pub mod table;
pub mod tell;
pub mod view;
pub mod watcher;
