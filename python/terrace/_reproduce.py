"""The papers' figures, run and judged as `terrace reproduce` does.

In: ids. Out: data frames. Must not: know a row.
"""

from __future__ import annotations

import json
import os
from typing import Any, Callable, Mapping, Optional, Sequence, Union

import pandas as pd

from . import _native
from ._simulate import _pairs

Path = Union[str, "os.PathLike[str]"]


def experiments(file: Optional[Path] = None) -> pd.DataFrame:
    """The rows that `reproduce` can run: `id`, `quantity`, `unit`, the paper's number with its words and place, and how many runs it takes.

    file: an experiments file of one's own (docs/experiments.md describes it) instead of the built-in ones.
    """
    return pd.DataFrame(json.loads(_native.experiments(None if file is None else os.fspath(file)))["rows"])


def reproduce(
    ids: Union[str, Sequence[str]],
    *,
    scale: int = 4096,
    seed: int = 1,
    seeds: int = 1,
    settings: Optional[Mapping[str, Any]] = None,
    file: Optional[Path] = None,
    progress: Optional[Callable[[int, int], None]] = None,
) -> pd.DataFrame:
    """Runs rows of papers on modelled hardware and compares with the papers' numbers.

    ids: one or a list of those of `experiments()`, or beginnings of them, such as `"FM.fig6"`.
    scale: factor by which machines and programs are shrunk, 64 to 4096; 4096 is a first look.
    seed: the first of `seeds` seeds; with several, values get a 95 % interval.
    settings: `{"POLICY.KEY": value}`, in place of the rows' own. file: as in `experiments`.
    progress: is called now and then with runs done and runs there are.

    Returns one row a figure, with the keys of a row of `terrace reproduce --json` as columns: among them `id`, `quantity`, `unit`, `paper` (its
    number), `ours` (the mean over seeds, with `ours_low` and `ours_high`), `verdict` with `verdict_why`, `config`, `settings`, `command`.

    Raises ValueError for what does not exist or needs a performance database, RuntimeError where a run fails,
    KeyboardInterrupt once the runs in hand are done.
    """
    text = _native.reproduce(
        [ids] if isinstance(ids, str) else list(ids), scale, seed, seeds, _pairs(settings), None if file is None else os.fspath(file), progress,
    )
    return pd.DataFrame(json.loads(text))
