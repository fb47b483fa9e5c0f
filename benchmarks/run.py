#!/usr/bin/env python3
"""What Terrace itself costs, how well a size is tuned, and how fast a database answers, on this machine; campaign.py has programs under managers.

    sudo benchmarks/run.py NAME [--out DIR] [--pairs N] [--short]

NAME: at-rest, size-tune, size-database, all. In: what `make build` made, and what is installed of redis-server and of the database's peers. Out: DIR/NAME.json
with every run raw and the summary that is printed. Must not: assert a figure, or compare runs that do not alternate. Needs root.
"""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time

from rounds import GIB, REDIS_LOAD, TERRACE, ends, hot_cold_command, json_lines, keep, median, parser, ready, redis_server, run, under_terrace, wait_for_port


def say(text):
    print(text, flush=True)


def hot_loop(lines, duration):
    """Of the measured part's first seconds: the mean time of an operation (stalls included), and the median of the medians (stalls left out)."""
    measured = [line for line in lines if line.get("phase") == "run" and line["operations"]]
    began = measured[0]["seconds"] - 1.0
    window = [line for line in measured if line["seconds"] - began <= duration]
    return len(window) / sum(line["operations"] for line in window), median([line["p50_nanoseconds"] for line in window]) / 1e9


def at_rest(arguments):
    """Terrace's own cost on a 4 GiB target: at rest, and for each GiB it moved."""
    found = under_terrace(["run"], hot_cold_command("4GiB", 100, "layout=scattered"), lambda command: json_lines(run(command)))
    report = found["report"]
    points, cost = report["timeline"], report["manager"]
    rest = [p for p in points if 55 <= p["seconds"] <= 95]
    moved = report["moved_pages"]["demoted"] * 4096 / GIB
    summary = {
        "cpu_share_at_rest": (rest[-1]["manager_cpu_seconds"] - rest[0]["manager_cpu_seconds"]) / (rest[-1]["seconds"] - rest[0]["seconds"]),
        "user_cpu_seconds_per_gib_moved": cost["user_cpu_seconds"] / moved,
        "cpu_seconds_per_gib_moved_kernel_included": cost["cpu_seconds"] / moved,
        "max_rss_mib": cost["max_rss_bytes"] / 2**20,
        "rss_allowed_mib": 16 + 0.003 * 4096,
        "round_milliseconds_mean": cost["round_milliseconds_mean"],
    }
    kept(arguments, "at-rest", {"run": found}, summary)


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
        lines = json_lines(run(command))
        wall = time.monotonic() - began
        # All of the measured part, from the first decision to the last; what comes after it, reading all to verify, is in the wall time.
        mean, middle = hot_loop(lines, duration)
        return {"seconds_an_operation": mean, "median_seconds": middle, "wall_seconds": wall}

    def server(command):
        program = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            wait_for_port(7392)
            load = [REDIS_LOAD, "--port", "7392", "--data", "1GiB", "--value", "1KiB"]
            run([*load, "--fill", "1GiB"])
            result = json.loads(run([*load, "--seconds", str(seconds), "--warm", str(warm), "--connections", "2"]))
        finally:
            program.send_signal(signal.SIGTERM)
            program.wait()
        return {"seconds_an_operation": 1 / result["requests_per_second"], "median_seconds": result["p50_microseconds"] / 1e6, "result": result}

    programs = {"hot-cold": (hot_cold_command("1GiB" if arguments.short else "2GiB", duration, "layout=scattered"), workload)}
    if shutil.which("redis-server"):
        programs["redis"] = (redis_server(7392), server)
    else:
        say("  redis-server is not installed: left out")
    pairs, summary = {}, {}
    for name, (command, measure) in programs.items():
        if arguments.only not in (None, name):
            continue
        pairs[name] = []
        for number in range(arguments.pairs):
            pair = {"load_average_before": os.getloadavg()}
            for side in ["tuned", "untuned"] if number % 2 == 0 else ["untuned", "tuned"]:
                if side == "tuned":
                    pair[side] = under_terrace(["size", "tune", "--max-slowdown", max_slowdown, *options], command, measure)
                else:
                    pair[side] = {"command": command, "result": measure(command)}
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
        figures = {
            "saved_share_mean": [pair["tuned"]["report"]["saved_share_mean"] for pair in of],
            "slowdown": [pair["seconds_an_operation_slowdown"] for pair in of],
            "median_operation_slowdown": [pair["median_seconds_slowdown"] for pair in of],
            "own_loss": [pair["tuned"]["report"]["loss"] for pair in of],
        }
        if name == "hot-cold":
            figures["wall_slowdown"] = [pair["tuned"]["result"]["wall_seconds"] / pair["untuned"]["result"]["wall_seconds"] - 1 for pair in of]
        # The range of five pairs is an interval of 94 % for the median, that of three one of 75 %.
        summary[name] = {f"{figure}_{what}": of_all(values) for figure, values in figures.items() for what, of_all in [("median", median), ("range", ends)]}
        for figure, key in [("saved_share_max", "saved_share_max"), ("own_loss_low", "loss_low"), ("own_loss_high", "loss_high"), ("own_loss_p95", "loss_p95")]:
            summary[name][f"{figure}_median"] = median([pair["tuned"]["report"][key] for pair in of])
        summary[name] |= {
            "pairs": len(of),
            "max_slowdown": max_slowdown,
            "load_average_before_median": median([pair["load_average_before"][0] for pair in of]),
            "short": arguments.short,
        }
    kept(arguments, f"size-tune-{arguments.only}" if arguments.only else "size-tune", {"pairs": pairs}, summary)


