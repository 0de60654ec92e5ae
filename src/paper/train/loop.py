"""Cells trained to the end: which runs train together, epochs, checkpoints, time limits, results."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from paper import cli, hardware, store
from paper.errors import PaperError
from paper.plan import key
from paper.train.alone import Alone
from paper.train.backend import Backend, Run
from paper.train.checkpoint import Checkpoint
from paper.train.progress import Progress
from paper.train.sets import Sets
from paper.train.sets import load as load_sets
from paper.train.together import Together

Cell = dict[str, Any]
COLUMNS = ["seed", "epoch", "train_loss", "train_accuracy", "validation_loss", "validation_accuracy", "test_loss",
           "test_accuracy", "max_log_scale", "diverged"]  # fmt: skip
FIELDS = ("scale", "task", "model", "rescaling", "optimiser", "lr", "epochs", "dataset", "images", "validation",
          "test_images", "batch", "seeds")  # fmt: skip


class TimeUp(Exception):
    """The time limit came; everything is in checkpoints."""


@dataclass
class Options:
    """Where and how to train.

    Attributes:
        results: folder of the scales' folders.
        data: folder of the data sets.
        checkpoints: folder of the checkpoints.
        device: where to train.
        every: seconds between two checkpoints.
        stop: whether to stop now; asked after each epoch.
        most: runs trained together at once.
    """

    results: Path
    data: Path
    checkpoints: Path
    device: torch.device
    every: float = 30.0
    stop: Callable[[], bool] = lambda: False
    most: int = 96


@dataclass
class Progressing:
    """A cell on its way: where each seed stands."""

    cell: Cell
    checkpoint: Checkpoint
    seeds: dict[int, dict[str, Any]] = field(default_factory=dict)

    def finished(self, seed: int) -> bool:
        """Whether a seed has all its epochs."""
        return seed in self.seeds and self.seeds[seed]["epoch"] >= self.cell["epochs"]


def result_path(results: Path, cell: Cell) -> Path:
    """Where a cell's table goes."""
    return results / cell["scale"] / f"{key(cell)}.csv"


def train(cells: Sequence[Cell], options: Options) -> None:
    """Train every cell that has no result yet, those that can together.

    Raises:
        PaperError: a cell lacks something.
        TimeUp: the time limit came first; the same call goes on from the checkpoints.
    """
    due = []
    for cell in {result_path(options.results, cell): cell for cell in map(_checked, cells)}.values():
        entry = Progressing(cell, Checkpoint(options.checkpoints, cell))
        if store.is_whole(result_path(options.results, cell)):
            cli.say(f"{key(cell)}: already there")
            entry.checkpoint.remove()
            continue
        entry.seeds, remark = entry.checkpoint.read()
        if remark:
            cli.say(f"{key(cell)}: {remark}")
        due.append(entry)
    for group in _groups(due, options):
        _train_group(group, options)


def _checked(cell: Cell) -> Cell:
    lacking = [name for name in FIELDS if name not in cell]
    if lacking or not cell["seeds"]:
        lacking = lacking or ["seeds"]
        raise PaperError(f"{key(cell)}: expected {', '.join(lacking)}, got none. `make specs` writes whole specs.")
    return cell


def stackable(cell: Mapping[str, Any]) -> bool:
    """Whether runs of a cell can train together with others: fully connected, plain gradient descent."""
    model = cell["model"]
    both = model.get("batchnorm", True) and model.get("bias")  # which the stack does not know
    return model["kind"] in ("mlp", "autoencoder") and not both and cell["optimiser"] == {"name": "sgd"}


