"""The convex problem in the units' log-scales, reduced to one matrix per parameter.

Paper symbols: ``u`` log-scales of the H units, ``p`` the number of parameters, ``g = diag(G)``, ``B`` the incidence
matrix with ``(Bu)_i = u[leaves i] - u[enters i]``, ``F(u) = p log(sum_i exp((Bu)_i) g_i) - sum_i (Bu)_i``, ``A_h`` =
number of parameters that enter unit h minus number that leave it. As a parameter enters at most one unit and leaves at
most one, ``F`` needs of ``g`` only the sums ``M[r, c]`` over the parameters that enter unit r and leave unit c.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass

import torch
from torch import Tensor

from pathcond import cuda
from pathcond.errors import PathCondError, SolveError
from pathcond.graph import ScaleGraph
from pathcond.layout import Layout, Pattern, layout_of

_CHUNK = 1 << 22
FAR = 200.0  # logarithms beyond this are kept as such


@dataclass(frozen=True)
class Block:
    """Sums of ``g`` between units: entry (i, j) of ``m * exp(log)`` enters unit ``rows[i]`` and leaves ``cols[j]``.

    Dense where ``m`` has two axes. Where it has one, it lists single entries, and ``rows`` and ``cols`` go with it.
    Unit 0 is none and keeps log-scale 0.
    """

    rows: Tensor
    cols: Tensor
    m: Tensor
    log: float

    @property
    def dense(self) -> bool:
        """Whether every pair of a row and a column has an entry."""
        return self.m.ndim == 2


@dataclass(frozen=True)
class Problem:
    """F for one model: ``size`` = p, ``blocks``, ``rest`` = log of the sum of g that no unit touches.

    ``balance`` is A_h, shape (H + 1,), with entry 0 for no unit; ``dead`` marks units without a minimiser.
    """

    size: int
    blocks: tuple[Block, ...]
    rest: float
    balance: Tensor
    dead: Tensor
    layout: Layout

    @property
    def units(self) -> int:
        """H, the number of units."""
        return self.layout.units

    @property
    def unit(self) -> float | None:
        """The logarithm that all blocks share, None if they do not."""
        logs = {block.log for block in self.blocks}
        return logs.pop() if len(logs) == 1 else None

    @property
    def device(self) -> torch.device:
        """Where it is solved."""
        return self.balance.device

    def log_sum(self, full: Tensor, skip: tuple[int, int] = (0, 0)) -> float:
        """Log of sum_i exp((Bu)_i) g_i at ``full``, shape (H + 1,), whose entry 0 is 0.

        Parameters that enter or leave one of the units ``skip[0] <= h < skip[1]`` are left out.
        """
        totals, logs = [], []
        factors = Factors(full)
        for block in self.blocks:
            out, into, log = factors.of(block)
            if skip[1]:
                out = out.masked_fill((block.cols >= skip[0]) & (block.cols < skip[1]), 0.0)
                into = into.masked_fill((block.rows >= skip[0]) & (block.rows < skip[1]), 0.0)
            totals.append(into @ (block.m @ out) if block.dense else (into * block.m * out).sum())
            logs.append(log)
        found = torch.stack(totals).tolist() if totals else []
        return _log_sum_exp([self.rest, *(_log(t, log) for t, log in zip(found, logs, strict=True))])

    def objective(self, full: Tensor) -> float:
        """F(u), with u = full[1:]."""
        return self.size * self.log_sum(full) + float(self.balance @ full)

    def gradient(self, full: Tensor) -> Tensor:
        """Gradient of F over p, shape (H + 1,), with entry 0 set to 0."""
        log_sum, factors = self.log_sum(full), Factors(full)
        grad = self.balance / self.size
        for block in self.blocks:
            leaving, entering = self.shares(block, factors, log_sum)
            grad.index_add_(0, block.cols, leaving)
            grad.index_add_(0, block.rows, entering, alpha=-1)
        grad[0] = 0
        return torch.where(self.dead, 0.0, grad)

    @staticmethod
    def shares(block: Block, factors: Factors, log_sum: float) -> tuple[Tensor, Tensor]:
        """Shares of the block's columns and rows (or entries) in the sum."""
        out, into, log = factors.of(block)
        factor = math.exp(min(700.0, log - log_sum))
        if not block.dense:
            each = into * block.m * out * factor
            return each, each
        return out * (into @ block.m) * factor, into * (block.m @ out) * factor


