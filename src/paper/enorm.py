"""Equi-normalization (Stock et al., ICLR 2019): balance what enters and what leaves every unit, once per step.

Symbols: ``lambda_h`` scale of unit h, ``c_l`` coefficient of weight l. Along one unit
``F = sum_l c_l |W_l|_p^p = in lambda^p + out lambda^-p + rest`` is least where ``lambda^(2p) = out / in``. Within a
cycle ``scale`` holds ``lambda^p``; the weights are written once, at its end. All index tensors are made at the start,
so that a step is a few products on the device.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pathcond.apply import apply_scales_, optimizer_buffers, parameters_by_memory
from pathcond.checks import PathCondError
from pathcond.graph import ParamScales, ScaleGraph, extract_graph
from pathcond.roles import roles_of
from pathcond.rules.base import compress


class ENorm:
    """Balance the p-norms of the incoming and outgoing weights of every unit with each call of :meth:`step`.

    One step is one cycle: the layers are visited in network order and every unit h gets
    ``lambda_h^(2p) = sum c_out |w_out|^p / sum c_in |w_in|^p``, with the newest values; what enters it is multiplied by
    ``lambda_h``, what leaves it divided. ``sum_l c_l |W_l|_p^p`` never rises. Units of one layer that a weight connects
    to one another, as in ``x + conv(x)``, make half that step (in the logarithm), for which this still holds. A unit
    whose incoming or outgoing norm is zero or not finite keeps its scale. So do units of which some parameter carries
    the inverse scale, as attention keys do, or another power of it, as behind a squared ReLU.

    Biases (parameters that are added) have no part in the norms. The scale of a normalization, where it enters a unit,
    is a weight, and its shift a bias.

    Averages of gradients in the optimizer's state (SGD's ``momentum_buffer``, Adam's ``exp_avg``) are divided by their
    parameter's factor, averages of squares (``exp_avg_sq``, ``max_exp_avg_sq``) by its square; step counts stay, and
    any other tensor raises an error. Gradients do not change.

    :meth:`step` does not synchronize with the device, and no size of its tensors depends on values: a CUDA graph can
    capture it once the optimizer's state exists. Build the object after ``model.to(device)``, because it keeps
    references to the parameters. Values are not checked; in float32, weights below 1e-19 count as zero.

    Args:
        model: any module that can be run on ``example_input``.
        example_input: as in :func:`pathcond.extract_graph`.
        optimizer: the optimizer whose state is rescaled with the parameters; None to touch no state.
        p: power of the norms, positive.
        c: the original's asymmetric factor, positive: ``c_l = c ** (-p l)``, where l = 0, 1, ... numbers the weights
            that touch a unit in the order in which the forward pass first uses them. 1 means none; above 1 later
            layers get larger weights.
        biases: scale biases with their unit, which keeps the function. False leaves them alone, as the original does,
            and changes the function.
        last_layer: balance the units that feed an output layer too; the original does not.
        batchnorm: how scales cross BatchNorm; ``exclude``, the paper's way, leaves its parameters alone.
        graph: a graph extracted earlier; ``batchnorm`` is then not used.

    Attributes:
        graph: the units.

    Raises:
        PathCondError: an option is out of range, the model cannot be recorded, or the optimizer is not this model's or
            holds state of unknown meaning.

    Example:
        >>> import torch
        >>> from paper.enorm import ENorm
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        >>> enorm = ENorm(model, torch.ones(1, 3), optimizer)
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
        graph: ScaleGraph | None = None,
    ) -> None:
        for name, value in (("p", p), ("c", c)):
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
                raise PathCondError(f"expected {name} to be a positive number, got {value!r}.")
        if graph is None:
            graph = extract_graph(model, example_input, batchnorm=batchnorm)
        apply_scales_(model, graph, torch.zeros(graph.units))  # raises if the graph is of another model
        roles = roles_of(model, example_input, graph)
        number = torch.arange(graph.units + 1)
        for name in () if last_layer else roles.last:
            number[graph.unit_of(graph.params[name].col)] = 0
        for units in (units for s in graph.params.values() for units in (s.row, s.col)):
            number[graph.unit_of(units[units < 0])] = 0
        for units in (units for s in graph.params.values() if s.offset for units in (s.row, s.col)):
            number[graph.unit_of(units)] = 0
        number[graph.powers[:, 0]] = 0
        rest = torch.zeros(2 * graph.numbers - graph.units, dtype=torch.int64)
        number = torch.cat((number, rest))  # powers and negative numbers come out as 0
        scales = {n: ParamScales(compress(number[s.row]), compress(number[s.col])) for n, s in graph.params.items()}
        parameters = parameters_by_memory(model, (n for n in scales if biases or n not in roles.biases))
        optimizer_buffers(model, parameters, optimizer)
        everything = dict(model.named_parameters())
        wide = p > 2 or any(t.dtype == torch.float64 for t in everything.values())
        self.graph = graph
        self._model, self._optimizer, self._parameters = model, optimizer, parameters
        self._p, self._c = p, float(c) ** -p
        self._dtype = torch.float64 if wide else torch.float32
        self._home = next(iter(everything.values())).device
        self._weights = [_Weight.of(everything[name], scales[name]) for name in roles.weights]
        self._layers = _plan(graph.groups, self._weights, self._c, self._home)
        self._last_use = {side.weight: layer for layer in self._layers for side in (*layer.entering, *layer.leaving)}
        self._index = {name: _indices(scales[name], parameters[name][0]) for name in parameters}

    def step(self) -> None:
        """Run one cycle, in place on the parameters and on the optimizer's state.

        Raises:
            PathCondError: the optimizer holds state of unknown meaning, or the model was moved; nothing was written.
        """
        buffers = optimizer_buffers(self._model, self._parameters, self._optimizer)
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
                _multiply_(p, row, col)
                for buffer, power in buffers[name]:
                    if power:
                        _multiply_(buffer, *(None if f is None else f.pow(-power) for f in (row, col)))

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
        for layer in self._layers:
            needed = {side.weight for side in (*layer.entering, *layer.leaving)}
            for index in needed - powers.keys():
                powers[index] = self._weights[index].powers(self._p, self._dtype).to(self._home)
            into, out = (_total(sides, powers, scale) for sides in (layer.entering, layer.leaving))
            ratio = out / into
            usable = torch.isfinite(ratio) & (ratio > 0)
            scale[layer.lo : layer.hi] = torch.where(usable, ratio, 1.0).pow(layer.exponent)
            for index in needed:
                if self._last_use[index] is layer:
                    del powers[index]
        return scale


