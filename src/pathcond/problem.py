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

from pathcond.errors import PathCondError, SolveError
from pathcond.graph import ParamScales, ScaleGraph

_CHUNK = 1 << 22


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

    ``balance`` is A_h, shape (H + 1,), with entry 0 for no unit; ``groups`` are the sizes of the runs of units that
    one layer makes; ``dead`` marks units without a minimiser.
    """

    size: int
    blocks: tuple[Block, ...]
    rest: float
    balance: Tensor
    groups: tuple[int, ...]
    dead: Tensor

    @property
    def units(self) -> int:
        """H, the number of units."""
        return len(self.balance) - 1

    def log_sum(self, full: Tensor, skip: tuple[int, int] = (0, 0)) -> float:
        """Log of sum_i exp((Bu)_i) g_i at ``full``, shape (H + 1,), whose entry 0 is 0.

        Parameters that enter or leave one of the units ``skip[0] <= h < skip[1]`` are left out.
        """
        terms = [self.rest]
        for block in self.blocks:
            out, shift_out = _exp(full[block.cols])
            into, shift_in = _exp(-full[block.rows])
            if skip[1]:
                out = out.masked_fill((block.cols >= skip[0]) & (block.cols < skip[1]), 0.0)
                into = into.masked_fill((block.rows >= skip[0]) & (block.rows < skip[1]), 0.0)
            total = into @ (block.m @ out) if block.dense else (into * block.m * out).sum()
            terms.append(math.log(t) + block.log + shift_out + shift_in if (t := float(total)) > 0 else -math.inf)
        return _log_sum_exp(terms)

    def objective(self, full: Tensor) -> float:
        """F(u), with u = full[1:]."""
        return self.size * self.log_sum(full) + float(self.balance @ full)

    def gradient(self, full: Tensor) -> Tensor:
        """Gradient of F over p, shape (H + 1,), with entry 0 set to 0."""
        log_sum = self.log_sum(full)
        grad = self.balance / self.size
        for block in self.blocks:
            leaving, entering = self.shares(block, full, log_sum)
            grad.index_add_(0, block.cols, leaving)
            grad.index_add_(0, block.rows, entering, alpha=-1)
        grad[0] = 0
        return torch.where(self.dead, 0.0, grad)

    @staticmethod
    def shares(block: Block, full: Tensor, log_sum: float) -> tuple[Tensor, Tensor]:
        """Shares of the block's columns and rows (or entries) in the sum."""
        out, shift_out = _exp(full[block.cols])
        into, shift_in = _exp(-full[block.rows])
        factor = math.exp(min(700.0, block.log + shift_out + shift_in - log_sum))
        if not block.dense:
            each = into * block.m * out * factor
            return each, each
        return out * (into @ block.m) * factor, into * (block.m @ out) * factor


def _exp(x: Tensor) -> tuple[Tensor, float]:
    """exp(x - s), s, with s the largest entry."""
    shift = float(x.amax()) if x.numel() else 0.0
    return (x - shift).exp(), shift


def _log_sum_exp(terms: list[float]) -> float:
    top = max(terms)
    return top + math.log(sum(math.exp(t - top) for t in terms)) if top > -math.inf else top


def build_problem(
    graph: ScaleGraph, g: Mapping[str, tuple[Tensor, float]], device: torch.device | None = None, consume: bool = False
) -> Problem:
    """Reduce diag(G), given as (t, log) for ``t * exp(log)``, to a :class:`Problem`.

    Args:
        graph: the units.
        g: entries by parameter name; parameters without an entry do not count.
        device: where to solve; by default where the entries are, or the CPU if the problem is small.
        consume: take entries out of ``g`` as they are used, to save memory; ``g`` must be a mutable mapping then.

    Raises:
        PathCondError: an entry is missing its parameter, has the wrong shape, is negative or not finite.
    """
    _check(graph, g)
    balance = torch.zeros(graph.units + 1, dtype=torch.float64)
    blocks: list[Block] = []
    rest = [-math.inf]
    size = sum(t.numel() for t, _ in g.values())
    for name in list(g):
        t, log = g[name]
        scales = graph.params.get(name)
        if scales is None:
            rest.append(_log(t.sum(dtype=torch.float64), log))
        else:
            block, inner = _reduce(t, log, scales, balance)
            rest.append(inner)
            blocks.append(block)
        if consume:
            assert isinstance(g, MutableMapping)  # noqa: S101 - the caller's promise
            del g[name]
        del t
    blocks = [b for b in blocks if b.m.numel()]
    device = device or _place(blocks)
    blocks = [Block(b.rows.to(device), b.cols.to(device), b.m.to(device), b.log) for b in blocks]
    balance[0] = 0
    dead = _dead(graph.units, blocks).to(device)
    return Problem(size, tuple(blocks), _log_sum_exp(rest), balance.to(device), graph.groups, dead)


def _place(blocks: list[Block]) -> torch.device:
    """Small problems are quicker on the CPU, where the recurrence over units runs anyway."""
    large = sum(b.m.numel() for b in blocks) > _CHUNK
    return blocks[0].m.device if blocks and large else torch.device("cpu")


