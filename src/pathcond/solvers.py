"""Log-scales for two objectives: diag(G) close to a constant, and small norms.

Paper symbols: H units, u = 2 log lambda, p number of parameters, g = diag(G), A_h number of parameters that enter unit
h minus number that leave it; (Bu)_i is u of the unit that parameter i leaves minus u of the unit that it enters.

    F(u) = p log(sum_i exp((Bu)_i) g_i) - sum_i (Bu)_i

Along one unit's log-scale the sum is ``X_1 exp(z) + X_-1 exp(-z) + D``: X_1 leaves the unit, X_-1 enters it, D is the
rest. F is least where ``(A + p) X_1 exp(z) + (A - p) X_-1 exp(-z) + A D = 0``.
The sum of squared weights is the same problem at -u with ``w^2`` for g and A = 0, so one :class:`Problem` serves both.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import accumulate, pairwise
from math import sqrt
from typing import Literal

import torch
from torch import Tensor

from pathcond.checks import PathCondError, SolveError, check_choice
from pathcond.diag_g import DiagG
from pathcond.graph import ParamScales, ScaleGraph
from pathcond.isolation import on_cpu
from pathcond.rules.base import compress, with_axes

_TOLERANCE = 1e-10  # of the largest entry of the gradient of F / p at the optimum
_AT_BOUND = 1.0 - 1e-12  # a log-scale above this fraction of the bound counts as at the bound
_Block = tuple[Tensor, Tensor, Tensor]  # sums of g, and the units at the ends of its rows and of its columns


class Result(Enum):
    """How a solve ended; the value is the message."""

    SWEEPS = "all sweeps asked for were made"
    OPTIMUM = "the gradient is zero to the tolerance"
    STALLED = "no further decrease was possible before the gradient met the tolerance"
    NOTHING = "there is no unit to rescale"


@dataclass(frozen=True)
class Solution:
    """Log-scales and how they were found.

    Attributes:
        log_scales: log lambda, float64, shape (units,) on the CPU; unit h is multiplied by ``exp(log_scales[h])``.
        objective: F before, then after each sweep (or Newton step); with damping, then F at the damped log-scales.
        mean_update: mean absolute change of the log-scales in each sweep (or Newton step).
        residual: largest entry of the gradient of F with respect to ``2 log lambda``, over p; zero at the optimum.
        result: how the solve ended.
        dead: units (indices into ``log_scales``) left alone because nothing enters or nothing leaves them.
        size: p, the number of parameters with an entry in diag(G).
        clamped: number of units whose ``|log lambda|`` is, before damping, at the bound ``clamp``; 0 without one.
    """

    log_scales: Tensor
    objective: tuple[float, ...]
    mean_update: tuple[float, ...]
    residual: float
    result: Result
    dead: tuple[int, ...]
    size: int
    clamped: int = 0

    @property
    def steps(self) -> int:
        """Number of sweeps or Newton steps made."""
        return len(self.mean_update)


@dataclass(frozen=True)
class SolverOptions:
    """Options that the solvers of all objectives share; :func:`solve` says what they mean.

    Raises:
        PathCondError: an option is out of range.
    """

    method: str = "sweeps"
    sweeps: int = 10
    clamp: float | None = None
    damping: float = 1.0

    def __post_init__(self) -> None:
        check_choice("method", self.method, ("sweeps", "optimum"))
        clamp = math.inf if self.clamp is None else self.clamp
        for name, fits, wanted in (
            ("sweeps", isinstance(self.sweeps, int) and self.sweeps >= 0, "an integer >= 0"),
            ("clamp", isinstance(clamp, int | float) and clamp > 0, "positive or None"),
            ("damping", isinstance(self.damping, int | float) and 0 <= self.damping <= 1, "a number from 0 to 1"),
        ):
            if not fits or isinstance(getattr(self, name), bool):
                raise PathCondError(f"expected {name} to be {wanted}, got {getattr(self, name)!r}.")

    @property
    def bound(self) -> float:
        """Bound on every ``|u|``, which is twice that on ``|log lambda|``."""
        return math.inf if self.clamp is None else 2.0 * self.clamp


@on_cpu
def solve(
    graph: ScaleGraph,
    g: Mapping[str, Tensor],
    *,
    method: Literal["sweeps", "optimum"] = "sweeps",
    sweeps: int = 10,
    clamp: float | None = None,
    damping: float = 1.0,
    fixed: Tensor | None = None,
) -> Solution:
    """Find the log-scales that bring diag(G) closest to a constant.

    By default there is neither bound nor damping, as in the paper; :func:`pathcond.rescale_` has both.

    Args:
        graph: the units, from :func:`pathcond.extract_graph`.
        g: diag(G) by parameter name, from :func:`pathcond.compute_diag_g`: the entries themselves in a plain mapping,
            ``g[name] * exp(g.log_scale[name])`` in a :class:`pathcond.DiagG`. Parameters left out do not count
            in p.
        method: ``sweeps``: the paper's alternating minimization. ``optimum``: the minimizer of F, by Newton's method.
        sweeps: number of sweeps over all units, for ``method="sweeps"``.
        clamp: bound on every ``|log lambda|`` before damping; None for none. Units at the bound are counted
            in :attr:`Solution.clamped`.
        damping: factor from 0 to 1 by which the log-scales are multiplied at the end, so that
            ``|log lambda| <= damping * clamp``. F is convex: at least this fraction of its decrease remains.
        fixed: units that keep their scale, as a mask of shape (units,); see :meth:`pathcond.ScaleGraph.touched_by`.

    Returns:
        The :class:`Solution`. Stopping after the requested sweeps is a normal result.

    Raises:
        PathCondError: an argument is out of range, or ``g`` does not fit the graph.
        SolveError: ``g`` has entries that are negative or not finite; the message names the parameter.

    Example:
        >>> import torch, pathcond
        >>> model = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.ReLU(), torch.nn.Linear(1, 1, bias=False))
        >>> for p, value in zip(model.parameters(), (2.5, 5.0, 0.2)):
        ...     _ = p.data.fill_(value)
        >>> x = torch.ones(1, 1)
        >>> graph = pathcond.extract_graph(model, x)
        >>> round(pathcond.solve(graph, pathcond.compute_diag_g(model, x)).log_scales.item(), 4)
        -1.6652
    """
    options = SolverOptions(method, sweeps, clamp, damping)
    for name, t in g.items():
        if name not in graph.shapes:
            raise PathCondError(f"expected entries for parameters of the graph's model, got one for '{name}'.")
        if tuple(t.shape) != graph.shapes[name]:
            raise PathCondError(f"expected shape {graph.shapes[name]} for '{name}', got {tuple(t.shape)}.")
        low, high = (float(x) for x in torch.aminmax(t)) if t.numel() else (0.0, 0.0)
        if not (low >= 0 and math.isfinite(high)):
            raise SolveError(f"expected finite entries of diag(G) >= 0, got {low} to {high} for parameter '{name}'.")
    if fixed is not None and (getattr(fixed, "shape", None) != (graph.units,) or fixed.dtype != torch.bool):
        got = tuple(fixed.shape) if isinstance(fixed, Tensor) else type(fixed).__name__
        raise PathCondError(f"expected fixed to be a mask of shape ({graph.units},), got {got}.")
    return balance_paths(graph, DiagG(g, getattr(g, "log_scale", None)), options, fixed)


def balance_paths(graph: ScaleGraph, g: DiagG, options: SolverOptions, fixed: Tensor | None = None) -> Solution:
    """As :func:`solve`, for entries that need no check; they are removed as they are used."""
    top = max(g.log_scale.values(), default=0.0)
    entries = ((name, g.pop(name), g.log_scale[name] - top) for name in list(g))
    found = _minimize(Problem(graph, entries, fixed), options)
    return replace(found, objective=tuple(value + found.size * top for value in found.objective))


def balance_norms(
    graph: ScaleGraph, weights: Mapping[str, Tensor], options: SolverOptions, fixed: Tensor | None = None
) -> Solution:
    """Find the log-scales for which the sum of squared weights, ``objective``, is least."""
    squares = ((name, w.double().square(), 0.0) for name, w in weights.items())
    found = _minimize(Problem(graph, squares, fixed, linear=False), options)
    sums = (torch.tensor(found.objective, dtype=torch.float64) / max(1, found.size)).exp()  # infinite beyond float64
    return replace(
        found,
        log_scales=-found.log_scales,
        objective=(0.0,) if found.result is Result.NOTHING else tuple(sums.tolist()),
    )


# ---- the problem


@dataclass(frozen=True)
class Side:
    """Sums of g with an end in a layer: those of row i of ``m`` follow the scale of the layer's unit ``positions[i]``.

    They leave it where ``row`` is 0 and enter it where ``row`` is 1. ``others`` are the indices at the other end of the
    columns: one vector for all rows, or one for each matrix of a batch. ``in_order``: each unit has one row, in order.
    """

    row: int
    positions: Tensor
    m: Tensor
    others: Tensor
    in_order: bool

    def sums(self, x: Tensor) -> Tensor:
        """Sums of the rows for factors by index."""
        if self.others.ndim == 1:
            return self.m @ x.index_select(0, self.others)
        return torch.bmm(self.m, x[self.others][:, :, None]).flatten()


@dataclass(frozen=True)
class Layer:
    """Units that are updated together: no element of g has two of them as its ends. ``own``: see :class:`Problem`."""

    units: slice
    own: Tensor
    sides: list[Side] = field(default_factory=list)

    def terms(self, x: Tensor) -> Tensor:
        """X_1 and X_-1 without the units' own scales, shape (2, units), for factors by index."""
        found = self.own.clone()
        for side in self.sides:
            mine, sums = found[side.row], side.sums(x)
            mine.add_(sums) if side.in_order else mine.index_add_(0, side.positions, sums)
        return found


