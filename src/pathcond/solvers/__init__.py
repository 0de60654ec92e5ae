"""Log-scales for each of the three objectives: diag(G) close to a constant, small norms, equal ranges.

The sum of squared weights is the same problem as F without its linear term, so the minimisers of F serve both. Equal
ranges have an iteration of their own, cross-layer equalisation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, replace
from enum import Enum
from importlib.util import find_spec
from typing import Literal

import torch
from torch import Tensor

from pathcond.checks import PathCondError, SolveError, check_choice
from pathcond.diag_g import DiagG
from pathcond.graph import ScaleGraph
from pathcond.isolation import on_cpu
from pathcond.objective import BlockLayout, Layer, Layout, Objective, Side, build_objective, layout_of
from pathcond.solvers.descent import AT_BOUND, CoordinateDescent, minimize

__all__ = ["Result", "Solution", "SolverOptions", "balance_norms", "equalize_ranges", "solve"]

_SMALL = 1 << 22  # elements of all blocks up to which the CPU is faster than a GPU without the kernels
_MOST_SWEEPS = 1000  # of an iteration to a fixed point


class Result(Enum):
    """How a solve ended; the value is the message."""

    SWEEPS = "all sweeps asked for were made"
    TOLERANCE = "the updates of the last sweep were below the tolerance"
    OPTIMUM = "the gradient is zero to the tolerance"
    STALLED = "no further decrease was possible before the gradient met the tolerance"
    LIMIT = f"{_MOST_SWEEPS} sweeps were made before the updates were below the tolerance"
    NOTHING = "there is no unit to rescale"


@dataclass(frozen=True)
class Solution:
    """Log-scales and how they were found.

    Attributes:
        u: log-scales, float64, shape (units,) on the CPU; unit h is multiplied by ``exp(u[h] / 2)``.
        objective: F before, then after each sweep (or Newton step); with damping, then F at the damped ``u``.
        mean_update: mean absolute change of ``u`` in each sweep (or Newton step).
        residual: largest entry of the gradient of F at ``u``, over p; zero at the optimum.
        result: how the solve ended.
        dead: units (indices into ``u``) left alone because nothing enters or nothing leaves them.
        size: p, the number of parameters with an entry in diag(G).
        clamped: number of units whose ``|log lambda|`` is, before damping, at the bound ``clamp``; 0 without one.
    """

    u: Tensor
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
    tol: float = 0.0
    clamp: float | None = None
    damping: float = 1.0

    def __post_init__(self) -> None:
        check_choice("method", self.method, ("sweeps", "optimum"))
        if isinstance(self.sweeps, bool) or not isinstance(self.sweeps, int) or self.sweeps < 0:
            raise PathCondError(f"expected sweeps to be an integer >= 0, got {self.sweeps!r}.")
        if not _is_number(self.tol) or not self.tol >= 0:
            raise PathCondError(f"expected tol >= 0, got {self.tol!r}.")
        if self.clamp is not None and not (_is_number(self.clamp) and self.clamp > 0):
            raise PathCondError(f"expected clamp to be positive or None, got {self.clamp!r}.")
        if not _is_number(self.damping) or not 0 < self.damping <= 1:
            raise PathCondError(f"expected damping to be a number in (0, 1], got {self.damping!r}.")

    @property
    def bound(self) -> float | None:
        """Bound on every ``|u|``, which is twice that on ``|log lambda|``."""
        return None if self.clamp is None else 2.0 * self.clamp


@on_cpu
def solve(
    graph: ScaleGraph,
    g: Mapping[str, Tensor],
    *,
    method: Literal["sweeps", "optimum"] = "sweeps",
    sweeps: int = 10,
    tol: float = 0.0,
    clamp: float | None = None,
    damping: float = 1.0,
    consume: bool = False,
) -> Solution:
    """Find the log-scales that bring diag(G) closest to a constant.

    By default there is neither bound nor damping, as in the paper; :func:`pathcond.rescale_` has both.

    Args:
        graph: the units, from :func:`pathcond.extract_graph`.
        g: diag(G) by parameter name, from :func:`pathcond.compute_diag_g`: the entries themselves in a plain mapping,
            ``g[name] * exp(g.log_scale[name])`` in a :class:`pathcond.DiagG`. Parameters left out do not count
            in p.
        method: ``sweeps``: the paper's alternating minimisation. ``optimum``: the minimiser of F, by Newton's method.
        sweeps: number of sweeps over all units, for ``method="sweeps"``.
        tol: stop after a sweep whose absolute changes of ``u`` sum to less than this; for ``optimum`` the residual to
            reach, 1e-10 if 0.
        clamp: bound on every ``|log lambda| = |u| / 2`` before damping; None for none. Units at the bound are counted
            in :attr:`Solution.clamped`.
        damping: factor in (0, 1] by which the log-scales are multiplied at the end, so that
            ``|log lambda| <= damping * clamp``. F is convex: at least this fraction of its decrease remains.
        consume: take ownership of ``g``, a dict: its entries are removed as they are used, to save memory, and their
            values are not checked; those of :func:`pathcond.compute_diag_g` need no check.

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
        >>> round(pathcond.solve(graph, pathcond.compute_diag_g(model, x)).u.item(), 4)
        -3.3304
    """
    options = SolverOptions(method, sweeps, tol, clamp, damping)
    if consume and not isinstance(g, MutableMapping):
        raise PathCondError(f"expected g to be a dict with consume=True, got {type(g).__name__}.")
    _check_shapes(graph, g)
    if not consume:
        _check_values(g)
    logs = g.log_scale if isinstance(g, DiagG) else {}
    return _minimize(layout_of(graph, tuple(g)), g, logs, options, consume)


def balance_norms(graph: ScaleGraph, weights: Mapping[str, Tensor], options: SolverOptions) -> Solution:
    """Find the log-scales for which the sum of squared weights is least.

    That sum is ``sum_i exp(-(Bu)_i) w_i^2``. Its logarithm is F / p at -u, without F's linear term and with ``w_i^2``
    in place of diag(G). So it is convex, and the solvers of F find its minimum.

    Args:
        graph: the units.
        weights: the finite weights that count, by parameter name.
        options: as in :func:`solve`.

    Returns:
        The :class:`Solution`; ``objective`` is the sum of squares, ``residual`` the gradient of its logarithm.
    """
    tops = {name: float(w.abs().amax()) for name, w in weights.items() if w.numel()}
    squares = {name: (weights[name].double() / (top or 1.0)).square() for name, top in tops.items()}
    logs = {name: 2.0 * math.log(top) if top else 0.0 for name, top in tops.items()}
    if not any(tops.values()):
        return _nothing(graph.units)
    found = _minimize(layout_of(graph, tuple(squares), linear=False), squares, logs, options, consume=True)
    sums = (torch.tensor(found.objective, dtype=torch.float64) / found.size).exp()  # infinite beyond float64
    return replace(found, u=-found.u, objective=tuple(sums.tolist()))


def equalize_ranges(graph: ScaleGraph, weights: Mapping[str, Tensor], options: SolverOptions) -> Solution:
    """Find log-scales for which the largest magnitudes of the weights that enter and that leave each unit are equal.

    Args:
        graph: the units.
        weights: the finite weights that count, by parameter name.
        options: as in :func:`solve`; but ``optimum`` makes sweeps until the changes of ``u`` in one sum to less than
            ``tol``, 1e-10 if 0.

    Returns:
        The :class:`Solution`; ``objective`` is the largest ``|log(range entering / range leaving)|`` over all units,
        ``residual`` the same without the units that the bound holds.
    """
    if not graph.units or not any(bool(w.any()) for w in weights.values()):
        return _nothing(graph.units)
    layout = layout_of(graph, tuple(weights), linear=False)
    ranges = Ranges(layout, weights, options.clamp)
    history = _History([float(ranges.imbalance().abs().amax())], [])
    most, stop, result = options.sweeps, options.tol, Result.SWEEPS
    if options.method == "optimum":
        most, stop, result = _MOST_SWEEPS, options.tol or 1e-10, Result.LIMIT
    for _ in range(most):
        change = 2.0 * ranges.sweep()
        history.add(float(ranges.imbalance().abs().amax()), change / graph.units)
        if change < stop:
            result = Result.TOLERANCE
            break
    pressed, clamped = ranges.at_bound()
    if options.damping < 1.0:
        ranges.damp_(options.damping)
        history.values.append(float(ranges.imbalance().abs().amax()))
        pressed, _ = ranges.at_bound()
    return Solution(
        u=2.0 * ranges.log_scales.cpu(),
        objective=tuple(history.values),
        mean_update=tuple(history.updates),
        residual=float(torch.where(pressed, 0.0, ranges.imbalance()).abs().amax()),
        result=result,
        dead=tuple(ranges.dead.nonzero()[:, 0].tolist()),
        size=sum(w.numel() for w in weights.values()),
        clamped=clamped,
    )


def _nothing(units: int) -> Solution:
    """No weight counts, so every unit stays."""
    return Solution(torch.zeros(units, dtype=torch.float64), (0.0,), (), 0.0, Result.NOTHING, tuple(range(units)), 0)


def _minimize(
    layout: Layout,
    g: Mapping[str, Tensor],
    logs: Mapping[str, float],
    options: SolverOptions,
    consume: bool,
) -> Solution:
    on_gpu = _gpu_supports(layout, g)
    device = torch.device("cpu")
    if g and (on_gpu or layout.size > _SMALL):
        device = next(iter(g.values())).device
    objective = build_objective(layout, g, logs, device=device, consume=consume)
    if not objective.size and not objective.units:
        return _nothing(0)
    if on_gpu and options.method == "sweeps" and options.tol == 0.0:
        solution = _solve_on_gpu(objective, options.sweeps)
        if solution is not None and (options.bound is None or float(solution.u.abs().amax()) < options.bound):
            return _damped(solution, objective, options.damping)
    return _damped(_solve(objective, options), objective, options.damping)


def _damped(solution: Solution, objective: Objective, damping: float) -> Solution:
    """The solution with its log-scales multiplied by ``damping``; with 1, or without units, as it is."""
    if damping == 1.0 or solution.result is Result.NOTHING:
        return solution
    u = damping * solution.u
    at = torch.cat((u.new_zeros(1), u)).to(objective.device)
    return replace(
        solution,
        u=u,
        objective=(*solution.objective, objective.value(at)),
        residual=float(objective.gradient(at).abs().amax()),
    )


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _check_shapes(graph: ScaleGraph, g: Mapping[str, Tensor]) -> None:
    for name, t in g.items():
        if name not in graph.shapes:
            raise PathCondError(
                f"expected entries of diag(G) for parameters of the graph's model, got one for '{name}'."
            )
        if tuple(t.shape) != graph.shapes[name]:
            raise PathCondError(f"expected shape {graph.shapes[name]} for '{name}', got {tuple(t.shape)}.")


def _check_values(g: Mapping[str, Tensor]) -> None:
    for name, t in g.items():
        low, high = (float(x) for x in torch.aminmax(t)) if t.numel() else (0.0, 0.0)
        if not (low >= 0 and math.isfinite(high)):
            raise SolveError(f"expected finite entries of diag(G) >= 0, got {low} to {high} for parameter '{name}'.")


def _gpu_supports(layout: Layout, g: Mapping[str, Tensor]) -> bool:
    """Whether the GPU kernels can run the sweeps; Triton is imported only if the entries are on a GPU."""
    if not layout.units or not all(t.is_cuda for t in g.values()) or find_spec("triton") is None:
        return False
    from pathcond.solvers import gpu

    return gpu.supports(layout)


def _solve_on_gpu(objective: Objective, sweeps: int) -> Solution | None:
    from pathcond.solvers import gpu

    found = gpu.sweep(objective, sweeps)
    if found is None:
        return None
    updates = tuple(change / objective.units for change in found.changes)
    return Solution(found.u[1:], found.values, updates, found.residual, Result.SWEEPS, (), objective.size)


@dataclass(frozen=True)
class _History:
    """F before and after each step, and the mean absolute change of u in each."""

    values: list[float]
    updates: list[float]

    def add(self, value: float, update: float) -> None:
        self.values.append(value)
        self.updates.append(update)


def _solve(objective: Objective, options: SolverOptions) -> Solution:
    bound, tol, optimum = options.bound, options.tol, options.method == "optimum"
    descent = CoordinateDescent(objective, bound)
    history = _History([objective.size * descent.log_sum if objective.size else 0.0], [])
    u, result = descent.u, Result.NOTHING
    if objective.units and objective.size:
        count, stop = (min(2, options.sweeps), 0.0) if optimum else (options.sweeps, tol)
        u, result = _run_sweeps(descent, history, count, stop)
        if optimum:
            u, met = minimize(objective, u, tol or 1e-10, bound, history.add)
            result = Result.OPTIMUM if met else Result.STALLED
    if history.values[0] == -math.inf:
        raise SolveError(
            "expected a path from an input or a bias to an output, got none: diag(G) is zero. Give a floating-point "
            "example input that is not empty, and weights that are not all zero."
        )
    if not bool(torch.isfinite(u).all()) or not math.isfinite(history.values[-1]):
        raise SolveError(
            "expected finite log-scales, got NaN or infinity: the entries of diag(G) span more than float64 does."
        )
    grad, clamped = objective.gradient(u), 0
    if bound is not None:
        upper, lower = u >= bound * AT_BOUND, u <= -bound * AT_BOUND
        grad = torch.where(upper & (grad < 0) | lower & (grad > 0), 0.0, grad)
        clamped = int((upper | lower).sum())
    return Solution(
        u=u[1:].cpu(),
        objective=tuple(history.values),
        mean_update=tuple(history.updates),
        residual=float(grad.abs().amax()),
        result=result,
        dead=tuple(objective.dead[1:].nonzero()[:, 0].tolist()),
        size=objective.size,
        clamped=clamped,
    )


def _run_sweeps(descent: CoordinateDescent, history: _History, sweeps: int, tol: float) -> tuple[Tensor, Result]:
    objective, result = descent.objective, Result.SWEEPS
    for _ in range(sweeps):
        change = descent.sweep()
        history.add(objective.size * descent.log_sum + float(objective.balance @ descent.u), change / objective.units)
        if change < tol:
            result = Result.TOLERANCE
            break
    if sweeps:
        history.values[-1] = objective.value(descent.u)  # recomputed: updates accumulate rounding
    return descent.u, result


# ---- cross-layer equalisation (Nagel et al., ICCV 2019)
#
# The range that enters a unit is the largest magnitude of the weights that enter it. With a and b the logarithms of the
# ranges that enter and leave unit h, log lambda_h changes by (b - a) / 2, after which both are equal. All numbers are
# logarithms. A weight with a power k of a unit's scale (see pathcond.objective) changes by k times as much.


@dataclass(frozen=True)
class _Edge:
    """Logarithms of the weights of one block on one side of a layer; see :class:`pathcond.objective.Side`."""

    m: Tensor
    others: slice | Tensor | None
    positions: Tensor | None
    columns: bool

    def into_(self, found: Tensor, v: Tensor) -> None:
        """Raise ``found``, one entry per unit, to the largest weight, at the log-scales ``v`` of the other ends."""
        m = self.m
        if self.others is not None:
            m = m + v[self.others] if self.columns else m - v[self.others]
        largest = m.amax(1) if m.ndim == 2 else m
        if self.positions is None:
            torch.maximum(found, largest, out=found)
        else:
            found.scatter_reduce_(0, self.positions, largest, "amax")


class Ranges:
    """Log-scales of the units of a layout, and the sweeps that change them.

    Args:
        layout: the layout for the names of the weights.
        weights: the weights by parameter name, finite.
        clamp: bound on every ``|log lambda|``; None for none.

    Attributes:
        dead: units, shape (H,), that no weight but zero enters, or leaves; they keep their scale.
    """

    def __init__(self, layout: Layout, weights: Mapping[str, Tensor], clamp: float | None) -> None:
        self._layout = layout
        self._limit = math.inf if clamp is None else clamp
        device = next(iter(weights.values())).device
        blocks: list[Tensor] = []
        inner: list[Tensor] = []
        for name, b in layout.blocks.items():
            m = _largest(weights[name].to(device), b)
            if b.unscaled is not None:
                m[tuple(index.to(device) for index in b.unscaled)] = -math.inf
            if b.inner is not None:
                where = tuple(index.to(device) for index in b.inner)
                inner.append(m[where])
                m[where] = -math.inf
            blocks.append(m)
        self._blocks = [*blocks, *inner]
        self._sides = [
            [(p, self._edges(sides)) for p, sides in ((-1, layer.entering), (1, layer.leaving), *layer.powers)]
            for layer in layout.layers
        ]
        self._v = torch.zeros(layout.nodes, dtype=torch.float64, device=device)
        self.dead = ~torch.cat([torch.isfinite(self._change(i)) for i in range(len(layout.layers))])

    @property
    def log_scales(self) -> Tensor:
        """Logarithms of lambda, shape (H,)."""
        return self._v[1 : self._layout.units + 1]

    def sweep(self) -> float:
        """Update every unit once, layer by layer; returns the sum of the absolute changes of the log-scales."""
        before = self.log_scales.clone()
        for i, layer in enumerate(self._layout.layers):
            own = self._own(layer)
            alive = ~self.dead[layer.lo - 1 : layer.hi - 1]
            new = torch.where(alive, self._change(i), own).clamp(-self._limit, self._limit)
            for span in self._layout.spans(layer.lo, layer.hi):
                at = new if span.positions is None else new[span.positions.to(new.device)]
                self._v[span.first : span.stop] = span.power * at
        return float((self.log_scales - before).abs().sum())

    def damp_(self, factor: float) -> None:
        """Multiply all log-scales by a factor."""
        self._v *= factor

    def imbalance(self) -> Tensor:
        """Log of the range that enters over the range that leaves each unit, shape (H,); 0 for dead units."""
        found = []
        for i, layer in enumerate(self._layout.layers):
            own = self._own(layer)
            entering, leaving = ([log + slope * own for slope, log in lines] for lines in self._ranges(i))
            found.append(_largest_of(entering) - _largest_of(leaving))
        return torch.where(self.dead, 0.0, torch.cat(found))

    def at_bound(self) -> tuple[Tensor, int]:
        """Units, shape (H,), that the bound keeps from equal ranges; and the number of units at the bound."""
        v, imbalance = self.log_scales, self.imbalance()
        upper, lower = v >= self._limit * AT_BOUND, v <= -self._limit * AT_BOUND
        return upper & (imbalance < 0) | lower & (imbalance > 0), int((upper | lower).sum())

    def _own(self, layer: Layer) -> Tensor:
        return self._v[layer.lo : layer.hi]

    def _change(self, i: int) -> Tensor:
        """The log-scales that equalise the ranges of a layer's units; not finite for dead ones.

        What enters is the largest of lines ``a + s v`` that rise in the log-scale v, what leaves that of lines
        ``b - t v`` that fall. They meet at the least v where a line that enters is above all that leave.
        """
        entering, leaving = self._ranges(i)
        found = torch.full_like(entering[0][1], math.inf)
        for s, a in entering:
            meets = _largest_of([(b - a) / (s - t) for t, b in leaving])
            found = torch.minimum(found, torch.where(a > -math.inf, meets, math.inf))
        return found

    def _ranges(self, i: int) -> tuple[list[tuple[int, Tensor]], list[tuple[int, Tensor]]]:
        """What enters, and what leaves, a layer's units, without their own scales: slopes and logarithms."""
        layer = self._layout.layers[i]
        entering: list[tuple[int, Tensor]] = []
        leaving: list[tuple[int, Tensor]] = []
        for power, edges in self._sides[i]:
            found = self._v.new_full((layer.hi - layer.lo,), -math.inf)
            for edge in edges:
                edge.into_(found, self._v)
            (entering if power < 0 else leaving).append((-power, found))
        return entering, leaving

    def _edges(self, sides: tuple[Side, ...]) -> list[_Edge]:
        found = []
        for side in sides:
            m = self._blocks[side.block]
            index, others = (x.to(m.device) if isinstance(x, Tensor) else x for x in (side.index, side.others))
            positions = None if side.positions is None else side.positions.to(m.device)
            source = m.T if side.columns and m.ndim == 2 else m
            found.append(_Edge(source[index], others, positions, side.columns))
        return found


def _largest_of(tensors: list[Tensor]) -> Tensor:
    """The largest of some tensors, element by element."""
    first, *rest = tensors
    for other in rest:
        first = torch.maximum(first, other)
    return first


def _largest(w: Tensor, b: BlockLayout) -> Tensor:
    """Logarithm of the largest magnitude of a parameter's elements between the same units, arranged as a block."""
    m = w.abs().permute(*b.order, *b.summed).reshape(*b.shape, -1).amax(-1).double()
    if b.merge_cols is not None:
        index = b.merge_cols.to(m.device).expand(m.shape)
        m = m.new_zeros(len(m), len(b.cols)).scatter_reduce_(1, index, m, "amax")
    if b.merge_rows is not None:
        index = b.merge_rows.to(m.device)[:, None].expand(m.shape)
        m = m.new_zeros(len(b.rows), m.shape[1]).scatter_reduce_(0, index, m, "amax")
    return m.log()
