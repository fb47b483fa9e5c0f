//! Which misses a hardware prefetcher was ahead of, and which of them by long enough.
//!
//! In: the lines that miss, by thread, and how many accesses a tier's latency is worth. Out: whether a line continues a stream, and whether it
//! was there in time. Must not: bring anything in: a prefetched line is a miss whose latency overlaps with others of its stream.
//!
//! As the streamer of Intel's second-level cache does (Intel 64 and IA-32 Architectures Optimization Reference Manual, "Data Prefetching"):
//! it follows accesses in ascending or descending order within a 4 KiB page, one forward or backward stream a page, in 32 pages, asks for up to
//! two lines at each access, and runs up to 20 lines ahead. Two misses in one direction begin a stream; so the first of each page wait as any
//! other load. While the streamer gains on the program, the line that comes after `n` others of its stream was asked for `n / 2` of them ago;
//! from the 40th on it was 20. The line is there in time if these accesses of the stream take the program longer than the memory takes for
//! it. So a program that computes finds its lines in the cache, one that waits for memory catches up with the streamer, and slow memory is
//! caught up with sooner.

use terrace_core::units::TierId;
use terrace_machine::cache::PAGE_LINES;
use terrace_machine::preset::Tier;

/// Pages that are followed at once.
const PAGES: usize = 32;
/// Lines that the prefetcher runs ahead.
const AHEAD: u8 = 20;
/// Lines that it asks for at an access.
const A_TIME: u8 = 2;

/// The last miss in a page.
#[derive(Clone, Copy, Debug, Default)]
struct Last {
    /// Page and one, so that nothing is followed at first.
    page: u64,
    /// Accesses of the thread when it was.
    when: u32,
    line: u8,
    /// 1 upwards, -1 downwards, 0 not known yet.
    direction: i8,
    /// Lines that the prefetcher has gained on the program since the stream began.
    gained: u8,
}

/// What a prefetcher was to a miss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ahead {
    /// The line continues no stream.
    No,
    /// The line was asked for too late to be there.
    Late,
    /// The line was there.
    InTime,
}

/// What one thread's prefetcher follows.
#[derive(Clone, Debug, Default)]
pub(super) struct Streams {
    pages: [Last; PAGES],
    /// Accesses of the thread so far, cache hits included; they wrap.
    accesses: u32,
}

impl Streams {
    /// What the prefetcher was to the miss of `line`, which is `at` accesses after those that were counted. A line of its tier takes as long as
    /// `takes` accesses of the program.
    #[inline(always)]
    pub(super) fn follow(&mut self, line: u64, at: usize, takes: u32) -> Ahead {
        let (page, line) = (line / PAGE_LINES + 1, (line % PAGE_LINES) as u8);
        let when = self.accesses.wrapping_add(at as u32);
        let last = &mut self.pages[page as usize % PAGES];
        if last.page != page {
            *last = Last { page, when, line, direction: 0, gained: 0 };
            return Ahead::No;
        }
        let step = line.abs_diff(last.line);
        let direction = (line as i8 - last.line as i8).signum();
        let follows = direction != 0 && direction == last.direction && step <= AHEAD;
        if !follows {
            if direction != 0 {
                *last = Last { page, when, line, direction, gained: 0 };
            }
            return Ahead::No;
        }
        let lead = u32::from((last.gained / A_TIME).min(AHEAD));
        let apart = when.wrapping_sub(last.when);
        last.gained = (last.gained + A_TIME).saturating_sub(step).min(AHEAD * A_TIME);
        (last.when, last.line) = (when, line);
        if lead.saturating_mul(apart) >= takes { Ahead::InTime } else { Ahead::Late }
    }

    /// Counts accesses of the thread.
    #[inline(always)]
    pub(super) fn count(&mut self, accesses: usize) {
        self.accesses = self.accesses.wrapping_add(accesses as u32);
    }
}

