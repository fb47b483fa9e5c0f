#!/usr/bin/env python3
"""Tables of a matrix that `terrace sim compare --json` wrote: for docs/comparison.md and the policies' pages.

    terrace sim compare ... --json > matrix.json
    benchmarks/matrix.py matrix.json [--policy NAME]

Without a policy: the geometric means with their intervals, and the mean gain over all-slow of every policy in every setting.
With one: in which settings it is ahead of first touch and of the others, and in which behind. Nothing is simulated here.
"""

import argparse
import json
import math
from collections import defaultdict
from pathlib import Path

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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="what terrace sim compare --json printed")
    parser.add_argument("--policy", help="one policy instead of all")
    arguments = parser.parse_args()
    data = json.loads(arguments.file.read_text())
    if arguments.policy:
        one(data, arguments.policy)
    else:
        overview(data)


if __name__ == "__main__":
    main()
