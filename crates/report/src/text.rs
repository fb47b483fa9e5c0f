//! The report in plain text: sentences, the closing lines of a run, the progress line, and pictures of characters.
//!
//! In: a [`Report`] or one [`Point`] of it. Out: text; only the progress line is printed here. Must not: write to stdout, which
//! is the program's. Sentences here are also the answers in the page, so that both say the same.

mod picture;

use picture::{age_histogram, heat_map};
use terrace_common::say;
use terrace_core::governor::{Throttle, state_in_words};

use super::{AgeBin, HeatMap, IS_LEFT_ALONE, PageOuts, Point, Report, units};
use crate::terminal::Screen;

/// Rows of a heat map among the closing lines.
const HEAT_ROWS: usize = 24;
/// What is said where no idle times are known.
pub const NO_AGES: &str = "No idle times were recorded; only some policies and rounds of accessed bits keep them.";
/// The span that sentences about idle memory speak of, or the recorded one nearest to it.
const USUAL_SPAN_SECONDS: f64 = 10.0;
/// ECMA-48, "erase in line": what is left of a longer line before.
const ERASE_TO_END_OF_LINE: &str = "\x1b[K";

/// Whether the run only watched: it had no goal, or no slower tier to move to.
pub fn is_observation(report: &Report) -> bool {
    report.fast_goal == "none" || report.tiers.len() < 2
}

/// What matters of the run in one sentence: what was saved, what that cost the program, and whether the bound was kept.
pub fn headline(report: &Report) -> String {
    let footprint = mean_footprint(report);
    let wall = report.target.wall_seconds;
    if footprint == 0 {
        let end = if is_observation(report) { "and nothing moved" } else { "so none was saved" };
        return format!("No memory of the program was seen in {}, {end}", units::seconds(wall));
    }
    if is_observation(report) {
        let curve = working_set_curve(&report.age_histogram);
        let used = nearest(curve.into_iter()).map(|(span, bytes)| {
            let total = aged_bytes(&report.age_histogram);
            let share = share_told(bytes as f64, total as f64, LEAST_BYTES);
            format!(": {}{share} was touched within the last {}", units::bytes(bytes), units::seconds(span))
        });
        return format!(
            "Watched {} for {} and moved nothing{}",
            units::bytes(footprint),
            units::seconds(wall),
            used.unwrap_or_default(),
        );
    }
    let lost = format!("{}; {}", lost_shortly(report), bound_text(report));
    let saved = report.fast_bytes_saved_mean;
    if saved < WORTH_TELLING {
        let left_alone = report.notes.iter().filter(|note| note.contains(IS_LEFT_ALONE)).count();
        let why = match report.moved_pages.demoted {
            0 if report.moved_pages.failed > 0 => "no page was moved",
            0 if left_alone > 0 && left_alone >= report.target.processes as usize => {
                "it was left alone, as a note says"
            }
            // Two rounds at least tell what is idle, and of so few the notes say why.
            0 if (1..=2).contains(&report.manager.rounds) && wall >= FEW_ROUNDS_SECONDS => {
                "watching was too dear for more than two rounds, which do not tell what is idle"
            }
            0 => "no page was idle for long enough to be moved",
            _ => "what was moved came back, or takes as much where it lies",
        };
        return format!("Saved no fast memory: {why}; the program lost {lost}");
    }
    format!(
        "Saved {} of {} of fast memory on average{}; the program lost {lost}",
        units::bytes(saved),
        units::bytes(footprint),
        share_told(saved as f64, footprint as f64, LEAST_BYTES),
    )
}

/// So long a run has more than two rounds unless they are too dear: the policies want one in a second or so.
const FEW_ROUNDS_SECONDS: f64 = 15.0;
/// Memory below which no saving is worth a sentence.
const WORTH_TELLING: u64 = 1 << 20;
/// Of less memory, and of less time, a share says nothing: 5 ms are soon a tenth of 50.
const LEAST_BYTES: f64 = (16 << 20) as f64;
const LEAST_SECONDS: f64 = 1.0;

