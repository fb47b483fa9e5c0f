//! `terrace generate`: manual pages and completions for packages, from the grammar itself.

use std::path::Path;

use anyhow::Context;
use clap::{Command, CommandFactory};
use clap_complete::{Generator, Shell};

use crate::args::{Arguments, GenerateArguments};

pub(super) fn run(arguments: &GenerateArguments) -> anyhow::Result<()> {
    let (man, completions) = (arguments.directory.join("man"), arguments.directory.join("completions"));
    for directory in [&man, &completions] {
        std::fs::create_dir_all(directory).with_context(|| format!("{}: cannot be made", directory.display()))?;
    }
    let mut command = Arguments::command();
    command.build();
    pages(&command, "terrace", &man)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        let (path, mut text) = (completions.join(shell.file_name("terrace")), Vec::new());
        clap_complete::generate(shell, &mut command.clone(), "terrace", &mut text);
        terrace_files::write(&path, text).with_context(|| format!("{}: cannot be written", path.display()))?;
        tracing::info!("{}", path.display());
    }
    Ok(())
}

/// `terrace completions SHELL`: what the shell is to source, on stdout.
pub(super) fn completions(shell: Shell) -> anyhow::Result<()> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "terrace", &mut text);
    super::print_text(&String::from_utf8(text).context("completions are UTF-8")?)
}

/// A page for a command, and one for each below it: terrace.1, terrace-sim.1, terrace-sim-run.1.
fn pages(command: &Command, name: &str, directory: &Path) -> anyhow::Result<()> {
    let path = directory.join(format!("{name}.1"));
    let mut text = Vec::new();
    clap_mangen::Man::new(command.clone().display_name(name.to_owned())).title(name).render(&mut text)?;
    terrace_files::write(&path, text).with_context(|| format!("{}: cannot be written", path.display()))?;
    for below in command.get_subcommands().filter(|below| !below.is_hide_set() && below.get_name() != "help") {
        pages(below, &format!("{name}-{}", below.get_name()), directory)?;
    }
    Ok(())
}
