//! Records programs in a guest: every access, whose it is, and how large the guest's kernel mapped the page.
//!
//! In: a [`RecordJob`]: kernel, machine, programs, and a pipe that somebody reads. Out: what the plugin writes into the pipe, and a
//! [`RecordReport`]: how the programs ended and what they said. Must not: read the recording, or run anything on the host.
//!
//! The plugin tells who runs and how pages are mapped by the guest's own memory, which it reads as files (memfd), at offsets that the
//! kernel's type information states. Each program is started by a shell that first writes a label of its own into its `loginuid`:
//! children inherit that, and nothing else in the guest has one.

use std::fs::{self, File};
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;
use terrace_core::units::Bytes;

use crate::btf::Types;
use crate::error::{LabError, file_error};
use crate::initramfs::quoted;
use crate::kernel::Kernel;
use crate::lab::{Extras, Lab};
use crate::machine::{LARGEST_GUEST, Machine, escaped};
use crate::measure::COUNTED_INSTRUCTION;
use crate::plugin;
use crate::scenario::{GuestFile, Scenario, Step};

/// The label of the first program; those after it follow. No login of a guest that has none gets there.
pub(crate) const FIRST_LABEL: u32 = 0x7465_0000;
/// Bytes of what a program says that come back, from its end.
pub(crate) const SAID_BYTES: u32 = 16 << 10;

/// Members of the kernel's structures that the plugin reads, as it calls them.
const MEMBERS: [(&str, &str, &str); 7] = [
    ("task_flags", "task_struct", "flags"),
    ("task_mm", "task_struct", "mm"),
    ("task_pid", "task_struct", "pid"),
    ("task_tgid", "task_struct", "tgid"),
    ("task_comm", "task_struct", "comm"),
    ("task_loginuid", "task_struct", "loginuid"),
    ("mm_pgd", "mm_struct", "pgd"),
];

/// A program to record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// Its path in the guest, and its arguments.
    Words(Vec<String>),
    /// A line for the guest's shell, which it takes the place of.
    Line(String),
}

/// A recording to make.
#[derive(Clone, Debug)]
pub struct RecordJob {
    /// The kernel's version.
    pub kernel: String,
    /// The machine.
    pub machine: Machine,
    /// Modules to load.
    pub modules: Vec<String>,
    /// Transparent huge pages: always, madvise or never; `None` leaves the kernel's own setting.
    pub huge_pages: Option<String>,
    /// What to record, all at once.
    pub programs: Vec<Recorded>,
    /// Files of the host and their paths in the guest; programs bring their libraries along.
    pub files: Vec<(PathBuf, String)>,
    /// A cache in front of the recorder, for each processor; none if it is 0.
    pub cache: Bytes,
    /// Every how many-th access is written down.
    pub period: u64,
    /// Where the recording goes: a pipe whose reader is there already.
    pub output: PathBuf,
    /// Most wall time; four times that by instructions.
    pub time_limit: Duration,
}

/// How a program ended.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct ProgramEnd {
    /// Its exit code; 126 and 127 also mean that the guest could not start it.
    pub exit: i32,
    /// The end of what it said on both of its outputs.
    pub said: String,
}

/// What a guest was and how its programs went.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct RecordReport {
    /// The kernel's release.
    pub kernel: String,
    /// `deterministic` or `fast`.
    pub mode: &'static str,
    /// Transparent huge pages as the guest's kernel said in the end.
    pub huge_pages: String,
    /// The programs, in the order they were named.
    pub programs: Vec<ProgramEnd>,
    /// Guest time in which they ran.
    pub guest_seconds: f64,
}

