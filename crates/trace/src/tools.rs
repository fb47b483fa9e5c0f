//! What `terrace trace info`, `cat` and `cut` do, over streams that the caller opened.
//!
//! In: readers and options. Out: an [`Info`], text, or a shorter trace. Must not: stop at a damaged trace without
//! having used what is whole before the damage.

use std::collections::BTreeMap;
use std::io::{BufWriter, Read, Write};
use std::ops::Range;

use terrace_core::units::{BLOCK_SHIFT, PageId, Time};

use crate::error::TraceError;
use crate::export::vpn_of;
use crate::header::Header;
use crate::index::Summary;
use crate::map::{PageMap, Process, ProcessId};
use crate::reader::Reader;
use crate::record::{Access, Change, Event, Pages, ThreadId};
use crate::writer::{Writer, pages_of};

const BATCH: usize = 4096;

/// What a trace holds, found by reading and verifying all of it.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Info {
    /// What the records mean.
    pub header: Header,
    /// Totals of what is whole.
    pub summary: Summary,
    /// Pages that were accessed at least once.
    pub touched_pages: u64,
    /// Accesses of each thread, by the number it had in the traced program.
    pub accesses_by_thread: BTreeMap<u64, u64>,
    /// Blocks of records.
    pub blocks: u64,
    /// Bytes of the file that are whole.
    pub bytes: u64,
    /// Named address ranges that hold accessed pages, with the number of those pages.
    pub touched_pages_by_region: BTreeMap<String, u64>,
    /// Accesses and pages by size, where the trace tells page sizes.
    pub page_sizes: Option<PageSizes>,
    /// The processes, where the trace tells them apart, by their number in it.
    pub processes: Vec<ProcessInfo>,
    /// What is wrong with the trace, if it is not whole.
    pub damage: Option<String>,
}

/// Accesses and pages by the size that the traced machine's kernel mapped them by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct PageSizes {
    /// Accesses to memory mapped by 4 KiB.
    pub accesses_4k: u64,
    /// Accesses to memory mapped by 2 MiB.
    pub accesses_2m: u64,
    /// Pages of 4 KiB that were accessed while they were mapped so.
    pub pages_4k: u64,
    /// Pages of 2 MiB that were accessed.
    pub pages_2m: u64,
    /// How often 2 MiB that had been mapped by 4 KiB became one page.
    pub collapsed: u64,
    /// How often a 2 MiB page was split.
    pub split: u64,
}

/// A process's part of a trace.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct ProcessInfo {
    /// Its number in the traced machine.
    pub pid: u64,
    /// Its name there.
    pub name: String,
    /// Its accesses.
    pub accesses: u64,
    /// Pages of 4 KiB that it accessed.
    pub touched_pages: u64,
}

/// How blocks of 2 MiB are mapped, as far as the trace has told.
#[derive(Default)]
struct Sizes {
    /// A flag for each reported block: 2 MiB or not.
    blocks: Vec<Option<bool>>,
    used_small: Vec<u64>,
    used_huge: Vec<u64>,
    counts: PageSizes,
    told: bool,
}

impl Sizes {
    fn event(&mut self, change: &Change) {
        let (pages, huge) = match change {
            Change::Huge(pages) => (pages, true),
            Change::Split(pages) => (pages, false),
            _ => return,
        };
        self.told = true;
        let end = u64::from(pages.first.0) + u64::from(pages.count);
        for block in pages.first.0 >> BLOCK_SHIFT..=(end.saturating_sub(1) >> BLOCK_SHIFT) as u32 {
            let block = block as usize;
            if block >= self.blocks.len() {
                self.blocks.resize(block + 1, None);
            }
            match (self.blocks[block].replace(huge), huge) {
                (Some(false), true) => self.counts.collapsed += 1,
                (Some(true), false) => self.counts.split += 1,
                _ => {}
            }
        }
    }

    fn access(&mut self, page: usize) {
        if !self.told {
            return;
        }
        match self.blocks.get(page >> BLOCK_SHIFT) {
            Some(Some(true)) => {
                self.counts.accesses_2m += 1;
                mark(&mut self.used_huge, page >> BLOCK_SHIFT);
            }
            _ => {
                self.counts.accesses_4k += 1;
                mark(&mut self.used_small, page);
            }
        }
    }

    fn done(self) -> Option<PageSizes> {
        let sizes = PageSizes { pages_4k: ones(&self.used_small), pages_2m: ones(&self.used_huge), ..self.counts };
        self.told.then_some(sizes)
    }
}

