//! Programs and files of this host that a guest gets.
//!
//! In: names and lines as the user typed them. Out: what the guest starts, and which files go there. Must not: start anything.

use std::path::PathBuf;

use crate::options::misuse;
use crate::program;
use crate::programs::{RESEARCH, TERRACE};
use crate::recorder::refuse_script;

/// A line for the guest's shell whose first word is a program of this host, which is brought along. `option` is where the line stands.
pub(super) fn line_of(option: &str, line: &str, files: &mut Vec<(PathBuf, String)>) -> anyhow::Result<String> {
    let line = line.trim_start();
    let (name, rest) = line.split_at(line.find(char::is_whitespace).unwrap_or(line.len()));
    if name.is_empty() {
        return Err(misuse(option, line, "expected a program and its arguments"));
    }
    Ok(format!("{}{rest}", brought(name, files)?))
}

/// The path in the guest of a program of this host. `terrace` is there already.
pub(super) fn brought(name: &str, files: &mut Vec<(PathBuf, String)>) -> anyhow::Result<String> {
    if [TERRACE, RESEARCH].contains(&name) {
        return Ok(format!("/usr/bin/{name}"));
    }
    let found = program::find(name.as_ref())?;
    refuse_script(&found)?;
    let path = std::path::absolute(&found)?;
    let guest = path.to_string_lossy().into_owned();
    let guest = if hidden(&guest) { format!("/brought{guest}") } else { guest };
    if !files.iter().any(|(_, known)| *known == guest) {
        files.push((path, guest.clone()));
    }
    Ok(guest)
}

/// Whether the guest mounts something else over this path.
fn hidden(path: &str) -> bool {
    ["/dev/", "/proc/", "/sys/", "/tmp/"].iter().any(|folder| path.starts_with(folder))
}

/// `HOST:GUEST`, or a path that both have.
pub(super) fn file(text: &str) -> anyhow::Result<(PathBuf, String)> {
    let (host, guest) = text.split_once(':').unwrap_or((text, text));
    if !guest.starts_with('/') {
        return Err(misuse(
            "--file",
            text,
            "expected HOST:GUEST, the guest's path from its root, such as words.txt:/words.txt",
        ));
    }
    if hidden(guest) {
        return Err(misuse(
            "--file",
            text,
            "expected a path in the guest outside of /dev, /proc, /sys and /tmp, which it mounts",
        ));
    }
    match std::fs::metadata(host) {
        Ok(data) if data.is_file() => Ok((host.into(), guest.to_owned())),
        Ok(_) => Err(misuse("--file", text, format!("{host} is no file"))),
        Err(error) => Err(misuse("--file", text, error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_names_a_program_of_this_host_that_is_brought_along() {
        let mut files = Vec::new();
        let line = line_of("--beside", "  sh -c 'echo  a'", &mut files).unwrap();
        assert!(line.starts_with('/') && line.ends_with("/sh -c 'echo  a'"), "{line}");
        line_of("--beside", "sh", &mut files).unwrap();
        assert_eq!(files.len(), 1, "once: {files:?}");
        assert_eq!(line_of("--beside", "terrace workload list", &mut files).unwrap(), "/usr/bin/terrace workload list");
        let folder = tempfile::tempdir_in("/tmp").unwrap();
        let program = folder.path().join("program").to_string_lossy().into_owned();
        std::fs::copy("/bin/true", &program).unwrap();
        assert_eq!(brought(&program, &mut files).unwrap(), format!("/brought{program}"), "/tmp is the guest's own");
        assert!(line_of("--beside", " ", &mut files).unwrap_err().to_string().contains("--beside"));
        assert!(
            line_of("--beside", "no-such-program", &mut files).unwrap_err().to_string().contains("no-such-program")
        );
    }

    #[test]
    fn a_file_has_a_path_in_the_guest() {
        let own = file!();
        assert!(file(own).unwrap_err().to_string().contains("HOST:GUEST"));
        assert!(file("/nowhere:/x").unwrap_err().to_string().contains("/nowhere"));
        assert!(file("/proc/self/status:/tmp/x").unwrap_err().to_string().contains("/tmp"));
        assert!(file("/:/x").unwrap_err().to_string().contains("no file"));
        assert_eq!(file("/proc/self/status:/x").unwrap(), ("/proc/self/status".into(), "/x".to_owned()));
    }
}
