//! Which of the managed processes have exited, asked of all at once.
//!
//! In: their pidfds. Out: the spaces of those that are over; a descriptor that is readable when there are some. Must not: cost more for a thousand
//! processes than for one.
//!
//! poll(2) looks at each descriptor each time it is called, which for a thousand processes was a fifth of what watching them cost.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{Timespec, epoll};
use terrace_core::units::SpaceId;

use crate::process::Process;

/// Exits that are taken at once; the others are there the next time.
const AT_ONCE: usize = 256;

/// See the module's header.
pub(super) struct Exits {
    epoll: OwnedFd,
    ready: Vec<epoll::Event>,
}

impl Exits {
    /// Of nobody.
    ///
    /// # Errors
    /// As epoll_create(2): no descriptor is left.
    pub(super) fn new() -> std::io::Result<Exits> {
        Ok(Exits { epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?, ready: Vec::with_capacity(AT_ONCE) })
    }

    /// Asks for a process as well, until its pidfd is closed.
    ///
    /// # Errors
    /// As epoll_ctl(2): the user's share of watches is used up.
    pub(super) fn add(&self, space: SpaceId, process: &Process) -> std::io::Result<()> {
        let data = epoll::EventData::new_u64(u64::from(space.0));
        Ok(epoll::add(&self.epoll, process.pidfd(), data, epoll::EventFlags::IN)?)
    }

    /// Those that are over and not yet let go.
    pub(super) fn take(&mut self) -> Vec<SpaceId> {
        self.ready.clear();
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        // Interrupted: they are there the next time.
        let _ = epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut self.ready), Some(&at_once));
        self.ready.iter().map(|event| SpaceId(event.data.u64() as u32)).collect()
    }
}

impl AsFd for Exits {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_exited_is_told_until_it_is_let_go() {
        let mut children: Vec<std::process::Child> =
            (0..3).map(|_| std::process::Command::new("sleep").arg("600").spawn().unwrap()).collect();
        let mut processes: Vec<Process> = children.iter().map(|child| Process::open(child.id()).unwrap()).collect();
        let mut exits = Exits::new().unwrap();
        for (space, process) in (0..).map(SpaceId).zip(&processes) {
            exits.add(space, process).unwrap();
        }
        assert_eq!(exits.take(), []);
        children[1].kill().unwrap();
        children[1].wait().unwrap();
        assert_eq!(exits.take(), [SpaceId(1)]);
        assert_eq!(exits.take(), [SpaceId(1)]);
        drop(processes.remove(1));
        assert_eq!(exits.take(), []);
        for mut child in children {
            let _ = child.kill();
            child.wait().unwrap();
        }
    }
}
