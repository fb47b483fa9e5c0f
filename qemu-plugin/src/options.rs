//! The plugin's options on QEMU's command line: `-plugin FILE,key=value,...`.
//!
//! In: texts. Out: [`Options`]. Must not: open a file, or pass over a key it does not know.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;

use crate::memory::Layout;

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Options {
    /// `mode=record`: write every access of a program down.
    Record(RecordOptions),
    /// `mode=guest`: write every access of programs in a guest down.
    Guest(GuestOptions),
    /// `mode=tiers`: count the accesses of a guest by the tier that serves them.
    Tiers(TierOptions),
}

/// Recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RecordOptions {
    /// Where the recording goes: a file, or a pipe that someone reads.
    pub(crate) output: PathBuf,
    /// Bytes of a cache in front of the recorder, for each thread; 0 is none.
    pub(crate) cache_bytes: u64,
    /// Every how many-th access is written down.
    pub(crate) period: u64,
    /// A file that is there, to which the paths of programs go that the program starts.
    pub(crate) started: Option<PathBuf>,
}

/// Recording in a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GuestOptions {
    /// Where the recording goes.
    pub(crate) output: PathBuf,
    /// Bytes of a cache in front of the recorder, for each processor; 0 is none.
    pub(crate) cache_bytes: u64,
    /// Every how many-th access is written down.
    pub(crate) period: u64,
    /// Time of an instruction.
    pub(crate) instruction_nanos: u64,
    /// Who is recorded.
    pub(crate) programs: ProgramOptions,
}

/// Counting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TierOptions {
    /// Where the counts go.
    pub(crate) output: PathBuf,
    /// Bytes of the first node's memory: what lies above is slow.
    pub(crate) fast_bytes: u64,
    /// Virtual addresses that are counted.
    pub(crate) addresses: Range<u64>,
    /// Accesses between two lines of the output.
    pub(crate) every: u64,
    /// Bytes of the modelled cache.
    pub(crate) cache_bytes: u64,
    /// The modelled machine, of the presets.
    pub(crate) machine: String,
    /// Memory that the guest shares, for samples.
    pub(crate) samples: Option<PathBuf>,
    /// Only what these programs access counts, in a guest of one processor; without it whatever accesses the addresses.
    pub(crate) programs: Option<ProgramOptions>,
}

/// How programs of a guest are told from others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProgramOptions {
    /// The files that are the guest's memory, node by node.
    pub(crate) memory: Vec<PathBuf>,
    /// Values of `loginuid`.
    pub(crate) labels: Range<u64>,
    /// Where the guest's kernel keeps what.
    pub(crate) layout: Layout,
}

impl Options {
    /// Reads the arguments.
    ///
    /// # Errors
    /// With the argument that is wrong and what is expected.
    pub(crate) fn parse(arguments: &[String]) -> Result<Options, String> {
        let mut pairs = BTreeMap::new();
        for argument in arguments {
            let (key, value) = argument.split_once('=').ok_or_else(|| format!("{argument}: expected key=value"))?;
            pairs.insert(key, value);
        }
        let mode = pairs.remove("mode").ok_or("mode: expected mode=record, mode=guest or mode=tiers")?;
        let mut taken = Taken { pairs };
        let options = match mode {
            "record" => Options::Record(RecordOptions {
                output: taken.text("out")?.into(),
                cache_bytes: taken.number("cache", Some(0))?,
                period: taken.number("period", Some(1))?.max(1),
                started: taken.text("started").ok().map(PathBuf::from),
            }),
            "guest" => Options::Guest(GuestOptions {
                output: taken.text("out")?.into(),
                cache_bytes: taken.number("cache", Some(0))?,
                period: taken.number("period", Some(1))?.max(1),
                instruction_nanos: taken.number("instruction", None)?,
                programs: taken.programs()?,
            }),
            "tiers" => Options::Tiers(TierOptions {
                output: taken.text("out")?.into(),
                fast_bytes: taken.number("fast", None)?,
                addresses: taken.number("from", Some(0))?..taken.number("to", Some(1 << 47))?,
                every: taken.number("every", Some(1 << 20))?.max(1),
                cache_bytes: taken.number("cache", None)?,
                machine: taken.text("machine")?,
                samples: taken.text("samples").ok().map(PathBuf::from),
                programs: if taken.pairs.contains_key("memory0") { Some(taken.programs()?) } else { None },
            }),
            other => return Err(format!("mode={other}: expected record, guest or tiers")),
        };
        match taken.pairs.keys().next() {
            Some(key) => Err(format!("{key}: mode={mode} has no such argument")),
            None => Ok(options),
        }
    }
}

