//! Programs that lose by rule, under the tuner.
//!
//! In: losses by size and window. Out: what it decided. Must not: simulate memory; tests/tuned.rs does.

use std::time::Duration;

use super::*;
use crate::curve::SIZES;
use crate::inputs::{Coverage, NotSteady, leaves_room, steady_saving};

/// A database's answer: half of all that is withheld, as for a program that uses all its memory alike.
fn even() -> Prediction {
    let curve = Curve::of_losses(std::array::from_fn(|place| 0.5 * (1.0 - (place + 1) as f64 / SIZES as f64)));
    Prediction { curve, covered: true, trusted: true }
}

/// The window of this number of a program that uses all of its share, nothing observed.
fn quiet(number: u64, share: f64) -> Window {
    Window {
        end: Time::from_nanos(number * 2_500_000_000),
        length: Duration::from_millis(2500),
        idle: false,
        held_share: share,
        saved_share: 1.0 - share,
        loss: None,
        used_share: share,
        growth_share: 0.0,
        followed_share: 0.0,
        left_room: false,
        return_seconds: None,
        move_seconds: None,
    }
}

/// A program whose loss at a share is `loss(share)`, run for `windows` windows, by what is observed alone.
fn play(config: TunerConfig, windows: u64, loss: impl Fn(u64, f64) -> Option<f64>) -> Tuner {
    play_with(None, config, windows, loss)
}

fn play_with(
    prediction: Option<&Prediction>,
    config: TunerConfig,
    windows: u64,
    loss: impl Fn(u64, f64) -> Option<f64>,
) -> Tuner {
    let mut tuner = Tuner::new(config);
    for number in 1..=windows {
        let window = Window { loss: loss(number, tuner.share()).map(Loss::of_size), ..quiet(number, tuner.share()) };
        tuner.decide(&window, prediction);
    }
    tuner
}

#[test]
fn the_papers_loop_is_the_least_size_within_the_target() {
    let tuner = play_with(Some(&even()), TunerConfig::new(0.05, Mode::Paper), 3, |_, _| Some(0.5));
    assert_eq!(tuner.intervals()[0].action, Action::Waited, "the first window is the program's start");
    assert_eq!((tuner.share(), tuner.intervals()[1].in_coverage), (0.9, Some(true)));
}

#[test]
fn a_program_with_cold_memory_gives_it_back_within_the_target() {
    // Half of it is cold; below that the loss is steep.
    let loss = |_, share: f64| Some(0.004 + (0.5 - share).max(0.0) * 2.0);
    for prediction in [None, Some(even())] {
        let tuner = play_with(prediction.as_ref(), TunerConfig::new(0.05, Mode::Measured), 60, loss);
        let summary = tuner.summary();
        assert!(tuner.share() < 0.6, "{:?}", tuner.intervals().last());
        assert!(summary.saved_share_mean > 0.2 && summary.saved_share_max > 0.4, "{summary:?}");
        assert!(summary.loss.unwrap() <= 0.05 && summary.loss_p95.unwrap() <= 0.05, "{summary:?}");
    }
}

#[test]
fn without_a_database_the_line_through_what_was_observed_says_what_to_expect() {
    // The loss is a straight line, so that the expectation is right from the second window on.
    let tuner = play(TunerConfig::new(0.05, Mode::Measured), 30, |_, share| Some(0.1 * (1.0 - share)));
    let intervals = tuner.intervals();
    assert_eq!((intervals[0].predicted_loss, intervals[0].in_coverage), (None, None));
    assert!(tuner.share() < 0.9, "{:?}", intervals.last());
    for interval in &intervals[3..] {
        let (expected, observed) = (interval.predicted_loss.unwrap(), interval.observed_loss.unwrap());
        assert!((expected - observed).abs() < 1e-9, "{interval:?}");
    }
}

