//! Who manages tiered memory best: the same program in the same guest, once under each manager, every access counted by the plugin.
//!
//! In: a [`Job`]: kernel, workload or program, fast memory, manager, seed. Out: a [`Row`] and its [`Course`]. Must not: give one manager another
//! guest than the next: only what turns it on differs.
//!
//! Fast memory is what huge pages that nobody can move leave free of node 0. The guest's files lie on node 1, and a managing process
//! (Terrace) has its own memory there (numactl), so that node 0 belongs to the program under every manager. Time is by instructions, so a row comes out
//! the same each time.
//!
//! A workload's mappings lie in an address range of their own (`ulimit -s unlimited`, without randomization), by which the plugin tells its accesses
//! from all others. A program of the host's may have a heap and children: it carries a label, by which the plugin tells it as in [`crate::record`].

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use terrace_core::units::{Bytes, PAGE_BYTES};

use crate::error::{LabError, file_error};
use crate::lab::{Extras, Lab, ScenarioReport};
use crate::machine::{LARGEST_GUEST, Machine, Topology, escaped};
pub use crate::manager::Manager;
use crate::measure::{COUNTED_INSTRUCTION, Measure};
use crate::memtierd;
use crate::plugin;
use crate::record::{FIRST_LABEL, SAID_BYTES, ToldApart};
use crate::scenario::{GuestFile, Scenario, Step};

/// The program's mappings: with an unlimited stack the kernel maps downwards from a sixth of the address space (from 0x155555556000 on 6.1.0-56,
/// 6.12.117 and 7.2.13) or upwards from a third of it (seen at 0x2aaaaaaaa000 on another 6.12). Programs themselves begin at two thirds,
/// everything else maps below the top: nothing else lies here, but for the heap of Go programs.
const ADDRESSES: Range<u64> = 0x0800_0000_0000..0x4000_0000_0000;
/// The same beside memtierd, whose heap begins anywhere below 0x400000000000 since Go 1.26: no more than any program here can fill. Should a
/// kernel map elsewhere, the plugin sees no access, which is an error.
const ADDRESSES_BESIDE_GO: Range<u64> = 0x1555_5555_6000 - (64 << 30)..0x1555_5555_6000;
/// Memory of each node beyond what the program gets, for the kernel, the files and the other programs.
const BESIDES: Bytes = Bytes::mib(384);
/// Memory that a guest with a manager of ours shares with the plugin, for its `samples` tracker: half of it is ring.
const SAMPLE_MEMORY: Bytes = Bytes::mib(2);
/// USER_HZ, the unit of CPU time in /proc, is 100 on every x86 kernel.
const TICKS: f64 = 100.0;
/// Room on node 0 beside the program's while Terrace starts: the kernel's own, for its programs and rings.
const STARTING_KIB: u64 = 32 << 10;

/// What is run under every manager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A workload (`terrace workload list`).
    Workload {
        /// Its name.
        name: String,
        /// How much it does, in its own operations; `None` leaves it to the workload.
        operations: Option<u64>,
        /// Its options, KEY=VALUE.
        settings: Vec<String>,
        /// Its seed.
        seed: u64,
    },
    /// A program of the host's, with its children.
    Program(Program),
}

impl Subject {
    /// Its name in rows.
    pub fn name(&self) -> &str {
        match self {
            Subject::Workload { name, .. } => name,
            Subject::Program(program) => &program.shown,
        }
    }

    /// The seed, where it has one.
    pub fn seed(&self) -> Option<u64> {
        match self {
            Subject::Workload { seed, .. } => Some(*seed),
            Subject::Program(_) => None,
        }
    }

    fn files(&self) -> Vec<GuestFile> {
        match self {
            Subject::Workload { .. } => Vec::new(),
            Subject::Program(program) => program.files.iter().map(GuestFile::new).collect(),
        }
    }
}

/// A program of the host's that is brought along.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The command, for people.
    pub shown: String,
    /// The command as the guest's shell takes it, beginning with the program's path there.
    pub line: String,
    /// Files of the host and their paths in the guest; programs bring their libraries along.
    pub files: Vec<(PathBuf, String)>,
}

