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
    let starts = ["#[cfg(test)]\nmod ", "#[cfg(test)]\npub(crate) mod "];
    starts.iter().filter_map(|start| text.find(start)).min().map_or(text, |at| &text[..at])
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

/// Who opens a crate finds the same five things in the same place.
#[test]
fn every_crate_opens_with_purpose_entry_in_out_and_must_not() {
    let roots = with_ending("rs").into_iter().filter(|(file, _)| {
        let path = file.to_string_lossy();
        path.starts_with("crates/")
            && (path.ends_with("/src/lib.rs")
                || path == "crates/cli/src/main.rs"
                || path == "crates/research/src/main.rs")
    });
    let mut crates = 0;
    for (file, text) in roots {
        crates += 1;
        let head: Vec<&str> = text.lines().map_while(|line| line.strip_prefix("//!")).map(str::trim).collect();
        let places = ["Entry: ", "In: ", "Out: ", "Must not: "]
            .map(|name| head.iter().position(|line| line.starts_with(name)).unwrap_or_default());
        let in_order = places[0] > 0 && places.is_sorted() && head[places[0] - 1].is_empty();
        assert!(
            in_order,
            "{}: its header lacks a line that begins with Entry:, In:, Out: or Must not:",
            file.display()
        );
    }
    assert!(crates > 15, "{crates} crates are too few to be true");
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
fn files_are_created_replaced_and_bound_by_one_crate_alone() {
    // Written as root into a path that someone else chose, each of these can destroy what lies there.
    let ways = [
        "File::create",
        "fs::write(",
        "fs::rename(",
        "fs::copy(",
        "fs::hard_link(",
        ".create(true)",
        ".create_new(",
        ".truncate(true)",
        ".append(true)",
        ".persist(",
        ".persist_noclobber(",
        "tempfile_in(",
        "NamedTempFile",
        "OFlags::CREATE",
        "OFlags::TRUNC",
        "O_CREAT",
        "O_TRUNC",
        "UnixListener::bind",
        "UnixDatagram::bind",
        "renameat",
    ];
    for (file, text) in with_ending("rs") {
        let path = file.display().to_string();
        let elsewhere = ["crates/files/", "crates/fixtures/", "crates/rules/", "qemu-plugin/src/", "fuzz/"];
        if elsewhere.iter().any(|prefix| path.starts_with(prefix))
            || ["/tests/", "/examples/", "/benches/"].iter().any(|part| path.contains(part))
            || path.ends_with("_tests.rs")
            || path.ends_with("/tests.rs")
            || path.ends_with("/fixtures.rs")
        {
            continue;
        }
        for (number, line) in without_tests(&text).lines().enumerate() {
            let code = line.split("//").next().unwrap_or("");
            let way = ways.iter().find(|way| code.contains(**way));
            assert!(way.is_none(), "{path}:{}: {way:?}: use terrace_files (crates/files) instead", number + 1);
        }
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

/// How many digits of a number say something: 2 of 0.75 and of 7500.
fn significant_digits(number: &str) -> usize {
    let mantissa = number.split(['e', 'E']).next().unwrap_or("").trim_start_matches('-').replace('.', "");
    mantissa.trim_matches('0').len()
}

/// Numbers of two significant digits and more in code, without those in texts.
fn numbers(code: &str) -> Vec<String> {
    let mut found = Vec::new();
    let code: String = code.lines().map(|line| line.split("//").next().unwrap_or("").to_owned() + "\n").collect();
    for line in code.replace("\\\"", "").split('"').step_by(2).flat_map(str::lines) {
        for word in line.split(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '.' || letter == '_')) {
            let number = word.trim_matches('.').replace('_', "");
            let is_number = number.starts_with(|letter: char| letter.is_ascii_digit()) && number.parse::<f64>().is_ok();
            if is_number && significant_digits(&number) >= 2 {
                found.push(number);
            }
        }
    }
    found
}

#[test]
fn no_number_of_a_paper_stands_in_rust() {
    // Numbers of papers with two significant digits or more that are no round ones, as the files have them and as shares.
    let mut of_papers = std::collections::BTreeMap::new();
    for (file, text) in with_ending("toml").into_iter().filter(|(file, _)| file.starts_with("experiments")) {
        let stated = text.lines().filter(|line| line.starts_with("paper") && !line.starts_with("paper]"));
        for word in stated.flat_map(|line| line.split(['=', '[', ']', ',', ' '])) {
            let Ok(number) = word.parse::<f64>() else { continue };
            if significant_digits(word) >= 2 {
                for value in [number.abs(), number.abs() / 100.0, 1.0 + number / 100.0] {
                    of_papers.insert(format!("{value:.6e}"), (file.clone(), word.to_owned()));
                }
            }
        }
    }
    assert!(of_papers.len() > 100, "the experiments were not read: {}", of_papers.len());
    // What is in the reproduction's code for another reason.
    let others = ["12.706", "4.303", "3.182", "2.776", "2.571", "2.447", "2.365", "2.306", "2.262", "2.228", "2.201"];
    for (file, text) in with_ending("rs") {
        let path = file.display().to_string();
        if !path.starts_with("crates/reproduce/src") && path != "crates/research/src/commands/reproduce.rs" {
            continue;
        }
        // Bounds and sizes of the short runs that tell whether results hold, and the base of a digest, are no figures of a paper.
        let of_canaries = ["/canary.rs", "/exercise.rs", "/fingerprints.rs", "/sample.rs"];
        if path.ends_with("/tests.rs") || of_canaries.iter().any(|file| path.ends_with(file)) {
            continue;
        }
        let code = without_tests(&text);
        for number in numbers(code).iter().filter(|number| !others.contains(&number.as_str())) {
            let value = format!("{:.6e}", number.parse::<f64>().unwrap());
            if let Some((from, word)) = of_papers.get(&value) {
                panic!(
                    "{path}: {number} is a paper's number ({word} in {}): numbers of papers stand in experiments/",
                    from.display()
                );
            }
        }
        for prefix in ["\"FM.", "\"MM.", "\"FH.", "\"HW.", "\"TU."] {
            assert!(!code.contains(prefix), "{path}: names a row ({prefix}...): rows stand in experiments/");
        }
    }
}
