//! Metrics, and their form in Prometheus's text format, version 0.0.4.
//!
//! In: the published state. Out: text. Must not: label by pid or by anything else without a limit. Labels are tiers, classes, reasons and
//! causes, all limited by the configuration or the program.
//!
//! Base units, and `_total` on counters, as Prometheus's naming guide asks. docs/reference/daemon.md lists every name, and a test compares
//! the two.

use std::collections::BTreeSet;
use std::fmt::Write;

use terrace_core::governor::{FREE, Throttle};
use terrace_core::text::visible;
use terrace_core::units::PAGE_BYTES;

use crate::view::{Status, Survey, SurveyGroup};

/// The type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Gauge,
    Counter,
}

use Kind::{Counter, Gauge};

/// One series: its labels, and its value.
type Series<'a> = (Vec<(&'a str, &'a str)>, f64);

/// All series of one name.
struct Family<'a> {
    name: &'static str,
    kind: Kind,
    help: &'static str,
    series: Vec<Series<'a>>,
}

#[derive(Default)]
struct Families<'a>(Vec<Family<'a>>);

impl<'a> Families<'a> {
    fn family(
        &mut self,
        name: &'static str,
        kind: Kind,
        help: &'static str,
        series: impl IntoIterator<Item = Series<'a>>,
    ) {
        self.0.push(Family { name, kind, help, series: series.into_iter().collect() });
    }
}

fn write_text(families: &[Family<'_>]) -> String {
    let mut out = String::with_capacity(16 << 10);
    for Family { name, kind, help, series } in families {
        let kind = match kind {
            Gauge => "gauge",
            Counter => "counter",
        };
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (labels, value) in series {
            out.push_str(name);
            for (index, (label, value)) in labels.iter().enumerate() {
                let value = visible(value).replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
                let _ = write!(out, "{}{label}=\"{value}\"", if index == 0 { '{' } else { ',' });
            }
            if !labels.is_empty() {
                out.push('}');
            }
            let _ = writeln!(out, " {value}");
        }
    }
    out
}

/// The states of a class, one series each.
pub const STATES: [&str; 8] = ["waiting", "running", "held", "stopped", "paused", "draining", "drained", "failed"];

/// The metrics of a status as text.
pub fn text(status: &Status) -> String {
    write_text(&families(status))
}

/// A metric of each tier: its name, its meaning, and its value.
type OfTier = (&'static str, &'static str, fn(&crate::view::Tier) -> Option<u64>);

/// The metrics of a status.
fn families(status: &Status) -> Vec<Family<'_>> {
    let mut out = Families::default();
    let (own, budget) = (&status.own, &status.budget);
    let build = [(vec![("version", status.version.as_str())], 1.0)];
    out.family("terrace_build_info", Gauge, "Version of the daemon; always 1.", build);
    for (name, kind, help, value) in [
        ("terrace_uptime_seconds", Gauge, "Time since the daemon started.", status.uptime_seconds),
        ("terrace_cpu_seconds_total", Counter, "Processor time the daemon used.", own.cpu_seconds),
        ("terrace_cpu_ratio", Gauge, "Share of one core the daemon used over the last minute.", own.cpu_share),
        ("terrace_cpu_budget_ratio", Gauge, "Share of one core the daemon may use.", budget.cpu_share),
        ("terrace_resident_bytes", Gauge, "Resident memory of the daemon.", own.resident_bytes as f64),
        (
            "terrace_page_state_bytes",
            Gauge,
            "Memory the daemon keeps for the state of pages.",
            own.page_state_bytes as f64,
        ),
        (
            "terrace_fast_budget_bytes",
            Gauge,
            "Fast memory that all classes together may use.",
            budget.fast_bytes as f64,
        ),
        (
            "terrace_bandwidth_budget_bytes_per_second",
            Gauge,
            "Bytes per second that may change tier.",
            budget.bandwidth_bytes_per_second as f64,
        ),
        (
            "terrace_rivals",
            Gauge,
            "Other programs found that move pages or clear accessed bits.",
            status.rivals.len() as f64,
        ),
        (
            "terrace_refused_processes",
            Gauge,
            "Processes that match a class but cannot be managed.",
            status.refused.len() as f64,
        ),
    ] {
        out.family(name, kind, help, [(Vec::new(), value)]);
    }
    let of_tiers: [OfTier; 3] = [
        ("terrace_tier_capacity_bytes", "Capacity of the tier.", |tier| Some(tier.capacity_bytes)),
        ("terrace_tier_used_bytes", "Pages of all classes in the tier.", |tier| Some(tier.used_bytes)),
        ("terrace_tier_occupied_bytes", "Memory that a compressed tier uses.", |tier| tier.occupied_bytes),
    ];
    for (name, help, of) in of_tiers {
        let tiers = status.tiers.iter();
        let series = tiers.filter_map(|tier| Some((vec![("tier", tier.name.as_str())], of(tier)? as f64)));
        out.family(name, Gauge, help, series);
    }
    classes(&mut out, status);
    if let Some(survey) = &status.survey {
        of_survey(&mut out, survey);
    }
    out.0
}

