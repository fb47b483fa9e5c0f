//! What must hold of the files that come with Terrace, of errors in others, and of the way from a row to its verdict.

use std::collections::BTreeSet;

use terrace_machine::scale::Scale;

use crate::{Document, Error, Experiments, Kind, Options, Plan, QUICK_SCALE, Verdict};

fn built_in() -> Experiments {
    Experiments::built_in().unwrap_or_else(|error| panic!("{error}"))
}

/// A file with one row, in which `from` is replaced.
fn one(from: &str, to: &str) -> Result<Experiments, Error> {
    const FILE: &str = r#"
[paper]
prefix = "T"
name = "test"
title = "A test"
agree = "20%"

[settings.gups]
workload = "gups"
size = "32GiB"
fast = "1:3"
threads = 2
machine = "optane-6252"
pages = "4KiB"

[settings.limited]
workload = "gups"
size = "32GiB"
threads = 2
machine = "optane-6252"
pages = "4KiB"

[[row]]
id = "T.gain"
quantity = "gain of one policy over another"
paper = 10
unit = "%"
source = "nowhere"
measure = "gain"
settings = ["gups"]
policies = ["tpp", "first-touch"]
"#;
    assert!(FILE.contains(from), "{from}");
    let mut all = Experiments::default();
    all.add("test.toml", &FILE.replacen(from, to, 1)).map(|()| all)
}

#[track_caller]
fn refused(from: &str, to: &str, says: &[&str]) {
    let error = one(from, to).err().unwrap_or_else(|| panic!("{to} was taken"));
    assert!(error.is_misuse());
    for part in says {
        assert!(error.to_string().contains(part), "{part:?} is not in {error}");
    }
}

fn run(experiments: &Experiments, ids: &[&str], scale: u32, seeds: &[u64]) -> Document {
    let ids: Vec<String> = ids.iter().map(|id| (*id).to_owned()).collect();
    let options = Options { scale, seeds: seeds.to_vec(), set: Vec::new() };
    let plan = Plan::new(experiments.select(&ids).unwrap(), options).unwrap();
    let runs = plan.run(&|_| Err("no test asks for a database".into()), &|| ()).unwrap();
    Document::new(&plan, &runs).unwrap()
}

#[test]
fn every_figure_has_an_id_of_its_own_and_a_source() {
    let all = built_in();
    let rows = all.rows.iter().map(|row| row.id.as_str());
    let ids: BTreeSet<&str> = rows.chain(all.not_built.iter().map(|row| row.id.as_str())).collect();
    assert_eq!(ids.len(), all.rows.len() + all.not_built.len());
    assert!(all.rows.len() > 220, "{}", all.rows.len());
    for row in &all.rows {
        assert!(!row.source.is_empty() && !row.quantity.is_empty() && !row.paper.words.is_empty(), "{}", row.id);
    }
    for figure in [
        "FM.fig6",
        "FM.fig9.ft",
        "MM.fig7.auto",
        "FH.fig10.32t",
        "HW.fig3",
        "HW.fig10",
        "TU.fig1.ft",
        "TU.motiv",
        "TU.t2.btree",
        "TU.fig8",
        "TU.save",
        "TU.t3.15",
        "TU.int.0-5",
        "TU.db",
        "TU.pond.bfs",
        "TU.p5.save",
        "TU.flexmem.save",
        "TU.forecast.sssp",
    ] {
        all.select(&[figure.to_owned()]).unwrap_or_else(|error| panic!("{error}"));
    }
}

#[test]
fn programs_can_be_as_small_as_the_scale_makes_them() {
    for case in built_in().rows.iter().flat_map(|row| &row.cases) {
        for factor in [64, 1024, QUICK_SCALE] {
            let scale = case.setting.scale(Scale::new(factor).unwrap());
            if let Err(error) = terrace_workloads::build(&case.setting.workload, &case.setting.parameters(scale, 1)) {
                panic!("{case} at 1:{factor}: {error}");
            }
        }
    }
}

#[test]
fn an_id_selects_all_that_begin_with_its_parts() {
    let all = built_in();
    let select = |id: &str| -> Vec<String> {
        all.select(&[id.to_owned()]).unwrap().into_iter().map(|row| row.id.clone()).collect()
    };
    assert_eq!(select("FM.fig6.sp"), ["FM.fig6.sp.tpp", "FM.fig6.sp.memtis"]);
    assert_eq!(select("FM.fig6.sp.memtis"), ["FM.fig6.sp.memtis"]);
    assert_eq!(select("FM.fig6").len(), 28);
    assert_eq!(select("FM.fig1"), ["FM.fig1"]);
    assert_eq!(select("flexmem"), select("FM"));
    assert_eq!(select("FM."), select("FM"));
    assert_eq!(select("all").len(), all.rows.len());
    let twice = all.select(&["FM.fig6.sp".to_owned(), "FM.fig6".to_owned()]).unwrap();
    assert_eq!(twice.len(), 28);
}

