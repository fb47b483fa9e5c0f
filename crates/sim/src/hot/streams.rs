//! Which misses a hardware prefetcher was ahead of.
//!
//! In: the lines that miss, by thread. Out: whether a line continues a stream. Must not: know latencies, or bring anything in: a
//! prefetched line is a miss whose latency overlaps with others of its stream.
//!
//! As the streamer of Intel's second-level cache does (Intel 64 and IA-32 Architectures Optimization Reference Manual, "Data Prefetching"):
//! it follows accesses in ascending or descending order within a 4 KiB page, one forward or backward stream a page, in 32 pages, and runs
//! up to 20 lines ahead. Two misses in one direction begin a stream; so the first of each page wait as any other load.

use terrace_machine::cache::PAGE_LINES;

/// Pages that are followed at once.
const PAGES: usize = 32;
/// Lines that the prefetcher runs ahead.
const AHEAD: u8 = 20;

/// The last miss in a page.
#[derive(Clone, Copy, Debug, Default)]
struct Last {
    /// Page and one, so that nothing is followed at first.
    page: u64,
    line: u8,
    /// 1 upwards, -1 downwards, 0 not known yet.
    direction: i8,
}

/// What one thread's prefetcher follows.
#[derive(Clone, Debug, Default)]
pub(super) struct Streams([Last; PAGES]);

impl Streams {
    /// Whether the miss of `line` continues a stream, which it does from the third of its page on.
    #[inline(always)]
    pub(super) fn follows(&mut self, line: u64) -> bool {
        let (page, line) = (line / PAGE_LINES + 1, (line % PAGE_LINES) as u8);
        let last = &mut self.0[page as usize % PAGES];
        if last.page != page {
            *last = Last { page, line, direction: 0 };
            return false;
        }
        let direction = (line as i8 - last.line as i8).signum();
        let follows = direction != 0 && direction == last.direction && line.abs_diff(last.line) <= AHEAD;
        if direction != 0 {
            *last = Last { page, line, direction };
        }
        follows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn followed(lines: impl IntoIterator<Item = u64>) -> usize {
        let mut streams = Streams::default();
        lines.into_iter().filter(|line| streams.follows(*line)).count()
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
}
