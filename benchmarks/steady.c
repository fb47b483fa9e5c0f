/* Holds memory of which a part is read at random until SIGTERM, and counts into a mapped file, so that others can tell at any moment how much was done.
   Checks what it reads, and all of it at the end.
   Usage: steady COUNTER MIB PART EVERY WRITES NOISE: of the first 1/PART every EVERYth page is read; WRITES of a hundred reads count in their page as well,
   and NOISE of a hundred words do not repeat. Out: a line of JSON. */
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, WORDS = PAGE / 8, FIRST = 8, HUGE = 2 << 20 };

static volatile sig_atomic_t over;
static void end(int number) {
    (void)number;
    over = 1;
}

static uint64_t state = 58;
static uint64_t next(void) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return state >> 33;
}

static size_t noise;
/* Words 0 to 7 of a page are counters. */
static uint64_t held(size_t page, size_t word) {
    if (word >= noise) return page & 0xff;
    uint64_t mixed = (page * WORDS + word + 1) * 0x9e3779b97f4a7c15u;
    mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9u;
    return mixed ^ mixed >> 27;
}

int main(int count, char **given) {
    if (count != 7) return fprintf(stderr, "usage: steady COUNTER MIB PART EVERY WRITES NOISE\n"), 2;
    size_t bytes = strtoul(given[2], NULL, 10) << 20, pages = bytes / PAGE, every = strtoul(given[4], NULL, 10);
    size_t hot = pages / strtoul(given[3], NULL, 10) / every, writes = strtoul(given[5], NULL, 10);
    noise = WORDS * strtoul(given[6], NULL, 10) / 100;
    int file = open(given[1], O_RDWR | O_CREAT, 0644);
    if (file < 0 || ftruncate(file, PAGE)) return perror(given[1]), 1;
    volatile uint64_t *counter = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    char *mapped = mmap(NULL, bytes + HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (counter == MAP_FAILED || mapped == MAP_FAILED) return perror("mmap"), 1;
    uint64_t *memory = (uint64_t *)(((uintptr_t)mapped + HUGE - 1) & ~(uintptr_t)(HUGE - 1));
    signal(SIGTERM, end);
    for (size_t page = 0; page < pages && !over; page++)
        for (size_t word = FIRST; word < WORDS; word++) memory[page * WORDS + word] = held(page, word);
    uint64_t operations = 0, written = 0, wrong = 0;
    while (!over) {
        for (int at = 0; at < 100; at++, operations++) {
            size_t page = next() % hot * every, word = FIRST + next() % (WORDS - FIRST);
            wrong += memory[page * WORDS + word] != held(page, word);
            if (next() % 100 < writes) memory[page * WORDS]++, written++;
        }
        *counter = operations;
    }
    uint64_t counted = 0;
    if (operations)
        for (size_t page = 0; page < pages; page++) {
            counted += memory[page * WORDS];
            for (size_t word = FIRST; word < WORDS; word++) wrong += memory[page * WORDS + word] != held(page, word);
        }
    wrong += counted != written;
    printf("{\"operations\": %" PRIu64 ", \"wrong\": %" PRIu64 "}\n", operations, wrong);
    return wrong ? 3 : 0;
}
