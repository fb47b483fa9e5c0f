// SPDX-License-Identifier: GPL-2.0-only
/*
 * TieredMMS's kernel part: puts the kernel's page lists in the order that a program in user space finds, and moves pages between
 * nodes from the lists' tails and heads.
 *
 * In: two shared rings of pages, hot and cold, and the settings of START. Out: list order, pages moved, counts of both. Must not:
 * trust a word of a ring, look at memory of a process that was not named, or go on after the file is closed.
 *
 * One thread drains the rings every 100 us. A thread for each fast node demotes: every period if less than the high watermark is
 * free, and at once if an allocation finds less than the low one. A thread for each slow node promotes what is on its active list.
 * All by the lists of the memory groups (cgroups) that the named processes are in, and of nobody else.
 *
 * What a page is moved by is the kernel's own: folio_isolate_lru() and migrate_pages(), which are not exported (symbols.c).
 */
#include <linux/delay.h>
#include <linux/irq_work.h>
#include <linux/kthread.h>
#include <linux/memcontrol.h>
#include <linux/memory_hotplug.h>
#include <linux/migrate.h>
#include <linux/hugetlb.h>
#include <linux/pgtable.h>
#include <linux/slab.h>
#include <linux/swap.h>
#include <linux/tracepoint.h>
#include <linux/vmalloc.h>
#include <linux/wait.h>

#include "terrace_mm.h"

/* Folios taken off a list at once: as many as a batch of the kernel's own reclaim (SWAP_CLUSTER_MAX). */
#define BATCH 32
/* Most entries of a list that are looked at while its lock is held. */
#define MOST_LOOKED_AT 1024
/* Ring entries worked off while a process's map is held. */
#define MOST_A_LOCK 64
/* An allocation looks at the watermark this often on each processor. */
#define ALLOCATIONS_A_LOOK 32

#define WHY_DIRECT 0
#define WHY_COOLED 1

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 3, 0)
typedef bool isolate_function(struct folio *folio);
#define ISOLATED(result) (result)
#else
typedef int isolate_function(struct folio *folio);
#define ISOLATED(result) (!(result))
#endif

static isolate_function *isolate;
static typeof(migrate_pages) *migrate;
/* The kernel's lists are one: so is who orders them. */
static atomic_t taken = ATOMIC_INIT(0);

/* A ring as the program maps it: this page, then the entries. */
struct ring_page {
	u64 head;		/* where the program will write next; it alone writes here */
	u64 padding[7];
	u64 tail;		/* where we read next; we alone write here, and never read it */
};

struct ring {
	struct ring_page *shared;
	u64 tail;
	bool hot;
};

struct node_thread {
	struct terrace_session *session;
	struct task_struct *task;
	wait_queue_head_t wait;
	struct irq_work wake;
	unsigned long why;
	int node;
	bool fast;
	bool in_vain; /* the last direct demotion moved nothing: none more in this period */
	unsigned long high, low;
};

struct terrace_session {
	struct terrace_file *file;
	struct terrace_mm_start with;
	struct ring rings[2];
	struct task_struct *handler;
	struct node_thread *nodes[64];
	struct tracepoint *hook;
	atomic64_t counts[TERRACE_MM_COUNTS];
};

/* A migration's goal; `full` once no page could be had there. */
struct destination {
	int node;
	bool full;
};

static DEFINE_PER_CPU(unsigned int, allocations);

static void count(struct terrace_session *session, int what, u64 more)
{
	if (more)
		atomic64_add(more, &session->counts[what]);
}

u32 terrace_lists_can(void)
{
	isolate = (void *)terrace_function("folio_isolate_lru");
	migrate = (void *)terrace_function("migrate_pages");
	return isolate && migrate && !mem_cgroup_disabled() ? TERRACE_MM_CAN_LISTS : 0;
}

/* ---- the rings ---- */

