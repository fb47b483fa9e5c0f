"""Policies of tiered memory on modelled hardware, as data frames.

    >>> import terrace
    >>> cells = terrace.compare(workloads=["gups"], policies=["tpp", "flexmem"], fast=["25%"], seeds=2, size="8MiB")
    >>> cells.groupby("policy")["gain_over_all_slow"].mean()

Everything is simulated: the same cells as `terrace sim compare --json` prints, from the same code. Texts are as the command line takes them
(`"25%"`, `"64MiB"`). What was asked for and makes no sense raises `ValueError` with the command's words; a file that cannot be read or written
raises `OSError`; a simulation that fails raises `RuntimeError`.
"""

from . import plot
from ._advise import Advice, advise
from ._lists import machines, policies, workloads
from ._native import COMMIT as __commit__
from ._native import VERSION as __version__
from ._policy import Event, Policy, Room, Scan
from ._reproduce import experiments, reproduce
from ._simulate import Comparison, compare, run
from ._sweep import sweep
from ._trace import open_trace, read_trace, trace_header, write_trace

__all__ = [
    "Advice", "Comparison", "Event", "Policy", "Room", "Scan", "advise", "compare", "experiments", "machines", "open_trace", "plot", "policies", "read_trace",
    "reproduce", "run", "sweep", "trace_header", "workloads", "write_trace", "__commit__", "__version__",
]
