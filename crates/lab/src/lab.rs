//! The laboratory: boot a machine, run a scenario in it, or open a shell.
//!
//! In: a [`Scenario`] or a [`Machine`], a kernel's version. Out: a [`ScenarioReport`]. Must not: judge by anything but the
//! scenario's own assertions and the exit codes of its steps.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use serde_json::{Value, json};

use crate::bpftrace;
use crate::error::{LabError, file_error};
use crate::expression::evaluate;
use crate::guest::{Ended, Guest, qemu, qemu_version};
use crate::initramfs::{self, Content};
use crate::kernel::{Cache, Kernel};
use crate::machine::{INSTRUCTION_NANOSECONDS, Machine, Mode, Topology};
use crate::module_build;
use crate::results::StepEnd;
use crate::scenario::{Scenario, Step};
use crate::tools::start_error;

/// How much longer a deterministic guest may take than its scenario says.
const DETERMINISTIC_FACTOR: u32 = 4;
/// Where the program under test lies in the guest.
const TERRACE: &str = "usr/bin/terrace";
/// Where the program beside it goes, which has the workloads.
const RESEARCH: &str = "usr/bin/terrace-research";
/// Its name beside the command on this host.
const RESEARCH_NAME: &str = "terrace-research";

/// Everything needed to boot guests.
#[derive(Debug)]
pub struct Lab {
    /// Where kernels are kept.
    pub cache: Cache,
    /// The terrace command that goes into the guests.
    pub terrace: PathBuf,
    /// How time passes in them.
    pub mode: Mode,
    /// Whether to look for newer kernels than those in the cache.
    pub refresh: bool,
    /// A folder for the console's log and the raw results; `None` keeps neither.
    pub keep: Option<PathBuf>,
}

/// What no scenario file can ask for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Extras {
    /// More of QEMU's arguments.
    pub qemu: Vec<String>,
    /// The node that all files of the guest are to lie on, instead of the first.
    pub files_node: Option<u32>,
    /// Files that are to be the nodes' memory, node by node; none: memory that only the guest has.
    pub memory: Vec<PathBuf>,
    /// Whether the guest has bpftrace.
    pub bpftrace: bool,
    /// The subfolder of [`Lab::keep`] for this guest, where there are several.
    pub keep_as: String,
}

/// What a scenario came to.
#[derive(Clone, Debug, serde::Serialize)]
pub struct ScenarioReport {
    /// The scenario.
    pub scenario: String,
    /// The version of the kernel that was asked for.
    pub kernel: String,
    /// The kernel's release.
    pub release: String,
    /// How time passed.
    pub mode: Mode,
    /// QEMU's version line.
    pub qemu: String,
    /// Whether all steps and all assertions were as they must.
    pub passed: bool,
    /// Wall time until the first step; emulation, so no measure of anything but the laboratory.
    pub boot_seconds: f64,
    /// Wall time in all.
    pub wall_seconds: f64,
    /// Time that passed in the guest.
    pub guest_seconds: f64,
    /// How the steps ended.
    pub steps: Vec<StepEnd>,
    /// What was asserted.
    pub assertions: Vec<Assertion>,
    /// The scenario's figures.
    pub figures: BTreeMap<String, Value>,
    /// Everything the guest sent, by name.
    pub values: BTreeMap<String, Value>,
    /// The end of the console's log, if something was not as it must.
    pub console_tail: Option<String>,
}

/// An assertion and what it came to.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Assertion {
    /// Its text.
    pub text: String,
    /// Whether it holds.
    pub passed: bool,
    /// The values it was made of.
    pub values: Vec<(String, Value)>,
    /// Why it could not be judged.
    pub error: Option<String>,
}

impl ScenarioReport {
    /// The report of a guest in which all was as it must.
    ///
    /// # Errors
    /// That it was not: `what` says what failed.
    pub(crate) fn or_failed(self, what: impl FnOnce() -> String) -> Result<ScenarioReport, LabError> {
        match self.passed {
            true => Ok(self),
            false => Err(LabError::Guest { what: what(), tail: self.console_tail.unwrap_or_default() }),
        }
    }
}

