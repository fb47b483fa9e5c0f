//! A hot set that stands still and fits: once it is in fast memory nothing moves any more.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use terrace_core::units::Bytes;
use terrace_machine::preset::Machine;
use terrace_machine::scale::Scale;
use terrace_policies::Settings;
use terrace_sim::run::run_alone;
use terrace_sim::{FastSize, Pages, SimConfig, WorkloadSource};
use terrace_workloads::Parameters;

#[test]
fn equal_pages_stay_where_the_hot_set_fits() {
    for share in [0.3, 0.5] {
        let size = Bytes::mib(64);
        let mut config = SimConfig::new(Machine::preset("cxl-170").unwrap(), size, FastSize::Share(share));
        (config.scale, config.pages) = (Scale::new(64).unwrap(), Pages::Folded);
        let mut parameters = Parameters::new(size.get());
        (parameters.threads, parameters.operations) = (4, Some(24_000_000));
        // A quarter of it is hot.
        let source = WorkloadSource { name: "hot-cold".to_owned(), parameters };
        let policy = terrace_policies::build("terrace", Settings::default()).unwrap();
        let report = run_alone(&config, &source, policy).unwrap();
        assert!(report.policy_metrics["intervals"] > 20.0, "{:?}", report.policy_metrics);
        let intervals = report.series.metrics.iter().position(|name| *name == "intervals").unwrap();
        let later = report.series.rows.iter().filter(|row| row.metrics[intervals] > 15.0);
        let later: u64 = later.map(|row| row.promoted + row.demoted).sum();
        let pages = size.pages() as f64;
        assert!((later as f64) < 0.02 * pages, "{share}: {later} moves of {pages} pages");
    }
}
