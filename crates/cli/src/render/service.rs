//! What the daemon says, for a terminal.
//!
//! In: the daemon's views. Out: text. Must not: leave out what is wrong.

use std::fmt::Write;

use terrace_core::governor::{FREE, state_in_words};
use terrace_core::units::Bytes;
use terrace_daemon::view::{Bins, Class, Explanation, Happening, Proof, Status, Tuned};

use super::{Screen, listed};

/// `terrace status`.
pub(crate) fn status(status: &Status, screen: &Screen) -> String {
    let processes: u64 = status.classes.iter().map(|class| class.processes).sum();
    let mut text = format!(
        "terraced {} (pid {}), up {}: {}, {processes} processes in {} classes\n",
        status.version,
        status.pid,
        span(status.uptime_seconds),
        status.state,
        status.classes.len(),
    );
    let budget = &status.budget;
    let _ = writeln!(
        text,
        "Fast memory {} of {}; own CPU {} of {} of one core (watching {}); resident {}, of it page state {}",
        bytes(budget.fast_used_bytes),
        bytes(budget.fast_bytes),
        percent(status.own.cpu_share),
        percent(budget.cpu_share),
        percent(budget.cpu_overhead_share),
        bytes(status.own.resident_bytes),
        bytes(status.own.page_state_bytes),
    );
    let _ = writeln!(text, "New processes: {}", status.process_events);
    let mut table = screen.table(&["tier", "kind", "used", "capacity", "takes"]);
    for tier in &status.tiers {
        let takes = tier.occupied_bytes.map_or_else(|| "-".to_owned(), bytes);
        table.add_row([
            tier.name.clone(),
            tier.kind.clone(),
            bytes(tier.used_bytes),
            bytes(tier.capacity_bytes),
            takes,
        ]);
    }
    let _ = writeln!(text, "\n{table}\n\n{}", table_of_classes(status, screen));
    let rivals = status.rivals.iter().map(|rival| format!("{} ({}): {}", rival.name, rival.state, rival.effect));
    let all = not_managed(status).into_iter().chain(rivals).chain(status.notes.iter().cloned());
    text.push_str(&listed("Needs a look", all, screen.width));
    text
}

/// Why classes and processes are not managed: an entry a reason, however many it keeps out.
fn not_managed(status: &Status) -> Vec<String> {
    let troubled = status.classes.iter().filter(|class| matches!(class.state.as_str(), "failed" | "stopped"));
    let mut entries: Vec<String> =
        troubled.map(|class| format!("class {}: {}", class.name, class.reason.clone().unwrap_or_default())).collect();
    let mut groups: Vec<(&str, &str, Vec<String>)> = Vec::new();
    for one in &status.refused {
        let who = format!("pid {} ({})", one.pid, one.name);
        match groups.iter_mut().find(|(class, reason, _)| (*class, *reason) == (&one.class, &one.reason)) {
            Some((.., others)) => others.push(who),
            None => groups.push((&one.class, &one.reason, vec![who])),
        }
    }
    for (class, reason, who) in groups {
        let told = status.classes.iter().any(|one| one.name == class && one.reason.as_deref() == Some(reason));
        let reason = if told { "see above" } else { reason };
        let are = if who.len() == 1 { "is" } else { "are" };
        entries.push(format!("{} of class {class} {are} not managed: {reason}", who.join(", ")));
    }
    entries
}

/// `terrace classes`; `bins` are those of the class that was asked for.
pub(crate) fn classes(status: &Status, bins: Option<&Bins>, screen: &Screen) -> String {
    let mut text = format!("{}\n", table_of_classes(status, screen));
    for class in &status.classes {
        text.push_str(&details(class));
    }
    if let Some(bins) = bins {
        text.push_str(&histogram(bins, screen));
    }
    text
}

