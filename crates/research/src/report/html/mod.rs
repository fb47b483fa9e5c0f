//! Pages of simulations and of the lab.
//!
//! In: results and their plots. Out: HTML in the style of a run's page. Must not: let a text from outside become markup.

pub(super) mod lab;
pub(super) mod sim;

use terrace_report::html::{data_table, fact_table, figure, page_of};
use terrace_report::markup::escape;
