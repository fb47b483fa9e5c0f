//! A set-associative table of up to 16 ways: the common body of caches and TLBs.
//!
//! In: keys. Out: hit or miss, and what was evicted. Must not: know what a key means.
//!
//! One set is one 64-byte line of the host, so a lookup touches one line, compares its keys four at a time and branches
//! once or not at all. Replacement is the one-bit approximation of LRU that real caches use ("bit PLRU", also known as
//! NRU): a use sets the way's bit, and when all are set the others are cleared; the first way without its bit is the
//! victim. Two ways are exact LRU; with more, the victim is some way not used since the bits were last cleared, and never
//! the one used last.

use terrace_core::prefetch::prefetch;

/// Most ways a table can have: the keys of one set fill one host cache line.
pub const MAX_WAYS: u32 = 16;

/// A key no lookup uses; empty ways hold it.
pub const NO_KEY: u32 = u32::MAX;

/// Tables of up to 12 ways keep a set's marks in the last word of its line; others in an array of their own.
const MARKS_AT: usize = 15;
/// The vectors of four keys that leave room for the marks.
const VECTORS_WITH_MARKS: usize = 3;

/// All ones in one of four lanes.
const LANES: [[u32; 4]; 4] = [[u32::MAX, 0, 0, 0], [0, u32::MAX, 0, 0], [0, 0, u32::MAX, 0], [0, 0, 0, u32::MAX]];

#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Set([u32; MAX_WAYS as usize]);

/// What an access did to the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// The key was there.
    Hit,
    /// It was not, and took a way that was empty.
    Filled,
    /// It was not, and took the place of this key.
    Evicted {
        /// The key that had to leave.
        key: u32,
        /// Whether it had been marked dirty.
        dirty: bool,
    },
}

/// What an access did, for callers that count instead of branching.
#[derive(Clone, Copy)]
pub(crate) struct Outcome {
    pub(crate) hit: bool,
    /// Of a miss: what the way held; [`NO_KEY`] if nothing.
    pub(crate) victim: u32,
    /// Whether a victim left that had been marked dirty.
    pub(crate) dirty: bool,
}

/// The table.
#[derive(Clone, Debug)]
pub struct Associative {
    sets: Vec<Set>,
    /// Marks of tables with too many ways to keep them in the set. Low half: ways not used since the bits were last
    /// cleared, the victims to be; high half: dirty bits.
    marks: Vec<u32>,
    full: u32,
    vectors: usize,
}

impl Associative {
    /// A table of `entries` in sets of `ways`; at least one set. Entries beyond a whole number of sets are dropped.
    ///
    /// # Panics
    /// When `ways` is 0 or above [`MAX_WAYS`]; presets are checked before they come here.
    pub fn new(entries: u64, ways: u32) -> Associative {
        assert!((1..=MAX_WAYS).contains(&ways), "a set has 1 to {MAX_WAYS} ways");
        let sets = (entries / u64::from(ways)).max(1) as usize;
        let full = if ways == 16 { 0xffff } else { (1u32 << ways) - 1 };
        let vectors = match ways {
            0..=4 => 1,
            5..=12 => VECTORS_WITH_MARKS,
            _ => 4,
        };
        let mut table = Associative { sets: vec![Set([NO_KEY; 16]); sets], marks: Vec::new(), full, vectors };
        if vectors > VECTORS_WITH_MARKS {
            table.marks = vec![0; sets];
        }
        table.clear();
        table
    }

    /// Entries it can hold.
    pub fn capacity(&self) -> u64 {
        self.sets.len() as u64 * u64::from(self.full.count_ones())
    }

    /// How many vectors of four keys a lookup compares: 1, 3 or 4. What the functions generic over `VECTORS` must be
    /// called with.
    pub(crate) fn vectors(&self) -> usize {
        self.vectors
    }

