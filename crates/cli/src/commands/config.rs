//! `terrace config`: the daemon's configuration, checked and explained without a daemon.

use std::path::Path;

use terrace_daemon::config::{self, Config, ConfigErrors};

use crate::args::ConfigCommand;
use crate::options::Misuse;

pub(super) fn run(command: &ConfigCommand) -> anyhow::Result<()> {
    match command {
        ConfigCommand::Check(place) => {
            let config = Config::load(place.path()).map_err(|errors| told(place.path(), &errors))?;
            config.check_sockets()?;
            let classes: Vec<&str> = config.classes.iter().map(|class| class.name.as_str()).collect();
            let classes = match classes.len() {
                0 => "no class: the daemon would manage nothing".to_owned(),
                1 => format!("1 class: {}", classes[0]),
                count => format!("{count} classes: {}", classes.join(", ")),
            };
            super::print_text(&format!("{}: all is well; {classes}\n", place.path().display()))
        }
        ConfigCommand::Show(place) => {
            let sources = config::read_files(place.path(), false).map_err(|errors| told(place.path(), &errors))?;
            Config::of(&sources).map_err(|errors| told(place.path(), &errors))?;
            let tree = config::merged(&sources).map_err(|errors| told(place.path(), &errors))?;
            super::print_text(&config::show(&tree))
        }
        ConfigCommand::Default => super::print_text(&config::default_file()),
        ConfigCommand::Explain { key } => match config::explain(key) {
            Some(text) => super::print_text(&text),
            None => Err(Misuse(format!("there is no key {key}; {}", config::similar(key))).into()),
        },
    }
}

/// All problems, one a line, below one line that says how many.
fn told(path: &Path, errors: &ConfigErrors) -> anyhow::Error {
    let count = errors.0.len();
    let mistakes = if count == 1 { "one mistake".to_owned() } else { format!("{count} mistakes") };
    anyhow::anyhow!("{}: {mistakes}\n{errors}", path.display())
}
