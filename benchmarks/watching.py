#!/usr/bin/env python3
"""What being watched costs programs of which nothing can be saved: balanced rounds of unmanaged, managed, managed, unmanaged.

    sudo benchmarks/watching.py [--programs xsbench,gap-pr] [--size 640MiB] [--rounds 5] [--max-overhead 1%] [--out DIR]

In: the program `terrace` (TERRACE, or target/release/terrace). Out: one JSON file in DIR with every run raw (command, lines, report, CPU time,
times waited for a processor) and the table that is printed. Nothing is asserted: a figure is what was seen. Needs root, and a machine
without other work; the table says how much of the processors others used meanwhile.

A round is balanced: pairs that always begin with the unmanaged run mislead by as much as the machine drifts between first and second. Its ratio
is the mean of the two managed runs over the mean of the two unmanaged ones, by the program's own CPU time and by its wall time.
"""

import argparse
import contextlib
import datetime
import fcntl
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TERRACE = os.environ.get("TERRACE", str(ROOT / "target/release/terrace"))
ORDER = ["unmanaged", "managed", "managed", "unmanaged"]


@contextlib.contextmanager
def swap_to_ourselves():
    """Whoever sets up swap for a measurement or a test holds this lock (run.py and the live tests do, too)."""
    with open(Path(tempfile.gettempdir()) / "terrace-live-swap.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def busy_seconds():
    """Processor time that anybody used since boot."""
    fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:8]]
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


def json_lines(text):
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def one_run(side, workload, max_overhead):
    """One run of the program, under Terrace or alone."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file, swap_to_ourselves():
        command = list(workload)
        if side == "managed":
            options = ["--quiet", "--json-file", file.name, "--max-overhead", max_overhead]
            command = [TERRACE, "run", *options, "--", *workload]
        before, busy, began = resource.getrusage(resource.RUSAGE_CHILDREN), busy_seconds(), time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True)
        wall = time.monotonic() - began
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        if done.returncode:
            sys.exit(f"{' '.join(command)}\nended with {done.returncode}:\n{done.stderr}")
        run = {
            "side": side,
            "command": command,
            "wall_seconds": wall,
            "cpu_seconds": used,
            "others_busy_seconds": busy_seconds() - busy - used,
            "lines": json_lines(done.stdout),
        }
        if side == "managed":
            run["report"] = json.loads(Path(file.name).read_text())
            run["cpu_seconds"] = run["report"]["target"]["cpu_seconds"]
            run["wall_seconds"] = run["report"]["target"]["wall_seconds"]
    return run


def one_round(number, workload, max_overhead):
    runs = [one_run(side, workload, max_overhead) for side in ORDER]

    def mean(side, key):
        return statistics.mean(run[key] for run in runs if run["side"] == side)

    reports = [run["report"] for run in runs if "report" in run]
    summary = {
        "wall_ratio": mean("managed", "wall_seconds") / mean("unmanaged", "wall_seconds"),
        "cpu_ratio": mean("managed", "cpu_seconds") / mean("unmanaged", "cpu_seconds"),
        "watching_share": statistics.mean(r["cost"]["watching_seconds"] / r["target"]["cpu_seconds"] for r in reports),
        "share_of_target": statistics.mean(report["cost"]["share_of_target"] for report in reports),
        "saved_bytes_mean": statistics.mean(report["fast_bytes_saved_mean"] for report in reports),
        "back_off": [report["cost"]["back_off"] for report in reports],
        "others_busy_share": sum(run["others_busy_seconds"] for run in runs)
        / (sum(run["wall_seconds"] for run in runs) * os.cpu_count()),
    }
    print(
        f"  round {number + 1}: wall x{summary['wall_ratio']:.4f}, CPU x{summary['cpu_ratio']:.4f}; Terrace's own account "
        f"{summary['share_of_target']:.2%}, watching {summary['watching_share']:.2%}, back-off {summary['back_off']}, "
        f"saved {summary['saved_bytes_mean'] / 2**20:.1f} MiB; others used {summary['others_busy_share']:.0%} of the processors",
        flush=True,
    )
    return {"runs": runs, "summary": summary}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", default="xsbench,gap-pr", help="workloads, with commas between them")
    parser.add_argument("--size", default="640MiB", help="their footprint")
    parser.add_argument("--operations", help="how much they do, in their own operations; else what they do by themselves")
    parser.add_argument("--threads", default="1", help="their threads")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of four runs each")
    parser.add_argument("--max-overhead", default="1%", help="what --max-overhead is set to")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/runs" / datetime.date.today().isoformat())
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("watching.py: needs root, as the managed runs do")
    if not Path(TERRACE).exists():
        sys.exit(f"watching.py: {TERRACE} is not there: run `make build`, or set TERRACE")
    found = {}
    for program in arguments.programs.split(","):
        workload = [TERRACE, "workload", program, "--size", arguments.size, "--threads", arguments.threads]
        if arguments.operations:
            workload += ["--operations", arguments.operations]
        print(f"{program}, {arguments.size}", flush=True)
        rounds = [one_round(number, workload, arguments.max_overhead) for number in range(arguments.rounds)]
        ratios = [one["summary"]["wall_ratio"] for one in rounds]
        median, worst = statistics.median(ratios), max(ratios)
        print(f"  median x{median:.4f}, worst x{worst:.4f}", flush=True)
        found[program] = {"rounds": rounds, "wall_ratio_median": median, "wall_ratio_worst": worst}
    machine = {"kernel": platform.release(), "processors": os.cpu_count(), "load": os.getloadavg()}
    arguments.out.mkdir(parents=True, exist_ok=True)
    file = arguments.out / "watching.json"
    when = datetime.datetime.now(datetime.timezone.utc).isoformat()
    kept = {"command": sys.argv, "when": when, "order": ORDER, "machine": machine, "programs": found}
    file.write_text(json.dumps(kept, indent=1) + "\n")
    print(f"raw: {file}")


if __name__ == "__main__":
    main()
