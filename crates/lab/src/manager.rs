//! Who can manage a guest's memory in a comparison, and with which settings.
//!
//! In: a name, the program's size. Out: a [`Manager`]: the shell that turns it on, its policy's settings at the guest's measure. Must
//! not: know of a run or its result.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use terrace_core::units::Bytes;

use crate::error::{LabError, file_error};
use crate::measure::Measure;
use crate::memtierd;
use crate::scenario::GuestFile;

/// Rest of a moved page between nodes, as Terrace has it (`machine.rs` of crates/linux).
const NODE_REST: Duration = Duration::from_secs(1);
/// The folder of the module with FlexHM's kernel part, which the tracker `walker` is of, and TieredMMS's.
const MODULE: &str = "kmod/terrace_mm";
/// Periodic demotion by the module comes no closer.
const LEAST_PERIOD: Duration = Duration::from_millis(10);
/// Whether the kernel keeps pages by generations.
const GENERATIONS: &str = "/sys/kernel/mm/lru_gen/enabled";
/// The program's cgroup, where its lists are to be its own.
const CGROUP: &str = "/sys/fs/cgroup/program";
/// Looks at all of a guest's pages come no closer: what walking its tables takes the guest should be a small part of that.
const LEAST_BETWEEN_WALKS: Duration = Duration::from_millis(10);

/// Who manages memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Manager {
    /// No manager: pages stay where they were first touched, on node 0 while it has room.
    Nothing,
    /// No manager; pages are interleaved on both nodes (numactl).
    Interleave,
    /// The kernel's NUMA balancing: 1 for balancing, 2 for tiering with demotion.
    NumaBalancing(u8),
    /// DAMON's migrate_hot and migrate_cold.
    Damon,
    /// memtierd, with its documented configuration for DAMON or this one.
    Memtierd {
        /// A configuration file of memtierd's, in which `$pid` stands for the program.
        config: Option<PathBuf>,
    },
    /// Terrace with this policy and these settings.
    Terrace {
        /// The policy.
        policy: String,
        /// Settings that were asked for, KEY=VALUE.
        settings: Vec<String>,
        /// Policy and settings as they were asked for, for rows.
        label: String,
    },
}

/// An unknown manager.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no manager: expected none, interleave, numa_balancing=1, numa_balancing=2, damon, memtierd[:config=FILE] or terrace:POLICY[:KEY=VALUE...]"
)]
pub struct ManagerError(
    /// The name.
    pub String,
);

impl Manager {
    /// The managers that are compared unless others are named.
    pub fn usual() -> Vec<Manager> {
        let names = "none,interleave,numa_balancing=1,numa_balancing=2,damon,terrace:age,terrace:flexhm";
        names.split(',').filter_map(|name| Manager::parse(name).ok()).collect()
    }

    /// Reads a name: none, interleave, numa_balancing=1, numa_balancing=2, damon, memtierd, memtierd:config=FILE, or terrace:POLICY, which may be
    /// followed by settings that go before those of the guest's measure: terrace:flexhm:i=20ms:e=2s. The setting `rest` is Terrace's own and
    /// no policy's.
    ///
    /// # Errors
    /// With what is expected.
    pub fn parse(text: &str) -> Result<Manager, ManagerError> {
        match text {
            "none" => Ok(Manager::Nothing),
            "interleave" => Ok(Manager::Interleave),
            "numa_balancing=1" => Ok(Manager::NumaBalancing(1)),
            "numa_balancing=2" => Ok(Manager::NumaBalancing(2)),
            "damon" => Ok(Manager::Damon),
            "memtierd" => Ok(Manager::Memtierd { config: None }),
            _ => match (text.strip_prefix("memtierd:config="), text.strip_prefix("terrace:")) {
                (Some(file), _) if !file.is_empty() => Ok(Manager::Memtierd { config: Some(PathBuf::from(file)) }),
                (_, Some(label)) if !label.is_empty() => {
                    let mut parts = label.split(':');
                    let policy = parts.next().unwrap_or_default().to_owned();
                    Ok(Manager::Terrace {
                        policy,
                        settings: parts.map(str::to_owned).collect(),
                        label: label.to_owned(),
                    })
                }
                _ => Err(ManagerError(text.to_owned())),
            },
        }
    }

