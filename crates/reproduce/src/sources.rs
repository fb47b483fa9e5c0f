//! Digests of the sources that compute a run, so that a result is kept until they change.
//!
//! In: the texts of our crates. Out: [`Digests`]. Must not: read a file: the build script reads them, and a test changes them.
//!
//! What counts is the code: comments, white space and tests do not, nor what only finds others by name (`lib.rs`, the catalogue of
//! programs). Core, machine, simulator and what turns a case into a run are one digest; the pace of page-outs is one of its own, of the runs on
//! compressed swap, with what they cost: it paces nothing that has no price. A policy and a program have one each, over their own file, the files
//! under it, and whatever these name within their crate; so a changed policy concerns its own runs, and a changed part those of the policies that
//! use it. Files that no run of a program passes through are [`LEFT_OUT`].

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use sha2::{Digest, Sha256};

/// Texts of sources by their path from the folder of all crates: `sim/src/run.rs`.
pub(crate) type Sources = BTreeMap<String, String>;

/// The crates whose sources are read.
pub(crate) const CRATES: [&str; 9] =
    ["core", "machine", "sim", "trace", "workloads", "policies", "tuning", "sizing", "reproduce"];

/// What every run depends on: folders and files.
const MODEL: [&str; 7] = [
    "core/src/",
    "machine/src/",
    "sim/src/",
    "trace/src/record.rs",
    "reproduce/src/case.rs",
    "reproduce/src/outcome.rs",
    "reproduce/src/prepare.rs",
];
/// What runs on compressed swap depend on beside it: elsewhere nobody tells these a price or a cost, and they let all pass.
const SWAP: [&str; 2] = ["core/src/governor/pace.rs", "core/src/governor/strain.rs"];
/// What runs depend on whose fast memory is limited while they run, or that predict.
const SIZING: [&str; 4] = ["tuning/src/", "sizing/src/", "trace/src/", "reproduce/src/course.rs"];
/// What a program's accesses depend on beside the program.
const TRACED: [&str; 2] = ["workloads/src/traced.rs", "workloads/src/program.rs"];
/// Files of these folders through which no run passes: the service's budget of observing and its arbiter between classes, texts of
/// errors, micro-benchmarks, the comparison of several reports, the replay of object traces, native memory. A test holds that no other source
/// names them but those [`NAMED`].
pub(crate) const LEFT_OUT: [&str; 7] = [
    "core/src/arbiter.rs",
    "core/src/watching.rs",
    "core/src/text.rs",
    "sim/src/bench.rs",
    "sim/src/compare.rs",
    "sim/src/object_cache.rs",
    "workloads/src/native.rs",
];
/// Of these, what sources name that runs do pass through: texts, and the memory of native runs, which every program has beside the traced one; and
/// whose name a field has (`Pressure::watching`).
const NAMED: [&str; 3] = ["core/src/text.rs", "core/src/watching.rs", "workloads/src/native.rs"];

/// Bytes of a digest: a chance of one in 2^48 that a change is not seen.
const BYTES: usize = 6;

/// The digests of one state of the sources.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Digests {
    /// Core, machine, simulator.
    pub model: String,
    /// The pace of page-outs.
    pub swap: String,
    /// Database, tuner, forecast.
    pub sizing: String,
    /// By a policy's name.
    pub policies: BTreeMap<String, String>,
    /// By a program's name.
    pub programs: BTreeMap<String, String>,
}

/// The digests of these sources.
pub(crate) fn digests(sources: &Sources) -> Digests {
    let code: BTreeMap<&str, Vec<String>> =
        sources.iter().filter(|(path, _)| is_code(path)).map(|(path, text)| (path.as_str(), code(text))).collect();
    let under = |parts: &[&str]| -> BTreeSet<&str> {
        code.keys().copied().filter(|path| parts.iter().any(|part| path.starts_with(part))).collect()
    };
    let each = |folder: &str, more: &[&str]| {
        let mut named: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
        for (path, tokens) in code.iter().filter(|(path, _)| path.starts_with(folder)) {
            for name in names(tokens) {
                let mut roots: Vec<&str> = more.to_vec();
                roots.push(path);
                named.entry(name).or_default().extend(closure(&code, &roots));
            }
        }
        named.into_iter().map(|(name, files)| (name, digest(&code, &files))).collect()
    };
    Digests {
        model: digest(&code, &under(&MODEL).difference(&under(&SWAP)).copied().collect()),
        swap: digest(&code, &under(&SWAP)),
        sizing: digest(&code, &under(&SIZING)),
        policies: each("policies/src/", &["policies/src/settings.rs"]),
        programs: each("workloads/src/programs/", &TRACED),
    }
}

