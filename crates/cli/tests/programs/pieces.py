"""A program whose memory lies in huge pages, a few pages of each in use, for the live tests of splits.

In: KIND MIB SECONDS. Out: one line for each look at its huge pages; whether its data were right, by the exit code. KIND is plain, fork (a child
shares the memory from the middle on, and checks it as well), locked, shared (a child has had all of it from the start) or watched (userfaultfd). The memory is
filled, asks for huge pages, and one page in sixteen is read all the time.
"""

import ctypes
import fcntl
import os
import platform
import struct
import sys
import time

PAGE, BLOCK = 4096, 2 << 20
MADV_HUGEPAGE = 14
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = ctypes.c_void_p
LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]


def memory(size):
    """Private memory that begins with a block, and its address."""
    raw = LIBC.mmap(None, size + BLOCK, 3, 0x22, -1, 0)
    address = (raw + BLOCK - 1) & ~(BLOCK - 1)
    LIBC.madvise(ctypes.c_void_p(address), ctypes.c_size_t(size), MADV_HUGEPAGE)
    return address, (ctypes.c_ubyte * size).from_address(address)


def text(page):
    """What a page holds: half of it is not repeated anywhere."""
    head = (b"page %8d " % page) * 4
    return (head + bytes((page * 7 + at * 13) % 251 for at in range(64)) * 32)[:PAGE].ljust(PAGE, b".")


def huge(address, size):
    """KiB of huge pages there."""
    inside, found = False, 0
    for line in open("/proc/self/smaps"):
        word = line.split(" ", 1)[0]
        if "-" in word and not word.endswith(":"):
            start, end = (int(part, 16) for part in word.split("-"))
            inside = start < address + size and address < end
        elif inside and word == "AnonHugePages:":
            found += int(line.split()[1])
    return found


def watch(address, size):
    """Registers the memory with userfaultfd for missing pages, of which there are none."""
    number = 323 if platform.machine() == "x86_64" else 282
    descriptor = LIBC.syscall(number, 0o2000000 | 1)
    if descriptor < 0:
        sys.exit("userfaultfd is refused")
    fcntl.ioctl(descriptor, 0xC018AA3F, bytearray(struct.pack("QQQ", 0xAA, 0, 0)))
    fcntl.ioctl(descriptor, 0xC020AA00, bytearray(struct.pack("QQQQ", address, size, 1, 0)))
    return descriptor


def right(data, size):
    """Whether every page holds what it should."""
    return all(bytes(data[at : at + PAGE]) == text(at // PAGE) for at in range(0, size, PAGE))


def use(data, size, until):
    """Reads one page in sixteen until then."""
    while time.monotonic() < until:
        for at in range(0, size, 16 * PAGE):
            _ = data[at + 64]
        time.sleep(0.01)


def main():
    kind, size, seconds = sys.argv[1], int(sys.argv[2]) << 20, float(sys.argv[3])
    address, data = memory(size)
    for at in range(0, size, PAGE):
        ctypes.memmove(address + at, text(at // PAGE), PAGE)
    held = watch(address, size) if kind == "watched" else None
    if kind == "locked" and LIBC.mlock(ctypes.c_void_p(address), ctypes.c_size_t(size)) != 0:
        sys.exit("mlock is refused")
    began = time.monotonic()
    print("huge", huge(address, size), flush=True)
    child = 0
    ends = began + seconds
    if kind == "shared":
        child = os.fork()
    elif kind == "fork":
        use(data, size, began + seconds / 2)
        child = os.fork()
    is_child = kind in ("shared", "fork") and child == 0
    use(data, size, ends)
    if not is_child:
        print("huge", huge(address, size), flush=True)
    good = right(data, size)
    if is_child:
        os._exit(0 if good else 3)
    if child:
        good = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0 and good
    _ = held
    sys.exit(0 if good else 3)


main()
