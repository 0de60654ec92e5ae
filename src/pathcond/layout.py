"""How a graph's parameters reduce to matrices between units: all that can be known before ``g``, made once a graph."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from pathcond.graph import ParamScales, ScaleGraph


@dataclass(frozen=True)
class Pattern:
    """How one parameter's entries of ``g`` are summed.

    The axes ``order`` (first those of the rows, then those of the columns) are kept and the ``spare`` ones summed out;
    then rows and columns of the same unit are merged by ``merge_rows`` and ``merge_cols`` (None where they are
    distinct and sorted already). Entry (i, j) enters unit ``rows[i]`` and leaves unit ``cols[j]``; unit 0 is none. With
    ``entries``, single entries are listed instead, as grouped layers need. ``inside`` marks entries with the same unit,
    or none, at both ends.
    """

    order: tuple[int, ...]
    spare: tuple[int, ...]
    shape: tuple[int, ...]
    rows: Tensor
    cols: Tensor
    merge_rows: Tensor | None
    merge_cols: Tensor | None
    inside: Tensor | None
    entries: bool

    @property
    def size(self) -> int:
        """Number of entries of the block."""
        return len(self.rows) if self.entries else len(self.rows) * len(self.cols)


def pattern(shape: tuple[int, ...], scales: ParamScales, balance: Tensor) -> Pattern:
    """Lay out a parameter of some shape; counts in ``balance`` what enters each unit less what leaves it."""
    row, col = scales.row, scales.col
    row_axes = _varying(row)
    col_axes = _varying(col)
    if set(row_axes) & set(col_axes):
        return _entries(shape, row, col, balance)
    spare = tuple(i for i in range(len(shape)) if i not in row_axes and i not in col_axes)
    rows, merge_rows = _merge(_along(row, row_axes))
    cols, merge_cols = _merge(_along(col, col_axes))
    each = math.prod(shape)
    for axes, numbers, merge, sign in ((row_axes, rows, merge_rows, 1), (col_axes, cols, merge_cols, -1)):
        count = math.prod(shape[i] for i in axes)
        repeats = torch.ones(count) if merge is None else torch.bincount(merge, minlength=len(numbers))
        balance.index_add_(0, numbers, repeats.double() * (each / count), alpha=sign)
    inside = rows[:, None] == cols[None, :]
    kept = tuple(math.prod(shape[i] for i in axes) for axes in (row_axes, col_axes))
    return Pattern(
        (*row_axes, *col_axes), spare, kept, rows, cols, merge_rows, merge_cols,
        inside if bool(inside.any()) else None, False,
    )  # fmt: skip


def _varying(numbers: Tensor) -> list[int]:
    """Axes along which the units differ."""
    return [i for i, n in enumerate(numbers.shape) if n > 1 and bool((numbers != numbers.narrow(i, 0, 1)).any())]


def _along(numbers: Tensor, axes: list[int]) -> Tensor:
    for i in range(numbers.ndim):
        if i not in axes:
            numbers = numbers.narrow(i, 0, 1)
    return numbers.reshape(-1)


def _merge(numbers: Tensor) -> tuple[Tensor, Tensor | None]:
    """Distinct numbers in order, and where each goes; None if they were so already."""
    if len(numbers) == 1 or bool((numbers[1:] > numbers[:-1]).all()):
        return numbers, None
    return numbers.unique(return_inverse=True)  # type: ignore[return-value]


def _entries(shape: tuple[int, ...], row: Tensor, col: Tensor, balance: Tensor) -> Pattern:
    """Grouped and depthwise layers: one entry for each pair of units that has a weight."""
    kept = [i for i in range(len(shape)) if row.shape[i] > 1 or col.shape[i] > 1]
    spare = tuple(i for i in range(len(shape)) if i not in kept)
    sizes = [n if i in kept else 1 for i, n in enumerate(shape)]
    rows, cols = row.expand(sizes).reshape(-1), col.expand(sizes).reshape(-1)
    each = torch.full(rows.shape, float(math.prod(shape[i] for i in spare)), dtype=torch.float64)
    balance.index_add_(0, rows, each).index_add_(0, cols, each, alpha=-1)
    inside = rows == cols
    marked = inside if bool(inside.any()) else None
    return Pattern(tuple(kept), spare, (len(rows),), rows, cols, None, None, marked, True)


@dataclass(frozen=True)
class Side:
    """What enters (or leaves) the units of a group through one block.

    ``cut`` picks the group's rows (or columns) of the block or its entries, ``others`` the units at the other end,
    ``places`` the positions in the group that the sums belong to, None for all in order.
    """

    block: int
    leaving: bool
    cut: slice | Tensor
    others: slice | Tensor
    places: Tensor | None


@dataclass(frozen=True)
class Group:
    """Units ``lo <= number < hi`` that no parameter connects to one another, and the blocks that touch them.

    ``balance`` is A of each; ``even`` says that it is the same for all.
    """

    lo: int
    hi: int
    entering: tuple[Side, ...]
    leaving: tuple[Side, ...]
    balance: list[float]
    even: bool


@dataclass(frozen=True)
class Layout:
    """Patterns by parameter name, and A_h: the number of parameters that enter a unit less those that leave it."""

    units: int
    sizes: tuple[int, ...]
    patterns: dict[str, Pattern]
    balance: Tensor

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """The units in the order in which sweeps visit them."""
        starts = torch.tensor([1, *self.sizes]).cumsum(0)[:-1]
        near: list[list[int]] = [[] for _ in self.sizes]
        for index, p in enumerate(self.patterns.values()):
            ends = torch.cat((p.rows, p.cols)).unique()
            for group in (torch.bucketize(ends[ends > 0], starts, right=True) - 1).unique_consecutive().tolist():
                near[group].append(index)
        found: list[Group] = []
        blocks = list(self.patterns.values())
        for lo, size, touching in zip(starts.tolist(), self.sizes, near, strict=True):
            coupled = any(_coupled(blocks[i], lo, lo + size) for i in touching)
            spans = [(h, h + 1) for h in range(lo, lo + size)] if coupled else [(lo, lo + size)]
            found += [_group(blocks, touching, *span, self.balance) for span in spans]
        return tuple(found)


def layout_of(graph: ScaleGraph, names: tuple[str, ...]) -> Layout:
    """The layout of a graph for parameters ``names``, kept with the graph."""
    cache = graph.__dict__.setdefault("_layouts", {})
    if names not in cache:
        balance = torch.zeros(graph.units + 1, dtype=torch.float64)
        found = {n: pattern(graph.shapes[n], graph.params[n], balance) for n in names if n in graph.params}
        balance[0] = 0
        cache[names] = Layout(graph.units, graph.groups, found, balance)
    return cache[names]


def _coupled(p: Pattern, lo: int, hi: int) -> bool:
    """Whether a parameter enters one unit of the group and leaves another."""
    rows = (p.rows >= lo) & (p.rows < hi)
    cols = (p.cols >= lo) & (p.cols < hi)
    if p.entries:
        return bool((rows & cols & (p.rows != p.cols)).any())
    return bool((p.rows[rows][:, None] != p.cols[cols][None, :]).any())


def _group(blocks: list[Pattern], touching: list[int], lo: int, hi: int, balance: Tensor) -> Group:
    sides: dict[bool, list[Side]] = {False: [], True: []}
    for index in touching:
        p = blocks[index]
        for leaving, ours, others in ((False, p.rows, p.cols), (True, p.cols, p.rows)):
            inside = ((ours >= lo) & (ours < hi)).nonzero()[:, 0]
            if len(inside):
                places = ours[inside] - lo
                ends = others[inside] if p.entries else others
                whole = not p.entries and len(places) == hi - lo
                sides[leaving].append(Side(index, leaving, _run(inside), _run(ends), None if whole else places))
    values = balance[lo:hi].tolist()
    return Group(lo, hi, tuple(sides[False]), tuple(sides[True]), values, len(set(values)) == 1)


def _run(numbers: Tensor) -> Tensor | slice:
    """Consecutive numbers as a slice, which needs no copy."""
    first, last = int(numbers[0]), int(numbers[-1])
    whole = last - first + 1 == len(numbers) and bool((numbers[1:] > numbers[:-1]).all())
    return slice(first, last + 1) if whole else numbers
