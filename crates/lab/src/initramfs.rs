//! The guest's first and only root: busybox, the program under test with its libraries, modules, and the steps.
//!
//! In: files of the host and texts. Out: a cpio archive, the same bytes for the same content. Must not: contain anything
//! of the host that was not asked for.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cpio::Archive;
use crate::error::{LabError, file_error};
use crate::kernel::Kernel;
use crate::modules;
use crate::tools::start_error;

const INIT: &str = include_str!("../../../lab/init");
const HELPERS: &str = include_str!("../../../lab/helpers");

/// What goes into the guest.
#[derive(Clone, Debug, Default)]
pub(crate) struct Content {
    pub busybox: PathBuf,
    /// Files of the host and their paths in the guest; programs bring their libraries along.
    pub files: Vec<(PathBuf, String)>,
    /// Programs that bring nothing along: their paths in the guest and what they are.
    pub programs: Vec<(String, Vec<u8>)>,
    /// Kernel modules to load.
    pub modules: Vec<String>,
    /// Kernel modules that were built for it: name and file. Loaded after the others.
    pub built_modules: Vec<(String, Vec<u8>)>,
    /// Shell variables of /lab/settings.
    pub settings: Vec<(&'static str, String)>,
    /// Steps: name, script, and whether it may fail.
    pub steps: Vec<(String, String, bool)>,
}

/// Builds the archive for a kernel.
pub(crate) fn build(content: &Content, kernel: &Kernel) -> Result<Vec<u8>, LabError> {
    let mut archive = Archive::new();
    for folder in ["proc", "sys", "tmp", "lab/steps", "lab/modules", "lab/may-fail"] {
        archive.folder(folder);
    }
    archive.character_device("dev/console", 5, 1);
    archive.file("init", 0o755, INIT.as_bytes());
    archive.file("lab/helpers", 0o644, HELPERS.as_bytes());
    add_file(&mut archive, &content.busybox, "bin/busybox")?;
    let settings: String = content.settings.iter().map(|(key, value)| format!("{key}={}\n", quoted(value))).collect();
    archive.file("lab/settings", 0o644, settings.as_bytes());
    for (index, module) in modules::in_load_order(kernel, &content.modules)?.iter().enumerate() {
        archive.file(&format!("lab/modules/{index:02}-{}.ko", module.name), 0o644, &module.bytes);
    }
    for (index, (name, bytes)) in content.built_modules.iter().enumerate() {
        archive.file(&format!("lab/modules/z{index}-{name}.ko"), 0o644, bytes);
    }
    for (index, (name, script, may_fail)) in content.steps.iter().enumerate() {
        archive.file(&format!("lab/steps/{index:02}-{name}"), 0o644, script.as_bytes());
        if *may_fail {
            archive.file(&format!("lab/may-fail/{name}"), 0o644, b"");
        }
    }
    for (guest, bytes) in &content.programs {
        archive.file(guest, 0o755, bytes);
    }
    let mut libraries = Vec::new();
    for (host, guest) in &content.files {
        add_file(&mut archive, host, guest)?;
        for library in shared_libraries(host)? {
            if !libraries.contains(&library) {
                add_file(&mut archive, &library, &library.to_string_lossy())?;
                libraries.push(library);
            }
        }
    }
    Ok(archive.finish())
}

fn add_file(archive: &mut Archive, host: &Path, guest: &str) -> Result<(), LabError> {
    let data = fs::read(host).map_err(file_error(host))?;
    let permissions = fs::metadata(host).map_err(file_error(host))?.permissions().mode() & 0o777;
    archive.file(guest, permissions, &data);
    Ok(())
}

/// The libraries that the host's loader would give a program, the loader itself included; none for other files.
fn shared_libraries(path: &Path) -> Result<Vec<PathBuf>, LabError> {
    let mut start = [0; 4];
    let is_elf = fs::File::open(path).and_then(|mut file| std::io::Read::read_exact(&mut file, &mut start)).is_ok();
    if !is_elf || start != *b"\x7fELF" {
        return Ok(Vec::new());
    }
    let mut command = Command::new("ldd");
    command.arg(path).env("LC_ALL", "C");
    let output = command.output().map_err(|source| start_error(&command, "libc-bin", source))?;
    // ldd fails on a static program and says so; then there is nothing to bring along.
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    parse_ldd(&text).map_err(|library| {
        LabError::Missing(format!("{} needs {library}, which is not on this machine", path.display()))
    })
}

/// A library that ldd did not find.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct MissingLibrary(String);

/// The paths in ldd's answer, or the library that was not found.
pub(crate) fn parse_ldd(text: &str) -> Result<Vec<PathBuf>, MissingLibrary> {
    let mut paths = Vec::new();
    for line in text.lines().map(str::trim) {
        if let Some((name, "not found")) = line.split_once(" => ") {
            return Err(MissingLibrary(name.to_owned()));
        }
        let path = line.split_once(" => ").map_or(line, |(_, path)| path);
        if path.starts_with('/') {
            paths.extend(path.split_whitespace().next().map(PathBuf::from));
        }
    }
    Ok(paths)
}

/// A text as one word of the shell.
pub(crate) fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_read_off_ldds_answer() {
        let text = "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibelf.so.1 => /lib/x86_64-linux-gnu/libelf.so.1 (0x00007f)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n";
        let found = parse_ldd(text).unwrap();
        assert_eq!(found, [Path::new("/lib/x86_64-linux-gnu/libelf.so.1"), Path::new("/lib64/ld-linux-x86-64.so.2")]);
        assert_eq!(parse_ldd("\tnot a dynamic executable\n"), Ok(Vec::new()));
        assert_eq!(parse_ldd("\tlibodd.so => not found\n"), Err(MissingLibrary("libodd.so".to_owned())));
    }

    #[test]
    fn the_guest_has_what_was_asked_for_and_no_more() {
        let folder = tempfile::tempdir().unwrap();
        let busybox = folder.path().join("busybox");
        fs::write(&busybox, "not really").unwrap();
        let content = Content {
            busybox,
            settings: vec![("SHELL_WANTED", "it's".to_owned())],
            steps: vec![("first".to_owned(), "true\n".to_owned(), true)],
            programs: vec![("bin/other".to_owned(), b"#!/bin/sh\n".to_vec())],
            ..Content::default()
        };
        let kernel = Kernel { release: "x".to_owned(), image: PathBuf::new(), modules: PathBuf::new() };
        let bytes = build(&content, &kernel).unwrap();
        let text = String::from_utf8_lossy(&bytes);
        for part in [
            "lab/steps/00-first\0",
            "lab/may-fail/first\0",
            "SHELL_WANTED='it'\\''s'",
            "bin/busybox\0",
            "bin/other\0#!/bin/sh",
        ] {
            assert!(text.contains(part), "{part}");
        }
        assert_eq!(bytes, build(&content, &kernel).unwrap(), "reproducible");
    }
}
