//! The control socket: who may ask, how much, and how long an answer waits for a slow reader.
//!
//! In: connections. Out: answers. Must not: let one peer keep the others, or the loop, waiting; trust a peer beyond what the
//! kernel says of it.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use terrace_linux::processes::{group_id, is_member};

use crate::protocol::{Code, LONGEST_REQUEST, Response, Verb, parse};
use crate::shared::Shared;

/// Connections at once: each has a thread of 256 KiB of stack at most.
const CONNECTIONS: usize = 32;
const STACK: usize = 256 << 10;
/// A peer that says nothing for so long is let go.
const SILENCE: Duration = Duration::from_secs(120);
/// A peer that does not read for so long is let go: a slow reader costs a thread, nothing else.
const SLOW_READER: Duration = Duration::from_secs(5);
/// Requests a second of one connection, and how many at once. `terrace top` makes two a second.
const RATE: f64 = 100.0;
const BURST: f64 = 200.0;

/// The socket; its file is removed when it is dropped.
pub struct Control {
    path: PathBuf,
    inode: (u64, u64),
}

/// Who asks, as the kernel says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Peer {
    user: u32,
    group: u32,
}

/// Who may do what.
#[derive(Clone, Copy, Debug)]
struct Rights {
    owner: u32,
    readers: Option<u32>,
}

impl Rights {
    fn may(&self, peer: Peer, verb: &Verb) -> bool {
        let rules = peer.user == 0 || peer.user == self.owner;
        let reads = self.readers.is_some_and(|group| peer.group == group || is_member(peer.user, group));
        rules || (reads && !verb.changes())
    }
}

impl Control {
    /// Makes the socket and begins to serve it.
    ///
    /// # Errors
    /// When another daemon serves it, or it cannot be made.
    pub fn start(path: &Path, group: &str, shared: Arc<Shared>) -> anyhow::Result<Control> {
        let directory = path.parent().context("the socket's path has no directory")?;
        std::fs::create_dir_all(directory).with_context(|| format!("{}: cannot be made", directory.display()))?;
        if UnixStream::connect(path).is_ok() {
            anyhow::bail!(
                "{}: another terraced serves this socket; two must not manage the same machine",
                path.display()
            );
        }
        // Nobody answers, so it was left by one that was killed.
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("{}: cannot be replaced", path.display()));
            }
            _ => {}
        }
        let listener = UnixListener::bind(path).with_context(|| format!("{}: cannot be made", path.display()))?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o660))?;
        let readers = group_id(group);
        match readers {
            Some(number) => {
                if let Err(error) = chown(path, None, Some(number)) {
                    tracing::warn!(%error, group, "the socket cannot be given to the group; root alone may ask");
                }
            }
            None => tracing::info!(group, "there is no such group; root alone may use the socket"),
        }
        let metadata = std::fs::metadata(path)?;
        let rights = Rights { owner: rustix::process::geteuid().as_raw(), readers };
        std::thread::Builder::new()
            .name("control".to_owned())
            .stack_size(STACK)
            .spawn(move || accept(&listener, rights, &shared))
            .context("the thread of the control socket could not be started")?;
        Ok(Control { path: path.to_owned(), inode: (metadata.dev(), metadata.ino()) })
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        // Only our own: another daemon may have taken the path since.
        if std::fs::metadata(&self.path).is_ok_and(|there| (there.dev(), there.ino()) == self.inode) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn accept(listener: &UnixListener, rights: Rights, shared: &Arc<Shared>) {
    let open = Arc::new(AtomicUsize::new(0));
    for stream in listener.incoming() {
        let Ok(stream) = stream else {
            // Out of descriptors, most likely: those of others close in a while.
            std::thread::sleep(Duration::from_millis(100));
            continue;
        };
        if open.fetch_add(1, Ordering::SeqCst) >= CONNECTIONS {
            open.fetch_sub(1, Ordering::SeqCst);
            let refusal =
                Response::failed(Code::Busy, format!("{CONNECTIONS} connections are open already; try again later"));
            let _ = stream.set_nonblocking(true);
            let _ = (&stream).write(&refusal.line());
            continue;
        }
        let (shared, counted) = (Arc::clone(shared), Open(Arc::clone(&open)));
        let started = std::thread::Builder::new().name("peer".to_owned()).stack_size(STACK).spawn(move || {
            let _counted = counted;
            // A connection that breaks ends; there is nobody to tell.
            let _ = serve(&stream, rights, &shared);
        });
        if started.is_err() {
            tracing::warn!("no thread for a connection of the control socket");
        }
    }
}

/// Counts a connection out when it ends, however that happens.
struct Open(Arc<AtomicUsize>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

fn serve(stream: &UnixStream, rights: Rights, shared: &Shared) -> std::io::Result<()> {
    stream.set_read_timeout(Some(SILENCE))?;
    stream.set_write_timeout(Some(SLOW_READER))?;
    let credentials = rustix::net::sockopt::socket_peercred(stream)?;
    let peer = Peer { user: credentials.uid.as_raw(), group: credentials.gid.as_raw() };
    let mut reader = BufReader::new(stream);
    let mut writer = stream;
    let (mut tokens, mut filled) = (BURST, Instant::now());
    let mut line = Vec::new();
    loop {
        line.clear();
        let length = (&mut reader).take(LONGEST_REQUEST as u64).read_until(b'\n', &mut line)?;
        if length == 0 {
            return Ok(());
        }
        tokens = (tokens + filled.elapsed().as_secs_f64() * RATE).min(BURST) - 1.0;
        filled = Instant::now();
        if !line.ends_with(b"\n") && line.len() == LONGEST_REQUEST {
            let refusal = format!("a request has at most {LONGEST_REQUEST} bytes");
            return writer.write_all(&Response::failed(Code::Malformed, refusal).line());
        }
        if tokens < 0.0 {
            let refusal = format!("more than {RATE} requests a second; the connection ends here");
            return writer.write_all(&Response::failed(Code::Busy, refusal).line());
        }
        let response = match parse(&line) {
            Ok(verb) if rights.may(peer, &verb) => shared.answer(&verb).unwrap_or_else(|| shared.order(verb)),
            Ok(verb) => Response::failed(Code::Denied, denial(peer, &verb)),
            Err(response) => response,
        };
        writer.write_all(&response.line())?;
    }
}

fn denial(peer: Peer, verb: &Verb) -> String {
    let who =
        if verb.changes() { "root alone may change anything" } else { "root and the members of daemon.group may look" };
    format!("user {} may not: {who}", peer.user)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_group_looks_and_root_changes() {
        let rights = Rights { owner: 990, readers: Some(4_000_000) };
        let (status, pause) = (Verb::Status {}, Verb::Pause { class: None });
        let peer = |user, group| Peer { user, group };
        assert!(rights.may(peer(0, 0), &pause) && rights.may(peer(990, 990), &pause));
        assert!(rights.may(peer(12345, 4_000_000), &status) && !rights.may(peer(12345, 4_000_000), &pause));
        assert!(!rights.may(peer(12345, 12345), &status));
        assert!(!Rights { readers: None, ..rights }.may(peer(12345, 4_000_000), &status));
    }
}
