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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import accumulate, pairwise
from typing import Literal

import torch
from torch import Tensor

from pathcond.checks import PathCondError, SolveError, check_choice
from pathcond.diag_g import DiagG
from pathcond.graph import ParamScales, ScaleGraph
from pathcond.isolation import on_cpu
from pathcond.rules.base import compress

_FEW = 1 << 25  # sums up to which a solve on the CPU is faster than one on a GPU
_TOLERANCE = 1e-10  # of the largest entry of the gradient of F / p at the optimum
_AT_BOUND = 1.0 - 1e-12  # a log-scale above this fraction of the bound counts as at the bound


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
        for name, fits, wanted in (
            ("sweeps", isinstance(self.sweeps, int) and self.sweeps >= 0, "an integer >= 0"),
            ("clamp", self.clamp is None or (_is_number(self.clamp) and self.clamp > 0), "positive or None"),
            ("damping", _is_number(self.damping) and 0 < self.damping <= 1, "a number in (0, 1]"),
        ):
            if not fits or isinstance(getattr(self, name), bool):
                raise PathCondError(f"expected {name} to be {wanted}, got {getattr(self, name)!r}.")

    @property
    def bound(self) -> float:
        """Bound on every ``|u|``, which is twice that on ``|log lambda|``."""
        return math.inf if self.clamp is None else 2.0 * self.clamp


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


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
        damping: factor in (0, 1] by which the log-scales are multiplied at the end, so that
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
    if fixed is not None and (tuple(fixed.shape) != (graph.units,) or fixed.dtype != torch.bool):
        raise PathCondError(f"expected fixed to be a mask of shape ({graph.units},), got {tuple(fixed.shape)}.")
    return balance_paths(graph, DiagG(g, getattr(g, "log_scale", None)), options, fixed)


def balance_paths(graph: ScaleGraph, g: DiagG, options: SolverOptions, fixed: Tensor | None = None) -> Solution:
    """As :func:`solve`, for entries that need no check; they are removed as they are used."""
    return _minimize(Problem(graph, ((name, g.pop(name), g.log_scale[name]) for name in list(g)), fixed), options)


def balance_norms(
    graph: ScaleGraph, weights: Mapping[str, Tensor], options: SolverOptions, fixed: Tensor | None = None
) -> Solution:
    """Find the log-scales for which the sum of squared weights, ``objective``, is least."""
    tops = {name: float(w.abs().amax()) or 1.0 for name, w in weights.items() if w.numel()}
    squares = ((name, (weights[name].double() / top).square_(), 2 * math.log(top)) for name, top in tops.items())
    found = _minimize(Problem(graph, squares, fixed, linear=False), options)
    sums = (torch.tensor(found.objective, dtype=torch.float64) / max(1, found.size)).exp()  # infinite beyond float64
    return replace(
        found,
        log_scales=-found.log_scales,
        objective=(0.0,) if found.result is Result.NOTHING else tuple(sums.tolist()),
    )


# ---- the problem


@dataclass(frozen=True)
class Block:
    """Sums of g between units: element (b, i, j) of ``m * exp(log)`` is multiplied by the scales of its two ends.

    The ends are numbers of units, shaped (b, i) and (b, j): n where an element leaves unit n, -n where it enters it.
    """

    m: Tensor
    log: float
    ends: Sequence[Tensor]


@dataclass(frozen=True)
class Side:
    """One end of a block in a layer: row i of ``m`` belongs to unit ``positions[i]``, or to unit i if that is None.

    ``others`` are the numbers at the other end: one vector for all rows, or one for each matrix of a batch.
    """

    power: int
    m: Tensor
    log: float
    others: Tensor
    positions: Tensor | None

    def logs(self, v: Tensor) -> Tensor:
        """Logarithms of the sums of the rows, for log-scales by number."""
        x = v.index_select(0, self.others) if self.others.ndim == 1 else v[self.others]
        top = float(x.amax())
        factors = (x - top).exp_().to(self.m.device)
        sums = self.m @ factors if factors.ndim == 1 else torch.bmm(self.m, factors[:, :, None]).flatten()
        return sums.cpu().log_() + (top + self.log)


