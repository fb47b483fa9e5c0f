/* Holds memory of which every EVERYth page is read and written all the time, at random; huge pages as the system gives them. Checks all of it at the end.
   Usage: scatter MIB SECONDS EVERY. Out: a line of JSON. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

enum { PAGE = 4096, WORDS = PAGE / 8 };

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

static uint64_t next(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

/* What a word of a page holds: three of four words repeat, as in many programs' data. */
static uint64_t held(size_t page, size_t word) {
    return word % 4 ? (page + word) & 0xff : page * 2654435761u + word;
}

int main(int count, char **given) {
    if (count != 4) {
        fprintf(stderr, "usage: scatter MIB SECONDS EVERY\n");
        return 2;
    }
    size_t pages = strtoul(given[1], NULL, 10) * 256, every = strtoul(given[3], NULL, 10), hot = pages / every;
    double seconds = strtod(given[2], NULL);
    uint64_t *memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        perror("mmap");
        return 1;
    }
    /* Words 0 to 7 of a page are counters. */
    for (size_t page = 0; page < pages; page++)
        for (size_t word = 8; word < WORDS; word++)
            memory[page * WORDS + word] = held(page, word);
    uint64_t state = 58, operations = 0, wrong = 0;
    double began = now(), took;
    while ((took = now() - began) < seconds)
        for (int at = 0; at < 20000; at++, operations++) {
            size_t page = next(&state) % hot * every, word = 8 + next(&state) % (WORDS - 8);
            wrong += memory[page * WORDS + word] != held(page, word);
            memory[page * WORDS]++;
        }
    uint64_t counted = 0;
    for (size_t page = 0; page < pages; page++) {
        counted += memory[page * WORDS];
        for (size_t word = 8; word < WORDS; word++)
            wrong += memory[page * WORDS + word] != held(page, word);
    }
    wrong += counted != operations;
    printf("{\"operations\": %" PRIu64 ", \"seconds\": %.3f, \"wrong\": %" PRIu64 "}\n", operations, took, wrong);
    return wrong ? 3 : 0;
}