impl Program {
    /// Writes what starts it. The shell that takes the label has not begun a program yet, and its accesses are not counted.
    fn starter(&self) -> String {
        format!(
            "mkdir -p {FOLDER}\ncat >{STARTER} <<'end of {STARTER}'\ncd {FOLDER}\n\
             (read -r me rest </proc/self/stat\necho $me >/tmp/pid.new && mv /tmp/pid.new /tmp/pid\n\
             echo {FIRST_LABEL} >/proc/self/loginuid || exit 125\nexec {}) </dev/null\nexit $?\nend of {STARTER}\n",
            self.line
        )
    }
}

/// Where a program starts, and the file that starts it.
const FOLDER: &str = "/compared";
const STARTER: &str = "/tmp/starter";

/// One run.
#[derive(Clone, Debug)]
pub struct Job {
    /// The kernel's version.
    pub kernel: String,
    /// What runs.
    pub subject: Subject,
    /// Its footprint.
    pub size: Bytes,
    /// Fast memory.
    pub fast: Bytes,
    /// Who manages.
    pub manager: Manager,
    /// The modelled machine whose cache, TLBs and latencies count.
    pub machine: String,
    /// The modelled cache.
    pub cache: Bytes,
    /// Most wall time.
    pub time_limit: Duration,
}

/// What a run came to.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Row {
    /// Who managed.
    pub manager: String,
    /// Terrace's policy, with the settings that were asked for, or memtierd's configuration where one was; `null` for others.
    pub policy: Option<String>,
    /// The workload, or the command.
    pub workload: String,
    /// The kernel's release.
    pub kernel: String,
    /// The seed; a program has none.
    pub seed: Option<u64>,
    /// The footprint: the workload's, or the most that the program and its children had of their own (anonymous) memory.
    pub size_bytes: u64,
    /// Fast memory that there was room for.
    pub fast_bytes: u64,
    /// The modelled cache.
    pub modelled_cache_bytes: u64,
    /// Share of the program's accesses that missed the modelled cache and were served by node 0.
    pub fast_hit_share: f64,
    /// The same for the last half of the program's accesses, when a manager has had time to act.
    pub fast_hit_share_late: f64,
    /// Seconds that the program's accesses take on the modelled machine. Computing, faults and moves are not in it.
    pub modelled_seconds: f64,
    /// The program's own memory on node 0, in bytes: the mean of a look each second. Not every manager keeps to what it was given.
    pub fast_bytes_mean: u64,
    /// The most of those looks.
    pub fast_bytes_most: u64,
    /// Pages that came to fast memory, by the manager's own account, which is the kernel's for kernel managers.
    pub promoted_pages: u64,
    /// Pages that left it.
    pub demoted_pages: u64,
    /// Emulated CPU time of Terrace, or of the kernel's threads that manage memory (kswapd, kcompactd, kdamond).
    pub manager_cpu_seconds: f64,
    /// Emulated CPU time of the kernel while the program ran, for all processes.
    pub kernel_cpu_seconds: f64,
    /// Accesses of the program.
    pub accesses: u64,
    /// Those that missed the modelled cache.
    pub memory_accesses: u64,
    /// Guest time the run took, by instructions.
    pub guest_seconds: f64,
}

/// Fast share over the run: accesses so far, in millions, and the share since the point before.
pub type Course = Vec<(f64, f64)>;

/// What the plugin wrote, summed up.
#[derive(Clone, Debug, Default, PartialEq)]
struct Counted {
    accesses: u64,
    fast: u64,
    slow: u64,
    late_fast: u64,
    late_slow: u64,
    seconds: f64,
    course: Course,
}

