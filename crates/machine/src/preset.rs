//! Machines as presets describe them: tiers, processor, and what management costs; every number with its source.
//!
//! In: TOML text. Out: a checked [`Machine`], or an error that names the key and what was expected. Must not: read a
//! file, or let a number pass that is not finite, is zero where that makes no sense, or has no source.

use std::collections::BTreeMap;

use serde::Deserialize;
use terrace_core::units::{Bytes, PAGE_BYTES, TierId};

use crate::cache::LINE_BYTES;
use crate::units;

/// Page walkers of a core that are modelled at most.
const MOST_WALKERS: u32 = 8;
/// Cores, bytes of last-level cache and TLB entries of a level at most: tables are made of these sizes, and the largest processors sold have a fifth of each.
const MOST_CORES: u32 = 1024;
const MOST_CACHE: Bytes = Bytes::gib(8);
const MOST_ENTRIES: u32 = 1 << 16;
/// Largest unit of a medium, in lines: a buffer's slot has a bit for each.
const MOST_UNIT_LINES: u64 = 32;
/// Largest buffer of such units.
const MOST_UNIT_BUFFER: Bytes = Bytes::gib(1);
/// Longest name of a machine or tier.
const LONGEST_NAME: usize = 64;

/// The presets that come with Terrace, by name.
const PRESETS: [(&str, &str); 10] = [
    ("optane-6252", include_str!("../../../machines/optane-6252.toml")),
    ("optane-6230n", include_str!("../../../machines/optane-6230n.toml")),
    ("optane-8260l", include_str!("../../../machines/optane-8260l.toml")),
    ("cxl-pond", include_str!("../../../machines/cxl-pond.toml")),
    ("cxl-170", include_str!("../../../machines/cxl-170.toml")),
    ("cxl-250", include_str!("../../../machines/cxl-250.toml")),
    ("memtis-nvm", include_str!("../../../machines/memtis-nvm.toml")),
    ("memtis-cxl", include_str!("../../../machines/memtis-cxl.toml")),
    ("three-tier", include_str!("../../../machines/three-tier.toml")),
    ("zram-vm", include_str!("../../../machines/zram-vm.toml")),
];

/// A machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// The name it is found by.
    pub name: String,
    /// What it stands for, in a sentence.
    pub summary: String,
    /// Cores, cache and address translation.
    pub processor: Processor,
    /// Memory, fastest first.
    pub tiers: Vec<Tier>,
    /// What management costs.
    pub management: Management,
    /// Where each number comes from: key, value as written, source; in the order of the keys.
    pub sources: Vec<Source>,
}

/// Where a number of a preset comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The key, with its table: `tiers.dram.read_latency`.
    pub key: String,
    /// The value as the preset writes it.
    pub value: String,
    /// The source.
    pub source: String,
}

/// Cores, cache and address translation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Processor {
    /// Cores that programs run on.
    pub cores: u32,
    /// Cycles a second.
    pub frequency_hertz: f64,
    /// Cache misses one thread keeps in flight on average, where a workload does not say.
    pub memory_parallelism: f64,
    /// Lines of a stream that the hardware prefetcher keeps in flight for one thread; no less than `memory_parallelism`, which a
    /// machine without the key has.
    pub stream_parallelism: f64,
    /// The last-level cache.
    pub cache: CacheSpec,
    /// Address translation.
    pub tlb: TlbSpec,
}

/// The last-level cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CacheSpec {
    /// Bytes it holds.
    pub capacity: Bytes,
    /// Its ways.
    pub ways: u32,
    /// Nanoseconds of a hit, beyond what the program's own compute time holds.
    pub hit_ns: f64,
}

/// One TLB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TlbLevel {
    /// Entries.
    pub entries: u32,
    /// Entries a set.
    pub ways: u32,
}

/// Address translation of one core.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TlbSpec {
    /// First level, 4 KiB entries.
    pub first_small: TlbLevel,
    /// First level, 2 MiB entries.
    pub first_huge: TlbLevel,
    /// Second level, shared by both sizes.
    pub second: TlbLevel,
    /// Nanoseconds a hit in the second level adds.
    pub second_hit_ns: f64,
    /// Nanoseconds of a walk down to a 4 KiB entry, walk caches and the memory latency of the last entry included.
    pub walk_small_ns: f64,
    /// Nanoseconds of a walk down to a 2 MiB entry.
    pub walk_huge_ns: f64,
    /// Walks a core has under way at a time.
    pub walkers: u32,
}

