//! Selectors of processes.
//!
//! In: a selector as written, and the facts of a process. Out: whether it matches. Must not: read a process itself.

use glob::{MatchOptions, Pattern};
use terrace_linux::processes::{Facts, user_id};
use terrace_run::spec::value::ValueError;

use super::node::Value;
use super::schema;

/// One selector: all its parts must match.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Selector {
    pid: Option<u32>,
    name: Option<Pattern>,
    exe: Option<Pattern>,
    user: Option<u32>,
    cgroup: Option<Pattern>,
    container: Option<Container>,
    guest: Option<bool>,
    /// Whether it means every process that no other selector matches, but for what holds the machine up.
    pub all: bool,
    /// Whether processes started by a matching process belong to it as well.
    pub children: bool,
}

#[derive(Clone, Debug, PartialEq)]
enum Container {
    Any,
    /// The beginning of the container's ID.
    Begins(String),
}

/// A star stays within one part of a path; a leading point is not special.
const OPTIONS: MatchOptions =
    MatchOptions { case_sensitive: true, require_literal_separator: true, require_literal_leading_dot: false };
/// Longer patterns are rejected: the time to match grows with the length.
const LONGEST_PATTERN: usize = 512;
/// Each star of a pattern doubles the worst-case time to match.
const MOST_STARS: usize = 8;

impl Selector {
    /// Whether it selects by cgroup or by container, which the cgroup names.
    pub fn asks_for_cgroups(&self) -> bool {
        self.cgroup.is_some() || self.container.is_some()
    }

    /// The one cgroup that it names, if it names that and nothing else.
    pub fn whole_cgroup(&self) -> Option<&str> {
        let pattern = self.cgroup.as_ref()?;
        let alone = Selector { cgroup: Some(pattern.clone()), children: self.children, ..Selector::default() };
        (*self == alone && !pattern.as_str().contains(['*', '?', '['])).then_some(pattern.as_str())
    }

    /// Whether a process matches, without its ancestors.
    pub fn matches(&self, facts: &Facts) -> bool {
        self.pid.is_none_or(|pid| pid == facts.pid)
            && self.name.as_ref().is_none_or(|name| name.matches(&facts.name))
            && self
                .exe
                .as_ref()
                .is_none_or(|exe| facts.exe.as_ref().is_some_and(|path| exe.matches_with(path, OPTIONS)))
            && self.user.is_none_or(|user| user == facts.user)
            && self.cgroup.as_ref().is_none_or(|cgroup| facts.cgroups.iter().any(|path| holds(cgroup, path)))
            && self.container.as_ref().is_none_or(|wanted| match (wanted, &facts.container) {
                (_, None) => false,
                (Container::Any, Some(_)) => true,
                (Container::Begins(start), Some(identity)) => identity.starts_with(start.as_str()),
            })
            && self.guest.is_none_or(|guest| guest == facts.guest.is_some())
    }
}

/// Whether a pattern matches a cgroup or an ancestor of it.
fn holds(pattern: &Pattern, path: &str) -> bool {
    if pattern.matches_with(path, OPTIONS) {
        return true;
    }
    path.match_indices('/').skip(1).any(|(end, _)| pattern.matches_with(&path[..end], OPTIONS))
        || pattern.as_str() == "/"
}

/// Why a selector, or a part of one, makes no sense.
#[derive(Debug, thiserror::Error)]
pub(super) enum SelectorError {
    #[error(transparent)]
    Value(#[from] ValueError),
    #[error("a selector has no such part; {0}")]
    NoPart(String),
    #[error("a pattern has at most {LONGEST_PATTERN} bytes and {MOST_STARS} stars")]
    LongPattern,
    #[error("{text:?} is not a pattern: {} at position {}", .why.msg, .why.pos)]
    Pattern { text: String, why: glob::PatternError },
    #[error(
        "this selector names no process; write at least one of pid, name, exe, user, cgroup, container, guest, or all = true"
    )]
    Nothing,
}

/// A selector under construction.
#[derive(Default)]
pub(super) struct SelectorParts {
    selector: Selector,
    narrows: bool,
}

impl SelectorParts {
    pub(super) fn add(&mut self, name: &str, value: &Value) -> Result<(), SelectorError> {
        let selector = &mut self.selector;
        let text = || match value {
            Value::Text(text) if !text.is_empty() => Ok(text.as_str()),
            other => Err(ValueError::value(other, "not a text, or is empty")),
        };
        let flag = || match value {
            Value::Boolean(whether) => Ok(*whether),
            other => Err(ValueError::value(other, "neither true nor false")),
        };
        self.narrows |= !matches!(name, "children" | "all") || *value == Value::Boolean(true) && name == "all";
        match name {
            "pid" => match value {
                Value::Integer(pid) if (1..=1 << 22).contains(pid) => selector.pid = Some(*pid as u32),
                other => return Err(ValueError::value(other, "not a pid from 1 to 4194304").into()),
            },
            "name" => selector.name = Some(pattern(text()?)?),
            "exe" => selector.exe = Some(pattern(text()?)?),
            "user" => {
                let name = match value {
                    Value::Integer(number) => number.to_string(),
                    _ => text()?.to_owned(),
                };
                let number = user_id(&name).ok_or(ValueError::Nobody { kind: "user", name })?;
                selector.user = Some(number);
            }
            "cgroup" => {
                let text = text()?;
                let path = text.strip_prefix("/sys/fs/cgroup").unwrap_or(text);
                let path = if path.len() > 1 { path.trim_end_matches('/') } else { path };
                if !path.starts_with('/') {
                    let fault = " is not the path of a cgroup, which begins with / (the root)";
                    return Err(ValueError::text(text, fault).into());
                }
                selector.cgroup = Some(pattern(path)?);
            }
            "container" => {
                let text = text()?;
                selector.container = Some(match text {
                    "any" => Container::Any,
                    id if id.len() >= 8 && id.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
                        Container::Begins(id.to_ascii_lowercase())
                    }
                    other => {
                        let fault = " is neither any nor the first 8 or more hexadecimal digits of a container's ID; \
                                     names are known to the container's runtime only";
                        return Err(ValueError::text(other, fault).into());
                    }
                });
            }
            "guest" => selector.guest = Some(flag()?),
            "all" => selector.all = flag()?,
            "children" => selector.children = flag()?,
            other => {
                let near = terrace_common::nearest(other, schema::SELECTOR_KEYS.iter().map(|(name, ..)| *name));
                let known: Vec<&str> = schema::SELECTOR_KEYS.iter().map(|(name, ..)| *name).collect();
                return Err(SelectorError::NoPart(match near {
                    Some(near) => format!("did you mean {near}?"),
                    None => format!("its parts are {}", known.join(", ")),
                }));
            }
        }
        Ok(())
    }

    pub(super) fn finish(self) -> Result<Selector, SelectorError> {
        if self.narrows { Ok(self.selector) } else { Err(SelectorError::Nothing) }
    }
}

