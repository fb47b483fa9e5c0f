//! The rows of Tuna's tables and figures, and what ours come to.
//!
//! In: runs. Out: value, text and verdict a row. Must not: run anything, or know a paper's figure but to compare with it.
//!
//! Ids that begin with `TU.` are the paper's, under TPP; `TU.flexmem.` is the same under FlexMem; `TU.p5.` is the tuner that
//! goes by what is observed, which the paper does not have: beside it stands what was wanted of it.

use anyhow::Context;
use terrace_sizing::Benchmark;
use terrace_sizing::microbench::FastDivisor;
use terrace_sizing::tuner::Interval;

use super::super::quantity::Ours;
use super::oracle::{self, Bounds, Run, most_saving};
use super::{APPS, App, Case, Kind, Runs};

/// Sizes of Table 2, in thousandths.
pub(super) const TABLE_2: [u32; 7] = [990, 980, 970, 960, 950, 880, 850];
/// Sizes below those, by which it is seen what a part of a run can do without, in thousandths.
const DEEP: [u32; 3] = [750, 500, 250];
/// Pond's splits that are tried, in thousandths.
const SPLITS: [u32; 8] = [10, 20, 30, 50, 80, 120, 200, 300];
/// Error of the oracle's prediction of untouched memory, points.
const POND_ERROR: u32 = 20;
const TAU: u32 = 50;
const TARGET: f64 = TAU as f64 / 1000.0;
const INTERVAL: u32 = 2500;
/// Of the goals, not of the paper.
const GOAL: &str = "goal of this project";

/// One figure.
pub(in super::super) struct Row {
    pub id: String,
    pub quantity: String,
    pub paper: String,
    pub source: &'static str,
    pub value: Option<f64>,
    what: What,
    pub cases: Vec<Case>,
}

enum What {
    /// Loss of one case.
    Loss,
    /// Losses at the sizes of Table 2, and how far the prediction is off.
    Errors { paper: [f64; 7], by: Prediction },
    /// Why the prediction differs, at 95 %: how much is slow, and what that costs.
    Terms,
    /// The largest saving within 5 %, with and without migration, of the cases under each policy.
    Motivation,
    /// Migrations and failures of the first against the second.
    More,
    /// Saving and loss of a tuned run, and its course.
    Tuned { saving: Option<f64>, loss: Option<f64>, tau: u32 },
    /// Mean and most saving of tuned runs.
    Savings { mean: f64 },
    /// What could be saved at best, by the runs at fixed sizes.
    Oracle,
    /// Migrations and saving with and without the tuner.
    Beside,
    /// Pond's split.
    Pond,
    /// Records, sizes, time to index, time to query.
    Database,
}

/// What predicts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Prediction {
    /// The database alone, as in the paper.
    Database,
    /// The database, corrected by the observation at the size before.
    Corrected,
    /// The forecast by pages watched with everything fast.
    Forecast,
}

/// All rows.
pub(in super::super) fn rows() -> Vec<Row> {
    let mut rows = of_policy("tpp", "TU.", "TPP");
    rows.extend(of_policy("flexmem", "TU.flexmem.", "FlexMem"));
    for app in [App::Bfs, App::Sssp] {
        let cases = SPLITS.map(|slow| Case { app, policy: "pond-static", kind: Kind::Pond(slow) }).to_vec();
        rows.push(Row {
            id: format!("TU.pond.{}", app.name().to_lowercase()),
            quantity: format!(
                "{}: what Pond's static split saves within 5 %, by an oracle, and with an error of its prediction",
                app.name()
            ),
            paper: "5 % saving at 5 % loss (reported by Pond)".to_owned(),
            source: "Tuna, abstract and section 6.2",
            value: Some(0.05),
            what: What::Pond,
            cases,
        });
    }
    rows.push(Row {
        id: "TU.db".to_owned(),
        quantity: "the database: records, sizes a record, time to index, time of a query".to_owned(),
        paper: "100,000 records of 100 sizes, indexed in less than 20 minutes, queried in 500 us".to_owned(),
        source: "Tuna, section 5",
        value: None,
        what: What::Database,
        cases: Vec::new(),
    });
    rows
}

