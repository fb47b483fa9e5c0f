//! What works on this machine, as tables.
//!
//! In: a [`Doctor`]. Out: text, what to do first. Must not: shorten a reason; it is what the reader came for.

use terrace_linux::doctor::{Doctor, TrackerReport};
use terrace_linux::prices::KindPrice;
use terrace_linux::zram::Tried;

use super::{Screen, listed};
use crate::report::units;

/// The tables `terrace doctor` prints.
pub(crate) fn table(doctor: &Doctor, screen: &Screen) -> String {
    let kernel = &doctor.kernel;
    let mut text = format!(
        "Linux {} on {}{}; {}\n",
        kernel.release,
        kernel.machine,
        if kernel.virtual_machine { ", a virtual machine" } else { "" },
        if kernel.btf { "describes its types (BTF)" } else { "no BTF, so no eBPF program can be loaded" },
    );
    text.push_str(&match doctor.chosen_tracker {
        Some(name) => format!("Tracker for policies of accessed bits: {name}\n"),
        None => "No tracker here can serve a policy of accessed bits; the reasons stand below.\n".to_owned(),
    });
    text.push_str(&listed("What to do", doctor.advice.iter().cloned(), screen.width));
    let mut table = screen.table(&["tracker", "works", "sees", "unit", "ns/page"]);
    for tracker in &doctor.trackers {
        table.add_row(tracker_row(tracker));
    }
    text.push_str(&format!("\nTrackers, in order of preference\n{table}\n"));
    let mut table = screen.table(&["mover", "works", "needed"]);
    for mover in &doctor.movers {
        table.add_row([mover.name.to_owned(), yes(mover.available), yes(mover.useful)]);
    }
    text.push_str(&format!("\nMovers\n{table}\n"));
    let tried = doctor.trials.iter().map(|trial| format!("{}: {}", trial.name, trial.reason));
    text.push_str(&listed("Tried on memory of its own", tried, screen.width));
    text.push_str(&listed("Compression", [doctor.compression.reason.clone()], screen.width));
    if let Some(tried) = &doctor.compression.tried {
        text.push_str(&compressor_table(tried, screen));
    }
    text.push_str(&listed("Huge pages", doctor.huge_pages.follows.iter().cloned(), screen.width));
    if let Some(prices) = &doctor.prices {
        text.push_str(&price_table(prices, screen));
    }
    // Reasons have lines of their own: in a narrow column paths would break, and what is to be typed could not be copied.
    let trackers =
        doctor.trackers.iter().map(|tracker| format!("{}: {}; for {}", tracker.name, tracker.reason, tracker.serves));
    let movers = doctor.movers.iter().map(|mover| format!("{}: {}", mover.name, mover.reason));
    text.push_str(&listed("Reasons", trackers.chain(movers), screen.width));
    text.push_str(&format!("\nTiers, fastest first\n{}\n", super::topology::tiers(&doctor.tiers, screen)));
    let rivals = doctor.rivals.iter().map(|rival| format!("{} ({}): {}", rival.name, rival.state, rival.effect));
    text.push_str(&listed("Others that move pages or clear marks", rivals, screen.width));
    text.push_str(&listed("About this machine", doctor.notes.iter().cloned(), screen.width));
    let rights = &doctor.rights;
    let missing = rights.capabilities.iter().filter(|capability| !capability.held);
    let missing = missing.map(|capability| format!("{}: {}", capability.name, capability.needed_for));
    text.push_str(&listed("Missing capabilities, and what they are needed for", missing, screen.width));
    if !rights.missing.is_empty() {
        let works = rights.still_works.iter().map(|line| (*line).to_owned());
        text.push_str(&listed("What works without them", works, screen.width));
    }
    text
}

