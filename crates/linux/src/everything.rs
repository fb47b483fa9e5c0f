//! All processes of this machine, or of this container, as they come and go, but for what holds it up.
//!
//! In: /proc, a list of what is never touched. Out: who is to be managed from now on, and who no longer. Must not: take a process twice, read one that
//! ended soon after it was born, or use more than a small share of a processor, however many processes there are.
//!
//! A new process is read at the second look that sees it: most are over by then, and the others have executed their program. Those that are
//! known are read again in turn, some at each look, since a process may execute another program, lock its memory or turn to real time later.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::machine_programs::{LeftAlone, Never, has_real_time_thread};
use crate::process::ProcessError;
use crate::processes::{Facts, all};
use crate::usage::thread_cpu;

/// How soon after one look the next may be.
const LOOK: Duration = Duration::from_secs(1);
/// And how many times what a look took: half a hundredth of a processor.
const SPACING: u32 = 200;
/// How long a process must have been there before it is read.
const SETTLE: Duration = Duration::from_millis(300);
/// How many known processes are read again at a look: a thousand in half a minute, at 70 us each.
const AGAIN: usize = 32;

/// What is known of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Seen {
    /// Since when it is there; not read yet.
    New(Instant),
    /// It is managed, or was refused.
    Taken {
        /// Its start time, which shows whether the pid was given to another.
        start_time: u64,
    },
    /// Why it is left alone.
    Alone(LeftAlone),
    /// One of its threads runs in real time: found once, as that is a file a thread.
    RealTimeThread {
        /// As in `Taken`.
        start_time: u64,
    },
    /// A thread of the kernel, or one that ended and is not waited for; or it may not be read.
    Nothing,
}

/// Who comes and who goes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Processes to manage.
    pub join: Vec<u32>,
    /// Managed ones that are to be let go: they belong to what is never touched now, or are other processes than before.
    pub leave: Vec<u32>,
}

/// See the module's header.
#[derive(Debug)]
pub struct Everything {
    never: Never,
    seen: BTreeMap<u32, Seen>,
    /// The pid up to which the known ones were read again last.
    read_up_to: u32,
    next: Instant,
    first: bool,
}

impl Everything {
    /// All processes but those that `never` leaves alone, Terrace, and what started it.
    pub fn but(never: Never) -> Everything {
        Everything {
            never: never.and_ancestors_of(std::process::id()),
            seen: BTreeMap::new(),
            read_up_to: 0,
            next: Instant::now(),
            first: true,
        }
    }

    /// Who has come and gone since the last look, if one is due.
    pub fn look(&mut self) -> Changes {
        let now = Instant::now();
        if now < self.next {
            return Changes::default();
        }
        let began = thread_cpu();
        let changes = self.changes(&all(), now, Facts::read, has_real_time_thread);
        self.next = now + LOOK.max(thread_cpu().saturating_sub(began) * SPACING);
        changes
    }

    /// How many are left alone by which reason of the list, by name.
    pub fn left_alone(&self) -> BTreeMap<String, usize> {
        let mut found = BTreeMap::new();
        for seen in self.seen.values() {
            let name = match seen {
                Seen::Alone(LeftAlone::Named(name)) => name.as_str(),
                Seen::Alone(LeftAlone::First) => "the first process",
                Seen::Alone(LeftAlone::Locked) => "with all memory locked",
                Seen::Alone(LeftAlone::RealTime) | Seen::RealTimeThread { .. } => "in real time",
                Seen::Alone(LeftAlone::Ours) => "Terrace and what started it",
                Seen::New(_) | Seen::Taken { .. } | Seen::Nothing => continue,
            };
            *found.entry(name.to_owned()).or_default() += 1;
        }
        found
    }

