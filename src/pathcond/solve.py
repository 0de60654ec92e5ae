"""Minimise F: exact coordinate updates, unit after unit, with the work of a whole layer done at once.

Two units of one layer share no parameter, so what enters and leaves them is known for the whole layer from two
matrix-vector products; within it only the running sum couples unit to unit, and that recurrence is scalar. Its terms are
all positive, relative to the whole sum, and never subtracted from one another, so nothing overflows or cancels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Literal

import torch
from torch import Tensor

from pathcond.errors import PathCondError, SolveError
from pathcond.graph import ScaleGraph, check_choice
from pathcond.magnitude import PathMagnitudes
from pathcond.newton import minimise
from pathcond.problem import Block, Problem, build_problem

_CANCELS = 1.0e-6  # what is left of the sum once a layer's share is taken off: below this, sum it up afresh
_FAR = 200.0  # log-scales beyond this are handled in logarithms throughout


class Result(Enum):
    """How a solve ended; the value is the message."""

    SWEEPS = "all sweeps asked for were made"
    TOLERANCE = "the updates of the last sweep were below the tolerance"
    OPTIMUM = "the gradient is zero to the tolerance"
    STALLED = "no further decrease was possible before the gradient met the tolerance"
    NOTHING = "there is no unit to rescale"


@dataclass(frozen=True)
class Solution:
    """Log-scales and how they were found.

    Attributes:
        u: log-scales, float64, shape (units,) on the CPU; unit h is multiplied by ``exp(u[h] / 2)``.
        objective: F before, then after each sweep (or Newton step).
        mean_update: mean absolute change of ``u`` in each sweep (or Newton step).
        residual: largest entry of the gradient of F, over p; zero at the optimum.
        result: how the solve ended.
        dead: units (indices into ``u``) left alone because nothing enters or nothing leaves them.
        size: p, the number of parameters that count.
    """

    u: Tensor
    objective: tuple[float, ...]
    mean_update: tuple[float, ...]
    residual: float
    result: Result
    dead: tuple[int, ...]
    size: int

    @property
    def steps(self) -> int:
        """Number of sweeps or Newton steps made."""
        return len(self.mean_update)


def solve(
    graph: ScaleGraph,
    g: Mapping[str, Tensor],
    *,
    method: Literal["sweeps", "optimum"] = "sweeps",
    sweeps: int = 10,
    tol: float = 0.0,
    clamp: float | None = None,
) -> Solution:
    """Find the log-scales that bring diag(G) closest to a constant.

    Args:
        graph: the units, from :func:`pathcond.extract_graph`.
        g: diag(G) by parameter name, from :func:`pathcond.path_magnitudes`; parameters left out do not count in p.
        method: ``sweeps``: the paper's alternating minimisation. ``optimum``: the minimiser of F, by Newton's method.
        sweeps: number of sweeps over all units, for ``method="sweeps"``.
        tol: stop after a sweep that changed ``u`` by less than this in sum; for ``optimum`` the residual to reach,
            1e-10 if 0.
        clamp: bound on every ``|u|``; None for none.

    Returns:
        The :class:`Solution`. Stopping after the sweeps asked for is a normal result.

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
        >>> round(pathcond.solve(graph, pathcond.path_magnitudes(model, x)).u.item(), 4)
        -3.3304
    """
    logs = g.log_scale if isinstance(g, PathMagnitudes) else {}
    pairs = {name: (t, logs.get(name, 0.0)) for name, t in g.items()}
    return solve_problem(build_problem(graph, pairs), method, sweeps, tol, clamp)


def solve_problem(problem: Problem, method: str, sweeps: int, tol: float, clamp: float | None) -> Solution:
    """Solve a :class:`Problem`; arguments as in :func:`solve`."""
    check_choice("method", method, ("sweeps", "optimum"))
    if isinstance(sweeps, bool) or not isinstance(sweeps, int) or sweeps < 0:
        raise PathCondError(f"expected sweeps to be a whole number >= 0, got {sweeps!r}.")
    if not tol >= 0:
        raise PathCondError(f"expected tol >= 0, got {tol!r}.")
    if clamp is not None and not clamp > 0:
        raise PathCondError(f"expected clamp to be positive or None, got {clamp!r}.")
    full = torch.zeros(problem.units + 1, dtype=torch.float64, device=problem.balance.device)
    trail = _Trail([problem.objective(full)], [])
    result = Result.NOTHING
    if problem.units:
        state = _Sweeper(problem, clamp)
        count = min(2, sweeps) if method == "optimum" else sweeps
        full, result = _run_sweeps(state, full, trail, count, tol if method == "sweeps" else 0.0)
        if method == "optimum":
            full, met = minimise(problem, full, tol or 1e-10, clamp, trail.add)
            result = Result.OPTIMUM if met else Result.STALLED
    if not bool(torch.isfinite(full).all()) or not math.isfinite(trail.objective[-1]):
        raise SolveError(
            "expected finite log-scales, got NaN or infinity: the magnitudes span more than float64 holds."
        )
    grad = problem.gradient(full)
    if clamp is not None:
        grad = torch.where((full >= clamp) & (grad < 0) | (full <= -clamp) & (grad > 0), 0.0, grad)
    dead = problem.dead[1:].nonzero()[:, 0].tolist()
    return Solution(
        full[1:].cpu(), tuple(trail.objective), tuple(trail.updates), float(grad.abs().amax()), result, tuple(dead),
        problem.size,
    )  # fmt: skip


@dataclass
class _Trail:
    objective: list[float]
    updates: list[float]

    def add(self, objective: float, update: float) -> None:
        self.objective.append(objective)
        self.updates.append(update)


def _run_sweeps(state: _Sweeper, full: Tensor, trail: _Trail, sweeps: int, tol: float) -> tuple[Tensor, Result]:
    for _ in range(sweeps):
        before = full.clone()
        log_sum = state.sweep(full)
        moved = float((full - before).abs().sum())
        trail.add(state.problem.size * log_sum + float(state.problem.balance @ full), moved / state.problem.units)
        if moved < tol:
            return full, Result.TOLERANCE
    return full, Result.SWEEPS


@dataclass(frozen=True)
class _Side:
    """What enters (or leaves) a group of units through one block.

    ``m`` times the exponentials of ``others`` gives a value for each of ``places`` (positions in the group).
    """

    m: Tensor
    others: Tensor | slice
    places: Tensor | None
    entries: bool
    log: float
    count: int

    def flow(self, factors: Tensor) -> Tensor:
        """Sums over the block, shape (units in the group,)."""
        if self.entries:
            return factors.new_zeros(self.count).index_add_(0, self.places, self.m * factors[self.others])
        found = self.m @ factors[self.others]
        return found if self.places is None else factors.new_zeros(self.count).index_add_(0, self.places, found)


@dataclass(frozen=True)
class _Group:
    """Units ``lo <= h < hi`` that no parameter connects to one another."""

    lo: int
    hi: int
    entering: tuple[_Side, ...]
    leaving: tuple[_Side, ...]
    alive: Tensor | None
    balance: tuple[float, ...]


class _Sweeper:
    """Sweeps over all units in order, in place."""

    def __init__(self, problem: Problem, clamp: float | None) -> None:
        self.problem = problem
        self.clamp = clamp
        self.groups: list[_Group] = []
        bounds: list[tuple[int, int]] = []
        lo = 1
        for size in problem.groups:
            whole = (lo, lo + size)
            bounds += [(h, h + 1) for h in range(*whole)] if _coupled(problem, *whole) else [whole]
            lo += size
        self.groups = [self._group(lo, hi) for lo, hi in bounds]

    def _group(self, lo: int, hi: int) -> _Group:
        entering, leaving = [], []
        for block in self.problem.blocks:
            entering.append(_side(block, block.rows, block.cols, lo, hi, False))
            leaving.append(_side(block, block.cols, block.rows, lo, hi, True))
        dead = self.problem.dead[lo:hi]
        alive = (~dead).nonzero()[:, 0] if bool(dead.any()) else None
        balance = self.problem.balance[lo:hi]
        kept = balance if alive is None else balance[alive]
        sides = (tuple(s for s in side if s is not None) for side in (entering, leaving))
        return _Group(lo, hi, *sides, alive, tuple(kept.tolist()))

    def sweep(self, full: Tensor) -> float:
        """One pass over all units; returns log of the sum afterwards."""
        log_sum = self.problem.log_sum(full)
        far = float(full.abs().amax()) > _FAR
        ups, downs = (full.clone(), -full) if far else (full.exp(), (-full).exp())
        for group in self.groups:
            log_sum = self._update(group, full, ups, downs, log_sum, far)
        return self.problem.log_sum(full)

    def _update(self, group: _Group, full: Tensor, ups: Tensor, downs: Tensor, log_sum: float, far: bool) -> float:
        own = full[group.lo : group.hi]
        into = _log_shares(group.entering, ups, -own, log_sum, far)
        out = _log_shares(group.leaving, downs, own, log_sum, far)
        if group.alive is not None:
            into, out, own = into[group.alive], out[group.alive], own[group.alive]
        if not len(group.balance):
            return log_sum
        old = into.exp() + out.exp()
        base = 1.0 - float(old.sum())
        if base < _CANCELS:  # sum up afresh what the group's living units have no part in
            other = self.problem.log_sum(full, (group.lo, group.hi))
            dead = float(self._dead_share(group, full, log_sum)) if group.alive is not None else 0.0
            base = math.exp(other - log_sum) + dead
        change, total = self._recur(group, into, out, old, own, base)
        where = slice(group.lo, group.hi) if group.alive is None else group.lo + group.alive
        moved = own + change
        full[where] = moved
        ups[where], downs[where] = (moved, -moved) if far else (moved.exp(), (-moved).exp())
        return log_sum + math.log(total)

    def _dead_share(self, group: _Group, full: Tensor, log_sum: float) -> Tensor:
        own = full[group.lo : group.hi]
        into = _log_shares(group.entering, full, -own, log_sum, True).exp()
        out = _log_shares(group.leaving, -full, own, log_sum, True).exp()
        return ((into + out) * self.problem.dead[group.lo : group.hi]).sum()

    def _recur(
        self, group: _Group, into: Tensor, out: Tensor, old: Tensor, own: Tensor, base: float
    ) -> tuple[Tensor, float]:
        """The scalar recurrence: changes of the group's log-scales, and the new sum over the old one."""
        later = torch.cat((old[1:].flip(0).cumsum(0).flip(0), old.new_zeros(1))).tolist()
        product = (into + out).exp().tolist()
        if self.clamp is not None:
            lists = into.tolist(), out.tolist(), (-self.clamp - own).tolist(), (self.clamp - own).tolist()
            changes, total = _clamped(group.balance, self.problem.size, product, later, base, *lists)
            return torch.tensor(changes, dtype=torch.float64, device=old.device), total
        parts, total = recurrence(group.balance, self.problem.size, product, later, base)
        part = torch.tensor(parts, dtype=torch.float64, device=old.device)
        balance = torch.tensor(group.balance, device=old.device)
        change = torch.where(balance > 0, into - part.log(), part.log() - out)
        return torch.where(part > 0, change, 0.5 * (into - out)), total