/// " (41 %)", or nothing where the whole is so small that a share of it says nothing.
fn share_told(part: f64, whole: f64, least: f64) -> String {
    if whole >= least { format!(" ({})", units::percent(part / whole)) } else { String::new() }
}

/// "about 0.8 % of its time (estimate)", or the time itself where that is short.
fn lost_shortly(report: &Report) -> String {
    let lost = report.manager.stall_seconds;
    match lost_share(report) {
        _ if lost < WORTH_SECONDS => "less than 1 ms (estimate)".to_owned(),
        Some(share) => format!("about {} of its time (estimate)", units::percent(share)),
        None => format!("about {} (estimate)", units::seconds(lost)),
    }
}

/// What the program lost as a share of its time, which every line and the page have; `None` where the run was too short for a share.
pub(super) fn lost_share(report: &Report) -> Option<f64> {
    let long = report.target.wall_seconds >= LEAST_SECONDS;
    long.then(|| report.target.share_of_time(report.manager.stall_seconds))
}

/// Whether the bound was kept, and what was done to keep it.
fn bound_text(report: &Report) -> String {
    let Some(bound) = report.max_slowdown else { return "no bound was set".to_owned() };
    let stopped = report.page_outs_seconds.get(Throttle::Refaults.state()).copied().unwrap_or(0.0);
    let stops = match stopped >= LEAST_SECONDS {
        true => format!(", page-outs stopped for {} because pages came back", units::seconds(stopped)),
        false => String::new(),
    };
    let lost = report.target.share_of_time(report.manager.stall_seconds);
    // No later time pays for what a program reads back as it ends, and nothing can be done about it.
    let bounded = report.target.share_of_time(report.manager.stall_seconds - report.cost.ending_seconds);
    let invested = report.invest.map_or(0.0, |share| (share - bound).max(0.0) * report.invested_seconds);
    match lost <= bound {
        false if bounded <= bound => {
            format!("the bound of {} was kept but for what it read back as it ended", units::percent(bound))
        }
        false if bounded <= bound + per_second_of_run(report, invested) => format!(
            "the bound of {} was kept but for the move at the start, which could cost {} for {}",
            units::percent(bound),
            units::percent(report.invest.unwrap_or(bound)),
            units::seconds(report.invested_seconds)
        ),
        true => format!("the bound of {} was kept{stops}", units::percent(bound)),
        // Of less than a second no share is shown, nor judged.
        false if report.target.wall_seconds < LEAST_SECONDS => "the run was too short for its bound".to_owned(),
        false => format!("the bound of {} was NOT kept{stops}", units::percent(bound)),
    }
}

/// What lay where on average.
pub fn memory_sentence(report: &Report) -> String {
    let fast = report.tiers.first().map_or(0, |tier| tier.mean_used_bytes);
    let footprint = mean_footprint(report);
    let mut sentence = format!(
        "On average {} of {} lay in fast memory ({}).",
        units::bytes(fast),
        units::bytes(footprint),
        units::percent(units::share_of(fast, footprint)),
    );
    let slow: Vec<String> = report.tiers.iter().skip(1).map(tier_text).collect();
    if !slow.is_empty() {
        sentence.push_str(&format!(" The rest: {}.", slow.join(", ")));
    }
    sentence
}

/// How much memory there was.
pub fn footprint_sentence(report: &Report) -> String {
    let (mean, most) = (mean_footprint(report), report.target.peak_footprint_bytes);
    format!("{} on average, {} at most.", units::bytes(mean), units::bytes(most.max(mean)))
}

/// Memory used within a span, in words, for the span nearest to `USUAL_SPAN_SECONDS`.
pub fn working_set_sentence(report: &Report) -> String {
    let total = aged_bytes(&report.age_histogram);
    let curve = working_set_curve(&report.age_histogram);
    match nearest(curve.iter().map(|(span, bytes)| (*span, *bytes))) {
        Some((span, bytes)) => format!(
            "{} of {} ({}) was touched within the last {}.",
            units::bytes(bytes),
            units::bytes(total),
            units::percent(units::share_of(bytes, total)),
            units::seconds(span),
        ),
        None => NO_AGES.to_owned(),
    }
}

