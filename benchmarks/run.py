#!/usr/bin/env python3
"""Measures Terrace on this machine, against an unmanaged run, the kernel's own LRU, and intel/memtierd.

    sudo benchmarks/run.py NAME [--out DIR] [--pairs N] [--short]

NAME: hot-cold, hot-moves, memtierd, kernel-lru, redis, at-rest, size-tune, size-database, all. Every run is kept raw in DIR as one JSON file, with its
command; the table printed at the end is also written beside it. Ratios are of runs that alternate, so that what else the
machine does hits both sides. Nothing is asserted: a figure is what was seen. Needs root; `make build` first.
"""

import argparse
import contextlib
import datetime
import fcntl
import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TERRACE = os.environ.get("TERRACE", str(ROOT / "target/release/terrace"))
REDIS_LOAD = os.environ.get("REDIS_LOAD", str(ROOT / "target/release/examples/redis_load"))
GIB = 1 << 30


def say(text):
    print(text, flush=True)


@contextlib.contextmanager
def swap_to_ourselves():
    """Swap priorities are global, so whoever sets up swap for a measurement or a test holds this lock (the live tests do, too)."""
    with open(Path(tempfile.gettempdir()) / "terrace-live-swap.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


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


def status_bytes(pid, field):
    """A field of /proc/PID/status in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    return 0


def cpu_seconds(pid):
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def median(values):
    values = [value for value in values if value is not None]
    return statistics.median(values) if values else None


def hot_loop(lines, first, last):
    """Figures of the hot loop between two times of the measured part: mean time of an operation (stalls included) and
    median of the medians (stalls left out)."""
    run = [line for line in lines if line.get("phase") == "run" and line["operations"]]
    if not run:
        return {}
    began = run[0]["seconds"] - 1.0
    window = [line for line in run if first <= line["seconds"] - began <= last]
    operations = sum(line["operations"] for line in window)
    seconds = len(window)
    return {
        "mean_nanoseconds": seconds * 1e9 / operations if operations else None,
        "p50_nanoseconds": median([line["p50_nanoseconds"] for line in window]),
        "p10_nanoseconds": median([line["p10_nanoseconds"] for line in window]),
        "seconds": seconds,
    }


def json_lines(text):
    found = []
    for line in text.splitlines():
        if line.startswith("{"):
            found.append(json.loads(line))
    return found


def workload_command(size, duration, options):
    command = [TERRACE, "workload", "hot-cold", "--size", size, "--duration", f"{duration}s"]
    for option in options:
        command += ["--set", option]
    return command


def managed(command, options=()):
    """A run under Terrace: the program's lines and Terrace's report."""
    with tempfile.NamedTemporaryFile(suffix=".json") as report:
        full = [TERRACE, "run", "--quiet", "--json-file", report.name, *options, "--", *command]
        with swap_to_ourselves():
            done = subprocess.run(full, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{' '.join(full)}\nended with {done.returncode}:\n{done.stderr}")
        text = Path(report.name).read_text()
        return {"command": full, "lines": json_lines(done.stdout), "report": json.loads(text)}


def unmanaged(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\nended with {done.returncode}:\n{done.stderr}")
    return {"command": command, "lines": json_lines(done.stdout)}


def out_share_at(report, seconds, cold_bytes):
    """Share of the cold memory that was out of fast memory so long after the start."""
    points = [point for point in report["timeline"] if point["seconds"] <= seconds]
    return points[-1]["slow_bytes"] / cold_bytes if points else 0.0


def hot_cold(arguments, name="hot-cold", size="2GiB", options=("layout=scattered",), duration=64, window=(30, 62)):
    command = workload_command(size, duration, options)
    pairs = []
    for number in range(arguments.pairs):
        sides = ["managed", "unmanaged"] if number % 2 == 0 else ["unmanaged", "managed"]
        pair = {}
        for side in sides:
            pair[side] = managed(command) if side == "managed" else unmanaged(command)
            pair[side]["hot_loop"] = hot_loop(pair[side]["lines"], *window)
        report = pair["managed"]["report"]
        cold = 0.75 * 2 * GIB
        pair["cold_out_share_at_60s"] = out_share_at(report, 60, cold)
        for figure in ("mean", "p50"):
            key = f"{figure}_nanoseconds"
            pair[f"{figure}_ratio"] = pair["managed"]["hot_loop"][key] / pair["unmanaged"]["hot_loop"][key]
        pairs.append(pair)
        say(
            f"  pair {number + 1}: median time of an operation x{pair['p50_ratio']:.3f}, mean x{pair['mean_ratio']:.3f}, "
            f"cold out at 60 s {pair['cold_out_share_at_60s']:.1%}, "
            f"Terrace {report['manager']['cpu_seconds']:.2f} s CPU, {report['manager']['max_rss_bytes'] / 2**20:.1f} MiB"
        )
    summary = {
        "pairs": len(pairs),
        "p50_ratio_median": median([pair["p50_ratio"] for pair in pairs]),
        "p50_ratio_range": [min(p["p50_ratio"] for p in pairs), max(p["p50_ratio"] for p in pairs)],
        "mean_ratio_median": median([pair["mean_ratio"] for pair in pairs]),
        "mean_ratio_range": [min(p["mean_ratio"] for p in pairs), max(p["mean_ratio"] for p in pairs)],
        "cold_out_share_at_60s_median": median([pair["cold_out_share_at_60s"] for pair in pairs]),
        "fast_bytes_saved_mean_median": median([p["managed"]["report"]["fast_bytes_saved_mean"] for p in pairs]),
        "manager_cpu_seconds_median": median([p["managed"]["report"]["manager"]["cpu_seconds"] for p in pairs]),
        "manager_max_rss_mib_median": median([p["managed"]["report"]["manager"]["max_rss_bytes"] / 2**20 for p in pairs]),
    }
    keep(arguments, name, {"pairs": pairs}, summary)


def hot_moves(arguments):
    hot_cold(
        arguments,
        name="hot-moves",
        options=("layout=scattered", "shift_seconds=60"),
        duration=128,
        window=(30, 126),
    )


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


def beside(command, start, stop, window, samples_of):
    """A program with a manager beside it: starts both, samples the program's resident memory, ends both."""
    with tempfile.TemporaryFile("w+") as output:
        program = subprocess.Popen(command, stdout=output)
        manager = start(program.pid)
        resident = []
        manager_cpu = 0.0
        began = time.time()
        while program.poll() is None:
            time.sleep(1)
            try:
                resident.append({"seconds": time.time() - began, "resident_bytes": status_bytes(program.pid, "VmRSS")})
                manager_cpu = samples_of(manager, manager_cpu)
            except (FileNotFoundError, ProcessLookupError):
                pass
        stop(manager)
        output.seek(0)
        lines = json_lines(output.read())
    return {
        "command": command,
        "exit_code": program.returncode,
        "lines": lines,
        "hot_loop": hot_loop(lines, *window),
        "resident": resident,
        "manager_cpu_seconds": manager_cpu,
    }


def memtierd(arguments):
    binary = os.environ.get("MEMTIERD", shutil.which("memtierd"))
    if not binary:
        say("  memtierd is not installed (how to build it: docs/lab.md, Compare managers): left out")
        return
    command = workload_command("2GiB", 64, ["layout=scattered"])
    window = (30, 62)
    rounds = []
    for number in range(arguments.pairs):
        one = {"unmanaged": unmanaged(command), "terrace": managed(command)}
        for side in one.values():
            side["hot_loop"] = hot_loop(side["lines"], *window)
        lock = contextlib.ExitStack()
        lock.enter_context(swap_to_ourselves())
        zram = Zram(3 * GIB)
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as config:

            def start(pid):
                config.write(MEMTIERD.format(pid=pid))
                config.flush()
                return subprocess.Popen(
                    [binary, "-config", config.name], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
                )

            def stop(manager):
                manager.terminate()
                manager.wait()

            try:
                one["memtierd"] = beside(command, start, stop, window, lambda manager, _: cpu_seconds(manager.pid))
                one["memtierd"]["config"] = MEMTIERD
            finally:
                zram.close()
                lock.close()
        base = one["unmanaged"]["hot_loop"]["mean_nanoseconds"]
        points = one["terrace"]["report"]["timeline"]
        one["figures"] = {
            "terrace_mean_ratio": one["terrace"]["hot_loop"]["mean_nanoseconds"] / base,
            "memtierd_mean_ratio": one["memtierd"]["hot_loop"]["mean_nanoseconds"] / base,
            "terrace_resident_bytes_at_60s": [p["resident_bytes"] for p in points if p["seconds"] <= 60][-1],
            "memtierd_resident_bytes_at_60s": [p["resident_bytes"] for p in one["memtierd"]["resident"] if p["seconds"] <= 60][-1],
            "terrace_cpu_seconds": one["terrace"]["report"]["manager"]["cpu_seconds"],
            "memtierd_cpu_seconds": one["memtierd"]["manager_cpu_seconds"],
        }
        rounds.append(one)
        say(f"  round {number + 1}: " + ", ".join(f"{key} {value:.4g}" for key, value in one["figures"].items()))
    summary = {key: median([one["figures"][key] for one in rounds]) for key in rounds[0]["figures"]}
    keep(arguments, "memtierd", {"rounds": rounds}, {"rounds": len(rounds), **summary})


def kernel_lru(arguments):
    """The kernel's own reclaim at the same limit: a cgroup (version 1) that holds as much as `--fast` allows."""
    base = Path("/sys/fs/cgroup/memory")
    if not (base / "memory.limit_in_bytes").exists():
        say("  no version 1 memory controller here: left out")
        return
    command = workload_command("2GiB", 64, ["layout=scattered"])
    window, share = (30, 62), 0.35
    limit = int(2 * GIB * share)
    rounds = []
    for number in range(arguments.pairs):
        one = {"unmanaged": unmanaged(command), "terrace": managed(command, ["--fast", f"{share:.0%}"])}
        for side in one.values():
            side["hot_loop"] = hot_loop(side["lines"], *window)
        group = base / "terrace-bench"
        group.mkdir()
        lock = contextlib.ExitStack()
        lock.enter_context(swap_to_ourselves())
        zram = Zram(3 * GIB)
        try:
            (group / "memory.limit_in_bytes").write_text(str(limit))

            inside = ["sh", "-c", f'echo $$ > {group}/tasks; exec "$@"', "sh", *command]
            one["kernel"] = beside(inside, lambda pid: None, lambda manager: None, window, lambda manager, cpu: 0.0)
        finally:
            zram.close()
            lock.close()
            group.rmdir()
        base_time = one["unmanaged"]["hot_loop"]["mean_nanoseconds"]
        one["figures"] = {
            "limit_bytes": limit,
            "terrace_mean_ratio": one["terrace"]["hot_loop"]["mean_nanoseconds"] / base_time,
            "kernel_mean_ratio": one["kernel"]["hot_loop"]["mean_nanoseconds"] / base_time,
            "terrace_p50_ratio": one["terrace"]["hot_loop"]["p50_nanoseconds"] / one["unmanaged"]["hot_loop"]["p50_nanoseconds"],
            "kernel_p50_ratio": one["kernel"]["hot_loop"]["p50_nanoseconds"] / one["unmanaged"]["hot_loop"]["p50_nanoseconds"],
        }
        rounds.append(one)
        say(f"  round {number + 1}: " + ", ".join(f"{key} {value:.4g}" for key, value in one["figures"].items()))
    summary = {key: median([one["figures"][key] for one in rounds]) for key in rounds[0]["figures"]}
    keep(arguments, "kernel-lru", {"rounds": rounds}, {"rounds": len(rounds), **summary})


def redis(arguments):
    """redis-server (Debian's package), 1 GiB of values, zipf 0.99 reads: throughput and latency with and without."""
    if not shutil.which("redis-server"):
        say("  redis-server is not installed: left out")
        return
    port = 7391
    server = ["redis-server", "--port", str(port), "--save", "", "--appendonly", "no", "--bind", "127.0.0.1"]
    load = [REDIS_LOAD, "--port", str(port), "--data", "1GiB", "--value", "1KiB"]
    rounds = []
    for number in range(arguments.pairs):
        one = {}
        for side in ["managed", "unmanaged"] if number % 2 == 0 else ["unmanaged", "managed"]:
            with tempfile.NamedTemporaryFile(suffix=".json") as report:
                wrap = [TERRACE, "run", "--quiet", "--json-file", report.name, "--"] if side == "managed" else []
                lock = contextlib.ExitStack()
                lock.enter_context(swap_to_ourselves())
                program = subprocess.Popen([*wrap, *server], stdout=subprocess.DEVNULL)
                try:
                    wait_for_port(port)
                    subprocess.run([*load, "--fill", "1GiB"], check=True)
                    # The first part lets Terrace learn; only the second is counted, on both sides. Learning takes its time: the
                    # coldest pages of this load are read once in one to two minutes.
                    reads = [*load, "--seconds", "150", "--warm", "90", "--connections", "2"]
                    measured = subprocess.run(reads, check=True, capture_output=True, text=True)
                finally:
                    program.send_signal(signal.SIGTERM)
                    program.wait()
                    lock.close()
                one[side] = {"command": [*wrap, *server], "load": reads, "result": json.loads(measured.stdout)}
                if side == "managed":
                    one[side]["report"] = json.loads(Path(report.name).read_text())
        figures = {
            f"{key}_ratio": one["managed"]["result"][key] / one["unmanaged"]["result"][key]
            for key in ("requests_per_second", "p50_microseconds", "p99_microseconds")
        }
        report = one["managed"]["report"]
        figures["fast_bytes_saved_end"] = report["fast_bytes_saved_end"]
        figures["fast_bytes_saved_mean"] = report["fast_bytes_saved_mean"]
        figures["peak_footprint_bytes"] = report["target"]["peak_footprint_bytes"]
        figures["refaults"] = report["refaults"]
        figures["manager_cpu_seconds"] = report["manager"]["cpu_seconds"]
        one["figures"] = figures
        rounds.append(one)
        say(f"  pair {number + 1}: " + ", ".join(f"{key} {value:.4g}" for key, value in figures.items()))
    summary = {key: median([one["figures"][key] for one in rounds]) for key in rounds[0]["figures"]}
    keep(arguments, "redis", {"rounds": rounds}, {"pairs": len(rounds), **summary})


def wait_for_port(port):
    import socket

    for _ in range(300):
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.1)
    sys.exit(f"nothing answers on port {port}")