def _total(sides: tuple[_Side, ...], powers: Mapping[int, Tensor], scale: Tensor) -> Tensor:
    sums = [side.sums(powers[side.weight], scale) for side in sides]
    return sums[0] if len(sums) == 1 else torch.stack(sums).sum(0)


# ---- the sums that enter and leave units


@dataclass(frozen=True)
class _Weight:
    """A weight as M, a matrix from the units ``cols`` to ``rows``; grouped layers as a list of single elements.

    M is ``|w|^p`` summed over the ``summed`` axes; ``order`` brings the others to (rows, columns). ``same`` marks
    elements with one unit at both ends, which no scale changes.
    """

    parameter: nn.Parameter
    summed: tuple[int, ...]
    order: tuple[int, ...]
    rows: Tensor
    cols: Tensor
    same: Tensor | None
    elementwise: bool

    @classmethod
    def of(cls, parameter: nn.Parameter, scales: ParamScales) -> _Weight:
        """Lay out a parameter with the units its elements enter and leave."""
        row_axes, col_axes = ([i for i, n in enumerate(x.shape) if n > 1] for x in (scales.row, scales.col))
        elementwise = bool(set(row_axes) & set(col_axes))
        kept = sorted({*row_axes, *col_axes})
        order = tuple(range(len(kept))) if elementwise else tuple(kept.index(i) for i in row_axes + col_axes)
        rows, cols = scales.row, scales.col
        if elementwise:
            shape = [n if i in kept else 1 for i, n in enumerate(parameter.shape)]
            rows, cols = rows.expand(shape), cols.expand(shape)
        rows, cols = rows.reshape(-1), cols.reshape(-1)
        same = None
        if bool(torch.isin(rows[rows > 0], cols).any()):
            same = (rows == cols if elementwise else rows[:, None] == cols).to(parameter.device)
        summed = tuple(i for i in range(parameter.ndim) if i not in kept)
        return cls(parameter, summed, order, rows, cols, same, elementwise)

    def powers(self, p: float, dtype: torch.dtype) -> Tensor:
        """M, shape (rows, columns) or (elements,)."""
        w = self.parameter.detach()
        if self.summed:
            m = torch.linalg.vector_norm(w, p, self.summed, dtype=dtype).pow(p)
        else:
            m = w.to(dtype).square() if p == 2 else w.to(dtype).abs().pow(p)
        m = m.permute(self.order).reshape(-1 if self.elementwise else (len(self.rows), len(self.cols)))
        return m if self.same is None else m.masked_fill(self.same, 0.0)


