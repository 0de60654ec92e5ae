"""Rescale again and again during training: Algorithm 1 of the paper."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import nn
from torch.optim import Optimizer

from pathcond.errors import PathCondError
from pathcond.graph import ScaleGraph, extract_graph
from pathcond.rescale import Rescaling, rescale_
from pathcond.state import check_optimizer, gradient_buffers, holders, scale_


class Teleport:
    """Rescale a model on every ``every``-th call of :meth:`step`, which belongs after the optimizer's step.

    The graph is extracted once and reused. Averages of gradients in the optimizer's state (SGD's ``momentum_buffer``,
    Adam's ``exp_avg``) are divided by their parameter's factor, averages of squares (``exp_avg_sq``,
    ``max_exp_avg_sq``) by its square; step counts stay, and any other tensor is refused. Gradients stay as they are,
    so clear them before they are used again.

    Args:
        model: any module that can be run on ``example_input``.
        example_input: as in :func:`pathcond.rescale_`; kept, so a batch of one is best.
        every: number of calls from one rescaling to the next; the first comes with call number ``every``.
        sweeps: number of sweeps over all units in each rescaling.
        optimizer: the optimizer whose state moves with the parameters; None to touch no state.
        method: this and the options below are those of :func:`pathcond.rescale_`.
        tol: tolerance of the solver.
        clamp: bound on every ``|u|`` of one rescaling.
        batchnorm: how scales cross BatchNorm. With ``exclude`` the entries of diag(G) that belong to BatchNorm do not
            follow the scales, so that repeated rescaling does not settle: use ``affine`` here.
        shortcuts: whether channels along identity shortcuts share a scale or stay.
        smooth: let scales cross GELU and the like.
        strict: raise at operations without a rule.
        pooling: how pools enter diag(G).
        graph: a graph extracted before; ``batchnorm``, ``shortcuts``, ``smooth`` and ``strict`` are then not used.
        force: write scaled weights even where they leave the range of their dtype.

    Attributes:
        count: calls of :meth:`step` so far; set it to go on from a checkpoint.
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
        method: Literal["sweeps", "optimum"] = "sweeps",
        tol: float = 0.0,
        clamp: float | None = None,
        batchnorm: Literal["affine", "exclude"] = "affine",
        shortcuts: Literal["tie", "freeze"] = "tie",
        smooth: bool = False,
        strict: bool = False,
        pooling: Literal["exact", "plain"] = "exact",
        graph: ScaleGraph | None = None,
        force: bool = False,
    ) -> None:
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise PathCondError(f"expected every to be a whole number >= 1, got {every!r}.")
        if graph is None:
            options = {"batchnorm": batchnorm, "shortcuts": shortcuts, "smooth": smooth, "strict": strict}
            graph = extract_graph(model, example_input, **options)
        check_optimizer(optimizer, holders(model, graph.params))
        self.graph = graph
        self.count = 0
        self._model, self._input, self._every, self._optimizer = model, example_input, every, optimizer
        self._solver: dict[str, Any] = {"method": method, "sweeps": sweeps, "tol": tol, "clamp": clamp}
        self._options: dict[str, Any] = {"pooling": pooling, "graph": graph, "check": False, "force": force}

    def step(self) -> Rescaling | None:
        """Count one training step, and rescale if it is the turn.

        Returns:
            The :class:`pathcond.Rescaling` of this call, or None if it was not the turn.

        Raises:
            PathCondError: as :func:`pathcond.rescale_`, or the optimizer holds state of unknown meaning; the model and
                the state are then as they were.
        """
        self.count += 1
        if self.count % self._every:
            return None
        parameters = holders(self._model, self.graph.params)
        buffers = gradient_buffers(self._optimizer, parameters)
        report = rescale_(self._model, self._input, **self._solver, **self._options)
        logs = torch.cat((torch.zeros(1, dtype=torch.float64), report.solution.u / 2))
        with torch.inference_mode(False), torch.no_grad():
            for name, scales in self.graph.params.items():
                for buffer, power in buffers[name]:
                    row, col = logs[scales.row].exp(), (-logs[scales.col]).exp()
                    scale_(buffer, row.to(buffer.device), col.to(buffer.device), -power)
        return report