    fn changes(
        &mut self,
        there: &[u32],
        now: Instant,
        read: impl Fn(u32) -> Result<Option<Facts>, ProcessError>,
        has_real_time_thread: impl Fn(u32) -> bool,
    ) -> Changes {
        let mut changes = Changes::default();
        let listed: BTreeSet<u32> = there.iter().copied().collect();
        // The manager finds the end of what it manages by itself.
        self.seen.retain(|pid, _| listed.contains(pid));
        // All that was there before is read at the first look.
        let since = if self.first { now.checked_sub(SETTLE).unwrap_or(now) } else { now };
        for pid in there {
            self.seen.entry(*pid).or_insert(Seen::New(since));
        }
        let settled =
            |seen: &Seen| matches!(seen, Seen::New(since) if self.first || now.duration_since(*since) >= SETTLE);
        let mut due: Vec<u32> = self.seen.iter().filter(|(_, seen)| settled(seen)).map(|(pid, _)| *pid).collect();
        self.first = false;
        let known = |(pid, seen): (&u32, &Seen)| (!matches!(seen, Seen::New(_))).then_some(*pid);
        let again: Vec<u32> =
            self.seen.range(self.read_up_to.saturating_add(1)..).filter_map(known).take(AGAIN).collect();
        // At the end of the list the turn begins again.
        self.read_up_to = if again.len() < AGAIN { 0 } else { again.last().copied().unwrap_or(0) };
        due.extend(again);
        for pid in due {
            self.examine(pid, &read, &has_real_time_thread, &mut changes);
        }
        changes
    }

    fn examine(
        &mut self,
        pid: u32,
        read: &impl Fn(u32) -> Result<Option<Facts>, ProcessError>,
        has_real_time_thread: &impl Fn(u32) -> bool,
        changes: &mut Changes,
    ) {
        let before = self.seen.get(&pid).cloned();
        let now = match read(pid) {
            Ok(Some(facts)) => self.judge(&facts, before.as_ref(), has_real_time_thread),
            Ok(None) | Err(_) => Seen::Nothing,
        };
        let taken = |seen: Option<&Seen>| match seen {
            Some(Seen::Taken { start_time }) => Some(*start_time),
            _ => None,
        };
        let (was, is) = (taken(before.as_ref()), taken(Some(&now)));
        if was != is {
            // One that is over is let go by the manager, which sees its end.
            if was.is_some() && now != Seen::Nothing {
                changes.leave.push(pid);
            }
            if is.is_some() {
                changes.join.push(pid);
            }
        }
        self.seen.insert(pid, now);
    }

