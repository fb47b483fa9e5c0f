#!/usr/bin/env python3
"""Tables of kept simulations, as the documents have them.

    benchmarks/tables.py matrix FILE [--policy NAME]   docs/comparison.md: means and all settings, or how one policy stands in each
    benchmarks/tables.py rivals FILE                   means, and how `terrace` stands to the best that could be chosen instead
    benchmarks/tables.py evaluation DIR                docs/terrace-policy-evaluation.md, from the sweeps of one directory
    benchmarks/tables.py pairs WHOLE SPLIT SMALL       docs/hotness-walk.md: where knowing the pieces of huge pages pays

In: what `terrace sim compare --json` printed, or the table of a `terrace sweep` (.jsonl, .csv, or .parquet, which needs pyarrow). matrix reads the former
alone. DIR has rivals and ablation-PIECE, and may have accessed-bits with accessed-bits-rivals, one .parquet each. Out: Markdown on stdout. Must not: simulate, or write.

WHOLE: runs with `--pages 2m --set hotness-walk.split=off`; SPLIT: `--pages 2m`; SMALL: `--pages 4k`; of each several files, with commas between. Run times are
over those with everything fast and mapped by 2 MiB; a gain is whole over split, less one, as the mean and the range over seeds.
"""

import csv
import json
import statistics
from collections import defaultdict
from pathlib import Path

from rounds import geomean, parser, spread, table

# Policies that cannot be chosen on a real machine.
BOUNDS = {"all-fast", "all-slow", "clairvoyant"}


def cells_of(file):
    if file.suffix == ".parquet":
        import pyarrow.parquet

        return pyarrow.parquet.read_table(file).to_pylist()
    with open(file, newline="") as lines:
        if file.suffix == ".csv":
            # Tables of before there were sweeps of traces have the program under another name.
            found = [{"workload": cell.pop("trace", None), **cell} for cell in csv.DictReader(lines)]
            return [cell | {"gain_over_all_slow": float(cell["gain_over_all_slow"])} for cell in found]
        return [json.loads(line) for line in lines] if file.suffix == ".jsonl" else json.load(lines)["cells"]


def gains_of(cells, *keys):
    """Gain over all-slow by setting (its values of these keys) and policy: the geometric mean over seeds."""
    gains = defaultdict(lambda: defaultdict(list))
    for cell in cells:
        gains[tuple(cell[key] for key in keys)][cell["policy"]].append(cell["gain_over_all_slow"])
    return {setting: {policy: geomean(all) for policy, all in by.items()} for setting, by in gains.items()}


def matrix(arguments):
    data = json.loads(arguments.file.read_text())
    settings = gains_of(data["cells"], "workload", "fast")
    if policy := arguments.policy:
        print(f"{policy}: gain over all-slow, over first-touch, rank among the policies that are no bounds, best other")
        for (workload, fast), by in settings.items():
            peers = {name: gain for name, gain in by.items() if name not in BOUNDS or name == policy}
            rank = sorted(peers, key=peers.get, reverse=True).index(policy) + 1
            best = max((name for name in peers if name != policy), key=peers.get)
            over = by[policy] / by["first-touch"] - 1
            print(f"  {workload:18} {fast:>4}  {by[policy]:.2f}  {over:+6.1%}  {rank:2} of {len(peers)}  {best} {by[best]:.2f}")
        return
    means = data["geomean"]
    interval = lambda mean: f"{mean['low']:.2f} to {mean['high']:.2f}"
    rows = [[mean["policy"], mean["gain_over_all_slow"], interval(mean), "a bound" if mean.get("bound") else mean["best"]] for mean in means]
    print(table(["policy", "gain over all-slow", "95 %", "best in"], rows))
    names = [mean["policy"] for mean in means]
    print("\n" + table(["setting", *names], [[" ".join(setting), *(by[name] for name in names)] for setting, by in settings.items()]))


def best_rival(by):
    return max((name for name in by if name not in BOUNDS | {"first-touch", "terrace"}), key=by.get)


def means(gains, whole=False):
    """Geometric means of all programs by policy, machine and size, and of the whole. `gains` is by machine, size and program."""
    places = sorted({setting[:2] for setting in gains})
    by = {policy: [geomean([gains[at][policy] for at in gains if at[:2] == place]) for place in places] for policy in next(iter(gains.values()))}
    order = sorted(by, key=lambda policy: -geomean(by[policy]))
    all = lambda policy: [geomean(by[policy])] if whole else []
    print(table(["policy", *map(", ".join, places), *["all"] * whole], [[policy, *by[policy], *all(policy)] for policy in order]) + "\n")


def standing(gains):
    """How `terrace` stands to first touch and to the best rival, cell by cell."""
    first = {at: by["terrace"] / by["first-touch"] for at, by in gains.items()}
    best = {at: by["terrace"] / by[best_rival(by)] for at, by in gains.items()}
    worst = min(best, key=best.get)
    print(f"Of {len(gains)} cells: at least 0.99 of first-touch in {sum(ratio >= 0.99 for ratio in first.values())}, least {min(first.values()):.3f}; "
          f"at least 0.99 of the best rival in {sum(ratio >= 0.99 for ratio in best.values())}, behind it by more than 5 % in "
          f"{sum(ratio < 0.95 for ratio in best.values())}, least {best[worst]:.3f} ({', '.join(worst)}: {best_rival(gains[worst])}).\n")


