#!/usr/bin/env python3
"""How much faster a sweep is than `terrace sim compare` called once for each policy, and whether both say the same.

    benchmarks/sweep_speed.py [--workload btree] [--size 128MiB] [--rounds 3] [--out DIR]

In: the program `terrace` (TERRACE, or target/release/terrace). Out: DIR/sweep-speed.json with every time and gain, and a line a round. Must not: assert a time.
Exit: 1 where the cells of both differ.

Ten policies on one program: the sweep runs the program once a core for all of them, the loop once a core for each (with the two bounds and
first touch). Rounds are balanced: loop, sweep, sweep, loop.
"""

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

from rounds import TERRACE, balanced, keep, parser, ready, run

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
    run([TERRACE, "sweep", str(specification), "--output", str(table)])
    seconds = time.monotonic() - began
    rows = [json.loads(line) for line in table.read_text().splitlines()]
    return seconds, {row["policy"]: row["gain_over_all_slow"] for row in rows}


def loop(workload, size):
    """One comparison a policy: seconds and gains."""
    gains, began = {}, time.monotonic()
    for policy in POLICIES:
        command = [TERRACE, "sim", "compare", "--workloads", workload, "--policies", policy, "--machine", "optane-6252"]
        command += ["--fast", "25%", "--size", size, "--threads", "4", "--scale", "1024", "--pages", "4k", "--seeds", "1", "--json"]
        gains[policy] = json.loads(run(command))["cells"][0]["gain_over_all_slow"]
    return time.monotonic() - began, gains


def main():
    options = parser(__doc__, out=True)
    options.add_argument("--workload", default="btree")
    options.add_argument("--size", default="128MiB")
    options.add_argument("--rounds", type=int, default=3)
    arguments = options.parse_args()
    ready()
    rounds, known = [], None
    with tempfile.TemporaryDirectory() as folder:
        for number in range(arguments.rounds):
            times = {"loop": [], "sweep": []}
            for kind in balanced(["loop", "sweep"]):
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
    result = {"version": run([TERRACE, "--version"]).strip(), "policies": POLICIES, "workload": arguments.workload, "size": arguments.size}
    keep(arguments.out, "sweep-speed", {**result, "rounds": rounds, "median_ratio": median, "gains": known})


if __name__ == "__main__":
    main()
