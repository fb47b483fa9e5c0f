//! The end of a managed process: noticed, waited for, told to the engine and the tracker.
//!
//! In: pidfds, errors of the tracker. Out: spaces without memory, spaces let go. Must not: take a process's end for a fault of the tracker.
//!
//! A process ends in steps. Its memory goes first: from then on calls on it fail with ESRCH, though its pid is there and its pidfd not yet
//! readable. That state lasts for as long as the memory takes to be freed, or, where only the first thread has ended, until the others
//! do. Such a process is left alone until its pidfd says that it is over.

use std::ops::Range;

use terrace_core::engine::Input;
use terrace_core::units::{SpaceId, Vpn};

use super::Manager;
use super::exits::Exits;
use crate::trackers::TrackError;

/// More errors than this about processes that are there, without a complete round between them, are the tracker's own. One or two come
/// about where a process executes another program, or a thread of its ends, in the middle of a call.
const MOST_UNEXPLAINED: u32 = 10;

impl Manager {
    /// Releases processes that exited.
    pub(super) fn drop_exited(&mut self) {
        let gone = self.exits.as_mut().map_or_else(Vec::new, Exits::take);
        let any = !gone.is_empty();
        for space in gone {
            self.let_go(space);
        }
        // What the last of them has left running: its orphans are with another parent now.
        if any && self.spaces.is_empty() {
            self.take_up_children();
        }
    }

    pub(super) fn let_go(&mut self, space: SpaceId) {
        let gone = self.spaces.remove(&space);
        if let (Some(life), Some(gone)) = (&mut self.parts.life_cycle, &gone) {
            life.forget(gone.process.pid());
        }
        if let (Some(lists), Some(slot)) = (&self.parts.kernel_lists, gone.and_then(|space| space.slot))
            && let Err(error) = lists.forget(slot)
        {
            tracing::debug!(%error, "a process's number was given back already");
        }
        self.parts.tracker.forget(space);
        self.forget_shared(space);
        self.slots.left(space, Vpn(0)..Vpn(u64::MAX));
        if let Some(judge) = &mut self.compressibility {
            judge.forget_range(space, Vpn(0), Vpn(u64::MAX));
        }
        self.drain_engine(Input::Exited(space));
    }

    /// What came of a whole round: the tracker's error, unless it tells of a target that ended.
    pub(super) fn outlive_round(&mut self, result: Result<(), TrackError>) -> Result<(), TrackError> {
        if result.is_ok() {
            self.unexplained = 0;
        }
        self.outlive(result)
    }

    /// What came of asking the tracker: its error, unless it tells of a target that ended. Those are not asked about again.
    pub(super) fn outlive(&mut self, result: Result<(), TrackError>) -> Result<(), TrackError> {
        let error = match result {
            Err(error) if error.is_no_such_process() => error,
            result => return result,
        };
        let asked = self.spaces.iter().filter(|(_, space)| !space.without_memory);
        let ended: Vec<SpaceId> = asked.filter(|(_, space)| !space.process.has_memory()).map(|(id, _)| *id).collect();
        if ended.is_empty() {
            self.unexplained += 1;
            tracing::debug!(%error, "a process changed while it was asked about");
            return if self.unexplained > MOST_UNEXPLAINED { Err(error) } else { Ok(()) };
        }
        for id in ended {
            self.lose_memory(id);
        }
        Ok(())
    }

    /// The process has no memory any more: the engine forgets its pages, and only its exit is waited for.
    pub(super) fn lose_memory(&mut self, id: SpaceId) {
        let Some(space) = self.spaces.get_mut(&id) else { return };
        let pid = space.process.pid();
        tracing::debug!(pid, "its memory is gone or out of reach: only its exit is waited for");
        space.without_memory = true;
        space.mapped = Vec::new();
        let ranges = std::mem::take(&mut space.ranges);
        self.parts.tracker.forget(id);
        self.forget_shared(id);
        for range in ranges {
            self.unmapped(id, range.start..range.end);
        }
    }

