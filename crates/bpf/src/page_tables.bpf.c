// SPDX-License-Identifier: GPL-2.0
/*
 * Copies the last-level page tables of a process into an array that user space has mapped.
 *
 * In: the map `request` (which process, how many slots) and, for each slot, the address of one 2 MiB block in
 * `heads`. Out: in `heads` the entry that maps the block, and in `tables` the 512 entries of its page table where
 * there is one. Must not: change anything, or look at the entries themselves: user space does that, much faster.
 *
 * Two programs do the same work. `copy_by_pid` is called directly and wants Linux 6.10; `copy_by_iterator` hangs on
 * the iterator over a task's memory areas and wants Linux 5.17. The loader loads one of them.
 *
 * Only x86-64. The table format is that of the processor manual (Intel SDM volume 3, chapter 5; AMD64 APM volume 2,
 * chapter 5): 512 entries of 8 bytes a level, bit 0 present, bit 7 a leaf above the last level, bits 12 to 51 the
 * frame. An entry is read through the kernel's mapping of all physical memory, whose start user space has found by
 * the request SEARCH and then checked.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

/* The loader sets the true number of slots. */
#define SLOTS 128
#define PRESENT 1ull
#define LEAF (1ull << 7)
#define GIB (1ull << 30)
#define GIB_MASK (GIB - 1)
#define SEARCH_STEPS 65536

/* A head that says: something is there, but it was taken away while it was read. */
#define UNKNOWN (~0ull)

/* What a request wants; the same numbers stand in the loader. */
enum { COPY = 0, SEARCH = 1 };
/* What became of it. */
enum { NOT_RUN = 0, DONE = 1, NO_PROCESS = 2, NO_MEMORY = 3, NOT_FOUND = 4, CHANGED = 5 };

struct request {
	__u64 direct_map;   /* virtual address of physical address 0: given, or found by SEARCH */
	__u64 address_mask; /* the bits of an entry that hold the frame's address */
	__u64 space;        /* out: tells one address space of a pid from the next, after exec */
	__u32 pid;
	__u32 wanted;
	__u32 slots;
	__u32 outcome;
};

struct table {
	__u64 entries[512];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct request);
} request SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, SLOTS);
	__type(key, __u32);
	__type(value, __u64);
} heads SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, SLOTS);
	__type(key, __u32);
	__type(value, struct table);
} tables SEC(".maps");

/* The few kernel types needed, found by name at load time whatever their layout is. */
struct mm_struct {
	void *pgd;
} __attribute__((preserve_access_index));

struct task_struct {
	int pid;
	struct mm_struct *mm;
} __attribute__((preserve_access_index));

struct seq_file;

struct bpf_iter_meta {
	struct seq_file *seq;
} __attribute__((preserve_access_index));

struct bpf_iter__task_vma {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
} __attribute__((preserve_access_index));

/* Weak, so that a kernel without them can still load the other program. */
extern struct task_struct *bpf_task_from_pid(__s32 pid) __ksym __weak;
extern void bpf_task_release(struct task_struct *task) __ksym __weak;
extern void bpf_rcu_read_lock(void) __ksym __weak;
extern void bpf_rcu_read_unlock(void) __ksym __weak;

struct walk {
	__u64 root;         /* virtual address of the top table */
	__u64 direct_map;
	__u64 address_mask;
	__u64 gib;          /* the GiB of addresses that `middle` is of, or ~0 */
	__u64 middle;       /* virtual address of the table of 2 MiB entries of that GiB, or 0 */
	__u32 five_levels;
};

/* A five-level kernel maps physical memory below 0xffff000000000000, a four-level one above. */
static __always_inline __u32 has_five_levels(__u64 root)
{
	return (root >> 48) != 0xffff;
}

/* One entry, or 0 where it cannot be read. */
static __always_inline __u64 entry_at(__u64 table, __u64 index)
{
	__u64 entry = 0;

	if (bpf_probe_read_kernel(&entry, sizeof(entry), (void *)(table + (index & 511) * 8)))
		return 0;
	return entry;
}

static __always_inline __u64 below(struct walk *walk, __u64 entry)
{
	return walk->direct_map + (entry & walk->address_mask);
}

/* The table of 1 GiB entries that covers an address, or 0. */
static __always_inline __u64 upper_table(struct walk *walk, __u64 address)
{
	__u64 table = walk->root;
	__u64 entry;

	if (walk->five_levels) {
		entry = entry_at(table, address >> 48);
		if (!(entry & PRESENT))
			return 0;
		table = below(walk, entry);
	}
	entry = entry_at(table, address >> 39);
	return entry & PRESENT ? below(walk, entry) : 0;
}

