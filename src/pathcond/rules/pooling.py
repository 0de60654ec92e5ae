"""Pools, reductions over axes and resampling: maps of each channel on its own.

Scales pass. Path sums depend on ``pooling``: ``exact``: a maximum is a sum over its window, an average's coefficient is
squared. ``plain``: pools as they are. ``all``: both are sums. Positions in the padding do not exist.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pathcond.rules.base import Arguments, ScalePropagation, entries, lay_out, mixed_positions
from pathcond.rules.elementwise import add_paths, add_scales
from pathcond.rules.paths import PathSums
from pathcond.rules.shape import move_paths
from pathcond.tracing import Call, Ref, flatten, run

# ---- pools over windows


def _pool_scales(s: ScalePropagation, call: Call, a: Arguments, nd: int | None = None) -> None:
    """Positions along the last ``nd`` axes, or all behind the channels, are mixed."""
    ndim = len(s.shape(a["input"].id))
    kept = range(2 if nd is None else ndim - nd)
    s.set_result(call, s.collapse(s.groups(a["input"]), kept, mixed_positions(call)))


def _pool_paths(p: PathSums, call: Call, a: Arguments, nd: int, average: bool) -> None:
    space = p.trace.values[call.outs[0]].shape[-nd:]

    def plain(x: Tensor) -> Tensor:
        return flatten(run(call, lambda _: x))[0]

    def pooled(x: Tensor) -> Tensor:
        squared = average and p.pooling == "exact"
        if "output_size" in a:
            mean, count = getattr(F, f"adaptive_avg_pool{nd}d")(x, space), _adaptive_positions(x, space)
            return mean / count if squared else mean * count
        ones = torch.ones_like(x[(0,) * (x.ndim - nd)])[None]
        total = _window_sum(x, a, space)
        return total * (plain(ones) / _window_sum(ones, a, space)) ** 2 if squared else total

    p.sum(call, [a["input"]], plain if p.pooling == "plain" else pooled)


# ---- reductions over axes


def _axes(dim: Any, ndim: int) -> tuple[int, ...]:
    """The axes a reduction names; all of them where it names none."""
    return tuple(range(ndim)) if dim is None or dim in ((), []) else (dim,) if isinstance(dim, int) else tuple(dim)


def _reduce_scales(s: ScalePropagation, call: Call, a: Arguments, dim: Any = None) -> None:
    dim = a.get("dim", a.get("axis", a.get("other", dim)))
    if isinstance(dim, Ref):  # torch.max(x, y)
        add_scales(s, call, {"input": a["input"], "other": dim})
        return
    groups = s.groups(a["input"])
    axes, gone = range(groups.ndim), {d % max(groups.ndim, 1) for d in _axes(dim, groups.ndim)}
    kept = [axis for axis in axes if axis not in gone]
    groups = s.collapse(groups, kept, mixed_positions(call))
    s.set_result(call, groups if len(s.shape(call.outs[0])) == groups.ndim else lay_out(groups, axes, kept))


def _reduce_paths(p: PathSums, call: Call, a: Arguments, kind: str, dim: Any = None) -> None:
    """``kind``: ``mean``, ``sum`` or ``extreme`` (a maximum or minimum)."""
    dim = a.get("dim", a.get("axis", a.get("other", dim)))
    if isinstance(dim, Ref):
        add_paths(p, call, {"input": a["input"], "other": dim})
        return
    size, shape = p.trace.values[a["input"].id].shape, p.trace.values[call.outs[0]].shape
    dims = _axes(dim, len(size))
    power = {"exact": 2, "plain": 1, "all": 0}[p.pooling] if kind == "mean" else 0

    def reduced(x: Tensor) -> Tensor:
        if kind == "extreme" and p.pooling == "plain":
            found = x.amax(dims, keepdim=True)
        else:
            found = x.sum(dims, keepdim=True) / math.prod(size[d] for d in dims) ** power
        return found if len(shape) == len(size) else found.reshape(shape)

    p.sum(call, [a["input"]], reduced)


# ---- sums at indices


def _scatter_scales(s: ScalePropagation, call: Call, a: Arguments) -> None:
    """Entries along an axis are added, averaged or maximized at positions that the indices give."""
    dim, source = a["dim"], a.get("src", a.get("source"))
    if not isinstance(source, Ref) or not isinstance(dim, int) or a.get("reduce") == "prod":
        s.freeze_through(call)
        return
    base, added = s.groups(a["input"]), s.groups(source)
    kept = [axis for axis in range(base.ndim) if axis != dim % max(base.ndim, 1)]
    whole, part = s.shape(a["input"].id), s.shape(source.id)
    if any(whole[axis] != part[axis] for axis in kept):
        s.freeze_through(call, f"is added to a part by `{call.name}`")
        return
    base, added = (s.collapse(groups, kept, mixed_positions(call)) for groups in (base, added))
    s.set_result(call, s.tie(base, added, mixed_positions(call)))


def _scatter_paths(p: PathSums, call: Call, a: Arguments) -> None:
    plain = a.get("alpha", 1) == 1 and a.get("reduce", "sum") == "sum"
    if plain and p.on_path(a.get("src", a.get("source"))) and p.constant(a["index"]) is not None:
        move_paths(p, call, a)
    else:
        p.barrier(call)


# ---- path sums over windows


def _each(value: Any, nd: int) -> tuple[int, ...]:
    return (value,) * nd if isinstance(value, int) else tuple(value) * (nd if len(value) == 1 else 1)


def _window_sum(x: Tensor, setting: dict[str, Any], space: tuple[int, ...]) -> Tensor:
    """Sum over pooling windows, along one axis after the other."""
    nd = len(space)
    kernel = _each(setting["kernel_size"], nd)
    names = (setting.get("stride") or kernel, setting.get("padding", 0), setting.get("dilation", 1))
    for axis, k, s, p, d in zip(range(nd), kernel, *(_each(value, nd) for value in names), strict=True):
        span, size = d * (k - 1) + 1, x.shape[axis - nd]
        ends = [p, (space[axis] - 1) * s + span - size - p]  # up to the end of the last window
        x = F.pad(x, [0, 0] * (nd - 1 - axis) + ends).unfold(axis - nd, span, s)[..., ::d].sum(-1)
    return x


def _adaptive_positions(x: Tensor, space: tuple[int, ...]) -> Tensor:
    """Number of positions of each window of an adaptive pool, broadcast over channels."""
    positions = x.new_ones(())
    for n, out in zip(x.shape[-len(space) :], space, strict=True):
        counts = [-(-(i + 1) * n // out) - i * n // out for i in range(out)]
        positions = positions[..., None] * x.new_tensor(counts)
    return positions


_AVERAGE = "input kernel_size stride padding ceil_mode count_include_pad divisor_override"
_WINDOWS = "input kernel_size stride padding dilation ceil_mode"
_LARGEST: Any = {"scales": partial(_reduce_scales, dim=-1), "paths": partial(_reduce_paths, kind="extreme", dim=-1)}

OPERATIONS = [
    *(
        entry
        for nd in (1, 2, 3)
        for names, kind, arguments in (
            (f"max_pool{nd}d max_pool{nd}d_with_indices", "max_pool", _WINDOWS),
            (f"avg_pool{nd}d", "avg_pool", _AVERAGE),
            (f"adaptive_avg_pool{nd}d", "adaptive_avg_pool", "input output_size"),
            (f"adaptive_max_pool{nd}d adaptive_max_pool{nd}d_with_indices", "adaptive_max_pool", "input output_size"),
        )
        for entry in entries(
            names, kind, arguments, partial(_pool_scales, nd=nd), partial(_pool_paths, nd=nd, average="avg" in kind)
        )
    ),
    *entries(
        "interpolate upsample upsample_nearest upsample_bilinear",
        "resample", "input", _pool_scales, move_paths, namespaces=[F],
    ),
    *entries("index_add", "scatter", "input dim index source", _scatter_scales, _scatter_paths),
    *entries("scatter_add scatter_reduce", "scatter", "input dim index src reduce", _scatter_scales, _scatter_paths),
    *entries("topk", "largest", "input k dim", **_LARGEST),
    *entries("sort", "largest", "input dim", **_LARGEST),
    *entries("cumsum", "cumsum", "input dim", _reduce_scales, move_paths),
    *entries("mean", "mean", "input dim keepdim", _reduce_scales, partial(_reduce_paths, kind="mean")),
    *entries("sum", "sum", "input dim keepdim", _reduce_scales, partial(_reduce_paths, kind="sum")),
    *entries(
        "max min amax amin", "extreme", "input dim keepdim", _reduce_scales, partial(_reduce_paths, kind="extreme")
    ),
]  # fmt: skip
