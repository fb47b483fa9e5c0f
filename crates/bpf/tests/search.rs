//! The eBPF program's walk and its search for the map of physical memory, compiled for the host, over models of memory in which words are
//! planted. Needs a C compiler, which everything that links has.
// The output of the tests lists skipped tests.
#![allow(clippy::print_stdout)]

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use proptest::prelude::*;

const GIB: u64 = 1 << 30;
const BLOCK: u64 = 2 << 20;
const PAGE: u64 = 4096;
const MASK: u64 = 0x000f_ffff_ffff_f000;
const PRESENT: u64 = 0x67;
const LEAF: u64 = 0x80;
const HEAD_UNKNOWN: u64 = u64::MAX;
/// Of the C source.
const MARKS: usize = 4;
const MARK_WORDS: usize = 4;

/// The marks' words begin here in the loader's memory, one mark in each 2 MiB, across the border of a GiB.
const ADDRESS: u64 = 0x7f12_7fc0_0800;
/// Where a four-level and a five-level kernel without KASLR map physical memory.
const FOUR_LEVELS: u64 = 0xffff_8880_0000_0000;
const FIVE_LEVELS: u64 = 0xff11_0000_0000_0000;

/// Page sizes of the marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Size {
    Small,
    Huge,
    Giant,
}

/// A model of memory: the loader's page tables and marks in it, and what else was written.
struct Model {
    gib: u64,
    start: u64,
    text: String,
    /// Physical addresses: the top table, and the next free page for a table.
    root: u64,
    next: u64,
    tables: Vec<(u64, u64)>,
    marks: Vec<u64>,
    secrets: [[u64; MARK_WORDS]; MARKS],
}

/// Different on every call, the same in every run.
fn scrambled(number: u64) -> u64 {
    let mut state = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ (state >> 31)
}

impl Model {
    /// `gib` GiB of memory mapped at `start`, every word of it `fill`, and nothing in the tables yet. They begin at the physical address
    /// `tables_at`, the top one first.
    fn new(gib: u64, start: u64, fill: u64, tables_at: u64, seed: u64) -> Model {
        let secrets = std::array::from_fn(|mark| {
            std::array::from_fn(|word| scrambled(seed ^ ((mark * MARK_WORDS + word) as u64) << 32))
        });
        let mut model = Model {
            gib,
            start,
            text: String::new(),
            root: tables_at,
            next: tables_at,
            tables: Vec::new(),
            marks: Vec::new(),
            secrets,
        };
        writeln!(model.text, "memory {:x} {start:x} {fill:x}", gib * GIB).expect("a string");
        assert_eq!(model.fresh_table(), tables_at);
        model
    }

    fn word(&mut self, physical: u64, value: u64) {
        // What lies beyond memory cannot be written.
        if physical < self.gib * GIB {
            writeln!(self.text, "word {physical:x} {value:x}").expect("a string");
        }
    }

    fn fresh_table(&mut self) -> u64 {
        let table = self.next;
        self.next += PAGE;
        table
    }

    /// The table below an entry, made when it is not there yet.
    fn below(&mut self, table: u64, index: u64) -> u64 {
        let at = table + (index & 511) * 8;
        if let Some((_, below)) = self.tables.iter().find(|(entry, _)| *entry == at) {
            return *below;
        }
        let below = self.fresh_table();
        self.tables.push((at, below));
        self.word(at, below | PRESENT);
        below
    }

    /// The physical address of the entry of 1 GiB, 2 MiB or 4 KiB that covers an address.
    fn entry(&mut self, address: u64, size: Size) -> u64 {
        let mut table = self.root;
        if self.start >> 48 != 0xffff {
            table = self.below(table, address >> 48);
        }
        let upper = self.below(table, address >> 39);
        if size == Size::Giant {
            return upper + (address >> 30 & 511) * 8;
        }
        let middle = self.below(upper, address >> 30);
        if size == Size::Huge {
            return middle + (address >> 21 & 511) * 8;
        }
        self.below(middle, address >> 21) + (address >> 12 & 511) * 8
    }

