/* SPDX-License-Identifier: Apache-2.0
 *
 * The recorder that is linked into a program compiled with -fsanitize=thread. The compiler then calls a function of
 * the thread sanitizer before every access to memory; here those functions write the address down instead.
 *
 * In: the calls; TERRACE_RECORD=FILE switches recording on, TERRACE_RECORD_CACHE=SIZE (such as 32K or 4M) leaves out
 * what a direct-mapped cache of that size with 64-byte lines, one a thread, would have served. Out: FILE, in the
 * layout below, which the importer "hook" reads. Must not: change what the program computes; stop it, whatever goes
 * wrong here; or allocate from its heap.
 *
 * Not seen: accesses inside libraries that were not recompiled, and spills to the stack. memcpy, memmove and memset
 * are seen where the link flags wrap them. After fork only the parent records. What is in a buffer when a program
 * dies without exit() is lost. A signal handler that runs in the middle of a call here can cost or repeat accesses
 * of one buffer, but cannot write outside it.
 *
 * This file itself must be compiled without -fsanitize=thread.
 *
 * Layout, in the byte order of the machine (the importer takes little endian):
 *   file:  char[8] "TRRHOOK1", u32 version, u32 zero, u64 cache bytes, u64 process, u64 nanoseconds at start
 *   chunk: u32 mark, u32 kind, u64 thread, u64 first ns, u64 last ns, u32 payload bytes, u32 lost, u64 served; payload
 *     kind 1: u64 words. Bits 0-56 address, 57-60 log2 of the size, 61 range, 63 write. After a range its length.
 *       Lost are accesses of signal handlers that met a buffer being written out; served those that the cache left out.
 *     kind 2: text, the program's /proc/self/maps when it ended.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define WORDS 16384u
#define LINE_SHIFT 6
#define SIZE_SHIFT 57
#define RANGE (UINT64_C(1) << 61)
#define WRITE (UINT64_C(1) << 63)
#define CHUNK_MARK 0x4b484352u
#define KIND_ACCESSES 1u
#define KIND_MAPS 2u
#define LARGEST_CACHE (UINT64_C(1) << 30)

struct file_head {
    char magic[8];
    uint32_t version, zero;
    uint64_t cache_bytes, process, start_ns;
};

struct chunk_head {
    uint32_t mark, kind;
    uint64_t thread, first_ns, last_ns;
    uint32_t bytes, lost;
    uint64_t served;
};

/* What every access needs of its thread, in the thread's own memory without a pointer between. */
struct fast {
    uint64_t *at;    /* where the next word goes */
    uint64_t *limit; /* reaching it leads to write_out(); both are NULL before the first access */
    uint64_t *cache; /* line << 1 | written, or 0; NULL to record everything */
    uint64_t cache_mask;
    uint64_t served;
};

/* The rest, one a thread. The head lies in front of the words, so that one write() takes both. */
struct recorder {
    struct fast *fast;
    uint32_t lost;
    uint32_t busy; /* set while words are written out, when a signal handler must not begin that again */
    struct recorder *next;
    uint64_t *cache;
    size_t mapped, cache_mapped;
    struct chunk_head head;
    uint64_t words[WORDS];
};

enum { UNSTARTED, STARTING, ON, OFF };

static int state = UNSTARTED;
static int file = -1;
static pid_t process;
static uint64_t cache_lines;
static pthread_mutex_t file_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_key_t thread_end;
static struct recorder *recorders;
static __thread struct fast fast __attribute__((tls_model("initial-exec")));
static __thread struct recorder *mine __attribute__((tls_model("initial-exec")));

/* The C library's own, under the names that the link flags give them: a wrapped copy here would record itself. */
void *__real_memcpy(void *to, const void *from, size_t count);
void *__real_memmove(void *to, const void *from, size_t count);
void *__real_memset(void *to, int value, size_t count);

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void complain(const char *what) {
    static const char prefix[] = "terrace record: ";
    ssize_t ignored = write(2, prefix, sizeof prefix - 1);
    ignored += write(2, what, strlen(what));
    ignored += write(2, "\n", 1);
    (void)ignored;
}

/* Writes everything, or switches recording off. The caller holds file_lock. */
static void put(const void *bytes, size_t count) {
    const char *from = bytes;
    while (count > 0) {
        ssize_t done = write(file, from, count);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0) {
            __atomic_store_n(&state, OFF, __ATOMIC_RELEASE);
            complain("writing the recording failed; recording ends here");
            return;
        }
        from += done;
        count -= (size_t)done;
    }
}