/// How much idle memory is still in fast memory, and how much in slower tiers: what could still go, and what has gone.
pub fn ages_sentence(report: &Report) -> String {
    let bins = &report.age_histogram;
    let edges = bins.iter().map(|bin| (bin.from_seconds, ())).filter(|(from, ())| *from > 0.0);
    let Some((least, ())) = nearest(edges) else { return NO_AGES.to_owned() };
    let idle =
        |amount: fn(&AgeBin) -> u64| bins.iter().filter(|bin| bin.from_seconds >= least).map(amount).sum::<u64>();
    if bins.iter().all(|bin| bin.slow_bytes == 0) {
        let fast = match idle(|bin| bin.fast_bytes) {
            0 => return format!("At the end nothing had been idle for {} or longer.", units::seconds(least)),
            fast => units::bytes(fast),
        };
        return format!("At the end {fast} had been idle for {} or longer, all in fast memory.", units::seconds(least));
    }
    format!(
        "At the end {} in fast memory and {} in slower tiers had been idle for {} or longer.",
        units::bytes(idle(|bin| bin.fast_bytes)),
        units::bytes(idle(|bin| bin.slow_bytes)),
        units::seconds(least),
    )
}

/// The entry whose span is nearest to [`USUAL_SPAN_SECONDS`], as ratios go.
fn nearest<T>(entries: impl Iterator<Item = (f64, T)>) -> Option<(f64, T)> {
    let distance = |span: f64| (span / USUAL_SPAN_SECONDS).ln().abs();
    entries.min_by(|left, right| distance(left.0).total_cmp(&distance(right.0)))
}

/// Memory touched within the last T seconds: (T, bytes), T growing. The last bin of a histogram is open, so it has no T; the
/// memory in it is the difference to [`aged_bytes`].
pub fn working_set_curve(bins: &[AgeBin]) -> Vec<(f64, u64)> {
    let mut sum = 0;
    let mut curve: Vec<(f64, u64)> = Vec::with_capacity(bins.len());
    for bin in occupied(bins) {
        sum += bin.fast_bytes.saturating_add(bin.slow_bytes);
        if let Some(span) = bin.to_seconds
            && span.is_finite()
            && span > curve.last().map_or(0.0, |(last, _)| *last)
        {
            curve.push((span, sum));
        }
    }
    curve
}

/// The bins up to the last that holds anything: a short run cannot fill those of ten minutes.
pub fn occupied(bins: &[AgeBin]) -> &[AgeBin] {
    let last = bins.iter().rposition(|bin| bin.fast_bytes > 0 || bin.slow_bytes > 0);
    &bins[..last.map_or(0, |last| last + 1)]
}

/// All memory whose idle time is known.
pub fn aged_bytes(bins: &[AgeBin]) -> u64 {
    bins.iter().map(|bin| bin.fast_bytes.saturating_add(bin.slow_bytes)).sum()
}

/// "1 s to 2 s", "64 s and more".
pub fn age_label(bin: &AgeBin) -> String {
    match bin.to_seconds {
        Some(to) if bin.from_seconds <= 0.0 => format!("under {}", units::seconds(to)),
        Some(to) => {
            let (from, to) = (units::seconds(bin.from_seconds), units::seconds(to));
            // "1 to 2 s" where both have the same unit and are one number each.
            match (from.split_once(' '), to.split_once(' ')) {
                (Some((number, unit)), Some((_, other))) if unit == other => format!("{number} to {to}"),
                _ => format!("{from} to {to}"),
            }
        }
        None => format!("{} and more", units::seconds(bin.from_seconds)),
    }
}

/// Shows the state of the running program on stderr, in place of the line before.
pub fn print_progress(point: &Point, before: Option<&Point>) {
    // The last column stays free: a terminal that has filled it may wrap.
    let line = progress_line(point, before, Screen::of(std::io::stderr()).width.saturating_sub(1));
    say!("\r{line}{ERASE_TO_END_OF_LINE}");
}

