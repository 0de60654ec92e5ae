"""Pools and reductions of path sums.

``exact``: a maximum is a sum over its window, an average's coefficient is squared. ``plain``: as they are. ``all``:
both are sums, which counts the paths through every cell. Cells on padding do not exist.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_PLAIN = {
    f"{name}{d}": getattr(F, f"{name}{d}d")
    for name in ("max_pool", "avg_pool", "adaptive_avg_pool", "adaptive_max_pool")
    for d in (1, 2, 3)
}


def pool(kind: str, x: Tensor, setting: dict[str, Any], pooling: str) -> Tensor:
    """A pool of ``kind`` (``max_pool2``, ``adaptive_avg_pool3``, ...) of path sums ``x`` (..., channels, *space)."""
    plain = _PLAIN[kind]
    if pooling == "plain":
        return plain(x, **setting)
    nd, average = int(kind[-1]), "avg" in kind
    if kind.startswith("adaptive"):
        cells = _adaptive_cells(x, setting["output_size"], nd)
        mean = _PLAIN[f"adaptive_avg_pool{nd}"](x, setting["output_size"])
        return mean / cells if average and pooling == "exact" else mean * cells
    total = _window_sum(x, setting, nd)
    if average and pooling == "exact":
        ones = torch.ones_like(x[..., :1, *[slice(None)] * nd]) if x.ndim > nd else torch.ones_like(x)
        return total * (plain(ones, **setting) / _window_sum(ones, setting, nd)) ** 2
    return total


def reduce(kind: str, x: Tensor, dims: Sequence[int], pooling: str) -> Tensor:
    """``mean``, ``sum`` or ``extreme`` (a maximum or minimum) of path sums over axes."""
    if kind == "extreme" and pooling == "plain":
        return x.amax(tuple(dims), keepdim=True)
    total = x.sum(tuple(dims), keepdim=True)
    cells = math.prod(x.shape[d] for d in dims)
    if kind != "mean" or pooling == "all":
        return total
    return total / cells if pooling == "plain" else total / cells**2


def _each(value: Any, nd: int) -> tuple[int, ...]:
    return (value,) * nd if isinstance(value, int) else tuple(value) * (nd if len(value) == 1 else 1)


def _window_sum(x: Tensor, setting: dict[str, Any], nd: int) -> Tensor:
    """Sum over pooling windows, as a convolution of each channel with ones; ``ceil_mode`` pads at the far end."""
    kernel = _each(setting["kernel_size"], nd)
    given = setting.get("stride")
    stride = kernel if given is None or given == [] or given == () else _each(given, nd)
    padding, dilation = _each(setting.get("padding", 0), nd), _each(setting.get("dilation", 1), nd)
    space = x.shape[-nd:]
    extra = []
    for n, k, s, p, d in zip(space, kernel, stride, padding, dilation, strict=True):
        span = n + 2 * p - d * (k - 1) - 1
        out = (-(-span // s) if setting.get("ceil_mode") else span // s) + 1
        if setting.get("ceil_mode") and (out - 1) * s >= n + p:
            out -= 1
        extra.append(max(0, (out - 1) * s + d * (k - 1) + 1 - n - 2 * p))
    pads = [amount for p, e in zip(reversed(padding), reversed(extra), strict=True) for amount in (p, p + e)]
    flat = F.pad(x, pads).reshape(-1, 1, *(n + 2 * p + e for n, p, e in zip(space, padding, extra, strict=True)))
    convolve = (F.conv1d, F.conv2d, F.conv3d)[nd - 1]
    summed = convolve(flat, flat.new_ones(1, 1, *kernel), stride=stride, dilation=dilation)
    return summed.reshape(*x.shape[:-nd], *summed.shape[-nd:])


def _adaptive_cells(x: Tensor, output_size: Any, nd: int) -> Tensor:
    """Number of cells of each window of an adaptive pool, broadcast over channels."""
    sizes = (output_size,) * nd if output_size is None or isinstance(output_size, int) else tuple(output_size)
    cells = x.new_ones(())
    for axis, wanted in enumerate(sizes):
        n = x.shape[axis - nd]
        out = n if wanted is None else wanted
        counts = [-(-(i + 1) * n // out) - i * n // out for i in range(out)]
        cells = cells[..., None] * x.new_tensor(counts)
    return cells