/* The caller holds file_lock. */
static void put_chunk(struct recorder *from) {
    from->head.last_ns = now_ns();
    from->head.bytes = (uint32_t)((char *)from->fast->at - (char *)from->words);
    from->head.lost = from->lost;
    from->head.served = from->fast->served;
    put(&from->head, sizeof from->head + from->head.bytes);
}

static void flush(struct recorder *from) {
    int saved = errno;
    pthread_mutex_lock(&file_lock);
    if (__atomic_load_n(&state, __ATOMIC_ACQUIRE) == ON)
        put_chunk(from);
    pthread_mutex_unlock(&file_lock);
    from->head.first_ns = from->head.last_ns;
    from->lost = 0;
    from->fast->served = 0;
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    from->fast->at = from->words;
    errno = saved;
}

static void end_thread(void *argument) {
    struct recorder *ended = argument;
    if (fast.at > ended->words)
        flush(ended);
    mine = NULL;
    fast = (struct fast){0};
    pthread_mutex_lock(&file_lock);
    for (struct recorder **link = &recorders; *link; link = &(*link)->next) {
        if (*link == ended) {
            *link = ended->next;
            break;
        }
    }
    pthread_mutex_unlock(&file_lock);
    if (ended->cache)
        munmap(ended->cache, ended->cache_mapped);
    munmap(ended, ended->mapped);
}

static void child_after_fork(void) {
    file = -1;
    __atomic_store_n(&state, OFF, __ATOMIC_RELEASE);
    pthread_mutex_init(&file_lock, NULL);
}

static uint64_t size_of_text(const char *text) {
    char *end;
    uint64_t value = strtoull(text, &end, 10);
    if (*end == 'k' || *end == 'K')
        value <<= 10;
    else if (*end == 'm' || *end == 'M')
        value <<= 20;
    else if (*end == 'g' || *end == 'G')
        value <<= 30;
    return value;
}

static void open_file(void) {
    const char *path = getenv("TERRACE_RECORD");
    const char *cache = getenv("TERRACE_RECORD_CACHE");
    struct file_head head = {.magic = "TRRHOOK1", .version = 1};
    if (!path || !*path) {
        __atomic_store_n(&state, OFF, __ATOMIC_RELEASE);
        return;
    }
    if (cache && *cache) {
        uint64_t bytes = size_of_text(cache);
        if (bytes > LARGEST_CACHE)
            bytes = LARGEST_CACHE;
        /* Rounded down to a power of two, because a line finds its place by a mask. */
        for (cache_lines = bytes ? 1 : 0; cache_lines && cache_lines * 2 <= bytes >> LINE_SHIFT; cache_lines *= 2) {
        }
    }
    file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_APPEND, 0644);
    if (file < 0 || pthread_key_create(&thread_end, end_thread) != 0) {
        complain("cannot open the file that TERRACE_RECORD names; nothing is recorded");
        __atomic_store_n(&state, OFF, __ATOMIC_RELEASE);
        return;
    }
    process = getpid();
    pthread_atfork(NULL, NULL, child_after_fork);
    head.cache_bytes = cache_lines << LINE_SHIFT;
    head.process = (uint64_t)process;
    head.start_ns = now_ns();
    pthread_mutex_lock(&file_lock);
    put(&head, sizeof head);
    pthread_mutex_unlock(&file_lock);
    int expected = STARTING;
    __atomic_compare_exchange_n(&state, &expected, ON, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED);
}

