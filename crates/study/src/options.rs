//! What a simulation is asked to be: raw arguments become a checked configuration and a source, exactly once.
//!
//! In: `arguments`. Out: a `SimConfig`, a source of accesses, policy settings; or a `Misuse`. Must not: simulate.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrace_common::arguments::{BesideArguments, MmuArguments, ModelArguments, OneRunArguments};
pub use terrace_common::settings;
use terrace_core::policy::Policy;
use terrace_core::units::{BLOCK_PAGES, Bytes};
use terrace_machine::mmu::{CounterSpec, NotOffered, TablePlacement};
use terrace_machine::preset::Machine;
use terrace_machine::scale::Scale;
use terrace_policies::Settings;
use terrace_sim::colocate::Recorded;
use terrace_sim::mmu::Flush;
use terrace_sim::processes::Placement;
use terrace_sim::run::{Beside, Source};
use terrace_sim::{FastSize, MmuConfig, Pages, SimConfig, SimError, TraceSource, WorkloadSource};
use terrace_trace::tools::info_within;
use terrace_trace::{AccessSource, Change, Header, Index, Provenance as Precision, Reader};
use terrace_workloads::Parameters;

use crate::error::{Error, Misuse, Result, misuse};
use crate::provenance::{Modelled, Provenance, file_hash};

/// The scale where neither the command line nor a trace names one.
const USUAL_SCALE: u32 = 64;

/// A policy that the caller brings along, beside those of the registry.
pub trait OwnPolicy: Send + Sync {
    /// A new one, as settings ask for it.
    fn build(&self, settings: &BTreeMap<String, String>) -> Box<dyn Policy>;
}

/// The caller's policies, by name.
pub type Own = BTreeMap<String, Arc<dyn OwnPolicy>>;

/// What `--max-footprint` takes.
///
/// # Errors
/// When it is no size: misuse.
pub fn footprint(text: &str) -> Result<Bytes> {
    text.parse().map_err(|error| misuse("--max-footprint", text, error))
}

/// One run, checked.
pub struct OneRun {
    /// Machine, fast memory, scale and seed.
    pub config: SimConfig,
    /// What it plays.
    pub source: Box<dyn Source>,
    /// The policy.
    pub policy: String,
    /// The settings.
    pub settings: PolicySettings,
    /// What its results carry, but for the command.
    pub made: Provenance,
}

impl OneRun {
    /// A run under one policy, alone.
    ///
    /// # Errors
    /// What is wrong: misuse.
    pub fn parse(raw: &OneRunArguments, own: &Own) -> Result<OneRun> {
        let policies = std::slice::from_ref(&raw.policy);
        OneRun::prepare(raw, policies, PolicySettings::parse(&raw.model.settings, policies, own)?)
    }

