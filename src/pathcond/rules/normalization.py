"""Normalizations freeze the scale of the value they read; their gain and bias are parameters that enter new units."""

from __future__ import annotations

import math
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from pathcond.rules.base import Arguments, Reason, ScalePropagation, entries
from pathcond.rules.paths import PathSums, Scaled
from pathcond.tracing import Call


def _gain_shape(a: Arguments, size: tuple[int, ...]) -> tuple[int, ...]:
    """The shape in which gain and bias meet the values, of shape ``size``."""
    return tuple(a["normalized_shape"]) if "normalized_shape" in a else (size[1], *[1] * (len(size) - 2))


def _norm_scales(s: ScalePropagation, call: Call, a: Arguments) -> None:
    """The value is normalized, so its own scale must stay; gain and bias start new groups."""
    shape = _gain_shape(a, s.shape(a["input"].id))
    s.freeze(s.groups(a["input"]), Reason(call.where, f"is normalized by `{call.name}`", lost=False))
    view = s.parameter(a.get("weight"))
    made = s.new_groups(math.prod(shape), view or call.where)
    if view is None:
        s.freeze(made, Reason(call.where, f"leaves `{call.name}`, which has no scale parameter"))
        s.leave_parameter(a.get("bias"))
    else:
        row = made.reshape(s.shape(a["weight"].id))
        s.connect(view, row, torch.zeros_like(row))
        s.connect_bias(call, a.get("bias"), row)
    s.set_result(call, made.reshape(shape))


def _batch_scales(s: ScalePropagation, call: Call, a: Arguments) -> None:
    if s.batchnorm != "exclude":
        _norm_scales(s, call, a)
        return
    s.approximate.add(
        "batchnorm='exclude' keeps the function only in eval mode at initialization; it is meant to be applied once"
    )
    s.leave_parameter(a.get("weight"))
    s.leave_parameter(a.get("bias"))
    s.set_result(call, s.groups(a["input"]))


def _norm_paths(p: PathSums, call: Call, a: Arguments) -> None:
    """Y = weight (x - mean) / sqrt(var + eps) + bias, with every term squared; paths also start at a fixed mean.

    The statistics are those measured on data, else running ones. Without any, paths end in front of the normalization
    and new ones start behind it, at its gain and bias.
    """
    source, weight, bias = a["input"].id, a.get("weight"), a.get("bias")
    if source not in p.sums or p.depends_on_data(weight, bias, a.get("running_mean"), a.get("running_var")):
        p.barrier(call)
        return
    size, x = p.trace.values[source].shape, a["input"]
    shape = _gain_shape(a, size)
    slope, offset = _statistics(p, call, a, shape)
    if slope is None:
        p.end_path(source)
        x, slope = Scaled(torch.ones([1] * len(size), dtype=p.dtype, device=p.device), 0.0), 1.0
    if offset is not None:
        x = p.between([x, Scaled(offset, 0.0)], torch.add)
    gain = [] if weight is None else [weight]
    p.product(
        call, [x, *gain], lambda x, *w: x * slope * (w[0].reshape(shape) if w else 1.0), bias,
        shape=lambda b: b.reshape(shape),
    )  # fmt: skip


def _statistics(p: PathSums, call: Call, a: Arguments, shape: tuple[int, ...]) -> tuple[Tensor | None, Tensor | None]:
    """Squared slope 1 / (var + eps) before the gain, and the squared mean where it is fixed; None where unknown."""
    measured = p.statistics.get(call.outs[0])
    if measured is not None:
        return measured.to(p.device, p.dtype), None
    mean, var = a.get("running_mean"), a.get("running_var")
    if a.get("training", False) or a.get("use_input_stats", False) or mean is None or var is None:
        return None, None
    slope = (p.known(var).to(p.dtype) + a.get("eps", 1e-5)).reciprocal_().reshape(shape)
    offset = p.known(mean).to(p.dtype).square().reshape(shape) if p.largest_entry(mean) > 0 else None
    return slope, offset


# ---- statistics measured on data


def _slope(a: Arguments, x: Tensor, axes: list[int], centered: bool = True) -> Tensor:
    """1 / (var + eps) along some axes, in float32, or in float64 where the values are."""
    x = x.detach().to(torch.promote_types(x.dtype, torch.float32))
    eps = a.get("eps", 1e-5)
    variance = x.var(axes, correction=0) if centered else x.square().mean(axes)
    return (variance + (torch.finfo(x.dtype).eps if eps is None else eps)).reciprocal()


def _measure_batch(a: Arguments) -> Tensor | None:
    """Slope of each channel from the statistics of the batch; None for too few values per channel."""
    x = a["input"]
    if x.numel() // max(1, x.shape[1]) < MIN_VALUES:
        return None
    return _slope(a, x, [0, *range(2, x.ndim)]).reshape(_gain_shape(a, x.shape))


def _measure_group(a: Arguments) -> Tensor:
    """Slope of each channel: the mean over examples of that of its group."""
    x = a["input"]
    groups = a.get("num_groups", x.shape[1])
    slope = _slope(a, x.reshape(x.shape[0], groups, -1), [-1]).mean(0)
    return slope.repeat_interleave(x.shape[1] // groups).reshape(_gain_shape(a, x.shape))


def _measure_layer(a: Arguments, centered: bool = True) -> Tensor:
    """One slope: the mean over positions."""
    return _slope(a, a["input"], [*range(-len(a["normalized_shape"]), 0)], centered).mean()


MIN_VALUES = 8  # a variance over fewer values is too uncertain
MEASURES = {
    "batch_norm": _measure_batch,
    "group_norm": _measure_group,
    "layer_norm": _measure_layer,
    "rms_norm": partial(_measure_layer, centered=False),
}

OPERATIONS = [
    *entries(
        "batch_norm", "batch_norm", "input running_mean running_var weight bias training momentum eps",
        _batch_scales, _norm_paths, namespaces=[F],
    ),
    *entries("layer_norm", "layer_norm", "input normalized_shape weight bias eps", _norm_scales, _norm_paths),
    *entries("rms_norm", "rms_norm", "input normalized_shape weight eps", _norm_scales, _norm_paths),
    *entries("group_norm", "group_norm", "input num_groups weight bias eps", _norm_scales, _norm_paths),
    *entries(
        "instance_norm", "group_norm", "input running_mean running_var weight bias use_input_stats momentum eps",
        _norm_scales, _norm_paths, namespaces=[F],
    ),
]  # fmt: skip
