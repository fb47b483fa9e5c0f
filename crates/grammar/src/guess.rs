//! What a person meant who typed a line that is none: the exact line to type.
//!
//! In: the words of a line that clap refused, and its message. Out: the message with the line that was probably meant, which the grammar
//! accepts. Must not: run that line, or offer one that the grammar refuses.
//!
//! People bring their habits from git(1), systemctl(1), perf(1), ps(1), docker(1) and kubectl(1). Where a habit leaves one meaning the line is
//! offered; a form that costs nothing to accept is accepted by the grammar itself.

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, Error};

/// What a word that is no subcommand stands for.
enum Means {
    /// This line, whatever follows.
    Line(&'static str),
    /// This line, with what follows.
    And(&'static str),
    /// This line with what follows as the program to start, or the second line if nothing follows.
    Start(&'static str, &'static str),
}

use Means::{And, Line, Start};

/// Words that people type as a subcommand.
const COMMANDS: &[(&str, Means)] = &[
    ("start", Start("terrace run", "sudo systemctl start terraced")),
    ("exec", Start("terrace run", "terrace run --help")),
    ("launch", Start("terrace run", "terrace run --help")),
    ("manage", Start("terrace run", "terrace attach --help")),
    ("stat", Start("terrace observe", "terrace status")),
    ("profile", Start("terrace observe", "terrace observe --help")),
    ("watch", Start("terrace observe", "terrace top")),
    ("monitor", Start("terrace observe", "terrace top")),
    ("stop", Line("sudo systemctl stop terraced")),
    ("restart", Line("sudo systemctl restart terraced")),
    ("enable", Line("sudo systemctl enable --now terraced")),
    ("disable", Line("sudo systemctl disable --now terraced")),
    ("daemon", Line("sudo systemctl start terraced")),
    ("serve", Line("sudo systemctl start terraced")),
    ("edit", Line("sudoedit /etc/terrace/terrace.toml")),
    ("ps", Line("terrace classes")),
    ("ls", Line("terrace classes")),
    ("list", Line("terrace classes")),
    ("stats", Line("terrace status")),
    ("inspect", And("terrace classes")),
    ("describe", And("terrace classes")),
    ("get", And("terrace config explain")),
    ("log", And("terrace history")),
    ("logs", And("terrace history")),
    ("events", And("terrace history")),
    ("journal", And("terrace history")),
    ("unpause", And("terrace resume")),
    ("continue", And("terrace resume")),
    ("info", Line("terrace doctor")),
    ("check", Line("terrace doctor --check")),
    ("diagnose", Line("terrace doctor")),
    ("tiers", Line("terrace topology")),
    ("nodes", Line("terrace topology")),
    ("machines", Line("terrace sim machines")),
    ("simulate", And("terrace sim run")),
    ("advise", And("terrace size advise")),
    ("tune", And("terrace size tune")),
    ("forecast", And("terrace size forecast")),
    ("replay", And("terrace sim run --trace")),
    ("import", And("terrace trace import")),
    ("report", Line("terrace run --help")),
];

/// The same below a subcommand.
const BELOW: &[(&str, &str, Means)] = &[
    ("config", "get", And("terrace config explain")),
    ("config", "set", And("terrace set")),
    ("config", "list", Line("terrace config show")),
    ("config", "view", Line("terrace config show")),
    ("config", "print", Line("terrace config show")),
    ("config", "validate", And("terrace config check")),
    ("config", "test", And("terrace config check")),
    ("config", "edit", Line("sudoedit /etc/terrace/terrace.toml")),
    ("sim", "list", Line("terrace workload list")),
    ("sim", "workloads", Line("terrace workload list")),
    ("trace", "show", And("terrace trace cat")),
    ("trace", "record", Start("terrace record", "terrace record --help")),
    ("lab", "list", Line("terrace lab kernels")),
];

/// Options that people type for one of ours.
const OPTIONS: &[(&str, &str)] = &[
    ("--time", "--duration"),
    ("--seconds", "--duration"),
    ("--timeout", "--duration"),
    ("-t", "--duration"),
    ("-d", "--duration"),
    ("--process", "--pid"),
    ("--pids", "--pid"),
    ("--command", "--name"),
    ("--comm", "--name"),
    ("--service", "--unit"),
    ("-u", "--unit"),
    ("-G", "--cgroup"),
    ("--out", "--report"),
    ("--html", "--report"),
    ("--memory", "--fast"),
    ("--limit", "--fast"),
    ("--dram", "--fast"),
    ("--slow", "--tier-slow"),
    ("--swap", "--tier-slow"),
    ("--target", "--max-slowdown"),
    ("--slowdown", "--max-slowdown"),
    ("--budget", "--max-slowdown"),
    ("--overhead", "--max-overhead"),
    ("--frequency", "--interval"),
    ("-F", "--interval"),
    ("-i", "--interval"),
    ("--workloads", "--workload"),
    ("--workload", "--workloads"),
    ("--policy", "--policies"),
    ("-c", "--config"),
    ("--watch", "--live"),
    ("--silent", "--quiet"),
];

/// The message with the line that was probably meant, if one is known. `words` are those behind `terrace`.
pub fn with_guess(mut told: Error, grammar: &Command, words: &[String]) -> Error {
    let refused = matches!(
        told.kind(),
        ErrorKind::InvalidSubcommand
            | ErrorKind::UnknownArgument
            | ErrorKind::MissingRequiredArgument
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    );
    if !refused {
        return told;
    }
    let wrong = match told.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(wrong)) => wrong.clone(),
        _ => String::new(),
    };
    let lines: Vec<String> =
        guesses(grammar, words, &wrong).into_iter().filter(|line| accepts(grammar, line)).collect();
    if lines.is_empty() {
        return told;
    }
    // A name that is spelt like it, or an operand that begins with a hyphen, is then not what was meant.
    for kind in [ContextKind::SuggestedSubcommand, ContextKind::SuggestedArg, ContextKind::Suggested] {
        told.remove(kind);
    }
    let tips = lines.iter().map(|line| StyledStr::from(format!("type: {line}"))).collect();
    told.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
    told
}

