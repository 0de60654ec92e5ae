"""What runs of the tiny scale gave when their versions were set: python -m tests.golden writes tests/golden.json.

Run it after raising a version (`Item.version` in src/paper/plan.py, `VERSION` in src/paper/cells.py), not otherwise.
"""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from paper import store
from paper.config import check, load
from paper.data import prepare
from paper.measure.__main__ import make
from paper.plan import ITEMS, Spec, digest, key, runs
from paper.train.loop import Options, result_path, train

ROOT = Path(__file__).parents[1]
FILE = ROOT / "tests" / "golden.json"
CPU = torch.device("cpu")
# One cell of each way to train; the rest differs in numbers only.
CELLS = ("mlp_2x16/enorm", "mlp_2x16/pathcond-lr0.001", "mlp_2x16_gelu/pathcond", "cifar_nv/enorm-lr0.001",
         "cifar_nv/pathcond-lr0.001", "autoencoder_c2/pathcond-lr0.001", "mlp_2x16/rows", "mlp_2x16/exact")  # fmt: skip


def specs() -> dict[str, Spec]:
    """Runs that are watched, by key without digest."""
    config = check({**load(ROOT / "config.yaml"), "scale": "tiny"}, ROOT / "workflow/schemas/config.schema.yaml")
    chosen = {k: s for k, s in runs(config).items() if s["stage"] == "measure" or any(c in k for c in CELLS)}
    return {name.rpartition("-")[0]: spec for name, spec in chosen.items()}


def results(folder: Path) -> Iterator[tuple[str, Spec, dict[str, Any]]]:
    """Make every watched run in a folder, and sum it up."""
    torch.set_num_threads(1)
    prepare("generated", folder / "data" / "generated.pt")
    for name, spec in specs().items():
        if spec["stage"] == "measure":
            path = folder / f"{key(spec)}.csv"
            make(spec, path, CPU, folder / "data")
            timed = ITEMS[spec["item"]].exclusive
        else:
            train([spec], Options(folder, folder / "data", folder / "checkpoints", CPU))
            path, timed = result_path(folder, spec), False
        yield name, spec, summary(store.read_table(path), timed)


def summary(table: pd.DataFrame, timed: bool) -> dict[str, Any]:
    """Columns of a table by their sums and last values, text by its distinct values; times are left out."""
    found: dict[str, Any] = {"rows": len(table)}
    for name in table:
        column = table[name]
        if timed and name in ("seconds", "hardware"):
            continue
        if pd.api.types.is_numeric_dtype(column):
            finite = column.astype(float).dropna()
            found[name] = [
                float(finite.sum()),
                float(finite.iloc[-1]) if len(finite) else None,
                int(column.isna().sum()),
            ]
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