@dataclass(frozen=True)
class _Side:
    """What enters (or leaves) the units of a layer through one weight.

    ``index`` selects the layer's part of M, ``others`` are the units at the other end, ``gather``, of shape
    (units, largest number of sums per unit), collects the sums that belong to each unit of the layer.
    """

    weight: int
    leaving: bool
    index: Tensor | slice
    others: Tensor | None
    gather: Tensor | None
    coefficient: float

    def sums(self, m: Tensor, scale: Tensor) -> Tensor:
        """Sums of c |w|^p at the present scales, shape (units of the layer,)."""
        part = (m.T if self.leaving and m.ndim == 2 else m)[self.index]
        if self.others is None:
            found = part.sum(1) if m.ndim == 2 else part
        else:
            factor = scale[self.others] if self.leaving else scale[self.others].reciprocal()
            found = part @ factor if m.ndim == 2 else part * factor
        if self.coefficient != 1.0:
            found = found * self.coefficient
        return found if self.gather is None else torch.cat((found, found.new_zeros(1)))[self.gather].sum(1)


@dataclass(frozen=True)
class _Layer:
    """Units ``lo <= number < hi``, whose scales are set together to ``(out / in) ** exponent``."""

    lo: int
    hi: int
    entering: tuple[_Side, ...]
    leaving: tuple[_Side, ...]
    exponent: Tensor | float


def _plan(sizes: Sequence[int], weights: Sequence[_Weight], c: float, device: torch.device) -> tuple[_Layer, ...]:
    """Lay out one cycle over the layers; those that no weight enters, or none leaves, are left out.

    Args:
        sizes: sizes of the layers; their units are numbered from 1.
        weights: all weights; number l has the coefficient ``c ** l``.
        c: base of the coefficients.
        device: where the units' scales are.
    """
    bounds = torch.tensor([1, *sizes]).cumsum(0)
    entering: list[list[int]] = [[] for _ in sizes]
    leaving: list[list[int]] = [[] for _ in sizes]
    for index, weight in enumerate(weights):
        for numbers, touched in ((weight.rows, entering), (weight.cols, leaving)):
            for layer in (torch.bucketize(numbers[numbers > 0].unique(), bounds, right=True) - 1).unique().tolist():
                touched[layer].append(index)
    found = []
    for layer, (into, out) in enumerate(zip(entering, leaving, strict=True)):
        if into and out:
            lo, hi = bounds[layer : layer + 2].tolist()
            base = min(*into, *out)  # only ratios of coefficients matter within a layer
            into_sides, out_sides = (
                tuple(_side(weights[i], i, leaves, (lo, hi), c ** (i - base), device) for i in ours)
                for leaves, ours in ((False, into), (True, out))
            )
            exponent = _exponent([weights[i] for i in into if i in out], lo, hi, device)
            found.append(_Layer(lo, hi, into_sides, out_sides, exponent))
    return tuple(found)


