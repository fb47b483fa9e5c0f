//! Object caches: LRU, CLOCK and FIFO over dense object numbers, for comparison with cache simulators.
//!
//! In: object numbers, a capacity in objects. Out: requests and misses, exact. Must not: know sizes or times: every object
//! counts one, as with `--ignore-obj-size` elsewhere.
//!
//! Dense numbers make the index an array: LRU keeps eight bytes an object, CLOCK and FIFO one byte an object and four a
//! resident one. Objects are asked for twelve requests ahead.

use terrace_core::prefetch::prefetch;

const AHEAD: usize = 12;
const NONE: u32 = u32::MAX;

/// Which object leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Eviction {
    /// The one used longest ago.
    Lru,
    /// The oldest not used since the hand passed it; one bit.
    Clock,
    /// The oldest.
    Fifo,
}

/// What a replay amounted to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Replay {
    /// Requests.
    pub(crate) requests: u64,
    /// Requests for objects that were not in the cache.
    pub(crate) misses: u64,
}

impl Replay {
    /// Misses over requests.
    pub(crate) fn miss_ratio(&self) -> f64 {
        self.misses as f64 / self.requests as f64
    }
}

/// A cache that can be fed piece by piece.
pub(crate) enum ObjectCache {
    /// See [`Eviction::Lru`].
    Lru(Lru),
    /// See [`Eviction::Clock`] and [`Eviction::Fifo`].
    Ring(Ring),
}

impl ObjectCache {
    /// A cache of `capacity` objects (at least one) for numbers below `objects`.
    pub(crate) fn new(eviction: Eviction, capacity: usize, objects: usize) -> ObjectCache {
        let capacity = capacity.max(1);
        match eviction {
            Eviction::Lru => ObjectCache::Lru(Lru::new(capacity, objects)),
            Eviction::Clock => ObjectCache::Ring(Ring::new(capacity, objects, true)),
            Eviction::Fifo => ObjectCache::Ring(Ring::new(capacity, objects, false)),
        }
    }

    /// Requests, in order. Numbers must be below `objects`.
    pub(crate) fn request(&mut self, objects: &[u32]) {
        match self {
            ObjectCache::Lru(lru) => lru.request(objects),
            ObjectCache::Ring(ring) => ring.request(objects),
        }
    }

    /// Totals so far.
    pub(crate) fn replay(&self) -> Replay {
        match self {
            ObjectCache::Lru(lru) => lru.replay,
            ObjectCache::Ring(ring) => ring.replay,
        }
    }
}

#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Link {
    newer: u32,
    older: u32,
}

/// Exact LRU. The list is a ring through the entry after the last object.
pub(crate) struct Lru {
    links: Vec<Link>,
    resident: usize,
    capacity: usize,
    replay: Replay,
}

impl Lru {
    fn new(capacity: usize, objects: usize) -> Lru {
        let mut links = vec![Link { newer: NONE, older: NONE }; objects + 1];
        links[objects] = Link { newer: objects as u32, older: objects as u32 };
        Lru { links, resident: 0, capacity, replay: Replay::default() }
    }

    fn request(&mut self, objects: &[u32]) {
        let root = self.links.len() as u32 - 1;
        for (at, &object) in objects.iter().enumerate() {
            if let Some(&ahead) = objects.get(at + AHEAD) {
                prefetch(&self.links[ahead as usize]);
            }
            let link = self.links[object as usize];
            if self.links[root as usize].older == object {
                continue;
            }
            if link.newer != NONE {
                self.links[link.newer as usize].older = link.older;
                self.links[link.older as usize].newer = link.newer;
            } else {
                self.replay.misses += 1;
                if self.resident == self.capacity {
                    let oldest = self.links[root as usize].newer;
                    let next = self.links[oldest as usize].newer;
                    self.links[root as usize].newer = next;
                    self.links[next as usize].older = root;
                    self.links[oldest as usize] = Link { newer: NONE, older: NONE };
                } else {
                    self.resident += 1;
                }
            }
            let newest = self.links[root as usize].older;
            self.links[object as usize] = Link { newer: root, older: newest };
            self.links[newest as usize].newer = object;
            self.links[root as usize].older = object;
        }
        self.replay.requests += objects.len() as u64;
    }
}

/// CLOCK and FIFO: residents in a ring in the order they came, a hand that goes round.
pub(crate) struct Ring {
    /// 0 not resident, 1 resident, 3 resident and used.
    state: Vec<u8>,
    ring: Vec<u32>,
    hand: usize,
    capacity: usize,
    used: u8,
    replay: Replay,
}

impl Ring {
    fn new(capacity: usize, objects: usize, clock: bool) -> Ring {
        let used = if clock { 3 } else { 1 };
        Ring { state: vec![0; objects], ring: Vec::new(), hand: 0, capacity, used, replay: Replay::default() }
    }

    fn request(&mut self, objects: &[u32]) {
        for (at, &object) in objects.iter().enumerate() {
            if let Some(&ahead) = objects.get(at + AHEAD) {
                prefetch(&self.state[ahead as usize]);
            }
            let state = &mut self.state[object as usize];
            if *state != 0 {
                *state = self.used;
                continue;
            }
            *state = 1;
            self.replay.misses += 1;
            if self.ring.len() < self.capacity {
                self.ring.push(object);
                continue;
            }
            // The hand gives what was used a second chance, and takes the first that was not.
            loop {
                let victim = &mut self.state[self.ring[self.hand] as usize];
                if *victim == 3 {
                    *victim = 1;
                    self.hand = if self.hand + 1 == self.ring.len() { 0 } else { self.hand + 1 };
                } else {
                    *victim = 0;
                    break;
                }
            }
            self.ring[self.hand] = object;
            self.hand = if self.hand + 1 == self.ring.len() { 0 } else { self.hand + 1 };
        }
        self.replay.requests += objects.len() as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    /// The definitions, as plainly as they can be written.
    fn reference(eviction: Eviction, capacity: usize, objects: &[u32]) -> u64 {
        let mut queue: VecDeque<(u32, bool)> = VecDeque::new();
        let mut misses = 0;
        for &object in objects {
            if let Some(at) = queue.iter().position(|entry| entry.0 == object) {
                match eviction {
                    Eviction::Lru => {
                        let entry = queue.remove(at).unwrap();
                        queue.push_back(entry);
                    }
                    Eviction::Clock => queue[at].1 = true,
                    Eviction::Fifo => {}
                }
                continue;
            }
            misses += 1;
            if queue.len() == capacity {
                loop {
                    let (victim, used) = queue.pop_front().unwrap();
                    if eviction == Eviction::Clock && used {
                        queue.push_back((victim, false));
                    } else {
                        break;
                    }
                }
            }
            queue.push_back((object, false));
        }
        misses
    }

    #[test]
    fn every_cache_equals_its_definition() {
        let mut state = 5u64;
        let objects: Vec<u32> = (0..20_000)
            .map(|_| {
                state = terrace_core::random::mix(state);
                // Skewed: the square of a uniform number.
                let unit = terrace_core::random::unit(state);
                (unit * unit * 500.0) as u32
            })
            .collect();
        for eviction in [Eviction::Lru, Eviction::Clock, Eviction::Fifo] {
            for capacity in [1, 2, 17, 100, 499, 600] {
                let mut cache = ObjectCache::new(eviction, capacity, 500);
                for piece in objects.chunks(777) {
                    cache.request(piece);
                }
                let replay = cache.replay();
                let expect = reference(eviction, capacity, &objects);
                assert_eq!((replay.requests, replay.misses), (20_000, expect), "{eviction:?} of {capacity}");
            }
        }
    }
}
