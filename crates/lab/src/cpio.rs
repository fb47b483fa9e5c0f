//! A writer of plain cpio archives in the "newc" form that the kernel unpacks as its first root.
//!
//! In: files, folders, links and device nodes, by path. Out: the archive's bytes. Must not: look at a clock or at owners:
//! the same files give the same bytes, which a reproducible guest needs.
//!
//! Form: cpio(5) and Documentation/driver-api/early-userspace/buffer-format.rst of the kernel: per entry the magic
//! "070701", 13 numbers of eight hex digits, the name with its NUL, and the data, both padded to four bytes.
//!
//! Why not a crate: `cpio` 0.4.2 writes this form, device nodes and streams too, but no folders on the way to a file and no numbers of
//! inodes. It would replace the two functions at the end, some twenty lines, and everything else here would stay.

use std::collections::BTreeSet;

const FOLDER: u32 = 0o040_000;
const FILE: u32 = 0o100_000;
const LINK: u32 = 0o120_000;
const CHARACTER_DEVICE: u32 = 0o020_000;

/// An archive that grows.
#[derive(Debug, Default)]
pub struct Archive {
    bytes: Vec<u8>,
    entries: u32,
    folders: BTreeSet<String>,
}

impl Archive {
    /// An empty archive.
    pub fn new() -> Archive {
        Archive::default()
    }

    /// Adds a file with these permission bits; folders on its path are added as needed.
    pub fn file(&mut self, path: &str, permissions: u32, data: &[u8]) {
        self.entry(path, FILE | permissions, (0, 0), data);
    }

    /// Adds a symbolic link.
    pub fn link(&mut self, path: &str, target: &str) {
        self.entry(path, LINK | 0o777, (0, 0), target.as_bytes());
    }

    /// Adds a folder and those above it.
    pub fn folder(&mut self, path: &str) {
        let path = path.trim_matches('/');
        if path.is_empty() || !self.folders.insert(path.to_owned()) {
            return;
        }
        self.parents(path);
        self.raw(path, FOLDER | 0o755, (0, 0), &[]);
    }

    /// Adds a character device, such as /dev/console (5, 1).
    pub fn character_device(&mut self, path: &str, major: u32, minor: u32) {
        self.entry(path, CHARACTER_DEVICE | 0o600, (major, minor), &[]);
    }

    /// The finished archive.
    pub fn finish(mut self) -> Vec<u8> {
        self.raw("TRAILER!!!", 0, (0, 0), &[]);
        self.bytes
    }

    fn entry(&mut self, path: &str, mode: u32, device: (u32, u32), data: &[u8]) {
        let path = path.trim_matches('/');
        self.parents(path);
        self.raw(path, mode, device, data);
    }

    fn parents(&mut self, path: &str) {
        if let Some((parent, _)) = path.rsplit_once('/') {
            self.folder(parent);
        }
    }

    fn raw(&mut self, path: &str, mode: u32, (major, minor): (u32, u32), data: &[u8]) {
        self.entries += 1;
        let links = if mode & FOLDER == FOLDER { 2 } else { 1 };
        // inode, mode, user, group, links, time, size, device of the file (2), device it stands for (2), name, checksum
        let numbers =
            [self.entries, mode, 0, 0, links, 0, data.len() as u32, 0, 0, major, minor, path.len() as u32 + 1, 0];
        self.bytes.extend_from_slice(b"070701");
        for number in numbers {
            self.bytes.extend_from_slice(format!("{number:08X}").as_bytes());
        }
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(data);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Vec<u8> {
        let mut archive = Archive::new();
        archive.file("/usr/bin/tool", 0o755, b"hello");
        archive.file("usr/bin/other", 0o644, b"");
        archive.link("/bin", "usr/bin");
        archive.character_device("/dev/console", 5, 1);
        archive.finish()
    }

    #[test]
    fn the_form_is_that_of_the_manual() {
        let mut archive = Archive::new();
        archive.file("a", 0o644, b"xy");
        let bytes = archive.finish();
        let header =
            "070701000000010000".to_owned() + "81A4" + "0000000000000000" + "00000001" + "00000000" + "00000002";
        assert!(bytes.starts_with(header.as_bytes()), "{}", String::from_utf8_lossy(&bytes));
        assert_eq!(&bytes[110..112], b"a\0");
        assert_eq!(&bytes[112..116], b"xy\0\0");
        assert_eq!(bytes.len() % 4, 0);
    }

    #[test]
    fn folders_come_once_and_before_what_is_in_them() {
        let bytes = sample();
        let text = String::from_utf8_lossy(&bytes);
        // The link's target is "usr/bin" too, but what follows it is padding: the header before it distinguishes the two.
        let entries = |name: &str| {
            text.split("070701").filter(|entry| entry.get(104..).is_some_and(|rest| rest.starts_with(name))).count()
        };
        assert_eq!((entries("usr/bin\0"), entries("usr\0"), entries("bin\0")), (1, 1, 1));
        assert!(text.find("usr/bin\0").unwrap() < text.find("usr/bin/tool").unwrap());
        assert_eq!(bytes, sample(), "the same files give the same bytes");
    }

    #[test]
    fn another_reader_unpacks_it() {
        let folder = tempfile::tempdir().unwrap();
        let archive = folder.path().join("a.cpio");
        let mut small = Archive::new();
        small.file("/usr/bin/tool", 0o755, b"hello");
        small.link("/bin", "usr/bin");
        std::fs::write(&archive, small.finish()).unwrap();
        let unpacked = std::process::Command::new("cpio")
            .args(["-id", "--quiet"])
            .stdin(std::fs::File::open(&archive).unwrap())
            .current_dir(folder.path())
            .status();
        match unpacked {
            Ok(status) => {
                assert!(status.success());
                assert_eq!(std::fs::read(folder.path().join("bin/tool")).unwrap(), b"hello");
            }
            Err(error) => println!("SKIPPED another_reader_unpacks_it: cpio: {error}"),
        }
    }
}
