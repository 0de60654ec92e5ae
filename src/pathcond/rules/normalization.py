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
    s.set_result(call, s.groups(a["input"]))


def _norm_paths(p: PathSums, call: Call, a: Arguments) -> None:
    """Y = weight (x - mean) / sqrt(var + eps) + bias, with every term squared; paths also start at a fixed mean.

    The statistics are those measured on data, else running ones. Without any, paths end in front of the normalization
    and new ones start behind it, at its gain and bias.
    """
    source, weight, bias = a["input"].id, a.get("weight"), a.get("bias")
    mean, var = a.get("running_mean"), a.get("running_var")
    if source not in p.sums or p.depends_on_data(weight, bias, mean, var):
        p.barrier(call)
        return
    size, x = p.trace.values[source].shape, a["input"]
    shape, slope = _gain_shape(a, size), p.statistics.get(call.outs[0])  # squared: 1 / (var + eps)
    if slope is not None:
        slope = slope.to(p.device, p.dtype)
    elif a.get("training", False) or a.get("use_input_stats", False) or mean is None or var is None:
        p.end_path(source)
        x, slope = Scaled(torch.ones([1] * len(size), dtype=p.dtype, device=p.device), 0.0), 1.0
    else:
        slope = (p.known(var).to(p.dtype) + a.get("eps", 1e-5)).reciprocal_().reshape(shape)
        if p.known(mean).any():
            x = p.between([x, Scaled(p.known(mean).to(p.dtype).square().reshape(shape), 0.0)], torch.add)
    gain = [] if weight is None else [weight]
    p.product(
        call, [x, *gain], lambda x, *w: x * slope * (w[0].reshape(shape) if w else 1.0), bias,
        shape=lambda b: b.reshape(shape),
    )  # fmt: skip


# ---- statistics measured on data

MIN_VALUES = 8  # a variance over fewer values of a channel is too uncertain


def _measure(kind: str, a: Arguments) -> Tensor | None:
    """The slope 1 / (var + eps) of each channel, or of all: the mean over examples, or over positions.

    In float32, or in float64 where the values are; None for too few values.
    """
    x, channels = a["input"].detach(), a["input"].shape[1:2].numel()
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    if kind == "batch_norm":
        rows = x.transpose(0, 1).flatten(1)[None]
        if rows.shape[-1] < MIN_VALUES:
            return None
    elif kind == "group_norm":
        rows = x.reshape(x.shape[0], a.get("num_groups", channels), -1)
    else:
        rows = x.reshape(-1, 1, math.prod(a["normalized_shape"]))
    eps = a.get("eps", 1e-5)
    variance = rows.square().mean(-1) if kind == "rms_norm" else rows.var(-1, correction=0)
    slope = (variance + (torch.finfo(x.dtype).eps if eps is None else eps)).reciprocal().mean(0)
    if "normalized_shape" in a:
        return slope
    return slope.repeat_interleave(channels // len(slope)).reshape(_gain_shape(a, x.shape))


MEASURES = {kind: partial(_measure, kind) for kind in ("batch_norm", "group_norm", "layer_norm", "rms_norm")}

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
