//! Why this machine, or these rights, cannot serve a command; what would enable it; and a command that works here all the same.
//!
//! In: an error and what was to be done. Out: a [`Refusal`], three lines at most. Must not: name a right that this very command does not
//! need, or a command that was not checked to work.

use std::ffi::OsString;
use std::fmt;

use terrace_common::provenance::quoted;
use terrace_linux::rights::{Job, Rights, container_options};

use super::TargetSpec;
use crate::programs::could_record;

/// A command that cannot be served here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What is not possible and why, in a line.
    pub why: String,
    /// What would enable it, if rights do.
    pub enable: Option<String>,
    /// Whether memory can be watched here, so that only moving is impossible.
    pub watchable: bool,
    /// A command to type that works here.
    pub instead: Option<String>,
}

impl fmt::Display for Refusal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.why)?;
        if let Some(enable) = &self.enable {
            write!(out, "\nto enable it: {enable}")?;
        }
        if let Some(instead) = &self.instead {
            write!(out, "\nworks here: {instead}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Refusal {}

impl Refusal {
    /// The refusal of a job, with the rights that it lacks in this process.
    pub fn of(why: &impl fmt::Display, job: Job) -> Refusal {
        let rights = Rights::of_this_process();
        let enable = enabling(&rights, &job.lacks(&rights));
        Refusal { why: why.to_string(), enable, watchable: false, instead: None }
    }

    /// The same for a program of another user.
    pub fn of_others(why: &impl fmt::Display, job: Job) -> Refusal {
        let rights = Rights::of_this_process();
        let mut lacks = job.lacks(&rights);
        lacks.extend(Job::OTHERS.into_iter().filter(|name| !rights.holds(name)));
        Refusal { enable: enabling(&rights, &lacks), ..Refusal::of(why, job) }
    }

    /// The same where memory can be watched.
    pub fn watchable(self) -> Refusal {
        Refusal { watchable: true, ..self }
    }
}

/// What gives the rights that are lacking; `None` if none are.
fn enabling(rights: &Rights, lacks: &[&str]) -> Option<String> {
    if lacks.is_empty() {
        return None;
    }
    let root = if rights.user_id == 0 { "" } else { "root (sudo), or " };
    Some(format!("{root}{} (docker run, podman run: {})", lacks.join(", "), container_options(lacks)))
}

/// An error with a command that works here, if it is a refusal.
pub fn with_alternative(error: anyhow::Error, target: &TargetSpec) -> anyhow::Error {
    match error.downcast::<Refusal>() {
        Ok(refusal) => {
            let instead = Some(alternative(target, refusal.watchable));
            Refusal { instead, ..refusal }.into()
        }
        Err(other) => other,
    }
}

/// The best command that works here for this target. `terrace demo` always does.
fn alternative(target: &TargetSpec, watchable: bool) -> String {
    match target {
        TargetSpec::Pids(pids) if watchable => {
            let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
            format!("terrace observe --pid {}", pids.join(","))
        }
        TargetSpec::Command(command) if watchable => format!("terrace observe -- {}", words(command)),
        TargetSpec::Command(command) if could_record(command).is_ok() => {
            format!("terrace compare -- {}", words(command))
        }
        _ => "terrace demo".to_owned(),
    }
}

fn words(command: &[OsString]) -> String {
    let words: Vec<String> = command.iter().map(|word| quoted(&word.to_string_lossy())).collect();
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_has_three_lines_and_names_only_what_this_command_lacks() {
        let refusal = Refusal::of(&"no tracker works here: x", Job::Watch);
        let target = TargetSpec::Pids(vec![7]);
        let text = with_alternative(refusal.into(), &target).to_string();
        assert!(text.lines().count() <= 3 && text.ends_with("\nworks here: terrace demo"), "{text}");
        assert!(!text.contains("CAP_SYS_NICE"), "{text}");
        let refusal = Refusal::of(&"nothing moves", Job::Move).watchable();
        let text = with_alternative(refusal.into(), &target).to_string();
        assert!(text.ends_with("\nworks here: terrace observe --pid 7"), "{text}");
        let sleep = TargetSpec::Command(vec!["sleep".into(), "a b".into()]);
        let text = alternative(&sleep, true);
        assert_eq!(text, "terrace observe -- sleep 'a b'");
    }

    #[test]
    fn a_program_of_another_user_needs_more() {
        let rights = Rights::of_this_process();
        let refusal = Refusal::of_others(&"process 7 is not ours", Job::Watch);
        let missing = Job::OTHERS.iter().any(|name| !rights.holds(name)) || !Job::Watch.lacks(&rights).is_empty();
        assert_eq!(refusal.enable.is_some(), missing);
        assert!(!refusal.enable.unwrap_or_default().contains("CAP_SYS_ADMIN"));
    }

    #[test]
    fn other_errors_stay_as_they_are() {
        let error = with_alternative(anyhow::anyhow!("broken"), &TargetSpec::Pids(vec![7]));
        assert_eq!(error.to_string(), "broken");
    }
}
