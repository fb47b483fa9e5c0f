//! Who may ask over the network: whoever knows the token, over TLS, for a name that is this machine's.
//!
//! In: the paths of a token, a certificate and its key. Out: whether a request is admitted, and what connections are encrypted with.
//! Must not: tell by the time it takes how much of a token was right, let a file that others may read pass for a secret, or put
//! one new secret to work when another of them is bad.
//!
//! A person's browser and Prometheus give the token in different ways: `Authorization: Basic`, of which the password is the token and
//! the user is not looked at, and `Authorization: Bearer`.
//!
//! A page of another site may have its own name point here (DNS rebinding). Its requests then carry that name, so only names are
//! served that are this machine's: `localhost`, those that the certificate is for, and plain addresses, which no DNS can turn elsewhere.

use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Instant;

use anyhow::{Context, bail, ensure};
use rustls::client::verify_server_name;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::ParsedCertificate;

/// Where the secrets lie.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessPaths {
    /// The token.
    pub token: Option<PathBuf>,
    /// The certificate, followed by those that vouch for it (PEM).
    pub certificate: Option<PathBuf>,
    /// Its private key (PEM).
    pub key: Option<PathBuf>,
}

/// Shorter tokens can be guessed: 32 hexadecimal digits are 128 bits.
const SHORTEST_TOKEN: usize = 32;

/// The secrets of one moment.
#[derive(Clone, Default)]
pub struct Access {
    token: Option<Vec<u8>>,
    /// What connections are encrypted with, if they are.
    pub tls: Option<Arc<rustls::ServerConfig>>,
    /// The certificate, which says for which names this server answers, and those that vouch for it.
    chain: Vec<CertificateDer<'static>>,
}

impl Access {
    /// Reads the secrets.
    ///
    /// # Errors
    /// When a file cannot be read, is no such thing, a secret may be read by others, or a certificate and a key are not a pair.
    pub fn of(paths: &AccessPaths) -> anyhow::Result<Access> {
        let token = paths.token.as_deref().map(token).transpose()?;
        let (tls, chain) = match (&paths.certificate, &paths.key) {
            (Some(certificate), Some(key)) => {
                let (tls, chain) = tls(certificate, key)?;
                (Some(Arc::new(tls)), chain)
            }
            _ => (None, Vec::new()),
        };
        Ok(Access { token, tls, chain })
    }

    /// Whether there is a token to know.
    pub fn is_guarded(&self) -> bool {
        self.token.is_some()
    }

    /// Whether this server answers for a name, as a request's `Host` has it.
    pub fn answers_for(&self, host: &str) -> bool {
        let name = match host.rsplit_once(':') {
            Some((name, port)) if !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()) => name,
            _ => host,
        };
        if name.eq_ignore_ascii_case("localhost") {
            return true;
        }
        let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
        if let Ok(address) = bare.parse::<IpAddr>() {
            return address.is_loopback() || self.is_guarded();
        }
        let (Some(leaf), Ok(name)) = (self.chain.first(), ServerName::try_from(name)) else { return false };
        ParsedCertificate::try_from(leaf).is_ok_and(|leaf| verify_server_name(&leaf, &name).is_ok())
    }

    /// What is another than before, in words; `None` if nothing is.
    fn news(&self, before: &Access) -> Option<&'static str> {
        match (self.token != before.token, self.chain != before.chain) {
            (true, true) => Some("a new token is asked for, and a new certificate served"),
            (true, false) => Some("a new token is asked for"),
            (false, true) => Some("a new certificate is served"),
            (false, false) => None,
        }
    }

    /// Whether a request with this `Authorization` is admitted.
    pub fn admits(&self, authorization: Option<&[u8]>) -> bool {
        let Some(token) = &self.token else { return true };
        let Some((scheme, given)) = authorization.and_then(|header| {
            let space = header.iter().position(|byte| *byte == b' ')?;
            Some((&header[..space], header[space + 1..].trim_ascii()))
        }) else {
            return false;
        };
        if scheme.eq_ignore_ascii_case(b"bearer") {
            return same(given, token);
        }
        if scheme.eq_ignore_ascii_case(b"basic") {
            let decoded = decode(given).unwrap_or_default();
            let password = decoded.iter().position(|byte| *byte == b':').map(|colon| &decoded[colon + 1..]);
            return password.is_some_and(|password| same(password, token));
        }
        false
    }
}