/// What a tier is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TierKind {
    /// Loads and stores reach it.
    Memory,
    /// Swap in compressed memory: a touch is a fault, and the page comes back as a whole.
    Compressed,
}

/// How reads and writes share a tier's bandwidth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Channel {
    /// One set of wires or media for both: their utilisations add up (DDR, Optane).
    Shared,
    /// A direction each: the busier one counts (CXL, UPI).
    Duplex,
}

/// A tier.
#[derive(Clone, Debug, PartialEq)]
pub struct Tier {
    /// Its name in reports.
    pub name: String,
    /// What it is made of.
    pub kind: TierKind,
    /// Bytes the full-size machine has of it.
    pub capacity: Bytes,
    /// Nanoseconds of an idle read. For compressed memory: of bringing one 4 KiB page back.
    pub read_latency_ns: f64,
    /// Nanoseconds a store that misses the cache waits. For compressed memory: of putting one 4 KiB page away.
    pub write_latency_ns: f64,
    /// Peak bytes a second read.
    pub read_bandwidth: f64,
    /// Peak bytes a second written.
    pub write_bandwidth: f64,
    /// How reads and writes share it.
    pub channel: Channel,
    /// How latency rises with load.
    pub loading: Loading,
    /// Bytes the medium moves at least for one access; more than a line where its internal unit is larger.
    pub access_unit: Bytes,
    /// Bytes a second that one core reads of it when it copies pages, however fast the other side is.
    pub copy_read: f64,
    /// Bytes a second that one core writes to it when it copies or clears pages.
    pub copy_write: f64,
    /// Bytes of the buffer in which accesses to one unit meet, where the unit is larger than a line.
    pub unit_buffer: Bytes,
    /// Bytes of program memory one byte of it holds; 1 unless compressed.
    pub ratio: f64,
}

/// Latency under load: `idle * (1 + weight * u^exponent / (1 - u))` at utilisation `u`, held below [`Loading::limit`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Loading {
    /// How much queueing adds: 0 is none.
    pub weight: f64,
    /// How late it sets in: 1 is the queue of random arrivals and random service, above that a flat start.
    pub exponent: f64,
    /// The share of the peak that can be used at most.
    pub limit: f64,
}

impl Management {
    /// Nanoseconds in which one core copies `bytes` from a tier to a tier, at the speed of the slowest of the three. Each tier comes with the
    /// factor that load puts on its latency ([`crate::load::Stretch::factor`]): a core has a fixed number of lines under way, so it
    /// copies the slower the longer each takes.
    pub fn copy_nanos(&self, bytes: f64, (from, waits): (&Tier, f64), (to, stores_wait): (&Tier, f64)) -> f64 {
        bytes * 1e9 / self.copy_bandwidth.min(from.copy_read / waits).min(to.copy_write / stores_wait)
    }

    /// Extra nanoseconds of clearing `bytes` of a tier with this factor of load, over clearing memory that does not slow the core down.
    pub fn slow_clear_nanos(&self, bytes: f64, (tier, waits): (&Tier, f64)) -> f64 {
        (bytes * 1e9 * waits / tier.copy_write - bytes * 1e9 / self.copy_bandwidth).max(0.0)
    }
}

impl Loading {
    /// The factor on idle latency at a utilisation; beyond the limit it stays at the limit's.
    pub fn factor(&self, utilisation: f64) -> f64 {
        let u = utilisation.clamp(0.0, self.limit);
        1.0 + self.weight * u.powf(self.exponent) / (1.0 - u)
    }
}

