//! The doctor: what works on this machine, what does not and why, and which tracker to use.
//!
//! In: the kernel's own word, and the proof of every tracker. Out: [`Doctor`], which `terrace doctor` prints, and
//! [`choose_tracker`]. Must not: change anything that lasts, or pass over a tracker without saying why.

use std::path::Path;

use terrace_core::policy::Needs;
use terrace_core::units::{Bytes, PAGE_BYTES};

use crate::huge_pages::HugePages;
use crate::movers::{self, MoverReport};
use crate::prices::KindPrice;
use crate::rights::Rights;
use crate::topology::{Tier, TierMap, Topology, TopologyError};
use crate::trackers::accessed_bits::{self, AccessedBits};
use crate::trackers::damon::Damon;
use crate::trackers::hint_faults::HintFaults;
use crate::trackers::idle_pages::IdlePages;
use crate::trackers::page_faults::PageFaults;
use crate::trackers::prove::{Proof, ProofError, prove};
use crate::trackers::samples::Samples;
use crate::trackers::walker::Walker;
use crate::trackers::write_tracking::WriteTracking;
use crate::trackers::{TrackError, Tracker, pair};
use crate::trials::{self, Trial};
use crate::zram::{Compression, Leftover, has_pids_of_machine, leftovers};

/// All that `terrace doctor` shows.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Doctor {
    /// Version of this shape.
    pub schema_version: u32,
    /// The kernel.
    pub kernel: Kernel,
    /// What this process may do.
    pub rights: Rights,
    /// Every tracker, in order of preference.
    pub trackers: Vec<TrackerReport>,
    /// The tracker that a policy of accessed bits gets, if there is one.
    pub chosen_tracker: Option<&'static str>,
    /// Every mover.
    pub movers: Vec<MoverReport>,
    /// What the kernel does of what it is asked for, tried on memory of this process.
    pub trials: Vec<Trial>,
    /// What is set for huge pages, and what follows from it.
    pub huge_pages: HugePages,
    /// Prices of page-outs for single pages, folios and whole blocks, if asked for; `Held::prices` measures them.
    pub prices: Option<Vec<KindPrice>>,
    /// What compression there is for swap, and which of it a run uses.
    pub compression: Compression,
    /// The tiers, fastest first.
    pub tiers: Vec<Tier>,
    /// Who else here moves pages, or clears the marks that Terrace reads.
    pub rivals: Vec<Rival>,
    /// What to do, most urgent first.
    pub advice: Vec<String>,
    /// What is odd about this machine: contradictions, and what was left out of account.
    pub notes: Vec<String>,
}

/// The kernel.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Kernel {
    /// Its release, as `uname -r` says.
    pub release: String,
    /// The processor's architecture.
    pub machine: String,
    /// Whether it runs under a hypervisor that says so.
    pub virtual_machine: bool,
    /// Whether it describes its types (/sys/kernel/btf/vmlinux), which the eBPF program needs.
    pub btf: bool,
}

/// What there is to say of a tracker.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct TrackerReport {
    /// Its name, as `--tracker` takes it.
    pub name: &'static str,
    /// Whether it could be opened.
    pub available: bool,
    /// Whether it passed its proof.
    pub proven: bool,
    /// Why not, or what it showed.
    pub reason: String,
    /// The smallest piece of memory it distinguishes.
    pub granularity_bytes: Bytes,
    /// Whether it sees reads.
    pub reads: bool,
    /// Whether it sees writes.
    pub writes: bool,
    /// Measured cost of one observation of a page, or of one event.
    pub cost_ns_per_page: Option<f64>,
    /// What it can be used for.
    pub serves: &'static str,
}

/// Someone else who moves pages, or clears marks.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Rival {
    /// Who.
    pub name: &'static str,
    /// What was found.
    pub state: String,
    /// What it does to Terrace, and how to turn it off.
    pub effect: String,
}

/// No tracker can serve.
#[derive(Debug, thiserror::Error)]
pub enum ChooseError {
    /// The name is none of a tracker.
    #[error("there is no tracker {name:?}; {}", terrace_core::text::instead(name, &names()))]
    Unknown {
        /// The name.
        name: String,
    },
    /// All that could serve were tried and refused.
    #[error("no tracker works here:\n  {}", reasons.join("\n  "))]
    NoneWorks {
        /// Why, one line a tracker.
        reasons: Vec<String>,
    },
}

