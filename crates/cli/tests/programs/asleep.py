"""A program that fills memory and sleeps.

    python3 asleep.py MIB [lock]

In: how much; `lock` locks all of it (mlockall). On SIGUSR1 it reads all that it has. Out: `ready` once it is filled, then `whole` or `broken`. Must not: touch
its memory while it sleeps.
"""

import ctypes
import os
import signal
import sys
import zlib

size = int(sys.argv[1]) << 20
if "lock" in sys.argv:
    if ctypes.CDLL(None, use_errno=True).mlockall(3):
        sys.exit("mlockall: " + os.strerror(ctypes.get_errno()))
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
pieces = [os.urandom(3000) + bytes(5000) for _ in range(size // 8033)]
checks = [zlib.crc32(piece) for piece in pieces]
print("ready", flush=True)
signal.sigwait([signal.SIGUSR1])
print("whole" if [zlib.crc32(piece) for piece in pieces] == checks else "broken", flush=True)
