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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor

from pathcond.checks import PathCondError, SolveError, check_choice
from pathcond.diag_g import DiagG
from pathcond.graph import ScaleGraph
from pathcond.isolation import on_cpu
from pathcond.rules.base import compress

_FEW = 1 << 25  # sums up to which a solve on the CPU is faster than one on a GPU
_LARGEST, _SMALLEST = 700.0, 1e-300  # logarithm that float64 can hold, and a number near zero
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
    return balance_paths(graph, DiagG(g, g.log_scale) if isinstance(g, DiagG) else g, options, fixed)


def balance_paths(
    graph: ScaleGraph, g: Mapping[str, Tensor], options: SolverOptions, fixed: Tensor | None = None
) -> Solution:
    """As :func:`solve`, for entries that need no check; those of a :class:`DiagG` are removed as they are used."""
    if isinstance(g, DiagG):
        return _minimize(Problem(graph, g, g.log_scale, fixed), options)
    return _minimize(Problem(graph, dict(g), {}, fixed), options)


def balance_norms(
    graph: ScaleGraph, weights: Mapping[str, Tensor], options: SolverOptions, fixed: Tensor | None = None
) -> Solution:
    """Find the log-scales for which the sum of squared weights, ``objective``, is least."""
    found = _minimize(Problem(graph, *_squares(weights), fixed, linear=False), options)
    sums = (torch.tensor(found.objective, dtype=torch.float64) / max(1, found.size)).exp()  # infinite beyond float64
    return replace(
        found,
        log_scales=-found.log_scales,
        objective=(0.0,) if found.result is Result.NOTHING else tuple(sums.tolist()),
    )


