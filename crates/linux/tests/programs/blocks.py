"""A program with whole 2 MiB blocks of one kind of memory, for the live tests of page-outs by block.

In: KIND BLOCKS, then lines on stdin. Out: the address of the first block and "ready"; for each "check" whether every page holds what was written to
it, in this process and in the one it shares its memory with. It touches the blocks only when it is asked to check them.
"""

import ctypes
import fcntl
import os
import random
import struct
import sys

PAGE, BLOCK = 4096, 2 << 20
PAGES_OF_BLOCK = BLOCK // PAGE
PROT_NONE, PROT_READ, PROT_WRITE = 0, 1, 2
MAP_SHARED, MAP_PRIVATE, MAP_FIXED, MAP_ANONYMOUS = 1, 2, 0x10, 0x20
# madvise(2), prctl(2) and ioctl_userfaultfd(2) on 64 bits.
MADV_DONTNEED, MADV_MERGEABLE, MADV_HUGEPAGE, MADV_NOHUGEPAGE = 4, 12, 14, 15
PR_SET_THP_DISABLE = 41
SYS_USERFAULTFD = {"x86_64": 323, "aarch64": 282}.get(os.uname().machine)
UFFDIO_API, UFFDIO_REGISTER, UFFD_API, UFFDIO_REGISTER_MODE_MISSING = 0xC018AA3F, 0xC020AA00, 0xAA, 1
# The page of the second block that is guarded, empty or unmapped.
ODD = PAGES_OF_BLOCK + 100
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = ctypes.c_void_p
LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
for name in ("mprotect", "madvise"):
    getattr(LIBC, name).argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
for name in ("munmap", "mlock"):
    getattr(LIBC, name).argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def do(call, *arguments):
    """A call of the C library that must not fail."""
    result = getattr(LIBC, call)(*arguments)
    if result in (-1, ctypes.c_void_p(-1).value):
        sys.exit(f"{call}: {os.strerror(ctypes.get_errno())}")
    return result


def memory(kind, size):
    """The address of the blocks, at a multiple of their size."""
    around = do("mmap", None, size + BLOCK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
    first = -(-around // BLOCK) * BLOCK
    if kind == "memfd":
        file = os.memfd_create("terrace-live")
        os.ftruncate(file, size)
        do("mmap", first, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0)
    return first


def page_at(first, page):
    """The bytes of a page as they are."""
    return (ctypes.c_char * PAGE).from_address(first + page * PAGE)


def text(kind, page, generation=0):
    """What a page holds: a quarter of it is random. For KSM each block is like the others."""
    if kind == "ksm":
        page %= PAGES_OF_BLOCK
    number = page + (generation << 32)
    return random.Random(number).randbytes(PAGE // 4) + struct.pack("=Q", number) * (PAGE * 3 // 4 // 8)


def watched(first, size):
    """A userfaultfd that receives the faults of pages that are missing there."""
    descriptor = do("syscall", SYS_USERFAULTFD, os.O_CLOEXEC)
    fcntl.ioctl(descriptor, UFFDIO_API, struct.pack("=QQQ", UFFD_API, 0, 0))
    fcntl.ioctl(descriptor, UFFDIO_REGISTER, struct.pack("=QQQQ", first, size, UFFDIO_REGISTER_MODE_MISSING, 0))
    return descriptor


def wrong(kind, first, pages, expected):
    """The pages that differ, as a line."""
    found = [page for page in range(pages) if expected[page] is not None and page_at(first, page).raw != expected[page]]
    return f"{len(found)} pages differ: {found[:5]}" if found else "intact"


def main():
    kind, blocks = sys.argv[1], int(sys.argv[2])
    size, pages = blocks * BLOCK, blocks * PAGES_OF_BLOCK
    if kind == "disabled":
        do("prctl", PR_SET_THP_DISABLE, 1, 0, 0, 0)
    first = memory(kind, size)
    advice = {"advised": MADV_HUGEPAGE, "nohugepage": MADV_NOHUGEPAGE, "ksm": MADV_MERGEABLE}.get(kind)
    if advice is not None:
        do("madvise", first, size, advice)
    expected = [text(kind, page) for page in range(pages)]
    for page in range(pages):
        ctypes.memmove(first + page * PAGE, expected[page], PAGE)
    odd, sharer, keeps = first + ODD * PAGE, None, None
    if kind == "readonly":
        do("mprotect", first, size, PROT_READ)
    elif kind == "guarded":
        do("mprotect", odd, PAGE, PROT_NONE)
    elif kind == "halved":
        # Two areas meet in the middle of the second block.
        do("mprotect", first, BLOCK + BLOCK // 2, PROT_READ)
    elif kind == "unmapped":
        do("munmap", odd, PAGE)
        expected[ODD] = None
    elif kind == "empty":
        do("madvise", odd, PAGE, MADV_DONTNEED)
        expected[ODD] = bytes(PAGE)
    elif kind == "locked":
        do("mlock", first, size)
    elif kind == "userfaultfd":
        keeps = watched(first, size)
    elif kind == "forked":
        # The child shares all of it; what this process writes afterwards, the second half, is its own.
        ask, answer = os.pipe(), os.pipe()
        if os.fork() == 0:
            os.close(ask[1])
            while os.read(ask[0], 1):
                os.write(answer[1], wrong(kind, first, pages, expected).encode())
            os._exit(0)
        os.close(ask[0])
        sharer = (ask[1], answer[0])
        for page in range(pages // 2, pages):
            expected[page] = text(kind, page, 1)
            ctypes.memmove(first + page * PAGE, expected[page], PAGE)
    print(first, "ready", flush=True)
    for line in sys.stdin:
        if line.strip() != "check":
            sys.exit(f"asked {line!r}")
        if kind == "guarded":
            do("mprotect", odd, PAGE, PROT_READ | PROT_WRITE)
        found = wrong(kind, first, pages, expected)
        if sharer is not None and found == "intact":
            os.write(sharer[0], b"?")
            found = os.read(sharer[1], 100).decode()
        print(found, flush=True)
    del keeps


main()
