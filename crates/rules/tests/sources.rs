//! What every source file must hold.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The files git tracks or would track.
fn files() -> Vec<PathBuf> {
    let output = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .expect("git lists the files");
    assert!(output.status.success(), "git ls-files failed; these tests need a checkout");
    let files: Vec<PathBuf> = String::from_utf8(output.stdout).unwrap().lines().map(PathBuf::from).collect();
    assert!(files.len() > 30, "the list of files is too short to be true");
    files.into_iter().filter(|file| root().join(file).exists()).collect()
}

fn with_ending(ending: &str) -> Vec<(PathBuf, String)> {
    files()
        .into_iter()
        .filter(|file| file.extension().is_some_and(|extension| extension == ending))
        .filter_map(|file| std::fs::read_to_string(root().join(&file)).ok().map(|text| (file, text)))
        .collect()
}

/// A file's own code: what stands before its test module.
fn without_tests(text: &str) -> &str {
    text.find("#[cfg(test)]\nmod ").map_or(text, |at| &text[..at])
}

#[test]
fn every_module_says_what_it_is_for() {
    for (file, text) in with_ending("rs") {
        assert!(
            text.trim_start().starts_with("//!"),
            "{}: the first line must be //! and say what the module does",
            file.display()
        );
    }
}

#[test]
fn no_file_is_too_long_without_a_reason() {
    for (file, text) in with_ending("rs") {
        let lines = without_tests(&text).lines().count();
        let reason = text.lines().take_while(|line| line.starts_with("//!")).any(|line| line.contains("long because"));
        assert!(lines <= 800 || reason, "{}: {lines} lines; split it, or say in its header why not", file.display());
    }
}

#[test]
fn unsafe_code_stands_only_where_it_may() {
    let allowed = ["crates/linux/src/sys.rs", "crates/bpf/", "qemu-plugin/", "crates/python/"];
    for (file, text) in with_ending("rs") {
        let path = file.display().to_string();
        if allowed.iter().any(|prefix| path.starts_with(prefix))
            || path.contains("/tests/")
            || path.contains("/examples/")
        {
            continue;
        }
        let block = text.lines().find(|line| {
            let code = line.split("//").next().unwrap_or("");
            code.contains("unsafe {")
                || code.contains("unsafe fn")
                || code.contains("unsafe impl")
                || code.contains("allow(unsafe_code)")
        });
        assert!(block.is_none(), "{path}: unsafe code belongs into crates/linux/src/sys.rs: {block:?}");
    }
}

#[test]
fn nothing_unfinished_is_left_lying_about() {
    // Spelt in pieces, so that this file does not find itself.
    let marks = [concat!("to", "do!("), concat!("unimple", "mented!("), concat!("FIX", "ME"), concat!("#[ig", "nore]")];
    for ending in ["rs", "c", "h", "py", "sh"] {
        for (file, text) in with_ending(ending) {
            for mark in marks {
                assert!(!text.contains(mark), "{}: contains {mark}", file.display());
            }
        }
    }
}

#[test]
fn no_path_of_a_developers_machine_is_named() {
    let home = root();
    let above = home.parent().and_then(Path::to_str).filter(|path| path.len() > 4).map(|path| format!("{path}/"));
    let Some(above) = above.filter(|path| !["/tmp/", "/root/", "/home/", "/usr/"].contains(&path.as_str())) else {
        return;
    };
    for file in files() {
        if let Ok(text) = std::fs::read_to_string(home.join(&file)) {
            assert!(!text.contains(&above), "{}: names {above}", file.display());
        }
    }
}

#[test]
fn links_in_the_documents_lead_somewhere() {
    for (file, text) in with_ending("md") {
        let folder = root().join(&file).parent().unwrap().to_owned();
        for part in text.split("](").skip(1) {
            let target = part.split([')', '#', ' ']).next().unwrap_or("");
            if target.is_empty() || target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            assert!(folder.join(target).exists(), "{}: broken link to {target}", file.display());
        }
    }
}