def _side(
    weight: _Weight, number: int, leaving: bool, span: tuple[int, int], coefficient: float, device: torch.device
) -> _Side:
    ours, others = (weight.cols, weight.rows) if leaving else (weight.rows, weight.cols)
    inside = ((ours >= span[0]) & (ours < span[1])).nonzero()[:, 0]
    first, last = int(inside[0]), int(inside[-1]) + 1
    index = slice(first, last) if last - first == len(inside) else inside.to(device)
    if weight.elementwise:
        others = others[inside]
    gather = _gather(ours[inside] - span[0], span[1] - span[0])
    return _Side(
        weight=number,
        leaving=leaving,
        index=index,
        others=others.to(device) if bool(others.any()) else None,
        gather=None if gather is None else gather.to(device),
        coefficient=coefficient,
    )


def _gather(positions: Tensor, count: int) -> Tensor | None:
    """Sums that belong to each of ``count`` positions, padded with ``len(positions)``; None if sum i belongs to i."""
    if torch.equal(positions, torch.arange(count)):
        return None
    counts = torch.bincount(positions, minlength=count)
    order = positions.argsort(stable=True)
    slots = torch.arange(len(positions)) - (counts.cumsum(0) - counts)[positions[order]]
    found = torch.full((count, int(counts.amax())), len(positions))
    found[positions[order], slots] = order
    return found


def _exponent(weights: Sequence[_Weight], lo: int, hi: int, device: torch.device) -> Tensor | float:
    """One half for lambda^p; one quarter for units that a weight connects within the layer.

    With all such units updated together, ``lambda_i^p / lambda_j^p <= (lambda_i^2p + lambda_j^-2p) / 2`` and
    ``x <= (1 + x^2) / 2`` bound F by a sum over units, equal to it at 1 and least at ``lambda^(4p) = out / in``.
    """
    coupled = torch.zeros(hi, dtype=torch.bool)
    for weight in weights:
        rows, cols = weight.rows, weight.cols
        if weight.elementwise:
            joined = (rows >= lo) & (rows < hi) & (cols >= lo) & (cols < hi) & (rows != cols)
            coupled[rows[joined]] = coupled[cols[joined]] = True
            continue
        rows, cols = (x[(x >= lo) & (x < hi)].unique() for x in (rows, cols))
        for ours, others in ((rows, cols), (cols, rows)):  # a unit is joined to all others but itself
            coupled[ours if len(others) > 1 else ours[~torch.isin(ours, others)] if len(others) else ours[:0]] = True
    if not bool(coupled.any()):
        return 0.5
    return torch.where(coupled[lo:], 0.25, 0.5).to(device)


# ---- factors


def _multiply_(tensor: Tensor, row: Tensor | None, col: Tensor | None) -> None:
    """Multiply in place by ``row * col``, both of which broadcast to ``tensor``; None stands for one.

    Factors in a wider format than the tensor's are not rounded first: the product is rounded once.
    """
    factors = [factor for factor in (row, col) if factor is not None]
    if all(factor.dtype == tensor.dtype for factor in factors):
        for factor in factors:
            tensor.mul_(factor)
        return
    product = tensor
    for factor in factors:
        product = torch.mul(product, factor)
    tensor.copy_(product)


@dataclass(frozen=True)
class _Index:
    """Units a parameter's elements enter and leave, on its device; None if no element has one."""

    row: Tensor | None
    col: Tensor | None
    device: torch.device


def _indices(scales: ParamScales, parameter: Tensor) -> _Index:
    row, col = (x.to(parameter.device) if bool(x.any()) else None for x in (scales.row, scales.col))
    return _Index(row, col, parameter.device)
