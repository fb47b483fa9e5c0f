#!/usr/bin/env python3
"""The lab's comparison of managers: six programs, several seeds, each manager, in guests with real memory tiers.

    make build qemu-plugin
    benchmarks/lab_campaign.py                    # runs what is missing, one QEMU at a time, and prints the table
    benchmarks/lab_campaign.py --table            # prints the table of what has run
    benchmarks/lab_campaign.py --until 03:00      # begins no run after this time of day
    benchmarks/lab_campaign.py --tau              # whether the simulator ranks managers as the guests do: Kendall's tau

In: `terrace lab compare`; `--terrace FILE` (or TERRACE) names the command, TERRACE_QEMU_PLUGIN its plugin where that does not lie beside it, TERRACE_BINARY
another command for the guests. Out: a JSON file a run below --output, as the command printed it, and the table. A run whose file is there is not run again, so
that the campaign can be broken off and taken up. Seeds are outermost: what has run when it is broken off is whole seeds. Must not: write anything else.
"""

import datetime
import json
import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

import rounds
from rounds import ROOT, spread

KERNEL = "7.2"
SIZE = "64MiB"
FAST = "30%"
# Operations: so many that a program runs for some ten seconds of the guest's time, its first touches not counted.
WORKLOADS = {
    "btree": ["--operations", "262144"],
    "graph500": ["--operations", "16", "--set", "validate=last"],
    "silo-ycsb-c": [],
    "gups-shift": [],
    "xsbench": ["--operations", "65536"],
    "gap-pr": ["--operations", "4", "--set", "graph=uniform"],
}
KERNELS_OWN = ["numa_balancing=1", "numa_balancing=2", "damon"]
# From the host: where there is none (MEMTIERD, or the PATH), its runs are left out.
MEMTIERD = "memtierd"
TERRACE = ["terrace:flexhm", "terrace:tieredmms", "terrace:flexmem"]
# The policy that stands for a manager in the simulator. DAMON and memtierd have none.
SIMULATED = {
    "none": "first-touch",
    "numa_balancing=1": "autonuma",
    "numa_balancing=2": "numab2",
    "terrace:flexhm": "flexhm",
    "terrace:tieredmms": "tieredmms",
    "terrace:flexmem": "flexmem",
}
# A guest stands for a machine that is larger by this factor (docs/lab.md, "Settings at the guest's measure").
SCALE = 1024
MANAGERS = ["none"] + KERNELS_OWN + [MEMTIERD] + TERRACE


def plan(seeds, managers):
    """Runs in their order. Nobody's management needs one seed: it is there to see what the others change."""
    for seed in range(1, seeds + 1):
        for workload in WORKLOADS:
            for manager in managers:
                if manager != "none" or seed == 1:
                    yield workload, seed, manager


def path_of(output, workload, seed, manager):
    return output / f"{workload}-{seed}-{manager.replace(':', '-')}.json"


def run(arguments, workload, seed, manager):
    """One run. Returns whether it came to a row."""
    command = [str(arguments.terrace), "lab", "compare", "--kernel", KERNEL, "--workload", workload, "--size", SIZE, "--fast", FAST]
    # A moved page rests a second, as usual: what has run was run before comparisons brought that to the guest's measure.
    name = manager + ":rest=1s" if manager.startswith("terrace:") else manager
    command += ["--managers", name, "--first-seed", str(seed), "--json", *WORKLOADS[workload]]
    result = subprocess.run(command, stdout=subprocess.PIPE, cwd=ROOT, check=False)
    if result.returncode not in (0, 1) or not result.stdout:
        return False
    text = json.loads(result.stdout)
    if not text["rows"]:
        return False
    path = path_of(arguments.output, workload, seed, manager)
    unfinished = path.with_suffix(".part")
    unfinished.write_text(json.dumps(text, separators=(",", ":")) + "\n")
    unfinished.rename(path)
    return True


def campaign(arguments):
    arguments.output.mkdir(parents=True, exist_ok=True)
    managers = arguments.managers
    if MEMTIERD in managers and not (os.environ.get("MEMTIERD") or shutil.which(MEMTIERD)):
        print("memtierd is not installed (docs/lab.md says how to build it): left out", file=sys.stderr)
        managers = [manager for manager in managers if manager != MEMTIERD]
    missing = [job for job in plan(arguments.seeds, managers) if not path_of(arguments.output, *job).exists()]
    failed = 0
    for number, job in enumerate(missing):
        if arguments.until and datetime.datetime.now().strftime("%H:%M") >= arguments.until:
            print(f"{len(missing) - number} runs are left", file=sys.stderr)
            break
        if not run(arguments, *job):
            failed += 1
            print(f"no row: {job[0]}, seed {job[1]}, {job[2]}", file=sys.stderr)
    return failed


def rows_of(output):
    rows = {}
    for workload in WORKLOADS:
        for manager in MANAGERS:
            files = sorted(output.glob(f"{workload}-*-{manager.replace(':', '-')}.json"))
            found = [json.loads(file.read_text())["rows"][0] for file in files]
            if found:
                rows[workload, manager] = found
    return rows


def nanoseconds(row):
    """Modelled time of an access: a program that times itself does not make the same number of them in each run."""
    return row["modelled_seconds"] / row["accesses"] * 1e9