fn of_policy(policy: &'static str, prefix: &str, name: &str) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    let mut add = |id: &str, quantity: String, paper: &str, source, value, what, cases| {
        rows.push(Row { id: format!("{prefix}{id}"), quantity, paper: paper.to_owned(), source, value, what, cases });
    };
    let fixed = |app, size| Case { app, policy, kind: Kind::Fixed(size) };
    let first_touch = |size| Case { app: App::Bfs, policy: "first-touch", kind: Kind::Fixed(size) };
    let tuned = |app, measured, tau, interval| Case { app, policy, kind: Kind::Tuned(measured, tau, interval) };
    const FIGURE_1: &str = "Tuna, figure 1 and section 2";
    if policy == "tpp" {
        add(
            "fig1.ft",
            "BFS at 89.5 % of fast memory, first touch: loss".to_owned(),
            "8.8 %",
            FIGURE_1,
            Some(0.088),
            What::Loss,
            vec![first_touch(895)],
        );
    }
    add(
        "fig1.tpp",
        format!("BFS at 89.5 % of fast memory, {name}: loss"),
        "4.4 %",
        FIGURE_1,
        Some(0.044),
        What::Loss,
        vec![fixed(App::Bfs, 895)],
    );
    let small = vec![fixed(App::Bfs, 266)];
    add(
        "fig1.small",
        format!("BFS at 26.6 % of fast memory, {name}: loss"),
        "30.2 %",
        FIGURE_1,
        Some(0.302),
        What::Loss,
        small,
    );
    let both = vec![fixed(App::Bfs, 266), fixed(App::Bfs, 895)];
    add(
        "fig1.more",
        format!("BFS, {name}: failed promotions and migrations at 26.6 % against 89.5 %"),
        "+21 % failures, +40 % migrations",
        FIGURE_1,
        None,
        What::More,
        both,
    );
    let mut sizes: Vec<Case> = TABLE_2.map(|size| fixed(App::Bfs, size)).to_vec();
    sizes.extend(TABLE_2.map(first_touch));
    add(
        "motiv",
        format!("BFS: most saving within 5 % loss, under {name} and by first touch"),
        "10.5 % and at most 2.5 %",
        "Tuna, section 1",
        Some(0.105),
        What::Motivation,
        sizes,
    );
    let table = [
        (App::Sssp, [0.006, 0.012, 0.017, 0.023, 0.029, 0.063, 0.080]),
        (App::Bfs, [0.005, 0.010, 0.016, 0.021, 0.026, 0.057, 0.073]),
        (App::XsBench, [0.004, 0.012, 0.018, 0.023, 0.029, 0.063, 0.081]),
        (App::PageRank, [0.002, 0.005, 0.008, 0.011, 0.029, 0.064, 0.079]),
        (App::Btree, [0.004, 0.009, 0.014, 0.019, 0.025, 0.058, 0.068]),
    ];
    for (app, paper) in table {
        let list = paper.map(|error| format!("{:.1}", error * 100.0)).join(", ");
        let cases = TABLE_2.map(|size| fixed(app, size)).to_vec();
        let id = app.name().to_lowercase();
        let quantity =
            format!("{}: prediction error at 99, 98, 97, 96, 95, 88, 85 % of fast memory, {name}", app.name());
        let what = What::Errors { paper, by: Prediction::Database };
        add(&format!("t2.{id}"), quantity.clone(), &format!("{list} %"), "Tuna, table 2", None, what, cases.clone());
        let ours = [
            ("p5.t2", "corrected by what was observed at the size before", Prediction::Corrected),
            ("forecast", "forecast from a run with everything fast whose pages were watched", Prediction::Forecast),
        ];
        for (prefix, how, by) in ours {
            let mut cases = cases.clone();
            if by == Prediction::Forecast {
                cases.push(Case { app, policy, kind: Kind::Watched });
            }
            let what = What::Errors { paper: [0.10; 7], by };
            add(
                &format!("{prefix}.{id}"),
                format!("{quantity}, {how}"),
                "below 10 % everywhere",
                GOAL,
                None,
                what,
                cases,
            );
        }
    }
    for app in APPS {
        add(
            &format!("terms.{}", app.name().to_lowercase()),
            format!(
                "{}: why the prediction differs at 95 %, {name}: accesses to slow memory, and the loss for each hundredth of them",
                app.name()
            ),
            "accesses spread evenly over pages, which overlap as much as they can",
            "Tuna, section 3.2, limitation",
            None,
            What::Terms,
            vec![fixed(app, 950)],
        );
    }
    let figures = [
        (App::XsBench, "fig3", 0.018, None),
        (App::Bfs, "fig4", 0.02, None),
        (App::PageRank, "fig5", 0.046, None),
        (App::Sssp, "fig6", 0.047, Some(0.09)),
        (App::Btree, "fig7", 0.046, None),
    ];
    for (app, figure, loss, saving) in figures {
        let most = if app == App::Btree { ", saves up to 16 %" } else { "" };
        let paper = format!("loss {:.1} %{most}", loss * 100.0);
        let what = What::Tuned { saving, loss: Some(loss), tau: TAU };
        let quantity = format!("{}, tuned as in the paper, target 5 %, {name}: saving and loss", app.name());
        add(
            figure,
            quantity,
            &paper,
            "Tuna, figures 3 to 7 and section 6.2",
            Some(loss),
            what,
            vec![tuned(app, false, TAU, INTERVAL)],
        );
        let what = What::Tuned { saving: Some(0.20), loss: None, tau: TAU };
        let quantity = format!("{}, tuned by what is observed, target 5 %, {name}: saving and loss", app.name());
        add(
            &format!("p5.{figure}"),
            quantity,
            "20 % and more within 5 %",
            GOAL,
            Some(0.20),
            what,
            vec![tuned(app, true, TAU, INTERVAL)],
        );
    }
    let all = |measured| APPS.map(|app| tuned(app, measured, TAU, INTERVAL)).to_vec();
    add(
        "save",
        format!(
            "five programs, tuned as in the paper, target 5 %, {name}: mean and most saving, programs within the target"
        ),
        "8.5 % on average, up to 16 %, all within",
        "Tuna, abstract and section 6.2",
        Some(0.085),
        What::Savings { mean: 0.085 },
        all(false),
    );
    add(
        "p5.save",
        format!(
            "five programs, tuned by what is observed, target 5 %, {name}: mean and most saving, programs within the target"
        ),
        "20 % on average, all within",
        GOAL,
        Some(0.20),
        What::Savings { mean: 0.20 },
        all(true),
    );
    let sizes = TABLE_2.into_iter().chain(DEEP);
    add(
        "oracle",
        format!(
            "five programs, target 5 %, {name}: what is not touched yet, and the most that one size saves within it in 95 of 100 parts, that one size saves within it on average, the same where what is not touched yet counts, and a size for each fortieth of the work, known beforehand"
        ),
        "20 % on average, all within",
        GOAL,
        Some(0.20),
        What::Oracle,
        sizes.flat_map(|size| APPS.map(|app| fixed(app, size))).collect(),
    );
    add(
        "fig8",
        format!("BFS, {name}, with the tuner against without: migrations, saving"),
        "migrations follow the size of fast memory (no number)",
        "Tuna, figure 8",
        None,
        What::Beside,
        vec![tuned(App::Bfs, false, TAU, INTERVAL)],
    );
    for (tau, saving, loss) in [(50, 0.09, 0.046), (100, 0.18, 0.096), (150, 0.27, 0.151)] {
        let paper = format!("saves {:.0} %, loss {:.1} %", saving * 100.0, loss * 100.0);
        for (measured, id, how) in [(false, "t3", "as in the paper"), (true, "p5.t3", "by what is observed")] {
            let quantity = format!("SSSP, tuned {how}, target {} %, {name}: saving and loss", tau / 10);
            let what = What::Tuned { saving: Some(saving), loss: Some(loss), tau };
            add(
                &format!("{id}.{}", tau / 10),
                quantity,
                &paper,
                "Tuna, table 3",
                Some(saving),
                what,
                vec![tuned(App::Sssp, measured, tau, INTERVAL)],
            );
        }
    }
    for (interval, id, paper, saving, loss) in [
        (500, "int.0.5", "saves up to 25 %, loss 17 %", Some(0.25), Some(0.17)),
        (1000, "int.1", "between those of 0.5 s and 2.5 s (no number)", None, None),
        (5000, "int.5", "saves up to 2 %, loss 3 %", Some(0.02), Some(0.03)),
    ] {
        let quantity =
            format!("SSSP, tuned as in the paper every {} s, {name}: saving and loss", f64::from(interval) / 1000.0);
        let what = What::Tuned { saving, loss, tau: TAU };
        add(id, quantity, paper, "Tuna, section 6.3", saving, what, vec![tuned(App::Sssp, false, TAU, interval)]);
    }
    rows
}

