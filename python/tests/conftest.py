"""What the tests share: the command, and a small trace."""

import os
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def command():
    """The command `terrace` of the same commit; the script names it."""
    path = os.environ.get("TERRACE_COMMAND")
    if not path:
        pytest.skip("SKIPPED: TERRACE_COMMAND names no command to compare with; scripts/python-test sets it")
    return path


@pytest.fixture
def trace(tmp_path):
    """A trace of 20,000 accesses to 2,000 pages."""
    import numpy as np
    import pyarrow as pa

    import terrace

    rng = np.random.default_rng(7)
    count = 20_000
    page = np.concatenate([np.arange(2000), rng.integers(0, 2000, count - 2000)]).astype("uint32")
    table = pa.table({
        "page": page, "line": rng.integers(0, 64, count).astype("uint8"), "write": rng.random(count) < 0.3,
        "time_ns": (np.arange(count) * 50).astype("uint64"),
    })
    path = tmp_path / "small.trace"
    assert terrace.write_trace(table, path, {"workload": "small"}) == count
    return path