    /// Its name in rows.
    pub fn name(&self) -> String {
        match self {
            Manager::Nothing => "none".to_owned(),
            Manager::Interleave => "interleave".to_owned(),
            Manager::NumaBalancing(mode) => format!("numa_balancing={mode}"),
            Manager::Damon => "damon".to_owned(),
            Manager::Memtierd { .. } => "memtierd".to_owned(),
            Manager::Terrace { .. } => "terrace".to_owned(),
        }
    }

    /// Its name with its policy.
    pub fn label(&self) -> String {
        self.policy().map_or_else(|| self.name(), |policy| format!("{}:{policy}", self.name()))
    }

    /// What was asked for beyond the name: Terrace's policy with its settings, memtierd's configuration.
    pub(crate) fn asked(&self) -> Option<String> {
        match self {
            Manager::Terrace { label, .. } => Some(label.clone()),
            Manager::Memtierd { config } => config.as_ref().map(|file| format!("config={}", file.display())),
            _ => None,
        }
    }

    /// Whether what it needs of this machine is there; a guest need not be booted to know.
    ///
    /// # Errors
    /// With what is missing and how to come by it.
    pub fn check(&self) -> Result<(), LabError> {
        let Manager::Memtierd { config } = self else { return Ok(()) };
        memtierd::program()?;
        config.as_ref().map_or(Ok(()), |file| std::fs::metadata(file).map(drop).map_err(file_error(file)))
    }

    /// The policy, where there is one to name.
    pub fn policy(&self) -> Option<&str> {
        match self {
            Manager::Terrace { policy, .. } => Some(policy),
            _ => None,
        }
    }

    /// Whether Terrace orders the kernel's page lists and leaves the moving to the module, as TieredMMS's paper does.
    pub(crate) fn orders_kernel_lists(&self) -> bool {
        matches!(self, Manager::Terrace { settings, .. } if settings.iter().any(|setting| setting == "lists=kernel"))
    }

    /// Whether `terrace` is to live on accessed bits, which the module's walker reads as it does for `flexhm`.
    fn walks(&self) -> bool {
        let asked = "signals=accessed-bits";
        matches!(self, Manager::Terrace { policy, settings, .. } if policy == "terrace" && settings.iter().any(|setting| setting == asked))
    }

    /// What is done before the program begins.
    pub(crate) fn before(&self, measure: Measure) -> String {
        let pass = measure.kernel_pass().as_millis();
        let paced = format!(
            "cd /sys/kernel/debug/sched/numa_balancing || exit 1\n\
             echo {pass} >scan_delay_ms\necho {pass} >scan_period_min_ms\ncd /\n"
        );
        match self {
            Manager::NumaBalancing(1) => format!("{paced}echo 1 >/proc/sys/kernel/numa_balancing || exit 1\n"),
            Manager::NumaBalancing(_) => format!(
                "{paced}echo 1 >/sys/kernel/mm/numa/demotion_enabled || exit 1\necho 2 >/proc/sys/kernel/numa_balancing || exit 1\n"
            ),
            // The lists are those of a cgroup, and there are none while the kernel keeps pages by generations.
            Manager::Terrace { .. } if self.orders_kernel_lists() => format!(
                "[ ! -e {GENERATIONS} ] || echo 0 >{GENERATIONS} || exit 1\n\
                 echo +memory >/sys/fs/cgroup/cgroup.subtree_control && mkdir {CGROUP} || exit 1\n"
            ),
            _ => String::new(),
        }
    }

    /// What the program's shell does first.
    pub(crate) fn enters(&self) -> String {
        if self.orders_kernel_lists() { format!("echo 0 >{CGROUP}/cgroup.procs || exit 1; ") } else { String::new() }
    }

    /// How long a page rests after a move in a guest: the second that is usual between nodes at the guest's measure, unless `rest=TIME` was
    /// asked for.
    pub(crate) fn rest(&self, measure: Measure) -> Option<String> {
        let Manager::Terrace { settings, .. } = self else { return None };
        let asked = settings.iter().rev().find_map(|setting| setting.strip_prefix("rest="));
        Some(asked.map_or_else(|| format!("{}ms", measure.time(NODE_REST).as_millis()), str::to_owned))
    }

