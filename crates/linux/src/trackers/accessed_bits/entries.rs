//! What the entries of an x86-64 page table say, as [`PteState`]s.
//!
//! In: raw entries as the eBPF program copied them. Out: where each page lies, whether it was used. Must not: call
//! the kernel.
//!
//! The format of a present entry is the processor's (Intel SDM volume 3, 5.5.4; AMD64 APM volume 2, 5.4). What an
//! entry means that is not present, Linux decides:
//!
//! - bit 8 set: a present page made inaccessible for a while, by `mprotect(PROT_NONE)` or to see a NUMA hint fault.
//!   Its frame is stored inverted, against speculative reads (L1TF). It keeps its accessed bit.
//! - otherwise, if not 0: a type in bits 59 to 63 and an inverted offset in bits 9 to 58. Types count up from 0 for
//!   the areas that `swapon` added. The topmost are not swap: pages in migration, poisoned pages, pages of a device,
//!   and markers with no page at all. How many are taken off the 32 types depends on the kernel's configuration: 4
//!   for devices, 3 for migration, 1 for poison, 1 for markers at most. So types below 23 are swap on every kernel,
//!   and a machine would need 24 areas at once for one of them to be taken for something else.

use terrace_core::observation::PteState;
use terrace_core::units::{BLOCK_PAGES, TierId};

const PRESENT: u64 = 1;
const WRITABLE: u64 = 1 << 1;
const ACCESSED: u64 = 1 << 5;
const DIRTY: u64 = 1 << 6;
/// Above the last level: maps a page itself instead of a table.
const LEAF: u64 = 1 << 7;
/// Present to the kernel, not to the processor.
const INACCESSIBLE: u64 = 1 << 8;
/// No page of this process's own: the shared page of zeros, or device memory.
const SPECIAL: u64 = 1 << 9;
/// Where Linux keeps the dirty bit of a write-protected page (6.6 and later, for shadow stacks).
const SAVED_DIRTY: u64 = 1 << 58;

const SWAP_TYPE_SHIFT: u32 = 59;
const SWAP_OFFSET_MASK: u64 = ((1 << 50) - 1) << 9;
const SWAP_OFFSET_SHIFT: u32 = 9;
/// Types from here on may be something else than swap, see above.
const FIRST_OTHER_TYPE: u64 = 23;
/// A marker's offset is a few flag bits; no page that a process can own lies in the first 64 KiB of memory.
const FIRST_FRAME: u64 = 16;
/// A migrating page's offset holds the frame in its low bits and flags above them: 34 bits of frame with four-level
/// tables (46 bits of physical address). With five levels it is more, but no tier begins beyond 64 TiB unless the
/// machine has that much, and the state lasts microseconds.
const MIGRATING_FRAME_MASK: u64 = (1 << 34) - 1;

/// Entries that are examined together, to find stretches of one kind.
const CHUNK: usize = 16;

/// What maps a 2 MiB block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Head {
    /// Nothing.
    Nothing,
    /// One 2 MiB page, or a 2 MiB page in transit.
    Huge,
    /// A table of 512 entries.
    Table,
    /// It was being changed.
    Unknown,
}

impl Head {
    /// Reads an entry of the second-lowest level.
    pub(super) fn of(entry: u64) -> Head {
        match entry {
            terrace_bpf::HEAD_UNKNOWN => Head::Unknown,
            0 => Head::Nothing,
            _ if entry & PRESENT != 0 && entry & LEAF == 0 => Head::Table,
            _ => Head::Huge,
        }
    }
}

/// Whether an entry maps a page of the process's own that was used since its mark was cleared.
pub(super) fn is_accessed(entry: u64) -> bool {
    entry & (PRESENT | INACCESSIBLE) != 0 && entry & (ACCESSED | SPECIAL) == ACCESSED
}

/// Turns entries into PTE states.
#[derive(Clone, Copy, Debug)]
pub(super) struct Decoder {
    /// The bits of an entry that hold its frame's address.
    pub(super) address_mask: u64,
    /// The tier of swapped pages. Without one they count as absent: they lie in no tier that is known.
    pub(super) swap: Option<TierId>,
}

