#!/usr/bin/env python3
"""Programs under each manager of memory, one run after the other, in balanced order: what was saved, and what the program lost.

    sudo benchmarks/campaign.py [--out FILE] [--programs A,B] [--managers A,B] [--rounds N] [--minutes N]
    benchmarks/campaign.py --page    writes the committed figures into benchmarks/runs/campaign/tables.md
    benchmarks/campaign.py --check   says what of the code changed since

In: programs and managers as far as they are here (stderr says what is left out), and the runs of FILE: a second call goes on where the first stopped.
Out: a line of FILE as soon as a run is over, with a digest of the code that it measured; FILE is target/campaign.jsonl unless --out names the committed ones,
benchmarks/runs/campaign/runs.jsonl. Must not: compare runs of two machines, or leave swap or a group behind. Needs root; `make build` first.

A round is unmanaged, each manager, each manager again from the last to the first, unmanaged: what drifts hits all sides alike. "Saved" is told by the
machine and alike for all: the program's peak resident memory, less what is resident and what the compressed swap occupies, when nine tenths of the run are
over. What the program lost is its own count of work, or its time.
"""

import contextlib
import hashlib
import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import rounds
import traces
from rounds import GIB, REDIS_LOAD, ROOT, TERRACE, hot_cold_command, json_lines, parser, processor, ready, redis_server
from rounds import swap_to_ourselves, today, wait_for_port

DAMON = Path("/sys/kernel/mm/damon/admin/kdamonds")
LRU = Path("/sys/fs/cgroup/memory")
LOADED_FIRST = str(ROOT / "target/loaded_first")
POSTGRES = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
# What a live figure depends on, and what may change without making it stale: `path digest reason` a line.
SOURCES = ["crates/linux/src", "crates/bpf/src", "crates/core/src", "crates/policies/src/age.rs", "crates/policies/src/parts"]
COMMITTED = ROOT / "benchmarks/runs/campaign/runs.jsonl"
PAGE = ROOT / "benchmarks/runs/campaign/tables.md"
BEGIN, END = "<!-- campaign -->", "<!-- end of the campaign -->"


# ---- programs: each starts a process, and says when it is over how much work a second it did ----


def own_count(command):
    """A program that prints its own rate as JSON."""

    def run(begin):
        with tempfile.TemporaryFile("w+") as output:
            program = begin(subprocess.Popen(command, stdout=output))
            program.wait()
            output.seek(0)
            lines = json_lines(output.read())
        if "per_second" in lines[-1]:
            return lines[-1]
        # A workload of the catalogue: its seconds.
        seconds = [line for line in lines if line.get("phase") == "run" and line["operations"]]
        return {"per_second": sum(line["operations"] for line in seconds) / len(seconds)}

    return run


def hot_cold(size, *options):
    return own_count(hot_cold_command(size, 60, *options))