def at_rest(arguments):
    """Terrace's own cost on a 4 GiB target: at rest, and for each GiB it moved."""
    run = managed(workload_command("4GiB", 100, ["layout=scattered"]))
    points = run["report"]["timeline"]
    rest = [p for p in points if 55 <= p["seconds"] <= 95]
    moved = run["report"]["moved_pages"]["demoted"] * 4096 / GIB
    summary = {
        "cpu_share_at_rest": (rest[-1]["manager_cpu_seconds"] - rest[0]["manager_cpu_seconds"])
        / (rest[-1]["seconds"] - rest[0]["seconds"]),
        "user_cpu_seconds_per_gib_moved": run["report"]["manager"]["user_cpu_seconds"] / moved,
        "cpu_seconds_per_gib_moved_kernel_included": run["report"]["manager"]["cpu_seconds"] / moved,
        "max_rss_mib": run["report"]["manager"]["max_rss_bytes"] / 2**20,
        "rss_allowed_mib": 16 + 0.003 * 4096,
        "round_milliseconds_mean": run["report"]["manager"]["round_milliseconds_mean"],
    }
    keep(arguments, "at-rest", {"run": run}, summary)


def tuned(command, max_slowdown, run, options):
    """A program under `terrace size tune`: what `run` measures of it while it runs, and the tuner's own report."""
    with tempfile.NamedTemporaryFile(suffix=".json") as report:
        full = [TERRACE, "size", "tune", "--max-slowdown", max_slowdown, *options, "--quiet", "--json-file", report.name, "--", *command]
        with swap_to_ourselves():
            result = run(full)
        return {"command": full, "result": result, "report": json.loads(Path(report.name).read_text())}


