//! Outputs: a path gets a whole new file or keeps what it had.
//!
//! In: a path and bytes. Out: a file. The rule, by what the path leads to:
//!
//! | there is | what happens |
//! |---|---|
//! | nothing | a file of mode 0644 less the umask, once it is whole |
//! | a regular file that may be written | it is replaced by a new one with its mode, once that is whole |
//! | a symbolic link | the same for what it leads to, as far as the kernel follows it (`fs.protected_symlinks`); to nothing: refused |
//! | a FIFO or a character device | written through, as `>` of a shell does |
//! | a directory, a socket, a block device | refused |
//!
//! Must not: replace or remove anything but a regular file, or leave half a file under the path. A kill leaves the file in the making
//! behind, under a name that begins with `.terrace-`, in the same directory.

use std::fs::{File, Metadata, Permissions};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, Mode, OFlags, RenameFlags};
use tempfile::NamedTempFile;

use crate::kind;

/// The mode of a new file, less the umask.
const NEW_FILE: u32 = 0o644;

/// A file in the making. Dropping it leaves the path as it was; [`Output::finish`] puts it there.
///
/// It is written to by code that knows no path, as a [`Write`]; errors of that name it.
#[derive(Debug)]
pub struct Output {
    path: PathBuf,
    sink: Sink,
}

#[derive(Debug)]
enum Sink {
    Through(File),
    Beside { file: NamedTempFile, target: PathBuf },
}

/// What a path leads to.
enum Found {
    Nothing,
    /// A regular file under this name, with this mode.
    Regular(PathBuf, u32),
    /// Something to write through.
    Stream(OwnedFd),
}

impl Output {
    /// Begins an output.
    ///
    /// # Errors
    /// When the rule above refuses the path, or nothing can be written there.
    pub fn create(path: &Path) -> io::Result<Output> {
        let (target, mode) = match found(path)? {
            Found::Stream(handle) => {
                return Ok(Output { path: path.to_owned(), sink: Sink::Through(through(&handle)?) });
            }
            Found::Nothing => (path.to_owned(), None),
            Found::Regular(target, mode) => {
                // A rename asks for no right to the file itself.
                rustix::fs::accessat(CWD, &target, Access::WRITE_OK, AtFlags::EACCESS)?;
                (target, Some(mode))
            }
        };
        let file = tempfile::Builder::new()
            .prefix(".terrace-")
            .permissions(Permissions::from_mode(NEW_FILE))
            .tempfile_in(directory(&target))?;
        if let Some(mode) = mode {
            file.as_file().set_permissions(Permissions::from_mode(mode & 0o777))?;
        }
        Ok(Output { path: path.to_owned(), sink: Sink::Beside { file, target } })
    }

    /// Begins an output that is read again before it is finished.
    ///
    /// # Errors
    /// As [`Output::create`], and when the path leads to a FIFO or a device.
    pub fn create_file(path: &Path) -> io::Result<Output> {
        let output = Output::create(path)?;
        match &output.sink {
            Sink::Beside { .. } => Ok(output),
            Sink::Through(file) => {
                let kind = kind(file.metadata()?.file_type());
                Err(refused(&format!("it is {kind}; expected a file, which is read again when it is whole")))
            }
        }
    }

    /// What was written so far, from its beginning.
    ///
    /// # Errors
    /// When it is a FIFO or a device, or the file cannot be opened.
    pub fn read_back(&self) -> io::Result<File> {
        match &self.sink {
            Sink::Beside { file, .. } => file.reopen(),
            Sink::Through(_) => Err(refused("a FIFO or a device cannot be read back")),
        }
    }