/// Prices by kind, and why some are missing.
fn price_table(prices: &[KindPrice], screen: &Screen) -> String {
    if prices.is_empty() {
        return "\nPrices of page-outs: no swap is a tier here\n".to_owned();
    }
    let micros = |nanos: Option<f64>| nanos.map_or_else(|| "-".to_owned(), |nanos| format!("{:.2}", nanos / 1e3));
    let mut table = screen.table(&["what goes at once", "mover", "program", "93 % interval"]);
    for price in prices {
        let interval = match (price.program_ns_low, price.program_ns_high) {
            (Some(low), Some(high)) => format!("{} to {}", micros(Some(low)), micros(Some(high))),
            _ => "-".to_owned(),
        };
        let (mover, program) = (micros(price.mover_ns_per_page), micros(price.program_ns_per_page));
        table.add_row([price.kind.to_owned(), mover, program, interval]);
    }
    let reasons = prices.iter().filter_map(|price| Some(format!("{}: {}", price.kind, price.reason.as_ref()?)));
    let always = [
        "the machine must be quiet: on a processor that they share, the program loses all of the mover's time",
        "a program with one busy thread loses less by single pages: the mover goes to its processor, and interrupts nobody",
    ];
    let notes = listed("About the prices", reasons.chain(always.map(str::to_owned)), screen.width);
    format!("\nPage-outs and splits, microseconds for each page of 4 KiB\n{table}\n{notes}")
}

/// What each compressor did with the pages of a process.
fn compressor_table(tried: &Tried, screen: &Screen) -> String {
    let pages = tried.compressors.first().map_or(0, |trial| trial.pages);
    let mut table = screen.table(&["compressor", "ratio", "us to write", "us to read", "chosen"]);
    for trial in &tried.compressors {
        table.add_row([
            trial.algorithm.clone(),
            format!("{:.2}", trial.ratio),
            format!("{:.1}", trial.write_us_per_page),
            format!("{:.1}", trial.read_us_per_page),
            yes(trial.algorithm == tried.chosen),
        ]);
    }
    format!("\nCompressors, tried on {pages} pages of process {}\n{table}\n", tried.pid)
}

fn tracker_row(tracker: &TrackerReport) -> [String; 5] {
    // A tracker that opens but misses accesses is worse than none, so the table distinguishes the two.
    let works = match (tracker.available, tracker.proven) {
        (true, true) => "proven",
        (true, false) => "not proven",
        (false, _) => "no",
    };
    let sees = match (tracker.reads, tracker.writes) {
        (true, true) => "reads, writes",
        (true, false) => "reads",
        (false, true) => "writes",
        (false, false) => "neither",
    };
    [
        tracker.name.to_owned(),
        works.to_owned(),
        sees.to_owned(),
        tracker.granularity_bytes.to_string(),
        tracker.cost_ns_per_page.map_or_else(|| "-".to_owned(), units::significant),
    ]
}

fn yes(whether: bool) -> String {
    if whether { "yes" } else { "no" }.to_owned()
}

#[cfg(test)]
mod tests {
    use terrace_core::units::Bytes;
    use terrace_linux::doctor::{Kernel, Rival};
    use terrace_linux::huge_pages::HugePages;
    use terrace_linux::movers::MoverReport;
    use terrace_linux::rights::{Capability, Rights};
    use terrace_linux::trials::{Trial, Verdict};
    use terrace_linux::zram::Compression;
    use terrace_linux::zram::trial::CompressorTrial;

    use super::*;

    fn example() -> Doctor {
        let tracker = |name, available, proven, reason: &str| TrackerReport {
            name,
            available,
            proven,
            reason: reason.to_owned(),
            granularity_bytes: Bytes::kib(4),
            reads: true,
            writes: proven,
            cost_ns_per_page: proven.then_some(43.2),
            serves: "any policy of accessed bits, on any program",
        };
        Doctor {
            schema_version: 1,
            kernel: Kernel {
                release: "6.12.0".to_owned(),
                machine: "x86_64".to_owned(),
                virtual_machine: true,
                btf: true,
            },
            rights: Rights {
                user_id: 1000,
                capabilities: vec![Capability { name: "CAP_BPF", held: false, needed_for: "loading its eBPF program" }],
                perf_event_paranoid: Some(2),
                missing: vec!["CAP_BPF"],
                still_works: vec!["residency of this user's programs"],
            },
            trackers: vec![
                tracker("samples", false, false, "no hardware performance counters (virtual machine without a vPMU)"),
                tracker("damon", true, false, "it reported 3 of 64 touched pages"),
                tracker("accessed-bits", true, true, "saw all 64 touched pages and none of the others"),
            ],
            chosen_tracker: Some("accessed-bits"),
            movers: vec![MoverReport {
                name: "process_madvise",
                available: true,
                useful: true,
                reason: "pages out to compressed swap".to_owned(),
            }],
            trials: vec![Trial {
                name: "folios",
                verdict: Verdict::Fails,
                reason: "folios do not come back from swap here: zswap was on".to_owned(),
            }],
            huge_pages: HugePages {
                enabled: Some("never".to_owned()),
                follows: vec!["huge pages are set to never, so none is made".to_owned()],
                ..HugePages::default()
            },
            prices: None,
            compression: Compression {
                offered: ["lzo-rle", "lzo", "lz4"].map(str::to_owned).to_vec(),
                usual: Some("lz4".to_owned()),
                recompression: false,
                reason:
                    "zram offers lzo-rle, lzo, lz4; `run` uses lz4; no second pass: this kernel has no recompression"
                        .to_owned(),
                tried: None,
            },
            tiers: Vec::new(),
            rivals: vec![Rival {
                name: "kswapd",
                state: "idle".to_owned(),
                effect: "moves pages out by itself under pressure".to_owned(),
            }],
            advice: vec!["set up compressed swap: there is no slower tier".to_owned()],
            notes: vec!["node 0 says it has 8.0 GiB, /proc/meminfo says 24.0 GiB: the latter is used".to_owned()],
        }
    }

