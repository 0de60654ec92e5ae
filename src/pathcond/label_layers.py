"""How scales cross activations, sums, products and layers with parameters."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from pathcond import ops
from pathcond.label_types import FROZEN, ZERO, ParamView, Reason, at_least, fit
from pathcond.labels import Labels, rule, spread
from pathcond.trace import Call, Ref

# ---- element by element


@rule("pass", "neg")
def _pass(s: Labels, call: Call, a: dict[str, Any]) -> None:
    s.out(call, s.label(a["input"]))


@rule("same")
def _same(s: Labels, call: Call, a: dict[str, Any]) -> None:
    s.out(call, s.param(a["input"]) or s.label(a["input"]))


@rule("prelu")
def _prelu(s: Labels, call: Call, a: dict[str, Any]) -> None:
    s.keep(a["weight"])
    s.out(call, s.label(a["input"]))


@rule("cast")
def _cast(s: Labels, call: Call, a: dict[str, Any]) -> None:
    assert s.trace is not None  # noqa: S101 - set by follow
    if s.trace.values[call.outs[0]].dtype.is_floating_point:
        _same(s, call, a)
    else:
        s.unknown(call)


@rule("clamp", "threshold")
def _clamp(s: Labels, call: Call, a: dict[str, Any]) -> None:
    low = a.get("min", a.get("threshold"))
    if isinstance(low, (int, float)) and low == 0 and a.get("max") is None and a.get("value", 0) == 0:
        s.out(call, s.label(a["input"]))
    else:
        s.unknown(call, f"crosses `{call.name}`, which is homogeneous only as a clamp at zero from below")


@rule("smooth")
def _smooth(s: Labels, call: Call, a: dict[str, Any]) -> None:
    if s.smooth:
        s.approximate.add(f"`{call.name}` is only close to homogeneous (smooth=True)")
        s.out(call, s.label(a["input"]))
    else:
        s.unknown(call, f"crosses `{call.name}`, which is not homogeneous (smooth=True lets scales through)")


@rule("compare")
def _compare(s: Labels, call: Call, a: dict[str, Any]) -> None:
    s.label(a["input"])
    if bool((s.label(a.get("other", 0)) == ZERO).all()):
        s.out(call)  # the sign of a value does not depend on a positive scale
    else:
        s.unknown(call)


# ---- sums and products


def _added(s: Labels, x: Any, y: Any, call: Call) -> Tensor:
    for data, other in ((x, y), (y, x)):
        view, label = s.param(other), s.label(data) if s.param(data) is None else None
        if view is not None and label is not None:
            shape = s.shape(other.id)
            label = at_least(label, len(shape))
            wide = [
                i - label.ndim for i in range(label.ndim) if i - label.ndim >= -len(shape) and shape[i - label.ndim] > 1
            ]
            row = s.collapse(label, wide, Reason("tie", call.where, f"shares one entry of parameter '{view.name}'"))
            row = row.clamp(min=FROZEN)
            label = torch.where(label == ZERO, row, label)  # what was zero now holds the parameter's entry
            row = row.reshape(row.shape[label.ndim - len(shape) :])
            s.use(view, row, torch.zeros_like(row))
            return label
    constant = Reason("op", call.where, f"is added to a value without scale by `{call.name}`")
    return s.tie(s.label(x), s.label(y), constant)


@rule("add", "maximum")
def _add(s: Labels, call: Call, a: dict[str, Any]) -> None:
    s.out(call, fit(_added(s, a["input"], a["other"], call), s.shape(call.outs[0])))


@rule("where")
def _where(s: Labels, call: Call, a: dict[str, Any]) -> None:
    s.freeze(s.label(a["condition"]), Reason("op", call.where, "decides a `where`"))
    s.out(call, fit(s.tie(s.label(a["input"]), s.label(a["other"]), spread(call)), s.shape(call.outs[0])))


@rule("mul")
def _mul(s: Labels, call: Call, a: dict[str, Any]) -> None:
    for data, other in ((a["input"], a["other"]), (a["other"], a["input"])):
        view = s.param(other)
        if view is not None and s.param(data) is None:
            _mul_param(s, call, data, other, view)
            return
    x, y = s.label(a["input"]), s.label(a["other"])
    free_x, free_y = bool((x > 0).any()), bool((y > 0).any())
    if free_x and free_y:
        s.unknown(call, "is multiplied by another scale")
    else:
        number = isinstance(a["other"], (int, float)) or isinstance(a["input"], (int, float))
        kept = (x if isinstance(a["input"], Ref) else y) if number else (x if free_x else y)
        s.out(call, fit(kept, s.shape(call.outs[0])))


def _mul_param(s: Labels, call: Call, data: Ref, other: Ref, view: ParamView) -> None:
    """A parameter with one entry a channel scales it, like a depthwise layer; any other is a constant factor."""
    shape, result = s.shape(other.id), s.shape(call.outs[0])
    axes = [i - len(shape) for i, n in enumerate(shape) if n > 1]
    if len(axes) != 1:
        s.keep(other)
        s.out(call, fit(s.label(data), result))
        return
    label = at_least(s.label(data), len(result))
    reason = Reason("tie", call.where, f"shares one entry of parameter '{view.name}'")
    col = s.collapse(label, axes, reason)
    row = s.fresh(shape[axes[0]], _owner(view.name), col).reshape(-1, *[1] * (-axes[0] - 1))
    s.use(view, at_least(row, len(shape)), col.reshape(col.shape[col.ndim - len(shape) :]).clamp(min=FROZEN))
    s.out(call, fit(row, result))


@rule("div")
def _div(s: Labels, call: Call, a: dict[str, Any]) -> None:
    y = s.label(a["other"])
    if bool((y > 0).any()) or a.get("rounding_mode") is not None:
        s.unknown(call)
    else:
        s.out(call, fit(s.label(a["input"]), s.shape(call.outs[0])))


# ---- layers with parameters


def _bias(s: Labels, call: Call, bias: Any, ids: Tensor) -> None:
    if bias is None:
        return
    view = s.param(bias)
    if view is None:
        s.freeze(ids, Reason("op", call.where, f"has a bias in `{call.name}` that is not a parameter"))
        s.freeze(s.label(bias), Reason("op", call.where, f"is used as the bias of `{call.name}`"))
    else:
        s.use(view, ids, torch.zeros_like(ids))


def _fixed(s: Labels, call: Call, channel: int) -> None:
    """A layer whose weights are no parameter: its inputs freeze, and its outputs count as frozen units."""
    s.unknown(call, f"enters `{call.name}` with weights that are not a parameter")
    ids = s.lose(call, channel, " with weights that are not a parameter")
    if ids is not None:
        s.out(call, fit(ids.reshape(-1, *[1] * (-channel - 1)), s.shape(call.outs[0])))


def _owner(name: str) -> str:
    return name.rpartition(".")[0] or name


def _dense(s: Labels, call: Call, x: Ref, weight: Any, bias: Any, axes: tuple[int, int], channel: int) -> None:
    """A matrix ``weight`` with output and input ``axes``, applied along axis ``channel`` of ``x``."""
    view, ndim = s.param(weight), len(s.shape(call.outs[0]))
    if view is None or len(view.axes) != 2:
        _fixed(s, call, channel)
        return
    col = s.channels(x, channel, call).clamp(min=FROZEN)
    ids = s.fresh(s.shape(weight.id)[axes[0]], _owner(view.name), col)
    row, col = (ids[:, None], col[None, :]) if axes == (0, 1) else (ids[None, :], col[:, None])
    s.use(view, row, col)
    _bias(s, call, bias, ids)
    s.out(call, fit(ids.reshape(-1, *[1] * (-channel - 1)), (1,) * ndim))


@rule("linear")
def _linear(s: Labels, call: Call, a: dict[str, Any]) -> None:
    _dense(s, call, a["input"], a["weight"], a.get("bias"), (0, 1), -1)


@rule("matmul")
def _matmul(s: Labels, call: Call, a: dict[str, Any]) -> None:
    x, y = a["input"], a["other"]
    if s.param(y) is not None and s.param(x) is None:
        _dense(s, call, x, y, None, (1, 0), -1)
    elif s.param(x) is not None and s.param(y) is None and len(s.shape(y.id)) > 1:
        _dense(s, call, y, x, None, (0, 1), -2)
    else:
        s.unknown(call)
        for fixed, channel in ((y, -1), (x, -2)):
            if fixed.id not in s.flow.data and len(s.shape(fixed.id)) > 1:
                s.lose(call, channel, " with weights that are not a parameter")


@rule("addmm")
def _addmm(s: Labels, call: Call, a: dict[str, Any]) -> None:
    if s.param(a["mat2"]) is not None and s.param(a["mat1"]) is None:
        _dense(s, call, a["mat1"], a["mat2"], a["input"], (1, 0), -1)
    else:
        s.unknown(call)


@rule("conv1", "conv2", "conv3", "convt1", "convt2", "convt3")
def _conv(s: Labels, call: Call, a: dict[str, Any]) -> None:
    kind = ops.TABLE[call.fn].kind
    nd, transposed, groups = int(kind[-1]), kind.startswith("convt"), a.get("groups", 1)
    view, shape, outputs = s.param(a["weight"]), s.shape(a["weight"].id), s.shape(call.outs[0])[-int(kind[-1]) - 1]
    col = s.channels(a["input"], -nd - 1, call).clamp(min=FROZEN)
    if view is None:
        _fixed_conv(s, call, a, col, groups == len(col) == outputs, nd)
        return
    ids = s.fresh(outputs, _owner(view.name), col)
    if transposed:
        rows = ids.reshape(groups, -1).repeat_interleave(len(col) // groups, 0) if groups > 1 else ids[None, :]
        cols = col[:, None]
    else:
        rows = ids[:, None]
        cols = col.reshape(groups, -1).repeat_interleave(outputs // groups, 0) if groups > 1 else col[None, :]
    tail = (1,) * (len(shape) - 2)
    s.use(view, rows.reshape(*rows.shape, *tail), cols.reshape(*cols.shape, *tail))
    _bias(s, call, a.get("bias"), ids)
    s.out(call, fit(ids.reshape(-1, *[1] * nd), (1,) * len(s.shape(call.outs[0]))))


def _fixed_conv(s: Labels, call: Call, a: dict[str, Any], col: Tensor, depthwise: bool, nd: int) -> None:
    """Constant weights: scales pass a depthwise convolution, and freeze before any other."""
    made = s.label(a["weight"])
    s.freeze(made, Reason("weight", call.where, f"is the weight of `{call.name}`"))
    if not depthwise or bool((made > 0).any()):
        _fixed(s, call, -nd - 1)
        return
    _bias(s, call, a.get("bias"), col)
    s.out(call, fit(col.reshape(-1, *[1] * nd), (1,) * len(s.shape(call.outs[0]))))


@rule("embedding")
def _embedding(s: Labels, call: Call, a: dict[str, Any]) -> None:
    view = s.param(a["weight"])
    if view is None or a.get("max_norm") is not None:
        s.unknown(call)
        return
    ids = s.fresh(s.shape(a["weight"].id)[1], _owner(view.name), torch.tensor([FROZEN]))
    s.use(view, ids[None, :], torch.zeros(1, 1, dtype=torch.int64))
    s.out(call, fit(ids, s.shape(call.outs[0])))


def _normalise(s: Labels, call: Call, a: dict[str, Any], shape: tuple[int, ...], tail: int) -> None:
    """The value is normalised, so its own scale must stay; scale and shift parameters start new channels."""
    label = s.label(a["input"])
    s.freeze(label, Reason("norm", call.where, f"is normalised by `{call.name}`"))
    view = s.param(a.get("weight"))
    ids = s.fresh(math.prod(shape), _owner(view.name) if view else call.where, label).reshape(shape)
    if view is None:
        s.freeze(ids, Reason("op", call.where, f"leaves `{call.name}`, which has no scale parameter"))
        s.keep(a.get("bias"))
    else:
        s.use(view, ids, torch.zeros_like(ids))
        _bias(s, call, a.get("bias"), ids)
    s.out(call, fit(ids.reshape(*shape, *[1] * tail), s.shape(call.outs[0])))


@rule("batch_norm", "group_norm")
def _batch_norm(s: Labels, call: Call, a: dict[str, Any]) -> None:
    shape = s.shape(a["input"].id)
    if ops.TABLE[call.fn].kind == "batch_norm" and s.batchnorm == "exclude":
        s.approximate.add(
            "batchnorm='exclude' keeps the function only in eval mode at initialisation; it is meant to be applied once"
        )
        s.keep(a.get("weight"))
        s.keep(a.get("bias"))
        s.out(call, s.label(a["input"]))
    else:
        _normalise(s, call, a, (shape[1],), len(shape) - 2)


@rule("layer_norm")
def _layer_norm(s: Labels, call: Call, a: dict[str, Any]) -> None:
    _normalise(s, call, a, tuple(a["normalized_shape"]), 0)
