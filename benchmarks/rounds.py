"""What the scripts of benchmarks share: where the programs lie, runs in balanced order, medians and ranges, Markdown tables, and results as they are kept.

In: TERRACE and REDIS_LOAD name the programs; unset they are those that `make build` made. Out: functions, and by keep() one JSON file.
Must not: measure anything by itself, or write outside the folder that keep() is given.
"""

import argparse
import contextlib
import datetime
import fcntl
import json
import math
import os
import platform
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TERRACE = os.environ.get("TERRACE", str(ROOT / "target/release/terrace"))
REDIS_LOAD = os.environ.get("REDIS_LOAD", str(ROOT / "target/release/examples/redis_load"))
GIB = 1 << 30
SCRIPT = Path(sys.argv[0]).name


def parser(doc, out=False):
    """A parser whose help is the script's docstring; with --out where the script keeps its result."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    if out:
        made.add_argument("--out", type=Path, default=ROOT / "benchmarks/runs" / today(), help="folder of the raw run (default: benchmarks/runs/DATE)")
    return made


def ready(root=False, command=True):
    """Ends the script where it lacks the command, or root. SIGINT, by which Terrace is ended, counts again: a shell that starts a script with `&` has it ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if root and os.geteuid() != 0:
        sys.exit(f"{SCRIPT}: managing memory needs root: sudo benchmarks/{SCRIPT} ...")
    if command and not shutil.which(TERRACE):
        sys.exit(f"{SCRIPT}: {TERRACE} is not there: run `make build` first, or set TERRACE")


# ---- programs ----


def run(command):
    """Runs a program to its end and returns what it printed. A failure ends the script."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\nended with {done.returncode}:\n{done.stderr}")
    return done.stdout


def json_lines(text):
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def balanced(sides):
    """A round: each side, then each again from the last to the first. What drifts hits all sides alike."""
    return [*sides, *reversed(sides)]


@contextlib.contextmanager
def swap_to_ourselves():
    """Swap priorities are global, so whoever sets up swap for a measurement or a test holds this lock (the live tests do, too)."""
    with open(Path(tempfile.gettempdir()) / "terrace-live-swap.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def under_terrace(words, command, measure):
    """A program under `terrace WORDS`: what `measure` says of the whole command line, and Terrace's report."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file, swap_to_ourselves():
        whole = [TERRACE, *words, "--quiet", "--json-file", file.name, "--", *command]
        result = measure(whole)
        # The picture of every page over time is large, and no script asks for it.
        report = json.loads(Path(file.name).read_text(), object_hook=lambda found: {key: found[key] for key in found if key != "heat_map"})
    return {"command": whole, "result": result, "report": report}


def hot_cold_command(size, seconds, *options):
    """The catalogue's program of which a part is hot."""
    settings = [word for option in options for word in ("--set", option)]
    return [TERRACE, "workload", "hot-cold", "--size", size, "--duration", f"{seconds}s", *settings]


def redis_server(port):
    return ["redis-server", "--port", str(port), "--save", "", "--appendonly", "no", "--bind", "127.0.0.1"]


def wait_for_port(port):
    for _ in range(300):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.1)
    sys.exit(f"{SCRIPT}: nothing answers on port {port}")


# ---- figures ----


def median(values):
    """The median of what is known."""
    values = [value for value in values if value is not None]
    return statistics.median(values) if values else None


def geomean(values):
    return math.exp(statistics.fmean(map(math.log, values)))


def ends(values):
    return [min(values), max(values)]


def spread(values, form, middle=statistics.median):
    """The middle of some values, and where there are several their range."""
    text = format(middle(values), form)
    return text if len(values) == 1 else f"{text} ({min(values):{form}} to {max(values):{form}})"


def row(cells):
    """A row of a Markdown table. Numbers that are not formatted yet get two digits."""
    return "| " + " | ".join(f"{cell:.2f}" if isinstance(cell, float) else str(cell) for cell in cells) + " |"


def table(head, rows):
    return "\n".join([row(head), "|" + "---|" * len(head), *map(row, rows)])


# ---- results ----


def today():
    return datetime.date.today().isoformat()


def processor():
    """The processor's name, as /proc/cpuinfo has it."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def keep(out, name, result):
    """Writes OUT/NAME.json: the command, the machine, the date, and the result. Where the checkout lies is left out."""
    machine = {
        "processor": processor(),
        "cpus": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "load_average_at_end": os.getloadavg(),
    }
    command = " ".join([f"benchmarks/{SCRIPT}", *sys.argv[1:]])
    text = json.dumps({"benchmark": name, "command": command, "machine": machine, "date": today(), **result}, indent=1)
    text = text.replace(TERRACE, "terrace").replace(REDIS_LOAD, "redis_load").replace(f"{ROOT}/", "")
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}.json").write_text(text + "\n")
    print(f"raw: {out / name}.json", flush=True)