def whole_run(command, **options):
    """A program whose work is done when it ends."""

    def run(begin):
        began = time.monotonic()
        program = begin(subprocess.Popen(command, **options, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        program.wait()
        if code := program.process.returncode:
            sys.exit(f"campaign.py: {' '.join(command)} ended with {code}: run it by hand to see why")
        return {"per_second": 1 / (time.monotonic() - began)}

    return run


def recipe(name, larger):
    """The program of a trace's recipe, on an input that is larger by these replacements."""

    def run(begin):
        recipe = traces.read(name)
        for one, other in larger.items():
            if one not in recipe["input"]:
                sys.exit(f"campaign.py: the input of {name}.toml lacks {one!r} now; say what stands there instead")
            recipe["input"] = recipe["input"].replace(one, other)
        with tempfile.TemporaryDirectory() as place:
            try:
                command, environment, _ = traces.made(recipe, place)
            except traces.Failed as error:
                sys.exit(f"campaign.py: {name}: {error}")
            return whole_run(command, cwd=place, env=environment)(begin)

    return run


def key_value(protocol, port, read, exponent):
    """A server of key-value pairs with 500 MiB of values, of which the first `read` are read."""
    servers = {
        "redis": redis_server(port),
        "memcached": ["memcached", "-p", str(port), "-U", "0", "-l", "127.0.0.1", "-m", "1024", "-t", "1", "-u", "root"],
    }

    def run(begin):
        program = begin(subprocess.Popen(servers[protocol], stdout=subprocess.DEVNULL))
        try:
            wait_for_port(port)
            load = [REDIS_LOAD, "--protocol", protocol, "--port", str(port), "--value", "1KiB"]
            subprocess.run([*load, "--data", "500MiB", "--fill", "500MiB"], check=True)
            reads = [*load, "--data", read, "--seconds", "100", "--warm", "10", "--connections", "1", "--exponent", exponent]
            result = json.loads(subprocess.run(reads, check=True, capture_output=True, text=True).stdout)
            return {"per_second": result["requests_per_second"], **result}
        finally:
            program.over()

    return run


def postgres(port):
    """PostgreSQL with 512 MiB of shared buffers, filled, of which pgbench reads the first tenth. A connection that read all rows once stays
    open: nobody but processes that map a page can be asked to let it go."""

    def run(begin):
        bin = POSTGRES[-1]
        with tempfile.TemporaryDirectory() as place:
            shutil.chown(place, "postgres")
            user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
            call = lambda *words: subprocess.run([*user, *map(str, words)], check=True, capture_output=True, text=True, cwd=place)
            call(bin / "initdb", "-D", f"{place}/data", "-A", "trust")
            settings = ["shared_buffers=512MB", "huge_pages=off", "autovacuum=off", f"port={port}", f"unix_socket_directories={place}"]
            server = [bin / "postgres", "-D", f"{place}/data", *(word for setting in settings for word in ("-c", setting))]
            program = begin(subprocess.Popen([*user, *map(str, server)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
            try:
                while not Path(f"{place}/.s.PGSQL.{port}").exists():
                    time.sleep(0.1)
                there = ["-h", place, "-p", port, "postgres"]
                call(bin / "pgbench", "-i", "-q", "-s", 30, *there)
                call(bin / "psql", "-c", "create extension pg_prewarm", "-c", "select pg_prewarm('pgbench_accounts')", *there)
                idle = [bin / "psql", "-c", "select sum(abalance) from pgbench_accounts", "-c", "select pg_sleep(1000)", *there]
                subprocess.Popen([*user, *map(str, idle)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=place)
                Path(f"{place}/first_tenth.sql").write_text("\\set id random(1, 300000)\nselect abalance from pgbench_accounts where aid = :id;\n")
                told = call(bin / "pgbench", "-n", "-f", f"{place}/first_tenth.sql", "-c", 1, "-T", 90, *there).stdout
                rate = next(line for line in told.splitlines() if line.startswith("tps = "))
                return {"per_second": float(rate.split()[2])}
            finally:
                program.over()

    return run


PROGRAMS = {
    "hot-cold": hot_cold("1GiB", "layout=scattered"),
    "hot-cold-blocks": hot_cold("1GiB", "layout=contiguous"),
    "hot-set-moves": hot_cold("512MiB", "layout=contiguous", "shift_seconds=20"),
    "loaded-first": own_count([LOADED_FIRST, "2048", "40", "60", "4"]),
    "loaded-12gib": own_count([LOADED_FIRST, "12288", "29", "90", "4"]),
    "uniform": own_count([LOADED_FIRST, "512", "5", "40", "1"]),
    "redis-tenth": key_value("redis", 7393, "50MiB", "0"),
    "redis-zipf": key_value("redis", 7394, "500MiB", "0.99"),
    "memcached": key_value("memcached", 7396, "50MiB", "0"),
    "postgres": postgres(7395),
    # Some 4,000 functions; 300,000 texts and a million queries.
    "compiler": recipe("compiler", {"range(60)": "range(4000)", "randrange(i)": "randrange(max(0, i - 20), i)"}),
    "python": recipe("python", {"24_000": "300_000", "18_000": "1_000_000"}),
    "pagerank": whole_run([TERRACE, "workload", "gap-pr", "--size", "640MiB"]),
}
# Those that need a server of another's.
SERVERS = {"redis-tenth": "redis-server", "redis-zipf": "redis-server", "memcached": "memcached"}


# ---- managers: each stands beside a process for as long as the context lasts, and says what it cost ----


class Beside:
    """The program as its manager sees it: a process, the memory of it and of its children sampled twice a second."""

    def __init__(self, process, manager):
        self.process, self.samples, self.manager = process, [], manager
        self.shared_before = meminfo_bytes("Shmem")
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()

    def watch(self):
        while not self.ended.wait(0.5):
            own = sum(status_bytes(pid, "RssAnon") for pid in family(self.process.pid))
            if not own:
                break
            resident = own + max(meminfo_bytes("Shmem") - self.shared_before, 0)
            self.samples.append({"resident": resident, "occupied": self.manager.occupied(), "manager_cpu": self.manager.cpu()})

    def wait(self):
        self.process.wait()
        self.ended.set()
        self.thread.join()

    def over(self):
        self.ended.set()
        self.thread.join()
        self.process.send_signal(signal.SIGINT)
        self.wait()


def status_bytes(pid, key):
    """A field of /proc/PID/status; 0 when the process is gone."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return field_bytes(f"/proc/{pid}/status", key)
    return 0


def meminfo_bytes(key):
    return field_bytes("/proc/meminfo", key)


def field_bytes(file, key):
    return next((int(line.split()[1]) << 10 for line in Path(file).read_text().splitlines() if line.startswith(f"{key}:")), 0)


def cpu_seconds(pid):
    """User and system time of a process so far; 0 when it is gone."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def family(pid):
    """A process and all that it started."""
    found = [pid]
    for one in found:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found += map(int, Path(f"/proc/{one}/task/{one}/children").read_text().split())
    return found


class Nobody:
    name = "unmanaged"

    def begin(self, process):
        self.pid = process.pid
        return Beside(process, self)

    def occupied(self):
        return 0

    def cpu(self):
        return 0.0

    def end(self):
        return {}

    def command(self):
        return ""


class Terrace(Nobody):
    def __init__(self, policy):
        self.name, self.policy = f"terrace-{policy}", policy

    def begin(self, process):
        self.report = tempfile.NamedTemporaryFile(suffix=".json")
        words = ["attach", "--pid", str(process.pid), "--policy", self.policy, "--shared", "--quiet", "--json-file", self.report.name]
        self.process = subprocess.Popen([TERRACE, *words], stderr=subprocess.PIPE, text=True)
        return super().begin(process)

    def command(self):
        return f"terrace attach --pid PID --policy {self.policy} --shared"

    def occupied(self):
        found = [path for path in Path("/sys/block").glob("zram*") if path.name in Path("/proc/swaps").read_text()]
        return sum(int((path / "mm_stat").read_text().split()[2]) for path in found)

    def cpu(self):
        return cpu_seconds(self.process.pid)

    def end(self):
        said = self.process.communicate(timeout=60)[1]
        if self.process.returncode:
            sys.exit(f"terrace attach ended with {self.process.returncode}:\n{said}")
        report = json.loads(Path(self.report.name).read_text())
        kept = ("fast_bytes_saved_end", "fast_bytes_saved_mean", "refaults", "cost", "moved_pages", "throttled_seconds")
        return {"report": {key: report[key] for key in kept}}


class Zram:
    """Compressed swap for a peer, like the one Terrace sets up: a device of our own, lz4, taken away again."""

    def __init__(self, size):
        self.number = Path("/sys/class/zram-control/hot_add").read_text().strip()
        self.sys = Path(f"/sys/block/zram{self.number}")
        (self.sys / "comp_algorithm").write_text("lz4")
        (self.sys / "disksize").write_text(str(size))
        subprocess.run(["mkswap", f"/dev/zram{self.number}"], check=True, capture_output=True)
        subprocess.run(["swapon", "-p", "100", f"/dev/zram{self.number}"], check=True)

    def occupied(self):
        return int((self.sys / "mm_stat").read_text().split()[2])

    def close(self):
        subprocess.run(["swapoff", f"/dev/zram{self.number}"], check=True)
        (self.sys / "reset").write_text("1")
        Path("/sys/class/zram-control/hot_remove").write_text(self.number)


class WithSwap(Nobody):
    """A manager that finds swap set up for it."""

    def begin(self, process):
        self.zram = Zram(3 * GIB)
        try:
            self.start(process)
        except BaseException:
            self.zram.close()
            raise
        return super().begin(process)

    def occupied(self):
        return self.zram.occupied()

    def end(self):
        try:
            self.stop()
        finally:
            self.zram.close()
        return {}


class Limited(WithSwap):
    """A manager that limits the memory of a group of cgroup version 1, of which the program is all."""

    def start(self, process):
        self.group = LRU / "terrace-campaign"
        self.group.mkdir()
        (self.group / "tasks").write_text(str(process.pid))

    def limit(self, bytes):
        # A limit below what is in use lets the writer reclaim, and fails when it cannot.
        with contextlib.suppress(OSError):
            (self.group / "memory.limit_in_bytes").write_text(str(int(bytes)))

    def stop(self):
        self.group.rmdir()


class KernelLru(Limited):
    """The kernel's reclaim under a limit that leaves three tenths of what is resident when it is set, 15 s after the start."""

    name = "kernel-lru"

    def command(self):
        return "memory.limit_in_bytes at three tenths of what is resident after 15 s"

    def start(self, process):
        super().start(process)
        self.timer = threading.Timer(15, lambda: self.limit((status_bytes(process.pid, "VmRSS") or GIB) * 0.3))
        self.timer.start()

    def stop(self):
        self.timer.cancel()
        super().stop()


class Senpai(Limited):
    """What senpai does (github.com/facebookincubator/senpai, its defaults): each second the limit follows what is in use and the pressure.
    Below 10 ms of stalls in six seconds it probes, at most 1 % lower each time; above it backs off. Here the pressure is the machine's, of which the program is
    all."""

    name = "senpai"
    INTERVAL, TOLERATED, MOST_PROBE, MOST_BACKOFF, PROBE, BACKOFF = 6, 10_000, 0.01, 1.0, 10, 20

    def command(self):
        return "memory.limit_in_bytes by senpai's rule: 10 ms of pressure in 6 s, probes of at most 1 %"

    def start(self, process):
        super().start(process)
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.follow)
        self.thread.start()

    @staticmethod
    def stalled():
        """Microseconds for which some task waited for memory, since the machine started."""
        return int(Path("/proc/pressure/memory").read_text().split("total=")[1].split()[0])

    def in_use(self):
        return int((self.group / "memory.usage_in_bytes").read_text())

    def follow(self):
        before, waited, since, limit = self.stalled(), 0, 0, meminfo_bytes("MemTotal")
        while not self.ended.wait(1):
            now = self.stalled()
            waited, before, since = waited + now - before, now, since + 1
            if waited > self.TOLERATED:
                limit *= 1 + min((waited / self.TOLERATED / self.BACKOFF) ** 2 * self.MOST_BACKOFF, self.MOST_BACKOFF)
            elif since >= self.INTERVAL:
                limit = min(limit, self.in_use()) * (1 - min((self.TOLERATED / max(waited, 1) / self.PROBE) ** 2 * self.MOST_PROBE, self.MOST_PROBE))
            else:
                continue
            waited, since = 0, 0
            self.limit(limit)

    def stop(self):
        self.ended.set()
        self.thread.join()
        super().stop()


class Damon(WithSwap):
    """DAMON's own reclaim of a process: what was not accessed for 12 s is paged out, 64 MiB a second at most."""

    name = "damon"

    def command(self):
        return "DAMON, operations vaddr, scheme pageout of regions without an access for 12 s, quota 64 MiB a second"

    def start(self, process):
        (DAMON / "nr_kdamonds").write_text("1")
        (DAMON / "0/contexts/nr_contexts").write_text("1")
        context = DAMON / "0/contexts/0"
        (context / "operations").write_text("vaddr")
        (context / "targets/nr_targets").write_text("1")
        (context / "targets/0/pid_target").write_text(str(process.pid))
        (context / "schemes/nr_schemes").write_text("1")
        scheme = context / "schemes/0"
        (scheme / "action").write_text("pageout")
        pattern = {"sz/min": 4096, "sz/max": 2**63 - 1, "nr_accesses/min": 0, "nr_accesses/max": 0, "age/min": 120, "age/max": 2**31}
        for key, value in pattern.items():
            (scheme / "access_pattern" / key).write_text(str(value))
        (scheme / "quotas/bytes").write_text(str(64 << 20))
        (scheme / "quotas/reset_interval_ms").write_text("1000")
        (DAMON / "0/state").write_text("on")
        self.kdamond = int((DAMON / "0/pid").read_text())

    def cpu(self):
        return cpu_seconds(self.kdamond)

    def stop(self):
        with contextlib.suppress(OSError):
            (DAMON / "0/state").write_text("off")
        (DAMON / "nr_kdamonds").write_text("0")


MEMTIERD = """\
policy:
  name: age
  config: |
    intervalms: 5000
    pidwatcher:
      name: pidlist
      config: |
        pids: [{pid}]
    swapoutms: 10000
    tracker:
      name: finder
      config: |
        regionsupdatems: 5000
    mover:
      intervalms: 20
      bandwidth: 200
"""


class Memtierd(WithSwap):
    name = "memtierd"

    def command(self):
        return "memtierd 0.1.1, policy age, tracker finder, swapoutms 10000"

    def start(self, process):
        self.config = tempfile.NamedTemporaryFile("w", suffix=".yaml")
        self.config.write(MEMTIERD.format(pid=process.pid))
        self.config.flush()
        words = [os.environ["MEMTIERD"], "-config", self.config.name]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def cpu(self):
        return cpu_seconds(self.process.pid)

    def stop(self):
        self.process.terminate()
        self.process.wait()


def managers():
    """Those that are here; for each other one line says what would bring it."""
    found = [Nobody(), Terrace("age"), Terrace("terrace")]
    if (LRU / "memory.limit_in_bytes").exists():
        found += [KernelLru(), Senpai()]
    else:
        print("kernel-lru and senpai are left out: no memory controller of cgroups version 1 here", file=sys.stderr)
    if not DAMON.exists():
        print("damon is left out: this kernel has no /sys/kernel/mm/damon/admin", file=sys.stderr)
    elif (DAMON / "nr_kdamonds").read_text().strip() != "0":
        print("damon is left out: somebody runs a kdamond already (/sys/kernel/mm/damon/admin/kdamonds)", file=sys.stderr)
    else:
        found.append(Damon())
    if "MEMTIERD" in os.environ:
        found.append(Memtierd())
    else:
        print("memtierd is left out: MEMTIERD names no binary (docs/lab.md says how it is built)", file=sys.stderr)
    return {manager.name: manager for manager in found}


def one_run(program, manager):
    started = []

    def begin(process):
        started.append(manager.begin(process))
        return started[0]

    # Each begins with the memory that files take given back: without a free huge page no block leaves whole.
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("1")
    load = os.getloadavg()[0]
    with swap_to_ourselves():
        try:
            result = PROGRAMS[program](begin)
        finally:
            manager_says = manager.end() if started else {}
    samples = started[0].samples
    if not samples:
        sys.exit(f"campaign.py: {program} ended before its memory was seen; does another server use its port?")
    peak = max(sample["resident"] for sample in samples)
    # Programs of the catalogue end by reading all their memory, to verify it: "at the end" is before that.
    last = samples[len(samples) * 9 // 10]
    return {
        "program": program,
        "manager": manager.name,
        "command": manager.command(),
        "result": result,
        "peak_bytes": peak,
        "saved_end_bytes": peak - last["resident"] - last["occupied"],
        "saved_mean_bytes": statistics.mean(peak - sample["resident"] - sample["occupied"] for sample in samples),
        "resident_mib_each_5_s": [sample["resident"] >> 20 for sample in samples[::10]],
        "manager_cpu_seconds": samples[-1]["manager_cpu"],
        "load_average_before": load,
        "digests": {source: digest(source) for source in SOURCES},
        "machine": processor(),
        "kernel": platform.release(),
        "date": today(),
        **manager_says,
    }


def digest(source):
    """Of the Rust and C files below a path, without their tests' own files."""
    place = ROOT / source
    files = sorted(place.rglob("*")) if place.is_dir() else [place]
    of = hashlib.sha256()
    for file in files:
        if file.suffix in (".rs", ".c", ".h") and not file.stem.endswith("tests"):
            of.update(file.read_bytes())
    return of.hexdigest()[:12]


def stale(runs):
    """What of the code is another than what these runs measured."""
    now = {source: digest(source) for source in SOURCES}
    of_terrace = [run for run in runs if run["manager"].startswith("terrace")]
    changed = {source for run in of_terrace for source, then in run["digests"].items() if now.get(source) != then}
    return sorted(changed)


def by_machine(runs):
    """The runs of each machine, the latest first: those of two are never compared."""
    machines = {}
    for run in runs:
        machines.setdefault(run["machine"], []).append(run)
    return sorted(machines.values(), key=lambda of: runs.index(of[-1]), reverse=True)


def cell(runs, program, manager):
    """Of one machine's runs those of a program under a manager: their work a second as a share of that of unmanaged runs, and medians of the rest."""
    of = [run for run in runs if (run["program"], run["manager"]) == (program, manager)]
    alone = [run["result"]["per_second"] for run in runs if (run["program"], run["manager"]) == (program, "unmanaged")]
    unmanaged = statistics.median(alone) if alone else float("nan")
    accounts = [run["report"]["cost"]["share_of_target"] for run in of if "report" in run]
    return {
        "ratios": [run["result"]["per_second"] / unmanaged for run in of],
        "saved": statistics.median(run["saved_end_bytes"] / run["peak_bytes"] for run in of),
        "cpu": statistics.median(run["manager_cpu_seconds"] for run in of),
        "account": statistics.median(accounts) if accounts else None,
        "slowest": [run["result"]["slowest_tenth_ns"] for run in of if "slowest_tenth_ns" in run["result"]],
    }


def table(runs):
    """The runs of one machine as a Markdown table: medians, with all values of the throughput."""
    lines = []
    cells = dict.fromkeys((run["program"], run["manager"]) for run in runs)
    for program, manager in sorted(cells, key=lambda key: list(PROGRAMS).index(key[0])):
        of = cell(runs, program, manager)
        values = ", ".join(f"{ratio:.3f}" for ratio in of["ratios"])
        if of["slowest"]:
            values += f"; slowest tenth of a second: {statistics.median(of['slowest']):.0f} ns an operation"
        # A program that gives memory back before it ends is below its peak by itself.
        shown = "" if manager == "unmanaged" and of["saved"] < 0.01 else f"{of['saved']:.0%}"
        cost = "" if manager in ("unmanaged", "kernel-lru", "senpai") else f"{of['cpu']:.2f} s"
        account = "" if of["account"] is None else f"{of['account']:.1%}"
        lines.append([program, manager, shown, f"{statistics.median(of['ratios']):.3f} ({values})", account, cost])
    return rounds.table(["program", "manager", "saved at the end", "throughput, unmanaged = 1 (all runs)", "account", "manager's CPU"], lines)


def page(runs):
    """Writes the tables into their place in benchmarks/runs/campaign/tables.md, one for each machine."""
    text = PAGE.read_text()
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    parts = []
    for of in by_machine(runs):
        dates = sorted({run["date"] for run in of})
        loads = [run["load_average_before"] for run in of]
        when = f"{dates[0]} to {dates[-1]}" if len(dates) > 1 else dates[0]
        load = f"load average before a run {min(loads):.1f} to {max(loads):.1f}."
        parts.append(f"{len(of)} runs of {when} on {of[0]['machine']}, Linux {of[0]['kernel']}; {load}\n\n{table(of)}\n")
    PAGE.write_text(f"{before}{BEGIN}\n" + "\n".join(parts) + f"{END}{after}")


def main():
    options = parser(__doc__)
    options.add_argument("--out", type=Path, help="the runs: target/campaign.jsonl, and for --page and --check the committed ones")
    options.add_argument("--programs", default=",".join(PROGRAMS))
    options.add_argument("--managers", help="those to run; unmanaged is always among them")
    options.add_argument("--rounds", type=int, default=1, help="balanced rounds: two runs of each manager in each")
    options.add_argument("--minutes", type=float, default=45.0, help="begin no run after so long")
    options.add_argument("--page", action="store_true", help="write the figures of --out into benchmarks/runs/campaign/tables.md, and run nothing")
    options.add_argument("--check", action="store_true", help="say what of the code changed since --out")
    arguments = options.parse_args()
    arguments.out = arguments.out or (COMMITTED if arguments.page or arguments.check else ROOT / "target/campaign.jsonl")
    if (arguments.page or arguments.check) and not arguments.out.is_file():
        sys.exit(f"campaign.py: --out {arguments.out}: no such file; a campaign makes it")
    read = lambda: [json.loads(line) for line in arguments.out.read_text().splitlines()]
    if arguments.page:
        return page(read())
    if arguments.check:
        # Figures have their date and commit beside them; a mend of the code must not wait for hours of runs.
        if changed := stale(read()):
            print(f"docs/performance.md is of earlier code: {', '.join(changed)} changed since; to measure again: sudo benchmarks/campaign.py "
                  f"--out {COMMITTED.relative_to(ROOT)}, then --page")
        return
    ready(root=True)
    unknown = set(arguments.programs.split(",")) - set(PROGRAMS)
    if unknown:
        sys.exit(f"campaign.py: --programs {','.join(unknown)}: there are {', '.join(PROGRAMS)}")
    subprocess.run(["cc", "-O2", "-o", LOADED_FIRST, str(ROOT / "benchmarks/loaded_first.c")], check=True)
    there = managers()
    wanted = arguments.managers.split(",") if arguments.managers else list(there)
    for name in set(wanted) - set(there):
        sys.exit(f"campaign.py: --managers {name}: here are {', '.join(there)}")
    order = ["unmanaged", *(name for name in wanted if name != "unmanaged")]
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    # What another machine ran is not done here.
    mine = lambda: [run for run in read() if run["machine"] == processor()] if arguments.out.exists() else []
    counts = Counter((run["program"], run["manager"]) for run in mine())
    ends = time.monotonic() + arguments.minutes * 60
    for number in range(arguments.rounds):
        for program in arguments.programs.split(","):
            server = SERVERS.get(program)
            if server and not shutil.which(server):
                print(f"{program} is left out: {server} is not installed", file=sys.stderr)
                continue
            if program == "postgres" and not POSTGRES:
                print("postgres is left out: PostgreSQL is not installed", file=sys.stderr)
                continue
            for half, names in enumerate([order, order[::-1]]):
                for name in names:
                    if counts[program, name] > 2 * number + half:
                        continue
                    if time.monotonic() > ends:
                        return print("the time is up; the same command goes on from here")
                    run = one_run(program, there[name])
                    with arguments.out.open("a") as out:
                        text = json.dumps(run).replace(str(ROOT) + "/", "")
                        out.write(text + "\n")
                    saved = run["saved_end_bytes"] / run["peak_bytes"]
                    print(f"{program}, {name}: {run['result']['per_second']:.4g} a second, saved {saved:.0%}", flush=True)
    print(f"\n{table(mine())}")


if __name__ == "__main__":
    main()
