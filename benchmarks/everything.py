#!/usr/bin/env python3
"""Everything on a machine managed at once: redis-server, PostgreSQL and a build at work, and many idle interpreters, under `terrace attach --all`.

    sudo benchmarks/everything.py --out benchmarks/runs/DATE-everything

In: redis-server, redis-benchmark, PostgreSQL (initdb, postgres, pgbench), cc and python3. Out: OUT/everything.json: the report of Terrace with its coin windows, and
every ten seconds what the idle programs hold in memory and in swap. The measure of the windows is what redis-server and PostgreSQL did, each by its own speed before Terrace
began, added up. Must not: leave a program, a folder or swap behind.
"""

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

from rounds import ROOT, TERRACE, keep, parser, ready, redis_server, swap_to_ourselves, wait_for_port

REDIS, POSTGRES = 16401, 16402
INTERPRETER = ROOT / "benchmarks/idle/interpreter.py"
SOURCE = ROOT / "benchmarks/inside/scatter.c"


def redis_commands():
    """Commands that redis-server has processed."""
    with socket.create_connection(("127.0.0.1", REDIS), timeout=5) as link:
        link.sendall(b"INFO stats\r\n")
        text = b""
        while b"total_commands_processed:" not in text or not text.split(b"total_commands_processed:")[1].count(b"\n"):
            text += link.recv(4096)
    return int(re.search(rb"total_commands_processed:(\d+)", text)[1])


class Busy:
    """The programs at work, and how much they have done."""

    def __init__(self, place, stack):
        self.place, self.ended = place, threading.Event()
        self.children = {"redis-server": self.start(redis_server(REDIS))}
        stack.callback(self.end)
        wait_for_port(REDIS)
        subprocess.run(["redis-benchmark", "-p", str(REDIS), "-q", "-t", "set", "-n", "400000", "-r", "200000", "-d", "1024", "-P", "16"], check=True, stdout=subprocess.DEVNULL)
        data = place / "postgres"
        data.mkdir()
        shutil.chown(place, "postgres")
        shutil.chown(data, "postgres")
        found = sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin"))
        self.bin = str(found[-1]) + "/" if found else ""
        self.as_postgres("initdb", "-D", str(data), "-A", "trust")
        words = [f"{self.bin}postgres", "-D", str(data), "-p", str(POSTGRES), "-k", str(place), "-c", "listen_addresses="]
        self.children["postgres"] = self.start(words, user="postgres")
        for _ in range(100):
            if subprocess.run([f"{self.bin}pg_isready", "-q", "-h", str(place), "-p", str(POSTGRES)]).returncode == 0:
                break
            time.sleep(0.2)
        pgbench = ["pgbench", "-h", str(place), "-p", str(POSTGRES), "-U", "postgres"]
        subprocess.run([*pgbench, "-i", "-q", "-s", "20", "postgres"], check=True, capture_output=True)
        load = [*pgbench, "-S", "-c", "2", "-T", "100000", "-l", "--log-prefix", str(place / "transactions"), "postgres"]
        self.children["pgbench"] = self.start(load)
        self.children["redis-benchmark"] = self.start(
            ["redis-benchmark", "-p", str(REDIS), "-q", "-t", "get", "-n", "2000000000", "-r", "200000", "-c", "2"]
        )
        build = f"while :; do cc -O2 -o {place}/built {SOURCE} && echo >>{place}/builds; done"
        self.children["build"] = self.start(["sh", "-c", build])

    @staticmethod
    def start(words, user=None):
        return subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True, user=user)

    def as_postgres(self, name, *words):
        subprocess.run([f"{self.bin}{name}", *words], check=True, capture_output=True, user="postgres", cwd="/")

    def done(self):
        """Commands of redis-server, bytes of the log of PostgreSQL's transactions, builds."""
        logs = sum(path.stat().st_size for path in self.place.glob("transactions*"))
        builds = self.place / "builds"
        return [redis_commands(), logs, builds.stat().st_size if builds.exists() else 0]

    def count(self, path, speeds):
        """Keeps what was done in a file, five times a second."""
        while not self.ended.wait(0.2):
            with contextlib.suppress(OSError):
                did = self.done()
                fresh = path.with_suffix(".new")
                fresh.write_text(f"{sum(one / speed for one, speed in zip(did[:2], speeds)):.6f}\n")
                fresh.rename(path)

    def end(self):
        self.ended.set()
        # All of them first: PostgreSQL ends when its clients have.
        for child in self.children.values():
            if child.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGTERM)
        for child in self.children.values():
            child.wait()


