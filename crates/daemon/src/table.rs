//! Which process belongs to which class.
//!
//! In: the facts of processes, as they start and change. Out: who joins a class and who leaves it. Must not: read a process itself, or
//! identify a process by its pid alone: the start time is part of its identity.

use std::collections::{BTreeMap, BTreeSet};

use terrace_core::text::visible;
use terrace_linux::machine_programs::Never;
use terrace_linux::processes::Facts;

use crate::config::{Config, Selector};

/// A process joins a class, or leaves it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A process to manage.
    Join {
        /// The process.
        pid: u32,
        /// Its start time: another process with this pid is not meant.
        start_time: u64,
        /// The class.
        class: String,
    },
    /// A process to release.
    Leave {
        /// The process.
        pid: u32,
        /// The class.
        class: String,
    },
}

/// The rules of a class that decide who belongs to it.
#[derive(Clone, Debug, PartialEq)]
struct Rule {
    class: String,
    selectors: Vec<Selector>,
}

/// A known process.
#[derive(Clone, Debug)]
pub struct Known {
    /// Its start time.
    pub start_time: u64,
    /// Its name with control characters made visible: its user chooses it.
    pub name: String,
    /// The class it belongs to.
    pub place: Place,
    /// The class of its children, if it follows from its own.
    heirs: Option<Place>,
}

/// The class of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// None.
    Nowhere,
    /// None, by the list of exclusions.
    Excluded,
    /// None, though a class has everything: it holds the machine up, in these words.
    LeftAlone(String),
    /// A class, for this reason.
    Class {
        /// Which.
        name: String,
        /// Why, for `terrace explain`.
        why: String,
    },
}

impl Place {
    fn class(&self) -> Option<&str> {
        match self {
            Place::Class { name, .. } => Some(name),
            _ => None,
        }
    }
}

/// See the module's header.
#[derive(Debug, Default)]
pub struct Table {
    rules: Vec<Rule>,
    exclude: Vec<Selector>,
    /// What a selector of everything leaves alone.
    holds: Never,
    never: BTreeSet<u32>,
    known: BTreeMap<u32, Known>,
}

impl Table {
    /// A table that never adds the pids of `never`: Terrace itself and its guard.
    pub fn new(never: impl IntoIterator<Item = u32>) -> Table {
        Table { never: never.into_iter().collect(), ..Table::default() }
    }

    /// Sets new rules. All processes must be checked again after that.
    pub fn set_rules(&mut self, config: &Config) {
        let rule =
            |class: &crate::config::Class| Rule { class: class.name.clone(), selectors: class.selectors.clone() };
        self.rules = config.classes.iter().map(rule).collect();
        self.exclude = config.exclude.clone();
        self.holds = config.never.clone();
        // What followed from the old rules is no longer valid.
        self.known.values_mut().for_each(|known| known.heirs = None);
    }

    /// Leaves Terrace and all that it was started by alone, where a selector has everything.
    pub fn spare(&mut self, pid: u32) {
        self.holds = std::mem::take(&mut self.holds).and_ancestors_of(pid);
    }

    /// Whether a selector has everything.
    pub fn has_everything(&self) -> bool {
        self.rules.iter().flat_map(|rule| &rule.selectors).any(|selector| selector.all)
    }

    /// A known process.
    pub fn get(&self, pid: u32) -> Option<&Known> {
        self.known.get(&pid)
    }

    /// The known pids.
    pub fn pids(&self) -> Vec<u32> {
        self.known.keys().copied().collect()
    }

    /// Updates the facts of a process. `parent` is the process that started it, where known better than by its facts.
    pub fn see(&mut self, facts: &Facts, parent: Option<u32>) -> Vec<Change> {
        let pid = facts.pid;
        let mut changes = Vec::new();
        if self.known.get(&pid).is_some_and(|known| known.start_time != facts.start_time) {
            changes.extend(self.vanish(pid));
        }
        let inherited = match self.known.get(&pid) {
            // The parent is fixed at the first sight; a parent that exits later changes nothing.
            Some(known) if known.heirs.is_some() => known.heirs.clone(),
            _ => self.known.get(&parent.unwrap_or(facts.parent)).and_then(|known| known.heirs.clone()),
        };
        let (place, heirs) = self.place(facts, inherited);
        let before = self.known.get(&pid).and_then(|known| known.place.class()).map(str::to_owned);
        let after = place.class().map(str::to_owned);
        if before != after {
            changes.extend(before.map(|class| Change::Leave { pid, class }));
            changes.extend(after.map(|class| Change::Join { pid, start_time: facts.start_time, class }));
        }
        self.known
            .insert(pid, Known { start_time: facts.start_time, name: visible(&facts.name).into_owned(), place, heirs });
        changes
    }

