//! Fuzzing that runs: every decoder and parser that reads what Terrace did not write, tried with inputs made from good ones.
//!
//! In: the targets of `targets`, their seeds in `fuzz/corpus`, a number of seconds. Out: one line a target, and an input for each fault
//! in `fuzz/findings`. Must not: need another compiler than the product's, or touch the system it runs on.
//!
//! A run is a process of its own with a bound on its memory, so that an input that fills it, hangs or overflows the stack ends that
//! process alone. Inputs follow from the seed (`--seed`): the same run comes again. Without a compiler that instruments branches, an
//! input is worth keeping if it comes to a result that none came to before (see `driver`).
//!
//!     terrace-fuzz list
//!     terrace-fuzz all --seconds 20 [--seed 1]      every target, one after another
//!     terrace-fuzz run TARGET --seconds 600         one target
//!     terrace-fuzz try TARGET FILE                  one input, to see a fault again
//!     terrace-fuzz seeds                            make the corpus again, where a format has changed
#![cfg_attr(test, allow(clippy::unwrap_used))]

use std::path::PathBuf;
use std::process::ExitCode;

mod driver;
mod mutate;
#[path = "../../crates/linux/src/perf/record_bytes.rs"]
mod record_bytes;
mod seal;
mod seeds;
mod targets;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["list"] => {
            targets::ALL.iter().for_each(|target| driver::say(target.name));
            Ok(true)
        }
        ["all", rest @ ..] => options(rest).and_then(|(seconds, seed)| driver::all(seconds, seed)),
        ["run", name, rest @ ..] => {
            find(name).and_then(|target| options(rest).and_then(|(seconds, seed)| driver::one(target, seconds, seed)))
        }
        ["seeds"] => seeds::write().map(|()| true),
        ["worker", name, rest @ ..] => {
            find(name).and_then(|target| options(rest).and_then(|(seconds, seed)| driver::work(target, seconds, seed)))
        }
        ["try", name, file] => find(name).and_then(|target| driver::again(target, &PathBuf::from(file))),
        _ => Err(anyhow::anyhow!("expected list, all, run TARGET or try TARGET FILE, with --seconds N and --seed N")),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("terrace-fuzz: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn find(name: &str) -> anyhow::Result<&'static targets::Target> {
    let found = targets::ALL.iter().find(|target| target.name == name);
    found.ok_or_else(|| anyhow::anyhow!("there is no target {name}: `terrace-fuzz list` names them"))
}

/// Seconds a target, and the seed.
fn options(words: &[&str]) -> anyhow::Result<(u64, u64)> {
    let (mut seconds, mut seed) = (600, 1);
    for pair in words.chunks(2) {
        match pair {
            ["--seconds", value] => seconds = value.parse()?,
            ["--seed", value] => seed = value.parse()?,
            other => anyhow::bail!("{other:?} is no option: expected --seconds N, --seed N"),
        }
    }
    Ok((seconds, seed))
}
