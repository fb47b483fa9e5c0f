"""A program with one kind of memory, for the live tests of shared memory and of what Terrace did not move.

In: KIND MIB SECONDS [again]. Out: /proc/swaps as it ends, on stdout; whether its data were right, by the exit code. It fills the memory with
text, uses the first eighth, and leaves the rest alone until nothing has gone to swap for five seconds, at most SECONDS. With `again` it then reads all of it
once and waits once more. At the end it checks a page of each MiB. A `vector` grows twice by a mremap to another address once it has settled, as
realloc does, and new memory takes its place; then a forked child keeps it in swap while the program is looked at.
"""

import ctypes
import mmap
import os
import sys
import time

PAGE = 4096
MADV_PAGEOUT = 21
LIBC = ctypes.CDLL(None, use_errno=True)
# Arrays whose memory is elsewhere: let go, they would unmap what has their place.
MOVED = []


def buffer(kind, size):
    """Memory of this kind, as an array of bytes."""
    if kind == "sysv":
        segment = LIBC.shmget(0, ctypes.c_size_t(size), 0o1600)
        LIBC.shmat.restype = ctypes.c_void_p
        address = LIBC.shmat(segment, None, 0)
        LIBC.shmctl(segment, 0, None)
        return (ctypes.c_ubyte * size).from_address(address)
    if kind == "memfd":
        file = os.memfd_create("terrace-live")
    elif kind == "tmpfs":
        file = os.open("/dev/shm", os.O_RDWR | os.O_TMPFILE, 0o600)
    else:
        shared = mmap.MAP_PRIVATE if kind in ("pageout", "noise", "vector") else mmap.MAP_SHARED
        memory = mmap.mmap(-1, size, flags=shared | mmap.MAP_ANONYMOUS)
        return (ctypes.c_ubyte * size).from_buffer(memory)
    os.ftruncate(file, size)
    return (ctypes.c_ubyte * size).from_buffer(mmap.mmap(file, size))


def text(page):
    """What a page holds: half of it is not repeated anywhere."""
    head = (b"page %8d " % page) * 4
    return (head + bytes((page * 7 + at * 13) % 251 for at in range(64)) * 32)[:PAGE].ljust(PAGE, b".")


def use(memory, until, size):
    """Reads the first eighth until then."""
    while time.monotonic() < until:
        for at in range(0, size // 8, PAGE):
            _ = memory[at]
        time.sleep(0.01)


def grown(memory, size):
    """The memory at another address and a little longer, and fresh memory where it was."""
    more = size + (4 << 20)
    LIBC.mmap.restype = LIBC.mremap.restype = ctypes.c_void_p
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    where = [ctypes.c_void_p(0), ctypes.c_size_t(more), 0, private, -1, ctypes.c_long(0)]
    to = LIBC.mmap(*where)
    here = ctypes.addressof(memory)
    # MREMAP_MAYMOVE and MREMAP_FIXED
    if LIBC.mremap(ctypes.c_void_p(here), ctypes.c_size_t(size), ctypes.c_size_t(more), 3, ctypes.c_void_p(to)) != to:
        sys.exit("mremap failed")
    fixed = [ctypes.c_void_p(here), ctypes.c_size_t(size // 8), 3, private | 0x10, -1, ctypes.c_long(0)]
    if LIBC.mmap(*fixed) != here:
        sys.exit("mmap failed")
    ctypes.memset(here, 1, size // 8)
    MOVED.append(memory)
    return (ctypes.c_ubyte * size).from_address(to)


def in_swap():
    """What all swap areas hold, in KiB."""
    with open("/proc/swaps") as swaps:
        return sum(int(line.split()[3]) for line in swaps.readlines()[1:])


def settle(memory, end, size, least):
    """Uses the first eighth until swap holds this many KiB and stays as it is for five seconds; until `end` at most. (A probe of page-outs
    waits for up to four before it goes on.)"""
    before, since = in_swap(), time.monotonic()
    while time.monotonic() < end:
        use(memory, time.monotonic() + 0.3, size)
        now = in_swap()
        if abs(now - before) > 64:
            before, since = now, time.monotonic()
        elif now >= least and time.monotonic() > since + 5:
            return


def main():
    kind, mib, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    size = mib << 20
    end = time.monotonic() + seconds
    # Before it moves anything of the program, Terrace pages out a little of its own.
    least = size // 1024 // 4
    memory = buffer(kind, size)
    address = ctypes.addressof(memory)
    if kind == "heir":
        # The child fills it and ends when it has settled; what left meanwhile is this process's from then on.
        child = os.fork()
        if child == 0:
            for page in range(size // PAGE):
                ctypes.memmove(address + page * PAGE, text(page), PAGE)
            settle(memory, end, size, least)
            os._exit(0)
        os.waitpid(child, 0)
    elif kind == "noise":
        # A quarter does not compress.
        ctypes.memmove(address + size * 3 // 4, os.urandom(size // 4), size // 4)
        for page in range(size * 3 // 4 // PAGE):
            ctypes.memmove(address + page * PAGE, text(page), PAGE)
    else:
        for page in range(size // PAGE):
            ctypes.memmove(address + page * PAGE, text(page), PAGE)
    if kind == "pageout":
        if LIBC.madvise(ctypes.c_void_p(address + size // 8), ctypes.c_size_t(size // 8 * 7), MADV_PAGEOUT) != 0:
            sys.exit("madvise failed")
        print("out", flush=True)
    if kind == "pageout":
        use(memory, end, size)
    else:
        settle(memory, end, size, least)
    if kind == "vector":
        for _ in range(2):
            memory = grown(memory, size)
            use(memory, time.monotonic() + 4, size)
        child = os.fork()
        if child == 0:
            time.sleep(6)
            os._exit(0)
        use(memory, time.monotonic() + 4, size)
    if "again" in sys.argv:
        for at in range(0, size, PAGE):
            _ = memory[at]
        settle(memory, end, size, 0)
    print(open("/proc/swaps").read(), flush=True)
    # Terrace looks about once a second; what is read now is no longer what it told of.
    if kind == "noise":
        return
    wrong = [page for page in range(0, size // PAGE, 256) if bytes(memory[page * PAGE:page * PAGE + 64]) != text(page)[:64]]
    if kind == "vector":
        os.waitpid(child, 0)
    if wrong:
        sys.exit(f"pages {wrong[:5]} are wrong")


main()
