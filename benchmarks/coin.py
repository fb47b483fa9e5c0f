#!/usr/bin/env python3
"""The campaign by coin: each program runs once, and Terrace manages it or leaves it alone in windows of five seconds, by coin (docs/proof.md).

    sudo benchmarks/coin.py [--out FILE] [--programs A,B] [--minutes N] [--width POINTS]
    benchmarks/coin.py --page [--out FILE]      prints the table
    benchmarks/coin.py --check                  fails if README's table is not of the committed runs

Neighbours on a shared machine fall on both kinds of windows alike, where they bend runs that follow each other (benchmarks/campaign.py).

In: programs as far as they are here (stderr says what is left out), and the lines of FILE: a second call goes on where the first stopped. Out: a line of FILE as
soon as a program is over; FILE is benchmarks/runs/DATE-coin/coin.jsonl. Must not: leave a program, swap or the setting of huge pages changed, or mix what is
told apart: start-up, steady state, end. Needs root; `make build` first.

A program runs alone for 20 s and then under Terrace. For the first minute there is no metric, and the program is managed in any case: that is start-up, told by the
slowest second. Then windows begin: that is the steady state. It ends when the interval is narrower than --width (not before five minutes), when harm is shown, or when
--minutes are over. The end is Terrace's leave, and the 10 s after it.

What the program has done is looked at 20 times a second: a figure that is half a second old would be wrong by an eighth of the four seconds that count of a window.
Accounts are shares as the bound takes them: of the time, or of the CPU time where several cores make that more.

The same pairs are also told by the program's work a second of its own processor time. Neighbours that take processors bend that less; what the program waits for is not in it.
"""

import bisect
import contextlib
import json
import math
import mmap
import os
import platform
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import rounds
from campaign import POSTGRES, SOURCES, cpu_seconds, digest, family
from density import Guard, start_time
from inside import huge_pages
from rounds import REDIS_LOAD, ROOT, TERRACE, parser, processor, ready, redis_server, swap_to_ourselves, today, wait_for_port

STEADY, COLLECTED = ROOT / "target/steady", ROOT / "target/collected"
WINDOW, SETTLING = 5, 1
ALONE, START, AFTER = 20, 60, 10
# Under Terrace no less, however narrow the interval: what comes every few minutes is to be seen in the account. Terrace begins its count again after 128 pairs.
LEAST_MINUTES = 5.0
MOST_MINUTES = 1.0 + 2 * 128 * WINDOW / 60
LOOK, ACCOUNT = 0.05, 30
LEFT_ALONE = "--metric-left-alone"
BEGINS = re.compile(r"proof: window begins, the program is (managed|left alone)")


class Failed(Exception):
    """Why a program gives no line."""


# ---- programs: each runs until it is ended, and says at any moment how much it has done ----


class Program:
    """Processes in groups of their own, which end with the context."""

    options, seconds_to_end = [], 30

    def __init__(self, place, guard, stack):
        self.place, self.guard, self.stack = place, guard, stack

    def spawn(self, command, ends_by=signal.SIGTERM, **options):
        words = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": self.place, **options}
        child = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, start_new_session=True, **words)
        noted = ("program", child.pid, start_time(child.pid))
        self.guard.note(*noted)
        self.stack.callback(self.end, child, ends_by, noted)
        return child

    def end(self, child, by, noted):
        child.send_signal(by)
        try:
            child.wait(timeout=self.seconds_to_end)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        self.guard.done(*noted)

    def processes(self):
        """Those whose processor time is the program's."""
        return family(self.process.pid)

    def said(self):
        """What it says of itself once it is over."""
        return {}


