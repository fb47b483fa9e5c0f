"""A program that holds memory and uses a part of it again and again, for the live test of the survey.

In: NAME MIB HOT WHAT FILE. Out: nothing; it ends when FILE is there, with exit code 1 if its memory is not what it wrote. NAME is what ps(1) shows. HOT is the
share of its pages that it reads twice a second, from the start of its memory. WHAT is "text" (compresses well), "half" (each page to about half), "zeros" or
"noise" (not at all). FILE.NAME says that the memory is filled.
"""

import ctypes
import mmap
import os
import sys
import time

name, mib, hot, what, ended = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4], sys.argv[5]
ctypes.CDLL(None).prctl(15, name.encode(), 0, 0, 0)
size = mib << 20
memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def page(number):
    """What a page holds, but for its number at the front."""
    if what == "text":
        return b"GET /item/%d/%d HTTP/1.1 200 Mozilla\n" % (number, number * 7919 % 1000) * 200
    if what == "half":
        return os.urandom(2048) + bytes(2048)
    if what == "noise":
        return os.urandom(4096)
    return bytes(4096)


for number in range(size // 4096):
    content = page(number)[:4096]
    if what != "zeros":
        content = number.to_bytes(8, "little") + content[8:]
    memory[number * 4096:number * 4096 + 4096] = content
with open(f"{ended}.{name}", "w") as file:
    file.write(str(os.getpid()))
used = int(size * hot) // 4096
while not os.path.exists(ended):
    for number in range(used):
        memory[number * 4096 + 64]
    time.sleep(0.5)
wanted = lambda number: 0 if what == "zeros" else number
right = all(int.from_bytes(memory[n * 4096:n * 4096 + 8], "little") == wanted(n) for n in range(size // 4096))
os._exit(0 if right else 1)
