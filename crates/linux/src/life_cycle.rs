//! Allocations and frees of pages as they happen, by eBPF, instead of finding them in the next scan of the page tables.
//!
//! In: the processes under management, events of the kernel's functions (`terrace_bpf::LifeCycle`). Out: pages that are new, with
//! their places, and ranges whose memory was given back, in the order they happened, to a [`LifeSink`]. Must not: be believed
//! before it has shown on memory of this process that it sees both ([`LifeCycle::open`]); decide what an allocation or a free means.
//!
//! Every first mapping of an anonymous folio reports an allocation: also of a page that was copied on write, came back from swap or was joined
//! to a huge one. The sink knows which pages exist, and thus which are new. Frees are reported by range, whatever was in it.

use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;

use terrace_bpf::{BpfError, LifeEvent, LifeKind};
use terrace_core::observation::PteState;
use terrace_core::policy::Needs;
use terrace_core::units::{BLOCK_PAGES, SpaceId, Vpn};

use crate::pagemap::Pagemap;
use crate::sys::private_memory::PrivateMemory;
use crate::topology::TierMap;
use crate::trackers::Target;
use crate::trackers::page_faults::contains;
use crate::trackers::places::Places;

/// Pages of the proof.
const PROOF_PAGES: usize = 96;

/// Takes allocations and frees.
pub trait LifeSink {
    /// Consecutive pages from `first` on, all of one 2 MiB block, were mapped for the first time, or again; with where they lie now.
    fn born(&mut self, space: SpaceId, first: Vpn, ptes: &[PteState]);
    /// Whatever had memory in this range has none any more.
    fn gone(&mut self, space: SpaceId, range: Range<Vpn>);
}

/// Why allocations and frees are not seen.
#[derive(Debug, thiserror::Error)]
pub enum LifeCycleError {
    /// The kernel does not take the programs, or their ring failed.
    #[error(transparent)]
    Bpf(#[from] BpfError),
    /// The trial has no memory.
    #[error("no memory for the trial: {0}")]
    Memory(io::Error),
    /// It missed allocations.
    #[error("of {touched} pages that were touched it saw {seen} be born ({share} %)", share = seen * 100 / touched)]
    Allocations {
        /// Pages that were touched.
        touched: usize,
        /// Pages that it saw.
        seen: usize,
    },
    /// It missed frees.
    #[error("of {freed} pages that were given back it saw {seen} die")]
    Frees {
        /// Pages that were given back.
        freed: usize,
        /// Pages that it saw.
        seen: usize,
    },
    /// It missed an unmapping.
    #[error("it did not see that memory was unmapped")]
    Unmapping,
}

/// The source of allocations and frees.
#[derive(Debug)]
pub struct LifeCycle {
    source: terrace_bpf::LifeCycle,
    /// What was read and not delivered yet, in order.
    waiting: Vec<LifeEvent>,
    /// Allocations of the process being delivered, between two frees.
    births: Vec<Range<u64>>,
}

impl LifeCycle {
    /// Attaches to the kernel's functions, and tries on memory of this process whether allocations and frees are seen.
    ///
    /// # Errors
    /// Why not, in one line.
    pub fn open() -> Result<LifeCycle, LifeCycleError> {
        let source = terrace_bpf::LifeCycle::open()?;
        let mut cycle = LifeCycle { source, waiting: Vec::new(), births: Vec::new() };
        cycle.prove()?;
        Ok(cycle)
    }

    /// What a policy with these needs gets, and one line that says so, or what it does without and why; nothing where it does not care.
    pub fn for_needs(needs: Needs) -> Option<(Option<LifeCycle>, String)> {
        needs.life_cycle.then(|| match LifeCycle::open() {
            Ok(cycle) => {
                let line = format!("births and deaths of pages: seen as they happen, at {}", cycle.functions().join(", "));
                (Some(cycle), line)
            }
            Err(reason) => {
                let line = format!(
                    "births and deaths of pages are not seen as they happen, only when places are read, each second at best; a page that is given \
                     back and touched again in between keeps its count: {reason}"
                );
                (None, line)
            }
        })
    }

    /// The kernel's functions that are attached to.
    pub fn functions(&self) -> &[&'static str] {
        self.source.functions()
    }

    /// Reports this process from now on.
    ///
    /// # Errors
    /// When no more processes can be watched.
    pub fn watch(&self, pid: u32) -> Result<(), BpfError> {
        self.source.watch(pid)
    }

    /// Stops reporting this process.
    pub fn forget(&mut self, pid: u32) {
        self.source.forget(pid);
        self.waiting.retain(|event| event.pid != pid);
    }

    /// Events that were lost because they came faster than they were read.
    pub fn lost(&self) -> u64 {
        self.source.lost()
    }

    /// Becomes readable when many events wait; a few wait until somebody looks.
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        self.source.event_fd()
    }

    /// Reads what happened since the last call, to be delivered.
    ///
    /// # Errors
    /// When the ring broke.
    pub fn read(&mut self) -> Result<(), BpfError> {
        self.source.drain(&mut self.waiting)
    }