def _groups(due: Sequence[Progressing], options: Options) -> Iterator[list[Progressing]]:
    """Cells that train side by side: on a GPU those of one shape, data, batch, epochs and progress; else one by one."""
    found: dict[str, list[Progressing]] = {}
    for entry in due:
        name = key(entry.cell)
        if options.device.type == "cuda" and stackable(entry.cell):
            shared = ("task", "dataset", "images", "validation", "test_images", "model", "batch", "epochs")
            epochs = [entry.seeds.get(seed, {}).get("epoch", 0) for seed in entry.cell["seeds"]]
            name = repr([entry.cell[field] for field in shared] + epochs)
        found.setdefault(name, []).append(entry)
    for group in found.values():
        # ENorm's runs stand side by side.
        group.sort(key=lambda entry: (bool(entry.cell["rescaling"].get("enorm")), key(entry.cell)))
        size = max(1, options.most // len(group[0].cell["seeds"]))
        yield from (group[first : first + size] for first in range(0, len(group), size))


def _train_group(group: list[Progressing], options: Options) -> None:
    if options.stop():
        raise TimeUp
    cell = group[0].cell
    sets = load_sets(cell, options.data / f"{cell['dataset']}.pt", options.device)
    pairs = [(entry, seed) for entry in group for seed in entry.cell["seeds"] if not entry.finished(seed)]
    for part in _parts(pairs, options):
        _train_part(part, group, sets, options)
    for entry in group:
        _finish(entry, options)


def _parts(pairs: Sequence[tuple[Progressing, int]], options: Options) -> list[list[tuple[Progressing, int]]]:
    """Runs of a group that train side by side: on a GPU those that stand at one epoch, else each by itself."""
    found: dict[Any, list[tuple[Progressing, int]]] = {}
    for number, (entry, seed) in enumerate(pairs):
        side_by_side = options.device.type == "cuda" and stackable(entry.cell)
        epoch = entry.seeds.get(seed, {}).get("epoch", 0)
        found.setdefault(("epoch", epoch) if side_by_side else number, []).append((entry, seed))
    return list(found.values())


def _backend(pairs: Sequence[tuple[Progressing, int]], sets: Sets, device: torch.device) -> Backend:
    runs = [Run(entry.cell, seed) for entry, seed in pairs]
    return Together(runs, sets, device) if stackable(runs[0].cell) else Alone(runs[0], sets, device)


def _train_part(
    pairs: Sequence[tuple[Progressing, int]], group: Sequence[Progressing], sets: Sets, options: Options
) -> None:
    """Train runs side by side to their last epoch; all stand at the same one."""
    saved = began = time.monotonic()
    backend = _backend(pairs, sets, options.device)
    cell = pairs[0][0].cell
    for number, (entry, seed) in enumerate(pairs):
        if seed in entry.seeds:
            backend.load(number, entry.seeds[seed]["state"])
        else:
            entry.seeds[seed] = {"epoch": 0, "state": None, "rows": [], "seconds": 0.0}
    first = pairs[0][0].seeds[pairs[0][1]]["epoch"]
    title = key(cell).rpartition("-")[0] + f" x {len(pairs)}" if len(pairs) > 1 else f"{key(cell)} seed {pairs[0][1]}"
    progress = Progress(title, cell["epochs"], len(pairs) * len(sets.train))
    if first == 0:
        _note(pairs, backend, 0)
    progress.start(first)
    for epoch in range(first + 1, cell["epochs"] + 1):
        backend.epoch(epoch)
        backend.teleport(epoch)
        _note(pairs, backend, epoch)
        now = time.monotonic()
        for entry, seed in pairs:
            entry.seeds[seed]["seconds"] += (now - began) / len(pairs)
        began = now
        progress.tell(epoch, pairs[0][0].seeds[pairs[0][1]]["rows"][-1]["train_loss"])
        stop = epoch < cell["epochs"] and options.stop()
        if stop or now - saved >= options.every or epoch == cell["epochs"]:
            _save(pairs, backend, group)
            saved = time.monotonic()
        if stop:
            raise TimeUp


def _note(pairs: Sequence[tuple[Progressing, int]], backend: Backend, epoch: int) -> None:
    """Evaluate, and add a row to each run."""
    found = backend.evaluate()
    for number, (entry, seed) in enumerate(pairs):
        row = {"seed": seed, "epoch": epoch, **{name: float(values[number]) for name, values in found.items()}}
        row["max_log_scale"] = backend.max_log_scale[number]
        row["diverged"] = not math.isfinite(row["train_loss"])
        held = entry.seeds[seed]
        held["rows"].append(row)
        held["epoch"], held["precision"], held["parameters"] = epoch, backend.precision, backend.parameters


def _save(pairs: Sequence[tuple[Progressing, int]], backend: Backend, group: Sequence[Progressing]) -> None:
    for number, (entry, seed) in enumerate(pairs):
        entry.seeds[seed]["state"] = None if entry.finished(seed) else backend.save(number)
    touched = {id(entry) for entry, _ in pairs}
    for entry in group:
        if id(entry) in touched:
            entry.checkpoint.write(entry.seeds)


def _finish(entry: Progressing, options: Options) -> None:
    """Write a cell's table and record, and remove its checkpoint."""
    cell = entry.cell
    held = [entry.seeds[seed] for seed in cell["seeds"]]
    table = pd.DataFrame([row for one in held for row in one["rows"]])
    table = table[[name for name in COLUMNS if name in table]]
    status = {str(seed): "diverged" if any(row["diverged"] for row in one["rows"]) else "done"
              for seed, one in zip(cell["seeds"], held, strict=True)}  # fmt: skip
    record = {
        **hardware.record(options.device),
        "commit": cli.commit(),
        "precision": held[0]["precision"],
        "parameters": held[0]["parameters"],
        "seconds": round(sum(one["seconds"] for one in held), 3),
        "status": status,
    }
    store.write_result(result_path(options.results, cell), table, cell, record)
    entry.checkpoint.remove()
    cli.say(f"{key(cell)}: {len(held)} seeds, {record['seconds']:.1f} s on {record['hardware']}")
