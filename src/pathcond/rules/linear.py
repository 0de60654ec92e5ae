"""Linear maps of data by weights: dense layers, convolutions, embeddings. They make the units."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pathcond.checks import PathCondError
from pathcond.rules.attention import data_product_paths, data_product_scales
from pathcond.rules.base import (
    FROZEN,
    Arguments,
    Experts,
    ParamView,
    Reason,
    ScalePropagation,
    entries,
    owner,
    with_axes,
)
from pathcond.rules.paths import PathSums
from pathcond.tracing import Call, Ref, refs


def _fixed_layer(s: ScalePropagation, call: Call, channel: int) -> None:
    """A layer whose weights are no parameter: its inputs freeze, and its outputs count as frozen units."""
    s.freeze_through(call, f"enters `{call.name}` with weights that are not a parameter")
    groups = s.frozen_layer(call, channel, " with weights that are not a parameter")
    if groups is not None:
        s.set_result(call, with_axes(groups.reshape(-1, *[1] * (-channel - 1)), len(s.shape(call.outs[0]))))


# ---- dense layers


def _dense_scales(
    s: ScalePropagation, call: Call, x: Ref, weight: Any, bias: Any, transposed: bool, channel: int
) -> None:
    """A matrix ``weight``, (out, in) or transposed (in, out), applied along axis ``channel`` of ``x``."""
    view, ndim = s.parameter(weight), len(s.shape(call.outs[0]))
    if view is None or len(view.axes) != 2:
        _fixed_layer(s, call, channel)
        return
    col = s.channels(x, channel, call)
    groups = s.new_groups(s.shape(weight.id)[1 if transposed else 0], owner(view.name))
    row, col = (groups[None, :], col[:, None]) if transposed else (groups[:, None], col[None, :])
    s.connect(view, row, col)
    s.connect_bias(call, bias, groups)
    s.set_result(call, with_axes(groups.reshape(-1, *[1] * (-channel - 1)), ndim))


def _layer_paths(
    p: PathSums, call: Call, x: Any, weight: Any, function: Callable[..., Any], bias: Any = None, **more: Any
) -> None:
    """A linear map ``function`` of data by weights, plus a bias."""
    if not p.on_path(x) or p.depends_on_data(weight, bias):
        p.barrier(call)
        return
    if not p.known(weight).numel():
        raise PathCondError(
            f"expected layers with units, got `{call.name}` at '{call.where or 'the model'}' without entries."
        )
    p.product(call, [x, weight], function, bias, **more)


def _linear_scales(s: ScalePropagation, call: Call, a: Arguments) -> None:
    _dense_scales(s, call, a["input"], a["weight"], a.get("bias"), False, -1)


def _linear_paths(p: PathSums, call: Call, a: Arguments) -> None:
    _layer_paths(p, call, a["input"], a["weight"], F.linear, a.get("bias"))


def _constant_factor(s: ScalePropagation, x: Ref, y: Ref) -> bool:
    """Whether one factor is made without any parameter, such as the adjacency matrix of a graph."""
    fixed = [ref.id for ref in (x, y) if ref.id not in s.data]
    return len(fixed) == 1 and s.constants is not None and not s.constants.made_from_parameters(fixed[0])


def _matmul_scales(s: ScalePropagation, call: Call, a: Arguments) -> None:
    x, y = a["input"], a["other"]
    if s.parameter(y) is not None and s.parameter(x) is None:
        _dense_scales(s, call, x, y, None, True, -1)
    elif s.parameter(x) is not None and s.parameter(y) is None and len(s.shape(y.id)) > 1:
        _dense_scales(s, call, y, x, None, False, -2)
    elif (x.id in s.data and y.id in s.data) or _constant_factor(s, x, y):
        data_product_scales(s, call, x, y)
    else:
        s.freeze_through(call)
        for fixed, channel in ((y, -1), (x, -2)):
            if fixed.id not in s.data and len(s.shape(fixed.id)) > 1:
                s.frozen_layer(call, channel, " with weights that are not a parameter")


def _matmul_paths(p: PathSums, call: Call, a: Arguments) -> None:
    x, y = a["input"], a["other"]
    if x.id in p.sums and y.id in p.sums:
        data_product_paths(p, call, x, y)
    elif p.on_path(x):
        _layer_paths(p, call, x, y, torch.matmul)
    else:
        _layer_paths(p, call, y, x, lambda y, x: x @ y)


def _addmm_scales(s: ScalePropagation, call: Call, a: Arguments) -> None:
    if s.parameter(a["mat2"]) is not None and s.parameter(a["mat1"]) is None:
        _dense_scales(s, call, a["mat1"], a["mat2"], a["input"], True, -1)
    else:
        s.freeze_through(call)


def _addmm_paths(p: PathSums, call: Call, a: Arguments) -> None:
    alpha, beta = (float(a.get(name, 1)) ** 2 for name in ("alpha", "beta"))
    bias = a["input"] if beta else None
    if not alpha:
        p.barrier(call)
    else:
        _layer_paths(p, call, a["mat1"], a["mat2"], lambda x, w: alpha * (x @ w), bias, shape=lambda b: beta * b)


# ---- one matrix for each group of rows: mixtures of experts


def _grouped_scales(s: ScalePropagation, call: Call, a: Arguments) -> None:
    """Rows are sorted by expert. Each expert has scales of its own, up to the next product by the same experts."""
    view, offs = s.parameter(a["mat_b"]), a.get("offs")
    if view is None or len(view.axes) != 3 or len(s.shape(a["mat_a"].id)) != 2 or not isinstance(offs, Ref):
        _fixed_layer(s, call, -1)
        return
    s.freeze(s.groups(offs), Reason("op", call.where, f"divides the rows of `{call.name}`"))
    count, _, size = s.shape(a["mat_b"].id)
    col = s.channels(a["mat_a"], -1, call)
    cols = _by_expert(s, a["mat_a"].id, col, offs.id)
    if cols is None:
        for experts in s.experts:
            s.share(experts, torch.isin(experts.groups[0], col))
        cols = col[None]
    made = s.new_groups(count * size, owner(view.name)).reshape(count, size)
    s.experts.append(Experts(made, offs.id))
    s.connect(view, made[:, None, :], cols[:, :, None], by_expert=True)
    s.connect_bias(call, a.get("bias"), made[0])
    s.set_result(call, made[:1])


def _by_expert(s: ScalePropagation, value: int, groups: Tensor, offs: int) -> Tensor | None:
    """The groups of each expert that ``groups`` stand for, if rows of the value are divided by the same offsets."""
    for experts in s.experts:
        place = {group: i for i, group in enumerate(experts.groups[0].tolist())}
        if experts.offs == offs and all(group in place for group in groups.tolist()) and _in_place(s, value, offs):
            return experts.groups[:, [place[group] for group in groups.tolist()]]
    return None


def _in_place(s: ScalePropagation, value: int, offs: int) -> bool:
    """Whether the rows that carry scales stay in place from products by these offsets to a value."""
    pending, seen = [value], set[int]()
    while pending:
        current = pending.pop()
        groups = s.look_up(current)
        if current in seen or isinstance(groups, ParamView) or not bool((groups > 0).any()):
            continue
        seen.add(current)
        call = None if s.constants is None else s.constants.maker(current)
        operation = None if call is None else s.table.get(call.fn)
        if call is None or operation is None:
            return False
        if operation.kind == "grouped_mm":
            if operation.bind(call.args, call.kwargs).get("offs") != Ref(offs):
                return False
            continue
        dim = dict(enumerate(call.args)).get(2, call.kwargs.get("dim", 0))
        splits = call.name in ("chunk", "split") and dim in (1, -1)
        if not splits and operation.kind not in ("mul", "smooth", "same", "cast", "pass", "glu"):
            return False
        pending += [ref.id for ref in refs([*call.args, call.kwargs])]
    return True


def _grouped_paths(p: PathSums, call: Call, a: Arguments) -> None:
    """A row passes one of the experts: path sums average their squared weights."""
    if a.get("bias") is not None:
        p.barrier(call)
    else:
        _layer_paths(p, call, a["mat_a"], a["mat_b"], lambda x, w: x @ w.mean(0))


# ---- convolutions


def _conv_scales(s: ScalePropagation, call: Call, a: Arguments, nd: int, transposed: bool) -> None:
    groups = a.get("groups", 1)
    view, shape, outputs = s.parameter(a["weight"]), s.shape(a["weight"].id), s.shape(call.outs[0])[-nd - 1]
    col = s.channels(a["input"], -nd - 1, call)
    if view is None:
        _fixed_conv(s, call, a, col, groups == len(col) == outputs, nd)
        return
    made = s.new_groups(outputs, owner(view.name))
    if transposed:
        rows = made.reshape(groups, -1).repeat_interleave(len(col) // groups, 0) if groups > 1 else made[None, :]
        cols = col[:, None]
    else:
        rows = made[:, None]
        cols = col.reshape(groups, -1).repeat_interleave(outputs // groups, 0) if groups > 1 else col[None, :]
    tail = (1,) * (len(shape) - 2)
    s.connect(view, rows.reshape(*rows.shape, *tail), cols.reshape(*cols.shape, *tail))
    s.connect_bias(call, a.get("bias"), made)
    s.set_result(call, with_axes(made.reshape(-1, *[1] * nd), len(s.shape(call.outs[0]))))


def _fixed_conv(s: ScalePropagation, call: Call, a: Arguments, col: Tensor, depthwise: bool, nd: int) -> None:
    """Constant weights: scales pass a depthwise convolution, and freeze before any other."""
    weight = s.groups(a["weight"])
    s.freeze(weight, Reason("weight", call.where, f"is the weight of `{call.name}`"))
    if not depthwise or bool((weight > 0).any()):
        _fixed_layer(s, call, -nd - 1)
        return
    col = col.clamp(min=FROZEN)
    s.connect_bias(call, a.get("bias"), col)
    s.set_result(call, with_axes(col.reshape(-1, *[1] * nd), len(s.shape(call.outs[0]))))


def _conv_paths(p: PathSums, call: Call, a: Arguments, nd: int, transposed: bool) -> None:
    setting = {k: v for k, v in a.items() if k not in ("input", "weight", "bias")}
    function = lambda x, w: call.fn(x, w, **setting)  # noqa: E731
    _layer_paths(p, call, a["input"], a["weight"], function, a.get("bias"), shape=lambda b: b.reshape(-1, *[1] * nd))


# ---- embeddings


def _embedding_scales(s: ScalePropagation, call: Call, a: Arguments) -> None:
    view = s.parameter(a["weight"])
    if view is None or a.get("max_norm") is not None:
        s.freeze_through(call)
        return
    groups = s.new_groups(s.shape(a["weight"].id)[1], owner(view.name))
    s.connect(view, groups[None, :], torch.zeros(1, 1, dtype=torch.int64))
    s.set_result(call, with_axes(groups, len(s.shape(call.outs[0]))))


def _embedding_paths(p: PathSums, call: Call, a: Arguments) -> None:
    indices, weight = p.constant(a["input"]), a["weight"]
    if indices is None or p.constant(weight) is None:
        p.barrier(call)
    else:
        p.sum(call, [weight], lambda w: F.embedding(indices, w))


def _bag_scales(s: ScalePropagation, call: Call, a: Arguments) -> None:
    if isinstance(a.get("per_sample_weights"), Ref):
        s.freeze(s.groups(a["per_sample_weights"]), Reason("op", call.where, f"weighs the sum of `{call.name}`"))
    _embedding_scales(s, call, a)


def _bag_paths(p: PathSums, call: Call, a: Arguments) -> None:
    """A sum over the entries of each bag; a maximum counts all of them, a mean's coefficient is squared."""
    indices, weight, offsets = p.constant(a["input"]), a["weight"], a.get("offsets")
    offsets = None if offsets is None else p.constant(offsets)
    if indices is None or p.constant(weight) is None or (offsets is None and indices.ndim == 1):
        p.barrier(call)
        return
    setting = {"mode": "sum", "include_last_offset": a.get("include_last_offset", False)}

    def bags(w: Tensor) -> Tensor:
        found = F.embedding_bag(indices, w, offsets, **setting)
        if a.get("mode", "mean") != "mean":
            return found
        return found / F.embedding_bag(indices, torch.ones_like(w), offsets, **setting).clamp(min=1).square()

    p.sum(call, [weight], bags)