/// How the pages of a class spread over what its policy ranks them by.
fn histogram(bins: &Bins, screen: &Screen) -> String {
    if let Some(note) = &bins.note {
        return format!("\n{note}\n");
    }
    let (fast, slow) = if screen.unicode { ('\u{2588}', '\u{2591}') } else { ('#', '.') };
    let most = bins.bins.iter().map(|bin| bin.bytes).max().unwrap_or(0).max(1);
    // Beside the figures; whatever is there is seen.
    let room = screen.width.saturating_sub(36).clamp(10, 60) as u64;
    let bar = |amount: u64, sign: char| {
        let length = (amount * room / most).max(u64::from(amount > 0));
        std::iter::repeat_n(sign, length as usize).collect::<String>()
    };
    let mut text =
        format!("\n{}\n{:>8} {:>12} {:>12}  {fast} fast {slow} slower\n", bins.ranked_by, "from", "fast", "slower");
    for bin in &bins.bins {
        // Where the policy does not tell, all of it is drawn as fast memory is, and no column claims it.
        let (first, second) = match bin.fast_bytes {
            Some(fast) => (bytes(fast), bytes(bin.bytes - fast)),
            None => (bytes(bin.bytes), "in any tier".to_owned()),
        };
        let slower = bin.fast_bytes.map_or(0, |fast| bin.bytes - fast);
        let bars = format!("{}{}", bar(bin.bytes - slower, fast), bar(slower, slow));
        let _ = writeln!(text, "{:>8.2} {first:>12} {second:>12}  {bars}", bin.from);
    }
    let lines: Vec<String> = bins.thresholds.iter().map(|line| format!("{} at {:.2}", line.name, line.at)).collect();
    if !lines.is_empty() {
        let _ = writeln!(text, "the policy's lines: {}", lines.join(", "));
    }
    text
}

/// Columns from which on all figures of a class fit side by side.
const WIDE: usize = 124;

fn table_of_classes(status: &Status, screen: &Screen) -> String {
    if status.classes.is_empty() {
        return "No class is configured, so nothing is managed: `terrace config default` shows how to write one."
            .to_owned();
    }
    // On a narrow screen words would be broken to fit everything: what is left out stands in `terrace classes` all the same.
    let wide = screen.width >= WIDE;
    let head =
        ["class", "state", "goal", "procs", "fast", "slow", "granted", "hits", "stall", "in use", "floor", "back"];
    let columns = if wide { head.len() } else { head.len() - 3 };
    let mut table = screen.table(&head[..columns]);
    for class in &status.classes {
        let state = match limit(class) {
            Some(limit) => format!("{}, page-outs {limit}", class.state),
            None if class.short_of_cpu => format!("{}, short of CPU", class.state),
            None => class.state.clone(),
        };
        let row = [
            class.name.clone(),
            state,
            class.goal.clone(),
            class.processes.to_string(),
            bytes(class.fast_bytes),
            bytes(class.slow_bytes),
            bytes(class.granted_bytes),
            class.hit_share.map_or_else(|| "-".to_owned(), percent),
            percent(class.stall_share),
            bytes(class.active_bytes),
            bytes(class.floor_bytes),
            class.refaults.to_string(),
        ];
        table.add_row(&row[..columns]);
    }
    table.to_string()
}

/// Whether page-outs of a class are limited to the bound, or stopped and why, in words; `None` where nothing limits them.
pub(super) fn limit(class: &Class) -> Option<&str> {
    // A class that is not managed has no state of page-outs.
    let limited = !["", FREE].contains(&class.page_outs.as_str());
    limited.then(|| state_in_words(&class.page_outs))
}

