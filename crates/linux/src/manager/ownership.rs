//! Whose a page in swap is, as the manager finds out.
//!
//! In: what the mover has moved, what a round found in swap, /proc/PID/pagemap. Out: [`Input::MovedBefore`] for what Terrace had moved at another
//! address. Must not: read a page table where nothing appeared in swap, or where Terrace has moved nothing there.
//!
//! What a slot says, and how far it can be wrong, stands in `swap_slots.rs`.

use std::io;

use terrace_core::engine::{Engine, Input};
use terrace_core::units::{BLOCK_PAGES, SpaceId, Time, Vpn};

use super::Manager;
use crate::movers::PageMove;
use crate::pagemap::{Pagemap, PagemapEntry};
use crate::swap_slots::{Found, SwapSlot, SwapSlots};

/// Found pages that are looked up at once: 1.5 MiB.
const AT_ONCE: usize = 1 << 16;

impl Manager {
    /// Notes the slots of what the mover has just put into swap, and what it brought back. `moves` are those that it answered last.
    pub(super) fn note_slots(&mut self, space: SpaceId, moves: &[PageMove]) {
        let (Some(swap), Some(held)) = (self.parts.tiers.swap_tier(), self.spaces.get(&space)) else { return };
        let range = |item: &PageMove| item.vpn..Vpn(item.vpn.0 + u64::from(item.pages));
        let mut out = Vec::new();
        for (item, _) in moves.iter().zip(&self.results).filter(|(_, result)| result.done > 0) {
            if item.to == swap {
                out.push(range(item));
            } else if item.from == swap {
                self.slots.left(space, range(item));
            }
        }
        if out.is_empty() {
            return;
        }
        // A process that ended meanwhile has nothing in swap.
        let Ok(mut pagemap) = Pagemap::open(held.process.pid()) else { return };
        out.sort_unstable_by_key(|range| range.start);
        let mut entries = Vec::new();
        for run in out.chunk_by(|one, next| one.end == next.start) {
            let (first, end) = (run[0].start, run[run.len() - 1].end);
            entries.clear();
            entries.resize((end.0 - first.0) as usize, PagemapEntry::default());
            match pagemap.entries(first, &mut entries) {
                Ok(()) => self.slots.moved_out(space, first, &slots_of(&entries)),
                Err(error) => tracing::debug!(%error, "what it has just put into swap is known by address only"),
            }
        }
    }

    /// Tells the engine which of the pages that appeared in swap Terrace had moved there. `complete` says that all pages were looked at.
    pub(super) fn tell_owners(&mut self, complete: bool) {
        let now = self.now();
        let mut open: Option<(SpaceId, Pagemap)> = None;
        let mut read = |space: SpaceId, first: Vpn, entries: &mut [PagemapEntry]| {
            if open.as_ref().is_none_or(|(other, _)| *other != space) {
                let held = self.spaces.get(&space).ok_or(io::ErrorKind::NotFound)?;
                open = Some((space, Pagemap::open(held.process.pid())?));
            }
            let (_, pagemap) = open.as_mut().expect("it was opened above");
            pagemap.entries(first, entries)
        };
        settle(&mut self.slots, &mut self.parts.engine, now, complete, &mut read);
    }
}

/// Reads the entries of consecutive pages of a space.
type ReadEntries<'a> = dyn FnMut(SpaceId, Vpn, &mut [PagemapEntry]) -> io::Result<()> + 'a;

/// Claims what is Terrace's of what appeared in swap, and ends the round if it was complete.
fn settle(slots: &mut SwapSlots, engine: &mut Engine, now: Time, complete: bool, read: &mut ReadEntries<'_>) {
    let mut found = Vec::new();
    let mut entries = [PagemapEntry::default(); BLOCK_PAGES as usize];
    for (space, range) in slots.take_found() {
        for first in (range.start.0..range.end.0).step_by(entries.len()).map(Vpn) {
            let entries = &mut entries[..(range.end.0 - first.0).min(u64::from(BLOCK_PAGES)) as usize];
            if let Err(error) = read(space, first, entries) {
                // It ended meanwhile; what is in swap of it, if anything, counts as others'.
                tracing::debug!(%error, "whose pages in swap these are cannot be read");
                break;
            }
            let seen = (first.0..).map(Vpn).zip(slots_of(entries));
            found.extend(seen.filter_map(|(vpn, slot)| Some(Found { slot: slot?, space, vpn })));
            if found.len() >= AT_ONCE {
                claim(slots, engine, now, &mut found);
            }
        }
    }
    claim(slots, engine, now, &mut found);
    if complete {
        slots.end_round();
    }
}

