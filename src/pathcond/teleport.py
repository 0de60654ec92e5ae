"""Rescale repeatedly during training: Algorithm 1 of the paper."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

from torch import nn
from torch.optim import Optimizer

from pathcond.apply import optimizer_buffers
from pathcond.checks import check_period
from pathcond.graph import ScaleGraph, extract_graph
from pathcond.rescale import DEFAULT_CLAMP, Rescaling, rescale_with
from pathcond.solvers import SolverOptions


class Teleport:
    """Rescale a model on every ``every``-th call of :meth:`step`, which belongs after the optimizer's step.

    The graph is extracted once and reused; the optimizer's state follows the parameters
    (:func:`pathcond.apply_scales_`). Gradients are not rescaled, so clear them before the next backward pass.

    Args:
        model, example_input, optimizer, objective, clamp, damping, graph, trainable_only: as in
            :func:`pathcond.rescale_`, for each rescaling. The paper's Algorithm 1 has ``damping=1``. With a graph of
            ``batchnorm="exclude"`` repeated rescaling does not converge.
        every: number of calls from one rescaling to the next; the first comes with call number ``every``.
        sweeps: number of sweeps over all units in each rescaling.

    Attributes:
        count: calls of :meth:`step` so far; set it to resume from a checkpoint.
        graph: the units.

    Raises:
        PathCondError: an option is out of range, the model cannot be recorded, or the optimizer is not this model's.

    Example:
        >>> import torch, pathcond
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        >>> schedule = pathcond.Teleport(model, torch.ones(1, 3), every=2, optimizer=optimizer)
        >>> [schedule.step() is None for _ in range(4)]  # after optimizer.step()
        [True, False, True, False]
    """

    def __init__(
        self,
        model: nn.Module,
        example_input: Any,
        *,
        every: int,
        sweeps: int = 1,
        optimizer: Optimizer | None = None,
        objective: Literal["paths", "norms"] = "paths",
        clamp: float | None = DEFAULT_CLAMP,
        damping: float | None = None,
        graph: ScaleGraph | None = None,
        trainable_only: bool = False,
    ) -> None:
        check_period(every)
        self.graph = extract_graph(model, example_input) if graph is None else graph
        optimizer_buffers(model, self.graph.params, optimizer)
        self.count, self._every = 0, every
        SolverOptions(sweeps=sweeps, clamp=clamp, damping=damping or 0.0)  # raises where one is out of range
        given = (optimizer, objective, clamp, damping, self.graph, False, trainable_only, sweeps)
        self._rescale = partial(rescale_with, model, example_input, *given)

    def step(self) -> Rescaling | None:
        """Count one training step, and rescale on every ``every``-th; returns the :class:`pathcond.Rescaling`, or None.

        Raises:
            PathCondError: as :func:`pathcond.rescale_`; the model and the state are then as they were.
        """
        self.count += 1
        return None if self.count % self._every else self._rescale()