/// Whether a file has code that a run passes through.
fn is_code(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    let is_test = name == "tests.rs" || name == "rig.rs" || name.ends_with("_tests.rs") || path.contains("/tests/");
    let finds_by_name = matches!(name, "lib.rs") || path.ends_with("programs/mod.rs");
    let left_out = LEFT_OUT.iter().any(|file| path == *file || path.starts_with(&format!("{}/", stem(file))));
    path.ends_with(".rs") && !is_test && !finds_by_name && !left_out
}

fn stem(path: &str) -> &str {
    path.strip_suffix("/mod.rs").or_else(|| path.strip_suffix(".rs")).unwrap_or(path)
}

/// The names by which the catalogues know what a file has: `name: "..."` within an item called INFO or the like.
fn names(tokens: &[String]) -> Vec<String> {
    let is = |at: usize, text: &str| tokens.get(at).is_some_and(|token| token == text);
    let of_info = |at: usize| tokens.get(at).is_some_and(|token| token == "PolicyInfo" || token == "WorkloadInfo");
    let found = (0..tokens.len()).filter(|at| of_info(*at) && is(at + 1, "{") && is(at + 2, "name") && is(at + 3, ":"));
    found.filter_map(|at| Some(tokens.get(at + 4)?.trim_matches('"').to_owned())).collect()
}

/// Files, those under them, and all that these name within their crate.
fn closure<'s>(code: &BTreeMap<&'s str, Vec<String>>, roots: &[&str]) -> BTreeSet<&'s str> {
    let mut found: BTreeSet<&str> = BTreeSet::new();
    let mut waiting: Vec<&str> = code.keys().copied().filter(|path| roots.contains(path)).collect();
    while let Some(path) = waiting.pop() {
        if !found.insert(path) {
            continue;
        }
        let below = format!("{}/", stem(path));
        waiting.extend(code.keys().copied().filter(|other| other.starts_with(&below)));
        waiting.extend(references(code, path));
    }
    found
}

/// The files of its own crate that a file names: `crate::parts::lru::Kind`, `super::npb_grid::{Grid, Vector}`.
fn references<'s>(code: &BTreeMap<&'s str, Vec<String>>, path: &str) -> Vec<&'s str> {
    let tokens = &code[path];
    let Some((source, within)) = stem(path).split_once("/src/") else { return Vec::new() };
    let modules: Vec<&str> = within.split('/').collect();
    let mut found = Vec::new();
    for at in 0..tokens.len() {
        let base = match tokens[at].as_str() {
            "crate" => &[][..],
            "super" => &modules[..modules.len() - 1],
            _ => continue,
        };
        let mut paths = Vec::new();
        if let Some(next) = after_colons(tokens, at + 1) {
            tree(tokens, next, base.to_vec(), &mut paths);
        }
        for named in paths {
            let file = (1..=named.len()).rev().find_map(|length| {
                let module = format!("{source}/src/{}", named[..length].join("/"));
                let file = [format!("{module}.rs"), format!("{module}/mod.rs")];
                file.iter().find_map(|file| code.get_key_value(file.as_str())).map(|(path, _)| *path)
            });
            found.extend(file.filter(|file| *file != path));
        }
    }
    found
}

fn after_colons(tokens: &[String], at: usize) -> Option<usize> {
    (tokens.get(at)? == ":" && tokens.get(at + 1)? == ":").then_some(at + 2)
}

/// Every path of a tree of paths that begins at a token; where it ends.
fn tree<'t>(tokens: &'t [String], mut at: usize, mut path: Vec<&'t str>, into: &mut Vec<Vec<&'t str>>) -> usize {
    loop {
        match tokens.get(at).map(String::as_str) {
            Some("{") => {
                at += 1;
                while tokens.get(at).is_some_and(|token| token != "}") {
                    let next = tree(tokens, at, path.clone(), into);
                    at = if tokens.get(next).is_some_and(|token| token == ",") { next + 1 } else { next.max(at + 1) };
                }
                return at + 1;
            }
            Some(word) if is_word(word) => {
                path.push(word);
                match after_colons(tokens, at + 1) {
                    Some(next) => at = next,
                    None => {
                        into.push(path);
                        return at + 1;
                    }
                }
            }
            _ => {
                into.push(path);
                return at + 1;
            }
        }
    }
}