#[test]
fn a_broken_target_is_answered_at_once_and_not_tried_again_soon() {
    // From the 30th window on, the program needs everything.
    let loss = |window, share: f64| Some(if window < 30 { 0.002 } else { (1.0 - share) * 0.5 });
    let tuner = play(TunerConfig::new(0.05, Mode::Measured), 60, loss);
    let intervals = tuner.intervals();
    let first = intervals.iter().position(|interval| interval.observed_loss.unwrap() > 0.05).unwrap();
    assert_eq!(intervals[first].action, Action::BackedOff);
    let over = intervals.iter().filter(|interval| interval.observed_loss.unwrap() > 0.05).count();
    assert!(over <= 3, "{over} of 60 windows over the target");
    assert!(intervals[first + 1..].iter().all(|interval| interval.observed_loss.unwrap() <= 0.055));
    assert!(tuner.summary().loss.unwrap() < 0.05);
}

#[test]
fn as_many_windows_break_the_target_as_the_percentile_allows_however_often_the_program_turns() {
    // At regular intervals it needs, for up to three windows, what it does without in the others.
    for turns in [7, 13, 29, 50] {
        let loss = move |window: u64, share: f64| {
            let needs = window % turns < 3 && window > 3;
            Some(if needs { (1.0 - share) * 2.0 } else { 0.002 })
        };
        let tuner = play(TunerConfig::new(0.05, Mode::Measured), 400, loss);
        let summary = tuner.summary();
        assert!(summary.loss.unwrap() <= 0.05 && summary.loss_p95.unwrap() <= 0.05, "{turns}: {summary:?}");
        assert!(summary.saved_share_mean > 0.015, "{turns}: {summary:?}");
        for pair in tuner.intervals().windows(2).filter(|pair| pair[1].observed_loss.unwrap() > 0.05) {
            assert!(pair[1].fast_share > pair[0].fast_share, "given back at once: {pair:?}");
        }
    }
}

#[test]
fn breaks_that_the_percentile_allows_do_not_make_it_rest_for_longer_and_others_do() {
    // One window in forty is slow whatever is withheld, if anything is; and one in eight.
    let broken_every = |every: u64| {
        let loss =
            move |window: u64, share: f64| Some(if window.is_multiple_of(every) && share < 1.0 { 0.2 } else { 0.002 });
        play(TunerConfig::new(0.05, Mode::Measured), 240, loss)
    };
    let [seldom, often] = [40, 8].map(|every| broken_every(every).summary());
    assert!(seldom.loss_p95.unwrap() <= 0.05 && seldom.loss.unwrap() <= 0.05, "{seldom:?}");
    assert!(seldom.saved_share_mean > 0.3 && often.saved_share_mean < seldom.saved_share_mean, "{seldom:?}, {often:?}");
}

#[test]
fn what_was_given_back_is_not_taken_again_before_it_could_be_used() {
    let mut tuner = Tuner::new(TunerConfig::new(0.05, Mode::Measured));
    let mut used: f64 = 1.0;
    for number in 1..=14u64 {
        // At the eighth window it needs what is out; pages come back by a hundredth a window.
        let share = tuner.share();
        used = if number <= 8 { used.min(share) } else { (used + 0.01).min(share) };
        let broken = number == 8;
        let window = Window {
            loss: Some(Loss::of_size(if broken { 0.4 } else { 0.0 })),
            used_share: used,
            left_room: number > 8 && used < share - MARGIN,
            ..quiet(number, share)
        };
        tuner.decide(&window, None);
    }
    let shares: Vec<f64> = tuner.intervals().iter().map(|interval| interval.fast_share).collect();
    assert!(shares[6] < shares[7], "given back: {shares:?}");
    assert!(shares[8..].iter().all(|share| *share >= shares[7]), "and not taken again: {shares:?}");
}

#[test]
fn what_is_forgotten_is_no_longer_summed_up_and_nothing_else_changes() {
    let loss = |window, _| Some(if window <= 50 { 0.04 } else { 0.001 });
    let mut tuner = play(TunerConfig::new(0.05, Mode::Measured), 90, loss);
    let (share, whole) = (tuner.share(), tuner.summary());
    tuner.forget_all_but(46);
    assert_eq!(tuner.intervals().len(), 90, "not worth it yet");
    tuner.forget_all_but(40);
    assert_eq!((tuner.intervals().len(), tuner.share()), (40, share));
    let late = tuner.summary();
    assert!(late.loss.unwrap() < 0.01 && whole.loss.unwrap() > 0.02, "{late:?} of {whole:?}");
    assert!(late.loss_p95.unwrap() < 0.04 && late.saved_share_max == whole.saved_share_max);
}