class KeyValue(Program):
    """A server of key-value pairs with 500 MiB of values, of which a client reads some."""

    def __init__(self, place, guard, stack, protocol, port, read, exponent):
        super().__init__(place, guard, stack)
        servers = {
            "redis": redis_server(port),
            "memcached": ["memcached", "-p", str(port), "-U", "0", "-l", "127.0.0.1", "-m", "1024", "-t", "1", "-u", "root"],
        }
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            raise Failed(f"another server uses port {port}")
        self.process = self.spawn(servers[protocol], signal.SIGINT)
        wait_for_port(port)
        load = [REDIS_LOAD, "--protocol", protocol, "--port", str(port), "--value", "1KiB"]
        subprocess.run([*load, "--data", "500MiB", "--fill", "500MiB"], check=True)
        # As much warm-up as there is time: it then keeps no latencies.
        endless = ["--seconds", "1000000", "--warm", "1000000"]
        self.load = self.spawn([*load, "--data", read, *endless, "--connections", "1", "--exponent", exponent])
        self.link = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=5))
        self.answers = stack.enter_context(self.link.makefile("rb"))
        self.ask, self.name, self.last = {
            "redis": (b"INFO stats\r\n", b"total_commands_processed:", b""),
            "memcached": (b"stats\r\n", b"STAT cmd_get ", b"END"),
        }[protocol]

    def count(self):
        self.link.sendall(self.ask)
        found, first = None, self.answers.readline()
        # Redis says first how long its answer is; memcached's ends with a word.
        lines = self.answers.read(int(first[1:]) + 2).splitlines() if not self.last else [first, *iter(lambda: self.answers.readline().rstrip(), self.last)]
        for line in lines:
            if line.startswith(self.name):
                found = int(line[len(self.name) :])
        return found


class Forking(KeyValue):
    """Redis that writes all of its values to disk every half minute, by a child of its own (BGSAVE)."""

    def __init__(self, place, guard, stack, *words):
        super().__init__(place, guard, stack, *words)
        over = threading.Event()
        writer = threading.Thread(target=self.save, args=(words[1], over))
        stack.callback(lambda: (over.set(), writer.join()))
        writer.start()

    def processes(self):
        # The child that writes comes and goes.
        return [self.process.pid]

    def save(self, port, over):
        while not over.wait(30):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5) as link:
                link.sendall(b"BGSAVE\r\n")
                link.recv(100)


class Own(Program):
    """A program whose count lies in a file that it shares with us: benchmarks/steady.c, where no other is named."""

    seconds_to_end = 120

    def __init__(self, place, guard, stack, *words, of=None):
        super().__init__(place, guard, stack)
        file = Path(place, "counter")
        file.write_bytes(bytes(mmap.PAGESIZE))
        with file.open("r+b") as opened:
            self.counter = stack.enter_context(mmap.mmap(opened.fileno(), mmap.PAGESIZE, prot=mmap.PROT_READ))
        with open(f"{place}/said", "w") as output:
            self.process = self.load = self.spawn([*(of or [STEADY]), file, *words], stdout=output)
        while not self.count():
            if self.process.poll() is not None:
                raise Failed(f"it ended with {self.process.returncode}")
            time.sleep(0.1)

    def count(self):
        return int.from_bytes(self.counter[:8], sys.byteorder)

    def said(self):
        return json.loads(Path(self.place, "said").read_text() or "{}")


class Postgres(Program):
    """PostgreSQL with 512 MiB of shared buffers, filled, of which pgbench reads the first tenth, as in benchmarks/campaign.py. Its statistics are a second old; what
    counts are the lines of pgbench's log, which is a pipe."""

    options = ["--shared"]

    def __init__(self, place, guard, stack, port):
        super().__init__(place, guard, stack)
        bin, self.lines = POSTGRES[-1], 0
        shutil.chown(place, "postgres")
        call = lambda *words: subprocess.run([str(word) for word in words], check=True, capture_output=True, user="postgres", cwd=place)
        call(bin / "initdb", "-D", f"{place}/data", "-A", "trust")
        settings = ["shared_buffers=512MB", "huge_pages=off", "autovacuum=off", f"port={port}", f"unix_socket_directories={place}"]
        server = [bin / "postgres", "-D", f"{place}/data", *(word for setting in settings for word in ("-c", setting))]
        self.process = self.spawn(server, signal.SIGINT, user="postgres")
        there = ["-h", place, "-p", port, "postgres"]
        for _ in range(300):
            if subprocess.run([bin / "pg_isready", "-q", "-h", place, "-p", str(port)]).returncode == 0:
                break
            time.sleep(0.1)
        call(bin / "pgbench", "-i", "-q", "-s", 30, *there)
        call(bin / "psql", "-c", "create extension pg_prewarm", "-c", "select pg_prewarm('pgbench_accounts')", *there)
        # One that has read all rows stays: nobody but processes that map a page can be asked to let it go.
        self.spawn([bin / "psql", "-c", "select sum(abalance) from pgbench_accounts", "-c", "select pg_sleep(1000000)", *there], user="postgres")
        Path(f"{place}/first_tenth.sql").write_text("\\set id random(1, 300000)\nselect abalance from pgbench_accounts where aid = :id;\n")
        bench = [bin / "pgbench", "-n", "-f", f"{place}/first_tenth.sql", "-c", 1, "-T", 1000000, "-l", "--log-prefix", f"{place}/log", *there]
        # pgbench names its log by its pid, which exec keeps.
        self.load = self.spawn(["sh", "-c", 'mkfifo log.$$ && exec "$@"', "sh", *bench], user="postgres")
        threading.Thread(target=self.read, args=(Path(place, f"log.{self.load.pid}"),), daemon=True).start()
        ends = time.monotonic() + 60
        while not self.lines:
            if self.load.poll() is not None or time.monotonic() > ends:
                raise Failed("pgbench writes no log")
            time.sleep(0.1)

    def read(self, pipe):
        while not pipe.exists():
            time.sleep(0.05)
        with open(pipe, "rb", buffering=0) as log:
            while text := log.read(65536):
                self.lines += text.count(b"\n")

    def count(self):
        return self.lines