    /// A run on the terms on which all of `policies` run: where one reads counters, the MMU is modelled for each.
    ///
    /// # Errors
    /// What is wrong: misuse.
    pub fn prepare(raw: &OneRunArguments, policies: &[String], settings: PolicySettings) -> Result<OneRun> {
        let machine = machine(&raw.model.machine)?;
        let mut made = Provenance::of("").on(&machine);
        let fast = fast_size(&raw.fast)?;
        let mut threads = raw.model.threads;
        let (mut config, source): (SimConfig, Box<dyn Source>) = match (&raw.workload, &raw.trace) {
            (_, Some(path)) => {
                let trace = Trace::open(path, footprint(&raw.max_footprint)?)?;
                let mut config = SimConfig::new(machine, trace.footprint, fast);
                config.scale = scale(raw.model.scale, trace.scale())?;
                // A cache filters lines; a trace of pages has none, and one of misses or samples has passed a cache.
                config.cache = trace.header.lines && trace.header.provenance == Precision::Exact;
                threads = trace.threads;
                made.trace_hash =
                    Some(file_hash(path).map_err(|error| misuse("--trace", &path.display().to_string(), error))?);
                if wants_mmu(&raw.model, policies, &settings)? && raw.model.pages == "thp" {
                    trace.needs_page_sizes()?;
                }
                if let Some(name) = &raw.beside.beside {
                    return Err(misuse("--beside", name, NOT_BESIDE));
                }
                (config, trace.source())
            }
            (Some(workload), None) => {
                let first = workload_source(workload, &raw.model, raw.seed)?;
                made.workload_settings.clone_from(&first.parameters.options);
                let source: Box<dyn Source> = match recorded(&raw.beside, &raw.model.size, raw.seed)? {
                    Some(other) => Box::new(Beside { first: Box::new(first), other }),
                    None => Box::new(first),
                };
                let mut config = SimConfig::new(machine, source.footprint(), fast);
                config.scale = scale(raw.model.scale, USUAL_SCALE)?;
                made.size_bytes = raw.model.size.parse::<Bytes>().ok().map(Bytes::get);
                made.operations = raw.model.operations;
                (config, source)
            }
            (None, None) => return Err(Misuse("--workload or --trace: expected one of them".to_owned()).into()),
        };
        config.seed = raw.seed;
        config.mmu = mmu(&raw.model, policies, &settings, threads, &config.machine)?;
        if raw.beside.beside.is_some() && config.mmu.is_none() {
            // Only the MMU tells whose accesses are whose.
            let most = config.machine.processor.cores as usize;
            config.mmu = Some(MmuConfig::new(threads.clamp(1, most)));
        }
        config.pages = match (raw.trace.is_some(), config.mmu) {
            (true, Some(_)) if raw.model.pages == "thp" => Pages::Traced,
            // A trace has its own layout, and blocks that it uses whole.
            (true, Some(_)) if raw.model.pages == "2m" => Pages::Huge,
            (_, mmu) => pages(&raw.model.pages, config.scale, mmu.is_some()),
        };
        config.capacities().map_err(|error| misuse("--fast", &raw.fast, format!("{}: {error}", source.name())))?;
        made.workload = Some(source.name());
        (made.seed, made.scale, made.threads) = (Some(raw.seed), Some(config.scale.factor()), Some(threads));
        made.pages = serde_json::to_value(config.pages)?.as_str().map(str::to_owned);
        Ok(OneRun { config, source, policy: raw.policy.clone(), made: settings.made(made, &raw.policy), settings })
    }

    /// A new policy for it.
    ///
    /// # Errors
    /// When it refuses its settings, which were checked.
    pub fn policy(&self) -> Result<Box<dyn Policy>> {
        self.settings.build(&self.policy)
    }
}

/// Settings by policy, each checked by building the policy with it.
#[derive(Clone, Default)]
pub struct PolicySettings {
    given: BTreeMap<String, BTreeMap<String, String>>,
    own: Own,
}

impl PolicySettings {
    /// Takes what `--set` takes, for these policies.
    ///
    /// # Errors
    /// When there is no such policy or setting, or a value makes no sense: misuse.
    pub fn parse(texts: &[String], policies: &[String], own: &Own) -> Result<PolicySettings> {
        let mut all: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
        for policy in policies {
            all.entry(policy.clone()).or_default();
        }
        for text in texts {
            let refuse = |why: String| Err(misuse("--set", text, why));
            let Some((key, value)) = text.split_once('=') else {
                return refuse("expected POLICY.KEY=VALUE, such as flexmem.beta=0.3".to_owned());
            };
            let (policy, key) = match (key.trim().split_once('.'), policies) {
                (Some((policy, key)), _) => (policy, key),
                (None, [only]) => (only.as_str(), key.trim()),
                (None, _) => return refuse("expected POLICY.KEY=VALUE, as there are several policies".to_owned()),
            };
            match all.get_mut(policy) {
                Some(settings) => settings.insert(key.to_owned(), value.trim().to_owned()),
                None => return refuse(format!("expected a setting of {}", policies.join(", "))),
            };
        }
        let settings = PolicySettings { given: all, own: own.clone() };
        policies.iter().try_for_each(|policy| settings.build(policy).map(drop))?;
        Ok(settings)
    }

