//! The configuration: what is accepted, and that everything else is refused with file, line and key.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use proptest::prelude::*;
use terrace_core::units::{Bytes, Quantity};
use terrace_daemon::config::{self, Config, ConfigErrors, FastBudget, Listen, Source, schema};
use terrace_linux::machine_programs::Never;
use terrace_run::spec::Goal;

fn of(texts: &[(&str, &str)]) -> Result<Config, ConfigErrors> {
    let sources: Vec<Source> =
        texts.iter().map(|(name, text)| Source { name: (*name).to_owned(), text: (*text).to_owned() }).collect();
    Config::of(&sources)
}

fn refused(text: &str) -> String {
    of(&[("terrace.toml", text)]).unwrap_err().to_string()
}

const TWO: &str = r#"
[budget]
fast = "8GiB"
cpu = "1%"

[class.web]
match = [{ exe = "/usr/sbin/nginx" }, { cgroup = "/system.slice/web*.service", user = "root", children = true }]
goal = "best"
floor = "256MiB"
weight = 300

[class.batch]
match = [{ cgroup = "/batch" }]
policy = "age"
set = { idle = "20s", adaptive = false }
ceiling = "2GiB"
order = 50
"#;

#[test]
fn a_configuration_is_read_whole() {
    let config = of(&[("terrace.toml", TWO)]).unwrap();
    assert_eq!(config.fast, FastBudget::Quantity(Quantity::Bytes(Bytes::gib(8))));
    assert_eq!((config.cpu, config.period), (0.01, Duration::from_secs(1)));
    assert_eq!(config.listen, Listen::Tcp("127.0.0.1:9464".parse().unwrap()));
    let names: Vec<&str> = config.classes.iter().map(|class| class.name.as_str()).collect();
    assert_eq!(names, ["batch", "web"], "by order, not by place");
    let (batch, web) = (&config.classes[0], &config.classes[1]);
    assert_eq!((web.spec.goal, web.floor, web.weight), (Goal::Best, Quantity::Bytes(Bytes::mib(256)), 300));
    assert_eq!((web.selectors.len(), web.selectors[1].children), (2, true));
    assert_eq!((batch.spec.goal, batch.ceiling, batch.weight), (Goal::Least, Some(Bytes::gib(2)), 100));
    assert_eq!(batch.spec.settings.get("idle").map(String::as_str), Some("20s"));
    assert!(of(&[]).unwrap().classes.is_empty(), "nothing written is everything by default");
}

#[test]
fn everything_is_a_class_but_for_what_is_never_touched() {
    let config = of(&[("terrace.toml", "[class.rest]\nmatch = [{ all = true }]\n")]).unwrap();
    assert!(config.classes[0].selectors[0].all);
    assert_eq!(config.never, Never::default());
    let config = of(&[("terrace.toml", "[daemon]\nnever = [\"vault*\", \"db\"]\n")]).unwrap();
    assert_eq!(config.never.names(), ["vault*", "db"]);
    let shown = config::show(&config::merged(&[]).unwrap());
    assert!(shown.contains("never = [\"systemd*\"") && shown.contains("\"kubelet\""), "{shown}");
    for (text, says) in [
        ("[class.rest]\nmatch = [{ al = true }]\n", "did you mean all?"),
        ("[class.rest]\nmatch = [{ all = false }]\n", "names no process"),
        ("[class.rest]\nmatch = [{ all = \"yes\" }]\n", "neither true nor false"),
        ("[daemon]\nnever = [\"/usr/bin/x\"]\n", "is a path"),
        ("[daemon]\nnever = [\"*\"]\n", "leaves every process alone"),
        ("[daemon]\nnever = [7]\n", "expected a list of names"),
        ("[daemon]\nnever = \"sshd\"\n", "expected a list of names"),
        ("[daemon]\nnevr = []\n", "did you mean never?"),
    ] {
        let told = refused(text);
        assert!(told.contains(says) && told.starts_with("terrace.toml:2: "), "{text}: {told}");
    }
}

#[test]
fn other_machines_are_served_where_a_token_and_tls_guard_it() {
    let text = "[metrics]\nlisten = \"0.0.0.0:9464\"\ntoken = \"/a\"\ncertificate = \"/b\"\nkey = \"/c\"\n";
    let config = of(&[("terrace.toml", text)]).unwrap();
    assert_eq!(config.listen, Listen::Tcp("0.0.0.0:9464".parse().unwrap()));
    assert_eq!(config.access.key.as_deref(), Some(std::path::Path::new("/c")));
}

