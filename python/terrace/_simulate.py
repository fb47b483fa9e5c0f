"""`compare` and `run`: the same as `terrace sim compare` and `terrace sim run`.

In: lists and numbers. Out: a data frame, or a report. Must not: have a model of its own.
"""

from __future__ import annotations

import json
import os
from typing import Any, Callable, Mapping, Optional, Sequence, Union

import pandas as pd

from . import _native
from ._policy import Policy

PolicyLike = Union[str, type]
Path = Union[str, "os.PathLike[str]"]


class Comparison(pd.DataFrame):
    """A data frame with a row a cell. `geomean` and `duels` say what the cells say together, as data frames."""

    _metadata = ["_geomean", "_duels"]

    @property
    def _constructor(self) -> type:
        return Comparison

    @property
    def geomean(self) -> pd.DataFrame:
        """By policy, best first: `gain_over_all_slow` (geometric mean), `low` and `high` (its 95 % interval), `cells`, `best`, `bound`."""
        return pd.DataFrame(self._geomean)

    @property
    def duels(self) -> pd.DataFrame:
        """Every ordered pair of policies: `wins`, `losses`, `draws` (within 1 %), `ratio` with `low` and `high`."""
        return pd.DataFrame(self._duels)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)


def _pairs(settings: Optional[Mapping[str, Any]]) -> list[str]:
    return [f"{key}={_text(value)}" for key, value in (settings or {}).items()]


def _named(policies: Sequence[PolicyLike]) -> tuple[list[str], dict[str, Any]]:
    names: list[str] = []
    own: dict[str, Any] = {}
    for policy in policies:
        if isinstance(policy, str):
            names.append(policy)
        elif isinstance(policy, type) and issubclass(policy, Policy):
            names.append(policy.name)
            own[policy.name] = policy
        else:
            raise TypeError(f"policies: {policy!r}: expected a name or a class derived from terrace.Policy")
    return names, own


def _list(name: str, value: Any) -> list[Any]:
    if isinstance(value, (str, bytes)):
        raise TypeError(f"{name}: {value!r}: expected a list")
    return list(value)


def _model(machine: str, size: str, threads: int, scale: Optional[int], pages: str, operations: Optional[int],
           settings: Optional[Mapping[str, Any]], workload_settings: Optional[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "machine": machine, "size": str(size), "threads": threads, "scale": scale, "pages": pages, "operations": operations,
        "settings": _pairs(settings), "workload_settings": _pairs(workload_settings),
    }


def compare(
    workloads: Sequence[str] = (),
    policies: Sequence[PolicyLike] = (),
    fast: Sequence[str] = ("25%", "50%"),
    seeds: int = 5,
    *,
    traces: Sequence[Path] = (),
    first_seed: int = 1,
    machine: str = "optane-6252",
    size: str = "256MiB",
    threads: int = 4,
    scale: Optional[int] = None,
    pages: str = "thp",
    operations: Optional[int] = None,
    settings: Optional[Mapping[str, Any]] = None,
    workload_settings: Optional[Mapping[str, Any]] = None,
    max_footprint: str = "16GiB",
    progress: Optional[Callable[[int, int], None]] = None,
) -> Comparison:
    """Runs every policy on every workload and trace at every size with every seed, on all cores.

    workloads: names of `terrace.workloads()`. traces: files of `terrace record` or `terrace.write_trace`.
    policies: names of `terrace.policies()`, or classes derived from `terrace.Policy`.
    fast: fast memory, as shares of the footprint (`"25%"`) or amounts on the scaled machine (`"64MiB"`).
    seeds: how many seeds, from `first_seed` on. size: footprint on the scaled machine. scale: 64 unless a trace names its own.
    settings: `{"POLICY.KEY": value}`. workload_settings: `{"KEY": value}`.
    progress: is called now and then with runs done and runs there are.

    Returns a data frame with one row a cell, workload by workload, and the keys of `terrace sim compare --json` as columns: among them
    `workload, policy, fast, seed, gain_over_all_slow` (1 is no gain), `slowdown_vs_all_fast`, `seconds` (of the scaled machine), `fast_bytes`,
    `settings` (a dict), `machine`, `version`, `commit`, `command`. `.geomean` and `.duels` sum it up.

    Raises ValueError for what makes no sense, RuntimeError where a simulation fails, KeyboardInterrupt, and whatever a policy in Python raised.
    """
    names, own = _named(_list("policies", policies))
    model = _model(machine, size, threads, scale, pages, operations, settings, workload_settings)
    text = _native.compare(
        _list("workloads", workloads), [os.fspath(trace) for trace in _list("traces", traces)], names, own, _list("fast", fast), seeds,
        first_seed, max_footprint, model, progress,
    )
    found = json.loads(text)
    cells = Comparison(found["cells"])
    cells._geomean, cells._duels = found["geomean"], found["duels"]
    return cells


def run(
    workload: Optional[str] = None,
    policy: PolicyLike = "flexmem",
    fast: str = "50%",
    seed: int = 1,
    *,
    trace: Optional[Path] = None,
    machine: str = "optane-6252",
    size: str = "256MiB",
    threads: int = 4,
    scale: Optional[int] = None,
    pages: str = "thp",
    operations: Optional[int] = None,
    settings: Optional[Mapping[str, Any]] = None,
    workload_settings: Optional[Mapping[str, Any]] = None,
    max_footprint: str = "16GiB",
) -> dict[str, Any]:
    """Runs one workload or trace under one policy, and its two bounds. Arguments are as in `compare`.

    Returns the report: the keys of `terrace sim run --json`, and `heat_map`, which that leaves out (accesses by address and time).

    Raises as `compare` does.
    """
    names, own = _named([policy])
    model = _model(machine, size, threads, scale, pages, operations, settings, workload_settings)
    text = _native.run(workload, None if trace is None else os.fspath(trace), names[0], own, fast, seed, max_footprint, model)
    return dict(json.loads(text))