/// Takes the progress line away.
pub fn end_progress() {
    say!("\r{ERASE_TO_END_OF_LINE}");
}

/// What a person sees when the run is over, what matters first; one who asked to observe sees the memory by age and by address, too.
pub fn closing_lines(report: &Report, observed: bool, verbose: bool, screen: &Screen) -> String {
    let mut text = wrapped("terrace", &headline(report), screen.width);
    if observed {
        text.push('\n');
        text.push_str("memory by idle time at the end\n");
        text.push_str(&age_histogram(&report.age_histogram, screen));
        text.push_str("\naccesses by address and time\n");
        text.push_str(&heat_map(&report.heat_map, report.target.wall_seconds, HEAT_ROWS, screen));
        text.push('\n');
    }
    let lines = if verbose { full(report) } else { brief(report) };
    text + &lines.into_iter().map(|(name, line)| wrapped(name, &line, screen.width)).collect::<String>()
}

/// The state of a running program on a screen of this many lines: figures, memory by idle time, and the heat map in what is left.
pub fn live_screen(
    point: &Point,
    before: Option<&Point>,
    ages: &[AgeBin],
    heat: &HeatMap,
    screen: &Screen,
    lines: usize,
) -> String {
    let mut text = progress_line(point, before, screen.width.saturating_sub(1));
    text += "\n\nmemory by idle time\n";
    text += &age_histogram(ages, screen);
    text += "\naccesses by address and time\n";
    // Beside the rows the map has a line for its times, one for its key, and one for each process; the cursor has the last.
    let processes: std::collections::BTreeSet<u32> = heat.rows.iter().map(|row| row.pid).collect();
    let taken = text.lines().count() + processes.len() + 3;
    text += &heat_map(heat, point.seconds, lines.saturating_sub(taken).max(1), screen);
    // On a screen too small for all of it the end is cut off: a terminal would scroll the figures away.
    text.lines().take(lines.saturating_sub(1)).map(|line| format!("{line}\n")).collect()
}

/// The run in at most ten lines; `--verbose` has the rest.
fn brief(report: &Report) -> Vec<(&'static str, String)> {
    let (target, moved) = (&report.target, &report.moved_pages);
    let mut lines = vec![(
        "program",
        format!(
            "{} after {}; peak {} in {}",
            exit_of(target),
            units::seconds(target.wall_seconds),
            units::bytes(target.peak_footprint_bytes),
            units::counted(u64::from(target.processes), "process", "processes"),
        ),
    )];
    if !is_observation(report) && moved.demoted > 0 {
        lines.push(("saved", saved_text(report)));
    }
    if !is_observation(report) && (moved.demoted > 0 || moved.failed > 0) {
        let failed =
            if moved.failed > 0 { format!("; {} not moved", units::count(moved.failed)) } else { String::new() };
        let left = left_text(report).map_or_else(String::new, |left| format!("; {left}"));
        lines.push((
            "moved",
            format!(
                "{} out ({}); {} touched after leaving, {} within 20 s{failed}{left}",
                units::counted(moved.demoted, "page", "pages"),
                units::pages(moved.demoted),
                units::count(report.refaults),
                units::count(report.ping_pong_pages),
            ),
        ));
    }
    lines.extend(inside_text(report).map(|text| ("inside", text)));
    lines.extend(files_text(report).map(|text| ("file cache", text)));
    if report.manager.stall_seconds >= WORTH_SECONDS {
        lines.push(("lost", lost_text(report)));
    }
    lines.push(("cost", cost_text(report, false)));
    lines.extend(proof_and_page_outs(report));
    // What changes nothing for the run is not announced.
    let notes = &report.notes[..report.notes.len().saturating_sub(report.background_notes)];
    if let Some(first) = notes.first() {
        let more = match notes.len() {
            1 => String::new(),
            count => format!(" (and {} more: --verbose)", count - 1),
        };
        lines.push(("note", first.clone() + &more));
    }
    lines
}

