//! The program's own measure of how fast it is: a number that somebody else writes, or what the kernel counts of the program.
//!
//! In: the words of `--metric` or of a class's key `metric`. Out: [`Metric`], and readings of it ([`read`], [`own`]). Must not: wait longer
//! than [`read::DEADLINE`] for a reading, keep more than [`read::LONGEST`] bytes of an answer, or leave a process behind.

pub mod own;
pub mod read;

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// What a number means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// A sum of work done since some beginning: its growth a second is the speed.
    Counter,
    /// A speed: more is better.
    Gauge,
    /// A price, such as a latency: less is better.
    Cost,
}

/// Where a number is from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Instructions that the program retired (hardware counter).
    Instructions,
    /// Share of the time in which the program could run that it spent in its own code, not in the kernel and not waiting for a processor.
    Processor,
    /// The first of these two that this machine has.
    Auto,
    /// A regular file.
    File(PathBuf),
    /// What a command prints, run by sh.
    Command(String),
    /// What a GET of a page answers.
    Page {
        /// Whole address, without the name after `#`.
        url: String,
        /// `host:port`; `None` where curl(1) is asked, which speaks TLS.
        authority: Option<String>,
        /// Path and query.
        path: String,
    },
    /// A field of what a redis server says of itself to INFO.
    Redis {
        /// `host:port`.
        authority: String,
    },
}

/// See the module's header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metric {
    /// As it was given.
    pub text: String,
    /// Where it is from.
    pub source: Source,
    /// What it means.
    pub meaning: Meaning,
    /// The name before the number, where an answer has several.
    pub name: Option<String>,
}

/// Words that are no metric.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NotAMetric(String);

/// What can be written, for messages.
const FORMS: &str = "expected auto, instructions, cpu, file:PATH, command:WORDS, http://HOST/PATH#NAME or redis://HOST:PORT, with gauge= or cost= before it \
     unless it counts work";
/// What redis serves on (redis.io).
const REDIS_PORT: u16 = 6379;
/// How many commands a redis server has processed.
const REDIS_FIELD: &str = "total_commands_processed";

impl FromStr for Metric {
    type Err = NotAMetric;

    fn from_str(text: &str) -> Result<Metric, NotAMetric> {
        let refuse = |why: &str| Err(NotAMetric(why.to_owned()));
        let prefixes = [("counter=", Meaning::Counter), ("gauge=", Meaning::Gauge), ("cost=", Meaning::Cost)];
        let given = prefixes.iter().find_map(|(prefix, meaning)| Some((text.strip_prefix(prefix)?, *meaning)));
        let (rest, meaning) = given.unwrap_or((text, Meaning::Counter));
        let own = match rest {
            "instructions" => Some((Source::Instructions, Meaning::Counter)),
            "cpu" => Some((Source::Processor, Meaning::Gauge)),
            "auto" => Some((Source::Auto, Meaning::Counter)),
            _ => None,
        };
        if let Some((source, meaning)) = own {
            if given.is_some() {
                return refuse("what the kernel counts needs no counter=, gauge= or cost= before it");
            }
            return Ok(Metric { text: text.to_owned(), source, meaning, name: None });
        }
        let Some((kind, place)) = rest.split_once(':') else { return refuse(FORMS) };
        // A command's # is the shell's, everything else's leads to a name.
        let (place, name) = match place.rsplit_once('#') {
            Some((place, name)) if kind != "command" => (place, Some(name)),
            _ => (place, None),
        };
        if name == Some("") {
            return refuse("expected a name after #: that of the number in the answer");
        }
        let mut name = name.map(str::to_owned);
        if place.trim_matches('/').trim().is_empty() {
            return refuse(FORMS);
        }
        let source = match kind {
            "file" => Source::File(PathBuf::from(place)),
            "command" => Source::Command(place.to_owned()),
            "http" | "https" => {
                let Some(rest) = place.strip_prefix("//") else { return refuse(FORMS) };
                let at = rest.find(['/', '?']).unwrap_or(rest.len());
                let path =
                    if rest[at..].starts_with('/') { rest[at..].to_owned() } else { format!("/{}", &rest[at..]) };
                let authority = authority(&rest[..at], 80)?;
                if place.contains(|letter: char| letter.is_whitespace() || letter.is_control()) {
                    return refuse("expected an address without spaces: write %20");
                }
                Source::Page { url: format!("{kind}:{place}"), authority: (kind == "http").then_some(authority), path }
            }
            "redis" => {
                let Some(rest) = place.strip_prefix("//") else { return refuse(FORMS) };
                name.get_or_insert_with(|| REDIS_FIELD.to_owned());
                Source::Redis { authority: authority(rest.trim_end_matches('/'), REDIS_PORT)? }
            }
            _ => return refuse(FORMS),
        };
        Ok(Metric { text: text.to_owned(), source, meaning, name })
    }
}