    /// Passes on the records, in order, and returns whether all were passed. An allocation outside of the ranges of its process is most likely in
    /// memory that was mapped a moment ago: there the delivery stops, for the ranges to be read again, unless they are `fresh`; then
    /// it is in memory that is not managed.
    pub fn deliver(
        &mut self,
        targets: &[Target<'_>],
        tiers: &TierMap,
        places: &mut Places,
        fresh: bool,
        sink: &mut dyn LifeSink,
    ) -> bool {
        let mut at = 0;
        let mut all = true;
        while let Some(event) = self.waiting.get(at).copied() {
            let Some(target) = targets.iter().find(|target| target.process.pid() == event.pid) else {
                at += 1;
                continue;
            };
            if event.kind == LifeKind::Freed {
                let end = event.first.saturating_add(event.pages);
                sink.gone(target.space, Vpn(event.first)..Vpn(end));
                at += 1;
                continue;
            }
            // Allocations up to the next free, of this process, in any order: their tiers are read in as few calls as possible.
            self.births.clear();
            while let Some(next) =
                self.waiting.get(at).filter(|next| next.pid == event.pid && next.kind == LifeKind::Allocated)
            {
                if contains(target.ranges, Vpn(next.first)) {
                    self.births.push(next.first..next.first.saturating_add(next.pages));
                } else if !fresh {
                    all = false;
                    break;
                }
                at += 1;
            }
            join(&mut self.births);
            deliver_births(target, &self.births, tiers, places, sink);
            if !all {
                break;
            }
        }
        self.waiting.drain(..at);
        all
    }

    /// Touches every third page of a private mapping, gives every sixth back, and then the whole mapping.
    fn prove(&mut self) -> Result<(), LifeCycleError> {
        let me = std::process::id();
        self.watch(me)?;
        let mut memory = PrivateMemory::map(PROOF_PAGES).map_err(LifeCycleError::Memory)?;
        let first = memory.address() / 4096;
        let here = first..first + PROOF_PAGES as u64;
        let touched: Vec<u64> = (0..PROOF_PAGES).step_by(3).map(|page| first + page as u64).collect();
        (0..PROOF_PAGES).step_by(3).for_each(|page| memory.write(page, 1));
        (0..PROOF_PAGES).step_by(6).try_for_each(|page| memory.give_back(page, 1)).map_err(LifeCycleError::Memory)?;
        drop(memory);
        let mut told = Vec::new();
        let read = self.source.drain(&mut told);
        self.source.forget(me);
        read?;
        let (mut born, mut given_back, mut unmapped) = (Vec::new(), Vec::new(), false);
        for event in told.iter().filter(|event| event.pid == me) {
            let range = event.first..event.first.saturating_add(event.pages);
            match event.kind {
                LifeKind::Allocated => born.extend(range.filter(|page| here.contains(page))),
                LifeKind::Freed if event.pages == 1 && here.contains(&event.first) => given_back.push(event.first),
                LifeKind::Freed => unmapped |= range.start <= here.start && here.end <= range.end,
            }
        }
        let every_second: Vec<u64> = touched.iter().copied().step_by(2).collect();
        // Functions that call each other report the same free twice.
        given_back.dedup();
        match (born == touched, given_back == every_second, unmapped) {
            (true, true, true) => Ok(()),
            (false, _, _) => Err(LifeCycleError::Allocations { touched: touched.len(), seen: born.len() }),
            (_, false, _) => Err(LifeCycleError::Frees { freed: every_second.len(), seen: given_back.len() }),
            (_, _, false) => Err(LifeCycleError::Unmapping),
        }
    }
}

/// Sorts allocations by address, and joins adjacent ones.
fn join(births: &mut Vec<Range<u64>>) {
    births.sort_unstable_by_key(|range| (range.start, range.end));
    births.dedup_by(|next, kept| {
        let touches = next.start <= kept.end;
        if touches {
            kept.end = kept.end.max(next.end);
        }
        touches
    });
}

/// Reads where the new pages are, by block, and passes that to the sink.
fn deliver_births(
    target: &Target<'_>,
    births: &[Range<u64>],
    tiers: &TierMap,
    places: &mut Places,
    sink: &mut dyn LifeSink,
) {
    if births.is_empty() {
        return;
    }
    let block = u64::from(BLOCK_PAGES);
    let mut pagemap = Pagemap::open(target.process.pid()).ok();
    let nothing = [PteState::ABSENT; BLOCK_PAGES as usize];
    for birth in births {
        let mut first = birth.start;
        while first < birth.end {
            let pages = (block - first % block).min(birth.end - first) as usize;
            // A process that just exited has no page tables; its allocations are valid all the same.
            let ptes = pagemap.as_mut().and_then(|pagemap| places.ptes(pagemap, Vpn(first), pages, tiers).ok());
            sink.born(target.space, Vpn(first), ptes.unwrap_or(&nothing[..pages]));
            first += pages as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn births_are_joined_whatever_their_order() {
        let mut births = vec![9..10, 3..4, 4..8, 5..6, 20..36, 10..11];
        join(&mut births);
        assert_eq!(births, [3..8, 9..11, 20..36]);
    }
}
