//! The protocol of the control socket: one JSON object per line, each request answered by one line, in order.
//!
//! In: lines. Out: [`Request`]s and [`Response`]s. Must not: carry out a request. docs/reference/daemon.md describes the protocol.

use serde::{Deserialize, Serialize};

use crate::rights::Right;

/// The versions of the protocol that this daemon speaks, oldest first.
pub const VERSIONS: &[u32] = &[1];
/// The longest request in bytes, including the newline.
pub const LONGEST_REQUEST: usize = 64 << 10;
/// The longest response that a client reads.
pub const LONGEST_RESPONSE: u64 = 64 << 20;

/// A request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// The protocol version of the request.
    pub terrace: u32,
    /// A token that gives a right which the peer's user lacks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// The verb.
    #[serde(flatten)]
    pub verb: Verb,
}

/// The verbs; [`Verb::needs`] is the right each needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "verb", rename_all = "lowercase", deny_unknown_fields)]
pub enum Verb {
    /// Which versions are supported.
    Hello {},
    /// The whole status.
    Status {},
    /// The history.
    History {
        /// Only events after this number.
        #[serde(default)]
        after: u64,
        /// Show at most this many, the latest.
        #[serde(default)]
        limit: Option<usize>,
        /// Only events of this class.
        #[serde(default)]
        class: Option<String>,
    },
    /// The timeline of the last minutes.
    Timeline {},
    /// Which addresses of a class are accessed.
    Heat {
        /// The class.
        class: String,
    },
    /// The histogram of a class's pages by policy score.
    Bins {
        /// The class.
        class: String,
    },
    /// How much slower a class would be with less fast memory, and the decisions of its tuner.
    Sizing {
        /// The class.
        class: String,
    },
    /// Why a process, or one of its pages, is where it is.
    Explain {
        /// The process.
        pid: u32,
        /// An address within the page.
        #[serde(default)]
        address: Option<u64>,
    },
    /// Stop scanning and moving until a resume.
    Pause {
        /// One class; all if absent.
        #[serde(default)]
        class: Option<String>,
    },
    /// Go on after pause or drain.
    Resume {
        /// One class; all if absent.
        #[serde(default)]
        class: Option<String>,
    },
    /// Promote what was moved to slower memory, then pause.
    Drain {
        /// One class; all if absent.
        #[serde(default)]
        class: Option<String>,
    },
    /// Bring back at once what a class, or one process of it, used when it was awake last.
    Wake {
        /// The class.
        #[serde(default)]
        class: Option<String>,
        /// The process, with its children.
        #[serde(default)]
        pid: Option<u32>,
    },
    /// Read the configuration again.
    Reload {},
    /// Change one key until the next reload.
    Set {
        /// The key, such as class.web.floor.
        key: String,
        /// Its value as TOML.
        value: String,
    },
}

impl Verb {
    /// The right it needs.
    pub fn needs(&self) -> Right {
        match self {
            Verb::Hello {} => Right::Metrics,
            Verb::Status {}
            | Verb::History { .. }
            | Verb::Timeline {}
            | Verb::Heat { .. }
            | Verb::Bins { .. }
            | Verb::Sizing { .. }
            | Verb::Explain { .. } => Right::Read,
            Verb::Pause { .. } | Verb::Resume { .. } | Verb::Drain { .. } | Verb::Wake { .. } => Right::Operate,
            Verb::Reload {} | Verb::Set { .. } => Right::Admin,
        }
    }
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Response {
    /// The protocol version of the answer.
    pub terrace: u32,
    /// Whether the request was carried out.
    pub ok: bool,
    /// The answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<serde_json::Value>,
    /// The kind of failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<Code>,
    /// What was wrong, and what to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The kinds of failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Code {
    /// The request cannot be parsed.
    Malformed,
    /// Its version is not supported.
    Version,
    /// The peer lacks the right.
    Denied,
    /// Too many requests, or too many connections.
    Busy,
    /// No such class, process or key.
    Unknown,
    /// It failed.
    Failed,
}

impl Response {
    /// A success, with this answer.
    pub fn done(data: impl Serialize) -> Response {
        match serde_json::to_value(data) {
            Ok(data) => Response { terrace: VERSIONS[0], ok: true, data: Some(data), code: None, error: None },
            Err(error) => Response::failed(Code::Failed, format!("the answer could not be written: {error}")),
        }
    }

    /// A failure.
    pub fn failed(code: Code, error: impl Into<String>) -> Response {
        Response { terrace: VERSIONS[0], ok: false, data: None, code: Some(code), error: Some(error.into()) }
    }

    /// The answer as a line.
    pub fn line(&self) -> Vec<u8> {
        let mut line = serde_json::to_vec(self).unwrap_or_default();
        line.push(b'\n');
        line
    }
}

/// Parses a request.
///
/// # Errors
/// The response to send instead.
pub fn parse(line: &[u8]) -> Result<Request, Response> {
    // Check the version first: a request of an unsupported version cannot be parsed.
    #[derive(Deserialize)]
    struct Versioned {
        terrace: u32,
    }
    let versions = VERSIONS.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
    match serde_json::from_slice::<Versioned>(line) {
        Ok(versioned) if VERSIONS.contains(&versioned.terrace) => {}
        Ok(versioned) => {
            let error =
                format!("protocol version {} is not supported; supported versions: {versions}", versioned.terrace);
            return Err(Response::failed(Code::Version, error));
        }
        Err(error) => {
            let error = format!("a request is one JSON object such as {{\"terrace\":1,\"verb\":\"status\"}}: {error}");
            return Err(Response::failed(Code::Malformed, error));
        }
    }
    serde_json::from_slice::<Request>(line)
        .map_err(|error| Response::failed(Code::Malformed, format!("invalid request: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_request_is_understood_and_a_wrong_one_told_why() {
        let request = |verb, token: Option<&str>| Ok(Request { terrace: 1, token: token.map(str::to_owned), verb });
        assert_eq!(parse(br#"{"terrace":1,"verb":"status"}"#), request(Verb::Status {}, None));
        assert_eq!(parse(br#"{"terrace":1,"token":"t","verb":"status"}"#), request(Verb::Status {}, Some("t")));
        let explain = parse(br#"{"terrace":1,"verb":"explain","pid":7,"address":4096}"#);
        assert_eq!(explain, request(Verb::Explain { pid: 7, address: Some(4096) }, None));
        let code = |line: &str| parse(line.as_bytes()).unwrap_err().code.unwrap();
        assert_eq!(code(r#"{"terrace":99,"verb":"anything","new":1}"#), Code::Version);
        for wrong in
            [r#"{"verb":"status"}"#, r#"{"terrace":1}"#, r#"{"terrace":1,"verb":"destroy"}"#, "status", "", "[]"]
        {
            assert_eq!(code(wrong), Code::Malformed, "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn any_line_gets_an_answer(line in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Err(response) = parse(&line) {
                prop_assert!(!response.ok && response.error.is_some());
            }
        }
    }
}