#[test]
fn what_needs_a_restart_keeps_its_value_and_goes_on_needing_one() {
    let before = of(&[("terrace.toml", "")]).unwrap();
    let text = "[daemon]\nsocket = \"/a\"\nsocket_mode = \"666\"\ngroup = \"b\"\nevents = \"poll\"\n\
                [memory]\nslow = \"zram:1GiB\"\nswap_in = \"64KiB\"\ntiers = \"dram=node:0 cxl=node:1\"\ntracker = \"damon\"\n\
                [metrics]\nlisten = \"off\"\nsocket_mode = \"660\"\ntoken = \"/t\"\ncertificate = \"/c\"\nkey = \"/k\"\n\
                survey = true\n[budget]\ncpu = \"7%\"\n";
    let wanted = match of(&[("terrace.toml", text)]) {
        Ok(wanted) => wanted,
        Err(errors) => panic!("{errors}"),
    };
    let keys: Vec<&str> = schema::keys().iter().filter(|info| info.restart).map(|info| info.key.as_ref()).collect();
    assert_eq!(before.needs_restart(&wanted), keys, "left: what is compared; right: the keys that say so");
    let taken = wanted.until_restart(&before).unwrap();
    assert_eq!(before.needs_restart(&taken), <[&str; 0]>::default(), "the old values are in force");
    assert_eq!(taken.cpu, 0.07, "all else is new");
    assert_eq!(taken.needs_restart(&wanted), keys, "and the next reload says it again");
}

#[test]
fn drop_ins_win_key_by_key() {
    let later = "[class.web]\nweight = 7\n[daemon]\npoll = \"5s\"\n";
    let config = of(&[("terrace.toml", TWO), ("conf.d/50-more.toml", later)]).unwrap();
    let web = config.classes.iter().find(|class| class.name == "web").unwrap();
    assert_eq!((web.weight, web.spec.goal, config.poll), (7, Goal::Best, Duration::from_secs(5)));
}

#[test]
fn files_are_read_in_the_order_of_their_names() {
    let place = tempfile::tempdir().unwrap();
    let main = place.path().join("terrace.toml");
    assert!(Config::load(&main).unwrap_err().to_string().contains("terrace.toml:1: the file could not be read"));
    std::fs::write(&main, "[budget]\ncpu = \"1%\"\n").unwrap();
    std::fs::create_dir(place.path().join("conf.d")).unwrap();
    std::fs::write(place.path().join("conf.d/20.toml"), "budget.cpu = \"3%\"\n").unwrap();
    std::fs::write(place.path().join("conf.d/10.toml"), "budget.cpu = \"2%\"\n").unwrap();
    std::fs::write(place.path().join("conf.d/90.toml.old"), "no toml at all [").unwrap();
    assert_eq!(Config::load(&main).unwrap().cpu, 0.03);
}