impl Lab {
    /// Runs a job.
    ///
    /// # Errors
    /// When QEMU, the plugin or a package is missing, when the guest does not come to its end, or the program fails in it.
    pub fn compare_one(&self, job: &Job) -> Result<(Row, Course), LabError> {
        plugin::check("qemu-system-x86_64", "qemu-system-x86")?;
        let plugin = plugin::plugin()?;
        let scenario = job.scenario()?;
        let folder = tempfile::Builder::new().prefix("terrace-compare-").tempdir();
        let folder = folder.map_err(file_error(&std::env::temp_dir()))?;
        let output = folder.path().join("tiers.jsonl");
        let mut plugin_option = job.plugin_option(&plugin, &output, scenario.machine.fast);
        let told = match &job.subject {
            Subject::Workload { .. } => None,
            Subject::Program(_) => {
                let kernel = self.cache.kernel(&job.kernel, self.refresh)?;
                Some(ToldApart::new(&scenario.machine, &kernel, 1)?)
            }
        };
        plugin_option += &told.as_ref().map(ToldApart::plugin_option).unwrap_or_default();
        let mut qemu = Vec::new();
        if matches!(job.manager, Manager::Terrace { .. }) {
            let samples = folder.path().join("samples");
            let file = terrace_files::create_new(&samples).and_then(|file| file.set_len(SAMPLE_MEMORY.get()));
            file.map_err(file_error(&samples))?;
            plugin_option += &format!(",samples={}", escaped(&samples));
            let memory = format!(
                "memory-backend-file,id=samples,share=on,size={},mem-path={}",
                SAMPLE_MEMORY.get(),
                escaped(&samples)
            );
            qemu.extend(["-object".to_owned(), memory]);
            qemu.extend(["-device".to_owned(), "ivshmem-plain,memdev=samples".to_owned()]);
        }
        qemu.extend(["-plugin".to_owned(), plugin_option]);
        // What else lies on node 0 could be moved out of it by some managers, who would then have more of it than others.
        let manager = job.manager.label().replace(['/', ':'], "-");
        let seed = job.subject.seed().map(|seed| format!("-{seed}")).unwrap_or_default();
        let keep_as = format!("{}-{manager}{seed}", file_name(job.subject.name()));
        let bpftrace = matches!(job.manager, Manager::Memtierd { .. });
        let memory = told.as_ref().map(ToldApart::memory_files).unwrap_or_default();
        let extras = Extras { qemu, files_node: Some(1), keep_as, bpftrace, memory };
        let failed = || format!("{} under {} failed", job.subject.name(), job.manager.name());
        let report = self.run_with(&scenario, None, &extras)?.or_failed(failed)?;
        let text = fs::read_to_string(&output).map_err(file_error(&output))?;
        let counted = count(&text).map_err(|error| LabError::Invalid(error.to_string()))?;
        Ok((job.row(&report, &counted), counted.course))
    }

    /// The most memory of their own (anonymous) that a program and its children have at one time, in whole MiB: of a look each 0.1 s of the guest's
    /// time, in a guest where nobody manages.
    ///
    /// # Errors
    /// When QEMU or a package is missing, when the guest does not come to its end, or the program fails in it.
    pub fn footprint_of(&self, program: &Program, kernel: &str, time_limit: Duration) -> Result<Bytes, LabError> {
        let machine = Machine { fast: Bytes::gib(1), slow: Bytes::mib(1536), cpus: 1, ..Machine::default() };
        let run = program.starter()
            + &format!(
                "(sh {STARTER} >/tmp/workload 2>&1; echo $? >/tmp/exit) &\n\
                 while [ ! -s /tmp/exit ]; do anonymous_now {FIRST_LABEL}; sleep 0.1; done\n\
                 most_of /tmp/anonymous footprint\ntail -c {SAID_BYTES} /tmp/workload\nexit $(cat /tmp/exit)\n"
            );
        let scenario = Scenario {
            name: "footprint".to_owned(),
            description: "how much memory a program has".to_owned(),
            kernels: vec![kernel.to_owned()],
            huge_pages: Some("never".to_owned()),
            numa_balancing: Some(0),
            kernel_arguments: "norandmaps".to_owned(),
            instruction_nanoseconds: COUNTED_INSTRUCTION,
            time_limit,
            files: program.files.iter().map(GuestFile::new).collect(),
            steps: vec![Step { name: "run".to_owned(), run, may_fail: false }],
            assertions: vec!["exists(footprint)".to_owned()],
            machine,
            ..Scenario::default()
        };
        let extras = Extras { keep_as: format!("{}-footprint", file_name(&program.shown)), ..Extras::default() };
        let failed = || format!("{} failed in a guest without a manager", program.shown);
        let report = self.run_with(&scenario, None, &extras)?.or_failed(failed)?;
        let kib = report.values.get("footprint").and_then(Value::as_u64).unwrap_or(0);
        Ok(Bytes::mib(kib.div_ceil(1 << 10)))
    }
}

/// A name of a command that a folder can have.
fn file_name(shown: &str) -> String {
    let plain = |letter: char| if letter.is_ascii_alphanumeric() || "_.".contains(letter) { letter } else { '-' };
    shown.chars().take(60).map(plain).collect()
}

