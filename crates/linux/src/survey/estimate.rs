//! What Terrace would give back of a row, and what limits it.
//!
//! In: what is known of the samples of its processes, its processor time, what its cgroup allows. Out: an [`Estimate`]. Must not: read a file, or promise what
//! no sample showed.
//!
//! The rule is the manager's in a steady state: pages leave that are cold by the policy `age`; where those that come back cost more than the bound, the
//! back-off of the governor asks for twice the idle time, and so on. A page that came back cost its refault and the page-out that was in vain.

use terrace_core::units::Bytes;

use super::ages::{Figures, SHOWN, THRESHOLDS};
use super::contents::Contents;

/// The slowdown that is kept, the default of `--max-slowdown`.
pub const MAX_SLOWDOWN: f64 = 0.02;
/// What a page costs that came back, in seconds: on the machines of docs/performance.md a refault from zram takes 5 to 20 µs, and the page-out in vain
/// as much. It is measured where Terrace manages; here nothing is moved, so that it is assumed.
const RETURN_SECONDS: f64 = 30e-6;

/// What is known of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Part {
    /// Pages of the ranges that may be managed.
    pub(crate) eligible: u64,
    /// What its sample shows.
    pub(crate) figures: Figures,
    /// What its cold pages hold, if any were looked into.
    pub(crate) contents: Option<Contents>,
    /// Processors that it keeps busy.
    pub(crate) cores: f64,
}

impl Part {
    /// Pages of the whole process for one of the sample.
    fn factor(&self) -> f64 {
        if self.figures.present == 0 { 0.0 } else { self.eligible as f64 / self.figures.present as f64 }
    }
}

/// What a row's cgroups say of its memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Memory that must stay.
    pub(crate) kept: Bytes,
    /// Swap that it may still take; `None` without a limit.
    pub(crate) swap_left: Option<Bytes>,
}

/// What comes of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Estimate {
    pub(crate) watched: u64,
    pub(crate) sampled_share: f64,
    pub(crate) idle: [Option<u64>; SHOWN.len()],
    pub(crate) compressed: Option<f64>,
    pub(crate) filled: Option<f64>,
    pub(crate) gives_back: Option<u64>,
    pub(crate) idle_wanted: Option<f64>,
    pub(crate) came_back: f64,
    pub(crate) huge_in_use: u64,
    pub(crate) limited_by: Option<String>,
}

/// The estimate of a row. `shown` says for how long the machine was watched.
pub(crate) fn estimate(parts: &[Part], limits: &Limits, watched_seconds: f64) -> Estimate {
    let mut found = Estimate::default();
    let page = Bytes::of_pages(1).get() as f64;
    let sum = |of: &dyn Fn(&Part) -> f64| parts.iter().map(of).sum::<f64>();
    let eligible = sum(&|part| part.eligible as f64);
    if eligible == 0.0 {
        return found;
    }
    let looked_at = sum(&|part| (part.figures.present as f64).min(part.eligible as f64));
    found.watched = (eligible * page) as u64;
    found.sampled_share = looked_at / eligible;
    found.huge_in_use = (sum(&|part| part.figures.huge_in_use as f64 * part.factor()) * page) as u64;
    for (at, wanted) in SHOWN.iter().enumerate() {
        // What began later was used within that time.
        let known = watched_seconds >= wanted.as_secs_f64();
        found.idle[at] = known.then(|| (sum(&|part| part.figures.idle[at] as f64 * part.factor()) * page) as u64);
    }
    weigh_contents(parts, &mut found);
    let bound = MAX_SLOWDOWN * sum(&|part| part.cores).max(1.0);
    let mut costs_too_much = false;
    for (at, wanted) in THRESHOLDS.iter().enumerate() {
        let rates: Vec<f64> =
            parts.iter().filter_map(|part| part.figures.returned[at].map(|rate| rate * part.factor())).collect();
        if rates.is_empty() {
            break;
        }
        let rate: f64 = rates.iter().sum();
        let cold = sum(&|part| part.figures.cold[at] as f64 * part.factor());
        if rate * RETURN_SECONDS > bound {
            costs_too_much = true;
            continue;
        }
        found.idle_wanted = Some(wanted.as_secs_f64());
        found.came_back = rate * page;
        let saved = sum(&|part| {
            let cold = part.figures.cold[at] as f64 * part.factor();
            let (leaves, takes) = leaves_and_takes(part, &found);
            cold * leaves * (1.0 - takes)
        }) * page;
        found.gives_back = Some(saved as u64);
        found.limited_by = why_no_more(parts, &found, cold * page, costs_too_much);
        break;
    }
    if found.gives_back.is_none() && costs_too_much {
        found.gives_back = Some(0);
        found.limited_by = Some("what is idle comes back too soon".to_owned());
    }
    limit(limits, eligible * page, &mut found);
    found
}

