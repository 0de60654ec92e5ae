"""Train runs to the end: batches of runs, epochs, checkpoints, locks, time limits, results.

A run is one spec (a dict, see `make specs`): one network, method, learning rate and seed. Runs that exist are reused.
Processes that are given the same specs share them: each trains what no other does.
"""

import gc
import hashlib
import io
import math
import os
import pickle
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from filelock import FileLock, Timeout
from tqdm import tqdm

from paper import cli, results
from paper.runs import FULLY_CONNECTED, Spec, digest, key, result_path
from paper.training.batched_mlps import BatchedTrainer
from paper.training.datasets import Splits
from paper.training.datasets import load as load_splits
from paper.training.modules import ModuleTrainer
from paper.training.trainer import Run, Trainer

COLUMNS = ["seed", "epoch", "train_loss", "train_accuracy", "validation_loss", "validation_accuracy", "test_loss",
           "test_accuracy", "running_train_loss", "max_log_scale", "diverged"]  # fmt: skip
# Runs that agree in these fields can train in one batch.
SHARED = ("task", "dataset", "images", "validation", "test_images", "model", "batch", "epochs")
POLL_SECONDS = 0.2
LOCKS = ".locks"  # folder of the lock files, in that of the checkpoints
LOG_SECONDS = 5.0  # between two lines of a log


class TimeUp(Exception):
    """The time limit was reached; all runs are in checkpoints."""


# ---- checkpoints and locks


class Checkpoint:
    """The checkpoint of one run: its state and rows. It is replaced atomically and verified when read."""

    def __init__(self, folder: Path, spec: Mapping[str, Any]) -> None:
        self.path = folder / spec["preset"] / f"{key(dict(spec))}.pt"
        self.digest = digest(dict(spec))

    def read(self) -> tuple[dict[str, Any], str | None]:
        """State (epoch, state, rows, seconds; empty without a file), and a remark if a file cannot be used."""
        if not self.path.exists():
            return {}, None
        try:
            raw = self.path.read_bytes()
            if hashlib.sha256(raw[32:]).digest() != raw[:32]:
                raise ValueError("wrong checksum")
            content = torch.load(io.BytesIO(raw[32:]), weights_only=True)
            if content["digest"] != self.digest:
                raise ValueError("it belongs to other settings")
        except (OSError, ValueError, KeyError, EOFError, RuntimeError, pickle.UnpicklingError) as error:
            self.remove()
            return {}, f"checkpoint {self.path.name} cannot be used ({error}); starting anew"
        return content["run"], None

    def write(self, state: Mapping[str, Any]) -> None:
        """Replace the file."""
        buffer = io.BytesIO()
        torch.save({"digest": self.digest, "run": dict(state)}, buffer)
        body = buffer.getvalue()
        results.write_bytes(self.path, hashlib.sha256(body).digest() + body)

    def remove(self) -> None:
        """Delete the file, what a killed write left beside it, and folders that are then empty."""
        self.path.unlink(missing_ok=True)
        results.part(self.path).unlink(missing_ok=True)
        for folder in self.path.parents[:4]:
            try:
                os.rmdir(folder)
            except OSError:
                break


@contextmanager
def lock_runs(folder: Path, specs: Sequence[Mapping[str, Any]], stop: Callable[[], bool]) -> Iterator[bool]:
    """Wait until no other process trains these specs, and keep others from them until the block ends.

    Processes exclude each other if they share the folder of the checkpoints. The operating system releases the locks of
    a process that ends, also of a killed one. Locks are taken in one order everywhere, so no two processes wait for
    each other. Yields False if `stop` returned true before the locks were acquired.
    """
    names = {digest(dict(spec)): key(dict(spec)) for spec in specs}
    with ExitStack() as held:
        locked = True
        try:
            for name in sorted(names):
                locked = locked and _acquire(held, folder / LOCKS / f"{name}.lock", names[name], stop)
        except (OSError, NotImplementedError) as error:
            cli.say(f"{folder}: no locks here ({error}); another process could train the same runs")
        yield locked


def _acquire(held: ExitStack, path: Path, name: str, stop: Callable[[], bool]) -> bool:
    lock, waiting = FileLock(path), False
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)  # whoever releases the last lock removes the folder
        try:
            lock.acquire(timeout=0)
        except Timeout:
            if stop():
                return False
            if not waiting:
                cli.say(f"{name}: another process trains it; waiting for that one to end")
                waiting = True
            time.sleep(POLL_SECONDS)
        else:
            held.callback(_release, lock, path)
            return True


def _release(lock: FileLock, path: Path) -> None:
    """Remove the lock file while it is still locked (filelock does not trust a removed file), then unlock."""
    with suppress(OSError):
        path.unlink()
    lock.release()
    for folder in (path.parent, path.parent.parent):
        with suppress(OSError):
            folder.rmdir()


# ---- runs


@dataclass
class Options:
    """Where and how to train."""

    results: Path
    data: Path
    checkpoints: Path
    device: torch.device
    every: float = 30.0  # seconds between two checkpoints
    stop: Callable[[], bool] = lambda: False  # whether to stop now; asked before each batch and after each epoch
    most: int = 96  # runs trained in one batch
    shared: bool = False  # other processes use the same GPU
    eager: bool = False  # neither CUDA graphs nor compilation for networks that train alone
    again: float = 0.0  # results that were written before this time are computed again, and replaced when complete


