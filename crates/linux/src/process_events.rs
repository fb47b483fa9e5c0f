//! News of processes at once, from the kernel's process connector.
//!
//! In: a netlink socket. Out: [`ProcessEvent`]s. Must not: be relied on alone: events are lost when they come faster than they
//! are read, which is reported, and the caller then scans /proc.
//!
//! The form of the messages is that of linux/netlink.h, linux/connector.h and linux/cn_proc.h: a header of 16 bytes, one of
//! the connector of 20, then the event: what, cpu, timestamp, and two pairs of pid and thread group.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::netlink::{CONNECTOR, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with, sockopt,
};

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessEvent {
    /// A process was forked by another.
    Forked {
        /// The new one.
        pid: u32,
        /// The one that forked.
        parent: u32,
    },
    /// A process runs another program now, or changed its user or name: examine it again.
    Changed {
        /// Which.
        pid: u32,
    },
    /// A process exited.
    Exited {
        /// Which.
        pid: u32,
    },
    /// Events were lost: only a scan of /proc shows the processes.
    Lost,
}

/// The connector's identity for processes, and the groups and operations of it (linux/cn_proc.h).
const CN_IDX_PROC: u32 = 1;
const CN_VAL_PROC: u32 = 1;
const PROC_CN_MCAST_LISTEN: u32 = 1;
const NLMSG_DONE: u16 = 3;
const NETLINK_HEADER: usize = 16;
const CONNECTOR_HEADER: usize = 20;
const PROC_EVENT_FORK: u32 = 0x1;
const PROC_EVENT_EXEC: u32 = 0x2;
const PROC_EVENT_UID: u32 = 0x4;
const PROC_EVENT_COMM: u32 = 0x200;
const PROC_EVENT_EXIT: u32 = 0x8000_0000;

/// Why the connector cannot be listened to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectorError {
    /// A capability is missing.
    #[error("the process connector needs CAP_NET_ADMIN in the first network namespace")]
    NotPermitted,
    /// The kernel is built without it.
    #[error("this kernel has no process connector (CONFIG_PROC_EVENTS)")]
    NoConnector,
    /// Sockets of this family are forbidden to the process.
    #[error(
        "netlink sockets are forbidden to this process (RestrictAddressFamilies), and ExecStartPre=+terraced --hand-over passed none"
    )]
    Forbidden,
    /// Another socket.
    #[error("it is not a socket of the process connector")]
    NotConnector,
    /// A call failed.
    #[error("the process connector: {call}: {errno}")]
    Call {
        /// The call.
        call: &'static str,
        /// What the kernel said.
        errno: Errno,
    },
    /// The kernel answers in the first pid namespace only (cn_proc.c).
    #[error(
        "the process connector tells of processes in the first pid namespace only, and this is another (a container)"
    )]
    OwnPids,
    /// Nothing came back.
    #[error("the process connector does not answer (not the first network or user namespace?)")]
    NoAnswer,
}

/// A listener.
#[derive(Debug)]
pub struct ProcessEvents {
    socket: OwnedFd,
    lost: u64,
}