#[test]
fn every_mistake_is_told_with_file_line_and_key() {
    let check = |text: &str, wanted: &[&str]| {
        let told = refused(text);
        for part in wanted {
            assert!(told.contains(part), "{text:?} gives {told:?}, without {part:?}");
        }
    };
    check(
        "[budget]\n\ncpu = \"lots\"\n",
        &["terrace.toml:3: budget.cpu: \"lots\" is not a share", "expected a share of one core"],
    );
    check("[budget]\ncpu = 2\n", &["terrace.toml:2: budget.cpu: 2 is a number, not a text"]);
    check(
        "[budget]\nbandwith = \"1GiB\"\n",
        &["terrace.toml:2: budget.bandwith: unknown key; did you mean bandwidth?"],
    );
    check("[budgets]\ncpu = \"2%\"\n", &["terrace.toml:1: budgets: unknown key; did you mean budget?"]);
    check("x = [\n", &["terrace.toml:1: invalid TOML"]);
    check("[class.web]\nweight = 1\n", &["terrace.toml:1: class.web: it matches no process"]);
    check("[class.Web]\n", &["terrace.toml:1: class.Web", "label of metrics"]);
    check(
        "[class.a]\nmatch = [{ pid = 1 }]\nweight = 0\n",
        &["terrace.toml:3: class.a.weight: 0 is not a whole number from 1 to 10000"],
    );
    check(
        "[class.a]\nmatch = [{ pid = 1 }]\ncooldown = \"11min\"\n",
        &["terrace.toml:3: class.a.cooldown: \"11min\": expected 10min or less"],
    );
    check(
        "[class.a]\nmatch = [\n  { pid = 1 },\n  { exee = \"x\" },\n]\n",
        &["terrace.toml:4: class.a.match[1].exee", "did you mean exe?"],
    );
    check(
        "[class.a]\nmatch = [{ pid = 1 }]\npolicy = \"agee\"\n",
        &["terrace.toml:3: class.a.policy: there is no policy \"agee\"", "flexhm"],
    );
    check(
        "[class.a]\nmatch = [{ pid = 1 }]\npolicy = \"tpp\"\n",
        &["terrace.toml:3: class.a.policy", "which work live"],
    );
    check(
        "[class.a]\nmatch = [{ pid = 1 }]\n[class.a.set]\nidle = \"never\"\n",
        &["terrace.toml:4: class.a.set.idle: \"never\": expected a duration"],
    );
    check(
        "[class.a]\nmatch = [{ pid = 1 }]\nset = { idel = \"1s\" }\n",
        &["terrace.toml:3: class.a.set.idel: policy age has no setting \"idel\"; it has"],
    );
    check(
        "[class.a]\nmatch = [{ pid = 1 }]\nfloor = \"2GiB\"\nceiling = \"1GiB\"\n",
        &["terrace.toml:4: class.a.ceiling", "below the class's floor"],
    );
    check(
        "[class.a]\nmatch = [{ pid = 1 }]\npolicy = \"flexhm\"\ngoal = \"tuned\"\n",
        &["terrace.toml:4: class.a.goal", "this class has policy flexhm"],
    );
    check(
        "[class.a]\nmatch = [{ pid = 1 }]\nfile_cache = \"senpai\"\n",
        &["terrace.toml:3: class.a.file_cache", "belongs to cgroups"],
    );
    check(
        "[class.a]\nmatch = [{ pid = 1 }]\nmax_slowdown = \"0%\"\n",
        &["terrace.toml:3: class.a.max_slowdown", "more than 0%"],
    );
    check("[class.a]\nmatch = [{ pid = 1 }]\ntracker = \"eye\"\n", &["class.a.tracker: unknown tracker \"eye\""]);
    check(
        "[sizing]\nmachine = \"optane-6252\"\ndatabase = \"/d\"\n",
        &[
            "terrace.toml:2: sizing.machine: the key was removed: classes with goal \"tuned\" are tuned by observation",
            "terrace.toml:3: sizing.database: the key was removed",
            "delete the line",
        ],
    );
    check("[sizing]\nmachin = \"x\"\n", &["terrace.toml:2: sizing.machin: unknown key"]);
    check(
        "[metrics]\nlisten = \"0.0.0.0:9464\"\n",
        &[
            "terrace.toml:2: metrics.listen",
            "from other machines: set metrics.token, metrics.certificate and metrics.key",
        ],
    );
    check(
        "[metrics]\nlisten = \"[::]:9464\"\ntoken = \"/x\"\n",
        &["terrace.toml:2: metrics.listen", "from other machines"],
    );
    check("[metrics]\ncertificate = \"/x\"\n", &["terrace.toml:2: metrics.certificate", "needs metrics.key as well"]);
    check("[metrics]\ntoken = \"secret\"\n", &["terrace.toml:2: metrics.token", "absolute path"]);
    check(
        "[metrics]\notlp = \"http://a\"\notlp_interval = \"9s\"\n",
        &[
            "terrace.toml:2: metrics.otlp: the key was removed",
            "scrape /metrics at metrics.listen",
            "terrace.toml:3: metrics.otlp_interval: the key was removed",
        ],
    );
    check("[memory]\ntracker = \"eyes\"\n", &["terrace.toml:2: memory.tracker: unknown tracker \"eyes\""]);
    check("[memory]\ntiers = \"slow=zram:1GiB\"\n", &["terrace.toml:2: memory.tiers", "must be of nodes"]);
    let both = refused("[budget]\ncpu = \"x\"\nperiod = \"1ms\"\n");
    assert_eq!(both.lines().count(), 2, "all mistakes at once: {both}");
    let two_files = of(&[("a.toml", "x = ["), ("b.toml", "y = [")]).unwrap_err().to_string();
    assert!(two_files.contains("a.toml:") && two_files.contains("b.toml:"), "{two_files}");
}

