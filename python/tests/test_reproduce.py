"""The papers' figures: the command's rows, settings in place of the papers', errors."""

import json
import subprocess

import pandas as pd
import pytest

import terrace

# A row of one short run.
ROW = "FM.fig9.ft.flexmem"


def test_the_rows_are_those_of_the_command(command):
    words = ["reproduce", ROW, "--scale", "4096", "--seeds", "2", "--set", "flexmem.beta=0.4", "--json"]
    theirs = json.loads(subprocess.run([command, *words], check=True, capture_output=True, text=True).stdout)["rows"]
    told = []
    ours = terrace.reproduce(ROW, seeds=2, settings={"flexmem.beta": 0.4}, progress=lambda done, total: told.append((done, total)))
    assert list(ours.columns) == list(theirs[0]) and len(ours) == len(theirs) > 0
    for row, cell in zip(ours.to_dict("records"), theirs):
        for key, value in cell.items():
            assert row[key] == value or (value is None and pd.isna(row[key])), key
    assert told[-1][0] == told[-1][1] > 0


def test_a_setting_changes_what_comes_out():
    own, varied = terrace.reproduce(ROW), terrace.reproduce([ROW], settings={"flexmem.beta": 0.9})
    assert list(own["paper"]) == list(varied["paper"]) and list(own["ours"]) != list(varied["ours"])
    assert own["settings"].iloc[0]["flexmem.beta"] != varied["settings"].iloc[0]["flexmem.beta"] == "0.9"


def test_the_rows_there_are():
    rows = terrace.experiments()
    assert rows["id"].is_unique and (rows["id"] == ROW).any() and (rows["paper_source"] != "").all()


@pytest.mark.parametrize("changed, says", [
    (dict(ids=["nonsense"]), "nonsense"), (dict(scale=1), "--scale 1"), (dict(seeds=0), "--seeds 0"), (dict(ids=["TU.fig3"]), "performance database"),
    (dict(settings={"flexmem.nonsense": 1}), "nonsense"), (dict(file="no/such.toml"), "no/such.toml"),
])
def test_what_makes_no_sense_is_a_value_error(changed, says):
    with pytest.raises(ValueError, match=says):
        terrace.reproduce(**{"ids": [ROW], **changed})