/// The share of a process's cold pages that leaves, and the bytes that one of these takes: what was found in its own, else in those of its row.
fn leaves_and_takes(part: &Part, row: &Estimate) -> (f64, f64) {
    match (part.contents, row.compressed) {
        (Some(contents), _) => (contents.leaves, contents.takes),
        (None, Some(compressed)) => (1.0, compressed),
        // Nothing is known of what it holds, so nothing is promised of it.
        (None, None) => (0.0, 1.0),
    }
}

/// Means over the row, by how much is cold.
fn weigh_contents(parts: &[Part], found: &mut Estimate) {
    let known = || parts.iter().filter_map(|part| Some((part, part.contents?)));
    let weight = |part: &Part| part.figures.cold[0] as f64 * part.factor();
    let all: f64 = known().map(|(part, _)| weight(part)).sum();
    if all > 0.0 {
        let mean =
            |of: fn(&Contents) -> f64| known().map(|(part, contents)| weight(part) * of(&contents)).sum::<f64>() / all;
        found.compressed = Some(mean(|contents| contents.compressed));
        found.filled = Some(mean(|contents| contents.filled));
    }
}

/// The first reason why a good part of what is idle, or may be, stays.
fn why_no_more(parts: &[Part], found: &Estimate, cold: f64, costs_too_much: bool) -> Option<String> {
    /// Less of a row's memory is not worth a word.
    const WORTH: f64 = 0.05;
    let all = found.watched as f64;
    let weighed = |of: fn(&Contents) -> f64| {
        let known = parts.iter().filter_map(|part| Some((part, part.contents?)));
        known.map(|(part, contents)| part.figures.cold[0] as f64 * part.factor() * of(&contents)).sum::<f64>()
            * Bytes::of_pages(1).get() as f64
    };
    if costs_too_much {
        return found
            .idle_wanted
            .map(|seconds| format!("what is idle for less than {seconds:.0} s comes back too soon"));
    }
    if weighed(|contents| contents.stays_whole) > WORTH * all {
        return Some("some of it does not compress".to_owned());
    }
    if weighed(|contents| contents.shared) > WORTH * all {
        return Some("several processes map some of it".to_owned());
    }
    if found.huge_in_use as f64 > WORTH.max(0.25) * all {
        return Some("huge blocks in use leave only when they are split".to_owned());
    }
    let unread = parts.iter().filter(|part| part.contents.is_none());
    let unread: f64 = unread.map(|part| part.figures.cold[0] as f64 * part.factor()).sum();
    if cold > 0.0 && unread * Bytes::of_pages(1).get() as f64 > WORTH * all && found.compressed.is_none() {
        return Some("what it holds may not be looked into".to_owned());
    }
    None
}

