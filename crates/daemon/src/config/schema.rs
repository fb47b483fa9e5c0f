//! The keys of the configuration in one table. Defaults, `terrace config explain`, the default file and the check for unknown keys come
//! from it.
//!
//! In: the options of a run, which are keys of a class. Out: [`keys`]. Must not: read values; `reader` does.

use std::borrow::Cow;
use std::sync::LazyLock;

use terrace_linux::machine_programs::NEVER;
use terrace_run::spec::options::{OPTIONS, OptionInfo};

use super::node::Value;

/// Information about one key.
#[derive(Clone, Debug)]
pub struct KeyInfo {
    /// Its full name; `NAME` stands for the name of a class.
    pub key: Cow<'static, str>,
    /// The values it takes.
    pub takes: &'static str,
    /// Its default as TOML, empty if it has none.
    pub default: Cow<'static, str>,
    /// What it means.
    pub meaning: Cow<'static, str>,
    /// Whether a change needs a restart. All other changes take effect on reload.
    pub restart: bool,
}

const fn key(key: &'static str, takes: &'static str, default: &'static str, meaning: &'static str) -> KeyInfo {
    KeyInfo {
        key: Cow::Borrowed(key),
        takes,
        default: Cow::Borrowed(default),
        meaning: Cow::Borrowed(meaning),
        restart: false,
    }
}

const fn fixed(key: &'static str, takes: &'static str, default: &'static str, meaning: &'static str) -> KeyInfo {
    let mut info = self::key(key, takes, default, meaning);
    info.restart = true;
    info
}

/// The value of a list of selectors.
const SELECTORS: &str =
    "a list of selectors, such as [{ exe = \"/usr/bin/redis-*\" }, { cgroup = \"/batch\", user = \"jobs\" }]";

/// The value of a list of principals.
const PRINCIPALS: &str = "a list such as [\"user:alice\", \"group:ops\", \"token:/PATH\"]";

/// The key of a class for an option of a run.
fn of_option(info: &OptionInfo) -> KeyInfo {
    let meaning = match info.for_class {
        "" => Cow::Borrowed(info.meaning),
        more => Cow::Owned(format!("{} {more}", info.meaning)),
    };
    KeyInfo {
        key: Cow::Owned(format!("class.NAME.{}", info.key())),
        takes: info.takes,
        default: Cow::Owned(info.default_as_toml()),
        meaning,
        restart: false,
    }
}

/// All keys.
pub fn keys() -> &'static [KeyInfo] {
    static KEYS: LazyLock<Vec<KeyInfo>> = LazyLock::new(|| {
        let options = OPTIONS.iter().filter(|info| info.is_key()).map(of_option);
        let own = OF_THE_SERVICE.iter().cloned().map(|info| match info.key.as_ref() {
            NEVER_KEY => KeyInfo { default: Cow::Owned(names_as_toml(NEVER)), ..info },
            _ => info,
        });
        own.chain(options).collect()
    });
    &KEYS
}

/// The key whose default is a list that other commands use as well.
const NEVER_KEY: &str = "daemon.never";

fn names_as_toml(names: &[&str]) -> String {
    let names: Vec<String> = names.iter().map(|name| Value::Text((*name).to_owned()).to_string()).collect();
    format!("[{}]", names.join(", "))
}

