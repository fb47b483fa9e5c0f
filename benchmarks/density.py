#!/usr/bin/env python3
"""How many idle programs fit into a budget of memory, and how long each takes to answer when it is woken.

    sudo nohup benchmarks/density.py --budget 2GiB --out benchmarks/runs/DATE-density &      four hours; what has run is not run again
    sudo benchmarks/density.py --short --out target/density                                 a minute a mode, some twelve programs
    benchmarks/density.py --page --out benchmarks/runs/DATE-density                          writes docs/density.md's table and picture
    benchmarks/density.py --check                                                            fails if the page is not what its runs give

In: programs of Debian (python3, nodejs, chromium) and of PyPI (pandas), as far as they are here; stderr says what is left out, and the package. Out: a line of
OUT/runs.jsonl a run, with every answer raw. Must not: leave swap, locked memory, a group or a program behind, even if it is killed (a guard process undoes it then).

The budget is made by a helper that locks all other memory (mlock), and not by a limit of a cgroup: a machine that is short reclaims by its watermarks, with kswapd
and for all programs alike, and says so in MemAvailable and in its pressure. Under a limit of a cgroup nothing of that happens.

A run: one program more as soon as the last has answered and `--every` is over, until one fails: it dies, or does not answer within 30 s. Noted is from which number
on the first answers, from the start of a program on, take twice as long: the median of the last five is more than twice that of the first ten; --until slow ends there.
Those that fit stay until the minutes are over. Meanwhile one at random is asked: each once a minute (`once-a-minute`), or five a second in all (`five-a-second`). With
--most the number stops there, so that modes can be compared at the same number.

Modes: `no-swap`; `zram`; `zram-senpai`, zram and the kernel's proactive reclaim by senpai's loop (memory.reclaim; by limits in cgroup version 1); `terrace`, as it
is without an option. Needs root, and a machine without swap and without other work.
"""

import contextlib
import ctypes
import importlib.machinery
import importlib.util
import json
import mmap
import os
import platform
import random
import select
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import rounds
from campaign import GIB, LRU, Senpai, Zram, cpu_seconds, family, meminfo_bytes
from rounds import ROOT, TERRACE, parser, processor, ready, spread, swap_to_ourselves, today

MIB = 1 << 20
IDLE = ROOT / "benchmarks/idle"
GROUP = "terrace-density"
UNIFIED = Path("/sys/fs/cgroup")
PAGE, PICTURE = ROOT / "docs/density.md", ROOT / "docs/density.svg"
BEGIN, END = "<!-- density -->", "<!-- end of density -->"
MODES = ["no-swap", "zram", "zram-senpai", "terrace"]
LOADS = {"once-a-minute": lambda programs: programs / 60, "five-a-second": lambda programs: 5.0}
CHROMIUM = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, ["chromium", "chromium-browser", "google-chrome"])), None)
# A first answer later than this is none, and one that a woken program owes for longer.
STARTS_WITHIN, ANSWERS_WITHIN = 30.0, 60.0
FIRST, LAST, TWICE = 10, 5, 2.0
# Times ten seconds.
WAITS_FOR_SWAP = 360


# ---- undone in any case ----


class Guard:
    """A process that undoes what is noted when this one is gone, however it went."""

    def __init__(self):
        reader, self.writer = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.writer)
            os.setsid()
            for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(one, signal.SIG_IGN)
            spare_from_oom("self")
            self.watch(reader)
            os._exit(0)
        os.close(reader)

    def note(self, *words):
        os.write(self.writer, (" ".join(map(str, words)) + "\n").encode())

    def done(self, *words):
        self.note("done", *words)

    @staticmethod
    def watch(reader):
        noted = {}
        with os.fdopen(reader) as lines:
            for line in lines:
                words = tuple(line.split())
                noted.pop(words[1:], None) if words[0] == "done" else noted.setdefault(words, True)
        # The programs first: what they hold in swap need not come back.
        for kind, pid, began in (words for words in noted if words[0] == "program"):
            end_group(int(pid), began)
        for kind, pid, began in (words for words in noted if words[0] == "terrace"):
            if start_time(int(pid)) == began:
                os.kill(int(pid), signal.SIGINT)
                wait_until(lambda: start_time(int(pid)) != began, 60)
        for kind, number in (words for words in noted if words[0] == "zram"):
            with contextlib.suppress(OSError, subprocess.CalledProcessError):
                existing(int(number)).close()
        for kind, group in (words for words in noted if words[0] == "group"):
            wait_until(lambda: not Path(group, "cgroup.procs").read_text(), 5)
            with contextlib.suppress(OSError):
                os.rmdir(group)
        for kind, folder in (words for words in noted if words[0] == "folder"):
            shutil.rmtree(folder, ignore_errors=True)

    def close(self):
        os.close(self.writer)
        os.waitpid(self.pid, 0)