/// A loss below it is none.
const WORTH_SECONDS: f64 = 1e-3;

/// All that is known of the run that a line can say.
fn full(report: &Report) -> Vec<(&'static str, String)> {
    let target = &report.target;
    let mut lines = vec![(
        "program",
        format!(
            "{} after {} ({} CPU); peak {} resident, {} in all tiers; {}",
            exit_of(target),
            units::seconds(target.wall_seconds),
            units::seconds(target.cpu_seconds),
            units::bytes(target.peak_rss_bytes),
            units::bytes(target.peak_footprint_bytes),
            units::counted(u64::from(target.processes), "process", "processes"),
        ),
    )];
    if !is_observation(report) {
        lines.push(("saved", saved_text(report)));
        lines.push(("moved", moved_text(report)));
        lines.extend(units_text(report).map(|text| ("went", text)));
        if report.moved_pages.failed > 0 || report.incompressible_bytes_peak > 0 {
            lines.push(("not moved", failed_text(report)));
        }
    }
    lines.extend(inside_text(report).map(|text| ("inside", text)));
    lines.extend(files_text(report).map(|text| ("file cache", text)));
    lines.push(("lost", lost_text(report)));
    lines.push(("cost", cost_text(report, true)));
    lines.extend(proof_and_page_outs(report));
    lines.push(("tracker", tracker_text(report)));
    lines.extend(report.notes.iter().map(|note| ("note", note.clone())));
    lines
}

/// What proof in place has shown, and for how long page-outs were limited or stopped; nothing of what was not.
fn proof_and_page_outs(report: &Report) -> impl Iterator<Item = (&'static str, String)> {
    let page_outs = page_outs_text(report);
    let proof = report.proof.as_ref().map(|proof| ("proof", proof_text(proof)));
    proof.into_iter().chain((!page_outs.is_empty()).then_some(("page-outs", page_outs)))
}

/// For how long page-outs were limited to the bound, and for how long they were stopped, by state; empty if neither.
pub(super) fn page_outs_text(report: &Report) -> String {
    let states = report.page_outs_seconds.iter();
    let states = states.map(|(state, span)| format!("{} {}", units::seconds(*span), state_in_words(state)));
    states.collect::<Vec<_>>().join(", ")
}

/// How it ended, if it did: of what Terrace has not started no exit code is known.
pub(super) fn exit_of(target: &super::TargetReport) -> String {
    match target.exit_code {
        Some(code) => format!("exit code {code}"),
        None if target.ended => "ended".to_owned(),
        None => "still running".to_owned(),
    }
}

/// What proof in place has shown.
pub fn proof_text(proof: &terrace_linux::live_proof::ProofState) -> String {
    let signed = |share: f64| format!("{}{}", if share < 0.0 { "-" } else { "+" }, units::percent(share.abs()));
    let mut text = match (proof.gain, proof.gain_low.zip(proof.gain_high)) {
        (Some(gain), Some((low, high))) => {
            format!("speed {} by being managed ({} to {})", signed(gain), signed(low), signed(high))
        }
        (Some(gain), None) => format!("speed {} by being managed, too few windows for an interval", signed(gain)),
        (None, _) => "nothing compared yet".to_owned(),
    };
    text += &format!("; {} of {}", units::counted(proof.windows, "window", "windows"), proof.metric);
    if let Some(error) = &proof.error {
        text += &format!("; not measured at the end: {error}");
    }
    if proof.frozen {
        text += "; harm was shown, and management stopped";
    }
    text
}

