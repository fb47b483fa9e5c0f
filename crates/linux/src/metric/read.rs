//! One reading of a number that somebody else writes: a file, what a command prints, a page, redis.
//!
//! In: a [`Metric`]. Out: the number, or what was wrong in one line. Must not: take longer than [`DEADLINE`], keep more than [`LONGEST`] bytes, or
//! leave a command running, whatever it starts in its group.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType};
use rustix::process::{Pid, Signal, kill_process_group};
use terrace_core::text::visible;

use super::{Metric, Source};
use crate::helpers;

/// A reading that takes longer has failed: windows are seconds long at least, and a figure that comes late belongs to another one.
pub const DEADLINE: Duration = Duration::from_secs(5);
/// The most bytes of an answer; pages of Prometheus have some hundred KiB.
pub const LONGEST: u64 = 4 << 20;
/// Letters of an answer that are shown.
const SHOWN: usize = 40;

/// Why there is no number.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// It could not be read at all.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// This process may open no Internet socket.
    #[error(
        "the service has no network: put /usr/share/terrace/systemd/network.conf into /etc/systemd/system/terraced.service.d, then \
         systemctl daemon-reload and restart"
    )]
    NoNetwork,
    /// A command failed.
    #[error("the command {0}")]
    Command(String),
    /// No answer in time.
    #[error("no answer within {} s", DEADLINE.as_secs())]
    Late,
    /// The other side refused.
    #[error("answered {0:?}")]
    Refused(String),
    /// The answer has no such name.
    #[error("no number called {0:?} in the answer")]
    NoName(String),
    /// The answer is not a number.
    #[error("{0:?} is not a number; name one of several with #NAME")]
    NotANumber(String),
    /// The number cannot be a measure of speed.
    #[error("{0} is no measure: expected a number that is not negative")]
    Senseless(f64),
    /// Not a source that is read in this way.
    #[error("it is counted by the kernel, not read")]
    Own,
}

/// Reads a metric that somebody else writes.
///
/// # Errors
/// See [`ReadError`].
pub fn read(metric: &Metric) -> Result<f64, ReadError> {
    let until = Instant::now() + DEADLINE;
    let text = match &metric.source {
        Source::Instructions | Source::Processor | Source::Auto => return Err(ReadError::Own),
        Source::File(path) => lossy(&terrace_files::read(path, LONGEST)?),
        Source::Command(words) => {
            // Ends by itself even if Terrace is killed meanwhile.
            let limit = (DEADLINE + Duration::from_secs(2)).as_secs().to_string();
            run(Command::new("timeout").args(["-k", "1", &limit, "sh", "-c", words]), until)?
        }
        Source::Page { authority: Some(authority), path, .. } => page(authority, path, until)?,
        Source::Page { url, .. } => {
            let limit = DEADLINE.as_secs().to_string();
            run(Command::new("curl").args(["-fsS", "--max-time", &limit, "--", url]), until)?
        }
        Source::Redis { authority } => redis(authority, until)?,
    };
    let number = match &metric.name {
        Some(name) => named(&text, name)?,
        None => match text.trim().parse() {
            Ok(number) => number,
            Err(_) => return Err(ReadError::NotANumber(shown(&text))),
        },
    };
    if (0.0..f64::INFINITY).contains(&number) { Ok(number) } else { Err(ReadError::Senseless(number)) }
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The beginning of an answer, for a message.
fn shown(text: &str) -> String {
    let line = text.trim().lines().next().unwrap_or_default();
    let cut: String = line.chars().take(SHOWN).collect();
    visible(&cut).into_owned()
}

/// The number behind a name, as Prometheus (`name{labels} 3`), redis (`name:3`) and others (`name 3`, `name=3`) write it; the sum of all with this
/// name.
fn named(text: &str, name: &str) -> Result<f64, ReadError> {
    let mut sum = None;
    for line in text.lines() {
        let Some(rest) = line.trim_start().strip_prefix(name) else { continue };
        let rest = match rest.strip_prefix('{') {
            // Values of labels may hold braces; the number is behind the last one.
            Some(labels) => labels.rsplit_once('}').map_or("", |(_, rest)| rest),
            None if rest.starts_with([' ', '\t', ':', '=']) => &rest[1..],
            None => continue,
        };
        let word = rest.split_ascii_whitespace().next().unwrap_or_default();
        let number: f64 = word.parse().map_err(|_| ReadError::NotANumber(shown(rest)))?;
        sum = Some(sum.unwrap_or(0.0) + number);
    }
    sum.ok_or_else(|| ReadError::NoName(name.to_owned()))
}

/// What a command prints; it and its group are gone afterwards.
fn run(command: &mut Command, until: Instant) -> Result<String, ReadError> {
    let name = command.get_program().to_string_lossy().into_owned();
    let started = helpers::spawn(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()));
    let child = started.map_err(|error| ReadError::Command(format!("could not be started: {name}: {error}")))?;
    let mut group = Group(child);
    let (mut out, mut complaint) = (Vec::new(), Vec::new());
    if let (Some(stdout), Some(stderr)) = (group.0.stdout.take(), group.0.stderr.take()) {
        collect(stdout, stderr, until, &mut out, &mut complaint)?;
    }
    let status = loop {
        if let Some(status) = group.0.try_wait()? {
            break status;
        }
        if Instant::now() >= until {
            return Err(ReadError::Late);
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    if status.success() {
        return Ok(lossy(&out));
    }
    let complaint = lossy(&complaint);
    let reason = complaint.trim().lines().next().map(|line| format!(": {}", visible(line))).unwrap_or_default();
    Err(ReadError::Command(match status.code() {
        Some(code) => format!("failed with code {code}{reason}"),
        None => format!("ended by a signal ({status}){reason}"),
    }))
}

/// Reads both pipes until they end, the group's time is up, or there is too much.
fn collect(
    mut stdout: impl Read + AsFd,
    mut stderr: impl Read + AsFd,
    until: Instant,
    out: &mut Vec<u8>,
    complaint: &mut Vec<u8>,
) -> Result<(), ReadError> {
    let (mut speaks, mut complains) = (true, true);
    while speaks || complains {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ReadError::Late);
        }
        let mut fds = Vec::with_capacity(2);
        fds.extend(speaks.then(|| PollFd::from_borrowed_fd(stdout.as_fd(), PollFlags::IN)));
        fds.extend(complains.then(|| PollFd::from_borrowed_fd(stderr.as_fd(), PollFlags::IN)));
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(io::Error::from(error).into()),
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(fds);
        let (out_ready, complaint_ready) = (speaks && ready[0], complains && ready.last().is_some_and(|ready| *ready));
        let mut chunk = [0; 4096];
        if out_ready {
            let count = stdout.read(&mut chunk)?;
            speaks = count > 0;
            out.extend_from_slice(&chunk[..count]);
        }
        if complaint_ready {
            let count = stderr.read(&mut chunk)?;
            complains = count > 0;
            complaint.extend_from_slice(&chunk[..count]);
        }
        if (out.len() + complaint.len()) as u64 > LONGEST {
            return Err(ReadError::Command(format!("printed more than {} MiB", LONGEST >> 20)));
        }
    }
    Ok(())
}

