//! Plots of simulations, sizes and the lab.
//!
//! In: results. Out: figures of `terrace_report`, or a drawing that stands alone. Must not: use an ink that has no dark counterpart.

mod hotness;
pub(super) mod lab;
pub(super) mod sim;
pub(super) mod sizing;

pub(crate) use hotness::hotness_picture;
use plotters::style::text_anchor::{HPos, VPos};
pub(crate) use terrace_report::plots::*;
use terrace_report::units;
