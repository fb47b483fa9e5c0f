//! Many runs side by side: the matrix of jobs, geometric means with intervals, wins and losses.
//!
//! In: names and sizes, then the cells that the caller's runner produced. Out: jobs, and a summary. Must not: run
//! anything or start a thread: the caller deals the jobs out to its cores.

use std::collections::BTreeMap;

use crate::config::FastSize;
use crate::heat::HeatMap;
use crate::report::Report;
use crate::series::Series;
use terrace_core::random::mix;

/// What to compare: every policy on every workload at every size, with every seed.
#[derive(Clone, Debug)]
pub struct Matrix {
    /// Workloads.
    pub workloads: Vec<String>,
    /// Policies.
    pub policies: Vec<String>,
    /// Sizes of the fast tier, with the text they were asked by.
    pub fast: Vec<(String, FastSize)>,
    /// Seeds: each is a run of its own.
    pub seeds: Vec<u64>,
}

/// One run of the matrix.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// The workload.
    pub workload: String,
    /// The policy.
    pub policy: String,
    /// The size, as it was asked for.
    pub fast_text: String,
    /// The size.
    pub fast: FastSize,
    /// The seed.
    pub seed: u64,
}

impl Matrix {
    /// Every job, workload by workload, so that runs which share bounds stand together.
    pub fn jobs(&self) -> Vec<Job> {
        let mut jobs = Vec::new();
        for workload in &self.workloads {
            for &seed in &self.seeds {
                for (fast_text, fast) in &self.fast {
                    for policy in &self.policies {
                        jobs.push(Job {
                            workload: workload.clone(),
                            policy: policy.clone(),
                            fast_text: fast_text.clone(),
                            fast: *fast,
                            seed,
                        });
                    }
                }
            }
        }
        jobs
    }
}

/// One cell: what a run amounted to, in figures.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Cell {
    /// The workload.
    pub workload: String,
    /// The policy, by the name it was asked for.
    pub policy: String,
    /// The machine.
    pub machine: String,
    /// The size of the fast tier, as it was asked for.
    pub fast: String,
    /// Fast memory over the footprint, 0 to 1.
    pub fast_share: f64,
    /// The seed.
    pub seed: u64,
    /// The scale.
    pub scale: u32,
    /// Capacity of the fastest tier.
    pub fast_bytes: u64,
    /// Peak memory of the program.
    pub footprint_bytes: u64,
    /// Run time.
    pub seconds: f64,
    /// Run time over all-fast.
    pub slowdown_vs_all_fast: f64,
    /// All-slow over run time.
    pub gain_over_all_slow: f64,
    /// Run time with every page where it was first touched, over run time.
    pub gain_over_first_touch: f64,
    /// Share of memory accesses that the fastest tier served.
    pub fast_hit_share: f64,
    /// Pages promoted.
    pub promoted_pages: u64,
    /// Pages demoted.
    pub demoted_pages: u64,
    /// Pages whose promotion failed.
    pub failed_promotions: u64,
    /// CPU seconds of management.
    pub management_seconds: f64,
    /// Bytes of metadata a page.
    pub metadata_bytes_per_page: f64,
}

impl Cell {
    /// The cell of a job from its report, not yet compared with first touch.
    pub fn new(job: &Job, report: &Report) -> Cell {
        let fast_share = match job.fast {
            FastSize::Share(share) => share,
            FastSize::Bytes(bytes) => bytes.get() as f64 / report.footprint_bytes.max(1) as f64,
        };
        Cell {
            workload: job.workload.clone(),
            policy: job.policy.clone(),
            machine: report.machine.clone(),
            fast: job.fast_text.clone(),
            fast_share,
            seed: job.seed,
            scale: report.scale,
            fast_bytes: report.fast_bytes,
            footprint_bytes: report.footprint_bytes,
            seconds: report.seconds,
            slowdown_vs_all_fast: report.slowdown_vs_all_fast.unwrap_or(f64::NAN),
            gain_over_all_slow: report.gain_over_all_slow.unwrap_or(f64::NAN),
            gain_over_first_touch: f64::NAN,
            fast_hit_share: report.fast_hit_share,
            promoted_pages: report.promoted_pages,
            demoted_pages: report.demoted_pages,
            failed_promotions: report.failed_promotions,
            management_seconds: report.management_seconds,
            metadata_bytes_per_page: report.metadata_bytes_per_page,
        }
    }
}

/// Fills in the gain over first touch, from `references`: cells of `first-touch` of the same settings and seeds. Where there is none it
/// stays unknown.
pub fn compare_with_first_touch(cells: &mut [Cell], references: &[Cell]) {
    let place = |cell: &Cell| (cell.workload.clone(), cell.fast.clone(), cell.seed);
    let seconds: BTreeMap<_, f64> = references.iter().map(|cell| (place(cell), cell.seconds)).collect();
    for cell in cells {
        cell.gain_over_first_touch = seconds.get(&place(cell)).map_or(f64::NAN, |seconds| seconds / cell.seconds);
    }
}