impl ChooseError {
    /// The reason that says most in one line: that of the tracker which needs the least of a kernel, else the first that was tried. The others
    /// are counted.
    pub fn in_a_line(&self) -> String {
        let ChooseError::NoneWorks { reasons } = self else { return self.to_string() };
        let tried: Vec<&str> =
            reasons.iter().map(String::as_str).filter(|reason| !reason.contains(NOT_TRIED)).collect();
        let usual = format!("{}: ", accessed_bits::NAME);
        match tried.iter().find(|reason| reason.starts_with(&usual)).or(tried.first()) {
            Some(reason) if tried.len() > 1 => {
                format!("no tracker works here: {reason}; {} more: `terrace doctor`", tried.len() - 1)
            }
            Some(reason) => format!("no tracker works here: {reason}"),
            None => self.to_string(),
        }
    }
}

/// Marks the line about trackers that were not tried.
const NOT_TRIED: &str = ": not tried, they do not see";

/// A tracker that could be tried.
struct Candidate {
    name: &'static str,
    open: fn() -> Result<Box<dyn Tracker>, TrackError>,
    shows: Shows,
    serves: &'static str,
}

/// What a tracker shows, as it claims before it is open.
#[derive(Clone, Copy, PartialEq)]
enum Shows {
    /// Accessed bits of any program, which policies of scans live on.
    AccessedBits,
    /// Hardware samples.
    Samples,
    /// Hint faults.
    HintFaults,
    /// Faults that no policy lives on.
    Faults,
    /// Writes, and no reads.
    Writes,
}

impl Candidate {
    fn serves_some(&self, needs: Needs) -> bool {
        match self.shows {
            Shows::AccessedBits => needs.scans,
            Shows::Samples => needs.samples,
            Shows::HintFaults => needs.hint_faults,
            Shows::Faults | Shows::Writes => false,
        }
    }
}

fn boxed<T: Tracker + 'static>(opened: Result<T, TrackError>) -> Result<Box<dyn Tracker>, TrackError> {
    opened.map(|tracker| Box::new(tracker) as Box<dyn Tracker>)
}

/// The trackers in order of preference.
const CANDIDATES: [Candidate; 8] = [
    Candidate {
        name: "samples",
        open: || boxed(Samples::open()),
        shows: Shows::Samples,
        serves: "policies that live on hardware samples",
    },
    Candidate {
        name: "walker",
        open: || boxed(Walker::open()),
        shows: Shows::AccessedBits,
        serves: "any policy of accessed bits, on any program; by the kernel module terrace_mm",
    },
    Candidate {
        name: "accessed-bits",
        open: || boxed(AccessedBits::open()),
        shows: Shows::AccessedBits,
        serves: "any policy of accessed bits, on any program",
    },
    Candidate {
        name: "idle-pages",
        open: || boxed(IdlePages::open()),
        shows: Shows::AccessedBits,
        serves: "any policy of accessed bits, on any program",
    },
    Candidate {
        name: "damon",
        open: || boxed(Damon::open()),
        shows: Shows::AccessedBits,
        serves: "policies of accessed bits, on programs whose hot memory lies together",
    },
    Candidate {
        name: "write-tracking",
        open: || boxed(WriteTracking::open()),
        shows: Shows::Writes,
        serves: "writes only, of programs that register their memory themselves; only when asked for by name",
    },
    Candidate {
        name: "hint-faults",
        open: || boxed(HintFaults::open()),
        shows: Shows::HintFaults,
        serves: "policies that live on hint faults, beside samples where they want those; turns kernel.numa_balancing to 2",
    },
    Candidate {
        name: "page-faults",
        open: || boxed(PageFaults::open()),
        shows: Shows::Faults,
        serves: "births and refaults beside another tracker; alone only when asked for by name",
    },
];

/// The names of all trackers, in order of preference.
pub fn names() -> Vec<&'static str> {
    CANDIDATES.iter().map(|candidate| candidate.name).collect()
}