impl Lab {
    /// The terrace command that goes into guests unless another is named: TERRACE_BINARY, the one beside this program, or the one that cargo builds
    /// into target/release below the current folder. The terrace-research beside it goes there too.
    pub fn usual_terrace() -> PathBuf {
        if let Some(path) = std::env::var_os("TERRACE_BINARY").filter(|path| !path.is_empty()) {
            return PathBuf::from(path);
        }
        let beside =
            std::env::current_exe().ok().map(|path| path.with_file_name("terrace")).filter(|path| path.exists());
        beside.unwrap_or_else(|| {
            let path = PathBuf::from("target/release/terrace");
            tracing::warn!(path = %path.display(), "there is no terrace beside this program, so guests get this one; TERRACE_BINARY or --binary names another");
            path
        })
    }

    /// What goes into every guest: the command, and the program for research that lies beside it.
    fn programs(&self) -> Result<Vec<(PathBuf, String)>, LabError> {
        let research = self.terrace.with_file_name(RESEARCH_NAME);
        if !research.exists() {
            let path = research.display();
            return Err(LabError::Missing(format!(
                "there is no {path}, which has the workloads of guests: `make build` makes it"
            )));
        }
        Ok(vec![(self.terrace.clone(), TERRACE.to_owned()), (research, RESEARCH.to_owned())])
    }

    /// Runs a scenario on a kernel, its first one unless another is asked for.
    ///
    /// # Errors
    /// When the guest cannot be built or does not come to its end. A failed step or assertion is no error: the report has it.
    pub fn run(&self, scenario: &Scenario, kernel: Option<&str>) -> Result<ScenarioReport, LabError> {
        self.run_with(scenario, kernel, &Extras::default())
    }

    /// The same with what no scenario file can ask for.
    pub(crate) fn run_with(
        &self,
        scenario: &Scenario,
        kernel: Option<&str>,
        extras: &Extras,
    ) -> Result<ScenarioReport, LabError> {
        let asked = kernel.unwrap_or(&scenario.kernels[0]);
        let qemu = qemu_version()?;
        let kernel = self.cache.kernel(asked, self.refresh)?;
        let mut content = self.content(&scenario.machine, &scenario.modules)?;
        for file in &scenario.files {
            content.files.push((file.find()?, file.guest.clone()));
        }
        for source in &scenario.module_sources {
            let name = source.file_name().unwrap_or_default().to_string_lossy().into_owned();
            content.built_modules.push((name, module_build::build(&self.cache, &kernel, source)?));
        }
        if extras.bpftrace {
            content.programs = bpftrace::files(&self.cache)?;
        }
        content.settings.extend(scenario.huge_pages.clone().map(|setting| ("HUGE_PAGES", setting)));
        content.settings.extend(scenario.numa_balancing.map(|setting| ("NUMA_BALANCING", setting.to_string())));
        content.settings.extend(extras.files_node.map(|node| ("FILES_NODE", node.to_string())));
        content.steps =
            scenario.steps.iter().map(|step| (step.name.clone(), step.run.clone(), step.may_fail)).collect();
        let limit = scenario.time_limit * if self.mode == Mode::Deterministic { DETERMINISTIC_FACTOR } else { 1 };
        scenario.machine.check(&kernel, self.mode)?;
        let ended = self.boot_with(&kernel, scenario, &content, extras, limit)?;
        Ok(judge(scenario, asked, &kernel, self.mode, qemu, ended))
    }

    /// Boots a machine, has terrace describe it, and powers it off. The report's values are `kernel`, `topology` and `doctor`;
    /// its figures are what a person wants to see of them.
    ///
    /// # Errors
    /// As [`Lab::run`].
    pub fn boot(
        &self,
        machine: &Machine,
        kernel: &str,
        modules: &[String],
        limit: Duration,
    ) -> Result<ScenarioReport, LabError> {
        let step = |name: &str, run: &str| Step { name: name.to_owned(), run: run.to_owned(), may_fail: false };
        let scenario = Scenario {
            name: "boot".to_owned(),
            description: "boots and describes the machine".to_owned(),
            kernels: vec![kernel.to_owned()],
            machine: machine.clone(),
            modules: modules.to_vec(),
            instruction_nanoseconds: INSTRUCTION_NANOSECONDS,
            time_limit: limit,
            steps: vec![
                step("kernel", "uname -r > $OUT/kernel.txt\n"),
                step("topology", "terrace topology --json > $OUT/topology.json\n"),
                step("doctor", "terrace doctor --json > $OUT/doctor.json\n"),
            ],
            assertions: vec!["length(topology.tiers) >= 1".to_owned()],
            figures: [
                ("tiers", "length(topology.tiers)"),
                ("nodes", "length(topology.nodes)"),
                ("told apart by", "topology.grouping"),
                ("tracker", "doctor.chosen_tracker"),
            ]
            .map(|(name, text)| (name.to_owned(), text.to_owned()))
            .into(),
            ..Scenario::default()
        };
        self.run(&scenario, None)
    }

