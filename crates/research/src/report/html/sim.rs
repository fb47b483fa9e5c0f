//! The HTML reports of simulated runs, in the style of the report of a managed one.
//!
//! In: simulated reports and their figures. Out: HTML. Must not: let a text from outside become markup.

use terrace_sim::Report;
use terrace_sim::compare::{Cell, DRAW, Duel, Geomean, Summary};
use terrace_study::advice::{Advices, COLUMNS};

use super::{data_table, escape, fact_table, figure};
use crate::report::plots::Figure;
use crate::report::units;

/// The page of one run.
pub(crate) fn run_page(report: &Report, figures: &[Figure]) -> String {
    let ratio = |value: Option<f64>| value.map_or_else(|| "unknown".to_owned(), |value| format!("{value:.3}"));
    let facts = [
        ("Machine", report.machine.clone()),
        ("Scale", format!("1:{}", report.scale)),
        ("Seed", report.seed.to_string()),
        ("Footprint", units::bytes(report.footprint_bytes)),
        ("Fast memory", units::bytes(report.fast_bytes)),
        ("Run time", units::seconds(report.seconds)),
        ("Slowdown against all fast", ratio(report.slowdown_vs_all_fast)),
        ("Gain over all slow", ratio(report.gain_over_all_slow)),
        ("Accesses served by fast memory", units::percent(report.fast_hit_share)),
        ("Promoted pages", units::count(report.promoted_pages)),
        ("Demoted pages", units::count(report.demoted_pages)),
        ("Failed promotions", units::count(report.failed_promotions)),
        ("Management", format!("{} of CPU time", units::seconds(report.management_seconds))),
        ("Metadata", format!("{:.1} bytes a page", report.metadata_bytes_per_page)),
    ];
    let overhead = report.overhead_seconds.iter();
    let rows = overhead.map(|(kind, seconds)| vec![(*kind).to_owned(), units::seconds(*seconds)]).collect();
    let costs = data_table("What management cost, in CPU time", &["kind", "time"], rows);
    let body = fact_table("The run", &facts) + &figures.iter().map(figure).collect::<String>() + &costs;
    let headline = format!(
        "{} under {}: {} times as long as with everything fast.",
        report.workload,
        report.policy,
        ratio(report.slowdown_vs_all_fast)
    );
    page(&format!("{} under {}", report.workload, report.policy), &headline, &body)
}

/// The page of a comparison; `answer` is what was asked for, if more was than which policy is ahead.
pub(crate) fn comparison_page(cells: &[Cell], summary: &Summary, figures: &[Figure], answer: Option<&str>) -> String {
    let means = summary.geomean.iter().map(|mean| {
        let interval = format!("{:.3} to {:.3}", mean.low, mean.high);
        let best = if mean.bound { "a bound".to_owned() } else { mean.best.to_string() };
        vec![mean.policy.clone(), format!("{:.3}", mean.gain_over_all_slow), interval, best]
    });
    let means = data_table(
        "Geometric mean of the gain over all-slow memory",
        &["policy", "gain", "95 % interval", "settings it is best in"],
        means.collect(),
    );
    let names: Vec<&str> = summary.ranking().map(|mean| mean.policy.as_str()).collect();
    let duel = |policy: &str, against: &str| {
        let found = summary.duels.iter().find(|duel| duel.policy == policy && duel.against == against);
        found.map_or_else(String::new, |duel| format!("{}:{} {:.2}", duel.wins, duel.losses, duel.ratio))
    };
    let rows = names.iter().map(|policy| {
        let row = names.iter().map(|against| duel(policy, against));
        std::iter::once((*policy).to_owned()).chain(row).collect()
    });
    let headings: Vec<&str> = std::iter::once("").chain(names.iter().copied()).collect();
    let title = "Row against column: settings won and lost, and the mean ratio of gains";
    let duels = data_table(title, &headings, rows.collect());
    let rows = cells.iter().map(|cell| {
        vec![
            format!("{}, {}, {} fast, seed {}", cell.workload, cell.policy, cell.fast, cell.seed),
            units::seconds(cell.seconds),
            format!("{:.3}", cell.gain_over_all_slow),
            format!("{:.3}", cell.slowdown_vs_all_fast),
            units::percent(cell.fast_hit_share),
            units::count(cell.promoted_pages),
            units::count(cell.demoted_pages),
            units::count(cell.failed_promotions),
        ]
    });
    let headings = ["run", "time", "gain", "slowdown", "fast hits", "promoted", "demoted", "failed"];
    let cells_table = data_table("Every run", &headings, rows.collect());
    let figures: String = figures.iter().map(figure).collect();
    let (headline, ahead) = match answer {
        Some(answer) => (format!("{answer}."), format!("<p>{}</p>\n", escape(&headline(summary)))),
        None => (headline(summary), String::new()),
    };
    let machine = cells.first().map_or_else(String::new, |cell| format!("{} at scale 1:{}", cell.machine, cell.scale));
    page(&format!("comparison on {machine}"), &headline, &(ahead + &means + &figures + &duels + &cells_table))
}