/// Opens and proves the trackers that can serve `needs`, in order of preference, and takes the first that passes; or the one
/// that is `requested`, whatever it can serve. Returns it with one line for each tracker: why it was taken, or not.
///
/// A tracker that sees only writes, or only faults, is never chosen automatically: a policy of accessed bits would take
/// every page that is only read for cold. A policy that needs samples and hint faults gets both trackers as one.
///
/// # Errors
/// When none passes: the reason of each.
pub fn choose_tracker(needs: Needs, requested: Option<&str>) -> Result<(Box<dyn Tracker>, Vec<String>), ChooseError> {
    if requested.is_none() && needs.samples && needs.hint_faults {
        return choose_both(needs);
    }
    choose_from(&CANDIDATES, needs, requested, &no_tiers())
}

/// A proven tracker, which of the needs it serves, and a line for each tracker on why it was taken, or not.
pub type Chosen = (Box<dyn Tracker>, Needs, Vec<String>);

/// As [`choose_tracker`] for the first of several needs, best first, that anything here serves; with which of them it was. A tracker asked for
/// by name decides which: the first that it serves any of.
///
/// # Errors
/// When none of them is served: the reasons of all.
pub fn choose_any(any: &[Needs], requested: Option<&str>) -> Result<Chosen, ChooseError> {
    let named = CANDIDATES.iter().find(|candidate| Some(candidate.name) == requested);
    let served = any.iter().find(|needs| named.is_none_or(|candidate| candidate.serves_some(**needs)));
    if let (Some(_), Some(needs)) = (requested, served.or(any.first())) {
        return choose_tracker(*needs, requested).map(|(tracker, reasons)| (tracker, *needs, reasons));
    }
    let mut refused = Vec::new();
    for needs in any {
        match choose_tracker(*needs, requested) {
            Ok((tracker, reasons)) => {
                refused.extend(reasons);
                return Ok((tracker, *needs, refused));
            }
            Err(ChooseError::NoneWorks { reasons }) => refused.extend(reasons),
            Err(error) => return Err(error),
        }
    }
    Err(ChooseError::NoneWorks { reasons: refused })
}

/// One tracker of samples and one of hint faults. If one is missing the other is not taken for both: the policy's own setting
/// says which profiler it can do without.
fn choose_both(needs: Needs) -> Result<(Box<dyn Tracker>, Vec<String>), ChooseError> {
    let choose = |needs| choose_from(&CANDIDATES, needs, None, &no_tiers());
    let (samples, mut reasons) = choose(Needs { hint_faults: false, ..needs })?;
    let (faults, more) = choose(Needs { samples: false, ..needs })?;
    reasons.extend(more);
    match pair::samples_and_hint_faults(samples, faults) {
        Ok(both) => Ok((both, reasons)),
        Err(error) => {
            Err(ChooseError::NoneWorks { reasons: vec![format!("samples with hint-faults: epoll: {error}")] })
        }
    }
}

/// The proof asks what was accessed, not where it lies: any map will do.
fn no_tiers() -> TierMap {
    TierMap::new(Vec::new(), Vec::new())
}

fn choose_from(
    candidates: &[Candidate],
    needs: Needs,
    requested: Option<&str>,
    tiers: &TierMap,
) -> Result<(Box<dyn Tracker>, Vec<String>), ChooseError> {
    if let Some(name) = requested.filter(|name| candidates.iter().all(|candidate| candidate.name != *name)) {
        return Err(ChooseError::Unknown { name: name.to_owned() });
    }
    let mut reasons = Vec::new();
    let mut others = Vec::new();
    for candidate in candidates {
        let name = candidate.name;
        match requested {
            Some(requested) if requested != name => continue,
            None if !candidate.serves_some(needs) => {
                others.push(name);
                continue;
            }
            _ => {}
        }
        match open_and_prove(candidate, tiers) {
            Ok((tracker, Ok(proof))) => {
                reasons.push(format!("{name}: chosen, {}", describe(&proof)));
                return Ok((tracker, reasons));
            }
            Ok((_, Err(reason))) => reasons.push(format!("{name}: refused, {reason}")),
            Err(error) => reasons.push(error.to_string()),
        }
    }
    if !others.is_empty() {
        let others = others.join(", ");
        reasons.push(format!("{others}{NOT_TRIED} what this policy needs; `terrace policies` says what each needs"));
    }
    Err(ChooseError::NoneWorks { reasons })
}