#[test]
fn nothing_nests_deep_enough_to_do_harm() {
    for text in
        ["[".repeat(100_000), "x = ".to_owned() + &"[".repeat(100_000), "x = ".to_owned() + &"{a=".repeat(50_000)]
    {
        assert!(of(&[("deep.toml", &text)]).is_err());
    }
    let dotted = vec!["a"; 50_000].join(".") + " = 1";
    assert!(of(&[("deep.toml", &dotted)]).is_err());
}

#[test]
fn the_default_file_says_the_defaults_and_show_says_what_is_in_force() {
    let text = config::default_file();
    assert_eq!(of(&[("default", &text)]).unwrap(), of(&[]).unwrap());
    // Its class is a comment; it must be valid too.
    let uncommented: String = text
        .lines()
        .map(|line| format!("{}\n", line.strip_prefix('#').filter(|rest| !rest.starts_with(' ')).unwrap_or(line)))
        .collect();
    let used = of(&[("default", &uncommented)]).unwrap_or_else(|error| panic!("{error}\n{uncommented}"));
    assert_eq!(used.classes.len(), 1);
    let sources = [Source { name: "terrace.toml".to_owned(), text: TWO.to_owned() }];
    let shown = config::show(&config::merged(&sources).unwrap());
    assert!(shown.contains("cpu = \"1%\"  # terrace.toml:4") && shown.contains("poll = \"2s\"  # default"), "{shown}");
    assert_eq!(
        of(&[("shown", &shown)]).unwrap(),
        of(&[("terrace.toml", TWO)]).unwrap(),
        "what is shown is what is in force"
    );
}

#[test]
fn every_key_is_explained_and_every_default_is_one() {
    for info in schema::keys() {
        let told = config::explain(&info.key.replace("NAME", "web")).unwrap();
        assert!(told.contains(info.meaning.split(' ').next().unwrap()) && told.contains(info.takes), "{told}");
    }
    assert!(config::explain("budget.cpus").is_none() && config::similar("budget.cpus").contains("budget.cpu?"));
    assert!(config::similar("weight").contains("class.NAME.weight"));
}

/// Nearly valid configurations: a good one, broken in a few places.
fn malformed() -> impl Strategy<Value = String> {
    let junk = prop_oneof![
        Just("[".to_owned()),
        Just("\"".to_owned()),
        Just("= =".to_owned()),
        Just("\n".to_owned()),
        Just("[class.x]\n".to_owned()),
        Just("weight = -1\n".to_owned()),
        Just("99999999999999999999".to_owned()),
        Just("1e999".to_owned()),
        Just("\u{0}\u{fffd}é".to_owned()),
        Just("[[class.web]]\n".to_owned()),
        Just("match = 3\n".to_owned()),
        Just("a.b.c.d = {}\n".to_owned()),
        "[ -~\n]{0,12}",
        any::<String>(),
    ];
    proptest::collection::vec((0usize..400, 0usize..20, junk), 1..5).prop_map(|edits| {
        let mut text: Vec<char> = TWO.chars().collect();
        for (at, cut, junk) in edits {
            let at = at.min(text.len());
            let end = (at + cut).min(text.len());
            text.splice(at..end, junk.chars());
        }
        text.into_iter().collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    /// Ten thousand malformed configurations. Each is either accepted as a whole, or every problem names the file, an existing line, and
    /// the fault.
    #[test]
    fn ten_thousand_malformed_configurations_are_refused_with_reasons(text in malformed()) {
        match of(&[("broken.toml", &text)]) {
            Ok(config) => prop_assert!(config.cpu > 0.0 && config.cpu <= 1.0 && config.classes.iter().all(|class| class.weight >= 1)),
            Err(ConfigErrors(problems)) => {
                prop_assert!(!problems.is_empty());
                let lines = text.lines().count().max(1) + 1;
                for problem in problems {
                    let place = problem.place.clone().expect("every complaint has its place");
                    prop_assert!(&*place.file == "broken.toml" && (1..=lines).contains(&place.line), "{}", problem);
                    prop_assert!(!problem.problem.is_empty());
                }
            }
        }
    }
}
