//! `terrace survey`: which programs hold memory that nobody uses.

use std::io::{IsTerminal, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use signal_hook::consts::{SIGINT, SIGTERM};
use terrace_common::provenance::Provenance;
use terrace_linux::rights::Job;
use terrace_linux::survey::{Look, Survey, SurveyOptions};
use terrace_report::{files, terminal};

use crate::args::{RowsBy, SurveyArguments};
use crate::options::{duration, misuse};
use crate::render;
use crate::session::refusal::Refusal;

/// Nothing is called idle sooner.
const SHORTEST: Duration = Duration::from_secs(15);
/// How long the first look at everything may take beyond what was asked for.
const SLOW_START: Duration = Duration::from_secs(60);
/// Longest sleep, so that Ctrl-C ends it at once.
const NAP: Duration = Duration::from_millis(250);

pub(super) fn run(arguments: &SurveyArguments) -> anyhow::Result<()> {
    let wanted = duration("--duration", &arguments.duration)?;
    if wanted < SHORTEST {
        return Err(misuse("--duration", &arguments.duration, "expected 15s or more: nothing is called idle sooner"));
    }
    let interval = duration("--interval", &arguments.interval)?;
    if interval < Duration::from_secs(1) {
        return Err(misuse("--interval", &arguments.interval, "expected 1s or more"));
    }
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("signals cannot be received")?;
    }
    let by_program = arguments.by == RowsBy::Program;
    let mut survey = Survey::open(SurveyOptions { by_program });
    if let Some(why) = survey.blind().map(str::to_owned) {
        survey.step();
        show(arguments, &survey.look())?;
        let why = format!("which memory is idle cannot be seen here, only how much there is: {why}");
        return Err(Refusal::of_others(&why, Job::Watch).into());
    }
    if arguments.watch {
        return watch(arguments, survey, interval, &stop);
    }
    let bar = terminal::bar(wanted.as_secs(), 0, "watching, {msg} {wide_bar} {eta}");
    // Where the first look at everything costs more than its budget has, it is paid for with time, and not for ever.
    let end = Instant::now() + wanted * 2 + SLOW_START;
    let goes_on = |survey: &Survey| survey.watched().is_none_or(|watched| watched < wanted);
    while !stop.load(Ordering::Relaxed) && goes_on(&survey) && Instant::now() < end {
        let idle = survey.step();
        let left = wanted.saturating_sub(survey.watched().unwrap_or_default());
        std::thread::sleep(idle.min(NAP).min(left));
        bar.set_position(survey.watched().unwrap_or_default().as_secs());
        bar.set_message("moving nothing");
    }
    bar.finish_and_clear();
    survey.finish();
    let look = survey.look();
    if let Some(directory) = &arguments.report {
        write_report(directory, &look)?;
    }
    show(arguments, &look)
}

fn show(arguments: &SurveyArguments, look: &Look) -> anyhow::Result<()> {
    if arguments.json {
        return super::print_json(&Provenance::here().on_this_machine().stamp(look)?);
    }
    let screen = terminal::Screen::of(std::io::stdout());
    super::print_text(&render::survey::text(look, arguments.rows, &screen))
}

fn write_report(directory: &Path, look: &Look) -> anyhow::Result<()> {
    let json = Provenance::here().on_this_machine().stamp(look)?;
    files::write_pair(directory, &json, &render::survey::page(look))
}

/// Looks again and again, until Ctrl-C or until nobody reads.
fn watch(arguments: &SurveyArguments, mut survey: Survey, interval: Duration, stop: &AtomicBool) -> anyhow::Result<()> {
    let mut next = Instant::now();
    let terminal = std::io::stdout().is_terminal() && !arguments.json;
    while !stop.load(Ordering::Relaxed) {
        let idle = survey.step();
        let now = Instant::now();
        if now < next || survey.watched().is_none() {
            std::thread::sleep(idle.min(NAP).min(next.saturating_duration_since(now).max(Duration::from_millis(1))));
            continue;
        }
        next = now + interval;
        let look = survey.look();
        if arguments.json {
            super::print_json(&look)?;
            continue;
        }
        let screen = terminal::Screen::of(std::io::stdout());
        let text = render::survey::text(&look, arguments.rows, &screen);
        if terminal {
            // From the top of an empty screen (ECMA-48: CUP, ED).
            let mut stdout = terminal::stdout();
            stdout.write_all(b"\x1b[H\x1b[2J")?;
            stdout.flush()?;
        }
        super::print_text(&(text + if terminal { "" } else { "\n" }))?;
    }
    Ok(())
}
