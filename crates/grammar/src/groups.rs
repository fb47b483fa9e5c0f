//! The command's own help: its subcommands in groups by what a person wants, each group with an example.
//!
//! In: the grammar. Out: the grammar with that help. Must not: describe a subcommand; its own summary is printed.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory, Error};
use terrace_common::nearest;

/// A group of subcommands.
struct Group<'a> {
    title: &'static str,
    example: &'static str,
    commands: &'a [&'static str],
}

const GROUPS: &[Group<'static>] = &[
    Group {
        title: "Manage a program",
        example: "terrace run --report report -- ./program",
        commands: &["demo", "run", "attach", "observe", "size"],
    },
    Group {
        title: "This machine",
        example: "terrace doctor",
        commands: &["survey", "top", "doctor", "topology", "policies", "completions"],
    },
    Group {
        title: "The service, terraced",
        example: "terrace status",
        commands: &[
            "config", "status", "classes", "history", "explain", "set", "pause", "resume", "drain", "wake", "reload",
        ],
    },
];

/// The commands of `terrace-research`. Of `size` it has all but `tune`.
const RESEARCH_GROUP: Group<'static> = Group {
    title: "Research, from the package terrace-research",
    example: "terrace compare -- ./program",
    commands: &RESEARCH,
};

/// The commands that only `terrace-research` has.
pub const RESEARCH: [&str; 9] = ["compare", "sim", "sweep", "rerun", "reproduce", "record", "trace", "workload", "lab"];

/// The grammar of `terrace`, with its subcommands in groups.
pub fn command() -> Command {
    let command = super::Arguments::command();
    let mut text = begins();
    for group in GROUPS {
        text += &lines(group, &command);
    }
    // One line for each would be the half of a page that an operator does not need.
    text += &format!("\n{}:\n  {}\n", heading(&RESEARCH_GROUP), RESEARCH.join(", "));
    command.help_template(text + ENDS)
}

/// The same grammar with the help of `terrace-research`.
pub fn of_research() -> Command {
    let command = super::Arguments::command();
    let all = [&RESEARCH[..], &["size", "completions"]].concat();
    let text = begins() + &lines(&Group { title: "Commands", commands: &all, ..RESEARCH_GROUP }, &command);
    command
        .display_name("terrace-research")
        .override_usage("terrace-research [OPTIONS] <COMMAND>, or: terrace [OPTIONS] <COMMAND>")
        .about("Simulates policies of tiered memory, repeats papers, records programs, and says how much fast memory to buy.")
        .help_template(text + ENDS)
}

const ENDS: &str = "\nOptions:\n{options}\n";

fn begins() -> String {
    "{about-with-newline}\n{usage-heading} {usage}; `terrace help COMMAND` explains one\n".to_owned()
}

fn heading(group: &Group<'_>) -> String {
    format!("{}, such as `{}`", group.title, group.example)
}

fn lines(group: &Group<'_>, command: &Command) -> String {
    let width = GROUPS.iter().flat_map(|group| group.commands).map(|name| name.len()).max().unwrap_or(0);
    let mut text = format!("\n{}:\n", heading(group));
    for name in group.commands {
        let about = command.find_subcommand(name).and_then(Command::get_about).map(ToString::to_string);
        text += &format!("  {name:width$}  {}\n", about.unwrap_or_default());
    }
    text
}

/// clap's message about a command that does not exist, with the nearest one where clap finds none, as in `terrace rnu`.
pub fn with_nearest(mut told: Error) -> Error {
    let known = GROUPS.iter().chain([&RESEARCH_GROUP]).flat_map(|group| group.commands).copied();
    let near = match (told.kind(), told.get(ContextKind::InvalidSubcommand)) {
        (ErrorKind::InvalidSubcommand, Some(ContextValue::String(wrong))) => nearest(wrong, known),
        _ => None,
    };
    if let (Some(near), None) = (near, told.get(ContextKind::SuggestedSubcommand)) {
        told.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(vec![near.to_owned()]));
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_subcommand_stands_in_one_group() {
        let command = super::super::Arguments::command();
        let mut known: Vec<&str> =
            command.get_subcommands().filter(|one| !one.is_hide_set()).map(Command::get_name).collect();
        let mut grouped: Vec<&str> =
            GROUPS.iter().chain([&RESEARCH_GROUP]).flat_map(|group| group.commands).copied().collect();
        known.sort_unstable();
        grouped.sort_unstable();
        assert_eq!(grouped, known);
    }

    #[test]
    fn a_command_with_letters_in_the_wrong_order_is_answered_with_the_right_one() {
        for (wrong, right) in [("rnu", "'run'"), ("obsrve", "'observe'"), ("attahc", "'attach'"), ("tpo", "'top'")] {
            let told = with_nearest(command().try_get_matches_from(["terrace", wrong]).unwrap_err()).to_string();
            assert!(told.contains(right), "{wrong}: {told}");
        }
        let told = with_nearest(command().try_get_matches_from(["terrace", "fly"]).unwrap_err()).to_string();
        assert!(!told.contains("similar"), "{told}");
    }

    #[test]
    fn the_examples_are_of_the_grammar() {
        for group in GROUPS.iter().chain([&RESEARCH_GROUP]) {
            let parsed = command().try_get_matches_from(group.example.split(' '));
            assert!(parsed.is_ok(), "{}: {}", group.example, parsed.unwrap_err());
        }
    }

    #[test]
    fn the_help_of_an_operator_fits_a_screen_of_forty_lines() {
        let help = command().render_help().to_string();
        assert!(help.lines().count() <= 40, "{} lines:\n{help}", help.lines().count());
        assert!(help.contains("from the package terrace-research") && help.contains("sim, sweep"), "{help}");
    }

    #[test]
    fn a_command_is_of_research_where_its_group_says_so() {
        use clap::FromArgMatches;
        let of = |line: &str| {
            let given = command().try_get_matches_from(line.split(' ')).unwrap();
            super::super::Arguments::from_arg_matches(&given).unwrap().command.of_research()
        };
        assert_eq!(of("terrace sim machines"), Some("sim"));
        assert_eq!(of("terrace -v lab kernels"), Some("lab"));
        assert_eq!(of("terrace size advise -- ./program"), Some("size"));
        assert_eq!(of("terrace size tune -- ./program"), None);
        assert_eq!(of("terrace size tune --paper -- ./program"), Some("size"));
        assert_eq!(of("terrace run -- ./program"), None);
        for name in RESEARCH {
            assert!(command().find_subcommand(name).is_some(), "{name} is no command");
        }
    }

    #[test]
    fn a_summary_fits_a_line_of_a_wide_terminal() {
        let help = command().render_help().to_string();
        for line in help.lines() {
            assert!(line.chars().count() <= 110, "{line}");
        }
    }
}
