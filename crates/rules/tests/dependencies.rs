//! Who may depend on whom, and under which licences.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

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
    ("common", &["core", "files", "policies"]),
    ("study", &["core", "common", "files", "policies", "machine", "workloads", "trace", "sim", "sizing", "reproduce"]),
    ("lab", &["core", "files"]),
    ("report", &["core", "common", "files", "linux"]),
    ("run", &["core", "common", "files", "policies", "tuning", "linux", "report"]),
    ("grammar", &["core", "common", "files", "run"]),
    ("daemon", &["core", "common", "files", "policies", "tuning", "linux", "bpf", "run"]),
    ("rules", &[]),
    ("fuzz", &["core", "files", "trace", "machine", "sizing", "linux", "lab", "daemon"]),
    ("cli", &["core", "common", "policies", "linux", "report", "run", "grammar", "daemon"]),
    (
        "research",
        &[
            "core",
            "common",
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
            "lab",
            "report",
            "run",
            "grammar",
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

/// The modules of a crate, from the lowest to the highest: each may use those before it.
const MODULES: [(&str, &[&str]); 3] = [
    ("run", &["spec", "heat", "options", "program", "programs", "args", "session", "named", "tune", "entry"]),
    ("cli", &["render", "commands"]),
    ("research", &["options", "recorder", "profile", "report", "render", "commands"]),
];

#[test]
fn modules_use_only_those_below_them() {
    for (name, modules) in MODULES {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name).join("src");
        for path in sources(&source) {
            let module = path.strip_prefix(&source).unwrap().with_extension("");
            let module = module.iter().next().unwrap().to_str().unwrap();
            if ["main", "lib"].contains(&module) {
                continue;
            }
            let place = modules.iter().position(|name| *name == module);
            let place = place.unwrap_or_else(|| panic!("{module} of {name} has no place in MODULES"));
            let text = std::fs::read_to_string(&path).unwrap();
            // What stands behind `crate::` is one name, or several in braces.
            let rest = text.split("crate::").skip(1);
            for used in rest.map(|rest| rest.split(['}', ';', '(']).next().unwrap_or_default()) {
                let names = if used.starts_with('{') { usize::MAX } else { 1 };
                let mut words = used.split(|letter: char| !letter.is_ascii_lowercase()).filter(|word| !word.is_empty());
                let above = words.by_ref().take(names).find(|word| modules[place + 1..].contains(word));
                assert!(above.is_none(), "{}: uses {above:?}, which is above {module}", path.display());
            }
        }
    }
}

/// What the command may know of the service: how to ask it, and its configuration, which `terrace config` checks without it.
const OF_THE_SERVICE: [&str; 4] = ["client", "config", "protocol", "view"];

#[test]
fn the_command_knows_only_the_protocol_of_the_service() {
    for path in sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../cli/src")) {
        let text = std::fs::read_to_string(&path).unwrap();
        for rest in text.split("terrace_daemon::").skip(1) {
            let module = rest.split(|letter: char| !letter.is_ascii_lowercase()).next().unwrap();
            assert!(OF_THE_SERVICE.contains(&module), "{}: uses terrace_daemon::{module}", path.display());
        }
    }
}

/// The files below a folder.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let (mut waiting, mut found) = (vec![folder.to_owned()], Vec::new());
    while let Some(path) = waiting.pop() {
        if path.is_dir() {
            waiting.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

/// All that a package links, directly or not. With `tests`, also what its own tests use.
fn linked_by(package: &str, tests: bool) -> BTreeSet<String> {
    let metadata = metadata();
    let nodes = &metadata.resolve.as_ref().expect("cargo resolves the workspace").nodes;
    let found = |id: &cargo_metadata::PackageId| {
        metadata.packages.iter().find(|package| package.id == *id).expect("every node has a package")
    };
    let (mut linked, mut waiting) = (BTreeSet::new(), Vec::new());
    waiting.extend(metadata.workspace_packages().iter().filter(|one| one.name.as_str() == package).map(|one| &one.id));
    let own = waiting.clone();
    while let Some(id) = waiting.pop() {
        let node = nodes.iter().find(|node| node.id == *id).expect("every package has a node");
        for dependency in &node.deps {
            let links = |kind: DependencyKind| {
                kind == DependencyKind::Normal || (tests && kind == DependencyKind::Development && own.contains(&id))
            };
            let linked_here = dependency.dep_kinds.iter().any(|info| links(info.kind));
            if linked_here && linked.insert(found(&dependency.pkg).name.to_string()) {
                waiting.push(&dependency.pkg);
            }
        }
    }
    linked
}

/// The service and the operator's command run as root on every machine: what only experiments need is not in them, nor in anything they link.
#[test]
fn operators_programs_link_no_simulator_and_no_database() {
    const OF_RESEARCH: [&str; 12] = [
        "terrace-sim",
        "terrace-workloads",
        "terrace-trace",
        "terrace-machine",
        "terrace-sizing",
        "terrace-study",
        "terrace-reproduce",
        "terrace-lab",
        "terrace-research",
        "parquet",
        "kiddo",
        "rayon",
    ];
    for (package, tests) in [("terrace-daemon", false), ("terrace-cli", true)] {
        let linked = linked_by(package, tests);
        assert!(linked.contains("terrace-linux") && linked.contains("terrace-tuning"), "{package}: {linked:?}");
        for banned in OF_RESEARCH {
            assert!(
                !linked.contains(banned),
                "{package} links {banned}: `cargo tree -p {package} -i {banned}` says by whom"
            );
        }
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
