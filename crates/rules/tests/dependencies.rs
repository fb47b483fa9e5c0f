//! Who may depend on whom, and under which licences.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand};

fn metadata() -> Metadata {
    MetadataCommand::new().manifest_path(concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.toml")).exec().unwrap()
}

/// The whole table: what a crate of ours may use of ours. A crate that is not in it fails the test, so that it gets a place.
const MAY_USE: &[(&str, &[&str])] = &[
    ("core", &[]),
    ("files", &[]),
    ("fixtures", &[]),
    ("policies", &["core"]),
    ("machine", &["core"]),
    ("trace", &["core"]),
    ("workloads", &["core"]),
    ("bpf", &[]),
    ("tuning", &["core"]),
    ("linux", &["core", "files", "bpf", "tuning"]),
    ("sim", &["core", "policies", "machine", "workloads", "trace"]),
    ("sizing", &["core", "machine", "workloads", "trace", "sim", "tuning"]),
    ("reproduce", &["core", "files", "policies", "tuning", "machine", "workloads", "sim", "sizing"]),
    ("study", &["core", "files", "policies", "machine", "workloads", "trace", "sim", "sizing", "reproduce"]),
    ("lab", &["core", "files"]),
    ("daemon", &["core", "files", "policies", "tuning", "linux", "bpf"]),
    ("rules", &[]),
    ("fuzz", &["core", "files", "trace", "machine", "sizing", "tuning", "linux", "lab", "daemon"]),
    (
        "cli",
        &[
            "core",
            "files",
            "policies",
            "tuning",
            "machine",
            "workloads",
            "trace",
            "sim",
            "sizing",
            "reproduce",
            "study",
            "linux",
            "bpf",
            "lab",
            "daemon",
        ],
    ),
];

#[test]
fn crates_depend_only_downwards() {
    let metadata = metadata();
    let table: BTreeMap<&str, &[&str]> = MAY_USE.iter().copied().collect();
    for package in metadata.workspace_packages() {
        let name = package.name.strip_prefix("terrace-").expect("crate names are terrace- plus the folder's name");
        let folder = package.manifest_path.parent().unwrap().file_name().unwrap();
        assert_eq!(name, folder, "a crate is named after its folder");
        let allowed =
            table.get(name).unwrap_or_else(|| panic!("crate {name} has no row in MAY_USE: where does it belong?"));
        for dependency in
            package.dependencies.iter().filter(|dependency| dependency.kind != DependencyKind::Development)
        {
            if let Some(used) = dependency.name.strip_prefix("terrace-") {
                assert!(allowed.contains(&used), "{name} must not depend on {used}: see MAY_USE");
            }
        }
    }
}

/// The modules of the command, from the lowest to the highest: each may use those before it.
const MODULES_OF_THE_COMMAND: [&str; 9] =
    ["options", "terminal", "program", "recorder", "args", "report", "render", "session", "commands"];

#[test]
fn modules_of_the_command_use_only_those_below_them() {
    let source = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../cli/src"));
    let mut waiting = vec![source.to_owned()];
    while let Some(path) = waiting.pop() {
        if path.is_dir() {
            waiting.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            continue;
        }
        let module = path.strip_prefix(source).unwrap().with_extension("");
        let module = module.iter().next().unwrap().to_str().unwrap();
        if module == "main" {
            continue;
        }
        let place = MODULES_OF_THE_COMMAND.iter().position(|name| *name == module);
        let place = place.unwrap_or_else(|| panic!("{module} has no place in MODULES_OF_THE_COMMAND"));
        let text = std::fs::read_to_string(&path).unwrap();
        // What stands behind `crate::` is one name, or several in braces.
        for used in text.split("crate::").skip(1).map(|rest| rest.split(['}', ';', '(']).next().unwrap_or_default()) {
            let names = if used.starts_with('{') { usize::MAX } else { 1 };
            let mut words = used.split(|letter: char| !letter.is_ascii_lowercase()).filter(|word| !word.is_empty());
            let above = words.by_ref().take(names).find(|word| MODULES_OF_THE_COMMAND[place + 1..].contains(word));
            assert!(above.is_none(), "{}: uses {above:?}, which is above {module}", path.display());
        }
    }
}

/// The service runs as root on every machine: what only experiments need is not in it, nor in anything it links.
#[test]
fn the_service_links_no_simulator_and_no_database() {
    let metadata = metadata();
    let nodes = &metadata.resolve.as_ref().expect("cargo resolves the workspace").nodes;
    let name = |id: &cargo_metadata::PackageId| {
        metadata.packages.iter().find(|package| package.id == *id).unwrap().name.to_string()
    };
    let mut linked = std::collections::BTreeSet::new();
    let mut waiting: Vec<_> = metadata
        .workspace_packages()
        .into_iter()
        .filter(|package| package.name.as_str() == "terrace-daemon")
        .map(|package| package.id.clone())
        .collect();
    while let Some(id) = waiting.pop() {
        let node = nodes.iter().find(|node| node.id == id).expect("every package has a node");
        for dependency in &node.deps {
            let normal = dependency.dep_kinds.iter().any(|kind| kind.kind == DependencyKind::Normal);
            if normal && linked.insert(name(&dependency.pkg)) {
                waiting.push(dependency.pkg.clone());
            }
        }
    }
    assert!(linked.contains("terrace-linux") && linked.contains("terrace-tuning"), "{linked:?}");
    for banned in [
        "terrace-sim",
        "terrace-workloads",
        "terrace-trace",
        "terrace-machine",
        "terrace-sizing",
        "parquet",
        "kiddo",
        "rayon",
    ] {
        assert!(
            !linked.contains(banned),
            "terraced links {banned}: `cargo tree -p terrace-daemon -e normal -i {banned}` says by whom"
        );
    }
}

#[test]
fn pure_crates_use_no_crate_that_does_input_or_output() {
    let metadata = metadata();
    let banned = ["libc", "rustix", "tokio", "nix", "procfs", "libbpf-rs", "rand", "getrandom", "chrono", "mio"];
    for package in metadata.workspace_packages() {
        let name = package.name.trim_start_matches("terrace-");
        if !["core", "policies", "machine", "workloads", "trace", "sim", "sizing", "tuning"].contains(&name) {
            continue;
        }
        assert!(
            package.manifest_path.with_file_name("clippy.toml").exists(),
            "{name} is pure and needs its clippy.toml"
        );
        for dependency in package.dependencies.iter().filter(|dependency| dependency.kind == DependencyKind::Normal) {
            assert!(!banned.contains(&dependency.name.as_str()), "{name} is pure and must not use {}", dependency.name);
        }
    }
}

#[test]
fn every_dependency_has_a_licence_that_lets_us_ship() {
    let fine = [
        "Apache-2.0",
        "MIT",
        "BSD-2-Clause",
        "BSD-3-Clause",
        "ISC",
        "Zlib",
        "Unicode-3.0",
        "Unlicense",
        "0BSD",
        "CC0-1.0",
        "MIT-0",
        "BSL-1.0",
        "LGPL-2.1-only",
        "Apache-2.0 WITH LLVM-exception",
    ];
    let mut bad = Vec::new();
    for package in &metadata().packages {
        let licence = package.license.clone().unwrap_or_else(|| "none stated".to_owned());
        // One of several alternatives is enough; of a conjunction every part must do.
        let acceptable = licence
            .replace('/', " OR ")
            .replace(['(', ')'], "")
            .split(" OR ")
            .any(|alternative| alternative.split(" AND ").all(|part| fine.contains(&part.trim())));
        // The eBPF programs themselves are GPL-2.0, as the kernel demands of what calls its helpers; they are data to the rest.
        if !acceptable && package.name.as_str() != "terrace-bpf" {
            bad.push(format!("{} {}: {licence}", package.name, package.version));
        }
    }
    assert!(bad.is_empty(), "not on the list of licences: {bad:#?}");
}
