//! Scenario files: what to boot, what to do in it, and what must come out.
//!
//! In: a TOML file. Out: a validated [`Scenario`]. Must not: boot anything, or ignore a misspelt key.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use terrace_core::units::{Bytes, parse_duration};

use crate::error::{LabError, file_error};
use crate::machine::{INSTRUCTION_NANOSECONDS, Machine, Topology};

/// A scenario, ready to run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scenario {
    /// Its name: the file's, without the ending.
    pub name: String,
    /// What it shows.
    pub description: String,
    /// The kernels that it holds for, the usual one first.
    pub kernels: Vec<String>,
    /// The machine.
    pub machine: Machine,
    /// More modules to load.
    pub modules: Vec<String>,
    /// Folders with the sources of modules that are built for the kernel and loaded after the others, relative to the folder the
    /// lab is started in.
    pub module_sources: Vec<PathBuf>,
    /// Transparent huge pages: always, madvise or never; `None` leaves the kernel's own setting.
    pub huge_pages: Option<String>,
    /// kernel.numa_balancing; `None` leaves the kernel's own setting.
    pub numa_balancing: Option<u32>,
    /// More arguments for the kernel.
    pub kernel_arguments: String,
    /// How many nanoseconds an instruction takes in the deterministic mode: 2 unless it says otherwise. More make a second of guest
    /// time cheaper on the host, and the guest slower.
    pub instruction_nanoseconds: u32,
    /// Most wall time it may take in the fast mode; four times that in the deterministic one.
    pub time_limit: Duration,
    /// Files to bring along.
    pub files: Vec<GuestFile>,
    /// What to do, in order.
    pub steps: Vec<Step>,
    /// What must hold in the end, in the language of [`crate::expression`].
    pub assertions: Vec<String>,
    /// Figures to report, by name.
    pub figures: BTreeMap<String, String>,
}

/// A file of the host that the guest gets.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GuestFile {
    /// Its path, relative to the folder the lab is started in; one `*` in its last part stands for anything, and the newest
    /// program that fits is taken.
    pub host: String,
    /// Its path in the guest.
    pub guest: String,
    /// The command that makes it, for the error when it is not there.
    #[serde(default)]
    pub build: Option<String>,
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// Its name: letters, digits, - and _.
    pub name: String,
    /// Lines of shell; the functions of lab/helpers are there.
    pub run: String,
    /// Whether the scenario goes on if it ends with an error.
    #[serde(default)]
    pub may_fail: bool,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    description: String,
    kernels: Vec<String>,
    #[serde(default)]
    topology: Topology,
    fast: Option<String>,
    slow: Option<String>,
    zram: Option<String>,
    cpus: Option<u32>,
    #[serde(default)]
    kvm: bool,
    #[serde(default)]
    modules: Vec<String>,
    #[serde(default)]
    module_sources: Vec<PathBuf>,
    huge_pages: Option<String>,
    numa_balancing: Option<u32>,
    #[serde(default)]
    kernel_arguments: String,
    instruction_nanoseconds: Option<u32>,
    time_limit: String,
    #[serde(default)]
    assertions: Vec<String>,
    #[serde(default)]
    figures: BTreeMap<String, String>,
    #[serde(default)]
    files: Vec<GuestFile>,
    steps: Vec<Step>,
}

/// Why a text is not a valid scenario.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// It is not valid TOML, or has an unknown key; with line and key.
    #[error(transparent)]
    Toml(#[from] toml::de::Error),
    /// A value makes no sense.
    #[error("{key}: {what}")]
    Value {
        /// The key, with its value where that helps.
        key: String,
        /// What is wrong with it.
        what: String,
    },
}

impl ScenarioError {
    fn value(key: impl Into<String>, what: impl ToString) -> ScenarioError {
        ScenarioError::Value { key: key.into(), what: what.to_string() }
    }
}

/// The longest file of a scenario, in bytes.
const LONGEST: u64 = 1 << 20;

impl Scenario {
    /// Reads a scenario file.
    ///
    /// # Errors
    /// When it cannot be read, is not valid TOML, has an unknown key, or is contradictory; with line and key.
    pub fn read(path: &Path) -> Result<Scenario, LabError> {
        let text = terrace_files::read_to_string(path, LONGEST).map_err(file_error(path))?;
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        Scenario::parse(&name, &text).map_err(|what| LabError::Invalid(format!("{}: {what}", path.display())))
    }

