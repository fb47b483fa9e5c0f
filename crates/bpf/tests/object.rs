//! The committed object is what the committed source gives.

use std::path::Path;
use std::process::Command;

use sha2::{Digest, Sha256};

fn here(file: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(file)
}

fn hash(path: &Path) -> String {
    let bytes = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A line of the note that `build-object` leaves: "source HASH", "object HASH", "compiler NAME".
fn noted(folder: &Path, key: &str) -> String {
    let note = folder.join("terrace.bpf.built-from");
    let text = std::fs::read_to_string(&note).unwrap_or_else(|error| panic!("{}: {error}", note.display()));
    let line = text.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_else(|| panic!("no {key:?} in the note"));
    line.trim().to_owned()
}

#[test]
fn the_note_names_the_committed_source_and_object() {
    let folder = here("object");
    let stale = "run crates/bpf/build-object and commit what it writes";
    assert_eq!(noted(&folder, "source"), hash(&here("src/page_tables.bpf.c")), "the source changed: {stale}");
    assert_eq!(noted(&folder, "object"), hash(&here("object/terrace.bpf.o")), "the object changed: {stale}");
}

#[test]
fn the_source_gives_the_committed_object() {
    let built = tempfile::tempdir().expect("a temporary folder");
    let script = Command::new(here("build-object")).arg(built.path()).output().expect("build-object starts");
    if !script.status.success() {
        // Without a compiler there is nothing to compare; with one, a failure is one.
        let has_compiler =
            ["clang-14", "clang"].iter().any(|name| Command::new(name).arg("--version").output().is_ok());
        let has_headers = Path::new("/usr/include/bpf/bpf_helpers.h").exists();
        assert!(!(has_compiler && has_headers), "{}", String::from_utf8_lossy(&script.stderr));
        println!("SKIPPED the_source_gives_the_committed_object: needs clang, llvm-strip and libbpf-dev");
        return;
    }
    let (ours, committed) = (noted(built.path(), "compiler"), noted(&here("object"), "compiler"));
    if ours != committed {
        println!("SKIPPED the_source_gives_the_committed_object: {ours} here, built by {committed}");
        return;
    }
    assert_eq!(hash(&built.path().join("terrace.bpf.o")), hash(&here("object/terrace.bpf.o")));
}
