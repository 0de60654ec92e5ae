"""Path sums through sums, products and layers with parameters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pathcond import ops
from pathcond.squared import PathSums, Scaled, no_rule, rule
from pathcond.trace import Call, Ref

_CHUNK = 1 << 22  # entries of a weight matrix squared at a time


# ---- sums and products


def sum_to(grad: Tensor, shape: Sequence[int]) -> Tensor:
    """Sum a gradient over the axes along which its value was broadcast."""
    return grad.sum_to_size(tuple(shape))


def _mass_of(s: PathSums, x: Any) -> Scaled | None:
    """The mass of data, the squares of a constant; None for what no path leads to or from."""
    if isinstance(x, Ref) and x.id in s.mass:
        return s.mass[x.id]
    return s.square(x) if s.constant(x) is not None and not (isinstance(x, (int, float)) and x == 0) else None


@rule("add", "maximum", "where")
def _add(s: PathSums, call: Call, a: dict[str, Any]) -> None:
    kind, shape = ops.TABLE[call.fn].kind, s.trace.values[call.outs[0]].shape
    weights = (1.0, float(a.get("alpha", 1)) ** 2)
    given = [
        (x, m, w) for x, w in zip((a["input"], a["other"]), weights, strict=True) if (m := _mass_of(s, x)) is not None
    ]
    if not any(isinstance(x, Ref) and x.id in s.mass for x, _, _ in given):
        no_rule(s, call, a)
        return
    log = max(m.log for _, m, _ in given)
    terms = [m.at(log) * w if w != 1.0 else m.at(log) for _, m, w in given]
    picks: list[Any] = [w for _, _, w in given]
    if kind == "maximum" and s.pooling == "plain" and len(terms) == 2:
        total = torch.maximum(*terms)
        picks = [(terms[0] >= total).to(s.dtype), (terms[0] < total).to(s.dtype)]
    else:
        total = sum(terms[1:], terms[0])

    def back(grad: Scaled) -> None:
        for (x, m, _), pick in zip(given, picks, strict=True):
            piece = Scaled(sum_to(grad.t * pick, m.t.shape), grad.log)
            if isinstance(x, Ref):
                s.send(x.id, piece) if x.id in s.mass else s.give(x, piece)

    s.put(call, Scaled(total.expand(shape), log), back)


@rule("mul", "div")
def _mul(s: PathSums, call: Call, a: dict[str, Any]) -> None:
    shape, kind = s.trace.values[call.outs[0]].shape, ops.TABLE[call.fn].kind
    data = [x.id for x in (a["input"], a["other"]) if isinstance(x, Ref) and x.id in s.mass]
    if len(data) == 2:
        kept = [d for d in data if d not in s.gates]
        if kind == "div":
            kept = data[:1]
        if len(kept) == 1:
            s.linear(call, kept, lambda x: x[0].expand(shape))
            return
        x, y = (s.mass[d] for d in data)
        s.put(call, Scaled(x.t * y.t, x.log + y.log).normal(), lambda g: _product_back(s, g, data))
        return
    other = a["other"] if isinstance(a["input"], Ref) and a["input"].id in s.mass else a["input"]
    if kind == "div" and other is not a["other"]:
        no_rule(s, call, a)
        return
    if s.constant(other) is None:  # neither a path nor a constant, such as a mask made from token ids
        s.linear(call, data, lambda x: x[0].expand(shape))
        return
    factor = s.square(other)
    if kind == "div":
        factor = Scaled(1 / factor.t, -factor.log)
    mass, source = s.mass[data[0]], data[0]

    def back(grad: Scaled) -> None:
        s.send(source, Scaled(sum_to(grad.t * factor.t, mass.t.shape), grad.log + factor.log).normal())
        if isinstance(other, Ref) and kind == "mul":
            s.give(other, Scaled(sum_to(grad.t * mass.t, factor.t.shape), grad.log + mass.log))

    s.put(call, Scaled(mass.t * factor.t, mass.log + factor.log).normal(), back)


def _product_back(s: PathSums, grad: Scaled, data: Sequence[int]) -> None:
    for one, other in (data, data[::-1]):
        piece = sum_to(grad.t * s.mass[other].t, s.mass[one].t.shape)
        s.send(one, Scaled(piece, grad.log + s.mass[other].log).normal())


# ---- layers with parameters


def _with_bias(s: PathSums, mass: Scaled, bias: Any, shape: Sequence[int], normal: bool = True) -> Scaled:
    mass = mass.normal() if normal else mass
    if bias is None:
        return mass
    if not s.ones and s.top(bias) == 0.0:
        return mass
    squared = s.square(bias)
    return mass + Scaled(squared.t.reshape(tuple(shape)), squared.log)


def _dense(s: PathSums, call: Call, x: Ref, weight: Ref, bias: Any, turned: bool, axis: int) -> None:
    """``weight`` (out x in, or in x out where turned) along ``axis``; squares a few rows at a time."""
    tensor = s.constant(weight)
    if tensor is None or tensor.ndim != 2 or x.id not in s.mass:
        no_rule(s, call, {})
        return
    matrix = tensor.T if turned else tensor
    mass = s.mass[x.id]
    top = 1.0 if s.ones else s.top(weight) or 1.0
    rows = max(1, _CHUNK // max(1, matrix.shape[1]))
    pieces = [slice(i, i + rows) for i in range(0, matrix.shape[0], rows)]
    log = 2 * math.log(top)

    kept: dict[int, Tensor] = {}  # for the way back, if there is but one piece

    def squares(piece: slice) -> Tensor:
        if piece.start in kept:
            return kept[piece.start]
        part = matrix[piece]
        found = torch.ones_like(part, dtype=s.dtype) if s.ones else (part.to(s.dtype) / top).square_()
        if len(pieces) == 1 and x.id in s.deep:
            kept[piece.start] = found
        return found

    flat = mass.t.movedim(axis, -1)
    result = torch.cat([flat @ squares(p).T for p in pieces], -1).movedim(-1, axis)
    tail = [-1] + [1] * (-axis - 1)

    def back(grad: Scaled) -> None:
        if bias is not None:
            summed = grad.t.movedim(axis, -1).reshape(-1, matrix.shape[0]).sum(0)
            s.give(bias, Scaled(summed.reshape(s.trace.values[bias.id].shape), grad.log))
        rows_in = grad.t.movedim(axis, -1)
        if x.id in s.deep:
            found = sum(
                (rows_in[..., p] @ squares(p) for p in pieces[1:]), rows_in[..., pieces[0]] @ squares(pieces[0])
            )
            s.send(x.id, Scaled(found.movedim(-1, axis), grad.log + log).normal())
        outer = rows_in.reshape(-1, matrix.shape[0]).T @ flat.reshape(-1, matrix.shape[1])
        s.give(weight, Scaled(outer.T if turned else outer, grad.log + mass.log))

    s.put(call, _with_bias(s, Scaled(result, mass.log + log), bias, tail), back)


@rule("linear")
def _linear(s: PathSums, call: Call, a: dict[str, Any]) -> None:
    _dense(s, call, a["input"], a["weight"], a.get("bias"), False, -1)


@rule("matmul")
def _matmul(s: PathSums, call: Call, a: dict[str, Any]) -> None:
    x, y = a["input"], a["other"]
    if x.id in s.mass:
        _dense(s, call, x, y, None, True, -1)
    else:
        _dense(s, call, y, x, None, False, -2)


@rule("addmm")
def _addmm(s: PathSums, call: Call, a: dict[str, Any]) -> None:
    _dense(s, call, a["mat1"], a["mat2"], a["input"], True, -1)


@rule("conv1", "conv2", "conv3", "convt1", "convt2", "convt3")
def _conv(s: PathSums, call: Call, a: dict[str, Any]) -> None:
    kind = ops.TABLE[call.fn].kind
    nd, transposed = int(kind[-1]), kind.startswith("convt")
    if a["input"].id not in s.mass or s.constant(a["weight"]) is None:
        no_rule(s, call, a)
        return
    mass, weight, bias = s.mass[a["input"].id], a["weight"], a.get("bias")
    setting = _conv_setting(a, nd, transposed, s.trace.values[weight.id].shape)
    batched = mass.t.ndim == nd + 2
    pad = setting.pop("pad")
    padded = mass.t if batched else mass.t[None]
    padded = F.pad(padded, pad) if any(pad) else padded
    kernel = s.square(weight)
    result = torch.ops.aten.convolution(padded, kernel.t, None, *setting.values())

    def back(grad: Scaled) -> None:
        flow = grad.t if batched else grad.t[None]
        wants = [a["input"].id in s.deep, True, False]
        into, g, _ = torch.ops.aten.convolution_backward(flow, padded, kernel.t, None, *setting.values(), wants)
        if wants[0] and any(pad):
            crop = zip(pad[-2::-2], mass.t.shape[-nd:], strict=True)
            into = into[(..., *(slice(low, low + n) for low, n in crop))]
        if wants[0]:
            s.send(a["input"].id, Scaled(into if batched else into[0], grad.log + kernel.log).normal())
        s.give(weight, Scaled(g, grad.log + mass.log))
        if bias is not None:
            s.give(bias, Scaled(flow.sum([0, *range(2, nd + 2)]), grad.log))

    result = result if batched else result[0]
    s.put(call, _with_bias(s, Scaled(result, mass.log + kernel.log), bias, [-1] + [1] * nd), back)


def _conv_setting(a: dict[str, Any], nd: int, transposed: bool, kernel: Sequence[int]) -> dict[str, Any]:
    """Arguments of aten.convolution, and explicit padding where ``padding`` is a word."""

    def each(x: Any) -> list[int]:
        return [x] * nd if isinstance(x, int) else list(x) * (nd // len(x) if len(x) != nd else 1)

    dilation = each(a.get("dilation", 1))
    padding, pad = a.get("padding", 0), [0] * (2 * nd)
    if padding == "same":
        for i, (n, d) in enumerate(zip(kernel[2:], dilation, strict=True)):
            spare = d * (n - 1)
            pad[2 * (nd - 1 - i)], pad[2 * (nd - 1 - i) + 1] = spare // 2, spare - spare // 2
    return {
        "pad": pad,
        "stride": each(a.get("stride", 1)),
        "padding": [0] * nd if isinstance(padding, str) else each(padding),
        "dilation": dilation,
        "transposed": transposed,
        "output_padding": each(a.get("output_padding", 0)),
        "groups": a.get("groups", 1),
    }


@rule("embedding")
def _embedding(s: PathSums, call: Call, a: dict[str, Any]) -> None:
    picks, table = s.constant(a["input"]), a["weight"]
    if picks is None or s.constant(table) is None:
        no_rule(s, call, a)
        return
    squared = s.square(table)

    def back(grad: Scaled) -> None:
        found = torch.zeros_like(squared.t)
        s.give(table, Scaled(found.index_add_(0, picks.reshape(-1), grad.t.reshape(-1, found.shape[1])), grad.log))

    s.put(call, Scaled(F.embedding(picks, squared.t), squared.log), back)


@rule("batch_norm", "group_norm", "layer_norm")
def _norm(s: PathSums, call: Call, a: dict[str, Any]) -> None:
    """Y = weight (x - mean) / sqrt(var + eps) + bias, with every term squared; paths also start at the mean."""
    source, weight, bias = a["input"].id, a.get("weight"), a.get("bias")
    mass = s.mass[source]
    layer = ops.TABLE[call.fn].kind == "layer_norm"
    shape = tuple(a["normalized_shape"]) if layer else (mass.t.shape[1], *[1] * (mass.t.ndim - 2))
    slope, offset = _statistics(s, a, shape)
    scale = s.square(weight) if weight is not None else Scaled(slope.new_ones(()), 0.0)
    gain = scale.t.reshape(shape if weight is not None else ()) * slope
    result = Scaled(mass.t * gain, mass.log + scale.log)
    if offset is not None:
        result = result + Scaled(gain * offset, scale.log)
    result = _with_bias(s, result, bias, shape, normal=False)

    def back(grad: Scaled) -> None:
        s.send(source, Scaled(grad.t * gain, grad.log + scale.log))
        if weight is not None:
            through = mass if offset is None else mass + Scaled(offset, 0.0)
            found = sum_to(grad.t * through.t * slope, shape).reshape(scale.t.shape)
            s.give(weight, Scaled(found, grad.log + through.log))
        if bias is not None:
            s.give(bias, Scaled(sum_to(grad.t, shape).reshape(s.trace.values[bias.id].shape), grad.log))

    s.put(call, result, back)


def _statistics(s: PathSums, a: dict[str, Any], shape: Sequence[int]) -> tuple[Tensor, Tensor | None]:
    """Squared slope 1 / (var + eps) of a normalisation before its weight, and the squared mean where there is one."""
    mean, var = a.get("running_mean"), a.get("running_var")
    fixed = (
        not a.get("training", False) and not a.get("use_input_stats", False) and mean is not None and var is not None
    )
    if s.ones or not fixed:
        return torch.ones((), dtype=s.dtype, device=s.device), None
    slope = (s.number(var).to(s.dtype) + a.get("eps", 1e-5)).reciprocal_().reshape(tuple(shape))
    offset = s.number(mean).to(s.dtype).square().reshape(tuple(shape)) if s.top(mean) > 0 else None
    return slope, offset
