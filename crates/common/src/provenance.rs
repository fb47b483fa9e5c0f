//! What made a result: put into every JSON object and every row of a table, so that two results can be told apart and repeated.
//!
//! In: what ran. Out: [`Provenance`], whose keys docs/reference/sim.md lists under "provenance". Must not: replace what a result says of
//! itself, or run anything.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::io::Read;
use std::path::Path;

use serde_json::Value;
use sha2::{Digest, Sha256};

/// Version of the form of results; it grows by one when a key changes its meaning or goes away.
pub const SCHEMA_VERSION: u32 = 1;
/// Terrace's version.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The commit it was built from, or `unknown`.
pub const COMMIT: &str = env!("TERRACE_COMMIT");

/// Why a result could not be given what made it.
#[derive(Debug, thiserror::Error)]
pub enum StampError {
    /// It could not be turned into JSON.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// What is no JSON object has no place for it.
    #[error("a result is a JSON object")]
    NoObject,
}

/// See the module's header. `None` and empty: it does not apply, or there are several; [`Provenance::of`] makes one with the rest.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct Provenance {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// [`VERSION`].
    pub version: &'static str,
    /// [`COMMIT`].
    pub commit: &'static str,
    /// As a shell takes it.
    pub command: String,
    /// Its name.
    pub machine: Option<String>,
    /// SHA-256 of the machine's description.
    pub machine_hash: Option<String>,
    /// The program.
    pub workload: Option<String>,
    /// Options of the workload, as given.
    pub workload_settings: BTreeMap<String, String>,
    /// SHA-256 of the trace.
    pub trace_hash: Option<String>,
    /// Footprint on the scaled machine.
    pub size_bytes: Option<u64>,
    /// Amount of work, as given.
    pub operations: Option<u64>,
    /// The policy.
    pub policy: Option<String>,
    /// Every setting of every policy that ran, by POLICY.KEY.
    pub settings: BTreeMap<String, String>,
    /// Seed of everything random.
    pub seed: Option<u64>,
    /// Factor between the modelled machine and the full size.
    pub scale: Option<u32>,
    /// Threads of the program.
    pub threads: Option<usize>,
    /// How memory was mapped.
    pub pages: Option<String>,
}

impl Provenance {
    /// That of this process, of which no more is known than its command line.
    pub fn here() -> Provenance {
        let words = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
        Provenance::of(&command(words))
    }

    /// That of a command.
    pub fn of(command: &str) -> Provenance {
        Provenance {
            schema_version: SCHEMA_VERSION,
            version: VERSION,
            commit: COMMIT,
            command: command.to_owned(),
            ..Provenance::default()
        }
    }

    /// On this machine, which is described by its processor, memory and kernel.
    pub fn on_this_machine(mut self) -> Provenance {
        let description = this_machine();
        self.machine_hash = Some(text_hash(&description));
        self.machine = Some(description);
        self
    }

    /// Of a program with its arguments.
    pub fn running(mut self, program: &[std::ffi::OsString]) -> Provenance {
        let words: Vec<String> = program.iter().map(|word| quoted(&word.to_string_lossy())).collect();
        self.workload = (!words.is_empty()).then(|| words.join(" "));
        self
    }

    /// Under a policy; what was not given has its default.
    pub fn under(mut self, policy: &str, given: &BTreeMap<String, String>) -> Provenance {
        self.policy = Some(policy.to_owned());
        self.settings = settings(policy, given);
        self
    }

    /// A result with what made it. Keys that the result has itself stay as they are.
    ///
    /// # Errors
    /// When the result is no object.
    pub fn stamp(&self, result: &impl serde::Serialize) -> Result<Value, StampError> {
        let mut result = serde_json::to_value(result)?;
        let object = result.as_object_mut().ok_or(StampError::NoObject)?;
        if let Value::Object(own) = serde_json::to_value(self)? {
            for (key, value) in own {
                object.entry(key).or_insert(value);
            }
        }
        Ok(result)
    }
}

