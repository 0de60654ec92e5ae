"""Sweeps of exact coordinate updates, unit after unit, with the work of a whole layer done at once.

Two units of one layer share no parameter, so what enters and leaves them is known for the whole layer from two
matrix-vector products; within it only the running sum couples unit to unit, and that recurrence is scalar. All amounts
are in units of the whole sum. Log-scales beyond :data:`FAR`, blocks whose sizes differ by more than float64 holds,
dead units, clamps and layers that make up nearly the whole sum take a careful way in logarithms; the rest, which is to
say nearly all, takes a short one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pathcond.layout import Group, Side
from pathcond.problem import FAR, Problem

_CANCELS = 1.0e-6  # what is left of the sum once a layer's share is taken off: below this, sum it up afresh


@dataclass(frozen=True)
class _Flow:
    """A side of a group with its numbers: sums over a block are ``m @ factors[others]``, or entry by entry."""

    m: Tensor
    log: float
    side: Side
    count: int

    def __call__(self, factors: Tensor, picked: bool = False) -> Tensor:
        """Sums over the block for each unit of the group, given exponentials of all units (or of those picked)."""
        side, values = self.side, factors if picked else factors[self.side.others]
        found = self.m @ values if self.m.ndim == 2 else self.m * values
        return found if side.places is None else found.new_zeros(self.count).index_add_(0, side.places, found)


GroupFlows = tuple[Group, tuple[_Flow, ...], tuple[_Flow, ...]]


def flows_of(problem: Problem) -> list[GroupFlows]:
    """The groups of a problem's units, with what enters and what leaves each; matrices are views, not copies."""
    return [(g, _flows(problem, g.entering, g), _flows(problem, g.leaving, g)) for g in problem.layout.groups]


def _flows(problem: Problem, sides: tuple[Side, ...], group: Group) -> tuple[_Flow, ...]:
    flows = []
    for side in sides:
        block = problem.blocks[side.block]
        device = block.m.device
        cut = side.cut.to(device) if isinstance(side.cut, Tensor) else side.cut
        others = side.others.to(device) if isinstance(side.others, Tensor) else side.others
        places = None if side.places is None else side.places.to(device)
        m = block.m.T[cut] if side.leaving and block.dense else block.m[cut]
        flows.append(_Flow(m, block.log, Side(side.block, side.leaving, cut, others, places), group.hi - group.lo))
    return tuple(flows)


def total_flow(flows: tuple[_Flow, ...], factors: Tensor) -> Tensor:
    """Sums over all blocks for each unit of a group, given exponentials of all units."""
    total = flows[0](factors)
    for flow in flows[1:]:
        total = total + flow(factors)
    return total


class Sweeper:
    """Sweeps over all units of a problem in order.

    Attributes:
        full: log-scales, shape (H + 1,), whose entry 0 is 0 and stays.
        log_sum: log of the sum at ``full``.
    """

    def __init__(self, problem: Problem, clamp: float | None) -> None:
        self.problem = problem
        self.clamp = clamp
        self.full = torch.zeros(problem.units + 1, dtype=torch.float64, device=problem.device)
        self.log_sum = problem.log_sum(self.full)
        self.unit = problem.unit or 0.0
        self.close = clamp is None and problem.unit is not None and not bool(problem.dead[1:].any())
        self.groups = flows_of(problem)

    def sweep(self) -> float:
        """One pass over all units; returns the sum of the absolute changes of the log-scales."""
        before, log_sum = self.full.clone(), self.log_sum
        self._pass(near=self.close and float(self.full.abs().amax()) < FAR)
        if not bool(torch.isfinite(self.full).all()):  # plain numbers did not hold it
            self.full, self.log_sum = before.clone(), log_sum
            self._pass(near=False)
        return float((self.full - before).abs().sum())

    def _pass(self, near: bool) -> None:
        ups, downs = self.full.exp(), (-self.full).exp()
        for group, entering, leaving in self.groups:
            if near and group.even and self._short(group, entering, leaving, ups, downs):
                continue
            where = slice(group.lo, group.hi)
            if near:
                self.full = ups.log()
            self._careful(group, entering, leaving)
            near = near and float(self.full[where].abs().amax()) < FAR
            ups[where], downs[where] = self.full[where].exp(), (-self.full[where]).exp()
        if near:
            self.full = ups.log()

    def _short(
        self,
        group: Group,
        entering: tuple[_Flow, ...],
        leaving: tuple[_Flow, ...],
        ups: Tensor,
        downs: Tensor,
    ) -> bool:
        """Update a group in plain numbers; False, and nothing changed, if that is not safe."""
        a = group.balance[0]
        p, size = float(self.problem.size), abs(a)
        up, down = ups[group.lo : group.hi], downs[group.lo : group.hi]
        share = math.exp(self.unit - self.log_sum)
        into, out = total_flow(entering, ups) * down, total_flow(leaving, downs) * up
        old = into + out
        later = old.flip(0).cumsum(0).mul_(share * size).tolist()
        base = 1.0 - (later[-1] / size if size else share * float(old.sum()))
        if not base > _CANCELS:
            return False
        q = (into * out).mul_(4.0 * (p - size) * (p + size) * share * share)
        if size:
            found, total = _recurrence_of_one(size, p, q.tolist(), later[-2::-1] + [0.0], base)
            parts = torch.tensor(found, dtype=torch.float64, device=old.device)
        else:
            parts = q.sqrt()
            total = base + float(parts.sum()) / p
        parts.mul_(1.0 / (2.0 * (p - size)))
        change = into.mul_(share).div_(parts) if a > 0 else parts.div_(out.mul_(share))
        up.mul_(change)
        down.div_(change)
        self.log_sum += math.log(total)
        return True

    def _careful(self, group: Group, entering: tuple[_Flow, ...], leaving: tuple[_Flow, ...]) -> None:
        """Update a group in logarithms."""
        where = slice(group.lo, group.hi)
        own = self.full[where]
        into = _log_shares(entering, self.full, -own, self.log_sum)
        out = _log_shares(leaving, -self.full, own, self.log_sum)
        alive = ~self.problem.dead[where]
        if not bool(alive.any()):
            return
        old = torch.where(alive, into.exp() + out.exp(), 0.0)
        base = 1.0 - float(old.sum())
        if base < _CANCELS:  # sum up afresh what the group's living units have no part in
            other = self.problem.log_sum(self.full, (group.lo, group.hi))
            base = math.exp(other - self.log_sum) + float(torch.where(alive, 0.0, into.exp() + out.exp()).sum())
        keep = alive.nonzero()[:, 0].tolist()
        limit = math.inf if self.clamp is None else self.clamp
        changes, total = recurrence(
            [group.balance[h] for h in keep], self.problem.size, into[alive].tolist(), out[alive].tolist(), base,
            [(-limit - x, limit - x) for x in own[alive].tolist()],
        )  # fmt: skip
        moved = torch.tensor(changes, dtype=torch.float64, device=own.device)
        self.full[where] = own.masked_scatter(alive, own[alive] + moved)
        if total > 0.0:
            self.log_sum += math.log(total)
        else:  # next to nothing is left of it
            self.log_sum = self.problem.log_sum(self.full)


