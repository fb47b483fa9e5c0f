/* SPDX-License-Identifier: GPL-2.0-only WITH Linux-syscall-note */
/*
 * What passes between /dev/terrace_mm and the programs that use it.
 *
 * In: nothing. Out: the ioctls, the form of results and of ring entries. Must not: change without a new TERRACE_MM_ABI.
 *
 * All numbers are in the machine's byte order. Fields called reserved, and flags that have no name here, must be 0.
 */
#ifndef TERRACE_MM_ABI_H
#define TERRACE_MM_ABI_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define TERRACE_MM_ABI 1

/* What this module can do on this kernel. */
#define TERRACE_MM_CAN_WALK 1	/* accessed-bit walks */
#define TERRACE_MM_CAN_KVM 2	/* walks clear the second-level tables of virtual machines as well */
#define TERRACE_MM_CAN_LISTS 4	/* rings, list order, migration */

/* Most processes an open file can name, and the range of their numbers (slots). */
#define TERRACE_MM_SLOTS 64

struct terrace_mm_version {
	__u32 abi;		/* out: TERRACE_MM_ABI */
	__u32 can;		/* out: TERRACE_MM_CAN_... */
};

/* Names a process. Only memory of named processes can be walked or put into a ring. */
struct terrace_mm_target {
	__s32 pid;		/* in: its pid in the caller's namespace */
	__u32 slot;		/* out: its number until FORGET or close */
};

/* Memory for results, once for an open file; read() and mmap() at offset 0 show it. */
struct terrace_mm_results {
	__u64 pages;		/* in: 4 KiB pages that a walk may cover at most */
};
#define TERRACE_MM_MOST_RESULTS (1ULL << 26)

/* Also clear the bits, of entries and of the tables above them, and flush the TLBs. Without it a walk only reads. */
#define TERRACE_MM_WALK_CLEAR 1
/* Scans after the first do not look below a table entry that was not used since the scan before. */
#define TERRACE_MM_WALK_SKIP_IDLE 2

#define TERRACE_MM_MOST_SCANS 31
#define TERRACE_MM_MOST_INTERVAL_US 10000000

/* One walk of a file at a time: another is refused with EBUSY while it runs. */
struct terrace_mm_walk {
	__u32 slot;		/* in */
	__u32 flags;		/* in: TERRACE_MM_WALK_... */
	__u64 start;		/* in: first address, a multiple of 4096 */
	__u64 end;		/* in: address behind the last byte */
	__u32 scans;		/* in: how often, 1 to TERRACE_MM_MOST_SCANS; more than one only with CLEAR */
	__u32 interval_us;	/* in: pause between two scans */
	__u64 present;		/* out: 4 KiB pages with memory at the last look */
	__u64 accessed;		/* out: sum of all counts of this walk */
	__u64 skipped;		/* out: last-level tables that were passed over as idle */
};

/* A result is one __u16 a page, in the order of addresses; 0 is a page with nothing behind it. */
#define TERRACE_MM_RESULT_COUNT 0x1f	/* scans that found it accessed */
#define TERRACE_MM_RESULT_PRESENT 0x20
#define TERRACE_MM_RESULT_HUGE 0x40	/* mapped by a 2 MiB entry, whose bit all its pages share */
#define TERRACE_MM_RESULT_SWAPPED 0x80	/* not present, and an entry says where it went */
#define TERRACE_MM_RESULT_NODE_SHIFT 8	/* the NUMA node of a present page; 255: none that is known */

/*
 * Orders the kernel's page lists by two rings, and moves pages between nodes: TieredMMS. One open file of the machine at a time; it
 * ends when that file is closed. Two rings are then to be mapped, at these offsets, of 4096 + 8 * ring_entries bytes each:
 *
 *   0     __u64 head: entries written so far. The program writes an entry first, and the head after it (release).
 *   64    __u64 tail: entries worked off. The module alone writes it. head - tail never exceeds ring_entries.
 *   4096  __u64 entries[ring_entries]; number n lies at n % ring_entries. An entry is the address of a page, and in its low 12 bits
 *         the slot of its process.
 *
 * A page in the hot ring goes to the head of the active list, one in the cold ring to the head of the inactive one.
 */