fn digest(code: &BTreeMap<&str, Vec<String>>, files: &BTreeSet<&str>) -> String {
    let mut hash = Sha256::new();
    for file in files {
        hash.update(format!("{file}\n"));
        for token in &code[file] {
            hash.update(token);
            hash.update(b"\n");
        }
    }
    digits(&hash.finalize())
}

/// The digest of a text.
pub(crate) fn digest_of(text: &str) -> String {
    digits(&Sha256::digest(text.as_bytes()))
}

fn digits(bytes: &[u8]) -> String {
    bytes.iter().take(BYTES).fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writing to a string does not fail");
        text
    })
}

/// The tokens of a source without comments, tests, files that are built in (each machine is known by its numbers), and commas that only
/// its layout wants.
fn code(text: &str) -> Vec<String> {
    let mut tokens: Vec<String> = Vec::new();
    for token in all_tokens(text) {
        if matches!(token.as_str(), ")" | "]" | "}") && tokens.last().is_some_and(|last| last == ",") {
            tokens.pop();
        }
        tokens.push(token);
    }
    without_built_in(without_tests(tokens))
}

fn is_word(token: &str) -> bool {
    token.starts_with(|letter: char| letter.is_alphanumeric() || letter == '_')
}

fn all_tokens(text: &str) -> Vec<String> {
    let letters: Vec<char> = text.chars().collect();
    let word = |letter: char| letter.is_alphanumeric() || letter == '_';
    let (mut tokens, mut at) = (Vec::new(), 0);
    while let Some(&letter) = letters.get(at) {
        let next = letters.get(at + 1).copied();
        let end = match (letter, next) {
            (space, _) if space.is_whitespace() => {
                at += 1;
                continue;
            }
            ('/', Some('/')) => {
                at += letters[at..].iter().take_while(|letter| **letter != '\n').count();
                continue;
            }
            ('/', Some('*')) => {
                at = end_of_comment(&letters, at);
                continue;
            }
            ('"', _) => end_of_string(&letters, at),
            ('\'', Some('\\')) => {
                at + 3 + letters[(at + 3).min(letters.len())..].iter().take_while(|c| **c != '\'').count() + 1
            }
            ('\'', Some(_)) if letters.get(at + 2) == Some(&'\'') => at + 3,
            (first, _) if word(first) => {
                let end = at + letters[at..].iter().take_while(|letter| word(**letter)).count();
                let prefix: String = letters[at..end].iter().collect();
                match (prefix.as_str(), letters.get(end)) {
                    ("r" | "br" | "cr", Some('"' | '#')) => end_of_raw(&letters, end).unwrap_or(end),
                    ("b" | "c", Some('"')) => end_of_string(&letters, end),
                    _ => end,
                }
            }
            _ => at + 1,
        };
        let end = end.min(letters.len());
        tokens.push(letters[at..end].iter().collect());
        at = end;
    }
    tokens
}

