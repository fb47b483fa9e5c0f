//! `terrace lab record`: what two programs did in a guest is in the trace, access by access, with the pages that the guest's kernel
//! gave them; it replays without being told how large they are.
//!
//! It boots a guest twice, so it runs when TERRACE_LAB=1; it needs QEMU, its plugin and a Debian archive.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use terrace_trace::{Access, Change, Reader};

mod common;
use common::no_guest;

const KERNEL: &str = "6.12";
/// Where the program has its memory: four huge pages, of which the third is split and comes together again.
const FIRST: u64 = 0x4000_0000;
const END: u64 = 0x4080_0000;
const THIRD: u64 = 0x4040_0000;
/// Writes of a pass: one to each 4 KiB.
const PASS: u64 = (END - FIRST) / 4096;

/// A program in machine code, so that every access is known: it maps 8 MiB, writes a byte to each 4 KiB of it, gives one page back and takes
/// a new one there (which splits a huge page), does the same pass again, has the kernel collapse the split one, and makes a third
/// pass. Its exit code is the error of that collapse, 0 if there is none.
#[rustfmt::skip]
const CODE: [u8; 0x97] = [
    0xbf, 0x00, 0x00, 0x00, 0x40,                   // mov edi, FIRST
    0xbe, 0x00, 0x00, 0x80, 0x00,                   // mov esi, 8 MiB
    0xe8, 0x52, 0x00, 0x00, 0x00,                   // call map
    0xe8, 0x6a, 0x00, 0x00, 0x00,                   // call pass
    0xbf, 0x00, 0x00, 0x40, 0x40,                   // mov edi, THIRD
    0xbe, 0x00, 0x10, 0x00, 0x00,                   // mov esi, 4096
    0xb8, 0x0b, 0x00, 0x00, 0x00, 0x0f, 0x05,       // munmap
    0xbf, 0x00, 0x00, 0x40, 0x40,                   // mov edi, THIRD
    0xbe, 0x00, 0x10, 0x00, 0x00,                   // mov esi, 4096
    0xe8, 0x2d, 0x00, 0x00, 0x00,                   // call map
    0xe8, 0x45, 0x00, 0x00, 0x00,                   // call pass
    0xbf, 0x00, 0x00, 0x40, 0x40,                   // mov edi, THIRD
    0xbe, 0x00, 0x00, 0x20, 0x00,                   // mov esi, 2 MiB
    0xba, 0x19, 0x00, 0x00, 0x00,                   // mov edx, MADV_COLLAPSE
    0xb8, 0x1c, 0x00, 0x00, 0x00, 0x0f, 0x05,       // madvise
    0x89, 0xc3, 0xf7, 0xdb,                         // mov ebx, eax; neg ebx
    0xe8, 0x26, 0x00, 0x00, 0x00,                   // call pass
    0x89, 0xdf,                                     // mov edi, ebx
    0xb8, 0x3c, 0x00, 0x00, 0x00, 0x0f, 0x05,       // exit
    // map: readable, writable, private, anonymous, at this address
    0xba, 0x03, 0x00, 0x00, 0x00,
    0x41, 0xba, 0x32, 0x00, 0x00, 0x00,
    0x49, 0xc7, 0xc0, 0xff, 0xff, 0xff, 0xff,
    0x45, 0x31, 0xc9,
    0xb8, 0x09, 0x00, 0x00, 0x00, 0x0f, 0x05,
    0xc3,
    // pass
    0xb9, 0x00, 0x00, 0x00, 0x40,                   // mov ecx, FIRST
    0xc6, 0x01, 0x01,                               // mov byte [rcx], 1
    0x48, 0x81, 0xc1, 0x00, 0x10, 0x00, 0x00,       // add rcx, 4096
    0x48, 0x81, 0xf9, 0x00, 0x00, 0x80, 0x40,       // cmp rcx, END
    0x75, 0xed,                                     // jne
    0xc3,
];

/// The code as a static ELF program.
fn program(path: &Path) {
    let base = 0x40_0000_u64;
    let head = 64 + 56;
    let mut bytes = b"\x7fELF\x02\x01\x01".to_vec();
    bytes.resize(16, 0);
    bytes.extend([2_u16, 62].map(u16::to_le_bytes).concat());
    bytes.extend(1_u32.to_le_bytes());
    bytes.extend([base + head, 64, 0].map(u64::to_le_bytes).concat());
    bytes.extend(0_u32.to_le_bytes());
    bytes.extend([64_u16, 56, 1, 64, 0, 0].map(u16::to_le_bytes).concat());
    bytes.extend([1_u32, 5].map(u32::to_le_bytes).concat());
    let size = head + CODE.len() as u64;
    bytes.extend([0, base, base, size, size, 4096].map(u64::to_le_bytes).concat());
    bytes.extend(CODE);
    std::fs::write(path, bytes).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

fn object(output: &Output) -> serde_json::Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// What the trace has of a process's 8 MiB.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Seen {
    /// Writes in memory mapped by 2 MiB.
    huge: u64,
    /// Writes in memory mapped by 4 KiB.
    small: u64,
    /// What became of the third huge page, each time with the writes before.
    third: Vec<(u64, bool)>,
}