@dataclass
class Layer:
    """Units from ``lo`` to before ``hi``, which are updated together: no element has two of them as its ends.

    ``own``: by power, logarithms of the elements with one end. ``moving``: positions of the units that do not keep
    their scale; None for all. The rest are coefficients of the quadratics; see :meth:`Problem.sweep`.
    """

    lo: int
    hi: int
    own: Mapping[int, Tensor]
    sides: list[Side] = field(default_factory=list)
    moving: Tensor | None = None
    entered: Tensor = field(default_factory=lambda: torch.zeros(0))
    ratio: Tensor = field(default_factory=lambda: torch.zeros(0))
    factors: Sequence[list[float]] = ()

    def select(self, x: Tensor) -> Tensor:
        """The entries of the units that move."""
        return x if self.moving is None else x.index_select(0, self.moving)


class Problem:
    """The objective of u, shape (H,), for one model, reduced to sums of g between units.

    The sums are made on the device of g. They are moved to the CPU together, where u is, unless they are very many.

    Args:
        graph: the units.
        g: names, tensors and logarithms: the entries of a parameter are ``tensor * exp(logarithm)``.
        fixed: mask of units that keep their scale.
        linear: whether F has its linear term; A is 0 for every unit without.
    """

    def __init__(
        self,
        graph: ScaleGraph,
        g: Iterable[tuple[str, Tensor, float]],
        fixed: Tensor | None = None,
        *,
        linear: bool = True,
    ) -> None:
        self.graph, self.linear, self.size, self.blocks = graph, linear, 0, list[Block]()
        parts: list[tuple[list[Tensor], int, float]] = []
        sums: list[Tensor] = []
        for name, t, log in g:
            ends, m = _reduce(graph.params.get(name), t)
            parts.append((ends, t.numel(), log))
            sums.append(m)
            self.size += t.numel()
            del t
        balance = torch.zeros(graph.units + 1, dtype=torch.float64)
        alone = [(torch.zeros(0, dtype=torch.int64), balance[:0])]  # numbers and logarithms of elements with one end
        for (ends, count, log), m in zip(parts, _on_cpu_if_few(sums), strict=True):
            for end in ends if linear else ():
                balance.index_add_(0, end.abs().flatten(), end.sign().flatten().double() * (-count / end.numel()))
            if len(ends) == 2:
                alone += self._add_block(ends, m, log)
            else:
                alone.append((ends[0] if ends else torch.zeros(1, dtype=torch.int64), m.log().cpu() + log))
        self.balance = balance[1:]
        numbers, logs = map(torch.cat, zip(*alone, strict=True))
        self.own = _gather(numbers % (2 * graph.units + 1), logs, 2 * graph.units + 1)  # by number; 0: no scale
        self._add_layers()
        at_zero, a = torch.zeros_like(self.own), self.balance
        self.start = float(self.log_sum(at_zero))
        present = [torch.minimum(*self.terms(layer, at_zero)) > -math.inf for layer in self.layers]
        # F has no minimum along the log-scale of a dead unit.
        self.dead = ~torch.cat([a[:0].bool(), *present]) | (a.abs() >= self.size)
        self.still = self.dead if fixed is None else self.dead | fixed
        for layer in self.layers:
            here = slice(layer.lo, layer.hi)
            layer.moving = (~self.still[here]).nonzero()[:, 0] if bool(self.still[here].any()) else None
            a = layer.select(self.balance[here])
            rest, ratio = self.size - a.abs(), (self.size + a.abs()) / (self.size - a.abs())
            layer.entered, layer.ratio = a > 0, ratio.log()
            layer.factors = (a.abs() / (2 * rest)).tolist(), (1 / ratio).tolist()

    def _add_block(self, ends: list[Tensor], m: Tensor, log: float) -> list[tuple[Tensor, Tensor]]:
        """Add a block; returns numbers and logarithms of elements with one unit at both ends, whose scales cancel."""
        alone = []
        if _overlap(ends[0], -ends[1]) and bool(torch.isin(ends[0], -ends[1]).any()):
            same = ((ends[0][:, :, None] == -ends[1][:, None, :]) & (ends[0][:, :, None] != 0)).to(m.device)
            logs = m[same].log().cpu() + log
            alone.append((torch.zeros(len(logs), dtype=torch.int64), logs))
            m[same] = 0.0
        top = float(m.amax())
        if top > 0:
            m, log = (m, log) if 1e-100 < top < 1e100 else (m.div_(top), log + math.log(top))
            self.blocks.append(Block(m, log, ends))
        return alone

    def _add_layers(self) -> None:
        """Set the layers; one whose units a parameter connects with each other becomes a layer for each unit."""
        sizes = list(self.graph.groups)
        layer_of = _layer_of(sizes)
        owners = [[layer_of[end.abs()] for end in block.ends] for block in self.blocks]
        coupled = {
            n
            for first, second in owners
            for n in {*_distinct(first)} & {*_distinct(second)} - {-1}
            if bool(((first == n).any(1) & (second == n).any(1)).any())
        }
        if coupled:
            sizes = [part for n, size in enumerate(sizes) for part in ([1] * size if n in coupled else [size])]
            layer_of = _layer_of(sizes)
            owners = [[layer_of[end.abs()] for end in block.ends] for block in self.blocks]
        own = self.own[1:].view(2, -1)
        self.layers = [
            Layer(lo, hi, {1: own[0, lo:hi], -1: own[1].flip(0)[lo:hi]})
            for lo, hi in pairwise(accumulate(sizes, initial=0))
        ]
        for b, owner in zip(self.blocks, owners, strict=True):
            for end, m, others, of in zip(b.ends, (b.m, b.m.mT), b.ends[::-1], owner, strict=True):
                for n, k in [(n, k) for n in _distinct(of) if n >= 0 for k in _distinct(end.sign()) if k]:
                    at = (of == n) & (end.sign() == k)
                    if bool(at.any()):
                        self._add_side(self.layers[n], k, at, end, m, others % (2 * self.graph.units + 1), b.log)

    def _add_side(self, layer: Layer, k: int, at: Tensor, end: Tensor, m: Tensor, others: Tensor, log: float) -> None:
        """Add to a layer the elements of a block at some rows, given as a mask."""
        positions = end[at].abs() - (1 + layer.lo)
        aligned = torch.equal(positions, torch.arange(layer.hi - layer.lo))
        if bool(at.all()):
            m, others = (m[0], others[0]) if len(m) == 1 else (m, others)
        elif len(m) == 1:
            m, others = m[0, at[0].to(m.device)], others[0]
        else:
            m, others = m[at.to(m.device)][:, None], others[at.nonzero()[:, 0]]
        layer.sides.append(Side(k, m, log, others, None if aligned else positions))

    # ---- sums

    def terms(self, layer: Layer, v: Tensor) -> list[Tensor]:
        """Logarithms of X_1 and X_-1 of a layer's units, without their own scales, for log-scales by number."""
        found = dict(layer.own)
        for side in layer.sides:
            logs, k = side.logs(v), side.power
            logs = logs if side.positions is None else _gather(side.positions, logs, layer.hi - layer.lo)
            found[k] = torch.logaddexp(found[k], logs)
        return [found[1], found[-1]]

    def log_sum(self, v: Tensor, without: Layer | None = None) -> Tensor:
        """Log of sum_i exp((Bu)_i) g_i for log-scales by number, without parameters that touch a layer's units."""
        if without is not None:
            v = v.clone()
            v[without.lo + 1 : without.hi + 1] = v[-without.hi : -without.lo or None] = -math.inf
        own = self.own + v
        logs = [torch.logsumexp(own[own.detach() > -math.inf], 0)]
        for b in self.blocks:
            ends = [v[end] for end in b.ends]
            tops = [float(x.detach().amax()) for x in ends]
            if min(tops) > -math.inf:
                x, y = ((x - top).exp().to(b.m.device) for x, top in zip(ends, tops, strict=True))
                total = (x * torch.bmm(b.m, y[:, :, None])[:, :, 0]).sum()
                logs += [total.log().cpu() + (b.log + sum(tops))] if float(total.detach()) > 0 else []
        return torch.logsumexp(torch.stack(logs), 0)

    def gradient(self, u: Tensor) -> tuple[float, Tensor]:
        """F, and its gradient over p, shape (H,); zero for units that keep their scale."""
        at = u.clone().requires_grad_()
        with torch.enable_grad():
            log_sum = self.log_sum(self.graph.by_number(at))
            (slope,) = torch.autograd.grad(log_sum, at)
        value = float(self.size * log_sum.detach() + self.balance @ u)
        return value, torch.where(self.still, 0.0, slope + self.balance / self.size)

    # ---- sweeps

    def sweep(self, u: Tensor, bound: float, value: float) -> tuple[Tensor, float]:
        """Set every unit in turn to its best log-scale; a layer's sums are computed at once.

        ``value`` is F at ``u``; returns the new log-scales, and F there.
        """
        log_sum, v = (value - float(self.balance @ u)) / self.size, self.graph.by_number(u)
        with torch.inference_mode():
            for layer in self.layers:
                new, total = self._update(layer, v, bound, log_sum)
                v[layer.lo + 1 : layer.hi + 1], v[-layer.hi : -layer.lo or None] = new, -new.flip(0)
                log_sum = log_sum + math.log(total) if total > 1e-280 else float(self.log_sum(v))
        new = v[1 : len(u) + 1].clone()
        if bound < math.inf:
            new = torch.where(new.abs() > bound * _AT_BOUND, new.sign() * bound, new)
        return new, self.size * log_sum + float(self.balance @ new)

    def _update(self, layer: Layer, v: Tensor, bound: float, log_sum: float) -> tuple[Tensor, float]:
        """New log-scales of a layer, and the new sum as a fraction of the old one, whose logarithm is given.

        Each is the root of a quadratic, solved for the one of ``X_1 exp(z)`` and ``X_-1 exp(-z)`` whose root does not
        cancel: the part that the loop finds for each unit. The other one is their product over it. A loop over numbers
        is faster than tensors here.
        """
        u = v[layer.lo + 1 : layer.hi + 1]
        leaves, enters = (x - log_sum for x in self.terms(layer, v))
        old = (leaves + u).exp_().add_((enters - u).exp_())
        later = [0.0, *layer.select(old).flip(0).cumsum(0).tolist()]
        before = 1.0 - later.pop()
        if before < 1e-3:
            others = 0.0 if layer.moving is None else float(old.index_fill(0, layer.moving, 0.0).sum())
            before = math.exp(float(self.log_sum(v, layer)) - log_sum) + others
        leaves, enters = layer.select(leaves), layer.select(enters)
        first = torch.where(layer.entered, enters, leaves)
        log_root = (leaves + enters).add_(layer.ratio).div_(2)
        limits = (x.exp().tolist() for x in (log_root, first - bound, first + bound))
        parts = list[float]()
        for after, root, low, high, factor, inverse in zip(reversed(later), *limits, *layer.factors, strict=True):
            rest = factor * (before + after)
            part = rest + math.hypot(rest, root)
            part = low if part < low else high if part > high else part
            before += part + root * inverse * (root / part) if part else 0.0
            parts.append(part)
        found = torch.tensor(parts, dtype=torch.float64).log_().maximum(log_root)  # small numbers may vanish
        new = found.sub_(first).clamp_(-bound, bound)
        new = torch.where(layer.entered, -new, new)
        return new if layer.moving is None else u.index_copy(0, layer.moving, new), before

    # ---- Newton's method

    def newton_step(self, u: Tensor, gradient: Tensor, held: Tensor) -> Tensor:
        """Solve (Hessian / p) d = -gradient on the coordinates not held, by preconditioned conjugate gradients."""
        at = u.clone().requires_grad_()
        with torch.enable_grad():
            log_sum = self.log_sum(self.graph.by_number(at))
            (slope,) = torch.autograd.grad(log_sum, at, create_graph=True)
        v, scales = self.graph.by_number(u), torch.stack((u, -u)) - log_sum.detach()
        terms = torch.cat([scales[:, :0], *(torch.stack(self.terms(layer, v)) for layer in self.layers)], 1)
        diagonal = (terms + scales).exp().sum(0)
        inverse = torch.where(held, 0.0, 1 / (diagonal - slope.detach() ** 2).clamp(min=1e-300))
        step, residual = torch.zeros_like(u), torch.where(held, 0.0, -gradient)
        direction = scaled = inverse * residual
        norm = float(residual @ scaled)
        goal = norm * min(1e-2, max(norm, 1e-300) ** 0.25) ** 2
        for _ in range(2000):
            (image,) = torch.autograd.grad(slope, at, direction, retain_graph=True)
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


