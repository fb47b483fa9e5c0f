// SPDX-License-Identifier: GPL-2.0-only
/*
 * Walks accessed bits of a process by range: FlexHM's kernel part.
 *
 * In: a range, how many scans and how far apart. Out: for every page where it lies and how many scans found it accessed. Must
 * not: change anything of an entry but its accessed bit, take a page-table lock, or hold the map's lock longer than 64 MiB of
 * pages take (1 GiB where a whole one is asked for).
 *
 * Why this is safe without the page-table locks:
 * - Tables of memory that is mapped stay while the map's lock is held for reading, but for those that the kernel frees under RCU
 *   (MMU_GATHER_RCU_TABLE_FREE, pte_free_defer): so each 2 MiB are walked under rcu_read_lock() as well.
 * - A bit is cleared by compare and exchange with the whole entry as it was read. An entry that became something else in
 *   the meantime (swapped, migrating, unmapped) is left alone.
 *
 * Why an idle table may be skipped: the processor sets the accessed bit of every entry on the way to a page unless it has that
 * way cached. A scan that clears ends with a flush of all TLBs, which empties those caches, too (Intel SDM volume 3, 4.10). So
 * an entry of an upper level that is still clear at the next scan led to no page since. What is used between the clearing and the
 * flush, or by the kernel without the processor's tables (a fault on another's memory), may show one scan later or not at all.
 */
#include <linux/delay.h>
#include <linux/hugetlb.h>
#include <linux/memory_hotplug.h>
#include <linux/mmu_notifier.h>
#include <linux/pgtable.h>
#include <linux/smp.h>
#include <linux/vmalloc.h>
#include <asm/special_insns.h>

#include "terrace_mm.h"

/* The map's lock is given back this often. */
#define BYTES_A_LOCK (64UL << 20)

/* NULL where it cannot be found: then virtual machines' own tables are neither read nor cleared. */
static typeof(__mmu_notifier_clear_young) *clear_young_of_guests;

struct scan {
	struct mm_struct *mm;
	u16 *results;
	unsigned long start;
	bool first, clear, skip_idle, guests, cleared;
	u64 accessed, skipped;
};

u32 terrace_walk_can(void)
{
	if (!clear_young_of_guests)
		clear_young_of_guests = (void *)terrace_function("__mmu_notifier_clear_young");
	/* There the hypervisor has the page tables and the TLBs. */
	if (cpu_feature_enabled(X86_FEATURE_XENPV))
		return 0;
	return TERRACE_MM_CAN_WALK | (clear_young_of_guests ? TERRACE_MM_CAN_KVM : 0);
}

/* Clears the accessed bit of an entry unless the entry has changed. Says whether the bit was set. */
static bool clear_bit_of(struct scan *scan, u64 *entry, u64 value)
{
	if (!(value & _PAGE_ACCESSED))
		return false;
	if (scan->clear && cmpxchg64(entry, value, value & ~(u64)_PAGE_ACCESSED) == value)
		scan->cleared = true;
	return true;
}

static u16 node_of(unsigned long frame)
{
	struct page *page = pfn_to_online_page(frame);

	return page ? (u16)min(page_to_nid(page), 255) : 255;
}

/* Puts down what a scan saw of a page; where it lies is said anew by each. */
static void put_down(struct scan *scan, unsigned long address, u16 place, bool accessed)
{
	u16 *result = &scan->results[(address - scan->start) >> PAGE_SHIFT];
	u16 count = *result & TERRACE_MM_RESULT_COUNT;

	if (accessed && count < TERRACE_MM_RESULT_COUNT) {
		count++;
		scan->accessed++;
	}
	*result = place | count;
}

static bool young_in_guests(struct scan *scan, unsigned long start, unsigned long end)
{
	return scan->guests && clear_young_of_guests(scan->mm, start, end);
}

static void walk_table(struct scan *scan, pmd_t table, unsigned long from, unsigned long to)
{
	pte_t *entry = pte_offset_kernel(&table, from);
	unsigned long address;

	for (address = from; address < to; address += PAGE_SIZE, entry++) {
		pte_t value = READ_ONCE(*entry);

		if (pte_none(value)) {
			put_down(scan, address, 0, false);
		} else if (pte_present(value)) {
			u16 place = TERRACE_MM_RESULT_PRESENT | node_of(pte_pfn(value)) << TERRACE_MM_RESULT_NODE_SHIFT;
			bool young = clear_bit_of(scan, (u64 *)entry, pte_val(value));

			young |= young_in_guests(scan, address, address + PAGE_SIZE);
			put_down(scan, address, place, young);
		} else {
			put_down(scan, address, TERRACE_MM_RESULT_SWAPPED, false);
		}
	}
}