impl Row {
    /// Value, text and verdict.
    pub(in super::super) fn ours(&self, runs: &Runs) -> anyhow::Result<Ours> {
        match &self.what {
            What::Loss => {
                let loss = runs.loss(self.cases[0])?;
                Ok(Ours { value: Some(loss), detail: None, text: percent(loss), verdict: ratio(loss, self.value) })
            }
            What::Errors { paper, by } => errors(&self.cases, paper, *by, runs),
            What::Terms => terms(self.cases[0], runs),
            What::Motivation => motivation(&self.cases, runs),
            What::More => {
                let (small, large) = (runs.of(self.cases[0])?, runs.of(self.cases[1])?);
                let more = |a: u64, b: u64| {
                    if b == 0 {
                        format!("{a} against none")
                    } else {
                        format!("{:+.0} %", (a as f64 / b as f64 - 1.0) * 100.0)
                    }
                };
                let failures = more(small.failed_promotions, large.failed_promotions);
                let text =
                    format!("{failures} failures, {} migrations", more(small.migrated_pages, large.migrated_pages));
                let both =
                    small.failed_promotions > large.failed_promotions && small.migrated_pages > large.migrated_pages;
                Ok(Ours {
                    detail: None,
                    value: None,
                    text,
                    verdict: if both { "same direction" } else { "other direction" }.to_owned(),
                })
            }
            What::Tuned { saving, loss, tau } => tuned(self.cases[0], *saving, *loss, *tau, runs),
            What::Savings { mean } => savings(&self.cases, *mean, runs),
            What::Oracle => at_best(&self.cases, runs),
            What::Beside => {
                let (with, without) = (runs.of(self.cases[0])?, runs.of(Case { kind: Kind::Full, ..self.cases[0] })?);
                let saved = with.summary.as_ref().map_or(0.0, |summary| summary.saved_share_mean);
                let text = format!(
                    "{} pages migrated with, {} without; {} saved",
                    with.migrated_pages,
                    without.migrated_pages,
                    percent(saved)
                );
                Ok(Ours { value: Some(saved), detail: None, text, verdict: "the paper states no number".to_owned() })
            }
            What::Pond => pond(&self.cases, runs),
            What::Database => database(runs),
        }
    }