def recurrence(
    balance: tuple[float, ...], p: int, product: list[float], later: list[float], base: float
) -> tuple[list[float], float]:
    """Update units one after the other; all amounts in units of the sum before.

    With x and y what leaves and enters a unit, x y = ``product`` does not change, and F is least along the unit's
    log-scale where ``p (x - y) + A (D + x + y) = 0``, D being the rest of the sum: a quadratic in x and in y. It is
    solved for the one whose root is free of cancellation.

    Args:
        balance: A of each unit.
        p: number of parameters.
        product: x y of each unit.
        later: sum of x + y over the units after each.
        base: part of the sum that no unit here touches.

    Returns:
        For each unit the new y where A > 0 and the new x elsewhere; and the sum after all updates.
    """
    sqrt = math.sqrt
    found: list[float] = []
    done = base
    for a, xy, rest in zip(balance, product, later, strict=True):
        ad = a * (done + rest)
        root = sqrt(ad * ad + 4.0 * (p - a) * (p + a) * xy)
        part = (ad + root) / (2.0 * (p - a)) if a > 0.0 else (root - ad) / (2.0 * (p + a))
        found.append(part)
        done += part + xy / part if part else 0.0
    return found, done


def _clamped(
    balance: tuple[float, ...],
    p: int,
    product: list[float],
    later: list[float],
    base: float,
    into: list[float],
    out: list[float],
    low: list[float],
    high: list[float],
) -> tuple[list[float], float]:
    """As :func:`recurrence` with each change of a log-scale kept in [low, high]; returns the changes."""
    changes: list[float] = []
    done = base
    for h, a in enumerate(balance):
        (part,), _ = recurrence((a,), p, [product[h]], [0.0], done + later[h])
        log = math.log(part) if part else 0.5 * (into[h] + out[h])
        change = min(max(into[h] - log if a > 0.0 else log - out[h], low[h]), high[h])
        changes.append(change)
        done += math.exp(out[h] + change) + math.exp(into[h] - change)
    return changes, done


