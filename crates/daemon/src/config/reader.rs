//! Reads typed values from the tree and collects every problem.
//!
//! In: a tree and the keys of `schema`. Out: values (the default where a key is absent or wrong) and the list of all problems, so that a
//! person can fix them in one go. Must not: accept a key that no reader asked for.

use std::collections::BTreeSet;
use std::time::Duration;

use terrace_core::units::Quantity;
use terrace_linux::machine_programs::Never;
use terrace_run::spec::options::{OPTIONS, Set, span};
use terrace_run::spec::value::ValueError;
use terrace_run::spec::{RunSpec, with_expected, with_value};

use super::ConfigError;
use super::node::{Node, Place, Table, Value};
use super::schema;
use super::selector::{Selector, SelectorParts};
use crate::rights::Principal;

/// See the module's header.
pub(super) struct Reader<'a> {
    root: &'a Table,
    pub(super) problems: Vec<ConfigError>,
    taken: BTreeSet<String>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(root: &'a Table) -> Reader<'a> {
        Reader { root, problems: Vec::new(), taken: BTreeSet::new() }
    }

    fn node(&mut self, key: &str) -> Option<&'a Node> {
        self.taken.insert(key.to_owned());
        super::node::get(self.root, key)
    }

    /// Reports a problem with a key's value.
    pub(super) fn complain(&mut self, key: &str, problem: impl Into<String>) {
        let place = self.node(key).map(|node| node.place.clone());
        self.problems.push(ConfigError { place, key: key.to_owned(), problem: problem.into() });
    }

    fn complain_at(&mut self, place: &Place, key: &str, problem: String) {
        self.problems.push(ConfigError { place: Some(place.clone()), key: key.to_owned(), problem });
    }

    /// The value of a key, parsed by `read`. An absent or wrong value becomes the schema's default; a wrong one is also reported, with what
    /// was expected.
    pub(super) fn value<T>(&mut self, key: &str, mut read: impl FnMut(&Value) -> Result<T, ValueError>) -> T {
        let info = schema::find(key).unwrap_or_else(|| panic!("the schema lacks {key}"));
        if let Some(node) = self.node(key) {
            match read(&node.value) {
                Ok(value) => return value,
                Err(problem) => {
                    let given = match &node.value {
                        Value::Text(text) => text.clone(),
                        other => other.to_string(),
                    };
                    let problem = with_value(&with_expected(&problem.to_string(), info.takes), &given);
                    self.complain_at(&node.place, key, problem);
                }
            }
        }
        let default = super::node::parse("default", &format!("value = {}", info.default));
        let value = default.ok().and_then(|table| read(&table.get("value")?.value).ok());
        value.unwrap_or_else(|| panic!("the schema's default of {key} cannot be read"))
    }

    pub(super) fn text<T>(&mut self, key: &str, mut read: impl FnMut(&str) -> Result<T, ValueError>) -> T {
        self.value(key, |value| match value {
            Value::Text(text) => read(text),
            other => Err(ValueError::Kind { value: other.to_string(), kind: other.kind(), wanted: "a text" }),
        })
    }

    pub(super) fn flag(&mut self, key: &str) -> bool {
        self.value(key, |value| match value {
            Value::Boolean(whether) => Ok(*whether),
            other => Err(ValueError::value(other, other.kind())),
        })
    }

    pub(super) fn integer(&mut self, key: &str, range: std::ops::RangeInclusive<i64>) -> i64 {
        self.value(key, |value| match value {
            Value::Integer(number) if range.contains(number) => Ok(*number),
            other => Err(ValueError::Range { value: other.to_string(), least: *range.start(), most: *range.end() }),
        })
    }

    pub(super) fn duration(&mut self, key: &str, least: Duration) -> Duration {
        self.text(key, |text| span(text, least))
    }

    /// Everything of a class that a run has as well.
    pub(super) fn spec(&mut self, class: &str) -> RunSpec {
        let mut spec = RunSpec::default();
        for info in OPTIONS.iter().filter(|info| info.is_key()) {
            let key = format!("class.{class}.{}", info.key());
            // A wrong value is reported by `value`, which then reads the default.
            match info.set {
                Set::Text(set) => self.text(&key, |text| set(&mut spec, text)),
                Set::Flag(set) => set(&mut spec, self.flag(&key)),
                Set::Settings(set) => set(&mut spec, self.settings(&key)),
            }
        }
        for problem in spec.complete() {
            let key = format!("class.{class}.{}", problem.option);
            let told = with_value(&problem.problem, &problem.given);
            match &problem.setting {
                Some(setting) => self.complain_within(&key, setting, told),
                None => self.complain(&key, told),
            }
        }
        spec
    }

    pub(super) fn quantity(&mut self, key: &str) -> Quantity {
        self.text(key, |text| Ok(text.parse()?))
    }

    /// The settings of a policy: texts, numbers and flags, all as text.
    pub(super) fn settings(&mut self, key: &str) -> std::collections::BTreeMap<String, String> {
        self.value(key, |value| {
            let Value::Table(table) = value else { return Err(ValueError::value(value, value.kind())) };
            let settings = table.iter().map(|(name, node)| match &node.value {
                Value::Text(text) => Ok((name.clone(), text.clone())),
                Value::Integer(_) | Value::Float(_) | Value::Boolean(_) => Ok((name.clone(), node.value.to_string())),
                other => {
                    let value = format!("{name} = {other}");
                    Err(ValueError::Kind { value, kind: other.kind(), wanted: "a setting" })
                }
            });
            settings.collect()
        })
    }

    /// A list of principals that get a right.
    pub(super) fn principals(&mut self, key: &str) -> Vec<Principal> {
        self.value(key, |value| {
            let Value::List(list) = value else { return Err(ValueError::value(value, value.kind())) };
            let principal = |node: &Node| match &node.value {
                Value::Text(text) => text.parse(),
                other => Err(ValueError::value(other, other.kind())),
            };
            list.iter().map(principal).collect()
        })
    }

    /// The names that a selector of everything leaves alone.
    pub(super) fn never(&mut self, key: &str) -> Never {
        self.value(key, |value| {
            let Value::List(list) = value else { return Err(ValueError::value(value, value.kind())) };
            let name = |node: &Node| match &node.value {
                Value::Text(text) => Ok(text.clone()),
                other => Err(ValueError::value(other, other.kind())),
            };
            let names: Vec<String> = list.iter().map(name).collect::<Result<_, _>>()?;
            Ok(Never::of(names)?)
        })
    }

    /// The position of an inner key of a table, for a later report.
    pub(super) fn complain_within(&mut self, key: &str, inner: &str, problem: String) {
        let place = match self.node(key).map(|node| (&node.value, &node.place)) {
            Some((Value::Table(table), place)) => Some(table.get(inner).map_or(place, |node| &node.place).clone()),
            other => other.map(|(_, place)| place.clone()),
        };
        self.problems.push(ConfigError { place, key: format!("{key}.{inner}"), problem });
    }

    pub(super) fn selectors(&mut self, key: &str) -> Vec<Selector> {
        let Some(node) = self.node(key) else { return Vec::new() };
        let Value::List(list) = &node.value else {
            let takes = schema::find(key).map_or("", |info| info.takes);
            let problem = format!("{} is {}; expected {takes}", node.value, node.value.kind());
            self.complain_at(&node.place, key, problem);
            return Vec::new();
        };
        let mut selectors = Vec::new();
        for (index, element) in list.iter().enumerate() {
            let key = format!("{key}[{index}]");
            match &element.value {
                Value::Table(table) => selectors.extend(self.selector(&key, element, table)),
                other => {
                    let problem =
                        format!("{other} is {}; expected a selector such as {{ exe = \"/usr/bin/x*\" }}", other.kind());
                    self.complain_at(&element.place, &key, problem);
                }
            }
        }
        selectors
    }

    fn selector(&mut self, key: &str, element: &Node, table: &Table) -> Option<Selector> {
        let before = self.problems.len();
        let mut parts = SelectorParts::default();
        for (name, node) in table {
            if let Err(problem) = parts.add(name, &node.value) {
                self.complain_at(&node.place, &format!("{key}.{name}"), problem.to_string());
            }
        }
        if self.problems.len() > before {
            return None;
        }
        parts.finish().map_err(|problem| self.complain_at(&element.place, key, problem.to_string())).ok()
    }

    /// The names of the classes. A class that is not a table is reported.
    pub(super) fn classes(&mut self) -> Vec<String> {
        let Some(node) = self.node("class") else { return Vec::new() };
        let Value::Table(classes) = &node.value else {
            let problem = format!("expected a table for each class, such as [class.web], not {}", node.value.kind());
            self.complain_at(&node.place, "class", problem);
            return Vec::new();
        };
        let mut names = Vec::new();
        for (name, class) in classes {
            let key = format!("class.{}", super::node::quoted(name));
            if !matches!(class.value, Value::Table(_)) {
                let problem = format!("expected a table such as [{key}], not {}", class.value.kind());
                self.complain_at(&class.place, &key, problem);
            } else if !is_class_name(name) {
                let problem =
                    "a class is named with up to 32 of a-z, 0-9, - and _, since its name becomes a label of metrics";
                self.complain_at(&class.place, &key, problem.to_owned());
            } else {
                names.push(name.clone());
            }
        }
        names
    }

    /// Reports every key that no reader took.
    pub(super) fn finish(mut self) -> Vec<ConfigError> {
        for (key, node) in self.root {
            self.unknown(key, node);
        }
        self.problems.sort_by_key(|error| error.place.as_ref().map(|place| (place.file.clone(), place.line)));
        self.problems
    }

    fn unknown(&mut self, path: &str, node: &Node) {
        if self.taken.contains(path) && path != "class" {
            return;
        }
        let inside = format!("{path}.");
        let removed = |key: &str| schema::REMOVED.iter().find(|(name, _)| *name == key);
        if let Some((key, instead)) = removed(path) {
            self.complain_at(&node.place, key, (*instead).to_owned());
            return;
        }
        let holds_removed = || schema::REMOVED.iter().any(|(key, _)| key.starts_with(&inside));
        match &node.value {
            Value::Table(table)
                if path == "class" || self.taken.iter().any(|key| key.starts_with(&inside)) || holds_removed() =>
            {
                for (key, node) in table {
                    self.unknown(&format!("{inside}{}", super::node::quoted(key)), node);
                }
            }
            // A class that was rejected as a whole is reported already.
            _ if path.matches('.').count() == 1 && path.starts_with("class.") => {}
            _ => {
                let general: Vec<&str> = path.split('.').collect();
                let (prefix, last) = general.split_at(general.len() - 1);
                let siblings = self.taken.iter().filter_map(|key| {
                    let (before, name) = key.rsplit_once('.').unwrap_or(("", key));
                    (before == prefix.join(".")).then_some(name)
                });
                let sections: BTreeSet<&str> =
                    schema::keys().iter().filter_map(|info| info.key.split('.').next()).collect();
                let near = match prefix.is_empty() {
                    true => terrace_common::nearest(last[0], sections.into_iter()),
                    false => terrace_common::nearest(last[0], siblings),
                };
                let hint = near.map_or_else(
                    || "`terrace config default` shows all keys".to_owned(),
                    |near| format!("did you mean {near}?"),
                );
                self.complain_at(&node.place, path, format!("unknown key; {hint}"));
            }
        }
    }
}

fn is_class_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'_';
    (1..=32).contains(&name.len()) && name.bytes().all(allowed)
}
