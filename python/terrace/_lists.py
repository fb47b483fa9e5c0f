"""What there is: machines, policies with their settings, workloads.

In: nothing. Out: data frames. Must not: leave out a setting or a source.
"""

from __future__ import annotations

import json

import pandas as pd

from . import _native


def machines() -> pd.DataFrame:
    """The modelled machines.

    Returns one row a number of a machine: `machine`, `summary`, `key` (with its unit at the end), `value` (text) and `source`.
    """
    rows = [
        {"machine": machine["name"], "summary": machine["summary"], **number}
        for machine in json.loads(_native.machines())
        for number in machine["numbers"]
    ]
    return pd.DataFrame(rows, columns=["machine", "summary", "key", "value", "source"])


def policies() -> pd.DataFrame:
    """The policies.

    Returns one row a policy: `name`, `summary`, `source`, `live` (whether it can manage a running program), and `settings`, a dict of
    dicts with `default` and `meaning` by key, as `settings={"POLICY.KEY": value}` of `compare` takes it.
    """
    found = json.loads(_native.policies())
    for policy in found:
        settings = policy["settings"]
        policy["settings"] = {one["key"]: {"default": one["default"], "meaning": one["meaning"]} for one in settings}
    return pd.DataFrame(found, columns=["name", "summary", "source", "live", "settings"])


def workloads() -> pd.DataFrame:
    """The workloads.

    Returns one row a workload: `name`, `summary`, `source`, `operation` (what `operations` counts), and `options`, a dict of meanings by key, as
    `workload_settings={"KEY": value}` of `compare` takes it.
    """
    found = json.loads(_native.workloads())
    for workload in found:
        workload["options"] = {one["key"]: one["meaning"] for one in workload["options"]}
    return pd.DataFrame(found, columns=["name", "summary", "source", "operation", "options"])
