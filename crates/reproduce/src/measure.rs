//! What is asked of a row's runs, by name.
//!
//! In: the keys of a row. Out: [`Measure`] and [`Figure`]. Must not: compute; `evaluate` and `tuned` do.

use std::str::FromStr;

use crate::error::ValueError;

/// A number of one run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Figure {
    /// Failed over successful promotions; none where no promotion succeeded.
    FailedOverPromoted,
    /// Failed promotions over those that were tried; none where none was.
    FailedOverAttempts,
    /// Share of memory accesses that fast memory serves.
    FastHits,
    /// Accesses to fast over accesses to slow memory.
    FastOverSlow,
    /// The same of the loads that counters of cache misses see: those that no prefetcher had served in time.
    CountedFastOverSlow,
    /// Share of these loads that fast memory serves.
    CountedFastHits,
    /// Speed over that with everything fast.
    SpeedOfAllFast,
    /// Time of management over the time of all threads.
    ManagementOfAllThreads,
    /// Time of management over the run's time: processors.
    ManagementOfOneProcessor,
    /// The same without what management costs the program's threads: of the manager's and the kernel's own threads.
    ManagementThreads,
    /// Time of one kind of management over the run's time: processors.
    Overhead(String),
    /// Pages at or above the hot threshold over fast memory, median over the later two thirds of the run.
    HotSet,
    /// Bytes of metadata a page.
    MetadataBytesAPage,
    /// Page walks over accesses of the first core, in the measured part.
    WalkShare,
    /// The most accesses of a core over the mean, less one, in the measured part.
    Imbalance,
    /// Of the hottest tenth of address ranges, the share that is not among the hottest tenth a row of the heat map later.
    Drift,
    /// Bytes that changed tier.
    MigratedBytes,
    /// Pages whose promotion failed.
    FailedPromotions,
    /// Median over the later two thirds of a run of a metric of the policy.
    Median(String),
    /// Mean over the run of a metric of the policy.
    MeanOf(String),
}

impl Figure {
    const NAMES: &'static str = "failed-over-promoted, failed-over-attempts, fast-hits, fast-over-slow, counted-fast-hits, counted-fast-over-slow, speed-of-all-fast, management-of-all-threads, \
        management-of-one-processor, management-threads, overhead:KIND, hot-set, metadata-bytes-a-page, walk-share, imbalance, drift, migrated-bytes, \
        failed-promotions, median:METRIC, mean:METRIC";
}

impl FromStr for Figure {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Figure, ValueError> {
        Ok(match text.split_once(':') {
            Some(("overhead", kind)) => Figure::Overhead(kind.to_owned()),
            Some(("median", metric)) => Figure::Median(metric.to_owned()),
            Some(("mean", metric)) => Figure::MeanOf(metric.to_owned()),
            _ => match text {
                "failed-over-promoted" => Figure::FailedOverPromoted,
                "failed-over-attempts" => Figure::FailedOverAttempts,
                "fast-hits" => Figure::FastHits,
                "fast-over-slow" => Figure::FastOverSlow,
                "counted-fast-hits" => Figure::CountedFastHits,
                "counted-fast-over-slow" => Figure::CountedFastOverSlow,
                "speed-of-all-fast" => Figure::SpeedOfAllFast,
                "management-of-all-threads" => Figure::ManagementOfAllThreads,
                "management-of-one-processor" => Figure::ManagementOfOneProcessor,
                "management-threads" => Figure::ManagementThreads,
                "hot-set" => Figure::HotSet,
                "metadata-bytes-a-page" => Figure::MetadataBytesAPage,
                "walk-share" => Figure::WalkShare,
                "imbalance" => Figure::Imbalance,
                "drift" => Figure::Drift,
                "migrated-bytes" => Figure::MigratedBytes,
                "failed-promotions" => Figure::FailedPromotions,
                _ => return Err(ValueError::new(text, format!("is no figure of a run; there are: {}", Figure::NAMES))),
            },
        })
    }
}

/// The part of a run whose time counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// From the start to the end.
    Whole,
    /// The parts that papers time, without input, set-up and check.
    Measured,
}

/// What predicts a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prediction {
    /// The database alone, as in the paper.
    Database,
    /// The database, corrected by the observation at the size before.
    Corrected,
    /// The forecast by pages watched with everything fast.
    Forecast,
}

