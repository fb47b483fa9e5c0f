//! Sockets that the unit's sandbox forbids to the daemon: opened before it starts, and received by it.
//!
//! In: the configuration (`terraced --hand-over`), and what the service manager passes. Out: sockets. Must not: open what the configuration
//! does not name, or take a socket of another kind.
//!
//! The unit gives the daemon a network of its own without an interface, and forbids it Internet and netlink sockets and CAP_NET_ADMIN. Two
//! sockets need them: the TCP socket of metrics.listen, and the process connector, which exists in the first network namespace only.
//! `ExecStartPre=+/usr/bin/terraced --hand-over` opens both with full rights, subscribes to process events, and gives them to systemd's store
//! of descriptors (`FDSTORE=1` of sd_notify(3)). systemd passes them to the daemon as for socket activation (sd_listen_fds(3)), and the daemon
//! has them removed from the store, so that they close with it.
//!
//! Why not socket units: they would name the address a second time. systemd polls their sockets while the service is down, and the next
//! process event would start a daemon that was stopped.

use std::fs::File;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::net::{AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketType, sendmsg, sockopt};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use terrace_core::text::visible;
use terrace_linux::process_events::ProcessEvents;
use terrace_linux::sys::passed_sockets;

use crate::config::{Config, Events, Listen};
use crate::http;

/// Names of the sockets, also of FileDescriptorName= in a socket unit.
const METRICS: &str = "metrics";
const EVENTS: &str = "events";
/// How long an address may still belong to a daemon that was killed: systemd closes what it stored on another thread.
const STILL_CLOSING: Duration = Duration::from_secs(3);

/// Sockets that the service manager passed to the daemon.
#[derive(Debug, Default)]
pub struct Passed {
    /// For metrics.listen.
    pub metrics: Option<TcpListener>,
    /// The process connector, with the subscription made.
    pub events: Option<ProcessEvents>,
}

impl Passed {
    /// Takes them. Call it before anything else is opened.
    ///
    /// # Errors
    /// One of them has another name or is of another kind.
    pub fn receive() -> anyhow::Result<Passed> {
        let sockets = passed_sockets().context("the service manager's descriptors cannot be taken")?;
        if !sockets.is_empty() {
            // A manager that stored none, or none that listens, is no obstacle.
            let _ = forget_stored();
        }
        Passed::of(sockets)
    }

    fn of(sockets: Vec<(String, OwnedFd)>) -> anyhow::Result<Passed> {
        let mut passed = Passed::default();
        for (name, socket) in sockets {
            let twice = || format!("the service manager passed two sockets called {name}; one is expected");
            match name.as_str() {
                METRICS => {
                    let listener = listener(socket).context("the socket metrics, passed by the service manager")?;
                    anyhow::ensure!(passed.metrics.replace(listener).is_none(), twice());
                }
                EVENTS => {
                    let events =
                        ProcessEvents::passed(socket).context("the socket events, passed by the service manager")?;
                    anyhow::ensure!(passed.events.replace(events).is_none(), twice());
                }
                other => anyhow::bail!(
                    "the service manager passed a socket called {:?}; {METRICS} and {EVENTS} are known (FileDescriptorName= of a socket unit)",
                    visible(other)
                ),
            }
        }
        Ok(passed)
    }
}

fn listener(socket: OwnedFd) -> anyhow::Result<TcpListener> {
    let internet = matches!(sockopt::socket_domain(&socket)?, AddressFamily::INET | AddressFamily::INET6);
    let listens = sockopt::socket_type(&socket)? == SocketType::STREAM && sockopt::socket_acceptconn(&socket)?;
    anyhow::ensure!(internet && listens, "it is not a TCP socket that listens");
    Ok(TcpListener::from(socket))
}

