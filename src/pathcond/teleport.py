"""Rescale repeatedly during training: Algorithm 1 of the paper."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.optim import Optimizer

from pathcond.apply import optimizer_buffers
from pathcond.checks import PathCondError
from pathcond.graph import ScaleGraph, extract_graph
from pathcond.rescale import DEFAULT_CLAMP, Rescaling, rescale_


class Teleport:
    """Rescale a model on every ``every``-th call of :meth:`step`, which belongs after the optimizer's step.

    The graph is extracted once and reused; the optimizer's state follows the parameters
    (:func:`pathcond.apply_scales_`). Gradients are not rescaled, so clear them before the next backward pass.

    Args:
        model: any module that can be run on ``example_input``.
        example_input: as in :func:`pathcond.rescale_`; a reference to it is kept.
        every: number of calls from one rescaling to the next; the first comes with call number ``every``.
        sweeps: number of sweeps over all units in each rescaling.
        optimizer: the optimizer whose state is rescaled with the parameters; None to touch no state.
        clamp: bound on every ``|log lambda|`` of one rescaling, before damping.
        graph: a graph extracted earlier. With ``batchnorm="exclude"`` repeated rescaling does not converge: use the
            default, ``affine``.
        options: ``objective``, ``damping``, ``method``, ``tol``, ``statistics``, ``pooling`` and ``force`` of
            :func:`pathcond.rescale_`, and, without a graph, ``batchnorm``, ``shortcuts``, ``smooth`` and ``strict`` of
            :func:`pathcond.extract_graph`. The paper's Algorithm 1 has ``damping=1``.

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
        >>> for _ in range(4):
        ...     optimizer.zero_grad()
        ...     model(torch.randn(5, 3)).square().sum().backward()
        ...     optimizer.step()
        ...     report = schedule.step()
        >>> schedule.count, report.units
        (4, 8)
    """

    def __init__(
        self,
        model: nn.Module,
        example_input: Any,
        *,
        every: int,
        sweeps: int = 1,
        optimizer: Optimizer | None = None,
        clamp: float | None = DEFAULT_CLAMP,
        graph: ScaleGraph | None = None,
        **options: Any,
    ) -> None:
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise PathCondError(f"expected every to be an integer >= 1, got {every!r}.")
        known = {*_GRAPH_OPTIONS, *_RESCALE_OPTIONS}
        if unknown := [name for name in options if name not in known]:
            raise PathCondError(f"expected options among {', '.join(sorted(known))}, got {unknown[0]!r}.")
        of_graph = {name: value for name, value in options.items() if name in _GRAPH_OPTIONS}
        self.graph = extract_graph(model, example_input, **of_graph) if graph is None else graph
        optimizer_buffers(model, self.graph.params, optimizer)
        self.count = 0
        self._model, self._input, self._every = model, example_input, every
        self._options = options | {"graph": self.graph, "optimizer": optimizer, "sweeps": sweeps, "clamp": clamp}

    def step(self) -> Rescaling | None:
        """Count one training step, and rescale on every ``every``-th.

        Returns:
            The :class:`pathcond.Rescaling` of this call, or None.

        Raises:
            PathCondError: as :func:`pathcond.rescale_`; the model and the state are then as they were.
        """
        self.count += 1
        if self.count % self._every:
            return None
        return rescale_(self._model, self._input, check=False, **self._options)


_GRAPH_OPTIONS = ("batchnorm", "shortcuts", "smooth", "strict")
_RESCALE_OPTIONS = ("objective", "damping", "method", "tol", "statistics", "pooling", "force")
