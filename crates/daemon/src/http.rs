//! The server of /metrics, /api/v1 and the web interface: HTTP/1.1, GET and HEAD only.
//!
//! In: requests of at most 8 KiB. Out: the published state, as far as the peer's right allows. Must not: change anything, read a body, or
//! answer for a name that does not belong to this machine.
//!
//! A peer over TCP cannot be identified, even on this machine: without a token it gets aggregate metrics and whether the daemon is alive,
//! nothing else. Over a Unix socket the kernel identifies the peer. See [`crate::rights`].
//!
//! Why not a library: the small one (tiny_http) has had no release since 2022, and the maintained ones bring an asynchronous runtime into a
//! process that is locked in memory (hyper, tried: 225 lines fewer, 13.7 MiB under the attack tests instead of 8.4). Without POST, bodies and keep-alive little code remains. The hard parts use maintained crates:
//! `httparse`, also used by hyper, parses the head, and rustls does TLS (see [`crate::access`]). `serve.rs` handles the connections.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use rustix::io::Errno;
use terrace_files::SocketFile;

use crate::access::{Access, Keys, token_of};
use crate::config::Listen;
use crate::metrics;
use crate::rights::{Peer, Right};
use crate::serve::{self, Listener, Patience, Service, Step};
use crate::shared::{Shared, why_none};
use crate::view::Status;

/// The longest head of a request. Browsers send about one KiB.
const HEAD: usize = 8 << 10;
const HEADERS: usize = 64;
/// Ten seconds from the connection to the last byte of a request, including the TLS handshake, and five for the answer.
const PATIENCE: Patience = Patience {
    silence: Duration::from_secs(5),
    request: Duration::from_secs(5),
    work: Duration::from_secs(5),
    answer: Duration::from_secs(5),
};

/// The web interface and its parts, built into the program so that it needs no network and no files.
const PARTS: &[(&str, &str, &str)] = &[
    ("/", "text/html; charset=utf-8", include_str!("page/index.html")),
    ("/page.css", "text/css; charset=utf-8", include_str!("page/page.css")),
    ("/page.js", "text/javascript; charset=utf-8", include_str!("page/page.js")),
];

/// The browser may load only what this server sends, and no site may frame it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// A server. Dropping it removes its socket's file.
pub struct Http {
    _file: Option<SocketFile>,
    /// The address it listens on, in text.
    pub address: String,
}

/// The data to serve.
struct ServerState {
    shared: Arc<Shared>,
    keys: Arc<Keys>,
    /// Whether the name in `Host` is checked. A Unix socket is not reached by a name.
    by_name: bool,
    rendered: Rendered,
}

/// The metrics as text, and their status. They are rendered once per published status, however many clients ask.
#[derive(Default)]
struct Rendered {
    of: Arc<Status>,
    text: String,
}

impl Rendered {
    fn text(&mut self, shared: &Shared) -> String {
        let status = shared.status();
        if self.text.is_empty() || !Arc::ptr_eq(&self.of, &status) {
            (self.text, self.of) = (metrics::text(&status), status);
        }
        // The time since the last turn is not part of the published state.
        format!("{}{}", self.text, metrics::loop_age(shared.heartbeat.age()))
    }
}

impl Http {
    /// Starts to serve, unless the configuration says off. `mode` and `group` apply to a Unix socket. A socket that another process opened
    /// (`passed`) must be at the configured address.
    ///
    /// # Errors
    /// The address is in use or not permitted, or the socket passed is another.
    pub fn start(
        listen: &Listen,
        passed: Option<TcpListener>,
        mode: u32,
        group: Option<u32>,
        keys: Arc<Keys>,
        shared: Arc<Shared>,
    ) -> anyhow::Result<Option<Http>> {
        let scheme = if keys.now().tls.is_some() { "https" } else { "http" };
        if let (Some(other), Listen::Off | Listen::Unix(_)) = (&passed, listen) {
            anyhow::bail!(
                "a socket at {} was passed to the daemon, but metrics.listen is no such address: set it, or remove the socket unit",
                other.local_addr()?
            );
        }
        let (listener, file, address) = match listen {
            Listen::Tcp(address) => {
                let listener = match passed {
                    Some(listener) => as_configured(listener, *address)?,
                    None => bind(*address)?,
                };
                let address = format!("{scheme}://{}", listener.local_addr()?);
                (Listener::Tcp(listener), None, address)
            }
            Listen::Off => return Ok(None),
            Listen::Unix(path) => {
                let (listener, file) = serve::bind(path, mode, group)
                    .with_context(|| format!("metrics.listen = \"unix:{}\"", path.display()))?;
                (Listener::Unix(listener), Some(file), format!("unix:{}", path.display()))
            }
        };
        let by_name = file.is_none();
        let state = ServerState { shared, keys, by_name, rendered: Rendered::default() };
        serve::start("http", listener, state, PATIENCE, serve::waker()?)?;
        Ok(Some(Http { _file: file, address }))
    }
}

