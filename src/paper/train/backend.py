"""What all ways to train share: the order of the images, epochs of steps, evaluation, and CUDA graphs."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from paper.seeds import generator
from paper.train import layers
from paper.train.layers import fused
from paper.train.sets import Part, Sets

MOST_STEPS = 16  # recorded in one graph


@dataclass(frozen=True)
class Run:
    """One seed of a cell."""

    cell: Mapping[str, Any]
    seed: int


class Backend(ABC):
    """Runs that train side by side on one device.

    Attributes:
        max_log_scale: of each run's start, the largest abs(log lambda).
        precision: of the numbers, in words, for the record.
        parameters: of one network.
    """

    max_log_scale: list[float]
    precision: str
    parameters: int
    chunk: int  # examples evaluated at once

    def __init__(self, runs: Sequence[Run], sets: Sets, device: torch.device, recorded: bool) -> None:
        self.runs, self.sets, self.device = runs, sets, device
        cell = runs[0].cell
        self.task, self.batch, self.count = cell["task"], cell["batch"], len(sets.train)
        self.recorded = recorded
        # Everything runs on one stream of our own: autograd remembers the stream of first use, and a graph can only be
        # recorded where all of it is on the stream that records.
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream(device))
            torch.cuda.set_stream(self.stream)
        self.order = torch.zeros(len(runs), self.count, dtype=torch.long, device=device)
        self.at = torch.zeros((), dtype=torch.long, device=device)
        self._seeds = sorted({run.seed for run in runs})
        self._seed_of = torch.tensor([self._seeds.index(run.seed) for run in runs], device=device)
        self._seed_order = torch.zeros(len(self._seeds), self.count, dtype=torch.long)
        self._ready = 0  # the epoch whose order is in `_seed_order`
        self._graphs: dict[str, tuple[torch.cuda.CUDAGraph, Any]] = {}

    @abstractmethod
    def save(self, run: int) -> Any:
        """State of one run, on the CPU."""

    @abstractmethod
    def load(self, run: int, state: Any) -> None:
        """Put the state of one run back."""

    @abstractmethod
    def teleport(self, epoch: int) -> None:
        """Rescale the runs whose method does so after this epoch."""

    @abstractmethod
    def _step(self, index: Tensor) -> None:
        """One step on the images of these numbers, (runs, batch)."""

    @abstractmethod
    def _outputs(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs in eval mode (runs, examples, n) for images that all runs share, and the images as inputs, flat."""

    @abstractmethod
    def _held(self) -> list[Tensor]:
        """Tensors that a step changes."""

    def epoch(self, epoch: int) -> None:
        """Train one epoch."""
        if self._ready != epoch:
            self._make_order(epoch)
        self.order.copy_(self._seed_order.to(self.device)[self._seed_of])
        self.at.zero_()
        self._steps()
        if self.stream is not None:
            self._make_order(epoch + 1)  # while the device works

    def _make_order(self, epoch: int) -> None:
        """The order in which an epoch visits the images: by seed, so that methods share it."""
        for row, seed in zip(self._seed_order, self._seeds, strict=True):
            torch.randperm(self.count, generator=generator(seed, "order", epoch), out=row)
        self._ready = epoch

    def _steps(self) -> None:
        if not self.recorded:
            for first in range(0, self.count, self.batch):
                self._step(self.order[:, first : first + self.batch])
            return
        full, rest = divmod(self.count, self.batch)
        many = max((k for k in range(1, MOST_STEPS + 1) if full % k == 0), default=1)
        for _ in range(full // many):
            self._replay("steps", lambda: self._several(many, self.batch))
        if rest:
            self._replay("last", lambda: self._several(1, rest))

    def evaluate(self) -> dict[str, Tensor]:
        """Mean loss and accuracy of each part in eval mode, shape (runs,) each, float64 on the CPU."""
        with torch.no_grad():
            sums = self._replay("evaluate", self._sums) if self.recorded else self._sums()
        found = {}
        for name, (loss, correct) in zip(self.sets.parts, sums, strict=True):
            count = len(self.sets.parts[name])
            found[f"{name}_loss"] = loss.cpu() / count
            if self.task == "classify":
                found[f"{name}_accuracy"] = correct.cpu() / count
        return found

    def _several(self, count: int, size: int) -> None:
        """Steps on the next images of the order, whose place is kept on the device."""
        self._each((self.at + torch.arange(count * size, device=self.device)).split(size))
        self.at.add_(count * size)

    def _each(self, steps: Sequence[Tensor]) -> None:
        """Steps on the images at these places of the order."""
        for places in steps:
            self._next(places)

    def _next(self, places: Tensor) -> None:
        """One step on the images at these places of the order."""
        self._step(self.order.index_select(1, places))

    def _sums(self) -> list[tuple[Tensor, Tensor]]:
        return [self._sums_of(part) for part in self.sets.parts.values()]

    def _sums_of(self, part: Part) -> tuple[Tensor, Tensor]:
        loss = correct = torch.zeros(len(self.runs), dtype=torch.float64, device=self.device)
        for first in range(0, len(part), self.chunk):
            y, x = self._outputs(part.images[first : first + self.chunk])
            if self.task == "classify":
                labels = part.labels[first : first + self.chunk].expand(len(self.runs), -1)
                losses = functional.cross_entropy(y.transpose(1, 2), labels, reduction="none")
                loss = loss + losses.sum(1, dtype=torch.float64)
                correct = correct + (y.argmax(2) == labels).sum(1)
            else:
                loss = loss + fused(layers.rebuild_loss, self.device)(y, x)
        return loss, correct

    def _replay(self, name: str, work: Callable[[], Any]) -> Any:
        """Replay work that was recorded as a CUDA graph; the first time, warm it up without effect and record it."""
        if name not in self._graphs:
            before = [(t, t.clone()) for t in (*self._held(), self.at)]
            known = {id(t) for t, _ in before}
            work()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=self.stream):
                result = work()
            with torch.no_grad():
                for mine, held in before:
                    mine.copy_(held)
                for fresh in self._held():  # an optimiser's memory begins at zero
                    if id(fresh) not in known:
                        fresh.zero_()
            self._graphs[name] = graph, result
        graph, result = self._graphs[name]
        graph.replay()
        return result