class Factors:
    """exp(u) at the columns and exp(-u) at the rows of blocks, apart from a common factor where u is far from 0."""

    def __init__(self, full: Tensor) -> None:
        self.full = full
        self.near = float(full.abs().amax()) < FAR
        self.up, self.down = (full.exp(), (-full).exp()) if self.near else (full, -full)

    def of(self, block: Block) -> tuple[Tensor, Tensor, float]:
        """Factors of the columns and of the rows, and the log of the factor of the block with them."""
        up, down = self.up[block.cols], self.down[block.rows]
        if self.near:
            return up, down, block.log
        high, low = float(up.amax()), float(down.amax())
        return (up - high).exp(), (down - low).exp(), block.log + high + low


def _log(value: float, log: float) -> float:
    return math.log(value) + log if value > 0 else -math.inf


def _log_sum_exp(terms: list[float]) -> float:
    top = max(terms)
    return top + math.log(sum(math.exp(t - top) for t in terms)) if top > -math.inf else top


def build_problem(graph: ScaleGraph, g: Mapping[str, tuple[Tensor, float]], *, consume: bool = False) -> Problem:
    """Reduce diag(G), given as (t, log) for ``t * exp(log)``, to a :class:`Problem`.

    Small problems are solved on the CPU, where the recurrence over units runs anyway, unless the GPU can run it; large
    ones where the entries are.

    Args:
        graph: the units.
        g: entries by parameter name; parameters without an entry do not count.
        consume: take entries out of ``g`` as they are used, to save memory; ``g`` must be a mutable mapping then.
    """
    layout = layout_of(graph, tuple(g))
    size = sum(t.numel() for t, _ in g.values())
    there = all(t.is_cuda for t, _ in g.values()) and cuda.fits(layout)
    small = sum(p.size for p in layout.patterns.values()) <= _CHUNK and not there
    sums: list[tuple[Tensor, float]] = []
    blocks: list[tuple[Pattern, Tensor, float]] = []
    for name in list(g):
        t, log = g[name]
        if name in layout.patterns:
            blocks.append((layout.patterns[name], _reduce(t, layout.patterns[name]), log))
        else:
            sums.append((t.sum(dtype=torch.float64), log))
        if consume:
            assert isinstance(g, MutableMapping)  # noqa: S101 - the caller's promise
            del g[name]
        del t
    found = torch.stack([t for t, _ in sums]).tolist() if sums else []
    rest = [_log(t, log) for t, (_, log) in zip(found, sums, strict=True)]
    device = torch.device("cpu") if small or not blocks else blocks[0][1].device
    made = _normal(_to_cpu(blocks) if small else blocks, rest)
    dead = _dead(layout.units, made, device)
    total = _log_sum_exp(rest) if rest else -math.inf
    return Problem(size, tuple(made), total, layout.balance.to(device), dead, layout)


def check_magnitudes(graph: ScaleGraph, g: Mapping[str, Tensor]) -> None:
    """Refuse entries that do not fit the graph.

    Raises:
        PathCondError: an entry's parameter is not the graph's, or its shape is wrong.
        SolveError: an entry is negative or not finite; the message names the parameter.
    """
    for name, t in g.items():
        if name not in graph.shapes:
            raise PathCondError(f"expected magnitudes for parameters of the graph's model, got one for '{name}'.")
        if tuple(t.shape) != graph.shapes[name]:
            raise PathCondError(f"expected shape {graph.shapes[name]} for '{name}', got {tuple(t.shape)}.")
        low, high = (float(x) for x in torch.aminmax(t)) if t.numel() else (0.0, 0.0)
        if not (low >= 0 and math.isfinite(high)):
            raise SolveError(f"expected finite magnitudes >= 0, got {low} to {high} for parameter '{name}'.")