def of(kind, *words, **options):
    return lambda place, guard, stack: kind(place, guard, stack, *words, **options)


# What starts each, and for `scatter` the machine's setting of huge pages.
PROGRAMS = {
    "redis-tenth": of(KeyValue, "redis", 7493, "50MiB", "0"),
    "redis-zipf": of(KeyValue, "redis", 7494, "500MiB", "0.99"),
    "memcached": of(KeyValue, "memcached", 7496, "50MiB", "0"),
    "hot-cold-blocks": of(Own, 1024, 4, 1, 10, 33),
    "loaded-first": of(Own, 2048, 4, 1, 0, 50),
    "postgres": of(Postgres, 7495),
    "scatter": of(Own, 1024, 1, 16, 100, 25),
    "uniform": of(Own, 512, 1, 1, 0, 50),
    "redis-saves": of(Forking, "redis", 7497, "50MiB", "0"),
    "java": of(Own, 400, 10, of=["java", "-XX:+UseG1GC", "-Xmx900m", "-cp", COLLECTED, "Collected"]),
    "go": of(Own, 400, 10, of=[COLLECTED / "collected"]),
}
NEEDS = {"redis-tenth": "redis-server", "redis-zipf": "redis-server", "redis-saves": "redis-server", "memcached": "memcached", "java": "javac", "go": "go"}
# What makes a program, from the folder of this file.
MADE = {
    "java": ["javac", "-d", COLLECTED, "coin/Collected.java"],
    "go": ["go", "build", "-o", COLLECTED / "collected", "coin/collected.go"],
}


def missing(program):
    """What keeps a program from running here."""
    if (server := NEEDS.get(program)) and not shutil.which(server):
        return f"{server} is not installed"
    if server and program not in MADE and not shutil.which(REDIS_LOAD):
        return f"{REDIS_LOAD} is not there: `make build`, or set REDIS_LOAD"
    if program == "postgres" and not POSTGRES:
        return "PostgreSQL is not installed"
    return None


# ---- what was done, by time ----


class Work:
    """Looks at a program's count all the time, and keeps it in a file once it is told to."""

    def __init__(self, program, metric):
        self.program, self.metric, self.writes, self.failure = program, metric, False, None
        self.times, self.counts, self.cpu, self.ended = [], [], [], threading.Event()
        self.thread = threading.Thread(target=self.follow)
        self.thread.start()

    def follow(self):
        fresh = self.metric.with_suffix(".new")
        while not self.ended.wait(LOOK):
            if len(self.times) % 20 == 0:
                processes = self.program.processes()
            try:
                done = self.program.count()
            except (OSError, ValueError) as error:
                self.failure = error
                return
            self.times.append(time.monotonic())
            self.counts.append(done)
            self.cpu.append(sum(map(cpu_seconds, processes)))
            if self.writes:
                fresh.write_text(f"{done}\n")
                fresh.rename(self.metric)

    def close(self):
        self.ended.set()
        self.thread.join()

    def at(self, moment):
        """The count at a moment, between two looks."""
        return between(self.times, self.counts, moment)

    def speed(self, begin, end):
        return (self.at(end) - self.at(begin)) / (end - begin)

    def speed_of_cpu(self, begin, end):
        """Work a second of the program's own processor time."""
        used = between(self.times, self.cpu, end) - between(self.times, self.cpu, begin)
        return (self.at(end) - self.at(begin)) / used if used > 0 else 0.0

    def halves(self, begin, end):
        """Work a second in each half second."""
        steps = int((end - begin) / 0.5)
        return [self.speed(begin + step * 0.5, begin + (step + 1) * 0.5) for step in range(steps)]