    /// Which set a key belongs to. A multiplicative hash, as the slice hash of real last-level caches: consecutive keys
    /// spread over all sets, and the number of sets need not be a power of two.
    #[inline(always)]
    pub fn set_of(&self, key: u64) -> usize {
        let mixed = (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32;
        ((u64::from(mixed) * self.sets.len() as u64) >> 32) as usize
    }

    /// Asks the host to bring the set into its cache: worth it where the table is larger than the host's second level.
    #[inline(always)]
    pub fn prefetch(&self, key: u64) {
        prefetch(&self.sets[self.set_of(key)]);
    }

    /// Looks `key` up in `set`, fills it in on a miss, and marks it dirty if asked to.
    pub fn access(&mut self, set: usize, key: u32, dirty: bool) -> Lookup {
        let outcome = match self.vectors {
            1 => self.access_in::<1>(set, key, dirty),
            VECTORS_WITH_MARKS => self.access_in::<VECTORS_WITH_MARKS>(set, key, dirty),
            _ => self.access_in::<4>(set, key, dirty),
        };
        match outcome {
            Outcome { hit: true, .. } => Lookup::Hit,
            Outcome { victim: NO_KEY, .. } => Lookup::Filled,
            Outcome { victim, dirty, .. } => Lookup::Evicted { key: victim, dirty },
        }
    }

    /// Looks `key` up in its set and fills it in on a miss. Returns whether it was there.
    #[inline]
    pub fn touch(&mut self, key: u32) -> bool {
        match self.vectors {
            1 => self.touch_in::<1>(key),
            VECTORS_WITH_MARKS => self.touch_in::<VECTORS_WITH_MARKS>(key),
            _ => self.touch_in::<4>(key),
        }
    }

    /// [`Associative::access`] for a table whose [`Associative::vectors`] the caller knows.
    ///
    /// Hit and miss take the same path, as which it is cannot be foretold and a wrong guess costs the host more than both.
    #[inline(always)]
    pub(crate) fn access_in<const VECTORS: usize>(&mut self, set: usize, key: u32, dirty: bool) -> Outcome {
        let Associative { sets, marks, full, .. } = self;
        let ways = &mut sets[set].0;
        let held = if VECTORS <= VECTORS_WITH_MARKS { ways[MARKS_AT] } else { marks[set] };
        let found = matches::<VECTORS>(ways, key);
        let way = chosen(found, held);
        let bit = 1 << way;
        let victim = std::mem::replace(&mut ways[way], key);
        let hit = found != 0;
        // All ones on a miss: the way's dirty bit goes with what it held.
        let gone = u32::from(hit).wrapping_sub(1) & (bit << 16);
        let dirt = (held & 0xffff_0000 & !gone) | u32::from(dirty) << (16 + way);
        let next = still_free(held & 0xffff, bit, *full) | dirt;
        *(if VECTORS <= VECTORS_WITH_MARKS { &mut ways[MARKS_AT] } else { &mut marks[set] }) = next;
        Outcome { hit, victim, dirty: held & gone != 0 }
    }

    /// [`Associative::touch`] for a table whose [`Associative::vectors`] the caller knows, and without dirt.
    #[inline(always)]
    pub(crate) fn touch_in<const VECTORS: usize>(&mut self, key: u32) -> bool {
        let set = self.set_of(u64::from(key));
        let Associative { sets, marks, full, .. } = self;
        let ways = &mut sets[set].0;
        let held = if VECTORS <= VECTORS_WITH_MARKS { ways[MARKS_AT] } else { marks[set] };
        let found = matches::<VECTORS>(ways, key);
        let way = chosen(found, held);
        if VECTORS == 1 {
            // All four keys are written, as one vector: a lookup soon after can then take them from the host's store
            // buffer, which a vector that was written in part cannot be read from. Small tables meet this often.
            for (lane, mask) in LANES[way & 3].iter().enumerate() {
                ways[lane] = (ways[lane] & !mask) | (key & mask);
            }
        } else {
            ways[way] = key;
        }
        let next = still_free(held, 1 << way, *full);
        *(if VECTORS <= VECTORS_WITH_MARKS { &mut ways[MARKS_AT] } else { &mut marks[set] }) = next;
        found != 0
    }

    /// Whether `key` is in `set`, without touching its use bit.
    pub fn contains(&self, set: usize, key: u32) -> bool {
        self.find(set, key) != 0
    }

    /// Takes `key` out of `set`. Returns whether it was there.
    pub fn remove(&mut self, set: usize, key: u32) -> bool {
        let found = self.find(set, key);
        if found == 0 {
            return false;
        }
        let way = found.trailing_zeros();
        self.sets[set].0[way as usize] = NO_KEY;
        let inside = self.vectors <= VECTORS_WITH_MARKS;
        let marks = if inside { &mut self.sets[set].0[MARKS_AT] } else { &mut self.marks[set] };
        *marks = *marks & !(1 << (way + 16)) | 1 << way;
        true
    }

    /// Empties the table.
    pub fn clear(&mut self) {
        let mut empty = Set([NO_KEY; 16]);
        if self.vectors <= VECTORS_WITH_MARKS {
            empty.0[MARKS_AT] = self.full;
        }
        self.sets.fill(empty);
        self.marks.fill(self.full);
    }

    fn find(&self, set: usize, key: u32) -> u32 {
        match self.vectors {
            1 => matches::<1>(&self.sets[set].0, key),
            VECTORS_WITH_MARKS => matches::<VECTORS_WITH_MARKS>(&self.sets[set].0, key),
            _ => matches::<4>(&self.sets[set].0, key),
        }
    }
}

/// The way found, or else the first free one. Both stand in one word, the found way below, so that the lowest bit is the
/// choice: written as a choice, the compiler makes a branch of it. The mask spares a bounds check; dirty bits fall out.
#[inline(always)]
const fn chosen(found: u32, marks: u32) -> usize {
    ((found | marks << 16).trailing_zeros() & (MAX_WAYS - 1)) as usize
}

/// The free ways after one was used: all but that one, or if none is left all but that one again.
#[inline(always)]
const fn still_free(free: u32, used: u32, full: u32) -> u32 {
    let left = free & !used;
    if left == 0 { full & !used } else { left }
}

/// One bit a way: which of the first `4 * VECTORS` keys equal `key`, which is not [`NO_KEY`].
#[cfg(target_feature = "sse2")]
#[inline(always)]
fn matches<const VECTORS: usize>(ways: &[u32; 16], key: u32) -> u32 {
    use safe_arch::{
        cast_to_m128_from_m128i, cmp_eq_mask_i32_m128i, m128i, move_mask_i8_m128i, move_mask_m128,
        pack_i16_to_i8_m128i, pack_i32_to_i16_m128i, set_splat_i32_m128i, zeroed_m128i,
    };
    let quarter = |at: usize| m128i::from([ways[at], ways[at + 1], ways[at + 2], ways[at + 3]]);
    let wanted = set_splat_i32_m128i(key as i32);
    let equal = |at: usize| cmp_eq_mask_i32_m128i(quarter(at), wanted);
    if VECTORS == 1 {
        return move_mask_m128(cast_to_m128_from_m128i(equal(0))) as u32;
    }
    let low = pack_i32_to_i16_m128i(equal(0), equal(4));
    let last = if VECTORS == 4 { equal(12) } else { zeroed_m128i() };
    let high = pack_i32_to_i16_m128i(equal(8), last);
    move_mask_i8_m128i(pack_i16_to_i8_m128i(low, high)) as u32
}

/// One bit a way: which of the first `4 * VECTORS` keys equal `key`, which is not [`NO_KEY`].
#[cfg(not(target_feature = "sse2"))]
#[inline(always)]
fn matches<const VECTORS: usize>(ways: &[u32; 16], key: u32) -> u32 {
    ways[..4 * VECTORS].iter().enumerate().fold(0, |bits, (way, &held)| bits | (u32::from(held == key) << way))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_is_found_and_no_other() {
        let mut ways = [NO_KEY; 16];
        for (way, held) in ways.iter_mut().enumerate() {
            *held = 1000 + way as u32;
        }
        for way in 0..16 {
            let key = 1000 + way as u32;
            assert_eq!(matches::<4>(&ways, key), 1 << way);
            assert_eq!(matches::<3>(&ways, key), if way < 12 { 1 << way } else { 0 });
            assert_eq!(matches::<1>(&ways, key), if way < 4 { 1 << way } else { 0 });
        }
        assert_eq!(matches::<4>(&ways, 5), 0);
    }

    #[test]
    fn what_was_not_used_lately_leaves_first_and_dirt_goes_with_it() {
        let mut table = Associative::new(4, 4);
        assert_eq!(table.capacity(), 4);
        for key in 0..4 {
            assert_eq!(table.access(0, key, key == 1), Lookup::Filled);
        }
        // Filling the fourth way set all bits, so only key 3 counts as used; key 0 is the first victim.
        assert_eq!(table.access(0, 0, false), Lookup::Hit);
        assert_eq!(table.access(0, 9, false), Lookup::Evicted { key: 1, dirty: true });
        assert_eq!(table.access(0, 10, false), Lookup::Evicted { key: 2, dirty: false });
        assert!(table.contains(0, 10) && !table.contains(0, 1));
        assert!(table.remove(0, 10) && !table.contains(0, 10) && !table.remove(0, 10));
        table.clear();
        assert!(!table.contains(0, 9));
    }

    #[test]
    fn keys_spread_over_all_sets() {
        let table = Associative::new(16 * 1000, 16);
        let mut load = vec![0u32; 1000];
        for key in 0..16_000u64 {
            load[table.set_of(key)] += 1;
        }
        assert!(load.iter().all(|&n| n > 4 && n < 32), "{:?}", (load.iter().min(), load.iter().max()));
    }

    /// The definition, one way at a time: keys, use bits and dirty bits of one set.
    struct Plain(Vec<(u32, bool, bool)>);

    impl Plain {
        fn access(&mut self, key: u32, dirty: bool) -> Lookup {
            let hit = self.0.iter().position(|way| way.0 == key);
            // A single way is the victim whatever its bit.
            let at = hit.unwrap_or_else(|| self.0.iter().position(|way| !way.1).unwrap_or(0));
            let before = self.0[at];
            self.0[at] = (key, true, dirty || (hit.is_some() && before.2));
            if self.0.iter().all(|way| way.1) {
                self.0.iter_mut().enumerate().for_each(|(way, held)| held.1 = way == at);
            }
            match (hit, before.0) {
                (Some(_), _) => Lookup::Hit,
                (None, NO_KEY) => Lookup::Filled,
                (None, key) => Lookup::Evicted { key, dirty: before.2 },
            }
        }
    }

    #[test]
    fn every_number_of_ways_equals_the_definition() {
        for ways in 1..=MAX_WAYS {
            let mut table = Associative::new(u64::from(ways), ways);
            let mut plain = Plain(vec![(NO_KEY, false, false); ways as usize]);
            let mut state = u64::from(ways);
            for _ in 0..20_000 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let key = ((state >> 33) % u64::from(ways + ways / 2)) as u32;
                let dirty = state >> 60 == 0;
                assert_eq!(table.access(0, key, dirty), plain.access(key, dirty), "{ways} ways");
                if state >> 59 == 31 {
                    let there = table.remove(0, key);
                    assert!(there && !table.contains(0, key));
                    plain.0.iter_mut().filter(|way| way.0 == key).for_each(|way| *way = (NO_KEY, false, false));
                }
            }
        }
    }
}
