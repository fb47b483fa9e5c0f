//! Runs targets: each in a process of its own, for a time, with a bound on its memory.
//!
//! In: a target, seconds, a seed. Out: a line of what was done, and the input of a fault in `fuzz/findings`. Must not: go on with a
//! target after a fault, or lose the input that made it.
//!
//! What a target returns is where an input came to: how far it was read, or which error it ended with. Inputs that come to what none
//! came to before are kept and changed further. That is less than coverage tells, and needs nothing but the result.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::process::{Resource, Rlimit};
use terrace_core::random::{SplitMix64, mix};

use crate::mutate::{LONGEST, Mutator};
use crate::targets::{ALL, Target};

/// What an input of up to 1 MiB may make a decoder hold, in bytes, beyond what the process held before.
const MOST_MEMORY: u64 = 256 << 20;
/// The bound on the address space of a worker: what goes far beyond ends there, not in the machine's memory.
const ADDRESS_SPACE: u64 = 2 << 30;
/// An input that takes more of the processor than this is a fault, and so is one that does not end. The machine may be busy: it is the
/// process's own time.
const LONGEST_TIME: Duration = Duration::from_secs(20);
/// Inputs kept to be changed further.
const POOL: usize = 512;
/// What takes longer is tried, and seldom changed further: in its time a thousand others are tried.
const QUICK: Duration = Duration::from_millis(20);
/// The same of what is longer, in bytes.
const SMALL: usize = 64 << 10;

/// Prints a line on stdout.
pub(crate) fn say(line: &str) {
    // A reader that went away wants no more of it.
    let _ = writeln!(std::io::stdout(), "{line}");
}

fn folder(part: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(part)
}

/// The good inputs of a target, in order of their names.
pub(crate) fn corpus(target: &Target) -> anyhow::Result<Vec<(PathBuf, Vec<u8>)>> {
    let folder = folder("corpus").join(target.name);
    let entries = std::fs::read_dir(&folder).with_context(|| folder.display().to_string())?;
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    let read = |path: PathBuf| {
        let bytes = terrace_files::read(&path, LONGEST as u64).with_context(|| path.display().to_string())?;
        Ok((path, bytes))
    };
    paths.into_iter().map(read).collect()
}

/// Runs every target. Whether none had a fault.
pub(crate) fn all(seconds: u64, seed: u64) -> anyhow::Result<bool> {
    let mut fine = true;
    for target in ALL {
        fine &= one(target, seconds, seed)?;
    }
    Ok(fine)
}

/// Runs a target in a process of its own. Whether it had no fault.
pub(crate) fn one(target: &Target, seconds: u64, seed: u64) -> anyhow::Result<bool> {
    let input = scratch(target, seed);
    let mut child = Command::new(std::env::current_exe()?)
        .args(["worker", target.name, "--seconds", &seconds.to_string(), "--seed", &seed.to_string()])
        .env("TERRACE_FUZZ_INPUT", &input)
        .stdin(Stdio::null())
        .spawn()?;
    let limit = Instant::now() + Duration::from_secs(seconds) + LONGEST_TIME * 6;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break Some(status);
        }
        if Instant::now() > limit {
            child.kill()?;
            child.wait()?;
            break None;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let bytes = std::fs::read(&input).unwrap_or_default();
    let _ = std::fs::remove_file(&input);
    if status.is_some_and(|status| status.success()) {
        return Ok(true);
    }
    // Eight bytes of length, then the input that was being tried.
    let length = bytes.first_chunk().map_or(0, |length| u64::from_le_bytes(*length) as usize);
    let tried = bytes.get(8..8 + length).unwrap_or_default();
    let findings = folder("findings");
    std::fs::create_dir_all(&findings)?;
    let path = findings.join(format!("{}-{:08x}", target.name, crc32fast::hash(tried)));
    terrace_files::write(&path, tried).with_context(|| path.display().to_string())?;
    let how = status.map_or("it did not end".to_owned(), |status| status.to_string());
    say(&format!("{:<18} FAULT: {how}; the input is {}", target.name, path.display()));
    Ok(false)
}

fn scratch(target: &Target, seed: u64) -> PathBuf {
    let name = format!("terrace-fuzz-{}-{}-{seed}-{}", std::process::id(), target.name, mix(seed));
    std::env::temp_dir().join(name)
}

