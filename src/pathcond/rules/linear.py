"""Linear maps of data by weights: dense layers, convolutions, embeddings. They make the units."""

from __future__ import annotations

import math
from collections.abc import Sequence
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
    PathSums,
    Reason,
    Scaled,
    ScalePropagation,
    entries,
    fold,
    owner,
    with_axes,
)
from pathcond.tracing import Call, Ref, refs

_CHUNK = 1 << 22  # entries of a weight matrix squared at a time


def _fixed_layer(s: ScalePropagation, call: Call, channel: int) -> None:
    """A layer whose weights are no parameter: its inputs freeze, and its outputs count as frozen units."""
    s.freeze_through(call, f"enters `{call.name}` with weights that are not a parameter")
    groups = s.frozen_layer(call, channel, " with weights that are not a parameter")
    if groups is not None:
        s.set_result(call, with_axes(groups.reshape(-1, *[1] * (-channel - 1)), len(s.shape(call.outs[0]))))


def with_bias(
    p: PathSums, sums: Scaled, bias: Any, shape: Sequence[int], normalize: bool = True, log_factor: float = 0.0
) -> Scaled:
    """Path sums of a layer's result plus those of the paths that start at its bias, times ``exp(log_factor)``."""
    sums = sums.normalized() if normalize else sums
    if bias is None or (not p.ones and p.largest_entry(bias) == 0.0):
        return sums
    squared = p.square(bias)
    return sums + Scaled(squared.t.reshape(tuple(shape)), squared.log + log_factor)


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
    groups = s.new_groups(s.shape(weight.id)[1 if transposed else 0], owner(view.name), col)
    row, col = (groups[None, :], col[:, None]) if transposed else (groups[:, None], col[None, :])
    s.connect(view, row, col)
    s.connect_bias(call, bias, groups)
    s.set_result(call, with_axes(groups.reshape(-1, *[1] * (-channel - 1)), ndim))


