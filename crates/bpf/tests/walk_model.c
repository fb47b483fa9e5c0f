// SPDX-License-Identifier: GPL-2.0
/*
 * The walk of src/walk.bpf.h over a model of physical memory, for tests/search.rs.
 *
 * In, line by line: `memory END MAP FILL` (where memory ends, where it is mapped, what every word holds that is not set), `word PHYSICAL VALUE`,
 * `change READS PHYSICAL VALUE` (a word that changes after so many reads of the next question), and the questions `search` and `copy`.
 * Out: one line for each question. Must not: know how the walk works.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <linux/types.h>

/* Some C libraries have it. */
#ifndef __always_inline
#define __always_inline inline __attribute__((always_inline))
#endif

struct word {
	__u64 physical, value, after;
};

static __u64 memory_end, map_start, fill, reads, above;
static struct word *words;
static size_t count;

static void set(__u64 physical, __u64 value, __u64 after)
{
	size_t i;

	for (i = 0; i < count; i++)
		if (words[i].physical == physical && words[i].after == after)
			break;
	if (i == count) {
		words = realloc(words, ++count * sizeof(*words));
		if (!words)
			exit(2);
	}
	words[i] = (struct word){physical, value, after};
}

/* The latest word that was set there by now. */
static __u64 get(__u64 physical)
{
	__u64 value = fill, since = 0;
	size_t i;

	for (i = 0; i < count; i++) {
		if (words[i].physical == physical && words[i].after <= reads && words[i].after >= since) {
			value = words[i].value;
			since = words[i].after;
		}
	}
	return value;
}

static int read_memory(void *to, __u32 bytes, __u64 address)
{
	__u64 physical = address - map_start, value;
	__u32 at;

	reads++;
	if (address >= map_start + memory_end)
		above++;
	if (address < map_start || physical + bytes > memory_end || address % 8 || bytes % 8)
		return 1;
	for (at = 0; at < bytes; at += 8) {
		value = get(physical + at);
		memcpy((char *)to + at, &value, 8);
	}
	return 0;
}

#include "../src/walk.bpf.h"

static void search(const char *arguments)
{
	struct walk walk = {.memory_end = memory_end, .gib = NO_GIB};
	struct proof proof;
	__u64 *into = &proof.inverted[0][0], index, tried = 0;
	int used, word;

	if (sscanf(arguments, "%llx %llx %llx%n", &walk.root, &walk.address_mask, &proof.address, &used) != 3)
		exit(3);
	for (word = 0; word < MARKS * MARK_WORDS; word++) {
		arguments += used;
		if (sscanf(arguments, "%llx%n", &into[word], &used) != 1)
			exit(3);
	}
	for (index = 0; index < candidates(&walk); index++) {
		tried++;
		if (try_start(&walk, index, &proof))
			break;
	}
	printf("%llx %llu %llu\n", walk.direct_map, tried, above);
}

static void copy(const char *arguments)
{
	struct walk walk = {.memory_end = memory_end, .direct_map = map_start, .gib = NO_GIB};
	__u64 table[512], address, head;
	int used;

	if (sscanf(arguments, "%llx %llx%n", &walk.root, &walk.address_mask, &used) != 2)
		exit(3);
	for (arguments += used; sscanf(arguments, "%llx%n", &address, &used) == 1; arguments += used) {
		memset(table, 0, sizeof(table));
		head = copy_block(&walk, address, table);
		printf("%llx %llx %llx ", head, table[0], table[511]);
	}
	printf("%llu %u\n", reads, walk.beyond);
}

int main(void)
{
	static char line[4096];
	__u64 first, second, third;

	while (fgets(line, sizeof(line), stdin)) {
		if (sscanf(line, "memory %llx %llx %llx", &first, &second, &third) == 3) {
			memory_end = first;
			map_start = second;
			fill = third;
			count = 0;
		} else if (sscanf(line, "word %llx %llx", &first, &second) == 2) {
			set(first, second, 0);
		} else if (sscanf(line, "change %llu %llx %llx", &first, &second, &third) == 3) {
			set(second, third, first);
		} else if (!strncmp(line, "search ", 7) || !strncmp(line, "copy ", 5)) {
			reads = above = 0;
			*line == 's' ? search(line + 7) : copy(line + 5);
			fflush(stdout);
		} else {
			return 3;
		}
	}
	return 0;
}