/// Which policy is ahead, or which are level, and of how much that is.
fn headline(summary: &Summary) -> String {
    /// Names of level policies at most; the table has all.
    const MOST_NAMES: usize = 3;
    let ranking: Vec<&Geomean> = summary.ranking().collect();
    let Some((best, others)) = ranking.split_first() else { return "Nothing could be compared.".to_owned() };
    let times = format!("{:.2} times as fast as all-slow memory", best.gain_over_all_slow);
    let duel =
        |other: &Geomean| summary.duels.iter().find(|duel| duel.policy == best.policy && duel.against == other.policy);
    let Some(next) = others.first().and_then(|next| duel(next)) else { return format!("{}: {times}.", best.policy) };
    let level: Vec<&str> = std::iter::once(best.policy.as_str())
        .chain(others.iter().map_while(|other| duel(other).filter(|duel| is_level(duel)).map(|duel| &*duel.against)))
        .collect();
    if level.len() == 1 {
        return format!(
            "{} is ahead of {} by {:.1} % (95 % interval {:.1} % to {:.1} %): {times}.",
            best.policy,
            next.against,
            (next.ratio - 1.0) * 100.0,
            (next.low - 1.0) * 100.0,
            (next.high - 1.0) * 100.0
        );
    }
    let names = match level.as_slice() {
        [first @ .., last] if level.len() <= MOST_NAMES => format!("{} and {last}", first.join(", ")),
        _ => format!("{} and {} more", level[..MOST_NAMES].join(", "), level.len() - MOST_NAMES),
    };
    let why = if next.low <= 1.0 && next.high >= 1.0 && next.low < next.high {
        format!("the 95 % interval of the ratio of the first two, {:.3} to {:.3}, includes 1", next.low, next.high)
    } else {
        format!("the first two are {:.1} % apart, a draw within {:.0} %", (next.ratio - 1.0) * 100.0, DRAW * 100.0)
    };
    format!("{names} are level: {} is {times}; {why}.", best.policy)
}

/// Whether neither is shown to be ahead: their interval includes 1, or they are as close as runs of one policy are.
fn is_level(duel: &Duel) -> bool {
    (duel.low <= 1.0 && duel.high >= 1.0) || duel.ratio.ln().abs() <= DRAW.ln_1p()
}

/// The page of `terrace size advise`: the table as printed, and the curves.
pub(crate) fn advice_page(advice: &Advices, curves: &Figure) -> String {
    let rows = match advice.of.iter().any(|one| one.careful().is_some()) {
        true => advice.rows().into_iter().map(Vec::from).collect(),
        // Of nothing but "not known" the sentence above says it all.
        false => Vec::new(),
    };
    let table = data_table("Least fast memory by machine", &COLUMNS, rows);
    let body =
        format!("<p>{}.</p>\n<p>{}</p>\n{table}{}", escape(&advice.seen()), escape(&advice.meaning()), figure(curves));
    page("advice on fast memory", &advice.headline(), &body)
}

fn page(title: &str, headline: &str, body: &str) -> String {
    let footer = "Simulated on modelled hardware, not measured. All figures are of report.json beside this page.";
    super::page_of("simulated", title, headline, body, footer)
}

#[cfg(test)]
mod tests;
