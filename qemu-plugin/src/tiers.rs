//! Counts a guest's accesses by the tier that serves them, through a modelled cache and TLBs.
//!
//! In: accesses by physical and virtual address, and by process where programs are distinguished (`whose`). Out: a line of JSON per interval of accesses: how many there were, how many
//! missed the cache and were served by each tier, and how long they take on the modelled machine. Must not: call into QEMU, or
//! know which program is managed how.
//!
//! The time is that of the accesses alone: cache hits, misses at the latency that each tier has under the load of the stretch
//! (`terrace_machine::load`), and page walks. Computing, faults and moving pages are not in it: the guest's own counters have them.
//!
//! Where the guest is to have samples ([`SampleRing`]), accesses to other addresses are sampled as well, behind a cache of their own:
//! they are not counted, and must not touch the cache of those that are.

use std::fs::File;
use std::io::{self, BufWriter, Write};

use terrace_core::units::{Bytes, TierId};
use terrace_machine::cache::{Cache, Filtered, LINE_BYTES, LINE_SHIFT};
use terrace_machine::load::{Rates, ThreadWork, Traffic, Wait, solve_among};
use terrace_machine::preset::{Machine, PresetError};
use terrace_machine::scale::Scale;
use terrace_machine::tlb::{Tlb, Translation};

use crate::memory::GuestMemory;
use crate::options::{ProgramOptions, TierOptions};
use crate::samples::{Kind, SampleRing};
use crate::whose::Whose;

/// The tiers told apart here.
const TIERS: usize = 2;

/// What was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Counts {
    /// Accesses to the addresses in question.
    pub(crate) accesses: u64,
    /// Those whose page lay in each tier.
    pub(crate) in_tier: [u64; TIERS],
    /// Those that missed the cache, by tier.
    pub(crate) misses: [u64; TIERS],
    /// Misses of the TLBs.
    pub(crate) walks: u64,
    /// What they take on the modelled machine.
    pub(crate) nanos: f64,
}

/// An odd number that spreads small ones over 32 bits: 2^32 over the golden ratio.
const SPREAD: u32 = 0x9e37_79b9;

/// Of whom an access is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Of {
    /// Of a process that counts, by its number.
    Counted(u32),
    /// Of anything else.
    Others,
}

/// The model and its counts.
pub(crate) struct Tiers {
    options: TierOptions,
    machine: Machine,
    cache: Cache,
    tlb: Tlb,
    rates: Rates,
    work: ThreadWork,
    traffic: [Traffic; TIERS],
    stretch: Counts,
    output: BufWriter<File>,
    sampling: Option<Sampling>,
    whose: Option<Whose>,
}

/// Samples, and the cache of what is not counted.
struct Sampling {
    ring: SampleRing,
    others: Cache,
}

/// Why it cannot begin.
#[derive(Debug)]
pub(crate) enum BeginError {
    /// The output cannot be written.
    Output(io::Error),
    /// The memory for samples cannot be used.
    Samples(io::Error),
    /// There is no such machine.
    Machine(PresetError),
    /// It has one tier of memory.
    OneTier,
    /// The guest's memory cannot be read.
    Memory(String),
}

impl Tiers {
    /// Begins to count.
    pub(crate) fn begin(options: TierOptions) -> Result<Tiers, BeginError> {
        let machine = Machine::preset(&options.machine).map_err(BeginError::Machine)?;
        if machine.tiers.len() < TIERS {
            return Err(BeginError::OneTier);
        }
        let output = File::create(&options.output).map_err(BeginError::Output)?;
        let processor = machine.processor;
        let ring = options.samples.as_deref().map(SampleRing::begin).transpose().map_err(BeginError::Samples)?;
        let others = || Cache::new(Bytes::new(options.cache_bytes), processor.cache.ways);
        let whose = |programs: &ProgramOptions| {
            GuestMemory::of(programs).map(|memory| Whose::new(memory, programs.labels.clone()))
        };
        Ok(Tiers {
            whose: options.programs.as_ref().map(whose).transpose().map_err(BeginError::Memory)?,
            sampling: ring.map(|ring| Sampling { ring, others: others() }),
            cache: Cache::new(Bytes::new(options.cache_bytes), processor.cache.ways),
            tlb: Tlb::new(&processor.tlb, Scale::FULL),
            rates: Rates::of(&processor),
            work: ThreadWork::default(),
            traffic: [Traffic::default(); TIERS],
            stretch: Counts::default(),
            output: BufWriter::new(output),
            options,
            machine,
        })
    }

