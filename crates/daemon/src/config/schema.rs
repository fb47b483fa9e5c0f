//! The keys of the configuration: one table, from which come the defaults, `terrace config explain`, the default file, and the
//! check for keys that do not exist.
//!
//! In: nothing. Out: [`KEYS`]. Must not: read values; `reader` does.

/// What is known of one key.
#[derive(Clone, Copy, Debug)]
pub struct KeyInfo {
    /// Its full name; `NAME` stands for the name of a class.
    pub key: &'static str,
    /// What it takes.
    pub takes: &'static str,
    /// Its default as TOML, empty if it has none.
    pub default: &'static str,
    /// What it means.
    pub meaning: &'static str,
    /// Whether a change needs a restart; all else takes effect on reload.
    pub restart: bool,
}

const fn key(key: &'static str, takes: &'static str, default: &'static str, meaning: &'static str) -> KeyInfo {
    KeyInfo { key, takes, default, meaning, restart: false }
}

const fn fixed(key: &'static str, takes: &'static str, default: &'static str, meaning: &'static str) -> KeyInfo {
    KeyInfo { key, takes, default, meaning, restart: true }
}

/// What a list of selectors takes.
const SELECTORS: &str =
    "a list of selectors, such as [{ exe = \"/usr/bin/redis-*\" }, { cgroup = \"/batch\", user = \"jobs\" }]";

/// What a list of those with a right takes.
const PRINCIPALS: &str = "a list such as [\"user:alice\", \"group:ops\", \"token:/PATH\"]";

