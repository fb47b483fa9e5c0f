// SPDX-License-Identifier: GPL-2.0
/*
 * Tells of anonymous pages that are born and that die in managed processes.
 *
 * In: the map `managed` (which processes). Out: in the ring `events` one record for each folio that was mapped for the
 * first time, and one for each stretch of addresses whose memory was given back; in `lost` how many records found no
 * room. Must not: change anything, or tell of other processes.
 *
 * Births are seen where the kernel takes an anonymous folio into its reverse map for the first time. Every way to a new
 * anonymous page goes through that function, whoever faults (the program, a system call on its behalf, MAP_POPULATE,
 * userfaultfd, khugepaged): folio_add_new_anon_rmap since 6.3, page_add_new_anon_rmap before. do_anonymous_page, whose
 * last step it is, is compiled into its caller on some kernels and cannot be attached to there.
 *
 * A process is named by its pid in the pid namespace of the loader, which may be a container's; those it does not see are never told of.
 *
 * Deaths are seen where page tables are emptied: unmap_vmas for munmap, mremap, brk and exit, and the function below
 * madvise(MADV_DONTNEED), whose name changed twice. All of them are called from another file than the one they stand in, so
 * no compiler can have put them into their callers. A page that is freed because it moved, or was swapped out, has not died,
 * and passes through none of them. Told after the fact (fexit): from then on the next birth there is a new life.
 *
 * The loader loads those programs for whose function the kernel has one; each attaches by its section's name.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

#include "pid.bpf.h"

#define PAGE_SHIFT 12
/* Of a 2 MiB page. */
#define MOST_ORDER 9
/* Wake user space when so many bytes wait: 512 records of 24 bytes and a header of 8 each. Few enough that births are known
 * before a direct demotion would be late, many enough that waking costs nothing a birth. User space looks by itself, too. */
#define WAKE_AT (512 * 32)

/* The same numbers stand in the loader. */
enum { BORN = 0, GONE = 1 };

struct life_event {
	__u64 first;  /* page number of the address */
	__u64 pages;
	__u32 pid;
	__u32 kind;
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4 << 20);
} events SEC(".maps");

/* Thread group ids, as the loader's pid namespace has them, whose pages are told of. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, __u32);
	__type(value, __u8);
} managed SEC(".maps");

/* Whose an address space is that has no owner any more, because its last task is exiting. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, __u64);
	__type(value, __u32);
} spaces SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} lost SEC(".maps");

/* The loader's pid namespace, which `note_namespace` has noted. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct namespace);
} loader SEC(".maps");

/* The few kernel types needed, found by name at load time whatever their layout is. */
struct task_struct;

struct mm_struct {
	struct task_struct *owner;
} __attribute__((preserve_access_index));

struct task_struct {
	int tgid;
	struct task_struct *group_leader;
	struct pid *thread_pid;
	struct mm_struct *mm;
} __attribute__((preserve_access_index));

struct file;

struct vm_area_struct {
	unsigned long vm_end;
	struct mm_struct *vm_mm;
	struct file *vm_file;
} __attribute__((preserve_access_index));

/* The argument of unmap_vmas since 7.0. */
struct unmap_desc {
	struct vm_area_struct *first;
	unsigned long vma_start;
	unsigned long vma_end;
} __attribute__((preserve_access_index));

/* Up to 6.5 a folio's order has a field of its own. */
struct folio {
	unsigned char _folio_order;
} __attribute__((preserve_access_index));

struct page {
	unsigned long flags;
};

enum pageflags {
	PG_head = 6,
};

/* The thread group id of a task in the loader's namespace, 0 where that does not see it. */
static __always_inline __u32 process_of(struct task_struct *task)
{
	__u32 zero = 0;
	struct namespace *here = bpf_map_lookup_elem(&loader, &zero);

	/* Until it is noted nothing is managed. */
	if (!here || !here->ns)
		return 0;
	/* Every page fault of the machine comes here; the first namespace, where nearly all of Terrace runs, needs one read. */
	if (here->level == 0)
		return BPF_CORE_READ(task, tgid);
	return number_in(here, BPF_CORE_READ(task, group_leader, thread_pid));
}

/* A task that an address space belongs to, or 0 once its last one is exiting. */
static __always_inline struct task_struct *owner_of(struct mm_struct *mm)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	struct task_struct *owner = 0;

	/* Only kernels with memory groups note the owner. */
	if (bpf_core_field_exists(mm->owner))
		owner = BPF_CORE_READ(mm, owner);
	if (!owner && BPF_CORE_READ(task, mm) == mm)
		owner = task;
	return owner;
}

/* The managed process that an address space belongs to, or 0. */
static __always_inline __u32 managed_process(struct mm_struct *mm)
{
	__u64 key = (__u64)mm;
	__u32 *known = bpf_map_lookup_elem(&spaces, &key);
	struct task_struct *owner = owner_of(mm);
	__u32 pid;

	if (!owner) {
		if (!known)
			return 0;
		pid = *known;
		return bpf_map_lookup_elem(&managed, &pid) ? pid : 0;
	}
	pid = process_of(owner);
	if (!pid || !bpf_map_lookup_elem(&managed, &pid)) {
		/* The address was another process's before: what it says of an exit would be wrong. */
		if (known)
			bpf_map_delete_elem(&spaces, &key);
		return 0;
	}
	if (!known || *known != pid)
		bpf_map_update_elem(&spaces, &key, &pid, BPF_ANY);
	return pid;
}