    /// Course of the tuned runs: figures 3 to 8 over time.
    pub(in super::super) fn courses<'a>(&self, runs: &'a Runs) -> Vec<(String, &'a [Interval])> {
        let of = |case: &Case| runs.of(*case).ok().map(|outcome| (case.to_string(), outcome.intervals.as_slice()));
        self.cases.iter().filter_map(of).filter(|(_, intervals)| !intervals.is_empty()).collect()
    }
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

fn ratio(ours: f64, paper: Option<f64>) -> String {
    paper.map_or_else(
        || "the paper states no number".to_owned(),
        |paper| format!("ratio ours/paper {:.2}", ours / paper),
    )
}

fn errors(cases: &[Case], paper: &[f64; 7], by: Prediction, runs: &Runs) -> anyhow::Result<Ours> {
    let full = runs.of(Case { kind: Kind::Full, ..cases[0] })?;
    let Some(vector) = full.vector else { anyhow::bail!("the run with everything fast was too short for a profile") };
    let answer = runs.index.query(&vector, 1)?;
    let (mut errors, mut details, mut points) = (Vec::new(), Vec::new(), Vec::new());
    // A loss below the spread of seeds has no error that says anything.
    const NO_LOSS: f64 = 0.001;
    let mut correction = 1.0;
    for case in cases {
        let Kind::Fixed(size) = case.kind else { continue };
        let share = f64::from(size) / 1000.0;
        let (seen, uncorrected) = (runs.loss(*case)?, answer.curve.loss(share));
        let predicted = match by {
            Prediction::Database => uncorrected,
            Prediction::Corrected => uncorrected * correction,
            Prediction::Forecast => {
                let watched = &runs.of(Case { kind: Kind::Watched, ..*case })?.forecast;
                let of_size = watched.iter().find(|(of, _)| (of - share).abs() < 1e-9);
                of_size.context("the run whose pages were watched has no such size")?.1
            }
        };
        if seen.abs() > NO_LOSS {
            errors.push((predicted - seen).abs() / seen.abs());
        } else {
            errors.push(f64::NAN);
        }
        details.push(format!("{}/{}", percent(predicted), percent(seen)));
        points.push(format!("{:.1}", (predicted - seen).abs() * 100.0));
        if seen > 0.0 && uncorrected > 0.0 {
            correction = seen / uncorrected;
        }
    }
    let shown =
        errors.iter().map(|error| if error.is_nan() { "-".to_owned() } else { format!("{:.0}", error * 100.0) });
    let shown: Vec<String> = shown.collect();
    let below = errors.iter().filter(|error| **error < 0.10).count();
    let no_worse = errors.iter().zip(paper).filter(|(error, paper)| error <= paper).count();
    let most = errors.iter().copied().filter(|error| error.is_finite()).fold(0.0, f64::max);
    let covered = if answer.uncovered.is_none() { "" } else { "; the database does not cover the profile" };
    Ok(Ours {
        detail: None,
        value: Some(most),
        text: format!(
            "{} % (predicted/run {}; differences {} points{covered})",
            shown.join(", "),
            details.join(", "),
            points.join(", ")
        ),
        verdict: format!("below 10 % at {below} of {}, no more than the paper's at {no_worse}", errors.len()),
    })
}

