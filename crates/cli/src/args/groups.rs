//! The command's own help: its subcommands in groups by what a person wants, each group with an example.
//!
//! In: the grammar. Out: the grammar with that help. Must not: describe a subcommand; its own summary is printed.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory, Error};
use terrace_daemon::config::schema::nearest;

/// A group of subcommands.
struct Group {
    title: &'static str,
    example: &'static str,
    commands: &'static [&'static str],
}

const GROUPS: &[Group] = &[
    Group {
        title: "Manage a program",
        example: "terrace run --report report -- ./program",
        commands: &["demo", "run", "attach", "observe"],
    },
    Group {
        title: "This machine",
        example: "terrace doctor",
        commands: &["doctor", "topology", "policies", "completions"],
    },
    Group {
        title: "The service, terraced",
        example: "terrace status",
        commands: &[
            "config", "status", "top", "classes", "history", "explain", "set", "pause", "resume", "drain", "reload",
        ],
    },
    Group { title: "How much fast memory", example: "terrace size advise -- ./program", commands: &["size"] },
    Group {
        title: "Research",
        example: "terrace sim compare --workloads btree --policies age,tpp",
        commands: &["compare", "sim", "sweep", "rerun", "reproduce", "record", "trace", "workload", "lab"],
    },
];

/// The grammar of `terrace`, with its subcommands in groups.
pub(crate) fn command() -> Command {
    let command = super::Arguments::command();
    let template = template(&command);
    command.help_template(template)
}

/// clap's message about a command that does not exist, with the nearest one where clap finds none, as in `terrace rnu`.
pub(crate) fn with_nearest(mut told: Error) -> Error {
    let known = GROUPS.iter().flat_map(|group| group.commands).copied();
    let near = match (told.kind(), told.get(ContextKind::InvalidSubcommand)) {
        (ErrorKind::InvalidSubcommand, Some(ContextValue::String(wrong))) => nearest(wrong, known),
        _ => None,
    };
    if let (Some(near), None) = (near, told.get(ContextKind::SuggestedSubcommand)) {
        told.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(vec![near.to_owned()]));
    }
    told
}

fn template(command: &Command) -> String {
    let mut text = "{about-with-newline}\n{usage-heading} {usage}\n".to_owned();
    let width = GROUPS.iter().flat_map(|group| group.commands).map(|name| name.len()).max().unwrap_or(0);
    for group in GROUPS {
        text += &format!("\n{}, such as `{}`:\n", group.title, group.example);
        for name in group.commands {
            let about = command.find_subcommand(name).and_then(Command::get_about).map(ToString::to_string);
            text += &format!("  {name:width$}  {}\n", about.unwrap_or_default());
        }
    }
    text + "\nOptions:\n{options}\n\n`terrace help COMMAND` explains one.\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_subcommand_stands_in_one_group() {
        let command = super::super::Arguments::command();
        let mut known: Vec<&str> =
            command.get_subcommands().filter(|one| !one.is_hide_set()).map(Command::get_name).collect();
        let mut grouped: Vec<&str> = GROUPS.iter().flat_map(|group| group.commands).copied().collect();
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
        for group in GROUPS {
            let parsed = command().try_get_matches_from(group.example.split(' '));
            assert!(parsed.is_ok(), "{}: {}", group.example, parsed.unwrap_err());
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
