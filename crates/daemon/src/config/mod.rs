//! The configuration: /etc/terrace/terrace.toml and the drop-ins beside it.
//!
//! In: files. Out: a [`Config`] whose values were all checked, or all problems with file, line and key. Must not: read anything but the
//! files and the machine's users, or return a partial configuration.
//!
//! A drop-in is a file of `conf.d` next to the main file whose name ends in `.toml`. Drop-ins are read in the order of their names, and
//! later values win, key by key. `terrace set` adds one more layer above all files, in the daemon's memory only.

pub mod node;
mod reader;
pub mod schema;
pub mod selector;
mod show;

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use terrace_core::arbiter::Claim;
use terrace_core::units::{Bytes, Quantity};
use terrace_linux::machine_programs::Never;
use terrace_linux::swap_in::FolioSize;
use terrace_linux::topology::declared::{DeclaredTier, SlowTier, TierMemory, parse_declared};
use terrace_run::spec::value::ValueError;
use terrace_run::spec::{FileCacheChoice, Goal, RunSpec, options, with_value};

use self::node::{Place, Table};
use self::reader::Reader;
pub use self::selector::Selector;
pub use self::show::{default_file, explain, show, similar};
use crate::access::AccessConfig;
use crate::rights::Grants;

/// The default path of the configuration.
pub const DEFAULT_PATH: &str = terrace_run::CONFIGURATION;

/// The address of a Unix socket holds 107 bytes (unix(7)).
const NO_SOCKET_PATH: &str = " is not an absolute path of at most 107 bytes";

/// One problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// Its place.
    pub place: Option<Place>,
    /// The key; empty if the text is not valid TOML.
    pub key: String,
    /// What is wrong, and what was expected.
    pub problem: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(place) = &self.place {
            write!(out, "{place}: ")?;
        }
        if !self.key.is_empty() {
            write!(out, "{}: ", self.key)?;
        }
        write!(out, "{}", self.problem)
    }
}

impl ConfigError {
    /// A problem of a file as a whole, or of its text at a line.
    pub(crate) fn of_file(file: impl Into<Arc<str>>, line: usize, problem: impl Into<String>) -> ConfigError {
        let place = Some(Place { file: file.into(), line });
        ConfigError { place, key: String::new(), problem: problem.into() }
    }
}

/// All problems. Nothing of the configuration took effect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
pub struct ConfigErrors(pub Vec<ConfigError>);

/// A configuration text and its name in messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Its name: a path, or a label for a text that is no file.
    pub name: String,
    /// The TOML.
    pub text: String,
}

/// How new processes are detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Events {
    /// Netlink where it is allowed, else polling.
    Auto,
    /// The kernel's process connector; an error where it is not allowed.
    Netlink,
    /// Polling.
    Poll,
}

/// Where metrics are served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// Nowhere.
    Off,
    /// A loopback address.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

/// Fast memory for all classes together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FastBudget {
    /// As much as the machine can spare.
    All,
    /// An amount.
    Quantity(Quantity),
}

/// One class of workloads.
#[derive(Clone, Debug, PartialEq)]
pub struct Class {
    /// Its name.
    pub name: String,
    /// Processes that belong to it: any selector may match.
    pub selectors: Vec<Selector>,
    /// Where several classes match a process, the lowest order wins.
    pub order: i64,
    /// How its processes are watched, and how their pages move.
    pub spec: RunSpec,
    /// Fast memory that it keeps: an amount, or a share of its footprint.
    pub floor: Quantity,
    /// Fast memory that it never exceeds.
    pub ceiling: Option<Bytes>,
    /// Its weight when budgets are shared.
    pub weight: u32,
}