/// The secrets in force, and where they come from: a reload reads them anew, as a renewed certificate wants.
pub struct Keys {
    paths: AccessPaths,
    now: RwLock<Arc<Access>>,
}

impl Keys {
    /// Reads the secrets.
    ///
    /// # Errors
    /// As [`Access::of`].
    pub fn of(paths: &AccessPaths) -> anyhow::Result<Keys> {
        Ok(Keys { now: RwLock::new(Arc::new(Access::of(paths)?)), paths: paths.clone() })
    }

    /// Those in force now.
    pub fn now(&self) -> Arc<Access> {
        // Whoever panicked held nothing half changed: a change is one assignment.
        Arc::clone(&self.now.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Reads the files again; nothing is in force yet.
    ///
    /// # Errors
    /// As [`Access::of`].
    pub fn read_anew(&self) -> anyhow::Result<Access> {
        Access::of(&self.paths)
    }

    /// Puts what was read in force for the connections to come. Returns what is new, in words.
    pub fn take(&self, fresh: Access) -> Option<&'static str> {
        let mut now = self.now.write().unwrap_or_else(PoisonError::into_inner);
        let news = fresh.news(&now);
        *now = Arc::new(fresh);
        news
    }
}

/// Compares in a time that depends on the lengths alone.
fn same(given: &[u8], token: &[u8]) -> bool {
    let different = given.iter().zip(token).fold(0, |different, (one, other)| different | (one ^ other));
    given.len() == token.len() && std::hint::black_box(different) == 0
}

fn secret(path: &Path, key: &str) -> anyhow::Result<Vec<u8>> {
    let told = || format!("{key} = \"{}\"", path.display());
    let mode = std::fs::metadata(path).with_context(told)?.mode();
    ensure!(mode & 0o007 == 0, "{}: others may read it (mode {:o}): chmod o= {}", told(), mode & 0o777, path.display());
    std::fs::read(path).with_context(told)
}

fn token(path: &Path) -> anyhow::Result<Vec<u8>> {
    let token = secret(path, "metrics.token")?.trim_ascii().to_vec();
    if token.len() < SHORTEST_TOKEN || !token.iter().all(u8::is_ascii_graphic) {
        bail!(
            "metrics.token = \"{}\": a token is one word of {SHORTEST_TOKEN} characters or more, as `openssl rand -hex 32` makes it",
            path.display()
        );
    }
    Ok(token)
}

fn tls(certificate: &Path, key: &Path) -> anyhow::Result<(rustls::ServerConfig, Vec<CertificateDer<'static>>)> {
    let told = || format!("metrics.certificate = \"{}\"", certificate.display());
    let chain: Vec<CertificateDer<'static>> =
        CertificateDer::pem_file_iter(certificate).with_context(told)?.collect::<Result<_, _>>().with_context(told)?;
    ensure!(!chain.is_empty(), "{}: there is no certificate in it (PEM)", told());
    let private = PrivateKeyDer::from_pem_slice(&secret(key, "metrics.key")?)
        .with_context(|| format!("metrics.key = \"{}\"", key.display()))?;
    rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain.clone(), private))
        .with_context(|| format!("{}: with metrics.key = \"{}\"", told(), key.display()))
        .map(|config| (config, chain))
}

/// Base64 with padding (RFC 4648, section 4); `None` for anything else.
fn decode(text: &[u8]) -> Option<Vec<u8>> {
    let value = |byte: u8| match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let padding = text.iter().rev().take_while(|byte| **byte == b'=').count();
    if !text.len().is_multiple_of(4) || padding > 2 {
        return None;
    }
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    for group in text[..text.len() - padding].chunks(4) {
        let mut word = 0u32;
        for byte in group {
            word = word << 6 | u32::from(value(*byte)?);
        }
        word <<= 6 * (4 - group.len());
        bytes.extend(&word.to_be_bytes()[1..group.len()]);
    }
    Some(bytes)
}