#[test]
fn unused_memory_is_withheld_at_once_and_a_growing_program_keeps_its_room() {
    let mut tuner = Tuner::new(TunerConfig::new(0.05, Mode::Measured));
    let mut used = 0.1;
    for number in 1..=12 {
        // Grows by 4 % a window up to the tenth, and is slowed down all the while by what its policy does.
        let growth = if number <= 10 { 0.04 } else { 0.0 };
        used += growth;
        assert!(used <= tuner.share(), "window {number}: {used} in use, {} allowed", tuner.share());
        let window = Window {
            loss: Some(Loss::of_size(0.8)),
            used_share: used,
            growth_share: growth,
            left_room: true,
            ..quiet(number, tuner.share())
        };
        tuner.decide(&window, None);
    }
    assert!(tuner.share() <= 0.5 + MARGIN + 1e-9, "{}", tuner.share());
    assert!((tuner.summary().loss.unwrap() - 0.8).abs() < 1e-9, "it counts, whosever it is");
    assert!(tuner.intervals().iter().all(|interval| interval.action != Action::BackedOff), "more would not help");
    assert!(tuner.summary().saved_share_mean > 0.4, "{:?}", tuner.summary());
}

#[test]
fn what_compressed_memory_takes_is_not_saved_and_does_not_stop_the_tuner() {
    let mut tuner = Tuner::new(TunerConfig::new(0.05, Mode::Measured));
    for number in 1..=40 {
        let share = tuner.share();
        let window = Window {
            // Everything that is out compresses two to one, and costs nothing.
            saved_share: (1.0 - share) / 2.0,
            loss: Some(Loss::of_size(0.0)),
            ..quiet(number, share)
        };
        tuner.decide(&window, None);
    }
    assert!(tuner.share() < 0.3, "{:?}", tuner.intervals().last());
    let summary = tuner.summary();
    assert!((0.3..0.5).contains(&summary.saved_share_max), "{summary:?}");
}

/// A program that touches nothing of half its memory for `windows` windows, and all of it in the next.
fn read_all_at_the_end(windows: u64, return_seconds: f64) -> Summary {
    let mut tuner = Tuner::new(TunerConfig::new(0.05, Mode::Measured));
    let mut now = Time::ZERO;
    for number in 0..=windows {
        let share = tuner.share();
        let lost = if number == windows { (1.0 - share) * return_seconds } else { 0.0 };
        let length = Duration::from_secs_f64(2.5 + lost);
        now = now + length;
        let window = Window {
            end: now,
            length,
            loss: Some(Loss::of_size(lost / 2.5)),
            return_seconds: Some(return_seconds),
            ..quiet(0, share)
        };
        tuner.decide(&window, None);
    }
    tuner.summary()
}

#[test]
fn the_mean_is_within_the_target_though_everything_comes_back_at_once() {
    // 100 GiB of pages that come back at ten microseconds each, and 2 GiB.
    for (return_seconds, windows) in [(262.0, 40), (262.0, 400), (5.2, 12), (5.2, 40)] {
        let summary = read_all_at_the_end(windows, return_seconds);
        let loss = summary.loss.unwrap();
        assert!(loss > 0.0 && loss <= 0.05, "{return_seconds} s, {windows} windows: {summary:?}");
        assert!(summary.saved_share_max > 0.01, "{summary:?}");
    }
    // A small program is not kept from what it can pay for.
    assert!(read_all_at_the_end(12, 0.5).saved_share_max > 0.5);
}