/// What the machine holds idle beside the classes.
fn of_survey<'a>(out: &mut Families<'a>, survey: &'a Survey) {
    type OfGroup = fn(&SurveyGroup) -> Option<u64>;
    let labels = |group: &'a SurveyGroup| vec![("kind", group.kind.as_str()), ("cgroup", group.cgroup.as_str())];
    let of_groups: [(&'static str, &'static str, OfGroup); 3] = [
        ("terrace_survey_memory_bytes", "Memory of the cgroup.", |group| Some(group.memory_bytes)),
        ("terrace_survey_could_save_bytes", "What managing the cgroup would give back.", |group| {
            group.could_save_bytes
        }),
        ("terrace_survey_file_inactive_bytes", "File cache of the cgroup that was not used lately.", |group| {
            group.file_inactive_bytes
        }),
    ];
    for (name, help, of) in of_groups {
        let series = survey.groups.iter().filter_map(|group| Some((labels(group), of(group)? as f64)));
        out.family(name, Gauge, help, series);
    }
    let times: [(&str, OfGroup); 3] = [
        ("60s", |group| group.idle_one_minute_bytes),
        ("120s", |group| group.idle_two_minutes_bytes),
        ("300s", |group| group.idle_five_minutes_bytes),
    ];
    let idle = survey.groups.iter().flat_map(|group| {
        times.into_iter().filter_map(move |(time, of)| {
            let mut labels = labels(group);
            labels.push(("idle", time));
            Some((labels, of(group)? as f64))
        })
    });
    out.family("terrace_survey_idle_bytes", Gauge, "Anonymous memory of the cgroup that was idle for so long.", idle);
    let share = [(Vec::new(), survey.cpu_share)];
    out.family("terrace_survey_cpu_ratio", Gauge, "Share of one core that the survey takes.", share);
}

/// The time since the loop last turned: the one metric that the loop itself cannot publish.
pub fn loop_age(age: std::time::Duration) -> String {
    let help = "Time since the daemon's loop last turned.";
    let series = vec![(Vec::new(), age.as_secs_f64())];
    write_text(&[Family { name: "terrace_loop_age_seconds", kind: Gauge, help, series }])
}

/// A metric of each class: its name, its meaning, and its value.
type OfClass = (&'static str, &'static str, fn(&crate::view::Class) -> Option<f64>);

const GAUGES_OF_CLASSES: [OfClass; 25] = [
    ("terrace_class_processes", "Processes under management.", |class| Some(class.processes as f64)),
    ("terrace_class_footprint_bytes", "Memory in use.", |class| Some(class.footprint_bytes as f64)),
    ("terrace_class_fast_bytes", "Of that in fast memory.", |class| Some(class.fast_bytes as f64)),
    ("terrace_class_slow_bytes", "Of that in slower tiers.", |class| Some(class.slow_bytes as f64)),
    ("terrace_class_active_bytes", "Of that in the working set.", |class| Some(class.active_bytes as f64)),
    ("terrace_class_granted_bytes", "Fast memory granted.", |class| Some(class.granted_bytes as f64)),
    ("terrace_class_floor_bytes", "Fast memory that the class always keeps.", |class| Some(class.floor_bytes as f64)),
    ("terrace_class_bandwidth_bytes_per_second", "Bytes per second granted for moves.", |class| {
        Some(class.bandwidth_bytes_per_second as f64)
    }),
    ("terrace_class_cpu_granted_ratio", "Share of one core granted.", |class| Some(class.cpu_granted_share)),
    ("terrace_class_hit_ratio", "Share of the recent accesses that fast memory served.", |class| class.hit_share),
    ("terrace_class_stall_ratio", "Estimated share of its time lost to refaults, moves and tracking.", |class| {
        Some(class.stall_share)
    }),
    ("terrace_class_bound_ratio", "The most of its time that it may lose (max_slowdown).", |class| class.bound_share),
    ("terrace_class_watching_back_off", "How many times the budget for tracking was halved.", |class| {
        Some(f64::from(class.watching_back_off))
    }),
    ("terrace_class_backoff_ratio", "Factor by which idle thresholds are lengthened.", |class| Some(class.backoff)),
    (
        "terrace_class_promotions_p98_ratio",
        "Promotions a minute as a share of the pages in use, which 98 of 100 minutes stayed within.",
        |class| class.promotions_p98,
    ),
    ("terrace_class_asleep", "Programs that sleep.", |class| Some(class.asleep as f64)),
    // This and `terrace_throttled_seconds_total` stay for one release.
    ("terrace_class_throttled", "1 while page-outs are limited or stopped. Use terrace_class_page_outs.", |class| {
        Some(f64::from(u8::from(class.throttle.is_some())))
    }),
    ("terrace_class_target_loss_ratio", "How much slower the class may be (max_slowdown).", |class| {
        class.tuned.as_ref().map(|tuned| tuned.max_slowdown)
    }),
    ("terrace_class_tuned_loss_ratio", "How much slower it was, mean over the last hour of windows.", |class| {
        class.tuned.as_ref().and_then(|tuned| tuned.loss)
    }),
    ("terrace_class_tuned_fast_ratio", "Share of its footprint that the tuner keeps fast.", |class| {
        class.tuned.as_ref().map(|tuned| tuned.fast_share)
    }),
    ("terrace_proof_gain_ratio", "How much faster the class is for being managed.", |class| {
        class.proof.as_ref().and_then(|proof| proof.gain)
    }),
    ("terrace_proof_gain_low_ratio", "Lower end of the interval of that gain.", |class| {
        class.proof.as_ref().and_then(|proof| proof.interval).map(|(low, _)| low)
    }),
    ("terrace_proof_gain_high_ratio", "Upper end of the interval of that gain.", |class| {
        class.proof.as_ref().and_then(|proof| proof.interval).map(|(_, high)| high)
    }),
    ("terrace_proof_frozen", "1 while management rests because harm was shown.", |class| {
        class.proof.as_ref().map(|proof| f64::from(u8::from(proof.frozen)))
    }),
    (
        "terrace_class_contract_violating_bytes",
        "Bytes in a tier where never-slow or never-fast allows none.",
        |class| class.contract.as_ref().map(|contract| contract.violating_bytes as f64),
    ),
];