def _reduce(t: Tensor, p: Pattern) -> Tensor:
    """Sum a parameter's entries between the same units, to float64, a few million at a time."""
    t = t.permute(*p.order, *p.spare).reshape(*p.shape, -1)
    if p.entries:
        return _sum(t)
    n_row, n_col, each = t.shape
    if n_row * n_col * each <= _CHUNK:
        return _merged(_sum(t), p, 0, None)
    m = torch.zeros(len(p.rows), len(p.cols), dtype=torch.float64, device=t.device)
    step = max(1, _CHUNK // max(1, n_col * each))
    for start in range(0, n_row, step):
        _merged(_sum(t[start : start + step]), p, start, m)
    return m


def _sum(t: Tensor) -> Tensor:
    """Sum over the last axis, in the entries' own precision."""
    return t[..., 0].to(torch.float64, copy=True) if t.shape[-1] == 1 else t.sum(-1).double()


def _merged(part: Tensor, p: Pattern, start: int, m: Tensor | None) -> Tensor:
    """Merge columns, then rows from ``start`` on, of the same unit; into ``m`` if it is given."""
    if p.merge_cols is not None:
        place = p.merge_cols.to(part.device)
        part = part.new_zeros(part.shape[0], len(p.cols)).index_add_(1, place, part)
    if p.merge_rows is not None:
        m = part.new_zeros(len(p.rows), len(p.cols)) if m is None else m
        return m.index_add_(0, p.merge_rows[start : start + part.shape[0]].to(part.device), part)
    if m is None:
        return part
    m[start : start + part.shape[0]] = part
    return m


def _to_cpu(blocks: list[tuple[Pattern, Tensor, float]]) -> list[tuple[Pattern, Tensor, float]]:
    """All matrices on the CPU, in one transfer."""
    if not blocks or blocks[0][1].device.type == "cpu":
        return blocks
    flat = torch.cat([m.reshape(-1) for _, m, _ in blocks]).cpu().split([m.numel() for _, m, _ in blocks])
    return [(p, part.reshape(m.shape), log) for (p, m, log), part in zip(blocks, flat, strict=True)]


def _normal(blocks: list[tuple[Pattern, Tensor, float]], rest: list[float]) -> list[Block]:
    """Blocks with largest entry 1 at one common logarithm, or, if they differ too much for that, each at its own.

    What no scale touches goes to ``rest``.
    """
    inner, tops, cleared = [], [], []
    for p, m, log in blocks:
        if p.inside is not None:
            inside = p.inside.to(m.device)
            inner.append((m[inside].sum(), log))
            m = m.masked_fill(inside, 0.0)
        tops.append(m.amax())
        cleared.append(m)
    found = torch.stack([*tops, *(t for t, _ in inner)]).tolist() if blocks else []
    rest += [_log(t, log) for t, (_, log) in zip(found[len(tops) :], inner, strict=True)]
    logs = [_log(top, log) for (_, _, log), top in zip(blocks, found, strict=False)]
    unit = max((log for log in logs if log > -math.inf), default=0.0)
    close = all(unit - log < FAR for log in logs if log > -math.inf)
    made = []
    for (p, _, _), m, log, top in zip(blocks, cleared, logs, found, strict=False):
        if top > 0:
            m = m.mul_(math.exp(log - unit if close else 0.0) / top)
        made.append(Block(p.rows.to(m.device), p.cols.to(m.device), m, log if top > 0 and not close else unit))
    return made


def _dead(units: int, blocks: list[Block], device: torch.device) -> Tensor:
    """Units into which or out of which nothing flows: F has no minimum along their log-scale."""
    into, out = torch.zeros(2, units + 1, dtype=torch.float64, device=device)
    for b in blocks:
        into.index_add_(0, b.rows, b.m.amax(1) if b.dense else b.m)
        out.index_add_(0, b.cols, b.m.amax(0) if b.dense else b.m)
    return (into == 0) | (out == 0)