/// A command with all it started in its group: killed and waited for when dropped.
struct Group(Child);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = Pid::from_raw(self.0.id() as i32) {
            // Nobody is left where the command ended properly.
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.0.wait();
    }
}

fn connect(authority: &str, until: Instant) -> Result<TcpStream, ReadError> {
    connect_to(authority, until).map_err(|error| if internet_is_forbidden() { ReadError::NoNetwork } else { error })
}

/// As RestrictAddressFamilies= of systemd forbids it: names are not resolved then, and connecting fails.
fn internet_is_forbidden() -> bool {
    rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).err() == Some(Errno::AFNOSUPPORT)
}

fn connect_to(authority: &str, until: Instant) -> Result<TcpStream, ReadError> {
    let mut last = ReadError::Io(io::Error::new(io::ErrorKind::NotFound, "the host has no address"));
    for address in authority.to_socket_addrs()? {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ReadError::Late);
        }
        match TcpStream::connect_timeout(&address, left) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = late(error),
        }
    }
    Err(last)
}

fn late(error: io::Error) -> ReadError {
    match error.kind() {
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => ReadError::Late,
        _ => error.into(),
    }
}

/// Reads some more of an answer; nothing if it ended.
fn more(stream: &mut TcpStream, into: &mut Vec<u8>, until: Instant) -> Result<bool, ReadError> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(ReadError::Late);
    }
    stream.set_read_timeout(Some(left))?;
    let mut chunk = [0; 16384];
    let count = stream.read(&mut chunk).map_err(late)?;
    into.extend_from_slice(&chunk[..count]);
    if into.len() as u64 > LONGEST {
        return Err(ReadError::Refused(format!("more than {} MiB", LONGEST >> 20)));
    }
    Ok(count > 0)
}

/// The body of a page, by HTTP/1.0 (RFC 1945): the server closes the connection at its end.
fn page(authority: &str, path: &str, until: Instant) -> Result<String, ReadError> {
    let request =
        format!("GET {path} HTTP/1.0\r\nHost: {authority}\r\nUser-Agent: terrace\r\nAccept: text/plain\r\n\r\n");
    let mut stream = connect(authority, until)?;
    stream.set_write_timeout(Some(DEADLINE))?;
    stream.write_all(request.as_bytes()).map_err(late)?;
    let mut answer = Vec::new();
    while more(&mut stream, &mut answer, until)? {}
    let answer = lossy(&answer);
    let refuse = || ReadError::Refused(shown(&answer));
    let (head, body) = answer.split_once("\r\n\r\n").or_else(|| answer.split_once("\n\n")).ok_or_else(refuse)?;
    let mut status = head.lines().next().unwrap_or_default().split(' ');
    if !status.next().is_some_and(|version| version.starts_with("HTTP/1.")) || status.next() != Some("200") {
        return Err(refuse());
    }
    if head.to_ascii_lowercase().contains("transfer-encoding: chunked") {
        return Err(ReadError::Refused("in chunks, which HTTP/1.0 has not; use command:curl".to_owned()));
    }
    Ok(body.to_owned())
}

