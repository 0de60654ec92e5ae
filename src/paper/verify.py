"""Recompute recorded runs on this machine and compare: python -m paper.verify --preset paper --count 3.

Runs are picked at random. Measurements that do not time anything are recomputed completely, for one seed. Training is
recomputed for the first epochs alone: start weights and batch order depend only on the seed and the epoch, so a shorter
run begins as the recorded one did. On a CPU the convolutional network is left out: one evaluation takes many minutes.

Exit status: 0 all runs agree, 1 some do not, 2 invalid input, or no recorded run can be compared here.
"""

import argparse
import math
import random
import secrets
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch

from paper import cli, config, data, results
from paper.cli import PaperError
from paper.experiments import EXPERIMENTS, measured
from paper.plan import plan
from paper.runs import Spec, key, result_path
from paper.training.runner import Options, can_batch, train

# Allowed differences of a loss (relative) and of an accuracy, at the start and after training. The coarser of the two
# precisions decides: each factor of a product is rounded by up to 2^-24 in float32, 2^-11 in TF32, 2^-9 in bfloat16.
# The mean loss of a start averages these errors over all images; training adds them up over hundreds of steps. Measured
# at lr 1e-3, TF32 on a GPU against float32 on a CPU: 5e-7 of the loss at the start, 2e-3 after an epoch, 0.005 of an
# accuracy. Some networks amplify rounding until a run is no nearer to its copy than to another seed (8 hidden layers
# with PathCond: 5e-2 of the loss); their allowed difference is measured during the check. Log-scales follow from
# diag(G) in float32. Measurements in float64 agree to 3e-13 of the largest number of a column, whatever the number of
# threads; start weights are float32, and other processors round them differently (6e-8 seen).
ALLOWED = {
    "float32": {"loss": (1e-5, 1e-3), "accuracy": (0.001, 0.005)},
    "float32 with TF32 products": {"loss": (1e-4, 1e-2), "accuracy": (0.002, 0.015)},
    "bfloat16 autocast": {"loss": (1e-3, 5e-2), "accuracy": (0.01, 0.05)},
}
LOG_SCALE, MEASURED = 1e-5, 1e-6
ROUNDING, SPREAD = 2.0**-11, 4.0
DISAGREE = 1
EPOCHS = {"cpu": 1, "cuda": 5}


class Difference(NamedTuple):
    """The largest difference of a column (NaN if one side has no number), and the allowed one."""

    column: str
    off: float
    allowed: float

    @property
    def share(self) -> float:
        """The difference as a fraction of the allowed one; 1 is the limit."""
        return math.inf if math.isnan(self.off) else self.off / self.allowed

    def __str__(self) -> str:
        return f"{self.column} off by {self.off:.1e}, allowed {self.allowed:.1e}"


@dataclass(frozen=True)
class Check:
    """The check of one run: its name, what was compared, and the differences."""

    name: str
    compared: str
    differences: list[Difference]

    @property
    def worst(self) -> Difference:
        """The difference that is largest relative to the allowed one."""
        return max(self.differences, key=lambda difference: difference.share)

    @property
    def agrees(self) -> bool:
        """Whether all differences are within the allowed ones."""
        return self.worst.share <= 1


def comparable(spec: Spec, device: torch.device) -> bool:
    """Whether a run can be recomputed here with the same numbers."""
    if spec["stage"] == "measure":
        return not EXPERIMENTS[spec["experiment"]].exclusive
    return device.type == "cuda" or can_batch(spec)


def pick(specs: Sequence[Spec], count: int, seed: int) -> list[tuple[Spec, int | None]]:
    """Random runs, each with a random seed if it is a measurement of several seeds, else with None."""
    chance = random.Random(seed)  # noqa: S311 - no secret
    chosen = chance.sample(sorted(specs, key=key), min(count, len(specs)))
    return [(spec, chance.choice(spec.get("settings", {}).get("seeds") or [None])) for spec in chosen]


def check_measurement(
    spec: Spec, seed: int | None, recorded: pd.DataFrame, device: torch.device, folder: Path | None = None
) -> Check:
    """Measure again, one seed alone, and compare every number of it; `folder` holds the data sets."""
    one = spec if seed is None else {**spec, "settings": {**spec["settings"], "seeds": [seed]}}
    made = measured(one, device, folder)
    rows = recorded if seed is None else recorded[recorded["seed"] == seed].reset_index(drop=True)
    found = []
    for name in map(str, recorded):
        first, second = rows[name], made.get(name, pd.Series(dtype=float))
        if pd.api.types.is_float_dtype(first):
            size = float(recorded[name].abs().max()) or 1.0
            found.append(Difference(name, _furthest(first / size, second.astype(float) / size), MEASURED))
        else:
            same = first.astype(str).tolist() == second.astype(str).tolist()
            found.append(Difference(name, 0.0 if same else math.nan, MEASURED))
    return Check(key(spec) if seed is None else f"{key(spec)} seed {seed}", f"{len(rows)} rows", found)