    /// Removes an exited process.
    pub fn vanish(&mut self, pid: u32) -> Vec<Change> {
        let class = self.known.remove(&pid).and_then(|known| known.place.class().map(str::to_owned));
        class.map(|class| Change::Leave { pid, class }).into_iter().collect()
    }

    fn place(&self, facts: &Facts, inherited: Option<Place>) -> (Place, Option<Place>) {
        if self.never.contains(&facts.pid) || self.never.contains(&facts.parent) {
            return (Place::Excluded, Some(Place::Excluded));
        }
        if let Some(selector) = self.exclude.iter().find(|selector| selector.matches(facts)) {
            return (Place::Excluded, selector.children.then_some(Place::Excluded));
        }
        if inherited == Some(Place::Excluded) {
            return (Place::Excluded, inherited);
        }
        // Who is named by another part belongs there, wherever the class of everything stands.
        for (rule, everything) in
            self.rules.iter().map(|rule| (rule, false)).chain(self.rules.iter().map(|rule| (rule, true)))
        {
            if everything && inherited.is_some() {
                break;
            }
            let matches = |selector: &Selector| selector.all == everything && selector.matches(facts);
            let found = rule.selectors.iter().position(matches);
            if let Some(index) = found {
                if let Some(why) = self.holds.leaves_alone(facts).filter(|_| everything) {
                    return (Place::LeftAlone(why.to_string()), None);
                }
                let name = rule.class.clone();
                let why = format!("selector {} of class {name} matches it", index + 1);
                let heir = || Place::Class {
                    name: name.clone(),
                    why: format!(
                        "it was started by pid {}, which selector {} of class {name} matches with its children",
                        facts.pid,
                        index + 1
                    ),
                };
                let heirs = rule.selectors[index].children.then(heir);
                return (Place::Class { name, why }, heirs);
            }
        }
        match inherited {
            Some(place) => (place.clone(), Some(place)),
            None => (Place::Nowhere, None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Source;

    fn table(text: &str) -> Table {
        let config = Config::of(&[Source { name: "test".to_owned(), text: text.to_owned() }]).unwrap();
        let mut table = Table::new([1000]);
        table.set_rules(&config);
        table
    }

    fn facts(pid: u32, start_time: u64, parent: u32, name: &str) -> Facts {
        Facts {
            pid,
            start_time,
            parent,
            name: name.to_owned(),
            exe: Some(format!("/usr/bin/{name}")),
            user: 0,
            cgroups: vec!["/".to_owned()],
            container: None,
            guest: None,
            locks_memory: false,
            real_time: false,
        }
    }

    fn join(pid: u32, start_time: u64, class: &str) -> Change {
        Change::Join { pid, start_time, class: class.to_owned() }
    }

    fn leave(pid: u32, class: &str) -> Change {
        Change::Leave { pid, class: class.to_owned() }
    }

    const RULES: &str = "
        [daemon]
        exclude = [{ name = \"secret\", children = true }]
        [class.web]
        match = [{ name = \"web\", children = true }]
        [class.db]
        match = [{ name = \"db*\" }]
        order = 1
    ";

    #[test]
    fn a_pid_used_again_is_another_process() {
        let mut table = table(RULES);
        assert_eq!(table.see(&facts(7, 100, 1, "db1"), None), [join(7, 100, "db")]);
        assert_eq!(table.see(&facts(7, 100, 1, "db1"), None), []);
        assert_eq!(table.see(&facts(7, 200, 1, "db2"), None), [leave(7, "db"), join(7, 200, "db")]);
        assert_eq!(table.see(&facts(7, 300, 1, "cat"), None), [leave(7, "db")]);
        assert_eq!(table.vanish(7), []);
    }

    #[test]
    fn a_name_that_acts_on_a_terminal_is_kept_in_a_form_that_does_not() {
        let name = "\x1b]0;PWN\x07\x1b[2J\n";
        let mut table = table("[class.any]\nmatch = [{ name = \"*PWN*\" }]\n");
        assert_eq!(table.see(&facts(7, 100, 1, name), None), [join(7, 100, "any")], "selectors see it as it is");
        assert_eq!(table.get(7).map(|known| known.name.as_str()), Some(r"\x1b]0;PWN\x07\x1b[2J\n"));
    }

    #[test]
    fn a_process_that_becomes_another_program_changes_its_class() {
        let mut table = table(RULES);
        assert_eq!(table.see(&facts(7, 100, 1, "sh"), None), []);
        assert_eq!(table.see(&facts(7, 100, 1, "db"), None), [join(7, 100, "db")]);
        assert_eq!(table.see(&facts(7, 100, 1, "web"), None), [leave(7, "db"), join(7, 100, "web")]);
        assert_eq!(table.vanish(7), [leave(7, "web")]);
    }

    #[test]
    fn children_follow_where_the_selector_says_so_even_when_their_parent_dies() {
        let mut table = table(RULES);
        table.see(&facts(10, 1, 1, "web"), None);
        assert_eq!(table.see(&facts(11, 2, 10, "worker"), Some(10)), [join(11, 2, "web")]);
        assert_eq!(table.see(&facts(12, 3, 11, "helper"), None), [join(12, 3, "web")], "and their children");
        table.vanish(10);
        assert_eq!(table.see(&facts(11, 2, 1, "worker2"), None), [], "init is its parent now, and it stays");
        assert_eq!(table.see(&facts(13, 4, 10, "other"), None), [], "a dead parent has no heirs");
        table.see(&facts(20, 1, 1, "db"), None);
        assert_eq!(table.see(&facts(21, 2, 20, "worker"), None), [], "db's children were not asked for");
    }

    #[test]
    fn terrace_and_the_excluded_are_never_touched() {
        let mut table = table(
            "[daemon]\nexclude = [{ name = \"secret\", children = true }]\n[class.all]\nmatch = [{ cgroup = \"/\" }]\n",
        );
        assert_eq!(table.see(&facts(1000, 1, 1, "terraced"), None), []);
        assert_eq!(table.see(&facts(1001, 1, 1000, "guard"), None), []);
        assert_eq!(table.see(&facts(5, 1, 1, "secret"), None), []);
        assert_eq!(table.see(&facts(6, 1, 5, "db"), None), [], "what it starts is excluded, too");
        assert_eq!(table.see(&facts(8, 1, 1, "db"), None), [join(8, 1, "all")]);
    }

    #[test]
    fn everything_is_what_no_other_selector_has_and_nothing_that_holds_the_machine() {
        let mut table = table(
            "[daemon]\nexclude = [{ name = \"secret\" }]\n[class.all]\nmatch = [{ all = true }]\norder = 1\n\
             [class.web]\nmatch = [{ name = \"web\", children = true }]\n[class.ssh]\nmatch = [{ name = \"sshd\", user = \"0\" }]\n",
        );
        assert!(table.has_everything());
        assert_eq!(table.see(&facts(7, 1, 1, "python3"), None), [join(7, 1, "all")]);
        assert_eq!(table.see(&facts(8, 1, 1, "web"), None), [join(8, 1, "web")], "whatever its order is");
        assert_eq!(table.see(&facts(9, 1, 8, "worker"), None), [join(9, 1, "web")], "children stay with it");
        assert_eq!(table.see(&facts(10, 1, 1, "sshd"), None), [join(10, 1, "ssh")], "what somebody names is managed");
        for (pid, name) in [(11, "dockerd"), (12, "secret"), (1, "init")] {
            assert_eq!(table.see(&facts(pid, 1, 0, name), None), [], "{name}");
        }
        let locked = Facts { locks_memory: true, ..facts(7, 1, 1, "python3") };
        assert_eq!(table.see(&locked, None), [leave(7, "all")], "it locks its memory now");
        assert_eq!(table.see(&facts(7, 1, 1, "python3"), None), [join(7, 1, "all")]);
        assert_eq!(table.see(&facts(7, 1, 1, "kubelet"), None), [leave(7, "all")], "it is another program now");
        assert!(matches!(&table.get(7).unwrap().place, Place::LeftAlone(why) if why.contains("kubelet")));
        assert_eq!(
            table.see(&facts(20, 1, 11, "sh"), None),
            [join(20, 1, "all")],
            "children of what is left alone are managed"
        );
    }

    #[test]
    fn new_rules_move_those_they_concern() {
        let mut table = table(RULES);
        table.see(&facts(7, 100, 1, "db1"), None);
        let text = "[class.other]\nmatch = [{ name = \"db1\" }]\n".to_owned();
        table.set_rules(&Config::of(&[Source { name: "new".to_owned(), text }]).unwrap());
        assert_eq!(table.see(&facts(7, 100, 1, "db1"), None), [leave(7, "db"), join(7, 100, "other")]);
    }
}
