//! Unix sockets: bound with their mode from the first moment, and removed only if they are sockets.
//!
//! In: a path and a mode. Out: a listener, and the file that goes when it is dropped. Must not: remove anything but a socket, or a socket
//! that another program answers.

use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::kind;

/// Connections that wait to be accepted; the kernel's own bound is net.core.somaxconn.
const BACKLOG: i32 = 128;

/// The file of a bound socket. Dropping it removes the file, if it is still this socket.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Device and inode.
    identity: (u64, u64),
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Another program may have taken the path since.
        let ours =
            |there: std::fs::Metadata| there.file_type().is_socket() && (there.dev(), there.ino()) == self.identity;
        if self.path.symlink_metadata().is_ok_and(ours) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Whether a socket is at a path where one is to be bound; nothing else may be there.
///
/// # Errors
/// When something else is there, or it cannot be looked at.
pub fn socket_is_there(path: &Path) -> io::Result<bool> {
    match path.symlink_metadata() {
        Ok(there) if there.file_type().is_socket() => Ok(true),
        Ok(there) => Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            format!("it is {}, and stays; a socket needs a path where nothing is", kind(there.file_type())),
        )),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Binds a socket of this mode, in the place of one that nobody answers any more.
///
/// # Errors
/// When something other than a socket is there, another program answers (`AddrInUse`), or the system refuses.
pub fn bind(path: &Path, mode: u32) -> io::Result<(UnixListener, SocketFile)> {
    let address = SocketAddrUnix::new(path)?;
    let socket = || {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
    };
    if socket_is_there(path)? {
        match rustix::net::connect(&socket()?, &address) {
            // Nobody listens: it was left by a program that was killed.
            Err(Errno::CONNREFUSED) => std::fs::remove_file(path)?,
            // Its queue is full (unix(7)), so somebody listens.
            Ok(()) | Err(Errno::AGAIN) => {
                return Err(io::Error::new(io::ErrorKind::AddrInUse, "another program serves this socket"));
            }
            Err(error) => return Err(error.into()),
        }
    }
    let listener = socket()?;
    // The file that bind makes has the mode of the socket less the umask: it is never open to more than asked for.
    rustix::fs::fchmod(&listener, Mode::from_raw_mode(mode))?;
    rustix::net::bind(&listener, &address)?;
    let made = path.symlink_metadata()?;
    let file = SocketFile { path: path.to_owned(), identity: (made.dev(), made.ino()) };
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
    rustix::net::listen(&listener, BACKLOG)?;
    let listener = UnixListener::from(listener);
    listener.set_nonblocking(false)?;
    Ok((listener, file))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn nothing_but_a_socket_is_removed_as_a_stale_socket() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("precious");
        std::fs::write(&path, "text").unwrap();
        let error = bind(&path, 0o600).unwrap_err();
        assert!(error.to_string().contains("a regular file"), "{error}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "text");
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(bind(&link, 0o600).is_err() && link.symlink_metadata().is_ok());
    }

    #[test]
    fn a_socket_has_its_mode_and_goes_with_its_owner() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let (listener, file) = bind(&path, 0o620).unwrap();
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o620);
        UnixStream::connect(&path).unwrap();
        assert_eq!(bind(&path, 0o600).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(listener);
        // Left behind, as by a kill.
        std::mem::forget(file);
        let (_listener, file) = bind(&path, 0o600).unwrap();
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
        drop(file);
        assert!(!path.exists());
    }

    #[test]
    fn what_took_the_path_since_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let (_listener, file) = bind(&path, 0o600).unwrap();
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "another's").unwrap();
        drop(file);
        assert!(path.exists());
    }
}
