#!/usr/bin/env python3
"""Terrace's object caches against libCacheSim: the same trace file, the same sizes, miss ratio and throughput.

    python3 -m venv VENV && VENV/bin/pip install libcachesim==0.3.5
    cargo build --release -p terrace-sim --example cache_replay
    VENV/bin/python benchmarks/cache_compare.py [--objects 1048576,16777216] [--requests N] [--out DIR]

The trace is zipf 0.99 over all objects (by inversion of the exact distribution), scattered by a permutation, in libCacheSim's
oracleGeneral format, every object of size 1. Both sides read the file and replay it in one thread; what counts is CPU time of that
thread, the best of three runs. Ours includes taking the records apart, as libCacheSim's does.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from datetime import date
from importlib.metadata import version
from pathlib import Path

import libcachesim
import numpy

ROOT = Path(__file__).resolve().parent.parent
REPLAY = ROOT / "target/release/examples/cache_replay"
CACHES = {"lru": libcachesim.LRU, "clock": libcachesim.Clock, "fifo": libcachesim.FIFO}
REPEATS = 3


def write_trace(path, objects, requests):
    """An oracleGeneral file: u32 time, u64 object, u32 size, i64 next access (-1: not told; none of the three asks)."""
    random = numpy.random.Generator(numpy.random.PCG64(7))
    mass = numpy.cumsum(numpy.arange(1, objects + 1, dtype=numpy.float64) ** -0.99)
    places = random.permutation(objects)
    fields = [("time", "<u4"), ("object", "<u8"), ("size", "<u4"), ("next", "<i8")]
    with open(path, "wb") as file:
        for start in range(0, requests, 1 << 20):
            count = min(1 << 20, requests - start)
            records = numpy.zeros(count, dtype=fields)
            records["time"] = numpy.arange(start, start + count) // 1_000_000
            records["object"] = places[numpy.searchsorted(mass, random.random(count) * mass[-1]).clip(0, objects - 1)]
            records["size"], records["next"] = 1, -1
            records.tofile(file)


def theirs(path, eviction, capacity):
    """Miss ratio and the fewest CPU seconds of libCacheSim."""
    seconds = []
    for _ in range(REPEATS):
        setting = libcachesim.ReaderInitParam(ignore_obj_size=True)
        reader = libcachesim.TraceReader(str(path), libcachesim.TraceType.ORACLE_GENERAL_TRACE, setting)
        cache = CACHES[eviction](capacity)
        start = time.thread_time()
        miss_ratio, _ = cache.process_trace(reader)
        seconds.append(time.thread_time() - start)
    return miss_ratio, min(seconds)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--objects", default="1048576,16777216", help="footprints, parted by commas")
    parser.add_argument("--requests", type=int, default=20_000_000)
    parser.add_argument("--out", type=Path, help="where the raw run goes (default: benchmarks/runs/DATE)")
    arguments = parser.parse_args()
    replay = Path(os.environ.get("CACHE_REPLAY", REPLAY))
    if not os.access(replay, os.X_OK):
        sys.exit(f"cache_compare.py: {replay} is not there: cargo build --release -p terrace-sim --example cache_replay")
    rows = []
    for objects in map(int, arguments.objects.split(",")):
        with tempfile.TemporaryDirectory() as place:
            path = Path(place) / "trace.oracle"
            write_trace(path, objects, arguments.requests)
            sizes = [objects // 100, objects // 10, objects // 2]
            ours = json.loads(subprocess.check_output([replay, path, *map(str, sizes)]))["rows"]
            for row in ours:
                miss_ratio, seconds = theirs(path, row["eviction"], row["capacity"])
                row |= {"objects": objects, "libcachesim_miss_ratio": miss_ratio, "libcachesim_seconds": seconds}
                row["equal_to_four_digits"] = round(miss_ratio, 4) == round(row["miss_ratio"], 4)
                row["throughput_ratio"] = seconds / (row["seconds"] + row["reading_seconds"])
                rows.append(row)
                print(json.dumps(row), flush=True)
    machine = {"kernel": platform.release(), "cpus": os.cpu_count(), "load_average_at_end": os.getloadavg()}
    result = {"benchmark": "cache-compare", "date": date.today().isoformat(), "machine": machine, "rows": rows}
    result["libcachesim"] = version("libcachesim")
    out = arguments.out or ROOT / "benchmarks/runs" / date.today().isoformat()
    out.mkdir(parents=True, exist_ok=True)
    (out / "cache-compare.json").write_text(json.dumps(result, indent=1) + "\n")
    if not all(row["equal_to_four_digits"] for row in rows):
        sys.exit("cache_compare.py: the miss ratios differ")


if __name__ == "__main__":
    main()
