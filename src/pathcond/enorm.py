"""Equi-normalisation (Stock et al., ICLR 2019): balance what enters and what leaves every unit, once a step.

Symbols: ``lambda_h`` scale of unit h, ``c_l`` coefficient of weight l. Along one unit
``F = sum_l c_l |W_l|_p^p = in lambda^p + out lambda^-p + rest`` is least where ``lambda^(2p) = out / in``. Within a
cycle ``scale`` holds ``lambda^p``; the weights are written once, at its end.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pathcond import ops
from pathcond.apply import apply_scales_
from pathcond.balance import Side, Weight, plan
from pathcond.checks import shared_memory
from pathcond.errors import PathCondError
from pathcond.graph import ParamScales, ScaleGraph, extract_graph
from pathcond.label_moves import compress
from pathcond.record import record
from pathcond.state import check_optimizer, gradient_buffers, holders, scale_
from pathcond.trace import Ref, Trace, refs


class ENorm:
    """Balance the p-norms of the incoming and outgoing weights of every unit with each call of :meth:`step`.

    One step is one cycle: the layers are visited in network order and every unit h gets
    ``lambda_h^(2p) = sum c_out |w_out|^p / sum c_in |w_in|^p``, with the newest values; what enters it is multiplied by
    ``lambda_h``, what leaves it divided. ``sum_l c_l |W_l|_p^p`` never rises. Units of one layer that a weight connects
    to one another, as in ``x + conv(x)``, make half that step (in the logarithm), which keeps this true. A unit whose
    incoming or outgoing norm is zero or not finite stays.

    Biases (parameters that are added) have no part in the norms. The scale of a normalisation, where it enters a unit,
    is a weight, and its shift a bias.

    Averages of gradients in the optimizer's state (SGD's ``momentum_buffer``, Adam's ``exp_avg``) are divided by their
    parameter's factor, averages of squares (``exp_avg_sq``, ``max_exp_avg_sq``) by its square; step counts stay, and
    any other tensor is refused. Gradients stay as they are.

    :meth:`step` neither waits for the device nor allocates by value, so a CUDA graph can capture it, once the
    optimizer's state exists. It holds on to the model's parameters: build it after ``model.to(device)``. Values are not
    checked; in float32, weights below 1e-19 count as zero.

    Args:
        model: any module that can be run on ``example_input``.
        example_input: as in :func:`pathcond.extract_graph`.
        optimizer: the optimizer whose state moves with the parameters; None to touch no state.
        p: power of the norms, positive.
        c: the original's asymmetric factor, positive: ``c_l = c ** (-p l)``, where l = 0, 1, ... numbers the weights
            that touch a unit in the order in which the forward pass first uses them. 1 means none; above 1 later
            layers get larger weights.
        biases: move biases with their unit, so that the function is kept. False leaves them alone, as the original
            does: the function then changes.
        last_layer: balance the units that feed an output layer too; the original does not.
        batchnorm: how scales cross BatchNorm; ``exclude``, the paper's way, leaves its parameters alone.
        shortcuts: whether channels along identity shortcuts share a scale or stay.
        graph: a graph extracted before; ``batchnorm`` and ``shortcuts`` are then not used.

    Attributes:
        graph: the units.

    Raises:
        PathCondError: an option is out of range, the model cannot be recorded, or the optimizer is not this model's or
            holds state of unknown meaning.

    Example:
        >>> import torch, pathcond
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        >>> enorm = pathcond.ENorm(model, torch.ones(1, 3), optimizer)
        >>> model(torch.ones(1, 3)).sum().backward()
        >>> optimizer.step()
        >>> y, norms = model(torch.ones(1, 3)), enorm.objective()
        >>> enorm.step()
        >>> torch.allclose(model(torch.ones(1, 3)), y, atol=1e-5), bool(enorm.objective() < norms)
        (True, True)
    """

    def __init__(
        self,
        model: nn.Module,
        example_input: Any,
        optimizer: Optimizer | None = None,
        p: float = 2,
        c: float = 1.0,
        *,
        biases: bool = True,
        last_layer: bool = True,
        batchnorm: Literal["affine", "exclude"] = "affine",
        shortcuts: Literal["tie", "freeze"] = "tie",
        graph: ScaleGraph | None = None,
    ) -> None:
        for name, value in (("p", p), ("c", c)):
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
                raise PathCondError(f"expected {name} to be a positive number, got {value!r}.")
        if graph is None:
            graph = extract_graph(model, example_input, batchnorm=batchnorm, shortcuts=shortcuts)
        apply_scales_(model, graph, torch.zeros(graph.units))  # refuses the graph of another model
        roles = _roles(model, example_input, graph)
        number = torch.arange(graph.units + 1)
        for name in () if last_layer else roles.last:
            number[graph.params[name].col] = 0
        scales = {n: ParamScales(compress(number[s.row]), compress(number[s.col])) for n, s in graph.params.items()}
        parameters = holders(model, (n for n in scales if biases or n not in roles.biases))
        check_optimizer(optimizer, parameters)
        everything = dict(model.named_parameters())
        wide = p > 2 or any(t.dtype == torch.float64 for t in everything.values())
        self.graph = graph
        self._optimizer, self._p, self._c, self._parameters = optimizer, p, float(c) ** -p, parameters
        self._dtype = torch.float64 if wide else torch.float32
        self._home = next(iter(everything.values())).device
        self._weights = [Weight.of(everything[name], scales[name]) for name in roles.weights]
        self._groups = plan(graph.groups, self._weights, self._c, self._home)
        self._last_use = {side.weight: group for group in self._groups for side in (*group.entering, *group.leaving)}
        self._index = {name: _indices(scales[name], parameters[name][0]) for name in parameters}

    def step(self) -> None:
        """Run one cycle, in place on the parameters and on the optimizer's state.

        Raises:
            PathCondError: the optimizer holds state of unknown meaning, or the model was moved; nothing was written.
        """
        buffers = gradient_buffers(self._optimizer, self._parameters)
        for name, (p, *_) in self._parameters.items():
            if p.device != self._index[name].device:
                raise PathCondError(f"parameter '{name}' has moved to {p.device}. Build ENorm after model.to(device).")
        with torch.inference_mode(False), torch.no_grad(), torch.autocast(self._home.type, enabled=False):
            lambdas = self._cycle().pow(1 / self._p)
            inverse = lambdas.reciprocal()
            for name, (p, *_) in self._parameters.items():
                at = self._index[name]
                row = None if at.row is None else lambdas.to(p.device)[at.row]
                col = None if at.col is None else inverse.to(p.device)[at.col]
                scale_(p, row, col)
                for buffer, power in buffers[name]:
                    scale_(buffer, row, col, -power)

    def objective(self) -> Tensor:
        """``sum_l c_l |W_l|_p^p`` over the weights that touch a unit: a float64 tensor without axes."""
        with torch.no_grad():
            total = torch.zeros((), dtype=torch.float64, device=self._home)
            for index, weight in enumerate(self._weights):
                norm = torch.linalg.vector_norm(weight.parameter.detach(), self._p, dtype=torch.float64)
                total += (norm.pow(self._p) * self._c**index).to(self._home)
            return total

    def _cycle(self) -> Tensor:
        """lambda^p of every unit, shape (units + 1,), with entry 0 for no unit. The weights are only read."""
        scale = torch.ones(self.graph.units + 1, dtype=self._dtype, device=self._home)
        powers: dict[int, Tensor] = {}
        for group in self._groups:
            needed = {side.weight for side in (*group.entering, *group.leaving)}
            for index in needed - powers.keys():
                powers[index] = self._weights[index].powers(self._p, self._dtype).to(self._home)
            into, out = (_total(sides, powers, scale) for sides in (group.entering, group.leaving))
            ratio = out / into
            sound = torch.isfinite(ratio) & (ratio > 0)
            scale[group.lo : group.hi] = torch.where(sound, ratio, 1.0).pow(group.exponent)
            for index in needed:
                if self._last_use[index] is group:
                    del powers[index]
        return scale


def _total(sides: tuple[Side, ...], powers: Mapping[int, Tensor], scale: Tensor) -> Tensor:
    flows = [side.flow(powers[side.weight], scale) for side in sides]
    return flows[0] if len(flows) == 1 else torch.stack(flows).sum(0)


# ---- which parameters are weights, and which of them make the output

_FACTORS = {"mul": ("input", "other"), "matmul": ("input", "other"), "addmm": ("mat1", "mat2")}
_VIEWS = ("same", "cast", "reshape", "move")
_NORMS = ("batch_norm", "group_norm", "layer_norm")


@dataclass(frozen=True)
class _Roles:
    """Names in the graph: ``weights`` in network order, those of output layers (``last``), and ``biases``."""

    weights: tuple[str, ...]
    last: frozenset[str]
    biases: frozenset[str]


def _roles(model: nn.Module, example_input: Any, graph: ScaleGraph) -> _Roles:
    alias = shared_memory(model)[0]
    traces = [graph.trace]
    seen = {value.leaf.name for value in graph.trace.values if value.leaf is not None}
    if graph.params.keys() - seen:
        traces.append(record(model, example_input, training=True))  # auxiliary heads run in training mode only
    order: dict[str, None] = {}
    last: set[str] = set()
    for trace in traces:
        last |= _follow(trace, alias, graph, order)
    biases = frozenset(name for name in graph.params if name not in order)
    return _Roles(tuple(name for name in order if name in graph.params), frozenset(last & graph.params.keys()), biases)


def _follow(trace: Trace, alias: Mapping[str, str], graph: ScaleGraph, order: dict[str, None]) -> frozenset[str]:
    """Enter in ``order`` the parameters that multiply; return those behind which no other does before an output."""
    names = {
        index: alias.get(value.leaf.name, value.leaf.name)
        for index, value in enumerate(trace.values)
        if value.leaf is not None and value.leaf.kind == "param"
    }
    latest: dict[int, frozenset[str]] = {}
    for call in trace.calls:
        op, used = ops.TABLE.get(call.fn), [ref.id for ref in refs([*call.args, call.kwargs])]
        kind, arguments = (op.kind, ops.bind(op, call.args, call.kwargs)) if op else ("", {})
        if kind in _VIEWS and len(used) == 1 and used[0] in names:
            names.update(dict.fromkeys(call.outs, names[used[0]]))
            continue
        given = [arguments.get(key) for key in (_FACTORS.get(kind, ("weight",)) if kind != "prelu" else ())]
        factors = [names[x.id] for x in given if isinstance(x, Ref) and x.id in names]
        order.update(dict.fromkeys(factors))
        made = frozenset[str]().union(*(latest.get(value, ()) for value in used))
        if factors and kind not in _NORMS and (kind != "mul" or any(name in graph.params for name in factors)):
            made = frozenset(factors)
        latest.update(dict.fromkeys(call.outs, made))
    return frozenset[str]().union(*(latest.get(value, ()) for value in trace.outputs))


@dataclass(frozen=True)
class _Index:
    """Units a parameter's elements enter and leave, on its device; None for no unit anywhere."""

    row: Tensor | None
    col: Tensor | None
    device: torch.device


def _indices(scales: ParamScales, parameter: Tensor) -> _Index:
    row, col = (x.to(parameter.device) if bool(x.any()) else None for x in (scales.row, scales.col))
    return _Index(row, col, parameter.device)
