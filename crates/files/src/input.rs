//! Reads with a bound: what is read at once is a regular file, and no longer than its reader says.
//!
//! In: a path and the most bytes it may have. Out: its bytes. Must not: wait for a FIFO's writer, read an endless device, or trust the
//! size that a directory entry states.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

use crate::output::{bounded, refused, regular};

/// Opens a regular file, with what it is.
///
/// # Errors
/// When there is none, it is something else, or may not be read.
pub fn open(path: &Path) -> io::Result<(File, Metadata)> {
    // Looked at before it is opened: opening alone can have effects, as with a tape or a watchdog.
    regular(&path.metadata()?)?;
    let file = File::options().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(path)?;
    let found = file.metadata()?;
    regular(&found)?;
    Ok((file, found))
}

/// Reads a regular file of at most `limit` bytes.
///
/// # Errors
/// As [`open`], and when it is longer.
pub fn read(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    bounded(&mut open(path)?.0, limit)
}

/// Reads a regular file of at most `limit` bytes of UTF-8.
///
/// # Errors
/// As [`read`], and when it is no UTF-8.
pub fn read_to_string(path: &Path, limit: u64) -> io::Result<String> {
    String::from_utf8(read(path, limit)?)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.utf8_error().to_string()))
}

/// Opens a secret: a regular file that belongs to root or to who runs this, and that no other user may read or write.
///
/// # Errors
/// As [`open`], and when owner or mode let others at it.
pub fn open_secret(path: &Path) -> io::Result<File> {
    let (file, found) = open(path)?;
    let own = rustix::process::geteuid().as_raw();
    if found.uid() != 0 && found.uid() != own {
        let uid = found.uid();
        return Err(refused(&format!("it belongs to user {uid}, who may change it: chown root {}", path.display())));
    }
    let mode = found.mode() & 0o777;
    if mode & 0o007 != 0 {
        return Err(refused(&format!("others may read it (mode {mode:o}): chmod o= {}", path.display())));
    }
    if mode & 0o020 != 0 {
        return Err(refused(&format!("its group may change it (mode {mode:o}): chmod g-w {}", path.display())));
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn endless_files_and_pipes_without_a_writer_are_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let (link, fifo) = (folder.path().join("link"), folder.path().join("fifo"));
        symlink("/dev/zero", &link).unwrap();
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        for (path, what) in [(link.as_path(), "a character device"), (&fifo, "a FIFO"), (folder.path(), "a directory")]
        {
            let error = read(path, 1 << 20).unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
        }
    }

    #[test]
    fn a_file_is_read_up_to_its_bound() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, "12345").unwrap();
        assert_eq!(read_to_string(&path, 5).unwrap(), "12345");
        let error = read(&path, 4).unwrap_err().to_string();
        assert!(error.contains("more than 4 bytes"), "{error}");
        std::fs::write(&path, [0xff]).unwrap();
        assert!(read_to_string(&path, 5).is_err());
        // Files of the kernel state no size, or a wrong one.
        assert!(!read(Path::new("/proc/self/status"), 1 << 20).unwrap().is_empty());
    }

    #[test]
    fn a_secret_belongs_to_root_or_to_us_and_to_nobody_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        std::fs::write(&path, "secret").unwrap();
        for (mode, fine) in [(0o600, true), (0o640, true), (0o400, true), (0o644, false), (0o660, false)] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(open_secret(&path).is_ok(), fine, "{mode:o}");
        }
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        if std::os::unix::fs::chown(&path, Some(12345), None).is_ok() {
            let error = open_secret(&path).unwrap_err().to_string();
            assert!(error.contains("user 12345"), "{error}");
        } else {
            println!("SKIPPED: only root can give a file away");
        }
    }
}