def _check(graph: ScaleGraph, g: Mapping[str, tuple[Tensor, float]]) -> None:
    flags = []
    for name, (t, _) in g.items():
        if name not in graph.shapes:
            raise PathCondError(f"expected magnitudes for parameters of the graph's model, got one for '{name}'.")
        if tuple(t.shape) != graph.shapes[name]:
            raise PathCondError(f"expected shape {graph.shapes[name]} for '{name}', got {tuple(t.shape)}.")
        low, high = torch.aminmax(t) if t.numel() else (t.new_zeros(()), t.new_zeros(()))
        flags.append(torch.stack((low.double(), high.double())))
    for name, (low, high) in zip(g, torch.stack([f.cpu() for f in flags]).tolist() if flags else [], strict=True):
        if not (low >= 0 and math.isfinite(high)):
            raise SolveError(
                f"expected finite magnitudes >= 0, got entries from {low} to {high} for parameter '{name}'."
            )


def _log(total: Tensor, log: float) -> float:
    value = float(total)
    return math.log(value) + log if value > 0 else -math.inf


def _reduce(t: Tensor, log: float, scales: ParamScales, balance: Tensor) -> tuple[Block, float]:
    """A parameter's block, and the log of the part of its sum that no scale touches. Counts it in ``balance``."""
    row, col = scales.row, scales.col
    row_axes = [i for i, n in enumerate(row.shape) if n > 1]
    col_axes = [i for i, n in enumerate(col.shape) if n > 1]
    if set(row_axes) & set(col_axes):
        rows, cols, m = _entries(t, row, col, balance)
    else:
        rows, cols, m = _matrix(t, row, col, row_axes, col_axes, balance)
    inside = (rows[:, None] == cols[None, :]) if m.ndim == 2 else rows == cols
    inner = -math.inf
    if bool(inside.any()):  # the same unit at both ends, or none
        inside = inside.to(m.device)
        inner = _log(m[inside].sum(), log)
        m = m.masked_fill(inside, 0.0)
    top = float(m.amax()) if m.numel() else 0.0
    if top > 0 and top != 1.0:
        m = m.div_(top) if m.dtype == torch.float64 and m.data_ptr() != t.data_ptr() else m / top
    log = log + math.log(top) if top > 0 else 0.0
    return Block(rows.to(m.device), cols.to(m.device), m, log), inner


def _matrix(
    t: Tensor, row: Tensor, col: Tensor, row_axes: list[int], col_axes: list[int], balance: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Entering units depend on some axes, left ones on others: sum out the rest, then merge what is one unit."""
    spare = [i for i in range(t.ndim) if i not in row_axes and i not in col_axes]
    n_row = math.prod(t.shape[i] for i in row_axes)
    n_col = math.prod(t.shape[i] for i in col_axes)
    t = t.permute(*row_axes, *col_axes, *spare).reshape(n_row, n_col, -1)
    rows, place_r = row.reshape(-1).unique(return_inverse=True)
    cols, place_c = col.reshape(-1).unique(return_inverse=True)
    each = t.shape[2]
    count_r = torch.bincount(place_r, minlength=len(rows)) * n_col * each
    count_c = torch.bincount(place_c, minlength=len(cols)) * n_row * each
    balance.index_add_(0, rows, count_r.double())
    balance.index_add_(0, cols, count_c.double(), alpha=-1)  # a unit at both ends cancels out
    m = torch.zeros(len(rows), len(cols), dtype=torch.float64, device=t.device)
    plain_r, plain_c = (
        len(p) == n and bool((p[1:] > p[:-1]).all()) for p, n in ((place_r, len(rows)), (place_c, len(cols)))
    )
    place_r, place_c = place_r.to(t.device), place_c.to(t.device)
    step = max(1, _CHUNK // max(1, n_col * each))
    for start in range(0, n_row, step):
        part = t[start : start + step].sum(2, dtype=torch.float64)
        if not plain_c:
            part = part.new_zeros(part.shape[0], len(cols)).index_add_(1, place_c, part)
        if plain_r:
            m[start : start + step] = part
        else:
            m.index_add_(0, place_r[start : start + step], part)
    return rows, cols, m


def _entries(t: Tensor, row: Tensor, col: Tensor, balance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Grouped and depthwise layers: one entry for each pair of units that has a weight."""
    axes = [i for i in range(t.ndim) if row.shape[i] > 1 or col.shape[i] > 1]
    spare = [i for i in range(t.ndim) if i not in axes]
    m = t.sum(spare, dtype=torch.float64, keepdim=True) if spare else t.double()
    rows, cols = (x.expand(m.shape).reshape(-1) for x in (row, col))
    each = float(math.prod(t.shape[i] for i in spare))
    counts = torch.full(rows.shape, each, dtype=torch.float64)
    balance.index_add_(0, rows, counts)
    balance.index_add_(0, cols, counts, alpha=-1)
    return rows, cols, m.reshape(-1)


def _dead(units: int, blocks: list[Block]) -> Tensor:
    """Units into which or out of which nothing flows: F has no minimum along their log-scale."""
    into = torch.zeros(units + 1, dtype=torch.float64)
    out = torch.zeros(units + 1, dtype=torch.float64)
    for b in blocks:
        into.index_add_(0, b.rows.cpu(), (b.m.amax(1) if b.dense else b.m).cpu())
        out.index_add_(0, b.cols.cpu(), (b.m.amax(0) if b.dense else b.m).cpu())
    return (into == 0) | (out == 0)