/// The keys that are no options of a run.
const OF_THE_SERVICE: &[KeyInfo] = &[
    fixed(
        "daemon.socket",
        "a path",
        "\"/run/terrace/terrace.sock\"",
        "The control socket. It belongs to root and the group below.",
    ),
    fixed(
        "daemon.socket_mode",
        "a mode in octal digits",
        "\"660\"",
        "The mode of the control socket. Connecting needs write permission. Write 666 if access.* names users outside the group: the kernel identifies each peer, and a peer has only the rights given to it.",
    ),
    fixed(
        "daemon.group",
        "the name of a group",
        "\"terrace\"",
        "Members of this group have the right to read, on both sockets. If the group does not exist, this gives no rights.",
    ),
    key(
        "daemon.watchdog",
        "a time of 1s or more",
        "\"30s\"",
        "The daemon counts as hung if its loop has not turned for this long: /healthz answers 503, `terrace status` fails, and SIGTERM ends the daemon without waiting for the loop.",
    ),
    fixed(
        "daemon.events",
        "auto, netlink or poll",
        "\"auto\"",
        "How new processes are detected: at once through the kernel's process connector (netlink), or by reading /proc every `poll`. auto uses netlink where it is allowed.",
    ),
    key(
        "daemon.poll",
        "a time of 100ms or more",
        "\"2s\"",
        "How often all processes are scanned. With netlink the interval is ten times longer; it then catches changes that cause no event, such as a move to another cgroup.",
    ),
    key(
        "daemon.exclude",
        SELECTORS,
        "[]",
        "Processes that are never touched, even if a class matches them. Terrace itself and kernel threads are never touched.",
    ),
    key(
        NEVER_KEY,
        "a list of names, such as [\"systemd*\", \"sshd\"]",
        "",
        "Programs that a selector with all = true leaves alone, by the name of the command or of its executable; a star at the end stands for any rest. The first process, kernel threads, Terrace and what started it, what has locked all its memory and what runs in real time or by deadlines are left alone as well. A list replaces the default as a whole. A class that names a program by another part of a selector manages it all the same.",
    ),
    fixed(
        "memory.slow",
        "auto, node:1, zram:2GiB, swap:/dev/NAME or none",
        "\"auto\"",
        "Where cold pages go, as with `terrace run --tier-slow`. The daemon sets up zram:SIZE when it starts and removes it when it ends.",
    ),
    fixed(
        "memory.tiers",
        "none, or NAME=MEMORY for each tier, fastest first",
        "\"none\"",
        "Declares the tiers, such as \"dram=node:0 cxl=node:2-3\", instead of detecting them. Overrides memory.slow.",
    ),
    fixed(
        "memory.swap_in",
        "off, or 16KiB to 1MiB",
        "\"off\"",
        "Pages come back from compressed swap in folios of this size, as with `terrace run --swap-in`. The daemon writes the kernel's setting when it starts and puts the old value back when it ends.",
    ),
    fixed(
        "memory.tracker",
        "auto, or a name from `terrace doctor`",
        "\"auto\"",
        "How accesses are observed. Each class has its own tracker.",
    ),
    key(
        "budget.fast",
        "all, a share (50%) or an amount (8GiB)",
        "\"all\"",
        "Fast memory that all classes together may use. all is what they hold already plus what is available, less the reserve.",
    ),
    key(
        "budget.reserve",
        "a share or an amount",
        "\"5%\"",
        "Fast memory that `all` leaves free for the rest of the machine.",
    ),
    key(
        "budget.bandwidth",
        "auto, or bytes per second",
        "\"auto\"",
        "Bytes per second that may change tier, over all classes. auto is 256MiB to and from compressed swap, 1GiB between nodes.",
    ),
    key(
        "budget.cpu",
        "a share of one core",
        "\"2%\"",
        "Mean processor time that Terrace itself may use, over all classes: scans, decisions and moves.",
    ),
    key(
        "budget.cpu_burst",
        "a time",
        "\"60s\"",
        "How long unused processor time is saved up. With 2% of a core, 60s allow 1.2 s of work at once.",
    ),
    key("budget.period", "a time of 200ms or more", "\"1s\"", "How often the budgets are divided among the classes."),
    key(
        "access.read",
        PRINCIPALS,
        "[]",
        "Who may see everything, besides root and daemon.group: status, history, heat maps, why a page is where it is. All others see aggregate metrics only.",
    ),
    key("access.operate", PRINCIPALS, "[]", "Who may also pause, resume, drain and wake."),
    key("access.admin", PRINCIPALS, "[]", "Who may also reload and set, as root may."),
    fixed(
        "metrics.listen",
        "ADDRESS:PORT, unix:/PATH or off",
        "\"127.0.0.1:9464\"",
        "Where /metrics, /api/v1 and the web interface are served. A peer over TCP cannot be identified: without a token it sees only aggregate metrics and /healthz. An address that other machines can reach needs metrics.token, metrics.certificate and metrics.key.",
    ),
    fixed(
        "metrics.socket_mode",
        "a mode in octal digits",
        "\"600\"",
        "The mode of the socket of metrics.listen = \"unix:/PATH\", as in chmod(1). Connecting needs write permission. The socket belongs to the daemon's user and daemon.group; a peer has the same rights as on the control socket.",
    ),
    fixed(
        "metrics.token",
        "none, or the path of a file",
        "\"none\"",
        "A file that others may not read, with a token of 32 characters or more. The token gives the right to read. If it is set, a peer over TCP without a token sees only whether the daemon is alive. Clients send it as a bearer token, or as the password of any user. A reload reads the file again; another path needs a restart.",
    ),
    fixed(
        "metrics.certificate",
        "none, or the path of a file",
        "\"none\"",
        "The certificate of the address, followed by its chain (PEM). With it /metrics, /api/v1 and the web interface are served over TLS 1.3, for the names of the certificate and for addresses. A reload reads the file again; another path needs a restart.",
    ),
    fixed(
        "metrics.key",
        "none, or the path of a file",
        "\"none\"",
        "The private key of that certificate (PEM), in a file that others may not read. A reload reads the file again; another path needs a restart.",
    ),
    fixed(
        "metrics.survey",
        "true or false",
        "false",
        "Whether the rest of the machine is looked at as well, as by `terrace survey`: how much each cgroup holds idle, and what managing it would give back, as terrace_survey_*. It takes up to a hundredth of a core beside budget.cpu, and moves nothing. The paths of cgroups are labels then, for all who may see metrics; programs are not named.",
    ),
    key(
        "class.NAME.match",
        SELECTORS,
        "",
        "The processes of the class: those that match at least one selector. All parts of a selector must match.",
    ),
    key(
        "class.NAME.order",
        "a whole number",
        "100",
        "A process that matches several classes belongs to the one with the lowest order; with equal order, to the first by name.",
    ),
    key(
        "class.NAME.floor",
        "a share of its footprint, or an amount",
        "\"0\"",
        "Fast memory that the class always keeps, whatever other classes need.",
    ),
    key(
        "class.NAME.ceiling",
        "none, or an amount",
        "\"none\"",
        "Fast memory that the class never exceeds by promotion.",
    ),
    key("class.NAME.weight", "1 to 10000", "100", "Weight of the class when budgets are divided."),
];

