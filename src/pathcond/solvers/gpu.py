"""Coordinate descent on a GPU from end to end: one Triton kernel per layer, all of them captured in one CUDA graph.

The recurrence over the units of a layer is a triangular system: the remainder of the sum at unit h depends on the new
terms of the units before it. The kernel iterates it for all units at once, from the old terms. The iteration is exact
for unit h after h rounds at most; as each unit's fraction of the sum is small, about ten rounds suffice in practice. It
stops when no term changes any more, which is then the sequential answer.

The first solve of a layout launches kernel by kernel. From the second on, if the objective is small, the whole solve is
captured once and replayed, with the new numbers copied into its memory (a few megabytes, kept with the graph).

This module imports Triton, which comes with builds of torch for NVIDIA GPUs.
"""

# pyright: reportMissingImports=false, reportPossiblyUnboundVariable=false
from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from pathcond.objective import Block, Layout, Objective
from pathcond.solvers.descent import layer_sums, total

_WIDEST = 4096  # units of a layer that one kernel handles
_KEPT = 1 << 22  # elements of an objective whose memory may be kept for the next one
_LIMITS = (1e-6, 2e-15, 1e-280, 1e280)  # least remainder of the sum, tolerance, least and largest change of a scale


@dataclass(frozen=True)
class Sweeps:
    """Log-scales (H + 1,) on the CPU, F before and after each sweep, sums of absolute changes, and the residual."""

    u: Tensor
    values: tuple[float, ...]
    changes: tuple[float, ...]
    residual: float


def supports(layout: Layout) -> bool:
    """Whether the kernels can run the sweeps: layers not too wide, with one balance each; no powers, no mirrors."""
    if not layout.units or layout.nodes > layout.units + 1 or max(layout.layer_sizes) > _WIDEST:
        return False
    return all(layer.uniform and layer.entering and layer.leaving for layer in layout.layers)


def sweep(objective: Objective, sweeps: int) -> Sweeps | None:
    """Run the sweeps; None if the objective needs logarithms, which the kernels do not use."""
    if objective.common_log is None:
        return None
    plan: _Plan | None = objective.layout.workspace.get("gpu")
    if plan is None or plan.sweeps != sweeps or plan.device != objective.device:
        plan = _Plan(objective, sweeps)
        if objective.layout.size <= _KEPT:
            objective.layout.workspace["gpu"] = plan
        return plan.read(plan.run(), objective.dead)
    plan.load(objective)
    return plan.read(plan.replay(), objective.dead)


class _Plan:
    """The launches of one solve, on memory that later solves reuse."""

    def __init__(self, objective: Objective, sweeps: int) -> None:
        self.objective, self.sweeps, self.device = objective, sweeps, objective.device
        self.layers = layer_sums(objective)
        self.u = torch.zeros(objective.units + 1, dtype=torch.float64, device=self.device)
        self.numbers = torch.zeros(7 * len(self.layers) + 3, dtype=torch.float64, device=self.device)
        self.settings, self.start = self.numbers[:-3].view(-1, 7), self.numbers[-3:]
        self.graph: torch.cuda.CUDAGraph | None = None
        self.out = torch.zeros(0)
        self._load_settings(objective)

    def _load_settings(self, objective: Objective) -> None:
        log, p = objective.common_log or 0.0, float(objective.size)
        constant = math.exp(objective.log_constant - log) if objective.log_constant > -math.inf else 0.0
        rows = [x for sums in self.layers for x in (log, p, sums.layer.balance[0], *_LIMITS)]
        self.numbers.copy_(torch.tensor([*rows, log, constant, p], dtype=torch.float64))

    def load(self, objective: Objective) -> None:
        """Copy in the numbers of another objective of the same layout."""
        mine, new = ([block.m for block in o.blocks] for o in (self.objective, objective))
        torch._foreach_copy_(mine, new)  # pyright: ignore[reportPrivateImportUsage]
        for sums in self.layers:
            for block_sum in (*sums.entering, *sums.leaving):
                block_sum.reload()
        self._load_settings(objective)

    def replay(self) -> Tensor:
        """Replay the CUDA graph, which is captured the first time."""
        if self.graph is None:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self.out = self.run()
            self.graph = graph
        self.graph.replay()
        return self.out

    def run(self) -> Tensor:
        """All launches: (F, change) before and after each sweep, then (number of layers not updated, residual)."""
        blocks, balance = self.objective.blocks, self.objective.balance
        log, constant, p = self.start.unbind()
        state = torch.zeros(2, dtype=torch.float64, device=self.device)
        state[0] = log + (torch.stack([b.m.sum() for b in blocks]).sum() + constant).log()
        exp_plus, exp_minus = torch.ones_like(self.u), torch.ones_like(self.u)
        before, history = torch.zeros_like(self.u), [torch.stack((state[0] * p, state[1]))]
        for _ in range(self.sweeps):
            for sums, setting in zip(self.layers, self.settings, strict=True):
                where = slice(sums.layer.lo, sums.layer.hi)
                entering, leaving = (total(side, exp_plus, exp_minus) for side in (sums.entering, sums.leaving))
                _update(entering, leaving, exp_plus[where], exp_minus[where], state, setting)
            now = exp_plus.log()
            history.append(torch.stack((state[0] * p + balance @ now, (now - before).abs().sum())))
            before = now
        self.u.copy_(before)
        sum_, grad = _sum_and_gradient(blocks, exp_plus, exp_minus, balance / p, constant)
        if self.sweeps:
            history[-1] = torch.stack(((log + sum_.log()) * p + balance @ before, history[-1][1]))  # recomputed
        return torch.stack((*history, torch.stack((state[1], grad.abs().amax()))))

    def read(self, out: Tensor, dead: Tensor) -> Sweeps | None:
        """Read the results with one synchronization; None if a unit is dead or some layer was not updated."""
        found = torch.cat((dead[1:].any().double()[None], out.reshape(-1), self.u)).cpu()
        *history, (skipped, residual) = found[1 : 1 + out.numel()].view(-1, 2).tolist()
        if found[0] or skipped or not math.isfinite(history[-1][0]):
            return None
        u = found[1 + out.numel() :]
        return Sweeps(u, tuple(h[0] for h in history), tuple(h[1] for h in history[1:]), residual)


