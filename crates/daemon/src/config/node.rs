//! TOML files as one tree in which every value remembers where it was written.
//!
//! In: texts of files, in the order in which later ones win. Out: a [`Table`] of [`Node`]s, or the place where a text is no
//! TOML. Must not: know what any key means.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::ConfigError;

/// Where something was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The file, or what stands for one (`terrace set`).
    pub file: Arc<str>,
    /// The line, from 1.
    pub line: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}", self.file, self.line)
    }
}

/// A value and its place.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// The value.
    pub value: Value,
    /// Where its key, or for an element of a list the value itself, was written.
    pub place: Place,
}

/// What a value can be.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A string.
    Text(String),
    /// A whole number.
    Integer(i64),
    /// A number with a point, as it was written.
    Float(String),
    /// true or false.
    Boolean(bool),
    /// A date or time, which no key takes; as it was written.
    Date(String),
    /// A list.
    List(Vec<Node>),
    /// A table.
    Table(Table),
}

/// Keys and values.
pub type Table = BTreeMap<String, Node>;

impl Value {
    /// What it is, for messages.
    pub fn kind(&self) -> &'static str {
        match self {
            Value::Text(_) => "a text",
            Value::Integer(_) | Value::Float(_) => "a number",
            Value::Boolean(_) => "true or false",
            Value::Date(_) => "a date",
            Value::List(_) => "a list",
            Value::Table(_) => "a table",
        }
    }
}

impl fmt::Display for Value {
    /// As TOML writes it on one line.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Text(text) => write!(out, "{}", toml::Value::String(text.clone())),
            Value::Integer(number) => write!(out, "{number}"),
            Value::Float(number) | Value::Date(number) => write!(out, "{number}"),
            Value::Boolean(whether) => write!(out, "{whether}"),
            Value::List(list) => {
                write!(out, "[")?;
                for (index, node) in list.iter().enumerate() {
                    write!(out, "{}{}", if index > 0 { ", " } else { "" }, node.value)?;
                }
                write!(out, "]")
            }
            Value::Table(table) => {
                write!(out, "{{")?;
                for (index, (key, node)) in table.iter().enumerate() {
                    write!(out, "{} {} = {}", if index > 0 { "," } else { "" }, quoted(key), node.value)?;
                }
                write!(out, " }}")
            }
        }
    }
}

/// A key as TOML takes it.
pub fn quoted(key: &str) -> String {
    let bare = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-');
    if bare { key.to_owned() } else { toml::Value::String(key.to_owned()).to_string() }
}

/// The value of a key such as `budget.cpu`. Names of classes hold no points, so that a point always parts.
pub fn get<'a>(tree: &'a Table, key: &str) -> Option<&'a Node> {
    match key.split_once('.') {
        None => tree.get(key),
        Some((section, cooldown)) => match &tree.get(section)?.value {
            Value::Table(table) => get(table, cooldown),
            _ => None,
        },
    }
}

/// Puts a value in the place of a key's, or takes the key away.
pub fn put(tree: &mut Table, key: &str, node: Option<Node>) {
    match (key.split_once('.'), node) {
        (None, Some(node)) => drop(tree.insert(key.to_owned(), node)),
        (None, None) => drop(tree.remove(key)),
        (Some((section, cooldown)), node) => {
            let Some(place) = node.as_ref().or_else(|| tree.get(section)).map(|node| node.place.clone()) else {
                return;
            };
            let table = tree.entry(section.to_owned()).or_insert(Node { value: Value::Table(Table::new()), place });
            if let Value::Table(table) = &mut table.value {
                put(table, cooldown, node);
            }
        }
    }
}

/// Reads one text.
///
/// # Errors
/// When it is no TOML: where, and what is wrong.
pub fn parse(file: &str, text: &str) -> Result<Table, ConfigError> {
    let file: Arc<str> = file.into();
    let lines = Lines::of(text);
    let failed = |line, problem: String| ConfigError {
        place: Some(Place { file: Arc::clone(&file), line }),
        key: String::new(),
        problem,
    };
    // The parser refuses what nests more than 80 deep, so that nothing here can exhaust the stack.
    let tree = DeTable::parse(text).map_err(|error| {
        let line = error.span().map_or(1, |span| lines.number(span.start));
        failed(line, format!("this is no TOML: {}", error.message().trim()))
    })?;
    Ok(table(tree.get_ref(), &file, &lines))
}

fn table(tree: &DeTable<'_>, file: &Arc<str>, lines: &Lines) -> Table {
    let mut found = Table::new();
    for (key, value) in tree {
        let place = Place { file: Arc::clone(file), line: lines.number(key.span().start) };
        found.insert(key.get_ref().clone().into_owned(), Node { value: convert(value, file, lines), place });
    }
    found
}

fn convert(value: &Spanned<DeValue<'_>>, file: &Arc<str>, lines: &Lines) -> Value {
    match value.get_ref() {
        DeValue::String(text) => Value::Text(text.clone().into_owned()),
        // A number beyond 64 bits is kept as written and refused by whoever wanted a number.
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix())
            .map_or_else(|_| Value::Float(number.to_string()), Value::Integer),
        DeValue::Float(number) => Value::Float(number.as_str().to_owned()),
        DeValue::Boolean(whether) => Value::Boolean(*whether),
        DeValue::Datetime(date) => Value::Date(date.to_string()),
        DeValue::Array(list) => Value::List(
            list.iter()
                .map(|element| Node {
                    value: convert(element, file, lines),
                    place: Place { file: Arc::clone(file), line: lines.number(element.span().start) },
                })
                .collect(),
        ),
        DeValue::Table(inner) => Value::Table(table(inner, file, lines)),
    }
}

/// Lays `later` over `earlier`: tables are merged key by key, everything else is replaced.
pub fn merge(earlier: &mut Table, later: Table) {
    for (key, node) in later {
        match (earlier.get_mut(&key).map(|old| &mut old.value), node.value) {
            (Some(Value::Table(old)), Value::Table(new)) => merge(old, new),
            (_, value) => {
                earlier.insert(key, Node { value, place: node.place });
            }
        }
    }
}

/// Where lines begin, to turn an offset into a line's number.
struct Lines(Vec<usize>);

impl Lines {
    fn of(text: &str) -> Lines {
        Lines(text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at).collect())
    }

    fn number(&self, offset: usize) -> usize {
        self.0.partition_point(|&end| end < offset) + 1
    }
}
