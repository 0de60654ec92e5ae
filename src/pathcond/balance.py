"""The sums of ``|w|^p`` that enter and leave units, laid out once, so that each step is a few products on the device.

Symbols: ``M = |w|^p`` summed over all elements of a weight between the same two channels, ``scale = lambda^p``. All
index tensors are made here; :meth:`Weight.powers` and :meth:`Side.flow` do not wait for the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pathcond.graph import ParamScales


@dataclass(frozen=True)
class Weight:
    """A weight as M, a matrix from the units ``cols`` to ``rows``; grouped layers as a list of single entries.

    ``spare`` axes are summed out, ``order`` brings the rest to (rows, columns), ``same`` marks entries with one unit at
    both ends, which no scale changes.
    """

    parameter: nn.Parameter
    spare: tuple[int, ...]
    order: tuple[int, ...]
    rows: Tensor
    cols: Tensor
    same: Tensor | None
    entries: bool

    @classmethod
    def of(cls, parameter: nn.Parameter, scales: ParamScales) -> Weight:
        """Lay out a parameter with the units its elements enter and leave."""
        row_axes, col_axes = ([i for i, n in enumerate(x.shape) if n > 1] for x in (scales.row, scales.col))
        entries = bool(set(row_axes) & set(col_axes))
        kept = sorted({*row_axes, *col_axes})
        order = tuple(range(len(kept))) if entries else tuple(kept.index(i) for i in row_axes + col_axes)
        rows, cols = scales.row, scales.col
        if entries:
            shape = [n if i in kept else 1 for i, n in enumerate(parameter.shape)]
            rows, cols = rows.expand(shape), cols.expand(shape)
        rows, cols = rows.reshape(-1), cols.reshape(-1)
        same = None
        if bool(torch.isin(rows[rows > 0], cols).any()):
            same = (rows == cols if entries else rows[:, None] == cols).to(parameter.device)
        spare = tuple(i for i in range(parameter.ndim) if i not in kept)
        return cls(parameter, spare, order, rows, cols, same, entries)

    def powers(self, p: float, dtype: torch.dtype) -> Tensor:
        """M, shape (rows, columns) or (entries,)."""
        w = self.parameter.detach()
        if self.spare:
            m = torch.linalg.vector_norm(w, p, self.spare, dtype=dtype).pow(p)
        else:
            m = w.to(dtype).square() if p == 2 else w.to(dtype).abs().pow(p)
        m = m.permute(self.order).reshape(-1 if self.entries else (len(self.rows), len(self.cols)))
        return m if self.same is None else m.masked_fill(self.same, 0.0)


@dataclass(frozen=True)
class Side:
    """What enters (or leaves) the units of a group through one weight.

    ``cut`` picks the group's part of M, ``others`` are the units at the other end, ``places`` (units, most entries a
    unit) gathers the sums that belong to each unit of the group.
    """

    weight: int
    leaving: bool
    cut: Tensor | slice
    others: Tensor | None
    places: Tensor | None
    coefficient: float

    def flow(self, m: Tensor, scale: Tensor) -> Tensor:
        """Sums of c |w|^p at the present scales, shape (units of the group,)."""
        part = (m.T if self.leaving and m.ndim == 2 else m)[self.cut]
        if self.others is None:
            found = part.sum(1) if m.ndim == 2 else part
        else:
            factor = scale[self.others] if self.leaving else scale[self.others].reciprocal()
            found = part @ factor if m.ndim == 2 else part * factor
        if self.coefficient != 1.0:
            found = found * self.coefficient
        return found if self.places is None else torch.cat((found, found.new_zeros(1)))[self.places].sum(1)


@dataclass(frozen=True)
class Group:
    """Units ``lo <= number < hi``, whose scales are set at once to ``(out / in) ** exponent``."""

    lo: int
    hi: int
    entering: tuple[Side, ...]
    leaving: tuple[Side, ...]
    exponent: Tensor | float


def plan(sizes: Sequence[int], weights: Sequence[Weight], c: float, device: torch.device) -> tuple[Group, ...]:
    """Lay out one cycle over the groups; those that no weight enters, or none leaves, are left out.

    Args:
        sizes: sizes of the groups, runs of units that are numbered from 1.
        weights: all weights; number l has the coefficient ``c ** l``.
        c: base of the coefficients.
        device: where the units' scales are.
    """
    bounds = torch.tensor([1, *sizes]).cumsum(0)
    entering: list[list[int]] = [[] for _ in sizes]
    leaving: list[list[int]] = [[] for _ in sizes]
    for index, weight in enumerate(weights):
        for numbers, touched in ((weight.rows, entering), (weight.cols, leaving)):
            for g in (torch.bucketize(numbers[numbers > 0].unique(), bounds, right=True) - 1).unique().tolist():
                touched[g].append(index)
    found = []
    for g, (into, out) in enumerate(zip(entering, leaving, strict=True)):
        if into and out:
            lo, hi = bounds[g : g + 2].tolist()
            base = min(*into, *out)  # only ratios of coefficients matter within a group
            into_sides, out_sides = (
                tuple(_side(weights[i], i, way, (lo, hi), c ** (i - base), device) for i in ours)
                for way, ours in ((False, into), (True, out))
            )
            exponent = _exponent([weights[i] for i in into if i in out], lo, hi, device)
            found.append(Group(lo, hi, into_sides, out_sides, exponent))
    return tuple(found)


def _side(
    weight: Weight, index: int, leaving: bool, span: tuple[int, int], coefficient: float, device: torch.device
) -> Side:
    ours, others = (weight.cols, weight.rows) if leaving else (weight.rows, weight.cols)
    inside = ((ours >= span[0]) & (ours < span[1])).nonzero()[:, 0]
    first, last = int(inside[0]), int(inside[-1]) + 1
    cut = slice(first, last) if last - first == len(inside) else inside.to(device)
    if weight.entries:
        others = others[inside]
    places = _places(ours[inside] - span[0], span[1] - span[0])
    return Side(
        weight=index,
        leaving=leaving,
        cut=cut,
        others=others.to(device) if bool(others.any()) else None,
        places=None if places is None else places.to(device),
        coefficient=coefficient,
    )


def _places(places: Tensor, count: int) -> Tensor | None:
    """The entries that go to each of ``count`` places, filled up with ``len(places)``; None if entry i goes to i."""
    if torch.equal(places, torch.arange(count)):
        return None
    counts = torch.bincount(places, minlength=count)
    order = places.argsort(stable=True)
    slots = torch.arange(len(places)) - (counts.cumsum(0) - counts)[places[order]]
    found = torch.full((count, int(counts.amax())), len(places))
    found[places[order], slots] = order
    return found


def _exponent(weights: Sequence[Weight], lo: int, hi: int, device: torch.device) -> Tensor | float:
    """One half for lambda^p; one quarter for units that a weight connects within the group.

    With all such units moved at once, ``lambda_i^p / lambda_j^p <= (lambda_i^2p + lambda_j^-2p) / 2`` and
    ``x <= (1 + x^2) / 2`` bound F by a sum over units, equal to it at 1 and least at ``lambda^(4p) = out / in``.
    """
    coupled = torch.zeros(hi, dtype=torch.bool)
    for weight in weights:
        rows = weight.rows if weight.entries else weight.rows.unique()[:, None]
        cols = weight.cols if weight.entries else weight.cols.unique()[None, :]
        joined = (rows >= lo) & (rows < hi) & (cols >= lo) & (cols < hi) & (rows != cols)
        for numbers in (rows, cols):
            coupled[numbers.expand(joined.shape)[joined]] = True
    if not bool(coupled.any()):
        return 0.5
    return torch.where(coupled[lo:], 0.25, 0.5).to(device)