def size_database(arguments):
    """Building a database of 100,000 records of 100 sizes, indexing it, and queries."""
    with tempfile.TemporaryDirectory() as directory:
        file = f"{directory}/optane.parquet"
        build = json.loads(run([TERRACE, "size", "build", "--machine", "optane-6252", "--records", "100000", "--out", file, "--json"]))
        vectors = ["5e8,0,0,0,40,16e9,2,24", "1e9,1e7,1e4,1e4,2,8e9,2,16", "5e7,1e6,0,500,300,2e9,4,8"]
        queries = []
        for number in range(arguments.pairs):
            for k in ("1", "8"):
                query = [TERRACE, "size", "query", "--db", file, "--vector", vectors[number % 3], "--k", k, "--json"]
                found = json.loads(run(query))
                figures = {key: found[key] for key in ("query_microseconds", "index_milliseconds", "read_milliseconds")}
                queries.append({"command": query, "k": int(k), **figures})
        others = database_peers(file)
    build["file"] = "optane.parquet"
    summary = {
        "build_seconds": build["seconds"],
        "records_per_second": build["records_per_second"],
        "index_milliseconds_median": median([query["index_milliseconds"] for query in queries]),
        "read_milliseconds_median": median([query["read_milliseconds"] for query in queries]),
        "query_microseconds_median": median([query["query_microseconds"] for query in queries if query["k"] == 1]),
        "query_microseconds_k8_median": median([query["query_microseconds"] for query in queries if query["k"] == 8]),
        "peers": others,
    }
    kept(arguments, "size-database", {"build": build, "queries": queries}, summary)


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


def kept(arguments, name, raw, summary):
    keep(arguments.out, name, {"summary": summary, **raw})
    say(f"  {name}: {json.dumps(summary, indent=2)}")


BENCHMARKS = {"at-rest": at_rest, "size-tune": size_tune, "size-database": size_database}


def main():
    options = parser(__doc__, out=True)
    options.add_argument("name", choices=[*BENCHMARKS, "all"])
    options.add_argument("--pairs", type=int, default=5)
    options.add_argument("--short", action="store_true", help="size-tune: shorter runs")
    options.add_argument("--only", choices=["hot-cold", "redis"], help="size-tune: this program alone; the file is named after it")
    arguments = options.parse_args()
    ready(root=True)
    for name in BENCHMARKS if arguments.name == "all" else [arguments.name]:
        say(f"{name}:")
        BENCHMARKS[name](arguments)


if __name__ == "__main__":
    main()
