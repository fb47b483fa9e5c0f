"""A program that sleeps until it is asked, for the live tests of idle programs.

In: MIB; then a line at a time on stdin. Out: a line on stdout for each. Its memory is filled with data of which half compresses. `touch` reads a byte of
each page and says how many milliseconds that took; `part N` does so for the first Nth; `check` says whether all data are as they were. It ends with
its stdin.
"""

import hashlib
import mmap
import os
import sys
import time

PAGE = 4096
size = int(sys.argv[1]) << 20
memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for at in range(0, size, 64 * PAGE):
    memory[at:at + 64 * PAGE] = b"".join(os.urandom(PAGE // 2) + bytes(PAGE // 2) for _ in range(64))


def digest():
    return hashlib.blake2b(memory, digest_size=16).hexdigest()


before = digest()
print("ready", flush=True)
for line in sys.stdin:
    words = line.split()
    if words[0] == "check":
        print("whole" if digest() == before else "broken", flush=True)
        continue
    end = size // int(words[1]) if words[0] == "part" else size
    began = time.perf_counter()
    sum(memory[:end:PAGE])
    print("%.3f" % ((time.perf_counter() - began) * 1e3), flush=True)
