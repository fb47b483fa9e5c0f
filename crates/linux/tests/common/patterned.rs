//! A child process with memory of a known pattern, which checks that pattern itself.
//!
//! In: arguments `CHILD_ARGUMENT MODE PAGES`, then lines on stdin. Out: the addresses of its pages, and for each "check"
//! whether every word is as it was written. Must not: touch a page that it is not asked to.
#![allow(dead_code, reason = "the live tests and the example each use a part")]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use memmap2::{Advice, MmapMut};
use terrace_core::units::Vpn;

/// The first argument that makes the program this child.
pub(crate) const CHILD_ARGUMENT: &str = "__child";
const WORDS: usize = 512;

/// How the child's memory is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// One mapping of 4 KiB pages.
    Plain,
    /// One mapping of 2 MiB pages.
    Huge,
    /// One mapping, locked.
    Locked,
    /// Mappings of 4 pages, each a range of its own; every 100th locked.
    Pieces,
}

impl Mode {
    const ALL: [(&'static str, Mode); 4] =
        [("plain", Mode::Plain), ("huge", Mode::Huge), ("locked", Mode::Locked), ("pieces", Mode::Pieces)];

    fn name(self) -> &'static str {
        Mode::ALL.iter().find(|(_, mode)| *mode == self).expect("every mode is in the table").0
    }
}

/// The child as its parent holds it. Dropping it ends it.
pub(crate) struct Patterned {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    /// Its pages, by piece.
    pub(crate) pieces: Vec<Piece>,
}

/// A stretch of the child's pages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    /// Its first page.
    pub(crate) first: Vpn,
    /// Its pages.
    pub(crate) pages: u64,
    /// Whether it is locked.
    pub(crate) locked: bool,
}

impl Patterned {
    /// Starts a child of this very program, and waits until its memory is written.
    pub(crate) fn start(mode: Mode, pages: usize) -> Patterned {
        let mut child = Command::new("/proc/self/exe")
            .args([CHILD_ARGUMENT, mode.name(), &pages.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the child starts");
        let stdin = child.stdin.take();
        let mut stdout = BufReader::new(child.stdout.take().expect("stdout is a pipe"));
        let mut pieces = Vec::new();
        loop {
            let mut line = String::new();
            let bytes = stdout.read_line(&mut line).expect("the child speaks");
            assert!(bytes > 0, "the child ended before it was ready");
            let fields: Vec<&str> = line.split_ascii_whitespace().collect();
            match fields[..] {
                ["piece", address, pages, locked] => pieces.push(Piece {
                    first: Vpn::of_address(address.parse().expect("an address")),
                    pages: pages.parse().expect("a number"),
                    locked: locked == "locked",
                }),
                ["ready"] => break,
                _ => panic!("the child said {line:?}"),
            }
        }
        Patterned { child, stdin, stdout, pieces }
    }

    /// Its pid.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Makes the child compare every word with what it wrote. Returns its answer: "intact", or what differs.
    pub(crate) fn check(&mut self) -> String {
        let stdin = self.stdin.as_mut().expect("the child still listens");
        writeln!(stdin, "check").expect("the child listens");
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("the child answers");
        line.trim_end().to_owned()
    }

    /// Ends the child and waits for it.
    pub(crate) fn end(&mut self) {
        self.stdin = None;
        self.child.wait().expect("the child ends");
    }
}

impl Drop for Patterned {
    fn drop(&mut self) {
        self.stdin = None;
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The child's side. `arguments` are those after [`CHILD_ARGUMENT`].
pub(crate) fn run_child(arguments: &[String]) {
    let mode = Mode::ALL.iter().find(|(name, _)| *name == arguments[0]).expect("a known mode").1;
    let pages: usize = arguments[1].parse().expect("a number of pages");
    let mut seen = 0;
    let mut maps: Vec<(MmapMut, usize, usize, bool)> = Vec::new();
    let mut walls = Vec::new();
    match mode {
        Mode::Pieces => {
            while seen < pages {
                let map = MmapMut::map_anon(4 * 4096).expect("memory");
                let locked = maps.len() % 100 == 50;
                maps.push((map, 0, 4, locked));
                // Read-only neighbours keep the kernel from joining the pieces to one range.
                walls.push(MmapMut::map_anon(4096).expect("memory").make_read_only().expect("mprotect"));
                seen += 4;
            }
        }
        Mode::Huge => {
            let map = MmapMut::map_anon((pages + 512) * 4096).expect("memory");
            map.advise(Advice::HugePage).expect("MADV_HUGEPAGE");
            let address = map.as_ptr() as usize;
            let skip = (address.next_multiple_of(2 << 20) - address) / 4096;
            maps.push((map, skip, pages, false));
        }
        Mode::Plain | Mode::Locked => {
            let map = MmapMut::map_anon(pages * 4096).expect("memory");
            map.advise(Advice::NoHugePage).expect("MADV_NOHUGEPAGE");
            maps.push((map, 0, pages, mode == Mode::Locked));
        }
    }
    let mut out = std::io::stdout();
    let mut number = 0;
    for (map, skip, pages, locked) in &mut maps {
        for page in 0..*pages {
            let at = (*skip + page) * 4096;
            write_page(&mut map[at..at + 4096], number + page as u64);
        }
        number += *pages as u64;
        if *locked {
            map.lock().expect("mlock");
        }
        let address = map.as_ptr() as usize + *skip * 4096;
        writeln!(out, "piece {address} {pages} {}", if *locked { "locked" } else { "free" }).expect("the parent reads");
    }
    writeln!(out, "ready").and_then(|()| out.flush()).expect("the parent reads");
    for line in std::io::stdin().lines() {
        assert_eq!(line.expect("the parent speaks"), "check");
        let mut number = 0;
        let mut wrong = Vec::new();
        for (map, skip, pages, _) in &maps {
            for page in 0..*pages {
                let at = (*skip + page) * 4096;
                if !page_is_intact(&map[at..at + 4096], number) {
                    wrong.push(number);
                }
                number += 1;
            }
        }
        let answer =
            if wrong.is_empty() { "intact".to_owned() } else { format!("{} pages differ: {wrong:?}", wrong.len()) };
        writeln!(out, "{answer}").and_then(|()| out.flush()).expect("the parent reads");
    }
    drop(walls);
}

/// The words of a page: a quarter random, the rest the page's number, which lz4 takes to about 3.5:1.
fn words(number: u64) -> impl Iterator<Item = u64> {
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..WORDS).map(move |word| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        if word % 4 == 0 { state } else { number }
    })
}

fn write_page(page: &mut [u8], number: u64) {
    for (bytes, word) in page.as_chunks_mut::<8>().0.iter_mut().zip(words(number)) {
        *bytes = word.to_ne_bytes();
    }
}

fn page_is_intact(page: &[u8], number: u64) -> bool {
    page.as_chunks::<8>().0.iter().zip(words(number)).all(|(bytes, word)| *bytes == word.to_ne_bytes())
}