    /// Maps the page of an address.
    fn map(&mut self, address: u64, size: Size, frame: u64) {
        let at = self.entry(address, size);
        let leaf = if size == Size::Small { 0 } else { LEAF };
        self.word(at, frame | PRESENT | leaf);
    }

    /// The marks, in pages of these sizes from the physical address `frames` on, each in memory of its own.
    fn place_marks(&mut self, sizes: [Size; MARKS], frames: u64) {
        for (mark, size) in sizes.into_iter().enumerate() {
            let address = ADDRESS + mark as u64 * BLOCK;
            let bytes = match size {
                Size::Small => PAGE,
                Size::Huge => BLOCK,
                Size::Giant => GIB,
            };
            let frame = (frames + mark as u64 * 3 * BLOCK) / bytes * bytes;
            self.map(address, size, frame);
            let physical = frame + address % bytes;
            for (word, value) in self.secrets[mark].into_iter().enumerate() {
                self.word(physical + word as u64 * 8, value);
            }
            self.marks.push(physical);
        }
    }

    fn ask_search(&mut self, mask: u64) {
        write!(self.text, "search {:x} {mask:x} {ADDRESS:x}", self.start + self.root).expect("a string");
        for word in self.secrets.as_flattened() {
            write!(self.text, " {:x}", !word).expect("a string");
        }
        self.text.push('\n');
    }

    /// What the search finds: a start, how many were tried, and how many reads went above the end of the map.
    fn search(&mut self, mask: u64) -> Option<(u64, u64, u64)> {
        self.ask_search(mask);
        let answers = answers(&self.text)?;
        let line = answers.lines().last().expect("an answer");
        let fields: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| fields[at].parse().expect("a number");
        Some((u64::from_str_radix(fields[0], 16).expect("an address"), number(1), number(2)))
    }

    /// Which candidate, counted from the lowest start, is the right one.
    fn right(&self) -> u64 {
        self.gib - 1 - self.root / GIB
    }
}

