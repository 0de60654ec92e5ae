"""How a graph's parameters reduce to matrices between units: all that can be known before ``g``, made once a graph."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

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
        starts = list(accumulate((1, *self.sizes)))
        near: list[list[int]] = [[] for _ in self.sizes]
        blocks = [(p, _Ends(p.rows), _Ends(p.cols)) for p in self.patterns.values()]
        for index, (_, rows, cols) in enumerate(blocks):
            for group in sorted({*rows.groups(starts), *cols.groups(starts)}):
                near[group].append(index)
        found: list[Group] = []
        for lo, hi, touching in zip(starts, starts[1:], near, strict=False):
            coupled = any(_coupled(*blocks[i], lo, hi) for i in touching)
            spans = [(h, h + 1) for h in range(lo, hi)] if coupled else [(lo, hi)]
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


class _Ends:
    """The units at one end of a block; consecutive ones, which is nearly all, are handled as a range."""

    def __init__(self, numbers: Tensor) -> None:
        self.numbers = numbers
        first, last = int(numbers[0]), int(numbers[-1])
        run = last - first + 1 == len(numbers) and bool((numbers[1:] > numbers[:-1]).all())
        self.run = range(first, last + 1) if run else None

    def groups(self, starts: list[int]) -> list[int]:
        """Groups that hold one of the units; ``starts`` are their first units, and one more."""
        if self.run is not None:
            first, last = max(self.run.start, 1), self.run.stop - 1
            return list(range(bisect_right(starts, first) - 1, bisect_left(starts, last + 1))) if last >= first else []
        some = self.numbers[self.numbers > 0].unique()
        return (torch.bucketize(some, torch.tensor(starts), right=True) - 1).unique().tolist()

    def within(self, lo: int, hi: int) -> tuple[slice | Tensor, Tensor | None] | None:
        """Which of them lie in a group, and at which of its places (None for all, in order); None for none."""
        if self.run is not None:
            first, stop = max(self.run.start, lo), min(self.run.stop, hi)
            if first >= stop:
                return None
            places = None if (first, stop) == (lo, hi) else torch.arange(first - lo, stop - lo)
            return slice(first - self.run.start, stop - self.run.start), places
        inside = ((self.numbers >= lo) & (self.numbers < hi)).nonzero()[:, 0]
        return (inside, self.numbers[inside] - lo) if len(inside) else None

    def whole(self) -> slice | Tensor:
        """All of them, as an index."""
        return self.numbers if self.run is None else slice(self.run.start, self.run.stop)


def _coupled(p: Pattern, rows: _Ends, cols: _Ends, lo: int, hi: int) -> bool:
    """Whether a parameter enters one unit of the group and leaves another."""
    entering, leaving = rows.within(lo, hi), cols.within(lo, hi)
    if entering is None or leaving is None:
        return False
    if p.entries:
        inside = (p.rows >= lo) & (p.rows < hi) & (p.cols >= lo) & (p.cols < hi)
        return bool((inside & (p.rows != p.cols)).any())
    return bool((p.rows[entering[0]][:, None] != p.cols[leaving[0]][None, :]).any())


def _group(blocks: list[tuple[Pattern, _Ends, _Ends]], touching: list[int], lo: int, hi: int, balance: Tensor) -> Group:
    sides: dict[bool, list[Side]] = {False: [], True: []}
    for index in touching:
        p, rows, cols = blocks[index]
        for leaving, ours, others in ((False, rows, cols), (True, cols, rows)):
            found = ours.within(lo, hi)
            if found is None:
                continue
            cut, places = found
            if p.entries:
                ends = _Ends(others.numbers[cut]).whole()
                places = ours.numbers[cut] - lo
            else:
                ends = others.whole()
            sides[leaving].append(Side(index, leaving, cut, ends, places))
    values = balance[lo:hi].tolist()
    return Group(lo, hi, tuple(sides[False]), tuple(sides[True]), values, len(set(values)) == 1)