/// The state of a running program in one line. `before` is an earlier point, a second or so ago, for the rates.
fn progress_line(point: &Point, before: Option<&Point>, width: usize) -> String {
    let mut parts = vec![
        format!("{:>7}", units::seconds(point.seconds.floor())),
        format!("fast {:>9}", units::bytes(point.fast_bytes)),
        format!("slow {:>9}", units::bytes(point.slow_bytes)),
        format!("saved {:>9}", units::bytes(point.saved_bytes)),
    ];
    if let Some(before) = before
        && point.seconds > before.seconds
    {
        let span = point.seconds - before.seconds;
        let a_second = |now: u64, then: u64| units::count((now.saturating_sub(then) as f64 / span).round() as u64);
        let moves = |point: &Point| point.demoted_pages.saturating_add(point.promoted_pages);
        parts.push(format!("moves {:>6}/s", a_second(moves(point), moves(before))));
        parts.push(format!("refaults {:>4}/s", a_second(point.refaults, before.refaults)));
        let cpu = (point.manager_cpu_seconds - before.manager_cpu_seconds).max(0.0) / span;
        parts.push(format!("cpu {:>5}", units::percent(cpu)));
    }
    if point.page_outs != PageOuts::Free {
        parts.push(point.page_outs.in_words().to_owned());
    }
    // On a narrow terminal the later figures go, whole: half a figure would be a wrong one.
    let mut line = String::new();
    for part in parts {
        let gap = if line.is_empty() { "" } else { "  " };
        if line.chars().count() + gap.len() + part.chars().count() > width {
            break;
        }
        line.push_str(gap);
        line.push_str(&part);
    }
    line
}

/// Memory of the program in all tiers, mean over time.
pub(super) fn mean_footprint(report: &Report) -> u64 {
    report.tiers.iter().map(|tier| tier.mean_used_bytes).sum()
}

/// Seconds as a share of the run.
pub(super) fn per_second_of_run(report: &Report, seconds: f64) -> f64 {
    if report.target.wall_seconds > 0.0 { seconds / report.target.wall_seconds } else { 0.0 }
}

fn tier_text(tier: &super::TierReport) -> String {
    match tier.mean_occupied_bytes {
        Some(occupied) => format!(
            "{} in {} (which occupied {} for it)",
            units::bytes(tier.mean_used_bytes),
            tier.name,
            units::bytes(occupied)
        ),
        None => format!("{} in {}", units::bytes(tier.mean_used_bytes), tier.name),
    }
}

fn saved_text(report: &Report) -> String {
    let mut line = format!(
        "{} at the end, {} at most",
        units::bytes(report.fast_bytes_saved_end),
        units::bytes(report.fast_bytes_saved_peak)
    );
    let tiers: Vec<String> = report.tiers.iter().map(tier_text).collect();
    if !tiers.is_empty() {
        line.push_str(&format!("; mean {}", tiers.join(", ")));
    }
    if let Some(parts) = swap_text(report) {
        line.push_str(&format!("; {parts}"));
    }
    if report.swapped_by_others_bytes_peak > 0 {
        line.push_str(&format!("; {}", others_text(report)));
    }
    line
}

/// What of the pages in swap was not simply stored by the tier, when most was saved; `None` where all of it was.
pub(super) fn swap_text(report: &Report) -> Option<String> {
    let swap = &report.swap_peak;
    let parts = [
        (swap.zeros_bytes, "pages of zeros, stored nowhere".to_owned()),
        (swap.zswap_stored_bytes, format!("in zswap, which took {} for it", units::bytes(swap.zswap_pool_bytes))),
        (swap.swap_cache_bytes, "still in memory (swap cache)".to_owned()),
    ];
    // A few pages are always on their way.
    let worth = parts.into_iter().filter(|(bytes, _)| *bytes > swap.swapped_bytes / 100);
    let parts: Vec<String> = worth.map(|(bytes, what)| format!("{} {what}", units::bytes(bytes))).collect();
    (!parts.is_empty()).then(|| format!("in swap at most {}, {}", units::bytes(swap.swapped_bytes), parts.join(", ")))
}

/// What is in swap and was not moved by Terrace.
pub(super) fn others_text(report: &Report) -> String {
    format!(
        "not counted: {} at the end, {} at most, put into swap by the program itself or the kernel",
        units::bytes(report.swapped_by_others_bytes_end),
        units::bytes(report.swapped_by_others_bytes_peak)
    )
}