    fn judge(&self, facts: &Facts, before: Option<&Seen>, has_real_time_thread: &impl Fn(u32) -> bool) -> Seen {
        let start_time = facts.start_time;
        if let Some(why) = self.never.leaves_alone(facts) {
            return Seen::Alone(why);
        }
        // Helpers of Terrace: its guard, its witness of signals.
        if facts.parent == std::process::id() {
            return Seen::Alone(LeftAlone::Ours);
        }
        match before {
            Some(Seen::RealTimeThread { start_time: same }) if *same == start_time => {
                Seen::RealTimeThread { start_time }
            }
            Some(Seen::Taken { start_time: same }) if *same == start_time => Seen::Taken { start_time },
            _ if has_real_time_thread(facts.pid) => Seen::RealTimeThread { start_time },
            _ => Seen::Taken { start_time },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    /// A machine whose processes a test writes down.
    #[derive(Default)]
    struct Machine {
        facts: BTreeMap<u32, Option<Facts>>,
        read: RefCell<Vec<u32>>,
    }

    impl Machine {
        fn start(&mut self, pid: u32, name: &str) {
            let facts = Facts {
                pid,
                start_time: u64::from(pid),
                parent: 1,
                name: name.to_owned(),
                exe: None,
                user: 0,
                cgroups: Vec::new(),
                container: None,
                guest: None,
                locks_memory: false,
                real_time: false,
            };
            self.facts.insert(pid, Some(facts));
        }

        fn change(&mut self, pid: u32, change: impl FnOnce(&mut Facts)) {
            change(self.facts.get_mut(&pid).unwrap().as_mut().unwrap());
        }

        fn look(&self, everything: &mut Everything, now: Instant) -> Changes {
            self.read.borrow_mut().clear();
            let there: Vec<u32> = self.facts.keys().copied().collect();
            let read = |pid| {
                self.read.borrow_mut().push(pid);
                self.facts.get(&pid).cloned().ok_or(ProcessError::Gone { pid })
            };
            everything.changes(&there, now, read, |pid| pid == 77)
        }
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn all_but_what_holds_the_machine_is_taken_up() {
        let mut machine = Machine::default();
        for (pid, name) in [(1, "init"), (20, "sshd"), (30, "python3"), (31, "node"), (77, "player")] {
            machine.start(pid, name);
        }
        machine.facts.insert(2, None);
        let mut everything = Everything::but(Never::default());
        let now = Instant::now();
        assert_eq!(machine.look(&mut everything, now), Changes { join: vec![30, 31], leave: vec![] });
        assert_eq!(machine.look(&mut everything, now + SECOND), Changes::default());
        let alone = everything.left_alone();
        assert_eq!(
            alone.keys().map(String::as_str).collect::<Vec<_>>(),
            ["in real time", "sshd*", "the first process"]
        );
    }

    #[test]
    fn what_is_born_and_over_between_two_looks_is_never_read() {
        let mut machine = Machine::default();
        let mut everything = Everything::but(Never::default());
        let mut now = Instant::now();
        machine.look(&mut everything, now);
        for birth in 0..400 {
            // Forty births a second, each over before the next look.
            if birth % 40 == 0 {
                machine.facts.clear();
                now += SECOND;
            }
            machine.start(1000 + birth, "cc1");
            if birth % 40 == 39 {
                assert_eq!(machine.look(&mut everything, now), Changes::default());
                assert!(machine.read.borrow().is_empty());
            }
        }
        assert_eq!(machine.look(&mut everything, now + SECOND).join.len(), 40, "those that stay are taken up");
    }

    #[test]
    fn what_ended_and_is_not_waited_for_costs_no_more_than_what_is_known() {
        let mut machine = Machine::default();
        machine.start(5, "parent");
        machine.facts.extend((100..2100).map(|pid| (pid, None)));
        let mut everything = Everything::but(Never::default());
        let now = Instant::now();
        assert_eq!(machine.look(&mut everything, now).join, [5]);
        for look in 1..100 {
            assert_eq!(machine.look(&mut everything, now + SECOND * look), Changes::default());
            assert!(machine.read.borrow().len() <= AGAIN);
        }
    }

    #[test]
    fn a_process_that_executes_locks_or_is_another_is_seen_in_its_turn() {
        let mut machine = Machine::default();
        for pid in 10..200 {
            // Pid 77 has a thread in real time.
            machine.start(if pid == 77 { 1077 } else { pid }, "idle");
        }
        let mut everything = Everything::but(Never::default());
        let mut now = Instant::now();
        assert_eq!(machine.look(&mut everything, now).join.len(), 190);
        machine.change(50, |facts| facts.name = "dockerd".to_owned());
        machine.change(60, |facts| facts.locks_memory = true);
        machine.change(70, |facts| facts.start_time = 999);
        let mut seen = Changes::default();
        for _ in 0..190usize.div_ceil(AGAIN) + 1 {
            now += SECOND;
            let changes = machine.look(&mut everything, now);
            seen.join.extend(changes.join);
            seen.leave.extend(changes.leave);
        }
        seen.leave.sort_unstable();
        assert_eq!(seen, Changes { join: vec![70], leave: vec![50, 60, 70] });
        machine.change(60, |facts| facts.locks_memory = false);
        let back = (0..8).find_map(|look| {
            let join = machine.look(&mut everything, now + SECOND * (look + 1)).join;
            (!join.is_empty()).then_some(join)
        });
        assert_eq!(back, Some(vec![60]), "what lets its memory go is managed again");
    }

    #[test]
    fn this_machine_is_looked_at_within_a_small_share_of_a_processor() {
        let mut everything = Everything::but(Never::default());
        let joined = everything.look().join;
        // This test's own process is Terrace here.
        assert!(!joined.contains(&std::process::id()) && !joined.contains(&1));
        assert!(everything.next >= Instant::now() + LOOK / 2);
        assert_eq!(everything.look(), Changes::default(), "the next look is not due");
    }
}