/// What is computed of a row's runs. "Pairs" are its cases two by two, in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Measure {
    /// Mean of a figure over the cases that have it.
    Mean(Figure),
    /// The most of a figure over the cases.
    Most(Figure),
    /// Pairs: time of the second over time of the first, geometric mean.
    Speedup(Part),
    /// The same, less one.
    Gain(Part),
    /// Pairs: the largest factor of any of them.
    Best,
    /// Pairs: sum of a figure over the firsts over that over the seconds, less one.
    Change(Figure),
    /// Pairs: sum of a figure over the firsts over that over the seconds.
    Ratio(Figure),
    /// Pairs: which is ahead; the paper says in how many the first is, and the second in the rest.
    Winners {
        /// Pairs in which the first is said to be ahead.
        first: usize,
    },
    /// Which run is the fastest.
    Fastest {
        /// The place of the one that is said to be.
        expected: usize,
    },
    /// Pairs: whether a figure is larger for every first.
    Larger(Figure),
    /// Pairs along growing fast memory: whether the first is ahead everywhere, and by less at the end than at the beginning.
    Shrinks,
    /// Lowest and highest value of a metric of the policy over the run.
    Swing {
        /// The metric.
        metric: String,
        /// What the lowest must not exceed.
        low: f64,
        /// What the highest must reach.
        high: f64,
    },
    /// Runs on more and more cores: how much faster than the first, and how uneven.
    Cores,
    /// How much longer the case takes than with everything fast.
    Loss,
    /// Saving of tuned runs, whether each kept its target, and their loss.
    Tuned,
    /// The largest saving within a target by a straight line between the sizes that were run, policy by policy.
    MostSaving {
        /// The loss that is allowed.
        target: f64,
        /// How far a prediction of the saving may be off, as a share of it.
        error: Option<f64>,
    },
    /// Losses at fixed sizes, and how far a prediction is off.
    PredictionErrors(Prediction),
    /// Why the database's prediction differs: how much is slow, and what that costs.
    PredictionTerms,
    /// What could be saved at best, by runs at fixed sizes.
    SavingBounds {
        /// The loss that is allowed.
        target: f64,
    },
    /// Time of a query to the performance database.
    DatabaseQuery,
}

impl Measure {
    /// The names that files use.
    pub const NAMES: &'static str = "mean, most, speedup, gain, best, change, ratio, winners, fastest, larger, shrinks, swing, cores, loss, \
        tuned, most-saving, prediction-errors, prediction-terms, saving-bounds, database-query";

    /// The keys of a row that say more of it.
    pub(crate) fn keys(&self) -> &'static [&'static str] {
        match self {
            Measure::Mean(_) | Measure::Most(_) | Measure::Change(_) | Measure::Ratio(_) | Measure::Larger(_) => {
                &["of"]
            }
            Measure::Speedup(_) | Measure::Gain(_) => &["of"],
            Measure::Winners { .. } => &["first"],
            Measure::Fastest { .. } => &["expected"],
            Measure::Swing { .. } => &["of", "low", "high"],
            Measure::MostSaving { .. } => &["prediction_error", "target"],
            Measure::SavingBounds { .. } => &["target"],
            Measure::PredictionErrors(_) => &["by"],
            _ => &[],
        }
    }

    /// Whether its cases stand in pairs.
    pub(crate) fn wants_pairs(&self) -> bool {
        use Measure::{Best, Change, Gain, Larger, Ratio, Shrinks, Speedup, Winners};
        matches!(self, Best | Change(_) | Ratio(_) | Gain(_) | Larger(_) | Shrinks | Speedup(_) | Winners { .. })
    }

    /// Whether it needs the performance database of its machine.
    pub(crate) fn wants_database(&self) -> bool {
        matches!(self, Measure::PredictionErrors(_) | Measure::PredictionTerms | Measure::DatabaseQuery)
    }

    /// Whether it is of runs whose fast memory is limited while they run.
    pub(crate) fn limits_runs(&self) -> bool {
        use Measure::{Loss, MostSaving, PredictionErrors, PredictionTerms, SavingBounds, Tuned};
        matches!(self, Loss | Tuned | MostSaving { .. } | PredictionErrors(_) | PredictionTerms | SavingBounds { .. })
    }

    /// Whether it runs nothing.
    pub(crate) fn runs_nothing(&self) -> bool {
        matches!(self, Measure::DatabaseQuery)
    }

    /// The value from which a difference has a direction, in plain numbers; `None` where it has none.
    pub(crate) fn even(&self) -> Option<f64> {
        match self {
            Measure::Gain(_) | Measure::Change(_) => Some(0.0),
            Measure::Speedup(_) | Measure::Best => Some(1.0),
            _ => None,
        }
    }

    /// Whether it ends in one number that is compared with the paper's, instead of a judgement of its own.
    pub(crate) fn is_numeric(&self) -> bool {
        use Measure::{Best, Change, DatabaseQuery, Gain, Loss, Mean, Most, Ratio, SavingBounds, Speedup};
        matches!(
            self,
            Mean(_)
                | Most(_)
                | Speedup(_)
                | Gain(_)
                | Best
                | Change(_)
                | Ratio(_)
                | Loss
                | DatabaseQuery
                | SavingBounds { .. }
        )
    }

    /// The least and the most that it can come to, in plain numbers: a range of the paper that covers these says nothing.
    pub(crate) fn natural_range(&self) -> (f64, f64) {
        use Figure::{
            CountedFastHits, Drift, FailedOverAttempts, FailedOverPromoted, FastHits, HotSet, SpeedOfAllFast, WalkShare,
        };
        match self {
            Measure::Mean(FailedOverAttempts | FastHits | CountedFastHits | Drift | WalkShare)
            | Measure::Tuned
            | Measure::MostSaving { .. } => (0.0, 1.0),
            Measure::Mean(SpeedOfAllFast) => (0.0, 1.0),
            Measure::Mean(FailedOverPromoted | HotSet) | Measure::Most(_) | Measure::Mean(_) => (0.0, f64::INFINITY),
            Measure::Speedup(_) | Measure::Ratio(_) | Measure::Best | Measure::DatabaseQuery => (0.0, f64::INFINITY),
            Measure::SavingBounds { .. } => (0.0, 1.0),
            Measure::Gain(_) | Measure::Change(_) | Measure::Loss => (-1.0, f64::INFINITY),
            _ => (f64::NEG_INFINITY, f64::INFINITY),
        }
    }
}
