#!/usr/bin/env python3
"""Terrace's object caches against libCacheSim: the same trace file, the same sizes, miss ratio and throughput.

    python3 -m venv VENV && VENV/bin/pip install libcachesim==0.3.5
    cargo build --release -p terrace-sim --example cache_replay
    VENV/bin/python benchmarks/cache_compare.py [--objects 1048576,16777216] [--requests N] [--out DIR]

In: the example cache_replay (CACHE_REPLAY names another) and libcachesim. Out: DIR/cache-compare.json, and each row as it is known. Must not: assert a
throughput. Exit: 1 where miss ratios differ in four digits.

The trace is zipf 0.99 over all objects (by inversion of the exact distribution), scattered by a permutation, in libCacheSim's
oracleGeneral format, every object of size 1. Both sides read the file and replay it in one thread; what counts is CPU time of that
thread, the best of three runs. Ours includes taking the records apart, as libCacheSim's does.
"""

import json
import os
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

import libcachesim
import numpy

from rounds import ROOT, keep, parser, run

REPLAY = os.environ.get("CACHE_REPLAY", str(ROOT / "target/release/examples/cache_replay"))
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
    options = parser(__doc__, out=True)
    options.add_argument("--objects", default="1048576,16777216", help="footprints, parted by commas")
    options.add_argument("--requests", type=int, default=20_000_000)
    arguments = options.parse_args()
    if not os.access(REPLAY, os.X_OK):
        sys.exit(f"cache_compare.py: {REPLAY} is not there: cargo build --release -p terrace-sim --example cache_replay")
    rows = []
    for objects in map(int, arguments.objects.split(",")):
        with tempfile.TemporaryDirectory() as place:
            path = Path(place) / "trace.oracle"
            write_trace(path, objects, arguments.requests)
            sizes = [objects // 100, objects // 10, objects // 2]
            ours = json.loads(run([REPLAY, path, *map(str, sizes)]))["rows"]
            for row in ours:
                miss_ratio, seconds = theirs(path, row["eviction"], row["capacity"])
                row |= {"objects": objects, "libcachesim_miss_ratio": miss_ratio, "libcachesim_seconds": seconds}
                row["equal_to_four_digits"] = round(miss_ratio, 4) == round(row["miss_ratio"], 4)
                row["throughput_ratio"] = seconds / (row["seconds"] + row["reading_seconds"])
                rows.append(row)
                print(json.dumps(row), flush=True)
    keep(arguments.out, "cache-compare", {"libcachesim": version("libcachesim"), "rows": rows})
    if not all(row["equal_to_four_digits"] for row in rows):
        sys.exit("cache_compare.py: the miss ratios differ")


if __name__ == "__main__":
    main()