fn mark(bits: &mut Vec<u64>, at: usize) {
    if at / 64 >= bits.len() {
        bits.resize(at / 64 + 1, 0);
    }
    bits[at / 64] |= 1 << (at % 64);
}

fn count_at(counts: &mut Vec<u64>, at: usize) {
    if at >= counts.len() {
        counts.resize(at + 1, 0);
    }
    counts[at] += 1;
}

fn ones(bits: &[u64]) -> u64 {
    bits.iter().map(|bits| u64::from(bits.count_ones())).sum()
}

impl Info {
    /// Bytes of the file for each access.
    pub fn bytes_per_access(&self) -> f64 {
        self.bytes as f64 / self.summary.accesses.max(1) as f64
    }
}

/// Page ids that [`info`] takes: 1 TiB of memory. Three bytes of a file can name any page.
pub const MOST_PAGES: u64 = 1 << 28;

/// Reads a whole trace and says what it holds. Damage after the header is part of the answer, not an error.
///
/// # Errors
/// When there is no readable header.
pub fn info(input: impl Read) -> Result<Info, TraceError> {
    info_within(input, MOST_PAGES)
}

/// As [`info`], with page ids below `most_pages`: a quarter of a byte for each of them is kept. An id beyond ends it, as damage does.
///
/// # Errors
/// As [`info`].
pub fn info_within(input: impl Read, most_pages: u64) -> Result<Info, TraceError> {
    let mut reader = Reader::new(input)?;
    let mut tally = Tally::default();
    tally.summary.first_time = Time::FAR_FUTURE;
    let mut batch = vec![Access::default(); BATCH];
    let too_far = |page: u64| {
        format!(
            "page {page} lies beyond the first {most_pages} pages, which is all that is looked at (--max-footprint)"
        )
    };
    let damage = loop {
        let count = match reader.fill(&mut batch) {
            Ok(count) => count,
            Err(error) => break Some(error.to_string()),
        };
        if let Some(far) = batch[..count].iter().find(|access| u64::from(access.page().0) >= most_pages) {
            break Some(too_far(u64::from(far.page().0)));
        }
        batch[..count].iter().for_each(|access| tally.access(access));
        if count == 0 {
            let Some(event) = reader.take_event() else {
                break None;
            };
            let end = pages_of(&event).map_or(0, |pages| u64::from(pages.first.0) + u64::from(pages.count));
            if end > most_pages {
                break Some(too_far(end));
            }
            tally.event(&event, end);
        }
    };
    if tally.summary.accesses + tally.summary.events == 0 {
        tally.summary.first_time = Time::ZERO;
    }
    tally.summary.threads = tally.by_thread.len() as u32;
    tally.summary.page_ids = tally.summary.page_ids.max(tally.pages().last().map_or(0, |page| page as u64 + 1));
    let map = reader.map();
    let raw = |thread: usize| map.thread(ThreadId(thread as u16)).unwrap_or(thread as u64);
    Ok(Info {
        header: reader.header().clone(),
        touched_pages_by_region: tally.by_region(map),
        processes: if reader.header().processes { tally.by_process(map) } else { Vec::new() },
        touched_pages: ones(&tally.touched),
        accesses_by_thread: tally.by_thread.iter().enumerate().map(|(thread, count)| (raw(thread), *count)).collect(),
        blocks: reader.blocks(),
        bytes: reader.offset(),
        page_sizes: tally.sizes.done(),
        summary: tally.summary,
        damage,
    })
}

/// What accesses and events add up to.
#[derive(Default)]
struct Tally {
    summary: Summary,
    touched: Vec<u64>,
    by_thread: Vec<u64>,
    by_block: Vec<u64>,
    sizes: Sizes,
}

impl Tally {
    fn access(&mut self, access: &Access) {
        let page = access.page().index();
        mark(&mut self.touched, page);
        self.sizes.access(page);
        count_at(&mut self.by_block, page >> BLOCK_SHIFT);
        count_at(&mut self.by_thread, usize::from(access.thread().0));
        self.summary.accesses += 1;
        self.summary.writes += u64::from(access.is_write());
        self.pass(access.time());
    }

    /// An event over pages that end before this one.
    fn event(&mut self, event: &Event, end: u64) {
        self.sizes.event(&event.change);
        self.summary.events += 1;
        self.summary.page_ids = self.summary.page_ids.max(end);
        self.pass(event.time);
    }

    fn pass(&mut self, time: Time) {
        self.summary.first_time = self.summary.first_time.min(time);
        self.summary.last_time = self.summary.last_time.max(time);
    }

