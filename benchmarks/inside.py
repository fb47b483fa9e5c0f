#!/usr/bin/env python3
"""What leaves from inside huge pages, where transparent huge pages are on: programs under Terrace as it is, each for two minutes and a half.

    sudo benchmarks/inside.py --out benchmarks/runs/DATE-inside [NAME ...]      what has run is not run again
    benchmarks/inside.py --table benchmarks/runs/DATE-inside                    the table of docs/inside-huge-pages.md

In: cc, redis-server, a JDK and Go, as far as they are here; stderr says what is left out. Out: OUT/NAME.json a run, the report of `terrace run` with what
the program printed; scripts/picture draws scatter and scatter-off. Must not: leave the setting of huge pages changed.

A run goes on with `always` or with `never` as the machine's setting; where both are run, what is saved with huge pages is compared with what is
saved without.
"""

import argparse
import contextlib
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
SETTING = pathlib.Path("/sys/kernel/mm/transparent_hugepage/enabled")
SECONDS = 150
AT = 120
PORT = 16399


def programs(place: pathlib.Path) -> dict:
    """Command and settings of each: name, command, Terrace's options, the setting of huge pages."""
    scatter, go = str(place / "scatter"), str(place / "hold-go")
    java = ["java", "-Xms1200m", "-Xmx1200m", "-XX:+AlwaysPreTouch", "-cp", str(place)]
    redis = ["redis-server", "--port", str(PORT), "--save", "", "--appendonly", "no", "--disable-thp", "no"]
    off = ["--set", "inside=off"]
    rows = [
        ("scatter", [scatter, "1024", str(SECONDS), "16"], [], "always"),
        ("scatter-off", [scatter, "1024", str(SECONDS), "16"], off, "always"),
        ("wide", [scatter, "4096", str(SECONDS), "256"], [], "always"),
        ("even", [scatter, "2048", str(SECONDS), "1"], [], "always"),
    ]
    for setting in ("always", "never"):
        rows += [
            (f"redis-{setting}", redis, [], setting),
            (f"java-{setting}", [*java, "-XX:+UseTransparentHugePages", "Hold", "900", str(SECONDS), "8"], [], setting),
            (f"go-{setting}", [go, "900", str(SECONDS), "8"], [], setting),
        ]
    return {name: (command, options, setting) for name, command, options, setting in rows}


def build(place: pathlib.Path) -> None:
    """Compiles what can be compiled here."""
    for tool, command in (
        ("cc", ["cc", "-O2", "-o", str(place / "scatter"), str(HERE / "inside/scatter.c")]),
        ("javac", ["javac", "-d", str(place), str(HERE / "inside/Hold.java")]),
        ("go", ["go", "build", "-o", str(place / "hold-go"), str(HERE / "inside/hold.go")]),
    ):
        if shutil.which(tool):
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        else:
            print(f"inside: no {tool}: its program is left out", file=sys.stderr)


@contextlib.contextmanager
def huge_pages(setting: str):
    """The machine's setting, for as long as this lasts."""
    before = SETTING.read_text().split("[")[1].split("]")[0]
    SETTING.write_text(setting)
    try:
        yield
    finally:
        SETTING.write_text(before)


def serve(ends: float) -> None:
    """Fills redis with 1 GiB of values of 4 KiB and then reads a sixteenth of them until then, 2,000 a second; ends it."""
    def talk(*words: bytes) -> bytes:
        return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)

    keys, lots = 230_000, 500
    for _ in range(100):
        with contextlib.suppress(OSError):
            link = socket.create_connection(("127.0.0.1", PORT))
            break
        time.sleep(0.1)
    answers = link.makefile("rb")
    for first in range(0, keys, lots):
        values = [os.urandom(1024) + b"x" * 3000 for _ in range(lots)]
        link.sendall(b"".join(talk(b"SET", b"%d" % (first + at), value) for at, value in enumerate(values)))
        for _ in values:
            answers.readline()
    key = 0
    while time.monotonic() < ends:
        began = time.monotonic()
        for _ in range(20):
            key = (key + 16 * 7919) % keys // 16 * 16
            link.sendall(talk(b"GET", b"%d" % key))
            answers.read(int(answers.readline()[1:]) + 2)
        time.sleep(max(0.0, 0.01 - (time.monotonic() - began)))
    link.sendall(talk(b"SHUTDOWN", b"NOSAVE"))


def run(terrace: str, name: str, command: list, options: list, out: pathlib.Path) -> None:
    """One run; its report, with what the program printed, goes to OUT/NAME.json."""
    with tempfile.TemporaryDirectory() as place:
        report = pathlib.Path(place) / "report.json"
        words = [terrace, "run", "--tier-slow", "zram:4GiB", "--json-file", str(report), *options, "--", *command]
        began = time.monotonic()
        if command[0] == "redis-server":
            load = threading.Thread(target=serve, args=(began + SECONDS,))
            load.start()
        done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"inside: {name}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        told = json.loads(report.read_text())
        told["printed"], told["said"] = done.stdout[-2000:], done.stderr[-6000:]
        out.write_text(json.dumps(told) + "\n")
    print(row(name, told), flush=True)


def row(name: str, report: dict) -> str:
    """A line of the table: the share that was out at two minutes and at most, the account, what was found inside."""
    peak = max(point["resident_bytes"] for point in report["timeline"])
    at = lambda second: min(report["timeline"], key=lambda point: abs(point["seconds"] - second))
    inside = report.get("inside") or {}
    gone = 1 - at(AT)["resident_bytes"] / peak
    most = 1 - min(point["resident_bytes"] for point in report["timeline"] if point["seconds"] > 20) / peak
    used = inside.get("used_bytes")
    return (
        f"| {name} | {peak / 2**20:,.0f} MiB | {100 * gone:.0f} % | {100 * most:.0f} % | {100 * report['cost']['share_of_target']:.2f} % "
        f"| {inside.get('split_blocks', 0):,.0f} | {'' if used is None else f'{used / 2**20:,.0f} MiB'} |"
    )


def main() -> None:
    """Runs what has not run, or prints the table."""
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("--out", type=pathlib.Path)
    words.add_argument("--table", type=pathlib.Path)
    words.add_argument("names", nargs="*")
    given = words.parse_args()
    if given.table:
        print("| program | at most | out at 120 s | at most out | account | blocks split | in use, said |\n|---|---:|---:|---:|---:|---:|---:|")
        for path in sorted(given.table.glob("*.json")):
            print(row(path.stem, json.loads(path.read_text())))
        return
    if not given.out or os.geteuid() != 0:
        sys.exit("inside: --out DIRECTORY is needed, and root")
    # Ended by a signal, it puts the setting back as well.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    given.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as text:
        place = pathlib.Path(text)
        build(place)
        for name, (command, options, setting) in programs(place).items():
            path = given.out / f"{name}.json"
            if path.exists() or (given.names and name not in given.names) or not shutil.which(command[0]):
                continue
            with huge_pages(setting):
                run(str(HERE.parent / "target/release/terrace"), name, command, options, path)


if __name__ == "__main__":
    main()
