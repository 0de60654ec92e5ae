"""Products of data with weights, which make the units, and of data with data, as in attention.

Every product of two factors is written with letters, as in ``torch.einsum``.
"""

from __future__ import annotations

import math
import string
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pathcond.rules.base import FROZEN, Arguments, Reason, ScalePropagation, distinct, entries, lay_out, mixed_positions
from pathcond.rules.paths import PathSums
from pathcond.tracing import Call, Ref, Trace, refs

Letters = tuple[str, str, str]  # of the axes of two factors and of their product


def _factors(trace: Trace, call: Call, a: Arguments) -> tuple[Letters, Ref, Ref] | None:
    """The letters and the factors of a product; None for einsums of other than two, or with a letter twice in one."""
    if "equation" in a:
        factors, equation = refs(call.args[1:]), str(a["equation"]).replace(" ", "")
        if len(factors) != 2 or equation.count(",") != 1 or "->" not in equation:
            return None
    else:
        factors = [a["input"], next(a[name] for name in ("other", "mat2", "weight") if name in a)]
        i, k = (letter if len(trace.values[x.id].shape) > 1 else "" for x, letter in zip(factors, "IK", strict=True))
        equation = f"...{i}J,{k}J->...{i}{k}" if "weight" in a else f"...{i}J,...J{k}->...{i}{k}"
    terms, _, result = equation.partition("->")
    parts = [part.split("...") for part in terms.split(",")]
    many = [len(trace.values[x.id].shape) - len("".join(part)) for x, part in zip(factors, parts, strict=True)]
    free = "".join(letter for letter in string.ascii_letters if letter not in equation)[: max(many)]
    own, other = (free[len(free) - n :].join(part) for part, n in zip(parts, many, strict=True))
    if len(set(own)) != len(own) or len(set(other)) != len(other):
        return None
    return (own, other, result.replace("...", free)), factors[0], factors[1]


# ---- how scales cross products


def _product_scales(s: ScalePropagation, call: Call, a: Arguments) -> None:
    """A parameter makes units; two factors of data may have inverse scales; constants let those of the other pass."""
    found = _factors(s.trace, call, a)
    if found is None:
        s.freeze_through(call)
        return
    letters, x, y = found
    own, other, result = letters
    views = s.parameter(x), s.parameter(y)
    if "weight" in a or (views[1] is not None and views[0] is None):
        _layer_scales(s, call, letters, x, y, a.get("bias"))
    elif views[0] is not None and views[1] is None:
        _layer_scales(s, call, (other, own, result), y, x)
    else:
        for factor, mine, rest in ((x, own, other), (y, other, own)):
            made = [letter for letter in mine if letter in result and letter not in rest]
            if factor.id not in s.data and made and s.constants.made_from_parameters(factor.id):
                _fixed_layer(s, call, *(result.index(letter) - len(result) for letter in made))
                return
        _data_scales(s, call, letters, x, y)


def _layer_scales(s: ScalePropagation, call: Call, letters: Letters, x: Ref, weight: Ref, bias: Any = None) -> None:
    """A parameter sums over the letters that only the result lacks, and makes channels along those it gives to it."""
    own, other, result = letters
    view, made = s.parameter(weight), "".join(letter for letter in other if letter in result)
    if view is None:
        _fixed_layer(s, call, -1)
        return
    if not made or all(letter in own for letter in made):
        s.freeze_through(call)
        return
    col = s.collapse_to(s.groups(x), own, other, mixed_positions(call))
    sizes = dict(zip(other, s.shape(weight.id), strict=True))
    new = s.new_groups(math.prod(sizes[letter] for letter in made), view)
    row = new.reshape([sizes[letter] for letter in made])
    s.connect(view, lay_out(row, made, other), col)
    s.connect_bias(call, bias, new)
    s.set_result(call, lay_out(row, made, result))


def _fixed_layer(s: ScalePropagation, call: Call, *channels: int) -> None:
    """A layer whose weights are no parameter: its inputs freeze, and its outputs count as frozen channels."""
    s.freeze_through(call, f"enters `{call.name}` with weights that are not a parameter")
    s.frozen_layer(call, " with weights that are not a parameter", *channels)


def _data_scales(s: ScalePropagation, call: Call, letters: Letters, x: Ref, y: Ref) -> None:
    """A product of data with data.

    Where one factor carries no scale, those of the other pass, tied along the sum. Where both do, as with queries and
    keys, each channel that is summed over has inverse scales in the two, and the product has none.
    """
    own, other, result = letters
    first, second, mixed = s.groups(x), s.groups(y), mixed_positions(call)
    if not bool((second > 0).any()):
        s.set_result(call, s.collapse_to(first, own, result, mixed))
    elif not bool((first > 0).any()):
        s.set_result(call, s.collapse_to(second, other, result, mixed))
    else:
        both = [letter for letter in own if letter in other]
        left, right = s.collapse_to(first, own, both, mixed), s.collapse_to(second, other, both, mixed)
        s.tie_inverse(left, right, Reason(call.where, f"is multiplied by a value without scale in `{call.name}`"))
        s.set_result(call)


