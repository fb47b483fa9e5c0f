#!/usr/bin/env python3
"""Tables of a matrix that `terrace sim compare --json` wrote: for docs/comparison.md and the policies' pages.

    terrace sim compare ... --json > matrix.json
    benchmarks/matrix.py matrix.json [--policy NAME]
    benchmarks/matrix.py --traces DIR --out DIR    simulates the matrix of recorded programs (`make traces`), on one core

Without a policy: the geometric means with their intervals, and the mean gain over all-slow of every policy in every setting.
With one: in which settings it is ahead of first touch and of the others, and in which behind. Nothing is simulated for either.

With --traces: every policy on every trace of the first DIR at two sizes of fast memory on two machines. Each trace on a machine is a file of
--out as soon as it is over, which stays while the trace is the same: the same command goes on after a stop. In the end `summary.md`.
"""

import argparse
import hashlib
import json
import math
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TERRACE = os.environ.get("TERRACE", str(ROOT / "target/release/terrace"))
# What docs/comparison.md compares; `hotness-walk` needs the modelled MMU.
POLICIES = (
    "age,all-fast,all-slow,alto,arms,autonuma,chrono,clairvoyant,colloid,first-touch,flexhm,flexmem,hemem,hybridtier,interleave,memory-mode,memtis,nomad,"
    "numab2,pact,pond-static,terrace,thermostat,tieredmms,tiering08,tpp"
)
MACHINES = ["cxl-170", "optane-6252"]
FAST = "12.5%,25%"
# A recording stands for a program 256 times its size and length, tens of GiB as in the matrix of workloads: the policies' seconds are made for such runs.
SCALE = "256"
SEEDS = "1"


def geomean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


def bounds_of(data):
    """Policies that cannot be chosen on a real machine."""
    return {row["policy"] for row in data["geomean"] if row.get("bound")}


def settings_of(cells):
    """Gain over all-slow by setting and policy: the geometric mean over seeds."""
    gains = defaultdict(lambda: defaultdict(list))
    for cell in cells:
        gains[cell["workload"], cell["fast"]][cell["policy"]].append(cell["gain_over_all_slow"])
    return {setting: {policy: geomean(list_) for policy, list_ in by.items()} for setting, by in gains.items()}


def overview(data):
    settings = settings_of(data["cells"])
    print("| policy | gain over all-slow | 95 % | best in |\n|---|---|---|---|")
    for row in data["geomean"]:
        interval = f"{row['low']:.2f} to {row['high']:.2f}"
        best = "a bound" if row.get("bound") else row["best"]
        print(f"| {row['policy']} | {row['gain_over_all_slow']:.2f} | {interval} | {best} |")
    names = [row["policy"] for row in data["geomean"]]
    print("\n| setting | " + " | ".join(names) + " |\n|---|" + "---|" * len(names))
    for (workload, fast), by in settings.items():
        print(f"| {workload} {fast} | " + " | ".join(f"{by[name]:.2f}" for name in names) + " |")


def one(data, policy):
    print(f"{policy}: gain over all-slow, over first-touch, rank among the policies that are no bounds, best other")
    for (workload, fast), by in settings_of(data["cells"]).items():
        peers = {name: gain for name, gain in by.items() if name not in bounds_of(data) or name == policy}
        rank = sorted(peers, key=peers.get, reverse=True).index(policy) + 1
        best = max((name for name in peers if name != policy), key=peers.get)
        print(
            f"  {workload:18} {fast:>4}  {by[policy]:.2f}  {by[policy] / by['first-touch'] - 1:+6.1%}  "
            f"{rank:2} of {len(peers)}  {best} {by[best]:.2f}"
        )