def check_training(
    spec: Spec, recorded: pd.DataFrame, provenance: Mapping[str, Any], options: Options, epochs: int
) -> Check:
    """Train a run again for its first epochs, and compare every metric after each; both NaN is agreement.

    If a difference is larger than rounding alone explains, the run is repeated twice with its learning rate changed by
    one rounding error, up and down. Then SPREAD times the change that this causes is allowed.
    """
    short = {**spec, "epochs": min(epochs, spec["epochs"])}
    made, ours = _trained(short, options)
    rows = recorded[recorded["epoch"] <= short["epochs"]].reset_index(drop=True)
    precisions = provenance["precision"], ours["precision"]
    check = Check(key(spec), f"epochs 0 to {short['epochs']}", _differences(rows, made, precisions))
    if check.agrees or not all(d.share <= 1 for d in _differences(rows[:1], made[:1], precisions)):
        return check
    moved = [_trained({**short, "lr": short["lr"] * (1 + sign * ROUNDING)}, options)[0] for sign in (-1, 1)]
    spread = {"loss": 0.0, "accuracy": 0.0}
    for first, second in combinations((made, *moved), 2):
        for found in _differences(first, second, precisions):
            if (kind := _kind(found.column)) in spread:
                spread[kind] = max(spread[kind], found.off)
    wider = [d._replace(allowed=max(d.allowed, SPREAD * spread.get(_kind(d.column), 0.0))) for d in check.differences]
    remark = ", chaotic" if wider != check.differences else ""
    return Check(check.name, check.compared + remark, wider)


def _trained(spec: Spec, options: Options) -> tuple[pd.DataFrame, dict[str, Any]]:
    train([spec], options)
    return results.read_result(result_path(options.results, spec))


def _differences(first: pd.DataFrame, second: pd.DataFrame, precisions: tuple[str, str]) -> list[Difference]:
    """Differences of the metrics at the start, and after it."""
    found = []
    for name in second.columns.drop(["seed", "epoch", "diverged"]):
        size = second[name].abs().clip(lower=1e-12) if _kind(name) == "loss" else 1.0
        for trained in (False, True):
            part = (second["epoch"] > 0) == trained
            one, other = first[name] / size, second[name] / size
            off = _furthest(one[part], other[part]) if len(first) == len(second) else math.nan
            kinds = () if name == "max_log_scale" else (ALLOWED[precision][_kind(name)] for precision in precisions)
            found.append(Difference(name, off, max((kind[trained] for kind in kinds), default=LOG_SCALE)))
    return found


def _kind(column: str) -> str:
    return column.rpartition("_")[2]


def _furthest(first: pd.Series, second: pd.Series) -> float:
    """Largest difference; NaN on both sides is no difference. NaN if one side alone has NaN, or lacks a row."""
    if len(first) != len(second):
        return math.nan
    apart = (first - second).abs()[~(first.isna() & second.isna())]
    return float(apart.max(skipna=False)) if len(apart) else 0.0


def verify(picked: Sequence[tuple[Spec, int | None]], folder: Path, options: Options, epochs: int) -> list[Check]:
    """Recompute runs and compare them with those under `folder`; what is computed goes to `options`."""
    checks = []
    for spec, seed in picked:
        recorded, provenance = results.read_result(result_path(folder, spec))
        spec = provenance["spec"]  # the same settings, in the order in which they were recorded
        measure = spec["stage"] == "measure"
        dataset = spec["settings"].get("dataset") if measure else spec["dataset"]
        if dataset is not None and not (path := options.data / f"{dataset}.pt").exists():
            data.prepare(dataset, path)
        if measure:
            checks.append(check_measurement(spec, seed, recorded, options.device, options.data))
        else:
            checks.append(check_training(spec, recorded, provenance, options, epochs))
    return checks


def told(checks: Sequence[Check]) -> str:
    """The checks as a table of text."""
    rows = [(c.name, c.compared, "agrees" if c.agrees else "DIFFERS", str(c.worst)) for c in checks]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join("  ".join([*(f"{row[i]:{widths[i]}}" for i in range(3)), row[3]]) for row in rows)


def main() -> None:
    """Read the command line, verify, print the table."""
    parser = argparse.ArgumentParser(prog="python -m paper.verify", description=__doc__, formatter_class=cli.Paragraphs)
    cli.add_config_options(parser)
    parser.add_argument("--count", type=int, default=3, help="runs to recompute")
    parser.add_argument("--seed", type=int, help="seed of the choice (default: another each time, which is printed)")
    parser.add_argument("--epochs", type=int, help="epochs of training to recompute (default: 1 on a CPU, 5 on a GPU)")
    parser.add_argument("--match", default="", help="only runs whose key contains this text")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="auto: a GPU if there is one")
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of the presets' folders")
    parser.add_argument("--data", type=Path, default=Path("results/data"), help="folder of the data sets")
    given = parser.parse_args()
    if given.count < 1 or (given.epochs or 0) < 0:
        raise PaperError(f"expected --count of 1 or more and --epochs of 0 or more, got {given.count}, {given.epochs}.")
    chosen, device = config.read(given.folder, given.preset), cli.choose_device(given.device, torch.get_num_threads())
    specs = [spec for name, spec in plan(chosen).specs.items() if given.match in name]
    there = [spec for spec in specs if results.exists(result_path(given.results, spec))]
    pool = [spec for spec in there if comparable(spec, device)]
    if not pool:
        raise PaperError(f"expected recorded runs of the preset {chosen.preset} that can be recomputed, found none.")
    seed = secrets.randbelow(1_000_000) if given.seed is None else given.seed
    cli.say(f"{given.count} of {len(pool)} recorded runs, picked with --seed {seed}, on {cli.describe_device(device)}")
    if left := len(there) - len(pool):
        cli.say(f"{left} recorded runs are left out: they time something, or take too long without a GPU")
    with tempfile.TemporaryDirectory() as folder:
        options = Options(Path(folder), given.data, Path(folder) / "checkpoints", device)
        picked = pick(pool, given.count, seed)
        epochs = EPOCHS[device.type] if given.epochs is None else given.epochs
        checks = verify(picked, given.results, options, epochs)
    sys.stdout.write(told(checks) + "\n")
    if not all(check.agrees for check in checks):
        sys.exit(DISAGREE)


if __name__ == "__main__":
    cli.run(main)