/* The folio at an address, with a reference on it, or NULL. The map's lock is held for reading. */
static struct folio *folio_at(struct mm_struct *mm, unsigned long address)
{
	struct vm_area_struct *area = find_vma(mm, address);
	struct folio *folio = NULL;
	struct page *page;
	unsigned long frame;
	u64 *entry, value;
	pgd_t *pgd;
	p4d_t *p4d;
	pud_t *pud, pud_value;
	pmd_t *pmd, pmd_value;

	if (!area || area->vm_start > address || area->vm_flags & (VM_PFNMAP | VM_IO) || is_vm_hugetlb_page(area))
		return NULL;
	/* As in walk.c: what leads here stays, and what it leads to is checked again once it is held. */
	rcu_read_lock();
	pgd = pgd_offset(mm, address);
	if (pgd_none(*pgd) || pgd_bad(*pgd))
		goto out;
	p4d = p4d_offset(pgd, address);
	if (p4d_none(*p4d) || p4d_bad(*p4d))
		goto out;
	pud = pud_offset(p4d, address);
	pud_value = READ_ONCE(*pud);
	if (pud_none(pud_value) || !pud_present(pud_value) || pud_leaf(pud_value))
		goto out;
	pmd = pmd_offset(&pud_value, address);
	pmd_value = READ_ONCE(*pmd);
	if (!pmd_present(pmd_value))
		goto out;
	if (pmd_leaf(pmd_value)) {
		entry = (u64 *)pmd;
		value = pmd_val(pmd_value);
		frame = pmd_pfn(pmd_value) + ((address & ~PMD_MASK) >> PAGE_SHIFT);
	} else {
		pte_t *pte, pte_value;

		if (pmd_bad(pmd_value))
			goto out;
		pte = pte_offset_kernel(&pmd_value, address);
		pte_value = READ_ONCE(*pte);
		if (!pte_present(pte_value) || pte_special(pte_value))
			goto out;
		entry = (u64 *)pte;
		value = pte_val(pte_value);
		frame = pte_pfn(pte_value);
	}
	page = pfn_to_online_page(frame);
	if (!page)
		goto out;
	folio = page_folio(page);
	if (!folio_try_get(folio)) {
		folio = NULL;
		goto out;
	}
	/* It may have been freed, and become another, before we held it. The accessed and dirty bits may differ. */
	if ((READ_ONCE(*entry) ^ value) & ~(u64)(_PAGE_ACCESSED | _PAGE_DIRTY | _PAGE_SOFT_DIRTY) || page_folio(page) != folio) {
		folio_put(folio);
		folio = NULL;
	}
out:
	rcu_read_unlock();
	return folio;
}

/* Puts a folio at the head of its active or inactive list. */
static bool reorder(struct folio *folio, bool active)
{
	if (!folio_test_lru(folio) || folio_test_unevictable(folio) || folio_test_mlocked(folio))
		return false;
	if (!ISOLATED(isolate(folio)))
		return false;
	if (active) {
		folio_set_active(folio);
	} else {
		folio_clear_active(folio);
		folio_clear_referenced(folio);
	}
	folio_add_lru(folio);
	folio_put(folio);
	return true;
}

static void handle_entry(struct terrace_session *session, struct mm_struct *mm, u64 entry, bool hot)
{
	struct folio *folio = folio_at(mm, entry & PAGE_MASK);
	bool done = false;

	if (folio) {
		done = reorder(folio, hot);
		folio_put(folio);
	}
	count(session, !done ? TERRACE_MM_ENTRIES_MISSED : hot ? TERRACE_MM_ENTRIES_HOT : TERRACE_MM_ENTRIES_COLD, 1);
}

static bool is_sound(u64 entry)
{
	return (entry & ~PAGE_MASK) < TERRACE_MM_SLOTS && (entry & PAGE_MASK) < TASK_SIZE_MAX;
}

