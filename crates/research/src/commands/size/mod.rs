//! `terrace size`: how little fast memory a program needs.
//!
//! In: raw arguments. Out: the command's exit code. Must not: model or decide anything; `terrace_sizing` does.

use std::process::ExitCode;

use terrace_core::units::Bytes;
use terrace_sizing::ConfigVector;
use terrace_sizing::vector::{DIMENSIONS, NAMES};

pub(crate) use terrace_common::max_slowdown;

use crate::args::SizeCommand;
use crate::options::misuse;

mod advise;
mod build;
mod forecast;
mod microbench;
mod native;
mod query;
pub(crate) mod store;
mod tune;
mod vector;

pub(super) fn run(command: &SizeCommand) -> anyhow::Result<ExitCode> {
    let done = match command {
        SizeCommand::Tune(arguments) => return tune::run(arguments),
        SizeCommand::Advise(arguments) => return advise::run(arguments),
        SizeCommand::Microbench(arguments) => microbench::run(arguments),
        SizeCommand::Build(arguments) => build::run(arguments),
        SizeCommand::Query(arguments) => query::run(arguments),
        SizeCommand::Forecast(arguments) => forecast::run(arguments),
        SizeCommand::Vector(arguments) => vector::run(arguments),
    };
    done.map(|()| ExitCode::SUCCESS)
}

/// `--vector`: eight numbers in the paper's order, or names with values.
fn vector(text: &str) -> anyhow::Result<ConfigVector> {
    let refuse = |why: String| misuse("--vector", text, why);
    let order = NAMES.join(", ");
    let mut values = [f64::NAN; DIMENSIONS];
    let parts: Vec<&str> = text.split(',').map(str::trim).filter(|part| !part.is_empty()).collect();
    if parts.len() != DIMENSIONS {
        return Err(refuse(format!("expected {DIMENSIONS} figures ({order}), not {}", parts.len())));
    }
    for (place, part) in parts.into_iter().enumerate() {
        let (place, number) = match part.split_once('=') {
            None => (place, part),
            Some((name, number)) => {
                let known = NAMES.iter().position(|known| known.eq_ignore_ascii_case(name.trim()));
                (known.ok_or_else(|| refuse(format!("no figure is called {name}: expected {order}")))?, number.trim())
            }
        };
        // The resident size may carry a unit: "15.8GiB".
        let value = match number.parse::<f64>() {
            Ok(value) => Some(value),
            Err(_) if NAMES[place] == "rss" => number.parse::<Bytes>().ok().map(|bytes| bytes.get() as f64),
            Err(_) => None,
        };
        values[place] = value.ok_or_else(|| refuse(format!("{} is {number}: expected a number", NAMES[place])))?;
    }
    if let Some(missing) = values.iter().position(|value| value.is_nan()) {
        return Err(refuse(format!("{} is missing, or no number", NAMES[missing])));
    }
    let vector = ConfigVector::from_array(values);
    vector.check().map_err(|error| refuse(error.to_string()))?;
    Ok(vector)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Misuse;

    #[test]
    fn a_vector_is_eight_figures_in_order_or_by_name() {
        let by_order = vector("1e8, 1e6, 10, 20, 5, 1GiB, 2, 4").unwrap();
        let by_name =
            vector("threads=4,hot_thr=2,rss=1073741824,AI=5,pm_pr=20,pm_de=10,pacc_s=1e6,pacc_f=1e8").unwrap();
        assert_eq!(by_order, by_name);
        for (text, says) in [
            ("1,2,3", "expected 8 figures"),
            ("a=1,1,1,1,1,1,1,1", "no figure is called a"),
            ("x,1,1,1,1,1,1,1", "pacc_f is x"),
            ("1e8,0,0,0,5,1GiB,1,4", "hot_thr is 1"),
            ("1e8,0,0,0,5,inf,2,4", "rss is inf"),
            ("pacc_f=1,pacc_f=1,1,1,1,1e6,2,2", "pacc_s is missing"),
        ] {
            let error = vector(text).unwrap_err();
            assert!(error.is::<Misuse>() && error.to_string().contains(says), "{text}: {error}");
        }
    }
}