#define TERRACE_MM_HOT_RING 0x100000000ULL
#define TERRACE_MM_COLD_RING 0x200000000ULL
#define TERRACE_MM_RING_HEAD 0
#define TERRACE_MM_RING_TAIL 64
#define TERRACE_MM_RING_START 4096
#define TERRACE_MM_LEAST_ENTRIES 64
#define TERRACE_MM_MOST_ENTRIES (1 << 20)
#define TERRACE_MM_MOST_WATERMARK 9900
/* How often the rings are looked at, in microseconds (TieredMMS, section III.B). */
#define TERRACE_MM_HANDLER_US 100

struct terrace_mm_start {
	__u64 fast_nodes;	/* one bit a node: those that pages are demoted from */
	__u64 slow_nodes;	/* and those they go to and are promoted from */
	__u32 ring_entries;	/* a power of two */
	__u32 high_watermark;	/* free share of a fast node up to which demotion goes, in 1/10000 of it */
	__u32 low_watermark;	/* free share below which an allocation wakes demotion at once */
	__u32 period_ms;	/* between two looks of a node's thread: 10 to 60000 */
	__u32 candidates_percent;	/* rear share of a list that one demotion may take: 1 to 100 */
	__u32 deactivate_percent;	/* tail share of the active list that a cooling makes inactive: 0 to 100 */
	__u64 reserved;
};

/* Tells the demotion threads something: memory is short, or the program has halved its counts. */
#define TERRACE_MM_WAKE_DIRECT 1
#define TERRACE_MM_WAKE_COOLED 2

/* What has been done since START. Entries are ring entries, pages are of 4 KiB. */
#define TERRACE_MM_ENTRIES_HOT 0	/* put at an active list's head */
#define TERRACE_MM_ENTRIES_COLD 1	/* put at an inactive list's head */
#define TERRACE_MM_ENTRIES_MISSED 2	/* no page there, or one that cannot be taken now */
#define TERRACE_MM_ENTRIES_BAD 3	/* of no process, or no address */
#define TERRACE_MM_RING_OVERRUNS 4	/* heads too far ahead; what was in the ring was dropped */
#define TERRACE_MM_PAGES_PROMOTED 5
#define TERRACE_MM_PAGES_DEMOTED 6
#define TERRACE_MM_FOLIOS_STAYED 7	/* the kernel would not move them */
#define TERRACE_MM_PAGES_DEACTIVATED 8
#define TERRACE_MM_RUNS_PERIODIC 9
#define TERRACE_MM_RUNS_DIRECT 10
#define TERRACE_MM_COUNTS 11

struct terrace_mm_counts {
	__u64 of[TERRACE_MM_COUNTS];
};

#define TERRACE_MM_IOCTL 0xBE
#define TERRACE_MM_GET_VERSION _IOR(TERRACE_MM_IOCTL, 0, struct terrace_mm_version)
#define TERRACE_MM_ADD_TARGET _IOWR(TERRACE_MM_IOCTL, 1, struct terrace_mm_target)
#define TERRACE_MM_FORGET_TARGET _IOW(TERRACE_MM_IOCTL, 2, __u32)
#define TERRACE_MM_SET_RESULTS _IOW(TERRACE_MM_IOCTL, 3, struct terrace_mm_results)
#define TERRACE_MM_WALK _IOWR(TERRACE_MM_IOCTL, 4, struct terrace_mm_walk)
#define TERRACE_MM_START _IOW(TERRACE_MM_IOCTL, 5, struct terrace_mm_start)
#define TERRACE_MM_WAKE _IOW(TERRACE_MM_IOCTL, 6, __u32)
#define TERRACE_MM_GET_COUNTS _IOR(TERRACE_MM_IOCTL, 7, struct terrace_mm_counts)

#endif