    /// What made a result, with all settings of the policy.
    pub fn made(&self, made: Provenance, policy: &str) -> Provenance {
        made.under(policy, self.given.get(policy).unwrap_or(&BTreeMap::new()))
    }

    /// The settings given for a policy, as `--set` takes them.
    pub fn given(&self, policy: &str) -> Vec<String> {
        let given = self.given.get(policy).into_iter().flatten();
        given.map(|(key, value)| format!("{policy}.{key}={value}")).collect()
    }

    /// Whether the policy is the caller's.
    pub fn is_own(&self, policy: &str) -> bool {
        self.own.contains_key(policy)
    }

    /// A new policy.
    ///
    /// # Errors
    /// When there is none of the name, or it refuses its settings: misuse.
    pub fn build(&self, policy: &str) -> Result<Box<dyn Policy>> {
        let pairs = self.given.get(policy).cloned().unwrap_or_default();
        if let Some(own) = self.own.get(policy) {
            return Ok(own.build(&pairs));
        }
        terrace_policies::build(policy, Settings::from_pairs(pairs)).map_err(|error| Misuse(error.to_string()).into())
    }
}

/// Longest description of a machine.
const LONGEST_MACHINE: u64 = 1 << 20;

/// Whether a machine is named by its file: a path with a folder, or one that ends in `.toml`.
fn names_a_file(machine: &str) -> bool {
    machine.contains('/') || machine.ends_with(".toml")
}

/// A preset by its name, or a machine of the user's own by its file.
///
/// # Errors
/// When there is none of the name, or the file is none of a machine: misuse.
pub fn machine(name: &str) -> Result<Machine> {
    let refused = |error: &dyn std::fmt::Display| misuse("--machine", name, error);
    if !names_a_file(name) {
        return Machine::preset(name).map_err(|error| refused(&error));
    }
    let text = terrace_files::read_to_string(Path::new(name), LONGEST_MACHINE).map_err(|error| refused(&error))?;
    let machine = Machine::from_toml(&text).map_err(|error| refused(&error))?;
    // Results and databases go by the name: one name is one machine.
    match Machine::preset(&machine.name) {
        Ok(preset) if preset != machine => {
            let why =
                format!("a preset is called {:?}; choose another name for a machine of other numbers", machine.name);
            Err(refused(&why))
        }
        _ => Ok(machine),
    }
}

/// A workload of the scaled machine's size, tried once: building it finds every bad parameter.
///
/// # Errors
/// What is wrong: misuse.
pub fn workload_source(name: &str, model: &ModelArguments, seed: u64) -> Result<WorkloadSource> {
    let size: Bytes = model.size.parse().map_err(|error| misuse("--size", &model.size, error))?;
    if size == Bytes::ZERO {
        return Err(misuse("--size", &model.size, "expected more than nothing"));
    }
    fits_this_machine(size)?;
    let mut parameters = Parameters::new(size.get());
    (parameters.threads, parameters.seed, parameters.operations) = (model.threads, seed, model.operations);
    parameters.options = settings("--workload-set", &model.workload_settings, "hot=10%")?;
    terrace_workloads::build(name, &parameters).map_err(|error| Misuse(error.to_string()))?;
    Ok(WorkloadSource { name: name.to_owned(), parameters })
}

/// Bytes that the simulator takes at a time for each byte of a program: the program's own data in each of two runs side by side (a run and its
/// bounds), and an eighth for the state of pages, the cache and the series.
const BYTES_OF_A_BYTE: f64 = 2.125;

/// Refuses a program whose data does not fit this machine's memory: workloads are real algorithms on real data.
fn fits_this_machine(size: Bytes) -> Result<()> {
    let system = rustix::system::sysinfo();
    let memory = Bytes::new((system.totalram as u64).saturating_mul(u64::from(system.mem_unit)));
    let most = Bytes::new((memory.get() as f64 / BYTES_OF_A_BYTE) as u64);
    if size <= most {
        return Ok(());
    }
    let why = format!(
        "the program's data is real and this machine has {memory} of memory: expected at most {most}. A small size stands for a large one by \
         --scale: `--size 64MiB --scale 1024` is 64 GiB"
    );
    Err(misuse("--size", &size.to_string(), why))
}