def _dense_paths(
    p: PathSums,
    call: Call,
    x: Ref,
    weight: Ref,
    bias: Any,
    transposed: bool,
    axis: int,
    alpha: float = 1.0,
    beta: float = 1.0,
) -> None:
    """``alpha`` times a product plus ``beta`` times a bias; squares the weight a few rows at a time."""
    tensor = p.constant(weight)
    known = x.id in p.sums and p.sums[x.id].t.ndim >= -axis
    if tensor is None or tensor.ndim != 2 or not known or p.depends_on_data(bias) or not alpha:
        p.barrier(call)
        return
    matrix = tensor.T if transposed else tensor
    if not matrix.numel():
        raise PathCondError(
            f"expected layers with units, got `{call.name}` at '{call.where or 'the model'}' without entries."
        )
    before = p.sums[x.id]
    top = 1.0 if p.ones else p.largest_entry(weight) or 1.0
    rows = max(1, _CHUNK // max(1, matrix.shape[1]))
    pieces = [slice(i, i + rows) for i in range(0, matrix.shape[0], rows)]
    log_alpha, log_beta = (0.0 if p.ones or not factor else 2 * math.log(abs(factor)) for factor in (alpha, beta))
    log = 2 * math.log(top) + log_alpha
    kept: dict[int, Tensor] = {}  # for the backward pass, if there is only one piece

    def squares(piece: slice) -> Tensor:
        if piece.start in kept:
            return kept[piece.start]
        part = matrix[piece]
        found = torch.ones_like(part, dtype=p.dtype) if p.ones else (part.to(p.dtype) / top).square_()
        if len(pieces) == 1 and x.id in p.trainable:
            kept[piece.start] = found
        return found

    flat = fold(before.t.movedim(axis, -1))
    result = torch.cat([flat @ squares(piece).T for piece in pieces], -1).movedim(-1, axis)
    shape = p.trace.values[call.outs[0]].shape
    size = [n if i != axis % before.t.ndim else matrix.shape[0] for i, n in enumerate(before.t.shape)]
    bias_size = () if bias is None else p.trace.values[bias.id].shape

    def backward(gradient: Scaled) -> None:
        rows_in = fold(gradient.t.sum_to_size(size).movedim(axis, -1))
        if bias is not None:
            p.add_diagonal(bias, Scaled(gradient.t.sum_to_size(bias_size), gradient.log + log_beta))
        if x.id in p.trainable:
            found = sum(
                (rows_in[..., piece] @ squares(piece) for piece in pieces[1:]),
                rows_in[..., pieces[0]] @ squares(pieces[0]),
            )
            found = Scaled(found.movedim(-1, axis), gradient.log + log).normalized()
            p.add_gradient(x.id, Scaled(found.t.expand(before.t.shape), found.log))
        outer = _outer(rows_in, flat, before.t.movedim(axis, -1).shape)
        p.add_diagonal(weight, Scaled(outer.T if transposed else outer, gradient.log + before.log + log_alpha))

    made = with_bias(p, Scaled(result, before.log + log), bias, bias_size, log_factor=log_beta)
    p.set_result(call, Scaled(made.t.expand(shape), made.log), backward)


def _outer(rows: Tensor, cols: Tensor, shape: Sequence[int]) -> Tensor:
    """Sum over all positions of rows times columns; both may be folded, the positions are those of ``shape``."""
    repeats = 1
    for axis, n in enumerate(shape[:-1]):
        if n > 1 and rows.size(axis) == cols.size(axis) == 1:
            repeats *= n
        elif cols.size(axis) == 1:
            rows = rows.sum(axis, keepdim=True)
        elif rows.size(axis) == 1:
            cols = cols.sum(axis, keepdim=True)
    found = rows.reshape(-1, rows.shape[-1]).T @ cols.reshape(-1, cols.shape[-1])
    return found if repeats == 1 else found * repeats


def _linear_scales(s: ScalePropagation, call: Call, a: Arguments) -> None:
    _dense_scales(s, call, a["input"], a["weight"], a.get("bias"), False, -1)


def _linear_paths(p: PathSums, call: Call, a: Arguments) -> None:
    _dense_paths(p, call, a["input"], a["weight"], a.get("bias"), False, -1)


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
    elif x.id in p.sums:
        _dense_paths(p, call, x, y, None, True, -1)
    else:
        _dense_paths(p, call, y, x, None, False, -2)


def _addmm_scales(s: ScalePropagation, call: Call, a: Arguments) -> None:
    if s.parameter(a["mat2"]) is not None and s.parameter(a["mat1"]) is None:
        _dense_scales(s, call, a["mat1"], a["mat2"], a["input"], True, -1)
    else:
        s.freeze_through(call)


def _addmm_paths(p: PathSums, call: Call, a: Arguments) -> None:
    beta = float(a.get("beta", 1))
    bias = a["input"] if beta else None
    _dense_paths(p, call, a["mat1"], a["mat2"], bias, True, -1, float(a.get("alpha", 1)), beta)


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
    made = s.new_groups(count * size, owner(view.name), col).reshape(count, size)
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
    x, weight = a["mat_a"], a["mat_b"]
    if x.id not in p.sums or p.constant(weight) is None or a.get("bias") is not None:
        p.barrier(call)
        return
    squared, before = p.square(weight), p.sums[x.id]
    experts, mean = squared.t.shape[0], squared.t.mean(0)

    def backward(gradient: Scaled) -> None:
        p.add_gradient(x.id, Scaled(gradient.t @ mean.T, gradient.log + squared.log).normalized())
        found = (before.t.T @ gradient.t / experts).expand(squared.t.shape)
        p.add_diagonal(weight, Scaled(found, gradient.log + before.log))

    p.set_result(call, Scaled(before.t @ mean, before.log + squared.log).normalized(), backward)


# ---- convolutions


def _conv_scales(s: ScalePropagation, call: Call, a: Arguments, nd: int, transposed: bool) -> None:
    groups = a.get("groups", 1)
    view, shape, outputs = s.parameter(a["weight"]), s.shape(a["weight"].id), s.shape(call.outs[0])[-nd - 1]
    col = s.channels(a["input"], -nd - 1, call)
    if view is None:
        _fixed_conv(s, call, a, col, groups == len(col) == outputs, nd)
        return
    made = s.new_groups(outputs, owner(view.name), col)
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
    if a["input"].id not in p.sums or p.depends_on_data(a["weight"], a.get("bias")):
        p.barrier(call)
        return
    source, before, weight, bias = a["input"].id, p.sums[a["input"].id], a["weight"], a.get("bias")
    setting = _conv_setting(a, nd, transposed, p.trace.values[weight.id].shape)
    batched = before.t.ndim == nd + 2
    pad = setting.pop("pad")
    padded = before.t if batched else before.t[None]
    padded = F.pad(padded, pad) if any(pad) else padded
    kernel = p.square(weight)
    result = torch.ops.aten.convolution(padded, kernel.t, None, *setting.values())

    def backward(gradient: Scaled) -> None:
        incoming = gradient.t if batched else gradient.t[None]
        needs = [source in p.trainable, True, False]
        into, g, _ = torch.ops.aten.convolution_backward(incoming, padded, kernel.t, None, *setting.values(), needs)
        if needs[0] and any(pad):
            crop = zip(pad[-2::-2], before.t.shape[-nd:], strict=True)
            into = into[(..., *(slice(low, low + n) for low, n in crop))]
        if needs[0]:
            p.add_gradient(source, Scaled(into if batched else into[0], gradient.log + kernel.log).normalized())
        p.add_diagonal(weight, Scaled(g, gradient.log + before.log))
        if bias is not None:
            p.add_diagonal(bias, Scaled(incoming.sum([0, *range(2, nd + 2)]), gradient.log))

    result = result if batched else result[0]
    p.set_result(call, with_bias(p, Scaled(result, before.log + kernel.log), bias, [-1] + [1] * nd), backward)


def _conv_setting(a: Arguments, nd: int, transposed: bool, kernel: Sequence[int]) -> dict[str, Any]:
    """Arguments of aten.convolution, and explicit padding where ``padding`` is a word."""

    def each(x: Any) -> list[int]:
        return [x] * nd if isinstance(x, int) else list(x) * (nd // len(x) if len(x) != nd else 1)

    dilation = each(a.get("dilation", 1))
    padding, pad = a.get("padding", 0), [0] * (2 * nd)
    if padding == "same":
        for i, (n, d) in enumerate(zip(kernel[2:], dilation, strict=True)):
            total = d * (n - 1)
            pad[2 * (nd - 1 - i)], pad[2 * (nd - 1 - i) + 1] = total // 2, total - total // 2
    return {
        "pad": pad,
        "stride": each(a.get("stride", 1)),
        "padding": [0] * nd if isinstance(padding, str) else each(padding),
        "dilation": dilation,
        "transposed": transposed,
        "output_padding": each(a.get("output_padding", 0)),
        "groups": a.get("groups", 1),
    }


# ---- embeddings


def _embedding_scales(s: ScalePropagation, call: Call, a: Arguments) -> None:
    view = s.parameter(a["weight"])
    if view is None or a.get("max_norm") is not None:
        s.freeze_through(call)
        return
    groups = s.new_groups(s.shape(a["weight"].id)[1], owner(view.name), torch.tensor([FROZEN]))
    s.connect(view, groups[None, :], torch.zeros(1, 1, dtype=torch.int64))
    s.set_result(call, with_axes(groups, len(s.shape(call.outs[0]))))


def _embedding_paths(p: PathSums, call: Call, a: Arguments) -> None:
    indices, weight = p.constant(a["input"]), a["weight"]
    if indices is None or p.constant(weight) is None:
        p.barrier(call)
        return
    squared = p.square(weight)
    shape = squared.t.shape

    def backward(gradient: Scaled) -> None:
        found = gradient.t.new_zeros(shape)
        found.index_add_(0, indices.reshape(-1), gradient.t.reshape(-1, shape[1]))
        p.add_diagonal(weight, Scaled(found, gradient.log))

    p.set_result(call, Scaled(F.embedding(indices, squared.t), squared.log), backward)


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
    squared = p.square(weight)
    leaf = squared.t.detach().requires_grad_()
    setting = {"mode": "sum", "include_last_offset": a.get("include_last_offset", False)}
    with torch.enable_grad():
        result = F.embedding_bag(indices, leaf, offsets, **setting)
        if a.get("mode", "mean") == "mean":
            sizes = F.embedding_bag(indices, torch.ones_like(squared.t), offsets, **setting)
            result = result / sizes.clamp(min=1).square()

    def backward(gradient: Scaled) -> None:
        p.add_diagonal(weight, Scaled(torch.autograd.grad(result, leaf, gradient.t)[0], gradient.log))

    p.set_result(call, Scaled(result.detach(), squared.log), backward)


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
