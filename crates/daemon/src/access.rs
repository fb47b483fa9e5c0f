//! The secrets of the HTTP server: tokens, the certificate and its key, and for which names it answers.
//!
//! In: the paths of tokens, a certificate and its key, and who has which right. Out: the rules in force, and the TLS configuration. Must
//! not: accept a secret that others may read, or put one new secret into force when another is bad.
//!
//! Browsers and Prometheus send the token in different ways: as the password of `Authorization: Basic`, whose user is ignored, or as
//! `Authorization: Bearer`.
//!
//! A page of another site may let its own name resolve to this machine (DNS rebinding). Its requests then carry that name. The server
//! therefore answers only for names of this machine: `localhost`, the names of the certificate, and plain addresses, which DNS cannot
//! redirect.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use anyhow::{Context, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustls::client::verify_server_name;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::ParsedCertificate;
use terrace_linux::processes::group_id;

use crate::rights::{Grants, LONGEST_FILE, Right, Rules, read_secret, read_token};

/// Paths of the secrets, and who has which right.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessConfig {
    /// The token of the HTTP server. It gives the right to read; without it a peer over TCP sees only whether the daemon is alive.
    pub token: Option<PathBuf>,
    /// The certificate, followed by its chain (PEM).
    pub certificate: Option<PathBuf>,
    /// Its private key (PEM).
    pub key: Option<PathBuf>,
    /// A group whose members may read. It need not exist.
    pub group: Option<String>,
    /// Who has which right, besides root.
    pub grants: Grants,
}

/// The secrets and rules in force at one moment.
#[derive(Clone, Default)]
pub struct Access {
    /// Who may do what.
    pub rules: Rules,
    /// The TLS configuration, if connections are encrypted.
    pub tls: Option<Arc<rustls::ServerConfig>>,
    /// The certificate, which holds the names that this server answers for, and its chain.
    chain: Vec<CertificateDer<'static>>,
}

impl Access {
    /// Reads the secrets.
    ///
    /// # Errors
    /// A file cannot be read or has the wrong form, others may read a secret, or a certificate and a key do not match.
    pub fn from_config(config: &AccessConfig) -> anyhow::Result<Access> {
        let mut rules = Rules::from_grants(&config.grants)?;
        if let Some(path) = &config.token {
            rules.grant_token(Right::Read, read_token(path, "metrics.token")?);
            rules.unknown = Right::Alive;
        }
        if let Some(group) = config.group.as_deref().and_then(group_id) {
            rules.grant_group(Right::Read, group);
        }
        let (tls, chain) = match (&config.certificate, &config.key) {
            (Some(certificate), Some(key)) => {
                let (tls, chain) = tls(certificate, key)?;
                (Some(Arc::new(tls)), chain)
            }
            _ => (None, Vec::new()),
        };
        Ok(Access { rules, tls, chain })
    }

    /// Whether this server answers for the name in a request's `Host` header.
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
            return address.is_loopback() || self.rules.has_tokens();
        }
        let (Some(leaf), Ok(name)) = (self.chain.first(), ServerName::try_from(name)) else { return false };
        ParsedCertificate::try_from(leaf).is_ok_and(|leaf| verify_server_name(&leaf, &name).is_ok())
    }

    /// Lists the differences from `before` in words; `None` if there are none.
    fn news(&self, before: &Access) -> Option<&'static str> {
        match (!self.rules.same_tokens(&before.rules), self.chain != before.chain) {
            (true, true) => Some("a new token and a new certificate are in force"),
            (true, false) => Some("a new token is in force"),
            (false, true) => Some("a new certificate is in force"),
            (false, false) => None,
        }
    }
}

/// The token in an `Authorization` header, if there is one.
pub fn token_of(authorization: &[u8]) -> Option<Vec<u8>> {
    let space = authorization.iter().position(|byte| *byte == b' ')?;
    let (scheme, given) = (&authorization[..space], authorization[space + 1..].trim_ascii());
    if scheme.eq_ignore_ascii_case(b"bearer") {
        return Some(given.to_vec());
    }
    if scheme.eq_ignore_ascii_case(b"basic") {
        let decoded = STANDARD.decode(given).ok()?;
        let colon = decoded.iter().position(|byte| *byte == b':')?;
        return Some(decoded[colon + 1..].to_vec());
    }
    None
}

/// The rules and secrets in force, and their paths. A reload reads them again, as a renewed certificate needs.
pub struct Keys {
    config: AccessConfig,
    now: RwLock<Arc<Access>>,
}