/// The prediction as a product: the share of accesses that slow memory serves, and the loss for each hundredth of it.
fn terms(case: Case, runs: &Runs) -> anyhow::Result<Ours> {
    let Kind::Fixed(size) = case.kind else { anyhow::bail!("{case}: is not of a fixed size") };
    let share = f64::from(size) / 1000.0;
    let (full, run) = (runs.of(Case { kind: Kind::Full, ..case })?, runs.of(case)?);
    let Some(vector) = full.vector else { anyhow::bail!("the run with everything fast was too short for a profile") };
    let answer = runs.index.query(&vector, 1)?;
    let nearest = &runs.index.database().vectors()[answer.neighbours[0].record];
    let benchmark = Benchmark::new(nearest, share, FastDivisor::default())?;
    let predicted = [benchmark.accesses_in_slow() as f64 / benchmark.accesses() as f64, answer.curve.loss(share)];
    // What is slow with everything fast is there in both.
    let seen = [run.slow_share - full.slow_share, runs.loss(case)?];
    let each = |[slow, loss]: [f64; 2]| if slow > 0.0 { loss / slow } else { f64::NAN };
    let managing = (run.management_seconds - full.management_seconds) / full.seconds / 24.0;
    let text = format!(
        "predicted {} slow at {:.2} % each, {}; run {} slow at {:.2} % each, {}; of that management {} of the threads' time",
        percent(predicted[0]),
        each(predicted),
        percent(predicted[1]),
        percent(seen[0]),
        each(seen),
        percent(seen[1]),
        percent(managing)
    );
    let verdict = format!(
        "slow accesses predicted/run {:.2}, cost of each {:.2}",
        predicted[0] / seen[0],
        each(predicted) / each(seen)
    );
    Ok(Ours { detail: None, value: Some(predicted[0] / seen[0]), text, verdict })
}

