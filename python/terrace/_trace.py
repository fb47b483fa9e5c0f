"""Traces as Arrow tables.

In: files and tables. Out: tables and files. Must not: copy a batch between Rust and Arrow.
"""

from __future__ import annotations

import json
import os
from typing import Any, Mapping, Optional, Union

import pyarrow as pa

from . import _native

Path = Union[str, "os.PathLike[str]"]
_KEY = b"terrace.header"


def open_trace(path: Path) -> pa.RecordBatchReader:
    """Opens a trace as a stream of record batches of 65,536 rows, in the trace's order; only one is held at a time.

    Columns: `page` (uint32, from 0 in order of first touch, by blocks of 512), `address` (uint64, bytes, of the accessed line), `line` (uint8, 0 to
    63, of 64 bytes), `write` (bool), `thread` (uint16), `time_ns` (uint64, since the trace began; 0 where it keeps no time), `latency` (uint16,
    in the header's unit). The schema's metadata has the trace's header as JSON. What happened between accesses (births, page sizes) is left
    out.

    Raises ValueError for what is no trace or was cut off, OSError where the file cannot be read.
    """
    return _native.open_trace(os.fspath(path))


def read_trace(path: Path) -> pa.Table:
    """Reads a trace whole, as `open_trace` does: 29 bytes of memory an access."""
    return open_trace(path).read_all()


def trace_header(path: Path) -> dict[str, Any]:
    """What a trace says of itself: workload, provenance, scale, counts of accesses and pages."""
    return dict(json.loads(_native.trace_header(os.fspath(path))))


def write_trace(table: Any, path: Path, header: Optional[Mapping[str, Any]] = None) -> int:
    """Writes a table of accesses as a trace; returns how many.

    table: a `pyarrow.Table`, a `RecordBatchReader`, or anything with `__arrow_c_stream__`, such as a polars frame, with the columns of `open_trace`;
    only `page` is needed. Rows stand in the order of time.
    header: what changes in the table's own header (its metadata), else in the usual one: every access exactly, with lines.

    Raises ValueError for a column that a trace does not have, of another type, or with nulls; OSError where the file cannot be written, which is
    then not there at all.
    """
    given = json.loads((table.schema.metadata or {}).get(_KEY, b"null")) if hasattr(table, "schema") else None
    names = table.schema.names if hasattr(table, "schema") and hasattr(table.schema, "names") else []
    base = given or {
        "workload": "", "provenance": "exact", "lines": not names or "line" in names, "scale": 1.0,
        "time_resolution_nanos": 1 if "time_ns" in names else None, "latency": "nanoseconds" if "latency" in names else None,
    }
    if not hasattr(table, "__arrow_c_stream__"):
        raise TypeError(f"table: {type(table).__name__}: expected a pyarrow.Table or another with __arrow_c_stream__")
    stream = pa.RecordBatchReader.from_stream(table)
    return _native.write_trace(stream, os.fspath(path), json.dumps({**base, **(header or {})}))