def ends(values):
    return [min(values), max(values)]


def size_tune(arguments, max_slowdown="5%"):
    """`terrace size tune` against untuned runs: hot-cold, and redis-server under zipf reads; pairs alternate who goes first.

    Five minutes a pair of both programs; with --short two and a quarter, half as much memory and a decision every second, so that there are as
    many decisions.
    """
    # Seconds of the program; seconds of the load, those of it that are not measured.
    duration, seconds, warm = (28, 28, 8) if arguments.short else (64, 75, 35)
    options = ["--every", "1s"] if arguments.short else []

    def workload(command):
        began = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True)
        wall = time.monotonic() - began
        if done.returncode:
            sys.exit(f"{' '.join(command)}\nended with {done.returncode}:\n{done.stderr}")
        # All of the measured part, from the first decision to the last; what comes after it, reading all to verify, is in the wall time.
        loop = hot_loop(json_lines(done.stdout), 0, duration)
        return {
            "seconds_an_operation": loop["mean_nanoseconds"] / 1e9,
            "median_seconds": loop["p50_nanoseconds"] / 1e9,
            "wall_seconds": wall,
        }

    def server(command):
        program = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            wait_for_port(7392)
            load = [REDIS_LOAD, "--port", "7392", "--data", "1GiB", "--value", "1KiB"]
            subprocess.run([*load, "--fill", "1GiB"], check=True)
            reads = [*load, "--seconds", str(seconds), "--warm", str(warm), "--connections", "2"]
            result = json.loads(subprocess.run(reads, check=True, capture_output=True, text=True).stdout)
        finally:
            program.send_signal(signal.SIGTERM)
            program.wait()
        return {
            "seconds_an_operation": 1 / result["requests_per_second"],
            "median_seconds": result["p50_microseconds"] / 1e6,
            "result": result,
        }

    redis_server = ["redis-server", "--port", "7392", "--save", "", "--appendonly", "no", "--bind", "127.0.0.1"]
    programs = {"hot-cold": (workload_command("1GiB" if arguments.short else "2GiB", duration, ["layout=scattered"]), workload)}
    if shutil.which("redis-server"):
        programs["redis"] = (redis_server, server)
    else:
        say("  redis-server is not installed: left out")
    pairs, summary = {}, {}
    for name, (command, run) in programs.items():
        if arguments.only not in (None, name):
            continue
        pairs[name] = []
        for number in range(arguments.pairs):
            pair = {"load_average_before": os.getloadavg()}
            for side in ["tuned", "untuned"] if number % 2 == 0 else ["untuned", "tuned"]:
                if side == "tuned":
                    pair[side] = tuned(command, max_slowdown, run, options)
                else:
                    pair[side] = {"command": command, "result": run(command)}
            results = {side: pair[side]["result"] for side in ("tuned", "untuned")}
            for figure in ("seconds_an_operation", "median_seconds"):
                pair[f"{figure}_slowdown"] = results["tuned"][figure] / results["untuned"][figure] - 1
            report = pair["tuned"]["report"]
            pairs[name].append(pair)
            say(
                f"  {name}, pair {number + 1}: saved {report['saved_share_mean']:.1%} on average, {report['saved_share_max']:.1%} at most; "
                f"slowdown {pair['seconds_an_operation_slowdown']:+.1%} (median operation {pair['median_seconds_slowdown']:+.1%}), "
                f"by the tuner's own account {report['loss']:.2%}"
            )
        of = pairs[name]
        summary[name] = {
            "pairs": len(of),
            "saved_share_mean_median": median([pair["tuned"]["report"]["saved_share_mean"] for pair in of]),
            "saved_share_max_median": median([pair["tuned"]["report"]["saved_share_max"] for pair in of]),
            # The range of five pairs is an interval of 94 % for the median, that of three one of 75 %.
            "slowdown_median": median([pair["seconds_an_operation_slowdown"] for pair in of]),
            "slowdown_range": ends([pair["seconds_an_operation_slowdown"] for pair in of]),
            "median_operation_slowdown_median": median([pair["median_seconds_slowdown"] for pair in of]),
            "median_operation_slowdown_range": ends([pair["median_seconds_slowdown"] for pair in of]),
            "saved_share_mean_range": ends([pair["tuned"]["report"]["saved_share_mean"] for pair in of]),
            "own_loss_median": median([pair["tuned"]["report"]["loss"] for pair in of]),
            "own_loss_range": ends([pair["tuned"]["report"]["loss"] for pair in of]),
            "own_loss_low_median": median([pair["tuned"]["report"]["loss_low"] for pair in of]),
            "own_loss_high_median": median([pair["tuned"]["report"]["loss_high"] for pair in of]),
            "own_loss_p95_median": median([pair["tuned"]["report"]["loss_p95"] for pair in of]),
            "max_slowdown": max_slowdown,
            "load_average_before_median": median([pair["load_average_before"][0] for pair in of]),
            "short": arguments.short,
        }
        if name == "hot-cold":
            walls = [pair["tuned"]["result"]["wall_seconds"] / pair["untuned"]["result"]["wall_seconds"] - 1 for pair in of]
            summary[name] |= {"wall_slowdown_median": median(walls), "wall_slowdown_range": ends(walls)}
    keep(arguments, "-".join(["size-tune", *([arguments.only] if arguments.only else [])]), {"pairs": pairs}, summary)


