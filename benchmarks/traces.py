#!/usr/bin/env python3
"""Traces of real programs by recipe: every benchmarks/traces/NAME.toml is a Debian program, an input made from a seed, and how it is recorded.

    benchmarks/traces.py [NAME ...] [--out DIR]

In: recipes, the command terrace with its QEMU plugin (`make build qemu-plugin`; TERRACE names another command), Debian's packages, which root has
installed and others are asked for. Out: DIR/NAME.trace, DIR/NAME.json (what it is) and `digests`, a line each, in DIR or, of target/traces, beside the
recipes. What DIR holds by the same recipe stays, so that the same command goes on after a stop. Two programs are recorded at a time. Must not: commit
or fetch a trace, start a service, or leave an input behind. Exit: 0, 1 when a trace is missing in the end, 2 for misuse.

A recipe: `packages`, `seed`, `input` (Python, run in the empty folder of the run; it has os, random, subprocess, seed, recipes, not_root), `program` (a * in
its first word is the newest that is there), `record` (options of terrace record), and where needed `stdin`, `environment`, `sources` (files beside the recipe),
`exit_code`, `not_root` (root becomes an ordinary user of its own files) and `varies` (why another run makes other accesses).
"""

import concurrent.futures
import glob
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

from rounds import ROOT, TERRACE, parser, ready

RECIPES = ROOT / "benchmarks/traces"
OUT = ROOT / "target/traces"
KEYS = {"packages", "seed", "input", "program", "record", "stdin", "environment", "sources", "exit_code", "not_root", "varies"}
LONGEST_SECONDS = 900
ORDINARY = ["unshare", "--user", "--map-user=1000", "--map-group=1000"]
PRELUDE = "import os, random, subprocess\nfrom pathlib import Path\nseed, recipes, not_root = {seed!r}, Path({recipes!r}), {not_root!r}\n"
HEAD = """\
# What `make traces` recorded: recipe, pages of 4 KiB, accesses kept, the trace's SHA-256, that of its accesses alone, and why they do not repeat.
# A trace holds the times of its recording, so that its own digest is another each time. That of the accesses (address, size, direction, in order)
# should be the same again with the same packages, where the last column is a dash.
"""


class Failed(Exception):
    """A recipe that gave no trace, and why."""


def read(name):
    path = RECIPES / f"{name}.toml"
    try:
        recipe = tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as error:
        misuse(f"{path}: {error}")
    wrong = sorted(set(recipe) - KEYS) or sorted({"packages", "seed", "input", "program", "record"} - set(recipe))
    if wrong:
        misuse(f"{path}: {wrong[0]}: unknown or missing; a recipe has {', '.join(sorted(KEYS))}")
    files = [path, *(RECIPES / source for source in recipe.get("sources", []))]
    return recipe | {"name": name, "digest": hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()}


def misuse(text):
    print(f"traces.py: {text}", file=sys.stderr)
    sys.exit(2)


def call(words, why, **options):
    """Runs a command; when it fails, the last line it said is the reason."""
    try:
        done = subprocess.run(words, stderr=subprocess.PIPE, timeout=LONGEST_SECONDS, **options)
    except subprocess.TimeoutExpired:
        raise Failed(f"{why} took more than {LONGEST_SECONDS // 60} minutes") from None
    return done, (done.stderr.decode(errors="replace").strip().splitlines() or ["it said nothing"])[-1]


def made(recipe, folder):
    """Makes the input of a recipe in a folder. Returns the words of its program, its environment, and what stands before it where it may not be root."""
    environment = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "LC_ALL": "C", **recipe.get("environment", {})}
    not_root = ORDINARY if recipe.get("not_root") and os.geteuid() == 0 else []
    source = PRELUDE.format(seed=recipe["seed"], recipes=str(RECIPES), not_root=not_root) + recipe["input"]
    done, said = call(["/usr/bin/python3", "-c", source], "the input", cwd=folder, env=environment)
    if done.returncode:
        raise Failed(f"its input was not made: {said}")
    program, *words = recipe["program"]
    found = sorted(glob.glob(program, root_dir=folder))
    if not found:
        raise Failed(f"{program} is not there; it should come with {', '.join(recipe['packages'])}")
    return [found[-1], *words], environment, not_root


