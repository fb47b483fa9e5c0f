//! Tells results which sources compute them.
//!
//! In: the sources of our crates beside this one. Out: the variable TERRACE_DIGESTS of the compilation. Must not: use a network, or give another
//! text for the same sources.

// The library uses the rest.
#[allow(dead_code)]
#[path = "src/sources.rs"]
mod sources;

use std::path::Path;

fn main() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut found = sources::Sources::new();
    for name in sources::CRATES {
        let folder = crates.join(name).join("src");
        println!("cargo:rerun-if-changed={}", folder.display());
        read(&crates, &folder, &mut found);
    }
    println!("cargo:rerun-if-changed=build.rs");
    let digests = sources::digests(&found);
    let of_all = [("model", digests.model), ("swap", digests.swap), ("sizing", digests.sizing)];
    let mut list: Vec<(String, String)> = of_all.map(|(name, digest)| (name.to_owned(), digest)).into();
    list.extend(digests.policies.into_iter().map(|(name, digest)| (format!("policy/{name}"), digest)));
    list.extend(digests.programs.into_iter().map(|(name, digest)| (format!("program/{name}"), digest)));
    let list: Vec<String> = list.into_iter().map(|(name, digest)| format!("{name} {digest}")).collect();
    println!("cargo:rustc-env=TERRACE_DIGESTS={}", list.join(";"));
}

fn read(crates: &Path, folder: &Path, into: &mut sources::Sources) {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    for entry in entries {
        let path = entry.unwrap_or_else(|error| panic!("{}: {error}", folder.display())).path();
        if path.is_dir() {
            read(crates, &path, into);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            let name = path.strip_prefix(crates).expect("it lies below").to_string_lossy().into_owned();
            into.insert(name, text);
        }
    }
}