/// The whole configuration, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The control socket.
    pub socket: PathBuf,
    /// Its mode.
    pub mode: u32,
    /// The group whose members may read.
    pub group: String,
    /// The daemon counts as hung if its loop has not turned for this long.
    pub watchdog: Duration,
    /// How new processes are detected.
    pub events: Events,
    /// How often all processes are scanned when polling.
    pub poll: Duration,
    /// Processes that are never touched.
    pub exclude: Vec<Selector>,
    /// What a selector of everything leaves alone.
    pub never: Never,
    /// Where cold pages go.
    pub slow: SlowTier,
    /// The size of folios in which pages come back from swap; `None` for the kernel's setting as it is.
    pub swap_in: Option<FolioSize>,
    /// The declared tiers, overriding `slow`.
    pub tiers: Option<Vec<DeclaredTier>>,
    /// The tracker, `None` for auto.
    pub tracker: Option<String>,
    /// Fast memory for all classes.
    pub fast: FastBudget,
    /// Fast memory left to the rest of the machine.
    pub reserve: Quantity,
    /// Bytes per second that may change tier, `None` for auto.
    pub bandwidth: Option<Bytes>,
    /// Share of one core for Terrace itself.
    pub cpu: f64,
    /// How long unused processor time is saved up.
    pub cpu_burst: Duration,
    /// How often budgets are shared out.
    pub period: Duration,
    /// Where metrics are served.
    pub listen: Listen,
    /// The mode of that socket, if it is a Unix socket.
    pub socket_mode: u32,
    /// Whether the rest of the machine is surveyed, for metrics.
    pub survey: bool,
    /// Who has which right, there and on the control socket.
    pub access: AccessConfig,
    /// The classes, in the order in which processes are assigned.
    pub classes: Vec<Class>,
    /// The sources of all values; a reload compares them.
    tree: ReadFrom,
}

/// The sources of a configuration. Formatting and position of a value are not part of a comparison.
#[derive(Clone, Debug, Default)]
struct ReadFrom(Table);

impl PartialEq for ReadFrom {
    fn eq(&self, _: &ReadFrom) -> bool {
        true
    }
}

/// The longest configuration file, in bytes: 64 classes with long lists of selectors take about 100 KiB.
const LONGEST: u64 = 1 << 20;
/// The most files of `conf.d`: far more than anyone reads.
const DROP_INS: usize = 256;

