"""Sweeps: many machines, programs, policies, settings, sizes and seeds, into one table, here or on Dask.

In: a specification. Out: a data frame, and a table in a file. Must not: compute a finished cell twice, or give other bytes on other workers.
"""

from __future__ import annotations

import functools
import json
import os
import tempfile
from typing import Any, Callable, Mapping, Optional, Union

import pandas as pd

from . import _native

Path = Union[str, "os.PathLike[str]"]
Bounds = tuple[float, float]


def sweep(
    specification: Union[Path, Mapping[str, Any]],
    output: Optional[Path] = None,
    *,
    client: Any = None,
    progress: Optional[Callable[[int, int], None]] = None,
) -> pd.DataFrame:
    """Runs a sweep, as `terrace sweep FILE.toml --output FILE` does.

    specification: the file, or a dict of the same keys (`machines, policies, workloads, traces, fast, seeds, settings, size, ...`).
    output: the table, a name that ends in .parquet, .csv or .jsonl. What is finished is kept beside it until the table is there, so
    that the same call goes on after an interruption. None keeps no table.
    client: None runs on all cores of this process. `"local"` starts a Dask cluster of local processes, one a core; an address
    (`"tcp://10.0.0.1:8786"`) is that of a scheduler; a `distributed.Client` is used as it is. Workers need this build of Terrace, and the
    same traces under the same paths. A worker that is lost loses its cells to others; the bytes of the table are the same.
    progress: is called with runs done and runs there are.

    Returns one row a cell, in the order of the specification.

    Raises ValueError for what makes no sense, RuntimeError where a cell fails, OSError where the table cannot be written.
    """
    if isinstance(specification, Mapping):
        text, named, folder = _native.specification(json.dumps(specification)), "the specification", os.getcwd()
    else:
        named = os.fspath(specification)
        folder = os.path.dirname(os.path.abspath(named))
        with open(named, encoding="utf-8") as file:
            text = file.read()
    whole = _native.Sweep(text, named, folder)
    with tempfile.TemporaryDirectory() as scratch:
        whole.open(os.fspath(output) if output is not None else os.path.join(scratch, "table.jsonl"))
        try:
            if client is None:
                whole.run(progress)
            else:
                _on_dask(whole, (text, named, folder, whole.fingerprint), client, progress)
            rows = whole.finish()
        finally:
            # A traceback that someone keeps holds this frame, and with it the journal's lock.
            whole.close()
        return pd.DataFrame(json.loads(rows))


def _on_dask(whole: Any, part: tuple[str, str, str, str], client: Any, progress: Optional[Callable[[int, int], None]]) -> None:
    try:
        from distributed import Client, LocalCluster, as_completed
    except ImportError as missing:
        raise ImportError("client: Dask is not installed; pip install 'terrace[dask]'") from missing

    def run(client: Any) -> None:
        cores = sum(client.nthreads().values())
        batches = {
            client.submit(_rows, part, group, cells, whole.bounds(group), pure=False): (group, cells) for group, cells in whole.batches(cores)
        }
        try:
            for future in as_completed(list(batches)):
                bounds, rows = future.result()
                group, cells = batches[future]
                whole.add_bounds(group, bounds)
                for cell, row in zip(cells, rows):
                    whole.add_row(cell, row)
                if progress is not None:
                    progress(whole.done(), whole.cells + whole.groups)
        except BaseException:
            client.cancel(list(batches))
            raise

    if isinstance(client, Client):
        run(client)
    elif client == "local":
        with LocalCluster(processes=True, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as local:
            run(local)
    elif isinstance(client, str):
        with Client(client) as remote:
            run(remote)
    else:
        raise TypeError(f"client: {client!r}: expected None, \"local\", a scheduler's address, or a distributed.Client")


@functools.lru_cache(maxsize=4)
def _same(part: tuple[str, str, str, str]) -> Any:
    text, named, folder, fingerprint = part
    here = _native.Sweep(text, named, folder)
    if here.fingerprint != fingerprint:
        raise RuntimeError(f"this worker has another build of Terrace, or other traces: {here.fingerprint}; the client has {fingerprint}")
    return here


def _rows(part: tuple[str, str, str, str], group: int, cells: list[int], bounds: Optional[Bounds]) -> tuple[Bounds, list[str]]:
    return _same(part).rows_of(group, cells, bounds)
