"""`advise`: the same as `terrace size advise` of a workload or a recorded program.

In: a program, machines, a target, prices. Out: a data frame. Must not: have a model of its own.
"""

from __future__ import annotations

import json
import os
from typing import Any, Callable, Mapping, Optional, Sequence, Union

import pandas as pd

from . import _native
from ._simulate import Path, _list, _model


class Advice(pd.DataFrame):
    """A data frame with a row a machine. `seen` says in a sentence what it rests on, `curves` has each policy's losses."""

    _metadata = ["_seen", "_curves"]

    @property
    def _constructor(self) -> type:
        return Advice

    @property
    def seen(self) -> str:
        """What was played, of how large a program."""
        return self._seen

    @property
    def curves(self) -> pd.DataFrame:
        """A row for each machine, policy and size: `fast_share` of the resident size, `loss` of the program's time with its interval of nine in ten
        (`loss_low`, `loss_high`), `probability_over_target`, `slow_share` of the accesses to memory, `slow_share_by_recency`, `moves_a_page`."""
        return pd.DataFrame(self._curves)


def _share(value: Union[str, float]) -> str:
    return value if isinstance(value, str) else repr(float(value))


def advise(
    workload: Optional[str] = None,
    *,
    trace: Optional[Path] = None,
    machines: Union[str, Sequence[str]] = "all",
    policies: Sequence[str] = ("tpp", "flexmem", "terrace"),
    max_slowdown: Union[str, float] = "5%",
    fast: Sequence[str] = (),
    prices: Sequence[float] = (4, 2),
    seed: int = 1,
    size: str = "256MiB",
    threads: int = 4,
    scale: Optional[int] = None,
    pages: str = "thp",
    operations: Optional[int] = None,
    settings: Optional[Mapping[str, Any]] = None,
    workload_settings: Optional[Mapping[str, Any]] = None,
    sample: int = 2048,
    groups: int = 4,
    max_footprint: str = "16GiB",
    progress: Optional[Callable[[int, int], None]] = None,
) -> Advice:
    """How much fast memory to buy for a program, machine by machine, and the policy that keeps it.

    workload: a name of `terrace.workloads()`; or trace: a file of `terrace record` or `terrace.write_trace`. A running program is watched by the
    command alone (`terrace size advise -- CMD`).
    machines: names of `terrace.machines()` or files, or `"all"`. policies: names; first-touch, which moves nothing, is always among them.
    max_slowdown: most time that may be lost, as `"5%"` or `0.05`. fast: sizes to choose between, as shares; twelve from 5% to 98% unless given.
    prices: what a gigabyte of fast and of slow memory costs, in any currency.
    sample: pages of each sample, at least. groups: samples, 2 to 16, from whose differences errors follow. The rest is as in `compare`.
    progress: is called now and then with machines done and machines there are.

    Returns a data frame with a row a machine and the keys of `machines` of `terrace size advise --json` as columns: `machine`, `fast_share` (the
    careful size: a loss above `max_slowdown` has a probability of at most 2 %), `fast_share_expected`, `policy`, `probability_over_target`,
    `cost_saved_share`, `cost_saved_share_expected`; then `resident_bytes` of the program at full size, and what made it (`workload`, `settings`,
    `seed`, `version`, `commit`, `command`, ...). `.curves` has every size, `.seen` what it rests on.

    Raises ValueError for what makes no sense, RuntimeError where a simulation fails, KeyboardInterrupt.
    """
    names = machines if isinstance(machines, str) else ",".join(_list("machines", machines))
    model = _model(names, size, threads, scale, pages, operations, settings, workload_settings)
    try:
        price_fast, price_slow = prices
    except (TypeError, ValueError):
        raise ValueError(f"prices: {prices!r}: expected those of fast and of slow memory, such as (4, 2)") from None
    asked = {
        "workload": workload, "trace": None if trace is None else os.fspath(trace), "policies": _list("policies", policies),
        "max_slowdown": _share(max_slowdown), "fast": [_share(one) for one in _list("fast", fast)], "prices": f"{price_fast}:{price_slow}",
        "seed": seed, "sample": sample, "groups": groups, "max_footprint": max_footprint,
    }
    text = _native.advise(*asked.values(), model, _command(asked, model), progress)
    found = json.loads(text)
    made = {key: value for key, value in found.items() if key not in ("machines", "machine", "machine_hash", "policy", "profile", "not_enough_seen", "seen", "basis")}
    rows = [{key: value for key, value in row.items() if key not in ("curve", "policies")} | made for row in found["machines"]]
    advice = Advice(rows)
    advice._seen = found["seen"]
    advice._curves = [
        {"machine": row["machine"], "policy": curve["policy"]} | point for row in found["machines"] for curve in row["policies"] for point in curve["curve"]
    ]
    return advice


def _command(asked: Mapping[str, Any], model: Mapping[str, Any]) -> list[str]:
    """The command that gives the same advice."""
    words = ["size", "advise"]
    options = {
        "workload": asked["workload"], "trace": asked["trace"], "max-footprint": asked["max_footprint"], "seed": asked["seed"],
        "machines": model["machine"], "size": None if asked["trace"] else model["size"], "threads": model["threads"], "scale": model["scale"],
        "pages": model["pages"], "operations": model["operations"], "max-slowdown": asked["max_slowdown"],
        "policies": ",".join(asked["policies"]) or None, "fast": ",".join(asked["fast"]) or None, "sample": asked["sample"],
        "groups": asked["groups"], "prices": asked["prices"],
    }
    for name, value in options.items():
        if value is not None:
            words += [f"--{name}", str(value)]
    for name, pairs in (("set", model["settings"]), ("workload-set", model["workload_settings"])):
        for pair in pairs:
            words += [f"--{name}", pair]
    return words + ["--json"]