def existing(number):
    """The zram device of this number, as its maker has it."""
    zram = Zram.__new__(Zram)
    zram.number, zram.sys = str(number), Path(f"/sys/block/zram{number}")
    return zram


def wait_until(holds, seconds):
    ends = time.monotonic() + seconds
    while not holds() and time.monotonic() < ends:
        time.sleep(0.05)


def start_time(pid):
    """Field 22 of /proc/PID/stat, by which a pid is known to be the same process; empty when it is gone or a zombie."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return "" if fields[0] in "ZX" else fields[19]
    return ""


def end_group(pid, began):
    """Ends a program and all of its process group."""
    if start_time(pid) == began:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)


def spare_from_oom(pid):
    """As far as the rights reach: the programs are first in any case."""
    with contextlib.suppress(PermissionError):
        Path(f"/proc/{pid}/oom_score_adj").write_text("-1000")


def lock_own_memory():
    """Who measures must not wait for its own pages."""
    if ctypes.CDLL(None, use_errno=True).mlockall(3):
        sys.exit(f"density.py: mlockall: {os.strerror(ctypes.get_errno())}")


LOCKER = """
import ctypes, mmap, os, sys
libc, chunk, held = ctypes.CDLL(None, use_errno=True), 64 << 20, []
try:
    open("/proc/self/oom_score_adj", "w").write("-1000")
except PermissionError:
    pass
for line in sys.stdin:
    for _ in range(int(line) // chunk):
        one = mmap.mmap(-1, chunk)
        one.madvise(mmap.MADV_HUGEPAGE)
        if libc.mlock(ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(one))), ctypes.c_size_t(chunk)):
            sys.exit("mlock: " + os.strerror(ctypes.get_errno()))
        held.append(one)
    print(len(held) * chunk, flush=True)
