//! The committed objects are what the committed sources give.

use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest, Sha256};

fn here(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(file)
}

fn hash(paths: &[PathBuf]) -> String {
    let mut digest = Sha256::new();
    for path in paths {
        digest.update(std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display())));
    }
    digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The sources of each object in the order of `build-object`, and its name without ending.
const OBJECTS: [(&[&str], &str); 2] = [
    (&["walk.bpf.h", "pid.bpf.h", "page_tables.bpf.c"], "terrace"),
    (&["pid.bpf.h", "life_cycle.bpf.c"], "life_cycle"),
];

/// A line of the note that `build-object` leaves: "source HASH", "object HASH", "compiler NAME".
fn noted(folder: &Path, object: &str, key: &str) -> String {
    let note = folder.join(format!("{object}.bpf.built-from"));
    let text = std::fs::read_to_string(&note).unwrap_or_else(|error| panic!("{}: {error}", note.display()));
    let line = text.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_else(|| panic!("no {key:?} in the note"));
    line.trim().to_owned()
}

#[test]
fn the_notes_name_the_committed_sources_and_objects() {
    let folder = here("object");
    let stale = "run crates/bpf/build-object and commit what it writes";
    for (sources, object) in OBJECTS {
        let files: Vec<PathBuf> = sources.iter().map(|source| here("src").join(source)).collect();
        let file = format!("object/{object}.bpf.o");
        assert_eq!(noted(&folder, object, "source"), hash(&files), "{sources:?} changed: {stale}");
        assert_eq!(noted(&folder, object, "object"), hash(&[here(&file)]), "{file} changed: {stale}");
    }
}

#[test]
fn the_sources_give_the_committed_objects() {
    let built = tempfile::tempdir().expect("a temporary folder");
    let script = Command::new(here("build-object")).arg(built.path()).output().expect("build-object starts");
    if !script.status.success() {
        // Without a compiler there is nothing to compare; with one, a failure is one.
        let has_compiler =
            ["clang-14", "clang"].iter().any(|name| Command::new(name).arg("--version").output().is_ok());
        let has_headers = Path::new("/usr/include/bpf/bpf_helpers.h").exists();
        assert!(!(has_compiler && has_headers), "{}", String::from_utf8_lossy(&script.stderr));
        println!("SKIPPED the_sources_give_the_committed_objects: needs clang, llvm-strip and libbpf-dev");
        return;
    }
    for (_, object) in OBJECTS {
        let ours = noted(built.path(), object, "compiler");
        let committed = noted(&here("object"), object, "compiler");
        if ours != committed {
            println!("SKIPPED the_sources_give_the_committed_objects: {ours} here, {object} built by {committed}");
            continue;
        }
        let file = format!("{object}.bpf.o");
        assert_eq!(hash(&[built.path().join(&file)]), hash(&[here("object").join(&file)]), "{file}");
    }
}