    /// Pages that were accessed.
    fn pages(&self) -> impl Iterator<Item = usize> {
        let words = self.touched.iter().enumerate();
        words.flat_map(|(word, bits)| (0..64).filter(move |bit| bits >> bit & 1 != 0).map(move |bit| word * 64 + bit))
    }

    /// How many of them lie in each named range.
    fn by_region(&self, map: &PageMap) -> BTreeMap<String, u64> {
        let mut by_region: BTreeMap<String, u64> = BTreeMap::new();
        if map.regions().is_empty() {
            return by_region;
        }
        for page in self.pages() {
            let region = map.address(PageId(page as u32)).and_then(|address| map.region(address));
            let name =
                region.map_or("(unmapped)", |region| if region.name.is_empty() { "(anonymous)" } else { &region.name });
            *by_region.entry(name.to_owned()).or_default() += 1;
        }
        by_region
    }

    fn by_process(&self, map: &PageMap) -> Vec<ProcessInfo> {
        let info =
            |known: &Process| ProcessInfo { pid: known.pid, name: known.name.clone(), accesses: 0, touched_pages: 0 };
        let mut processes: BTreeMap<ProcessId, ProcessInfo> =
            map.processes().iter().map(|(number, known)| (*number, info(known))).collect();
        for (block, count) in self.by_block.iter().enumerate() {
            if let Some(info) = processes.get_mut(&map.process_of(PageId((block << BLOCK_SHIFT) as u32))) {
                info.accesses += count;
            }
        }
        for page in self.pages() {
            if let Some(info) = processes.get_mut(&map.process_of(PageId(page as u32))) {
                info.touched_pages += 1;
            }
        }
        processes.into_values().collect()
    }
}

/// How [`cat`] writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CatForm {
    /// `time_ns thread R|W address page line latency`, events as `time_ns event ...`.
    #[default]
    Text,
    /// One JSON object a line.
    JsonLines,
}

/// Writes the records as text, from access `range.start` up to `range.end`; returns how many accesses were written.
///
/// # Errors
/// When the trace is damaged, after everything before the damage was written; or when the output fails.
pub fn cat(input: impl Read, output: impl Write, form: CatForm, range: Range<u64>) -> Result<u64, TraceError> {
    let mut reader = Reader::new(input)?;
    let mut output = BufWriter::with_capacity(1 << 16, output);
    let failed = |error: std::io::Error| TraceError::io("writing the records", 0, &error);
    let mut batch = vec![Access::default(); BATCH];
    let (mut position, mut written) = (0_u64, 0);
    while position < range.end {
        let room = (range.end - position).min(BATCH as u64) as usize;
        let count = match reader.fill(&mut batch[..room]) {
            Ok(count) => count,
            Err(error) => {
                output.flush().map_err(failed)?;
                return Err(error);
            }
        };
        if count == 0 {
            let Some(event) = reader.take_event() else { break };
            if position >= range.start {
                cat_event(&mut output, form, &event).map_err(failed)?;
            }
            continue;
        }
        let skip = range.start.saturating_sub(position).min(count as u64) as usize;
        for access in &batch[skip..count] {
            cat_access(&mut output, form, access, reader.map()).map_err(failed)?;
        }
        written += (count - skip) as u64;
        position += count as u64;
    }
    output.flush().map_err(failed)?;
    Ok(written)
}

fn cat_access(output: &mut impl Write, form: CatForm, access: &Access, map: &PageMap) -> std::io::Result<()> {
    let (time, page, line, latency) = (access.time().as_nanos(), access.page().0, access.line(), access.latency());
    let address = (vpn_of(map, access.page()).0 << 12) | (u64::from(line) << 6);
    let thread = map.thread(access.thread()).unwrap_or(u64::from(access.thread().0));
    match form {
        CatForm::Text => {
            let kind = if access.is_write() { 'W' } else { 'R' };
            writeln!(output, "{time} {thread} {kind} {address:#x} {page} {line} {latency}")
        }
        CatForm::JsonLines => {
            let write = access.is_write();
            writeln!(
                output,
                "{{\"time_ns\":{time},\"thread\":{thread},\"write\":{write},\"address\":\"{address:#x}\",\
                 \"page\":{page},\"line\":{line},\"latency\":{latency}}}"
            )
        }
    }
}