/// Reads the main file and its drop-ins.
///
/// # Errors
/// A file cannot be read, is not a regular file, is longer than 1 MiB, or the main file is empty. A missing main file counts as empty only
/// where `may_lack` is set.
pub fn read_files(path: &Path, may_lack: bool) -> Result<Vec<Source>, ConfigErrors> {
    let unreadable = |path: &Path, error: std::io::Error| {
        let problem = format!("the file could not be read: {error}");
        ConfigErrors(vec![ConfigError::of_file(path.display().to_string(), 1, problem)])
    };
    let mut sources = Vec::new();
    match terrace_files::read_to_string(path, LONGEST) {
        // An interrupted write leaves an empty file. Read as a configuration, it would stop all management.
        Ok(text) if text.trim().is_empty() => {
            let why = "it is empty; to use the defaults, write a comment into it";
            return Err(unreadable(path, std::io::Error::other(why)));
        }
        Ok(text) => sources.push(Source { name: path.display().to_string(), text }),
        Err(error) if may_lack && error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(unreadable(path, error)),
    }
    let directory = path.with_file_name("conf.d");
    let mut names: Vec<PathBuf> = match std::fs::read_dir(&directory) {
        Ok(entries) => entries.flatten().map(|entry| entry.path()).collect(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(unreadable(&directory, error)),
    };
    names.retain(|name| name.extension().is_some_and(|ending| ending == "toml"));
    names.sort();
    if names.len() > DROP_INS {
        let error = std::io::Error::other(format!("{} files end in .toml; {DROP_INS} at most", names.len()));
        return Err(unreadable(&directory, error));
    }
    for name in names {
        let text = terrace_files::read_to_string(&name, LONGEST).map_err(|error| unreadable(&name, error))?;
        sources.push(Source { name: name.display().to_string(), text });
    }
    Ok(sources)
}

/// Rejects a file that had content before and is now empty, as a torn write leaves it.
///
/// # Errors
/// Names each file that is now empty.
pub fn check_not_emptied(before: &[Source], now: &[Source]) -> Result<(), ConfigErrors> {
    let empty = |source: &Source| source.text.trim().is_empty();
    let emptied =
        now.iter().filter(|source| empty(source) && before.iter().any(|old| old.name == source.name && !empty(old)));
    let why = "the file is empty and was not before, as after a write that broke off; if nothing is meant to be configured, \
               write a comment into it, or remove a drop-in";
    let error = |source: &Source| ConfigError::of_file(source.name.as_str(), 1, why);
    let errors: Vec<ConfigError> = emptied.map(error).collect();
    if errors.is_empty() { Ok(()) } else { Err(ConfigErrors(errors)) }
}

/// Merges all sources into one tree, later ones over earlier ones.
///
/// # Errors
/// A source is not valid TOML.
pub fn merged(sources: &[Source]) -> Result<Table, ConfigErrors> {
    let mut tree = Table::new();
    let mut problems = Vec::new();
    for source in sources {
        match node::parse(&source.name, &source.text) {
            Ok(table) => node::merge(&mut tree, table),
            Err(error) => problems.push(error),
        }
    }
    if problems.is_empty() { Ok(tree) } else { Err(ConfigErrors(problems)) }
}

impl Config {
    /// Checks all values and builds a configuration.
    ///
    /// # Errors
    /// All problems, in the order of the files.
    pub fn of(sources: &[Source]) -> Result<Config, ConfigErrors> {
        Config::of_tree(merged(sources)?)
    }

    fn of_tree(tree: Table) -> Result<Config, ConfigErrors> {
        let mut reader = Reader::new(&tree);
        let config = Config::take(&mut reader);
        let problems = reader.finish();
        if problems.is_empty() { Ok(Config { tree: ReadFrom(tree), ..config }) } else { Err(ConfigErrors(problems)) }
    }

    /// Reads the files and checks them.
    ///
    /// # Errors
    /// See [`read_files`] and [`Config::of`].
    pub fn load(path: &Path) -> Result<Config, ConfigErrors> {
        Config::of(&read_files(path, false)?)
    }

    fn take(reader: &mut Reader<'_>) -> Config {
        let absolute = |text: &str| match Path::new(text) {
            path if path.is_absolute() && text.len() < 108 => Ok(path.to_owned()),
            _ => Err(ValueError::text(text, NO_SOCKET_PATH)),
        };
        let known_events = |text: &str| match text {
            "auto" => Ok(Events::Auto),
            "netlink" => Ok(Events::Netlink),
            "poll" => Ok(Events::Poll),
            other => Err(ValueError::text(other, " is not a way to detect processes")),
        };
        let mut access = access(reader);
        let listen = listen(reader, &access);
        let group = reader.text("daemon.group", |text| match text.is_empty() {
            true => Err(ValueError::Lacks("the name is empty")),
            false => Ok(text.to_owned()),
        });
        access.group = Some(group.clone());
        Config {
            socket: reader.text("daemon.socket", absolute),
            mode: reader.text("daemon.socket_mode", socket_mode_of),
            group,
            watchdog: reader.duration("daemon.watchdog", Duration::from_secs(1)),
            events: reader.text("daemon.events", known_events),
            poll: reader.duration("daemon.poll", Duration::from_millis(100)),
            exclude: reader.selectors("daemon.exclude"),
            never: reader.never("daemon.never"),
            slow: reader.text("memory.slow", |text| Ok(text.parse()?)),
            tiers: reader.text("memory.tiers", tiers),
            swap_in: reader.text("memory.swap_in", options::swap_in),
            tracker: reader.text("memory.tracker", options::tracker),
            fast: reader.text("budget.fast", |text| match text {
                "all" => Ok(FastBudget::All),
                other => {
                    options::amount_to_run_in(other, "all, a share (50%) or an amount (8GiB)").map(FastBudget::Quantity)
                }
            }),
            reserve: reader.quantity("budget.reserve"),
            bandwidth: reader.text("budget.bandwidth", options::rate),
            cpu: reader.text("budget.cpu", |text| options::share(text, "Terrace itself needs some")),
            cpu_burst: reader.duration("budget.cpu_burst", Duration::ZERO),
            period: reader.duration("budget.period", Duration::from_millis(200)),
            listen,
            socket_mode: reader.text("metrics.socket_mode", socket_mode_of),
            survey: reader.flag("metrics.survey"),
            access,
            classes: Config::classes(reader),
            tree: ReadFrom::default(),
        }
    }

    fn classes(reader: &mut Reader<'_>) -> Vec<Class> {
        let names = reader.classes();
        let mut classes: Vec<Class> = names.into_iter().map(|name| class(reader, name)).collect();
        /// Each class has its own engine and tracker, so the number of classes is limited.
        const MOST: usize = 64;
        if classes.len() > MOST {
            reader.complain("class", format!("{} classes; {MOST} at most", classes.len()));
        }
        // The names are sorted already, and the sort is stable.
        classes.sort_by_key(|class| class.order);
        classes
    }

    /// Whether a selector selects or excludes by cgroup or container.
    pub fn asks_for_cgroups(&self) -> bool {
        let selectors = self.classes.iter().flat_map(|class| &class.selectors).chain(&self.exclude);
        selectors.into_iter().any(Selector::asks_for_cgroups)
    }

    /// Checks the paths of the sockets, as a starting daemon would.
    ///
    /// # Errors
    /// Every path where something other than a socket exists: the daemon would not start.
    pub fn check_sockets(&self) -> Result<(), ConfigErrors> {
        let control = ("daemon.socket", Some(&self.socket));
        let metrics = match &self.listen {
            Listen::Unix(path) => ("metrics.listen", Some(path)),
            _ => ("metrics.listen", None),
        };
        let look = |(key, path): (&str, Option<&PathBuf>)| {
            let path = path?;
            match terrace_files::socket_is_there(path) {
                // A socket's directory that this user may not search says nothing about the configuration.
                Err(error) if error.kind() != std::io::ErrorKind::PermissionDenied => {
                    let problem = format!("{}: {error}", path.display());
                    Some(ConfigError { place: None, key: key.to_owned(), problem })
                }
                _ => None,
            }
        };
        let problems: Vec<ConfigError> = [control, metrics].into_iter().filter_map(look).collect();
        if problems.is_empty() { Ok(()) } else { Err(ConfigErrors(problems)) }
    }

    /// The keys that differ and whose change needs a restart ([`schema::KeyInfo::restart`]).
    pub fn needs_restart(&self, new: &Config) -> Vec<&'static str> {
        let text = |config: &Config, info: &schema::KeyInfo| {
            node::get(&config.tree.0, &info.key).map_or_else(|| info.default.to_string(), |node| node.value.to_string())
        };
        let changed = schema::keys().iter().filter(|info| info.restart && text(self, info) != text(new, info));
        changed.map(|info| info.key.as_ref()).collect()
    }

    /// Keeps the values in force for keys that need a restart, so that the next reload reports them again.
    ///
    /// # Errors
    /// The values in force contradict the new ones.
    pub fn until_restart(&self, in_force: &Config) -> Result<Config, ConfigErrors> {
        let mut tree = self.tree.0.clone();
        for info in schema::keys().iter().filter(|info| info.restart) {
            node::put(&mut tree, &info.key, node::get(&in_force.tree.0, &info.key).cloned());
        }
        Config::of_tree(tree)
    }
}