/// Tries of accessed bits, each with a fresh search for the kernel's map of memory and fresh memory: what the machine does meanwhile must not decide
/// for the whole run. Under the storm of `tests/live_starts.rs` (forks, compaction, full memory) one try in 30 failed on one machine, and once two
/// in a row.
const TRIES: u32 = 3;

/// A tracker that could be opened, and what its proof says.
type Tried = (Box<dyn Tracker>, Result<Proof, ProofError>);

/// Opens a tracker and has it prove itself, accessed bits up to [`TRIES`] times.
fn open_and_prove(candidate: &Candidate, tiers: &TierMap) -> Result<Tried, TrackError> {
    let mut tracker = (candidate.open)()?;
    let mut proof = prove(tracker.as_mut(), tiers);
    let mut tries = 1;
    while let Err(reason) = &proof
        && candidate.name == accessed_bits::NAME
        && tries < TRIES
    {
        tracing::debug!("{}: {reason}; trying once more from the start", candidate.name);
        drop(tracker);
        tracker = (candidate.open)()?;
        proof = prove(tracker.as_mut(), tiers);
        tries += 1;
    }
    Ok((tracker, proof))
}

/// What a tracker showed, in a line.
fn describe(proof: &Proof) -> String {
    let percent = |share: f64| format!("{:.1} %", share * 100.0);
    let mut parts = Vec::new();
    parts.extend(proof.read_recall.map(|recall| format!("saw {} of the reads", percent(recall))));
    parts.extend(proof.write_recall.map(|recall| format!("saw {} of the writes", percent(recall))));
    parts.push(format!("{} of what it reported was true", percent(proof.precision)));
    parts.extend(proof.grade.cost_ns_per_page.map(|cost| format!("{cost:.1} ns a page")));
    parts.join(", ")
}

fn examine(candidate: &Candidate, tiers: &TierMap) -> TrackerReport {
    let mut report = TrackerReport {
        name: candidate.name,
        available: false,
        proven: false,
        reason: String::new(),
        granularity_bytes: Bytes::new(PAGE_BYTES),
        reads: candidate.shows != Shows::Writes,
        writes: true,
        cost_ns_per_page: None,
        serves: candidate.serves,
    };
    let (tracker, proof) = match open_and_prove(candidate, tiers) {
        Ok(tried) => tried,
        Err(TrackError::Unavailable { reason, .. }) => return TrackerReport { reason, ..report },
        Err(error) => return TrackerReport { reason: error.to_string(), ..report },
    };
    report.available = true;
    match proof {
        Ok(proof) => {
            report.proven = true;
            report.reason = describe(&proof);
            report.cost_ns_per_page = proof.grade.cost_ns_per_page;
        }
        Err(error) => report.reason = error.to_string(),
    }
    let grade = tracker.grade();
    (report.granularity_bytes, report.reads, report.writes) = (grade.granularity_bytes, grade.reads, grade.writes);
    report
}

impl Doctor {
    /// Examines this machine. Takes up to some seconds: every tracker is tried.
    ///
    /// # Errors
    /// When its tiers cannot be found out.
    pub fn examine() -> Result<Doctor, TopologyError> {
        let topology = Topology::discover(Path::new("/"))?;
        let mut doctor = Doctor::examine_with(&topology.tier_map()?);
        doctor.notes.extend(topology.notes.into_iter().chain(topology.background));
        Ok(doctor)
    }