/* The first access of a thread, and every access while recording is off. */
static __attribute__((noinline)) struct recorder *begin(void) {
    int now = __atomic_load_n(&state, __ATOMIC_ACQUIRE);
    if (now == UNSTARTED) {
        int expected = UNSTARTED;
        int saved = errno;
        if (__atomic_compare_exchange_n(&state, &expected, STARTING, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
            open_file();
        errno = saved;
        now = __atomic_load_n(&state, __ATOMIC_ACQUIRE);
    }
    if (now != ON)
        return NULL;
    int saved = errno;
    struct recorder *new = mmap(NULL, sizeof *new, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (new == MAP_FAILED) {
        errno = saved;
        return NULL;
    }
    new->mapped = sizeof *new;
    new->fast = &fast;
    if (cache_lines > 0) {
        new->cache_mapped = cache_lines * sizeof *new->cache;
        new->cache = mmap(NULL, new->cache_mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (new->cache == MAP_FAILED) {
            munmap(new, sizeof *new);
            errno = saved;
            return NULL;
        }
    }
    new->head.mark = CHUNK_MARK;
    new->head.kind = KIND_ACCESSES;
    new->head.thread = (uint64_t)syscall(SYS_gettid);
    new->head.first_ns = now_ns();
    pthread_mutex_lock(&file_lock);
    new->next = recorders;
    recorders = new;
    pthread_mutex_unlock(&file_lock);
    mine = new;
    fast = (struct fast){.at = new->words,
                         .limit = new->words + WORDS,
                         .cache = new->cache,
                         .cache_mask = cache_lines ? cache_lines - 1 : 0};
    pthread_setspecific(thread_end, new);
    errno = saved;
    return new;
}

/* Whether the cache of the thread would have served the access. A line that was read and is written now is kept
 * once more, because the writing of a page must be seen. */
static inline __attribute__((always_inline)) int served(uint64_t address, uint64_t write) {
    uint64_t line = address >> LINE_SHIFT;
    uint64_t *slot = &fast.cache[line & fast.cache_mask];
    uint64_t entry = line << 1 | (write >> 63);
    if (*slot >> 1 == line && *slot >= entry)
        return 1;
    *slot = entry;
    return 0;
}

/* Makes room for `count` words, at the first access of a thread too; 0 if nothing can be recorded now. */
static int make_room(size_t count) {
    if (__atomic_load_n(&state, __ATOMIC_RELAXED) == OFF)
        return 0;
    if (!mine && !begin())
        return 0;
    if (mine->busy) {
        mine->lost++;
        return 0;
    }
    if (fast.at + count > fast.limit) {
        mine->busy = 1;
        flush(mine);
        mine->busy = 0;
    }
    return 1;
}

static inline __attribute__((always_inline)) void record(const volatile void *where, unsigned size_log2,
                                                         uint64_t write);

static __attribute__((noinline)) void record_slowly(const volatile void *where, unsigned size_log2, uint64_t write) {
    if (make_room(1))
        record(where, size_log2, write);
}

static inline __attribute__((always_inline)) void record(const volatile void *where, unsigned size_log2,
                                                         uint64_t write) {
    /* Addresses of user programs fit 57 bits, so the marks above need no mask. */
    uint64_t address = (uint64_t)(uintptr_t)where;
    uint64_t *at = fast.at;
    if (__builtin_expect(at >= fast.limit, 0)) {
        /* Called last, so that the common path keeps no stack frame for it. */
        if (__atomic_load_n(&state, __ATOMIC_RELAXED) != OFF)
            record_slowly(where, size_log2, write);
        return;
    }
    if (fast.cache && served(address, write)) {
        fast.served++;
        return;
    }
    fast.at = at + 1;
    *at = address | (uint64_t)size_log2 << SIZE_SHIFT | write;
}

static void record_range(const volatile void *where, size_t count, uint64_t write) {
    if (count == 0 || !make_room(2))
        return;
    if (fast.cache) {
        uintptr_t first = (uintptr_t)where >> LINE_SHIFT, last = ((uintptr_t)where + count - 1) >> LINE_SHIFT;
        for (uintptr_t line = first; line <= last; line++)
            record((const volatile void *)(line << LINE_SHIFT), LINE_SHIFT, write);
        return;
    }
    uint64_t *at = fast.at;
    if (at + 2 > fast.limit) { /* a signal handler took the room in between */
        mine->lost++;
        return;
    }
    fast.at = at + 2;
    at[0] = (uint64_t)(uintptr_t)where | RANGE | write;
    at[1] = count;
}

static void put_maps(void) {
    static char text[1 << 16];
    struct chunk_head head = {.mark = CHUNK_MARK, .kind = KIND_MAPS};
    int maps = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    size_t have = 0;
    if (maps < 0)
        return;
    for (;;) {
        ssize_t got = read(maps, text + have, sizeof text - have);
        if (got < 0 && errno == EINTR)
            continue;
        have += got > 0 ? (size_t)got : 0;
        /* A chunk ends at a line's end, so that each can be read for itself. */
        size_t whole = have;
        while (got > 0 && whole > 0 && text[whole - 1] != '\n')
            whole--;
        if (whole > 0 && (got <= 0 || have > sizeof text / 2)) {
            head.first_ns = head.last_ns = now_ns();
            head.bytes = (uint32_t)whole;
            put(&head, sizeof head);
            put(text, whole);
            __real_memmove(text, text + whole, have - whole);
            have -= whole;
        }
        if (got <= 0)
            break;
    }
    close(maps);
}

/* Low priority numbers run last: what other destructors access is still recorded. */
static __attribute__((destructor(101))) void end_recording(void) {
    if (__atomic_load_n(&state, __ATOMIC_ACQUIRE) != ON || getpid() != process)
        return;
    pthread_mutex_lock(&file_lock);
    for (struct recorder *each = recorders; each; each = each->next) {
        if (each->fast->at > each->words)
            put_chunk(each);
    }
    put_maps();
    __atomic_store_n(&state, OFF, __ATOMIC_RELEASE);
    close(file);
    pthread_mutex_unlock(&file_lock);
}

/* What the compilers call. Every name below is theirs. */

void __tsan_init(void) {
    if (__atomic_load_n(&state, __ATOMIC_ACQUIRE) == UNSTARTED)
        begin();
}
void __tsan_func_entry(void *caller) { (void)caller; }
void __tsan_func_exit(void) {}

#define ACCESSES(bytes, log2)                                                            \
    void __tsan_read##bytes(void *at) { record(at, log2, 0); }                           \
    void __tsan_write##bytes(void *at) { record(at, log2, WRITE); }                      \
    void __tsan_unaligned_read##bytes(void *at) { record(at, log2, 0); }                 \
    void __tsan_unaligned_write##bytes(void *at) { record(at, log2, WRITE); }            \
    void __tsan_volatile_read##bytes(void *at) { record(at, log2, 0); }                  \
    void __tsan_volatile_write##bytes(void *at) { record(at, log2, WRITE); }             \
    void __tsan_unaligned_volatile_read##bytes(void *at) { record(at, log2, 0); }        \
    void __tsan_unaligned_volatile_write##bytes(void *at) { record(at, log2, WRITE); }   \
    void __tsan_read_write##bytes(void *at) { record(at, log2, 0), record(at, log2, WRITE); } \
    void __tsan_unaligned_read_write##bytes(void *at) { record(at, log2, 0), record(at, log2, WRITE); }
ACCESSES(1, 0)
ACCESSES(2, 1)
ACCESSES(4, 2)
ACCESSES(8, 3)
ACCESSES(16, 4)

void __tsan_read_range(void *at, size_t count) { record_range(at, count, 0); }
void __tsan_write_range(void *at, size_t count) { record_range(at, count, WRITE); }
void __tsan_vptr_read(void **at) { record(at, 3, 0); }
void __tsan_vptr_update(void **at, void *new) { (void)new, record(at, 3, WRITE); }

/* Copies. The link flags turn the program's own calls into the __wrap_ names; clang from 16 on calls the others. */
void *__wrap_memcpy(void *to, const void *from, size_t count) {
    record_range(from, count, 0);
    record_range(to, count, WRITE);
    return __real_memcpy(to, from, count);
}
void *__wrap_memmove(void *to, const void *from, size_t count) {
    record_range(from, count, 0);
    record_range(to, count, WRITE);
    return __real_memmove(to, from, count);
}
void *__wrap_memset(void *to, int value, size_t count) {
    record_range(to, count, WRITE);
    return __real_memset(to, value, count);
}
void *__tsan_memcpy(void *to, const void *from, size_t count) { return __wrap_memcpy(to, from, count); }
void *__tsan_memmove(void *to, const void *from, size_t count) { return __wrap_memmove(to, from, count); }
void *__tsan_memset(void *to, int value, size_t count) { return __wrap_memset(to, value, count); }

/* Atomics are not announced but handed over: they must be done here. Always sequentially consistent, which is at
 * least what was asked for. A load counts as a read; all others count as one write, since they take the line for
 * writing. */
#define ATOMIC_RMW(bits, type, log2, name, builtin)                                            \
    type __tsan_atomic##bits##_##name(volatile type *at, type value, int order) {              \
        (void)order;                                                                           \
        record(at, log2, WRITE);                                                               \
        return builtin(at, value, __ATOMIC_SEQ_CST);                                           \
    }
#define ATOMICS(bits, type, log2)                                                              \
    type __tsan_atomic##bits##_load(const volatile type *at, int order) {                      \
        (void)order;                                                                           \
        record(at, log2, 0);                                                                   \
        return __atomic_load_n(at, __ATOMIC_SEQ_CST);                                          \
    }                                                                                          \
    void __tsan_atomic##bits##_store(volatile type *at, type value, int order) {               \
        (void)order;                                                                           \
        record(at, log2, WRITE);                                                               \
        __atomic_store_n(at, value, __ATOMIC_SEQ_CST);                                         \
    }                                                                                          \
    ATOMIC_RMW(bits, type, log2, exchange, __atomic_exchange_n)                                \
    ATOMIC_RMW(bits, type, log2, fetch_add, __atomic_fetch_add)                                \
    ATOMIC_RMW(bits, type, log2, fetch_sub, __atomic_fetch_sub)                                \
    ATOMIC_RMW(bits, type, log2, fetch_and, __atomic_fetch_and)                                \
    ATOMIC_RMW(bits, type, log2, fetch_or, __atomic_fetch_or)                                  \
    ATOMIC_RMW(bits, type, log2, fetch_xor, __atomic_fetch_xor)                                \
    ATOMIC_RMW(bits, type, log2, fetch_nand, __atomic_fetch_nand)                              \
    type __tsan_atomic##bits##_compare_exchange_val(volatile type *at, type expected, type value, int order, \
                                                    int failed) {                              \
        (void)order, (void)failed;                                                             \
        record(at, log2, WRITE);                                                               \
        __atomic_compare_exchange_n(at, &expected, value, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
        return expected;                                                                       \
    }                                                                                          \
    int __tsan_atomic##bits##_compare_exchange_strong(volatile type *at, type *expected, type value, int order, \
                                                      int failed) {                            \
        (void)order, (void)failed;                                                             \
        record(at, log2, WRITE);                                                               \
        return __atomic_compare_exchange_n(at, expected, value, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
    }                                                                                          \
    int __tsan_atomic##bits##_compare_exchange_weak(volatile type *at, type *expected, type value, int order, \
                                                    int failed) {                              \
        return __tsan_atomic##bits##_compare_exchange_strong(at, expected, value, order, failed); \
    }