    /// A policy's settings in a guest: its usual ones at the guest's measure, and then those that were asked for, which go before.
    pub(crate) fn settings(&self, measure: Measure) -> Vec<String> {
        let Manager::Terrace { policy, settings, .. } = self else { return Vec::new() };
        let time = |milliseconds: u64| measure.time(Duration::from_millis(milliseconds));
        let millis = |key: &str, time: Duration| format!("{key}={}ms", time.as_millis());
        let samples = |key: &str, full: u64| format!("{key}={}", measure.samples(full));
        let walks = |milliseconds: u64| time(milliseconds).max(LEAST_BETWEEN_WALKS);
        let pass = measure.kernel_pass();
        let memtis = || {
            let reserve = "reserve=3%".to_owned();
            let cool = samples("cool_samples", 2_000_000);
            vec![samples("adapt_samples", 100_000), cool, millis("period", time(500)), reserve]
        };
        let usual = match policy.as_str() {
            // A mark says used or not, and a walk without the module takes a guest 0.1 s: looks cannot come closer, and the times that are
            // counted in looks are as many of them as that leaves.
            "age" => {
                ["interval=50ms", "adaptive=off", "share=100%", "idle=2s", "half_life=2s"].map(str::to_owned).to_vec()
            }
            "flexhm" => vec![millis("i", walks(100)), millis("e", walks(10_000))],
            "flexmem" => [memtis(), vec![millis("scan_min", pass), millis("scan_delay", pass)]].concat(),
            "memtis" => memtis(),
            // A budget of emulated time would decide by the emulator's speed, and the period is what the other policies of samples begin with. What
            // a move costs is measured in emulated time as well, what it gains is not (docs/lab.md says how much of the price counts, and why).
            "terrace" => ["cpu=100%", "period=199", "price=1%"].map(str::to_owned).to_vec(),
            "tieredmms" => vec![
                samples("threshold_period", 100_000),
                samples("cool_period", 2_000_000),
                // No module looks more often.
                millis("period", if self.orders_kernel_lists() { time(500).max(LEAST_PERIOD) } else { time(500) }),
            ],
            _ => Vec::new(),
        };
        let asked = settings.iter().filter(|setting| !setting.starts_with("rest="));
        usual.into_iter().chain(asked.cloned()).collect()
    }

    /// What Terrace's policy runs with in a guest of a program of this size, by key: its settings, of which those that were asked for go
    /// before, and `rest`. Nothing for other managers.
    pub fn runs_with(&self, size: Bytes) -> BTreeMap<String, String> {
        let measure = Measure::of(size);
        let rest = self.rest(measure).map(|rest| format!("rest={rest}"));
        let all = self.settings(measure).into_iter().chain(rest);
        all.map(|text| {
            text.split_once('=').map_or((text.clone(), String::new()), |(key, value)| (key.into(), value.into()))
        })
        .collect()
    }

    /// Programs of the host that are part of a manager.
    ///
    /// # Errors
    /// When one is missing, with how to come by it.
    pub(crate) fn files(&self) -> Result<Option<GuestFile>, LabError> {
        match self {
            Manager::Memtierd { .. } => memtierd::program().map(Some),
            _ => Ok(None),
        }
    }

    /// Memory of the slow node for what is part of a manager and is the program's in no guest.
    pub(crate) fn besides(&self) -> Bytes {
        match self {
            Manager::Memtierd { .. } => memtierd::BESIDES,
            _ => Bytes::ZERO,
        }
    }

