//! Tells results which commit Terrace is built from.
//!
//! In: TERRACE_COMMIT, for builds from an archive; else git's files, read directly, so that no git need be installed. Out: the variable
//! TERRACE_COMMIT of the compilation, `unknown` where neither says. Must not: fail, or make a build of the same commit run again.

use std::fs::read_to_string;
use std::path::Path;

/// The variable that says it, in and out.
const VARIABLE: &str = "TERRACE_COMMIT";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed={VARIABLE}");
    let given = std::env::var(VARIABLE).ok().filter(|commit| !commit.is_empty());
    let commit = given.or_else(|| commit(Path::new(env!("CARGO_MANIFEST_DIR"))));
    println!("cargo:rustc-env={VARIABLE}={}", commit.as_deref().unwrap_or("unknown"));
}

/// The commit that is checked out in the repository of this folder.
fn commit(folder: &Path) -> Option<String> {
    let git = folder.ancestors().map(|folder| folder.join(".git")).find(|git| git.exists())?;
    // In a worktree it is a file that names the folder.
    let git = match read_to_string(&git).ok().and_then(|text| text.strip_prefix("gitdir: ").map(str::to_owned)) {
        Some(path) => git.parent()?.join(path.trim()),
        None => git,
    };
    let common = read(&git.join("commondir")).map_or_else(|| git.clone(), |path| git.join(path));
    let head = read(&git.join("HEAD"))?;
    let Some(name) = head.strip_prefix("ref: ") else { return Some(head) };
    if let Some(commit) = read(&common.join(name)) {
        return Some(commit);
    }
    let packed = read(&common.join("packed-refs"))?;
    packed.lines().find_map(|line| line.strip_suffix(name)?.strip_suffix(' ').map(str::to_owned))
}

/// A file of git; where it is there, its change makes this run again.
fn read(path: &Path) -> Option<String> {
    let text = read_to_string(path).ok()?;
    println!("cargo:rerun-if-changed={}", path.display());
    Some(text.trim().to_owned())
}
