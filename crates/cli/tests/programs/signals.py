"""A program that writes down which signals it gets, for the live tests of signals.

In: FILE [group | session | deaf]. Out: in FILE a line `ready PID PARENT GROUP`, then a line for each signal. It ends when FILE.end is there, or after five
minutes. With `group` or `session` it has one of its own first; with `deaf` SIGTSTP is written down as well and does not stop it.
"""

import os
import signal
import sys
import time

file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
ways = sys.argv[2:]
if "group" in ways:
    os.setpgid(0, 0)
if "session" in ways:
    os.setsid()


def write(line):
    os.write(file, (line + "\n").encode())


names = ["SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGCONT"] + ["SIGTSTP"] * ("deaf" in ways)
for name in names:
    signal.signal(getattr(signal, name), lambda number, _: write(signal.Signals(number).name))
write(f"ready {os.getpid()} {os.getppid()} {os.getpgrp()}")
end = time.monotonic() + 300
while not os.path.exists(sys.argv[1] + ".end") and time.monotonic() < end:
    time.sleep(0.05)
