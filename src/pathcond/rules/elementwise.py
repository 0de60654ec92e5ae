"""Operations element by element: activations, sums, products, comparisons."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from pathcond.rules.base import FROZEN, ZERO, Arguments, Reason, ScalePropagation, entries, mixed_positions, with_axes
from pathcond.rules.paths import PathSums, Scaled
from pathcond.tracing import Call, Ref

# ---- positively homogeneous: a scale passes, and so does a path


def pass_scales(s: ScalePropagation, call: Call, a: Arguments) -> None:
    """The result carries the scale of the input."""
    s.set_result(call, s.groups(a["input"]))


def pass_paths(p: PathSums, call: Call, a: Arguments, source: str = "input") -> None:
    """The result has the path sum of the input, or of another argument."""
    p.copy(call, a[source].id)


def _same_scales(s: ScalePropagation, call: Call, a: Arguments) -> None:
    made = s.trace.values[call.outs[0]].dtype
    if made.is_floating_point and made.itemsize == 1:
        s.freeze_through(call, f"is rounded to {made}")
        return
    s.set_result(call, s.parameter(a["input"]) or s.groups(a["input"]))


# ---- clamps, smooth activations, bounded ones, powers: barriers


def _is_relu(a: Arguments) -> bool:
    """Whether a clamp is a ReLU: its only bound is 0, from below."""
    low = a.get("min")
    return isinstance(low, (int, float)) and low == 0 and a.get("max") is None


def _clamp_scales(s: ScalePropagation, call: Call, a: Arguments) -> None:
    otherwise = partial(_freeze_scales, why="crosses {}, which is homogeneous only as a clamp at zero from below")
    (pass_scales if _is_relu(a) else otherwise)(s, call, a)


def _clamp_paths(p: PathSums, call: Call, a: Arguments) -> None:
    (pass_paths if _is_relu(a) else barrier_paths)(p, call, a)


def _smooth_scales(s: ScalePropagation, call: Call, a: Arguments) -> None:
    if s.smooth:
        s.approximate.add(f"`{call.name}` is only close to homogeneous (smooth=True)")
        s.set_result(call, s.groups(a["input"]))
    else:
        s.freeze_through(call, f"crosses `{call.name}`, which is not homogeneous (smooth=True lets scales through)")


def _smooth_paths(p: PathSums, call: Call, a: Arguments) -> None:
    pass_paths(p, call, a) if p.smooth else p.barrier(call)


def _freeze_scales(s: ScalePropagation, call: Call, a: Arguments, why: str) -> None:
    """No scale crosses the operation; ``{}`` in the reason is its name."""
    s.freeze_through(call, why.format(f"`{call.name}`"))


def barrier_paths(p: PathSums, call: Call, a: Arguments) -> None:
    """Paths end in front of the operation and start again behind it."""
    p.barrier(call)


def _reciprocal_paths(p: PathSums, call: Call, a: Arguments) -> None:
    p.barrier(call)
    p.normalizers.update(call.outs)


# ---- zeros


def _zero_scales(s: ScalePropagation, call: Call, a: Arguments) -> None:
    s.set_result(call, *(s.uniform(out, ZERO) for out in call.outs))


def _zero_paths(p: PathSums, call: Call, a: Arguments) -> None:
    p.sum(call, [0.0], lambda zero: zero, gate=False)


# ---- sums and maxima


def add_scales(s: ScalePropagation, call: Call, a: Arguments) -> None:
    """Operands of a sum share their scales; a parameter among them enters their groups like a bias."""
    for data, other in ((a["input"], a["other"]), (a["other"], a["input"])):
        view = s.parameter(other)
        if view is not None and s.parameter(data) is None:
            shape = s.shape(other.id)
            groups = with_axes(s.groups(data), len(shape))
            wide = [i for i in range(-len(shape), 0) if shape[i] > 1]
            reason = Reason(call.where, f"shares one entry of parameter '{view.name}'")
            row = s.collapse(groups, wide, reason).clamp(min=FROZEN)
            s.connect(view, row, torch.zeros_like(row), bias=True)
            s.set_result(call, torch.where(groups == ZERO, row, groups))  # what was zero has the parameter's entry
            return
    constant = Reason(call.where, f"is added to a value without scale by `{call.name}`")
    s.set_result(call, s.tie(s.groups(a["input"]), s.groups(a["other"]), constant))


def _weight_offset(s: ScalePropagation, call: Call, a: Arguments) -> None:
    """A gain written ``1 + weight`` scales as a whole."""
    first, second = a["input"], a["other"]
    view, number = (s.parameter(first), second) if isinstance(first, Ref) else (s.parameter(second), first)
    if view is None or not view.plain or not isinstance(number, (int, float)) or "sub" in call.name or "alpha" in a:
        s.freeze_through(call, f"enters `{call.name}`, which has no rule for values without data")
    else:
        s.set_result(call, replace(view, offset=view.offset + number))


def _where_scales(s: ScalePropagation, call: Call, a: Arguments) -> None:
    s.set_result(call, s.tie(s.groups(a["input"]), s.groups(a["other"]), mixed_positions(call)))


def _masked_scales(s: ScalePropagation, call: Call, a: Arguments) -> None:
    """Entries may become zero, which fits any scale; another value fits none."""
    _where_scales(s, call, {"input": a["input"], "other": a["value"]})


def add_paths(p: PathSums, call: Call, a: Arguments, maximum: bool = False) -> None:
    """Path sums add; a maximum counts both operands, or with ``plain`` pooling the larger one."""
    terms = [x for x in (a["input"], a["other"]) if p.on_path(x) or (x != 0 and p.constant(x) is not None)]
    if not any(p.on_path(x) for x in terms):
        p.barrier(call)
    elif maximum and p.pooling == "plain" and len(terms) == 2:
        p.sum(call, terms, lambda x, y: torch.where(x >= y, x, y), gate=False)
    else:
        weights = [float(a.get("alpha", 1)) ** 2 if x is a["other"] else 1.0 for x in terms]
        p.sum(call, terms, lambda *x: sum(w * t for w, t in zip(weights, x, strict=True)), gate=False)


# ---- products


def _weight_factor(s: ScalePropagation, call: Call, a: Arguments, divide: bool = False) -> None:
    """A parameter times a constant, such as a pruning mask, scales as the parameter does."""
    both = ((a["input"], a["other"]), (a["other"], a["input"]))
    for x, other in both[:1] if divide else both:
        view, exact = s.parameter(x), a.get("rounding_mode") is None
        if view is not None and exact and s.parameter(other) is None and s.shape(x.id) == s.shape(call.outs[0]):
            s.set_result(call, replace(view, plain=False))
            return
    s.freeze_through(call, f"enters `{call.name}`, which has no rule for values without data")


def _mul_scales(s: ScalePropagation, call: Call, a: Arguments) -> None:
    """A parameter with one entry a channel scales it, like a depthwise layer; any other is a constant factor."""
    for data, other in ((a["input"], a["other"]), (a["other"], a["input"])):
        view = s.parameter(other)
        if view is not None and s.parameter(data) is None:
            shape, groups = s.shape(other.id), s.groups(data)
            if sum(n > 1 for n in shape) == 1:
                row = s.new_groups(math.prod(shape), view).reshape(shape)
                s.connect(view, row, groups)
                groups = row
            else:
                reason = Reason(call.where, f"parameter '{view.name}' is a factor in `{call.name}`")
                s.freeze_parameter(view.name, reason)
            s.set_result(call, groups)
            return
    x, y = s.groups(a["input"]), s.groups(a["other"])
    free_x, free_y = bool((x > 0).any()), bool((y > 0).any())
    if free_x and free_y:  # a gate and what it gates: one of the two scales passes
        s.freeze(x, Reason(call.where, "is multiplied by another scale"))
        s.set_result(call, y)
    else:
        s.set_result(call, x if free_x or not isinstance(a["other"], Ref) else y)


def _div_scales(s: ScalePropagation, call: Call, a: Arguments) -> None:
    divisor = s.groups(a["other"])
    if bool((divisor > 0).any()) or a.get("rounding_mode") is not None:
        s.freeze_through(call)
    else:
        s.set_result(call, s.groups(a["input"]))


def _mul_paths(p: PathSums, call: Call, a: Arguments, divide: bool = False) -> None:
    """A path of a product is a pair of paths; a gate counts as 1, and a constant by its square."""
    both = (a["input"], a["other"])
    data = [x for x in both if p.on_path(x)]
    gated = [x for x in data if x.id not in p.gates] or data[:1]
    other = next((x for x in both if not p.on_path(x)), None)
    normalized = len(data) == 2 and (divide or not p.normalizers.isdisjoint(x.id for x in data))
    if normalized or (divide and not p.on_path(both[0])):
        p.barrier(call)  # x / |x|, or x * rsqrt(mean(x**2)): a normalization written by hand
    elif (len(data) == 2 and len(gated) == 1) or (other is not None and p.constant(other) is None):
        p.sum(call, gated, lambda x: x)  # the factor is a gate, or a mask made from token ids
    elif divide:
        square = p.square(other)
        p.product(call, [*data, Scaled(1 / square.t, -square.log)], torch.mul)
    else:
        p.product(call, both, torch.mul)
        if len(data) == 1 and not (isinstance(other, Ref) and p.constants.made_from_parameters(other.id)):
            p.inherit(call, data)


OPERATIONS = [
    *entries(
        "relu leaky_relu prelu rrelu abs absolute dropout dropout1d dropout2d dropout3d feature_dropout "
        "neg negative __neg__", "pass", "input", pass_scales, pass_paths,
    ),
    *entries(
        "clone contiguous detach alias positive requires_grad_ data to type float double half bfloat16 cuda cpu",
        "same", "input", _same_scales, pass_paths, constant=True,
    ),
    *entries("clamp clip clamp_min", "clamp", "input min max", _clamp_scales, _clamp_paths),
    *entries("gelu silu hardswish mish softplus elu celu selu", "smooth", "input", _smooth_scales, _smooth_paths),
    *entries(
        "relu6 hardtanh hardsigmoid sigmoid tanh softsign tanhshrink logsigmoid softmax log_softmax "
        "square sqrt pow __pow__ __ipow__",
        "barrier", "input", partial(_freeze_scales, why="crosses {}, which is not homogeneous"), barrier_paths,
    ),
    *entries(
        "rsqrt reciprocal", "reciprocal", "input", partial(_freeze_scales, why="enters {}, as in a normalization"),
        _reciprocal_paths,
    ),
    *entries("zeros zeros_like new_zeros zero empty empty_like new_empty", "zeros", "input", _zero_scales, _zero_paths),
    *entries(
        "add __radd__ __add__ __iadd__ sub subtract __sub__ __isub__ rsub __rsub__",
        "add", "input other alpha", add_scales, add_paths, constant=_weight_offset,
    ),
    *entries("maximum minimum fmax fmin", "maximum", "input other", add_scales, partial(add_paths, maximum=True)),
    *entries("where", "where", "condition input other", _where_scales, add_paths, namespaces=[torch]),
    *entries("where", "where", "input condition other", _where_scales, add_paths, namespaces=[Tensor]),
    *entries(
        "mul multiply __mul__ __rmul__ __imul__",
        "mul", "input other", _mul_scales, _mul_paths, constant=_weight_factor,
    ),
    *entries("masked_fill", "mask", "input mask value", _masked_scales, pass_paths),
    *entries(
        "div divide true_divide __truediv__ __itruediv__ __div__",
        "div", "input other rounding_mode", _div_scales, partial(_mul_paths, divide=True),
        constant=partial(_weight_factor, divide=True),
    ),
]  # fmt: skip