const COUNTERS_OF_CLASSES: [OfClass; 12] = [
    ("terrace_class_cpu_seconds_total", "Processor time spent on the class.", |class| Some(class.cpu_seconds)),
    ("terrace_class_watching_seconds_total", "Its time lost to tracking.", |class| Some(class.watching_seconds)),
    ("terrace_class_moving_seconds_total", "Its time lost to moves.", |class| Some(class.moving_seconds)),
    ("terrace_class_file_cache_bytes_total", "File cache that left.", |class| {
        class.file_cache.as_ref().map(|files| files.left_bytes as f64)
    }),
    ("terrace_class_refaults_total", "Refaults of demoted pages.", |class| Some(class.refaults as f64)),
    ("terrace_class_ping_pong_pages_total", "Demotions that turned out wrong.", |class| {
        Some(class.ping_pong_pages as f64)
    }),
    ("terrace_class_fetched_ahead_pages_total", "Pages fetched ahead for programs that woke.", |class| {
        Some(class.fetched_ahead_pages as f64)
    }),
    ("terrace_class_major_faults_total", "Major faults of its processes.", |class| Some(class.major_faults as f64)),
    ("terrace_class_scans_total", "Scans of its pages.", |class| Some(class.rounds as f64)),
    ("terrace_class_scan_seconds_total", "Time of those scans.", |class| Some(class.round_seconds)),
    ("terrace_proof_windows_total", "Windows that proof mode compared.", |class| {
        class.proof.as_ref().map(|proof| proof.windows as f64)
    }),
    ("terrace_class_lost_events_total", "Events its tracker lost.", |class| Some(class.lost_events as f64)),
];

