//! What happened to the pages someone asked about: the answer to `explain`.
//!
//! In: events of watched pages. Out: their history, in order. Must not: grow without bound; what is beyond the bound is
//! counted.

use std::ops::Range;

use terrace_core::plan::{Action, Failure, Reason};
use terrace_core::units::{TierId, Time, Vpn};

/// Most moments kept.
const KEPT: usize = 100_000;

/// What happened.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
#[serde(rename_all = "snake_case", tag = "what")]
pub enum What {
    /// First touch: it received memory.
    Allocated {
        /// Where.
        tier: TierId,
        /// Whether as part of a huge page.
        huge: bool,
    },
    /// Its memory was given back.
    Freed,
    /// A hardware sample fell on it.
    Sampled {
        /// Whether it was a store.
        store: bool,
    },
    /// The hint-fault scanner made it inaccessible.
    Marked,
    /// The program touched it while it was inaccessible.
    HintFault {
        /// Full-size milliseconds since it was marked.
        after_ms: u64,
        /// Whether it was a write.
        write: bool,
    },
    /// A walk found it accessed.
    Accessed,
    /// It came back from compressed memory by a fault.
    Refault {
        /// Where to.
        tier: TierId,
    },
    /// The policy had it moved, split or collapsed.
    Moved {
        /// Where it lay.
        from: TierId,
        /// What was asked.
        #[serde(serialize_with = "as_text")]
        action: Action,
        /// Why, by the policy.
        reason: Reason,
        /// Why it failed, if it did.
        failure: Option<String>,
    },
    /// The kernel's reclaim moved it.
    Reclaimed {
        /// Where it lay.
        from: TierId,
        /// Where it lies.
        to: TierId,
    },
}

fn as_text<S: serde::Serializer>(action: &Action, to: S) -> Result<S::Ok, S::Error> {
    match action {
        Action::MoveTo(tier) => to.collect_str(&format_args!("move to {tier}")),
        Action::Split => to.serialize_str("split"),
        Action::Collapse => to.serialize_str("collapse"),
    }
}

/// One moment in a page's life.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Moment {
    /// When, in full-size time.
    pub time: Time,
    /// Which page.
    pub page: Vpn,
    /// What.
    #[serde(flatten)]
    pub what: What,
}

/// The history of the watched pages.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct History {
    #[serde(skip)]
    watch: Option<Range<Vpn>>,
    /// Moments, in order.
    pub moments: Vec<Moment>,
    /// Moments beyond what is kept.
    pub dropped: u64,
}

impl History {
    /// A history of these pages.
    pub fn new(watch: Option<Range<Vpn>>) -> History {
        History { watch, ..History::default() }
    }

    /// Whether a page is watched.
    #[inline]
    pub fn watches(&self, page: Vpn) -> bool {
        self.watch.as_ref().is_some_and(|watch| watch.contains(&page))
    }

    /// Enters a moment, if the page is watched.
    #[inline]
    pub fn add(&mut self, time: Time, page: Vpn, what: impl FnOnce() -> What) {
        if self.watches(page) {
            if self.moments.len() < KEPT {
                self.moments.push(Moment { time, page, what: what() });
            } else {
                self.dropped += 1;
            }
        }
    }
}

/// A failure as the history names it.
pub(crate) fn named(failure: Option<Failure>) -> Option<String> {
    failure.map(Failure::name)
}