/// How one run went, for drawings.
#[derive(Clone, Debug)]
pub struct Course {
    /// The run.
    pub job: Job,
    /// Hit share, moves and the policy's figures over time.
    pub series: Series,
    /// Accesses by address and time.
    pub heat_map: HeatMap,
}

/// A policy over all cells.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Geomean {
    /// The policy.
    pub policy: String,
    /// Geometric mean of the gain over all-slow.
    pub gain_over_all_slow: f64,
    /// Lower end of its 95 % interval.
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// Cells it is made of.
    pub cells: usize,
    /// Settings (workload, size) in which its mean over the seeds is the best by more than [`DRAW`], bounds aside.
    pub best: usize,
    /// Whether it is a bound ([`terrace_policies::BOUNDS`]), which has no rivals.
    pub bound: bool,
}

/// One policy against another, setting by setting.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Duel {
    /// The policy.
    pub policy: String,
    /// The other.
    pub against: String,
    /// Settings it won by more than [`DRAW`].
    pub wins: usize,
    /// Settings it lost by more.
    pub losses: usize,
    /// The others.
    pub draws: usize,
    /// Geometric mean of its gain over the other's.
    pub ratio: f64,
    /// Lower end of its 95 % interval.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// What many cells say.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct Summary {
    /// By policy, best first, bounds among them.
    pub geomean: Vec<Geomean>,
    /// Every ordered pair of policies, without the bounds.
    pub duels: Vec<Duel>,
}

impl Summary {
    /// The policies without the bounds, best first.
    pub fn ranking(&self) -> impl Iterator<Item = &Geomean> {
        self.geomean.iter().filter(|mean| !mean.bound)
    }
}

fn is_bound(policy: &str) -> bool {
    terrace_policies::BOUNDS.contains(&policy)
}

/// Two results closer than this share are a draw: run-to-run spread of the modelled machine over seeds is of this order.
pub const DRAW: f64 = 0.01;
const RESAMPLES: usize = 2000;

