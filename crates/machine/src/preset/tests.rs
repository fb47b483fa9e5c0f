//! Tests of presets.

use super::*;

#[test]
fn every_preset_reads_and_has_a_source_for_every_number() {
    for name in Machine::preset_names() {
        let machine = Machine::preset(name).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(machine.name, name);
        // 15 of the processor, 15 of management, at least 9 a tier.
        assert!(machine.sources.len() >= 30 + 9 * machine.tiers.len(), "{name}: {}", machine.sources.len());
        assert!(machine.sources.iter().all(|source| source.source.len() > 8), "{name}: a source says something");
        let memory: Vec<&Tier> = machine.tiers.iter().filter(|tier| tier.kind == TierKind::Memory).collect();
        assert!(memory.windows(2).all(|pair| pair[0].read_latency_ns < pair[1].read_latency_ns), "{name}: fast first");
    }
}

#[test]
fn latencies_are_those_the_presets_are_named_for() {
    for (name, fast, slow) in [("optane-6252", 98.0, 348.0), ("memtis-nvm", 80.0, 270.0), ("memtis-cxl", 80.0, 170.0)] {
        let machine = Machine::preset(name).unwrap();
        assert_eq!((machine.tiers[0].read_latency_ns, machine.tiers[1].read_latency_ns), (fast, slow), "{name}");
    }
    let pond = Machine::preset("cxl-pond").unwrap();
    assert_eq!(pond.tiers[1].read_latency_ns - pond.tiers[0].read_latency_ns, 89.0);
    assert_eq!(Machine::preset("cxl-170").unwrap().tiers[1].read_latency_ns, 170.0);
    assert_eq!(Machine::preset("cxl-250").unwrap().tiers[1].read_latency_ns, 250.0);
    assert_eq!(Machine::preset("three-tier").unwrap().tiers[2].kind, TierKind::Compressed);
}

#[test]
fn a_name_can_change_numbers() {
    let whole = "optane-6252 management.sample=1.5us tiers.optane.read_latency=200ns processor.memory_parallelism=4";
    let machine = Machine::preset(whole).unwrap();
    let plain = Machine::preset("optane-6252").unwrap();
    assert_eq!((machine.name.as_str(), machine.management.sample_ns), (whole, 1500.0));
    assert_eq!((machine.tiers[1].read_latency_ns, machine.processor.memory_parallelism), (200.0, 4.0));
    let others = |machine: &Machine| {
        let of_it = |source: &&Source| !whole.contains(&source.key);
        machine.sources.iter().filter(of_it).cloned().collect::<Vec<_>>()
    };
    assert_eq!(others(&machine), others(&plain));
    for (wrong, expect) in [
        ("vax management.sample=1us", "no machine is called \"vax\""),
        ("optane-6252 sample=1us", "management.KEY"),
        ("optane-6252 management.simple=1us", "is no number of it"),
        ("optane-6252 tiers.nvm.read_latency=1us", "is no number of it"),
        ("optane-6252 management.sample", "KEY=VALUE"),
        ("optane-6252 management.sample=often", "a time such as"),
        ("optane-6252 processor.memory_parallelism=many", "processor.memory_parallelism"),
    ] {
        let error = Machine::preset(wrong).unwrap_err().to_string();
        assert!(error.contains(expect), "{wrong}: {error}");
    }
}

#[test]
fn errors_name_the_key_and_what_was_expected() {
    let good = PRESETS[0].1;
    let unknown = Machine::preset("vax").unwrap_err().to_string();
    assert!(unknown.contains("vax") && unknown.contains("optane-6252"), "{unknown}");
    for (from, to, expect) in [
        ("\"98ns\"", "98", "tiers.dram.read_latency"),
        ("\"98ns\"", "\"NaNns\"", "tiers.dram.read_latency"),
        ("\"98ns\"", "\"0ns\"", "above zero"),
        ("hint_fault =", "hint_foult =", "hint_fault"),
        ("[processor]", "[processor]\ncolour = { value = 1, source = \"a painter\" }", "colour"),
        ("name = \"optane-6252\"", "name = \"optane-6252\"\nage = 3", "age"),
        ("loading_limit = { value = 0.95", "loading_limit = { value = nan", "loading_limit"),
        ("name = \"optane-6252\"", "name = \"a\\u001b[31m\"", "letters"),
        ("cores = { value = 24", "cores = { value = 4000000000", "1024 modelled"),
        ("\"35.75MiB\"", "\"1EiB\"", "processor.cache_capacity"),
        ("tlb_second_entries = { value = 1536", "tlb_second_entries = { value = 4000000000", "tlb_second_entries"),
        ("\"256B\"", "\"4KiB\"", "64 to 2048"),
        ("\"96KiB\"", "\"1TiB\"", "unit_buffer"),
    ] {
        assert!(good.contains(from), "{from}");
        let error = Machine::from_toml(&good.replacen(from, to, 1)).unwrap_err().to_string();
        assert!(error.contains(expect), "{from} -> {to}: {error}");
    }
    let source = good.find("source = \"").unwrap();
    let end = good[source + 10..].find('"').unwrap();
    let without = format!("{}{}", &good[..source + 10], &good[source + 10 + end..]);
    assert!(Machine::from_toml(&without).unwrap_err().to_string().contains("no source"));
}

#[test]
fn one_core_copies_no_faster_than_the_slower_side() {
    let machine = Machine::preset("optane-6252").unwrap();
    let (dram, optane, bytes) = (&machine.tiers[0], &machine.tiers[1], (2u64 << 20) as f64);
    let loaded =
        |from: &Tier, to: &Tier, load: f64| bytes / machine.management.copy_nanos(bytes, (from, 1.0), (to, load));
    let rate = |from: &Tier, to: &Tier| loaded(from, to, 1.0);
    assert!((rate(dram, dram) - 11.0).abs() < 1e-9);
    assert!((rate(optane, dram) - 2.3).abs() < 1e-9, "39.4 GB/s take 17 readers");
    assert!((rate(dram, optane) - 3.5).abs() < 1e-9, "13.9 GB/s take 4 writers");
    assert!((loaded(dram, optane, 5.0) - 0.7).abs() < 1e-9, "a fifth where each store waits five times as long");
    assert_eq!(machine.management.slow_clear_nanos(bytes, (dram, 1.0)), 0.0);
    let clear = |load| machine.management.slow_clear_nanos(bytes, (optane, load));
    assert!((clear(1.0) - bytes / 3.5 + bytes / 11.0).abs() < 1e-6, "{}", clear(1.0));
    assert!((clear(2.0) - 2.0 * bytes / 3.5 + bytes / 11.0).abs() < 1e-6, "{}", clear(2.0));
}

#[test]
fn latency_rises_with_load_and_never_falls() {
    let loading = Machine::preset("optane-6252").unwrap().tiers[0].loading;
    assert_eq!(loading.factor(0.0), 1.0);
    let curve: Vec<f64> = (0..=100).map(|percent| loading.factor(f64::from(percent) / 100.0)).collect();
    assert!(curve.windows(2).all(|pair| pair[0] <= pair[1]));
    assert!(curve[50] < 1.5 && curve[90] > 1.5, "{} {}", curve[50], curve[90]);
    assert_eq!(loading.factor(5.0), loading.factor(loading.limit));
}