/// A socket whose waiting can be bounded.
pub trait Socket: Read + Write + Send {
    /// Bounds the next read and write.
    ///
    /// # Errors
    /// When the kernel says so.
    fn patience(&self, left: std::time::Duration) -> io::Result<()>;
}

/// A connection that ends at a moment, however slowly its peer drips.
pub struct Deadline<S> {
    socket: S,
    end: Instant,
}

impl<S: Socket> Deadline<S> {
    /// A connection that ends then.
    pub fn new(socket: S, end: Instant) -> Deadline<S> {
        Deadline { socket, end }
    }

    fn wait(&self) -> io::Result<()> {
        let left = self.end.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { self.socket.patience(left) }
    }
}

impl<S: Socket> Read for Deadline<S> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.wait()?;
        self.socket.read(into)
    }
}

impl<S: Socket> Write for Deadline<S> {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.wait()?;
        self.socket.write(from)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::unix::fs::PermissionsExt;

    const TOKEN: &str = "0123456789abcdef0123456789abcdef";

    fn guarded() -> Access {
        Access { token: Some(TOKEN.as_bytes().to_vec()), ..Access::default() }
    }

    #[test]
    fn whoever_knows_the_token_is_admitted_and_nobody_else() {
        let access = guarded();
        let admits = |header: &str| access.admits(Some(header.as_bytes()));
        assert!(admits(&format!("Bearer {TOKEN}")) && admits(&format!("bearer  {TOKEN} ")));
        // printf 'anyone:TOKEN' | base64
        assert!(admits("Basic YW55b25lOjAxMjM0NTY3ODlhYmNkZWYwMTIzNDU2Nzg5YWJjZGVm"));
        let long = format!("Bearer {TOKEN}0");
        for wrong in
            [&long[..38], &long, "Bearer ", "Bearer", "", "Basic OnB3", "Basic ====", "Basic x", TOKEN, "Digest x"]
        {
            assert!(!admits(wrong), "{wrong:?}");
        }
        assert!(!access.admits(None) && Access::default().admits(None));
    }

    #[test]
    fn base64_is_that_of_the_standard() {
        let vectors =
            [("", ""), ("Zg==", "f"), ("Zm8=", "fo"), ("Zm9v", "foo"), ("Zm9vYg==", "foob"), ("Zm9vYmE=", "fooba")];
        for (text, plain) in vectors {
            assert_eq!(decode(text.as_bytes()).as_deref(), Some(plain.as_bytes()), "RFC 4648, section 10");
        }
        assert!(["Zg=", "Z===", "Zm9", "Zm9!", "=Zg="].iter().all(|wrong| decode(wrong.as_bytes()).is_none()));
    }

    proptest! {
        #[test]
        fn any_header_is_survived(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            prop_assert!(!guarded().admits(Some(&bytes)));
        }
    }

    #[test]
    fn secrets_that_others_may_read_and_short_ones_are_refused() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("token");
        let write = |text: &str, mode: u32| {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        let refused =
            || Access::of(&AccessPaths { token: Some(path.clone()), ..AccessPaths::default() }).err().unwrap();
        write(&format!("{TOKEN}\n"), 0o644);
        assert!(refused().to_string().contains("others may read it (mode 644)"), "{:#}", refused());
        write("secret\n", 0o600);
        assert!(refused().to_string().contains("openssl rand -hex 32"), "{:#}", refused());
        write(&format!("{TOKEN}\n"), 0o640);
        assert!(Access::of(&AccessPaths { token: Some(path.clone()), ..AccessPaths::default() }).unwrap().is_guarded());
        std::fs::remove_file(&path).unwrap();
        assert!(format!("{:#}", refused()).contains("metrics.token = "), "{:#}", refused());
        let certificate = place.path().join("certificate");
        std::fs::write(&certificate, "no certificate").unwrap();
        let paths = AccessPaths { certificate: Some(certificate.clone()), key: Some(certificate), token: None };
        assert!(format!("{:#}", Access::of(&paths).err().unwrap()).contains("metrics.certificate"));
    }
}