/* Works off what is in a ring now. */
static void drain(struct terrace_session *session, struct ring *ring)
{
	const u64 *entries = (const u64 *)((const char *)ring->shared + PAGE_SIZE);
	u64 mask = session->with.ring_entries - 1;
	/* Pairs with the program's release: what lies below the head was written before. */
	u64 head = smp_load_acquire(&ring->shared->head);

	if (head - ring->tail > session->with.ring_entries) {
		/* It wrote over what was not read yet, or nonsense. None of it can be told from the rest. */
		count(session, TERRACE_MM_RING_OVERRUNS, 1);
		ring->tail = head;
	}
	while (ring->tail != head && !kthread_should_stop()) {
		/* The program may write to an entry again while we look: one look each. */
		u64 entry = READ_ONCE(entries[ring->tail & mask]);
		u32 slot = entry & ~PAGE_MASK, number;
		struct mm_struct *mm = NULL;

		if (!is_sound(entry)) {
			count(session, TERRACE_MM_ENTRIES_BAD, 1);
			ring->tail++;
			continue;
		}
		mm = terrace_target_mm(session->file, slot);
		if (!mm) {
			count(session, TERRACE_MM_ENTRIES_BAD, 1);
			ring->tail++;
			continue;
		}
		/* Whoever changes the map goes first: the ring is advice. */
		if (mmap_read_trylock(mm)) {
			for (number = 0; number < MOST_A_LOCK && ring->tail != head; number++, ring->tail++) {
				if (number)
					entry = READ_ONCE(entries[ring->tail & mask]);
				if (!is_sound(entry) || (entry & ~PAGE_MASK) != slot)
					break;
				handle_entry(session, mm, entry, ring->hot);
			}
			mmap_read_unlock(mm);
		} else {
			count(session, TERRACE_MM_ENTRIES_MISSED, 1);
			ring->tail++;
		}
		mmput(mm);
		smp_store_release(&ring->shared->tail, ring->tail);
		cond_resched();
	}
	smp_store_release(&ring->shared->tail, ring->tail);
}

static int handle_rings(void *data)
{
	struct terrace_session *session = data;

	while (!kthread_should_stop()) {
		drain(session, &session->rings[0]);
		drain(session, &session->rings[1]);
		usleep_range_state(TERRACE_MM_HANDLER_US, TERRACE_MM_HANDLER_US + 10, TASK_IDLE);
	}
	return 0;
}

/* ---- lists and migration ---- */

/* Free pages of a node. Those that processors keep for themselves are free as well; since 6.7 they can be a good part of it. */
static unsigned long free_pages_of(int node, bool with_processors)
{
	struct zone *zones = NODE_DATA(node)->node_zones;
	unsigned long pages = 0;
	int zone, processor;

	for (zone = 0; zone < MAX_NR_ZONES; zone++) {
		if (!populated_zone(&zones[zone]))
			continue;
		pages += zone_page_state(&zones[zone], NR_FREE_PAGES);
		if (!with_processors)
			continue;
		for_each_online_cpu(processor)
			pages += READ_ONCE(per_cpu_ptr(zones[zone].per_cpu_pageset, processor)->count);
	}
	return pages;
}

/* Whether @pages pages are free. The processors' own are only counted where it depends on them. */
static bool has_free(int node, unsigned long pages)
{
	return free_pages_of(node, false) >= pages || free_pages_of(node, true) >= pages;
}

static unsigned long managed_pages_of(int node)
{
	struct zone *zones = NODE_DATA(node)->node_zones;
	unsigned long pages = 0;
	int zone;

	for (zone = 0; zone < MAX_NR_ZONES; zone++)
		pages += zone_managed_pages(&zones[zone]);
	return pages;
}

/* The nearest node of a set, or NUMA_NO_NODE. */
static int nearest(int node, u64 set)
{
	int other, found = NUMA_NO_NODE;

	for (other = 0; other < 64; other++)
		if (set & (1ULL << other) &&
		    (found == NUMA_NO_NODE || node_distance(node, other) < node_distance(node, found)))
			found = other;
	return found;
}

/* The memory groups of the named processes, each once, with a reference each. */
static int groups_of(struct terrace_session *session, struct mem_cgroup **groups)
{
	int found = 0, known;
	u32 slot;

	for (slot = 0; slot < TERRACE_MM_SLOTS; slot++) {
		struct mm_struct *mm = terrace_target_mm(session->file, slot);
		struct mem_cgroup *group;

		if (!mm)
			continue;
		group = get_mem_cgroup_from_mm(mm);
		mmput(mm);
		if (!group)
			continue;
		for (known = 0; known < found && groups[known] != group; known++)
			;
		if (known == found)
			groups[found++] = group;
		else
			mem_cgroup_put(group);
	}
	return found;
}