impl Decoder {
    /// Decodes a stretch of a page table into `out`, which has the same length.
    pub(super) fn decode(&self, entries: &[u64], out: &mut [PteState], tier_of_frame: impl Fn(u64) -> TierId) {
        for (ptes, entries) in out.chunks_mut(CHUNK).zip(entries.chunks(CHUNK)) {
            let (all, any) = entries.iter().fold((!0, 0), |(all, any), entry| (all & entry, any | entry));
            // Most stretches are present throughout, or absent throughout: those take no branch an entry.
            if all & PRESENT != 0 && any & SPECIAL == 0 {
                for (pte, &entry) in ptes.iter_mut().zip(entries) {
                    *pte = present(entry, tier_of_frame((entry & self.address_mask) >> 12));
                }
            } else if any == 0 {
                ptes.fill(PteState::ABSENT);
            } else {
                for (pte, &entry) in ptes.iter_mut().zip(entries) {
                    *pte = self.any(entry, &tier_of_frame);
                }
            }
        }
    }

    /// Decodes the entry of a 2 MiB page. `anonymous` says that the memory belongs to no file.
    pub(super) fn decode_huge(&self, entry: u64, anonymous: bool, tier_of_frame: impl Fn(u64) -> TierId) -> PteState {
        // The shared huge page of zeros is mapped when untouched memory is read. It is neither writable nor dirty;
        // a write allocated an anonymous huge page of the process's own.
        if anonymous && entry & PRESENT != 0 && entry & (WRITABLE | DIRTY | SAVED_DIRTY) == 0 {
            return PteState::ABSENT;
        }
        let mut pte = PteState::ABSENT;
        // Bit 12 of a 2 MiB entry is not an address bit but a memory type.
        let huge = Decoder { address_mask: self.address_mask & !(u64::from(BLOCK_PAGES) * 4096 - 1), ..*self };
        huge.decode(&[entry], std::slice::from_mut(&mut pte), tier_of_frame);
        if pte.tier().is_some() { pte.with_huge(true) } else { pte }
    }

    /// An entry of whatever kind.
    #[inline]
    fn any(&self, entry: u64, tier_of_frame: &impl Fn(u64) -> TierId) -> PteState {
        if entry & (PRESENT | SPECIAL) == PRESENT {
            return present(entry, tier_of_frame((entry & self.address_mask) >> 12));
        }
        if entry == 0 || entry & PRESENT != 0 {
            return PteState::ABSENT;
        }
        if entry & INACCESSIBLE != 0 {
            return if entry & SPECIAL != 0 {
                PteState::ABSENT
            } else {
                present(entry, tier_of_frame((!entry & self.address_mask) >> 12))
            };
        }
        let offset = (!entry & SWAP_OFFSET_MASK) >> SWAP_OFFSET_SHIFT;
        if entry >> SWAP_TYPE_SHIFT < FIRST_OTHER_TYPE {
            // A swapped page is dirty by nature: its only copy is there.
            return self.swap.map_or(PteState::ABSENT, PteState::placed);
        }
        if offset < FIRST_FRAME {
            return PteState::ABSENT;
        }
        PteState::placed(tier_of_frame(offset & MIGRATING_FRAME_MASK))
    }
}

