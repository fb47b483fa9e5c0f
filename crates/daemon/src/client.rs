//! The client's side of the control socket.
//!
//! In: a verb. Out: the daemon's answer. Must not: wait without a time limit, or read an answer without a size limit.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::DeserializeOwned;

use crate::protocol::{Code, LONGEST_RESPONSE, Request, Response, VERSIONS, Verb};

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nothing listens on the socket.
    #[error("terraced does not answer at {socket}; is it running? (systemctl status terraced)")]
    NotThere {
        /// The socket.
        socket: PathBuf,
        /// The kernel's error.
        source: std::io::Error,
    },
    /// Permission for the socket is missing.
    #[error(
        "{socket}: permission denied; ask as root or as a member of the group that daemon.group names, or see daemon.socket_mode"
    )]
    NotPermitted {
        /// The socket.
        socket: PathBuf,
    },
    /// The token cannot be read.
    #[error("TERRACE_TOKEN_FILE={path}: {source}")]
    Token {
        /// The token's file.
        path: PathBuf,
        /// The kernel's error.
        source: std::io::Error,
    },
    /// The connection broke.
    #[error("the connection to terraced broke: {0}")]
    Broken(std::io::Error),
    /// The answer cannot be parsed.
    #[error("terraced's answer cannot be understood: {0}; are the command and the daemon of the same version?")]
    Nonsense(String),
    /// The daemon refused.
    #[error("{text}")]
    Refused {
        /// The kind of refusal.
        code: Code,
        /// The daemon's message.
        text: String,
    },
}

/// Names a file with a token that gives a right which the user lacks (`access.*` in the daemon's configuration).
pub const TOKEN_FILE: &str = "TERRACE_TOKEN_FILE";

/// The longest token file, in bytes.
const LONGEST_TOKEN: u64 = 64 << 10;

/// A connection to the daemon.
pub struct Client {
    stream: BufReader<UnixStream>,
    token: Option<String>,
}

/// Time limit for an answer: a drain or a scan of a large memory keeps the daemon's loop busy for seconds.
const LIMIT: Duration = Duration::from_secs(30);

impl Client {
    /// Connects. Requests carry the token of the file that [`TOKEN_FILE`] names in the environment, if set.
    ///
    /// # Errors
    /// Nothing listens, permission for the socket is missing, or the token cannot be read.
    pub fn connect(socket: &Path) -> Result<Client, ClientError> {
        let token = std::env::var_os(TOKEN_FILE).filter(|path| !path.is_empty()).map(|path| {
            let path = PathBuf::from(path);
            match terrace_files::read_to_string(&path, LONGEST_TOKEN) {
                Ok(text) => Ok(text.trim().to_owned()),
                Err(source) => Err(ClientError::Token { path, source }),
            }
        });
        let token = token.transpose()?;
        let stream = UnixStream::connect(socket).map_err(|source| match source.kind() {
            std::io::ErrorKind::PermissionDenied => ClientError::NotPermitted { socket: socket.to_owned() },
            _ => ClientError::NotThere { socket: socket.to_owned(), source },
        })?;
        stream.set_read_timeout(Some(LIMIT)).map_err(ClientError::Broken)?;
        stream.set_write_timeout(Some(LIMIT)).map_err(ClientError::Broken)?;
        Ok(Client { stream: BufReader::new(stream), token })
    }

    /// Sends a request and waits for the answer.
    ///
    /// # Errors
    /// The connection breaks, the answer cannot be parsed, or the daemon refuses.
    pub fn ask(&mut self, verb: Verb) -> Result<serde_json::Value, ClientError> {
        let request = Request { terrace: VERSIONS[0], token: self.token.clone(), verb };
        let mut line = serde_json::to_vec(&request).map_err(|error| ClientError::Nonsense(error.to_string()))?;
        line.push(b'\n');
        self.stream.get_mut().write_all(&line).map_err(ClientError::Broken)?;
        let mut answer = String::new();
        (&mut self.stream).take(LONGEST_RESPONSE).read_line(&mut answer).map_err(ClientError::Broken)?;
        let response: Response =
            serde_json::from_str(&answer).map_err(|error| ClientError::Nonsense(error.to_string()))?;
        match response {
            Response { ok: true, data, .. } => Ok(data.unwrap_or_default()),
            Response { code, error, .. } => Err(ClientError::Refused {
                code: code.unwrap_or(Code::Failed),
                text: error.unwrap_or_else(|| "terraced refused without a reason".to_owned()),
            }),
        }
    }

    /// Sends a request and decodes the answer.
    ///
    /// # Errors
    /// As [`Client::ask`], and when the answer has another form.
    pub fn get<T: DeserializeOwned>(&mut self, verb: Verb) -> Result<T, ClientError> {
        serde_json::from_value(self.ask(verb)?).map_err(|error| ClientError::Nonsense(error.to_string()))
    }
}