fn moved_text(report: &Report) -> String {
    let moved = &report.moved_pages;
    let promotions = report.promotions_p98.map_or_else(String::new, |share| {
        format!("; in 98 of 100 minutes at most {} of the pages in use came back", units::percent(share))
    });
    format!(
        "{} out ({}), {} in ahead of use; {} touched after leaving, {} undone within 20 s{promotions}",
        units::counted(moved.demoted, "page", "pages"),
        units::pages(moved.demoted),
        units::count(moved.promoted),
        units::count(report.refaults),
        units::count(report.ping_pong_pages),
    )
}

/// What went as whole blocks, and what did not though it could have; `None` where nothing went to slower memory.
fn units_text(report: &Report) -> Option<String> {
    let by_unit = &report.moved_pages.by_unit;
    let (whole, single) = (by_unit.huge + by_unit.collapsed, by_unit.single);
    let mut text = match (whole, single) {
        (0, 0) => return None,
        (whole, 0) => format!("all {} as whole blocks of 2 MiB", units::pages(whole)),
        (0, single) => format!("all {} as single pages", units::pages(single)),
        (whole, single) => {
            format!("{} as whole blocks of 2 MiB, {} as single pages", units::pages(whole), units::pages(single))
        }
    };
    if by_unit.local > 0 {
        text += &format!(" ({} of them from the processor of the busy thread)", units::pages(by_unit.local));
    }
    let apart: Vec<String> =
        by_unit.apart.iter().map(|(why, pages)| format!("{}: {why}", units::pages(*pages))).collect();
    if !apart.is_empty() {
        text += &format!("; whole blocks that went as single pages: {}", apart.join(", "));
    }
    Some(text)
}

/// What left of the cgroup's file cache; `None` where it was not looked after, as the line at the start said.
pub(super) fn files_text(report: &Report) -> Option<String> {
    let files = report.file_cache.as_ref().filter(|files| files.seconds > 0.0)?;
    Some(format!(
        "{} left, {} is there at the end; {} read again; stalled {} of the time",
        units::bytes(files.left_bytes),
        units::bytes(files.at_end_bytes),
        units::counted(files.refaulted_pages, "page was", "pages were"),
        units::percent(files.stalled_seconds / files.seconds),
    ))
}

/// What was found inside of huge pages; `None` where there were none to speak of, or nothing was looked into.
pub(super) fn inside_text(report: &Report) -> Option<String> {
    let inside = &report.inside;
    if is_observation(report) {
        return observed_inside(report);
    }
    let whole: Vec<String> = inside.left_whole_blocks.iter().map(|(why, blocks)| format!("{blocks} {why}")).collect();
    let whole = if whole.is_empty() { None } else { Some(format!("left whole: {}", whole.join(", "))) };
    if inside.looked_into_blocks == 0 {
        return whole.map(|whole| format!("huge pages: none was looked into; {whole}"));
    }
    let mut text = if inside.even_blocks == inside.looked_into_blocks && inside.left_bytes < WORTH_TELLING {
        let blocks = units::counted(inside.looked_into_blocks, "block", "blocks");
        format!("huge pages: evenly used, left whole ({blocks} looked into)")
    } else {
        format!(
            "huge pages: {} of {} looked into were used by less than a tenth; {} of cold pieces left",
            units::count(inside.sparse_blocks),
            units::counted(inside.looked_into_blocks, "block", "blocks"),
            units::bytes(inside.left_bytes),
        )
    };
    text.extend(whole.map(|whole| format!("; {whole}")));
    Some(text)
}

/// The same where nothing moves: how much cannot be seen, or what was estimated of it.
fn observed_inside(report: &Report) -> Option<String> {
    let inside = &report.inside;
    match (inside.used_bytes, inside.used_bytes_low.zip(inside.used_bytes_high)) {
        (Some(used), Some((low, high))) => Some(format!(
            "huge pages: about {} of what lies in them is used ({} to {}), by {} that were split to look",
            units::bytes(used),
            units::bytes(low),
            units::bytes(high),
            units::counted(inside.looked_into_blocks, "block", "blocks"),
        )),
        _ if inside.huge_bytes < WORTH_TELLING => None,
        _ if inside.looked => Some(format!(
            "huge pages: {} lies in them; {} split to look, and not read for long enough to say what is used",
            units::bytes(inside.huge_bytes),
            units::counted(inside.split_blocks, "block was", "blocks were"),
        )),
        _ => Some(format!(
            "huge pages: {} lies in them, used or not as a whole; --inside splits some of them and estimates what is used",
            units::bytes(inside.huge_bytes),
        )),
    }
}

