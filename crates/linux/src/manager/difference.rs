//! What a process no longer maps.
//!
//! In: its ranges as they were and as they are. Out: what is gone. Must not: know what the ranges are for.

use std::ops::Range;

use terrace_core::units::Vpn;

use crate::process::MemoryRange;

/// The parts of `before` that `after` no longer covers. Both by address, without overlaps.
pub(super) fn difference(before: &[MemoryRange], after: &[MemoryRange]) -> Vec<Range<Vpn>> {
    let mut gone = Vec::new();
    for old in before {
        let mut at = old.start;
        let first = after.partition_point(|new| new.end <= old.start);
        for new in after[first..].iter().take_while(|new| new.start < old.end) {
            if new.start > at {
                gone.push(at..new.start);
            }
            at = at.max(new.end);
        }
        if at < old.end {
            gone.push(at..old.end);
        }
    }
    gone
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Backing;

    fn ranges(of: &[(u64, u64)]) -> Vec<MemoryRange> {
        of.iter()
            .map(|&(start, end)| MemoryRange { start: Vpn(start), end: Vpn(end), backing: Backing::Anonymous })
            .collect()
    }

    #[test]
    fn what_is_no_longer_mapped_is_found_whatever_was_split_or_merged() {
        let check = |before: &[(u64, u64)], after: &[(u64, u64)], gone: &[(u64, u64)]| {
            let found: Vec<(u64, u64)> = difference(&ranges(before), &ranges(after))
                .into_iter()
                .map(|range| (range.start.0, range.end.0))
                .collect();
            assert_eq!(found, gone, "{before:?} to {after:?}");
        };
        check(&[(0, 10)], &[(0, 10)], &[]);
        check(&[(0, 10)], &[], &[(0, 10)]);
        check(&[(0, 10)], &[(2, 4), (6, 8)], &[(0, 2), (4, 6), (8, 10)]);
        check(&[(0, 4), (6, 10)], &[(0, 10)], &[]);
        check(&[(0, 4), (6, 10)], &[(2, 7)], &[(0, 2), (7, 10)]);
        check(&[(0, 4)], &[(4, 8)], &[(0, 4)]);
    }
}