static unsigned long list_pages(struct mem_cgroup *group, int node, enum lru_list list)
{
	struct mem_cgroup_per_node *part = group->nodeinfo[node];
	unsigned long pages = 0;
	int zone;

	for (zone = 0; zone < MAX_NR_ZONES; zone++)
		pages += READ_ONCE(part->lru_zone_size[zone][list]);
	return pages;
}

/*
 * Takes up to BATCH folios off a list, from its tail or from behind the first `skip` of its head, and isolates them into `into`.
 * Returns the pages it looked at that are held now, isolated or not; 0 when there is nothing more to take.
 */
static unsigned long take(struct mem_cgroup *group, int node, enum lru_list which, bool tail, unsigned long skip,
			  struct list_head *into)
{
	struct lruvec *lists = &group->nodeinfo[node]->lruvec;
	struct list_head *list = &lists->lists[which], *at;
	struct folio *held[BATCH];
	unsigned long pages = 0;
	int looked = 0, number = 0, index;

	spin_lock_irq(&lists->lru_lock);
	for (at = tail ? list->prev : list->next; at != list && number < BATCH && looked < MOST_LOOKED_AT;
	     at = tail ? at->prev : at->next, looked++) {
		struct folio *folio = list_entry(at, struct folio, lru);

		if (skip) {
			skip--;
			continue;
		}
		/* A folio on a list that has no reference left is being freed. */
		if (folio_try_get(folio))
			held[number++] = folio;
	}
	spin_unlock_irq(&lists->lru_lock);
	for (index = 0; index < number; index++) {
		struct folio *folio = held[index];

		pages += folio_nr_pages(folio);
		if (!folio_test_mlocked(folio) && ISOLATED(isolate(folio))) {
			list_add_tail(&folio->lru, into);
			node_stat_mod_folio(folio, NR_ISOLATED_ANON + !folio_test_swapbacked(folio),
					    folio_nr_pages(folio));
		}
		folio_put(folio);
	}
	return pages;
}

/* Gives isolated folios back to their lists. Returns how many there were. */
static unsigned long put_back(struct list_head *folios)
{
	struct folio *folio, *next;
	unsigned long number = 0;

	list_for_each_entry_safe(folio, next, folios, lru) {
		list_del(&folio->lru);
		node_stat_mod_folio(folio, NR_ISOLATED_ANON + !folio_test_swapbacked(folio),
				    -folio_nr_pages(folio));
		folio_add_lru(folio);
		folio_put(folio);
		number++;
	}
	return number;
}

/* A page at the destination, if it has one to spare: no reclaim is started for it. */
static struct folio *folio_on(struct folio *source, unsigned long data)
{
	struct destination *to = (struct destination *)data;
	gfp_t flags = (GFP_HIGHUSER_MOVABLE & ~__GFP_RECLAIM) | __GFP_NOMEMALLOC | __GFP_NOWARN | __GFP_THISNODE;
	struct folio *folio = __folio_alloc_node(flags, folio_order(source), to->node);

	/* For a large one it may be that no run of free pages is long enough: the kernel then splits it and asks again. */
	if (!folio && !folio_order(source))
		to->full = true;
	return folio;
}

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 7, 0)
static struct page *page_on(struct page *source, unsigned long data)
{
	struct folio *folio = folio_on(page_folio(source), data);

	return folio ? &folio->page : NULL;
}
#define ALLOCATE page_on
#else
#define ALLOCATE folio_on
#endif

/* Moves isolated folios to a node; what stayed goes back to its list. Returns the pages moved, and how many folios stayed. */
static unsigned long move(struct terrace_session *session, struct list_head *folios, struct destination *to,
			  unsigned long *stayed)
{
	unsigned int moved = 0;

	*stayed = 0;
	if (list_empty(folios))
		return 0;
	migrate(folios, ALLOCATE, NULL, (unsigned long)to, MIGRATE_ASYNC, MR_SYSCALL, &moved);
	*stayed = put_back(folios);
	count(session, TERRACE_MM_FOLIOS_STAYED, *stayed);
	return moved;
}