    /// Whether accesses are distinguished by who makes them, for which [`Tiers::watched`] has to hear of the processor.
    pub(crate) fn tells_programs(&self) -> bool {
        self.whose.is_some()
    }

    /// What hears of blocks of code and of switches between tasks.
    #[inline]
    pub(crate) fn watched(&mut self) -> Option<&mut Whose> {
        self.whose.as_mut()
    }

    /// What an access to this virtual address is to [`Tiers::access`], if it is of interest.
    #[inline]
    pub(crate) fn wants(&mut self, address: u64) -> Option<Of> {
        let process = match &mut self.whose {
            None => self.options.addresses.contains(&address).then_some(0),
            Some(whose) => whose.process(),
        };
        match process {
            Some(process) => Some(Of::Counted(process)),
            None => self.sampling.is_some().then_some(Of::Others),
        }
    }

    #[inline]
    fn tier(&self, physical: u64) -> usize {
        usize::from(physical >= self.options.fast_bytes)
    }

    /// One access. QEMU's "physical address" is one of its own numbering: the first node's memory comes first in it.
    #[inline]
    pub(crate) fn access(&mut self, of: Of, address: u64, physical: u64, write: bool) {
        let Of::Counted(process) = of else {
            self.uncounted(address, physical, write);
            return;
        };
        let tier = self.tier(physical);
        self.stretch.accesses += 1;
        self.stretch.in_tier[tier] += 1;
        // The page's number in the low 31 bits of the virtual one: what a process maps spans less than 8 TiB, or begins at a third, at two thirds and at
        // the end of the addresses. Processes are set apart as by address space identifiers.
        let page = ((address >> 12) as u32).wrapping_add(process.wrapping_mul(SPREAD)) & 0x7fff_ffff;
        match self.tlb.translate(page, false) {
            Translation::First => {}
            Translation::Second => self.work.stall_ns += self.machine.processor.tlb.second_hit_ns,
            Translation::Walk => {
                self.stretch.walks += 1;
                self.work.stall_ns += self.machine.processor.tlb.walk_small_ns;
            }
        }
        let filtered = self.cache.access(physical >> LINE_SHIFT, write);
        self.sample(address, filtered, write);
        match filtered {
            Filtered::Hit => self.work.cache_hits += 1,
            Filtered::Miss { writeback } => {
                self.stretch.misses[tier] += 1;
                let wait = if write { Wait::Store } else { Wait::Load };
                self.work.misses[tier][wait as usize] += 1;
                self.traffic[tier].read += LINE_BYTES as f64;
                if let Some(line) = writeback {
                    self.traffic[self.tier(line << LINE_SHIFT)].written += LINE_BYTES as f64;
                }
            }
        }
        if self.stretch.accesses >= self.options.every {
            self.end_stretch();
        }
    }

    fn uncounted(&mut self, address: u64, physical: u64, write: bool) {
        let Some(sampling) = &mut self.sampling else { return };
        let filtered = sampling.others.access(physical >> LINE_SHIFT, write);
        self.sample(address, filtered, write);
    }

