//! bpftrace for guests: Debian's own program, with the loader and the libraries that its Debian has.
//!
//! In: the cache. Out: files for a guest's first root. Must not: install anything on the host, or take its libraries: what the program
//! lives on is a compiler (LLVM) that few hosts have.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::error::{LabError, file_error};
use crate::initramfs::parse_ldd;
use crate::kernel::Cache;
use crate::tools::text_of;

/// The package.
const PACKAGE: &str = "bpftrace";
/// Bookworm has 0.17. Up to 0.23 bpftrace begins with the line "Attaching 1 probe...", which memtierd 0.1.1 waits for; later ones say it in
/// other words (bpftrace's pull request 4194).
const RELEASE: &str = "/^bookworm/";
/// Where Debian's libraries and their loader lie in a root.
const FOLDERS: [&str; 2] = ["lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu"];
const LOADER: &str = "ld-linux-x86-64.so.2";
/// Where all of it lies in a guest, apart from the libraries that the host's programs bring along.
const FOLDER: &str = "opt/bpftrace";

/// Files of a guest, path and bytes: the program, what it needs, and a command of its name that starts it.
///
/// # Errors
/// When something of it cannot be fetched.
pub(crate) fn files(cache: &Cache) -> Result<Vec<(String, Vec<u8>)>, LabError> {
    let root = cache.root_of_packages("programs/bpftrace", &[PACKAGE], RELEASE, |_| Ok(()))?;
    let program = root.join("usr/bin").join(PACKAGE);
    let loader = root.join(FOLDERS[0]).join(LOADER);
    let path = FOLDERS.map(|folder| root.join(folder).display().to_string()).join(":");
    let mut command = Command::new(&loader);
    command.args(["--library-path", &path, "--list"]).arg(&program);
    let libraries = parse_ldd(&text_of(&mut command, "libc6")?).map_err(|library| {
        LabError::Missing(format!("{} lacks {library}, which Debian's {PACKAGE} needs", root.display()))
    })?;
    let mut files = vec![(format!("bin/{PACKAGE}"), start().into_bytes())];
    for file in [program, loader].iter().chain(&libraries) {
        let bytes = fs::read(file).map_err(file_error(file))?;
        let guest = format!("{FOLDER}/{}", name(file));
        if !files.iter().any(|(path, _)| *path == guest) {
            files.push((guest, bytes));
        }
    }
    Ok(files)
}

/// The command in the guest. The program is started by its own Debian's loader, so that it does not meet the host's libraries.
fn start() -> String {
    format!("#!/bin/sh\nexec /{FOLDER}/{LOADER} --library-path /{FOLDER} /{FOLDER}/{PACKAGE} \"$@\"\n")
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    /// A root whose loader says what it would load, as the real one does when it is asked.
    fn root(cache: &Path, answer: &str) {
        let root = cache.join("programs/bpftrace");
        for folder in FOLDERS.iter().chain(&["usr/bin"]) {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        let loader = root.join(FOLDERS[0]).join(LOADER);
        let root_text = root.display().to_string();
        fs::write(&loader, format!("#!/bin/sh\ncat <<'END'\n{}\nEND\n", answer.replace("ROOT", &root_text))).unwrap();
        fs::set_permissions(&loader, fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(root.join("usr/bin/bpftrace"), "program").unwrap();
        fs::write(root.join(FOLDERS[1]).join("libone.so.1.2"), "one").unwrap();
        symlink("libone.so.1.2", root.join(FOLDERS[1]).join("libone.so.1")).unwrap();
    }

    #[test]
    fn the_program_comes_with_its_libraries_under_the_names_it_asks_for() {
        let folder = tempfile::tempdir().unwrap();
        root(
            folder.path(),
            "\tlinux-vdso.so.1 (0x0)\n\tlibone.so.1 => ROOT/usr/lib/x86_64-linux-gnu/libone.so.1 (0x1)\n\
             \t/lib64/ld-linux-x86-64.so.2 => ROOT/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2 (0x2)",
        );
        let files = files(&Cache::at(folder.path())).unwrap();
        let names: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
        let wanted =
            ["bin/bpftrace", "opt/bpftrace/bpftrace", "opt/bpftrace/ld-linux-x86-64.so.2", "opt/bpftrace/libone.so.1"];
        assert_eq!(names, wanted);
        assert_eq!(files[3].1, b"one");
        assert!(String::from_utf8_lossy(&files[0].1).contains("exec /opt/bpftrace/ld-linux-x86-64.so.2"));
    }

    #[test]
    fn a_library_that_is_not_there_is_told() {
        let folder = tempfile::tempdir().unwrap();
        root(folder.path(), "\tlibodd.so => not found");
        let error = files(&Cache::at(folder.path())).unwrap_err().to_string();
        assert!(error.contains("libodd.so") && error.contains("programs/bpftrace"), "{error}");
    }
}
