//! One thread that serves all connections of a listener: it reads complete requests and divides its connection slots fairly.
//!
//! In: a listening socket, and a [`Service`] that parses its requests. Out: answers. Must not: wait for a peer, use a thread per peer, or
//! let one user's connections keep out those of another user or of root.
//!
//! A connection is never refused for lack of a slot while another one of the same user is idle: the one that has waited longest for its
//! peer is closed instead. A user with a thousand open connections therefore holds one user's share, the newest ones. Root has slots of its
//! own. Peers over TCP cannot be identified, so they count as one user. A request that is complete when accepted, as nearly all on the
//! loopback interface are, is answered before another connection can take its slot.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::chown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::ioctl_fionbio;
use terrace_files::SocketFile;

use crate::rights::Peer;

/// Slots of root, and of all others together. A connection takes a few KiB.
const ROOT_PLACES: usize = 32;
const OTHER_PLACES: usize = 256;
/// Slots of one user other than root.
const USER_PLACES: usize = 16;
/// Connections accepted before the open ones get their turn.
const ACCEPTS: usize = 256;
/// Bytes read of one connection in one turn.
const PIECE: usize = 16 << 10;
/// Backlog of the listener: the kernel does not reject 1,000 simultaneous connections.
const BACKLOG: i32 = 4096;

/// The stack of a server's thread, in bytes: answers are built on the heap.
const STACK: usize = 512 << 10;

/// The result of parsing what has arrived.
pub(crate) enum Step {
    /// The request is incomplete.
    More,
    /// The answer; `last` closes the connection after it.
    Answer {
        /// Its bytes.
        bytes: Vec<u8>,
        /// Whether the connection ends with it.
        last: bool,
    },
    /// Another thread answers, and wakes the server then.
    Later(Receiver<Vec<u8>>),
}

/// Parses and answers requests.
pub(crate) trait Service: Send + 'static {
    /// State of a connection.
    type Memory: Default + Send;

    /// Takes a request from the start of the input, if it is complete.
    fn request(&mut self, received: &mut Vec<u8>, peer: Option<Peer>, memory: &mut Self::Memory) -> Step;

    /// The answer to a connection for which there is no slot.
    fn full(&self) -> Vec<u8>;

    /// The answer when another thread did not answer in time.
    fn late(&self) -> Vec<u8>;

    /// The TLS configuration.
    fn tls(&self) -> Option<Arc<rustls::ServerConfig>> {
        None
    }
}

/// Time limits of a server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// For the first byte of a request.
    pub(crate) silence: Duration,
    /// From the first byte of a request to its last.
    pub(crate) request: Duration,
    /// For another thread's answer.
    pub(crate) work: Duration,
    /// From the first byte of an answer to its last.
    pub(crate) answer: Duration,
}

/// A listening socket.
pub(crate) enum Listener {
    /// On an address.
    Tcp(TcpListener),
    /// At a path.
    Unix(UnixListener),
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Tcp(listener) => listener.as_fd(),
            Listener::Unix(listener) => listener.as_fd(),
        }
    }
}

/// Creates a Unix socket with a mode and, if given, a group.
///
/// # Errors
/// As [`terrace_files::bind`].
pub(crate) fn bind(path: &Path, mode: u32, group: Option<u32>) -> io::Result<(UnixListener, SocketFile)> {
    let bound = terrace_files::bind(path, mode)?;
    if let Some(group) = group
        && let Err(error) = chown(path, None, Some(group))
    {
        tracing::warn!(%error, path = %path.display(), group, "cannot set the group of the socket; only root can use it");
    }
    Ok(bound)
}

/// Serves a listener on a separate thread. Returns a socket that wakes the thread: other threads write a byte to it once an answer is
/// ready.
///
/// # Errors
/// The kernel has no socket pair or no thread.
pub(crate) fn start<S: Service>(
    name: &str,
    listener: Listener,
    service: S,
    backoff: Patience,
    (reader, waker): (UnixStream, Arc<UnixStream>),
) -> anyhow::Result<()> {
    ioctl_fionbio(&listener, true)?;
    rustix::net::listen(&listener, BACKLOG)?;
    let mut server = Server { listener, service, backoff, waker: reader, open: Vec::new(), places: Places::default() };
    let run = move || {
        // Held so that the pair lives as long as the thread.
        let _waker = waker;
        loop {
            server.turn();
        }
    };
    std::thread::Builder::new()
        .name(name.to_owned())
        .stack_size(STACK)
        .spawn(run)
        .with_context(|| format!("the thread {name} could not be started"))?;
    Ok(())
}

