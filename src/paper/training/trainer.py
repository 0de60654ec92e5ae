"""Base class of the trainers: order of the images, epochs, evaluation, and CUDA graphs."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from paper.seeds import generator
from paper.training import torch_layers
from paper.training.datasets import Split, Splits
from paper.training.torch_layers import compiled

GRAPH_STEPS = 16  # steps recorded in one CUDA graph, at most


@dataclass(frozen=True)
class Run:
    """One run: its spec and seed, and the folder of the results, where its start weights may be saved."""

    spec: Mapping[str, Any]
    seed: int
    results: Path | None = None


class Trainer(ABC):
    """Runs that train together on one device."""

    max_log_scale: list[float]  # the largest abs(log lambda) of each run's initial rescaling
    rescale_seconds: list[float]  # wall time of that rescaling
    precision: str  # in words, for the provenance
    parameters: int  # of one network
    eval_batch: int  # examples evaluated at once

    def __init__(self, runs: Sequence[Run], splits: Splits, device: torch.device, use_graphs: bool) -> None:
        self.runs, self.splits, self.device = runs, splits, device
        spec = runs[0].spec
        self.task, self.batch, self.count = spec["task"], spec["batch"], len(splits.train)
        self.use_graphs = use_graphs
        # All work runs on one stream of this trainer: autograd remembers the stream of first use, and a CUDA graph can
        # record only work on the recording stream.
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream(device))
            torch.cuda.set_stream(self.stream)
        self.order = torch.zeros(len(runs), self.count, dtype=torch.long, device=device)
        self.position = torch.zeros((), dtype=torch.long, device=device)
        self._seeds = sorted({run.seed for run in runs})
        self._seed_of = torch.tensor([self._seeds.index(run.seed) for run in runs], device=device)
        self._seed_order = torch.zeros(len(self._seeds), self.count, dtype=torch.long)
        self._shuffled_epoch = 0  # the epoch that `_seed_order` belongs to
        self._graphs: dict[str, tuple[torch.cuda.CUDAGraph, Any]] = {}
        self.evaluated = dict(splits.by_name)  # splits that are evaluated after each epoch

    @property
    def steps(self) -> int:
        """Steps of an epoch."""
        return -(-self.count // self.batch)

    @abstractmethod
    def save(self, run: int) -> Any:
        """State of one run, on the CPU."""

    @abstractmethod
    def load(self, run: int, state: Any) -> None:
        """Restore the state of one run."""

    @abstractmethod
    def teleport(self, epoch: int) -> None:
        """Rescale the runs whose method teleports after this epoch."""

    @abstractmethod
    def _step(self, index: Tensor) -> None:
        """One step on the images with these indices, (runs, batch)."""

    @abstractmethod
    def _outputs(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs in eval mode (runs, labels, n) for images that all runs share, and the flat inputs."""

    @abstractmethod
    def _state_tensors(self) -> list[Tensor]:
        """All tensors that a step changes."""

    def epoch(self, epoch: int) -> None:
        """Train one epoch."""
        if self._shuffled_epoch != epoch:
            self._shuffle(epoch)
        self.order.copy_(self._seed_order.to(self.device)[self._seed_of])
        self.position.zero_()
        self._steps()
        if self.stream is not None:
            self._shuffle(epoch + 1)  # while the device works

    def _shuffle(self, epoch: int) -> None:
        """Order of the images in an epoch; it depends on the seed alone, so methods share it."""
        for row, seed in zip(self._seed_order, self._seeds, strict=True):
            torch.randperm(self.count, generator=generator(seed, "order", epoch), out=row)
        self._shuffled_epoch = epoch

    def _steps(self) -> None:
        if not self.use_graphs:
            for first in range(0, self.count, self.batch):
                self._step(self.order[:, first : first + self.batch])
            return
        full, rest = divmod(self.count, self.batch)
        per_graph = max((k for k in range(1, GRAPH_STEPS + 1) if full % k == 0), default=1)
        for _ in range(full // per_graph):
            self._replay("steps", lambda: self._graph_steps(per_graph, self.batch))
        if rest:
            self._replay("last", lambda: self._graph_steps(1, rest))

    def evaluate(self) -> dict[str, Tensor]:
        """Mean loss and accuracy of each split in eval mode, over images or characters, (runs,), float64 on the CPU."""
        with torch.no_grad():
            sums = self._replay("evaluate", self._sums) if self.use_graphs else self._sums()
        found = {}
        for name, (loss, correct) in zip(self.evaluated, sums, strict=True):
            count = self.evaluated[name].labels.numel()
            found[f"{name}_loss"] = loss.cpu() / count
            if self.task != "reconstruct":
                found[f"{name}_accuracy"] = correct.cpu() / count
        return found

    def _graph_steps(self, count: int, size: int) -> None:
        """Several steps on the next images of the order; the position is kept on the device."""
        for positions in (self.position + torch.arange(count * size, device=self.device)).split(size):
            self._next(positions)
        self.position.add_(count * size)

    def _next(self, positions: Tensor) -> None:
        """One step on the images at these positions of the order."""
        self._step(self.order.index_select(1, positions))

    def _sums(self) -> list[tuple[Tensor, Tensor]]:
        return [self._sums_of(part) for part in self.evaluated.values()]

    def _sums_of(self, part: Split) -> tuple[Tensor, Tensor]:
        loss = correct = torch.zeros(len(self.runs), dtype=torch.float64, device=self.device)
        for first in range(0, len(part), self.eval_batch):
            y, x = self._outputs(part.images[first : first + self.eval_batch])
            if self.task != "reconstruct":
                labels = part.labels[first : first + self.eval_batch].flatten().expand(len(self.runs), -1)
                losses = functional.cross_entropy(y.transpose(1, 2), labels, reduction="none")
                loss = loss + losses.sum(1, dtype=torch.float64)
                correct = correct + (y.argmax(2) == labels).sum(1)
            else:
                loss = loss + compiled(torch_layers.mse_loss, self.device)(y, x)
        return loss, correct

    def _replay(self, name: str, work: Callable[[], Any]) -> Any:
        """Replay a CUDA graph of some work; the first call warms up, records, and restores the state."""
        if name not in self._graphs:
            before = [(t, t.clone()) for t in (*self._state_tensors(), self.position)]
            known = {id(t) for t, _ in before}
            work()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=self.stream):
                result = work()
            with torch.no_grad():
                for tensor, value in before:
                    tensor.copy_(value)
                for fresh in self._state_tensors():  # optimizer state that the warm-up created is reset to zero
                    if id(fresh) not in known:
                        fresh.zero_()
            self._graphs[name] = graph, result
        graph, result = self._graphs[name]
        graph.replay()
        return result