@dataclass
class Progressing:
    """A run in training, with its state: epoch, trainer state, rows, seconds; empty before it begins."""

    spec: Spec
    checkpoint: Checkpoint
    state: dict[str, Any] = field(default_factory=dict)

    @property
    def epoch(self) -> int:
        """The last completed epoch."""
        return self.state.get("epoch", 0)

    @property
    def finished(self) -> bool:
        """Whether all epochs are completed."""
        return bool(self.state) and self.epoch >= self.spec["epochs"]


def train(runs: Sequence[Spec], options: Options) -> None:
    """Train every spec that has no result yet; runs that can share a batch do so.

    TimeUp if the time limit came first; the same call resumes from the checkpoints.
    """
    pending = []
    for path, spec in {result_path(options.results, spec): spec for spec in runs}.items():
        if results.is_complete(path, options.again):
            cli.say(f"{key(spec)}: exists, reused")
            Checkpoint(options.checkpoints, spec).remove()
        else:
            pending.append(spec)
    results.check_free(Checkpoint(options.checkpoints, spec).path for spec in pending)
    batches, load = list(_batches(pending, options)), _Loader()
    for wait in (False, True):  # first what no other process trains
        batches = [batch for batch in batches if not _train_batch(batch, options, load, wait)]


def can_batch(spec: Mapping[str, Any]) -> bool:
    """Whether the runs of a spec can train in one batch with others: MLPs with plain SGD and no setting of modules."""
    model = spec["model"]
    norm_and_bias = model.get("batchnorm", True) and model.get("bias")  # batched MLPs have no biases before BatchNorm
    rates_by_layer = spec["rescaling"].get("part") == "rates"
    if model["kind"] not in FULLY_CONNECTED or norm_and_bias or rates_by_layer or spec["optimiser"] != {"name": "sgd"}:
        return False
    return not any(name in spec for name in ("schedule", "augmentation", "precision", "clip", "train_metrics"))


def _batches(specs: Sequence[Spec], options: Options) -> Iterator[list[Spec]]:
    """Group specs into batches: on a GPU those of one architecture, data set and length; else one spec each."""
    groups: dict[str, list[Spec]] = {}
    for spec in specs:
        batched = options.device.type == "cuda" and can_batch(spec)
        group = repr([spec.get(name) for name in SHARED]) if batched else key(spec)
        groups.setdefault(group, []).append(spec)
    for group in groups.values():
        group.sort(key=lambda spec: (bool(spec["rescaling"].get("enorm")), key(spec)))  # ENorm's runs are contiguous
        yield from (group[first : first + options.most] for first in range(0, len(group), options.most))


# ---- one batch


class _Loader:
    """Loads splits, and keeps the last ones for the batches that have the same."""

    def __init__(self) -> None:
        self.kept: tuple[Any, Splits] | None = None

    def __call__(self, spec: Spec, options: Options) -> Splits:
        same = [spec[name] for name in ("dataset", "images", "validation", "test_images", "batch", "model")]
        if self.kept is None or self.kept[0] != same:
            self.kept = None  # frees its memory first
            self.kept = same, load_splits(spec, options.data / f"{spec['dataset']}.pt", options.device)
        return self.kept[1]


def _train_batch(batch: Sequence[Spec], options: Options, load: _Loader, wait: bool) -> bool:
    """Train the specs of a batch, which no other process may do meanwhile; False if one does and we do not wait."""
    if options.stop():
        raise TimeUp
    with lock_runs(options.checkpoints, batch, options.stop if wait else lambda: True) as locked:
        if not locked and wait:
            raise TimeUp
        pending = _pending(batch, options) if locked else []
        if not pending:
            return locked
        splits = load(pending[0].spec, options)
        for part in _by_epoch([run for run in pending if not run.finished], options):
            _train_together(part, splits, options)
            if options.device.type == "cuda":  # the memory of CUDA graphs is freed with their trainer
                gc.collect()
                torch.cuda.empty_cache()
        for run in pending:
            _write_result(run, options)
        return True


def _pending(batch: Sequence[Spec], options: Options) -> list[Progressing]:
    """The runs of a batch that have no result, with what their checkpoints hold."""
    pending = []
    for spec in batch:
        if results.is_complete(result_path(options.results, spec), options.again):  # another process was faster
            cli.say(f"{key(spec)}: exists, reused")
            continue
        run = Progressing(spec, Checkpoint(options.checkpoints, spec))
        run.state, remark = run.checkpoint.read()
        if remark:
            cli.say(f"{key(spec)}: {remark}")
        pending.append(run)
    return pending


def _by_epoch(runs: Sequence[Progressing], options: Options) -> list[list[Progressing]]:
    """Runs that train together: on a GPU those at the same epoch, else each run by itself."""
    parts: dict[Any, list[Progressing]] = {}
    for number, run in enumerate(runs):
        batched = options.device.type == "cuda" and can_batch(run.spec)
        parts.setdefault(("epoch", run.epoch) if batched else number, []).append(run)
    return list(parts.values())