/// A socket pair by which other threads wake a server.
///
/// # Errors
/// The kernel has none.
pub(crate) fn waker() -> io::Result<(UnixStream, Arc<UnixStream>)> {
    let (reader, waker) = UnixStream::pair()?;
    reader.set_nonblocking(true)?;
    waker.set_nonblocking(true)?;
    Ok((reader, Arc::new(waker)))
}

/// The owner of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Owner {
    Root,
    User(u32),
    Unknown,
}

#[derive(Clone, Copy, Debug)]
struct Places {
    root: usize,
    user: usize,
    others: usize,
}

impl Default for Places {
    fn default() -> Places {
        Places { root: ROOT_PLACES, user: USER_PLACES, others: OTHER_PLACES }
    }
}

/// The facts about an open connection that decide which one is closed.
#[derive(Clone, Copy, Debug)]
struct Seat {
    owner: Owner,
    /// Whether only its peer delays it.
    waits: bool,
    since: Instant,
}

/// Which connection to close for one more of this owner.
enum CapacityView {
    Free,
    Instead(usize),
    None,
}

impl Places {
    fn room(&self, seats: &[Seat], owner: Owner) -> CapacityView {
        let count = |of: Owner| seats.iter().filter(|seat| seat.owner == of).count();
        let mine = count(owner);
        let from = match owner {
            Owner::Root if mine < self.root => return CapacityView::Free,
            Owner::Root => owner,
            Owner::User(_) if mine >= self.user => owner,
            _ if seats.iter().filter(|seat| seat.owner != Owner::Root).count() < self.others => {
                return CapacityView::Free;
            }
            // The user with the most slots gives one up.
            _ => {
                let mut holders: Vec<Owner> =
                    seats.iter().map(|seat| seat.owner).filter(|one| *one != Owner::Root).collect();
                holders.sort_unstable();
                holders.dedup();
                holders.into_iter().max_by_key(|one| count(*one)).unwrap_or(owner)
            }
        };
        let candidates = seats.iter().enumerate().filter(|(_, seat)| seat.owner == from && seat.waits);
        candidates
            .min_by_key(|(_, seat)| seat.since)
            .map_or(CapacityView::None, |(index, _)| CapacityView::Instead(index))
    }
}

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    fn io(&mut self) -> &mut dyn ReadWrite {
        match self {
            Stream::Tcp(stream) => stream,
            Stream::Unix(stream) => stream,
        }
    }
}

trait ReadWrite: Read + Write {}
impl<T: Read + Write> ReadWrite for T {}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Stream::Tcp(stream) => stream.as_fd(),
            Stream::Unix(stream) => stream.as_fd(),
        }
    }
}

enum Phase {
    /// Nothing of a request has arrived.
    Idle,
    /// Part of a request has arrived.
    Request,
    /// Another thread works on it.
    Work(Receiver<Vec<u8>>),
    /// An answer is being sent.
    Answer { last: bool },
}

struct Connection<M> {
    stream: Stream,
    tls: Option<Box<rustls::ServerConnection>>,
    owner: Owner,
    peer: Option<Peer>,
    phase: Phase,
    /// Start and deadline of the phase.
    since: Instant,
    end: Instant,
    received: Vec<u8>,
    answer: Vec<u8>,
    sent: usize,
    memory: M,
}

/// Whether a connection stays open.
#[derive(PartialEq)]
enum Fate {
    Open,
    /// It has more work at once, and yields to the others first.
    Again,
    Closed,
}

impl<M> Connection<M> {
    fn enter(&mut self, phase: Phase, backoff: &Patience) {
        let limit = match phase {
            Phase::Idle => backoff.silence,
            Phase::Request => backoff.request,
            Phase::Work(_) => backoff.work,
            Phase::Answer { .. } => backoff.answer,
        };
        self.phase = phase;
        self.since = Instant::now();
        self.end = self.since + limit;
    }

    fn say(&mut self, bytes: Vec<u8>, last: bool, backoff: &Patience) {
        (self.answer, self.sent) = (bytes, 0);
        if let Some(tls) = &mut self.tls {
            // Data written into it is encrypted and kept until it can be sent.
            tls.set_buffer_limit(None);
            let _ = tls.writer().write_all(&self.answer);
            self.answer.clear();
            if last {
                tls.send_close_notify();
            }
        }
        self.enter(Phase::Answer { last }, backoff);
    }

