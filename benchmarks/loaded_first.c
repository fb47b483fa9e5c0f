// Fills MIB of memory steadily over LOAD seconds (half of each page is noise), then reads words of its first 1/PART at random for SERVE
// seconds. A program that loads what it will serve, and serves what it loaded first. Prints one JSON object.
// Usage: loaded_first MIB LOAD SERVE PART
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

static uint64_t state = 88172645463325252ull;
static uint64_t draw(void) {
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

int main(int count, char **words) {
    if (count != 5) return fprintf(stderr, "usage: loaded_first MIB LOAD SERVE PART\n"), 2;
    size_t bytes = (size_t)atol(words[1]) << 20, pages = bytes >> 12, huge = 2 << 20;
    double load = atof(words[2]), serve = atof(words[3]);
    char *mapped = mmap(NULL, bytes + huge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) return perror("loaded_first: mmap"), 1;
    char *memory = (char *)(((uintptr_t)mapped + huge - 1) & ~(uintptr_t)(huge - 1));
    double began = now();
    for (size_t page = 0; page < pages; page++) {
        uint64_t *word = (uint64_t *)(memory + (page << 12));
        for (int i = 0; i < 512; i++) word[i] = i < 256 ? draw() : page;
        while (page % 256 == 255 && now() < began + load * page / pages) nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
    printf("{\"loaded_seconds\": %.1f, ", now() - began);
    size_t words_read = bytes / 8 / strtoul(words[4], NULL, 10);
    volatile uint64_t *word = (uint64_t *)memory;
    uint64_t sum = 0, operations = 0, last_operations = 0;
    double start = now(), last = start, time, slowest = 0;
    do {
        for (int i = 0; i < 1000; i++) sum += word[draw() % words_read];
        operations += 1000;
        time = now();
        if (time - last >= 0.1) {
            double each = (time - last) / (operations - last_operations);
            if (each > slowest) slowest = each;
            last = time, last_operations = operations;
        }
    } while (time < start + serve);
    printf("\"per_second\": %.0f, \"slowest_tenth_ns\": %.1f, \"sum\": %lu}\n", operations / (time - start), slowest * 1e9,
           (unsigned long)(sum & 1));
}
