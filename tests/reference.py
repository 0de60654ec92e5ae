"""Slow, literal counterparts of the library's algorithms, one unit and one parameter at a time."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from pathcond import ScaleGraph


@dataclass
class Dense:
    """B as index lists, and g as one vector: the problem as the paper writes it."""

    incoming: list[Tensor]
    outgoing: list[Tensor]
    g: Tensor

    @property
    def p(self) -> int:
        return len(self.g)

    def matrix(self) -> Tensor:
        """B, shape (p, H)."""
        b = torch.zeros(self.p, len(self.incoming), dtype=torch.float64)
        for h, (i, o) in enumerate(zip(self.incoming, self.outgoing, strict=True)):
            b[i, h] = -1
            b[o, h] = 1
        return b

    def objective(self, u: Tensor) -> float:
        """F(u)."""
        v = self.matrix() @ u
        return float(self.p * (v.exp() * self.g).sum().log() - v.sum())


def dense_problem(graph: ScaleGraph, g: dict[str, Tensor]) -> Dense:
    """Spell out which parameters enter and leave each unit; parameters in the order of ``g``."""
    rows, cols = [], []
    for name, values in g.items():
        zero = torch.zeros((1,) * values.ndim, dtype=torch.int64)
        scales = graph.params.get(name)
        row, col = (scales.row, scales.col) if scales else (zero, zero)
        rows.append(row.expand(values.shape).reshape(-1))
        cols.append(col.expand(values.shape).reshape(-1))
    row, col = torch.cat(rows), torch.cat(cols)
    row, col = row.where(row != col, 0), col.where(row != col, 0)
    g_flat = torch.cat([values.reshape(-1).double() for values in g.values()])
    return Dense(_by_unit(row, graph.units), _by_unit(col, graph.units), g_flat)


def _by_unit(numbers: Tensor, units: int) -> list[Tensor]:
    """Positions of the numbers 1 .. units, each in order."""
    order = numbers.argsort(stable=True)
    counts = torch.bincount(numbers, minlength=units + 1).tolist()
    return list(order.split(counts))[1:]


def literal_sweeps(problem: Dense, sweeps: int) -> Tensor:
    """u after some sweeps of :func:`literal_iterates`."""
    found = [torch.zeros(len(problem.incoming), dtype=torch.float64), *islice(literal_iterates(problem), sweeps)]
    return found[-1]


def literal_iterates(problem: Dense) -> Iterator[Tensor]:
    """Algorithm 3 of the paper as printed, with the root that does not cancel: u after each sweep, without end."""
    p, g = problem.p, problem.g
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
            delta = math.log(positive_root(b * (a + p), a * d, c * (a - p))) - float(u[h])
            v[out] += delta
            v[into] -= delta
            total = d + float((v[out].exp() * g[out]).sum()) + float((v[into].exp() * g[into]).sum())
            u[h] += delta
        yield u.clone()


def positive_root(a: float, b: float, c: float) -> float:
    """The positive root of a x^2 + b x + c with a > 0 > c."""
    root = math.sqrt(b * b - 4 * a * c)
    return (-b + root) / (2 * a) if b <= 0 else -2 * c / (b + root)


def signed_matrix(graph: ScaleGraph, g: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """B, shape (p, H), and g as one vector, for units with inverse scales."""
    rows = []
    for name, values in g.items():
        part = torch.zeros(values.numel(), graph.units + 1, dtype=torch.float64)
        scales = graph.params.get(name)
        for numbers, sign in ((scales.row, -1.0), (scales.col, 1.0)) if scales else ():
            number = numbers.expand(values.shape).reshape(-1, 1)
            part.scatter_add_(1, number.long().abs(), sign * number.sign().double())
        rows.append(part[:, 1:])
    return torch.cat(rows), torch.cat([values.reshape(-1).double() for values in g.values()])


def signed_sweeps(b: Tensor, g: Tensor, sweeps: int, clamp: float = math.inf) -> Tensor:
    """As :func:`literal_sweeps`, from B: u after some sweeps with ``|u| <= clamp``."""
    p, (_, units) = len(g), b.shape
    u = torch.zeros(units, dtype=torch.float64)
    for h in [h for _ in range(sweeps) for h in range(units)]:
        at_zero = (b @ u - b[:, h] * u[h]).exp() * g  # terms of the sum with u[h] = 0
        c = {k: float(at_zero[b[:, h] == k].sum()) for k in {-1, 0, 1, *b[:, h].long().tolist()}}
        a = -float(b[:, h].sum())
        present = [k for k in c if c[k] > 0.0]
        highest, lowest = max(present, default=0), min(present, default=0)
        if highest <= 0 or lowest >= 0 or highest * p + a <= 0 or lowest * p + a >= 0:
            continue
        if {*present} <= {-1, 0, 1}:
            root = math.log(positive_root(c[1] * (a + p), a * c[0], c[-1] * (a - p)))
        else:
            root = _bisect(lambda z, a=a, c=c: sum((k * p + a) * value * math.exp(k * z) for k, value in c.items()))
        u[h] = min(max(root, -clamp), clamp)
    return u


def _bisect(rising: Callable[[float], float], low: float = -100.0, high: float = 100.0) -> float:
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < 0 else (low, middle)
    return (low + high) / 2