def _recurrence_of_one(
    size: float, p: float, q: list[float], later: list[float], base: float
) -> tuple[list[float], float]:
    """As :func:`recurrence` for units of one balance +-``size``, with nothing but arithmetic in the loop.

    Args:
        size: absolute balance, not 0.
        p: number of parameters.
        q: ``4 (p^2 - size^2) x y`` of each unit.
        later: ``size`` times the sum of x + y over the units after each.
        base: part of the sum that no unit here touches.

    Returns:
        For each unit ``2 (p - size)`` times the new y (or x, where the balance is negative); and the new sum.
    """
    sqrt = math.sqrt
    found: list[float] = []
    append = found.append
    alpha, beta = size / (2.0 * (p - size)), size / (2.0 * (p + size))
    done = size * base
    for xy, rest in zip(q, later, strict=True):
        d = done + rest
        part = d + sqrt(d * d + xy)
        append(part)
        done += alpha * part + beta * xy / part
    return found, done / size


def recurrence(
    balance: list[float],
    p: int,
    into: list[float],
    out: list[float],
    base: float,
    limits: list[tuple[float, float]],
) -> tuple[list[float], float]:
    """Update units one after the other; all amounts in units of the sum before.

    With x and y what leaves and enters a unit, x y does not change, and F is least along the unit's log-scale where
    ``p (x - y) + A (D + x + y) = 0``, D being the rest of the sum: a quadratic in x and in y. It is solved for the one
    whose root is free of cancellation.

    Args:
        balance: A of each unit.
        p: number of parameters.
        into: logarithm of y of each unit.
        out: logarithm of x of each unit.
        base: part of the sum that no unit here touches.
        limits: bounds on the change of each log-scale.

    Returns:
        The changes of the log-scales, and the sum after all updates.
    """
    later = [0.0]
    for y, x in zip(reversed(into), reversed(out), strict=True):
        later.append(later[-1] + math.exp(y) + math.exp(x))
    changes: list[float] = []
    done = base
    for h, a in enumerate(balance):
        ad = a * (done + later[-2 - h])
        xy = into[h] + out[h]
        root = math.sqrt(ad * ad + 4.0 * (p - a) * (p + a) * math.exp(xy))
        part = (ad + root) / (2.0 * (p - a)) if a > 0.0 else (root - ad) / (2.0 * (p + a))
        log = math.log(part) if part > 0.0 else 0.5 * xy
        change = into[h] - log if a > 0.0 else log - out[h]
        change = min(max(change, limits[h][0]), limits[h][1])
        changes.append(change)
        done += math.exp(out[h] + change) + math.exp(into[h] - change)
    return changes, done


def _log_shares(flows: tuple[_Flow, ...], factors: Tensor, own: Tensor, log_sum: float) -> Tensor:
    """Log of the share of each unit's entering (or leaving) parameters in the sum, shape (units in the group,)."""
    total = torch.full_like(own, -math.inf)
    for flow in flows:
        logs = factors[flow.side.others]
        shift = float(logs.amax())
        share = flow((logs - shift).exp(), picked=True).log() + own + (flow.log + shift - log_sum)
        total = torch.logaddexp(total, share)
    return total
