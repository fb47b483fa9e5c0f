//! Prints what the doctor finds, as `terrace doctor --json` does.
//!
//! In: nothing. Out: JSON on stdout. Must not: stand in for the command line tool.
#![allow(clippy::print_stdout)]

use terrace_linux::doctor::Doctor;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("{}", serde_json::to_string_pretty(&Doctor::examine()?)?);
    Ok(())
}
