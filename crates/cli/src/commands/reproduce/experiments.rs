//! The papers' experiments as declarations: workload, size, fast memory, machine, policies, and the quantity asked for.
//!
//! In: nothing. Out: rows. Must not: hold a value that a paper does not state, or a constant chosen to meet one. The values
//! come from a reading of the papers that marks each by where it was found; none that was only recalled is among them.

use std::fmt;

use terrace_core::units::Bytes;

/// Fast memory of an experiment, at full size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Fast {
    /// A share of the footprint.
    Share(f64),
    /// Decimal gigabytes, as papers state them.
    Gigabytes(f64),
}

/// Where an experiment takes place, at full size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Setting {
    pub workload: &'static str,
    pub gigabytes: f64,
    pub fast: Fast,
    pub threads: usize,
    pub machine: &'static str,
    /// Transparent huge pages.
    pub huge: bool,
    pub options: &'static [(&'static str, &'static str)],
    /// Operations at full size where the paper states them; otherwise the workload's own number.
    pub operations: Option<u64>,
    /// The modelled MMU, for papers on address translation; the operations above are then those of the scaled machine.
    pub mmu: Option<MmuSetting>,
}

/// What the MMU of an experiment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MmuSetting {
    /// Cycles for every first-level miss.
    pub miss_cycles: u32,
}

impl Setting {
    pub(super) fn size(&self) -> Bytes {
        Bytes::new((self.gigabytes * 1e9) as u64)
    }
}

/// One run.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Case {
    pub setting: Setting,
    pub policy: &'static str,
    pub settings: Vec<(&'static str, &'static str)>,
    /// Whether it is also compared with everything fast.
    pub bounds: bool,
}

impl Case {
    /// The policy and its settings.
    pub(super) fn short(&self) -> String {
        let settings: String = self.settings.iter().map(|(key, value)| format!(" {key}={value}")).collect();
        format!("{}{settings}", self.policy)
    }
}

impl fmt::Display for Case {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let setting = &self.setting;
        let options: String = setting.options.iter().map(|(key, value)| format!(" {key}={value}")).collect();
        let fast = match setting.fast {
            Fast::Share(share) => format!("{:.1}%", share * 100.0),
            Fast::Gigabytes(amount) => format!("{amount} GB"),
        };
        let mmu = match setting.mmu {
            None => String::new(),
            Some(MmuSetting { miss_cycles: 0 }) => ", MMU".to_owned(),
            Some(MmuSetting { miss_cycles }) => format!(", MMU with {miss_cycles} cycles a miss"),
        };
        write!(
            out,
            "{}{options} {} GB, {fast} fast, {} threads, {}{mmu}, {}, {}{}",
            setting.workload,
            setting.gigabytes,
            setting.threads,
            if setting.huge { "huge pages" } else { "4 KiB pages" },
            setting.machine,
            self.short(),
            if self.bounds { ", and all fast" } else { "" }
        )
    }
}