/*
 * Demotes until `goal` pages are free: file pages first, never the active anonymous ones, of each list the rear share. Returns the
 * pages moved.
 */
static unsigned long demote(struct node_thread *thread, unsigned long goal)
{
	static const enum lru_list order[] = { LRU_INACTIVE_FILE, LRU_ACTIVE_FILE, LRU_INACTIVE_ANON };
	struct terrace_session *session = thread->session;
	struct destination to = { .node = nearest(thread->node, session->with.slow_nodes) };
	struct mem_cgroup *groups[TERRACE_MM_SLOTS];
	int number = groups_of(session, groups), group, list;
	unsigned long free = free_pages_of(thread->node, true), demoted = 0;

	for (list = 0; list < ARRAY_SIZE(order); list++) {
		for (group = 0; group < number; group++) {
			long left = list_pages(groups[group], thread->node, order[list]) * session->with.candidates_percent / 100;

			while (left > 0 && !to.full && free + demoted < goal && !has_free(thread->node, goal) &&
			       !kthread_should_stop()) {
				unsigned long seen, stayed, moved;
				LIST_HEAD(folios);

				seen = take(groups[group], thread->node, order[list], true, 0, &folios);
				if (!seen)
					break;
				moved = move(session, &folios, &to, &stayed);
				count(session, TERRACE_MM_PAGES_DEMOTED, moved);
				demoted += moved;
				left -= seen;
				cond_resched();
			}
		}
	}
	while (number--)
		mem_cgroup_put(groups[number]);
	return demoted;
}

/* Promotes what is on the active anonymous list, its head first, while the fast node has pages to spare. */
static void promote(struct node_thread *thread)
{
	struct terrace_session *session = thread->session;
	struct destination to = { .node = nearest(thread->node, session->with.fast_nodes) };
	struct mem_cgroup *groups[TERRACE_MM_SLOTS];
	int number = groups_of(session, groups), group;

	for (group = 0; group < number; group++) {
		long left = list_pages(groups[group], thread->node, LRU_ACTIVE_ANON);
		unsigned long skip = 0;

		while (left > 0 && !to.full && skip < MOST_LOOKED_AT && !kthread_should_stop()) {
			unsigned long seen, stayed;
			LIST_HEAD(folios);

			seen = take(groups[group], thread->node, LRU_ACTIVE_ANON, false, skip, &folios);
			if (!seen)
				break;
			count(session, TERRACE_MM_PAGES_PROMOTED, move(session, &folios, &to, &stayed));
			/* What stayed is at the head again. */
			skip += stayed;
			left -= seen;
			cond_resched();
		}
	}
	while (number--)
		mem_cgroup_put(groups[number]);
}

/* After a cooling: the tail of the active anonymous list becomes inactive. */
static void deactivate(struct node_thread *thread)
{
	struct terrace_session *session = thread->session;
	struct mem_cgroup *groups[TERRACE_MM_SLOTS];
	int number = groups_of(session, groups), group;

	for (group = 0; group < number; group++) {
		long left = list_pages(groups[group], thread->node, LRU_ACTIVE_ANON) * session->with.deactivate_percent / 100;

		while (left > 0 && !kthread_should_stop()) {
			struct folio *folio;
			unsigned long seen;
			LIST_HEAD(folios);

			seen = take(groups[group], thread->node, LRU_ACTIVE_ANON, true, 0, &folios);
			if (!seen)
				break;
			list_for_each_entry(folio, &folios, lru) {
				folio_clear_active(folio);
				folio_clear_referenced(folio);
				count(session, TERRACE_MM_PAGES_DEACTIVATED, folio_nr_pages(folio));
			}
			put_back(&folios);
			left -= seen;
			cond_resched();
		}
	}
	while (number--)
		mem_cgroup_put(groups[number]);
}