fn cat_event(output: &mut impl Write, form: CatForm, event: &Event) -> std::io::Result<()> {
    let time = event.time.as_nanos();
    let (name, accesses) = match event.change {
        Change::Born(_) => ("born", None),
        Change::Gone(_) => ("gone", None),
        Change::Huge(_) => ("huge", None),
        Change::Split(_) => ("split", None),
        Change::Region { accesses, .. } => ("region", Some(u64::from(accesses))),
        Change::Period(period) => ("period", Some(period)),
    };
    let pages = pages_of(event);
    match form {
        CatForm::Text => {
            write!(output, "{time} event {name}")?;
            if let Some(Pages { first, count }) = pages {
                write!(output, " page {} count {count}", first.0)?;
            }
            match accesses {
                Some(accesses) => writeln!(output, " accesses {accesses}"),
                None => writeln!(output),
            }
        }
        CatForm::JsonLines => {
            write!(output, "{{\"time_ns\":{time},\"event\":\"{name}\"")?;
            if let Some(Pages { first, count }) = pages {
                write!(output, ",\"page\":{},\"count\":{count}", first.0)?;
            }
            match accesses {
                Some(accesses) => writeln!(output, ",\"accesses\":{accesses}}}"),
                None => writeln!(output, "}}"),
            }
        }
    }
}

/// What [`cut`] keeps. Everything is kept that no field excludes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    /// Accesses by their place in the trace, from 0.
    pub accesses: Option<Range<u64>>,
    /// Accesses and events by their time.
    pub times: Option<Range<Time>>,
    /// Accesses by the number their thread had in the traced program.
    pub threads: Option<Vec<u64>>,
    /// Accesses by their page.
    pub pages: Option<Range<u32>>,
    /// Every how many-th access of those left is kept; 0 and 1 keep all. The result is marked sampled.
    pub every: u64,
    /// At damage, keep what is whole before it; otherwise damage is an error.
    pub keep_whole_prefix: bool,
}

/// What [`cut`] did.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct CutReport {
    /// Totals of the new trace.
    pub summary: Summary,
    /// The damage that ended the old trace, with [`Cut::keep_whole_prefix`].
    pub damage: Option<String>,
}

/// Copies part of a trace, with its map; page ids and times stay what they were. Without any restriction it copies
/// all, and so makes a damaged trace whole again.
///
/// # Errors
/// When the trace is damaged (see [`Cut::keep_whole_prefix`]), or the output fails.
pub fn cut(input: impl Read, output: impl Write, cut: &Cut) -> Result<CutReport, TraceError> {
    let mut reader = Reader::new(input)?;
    reader.keep_map_pieces();
    let mut header = reader.header().clone();
    if cut.every > 1 {
        use crate::header::Provenance;
        header.provenance = match header.provenance {
            Provenance::Sampled { period } => Provenance::Sampled { period: period.saturating_mul(cut.every) },
            Provenance::Exact | Provenance::Filtered { .. } => Provenance::Sampled { period: cut.every },
            regional @ Provenance::Regional { .. } => regional,
        };
    }
    let mut writer = Writer::new(output, header)?;
    let mut batch = vec![Access::default(); BATCH];
    let (mut position, mut candidates) = (0_u64, 0_u64);
    let in_times = |time: Time| cut.times.as_ref().is_none_or(|times| times.contains(&time));
    let damage = loop {
        let count = match reader.fill(&mut batch) {
            Ok(count) => count,
            Err(error) if cut.keep_whole_prefix => break Some(error.to_string()),
            Err(error) => return Err(error),
        };
        for piece in reader.take_map_pieces() {
            writer.map(&piece)?;
        }
        let in_accesses = |position: u64| cut.accesses.as_ref().is_none_or(|range| range.contains(&position));
        for access in &batch[..count] {
            let raw = || reader.map().thread(access.thread()).unwrap_or(u64::from(access.thread().0));
            let kept = in_accesses(position)
                && in_times(access.time())
                && cut.pages.as_ref().is_none_or(|pages| pages.contains(&access.page().0))
                && cut.threads.as_ref().is_none_or(|threads| threads.contains(&raw()));
            position += 1;
            if kept {
                if cut.every <= 1 || candidates % cut.every == 0 {
                    writer.access(*access)?;
                }
                candidates += 1;
            }
        }
        if cut.accesses.as_ref().is_some_and(|range| position >= range.end) {
            break None;
        }
        if count == 0 {
            let Some(event) = reader.take_event() else {
                break None;
            };
            // Births, deaths, page sizes and periods before the cut still hold within it; only counts do not.
            let change = match event.change {
                Change::Region { .. } if !(in_accesses(position) && in_times(event.time)) => continue,
                Change::Period(period) => Change::Period(period.saturating_mul(cut.every.max(1))),
                other => other,
            };
            writer.event(Event { change, ..event })?;
        }
    };
    let (_, summary) = writer.finish()?;
    Ok(CutReport { summary, damage })
}