impl Class {
    /// Whether a tuner chooses its size.
    pub fn is_tuned(&self) -> bool {
        self.spec.goal == Goal::Tuned
    }

    /// The cgroup that it is, if it is a whole one.
    pub fn whole_cgroup(&self) -> Option<&str> {
        match self.selectors.as_slice() {
            [selector] => selector.whole_cgroup(),
            _ => None,
        }
    }
}

fn class(reader: &mut Reader<'_>, name: String) -> Class {
    let key = |part: &str| format!("class.{name}.{part}");
    let before = reader.problems.len();
    let selectors = reader.selectors(&key("match"));
    if selectors.is_empty() && reader.problems.len() == before {
        reader.complain(
            &format!("class.{name}"),
            "it matches no process; write match = [{ exe = \"/usr/bin/x*\" }] or the like",
        );
    }
    let spec = reader.spec(&name);
    let floor = reader.quantity(&key("floor"));
    let ceiling = reader.text(&key("ceiling"), |text| match text {
        "none" => Ok(None),
        other => Ok(Some(other.parse()?)),
    });
    if let (Quantity::Bytes(floor), Some(ceiling)) = (floor, ceiling)
        && floor > ceiling
    {
        reader.complain(&key("ceiling"), format!("{ceiling} is below the class's floor of {floor}"));
    }
    let class = Class {
        selectors,
        order: reader.integer(&key("order"), i64::MIN..=i64::MAX),
        spec,
        floor,
        ceiling,
        weight: reader.integer(&key("weight"), 1..=i64::from(Claim::MAX_WEIGHT)) as u32,
        name,
    };
    if let (FileCacheChoice::By(rule), None) = (class.spec.file_cache, class.whole_cgroup()) {
        let why = "file cache belongs to cgroups, not to processes; write match = [{ cgroup = \"/PATH\" }] with one cgroup and nothing else, or auto";
        reader.complain(&format!("class.{}.file_cache", class.name), with_value(why, rule.name()));
    }
    class
}