impl Job {
    fn machine(&self) -> Result<Machine, LabError> {
        let round = |bytes: Bytes| Bytes::mib(bytes.get().div_ceil(Bytes::mib(2).get()) * 2);
        let machine = Machine {
            topology: Topology::FastSlow,
            fast: round(self.fast + BESIDES),
            slow: round(self.size + BESIDES + self.manager.besides()),
            cpus: 1,
            ..Machine::default()
        };
        match machine.fast + machine.slow <= LARGEST_GUEST {
            true => Ok(machine),
            false => Err(LabError::Invalid(format!(
                "a program of {} needs a guest of {}: at most {LARGEST_GUEST} can be counted",
                self.size,
                machine.fast + machine.slow
            ))),
        }
    }

    /// The addresses by which the plugin recognises the program's accesses.
    fn addresses(&self) -> Range<u64> {
        match (&self.subject, &self.manager) {
            // Known by its label, wherever its memory is.
            (Subject::Program(_), _) => 0..0,
            (_, Manager::Memtierd { .. }) => ADDRESSES_BESIDE_GO,
            _ => ADDRESSES,
        }
    }

    fn plugin_option(&self, plugin: &Path, output: &Path, fast_node: Bytes) -> String {
        format!(
            "file={},mode=tiers,out={},fast={},from={},to={},cache={},machine={}",
            escaped(plugin),
            escaped(output),
            fast_node.get(),
            self.addresses().start,
            self.addresses().end,
            self.cache.get(),
            self.machine
        )
    }

    fn scenario(&self) -> Result<Scenario, LabError> {
        let machine = self.machine()?;
        // The host's own, as its libraries go with it: they are those that `terrace` brings.
        let numactl = GuestFile {
            host: "/usr/bin/numactl".to_owned(),
            guest: "/bin/numactl".to_owned(),
            build: Some("apt-get install numactl".to_owned()),
        };
        let mut files = vec![numactl];
        files.extend(self.manager.files()?);
        files.extend(self.subject.files());
        Ok(Scenario {
            name: format!("compare-{}-{}", file_name(self.subject.name()), self.manager.name()),
            description: "one run of a comparison".to_owned(),
            kernels: vec![self.kernel.clone()],
            module_sources: self.manager.modules(),
            huge_pages: Some("never".to_owned()),
            numa_balancing: Some(0),
            // Addresses must be the same in each run, and tell the program's own.
            kernel_arguments: "norandmaps".to_owned(),
            instruction_nanoseconds: COUNTED_INSTRUCTION,
            time_limit: self.time_limit,
            files,
            steps: vec![Step { name: "run".to_owned(), run: self.script(&machine)?, may_fail: false }],
            assertions: match self.subject {
                Subject::Workload { .. } => vec!["exists(workload.verified)".to_owned()],
                // Its exit code is the step's.
                Subject::Program(_) => Vec::new(),
            },
            machine,
            ..Scenario::default()
        })
    }

