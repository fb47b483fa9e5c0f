//! `terrace demo`: what Terrace does, shown by the best that works on this machine.
//!
//! Four jobs, best first: manage a program, observe it, record one in QEMU and compare policies, compare them on a recording that is part of
//! Terrace. What works is found out by trying it. What fails half-way is named, and the next job is done.
//!
//! In: how long, and where the page goes. Out: lines, a result, a page; exit code 0 if any of the four was done. Must not: take a lesser job without
//! saying why, or leave anything on the machine.

use std::ffi::OsString;
use std::io::Write;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::ValueEnum;
use terrace_common::tell::causes;
use terrace_core::text::visible_lines;

use crate::args::{DemoArguments, DemoJob, ReportArguments};
use crate::options::duration;
use crate::programs::{self, RESEARCH};
use crate::session::Places;
use crate::session::refusal::Refusal;

mod live;
mod recorded;

/// Where the page goes unless `--report` says.
const PAGE: &str = "demo-report";

pub(super) fn run(arguments: &DemoArguments) -> anyhow::Result<()> {
    let duration = duration("--duration", &arguments.duration)?;
    let (place, note) = place(arguments.report.as_ref())?;
    let mut demo = Demo { duration, place, json: arguments.json, refused: Vec::new() };
    for &job in DemoJob::value_variants().iter().filter(|job| **job >= arguments.from) {
        if let Err(error) = demo.could(job) {
            demo.refused.push(Refused::of(job, &error));
            continue;
        }
        demo.say(&first_line(job, &demo.subject(job), &demo.refused))?;
        if let Some(note) = &note {
            demo.say(note)?;
        }
        match demo.does(job) {
            Ok(result) => return demo.ends(job, &result),
            Err(error) => {
                demo.say(&format!("it failed: {}", causes(&error)))?;
                demo.refused.push(Refused::of(job, &error));
            }
        }
    }
    let reasons: Vec<&str> = demo.refused.iter().map(|refused| refused.why.as_str()).collect();
    bail!("nothing of the demo works here: {}", reasons.join("; "))
}

/// A demo on its way.
struct Demo {
    /// How long the program works.
    duration: Duration,
    /// Where the page goes.
    place: PathBuf,
    json: bool,
    /// The better jobs that were not done.
    refused: Vec<Refused>,
}

/// A job that could not be done.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Refused {
    job: DemoJob,
    why: String,
    /// What would enable it.
    enable: Option<String>,
}

impl Refused {
    fn of(job: DemoJob, error: &anyhow::Error) -> Refused {
        let (why, enable) = match error.downcast_ref::<Refusal>() {
            Some(refusal) => (refusal.why.clone(), refusal.enable.clone()),
            None => (causes(error), None),
        };
        let enable = enable.or_else(|| {
            let packages = recorded::PACKAGES;
            (job == DemoJob::Record).then(|| format!("{packages}, and `make qemu-plugin`"))
        });
        Refused { job, why: why.lines().collect::<Vec<_>>().join(" "), enable }
    }
}

impl Demo {
    /// Finds out whether a job can be done, and changes nothing that is not undone again.
    fn could(&self, job: DemoJob) -> anyhow::Result<()> {
        match job {
            DemoJob::Manage => live::could_manage(),
            DemoJob::Observe => live::could_observe(),
            DemoJob::Record => recorded::program(self.duration).map(drop),
            DemoJob::Replay => recorded::could_replay(),
        }
    }

    /// The program that a job is shown on.
    fn subject(&self, job: DemoJob) -> String {
        match job {
            DemoJob::Manage | DemoJob::Observe => live::subject(),
            DemoJob::Record => {
                recorded::program(self.duration).map_or_else(|_| "a program".to_owned(), |(name, _)| name)
            }
            DemoJob::Replay => recorded::HELD.to_owned(),
        }
    }

    /// Does a job; returns the result in a sentence.
    fn does(&self, job: DemoJob) -> anyhow::Result<String> {
        match job {
            DemoJob::Manage => live::manage(self),
            DemoJob::Observe => live::observe(self),
            DemoJob::Record => recorded::record(self),
            DemoJob::Replay => recorded::replay(self),
        }
    }

    /// Says something to a person.
    fn say(&self, line: &str) -> anyhow::Result<()> {
        self.print(&format!("demo: {line}\n"))
    }

    fn print(&self, text: &str) -> anyhow::Result<()> {
        let text = visible_lines(text);
        if self.json {
            std::io::stderr().lock().write_all(text.as_bytes())?;
        } else {
            let mut stdout = crate::terminal::stdout();
            stdout.write_all(text.as_bytes())?;
            stdout.flush()?;
        }
        Ok(())
    }

    fn ends(&self, job: DemoJob, result: &str) -> anyhow::Result<()> {
        let page = self.place.join("report.html");
        if !page.exists() {
            bail!("the page {} is missing", page.display());
        }
        self.say(result)?;
        self.say(&format!("page: {}", page.display()))?;
        if self.json {
            let because: Vec<_> = self
                .refused
                .iter()
                .map(|one| serde_json::json!({ "not": one.job, "why": one.why, "enable": one.enable }))
                .collect();
            super::print_json(&serde_json::json!({
                "did": job, "program": self.subject(job), "because": because, "result": result, "page": page,
            }))?;
        }
        Ok(())
    }

