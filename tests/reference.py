"""Slow, literal counterparts of the library's algorithms, one unit and one parameter at a time."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import torch
from torch import Tensor

from pathcond import ScaleGraph


@dataclass
class Problem:
    """B as index lists, and g as one vector: the problem as the paper writes it.

    A parameter with the inverse scale of a unit enters it where others leave it.
    """

    incoming: list[Tensor]
    outgoing: list[Tensor]
    g: Tensor

    @cached_property
    def matrix(self) -> Tensor:
        """B, shape (p, H)."""
        b = torch.zeros(len(self.g), len(self.incoming), dtype=torch.float64)
        for h, (i, o) in enumerate(zip(self.incoming, self.outgoing, strict=True)):
            b[i, h] = -1
            b[o, h] = 1
        return b

    def objective(self, u: Tensor) -> float:
        """F(u)."""
        v = self.matrix @ u
        return float(len(v) * (v.exp() * self.g).sum().log() - v.sum())

    def gradient(self, u: Tensor) -> Tensor:
        """The gradient of F / p at u."""
        share = (self.matrix @ u).exp() * self.g
        return self.matrix.T @ (share / share.sum() - 1 / len(share))


def problem_of(graph: ScaleGraph, g: dict[str, Tensor]) -> Problem:
    """Spell out which parameters enter and leave each unit; parameters in the order of ``g``."""
    rows, cols = [], []
    for name, values in g.items():
        zero = torch.zeros((1,) * values.ndim, dtype=torch.int64)
        scales = graph.params.get(name)
        row, col = (scales.row, scales.col) if scales else (zero, zero)
        rows.append(row.expand(values.shape).reshape(-1).long())
        cols.append(col.expand(values.shape).reshape(-1).long())
    row, col = torch.cat(rows), torch.cat(cols)
    assert not ((row != 0) & (row == -col)).any(), "a parameter leads from a unit to its inverse"
    row, col = row.where(row != col, 0), col.where(row != col, 0)
    g_flat = torch.cat([values.reshape(-1).double() for values in g.values()])
    return Problem(_by_unit(row, -col, graph.units), _by_unit(col, -row, graph.units), g_flat)


def _by_unit(numbers: Tensor, inverse: Tensor, units: int) -> list[Tensor]:
    """Positions of the numbers 1 .. units in either of two vectors, each in order."""
    both = torch.cat((numbers, inverse)).clamp(min=0)
    counts = torch.bincount(both, minlength=units + 1).tolist()
    return list((both.argsort(stable=True) % len(numbers)).split(counts))[1:]


def literal_sweeps(problem: Problem, sweeps: int, clamp: float = math.inf) -> Tensor:
    """u after some sweeps of :func:`literal_iterates`."""
    found = [torch.zeros(len(problem.incoming), dtype=torch.float64), *islice(literal_iterates(problem, clamp), sweeps)]
    return found[-1]


def literal_iterates(problem: Problem, clamp: float = math.inf) -> Iterator[Tensor]:
    """Algorithm 3 of the paper as printed, with the root that does not cancel: u after each sweep, without end.

    All ``|u|`` are at most ``clamp``.
    """
    g, p = problem.g, len(problem.g)
    u = torch.zeros(len(problem.incoming), dtype=torch.float64)
    v = torch.zeros(p, dtype=torch.float64)
    total = float(g.sum())
    while True:
        for h, (into, out) in enumerate(zip(problem.incoming, problem.outgoing, strict=True)):
            s_out = float((v[out].exp() * g[out]).sum())
            s_in = float((v[into].exp() * g[into]).sum())
            if s_out == 0.0 or s_in == 0.0:
                continue
            d = total - s_out - s_in
            a = len(into) - len(out)
            b = float(((v[out] - u[h]).exp() * g[out]).sum())
            c = float(((v[into] + u[h]).exp() * g[into]).sum())
            z = math.log(positive_root(b * (a + p), a * d, c * (a - p)))
            delta = min(max(z, -clamp), clamp) - float(u[h])
            v[out] += delta
            v[into] -= delta
            total = d + float((v[out].exp() * g[out]).sum()) + float((v[into].exp() * g[into]).sum())
            u[h] += delta
        yield u.clone()


def positive_root(a: float, b: float, c: float) -> float:
    """The positive root of a x^2 + b x + c with a > 0 > c."""
    root = math.sqrt(b * b - 4 * a * c)
    return (-b + root) / (2 * a) if b <= 0 else -2 * c / (b + root)