#[test]
fn a_wrong_id_is_answered_with_the_nearest() {
    let all = built_in();
    let error = |id: &str| all.select(&[id.to_owned()]).unwrap_err().to_string();
    assert!(error("FM.fig6.spp").contains("FM.fig6.sp"), "{}", error("FM.fig6.spp"));
    assert!(error("flexmen").contains("flexmem"), "{}", error("flexmen"));
    assert!(error("FH.cost").contains("not built"), "{}", error("FH.cost"));
}

#[test]
fn errors_name_file_line_and_key() {
    refused("paper = 10", "paper = \"ten\"", &["test.toml:26: ", "invalid type", "`paper = \"ten\"`"]);
    refused("paper = 10", "papre = 10", &["test.toml:26: ", "unknown field `papre`"]);
    refused("unit = \"%\"\n", "", &["test.toml:23: ", "missing field `unit`"]);
    refused("\"tpp\"", "\"ttp\"", &["test.toml:31: T.gain, key `policies`: ", "\"ttp\""]);
    refused("\"tpp\"", "\"tpp x=1\"", &["test.toml:31: T.gain, key `policies`: ", "no setting \"x\""]);
    refused("settings = [\"gups\"]", "settings = [\"gusp\"]", &["test.toml:30: T.gain, key `settings`: ", "gups"]);
    refused("measure = \"gain\"", "measure = \"grain\"", &["test.toml:29: T.gain, key `measure`: ", "speedup"]);
    refused("measure = \"gain\"", "measure = \"mean\"", &["key `of`: the measure \"mean\" needs it"]);
    refused(
        "measure = \"gain\"",
        "measure = \"gain\"\nfirst = 1",
        &["key `first`: the measure \"gain\" has no such key"],
    );
    refused("workload = \"gups\"", "workload = \"gusp\"", &["test.toml:9: setting gups, key `workload`: "]);
    refused("fast = \"1:3\"", "fast = \"1:0\"", &["test.toml:11: setting gups, key `fast`: ", "a ratio"]);
    refused("machine = \"optane-6252\"", "machine = \"optane\"", &["test.toml:13: setting gups, key `machine`: "]);
    refused("threads = 2", "threads = 0", &["test.toml:8: setting gups, key `threads`: "]);
    refused("id = \"T.gain\"", "id = \"X.gain\"", &["test.toml:24: X.gain, key `id`: ", "T the first"]);
    refused("agree = \"20%\"", "agree = \"200%\"", &["test.toml:6: paper, key `agree`: "]);
    let missing = Experiments::read("no/such/file.toml".as_ref()).unwrap_err();
    assert!(matches!(missing, Error::Read { .. }) && missing.is_misuse(), "{missing}");
}

#[test]
fn rows_that_can_say_nothing_are_refused() {
    refused("paper = 10", "paper_at_least = -100", &["its verdict says nothing"]);
    refused("paper = 10\n", "", &["key `stated`: ", "neither a number"]);
    refused(
        "measure = \"gain\"",
        "measure = \"ratio\"\nof = \"median:alpha\"",
        &["key `of`: ", "no metric of a policy"],
    );
    refused("paper = 10\n", "paper_most = 10\n", &["key `paper_most`: ", "only the measure `tuned`"]);
    refused("paper = 10\n", "paper = 10\nkind = \"wish\"\n", &["key `kind`: ", "expected figure, repeat"]);
    refused("\"tpp\", \"first-touch\"", "\"tpp\", \"tpp\"", &["the same run stands there twice"]);
    refused("\"tpp\", \"first-touch\"", "\"tpp\"", &["their number is odd"]);
    refused("settings = [\"gups\"]", "settings = []", &["the row has no runs"]);
    refused("settings = [\"gups\"]", "settings = [\"limited\"]", &["fast memory is stated nowhere"]);
    refused("settings = [\"gups\"]", "settings = [\"gups\"]\nat = [\"full\"]", &["fast memory is stated twice"]);
}

#[test]
fn a_row_is_run_once_a_seed_and_the_same_way_every_time() {
    let file = one("paper = 10", "paper = 10").unwrap();
    let first = run(&file, &["T.gain"], 4096, &[1, 2]);
    assert_eq!(first.runs.len(), 4);
    let row = &first.rows[0];
    assert_eq!((row.scale, row.seeds.as_slice()), (4096, &[1, 2][..]));
    let (ours, low, high) = (row.ours.unwrap(), row.ours_low.unwrap(), row.ours_high.unwrap());
    assert!(low <= ours && ours <= high, "{low} {ours} {high}");
    let again = run(&file, &["T.gain"], 4096, &[1, 2]);
    assert_eq!(serde_json::to_string(&first).unwrap(), serde_json::to_string(&again).unwrap());
    let alone = run(&file, &["T.gain"], 4096, &[1]);
    assert_eq!((alone.rows[0].ours_low, alone.rows[0].ours_high), (None, None));
}