def _train_together(runs: Sequence[Progressing], splits: Splits, options: Options) -> None:
    """Train runs that are at the same epoch to their last one."""
    saved = began = time.monotonic()
    given = [Run(run.spec, run.spec["seed"], options.results) for run in runs]
    trainer: Trainer = (
        BatchedTrainer(given, splits, options.device)
        if can_batch(given[0].spec)
        else ModuleTrainer(given[0], splits, options.device, options.eager)
    )
    epochs, first = runs[0].spec["epochs"], runs[0].epoch
    title = key(runs[0].spec).rpartition("-")[0]
    if len(runs) > 1:
        title += f" and {len(runs) - 1} more"
    for number, run in enumerate(runs):
        if run.state:
            trainer.load(number, run.state["state"])
        else:
            run.state = {"epoch": 0, "state": None, "rows": [], "seconds": 0.0}
    if first == 0:
        _evaluate(runs, trainer, 0)
    unit = "windows" if runs[0].spec["task"] == "predict_next" else "images"
    with Progress(title, epochs, first, len(runs) * len(splits.train), unit) as progress:
        for epoch in range(first + 1, epochs + 1):
            trainer.epoch(epoch)
            trainer.teleport(epoch)
            _evaluate(runs, trainer, epoch)
            now = time.monotonic()
            for run in runs:
                run.state["seconds"] += (now - began) / len(runs)
            began = now
            progress.update(_loss(runs[0].state["rows"][-1]))
            stop = epoch < epochs and options.stop()
            if stop or now - saved >= options.every or epoch == epochs:
                for number, run in enumerate(runs):
                    run.state["state"] = None if run.finished else trainer.save(number)
                    run.checkpoint.write(run.state)
                saved = time.monotonic()
            if stop:
                raise TimeUp


def _evaluate(runs: Sequence[Progressing], trainer: Trainer, epoch: int) -> None:
    """Evaluate, and add a row to each run."""
    metrics = trainer.evaluate()
    for number, run in enumerate(runs):
        row = {"seed": run.spec["seed"], "epoch": epoch}
        row |= {name: float(values[number]) for name, values in metrics.items()}
        row["max_log_scale"] = trainer.max_log_scale[number]
        row["diverged"] = not math.isfinite(_loss(row))
        run.state["rows"].append(row)
        run.state |= {"epoch": epoch, "precision": trainer.precision, "parameters": trainer.parameters}
        run.state.setdefault("rescale_seconds", trainer.rescale_seconds[number])


def _loss(row: Mapping[str, float]) -> float:
    """The loss that shows whether a run diverged: the train loss in eval mode, or without it the test loss."""
    return row.get("train_loss", row["test_loss"])


def _write_result(run: Progressing, options: Options) -> None:
    """Write a run's table and provenance, and remove its checkpoint."""
    table = pd.DataFrame(run.state["rows"])
    table = table[[name for name in COLUMNS if name in table]]
    provenance = {
        **cli.environment(options.device, shared=options.shared),
        "commit": cli.commit(),
        "precision": run.state["precision"],
        "parameters": run.state["parameters"],
        "seconds": round(run.state["seconds"], 3),
        "rescale_seconds": round(run.state["rescale_seconds"], 4),
        "status": "diverged" if bool(table["diverged"].any()) else "done",
    }
    results.write_result(result_path(options.results, run.spec), table, run.spec, provenance)
    run.checkpoint.remove()
    cli.say(f"{key(run.spec)}: {provenance['seconds']:.1f} s on {provenance['hardware']}")


class Progress:
    """Progress of some runs over their epochs: a tqdm bar in a terminal, a line every few seconds in a log.

    All runs together see `images` (or other units) in one epoch.
    """

    def __init__(self, title: str, epochs: int, first: int, images: int, unit: str = "images") -> None:
        self.title, self.images, self.unit = title, images, unit
        self.bar = tqdm(total=epochs, initial=first, desc=title, unit="epoch", disable=not sys.stderr.isatty())
        self.epoch, self.first, self.epochs = first, first, epochs
        self.began, self.logged = time.monotonic(), -LOG_SECONDS

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.close()

    def update(self, loss: float) -> None:
        """Report one more epoch, with the loss after it."""
        self.epoch += 1
        now = time.monotonic()
        speed = (self.epoch - self.first) * self.images / max(now - self.began, 1e-9)
        self.bar.set_postfix_str(f"loss {loss:.4g}, {speed:,.0f} {self.unit}/s", refresh=False)
        self.bar.update()
        if self.bar.disable and (self.epoch == self.epochs or now - self.logged >= LOG_SECONDS):
            self.logged = now
            left = (now - self.began) / (self.epoch - self.first) * (self.epochs - self.epoch)
            text = f"epoch {self.epoch}/{self.epochs}  loss {loss:.4g}  {speed:,.0f} {self.unit}/s"
            sys.stderr.write(f"{self.title}: {text}  {tqdm.format_interval(left)} left\n")
            sys.stderr.flush()