def held(pids):
    """Bytes of anonymous memory and of swap of these programs."""
    sums = [0, 0]
    for pid in pids:
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
        for at, name in enumerate(("RssAnon", "VmSwap")):
            sums[at] += int(re.search(rf"{name}:\s+(\d+)", status)[1]) << 10
    return sums


def main():
    options = parser(__doc__, out=True)
    options.add_argument("--minutes", type=float, default=10.0)
    options.add_argument("--idle", type=int, default=30, help="idle interpreters (default: 30)")
    options.add_argument("--window", default="5s", help="length of a coin window (default: 5s)")
    options = options.parse_args()
    ready(root=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory() as text, contextlib.ExitStack() as stack, swap_to_ourselves():
        place = pathlib.Path(text)
        place.chmod(0o755)
        idle = []
        stack.callback(lambda: [child.kill() for child in idle] and [child.wait() for child in idle])
        for number in range(options.idle):
            idle.append(subprocess.Popen([sys.executable, str(INTERPRETER), str(place / f"{number}.socket"), "60", str(number)]))
        busy = Busy(place, stack)
        while not all((place / f"{number}.socket").exists() for number in range(options.idle)):
            time.sleep(0.5)
        before, began = busy.done(), time.monotonic()
        time.sleep(20)
        after, took = busy.done(), time.monotonic() - began
        speeds = [(did - had) / took for did, had in zip(after, before)]
        metric = place / "done"
        threading.Thread(target=busy.count, args=(metric, speeds[:2]), daemon=True).start()
        wait = time.monotonic() + 10
        while not metric.exists() and time.monotonic() < wait:
            time.sleep(0.1)
        report = place / "report.json"
        words = ["attach", "--all", "--duration", f"{options.minutes:g}m", "--metric", f"file:{metric}", "--metric-window", options.window]
        manager = subprocess.Popen([TERRACE, *words, "--json-file", str(report)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        timeline, start = [], time.monotonic()
        said = []
        reader = threading.Thread(target=lambda: said.append(manager.communicate()))
        reader.start()
        while reader.is_alive():
            resident, swapped = held([child.pid for child in idle])
            timeline.append({"seconds": time.monotonic() - start, "resident_bytes": resident, "swap_bytes": swapped, "done": busy.done()})
            reader.join(10)
        # What is in swap comes back when Terrace ends: the last reading is from before.
        died = [name for name, child in busy.children.items() if child.poll() is not None]
        died += [f"interpreter {number}" for number, child in enumerate(idle) if child.poll() is not None]
        told = json.loads(report.read_text()) if report.exists() else None
        if told:
            told.pop("heat_map", None)
        out, err = said[0]
        result = {
            "exit": manager.returncode, "died": died, "speeds_before": speeds, "timeline": timeline, "stdout": out[-4000:], "stderr": err[-6000:], "report": told,
        }
    most = max(point["swap_bytes"] / max(1, point["swap_bytes"] + point["resident_bytes"]) for point in timeline)
    print(f"exit {manager.returncode}; died: {died or 'none'}; of the idle programs' memory {100 * most:.0f} % was out")
    print(err[-3000:])
    keep(options.out, "everything", result)


if __name__ == "__main__":
    main()
