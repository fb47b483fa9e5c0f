/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Pids as a pid namespace numbers them.
 *
 * In: tasks. Out: the number that one namespace has for them. Must not: take a number of one namespace for one of another.
 *
 * The kernel keeps one `struct pid` a task, with a number for each namespace from the first one down to the task's own. A namespace
 * sees the tasks of those below it, at its own level; at that level of another branch stands another namespace.
 */

struct pid_namespace;

/* A process as one pid namespace numbers it. */
struct upid {
	int nr;
	struct pid_namespace *ns;
} __attribute__((preserve_access_index));

/* As all namespaces number it, the first one first. */
struct pid {
	unsigned int level;
	struct upid numbers[1];
} __attribute__((preserve_access_index));

/* A pid namespace. */
struct namespace {
	__u64 ns;    /* the address of its `struct pid_namespace` */
	__u32 level; /* 0 is the first */
	__u32 unused;
};

static __always_inline struct upid *number_at(struct pid *pid, __u32 level)
{
	__u64 first = (__u64)pid + bpf_core_field_offset(pid->numbers);

	return (struct upid *)(first + (__u64)level * bpf_core_type_size(struct upid));
}

/* The namespace that a process with this pid is in. */
static __always_inline struct namespace namespace_of(struct pid *pid)
{
	struct namespace here = {};
	struct upid *own;

	here.level = BPF_CORE_READ(pid, level);
	/* Not within the macro, which would take our own structure for one of the kernel's. */
	own = number_at(pid, here.level);
	here.ns = (__u64)BPF_CORE_READ(own, ns);
	return here;
}

/* The number of a pid in a namespace, 0 where it is not seen. */
static __always_inline __u32 number_in(const struct namespace *here, struct pid *pid)
{
	struct upid *number = number_at(pid, here->level);

	if (!pid || BPF_CORE_READ(pid, level) < here->level || (__u64)BPF_CORE_READ(number, ns) != here->ns)
		return 0;
	return BPF_CORE_READ(number, nr);
}