/// Why there is no second process.
pub const NOT_BESIDE: &str =
    "expected a workload of at most 1GiB in --workload, so that both fit one numbering of pages";

/// The second process, if one is wanted, as large as the first.
///
/// # Errors
/// What is wrong: misuse.
pub fn recorded(raw: &BesideArguments, size: &str, seed: u64) -> Result<Option<Recorded>> {
    let Some(name) = &raw.beside else { return Ok(None) };
    let bytes: Bytes = size.parse().map_err(|error| misuse("--size", size, error))?;
    if bytes > Bytes::gib(1) {
        return Err(misuse("--beside", name, NOT_BESIDE));
    }
    let mut parameters = Parameters::new(bytes.get());
    (parameters.threads, parameters.seed) = (1, seed);
    terrace_workloads::build(name, &parameters).map_err(|error| Misuse(error.to_string()))?;
    Ok(Some(Recorded::new(name, &parameters, raw.every as usize).map_err(failed)?))
}

/// "50%" or "64MiB".
///
/// # Errors
/// When it is neither: misuse.
pub fn fast_size(text: &str) -> Result<FastSize> {
    let wanted = "expected a share of the footprint (50%), above 0% and at most 100%, or an amount (64MiB)";
    match text.parse() {
        Ok(FastSize::Share(share)) if share <= 0.0 => Err(misuse("--fast", text, "expected more than 0%")),
        Ok(size) => Ok(size),
        Err(_) => Err(misuse("--fast", text, wanted)),
    }
}

/// The scale asked for, or this one.
///
/// # Errors
/// When it is out of range: misuse.
pub fn scale(asked: Option<u32>, otherwise: u32) -> Result<Scale> {
    let factor = asked.unwrap_or(otherwise);
    Scale::new(factor).ok_or_else(|| misuse("--scale", &factor.to_string(), "expected a factor from 1 to 1048576"))
}

/// Huge pages on a scaled machine would be as coarse as `scale` times their size; they are folded to small ones, unless the MMU
/// is modelled: its huge pages have pieces. `2m` maps all by 2 MiB, `thp` only what the program has mapped as much of.
pub fn pages(text: &str, scale: Scale, mmu: bool) -> Pages {
    match (text, scale) {
        ("4k", _) => Pages::Small,
        ("2m", _) => Pages::Whole,
        (_, Scale::FULL) => Pages::Huge,
        _ if mmu => Pages::Huge,
        _ => Pages::Folded,
    }
}

/// Whether anything asks for the MMU.
fn wants_mmu(model: &ModelArguments, policies: &[String], settings: &PolicySettings) -> Result<bool> {
    let raw = &model.mmu;
    let asked =
        [&raw.counters, &raw.counter_layout, &raw.counter_width, &raw.counter_sync, &raw.page_tables, &raw.tlb_flush];
    let mut wanted = model.pages == "2m" || raw.cores.is_some() || asked.iter().any(|option| option.is_some());
    for policy in policies {
        wanted |= settings.build(policy)?.profile().needs().counters;
    }
    Ok(wanted)
}