OPERATIONS = [
    *entries("linear", "linear", "input weight bias", _linear_scales, _linear_paths, layer=True),
    *entries("matmul mm __matmul__", "matmul", "input other", _matmul_scales, _matmul_paths, layer=True),
    *entries("addmm", "addmm", "input mat1 mat2 beta alpha", _addmm_scales, _addmm_paths, layer=True),
    *(
        entry
        for nd in (1, 2, 3)
        for name, kind, transposed, arguments in (
            (f"conv{nd}d", f"conv{nd}", False, "input weight bias stride padding dilation groups"),
            (
                f"conv_transpose{nd}d", f"convt{nd}", True,
                "input weight bias stride padding output_padding groups dilation",
            ),
        )
        for entry in entries(
            name, kind, arguments, partial(_conv_scales, nd=nd, transposed=transposed),
            partial(_conv_paths, nd=nd, transposed=transposed), layer=True,
        )
    ),
    *entries(
        "embedding", "embedding", "input weight padding_idx max_norm", _embedding_scales, _embedding_paths,
        namespaces=[F], constant=True,
    ),
    *entries(
        "embedding", "embedding", "weight input", _embedding_scales, _embedding_paths, namespaces=[torch], constant=True
    ),
    *entries(
        "embedding_bag", "embedding",
        "input weight offsets max_norm norm_type scale_grad_by_freq mode sparse per_sample_weights include_last_offset",
        _bag_scales, _bag_paths, namespaces=[F], constant=True,
    ),
    *entries(
        "grouped_mm _grouped_mm", "grouped_mm", "mat_a mat_b offs bias", _grouped_scales, _grouped_paths, layer=True
    ),
]  # fmt: skip