impl Keys {
    /// Reads the secrets.
    ///
    /// # Errors
    /// As [`Access::from_config`].
    pub fn from_config(config: &AccessConfig) -> anyhow::Result<Keys> {
        Ok(Keys { now: RwLock::new(Arc::new(Access::from_config(config)?)), config: config.clone() })
    }

    /// The rules and secrets in force.
    pub fn now(&self) -> Arc<Access> {
        // A panicking thread leaves no partial change: a change is one assignment.
        Arc::clone(&self.now.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Reads the files again, with the current grants, and puts nothing into force. The paths of the server's own secrets and the group are
    /// those of the start.
    ///
    /// # Errors
    /// As [`Access::from_config`].
    pub fn read_again(&self, grants: &Grants) -> anyhow::Result<Access> {
        Access::from_config(&AccessConfig { grants: grants.clone(), ..self.config.clone() })
    }

    /// Puts what was read into force: rules at once, the certificate for new connections. Returns the changes in words.
    pub fn take(&self, fresh: Access) -> Option<&'static str> {
        let mut now = self.now.write().unwrap_or_else(PoisonError::into_inner);
        let news = fresh.news(&now);
        *now = Arc::new(fresh);
        news
    }
}

fn tls(certificate: &Path, key: &Path) -> anyhow::Result<(rustls::ServerConfig, Vec<CertificateDer<'static>>)> {
    let told = || format!("metrics.certificate = \"{}\"", certificate.display());
    let text = terrace_files::read(certificate, LONGEST_FILE).with_context(told)?;
    let chain: Vec<CertificateDer<'static>> =
        CertificateDer::pem_slice_iter(&text).collect::<Result<_, _>>().with_context(told)?;
    ensure!(!chain.is_empty(), "{}: the file holds no certificate (PEM)", told());
    let private = PrivateKeyDer::from_pem_slice(&read_secret(key, "metrics.key")?)
        .with_context(|| format!("metrics.key = \"{}\"", key.display()))?;
    rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain.clone(), private))
        .with_context(|| format!("{}: with metrics.key = \"{}\"", told(), key.display()))
        .map(|config| (config, chain))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::unix::fs::PermissionsExt;

    const TOKEN: &str = "0123456789abcdef0123456789abcdef";

    #[test]
    fn a_token_is_given_as_a_bearer_or_as_a_password() {
        let given = |header: &str| token_of(header.as_bytes());
        let right = Some(TOKEN.as_bytes().to_vec());
        assert_eq!(
            (given(&format!("Bearer {TOKEN}")), given(&format!("bearer  {TOKEN} "))),
            (right.clone(), right.clone())
        );
        // printf 'anyone:TOKEN' | base64
        assert_eq!(given("Basic YW55b25lOjAxMjM0NTY3ODlhYmNkZWYwMTIzNDU2Nzg5YWJjZGVm"), right);
        for wrong in ["Bearer", "", "Basic ====", "Basic x", "Basic Zm9v", TOKEN, "Digest x"] {
            assert_eq!(given(wrong), None, "{wrong:?}");
        }
    }

    proptest! {
        #[test]
        fn any_header_is_survived(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = token_of(&bytes);
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
        let refused = || {
            Access::from_config(&AccessConfig { token: Some(path.clone()), ..AccessConfig::default() }).err().unwrap()
        };
        write(&format!("{TOKEN}\n"), 0o644);
        assert!(format!("{:#}", refused()).contains("others may read it (mode 644)"), "{:#}", refused());
        write("secret\n", 0o600);
        assert!(refused().to_string().contains("openssl rand -hex 32"), "{:#}", refused());
        write(&format!("{TOKEN}\n"), 0o640);
        assert!(
            Access::from_config(&AccessConfig { token: Some(path.clone()), ..AccessConfig::default() })
                .unwrap()
                .rules
                .has_tokens()
        );
        std::fs::remove_file(&path).unwrap();
        assert!(format!("{:#}", refused()).contains("metrics.token = "), "{:#}", refused());
        let certificate = place.path().join("certificate");
        std::fs::write(&certificate, "no certificate").unwrap();
        let paths =
            AccessConfig { certificate: Some(certificate.clone()), key: Some(certificate), ..AccessConfig::default() };
        assert!(format!("{:#}", Access::from_config(&paths).err().unwrap()).contains("metrics.certificate"));
    }
}
