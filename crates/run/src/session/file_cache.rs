//! The file cache of a run: asked back by a rule, where the target is a whole cgroup.
//!
//! In: the plan, and the time. Out: what of it left, apart from what is saved of anonymous memory. Must not: end the run, or say twice why it is
//! not possible here.

use std::path::Path;
use std::time::{Duration, Instant};

use terrace_core::units::Time;
use terrace_linux::cgroup::Cgroup;
use terrace_linux::file_cache::{FileCacheKeeper, FileCacheTotals, Wanted};
use terrace_report::FileCacheReport;

use super::{Plan, TargetSpec};
use crate::options::misuse;
use crate::spec::{FileCacheChoice, RunSpec};

/// The file cache of a cgroup under management.
pub struct Files {
    wanted: Wanted,
    began: Instant,
    keeper: Option<FileCacheKeeper>,
    not_possible: Option<String>,
    /// Whether that was not said yet.
    news: bool,
}

/// Refuses a rule where the target is no cgroup: page cache is charged to cgroups, not to processes.
///
/// # Errors
/// What to type instead.
pub(super) fn check(plan: &Plan) -> anyhow::Result<()> {
    match (plan.spec.file_cache, &plan.target) {
        (FileCacheChoice::By(rule), target) if !matches!(target, TargetSpec::Cgroup(_)) => {
            let why = format!(
                "file cache belongs to cgroups, not to processes; type: terrace attach --cgroup PATH --file-cache {rule} \
                 (`cat /proc/PID/cgroup` has the path)"
            );
            Err(misuse("--file-cache", rule.name(), why))
        }
        _ => Ok(()),
    }
}

impl Files {
    /// That of a plan; `None` where its target is no cgroup.
    pub(super) fn of_plan(plan: &Plan) -> Option<Files> {
        match &plan.target {
            TargetSpec::Cgroup(cgroup) => Files::begin(&plan.spec, cgroup),
            _ => None,
        }
    }

    /// Begins with a cgroup; `None` where the option is off, or nothing moves. Where it is not possible, [`Files::news`] says why.
    pub fn begin(spec: &RunSpec, cgroup: &Cgroup) -> Option<Files> {
        let rule = spec.file_cache.rule().filter(|_| spec.moves && !spec.observes())?;
        let wanted = Wanted { rule, max_slowdown: spec.max_slowdown, ignores_protection: spec.ignores_protection };
        let begun = FileCacheKeeper::begin(Path::new("/"), cgroup, wanted, Time::ZERO);
        let (keeper, not_possible) = match begun {
            Ok(keeper) => (Some(keeper), None),
            Err(why) => (None, Some(why.to_string())),
        };
        Some(Files { wanted, began: Instant::now(), keeper, news: not_possible.is_some(), not_possible })
    }

    /// Why it is not possible, or no longer; once.
    pub fn news(&mut self) -> Option<&str> {
        std::mem::take(&mut self.news).then_some(self.not_possible.as_deref()).flatten()
    }

    /// Time until the next look; `None` where there is none to come.
    pub fn wait(&self) -> Option<Duration> {
        let due = self.keeper.as_ref()?.due();
        (due != Time::FAR_FUTURE).then(|| due.since(self.now()))
    }

    /// Does what is due; while the program is `held`, nothing.
    pub fn look(&mut self, held: bool) {
        let now = self.now();
        let Some(keeper) = &mut self.keeper else { return };
        keeper.hold(held);
        if let Err(why) = keeper.look(now) {
            (self.not_possible, self.news) = (Some(why.to_string()), true);
        }
    }

    /// The name of the rule.
    pub fn rule(&self) -> &'static str {
        self.wanted.rule.name()
    }

    /// What has been done so far.
    pub fn totals(&self) -> FileCacheTotals {
        self.keeper.as_ref().map(FileCacheKeeper::totals).unwrap_or_default()
    }

    /// Why it is not possible, or no longer.
    pub fn not_possible(&self) -> Option<&str> {
        self.not_possible.as_deref()
    }

    /// What came of it, at the end.
    pub(super) fn report(&mut self) -> FileCacheReport {
        let now = self.now();
        let totals = self.keeper.as_mut().map(|keeper| keeper.finish(now)).unwrap_or_default();
        FileCacheReport {
            rule: self.rule().to_owned(),
            left_bytes: totals.left.get(),
            at_end_bytes: totals.there.get(),
            refaulted_pages: totals.refaults,
            stalled_seconds: totals.stalled.as_secs_f64(),
            seconds: totals.span.as_secs_f64(),
            not_possible: self.not_possible.clone(),
        }
    }

    fn now(&self) -> Time {
        Time::ZERO + self.began.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use terrace_core::file_cache::RuleName;

    use super::*;
    use crate::session::observing;

    fn plan(choice: FileCacheChoice, target: TargetSpec) -> Plan {
        let plan = Plan::observe(target, observing(), crate::args::ReportArguments::default(), None).unwrap();
        Plan { spec: RunSpec { file_cache: choice, ..RunSpec::default() }, ..plan }
    }

    #[test]
    fn a_rule_needs_a_cgroup_and_the_refusal_says_what_to_type() {
        let by = FileCacheChoice::By(RuleName::Senpai);
        let targets = || [TargetSpec::Pids(vec![1]), TargetSpec::Command(vec![OsString::from("true")])];
        for target in targets() {
            let told = check(&plan(by, target)).unwrap_err().to_string();
            assert!(told.contains("--file-cache senpai") && told.contains("terrace attach --cgroup PATH"), "{told}");
        }
        for choice in [FileCacheChoice::Auto, FileCacheChoice::Off] {
            for target in targets() {
                let plan = plan(choice, target);
                assert!(check(&plan).is_ok() && Files::of_plan(&plan).is_none());
            }
        }
    }
}