"""


class Locked:
    """All memory but the budget, locked by a helper that ends when its standard input does."""

    def __init__(self, budget):
        os.sync()
        Path("/proc/sys/vm/drop_caches").write_text("3")
        available = meminfo_bytes("MemAvailable")
        if available < budget:
            sys.exit(f"density.py: --budget {budget / GIB:g}GiB: only {available / GIB:.1f} GiB can be had here")
        self.process = subprocess.Popen([sys.executable, "-c", LOCKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        # Twice: what the first lock itself takes and frees is known then.
        for _ in range(2):
            over = max(meminfo_bytes("MemAvailable") - budget, 0)
            self.process.stdin.write(f"{over}\n")
            self.process.stdin.flush()
            told = self.process.stdout.readline()
            if not told:
                sys.exit("density.py: the rest of memory could not be locked: see the line above")
        self.bytes = int(told)

    def close(self):
        self.process.stdin.close()
        self.process.wait()


# ---- idle programs: each starts a process, is asked, and answers ----


class Served:
    """A program that answers by HTTP on a Unix socket."""

    pipes = ()

    def __init__(self, run, number):
        self.run, self.number = run, number
        self.path = f"{run.place}/{number}.sock"
        self.began = time.monotonic()
        self.process = run.spawn(self.command(), number, self.pipes)
        self.line, self.asked_at, self.answered_at, self.received = None, None, None, b""

    def ask(self, seed):
        """Sends a request. False while nothing listens yet."""
        line = socket.socket(socket.AF_UNIX)
        line.setblocking(False)
        try:
            line.connect(self.path)
            line.send(f"GET /{seed} HTTP/1.0\r\n\r\n".encode())
        except (FileNotFoundError, ConnectionRefusedError, BlockingIOError):
            line.close()
            return False
        self.line, self.received = line, b""
        return True

    def fileno(self):
        return self.line.fileno()

    def read(self):
        """What came in: None while the answer is not whole, else whether it is right."""
        try:
            part = self.line.recv(65536)
        except BlockingIOError:
            return None
        except ConnectionResetError:
            part = b""
        self.received += part
        if part:
            return None
        self.line.close()
        self.line = None
        return b" 200 " in self.received.split(b"\r\n", 1)[0] and b"\r\n\r\nok" in self.received

    def close(self):
        if self.line:
            self.line.close()
            self.line = None

    def dead(self):
        return self.process.poll() is not None

    def cpu(self):
        return sum(map(cpu_seconds, family(self.process.pid)))

    def end(self):
        self.close()
        self.run.end(self.process)


class Interpreter(Served):
    PACKAGE, MEBIBYTES = "python3", 60

    @staticmethod
    def there():
        return sys.executable

    def command(self):
        return [sys.executable, str(IDLE / "interpreter.py"), self.path, str(self.MEBIBYTES), str(self.number)]


class Pandas(Interpreter):
    """The same with a package of PyPI that most notebooks load."""

    PACKAGE, MEBIBYTES = "pandas (pip install pandas)", 30

    @staticmethod
    def there():
        return importlib.util.find_spec("pandas")

    def command(self):
        return [sys.executable, "-c", f"import runpy, pandas, sys; runpy.run_path({str(IDLE / 'interpreter.py')!r}, run_name='__main__')", *super().command()[2:]]


class Node(Served):
    PACKAGE, MEBIBYTES = "nodejs", 40

    @staticmethod
    def there():
        return shutil.which("node")

    def command(self):
        return ["node", str(IDLE / "server.js"), self.path, str(self.MEBIBYTES), str(self.number)]


class Page(Served):
    """A Chromium of its own with one page, asked through its debugging pipe (descriptors 3 and 4; objects of JSON that end with a zero byte)."""

    PACKAGE, MEBIBYTES = "chromium (or CHROMIUM=PATH)", 40

    @staticmethod
    def there():
        return CHROMIUM

    def __init__(self, run, number):
        theirs, self.ours = os.pipe()
        self.theirs, theirs_out = os.pipe()
        os.set_blocking(self.theirs, False)
        self.pipes, self.session, self.next, self.loaded = (theirs, theirs_out), None, 1, False
        super().__init__(run, number)
        for one in self.pipes:
            os.close(one)
        self.send("Target.createTarget", {"url": f"{(IDLE / 'page.html').as_uri()}#{self.MEBIBYTES},{number}"})

    def command(self):
        reads, writes = self.pipes
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage", "--allow-file-access-from-files"]
        flags = [*options, f"--user-data-dir={self.run.place}/{self.number}", "--remote-debugging-pipe"]
        return ["sh", "-c", f'exec "$0" "$@" 3<&{reads} 4>&{writes}', CHROMIUM, *flags]

    def send(self, method, parameters):
        message = {"id": self.next, "method": method, "params": parameters, **({"sessionId": self.session} if self.session else {})}
        self.next += 1
        with contextlib.suppress(BrokenPipeError):
            os.write(self.ours, json.dumps(message).encode() + b"\0")

    def messages(self):
        with contextlib.suppress(BlockingIOError):
            self.received += os.read(self.theirs, 1 << 20)
        *whole, self.received = self.received.split(b"\0")
        return map(json.loads, whole)

    def ask(self, seed):
        if not self.session:
            for message in self.messages():
                result = message.get("result", {})
                if "targetId" in result:
                    self.send("Target.attachToTarget", {"targetId": result["targetId"], "flatten": True})
                self.session = result.get("sessionId", self.session)
            return False
        self.seed, self.line = seed, True
        # A page that is not loaded yet has no `answer`: asked again until it has.
        self.send("Runtime.evaluate", {"expression": f"typeof answer == 'undefined' ? 'later' : answer({seed})", "returnByValue": True})
        return True

    def fileno(self):
        return self.theirs

    def read(self):
        for message in self.messages():
            value = message.get("result", {}).get("result", {}).get("value")
            if value == "later":
                time.sleep(0.02)
                self.ask(self.seed)
            elif value is not None:
                self.line = None
                return value == "ok"
        return None

    def close(self):
        self.line = None

    def end(self):
        super().end()
        for one in (self.ours, self.theirs):
            os.close(one)


PROGRAMS = {"python": Interpreter, "node": Node, "pandas": Pandas, "chromium": Page}


# ---- modes ----


class NoSwap:
    name, process = "no-swap", None

    def __init__(self, guard, place, words):
        self.guard, self.place, self.words = guard, place, words

    def begin(self):
        pass

    def took(self, pid):
        """A program has been started."""

    def cpu(self):
        return 0.0

    def said(self):
        return {}

    def occupied(self):
        found = [path for path in Path("/sys/block").glob("zram*") if path.name in Path("/proc/swaps").read_text()]
        return sum(int((path / "mm_stat").read_text().split()[2]) for path in found)

    def end(self):
        pass


class WithZram(NoSwap):
    """Compressed swap of the size and kind that Terrace makes: half of memory, lz4."""

    name = "zram"

    def begin(self):
        self.zram = Zram(rounds_down(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2))
        self.guard.note("zram", self.zram.number)

    def end(self):
        self.zram.close()
        self.guard.done("zram", self.zram.number)


def rounds_down(size):
    return size // mmap.PAGESIZE * mmap.PAGESIZE


class WithSenpai(WithZram):
    """What senpai does (github.com/facebookincubator/senpai, its defaults), with the programs in a group of their own: by memory.reclaim where that is,
    else by limits as in campaign.py. A process of its own, since who asks for reclaim does it."""

    name = "zram-senpai"
    INTERVAL, TOLERATED, MOST_PROBE = 6, 10_000, 0.01

    def begin(self):
        super().begin()
        self.group = (UNIFIED if unified() else LRU) / GROUP
        self.group.mkdir()
        self.guard.note("group", self.group)
        self.process = os.fork()
        if self.process == 0:
            spare_from_oom("self")
            for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(one, signal.SIG_DFL)
            self.reclaims() if unified() else self.limits()
        self.guard.note("program", self.process, start_time(self.process))

    def took(self, pid):
        (self.group / "cgroup.procs").write_text(str(pid))

    def reclaims(self):
        """Each six seconds, if the group waited for less than 10 ms of them: up to 1 % of what it has, the less it waited the more."""
        waited = lambda: int((self.group / "memory.pressure").read_text().split("total=")[1].split()[0])
        before = waited()
        while True:
            time.sleep(self.INTERVAL)
            now = waited()
            share = self.MOST_PROBE * max(1 - (now - before) / self.TOLERATED, 0)
            before = now
            with contextlib.suppress(OSError):
                (self.group / "memory.reclaim").write_text(str(int(int((self.group / "memory.current").read_text()) * share)))

    def limits(self):
        senpai = Senpai()
        senpai.group = self.group

        class Never:
            @staticmethod
            def wait(seconds):
                time.sleep(seconds)
                return False

        senpai.ended = Never()
        senpai.follow()

    def cpu(self):
        return cpu_seconds(self.process)

    def end(self):
        began = start_time(self.process)
        os.kill(self.process, signal.SIGKILL)
        os.waitpid(self.process, 0)
        self.guard.done("program", self.process, began)
        wait_until(lambda: not (self.group / "cgroup.procs").read_text(), 10)
        self.group.rmdir()
        self.guard.done("group", self.group)
        super().end()


def unified():
    controllers = UNIFIED / "cgroup.controllers"
    return controllers.exists() and "memory" in controllers.read_text().split() and "memory" in (UNIFIED / "cgroup.subtree_control").read_text().split()


class Terrace(NoSwap):
    name = "terrace"

    def begin(self):
        self.report = Path(self.place, "terrace.json")
        words = [word.replace("{driver}", str(os.getpid())) for word in self.words.split()]
        self.told = open(f"{self.place}/terrace.txt", "w+")
        command = [TERRACE, *words, "--quiet", "--json-file", self.report]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=self.told, start_new_session=True)
        self.began = start_time(self.process.pid)
        self.guard.note("terrace", self.process.pid, self.began)
        # It has set up its swap when it begins.
        wait_until(lambda: self.process.poll() is not None or meminfo_bytes("SwapTotal"), 60)
        if self.process.poll() is not None:
            self.failed()

    def failed(self):
        self.told.seek(0)
        sys.exit(f"density.py: terrace {self.words} ended with {self.process.returncode}:\n{self.told.read()}")

    def cpu(self):
        return cpu_seconds(self.process.pid)

    def said(self):
        """Its report, without the pictures."""
        if not self.report.exists():
            return {}
        report = json.loads(self.report.read_text())
        kept = ("fast_bytes_saved_end", "fast_bytes_saved_mean", "fast_bytes_saved_peak", "refaults", "cost", "moved_pages", "throttled_seconds")
        return {"report": {key: report[key] for key in kept if key in report}}

    def end(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        code = self.process.wait(timeout=120)
        self.guard.done("terrace", self.process.pid, self.began)
        if code:
            self.failed()


# ---- a run ----


class Run:
    """One mode, from the first program to the last answer."""

    def __init__(self, kind, mode, load, options, round_number, guard):
        self.kind, self.mode, self.load, self.options, self.round = kind, mode, load, options, round_number
        self.guard, self.rng = guard, random.Random(f"{kind}-{load}-{round_number}")
        self.programs, self.starting = [], None
        self.ready, self.answers, self.samples, self.wrong = [], [], [], 0
        self.cpu_of_ended, self.started, self.why, self.fit, self.ramp_seconds, self.slow_from = 0.0, 0, None, 0, None, None

    def spawn(self, command, number, pipes):
        # Of all processes these are the first that the kernel ends when memory is out.
        log = open(f"{self.place}/{number}.txt", "w")
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, pass_fds=pipes)
        log.close()
        Path(f"/proc/{process.pid}/oom_score_adj").write_text("1000")
        process.start_time = start_time(process.pid)
        self.guard.note("program", process.pid, process.start_time)
        self.mode.took(process.pid)
        return process

    def end(self, process):
        self.cpu_of_ended += sum(map(cpu_seconds, family(process.pid)))
        end_group(process.pid, process.start_time)
        process.wait()
        self.guard.done("program", process.pid, process.start_time)

    def now(self):
        return time.monotonic() - self.began

    def stop_ramp(self, why, fit):
        if self.why is None:
            self.why, self.fit, self.ramp_seconds = why, fit, round(self.now(), 1)

    def start_next(self):
        self.started += 1
        self.starting = PROGRAMS[self.kind](self, self.started)

    def answered(self, program, right):
        now = time.monotonic()
        self.wrong += not right
        if program is self.starting:
            self.ready.append(round(now - program.began, 4))
            self.programs.append(program)
            self.starting = None
            self.birth_at = max(self.birth_at, program.began + self.options.every)
            first, last = self.ready[:FIRST], self.ready[-LAST:]
            is_slow = len(self.ready) >= FIRST + LAST and statistics.median(last) > TWICE * statistics.median(first)
            if is_slow and self.slow_from is None:
                self.slow_from = len(self.programs) - LAST
            if is_slow and self.options.until == "slow":
                self.stop_ramp("slow", self.slow_from)
            elif len(self.programs) == self.options.most:
                self.stop_ramp("most", self.options.most)
        else:
            slept = program.asked_at - program.answered_at
            milliseconds = round((now - program.asked_at) * 1000, 3)
            self.answers.append([round(self.now(), 2), len(self.programs), round(slept, 1), milliseconds, int(self.why is not None)])
        program.asked_at, program.answered_at = None, now

    def lost(self, program, why):
        """A program that is dead, or that does not answer."""
        if program is self.starting:
            self.starting = None
        else:
            self.programs.remove(program)
        self.stop_ramp(why, len(self.programs))
        program.end()

    def look_at_all(self):
        for program in [*self.programs, *filter(None, [self.starting])]:
            owed = time.monotonic() - (program.asked_at or time.monotonic())
            if program.dead():
                self.lost(program, "memory was out")
            elif program is self.starting and time.monotonic() - program.began > STARTS_WITHIN:
                self.lost(program, f"no answer within {STARTS_WITHIN:.0f} s of a start")
            elif program.answered_at and owed > ANSWERS_WITHIN:
                self.answers.append([round(self.now(), 2), len(self.programs), 0.0, round(owed * 1000, 3), int(self.why is not None)])
                self.lost(program, f"no answer within {ANSWERS_WITHIN:.0f} s")
        # Those that fit stay.
        if self.why is not None:
            while len(self.programs) > self.fit:
                self.programs.pop().end()

    def sample(self):
        pressure = Path("/proc/pressure/memory")
        self.samples.append({
            "seconds": round(self.now(), 1),
            "programs": len(self.programs),
            "available_mib": meminfo_bytes("MemAvailable") // MIB,
            "swapped_mib": (meminfo_bytes("SwapTotal") - meminfo_bytes("SwapFree")) // MIB,
            "occupied_mib": self.mode.occupied() // MIB,
            "stalled_ms": int(pressure.read_text().split("total=")[1].split()[0]) // 1000 if pressure.exists() else None,
            "manager_cpu_seconds": round(self.mode.cpu(), 2),
            "kswapd_cpu_seconds": round(kswapd_seconds(), 2),
        })

    def ask_one(self):
        asleep = [program for program in self.programs if program.asked_at is None]
        if asleep:
            program = self.rng.choice(asleep)
            program.asked_at = time.monotonic()
            if not program.ask(self.rng.randrange(1 << 30)):
                # It listens no more: it is dead, or about to be, which the next look finds.
                program.asked_at = None

    def go(self, place):
        self.place = place
        busy, kswapd = busy_seconds(), kswapd_seconds()
        ends = time.monotonic() + self.options.minutes * 60
        self.began = self.birth_at = time.monotonic()
        look_at = sample_at = self.began
        ask_at = self.began + 1
        try:
            while (now := time.monotonic()) < ends:
                if self.why is None and not self.starting and now >= self.birth_at:
                    self.start_next()
                if self.starting and self.starting.asked_at is None and self.starting.ask(0):
                    self.starting.asked_at = self.starting.began
                if now >= ask_at:
                    self.ask_one()
                    rate = LOADS[self.load](max(len(self.programs), 1))
                    ask_at = now + self.rng.expovariate(rate)
                if now >= look_at:
                    self.look_at_all()
                    look_at = now + 0.25
                if now >= sample_at:
                    self.sample()
                    sample_at = now + 5
                waits = {program.fileno(): program for program in [*self.programs, *filter(None, [self.starting])] if program.line}
                nearest = min(ends, ask_at, look_at, now + 0.02 if self.starting and not self.starting.line else ends, self.birth_at if self.birth_at > now else ends)
                poll = select.poll()
                for descriptor in waits:
                    poll.register(descriptor, select.POLLIN)
                for descriptor, _ in poll.poll(max((nearest - time.monotonic()) * 1000, 0)):
                    program = waits[descriptor]
                    if (right := program.read()) is not None:
                        if right or not program.dead():
                            self.answered(program, right)
            self.stop_ramp("time", len(self.programs))
            self.sample()
            cpu = {
                "manager": round(self.mode.cpu(), 2),
                "kswapd": round(kswapd_seconds() - kswapd, 2),
                "programs": round(self.cpu_of_ended + sum(program.cpu() for program in self.programs), 2),
                "machine": round(busy_seconds() - busy, 2),
            }
        finally:
            for program in [*self.programs, *filter(None, [self.starting])]:
                program.end()
        return cpu


def busy_seconds():
    """Processor time that anybody used since boot."""
    fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:8]]
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


def kswapd_seconds():
    global KSWAPD
    if KSWAPD is None:
        KSWAPD = [path.parent.name for path in Path("/proc").glob("[0-9]*/comm") if comm(path).startswith("kswapd")]
    return sum(map(cpu_seconds, KSWAPD))


KSWAPD = None


def comm(path):
    with contextlib.suppress(OSError):
        return path.read_text()
    return ""


def one_run(kind, name, load, options, number, guard):
    """A run of a mode; None where swap is on already, which the mode without would use."""
    with tempfile.TemporaryDirectory(prefix="density-") as place, swap_to_ourselves():
        guard.note("folder", place)
        if len(Path("/proc/swaps").read_text().splitlines()) > 1:
            return None
        mode = {one.name: one for one in (NoSwap, WithZram, WithSenpai, Terrace)}[name](guard, place, options.terrace)
        locked = Locked(options.budget)
        try:
            load_before, began = os.getloadavg()[0], False
            run = Run(kind, mode, load, options, number, guard)
            try:
                mode.begin()
                began = True
                cpu = run.go(place)
            finally:
                if began:
                    mode.end()
        finally:
            locked.close()
        return {
            "program": kind,
            "mode": name,
            "load": load,
            "most": options.most,
            "round": number,
            "budget_bytes": options.budget,
            "minutes": options.minutes,
            "every_seconds": options.every,
            "fit": run.fit,
            "why": run.why,
            "slow_from": run.slow_from,
            "until": options.until,
            "ramp_seconds": run.ramp_seconds,
            "wrong_answers": run.wrong,
            "cpu_seconds": cpu,
            **mode.said(),
            "command": f"terrace {options.terrace}" if name == "terrace" else None,
            "first_answer_seconds": run.ready,
            # Seconds of the run, programs, seconds asleep before, milliseconds, and whether those that fit were held.
            "answers": run.answers,
            "samples": run.samples,
            "locked_bytes": locked.bytes,
            "load_average_before": load_before,
            "machine": processor(),
            "cpus": os.cpu_count(),
            "kernel": platform.release(),
            "date": today(),
        }


# ---- figures ----


def percentile(values, share):
    """The value below which this share lies (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else None


def held(run):
    return [answer[3] for answer in run["answers"] if answer[4]]


def by_key(runs):
    found = {}
    for run in runs:
        found.setdefault((run["program"], run["load"], run["most"], run["until"], run["mode"]), []).append(run)
    order = lambda key: (list(PROGRAMS).index(key[0]), list(LOADS).index(key[1]), key[2] or 0, key[3], MODES.index(key[4]))
    return dict(sorted(found.items(), key=lambda item: order(item[0])))


def rows_of(runs):
    for (program, load, most, until, mode), of in by_key(runs).items():
        answers = [value for run in of for value in held(run)]
        starts = [value for run in of for value in run["first_answer_seconds"][-LAST:]]
        shown = lambda value, form=".1f": "" if value is None else format(value, form)
        cpu = lambda who: statistics.median(run["cpu_seconds"][who] / (run["samples"][-1]["seconds"] or 1) for run in of)
        yield [
            program,
            load.replace("-", " "),
            mode,
            spread([run["fit"] for run in of], ".0f") + (", as asked" if most else ""),
            Counter(run["why"] for run in of).most_common(1)[0][0],
            shown(statistics.median(slow) if (slow := [run["slow_from"] for run in of if run["slow_from"] is not None]) else None, ".0f"),
            shown(percentile(answers, 0.5)),
            shown(percentile(answers, 0.99), ",.0f"),
            str(len(answers)),
            shown(statistics.median(starts) if starts else None, ".2f"),
            f"{cpu('manager'):.1%}" if mode in ("zram-senpai", "terrace") else "",
            f"{cpu('kswapd'):.1%}",
            f"{cpu('machine'):.1%}",
        ]


HEAD = ["program", "asked", "mode", "that fit", "until", "twice as slow from", "p50, ms", "p99, ms", "answers", "start to first answer, s", "manager's CPU, of a core", "kswapd's", "machine's"]


def table(runs):
    return rounds.table(HEAD, rows_of(runs))


def picture(runs):
    """As scripts/picture draws it."""
    place = str(ROOT / "scripts/picture")
    loader = importlib.machinery.SourceFileLoader("picture", place)
    drawer = importlib.util.module_from_spec(importlib.util.spec_from_loader("picture", loader))
    loader.exec_module(drawer)
    return drawer.density(runs)


def page(runs, source):
    """The page's part that is made of the runs."""
    of = next(iter(rounds_by_machine(runs)))
    when = sorted({run["date"] for run in of})
    budget = " and ".join(f"{size / GIB:g} GiB" for size in sorted({run["budget_bytes"] for run in of}))
    about = (f"{len(of)} runs of {when[0]}{f' to {when[-1]}' if len(when) > 1 else ''} on {of[0]['machine']}, {of[0]['cpus']} processors, Linux {of[0]['kernel']}; "
             f"budget {budget}; medians of rounds with all values' range, percentiles of all answers while those that fit are held ([raw]({source})).")
    return f"{BEGIN}\n{about}\n\n{table(of)}\n\n![How many fit](density.svg)\n{END}"


def rounds_by_machine(runs):
    machines = {}
    for run in runs:
        machines.setdefault((run["machine"], run["budget_bytes"]), []).append(run)
    return sorted(machines.values(), key=len, reverse=True)


def with_part(text, part):
    before, rest = text.split(BEGIN)
    return before + part + rest.split(END)[1]


def read(file):
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def wanted(option, given, known):
    """Names with commas between them, each of which must be known."""
    for name in given:
        if name not in known:
            sys.exit(f"density.py: {option} {name}: there are {', '.join(known)}")
    return given


def size(text):
    factor = {"KiB": 1 << 10, "MiB": MIB, "GiB": GIB}.get(text[-3:])
    try:
        return int(float(text[:-3]) * factor) if factor else int(text)
    except ValueError:
        sys.exit(f"density.py: --budget {text}: expected a size such as 2GiB")


def page_source():
    """The folder of the runs that the page is made of, as the page names it."""
    text = PAGE.read_text()
    return text.split("([raw](", 1)[1].split(")")[0] if "([raw](" in text else None


def main():
    options = parser(__doc__, out=True)
    options.add_argument("--budget", type=size, default=2 * GIB, help="memory that can be had; the rest is locked (default: 2GiB)")
    options.add_argument("--programs", help=f"of {', '.join(PROGRAMS)}, with commas between them (default: those that are here, but for pandas)")
    options.add_argument("--modes", default=",".join(MODES))
    options.add_argument("--loads", default="once-a-minute", help=f"of {', '.join(LOADS)} (default: the first)")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--minutes", type=float, default=10.0, help="of a run")
    options.add_argument("--every", type=float, default=2.0, help="seconds between two starts, at least")
    options.add_argument("--until", choices=["fail", "slow"], default="fail", help="what ends the row of starts (default: fail)")
    options.add_argument("--most", type=int, help="start no more than this, and hold them")
    options.add_argument("--short", action="store_true", help="one round of a minute a mode with at most twelve programs of one kind, one each second")
    options.add_argument("--terrace", default="attach --all", help="words for terrace, where {driver} is this script's pid (default: attach --all)")
    options.add_argument("--page", action="store_true", help="write the table and the picture of --out, and run nothing")
    options.add_argument("--check", action="store_true", help="fail if the page is not what its runs give")
    options = options.parse_args()
    if options.check or options.page:
        source = f"../{options.out.resolve().relative_to(ROOT)}/runs.jsonl" if options.page else page_source()
        runs = read(PAGE.parent / source) if source else []
        if not runs:
            sys.exit(f"density.py: {source}: no runs there" if source or options.page else 0)
        text, drawn = with_part(PAGE.read_text(), page(runs, source)), picture(runs)
        if options.page:
            PAGE.write_text(text)
            PICTURE.write_text(drawn)
        elif (text, drawn) != (PAGE.read_text(), PICTURE.read_text()):
            sys.exit(f"docs/density.md is not what {source} gives: benchmarks/density.py --page --out {Path(source).parent}")
        return
    if options.short:
        options.rounds, options.minutes, options.every, options.most = 1, 1.0, 1.0, options.most or 12
    modes = wanted("--modes", options.modes.split(","), MODES)
    loads = wanted("--loads", options.loads.split(","), list(LOADS))
    kinds = wanted("--programs", options.programs.split(",") if options.programs else ["python", "node", "chromium"], list(PROGRAMS))
    ready(root=True, command="terrace" in modes)
    for kind in [kind for kind in kinds if not PROGRAMS[kind].there()]:
        print(f"{kind} is left out: it needs {PROGRAMS[kind].PACKAGE}", file=sys.stderr)
        kinds.remove(kind)
    if options.short and not options.programs:
        kinds = kinds[:1]
    if "zram-senpai" in modes and not unified() and not (LRU / "memory.limit_in_bytes").exists():
        print("zram-senpai is left out: it needs the memory controller of cgroups", file=sys.stderr)
        modes.remove("zram-senpai")
    if not kinds or not modes:
        sys.exit("density.py: nothing is left to run")
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "runs.jsonl"
    key = lambda run: tuple(run[name] for name in ("program", "mode", "load", "most", "until", "round", "budget_bytes", "machine"))
    # An end from outside runs the ends of all that was begun.
    for one in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(one, lambda *_: sys.exit("density.py: ended by a signal; the same command goes on from here"))
    lock_own_memory()
    guard = Guard()
    spare_from_oom("self")
    try:
        for number in range(options.rounds):
            for kind in kinds:
                for load in loads:
                    for name in modes if number % 2 == 0 else modes[::-1]:
                        if (kind, name, load, options.most, options.until, number, options.budget, processor()) in set(map(key, read(file))):
                            continue
                        for tries in range(WAITS_FOR_SWAP):
                            if run := one_run(kind, name, load, options, number, guard):
                                break
                            if tries == 0:
                                print("swap is on here already: waiting until it is off (`swapoff -a`)", file=sys.stderr, flush=True)
                            time.sleep(10)
                        else:
                            sys.exit("density.py: swap is still on: `swapoff -a`; the same command goes on from here")
                        with file.open("a") as out:
                            out.write(json.dumps(run).replace(f"{ROOT}/", "") + "\n")
                        answers = held(run)
                        slow = "" if not answers else f"; p50 {percentile(answers, 0.5):.1f} ms, p99 {percentile(answers, 0.99):.1f} ms of {len(answers)} answers"
                        print(f"{kind}, {name}, {load}, round {number + 1}: {run['fit']} fit ({run['why']}){slow}", flush=True)
    finally:
        guard.close()
    print(f"\n{table(read(file))}")


if __name__ == "__main__":
    main()
