"""The convex objective F of the units' log-scales, reduced to one block of numbers per parameter.

Paper symbols and their names here:

    H        units        number of units
    u        u            log-scales, shape (H + 1,); entry 0 stands for no unit and is 0
    p        size         number of parameters that have an entry in g
    g        g            diag(G), by parameter
    B        rows, cols   (Bu)_i = u[unit that i leaves] - u[unit that i enters]
    A_h      balance      number of parameters that enter unit h minus number that leave it
    F(u)     value        p log(sum_i exp((Bu)_i) g_i) - sum_i (Bu)_i

A parameter enters at most one unit and leaves at most one. Of ``g``, F therefore needs only the sums ``m[r, c]`` over
the parameters that enter unit r and leave unit c: a block, whose rows are the units entered and columns the units left.

Scales may act by a power: a weight behind a squared ReLU is divided by lambda^2, and attention keys carry the inverse
of a scale. Blocks are therefore indexed by *nodes*: 0 for no unit, h for unit h, then one for each power of a unit,
whose log-scale is ``power * u_h``, and, where a graph has negative numbers, a mirror of each node with the opposite
log-scale. The u in (Bu)_i, and the multiples in A_h, are those of nodes. Nearly always the nodes are the units.

:class:`Layout` is what is known before ``g``, made once for a graph; :class:`Objective` is F for one ``g``.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from pathcond.graph import ParamScales, ScaleGraph

LOG_RANGE = 200.0  # exponentials of larger numbers are kept as logarithms
_CHUNK = 1 << 22  # elements that are reduced at a time


@dataclass(frozen=True)
class Block:
    """Sums of ``g`` between nodes: element (i, j) of ``m * exp(log)`` enters node ``rows[i]`` and leaves ``cols[j]``.

    Dense where ``m`` has two axes. Where it has one, element i enters ``rows[i]`` and leaves ``cols[i]``.
    """

    rows: Tensor
    cols: Tensor
    m: Tensor
    log: float

    @property
    def dense(self) -> bool:
        """Whether every pair of a row and a column has an element."""
        return self.m.ndim == 2


@dataclass(frozen=True)
class Objective:
    """F for one model.

    Attributes:
        size: p.
        blocks: the sums of g between nodes, in the order of ``layout.all_blocks``.
        log_constant: log of the sum of the entries of g that no scale changes.
        balance: A_h, float64, shape (H + 1,).
        dead: units that nothing enters or nothing leaves, and entry 0: F has no minimum along their log-scale. With
            powers and mirrors also units whose A_h is so large that F has none.
        layout: the units and the blocks' structure.
    """

    size: int
    blocks: tuple[Block, ...]
    log_constant: float
    balance: Tensor
    dead: Tensor
    layout: Layout

    @property
    def units(self) -> int:
        """H."""
        return self.layout.units

    @property
    def common_log(self) -> float | None:
        """The ``log`` of all blocks, None if they differ."""
        logs = {block.log for block in self.blocks}
        return logs.pop() if len(logs) == 1 else None

    @property
    def device(self) -> torch.device:
        """Where the blocks are."""
        return self.balance.device

    def log_sum(self, u: Tensor, skip: tuple[int, int] = (0, 0)) -> float:
        """Log of sum_i exp((Bu)_i) g_i, without parameters that touch a unit ``skip[0] <= h < skip[1]``."""
        totals, logs = [], []
        exponentials = Exponentials(self.layout.at_nodes(u))
        spans = [(s.first, s.stop) for s in self.layout.spans(*skip)] if skip[1] else []
        for block in self.blocks:
            at_cols, at_rows, log = exponentials.of(block)
            for lo, hi in spans:
                at_cols = at_cols.masked_fill((block.cols >= lo) & (block.cols < hi), 0.0)
                at_rows = at_rows.masked_fill((block.rows >= lo) & (block.rows < hi), 0.0)
            totals.append(at_rows @ (block.m @ at_cols) if block.dense else (at_rows * block.m * at_cols).sum())
            logs.append(log)
        values = torch.stack(totals).tolist() if totals else []
        return _log_sum_exp([self.log_constant, *(_log(t, log) for t, log in zip(values, logs, strict=True))])

    def value(self, u: Tensor) -> float:
        """F(u)."""
        return self.size * self.log_sum(u) + float(self.balance @ u)

    def gradient(self, u: Tensor) -> Tensor:
        """Gradient of F over p, shape (H + 1,); zero at entry 0 and for dead units."""
        log_sum, exponentials = self.log_sum(u), Exponentials(self.layout.at_nodes(u))
        grad = self.layout.pad(self.balance / self.size)
        for block in self.blocks:
            leaving, entering = fractions(block, exponentials, log_sum)
            grad.index_add_(0, block.cols, leaving)
            grad.index_add_(0, block.rows, entering, alpha=-1)
        grad = self.layout.fold(grad)
        grad[0] = 0
        return torch.where(self.dead, 0.0, grad)


class Exponentials:
    """exp(u) at the columns and exp(-u) at the rows of blocks, up to a common factor where u is large; u by node."""

    def __init__(self, u: Tensor) -> None:
        self.in_range = float(u.abs().amax()) < LOG_RANGE
        self.plus, self.minus = (u.exp(), (-u).exp()) if self.in_range else (u, -u)

    def of(self, block: Block) -> tuple[Tensor, Tensor, float]:
        """Factors of the columns and of the rows, and the log of the factor that the block has besides them."""
        plus, minus = self.plus[block.cols], self.minus[block.rows]
        if self.in_range:
            return plus, minus, block.log
        high, low = float(plus.amax()), float(minus.amax())
        return (plus - high).exp(), (minus - low).exp(), block.log + high + low


def fractions(block: Block, exponentials: Exponentials, log_sum: float) -> tuple[Tensor, Tensor]:
    """Fractions of the sum that leave the block's columns and that enter its rows (or, not dense, of its elements)."""
    at_cols, at_rows, log = exponentials.of(block)
    factor = math.exp(min(700.0, log - log_sum))
    if not block.dense:
        each = at_rows * block.m * at_cols * factor
        return each, each
    return at_cols * (at_rows @ block.m) * factor, at_rows * (block.m @ at_cols) * factor


