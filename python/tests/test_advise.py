"""Advice: the command's figures, its errors."""

import json
import shlex
import subprocess

import pytest

import terrace

SMALL = dict(machines=["cxl-170", "cxl-pond"], policies=["tpp"], fast=["30%", "60%"], groups=2)


def test_the_advice_is_that_of_the_command(command):
    ours = terrace.advise("gups", size="4MiB", operations=20_000, max_slowdown=0.1, **SMALL)
    words = shlex.split(ours.iloc[0]["command"])
    assert words[:3] == ["terrace", "size", "advise"] and words[-1] == "--json"
    theirs = json.loads(subprocess.run([command, *words[1:]], check=True, capture_output=True, text=True).stdout)
    assert list(ours["machine"]) == [row["machine"] for row in theirs["machines"]] == SMALL["machines"]
    for row, given in zip(ours.to_dict("records"), theirs["machines"]):
        assert all(row[key] == value for key, value in given.items() if key not in ("curve", "policies"))
    assert ours.seen == theirs["seen"] and (ours["resident_bytes"] == theirs["resident_bytes"]).all()
    assert len(ours.curves) == 2 * 2 * 2, "machines, policies (first-touch is one), sizes"
    point = theirs["machines"][1]["policies"][1]["curve"][0]
    same = ours.curves[(ours.curves["machine"] == "cxl-pond") & (ours.curves["policy"] == "tpp") & (ours.curves["fast_share"] == 0.3)].iloc[0]
    assert all(same[key] == value for key, value in point.items())


def test_advice_for_a_trace_says_what_made_it(trace):
    advice = terrace.advise(trace=trace, max_slowdown="20%", **SMALL)
    row = advice.iloc[0]
    assert row["trace_hash"] and any(key.startswith("tpp.") for key in row["settings"])
    assert 0 < row["fast_share"] <= 1 and row["version"] == terrace.__version__
    assert "played" in advice.seen


@pytest.mark.parametrize("changed, says", [
    (dict(machines=["nonsense"]), "--machine nonsense"), (dict(max_slowdown="0%"), "--max-slowdown 0%"), (dict(fast=["100%"]), "--fast 100%"),
    (dict(policies=["all-fast"]), "--policies all-fast"), (dict(prices=(0, 1)), "--prices 0:1"), (dict(prices=[4]), "prices"),
    (dict(sample=7), "--sample 7"), (dict(groups=1), "--groups 1"), (dict(trace="no/such.trace"), "expected one of them"),
])
def test_what_makes_no_sense_is_a_value_error_in_the_commands_words(changed, says):
    with pytest.raises(ValueError) as raised:
        terrace.advise("gups", **{**SMALL, "size": "4MiB", **changed})
    assert says in str(raised.value)