def between(times, values, moment):
    at = min(max(bisect.bisect_left(times, moment), 1), len(times) - 1)
    share = (moment - times[at - 1]) / (times[at] - times[at - 1])
    return values[at - 1] + min(max(share, 0.0), 1.0) * (values[at] - values[at - 1])


def slowest(halves):
    """The slowest second and the median, of work a second in each half second."""
    middle = statistics.median(halves)
    least = min(map(statistics.fmean, zip(halves, halves[1:])))
    return {"median": middle, "slowest_second": least, "slowest_over_median": least / middle if middle else None}


# ---- the interval while it runs: Terrace tells its own at the end ----


BETS = [(2.0, 0.4), (1.0, 0.3), (0.5, 0.2), (0.25, 0.1)]


def evidence(differences, sign, supposed):
    total = 0.0
    for bet, weight in BETS:
        sizes = won = 0.0
        for number, difference in enumerate(differences, 1):
            off = difference - supposed
            sizes += abs(off)
            if sizes > 0.0:
                won += math.log1p(max(math.tanh(sign * bet * off * number / sizes), -1 + 1e-12))
        total += weight * math.exp(min(won, 700.0))
    return total


def interval(differences, error=0.05):
    """As crates/tuning/src/trial/sequence.rs has it, for when to stop; None while an end is open."""
    means = [(one + other) / 2 for at, one in enumerate(differences) for other in differences[at:]]
    if not means:
        return None
    centre = statistics.median(means)
    reach = 8 * max(max(abs(one - centre) for one in differences), abs(centre) * 1e-6, 1e-9)

    def end(sign, side):
        refuted = lambda effect: evidence(differences, sign, effect) >= 1 / error
        inside, outside = centre, centre + side * reach
        if not refuted(outside):
            return None
        for _ in range(24):
            middle = (inside + outside) / 2
            inside, outside = (inside, middle) if refuted(middle) else (middle, outside)
        return math.expm1(outside)

    ends = end(1.0, -1), end(-1.0, 1)
    return None if None in ends else ends


def signed_rank(differences):
    """The Hodges-Lehmann estimate and Wilcoxon's interval of 95 %, as gains. For runs that end by time: it takes no looks before the end."""
    means = sorted((one + other) / 2 for at, one in enumerate(differences) for other in differences[at:])
    count = len(differences)
    off = int(count * (count + 1) / 4 - 1.96 * math.sqrt(count * (count + 1) * (2 * count + 1) / 24))
    if off < 0 or not means:
        return None, None, None
    return math.expm1(statistics.median(means)), math.expm1(means[off]), math.expm1(means[-1 - off])