/// What a redis server says to INFO, a bulk string of its protocol (redis.io, RESP).
fn redis(authority: &str, until: Instant) -> Result<String, ReadError> {
    let mut stream = connect(authority, until)?;
    stream.set_write_timeout(Some(DEADLINE))?;
    stream.write_all(b"*1\r\n$4\r\nINFO\r\n").map_err(late)?;
    let mut answer = Vec::new();
    loop {
        let open = more(&mut stream, &mut answer, until)?;
        if let Some(end) = answer.iter().position(|byte| *byte == b'\n') {
            let head = lossy(&answer[..end]);
            let length: usize = match head.trim().strip_prefix('$').map(str::parse) {
                Some(Ok(length)) if (length as u64) < LONGEST => length,
                _ => return Err(ReadError::Refused(shown(&head))),
            };
            if answer.len() >= end + 1 + length {
                return Ok(lossy(&answer[end + 1..end + 1 + length]));
            }
        }
        if !open {
            return Err(ReadError::Refused(shown(&lossy(&answer))));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn of(text: &str) -> Result<f64, ReadError> {
        read(&text.parse().unwrap())
    }

    /// Serves one connection: waits for a request, then answers.
    fn serve(answer: &'static [u8]) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 1024];
            let _ = stream.read(&mut request);
            stream.write_all(answer).unwrap();
        });
        address.to_string()
    }

    #[test]
    fn numbers_come_from_files_commands_pages_and_redis() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("done");
        std::fs::write(&file, "1234.5\n").unwrap();
        assert_eq!(of(&format!("file:{}", file.display())).unwrap(), 1234.5);
        std::fs::write(&file, "# HELP r x\nr{a=\"}\"} 3 1700\nr_total 9\nr 4\n").unwrap();
        assert_eq!(of(&format!("file:{}#r", file.display())).unwrap(), 7.0, "all series of the name, and no other");
        assert_eq!(of("command:echo 40; echo of no interest >&2").unwrap(), 40.0);
        let page = serve(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\nrequests 12\n");
        assert_eq!(of(&format!("http://{page}/metrics#requests")).unwrap(), 12.0);
        let redis = serve(b"$46\r\n# Stats\r\ntotal_commands_processed:77\r\nother:1\r\n\r\n");
        assert_eq!(of(&format!("redis://{redis}")).unwrap(), 77.0);
    }

    #[test]
    fn what_fails_says_so_in_one_line() {
        let folder = tempfile::tempdir().unwrap();
        let nonsense = folder.path().join("nonsense");
        std::fs::write(&nonsense, "three\x1b[31m\napples\n").unwrap();
        let (nonsense, page) = (nonsense.display(), serve(b"HTTP/1.0 404 Not Found\r\n\r\nno\n"));
        let redis = serve(b"-NOAUTH Authentication required.\r\n");
        let unused = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        for (text, says) in [
            (format!("file:{nonsense}"), "is not a number"),
            (format!("file:{nonsense}#pears"), "no number called \"pears\""),
            ("file:/no/such".to_owned(), "No such file"),
            ("file:/dev/zero".to_owned(), "a character device"),
            ("command:echo no such table >&2; exit 3".to_owned(), "failed with code 3: no such table"),
            ("command:kill -9 $$".to_owned(), "ended by a signal"),
            ("command:true".to_owned(), "\"\" is not a number"),
            ("command:echo -5".to_owned(), "-5 is no measure"),
            ("command:echo nan".to_owned(), "NaN is no measure"),
            ("command:yes".to_owned(), "printed more than"),
            (format!("http://{page}/"), "404 Not Found"),
            (format!("redis://{redis}"), "NOAUTH"),
            (format!("redis://{unused}"), "refused"),
        ] {
            let error = of(&text).unwrap_err().to_string();
            assert!(error.contains(says) && !error.contains(['\n', '\x1b']), "{text}: {error}");
        }
    }

    #[test]
    fn a_command_that_hangs_is_ended_with_all_it_started() {
        let folder = tempfile::tempdir().unwrap();
        let pids = folder.path().join("pids");
        let began = Instant::now();
        let words = format!("command:sleep 300 & echo $! > {0}; echo $$ >> {0}; wait", pids.display());
        let error = of(&words).unwrap_err().to_string();
        assert!(error.contains("no answer within 5 s") && began.elapsed() < DEADLINE * 2, "{error}");
        let text = std::fs::read_to_string(&pids).unwrap();
        assert_eq!(text.lines().count(), 2);
        let lives = |pid: &str| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            // A process that nobody waited for yet has ended all the same.
            !stat.is_empty() && !stat.contains(") Z ")
        };
        let gone = Instant::now() + Duration::from_secs(10);
        while text.lines().any(lives) {
            assert!(Instant::now() < gone, "still there: {text}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
