"""Numbers of runs of the tiny preset at their present versions: python -m tests.golden writes tests/golden.json.

Run it after raising a version (of an experiment, or `TRAINING_VERSION` in src/paper/runs.py), not otherwise.
"""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from paper import config
from paper import plan as plans
from paper import results as stored
from paper.data import prepare
from paper.experiments import EXPERIMENTS
from paper.runs import Spec, digest, result_path
from paper.training.runner import Options, train
from tests.paper.experiments import tables

ROOT = Path(__file__).parents[1]
FILE = ROOT / "tests" / "golden.json"
CPU = torch.device("cpu")
# One network and method for each code path of training, two seeds each; other runs differ in settings only.
TRAINED = ("mlp_2x16/enorm", "mlp_2x16/pathcond-lr0.001", "mlp_2x16_gelu/pathcond", "cifar_nv/enorm-lr0.001",
         "cifar_nv/pathcond-lr0.001", "autoencoder_c2/pathcond-lr0.001", "mlp_2x16/rows", "mlp_2x16/exact",
         "mlp_2x16_adamw/pathcond", "mlp_2x16_muon/pathcond", "resnet18/full-lr0.1", "mnist_mlp/norms")  # fmt: skip


def specs() -> dict[str, Spec]:
    """Runs that are watched, by key without digest."""
    found = plans.plan(config.read(ROOT, "tiny")).specs
    found = {k: s for k, s in found.items() if s.get("train_metrics") != "both"}  # the same run on more images
    chosen = {k: s for k, s in found.items() if s["stage"] == "measure" or any(c in k for c in TRAINED)}
    return {name.rpartition("-")[0]: spec for name, spec in chosen.items()}


def results(folder: Path) -> Iterator[tuple[str, Spec, dict[str, Any]]]:
    """Compute every watched run in a folder, and summarize it."""
    torch.set_num_threads(1)
    prepare("generated", folder / "data" / "generated.pt")
    for name, spec in specs().items():
        path, timed = result_path(folder, spec), False
        if spec["stage"] == "measure":
            experiment = EXPERIMENTS[spec["experiment"]]
            place = [part for part, _ in experiment.all_parts(tables.settings(experiment.name))].index(spec["part"])
            stored.write_table(path, tables.runs(experiment.name)[place][0])
            timed = experiment.exclusive
        else:
            train([spec], Options(folder, folder / "data", folder / "checkpoints", CPU))
        yield name, spec, summary(stored.read_table(path), timed)


def summary(table: pd.DataFrame, timed: bool) -> dict[str, Any]:
    """Columns of a table by their sums and last values, text by its distinct values; times are left out."""
    found: dict[str, Any] = {"rows": len(table)}
    for name in table:
        column = table[name]
        if timed and name in ("seconds", "hardware"):
            continue
        if pd.api.types.is_numeric_dtype(column):
            finite = column.astype(float).dropna()
            last = float(finite.iloc[-1]) if len(finite) else None
            found[name] = [float(finite.sum()), last, int(column.isna().sum())]
        else:
            found[name] = sorted(set(column.astype(str)))
    return found


def main() -> None:
    """Write the file."""
    with tempfile.TemporaryDirectory() as folder:
        made = {name: {"version": spec["version"], "digest": digest(spec), "summary": sums}
                for name, spec, sums in results(Path(folder))}  # fmt: skip
    FILE.write_text(json.dumps(made, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