/// Every key there is.
pub const KEYS: &[KeyInfo] = &[
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
        "The mode of the control socket: who may not write to it cannot connect. Write 666 if access.* names users beyond the group; whoever connects is known by the kernel's word and has no right that is not given.",
    ),
    fixed(
        "daemon.group",
        "the name of a group",
        "\"terrace\"",
        "Members of it have the right to read, on both sockets. If there is no such group, nobody has it by this.",
    ),
    key(
        "daemon.watchdog",
        "a time of 1s or more",
        "\"30s\"",
        "When the daemon's loop has not turned for this long it counts as hung: /healthz answers 503, `terrace status` fails, and SIGTERM ends the daemon without waiting for the loop.",
    ),
    fixed(
        "daemon.events",
        "auto, netlink or poll",
        "\"auto\"",
        "How new processes are noticed: at once through the kernel's process connector (netlink), or by looking at /proc every `poll`. auto takes the first where it is allowed.",
    ),
    key(
        "daemon.poll",
        "a time of 100ms or more",
        "\"2s\"",
        "How often all processes are looked through. With netlink it is done ten times more seldom, to catch what an event does not tell, such as a move to another cgroup.",
    ),
    key(
        "daemon.exclude",
        SELECTORS,
        "[]",
        "Processes that are never touched, whatever class they match. Terrace itself and the kernel's threads are never touched in any case.",
    ),
    fixed(
        "memory.slow",
        "auto, node:1, zram:2GiB, swap:/dev/NAME or none",
        "\"auto\"",
        "Where cold pages go, as with `terrace run --tier-slow`. zram:SIZE is set up by the daemon and taken away when it ends.",
    ),
    fixed(
        "memory.tiers",
        "none, or NAME=MEMORY for each tier, fastest first",
        "\"none\"",
        "The tiers as you declare them, such as \"dram=node:0 cxl=node:2-3\", in place of what is found out; it overrides memory.slow.",
    ),
    fixed(
        "memory.tracker",
        "auto, or a name from `terrace doctor`",
        "\"auto\"",
        "How accesses are seen. Each class has its own.",
    ),
    key(
        "budget.fast",
        "all, a share (50%) or an amount (8GiB)",
        "\"all\"",
        "Fast memory that all classes together may take. all is what the machine can spare: what they hold already plus what is available, less the reserve.",
    ),
    key(
        "budget.reserve",
        "a share or an amount",
        "\"5%\"",
        "Fast memory that `all` leaves free for the rest of the machine.",
    ),
    key(
        "budget.bandwidth",
        "auto, or bytes a second",
        "\"auto\"",
        "Bytes that may change tier a second, over all classes. auto is 256MiB to and from compressed swap, 1GiB between nodes.",
    ),
    key(
        "budget.cpu",
        "a share of one core",
        "\"2%\"",
        "Processor time Terrace may use itself, over all classes, as a mean: walks, decisions and moves.",
    ),
    key(
        "budget.cpu_burst",
        "a time",
        "\"60s\"",
        "For how long unused processor time is saved up: with 2% of a core, 60s make 1.2 s of work that may be done at once.",
    ),
    key("budget.period", "a time of 200ms or more", "\"1s\"", "How often the budgets are shared out anew."),
    key(
        "access.read",
        PRINCIPALS,
        "[]",
        "Who may see everything beside root and daemon.group: status, history, heat maps, why a page is where it is. Everybody else sees aggregate metrics only.",
    ),
    key("access.operate", PRINCIPALS, "[]", "Who may pause, resume and drain as well."),
    key("access.admin", PRINCIPALS, "[]", "Who may reload and set as well, as root may."),
    fixed(
        "metrics.listen",
        "ADDRESS:PORT, unix:/PATH or off",
        "\"127.0.0.1:9464\"",
        "Where /metrics, /api/v1 and the page are served. Over TCP nobody can prove who asks: without a token there are aggregate metrics and /healthz only. An address that other machines can reach is taken only with metrics.token, metrics.certificate and metrics.key.",
    ),
    fixed(
        "metrics.socket_mode",
        "a mode in octal digits",
        "\"600\"",
        "The mode of the socket that metrics.listen = \"unix:/PATH\" makes, as chmod takes it: who may not open it for writing may not ask. It belongs to the daemon's user and daemon.group; whoever connects has the same rights as on the control socket.",
    ),
    fixed(
        "metrics.token",
        "none, or the path of a file",
        "\"none\"",
        "A file that others may not read, with a token of 32 characters or more. It gives the right to read; with it set, whoever asks over TCP without a token learns only whether the daemon lives. It is given as a bearer token, or as the password of any user. A reload reads the file anew; another path takes a restart.",
    ),
    fixed(
        "metrics.certificate",
        "none, or the path of a file",
        "\"none\"",
        "The certificate of the address, and those that vouch for it (PEM): with it /metrics, /api/v1 and the page are served over TLS 1.3, for the names that it is for and for addresses. A reload reads the file anew; another path takes a restart.",
    ),
    fixed(
        "metrics.key",
        "none, or the path of a file",
        "\"none\"",
        "The private key of that certificate (PEM), in a file that others may not read. A reload reads the file anew; another path takes a restart.",
    ),
    key(
        "class.NAME.match",
        SELECTORS,
        "",
        "Which processes belong to the class: those that one of the selectors matches. All parts of one selector must match.",
    ),
    key(
        "class.NAME.order",
        "a whole number",
        "100",
        "A process that several classes match belongs to the one with the lowest order; of equals, to the first by name.",
    ),
    key("class.NAME.policy", "a name from `terrace policies`", "\"age\"", "Which policy decides."),
    key(
        "class.NAME.set",
        "a table of settings",
        "{}",
        "Settings of the policy, as `--set` takes them, such as { idle = \"20s\" }.",
    ),
    key(
        "class.NAME.goal",
        "least, tuned, best, never-slow, never-fast, a share (50%) or an amount (2GiB)",
        "\"least\"",
        "What is wanted: as little fast memory as the class can do with; the least at which it is slower by max_slowdown at most (policy age), which a tuner finds and keeps to, as `terrace size tune` does; as much as it can use; never a page in slow memory; never one in fast memory; or so much fast memory and no more.",
    ),
    key(
        "class.NAME.floor",
        "a share of its footprint, or an amount",
        "\"0\"",
        "Fast memory that it keeps, whatever the others need.",
    ),
    key(
        "class.NAME.tracker",
        "auto, or a name from `terrace doctor`",
        "\"auto\"",
        "How the class's accesses are seen. auto is what memory.tracker says; for a class that begins with a KVM guest it is walker, damon or idle-pages, which see what a guest uses.",
    ),
    key("class.NAME.ceiling", "none, or an amount", "\"none\"", "Fast memory that it never exceeds by promotion."),
    key("class.NAME.weight", "1 to 10000", "100", "How much it counts where budgets are shared."),
    key(
        "class.NAME.max_slowdown",
        "a share above 0%",
        "\"2%\"",
        "Share of its time that it may lose to pages that come back, to moves and to being watched, before page-outs stop; with goal tuned, how much slower than with everything fast it may be.",
    ),
    key(
        "class.NAME.max_overhead",
        "a share above 0%",
        "\"1%\"",
        "Share of its processor time that watching it may cost, and half of max_slowdown at most. Walks become rarer and smaller to keep to it.",
    ),
    key(
        "class.NAME.cooldown",
        "usual, or a time up to 10min",
        "\"usual\"",
        "How long a page stays where it is after a move; four times longer each time it comes straight back. usual is 10s with swap, else 1s.",
    ),
    key("class.NAME.files", "true or false", "false", "Private file mappings are managed as well."),
    key("class.NAME.shared", "true or false", "false", "Shared memory is managed as well."),
    key(
        "class.NAME.proof",
        "off, or a time of 10s or more",
        "\"off\"",
        "Proof mode: for so long the class is managed, for so long it is left alone, in turns. The difference is measured, and management stops by itself when it harms.",
    ),
];

