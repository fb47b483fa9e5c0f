#!/usr/bin/env python3
"""A sweep of 1,000 cells, killed halfway and taken up: in one process, on Dask, and on Dask with a worker killed as well. Whether all give the same bytes.

    benchmarks/sweep_resume.py [--out DIR]

In: the Python package `terrace` with its extra [dask], as the interpreter that runs this has it. Out: DIR/sweep-resume.json with the hash of each table, how many cells
were finished when it was killed, and how many were when it was taken up. Another table, or a finished cell that was computed again, ends the script with 1.
"""

import argparse
import hashlib
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import distributed

import terrace

ROOT = Path(__file__).resolve().parent.parent
CELLS = 1000
SPECIFICATION = """\
machines = ["cxl-170"]
policies = ["tpp", "first-touch", "flexmem"]
workloads = ["gups"]
fast = ["20%", "30%", "40%", "50%", "60%"]
seeds = 50
size = "4MiB"
scale = 1024
operations = 20000
[settings]
"flexmem.beta" = [0.2, 0.4]
"""
ALONE = "import sys, terrace; terrace.sweep(sys.argv[1], sys.argv[2])"


def finished(journal):
    return journal.read_bytes().count(b'"cell"') if journal.exists() else 0


def killed_halfway(specification, table):
    """Starts the sweep in a process of its own, kills it with SIGKILL once half of the cells are finished, and returns how many were."""
    journal = table.with_name(table.name + ".partial")
    process = subprocess.Popen([sys.executable, "-c", ALONE, str(specification), str(table)])
    while finished(journal) < CELLS // 2:
        if process.poll() is not None:
            sys.exit(f"{table.name}: it ended with {process.returncode} before it could be killed")
        time.sleep(0.01)
    process.kill()
    process.wait()
    return finished(journal)


def taken_up(specification, table, client, worker=None):
    """Goes on with it, on a client if there is one, and kills a worker when a quarter of the rest is done; how many cells were finished at the start."""
    told = []

    def progress(done, total):
        told.append(done)
        if worker and done >= told[0] + (total - told[0]) // 4 and worker[0] is not None:
            os.kill(worker[0], signal.SIGKILL)
            worker[0] = None

    terrace.sweep(specification, table, client=client, progress=progress)
    if worker and worker[0] is not None:
        sys.exit(f"{table.name}: all cells were done before the worker was killed")
    return told[0]


def row(name, table, seconds, kept=None, resumed=None):
    found = {"way": name, "sha256": hashlib.sha256(table.read_bytes()).hexdigest(), "bytes": table.stat().st_size, "seconds": round(seconds, 1)}
    found |= {"cells_when_killed": kept, "cells_when_taken_up": resumed}
    print(found, flush=True)
    if kept is not None and not kept <= resumed:
        sys.exit(f"{name}: {kept} cells were finished, and {resumed} of them were kept")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/runs")
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        specification = folder / "sweep.toml"
        specification.write_text(SPECIFICATION)

        def timed(name, table, work, kept=None):
            began = time.monotonic()
            resumed = work()
            rows.append(row(name, table, time.monotonic() - began, kept, resumed))

        table = folder / "whole.jsonl"
        timed("whole, one process", table, lambda: len(terrace.sweep(specification, table)) and None)
        table = folder / "alone.jsonl"
        kept = killed_halfway(specification, table)
        timed("killed halfway, taken up in one process", table, lambda: taken_up(specification, table, None), kept)
        for name, lost in [("killed halfway, taken up on Dask", False), ("killed halfway, taken up on Dask, a worker killed", True)]:
            table = folder / f"dask-{lost}.jsonl"
            kept = killed_halfway(specification, table)
            # Its nanny starts a killed worker again, as a cluster's would.
            with distributed.LocalCluster(n_workers=2, processes=True, threads_per_worker=1, dashboard_address=None) as cluster:
                with distributed.Client(cluster) as client:
                    worker = [next(iter(client.run(os.getpid).values()))] if lost else None
                    timed(name, table, lambda: taken_up(specification, table, client, worker), kept)
    if len({one["sha256"] for one in rows}) != 1:
        sys.exit("the tables differ")
    result = {
        "command": "benchmarks/sweep_resume.py", "version": terrace.__version__, "commit": terrace.__commit__, "dask": distributed.__version__,
        "python": platform.python_version(), "cores": os.cpu_count(), "kernel": platform.release(), "cells": CELLS, "sweep": SPECIFICATION, "rows": rows,
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "sweep-resume.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