/// Opens what the configuration needs of the machine's network, and gives it to systemd.
///
/// # Errors
/// systemd did not start this process, the network cannot be entered, or the configuration demands a socket that cannot be had.
pub fn hand_over(config: &Config) -> anyhow::Result<()> {
    anyhow::ensure!(
        std::env::var_os("NOTIFY_SOCKET").is_some(),
        "--hand-over is for ExecStartPre=+ of a systemd unit with NotifyAccess=exec and FileDescriptorStoreMax=2: NOTIFY_SOCKET is not set"
    );
    // What a daemon left behind that did not come so far as to receive it.
    forget_stored().context("systemd cannot be told")?;
    enter_network()
        .context("the machine's network cannot be entered: the unit needs ExecStartPre=+, with the plus sign")?;
    if let Listen::Tcp(address) = &config.listen {
        let until = Instant::now() + STILL_CLOSING;
        let listener = loop {
            match http::bind(*address) {
                Ok(listener) => break listener,
                Err(error) if Instant::now() > until || !in_use(&error) => return Err(error),
                Err(_) => std::thread::sleep(Duration::from_millis(100)),
            }
        };
        store(METRICS, listener.as_fd())?;
    }
    if config.events != Events::Poll {
        match ProcessEvents::open() {
            Ok(events) => store(EVENTS, events.fd())?,
            Err(reason) if config.events == Events::Netlink => anyhow::bail!("daemon.events = \"netlink\": {reason}"),
            Err(reason) => eprintln!("terraced: no process events, so /proc will be scanned: {reason}"),
        }
    }
    Ok(())
}

fn in_use(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::AddrInUse)
}

/// The network of the service manager, which started this process. PrivateNetwork= holds for ExecStartPre=+ too.
fn enter_network() -> io::Result<()> {
    let manager = rustix::process::getppid().map_or(1, |pid| pid.as_raw_nonzero().get());
    let host = File::open(format!("/proc/{manager}/ns/net"))?;
    let (host_is, own) = (host.metadata()?, std::fs::metadata("/proc/self/ns/net")?);
    if (host_is.dev(), host_is.ino()) != (own.dev(), own.ino()) {
        move_into_link_name_space(host.as_fd(), Some(LinkNameSpaceType::Network))?;
    }
    Ok(())
}

fn store(name: &str, socket: BorrowedFd<'_>) -> anyhow::Result<()> {
    notify(&format!("FDSTORE=1\nFDNAME={name}\n"), Some(socket))
        .with_context(|| format!("the socket {name} cannot be given to systemd"))
}

fn forget_stored() -> io::Result<()> {
    [METRICS, EVENTS].iter().try_for_each(|name| notify(&format!("FDSTOREREMOVE=1\nFDNAME={name}\n"), None))
}

/// A message of sd_notify(3), with a descriptor perhaps.
fn notify(text: &str, descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let Some(place) = std::env::var_os("NOTIFY_SOCKET") else { return Ok(()) };
    let address = match place.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(&place)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.connect_addr(&address)?;
    let descriptors: Vec<BorrowedFd<'_>> = descriptor.into_iter().collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(io::Error::other("no space for a descriptor"));
    }
    sendmsg(&socket, &[IoSlice::new(text.as_bytes())], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(name: &str, socket: impl Into<OwnedFd>) -> String {
        format!("{:#}", Passed::of(vec![(name.to_owned(), socket.into())]).unwrap_err())
    }

    #[test]
    fn a_socket_of_another_kind_or_name_is_refused() {
        let tcp = || TcpListener::bind("127.0.0.1:0").unwrap();
        let passed = Passed::of(vec![(METRICS.to_owned(), tcp().into())]).unwrap();
        assert!(passed.metrics.is_some() && passed.events.is_none());
        let (pair, _other) = UnixDatagram::pair().unwrap();
        assert!(refused(METRICS, pair).contains("not a TCP socket that listens"));
        let connected = std::net::TcpStream::connect(passed.metrics.unwrap().local_addr().unwrap()).unwrap();
        assert!(refused(METRICS, connected).contains("not a TCP socket that listens"));
        assert!(refused(EVENTS, tcp()).contains("not a socket of the process connector"));
        assert!(refused("terraced.socket", tcp()).contains("\"terraced.socket\"; metrics and events are known"));
        let two = vec![(METRICS.to_owned(), tcp().into()), (METRICS.to_owned(), tcp().into())];
        assert!(Passed::of(two).unwrap_err().to_string().contains("two sockets called metrics"));
    }
}