    /// The one step: everything up to the program is the same for all managers.
    fn script(&self, machine: &Machine) -> Result<String, LabError> {
        let interleaved = if self.manager == Manager::Interleave { "numactl --interleave=all " } else { "" };
        let enters = self.manager.enters();
        let set = |settings: &[String]| settings.iter().map(|setting| format!(" --set {setting}")).collect::<String>();
        let fast_kib = self.fast.get() >> 10;
        let room = if matches!(self.manager, Manager::Terrace { .. }) { fast_kib + STARTING_KIB } else { fast_kib };
        let mut text = format!("leave_free 0 {room} || exit 1\n");
        let measure = Measure::of(self.size);
        text += &self.manager.before(measure);
        text += &match &self.subject {
            Subject::Workload { name, operations, settings, seed } => {
                let operations = operations.map(|number| format!(" --operations {number}")).unwrap_or_default();
                let size = self.size.get();
                let given = set(settings);
                format!(
                    "cpu_now cpu_before\nvmstat_now before\n\
                     (ulimit -s unlimited; {enters}{interleaved}terrace workload {name} --size {size} --seed {seed}{operations}{given} \
                     >/tmp/workload 2>&1; echo $? >/tmp/exit) &\n\
                     pid=$(pid_of 'terrace workload') || {{ cat /tmp/workload; exit 1; }}\n\
                     pids() {{ echo $pid; }}\n"
                )
            }
            Subject::Program(program) => format!(
                "{}cpu_now cpu_before\nvmstat_now before\n\
                 ({enters}{interleaved}sh {STARTER} >/tmp/workload 2>&1; echo $? >/tmp/exit) &\n\
                 pid=$(begun {STARTER}) || {{ cat /tmp/workload; exit 1; }}\n\
                 pids() {{ labelled {FIRST_LABEL}; }}\n",
                program.starter()
            ),
        };
        text += &match &self.manager {
            Manager::Damon => {
                format!("damon_tiering {} {} || exit 1\n", machine.fast.get(), (machine.fast + machine.slow).get())
            }
            // It is ready when bpftrace is, and the program waits for it: earlier use does not count.
            Manager::Memtierd { config } => {
                let configuration = memtierd::configuration(config.as_deref(), measure)?;
                memtierd::start(&configuration, &self.addresses()) + "cpu_now cpu_before\n"
            }
            // What watching and moving take in emulated time says how fast the emulator is: budgets of it would decide by that. What each manager
            // cost stands in its row.
            // Trackers are proven before the first look: seconds of emulated time, whatever the size of the program, which waits for them as it does
            // for memtierd. What the kernel sets up for them may take memory of node 0, which is the program's in full once it goes on.
            // A policy of its own memory, not a cpuset: that would forbid it to move pages to node 0. With balancing, since the kernel's
            // scanner passes over memory of other policies, and the tracker of hint faults is tried on Terrace's own.
            Manager::Terrace { policy, .. } => format!(
                "kill -STOP $pid\n\
                 numactl --balancing --membind=1 terrace attach --pid $pid -v --quiet --policy {policy} --tier-slow node:1 --fast {} --cooldown {}{} \
                 --max-overhead 100% --max-slowdown 100% \
                 --json-file $OUT/run.json 2>/tmp/terrace.log &\n\
                 manager=$!\n\
                 manages $manager && sleep 5 && fill 0 $(left_of {fast_kib} $pid) || exit 1\n\
                 kill -CONT $pid\ncpu_now cpu_before\n",
                self.fast.get(),
                self.manager.rest(measure).unwrap_or_default(),
                set(&self.manager.settings(measure))
            ),
            _ => String::new(),
        };
        // The program's part of node 0 is read every second, under every manager.
        text += "looks=0\nwhile [ ! -s /tmp/exit ]; do\n\
                 sleep 0.1; looks=$((looks + 1)); [ $((looks % 10)) -ne 0 ] || fast_now $(pids)\n\
                 done\nfast_result program_fast\n";
        text += match &self.manager {
            Manager::Damon => "damon_result damon\n",
            Manager::Memtierd { .. } => "memtierd_result memtierd || exit 1\n",
            Manager::Terrace { .. } => "wait $manager || { failed=$?; cat /tmp/terrace.log >&2; exit $failed; }\n",
            _ => "",
        };
        text += "vmstat_now after\ncpu_now cpu_after\n";
        text += &match self.subject {
            Subject::Workload { .. } => "cat /tmp/workload\ntail -n 1 /tmp/workload >$OUT/workload.json\n".to_owned(),
            Subject::Program(_) => format!("tail -c {SAID_BYTES} /tmp/workload\n"),
        };
        Ok(text + "exit $(cat /tmp/exit)\n")
    }