/// Listens on an address.
///
/// # Errors
/// It is in use, or not permitted.
pub(crate) fn bind(address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).map_err(|error| {
        let forbidden = error.raw_os_error() == Some(Errno::AFNOSUPPORT.raw_os_error());
        let why = if forbidden {
            ": the unit's sandbox forbids it, and ExecStartPre=+terraced --hand-over passed no socket: see terraced.service"
        } else {
            ""
        };
        anyhow::Error::new(error)
            .context(format!("metrics.listen = \"{address}\": cannot listen on the address{why}"))
    })
}

/// A socket that was passed, if it is at the configured address. Port 0 is any port.
fn as_configured(passed: TcpListener, address: SocketAddr) -> anyhow::Result<TcpListener> {
    let at = passed.local_addr()?;
    anyhow::ensure!(
        at.ip() == address.ip() && (address.port() == 0 || at.port() == address.port()),
        "metrics.listen = \"{address}\", but the socket that was passed to the daemon is at {at}: write the same address into both"
    );
    Ok(passed)
}

impl Service for ServerState {
    type Memory = ();

    fn request(&mut self, received: &mut Vec<u8>, peer: Option<Peer>, (): &mut ()) -> Step {
        let context = ConnContext { peer, access: self.keys.now(), by_name: self.by_name };
        let (answer, body) = match answer(received, &context, &self.shared, &mut self.rendered) {
            Some(done) => done,
            None if received.len() > HEAD => (Answer::text(431, "the request's head is longer than 8 KiB"), true),
            None => return Step::More,
        };
        Step::Answer { bytes: answer.bytes(body), last: true }
    }

    fn full(&self) -> Vec<u8> {
        Answer::text(503, "too many connections").bytes(true)
    }

    fn late(&self) -> Vec<u8> {
        Answer::text(503, "no answer in time").bytes(true)
    }

    fn tls(&self) -> Option<Arc<rustls::ServerConfig>> {
        self.keys.now().tls.clone()
    }
}

/// The transport of a request.
struct ConnContext {
    /// The peer; `None` over TCP.
    peer: Option<Peer>,
    access: Arc<Access>,
    by_name: bool,
}

impl ConnContext {
    /// Why a path is refused to a peer with this `Authorization`, if it is.
    fn refusal(&self, path: &str, authorization: Option<&[u8]>) -> Option<Answer> {
        let needs = needs(path);
        let token = authorization.and_then(token_of);
        let has = self.access.rules.right_here(self.peer, token.as_deref());
        if has >= needs {
            return None;
        }
        Some(match self.peer {
            _ if self.access.rules.has_tokens() => {
                let how =
                    "send a token of metrics.token or access.read: as a bearer token, or as the password of any user";
                Answer::text(401, how)
            }
            None => Answer::text(
                403,
                "over TCP without a token only /metrics and /healthz are served, because a peer cannot be identified: set metrics.token, or \
                 access.read = [\"token:/PATH\"], or metrics.listen = \"unix:/PATH\"",
            ),
            Some(Peer { user, .. }) => Answer::text(
                403,
                &format!(
                    "user {user} may see /metrics and /healthz only: see daemon.group and access.read in the configuration"
                ),
            ),
        })
    }
}

/// The right that a path needs. A path that does not exist needs the right of any other, so that the answer reveals nothing.
fn needs(path: &str) -> Right {
    match path {
        "/healthz" => Right::Alive,
        "/metrics" => Right::Metrics,
        _ => Right::Read,
    }
}

struct Answer {
    code: u16,
    kind: &'static str,
    body: Vec<u8>,
}

impl Answer {
    fn text(code: u16, text: &str) -> Answer {
        Answer { code, kind: "text/plain; charset=utf-8", body: format!("{text}\n").into_bytes() }
    }

    fn json(value: &impl serde::Serialize) -> Answer {
        match serde_json::to_vec(value) {
            Ok(body) => Answer { code: 200, kind: "application/json", body },
            Err(error) => Answer::text(500, &error.to_string()),
        }
    }

