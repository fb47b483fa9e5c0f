//! Looking ahead: where the next places follow from random numbers alone, they can be known before they are needed.
//!
//! In: a thread's random numbers, and how the program draws an operation from them. Out: the operations of some steps
//! later, so that a traced run can ask the host for what they will touch. Must not: change what the program draws, or do
//! anything in a native run, whose misses are its own.
//!
//! A traced run is one host thread that plays many, and what it waits for is the host's memory, not the program's.

use crate::memory::Lane;
use crate::random::Random;

/// Operations looked ahead: long enough to hide a miss of the host, short enough to stay in its buffers.
const STEPS: usize = 12;

/// A second copy of a thread's random numbers, some operations ahead of the first.
#[derive(Clone, Debug)]
pub(crate) struct Ahead(Random);

impl Ahead {
    /// A copy of `random` that has drawn the next operations.
    pub(crate) fn of<T>(random: &Random, draw: impl Fn(&mut Random) -> T) -> Ahead {
        let mut copy = random.clone();
        (0..STEPS).for_each(|_| {
            draw(&mut copy);
        });
        Ahead(copy)
    }

    /// In a traced run, draws one operation more and hands it to `seen`.
    #[inline(always)]
    pub(crate) fn step<L: Lane, T>(&mut self, _lane: &L, draw: impl Fn(&mut Random) -> T, seen: impl FnOnce(T)) {
        if !L::SHARED {
            seen(draw(&mut self.0));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Memory;
    use crate::traced::{Access, AccessSink, TracedMemory};

    struct Nowhere;

    impl AccessSink for Nowhere {
        fn accesses(&mut self, _: &[Access]) {}
    }

    #[test]
    fn what_is_seen_ahead_comes() {
        let mut sink = Nowhere;
        let mut memory = TracedMemory::new(1, &mut sink);
        // Operations that take one number or two.
        let draw =
            |random: &mut Random| if random.below(3) == 0 { random.bits() } else { random.bits() ^ random.bits() };
        let mut random = Random::new(1, 2);
        let mut ahead = Ahead::of(&random, draw);
        let (mut seen, mut drawn) = (Vec::new(), Vec::new());
        for _ in 0..100 {
            ahead.step(memory.main(), draw, |operation| seen.push(operation));
            drawn.push(draw(&mut random));
        }
        assert_eq!(seen[..100 - STEPS], drawn[STEPS..]);
    }
}