/// What management costs: nanoseconds where the name says so.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Management {
    /// First touch of a 4 KiB page, zeroing included, in the program.
    pub first_touch_small_ns: f64,
    /// First touch of a 2 MiB page, zeroing included, in the program.
    pub first_touch_huge_ns: f64,
    /// A hint fault, in the program.
    pub hint_fault_ns: f64,
    /// Making one page inaccessible, in the scanner.
    pub hint_mark_ns: f64,
    /// Reading one accessed bit, in the scanner.
    pub scan_read_ns: f64,
    /// Clearing one accessed bit, TLB flush included, in the scanner.
    pub scan_clear_ns: f64,
    /// Setting a cleared bit again, in the program: the walk the flush made necessary.
    pub scan_reset_ns: f64,
    /// One hardware sample recorded and handled, in the sampler.
    pub sample_ns: f64,
    /// Moving one 4 KiB page, but for the copy, in the mover.
    pub move_small_ns: f64,
    /// Moving one 2 MiB page, but for the copy, in the mover.
    pub move_huge_ns: f64,
    /// Bytes a second that one core copies when it moves pages, between memories that do not hold it back.
    pub copy_bandwidth: f64,
    /// What a TLB shootdown costs each core that runs the program.
    pub shootdown_ns: f64,
    /// Splitting a huge mapping, in the mover.
    pub split_ns: f64,
    /// Collapsing 512 pages into a huge one, but for the copy, in the mover.
    pub collapse_ns: f64,
    /// The same of a block that is in use meanwhile, with its copy; 0 where that makes no difference.
    pub collapse_in_use_ns: f64,
    /// Looking at one page on a reclaim list, in the kernel's reclaim thread.
    pub reclaim_page_ns: f64,
}

/// What was wrong with a preset.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PresetError {
    /// No preset of that name.
    #[error("no machine is called {name:?}; {}", terrace_core::text::instead(name, known))]
    Unknown {
        /// The name asked for.
        name: String,
        /// Those that exist.
        known: Vec<&'static str>,
    },
    /// The text is no TOML of the right shape.
    #[error("the machine description does not read: {0}")]
    Shape(String),
    /// A value is out of place.
    #[error("machine {machine:?}, {key}: {problem}")]
    Value {
        /// The machine.
        machine: String,
        /// The key.
        key: String,
        /// What is wrong and what was expected.
        problem: String,
    },
}

