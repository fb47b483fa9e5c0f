//! A set-associative table of up to 16 ways: the common body of caches and TLBs.
//!
//! In: keys. Out: hit or miss, and what was evicted. Must not: know what a key means.
//!
//! One set is one 64-byte line of the host, so a lookup touches one line, compares sixteen keys at once and branches
//! once. Replacement is the one-bit approximation of LRU that real caches use ("bit PLRU", also known as NRU): a use
//! sets the way's bit, and when all are set the others are cleared; the first way without its bit is the victim.

use safe_arch::prefetch_t0;

/// Most ways a table can have: the keys of one set fill one host cache line.
pub const MAX_WAYS: u32 = 16;

/// A key no lookup uses; empty ways hold it.
pub const NO_KEY: u32 = u32::MAX;

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

/// The table.
#[derive(Clone, Debug)]
pub struct Associative {
    sets: Vec<Set>,
    /// Low half: use bits; high half: dirty bits.
    marks: Vec<u32>,
    full: u32,
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
        Associative { sets: vec![Set([NO_KEY; 16]); sets], marks: vec![0; sets], full }
    }

    /// Entries it can hold.
    pub fn capacity(&self) -> u64 {
        self.sets.len() as u64 * u64::from(self.full.count_ones())
    }

    /// Which set a key belongs to. A multiplicative hash, as the slice hash of real last-level caches: consecutive keys
    /// spread over all sets, and the number of sets need not be a power of two.
    #[inline]
    pub fn set_of(&self, key: u64) -> usize {
        let mixed = (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32;
        ((u64::from(mixed) * self.sets.len() as u64) >> 32) as usize
    }

    /// Asks the host to bring the set into its cache: worth it where the table is larger than the host's second level.
    #[inline]
    pub fn prefetch(&self, key: u64) {
        prefetch_t0(&self.sets[self.set_of(key)]);
    }

    /// Looks `key` up in `set`, fills it in on a miss, and marks it dirty if asked to.
    ///
    /// Hit and miss take the same path, as which it is cannot be foretold and a wrong guess costs the host more than both.
    #[inline(always)]
    pub fn access(&mut self, set: usize, key: u32, dirty: bool) -> Lookup {
        let ways = &mut self.sets[set].0;
        let marks = &mut self.marks[set];
        let found = matches(ways, key) & self.full;
        let hit = found != 0;
        let bit = lowest(if hit { found } else { !*marks & self.full });
        let victim = std::mem::replace(&mut ways[way_of(bit)], key);
        let was_dirty = *marks & (bit << 16) != 0;
        let kept = if hit { *marks } else { *marks & !(bit << 16) };
        *marks = used(kept, bit, self.full) | (u32::from(dirty) << 16).wrapping_mul(bit);
        if hit {
            Lookup::Hit
        } else if victim == NO_KEY {
            Lookup::Filled
        } else {
            Lookup::Evicted { key: victim, dirty: was_dirty }
        }
    }

    /// Looks `key` up in `set` and fills it in on a miss; does nothing and answers `false` unless `wanted`. For tables
    /// without dirt; free of branches, so that a second level can be asked without knowing what the first said.
    #[inline(always)]
    pub fn touch(&mut self, set: usize, key: u32, wanted: bool) -> bool {
        let ways = &mut self.sets[set].0;
        let marks = &mut self.marks[set];
        let found = matches(ways, key) & self.full;
        let hit = found != 0;
        let bit = lowest(if hit { found } else { !*marks & self.full });
        let way = &mut ways[way_of(bit)];
        *way = if wanted { key } else { *way };
        *marks = if wanted { used(*marks, bit, self.full) } else { *marks };
        hit & wanted
    }

    /// Whether `key` is in `set`, without touching its use bit.
    pub fn contains(&self, set: usize, key: u32) -> bool {
        matches(&self.sets[set].0, key) & self.full != 0
    }

    /// Takes `key` out of `set`. Returns whether it was there.
    pub fn remove(&mut self, set: usize, key: u32) -> bool {
        let found = matches(&self.sets[set].0, key) & self.full;
        if found == 0 {
            return false;
        }
        let way = found.trailing_zeros();
        self.sets[set].0[way as usize] = NO_KEY;
        self.marks[set] &= !((1 << way) | (1 << (way + 16)));
        true
    }

    /// Empties the table.
    pub fn clear(&mut self) {
        self.sets.fill(Set([NO_KEY; 16]));
        self.marks.fill(0);
    }
}

/// The lowest bit that is set; at least one is, as use bits are never all set.
#[inline(always)]
const fn lowest(bits: u32) -> u32 {
    bits & bits.wrapping_neg()
}

/// The way a bit stands for. The mask spares a bounds check.
#[inline(always)]
const fn way_of(bit: u32) -> usize {
    bit.trailing_zeros() as usize & (MAX_WAYS as usize - 1)
}

/// The use bits after `way` was used: set, and if that makes all of them set, the only one. Dirty bits stay.
#[inline(always)]
const fn used(marks: u32, way: u32, full: u32) -> u32 {
    let next = marks | way;
    if next & full == full { (next & 0xffff_0000) | way } else { next }
}

/// One bit a way: which of the sixteen keys equal `key`.
#[cfg(target_feature = "sse2")]
#[inline(always)]
fn matches(ways: &[u32; 16], key: u32) -> u32 {
    use safe_arch::{
        cmp_eq_mask_i32_m128i, m128i, move_mask_i8_m128i, pack_i16_to_i8_m128i, pack_i32_to_i16_m128i,
        set_splat_i32_m128i,
    };
    let quarter = |at: usize| m128i::from([ways[at], ways[at + 1], ways[at + 2], ways[at + 3]]);
    let wanted = set_splat_i32_m128i(key as i32);
    let equal = |at: usize| cmp_eq_mask_i32_m128i(quarter(at), wanted);
    let low = pack_i32_to_i16_m128i(equal(0), equal(4));
    let high = pack_i32_to_i16_m128i(equal(8), equal(12));
    move_mask_i8_m128i(pack_i16_to_i8_m128i(low, high)) as u32
}

/// One bit a way: which of the sixteen keys equal `key`.
#[cfg(not(target_feature = "sse2"))]
#[inline]
fn matches(ways: &[u32; 16], key: u32) -> u32 {
    ways.iter().enumerate().fold(0, |bits, (way, &held)| bits | (u32::from(held == key) << way))
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
            assert_eq!(matches(&ways, 1000 + way as u32), 1 << way);
        }
        assert_eq!(matches(&ways, 5), 0);
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
}