    /// Reads what is available. `Ok(0)` at end of file.
    fn fill(&mut self) -> io::Result<usize> {
        let mut piece = [0; PIECE];
        let Some(tls) = &mut self.tls else {
            let length = self.stream.io().read(&mut piece)?;
            self.received.extend_from_slice(&piece[..length]);
            return Ok(length);
        };
        match tls.reader().read(&mut piece) {
            Ok(length) => {
                self.received.extend_from_slice(&piece[..length]);
                return Ok(length);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        if tls.read_tls(&mut self.stream.io())? == 0 {
            return Ok(0);
        }
        let understood = tls.process_new_packets();
        while tls.wants_write() {
            tls.write_tls(&mut self.stream.io())?;
        }
        understood.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        // What arrived may be part of a TLS record.
        Err(io::ErrorKind::Interrupted.into())
    }

    /// Sends all of the answer; would block while some is left.
    fn flush(&mut self) -> io::Result<()> {
        while self.sent < self.answer.len() {
            let from = self.sent;
            match self.stream.io().write(&self.answer[from..])? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                length => self.sent += length,
            }
        }
        if let Some(tls) = &mut self.tls {
            while tls.wants_write() {
                tls.write_tls(&mut self.stream.io())?;
            }
        }
        Ok(())
    }

    /// Does what needs no waiting; at most one request.
    fn turn<S: Service<Memory = M>>(&mut self, service: &mut S, backoff: &Patience) -> Fate {
        loop {
            match &mut self.phase {
                Phase::Idle | Phase::Request => {
                    if !self.received.is_empty() {
                        match service.request(&mut self.received, self.peer, &mut self.memory) {
                            Step::More => {}
                            Step::Answer { bytes, last } => {
                                self.say(bytes, last, backoff);
                                continue;
                            }
                            Step::Later(answer) => {
                                self.enter(Phase::Work(answer), backoff);
                                return Fate::Open;
                            }
                        }
                        if matches!(self.phase, Phase::Idle) {
                            self.enter(Phase::Request, backoff);
                        }
                    }
                    match self.fill() {
                        Ok(0) => return Fate::Closed,
                        Ok(_) => {}
                        Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Fate::Open,
                        Err(_) => return Fate::Closed,
                    }
                }
                Phase::Work(answer) => match answer.try_recv() {
                    Ok(bytes) => self.say(bytes, false, backoff),
                    Err(TryRecvError::Empty) if Instant::now() < self.end => return Fate::Open,
                    Err(_) => {
                        let bytes = service.late();
                        self.say(bytes, false, backoff);
                    }
                },
                Phase::Answer { last } => {
                    let last = *last;
                    match self.flush() {
                        Ok(_) if last => return Fate::Closed,
                        Ok(_) => {
                            self.answer = Vec::new();
                            self.enter(Phase::Idle, backoff);
                            // Others get their turn first, even if another request is ready.
                            return Fate::Again;
                        }
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Fate::Open,
                        Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                        Err(_) => return Fate::Closed,
                    }
                }
            }
        }
    }

    fn seat(&self) -> Seat {
        Seat { owner: self.owner, waits: !matches!(self.phase, Phase::Work(_)), since: self.since }
    }

    fn wants(&self) -> PollFlags {
        let mut flags = match self.phase {
            Phase::Idle | Phase::Request => PollFlags::IN,
            Phase::Work(_) => PollFlags::empty(),
            Phase::Answer { .. } => PollFlags::OUT,
        };
        if self.tls.as_ref().is_some_and(|tls| tls.wants_write()) {
            flags |= PollFlags::OUT;
        }
        flags
    }
}

struct Server<S: Service> {
    listener: Listener,
    service: S,
    backoff: Patience,
    waker: UnixStream,
    open: Vec<Connection<S::Memory>>,
    places: Places,
}

impl<S: Service> Server<S> {
    fn turn(&mut self) {
        let mut sink = [0; 64];
        while (&self.waker).read(&mut sink).is_ok_and(|count| count > 0) {}
        let accepted_all = self.accept();
        let now = Instant::now();
        let mut again = !accepted_all;
        // Root first: the others get the remaining time.
        for roots in [true, false] {
            let (service, backoff) = (&mut self.service, &self.backoff);
            self.open.retain_mut(|connection| {
                if (connection.owner == Owner::Root) != roots {
                    return true;
                }
                let over = connection.end <= now && !matches!(connection.phase, Phase::Work(_));
                match if over { Fate::Closed } else { connection.turn(service, backoff) } {
                    Fate::Closed => false,
                    Fate::Open => true,
                    Fate::Again => {
                        again |= !connection.received.is_empty();
                        true
                    }
                }
            });
        }
        if !again {
            self.wait();
        }
    }