# ---- how path sums cross products


def _product_paths(p: PathSums, call: Call, a: Arguments) -> None:
    """A gate, such as attention weights, takes averages of the other factor."""
    found = _factors(p.trace, call, a)
    if found is None:
        p.barrier(call)
        return
    letters, x, y = found
    function = partial(torch.einsum, a["equation"]) if "equation" in a else torch.matmul
    on_path = [p.on_path(ref) for ref in (x, y)]
    gates = [ref.id in p.gates for ref in (x, y)]
    if all(on_path) and sum(gates) == 1:
        (value, own), weights = ((y, letters[1]), letters[0]) if gates[0] else ((x, letters[0]), letters[1])
        size = p.trace.values[call.outs[0]].shape
        gone = [i for i, letter in enumerate(own) if letter not in letters[2]]
        count = math.prod(p.sums[value.id].t.size(i) for i in gone if own[i] in weights)
        p.sum(call, [value], lambda v: lay_out(v.sum(gone, True) if gone else v, own, letters[2]).expand(size) / count)
    elif on_path[0]:
        _weighted_paths(p, call, x, y, function)
    else:
        _weighted_paths(p, call, y, x, lambda y, x: function(x, y))


def _weighted_paths(
    p: PathSums, call: Call, x: Any, weight: Any, function: Callable[..., Any], bias: Any = None, **more: Any
) -> None:
    """A linear map ``function`` of data by weights, plus a bias."""
    if not p.on_path(x) or p.depends_on_data(weight, bias):
        p.barrier(call)
        return
    p.product(call, [x, weight], function, bias, **more)


def _linear_paths(p: PathSums, call: Call, a: Arguments) -> None:
    def once(x: Tensor, weight: Tensor) -> Tensor:
        """Tokens that are one expanded entry are multiplied once: all of them have the same path sums."""
        for axis in range(x.ndim - 1):
            x = x.narrow(axis, 0, 1) if x.size(axis) > 1 and x.stride(axis) == 0 else x
        return F.linear(x, weight)

    _weighted_paths(p, call, a["input"], a["weight"], once, a.get("bias"))


# ---- attention by one call