    /// Boots a machine with a shell on this terminal. Ends when the guest powers off.
    ///
    /// # Errors
    /// When the guest cannot be built or QEMU cannot be started.
    pub fn shell(&self, machine: &Machine, kernel: &str, modules: &[String]) -> Result<ExitStatus, LabError> {
        qemu_version()?;
        let kernel = self.cache.kernel(kernel, self.refresh)?;
        let mut content = self.content(machine, modules)?;
        content.settings.push(("SHELL_WANTED", "1".to_owned()));
        machine.check(&kernel, self.mode)?;
        let folder = scratch()?;
        let arguments = self.prepare(&kernel, machine, &content, (INSTRUCTION_NANOSECONDS, ""), &[], folder.path())?;
        let mut command = qemu();
        command.args(arguments).args(["-serial", "mon:stdio", "-serial", "null"]);
        command.status().map_err(|source| start_error(&command, "util-linux", source))
    }

    fn content(&self, machine: &Machine, modules: &[String]) -> Result<Content, LabError> {
        if !self.terrace.exists() {
            let path = self.terrace.display();
            let advice = "`make build` makes it, and TERRACE_BINARY names another";
            return Err(LabError::Missing(format!("there is no terrace command at {path}: {advice}")));
        }
        let mut content = Content {
            busybox: self.cache.busybox()?,
            files: self.programs()?,
            modules: modules.to_vec(),
            ..Content::default()
        };
        if machine.topology == Topology::ThreeTiers {
            // Up to 6.6 zram compresses through the crypto interface, so lz4 is a module of its own; since then it is within zram.
            content.modules.push("zram".to_owned());
            content.settings.push(("ZRAM_BYTES", machine.zram.get().to_string()));
        }
        Ok(content)
    }

    fn boot_with(
        &self,
        kernel: &Kernel,
        scenario: &Scenario,
        content: &Content,
        extras: &Extras,
        limit: Duration,
    ) -> Result<Ended, LabError> {
        let folder = scratch()?;
        let how = (scenario.instruction_nanoseconds, scenario.kernel_arguments.as_str());
        let mut arguments = self.prepare(kernel, &scenario.machine, content, how, &extras.memory, folder.path())?;
        arguments.extend(extras.qemu.iter().cloned());
        let ended = Guest::start(&arguments, folder.path())?.wait(limit);
        if let Some(keep) = self.keep.as_ref().map(|keep| keep.join(&extras.keep_as)) {
            fs::create_dir_all(&keep).map_err(file_error(&keep))?;
            for name in ["console", "results", "qemu"] {
                let from = folder.path().join(name);
                if from.exists() {
                    terrace_files::copy(&from, &keep.join(name)).map_err(file_error(&from))?;
                }
            }
        }
        ended
    }

    /// Writes the guest's first root, and gives QEMU's arguments. `how`: nanoseconds of an instruction, more arguments of the kernel.
    fn prepare(
        &self,
        kernel: &Kernel,
        machine: &Machine,
        content: &Content,
        how: (u32, &str),
        memory: &[PathBuf],
        folder: &Path,
    ) -> Result<Vec<String>, LabError> {
        let path = folder.join("initramfs.cpio");
        terrace_files::write(&path, initramfs::build(content, kernel)?).map_err(file_error(&path))?;
        Ok(machine.arguments(kernel, &path, self.mode, how.0, how.1, memory))
    }
}

fn scratch() -> Result<tempfile::TempDir, LabError> {
    tempfile::Builder::new().prefix("terrace-lab-").tempdir().map_err(file_error(&std::env::temp_dir()))
}

