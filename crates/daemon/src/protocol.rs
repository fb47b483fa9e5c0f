//! The protocol of the control socket: one JSON object a line, each request answered by one line, in order.
//!
//! In: lines. Out: [`Request`]s and [`Response`]s. Must not: do what is asked. docs/reference/daemon.md is its description.

use serde::{Deserialize, Serialize};

use crate::rights::Right;

/// The versions of the protocol that this daemon speaks, oldest first.
pub const VERSIONS: &[u32] = &[1];
/// The longest request, in bytes, its line's end included.
pub const LONGEST_REQUEST: usize = 64 << 10;
/// The longest response that a client takes.
pub const LONGEST_RESPONSE: u64 = 64 << 20;

/// A question, or an order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// The version of the protocol it is written in.
    pub terrace: u32,
    /// A token that gives a right which the peer's user has not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// What is asked.
    #[serde(flatten)]
    pub verb: Verb,
}

/// What can be asked; [`Verb::needs`] says by whom.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "verb", rename_all = "lowercase", deny_unknown_fields)]
pub enum Verb {
    /// Which versions are spoken.
    Hello {},
    /// Everything at a glance.
    Status {},
    /// What happened.
    History {
        /// Only what came after this number.
        #[serde(default)]
        after: u64,
        /// At most so many, the latest.
        #[serde(default)]
        limit: Option<usize>,
        /// Only what is about this class.
        #[serde(default)]
        class: Option<String>,
    },
    /// The course of the last minutes.
    Timeline {},
    /// Where a class's memory is used.
    Heat {
        /// The class.
        class: String,
    },
    /// How a class's pages spread over what its policy ranks them by.
    Bins {
        /// The class.
        class: String,
    },
    /// How much slower a class would be with less fast memory, and what its tuner does about it.
    Sizing {
        /// The class.
        class: String,
    },
    /// Why a process, or a page of it, is where it is.
    Explain {
        /// The process.
        pid: u32,
        /// An address within the page.
        #[serde(default)]
        address: Option<u64>,
    },
    /// Look at nothing and move nothing until told otherwise.
    Pause {
        /// One class; without it all.
        #[serde(default)]
        class: Option<String>,
    },
    /// Go on after pause or drain.
    Resume {
        /// One class; without it all.
        #[serde(default)]
        class: Option<String>,
    },
    /// Bring back what was moved to slower memory, then pause.
    Drain {
        /// One class; without it all.
        #[serde(default)]
        class: Option<String>,
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
            Verb::Pause { .. } | Verb::Resume { .. } | Verb::Drain { .. } => Right::Operate,
            Verb::Reload {} | Verb::Set { .. } => Right::Admin,
        }
    }
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Response {
    /// The version it is written in.
    pub terrace: u32,
    /// Whether what was asked was done.
    pub ok: bool,
    /// The answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<serde_json::Value>,
    /// What kind of failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<Code>,
    /// What was wrong, and what to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Kinds of failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Code {
    /// The request is none.
    Malformed,
    /// Its version is not spoken.
    Version,
    /// The peer may not.
    Denied,
    /// Too many requests, or too many connections.
    Busy,
    /// There is no such class, process or key.
    Unknown,
    /// It could not be done.
    Failed,
}

impl Response {
    /// Done, with this answer.
    pub fn done(data: impl Serialize) -> Response {
        match serde_json::to_value(data) {
            Ok(data) => Response { terrace: VERSIONS[0], ok: true, data: Some(data), code: None, error: None },
            Err(error) => Response::failed(Code::Failed, format!("the answer could not be written: {error}")),
        }
    }

    /// Not done.
    pub fn failed(code: Code, error: impl Into<String>) -> Response {
        Response { terrace: VERSIONS[0], ok: false, data: None, code: Some(code), error: Some(error.into()) }
    }

    /// As a line.
    pub fn line(&self) -> Vec<u8> {
        let mut line = serde_json::to_vec(self).unwrap_or_default();
        line.push(b'\n');
        line
    }
}

/// Reads a request.
///
/// # Errors
/// The response to send instead.
pub fn parse(line: &[u8]) -> Result<Request, Response> {
    // The version comes first: the rest of a request in a version that is not spoken cannot be understood.
    #[derive(Deserialize)]
    struct Versioned {
        terrace: u32,
    }
    let versions = VERSIONS.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
    match serde_json::from_slice::<Versioned>(line) {
        Ok(versioned) if VERSIONS.contains(&versioned.terrace) => {}
        Ok(versioned) => {
            let error =
                format!("version {} of the protocol is not spoken here; spoken are: {versions}", versioned.terrace);
            return Err(Response::failed(Code::Version, error));
        }
        Err(error) => {
            let error = format!("a request is one JSON object such as {{\"terrace\":1,\"verb\":\"status\"}}: {error}");
            return Err(Response::failed(Code::Malformed, error));
        }
    }
    serde_json::from_slice::<Request>(line)
        .map_err(|error| Response::failed(Code::Malformed, format!("this is no request: {error}")))
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