/// Summarises cells. The seed is that of the bootstrap: the same cells give the same intervals.
///
/// Intervals are percentile bootstraps over settings (workload and size), the unit that would be drawn again if the
/// study were repeated; seeds are averaged within a setting first. With fewer than two settings, seeds are resampled.
pub fn summarise(cells: &[Cell], seed: u64) -> Summary {
    // Mean log gain by policy and setting; and single logs, for when there is one setting only.
    let mut logs: BTreeMap<&str, BTreeMap<(&str, &str), Vec<f64>>> = BTreeMap::new();
    for cell in cells.iter().filter(|cell| cell.gain_over_all_slow > 0.0) {
        let settings = logs.entry(&cell.policy).or_default();
        settings.entry((&cell.workload, &cell.fast)).or_default().push(cell.gain_over_all_slow.ln());
    }
    let means: BTreeMap<&str, BTreeMap<(&str, &str), f64>> = logs
        .iter()
        .map(|(policy, settings)| (*policy, settings.iter().map(|(key, logs)| (*key, mean(logs))).collect()))
        .collect();
    let units = |policy: &str| -> Vec<f64> {
        let settings = &logs[policy];
        if settings.len() > 1 {
            means[policy].values().copied().collect()
        } else {
            settings.values().flatten().copied().collect()
        }
    };
    let mut summary = Summary::default();
    for (number, policy) in means.keys().enumerate() {
        let values = units(policy);
        let (low, high) = interval(&values, seed ^ number as u64);
        let bound = is_bound(policy);
        let ahead = |setting: &(&str, &str), own: f64| {
            let mut others = means.iter().filter(|(other, _)| *other != policy && !is_bound(other));
            others.all(|(_, theirs)| theirs.get(setting).is_none_or(|log| own > log + DRAW.ln_1p()))
        };
        let best = means[policy].iter().filter(|(setting, own)| !bound && ahead(setting, **own)).count();
        summary.geomean.push(Geomean {
            policy: (*policy).to_owned(),
            gain_over_all_slow: mean(&values).exp(),
            low: low.exp(),
            high: high.exp(),
            cells: logs[policy].values().map(Vec::len).sum(),
            best,
            bound,
        });
    }
    summary.geomean.sort_by(|a, b| b.gain_over_all_slow.total_cmp(&a.gain_over_all_slow));
    for (policy, own) in means.iter().filter(|(policy, _)| !is_bound(policy)) {
        for (against, theirs) in means.iter().filter(|(against, _)| *against != policy && !is_bound(against)) {
            let ratios: Vec<f64> =
                own.iter().filter_map(|(setting, log)| theirs.get(setting).map(|other| log - other)).collect();
            if ratios.is_empty() {
                continue;
            }
            let edge = DRAW.ln_1p();
            let wins = ratios.iter().filter(|ratio| **ratio > edge).count();
            let losses = ratios.iter().filter(|ratio| **ratio < -edge).count();
            let (low, high) = interval(&ratios, seed ^ 0xd0e1);
            summary.duels.push(Duel {
                policy: (*policy).to_owned(),
                against: (*against).to_owned(),
                wins,
                losses,
                draws: ratios.len() - wins - losses,
                ratio: mean(&ratios).exp(),
                low: low.exp(),
                high: high.exp(),
            });
        }
    }
    summary
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The 2.5 and 97.5 percentiles of the means of resamples.
fn interval(values: &[f64], seed: u64) -> (f64, f64) {
    if values.len() < 2 {
        let only = mean(values);
        return (only, only);
    }
    let mut state = mix(seed);
    let mut means: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            let drawn = values.iter().map(|_| {
                state = mix(state);
                values[(state % values.len() as u64) as usize]
            });
            drawn.sum::<f64>() / values.len() as f64
        })
        .collect();
    means.sort_by(f64::total_cmp);
    (means[RESAMPLES * 25 / 1000], means[RESAMPLES * 975 / 1000])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(workload: &str, policy: &str, seed: u64, gain: f64) -> Cell {
        Cell {
            workload: workload.to_owned(),
            policy: policy.to_owned(),
            machine: "m".to_owned(),
            fast: "50%".to_owned(),
            fast_share: 0.5,
            seed,
            scale: 1,
            fast_bytes: 1,
            footprint_bytes: 2,
            seconds: 1.0 / gain,
            slowdown_vs_all_fast: 1.0,
            gain_over_all_slow: gain,
            gain_over_first_touch: gain,
            fast_hit_share: 0.5,
            promoted_pages: 0,
            demoted_pages: 0,
            failed_promotions: 0,
            management_seconds: 0.0,
            metadata_bytes_per_page: 8.0,
        }
    }

    #[test]
    fn means_are_geometric_and_intervals_hold_them() {
        let mut cells = Vec::new();
        for (number, workload) in ["a", "b", "c", "d"].iter().enumerate() {
            for seed in 0..3 {
                let base = 1.0 + number as f64 / 2.0;
                cells.push(cell(workload, "better", seed, base * 1.2));
                cells.push(cell(workload, "worse", seed, base));
            }
        }
        let summary = summarise(&cells, 1);
        assert_eq!(summary.geomean[0].policy, "better");
        let expect = (1.2f64.powi(4) * 1.0 * 1.5 * 2.0 * 2.5).powf(0.25);
        let best = &summary.geomean[0];
        assert!((best.gain_over_all_slow - expect).abs() < 1e-9);
        assert!(best.low < expect && expect < best.high && best.low > 1.2 && best.high < 3.0, "{best:?}");
        assert_eq!((best.best, best.cells), (4, 12));
        let duel = summary.duels.iter().find(|duel| duel.policy == "worse").unwrap();
        assert_eq!((duel.wins, duel.losses, duel.draws), (0, 4, 0));
        assert!((duel.ratio - 1.0 / 1.2).abs() < 1e-9 && (duel.high - duel.low).abs() < 1e-9);
        assert_eq!(summary, summarise(&cells, 1), "the same cells give the same bytes");
    }

    #[test]
    fn one_setting_is_resampled_over_its_seeds_and_cells_without_gain_are_left_out() {
        let cells = [cell("a", "p", 1, 1.0), cell("a", "p", 2, 1.1), cell("a", "p", 3, f64::NAN)];
        let summary = summarise(&cells, 9);
        assert_eq!(summary.geomean[0].cells, 2);
        assert!(summary.geomean[0].low < summary.geomean[0].high);
        assert!(summarise(&[], 1).geomean.is_empty());
    }

    #[test]
    fn each_cell_is_compared_with_first_touch_of_its_own_setting_and_seed() {
        let mut cells = [cell("a", "p", 1, 2.0), cell("a", "p", 2, 4.0), cell("b", "p", 1, 1.0)];
        compare_with_first_touch(&mut cells, &[cell("a", "first-touch", 1, 1.0), cell("a", "first-touch", 2, 1.0)]);
        assert_eq!((cells[0].gain_over_first_touch, cells[1].gain_over_first_touch), (2.0, 4.0));
        assert!(cells[2].gain_over_first_touch.is_nan());
    }

    #[test]
    fn the_matrix_has_every_combination_once() {
        let matrix = Matrix {
            workloads: vec!["a".into(), "b".into()],
            policies: vec!["p".into(), "q".into(), "r".into()],
            fast: vec![("50%".into(), FastSize::Share(0.5))],
            seeds: vec![1, 2],
        };
        let jobs = matrix.jobs();
        assert_eq!(jobs.len(), 12);
        assert!(jobs.iter().enumerate().all(|(n, job)| !jobs[..n].contains(job)));
    }
}
