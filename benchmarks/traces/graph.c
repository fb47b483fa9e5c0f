// A graph of 2^SCALE vertices, and one kernel over it: the programs gap-bfs, gap-pr and gap-sssp of the recipes beside this file.
//
// In: bfs|pr|sssp, SCALE, edges a vertex, rounds, seed. Out: one line with a sum that depends on all results. Must not: use threads or a clock, so
// that two runs make the same accesses.
//
// The edges are those of Graph500's Kronecker generator (A, B, C = 0.57, 0.19, 0.19), vertices renumbered at random, both directions kept.
// BFS goes top down; PageRank pulls with a damping of 0.85; SSSP is Bellman-Ford with a queue, weights 1 to 255.

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint32_t vertex;

static uint64_t state;
static vertex vertices, *targets;
static uint64_t *first;
static uint8_t *weights;

static uint64_t number(void) { // splitmix64
    uint64_t z = state += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

static void *memory(size_t count, size_t size) {
    void *place = calloc(count, size);
    if (!place) {
        fprintf(stderr, "graph: out of memory\n");
        exit(1);
    }
    return place;
}

static void make(int scale, int degree) {
    vertices = (vertex)1 << scale;
    uint64_t edges = (uint64_t)vertices * degree;
    vertex *ends = memory(2 * edges, sizeof *ends), *names = memory(vertices, sizeof *names);
    for (vertex v = 0; v < vertices; v++) {
        vertex other = number() % (v + 1);
        names[v] = names[other];
        names[other] = v;
    }
    first = memory(vertices + 2, sizeof *first);
    for (uint64_t e = 0; e < edges; e++) {
        vertex from = 0, to = 0;
        for (int bit = 0; bit < scale; bit++) {
            unsigned part = number() % 100;
            from = from << 1 | (part >= 76);
            to = to << 1 | ((part >= 57 && part < 76) || part >= 95);
        }
        ends[2 * e] = names[from];
        ends[2 * e + 1] = names[to];
        first[names[from] + 2]++;
        first[names[to] + 2]++;
    }
    for (vertex v = 0; v < vertices; v++)
        first[v + 2] += first[v + 1];
    targets = memory(2 * edges, sizeof *targets);
    weights = memory(2 * edges, 1);
    for (uint64_t e = 0; e < edges; e++) {
        vertex from = ends[2 * e], to = ends[2 * e + 1];
        uint8_t weight = 1 + number() % 255;
        weights[first[from + 1]] = weights[first[to + 1]] = weight;
        targets[first[from + 1]++] = to;
        targets[first[to + 1]++] = from;
    }
    free(ends);
    free(names);
}

static vertex source(void) {
    vertex v;
    do
        v = number() % vertices;
    while (first[v] == first[v + 1]);
    return v;
}

static uint64_t bfs(void) {
    vertex *parent = memory(vertices, sizeof *parent), *queue = memory(vertices, sizeof *queue), begin = source();
    memset(parent, 0xff, vertices * sizeof *parent);
    uint64_t head = 0, tail = 0;
    parent[begin] = begin;
    for (queue[tail++] = begin; head < tail; head++)
        for (uint64_t e = first[queue[head]]; e < first[queue[head] + 1]; e++)
            if (parent[targets[e]] == UINT32_MAX) {
                parent[targets[e]] = queue[head];
                queue[tail++] = targets[e];
            }
    free(parent);
    free(queue);
    return tail;
}

static uint64_t sssp(void) {
    uint32_t *distance = memory(vertices, sizeof *distance);
    vertex *queue = memory(vertices, sizeof *queue);
    uint8_t *waits = memory(vertices, 1);
    uint64_t head = 0, tail = 0, sum = 0;
    memset(distance, 0xff, vertices * sizeof *distance);
    vertex begin = source();
    distance[begin] = 0;
    // A ring: each vertex stands in it at most once.
    for (queue[tail++] = begin; head < tail; head++) {
        vertex v = queue[head & (vertices - 1)];
        waits[v] = 0;
        for (uint64_t e = first[v]; e < first[v + 1]; e++) {
            vertex to = targets[e];
            if (distance[v] + weights[e] >= distance[to])
                continue;
            distance[to] = distance[v] + weights[e];
            if (!waits[to]) {
                waits[to] = 1;
                queue[tail++ & (vertices - 1)] = to;
            }
        }
    }
    for (vertex v = 0; v < vertices; v++)
        sum += distance[v] == UINT32_MAX ? 0 : distance[v];
    free(distance);
    free(queue);
    free(waits);
    return sum;
}

static float *ranks, *shares;

static uint64_t pagerank(void) {
    for (vertex v = 0; v < vertices; v++)
        shares[v] = first[v] == first[v + 1] ? 0 : ranks[v] / (first[v + 1] - first[v]);
    double sum = 0;
    for (vertex v = 0; v < vertices; v++) {
        float got = 0;
        for (uint64_t e = first[v]; e < first[v + 1]; e++)
            got += shares[targets[e]];
        sum += ranks[v] = 0.15f + 0.85f * got;
    }
    return sum;
}

int main(int count, char **words) {
    if (count != 6) {
        fprintf(stderr, "usage: graph bfs|pr|sssp SCALE DEGREE ROUNDS SEED\n");
        return 2;
    }
    state = strtoull(words[5], NULL, 10);
    make(atoi(words[2]), atoi(words[3]));
    ranks = memory(vertices, sizeof *ranks);
    shares = memory(vertices, sizeof *shares);
    for (vertex v = 0; v < vertices; v++)
        ranks[v] = 1;
    uint64_t sum = 0;
    for (int round = 0; round < atoi(words[4]); round++)
        sum += !strcmp(words[1], "bfs") ? bfs() : !strcmp(words[1], "pr") ? pagerank() : sssp();
    printf("%s of %u vertices: %llu\n", words[1], vertices, (unsigned long long)sum);
    return 0;
}