impl ProcessEvents {
    /// Begins to listen.
    ///
    /// # Errors
    /// One line on what is missing and what to do.
    pub fn open() -> Result<ProcessEvents, ConnectorError> {
        if !crate::zram::has_pids_of_machine() {
            return Err(ConnectorError::OwnPids);
        }
        let failed = |call: &'static str, errno: Errno| match errno {
            Errno::PERM | Errno::ACCESS => ConnectorError::NotPermitted,
            Errno::PROTONOSUPPORT => ConnectorError::NoConnector,
            Errno::AFNOSUPPORT => ConnectorError::Forbidden,
            errno => ConnectorError::Call { call, errno },
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, Some(CONNECTOR))
            .map_err(|errno| failed("socket", errno))?;
        // A fork storm must fit: an event takes about 1 KiB of it as the kernel counts. Privileged or not, what can be had is taken.
        let _ = sockopt::set_socket_recv_buffer_size_force(&socket, 4 << 20)
            .or_else(|_| sockopt::set_socket_recv_buffer_size(&socket, 4 << 20));
        bind(&socket, &SocketAddrNetlink::new(0, CN_IDX_PROC)).map_err(|errno| failed("bind", errno))?;
        send(&socket, &subscription(), SendFlags::empty()).map_err(|errno| failed("send", errno))?;
        let mut events = ProcessEvents { socket, lost: 0 };
        events.await_answer()?;
        Ok(events)
    }

    /// Listens with a socket that another process opened and subscribed, by [`ProcessEvents::open`].
    ///
    /// # Errors
    /// It is not a socket of the process connector.
    pub fn passed(socket: OwnedFd) -> Result<ProcessEvents, ConnectorError> {
        let is = sockopt::socket_domain(&socket) == Ok(AddressFamily::NETLINK)
            && sockopt::socket_protocol(&socket) == Ok(Some(CONNECTOR));
        let flags = rustix::fs::fcntl_getfl(&socket).map_err(|errno| ConnectorError::Call { call: "fcntl", errno })?;
        rustix::fs::fcntl_setfl(&socket, flags | rustix::fs::OFlags::NONBLOCK)
            .map_err(|errno| ConnectorError::Call { call: "fcntl", errno })?;
        if is { Ok(ProcessEvents { socket, lost: 0 }) } else { Err(ConnectorError::NotConnector) }
    }

    /// The kernel answers a subscription; a kernel that does not (a namespace that may not listen) sends nothing, ever.
    fn await_answer(&mut self) -> Result<(), ConnectorError> {
        let mut fds = [rustix::event::PollFd::new(&self.socket, rustix::event::PollFlags::IN)];
        let second = rustix::event::Timespec { tv_sec: 1, tv_nsec: 0 };
        match rustix::event::poll(&mut fds, Some(&second)) {
            Ok(0) | Err(_) => Err(ConnectorError::NoAnswer),
            Ok(_) => Ok(()),
        }
    }

    /// What becomes readable when there is news.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// How often events were lost.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Reads all pending events, up to a limit, so that a fork storm cannot block the caller.
    pub fn take(&mut self, events: &mut Vec<ProcessEvent>) {
        const AT_ONCE: usize = 4096;
        let mut buffer = [0u8; 4096];
        for _ in 0..AT_ONCE {
            match recv(&self.socket, &mut buffer[..], RecvFlags::empty()) {
                Ok((length, _)) => decode(&buffer[..length], events),
                Err(Errno::NOBUFS) => {
                    self.lost += 1;
                    events.push(ProcessEvent::Lost);
                }
                Err(Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }
}

fn subscription() -> Vec<u8> {
    let mut message = Vec::with_capacity(NETLINK_HEADER + CONNECTOR_HEADER + 4);
    let length = (NETLINK_HEADER + CONNECTOR_HEADER + 4) as u32;
    message.extend(length.to_ne_bytes());
    message.extend(NLMSG_DONE.to_ne_bytes());
    message.extend(0u16.to_ne_bytes());
    message.extend([0; 8]);
    message.extend(CN_IDX_PROC.to_ne_bytes());
    message.extend(CN_VAL_PROC.to_ne_bytes());
    message.extend([0; 8]);
    message.extend(4u16.to_ne_bytes());
    message.extend(0u16.to_ne_bytes());
    message.extend(PROC_CN_MCAST_LISTEN.to_ne_bytes());
    message
}

/// Decodes what one read gave: netlink messages one behind the other.
fn decode(mut bytes: &[u8], events: &mut Vec<ProcessEvent>) {
    while let Some(length) = word(bytes, 0).map(|length| length as usize) {
        if length < NETLINK_HEADER || length > bytes.len() {
            return;
        }
        decode_one(&bytes[NETLINK_HEADER..length], events);
        let next = length.next_multiple_of(4).min(bytes.len());
        bytes = &bytes[next..];
    }
}

fn decode_one(message: &[u8], events: &mut Vec<ProcessEvent>) {
    if word(message, 0) != Some(CN_IDX_PROC) || word(message, 4) != Some(CN_VAL_PROC) {
        return;
    }
    let event = &message[CONNECTOR_HEADER.min(message.len())..];
    // what, cpu, timestamp of 8 bytes, then the data.
    let at = |index: usize| word(event, 16 + 4 * index);
    match word(event, 0) {
        Some(PROC_EVENT_FORK) => {
            // parent_pid, parent_tgid, child_pid, child_tgid. A new thread has another's thread group: no process.
            if let (Some(parent), Some(child), Some(group)) = (at(1), at(2), at(3))
                && child == group
            {
                events.push(ProcessEvent::Forked { pid: child, parent });
            }
        }
        Some(PROC_EVENT_EXEC | PROC_EVENT_UID | PROC_EVENT_COMM) => {
            if let Some(pid) = at(1) {
                events.push(ProcessEvent::Changed { pid });
            }
        }
        Some(PROC_EVENT_EXIT) => {
            if let (Some(thread), Some(pid)) = (at(0), at(1))
                && thread == pid
            {
                events.push(ProcessEvent::Exited { pid });
            }
        }
        _ => {}
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at + 4)?;
    Some(u32::from_ne_bytes(bytes.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn message(what: u32, data: &[u32]) -> Vec<u8> {
        let mut words = vec![0u32; 4];
        words.extend([CN_IDX_PROC, CN_VAL_PROC, 0, 0, 40]);
        words.extend([what, 0, 0, 0]);
        words.extend(data);
        let mut bytes: Vec<u8> = words.into_iter().flat_map(u32::to_ne_bytes).collect();
        let length = bytes.len() as u32;
        bytes[..4].copy_from_slice(&length.to_ne_bytes());
        bytes
    }

    #[test]
    fn processes_are_told_from_threads() {
        let mut events = Vec::new();
        let mut bytes = message(PROC_EVENT_FORK, &[10, 10, 11, 11]);
        bytes.extend(message(PROC_EVENT_FORK, &[10, 10, 12, 10]));
        bytes.extend(message(PROC_EVENT_EXEC, &[11, 11]));
        bytes.extend(message(PROC_EVENT_EXIT, &[12, 10, 0, 0]));
        bytes.extend(message(PROC_EVENT_EXIT, &[11, 11, 0, 0]));
        decode(&bytes, &mut events);
        let expected = [
            ProcessEvent::Forked { pid: 11, parent: 10 },
            ProcessEvent::Changed { pid: 11 },
            ProcessEvent::Exited { pid: 11 },
        ];
        assert_eq!(events, expected);
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..300), cut in 0usize..80) {
            let mut events = Vec::new();
            decode(&bytes, &mut events);
            let whole = message(PROC_EVENT_FORK, &[10, 10, 11, 11]);
            decode(&whole[..cut.min(whole.len())], &mut events);
        }
    }
}