def size_database(arguments):
    """Building a database of 100,000 records of 100 sizes, indexing it, and queries."""
    with tempfile.TemporaryDirectory() as directory:
        file = f"{directory}/optane.parquet"
        command = [TERRACE, "size", "build", "--machine", "optane-6252", "--records", "100000", "--out", file, "--json"]
        build = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        vectors = ["5e8,0,0,0,40,16e9,2,24", "1e9,1e7,1e4,1e4,2,8e9,2,16", "5e7,1e6,0,500,300,2e9,4,8"]
        queries = []
        for number in range(arguments.pairs):
            for k in ("1", "8"):
                query = [TERRACE, "size", "query", "--db", file, "--vector", vectors[number % 3], "--k", k, "--json"]
                found = json.loads(subprocess.run(query, check=True, capture_output=True, text=True).stdout)
                queries.append({"command": query, "k": int(k), **{key: found[key] for key in ("query_microseconds", "index_milliseconds", "read_milliseconds")}})
        others = database_peers(file)
    build["file"] = "optane.parquet"
    one = [query["query_microseconds"] for query in queries if query["k"] == 1]
    eight = [query["query_microseconds"] for query in queries if query["k"] == 8]
    summary = {
        "build_seconds": build["seconds"],
        "records_per_second": build["records_per_second"],
        "index_milliseconds_median": median([query["index_milliseconds"] for query in queries]),
        "read_milliseconds_median": median([query["read_milliseconds"] for query in queries]),
        "query_microseconds_median": median(one),
        "query_microseconds_k8_median": median(eight),
    }
    summary["peers"] = others
    keep(arguments, "size-database", {"build": build, "queries": queries}, summary)