    fn row(&self, report: &ScenarioReport, counted: &Counted) -> Row {
        let number = |path: &[&str]| -> f64 {
            let (first, rest) = path.split_first().unwrap_or((&"", &[]));
            let value = report.values.get(*first);
            let found = rest.iter().fold(value, |value, key| value.and_then(|value: &Value| value.get(*key)));
            found.and_then(Value::as_f64).unwrap_or(0.0)
        };
        let change = |key: &str| (number(&["after", key]) - number(&["before", key])).max(0.0);
        let demotions = ["pgdemote_kswapd", "pgdemote_direct", "pgdemote_khugepaged", "pgdemote_proactive"];
        let (promoted, demoted) = match &self.manager {
            Manager::Nothing | Manager::Interleave => (0.0, 0.0),
            Manager::NumaBalancing(1) => (change("numa_pages_migrated"), 0.0),
            Manager::NumaBalancing(_) => (change("pgpromote_success"), demotions.map(change).iter().sum()),
            Manager::Damon => (number(&["damon", "promoted"]), number(&["damon", "demoted"])),
            Manager::Memtierd { .. } => (number(&["memtierd", "promoted"]), number(&["memtierd", "demoted"])),
            Manager::Terrace { .. } => {
                let moved = |key: &str, of_module: &str| {
                    number(&["run", "moved_pages", key]) + number(&["run", "manager", "kernel_lists", of_module])
                };
                (moved("promoted", "promoted_pages"), moved("demoted", "demoted_pages"))
            }
        };
        let ticks = |key: &str| (number(&["cpu_after", key]) - number(&["cpu_before", key])).max(0.0) / TICKS;
        let share = |fast: u64, slow: u64| fast as f64 / (fast + slow).max(1) as f64;
        let seconds = report.steps.iter().map(|step| step.seconds).sum();
        Row {
            manager: self.manager.name(),
            policy: self.manager.asked(),
            workload: self.subject.name().to_owned(),
            kernel: report.release.clone(),
            seed: self.subject.seed(),
            size_bytes: self.size.get(),
            fast_bytes: self.fast.get(),
            modelled_cache_bytes: self.cache.get(),
            fast_hit_share: share(counted.fast, counted.slow),
            fast_hit_share_late: share(counted.late_fast, counted.late_slow),
            modelled_seconds: counted.seconds,
            fast_bytes_mean: number(&["program_fast", "mean"]) as u64 * PAGE_BYTES,
            fast_bytes_most: number(&["program_fast", "most"]) as u64 * PAGE_BYTES,
            promoted_pages: promoted as u64,
            demoted_pages: demoted as u64,
            manager_cpu_seconds: match self.manager {
                Manager::Terrace { .. } => number(&["run", "manager", "cpu_seconds"]),
                // Its two processes, and the kernel's thread that watches for it.
                Manager::Memtierd { .. } => number(&["memtierd", "ticks"]) / TICKS + ticks("threads"),
                _ => ticks("threads"),
            },
            kernel_cpu_seconds: ticks("kernel"),
            accesses: counted.accesses,
            memory_accesses: counted.fast + counted.slow,
            guest_seconds: seconds,
        }
    }
}

