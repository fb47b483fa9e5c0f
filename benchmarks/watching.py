#!/usr/bin/env python3
"""What being watched costs programs of which nothing can be saved: balanced rounds of unmanaged, managed, managed, unmanaged.

    sudo benchmarks/watching.py [--programs xsbench,gap-pr] [--size 640MiB] [--rounds 5] [--max-overhead 1%] [--out DIR]

In: the program `terrace` (TERRACE, or target/release/terrace). Out: DIR/watching.json with every run raw (command, lines, report, CPU time, processor time of
others), and the ratios that are printed. Must not: assert a figure. Needs root, and a machine without other work; each round says how much of the processors
others used meanwhile.

A round is balanced: pairs that always begin with the unmanaged run mislead by as much as the machine drifts between first and second. Its ratio
is the mean of the two managed runs over the mean of the two unmanaged ones, by the program's own CPU time and by its wall time.
"""

import os
import resource
import statistics
import time
from pathlib import Path

from rounds import TERRACE, balanced, json_lines, keep, parser, ready, run, swap_to_ourselves, under_terrace


def busy_seconds():
    """Processor time that anybody used since boot."""
    fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:8]]
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


def measured(command):
    """Runs a command: its lines, wall and CPU time, and the processor time of others."""
    before, busy, began = resource.getrusage(resource.RUSAGE_CHILDREN), busy_seconds(), time.monotonic()
    lines = json_lines(run(command))
    wall = time.monotonic() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall_seconds": wall, "cpu_seconds": used, "others_busy_seconds": busy_seconds() - busy - used, "lines": lines}


def one_run(side, workload, max_overhead):
    """One run of the program, under Terrace or alone. Under Terrace its own times are those of the report: the command's have Terrace's in them."""
    if side == "unmanaged":
        with swap_to_ourselves():
            return {"side": side, "command": workload, **measured(workload)}
    found = under_terrace(["run", "--max-overhead", max_overhead], workload, measured)
    result, report = found["result"], found["report"]
    own = {key: report["target"][key] for key in ("wall_seconds", "cpu_seconds")}
    return {"side": side, "command": found["command"], **result, **own, "report": report}


def one_round(number, workload, max_overhead):
    runs = [one_run(side, workload, max_overhead) for side in balanced(["unmanaged", "managed"])]

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
    options = parser(__doc__, out=True)
    options.add_argument("--programs", default="xsbench,gap-pr", help="workloads, with commas between them")
    options.add_argument("--size", default="640MiB", help="their footprint")
    options.add_argument("--operations", help="how much they do, in their own operations; else what they do by themselves")
    options.add_argument("--threads", default="1", help="their threads")
    options.add_argument("--rounds", type=int, default=5, help="rounds of four runs each")
    options.add_argument("--max-overhead", default="1%", help="what --max-overhead is set to")
    arguments = options.parse_args()
    ready(root=True)
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
    keep(arguments.out, "watching", {"programs": found})


if __name__ == "__main__":
    main()