/* After the last unmapping of an address space its address may become another's, of which nothing is known. */
static __always_inline void leave(struct mm_struct *mm)
{
	__u64 key = (__u64)mm;

	if (!owner_of(mm))
		bpf_map_delete_elem(&spaces, &key);
}

static __always_inline void tell(struct mm_struct *mm, __u32 kind, __u64 address, __u64 pages)
{
	__u32 pid = managed_process(mm);
	struct life_event *event;
	__u64 flags;

	if (!pid)
		return;
	event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);
	if (!event) {
		__u32 zero = 0;
		__u64 *count = bpf_map_lookup_elem(&lost, &zero);

		if (count)
			__sync_fetch_and_add(count, 1);
		return;
	}
	event->first = address >> PAGE_SHIFT;
	event->pages = pages;
	event->pid = pid;
	event->kind = kind;
	flags = bpf_ringbuf_query(&events, BPF_RB_AVAIL_DATA) >= WAKE_AT ? BPF_RB_FORCE_WAKEUP : BPF_RB_NO_WAKEUP;
	bpf_ringbuf_submit(event, flags);
}

/* How many pages a folio has. The word of flags comes first in it, whatever its type is. No anonymous folio is larger than a 2 MiB page: what
 * says so is a word of something else, and counts as one page. */
static __always_inline __u64 pages_of(__u64 folio)
{
	__u64 flags = 0, second = 0;
	__u32 order;

	bpf_probe_read_kernel(&flags, sizeof(flags), (void *)folio);
	if (!(flags >> bpf_core_enum_value(enum pageflags, PG_head) & 1))
		return 1;
	if (bpf_core_field_exists(((struct folio *)0)->_folio_order)) {
		order = BPF_CORE_READ((struct folio *)folio, _folio_order);
	} else {
		/* Since 6.6 the lowest byte of the second page's flags. */
		bpf_probe_read_kernel(&second, sizeof(second), (void *)(folio + bpf_core_type_size(struct page)));
		order = second & 0xff;
	}
	return order > MOST_ORDER ? 1 : 1ull << order;
}

/* (folio or page, memory area, address, ...) */
static __always_inline int born(__u64 *arguments)
{
	struct vm_area_struct *area = (void *)arguments[1];
	__u64 pages = pages_of(arguments[0]);
	/* A folio is mapped within its area. */
	__u64 room = (BPF_CORE_READ(area, vm_end) - arguments[2]) >> PAGE_SHIFT;

	tell(BPF_CORE_READ(area, vm_mm), BORN, arguments[2], pages < room ? pages : room);
	return 0;
}

SEC("fexit/folio_add_new_anon_rmap")
int born_folio(__u64 *arguments)
{
	return born(arguments);
}

SEC("fexit/page_add_new_anon_rmap")
int born_page(__u64 *arguments)
{
	return born(arguments);
}

/* Several areas at once: (tlb, tree, first area, start, end, ...) */
SEC("fexit/unmap_vmas")
int unmapped(__u64 *arguments)
{
	struct vm_area_struct *area = (void *)arguments[2];
	struct mm_struct *mm = BPF_CORE_READ(area, vm_mm);
	__u64 start = arguments[3], end = arguments[4];

	tell(mm, GONE, start, (end - start) >> PAGE_SHIFT);
	leave(mm);
	return 0;
}

/* The same since 7.0: (tlb, what to unmap) */
SEC("fexit/unmap_vmas")
int unmapped_by_description(__u64 *arguments)
{
	struct unmap_desc *what = (void *)arguments[1];
	struct vm_area_struct *area = BPF_CORE_READ(what, first);
	struct mm_struct *mm = BPF_CORE_READ(area, vm_mm);
	__u64 start = BPF_CORE_READ(what, vma_start), end = BPF_CORE_READ(what, vma_end);

	tell(mm, GONE, start, (end - start) >> PAGE_SHIFT);
	leave(mm);
	return 0;
}

/* Within one area. Of a mapped file that is cut off the kernel keeps the private copies; only for such a call are there details
 * on an area with a file that matter, so those are left to the next look at places. */
static __always_inline int emptied(struct vm_area_struct *area, __u64 start, __u64 bytes, __u64 details)
{
	if (details && BPF_CORE_READ(area, vm_file))
		return 0;
	tell(BPF_CORE_READ(area, vm_mm), GONE, start, (bytes + (1 << PAGE_SHIFT) - 1) >> PAGE_SHIFT);
	return 0;
}

SEC("fexit/zap_page_range")
int zapped_old(__u64 *arguments)
{
	return emptied((void *)arguments[0], arguments[1], arguments[2], 0);
}

SEC("fexit/zap_page_range_single")
int zapped_single(__u64 *arguments)
{
	return emptied((void *)arguments[0], arguments[1], arguments[2], arguments[3]);
}

SEC("fexit/zap_page_range_single_batched")
int zapped_batched(__u64 *arguments)
{
	return emptied((void *)arguments[1], arguments[2], arguments[3], arguments[4]);
}

SEC("fexit/zap_vma_range_batched")
int zapped_area_batched(__u64 *arguments)
{
	return emptied((void *)arguments[1], arguments[2], arguments[3], arguments[4]);
}

SEC("fexit/zap_vma_range")
int zapped_area(__u64 *arguments)
{
	return emptied((void *)arguments[0], arguments[1], arguments[2], 0);
}

/* Notes the pid namespace of the loader, who runs it once. */
SEC("syscall")
int note_namespace(void *context)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	struct namespace here = namespace_of(BPF_CORE_READ(task, thread_pid));
	__u32 zero = 0;

	bpf_map_update_elem(&loader, &zero, &here, BPF_ANY);
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
