//! The only crate that creates, replaces and binds files: Terrace often runs as root, and a mistaken path must not destroy what lies
//! there.
//!
//! Entry: [`Output`].
//! In: paths as people and configurations name them.
//! Out: [`Output`] and [`write()`] for outputs, [`Journal`] for results on the way to one, [`read`] and [`read_to_string`] with a bound, [`bind`]
//! for sockets, [`set`] for the kernel's files.
//! Must not: know what the files hold.
//!
//! Errors are those of `std::fs`, whose place these functions take: they say what is wrong, and the caller says which path. A test in
//! `crates/rules` holds that no other crate creates a file in another way.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod input;
mod journal;
mod output;
mod socket;

pub use input::{open, open_secret, read, read_to_string};
pub use journal::{Journal, JournalError, sealed, unsealed};
pub use output::{Output, copy, create_new, open_in_place, rename_new, set, write};
pub use socket::{SocketFile, bind, socket_is_there};

use std::fs::FileType;
use std::os::unix::fs::FileTypeExt;

/// What something is, as a person calls it.
fn kind(of: FileType) -> &'static str {
    if of.is_file() {
        "a regular file"
    } else if of.is_dir() {
        "a directory"
    } else if of.is_symlink() {
        "a symbolic link"
    } else if of.is_fifo() {
        "a FIFO"
    } else if of.is_socket() {
        "a socket"
    } else if of.is_block_device() {
        "a block device"
    } else {
        "a character device"
    }
}