fn details(class: &Class) -> String {
    let mut text = format!(
        "\n{}: policy {}, tracker {}, weight {}, floor {}",
        class.name,
        class.policy,
        class.tracker.as_deref().unwrap_or("none yet"),
        class.weight,
        bytes(class.floor_bytes)
    );
    if let Some(reason) = &class.reason {
        let _ = write!(text, "; {}: {}", class.state, reason.replace('\n', "\n  "));
    }
    let pages = |pages: u64| bytes(Bytes::of_pages(pages).get());
    let _ = write!(
        text,
        "\n  moved {} to slower and {} to faster memory; {} pages came back by themselves, {} demotions turned out wrong\n  {} walks, CPU {:.1} s, longest call that moved {:.1} ms",
        pages(class.demoted_pages),
        pages(class.promoted_pages),
        class.refaults,
        class.ping_pong_pages,
        class.rounds,
        class.cpu_seconds,
        class.longest_move_call_seconds * 1e3,
    );
    let counts = |map: &std::collections::BTreeMap<String, u64>| {
        map.iter().map(|(name, count)| format!("{name} {count}")).collect::<Vec<_>>().join(", ")
    };
    let mut failed = class.failed_pages.clone();
    // Of a dry run nothing failed: that is what would have moved.
    if let Some(would) = failed.remove(terrace_core::plan::Failure::DryRun.name().as_str()) {
        let _ = write!(text, "\n  dry run: {would} pages would have moved");
    }
    if !failed.is_empty() {
        let _ = write!(text, "\n  pages that could not be moved: {}", counts(&failed));
    }
    if !class.rejected_pages.is_empty() {
        let _ = write!(text, "\n  requests refused: {}", counts(&class.rejected_pages));
    }
    if let Some(contract) = &class.contract {
        let _ = write!(
            text,
            "\n  {}: {} lie where they should not now, {} at worst; {} pages moved against it by Terrace",
            contract.promise,
            bytes(contract.violating_bytes),
            bytes(contract.worst_bytes),
            contract.own_moves_against_it,
        );
    }
    text.extend(class.tuned.as_ref().map(tuned_line));
    text.extend(class.proof.as_ref().map(proof_line));
    text.push('\n');
    text
}

fn tuned_line(tuned: &Tuned) -> String {
    let (target, fast) = (percent(tuned.max_slowdown), percent(tuned.fast_share));
    let so_far = match (&tuned.waits, tuned.loss.zip(tuned.loss_p95)) {
        (Some(why), _) => format!("everything stays fast, {why}"),
        (None, Some((loss, p95))) => {
            let (loss, p95) = (percent(loss), percent(p95));
            format!("{loss} on average, {p95} in the worst of 20 windows, with {fast} of it fast")
        }
        (None, None) => format!("nothing observed yet, {fast} of it fast"),
    };
    format!("\n  target {target} slower: {so_far}")
}

fn proof_line(proof: &Proof) -> String {
    let gain = match (proof.gain, proof.interval) {
        (Some(gain), Some((low, high))) => {
            format!("speed {:+.2} %, between {:+.2} and {:+.2} %", gain * 100.0, low * 100.0, high * 100.0)
        }
        (Some(gain), None) => format!("speed {:+.2} %, too few windows for an interval", gain * 100.0),
        (None, _) => "nothing compared yet".to_owned(),
    };
    let error = proof.error.as_ref().map_or_else(String::new, |error| format!("; not measured: {error}"));
    format!("\n  proof ({} windows of {}): {gain}; {}{error}", proof.windows, proof.metric, proof.verdict)
}

/// `terrace explain`.
pub(crate) fn explanation(explanation: &Explanation) -> String {
    let class = explanation.class.as_deref().map_or_else(|| "no class".to_owned(), |class| format!("class {class}"));
    let mut text = format!("pid {} ({}): {class}\n  {}\n", explanation.pid, explanation.name, explanation.why);
    if !explanation.tiers.is_empty() {
        let tiers: Vec<String> =
            explanation.tiers.iter().map(|tier| format!("{} in {}", bytes(tier.bytes), tier.tier)).collect();
        let _ = writeln!(text, "  {}", tiers.join(", "));
    }
    if let Some(page) = &explanation.page {
        let _ = writeln!(text, "page {:#x}: {}", page.address, page.because);
        let mut facts = vec![format!("score {}", page.heat)];
        facts.extend(page.idle_seconds.map(|idle| format!("idle {idle:.1} s")));
        facts.extend(page.huge.then(|| "part of a huge page".to_owned()));
        facts.extend((page.ping_pong > 0).then(|| format!("came straight back {} times", page.ping_pong)));
        facts.extend(page.pinned.then(|| "may not move".to_owned()));
        let _ = writeln!(text, "  {}", facts.join(", "));
        for decision in &page.decisions {
            let _ = writeln!(text, "  {decision}");
        }
    }
    text
}