    /// The same for tiers that are known.
    pub fn examine_with(tiers: &TierMap) -> Doctor {
        let trackers: Vec<TrackerReport> = CANDIDATES.iter().map(|candidate| examine(candidate, tiers)).collect();
        let chosen_tracker = trackers
            .iter()
            .zip(&CANDIDATES)
            .find(|(report, candidate)| report.proven && candidate.shows == Shows::AccessedBits)
            .map(|(report, _)| report.name);
        let rights = Rights::of_this_process();
        let rivals = rivals(Path::new("/"), std::process::id());
        let movers = movers::survey(tiers);
        let root = Path::new("/");
        let mut notes: Vec<String> = accessed_bits::other_clearer().into_iter().collect();
        let mut trials = trials::survey(root, tiers).unwrap_or_else(|error| {
            notes.push(format!("nothing could be tried on memory of this process: {error}"));
            Vec::new()
        });
        trials.push(trials::folios_untried(root, tiers));
        let mut advice = advice(&rights, chosen_tracker, &movers, tiers, &rivals, &leftovers());
        if !has_pids_of_machine() {
            advice.push(
                "this is a pid namespace of its own (a container): its programs can be observed and managed; those outside of it, other Terraces and \
                 cAdvisors among them, are not seen"
                    .to_owned(),
            );
        }
        Doctor {
            schema_version: 1,
            kernel: kernel(),
            rights,
            trackers,
            chosen_tracker,
            movers,
            trials,
            huge_pages: HugePages::read(root),
            prices: None,
            compression: Compression::examine(),
            tiers: tiers.tiers().to_vec(),
            rivals,
            advice,
            notes,
        }
    }
}

fn kernel() -> Kernel {
    let name = rustix::system::uname();
    let text = |field: &std::ffi::CStr| field.to_string_lossy().into_owned();
    let processors = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    Kernel {
        release: text(name.release()),
        machine: text(name.machine()),
        virtual_machine: processors
            .lines()
            .any(|line| line.starts_with("flags") && line.split_ascii_whitespace().any(|flag| flag == "hypervisor")),
        btf: Path::new("/sys/kernel/btf/vmlinux").exists(),
    }
}

/// Others that move pages or clear marks, this process and what it started left aside.
pub fn rivals(root: &Path, own_pid: u32) -> Vec<Rival> {
    let read = |path: &str| std::fs::read_to_string(root.join(path)).ok().map(|text| text.trim().to_owned());
    let on = |text: &String| !matches!(text.as_str(), "" | "0" | "N" | "n" | "false");
    let mut rivals = Vec::new();
    let mut add = |name, state: Option<String>, effect: &str| {
        if let Some(state) = state.filter(on) {
            rivals.push(Rival { name, state, effect: effect.to_owned() });
        }
    };
    add(
        "numa_balancing",
        read("proc/sys/kernel/numa_balancing"),
        "the kernel moves pages between nodes too: sysctl kernel.numa_balancing=0 while Terrace decides",
    );
    add(
        "demotion_enabled",
        read("sys/kernel/mm/numa/demotion_enabled"),
        "the kernel demotes pages under pressure too: echo false > /sys/kernel/mm/numa/demotion_enabled",
    );
    add(
        "DAMON",
        read("sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds").filter(on).map(|count| {
            let state = read("sys/kernel/mm/damon/admin/kdamonds/0/state").unwrap_or_default();
            format!("{count} set up, the first is {state}")
        }),
        "it clears the accessed bits that Terrace reads, so some accesses are missed; it may page out by schemes of its own",
    );
    for name in ["damon_stat", "damon_reclaim", "damon_lru_sort"] {
        let enabled = read(&format!("sys/module/{name}/parameters/enabled"));
        add(name, enabled, "it clears the accessed bits that Terrace reads: write N to its parameter `enabled`");
    }
    let processes = std::fs::read_dir(root.join("proc")).into_iter().flatten().flatten();
    let mut pids: Vec<u32> = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    pids.sort_unstable();
    let clearing = pids.iter().find_map(|pid| {
        // For nearly all processes only the start of the name is read: this check runs often.
        (read(&format!("proc/{pid}/comm"))? == "cadvisor").then_some(())?;
        let every = reset_interval(&read(&format!("proc/{pid}/cmdline"))?)?;
        Some(format!("pid {pid}, every {every} measurements"))
    });
    add(
        "cadvisor",
        clearing,
        "it clears the accessed bits that Terrace reads, to count referenced bytes: start it without --referenced_reset_interval",
    );
    let others: Vec<u32> = pids
        .into_iter()
        .filter(|&pid| pid != own_pid)
        .filter(|pid| {
            let status = read(&format!("proc/{pid}/status")).unwrap_or_default();
            let parent = status.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse::<u32>().ok());
            parent != Some(own_pid)
        })
        .filter(|pid| match read(&format!("proc/{pid}/comm")).as_deref() {
            Some("terraced") => true,
            Some("terrace") => read(&format!("proc/{pid}/cmdline")).is_some_and(|line| manages(&line)),
            _ => false,
        })
        .collect();
    let list = others.iter().map(|pid| format!("pid {pid}")).collect::<Vec<_>>().join(", ");
    add("terrace", Some(list), "another Terrace runs; two must not manage the same program");
    rivals
}