def _reduce(scales: ParamScales | None, t: Tensor) -> tuple[list[Tensor], Tensor]:
    """Sums of a parameter's entries in float64, and the numbers of the units at their ends, where there are any.

    With two ends the sums are shaped (batch, rows, columns) and the ends (batch, rows) and (batch, columns), where axes
    along which both ends vary are the batch; else both are vectors.
    """
    ends = [end for end in (-scales.row, scales.col) if bool(end.any())] if scales is not None else []
    if len(ends) < 2:
        summed = [i for i in range(t.ndim) if not ends or ends[0].shape[i] == 1]
        m = t.sum(summed, dtype=torch.float64) if summed else t.to(torch.float64, copy=True)
        return [end.flatten() for end in ends], m.flatten()
    row, col = (compress(end) for end in ends)
    of_row, of_col = ([i for i, n in enumerate(x.shape) if n > 1] for x in (row, col))
    both = [i for i in of_row if i in of_col]
    r, c = [i for i in of_row if i not in both], [i for i in of_col if i not in both]
    rest = [i for i in range(t.ndim) if i not in {*both, *r, *c}]
    sizes = [math.prod(t.shape[i] for i in axes) for axes in (both, r, c)]
    rows = row.permute(*both, *r, *c, *rest).reshape(sizes[0], -1)
    cols = col.permute(*both, *c, *r, *rest).reshape(sizes[0], -1)
    if not both and len({*cols[0, :2].tolist()}) < min(2, cols.shape[1]):
        values, counts = cols[0].unique_consecutive(return_counts=True)
        if bool((counts == counts[0]).all()):  # channels spread over positions, as by a flatten
            sizes[2], cols = len(values), values[None]
    m = t.permute(*both, *r, *c, *rest).reshape(*sizes, -1)
    return [rows, cols], m[..., 0].to(torch.float64, copy=True) if m.shape[-1] == 1 else m.sum(-1, dtype=torch.float64)