/// Keys that there were, and what takes their place.
pub const REMOVED: &[(&str, &str)] = &[("sizing.machine", BY_OBSERVATION), ("sizing.database", BY_OBSERVATION)];

const BY_OBSERVATION: &str = "the key was removed: classes with goal \"tuned\" are tuned by what is observed, without a database or a modelled \
    machine, and need no other key in its place; delete the line. `terrace size query` asks a database";

/// The parts of a selector: name, what it takes, meaning.
pub const SELECTOR_KEYS: &[(&str, &str, &str)] = &[
    ("pid", "a number", "This process, for as long as it runs."),
    ("name", "a pattern", "The command's name (/proc/PID/comm, cut to 15 bytes by the kernel)."),
    ("exe", "a pattern", "The path of the executable."),
    ("user", "a name or number", "The user it runs as."),
    (
        "cgroup",
        "a pattern",
        "Its cgroup, or one that its cgroup lies in. * stays within one part of the path, ** does not.",
    ),
    ("container", "any, or the beginning of an identity", "The container its cgroup names."),
    ("guest", "true or false", "Whether it is a virtual machine: QEMU, or another that holds /dev/kvm."),
    ("children", "true or false", "With true, what it starts belongs to the class as well."),
];

/// What is known of a key as it was written, such as `class.web.floor`.
pub fn find(key: &str) -> Option<&'static KeyInfo> {
    let mut parts: Vec<&str> = key.split('.').collect();
    if parts.len() == 3 && parts[0] == "class" {
        parts[1] = "NAME";
    }
    let general = parts.join(".");
    KEYS.iter().find(|info| info.key == general)
}

/// The known name nearest to a wrong one, if one is near enough to be what was meant.
pub fn nearest<'a>(wrong: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    /// A text that is much longer than any name is none that was meant, and comparing it would take long.
    const LONGEST: usize = 64;
    if wrong.len() > LONGEST {
        return None;
    }
    known
        .map(|name| (strsim::levenshtein(wrong, name), name))
        .filter(|(far, name)| *far <= name.len().div_ceil(3))
        .min()
        .map(|(_, name)| name)
}

/// The keys as a table of docs/reference/daemon.md.
pub fn reference_table() -> String {
    let mut text = "| key | takes | default | meaning |\n|---|---|---|---|\n".to_owned();
    for KeyInfo { key, takes, default, meaning, restart } in KEYS {
        let default = if default.is_empty() { "must be given".to_owned() } else { format!("`{default}`") };
        let restart = if *restart { " *Restart.*" } else { "" };
        text += &format!("| `{key}` | {takes} | {default} | {meaning}{restart} |\n");
    }
    text
}