static void walk_huge(struct scan *scan, pmd_t *entry, pmd_t value, unsigned long from, unsigned long to)
{
	unsigned long block = from & PMD_MASK, frame = pmd_pfn(value), address;
	bool young = pmd_val(value) & _PAGE_ACCESSED;

	/* The bit is the whole block's: who asks for a part of it reads it and leaves it to whoever asks for all. */
	if (to - from == PMD_SIZE) {
		young = clear_bit_of(scan, (u64 *)entry, pmd_val(value));
		young |= young_in_guests(scan, from, to);
	}
	for (address = from; address < to; address += PAGE_SIZE) {
		u16 node = node_of(frame + ((address - block) >> PAGE_SHIFT));

		put_down(scan, address,
			 TERRACE_MM_RESULT_PRESENT | TERRACE_MM_RESULT_HUGE | node << TERRACE_MM_RESULT_NODE_SHIFT, young);
	}
}

/*
 * Whether nothing below this entry was used since the scan before. If the walk has all that the entry leads to, its own bit
 * is cleared for the next scan; if it has a part, others may go by the bit and it stays.
 */
static bool is_idle(struct scan *scan, u64 *entry, u64 value, bool whole)
{
	/* Guests use memory without going through these tables. */
	bool may_skip = scan->skip_idle && !scan->first && !scan->guests;

	if (!whole)
		return false;
	return !clear_bit_of(scan, entry, value) && may_skip;
}

/* Walks what lies in one 2 MiB block. Says where the walk goes on, which is behind the block unless more of it is idle. */
static unsigned long walk_block(struct scan *scan, unsigned long from, unsigned long to, unsigned long range_end)
{
	unsigned long next = to;
	pgd_t *pgd;
	p4d_t *p4d;
	pud_t *pud, pud_value;
	pmd_t *pmd, value;

	rcu_read_lock();
	pgd = pgd_offset(scan->mm, from);
	if (pgd_none(*pgd) || pgd_bad(*pgd))
		goto out;
	p4d = p4d_offset(pgd, from);
	if (p4d_none(*p4d) || p4d_bad(*p4d))
		goto out;
	pud = pud_offset(p4d, from);
	pud_value = READ_ONCE(*pud);
	if (pud_none(pud_value) || !pud_present(pud_value) || pud_leaf(pud_value))
		goto out;
	if (!(from & ~PUD_MASK) && range_end - from >= PUD_SIZE &&
	    is_idle(scan, (u64 *)pud, pud_val(pud_value), true)) {
		scan->skipped += PTRS_PER_PMD;
		next = from + PUD_SIZE;
		goto out;
	}
	pmd = pmd_offset(&pud_value, from);
	value = READ_ONCE(*pmd);
	if (!pmd_present(value)) {
		unsigned long address;

		if (!pmd_none(value)) /* a huge page on its way to another place */
			for (address = from; address < to; address += PAGE_SIZE)
				put_down(scan, address, TERRACE_MM_RESULT_SWAPPED | TERRACE_MM_RESULT_HUGE, false);
	} else if (pmd_leaf(value)) {
		walk_huge(scan, pmd, value, from, to);
	} else if (pmd_bad(value)) {
		goto out;
	} else if (is_idle(scan, (u64 *)pmd, pmd_val(value), to - from == PMD_SIZE)) {
		scan->skipped++;
	} else {
		walk_table(scan, value, from, to);
	}
out:
	rcu_read_unlock();
	return next;
}

