//! TOML files as one tree in which every value keeps its position.
//!
//! In: texts of files, later ones winning. Out: a [`Table`] of [`Node`]s, or the position of a TOML error. Must not: know what any key
//! means.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::ConfigError;

/// The position of a key or value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The file, or its label (`terrace set`).
    pub file: Arc<str>,
    /// The line, from 1.
    pub line: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}", self.file, self.line)
    }
}

/// A value and its position.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// The value.
    pub value: Value,
    /// The position of its key, or of the value itself for an element of a list.
    pub place: Place,
}

/// The types of a value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A string.
    Text(String),
    /// A whole number.
    Integer(i64),
    /// A number with a point, as written.
    Float(String),
    /// true or false.
    Boolean(bool),
    /// A date or time, as written. No key takes one.
    Date(String),
    /// A list.
    List(Vec<Node>),
    /// A table.
    Table(Table),
}

/// Keys and values.
pub type Table = BTreeMap<String, Node>;

impl Value {
    /// The name of its type, for messages.
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
    /// The value in TOML, on one line.
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

/// A key in TOML.
pub fn quoted(key: &str) -> String {
    let bare = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-');
    if bare { key.to_owned() } else { toml::Value::String(key.to_owned()).to_string() }
}

/// The value of a key such as `budget.cpu`. Class names hold no points, so a point always separates.
pub fn get<'a>(tree: &'a Table, key: &str) -> Option<&'a Node> {
    match key.split_once('.') {
        None => tree.get(key),
        Some((section, cooldown)) => match &tree.get(section)?.value {
            Value::Table(table) => get(table, cooldown),
            _ => None,
        },
    }
}

/// Replaces the value of a key, or removes the key.
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

/// Parses one text.
///
/// # Errors
/// The text is not valid TOML: position and reason.
pub fn parse(file: &str, text: &str) -> Result<Table, ConfigError> {
    let file: Arc<str> = file.into();
    let lines = Lines::of(text);
    // The parser rejects nesting deeper than 80 levels, so that the stack cannot overflow here.
    let tree = DeTable::parse(text).map_err(|error| {
        let line = error.span().map_or(1, |span| lines.number(span.start));
        ConfigError::of_file(Arc::clone(&file), line, format!("invalid TOML: {}", error.message().trim()))
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
        // A number beyond 64 bits is kept as written, and rejected by the reader of the number.
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

/// The offsets of line starts, to turn an offset into a line number.
struct Lines(Vec<usize>);

impl Lines {
    fn of(text: &str) -> Lines {
        Lines(text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at).collect())
    }

    fn number(&self, offset: usize) -> usize {
        self.0.partition_point(|&end| end < offset) + 1
    }
}