/// Removed keys, and what replaces them.
pub const REMOVED: &[(&str, &str)] = &[
    ("sizing.machine", BY_OBSERVATION),
    ("sizing.database", BY_OBSERVATION),
    ("metrics.otlp", BY_SCRAPING),
    ("metrics.otlp_interval", BY_SCRAPING),
];

const BY_OBSERVATION: &str = "the key was removed: classes with goal \"tuned\" are tuned by observation, without a database or a modelled \
    machine, and need no other key in its place; delete the line. `terrace size query` asks a database";

const BY_SCRAPING: &str = "the key was removed: delete the line, and let the collector scrape /metrics at metrics.listen with its \
    prometheus receiver";

/// The parts of a selector: name, value, meaning.
pub const SELECTOR_KEYS: &[(&str, &str, &str)] = &[
    ("pid", "a number", "This process, while it runs."),
    ("name", "a pattern", "The command's name (/proc/PID/comm, cut to 15 bytes by the kernel)."),
    ("exe", "a pattern", "The path of the executable."),
    ("user", "a name or number", "The user it runs as."),
    ("cgroup", "a pattern", "Its cgroup or an ancestor of it. * stays within one part of the path, ** does not."),
    ("container", "any, or the beginning of an ID", "The container that its cgroup names."),
    ("guest", "true or false", "Whether it is a virtual machine: QEMU, or another process that has /dev/kvm open."),
    (
        "all",
        "true",
        "Every process that no other selector matches, but for what daemon.never names, and what holds the machine up in other ways.",
    ),
    ("children", "true or false", "Whether processes that it starts belong to the class as well."),
];

/// Information about a key as written, such as `class.web.floor`.
pub fn find(key: &str) -> Option<&'static KeyInfo> {
    let mut parts: Vec<&str> = key.split('.').collect();
    if parts.len() == 3 && parts[0] == "class" {
        parts[1] = "NAME";
    }
    let general = parts.join(".");
    keys().iter().find(|info| info.key == general)
}

/// The keys as a table of docs/reference/daemon.md.
pub fn reference_table() -> String {
    let mut text = "| key | takes | default | meaning |\n|---|---|---|---|\n".to_owned();
    for KeyInfo { key, takes, default, meaning, restart } in keys() {
        let default = if default.is_empty() { "must be given".to_owned() } else { format!("`{default}`") };
        let restart = if *restart { " *Restart.*" } else { "" };
        text += &format!("| `{key}` | {takes} | {default} | {meaning}{restart} |\n");
    }
    text
}
