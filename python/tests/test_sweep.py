"""Sweeps: the command's bytes, through interruptions, and on Dask with a worker lost."""

import os
import signal
import subprocess
import sys
import time

import pytest

import terrace

SWEEP = {
    "machines": ["cxl-170"], "policies": ["flexmem", "tpp", "first-touch"], "workloads": ["gups"], "fast": ["25%", "50%"], "seeds": 3,
    "size": "4MiB", "scale": 1024, "settings": {"flexmem.beta": [0.2, 0.4]},
}
CELLS = 1 * (2 + 1 + 1) * 1 * 2 * 3


@pytest.fixture
def specification(tmp_path):
    path = tmp_path / "sweep.toml"
    path.write_text(
        'machines = ["cxl-170"]\npolicies = ["flexmem", "tpp", "first-touch"]\nworkloads = ["gups"]\nfast = ["25%", "50%"]\nseeds = 3\n'
        'size = "4MiB"\nscale = 1024\n[settings]\n"flexmem.beta" = [0.2, 0.4]\n'
    )
    return path


@pytest.fixture
def whole(specification, tmp_path):
    """The table of one process."""
    path = tmp_path / "whole.jsonl"
    assert len(terrace.sweep(specification, path)) == CELLS
    return path.read_bytes()


def test_the_table_is_the_commands(command, specification, whole, tmp_path):
    path = tmp_path / "command.jsonl"
    subprocess.run([command, "sweep", str(specification), "--output", str(path)], check=True, capture_output=True)
    assert path.read_bytes() == whole


def test_a_dict_is_a_specification_and_no_output_is_needed():
    cells = terrace.sweep(SWEEP)
    assert len(cells) == CELLS and cells["gain_over_first_touch"].notna().all()


def test_a_sweep_that_was_stopped_goes_on(specification, whole, tmp_path):
    path = tmp_path / "half.jsonl"

    from terrace import _native

    part = _native.Sweep(specification.read_text(), str(specification), str(tmp_path))
    part.open(str(path))
    for group, cells in part.batches(2)[1:3]:
        bounds, rows = part.rows_of(group, cells[:3], None)
        part.add_bounds(group, bounds)
        for cell, row in zip(cells, rows):
            part.add_row(cell, row)
    assert 0 < part.done() < CELLS
    del part
    assert not path.exists()
    terrace.sweep(specification, path)
    assert path.read_bytes() == whole and not (tmp_path / "half.jsonl.partial").exists()


@pytest.mark.parametrize("changed, says", [
    ({"policies": ["flexmem", "nonsense"]}, "nonsense"), ({"sedes": 1}, "sedes"), ({"machines": []}, "machines"), ({"fast": ["500%"]}, "500%"),
    ({"settings": {"tpp.nonsense": [1]}}, "nonsense"),
])
def test_what_makes_no_sense_is_a_value_error(changed, says):
    with pytest.raises(ValueError, match=says):
        terrace.sweep({**SWEEP, **changed})
    with pytest.raises(ValueError, match="parquet"):
        terrace.sweep(SWEEP, "table.xlsx")
    with pytest.raises(TypeError, match="client"):
        terrace.sweep(SWEEP, client=7)


def started(words, **more):
    return subprocess.Popen([sys.executable, "-m", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **more)


def test_a_scheduler_and_two_workers_of_which_one_is_killed_give_the_same_bytes(specification, whole, tmp_path):
    distributed = pytest.importorskip("distributed")
    contact = tmp_path / "scheduler.json"
    processes = [started(["distributed.cli.dask_scheduler", "--port", "0", "--no-dashboard", "--scheduler-file", str(contact)])]
    try:
        until = time.monotonic() + 60
        while not contact.exists():
            assert time.monotonic() < until and processes[0].poll() is None, "the scheduler did not start"
            time.sleep(0.1)
        for number in range(2):
            processes.append(started([
                "distributed.cli.dask_worker", "--scheduler-file", str(contact), "--nthreads", "1", "--no-nanny", "--no-dashboard",
                "--local-directory", str(tmp_path / f"worker{number}"),
            ]))
        path = tmp_path / "dask.jsonl"
        with distributed.Client(scheduler_file=str(contact)) as client:
            client.wait_for_workers(2, timeout=60)
            killed = []

            def kill_one(done, total):
                if done >= total // 3 and not killed:
                    killed.append(done)
                    os.kill(processes[2].pid, signal.SIGKILL)
                    processes[2].wait()

            cells = terrace.sweep(specification, path, client=client, progress=kill_one)
            assert killed and killed[0] < CELLS, "the worker was killed while there was work left"
            assert len(client.scheduler_info()["workers"]) == 1
        assert len(cells) == CELLS and path.read_bytes() == whole
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
            process.wait()


@pytest.fixture
def cluster():
    """A client of two processes on this machine."""
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(n_workers=2, processes=True, threads_per_worker=1, dashboard_address=None) as workers:
        with distributed.Client(workers) as client:
            yield client


def test_a_worker_of_another_build_is_refused(cluster, specification, whole, tmp_path):
    def pretend(commit):
        """Makes the worker one of another commit."""
        from terrace import _native

        own = _native.Sweep

        class Other:
            def __init__(self, *given):
                self.fingerprint = own(*given).fingerprint.replace(commit, "0" * 40)

        _native.Sweep = Other

    assert terrace.__commit__ in terrace._native.Sweep(specification.read_text(), str(specification), str(tmp_path)).fingerprint
    path = tmp_path / "dask.jsonl"
    cluster.run(pretend, terrace.__commit__)
    with pytest.raises(RuntimeError, match="another build of Terrace"):
        terrace.sweep(specification, path, client=cluster)
    assert not path.exists()
    cluster.restart()
    terrace.sweep(specification, path, client=cluster)
    assert path.read_bytes() == whole


def test_a_thousand_cells_killed_halfway_go_on_elsewhere_to_the_same_bytes(cluster, tmp_path):
    specification = tmp_path / "thousand.toml"
    specification.write_text(
        'machines = ["cxl-170"]\npolicies = ["tpp", "first-touch", "flexmem"]\nworkloads = ["gups"]\nfast = ["20%", "30%", "40%", "50%", "60%"]\n'
        'seeds = 50\nsize = "4MiB"\nscale = 1024\noperations = 20000\n[settings]\n"flexmem.beta" = [0.2, 0.4]\n'
    )
    whole, half = tmp_path / "whole.jsonl", tmp_path / "half.jsonl"
    assert len(terrace.sweep(specification, whole)) == 1000
    journal = tmp_path / "half.jsonl.partial"
    program = "import sys, terrace; terrace.sweep(sys.argv[1], sys.argv[2])"
    process = subprocess.Popen([sys.executable, "-c", program, str(specification), str(half)])
    until = time.monotonic() + 120
    while not journal.exists() or journal.read_bytes().count(b'"cell ') < 500:
        assert time.monotonic() < until and process.poll() is None, "it was to be killed halfway"
        time.sleep(0.01)
    process.kill()
    process.wait()
    kept = journal.read_bytes().count(b'"cell ')
    assert 500 <= kept < 1000 and not half.exists()
    told = []
    terrace.sweep(specification, half, client=cluster, progress=lambda done, total: told.append(done))
    assert told[0] > 500, "what was finished is not computed again"
    assert half.read_bytes() == whole.read_bytes()