fn pattern(text: &str) -> Result<Pattern, SelectorError> {
    if text.len() > LONGEST_PATTERN || text.matches('*').count() > MOST_STARS {
        return Err(SelectorError::LongPattern);
    }
    Pattern::new(text).map_err(|why| SelectorError::Pattern { text: text.to_owned(), why })
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_linux::processes::Guest;

    fn selector(parts: &[(&str, &str)]) -> Selector {
        let mut made = SelectorParts::default();
        for (name, text) in parts {
            let value = match *text {
                "true" => Value::Boolean(true),
                "false" => Value::Boolean(false),
                number if number.parse::<i64>().is_ok() => Value::Integer(number.parse().unwrap()),
                other => Value::Text(other.to_owned()),
            };
            made.add(name, &value).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
        made.finish().unwrap()
    }

    fn facts() -> Facts {
        Facts {
            pid: 42,
            start_time: 7,
            parent: 1,
            name: "redis-server".to_owned(),
            exe: Some("/usr/bin/redis-server".to_owned()),
            user: 1000,
            cgroups: vec!["/system.slice/redis.service/worker".to_owned()],
            container: None,
            guest: None,
            locks_memory: false,
            real_time: false,
        }
    }

    #[test]
    fn all_parts_of_a_selector_must_match() {
        let facts = facts();
        assert!(selector(&[("exe", "/usr/bin/redis-*"), ("user", "1000")]).matches(&facts));
        assert!(!selector(&[("exe", "/usr/bin/redis-*"), ("user", "1001")]).matches(&facts));
        assert!(selector(&[("name", "redis*")]).matches(&facts));
        assert!(selector(&[("pid", "42")]).matches(&facts) && !selector(&[("pid", "43")]).matches(&facts));
        assert!(!selector(&[("exe", "/usr/*")]).matches(&facts), "a star stays within one part of the path");
    }

    #[test]
    fn a_cgroup_is_meant_with_its_descendants_and_by_whole_names() {
        let facts = facts();
        for meant in [
            "/",
            "/system.slice",
            "/system.slice/redis.service",
            "/*/redis*",
            "/sys/fs/cgroup/system.slice/",
            "/**/worker",
        ] {
            assert!(selector(&[("cgroup", meant)]).matches(&facts), "{meant}");
        }
        for other in ["/system", "/system.slice/redis", "/redis*", "/user.slice"] {
            assert!(!selector(&[("cgroup", other)]).matches(&facts), "{other}");
        }
    }

    #[test]
    fn containers_and_guests_are_told_by_their_facts() {
        let identity = "0123456789abcdef".repeat(4);
        let inside = Facts { container: Some(identity.clone()), guest: Some(Guest { kvm: true }), ..facts() };
        assert!(
            selector(&[("container", "any")]).matches(&inside) && !selector(&[("container", "any")]).matches(&facts())
        );
        assert!(selector(&[("container", &identity[..12])]).matches(&inside));
        assert!(selector(&[("guest", "true")]).matches(&inside) && selector(&[("guest", "false")]).matches(&facts()));
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_what_would() {
        let add = |name: &str, value: Value| SelectorParts::default().add(name, &value).unwrap_err().to_string();
        assert!(add("exee", Value::Text("x".into())).contains("did you mean exe?"));
        assert!(add("user", Value::Text("nobody-of-that-name".into())).contains("no user"));
        assert!(add("container", Value::Text("web".into())).contains("runtime"));
        assert!(add("cgroup", Value::Text("web".into())).contains("begins with /"));
        assert!(add("exe", Value::Text("a***".into())).contains("not a pattern"));
        let mut only_children = SelectorParts::default();
        only_children.add("children", &Value::Boolean(true)).unwrap();
        assert!(only_children.finish().unwrap_err().to_string().contains("names no process"));
    }

    #[test]
    fn a_whole_cgroup_is_one_that_is_named_alone() {
        assert_eq!(selector(&[("cgroup", "/sys/fs/cgroup/jobs/")]).whole_cgroup(), Some("/jobs"));
        for parts in [&[("cgroup", "/jobs/*")] as &[_], &[("cgroup", "/jobs"), ("user", "0")], &[("name", "redis")]] {
            assert_eq!(selector(parts).whole_cgroup(), None, "{parts:?}");
        }
    }
}
