"""How far does it go? Time and memory of Snakemake, of a table and of the solver as their sizes grow, on a CPU.

    python benchmarks/scaling.py [--runs 1000 10000] [--parameters 9e5 9e6 9e7] [--json FILE]

Each number is of a process of its own; a part that is not asked for (`--runs` or `--parameters` without numbers) stays
in the record as it was. docs/scaling.md is filled from it.

What was found
- Ten thousand jobs took Snakemake 267 s: every rule listed the keys of its runs as a wildcard's constraint, which is
  copied into each path of each job. A pattern that says only what tells due runs from others takes a tenth of that.
- The command of an aggregate listed its tables; from about 1,900 of them it was longer than Linux lets an argument be.
"""

import argparse
import json
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd
import torch

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "src")]

import pathcond
from benchmarks.rescale import scaled_mlp
from paper import cli, config, results, runs
from paper import plan as plans
from tests.workflow.tree import Tree

NAME, METHODS, SEEDS = "mlp_depth_lrs", 3, 2
Row = dict[str, Any]


# A process begins with the peak of the one that starts it, so a small one must stand between.
_MEASURED = """
import resource, subprocess, sys, time
start = time.perf_counter()
status = subprocess.run(sys.argv[1:]).returncode
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print("\\nmeasured", time.perf_counter() - start, used.ru_utime + used.ru_stime, used.ru_maxrss)
sys.exit(status)
"""


def child(command: list[str], tree: Tree) -> tuple[Row, str]:
    """Wall time, time of a processor and peak memory of a process, and what it wrote."""
    done = subprocess.run(  # noqa: S603 - our own words
        [sys.executable, "-c", _MEASURED, *command],
        cwd=tree.folder,
        env=tree.environment(),
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)[:200]} failed:\n{(done.stdout + done.stderr)[-2000:]}")
    seconds, worked, kilobytes = map(float, done.stdout.rsplit("measured", 1)[1].split())
    row = {"seconds": round(seconds, 1), "cpu_seconds": round(worked, 1), "peak_mb": round(kilobytes / 1024)}
    return row, done.stdout


def dry_run(tree: Tree, count: int, what: str, *targets: str) -> Row:
    """Snakemake's dry run of a tree."""
    command = [sys.executable, "-m", "snakemake", *targets, "--cores", "2", "-n", "--quiet", "rules"]
    row, text = child([*command, "--config", "preset=tiny"], tree)
    total = re.search(r"^total +(\d+)", text, re.MULTILINE)
    return told({"runs": count, "what": what, "jobs": int(total[1]) if total else 0, **row})


def told(row: Row) -> Row:
    print(row, flush=True)
    return row


def grid(folder: Path, count: int) -> tuple[Tree, config.Config]:
    """A copy of the workflow whose tiny preset asks for so many runs of one experiment, and its configuration."""
    tree = Tree.fresh(folder)
    lrs = [round(1e-4 * (1 + number), 6) for number in range(-(-count // METHODS // SEEDS))]
    tree.set(f"experiments.{NAME}.lrs", lrs)
    return tree, config.read(folder, "tiny")


def fill(tree: Tree, specs: list[runs.Spec]) -> None:
    """Results of these runs, as training leaves them, with made-up numbers."""
    for spec in specs:
        table = pd.DataFrame({"seed": spec["seed"], "epoch": range(spec["epochs"] + 1)})
        table = table.assign(train_loss=1.0, train_accuracy=0.5, test_loss=1.0, test_accuracy=0.5, max_log_scale=0.0)
        record = {**cli.environment(torch.device("cpu")), "parameters": 1, "seconds": 1.0, "status": "done"}
        path = runs.result_path(tree.folder / "results", spec)
        results.write_result(path, table.assign(diverged=False), spec, record)


def jobs(folder: Path, count: int, whole: bool) -> list[Row]:
    """Plans of a grid; `whole`: also with a part done and with all done, and the table of all."""
    tree, chosen = grid(folder, count)
    rows = [dry_run(tree, count, "nothing done")]
    if not whole:
        return rows
    specs = list(plans.plan(chosen).training().values())
    random.Random(0).shuffle(specs)  # noqa: S311 - no secret
    half = len(specs) // 2
    fill(tree, specs[:half])
    rows.append(dry_run(tree, count, "half of the runs done"))
    fill(tree, specs[half:])
    rows.append(dry_run(tree, count, "all runs done"))
    given = json.dumps(plans.slice_of(chosen, NAME))
    command = [sys.executable, "-m", "paper.experiments", "aggregate", NAME, "--config", given, "--output", "table.csv"]
    row, _ = child(command, tree)
    return [*rows, told({"runs": count, "what": "the table of all runs", "jobs": 1, **row})]


def rescaling(parameters: float) -> Row:
    """Rescaling an MLP with eight hidden layers, in this process."""
    torch.manual_seed(0)
    small = scaled_mlp(1e5)
    pathcond.rescale_(small, torch.ones(1, small[1].in_features))  # what torch sets up once
    model = scaled_mlp(parameters)
    x = torch.ones(1, model[1].in_features)
    own = sum(p.numel() for p in model.parameters())
    begun = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tries = []
    for _ in range(3):  # the least of three, for the machine has other users
        start = time.process_time()
        report = pathcond.rescale_(model, x)
        tries.append((sum(report.seconds.values()), time.process_time() - start, report))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds, _, report = min(tries, key=lambda one: one[0])
    steps = {step: round(value, 2) for step, value in report.seconds.items()}
    return {
        "parameters": own, "units": report.units, "seconds": round(seconds, 2),
        "cpu_seconds": round(min(one[1] for one in tries), 2), **steps,
        "weights_mb": round(own * 4 / 2**20), "begun_mb": round(begun / 1024), "peak_mb": round(peak / 1024),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure how far it goes.")
    parser.add_argument("--runs", type=int, nargs="*", default=[1000, 10_000], help="runs of the grid")
    parser.add_argument("--parameters", type=float, nargs="*", default=[9e5, 9e6, 9e7, 2.7e8], help="of an MLP")
    parser.add_argument("--json", type=Path, help="where the record goes")
    parser.add_argument("--one", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(rescaling(options.one)))
        return
    dag, solver = [], []
    for count in options.runs:
        with tempfile.TemporaryDirectory() as folder:
            dag += jobs(Path(folder, "tree"), count, whole=count == max(options.runs))
    for parameters in options.parameters:
        command = [sys.executable, __file__, "--one", str(parameters)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603 - our own words
        solver.append(told(json.loads(done.stdout)))
    if options.json:
        parts = json.loads(options.json.read_text()) if options.json.exists() else {}
        record = {**cli.environment(torch.device("cpu")), "snakemake": version("snakemake")}
        parts |= {name: {**record, "rows": rows} for name, rows in (("dag", dag), ("solver", solver)) if rows}
        options.json.write_text(json.dumps(parts, indent=1) + "\n")


if __name__ == "__main__":
    main()