#[test]
fn a_ratio_is_a_change_and_one_and_shares_of_attempts_are_below_one() {
    let ours = |measure: &str| {
        let all = one("measure = \"gain\"", measure).unwrap();
        run(&all, &["T"], 4096, &[1]).rows[0].ours.unwrap()
    };
    let hits = "\nof = \"fast-hits\"";
    let (change, ratio) = (ours(&format!("measure = \"change\"{hits}")), ours(&format!("measure = \"ratio\"{hits}")));
    assert!(change != 0.0 && (ratio - change - 100.0).abs() < 1e-9, "{ratio} and {change}, both in %");
    let of_attempts = ours("measure = \"mean\"\nof = \"failed-over-attempts\"");
    let of_promoted = ours("measure = \"mean\"\nof = \"failed-over-promoted\"");
    // Of first touch, which promotes nothing, there is neither.
    let expected = of_promoted / (of_promoted + 100.0) * 100.0;
    assert!(of_promoted > 0.0 && (of_attempts - expected).abs() < 1e-9, "{of_attempts} of {of_promoted}");
}

#[test]
fn the_papers_distinct_figures_are_counted_apart() {
    let all = built_in();
    let figures = |prefix: &str| {
        let of = |row: &&crate::Row| row.kind == Kind::Figure && row.paper.has_number() && row.id.starts_with(prefix);
        all.rows.iter().filter(of).count()
    };
    assert_eq!(["FM.", "MM.", "FH.", "HW.", "TU.", "RV."].map(figures), [32, 22, 32, 15, 22, 0]);
    let is_ours = |row: &&crate::Row| row.source == "goal of this project";
    assert!(all.rows.iter().filter(is_ours).all(|row| row.kind == Kind::Goal));
}

#[test]
fn a_loss_is_counted_from_the_run_with_everything_fast() {
    let loss = "measure = \"loss\"\ncases = [\"limited tpp at 50%\"]\nsource = \"\"\n#";
    let file = one(
        "source = \"nowhere\"\nmeasure = \"gain\"\nsettings = [\"gups\"]\npolicies = [\"tpp\", \"first-touch\"]",
        loss,
    );
    let document = run(&file.unwrap(), &["T"], 4096, &[1]);
    let seconds: Vec<f64> = document.runs.iter().map(|run| run["seconds"].as_f64().unwrap()).collect();
    assert_eq!(seconds.len(), 2);
    let (full, half) = (seconds[1].min(seconds[0]), seconds[1].max(seconds[0]));
    let ours = document.rows[0].ours.unwrap();
    assert!((ours - (half / full - 1.0) * 100.0).abs() < 1e-9 && ours > 1.0, "{ours} of {seconds:?}");
}

#[test]
fn a_sweep_whose_runs_are_identical_is_refused() {
    // Both caps are far above what the scaled program has.
    let same = "policies = [\"flexhm max_migration_size=1024GiB\", \"flexhm max_migration_size=4096GiB\"]";
    let sweep = "measure = \"fastest\"\nexpected = \"flexhm max_migration_size=4096GiB\"\nstated = \"the largest\"";
    let text = one(
        "measure = \"gain\"\nsettings = [\"gups\"]\npolicies = [\"tpp\", \"first-touch\"]",
        &format!("{sweep}\nsettings = [\"gups\"]\n{same}"),
    );
    let document = run(&text.unwrap(), &["T"], 4096, &[1]);
    let row = &document.rows[0];
    assert_eq!((row.verdict, row.ours), (Verdict::Refused, None));
    assert!(
        row.verdict_why.contains("max_migration_size=1024GiB") && row.verdict_why.contains("identical"),
        "{}",
        row.verdict_why
    );
}

#[test]
fn what_a_policy_is_set_to_is_tried_before_anything_runs() {
    let all = built_in();
    let plan = |scale: u32, set: &str| {
        let options = Options { scale, seeds: vec![1], set: vec![set.to_owned()] };
        Plan::new(all.select(&["FM.fig12".to_owned()]).unwrap(), options).err().unwrap().to_string()
    };
    assert!(plan(1024, "flexmem.beta=NaN").starts_with("--set flexmem.beta=NaN: "));
    assert!(plan(1024, "flexmem").contains("expected POLICY.KEY=VALUE"));
    assert!(plan(32, "flexmem.beta=0.2").contains("expected a factor from 64 to 4096"));
}