fn end_of_comment(letters: &[char], mut at: usize) -> usize {
    let mut depth = 0;
    while at < letters.len() {
        match letters[at..] {
            ['/', '*', ..] => (depth, at) = (depth + 1, at + 2),
            ['*', '/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

/// Past the closing quote of a string whose opening one stands here.
fn end_of_string(letters: &[char], open: usize) -> usize {
    let mut at = open + 1;
    while let Some(letter) = letters.get(at) {
        match letter {
            '\\' => at += 2,
            '"' => return at + 1,
            _ => at += 1,
        }
    }
    at
}

/// Past a raw string whose `#` or quote stands here; `None` where none begins (`r#type`).
fn end_of_raw(letters: &[char], at: usize) -> Option<usize> {
    let marks = letters[at..].iter().take_while(|letter| **letter == '#').count();
    let mut end = at + marks;
    if letters.get(end) != Some(&'"') {
        return None;
    }
    loop {
        end += 1;
        match letters.get(end)? {
            '"' if letters[end + 1..].iter().take_while(|letter| **letter == '#').count() >= marks => {
                return Some(end + 1 + marks);
            }
            _ => {}
        }
    }
}

/// Without items that are compiled for tests alone.
fn without_tests(tokens: Vec<String>) -> Vec<String> {
    const MARK: [&str; 7] = ["#", "[", "cfg", "(", "test", ")", "]"];
    let (mut kept, mut at) = (Vec::new(), 0);
    while at < tokens.len() {
        if tokens.len() - at >= MARK.len() && (0..MARK.len()).all(|place| tokens[at + place] == MARK[place]) {
            at = end_of_item(&tokens, at + MARK.len());
        } else {
            kept.push(tokens[at].clone());
            at += 1;
        }
    }
    kept
}

/// Past the item, or the attribute and the item, that begins here: to its semicolon, or to the end of its braces.
fn end_of_item(tokens: &[String], mut at: usize) -> usize {
    let is_use = tokens.get(at).is_some_and(|token| token == "use");
    let mut depth = 0_usize;
    while let Some(token) = tokens.get(at) {
        at += 1;
        match token.as_str() {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" => depth = depth.saturating_sub(1),
            "}" => {
                depth = depth.saturating_sub(1);
                if depth == 0 && !is_use {
                    break;
                }
            }
            ";" if depth == 0 => break,
            _ => {}
        }
    }
    at
}

/// Without constants that are made of files.
fn without_built_in(tokens: Vec<String>) -> Vec<String> {
    let (mut kept, mut at) = (Vec::<String>::new(), 0);
    while at < tokens.len() {
        if tokens[at] == "const" {
            let end = end_of_item(&tokens, at);
            if tokens[at..end].iter().any(|token| token == "include_str") {
                at = end;
                continue;
            }
        }
        kept.push(tokens[at].clone());
        at += 1;
    }
    kept
}

/// Whether a source that counts names one that is left out.
#[cfg(test)]
pub(crate) fn named_and_left_out(sources: &Sources) -> Vec<String> {
    let all: BTreeMap<&str, Vec<String>> = sources.iter().map(|(path, text)| (path.as_str(), code(text))).collect();
    let mut wrong = Vec::new();
    for path in all.keys().filter(|path| is_code(path)) {
        let words: BTreeSet<&str> = all[path].iter().map(String::as_str).collect();
        for file in LEFT_OUT.iter().filter(|file| !NAMED.contains(file)) {
            let module = stem(file).rsplit('/').next().unwrap_or(file);
            let other = format!("terrace_{}", file.split('/').next().unwrap_or(file));
            let own = path.split('/').next() == file.split('/').next();
            let named = references(&all, path).contains(file);
            if named || (!own && words.contains(other.as_str()) && words.contains(module)) {
                wrong.push(format!("{path} names {file}"));
            }
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_what_the_compiler_sees() {
        let written = "//! Doc.\nfn a<'t>(x: &'t str) -> char { /* b /* c */ */ call(x, '\\'', '\"', \"// no { comment\",\n) }\n\
            #[cfg(test)]\n#[allow(x)]\nmod tests { fn b() { \"}\" } }\nconst T: [u8; 1] = [1];\n#[cfg(test)]\nuse a::{b, c};\n\
            const F: [(&str, &str); 1] = [(\"a\", include_str!(\"b\"))];\nlet r = r#\"raw \" // \"#;";
        let other = "fn a<'t>(x: &'t str)->char{call(x,'\\'','\"',\"// no { comment\")} const T:[u8;1]=[1]; let r=r#\"raw \" // \"#; // end";
        assert_eq!(code(written), code(other));
        assert_ne!(code("let a = 1;"), code("let a = 2;"));
        assert_ne!(code("\"a b\""), code("\"a  b\""), "a string is kept as it is");
    }

    #[test]
    fn paths_are_followed_through_braces() {
        let tokens = code("use crate::parts::{lru::{self, Kind}, bins::BINS}; crate::memtis::go()");
        let mut found = Vec::new();
        for at in 0..tokens.len() {
            if let (true, Some(next)) = (tokens[at] == "crate", after_colons(&tokens, at + 1)) {
                tree(&tokens, next, Vec::new(), &mut found);
            }
        }
        let found: Vec<String> = found.iter().map(|path| path.join("/")).collect();
        assert_eq!(found, ["parts/lru/self", "parts/lru/Kind", "parts/bins/BINS", "memtis/go"]);
    }
}