fn motivation(cases: &[Case], runs: &Runs) -> anyhow::Result<Ours> {
    let saving_of = |policies: &dyn Fn(&str) -> bool| -> anyhow::Result<f64> {
        let mut points = Vec::new();
        for case in cases.iter().filter(|case| policies(case.policy)) {
            let Kind::Fixed(size) = case.kind else { continue };
            points.push((1.0 - f64::from(size) / 1000.0, runs.loss(*case)?));
        }
        Ok(most_saving(&points, TARGET))
    };
    let (with, without) =
        (saving_of(&|policy| policy != "first-touch")?, saving_of(&|policy| policy == "first-touch")?);
    let verdict = match with > without {
        true => format!("same direction, {}", ratio(with, Some(0.105))),
        false => "other direction".to_owned(),
    };
    Ok(Ours {
        detail: None,
        value: Some(with),
        text: format!("{} and {} (sizes down to 85 %)", percent(with), percent(without)),
        verdict,
    })
}

fn tuned(case: Case, saving: Option<f64>, loss: Option<f64>, tau: u32, runs: &Runs) -> anyhow::Result<Ours> {
    let outcome = runs.of(case)?;
    let Some(summary) = &outcome.summary else { anyhow::bail!("{case}: was not tuned") };
    let seen = runs.loss(case)?;
    let text = format!(
        "saves {} (up to {}), loss {}; {} decisions",
        percent(summary.saved_share_mean),
        percent(summary.saved_share_max),
        percent(seen),
        outcome.intervals.len()
    );
    let target = f64::from(tau) / 1000.0;
    let mut verdict = if seen <= target { "within the target" } else { "target missed" }.to_owned();
    if let Some(saving) = saving {
        verdict += &format!(", saving ours/paper {:.2}", summary.saved_share_mean / saving);
    }
    if let Some(loss) = loss {
        verdict += &format!(", loss ours/paper {:.2}", seen / loss);
    }
    Ok(Ours {
        detail: None,
        value: Some(if loss.is_some() && saving.is_none() { seen } else { summary.saved_share_mean }),
        text,
        verdict,
    })
}

fn savings(cases: &[Case], wanted: f64, runs: &Runs) -> anyhow::Result<Ours> {
    let (mut mean, mut most, mut within) = (0.0, 0.0f64, 0);
    for case in cases {
        let outcome = runs.of(*case)?;
        let Some(summary) = &outcome.summary else { anyhow::bail!("{case}: was not tuned") };
        mean += summary.saved_share_mean / cases.len() as f64;
        most = most.max(summary.saved_share_max);
        within += u32::from(runs.loss(*case)? <= TARGET);
    }
    let met = mean >= wanted && within as usize == cases.len();
    Ok(Ours {
        detail: None,
        value: Some(mean),
        text: format!("{} on average, up to {}, {within} of {} within", percent(mean), percent(most), cases.len()),
        verdict: format!("{}, ratio ours/paper {:.2}", if met { "met" } else { "not met" }, mean / wanted),
    })
}

