//! A comparison of managers in the lab: its rows, what their columns are called, and what they mean.
//!
//! In: runs. Out: the object that `--json` and report.json are, and the words of table and page. Must not: take emulated time for
//! a measurement.

use terrace_lab::compare::{Course, Row};

use super::units;

/// A comparison that ran.
#[derive(Debug, serde::Serialize)]
pub(crate) struct Comparison {
    pub rows: Vec<Row>,
    pub courses: Vec<Named>,
    /// Runs that came to nothing, and why.
    pub failures: Vec<String>,
    /// What makes a row again.
    pub settings: Settings,
}

/// The course of the run of the row of the same place.
#[derive(Debug, serde::Serialize)]
pub(crate) struct Named {
    pub manager: String,
    pub workload: String,
    /// A program has none.
    pub seed: Option<u64>,
    /// Millions of accesses so far, and the share of the memory accesses since the point before that the fast node served.
    pub points: Course,
}

/// How the runs were made.
#[derive(Clone, Debug, serde::Serialize)]
pub(crate) struct Settings {
    pub modelled_machine: String,
    pub workload_settings: Vec<String>,
    pub operations: Option<u64>,
    pub qemu: String,
}

/// The columns of the table.
pub(crate) const COLUMNS: [&str; 13] = [
    "program",
    "seed",
    "footprint",
    "fast memory",
    "manager",
    "fast share",
    "late",
    "modelled",
    "had",
    "promoted",
    "demoted",
    "manager CPU",
    "kernel CPU",
];

/// Letters of a command that a table and a caption show.
const SHOWN: usize = 32;

/// A command as a table and a caption show it; rows have all of it.
pub(crate) fn shortened(command: &str) -> String {
    match command.chars().count() > SHOWN {
        true => command.chars().take(SHOWN - 1).chain(['…']).collect(),
        false => command.to_owned(),
    }
}

/// A row's cells.
pub(crate) fn cells(row: &Row) -> [String; COLUMNS.len()] {
    [
        shortened(&row.workload),
        row.seed.map_or_else(|| "-".to_owned(), |seed| seed.to_string()),
        units::bytes(row.size_bytes),
        units::bytes(row.fast_bytes),
        manager(row),
        units::percent(row.fast_hit_share),
        units::percent(row.fast_hit_share_late),
        units::seconds(row.modelled_seconds),
        units::bytes(row.fast_bytes_mean),
        units::count(row.promoted_pages),
        units::count(row.demoted_pages),
        units::seconds(row.manager_cpu_seconds),
        units::seconds(row.kernel_cpu_seconds),
    ]
}

/// What the figures are, and are not.
pub(crate) fn meaning(comparison: &Comparison) -> String {
    let mut caches: Vec<u64> = comparison.rows.iter().map(|row| row.modelled_cache_bytes).collect();
    caches.sort_unstable();
    caches.dedup();
    let caches: Vec<String> = caches.into_iter().map(units::bytes).collect();
    format!(
        "fast share: of the program's accesses that missed a modelled cache of {}, those that the fast node served, counted one by one; \
         late: in the last half of its accesses. modelled: what its accesses take on {} without computing, faults and moves. \
         had: the program's memory on the fast node, mean of a look each second. CPU: emulated, to be compared within this table only.",
        caches.join(" or "),
        comparison.settings.modelled_machine,
    )
}

/// A manager with its policy, as one name.
pub(crate) fn manager(row: &Row) -> String {
    row.policy.as_ref().map_or_else(|| row.manager.clone(), |policy| format!("{}:{policy}", row.manager))
}

/// A run that has just ended.
pub(crate) fn progress(row: &Row) -> String {
    format!(
        "{}{} under {}: {} of the memory accesses fast ({} late), {} modelled",
        shortened(&row.workload),
        row.seed.map(|seed| format!(" seed {seed}")).unwrap_or_default(),
        manager(row),
        units::percent(row.fast_hit_share),
        units::percent(row.fast_hit_share_late),
        units::seconds(row.modelled_seconds)
    )
}
