"""Comparisons and runs: the command's cells, its errors, policies in Python."""

import json
import subprocess

import numpy as np
import pandas as pd
import pytest

import terrace

SMALL = dict(workloads=["gups"], fast=["25%"], size="4MiB", scale=1024)


def test_the_cells_are_those_of_the_command(command):
    words = ["sim", "compare", "--workloads", "gups,btree", "--policies", "tpp,flexmem", "--fast", "25%,50%", "--seeds", "2", "--size", "4MiB",
             "--scale", "1024", "--set", "flexmem.beta=0.4", "--json"]
    printed = subprocess.run([command, *words], check=True, capture_output=True, text=True).stdout
    theirs = json.loads(printed)
    ours = terrace.compare(["gups", "btree"], ["tpp", "flexmem"], ["25%", "50%"], 2, size="4MiB", scale=1024, settings={"flexmem.beta": 0.4})
    assert len(ours) == 16
    assert list(ours.columns) == list(theirs["cells"][0])
    for row, cell in zip(ours.to_dict("records"), theirs["cells"]):
        for key, value in cell.items():
            assert row[key] == value or (value is None and pd.isna(row[key])), key
    assert ours.geomean.to_dict("records") == theirs["geomean"]
    assert ours.duels.to_dict("records") == theirs["duels"]


def test_a_cell_says_what_made_it():
    cells = terrace.compare(policies=["flexmem"], seeds=2, settings={"flexmem.beta": 0.4}, **SMALL)
    assert isinstance(cells, pd.DataFrame) and list(cells["seed"]) == [1, 2]
    assert {"workload", "policy", "seed", "gain_over_all_slow", "settings", "machine", "version"} <= set(cells.columns)
    first = cells.iloc[0]
    assert first["settings"]["flexmem.beta"] == "0.4" and len(first["settings"]) > 3
    assert first["version"] == terrace.__version__ and first["command"].startswith("terrace sim run")
    again = terrace.compare(policies=["flexmem"], seeds=2, settings={"flexmem.beta": 0.4}, **SMALL)
    pd.testing.assert_frame_equal(cells, again)


@pytest.mark.parametrize("changed, says", [
    (dict(workloads=["nonsense"]), "nonsense"), (dict(policies=["nonsense"]), "nonsense"), (dict(policies=[]), "--policies"),
    (dict(fast=["0%"]), "--fast 0%: expected more than 0%"), (dict(fast=["much"]), "--fast much"), (dict(size="0"), "--size 0"),
    (dict(seeds=0), "--seeds 0"), (dict(settings={"tpp.nonsense": 1}), "nonsense"), (dict(settings={"flexmem.beta": 1}), "--set flexmem.beta=1"),
    (dict(pages="1g"), "--pages 1g"), (dict(machine="nonsense"), "--machine nonsense"), (dict(workloads=[]), "--workloads"),
    (dict(traces=["no/such.trace"]), "no/such.trace"),
])
def test_what_makes_no_sense_is_a_value_error_in_the_commands_words(changed, says):
    with pytest.raises(ValueError, match=r".*") as raised:
        terrace.compare(**{**SMALL, "policies": ["tpp"], "seeds": 1, **changed})
    assert says in str(raised.value)


def test_a_text_where_a_list_is_wanted_is_a_type_error():
    with pytest.raises(TypeError, match="policies"):
        terrace.compare(policies="tpp", **SMALL)


def test_a_run_has_its_report_and_its_heat_map():
    report = terrace.run("gups", "tpp", "25%", size="4MiB", scale=1024)
    assert report["policy"] == "tpp" and report["gain_over_all_slow"] > 0 and "heat_map" in report


def test_progress_is_told_and_may_stop_it():
    told = []
    terrace.compare(policies=["tpp"], seeds=1, progress=lambda done, total: told.append((done, total)), **SMALL)
    assert told[-1][0] == told[-1][1] > 0

    class Enough(Exception):
        pass

    def stop(done, total):
        raise Enough

    with pytest.raises(Enough):
        terrace.compare(policies=["tpp"], seeds=1, progress=stop, **SMALL)


class Recent(terrace.Policy):
    """Fast are the pages that were accessed in most scans."""

    name = "recent"

    def __init__(self, keep="0.5"):
        self.keep = float(keep)
        self.heat = np.zeros(0)

    def scan(self, now, seen):
        end = seen.first + len(seen.tier)
        if end > len(self.heat):
            self.heat = np.concatenate([self.heat, np.zeros(end - len(self.heat))])
        if seen.window is not None:
            part = slice(seen.first, end)
            self.heat[part] = self.heat[part] * self.keep + seen.accessed

    def plan(self, now, room, tiers):
        heat = self.heat[: len(tiers)]
        slow, fast = np.flatnonzero(tiers[: len(heat)] == 1), np.flatnonzero(tiers[: len(heat)] == 0)
        slow = slow[np.argsort(-heat[slow], kind="stable")][:64]
        fast = fast[np.argsort(heat[fast], kind="stable")][:64]
        for cold, hot in zip(fast, slow):
            if heat[hot] > heat[cold] + 0.5:
                yield cold, 1
                yield hot, 0

    def report(self):
        return {"heat_sum": float(self.heat.sum())}


def test_a_policy_in_python_runs_beside_the_others_and_repeats():
    given = dict(SMALL, size="8MiB", policies=[Recent, "first-touch"], seeds=1, settings={"recent.keep": 0.8})
    cells = terrace.compare(**given)
    own = cells[cells["policy"] == "recent"].iloc[0]
    assert own["settings"] == {"recent.keep": "0.8"} and own["command"] == ""
    assert own["gain_over_all_slow"] > 0
    pd.testing.assert_frame_equal(cells, terrace.compare(**given))


def test_what_a_policy_raises_comes_out_unchanged():
    class Own(Exception):
        pass

    class Broken(terrace.Policy):
        name = "broken"

        def plan(self, now, room, tiers):
            raise Own("here", 7)

    with pytest.raises(Own) as raised:
        terrace.compare(policies=[Broken, "tpp"], seeds=1, **SMALL)
    assert raised.value.args == ("here", 7)
    assert any(entry.name == "plan" for entry in raised.traceback), "its own line is in the traceback"

    class Astray(terrace.Policy):
        name = "astray"

        def plan(self, now, room, tiers):
            return [(page, 9) for page in np.flatnonzero(tiers != 255)[:1]]

    with pytest.raises(ValueError, match="tier 9: expected 0 to 1"):
        terrace.run("gups", Astray, "25%", size="4MiB", scale=1024)

    class Taken(Broken):
        name = "tpp"

    with pytest.raises(ValueError, match="built in"):
        terrace.compare(policies=[Taken], **SMALL)
    with pytest.raises(ValueError, match="no such setting"):
        terrace.compare(policies=[Astray], settings={"astray.x": 1}, **SMALL)


def test_the_lists_are_those_of_the_command(command):
    printed = subprocess.run([command, "policies", "--json"], check=True, capture_output=True, text=True).stdout
    assert list(terrace.policies()["name"]) == [policy["name"] for policy in json.loads(printed)["policies"]]
    assert "beta" in terrace.policies().set_index("name").loc["flexmem", "settings"]
    assert "optane-6252" in set(terrace.machines()["machine"]) and (terrace.machines()["source"] != "").all()
    assert "gups" in set(terrace.workloads()["name"])