def _squares(weights: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Squared weights, each relative to the largest of its parameter, and the logarithm of that."""
    tops = {name: float(w.abs().amax()) or 1.0 for name, w in weights.items() if w.numel()}
    return {n: (weights[n].double() / t).square() for n, t in tops.items()}, {
        n: 2 * math.log(t) for n, t in tops.items()
    }


# ---- the problem


@dataclass(frozen=True)
class Block:
    """Sums of g between units: element (b, i, j) of ``m * exp(log)`` enters ``rows[b, i]`` and leaves ``cols[b, j]``.

    Rows and columns are numbers of the graph. A dense layer has one matrix, a grouped one several.
    """

    m: Tensor
    log: float
    rows: Tensor
    cols: Tensor
    units: tuple[Tensor, Tensor]
    powers: tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Side:
    """What enters or leaves units of a layer: ``m[i]`` at the numbers ``others`` belongs to unit ``positions[i]``.

    ``positions`` is None where sum i belongs to unit i.
    """

    power: int
    m: Tensor
    log: float
    others: Tensor
    positions: Tensor | None
    columns: bool


class Problem:
    """The objective of u, shape (H,), for one model, reduced to sums of g between units.

    The sums are made on the device of g. They are moved to the CPU together, where u is, unless they are very many.

    Args:
        graph: the units.
        g: tensors by parameter name; entries are ``g[name] * exp(logs[name])``. They are removed as they are used.
        logs: logarithms by parameter name; 0 where there is none.
        fixed: mask of units that keep their scale.
        linear: whether F has its linear term; A is 0 for every unit without.
    """

    def __init__(
        self,
        graph: ScaleGraph,
        g: dict[str, Tensor],
        logs: Mapping[str, float],
        fixed: Tensor | None = None,
        *,
        linear: bool = True,
    ) -> None:
        self.graph, self.size = graph, sum(t.numel() for t in g.values())
        self.blocks: list[Block] = []
        self.own: dict[int, Tensor] = {}  # by power, logarithms of elements with one unit at both ends, shape (H + 1,)
        self.constants: list[float] = []  # logarithms of what no scale changes
        self.balance = torch.zeros(graph.units + 1, dtype=torch.float64)
        counts = {name: t.numel() for name, t in g.items()}
        layouts = {name: _Layout.of(graph, name, t.shape) for name, t in g.items()}
        sums = _on_cpu_if_few({name: layouts[name].sums(g.pop(name)) for name in list(g)})
        for name, m in sums.items():
            self._add(layouts[name], m, counts[name], logs.get(name, 0.0), linear)
        self.balance = self.balance[1:]
        starts = torch.tensor([0, *graph.groups]).cumsum(0)
        touching: list[list[Block]] = [[] for _ in graph.groups]
        for block in self.blocks:
            units = torch.cat([unit[unit > 0] for unit in block.units])
            for layer in (torch.bucketize(units - 1, starts, right=True) - 1).unique().tolist():
                touching[layer].append(block)
        self.layers: list[tuple[int, int]] = []
        self.sides: list[list[Side]] = []
        for (lo, hi), blocks in zip(pairwise(starts.tolist()), touching, strict=True):
            for span in self._uncoupled(lo, hi, blocks):
                self.layers.append(span)
                self.sides.append(self._sides(*span, blocks))
        at_zero = torch.zeros(graph.units, dtype=torch.float64)
        self.dead = torch.cat([self._dead(i, at_zero) for i in range(len(self.layers))] or [at_zero > 0])
        self.still = self.dead if fixed is None else self.dead | fixed

    def _add(self, layout: _Layout, m: Tensor, count: int, log: float, linear: bool) -> None:
        """Add the sums of a parameter's entries."""
        rows, cols = layout.rows, layout.cols
        units, powers = ((f(rows), f(cols)) for f in (self.graph.unit_of, self.graph.power_of))
        if linear:
            for unit, power, sign in ((units[0], powers[0], 1), (units[1], powers[1], -1)):
                each = count / unit.numel()
                self.balance.index_add_(0, unit.reshape(-1), sign * each * power.reshape(-1).double())
        if bool(torch.isin(*units).any()):
            same = units[0][:, :, None] == units[1][:, None, :]
            b, i, j = same.nonzero(as_tuple=True)
            multiple = [torch.where(unit > 0, power, 0) for unit, power in zip(units, powers, strict=True)]
            power, unit = multiple[1][b, j] - multiple[0][b, i], units[0][b, i]
            same = same.to(m.device)
            for k in power.unique().tolist():
                self._add_own(k, unit[power == k], m[same].cpu()[power == k], log)
            m[same] = 0.0
        top = float(m.amax())
        if top > 0:
            ends = rows.to(m.device), cols.to(m.device)
            self.blocks.append(Block(m.div_(top), log + math.log(top), *ends, units, powers))

    def _add_own(self, power: int, unit: Tensor, values: Tensor, log: float) -> None:
        if power == 0:
            self.constants.append(_log(float(values.sum())) + log)
            return
        found = _gather(values.log() + log, unit, self.graph.units + 1)
        self.own[power] = torch.logaddexp(self.own[power], found) if power in self.own else found

    def _uncoupled(self, lo: int, hi: int, blocks: list[Block]) -> list[tuple[int, int]]:
        """A layer, or its units one by one if a parameter connects two of them."""
        for block in blocks:
            row, col = ((unit > lo) & (unit <= hi) for unit in block.units)
            joint = row.any(1) & col.any(1)
            if bool(joint.any()):
                differ = block.units[0][joint][:, :, None] != block.units[1][joint][:, None, :]
                if bool((differ & row[joint][:, :, None] & col[joint][:, None, :]).any()):
                    return [(h, h + 1) for h in range(lo, hi)]
        return [(lo, hi)]

    def _sides(self, lo: int, hi: int, blocks: list[Block]) -> list[Side]:
        found = []
        for b in blocks:
            for columns, m, others in ((False, b.m, b.cols), (True, b.m.mT, b.rows)):
                unit = b.units[columns] - 1 - lo
                inside = (unit >= 0) & (unit < hi - lo)
                power = b.powers[columns] if columns else -b.powers[columns]
                for k in power[inside].unique().tolist():
                    at = inside & (power == k)
                    part = m.flatten(0, 1) if bool(at.all()) else m[at.to(m.device)]
                    other = others[0] if len(others) == 1 else others[at.nonzero()[:, 0].to(m.device)]
                    positions = None if torch.equal(unit[at], torch.arange(hi - lo)) else unit[at]
                    found.append(Side(k, part, b.log, other, positions, columns))
        return found

    def _dead(self, layer: int, u: Tensor) -> Tensor:
        """Units along whose log-scale the objective has no minimum."""
        terms, balance = self.terms(layer, u), self.balance[slice(*self.layers[layer])]
        powers = torch.stack([torch.where(x > -math.inf, float(k), 0.0) for k, x in terms.items()])
        high, low = powers.amax(0), powers.amin(0)
        return (high <= 0) | (low >= 0) | (high * self.size + balance <= 0) | (low * self.size + balance >= 0)

    # ---- sums

    def terms(self, layer: int, u: Tensor) -> dict[int, Tensor]:
        """Logarithms of X_k by power k for the units of a layer, shape (units of the layer,)."""
        (lo, hi), v = self.layers[layer], self.graph.by_number(u)
        found = {k: x[lo + 1 : hi + 1] + k * u[lo:hi] for k, x in self.own.items()}
        for side in self.sides[layer]:
            x = v.to(side.m.device)[side.others]
            x = -x if side.columns else x
            top = float(x.amax())
            factor = (x - top).exp_()
            logs = (side.m @ factor if x.ndim == 1 else (side.m * factor).sum(-1)).log().cpu() + (top + side.log)
            logs = logs if side.positions is None else _gather(logs, side.positions, hi - lo)
            k, logs = side.power, logs + side.power * u[lo:hi]
            found[k] = torch.logaddexp(found[k], logs) if k in found else logs
        none = u.new_full((hi - lo,), -math.inf)
        return {-1: none, 1: none} | found

    def log_sum(self, u: Tensor, without: tuple[int, int] = (0, 0)) -> Tensor:
        """Log of sum_i exp((Bu)_i) g_i, without parameters that touch a unit of a layer; can be differentiated."""
        v, chosen = self.graph.by_number(u), torch.zeros_like(u)
        chosen[slice(*without)] = 1.0
        skip = self.graph.by_number(chosen) != 0
        plus, minus = (x.masked_fill(skip, -math.inf) for x in (v, -v))
        logs = [*torch.tensor(self.constants, dtype=torch.float64)]
        for b in self.blocks:
            x, y = plus.to(b.m.device)[b.cols], minus.to(b.m.device)[b.rows]
            tops = [t.detach().amax() for t in (x, y)]
            if float(sum(tops)) > -math.inf:
                total = ((y - tops[1]).exp() * (b.m @ (x - tops[0]).exp()[:, :, None])[:, :, 0]).sum()
                logs += [total.log().cpu() + (b.log + float(sum(tops)))] if float(total.detach()) > 0 else []
        alive = ~skip[1 : len(u) + 1]
        logs += [torch.logsumexp((x[1:] + k * u)[alive & (x[1:] > -math.inf)], 0) for k, x in self.own.items()]
        return torch.logsumexp(torch.stack(logs), 0) if logs else u.new_tensor(-math.inf)

    def value(self, u: Tensor) -> float:
        """F(u)."""
        return float(self.size * self.log_sum(u) + self.balance @ u)

    def gradient(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """Gradient of F over p and the diagonal of its Hessian, shape (H,); zero for units that keep their scale."""
        first, second, log_sum = torch.zeros_like(u), torch.zeros_like(u), self.log_sum(u)
        for layer, (lo, hi) in enumerate(self.layers):
            for k, x in self.terms(layer, u).items():
                share = (x - log_sum).exp()
                first[lo:hi] += k * share
                second[lo:hi] += k * k * share
        gradient = first + self.balance / self.size
        return torch.where(self.still, 0.0, gradient), (second - first**2).clamp(min=0)

    # ---- sweeps

    def sweep(self, u: Tensor, bound: float, value: float) -> tuple[Tensor, float]:
        """Set every unit in turn to its best log-scale; a layer's sums are computed at once.

        ``value`` is F at ``u``; returns the new log-scales, and F there.
        """
        log_sum = (value - float(self.balance @ u)) / self.size
        u = u.clone()
        for layer, (lo, hi) in enumerate(self.layers):
            terms = {k: x - log_sum for k, x in self.terms(layer, u).items()}
            old = _total(terms)
            rest = 1.0 - float(old.sum())
            if rest < 1e-6:
                rest = math.exp(float(self.log_sum(u, (lo, hi))) - log_sum)
            later = _before(old.flip(0)).flip(0)
            span = (-bound - u[lo:hi], bound - u[lo:hi])
            usual = len(terms) == 2 and bool(self.balance[lo:hi].any()) and self._within_range(terms, self.still[lo:hi])
            choose = self._one_by_one if usual else self._in_rounds
            change = choose(terms, self.balance[lo:hi], self.still[lo:hi], rest, later, span)
            u[lo:hi] += change
            total = rest + float(_total({k: x + k * change for k, x in terms.items()}).sum())
            log_sum = log_sum + math.log(total) if total > 0 else log_sum
        u = torch.where(u.abs() > bound * _AT_BOUND, u.sign() * bound, u) if bound < math.inf else u
        return u, self.size * log_sum + float(self.balance @ u)

    @staticmethod
    def _within_range(terms: Mapping[int, Tensor], still: Tensor) -> bool:
        """Whether products of what enters and what leaves a unit neither overflow nor vanish."""
        product = (terms[1] + terms[-1])[~still]
        return not product.numel() or float(product.amin()) > -_LARGEST

    def _one_by_one(
        self,
        terms: Mapping[int, Tensor],
        balance: Tensor,
        still: Tensor,
        rest: float,
        later: Tensor,
        span: tuple[Tensor, Tensor],
    ) -> Tensor:
        """Changes z of a layer's log-scales where all powers are +-1: roots of quadratics, in plain numbers.

        Solved for the one of ``X_1 exp(z)`` and ``X_-1 exp(-z)`` whose root does not cancel: the part that the loop
        finds for each unit. The other one is their product over it. A loop over numbers is faster than tensors here.
        """
        p, size, enters = self.size, balance.abs(), balance > 0
        up, down, old = terms[1], terms[-1], _total(terms)
        product = torch.where(still, 0.0, (up + down).exp())
        first, none = torch.where(enters, down, up), old.clamp(min=_SMALLEST)
        ends = [first + torch.where(enters, -z, z) for z in span]
        least, most = (torch.where(still, none, end.exp()) for end in (torch.minimum(*ends), torch.maximum(*ends)))
        columns = (4 * (p - size) * (p + size) * product, product, size, 1 / (2 * (p - size)), least, most, later)
        found, before = list[float](), rest
        for c, q, a, factor, low, high, after in zip(*(t.tolist() for t in columns), strict=True):
            ad = a * (before + after)
            part = (ad + math.sqrt(ad * ad + c)) * factor
            part = low if part < low else high if part > high else part
            before += part + q / part
            found.append(part)
        log = torch.tensor(found, dtype=torch.float64).log()
        change = torch.where(enters, down - log, log - up)
        return torch.where(still, 0.0, torch.minimum(torch.maximum(change, span[0]), span[1]))

    def _in_rounds(
        self,
        terms: Mapping[int, Tensor],
        balance: Tensor,
        still: Tensor,
        rest: float,
        later: Tensor,
        span: tuple[Tensor, Tensor],
    ) -> Tensor:
        """As :meth:`_one_by_one` for any powers: all units at once, until nothing changes.

        Each round is exact for one more unit; about ten suffice, and one where no unit has a linear term.
        """
        new, change = _total(terms), torch.zeros_like(later)
        for _ in range(len(later) + 1):
            d = rest + later + _before(new)
            plain = len(terms) == 2 and not bool(balance.any())
            root = (terms[-1] - terms[1]) / 2 if plain else self._newton_root(terms, balance, d, change)
            change = torch.where(still, 0.0, torch.minimum(torch.maximum(root, span[0]), span[1]))
            fresh = _total({k: x + k * change for k, x in terms.items()})
            moved, new = float(((fresh - new).abs() - 2e-15 * fresh).amax()), fresh
            if moved <= 0 or not bool(balance.any()):
                break
        return change

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

    def newton_step(self, u: Tensor, gradient: Tensor, diagonal: Tensor, held: Tensor) -> Tensor:
        """Solve (Hessian / p) d = -gradient on the coordinates not held, by preconditioned conjugate gradients."""
        at = u.clone().requires_grad_()
        with torch.enable_grad():
            (slope,) = torch.autograd.grad(self.log_sum(at), at, create_graph=True)
        inverse = torch.where(held, 0.0, 1 / diagonal.clamp(min=1e-300))
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


@dataclass(frozen=True)
class _Layout:
    """How a parameter's entries are ordered to (batch, rows, columns, the rest, which is summed)."""

    order: tuple[int, ...]
    sizes: tuple[int, ...]
    rows: Tensor
    cols: Tensor

    @classmethod
    def of(cls, graph: ScaleGraph, name: str, shape: Sequence[int]) -> _Layout:
        """The layout of a parameter: axes along which rows and columns both vary come first."""
        none = torch.zeros((1,) * len(shape), dtype=torch.int64)
        scales = graph.params.get(name)
        row, col = (none, none) if scales is None else (compress(x) for x in (scales.row, scales.col))
        of_row, of_col = ([i for i, n in enumerate(x.shape) if n > 1] for x in (row, col))
        both = [i for i in of_row if i in of_col]
        r, c = [i for i in of_row if i not in both], [i for i in of_col if i not in both]
        rest = [i for i in range(len(shape)) if i not in {*both, *r, *c}]
        sizes = tuple(math.prod(shape[i] for i in axes) for axes in (both, r, c))
        rows, cols = (
            torch.permute(
                x.expand([n if i in {*both, *ours} else 1 for i, n in enumerate(shape)]),
                (*both, *ours, *(i for i in range(len(shape)) if i not in {*both, *ours})),
            ).reshape(sizes[0], -1)
            for x, ours in ((row, r), (col, c))
        )
        values, counts = cols[0].unique_consecutive(return_counts=True)
        if not both and len(values) < cols.shape[1] and bool((counts == counts[0]).all()):
            sizes, cols = (*sizes[:2], len(values)), values[None]  # channels spread over positions, as by a flatten
        return cls((*both, *r, *c, *rest), sizes, rows, cols)

    def sums(self, t: Tensor) -> Tensor:
        """Sums of a parameter's entries in float64, shape (batch, rows, columns)."""
        m = torch.permute(t, self.order).reshape(*self.sizes, -1)
        return m[..., 0].to(torch.float64, copy=True) if m.shape[-1] == 1 else m.sum(-1, dtype=torch.float64)


def _on_cpu_if_few(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors on the CPU, moved there together; as they are if they are many."""
    away = {name: t for name, t in tensors.items() if t.device.type != "cpu"}
    if not away or sum(t.numel() for t in away.values()) > _FEW:
        return tensors
    home = next(iter(away.values())).device
    flat = torch.cat([t.reshape(-1).to(home) for t in away.values()]).cpu()
    parts = flat.split([t.numel() for t in away.values()])
    return tensors | {name: part.view(t.shape) for (name, t), part in zip(away.items(), parts, strict=True)}


def _gather(logs: Tensor, positions: Tensor, size: int) -> Tensor:
    """Logarithms of sums at positions, which may repeat, as a vector of a size."""
    top = float(logs.amax())
    if top == -math.inf:
        return logs.new_full((size,), top)
    return logs.new_zeros(size).index_add_(0, positions, (logs - top).exp()).log() + top


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
    if not units or not problem.size or (not problem.constants and not problem.blocks and not problem.own):
        return Solution(u, (0.0,), (), 0.0, Result.NOTHING, tuple(range(units)), problem.size)
    values, updates, result = [problem.value(u)], list[float](), Result.SWEEPS
    if values[0] == -math.inf:
        raise SolveError(
            "expected a path from an input or a bias to an output, got none: diag(G) is zero. Give a floating-point "
            "example input that is not empty, and weights that are not all zero."
        )

    def move(new: Tensor, value: float) -> None:
        nonlocal u
        updates.append(float((new - u).abs().sum()) / units)
        values.append(value)
        u = new

    for _ in range(min(2, options.sweeps) if options.method == "optimum" else options.sweeps):
        move(*problem.sweep(u, bound, values[-1]))
    values[-1] = problem.value(u)  # recomputed: updates accumulate rounding
    if options.method == "optimum":
        result = _newton(problem, lambda: u, move, bound)
    if not bool(torch.isfinite(u).all()) or not math.isfinite(values[-1]):
        raise SolveError("expected finite log-scales, got NaN or infinity: diag(G) spans more than float64 does.")
    clamped = int((u.abs() >= bound * _AT_BOUND).sum())
    if options.damping < 1.0:
        u = options.damping * u
        values.append(problem.value(u))
    gradient = problem.gradient(u)[0]
    return Solution(
        log_scales=u.cpu() / 2,
        objective=tuple(values),
        mean_update=tuple(update / 2 for update in updates),
        residual=float(torch.where(_held(u, gradient, bound), 0.0, gradient).abs().amax()),
        result=result,
        dead=tuple(problem.dead.nonzero()[:, 0].tolist()),
        size=problem.size,
        clamped=clamped,
    )


def _newton(
    problem: Problem, present: Callable[[], Tensor], move: Callable[[Tensor, float], None], bound: float
) -> Result:
    """Newton's method with a line search, until max|grad F| / p <= 1e-10; units pressed against the bound are held."""
    for _ in range(200):
        u = present()
        gradient, diagonal = problem.gradient(u)
        held = _held(u, gradient, bound) | problem.still
        free, value = torch.where(held, 0.0, gradient), problem.value(u) / problem.size
        if float(free.abs().amax()) <= _TOLERANCE:
            return Result.OPTIMUM
        step = problem.newton_step(u, free, diagonal, held)
        step *= min(1.0, 4.0 / max(float(step.abs().amax()), 1e-300))
        for halving in range(60):
            new = (u + 0.5**halving * step).clamp(-bound, bound)
            rise, slope = problem.value(new) / problem.size - value, problem.gradient(new)[0]
            smaller = float(torch.where(_held(new, slope, bound), 0.0, slope).abs().amax()) < float(free.abs().amax())
            if rise <= 1e-4 * float(gradient @ (new - u)) or (smaller and rise <= 1e-14 * max(1.0, abs(value))):
                break  # rounding may hide the change of F
        else:
            return Result.STALLED
        move(new, (value + rise) * problem.size)
    return Result.STALLED


def _held(u: Tensor, gradient: Tensor, bound: float) -> Tensor:
    edge = bound * _AT_BOUND
    return (u >= edge) & (gradient < 0) | (u <= -edge) & (gradient > 0)