static int tend_node(void *data)
{
	struct node_thread *thread = data;
	struct terrace_session *session = thread->session;
	unsigned long period = msecs_to_jiffies(session->with.period_ms), due = jiffies + period, why;

	while (!kthread_should_stop()) {
		long wait = max_t(long, due - jiffies, 0);

		wait_event_idle_timeout(thread->wait, kthread_should_stop() || READ_ONCE(thread->why), wait);
		if (kthread_should_stop())
			break;
		why = xchg(&thread->why, 0);
		if (thread->fast && why & BIT(WHY_COOLED))
			deactivate(thread);
		if (thread->fast && why & BIT(WHY_DIRECT) && !has_free(thread->node, thread->low)) {
			count(session, TERRACE_MM_RUNS_DIRECT, 1);
			if (!demote(thread, thread->low + (thread->high - thread->low) / 2))
				WRITE_ONCE(thread->in_vain, true);
		}
		if (time_before(jiffies, due))
			continue;
		due = jiffies + period;
		WRITE_ONCE(thread->in_vain, false);
		if (!thread->fast) {
			promote(thread);
		} else if (!has_free(thread->node, thread->high)) {
			count(session, TERRACE_MM_RUNS_PERIODIC, 1);
			demote(thread, thread->high);
		}
	}
	return 0;
}

/* ---- the allocation hook ---- */

static void wake_thread(struct irq_work *work)
{
	wake_up(&container_of(work, struct node_thread, wake)->wait);
}

/* At every page allocation of the machine, in whatever context that is: looks seldom, and leaves the waking to an interrupt. */
static void at_allocation(void *data, struct page *page, unsigned int order, gfp_t flags, int type)
{
	struct terrace_session *session = data;
	struct node_thread *thread;
	int node;

	if (!page || this_cpu_inc_return(allocations) % ALLOCATIONS_A_LOOK)
		return;
	node = page_to_nid(page);
	thread = node < 64 ? session->nodes[node] : NULL;
	if (!thread || !thread->fast || READ_ONCE(thread->in_vain) || has_free(node, thread->low))
		return;
	if (!test_and_set_bit(WHY_DIRECT, &thread->why))
		irq_work_queue(&thread->wake);
}

static void find_hook(struct tracepoint *point, void *found)
{
	if (!strcmp(point->name, "mm_page_alloc"))
		*(struct tracepoint **)found = point;
}

/* ---- a session ---- */

static bool makes_sense(const struct terrace_mm_start *with)
{
	u64 all = with->fast_nodes | with->slow_nodes;
	int node;

	if (!with->fast_nodes || !with->slow_nodes || with->fast_nodes & with->slow_nodes)
		return false;
	for (node = 0; node < 64; node++)
		if (all & (1ULL << node) && (node >= MAX_NUMNODES || !node_state(node, N_MEMORY)))
			return false;
	return is_power_of_2(with->ring_entries) && with->ring_entries >= TERRACE_MM_LEAST_ENTRIES &&
	       with->ring_entries <= TERRACE_MM_MOST_ENTRIES && with->high_watermark <= TERRACE_MM_MOST_WATERMARK &&
	       with->low_watermark <= with->high_watermark && with->period_ms >= 10 && with->period_ms <= 60000 &&
	       with->candidates_percent >= 1 && with->candidates_percent <= 100 && with->deactivate_percent <= 100 &&
	       !with->reserved;
}

static int start_node(struct terrace_session *session, int node, bool fast)
{
	struct node_thread *thread = kzalloc(sizeof(*thread), GFP_KERNEL);
	struct task_struct *task;
	unsigned long pages = managed_pages_of(node);

	if (!thread)
		return -ENOMEM;
	thread->session = session;
	thread->node = node;
	thread->fast = fast;
	thread->high = pages * session->with.high_watermark / 10000;
	thread->low = pages * session->with.low_watermark / 10000;
	init_waitqueue_head(&thread->wait);
	init_irq_work(&thread->wake, wake_thread);
	task = kthread_run(tend_node, thread, "terrace_%s%d", fast ? "demote" : "promote", node);
	if (IS_ERR(task)) {
		kfree(thread);
		return PTR_ERR(task);
	}
	thread->task = task;
	session->nodes[node] = thread;
	return 0;
}