def _on_cpu_if_few(tensors: list[Tensor]) -> list[Tensor]:
    """Tensors on the CPU, moved there together; as they are if they are many."""
    away = [t for t in tensors if t.device.type != "cpu"]
    if not away or sum(t.numel() for t in away) > _FEW:
        return tensors
    flat = torch.cat([t.reshape(-1).to(away[0].device) for t in away]).cpu()
    moved = iter(flat.split([t.numel() for t in away]))
    return [t if t.device.type == "cpu" else next(moved).view(t.shape) for t in tensors]


def _gather(positions: Tensor, logs: Tensor, size: int) -> Tensor:
    """Logarithms of sums at positions, which may repeat, as a vector of a size."""
    top = logs.new_full((size,), -math.inf).scatter_reduce_(0, positions.long(), logs, "amax").nan_to_num_(neginf=0.0)
    return torch.zeros_like(top).index_add_(0, positions, (logs - top[positions]).exp_()).log_() + top


def _layer_of(sizes: Sequence[int]) -> Tensor:
    """The layer of each unit number; -1 for number 0, which is no unit."""
    return torch.tensor([-1, *range(len(sizes))]).repeat_interleave(torch.tensor([1, *sizes]))


def _distinct(x: Tensor) -> list[int]:
    low, high = (int(end) for end in x.aminmax())
    return [low] if low == high else x.unique().tolist()


def _overlap(x: Tensor, y: Tensor) -> bool:
    (low, high), (lowest, highest) = (t.aminmax() for t in (x, y))
    return bool((low <= highest) & (lowest <= high))


def _minimize(problem: Problem, options: SolverOptions) -> Solution:
    u, bound, units = torch.zeros(problem.graph.units, dtype=torch.float64), options.bound, problem.graph.units
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
