"""Attention: products of data with data.

Attention weights are a stochastic matrix: each output position is an average over positions of the values. The values'
scales pass, one per channel of a head, to the output projection. Queries and keys only meet in their product, where a
channel of the one may have the inverse scale of the other. Path sums cross the average as such, which makes them
independent of the number of tokens, and end in front of queries and keys.
"""

from __future__ import annotations

import math
import string
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from pathcond.rules.base import FROZEN, Arguments, Reason, ScalePropagation, entries, mixed_positions, owner, with_axes
from pathcond.rules.elementwise import barrier_paths
from pathcond.rules.paths import PathSums
from pathcond.tracing import Call, Ref, refs


def data_product_scales(s: ScalePropagation, call: Call, x: Ref, y: Ref) -> None:
    """A product of data with data.

    Where one factor carries no scale, those of the other pass, tied along the sum. Where both do, as with queries and
    keys, each channel that is summed over has inverse scales in the two, and the product has none.
    """
    maps = [s.groups(x), s.groups(y)]
    free = [bool((groups > 0).any()) for groups in maps]
    ndim = len(s.shape(call.outs[0]))
    if min(groups.ndim for groups in maps) < 2:
        s.freeze_through(call)
    elif all(free):
        axes = [axis for axis in range(maps[0].ndim) if axis != maps[0].ndim - 2]
        summed = s.collapse(maps[0], axes, mixed_positions(call))
        other = s.collapse(maps[1], range(maps[1].ndim - 1), mixed_positions(call)).transpose(-1, -2)
        s.tie_inverse(
            summed, other, Reason("op", call.where, f"is multiplied by a value without scale in `{call.name}`")
        )
        s.set_result(call)
    elif free[1]:
        kept = [axis for axis in range(maps[1].ndim) if axis != maps[1].ndim - 2]
        s.set_result(call, with_axes(s.collapse(maps[1], kept, mixed_positions(call)), ndim))
    else:
        kept = range(maps[0].ndim - 1)
        s.set_result(call, with_axes(s.collapse(maps[0], kept, mixed_positions(call)), ndim))


def data_product_paths(p: PathSums, call: Call, x: Ref, y: Ref, alpha: float = 1.0) -> None:
    """``alpha`` times a product of data with data.

    Where one factor is a gate, such as attention weights, paths follow the other.
    """
    shape = p.trace.values[call.outs[0]].shape
    gates = [value in p.gates for value in (x.id, y.id)]
    many = len(p.trace.values[x.id].shape) > 1 and len(p.trace.values[y.id].shape) > 1
    if gates == [True, False] and many:
        p.sum(call, [y], lambda v: (v.mean(-2, keepdim=True) * alpha**2).expand(shape))
    elif gates == [False, True] and many:
        p.sum(call, [x], lambda v: (v.mean(-1, keepdim=True) * alpha**2).expand(shape))
    else:
        p.barrier(call)


def _softmax_scales(s: ScalePropagation, call: Call, a: Arguments) -> None:
    s.freeze_through(call, f"crosses `{call.name}`, which is not homogeneous")


