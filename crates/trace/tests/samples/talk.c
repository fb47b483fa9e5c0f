// Touches 8 pages, then another line of each, and writes to standard output in between.
static char room[16 * 4096] __attribute__((aligned(4096)));

static void say(const char *text, long length) {
    long done;
    __asm__ volatile("syscall" : "=a"(done) : "0"(1L), "D"(1L), "S"(text), "d"(length) : "rcx", "r11", "memory");
}

void _start(void) {
    for (long page = 0; page < 8; page++) room[page * 4096] = 1;
    say("Loading 8 pages\n", 16);
    for (long page = 0; page < 8; page++) room[page * 4096 + 64] += 1;
    say("S is for saved, 8 of 8\n", 23);
    __asm__ volatile("syscall" : : "a"(60L), "D"(0L));
}
