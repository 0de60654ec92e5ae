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

Where a graph has negative units (-h: with the inverse scale of unit h), every unit has a mirror. Blocks are then
indexed by nodes: 0 for no unit, h for unit h, H + h for its mirror, whose log-scale is -u_h. What enters a mirror
leaves the unit, and the reverse.

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
            mirrors also units with |A_h| >= p, for which there may be none.
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
        spans = self.layout.spans(*skip) if skip[1] else ()
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
    of ``untouched`` parameters, are returned too. Doubled elements become blocks of their own.
    """
    unscaled = list(untouched)
    doubled: list[tuple[Tensor, float]] = []
    for b, m, log in zip(layout.blocks.values(), parts, logs, strict=True):
        if b.unscaled is not None:
            where = tuple(layout.on(index, m.device) for index in b.unscaled)
            unscaled.append((m[where].sum(), log))
            m[where] = 0.0
        if b.doubled is not None:
            where = tuple(layout.on(index, m.device) for index in b.doubled)
            doubled.append((m[where], log))
            m[where] = 0.0
    parts, logs = [*parts, *(m for m, _ in doubled)], [*logs, *(log for _, log in doubled)]
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
    entering, leaving = torch.zeros(2, layout.nodes, dtype=torch.float64, device=device)
    ones = torch.ones(max((n for b in blocks for n in b.m.shape), default=0), dtype=torch.float64, device=device)
    for b in blocks:
        entering.index_add_(0, b.rows, b.m @ ones[: len(b.cols)] if b.dense else b.m)
        leaving.index_add_(0, b.cols, ones[: len(b.rows)] @ b.m if b.dense else b.m)
    if not layout.signed:
        return (entering == 0) | (leaving == 0)
    n = layout.units + 1
    into, out = entering[:n].clone(), leaving[:n].clone()
    into[1:] += leaving[n:]
    out[1:] += entering[n:]
    return (into == 0) | (out == 0) | (layout.on(layout.balance, device).abs() >= size)


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
        doubled: indices of elements between a unit and its mirror, on which the unit's scale acts twice; None for none.
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
    doubled: tuple[Tensor, ...] | None
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


def block_layout(shape: tuple[int, ...], scales: ParamScales, mirrors: int = 0) -> BlockLayout:
    """Lay out a parameter of some shape with the units that its elements enter and leave.

    ``mirrors`` is the number of units, H, where the graph has negative units, and 0 otherwise.
    """
    row, col = scales.row, scales.col
    if mirrors:
        row, col = (torch.where(units < 0, mirrors - units, units) for units in (row, col))
    row_axes, col_axes = _varying_axes(row), _varying_axes(col)
    if set(row_axes) & set(col_axes):
        return _elementwise_layout(shape, row, col, mirrors)
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
        doubled=_pairs(_mirror(rows, mirrors), cols) if mirrors else None,
        elementwise=False,
    )


def _pairs(rows: Tensor, cols: Tensor) -> tuple[Tensor, Tensor] | None:
    """Positions (i, j) with ``rows[i] == cols[j]``; rows are distinct, columns also sorted. None for none."""
    at_rows = torch.isin(rows, cols, assume_unique=True).nonzero()[:, 0]
    return (at_rows, torch.searchsorted(cols, rows[at_rows])) if len(at_rows) else None


def _mirror(nodes: Tensor, units: int) -> Tensor:
    """The mirror of each node; -1 for no unit, which has none."""
    return torch.where(nodes > units, nodes - units, torch.where(nodes > 0, nodes + units, -1))


def _elementwise_layout(shape: tuple[int, ...], row: Tensor, col: Tensor, mirrors: int) -> BlockLayout:
    """Grouped and depthwise layers: one element for each pair of units that has a weight."""
    kept = tuple(i for i in range(len(shape)) if row.shape[i] > 1 or col.shape[i] > 1)
    sizes = [n if i in kept else 1 for i, n in enumerate(shape)]
    rows, cols = row.expand(sizes).reshape(-1), col.expand(sizes).reshape(-1)
    same = (rows == cols).nonzero()[:, 0]
    opposite = (_mirror(rows, mirrors) == cols).nonzero()[:, 0] if mirrors else same[:0]
    return BlockLayout(
        order=kept,
        summed=tuple(i for i in range(len(shape)) if i not in kept),
        shape=(len(rows),),
        rows=rows,
        cols=cols,
        merge_rows=None,
        merge_cols=None,
        unscaled=(same,) if len(same) else None,
        doubled=(opposite,) if len(opposite) else None,
        elementwise=True,
    )


def _doubled_layout(b: BlockLayout) -> BlockLayout:
    """The doubled elements of a block as a block of their own."""
    assert b.doubled is not None  # noqa: S101 - the caller's promise
    rows, cols = b.rows[b.doubled[0]], b.cols[b.doubled[-1]]
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
    the nodes at the other end; ``positions`` are the positions in the layer that the sums belong to, None for all in
    order. Rows of units and columns of mirrors enter the units; columns of units and rows of mirrors leave them.
    """

    block: int
    columns: bool
    index: slice | Tensor
    others: slice | Tensor
    positions: Tensor | None


@dataclass(frozen=True)
class Layer:
    """Units ``lo <= h < hi`` that no parameter connects to one another, and the blocks that touch them.

    ``entering_twice`` and ``leaving_twice`` are the doubled elements. ``balance`` is A of each unit; ``uniform`` says
    that it is the same for all.
    """

    lo: int
    hi: int
    entering: tuple[Side, ...]
    leaving: tuple[Side, ...]
    entering_twice: tuple[Side, ...]
    leaving_twice: tuple[Side, ...]
    balance: list[float]
    uniform: bool

    @property
    def doubled(self) -> bool:
        """Whether the scale of some unit acts twice on some element."""
        return bool(self.entering_twice or self.leaving_twice)