/// Every setting of a policy with its value, by POLICY.KEY.
pub fn settings(policy: &str, given: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let info = terrace_policies::POLICIES.iter().find(|info| info.name == policy);
    let defaults = info.map_or(&[][..], |info| info.settings).iter();
    let mut all: BTreeMap<String, String> =
        defaults.map(|setting| (format!("{policy}.{}", setting.key), setting.default.to_owned())).collect();
    all.extend(given.iter().map(|(key, value)| (format!("{policy}.{key}"), value.clone())));
    all
}

/// SHA-256 of a text.
pub fn text_hash(text: &str) -> String {
    hex(&Sha256::digest(text.as_bytes()))
}

/// SHA-256 of a file.
///
/// # Errors
/// When it cannot be read.
pub fn file_hash(path: &Path) -> std::io::Result<String> {
    let (mut file, _) = terrace_files::open(path)?;
    let (mut hash, mut block) = (Sha256::new(), vec![0; 1 << 20]);
    loop {
        match file.read(&mut block)? {
            0 => return Ok(hex(&hash.finalize())),
            count => hash.update(&block[..count]),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writing to a string does not fail");
        text
    })
}

/// Processor, cores, memory and kernel, as the kernel tells them.
fn this_machine() -> String {
    let field = |file: &str, name: &str| {
        let text = std::fs::read_to_string(file).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.trim_start().strip_prefix(':'))?;
        Some(line.trim().to_owned())
    };
    let processor = field("/proc/cpuinfo", "model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned());
    let memory = field("/proc/meminfo", "MemTotal").unwrap_or_else(|| "unknown memory".to_owned());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let kernel = rustix::system::uname();
    format!("{processor}, {cores} processors, {memory}, Linux {}", kernel.release().to_string_lossy())
}

/// A command of Terrace, as a shell takes it.
pub fn command(words: impl IntoIterator<Item = String>) -> String {
    words.into_iter().fold("terrace".to_owned(), |text, word| text + " " + &quoted(&word))
}

/// A word as a shell takes it.
pub fn quoted(word: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "_./:=,%+@-".contains(letter);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

/// The words of a command as a shell parts them: blanks, quotes and backslashes. `None` where a quote is not closed.
pub fn words(command: &str) -> Option<Vec<String>> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    let mut letters = command.chars();
    while let Some(letter) = letters.next() {
        match (letter, quote) {
            (_, Some(open)) if letter == open => quote = None,
            ('\\', None | Some('"')) => word.get_or_insert_default().push(letters.next()?),
            (_, Some(_)) => word.get_or_insert_default().push(letter),
            ('\'' | '"', None) => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            (_, None) if letter.is_whitespace() => words.extend(word.take()),
            (_, None) => word.get_or_insert_default().push(letter),
        }
    }
    words.extend(word);
    quote.is_none().then_some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_comes_back_from_its_text() {
        let all = ["sim", "run", "--set", "a=b c", "it's", "", "\"x\"", "back\\slash", "ü;$(x)"].map(str::to_owned);
        let text = command(all.clone());
        assert_eq!(words(&text).unwrap()[1..], all, "{text}");
        assert_eq!(words("a \"b \\\" c\"  d\\ e").unwrap(), ["a", "b \" c", "d e"]);
        assert_eq!((words("open 'quote"), words("end\\")), (None, None));
    }

    #[test]
    fn what_a_result_says_itself_stays_and_the_rest_is_added() {
        let given = BTreeMap::from([("beta".to_owned(), "0.4".to_owned())]);
        let made = Provenance::of("terrace sim run").under("flexmem", &given);
        let value = made.stamp(&serde_json::json!({ "policy": "own", "seed": 7 })).unwrap();
        assert_eq!((&value["policy"], &value["seed"]), (&Value::from("own"), &Value::from(7)));
        assert_eq!(value["settings"]["flexmem.beta"], "0.4");
        assert!(value["settings"].as_object().unwrap().len() > 3, "defaults are there too: {value}");
        assert!(made.stamp(&[1, 2]).is_err());
    }

    #[test]
    fn this_machine_is_described() {
        assert!(this_machine().contains("Linux"));
    }
}