def _log_shares(sides: tuple[_Side, ...], factors: Tensor, own: Tensor, log_sum: float, far: bool) -> Tensor:
    """Log of the share of each unit's entering (or leaving) parameters in the sum, shape (units in the group,)."""
    total = torch.full_like(own, -math.inf)
    for index, side in enumerate(sides):
        if far:
            logs = factors[side.others]
            shift = float(logs.amax())
            flow = replace(side, others=slice(None)).flow((logs - shift).exp())
        else:
            shift, flow = 0.0, side.flow(factors)
        share = flow.log() + own + (side.log + shift - log_sum)
        total = share if index == 0 else torch.logaddexp(total, share)
    return total


def _coupled(problem: Problem, lo: int, hi: int) -> bool:
    """Whether some parameter enters one unit of the group and leaves another."""
    for block in problem.blocks:
        rows = (block.rows >= lo) & (block.rows < hi)
        cols = (block.cols >= lo) & (block.cols < hi)
        if block.dense and bool(rows.any()) and bool(cols.any()) and bool(block.m[rows][:, cols].any()):
            return True
        if not block.dense and bool((rows & cols & (block.m > 0)).any()):
            return True
    return False


def _side(block: Block, ours: Tensor, others: Tensor, lo: int, hi: int, leaving: bool) -> _Side | None:
    inside = ((ours >= lo) & (ours < hi)).nonzero()[:, 0]
    if not len(inside):
        return None
    places = ours[inside] - lo
    if not block.dense:
        return _Side(block.m[inside], others[inside], places, True, block.log, hi - lo)
    cut = slice(int(inside[0]), int(inside[-1]) + 1)  # units are sorted within a block
    m = block.m[:, cut].T if leaving else block.m[cut]
    whole = len(places) == hi - lo
    return _Side(m, _as_slice(others), None if whole else places, False, block.log, hi - lo)


def _as_slice(numbers: Tensor) -> Tensor | slice:
    """Consecutive numbers as a slice, which needs no copy."""
    first = int(numbers[0])
    consecutive = torch.equal(numbers, torch.arange(first, first + len(numbers), device=numbers.device))
    return slice(first, first + len(numbers)) if consecutive else numbers
