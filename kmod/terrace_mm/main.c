// SPDX-License-Identifier: GPL-2.0-only
/*
 * /dev/terrace_mm: what Terrace wants of the kernel and system calls do not give.
 *
 * In: the calls of terrace_mm_abi.h, from a process with CAP_SYS_ADMIN. Out: page-table walks
 * (walk.c), page lists in order and pages moved (lists.c). Must not: do anything that
 * was not asked for through an open file, or leave anything behind when that file is closed.
 *
 * Locking. mmap() is called with the caller's mmap_lock held for writing, and copying from or to user space, like a walk of the
 * caller's own memory, takes that lock. So mmap() takes none of our locks, and none is held while user memory is copied. What mmap()
 * and read() need, results and session, is made once, published by a store with release, and freed by release() alone: who
 * calls holds a reference on the file until the call returns, and so does each mapping.
 */
#include <linux/capability.h>
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/vmalloc.h>

#include "terrace_mm.h"

static u32 can;

static int set_results(struct terrace_file *file, const struct terrace_mm_results *wanted)
{
	u16 *results;
	int error = 0;

	if (!wanted->pages || wanted->pages > TERRACE_MM_MOST_RESULTS)
		return -EINVAL;
	/* It may be mapped: it stays as it is until the file is closed. */
	if (smp_load_acquire(&file->results))
		return -EBUSY;
	results = vmalloc_user(PAGE_ALIGN(wanted->pages * sizeof(u16)));
	if (!results)
		return -ENOMEM;
	mutex_lock(&file->make_lock);
	if (file->results) {
		error = -EBUSY;
	} else {
		file->result_pages = wanted->pages;
		smp_store_release(&file->results, results);
	}
	mutex_unlock(&file->make_lock);
	if (error)
		vfree(results);
	return error;
}

static int start(struct terrace_file *file, const struct terrace_mm_start *with)
{
	int error;

	if (mutex_lock_killable(&file->make_lock))
		return -EINTR;
	error = terrace_start(file, with);
	mutex_unlock(&file->make_lock);
	return error;
}

/* Results are of one walk: a second one is refused while the first runs, which may take minutes. */
static int walk(struct terrace_file *file, struct terrace_mm_walk *walk)
{
	int error;

	if (!mutex_trylock(&file->walk_lock))
		return -EBUSY;
	error = terrace_walk(file, walk);
	mutex_unlock(&file->walk_lock);
	return error;
}

static long terrace_ioctl(struct file *opened, unsigned int call, unsigned long given)
{
	struct terrace_file *file = opened->private_data;
	void __user *argument = (void __user *)given;
	union {
		struct terrace_mm_version version;
		struct terrace_mm_target target;
		struct terrace_mm_results results;
		struct terrace_mm_walk walk;
		struct terrace_mm_start start;
		struct terrace_mm_counts counts;
		u32 slot;
		u32 why;
	} with = {};
	size_t size = _IOC_SIZE(call);
	long error;

	if (_IOC_TYPE(call) != TERRACE_MM_IOCTL || size > sizeof(with))
		return -ENOTTY;
	if (_IOC_DIR(call) & _IOC_WRITE && copy_from_user(&with, argument, size))
		return -EFAULT;
	switch (call) {
	case TERRACE_MM_GET_VERSION:
		with.version.abi = TERRACE_MM_ABI;
		with.version.can = can;
		error = 0;
		break;
	case TERRACE_MM_ADD_TARGET:
		error = terrace_add_target(file, &with.target);
		break;
	case TERRACE_MM_FORGET_TARGET:
		error = terrace_forget_target(file, with.slot);
		break;
	case TERRACE_MM_SET_RESULTS:
		error = set_results(file, &with.results);
		break;
	case TERRACE_MM_WALK:
		error = walk(file, &with.walk);
		break;
	case TERRACE_MM_START:
		error = start(file, &with.start);
		break;
	case TERRACE_MM_WAKE:
		error = terrace_wake(smp_load_acquire(&file->session), with.why);
		break;
	case TERRACE_MM_GET_COUNTS:
		error = terrace_counts(smp_load_acquire(&file->session), &with.counts);
		break;
	default:
		return -ENOTTY;
	}
	if (!error && _IOC_DIR(call) & _IOC_READ && copy_to_user(argument, &with, size))
		error = -EFAULT;
	return error;
}

/* While a walk runs it shows what that has found so far, as a mapping does. */
static ssize_t terrace_read(struct file *opened, char __user *to, size_t bytes, loff_t *position)
{
	struct terrace_file *file = opened->private_data;
	u16 *results = smp_load_acquire(&file->results);

	if (!results)
		return 0;
	return simple_read_from_buffer(to, bytes, position, results, file->result_pages * sizeof(u16));
}

static int terrace_mmap(struct file *opened, struct vm_area_struct *area)
{
	struct terrace_file *file = opened->private_data;
	u64 offset = (u64)area->vm_pgoff << PAGE_SHIFT;
	u16 *results;

	if (offset == TERRACE_MM_HOT_RING || offset == TERRACE_MM_COLD_RING)
		return terrace_map_ring(smp_load_acquire(&file->session), area, offset == TERRACE_MM_HOT_RING);
	results = smp_load_acquire(&file->results);
	return results && offset == 0 ? remap_vmalloc_range(area, results, 0) : -EINVAL;
}

static int terrace_open(struct inode *inode, struct file *opened)
{
	struct terrace_file *file;

	/* The device is root's by its mode; whoever was handed the right to open it needs the capability as well. */
	if (!capable(CAP_SYS_ADMIN))
		return -EPERM;
	file = kzalloc(sizeof(*file), GFP_KERNEL_ACCOUNT);
	if (!file)
		return -ENOMEM;
	mutex_init(&file->make_lock);
	mutex_init(&file->walk_lock);
	init_rwsem(&file->targets_lock);
	opened->private_data = file;
	return 0;
}

static int terrace_release(struct inode *inode, struct file *opened)
{
	struct terrace_file *file = opened->private_data;

	terrace_stop(file->session);
	terrace_forget_targets(file);
	vfree(file->results);
	kfree(file);
	return 0;
}

static const struct file_operations operations = {
	.owner = THIS_MODULE, /* while a file is open, or mapped, the module stays */
	.open = terrace_open,
	.release = terrace_release,
	.unlocked_ioctl = terrace_ioctl,
	.read = terrace_read,
	.mmap = terrace_mmap,
	.llseek = default_llseek,
};

static struct miscdevice device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "terrace_mm",
	.mode = 0600,
	.fops = &operations,
};

static int __init terrace_load(void)
{
	can = terrace_walk_can() | terrace_lists_can();
	pr_info("terrace_mm: walks %s, lists %s\n", can & TERRACE_MM_CAN_WALK ? "yes" : "no",
		can & TERRACE_MM_CAN_LISTS ? "yes" : "no");
	return misc_register(&device);
}

static void __exit terrace_unload(void)
{
	misc_deregister(&device);
}

module_init(terrace_load);
module_exit(terrace_unload);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Page-table walks, page lists and migration for Terrace");
MODULE_VERSION("0.2.0");