fn judge(scenario: &Scenario, asked: &str, kernel: &Kernel, mode: Mode, qemu: String, ended: Ended) -> ScenarioReport {
    let mut values = ended.results.values;
    let named = |step: &StepEnd| (step.name.clone(), json!({"exit": step.exit, "seconds": step.seconds}));
    values.insert("steps".to_owned(), Value::Object(ended.results.steps.iter().map(named).collect()));
    values.insert("lab".to_owned(), json!({"kernel": asked, "release": kernel.release, "mode": mode.name()}));
    let assertions: Vec<Assertion> = scenario.assertions.iter().map(|text| assertion(text, &values)).collect();
    let figures = scenario.figures.iter().map(|(name, text)| {
        let value =
            evaluate(text, &values).map_or_else(|error| Value::String(error.to_string()), |evaluated| evaluated.value);
        (name.clone(), value)
    });
    let figures = figures.collect();
    let step_is_fine = |step: &Step| {
        let end = ended.results.steps.iter().find(|end| end.name == step.name);
        end.is_some_and(|end| end.exit == 0 || step.may_fail)
    };
    let passed = scenario.steps.iter().all(step_is_fine) && assertions.iter().all(|assertion| assertion.passed);
    let began = ended.results.began_seconds.unwrap_or(0.0);
    ScenarioReport {
        scenario: scenario.name.clone(),
        kernel: asked.to_owned(),
        release: kernel.release.clone(),
        mode,
        qemu,
        passed,
        boot_seconds: ended.boot.unwrap_or(ended.wall).as_secs_f64(),
        wall_seconds: ended.wall.as_secs_f64(),
        guest_seconds: ended.results.ended_seconds.unwrap_or(began),
        steps: ended.results.steps,
        assertions,
        figures,
        values,
        console_tail: (!passed).then(|| crate::error::tail(&ended.console, 60)),
    }
}

fn assertion(text: &str, values: &BTreeMap<String, Value>) -> Assertion {
    let text = text.to_owned();
    match evaluate(&text, values) {
        Ok(evaluated) => {
            let error = (!evaluated.value.is_boolean())
                .then(|| format!("it comes to {}, not to true or false", evaluated.value));
            Assertion { text, passed: evaluated.value == Value::Bool(true), values: evaluated.used, error }
        }
        Err(error) => Assertion { text, passed: false, values: Vec::new(), error: Some(error.to_string()) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Results;

    fn judged(results: &str, assertions: &str) -> ScenarioReport {
        let text = format!(
            "description = \"x\"\nkernels = [\"6.12\"]\ntime_limit = \"9s\"\nassertions = [{assertions}]\n\
             [figures]\nn = \"run.n * 2\"\n[[steps]]\nname = \"run\"\nrun = \"\"\n"
        );
        let scenario = Scenario::parse("x", &text).unwrap();
        let kernel = Kernel { release: "6.12.1-amd64".to_owned(), image: PathBuf::new(), modules: PathBuf::new() };
        let ended = Ended {
            results: Results::parse(results.as_bytes()).unwrap(),
            console: "line\n".to_owned(),
            boot: Some(Duration::from_secs(2)),
            wall: Duration::from_secs(5),
        };
        judge(&scenario, "6.12", &kernel, Mode::Fast, String::new(), ended)
    }

    #[test]
    fn a_scenario_passes_when_every_step_and_assertion_does() {
        let fine = "@begin 1\n@value run 7\n{\"n\":3}\n@step run 0 5\n@end 9\n";
        let report = judged(fine, "'run.n == 3', 'steps.run.exit == 0', 'lab.kernel == \"6.12\"'");
        assert!(report.passed && report.console_tail.is_none(), "{report:?}");
        assert_eq!(report.figures["n"], json!(6));
        let report = judged(fine, "'run.n == 4'");
        assert!(!report.passed && report.assertions[0].values == [("run.n".to_owned(), json!(3))]);
        let report = judged(fine, "'run.n'");
        assert!(!report.passed, "a number is not a truth: {:?}", report.assertions);
        let failed = judged("@begin 1\n@step run 1 5\n@end 9\n", "");
        assert!(!failed.passed && failed.console_tail.is_some());
        assert!(!judged("@begin 1\n@end 9\n", "").passed, "a step that did not run is no success");
    }
}