def database_peers(file, asked=2000):
    """The same records in other indexes: each is indexed on one thread and asked one vector at a time and all in one call, for its nearest.

    The vectors that are asked are records moved by a tenth of a standard deviation: near the data, as a program's are. What is
    not installed (pip install numpy scipy faiss-cpu pyarrow) is left out.
    """
    try:
        import numpy
        import pyarrow.parquet
    except ImportError as missing:
        say(f"  peers are left out: {missing}")
        return {}
    names = ["pacc_f", "pacc_s", "pm_de", "pm_pr", "ai", "rss", "hot_thr", "threads"]
    table = pyarrow.parquet.read_table(file, columns=names)
    features = numpy.column_stack([table[name].to_numpy() for name in names])
    features[:, :6] = numpy.log1p(features[:, :6]) / numpy.log(10)
    points = ((features - features.mean(axis=0)) / features.std(axis=0)).astype(numpy.float32)
    random = numpy.random.default_rng(1)
    queries = points[random.choice(len(points), asked, replace=False)]
    queries = (queries + random.normal(0, 0.1, queries.shape)).astype(numpy.float32)
    exact = ((points[None, :, :] - queries[:20, None, :]) ** 2).sum(axis=2).argmin(axis=1)

    def measure(build, ask):
        began = time.perf_counter()
        index = build()
        indexed = time.perf_counter() - began
        each = []
        for query in queries:
            began = time.perf_counter()
            ask(index, query[None, :])
            each.append(time.perf_counter() - began)
        began = time.perf_counter()
        found = ask(index, queries)
        batch = time.perf_counter() - began
        return {
            "index_milliseconds": indexed * 1e3,
            "query_microseconds_median": median(each) * 1e6,
            "query_microseconds_in_one_call": batch / asked * 1e6,
            "exact_of_20": int((numpy.asarray(found).ravel()[:20] == exact).sum()),
        }

    results = {}
    try:
        from scipy.spatial import cKDTree

        results["scipy cKDTree"] = measure(lambda: cKDTree(points), lambda tree, query: tree.query(query, k=1)[1])
    except ImportError as missing:
        say(f"  a peer is left out: {missing}")
    try:
        import faiss

        faiss.omp_set_num_threads(1)

        def of(make):
            def build():
                index = make()
                index.add(points)
                return index

            return build

        ask = lambda index, query: index.search(query, 1)[1]
        results["Faiss HNSW32"] = measure(of(lambda: faiss.IndexHNSWFlat(points.shape[1], 32)), ask)
        results["Faiss flat"] = measure(of(lambda: faiss.IndexFlatL2(points.shape[1])), ask)
    except ImportError as missing:
        say(f"  a peer is left out: {missing}")
    return results


