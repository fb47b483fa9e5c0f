#!/usr/bin/env python3
"""Tables of docs/terrace-policy-evaluation.md, from the sweeps of one directory (needs pandas and pyarrow).

    for f in *.toml; do terrace sweep $f --output ${f%.toml}.parquet; done
    benchmarks/terrace_policy.py DIRECTORY

In: rivals, accessed-bits, accessed-bits-rivals and ablation-PIECE, one .parquet each. Out: Markdown on stdout. Nothing is simulated here.
"""

import sys
from pathlib import Path

import numpy as np
import pandas as pd

BOUNDS = ["clairvoyant"]
NOT_RIVALS = [*BOUNDS, "first-touch", "terrace"]


def geomean(values):
    return np.exp(np.log(values).mean())


def gains(file, columns="policy"):
    cells = pd.read_parquet(file)
    return cells.pivot_table(index=["machine", "fast", "workload"], columns=columns, values="gain_over_all_slow", aggfunc=geomean)


def table(head, rows):
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(x if isinstance(x, str) else f"{x:.2f}" for x in row) + " |")
    print()


def means(cells):
    by = np.exp(np.log(cells).groupby(level=["machine", "fast"]).mean())
    table(["policy", *(f"{m}, {f}" for m, f in by.index)], [[p, *by[p]] for p in sorted(by, key=lambda p: -geomean(by[p]))])


def programs(cells):
    rivals = cells.drop(columns=[c for c in NOT_RIVALS if c in cells])
    rows = []
    for (machine, fast, program), row in cells.iterrows():
        best = rivals.loc[(machine, fast, program)]
        rows.append([machine, fast, program, row["first-touch"], row["terrace"], f"{best.max():.2f} ({best.idxmax()})", row["clairvoyant"]])
    table(["machine", "fast", "program", "first-touch", "terrace", "best rival", "clairvoyant"], rows)
    to_first, to_best = cells["terrace"] / cells["first-touch"], cells["terrace"] / rivals.max(axis=1)
    print(f"Of {len(cells)} cells: at least 0.99 of first-touch in {(to_first >= 0.99).sum()}, least {to_first.min():.3f}; at least 0.99 of the best rival in "
          f"{(to_best >= 0.99).sum()}, behind it by more than 5 % in {(to_best < 0.95).sum()}, least {to_best.min():.3f}.\n")


def bits(directory):
    cells = gains(directory / "accessed-bits-rivals.parquet").droplevel(["machine", "fast"])
    cells["terrace"] = gains(directory / "accessed-bits.parquet").droplevel(["machine", "fast"])["terrace"]
    order = ["first-touch", "age", "flexhm", "terrace"]
    table(["program", *order], [[p, *row] for p, row in cells[order].iterrows()] + [["geometric mean", *geomean(cells[order])]])


def ablations(directory):
    whole, rows = gains(directory / "ablation-defaults.parquet")["terrace"], []
    for file in sorted(directory.glob("ablation-*.parquet")):
        piece = file.stem.removeprefix("ablation-")
        if piece == "defaults":
            continue
        ratio = whole / gains(file)["terrace"]
        for machine in sorted(ratio.index.unique("machine"), reverse=True):
            of = ratio.xs(machine, level="machine").droplevel("fast")
            rows.append([f"`{piece}`", machine, f"{geomean(of):.3f}", f"{of.max():.2f} ({of.idxmax()})", f"{of.min():.2f} ({of.idxmin()})",
                         str((of > 1.01).sum()), str((of < 0.99).sum())])
    table(["piece", "machine", "with it / without, mean", "most", "least", "gains 1 %", "loses 1 %"], rows)


def main():
    directory = Path(sys.argv[1])
    cells = gains(directory / "rivals.parquet")
    means(cells)
    programs(cells)
    bits(directory)
    ablations(directory)


if __name__ == "__main__":
    main()
