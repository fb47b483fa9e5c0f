/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The walk through page tables, and the search for the kernel's map of physical memory.
 *
 * In: a `struct walk`, and `read_memory`, which the including file defines first: it reads kernel memory in the eBPF
 * program, and a model of memory in the test on the host (tests/walk_model.c). Out: where the map begins, the entry that
 * maps a block, and its page table. Must not: believe a word because it looks right.
 *
 * Other programs choose what lies in memory. Three rules follow:
 * - A start of the map counts only when the walk through it reaches pages of the loader's own with random bytes that
 *   nobody else has.
 * - No address is followed that lies beyond the end of physical memory: what is there may be a device, and reading a device can
 *   change it.
 * - A table may be freed and used for something else between two reads. The way down is therefore read again at the
 *   end, from the top table, which belongs to the process as long as it runs; a way that is not the same says nothing.
 *
 * The table format is that of the processor manual (Intel SDM volume 3, chapter 5; AMD64 APM volume 2, chapter 5):
 * 512 entries of 8 bytes a level, bit 0 present, bit 7 a leaf above the last level, bits 12 to 51 the frame.
 */

#define PRESENT 1ull
#define LEAF (1ull << 7)
#define PAGE_MASK 4095ull
#define BLOCK_MASK ((1ull << 21) - 1)
#define GIB (1ull << 30)
#define GIB_MASK (GIB - 1)
#define NO_GIB (~0ull)

/* A head that says: something is there, but it was changed while it was read, or cannot be read. */
#define UNKNOWN (~0ull)

/* The loader has the same numbers. */
#define MARKS 4
#define MARK_WORDS 4
#define MARK_STRIDE (1ull << 21)

/* Pages of the loader's own, each below another last-level table. */
struct proof {
	__u64 address;                    /* of the words of the first mark, in the loader's memory */
	__u64 inverted[MARKS][MARK_WORDS]; /* the words with every bit inverted, so that the marks are the only such bytes anywhere */
};

struct walk {
	__u64 root;         /* virtual address of the top table */
	__u64 direct_map;   /* virtual address of physical address 0 */
	__u64 address_mask; /* the bits of an entry that hold the frame's address */
	__u64 memory_end;   /* physical address where memory ends */
	__u64 gib;          /* the GiB of addresses that `middle` is of, or NO_GIB */
	__u64 middle;       /* virtual address of the table of 2 MiB entries of that GiB, or 0 */
	__u32 unreadable;   /* something on the way could not be read */
	__u32 beyond;       /* an entry named a frame beyond the end of memory */
	__u32 misled;       /* starts that led to memory, and not to the marks */
	__u32 unused;
};

/* A five-level kernel maps physical memory below 0xffff000000000000, a four-level one above. */
static __always_inline int has_five_levels(__u64 root)
{
	return (root >> 48) != 0xffff;
}

/* One entry, or 0 where it cannot be read. */
static __always_inline __u64 entry_at(struct walk *walk, __u64 table, __u64 index)
{
	__u64 entry = 0;

	if (read_memory(&entry, sizeof(entry), table + (index & 511) * 8)) {
		walk->unreadable = 1;
		return 0;
	}
	return entry;
}

/* Where a physical address is mapped, or 0 where there is no memory. */
static __always_inline __u64 mapped(struct walk *walk, __u64 physical)
{
	if (physical >= walk->memory_end) {
		walk->unreadable = 1;
		walk->beyond = 1;
		return 0;
	}
	return walk->direct_map + physical;
}

static __always_inline __u64 below(struct walk *walk, __u64 entry)
{
	return mapped(walk, entry & walk->address_mask);
}

static __always_inline int is_table(__u64 entry)
{
	return (entry & (PRESENT | LEAF)) == PRESENT;
}

/* The table of 1 GiB entries that covers an address, or 0. */
static __always_inline __u64 upper_table(struct walk *walk, __u64 address)
{
	__u64 table = walk->root;
	__u64 entry;

	if (has_five_levels(table)) {
		entry = entry_at(walk, table, address >> 48);
		if (!(entry & PRESENT))
			return 0;
		table = below(walk, entry);
		if (!table)
			return 0;
	}
	entry = entry_at(walk, table, address >> 39);
	return entry & PRESENT ? below(walk, entry) : 0;
}