def keep(arguments, name, raw, summary):
    """Writes the raw runs and the summary, and prints the summary."""
    arguments.out.mkdir(parents=True, exist_ok=True)
    for heavy in find_reports(raw):
        # The picture of every page over time is large and not what these runs are about.
        heavy.pop("heat_map", None)
    machine = {
        "kernel": platform.release(),
        "cpus": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "load_average_at_end": os.getloadavg(),
        "date": datetime.date.today().isoformat(),
    }
    text = json.dumps({"benchmark": name, "machine": machine, "summary": summary, **raw})
    # Where the files lie is nobody's business; what was run is.
    text = text.replace(str(ROOT) + "/", "").replace(TERRACE, "terrace").replace(REDIS_LOAD, "redis_load")
    (arguments.out / f"{name}.json").write_text(text + "\n")
    say(f"  {name}: {json.dumps(summary, indent=2)}")


def find_reports(value):
    if isinstance(value, dict):
        if "heat_map" in value:
            yield value
        for part in value.values():
            yield from find_reports(part)
    elif isinstance(value, list):
        for part in value:
            yield from find_reports(part)


BENCHMARKS = {
    "hot-cold": hot_cold,
    "hot-moves": hot_moves,
    "memtierd": memtierd,
    "kernel-lru": kernel_lru,
    "redis": redis,
    "at-rest": at_rest,
    "size-tune": size_tune,
    "size-database": size_database,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=[*BENCHMARKS, "all"])
    parser.add_argument("--out", type=Path, help="where the raw runs go (default: benchmarks/runs/DATE)")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--short", action="store_true", help="size-tune: shorter runs")
    parser.add_argument("--only", choices=["hot-cold", "redis"], help="size-tune: this program alone; the file is named after it")
    arguments = parser.parse_args()
    arguments.out = arguments.out or ROOT / "benchmarks/runs" / datetime.date.today().isoformat()
    if os.geteuid() != 0:
        sys.exit("run.py: managing memory needs root: sudo benchmarks/run.py ...")
    if not os.access(TERRACE, os.X_OK):
        sys.exit(f"run.py: {TERRACE} is not there: run `make build` first, or set TERRACE")
    for name in BENCHMARKS if arguments.name == "all" else [arguments.name]:
        say(f"{name}:")
        BENCHMARKS[name](arguments)


if __name__ == "__main__":
    main()