impl Lab {
    /// Boots the guest, and has its programs recorded.
    ///
    /// # Errors
    /// When QEMU or the plugin is missing, the kernel has no type information, or the guest does not come to its end. A program
    /// that fails is no error: the report has its exit code.
    pub fn record(&self, job: &RecordJob) -> Result<RecordReport, LabError> {
        plugin::check("qemu-system-x86_64", "qemu-system-x86")?;
        let plugin = plugin::plugin()?;
        let scenario = job.scenario()?;
        let kernel = self.cache.kernel(&job.kernel, self.refresh)?;
        let told = ToldApart::new(&job.machine, &kernel, job.programs.len() as u32)?;
        let option = format!(
            "file={},mode=guest,out={},cache={},period={},instruction={COUNTED_INSTRUCTION}{}",
            escaped(&plugin),
            escaped(&job.output),
            job.cache.get(),
            job.period,
            told.plugin_option(),
        );
        let qemu = vec!["-plugin".to_owned(), option];
        let extras = Extras { qemu, memory: told.memory_files(), ..Extras::default() };
        let failed = || "the guest could not start the programs".to_owned();
        let report = self.run_with(&scenario, None, &extras)?.or_failed(failed)?;
        let text = |name: &str| report.values.get(name).and_then(Value::as_str).unwrap_or_default();
        let exits = report.values.get("exits").and_then(Value::as_array).cloned().unwrap_or_default();
        let end = |(index, exit): (usize, &Value)| ProgramEnd {
            exit: exit.as_i64().map_or(-1, |exit| exit as i32),
            // The first character keeps what looks like JSON a text.
            said: text(&format!("said{index}")).get(1..).unwrap_or_default().to_owned(),
        };
        Ok(RecordReport {
            kernel: report.release.clone(),
            mode: self.mode.name(),
            huge_pages: chosen(text("huge_pages")).to_owned(),
            programs: exits.iter().enumerate().map(end).collect(),
            guest_seconds: report.steps.iter().map(|step| step.seconds).sum(),
        })
    }
}

impl RecordJob {
    fn scenario(&self) -> Result<Scenario, LabError> {
        let all: Bytes = self.machine.nodes().into_iter().fold(Bytes::ZERO, |all, node| all + node);
        if all > LARGEST_GUEST {
            return Err(LabError::Invalid(format!(
                "a guest of {all}: expected {LARGEST_GUEST} at most, as more is not in one piece"
            )));
        }
        Ok(Scenario {
            name: "record".to_owned(),
            description: "records programs".to_owned(),
            kernels: vec![self.kernel.clone()],
            machine: self.machine.clone(),
            modules: self.modules.clone(),
            huge_pages: self.huge_pages.clone(),
            // The same addresses in every run.
            kernel_arguments: "norandmaps".to_owned(),
            instruction_nanoseconds: COUNTED_INSTRUCTION,
            time_limit: self.time_limit,
            files: self.files.iter().map(GuestFile::new).collect(),
            steps: vec![Step { name: "record".to_owned(), run: self.script(), may_fail: false }],
            ..Scenario::default()
        })
    }

    fn script(&self) -> String {
        let mut text = "mkdir -p /recorded; cd /recorded\n".to_owned();
        for (index, program) in (0_u32..).zip(&self.programs) {
            let line = match program {
                Recorded::Words(words) => words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" "),
                Recorded::Line(line) => line.clone(),
            };
            text += &format!(
                "(echo {} >/proc/self/loginuid || exit 125; exec {line}) </dev/null >said{index} 2>&1 &\npid{index}=$!\n",
                FIRST_LABEL + index
            );
        }
        for index in 0..self.programs.len() {
            text += &format!("wait $pid{index}; exits=\"$exits${{exits:+,}}$?\"\n");
            text += &format!("(printf '#'; tail -c {SAID_BYTES} said{index}) >$OUT/said{index}.txt\n");
        }
        text + "cat /sys/kernel/mm/transparent_hugepage/enabled >$OUT/huge_pages.txt\necho \"[$exits]\" >$OUT/exits.json\n"
    }
}

/// A guest whose programs the plugin tells apart: by its memory, which it reads, and by labels.
pub(crate) struct ToldApart {
    /// Kept open while the guest runs: QEMU and the plugin in it open them by the number that they inherit.
    memory: Vec<File>,
    labels: u32,
    layout: String,
}

impl ToldApart {
    /// Makes the memory of a guest in which `labels` programs are distinguished.
    ///
    /// # Errors
    /// When the kernel has no type information, or there is no memory.
    pub(crate) fn new(machine: &Machine, kernel: &Kernel, labels: u32) -> Result<ToldApart, LabError> {
        let layout = layout(kernel)?;
        let memory = machine.nodes().into_iter().map(memory_file).collect::<Result<Vec<_>, _>>()?;
        Ok(ToldApart { memory, labels, layout })
    }

