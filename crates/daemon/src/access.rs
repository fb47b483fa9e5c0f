//! Who may ask over the network: whoever knows the token, over TLS.
//!
//! In: the paths of a token, a certificate and its key. Out: whether a request is admitted, and what connections are encrypted with.
//! Must not: tell by the time it takes how much of a token was right, or let a file that others may read pass for a secret.
//!
//! A person's browser and Prometheus give the token in different ways: `Authorization: Basic`, of which the password is the token and
//! the user is not looked at, and `Authorization: Bearer`.

use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, bail, ensure};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

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

/// See the module's header.
#[derive(Clone, Default)]
pub struct Access {
    token: Option<Vec<u8>>,
    /// What connections are encrypted with, if they are.
    pub tls: Option<Arc<rustls::ServerConfig>>,
}

impl Access {
    /// Reads the secrets.
    ///
    /// # Errors
    /// When a file cannot be read, is no such thing, or a secret may be read by others.
    pub fn of(paths: &AccessPaths) -> anyhow::Result<Access> {
        let token = paths.token.as_deref().map(token).transpose()?;
        let tls = match (&paths.certificate, &paths.key) {
            (Some(certificate), Some(key)) => Some(Arc::new(tls(certificate, key)?)),
            _ => None,
        };
        Ok(Access { token, tls })
    }

    /// Whether there is a token to know.
    pub fn is_guarded(&self) -> bool {
        self.token.is_some()
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

fn tls(certificate: &Path, key: &Path) -> anyhow::Result<rustls::ServerConfig> {
    let told = || format!("metrics.certificate = \"{}\"", certificate.display());
    let chain: Vec<CertificateDer<'static>> =
        CertificateDer::pem_file_iter(certificate).with_context(told)?.collect::<Result<_, _>>().with_context(told)?;
    ensure!(!chain.is_empty(), "{}: there is no certificate in it (PEM)", told());
    let private = PrivateKeyDer::from_pem_slice(&secret(key, "metrics.key")?)
        .with_context(|| format!("metrics.key = \"{}\"", key.display()))?;
    rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, private))
        .with_context(|| format!("{}: with metrics.key = \"{}\"", told(), key.display()))
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
        Access { token: Some(TOKEN.as_bytes().to_vec()), tls: None }
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