impl Machine {
    /// Names of the presets, in the order they are listed.
    pub fn preset_names() -> Vec<&'static str> {
        PRESETS.iter().map(|(name, _)| *name).collect()
    }

    /// A preset by its name, or one with some numbers changed, which stand behind the name: `optane-6252 management.sample=1.5us
    /// tiers.optane.read_latency=200ns`. All of that is then the machine's name.
    ///
    /// # Errors
    /// When there is none of that name, it has no such number, or a number is out of its range.
    pub fn preset(name: &str) -> Result<Machine, PresetError> {
        let (preset, changes) = name.split_once(' ').unwrap_or((name, ""));
        let Some((_, text)) = PRESETS.iter().find(|(known, _)| *known == preset) else {
            return Err(PresetError::Unknown { name: preset.to_owned(), known: Machine::preset_names() });
        };
        let mut raw = RawMachine::read(text)?;
        for change in changes.split_whitespace() {
            raw.change(change)?;
        }
        Ok(Machine { name: name.to_owned(), ..Machine::of(raw)? })
    }

    /// A machine from the text of a preset file.
    ///
    /// # Errors
    /// When the text is not valid TOML, has unknown or missing keys, or a value is out of its range.
    pub fn from_toml(text: &str) -> Result<Machine, PresetError> {
        Machine::of(RawMachine::read(text)?)
    }

    fn of(raw: RawMachine) -> Result<Machine, PresetError> {
        let mut reader = Reader { machine: raw.name.clone(), sources: Vec::new() };
        for (key, name) in
            std::iter::once(("name", &raw.name)).chain(raw.tiers.iter().map(|tier| ("tiers.name", &tier.name)))
        {
            // Names stand in tables, keys and commands.
            let plain = |letter: char| letter.is_ascii_alphanumeric() || "-._".contains(letter);
            if name.is_empty() || name.len() > LONGEST_NAME || !name.chars().all(plain) {
                let wanted = format!("must be 1 to {LONGEST_NAME} letters, digits, hyphens, dots or underscores");
                return Err(PresetError::Value {
                    machine: name.escape_debug().to_string(),
                    key: key.to_owned(),
                    problem: wanted,
                });
            }
        }
        let processor = reader.processor(&raw.processor)?;
        if raw.tiers.is_empty() || raw.tiers.len() > TierId::MAX {
            return Err(reader.refuse("tiers", format!("a machine has 1 to {} tiers", TierId::MAX)));
        }
        let tiers = raw.tiers.iter().map(|tier| reader.tier(tier)).collect::<Result<Vec<_>, _>>()?;
        if tiers[0].kind != TierKind::Memory {
            return Err(reader.refuse("tiers", "the fastest tier must be of kind \"memory\"".to_owned()));
        }
        let management = reader.management(&raw.management)?;
        Ok(Machine { name: raw.name, summary: raw.summary, processor, tiers, management, sources: reader.sources })
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawMachine {
    name: String,
    summary: String,
    processor: BTreeMap<String, Quantity>,
    tiers: Vec<RawTier>,
    management: BTreeMap<String, Quantity>,
}

impl RawMachine {
    fn read(text: &str) -> Result<RawMachine, PresetError> {
        toml::from_str(text).map_err(|error| PresetError::Shape(error.to_string()))
    }

    /// Changes one number: "management.sample=1.5us". Its kind stays; what it may be is checked with the others.
    fn change(&mut self, change: &str) -> Result<(), PresetError> {
        let wrong = |problem: &str| PresetError::Value {
            machine: self.name.clone(),
            key: change.escape_debug().to_string(),
            problem: problem.to_owned(),
        };
        let pair = change.split_once('=').filter(|(key, value)| !key.is_empty() && !value.is_empty());
        let Some((key, value)) = pair else {
            return Err(wrong("expected KEY=VALUE, such as management.sample=1.5us"));
        };
        let nothing = wrong(
            "is no number of it; there are processor.KEY, tiers.NAME.KEY and management.KEY, as `terrace sim machines` lists them",
        );
        let quantity = match key.split('.').collect::<Vec<_>>()[..] {
            ["processor", key] => self.processor.get_mut(key),
            ["management", key] => self.management.get_mut(key),
            ["tiers", tier, key] => {
                self.tiers.iter_mut().find(|raw| raw.name == tier).and_then(|raw| raw.quantity(key))
            }
            _ => None,
        };
        let quantity = quantity.ok_or(nothing)?;
        quantity.value = match &quantity.value {
            Scalar::Text(_) => Scalar::Text(value.to_owned()),
            _ => match (value.parse(), value.parse()) {
                (Ok(whole), _) => Scalar::Whole(whole),
                (_, Ok(real)) => Scalar::Real(real),
                _ => Scalar::Text(value.to_owned()),
            },
        };
        "Changed by whoever named the machine".clone_into(&mut quantity.source);
        Ok(())
    }
}

impl RawTier {
    fn quantity(&mut self, key: &str) -> Option<&mut Quantity> {
        match key {
            "capacity" => Some(&mut self.capacity),
            "read_latency" => Some(&mut self.read_latency),
            "write_latency" => Some(&mut self.write_latency),
            "read_bandwidth" => Some(&mut self.read_bandwidth),
            "write_bandwidth" => Some(&mut self.write_bandwidth),
            "loading_weight" => Some(&mut self.loading_weight),
            "loading_exponent" => Some(&mut self.loading_exponent),
            "loading_limit" => Some(&mut self.loading_limit),
            "access_unit" => Some(&mut self.access_unit),
            "copy_read" => self.copy_read.as_mut(),
            "copy_write" => self.copy_write.as_mut(),
            "unit_buffer" => self.unit_buffer.as_mut(),
            "ratio" => self.ratio.as_mut(),
            _ => None,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTier {
    name: String,
    kind: TierKind,
    channel: Channel,
    capacity: Quantity,
    read_latency: Quantity,
    write_latency: Quantity,
    read_bandwidth: Quantity,
    write_bandwidth: Quantity,
    loading_weight: Quantity,
    loading_exponent: Quantity,
    loading_limit: Quantity,
    access_unit: Quantity,
    copy_read: Option<Quantity>,
    copy_write: Option<Quantity>,
    unit_buffer: Option<Quantity>,
    ratio: Option<Quantity>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Quantity {
    value: Scalar,
    source: String,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Scalar {
    Whole(i64),
    Real(f64),
    Text(String),
}

impl Scalar {
    fn written(&self) -> String {
        match self {
            Scalar::Whole(number) => number.to_string(),
            Scalar::Real(number) => number.to_string(),
            Scalar::Text(text) => text.clone(),
        }
    }
}

/// Checks values one by one and notes their sources.
struct Reader {
    machine: String,
    sources: Vec<Source>,
}

type Table = BTreeMap<String, Quantity>;

impl Reader {
    fn refuse(&self, key: &str, problem: String) -> PresetError {
        PresetError::Value { machine: self.machine.clone(), key: key.to_owned(), problem }
    }

    fn read<T>(
        &mut self,
        key: &str,
        quantity: &Quantity,
        wanted: &str,
        parse: impl Fn(&Scalar) -> Option<T>,
    ) -> Result<T, PresetError> {
        if quantity.source.trim().is_empty() {
            return Err(self.refuse(key, "has no source".to_owned()));
        }
        let written = quantity.value.written();
        let value = parse(&quantity.value).ok_or_else(|| self.refuse(key, format!("{written:?} is not {wanted}")))?;
        self.sources.push(Source { key: key.to_owned(), value: written, source: quantity.source.clone() });
        Ok(value)
    }

    fn nanoseconds(&mut self, key: &str, quantity: &Quantity) -> Result<f64, PresetError> {
        self.read(key, quantity, "a time such as \"98ns\" or \"1.2us\"", |scalar| match scalar {
            Scalar::Text(text) => units::nanoseconds(text),
            _ => None,
        })
    }

    fn bandwidth(&mut self, key: &str, quantity: &Quantity) -> Result<f64, PresetError> {
        self.read(key, quantity, "a bandwidth above zero such as \"39.4GB/s\"", |scalar| match scalar {
            Scalar::Text(text) => units::bandwidth(text).filter(|&rate| rate > 0.0),
            _ => None,
        })
    }

    fn bytes(&mut self, key: &str, quantity: &Quantity) -> Result<Bytes, PresetError> {
        self.read(key, quantity, "a size above zero such as \"96GiB\"", |scalar| match scalar {
            Scalar::Text(text) => units::bytes(text).filter(|size| *size > Bytes::ZERO),
            _ => None,
        })
    }

    fn count(&mut self, key: &str, quantity: &Quantity) -> Result<u32, PresetError> {
        self.read(key, quantity, "a whole number above zero", |scalar| match scalar {
            Scalar::Whole(number) => u32::try_from(*number).ok().filter(|&number| number > 0),
            _ => None,
        })
    }

    fn count_to(&mut self, key: &str, quantity: &Quantity, most: u32) -> Result<u32, PresetError> {
        let count = self.count(key, quantity)?;
        if count <= most {
            Ok(count)
        } else {
            Err(self.refuse(key, format!("{count} is more than the {most} modelled")))
        }
    }

    fn bytes_to(&mut self, key: &str, quantity: &Quantity, most: Bytes) -> Result<Bytes, PresetError> {
        let size = self.bytes(key, quantity)?;
        if size <= most { Ok(size) } else { Err(self.refuse(key, format!("{size} is more than the {most} modelled"))) }
    }

    fn real(&mut self, key: &str, quantity: &Quantity, low: f64, high: f64) -> Result<f64, PresetError> {
        self.read(key, quantity, &format!("a number from {low} to {high}"), |scalar| {
            let number = match scalar {
                Scalar::Whole(number) => *number as f64,
                Scalar::Real(number) => *number,
                Scalar::Text(_) => return None,
            };
            (low..=high).contains(&number).then_some(number)
        })
    }

    /// The quantity `name` of a table; each may be taken once, so that what is left over is unknown.
    fn take<'a>(&self, table: &'a Table, section: &str, name: &str) -> Result<&'a Quantity, PresetError> {
        table.get(name).ok_or_else(|| self.refuse(&format!("{section}.{name}"), "is missing".to_owned()))
    }

    fn no_others(&self, table: &Table, section: &str, known: &[&str]) -> Result<(), PresetError> {
        match table.keys().find(|key| !known.contains(&key.as_str())) {
            Some(key) => {
                Err(self.refuse(&format!("{section}.{key}"), format!("is not known; known are {}", known.join(", "))))
            }
            None => Ok(()),
        }
    }

    fn level(&mut self, table: &Table, name: &str) -> Result<TlbLevel, PresetError> {
        let entries_key = format!("{name}_entries");
        let ways_key = format!("{name}_ways");
        let entries = self.take(table, "processor", &entries_key)?;
        let entries = self.count_to(&format!("processor.{entries_key}"), entries, MOST_ENTRIES)?;
        let ways = self.take(table, "processor", &ways_key)?;
        let key = format!("processor.{ways_key}");
        let ways = self.count(&key, ways)?;
        if ways > crate::associative::MAX_WAYS {
            return Err(
                self.refuse(&key, format!("{ways} ways are more than the {} modelled", crate::associative::MAX_WAYS))
            );
        }
        Ok(TlbLevel { entries, ways })
    }

    fn processor(&mut self, table: &Table) -> Result<Processor, PresetError> {
        const KNOWN: [&str; 17] = [
            "cores",
            "frequency",
            "memory_parallelism",
            "stream_parallelism",
            "cache_capacity",
            "cache_ways",
            "cache_hit",
            "tlb_first_small_entries",
            "tlb_first_small_ways",
            "tlb_first_huge_entries",
            "tlb_first_huge_ways",
            "tlb_second_entries",
            "tlb_second_ways",
            "tlb_second_hit",
            "walk_small",
            "walk_huge",
            "page_walkers",
        ];
        self.no_others(table, "processor", &KNOWN)?;
        let section = "processor";
        let cores = self.take(table, section, "cores")?;
        let cores = self.count_to("processor.cores", cores, MOST_CORES)?;
        let frequency = self.take(table, section, "frequency")?;
        let frequency_hertz =
            self.read("processor.frequency", frequency, "a frequency such as \"2.1GHz\"", |scalar| match scalar {
                Scalar::Text(text) => units::frequency(text).filter(|&hertz| hertz > 0.0),
                _ => None,
            })?;
        let parallelism = self.take(table, section, "memory_parallelism")?;
        let memory_parallelism = self.real("processor.memory_parallelism", parallelism, 1.0, 64.0)?;
        let stream_parallelism = match table.get("stream_parallelism") {
            Some(given) => self.real("processor.stream_parallelism", given, memory_parallelism, 64.0)?,
            None => memory_parallelism,
        };
        let capacity = self.take(table, section, "cache_capacity")?;
        let capacity = self.bytes_to("processor.cache_capacity", capacity, MOST_CACHE)?;
        let ways = self.take(table, section, "cache_ways")?;
        let ways = self.count("processor.cache_ways", ways)?;
        let mut nanos = |name: &str| {
            let quantity = self.take(table, section, name)?;
            self.nanoseconds(&format!("processor.{name}"), quantity)
        };
        let (hit_ns, second_hit_ns) = (nanos("cache_hit")?, nanos("tlb_second_hit")?);
        let (walk_small_ns, walk_huge_ns) = (nanos("walk_small")?, nanos("walk_huge")?);
        let walkers = self.take(table, section, "page_walkers")?;
        let walkers = self.count("processor.page_walkers", walkers)?;
        if walkers > MOST_WALKERS {
            return Err(self.refuse(
                "processor.page_walkers",
                format!("{walkers} page walkers are more than the {MOST_WALKERS} modelled"),
            ));
        }
        let tlb = TlbSpec {
            first_small: self.level(table, "tlb_first_small")?,
            first_huge: self.level(table, "tlb_first_huge")?,
            second: self.level(table, "tlb_second")?,
            second_hit_ns,
            walk_small_ns,
            walk_huge_ns,
            walkers,
        };
        let cache = CacheSpec { capacity, ways, hit_ns };
        Ok(Processor { cores, frequency_hertz, memory_parallelism, stream_parallelism, cache, tlb })
    }

    fn tier(&mut self, raw: &RawTier) -> Result<Tier, PresetError> {
        let key = |name: &str| format!("tiers.{}.{name}", raw.name);
        let positive = |reader: &mut Reader, name: &str, quantity: &Quantity| {
            let nanos = reader.nanoseconds(&key(name), quantity)?;
            if nanos > 0.0 { Ok(nanos) } else { Err(reader.refuse(&key(name), "must be above zero".to_owned())) }
        };
        let loading = Loading {
            weight: self.real(&key("loading_weight"), &raw.loading_weight, 0.0, 10.0)?,
            exponent: self.real(&key("loading_exponent"), &raw.loading_exponent, 1.0, 16.0)?,
            limit: self.real(&key("loading_limit"), &raw.loading_limit, 0.1, 0.99)?,
        };
        let ratio = match (&raw.ratio, raw.kind) {
            (Some(ratio), TierKind::Compressed) => self.real(&key("ratio"), ratio, 1.0, 100.0)?,
            (None, TierKind::Memory) => 1.0,
            (Some(_), TierKind::Memory) => {
                return Err(self.refuse(&key("ratio"), "is for compressed tiers only".to_owned()));
            }
            (None, TierKind::Compressed) => return Err(self.refuse(&key("ratio"), "is missing".to_owned())),
        };
        let access_unit = self.bytes(&key("access_unit"), &raw.access_unit)?;
        // No line of compressed memory is read or written by itself: its unit is the page that comes back.
        let most = if raw.kind == TierKind::Compressed { PAGE_BYTES } else { MOST_UNIT_LINES * LINE_BYTES };
        if !access_unit.get().is_power_of_two() || !(LINE_BYTES..=most).contains(&access_unit.get()) {
            let wanted = format!("must be a power of two from {LINE_BYTES} to {most} bytes");
            return Err(self.refuse(&key("access_unit"), wanted));
        }
        let unit_buffer = match &raw.unit_buffer {
            Some(buffer) => self.bytes_to(&key("unit_buffer"), buffer, MOST_UNIT_BUFFER)?,
            None => Bytes::ZERO,
        };
        // Without a figure of its own the core's copy_bandwidth is what holds a copy back.
        let copy_rate = |reader: &mut Reader, name: &str, quantity: &Option<Quantity>| match quantity {
            Some(rate) => reader.bandwidth(&key(name), rate),
            None => Ok(f64::INFINITY),
        };
        let copy_read = copy_rate(self, "copy_read", &raw.copy_read)?;
        let copy_write = copy_rate(self, "copy_write", &raw.copy_write)?;
        Ok(Tier {
            name: raw.name.clone(),
            kind: raw.kind,
            capacity: self.bytes(&key("capacity"), &raw.capacity)?,
            read_latency_ns: positive(self, "read_latency", &raw.read_latency)?,
            write_latency_ns: positive(self, "write_latency", &raw.write_latency)?,
            read_bandwidth: self.bandwidth(&key("read_bandwidth"), &raw.read_bandwidth)?,
            write_bandwidth: self.bandwidth(&key("write_bandwidth"), &raw.write_bandwidth)?,
            channel: raw.channel,
            loading,
            access_unit,
            copy_read,
            copy_write,
            unit_buffer,
            ratio,
        })
    }

    fn management(&mut self, table: &Table) -> Result<Management, PresetError> {
        let mut known = vec!["copy_bandwidth"];
        let copy = self.take(table, "management", "copy_bandwidth")?;
        let copy_bandwidth = self.bandwidth("management.copy_bandwidth", copy)?;
        let mut nanos = |name: &'static str| {
            known.push(name);
            let quantity = self.take(table, "management", name)?;
            self.nanoseconds(&format!("management.{name}"), quantity)
        };
        let mut management = Management {
            first_touch_small_ns: nanos("first_touch_small")?,
            first_touch_huge_ns: nanos("first_touch_huge")?,
            hint_fault_ns: nanos("hint_fault")?,
            hint_mark_ns: nanos("hint_mark")?,
            scan_read_ns: nanos("scan_read")?,
            scan_clear_ns: nanos("scan_clear")?,
            scan_reset_ns: nanos("scan_reset")?,
            sample_ns: nanos("sample")?,
            move_small_ns: nanos("move_small")?,
            move_huge_ns: nanos("move_huge")?,
            copy_bandwidth,
            shootdown_ns: nanos("shootdown")?,
            split_ns: nanos("split")?,
            collapse_ns: nanos("collapse")?,
            collapse_in_use_ns: 0.0,
            reclaim_page_ns: nanos("reclaim_page")?,
        };
        known.push("collapse_in_use");
        if let Some(given) = table.get("collapse_in_use") {
            management.collapse_in_use_ns = self.nanoseconds("management.collapse_in_use", given)?;
        }
        self.no_others(table, "management", &known)?;
        Ok(management)
    }
}

#[cfg(test)]
mod tests;
