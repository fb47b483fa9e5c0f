//! The configuration as text: values in force, defaults, and the meaning of keys.
//!
//! In: a merged tree, or nothing. Out: TOML with comments, for `terrace config`. Must not: check values.

use std::fmt::Write;

use super::node::{Table, Value, quoted};
use super::schema::{KeyInfo, REMOVED, SELECTOR_KEYS, find, keys};
use terrace_common::nearest;
use terrace_common::tell::wrapped;

/// How wide comments get.
const WIDTH: usize = 100;

/// The values in force: every key with its value and its source.
pub fn show(tree: &Table) -> String {
    let mut text = String::new();
    let mut section = "";
    for info in keys().iter().filter(|info| !info.key.starts_with("class.")) {
        let (name, key) = info.key.split_once('.').unwrap_or(("", &info.key));
        if name != section {
            section = name;
            let _ = writeln!(text, "{}[{section}]", if text.is_empty() { "" } else { "\n" });
        }
        line(&mut text, tree, &[name, key], key, info);
    }
    let classes = match tree.get("class").map(|node| &node.value) {
        Some(Value::Table(classes)) => classes.keys().cloned().collect(),
        _ => Vec::new(),
    };
    for class in classes {
        let _ = writeln!(text, "\n[class.{}]", quoted(&class));
        for info in keys().iter().filter(|info| info.key.starts_with("class.")) {
            let key = info.key.rsplit('.').next().unwrap_or(&info.key);
            line(&mut text, tree, &["class", &class, key], key, info);
        }
    }
    text
}

fn line(text: &mut String, tree: &Table, path: &[&str], key: &str, info: &KeyInfo) {
    let (mut value, mut place) = (info.default.to_string(), "default".to_owned());
    let mut table = tree;
    for (depth, part) in path.iter().enumerate() {
        let Some(node) = table.get(*part) else { break };
        match &node.value {
            Value::Table(inner) if depth + 1 < path.len() => table = inner,
            found if depth + 1 == path.len() => (value, place) = (found.to_string(), node.place.to_string()),
            _ => break,
        }
    }
    let _ = writeln!(text, "{key} = {value}  # {place}");
}

/// A configuration file with the defaults only, and the meaning of each key.
pub fn default_file() -> String {
    let mut text = String::from(
        "# The configuration of terraced. All keys with their defaults; a key that you leave out keeps its default.\n\
         # Drop-ins are in conf.d next to this file and end in .toml; later names win.\n\
         # `terrace config check` finds mistakes, `terrace reload` puts changes into force.\n",
    );
    let mut section = "";
    for info in keys() {
        let (name, key) = info.key.rsplit_once('.').unwrap_or(("", &info.key));
        let class = name == "class.NAME";
        if name != section {
            section = name;
            let heading = if class { "#[class.web]" } else { &format!("[{name}]") };
            if class {
                text.push_str("\n# A class: its processes and its goal. There may be several.\n# Uncomment the lines that begin with # and no space.");
            }
            let _ = writeln!(text, "\n{heading}");
        }
        text.push('\n');
        comment(&mut text, &info.meaning);
        let restart = if info.restart { " A change needs a restart." } else { "" };
        comment(&mut text, &format!("Takes {}.{restart}", info.takes));
        let value =
            if info.key == "class.NAME.match" { "[{ exe = \"/usr/sbin/nginx\" }]" } else { info.default.as_ref() };
        let _ = writeln!(text, "{}{key} = {value}", if class { "#" } else { "" });
    }
    text
}

/// The meaning of a key; `None` if it does not exist.
pub fn explain(key: &str) -> Option<String> {
    let info = find(key)?;
    let mut text = format!("{}\n", info.key);
    for part in wrapped(&info.meaning, WIDTH) {
        let _ = writeln!(text, "  {part}");
    }
    let default = if info.default.is_empty() { "none: it must be given" } else { info.default.as_ref() };
    let change = if info.restart { "needs a restart of terraced" } else { "takes effect on reload" };
    let _ = writeln!(text, "takes    {}\ndefault  {default}\nchange   {change}", info.takes);
    if info.takes.contains("selectors") {
        text.push_str("a selector has these parts; all given parts must match:\n");
        for (name, takes, meaning) in SELECTOR_KEYS {
            let _ = writeln!(text, "  {name:<10} {takes}: {meaning}");
        }
    }
    Some(text)
}

/// Suggestions for a key that does not exist, or the replacement of a removed one, for a message.
pub fn similar(key: &str) -> String {
    if let Some((_, instead)) = REMOVED.iter().find(|(name, _)| *name == key) {
        return (*instead).to_owned();
    }
    let near = nearest(key, keys().iter().map(|info| info.key.as_ref()));
    let last = key.rsplit('.').next().unwrap_or(key);
    let same_end = keys().iter().map(|info| info.key.as_ref()).find(|known| known.rsplit('.').next() == Some(last));
    match near.or(same_end) {
        Some(known) => format!("did you mean {known}?"),
        None => format!("there are: {}", keys().iter().map(|info| info.key.as_ref()).collect::<Vec<_>>().join(", ")),
    }
}

fn comment(text: &mut String, what: &str) {
    for line in wrapped(what, WIDTH) {
        let _ = writeln!(text, "# {line}");
    }
}
