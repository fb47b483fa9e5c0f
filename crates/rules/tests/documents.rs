//! What the documents must hold: the code map names every crate there is, and no file that is gone.
#![allow(clippy::unwrap_used, missing_docs)]
use std::path::Path;

fn root() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The names directly below a directory, folders with a slash at their end.
fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(directory)
        .unwrap()
        .map(Result::unwrap)
        .map(|entry| (entry.file_name().into_string().unwrap(), entry.path().is_dir()))
        .map(|(name, folder)| if folder { name + "/" } else { name })
        .collect();
    names.sort();
    names
}

/// The code map of ARCHITECTURE.md.
fn map() -> String {
    let page = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let map = page.split("## Code map").nth(1).expect("ARCHITECTURE.md has a section \"Code map\"");
    map.split("\n## ").next().unwrap().to_owned()
}

#[test]
fn the_code_map_names_every_crate() {
    let map = map();
    let missing: Vec<String> = names(&root().join("crates"))
        .into_iter()
        .map(|folder| folder.trim_end_matches('/').to_owned())
        // Several crates may share a paragraph: "crates/machine, workloads, trace, sim".
        .filter(|name| {
            !map.lines()
                .any(|line| line.starts_with("### ") && line.split([' ', ',', ':', '/']).any(|word| word == name))
        })
        .collect();
    assert!(missing.is_empty(), "the code map of ARCHITECTURE.md lacks a paragraph for: {missing:?}");
}

#[test]
fn the_code_map_names_nothing_that_is_gone() {
    let mut there: Vec<String> = Vec::new();
    let mut pending =
        vec![root().join("crates"), root().join("kmod"), root().join("qemu-plugin/src"), root().join("fuzz/src")];
    while let Some(directory) = pending.pop() {
        for name in names(&directory) {
            if name.ends_with('/') {
                pending.push(directory.join(&name));
            }
            there.push(name);
        }
    }
    // Between backticks, what ends like a file of code is the name of one.
    let map = map();
    let named =
        map.split('`').skip(1).step_by(2).filter(|name| [".rs", ".c", ".html"].iter().any(|end| name.ends_with(end)));
    let mut named_at_all = 0;
    for name in named {
        named_at_all += 1;
        let file = name.rsplit('/').next().unwrap().to_owned();
        assert!(there.contains(&file), "the code map of ARCHITECTURE.md names {name}, which is gone");
    }
    assert!(named_at_all > 10, "only {named_at_all} files were found in the code map");
}

#[test]
fn a_walk_through_the_code_opens_at_most_seven_files_that_exist() {
    let page = std::fs::read_to_string(root().join("CONTRIBUTING.md")).unwrap();
    let section = page.split("## Six walks through the code\n").nth(1).expect("CONTRIBUTING.md has its walks");
    let section = section.split("\n## ").next().unwrap();
    let walks: Vec<&str> = section.split("\n. **").flat_map(|text| text.split(". **")).skip(1).collect();
    assert_eq!(walks.len(), 6, "a walk begins with its number and a bold title");
    for walk in walks {
        let title = walk.split("**").next().unwrap();
        let said: usize = walk
            .split_once('(')
            .and_then(|(_, rest)| rest.split_whitespace().next()?.parse().ok())
            .unwrap_or_else(|| panic!("{title}: says how many files it opens, as in \"(4 files)\""));
        // The title may name a policy's or a machine's own file, which is yet to be written.
        let named: std::collections::BTreeSet<&str> = walk
            .split('`')
            .skip(1)
            .step_by(2)
            .filter(|name| name.contains('/') && name.contains('.') && !name.starts_with("docs/"))
            .collect();
        for file in &named {
            assert!(root().join(file).is_file(), "{title}: {file} is gone");
        }
        assert!(named.len() <= said && said <= 7, "{title}: says {said} files and names {}", named.len());
    }
}

#[test]
fn the_front_page_shows_what_it_is_before_it_asks_for_a_build() {
    let page = std::fs::read_to_string(root().join("README.md")).unwrap();
    let lines: Vec<&str> = page.lines().collect();
    let picture = lines.iter().position(|line| line.starts_with("![")).expect("README.md has a picture");
    let install = lines.iter().position(|line| *line == "## Install").expect("README.md has a section \"## Install\"");
    assert!(picture < 40, "the picture stands in line {}", picture + 1);
    let figures = lines.iter().position(|line| line.contains("](benchmarks/runs/")).expect("a figure with its raw run");
    assert!(figures < install, "figures with their raw runs stand before the installation");
}