fn tiers(text: &str) -> Result<Option<Vec<DeclaredTier>>, ValueError> {
    if text == "none" {
        return Ok(None);
    }
    let tiers = parse_declared(text)?;
    match tiers.first() {
        None => Err(ValueError::Lacks("no tier is declared")),
        Some(first) if !matches!(first.memory, TierMemory::Nodes(_)) => Err(ValueError::FirstTier(first.name.clone())),
        Some(_) => Ok(Some(tiers)),
    }
}

/// The files that protect the metrics, and who has which right.
fn access(reader: &mut Reader<'_>) -> AccessConfig {
    let mut path = |key: &str| {
        reader.text(key, |text| match text {
            "none" => Ok(None),
            path if Path::new(path).is_absolute() => Ok(Some(PathBuf::from(path))),
            other => Err(ValueError::text(other, " is neither none nor an absolute path")),
        })
    };
    let (token, certificate, key) = (path("metrics.token"), path("metrics.certificate"), path("metrics.key"));
    let grants = Grants {
        read: reader.principals("access.read"),
        operate: reader.principals("access.operate"),
        admin: reader.principals("access.admin"),
    };
    let access = AccessConfig { token, certificate, key, group: None, grants };
    match (&access.certificate, &access.key) {
        (Some(_), None) => reader.complain("metrics.certificate", "it needs metrics.key as well"),
        (None, Some(_)) => reader.complain("metrics.key", "it needs metrics.certificate as well"),
        _ => {}
    }
    access
}

fn listen(reader: &mut Reader<'_>, access: &AccessConfig) -> Listen {
    let guarded = access.token.is_some() && access.certificate.is_some() && access.key.is_some();
    reader.text("metrics.listen", |text| listen_of(text, guarded))
}

/// Three octal digits, as in chmod(1).
fn socket_mode_of(text: &str) -> Result<u32, ValueError> {
    match u32::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o777 && text.bytes().all(|byte| byte.is_ascii_digit()) => Ok(mode),
        _ => Err(ValueError::text(text, " is not a file mode in octal digits, such as 600")),
    }
}

fn listen_of(text: &str, guarded: bool) -> Result<Listen, ValueError> {
    if text == "off" {
        return Ok(Listen::Off);
    }
    if let Some(path) = text.strip_prefix("unix:") {
        return match Path::new(path) {
            path if path.is_absolute() && path.as_os_str().len() < 108 => Ok(Listen::Unix(path.to_owned())),
            _ => Err(ValueError::text(path, NO_SOCKET_PATH)),
        };
    }
    match text.parse::<SocketAddr>() {
        Ok(address) if address.ip().is_loopback() || guarded => Ok(Listen::Tcp(address)),
        Ok(address) => Err(ValueError::Exposed(address)),
        Err(_) => Err(ValueError::text(text, " is not an address with a port")),
    }
}