/* The physical address behind a kernel address, or ~0 where the tables do not say. */
static __always_inline __u64 physical(struct walk *walk, __u64 address)
{
	__u64 mask = walk->address_mask;
	__u64 table = upper_table(walk, address);
	__u64 entry;

	if (!table)
		return ~0ull;
	entry = entry_at(table, address >> 30);
	if (!(entry & PRESENT))
		return ~0ull;
	if (entry & LEAF)
		return (entry & mask & ~GIB_MASK) | (address & GIB_MASK);
	entry = entry_at(below(walk, entry), address >> 21);
	if (!(entry & PRESENT))
		return ~0ull;
	if (entry & LEAF)
		return (entry & mask & ~((1ull << 21) - 1)) | (address & ((1ull << 21) - 1));
	entry = entry_at(below(walk, entry), address >> 12);
	if (!(entry & PRESENT))
		return ~0ull;
	return (entry & mask) | (address & 4095);
}

static int copy_slot(__u32 index, struct walk *walk)
{
	__u32 key = index;
	__u64 *head = bpf_map_lookup_elem(&heads, &key);
	struct table *slot = bpf_map_lookup_elem(&tables, &key);
	__u64 address, entry, at;

	if (!head || !slot)
		return 1;
	address = *head;
	*head = 0;
	if (walk->gib != address >> 30) {
		__u64 table = upper_table(walk, address);

		walk->gib = address >> 30;
		walk->middle = 0;
		if (table) {
			entry = entry_at(table, address >> 30);
			/* A 1 GiB leaf is hugetlbfs or device memory: nothing that could be managed. */
			if ((entry & PRESENT) && !(entry & LEAF))
				walk->middle = below(walk, entry);
		}
	}
	if (!walk->middle)
		return 0;
	at = walk->middle;
	entry = entry_at(at, address >> 21);
	if ((entry & PRESENT) && !(entry & LEAF)) {
		/* A table that was taken away meanwhile may have been reused: then what was copied says nothing. */
		if (bpf_probe_read_kernel(slot, sizeof(*slot), (void *)below(walk, entry)) ||
		    ((entry_at(at, address >> 21) ^ entry) & walk->address_mask) != 0)
			entry = UNKNOWN;
	}
	*head = entry;
	return 0;
}

static int try_direct_map(__u32 index, struct walk *walk)
{
	__u64 start = (walk->root & ~GIB_MASK) - (__u64)index * GIB;

	walk->direct_map = start;
	/* The table that maps itself to where it lies proves the start. */
	if (physical(walk, walk->root) == walk->root - start)
		return 1;
	walk->direct_map = 0;
	return 0;
}

static __always_inline void serve(struct request *want, struct task_struct *task)
{
	struct walk walk = {};
	struct mm_struct *memory = BPF_CORE_READ(task, mm);

	if (!memory) {
		want->outcome = NO_MEMORY;
		return;
	}
	walk.root = (__u64)BPF_CORE_READ(memory, pgd);
	walk.direct_map = want->direct_map;
	walk.address_mask = want->address_mask;
	walk.five_levels = has_five_levels(walk.root);
	walk.gib = ~0ull;
	if (want->wanted == SEARCH) {
		bpf_loop(SEARCH_STEPS, try_direct_map, &walk, 0);
		want->direct_map = walk.direct_map;
		want->outcome = walk.direct_map ? DONE : NOT_FOUND;
		return;
	}
	bpf_loop(want->slots, copy_slot, &walk, 0);
	want->space = (__u64)memory;
	/* As long as the task held this address space to the end, its top table was not freed under the walk. */
	want->outcome = BPF_CORE_READ(task, mm) == memory ? DONE : CHANGED;
}

SEC("syscall")
int copy_by_pid(void *context)
{
	__u32 zero = 0;
	struct request *want = bpf_map_lookup_elem(&request, &zero);
	struct task_struct *task;

	if (!want)
		return 0;
	task = bpf_task_from_pid(want->pid);
	if (!task) {
		want->outcome = NO_PROCESS;
		return 0;
	}
	/* Page tables are freed after a grace period: within the section none is reused. */
	bpf_rcu_read_lock();
	serve(want, task);
	bpf_rcu_read_unlock();
	bpf_task_release(task);
	return 0;
}

/* Called once for every memory area of the task; the first call does all, and its output ends the reading. */
SEC("iter/task_vma")
int copy_by_iterator(struct bpf_iter__task_vma *context)
{
	__u32 zero = 0;
	struct request *want = bpf_map_lookup_elem(&request, &zero);
	struct task_struct *task = context->task;
	__u64 mark = 1;

	if (!want || !task)
		return 0;
	/* Kernels before 6.1 do not filter by task. */
	if ((__u32)task->pid != want->pid || want->outcome != NOT_RUN)
		return 0;
	serve(want, task);
	bpf_seq_write(context->meta->seq, &mark, sizeof(mark));
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
