"""Fully connected runs of one shape, trained together by plain gradient descent."""

from collections.abc import Sequence

import torch
from torch import Tensor

from paper import models
from paper.train import layers
from paper.train.backend import Backend, Run
from paper.train.layers import fused
from paper.train.sets import Sets
from paper.train.stack import Stack
from paper.train.start import rescale, start


class Together(Backend):
    """Runs that share shape, data, batch size and task; runs with ENorm stand side by side."""

    chunk = 10_000

    def __init__(self, runs: Sequence[Run], sets: Sets, device: torch.device) -> None:
        gpu = device.type == "cuda"
        super().__init__(runs, sets, device, recorded=gpu)
        starts = [start(run.cell, run.seed) for run in runs]
        self.max_log_scale = [s.max_log_scale for s in starts]
        self.modules = [s.module for s in starts]
        self.parameters = models.parameters(self.modules[0])
        self.stack = Stack(self.modules, device)
        self.rate = torch.tensor([run.cell["lr"] for run in runs], device=device).view(-1, 1, 1)
        self.balanced = _span([bool(run.cell["rescaling"].get("enorm")) for run in runs])
        if self.balanced is not None:
            self.stack.keep_apart()
        self.precision = "float32 with TF32 products" if gpu else "float32"
        if gpu:
            torch.backends.cuda.matmul.allow_tf32 = True

    def save(self, run: int) -> list[Tensor]:
        """State of one run, on the CPU."""
        return self.stack.save(run)

    def load(self, run: int, state: Sequence[Tensor]) -> None:
        """Put the state of one run back."""
        self.stack.load(run, state)

    def teleport(self, epoch: int) -> None:
        """Rescale the runs whose method does so after this epoch."""
        for number, run in enumerate(self.runs):
            every = run.cell["rescaling"].get("teleport", 0)
            if every and epoch % every == 0:
                module = self.modules[number]
                self.stack.write_to(number, module)
                rescale(module, torch.ones(1, self.stack.shape.widths[0]), run.cell["rescaling"])
                self.stack.read_from(number, module)

    def _each(self, steps: Sequence[Tensor]) -> None:
        ahead = self.stack.looks_ahead(len(steps[0]))
        (self._ahead if ahead else super()._each)(steps)
        self.stack.settle()

    def _ahead(self, steps: Sequence[Tensor]) -> None:
        """Steps each of which begins the next."""
        batch = self._fetch(steps[0])
        for places in (*steps[1:], None):
            then = None
            if places is not None:
                with self.stack.beside():
                    then = self._fetch(places)
            x, turned, target = batch
            self.stack.step(x, target, self.rate, self.task, self.balanced, turned, then and then[0])
            batch = then or batch

    def _fetch(self, places: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs, the same turned, and what they are to give."""
        train, index = self.sets.train, self.order.index_select(1, places)
        x, turned = self.stack.own.fetch(train.images, index, self.sets.scale, self.sets.shift)
        return x, turned, train.labels[index] if self.task == "classify" else x

    def _next(self, places: Tensor) -> None:
        sets, labels = self.sets, self.sets.train.labels if self.task == "classify" else None
        x, labels = fused(layers.fetch_next, self.device)(
            sets.train.images, labels, self.order, places, sets.scale, sets.shift
        )
        self.stack.step(x, x if labels is None else labels, self.rate, self.task, self.balanced)

    def _step(self, index: Tensor) -> None:
        train = self.sets.train
        x = layers.fetch(train.images, index, self.sets.scale, self.sets.shift)
        self.stack.step(x, train.labels[index] if self.task == "classify" else x, self.rate, self.task, self.balanced)

    def _outputs(self, images: Tensor) -> tuple[Tensor, Tensor]:
        x = fused(layers.normalise, self.device)(images, self.sets.scale, self.sets.shift)
        return self.stack.outputs(x), x

    def _held(self) -> list[Tensor]:
        return self.stack.held()


def _span(chosen: Sequence[bool]) -> slice | None:
    """The runs that are chosen, which must stand side by side."""
    places = [i for i, yes in enumerate(chosen) if yes]
    if not places:
        return None
    if places[-1] - places[0] != len(places) - 1:
        raise ValueError("expected balanced runs side by side")
    return slice(places[0], places[-1] + 1)