/// The model program's answers; `None` where it cannot be compiled.
fn answers(text: &str) -> Option<String> {
    static PROGRAM: std::sync::OnceLock<Option<tempfile::TempDir>> = std::sync::OnceLock::new();
    let folder = PROGRAM.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/walk_model.c");
        let compiled = Command::new("cc")
            .args(["-O2", "-Wall", "-Wextra", "-Werror", "-o"])
            .arg(folder.path().join("walk_model"))
            .arg(&source)
            .output()
            .ok()?;
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        Some(folder)
    });
    let Some(folder) = folder else {
        println!("SKIPPED {}: needs a C compiler (cc)", std::thread::current().name().unwrap_or("search"));
        return None;
    };
    let mut child = Command::new(folder.path().join("walk_model"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the model starts");
    let mut input = child.stdin.take().expect("a pipe");
    let text = text.to_owned();
    let writer = std::thread::spawn(move || input.write_all(text.as_bytes()).expect("the model listens"));
    let output = child.wait_with_output().expect("the model answers");
    writer.join().expect("the writer ends");
    assert!(output.status.success(), "the model ended with {}", output.status);
    Some(String::from_utf8(output.stdout).expect("text"))
}

/// The cause of issue "0 % of the frames": memory full of a word that names a leaf.
#[test]
fn memory_full_of_one_word_misleads_no_search() {
    let fills = [0x81, 0x81 | 0x81 << 32, PRESENT, PRESENT | LEAF, (3 * GIB) | 0x81, (5 * BLOCK) | 0xe7, u64::MAX, 0];
    for fill in fills {
        for tables_at in [GIB / 2, 5 * GIB, 23 * GIB + BLOCK] {
            let mut model = Model::new(24, FOUR_LEVELS, fill, tables_at, fill ^ tables_at);
            model.place_marks([Size::Small, Size::Huge, Size::Small, Size::Small], 9 * GIB);
            let right = model.right() + 1;
            let Some(found) = model.search(MASK) else { return };
            assert_eq!(found, (FOUR_LEVELS, right, 0), "fill {fill:#x}, tables at {tables_at:#x}");
        }
    }
}

/// Where the words for a wrong start lie: in the GiB of the top table, which every start reaches by an address within memory.
fn fake_tables(model: &Model, candidate: u64) -> u64 {
    model.root / GIB * GIB + GIB / 2 + candidate * 64 * PAGE
}

/// For every wrong start, words that lead its walk to what looks like the marks: all but the last byte, the words that stand in the program's own
/// request, or three of the four marks themselves.
fn mislead(model: &mut Model) {
    let gib = model.gib as i64;
    let right = model.right() as i64;
    let entries: Vec<u64> = (0..MARKS as u64).map(|mark| model.entry(ADDRESS + mark * BLOCK, Size::Giant)).collect();
    for candidate in (0..gib).filter(|candidate| *candidate != right) {
        // This start lies `ahead` bytes above the right one, and its walk reads that far above the tables.
        let ahead = ((candidate - right) * GIB as i64) as u64;
        let tables = fake_tables(model, candidate as u64);
        for (mark, entry) in entries.iter().enumerate() {
            let gib_of = (ADDRESS + mark as u64 * BLOCK) >> 30 & 1;
            let middle = tables + gib_of * PAGE;
            let last = tables + (2 + mark as u64) * PAGE;
            let fake = tables + (8 + mark as u64) * PAGE;
            let address = ADDRESS + mark as u64 * BLOCK;
            // An entry that leads to a place through the wrong start is short by what that start is too high.
            let entry_to = |place: u64| (place.wrapping_sub(ahead) & MASK) | PRESENT;
            model.word(entry.wrapping_add(ahead), entry_to(middle));
            model.word(middle + (address >> 21 & 511) * 8, entry_to(last));
            let page = match candidate % 3 {
                2 if mark < MARKS - 1 => model.marks[mark] / PAGE * PAGE,
                _ => fake,
            };
            model.word(last + (address >> 12 & 511) * 8, entry_to(page));
            if page == fake {
                for word in 0..MARK_WORDS {
                    let secret = model.secrets[mark][word];
                    let value = match candidate % 3 {
                        0 if word == MARK_WORDS - 1 && mark == MARKS - 1 => secret ^ 1 << 63,
                        0 => secret,
                        _ => !secret,
                    };
                    model.word(fake + address % PAGE + word as u64 * 8, value);
                }
            }
        }
    }
}

#[test]
fn of_24_starts_23_lead_to_nearly_the_right_bytes_and_the_search_passes_them_over() {
    for (start, tables_at) in [(FOUR_LEVELS, GIB / 4), (FOUR_LEVELS, 11 * GIB), (FIVE_LEVELS, 7 * GIB)] {
        let mut model = Model::new(24, start, 0, tables_at, tables_at);
        model.place_marks([Size::Small; MARKS], tables_at / GIB * GIB + GIB / 8 * 7);
        mislead(&mut model);
        let right = model.right() + 1;
        let Some(found) = model.search(MASK) else { return };
        assert_eq!(found, (start, right, 0), "tables at {tables_at:#x}");
        // Without the right bytes nothing is found, whatever else is there.
        let last = model.marks[MARKS - 1] + 8;
        model.word(last, !model.secrets[MARKS - 1][1]);
        let found = model.search(MASK).expect("compiled before");
        assert_eq!((found.0, found.1), (0, 24), "a byte of one mark differs");
    }
}

#[test]
fn a_planted_mark_would_be_found_so_the_words_above_do_mislead() {
    // The same words, and the whole content with them: the wrong start is believed. It shows that the test above plants what a walk reads.
    let mut model = Model::new(24, FOUR_LEVELS, 0, 11 * GIB, 5);
    model.place_marks([Size::Small; MARKS], 11 * GIB + GIB / 8 * 7);
    mislead(&mut model);
    let (candidate, mark) = (3, MARKS as u64 - 1);
    let fake = fake_tables(&model, candidate) + (8 + mark) * PAGE;
    let last = fake + ADDRESS % PAGE + (MARK_WORDS as u64 - 1) * 8;
    model.word(last, model.secrets[MARKS - 1][MARK_WORDS - 1]);
    let Some(found) = model.search(MASK) else { return };
    assert_eq!(found.0, FOUR_LEVELS.wrapping_add((candidate * GIB).wrapping_sub(model.right() * GIB)));
}

#[test]
fn pages_of_every_size_are_walked() {
    use Size::{Giant, Huge, Small};
    for sizes in [[Small; 4], [Huge; 4], [Giant, Giant, Small, Huge], [Small, Huge, Giant, Giant]] {
        for start in [FOUR_LEVELS, FIVE_LEVELS, FOUR_LEVELS + 777 * GIB] {
            let mut model = Model::new(64, start, 0, 40 * GIB, 3);
            // Two marks lie in one GiB of addresses, and so in one page of that size; the others in the middle of its memory.
            model.place_marks(sizes, 12 * GIB + GIB / 2);
            let Some(found) = model.search(MASK) else { return };
            assert_eq!(found.0, start, "{sizes:?} at {start:#x}");
        }
    }
}

#[test]
fn a_mask_with_the_bit_of_encryption_in_it_finds_nothing_and_one_without_does() {
    let mut model = Model::new(24, FOUR_LEVELS, 0, 3 * GIB, 8);
    model.place_marks([Size::Small; MARKS], 5 * GIB);
    // Every entry has the bit, as under SME.
    let encrypted: Vec<String> = model
        .text
        .lines()
        .map(|line| match line.strip_prefix("word ").and_then(|rest| rest.split_once(' ')) {
            Some((at, value)) if u64::from_str_radix(value, 16).expect("hexadecimal") & 0xfff == PRESENT => {
                format!("word {at} {:x}", u64::from_str_radix(value, 16).expect("hexadecimal") | 1 << 47)
            }
            _ => line.to_owned(),
        })
        .collect();
    model.text = encrypted.join("\n") + "\n";
    let Some(found) = model.search(MASK) else { return };
    assert_eq!((found.0, found.2), (0, 0), "an address with the bit lies beyond memory and is not followed");
    assert_eq!(model.search(MASK & !(1 << 47)).expect("compiled before").0, FOUR_LEVELS);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn any_memory_leads_to_the_right_start(
        gib in 2u64..96,
        above in 0u64..4096,
        five in any::<bool>(),
        at in (0.0..1.0f64, 0.0..1.0f64),
        fill in prop_oneof![Just(0u64), Just(0x81), any::<u64>(), (0u64..96, 0u64..2).prop_map(|(number, leaf)| number << 30 | 1 | leaf << 7)],
        planted in proptest::collection::vec((0.0..1.0f64, any::<u64>()), 0..64),
        seed in any::<u64>(),
    ) {
        let start = if five { FIVE_LEVELS } else { FOUR_LEVELS } + above * GIB;
        let place = |share: f64, size: u64| ((share * ((gib * GIB - 64 * BLOCK) / size) as f64) as u64) * size;
        let (tables_at, frames) = (place(at.0, PAGE), place(at.1, BLOCK));
        prop_assume!(tables_at.abs_diff(frames) > 32 * BLOCK);
        let mut model = Model::new(gib, start, fill, tables_at, seed);
        for (share, value) in planted {
            model.word(place(share, 8), value);
        }
        model.place_marks([Size::Small, Size::Huge, Size::Small, Size::Huge], frames);
        if let Some(found) = model.search(MASK) {
            prop_assert_eq!((found.0, found.2), (start, 0));
        }
    }
}

/// A block that is mapped by a table whose first and last entries are known.
fn block(fill: u64) -> (Model, u64, u64) {
    let mut model = Model::new(8, FOUR_LEVELS, fill, 2 * GIB, 1);
    let address = 0x7f00_0020_0000;
    model.map(address, Size::Small, 0xaaaa_a000);
    model.map(address + 511 * PAGE, Size::Small, 0xbbbb_b000);
    let table = model.entry(address, Size::Small);
    (model, address, table)
}

fn copies(model: &Model, changes: &str, addresses: &[u64]) -> Option<Vec<u64>> {
    let mut text = model.text.clone() + changes;
    write!(text, "copy {:x} {MASK:x}", model.start + model.root).expect("a string");
    for address in addresses {
        write!(text, " {address:x}").expect("a string");
    }
    text.push('\n');
    let answers = answers(&text)?;
    let fields = answers.split_whitespace();
    Some(fields.map(|field| u64::from_str_radix(field, 16).expect("a number")).collect())
}

#[test]
fn a_block_is_copied_with_the_entry_that_maps_it() {
    let (mut model, address, table) = block(0);
    let huge = (6 * GIB + 4 * BLOCK) | PRESENT | LEAF;
    let at = model.entry(address + BLOCK, Size::Huge);
    model.word(at, huge);
    let Some(told) = copies(&model, "", &[address, address + BLOCK, address + 2 * BLOCK, address + 600 * GIB]) else {
        return;
    };
    assert_eq!(told[..3], [table | PRESENT, 0xaaaa_a000 | PRESENT, 0xbbbb_b000 | PRESENT], "a table");
    assert_eq!(told[3], huge);
    assert_eq!((told[6], told[9]), (0, 0), "nothing below a table, and no table at all");
}

/// At each read in turn the tables are freed and their pages written by another program. After each the block reads as it was, as gone, or as
/// unknown; never with the other program's words.
#[test]
fn a_table_that_is_reused_under_the_walk_is_never_believed() {
    let (mut model, address, table) = block(0);
    let middle = model.entry(address, Size::Huge);
    let upper = model.entry(address, Size::Giant);
    let top = model.entry(address, Size::Giant) / PAGE * PAGE;
    let top_entry = model.tables.iter().find(|(_, below)| *below == top).expect("mapped above").0;
    let stranger = 7 * GIB;
    // Which entry is cleared, and which words of the pages below it the other one writes.
    let taken: [(u64, Vec<(u64, u64)>); 3] = [
        (middle, vec![(table, 0x666), (table + 511 * 8, 0x666)]),
        (upper, vec![(middle, stranger | PRESENT), (stranger, 0x666)]),
        (
            top_entry,
            vec![(upper, stranger | PRESENT), (stranger + 8, (stranger + PAGE) | PRESENT), (stranger + PAGE, 0x666)],
        ),
    ];
    let mut outcomes = std::collections::BTreeSet::new();
    for (cleared, written) in taken {
        for after in 1..12 {
            let mut changes = format!("change {after} {cleared:x} 0\n");
            for (at, value) in &written {
                writeln!(changes, "change {after} {at:x} {value:x}").expect("a string");
            }
            let Some(told) = copies(&model, &changes, &[address]) else { return };
            let outcome = match told[0] {
                HEAD_UNKNOWN => "unknown",
                0 => "gone",
                head if head == table | PRESENT => {
                    assert_eq!(told[1..3], [0xaaaa_a000 | PRESENT, 0xbbbb_b000 | PRESENT], "after {after} reads");
                    "as it was"
                }
                head => panic!("after {after} reads of {cleared:#x}: {head:#x}"),
            };
            outcomes.insert(outcome);
        }
    }
    assert_eq!(outcomes.into_iter().collect::<Vec<_>>(), ["as it was", "gone", "unknown"]);
}

#[test]
fn what_lies_beyond_memory_is_not_followed_and_not_taken_for_nothing() {
    let (mut model, address, _) = block(0);
    let at = model.entry(address, Size::Huge);
    model.word(at, 0xfe00_0000_0000 | PRESENT);
    let Some(told) = copies(&model, "", &[address]) else { return };
    assert_eq!((told[0], *told.last().expect("the mark")), (HEAD_UNKNOWN, 1), "a table at a device's registers");
    let (mut model, address, _) = block(0);
    let at = model.entry(address, Size::Giant);
    model.word(at, 0xfe00_0000_0000 | PRESENT);
    let told = copies(&model, "", &[address, address + BLOCK]).expect("compiled before");
    assert_eq!((told[0], told[3]), (HEAD_UNKNOWN, HEAD_UNKNOWN), "nor is it remembered for the next block");
}