    #[test]
    fn prices_stand_by_kind_and_what_is_missing_has_its_reason() {
        let price = |kind, mover: Option<f64>, program: Option<f64>| KindPrice {
            kind,
            pages: 1,
            mover_ns_per_page: mover,
            program_ns_per_page: program,
            program_ns_low: program.map(|nanos| nanos / 2.0),
            program_ns_high: program.map(|nanos| nanos * 2.0),
            reason: mover.is_none().then(|| "this memory got too few folios of the size".to_owned()),
        };
        let prices = vec![
            price("single page", Some(15_800.0), Some(7_400.0)),
            price("folio of 64 KiB", None, None),
            price("whole block of 2 MiB", Some(2_030.0), Some(80.0)),
        ];
        let doctor = Doctor { prices: Some(prices), ..example() };
        let text = table(&doctor, &Screen { width: 100, unicode: false });
        let row = |kind: &str| text.lines().find(|line| line.contains(kind)).unwrap_or_else(|| panic!("{text}"));
        assert!(row("single page").contains("15.80") && row("single page").contains("3.70 to 14.80"), "{text}");
        assert!(row("whole block").contains("2.03") && row("whole block").contains("0.08"), "{text}");
        assert!(text.contains("folio of 64 KiB: this memory got too few folios"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
        let none = table(&Doctor { prices: Some(Vec::new()), ..example() }, &Screen { width: 100, unicode: false });
        assert!(none.contains("no swap is a tier here"), "{none}");
    }

    #[test]
    fn each_compressor_has_its_figures_and_one_is_chosen() {
        let trial = |algorithm: &str, ratio| CompressorTrial {
            algorithm: algorithm.to_owned(),
            pages: 256,
            compressed_bytes: Bytes::kib(300),
            ratio,
            write_us_per_page: 3.25,
            read_us_per_page: 1.04,
        };
        let tried =
            Tried { pid: 4321, chosen: "zstd".to_owned(), compressors: vec![trial("lz4", 2.5), trial("zstd", 3.456)] };
        let mut doctor = example();
        doctor.compression.tried = Some(tried);
        let text = table(&doctor, &Screen { width: 100, unicode: false });
        let row =
            |name: &str| text.lines().find(|line| line.contains(name) && line.contains("1.0")).unwrap().to_owned();
        assert!(text.contains("tried on 256 pages of process 4321"), "{text}");
        assert!(row("zstd").contains("3.46") && row("zstd").contains("yes"), "{text}");
        assert!(row("lz4").contains("2.50") && row("lz4").contains("no"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    }

    #[test]
    fn everything_is_said_within_a_hundred_columns() {
        let [unicode, ascii] = [true, false].map(|unicode| table(&example(), &Screen { width: 100, unicode }));
        assert!(ascii.is_ascii() && !unicode.is_ascii());
        assert!(unicode.lines().chain(ascii.lines()).all(|line| line.chars().count() <= 100), "{unicode}{ascii}");
        insta::with_settings!({ snapshot_path => "../../tests/snapshots" }, {
            insta::assert_snapshot!("doctor", unicode + &ascii);
        });
    }
}