/// `host:port`, with the usual port if none is given.
fn authority(text: &str, port: u16) -> Result<String, NotAMetric> {
    if text.contains('@') {
        let why = "expected no user and no password: others could read them in the list of processes; use command: with a program that has its own file";
        return Err(NotAMetric(why.to_owned()));
    }
    // In [::1] colons belong to the address.
    let (host, given) = match text.rsplit_once(':') {
        Some((host, given)) if !given.contains(']') => (host, Some(given)),
        _ => (text, None),
    };
    let port = match given {
        None => port,
        Some(given) => match given.parse() {
            Ok(port) if port > 0 => port,
            _ => return Err(NotAMetric(format!("expected a port of 1 to 65535 after the host, not {given:?}"))),
        },
    };
    if host.is_empty() || host.contains(|letter: char| letter.is_whitespace() || letter == '/') {
        return Err(NotAMetric("expected a host, such as localhost".to_owned()));
    }
    Ok(format!("{host}:{port}"))
}

impl fmt::Display for Metric {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metric(text: &str) -> Metric {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn a_metric_is_a_source_with_a_meaning_and_a_name() {
        assert_eq!(metric("cpu").source, Source::Processor);
        assert_eq!(metric("file:/run/app/done").source, Source::File(PathBuf::from("/run/app/done")));
        assert_eq!(metric("file:/run/app/done").meaning, Meaning::Counter);
        let latency = metric("cost=command:tail -n1 latency.log # the last");
        assert_eq!(latency.source, Source::Command("tail -n1 latency.log # the last".to_owned()));
        assert_eq!((latency.meaning, latency.name), (Meaning::Cost, None));
        let page = metric("gauge=http://localhost:9090/metrics?all#requests");
        let (authority, path) = (Some("localhost:9090".to_owned()), "/metrics?all".to_owned());
        assert_eq!(page.source, Source::Page { url: "http://localhost:9090/metrics?all".to_owned(), authority, path });
        assert_eq!((page.meaning, page.name.as_deref()), (Meaning::Gauge, Some("requests")));
        for text in ["redis://localhost", "redis://localhost:6379/", "redis://[::1]:7000#used_memory"] {
            assert!(matches!(metric(text).source, Source::Redis { .. }), "{text}");
        }
        assert_eq!(metric("redis://localhost").name.as_deref(), Some(REDIS_FIELD));
        let Source::Page { authority, path, .. } = metric("https://[::1]").source else { panic!() };
        assert_eq!((authority, path.as_str()), (None, "/"), "curl is asked");
    }

    #[test]
    fn words_that_are_no_metric_say_what_one_is() {
        for (text, says) in [
            ("", "expected auto"),
            ("speed", "expected auto"),
            ("file:", "expected auto"),
            ("command: ", "expected auto"),
            ("http:/host", "expected auto"),
            ("cost=cpu", "needs no counter="),
            ("redis://", "expected auto"),
            ("redis://localhost:0", "a port of 1 to 65535"),
            ("redis://localhost:many", "a port of 1 to 65535"),
            ("redis://:secret@localhost", "no password"),
            ("http://:80/", "expected a host"),
            ("http://host/a b", "without spaces"),
            ("file:/run/app#", "a name after #"),
        ] {
            let error = text.parse::<Metric>().unwrap_err().to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