/// Whether a line could be typed: one of Terrace's is of the grammar.
fn accepts(grammar: &Command, line: &str) -> bool {
    let mut words = line.split(' ');
    if words.next() != Some("terrace") || line.contains('\'') {
        return true;
    }
    match grammar.clone().try_get_matches_from(line.split(' ')) {
        Ok(_) => true,
        Err(told) => matches!(told.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion),
    }
}

fn guesses(grammar: &Command, words: &[String], wrong: &str) -> Vec<String> {
    let words: Vec<&str> =
        words.iter().map(String::as_str).filter(|word| !matches!(*word, "-v" | "--verbose")).collect();
    let Some((&first, rest)) = words.split_first() else { return Vec::new() };
    let Some(command) = grammar.find_subcommand(first) else { return unknown(first, rest, &words) };
    let below = rest.first().copied().unwrap_or_default();
    if let Some((_, _, means)) = BELOW.iter().find(|(above, name, _)| *above == first && *name == below) {
        return vec![line(means, &rest[1..])];
    }
    if let Some(line) = other_option(command, &words, wrong) {
        return vec![line];
    }
    let (options, operands) = split(command, rest);
    let with = |parts: &[&str]| joined(&[parts, &options].concat());
    // All behind the first operand is the program's, be it an option or not.
    let begins = rest.iter().position(|word| operands.first() == Some(word)).unwrap_or(rest.len());
    let program = |parts: &[&str]| joined(&[parts, &["--"], &rest[begins..]].concat());
    match (first, operands.as_slice()) {
        ("run", []) if wrong.is_empty() => vec!["terrace run -- ./program".to_owned()],
        // These options are of the command that takes what runs already.
        ("run", _) if names_a_target(wrong) => vec![joined(&[&["terrace", "attach"], rest].concat())],
        ("attach", []) if wrong.is_empty() => {
            vec![with(&["terrace", "attach", "--name", "redis-server"]), with(&["terrace", "attach", "--pid", "1234"])]
        }
        ("attach", pids @ [_, ..]) if pids.iter().all(|pid| is_number(pid)) => {
            vec![with(&["terrace", "attach", "--pid", &pids.join(",")])]
        }
        ("attach", [name]) if !name.contains('/') => {
            vec![with(&["terrace", "attach", "--name", name]), program(&["terrace", "run"])]
        }
        ("attach", [_, ..]) => vec![program(&["terrace", "run"])],
        ("observe", []) if wrong.is_empty() => {
            vec!["terrace observe -- ./program".to_owned(), with(&["terrace", "observe", "--name", "redis-server"])]
        }
        ("record" | "compare" | "trace", _) if names_a_target(wrong) => {
            vec![joined(&[&["terrace", "observe"], rest].concat())]
        }
        ("record", [_, ..]) => vec![program(&["terrace", "record"])],
        ("size", [operand, ..]) if command.find_subcommand(operand).is_none() => {
            vec![program(&["terrace", "size", "advise"])]
        }
        ("sim", [workload]) if command.find_subcommand(workload).is_none() => {
            vec![with(&["terrace", "sim", "run", workload])]
        }
        ("sim", ["compare", workloads, policies]) => {
            vec![joined(&["terrace", "sim", "compare", "--workloads", workloads, "--policies", policies])]
        }
        ("trace", [file]) if file.ends_with(".trace") => vec![joined(&["terrace", "trace", "info", file])],
        ("trace", [_, ..]) if command.find_subcommand(operands[0]).is_none() => vec![program(&["terrace", "record"])],
        ("workload", []) => vec!["terrace workload list".to_owned()],
        ("explain", _) if names_a_target(wrong) => {
            rest.iter().find(|word| is_number(word)).map(|pid| format!("terrace explain {pid}")).into_iter().collect()
        }
        ("status", [class]) => vec![joined(&["terrace", "classes", class])],
        ("history", [class]) => vec![with(&["terrace", "history", "--class", class])],
        ("set", [pair]) => {
            pair.split_once('=').map(|(key, value)| joined(&["terrace", "set", key, value])).into_iter().collect()
        }
        _ => Vec::new(),
    }
}