fn classes<'a>(out: &mut Families<'a>, status: &'a Status) {
    let classes = |of: fn(&crate::view::Class) -> Option<f64>| {
        status.classes.iter().filter_map(move |class| Some((vec![("class", class.name.as_str())], of(class)?)))
    };
    let states = status.classes.iter().flat_map(|class| {
        STATES.iter().map(move |state| {
            (vec![("class", class.name.as_str()), ("state", *state)], f64::from(u8::from(class.state == *state)))
        })
    });
    out.family("terrace_class_state", Gauge, "1 for the current state of the class, 0 for the others.", states);
    // Two causes have one state, which is one series all the same.
    let states: BTreeSet<&'static str> = Throttle::ALL.into_iter().map(Throttle::state).chain([FREE]).collect();
    let page_outs = status.classes.iter().flat_map(|class| {
        states.iter().map(move |state| {
            (vec![("class", class.name.as_str()), ("state", *state)], f64::from(u8::from(class.page_outs == *state)))
        })
    });
    out.family("terrace_class_page_outs", Gauge, "1 for what its page-outs do now, 0 for the other states.", page_outs);
    for (name, help, of) in GAUGES_OF_CLASSES {
        out.family(name, Gauge, help, classes(of));
    }
    for (name, help, of) in COUNTERS_OF_CLASSES {
        out.family(name, Counter, help, classes(of));
    }
    let moved = status.classes.iter().flat_map(|class| {
        class.moves.iter().map(move |moves| {
            let labels = vec![
                ("class", class.name.as_str()),
                ("from", moves.from.as_str()),
                ("to", moves.to.as_str()),
                ("reason", moves.reason.as_str()),
            ];
            (labels, (moves.pages * PAGE_BYTES) as f64)
        })
    });
    out.family("terrace_moved_bytes_total", Counter, "Bytes that really changed tier.", moved);
    let by_cause = |of: fn(&crate::view::Class) -> Vec<(&str, f64)>| {
        status.classes.iter().flat_map(move |class| {
            of(class)
                .into_iter()
                .map(move |(cause, value)| (vec![("class", class.name.as_str()), ("cause", cause)], value))
        })
    };
    fn counts(map: &std::collections::BTreeMap<String, u64>, unit: u64) -> Vec<(&str, f64)> {
        map.iter().map(|(cause, count)| (cause.as_str(), (count * unit) as f64)).collect()
    }
    out.family(
        "terrace_failed_bytes_total",
        Counter,
        "Bytes whose move failed.",
        by_cause(|class| counts(&class.failed_pages, PAGE_BYTES)),
    );
    out.family(
        "terrace_rejected_requests_total",
        Counter,
        "Move requests of the policy that were rejected.",
        by_cause(|class| counts(&class.rejected_pages, 1)),
    );
    let seconds = status.classes.iter().flat_map(|class| {
        let times = class.page_outs_seconds.iter();
        times.map(move |(state, seconds)| (vec![("class", class.name.as_str()), ("state", state.as_str())], *seconds))
    });
    out.family(
        "terrace_page_outs_seconds_total",
        Counter,
        "Time for which page-outs were limited or stopped.",
        seconds,
    );
    out.family(
        "terrace_throttled_seconds_total",
        Counter,
        "The same by cause. Use terrace_page_outs_seconds_total.",
        by_cause(|class| class.throttled_seconds.iter().map(|(cause, seconds)| (cause.as_str(), *seconds)).collect()),
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::{Class, Tier};

    #[test]
    fn page_outs_that_are_limited_and_that_are_stopped_are_two_states() {
        let class = |name: &str, page_outs: &str| Class {
            name: name.to_owned(),
            page_outs: page_outs.to_owned(),
            page_outs_seconds: [(page_outs.to_owned(), 2.5)].into(),
            ..Class::default()
        };
        let classes = vec![class("web", "limited_to_bound"), class("batch", "stopped_came_back")];
        let text = text(&Status { classes, ..Status::default() });
        for line in [
            r#"terrace_class_page_outs{class="web",state="limited_to_bound"} 1"#,
            r#"terrace_class_page_outs{class="web",state="stopped_came_back"} 0"#,
            r#"terrace_class_page_outs{class="batch",state="limited_to_bound"} 0"#,
            r#"terrace_class_page_outs{class="batch",state="stopped_came_back"} 1"#,
            r#"terrace_class_page_outs{class="batch",state="free"} 0"#,
            r#"terrace_page_outs_seconds_total{class="web",state="limited_to_bound"} 2.5"#,
            r#"terrace_page_outs_seconds_total{class="batch",state="stopped_came_back"} 2.5"#,
        ] {
            assert!(text.lines().any(|one| one == line), "{line} is missing:\n{text}");
        }
    }

    #[test]
    fn a_label_holds_any_text_on_one_line() {
        let tier = Tier { name: "\x1b]0;PWN\x07\x1b[2J\"\nterrace_up 1".to_owned(), ..Tier::default() };
        let text = text(&Status { tiers: vec![tier], ..Status::default() });
        assert!(!text.contains(['\x1b', '\x07']) && !text.lines().any(|line| line == "terrace_up 1"), "{text}");
        let group =
            SurveyGroup { kind: "cgroup".to_owned(), cgroup: "/a\"}\n b\\".to_owned(), ..SurveyGroup::default() };
        let survey = Some(Survey { groups: vec![group], ..Survey::default() });
        let of_survey = super::text(&Status { survey, ..Status::default() });
        let line = r#"terrace_survey_memory_bytes{kind="cgroup",cgroup="/a\"}\\n b\\"} 0"#;
        assert!(of_survey.lines().any(|one| one == line), "{of_survey}");
        assert!(text.contains(r#"{tier="\\x1b]0;PWN\\x07\\x1b[2J\"\\nterrace_up 1"}"#), "{text}");
    }
}