    /// Kernel modules that are part of a manager, as folders of this repository.
    pub(crate) fn modules(&self) -> Vec<PathBuf> {
        let wants = self.policy() == Some("flexhm") || self.walks() || self.orders_kernel_lists();
        if wants { vec![PathBuf::from(MODULE)] } else { Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::FULL_SIZE;

    #[test]
    fn names_are_read_and_wrong_ones_told() {
        assert_eq!(Manager::usual().len(), 7);
        assert_eq!(Manager::parse("tpp"), Err(ManagerError("tpp".to_owned())));
        assert!(Manager::parse("terrace:").is_err());
        assert_eq!(Manager::parse("memtierd").unwrap(), Manager::Memtierd { config: None });
        assert!(Manager::parse("memtierd:config=").is_err() && Manager::parse("memtierd:age").is_err());
        let asked = Manager::parse("memtierd:config=a/b.yaml").unwrap();
        assert_eq!((asked.name(), asked.asked().as_deref()), ("memtierd".to_owned(), Some("config=a/b.yaml")));
        assert!(asked.check().is_err(), "no such file");
    }

    #[test]
    fn policies_that_walk_page_tables_get_the_module() {
        let modules = |name: &str| Manager::parse(name).unwrap().modules().len();
        assert_eq!(
            ["terrace:flexhm", "terrace:terrace:signals=accessed-bits", "terrace:tieredmms:lists=kernel"].map(modules),
            [1; 3]
        );
        assert_eq!(["terrace:age", "terrace:terrace", "damon"].map(modules), [0; 3]);
    }

    #[test]
    fn settings_are_brought_to_the_guests_measure_and_those_asked_for_come_last() {
        let settings = |name: &str, size: Bytes| Manager::parse(name).unwrap().settings(Measure::of(size));
        let small = Bytes::mib(64);
        assert_eq!(settings("terrace:tieredmms", small), ["threshold_period=98", "cool_period=1953", "period=9ms"]);
        assert_eq!(settings("terrace:flexhm:e=2s", small), ["i=10ms", "e=195ms", "e=2s"]);
        // At full size and beyond nothing is divided, however slow the guest.
        let full = ["threshold_period=100000", "cool_period=2000000", "period=500ms"];
        assert_eq!(settings("terrace:tieredmms", FULL_SIZE), full);
        assert_eq!(settings("terrace:tieredmms", Bytes::gib(128)), full);
        assert_eq!(settings("none", small), [""; 0]);
        let ran = Manager::parse("terrace:flexhm:e=2s:rest=1s").unwrap().runs_with(small);
        let ran: Vec<(&str, &str)> = ran.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        assert_eq!(ran, [("e", "2s"), ("i", "10ms"), ("rest", "1s")]);
    }

    #[test]
    fn moved_pages_rest_at_the_guests_measure_unless_asked_otherwise() {
        let manager = |name: &str| Manager::parse(name).unwrap();
        let small = Measure::of(Bytes::mib(64));
        assert_eq!(manager("terrace:age").rest(small).as_deref(), Some("19ms"));
        assert_eq!(manager("terrace:age").rest(Measure::of(FULL_SIZE)).as_deref(), Some("1000ms"));
        let asked = manager("terrace:flexhm:rest=1s:e=2s");
        assert_eq!(
            (asked.rest(small).as_deref(), asked.settings(small).last().unwrap().as_str()),
            (Some("1s"), "e=2s")
        );
        assert!(!asked.settings(small).iter().any(|setting| setting.starts_with("rest")));
        assert_eq!(manager("damon").rest(small), None);
    }

    #[test]
    fn lists_of_the_kernel_take_the_module_and_a_cgroup_of_the_program_s_own() {
        let manager = |name: &str| Manager::parse(name).unwrap();
        let (own, kernel) = (manager("terrace:tieredmms"), manager("terrace:tieredmms:lists=kernel"));
        assert!(own.modules().is_empty() && own.enters().is_empty());
        assert_eq!(kernel.modules(), manager("terrace:flexhm").modules());
        let measure = Measure::of(Bytes::mib(64));
        assert!(kernel.before(measure).contains("lru_gen") && kernel.before(measure).contains(CGROUP));
        assert!(kernel.enters().contains(CGROUP));
        assert_eq!(kernel.settings(measure).last().unwrap(), "lists=kernel");
    }

    #[test]
    fn the_kernel_s_scanner_passes_as_often_as_its_usual_settings_let_it() {
        // 64 GiB at 256 MiB each 100 ms are 25.6 s; of 64 MiB in a guest 20 times slower, half a second.
        assert_eq!(Measure::of(Bytes::mib(64)).kernel_pass(), Duration::from_millis(500));
        let text = Manager::NumaBalancing(2).before(Measure::of(Bytes::mib(64)));
        assert!(text.contains("echo 500 >scan_period_min_ms"), "{text}");
    }
}
