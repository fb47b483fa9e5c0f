#!/usr/bin/env python3
"""How much faster a sweep is than `terrace sim compare` called once for each policy, and whether both say the same.

    benchmarks/sweep_speed.py [--workload btree] [--size 128MiB] [--rounds 3] [--out DIR]

In: the program `terrace` (TERRACE, or target/release/terrace). Out: one JSON file in DIR with every time, and the table that is printed. Nothing
is asserted about time; cells that differ end the script with 1.

Ten policies on one program: the sweep runs the program once a core for all of them, the loop once a core for each (with the two bounds and
first touch). Rounds are balanced: loop, sweep, sweep, loop.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TERRACE = os.environ.get("TERRACE", str(ROOT / "target/release/terrace"))
POLICIES = ["first-touch", "age", "terrace", "flexmem", "memtis", "tpp", "hemem", "tiering08", "tieredmms", "flexhm"]


def sweep(folder, workload, size):
    """One sweep of all policies: seconds and rows."""
    specification = folder / "sweep.toml"
    lines = [
        f"policies = {json.dumps(POLICIES)}", f'workloads = ["{workload}"]', 'machines = ["optane-6252"]', 'fast = ["25%"]',
        "seeds = [1]", f'size = "{size}"', "threads = 4", "scale = 1024", 'pages = "4k"',
    ]
    specification.write_text("\n".join(lines) + "\n")
    table = folder / "sweep.jsonl"
    began = time.monotonic()
    subprocess.run([TERRACE, "sweep", str(specification), "--output", str(table)], check=True, capture_output=True)
    seconds = time.monotonic() - began
    rows = [json.loads(line) for line in table.read_text().splitlines()]
    return seconds, {row["policy"]: row["gain_over_all_slow"] for row in rows}


def loop(workload, size):
    """One comparison a policy: seconds and gains."""
    gains, began = {}, time.monotonic()
    for policy in POLICIES:
        command = [TERRACE, "sim", "compare", "--workloads", workload, "--policies", policy, "--machine", "optane-6252"]
        command += ["--fast", "25%", "--size", size, "--threads", "4", "--scale", "1024", "--pages", "4k", "--seeds", "1", "--json"]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        gains[policy] = json.loads(done.stdout)["cells"][0]["gain_over_all_slow"]
    return time.monotonic() - began, gains


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workload", default="btree")
    parser.add_argument("--size", default="128MiB")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/runs")
    arguments = parser.parse_args()
    rounds, known = [], None
    with tempfile.TemporaryDirectory() as folder:
        for number in range(arguments.rounds):
            times = {"loop": [], "sweep": []}
            for kind in ["loop", "sweep", "sweep", "loop"]:
                if kind == "loop":
                    seconds, gains = loop(arguments.workload, arguments.size)
                else:
                    seconds, gains = sweep(Path(folder), arguments.workload, arguments.size)
                times[kind].append(seconds)
                known = known or gains
                if any(abs(gains[policy] / known[policy] - 1) > 1e-12 for policy in POLICIES):
                    sys.exit(f"round {number + 1}: {kind} says {gains}, but before it was {known}")
            ratio = sum(times["loop"]) / sum(times["sweep"])
            rounds.append({**times, "ratio": ratio})
            shown = ", ".join(f"{kind} {' '.join(f'{s:.1f}' for s in seconds)} s" for kind, seconds in times.items())
            print(f"round {number + 1}: {shown}: {ratio:.2f} times as fast")
    median = statistics.median(one["ratio"] for one in rounds)
    print(f"median: {median:.2f} times as fast")
    version = subprocess.run([TERRACE, "--version"], check=True, capture_output=True, text=True).stdout.strip()
    result = {
        "command": "benchmarks/sweep_speed.py " + " ".join(sys.argv[1:]), "version": version, "cores": os.cpu_count(),
        "kernel": platform.release(), "policies": POLICIES, "workload": arguments.workload, "size": arguments.size,
        "rounds": rounds, "median_ratio": median, "gains": known,
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "sweep-speed.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
