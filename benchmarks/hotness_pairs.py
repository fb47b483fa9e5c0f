#!/usr/bin/env python3
"""Where knowing the pieces of huge pages pays: runs of `terrace sim compare --json` that differ in page size, as a table.

    benchmarks/hotness_pairs.py whole.json[,more.json...] split.json[,...] small.json[,...] [--other unweighed.json[,...]] [--name NAME]

--other: files of further runs, each given a column of run times and one of management in a second table, beside split.
--name: what the workload is called, where options of it differ. whole: `--pages 2m --set hotness-walk.split=off`; split: `--pages 2m`; small: `--pages 4k`. Run times are over those with everything
fast and mapped by 2 MiB; a gain is whole over split, less one, as the mean and the range over seeds. Nothing is simulated here.
"""

import argparse
import json
from pathlib import Path


def cells(files):
    found = {}
    for name in files.split(","):
        for cell in json.loads(Path(name).read_text())["cells"]:
            if cell["policy"] == "hotness-walk":
                found.setdefault((cell["workload"], cell["fast"]), {})[cell["seed"]] = cell
    return found


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for kind in ("whole", "split", "small"):
        parser.add_argument(kind, help="JSON of compare, files apart by commas")
    parser.add_argument("--other", action="append", default=[], help="further runs by 2 MiB; may be given several times")
    parser.add_argument("--name", help="what the workload is called")
    arguments = parser.parse_args()
    whole, split, small = (cells(files) for files in (arguments.whole, arguments.split, arguments.small))
    print("| workload | fast | whole | split | 4 KiB | gain of splitting | fast hits: whole, split, 4 KiB | management ms: whole, split, 4 KiB |")
    print("|---|---|---|---|---|---|---|---|")
    for setting, seeds in whole.items():
        of = [[by[setting][seed] for seed in seeds] for by in (whole, split, small)]
        # With everything fast a run of 2 MiB takes so long; that of 4 KiB is measured by the same.
        floor = [cell["seconds"] / cell["slowdown_vs_all_fast"] for cell in of[0]]
        times = [[cell["seconds"] / least for cell, least in zip(by, floor)] for by in of]
        gains = [a / b - 1 for a, b in zip(times[0], times[1])]
        gain = f"{mean(gains):+.1%}" + (f" ({min(gains):+.1%} to {max(gains):+.1%})" if len(gains) > 1 else "")
        hits = ", ".join(f"{mean(cell['fast_hit_share'] for cell in by):.0%}" for by in of)
        work = ", ".join(f"{mean(cell['management_seconds'] for cell in by) * 1e3:.1f}" for by in of)
        row = [arguments.name or setting[0], setting[1], *(f"{mean(by):.3f}" for by in times), gain, hits, work]
        print("| " + " | ".join(row) + " |")
    if not arguments.other:
        return
    others = [split, *(cells(files) for files in arguments.other)]
    print("\n| workload | fast | run time: split, others | fast hits | management ms |")
    print("|---|---|---|---|---|")
    for setting, seeds in whole.items():
        of = [[by[setting][seed] for seed in seeds] for by in others]
        floor = [whole[setting][seed]["seconds"] / whole[setting][seed]["slowdown_vs_all_fast"] for seed in seeds]
        times = ", ".join(f"{mean(cell['seconds'] / least for cell, least in zip(by, floor)):.3f}" for by in of)
        hits = ", ".join(f"{mean(cell['fast_hit_share'] for cell in by):.0%}" for by in of)
        work = ", ".join(f"{mean(cell['management_seconds'] for cell in by) * 1e3:.1f}" for by in of)
        print("| " + " | ".join([arguments.name or setting[0], setting[1], times, hits, work]) + " |")


if __name__ == "__main__":
    main()
