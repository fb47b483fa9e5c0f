//! The least rights of each job, and what gives them to a container.
//!
//! In: a job. Out: its capabilities, those that a process lacks, and the option of an engine that adds them. Must not: ask for more than the
//! job was tried with (`crates/cli/tests/live_rights.rs` takes each away in turn).

use super::Rights;

/// What somebody wants to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Job {
    /// See which memory a program of the same user uses: `observe`, `size advise`.
    Watch,
    /// Move its pages to slow memory that is there: `run`, `attach`.
    Move,
    /// The same, with compressed swap set up for it.
    MoveToOwnSwap,
    /// All of that on programs of other users: the service.
    Serve,
}

impl Job {
    /// Every job, from the least to the most.
    pub const ALL: [Job; 4] = [Job::Watch, Job::Move, Job::MoveToOwnSwap, Job::Serve];

    /// The capabilities it needs (capabilities(7)): the eBPF program asks for CAP_BPF and CAP_PERFMON, process_madvise(2) and move_pages(2) for
    /// CAP_SYS_NICE, swapon(2) and zram for CAP_SYS_ADMIN, the memory of other users' programs for [`Job::OTHERS`].
    pub const fn needs(self) -> &'static [&'static str] {
        match self {
            Job::Watch => &["CAP_BPF", "CAP_PERFMON"],
            Job::Move => &["CAP_BPF", "CAP_PERFMON", "CAP_SYS_NICE"],
            // CAP_SYS_ADMIN includes the first two.
            Job::MoveToOwnSwap => &["CAP_SYS_NICE", "CAP_SYS_ADMIN"],
            Job::Serve => &["CAP_SYS_NICE", "CAP_SYS_ADMIN", "CAP_SYS_PTRACE", "CAP_DAC_OVERRIDE"],
        }
    }

    /// What the memory of other users' programs needs besides: reading their /proc/PID/maps and pagemap, advising it.
    pub const OTHERS: [&'static str; 2] = ["CAP_SYS_PTRACE", "CAP_DAC_OVERRIDE"];

    /// Those of them that a process lacks.
    pub fn lacks(self, rights: &Rights) -> Vec<&'static str> {
        self.needs().iter().copied().filter(|name| !rights.holds(name)).collect()
    }
}

/// Options of `docker run` and `podman run` that add these capabilities. CAP_SYS_ADMIN alone is of no use there: zram needs a /sys that can be
/// written and devices of its own.
pub fn container_options(capabilities: &[&str]) -> String {
    if capabilities.contains(&"CAP_SYS_ADMIN") {
        return "--privileged".to_owned();
    }
    let options: Vec<String> =
        capabilities.iter().map(|name| format!("--cap-add={}", name.trim_start_matches("CAP_"))).collect();
    options.join(" ")
}

/// The line of a Kubernetes container that adds them.
pub fn kubernetes_line(capabilities: &[&str]) -> String {
    let names: Vec<&str> = capabilities.iter().map(|name| name.trim_start_matches("CAP_")).collect();
    format!("securityContext: {{ capabilities: {{ add: [{}] }} }}", names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_do_a_job_may_do_those_before_it() {
        for pair in Job::ALL.windows(2) {
            let bit = |name: &&str| super::super::CAPABILITIES.iter().find(|known| known.0 == *name).unwrap().1;
            let effective: u64 = pair[1].needs().iter().map(|name| 1 << bit(name)).sum();
            let rights = Rights::parse(&format!("Uid:\t0\t0\nCapEff:\t{effective:016x}\n"), None);
            assert!(pair[1].lacks(&rights).is_empty() && pair[0].lacks(&rights).is_empty(), "{pair:?}");
        }
        assert!(Job::OTHERS.iter().all(|name| Job::Serve.needs().contains(name)));
    }

    #[test]
    fn what_is_needed_can_be_given_to_a_container() {
        assert_eq!(container_options(Job::Watch.needs()), "--cap-add=BPF --cap-add=PERFMON");
        assert_eq!(container_options(Job::Serve.needs()), "--privileged");
        assert_eq!(kubernetes_line(&["CAP_SYS_NICE"]), "securityContext: { capabilities: { add: [SYS_NICE] } }");
    }
}