@dataclass(frozen=True)
class Layout:
    """Structure of F for one graph and one set of parameters.

    Attributes:
        units: H.
        layer_sizes: sizes of the runs of units that belong to one layer, in network order.
        blocks: layouts by parameter name.
        balance: A_h, float64, shape (H + 1,).
        signed: whether the graph has negative units, so that units have mirrors.
        workspace: memory kept for the next solve.
    """

    units: int
    layer_sizes: tuple[int, ...]
    blocks: dict[str, BlockLayout]
    balance: Tensor
    signed: bool = False
    workspace: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def size(self) -> int:
        """Number of elements of all blocks."""
        return sum(b.size for b in self.blocks.values())

    @property
    def nodes(self) -> int:
        """Number of nodes: H + 1, and H more for the mirrors."""
        return 2 * self.units + 1 if self.signed else self.units + 1

    @cached_property
    def all_blocks(self) -> tuple[BlockLayout, ...]:
        """The blocks of the parameters, then those of doubled elements."""
        blocks = tuple(self.blocks.values())
        return (*blocks, *(_doubled_layout(b) for b in blocks if b.doubled is not None))

    def on(self, tensor: Tensor, device: torch.device) -> Tensor:
        """One of the layout's own tensors on a device; copies are kept."""
        if tensor.device == device:
            return tensor
        copies = self.workspace.setdefault("copies", {})
        if (id(tensor), device) not in copies:
            copies[id(tensor), device] = (tensor, tensor.to(device))  # keeps the tensor, so that its id is not reused
        return copies[id(tensor), device][1]

    def at_nodes(self, u: Tensor) -> Tensor:
        """Extend values by unit, shape (H + 1,), to nodes: mirrors have the opposite value."""
        return torch.cat((u, -u[1:])) if self.signed else u

    def pad(self, x: Tensor) -> Tensor:
        """Values by node, zero at the mirrors."""
        return torch.cat((x, torch.zeros_like(x[1:]))) if self.signed else x

    def fold(self, x: Tensor, sign: float = -1.0) -> Tensor:
        """The transpose of :meth:`at_nodes`: values by node to shape (H + 1,), with ``sign`` times the mirrors'."""
        n = self.units + 1
        return torch.cat((x[:1], x[1:n] + sign * x[n:])) if self.signed else x

    def spans(self, lo: int, hi: int) -> tuple[tuple[int, int], ...]:
        """The nodes of the units ``lo <= h < hi`` as ranges: the units, then their mirrors."""
        return ((lo, hi), (lo + self.units, hi + self.units)) if self.signed else ((lo, hi),)

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
        return torch.where(nodes > self.units, nodes - self.units, nodes)

    def _touched(self, ends: _Ends, starts: list[int]) -> list[int]:
        return (_Ends(self._units_at(ends.nodes)) if self.signed else ends).layers(starts)

    def _coupled(self, b: BlockLayout, rows: _Ends, cols: _Ends, lo: int, hi: int) -> bool:
        """Whether a parameter connects two units of the layer, or their mirrors."""
        entering, leaving = ([x for span in self.spans(lo, hi) if (x := ends.within(*span))] for ends in (rows, cols))
        if not entering or not leaving:
            return False
        ours, others = self._units_at(b.rows), self._units_at(b.cols)
        if b.elementwise:
            inside = (ours >= lo) & (ours < hi) & (others >= lo) & (others < hi)
            return bool((inside & (ours != others)).any())
        touched = torch.cat([ours[index] for index, _ in entering] + [others[index] for index, _ in leaving])
        return bool((touched != touched[0]).any())

    def _layer(self, blocks: list[tuple[BlockLayout, _Ends, _Ends]], indices: list[int], lo: int, hi: int) -> Layer:
        once: dict[bool, list[Side]] = {False: [], True: []}  # by whether the elements leave the units
        twice: dict[bool, list[Side]] = {False: [], True: []}
        for block in indices:
            b, rows, cols = blocks[block]
            doubled = block >= len(self.blocks)
            for mirrored, span in enumerate(self.spans(lo, hi)[: 1 if doubled else 2]):
                for columns, ours, others in ((False, rows, cols), (True, cols, rows)):
                    found = ours.within(*span)
                    if found is None:
                        continue
                    index, positions = found
                    if b.elementwise:
                        ends = _Ends(others.nodes[index]).all()
                        positions = ours.nodes[index] - span[0]
                    else:
                        ends = others.all()
                    (twice if doubled else once)[columns != bool(mirrored)].append(
                        Side(block, columns, index, ends, positions)
                    )
        values = self.balance[lo:hi].tolist()
        sides = (tuple(found[leaving]) for found in (once, twice) for leaving in (False, True))
        return Layer(lo, hi, *sides, balance=values, uniform=len(set(values)) == 1)


def layout_of(graph: ScaleGraph, names: tuple[str, ...], linear: bool = True) -> Layout:
    """The layout of a graph for the parameters ``names``; kept with the graph.

    Without ``linear``, A is 0 for every unit: F is then p times the logarithm of the sum alone.
    """
    cache = graph.__dict__.setdefault("_layouts", {})
    if (names, linear) not in cache:
        params = {name: graph.params[name] for name in names if name in graph.params}
        signed = any(bool((units < 0).any()) for scales in params.values() for units in (scales.row, scales.col))
        mirrors = graph.units if signed else 0
        blocks = {name: block_layout(graph.shapes[name], scales, mirrors) for name, scales in params.items()}
        layout = Layout(graph.units, graph.groups, blocks, torch.zeros(graph.units + 1, dtype=torch.float64), signed)
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