void terrace_stop(struct terrace_session *session)
{
	int node;

	if (!session)
		return;
	/* First what could wake a thread, then the threads, then what they use. */
	if (session->hook) {
		tracepoint_probe_unregister(session->hook, at_allocation, session);
		tracepoint_synchronize_unregister();
	}
	for (node = 0; node < 64; node++) {
		if (!session->nodes[node])
			continue;
		irq_work_sync(&session->nodes[node]->wake);
		kthread_stop(session->nodes[node]->task);
		kfree(session->nodes[node]);
	}
	if (session->handler)
		kthread_stop(session->handler);
	vfree(session->rings[0].shared);
	vfree(session->rings[1].shared);
	kfree(session);
	atomic_set(&taken, 0);
}

int terrace_start(struct terrace_file *file, const struct terrace_mm_start *with)
{
	struct terrace_session *session;
	int node, error = -ENOMEM;
	size_t bytes;

	if (!isolate || !migrate)
		return -EOPNOTSUPP;
	if (!makes_sense(with))
		return -EINVAL;
	if (file->session || atomic_cmpxchg(&taken, 0, 1))
		return -EBUSY;
	session = kzalloc(sizeof(*session), GFP_KERNEL);
	if (!session) {
		atomic_set(&taken, 0);
		return -ENOMEM;
	}
	session->file = file;
	session->with = *with;
	bytes = PAGE_ALIGN(PAGE_SIZE + with->ring_entries * sizeof(u64));
	session->rings[0].hot = true;
	session->rings[0].shared = vmalloc_user(bytes);
	session->rings[1].shared = vmalloc_user(bytes);
	if (!session->rings[0].shared || !session->rings[1].shared)
		goto fail;
	session->handler = kthread_run(handle_rings, session, "terrace_rings");
	if (IS_ERR(session->handler)) {
		error = PTR_ERR(session->handler);
		session->handler = NULL;
		goto fail;
	}
	for (node = 0; node < 64; node++) {
		if (!((with->fast_nodes | with->slow_nodes) & (1ULL << node)))
			continue;
		error = start_node(session, node, with->fast_nodes & (1ULL << node));
		if (error)
			goto fail;
	}
	for_each_kernel_tracepoint(find_hook, &session->hook);
	if (session->hook) {
		error = tracepoint_probe_register(session->hook, at_allocation, session);
		if (error) {
			session->hook = NULL;
			goto fail;
		}
	}
	/* Pairs with the loads in main.c, which take no lock. */
	smp_store_release(&file->session, session);
	return 0;
fail:
	terrace_stop(session);
	return error;
}

int terrace_wake(struct terrace_session *session, u32 why)
{
	int node;

	if (!session)
		return -ENOENT;
	if (!why || why & ~(TERRACE_MM_WAKE_DIRECT | TERRACE_MM_WAKE_COOLED))
		return -EINVAL;
	for (node = 0; node < 64; node++) {
		struct node_thread *thread = session->nodes[node];

		if (!thread || !thread->fast)
			continue;
		if (why & TERRACE_MM_WAKE_DIRECT)
			set_bit(WHY_DIRECT, &thread->why);
		if (why & TERRACE_MM_WAKE_COOLED)
			set_bit(WHY_COOLED, &thread->why);
		wake_up(&thread->wait);
	}
	return 0;
}

int terrace_counts(struct terrace_session *session, struct terrace_mm_counts *counts)
{
	int what;

	if (!session)
		return -ENOENT;
	for (what = 0; what < TERRACE_MM_COUNTS; what++)
		counts->of[what] = atomic64_read(&session->counts[what]);
	return 0;
}

int terrace_map_ring(struct terrace_session *session, struct vm_area_struct *area, bool hot)
{
	return session ? remap_vmalloc_range(area, session->rings[hot ? 0 : 1].shared, 0) : -EINVAL;
}