def build_objective(
    layout: Layout,
    g: Mapping[str, Tensor],
    logs: Mapping[str, float],
    *,
    device: torch.device,
    consume: bool = False,
) -> Objective:
    """Reduce diag(G) to an :class:`Objective`.

    Args:
        layout: the layout for the names in ``g``, from :func:`layout_of`.
        g: tensors by parameter name; the entries of diag(G) are ``g[name] * exp(logs[name])``.
        logs: logarithms by parameter name; 0 where there is none.
        device: where to put the blocks.
        consume: remove entries from ``g`` as they are used, to save memory; ``g`` must be mutable.
    """
    size = sum(t.numel() for t in g.values())
    untouched: list[tuple[Tensor, float]] = []
    parts: list[Tensor] = []
    block_logs: list[float] = []
    for name in list(g):
        t, log = g[name], logs.get(name, 0.0)
        if name in layout.blocks:
            parts.append(_reduce(t, layout, layout.blocks[name]))
            block_logs.append(log)
        else:
            untouched.append((t.sum(dtype=torch.float64), log))
        if consume:
            assert isinstance(g, MutableMapping)  # noqa: S101 - the caller's promise
            del g[name]
        del t
    blocks, constants = _normalize(layout, _move(parts, device), block_logs, untouched)
    return Objective(
        size=size,
        blocks=tuple(blocks),
        log_constant=_log_sum_exp(constants) if constants else -math.inf,
        balance=layout.on(layout.balance, device),
        dead=_dead(layout, size, blocks, device),
        layout=layout,
    )