class Problem:
    """The objective of u, shape (H,), for one model, reduced on the CPU to sums of g between units.

    Scales are factors by index, shape (1 + 2 H,): a one, ``exp(u)`` of the units, and ``exp(-u)`` of their inverses.
    ``own``: the sums of all elements with one end, by its index; at index 0 those whose value does not depend on u.

    Args:
        graph: the units.
        g: names, tensors and logarithms: the entries of a parameter are ``tensor * exp(logarithm)``.
        fixed: mask of units that keep their scale, or None.
        linear: whether F has its linear term; A is 0 for every unit without.
    """

    def __init__(
        self, graph: ScaleGraph, g: Iterable[tuple[str, Tensor, float]], fixed: Tensor | None, linear: bool = True
    ) -> None:
        self.units, self.linear, self.size = graph.units, linear, 0
        self.own = torch.zeros(1 + 2 * self.units, dtype=torch.float64)
        self.balance = torch.zeros(1 + self.units, dtype=torch.float64)
        blocks = list[_Block]()
        for name, t, log in g:
            m, rows, cols = _reduce(graph.params.get(name), t)
            m = m if log == 0.0 else m.mul_(math.exp(log))
            self.size += t.numel()
            for end in (rows, cols) if linear else ():
                share = end.sign().flatten().double() * (-t.numel() / end.numel())
                self.balance.index_add_(0, end.abs().flatten(), share)
            del t
            starts, ends = {*rows.flatten().tolist()}, {*cols.neg().flatten().tolist()}
            if starts == {0} or ends == {0}:
                self.own.index_add_(0, self._index(rows[:, :, None] + cols[:, None, :]).flatten(), m.flatten())
                continue
            if 0 in starts or 0 in ends or not starts.isdisjoint(ends):
                first, second = torch.broadcast_tensors(rows[:, :, None], cols[:, None, :])
                one = (first == 0) | (second == 0) | (first == -second)  # scales of one unit at both ends cancel
                self.own.index_add_(0, self._index((first + second)[one]), m[one])
                m[one] = 0.0
            blocks.append((m, self._index(rows), self._index(cols)))
        self.balance = self.balance[1:]
        self.layers = self._layers(graph.groups, blocks)
        total, terms = self.total(torch.ones_like(self.own))
        self.start = math.log(total) if total > 0 else -math.inf
        # F has no minimum along the log-scale of a dead unit.
        self.dead = (terms.amin(0) == 0) | (self.balance.abs() >= self.size)
        self.still = self.dead if fixed is None else self.dead | fixed
        a = torch.where(self.still, 0.0, self.balance)
        self.entered, self.ratio = a > 0, (self.size + a.abs()) / (self.size - a.abs())
        self.factor = (a.abs() / (2 * (self.size - a.abs()))).tolist()

    def _index(self, numbers: Tensor) -> Tensor:
        """The indices of units by number, of which negative ones stand for the inverse scale."""
        return torch.where(numbers < 0, self.units - numbers, numbers).long()

    def _layers(self, groups: Sequence[int], blocks: Sequence[_Block]) -> list[Layer]:
        """The layers; one whose units a parameter connects with each other becomes a layer for each unit."""
        sizes, owners = list(groups), list[tuple[Tensor, Tensor]]()
        for _ in range(2):  # again with the smaller layers
            layer = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes, dtype=torch.int64))
            layer = torch.cat((torch.tensor([-1]), layer, layer))
            owners = [(layer[rows], layer[cols]) for _, rows, cols in blocks]
            coupled = {
                n
                for rows, cols in owners
                for n in {*_distinct(rows)} & {*_distinct(cols)} - {-1}
                if bool(((rows == n).any(1) & (cols == n).any(1)).any())
            }
            sizes = [part for n, size in enumerate(sizes) for part in ([1] * size if n in coupled else [size])]
        own = _by_unit(self.own)
        layers = [Layer(slice(lo, hi), own[:, lo:hi]) for lo, hi in pairwise(accumulate(sizes, initial=0))]
        for (m, *ends), of in zip(blocks, owners, strict=True):
            for each, end, others, owner in zip((m, m.mT), ends, ends[::-1], of, strict=True):
                for n, row in [(n, row) for n in _distinct(owner) if n >= 0 for row in (0, 1)]:
                    at = (owner == n) & ((end > self.units) == (row == 1))
                    if bool(at.any()):
                        positions = (end[at] - 1) % self.units - layers[n].units.start
                        rows, ends_of_rows = _rows(each, others, at)
                        in_order = torch.equal(positions, torch.arange(sizes[n]))
                        layers[n].sides.append(Side(row, positions, rows, ends_of_rows, in_order))
        return layers

    # ---- sums

    def total(self, x: Tensor) -> tuple[float, Tensor]:
        """Sum_i exp((Bu)_i) g_i for factors by index; and X_1 and X_-1 of all units, as ``terms``."""
        terms = torch.cat([self.own.new_zeros(2, 0), *(layer.terms(x) for layer in self.layers)], 1)
        # Elements with two ends are in the terms of both; elements with fewer are counted twice as well.
        return float(self.own[0] + self.own @ x + (terms * _by_unit(x)).sum()) / 2, terms

    def gradient(self, u: Tensor) -> tuple[float, Tensor]:
        """F, and its gradient over p, shape (H,); zero for units that keep their scale."""
        x = _by_index(u).exp_()
        total, terms = self.total(x)
        leaves, enters = terms * _by_unit(x) / total
        value = self.size * math.log(total) + float(self.balance @ u)
        return value, torch.where(self.still, 0.0, leaves - enters + self.balance / self.size)

    # ---- sweeps

    def sweep(self, u: Tensor, bound: float, value: float) -> tuple[Tensor, float]:
        """Set every unit in turn to its best log-scale; a layer's sums are computed at once.

        ``value`` is F at ``u``; returns the new log-scales, and F there.
        """
        total, new, x = math.exp((value - float(self.balance @ u)) / self.size), u.clone(), _by_index(u).exp_()
        with torch.inference_mode():
            for layer in self.layers:
                found, part = self._update(layer, x, bound, total)
                new[layer.units] = found
                _by_unit(x)[:, layer.units] = torch.stack((found, -found)).exp_()
                total = total * part if part > 1e-280 else self.total(x)[0]
        return new, self.size * math.log(total) + float(self.balance @ new)

    def _update(self, layer: Layer, x: Tensor, bound: float, total: float) -> tuple[Tensor, float]:
        """New log-scales of a layer, and the new sum as a fraction of the old one.

        Each is the root of a quadratic, solved for the one of ``X_1 exp(z)`` and ``X_-1 exp(-z)`` whose root does not
        cancel: the part that the loop finds for each unit. The other one is their product over it. A loop over numbers
        is faster than tensors here. A unit that keeps its scale, which is one, has its old sum as its part.
        """
        here, still, entered = layer.units, self.still[layer.units], self.entered[layer.units]
        terms = layer.terms(x).div_(total)
        old = (terms * _by_unit(x)[:, here]).sum(0)
        later = [0.0, *old.flip(0).cumsum(0).tolist()]
        before = 1.0 - later.pop()
        if before < 1e-3:
            without = x.clone()
            _by_unit(without)[:, here] = 0.0
            before = self.total(without)[0] / total
        first, ratio = torch.where(entered, terms[1], terms[0]), self.ratio[here]
        root = (terms[0].sqrt() * (terms[1] * ratio).sqrt_()).masked_fill_(still, 0.0)
        squares = root.square()
        limits = [torch.where(still, old, first * math.exp(sign * min(bound, 700.0))).tolist() for sign in (-1, 1)]
        parts = array("d")
        for after, square, product, factor, low, high in zip(
            reversed(later), squares.tolist(), (squares / ratio).tolist(), self.factor[here], *limits, strict=True
        ):
            rest = factor * (before + after)
            part = rest + sqrt(rest * rest + square)
            part = low if part < low else high if part > high else part
            before += part + product / part if part else 0.0
            parts.append(part)
        found = torch.frombuffer(parts, dtype=torch.float64).maximum(root)  # squares of small numbers may vanish
        new = found.div_(first).log_().clamp_(-bound, bound)
        return torch.where(entered, -new, new).masked_fill_(still, 0.0), before

    # ---- Newton's method

    def newton_step(self, u: Tensor, gradient: Tensor, held: Tensor) -> Tensor:
        """Solve (Hessian / p) d = -gradient on the coordinates not held, by preconditioned conjugate gradients."""
        x = _by_index(u).exp_()
        total, terms = self.total(x)
        scales = _by_unit(x) / total
        share = terms * scales
        diagonal, slope = share.sum(0), share[0] - share[1]

        inverse = torch.where(held, 0.0, 1 / (diagonal - slope**2).clamp(min=1e-300))
        step, residual = torch.zeros_like(u), torch.where(held, 0.0, -gradient)
        direction = scaled = inverse * residual
        norm = float(residual @ scaled)
        goal = norm * min(1e-2, max(norm, 1e-300) ** 0.25) ** 2
        for _ in range(2000):
            image, weighted = diagonal * direction - slope * (slope @ direction), _by_index(direction) * x
            for layer in self.layers:
                for side in layer.sides:
                    at = side.positions + layer.units.start
                    image.index_add_(0, at, side.sums(weighted) * scales[side.row][at], alpha=1 - 2 * side.row)
            image = torch.where(held, 0.0, image)
            curvature = float(direction @ image)
            if curvature <= 0:
                return step if bool(step.any()) else direction
            step, residual = step + norm / curvature * direction, residual - norm / curvature * image
            scaled = inverse * residual
            norm, last = float(residual @ scaled), norm
            if norm <= goal:
                break
            direction = scaled + norm / last * direction
        return step


