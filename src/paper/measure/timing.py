"""Wall time of the rescaling, step by step, against one epoch of training."""

import copy
import gc
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor

import pathcond
from paper import data as datasets
from paper import hardware, models, normalise
from paper.seeds import generator

T = TypeVar("T")

LR = 1e-3
PRECISION = "float32, solver in float64"  # for the record


def measure(settings: Mapping[str, Any], device: torch.device, data: Path) -> pd.DataFrame:
    """One row a pooling, repeat and step of one network at initialisation, BatchNorm left out of the units.

    Every repeat starts from the same weights and makes the whole rescaling anew, graph included. Repeats go through all
    steps in turn, so that a change of the machine's mood meets all alike.

    Args:
        settings: ``network``, its name; ``model``, its block of ``networks``; ``poolings``, ``dataset``, ``batch``,
            ``batches`` (at most, of an epoch), ``sweeps``, ``warmup``, ``repeats``.
        device: what is timed.
        data: the data set's file.

    Returns:
        Columns network, pooling, repeat, step, seconds, parameters, units, batches, epoch_batches, hardware. Steps are
        graph, diag_g, solve, apply, their sum total, and epoch: the time of ``batches`` steps of SGD scaled up to
        ``epoch_batches``. Training knows no pooling: a repeat's epoch stands under each.
    """
    bench = Bench(settings["model"], load(settings["dataset"], data, device), settings["batch"], settings["batches"])
    rows: list[dict[str, Any]] = []
    for repeat in repeats(settings):
        epoch = bench.epoch(repeat)
        for pooling in settings["poolings"]:
            for step, seconds in (bench.rescaling(pooling, settings["sweeps"]) | {"epoch": epoch}).items():
                names = {"network": settings["network"], "pooling": pooling, "repeat": repeat}
                rows.append(names | {"step": step, "seconds": seconds} | bench.facts)
    return pd.DataFrame([row for row in rows if row["repeat"] >= 0])


def repeats(settings: Mapping[str, Any]) -> Iterator[int]:
    """Numbers of the repeats, negative for warm-ups; garbage is collected between them and only there."""
    on = gc.isenabled()
    gc.disable()
    try:
        for repeat in range(-settings["warmup"], settings["repeats"]):
            gc.collect()
            yield repeat
    finally:
        if on:
            gc.enable()


@dataclass(frozen=True)
class TrainingSet:
    """What an epoch trains on, on the device that is timed.

    Attributes:
        images: (count, channels, side, side), uint8.
        labels: (count,), int64.
        scale: (1, channels, 1, 1); an image x enters as x * scale + shift.
        shift: as ``scale``.
    """

    images: Tensor
    labels: Tensor
    scale: Tensor
    shift: Tensor


def load(name: str, path: Path, device: torch.device) -> TrainingSet:
    """The training images of a data set, from its file."""
    dataset = datasets.load(path, name)
    scale, shift = (factor.view(1, -1, 1, 1).to(device) for factor in normalise.factors(name))
    return TrainingSet(dataset.train_images.to(device), dataset.train_labels.to(device, torch.int64), scale, shift)


class Bench:
    """One network with its data: times a rescaling by step, or a training epoch.

    Args:
        model: block of ``networks``.
        data: what to train on; its device is the one that is timed.
        batch: images a step.
        batches: steps to time, at most those of an epoch.
    """

    def __init__(self, model: Mapping[str, Any], data: TrainingSet, batch: int, batches: int) -> None:
        self.model, self.data, self.batch = model, data, batch
        self.device = device = data.images.device
        self.module = models.make(model, 0, "timing").to(device).eval()
        self.start = copy.deepcopy(self.module.state_dict())
        self.trained = copy.deepcopy(self.module).train()
        self.optimizer = torch.optim.SGD(self.trained.parameters(), lr=LR)
        self.epoch_batches = math.ceil(len(data.images) / batch)
        self.batches = min(batches, self.epoch_batches)
        self.x = models.example_input(model).to(device)
        self.units = models.units(self.module, self.x, model).units

    @property
    def facts(self) -> dict[str, Any]:
        """What every row says beside its time."""
        return {
            "parameters": models.parameters(self.module),
            "units": self.units,
            "batches": self.batches,
            "epoch_batches": self.epoch_batches,
            "hardware": hardware.describe(self.device),
        }

    def rescaling(self, pooling: str, sweeps: int) -> dict[str, float]:
        """Seconds of graph, diag_g, solve and apply, and their sum total; the weights are put back afterwards."""
        module, x = self.module, self.x
        options: dict[str, Any] = {"pooling": pooling}
        graph, first = self._timed(lambda: models.units(module, x, self.model))
        g, second = self._timed(lambda: pathcond.path_magnitudes(module, x, graph=graph, **options))
        solution, third = self._timed(lambda: pathcond.solve(graph, g, sweeps=sweeps))
        _, fourth = self._timed(lambda: pathcond.apply_scales_(module, graph, solution.u))
        module.load_state_dict(self.start)
        steps = {"graph": first, "diag_g": second, "solve": third, "apply": fourth}
        return steps | {"total": sum(steps.values())}

    def epoch(self, repeat: int) -> float:
        """Seconds of an epoch of SGD, from the time of ``batches`` steps."""
        draws = generator(0, "order", "timing", repeat)
        order = torch.randperm(len(self.data.images), generator=draws).to(self.device)
        batches = order.split(self.batch)[: self.batches]
        return self._timed(lambda: self._train(batches))[1] * self.epoch_batches / self.batches

    def _train(self, batches: Iterable[Tensor]) -> None:
        for index in batches:
            images = models.fit_images(self.data.images[index] * self.data.scale + self.data.shift, self.model)
            loss = F.cross_entropy(self.trained(images), self.data.labels[index])
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()

    def _timed(self, work: Callable[[], T]) -> tuple[T, float]:
        self._wait()
        start = time.perf_counter()
        found = work()
        self._wait()
        return found, time.perf_counter() - start

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