def rivals(arguments):
    gains = gains_of(cells_of(arguments.file), "machine", "fast", "workload")
    means(gains, whole=True)
    standing(gains)


def evaluation(arguments):
    read = lambda name: dict(sorted(gains_of(cells_of(arguments.directory / f"{name}.parquet"), "machine", "fast", "workload").items()))
    gains = read("rivals")
    means(gains)
    shown = lambda by: [by["first-touch"], by["terrace"], f"{by[best_rival(by)]:.2f} ({best_rival(by)})", by["clairvoyant"]]
    print(table(["machine", "fast", "program", "first-touch", "terrace", "best rival", "clairvoyant"], [[*at, *shown(by)] for at, by in gains.items()]) + "\n")
    standing(gains)
    if (arguments.directory / "accessed-bits.parquet").exists():
        order, own, rows = ["first-touch", "age", "flexhm", "terrace"], read("accessed-bits"), []
        for at, by in read("accessed-bits-rivals").items():
            rows.append([at[2], *((own[at] if name == "terrace" else by)[name] for name in order)])
        rows.append(["geometric mean", *(geomean(column) for column in list(zip(*rows))[1:])])
        print(table(["program", *order], rows) + "\n")
    whole, rows = read("ablation-defaults"), []
    for file in sorted(arguments.directory.glob("ablation-*.parquet")):
        if file.stem == "ablation-defaults":
            continue
        without = read(file.stem)
        for machine in sorted({at[0] for at in whole}, reverse=True):
            of = {at[2]: whole[at]["terrace"] / without[at]["terrace"] for at in whole if at[0] == machine}
            ends = [f"{of[name]:.2f} ({name})" for name in (max(of, key=of.get), min(of, key=of.get))]
            counts = sum(ratio > 1.01 for ratio in of.values()), sum(ratio < 0.99 for ratio in of.values())
            rows.append([f"`{file.stem.removeprefix('ablation-')}`", machine, f"{geomean(of.values()):.3f}", *ends, *counts])
    print(table(["piece", "machine", "with it / without, mean", "most", "least", "gains 1 %", "loses 1 %"], rows) + "\n")


def pairs(arguments):
    def by_seed(files):
        found = defaultdict(dict)
        for cell in (cell for name in files.split(",") for cell in cells_of(Path(name)) if cell["policy"] == "hotness-walk"):
            found[cell["workload"], cell["fast"]][cell["seed"]] = cell
        return found

    whole, split, small = map(by_seed, (arguments.whole, arguments.split, arguments.small))
    others = [split, *map(by_seed, arguments.other)]

    def figures(runs, setting):
        """Of some files at a setting: run times by seed, hit shares and management, each in a list by file."""
        of = [[by[setting][seed] for seed in whole[setting]] for by in runs]
        # With everything fast a run of 2 MiB takes so long; that of 4 KiB is measured by the same.
        floor = [cell["seconds"] / cell["slowdown_vs_all_fast"] for cell in whole[setting].values()]
        mean = lambda by, key: statistics.fmean(cell[key] for cell in by)
        times = [[cell["seconds"] / least for cell, least in zip(by, floor)] for by in of]
        return times, ", ".join(f"{mean(by, 'fast_hit_share'):.0%}" for by in of), ", ".join(f"{mean(by, 'management_seconds') * 1e3:.1f}" for by in of)

    first, second = [], []
    for setting in whole:
        name = [arguments.name or setting[0], setting[1]]
        times, *rest = figures([whole, split, small], setting)
        gains = [one / other - 1 for one, other in zip(times[0], times[1])]
        first.append([*name, *(f"{statistics.fmean(by):.3f}" for by in times), spread(gains, "+.1%", statistics.fmean), *rest])
        times, *rest = figures(others, setting)
        second.append([*name, ", ".join(f"{statistics.fmean(by):.3f}" for by in times), *rest])
    kinds = "whole, split, 4 KiB"
    print(table(["workload", "fast", *kinds.split(", "), "gain of splitting", f"fast hits: {kinds}", f"management ms: {kinds}"], first))
    if arguments.other:
        print("\n" + table(["workload", "fast", "run time: split, others", "fast hits", "management ms"], second))


def main():
    options = parser(__doc__)
    kinds = options.add_subparsers(required=True, metavar="matrix|rivals|evaluation|pairs")

    def kind(work, type, *names):
        one = kinds.add_parser(work.__name__)
        one.set_defaults(work=work)
        for name in names:
            one.add_argument(name, type=type)
        return one

    kind(matrix, Path, "file").add_argument("--policy", help="one policy instead of all")
    kind(rivals, Path, "file")
    kind(evaluation, Path, "directory")
    of_pairs = kind(pairs, str, "whole", "split", "small")
    of_pairs.add_argument("--other", action="append", default=[], help="further runs by 2 MiB, a column each in a second table; may be given several times")
    of_pairs.add_argument("--name", help="what the workload is called, where options of it differ")
    arguments = options.parse_args()
    try:
        arguments.work(arguments)
    except OSError as error:
        options.error(f"{error.filename}: {error.strerror}")
    except ModuleNotFoundError as error:
        options.error(f"a .parquet needs {error.name}: pip install pyarrow")


if __name__ == "__main__":
    main()
