//! The server of /metrics, /api/v1 and the page: HTTP/1.1, GET and HEAD only; on this machine only, or behind a token and TLS.
//!
//! In: requests of at most 8 KiB. Out: what was published. Must not: change anything, read a body, serve a name that is not this
//! machine's to whoever has no token, or let a slow reader keep more than its own thread.
//!
//! Why no library: the small one (tiny_http) has not been released since 2022, and those that are kept bring an asynchronous
//! runtime into a process that is locked in memory. What is left without POST, bodies and keep-alive is a page of code;
//! the parts that are hard to get right are not ours: the request's head `httparse` reads, which hyper uses and keeps, and TLS is
//! rustls's (see [`crate::access`]).

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;

use crate::access::{Access, AccessPaths, Deadline, Keys, Socket};
use crate::config::Listen;
use crate::metrics;
use crate::shared::{Shared, why_none};

/// Connections at once.
const CONNECTIONS: usize = 16;
const STACK: usize = 256 << 10;
/// The longest head of a request: browsers send about one KiB.
const HEAD: usize = 8 << 10;
const HEADERS: usize = 64;
/// For one whole request, from its first byte to the last of its answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// The page and its parts, built into the program so that it works without a network and without files.
const PARTS: &[(&str, &str, &str)] = &[
    ("/", "text/html; charset=utf-8", include_str!("page/index.html")),
    ("/page.css", "text/css; charset=utf-8", include_str!("page/page.css")),
    ("/page.js", "text/javascript; charset=utf-8", include_str!("page/page.js")),
];

/// Only what this server itself sends may be loaded, and nothing may frame the page.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// A server; its socket's file is removed when it is dropped.
pub struct Http {
    path: Option<PathBuf>,
    /// Where it listens, as a person writes it.
    pub address: String,
    /// The secrets in force, to be renewed when the configuration is read anew.
    pub keys: Arc<Keys>,
}

impl Drop for Http {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Socket for TcpStream {
    fn patience(&self, left: Duration) -> std::io::Result<()> {
        self.set_read_timeout(Some(left))?;
        self.set_write_timeout(Some(left))
    }
}

impl Socket for UnixStream {
    fn patience(&self, left: Duration) -> std::io::Result<()> {
        self.set_read_timeout(Some(left))?;
        self.set_write_timeout(Some(left))
    }
}

/// What connections are served from.
struct House {
    shared: Arc<Shared>,
    keys: Arc<Keys>,
    /// Whether only names of this machine are served: nobody comes to a socket's path by a name.
    by_name: bool,
}

/// What one connection comes through: the secrets are those of its beginning.
struct Door {
    shared: Arc<Shared>,
    access: Arc<Access>,
    by_name: bool,
}

impl House {
    fn door(&self) -> Door {
        Door { shared: Arc::clone(&self.shared), access: self.keys.now(), by_name: self.by_name }
    }
}

impl Http {
    /// Begins to serve, unless the configuration says off.
    ///
    /// # Errors
    /// When the address is taken or may not be had.
    pub fn start(listen: &Listen, access: &AccessPaths, shared: Arc<Shared>) -> anyhow::Result<Option<Http>> {
        if *listen == Listen::Off {
            return Ok(None);
        }
        let keys = Arc::new(Keys::of(access)?);
        match listen {
            Listen::Off => Ok(None),
            Listen::Tcp(address) => {
                let listener = TcpListener::bind(address)
                    .with_context(|| format!("metrics.listen = \"{address}\": the address cannot be had"))?;
                let scheme = if keys.now().tls.is_some() { "https" } else { "http" };
                let address = format!("{scheme}://{}", listener.local_addr()?);
                let house = House { shared, keys: Arc::clone(&keys), by_name: true };
                spawn(move |open| serve_all(|| listener.accept().map(|(stream, _)| stream), &house, open))?;
                Ok(Some(Http { path: None, address, keys }))
            }
            Listen::Unix(path) => {
                if UnixStream::connect(path).is_ok() {
                    anyhow::bail!("metrics.listen = \"unix:{}\": another server answers there", path.display());
                }
                let _ = std::fs::remove_file(path);
                let listener =
                    UnixListener::bind(path).with_context(|| format!("{}: cannot be made", path.display()))?;
                let house = House { shared, keys: Arc::clone(&keys), by_name: false };
                spawn(move |open| serve_all(|| listener.accept().map(|(stream, _)| stream), &house, open))?;
                Ok(Some(Http { path: Some(path.clone()), address: format!("unix:{}", path.display()), keys }))
            }
        }
    }
}

fn spawn(work: impl FnOnce(Arc<AtomicUsize>) + Send + 'static) -> anyhow::Result<()> {
    let builder = std::thread::Builder::new().name("http".to_owned()).stack_size(STACK);
    builder
        .spawn(move || work(Arc::new(AtomicUsize::new(0))))
        .context("the thread of the metrics could not be started")?;
    Ok(())
}

fn serve_all<S: Socket + 'static>(
    mut accept: impl FnMut() -> std::io::Result<S>,
    house: &House,
    open: Arc<AtomicUsize>,
) {
    loop {
        let Ok(mut stream) = accept() else {
            std::thread::sleep(Duration::from_millis(100));
            continue;
        };
        if open.fetch_add(1, Ordering::SeqCst) >= CONNECTIONS {
            open.fetch_sub(1, Ordering::SeqCst);
            // Under TLS there is nobody to talk to before the handshake, which would keep the others waiting.
            if house.keys.now().tls.is_none() {
                let _ = stream.patience(Duration::from_millis(100));
                let _ = stream.write_all(&Answer::text(503, "too many connections").bytes(true));
            }
            continue;
        }
        let (door, counted) = (house.door(), Open(Arc::clone(&open)));
        let started = std::thread::Builder::new().name("http-peer".to_owned()).stack_size(STACK).spawn(move || {
            let _counted = counted;
            // A peer that breaks off, or is too slow, is let go.
            let _ = serve_one(Deadline::new(stream, Instant::now() + PATIENCE), &door);
        });
        if started.is_err() {
            tracing::warn!("no thread for a connection of the metrics");
        }
    }
}