    /// Reads a scenario from a text; `name` is what it will be called.
    ///
    /// # Errors
    /// With what is wrong and where.
    pub fn parse(name: &str, text: &str) -> Result<Scenario, ScenarioError> {
        let raw: Raw = toml::from_str(text)?;
        let size = |key: &str, given: &Option<String>, default: Bytes| match given {
            None => Ok(default),
            Some(text) => {
                text.parse::<Bytes>().map_err(|error| ScenarioError::value(format!("{key} = {text:?}"), error))
            }
        };
        let usual = Machine::default();
        let machine = Machine {
            topology: raw.topology,
            fast: size("fast", &raw.fast, usual.fast)?,
            slow: size("slow", &raw.slow, usual.slow)?,
            zram: size("zram", &raw.zram, usual.zram)?,
            cpus: raw.cpus.unwrap_or(usual.cpus),
            kvm: raw.kvm,
        };
        if raw.kernels.is_empty() {
            return Err(ScenarioError::value("kernels", "name one at least, such as [\"6.12\"]"));
        }
        for step in &raw.steps {
            let fine = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
            if step.name.is_empty() || !step.name.chars().all(fine) {
                return Err(ScenarioError::value(
                    format!("steps: name = {:?}", step.name),
                    "expected letters, digits, - and _",
                ));
            }
        }
        if raw.steps.is_empty() {
            return Err(ScenarioError::value("steps", "there are none"));
        }
        if let Some(setting) =
            raw.huge_pages.as_deref().filter(|setting| !["always", "madvise", "never"].contains(setting))
        {
            return Err(ScenarioError::value(format!("huge_pages = {setting:?}"), "expected always, madvise or never"));
        }
        let instruction_nanoseconds = raw.instruction_nanoseconds.unwrap_or(INSTRUCTION_NANOSECONDS);
        // QEMU counts in powers of two, up to 2^10.
        if !instruction_nanoseconds.is_power_of_two() || instruction_nanoseconds > 1024 {
            return Err(ScenarioError::value(
                format!("instruction_nanoseconds = {instruction_nanoseconds}"),
                "expected 1, 2, 4, ... 1024",
            ));
        }
        Ok(Scenario {
            name: name.to_owned(),
            instruction_nanoseconds,
            description: raw.description,
            kernels: raw.kernels,
            machine,
            modules: raw.modules,
            module_sources: raw.module_sources,
            huge_pages: raw.huge_pages,
            numa_balancing: raw.numa_balancing,
            kernel_arguments: raw.kernel_arguments,
            time_limit: parse_duration(&raw.time_limit).map_err(|error| ScenarioError::value("time_limit", error))?,
            files: raw.files,
            steps: raw.steps,
            assertions: raw.assertions,
            figures: raw.figures,
        })
    }
}

impl GuestFile {
    /// A file of the host, with its path in the guest.
    pub(crate) fn new((host, guest): &(PathBuf, String)) -> GuestFile {
        GuestFile { host: host.to_string_lossy().into_owned(), guest: guest.clone(), build: None }
    }

    /// The file on the host.
    ///
    /// # Errors
    /// When there is none, with how to make it.
    pub fn find(&self) -> Result<PathBuf, LabError> {
        let path = Path::new(&self.host);
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let Some((start, end)) = name.split_once('*') else {
            return if path.exists() { Ok(path.to_owned()) } else { Err(self.missing()) };
        };
        let folder = path.parent().unwrap_or(Path::new("."));
        let entries = std::fs::read_dir(folder).map_err(|_| self.missing())?.flatten();
        let fits = entries.filter(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            // Beside the program cargo leaves files of the same name with an ending (.d, .rmeta).
            name.starts_with(start) && name.ends_with(end) && !name[start.len()..].contains('.')
        });
        let newest = fits.max_by_key(|entry| entry.metadata().and_then(|data| data.modified()).ok());
        newest.map(|entry| entry.path()).ok_or_else(|| self.missing())
    }

    fn missing(&self) -> LabError {
        let advice = self.build.as_ref().map(|command| format!(": make it with `{command}`")).unwrap_or_default();
        LabError::Missing(format!("the scenario needs the file {}, which is not there{advice}", self.host))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
        description = "cold memory leaves"
        kernels = ["6.12", "6.1"]
        slow = "2GiB"
        time_limit = "90s"
        assertions = ["run.x > 0"]
        [figures]
        moved = "run.x"
        [[steps]]
        name = "run"
        run = "true"
    "#;

    #[test]
    fn a_file_becomes_a_scenario_with_the_usual_machine() {
        let scenario = Scenario::parse("cold", GOOD).unwrap();
        assert_eq!(scenario.machine, Machine { slow: Bytes::gib(2), ..Machine::default() });
        assert_eq!((scenario.time_limit, scenario.steps[0].may_fail), (Duration::from_secs(90), false));
    }

    #[test]
    fn mistakes_are_told_with_their_place() {
        let check = |from: &str, to: &str, says: &str| {
            let error = Scenario::parse("x", &GOOD.replace(from, to)).unwrap_err();
            assert!(error.to_string().contains(says), "{error}");
        };
        check("slow =", "slwo =", "slwo");
        check("\"2GiB\"", "\"2 gigs\"", "slow = \"2 gigs\"");
        check("\"90s\"", "\"soon\"", "time_limit");
        check("name = \"run\"", "name = \"a b\"", "letters, digits");
        check("[\"6.12\", \"6.1\"]", "[]", "kernels");
        check("slow = \"2GiB\"", "huge_pages = \"yes\"", "always, madvise or never");
        check("slow = \"2GiB\"", "topology = \"ring\"", "fast-slow");
        check("slow = \"2GiB\"", "instruction_nanoseconds = 3", "1, 2, 4");
    }

    #[test]
    fn the_newest_program_that_fits_is_brought_along() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, age: u64| {
            let path = folder.path().join(name);
            std::fs::write(&path, "").unwrap();
            let time = std::time::SystemTime::now() - Duration::from_secs(age);
            std::fs::File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
        };
        file("live-1", 100);
        file("live-2", 10);
        file("live-2.d", 0);
        let host = folder.path().join("live-*").to_string_lossy().into_owned();
        let wanted = GuestFile { host, guest: "/x".to_owned(), build: Some("make live".to_owned()) };
        assert_eq!(wanted.find().unwrap(), folder.path().join("live-2"));
        let missing = GuestFile { host: "/nowhere/x-*".to_owned(), ..wanted };
        assert!(missing.find().unwrap_err().to_string().contains("make live"));
    }
}