/// The MMU, if anything asks for it: then every policy of a comparison runs with it, on the same terms.
///
/// # Errors
/// What is wrong: misuse.
pub fn mmu(
    model: &ModelArguments,
    policies: &[String],
    settings: &PolicySettings,
    threads: usize,
    machine: &Machine,
) -> Result<Option<MmuConfig>> {
    if !wants_mmu(model, policies, settings)? {
        return Ok(None);
    }
    let raw = &model.mmu;
    let most = machine.processor.cores as usize;
    let cores = raw.cores.unwrap_or_else(|| threads.clamp(1, most));
    if cores == 0 || cores > threads {
        let why = format!("expected 1 to the program's {threads} threads: a core without a thread has nothing to run");
        return Err(misuse("--cores", &cores.to_string(), why));
    }
    if cores > most {
        return Err(misuse("--cores", &cores.to_string(), format!("the machine {} has {most}", machine.name)));
    }
    fn value<T: std::str::FromStr<Err = NotOffered>>(option: &str, text: &Option<String>, otherwise: T) -> Result<T> {
        match text {
            None => Ok(otherwise),
            Some(text) => {
                text.parse().map_err(|error: NotOffered| misuse(option, text, format!("expected {}", error.wanted)))
            }
        }
    }
    let usual = CounterSpec::default();
    let counters = match raw.counters.as_deref() {
        Some("none") => None,
        _ => Some(CounterSpec {
            when: value("--counters", &raw.counters, usual.when)?,
            layout: value("--counter-layout", &raw.counter_layout, usual.layout)?,
            width: value("--counter-width", &raw.counter_width, usual.width)?,
            sync: value("--counter-sync", &raw.counter_sync, usual.sync)?,
        }),
    };
    let placement = value("--page-tables", &raw.page_tables, TablePlacement::Fast)?;
    let flush = value("--tlb-flush", &raw.tlb_flush, Flush::Page)?;
    Ok(Some(MmuConfig { counters, placement, flush, ..MmuConfig::new(cores) }))
}

/// An error of a simulation that had good options: only what the options still could have prevented is misuse.
pub fn failed(error: SimError) -> Error {
    match error {
        SimError::Parameter { .. } | SimError::FastLargerThanFootprint { .. } | SimError::Machine(_) => {
            Misuse(error.to_string()).into()
        }
        other => other.into(),
    }
}

/// A trace file whose header and index were read.
pub struct Trace {
    path: PathBuf,
    /// What it says of itself.
    pub header: Header,
    /// Its memory.
    pub footprint: Bytes,
    /// Threads it has.
    pub threads: usize,
    /// Where the pages of its processes lie, if it tells several apart.
    placement: Option<Placement>,
}

impl Trace {
    /// Opens it; `most` is the largest footprint that is taken.
    ///
    /// # Errors
    /// When it is no trace, not whole, of no accesses, or too large: misuse.
    pub fn open(path: &Path, most: Bytes) -> Result<Trace> {
        let refused = |why: &dyn std::fmt::Display| misuse("--trace", &path.display().to_string(), why);
        let mut file = File::open(path).map_err(|error| refused(&error))?;
        let (header, index) = Index::read(&mut file).map_err(|error| {
            refused(&format!("{error}; `terrace trace cut --keep-whole` makes a new trace of what is whole"))
        })?;
        if matches!(header.provenance, Precision::Regional { .. }) {
            return Err(refused(&"it tells which regions were in use, and holds no single access to replay"));
        }
        if index.summary.accesses == 0 || index.summary.page_ids == 0 {
            return Err(refused(&"it holds no access: see how the program that was recorded ended"));
        }
        // Before anything is made for each page: what a file says of itself costs nothing.
        if index.summary.page_ids > most.pages() {
            return Err(refused(&format!(
                "it has {} pages, and {most} of memory are taken at most: see --max-footprint",
                index.summary.page_ids
            )));
        }
        let (mut footprint, threads) = (Bytes::of_pages(index.summary.page_ids), index.summary.threads.max(1) as usize);
        let placement = match header.processes {
            false => None,
            true => {
                let map = index.map(&mut file).map_err(|error| refused(&error))?;
                // A trace with page sizes also records what each access allocates; numbers go by whole 2 MiB.
                let whole = File::open(path).map_err(|error| refused(&error))?;
                let held = info_within(BufReader::with_capacity(1 << 20, whole), most.pages())
                    .map_err(|error| refused(&error))?;
                if let Some(sizes) = held.page_sizes {
                    let pages = sizes.pages_4k + sizes.pages_2m * u64::from(BLOCK_PAGES);
                    footprint = footprint.min(Bytes::of_pages(pages));
                }
                Some(Placement::of(&map, index.summary.page_ids).map_err(|error| refused(&error))?)
            }
        };
        Ok(Trace { path: path.to_owned(), header, footprint, threads, placement })
    }