    /// A process no longer maps this.
    pub(super) fn unmapped(&mut self, id: SpaceId, range: Range<Vpn>) {
        if let Some(judge) = &mut self.compressibility {
            judge.forget_range(id, range.start, range.end);
        }
        self.slots.left(id, range.clone());
        self.drain_engine(Input::Unmapped(id, range));
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::io::Write;
    use std::process::{Child, Command, Stdio};
    use std::rc::Rc;
    use std::time::{Duration, Instant};

    use terrace_core::engine::{Engine, EngineConfig};
    use terrace_core::governor::GovernorConfig;
    use terrace_core::policy::FastGoal;

    use super::*;
    use crate::manager::ManagerParts;
    use crate::movers::Movers;
    use crate::observer::NoTap;
    use crate::process::{Process, RangeOptions};
    use crate::topology::TierMap;
    use crate::trackers::{Round, Sink, Target, Tracker};

    /// What a round does with its targets.
    type Scan = Box<dyn FnMut(&[Target<'_>]) -> Result<(), TrackError>>;

    struct Scripted(Scan);

    impl Tracker for Scripted {
        fn name(&self) -> &'static str {
            "scripted"
        }

        fn scan(&mut self, round: &Round<'_>, _: &mut dyn Sink) -> Result<(), TrackError> {
            let targets = round.targets;
            (self.0)(targets)
        }
    }

    fn manager(scan: Scan) -> Manager {
        let settings = terrace_policies::Settings::from_pairs([("interval", "10ms")]);
        let config =
            EngineConfig { tiers: vec![1 << 20], goal: FastGoal::Pages(u64::MAX), governor: GovernorConfig::default() };
        Manager::new(ManagerParts {
            engine: Engine::new(config, terrace_policies::build("age", settings).unwrap()),
            tracker: Box::new(Scripted(scan)),
            mover: Box::new(Movers::dry_run()),
            tiers: TierMap::new(Vec::new(), Vec::new()),
            zram: None,
            zram_is_ours: false,
            ranges: RangeOptions::default(),
            kernel_lists: None,
            life_cycle: None,
            max_overhead: 1.0,
            move_cost: crate::move_cost::MoveCost::default(),
            ignores_protection: false,
        })
    }

    /// A program, killed and waited for when dropped.
    struct Program(Child);

    impl Program {
        fn start(command: &mut Command) -> Program {
            Program(command.stdin(Stdio::piped()).spawn().unwrap())
        }
    }

    impl Drop for Program {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// On a line of input its first thread ends, and with it all that /proc shows of its memory; another thread stays.
    const FIRST_THREAD_ENDS: &str = "import ctypes, os, sys, threading, time\n\
                                     threading.Thread(target=lambda: time.sleep(600)).start()\n\
                                     sys.stdin.readline()\n\
                                     ctypes.CDLL(None).syscall({'x86_64': 60, 'aarch64': 93}[os.uname().machine], 0)\n";

    fn no_such_process() -> TrackError {
        let source = std::io::Error::from_raw_os_error(libc::ESRCH);
        TrackError::Call { tracker: "scripted", call: "/proc/PID/pagemap".to_owned(), source }
    }

    fn rounds(manager: &mut Manager, more: u64) -> Result<(), TrackError> {
        let (began, wanted) = (Instant::now(), manager.stats().rounds + more);
        while manager.stats().rounds < wanted {
            assert!(began.elapsed() < Duration::from_secs(60), "{} rounds of {wanted}", manager.stats().rounds);
            let due = manager.turn(&mut NoTap)?;
            std::thread::sleep(due.since(manager.now()).min(Duration::from_millis(10)));
        }
        Ok(())
    }

    #[test]
    fn a_target_that_ends_in_mid_round_is_waited_for_and_no_fault_of_the_tracker() {
        let stays = Program::start(Command::new("sleep").arg("600"));
        // Not by PATH, where a version manager's script may stand for the interpreter.
        let asked = Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output().unwrap();
        let python = String::from_utf8(asked.stdout).unwrap();
        let mut ends = Program::start(Command::new(python.trim()).args(["-c", FIRST_THREAD_ENDS]));
        let (stays_pid, ends_pid) = (stays.0.id(), ends.0.id());
        let mut end = ends.0.stdin.take();
        let asked = Rc::new(RefCell::new(Vec::new()));
        let log = asked.clone();
        let mut manager = manager(Box::new(move |targets| {
            log.borrow_mut().push(targets.iter().map(|target| target.process.pid()).collect::<Vec<u32>>());
            let ready = targets.iter().find(|target| target.process.pid() == ends_pid && log.borrow().len() >= 3);
            let (Some(target), Some(mut end)) = (ready, end.take_if(|_| ready.is_some())) else { return Ok(()) };
            // It loses its memory after the manager has read its ranges and before the tracker comes to it.
            end.write_all(b"\n").unwrap();
            let began = Instant::now();
            while target.process.has_memory() {
                assert!(began.elapsed() < Duration::from_secs(60), "its first thread does not end");
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(no_such_process())
        }));
        for pid in [stays_pid, ends_pid] {
            manager.add_process(pid).unwrap();
        }
        rounds(&mut manager, 3).unwrap();
        assert_eq!(*asked.borrow(), vec![vec![stays_pid, ends_pid]; 3]);
        // Rounds go on with the other one, at their own pace.
        let (began, before) = (Instant::now(), manager.stats().rounds);
        rounds(&mut manager, 5).unwrap();
        assert!(asked.borrow()[3..].iter().all(|pids| *pids == [stays_pid]), "{:?}", asked.borrow());
        let most = before + 2 + began.elapsed().as_millis() as u64 / 10;
        assert!(manager.stats().rounds <= most, "{} rounds, {most} at most", manager.stats().rounds);
        // It is no zombie that anybody could wait for, and still managed.
        let managed = |manager: &Manager| manager.processes().map(|(_, process, _)| process.pid()).collect::<Vec<_>>();
        assert_eq!(managed(&manager), [stays_pid, ends_pid]);
        assert!(ends.0.try_wait().unwrap().is_none());
        drop(ends);
        rounds(&mut manager, 1).unwrap();
        assert_eq!(managed(&manager), [stays_pid]);
    }

    #[test]
    fn children_that_ended_and_are_not_waited_for_cost_nothing() {
        // What it executes does not know of the children that the shell began.
        let script = "for i in 1 2 3 4 5 6 7 8; do true & done; exec sleep 600";
        let parent = Program::start(Command::new("sh").args(["-c", script]));
        let began = Instant::now();
        let children = || crate::process::children(parent.0.id());
        let ended = |pid: &u32| crate::process::Stat::read(*pid).unwrap().has_ended();
        while children().len() < 8 || !children().iter().all(ended) {
            assert!(began.elapsed() < Duration::from_secs(60), "its children do not end");
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut manager = manager(Box::new(|_| Ok(())));
        manager.add_process(parent.0.id()).unwrap();
        rounds(&mut manager, 5).unwrap();
        assert_eq!((manager.stats().processes, manager.spaces.len()), (1, 1));
        // Their pids may be others' later: what is not listed any more is not remembered.
        assert_eq!(manager.children.passed_over(), 8);
        drop(parent);
        manager.drop_exited();
        assert_eq!(manager.children.passed_over(), 0);
    }

    #[test]
    fn an_error_about_processes_that_are_there_is_the_trackers_own_in_the_end() {
        let stays = Program::start(Command::new("sleep").arg("600"));
        let mut all_fail = manager(Box::new(|_| Err(no_such_process())));
        all_fail.add_process(stays.0.id()).unwrap();
        let error = rounds(&mut all_fail, 1000).unwrap_err();
        assert!(error.is_no_such_process(), "{error}");
        assert_eq!(all_fail.stats().rounds, u64::from(MOST_UNEXPLAINED));
        // One now and then is a process that changed in the middle of a call.
        let mut turn = 0;
        let mut some_fail = manager(Box::new(move |_| {
            turn += 1;
            if turn % 2 == 0 { Err(no_such_process()) } else { Ok(()) }
        }));
        some_fail.add_process(stays.0.id()).unwrap();
        rounds(&mut some_fail, 4 * u64::from(MOST_UNEXPLAINED)).unwrap();
    }

    #[test]
    fn other_errors_are_the_trackers_own_even_if_a_target_ends() {
        let program = RefCell::new(Some(Program::start(Command::new("sleep").arg("600"))));
        let pid = program.borrow().as_ref().unwrap().0.id();
        let mut manager = manager(Box::new(move |_| {
            drop(program.take());
            let source = std::io::Error::from_raw_os_error(libc::EIO);
            Err(TrackError::Call { tracker: "scripted", call: "/dev/terrace_mm".to_owned(), source })
        }));
        manager.add_process(pid).unwrap();
        assert!(rounds(&mut manager, 1).unwrap_err().to_string().contains("/dev/terrace_mm"));
    }

    #[test]
    fn errors_that_tell_of_an_end_are_told_from_others() {
        let check = |error: TrackError, ends: bool| assert_eq!(error.is_no_such_process(), ends, "{error}");
        check(no_such_process(), true);
        check(TrackError::Gone { pid: 7 }, true);
        let refused = std::io::Error::from_raw_os_error(libc::EPERM);
        check(TrackError::Call { tracker: "scripted", call: "ioctl".to_owned(), source: refused }, false);
        check(TrackError::Unavailable { tracker: "scripted", reason: "no such process".to_owned() }, false);
        assert!(Process::open(std::process::id()).unwrap().has_memory());
    }
}
