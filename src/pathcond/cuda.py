"""Sweeps that run on a GPU from end to end: a kernel for each layer's update, all of them captured in one CUDA graph.

The recurrence over the units of a layer is a triangular system: what is left of the sum at unit h depends on the new
terms of the units before it. Started from the old terms and repeated with all units at once, it settles from the first
unit on, and in practice, as each unit's share is small, in about ten rounds for all; the kernel stops when nothing
changes any more, which is then the sequential answer.

The first solve of a layout runs kernel by kernel; from the second on, if the problem is small, the whole solve is
captured once and replayed, with the new numbers copied into its memory (some megabytes, kept with the graph).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from pathcond.layout import Layout
    from pathcond.problem import Block, Problem

_TRITON = find_spec("triton") is not None  # comes with builds of torch for NVIDIA GPUs
_WIDEST = 4096  # units of a layer that one kernel takes
_KEPT = 1 << 22  # entries of a problem whose memory may be kept for the next one
_LIMITS = (1e-6, 2e-15, 1e-280, 1e280)  # smallest rest of the sum, tolerance, smallest and largest change of a scale


@dataclass(frozen=True)
class GpuResult:
    """Log-scales (H + 1,), F before and after each sweep, sums of absolute changes, and the residual."""

    full: Tensor
    objective: list[float]
    moved: list[float]
    residual: float


def fits(layout: Layout) -> bool:
    """Whether the sweeps of a layout can run in kernels: layers not too wide, with one balance each."""
    if not _TRITON or max(layout.sizes, default=0) > _WIDEST or not layout.units:
        return False
    return all(g.even and g.entering and g.leaving for g in layout.groups)


def solve(problem: Problem, sweeps: int) -> GpuResult | None:
    """Make the sweeps; None if the problem needs the careful way."""
    if problem.device.type != "cuda" or problem.unit is None or not fits(problem.layout):
        return None
    if bool(problem.dead[1:].any()):
        return None
    plan: _Plan | None = problem.layout.__dict__.get("_gpu_plan")
    if plan is None or plan.sweeps != sweeps or plan.device != problem.device:
        plan = _Plan(problem, sweeps)
        if sum(b.m.numel() for b in problem.blocks) <= _KEPT:
            problem.layout.__dict__["_gpu_plan"] = plan
        return plan.read(plan.run())
    plan.load(problem)
    return plan.read(plan.replay())


class _Plan:
    """The launches of one solve, on memory that stays."""

    def __init__(self, problem: Problem, sweeps: int) -> None:
        from pathcond.sweeps import flows_of

        self.problem, self.sweeps, self.device = problem, sweeps, problem.device
        self.flows = flows_of(problem)
        self.balances = [g.balance[0] for g, _, _ in self.flows]
        self.full = torch.zeros(problem.units + 1, dtype=torch.float64, device=self.device)
        self.numbers = torch.zeros(len(self.flows), 7, dtype=torch.float64, device=self.device)
        self.start = torch.zeros(3, dtype=torch.float64, device=self.device)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.out = torch.zeros(0)
        self._numbers(problem)

    def _numbers(self, problem: Problem) -> None:
        unit, p = problem.unit or 0.0, float(problem.size)
        rest = math.exp(problem.rest - unit) if problem.rest > -math.inf else 0.0
        self.numbers.copy_(torch.tensor([[unit, p, a, *_LIMITS] for a in self.balances], dtype=torch.float64))
        self.start.copy_(torch.tensor([unit, rest, p], dtype=torch.float64))

    def load(self, problem: Problem) -> None:
        """Take over the numbers of another problem of the same layout."""
        for mine, new in zip(self.problem.blocks, problem.blocks, strict=True):
            mine.m.copy_(new.m)
        self._numbers(problem)

    def replay(self) -> Tensor:
        """Run from the captured graph, which is made here the first time."""
        if self.graph is None:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self.out = self.run()
            self.graph = graph
        self.graph.replay()
        return self.out

    def run(self) -> Tensor:
        """All launches: (F, moved) before and after each sweep, then (layers undone, residual)."""
        from pathcond.sweeps import total_flow

        blocks, balance = self.problem.blocks, self.problem.balance
        unit, rest, p = self.start.unbind()
        state = torch.zeros(2, dtype=torch.float64, device=self.device)
        state[0] = unit + (torch.stack([b.m.sum() for b in blocks]).sum() + rest).log()
        ups, downs = torch.ones_like(self.full), torch.ones_like(self.full)
        before, trail = torch.zeros_like(self.full), [torch.stack((state[0] * p, state[1]))]
        for _ in range(self.sweeps):
            for (g, entering, leaving), setting in zip(self.flows, self.numbers, strict=True):
                up, down = ups[g.lo : g.hi], downs[g.lo : g.hi]
                _update(total_flow(entering, ups), total_flow(leaving, downs), up, down, state, setting)
            now = ups.log()
            trail.append(torch.stack((state[0] * p + balance @ now, (now - before).abs().sum())))
            before = now
        self.full.copy_(before)
        total, grad = _gradient(blocks, ups, downs, balance / p, rest)
        if self.sweeps:
            trail[-1] = torch.stack(((unit + total.log()) * p + balance @ before, trail[-1][1]))  # summed up afresh
        return torch.stack((*trail, torch.stack((state[1], grad.abs().amax()))))

    def read(self, out: Tensor) -> GpuResult | None:
        """Wait for the numbers; None if some layer was left undone."""
        *trail, (undone, residual) = out.tolist()
        if undone or not math.isfinite(trail[-1][0]):
            return None
        return GpuResult(self.full.clone(), [t[0] for t in trail], [t[1] for t in trail[1:]], residual)


def _gradient(
    blocks: tuple[Block, ...], ups: Tensor, downs: Tensor, slope: Tensor, rest: Tensor
) -> tuple[Tensor, Tensor]:
    """The sum, and the gradient of F over p, shape (H,)."""
    flow, totals = torch.zeros_like(ups), [rest]
    for b in blocks:
        up, down = ups[b.cols], downs[b.rows]
        if b.dense:
            entering = down * (b.m @ up)
            leaving = up * (down @ b.m)
        else:
            entering = leaving = down * b.m * up
        flow.index_add_(0, b.cols, leaving).index_add_(0, b.rows, entering, alpha=-1)
        totals.append(entering.sum())
    total = torch.stack(totals).sum()
    return total, (slope + flow / total)[1:]


def _update(into: Tensor, out: Tensor, up: Tensor, down: Tensor, state: Tensor, setting: Tensor) -> None:
    """Update the units of a layer in place.

    ``into`` and ``out`` are the sums over what enters and leaves each unit at the other ends' scales, ``up`` and
    ``down`` exp(u) and exp(-u) of the units; ``state`` holds log of the whole sum, and counts layers left undone.
    """
    from pathcond.cuda_kernel import update_units

    n = len(into)
    block = 1 << max(5, (n - 1).bit_length())
    update_units[(1,)](into, out, up, down, state, setting, n, BLOCK=block, num_warps=8 if block > 256 else 4)  # pyright: ignore[reportIndexIssue]