    /// As processors do: loads that missed the cache, and stores whether they did or not.
    #[inline]
    fn sample(&mut self, address: u64, filtered: Filtered, write: bool) {
        let Some(Sampling { ring, .. }) = &mut self.sampling else { return };
        let told = match (write, filtered) {
            (true, _) => ring.event(Kind::Store, address),
            (false, Filtered::Miss { .. }) => ring.event(Kind::Load, address),
            (false, Filtered::Hit) => Ok(()),
        };
        if let Err(error) = told {
            eprintln!("terrace-qemu-plugin: the memory for samples: {error}");
            std::process::exit(74);
        }
    }

    /// Writes the line of a stretch that is over.
    pub(crate) fn end_stretch(&mut self) {
        if self.stretch.accesses == 0 {
            return;
        }
        let tiers = &self.machine.tiers[..TIERS];
        let solved = solve_among(tiers, &self.traffic, &[self.work], &self.rates, 1.0);
        self.stretch.nanos = solved.nanos;
        let Counts { accesses, in_tier, misses, walks, nanos } = self.stretch;
        let written = writeln!(
            self.output,
            "{{\"accesses\":{accesses},\"in_fast\":{},\"in_slow\":{},\"misses_fast\":{},\"misses_slow\":{},\
             \"walks\":{walks},\"nanoseconds\":{nanos:.0}}}",
            in_tier[0], in_tier[1], misses[0], misses[1],
        )
        .and_then(|()| self.output.flush());
        if let Err(error) = written {
            eprintln!("terrace-qemu-plugin: {}: {error}", self.options.output.display());
            std::process::exit(74);
        }
        self.stretch = Counts::default();
        self.work = ThreadWork::default();
        self.traffic = [Traffic::default(); TIERS];
    }
}

const _: () = assert!(TIERS <= TierId::MAX);

#[cfg(test)]
mod tests {
    use super::*;

    const FAST: u64 = 1 << 30;

    fn lines(cache_bytes: u64, accesses: impl Iterator<Item = (u64, bool)>) -> Vec<String> {
        let output = std::env::temp_dir().join(format!("terrace-tiers-{}-{cache_bytes}", std::process::id()));
        let mut tiers = Tiers::begin(TierOptions {
            output: output.clone(),
            fast_bytes: FAST,
            addresses: 0..1 << 47,
            every: 1000,
            cache_bytes,
            machine: "cxl-170".to_owned(),
            samples: None,
            programs: None,
        })
        .unwrap_or_else(|error| panic!("{error:?}"));
        accesses.for_each(|(physical, write)| {
            let of = tiers.wants(physical).unwrap();
            tiers.access(of, physical, physical, write);
        });
        tiers.end_stretch();
        let text = std::fs::read_to_string(&output).unwrap();
        std::fs::remove_file(&output).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    fn number(line: &str, key: &str) -> f64 {
        let rest = line.split(&format!("\"{key}\":")).nth(1).unwrap();
        rest.split([',', '}']).next().unwrap().parse().unwrap()
    }

    #[test]
    fn accesses_are_told_apart_by_tier_and_slow_ones_take_longer() {
        // Lines side by side: few page walks, which cost the same in both tiers.
        let fast = lines(1 << 16, (0..1000).map(|line| (line * 64, false)));
        let slow = lines(1 << 16, (0..1000).map(|line| (FAST + line * 64, false)));
        assert_eq!((number(&fast[0], "misses_fast"), number(&fast[0], "misses_slow")), (1000.0, 0.0));
        assert_eq!((number(&slow[0], "misses_fast"), number(&slow[0], "in_slow")), (0.0, 1000.0));
        assert!(number(&slow[0], "nanoseconds") > 1.3 * number(&fast[0], "nanoseconds"), "{slow:?} {fast:?}");
    }

    #[test]
    fn what_the_cache_serves_reaches_no_tier() {
        let text = lines(1 << 17, (0..2500).map(|access| (access % 16 * 64, true)));
        assert_eq!(text.len(), 3, "a line for every thousand, and the rest");
        assert_eq!(number(&text[0], "misses_fast"), 16.0);
        assert_eq!((number(&text[1], "misses_fast"), number(&text[2], "accesses")), (0.0, 500.0));
    }
}