    /// Puts the file, which is whole now, under its path.
    ///
    /// # Errors
    /// When it cannot be forced to the disk, or something that is no regular file lies under the path by now.
    pub fn finish(self) -> io::Result<()> {
        let Sink::Beside { mut file, target } = self.sink else { return Ok(()) };
        file.as_file().sync_all()?;
        // A file that another process creates at this moment is found in the next turn.
        for _ in 0..8 {
            match target.symlink_metadata() {
                Ok(there) if there.is_file() => return file.persist(&target).map(drop).map_err(|error| error.error),
                Ok(there) => return Err(refused(&format!("it is {} by now", kind(there.file_type())))),
                Err(error) if error.kind() == io::ErrorKind::NotFound => match file.persist_noclobber(&target) {
                    Ok(_) => return Ok(()),
                    Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => file = error.file,
                    Err(error) => return Err(error.error),
                },
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::other("others make and remove files under this name"))
    }
}

impl Sink {
    fn file(&mut self) -> &mut File {
        match self {
            Sink::Through(file) => file,
            Sink::Beside { file, .. } => file.as_file_mut(),
        }
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.sink.file().write(bytes).map_err(|error| match error.kind() {
            // Who writes tries again.
            io::ErrorKind::Interrupted => error,
            kind => io::Error::new(kind, format!("{} could not be written: {error}", self.path.display())),
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes a whole file, by the rule of [`Output`].
///
/// # Errors
/// As [`Output::create`] and [`Output::finish`], and when the bytes cannot be written; the caller says which path.
pub fn write(path: &Path, bytes: impl AsRef<[u8]>) -> io::Result<()> {
    let mut output = Output::create(path)?;
    output.sink.file().write_all(bytes.as_ref())?;
    output.finish()
}

/// Copies the bytes of a file, by the rule of [`Output`].
///
/// # Errors
/// As [`write()`], and when the first cannot be read.
pub fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let mut input = File::open(from)?;
    let mut output = Output::create(to)?;
    io::copy(&mut input, &mut output)?;
    output.finish()
}

/// A new file to write into, where nothing may be yet.
///
/// # Errors
/// When something is there, or the file cannot be made.
pub fn create_new(path: &Path) -> io::Result<File> {
    File::options().read(true).write(true).create_new(true).open(path)
}

/// A regular file that is changed in place, such as a journal or a lock; it is made, empty, where there is nothing.
///
/// # Errors
/// When the path is anything else, a symbolic link included, or cannot be opened.
pub fn open_in_place(path: &Path) -> io::Result<File> {
    if let Ok(there) = path.symlink_metadata()
        && !there.is_file()
    {
        return Err(refused(&format!("it is {}; expected a regular file or nothing", kind(there.file_type()))));
    }
    // So that a FIFO that was put there meanwhile keeps nobody waiting.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
    let file = File::options().read(true).write(true).create(true).truncate(false).custom_flags(flags).open(path)?;
    regular(&file.metadata()?)?;
    Ok(file)
}

/// Gives a file or a directory its final name, where nothing may be yet. Both lie on one file system.
///
/// # Errors
/// When something is there, or the system refuses.
pub fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Ok(()) => Ok(()),
        // Some file systems do not know the flag (rename(2)).
        Err(rustix::io::Errno::INVAL) if to.symlink_metadata().is_err() => std::fs::rename(from, to),
        Err(error) => Err(error.into()),
    }
}

/// Writes a value into a file of the kernel (sysfs, procfs, cgroups). It creates nothing: what is gone stays gone.
///
/// # Errors
/// When there is no such file, or the kernel refuses the value.
pub fn set(path: &Path, value: impl AsRef<[u8]>) -> io::Result<()> {
    // No file of sysfs or procfs refuses truncation, and a regular file, in a test, needs it.
    File::options().write(true).truncate(true).open(path)?.write_all(value.as_ref())
}

fn found(path: &Path) -> io::Result<Found> {
    let there = match path.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Found::Nothing),
        there => there?,
    };
    if there.is_file() {
        return Ok(Found::Regular(path.to_owned(), there.mode()));
    }
    // The kernel follows links itself, so that its own rule about those of others holds.
    let handle = match rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
        Err(rustix::io::Errno::NOENT) => {
            return Err(refused("it is a symbolic link to nothing; remove it, or name what it should lead to"));
        }
        handle => File::from(handle?),
    };
    let target = handle.metadata()?;
    if target.is_file() {
        let name = std::fs::read_link(named(&handle))?;
        let same = |now: Metadata| (now.dev(), now.ino()) == (target.dev(), target.ino());
        if name.symlink_metadata().is_ok_and(same) {
            return Ok(Found::Regular(name, target.mode()));
        }
        return Err(refused("it is a link to a file that has no name any more"));
    }
    if target.file_type().is_fifo() || target.file_type().is_char_device() {
        return Ok(Found::Stream(handle.into()));
    }
    Err(refused(&format!(
        "it is {}; expected a file, a FIFO, a character device, or nothing",
        kind(target.file_type())
    )))
}

/// Opens for writing what is already held, and nothing else that may lie under its name by now.
fn through(handle: &OwnedFd) -> io::Result<File> {
    File::options().write(true).custom_flags(OFlags::NOCTTY.bits() as i32).open(named(handle))
}

fn named(handle: &impl AsRawFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", handle.as_raw_fd()))
}

