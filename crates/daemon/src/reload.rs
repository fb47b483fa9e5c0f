//! Reads the files of a reload on a separate thread: the loop does not wait for a file system.
//!
//! In: the path of the configuration, and the configuration in force. Out: the checked configuration, or all problems. Must not: put
//! anything into force; the loop does.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use crate::access::{Access, Keys};
use crate::config::{self, Config, ConfigError, ConfigErrors, Source};
use crate::shared::{Reply, Shared};

/// Time limit for reading the files. On a hung file system the read never ends.
pub(crate) const LIMIT: Duration = Duration::from_secs(10);

/// The result of reading.
type Fresh = Result<(Vec<Source>, Access), ConfigErrors>;

/// A reload whose files are being read.
pub(crate) struct Reading {
    /// Receives the result.
    pub(crate) fresh: Receiver<Fresh>,
    /// When it has taken too long.
    pub(crate) limit: Instant,
    /// The client that asked over the control socket; `None` for a signal.
    pub(crate) reply: Option<Reply>,
    /// Whether it took too long, so that its result is discarded.
    pub(crate) given_up: bool,
}

/// Why no reload begins.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReloadError {
    /// Another one is going on.
    #[error("the configuration is being read already; try again in a few seconds")]
    BeingRead,
    /// There is no thread for it.
    #[error("cannot start a thread to read the files: {0}")]
    Thread(std::io::Error),
}

impl Reading {
    /// Starts to read; wakes the loop at the end.
    pub(crate) fn begin(
        path: &Path,
        before: &[Source],
        keys: &Arc<Keys>,
        shared: &Arc<Shared>,
        reply: Option<Reply>,
    ) -> Result<Reading, ReloadError> {
        let (sender, fresh) = std::sync::mpsc::channel();
        let (path, before, keys, shared) = (path.to_owned(), before.to_vec(), Arc::clone(keys), Arc::clone(shared));
        let read = move || {
            // The loop may have given up by now.
            let _ = sender.send(read_again(&path, &before, &keys));
            shared.wake();
        };
        let thread = std::thread::Builder::new().name("reload".to_owned()).spawn(read);
        thread.map_err(ReloadError::Thread)?;
        Ok(Reading { fresh, limit: Instant::now() + LIMIT, reply, given_up: false })
    }
}

/// Reads and checks all inputs of a reload. All checks come first: a bad certificate changes nothing, and a good one with a bad file
/// changes nothing either.
fn read_again(path: &Path, before: &[Source], keys: &Keys) -> Fresh {
    let sources = config::read_files(path, false)?;
    config::check_not_emptied(before, &sources)?;
    let config = Config::of(&sources)?;
    let access = keys.read_again(&config.access.grants).map_err(|error| {
        ConfigErrors(vec![ConfigError { place: None, key: String::new(), problem: format!("{error:#}") }])
    })?;
    Ok((sources, access))
}

/// A problem of the configuration as a whole.
pub(crate) fn problem_of(path: &Path, problem: String) -> ConfigErrors {
    ConfigErrors(vec![ConfigError::of_file(path.display().to_string(), 1, problem)])
}