/// What could be saved at best: see [`oracle`].
fn at_best(cases: &[Case], runs: &Runs) -> anyhow::Result<Ours> {
    let run =
        |case: Case| runs.of(case).map(|outcome| Run { seconds: outcome.full_size_seconds, course: &outcome.course });
    let (mut list, mut mean, mut detail) = (Vec::new(), [0.0; 5], serde_json::Map::new());
    for app in APPS {
        let of_app: Vec<Case> = cases.iter().copied().filter(|case| case.app == app).collect();
        let full_case = Case { kind: Kind::Full, ..of_app[0] };
        let full = run(full_case)?;
        let (mut fixed, mut parts) = (Vec::new(), serde_json::Map::new());
        for &case in &of_app {
            let Kind::Fixed(size) = case.kind else { continue };
            let run = run(case)?;
            let losses = oracle::part_losses(&full, &run).unwrap_or_default();
            let rounded: Vec<f64> = losses.iter().map(|loss| (loss * 1e4).round() / 1e4).collect();
            parts.insert((f64::from(size) / 1000.0).to_string(), rounded.into());
            fixed.push((f64::from(size) / 1000.0, run));
        }
        let Some(bounds) = oracle::bounds(runs.of(full_case)?.peak_pages, &full, &fixed, TARGET) else {
            anyhow::bail!("{full_case}: the run is too short to be cut into parts");
        };
        let Bounds { untouched, steady, one_size, and_untouched, each_part } = bounds;
        let all = [untouched, steady, one_size, and_untouched, each_part];
        (0..5).for_each(|place| mean[place] += all[place] / APPS.len() as f64);
        list.push(format!("{} {}", app.name(), all.map(percent).join(", ")));
        detail.insert(app.name().to_owned(), serde_json::json!({ "bounds": all, "loss_by_part": parts }));
    }
    let verdict = match mean {
        [_, steady, ..] if steady >= 0.20 => "20 % are within reach of one size, steadily",
        [_, _, one, ..] if one >= 0.20 => "20 % are within reach of one size",
        [.., untouched, _] if untouched >= 0.20 => {
            "20 % are within reach of one size that follows the program's growth"
        }
        [.., parts] if parts >= 0.20 => "20 % are beyond one size, and below the bound of changing ones",
        _ => "20 % are beyond every choice of sizes",
    };
    Ok(Ours {
        detail: Some(detail.into()),
        value: Some(mean[4]),
        text: format!("{} on average ({})", mean.map(percent).join(", "), list.join("; ")),
        verdict: verdict.to_owned(),
    })
}

fn pond(cases: &[Case], runs: &Runs) -> anyhow::Result<Ours> {
    let mut points = Vec::new();
    for case in cases {
        let Kind::Pond(slow) = case.kind else { continue };
        points.push((f64::from(slow) / 1000.0, runs.loss(*case)?));
    }
    let oracle = most_saving(&points, TARGET);
    // A predictor that is wrong by so much either way must leave as much as it may be wrong by, to stay within.
    let careful = oracle * (1.0 - f64::from(POND_ERROR) / 100.0);
    let list: Vec<String> =
        points.iter().map(|(slow, loss)| format!("{}: {}", percent(*slow), percent(*loss))).collect();
    Ok(Ours {
        detail: None,
        value: Some(oracle),
        text: format!(
            "{} by an oracle, {} with a prediction that may be {POND_ERROR} % off (loss by split {})",
            percent(oracle),
            percent(careful),
            list.join(", ")
        ),
        verdict: ratio(oracle, Some(0.05)),
    })
}

fn database(runs: &Runs) -> anyhow::Result<Ours> {
    let database = runs.index.database();
    let began = std::time::Instant::now();
    let index = terrace_sizing::Index::new(database.clone()).map_err(|error| anyhow::anyhow!(error))?;
    let indexed = began.elapsed();
    let vectors = &database.vectors()[..database.len().min(1000)];
    let began = std::time::Instant::now();
    for vector in vectors {
        std::hint::black_box(index.neighbours(vector, 1));
    }
    let query = began.elapsed().as_secs_f64() * 1e6 / vectors.len() as f64;
    Ok(Ours {
        detail: None,
        value: Some(query),
        text: format!(
            "{} records of 100 sizes, indexed in {:.1} ms, queried in {query:.1} us (measured here; docs/performance.md has 100,000)",
            database.len(),
            indexed.as_secs_f64() * 1e3
        ),
        verdict: "exact where the paper's is approximate".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn ids_are_unique_and_every_table_and_figure_has_one() {
        let rows = rows();
        let ids: BTreeSet<&str> = rows.iter().map(|row| row.id.as_str()).collect();
        assert_eq!(ids.len(), rows.len());
        for id in [
            "TU.fig1.ft",
            "TU.fig1.tpp",
            "TU.fig1.small",
            "TU.motiv",
            "TU.t2.sssp",
            "TU.t2.btree",
            "TU.fig3",
            "TU.fig7",
            "TU.fig8",
            "TU.save",
            "TU.t3.15",
            "TU.int.0.5",
            "TU.int.5",
            "TU.db",
            "TU.pond.bfs",
            "TU.p5.save",
            "TU.flexmem.save",
            "TU.forecast.sssp",
        ] {
            assert!(ids.contains(id), "{id}");
        }
    }
}