def table(rows):
    """Medians, and ranges where there is more than one seed, by program and manager; then who is ahead of whom."""
    head = ["program", "manager", "seeds", "fast share, %", "of the last half, %", "modelled, ms", "ns an access", "had, MiB", "pages in", "pages out"]
    cells = []
    for (workload, manager), found in rows.items():
        column = lambda key, scale=1: [one[key] * scale for one in found]
        cells.append([
            workload,
            f"`{manager}`",
            len(found),
            spread(column("fast_hit_share", 100), ".1f"),
            spread(column("fast_hit_share_late", 100), ".1f"),
            spread(column("modelled_seconds", 1000), ".0f"),
            spread(list(map(nanoseconds, found)), ".2f"),
            spread(column("fast_bytes_mean", 2**-20), ".1f"),
            f"{statistics.median(column('promoted_pages')):,.0f}",
            f"{statistics.median(column('demoted_pages')):,.0f}",
            spread(column("manager_cpu_seconds"), ".1f"),
        ])
    print(rounds.table([*head, "CPU of the manager, s"], cells))
    median = {
        key: {"share": statistics.median(row["fast_hit_share"] for row in found), "time": statistics.median(map(nanoseconds, found))}
        for key, found in rows.items()
    }
    ahead = lambda one, other: one["share"] > other["share"] and one["time"] < other["time"]

    def standing(title, ours, rivals):
        """Where one of ours is ahead of all rivals, by both figures' medians."""
        wins, known = 0, 0
        for workload in WORKLOADS:
            theirs = [median[workload, name] for name in rivals if (workload, name) in median]
            own = {name: median[workload, name] for name in ours if (workload, name) in median}
            if len(theirs) < len(rivals) or not own:
                continue
            known += 1
            best = min(own, key=lambda name: own[name]["time"])
            won = all(ahead(own[best], rival) for rival in theirs)
            wins += won
            print(f"  {workload}: {best} {'is ahead' if won else 'is not ahead'}")
        print(f"{title}: ahead on {wins} of {known}")

    print()
    for rivals in (["numa_balancing=1"], ["numa_balancing=2", "damon"], [MEMTIERD]):
        for policy in TERRACE:
            standing(f"{policy} against {' and '.join(rivals)}", [policy], rivals)
    standing("Terrace's best against numa_balancing=2 and damon", TERRACE, ["numa_balancing=2", "damon"])


def simulate(arguments, workload, manager, seed):
    """The run of a guest, by the simulator: the same program, size, seed and share of fast memory, at the guest's measure."""
    options = [word if word != "--set" else "--workload-set" for word in WORKLOADS[workload]]
    command = [str(arguments.terrace), "sim", "run", workload, "--policy", SIMULATED[manager], "--size", SIZE, "--scale", str(SCALE)]
    command += ["--fast", FAST, "--threads", "1", "--seed", str(seed), "--json", *options]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


def kendall(one, other):
    """Kendall's tau-b of two lists of values."""
    pairs = [(one[i] - one[j], other[i] - other[j]) for i in range(len(one)) for j in range(i)]
    agree = sum((a * b > 0) - (a * b < 0) for a, b in pairs)
    return agree / (sum(a != 0 for a, _ in pairs) * sum(b != 0 for _, b in pairs)) ** 0.5


def tau(arguments, rows):
    """Fast shares in guests and in the simulator, medians over seeds, and Kendall's tau of each program's managers."""
    # Row by row: each program is simulated before its row is known.
    print(rounds.table(["program", *(f"`{manager}`" for manager in SIMULATED), "tau"], []))
    found = []
    for workload in WORKLOADS:
        guests = [statistics.median(row["fast_hit_share"] for row in rows[workload, manager]) for manager in SIMULATED]
        simulated = []
        for manager in SIMULATED:
            seeds = range(1, arguments.seeds + 1)
            simulated.append(statistics.median(simulate(arguments, workload, manager, seed)["fast_hit_share"] for seed in seeds))
        found.append(kendall(guests, simulated))
        cells = (f"{guest * 100:.0f} / {ours * 100:.0f} %" for guest, ours in zip(guests, simulated))
        print(rounds.row([workload, *cells, f"{found[-1]:+.2f}"]), flush=True)
    print(f"\nfast share in guests / simulated; mean of tau {statistics.mean(found):+.2f}")


def main():
    options = rounds.parser(__doc__)
    options.add_argument("--seeds", type=int, default=5, help="seeds of each run (5)")
    options.add_argument("--managers", type=lambda text: text.split(","), default=MANAGERS, metavar="NAMES", help="only these, with commas between")
    options.add_argument("--output", type=Path, default=ROOT / "benchmarks/runs/2026-11-22-2vcpu-vm/lab-campaign", help="where runs are kept")
    options.add_argument("--terrace", type=Path, default=Path(rounds.TERRACE), help="the command")
    options.add_argument("--until", metavar="HH:MM", help="begin no run after this time of day")
    options.add_argument("--table", action="store_true", help="run nothing")
    options.add_argument("--tau", action="store_true", help="simulate what has run, and say whether managers rank alike")
    arguments = options.parse_args()
    failed = 0 if arguments.table or arguments.tau else campaign(arguments)
    rows = rows_of(arguments.output)
    if not rows:
        sys.exit(f"{arguments.output} has no runs yet")
    if arguments.tau:
        tau(arguments, rows)
    else:
        table(rows)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