struct Taken<'a> {
    pairs: BTreeMap<&'a str, &'a str>,
}

impl Taken<'_> {
    fn text(&mut self, key: &str) -> Result<String, String> {
        self.pairs.remove(key).map(str::to_owned).ok_or_else(|| format!("{key}: is missing"))
    }

    fn programs(&mut self) -> Result<ProgramOptions, String> {
        Ok(ProgramOptions {
            memory: self.numbered("memory")?,
            labels: self.number("labels_from", None)?..self.number("labels_to", None)?,
            layout: Layout {
                task_flags: self.number("task_flags", None)?,
                task_mm: self.number("task_mm", None)?,
                task_pid: self.number("task_pid", None)?,
                task_tgid: self.number("task_tgid", None)?,
                task_comm: self.number("task_comm", None)?,
                task_loginuid: self.number("task_loginuid", None)?,
                mm_pgd: self.number("mm_pgd", None)?,
            },
        })
    }

    /// Paths key0, key1 and so on: one at least.
    fn numbered(&mut self, key: &str) -> Result<Vec<PathBuf>, String> {
        let mut paths = vec![PathBuf::from(self.text(&format!("{key}0"))?)];
        while let Ok(next) = self.text(&format!("{key}{}", paths.len())) {
            paths.push(next.into());
        }
        Ok(paths)
    }

    /// A number, decimal or 0x-hexadecimal.
    fn number(&mut self, key: &str, default: Option<u64>) -> Result<u64, String> {
        let Some(text) = self.pairs.remove(key) else {
            return default.ok_or_else(|| format!("{key}: is missing"));
        };
        let parsed = match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16),
            None => text.parse(),
        };
        parsed.map_err(|_| format!("{key}={text}: expected a number"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Options, String> {
        Options::parse(&text.split(',').map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn arguments_become_options() {
        let expected = RecordOptions { output: "/x".into(), cache_bytes: 4096, period: 1, started: Some("/y".into()) };
        assert_eq!(parse("mode=record,out=/x,cache=4096,started=/y").unwrap(), Options::Record(expected));
        match parse("mode=tiers,out=/x,fast=0x20000000,cache=1,machine=cxl-170,from=16,to=32").unwrap() {
            Options::Tiers(options) => {
                assert_eq!((options.fast_bytes, options.addresses, options.programs), (0x2000_0000, 16..32, None));
            }
            other => panic!("{other:?}"),
        }
        let offsets = "task_flags=1,task_mm=2,task_pid=3,task_tgid=4,task_comm=5,task_loginuid=6,mm_pgd=7";
        let text = format!("mode=guest,out=/x,memory0=/a,memory1=/b,instruction=8,labels_from=3,labels_to=5,{offsets}");
        match parse(&text).unwrap() {
            Options::Guest(options) => {
                let programs = options.programs;
                assert_eq!((programs.memory, programs.labels), (vec!["/a".into(), "/b".into()], 3..5));
                assert_eq!((programs.layout.task_loginuid, programs.layout.mm_pgd), (6, 7));
            }
            other => panic!("{other:?}"),
        }
        let tiers = "mode=tiers,out=/x,fast=1,cache=1,machine=cxl-170,memory0=/a,labels_from=3,labels_to=5";
        match parse(&format!("{tiers},{offsets}")).unwrap() {
            Options::Tiers(options) => assert_eq!(options.programs.map(|programs| programs.labels), Some(3..5)),
            other => panic!("{other:?}"),
        }
        assert!(parse(tiers).unwrap_err().contains("task_flags"));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, says) in [
            ("out=/x", "mode"),
            ("mode=count,out=/x", "mode=count"),
            ("mode=record", "out"),
            ("mode=record,out=/x,fast=1", "fast"),
            ("mode=record,out=/x,period=many", "period=many"),
            ("mode=record,/x", "key=value"),
            ("mode=guest,out=/x", "instruction"),
            ("mode=guest,out=/x,instruction=8", "memory0"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
