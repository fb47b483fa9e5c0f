//! The files of a reload, read on a thread of their own: the loop does not wait for a file system.
//!
//! In: the path of the configuration, what is in force. Out: what was read and checked, or all that is wrong with it. Must not: put
//! anything in force; the loop does.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use crate::access::{Access, Keys};
use crate::config::node::Place;
use crate::config::{self, Config, ConfigError, ConfigErrors, Source};
use crate::shared::{Reply, Shared};

/// The files may take so long to be read; on a file system that hangs they take for ever.
pub(crate) const LIMIT: Duration = Duration::from_secs(10);

/// What a reload reads.
type Fresh = Result<(Vec<Source>, Access), ConfigErrors>;

/// A reload whose files are being read.
pub(crate) struct Reading {
    /// Takes what was read.
    pub(crate) fresh: Receiver<Fresh>,
    /// When it has taken too long.
    pub(crate) limit: Instant,
    /// Who asked over the control socket; `None` for a signal.
    pub(crate) reply: Option<Reply>,
    /// Whether it took too long, so that what it reads is not taken in any more.
    pub(crate) given_up: bool,
}

impl Reading {
    /// Begins to read; the loop is woken when it is over.
    pub(crate) fn begin(
        path: &Path,
        before: &[Source],
        keys: &Arc<Keys>,
        shared: &Arc<Shared>,
        reply: Option<Reply>,
    ) -> Result<Reading, String> {
        let (sender, fresh) = std::sync::mpsc::channel();
        let (path, before, keys, shared) = (path.to_owned(), before.to_vec(), Arc::clone(keys), Arc::clone(shared));
        let read = move || {
            // The loop may have given up meanwhile.
            let _ = sender.send(read_again(&path, &before, &keys));
            shared.wake();
        };
        let thread = std::thread::Builder::new().name("reload".to_owned()).spawn(read);
        thread.map_err(|error| format!("there is no thread to read with: {error}"))?;
        Ok(Reading { fresh, limit: Instant::now() + LIMIT, reply, given_up: false })
    }
}

/// Reads and checks all that a reload takes in. All that can be refused comes first: a bad certificate changes nothing, and neither
/// does a good one beside a bad file.
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
    let place = Place { file: path.display().to_string().into(), line: 1 };
    ConfigErrors(vec![ConfigError { place: Some(place), key: String::new(), problem }])
}