#[inline]
fn present(entry: u64, tier: TierId) -> PteState {
    PteState::placed(tier).with_accessed(entry & ACCESSED != 0).with_dirty(entry & (DIRTY | SAVED_DIRTY) != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MASK: u64 = 0x000f_ffff_ffff_f000;
    const SWAP: TierId = TierId(2);

    /// Frames from 0x1000 on are tier 1.
    fn tier(frame: u64) -> TierId {
        TierId(u8::from(frame >= 0x1000))
    }

    fn check(entry: u64, expect: PteState) {
        let mut out = [PteState::ABSENT];
        Decoder { address_mask: MASK, swap: Some(SWAP) }.decode(&[entry], &mut out, tier);
        assert_eq!(out[0], expect, "{entry:#x}");
    }

    /// An entry as Linux stores a swapped page: type above, offset inverted.
    fn swap_entry(kind: u64, offset: u64) -> u64 {
        (kind << 59) | ((!offset << 9) & SWAP_OFFSET_MASK)
    }

    #[test]
    fn present_entries_give_tier_and_marks() {
        let fast = PteState::placed(TierId(0));
        check(0x8000_0000_0080_0000 | 0x067, fast.with_accessed(true).with_dirty(true));
        check(0x0000_0000_0080_0000 | 0x005, fast);
        check(0x0000_0000_0080_0000 | 0x025, fast.with_accessed(true));
        check(0x0000_0000_0100_0000 | 0x025, PteState::placed(TierId(1)).with_accessed(true));
        check(0x0400_0000_0080_0000 | 0x025, fast.with_accessed(true).with_dirty(true));
        // The page of zeros, read but never written: nothing of the process's own.
        check(0x0000_0000_0080_0000 | 0x225, PteState::ABSENT);
        check(0, PteState::ABSENT);
    }

    #[test]
    fn an_inaccessible_page_is_still_there() {
        let inverted = !0x0080_0000u64 & MASK;
        check(inverted | 0x160, PteState::placed(TierId(0)).with_accessed(true).with_dirty(true));
        check((!0x0100_0000u64 & MASK) | 0x100, PteState::placed(TierId(1)));
        assert!(is_accessed(inverted | 0x120));
    }

    #[test]
    fn swap_migration_and_markers_are_told_apart() {
        for kind in [0, 1, 22] {
            // Offset 0 never holds a page, any other does; bits 1 to 3 are flags.
            check(swap_entry(kind, 1), PteState::placed(SWAP));
            check(swap_entry(kind, 0x12_3456) | 0b1110, PteState::placed(SWAP));
        }
        for kind in [24, 25, 28, 30] {
            // Accessed and dirty are kept above the frame while it migrates.
            check(swap_entry(kind, 0x2000 | (3 << 34)), PteState::placed(TierId(1)));
            check(swap_entry(kind, 0x800), PteState::placed(TierId(0)));
        }
        check(swap_entry(31, 1), PteState::ABSENT);
        check(swap_entry(31, 4), PteState::ABSENT);
        assert!(!is_accessed(swap_entry(0, 0x1234)));
        let without = Decoder { address_mask: MASK, swap: None };
        let mut out = [PteState::placed(TierId(0))];
        without.decode(&[swap_entry(0, 9)], &mut out, tier);
        assert_eq!(out[0], PteState::ABSENT, "a page in swap that is no tier lies in none");
    }

    #[test]
    fn a_mixed_table_decodes_as_its_entries_do_alone() {
        let kinds = [
            0,
            0x0080_0025,
            0x0100_0067,
            0x0080_0225,
            swap_entry(0, 77),
            swap_entry(31, 1),
            !0x0080_0000u64 & MASK | 0x100,
        ];
        // Runs of every length around a chunk's, of every kind.
        let table: Vec<u64> = (0..512usize).map(|at| kinds[(at / (1 + at / 40)) % kinds.len()]).collect();
        let decoder = Decoder { address_mask: MASK, swap: Some(SWAP) };
        for (from, to) in [(0, 512), (3, 510), (100, 101), (7, 7)] {
            let mut together = vec![PteState::ABSENT; to - from];
            decoder.decode(&table[from..to], &mut together, tier);
            for (at, pte) in together.into_iter().enumerate() {
                check(table[from + at], pte);
            }
        }
    }

    #[test]
    fn huge_pages_are_marked_and_the_huge_page_of_zeros_is_none() {
        let decoder = Decoder { address_mask: MASK, swap: Some(SWAP) };
        let huge = PteState::placed(TierId(1)).with_huge(true);
        let seen = decoder.decode_huge(0x8000_0000_0100_0000 | 0x1000 | 0x0e7, true, tier);
        assert_eq!(seen, huge.with_accessed(true).with_dirty(true), "bit 12 is the memory type");
        assert_eq!(decoder.decode_huge(0x0100_0000 | 0x0a5, true, tier), PteState::ABSENT);
        assert_eq!(decoder.decode_huge(0x0100_0000 | 0x0a5, false, tier), huge.with_accessed(true));
        assert_eq!(decoder.decode_huge(swap_entry(25, 0x2000), true, tier), huge, "in migration");
        assert_eq!(Head::of(0x0100_0000 | 0x0e7), Head::Huge);
        assert_eq!(Head::of(0x0100_0000 | 0x067), Head::Table);
        assert_eq!(Head::of(swap_entry(25, 0x2000)), Head::Huge);
        assert_eq!((Head::of(0), Head::of(u64::MAX)), (Head::Nothing, Head::Unknown));
    }
}
