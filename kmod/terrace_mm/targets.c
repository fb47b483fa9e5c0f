// SPDX-License-Identifier: GPL-2.0-only
/*
 * The processes of an open file, each held by its address space.
 *
 * In: process ids. Out: slots, and from a slot the address space behind it, for as long as it has memory. Must not: keep a process's
 * memory alive when it ends.
 */
#include <linux/pid.h>
#include <linux/sched/task.h>

#include "terrace_mm.h"

struct mm_struct *terrace_target_mm(struct terrace_file *file, u32 slot)
{
	struct mm_struct *mm = NULL;

	if (slot >= TERRACE_MM_SLOTS)
		return NULL;
	down_read(&file->targets_lock);
	mm = file->targets[slot].mm;
	if (mm && !mmget_not_zero(mm))
		mm = NULL;
	up_read(&file->targets_lock);
	return mm;
}

int terrace_add_target(struct terrace_file *file, struct terrace_mm_target *wanted)
{
	struct pid *pid = find_get_pid(wanted->pid);
	struct task_struct *task = get_pid_task(pid, PIDTYPE_PID);
	struct mm_struct *mm = task ? get_task_mm(task) : NULL;
	u32 slot;
	int error = -ENOSPC;

	if (task)
		put_task_struct(task);
	put_pid(pid);
	if (!mm)
		return -ESRCH;
	down_write(&file->targets_lock);
	for (slot = 0; slot < TERRACE_MM_SLOTS; slot++) {
		if (file->targets[slot].mm)
			continue;
		mmgrab(mm);
		file->targets[slot].mm = mm;
		wanted->slot = slot;
		error = 0;
		break;
	}
	up_write(&file->targets_lock);
	mmput(mm);
	return error;
}

int terrace_forget_target(struct terrace_file *file, u32 slot)
{
	struct mm_struct *mm;

	if (slot >= TERRACE_MM_SLOTS)
		return -EINVAL;
	down_write(&file->targets_lock);
	mm = file->targets[slot].mm;
	file->targets[slot].mm = NULL;
	up_write(&file->targets_lock);
	if (!mm)
		return -ENOENT;
	mmdrop(mm);
	return 0;
}

void terrace_forget_targets(struct terrace_file *file)
{
	u32 slot;

	for (slot = 0; slot < TERRACE_MM_SLOTS; slot++)
		if (file->targets[slot].mm)
			mmdrop(file->targets[slot].mm);
}
