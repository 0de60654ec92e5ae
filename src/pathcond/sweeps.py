"""Sweeps of exact coordinate updates, unit after unit, with the work of a whole layer done at once.

Two units of one layer share no parameter, so what enters and leaves them is known for the whole layer from two
matrix-vector products; within it only the running sum couples unit to unit, and that recurrence is scalar. Its terms
are all positive, relative to the whole sum, and never subtracted from one another, so nothing overflows or cancels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pathcond.problem import Block, Problem

_CANCELS = 1.0e-6  # what is left of the sum once a layer's share is taken off: below this, sum it up afresh
_FAR = 200.0  # log-scales beyond this are handled in logarithms throughout


@dataclass(frozen=True)
class _Side:
    """What enters (or leaves) a group of units through one block.

    ``m`` times the exponentials of ``others`` gives a value for each of ``places`` (positions in the group).
    """

    m: Tensor
    others: Tensor | slice
    places: Tensor
    whole: bool
    entries: bool
    log: float
    count: int

    def flow(self, factors: Tensor) -> Tensor:
        """Sums over the block, shape (units in the group,)."""
        if self.entries:
            return factors.new_zeros(self.count).index_add_(0, self.places, self.m * factors[self.others])
        found = self.m @ factors[self.others]
        return found if self.whole else factors.new_zeros(self.count).index_add_(0, self.places, found)


@dataclass(frozen=True)
class _Group:
    """Units ``lo <= h < hi`` that no parameter connects to one another."""

    lo: int
    hi: int
    entering: tuple[_Side, ...]
    leaving: tuple[_Side, ...]
    alive: Tensor | None
    balance: tuple[float, ...]


class Sweeper:
    """Sweeps over all units in order, in place."""

    def __init__(self, problem: Problem, clamp: float | None) -> None:
        self.problem = problem
        self.clamp = clamp
        near = _neighbours(problem)
        bounds: list[tuple[int, int, list[Block]]] = []
        lo = 1
        for size, blocks in zip(problem.groups, near, strict=True):
            whole = (lo, lo + size)
            spans = [(h, h + 1) for h in range(*whole)] if _coupled(blocks, *whole) else [whole]
            bounds += [(*span, blocks) for span in spans]
            lo += size
        self.groups = [self._group(*bound) for bound in bounds]

    def _group(self, lo: int, hi: int, blocks: list[Block]) -> _Group:
        entering = tuple(side for b in blocks for side in _sides(b, b.rows, b.cols, lo, hi, False))
        leaving = tuple(side for b in blocks for side in _sides(b, b.cols, b.rows, lo, hi, True))
        dead = self.problem.dead[lo:hi]
        alive = (~dead).nonzero()[:, 0] if bool(dead.any()) else None
        balance = self.problem.balance[lo:hi]
        kept = balance if alive is None else balance[alive]
        return _Group(lo, hi, entering, leaving, alive, tuple(kept.tolist()))

    def sweep(self, full: Tensor, log_sum: float) -> float:
        """One pass over all units, from log of the sum before to the one after it."""
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


def _neighbours(problem: Problem) -> list[list[Block]]:
    """For each group, the blocks with a parameter that enters or leaves one of its units."""
    starts = torch.tensor([1, *problem.groups]).cumsum(0)[:-1].to(problem.balance.device)
    found: list[list[Block]] = [[] for _ in problem.groups]
    for block in problem.blocks:
        ends = torch.cat((block.rows, block.cols)).unique()
        touched = (torch.bucketize(ends[ends > 0], starts, right=True) - 1).unique_consecutive()
        for group in touched.tolist():
            found[group].append(block)
    return found


def _coupled(blocks: list[Block], lo: int, hi: int) -> bool:
    """Whether some parameter enters one unit of the group and leaves another."""
    for block in blocks:
        rows = (block.rows >= lo) & (block.rows < hi)
        cols = (block.cols >= lo) & (block.cols < hi)
        if block.dense and bool(rows.any()) and bool(cols.any()) and bool(block.m[rows][:, cols].any()):
            return True
        if not block.dense and bool((rows & cols & (block.m > 0)).any()):
            return True
    return False


def _sides(block: Block, ours: Tensor, others: Tensor, lo: int, hi: int, leaving: bool) -> list[_Side]:
    """The block's side towards a group: none or one."""
    inside = ((ours >= lo) & (ours < hi)).nonzero()[:, 0]
    if not len(inside):
        return []
    places = ours[inside] - lo
    if not block.dense:
        return [_Side(block.m[inside], others[inside], places, False, True, block.log, hi - lo)]
    cut = slice(int(inside[0]), int(inside[-1]) + 1)  # units are sorted within a block
    m = block.m[:, cut].T if leaving else block.m[cut]
    whole = len(places) == hi - lo
    return [_Side(m, _as_slice(others), places, whole, False, block.log, hi - lo)]


def _as_slice(numbers: Tensor) -> Tensor | slice:
    """Consecutive numbers as a slice, which needs no copy."""
    first = int(numbers[0])
    consecutive = torch.equal(numbers, torch.arange(first, first + len(numbers), device=numbers.device))
    return slice(first, first + len(numbers)) if consecutive else numbers
