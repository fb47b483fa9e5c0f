"""Plots of comparisons and runs with matplotlib: what the pages of `--report` show.

In: what `compare` and `run` return. Out: matplotlib axes. Must not: compute a figure that the frame or report does not have.
"""

from __future__ import annotations

from typing import Any, Mapping, Optional

import numpy as np
import pandas as pd


def _axes(axes: Optional[Any], size: tuple[float, float] = (7, 4)) -> Any:
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=size, layout="constrained")[1] if axes is None else axes


def gains(comparison: Any, axes: Optional[Any] = None) -> Any:
    """Geometric mean of each policy's gain over all-slow memory with its 95 % interval, best on top. Takes what `compare` returned."""
    means = comparison.geomean.iloc[::-1]
    axes = _axes(axes, (7, 0.4 * len(means) + 1.2))
    middle = means["gain_over_all_slow"].to_numpy()
    reach = [middle - means["low"].to_numpy(), means["high"].to_numpy() - middle]
    axes.errorbar(middle, np.arange(len(means)), xerr=np.maximum(reach, 0), fmt="o", capsize=3)
    axes.set_yticks(np.arange(len(means)), means["policy"])
    axes.axvline(1, color="grey", linewidth=0.8)
    axes.set_xlabel("gain over all-slow memory (geometric mean, 95 % interval)")
    return axes


def by_size(cells: pd.DataFrame, y: str = "slowdown_vs_all_fast", axes: Optional[Any] = None) -> Any:
    """A line a policy: the mean of column `y` over workloads and seeds by the share of fast memory, in per cent."""
    axes = _axes(axes)
    for policy, rows in cells.groupby("policy", sort=False):
        means = rows.groupby("fast_share")[y].mean().sort_index()
        axes.plot(100 * means.index, means.to_numpy(), marker="o", label=policy)
    axes.set_xlabel("fast memory, % of the footprint")
    axes.set_ylabel(y.replace("_", " "))
    axes.legend()
    return axes


def hits(report: Mapping[str, Any], axes: Optional[Any] = None) -> Any:
    """Share of memory accesses that fast memory served over full-size seconds. Takes what `run` returned."""
    axes = _axes(axes)
    rows = report["series"]["rows"]
    share = [np.nan if row["fast_hit_share"] is None else 100 * row["fast_hit_share"] for row in rows]
    axes.plot([row["seconds"] for row in rows], share, label=report["policy"])
    axes.set_ylim(0, 100)
    axes.set_xlabel("time, s at full size")
    axes.set_ylabel("served by fast memory, %")
    axes.legend()
    return axes


def heat(report: Mapping[str, Any], axes: Optional[Any] = None) -> Any:
    """Accesses by address and time. Takes what `run` returned."""
    axes = _axes(axes)
    heat_map = report["heat_map"]
    counts = np.array(heat_map["rows"], dtype=float).T
    seconds = heat_map["nanos_per_row"] * counts.shape[1] / 1e9
    mebibytes = heat_map["pages_per_column"] * counts.shape[0] / 256
    shown = axes.imshow(np.log1p(counts), origin="lower", aspect="auto", extent=(0, seconds, 0, mebibytes), cmap="magma")
    axes.figure.colorbar(shown, ax=axes, label="accesses, log(1 + n)")
    axes.set_xlabel("time, s at full size")
    axes.set_ylabel("place in the program's memory, MiB")
    return axes