/// Whether a `terrace` with this command line manages a program: by its subcommand, the first word that is not an option. A simulation, a workload or a
/// look at the topology disturbs no other Terrace, whatever words follow.
fn manages(command: &str) -> bool {
    let mut words = command.split('\0').skip(1).filter(|word| !word.starts_with('-'));
    match words.next() {
        Some("run" | "attach") => true,
        Some("size") => words.next() == Some("tune"),
        _ => false,
    }
}

/// How often a cAdvisor with this command line clears accessed bits, in measurements; `None` if it does not, as by default.
fn reset_interval(command: &str) -> Option<u32> {
    const OPTION: &str = "referenced_reset_interval";
    let words: Vec<&str> = command.split('\0').collect();
    words.iter().enumerate().find_map(|(place, word)| {
        let rest = word.trim_start_matches('-').strip_prefix(OPTION)?;
        let value = rest.strip_prefix('=').or_else(|| words.get(place + 1).copied().filter(|_| rest.is_empty()))?;
        value.parse().ok().filter(|every| *every > 0)
    })
}

fn advice(
    rights: &Rights,
    chosen: Option<&str>,
    movers: &[MoverReport],
    tiers: &TierMap,
    rivals: &[Rival],
    leftovers: &[Leftover],
) -> Vec<String> {
    let mut advice = Vec::new();
    if chosen.is_none() {
        advice.push(
            "no tracker shows accessed pages here, so nothing can be managed; the reasons stand beside each tracker"
                .to_owned(),
        );
    }
    if !rights.missing.is_empty() {
        advice.push(format!("run as root, or give the capabilities that are missing: {}", rights.missing.join(", ")));
    }
    if tiers.tiers().len() < 2 {
        advice.push(
            "there is one tier only: let `terrace run` set compressed swap up (--tier-slow zram:2GiB), or add swap"
                .to_owned(),
        );
    } else if !movers.iter().any(|mover| mover.available && mover.useful && mover.name != "dry-run") {
        advice.push("no mover works between these tiers; the reasons stand beside each mover".to_owned());
    }
    advice.extend(rivals.iter().map(|rival| format!("{} ({}): {}", rival.name, rival.state, rival.effect)));
    advice.extend(leftovers.iter().map(|leftover| {
        format!(
            "{} is compressed swap of a Terrace ({}) that is gone: {}",
            leftover.zram.device().display(),
            leftover.owner,
            leftover.remedy
        )
    }));
    advice
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rivals_are_found_by_what_the_kernel_says() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        assert_eq!(rivals(root.path(), 1), []);
        write("proc/sys/kernel/numa_balancing", "2\n");
        write("sys/kernel/mm/numa/demotion_enabled", "false\n");
        write("sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds", "1\n");
        write("sys/kernel/mm/damon/admin/kdamonds/0/state", "on\n");
        write("sys/module/damon_stat/parameters/enabled", "Y\n");
        write("proc/41/comm", "terraced\n");
        write("proc/42/comm", "terrace\n");
        write("proc/46/comm", "terraced\n");
        write("proc/46/status", "Name:\tterraced\nPPid:\t42\n");
        write("proc/44/comm", "terrace\n");
        write("proc/44/cmdline", "terrace\0attach\0--pid\0seven\0");
        write("proc/45/comm", "terrace\n");
        write("proc/45/cmdline", "terrace\0workload\0gups\0");
        write("proc/43/comm", "bash\n");
        write("proc/47/comm", "cadvisor\n");
        write("proc/47/cmdline", "/usr/bin/cadvisor\0-port=8080\0");
        write("proc/48/comm", "cadvisor\n");
        write("proc/48/cmdline", "/usr/bin/cadvisor\0--referenced_reset_interval=5\0");
        let found: Vec<(&str, String)> =
            rivals(root.path(), 42).into_iter().map(|rival| (rival.name, rival.state)).collect();
        let expected = [
            ("numa_balancing", "2"),
            ("DAMON", "1 set up, the first is on"),
            ("damon_stat", "Y"),
            ("cadvisor", "pid 48, every 5 measurements"),
            ("terrace", "pid 41, pid 44"),
        ];
        assert_eq!(found, expected.map(|(name, state)| (name, state.to_owned())));
    }

    #[test]
    fn a_terrace_is_a_rival_by_its_subcommand_only() {
        for manages_one in ["terrace\0run\0ls\0", "terrace\0-v\0attach\0--pid\x007\0", "terrace\0size\0tune\0--\0ls\0"]
        {
            assert!(manages(manages_one), "{manages_one:?}");
        }
        for harmless in [
            "terrace\0sim\0run\0--policy\0age\0",
            "terrace\0observe\0--\0run\0",
            "terrace\0size\0advise\0",
            "terrace\0workload\0attach\0",
            "terrace\0",
        ] {
            assert!(!manages(harmless), "{harmless:?}");
        }
    }

    #[test]
    fn a_cadvisor_that_clears_nothing_is_no_rival() {
        assert_eq!(reset_interval("cadvisor\0-referenced_reset_interval\x003\0"), Some(3));
        for harmless in
            ["cadvisor\0", "cadvisor\0--referenced_reset_interval=0\0", "x\0--referenced_reset_interval_x=4\0"]
        {
            assert_eq!(reset_interval(harmless), None, "{harmless:?}");
        }
    }

    fn missing(tracker: &'static str) -> Result<Box<dyn Tracker>, TrackError> {
        Err(TrackError::Unavailable { tracker, reason: "not in this test".to_owned() })
    }

    fn choose(needs: Needs, requested: Option<&str>) -> Result<Vec<String>, ChooseError> {
        let candidate = |name, open, shows| Candidate { name, open, shows, serves: "tests" };
        let candidates = [
            candidate("samples", (|| missing("samples")) as fn() -> _, Shows::Samples),
            candidate("accessed-bits", || missing("accessed-bits"), Shows::AccessedBits),
            candidate("page-faults", || missing("page-faults"), Shows::Faults),
        ];
        choose_from(&candidates, needs, requested, &TierMap::new(Vec::new(), Vec::new())).map(|(_, reasons)| reasons)
    }

    #[test]
    fn every_tracker_has_its_reason() {
        let needs = Needs { scans: true, ..Needs::default() };
        let Err(ChooseError::NoneWorks { reasons }) = choose(needs, None) else { panic!("nothing can be chosen") };
        assert_eq!(
            reasons,
            [
                "accessed-bits: not in this test",
                "samples, page-faults: not tried, they do not see what this policy needs; `terrace policies` says what each needs"
            ]
        );
        let needs = Needs { samples: true, ..Needs::default() };
        let Err(ChooseError::NoneWorks { reasons }) = choose(needs, None) else { panic!("nothing can be chosen") };
        assert_eq!(reasons[0], "samples: not in this test");
    }

    #[test]
    fn one_line_names_the_usual_tracker_and_counts_the_others() {
        let line = |reasons: &[&str]| {
            ChooseError::NoneWorks { reasons: reasons.iter().map(|reason| (*reason).to_owned()).collect() }.in_a_line()
        };
        let all = [
            "walker: no module",
            "accessed-bits: not permitted",
            "damon: no files",
            "samples: not tried, they do not see it",
        ];
        assert_eq!(line(&all), "no tracker works here: accessed-bits: not permitted; 2 more: `terrace doctor`");
        assert_eq!(line(&["damon: no files"]), "no tracker works here: damon: no files");
        assert!(line(&["samples: not tried, they do not see it"]).contains("not tried"));
    }

    #[test]
    fn the_one_asked_for_is_the_only_one_tried() {
        let Err(ChooseError::NoneWorks { reasons }) = choose(Needs::default(), Some("page-faults")) else {
            panic!("nothing can be chosen")
        };
        assert_eq!(reasons, ["page-faults: not in this test"]);
        let line = choose(Needs::default(), Some("eyes")).unwrap_err().to_string();
        assert!(line.contains("\"eyes\"") && line.contains("accessed-bits"), "{line}");
    }
}