/// A line whose first word is no subcommand.
fn unknown(first: &str, rest: &[&str], words: &[&str]) -> Vec<String> {
    if let Some((_, means)) = COMMANDS.iter().find(|(word, _)| *word == first) {
        return vec![line(means, rest)];
    }
    if is_number(first) {
        return vec![format!("terrace observe --pid {first}")];
    }
    if names_a_target(first) {
        return vec![joined(&[&["terrace", "observe"], words].concat())];
    }
    let words = if first == "--" { rest } else { words };
    match words.first() {
        Some(name) if terrace_run::program::find(name.as_ref()).is_ok() => {
            vec![joined(&[&["terrace", "run", "--"], words].concat())]
        }
        _ => Vec::new(),
    }
}

fn line(means: &Means, rest: &[&str]) -> String {
    let rest = if rest.first() == Some(&"--") { &rest[1..] } else { rest };
    match means {
        Line(line) => (*line).to_owned(),
        And(line) => joined(&[&[*line], rest].concat()),
        Start(_, alone) if rest.is_empty() => (*alone).to_owned(),
        Start(line, _) if rest[0].starts_with('-') => joined(&[&[*line], rest].concat()),
        Start(line, _) => joined(&[&[*line, "--"], rest].concat()),
    }
}

/// The line with our option in place of another's, or with `--json` in place of a format's name.
fn other_option(command: &Command, words: &[&str], wrong: &str) -> Option<String> {
    let is_json = |at: usize| matches!(words[at], "--format=json" | "--output=json" | "-ojson" | "-j");
    let named = |at: usize| matches!(words[at], "--format" | "--output" | "-o") && words.get(at + 1) == Some(&"json");
    let wrong = wrong.split([' ', '=']).next().unwrap_or_default();
    let at = words.iter().position(|word| !wrong.is_empty() && word.split('=').next() == Some(wrong));
    let at = at.or_else(|| words.iter().position(|word| *word == "-ojson" && wrong == "-o"))?;
    let mut line = words.to_vec();
    if is_json(at) || named(at) {
        line.splice(at..=at + usize::from(named(at)), ["--json"]);
        return Some(joined(&[&["terrace"], line.as_slice()].concat()));
    }
    let has = |flag: &str| flags_below(command, words).any(|long| long == flag.trim_start_matches("--"));
    let (_, ours) = OPTIONS.iter().find(|(theirs, ours)| *theirs == wrong && has(ours))?;
    let replaced = words[at].replacen(wrong, ours, 1);
    line[at] = &replaced;
    Some(joined(&[&["terrace"], line.as_slice()].concat()))
}

