/* Writes every second page of 32, then reads them back; without a libc. */
static char room[32 * 4096];
void _start(void) {
    volatile char *at = room;
    long sum = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int page = 0; page < 32; page += 2) {
            if (pass == 0) at[page * 4096 + page * 64] = page;
            else { sum += at[page * 4096 + page * 64]; at[page * 4096]++; }
        }
    __asm__ volatile("syscall" :: "a"(60), "D"(sum & 1));
    __builtin_unreachable();
}