static int scan_range(struct scan *scan, unsigned long end)
{
	unsigned long at = scan->start;

	while (at < end) {
		unsigned long stop = min(end, (at | (BYTES_A_LOCK - 1)) + 1);
		struct vm_area_struct *area;

		/* A whole idle gigabyte at a time can be passed over only if it is in reach. */
		if (!(at & ~PUD_MASK) && end - at >= PUD_SIZE)
			stop = at + PUD_SIZE;
		if (mmap_read_lock_killable(scan->mm))
			return -EINTR;
		while (at < stop) {
			unsigned long area_end;

			area = find_vma(scan->mm, at);
			if (!area || area->vm_start >= stop) {
				at = stop;
				break;
			}
			at = max(at, area->vm_start);
			area_end = min(stop, area->vm_end);
			if (area->vm_flags & (VM_PFNMAP | VM_IO) || is_vm_hugetlb_page(area)) {
				at = area_end;
				continue;
			}
			while (at < area_end) {
				unsigned long to = min(area_end, (at | ~PMD_MASK) + 1);

				at = walk_block(scan, at, to, area_end);
				if (need_resched())
					break;
			}
			if (need_resched())
				break;
		}
		mmap_read_unlock(scan->mm);
		cond_resched();
		if (fatal_signal_pending(current))
			return -EINTR;
	}
	return 0;
}

/*
 * Empties this processor's TLB and paging-structure caches, for all address spaces: by INVPCID of type 2, or by a change of
 * CR4.PGE (Intel SDM volume 3, 4.10.4.1). Written out because 7.2 keeps its own function for this to itself and KVM, and
 * because an instruction, unlike a function that was looked up, may be used where indirect calls are checked.
 */
static void flush_this_processor(void *unused)
{
	const struct {
		u64 context, address;
	} all = {};
	unsigned long control;

	if (boot_cpu_has(X86_FEATURE_INVPCID)) {
		asm volatile("invpcid %0, %1" : : "m"(all), "r"(2UL) : "memory");
		return;
	}
	control = __read_cr4();
	asm volatile("mov %0, %%cr4" : : "r"(control ^ X86_CR4_PGE) : "memory");
	asm volatile("mov %0, %%cr4" : : "r"(control) : "memory");
}

static void count_present(struct terrace_mm_walk *walk, const u16 *results)
{
	u64 page, pages = (walk->end - walk->start) >> PAGE_SHIFT;

	walk->present = 0;
	for (page = 0; page < pages; page++) {
		walk->present += !!(results[page] & TERRACE_MM_RESULT_PRESENT);
		if (!(page % (1 << 18)))
			cond_resched();
	}
}

int terrace_walk(struct terrace_file *file, struct terrace_mm_walk *walk)
{
	struct scan scan = {
		.results = smp_load_acquire(&file->results),
		.start = walk->start,
		.clear = walk->flags & TERRACE_MM_WALK_CLEAR,
		.skip_idle = walk->flags & TERRACE_MM_WALK_SKIP_IDLE,
	};
	u32 number;
	int error = 0;

	if (walk->flags & ~(TERRACE_MM_WALK_CLEAR | TERRACE_MM_WALK_SKIP_IDLE))
		return -EINVAL;
	if ((walk->start | walk->end) & ~PAGE_MASK || walk->start >= walk->end || walk->end > TASK_SIZE_MAX)
		return -EINVAL;
	if (!walk->scans || walk->scans > TERRACE_MM_MOST_SCANS || walk->interval_us > TERRACE_MM_MOST_INTERVAL_US)
		return -EINVAL;
	/* A second look at bits that nobody cleared says nothing new. */
	if (walk->scans > 1 && !scan.clear)
		return -EINVAL;
	if (!scan.results || (walk->end - walk->start) >> PAGE_SHIFT > file->result_pages)
		return -ENOSPC;
	memset(scan.results, 0, (walk->end - walk->start) >> PAGE_SHIFT << 1);
	for (number = 0; number < walk->scans && !error; number++) {
		if (number && walk->interval_us) {
			/* The process may end meanwhile: its memory is not held. */
			if (schedule_timeout_interruptible(max(1UL, usecs_to_jiffies(walk->interval_us))))
				return -EINTR;
		}
		scan.mm = terrace_target_mm(file, walk->slot);
		if (!scan.mm)
			return -ESRCH;
		scan.first = number == 0;
		scan.guests = scan.clear && clear_young_of_guests && mm_has_notifiers(scan.mm);
		scan.cleared = false;
		error = scan_range(&scan, walk->end);
		/* An accessed bit is set on the way to a page that no TLB knows: what is cached must go, everywhere. */
		if (scan.cleared)
			on_each_cpu(flush_this_processor, NULL, 1);
		mmput(scan.mm);
	}
	count_present(walk, scan.results);
	walk->accessed = scan.accessed;
	walk->skipped = scan.skipped;
	return error;
}