/* The table of 2 MiB entries that covers an address, or 0. A 1 GiB leaf is hugetlbfs or device memory: nothing that could be managed. */
static __always_inline __u64 middle_table(struct walk *walk, __u64 address)
{
	__u64 table = upper_table(walk, address);
	__u64 entry;

	if (!table)
		return 0;
	entry = entry_at(walk, table, address >> 30);
	return is_table(entry) ? below(walk, entry) : 0;
}

/* Where the memory behind an address is mapped, whatever the size of its page, or 0. */
static __always_inline __u64 reach(struct walk *walk, __u64 address)
{
	__u64 table = upper_table(walk, address);
	__u64 entry;

	if (!table)
		return 0;
	entry = entry_at(walk, table, address >> 30);
	if (!(entry & PRESENT))
		return 0;
	if (entry & LEAF)
		return mapped(walk, (entry & walk->address_mask & ~GIB_MASK) | (address & GIB_MASK));
	table = below(walk, entry);
	if (!table)
		return 0;
	entry = entry_at(walk, table, address >> 21);
	if (!(entry & PRESENT))
		return 0;
	if (entry & LEAF)
		return mapped(walk, (entry & walk->address_mask & ~BLOCK_MASK) | (address & BLOCK_MASK));
	table = below(walk, entry);
	if (!table)
		return 0;
	entry = entry_at(walk, table, address >> 12);
	if (!(entry & PRESENT))
		return 0;
	return mapped(walk, (entry & walk->address_mask) | (address & PAGE_MASK));
}

/* Whether the walk leads to this mark. */
static __attribute__((noinline)) int mark_is_there(struct walk *walk, __u64 address, const __u64 *inverted)
{
	__u64 words[MARK_WORDS];
	__u64 at = reach(walk, address);

	if (!at || read_memory(words, sizeof(words), at))
		return 0;
	walk->misled++;
	if ((words[0] ^ ~inverted[0]) | (words[1] ^ ~inverted[1]) | (words[2] ^ ~inverted[2]) | (words[3] ^ ~inverted[3]))
		return 0;
	walk->misled--;
	return 1;
}

/* How many starts are possible: the map begins at a whole GiB, and the top table lies between it and the end of memory. */
static __always_inline __u64 candidates(const struct walk *walk)
{
	return (walk->memory_end + GIB_MASK) >> 30;
}

/*
 * Tries one start, and keeps it when every mark is found through it. The lowest comes first: below the right start no
 * address is tried that lies behind the end of the map, where device registers may be mapped.
 */
static __always_inline int try_start(struct walk *walk, __u64 index, const struct proof *proof)
{
	int mark;

	walk->direct_map = (walk->root & ~GIB_MASK) - (candidates(walk) - 1 - index) * GIB;
	/* Without a loop: the verifier of 6.1 takes some that are laid out in another order for endless ones. */
#pragma GCC unroll 4
	for (mark = 0; mark < MARKS; mark++) {
		if (!mark_is_there(walk, proof->address + mark * MARK_STRIDE, proof->inverted[mark])) {
			walk->direct_map = 0;
			return 0;
		}
	}
	return 1;
}

/* The entry that maps the 2 MiB block at an address; its page table, where it has one, goes to `slot`. */
static __always_inline __u64 copy_block(struct walk *walk, __u64 address, void *slot)
{
	__u64 middle, entry = 0, again = 0;

	walk->unreadable = 0;
	if (walk->gib != address >> 30) {
		walk->middle = middle_table(walk, address);
		walk->gib = address >> 30;
	}
	middle = walk->middle;
	if (middle)
		entry = entry_at(walk, middle, address >> 21);
	if (is_table(entry)) {
		__u64 table = below(walk, entry);

		if (!table || read_memory(slot, 4096, table))
			walk->unreadable = 1;
	}
	/* The way down once more. Marks of use may have changed; where it leads may not. */
	if (middle_table(walk, address) != middle)
		walk->unreadable = 1;
	else if (middle)
		again = entry_at(walk, middle, address >> 21);
	if (walk->unreadable || ((again ^ entry) & (walk->address_mask | PRESENT | LEAF))) {
		walk->gib = NO_GIB;
		return UNKNOWN;
	}
	return entry;
}