ATOMICS(8, uint8_t, 0)
ATOMICS(16, uint16_t, 1)
ATOMICS(32, uint32_t, 2)
ATOMICS(64, uint64_t, 3)

#if defined(__x86_64__)
/* 16 bytes at once, by the one instruction that does so: everything is a loop around compare-and-exchange. */
typedef unsigned __int128 wide;
static wide wide_swap(volatile wide *at, wide expected, wide value) {
    uint64_t low = (uint64_t)expected, high = (uint64_t)(expected >> 64);
    /* Written out, because the compilers offer it as a builtin only with flags that differ between them. */
    __asm__ volatile("lock cmpxchg16b %2"
                     : "+a"(low), "+d"(high), "+m"(*at)
                     : "b"((uint64_t)value), "c"((uint64_t)(value >> 64))
                     : "cc", "memory");
    return (wide)high << 64 | low;
}
#define WIDE_RMW(name, result)                                                                 \
    wide __tsan_atomic128_##name(volatile wide *at, wide value, int order) {              \
        (void)order;                                                                           \
        record(at, 4, WRITE);                                                                  \
        for (wide old = 0;;) {                                                                 \
            wide found = wide_swap(at, old, result);                                           \
            if (found == old)                                                                  \
                return old;                                                                    \
            old = found;                                                                       \
        }                                                                                      \
    }
