#!/usr/bin/env python3
"""What Terrace itself costs, how well a size is tuned, and how fast a database answers, on this machine; campaign.py has programs under managers.

    sudo benchmarks/run.py NAME [--out DIR] [--pairs N] [--short]

NAME: at-rest, size-tune, size-database, all. Every run is kept raw in DIR as one JSON file, with its
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