class Terrace:
    """`terrace attach`, and what it says of its windows."""

    def __init__(self, pid, options, place, metric, guard):
        self.report, self.guard, self.lines, self.windows = Path(place, "report.json"), guard, [], []
        self.halves = LEFT_ALONE in rounds.run([TERRACE, "attach", "--help"])
        self.words = ["attach", "--pid", str(pid), *options, "--metric", f"file:{metric}", "--metric-window", f"{WINDOW}s"]
        self.words += [LEFT_ALONE, "50%"] if self.halves else []
        self.began = self.harm = None
        command = [TERRACE, *self.words, "--verbose", "--quiet", "--json-file", str(self.report)]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True)
        self.noted = ("terrace", self.process.pid, start_time(self.process.pid))
        guard.note(*self.noted)
        self.thread = threading.Thread(target=self.read)
        self.thread.start()

    def read(self):
        for line in self.process.stderr:
            now = time.monotonic()
            if found := BEGINS.search(line):
                self.began = self.began or now
                self.windows.append((now, found[1] == "managed"))
            elif "managing slows the program down" in line:
                self.harm = line.strip()
            else:
                self.lines.append(line.rstrip())

    def pairs(self, speed, first):
        """Differences of logarithms of `speed` in the windows from `first` on, managed less left alone, as far as two windows follow that are over."""
        speeds = [(managed, speed(at + SETTLING, end)) for (at, managed), (end, _) in zip(self.windows[first:], self.windows[first + 1 :])]
        found, at = [], 0
        while at + 1 < len(speeds):
            (managed, one), (other_managed, other) = speeds[at : at + 2]
            if managed == other_managed or min(one, other) <= 0:
                at += 1
                continue
            found.append(math.log(one / other) * (1 if managed else -1))
            # Two windows that do not count follow a pair where a fourth is left alone.
            at += 2 if self.halves or len(found) < 6 else 4
        return found

    def stop(self):
        """Ends it, which brings back what it has moved; its report."""
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(timeout=300)
        self.thread.join()
        if code:
            raise Failed(f"terrace attach ended with {code}:\n" + "\n".join(self.lines[-10:]))
        return json.loads(self.report.read_text(), object_hook=lambda found: {key: found[key] for key in found if key != "heat_map"})

    def close(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(timeout=300)
        finally:
            self.guard.done(*self.noted)
            self.thread.join(timeout=5)


# ---- accounts ----


class Account:
    """What Terrace cost the program between two moments of its run."""

    def __init__(self, report, cpu):
        self.cpu = cpu
        self.times = [point["seconds"] for point in report["timeline"]]
        self.lost = [point["lost_seconds"] for point in report["timeline"]]

    def share(self, begin, end):
        """As the bound takes it: of the time, or of the CPU time where several cores make that more."""
        lost = between(self.times, self.lost, end) - between(self.times, self.lost, begin)
        used = between(*self.cpu, end) - between(*self.cpu, begin)
        return lost / max(end - begin, used)

    def greatest(self, begin, end):
        """The greatest of any window of 30 s, and when it began."""
        starts = [at for at in self.times if begin <= at and at + ACCOUNT <= end]
        found = max(((self.share(at, at + ACCOUNT), at) for at in starts), default=None)
        return found and {"share": found[0], "at_seconds": found[1]}


# ---- a run ----


def one_run(name, options, guard):
    """Runs a program; its line."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("1")
    load = os.getloadavg()[0]
    shared = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(tempfile.TemporaryDirectory())
        metric = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=shared)), "done")
        stack.enter_context(swap_to_ourselves())
        if name == "scatter":
            stack.enter_context(huge_pages("always"))
        with contextlib.ExitStack() as running:
            program = PROGRAMS[name](place, guard, running)
            work = Work(program, metric)
            running.callback(work.close)
            line = under_coin(name, program, work, place, metric, options, guard)
        return {**line, "said": program.said(), "load_average_before": load}


def under_coin(name, program, work, place, metric, options, guard):
    """A program that runs, alone and then under Terrace."""

    def wait(until, over=lambda: False):
        while time.monotonic() < until and not over():
            if work.failure or program.process.poll() is not None or program.load.poll() is not None:
                raise Failed(f"the program or its load ended: {work.failure or ''}")
            if terrace and terrace.process.poll() is not None:
                raise Failed("terrace attach ended:\n" + "\n".join(terrace.lines[-10:]))
            now = time.monotonic()
            cpu[0].append(now)
            cpu[1].append(sum(map(cpu_seconds, family(program.process.pid))))
            time.sleep(min(0.5, max(0.0, until - now)))

    terrace, cpu = None, ([], [])
    began = time.monotonic()
    wait(began + ALONE)
    alone_until = time.monotonic()
    terrace = Terrace(program.process.pid, program.options, place, metric, guard)
    try:
        wait(alone_until + 60, lambda: terrace.began)
        if not terrace.began:
            raise Failed("terrace attach began no window within a minute")
        managed_from = terrace.began
        wait(managed_from + START)
        # A metric that comes as a window begins is read in that one; the next counts.
        known = len(terrace.windows)
        wait(time.monotonic() + 3 * WINDOW, lambda: len(terrace.windows) > known)
        first, steady_from, work.writes = len(terrace.windows), time.monotonic(), True

        def narrow():
            if time.monotonic() < managed_from + LEAST_MINUTES * 60:
                return False
            found = interval(terrace.pairs(work.speed, first))
            return found and 100 * (found[1] - found[0]) < options.width

        why, until = "time", managed_from + options.minutes * 60
        while time.monotonic() < until and why == "time":
            known = len(terrace.windows)
            wait(until, lambda: len(terrace.windows) > known or terrace.harm)
            why = "harm" if terrace.harm else "narrow" if narrow() else "time"
        differences, steady_until = terrace.pairs(work.speed, first), time.monotonic()
        of_cpu = terrace.pairs(work.speed_of_cpu, first)
        report = terrace.stop()
        gone = time.monotonic()
    finally:
        terrace.close()
    command = " ".join(["terrace", *terrace.words]).replace(str(program.process.pid), "PID").replace(str(metric), "DONE")
    terrace = None
    wait(gone + AFTER)
    proof = {key: value for key, value in report["proof"].items() if key != "metric"}
    since = lambda moment: moment - managed_from
    account = Account(report, ([since(at) for at in cpu[0]], cpu[1]))
    rounded = lambda values: [float(f"{value:.4g}") for value in values]
    of_start = slowest(work.halves(managed_from, managed_from + START))
    of_steady = slowest(work.halves(steady_from, steady_until))
    of_end = slowest(work.halves(steady_until, gone + AFTER))
    return {
        "program": name,
        "command": command,
        "alone": slowest(work.halves(began + 1, alone_until)),
        "start": {**of_start, "seconds": START, "share_of_program": account.share(0, START)},
        "steady": {
            **of_steady,
            "seconds": steady_until - steady_from,
            "ended_by": why,
            "proof": proof,
            "interval_of_script": interval(differences),
            "differences_of_script": rounded(differences),
            "work_a_cpu_second": {"differences": rounded(of_cpu), **dict(zip(("gain", "gain_low", "gain_high"), signed_rank(of_cpu)))},
            "share_of_program": account.share(since(steady_from), since(steady_until)),
            "greatest_in_30_s": account.greatest(START, since(steady_until)),
            "saved_bytes_at_end": report["fast_bytes_saved_end"],
            "peak_footprint_bytes": report["target"]["peak_footprint_bytes"],
        },
        "end": {
            "ending_seconds": report["cost"]["ending_seconds"],
            "came_back_bytes": report["swap_end"]["swapped_bytes"],
            "leave_seconds": gone - steady_until,
            "slowest_second_over_steady_median": of_end["slowest_second"] / of_steady["median"],
        },
        "whole": {
            "cost": report["cost"],
            "moved_pages": report["moved_pages"],
            "refaults": report["refaults"],
            "page_outs_seconds": report["page_outs_seconds"],
            "max_slowdown": report["max_slowdown"],
        },
        "half_seconds": {"from_seconds": since(began), "work_a_second": rounded(work.halves(began, gone + AFTER))},
        "timeline": {
            key: [round(point[key], 2) for point in report["timeline"][::5]]
            for key in ("seconds", "saved_bytes", "resident_bytes", "demoted_pages", "promoted_pages", "refaults")
        },
        "digests": {source: digest(source) for source in SOURCES},
        "machine": processor(),
        "cpus": os.cpu_count(),
        "kernel": platform.release(),
        "date": today(),
    }


# ---- the table ----


def percent(share, digits=1):
    return "" if share is None else f"{100 * share:.{digits}f} %"


def signed(share):
    return f"{100 * share:+.1f} %"


HEAD = [
    "program", "start-up: slowest second, of the median (alone)", "steady state: by being managed", "work a CPU second", "pairs", "ended by", "account", "greatest in 30 s", "saved at its end",
    "end: came back, MiB", "took, s", "slowest second",
]


def row(line):
    steady, proof, end = line["steady"], line["steady"]["proof"], line["end"]
    low, high = proof["gain_low"], proof["gain_high"]
    effect = "" if proof["gain"] is None else signed(proof["gain"]) + ("" if low is None else f" ({signed(low)} to {signed(high)})")
    of_cpu = steady.get("work_a_cpu_second", {"gain": None})
    greatest = steady["greatest_in_30_s"]
    return [
        line["program"],
        f"{line['start']['slowest_over_median']:.2f} ({line['alone']['slowest_over_median']:.2f})",
        effect,
        "" if of_cpu["gain"] is None else f"{signed(of_cpu['gain'])} ({signed(of_cpu['gain_low'])} to {signed(of_cpu['gain_high'])})",
        proof["windows"] // 2,
        steady["ended_by"],
        percent(steady["share_of_program"], 2),
        percent(greatest and greatest["share"], 2),
        percent(steady["saved_bytes_at_end"] / steady["peak_footprint_bytes"], 0),
        f"{end['came_back_bytes'] / 2**20:.0f}",
        f"{end['leave_seconds']:.1f}",
        f"{end['slowest_second_over_steady_median']:.2f}",
    ]


README_PROGRAMS = ["redis-tenth", "hot-cold-blocks", "redis-zipf"]


def not_in_readme():
    """Figures of README's table that the newest folder of runs does not give, as they would stand there."""
    table = [line for line in (ROOT / "README.md").read_text().splitlines() if line.startswith("| ")]
    folder = sorted(ROOT.glob("benchmarks/runs/*-coin"))[-1]
    lines = [line for file in sorted(folder.glob("*.jsonl")) for line in read(file)]
    for program in README_PROGRAMS:
        for line in (line for line in lines if line["program"] == program):
            effect = row(line)[2]
            figures = [effect.replace(" %", "").replace(" (", " % ("), percent(line["steady"]["share_of_program"])]
            if not any(all(figure in text for figure in figures) for text in table):
                yield f"{program}: {figures}, of {folder.name}"


def read(file):
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def main():
    words = parser(__doc__)
    words.add_argument("--out", type=Path, default=ROOT / f"benchmarks/runs/{today()}-coin/coin.jsonl", help="the lines (default: benchmarks/runs/DATE-coin/coin.jsonl)")
    words.add_argument("--programs", default=",".join(PROGRAMS), help=f"of {', '.join(PROGRAMS)}")
    words.add_argument("--minutes", type=float, default=20.0, help="under Terrace at most, start-up included (default: 20)")
    words.add_argument("--width", type=float, default=1.5, help="end a program when its interval is narrower, in points (default: 1.5)")
    words.add_argument("--page", action="store_true", help="print the table of --out, and run nothing")
    words.add_argument("--check", action="store_true", help="fail if README says other figures than the newest committed runs, and run nothing")
    options = words.parse_args()
    if options.check:
        wrong = list(not_in_readme())
        for figure in wrong:
            print(f"README.md does not say {figure}")
        sys.exit(bool(wrong))
    if options.page:
        if not read(options.out):
            sys.exit(f"coin.py: --out {options.out}: no lines there")
        return print(rounds.table(HEAD, map(row, read(options.out))))
    names = options.programs.split(",")
    for name in set(names) - set(PROGRAMS):
        sys.exit(f"coin.py: --programs {name}: there are {', '.join(PROGRAMS)}")
    if not 1.5 <= options.minutes <= MOST_MINUTES:
        sys.exit(f"coin.py: --minutes {options.minutes:g}: expected 1.5 to {MOST_MINUTES:.0f}; Terrace begins its count again after 128 pairs")
    ready(root=True)
    for one in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(one, lambda *_: sys.exit("coin.py: ended by a signal; the same command goes on from here"))
    subprocess.run(["cc", "-O2", "-o", str(STEADY), str(ROOT / "benchmarks/steady.c")], check=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    guard, failed = Guard(), False
    try:
        for name in names:
            if name in {line["program"] for line in read(options.out) if line["machine"] == processor()}:
                continue
            if why := missing(name):
                print(f"{name} is left out: {why}", file=sys.stderr)
                continue
            try:
                if name in MADE:
                    COLLECTED.mkdir(exist_ok=True)
                    subprocess.run([str(word) for word in MADE[name]], check=True, cwd=ROOT / "benchmarks")
                line = one_run(name, options, guard)
            except (Failed, OSError, subprocess.SubprocessError) as error:
                failed = True
                print(f"{name}: {error}", file=sys.stderr, flush=True)
                continue
            with options.out.open("a") as out:
                out.write(json.dumps(line).replace(f"{ROOT}/", "") + "\n")
            print(rounds.row(row(line)), flush=True)
            if line["said"].get("wrong"):
                failed = True
                print(f"{name}: {line['said']['wrong']} of its words were not what it wrote", file=sys.stderr, flush=True)
    finally:
        guard.close()
    sys.exit(failed)


if __name__ == "__main__":
    main()
