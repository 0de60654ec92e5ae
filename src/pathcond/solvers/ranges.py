"""Cross-layer equalisation (Nagel et al., ICCV 2019): sweeps that equalise the ranges on both sides of every unit.

The range that enters a unit is the largest magnitude of the weights that enter it. With ``a`` and ``b`` the logarithms
of the ranges that enter and leave unit h, ``log lambda_h`` changes by ``(b - a) / 2``, after which both are equal. All
numbers are logarithms. A weight between a unit and its mirror (see :mod:`pathcond.objective`) has its scale twice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from pathcond.objective import BlockLayout, Layer, Layout, Side
from pathcond.solvers.coordinate_descent import AT_BOUND


@dataclass(frozen=True)
class _Edge:
    """Logarithms of the weights of one block on one side of a layer; see :class:`pathcond.objective.Side`."""

    m: Tensor
    others: slice | Tensor
    positions: Tensor | None
    columns: bool

    def into_(self, found: Tensor, v: Tensor | None) -> None:
        """Raise ``found``, one entry per unit, to the largest weight, at the log-scales ``v`` of the other ends."""
        m = self.m
        if v is not None:
            m = m + v[self.others] if self.columns else m - v[self.others]
        largest = m.amax(1) if m.ndim == 2 else m
        if self.positions is None:
            torch.maximum(found, largest, out=found)
        else:
            found.scatter_reduce_(0, self.positions, largest, "amax")


class Ranges:
    """Log-scales of the units of a layout, and the sweeps that change them.

    Args:
        layout: the layout for the names of the weights.
        weights: the weights by parameter name, finite.
        clamp: bound on every ``|log lambda|``; None for none.

    Attributes:
        dead: units, shape (H,), that no weight but zero enters, or leaves; they keep their scale.
    """

    def __init__(self, layout: Layout, weights: Mapping[str, Tensor], clamp: float | None) -> None:
        self._layout = layout
        self._limit = math.inf if clamp is None else clamp
        device = next(iter(weights.values())).device
        blocks: list[Tensor] = []
        doubled: list[Tensor] = []
        for name, b in layout.blocks.items():
            m = _largest(weights[name].to(device), b)
            if b.unscaled is not None:
                m[tuple(index.to(device) for index in b.unscaled)] = -math.inf
            if b.doubled is not None:
                where = tuple(index.to(device) for index in b.doubled)
                doubled.append(m[where])
                m[where] = -math.inf
            blocks.append(m)
        self._blocks = [*blocks, *doubled]
        self._sides = [
            [self._edges(sides) for sides in (layer.entering, layer.leaving, layer.entering_twice, layer.leaving_twice)]
            for layer in layout.layers
        ]
        self._v = torch.zeros(layout.nodes, dtype=torch.float64, device=device)
        self.dead = ~torch.cat([torch.isfinite(self._change(i)) for i in range(len(layout.layers))])

    @property
    def log_scales(self) -> Tensor:
        """Logarithms of lambda, shape (H,)."""
        return self._v[1 : self._layout.units + 1]

    def sweep(self) -> float:
        """Update every unit once, layer by layer; returns the sum of the absolute changes of the log-scales."""
        before = self.log_scales.clone()
        for i, layer in enumerate(self._layout.layers):
            own = self._own(layer)
            alive = ~self.dead[layer.lo - 1 : layer.hi - 1]
            new = torch.where(alive, self._change(i), own).clamp(-self._limit, self._limit)
            first, *mirrors = self._layout.spans(layer.lo, layer.hi)
            self._v[slice(*first)] = new
            for span in mirrors:
                self._v[slice(*span)] = -new
        return float((self.log_scales - before).abs().sum())

    def damp_(self, factor: float) -> None:
        """Multiply all log-scales by a factor."""
        self._v *= factor

    def imbalance(self) -> Tensor:
        """Log of the range that enters over the range that leaves each unit, shape (H,); 0 for dead units."""
        found = []
        for i, layer in enumerate(self._layout.layers):
            into, out, into_twice, out_twice = self._ranges(i)
            own = self._own(layer)
            entering = torch.maximum(into + own, into_twice + 2 * own)
            found.append(entering - torch.maximum(out - own, out_twice - 2 * own))
        return torch.where(self.dead, 0.0, torch.cat(found))

    def at_bound(self) -> tuple[Tensor, int]:
        """Units, shape (H,), that the bound keeps from equal ranges; and the number of units at the bound."""
        v, imbalance = self.log_scales, self.imbalance()
        upper, lower = v >= self._limit * AT_BOUND, v <= -self._limit * AT_BOUND
        return upper & (imbalance < 0) | lower & (imbalance > 0), int((upper | lower).sum())

    def _own(self, layer: Layer) -> Tensor:
        return self._v[layer.lo : layer.hi]

    def _change(self, i: int) -> Tensor:
        """The log-scales that equalise the ranges of a layer's units; not finite for dead ones.

        What enters is the larger of ``a + v`` and ``aa + 2 v``, what leaves that of ``b - v`` and ``bb - 2 v``. The
        first rises in v, the second falls. They meet at the least v where a line that enters is above both that leave.
        """
        a, b, aa, bb = self._ranges(i)
        once = torch.maximum((b - a) / 2, (bb - a) / 3)
        twice = torch.maximum((b - aa) / 3, (bb - aa) / 4)
        return torch.minimum(torch.where(a > -math.inf, once, math.inf), torch.where(aa > -math.inf, twice, math.inf))

    def _ranges(self, i: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Logarithms of what enters and leaves a layer's units, once and twice, without their own scales."""
        layer = self._layout.layers[i]
        found = self._v.new_full((4, layer.hi - layer.lo), -math.inf)
        for number, (row, edges) in enumerate(zip(found, self._sides[i], strict=True)):
            for edge in edges:
                edge.into_(row, self._v if number < 2 else None)
        return found[0], found[1], found[2], found[3]

    def _edges(self, sides: tuple[Side, ...]) -> list[_Edge]:
        found = []
        for side in sides:
            m = self._blocks[side.block]
            index, others = (x.to(m.device) if isinstance(x, Tensor) else x for x in (side.index, side.others))
            positions = None if side.positions is None else side.positions.to(m.device)
            source = m.T if side.columns and m.ndim == 2 else m
            found.append(_Edge(source[index], others, positions, side.columns))
        return found


def _largest(w: Tensor, b: BlockLayout) -> Tensor:
    """Logarithm of the largest magnitude of a parameter's elements between the same units, arranged as a block."""
    m = w.abs().permute(*b.order, *b.summed).reshape(*b.shape, -1).amax(-1).double()
    if b.merge_cols is not None:
        index = b.merge_cols.to(m.device).expand(m.shape)
        m = m.new_zeros(len(m), len(b.cols)).scatter_reduce_(1, index, m, "amax")
    if b.merge_rows is not None:
        index = b.merge_rows.to(m.device)[:, None].expand(m.shape)
        m = m.new_zeros(len(b.rows), m.shape[1]).scatter_reduce_(0, index, m, "amax")
    return m.log()
