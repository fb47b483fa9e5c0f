//! The survey of the whole machine beside the service: what each cgroup holds idle, for metrics that a fleet adds up and a scheduler reads.
//!
//! In: the machine, and which processes the service manages. Out: a [`view::Survey`] among what is published. Must not: watch what the service manages (two
//! must not clear the marks of one program), name a program or a pid to who may see metrics alone, or hold up the loop: it has a thread of its own.

use std::collections::BTreeMap;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use terrace_linux::survey::view::{Kind, Look, Row};
use terrace_linux::survey::{Survey, SurveyOptions};

use crate::shared::Shared;
use crate::view;

/// How often figures are published.
const EVERY: Duration = Duration::from_secs(10);
/// How long the tracker may take to be ready.
const PATIENCE: Duration = Duration::from_secs(60);
/// Cgroups with series of their own: labels have a limit.
const MOST: usize = 100;

/// Starts it, and waits until its tracker is ready: that is tried on memory of this process, which may not be locked then.
///
/// # Errors
/// The thread cannot be started.
pub fn start(shared: Arc<Shared>) -> std::io::Result<()> {
    let (ready, opened) = mpsc::channel();
    let work = move || {
        let mut survey = Survey::open(SurveyOptions::default());
        let blind = survey.blind().map(str::to_owned);
        // Who waits may have lost patience.
        let _ = ready.send(());
        if let Some(why) = &blind {
            let text = format!("metrics.survey: idle memory cannot be seen: {why}");
            shared.happened("fault", None, text);
        }
        let mut next = Instant::now();
        loop {
            survey.leave_to("the service", shared.managed());
            let idle = survey.step();
            if Instant::now() >= next {
                next = Instant::now() + EVERY;
                shared.publish_survey(of_look(&survey.look(), blind.clone()));
            }
            std::thread::sleep(idle.min(next.saturating_duration_since(Instant::now())));
        }
    };
    std::thread::Builder::new().name("survey".to_owned()).spawn(work)?;
    if opened.recv_timeout(PATIENCE).is_err() {
        tracing::warn!("metrics.survey: the tracker is not ready after {} s; the service goes on", PATIENCE.as_secs());
    }
    Ok(())
}

/// What is published of a look. Programs in no cgroup are one group, and so is what is beyond the limit.
fn of_look(look: &Look, trouble: Option<String>) -> view::Survey {
    let mut groups: BTreeMap<(String, String), view::SurveyGroup> = BTreeMap::new();
    for (at, row) in look.rows.iter().enumerate() {
        let name = match (row.kind, &row.cgroup) {
            (Kind::Program, _) | (_, None) => (Kind::Program.word().to_owned(), String::new()),
            _ if at >= MOST => ("other".to_owned(), String::new()),
            (kind, Some(cgroup)) => (kind.word().to_owned(), cgroup.clone()),
        };
        let (kind, cgroup) = name.clone();
        let group = groups.entry(name).or_insert_with(|| view::SurveyGroup { kind, cgroup, ..Default::default() });
        add(group, row);
    }
    view::Survey {
        watched_seconds: look.watched_seconds,
        cpu_share: look.cost.cpu_share,
        groups: groups.into_values().collect(),
        trouble,
    }
}

fn add(group: &mut view::SurveyGroup, row: &Row) {
    let more = |sum: &mut Option<u64>, bytes: Option<u64>| {
        if let Some(bytes) = bytes {
            *sum = Some(sum.unwrap_or(0) + bytes);
        }
    };
    group.memory_bytes += row.memory_bytes;
    more(&mut group.idle_one_minute_bytes, row.idle.one_minute_bytes);
    more(&mut group.idle_two_minutes_bytes, row.idle.two_minutes_bytes);
    more(&mut group.idle_five_minutes_bytes, row.idle.five_minutes_bytes);
    more(&mut group.file_inactive_bytes, row.file_inactive_bytes);
    more(&mut group.could_save_bytes, row.gives_back_bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_not_named_and_cgroups_have_a_limit() {
        let row = |kind, cgroup: Option<String>, back: Option<u64>| Row {
            kind,
            name: "secret-name".to_owned(),
            cgroup,
            memory_bytes: 10,
            gives_back_bytes: back,
            ..Row::default()
        };
        let mut rows = vec![row(Kind::Program, None, Some(1)), row(Kind::Program, None, Some(2))];
        rows.extend((0..120).map(|number| row(Kind::Service, Some(format!("/s/{number}")), Some(1))));
        rows.push(row(Kind::Cgroup, Some("/unknown".to_owned()), None));
        let survey = of_look(&Look { rows, ..Look::default() }, None);
        assert_eq!(survey.groups.len(), 100 - 2 + 2);
        let of = |kind: &str| survey.groups.iter().find(|group| group.kind == kind).unwrap();
        assert_eq!((of("program").could_save_bytes, of("program").memory_bytes), (Some(3), 20));
        assert_eq!((of("other").could_save_bytes, of("other").memory_bytes), (Some(22), 230));
        assert!(!format!("{survey:?}").contains("secret-name"));
    }
}
