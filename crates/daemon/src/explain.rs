//! `terrace explain`: why a process belongs to its class, and why a page is in its tier.
//!
//! In: a pid, and optionally an address. Out: an [`Explanation`]. Must not: guess. What the engine does not know is reported as unknown.

use std::collections::BTreeMap;

use terrace_core::engine::Engine;
use terrace_core::ledger::Decision;
use terrace_core::plan::Action;
use terrace_core::units::{Bytes, SpaceId, TierId, Time, Vpn};
use terrace_linux::processes::Facts;
use terrace_run::spec::Goal;

use crate::class::{Running, State, told};
use crate::protocol::{Code, Response};
use crate::table::{Place, Table};
use crate::view::{Explanation, PageExplanation, Refused, SCHEMA_VERSION, TierBytes};

/// Answers the question.
pub(crate) fn explain(
    pid: u32,
    address: Option<u64>,
    table: &Table,
    classes: &[Running],
    tiers: &[String],
    refused: &BTreeMap<u32, Refused>,
) -> Response {
    let Some(known) = table.get(pid) else {
        let why = match Facts::read(pid) {
            Ok(Some(_)) => format!("process {pid} is new; it will be examined in a moment"),
            Ok(None) => format!("process {pid} has no memory of its own: a kernel thread, or it has exited"),
            Err(error) => error.to_string(),
        };
        return Response::failed(Code::Unknown, why);
    };
    let mut explanation =
        Explanation { schema_version: SCHEMA_VERSION, pid, name: known.name.clone(), ..Explanation::default() };
    let Place::Class { name, why } = &known.place else {
        explanation.why = match &known.place {
            Place::Excluded => "it is never touched: it is Terrace itself, or daemon.exclude names it".to_owned(),
            Place::LeftAlone(why) => format!("a class has everything, but for what holds the machine up: {why}"),
            _ => "no class matches it, so it is not managed".to_owned(),
        };
        return Response::done(explanation);
    };
    explanation.class = Some(name.clone());
    explanation.why = why.clone();
    if let Some(refusal) = refused.get(&pid) {
        explanation.why = format!("{why}, and it is not managed: {}", refusal.reason);
        return Response::done(explanation);
    }
    let running = classes.iter().find(|running| running.class.name == *name);
    let managed = running.and_then(|running| {
        let manager = running.manager()?;
        let space = manager.processes().find(|(_, process, _)| process.pid() == pid).map(|(space, ..)| space)?;
        Some((running, manager.engine(), space, manager.now()))
    });
    let Some((running, engine, space, now)) = managed else {
        explanation.why = format!("{why}, and it is not managed yet");
        return Response::done(explanation);
    };
    let used = |tier: usize| Bytes::of_pages(engine.pages().used(space, TierId(tier as u8))).get();
    explanation.tiers =
        tiers.iter().enumerate().map(|(tier, name)| TierBytes { tier: name.clone(), bytes: used(tier) }).collect();
    explanation.page = address.map(|address| page(address, running, engine, space, now, tiers));
    Response::done(explanation)
}

fn page(
    address: u64,
    running: &Running,
    engine: &Engine,
    space: SpaceId,
    now: Time,
    tiers: &[String],
) -> PageExplanation {
    let vpn = Vpn::of_address(address);
    let mut view = PageExplanation { address: vpn.address(), ..PageExplanation::default() };
    let Some(id) = engine.pages().find(space, vpn) else {
        view.because =
            "no scan has found memory at this address: it is not mapped, never touched, locked, or of a kind that is \
                        not managed (shared memory and files are only on request)"
                .to_owned();
        return view;
    };
    let name = |tier: TierId| tiers.get(tier.index()).cloned().unwrap_or_default();
    let page = engine.pages()[id];
    view.tier = page.tier().map(name);
    view.huge = engine.pages().block(id.block()).is_some_and(|block| block.huge);
    view.heat = page.heat;
    if engine.policy_name() == "age" {
        view.idle_seconds = terrace_policies::age::idle_time(&page, now).map(|idle| idle.as_secs_f64());
    }
    view.demoted = page.demoted();
    view.ping_pong = page.ping_pong();
    view.pinned = page.pinned();
    let decisions: Vec<&Decision> = engine.ledger().explain(space, vpn).take(5).collect();
    view.decisions = decisions.iter().map(|decision| line(decision, now, tiers)).collect();
    view.because = because(&view, running, engine, decisions.first().copied(), now);
    view
}

fn line(decision: &Decision, now: Time, tiers: &[String]) -> String {
    let name = |tier: TierId| tiers.get(tier.index()).map_or("?", String::as_str);
    let what = match decision.action {
        Action::MoveTo(to) => format!("{} to {}", name(decision.from), name(to)),
        Action::Split => "huge page split".to_owned(),
        Action::Collapse => "pages collapsed".to_owned(),
    };
    format!(
        "{:.1} s ago, plan {}: {what}, {} of {} pages from {:#x} on; {}",
        now.since(decision.time).as_secs_f64(),
        decision.plan,
        decision.moved,
        decision.moved + decision.failed,
        decision.first.address(),
        told(decision.reason),
    )
}

/// Observation, rule, and the governor's decision, in one or two sentences.
fn because(page: &PageExplanation, running: &Running, engine: &Engine, last: Option<&Decision>, now: Time) -> String {
    let Some(tier) = &page.tier else {
        return "there is no memory behind it now: never touched, or freed".to_owned();
    };
    let mut text = match (page.demoted, last) {
        (true, Some(decision)) => format!(
            "Terrace moved it to {tier} {:.0} s ago, because it is {}",
            now.since(decision.time).as_secs_f64(),
            told(decision.reason)
        ),
        (true, None) => format!("Terrace moved it to {tier}; the decision is no longer kept"),
        (false, Some(decision)) if matches!(decision.action, Action::MoveTo(to) if to == TierId::FAST) => {
            format!("Terrace moved it to {tier}: {}", told(decision.reason))
        }
        (false, Some(_)) => format!("it was in slower memory and came back to {tier} when it was used"),
        (false, None) => format!("it is in {tier}, where the kernel put it"),
    };
    if let Some(idle) = page.idle_seconds {
        text += &format!("; it was last seen used {idle:.0} s ago");
    }
    text += &format!(". Policy {}, score {}", engine.policy_name(), page.heat);
    let governor = engine.governor();
    let word = match () {
        () if page.pinned => Some("the kernel refused to move it, for good".to_owned()),
        () if running.state != State::Running => Some("its class is not being managed now, so it stays".to_owned()),
        () if matches!(running.class.spec.goal, Goal::NeverSlow) => {
            Some("its class must never be in slow memory".to_owned())
        }
        () if governor.throttle().is_some() => {
            governor.throttle().map(|throttle| format!("page-outs are {}", throttle.in_words()))
        }
        () if page.ping_pong > 0 => {
            Some(format!("it came straight back after {} demotions, so it is in cooldown", page.ping_pong))
        }
        () => None,
    };
    match word {
        Some(word) => text + "; " + &word + ".",
        None => text + "; nothing prevents a move.",
    }
}