fn seen(trace: &[u8]) -> Vec<Seen> {
    let mut reader = Reader::new(trace).unwrap();
    let mut batch = vec![Access::default(); 512];
    let mut seen = vec![Seen::default(); 2];
    let mut huge = std::collections::BTreeMap::new();
    loop {
        let count = reader.fill(&mut batch).unwrap();
        for access in &batch[..count] {
            let address = reader.map().address(access.page()).unwrap();
            if !(FIRST..END).contains(&address) {
                continue;
            }
            assert!(access.is_write());
            let of = &mut seen[usize::from(reader.map().process_of(access.page()).0)];
            match huge.get(&(access.page().0 >> 9)) {
                Some(true) => of.huge += 1,
                Some(false) => of.small += 1,
                None => panic!("a page is accessed before its size is told"),
            }
        }
        if count > 0 {
            continue;
        }
        let Some(event) = reader.take_event() else { break };
        let (pages, is_huge) = match event.change {
            Change::Huge(pages) => (pages, true),
            Change::Split(pages) => (pages, false),
            Change::Gone(_) => continue,
            other => panic!("{other:?}"),
        };
        huge.insert(pages.first.0 >> 9, is_huge);
        if reader.map().address(pages.first) == Some(THIRD) {
            let of = &mut seen[usize::from(reader.map().process_of(pages.first).0)];
            of.third.push((of.huge + of.small, is_huge));
        }
    }
    seen
}

#[test]
fn two_programs_in_a_guest_are_recorded_with_the_page_sizes_that_its_kernel_chose() {
    let name = "two_programs_in_a_guest_are_recorded_with_the_page_sizes_that_its_kernel_chose";
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    let plugin = root.join("qemu-plugin/target/release/libterrace_qemu_plugin.so");
    let inside = std::env::var_os("TERRACE_BINARY").map_or_else(|| root.join("target/release/terrace"), Into::into);
    if let Some(reason) = no_guest(&plugin, &inside, KERNEL) {
        println!("SKIPPED {name}: {}", reason.lines().next().unwrap_or_default());
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let passes = folder.path().join("passes");
    program(&passes);
    let passes = passes.to_str().unwrap();
    let terrace = |words: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_terrace-research"))
            .args(words)
            .env("TERRACE_QEMU_PLUGIN", &plugin)
            .env("TERRACE_BINARY", &inside)
            .output()
            .unwrap()
    };
    let record = |file: &str, more: &[&str]| {
        let trace = folder.path().join(file).to_str().unwrap().to_owned();
        let guest =
            ["lab", "record", "--kernel", KERNEL, "--fast", "256MiB", "--slow", "128MiB", "--huge-pages", "always"];
        let words = [&guest[..], &["--deterministic", "--json", "--output", &trace], more, &["--", passes]].concat();
        (object(&terrace(&words)), trace)
    };
    let (report, trace) = record("first.trace", &["--beside", passes]);
    println!("{report:#}");
    let exits: Vec<_> = report["guest"]["programs"].as_array().unwrap().iter().map(|end| &end["exit"]).collect();
    assert_eq!(exits, [0, 0], "the kernel collapsed the page in both: {report:#}");
    assert_eq!(report["processes"].as_array().unwrap().len(), 2, "{report:#}");
    for (key, expected) in [("collapsed", 2), ("split", 2), ("pages_2m", 8)] {
        assert_eq!(report["page_sizes"][key], expected, "{key}: {report:#}");
    }
    let bytes = std::fs::read(&trace).unwrap();
    // Three passes, the second with the third huge page in pieces.
    let third = vec![(1024, true), (PASS + 1024, false), (2 * PASS + 1024, true)];
    let expected = Seen { huge: 3 * PASS - 512, small: 512, third };
    assert_eq!(seen(&bytes), [expected.clone(), expected]);

    let same = record("again.trace", &["--beside", passes]).1;
    assert!(bytes == std::fs::read(same).unwrap(), "by instructions, a guest does the same each time");

    // Nothing says how large pages are but the trace.
    let policy = ["--policy", "hotness-walk", "--fast", "50%", "--counters", "every", "--json"];
    let replayed = object(&terrace(&[&["sim", "run", "--trace", &trace], &policy[..]].concat()));
    assert_eq!(replayed["accesses"], report["accesses"]);
    assert_eq!(replayed["processes"].as_array().unwrap().len(), 2, "{replayed:#}");
    let updates = replayed["mmu"]["cores"].as_array().unwrap().iter().map(|core| core["updates"].as_u64().unwrap());
    // Every access to a huge page counts; the policy may have split some itself.
    let counted = updates.sum::<u64>();
    assert!((4 * PASS..=report["page_sizes"]["accesses_2m"].as_u64().unwrap()).contains(&counted), "{counted}");
    let hotness = object(&terrace(&["sim", "hotness", "--trace", &trace, "--window", "100us", "--json"]));
    assert_eq!(hotness["processes"].as_array().unwrap().len(), 2, "{hotness:#}");
}

#[test]
fn what_cannot_be_recorded_is_told_before_a_guest_is_booted() {
    let terrace = |words: &[&str]| {
        let output =
            Command::new(env!("CARGO_BIN_EXE_terrace-research")).args(["lab", "record"]).args(words).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for (words, code, says) in [
        (&["--", "no-such-program"][..], 127, "no-such-program"),
        (&["--beside", "no-such-program x", "--", "true"], 127, "no-such-program"),
        (&["--beside", " ", "--", "true"], 2, "--beside"),
        (&["--file", "/nowhere", "--", "true"], 2, "/nowhere"),
        (&["--cache", "much", "--", "true"], 2, "--cache"),
        (&["--huge-pages", "sometimes", "--", "true"], 2, "always"),
        (&[], 2, "CMD"),
    ] {
        let (found, text) = terrace(words);
        assert_eq!(found, Some(code), "{words:?}: {text}");
        assert!(text.contains(says), "{words:?}: {text}");
    }
}