/// What cgroups allow is the last word.
fn limit(limits: &Limits, eligible: f64, found: &mut Estimate) {
    let Some(gives_back) = found.gives_back else { return };
    let allowed = (eligible - limits.kept.get() as f64).max(0.0) as u64;
    let kept_from = |found: &mut Estimate, most: u64, why: &str| {
        if most < found.gives_back.unwrap_or(0) {
            found.gives_back = Some(most);
            found.limited_by = Some(why.to_owned());
        }
    };
    if gives_back > 0 {
        kept_from(found, allowed, "memory.min or memory.low of its cgroup protects the rest");
        if let Some(left) = limits.swap_left {
            kept_from(found, left.get(), "memory.swap.max of its cgroup allows no more");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const PAGES: u64 = 25_600;

    fn part(cold: u64, returned: f64) -> Part {
        Part {
            eligible: PAGES,
            figures: Figures {
                present: PAGES / 2,
                cold: [cold / 2, cold / 2, cold / 4, cold / 4, 0],
                idle: [cold / 2, cold / 4, 0],
                returned: [Some(returned), Some(returned / 100.0), Some(0.0), Some(0.0), None],
                watched: Duration::from_secs(120),
                huge_in_use: 0,
            },
            contents: Some(Contents { pages: 256, leaves: 1.0, takes: 0.25, compressed: 0.25, ..Contents::default() }),
            cores: 0.1,
        }
    }

    fn mib(bytes: u64) -> u64 {
        bytes >> 20
    }

    #[test]
    fn what_is_cold_comes_back_less_what_it_takes() {
        let found = estimate(&[part(PAGES, 0.0)], &Limits::default(), 130.0);
        assert_eq!((mib(found.watched), found.sampled_share), (100, 0.5));
        assert_eq!(found.gives_back.map(mib), Some(75));
        assert_eq!(found.idle.map(|bytes| bytes.map(mib)), [Some(100), Some(50), None]);
        assert_eq!((found.idle_wanted, found.limited_by), (Some(12.0), None));
        let two = estimate(&[part(PAGES, 0.0), part(0, 0.0)], &Limits::default(), 130.0);
        assert_eq!((mib(two.watched), two.gives_back.map(mib)), (200, Some(75)));
    }

    #[test]
    fn what_comes_back_too_soon_is_left_until_it_is_idle_for_longer() {
        // The sample stands for twice as much: 800 pages a second cost 24 ms, more than 2 % of a processor.
        let found = estimate(&[part(PAGES, 400.0)], &Limits::default(), 130.0);
        assert_eq!((found.idle_wanted, found.gives_back.map(mib)), (Some(24.0), Some(75)));
        assert_eq!(found.limited_by.as_deref(), Some("what is idle for less than 24 s comes back too soon"));
        let mut never = part(PAGES, 0.0);
        never.figures.returned = [Some(1e6); 5];
        let found = estimate(&[never], &Limits::default(), 130.0);
        assert_eq!(
            (found.gives_back, found.limited_by.as_deref()),
            (Some(0), Some("what is idle comes back too soon"))
        );
    }

    #[test]
    fn what_nobody_watched_or_looked_into_is_not_promised() {
        assert_eq!(estimate(&[], &Limits::default(), 130.0), Estimate::default());
        let mut unread = part(PAGES, 0.0);
        unread.contents = None;
        let found = estimate(&[unread], &Limits::default(), 130.0);
        assert_eq!((found.gives_back, found.compressed), (Some(0), None));
        assert_eq!(found.limited_by.as_deref(), Some("what it holds may not be looked into"));
        let mut early = part(PAGES, 0.0);
        early.figures.returned = [None; 5];
        assert_eq!(estimate(&[early], &Limits::default(), 8.0).gives_back, None);
    }

    #[test]
    fn cgroups_have_the_last_word() {
        let kept = Limits { kept: Bytes::mib(60), swap_left: None };
        let found = estimate(&[part(PAGES, 0.0)], &kept, 130.0);
        assert_eq!(found.gives_back.map(mib), Some(40));
        assert!(found.limited_by.unwrap().contains("memory.low"));
        let none = Limits { kept: Bytes::ZERO, swap_left: Some(Bytes::ZERO) };
        let found = estimate(&[part(PAGES, 0.0)], &none, 130.0);
        assert_eq!(found.gives_back, Some(0));
        assert!(found.limited_by.unwrap().contains("memory.swap.max"));
    }

    #[test]
    fn what_does_not_compress_or_is_shared_is_named() {
        let mut noise = part(PAGES, 0.0);
        noise.contents = Some(Contents { pages: 9, compressed: 1.0, stays_whole: 1.0, ..Contents::default() });
        let found = estimate(&[noise], &Limits::default(), 130.0);
        assert_eq!((found.gives_back, found.limited_by.as_deref()), (Some(0), Some("some of it does not compress")));
        let mut shared = part(PAGES, 0.0);
        shared.contents = Some(Contents { pages: 9, compressed: 0.3, shared: 1.0, ..Contents::default() });
        let found = estimate(&[shared], &Limits::default(), 130.0);
        assert_eq!(
            (found.gives_back, found.limited_by.as_deref()),
            (Some(0), Some("several processes map some of it"))
        );
        let mut huge = part(0, 0.0);
        huge.figures.huge_in_use = PAGES / 2;
        let found = estimate(&[huge], &Limits::default(), 130.0);
        assert!(found.limited_by.unwrap().contains("split"));
    }
}