def _reduce(t: Tensor, layout: Layout, b: BlockLayout) -> Tensor:
    """Sum a parameter's elements between the same units; float64, and never a view of ``t``."""
    t = t.permute(*b.order, *b.summed).reshape(*b.shape, -1)
    if b.elementwise or (t.shape[-1] == 1 and b.merge_rows is None and b.merge_cols is None):
        return t[..., 0].to(torch.float64, copy=True) if t.shape[-1] == 1 else t.sum(-1).double()
    n_row, n_col, each = t.shape
    make = torch.empty if b.merge_rows is None else torch.zeros
    m = make(len(b.rows), len(b.cols), dtype=torch.float64, device=t.device)
    step = max(1, _CHUNK // max(1, n_col * each))
    for start in range(0, n_row, step):
        stop = min(start + step, n_row)
        part = t[start:stop, :, 0] if each == 1 else t[start:stop].sum(-1)
        if b.merge_cols is not None:
            merged = torch.zeros(stop - start, len(b.cols), dtype=torch.float64, device=t.device)
            part = merged.index_add_(1, layout.on(b.merge_cols, t.device), part.double())
        if b.merge_rows is None:
            m[start:stop] = part
        else:
            m.index_add_(0, layout.on(b.merge_rows, t.device)[start:stop], part.double())
    return m


def _move(parts: list[Tensor], device: torch.device) -> list[Tensor]:
    """All tensors on a device, in one transfer if they come from one other device."""
    sources = {m.device for m in parts}
    if sources <= {device}:
        return parts
    if len(sources) > 1:
        return [m.to(device) for m in parts]
    flat = torch.cat([m.reshape(-1) for m in parts]).to(device).split([m.numel() for m in parts])
    return [part.reshape(m.shape) for m, part in zip(parts, flat, strict=True)]


def _normalize(
    layout: Layout, parts: list[Tensor], logs: list[float], untouched: list[tuple[Tensor, float]]
) -> tuple[list[Block], list[float]]:
    """Blocks with largest element 1 at one common logarithm, or, if they differ too much, each at its own.

    Works in place on ``parts``. Elements that no scale changes are set to zero; logarithms of their sums, and of those
    of ``untouched`` parameters, are returned too. Inner elements become blocks of their own.
    """
    unscaled = list(untouched)
    inner: list[tuple[Tensor, float]] = []
    for b, m, log in zip(layout.blocks.values(), parts, logs, strict=True):
        if b.unscaled is not None:
            where = tuple(layout.on(index, m.device) for index in b.unscaled)
            unscaled.append((m[where].sum(), log))
            m[where] = 0.0
        if b.inner is not None:
            where = tuple(layout.on(index, m.device) for index in b.inner)
            inner.append((m[where], log))
            m[where] = 0.0
    parts, logs = [*parts, *(m for m, _ in inner)], [*logs, *(log for _, log in inner)]
    values = _read([*(t for t, _ in unscaled), *(m.amax() for m in parts)])
    constants = [_log(value, log) for value, (_, log) in zip(values, unscaled, strict=False)]
    tops = values[len(unscaled) :]
    tops_log = [_log(top, log) for top, log in zip(tops, logs, strict=True)]
    finite = [log for log in tops_log if log > -math.inf]
    common = max(finite, default=0.0)
    close = all(common - log < LOG_RANGE for log in finite)
    blocks = []
    for b, m, top, log in zip(layout.all_blocks, parts, tops, tops_log, strict=True):
        if top > 0:
            m.mul_(math.exp(log - common if close else 0.0) / top)
        rows, cols = layout.on(b.rows, m.device), layout.on(b.cols, m.device)
        blocks.append(Block(rows, cols, m, log if top > 0 and not close else common))
    return blocks, constants


def _dead(layout: Layout, size: int, blocks: list[Block], device: torch.device) -> Tensor:
    """Units that nothing enters or nothing leaves; by matrix-vector products, which read a block at full speed."""
    if layout.nodes > layout.units + 1:
        return _dead_with_powers(layout, size, blocks, device)
    entering, leaving = torch.zeros(2, layout.nodes, dtype=torch.float64, device=device)
    ones = torch.ones(max((n for b in blocks for n in b.m.shape), default=0), dtype=torch.float64, device=device)
    for b in blocks:
        entering.index_add_(0, b.rows, b.m @ ones[: len(b.cols)] if b.dense else b.m)
        leaving.index_add_(0, b.cols, ones[: len(b.rows)] @ b.m if b.dense else b.m)
    return (entering == 0) | (leaving == 0)


def _dead_with_powers(layout: Layout, size: int, blocks: list[Block], device: torch.device) -> Tensor:
    """F falls without end along u_h unless some term rises faster, and another falls faster, than the linear term."""
    unit_of, power_of = (layout.on(t, device) for t in (layout.unit_of, layout.power_of))
    highest, lowest = torch.zeros(2, layout.units + 1, dtype=torch.float64, device=device)
    for index, b in enumerate(blocks):
        if index >= len(layout.blocks):
            ends = [(unit_of[b.rows], power_of[b.cols] - power_of[b.rows], b.m)]
        else:
            at_cols = b.m.amax(0) if b.dense else b.m
            at_rows = b.m.amax(1) if b.dense else b.m
            ends = [(unit_of[b.cols], power_of[b.cols], at_cols), (unit_of[b.rows], -power_of[b.rows], at_rows)]
        for units, powers, m in ends:
            found = torch.where(m > 0, powers, 0.0)
            highest.scatter_reduce_(0, units, found, "amax")
            lowest.scatter_reduce_(0, units, found, "amin")
    balance = layout.on(layout.balance, device)
    dead = (highest * size + balance <= 0) | (lowest * size + balance >= 0) | (highest <= 0) | (lowest >= 0)
    dead[0] = True
    return dead


def _log(value: float, log: float) -> float:
    return math.log(value) + log if value > 0 else -math.inf


def _read(scalars: list[Tensor]) -> list[float]:
    """Values of scalars, with one synchronization per device."""
    found: dict[int, float] = {}
    for device in {t.device for t in scalars}:
        there = [i for i, t in enumerate(scalars) if t.device == device]
        found |= dict(zip(there, torch.stack([scalars[i] for i in there]).tolist(), strict=True))
    return [found[i] for i in range(len(scalars))]


def _log_sum_exp(terms: list[float]) -> float:
    top = max(terms)
    return top + math.log(sum(math.exp(t - top) for t in terms)) if top > -math.inf else top


# ---- structure of the blocks: all that is known before g


@dataclass(frozen=True)
class BlockLayout:
    """How one parameter's elements of ``g`` are summed to a block.

    Attributes:
        order: axes that are kept, first those of the rows, then those of the columns.
        summed: axes that are summed out.
        shape: shape of the kept part, (rows, columns) or (elements,).
        rows: nodes that the block's rows enter; sorted and distinct, unless ``elementwise``.
        cols: nodes that its columns leave, likewise.
        merge_rows: row of the block for each row of the kept part; None if they are the same.
        merge_cols: likewise for columns.
        unscaled: indices of elements with the same node, or none, at both ends; None for none.
        inner: indices of elements between two nodes of one unit, on which the unit's scale acts twice; None for none.
        elementwise: list single elements, as grouped layers need, in place of a dense matrix.
    """

    order: tuple[int, ...]
    summed: tuple[int, ...]
    shape: tuple[int, ...]
    rows: Tensor
    cols: Tensor
    merge_rows: Tensor | None
    merge_cols: Tensor | None
    unscaled: tuple[Tensor, ...] | None
    inner: tuple[Tensor, ...] | None
    elementwise: bool

    @property
    def size(self) -> int:
        """Number of elements of the block."""
        return len(self.rows) if self.elementwise else len(self.rows) * len(self.cols)

    def add_balance(self, numel: int, balance: Tensor) -> None:
        """Add to ``balance`` the elements, of ``numel``, that enter each unit, and subtract those that leave it."""
        ends = ((self.rows, self.merge_rows, self.shape[0], 1), (self.cols, self.merge_cols, self.shape[-1], -1))
        for units, merge, count, sign in ends:
            repeats = torch.ones(count) if merge is None else torch.bincount(merge, minlength=len(units))
            balance.index_add_(0, units, repeats.double() * (numel / count), alpha=sign)


def block_layout(
    shape: tuple[int, ...], scales: ParamScales, numbers: int = 0, unit_of: Tensor | None = None
) -> BlockLayout:
    """Lay out a parameter of some shape with the units that its elements enter and leave.

    ``numbers`` is the largest number of the graph where it has negative ones, so that nodes have mirrors, and 0
    otherwise; ``unit_of`` is the unit of each node where not every node is a unit.
    """
    row, col = scales.row, scales.col
    if numbers:
        row, col = (torch.where(units < 0, numbers - units, units) for units in (row, col))
    row_axes, col_axes = _varying_axes(row), _varying_axes(col)
    if set(row_axes) & set(col_axes):
        return _elementwise_layout(shape, row, col, unit_of)
    rows, merge_rows = _distinct(_along(row, row_axes))
    cols, merge_cols = _distinct(_along(col, col_axes))
    return BlockLayout(
        order=(*row_axes, *col_axes),
        summed=tuple(i for i in range(len(shape)) if i not in row_axes and i not in col_axes),
        shape=tuple(math.prod(shape[i] for i in axes) for axes in (row_axes, col_axes)),
        rows=rows,
        cols=cols,
        merge_rows=merge_rows,
        merge_cols=merge_cols,
        unscaled=_pairs(rows, cols),
        inner=None if unit_of is None else _inner_pairs(rows, cols, unit_of),
        elementwise=False,
    )


def _pairs(rows: Tensor, cols: Tensor) -> tuple[Tensor, Tensor] | None:
    """Positions (i, j) with ``rows[i] == cols[j]``; rows are distinct, columns also sorted. None for none."""
    at_rows = torch.isin(rows, cols, assume_unique=True).nonzero()[:, 0]
    return (at_rows, torch.searchsorted(cols, rows[at_rows])) if len(at_rows) else None


def _inner_pairs(rows: Tensor, cols: Tensor, unit_of: Tensor) -> tuple[Tensor, Tensor] | None:
    """Positions (i, j) of different nodes ``rows[i]`` and ``cols[j]`` of one unit; None for none."""
    units, order = unit_of[cols].sort()
    first, stop = (torch.searchsorted(units, unit_of[rows], right=right) for right in (False, True))
    counts = stop - first
    at_rows = torch.arange(len(rows)).repeat_interleave(counts)
    within = torch.arange(len(at_rows)) - (counts.cumsum(0) - counts).repeat_interleave(counts)
    at_cols = order[first.repeat_interleave(counts) + within]
    differ = rows[at_rows] != cols[at_cols]
    return (at_rows[differ], at_cols[differ]) if bool(differ.any()) else None


def _elementwise_layout(shape: tuple[int, ...], row: Tensor, col: Tensor, unit_of: Tensor | None) -> BlockLayout:
    """Grouped and depthwise layers: one element for each pair of units that has a weight."""
    kept = tuple(i for i in range(len(shape)) if row.shape[i] > 1 or col.shape[i] > 1)
    sizes = [n if i in kept else 1 for i, n in enumerate(shape)]
    rows, cols = row.expand(sizes).reshape(-1), col.expand(sizes).reshape(-1)
    same = (rows == cols).nonzero()[:, 0]
    inner = same[:0] if unit_of is None else ((unit_of[rows] == unit_of[cols]) & (rows != cols)).nonzero()[:, 0]
    return BlockLayout(
        order=kept,
        summed=tuple(i for i in range(len(shape)) if i not in kept),
        shape=(len(rows),),
        rows=rows,
        cols=cols,
        merge_rows=None,
        merge_cols=None,
        unscaled=(same,) if len(same) else None,
        inner=(inner,) if len(inner) else None,
        elementwise=True,
    )


def _inner_layout(b: BlockLayout) -> BlockLayout:
    """The inner elements of a block as a block of their own."""
    assert b.inner is not None  # noqa: S101 - the caller's promise
    rows, cols = b.rows[b.inner[0]], b.cols[b.inner[-1]]
    return BlockLayout((), (), (len(rows),), rows, cols, None, None, None, None, elementwise=True)


def _varying_axes(units: Tensor) -> list[int]:
    """Axes along which the units differ."""
    return [i for i, n in enumerate(units.shape) if n > 1 and bool((units != units.narrow(i, 0, 1)).any())]


def _along(units: Tensor, axes: list[int]) -> Tensor:
    for i in range(units.ndim):
        if i not in axes:
            units = units.narrow(i, 0, 1)
    return units.reshape(-1).contiguous()


def _distinct(units: Tensor) -> tuple[Tensor, Tensor | None]:
    """Sorted distinct units, and the place of each given unit among them; None if they were sorted and distinct."""
    if len(units) == 1 or bool((units[1:] > units[:-1]).all()):
        return units, None
    return units.unique(return_inverse=True)  # type: ignore[return-value]


@dataclass(frozen=True)
class Side:
    """Elements of one block that enter (or leave) the units of a layer.

    ``index`` selects the layer's rows (or, with ``columns``, its columns) of the block, or its elements; ``others`` are
    the nodes at the other end, None where the units are at both ends; ``positions`` are the positions in the layer
    that the sums belong to, None for all in order.
    """

    block: int
    columns: bool
    index: slice | Tensor
    others: slice | Tensor | None
    positions: Tensor | None


@dataclass(frozen=True)
class Span:
    """The nodes ``first <= n < stop`` that are units of a layer at a power.

    ``positions`` are those of their units in the layer, None for all in order.
    """

    power: int
    first: int
    stop: int
    positions: Tensor | None


@dataclass(frozen=True)
class Layer:
    """Units ``lo <= h < hi`` that no parameter connects to one another, and the blocks that touch them.

    ``entering`` and ``leaving`` are the elements with u_h once in (Bu)_i, ``powers`` those with another multiple of it,
    or with the unit at both ends. ``balance`` is A of each unit; ``uniform`` says that it is the same for all.
    """

    lo: int
    hi: int
    entering: tuple[Side, ...]
    leaving: tuple[Side, ...]
    powers: tuple[tuple[int, tuple[Side, ...]], ...]
    balance: list[float]
    uniform: bool


@dataclass(frozen=True)
class Layout:
    """Structure of F for one graph and one set of parameters.

    Attributes:
        units: H.
        layer_sizes: sizes of the runs of units that belong to one layer, in network order.
        blocks: layouts by parameter name.
        balance: A_h, float64, shape (H + 1,).
        signed: whether the graph has negative numbers, so that nodes have mirrors.
        powers: :attr:`pathcond.ScaleGraph.powers`.
        workspace: memory kept for the next solve.
    """

    units: int
    layer_sizes: tuple[int, ...]
    blocks: dict[str, BlockLayout]
    balance: Tensor
    signed: bool
    powers: Tensor
    workspace: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def size(self) -> int:
        """Number of elements of all blocks."""
        return sum(b.size for b in self.blocks.values())

    @property
    def numbers(self) -> int:
        """Number of nodes without node 0 and mirrors: H, and one for each power of a unit."""
        return self.units + len(self.powers)

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return (2 if self.signed else 1) * self.numbers + 1

    @cached_property
    def unit_of(self) -> Tensor:
        """The unit of each node; 0 for node 0."""
        units = torch.cat((torch.arange(self.units + 1), self.powers[:, 0]))
        return torch.cat((units, units[1:])) if self.signed else units

    @cached_property
    def power_of(self) -> Tensor:
        """The power of each node, float64: its log-scale is ``power * u_h``."""
        powers = torch.cat((torch.ones(self.units + 1), self.powers[:, 1])).double()
        return torch.cat((powers, -powers[1:])) if self.signed else powers

    @cached_property
    def all_blocks(self) -> tuple[BlockLayout, ...]:
        """The blocks of the parameters, then those of inner elements."""
        blocks = tuple(self.blocks.values())
        return (*blocks, *(_inner_layout(b) for b in blocks if b.inner is not None))

    def on(self, tensor: Tensor, device: torch.device) -> Tensor:
        """One of the layout's own tensors on a device; copies are kept."""
        if tensor.device == device:
            return tensor
        copies = self.workspace.setdefault("copies", {})
        if (id(tensor), device) not in copies:
            copies[id(tensor), device] = (tensor, tensor.to(device))  # keeps the tensor, so that its id is not reused
        return copies[id(tensor), device][1]

    def at_nodes(self, u: Tensor) -> Tensor:
        """Extend values by unit, shape (H + 1,), to nodes."""
        if len(self.powers):
            units, powers = (self.on(t, u.device)[len(u) : self.numbers + 1] for t in (self.unit_of, self.power_of))
            u = torch.cat((u, u[units] * powers))
        return torch.cat((u, -u[1:])) if self.signed else u

    def pad(self, x: Tensor) -> Tensor:
        """Values by node, zero at all nodes that are not units."""
        return torch.cat((x, x.new_zeros(self.nodes - len(x)))) if self.nodes > len(x) else x

    def fold(self, x: Tensor, square: bool = False) -> Tensor:
        """The transpose of :meth:`at_nodes`: values by node to shape (H + 1,); with ``square`` by squared powers."""
        n = self.numbers + 1
        if self.signed:
            x = torch.cat((x[:1], x[1:n] + (x[n:] if square else -x[n:])))
        if len(self.powers):
            units, powers = (self.on(t, x.device)[self.units + 1 : n] for t in (self.unit_of, self.power_of))
            more = x[self.units + 1 :] * (powers.square() if square else powers)
            x = x[: self.units + 1].index_add(0, units, more)
        return x

    def spans(self, lo: int, hi: int) -> tuple[Span, ...]:
        """The nodes of the units ``lo <= h < hi``: the units, their powers, then the mirrors of all of them."""
        found = [Span(1, lo, hi, None)]
        if len(self.powers):
            inside = ((self.powers[:, 0] >= lo) & (self.powers[:, 0] < hi)).nonzero()[:, 0]
            for power in self.powers[inside, 1].unique().tolist():
                at = inside[self.powers[inside, 1] == power]
                first, stop = (self.units + 1 + int(i) for i in (at[0], at[-1] + 1))
                found.append(Span(power, first, stop, None if len(at) == hi - lo else self.powers[at, 0] - lo))
        if self.signed:
            found += [Span(-s.power, s.first + self.numbers, s.stop + self.numbers, s.positions) for s in found]
        return tuple(found)

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """The layers in network order; a layer that a parameter connects to itself is split into single units."""
        starts = list(accumulate((1, *self.layer_sizes)))
        touching: list[list[int]] = [[] for _ in self.layer_sizes]
        blocks = [(b, _Ends(b.rows), _Ends(b.cols)) for b in self.all_blocks]
        for index, (_, rows, cols) in enumerate(blocks):
            for layer in sorted({*self._touched(rows, starts), *self._touched(cols, starts)}):
                touching[layer].append(index)
        found: list[Layer] = []
        for lo, hi, indices in zip(starts, starts[1:], touching, strict=False):
            coupled = any(self._coupled(*blocks[i], lo, hi) for i in indices if i < len(self.blocks))
            spans = [(h, h + 1) for h in range(lo, hi)] if coupled else [(lo, hi)]
            found += [self._layer(blocks, indices, *span) for span in spans]
        return tuple(found)

    def _units_at(self, nodes: Tensor) -> Tensor:
        return self.unit_of[nodes] if self.nodes > self.units + 1 else nodes

    def _touched(self, ends: _Ends, starts: list[int]) -> list[int]:
        return (_Ends(self._units_at(ends.nodes)) if self.nodes > self.units + 1 else ends).layers(starts)

    def _coupled(self, b: BlockLayout, rows: _Ends, cols: _Ends, lo: int, hi: int) -> bool:
        """Whether a parameter connects two units of the layer, at any powers."""
        entering, leaving = (
            [x for span in self.spans(lo, hi) if (x := ends.within(span.first, span.stop))] for ends in (rows, cols)
        )
        if not entering or not leaving:
            return False
        ours, others = self._units_at(b.rows), self._units_at(b.cols)
        if b.elementwise:
            inside = (ours >= lo) & (ours < hi) & (others >= lo) & (others < hi)
            return bool((inside & (ours != others)).any())
        touched = torch.cat([ours[index] for index, _ in entering] + [others[index] for index, _ in leaving])
        return bool((touched != touched[0]).any())

    def _layer(self, blocks: list[tuple[BlockLayout, _Ends, _Ends]], indices: list[int], lo: int, hi: int) -> Layer:
        once: dict[int, list[Side]] = {-1: [], 1: []}  # by the multiple of u_h in (Bu)_i
        powers: dict[int, list[Side]] = {}
        spans = self.spans(lo, hi)
        for block in indices:
            b, rows, cols = blocks[block]
            if block >= len(self.blocks):
                self._add_inner(powers, block, b, lo, hi)
                continue
            for span in spans:
                for columns, ours, others in ((False, rows, cols), (True, cols, rows)):
                    found = ours.within(span.first, span.stop)
                    if found is None:
                        continue
                    index, positions = found
                    if b.elementwise:
                        ends = _Ends(others.nodes[index]).all()
                        positions = ours.nodes[index] - span.first
                    else:
                        ends = others.all()
                    if span.positions is not None:
                        positions = span.positions if positions is None else span.positions[positions]
                    power = span.power if columns else -span.power
                    sides = once[power] if power in once else powers.setdefault(power, [])
                    sides.append(Side(block, columns, index, ends, positions))
        values = self.balance[lo:hi].tolist()
        return Layer(
            lo,
            hi,
            entering=tuple(once[-1]),
            leaving=tuple(once[1]),
            powers=tuple((power, tuple(powers[power])) for power in sorted(powers, reverse=True)),
            balance=values,
            uniform=len(set(values)) == 1,
        )

    def _add_inner(self, powers: dict[int, list[Side]], block: int, b: BlockLayout, lo: int, hi: int) -> None:
        """Add the elements between two nodes of one unit of the layer, by the multiple of u_h in (Bu)_i."""
        units, multiple = self.unit_of[b.rows], (self.power_of[b.cols] - self.power_of[b.rows]).long()
        for power in multiple.unique().tolist():
            index = ((multiple == power) & (units >= lo) & (units < hi)).nonzero()[:, 0]
            if len(index):
                powers.setdefault(power, []).append(Side(block, False, index, None, units[index] - lo))


def layout_of(graph: ScaleGraph, names: tuple[str, ...], linear: bool = True) -> Layout:
    """The layout of a graph for the parameters ``names``; kept with the graph.

    Without ``linear``, A is 0 for every unit: F is then p times the logarithm of the sum alone.
    """
    cache = graph.__dict__.setdefault("_layouts", {})
    if (names, linear) not in cache:
        params = {name: graph.params[name] for name in names if name in graph.params}
        signed = any(bool((units < 0).any()) for scales in params.values() for units in (scales.row, scales.col))
        empty = torch.zeros(graph.units + 1, dtype=torch.float64)
        layout = Layout(graph.units, graph.groups, {}, empty, signed, graph.powers)
        numbers = layout.numbers if signed else 0
        unit_of = layout.unit_of if layout.nodes > graph.units + 1 else None
        blocks = {n: block_layout(graph.shapes[n], scales, numbers, unit_of) for n, scales in params.items()}
        layout = replace(layout, blocks=blocks, workspace={})
        if linear:
            balance = layout.pad(layout.balance)
            for name, block in blocks.items():
                block.add_balance(math.prod(graph.shapes[name]), balance)
            balance = layout.fold(balance)
            balance[0] = 0
            layout = replace(layout, balance=balance)
        cache[names, linear] = layout
    return cache[names, linear]


class _Ends:
    """The nodes at one end of a block; consecutive ones, the usual case, are handled as a range."""

    def __init__(self, nodes: Tensor) -> None:
        self.nodes = nodes
        first, last = int(nodes[0]), int(nodes[-1])
        consecutive = last - first + 1 == len(nodes) and bool((nodes[1:] > nodes[:-1]).all())
        self.range = range(first, last + 1) if consecutive else None

    def layers(self, starts: list[int]) -> list[int]:
        """Layers that hold one of the nodes; ``starts`` are the first units of the layers, then the end of the last."""
        if self.range is not None:
            first, last = max(self.range.start, 1), self.range.stop - 1
            return list(range(bisect_right(starts, first) - 1, bisect_left(starts, last + 1))) if last >= first else []
        some = self.nodes[self.nodes > 0].unique()
        return (torch.bucketize(some, torch.tensor(starts), right=True) - 1).unique().tolist()

    def within(self, lo: int, hi: int) -> tuple[slice | Tensor, Tensor | None] | None:
        """Nodes that lie in a layer, and their positions in it (None for the whole layer in order); None for none."""
        if self.range is not None:
            first, stop = max(self.range.start, lo), min(self.range.stop, hi)
            if first >= stop:
                return None
            positions = None if (first, stop) == (lo, hi) else torch.arange(first - lo, stop - lo)
            return slice(first - self.range.start, stop - self.range.start), positions
        inside = ((self.nodes >= lo) & (self.nodes < hi)).nonzero()[:, 0]
        return (inside, self.nodes[inside] - lo) if len(inside) else None

    def all(self) -> slice | Tensor:
        """All nodes, as an index."""
        return self.nodes if self.range is None else slice(self.range.start, self.range.stop)
