"""A program that fills its memory and leaves it alone, for the live tests of what was saved.

In: MIB WHAT FILE. Out: on stdout how many pages have a swap entry as it ends, and how many of those are in memory still. It ends when FILE is there.
WHAT is "half" (each page compresses to about half) or "zeros" (seven blocks of eight are zeros). FILE.pid says that the memory is filled.
"""

import ctypes
import mmap
import os
import struct
import sys
import time

mib, what, ended = int(sys.argv[1]), sys.argv[2], sys.argv[3]
size = mib << 20
memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for page in range(size // 4096):
    zeros = what == "zeros" and page // 512 % 8
    memory[page * 4096:page * 4096 + 4096] = bytes(4096) if zeros else os.urandom(2048) + bytes(2048)
with open(ended + ".pid", "w") as file:
    file.write(str(os.getpid()))
while not os.path.exists(ended):
    time.sleep(0.05)
start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
there = (ctypes.c_ubyte * (size // 4096))()
ctypes.CDLL(None).mincore(ctypes.c_void_p(start), ctypes.c_size_t(size), there)
pagemap = open("/proc/self/pagemap", "rb", buffering=0)
pagemap.seek(start // 4096 * 8)
entries = [entry >> 62 & 1 for entry in struct.unpack("%dQ" % (size // 4096), pagemap.read(size // 512))]
print("entries", sum(entries), "in memory", sum(e & t for e, t in zip(entries, there)), flush=True)
os._exit(0)