/// A line of `terrace history`.
pub(crate) fn happening(one: &Happening) -> String {
    let time = jiff::Timestamp::from_millisecond((one.time * 1e3) as i64)
        .map_or_else(|_| "?".to_owned(), |time| format!("{time:.0}"));
    format!("{time} {:<8} {:<12} {}", one.kind, one.class.as_deref().unwrap_or("-"), one.text.replace('\n', "\n    "))
}

pub(crate) fn bytes(bytes: u64) -> String {
    Bytes::new(bytes).to_string()
}

pub(crate) fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// A span as people say it.
pub(crate) fn span(seconds: f64) -> String {
    let seconds = seconds as u64;
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_daemon::view::{Bin, Refused, Threshold};

    #[test]
    fn the_histogram_of_a_class_shows_every_bin_and_where_its_bytes_lie() {
        let bin = |from: f64, bytes: u64, fast: u64| Bin { from, to: None, bytes, fast_bytes: Some(fast) };
        let bins = Bins {
            ranked_by: "use".to_owned(),
            bins: vec![bin(0.0, 60 << 20, 0), bin(0.5, 4096, 4096), bin(0.75, 30 << 20, 20 << 20)],
            thresholds: vec![Threshold { name: "cold".to_owned(), at: 0.25 }],
            ..Bins::default()
        };
        let text = histogram(&bins, &Screen { width: 96, unicode: false });
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[3], format!("    0.00          0 B     60.0 MiB  {}", ".".repeat(60)));
        assert_eq!(lines[4], "    0.50      4.0 KiB          0 B  #", "however little, it is seen");
        assert_eq!(lines[5], format!("    0.75     20.0 MiB     10.0 MiB  {}{}", "#".repeat(20), ".".repeat(10)));
        assert_eq!(lines[6], "the policy's lines: cold at 0.25");
    }

    #[test]
    fn a_reason_is_told_once_for_all_that_it_keeps_out() {
        let refused = |pid: u32, class: &str, reason: &str| Refused {
            pid,
            name: format!("p{pid}"),
            class: class.to_owned(),
            reason: reason.to_owned(),
        };
        let class = Class {
            name: "batch".to_owned(),
            state: "failed".to_owned(),
            reason: Some("no tracker works".to_owned()),
            ..Class::default()
        };
        let refused = vec![
            refused(7, "batch", "no tracker works"),
            refused(8, "batch", "no tracker works"),
            refused(9, "web", "a guest"),
        ];
        let status = Status { classes: vec![class], refused, ..Status::default() };
        assert_eq!(
            not_managed(&status),
            [
                "class batch: no tracker works",
                "pid 7 (p7), pid 8 (p8) of class batch are not managed: see above",
                "pid 9 (p9) of class web is not managed: a guest",
            ]
        );
    }

    #[test]
    fn no_word_of_a_class_is_broken_on_a_screen_of_a_hundred_columns() {
        let class = Class {
            name: "database".to_owned(),
            state: "running".to_owned(),
            goal: "never-slow".to_owned(),
            fast_bytes: 186 << 20,
            slow_bytes: 900 << 20,
            active_bytes: 48 << 20,
            granted_bytes: 192 << 20,
            hit_share: Some(1.0),
            ..Class::default()
        };
        let status = Status { classes: vec![class], ..Status::default() };
        for width in [100, 140] {
            let text = table_of_classes(&status, &Screen { width, unicode: true });
            for word in ["database", "running", "never-slow", "granted", "186.0 MiB", "900.0 MiB", "100.0 %"] {
                assert!(text.contains(word), "{word:?} is broken at {width} columns:\n{text}");
            }
            assert_eq!(text.contains("floor"), width == 140, "{text}");
            assert!(text.lines().all(|line| line.chars().count() <= width), "{text}");
        }
    }
}