fn claim(slots: &mut SwapSlots, engine: &mut Engine, now: Time, found: &mut Vec<Found>) {
    for (space, range) in slots.claim(found) {
        engine.handle(now, Input::MovedBefore(space, range));
    }
    found.clear();
}

fn slots_of(entries: &[PagemapEntry]) -> Vec<Option<SwapSlot>> {
    entries.iter().map(|entry| entry.swap_slot()).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::ops::Range;

    use proptest::prelude::*;
    use terrace_core::engine::{EngineConfig, Output};
    use terrace_core::governor::GovernorConfig;
    use terrace_core::observation::{Observations, PteState, ScanBatch};
    use terrace_core::plan::Action;
    use terrace_core::policy::FastGoal;
    use terrace_core::units::TierId;

    use super::super::difference::difference;
    use super::*;
    use crate::intake::Intake;
    use crate::observer::NoTap;
    use crate::process::{Backing, MemoryRange};
    use crate::trackers::Sink;

    const SWAP: TierId = TierId(1);

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Owner {
        Terrace,
        Others,
        /// Within the errors that the header of `swap_slots.rs` names.
        Unsure,
    }

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Held {
        Untouched,
        Resident,
        Swapped(u64),
    }

    type Memory = BTreeMap<u64, Held>;

    /// A kernel with some programs, and Terrace's knowledge of it.
    struct World {
        engine: Engine,
        slots: SwapSlots,
        programs: BTreeMap<SpaceId, Memory>,
        spaces: u32,
        /// Swap slots in use: by how many pages, and who put them there.
        used: BTreeMap<u64, (u32, Owner)>,
        /// In which round slots that Terrace knew were given free, and those whose page was replaced unseen.
        freed: BTreeMap<u64, u32>,
        stale: BTreeSet<u64>,
        /// Slots in use whose page moved away from each of the latest rounds, and the number of those.
        missed: BTreeMap<u64, u32>,
        rounds: u32,
        /// As the last round saw it: what is mapped, and which slots where.
        ranges: BTreeMap<SpaceId, Vec<MemoryRange>>,
        seen: BTreeMap<(SpaceId, u64), u64>,
    }

    impl World {
        fn new() -> World {
            let policy = terrace_policies::build("age", terrace_policies::Settings::default()).unwrap();
            let tiers = vec![1 << 20, 1 << 20];
            let config = EngineConfig { tiers, goal: FastGoal::Pages(u64::MAX), governor: GovernorConfig::default() };
            World {
                engine: Engine::new(config, policy),
                slots: SwapSlots::default(),
                programs: BTreeMap::from([(SpaceId(0), Memory::new())]),
                spaces: 1,
                used: BTreeMap::new(),
                freed: BTreeMap::new(),
                stale: BTreeSet::new(),
                missed: BTreeMap::new(),
                rounds: 0,
                ranges: BTreeMap::new(),
                seen: BTreeMap::new(),
            }
        }

        fn program(&self, number: u8) -> Option<SpaceId> {
            self.programs.keys().nth(number as usize % self.programs.len().max(1)).copied()
        }

        fn release(&mut self, held: Held) {
            let Held::Swapped(slot) = held else { return };
            let (users, owner) = self.used.get_mut(&slot).unwrap();
            *users -= 1;
            let (users, owner) = (*users, *owner);
            if users == 0 {
                self.used.remove(&slot);
                if owner != Owner::Others {
                    self.freed.insert(slot, self.rounds);
                }
            }
        }

        fn set(&mut self, space: SpaceId, vpn: u64, held: Held) {
            if let Some(before) = self.programs.get_mut(&space).unwrap().insert(vpn, held) {
                self.release(before);
            }
        }

        fn unmap(&mut self, space: SpaceId, range: Range<u64>) -> Memory {
            let memory = self.programs.get_mut(&space).unwrap();
            let mut taken = memory.split_off(&range.start);
            memory.append(&mut taken.split_off(&range.end));
            taken
        }

        fn put_out(&mut self, space: SpaceId, vpn: u64, owner: Owner) -> u64 {
            // The lowest that is free: slots are used again as soon as they can be.
            let slot = (1..).find(|slot| !self.used.contains_key(slot)).unwrap();
            let known = self.engine.pages().find(space, Vpn(vpn)).and_then(|page| self.engine.pages()[page].tier());
            let recent = self.freed.get(&slot).is_some_and(|round| self.rounds - round < 2);
            let unsure = owner == Owner::Others && (recent || self.stale.contains(&slot) || known == Some(SWAP));
            self.used.insert(slot, (1, if unsure { Owner::Unsure } else { owner }));
            self.set(space, vpn, Held::Swapped(slot));
            slot
        }

        fn resident(&self, space: SpaceId, range: Range<u64>) -> Vec<u64> {
            let memory = self.programs[&space].range(range);
            memory.filter(|(_, held)| **held == Held::Resident).map(|(vpn, _)| *vpn).collect()
        }

        fn apply(&mut self, step: &Step) {
            let Some(space) = self.program(step.program) else { return };
            let range = step.at..step.at + step.pages;
            match step.what {
                What::Map => {
                    for vpn in range {
                        self.programs.get_mut(&space).unwrap().entry(vpn).or_insert(Held::Untouched);
                    }
                }
                What::Touch => {
                    let mapped: Vec<u64> = self.programs[&space].range(range).map(|(vpn, _)| *vpn).collect();
                    mapped.into_iter().for_each(|vpn| self.set(space, vpn, Held::Resident));
                }
                What::Unmap => self.unmap(space, range).into_values().for_each(|held| self.release(held)),
                What::Move(to) => {
                    let moved = self.unmap(space, range);
                    moved.iter().for_each(|(vpn, held)| self.set(space, vpn - step.at + to, *held));
                }
                What::Terrace => {
                    for vpn in self.resident(space, range) {
                        self.terrace_puts_out(space, vpn);
                    }
                }
                What::Others => {
                    for vpn in self.resident(space, range) {
                        self.put_out(space, vpn, Owner::Others);
                    }
                }
                What::Fork if self.programs.len() < 4 => {
                    let memory = self.programs[&space].clone();
                    for held in memory.values() {
                        if let Held::Swapped(slot) = held {
                            self.used.get_mut(slot).unwrap().0 += 1;
                        }
                    }
                    self.programs.insert(SpaceId(self.spaces), memory);
                    self.spaces += 1;
                }
                What::Fork => {}
                What::Exec => self.unmap(space, 0..u64::MAX).into_values().for_each(|held| self.release(held)),
                What::Exit => {
                    self.unmap(space, 0..u64::MAX).into_values().for_each(|held| self.release(held));
                    self.programs.remove(&space);
                    self.ranges.remove(&space);
                    self.slots.left(space, Vpn(0)..Vpn(u64::MAX));
                    self.engine.handle(Time::ZERO, Input::Exited(space));
                }
                What::Round => self.round(None),
                What::RoundMeanwhileMove(to) => self.round(Some(&Step { what: What::Move(to), ..step.clone() })),
            }
        }

        /// What the engine makes of a plan that was carried out, and the manager of its outcome.
        fn terrace_puts_out(&mut self, space: SpaceId, vpn: u64) {
            let Some(page) = self.engine.pages().find(space, Vpn(vpn)) else { return };
            if self.engine.pages()[page].tier() != Some(TierId::FAST) {
                return;
            }
            let slot = self.put_out(space, vpn, Owner::Terrace);
            self.seen.insert((space, vpn), slot);
            self.slots.moved_out(space, Vpn(vpn), &[SwapSlot::new(0, slot)]);
            let scan = ScanBatch { first: page, ptes: &[PteState::placed(SWAP)], window: None, cleared: false };
            self.engine.handle(Time::ZERO, Input::Observed(Observations::Scan(scan)));
            self.engine.handle(Time::ZERO, Input::MovedBefore(space, Vpn(vpn)..Vpn(vpn + 1)));
        }

        fn round(&mut self, meanwhile: Option<&Step>) {
            for (space, memory) in &self.programs {
                let mut now: Vec<MemoryRange> = Vec::new();
                for vpn in memory.keys().map(|vpn| Vpn(*vpn)) {
                    match now.last_mut() {
                        Some(last) if last.end == vpn => last.end = Vpn(vpn.0 + 1),
                        _ => now.push(MemoryRange { start: vpn, end: Vpn(vpn.0 + 1), backing: Backing::Anonymous }),
                    }
                }
                let before = self.ranges.insert(*space, now.clone()).unwrap_or_default();
                for gone in difference(&before, &now) {
                    self.seen.retain(|(other, vpn), _| other != space || !(gone.start.0..gone.end.0).contains(vpn));
                    self.slots.left(*space, gone.clone());
                    self.engine.handle(Time::ZERO, Input::Unmapped(*space, gone));
                }
            }
            if let Some(step) = meanwhile {
                self.apply(step);
            }
            let mut tap = NoTap;
            let mut intake = Intake::new(&mut self.engine, &mut tap, Time::ZERO).with_swap(&mut self.slots, Some(SWAP));
            let seen = std::mem::take(&mut self.seen);
            let mut looked_at = BTreeSet::new();
            for (space, ranges) in &self.ranges {
                let memory = &self.programs[space];
                for range in ranges {
                    let mut at = range.start.0;
                    while at < range.end.0 {
                        let end = range.end.0.min(Vpn(at).block_start().0 + u64::from(BLOCK_PAGES));
                        let pte = |vpn| match memory.get(&vpn) {
                            Some(Held::Resident) => PteState::placed(TierId::FAST),
                            Some(Held::Swapped(_)) => PteState::placed(SWAP),
                            _ => PteState::ABSENT,
                        };
                        let ptes: Vec<PteState> = (at..end).map(pte).collect();
                        intake.scan(*space, Vpn(at), &ptes, None, false);
                        for vpn in at..end {
                            let Some(Held::Swapped(slot)) = memory.get(&vpn) else { continue };
                            looked_at.insert(*slot);
                            // Another page than before, and nothing shows it.
                            if let Some(before) = seen.get(&(*space, vpn)).filter(|before| *before != slot) {
                                self.stale.insert(*before);
                                self.used.get_mut(slot).unwrap().1 = Owner::Unsure;
                            }
                            self.seen.insert((*space, vpn), *slot);
                        }
                        at = end;
                    }
                }
            }
            self.missed.retain(|slot, _| self.used.contains_key(slot) && !looked_at.contains(slot));
            for (slot, (_, owner)) in self.used.iter_mut().filter(|(slot, _)| !looked_at.contains(slot)) {
                let rounds = self.missed.entry(*slot).or_default();
                *rounds += 1;
                if *rounds >= 2 {
                    *owner = Owner::Unsure;
                }
            }
            let programs = &self.programs;
            let mut read = |space: SpaceId, first: Vpn, entries: &mut [PagemapEntry]| {
                for (vpn, entry) in (first.0..).zip(entries) {
                    *entry = match programs[&space].get(&vpn) {
                        Some(Held::Swapped(slot)) => PagemapEntry(1 << 62 | slot << 5),
                        Some(Held::Resident) => PagemapEntry(1 << 63 | 1),
                        _ => PagemapEntry(0),
                    };
                }
                Ok(())
            };
            settle(&mut self.slots, &mut self.engine, Time::ZERO, true, &mut read);
            self.rounds += 1;
        }

        /// Pages in swap by whom the engine says, compared with whom it was: right ones of Terrace, of others, and wrong ones.
        fn judge(&self) -> (u64, u64, Vec<(SpaceId, u64, Owner)>) {
            let (mut terrace, mut others, mut wrong) = (0, 0, Vec::new());
            for ((space, vpn), slot) in &self.seen {
                let owner = self.used.get(slot).map_or(Owner::Unsure, |(_, owner)| *owner);
                let page = self.engine.pages().find(*space, Vpn(*vpn)).unwrap();
                match (owner, self.engine.pages()[page].demoted()) {
                    (Owner::Unsure, _) => {}
                    (Owner::Terrace, true) => terrace += 1,
                    (Owner::Others, false) => others += 1,
                    (owner, _) => wrong.push((*space, *vpn, owner)),
                }
            }
            (terrace, others, wrong)
        }

        fn check(&self, terrace: u64, others: u64, when: &str) {
            assert_eq!(self.judge(), (terrace, others, Vec::new()), "{when}");
        }
    }

    #[derive(Clone, Debug)]
    enum What {
        Map,
        Touch,
        Unmap,
        Move(u64),
        Terrace,
        Others,
        Fork,
        Exec,
        Exit,
        Round,
        RoundMeanwhileMove(u64),
    }

    #[derive(Clone, Debug)]
    struct Step {
        what: What,
        program: u8,
        at: u64,
        pages: u64,
    }

    fn step(what: What, at: u64, pages: u64) -> Step {
        Step { what, program: 0, at, pages }
    }

    fn any_step() -> impl Strategy<Value = Step> {
        let what = prop_oneof![
            2 => Just(What::Map),
            3 => Just(What::Touch),
            1 => Just(What::Unmap),
            3 => (0u64..1500).prop_map(What::Move),
            4 => Just(What::Terrace),
            3 => Just(What::Others),
            1 => Just(What::Fork),
            1 => Just(What::Exec),
            1 => Just(What::Exit),
            8 => Just(What::Round),
            1 => (0u64..1500).prop_map(What::RoundMeanwhileMove),
        ];
        (what, any::<u8>(), 0u64..1500, 1u64..300).prop_map(|(what, program, at, pages)| Step {
            what,
            program,
            at,
            pages,
        })
    }

    proptest! {
        /// Whatever is mapped, moved, split, merged, forked and executed: after each round each page in swap counts as whose it is.
        #[test]
        fn whoever_put_a_page_out_is_known_wherever_it_goes(steps in proptest::collection::vec(any_step(), 1..60)) {
            let mut world = World::new();
            for what in [What::Map, What::Touch, What::Round, What::Terrace, What::Round] {
                world.apply(&step(what, 0, 900));
            }
            world.check(900, 0, "at first");
            for step in &steps {
                let before = world.rounds;
                world.apply(step);
                if world.rounds > before {
                    prop_assert_eq!(world.judge().2, Vec::new(), "after {:?}", step);
                }
            }
        }
    }

    #[test]
    fn a_vector_that_grows_takes_its_owner_along() {
        let mut world = World::new();
        world.apply(&step(What::Map, 0, 600));
        world.apply(&step(What::Touch, 0, 600));
        world.apply(&step(What::Round, 0, 0));
        world.apply(&step(What::Terrace, 0, 500));
        world.apply(&step(What::Others, 500, 50));
        world.apply(&step(What::Round, 0, 0));
        world.check(500, 50, "before");
        // It grows twice between two rounds, and new memory takes its old place.
        world.apply(&step(What::Move(2000), 0, 600));
        world.apply(&step(What::Move(3000), 2000, 600));
        world.apply(&step(What::Map, 0, 600));
        world.apply(&step(What::Touch, 0, 600));
        world.apply(&step(What::Round, 0, 0));
        world.check(500, 50, "moved");
        // A part of it is unmapped, the rest moves while a round looks, and both halves join.
        world.apply(&step(What::Unmap, 3100, 100));
        world.apply(&step(What::RoundMeanwhileMove(5000), 3200, 400));
        world.apply(&step(What::Round, 0, 0));
        world.check(400, 50, "split");
        // A child has it, too, and keeps it when its parent executes another program.
        world.apply(&step(What::Fork, 0, 0));
        world.apply(&step(What::Exec, 0, 0));
        world.apply(&step(What::Round, 0, 0));
        world.check(400, 50, "forked");
        world.apply(&step(What::Exit, 0, 0));
        world.apply(&step(What::Move(9000), 3000, 2400));
        world.apply(&step(What::Round, 0, 0));
        world.check(400, 50, "inherited");
        // What was found so is brought back as what Terrace moved, from where it is now.
        let (engine, heir) = (&mut world.engine, SpaceId(1));
        engine.handle(Time::ZERO, Input::Drain(true));
        let mut back = BTreeSet::new();
        while let Output::Move(plan) = engine.poll(Time::ZERO) {
            for item in &plan.moves {
                assert_eq!((item.from, &item.action), (SWAP, &Action::MoveTo(TierId::FAST)));
                back.insert(engine.pages().locate(item.page));
            }
            let done = |item: &terrace_core::plan::Move| terrace_core::plan::Outcome {
                item: *item,
                done: item.pages,
                failure: None,
            };
            let outcomes: Vec<_> = plan.moves.iter().map(done).collect();
            engine.handle(Time::ZERO, Input::Moved(&outcomes));
        }
        assert_eq!(back.len(), 400);
        assert!(back.iter().all(|(space, vpn)| *space == heir && vpn.0 >= 9000));
    }

    #[test]
    fn a_slot_that_others_got_later_is_theirs() {
        let mut world = World::new();
        for what in [What::Map, What::Touch, What::Round, What::Terrace, What::Round, What::Touch] {
            world.apply(&step(what, 0, 400));
        }
        world.apply(&step(What::Round, 0, 0));
        world.apply(&step(What::Round, 0, 0));
        assert!(world.used.is_empty());
        world.apply(&step(What::Others, 0, 400));
        world.apply(&step(What::Round, 0, 0));
        world.check(0, 400, "the same slots, and other pages");
    }
}