    /// What QEMU is to take for the nodes' memory.
    pub(crate) fn memory_files(&self) -> Vec<PathBuf> {
        self.memory.iter().map(path_of).collect()
    }

    /// What the plugin has to know, to follow its other arguments.
    pub(crate) fn plugin_option(&self) -> String {
        let ToldApart { labels, layout, .. } = self;
        let memory = self.memory_files();
        let memory = memory.iter().enumerate().map(|(node, path)| format!(",memory{node}={}", escaped(path)));
        let memory: String = memory.collect();
        format!(",labels_from={FIRST_LABEL},labels_to={}{layout}{memory}", FIRST_LABEL + labels)
    }
}

/// Where a kernel has the members, as arguments of the plugin.
fn layout(kernel: &Kernel) -> Result<String, LabError> {
    let image = fs::read(&kernel.image).map_err(file_error(&kernel.image))?;
    let wrong = |what: String| LabError::Image { path: kernel.image.clone(), what };
    let types = Types::of_image(&image).map_err(|error| wrong(error.to_string()))?;
    let offset = |(key, structure, member): (&str, &str, &str)| match types.offset(structure, member) {
        Some(offset) => Ok(format!(",{key}={offset}")),
        None => Err(wrong(format!("its {structure} has no member {member}, by which the recorder would know"))),
    };
    MEMBERS.into_iter().map(offset).collect()
}

/// A node's memory as a file that lies nowhere.
fn memory_file(size: Bytes) -> Result<File, LabError> {
    let flags = rustix::fs::MemfdFlags::empty();
    let file = rustix::fs::memfd_create("guest-memory", flags).map(File::from);
    let sized = file.map_err(std::io::Error::from).and_then(|file| file.set_len(size.get()).map(|()| file));
    sized.map_err(file_error(std::path::Path::new("memfd")))
}

fn path_of(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(file)))
}

/// Of `always [madvise] never` the word in brackets.
fn chosen(setting: &str) -> &str {
    let rest = setting.split_once('[').map_or("", |(_, rest)| rest);
    rest.split_once(']').map_or("", |(word, _)| word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job() -> RecordJob {
        RecordJob {
            kernel: "6.12".to_owned(),
            machine: Machine::default(),
            modules: Vec::new(),
            huge_pages: Some("always".to_owned()),
            programs: vec![
                Recorded::Words(vec!["/usr/bin/awk".to_owned(), "BEGIN { print 'x' }".to_owned()]),
                Recorded::Line("/usr/bin/sqlite3 :memory: 'select 1'".to_owned()),
            ],
            files: vec![("/usr/bin/awk".into(), "/usr/bin/awk".to_owned())],
            cache: Bytes::ZERO,
            period: 1,
            output: "/x".into(),
            time_limit: Duration::from_secs(1),
        }
    }

    #[test]
    fn each_program_gets_a_label_and_all_are_waited_for() {
        let scenario = job().scenario().unwrap();
        let script = &scenario.steps[0].run;
        let first =
            "(echo 1952776192 >/proc/self/loginuid || exit 125; exec '/usr/bin/awk' 'BEGIN { print '\\''x'\\'' }')";
        assert!(script.contains(first), "{script}");
        assert!(script.contains("(echo 1952776193 "), "{script}");
        assert!(script.contains("exec /usr/bin/sqlite3 :memory: 'select 1') </dev/null >said1"), "{script}");
        assert!(script.find("pid1=$!").unwrap() < script.find("wait $pid0").unwrap(), "at once: {script}");
        assert_eq!(scenario.kernel_arguments, "norandmaps");
    }

    #[test]
    fn a_guest_whose_memory_is_not_in_one_piece_is_refused() {
        let large = RecordJob { machine: Machine { slow: Bytes::gib(2), ..Machine::default() }, ..job() };
        let error = large.scenario().unwrap_err().to_string();
        assert!(error.contains(&format!("{LARGEST_GUEST} at most")), "{error}");
    }

    #[test]
    fn the_chosen_setting_is_the_one_in_brackets() {
        assert_eq!(chosen("always [madvise] never\n"), "madvise");
        assert_eq!(chosen(""), "");
    }
}