fn serve_one(mut stream: Deadline<impl Socket>, door: &Door) -> anyhow::Result<()> {
    let Some(tls) = &door.access.tls else { return Ok(serve(&mut stream, door)?) };
    let mut stream = rustls::StreamOwned::new(rustls::ServerConnection::new(Arc::clone(tls))?, stream);
    serve(&mut stream, door)?;
    stream.conn.send_close_notify();
    Ok(stream.flush()?)
}

struct Open(Arc<AtomicUsize>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

fn serve(stream: &mut (impl Read + Write), door: &Door) -> std::io::Result<()> {
    let mut head = Vec::new();
    let mut piece = [0; 1024];
    let (answer, body) = loop {
        let length = stream.read(&mut piece)?;
        if length == 0 {
            return Ok(());
        }
        head.extend_from_slice(&piece[..length]);
        if let Some(done) = answer(&head, door) {
            break done;
        }
        if head.len() > HEAD {
            break (Answer::text(431, "the request's head is longer than 8 KiB"), true);
        }
    };
    // A slow reader has what is left of its time, and no more.
    stream.write_all(&answer.bytes(body))?;
    stream.flush()
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

/// The answer to a request, and whether its body is wanted; `None` while its head is not whole.
fn answer(head: &[u8], door: &Door) -> Option<(Answer, bool)> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(head) {
        Ok(httparse::Status::Partial) => return None,
        Ok(httparse::Status::Complete(_)) => {}
        Err(error) => return Some((Answer::text(400, &format!("this is no request: {error}")), true)),
    }
    let method = request.method.unwrap_or("");
    let body = method != "HEAD";
    if !matches!(method, "GET" | "HEAD") {
        return Some((
            Answer::text(405, "GET only: nothing can be changed here; see `terrace set`, `terrace pause`"),
            body,
        ));
    }
    // Against DNS rebinding, see `access`. Behind a token as well: which names are right does not hang on what a browser sends along.
    let mut hosts = request.headers.iter().filter(|header| header.name.eq_ignore_ascii_case("host"));
    let host = hosts.next().and_then(|header| std::str::from_utf8(header.value).ok());
    if door.by_name && !(host.is_some_and(|host| door.access.answers_for(host)) && hosts.next().is_none()) {
        let names = match door.access.tls {
            Some(_) => "ask by address, or by a name that metrics.certificate is for",
            None => "ask for localhost, 127.0.0.1 or [::1]",
        };
        return Some((Answer::text(403, names), body));
    }
    let target = request.path.unwrap_or("/");
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let authorization = request.headers.iter().find(|header| header.name.eq_ignore_ascii_case("authorization"));
    // That it is alive is no secret, and whoever watches over it need not know one.
    if path != "/healthz" && !door.access.admits(authorization.map(|header| header.value)) {
        let how = "the token of metrics.token is wanted: as a bearer token, or as the password of any user";
        return Some((Answer::text(401, how), body));
    }
    Some((route(path, query, &door.shared), body))
}

fn route(path: &str, query: &str, shared: &Shared) -> Answer {
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
            body: metrics::text(&shared.status()).into_bytes(),
        },
        "/healthz" => Answer::text(200, "ok"),
        "/api/v1/status" => Answer::json(&*shared.status()),
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
            "there are /, /metrics, /healthz and /api/v1/status, timeline, history, heat, bins, sizing",
        ),
    }
}

/// A picture of the class that was asked for.
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
    use proptest::prelude::*;

    fn door(access: Access) -> Door {
        Door { shared: Shared::new().unwrap().0, by_name: true, access: Arc::new(access) }
    }

    fn code(request: &str) -> Option<u16> {
        answer(request.as_bytes(), &door(Access::default())).map(|(answer, _)| answer.code)
    }

    #[test]
    fn a_guarded_server_asks_for_its_token_and_answers_for_addresses() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("token");
        std::fs::write(&path, "t".repeat(32)).unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        let paths = AccessPaths { token: Some(path), ..AccessPaths::default() };
        let door = door(Access::of(&paths).unwrap());
        let ask = |path: &str, more: &str| {
            let request = format!("GET {path} HTTP/1.1\r\nHost: 192.0.2.7:9464\r\n{more}\r\n");
            answer(request.as_bytes(), &door).unwrap().0
        };
        let refused = ask("/metrics", "");
        assert_eq!(refused.code, 401);
        assert!(String::from_utf8(refused.bytes(true)).unwrap().contains("WWW-Authenticate: Basic"));
        let right = format!("Authorization: Bearer {}\r\n", "t".repeat(32));
        assert_eq!((ask("/metrics", &right).code, ask("/", &right).code, ask("/healthz", "").code), (200, 200, 200));
        assert_eq!(ask("/api/v1/status", "Authorization: Bearer wrong\r\n").code, 401);
        // The name of another, with the token all the same; and an address without one.
        let rebound = format!("GET /metrics HTTP/1.1\r\nHost: evil.example\r\n{right}\r\n");
        assert_eq!(answer(rebound.as_bytes(), &door).unwrap().0.code, 403);
        assert_eq!(code("GET /metrics HTTP/1.1\r\nHost: 192.0.2.7:9464\r\n\r\n"), Some(403));
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
            let _ = answer(&bytes, &door(Access::default()));
        }
    }
}