def _sum_and_gradient(
    blocks: tuple[Block, ...], exp_plus: Tensor, exp_minus: Tensor, slope: Tensor, constant: Tensor
) -> tuple[Tensor, Tensor]:
    """The sum, and the gradient of F over p, shape (H,)."""
    difference, sums = torch.zeros_like(exp_plus), [constant]
    for b in blocks:
        plus, minus = exp_plus[b.cols], exp_minus[b.rows]
        if b.dense:
            entering = minus * (b.m @ plus)
            leaving = plus * (minus @ b.m)
        else:
            entering = leaving = minus * b.m * plus
        difference.index_add_(0, b.cols, leaving).index_add_(0, b.rows, entering, alpha=-1)
        sums.append(entering.sum())
    sum_ = torch.stack(sums).sum()
    return sum_, (slope + difference / sum_)[1:]


def _update(entering: Tensor, leaving: Tensor, plus: Tensor, minus: Tensor, state: Tensor, setting: Tensor) -> None:
    """Update the units of a layer in place.

    ``entering`` and ``leaving`` are the sums over what enters and leaves each unit at the scales of the other ends;
    ``plus`` and ``minus`` are exp(u) and exp(-u) of the units.
    """
    n = len(entering)
    block = 1 << max(5, (n - 1).bit_length())
    warps = 8 if block > 256 else 4
    launch = update_units[(1,)]  # pyright: ignore[reportIndexIssue]
    launch(entering, leaving, plus, minus, state, setting, n, BLOCK=block, num_warps=warps)


@triton.jit
def update_units(into_ptr, out_ptr, up_ptr, down_ptr, state_ptr, setting_ptr, n, BLOCK: tl.constexpr):
    """Update ``n`` units; ``state`` holds the log of the sum, and counts the layers that were not updated."""
    i = tl.arange(0, BLOCK)
    live = i < n
    log = tl.load(setting_ptr)  # numbers come as float64 in memory: arguments would be rounded to float32
    p = tl.load(setting_ptr + 1)
    a = tl.load(setting_ptr + 2)
    least_remainder = tl.load(setting_ptr + 3)
    tolerance = tl.load(setting_ptr + 4)
    least = tl.load(setting_ptr + 5)
    most = tl.load(setting_ptr + 6)
    log_sum = tl.load(state_ptr)
    fraction = tl.exp(log - log_sum)
    up = tl.load(up_ptr + i, mask=live, other=1.0)
    down = tl.load(down_ptr + i, mask=live, other=1.0)
    into = tl.where(live, tl.load(into_ptr + i, mask=live, other=0.0) * down * fraction, 0.0)
    out = tl.where(live, tl.load(out_ptr + i, mask=live, other=0.0) * up * fraction, 0.0)
    old = into + out
    layer_sum = tl.sum(old)
    remainder = 1.0 - layer_sum
    size = tl.abs(a)
    q = into * out * (4.0 * (p - size) * (p + size))
    later = tl.maximum(layer_sum - tl.cumsum(old), 0.0)
    new = old
    root = old
    rounds = 0
    moved = layer_sum
    while (moved > 0.0) & (rounds < BLOCK + 1):
        d = size * (remainder + later + (tl.cumsum(new) - new))
        root = tl.where(live, (d + tl.sqrt(d * d + q)) / (2.0 * (p - size)), 1.0)
        fresh = tl.where(live, root + into * out / root, 0.0)
        moved = tl.max(tl.abs(fresh - new) - tolerance * fresh)
        new = fresh
        rounds += 1
    change = tl.where(a > 0, into / root, root / tl.where(live, out, 1.0))
    smallest = tl.min(tl.where(live, change, 1.0))
    largest = tl.max(tl.where(live, change, 1.0))
    if (remainder > least_remainder) & (smallest > least) & (largest < most):
        tl.store(up_ptr + i, up * change, mask=live)
        tl.store(down_ptr + i, down / change, mask=live)
        tl.store(state_ptr, log_sum + tl.log(remainder + tl.sum(new)))
    else:
        tl.store(state_ptr + 1, tl.load(state_ptr + 1) + 1.0)