/// Why the plugin's lines say nothing.
#[derive(Debug, thiserror::Error)]
enum PluginError {
    #[error("the plugin's output: {source}: {line}")]
    Json { source: serde_json::Error, line: String },
    #[error("the plugin's output lacks {0}")]
    Lacks(&'static str),
    #[error("the plugin saw no access of the program")]
    Nothing,
}

/// Sums up the plugin's lines.
fn count(text: &str) -> Result<Counted, PluginError> {
    let mut lines = Vec::new();
    for line in text.lines() {
        let value: Value =
            serde_json::from_str(line).map_err(|source| PluginError::Json { source, line: line.to_owned() })?;
        let number = |key: &'static str| value.get(key).and_then(Value::as_f64).ok_or(PluginError::Lacks(key));
        lines.push((
            number("accesses")? as u64,
            number("misses_fast")? as u64,
            number("misses_slow")? as u64,
            number("nanoseconds")?,
        ));
    }
    let all: u64 = lines.iter().map(|line| line.0).sum();
    if all == 0 {
        return Err(PluginError::Nothing);
    }
    let mut counted = Counted::default();
    for (accesses, fast, slow, nanoseconds) in lines {
        if counted.accesses >= all / 2 {
            counted.late_fast += fast;
            counted.late_slow += slow;
        }
        counted.accesses += accesses;
        counted.fast += fast;
        counted.slow += slow;
        counted.seconds += nanoseconds / 1e9;
        if fast + slow > 0 {
            counted.course.push((counted.accesses as f64 / 1e6, fast as f64 / (fast + slow) as f64));
        }
    }
    Ok(counted)
}

/// Fast memory of a share of the footprint, in whole pages.
pub fn fast_of_share(size: Bytes, share: f64) -> Bytes {
    Bytes::new((size.get() as f64 * share) as u64 / PAGE_BYTES * PAGE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(manager: &str) -> Job {
        Job {
            kernel: "6.12".to_owned(),
            subject: Subject::Workload {
                name: "gups".to_owned(),
                operations: Some(1000),
                settings: vec!["hot=10%".to_owned()],
                seed: 7,
            },
            size: Bytes::mib(64),
            fast: fast_of_share(Bytes::mib(64), 0.3),
            manager: Manager::parse(manager).unwrap(),
            machine: "cxl-170".to_owned(),
            cache: Bytes::mib(1),
            time_limit: Duration::from_secs(60),
        }
    }

    #[test]
    fn managers_differ_in_nothing_but_what_turns_them_on() {
        let script = |manager: &str| job(manager).scenario().unwrap().steps[0].run.clone();
        let nothing = script("none");
        assert!(nothing.contains("--seed 7 --operations 1000 --set hot=10%"), "{nothing}");
        for (manager, line) in [
            ("numa_balancing=2", "echo 2 >/proc/sys/kernel/numa_balancing"),
            ("numa_balancing=2", "echo 500 >scan_delay_ms\necho 500 >scan_period_min_ms"),
            ("numa_balancing=1", "echo 1 >/proc/sys/kernel/numa_balancing"),
            ("interleave", "numactl --interleave=all terrace workload"),
            ("damon", "damon_tiering"),
            ("terrace:age", "--policy age --tier-slow node:1 --fast 20131"),
            ("terrace:age", "manages $manager && sleep 5 && fill 0 $(left_of"),
            ("terrace:flexmem", "--set adapt_samples=98 --set cool_samples=1953 --set period=9ms --set reserve=3%"),
            ("terrace:flexhm:r=5", "--set i=10ms --set e=195ms --set r=5"),
        ] {
            let text = script(manager);
            assert!(text.contains(line) && !nothing.contains(line), "{manager}: {text}");
            assert_eq!(job(manager).machine().unwrap(), job("none").machine().unwrap());
        }
    }

    #[test]
    fn a_program_is_brought_along_and_known_by_its_label_under_every_manager() {
        let program = Program {
            shown: "sqlite3 x 'select 1'".to_owned(),
            line: "/usr/bin/sqlite3 x 'select 1'".to_owned(),
            files: vec![("/usr/bin/sqlite3".into(), "/usr/bin/sqlite3".to_owned())],
        };
        for manager in ["none", "interleave", "numa_balancing=2", "damon", "terrace:age"] {
            let job = Job { subject: Subject::Program(program.clone()), ..job(manager) };
            let scenario = job.scenario().unwrap();
            assert!(scenario.files.iter().any(|file| file.guest == "/usr/bin/sqlite3"), "{scenario:?}");
            let script = &scenario.steps[0].run;
            assert!(script.contains("exec /usr/bin/sqlite3 x 'select 1') </dev/null"), "{script}");
            assert!(script.contains(&format!("echo {FIRST_LABEL} >/proc/self/loginuid")), "{script}");
            assert!(script.contains(&format!("pids() {{ labelled {FIRST_LABEL}; }}")), "{script}");
            assert!(!script.contains("terrace workload"), "{script}");
            assert!(job.addresses().is_empty(), "no address counts for it");
        }
        assert_eq!(file_name("a/b 'c'"), "a-b--c-");
    }

    #[test]
    fn the_plugins_lines_become_shares_and_a_course() {
        let text = "{\"accesses\":100,\"misses_fast\":10,\"misses_slow\":30,\"nanoseconds\":5000}\n\
                    {\"accesses\":100,\"misses_fast\":40,\"misses_slow\":0,\"nanoseconds\":3000}\n";
        let counted = count(text).unwrap();
        assert_eq!((counted.fast, counted.slow, counted.late_fast, counted.late_slow), (50, 30, 40, 0));
        assert_eq!(counted.course, [(0.0001, 0.25), (0.0002, 1.0)]);
        assert!((counted.seconds - 8e-6).abs() < 1e-12);
        assert!(matches!(count(""), Err(PluginError::Nothing)));
        assert!(matches!(count("{}"), Err(PluginError::Lacks("accesses"))));
    }

    #[test]
    fn a_heap_of_gos_is_not_taken_for_the_program() {
        let counted = |manager: &str, address: u64| job(manager).addresses().contains(&address);
        for manager in ["none", "memtierd"] {
            assert!(counted(manager, 0x1555_5555_5fff) && counted(manager, 0x1555_511d_2000), "{manager}");
        }
        assert!(!counted("memtierd", 0x1754_0800_0000), "where memtierd's was seen");
    }

    #[test]
    fn a_guest_that_cannot_be_counted_is_refused() {
        let large = Job { size: Bytes::gib(4), ..job("none") };
        assert!(large.scenario().unwrap_err().to_string().contains("at most"));
    }
}