def record(recipe, out):
    """One recording, in a folder that goes when it is over."""
    name, began = recipe["name"], time.monotonic()
    with tempfile.TemporaryDirectory(prefix=f"{name}.", dir=out) as folder:
        program, environment, not_root = made(recipe, folder)
        # Addresses are the same each time: no random layout, and QEMU's random numbers from a seed.
        environment |= {"QEMU_RAND_SEED": str(recipe["seed"])} | {key: os.environ[key] for key in ["TERRACE_QEMU_PLUGIN"] if key in os.environ}
        trace = Path(folder) / "new.trace"
        command = [*not_root, "setarch", "-R", TERRACE, "record", "--once", *recipe["record"], "--output", str(trace), "--", *program]
        started = time.monotonic()
        with open(Path(folder) / recipe["stdin"] if "stdin" in recipe else os.devnull, "rb") as stdin:
            done, said = call(command, "recording", cwd=folder, env=environment, stdin=stdin, stdout=subprocess.DEVNULL)
        recording = time.monotonic() - started
        if done.returncode != recipe.get("exit_code", 0):
            raise Failed(f"it ended with {done.returncode}: {said}")
        info = json.loads(subprocess.run([TERRACE, "trace", "info", "--json", trace], check=True, capture_output=True).stdout)
        with open(trace, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        kept = {"recipe": recipe["digest"], "pages": info["touched_pages"], "accesses": info["summary"]["accesses"], "trace": digest}
        kept |= {"addresses": addresses(trace), "bytes": trace.stat().st_size, "recording_seconds": round(recording, 1)}
        trace.replace(out / f"{name}.trace")
        (out / f"{name}.json").write_text(json.dumps(kept, indent=1) + "\n")
    mib = kept["pages"] / 256
    print(f"{name}: {mib:.0f} MiB, {kept['accesses'] / 1e6:.1f} million accesses, {kept['bytes'] / 1e6:.1f} MB, recorded in {recording:.0f} s, "
          f"{time.monotonic() - began:.0f} s in all", flush=True)


def addresses(trace):
    """Digest of what was accessed, in order, without its times."""
    words = f"set -o pipefail; '{TERRACE}' trace cat '{trace}' | cut -d' ' -f2- | sha256sum"
    return subprocess.run(["bash", "-c", words], check=True, capture_output=True, text=True).stdout.split()[0]


def held(recipe, out):
    """What is there by this very recipe."""
    try:
        kept = json.loads((out / f"{recipe['name']}.json").read_text())
        return kept if kept["recipe"] == recipe["digest"] and (out / f"{recipe['name']}.trace").is_file() else None
    except (FileNotFoundError, ValueError, KeyError):
        return None


def main():
    there = sorted(path.stem for path in RECIPES.glob("*.toml"))
    options = parser(__doc__)
    options.add_argument("names", nargs="*", metavar="NAME", help="recipes; all unless given")
    options.add_argument("--out", type=Path, default=OUT, help="folder of the traces (target/traces)")
    arguments = options.parse_args()
    for name in arguments.names:
        if name not in there:
            misuse(f"{name}: no such recipe; there are {', '.join(there)}")
    recipes = [read(name) for name in dict.fromkeys(arguments.names or there)]
    out = arguments.out.resolve()
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        misuse(f"--out {arguments.out}: {error.strerror}")
    todo = [recipe for recipe in recipes if not held(recipe, out)]
    if todo:
        prepare(todo, out)
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        jobs = {pool.submit(record, recipe, out): recipe["name"] for recipe in todo}
        for job in concurrent.futures.as_completed(jobs):
            try:
                job.result()
            except (Failed, OSError, subprocess.CalledProcessError) as error:
                failed += 1
                print(f"traces.py: {jobs[job]}: {error}", file=sys.stderr, flush=True)
    lines = []
    for recipe in map(read, there):
        if kept := held(recipe, out):
            figures = [str(kept[key]) for key in ("recipe", "pages", "accesses", "trace", "addresses")]
            lines.append(" ".join([recipe["name"], *figures, recipe.get("varies", "-")]) + "\n")
    (RECIPES if out == OUT else out).joinpath("digests").write_text(HEAD + "".join(lines))
    print(f"{len(recipes) - failed} of {len(recipes)} traces in {out}")
    sys.exit(1 if failed else 0)


def prepare(recipes, out):
    """Packages, and a recorder that works."""
    packages = sorted({"qemu-user", *(package for recipe in recipes for package in recipe["packages"])})
    if subprocess.run([ROOT / "scripts/needs", "packages", *packages]).returncode:
        sys.exit(1)
    ready()
    with tempfile.TemporaryDirectory(dir=out) as folder:
        tried = subprocess.run([TERRACE, "record", "--once", "--output", f"{folder}/t", "--", "/bin/true"], capture_output=True, text=True)
        if tried.returncode:
            sys.exit(f"traces.py: nothing can be recorded here: {(tried.stderr.strip().splitlines() or ['no reason given'])[-1]}")


if __name__ == "__main__":
    main()
