//! `terrace record --hook`: how to make a program record itself.
//!
//! In: where the compiled recorder will be. Out: lines for a shell, and the recorder's source in a file. Must not: run a
//! compiler, or replace a file that is something else.

use std::process::ExitCode;

use anyhow::Context;
use terrace_trace::hook::{RECORDER_COMPILE_FLAGS, RECORDER_FILE_NAME, RECORDER_SOURCE, flags, hook_flags};

use crate::args::RecordArguments;
use crate::options::misuse;

pub(super) fn run(arguments: &RecordArguments) -> anyhow::Result<ExitCode> {
    if let Some(path) = &arguments.write {
        if path.exists() && std::fs::read(path).is_ok_and(|text| text != RECORDER_SOURCE.as_bytes()) {
            let why = format!("it exists and is something else; name a new file, such as {RECORDER_FILE_NAME}");
            return Err(misuse("--write", &path.display().to_string(), why));
        }
        std::fs::write(path, RECORDER_SOURCE)
            .with_context(|| format!("{}: the recorder's source could not be written", path.display()))?;
    }
    let source = arguments.write.as_ref().map_or(RECORDER_FILE_NAME.to_owned(), |path| path.display().to_string());
    let compile = format!("cc {} {source} -o {}", RECORDER_COMPILE_FLAGS.join(" "), arguments.object);
    if arguments.json {
        let flags = flags(&arguments.object);
        super::print_json(&serde_json::json!({
            "compile_recorder": compile, "compile": flags.compile, "link": flags.link, "written": arguments.write,
        }))?;
    } else {
        let record =
            "# then run the program with TERRACE_RECORD=FILE, and: terrace trace import --format hook FILE NEW\n";
        super::print_text(&format!("{compile}\n{}{record}", hook_flags(&arguments.object)))?;
    }
    Ok(ExitCode::SUCCESS)
}
