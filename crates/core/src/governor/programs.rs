//! Each program's own books: its budget, its probe, and what came back of it.
//!
//! In: what the work of a stretch of time cost each program. Out: whether its page-outs can be afforded or are stopped, how many of its cold pages may
//! leave. Must not: let one program pay for another, or wait for it.
//!
//! A class may have hundreds of programs, of which some start, some are busy and most are idle. What is unknown, dear or stopped for one of them says
//! nothing of the others. Where no driver tells them apart, as in a simulation, there are no such books, and the governor has one for all.

use std::collections::BTreeMap;
use std::time::Duration;

use super::pace::Pace;
use super::promotions::{Promotions, Rates};
use super::strain::Strain;
use super::sweeps::Sweeps;
use super::{GovernorConfig, Pressure, Throttle};
use crate::pages::Pages;
use crate::plan::MoveRequest;
use crate::units::{SpaceId, Time};

/// One program's.
#[derive(Clone, Debug)]
pub(super) struct Books {
    pub(super) pace: Pace,
    pub(super) strain: Strain,
    pub(super) sweeps: Sweeps,
    pub(super) promotions: Promotions,
    /// When its pressure was read last.
    read: Time,
}

impl Books {
    /// Why page-outs are stopped, or wait.
    pub(super) fn throttle(&self) -> Option<Throttle> {
        let promotions = self.promotions.stops().then_some(Throttle::Promotions);
        self.strain.throttle().filter(|cause| cause.refuses()).or(promotions).or(self.strain.throttle())
    }

    /// The factor by which idle times should be longer.
    pub(super) fn backoff(&self) -> f64 {
        self.strain.backoff().max(self.promotions.patience())
    }
}

/// See the module's header.
#[derive(Clone, Debug, Default)]
pub(super) struct Programs {
    each: BTreeMap<SpaceId, Books>,
    /// When the latest pressure of any was read.
    read: Time,
    /// Promotions of all of them, minute by minute.
    pub(super) rates: Rates,
}

impl Programs {
    /// Whether nobody tells programs apart.
    pub(super) fn is_empty(&self) -> bool {
        self.each.is_empty()
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.each.len()
    }

    pub(super) fn get(&self, space: SpaceId) -> Option<&Books> {
        self.each.get(&space)
    }

    pub(super) fn get_mut(&mut self, space: SpaceId) -> Option<&mut Books> {
        self.each.get_mut(&space)
    }

    pub(super) fn forget(&mut self, space: SpaceId) {
        self.each.remove(&space);
    }

    /// Takes what a stretch of time cost a program. Returns whether pages that its probe left out may leave now.
    pub(super) fn on_pressure(
        &mut self,
        now: Time,
        space: SpaceId,
        pressure: &Pressure,
        config: &GovernorConfig,
    ) -> bool {
        self.read = now;
        let fresh = || Books {
            pace: Pace::new(config.swap.is_some(), config.invest),
            strain: Strain::new(),
            sweeps: Sweeps::default(),
            promotions: Promotions::new(),
            read: now,
        };
        let books = self.each.entry(space).or_insert_with(fresh);
        books.read = now;
        let short = books.pace.short();
        let renewed = books.pace.on_pressure(pressure, config.refault_cost, config.max_slowdown);
        books.strain.on_pressure(pressure, config, short);
        books.sweeps.on_pressure(pressure, config);
        renewed
    }

    /// Those whose pressure was read at the latest reading: the others sleep.
    fn awake(&self) -> impl Iterator<Item = &Books> {
        self.each.values().filter(|books| books.read == self.read)
    }

    /// Why page-outs of all programs that are awake are stopped or limited, if they are. While those of one are only limited, pages leave: then the
    /// cause is its; otherwise that of the first.
    pub(super) fn throttle(&self) -> Option<Throttle> {
        let causes: Option<Vec<Throttle>> = self.awake().map(Books::throttle).collect();
        let causes = causes?;
        causes.iter().find(|cause| !cause.refuses()).or(causes.first()).copied()
    }

    /// The longest time for which pages of a program must be idle at least.
    pub(super) fn least_idle(&self) -> Duration {
        self.each.values().map(|books| books.sweeps.least_idle()).max().unwrap_or_default()
    }

    /// The longest time between sweeps of a program.
    pub(super) fn sweep_period(&self) -> Option<Duration> {
        self.each.values().filter_map(|books| books.sweeps.period()).max()
    }

    /// Whether the move at the start is under way for one of them.
    pub(super) fn invest(&self) -> bool {
        self.awake().any(|books| books.pace.invests())
    }

    /// Leaves of each program's requests for cold pages as many as its probe allows, in their order. Requests for pages of no known program wait.
    pub(super) fn thin(
        &mut self,
        requests: Vec<MoveRequest>,
        pages: &Pages,
        size: impl Fn(&MoveRequest) -> u64,
    ) -> Vec<MoveRequest> {
        let space_of = |request: &MoveRequest| pages.block(request.page.block()).map(|block| block.space);
        let mut by_program: BTreeMap<SpaceId, Vec<MoveRequest>> = BTreeMap::new();
        for request in &requests {
            if let Some(space) = space_of(request) {
                by_program.entry(space).or_default().push(*request);
            }
        }
        let mut kept: BTreeMap<SpaceId, std::vec::IntoIter<MoveRequest>> = BTreeMap::new();
        for (space, own) in by_program {
            let own = match self.each.get_mut(&space) {
                Some(books) => books.pace.thin(own, pages.footprint(space), &size),
                None => Vec::new(),
            };
            kept.insert(space, own.into_iter());
        }
        // Each program's are a part of what it asked for, in the same order.
        let mut next: BTreeMap<SpaceId, Option<MoveRequest>> =
            kept.iter_mut().map(|(space, own)| (*space, own.next())).collect();
        let its_turn = |request: &MoveRequest| {
            let Some(space) = space_of(request) else { return false };
            let (Some(next), Some(own)) = (next.get_mut(&space), kept.get_mut(&space)) else { return false };
            let found = next.as_ref() == Some(request);
            if found {
                *next = own.next();
            }
            found
        };
        let mut requests = requests;
        let mut its_turn = its_turn;
        requests.retain(|request| its_turn(request));
        requests
    }
}

#[cfg(test)]
mod tests;