def simulate(traces, out):
    """The matrix of the traces in a folder; returns its cells."""
    cells = []
    for machine in MACHINES:
        for trace in traces:
            file = out / f"{machine}-{trace.stem}.json"
            with open(trace, "rb") as open_trace:
                digest = hashlib.file_digest(open_trace, "sha256").hexdigest()
            if not file.exists() or any(cell["trace_hash"] != digest for cell in json.loads(file.read_text())["cells"]):
                words = ["sim", "compare", "--trace", trace, "--policies", POLICIES, "--fast", FAST, "--seeds", SEEDS, "--machine", machine, "--scale", SCALE, "--json"]
                done = subprocess.run([TERRACE, *words], capture_output=True, text=True)
                if done.returncode:
                    sys.exit(f"matrix.py: {trace} on {machine}: {(done.stderr.strip().splitlines() or ['no reason given'])[-1]}")
                part = file.with_suffix(".part")
                part.write_text(done.stdout.replace(str(ROOT) + "/", ""))
                part.replace(file)
                print(f"{machine}, {trace.stem}: done", flush=True)
            cells += json.loads(file.read_text())["cells"]
    return cells


def summary(cells):
    """Means by policy, and how Terrace's own stands to the best that could be chosen instead."""
    gains = {}
    for machine in MACHINES:
        for (workload, fast), by in settings_of(cell for cell in cells if cell["machine"] == machine).items():
            gains[machine, workload.removesuffix(".trace"), fast] = by
    bounds = {"all-fast", "all-slow", "clairvoyant"}
    means = {policy: geomean([by[policy] for by in gains.values()]) for policy in POLICIES.split(",")}
    lines = [f"{len(gains)} cells: programs, machines and sizes of fast memory ({FAST}), at scale 1:{SCALE}; {SEEDS} seeds each.", "", "| policy | gain over all-slow |", "|---|---|"]
    for policy in sorted(means, key=means.get, reverse=True):
        lines.append(f"| {policy} | {means[policy]:.3f}{' (a bound)' if policy in bounds else ''} |")
    behind = []
    for setting, by in gains.items():
        rival = max((policy for policy in by if policy not in bounds | {"terrace"}), key=by.get)
        behind.append((by["terrace"] / by[rival], " ".join(setting), f"{rival} {by[rival]:.2f}, terrace {by['terrace']:.2f}"))
    level = sum(ratio >= 0.99 for ratio, *_ in behind)
    worst = min(behind)
    lines += ["", f"terrace is ahead of the best rival or within 1 % of it in {level} of {len(behind)} cells ({level / len(behind):.0%}); "
              f"worst: {worst[1]}, {worst[0] - 1:+.1%} ({worst[2]})."]
    return "\n".join(lines)


def over_traces(folder, out):
    traces = sorted(folder.glob("*.trace"))
    if not traces:
        misuse(f"--traces {folder}: no *.trace there; `make traces` records them")
    if not os.access(TERRACE, os.X_OK):
        sys.exit(f"matrix.py: {TERRACE} is not there: run `make build` first, or set TERRACE")
    # One core: terrace takes as many as it may use.
    os.sched_setaffinity(0, [max(os.sched_getaffinity(0))])
    out.mkdir(parents=True, exist_ok=True)
    text = summary(simulate(traces, out))
    (out / "summary.md").write_text(text + "\n")
    print(text)


def misuse(text):
    print(f"matrix.py: {text}", file=sys.stderr)
    sys.exit(2)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, nargs="?", help="what terrace sim compare --json printed")
    parser.add_argument("--policy", help="one policy instead of all")
    parser.add_argument("--traces", type=Path, help="simulate the traces of this folder")
    parser.add_argument("--out", type=Path, help="with --traces: folder of the raw results and of summary.md")
    arguments = parser.parse_args()
    if arguments.traces and arguments.out and not arguments.file and not arguments.policy:
        return over_traces(arguments.traces, arguments.out)
    if arguments.traces or arguments.out or not arguments.file:
        misuse("expected FILE [--policy NAME], or --traces DIR --out DIR")
    data = json.loads(arguments.file.read_text())
    if arguments.policy:
        one(data, arguments.policy)
    else:
        overview(data)


if __name__ == "__main__":
    main()
