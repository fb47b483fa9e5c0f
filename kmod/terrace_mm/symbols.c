// SPDX-License-Identifier: GPL-2.0-only
/*
 * Finds kernel functions that are declared in public headers or documented, and not exported to modules.
 *
 * In: a function's name. Out: its address, or 0. Must not: look up data, look up anything the module can do without, or hand out
 * an address that the processor would refuse to jump to.
 *
 * A kprobe may be placed on any function by its name (Documentation/trace/kprobes.rst), and knows the address then: that is how
 * TieredMMS says it does it, too. Nothing is probed: the kprobe is gone again before this returns.
 */
#include <linux/kprobes.h>

#include "terrace_mm.h"

/* ENDBR64 as a little-endian word (Intel SDM volume 2): the only instruction an indirect call may meet while IBT is on. */
#define TERRACE_ENDBR64 0xfa1e0ff3u

unsigned long terrace_function(const char *name)
{
	struct kprobe probe = { .symbol_name = name };
	unsigned long address;

	if (register_kprobe(&probe))
		return 0;
	address = (unsigned long)probe.addr;
	unregister_kprobe(&probe);
	/* A probe at the start of a function lies behind its ENDBR64, if it has one. */
	if (*(const u32 *)(address - 4) == TERRACE_ENDBR64)
		address -= 4;
#ifdef X86_FEATURE_IBT
	/*
	 * Where the processor checks the targets of indirect calls, the kernel has removed the mark of functions that it never
	 * calls indirectly itself. Calling one of those would end the machine, so there is no such function for us.
	 */
	if (boot_cpu_has(X86_FEATURE_IBT) && *(const u32 *)address != TERRACE_ENDBR64) {
		pr_info("terrace_mm: %s may not be called indirectly on this machine\n", name);
		return 0;
	}
#endif
	return address;
}
