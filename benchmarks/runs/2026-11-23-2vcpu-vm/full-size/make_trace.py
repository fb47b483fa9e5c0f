"""A trace of 64 GiB in libCacheSim's oracleGeneral form: every page once, in order, then zipf 0.99 over all pages, ranks scattered."""
import sys
import numpy as np
pages, accesses, seed = 1 << 24, int(sys.argv[2]), 1
kind = np.dtype([("time", "<u4"), ("object", "<u8"), ("size", "<u4"), ("next", "<i8")])
random = np.random.default_rng(seed)
weights = 1.0 / np.arange(1, pages + 1) ** 0.99
bounds = np.cumsum(weights); bounds /= bounds[-1]
place = random.permutation(pages)
with open(sys.argv[1], "wb") as out:
    done = 0
    def put(objects):
        global done
        rows = np.zeros(len(objects), kind)
        rows["time"] = (done + np.arange(len(objects))) // 1_000_000
        rows["object"], rows["size"], rows["next"] = objects, 4096, -1
        rows.tofile(out); done += len(objects)
    for first in range(0, pages, 1 << 20):
        put(np.arange(first, first + (1 << 20)))
    left = accesses
    while left:
        count = min(left, 1 << 22)
        put(place[np.searchsorted(bounds, random.random(count))]); left -= count