/// The worker: tries inputs until the time is over.
pub(crate) fn work(target: &Target, seconds: u64, seed: u64) -> anyhow::Result<bool> {
    let bound = Rlimit { current: Some(ADDRESS_SPACE), maximum: Some(ADDRESS_SPACE) };
    rustix::process::setrlimit(Resource::As, bound)?;
    let place = std::env::var_os("TERRACE_FUZZ_INPUT").context("a worker is started by `run` or `all`")?;
    let mut tried = terrace_files::create_new(Path::new(&place))?;
    let seeds: Vec<Vec<u8>> = corpus(target)?.into_iter().map(|(_, bytes)| bytes).collect();
    anyhow::ensure!(!seeds.is_empty(), "{}: its corpus is empty", target.name);
    let name = target.name.bytes().fold(seed, |sum, byte| mix(sum ^ u64::from(byte)));
    let mut mutator = Mutator { random: SplitMix64::new(name), words: target.words };
    let mut ends = BTreeSet::new();
    // What is changed further: good inputs, and those made of them, as far as they are quick.
    let mut pool: Vec<Vec<u8>> = Vec::new();
    let (began, held) = (Instant::now(), peak_memory());
    let (mut inputs, mut longest, mut next_look) = (0_u64, Duration::ZERO, 0);
    while began.elapsed() < Duration::from_secs(seconds) {
        // The seeds themselves first, then what is made of them.
        let open = match seeds.get(inputs as usize) {
            Some(seed) => seed.clone(),
            None => {
                let seed = pool.is_empty() || mutator.below(256) == 0;
                let from = if seed { &seeds } else { &pool };
                let mut bytes = from[mutator.below(from.len())].clone();
                mutator.mutate(&mut bytes, from);
                bytes
            }
        };
        tried.seek(SeekFrom::Start(0))?;
        tried.write_all(&(open.len() as u64).to_le_bytes())?;
        tried.write_all(&open)?;
        let start = processor_time();
        let bytes = sealed(target, &open);
        let end = (target.run)(&bytes);
        let took = processor_time().saturating_sub(start);
        longest = longest.max(took);
        assert!(took < LONGEST_TIME, "an input took {took:?}");
        inputs += 1;
        // Reading the peak costs as much as a small input.
        if inputs >= next_look || took > Duration::from_millis(2) {
            next_look = inputs + 16;
            let more = peak_memory().saturating_sub(held);
            assert!(more <= MOST_MEMORY, "the inputs up to here took {} MiB of memory", more >> 20);
        }
        if ends.insert(end) && took < QUICK && open.len() <= SMALL && pool.len() < POOL {
            pool.push(open);
        }
    }
    let rate = inputs as f64 / began.elapsed().as_secs_f64();
    say(&format!(
        "{:<18} {inputs:>9} inputs, {rate:>8.0} a second, {:>4} ends, {:>4} MiB more at most, longest {:>5} ms, seed {seed}",
        target.name,
        ends.len(),
        peak_memory().saturating_sub(held) >> 20,
        longest.as_millis()
    ));
    Ok(true)
}

/// What the decoder reads.
fn sealed<'a>(target: &Target, open: &'a [u8]) -> Cow<'a, [u8]> {
    target.seal.map_or(Cow::Borrowed(open), |seal| Cow::Owned(seal(open)))
}

/// Tries one input.
pub(crate) fn again(target: &Target, file: &Path) -> anyhow::Result<bool> {
    let bytes = terrace_files::read(file, LONGEST as u64).with_context(|| file.display().to_string())?;
    let bytes = sealed(target, &bytes);
    let held = peak_memory();
    let began = processor_time();
    let end = (target.run)(&bytes);
    let took = processor_time().saturating_sub(began);
    let more = peak_memory().saturating_sub(held);
    say(&format!("{}: end {end:x} after {took:?}, {} MiB more", target.name, more >> 20));
    Ok(more <= MOST_MEMORY && took < LONGEST_TIME)
}

/// What this process has had of the processor.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// The most memory this process has held, in bytes.
fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or(0) << 10
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_stands_its_corpus_and_what_is_made_of_it() {
        let held = peak_memory();
        for target in ALL {
            let seeds: Vec<(PathBuf, Vec<u8>)> = corpus(target).unwrap();
            // Among them are the bombs that once filled memory.
            for (path, bytes) in &seeds {
                (target.run)(&sealed(target, bytes));
                let more = peak_memory().saturating_sub(held);
                assert!(more <= MOST_MEMORY, "{}: {} MiB", path.display(), more >> 20);
            }
            let seeds: Vec<Vec<u8>> = seeds.into_iter().map(|(_, bytes)| bytes).collect();
            assert!(!seeds.is_empty(), "{}: a target needs good inputs in fuzz/corpus", target.name);
            let mut mutator = Mutator { random: SplitMix64::new(7), words: target.words };
            for turn in 0..60 {
                let mut bytes = seeds[turn % seeds.len()].clone();
                mutator.mutate(&mut bytes, &seeds);
                (target.run)(&sealed(target, &bytes));
            }
        }
        assert!(ALL.len() >= 15);
    }
}