/// A program half of which is cold, whose pages cost it `price` seconds for all of them as they go out, managed for `managing`.
fn move_out(windows: u64, price: f64, managing: f64) -> Tuner {
    let mut tuner = Tuner::new(TunerConfig::new(0.05, Mode::Measured));
    let mut held = 1.0;
    for number in 1..=windows {
        let share = tuner.share();
        let moved = f64::max(held - share, 0.0);
        held = share;
        let standing = (0.5 - share).max(0.0) * 2.0;
        let moving = moved * price / 2.5;
        let loss = standing + moving + managing;
        let window = Window {
            loss: Some(Loss { standing, moving, managing, low: loss * 0.5, high: loss * 1.5 }),
            return_seconds: Some(price),
            move_seconds: Some(price),
            ..quiet(number, share)
        };
        tuner.decide(&window, None);
    }
    tuner
}

#[test]
fn pages_go_out_no_faster_than_the_target_pays_for_and_none_comes_back_for_it() {
    // 1 GiB and 100 GiB at ten microseconds a page.
    for (price, saved) in [(2.6, 0.3), (262.0, 0.01)] {
        let tuner = move_out(200, price, 0.0);
        let summary = tuner.summary();
        let loss = summary.loss.unwrap();
        assert!(loss <= 0.05 && summary.loss_p95.unwrap() <= 0.05, "{summary:?}");
        assert!(summary.saved_share_max > saved, "{price}: {summary:?}");
        assert!((summary.loss_low.unwrap() - loss * 0.5).abs() < 1e-9 && summary.loss_high.unwrap() > loss);
        let grew = tuner.intervals().iter().filter(|interval| interval.action == Action::BackedOff).count();
        assert_eq!(grew, 0, "moving is no reason to bring pages back");
    }
}

#[test]
fn what_managing_costs_slows_the_tuner_down_and_is_no_reason_to_bring_pages_back() {
    let [free, dear, too_dear] = [0.0, 0.03, 0.08].map(|managing| move_out(60, 2.6, managing));
    assert!(dear.summary().saved_share_mean < free.summary().saved_share_mean);
    assert!(dear.summary().saved_share_mean > 0.01 && dear.summary().loss.unwrap() <= 0.05, "{:?}", dear.summary());
    assert_eq!(too_dear.share(), 1.0, "nothing is begun that the target cannot pay for");
    for tuner in [dear, too_dear] {
        assert!(tuner.intervals().iter().all(|interval| interval.action != Action::BackedOff));
    }
}

#[test]
fn where_managing_takes_half_the_target_a_size_may_take_the_other_half() {
    let mut tuner = move_out(30, 2.6, 0.04);
    let broken = |tuner: &Tuner, standing| tuner.is_broken(Loss { standing, managing: 0.04, ..Loss::default() });
    assert!(!broken(&tuner, 0.024) && broken(&tuner, 0.026));
    tuner.managing = 0.01;
    assert!(!broken(&tuner, 0.039) && broken(&tuner, 0.041));
}

#[test]
fn a_slow_window_counts_as_what_it_held_up_and_not_as_long_as_it_took() {
    // 10 windows at full speed, and one that took ten times as long.
    let loss = |number, _| Some(if number == 11 { 9.0 } else { 0.0 });
    let summary = play(TunerConfig::new(0.05, Mode::Measured), 11, loss).summary();
    // 2.25 s lost of 2.5, and 25.25 s without.
    assert!((summary.loss.unwrap() - 2.25 / 25.25).abs() < 1e-9, "{summary:?}");
}

#[test]
fn a_limit_leaves_room_if_more_is_unused_than_policies_keep_free() {
    assert!(leaves_room(1000, 900) && leaves_room(1000, 970));
    assert!(!leaves_room(1000, 980));
}

