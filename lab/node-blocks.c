/*
 * What it costs to move memory from node 0 to node 1: page by page, by blocks of 2 MiB that are made one huge page first, and by the kernel's own
 * demotion; while a thread of the same program goes through other memory.
 *
 * In: nothing. Out: one JSON object; for each way the mover's processor time and the program's loss a page of 4 KiB, in microseconds, medians over
 * rounds. Must not: be run beside other programs, nor tell anything of a machine without a second node.
 *
 * From move_pages(2), madvise(2) (MADV_COLLAPSE, Linux 6.1), and Documentation/admin-guide/cgroup-v2.rst (memory.reclaim).
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096ul
#define BLOCK (512 * PAGE)
#define BLOCKS 8
#define ROUNDS 9
#define HOT 1024
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

static atomic_ulong laps;
static atomic_int over;

static void *run(void *unused)
{
	volatile char *hot = mmap(0, HOT * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	(void)unused;
	while (!over) {
		for (int page = 0; page < HOT; page++)
			hot[page * PAGE]++;
		laps++;
	}
	return 0;
}

static double now(clockid_t clock)
{
	struct timespec time;

	clock_gettime(clock, &time);
	return time.tv_sec + time.tv_nsec * 1e-9;
}

static long move(char *memory, unsigned long pages, unsigned long step, int node)
{
	static void *addresses[BLOCKS * 512];
	static int nodes[BLOCKS * 512], status[BLOCKS * 512];
	long there = 0;

	for (unsigned long i = 0; i < pages; i++) {
		addresses[i] = memory + i * step;
		nodes[i] = node;
		status[i] = -1000;
	}
	syscall(SYS_move_pages, 0, pages, addresses, node < 0 ? 0 : nodes, status, 2);
	for (unsigned long i = 0; i < pages; i++)
		there += status[i] == (node < 0 ? 1 : node);
	return there;
}

enum way { SINGLE, COLLAPSED, HUGE, KERNEL, WAYS };
static const char *const names[] = { "single", "collapsed", "huge", "kernel" };

static char *fresh(int huge)
{
	char *memory = mmap(0, (BLOCKS + 1) * BLOCK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *first = (char *)(((unsigned long)memory + BLOCK - 1) & ~(BLOCK - 1));

	madvise(first, BLOCKS * BLOCK, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
	for (unsigned long page = 0; page < BLOCKS * 512; page++)
		first[page * PAGE] = page;
	/* What forbids huge pages cannot be collapsed; by now the pages are small. */
	if (!huge)
		madvise(first, BLOCKS * BLOCK, MADV_HUGEPAGE);
	return first;
}

static int ascending(const void *one, const void *other)
{
	double a = *(const double *)one, b = *(const double *)other;

	return (a > b) - (a < b);
}

/* Pages that went; their cost. */
static long once(enum way way, const char *reclaim, double *mover, double *program)
{
	char *memory = fresh(way == HUGE);
	long there = 0;
	unsigned long before = laps, undisturbed;
	double began = now(CLOCK_MONOTONIC), speed, cpu, wall;

	usleep(100000);
	undisturbed = laps - before;
	speed = undisturbed / (now(CLOCK_MONOTONIC) - began);
	before = laps;
	began = now(CLOCK_MONOTONIC);
	cpu = now(CLOCK_THREAD_CPUTIME_ID);
	if (way == SINGLE)
		there = move(memory, BLOCKS * 512, PAGE, 1);
	if (way == COLLAPSED && madvise(memory, BLOCKS * BLOCK, MADV_COLLAPSE))
		return 0;
	if (way == COLLAPSED || way == HUGE)
		there = 512 * move(memory, BLOCKS, BLOCK, 1);
	if (way == KERNEL) {
		int file = open(reclaim, O_WRONLY);
		char text[32];

		madvise(memory, BLOCKS * BLOCK, MADV_COLD);
		if (file < 0)
			return 0;
		/* Less than asked for is reported as an error, and counted below. */
		there = write(file, text, snprintf(text, sizeof text, "%lu", BLOCKS * BLOCK));
		close(file);
	}
	cpu = now(CLOCK_THREAD_CPUTIME_ID) - cpu;
	wall = now(CLOCK_MONOTONIC) - began;
	undisturbed = laps - before;
	if (way == KERNEL)
		there = move(memory, BLOCKS * 512, PAGE, -1);
	munmap(memory, BLOCKS * BLOCK);
	if (there) {
		*mover = cpu * 1e6 / there;
		*program = (wall - undisturbed / speed) * 1e6 / there;
	}
	return there;
}

int main(int count, char **arguments)
{
	pthread_t thread;

	pthread_create(&thread, 0, run, 0);
	printf("{");
	for (int way = 0; way < WAYS; way++) {
		double mover[ROUNDS], program[ROUNDS];
		long pages = 0, done = 0;

		for (int round = 0; round < ROUNDS; round++) {
			long there = once(way, count > 1 ? arguments[1] : "", &mover[done], &program[done]);

			pages += there;
			done += there >= 512;
		}
		qsort(mover, done, sizeof *mover, ascending);
		qsort(program, done, sizeof *program, ascending);
		if (done)
			printf("%s\"%s\": {\"pages\": %ld, \"mover\": %.3f, \"program\": %.3f}", way ? ", " : "", names[way], pages, mover[done / 2],
			       program[done / 2]);
		else
			printf("%s\"%s\": {\"pages\": 0}", way ? ", " : "", names[way]);
	}
	printf("}\n");
	over = 1;
	pthread_join(thread, 0);
	return 0;
}