fn failed_text(report: &Report) -> String {
    let causes = report.moved_pages.failed_by_cause.iter();
    let mut causes: Vec<(&String, &u64)> = causes.collect();
    causes.sort_by_key(|(_, pages)| std::cmp::Reverse(**pages));
    let causes: Vec<String> =
        causes.iter().map(|(cause, pages)| format!("{cause} {}", units::count(**pages))).collect();
    let pages = units::counted(report.moved_pages.failed, "page", "pages");
    let mut line = if causes.is_empty() { pages } else { format!("{pages}: {}", causes.join(", ")) };
    if let Some(left) = left_text(report) {
        line.push_str(&format!("; {left}"));
    }
    line
}

/// What was left where it was; `None` where all compresses.
fn left_text(report: &Report) -> Option<String> {
    let left = report.incompressible_bytes_peak;
    (left > 0).then(|| format!("{} of memory that does not compress was left", units::bytes(left)))
}

fn cost_text(report: &Report, verbose: bool) -> String {
    let manager = &report.manager;
    let of_core = match report.target.wall_seconds >= LEAST_SECONDS {
        true => format!(" ({} of one core)", units::percent(per_second_of_run(report, manager.cpu_seconds))),
        false => String::new(),
    };
    let user = match verbose {
        true => format!(", {} of it in user mode,", units::seconds(manager.user_cpu_seconds)),
        false => String::new(),
    };
    let (cpu, memory) = (units::seconds(manager.cpu_seconds), units::bytes(manager.max_rss_bytes));
    format!("Terrace used {cpu} of CPU{of_core}{user} and {memory} of memory")
}

/// What the program lost, by kind.
fn lost_text(report: &Report) -> String {
    let (cost, lost) = (&report.cost, report.manager.stall_seconds);
    let share =
        lost_share(report).map_or_else(String::new, |share| format!(" ({} of its time)", units::percent(share)));
    let mut line =
        format!("about {}{share}: {} to being watched", units::seconds(lost), units::seconds(cost.watching_seconds));
    if !is_observation(report) {
        let (moving, refaults) = (units::seconds(cost.moving_seconds), units::seconds(cost.refault_seconds));
        line.push_str(&format!(", {moving} to moves, {refaults} to pages that came back{}", ending_text(report)));
    }
    line
}

/// What of it the program read back as it ended; empty if that is nothing to speak of.
pub(super) fn ending_text(report: &Report) -> String {
    let ending = report.cost.ending_seconds;
    match ending >= WORTH_SECONDS {
        true => format!(" ({} of it read back as the program ended)", units::seconds(ending)),
        false => String::new(),
    }
}

fn tracker_text(report: &Report) -> String {
    let tracker = format!(
        "{}, {} of {} each",
        report.tracker,
        units::counted(report.manager.rounds, "round", "rounds"),
        units::seconds(report.manager.round_milliseconds_mean / 1e3),
    );
    // Where nothing could move, which policy would have chosen says nothing.
    if is_observation(report) { tracker } else { format!("{tracker}; policy {}", report.policy) }
}

/// A name and its text, aligned; what does not fit goes to further lines under the text.
fn wrapped(name: &str, text: &str, width: usize) -> String {
    const INDENT: usize = 11;
    let room = width.saturating_sub(INDENT).max(30);
    let heads = std::iter::once(name).chain(std::iter::repeat(""));
    let lines = terrace_common::tell::wrapped(text, room);
    heads.zip(lines).map(|(head, line)| format!("{head:<INDENT$}{line}\n")).collect()
}

#[cfg(test)]
mod tests;