/// The long options of the deepest subcommand that the words name.
fn flags_below<'a>(command: &'a Command, words: &[&str]) -> impl Iterator<Item = &'a str> {
    let deepest = words[1..].iter().fold(command, |found, word| found.find_subcommand(word).unwrap_or(found));
    deepest.get_arguments().filter_map(clap::Arg::get_long)
}

/// Options with their values, and what is left, of the words behind a subcommand.
fn split<'a>(command: &Command, words: &[&'a str]) -> (Vec<&'a str>, Vec<&'a str>) {
    let (mut options, mut operands) = (Vec::new(), Vec::new());
    let mut words = words.iter().copied();
    while let Some(word) = words.next() {
        if word == "--" {
            operands.extend(words);
            break;
        }
        if !word.starts_with('-') {
            operands.push(word);
            continue;
        }
        options.push(word);
        let is_it = |arg: &&clap::Arg| {
            arg.get_long().is_some_and(|long| word.strip_prefix("--") == Some(long))
                || arg.get_short().is_some_and(|short| word == format!("-{short}"))
        };
        if command.get_arguments().find(is_it).is_some_and(|arg| arg.get_action().takes_values()) {
            options.extend(words.next());
        }
    }
    (options, operands)
}

/// Whether an option, perhaps with its value, says which running program is meant.
fn names_a_target(option: &str) -> bool {
    let name = option.split([' ', '=']).next().unwrap_or_default();
    matches!(name, "-p" | "--pid" | "--name" | "--cgroup" | "--unit")
}

fn is_number(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|letter| letter.is_ascii_digit())
}

/// Words as a shell takes them.
fn joined(words: &[&str]) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_=./:,%+@ ".contains(letter);
    let quoted = |(at, word): (usize, &&str)| match word.chars().all(plain) && (at == 0 || !word.contains(' ')) {
        true if !word.is_empty() => (*word).to_owned(),
        // The lines of the tables have several words; of what was typed, one with a blank is one word.
        _ if word.starts_with("terrace ") => (*word).to_owned(),
        _ => format!("'{}'", word.replace('\'', r"'\''")),
    };
    words.iter().enumerate().map(quoted).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_tables_offer_is_of_the_grammar() {
        let grammar = super::super::command();
        for (word, means) in COMMANDS.iter().map(|(word, means)| (*word, means)) {
            for rest in [&[] as &[&str], &["./program"]] {
                let line = line(means, rest);
                // A word behind a line of another kind need not fit, but the line alone or with it does.
                assert!(accepts(&grammar, &line) || matches!(means, And(_)), "{word} {rest:?}: {line}");
            }
            assert!(grammar.find_subcommand(word).is_none(), "{word} is a subcommand");
        }
        for (above, name, _) in BELOW {
            let command = grammar.find_subcommand(above).unwrap();
            assert!(command.find_subcommand(name).is_none(), "{above} {name} is a subcommand");
        }
    }

    #[test]
    fn words_are_joined_as_a_shell_takes_them() {
        assert_eq!(joined(&["terrace run", "--", "sh", "-c", "sleep 1", ""]), "terrace run -- sh -c 'sleep 1' ''");
        assert_eq!(joined(&["it's"]), r"'it'\''s'");
    }
}