def _rows(m: Tensor, others: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
    """The rows of a block at a mask, and the numbers at their other ends."""
    whole = bool(at.all())
    if len(m) == 1:
        return (m[0] if whole else m[0, at[0]]), others[0]
    return (m, others) if whole else (m[at][:, None], others[at.nonzero()[:, 0]])


def _reduce(scales: ParamScales | None, t: Tensor) -> _Block:
    """Sums of a parameter's entries in float64 on the CPU, and the numbers of the units at the ends of their sums.

    The sums are shaped (batch, rows, columns) and the ends (batch, rows) and (batch, columns), where axes along which
    both ends vary are the batch.
    """
    row, col = torch.zeros(2, dtype=torch.int32) if scales is None else (-scales.row, scales.col)
    ends = [with_axes(compress(end), t.ndim) for end in (row, col)]
    along = [(ends[0].shape[i] > 1) + 2 * (ends[1].shape[i] > 1) for i in range(t.ndim)]
    axes = sorted(range(t.ndim), key=lambda i: (3, 1, 2, 0)[along[i]])  # of both ends, of rows, of columns, of none
    batch = math.prod(n for n, ends_there in zip(t.shape, along, strict=True) if ends_there == 3)
    rows, cols = (end.permute(axes).reshape(batch, -1) for end in ends)
    m = t.permute(axes).reshape(batch, rows.shape[1], cols.shape[1], -1)
    m = m[..., 0].to(torch.float64, copy=True) if m.shape[-1] == 1 else m.sum(-1, dtype=torch.float64)
    if batch == 1 and len({*cols[0, :2].tolist()}) < min(2, cols.shape[1]):
        values, counts = cols[0].unique_consecutive(return_counts=True)
        if bool((counts == counts[0]).all()):  # channels spread over positions, as by a flatten
            m, cols = m.reshape(1, rows.shape[1], len(values), -1).sum(-1), values[None]
    return m.cpu(), rows, cols


def _by_index(u: Tensor) -> Tensor:
    """Log-scales of the units as those of factors by index."""
    return torch.cat((u.new_zeros(1), u, -u))


def _by_unit(x: Tensor) -> Tensor:
    """What is given by index for the units and their inverses, shape (2, H)."""
    return x[1:].view(2, -1)


def _distinct(x: Tensor) -> list[int]:
    low, high = (int(end) for end in x.aminmax())
    return [low] if low == high else x.unique().tolist()


def _minimize(problem: Problem, options: SolverOptions) -> Solution:
    u, bound, units = torch.zeros(problem.units, dtype=torch.float64), options.bound, problem.units
    if not units or not problem.size or (problem.start == -math.inf and not problem.linear):
        return Solution(u, (0.0,), (), 0.0, Result.NOTHING, tuple(range(units)), problem.size)
    values, updates, result = [problem.size * problem.start], list[float](), Result.SWEEPS
    if values[0] == -math.inf:
        raise SolveError(
            "expected a path from an input or a bias to an output, got none: diag(G) is zero. Give a floating-point "
            "example input that is not empty, and weights that are not all zero."
        )
    for _ in range(min(2, options.sweeps) if options.method == "optimum" else options.sweeps):
        new, value = problem.sweep(u, bound, values[-1])
        updates.append(float((new - u).abs().mean()) / 2)
        values.append(value)
        u = new
    values[-1], gradient = problem.gradient(u)  # recomputed: updates accumulate rounding
    if options.method == "optimum":
        u, gradient, result = _newton(problem, u, gradient, bound, values, updates)
    if not bool(torch.isfinite(u).all()) or not math.isfinite(values[-1]):
        raise SolveError("expected finite log-scales, got NaN or infinity: diag(G) spans more than float64 does.")
    clamped = int((u.abs() >= bound * _AT_BOUND).sum())
    if options.damping < 1.0:
        u = options.damping * u
        value, gradient = problem.gradient(u)
        values.append(value)
    return Solution(
        log_scales=u / 2,
        objective=tuple(values),
        mean_update=tuple(updates),
        residual=float(torch.where(_held(u, gradient, bound), 0.0, gradient).abs().amax()),
        result=result,
        dead=tuple(problem.dead.nonzero()[:, 0].tolist()),
        size=problem.size,
        clamped=clamped,
    )


def _newton(
    problem: Problem, u: Tensor, gradient: Tensor, bound: float, values: list[float], updates: list[float]
) -> tuple[Tensor, Tensor, Result]:
    """Newton's method with a line search, until max|grad F| / p <= 1e-10; units pressed against the bound are held.

    Returns the log-scales, the gradient there and how it ended; adds to the values of F and to the updates.
    """
    size = problem.size
    for _ in range(200):
        held = _held(u, gradient, bound) | problem.still
        free, value = torch.where(held, 0.0, gradient), values[-1] / size
        if float(free.abs().amax()) <= _TOLERANCE:
            return u, gradient, Result.OPTIMUM
        step = problem.newton_step(u, free, held)
        step *= min(1.0, 4.0 / max(float(step.abs().amax()), 1e-300))
        for halving in range(60):
            new = (u + 0.5**halving * step).clamp(-bound, bound)
            total, slope = problem.gradient(new)
            rise = total / size - value
            smaller = float(torch.where(_held(new, slope, bound), 0.0, slope).abs().amax()) < float(free.abs().amax())
            if rise <= 1e-4 * float(gradient @ (new - u)) or (smaller and rise <= 1e-14 * max(1.0, abs(value))):
                break  # rounding may hide the change of F
        else:
            break
        updates.append(float((new - u).abs().mean()) / 2)
        values.append(total)
        u, gradient = new, slope
    return u, gradient, Result.STALLED


def _held(u: Tensor, gradient: Tensor, bound: float) -> Tensor:
    edge = bound * _AT_BOUND
    return (u >= edge) & (gradient < 0) | (u <= -edge) & (gradient > 0)
