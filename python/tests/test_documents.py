"""The page's examples and the notebooks run as they stand; plots show what the frames have."""

import pathlib
import re

import matplotlib
import pytest

import terrace

matplotlib.use("agg")
ROOT = pathlib.Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "docs/notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("page", ["docs/python.md", "README.md"])
def test_the_examples_of_a_page_run_in_their_order(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.M | re.S)
    assert blocks, f"{page} has an example"
    names = {}
    for block in blocks:
        exec(compile(block, page, "exec"), names)


def test_the_page_names_every_notebook():
    page = (ROOT / "docs/python.md").read_text()
    assert NOTEBOOKS and all(f"(notebooks/{path.name})" in page for path in NOTEBOOKS)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_has_no_outputs_in_the_repository(path, tmp_path):
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert code and all(not cell.outputs and cell.execution_count is None for cell in code)
    NotebookClient(notebook, timeout=240, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert any(cell.outputs for cell in code)


def test_plots_show_what_the_frame_has():
    cells = terrace.compare(["gups"], ["tpp", "first-touch"], ["25%", "50%"], 2, size="4MiB", scale=1024)
    assert [label.get_text() for label in terrace.plot.gains(cells).get_yticklabels()] == list(cells.geomean["policy"])[::-1]
    lines = terrace.plot.by_size(cells).get_lines()
    assert len(lines) == 2 and list(lines[0].get_xdata()) == [25, 50]
    own = cells[(cells["policy"] == "tpp") & (cells["fast"] == "25%")]["slowdown_vs_all_fast"].mean()
    assert lines[0].get_ydata()[0] == pytest.approx(own)
    report = terrace.run("gups", "tpp", "25%", size="4MiB", scale=1024)
    assert len(terrace.plot.hits(report).get_lines()[0].get_xdata()) == len(report["series"]["rows"])
    assert terrace.plot.heat(report).get_images()[0].get_array().size == sum(map(len, report["heat_map"]["rows"]))
