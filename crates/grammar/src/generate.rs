//! Manual pages and completions, from the grammar itself: of both programs, whichever is asked.
//!
//! In: a shell, or a directory. Out: completions as text; for packages files. Must not: describe a command; its help is what is written.

use std::path::Path;

use anyhow::Context;
use clap::Command;
use clap_complete::{Generator, Shell};

use terrace_run::programs::{RESEARCH, TERRACE};

use crate::{GenerateArguments, command, of_research};

/// `terrace generate`: for packages.
///
/// # Errors
/// When a file cannot be written.
pub fn run(arguments: &GenerateArguments) -> anyhow::Result<()> {
    // The package terrace-research holds what lies in a folder of its own.
    for (program, directory) in
        [(TERRACE, arguments.directory.clone()), (RESEARCH, arguments.directory.join("research"))]
    {
        let (man, completions) = (directory.join("man"), directory.join("completions"));
        for directory in [&man, &completions] {
            std::fs::create_dir_all(directory).with_context(|| format!("{}: cannot be made", directory.display()))?;
        }
        if program == TERRACE {
            let mut grammar = command();
            grammar.build();
            pages(&grammar, TERRACE, &man)?;
        } else {
            // The pages of its commands are those of `terrace`: they are typed in the same way.
            page(&of_research(), RESEARCH, &man)?;
        }
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let path = completions.join(shell.file_name(program));
            terrace_files::write(&path, self::completions(program, shell)?)
                .with_context(|| format!("{}: cannot be written", path.display()))?;
            tracing::info!("{}", path.display());
        }
    }
    Ok(())
}

/// What a shell is to source for a program.
///
/// # Errors
/// When they are no text, which would be a fault of the grammar.
pub fn completions(program: &str, shell: Shell) -> anyhow::Result<String> {
    let mut text = Vec::new();
    let mut grammar = if program == RESEARCH { of_research() } else { command() };
    clap_complete::generate(shell, &mut grammar, program, &mut text);
    String::from_utf8(text).context("completions are UTF-8")
}

/// A page for a command, and one for each below it: terrace.1, terrace-sim.1, terrace-sim-run.1.
fn pages(command: &Command, name: &str, directory: &Path) -> anyhow::Result<()> {
    page(command, name, directory)?;
    for below in command.get_subcommands().filter(|below| !below.is_hide_set() && below.get_name() != "help") {
        pages(below, &format!("{name}-{}", below.get_name()), directory)?;
    }
    Ok(())
}

fn page(command: &Command, name: &str, directory: &Path) -> anyhow::Result<()> {
    let path = directory.join(format!("{name}.1"));
    let mut text = Vec::new();
    clap_mangen::Man::new(command.clone().display_name(name.to_owned())).title(name).render(&mut text)?;
    terrace_files::write(&path, text).with_context(|| format!("{}: cannot be written", path.display()))
}
