//! What research shows beside the report of a run: simulations, sizes, the lab; on the same pages, with the same plots.
//!
//! In: results. Out: report.json and report.html. Must not: simulate, or draw in another way than `terrace_report` does.

pub(crate) mod comparison;
mod html;
pub(crate) mod lab;
mod plots;
pub(crate) mod sim;

pub(crate) use terrace_report::*;