/// How many accesses of the program the latency of each tier is worth, at these factors on it and this many nanoseconds an access.
pub(super) fn accesses_of_latency(tiers: &[Tier], factor: &[f64; TierId::MAX], access_ns: f64) -> [u32; TierId::MAX] {
    std::array::from_fn(|k| match tiers.get(k) {
        // A conversion to an integer saturates.
        Some(tier) if access_ns > 0.0 => (tier.read_latency_ns * factor[k] / access_ns).ceil() as u32,
        _ => 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_machine::preset::Machine;

    /// What the prefetcher was to each of these lines, one access after another, where a line takes as long as `takes` accesses.
    fn ahead(lines: impl IntoIterator<Item = u64>, takes: u32) -> Vec<Ahead> {
        let mut streams = Streams::default();
        let mut one = |line| {
            let ahead = streams.follow(line, 0, takes);
            streams.count(1);
            ahead
        };
        lines.into_iter().map(&mut one).collect()
    }

    fn followed(lines: impl IntoIterator<Item = u64>) -> usize {
        ahead(lines, 0).into_iter().filter(|ahead| *ahead == Ahead::InTime).count()
    }

    fn late(lines: impl IntoIterator<Item = u64>, takes: u32) -> usize {
        ahead(lines, takes).into_iter().filter(|ahead| *ahead == Ahead::Late).count()
    }

    #[test]
    fn a_sweep_is_followed_from_the_third_line_of_each_page_up_and_down() {
        assert_eq!(followed(0..10 * PAGE_LINES), 10 * (PAGE_LINES as usize - 2));
        assert_eq!(followed((0..10 * PAGE_LINES).rev()), 10 * (PAGE_LINES as usize - 2));
        // Strides within the reach are streams as well, longer ones are not.
        assert_eq!(followed((0..PAGE_LINES).step_by(16)), 2);
        assert_eq!(followed((0..PAGE_LINES).step_by(21)), 0);
    }

    #[test]
    fn as_many_pages_as_the_prefetcher_knows_are_followed_side_by_side() {
        let beside = |pages: u64| {
            let lines = (0..PAGE_LINES).flat_map(move |line| (0..pages).map(move |page| page * PAGE_LINES + line));
            followed(lines)
        };
        assert_eq!(beside(PAGES as u64), PAGES * (PAGE_LINES as usize - 2));
        // Two pages that take one place after the other keep each other out.
        assert_eq!(beside(2 * PAGES as u64), 0);
    }

    #[test]
    fn what_turns_back_jumps_or_stays_is_no_stream() {
        assert_eq!(followed([0, 5, 3, 8, 2, 9, 1]), 0);
        assert_eq!(followed([7; 100]), 0);
        let mut state = 1u64;
        let random = (0..10_000).map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % (1 << 20)
        });
        assert!(followed(random) < 10, "two misses of one page are a chance in thousands");
    }

    #[test]
    fn a_line_is_late_until_the_streamer_has_gained_what_the_memory_takes() {
        // The line after n others of its stream was asked for n / 2 of them ago, from the 40th on 20.
        assert_eq!(late(0..PAGE_LINES, 1), 2);
        assert_eq!(late(0..PAGE_LINES, 5), 10);
        assert_eq!(late(0..PAGE_LINES, 20), 40);
        assert_eq!(late(0..PAGE_LINES, 21), 62);
        // Four streams side by side: as many accesses lie between two of one.
        let four = || (0..PAGE_LINES).flat_map(|line| (0..4).map(move |page| page * PAGE_LINES + line));
        assert_eq!(late(four(), 20), 4 * 10);
    }

    #[test]
    fn a_stride_of_two_lines_leaves_the_streamer_no_lead() {
        assert_eq!(late((0..PAGE_LINES).step_by(2), 1), 30);
    }

    #[test]
    fn slower_memory_and_a_faster_program_make_a_line_worth_more_accesses() {
        let tiers = Machine::preset("optane-6252").unwrap().tiers;
        let mut factor = [1.0; TierId::MAX];
        assert_eq!(accesses_of_latency(&tiers, &factor, 10.0)[..3], [10, 35, 0]);
        factor[1] = 2.0;
        assert_eq!(accesses_of_latency(&tiers, &factor, 10.0)[..2], [10, 70]);
        assert_eq!(accesses_of_latency(&tiers, &factor, 100.0)[..2], [1, 7]);
    }
}
