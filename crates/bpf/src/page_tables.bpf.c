// SPDX-License-Identifier: GPL-2.0
/*
 * Copies the last-level page tables of a process into an array that user space has mapped.
 *
 * In: the map `request` (which process, how many slots) and, for each slot, the address of one 2 MiB block in
 * `heads`. Out: in `heads` the entry that maps the block, and in `tables` the 512 entries of its page table where
 * there is one. Must not: change anything, or look at the entries themselves: user space does that, much faster.
 *
 * Three programs do the same work. `copy_by_own_pid` looks a process up by its pid in the caller's pid namespace and wants
 * Linux 6.13; `copy_by_pid` knows pids of the first namespace only and wants Linux 6.10; `copy_by_iterator` hangs on the
 * iterator over a task's memory areas, takes pids of the reader's namespace and wants Linux 5.17. The loader loads one of them.
 *
 * Only x86-64. An entry is read through the kernel's mapping of all physical memory, whose start the request SEARCH
 * finds and proves; how, and what is believed of what is read, stands in walk.bpf.h.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

static __always_inline int read_memory(void *to, __u32 bytes, __u64 address)
{
	return bpf_probe_read_kernel(to, bytes, (void *)address) != 0;
}

#include "walk.bpf.h"
#include "pid.bpf.h"

/* The loader sets the true number of slots. */
#define SLOTS 128

/* What a request wants; the same numbers stand in the loader. */
enum { COPY = 0, SEARCH = 1 };
/* What became of it. */
enum { NOT_RUN = 0, DONE = 1, NO_PROCESS = 2, NO_MEMORY = 3, NOT_FOUND = 4, CHANGED = 5 };

struct request {
	__u64 direct_map;   /* virtual address of physical address 0: given, or found by SEARCH */
	__u64 address_mask; /* the bits of an entry that hold the frame's address */
	__u64 memory_end;   /* physical address where memory ends */
	__u64 space;        /* out: tells one address space of a pid from the next, after exec; of SEARCH the highest start */
	struct proof proof; /* for SEARCH */
	__u32 pid;
	__u32 wanted;
	__u32 slots;
	__u32 outcome;
	__u32 beyond;       /* out: an entry named a frame beyond `memory_end` */
	__u32 misled;       /* out: of SEARCH, wrong starts that led to memory */
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
	struct pid *thread_pid;
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

/* Weak, so that a kernel without them can still load another program. */
extern struct task_struct *bpf_task_from_vpid(__s32 pid) __ksym __weak;
extern struct task_struct *bpf_task_from_pid(__s32 pid) __ksym __weak;
extern void bpf_task_release(struct task_struct *task) __ksym __weak;
extern void bpf_rcu_read_lock(void) __ksym __weak;
extern void bpf_rcu_read_unlock(void) __ksym __weak;

static int copy_slot(__u32 index, struct walk *walk)
{
	__u32 key = index;
	__u64 *head = bpf_map_lookup_elem(&heads, &key);
	struct table *slot = bpf_map_lookup_elem(&tables, &key);

	if (!head || !slot)
		return 1;
	*head = copy_block(walk, *head, slot);
	return 0;
}

static int try_direct_map(__u32 index, struct walk *walk)
{
	__u32 zero = 0;
	struct request *want = bpf_map_lookup_elem(&request, &zero);

	return !want || try_start(walk, index, &want->proof);
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
	/* An address space that the task had left before may be anything by now, and its top table too. */
	if (BPF_CORE_READ(task, mm) != memory) {
		want->outcome = CHANGED;
		return;
	}
	walk.direct_map = want->direct_map;
	walk.address_mask = want->address_mask;
	walk.memory_end = want->memory_end;
	walk.gib = NO_GIB;
	if (want->wanted == SEARCH) {
		bpf_loop(candidates(&walk), try_direct_map, &walk, 0);
		want->direct_map = walk.direct_map;
		want->space = walk.root & ~GIB_MASK;
		want->misled = walk.misled;
		want->outcome = walk.direct_map ? DONE : NOT_FOUND;
		return;
	}
	bpf_loop(want->slots, copy_slot, &walk, 0);
	want->beyond = walk.beyond;
	want->space = (__u64)memory;
	/* As long as the task held this address space to the end, its top table was not freed under the walk. */
	want->outcome = BPF_CORE_READ(task, mm) == memory ? DONE : CHANGED;
}

SEC("syscall")
int copy_by_own_pid(void *context)
{
	__u32 zero = 0;
	struct request *want = bpf_map_lookup_elem(&request, &zero);
	struct task_struct *task;

	if (!want)
		return 0;
	task = bpf_task_from_vpid(want->pid);
	if (!task) {
		want->outcome = NO_PROCESS;
		return 0;
	}
	/* Page tables are freed after a grace period, by most ways: within the section those are not reused. */
	bpf_rcu_read_lock();
	serve(want, task);
	bpf_rcu_read_unlock();
	bpf_task_release(task);
	return 0;
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
	bpf_rcu_read_lock();
	serve(want, task);
	bpf_rcu_read_unlock();
	bpf_task_release(task);
	return 0;
}

/* The pid of a task in the pid namespace of the process that runs this program; 0 if it has none there. */
static __always_inline __u32 pid_here(struct task_struct *task)
{
	struct task_struct *reader = (void *)bpf_get_current_task();
	struct namespace here = namespace_of(BPF_CORE_READ(reader, thread_pid));

	return number_in(&here, BPF_CORE_READ(task, thread_pid));
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
	if (want->outcome != NOT_RUN || pid_here(task) != want->pid)
		return 0;
	serve(want, task);
	bpf_seq_write(context->meta->seq, &mark, sizeof(mark));
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