fn directory(of: &Path) -> &Path {
    of.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

pub(crate) fn regular(found: &Metadata) -> io::Result<()> {
    if found.is_file() {
        return Ok(());
    }
    Err(refused(&format!("it is {}; expected a regular file", kind(found.file_type()))))
}

pub(crate) fn refused(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

/// Reads at most so much.
pub(crate) fn bounded(file: &mut File, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(limit + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("it has more than {limit} bytes")));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    fn fifo(path: &Path) {
        rustix::fs::mknodat(CWD, path, rustix::fs::FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    }

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_is_there_whole_or_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        let mut output = Output::create(&path).unwrap();
        output.write_all(b"half").unwrap();
        assert!(!path.exists());
        drop(output);
        assert!(names(folder.path()).is_empty());
        write(&path, "whole").unwrap();
        let mut output = Output::create(&path).unwrap();
        output.write_all(b"half").unwrap();
        drop(output);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "whole");
        assert_eq!(names(folder.path()), ["out"]);
    }

    #[test]
    fn who_streams_into_a_full_device_learns_which_and_why() {
        let mut output = Output::create(Path::new("/dev/full")).unwrap();
        let error = output.write_all(b"text").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert_eq!(error.to_string(), "/dev/full could not be written: No space left on device (os error 28)");
        // The callers of the other say which.
        let error = write(Path::new("/dev/full"), "text").unwrap_err();
        assert_eq!(error.to_string(), "No space left on device (os error 28)");
    }

    #[test]
    fn a_replaced_file_keeps_its_mode() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        write(&path, "one").unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        write(&path, "two").unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "two");
    }

    #[test]
    fn a_device_node_stays_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("null");
        let made = rustix::fs::mknodat(
            CWD,
            &path,
            rustix::fs::FileType::CharacterDevice,
            Mode::RUSR | Mode::WUSR,
            rustix::fs::makedev(1, 3),
        );
        if made.is_err() || File::options().write(true).open(&path).is_err() {
            println!("SKIPPED: device nodes cannot be made or opened here (root, and no nodev)");
        } else {
            write(&path, "gone").unwrap();
            assert!(path.symlink_metadata().unwrap().file_type().is_char_device());
        }
        write(Path::new("/dev/null"), "gone").unwrap();
        assert!(Path::new("/dev/null").metadata().unwrap().file_type().is_char_device());
    }

    #[test]
    fn a_fifo_is_written_through() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("fifo");
        fifo(&path);
        let reader = {
            let path = path.clone();
            std::thread::spawn(move || std::fs::read_to_string(path).unwrap())
        };
        write(&path, "through").unwrap();
        assert_eq!(reader.join().unwrap(), "through");
        assert!(path.symlink_metadata().unwrap().file_type().is_fifo());
        assert_eq!(names(folder.path()), ["fifo"]);
    }

    #[test]
    fn a_link_stays_one_and_what_it_leads_to_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let (link, file) = (folder.path().join("link"), folder.path().join("deep/file"));
        symlink("deep/file", &link).unwrap();
        let error = write(&link, "x").unwrap_err().to_string();
        assert!(error.contains("symbolic link to nothing"), "{error}");
        std::fs::create_dir(folder.path().join("deep")).unwrap();
        std::fs::write(&file, "before").unwrap();
        write(&link, "after").unwrap();
        assert!(link.symlink_metadata().unwrap().is_symlink());
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "after");
        assert_eq!(names(&folder.path().join("deep")), ["file"]);
        let device = folder.path().join("device");
        symlink("/dev/null", &device).unwrap();
        write(&device, "gone").unwrap();
        assert!(device.symlink_metadata().unwrap().is_symlink());
    }

    #[test]
    fn directories_sockets_and_what_came_meanwhile_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("socket");
        let _listener = UnixListener::bind(&socket).unwrap();
        for (path, what) in [(folder.path(), "a directory"), (&socket, "a socket")] {
            let error = write(path, "x").unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
        }
        let path = folder.path().join("out");
        let output = Output::create(&path).unwrap();
        fifo(&path);
        let error = output.finish().unwrap_err().to_string();
        assert!(error.contains("a FIFO"), "{error}");
        assert!(path.symlink_metadata().unwrap().file_type().is_fifo());
    }

    #[test]
    fn files_in_place_are_regular_ones() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link, pipe) = (folder.path().join("file"), folder.path().join("link"), folder.path().join("pipe"));
        open_in_place(&file).unwrap().write_all(b"kept").unwrap();
        open_in_place(&file).unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "kept");
        symlink(&file, &link).unwrap();
        fifo(&pipe);
        for (path, what) in [(&link, "a symbolic link"), (&pipe, "a FIFO")] {
            let error = open_in_place(path).unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
        }
    }

    #[test]
    fn names_are_given_only_where_nothing_is() {
        let folder = tempfile::tempdir().unwrap();
        let (one, two) = (folder.path().join("one"), folder.path().join("two"));
        write(&one, "1").unwrap();
        rename_new(&one, &two).unwrap();
        write(&one, "2").unwrap();
        assert!(rename_new(&one, &two).is_err());
        assert_eq!(std::fs::read_to_string(&two).unwrap(), "1");
        assert!(create_new(&two).is_err());
        copy(&two, &one).unwrap();
        assert_eq!(std::fs::read_to_string(&one).unwrap(), "1");
    }

    #[test]
    fn a_value_makes_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("knob");
        assert!(set(&path, "1").is_err() && !path.exists());
        write(&path, "long text").unwrap();
        set(&path, "1").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "1");
    }
}