def _attention_scales(s: ScalePropagation, call: Call, a: Arguments) -> None:
    """Values keep one scale for each channel of a head; queries and keys may have inverse ones, as they only meet."""
    shape = s.shape(call.outs[0])
    if isinstance(a.get("attn_mask"), Ref):
        s.freeze(s.groups(a["attn_mask"]), Reason(call.where, f"is the mask of `{call.name}`"))

    def by_head(x: Ref) -> Tensor:
        """Groups of each channel of each query head, tied over positions."""
        groups = s.groups(x)
        axes = [axis for axis in range(groups.ndim) if axis != groups.ndim - 2]
        groups = s.collapse(groups, axes, mixed_positions(call))
        if groups.ndim > 2 and groups.size(-3) not in (1, shape[-3]):  # heads share a head of keys and values
            groups = groups.repeat_interleave(shape[-3] // groups.size(-3), -3)
        return groups

    no_scale = Reason(call.where, f"is multiplied by a value without scale in `{call.name}`")
    s.tie_inverse(by_head(a["query"]), by_head(a["key"]), no_scale)
    s.set_result(call, by_head(a["value"]))


def _attention_paths(p: PathSums, call: Call, a: Arguments) -> None:
    """An average of values, which makes path sums independent of the number of tokens; others end at the weights."""
    value = a["value"]
    shape, own = p.trace.values[call.outs[0]].shape, p.trace.values[value.id].shape
    for other in {a["query"].id, a["key"].id} - {value.id}:
        p.end_path(other)
    heads = shape[-3] // own[-3] if len(shape) > 2 else 1  # query heads that share one head of values
    p.sum(call, [value], lambda v: (v.repeat_interleave(heads, -3) if heads > 1 else v).mean(-2, keepdim=True))


# ---- one matrix for each group of rows: mixtures of experts


def _grouped_scales(s: ScalePropagation, call: Call, a: Arguments) -> None:
    """Rows are sorted by expert. Each expert has scales of its own, up to the next product by the same experts."""
    view, offs = s.parameter(a["mat_b"]), a.get("offs")
    if view is None or len(view.axes) != 3 or len(s.shape(a["mat_a"].id)) != 2 or not isinstance(offs, Ref):
        _fixed_layer(s, call, -1)
        return
    count, _, size = s.shape(a["mat_b"].id)
    col = s.channels(a["mat_a"], -1, call)
    made = s.new_groups(size, view, experts=count)
    if not any(bool(torch.isin(col, known).all()) for known in s.experts.get(offs.id, [])):
        s.add_new(s.shared, distinct(col))
    s.connect(view, made[None, None, :], col[None, :, None], experts=True)
    s.experts.setdefault(offs.id, []).append(made)
    s.set_result(call, made[None])


def _grouped_paths(p: PathSums, call: Call, a: Arguments) -> None:
    """A row passes one of the experts: path sums average their squared weights."""
    _weighted_paths(p, call, a["mat_a"], a["mat_b"], lambda x, w: x @ w.mean(0))


# ---- convolutions


def _conv_scales(s: ScalePropagation, call: Call, a: Arguments, nd: int, transposed: bool) -> None:
    groups, view, outputs = a.get("groups", 1), s.parameter(a["weight"]), s.shape(call.outs[0])[-nd - 1]
    col = s.channels(a["input"], -nd - 1, call)
    if view is None:  # constant weights: scales pass a depthwise convolution, and freeze before any other
        weight = s.groups(a["weight"])
        s.freeze(weight, Reason(call.where, f"is the weight of `{call.name}`", lost=False))
        if not groups == len(col) == outputs or bool((weight > 0).any()):
            _fixed_layer(s, call, -nd - 1)
            return
        made = col.clamp(min=FROZEN)
    else:
        made = s.new_groups(outputs, view)
        first, second = (col, made) if transposed else (made, col)  # along the first two axes of the weight
        by_group = second.reshape(groups, -1)
        by_group = by_group.repeat_interleave(len(first) // groups, 0) if groups > 1 else by_group
        maps = [x.reshape(*x.shape, *[1] * nd) for x in (first[:, None], by_group)]
        row, col = reversed(maps) if transposed else maps
        s.connect(view, row, col)
    s.connect_bias(call, a.get("bias"), made)
    s.set_result(call, made.reshape(-1, *[1] * nd))


def _conv_paths(p: PathSums, call: Call, a: Arguments, nd: int) -> None:
    function = partial(call.fn, **{k: v for k, v in a.items() if k not in ("input", "weight", "bias")})
    _weighted_paths(p, call, a["input"], a["weight"], function, a.get("bias"), shape=lambda b: b.reshape(-1, *[1] * nd))


# ---- embeddings


def _embedding_scales(s: ScalePropagation, call: Call, a: Arguments) -> None:
    view = s.parameter(a["weight"])
    if view is None or a.get("max_norm") is not None:
        s.freeze_through(call)
        return
    groups = s.new_groups(s.shape(a["weight"].id)[1], view)
    s.connect(view, groups[None, :], torch.zeros_like(groups[None, :1]))
    s.set_result(call, groups)


def _embedding_paths(p: PathSums, call: Call, a: Arguments) -> None:
    indices, weight = p.constant(a["input"]), a["weight"]
    if indices is None or p.constant(weight) is None:
        p.barrier(call)
    else:
        p.sum(call, [weight], lambda w: F.embedding(indices, w))


OPERATIONS = [
    *entries("linear", "linear", "input weight bias", _product_scales, _linear_paths, layer=True),
    *entries("matmul mm __matmul__ bmm", "matmul", "input other", _product_scales, _product_paths, layer=True),
    *entries(
        "scaled_dot_product_attention", "attention", "query key value attn_mask dropout_p is_causal scale enable_gqa",
        _attention_scales, _attention_paths, namespaces=[F],
    ),
    *entries("einsum", "einsum", "equation", _product_scales, _product_paths, namespaces=[torch], layer=True),
    *(
        entry
        for nd in (1, 2, 3)
        for name, kind, more in (
            ("conv", "conv", "dilation groups"), ("conv_transpose", "convt", "output_padding groups dilation"),
        )
        for entry in entries(
            f"{name}{nd}d", f"{kind}{nd}", f"input weight bias stride padding {more}",
            partial(_conv_scales, nd=nd, transposed=kind == "convt"), partial(_conv_paths, nd=nd), layer=True,
        )
    ),
    *entries(
        "embedding", "embedding", "input weight padding_idx max_norm", _embedding_scales, _embedding_paths,
        namespaces=[F], constant=True,
    ),
    *entries("grouped_mm _grouped_mm", "grouped_mm", "mat_a mat_b offs", _grouped_scales, _grouped_paths, layer=True),
]  # fmt: skip
