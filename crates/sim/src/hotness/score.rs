//! How good an estimate of hotness is: rank correlation, and how many of the truly hottest it names.
//!
//! In: estimates and true counts of the same pages. Out: numbers from -1 or 0 to 1. Must not: know who estimated.

use terrace_core::random::mix;

/// Spearman's rank correlation; equal values share the mean of their ranks. 0 where either side has no order at all.
pub fn rank_correlation(estimate: &[f32], truth: &[f32]) -> f64 {
    let (a, b) = (ranks(estimate), ranks(truth));
    let mean = (a.len() as f64 - 1.0) / 2.0;
    let (mut both, mut of_a, mut of_b) = (0.0, 0.0, 0.0);
    for (a, b) in a.iter().zip(&b) {
        both += (a - mean) * (b - mean);
        of_a += (a - mean) * (a - mean);
        of_b += (b - mean) * (b - mean);
    }
    if of_a > 0.0 && of_b > 0.0 { both / (of_a * of_b).sqrt() } else { 0.0 }
}

fn ranks(values: &[f32]) -> Vec<f64> {
    let mut order: Vec<u32> = (0..values.len() as u32).collect();
    order.sort_unstable_by(|a, b| values[*a as usize].total_cmp(&values[*b as usize]));
    let mut ranks = vec![0.0; values.len()];
    let mut from = 0;
    while from < order.len() {
        let value = values[order[from] as usize];
        let mut to = from;
        while to + 1 < order.len() && values[order[to + 1] as usize] == value {
            to += 1;
        }
        for index in &order[from..=to] {
            ranks[*index as usize] = (from + to) as f64 / 2.0;
        }
        from = to + 1;
    }
    ranks
}

/// The places of the `count` largest values above zero. Among equal ones the choice is as good as random, the same every time.
pub fn hottest(values: &[f32], count: usize) -> Vec<u32> {
    take_hottest(values, (0..values.len() as u32).filter(|at| values[*at as usize] > 0.0).collect(), count)
}

/// The same among these places only.
pub fn hottest_of(values: &[f32], among: &[u32], count: usize) -> Vec<u32> {
    let warm = |at: &u32| values.get(*at as usize).is_some_and(|value| *value > 0.0);
    take_hottest(values, among.iter().copied().filter(warm).collect(), count)
}

fn take_hottest(values: &[f32], mut used: Vec<u32>, count: usize) -> Vec<u32> {
    let order = |a: &u32, b: &u32| {
        values[*b as usize].total_cmp(&values[*a as usize]).then_with(|| mix(u64::from(*a)).cmp(&mix(u64::from(*b))))
    };
    if used.len() > count {
        if count > 0 {
            used.select_nth_unstable_by(count - 1, order);
        }
        used.truncate(count);
    }
    used.sort_unstable();
    used
}

/// How many of sorted `a` are in sorted `b`.
pub fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().filter(|item| b.binary_search(item).is_ok()).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn correlation_is_that_of_the_textbook() {
        assert!((rank_correlation(&[1.0, 2.0, 3.0, 4.0], &[10.0, 20.0, 30.0, 90.0]) - 1.0).abs() < 1e-12);
        assert!((rank_correlation(&[4.0, 3.0, 2.0, 1.0], &[10.0, 20.0, 30.0, 90.0]) + 1.0).abs() < 1e-12);
        // Ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4: 4.5 / sqrt(4.5 * 5).
        assert!((rank_correlation(&[0.0, 5.0, 5.0, 9.0], &[1.0, 2.0, 3.0, 4.0]) - 4.5 / 22.5f64.sqrt()).abs() < 1e-12);
        assert_eq!(rank_correlation(&[7.0; 5], &[1.0, 2.0, 3.0, 4.0, 5.0]), 0.0, "no order, no correlation");
    }

    #[test]
    fn the_hottest_are_those_above_zero_and_no_more_than_asked() {
        let values = [0.0, 3.0, 9.0, 0.0, 4.0];
        assert_eq!(hottest(&values, 2), [2, 4]);
        assert_eq!(hottest(&values, 10), [1, 2, 4]);
        assert_eq!(hottest(&values, 0), [0u32; 0]);
        assert_eq!(common(&[1, 2, 4], &[2, 3, 4]), 2);
        assert_eq!(hottest(&[1.0; 1000], 10), hottest(&[1.0; 1000], 10));
    }
}
