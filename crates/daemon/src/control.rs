//! The control socket: rights and limits of requests.
//!
//! In: connections. Out: answers. Must not: let one peer block the others or the loop, or trust a peer beyond its kernel credentials and
//! its token.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use terrace_files::SocketFile;
use terrace_linux::processes::group_id;

use crate::access::Keys;
use crate::protocol::{Code, LONGEST_REQUEST, Request, Response, Verb, parse};
use crate::rights::{Peer, Right, Rules};
use crate::serve::{self, Listener, Patience, Service, Step};
use crate::shared::{Reply, Shared};

/// A request must be complete, and an answer read, within five seconds. The loop may be busy with a scan or with moves for longer, and
/// `terrace top` may be stopped in a terminal for two minutes.
const PATIENCE: Patience = Patience {
    silence: Duration::from_secs(120),
    request: Duration::from_secs(5),
    work: Duration::from_secs(25),
    answer: Duration::from_secs(5),
};
/// Requests per second of one connection, and the largest burst. `terrace top` sends two per second.
const RATE: f64 = 100.0;
const BURST: f64 = 200.0;

/// The socket. Dropping it removes its file.
pub struct Control {
    _file: SocketFile,
}

impl Control {
    /// Creates the socket and starts to serve it.
    ///
    /// # Errors
    /// Another daemon serves it, or it cannot be created.
    pub fn start(path: &Path, mode: u32, group: &str, keys: Arc<Keys>, shared: Arc<Shared>) -> anyhow::Result<Control> {
        let directory = path.parent().context("the socket's path has no directory")?;
        std::fs::create_dir_all(directory).with_context(|| format!("{}: cannot be created", directory.display()))?;
        let readers = group_id(group);
        if readers.is_none() {
            tracing::info!(group, "the group does not exist, so it gives no rights");
        }
        let (listener, file) = serve::bind(path, mode, readers).map_err(|error| match error.kind() {
            std::io::ErrorKind::AddrInUse => anyhow::anyhow!(
                "{}: another terraced serves this socket; two must not manage the same machine",
                path.display()
            ),
            _ => anyhow::Error::new(error).context(format!("daemon.socket = \"{}\"", path.display())),
        })?;
        let (reader, waker) = serve::waker()?;
        let desk = Desk { shared, keys, waker: Arc::clone(&waker) };
        serve::start("control", Listener::Unix(listener), desk, PATIENCE, (reader, waker))?;
        Ok(Control { _file: file })
    }
}

/// Answers the lines of all connections.
struct Desk {
    shared: Arc<Shared>,
    keys: Arc<Keys>,
    waker: Arc<std::os::unix::net::UnixStream>,
}

/// What remains of a connection's allowance of requests.
struct Allowance {
    requests: f64,
    at: Instant,
}

impl Default for Allowance {
    fn default() -> Allowance {
        Allowance { requests: BURST, at: Instant::now() }
    }
}

impl Service for Desk {
    type Memory = Allowance;

    fn request(&mut self, received: &mut Vec<u8>, peer: Option<Peer>, allowance: &mut Allowance) -> Step {
        let last = |code, text: String| Step::Answer { bytes: Response::failed(code, text).line(), last: true };
        let line: Vec<u8> = match received.iter().take(LONGEST_REQUEST).position(|byte| *byte == b'\n') {
            Some(end) => received.drain(..=end).collect(),
            None if received.len() >= LONGEST_REQUEST => {
                return last(Code::Malformed, format!("a request has at most {LONGEST_REQUEST} bytes"));
            }
            None => return Step::More,
        };
        let passed = allowance.at.elapsed().as_secs_f64();
        *allowance = Allowance { requests: (allowance.requests + passed * RATE).min(BURST) - 1.0, at: Instant::now() };
        if allowance.requests < 0.0 {
            return last(Code::Busy, format!("more than {RATE} requests a second; the connection ends here"));
        }
        let Request { verb, token, .. } = match parse(&line) {
            Ok(request) => request,
            Err(response) => return Step::Answer { bytes: response.line(), last: false },
        };
        if let Some(response) = refusal(&self.keys.now().rules, peer, token.as_deref(), &verb) {
            return Step::Answer { bytes: response.line(), last: false };
        }
        match self.shared.answer(&verb) {
            Some(response) => Step::Answer { bytes: response.line(), last: false },
            None => {
                let (sender, answer) = std::sync::mpsc::channel();
                let reply = Reply::new(sender, Arc::clone(&self.waker));
                match self.shared.order(verb, reply) {
                    Ok(()) => Step::Later(answer),
                    Err(response) => Step::Answer { bytes: response.line(), last: false },
                }
            }
        }
    }

