//! The committed objects are what the committed sources give.

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

/// Each source, and the object that is made of it, without their endings.
const OBJECTS: [(&str, &str); 2] = [("page_tables", "terrace"), ("life_cycle", "life_cycle")];

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
    for (source, object) in OBJECTS {
        let (source, file) = (format!("src/{source}.bpf.c"), format!("object/{object}.bpf.o"));
        assert_eq!(noted(&folder, object, "source"), hash(&here(&source)), "{source} changed: {stale}");
        assert_eq!(noted(&folder, object, "object"), hash(&here(&file)), "{file} changed: {stale}");
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
        assert_eq!(hash(&built.path().join(&file)), hash(&here("object").join(&file)), "{file}");
    }
}