    /// Has `terrace-research` do something; what it prints is the demo's.
    fn research(&self, words: impl Iterator<Item = OsString>) -> anyhow::Result<()> {
        let mut command = Command::new(programs::find(RESEARCH, "demo")?);
        command.args(words).stdin(Stdio::null());
        if self.json {
            command.stdout(std::io::stderr().as_fd().try_clone_to_owned()?);
        }
        let status = command.status().with_context(|| format!("{RESEARCH} could not be started"))?;
        if !status.success() {
            bail!("{RESEARCH} ended with {status}");
        }
        Ok(())
    }

    /// The report that it wrote.
    fn report(&self) -> anyhow::Result<serde_json::Value> {
        let path = self.place.join("report.json");
        let text = std::fs::read(&path).with_context(|| path.display().to_string())?;
        serde_json::from_slice(&text).with_context(|| path.display().to_string())
    }

    /// Where a run's report goes.
    fn output(&self) -> ReportArguments {
        ReportArguments { report: Some(self.place.clone()), ..ReportArguments::default() }
    }
}

/// What is done, why nothing better, and what would enable that.
fn first_line(job: DemoJob, subject: &str, refused: &[Refused]) -> String {
    let does = match job {
        DemoJob::Manage => format!("manages {subject}"),
        DemoJob::Observe => format!("observes {subject} and says how much fast memory it needs"),
        DemoJob::Record => format!("records {subject} in QEMU and compares policies on what it did"),
        DemoJob::Replay => format!("compares policies on {subject}"),
    };
    if refused.is_empty() {
        return does;
    }
    let cannot = |job| match job {
        DemoJob::Manage => "memory cannot be managed here",
        DemoJob::Observe => "it cannot be observed",
        DemoJob::Record | DemoJob::Replay => "no program can be recorded",
    };
    let mut reasons: Vec<String> = Vec::new();
    let mut said: Option<&Refused> = None;
    for one in refused {
        match said {
            // One cause of both is said once.
            Some(before) if before.why == one.why => {
                reasons.pop();
                reasons.push(format!("memory can neither be managed nor observed here ({})", one.why));
            }
            _ => reasons.push(format!("{} ({})", cannot(one.job), one.why)),
        }
        said = Some(one);
    }
    let mut enable: Vec<&str> = Vec::new();
    for one in refused.iter().filter_map(|one| one.enable.as_deref()) {
        if !enable.contains(&one) {
            enable.push(one);
        }
    }
    // What enables managing enables observing, too.
    if refused.iter().filter(|one| one.job <= DemoJob::Observe && one.enable.is_some()).count() == 2 && enable.len() > 1
    {
        enable.remove(1);
    }
    let enable = match enable.as_slice() {
        [] => "; `terrace doctor` says more".to_owned(),
        all => format!("; to enable that: {}", all.join("; ")),
    };
    format!("{does}, because {}{enable}", reasons.join(", and "))
}

/// The directory for the page, and what to say of it if it is not the usual one.
fn place(asked: Option<&PathBuf>) -> anyhow::Result<(PathBuf, Option<String>)> {
    let try_out = |directory: &PathBuf| -> anyhow::Result<()> {
        Places::prepare(&ReportArguments { report: Some(directory.clone()), ..ReportArguments::default() }).map(drop)
    };
    if let Some(asked) = asked {
        return try_out(asked).map(|()| (asked.clone(), None));
    }
    let usual = PathBuf::from(PAGE);
    let Err(error) = try_out(&usual) else { return Ok((usual, None)) };
    let why = error.root_cause().to_string();
    match tempfile::Builder::new().prefix("terrace-demo-").tempdir() {
        Ok(folder) => {
            let folder = folder.keep();
            let note = format!("{PAGE} cannot be written here ({why}), so the page goes to {}", folder.display());
            Ok((folder, Some(note)))
        }
        Err(no_folder) => {
            bail!("no page can be written: {PAGE}: {why}; {no_folder}; name a directory with --report DIR")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(job: DemoJob, why: &str, enable: Option<&str>) -> Refused {
        Refused { job, why: why.to_owned(), enable: enable.map(str::to_owned) }
    }

    #[test]
    fn the_first_line_says_what_is_done_and_why_nothing_better() {
        assert_eq!(first_line(DemoJob::Manage, "redis-server", &[]), "manages redis-server");
        let both = [
            refused(DemoJob::Manage, "no eBPF", Some("CAP_BPF, CAP_SYS_NICE")),
            refused(DemoJob::Observe, "no eBPF", Some("CAP_BPF")),
        ];
        assert_eq!(
            first_line(DemoJob::Record, "sqlite3", &both),
            "records sqlite3 in QEMU and compares policies on what it did, because memory can neither be managed nor observed here \
             (no eBPF); to enable that: CAP_BPF, CAP_SYS_NICE"
        );
        let all = [&both[..], &[refused(DemoJob::Record, "no QEMU", Some("apt-get install qemu-user"))]].concat();
        let line = first_line(DemoJob::Replay, "sqlite3", &all);
        assert!(line.ends_with("CAP_BPF, CAP_SYS_NICE; apt-get install qemu-user"), "{line}");
        assert!(line.contains("no program can be recorded (no QEMU)"), "{line}");
        let one = [refused(DemoJob::Manage, "no swap", None)];
        let line = first_line(DemoJob::Observe, "redis-server", &one);
        assert!(line.contains("because memory cannot be managed here (no swap); `terrace doctor`"), "{line}");
    }

    #[test]
    fn a_page_has_a_place() {
        let folder = tempfile::tempdir().unwrap();
        let asked = folder.path().join("new");
        assert_eq!(place(Some(&asked)).unwrap(), (asked.clone(), None));
        std::fs::write(&asked, "in the way").unwrap();
        assert!(place(Some(&asked)).is_err(), "what was asked for is not replaced by another place");
    }
}
