//! A second, stronger pass over what stays in our own compressed swap (CONFIG_ZRAM_MULTI_COMP, Linux 6.2).
//!
//! In: a device's directory in /sys/block. Out: pages that were not read for minutes are compressed again, by zstd, in a thread of its own.
//! Must not: touch a device that Terrace did not add, hold up the manager, or go on where the kernel refuses.
//!
//! The fast compressor serves what leaves and soon comes back; for what stays a denser one pays. The kernel marks pages as idle on request and takes
//! the mark off what is read or written. So each turn compresses what the turn before marked and nobody read since, and marks the rest
//! (Documentation/admin-guide/blockdev/zram.rst). The kernel passes over what it compressed again, or could not make smaller.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::Duration;

use rustix::process::setpriority_process;

/// The compressor of the second pass: the densest that kernels commonly have.
pub(super) const DENSE: &str = "zstd";
/// The time between two turns: a page that is compressed again stayed out for five to ten minutes, so it pays for the stronger compressor, and
/// for the slower return, once in that time at most. A turn that finds nothing to compress goes once through the device's table.
const EVERY: Duration = Duration::from_secs(300);
/// The nice value of the thread: the kernel compresses in it.
const LOWEST: i32 = 19;
const LIST: &str = "recomp_algorithm";

/// Whether the kernel offers it for the device of this directory.
pub(super) fn is_there(directory: &Path) -> bool {
    directory.join(LIST).exists()
}

/// Names the compressor of the second pass. For a device without a size yet.
///
/// # Errors
/// When the kernel refuses.
pub(super) fn configure(directory: &Path) -> io::Result<()> {
    terrace_files::set(&directory.join(LIST), format!("algo={DENSE} priority=1"))
}

/// The turns. It holds the device's files open: a device that gets the number later has others, and is not written to.
#[derive(Debug)]
struct Recompression {
    idle: File,
    recompress: File,
    /// Whether a turn has marked pages.
    marked: bool,
}

impl Recompression {
    fn open(directory: &Path) -> io::Result<Recompression> {
        let open = |name| File::options().write(true).open(directory.join(name));
        Ok(Recompression { idle: open("idle")?, recompress: open("recompress")?, marked: false })
    }

    /// Compresses what the last turn marked and nobody read since, then marks all there is. Takes as long as the kernel compresses.
    fn turn(&mut self) -> io::Result<()> {
        if self.marked {
            self.recompress.write_all(b"type=idle")?;
        }
        self.idle.write_all(b"all")?;
        self.marked = true;
        Ok(())
    }
}

/// The thread that takes the turns. It ends when this is dropped; nobody waits for a turn that is under way, since the kernel lets
/// the device go only after it.
#[derive(Debug)]
pub(super) struct SecondPass {
    /// Nothing is sent: that it is gone is the sign.
    _stop: Sender<()>,
}

impl SecondPass {
    /// Starts it for a device whose size is set.
    ///
    /// # Errors
    /// When its files or a thread cannot be had.
    pub(super) fn start(directory: &Path) -> io::Result<SecondPass> {
        SecondPass::start_every(directory, EVERY)
    }

    fn start_every(directory: &Path, every: Duration) -> io::Result<SecondPass> {
        let mut recompression = Recompression::open(directory)?;
        let (stop, stopped) = mpsc::channel::<()>();
        let name = directory.display().to_string();
        let work = move || {
            if let Err(error) = setpriority_process(None, LOWEST) {
                tracing::debug!(%error, "compressing again at Terrace's usual priority");
            }
            while stopped.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                if let Err(error) = recompression.turn() {
                    // A device that is being taken away refuses, too, and that is no news.
                    if stopped.try_recv() != Err(mpsc::TryRecvError::Disconnected) {
                        tracing::warn!(%error, "{name}: no second pass of compression from here on: the kernel refuses it");
                    }
                    return;
                }
            }
        };
        std::thread::Builder::new().name("recompress".to_owned()).spawn(work)?;
        Ok(SecondPass { _stop: stop })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device() -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        for file in ["idle", "recompress", LIST] {
            std::fs::write(directory.path().join(file), "").unwrap();
        }
        directory
    }

    fn text(directory: &tempfile::TempDir, file: &str) -> String {
        std::fs::read_to_string(directory.path().join(file)).unwrap()
    }

    #[test]
    fn what_one_turn_marks_the_next_compresses() {
        let directory = device();
        assert!(is_there(directory.path()));
        configure(directory.path()).unwrap();
        assert_eq!(text(&directory, LIST), "algo=zstd priority=1");
        let mut recompression = Recompression::open(directory.path()).unwrap();
        recompression.turn().unwrap();
        assert_eq!((text(&directory, "recompress").as_str(), text(&directory, "idle").as_str()), ("", "all"));
        recompression.turn().unwrap();
        assert_eq!(text(&directory, "recompress"), "type=idle");
        assert_eq!(text(&directory, "idle"), "allall", "each turn marks once");
    }

    #[test]
    fn a_kernel_without_it_is_not_written_to() {
        let directory = tempfile::tempdir().unwrap();
        assert!(!is_there(directory.path()));
        assert!(configure(directory.path()).is_err());
        assert!(Recompression::open(directory.path()).is_err());
        assert!(!directory.path().join(LIST).exists(), "no file is made");
    }

    #[test]
    fn a_refusal_ends_the_turns_and_leaves_the_pages_as_they_are() {
        // A full device refuses every write, as a kernel that does not know the request does.
        let full = File::options().write(true).open("/dev/full").unwrap();
        let directory = device();
        let mut recompression = Recompression::open(directory.path()).unwrap();
        recompression.turn().unwrap();
        recompression.recompress = full;
        assert!(recompression.turn().is_err());
        assert_eq!(text(&directory, "idle"), "all", "nothing is marked after a refusal");
    }

    #[test]
    fn the_thread_takes_turns_until_it_is_dropped() {
        let directory = device();
        let pass = SecondPass::start_every(directory.path(), Duration::from_millis(5)).unwrap();
        let began = std::time::Instant::now();
        while text(&directory, "recompress").is_empty() && began.elapsed() < Duration::from_secs(30) {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(text(&directory, "recompress").starts_with("type=idle"));
        drop(pass);
        let mut before = text(&directory, "idle");
        // A turn that had begun may still end.
        for _ in 0..100 {
            std::thread::sleep(Duration::from_millis(50));
            let now = text(&directory, "idle");
            if now == before {
                return;
            }
            before = now;
        }
        panic!("the turns go on");
    }
}