#[test]
fn without_an_observation_it_goes_by_the_database_and_an_idle_program_is_left_alone() {
    let measured = play_with(Some(&even()), TunerConfig::new(0.05, Mode::Measured), 4, |_, _| None);
    let paper = play_with(Some(&even()), TunerConfig::new(0.05, Mode::Paper), 4, |_, _| None);
    assert_eq!((measured.share(), measured.summary().loss), (paper.share(), None));
    let neither = play(TunerConfig::new(0.05, Mode::Measured), 4, |_, _| None);
    assert_eq!(
        (neither.share(), neither.intervals()[3].action),
        (1.0, Action::Kept),
        "nothing is known: nothing is taken"
    );
    let mut tuner = Tuner::new(TunerConfig::new(0.05, Mode::Paper));
    let window = Window {
        end: Time::from_nanos(1),
        length: Duration::from_secs(1),
        idle: true,
        held_share: 1.0,
        saved_share: 0.0,
        loss: None,
        used_share: 1.0,
        growth_share: 0.0,
        followed_share: 0.0,
        left_room: true,
        return_seconds: None,
        move_seconds: None,
    };
    assert_eq!(tuner.decide(&window, Some(&even())), 1.0);
    assert_eq!(tuner.intervals()[0].action, Action::Waited);
}

#[test]
fn a_database_that_covers_too_little_is_entered_and_not_gone_by() {
    let distrusted = Prediction { covered: false, trusted: false, ..even() };
    let paper = TunerConfig::new(0.05, Mode::Paper);
    // By it the share would be 0.9; what is observed decides instead, as if none had been asked.
    let loss = |_, share: f64| Some(0.02 * (1.0 - share));
    let observed = play(TunerConfig::new(0.05, Mode::Measured), 12, loss);
    let tuner = play_with(Some(&distrusted), paper, 12, loss);
    assert_eq!(tuner.share(), observed.share());
    assert!(tuner.share() < 0.9, "{}", tuner.share());
    assert!(tuner.intervals().iter().all(|interval| {
        interval.in_coverage == Some(false)
            && interval.database_used == Some(false)
            && interval.predicted_loss != Some(0.05)
    }));
    // Where nothing is observed either, nothing is known, and what was withheld on trust is given back.
    let mut tuner = play_with(Some(&even()), paper, 3, |_, _| None);
    assert_eq!(tuner.share(), 0.9);
    tuner.decide(&quiet(4, 0.9), Some(&distrusted));
    assert_eq!((tuner.share(), tuner.intervals()[3].action), (1.0, Action::Grew));
}

#[test]
fn nine_windows_of_ten_are_coverage_enough() {
    let mut coverage = Coverage::default();
    assert!(coverage.share().is_none() && !coverage.is_enough());
    coverage.count(false);
    (0..8).for_each(|_| coverage.count(true));
    assert!(!coverage.is_enough());
    coverage.count(true);
    assert!(coverage.is_enough() && coverage.share() == Some(0.9));
}

#[test]
fn the_steady_saving_has_neither_growth_nor_the_way_down_in_it() {
    let mut tuner = Tuner::new(TunerConfig::new(0.05, Mode::Measured));
    let window = |number: u64, saved_share, followed_share| Window {
        saved_share,
        followed_share,
        loss: Some(Loss::of_size(0.0)),
        ..quiet(number, 1.0)
    };
    // It grows for three windows, of which most is saved as it is not touched yet; then it takes four windows down to 0.3, and stays.
    for (number, (saved, grown)) in
        [(0.9, 0.5), (0.5, 0.4), (0.2, 0.1), (0.0, 0.0), (0.1, 0.005), (0.2, 0.0), (0.3, 0.0)].into_iter().enumerate()
    {
        tuner.decide(&window(number as u64 + 1, saved, grown), None);
    }
    assert_eq!(steady_saving(tuner.intervals()), Err(NotSteady::Short), "two windows are no steady state");
    (8..=11).for_each(|number| {
        tuner.decide(&window(number, 0.3, 0.0), None);
    });
    let steady = steady_saving(tuner.intervals()).unwrap();
    assert!((steady - 0.3).abs() < 1e-9, "{steady}");
    // On its way down it is none either, however long that takes.
    (12..=40).for_each(|number| {
        tuner.decide(&window(number, 0.3 + 0.01 * (number - 11) as f64, 0.0), None);
    });
    assert_eq!(steady_saving(tuner.intervals()), Err(NotSteady::Falling));
    tuner.decide(&window(41, 0.6, 0.3), None);
    assert_eq!(steady_saving(tuner.intervals()), Err(NotSteady::Short), "it grew again");
}