WIDE_RMW(exchange, value)
WIDE_RMW(fetch_add, old + value)
WIDE_RMW(fetch_sub, old - value)
WIDE_RMW(fetch_and, old &value)
WIDE_RMW(fetch_or, old | value)
WIDE_RMW(fetch_xor, old ^ value)
WIDE_RMW(fetch_nand, ~(old & value))
wide __tsan_atomic128_load(const volatile wide *at, int order) {
    (void)order;
    record(at, 4, 0);
    return wide_swap((volatile wide *)at, 0, 0);
}
void __tsan_atomic128_store(volatile wide *at, wide value, int order) { __tsan_atomic128_exchange(at, value, order); }
wide __tsan_atomic128_compare_exchange_val(volatile wide *at, wide expected, wide value, int order, int failed) {
    (void)order, (void)failed;
    record(at, 4, WRITE);
    return wide_swap(at, expected, value);
}
int __tsan_atomic128_compare_exchange_strong(volatile wide *at, wide *expected, wide value, int order, int failed) {
    wide found = __tsan_atomic128_compare_exchange_val(at, *expected, value, order, failed);
    int same = found == *expected;
    *expected = found;
    return same;
}
int __tsan_atomic128_compare_exchange_weak(volatile wide *at, wide *expected, wide value, int order, int failed) {
    return __tsan_atomic128_compare_exchange_strong(at, expected, value, order, failed);
}
#endif

void __tsan_atomic_thread_fence(int order) { (void)order, __atomic_thread_fence(__ATOMIC_SEQ_CST); }
void __tsan_atomic_signal_fence(int order) { (void)order, __atomic_signal_fence(__ATOMIC_SEQ_CST); }

/* Announcements that programs make to the sanitizer by hand; nothing to record in them. */
void __tsan_acquire(void *at) { (void)at; }
void __tsan_release(void *at) { (void)at; }
void __tsan_ignore_thread_begin(void) {}
void __tsan_ignore_thread_end(void) {}
