//! Trials on made-up programs: how often chance is called harm, how soon harm is found, whether intervals cover.

use terrace_core::random::{SplitMix64, unit};

use super::sequence::Side;
use super::*;

/// A made-up program: noise of each window that depends on the one before, jumps, and a drift.
struct Program {
    random: SplitMix64,
    noise: f64,
    /// Share of a window's noise that is the last one's.
    persistence: f64,
    drift: f64,
    wild: bool,
    state: f64,
    window: u64,
}

impl Program {
    fn new(seed: u64, noise: f64) -> Program {
        let random = SplitMix64::new(seed ^ 0x5eed_0000);
        Program { random, noise, persistence: 0.0, drift: 0.0, wild: false, state: 0.0, window: 0 }
    }

    /// Standard normal by Box and Muller (1958).
    fn normal(&mut self) -> f64 {
        let (radius, angle) = (1.0 - unit(self.random.next()), unit(self.random.next()));
        (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos()
    }

    fn speed(&mut self, effect: f64) -> f64 {
        let fresh = self.normal() * (1.0 - self.persistence.powi(2)).sqrt();
        self.state = self.persistence * self.state + fresh;
        let jump = if self.wild && self.random.below(10) == 0 { 20.0 * self.normal() } else { 0.0 };
        self.window += 1;
        (7.0 + effect + self.noise * (self.state + jump) + self.drift * self.window as f64).exp()
    }
}

/// Windows of a trial until harm is shown, or all of them.
fn run(seed: u64, program: &mut Program, effect: f64, windows: u64) -> Trial {
    let mut trial = Trial::new(TrialConfig::new(seed));
    for _ in 0..windows {
        let speed = program.speed(if trial.arm() == Arm::Treated { effect } else { 0.0 });
        trial.finish(Some(speed));
        if trial.harms() {
            break;
        }
    }
    trial
}

const TRIALS: u64 = 300;

fn share(of: impl Fn(u64) -> bool) -> f64 {
    (0..TRIALS).filter(|seed| of(*seed)).count() as f64 / TRIALS as f64
}

#[test]
fn chance_is_called_harm_in_fewer_trials_than_the_error_allows() {
    // Of 300 trials at 5 % the share has a standard deviation of 1.3 points.
    type Change = fn(&mut Program);
    let kinds: [(&str, Change); 5] = [
        ("independent", |_| {}),
        ("the same for minutes", |program| program.persistence = 0.95),
        ("drifting", |program| program.drift = 0.02),
        ("wild", |program| program.wild = true),
        ("falling and persistent", |program| (program.persistence, program.drift) = (0.8, -0.01)),
    ];
    for (name, change) in kinds {
        let alarms = share(|seed| {
            let mut program = Program::new(seed, 0.02);
            change(&mut program);
            run(seed, &mut program, 0.0, 100).harms()
        });
        println!("{name}: {alarms:.4}");
        assert!(alarms <= 0.05 + 0.026, "{name}: {alarms}");
    }
}

#[test]
fn harm_of_five_percent_is_found_within_twelve_windows() {
    for (noise, least) in [(0.005, 0.99), (0.01, 0.97), (0.015, 0.8)] {
        let found = share(|seed| {
            let trial = run(seed, &mut Program::new(seed, noise), (0.95f64).ln(), 12);
            trial.harms() && trial.windows() <= 12
        });
        println!("noise {noise}: {found:.3}");
        assert!(found >= least, "noise {noise}: {found}");
    }
    // Of 5 % only what exceeds the allowed loss counts.
    let found = share(|seed| {
        let mut trial = Trial::new(TrialConfig { allowed_loss: 0.02, ..TrialConfig::new(seed) });
        let mut program = Program::new(seed, 0.005);
        for _ in 0..12 {
            trial.finish(Some(program.speed(if trial.arm() == Arm::Treated { (0.95f64).ln() } else { 0.0 })));
        }
        trial.harms()
    });
    assert!(found >= 0.97, "with 2 % allowed: {found}");
    // Smaller harm, or more noise, takes longer, and is found.
    let found = share(|seed| run(seed, &mut Program::new(seed, 0.03), (0.95f64).ln(), 150).harms());
    println!("noise 0.03: {found:.3}");
    assert!(found >= 0.9, "{found}");
}

#[test]
fn a_gain_is_reported_with_an_interval_that_covers_it() {
    for (pairs, noise, widest) in [(6, 0.01, 0.2), (20, 0.01, 0.04), (60, 0.02, 0.04)] {
        let windows = if pairs == 6 { 12 } else { 12 + (pairs - 6) * 4 };
        let mut widths = Vec::new();
        let mut covered = 0;
        for seed in 0..TRIALS {
            let trial = run(seed, &mut Program::new(seed, noise), (1.05f64).ln(), windows);
            let Some(Gain { gain, interval: Some((low, high)) }) = trial.gain() else { panic!("{trial:?}") };
            assert!(low <= gain && gain <= high && (gain - 0.05).abs() < 0.05, "{low} {gain} {high}");
            widths.push(high - low);
            covered += u64::from(low <= 0.05 && 0.05 <= high);
        }
        widths.sort_by(f64::total_cmp);
        let (median, covered) = (widths[widths.len() / 2], covered as f64 / TRIALS as f64);
        println!("{pairs} pairs, noise {noise}: {covered:.3} covered, median width {median:.4}");
        assert!(covered >= 0.9 - 0.03 && median < widest, "{pairs} pairs: {covered}, {median}");
    }
}

#[test]
fn five_pairs_can_show_nothing_and_six_can() {
    let mut program = Program::new(1, 1e-4);
    assert_eq!(run(3, &mut program, -0.5, 10).gain().unwrap().interval, None, "chance has five equal signs in 1 of 32");
    assert!(run(3, &mut program, -0.5, 12).harms());
}

#[test]
fn equal_windows_have_no_effect_and_allowed_losses_are_no_harm() {
    let mut trial = Trial::new(TrialConfig { allowed_loss: 0.02, ..TrialConfig::new(5) });
    for _ in 0..40 {
        trial.finish(Some(1000.0));
    }
    let known = trial.gain().unwrap();
    assert!(known.gain == 0.0 && !trial.harms(), "{known:?}");
    let mut trial = Trial::new(TrialConfig { allowed_loss: 0.02, ..TrialConfig::new(5) });
    let mut program = Program::new(9, 0.001);
    for _ in 0..60 {
        let effect = if trial.arm() == Arm::Treated { -0.01 } else { 0.0 };
        trial.finish(Some(program.speed(effect)));
    }
    assert!(!trial.harms() && trial.is_harmless(), "a loss of 1 % of 2 % allowed: {:?}", trial.gain());
}

#[test]
fn windows_come_in_pairs_by_coin_and_at_most_one_of_four_is_left_alone() {
    let arms = |seed| -> Vec<Arm> {
        let mut trial = Trial::new(TrialConfig::new(seed));
        let each = (0..412).map(|_| {
            let arm = trial.arm();
            trial.finish(Some(1.0));
            arm
        });
        each.collect()
    };
    let one = arms(7);
    assert_eq!(one, arms(7), "a seed has one order");
    assert_ne!(one, arms(8));
    let alone = |arms: &[Arm]| arms.iter().filter(|arm| **arm == Arm::Control).count();
    assert_eq!((alone(&one[..12]), alone(&one[12..])), (6, 100));
    assert!(one[..12].chunks(2).all(|pair| pair[0] != pair[1]));
    let first = (0..400).filter(|seed| Trial::new(TrialConfig::new(*seed)).arm() == Arm::Treated).count();
    assert!((150..250).contains(&first), "{first}");
}

#[test]
fn a_window_that_was_not_measured_has_its_pair_made_again() {
    let mut trial = Trial::new(TrialConfig::new(2));
    for speed in [None, Some(0.0), Some(f64::NAN), Some(-1.0), Some(f64::INFINITY)] {
        trial.finish(speed);
        assert_eq!(trial.gain(), None);
    }
    let first = trial.arm();
    trial.finish(Some(100.0));
    assert_ne!(trial.arm(), first);
    trial.finish(None);
    assert_eq!((trial.windows(), trial.discarded()), (0, 7));
    let arm = trial.arm();
    trial.finish(Some(if arm == Arm::Treated { 110.0 } else { 100.0 }));
    trial.finish(Some(if arm == Arm::Treated { 100.0 } else { 110.0 }));
    let known = trial.gain().unwrap();
    assert!((known.gain - 0.1).abs() < 1e-9 && trial.windows() == 2, "{known:?}");
}

#[test]
fn evidence_is_one_on_average_whatever_the_sizes_of_the_differences() {
    // All signs of six differences: their mean is exactly that of fair coins.
    let sizes = [0.01, 3.0, 0.2, 0.0, 0.5, 1e-6];
    let of_signs = |signs: u32| {
        let mut sequence = PairedSequence::new();
        for (index, size) in sizes.iter().enumerate() {
            sequence.push(if signs >> index & 1 == 0 { *size } else { -size });
        }
        sequence.evidence(Side::Above, 0.0)
    };
    let mean = (0..64).map(of_signs).sum::<f64>() / 64.0;
    assert!((mean - 1.0).abs() < 1e-12, "{mean}");
}

#[test]
fn the_share_left_alone_follows_the_first_pairs() {
    for (share, of_windows) in [(0.5, 2), (0.25, 4), (0.1, 10), (0.9, 2)] {
        let mut trial = Trial::new(TrialConfig { eager_pairs: 1, ..TrialConfig::new(7) }.with_control(share));
        let mut alone = 0;
        for _ in 0..10 * of_windows {
            alone += usize::from(trial.arm() == Arm::Control);
            trial.finish(Some(1.0));
        }
        assert_eq!(alone, 10, "{share}");
        assert_eq!(trial.differences(), &[0.0; 10]);
    }
}