    fn bytes(&self, with_body: bool) -> Vec<u8> {
        let reason = match self.code {
            200 => "OK",
            400 => "Bad Request",
            401 => "Unauthorized",
            403 => "Forbidden",
            404 => "Not Found",
            405 => "Method Not Allowed",
            431 => "Request Header Fields Too Large",
            503 => "Service Unavailable",
            _ => "Internal Server Error",
        };
        let mut bytes = format!(
            "HTTP/1.1 {} {reason}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\nCache-Control: no-store\r\n\
             Content-Security-Policy: {POLICY}\r\nX-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n\
             Cross-Origin-Resource-Policy: same-origin\r\nCross-Origin-Opener-Policy: same-origin\r\n{}\r\n",
            self.code,
            self.kind,
            self.body.len(),
            if self.code == 401 { "WWW-Authenticate: Basic realm=\"terraced\", charset=\"UTF-8\"\r\n" } else { "" },
        )
        .into_bytes();
        if with_body {
            bytes.extend_from_slice(&self.body);
        }
        bytes
    }
}

/// The status code with which a server without published state answers this head from root; `None` while the head is incomplete. For
/// fuzzing and tests.
///
/// # Errors
/// The kernel has no free descriptors.
pub fn status_of(head: &[u8]) -> std::io::Result<Option<u16>> {
    let (shared, ..) = Shared::new()?;
    let peer = Some(Peer { user: 0, group: 0 });
    let context = ConnContext { peer, access: Arc::default(), by_name: true };
    Ok(answer(head, &context, &shared, &mut Rendered::default()).map(|(answer, _)| answer.code))
}

/// The answer to a request, and whether it has a body; `None` while its head is incomplete.
fn answer(head: &[u8], context: &ConnContext, shared: &Shared, rendered: &mut Rendered) -> Option<(Answer, bool)> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(head) {
        Ok(httparse::Status::Partial) => return None,
        Ok(httparse::Status::Complete(_)) => {}
        Err(error) => return Some((Answer::text(400, &format!("invalid request: {error}")), true)),
    }
    let method = request.method.unwrap_or("");
    let body = method != "HEAD";
    if !matches!(method, "GET" | "HEAD") {
        return Some((
            Answer::text(405, "GET only: this interface is read-only; see `terrace set`, `terrace pause`"),
            body,
        ));
    }
    // Against DNS rebinding, see `access`. Also checked with a token: a browser may send it along.
    let mut hosts = request.headers.iter().filter(|header| header.name.eq_ignore_ascii_case("host"));
    let host = hosts.next().and_then(|header| std::str::from_utf8(header.value).ok());
    if context.by_name && !(host.is_some_and(|host| context.access.answers_for(host)) && hosts.next().is_none()) {
        let names = match context.access.tls {
            Some(_) => "ask by address, or by a name that metrics.certificate is for",
            None => "ask for localhost, 127.0.0.1 or [::1]",
        };
        return Some((Answer::text(403, names), body));
    }
    let target = request.path.unwrap_or("/");
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let authorization = request.headers.iter().find(|header| header.name.eq_ignore_ascii_case("authorization"));
    if let Some(refusal) = context.refusal(path, authorization.map(|header| header.value)) {
        return Some((refusal, body));
    }
    Some((route(path, query, shared, rendered), body))
}

fn route(path: &str, query: &str, shared: &Shared, rendered: &mut Rendered) -> Answer {
    let parameter = |name: &str| {
        let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.filter(|(key, _)| *key == name).map(|(_, value)| value).next()
    };
    if let Some((_, kind, text)) = PARTS.iter().find(|(part, ..)| *part == path) {
        return Answer { code: 200, kind, body: text.as_bytes().to_vec() };
    }
    match path {
        "/metrics" => Answer {
            code: 200,
            kind: "text/plain; version=0.0.4; charset=utf-8",
            body: rendered.text(shared).into_bytes(),
        },
        "/healthz" => match shared.heartbeat.overdue() {
            None => Answer::text(200, "ok"),
            Some(age) => Answer::text(503, &format!("the loop has not turned for {} s", age.as_secs())),
        },
        "/api/v1/status" => Answer::json(&shared.status_now()),
        "/api/v1/timeline" => Answer::json(&shared.timeline()),
        "/api/v1/history" => {
            let number = |name: &str, otherwise: u64| parameter(name).map_or(Some(otherwise), |text| text.parse().ok());
            match (number("after", 0), number("limit", 200)) {
                (Some(after), Some(limit)) => {
                    Answer::json(&shared.history(after, limit.min(2000) as usize, parameter("class")))
                }
                _ => Answer::text(400, "after and limit are whole numbers"),
            }
        }
        "/api/v1/heat" => picture("heat", "heat map", parameter("class"), |class| shared.pictures(class).heat),
        "/api/v1/bins" => picture("bins", "histogram", parameter("class"), |class| shared.pictures(class).bins),
        "/api/v1/sizing" => {
            picture("sizing", "sizing curve", parameter("class"), |class| shared.pictures(class).sizing)
        }
        _ => Answer::text(
            404,
            "the paths are /, /metrics, /healthz and /api/v1/status, timeline, history, heat, bins, sizing",
        ),
    }
}