/// What is computed of a row's runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Quantity {
    /// Pairs: how much faster the first is than the second, geometric mean, as a share.
    Gain,
    /// The same, as a factor.
    Factor,
    /// Failed over successful promotions, mean of the runs.
    FailureRatio,
    /// Share of memory accesses that fast memory serves, mean of the runs.
    FastShare,
    /// Pairs: that share of the firsts over that of the seconds, less one.
    FastShareGain,
    /// Accesses to fast over accesses to slow memory.
    FastSlowRatio,
    /// The same as [`Quantity::Factor`], where the paper states a range, which may be open above.
    FactorIn(f64, f64),
    /// Speed over that with everything fast.
    PartOfAllFast,
    /// The same, where the paper states a range.
    PartOfAllFastIn(f64, f64),
    /// Pairs: bytes migrated by the firsts over those by the seconds, less one.
    Volume,
    /// Pairs: who is ahead; the paper has the first ahead in so many, and the second in the rest.
    Winners {
        /// Pairs in which the paper has the first ahead.
        first: usize,
    },
    /// Which run is the fastest.
    Fastest {
        /// The one that the paper has as the fastest.
        expected: usize,
    },
    /// Pairs: cycles an instruction of the second over those of the first, in the measured part of the program.
    RelativeCpi,
    /// Page walks over accesses of the first core, in the measured part.
    WalkShare,
    /// Work imbalance: the most accesses of a core over the mean, less one, in the measured part.
    Imbalance,
    /// Pairs: what the second takes more than the first, in the measured part.
    Overhead,
    /// Runs on more and more cores: how much faster than the first, and the work imbalance, in the measured part.
    Cores,
    /// Of the hottest tenth of address ranges, the share that is not among the hottest tenth a row of the heat map later.
    Drift,
    /// Pairs along growing fast memory: whether the gain is smaller at the end than at the beginning.
    Shrinks,
    /// Pairs: the largest factor of any of them.
    Best,
    /// Pairs: failed promotions of the firsts over those of the seconds, less one.
    Failures,
    /// Median over the later two thirds of a run of a figure that the policy shows of its inside.
    Median(&'static str),
    /// Lowest and highest value of such a figure over the run.
    Swing(&'static str),
    /// Pairs: whether the mean of such a figure is larger for every first.
    Larger(&'static str),
    /// The most that management of one kind took of one processor in any of the runs.
    ProcessorShare(&'static str),
    /// What management took of the processor time of all threads, mean of the runs.
    ManagementShare,
    /// Pages at or above the hot threshold over fast memory, median over the later two thirds of each run, mean of the runs.
    HotSet,
    /// Bytes of metadata a page, the most of any of the runs.
    Metadata,
}

/// One figure of a paper.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub id: &'static str,
    pub quantity: String,
    pub paper: String,
    pub source: &'static str,
    /// The paper's number, in the unit of the kind; `None` where it states an order only.
    pub value: Option<f64>,
    pub kind: Quantity,
    pub cases: Vec<Case>,
}

/// What those papers report and this does not compute yet, and why.
pub(super) const NOT_BUILT: &[(&str, &str)] = &[
    ("FM.fig4.begin", "not built: it follows single pages through bins, which a run does not record"),
    ("FM.g500.pp", "not built: demotions that are undone within two intervals are not counted apart"),
    ("MM.loc", "not built: a property of the paper's code"),
    ("FH.fig7.lat", "not built: latencies of requests over a network, which is not modelled"),
    (
        "FH.cost",
        "not built: prices, not a run; half of the memory at 1 / 2.25 of the price saves 27.8 %, the paper says 28 %",
    ),
    ("FH.scan", "not built: the model's cost of a walk is taken from it"),
    (
        "FH.mmwaste",
        "not built: arithmetic, not a run; 12 x 64 GB of DRAM over 12 x 512 GB hide 11.1 % of the sum, the paper says over 10 %",
    ),
];

fn case(setting: Setting, policy: &'static str) -> Case {
    Case { setting, policy, settings: Vec::new(), bounds: false }
}

fn with(setting: Setting, policy: &'static str, key: &'static str, value: &'static str) -> Case {
    Case { settings: vec![(key, value)], ..case(setting, policy) }
}

/// Pairs of one policy over another in each setting.
fn pairs(settings: &[Setting], of: &'static str, over: &'static str) -> Vec<Case> {
    settings.iter().flat_map(|setting| [case(*setting, of), case(*setting, over)]).collect()
}

/// All rows, paper by paper.
pub(super) fn rows() -> Vec<Row> {
    let mut rows = flexmem();
    rows.extend(tieredmms());
    rows.extend(flexhm());
    rows.extend(hotness_walk());
    rows
}

/// FlexMem's machine and setting: 24 threads, huge pages, 30 GB of fast memory (section 8).
fn of_flexmem(workload: &'static str, gigabytes: f64) -> Setting {
    let fast = Fast::Gigabytes(30.0);
    Setting {
        workload,
        gigabytes,
        fast,
        threads: 24,
        machine: "optane-6252",
        huge: true,
        options: &[],
        operations: None,
        mmu: None,
    }
}

fn flexmem() -> Vec<Row> {
    const FIGURE_6: &str = "FlexMem (ATC'24) figure 6";
    let ft = of_flexmem("npb-ft", 80.4);
    let lu = of_flexmem("npb-lu", 134.0);
    let sp = of_flexmem("npb-sp", 80.0);
    let graph500 = of_flexmem("graph500", 120.0);
    // Sections 8.2.3 and 8.2.4 state how much these two do. Of the others only Graph500's 64 keys are stated.
    let silo = Setting { operations: Some(24 * 300_000_000), ..of_flexmem("silo-ycsb-c", 89.5) };
    let btree = Setting { operations: Some(20_000_000_000), ..of_flexmem("btree", 64.0) };
    let six = [ft, lu, sp, graph500, silo, btree];
    let row = |id, quantity: &str, paper: &str, source, value, kind, cases| {
        let (quantity, paper) = (quantity.to_owned(), paper.to_owned());
        Row { id, quantity, paper, source, value, kind, cases }
    };
    let mut rows = Vec::new();
    for (policy, name, gain) in [("tiering08", "Tiering-0.8", 0.32), ("tpp", "TPP", 0.23), ("memtis", "MEMTIS", 0.27)] {
        let quantity = format!("FlexMem's gain over {name}, geometric mean of six workloads");
        let paper = format!("{:.0} % on average", gain * 100.0);
        let cases = pairs(&six, "flexmem", policy);
        rows.push(row("FM.fig6.avg", &quantity, &paper, FIGURE_6, Some(gain), Quantity::Gain, cases));
    }
    for (id, setting, tpp, memtis) in [
        ("FM.fig6.ft", ft, 0.32, 0.57),
        ("FM.fig6.lu", lu, 0.08, 0.06),
        ("FM.fig6.sp", sp, 0.27, 0.57),
        ("FM.fig6.graph500", graph500, 0.32, 0.17),
        ("FM.fig6.silo", silo, 0.26, 0.13),
        ("FM.fig6.btree", btree, 0.09, 0.06),
    ] {
        for (policy, name, gain) in [("tpp", "TPP", tpp), ("memtis", "MEMTIS", memtis)] {
            let quantity = format!("FlexMem's gain over {name}");
            let paper = format!("{:.0} %", gain * 100.0);
            let cases = pairs(&[setting], "flexmem", policy);
            rows.push(row(id, &quantity, &paper, FIGURE_6, Some(gain), Quantity::Gain, cases));
        }
    }
    rows.push(row(
        "FM.fig1",
        "TPP against MEMTIS: who is ahead on which workload",
        "TPP on FT, SP; MEMTIS on Btree, Silo, Graph500, LU",
        "FlexMem (ATC'24) figure 1",
        None,
        Quantity::Winners { first: 2 },
        pairs(&[ft, sp, btree, silo, graph500, lu], "tpp", "memtis"),
    ));
    for (policy, name, paper, ratio) in [
        ("tpp", "TPP", "83 %", 0.83),
        ("autonuma", "AutoNUMA", "about 100 %", 1.0),
        ("memtis", "MEMTIS", "below 1 %", 0.01),
    ] {
        let quantity = format!("{name}: failed over successful promotions, mean of six workloads");
        let cases = six.iter().map(|setting| case(*setting, policy)).collect();
        let source = "FlexMem (ATC'24) figure 3";
        rows.push(row("FM.fig3", &quantity, paper, source, Some(ratio), Quantity::FailureRatio, cases));
    }
    const FIGURE_9: &str = "FlexMem (ATC'24) figure 9";
    for (policy, name, ratio) in [("tpp", "TPP", 2.17), ("flexmem", "FlexMem", 3.75)] {
        let quantity = format!("{name} on FT: accesses to fast over accesses to slow memory");
        let cases = vec![case(ft, policy)];
        let paper = format!("{ratio}");
        rows.push(row("FM.fig9.ft", &quantity, &paper, FIGURE_9, Some(ratio), Quantity::FastSlowRatio, cases));
    }
    for (policy, name, share) in [("flexmem", "FlexMem", 0.52), ("tpp", "TPP", 0.46), ("memtis", "MEMTIS", 0.36)] {
        let quantity = format!("{name} on LU and SP: share of accesses that fast memory serves");
        let cases = vec![case(lu, policy), case(sp, policy)];
        let paper = format!("{:.0} %", share * 100.0);
        rows.push(row("FM.fig9.lusp", &quantity, &paper, FIGURE_9, Some(share), Quantity::FastShare, cases));
    }
    const FIGURE_10: &str = "FlexMem (ATC'24) figure 10";
    let cases = pairs(&[silo], "memtis", "flexmem");
    let quantity = "MEMTIS's migrations over FlexMem's on Silo";
    rows.push(row("FM.fig10.silo", quantity, "+56 %", FIGURE_10, Some(0.56), Quantity::Volume, cases));
    for (policy, name, less) in [("tpp", "TPP", -0.57), ("flexmem", "FlexMem", -0.51)] {
        let quantity = format!("MEMTIS's migrations over {name}'s on FT, LU and SP");
        let cases = pairs(&[ft, lu, sp], "memtis", policy);
        let paper = format!("{:.0} %", less * 100.0);
        rows.push(row("FM.fig10.hpc", &quantity, &paper, FIGURE_10, Some(less), Quantity::Volume, cases));
    }
    for (name, setting) in [("Silo", silo), ("Graph500", graph500)] {
        let quantity = format!("beta of 10, 20, 30 and 40 % on {name}: which is best");
        let cases = ["0.1", "0.2", "0.3", "0.4"].map(|beta| with(setting, "flexmem", "beta", beta)).to_vec();
        let paper = "the default (which the paper does not state; 20 % here)";
        let source = "FlexMem (ATC'24) figure 13";
        rows.push(row("FM.fig13", &quantity, paper, source, None, Quantity::Fastest { expected: 1 }, cases));
    }
    for (setting, name, paper, value) in
        [(&[ft][..], "on FT", "26 % fewer", -0.26), (&six[..], "in all", "18 % fewer", -0.18)]
    {
        let quantity = format!("FlexMem's failed promotions over TPP's, {name}");
        let source = "FlexMem (ATC'24) figure 8 and section 8.3";
        let cases = pairs(setting, "flexmem", "tpp");
        rows.push(row("FM.fig8.ft", &quantity, paper, source, Some(value), Quantity::Failures, cases));
    }
    const ABSTRACT: &str = "FlexMem (ATC'24) abstract";
    let over_tpp = pairs(&six, "flexmem", "tpp");
    let quantity = "FlexMem's failed promotions over TPP's, six workloads (the paper does not say over what)";
    rows.push(row("FM.abs.fail", quantity, "25 % fewer", ABSTRACT, Some(-0.25), Quantity::Failures, over_tpp.clone()));
    let quantity =
        "accesses that fast memory serves, FlexMem over TPP, six workloads (the paper does not say over what)";
    rows.push(row("FM.abs.use", quantity, "+21 %", ABSTRACT, Some(0.21), Quantity::FastShareGain, over_tpp));
    rows.push(row(
        "FM.ovh",
        "FlexMem's sampling, share of one processor, most of six workloads",
        "about 2 %",
        "FlexMem (ATC'24) section 8.5",
        Some(0.02),
        Quantity::ProcessorShare("sampling"),
        six.iter().map(|setting| case(*setting, "flexmem")).collect(),
    ));
    rows.push(row(
        "FM.fig4.mid",
        "FlexMem's hot threshold on Silo, after the first third",
        "bin 7",
        "FlexMem (ATC'24) figure 4 and section 3",
        Some(7.0),
        Quantity::Median("hot_threshold_bin"),
        vec![case(silo, "flexmem")],
    ));
    rows.push(row(
        "FM.fig11",
        "warm pages of FlexMem and of MEMTIS on Silo and Graph500",
        "FlexMem has more",
        "FlexMem (ATC'24) figure 11",
        None,
        Quantity::Larger("warm_pages"),
        pairs(&[silo, graph500], "flexmem", "memtis"),
    ));
    rows.push(row(
        "FM.fig12",
        "alpha on FT: lowest and highest",
        "between 0 and 1, to both ends",
        "FlexMem (ATC'24) figure 12",
        None,
        Quantity::Swing("alpha"),
        vec![case(ft, "flexmem")],
    ));
    let sizes = [10.0, 30.0, 60.0].map(|amount| Setting { fast: Fast::Gigabytes(amount), ..silo });
    for (policy, name) in [("tpp", "TPP"), ("memtis", "MEMTIS")] {
        let quantity = format!("FlexMem's gain over {name} on Silo with 10, 30 and 60 GB of fast memory");
        let cases = pairs(&sizes, "flexmem", policy);
        let paper = "ahead everywhere, by less the more fast memory there is (sizes not stated)";
        rows.push(row("FM.fig14", &quantity, paper, "FlexMem (ATC'24) figure 14", None, Quantity::Shrinks, cases));
    }
    rows
}

/// TieredMMS: one socket of 20 cores with Optane, 4 KiB pages (section 5).
fn of_tieredmms(workload: &'static str, share: f64) -> Setting {
    let (fast, machine) = (Fast::Share(share), "optane-6230n");
    Setting {
        workload,
        gigabytes: 67.0,
        fast,
        threads: 20,
        machine,
        huge: false,
        options: &[],
        operations: None,
        mmu: None,
    }
}

fn tieredmms() -> Vec<Row> {
    let ratios = [("1:1", 0.5), ("1:3", 0.25), ("1:7", 0.125)];
    let mut rows = Vec::new();
    let mut add = |id, quantity: String, paper: String, source, value, kind, cases| {
        rows.push(Row { id, quantity, paper, source, value, kind, cases });
    };
    const FIGURE_6: &str = "TieredMMS figure 6";
    const FIGURE_7: &str = "TieredMMS figure 7";
    for (ratio, share) in ratios {
        let cases = pairs(&[of_tieredmms("liblinear", share)], "tieredmms", "autonuma");
        let quantity = format!("TieredMMS's speed over AutoNUMA's, Liblinear {ratio}");
        let kind = Quantity::FactorIn(2.08, 2.74);
        add("MM.fig6.range", quantity, "2.08x to 2.74x".to_owned(), FIGURE_6, None, kind, cases);
    }
    for ((ratio, share), gain) in ratios.into_iter().zip([-0.068, 0.106, 0.263]) {
        let cases = pairs(&[of_tieredmms("liblinear", share)], "tieredmms", "memtis");
        let (quantity, paper) = (format!("gain over MEMTIS, Liblinear {ratio}"), format!("{:+.1} %", gain * 100.0));
        add("MM.fig6.memtis", quantity, paper, FIGURE_6, Some(gain), Quantity::Gain, cases);
    }
    for ((ratio, share), more) in ratios.into_iter().zip([3.97, 3.49, 3.0]) {
        let cases = pairs(&[of_tieredmms("graph500", share)], "tieredmms", "autonuma");
        let quantity = format!("TieredMMS's speed over AutoNUMA's, Graph500 {ratio}");
        let paper = format!("{:.2}x (stated as an improvement of {more:.2}x)", more + 1.0);
        add("MM.fig7.auto", quantity, paper, FIGURE_7, Some(more + 1.0), Quantity::Factor, cases);
    }
    for ((ratio, share), gain) in ratios.into_iter().zip([0.08, -0.058, -0.036]) {
        let cases = pairs(&[of_tieredmms("graph500", share)], "tieredmms", "memtis");
        let (quantity, paper) = (format!("gain over MEMTIS, Graph500 {ratio}"), format!("{:+.1} %", gain * 100.0));
        add("MM.fig7.memtis", quantity, paper, FIGURE_7, Some(gain), Quantity::Gain, cases);
    }
    let all: Vec<Case> = ratios
        .iter()
        .flat_map(|(_, share)| pairs(&[of_tieredmms("graph500", *share)], "tieredmms", "autonuma"))
        .collect();
    let won = [("liblinear", 1), ("liblinear", 2), ("graph500", 0), ("liblinear", 0), ("graph500", 1), ("graph500", 2)];
    let cases = won
        .iter()
        .flat_map(|(workload, ratio)| pairs(&[of_tieredmms(workload, ratios[*ratio].1)], "tieredmms", "memtis"))
        .collect();
    let quantity = "TieredMMS against MEMTIS: who is ahead in which of the six cases".to_owned();
    let paper = "TieredMMS in 3: Liblinear 1:3 and 1:7, Graph500 1:1".to_owned();
    add("MM.abs", quantity, paper, "TieredMMS abstract, figures 6 and 7", None, Quantity::Winners { first: 3 }, cases);
    let quantity = "TieredMMS's best speed over AutoNUMA's".to_owned();
    add("MM.abs", quantity, "4.97x".to_owned(), "TieredMMS abstract", Some(4.97), Quantity::Best, all);
    for ((ratio, share), gain) in ratios.into_iter().skip(1).zip([0.08, 0.14]) {
        let setting = of_tieredmms("graph500", share);
        let raised = Case { settings: vec![("high_wm", "6%"), ("low_wm", "4%")], ..case(setting, "tieredmms") };
        let quantity =
            format!("gain of watermarks of 6 and 4 % over 3 and 2 %, Graph500 {ratio} (the paper's are not stated)");
        let cases = vec![raised, case(setting, "tieredmms")];
        let paper = format!("{:.0} %", gain * 100.0);
        add("MM.fig8", quantity, paper, "TieredMMS figure 8", Some(gain), Quantity::Gain, cases);
    }
    let settings = ["liblinear", "graph500"].into_iter();
    let settings = settings.flat_map(|name| ratios.map(|(_, share)| of_tieredmms(name, share)));
    let of_six: Vec<Case> = settings.map(|setting| case(setting, "tieredmms")).collect();
    let quantity = "TieredMMS's hot set over fast memory, mean of the six cases".to_owned();
    let (paper, source) = ("about the size of fast memory (no number)".to_owned(), "TieredMMS figure 5");
    add("MM.fig5", quantity, paper, source, None, Quantity::HotSet, of_six.clone());
    let quantity = "TieredMMS's sampling, share of one processor, most of the six cases".to_owned();
    let kind = Quantity::ProcessorShare("sampling");
    add("MM.cpu", quantity, "at most 4.25 %".to_owned(), "TieredMMS section 5", Some(0.0425), kind, of_six.clone());
    let quantity =
        "TieredMMS's metadata, bytes a page, the kernel's own lists (10) and our page state (8) included".to_owned();
    let paper = "at most 12, without these".to_owned();
    add("MM.meta", quantity, paper, "TieredMMS section 5", Some(12.0), Quantity::Metadata, of_six);
    for workload in ["liblinear", "graph500"] {
        for (ratio, share) in ratios {
            // With everything in DRAM its share is of no account; one run serves all ratios.
            let cases = vec![
                case(of_tieredmms(workload, share), "tieredmms"),
                case(of_tieredmms(workload, ratios[0].1), "all-fast"),
            ];
            let quantity = format!("TieredMMS's speed over that with DRAM only, {workload} {ratio}");
            let paper = "nearly half or more is lost".to_owned();
            // "Nearly half" is read as 45 %.
            let kind = Quantity::FactorIn(0.0, 0.55);
            add("MM.fig9", quantity, paper, "TieredMMS figure 9", None, kind, cases);
        }
    }
    rows
}

/// FlexHM: a socket with Optane, sysbench over a block of 64 GB, 2 TB in all, by words of 8 bytes (section 7.1).
fn of_flexhm(write: bool, threads: usize, share: f64) -> Setting {
    Setting {
        workload: "sysbench-memory",
        gigabytes: 64.0 * 1.073_741_824,
        fast: Fast::Share(share),
        threads,
        machine: "optane-8260l",
        huge: false,
        options: if write { &[("access", "write")] } else { &[("access", "read")] },
        operations: Some((2 << 40) / 8),
        mmu: None,
    }
}

/// The comparison with Thermostat: a block of 32 GB in a guest, which is not modelled (section 7.4). Thermostat works on
/// huge pages, so all run on them.
fn beside_thermostat(write: bool) -> Setting {
    Setting { gigabytes: 32.0 * 1.073_741_824, huge: true, ..of_flexhm(write, 32, 0.25) }
}

/// Ligra's programs on a graph of 62 GB, in a guest, which is not modelled (section 7.1).
fn ligra(workload: &'static str, share: f64) -> Setting {
    Setting { workload, gigabytes: 62.0, huge: true, options: &[], operations: None, ..of_flexhm(false, 32, share) }
}

/// Memcached's 500,000 values of 100 KB, 52 GB in all, under zipf (section 7.1); threads are not stated, so those of Sysbench.
fn memcached(write: bool, share: f64) -> Setting {
    let options: &[_] =
        if write { &[("value", "102400"), ("updates", "1")] } else { &[("value", "102400"), ("updates", "0")] };
    Setting { workload: "memcached", gigabytes: 52.0, options, operations: None, ..of_flexhm(write, 32, share) }
}

fn flexhm() -> Vec<Row> {
    let mut rows = Vec::new();
    let mut add = |id, quantity: String, paper: &str, source, value, kind, cases| {
        rows.push(Row { id, quantity, paper: paper.to_owned(), source, value, kind, cases });
    };
    for (write, paper, value) in [(false, "18 %", 0.18), (true, "3.1 %", 0.031)] {
        let cases = vec![Case { bounds: true, ..case(beside_thermostat(write), "thermostat") }];
        let quantity = format!("Thermostat's speed over all DRAM, {}, a quarter of DRAM", access(write));
        add("FH.fig2", quantity, paper, "FlexHM (TACO'22) figure 2", Some(value), Quantity::PartOfAllFast, cases);
    }
    // Guests are not modelled: the rows of guests are native runs, whose walks are shorter.
    for (id, what, write, ratio, share, paper, low, high) in [
        ("FH.fig6.n32r", "native", false, "1:1", 0.5, "above 93 %", 0.93, 1.0),
        ("FH.fig6.g32r", "guest, here native", false, "1:1", 0.5, "above 88 %", 0.88, 1.0),
        ("FH.fig6.g32r", "guest, here native", false, "1:4", 0.2, "above 80 %", 0.8, 1.0),
        ("FH.fig6.g32w", "guest, here native", true, "1:1", 0.5, "above 80 %", 0.8, 1.0),
        ("FH.fig6.g32w", "guest, here native", true, "1:4", 0.2, "about 54 %", 0.54, 0.54),
    ] {
        let quantity = format!("{what}, {}, 32 threads, {ratio}: speed over all DRAM", access(write));
        let cases = vec![Case { bounds: true, ..case(of_flexhm(write, 32, share), "flexhm") }];
        let kind = Quantity::PartOfAllFastIn(low, high);
        add(id, quantity, paper, "FlexHM (TACO'22) figure 6", None, kind, cases);
    }
    // Clients reach the paper's server over a network, which is not modelled: the rows are the store's own speed.
    for (id, write, ratio, share, paper, low, high) in [
        ("FH.fig7.read", false, "1:1", 0.5, "about 99 % (bound by the network)", 0.99, 1.0),
        ("FH.fig7.read", false, "1:2", 1.0 / 3.0, "85.9 % to 87.64 %", 0.859, 0.8764),
        ("FH.fig7.upd", true, "1:1", 0.5, "above 90 %", 0.9, 1.0),
    ] {
        let quantity = format!("memcached, {}, {ratio}: throughput over all DRAM, no network here", access(write));
        let cases = vec![Case { bounds: true, ..case(memcached(write, share), "flexhm") }];
        let kind = Quantity::PartOfAllFastIn(low, high);
        add(id, quantity, paper, "FlexHM (TACO'22) figure 7", None, kind, cases);
    }
    for workload in ["gap-bfs", "ligra-mis", "gap-pr"] {
        let source = "FlexHM (TACO'22) figure 8";
        let all_slow = [case(ligra(workload, 0.25), "all-fast"), case(ligra(workload, 0.25), "all-slow")].to_vec();
        let quantity = format!("run time of {workload} with slow memory only over that with DRAM only");
        add("FH.fig8", quantity, "above 17x", source, None, Quantity::FactorIn(17.0, f64::INFINITY), all_slow);
        let half = [case(ligra(workload, 0.25), "all-fast"), case(ligra(workload, 0.5), "flexhm")].to_vec();
        let quantity = format!("run time of {workload} under FlexHM at 1:1 over that with DRAM only");
        add("FH.fig8", quantity, "up to 1.47x", source, None, Quantity::FactorIn(1.0, 1.47), half);
    }
    let quantity = "FlexHM's processor time over that of all threads, read, 32 threads, 1:1".to_owned();
    let cases = vec![case(of_flexhm(false, 32, 0.5), "flexhm")];
    add("FH.ovh", quantity, "6.12 %", "FlexHM (TACO'22) section 7", Some(0.0612), Quantity::ManagementShare, cases);
    const FIGURE_9: &str = "FlexHM (TACO'22) figure 9";
    for (id, policy, name, read, write) in [
        ("FH.fig9.int", "interleave", "NUMA interleave", 1.9, 3.1),
        ("FH.fig9.thermo", "thermostat", "Thermostat", 2.4, 5.8),
    ] {
        for (writes, factor) in [(false, read), (true, write)] {
            let cases = pairs(&[beside_thermostat(writes)], "flexhm", policy);
            let quantity = format!("FlexHM's speed over that of {name}, {}, 1:3", access(writes));
            add(id, quantity, &format!("{factor}x"), FIGURE_9, Some(factor), Quantity::Factor, cases);
        }
    }
    let both = [false, true].map(|writes| pairs(&[beside_thermostat(writes)], "flexhm", "thermostat")).concat();
    let quantity = "FlexHM's best speed over another system's".to_owned();
    add("FH.abs", quantity, "5.8x", "FlexHM (TACO'22) abstract", Some(5.8), Quantity::Best, both);
    for workload in ["gap-bfs", "ligra-mis", "gap-pr"] {
        let cases =
            [("all-fast", 0.25), ("thermostat", 0.25)].map(|(policy, share)| case(ligra(workload, share), policy));
        let quantity = format!("run time of {workload} under Thermostat over that with DRAM only, 1:3");
        add(
            "FH.fig9.ligra",
            quantity,
            "at least 8.02x",
            FIGURE_9,
            None,
            Quantity::FactorIn(8.02, f64::INFINITY),
            cases.to_vec(),
        );
    }
    const FIGURE_10: &str = "FlexHM (TACO'22) figure 10";
    for (threads, ratio, share, factor) in
        [(1, "1:4", 0.2, 1.82), (32, "1:1", 0.5, 5.67), (32, "1:2", 1.0 / 3.0, 6.40), (32, "1:4", 0.2, 6.33)]
    {
        let id = if threads == 1 { "FH.fig10.1t" } else { "FH.fig10.32t" };
        let cases = pairs(&[of_flexhm(true, threads, share)], "flexhm", "interleave");
        let quantity = format!("FlexHM's speed over that of NUMA interleave, write, {threads} threads, {ratio}");
        add(id, quantity, &format!("{factor}x"), FIGURE_10, Some(factor), Quantity::Factor, cases);
    }
    const FIGURE_11: &str = "FlexHM (TACO'22) figure 11";
    let cases = vec![case(ligra("gap-pr", 0.25), "flexhm"), case(ligra("gap-pr", 0.5), "interleave")];
    let quantity = "FlexHM's speed at 1:3 over that of interleave at 1:1, PageRank".to_owned();
    add("FH.fig11", quantity, "up to 5.7x", FIGURE_11, None, Quantity::FactorIn(1.0, 5.7), cases);
    let cases = pairs(&[ligra("gap-pr", 0.5)], "flexhm", "thermostat");
    let quantity = "FlexHM's speed over Thermostat's, PageRank, 1:1".to_owned();
    add("FH.fig11", quantity, "up to 11.9x", FIGURE_11, None, Quantity::FactorIn(1.0, 11.9), cases);
    let capped = Setting { huge: true, ..of_flexhm(true, 32, 0.25) };
    let cases = ["1GiB", "2GiB", "4GiB"].map(|size| with(capped, "flexhm", "max_migration_size", size)).to_vec();
    let quantity = "at most 1, 2 or 4 GB moved an epoch, huge pages, write, 32 threads: which is best".to_owned();
    let source = "FlexHM (TACO'22) figure 13";
    add("FH.fig13", quantity, "2 GB; 4 GB harms", source, None, Quantity::Fastest { expected: 1 }, cases);
    for (ratio, share, gain) in [("1:4", 0.2, 0.191), ("1:3", 0.25, 0.446)] {
        let cases = pairs(&[of_flexhm(false, 32, share)], "flexhm", "memory-mode");
        let quantity = format!("FlexHM's gain over Memory Mode, read, {ratio}");
        let paper = format!("{:+.1} %", gain * 100.0);
        add("FH.fig9.mm", quantity, &paper, FIGURE_9, Some(gain), Quantity::Gain, cases);
    }
    for (threads, write, expected, paper) in
        [(1, false, 0, "aggressive"), (32, false, 0, "aggressive"), (32, true, 1, "conservative")]
    {
        let setting = of_flexhm(write, threads, 0.25);
        let cases = ["aggressive", "conservative"].map(|plan| with(setting, "flexhm", "plan", plan)).to_vec();
        let quantity = format!("which plan is best, {}, {threads} threads", access(write));
        let source = "FlexHM (TACO'22) figure 12";
        add("FH.fig12", quantity, paper, source, None, Quantity::Fastest { expected }, cases);
    }
    rows
}

/// Hotness walk: 4 cores, DRAM alone or DRAM and CXL at 1:3, no NUMA balancing, pages of one size (section 5). The paper
/// simulates 60 to 90 ms of each program; here a few operations run whole.
fn of_hotness_walk(workload: &'static str, gigabytes: f64, operations: u64, huge: bool, share: f64) -> Setting {
    Setting {
        workload,
        gigabytes,
        fast: Fast::Share(share),
        threads: 4,
        machine: "cxl-pond",
        huge,
        options: &[],
        operations: Some(operations),
        mmu: Some(MmuSetting { miss_cycles: 0 }),
    }
}

fn hotness_walk() -> Vec<Row> {
    let mcf = |huge, share| of_hotness_walk("mcf", 4.0, 2000, huge, share);
    let pagerank = |huge, share| of_hotness_walk("gap-pr", 12.0, 2, huge, share);
    let search = |huge, share| of_hotness_walk("gap-bfs", 12.0, 2, huge, share);
    // Regions are rounded up to huge pages: what is all in DRAM has room for that.
    let run = |setting: Setting| {
        let all_dram = setting.fast == Fast::Share(1.0);
        case(setting, if all_dram { "all-fast" } else { "first-touch" })
    };
    let mut rows = Vec::new();
    let mut add = |id, quantity: String, paper: String, source, value, kind, cases| {
        rows.push(Row { id, quantity, paper, source, value, kind, cases });
    };
    type Build<'a> = &'a dyn Fn(bool, f64) -> Setting;
    let programs: [(&str, &str, Build<'_>, &str, [f64; 3]); 3] = [
        ("HW.fig3", "MCF", &mcf, "hotness walk figure 3, read by eye", [0.977, 0.913, 0.934]),
        ("HW.fig4", "PR", &pagerank, "hotness walk figure 4, read by eye", [0.935, 0.853, 0.937]),
        ("HW.fig5", "BFS", &search, "hotness walk figure 5, read by eye", [0.825, 0.730, 0.915]),
    ];
    for (id, name, setting, source, values) in programs {
        let others = [("4 KiB, DRAM", false, 1.0), ("2 MiB, DRAM", true, 1.0), ("2 MiB, 1:3", true, 0.25)];
        for ((what, huge, share), value) in others.into_iter().zip(values) {
            let cases = vec![run(setting(false, 0.25)), run(setting(huge, share))];
            let quantity = format!("{name}, {what}: CPI over that of 4 KiB pages at 1:3");
            add(id, quantity, format!("{value}"), source, Some(value), Quantity::RelativeCpi, cases);
        }
    }
    for (id, name, setting, paper, value) in [
        ("HW.txt", "PR", &pagerank as Build<'_>, "10 to 25 % for PR and BFS", None),
        ("HW.txt", "BFS", &search, "10 to 25 % for PR and BFS", None),
        ("HW.txt", "MCF", &mcf, "8 %", Some(0.08)),
    ] {
        let cases = vec![run(setting(true, 1.0)), run(setting(false, 0.25))];
        let quantity = format!("{name}: what 4 KiB pages at 1:3 take more than 2 MiB pages in DRAM");
        let source = "hotness walk section 5.1; which pair is meant follows from the bars";
        add(id, quantity, paper.to_owned(), source, value, Quantity::Overhead, cases);
    }
    for (tiers, share, value) in [("DRAM", 1.0, 0.212), ("1:3", 0.25, 0.203)] {
        let cases = vec![run(pagerank(false, share))];
        let quantity = format!("PR, {tiers}: work imbalance, the most of a core over the mean, less one");
        let source = "hotness walk figure 6, read by eye: instructions of each core";
        let paper = format!("{:.1} %", value * 100.0);
        add("HW.fig6", quantity, paper, source, Some(value), Quantity::Imbalance, cases);
    }
    for (what, huge, share, paper, value) in [
        ("4 KiB, DRAM", false, 1.0, "about 1", 1.0),
        ("4 KiB, 1:3", false, 0.25, "about 1", 1.0),
        ("2 MiB, DRAM", true, 1.0, "1.9e-5", 1.9e-5),
        ("2 MiB, 1:3", true, 0.25, "3e-5", 3e-5),
    ] {
        let cases = vec![run(pagerank(huge, share))];
        let quantity = format!("PR, {what}: page walks over accesses of one core");
        let source = "hotness walk figure 7, read by eye off a logarithmic axis";
        add("HW.fig7", quantity, paper.to_owned(), source, Some(value), Quantity::WalkShare, cases);
    }
    for (what, huge, paper, value) in
        [("4 KiB", false, "1.2 %", Some(0.012)), ("2 MiB", true, "lower, by the miss rate; below 0.01 %", None)]
    {
        let without = pagerank(huge, 0.25);
        let with = Setting { mmu: Some(MmuSetting { miss_cycles: 100 }), ..without };
        let quantity = format!("PR, {what}, 1:3: what 100 cycles for every first-level miss cost");
        let source = "hotness walk figure 8 and section 5.4";
        add("HW.fig8", quantity, paper.to_owned(), source, value, Quantity::Overhead, vec![run(without), run(with)]);
    }
    for (name, setting) in [("PR", pagerank(true, 0.25)), ("BFS", search(true, 0.25)), ("MCF", mcf(true, 0.25))] {
        let cases = [1, 2, 4, 8].map(|threads| run(Setting { threads, ..setting })).to_vec();
        let quantity = format!("{name}, 2 MiB, 1:3, 1 to 8 cores: speed over one core, work imbalance");
        let source =
            "hotness walk section 4: scaling over cores was left out, as its simulation was too inaccurate for it";
        let paper = "left out (no number)".to_owned();
        add("HW.cores", quantity, paper, source, None, Quantity::Cores, cases);
    }
    for (id, name, setting) in [("HW.fig9", "MCF", mcf(true, 0.25)), ("HW.fig10", "PR", pagerank(true, 0.25))] {
        let quantity = format!("{name}: share of the hottest tenth of ranges that is no longer so at the next look");
        let source = "hotness walk figures 9 and 10";
        let paper = "hot pages quickly become cold (no number)".to_owned();
        add(id, quantity, paper, source, None, Quantity::Drift, vec![run(setting)]);
    }
    rows
}

fn access(write: bool) -> &'static str {
    if write { "write" } else { "read" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_names_policies_workloads_and_machines_that_exist() {
        for row in rows() {
            assert!(!row.cases.is_empty(), "{}", row.id);
            assert!(NOT_BUILT.iter().all(|(id, _)| *id != row.id), "{} is built", row.id);
            for case in &row.cases {
                let pairs = case.settings.iter().map(|(key, value)| (*key, *value));
                terrace_policies::build(case.policy, terrace_policies::Settings::from_pairs(pairs)).unwrap();
                terrace_machine::preset::Machine::preset(case.setting.machine).unwrap();
                let known = terrace_workloads::workloads();
                assert!(known.iter().any(|info| info.name == case.setting.workload), "{}", case.setting.workload);
            }
        }
    }
}
