/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the parts of the module share: an open file with its processes, and the kernel functions that are looked up.
 *
 * In: nothing. Out: declarations. Must not: reach into a kernel that was not tried.
 */
#ifndef TERRACE_MM_H
#define TERRACE_MM_H

#include <linux/version.h>

#ifndef CONFIG_X86_64
#error "terrace_mm reads x86-64 page tables: there is nothing in it for another architecture"
#endif

/* Walking page tables and kernel lists rests on facts that hold for the kernels it was tried on. */
#define TERRACE_MM_SERIES (LINUX_VERSION_CODE >> 8)
#if TERRACE_MM_SERIES != (KERNEL_VERSION(6, 1, 0) >> 8) && TERRACE_MM_SERIES != (KERNEL_VERSION(6, 12, 0) >> 8) && \
	TERRACE_MM_SERIES != (KERNEL_VERSION(7, 2, 0) >> 8)
#error "terrace_mm is for kernels 6.1, 6.12 and 7.2, on which it was tried; see kmod/README.md"
#endif

#include <linux/kernel.h>
#include <linux/mm.h>
#include <linux/mutex.h>
#include <linux/rwsem.h>
#include <linux/sched/mm.h>

#include "terrace_mm_abi.h"

struct terrace_session;

/* A process by its address space. The struct stays, the memory behind it may go at any time: mmget_not_zero() before use. */
struct terrace_target {
	struct mm_struct *mm;	/* NULL: the slot is free */
};

/* An open file of /dev/terrace_mm. */
struct terrace_file {
	struct mutex make_lock;		/* results and session are made under it; never held while user memory is copied or walked */
	struct mutex walk_lock;		/* one walk at a time; a process's mmap_lock is taken inside it, and it never inside that one */
	struct rw_semaphore targets_lock;
	struct terrace_target targets[TERRACE_MM_SLOTS];
	/* Made once and there until release(): smp_load_acquire() before use, no lock. */
	u64 result_pages;		/* valid once results is seen */
	u16 *results;			/* vmalloc_user() */
	struct terrace_session *session;	/* rings and migration, if they were started */
};

/* targets.c */
int terrace_add_target(struct terrace_file *file, struct terrace_mm_target *wanted);
int terrace_forget_target(struct terrace_file *file, u32 slot);
/* The address space of a slot with a reference on its memory (mmput() it), or NULL. */
struct mm_struct *terrace_target_mm(struct terrace_file *file, u32 slot);
void terrace_forget_targets(struct terrace_file *file);

/* walk.c */
u32 terrace_walk_can(void);
int terrace_walk(struct terrace_file *file, struct terrace_mm_walk *walk);

/* lists.c */
u32 terrace_lists_can(void);
int terrace_start(struct terrace_file *file, const struct terrace_mm_start *with);
void terrace_stop(struct terrace_session *session);
int terrace_wake(struct terrace_session *session, u32 why);
int terrace_counts(struct terrace_session *session, struct terrace_mm_counts *counts);
int terrace_map_ring(struct terrace_session *session, struct vm_area_struct *area, bool hot);

/* symbols.c */
unsigned long terrace_function(const char *name);

#endif