    /// Refuses a trace that does not tell which of its pages were huge: page tables cannot be made up.
    fn needs_page_sizes(&self) -> Result<()> {
        if self.tells_page_sizes()? {
            return Ok(());
        }
        let why = "it does not tell the size of its pages, which the MMU must know; expected --pages 4k or --pages 2m";
        Err(misuse("--trace", &self.path.display().to_string(), why))
    }

    /// Whether it tells which of its pages were huge.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn tells_page_sizes(&self) -> Result<bool> {
        let mut reader = self.reader()?;
        let mut batch = vec![terrace_trace::Access::default(); 2048];
        loop {
            let count = reader.fill(&mut batch)?;
            match reader.take_event().map(|event| event.change) {
                Some(Change::Huge(_) | Change::Split(_)) => return Ok(true),
                None if count == 0 => return Ok(false),
                _ => {}
            }
        }
    }

    fn scale(&self) -> u32 {
        self.header.scale.round().clamp(1.0, f64::from(1 << 20)) as u32
    }

    /// Its accesses, from the beginning.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn reader(&self) -> Result<Reader<BufReader<File>>, Misuse> {
        let path = self.path.display();
        let file = File::open(&self.path).map_err(|error| Misuse(format!("{path}: {error}")))?;
        let reader = Reader::new(BufReader::with_capacity(1 << 20, file));
        Ok(reader.map_err(|error| Misuse(format!("{path}: {error}")))?.told_its_period())
    }

    fn source(self) -> Box<dyn Source> {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let (footprint, placement) = (self.footprint, self.placement.clone());
        let open = move || match self.reader() {
            Ok(reader) => Ok(Box::new(reader) as Box<dyn AccessSource>),
            Err(Misuse(why)) => Err(SimError::Source(why)),
        };
        Box::new(TraceSource { name, footprint, open, placement })
    }
}

/// The command that repeats a run, with every option that its result depends on. It names every field, so that a new option cannot
/// be forgotten here.
pub fn command_of(raw: &OneRunArguments) -> String {
    let OneRunArguments { workload, trace, max_footprint, policy, fast, seed, beside, model } = raw;
    let BesideArguments { beside, every } = beside;
    let ModelArguments { machine, size, threads, scale, pages, mmu, operations, settings, workload_settings } = model;
    let MmuArguments { cores, counters, counter_layout, counter_width, counter_sync, page_tables, tlb_flush } = mmu;
    let mut words = vec!["sim".to_owned(), "run".to_owned()];
    let mut option = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            words.extend([format!("--{name}"), value]);
        }
    };
    match trace {
        Some(path) => {
            let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
            option("trace", Some(path.to_string_lossy().into_owned()));
            option("max-footprint", Some(max_footprint.clone()));
        }
        None => {
            option("workload", workload.clone());
            option("size", Some(size.clone()));
            option("threads", Some(threads.to_string()));
            option("operations", operations.map(|count| count.to_string()));
            workload_settings.iter().for_each(|text| option("workload-set", Some(text.clone())));
        }
    }
    let absolute = |path: &str| std::path::absolute(path).map(|path| path.to_string_lossy().into_owned());
    let machine = if names_a_file(machine) { absolute(machine).unwrap_or(machine.clone()) } else { machine.clone() };
    option("machine", Some(machine));
    option("policy", Some(policy.clone()));
    settings.iter().for_each(|text| option("set", Some(text.clone())));
    option("fast", Some(fast.clone()));
    option("seed", Some(seed.to_string()));
    option("scale", scale.map(|factor| factor.to_string()));
    option("pages", Some(pages.clone()));
    option("cores", cores.map(|count| count.to_string()));
    for (name, value) in [
        ("counters", counters),
        ("counter-layout", counter_layout),
        ("counter-width", counter_width),
        ("counter-sync", counter_sync),
        ("page-tables", page_tables),
        ("tlb-flush", tlb_flush),
    ] {
        option(name, value.clone());
    }
    if let Some(name) = beside {
        option("beside", Some(name.clone()));
        option("every", Some(every.to_string()));
    }
    words.push("--json".to_owned());
    crate::provenance::command(words)
}