def _attention_scales(s: ScalePropagation, call: Call, a: Arguments) -> None:
    shape = s.shape(call.outs[0])
    if isinstance(a.get("attn_mask"), Ref):
        s.freeze(s.groups(a["attn_mask"]), Reason("op", call.where, f"is the mask of `{call.name}`"))

    def by_head(x: Ref) -> Tensor:
        """Groups of each channel of each query head, tied over positions."""
        groups = s.groups(x)
        axes = [axis for axis in range(groups.ndim) if axis != groups.ndim - 2]
        groups = s.collapse(groups, axes, mixed_positions(call))
        if groups.ndim > 2 and groups.size(-3) not in (
            1,
            shape[-3],
        ):  # query heads that share a head of keys and values
            groups = groups.repeat_interleave(shape[-3] // groups.size(-3), -3)
        return groups

    no_scale = Reason("op", call.where, f"is multiplied by a value without scale in `{call.name}`")
    s.tie_inverse(by_head(a["query"]), by_head(a["key"]), no_scale)
    s.set_result(call, with_axes(by_head(a["value"]), len(shape)))


def _attention_paths(p: PathSums, call: Call, a: Arguments) -> None:
    query, key, value = (a[name] for name in ("query", "key", "value"))
    if value.id not in p.sums:
        p.barrier(call)
        return
    shape, own = p.trace.values[call.outs[0]].shape, p.trace.values[value.id].shape
    for other in (query, key):
        if other.id != value.id:
            p.end_path(other.id)
    heads = shape[-3] // own[-3] if len(shape) > 2 else 1  # query heads that share one head of values
    p.sum(
        call,
        [value],
        lambda v: (v.repeat_interleave(heads, -3) if heads > 1 else v).mean(-2, keepdim=True).expand(shape),
    )


def _batched_scales(s: ScalePropagation, call: Call, a: Arguments) -> None:
    x, y = a["input"], a["mat2"]
    views = s.parameter(x), s.parameter(y)
    if views[0] is None and views[1] is None:
        data_product_scales(s, call, x, y)
    elif views[0] is None:
        _einsum_layer(s, call, "bij", "bjk", "bik", x, y)
    elif views[1] is None:
        _einsum_layer(s, call, "bjk", "bij", "bik", y, x)
    else:
        s.freeze_through(call)


def _batched_paths(p: PathSums, call: Call, a: Arguments) -> None:
    x, y = a["input"], a["mat2"]
    if x.id in p.sums and y.id in p.sums:
        data_product_paths(p, call, x, y)
    elif p.depends_on_data(x if y.id in p.sums else y):
        p.barrier(call)
    else:
        p.product(call, [x, y], torch.bmm)


def _added_batched_scales(s: ScalePropagation, call: Call, a: Arguments) -> None:
    data_product_scales(s, call, a["batch1"], a["batch2"])
    if a.get("beta", 1) != 0:
        s.set_result(call, _tie_result(s, call, s.groups(a["input"])))


def _tie_result(s: ScalePropagation, call: Call, other: Tensor) -> Tensor:
    """The result of a call, tied to what is added to it."""
    reason = Reason("op", call.where, f"is added to a value without scale by `{call.name}`")
    return s.tie(s.groups(Ref(call.outs[0])), other, reason)


def _added_batched_paths(p: PathSums, call: Call, a: Arguments) -> None:
    added = a["input"].id in p.sums and a.get("beta", 1) != 0
    if a["batch1"].id in p.sums and a["batch2"].id in p.sums and not added:
        data_product_paths(p, call, a["batch1"], a["batch2"], float(a.get("alpha", 1)))
    else:
        p.barrier(call)


# ---- einsum of two factors


@dataclass(frozen=True, slots=True)
class _Einsum:
    """Letters of the axes of two factors and of the result."""

    x: str
    y: str
    result: str


def _parse_einsum(call: Call, shapes: Mapping[int, tuple[int, ...]]) -> tuple[_Einsum, Ref, Ref] | None:
    """Letters and factors of an einsum of two; None for others, and where a letter comes twice in a factor."""
    if not call.args or not isinstance(call.args[0], str):
        return None
    factors = list(refs(call.args[1:]))
    equation = call.args[0].replace(" ", "")
    if len(factors) != 2 or equation.count(",") != 1 or "->" not in equation:
        return None
    (x, y), result = equation.partition("->")[0].split(","), equation.partition("->")[2]
    many = [len(shapes[ref.id]) - len(part.replace("...", "")) for ref, part in zip(factors, (x, y), strict=True)]
    free = [letter for letter in string.ascii_letters if letter not in equation][: max(many)]
    parts = [
        part.replace("...", "".join(free[len(free) - n :] if n else [])) for part, n in zip((x, y), many, strict=True)
    ]
    letters = _Einsum(parts[0], parts[1], result.replace("...", "".join(free)))
    if any(len(set(part)) != len(part) for part in parts):
        return None
    return letters, factors[0], factors[1]


def _along(groups: Tensor, letters: str, wanted: str) -> Tensor:
    """A group map over the axes ``letters``, laid out over ``wanted``; axes that are not wanted have size one."""
    present = [letter for letter in wanted if letter in letters]
    rest = [i for i, letter in enumerate(letters) if letter not in wanted]
    order = [*(letters.index(letter) for letter in present), *rest]
    sizes = [groups.size(letters.index(letter)) if letter in letters else 1 for letter in wanted]
    return groups.permute(order).reshape(sizes)


def _einsum_scales(s: ScalePropagation, call: Call, a: Arguments) -> None:
    parsed = _parse_einsum(call, {ref.id: s.shape(ref.id) for ref in refs([*call.args])})
    if parsed is None:
        s.freeze_through(call)
        return
    letters, x, y = parsed
    views = [s.parameter(ref) for ref in (x, y)]
    if views[0] is not None and views[1] is None:
        _einsum_layer(s, call, letters.y, letters.x, letters.result, y, x)
    elif views[1] is not None and views[0] is None:
        _einsum_layer(s, call, letters.x, letters.y, letters.result, x, y)
    elif views[0] is None:
        _einsum_product(s, call, letters, x, y)
        for factor, own, other in ((x, letters.x, letters.y), (y, letters.y, letters.x)):
            if factor.id not in s.data and any(c in letters.result and c not in other for c in own):
                s.frozen_layer(call, -1, " with weights that are not a parameter")
    else:
        s.freeze_through(call)


def _einsum_layer(s: ScalePropagation, call: Call, own: str, weight: str, result: str, x: Ref, parameter: Ref) -> None:
    """A parameter sums over the letters that only the result lacks, and makes channels along those it gives to it."""
    view = s.parameter(parameter)
    made = [letter for letter in weight if letter in result]
    if view is None or not made or all(letter in own for letter in made):
        s.freeze_through(call)
        return
    groups = with_axes(s.groups(x), len(own))
    shared = [i for i, letter in enumerate(own) if letter in weight]
    col = _along(s.collapse(groups, shared, mixed_positions(call)), own, weight).clamp(min=FROZEN)
    sizes = dict(zip(weight, s.shape(parameter.id), strict=True))
    new = s.new_groups(math.prod(sizes[letter] for letter in made), owner(view.name))
    row = new.reshape([sizes[letter] for letter in made])
    s.connect(view, _along(row, "".join(made), weight), col)
    s.set_result(call, _along(row, "".join(made), result))


def _einsum_product(s: ScalePropagation, call: Call, letters: _Einsum, x: Ref, y: Ref) -> None:
    maps = [with_axes(s.groups(ref), len(own)) for ref, own in ((x, letters.x), (y, letters.y))]
    free = [bool((groups > 0).any()) for groups in maps]
    both = "".join(letter for letter in letters.x if letter in letters.y)
    if all(free):
        left, right = (
            _along(s.collapse(groups, [i for i, c in enumerate(own) if c in both], mixed_positions(call)), own, both)
            for groups, own in zip(maps, (letters.x, letters.y), strict=True)
        )
        s.tie_inverse(left, right, Reason("op", call.where, f"is multiplied by a value without scale in `{call.name}`"))
        s.set_result(call)
        return
    groups, own = (maps[1], letters.y) if free[1] else (maps[0], letters.x)
    kept = [i for i, letter in enumerate(own) if letter in letters.result]
    s.set_result(call, _along(s.collapse(groups, kept, mixed_positions(call)), own, letters.result))


def _einsum_paths(p: PathSums, call: Call, a: Arguments) -> None:
    parsed = _parse_einsum(call, {ref.id: p.trace.values[ref.id].shape for ref in refs([*call.args])})
    if parsed is None:
        p.barrier(call)
        return
    letters, x, y = parsed
    equation = f"{letters.x},{letters.y}->{letters.result}"
    on_path = [ref.id in p.sums and ref.id not in p.gates for ref in (x, y)]
    if [x.id in p.sums, y.id in p.sums] == [True, True]:
        if all(on_path) or not any(on_path):
            p.barrier(call)
            return
        gate, value = (y, x) if on_path[0] else (x, y)
        own = letters.y if on_path[0] else letters.x
        shape = p.trace.values[gate.id].shape
        summed = math.prod(n for n, letter in zip(shape, own, strict=True) if letter not in letters.result)
        average = torch.full(shape, 1 / summed, dtype=p.dtype, device=p.device)
        p.sum(call, [value], lambda v: torch.einsum(equation, *((v, average) if on_path[0] else (average, v))))
    elif (x.id in p.sums or y.id in p.sums) and p.constant(y if x.id in p.sums else x) is not None:
        p.product(call, [x, y], lambda x, y: torch.einsum(equation, x, y))
    else:
        p.barrier(call)


OPERATIONS = [
    *entries("softmax log_softmax", "softmax", "input dim", _softmax_scales, barrier_paths),
    *entries(
        "scaled_dot_product_attention", "attention", "query key value attn_mask dropout_p is_causal scale enable_gqa",
        _attention_scales, _attention_paths, namespaces=[F],
    ),
    *entries("einsum", "einsum", "equation", _einsum_scales, _einsum_paths, namespaces=[torch], layer=True),
    *entries("bmm", "bmm", "input mat2", _batched_scales, _batched_paths, layer=True),
    *entries(
        "baddbmm", "baddbmm", "input batch1 batch2 beta alpha", _added_batched_scales, _added_batched_paths
    ),
]  # fmt: skip
