"""Log-scales for two objectives: diag(G) close to a constant, and small norms.

Paper symbols: H units, u = 2 log lambda, p number of parameters, g = diag(G), A_h number of parameters that enter unit
h minus number that leave it; (Bu)_i is u of the unit that parameter i leaves minus u of the unit that it enters.

    F(u) = p log(sum_i exp((Bu)_i) g_i) - sum_i (Bu)_i

Along one unit's log-scale the sum is ``sum_k X_k exp(k z) + D``: X_1 leaves the unit, X_-1 enters it, other powers k
come from squared ReLU and attention, D is the rest. F is least where ``sum_k (k p + A) X_k exp(k z) + A D = 0``.
The sum of squared weights is the same problem at -u with ``w^2`` for g and A = 0, so one :class:`Problem` serves both.
"""

from __future__ import annotations

import math
from array import array
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
_NEAR = 40.0  # largest |u| up to which sums are computed as they are, not as logarithms
_FAR = 150.0  # so are fractions of the sum above exp(-_FAR)
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

    The ends are shaped (b, i) and (b, j): their units, the powers at which their scales act (-1 where an element
    enters a unit, 1 where it leaves one), and their slots; see :meth:`Problem.by_slot`.
    """

    m: Tensor
    log: float
    units: Sequence[Tensor]
    powers: Sequence[Tensor]
    slots: Sequence[Tensor]


@dataclass(frozen=True)
class Side:
    """One end of a block in a layer: row i of ``m`` belongs to unit ``positions[i]``, or to unit i if that is None.

    ``others`` are the slots of the other end: one vector for all rows, or one for each matrix of a batch.
    """

    power: int
    m: Tensor
    log: float
    others: Tensor
    positions: Tensor | None

    def at_others(self, x: Tensor) -> Tensor:
        """Numbers by slot, taken at the other end."""
        return x.index_select(0, self.others) if self.others.ndim == 1 else x[self.others]

    def sums(self, factors: Tensor) -> Tensor:
        """Sum of each row times factors of its elements."""
        factors = factors.to(self.m.device)
        return (self.m @ factors if factors.ndim == 1 else torch.bmm(self.m, factors[:, :, None]).flatten()).cpu()


@dataclass
class Layer:
    """Units from ``lo`` to before ``hi``, which are updated together: no element has two of them as its ends.

    ``plain``: all powers are +-1. ``moving``: positions of the units that do not keep their scale; None for all.
    ``coefficients``: of the quadratics of all units in the layer that move.
    """

    lo: int
    hi: int
    sides: list[Side] = field(default_factory=list)
    plain: bool = True
    moving: Tensor | None = None
    coefficients: Sequence[list[float]] = ()

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
        nothing = torch.zeros(0, dtype=torch.int64)
        alone = [[nothing, nothing, nothing.double()]]  # units, powers and logarithms of elements with at most one unit
        for (ends, count, log), m in zip(parts, _on_cpu_if_few(sums), strict=True):
            units, powers = ([f(end) for end in ends] for f in (graph.unit_of, graph.power_of))
            for unit, power in zip(units, powers, strict=True) if linear else ():
                balance.index_add_(0, unit.flatten(), power.flatten().double() * (-count / unit.numel()))
            if len(ends) == 2:
                alone += self._add_block(ends, units, powers, m, log)
            else:
                none = [torch.zeros(1, dtype=torch.int64)]
                alone.append([(units or none)[0], (powers or none)[0], m.log().cpu() + log])
        self.balance = balance[1:]
        unit, power, logs = map(torch.cat, zip(*alone, strict=True))
        power = torch.where(unit > 0, power, 0)
        self.constant = torch.logsumexp(logs[power == 0], 0)  # logarithm of what no scale changes
        self.own = {  # by power, logarithms of the elements with one unit
            k: _gather(unit[power == k], logs[power == k], graph.units + 1)[1:]
            for k in {-1, 1, *power.unique().tolist()} - {0}
        }
        self._add_layers()
        at_zero = torch.zeros(graph.units, dtype=torch.float64)
        self.start = float(self.log_sum(at_zero))
        found = [self.terms(layer, at_zero) for layer in self.layers]
        terms = {k: torch.cat([at_zero[:0], *(x[k] for x in found)]) for k in self.own}
        # F has no minimum along the log-scale of a dead unit.
        powers = torch.stack([torch.where(x > -math.inf, float(k), 0.0) for k, x in terms.items()])
        rises, falls = (powers.amax(0), powers.amin(0))
        a = self.balance
        self.dead = (rises <= 0) | (falls >= 0) | (rises * self.size + a <= 0) | (falls * self.size + a >= 0)
        self.still = self.dead if fixed is None else self.dead | fixed
        lowest = (
            min(float(torch.where(x > -math.inf, x, math.inf).amin()) for x in terms.values()) if graph.units else 0.0
        )
        self.near = lowest - self.start > -_FAR and all(abs(b.log - self.start) < 500 for b in self.blocks)
        self.ratio = (self.size + a.abs()) / (self.size - a.abs())
        for layer, x in zip(self.layers, found, strict=True):
            here = slice(layer.lo, layer.hi)
            layer.plain = not any(bool((x[k] > -math.inf).any()) for k in x if abs(k) != 1)
            layer.moving = (~self.still[here]).nonzero()[:, 0] if bool(self.still[here].any()) else None
            size, ratio = layer.select(a[here]).abs(), layer.select(self.ratio[here])
            layer.coefficients = (size / (2 * (self.size - size))).tolist(), (1 / ratio).tolist()

    def _add_block(
        self, ends: list[Tensor], units: list[Tensor], powers: list[Tensor], m: Tensor, log: float
    ) -> list[list[Tensor]]:
        """Add a block; returns units, powers and logarithms of its elements with one unit at both ends."""
        alone = []
        if _overlap(*units) and bool(torch.isin(*units).any()):
            same = (units[0][:, :, None] == units[1][:, None, :]) & (units[0][:, :, None] > 0)
            b, i, j = same.nonzero(as_tuple=True)
            same = same.to(m.device)
            alone.append([units[0][b, i], powers[0][b, i] + powers[1][b, j], m[same].log().cpu() + log])
            alone[0][0] = torch.where(alone[0][1] == 0, 0, alone[0][0])
            m[same] = 0.0
        top = float(m.amax())
        if top > 0:
            m, log = (m, log) if 1e-100 < top < 1e100 else (m.div_(top), log + math.log(top))
            slots = [torch.where(end < 0, self.graph.numbers - end, end) for end in ends]
            self.blocks.append(Block(m, log, units, powers, slots))
        return alone

    def _add_layers(self) -> None:
        """Set the layers; one whose units a parameter connects with each other becomes a layer for each unit."""
        sizes = list(self.graph.groups)
        layer_of = _layer_of(sizes)
        owners = [[layer_of[unit] for unit in block.units] for block in self.blocks]
        coupled = {
            n
            for first, second in owners
            for n in {*_distinct(first)} & {*_distinct(second)} - {-1}
            if bool(((first == n).any(1) & (second == n).any(1)).any())
        }
        if coupled:
            sizes = [part for n, size in enumerate(sizes) for part in ([1] * size if n in coupled else [size])]
            layer_of = _layer_of(sizes)
            owners = [[layer_of[unit] for unit in block.units] for block in self.blocks]
        self.layers = [Layer(*ends) for ends in pairwise(accumulate(sizes, initial=0))]
        for b, owner in zip(self.blocks, owners, strict=True):
            for unit, power, m, others, of in zip(b.units, b.powers, (b.m, b.m.mT), b.slots[::-1], owner, strict=True):
                powers, layers = _distinct(power), _distinct(of)
                for n, k in [(n, k) for n in layers if n >= 0 for k in powers]:
                    whole = len(powers) == len(layers) == 1
                    at = torch.ones_like(of, dtype=torch.bool) if whole else (of == n) & (power == k)
                    if whole or bool(at.any()):
                        self._add_side(self.layers[n], k, at, whole, unit, m, others, b.log)

    def _add_side(
        self, layer: Layer, k: int, at: Tensor, whole: bool, unit: Tensor, m: Tensor, others: Tensor, log: float
    ) -> None:
        """Add to a layer the elements of a block at some rows, given as a mask."""
        positions = unit[at] - (1 + layer.lo)
        aligned = torch.equal(positions, torch.arange(layer.hi - layer.lo))
        if whole:
            m, others = (m[0], others[0]) if len(m) == 1 else (m, others)
        elif len(m) == 1:
            m, others = m[0, at[0].to(m.device)], others[0]
        else:
            m, others = m[at.to(m.device)][:, None], others[at.nonzero()[:, 0]]
        layer.sides.append(Side(k, m, log, others, None if aligned else positions))
        if k not in self.own:
            self.own[k] = torch.full_like(self.balance, -math.inf)

    # ---- sums

    def by_slot(self, u: Tensor) -> Tensor:
        """Log-scales by slot: 0, those of the graph's numbers, and the opposite of each."""
        v = self.graph.by_number(u)[: self.graph.numbers + 1]
        return torch.cat((v, -v[1:]))

    def terms(self, layer: Layer, u: Tensor) -> dict[int, Tensor]:
        """Logarithms of X_k by power k for the units of a layer, shape (units of the layer,)."""
        lo, hi, v = layer.lo, layer.hi, self.by_slot(u)
        found = {k: x[lo:hi] for k, x in self.own.items()}
        for side in layer.sides:
            x = side.at_others(v)
            top = float(x.amax())
            logs = side.sums((x - top).exp_()).log_() + (top + side.log)
            logs = logs if side.positions is None else _gather(side.positions, logs, hi - lo)
            found[side.power] = torch.logaddexp(found[side.power], logs)
        return {k: x + k * u[lo:hi] for k, x in found.items()}

    def log_sum(self, u: Tensor, without: tuple[int, int] = (0, 0)) -> Tensor:
        """Log of sum_i exp((Bu)_i) g_i, without parameters that touch a unit of a layer; can be differentiated."""
        v, kept = self.by_slot(u), torch.ones_like(u, dtype=torch.bool)
        if without != (0, 0):
            kept[slice(*without)] = False
            v = v.masked_fill(self.by_slot((~kept).double()) != 0, -math.inf)
        logs = [self.constant]
        for b in self.blocks:
            ends = [v[slots] for slots in b.slots]
            tops = [float(x.detach().amax()) for x in ends]
            if min(tops) > -math.inf:
                x, y = ((x - top).exp().to(b.m.device) for x, top in zip(ends, tops, strict=True))
                total = (x * torch.bmm(b.m, y[:, :, None])[:, :, 0]).sum()
                logs += [total.log().cpu() + (b.log + sum(tops))] if float(total.detach()) > 0 else []
        for k, x in self.own.items():
            chosen = kept & (x > -math.inf)
            logs += [torch.logsumexp((x + k * u)[chosen], 0)]
        return torch.logsumexp(torch.stack(logs), 0)

    def value(self, u: Tensor) -> float:
        """F(u)."""
        return float(self.size * self.log_sum(u) + self.balance @ u)

    def gradient(self, u: Tensor) -> tuple[float, Tensor]:
        """F, and its gradient over p, shape (H,); zero for units that keep their scale."""
        at = u.clone().requires_grad_()
        with torch.enable_grad():
            log_sum = self.log_sum(at)
            (slope,) = torch.autograd.grad(log_sum, at)
        value = float(self.size * log_sum.detach() + self.balance @ u)
        return value, torch.where(self.still, 0.0, slope + self.balance / self.size)

    # ---- sweeps

    def sweep(self, u: Tensor, bound: float, value: float) -> tuple[Tensor, float]:
        """Set every unit in turn to its best log-scale; a layer's sums are computed at once.

        ``value`` is F at ``u``; returns the new log-scales, and F there.
        """
        log_sum = (value - float(self.balance @ u)) / self.size
        new, total = self._sweep(u, bound, log_sum)
        if self.near and not float(new.abs().amax()) < _NEAR:
            self.near = False
            new, total = self._sweep(u, bound, log_sum)
        if bound < math.inf:
            new = torch.where(new.abs() > bound * _AT_BOUND, new.sign() * bound, new)
        return new, self.size * (log_sum + _log(total)) + float(self.balance @ new)

    def _sweep(self, u: Tensor, bound: float, log_sum: float) -> tuple[Tensor, float]:
        """The new log-scales and the new sum, as a fraction of the old one, whose logarithm is given."""
        u, total, beyond, near = u.clone(), 1.0, self.graph.numbers, self.near
        with torch.inference_mode():
            scales = self.by_slot(u).exp_()
            own = {k: (x - log_sum).exp_() for k, x in self.own.items()}
            for layer in self.layers:
                lo, hi = layer.lo, layer.hi
                if near and layer.plain:
                    sums = {k: own[k][lo:hi] for k in (-1, 1)}  # without the layer's own scales
                    for side in layer.sides:
                        found, factor = side.sums(side.at_others(scales)), math.exp(side.log - log_sum)
                        if side.positions is None:
                            sums[side.power].add_(found, alpha=factor)
                        else:
                            sums[side.power].index_add_(0, side.positions, found, alpha=factor)
                    new, total = self._one_by_one(layer, u, sums, scales[lo + 1 : hi + 1], total, bound, log_sum)
                    u[lo:hi] = new if layer.moving is None else u[lo:hi].index_copy(0, layer.moving, new)
                else:
                    change, factor = self._in_rounds(layer, u, bound, log_sum + _log(total))
                    u[lo:hi] += change
                    total *= factor
                if near and len(self.graph.powers):
                    scales = self.by_slot(u).exp_()
                elif near:
                    plus = torch.exp(u[lo:hi], out=scales[lo + 1 : hi + 1])
                    torch.reciprocal(plus, out=scales[beyond + lo + 1 : beyond + hi + 1])
        return u, total

    def _one_by_one(
        self,
        layer: Layer,
        u: Tensor,
        sums: Mapping[int, Tensor],
        scales: Tensor,
        total: float,
        bound: float,
        log_sum: float,
    ) -> tuple[Tensor, float]:
        """New log-scales of a layer where all powers are +-1, and the new sum: roots of quadratics, in plain numbers.

        Solved for the one of ``X_1 exp(z)`` and ``X_-1 exp(-z)`` whose root does not cancel: the part that the loop
        finds for each unit. The other one is their product over it. A loop over numbers is faster than tensors here.
        """
        (leaves, enters), here = (sums[1], sums[-1]), slice(layer.lo, layer.hi)
        entered, bounded = self.balance[here] > 0, bound < math.inf
        old = torch.addcdiv(leaves * scales, enters, scales)
        first, product = layer.select(torch.where(entered, enters, leaves)), enters.mul_(leaves).mul_(self.ratio[here])
        later = [0.0, *layer.select(old).flip(0).cumsum(0).tolist()]
        before = total - later.pop()
        if before < 1e-3 * total:
            others = 0.0 if layer.moving is None else float(old.index_fill(0, layer.moving, 0.0).sum())
            before = math.exp(float(self.log_sum(u, (layer.lo, layer.hi))) - log_sum) + others
        least, most, parts = math.exp(-bound), math.exp(min(bound, _NEAR)), list[float]()
        starts = first.tolist() if bounded else layer.coefficients[0]
        for q, after, w, a, inverse in zip(
            layer.select(product).tolist(), reversed(later), starts, *layer.coefficients, strict=True
        ):
            ad = a * (before + after)
            part = ad + math.sqrt(ad * ad + q)
            if bounded:
                part = w * least if part < w * least else w * most if part > w * most else part
            before += part + q * inverse / part
            parts.append(part)
        found = torch.frombuffer(array("d", parts), dtype=torch.float64) if parts else first
        sign = layer.select(torch.where(entered, -1.0, 1.0))
        return (found / first).log_().mul_(sign).clamp_(-_NEAR, _NEAR), before

    def _in_rounds(self, layer: Layer, u: Tensor, bound: float, log_sum: float) -> tuple[Tensor, float]:
        """Changes of a layer's log-scales for any powers and magnitudes, and the factor by which the sum changes.

        All units at once, until nothing changes: each round is exact for one more unit; about ten suffice.
        """
        lo, hi = layer.lo, layer.hi
        terms = {k: x - log_sum for k, x in self.terms(layer, u).items()}
        balance, still = self.balance[lo:hi], self.still[lo:hi]
        new, change = _total(terms), torch.zeros_like(balance)
        later = _before(new.flip(0)).flip(0)
        rest = 1.0 - float(new.sum())
        if rest < 1e-3:
            rest = math.exp(float(self.log_sum(u, (lo, hi))) - log_sum)
        for _ in range(len(later) + 1):
            root = self._newton_root(terms, balance, rest + later + _before(new), change)
            change = torch.where(still, 0.0, torch.minimum(torch.maximum(root, -bound - u[lo:hi]), bound - u[lo:hi]))
            fresh = _total({k: x + k * change for k, x in terms.items()})
            moved, new = float(((fresh - new).abs() - 2e-15 * fresh).amax()), fresh
            if moved <= 0:
                break
        return change, rest + float(new.sum())

    def _newton_root(self, terms: Mapping[int, Tensor], a: Tensor, d: Tensor, z: Tensor) -> Tensor:
        """Changes z of a layer's log-scales with ``sum_k (k p + A) X_k exp(k z) + A D = 0``, from ``z`` on.

        Newton's method for the logarithm of the positive terms minus that of the negative ones, which is close to
        linear and rises with z, between bounds that it tightens. Dead units get any number.
        """
        slopes = torch.tensor([[0.0], *([float(k)] for k in terms)], dtype=torch.float64)
        factors = slopes * self.size + a
        logs = torch.stack([d.log(), *terms.values()]) + factors.abs().log()
        low, high = torch.full_like(d, -math.inf), torch.full_like(d, math.inf)
        for _ in range(200):
            at = logs + slopes * z
            (up, rise), (down, fall) = (_slope(at.masked_fill(factors * s <= 0, -math.inf), slopes) for s in (1, -1))
            difference = down - up
            low, high = torch.where(difference > 0, z, low), torch.where(difference > 0, high, z)
            new = z + difference / (rise - fall)
            jump = z + torch.copysign((2 * z.abs()).clamp(min=1.0), difference)
            other = torch.where((high - low).isinf(), jump, (low + high) / 2)
            new = torch.where((new >= low) & (new <= high), new, other)
            step = torch.where(up.isfinite() & down.isfinite(), new - z, 0.0)
            z = z + step
            if bool((step.abs() <= 1e-15 * z.abs().clamp(min=1.0)).all()):
                break
        return z

    # ---- Newton's method

    def newton_step(self, u: Tensor, gradient: Tensor, held: Tensor) -> Tensor:
        """Solve (Hessian / p) d = -gradient on the coordinates not held, by preconditioned conjugate gradients."""
        at = u.clone().requires_grad_()
        with torch.enable_grad():
            log_sum = self.log_sum(at)
            (slope,) = torch.autograd.grad(log_sum, at, create_graph=True)
        diagonal = torch.zeros_like(u)
        for layer in self.layers:
            for k, x in self.terms(layer, u).items():
                diagonal[layer.lo : layer.hi] += k * k * (x - log_sum.detach()).exp()
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
    top = logs.new_full((size,), -math.inf).scatter_reduce_(0, positions, logs, "amax").nan_to_num_(neginf=0.0)
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


def _total(terms: Mapping[int, Tensor]) -> Tensor:
    return sum((x.exp() for x in terms.values()), start=torch.zeros(()))


def _before(values: Tensor) -> Tensor:
    """Sum of the values before each, without cancellation: a small sum beside a large value keeps its digits."""
    return torch.cat([values.new_zeros(1), values.cumsum(0)[:-1]])


def _slope(logs: Tensor, slopes: Tensor) -> tuple[Tensor, Tensor]:
    """Combined logarithms along the first axis, and their slope."""
    return torch.logsumexp(logs, 0), (logs.softmax(0) * slopes).sum(0)


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf


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
