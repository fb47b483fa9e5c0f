"""Traces as Arrow tables: there and back, replayed, and refused."""

import numpy as np
import pyarrow as pa
import pytest

import terrace


def test_a_trace_comes_back_as_it_was_written(trace, tmp_path):
    table = terrace.read_trace(trace)
    assert table.schema.names == ["page", "address", "line", "write", "thread", "time_ns", "latency"]
    assert table.num_rows == 20_000 and table.column("write").to_numpy().mean() == pytest.approx(0.3, abs=0.02)
    assert terrace.trace_header(trace)["workload"] == "small" and terrace.trace_header(trace)["accesses"] == 20_000
    copy = tmp_path / "copy.trace"
    assert terrace.write_trace(table, copy) == 20_000
    assert terrace.read_trace(copy).equals(table)


def test_addresses_are_kept(tmp_path):
    page = np.array([0, 1, 512, 0], dtype="uint32")
    address = np.array([0x7F0000200000, 0x7F0000201000, 0x5000_0020_0000, 0x7F0000200000], dtype="uint64")
    path = tmp_path / "a.trace"
    terrace.write_trace(pa.table({"page": page, "address": address}), path)
    assert terrace.read_trace(path).column("address").to_numpy().tolist() == address.tolist()


def test_a_trace_is_replayed_under_every_policy(trace):
    cells = terrace.compare(policies=["tpp", "first-touch"], traces=[trace], fast=["50%"], seeds=1)
    assert list(cells["workload"]) == ["small.trace"] * 2 and cells["trace_hash"].nunique() == 1


def test_what_is_no_whole_trace_is_refused(trace, tmp_path):
    cut = tmp_path / "cut.trace"
    cut.write_bytes(trace.read_bytes()[:-40])
    for read in (terrace.read_trace, lambda path: terrace.compare(policies=["tpp"], traces=[path])):
        with pytest.raises(ValueError, match="trace cut --keep-whole"):
            read(cut)
    empty = tmp_path / "empty.trace"
    terrace.write_trace(pa.table({"page": pa.array([], pa.uint32())}), empty)
    with pytest.raises(ValueError, match="it holds no access"):
        terrace.compare(policies=["tpp"], traces=[empty])
    with pytest.raises(OSError, match="no-such"):
        terrace.read_trace(tmp_path / "no-such.trace")


@pytest.mark.parametrize("table, says", [
    ({"page": pa.array([0], pa.uint32()), "pages": [1]}, "column pages: there is no such column"),
    ({"address": pa.array([0], pa.uint64())}, "column page: it is missing"),
    ({"page": [0.5]}, "column page: it is of type"),
    ({"page": pa.array([0, None], pa.uint32())}, "column page: it has nulls"),
    ({"page": pa.array([0, 0], pa.uint32()), "time_ns": pa.array([5, 4], pa.uint64())}, "goes backwards"),
])
def test_what_is_no_table_of_accesses_is_refused_and_leaves_no_file(table, says, tmp_path):
    path = tmp_path / "none.trace"
    with pytest.raises(ValueError, match=says):
        terrace.write_trace(pa.table(table), path)
    assert not path.exists()