    fn wait(&self) {
        let now = Instant::now();
        let mut fds = vec![PollFd::new(&self.listener, PollFlags::IN), PollFd::new(&self.waker, PollFlags::IN)];
        // Leave out a connection that another thread works for: poll would report its closed peer over and over.
        let waiting = self.open.iter().filter(|connection| !matches!(connection.phase, Phase::Work(_)));
        fds.extend(waiting.map(|connection| PollFd::new(&connection.stream, connection.wants())));
        let ends = self.open.iter().map(|connection| connection.end.saturating_duration_since(now));
        // One millisecond extra, so that the deadline has passed when it is checked.
        let timeout = ends.min().map(|left| {
            let left = left + Duration::from_millis(1);
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) }
        });
        let _ = poll(&mut fds, timeout.as_ref());
    }

    /// Accepts waiting connections. Returns whether none is left.
    fn accept(&mut self) -> bool {
        for _ in 0..ACCEPTS {
            let accepted = match &self.listener {
                Listener::Tcp(listener) => listener.accept().map(|(stream, _)| Stream::Tcp(stream)),
                Listener::Unix(listener) => listener.accept().map(|(stream, _)| Stream::Unix(stream)),
            };
            match accepted {
                Ok(stream) => self.admit(stream),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                // A peer that disconnected while it waited is not an error.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(_) => {
                    // Most likely out of descriptors: pause, or this would repeat at once.
                    std::thread::sleep(Duration::from_millis(20));
                    return true;
                }
            }
        }
        false
    }

    fn admit(&mut self, stream: Stream) {
        let peer = match &stream {
            Stream::Tcp(_) => None,
            Stream::Unix(stream) => {
                // Without credentials a peer is unknown and gets nothing.
                let Ok(one) = rustix::net::sockopt::socket_peercred(stream) else { return };
                Some(Peer { user: one.uid.as_raw(), group: one.gid.as_raw() })
            }
        };
        if ioctl_fionbio(&stream, true).is_err() {
            return;
        }
        let owner = match peer {
            Some(Peer { user: 0, .. }) => Owner::Root,
            Some(Peer { user, .. }) => Owner::User(user),
            None => Owner::Unknown,
        };
        let tls = match self.service.tls().map(rustls::ServerConnection::new).transpose() {
            Ok(tls) => tls.map(Box::new),
            Err(_) => return,
        };
        let seats: Vec<Seat> = self.open.iter().map(Connection::seat).collect();
        match self.places.room(&seats, owner) {
            CapacityView::Free => {}
            CapacityView::Instead(index) => drop(self.open.swap_remove(index)),
            CapacityView::None => {
                let mut stream = stream;
                if tls.is_none() {
                    let _ = stream.io().write(&self.service.full());
                }
                return;
            }
        }
        let now = Instant::now();
        let mut connection = Connection {
            stream,
            tls,
            owner,
            peer,
            phase: Phase::Idle,
            since: now,
            end: now + self.backoff.silence,
            received: Vec::new(),
            answer: Vec::new(),
            sent: 0,
            memory: S::Memory::default(),
        };
        // Answer a request that came with the connection before accepting the next.
        if connection.turn(&mut self.service, &self.backoff) != Fate::Closed {
            self.open.push(connection);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    /// Echoes lines; the other thread never answers `late`.
    struct Echo(Vec<std::sync::mpsc::Sender<Vec<u8>>>);

    impl Service for Echo {
        type Memory = ();

        fn request(&mut self, received: &mut Vec<u8>, _: Option<Peer>, (): &mut ()) -> Step {
            let Some(end) = received.iter().position(|byte| *byte == b'\n') else { return Step::More };
            let bytes: Vec<u8> = received.drain(..=end).collect();
            if bytes == b"late\n" {
                let (sender, answer) = std::sync::mpsc::channel();
                self.0.push(sender);
                return Step::Later(answer);
            }
            Step::Answer { last: bytes == b"last\n", bytes }
        }

        fn full(&self) -> Vec<u8> {
            b"full\n".to_vec()
        }

        fn late(&self) -> Vec<u8> {
            b"too late\n".to_vec()
        }
    }

    fn serve(place: &Path, backoff: Patience) -> (PathBuf, SocketFile) {
        let path = place.join("socket");
        let (listener, file) = bind(&path, 0o600, None).unwrap();
        start("echo", Listener::Unix(listener), Echo(Vec::new()), backoff, waker().unwrap()).unwrap();
        (path, file)
    }

    const SHORT: Duration = Duration::from_millis(200);
    const LONG: Duration = Duration::from_secs(60);
    const PATIENT: Patience = Patience { silence: LONG, request: LONG, work: LONG, answer: LONG };

    fn ask(path: &Path, text: &str) -> String {
        let mut stream = UnixStream::connect(path).unwrap();
        stream.write_all(text.as_bytes()).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut told = String::new();
        stream.read_to_string(&mut told).unwrap();
        told
    }

    #[test]
    fn lines_are_answered_in_order_however_they_arrive() {
        let place = tempfile::tempdir().unwrap();
        let (path, _file) = serve(place.path(), PATIENT);
        assert_eq!(ask(&path, "one\ntwo\nlast\nnever\n"), "one\ntwo\nlast\n");
        let mut stream = UnixStream::connect(&path).unwrap();
        for byte in b"slow\n" {
            stream.write_all(&[*byte]).unwrap();
        }
        let mut told = [0; 5];
        stream.read_exact(&mut told).unwrap();
        assert_eq!(&told, b"slow\n");
        // An answer that the kernel cannot take at once.
        let long = format!("{}\n", "x".repeat(4 << 20));
        let writer = stream.try_clone().unwrap();
        let sent = long.clone();
        let thread = std::thread::spawn(move || (&writer).write_all(sent.as_bytes()).unwrap());
        let mut told = vec![0; long.len()];
        stream.read_exact(&mut told).unwrap();
        thread.join().unwrap();
        assert!(told == long.as_bytes());
    }

    #[test]
    fn half_a_request_silence_and_work_that_does_not_end_are_ended() {
        for (backoff, text, expected) in [
            (Patience { silence: SHORT, ..PATIENT }, "", ""),
            (Patience { request: SHORT, ..PATIENT }, "half", ""),
            (Patience { work: SHORT, silence: SHORT, ..PATIENT }, "late\n", "too late\n"),
        ] {
            let place = tempfile::tempdir().unwrap();
            let (path, _file) = serve(place.path(), backoff);
            let mut stream = UnixStream::connect(path).unwrap();
            stream.write_all(text.as_bytes()).unwrap();
            let mut told = String::new();
            stream.set_read_timeout(Some(LONG)).unwrap();
            stream.read_to_string(&mut told).unwrap();
            assert_eq!(told, expected, "{text:?}");
        }
    }

    #[test]
    fn a_place_is_taken_from_the_user_who_holds_most_and_never_from_root() {
        let began = Instant::now();
        let seat = |owner, waits, after| Seat { owner, waits, since: began + Duration::from_secs(after) };
        let places = Places { root: 2, user: 3, others: 5 };
        let room = |seats: &[Seat], owner| match places.room(seats, owner) {
            CapacityView::Free => "free".to_owned(),
            CapacityView::Instead(index) => index.to_string(),
            CapacityView::None => "none".to_owned(),
        };
        let (one, other) = (Owner::User(1), Owner::User(2));
        let mut seats = vec![seat(one, true, 3), seat(one, true, 1), seat(one, false, 0)];
        assert_eq!(room(&seats, one), "1", "the one of its own that has waited longest for its peer");
        assert_eq!(room(&seats, other), "free");
        seats.extend([seat(other, true, 0), seat(other, true, 0)]);
        assert_eq!(room(&seats, Owner::User(3)), "1", "all are taken: of the user who holds most");
        assert_eq!(room(&seats, Owner::Unknown), "1");
        assert_eq!(room(&seats, Owner::Root), "free", "others take none of root's");
        let busy = vec![seat(one, false, 0); 3];
        assert_eq!(room(&busy, one), "none", "what is being worked on is not thrown away");
        let roots = vec![seat(Owner::Root, true, 2), seat(Owner::Root, true, 1)];
        assert_eq!((room(&roots, Owner::Root), room(&roots, one)), ("1".to_owned(), "free".to_owned()));
        let unknown = vec![seat(Owner::Unknown, true, 0); 5];
        assert_eq!((room(&unknown, Owner::Unknown), room(&unknown, Owner::Root)), ("0".to_owned(), "free".to_owned()));
    }

    #[test]
    fn idle_connections_of_one_user_keep_none_of_its_own_out() {
        let place = tempfile::tempdir().unwrap();
        let (path, _file) = serve(place.path(), PATIENT);
        let idle: Vec<UnixStream> = (0..1000).map(|_| UnixStream::connect(&path).unwrap()).collect();
        assert_eq!(ask(&path, "last\n"), "last\n");
        drop(idle);
    }
}
