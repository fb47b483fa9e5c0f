//! memtierd (intel/memtierd 0.1.1) as a manager in a guest: the host's program, unchanged, with its documented configuration for DAMON.
//!
//! In: the environment, the program's size by its [`Measure`]. Out: the file that goes into the guest, a configuration, the shell that starts
//! it. Must not: choose for memtierd what its documentation chooses: policy, tracker and numbers are those of its
//! `sample-configs/memtierd-heat-damon.yaml`, brought to the guest's measure as all managers' are.

use std::ffi::OsString;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use terrace_core::units::Bytes;

use crate::error::{LabError, file_error};
use crate::measure::Measure;
use crate::scenario::GuestFile;

/// What the slow node has beyond that of other managers' guests: room for bpftrace and its compiler (210 MB of files), which lie there. It
/// is nothing to the program, which never fills that node.
pub(crate) const BESIDES: Bytes = Bytes::mib(320);
/// How to come by it.
const ADVICE: &str = "put memtierd on the PATH or name it by MEMTIERD; with Go, gcc and libnuma-dev, `go mod init x && go mod edit -require \
                      github.com/intel/memtierd@v0.1.1 && GOFLAGS=-mod=mod go build github.com/intel/memtierd/cmd/memtierd` builds it in an empty folder";

/// memtierd itself, for the guest.
///
/// # Errors
/// When there is none, with how to build it.
pub(crate) fn program() -> Result<GuestFile, LabError> {
    let path = find(std::env::var_os("MEMTIERD"), std::env::var_os("PATH"))?;
    Ok(GuestFile { host: path.display().to_string(), guest: "/bin/memtierd".to_owned(), build: None })
}

fn find(named: Option<OsString>, path: Option<OsString>) -> Result<PathBuf, LabError> {
    if let Some(named) = named.filter(|named| !named.is_empty()) {
        let file = PathBuf::from(named);
        return match file.is_file() {
            true => Ok(file),
            false => Err(LabError::Missing(format!("MEMTIERD names {}, which is no file: {ADVICE}", file.display()))),
        };
    }
    let folders = path.unwrap_or_default();
    let mut files = std::env::split_paths(&folders).map(|folder| folder.join("memtierd"));
    let found = files.find(|file| file.is_file());
    found.ok_or_else(|| LabError::Missing(format!("memtierd is not installed: {ADVICE}")))
}

/// The configuration of one that was asked for, or the usual one. In both `$pid` stands for the program.
///
/// # Errors
/// When the file cannot be read.
pub(crate) fn configuration(asked: Option<&Path>, measure: Measure) -> Result<String, LabError> {
    match asked {
        Some(path) => terrace_files::read_to_string(path, 1 << 20).map_err(file_error(path)),
        None => Ok(usual(measure)),
    }
}

/// The sample for policy `heat` with tracker `damon`: the pair that memtierd's documentation has for DAMON (its `age` does not work with it).
fn usual(measure: Measure) -> String {
    let time = |milliseconds: u64| measure.time(Duration::from_millis(milliseconds));
    let micros = |milliseconds: u64| time(milliseconds).as_micros();
    // Heat is accesses by the page and round. As many regions of a smaller program have fewer pages each, so that the same accesses are more
    // heat, but a shorter round has fewer of DAMON's samples, which come no closer than a millisecond.
    let (round, samples) = (time(10_000), 10_000.0);
    let heat = 0.001 * measure.smaller() * (round.as_secs_f64() / time(1).as_secs_f64() / samples);
    // What is left of heat after a second; the sample's second is so much shorter here.
    let retention = 0.99_f64.powf(10.0 / round.as_secs_f64());
    format!(
        "policy:
  name: heat
  config: |
    intervalms: {}
    pidwatcher:
      name: pidlist
      config: |
        pids: [$pid]
    heatnumas:
      0: [1]
      3: [0]
    heatmap:
      heatmax: {heat:.5}
      heatretention: {retention:.4}
      heatclasses: 4
    tracker:
      name: damon
      config: |
        connection: bpftrace
        kdamondslist: [0]
        nrkdamonds: 1
        interface: 1
        filteraddressrangesizemax: 67108864
        samplingus: {}
        aggregationus: {}
        regionsupdateus: {}
        mintargetregions: 10
        maxtargetregions: 2000
    mover:
      intervalms: 20
      bandwidth: 200",
        round.as_millis(),
        micros(1),
        micros(1_000),
        micros(5_000),
    )
}

/// The shell that has memtierd manage `$pid`, with nothing of its own at the addresses that identify the program's accesses.
pub(crate) fn start(configuration: &str, addresses: &Range<u64>) -> String {
    let (from, to) = (addresses.start, addresses.end);
    let configuration = configuration.trim_end();
    format!(
        "cat >/tmp/memtierd.yaml <<'END_OF_CONFIGURATION'\n{configuration}\nEND_OF_CONFIGURATION\n\
         memtierd_tiering $pid {from:012x} {to:012x} || exit 1\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sample_configuration_is_brought_to_the_guests_measure() {
        let has = |size: Bytes, lines: &[&str]| {
            let text = usual(Measure::of(size));
            for line in lines {
                assert!(text.lines().any(|given| given.trim() == *line), "{line}: {text}");
            }
        };
        has(Bytes::mib(64), &["intervalms: 195", "pids: [$pid]", "heatmax: 0.02000", "heatretention: 0.5978"]);
        has(Bytes::mib(64), &["samplingus: 1000", "aggregationus: 19531", "regionsupdateus: 97656"]);
        // At full size it is the sample itself.
        has(Bytes::gib(64), &["intervalms: 10000", "heatmax: 0.00100", "heatretention: 0.9900"]);
        has(Bytes::gib(64), &["samplingus: 1000", "aggregationus: 1000000"]);
    }

    #[test]
    fn a_configuration_that_was_asked_for_is_taken_as_it_is() {
        let measure = Measure::of(Bytes::mib(64));
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("own.yaml");
        let error = configuration(Some(&file), measure).unwrap_err().to_string();
        assert!(error.contains("own.yaml"), "{error}");
        std::fs::write(&file, "policy:\n  name: age\n").unwrap();
        let text = configuration(Some(&file), measure).unwrap();
        let shell = start(&text, &(0x1_0000..0x2_0000));
        assert!(shell.contains("memtierd_tiering $pid 000000010000 000000020000"), "{shell}");
        assert!(shell.contains("<<'END_OF_CONFIGURATION'\npolicy:\n  name: age\nEND_OF_CONFIGURATION\n"));
    }

    #[test]
    fn it_is_found_by_its_variable_or_on_the_path_and_else_said_how_to_build() {
        let folder = tempfile::tempdir().unwrap();
        let on_path = || Some(folder.path().as_os_str().to_owned());
        let error = find(None, on_path()).unwrap_err().to_string();
        assert!(error.contains("memtierd@v0.1.1") && error.lines().count() == 1, "{error}");
        let file = folder.path().join("memtierd");
        std::fs::write(&file, "").unwrap();
        assert_eq!(find(None, on_path()).unwrap(), file);
        assert_eq!(find(Some(OsString::new()), on_path()).unwrap(), file, "an empty variable names nothing");
        let error = find(Some(folder.path().join("other").into()), on_path()).unwrap_err().to_string();
        assert!(error.contains("MEMTIERD names") && error.contains("other"), "{error}");
    }
}
