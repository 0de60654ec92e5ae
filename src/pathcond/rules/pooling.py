"""Pools, reductions over axes and resampling: maps of each channel on its own.

Scales pass. Path sums depend on ``pooling``: ``exact``: a maximum is a sum over its window, an average's coefficient is
squared. ``plain``: pools as they are. ``all``: both are sums, which counts the paths through every position. Positions
in the padding do not exist.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pathcond.rules.base import Arguments, Reason, ScalePropagation, entries, mixed_positions
from pathcond.rules.elementwise import add_paths, add_scales
from pathcond.rules.paths import PathSums
from pathcond.tracing import Call, Ref, run

# ---- pools over windows


def _pool_scales(s: ScalePropagation, call: Call, a: Arguments, nd: int) -> None:
    axis = len(s.shape(a["input"].id)) - nd - 1
    s.set_result(call, s.collapse(s.groups(a["input"]), range(axis + 1), mixed_positions(call)))


def _pool_paths(p: PathSums, call: Call, a: Arguments, kind: str) -> None:
    setting = {k: v for k, v in a.items() if k not in ("input", "return_indices")}
    p.sum(call, [a["input"]], lambda x: _pool(kind, x, setting, p.pooling))


# ---- reductions over axes


def _axes(dim: Any, ndim: int) -> tuple[int, ...]:
    """The axes a reduction names; all of them where it names none."""
    return tuple(range(ndim)) if dim is None or dim in ((), []) else (dim,) if isinstance(dim, int) else tuple(dim)


def _reduce_scales(s: ScalePropagation, call: Call, a: Arguments) -> None:
    dim = a.get("dim", a.get("axis", a.get("other")))
    if isinstance(dim, Ref):  # torch.max(x, y)
        add_scales(s, call, {"input": a["input"], "other": dim})
        return
    groups = s.groups(a["input"])
    gone = {d % max(groups.ndim, 1) for d in _axes(dim, groups.ndim)}
    groups = s.collapse(groups, [d for d in range(groups.ndim) if d not in gone], mixed_positions(call))
    keeps_axes = len(s.shape(call.outs[0])) == groups.ndim
    s.set_result(
        call, groups if keeps_axes else groups.reshape([n for d, n in enumerate(groups.shape) if d not in gone])
    )


def _reduce_paths(p: PathSums, call: Call, a: Arguments, kind: str) -> None:
    dim = a.get("dim", a.get("axis", a.get("other")))
    if isinstance(dim, Ref):
        add_paths(p, call, {"input": a["input"], "other": dim})
        return
    size, shape = p.trace.values[a["input"].id].shape, p.trace.values[call.outs[0]].shape
    dims = _axes(dim, len(size))
    p.sum(call, [a["input"]], lambda x: _reduced(kind, x, dims, p.pooling).reshape(shape))


# ---- sums at indices, and the largest entries


def _scatter_scales(s: ScalePropagation, call: Call, a: Arguments) -> None:
    """Entries along an axis are added, averaged or maximized at positions that the indices give."""
    dim, source = a["dim"], a.get("src", a.get("source"))
    if not isinstance(source, Ref) or not isinstance(dim, int) or a.get("reduce") == "prod":
        s.freeze_through(call)
        return
    s.groups(a["index"])
    base, added = s.groups(a["input"]), s.groups(source)
    kept = [axis for axis in range(base.ndim) if axis != dim % max(base.ndim, 1)]
    base, added = (s.collapse(groups, kept, mixed_positions(call)) for groups in (base, added))
    s.set_result(call, s.tie(base, added, mixed_positions(call)))


def _scatter_paths(p: PathSums, call: Call, a: Arguments) -> None:
    source, index = a.get("src", a.get("source")), p.constant(a["index"])
    if not p.on_path(source) or index is None or a.get("alpha", 1) != 1 or a.get("reduce", "sum") != "sum":
        p.barrier(call)
        return
    shape, dim = p.trace.values[call.outs[0]].shape, a["dim"]
    add = torch.index_add if "index_add" in call.name else torch.scatter_add
    terms = [a["input"]] if p.on_path(a["input"]) else []
    p.add(call, [source, *terms], lambda x, *base: add(base[0] if base else x.new_zeros(shape), dim, index, x))


def _along_axis_scales(s: ScalePropagation, call: Call, a: Arguments) -> None:
    """Entries along an axis are ordered or added up, so that they must share their scales."""
    groups, dim = s.groups(a["input"]), a.get("dim", -1)
    kept = [axis for axis in range(groups.ndim) if axis != dim % max(groups.ndim, 1)]
    s.set_result(call, s.collapse(groups, kept, mixed_positions(call)))


def _largest_paths(p: PathSums, call: Call, a: Arguments) -> None:
    p.sum(call, [a["input"]], lambda x: _reduced("extreme", x, (a.get("dim", -1),), p.pooling))


def _cumsum_paths(p: PathSums, call: Call, a: Arguments) -> None:
    p.sum(call, [a["input"]], lambda x: x.cumsum(a["dim"]))


# ---- resampling


def _resample_scales(s: ScalePropagation, call: Call, a: Arguments) -> None:
    s.set_result(call, s.collapse(s.groups(a["input"]), (0, 1), mixed_positions(call)))


def _resample_paths(p: PathSums, call: Call, a: Arguments) -> None:
    p.sum(call, [a["input"]], lambda x: run(call, lambda _: x))


def _grid_scales(s: ScalePropagation, call: Call, a: Arguments) -> None:
    """Each channel is read at positions that the grid gives; positions outside are zero, or others of the channel."""
    s.freeze(s.groups(a["grid"]), Reason("op", call.where, f"is the grid of `{call.name}`"))
    _resample_scales(s, call, a)


def _grid_paths(p: PathSums, call: Call, a: Arguments) -> None:
    """A grid that data decides may read any position: it reads their average, as attention does."""
    source, grid = a["input"].id, a["grid"]
    fixed = p.constant(grid)
    if source not in p.sums:
        p.barrier(call)
        return
    p.end_path(grid.id)
    if fixed is None:
        p.sum(call, [a["input"]], lambda x: x.mean(tuple(range(2, x.ndim)), keepdim=True))
        return
    setting = {k: v for k, v in a.items() if k not in ("input", "grid")}
    setting["mode"] = "nearest" if a.get("mode") == "nearest" else "bilinear"  # coefficients that are not negative
    p.sum(call, [a["input"]], lambda x: F.grid_sample(x, fixed.to(p.dtype), **setting))


# ---- path sums over windows

_PLAIN = {
    f"{name}{d}": getattr(F, f"{name}{d}d")
    for name in ("max_pool", "avg_pool", "adaptive_avg_pool", "adaptive_max_pool")
    for d in (1, 2, 3)
}


def _pool(kind: str, x: Tensor, setting: dict[str, Any], pooling: str) -> Tensor:
    """A pool of ``kind`` (``max_pool2``, ``adaptive_avg_pool3``, ...) of path sums ``x`` (..., channels, *space)."""
    plain = _PLAIN[kind]
    if pooling == "plain":
        return plain(x, **setting)
    nd, average = int(kind[-1]), "avg" in kind
    if kind.startswith("adaptive"):
        positions = _adaptive_positions(x, setting["output_size"], nd)
        mean = _PLAIN[f"adaptive_avg_pool{nd}"](x, setting["output_size"])
        return mean / positions if average and pooling == "exact" else mean * positions
    total = _window_sum(x, setting, nd)
    if average and pooling == "exact":
        ones = torch.ones_like(x[..., :1, *[slice(None)] * nd]) if x.ndim > nd else torch.ones_like(x)
        return total * (plain(ones, **setting) / _window_sum(ones, setting, nd)) ** 2
    return total


def _reduced(kind: str, x: Tensor, dims: Sequence[int], pooling: str) -> Tensor:
    """``mean``, ``sum`` or ``extreme`` (a maximum or minimum) of path sums over axes."""
    if kind == "extreme" and pooling == "plain":
        return x.amax(tuple(dims), keepdim=True)
    total = x.sum(tuple(dims), keepdim=True)
    positions = math.prod(x.shape[d] for d in dims)
    if kind != "mean" or pooling == "all":
        return total
    return total / positions if pooling == "plain" else total / positions**2


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


def _adaptive_positions(x: Tensor, output_size: Any, nd: int) -> Tensor:
    """Number of positions of each window of an adaptive pool, broadcast over channels."""
    sizes = (output_size,) * nd if output_size is None or isinstance(output_size, int) else tuple(output_size)
    positions = x.new_ones(())
    for axis, wanted in enumerate(sizes):
        n = x.shape[axis - nd]
        out = n if wanted is None else wanted
        counts = [-(-(i + 1) * n // out) - i * n // out for i in range(out)]
        positions = positions[..., None] * x.new_tensor(counts)
    return positions


_AVERAGE = "input kernel_size stride padding ceil_mode count_include_pad divisor_override"
_WINDOWS = "input kernel_size stride padding dilation ceil_mode"

OPERATIONS = [
    *(
        entry
        for nd in (1, 2, 3)
        for names, kind, arguments in (
            (f"max_pool{nd}d max_pool{nd}d_with_indices", f"max_pool{nd}", _WINDOWS),
            (f"avg_pool{nd}d", f"avg_pool{nd}", _AVERAGE),
            (f"adaptive_avg_pool{nd}d", f"adaptive_avg_pool{nd}", "input output_size"),
            (
                f"adaptive_max_pool{nd}d adaptive_max_pool{nd}d_with_indices",
                f"adaptive_max_pool{nd}", "input output_size",
            ),
        )
        for entry in entries(names, kind, arguments, partial(_pool_scales, nd=nd), partial(_pool_paths, kind=kind))
    ),
    *entries(
        "interpolate upsample upsample_nearest upsample_bilinear",
        "resample", "input", _resample_scales, _resample_paths, namespaces=[F],
    ),
    *entries(
        "grid_sample", "grid", "input grid mode padding_mode align_corners", _grid_scales, _grid_paths, namespaces=[F]
    ),
    *entries("index_add", "scatter", "input dim index source", _scatter_scales, _scatter_paths),
    *entries("scatter_add", "scatter", "input dim index src", _scatter_scales, _scatter_paths),
    *entries("scatter_reduce", "scatter", "input dim index src reduce", _scatter_scales, _scatter_paths),
    *entries("topk", "largest", "input k dim", _along_axis_scales, _largest_paths),
    *entries("sort", "largest", "input dim", _along_axis_scales, _largest_paths),
    *entries("cumsum", "cumsum", "input dim", _along_axis_scales, _cumsum_paths),
    *entries("mean", "mean", "input dim keepdim", _reduce_scales, partial(_reduce_paths, kind="mean")),
    *entries("sum", "sum", "input dim keepdim", _reduce_scales, partial(_reduce_paths, kind="sum")),
    *entries(
        "max min amax amin", "extreme", "input dim keepdim", _reduce_scales, partial(_reduce_paths, kind="extreme")
    ),
]  # fmt: skip