    fn full(&self) -> Vec<u8> {
        Response::failed(Code::Busy, "all connections of your user are busy; try again later").line()
    }

    fn late(&self) -> Vec<u8> {
        let text = match self.shared.heartbeat.overdue() {
            Some(age) => {
                format!("the daemon's loop has not turned for {} s: see its log, and restart it", age.as_secs())
            }
            None => "the daemon is busy and has not answered; try again".to_owned(),
        };
        Response::failed(Code::Busy, text).line()
    }
}

/// Why a verb is refused, if it is.
fn refusal(rules: &Rules, peer: Option<Peer>, token: Option<&str>, verb: &Verb) -> Option<Response> {
    let (has, needs) = (rules.right_here(peer, token.map(str::as_bytes)), verb.needs());
    if has >= needs {
        return None;
    }
    let who = peer.map_or_else(|| "you".to_owned(), |peer| format!("user {}", peer.user));
    let how = match needs {
        Right::Alive | Right::Metrics | Right::Read => {
            "root, the members of daemon.group and those in access.read may read"
        }
        Right::Operate => "root and those in access.operate may pause, resume, drain and wake",
        Right::Admin => "root and those in access.admin may change the configuration",
    };
    Some(Response::failed(Code::Denied, format!("{who} has the right {has}, and this needs {needs}: {how}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rights::Grants;

    /// One of every verb. Enter a new verb here, with the right it needs.
    fn verbs() -> Vec<(Verb, Right)> {
        let class = || "web".to_owned();
        vec![
            (Verb::Hello {}, Right::Metrics),
            (Verb::Status {}, Right::Read),
            (Verb::History { after: 0, limit: None, class: None }, Right::Read),
            (Verb::Timeline {}, Right::Read),
            (Verb::Heat { class: class() }, Right::Read),
            (Verb::Bins { class: class() }, Right::Read),
            (Verb::Sizing { class: class() }, Right::Read),
            (Verb::Explain { pid: 1, address: None }, Right::Read),
            (Verb::Pause { class: None }, Right::Operate),
            (Verb::Resume { class: None }, Right::Operate),
            (Verb::Drain { class: None }, Right::Operate),
            (Verb::Wake { class: None, pid: Some(1) }, Right::Operate),
            (Verb::Reload {}, Right::Admin),
            (Verb::Set { key: "budget.cpu".to_owned(), value: "1%".to_owned() }, Right::Admin),
        ]
    }

    #[test]
    fn every_verb_is_for_those_who_have_its_right_and_for_nobody_else() {
        let mut rules = Rules::from_grants(&Grants::default()).unwrap();
        rules.grant_group(Right::Read, 4_000_000);
        rules.grant_group(Right::Operate, 4_000_001);
        rules.grant_group(Right::Admin, 4_000_002);
        rules.grant_token(Right::Operate, b"operators".to_vec());
        let peer = |user, group| Some(Peer { user, group });
        for (verb, right) in verbs() {
            let may = |peer, token| refusal(&rules, peer, token, &verb).is_none();
            assert_eq!(verb.needs(), right, "{verb:?}");
            assert!(may(peer(0, 0), None) && may(peer(12345, 4_000_002), None), "{verb:?}");
            assert_eq!(may(peer(12345, 12345), None), right <= Right::Metrics, "{verb:?}");
            assert_eq!(may(peer(12345, 4_000_000), None), right <= Right::Read, "{verb:?}");
            assert_eq!(may(peer(12345, 4_000_001), None), right <= Right::Operate, "{verb:?}");
            assert_eq!(may(peer(12345, 12345), Some("operators")), right <= Right::Operate, "{verb:?}");
            assert_eq!(may(peer(12345, 12345), Some("operator")), right <= Right::Metrics, "{verb:?}");
        }
        let told = refusal(&rules, peer(12345, 12345), None, &Verb::Reload {}).unwrap().error.unwrap();
        assert!(told.contains("user 12345 has the right metrics") && told.contains("access.admin"), "{told}");
    }
}