/// A heat map or histogram of the requested class.
fn picture<T: serde::Serialize>(
    name: &str,
    what: &str,
    class: Option<&str>,
    find: impl Fn(&str) -> Option<Arc<T>>,
) -> Answer {
    match class.map(|class| (class, find(class))) {
        Some((_, Some(found))) => Answer::json(&*found),
        Some((class, None)) => {
            Answer::text(404, &format!("class {} has no {what}: {}", class.escape_default(), why_none(what)))
        }
        None => Answer::text(400, &format!("write /api/v1/{name}?class=NAME")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::AccessConfig;
    use crate::rights::{Grants, Principal};
    use proptest::prelude::*;

    /// All paths, and the rights they need.
    const PATHS: [(&str, Right); 12] = [
        ("/healthz", Right::Alive),
        ("/metrics", Right::Metrics),
        ("/", Right::Read),
        ("/page.css", Right::Read),
        ("/page.js", Right::Read),
        ("/api/v1/status", Right::Read),
        ("/api/v1/timeline", Right::Read),
        ("/api/v1/history", Right::Read),
        ("/api/v1/heat?class=web", Right::Read),
        ("/api/v1/bins?class=web", Right::Read),
        ("/api/v1/sizing?class=web", Right::Read),
        ("/api/v1/nothing", Right::Read),
    ];

    fn context(peer: Option<Peer>, access: Access) -> ConnContext {
        ConnContext { peer, by_name: peer.is_none(), access: Arc::new(access) }
    }

    fn ask(request: &str, context: &ConnContext) -> Option<Answer> {
        let shared = Shared::new().unwrap().0;
        answer(request.as_bytes(), context, &shared, &mut Rendered::default()).map(|(answer, _)| answer)
    }

    fn get(path: &str, more: &str, context: &ConnContext) -> u16 {
        ask(&format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{more}\r\n"), context).unwrap().code
    }

    /// The code for a request of an identified peer that may read.
    fn code(request: &str) -> Option<u16> {
        let context = ConnContext { by_name: true, ..context(Some(Peer { user: 0, group: 0 }), Access::default()) };
        ask(request, &context).map(|answer| answer.code)
    }

    fn secret(place: &tempfile::TempDir, name: &str, text: &str) -> std::path::PathBuf {
        let path = place.path().join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        path
    }

    #[test]
    fn every_path_is_for_those_who_have_its_right_and_for_nobody_else() {
        let place = tempfile::tempdir().unwrap();
        let grants = Grants {
            read: vec![Principal::User(1000), Principal::Token(secret(&place, "read", &"r".repeat(32)))],
            ..Grants::default()
        };
        let config = AccessConfig { grants, ..AccessConfig::default() };
        let peer = |user| Some(Peer { user, group: user });
        let token = format!("Authorization: Bearer {}\r\n", "r".repeat(32));
        for (path, right) in PATHS {
            let open = |code: u16| ![401, 403].contains(&code);
            let plain = |peer| open(get(path, "", &context(peer, Access::default())));
            assert!(plain(peer(0)), "{path}");
            assert_eq!(plain(peer(12345)), right <= Right::Metrics, "{path}: a stranger");
            assert_eq!(plain(None), right <= Right::Metrics, "{path}: over TCP");
            let granted =
                |peer, more: &str| open(get(path, more, &context(peer, Access::from_config(&config).unwrap())));
            assert!(granted(peer(1000), "") && granted(peer(12345), &token) && granted(None, &token), "{path}");
            assert_eq!(granted(None, "Authorization: Bearer wrong\r\n"), right <= Right::Metrics, "{path}");
        }
        // The list holds every route of the program.
        for path in PARTS.iter().map(|(path, ..)| *path).chain(["/api/v1/status", "/api/v1/sizing"]) {
            assert!(PATHS.iter().any(|(known, _)| known.starts_with(path)), "{path}");
        }
    }

    #[test]
    fn a_guarded_server_asks_for_its_token_and_answers_for_addresses() {
        let place = tempfile::tempdir().unwrap();
        let config = AccessConfig { token: Some(secret(&place, "token", &"t".repeat(32))), ..AccessConfig::default() };
        let guarded = context(None, Access::from_config(&config).unwrap());
        let ask = |path: &str, more: &str| {
            ask(&format!("GET {path} HTTP/1.1\r\nHost: 192.0.2.7:9464\r\n{more}\r\n"), &guarded).unwrap()
        };
        let refused = ask("/metrics", "");
        assert_eq!(refused.code, 401);
        assert!(String::from_utf8(refused.bytes(true)).unwrap().contains("WWW-Authenticate: Basic"));
        let right = format!("Authorization: Bearer {}\r\n", "t".repeat(32));
        assert_eq!((ask("/metrics", &right).code, ask("/", &right).code, ask("/healthz", "").code), (200, 200, 200));
        assert_eq!(ask("/api/v1/status", "Authorization: Bearer wrong\r\n").code, 401);
        // Another machine's name, even with the token; and an address without one.
        let rebound = format!("GET /metrics HTTP/1.1\r\nHost: evil.example\r\n{right}\r\n");
        assert_eq!(self::ask(&rebound, &guarded).unwrap().code, 403);
        assert_eq!(code("GET /metrics HTTP/1.1\r\nHost: 192.0.2.7:9464\r\n\r\n"), Some(403));
    }

    #[test]
    fn health_is_that_of_the_loop() {
        let shared = Shared::new().unwrap().0;
        let anyone = context(None, Access::default());
        let ask = |path: &str| {
            let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
            let (answer, _) = answer(request.as_bytes(), &anyone, &shared, &mut Rendered::default()).unwrap();
            (answer.code, String::from_utf8(answer.body).unwrap())
        };
        shared.heartbeat.beat(Duration::from_secs(60));
        assert_eq!(ask("/healthz").0, 200);
        shared.heartbeat.beat(Duration::ZERO);
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(ask("/healthz"), (503, "the loop has not turned for 0 s\n".to_owned()));
        assert!(ask("/metrics").1.contains("\nterrace_loop_age_seconds 0.0"), "metrics are still answered, and tell");
    }

    #[test]
    fn only_gets_for_this_machine_are_served() {
        assert_eq!(code("GET /metrics HTTP/1.1\r\nHost: localhost:9464\r\n\r\n"), Some(200));
        assert_eq!(code("GET /api/v1/status HTTP/1.1\r\nhost: [::1]:9464\r\n\r\n"), Some(200));
        assert_eq!(code("POST /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"), Some(405));
        assert_eq!(code("GET /metrics HTTP/1.1\r\nHost: evil.example\r\n\r\n"), Some(403));
        assert_eq!(code("GET /metrics HTTP/1.1\r\nHost: localhost.evil.example:80\r\n\r\n"), Some(403));
        assert_eq!(code("GET /metrics HTTP/1.1\r\n\r\n"), Some(403));
        assert_eq!(code("GET /metrics HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n"), Some(403));
        assert_eq!(code("GET /../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n"), Some(404));
        assert_eq!(code("GET /api/v1/history?after=x HTTP/1.1\r\nHost: localhost\r\n\r\n"), Some(400));
        assert_eq!(code("GET /metrics HTTP/1.1\r\nHost: local"), None, "the rest is still to come");
        assert_eq!(code("\u{0}\r\n\r\n"), Some(400));
    }

    #[test]
    fn the_page_loads_nothing_from_elsewhere() {
        let page = Answer { code: 200, kind: "text/html", body: Vec::new() }.bytes(true);
        let head = String::from_utf8(page).unwrap();
        assert!(head.contains("default-src 'none'") && !head.contains("unsafe") && !head.contains("Allow-Origin"));
        for (path, _, text) in PARTS {
            for far in ["http://", "https://", "//cdn", "<style", "style=", "onclick", "innerHTML"] {
                let found = text.matches(far).count()
                    - text.matches("http://www.w3.org/2000/svg").count() * usize::from(far == "http://");
                assert_eq!(found, 0, "{path} has {far:?}");
            }
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let shared = Shared::new().unwrap().0;
            let _ = answer(&bytes, &context(None, Access::default()), &shared, &mut Rendered::default());
        }
    }
}
