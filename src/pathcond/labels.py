"""Which channels of which values share one scale.

Every value gets a label: an integer tensor that broadcasts to the value's shape and holds, for each element, the number
of the channel whose scale it carries. :data:`FROZEN` stands for scale one, :data:`ZERO` for elements that are zero
and so fit any scale. Layers with parameters hand out fresh numbers; an addition ties the numbers of its operands; an
operation without a rule freezes the numbers that reach it. How scales cross an operation is in :data:`RULES`, by kind.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pathcond import ops
from pathcond.constants import Constants
from pathcond.errors import UnsupportedOpError
from pathcond.record import WRITE, Call, Ref, Trace, View, flatten, refs, run

FROZEN, ZERO = 0, -1


@dataclass(frozen=True, slots=True)
class Reason:
    """Why scales are frozen: ``kind`` is ``output``, ``norm`` (these are no hidden units), ``op``, ``tie`` or ``param``."""

    kind: str
    where: str
    text: str


@dataclass(frozen=True, slots=True)
class ParamView:
    """A parameter as it is, up to the order of its axes and axes of size one.

    ``axes[i]`` is the parameter's own axis that axis ``i`` shows, None where the size is one; ``rank`` counts its axes.
    """

    name: str
    axes: tuple[int | None, ...]
    rank: int


@dataclass(frozen=True, slots=True)
class Use:
    """Numbers of the channels a parameter's elements enter (``row``) and leave (``col``), broadcast to its shape."""

    row: Tensor
    col: Tensor


@dataclass(frozen=True, slots=True)
class Layer:
    """A run of fresh numbers ``first .. first + size - 1``: the outputs of the module ``name``.

    ``ancestors`` has bit ``i`` set where layer ``i`` lies before this one.
    """

    name: str
    first: int
    size: int
    ancestors: int


@dataclass
class Labels:
    """The labels of all traces of one model, and what ties and freezes them."""

    batchnorm: str = "affine"
    smooth: bool = False
    strict: bool = False
    alias: dict[str, str] = field(default_factory=dict)
    count: int = 1
    edges: list[Tensor] = field(default_factory=list)
    frozen: list[tuple[Tensor, int]] = field(default_factory=list)
    reasons: list[Reason] = field(default_factory=list)
    uses: dict[str, list[Use]] = field(default_factory=dict)
    layers: list[Layer] = field(default_factory=list)
    held: dict[str, Reason] = field(default_factory=dict)
    approximate: set[str] = field(default_factory=set)
    trace: Trace | None = None
    values: dict[int, Tensor | ParamView] = field(default_factory=dict)
    constants: Constants | None = None

    # ---- walking a trace

    def follow(self, trace: Trace, constants: Constants) -> None:
        """Label every value of ``trace``; numbers go on from earlier traces of the same model."""
        self.trace, self.values, self.constants = trace, {}, constants
        for call in trace.calls:
            self._step(call)
        for value in trace.outputs:
            self.freeze(self.label(Ref(value)), Reason("output", "", "is an output of the model"))

    def _step(self, call: Call) -> None:
        inputs = [self.look_up(ref.id) for ref in refs([*call.args, call.kwargs])]
        op = ops.TABLE.get(call.fn)
        moving = any(isinstance(x, ParamView) or bool((x != FROZEN).any()) for x in inputs)
        if call.fn is WRITE:
            _write(self, call)
        elif op is not None and op.kind == "zeros":
            self.out(call, *(self.constant(out, ZERO) for out in call.outs))
        elif not moving:
            self.out(call)
        elif op is None or op.kind not in RULES:
            self.unknown(call)
        else:
            RULES[op.kind](self, call, ops.bind(op, call.args, call.kwargs))

    def look_up(self, value: int) -> Tensor | ParamView:
        """The label of a value, or the parameter it is."""
        if value not in self.values:
            assert self.trace is not None  # noqa: S101 - set by follow
            made = self.trace.values[value]
            if made.leaf is not None and made.leaf.kind == "param":
                axes = tuple(i if n > 1 else None for i, n in enumerate(made.shape))
                self.values[value] = ParamView(self.alias.get(made.leaf.name, made.leaf.name), axes, len(axes))
            else:
                self.values[value] = self.constant(value, FROZEN)
        return self.values[value]

    def constant(self, value: int, number: int) -> Tensor:
        return torch.full((1,) * len(self.shape(value)), number)

    def shape(self, value: int) -> tuple[int, ...]:
        assert self.trace is not None  # noqa: S101 - set by follow
        return self.trace.values[value].shape

    def out(self, call: Call, *labels: Tensor | ParamView) -> None:
        """Set the labels of a call's results; the results left over carry no scale."""
        for index, value in enumerate(call.outs):
            self.values[value] = labels[index] if index < len(labels) else self.constant(value, FROZEN)

    # ---- what rules use

    def label(self, x: Any) -> Tensor:
        """The label of an argument; a parameter read as data is held, a number stands for a constant."""
        if not isinstance(x, Ref):
            return torch.tensor(ZERO if x in (0, None, False) else FROZEN)
        found = self.look_up(x.id)
        if isinstance(found, ParamView):
            self.hold(found.name, Reason("param", "", f"parameter '{found.name}' is read outside a layer with a rule"))
            return self.constant(x.id, FROZEN)
        return found

    def param(self, x: Any) -> ParamView | None:
        """The parameter an argument is, or None."""
        found = self.look_up(x.id) if isinstance(x, Ref) else None
        return found if isinstance(found, ParamView) else None

    def fresh(self, size: int, name: str, source: Tensor) -> Tensor:
        """Numbers for the ``size`` output channels of a layer that reads channels ``source``."""
        ancestors = 0
        for index in self.layers_of(source[source > 0]):
            ancestors |= self.layers[index].ancestors | (1 << index)
        self.layers.append(Layer(name, self.count, size, ancestors))
        self.count += size
        return torch.arange(self.count - size, self.count)

    def layers_of(self, numbers: Tensor) -> list[int]:
        """Indices of the layers that handed out some numbers."""
        firsts = torch.tensor([layer.first for layer in self.layers])
        return (torch.bucketize(numbers.unique(), firsts, right=True) - 1).unique().tolist() if len(numbers) else []

    def freeze(self, label: Tensor, reason: Reason) -> None:
        numbers = label[label > 0].unique()
        if len(numbers):
            self.reasons.append(reason)
            self.frozen.append((numbers, len(self.reasons) - 1))

    def tie(self, a: Tensor, b: Tensor, reason: Reason) -> Tensor:
        """Make two labels one, element by element; returns it."""
        a, b = torch.broadcast_tensors(a, b)
        differ = (a != b) & (a != ZERO) & (b != ZERO)
        pairs = torch.stack((a[differ], b[differ])).unique(dim=1)
        fixed = (pairs == FROZEN).any(0)
        self.freeze(pairs[:, fixed], reason)
        self.edges.append(pairs[:, ~fixed])
        return torch.where(a == ZERO, b, torch.where(b == FROZEN, b, a))

    def collapse(self, label: Tensor, keep: Sequence[int], reason: Reason) -> Tensor:
        """Tie a label along every axis that is not kept, and drop its extent there."""
        kept = {axis % max(label.ndim, 1) for axis in keep}
        for axis in range(label.ndim):
            if axis not in kept and label.size(axis) > 1:
                first = label.amax(axis, keepdim=True)
                self.tie(label, first, reason)
                label = first
        return label

    def channels(self, x: Any, axis: int, call: Call) -> Tensor:
        """The label along one axis, as a vector of full length, tied along all others; shape (channels,)."""
        label = self.collapse(self.label(x), [axis], _spread(call))
        size = self.shape(x.id)[axis]
        return label.reshape(-1).expand(size) if label.numel() == 1 else label.reshape(-1)

    def use(self, view: ParamView, row: Tensor, col: Tensor) -> None:
        """Note that a parameter, seen as ``view``, maps channels ``col`` to ``row`` (broadcast to the view's shape)."""
        self.uses.setdefault(view.name, []).append(Use(_unview(view, row), _unview(view, col)))

    def hold(self, name: str, reason: Reason) -> None:
        """A parameter must keep its value: whatever its uses tie it to freezes."""
        self.held.setdefault(name, reason)

    def keep(self, x: Any) -> None:
        """A parameter that no scale touches here, such as a PReLU slope."""
        view = self.param(x)
        if view is not None:
            zero = torch.zeros((1,) * len(view.axes), dtype=torch.int64)
            self.use(view, zero, zero)

    def unknown(self, call: Call, why: str = "") -> None:
        """No rule: freeze what goes in, and what comes out carries no scale."""
        what = why or f"crosses `{call.name}`, which has no rule"
        for ref in refs([*call.args, call.kwargs]):
            label = self.label(ref)
            if self.strict and bool((label > 0).any()):
                raise UnsupportedOpError(
                    f"expected operations that scales can cross (strict=True), got `{call.name}` at "
                    f"'{call.where or 'the model'}': a scale {what}. Register a rule with pathcond.register_op, "
                    "or drop strict to freeze the scales on both sides of it."
                )
            self.freeze(label, Reason("op", call.where, what))
        self.out(call)


def _unview(view: ParamView, numbers: Tensor) -> Tensor:
    """Turn numbers laid out along a view's axes to the parameter's own axes."""
    numbers = _at_least(numbers, len(view.axes))
    order = sorted((axis, i) for i, axis in enumerate(view.axes) if axis is not None)
    shape = [1] * view.rank
    for axis, i in order:
        shape[axis] = numbers.size(i)
    return numbers.permute(*[i for _, i in order], *[i for i, a in enumerate(view.axes) if a is None]).reshape(shape)


def _spread(call: Call) -> Reason:
    return Reason("tie", call.where, f"is mixed across positions by `{call.name}`")


Rule = Callable[[Labels, Call, dict[str, Any]], None]
RULES: dict[str, Rule] = {}


def rule(*kinds: str) -> Callable[[Rule], Rule]:
    def enter(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(kinds, function))
        return function

    return enter


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
            label = _at_least(label, len(shape))
            wide = [
                i - label.ndim for i in range(label.ndim) if i - label.ndim >= -len(shape) and shape[i - label.ndim] > 1
            ]
            row = s.collapse(label, wide, Reason("tie", call.where, f"shares one entry of parameter '{view.name}'"))
            row = row.reshape(row.shape[label.ndim - len(shape) :])
            s.use(view, torch.where(row == ZERO, FROZEN, row), torch.zeros_like(row))
            return torch.where(label == ZERO, FROZEN, label)
    constant = Reason("op", call.where, f"is added to a value without scale by `{call.name}`")
    return s.tie(s.label(x), s.label(y), constant)


@rule("add", "maximum")
def _add(s: Labels, call: Call, a: dict[str, Any]) -> None:
    s.out(call, _fit(_added(s, a["input"], a["other"], call), s.shape(call.outs[0])))


@rule("where")
def _where(s: Labels, call: Call, a: dict[str, Any]) -> None:
    s.freeze(s.label(a["condition"]), Reason("op", call.where, "decides a `where`"))
    s.out(call, _fit(s.tie(s.label(a["input"]), s.label(a["other"]), _spread(call)), s.shape(call.outs[0])))


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
        s.out(call, _fit(kept, s.shape(call.outs[0])))


def _mul_param(s: Labels, call: Call, data: Ref, other: Ref, view: ParamView) -> None:
    """A parameter with one entry a channel scales it, like a depthwise layer; any other is a constant factor."""
    shape, result = s.shape(other.id), s.shape(call.outs[0])
    axes = [i - len(shape) for i, n in enumerate(shape) if n > 1]
    if len(axes) != 1:
        s.keep(other)
        s.out(call, _fit(s.label(data), result))
        return
    label = _at_least(s.label(data), len(result))
    reason = Reason("tie", call.where, f"shares one entry of parameter '{view.name}'")
    col = s.collapse(label, axes, reason)
    row = s.fresh(shape[axes[0]], _owner(view.name), col).reshape(-1, *[1] * (-axes[0] - 1))
    s.use(view, _at_least(row, len(shape)), col.reshape(col.shape[col.ndim - len(shape) :]).clamp(min=FROZEN))
    s.out(call, _fit(row, result))


@rule("div")
def _div(s: Labels, call: Call, a: dict[str, Any]) -> None:
    y = s.label(a["other"])
    if bool((y > 0).any()) or a.get("rounding_mode") is not None:
        s.unknown(call)
    else:
        s.out(call, _fit(s.label(a["input"]), s.shape(call.outs[0])))


def _at_least(label: Tensor, ndim: int) -> Tensor:
    return label.reshape(*[1] * (ndim - label.ndim), *label.shape)


def _fit(label: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A label with as many axes as ``shape``."""
    return _at_least(label, len(shape))


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


def _owner(name: str) -> str:
    return name.rpartition(".")[0] or name


def _dense(s: Labels, call: Call, x: Ref, weight: Any, bias: Any, axes: tuple[int, int], channel: int) -> None:
    """A matrix ``weight`` with output and input ``axes``, applied along axis ``channel`` of ``x``."""
    view, ndim = s.param(weight), len(s.shape(call.outs[0]))
    if view is None or len(view.axes) != 2:
        s.unknown(call, f"enters `{call.name}` with weights that are not a parameter")
        return
    col = s.channels(x, channel, call).clamp(min=FROZEN)
    ids = s.fresh(s.shape(weight.id)[axes[0]], _owner(view.name), col)
    row, col = (ids[:, None], col[None, :]) if axes == (0, 1) else (ids[None, :], col[:, None])
    s.use(view, row, col)
    _bias(s, call, bias, ids)
    s.out(call, _fit(ids.reshape(-1, *[1] * (-channel - 1)), (1,) * ndim))


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
    s.out(call, _fit(ids.reshape(-1, *[1] * nd), (1,) * len(s.shape(call.outs[0]))))


def _fixed_conv(s: Labels, call: Call, a: dict[str, Any], col: Tensor, depthwise: bool, nd: int) -> None:
    """Constant weights: scales pass a depthwise convolution, and freeze before any other."""
    weighted = bool((s.label(a["weight"]) > 0).any())
    if not depthwise or weighted:
        s.unknown(call, f"enters `{call.name}` with weights that are not a parameter")
        return
    _bias(s, call, a.get("bias"), col)
    s.out(call, _fit(col.reshape(-1, *[1] * nd), (1,) * len(s.shape(call.outs[0]))))


@rule("embedding")
def _embedding(s: Labels, call: Call, a: dict[str, Any]) -> None:
    view = s.param(a["weight"])
    if view is None or a.get("max_norm") is not None:
        s.unknown(call)
        return
    ids = s.fresh(s.shape(a["weight"].id)[1], _owner(view.name), torch.tensor([FROZEN]))
    s.use(view, ids[None, :], torch.zeros(1, 1, dtype=torch.int64))
    s.out(call, _fit(ids, s.shape(call.outs[0])))


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
    s.out(call, _fit(ids.reshape(*shape, *[1] * tail), s.shape(call.outs[0])))


@rule("batch_norm", "group_norm")
def _batch_norm(s: Labels, call: Call, a: dict[str, Any]) -> None:
    shape = s.shape(a["input"].id)
    if ops.TABLE[call.fn].kind == "batch_norm" and s.batchnorm == "exclude":
        s.approximate.add("BatchNorm is passed as if it were linear (batchnorm='exclude')")
        s.keep(a.get("weight"))
        s.keep(a.get("bias"))
        s.out(call, s.label(a["input"]))
    else:
        _normalise(s, call, a, (shape[1],), len(shape) - 2)


@rule("layer_norm")
def _layer_norm(s: Labels, call: Call, a: dict[str, Any]) -> None:
    _normalise(s, call, a, tuple(a["normalized_shape"]), 0)


# ---- pools and reductions


@rule(*(f"{name}{d}" for d in (1, 2, 3) for name in ("max_pool", "avg_pool", "adaptive_avg_pool", "adaptive_max_pool")))
def _pool(s: Labels, call: Call, a: dict[str, Any]) -> None:
    axis = len(s.shape(a["input"].id)) - int(ops.TABLE[call.fn].kind[-1]) - 1
    s.out(call, s.collapse(s.label(a["input"]), range(axis + 1), _spread(call)))


@rule("resample")
def _resample(s: Labels, call: Call, a: dict[str, Any]) -> None:
    s.out(call, s.collapse(s.label(a["input"]), (0, 1), _spread(call)))


@rule("mean", "sum", "extreme")
def _reduce(s: Labels, call: Call, a: dict[str, Any]) -> None:
    dim = a.get("dim", a.get("axis"))
    if isinstance(dim, Ref):  # torch.max(x, y)
        _add(s, call, {"input": a["input"], "other": dim})
        return
    label = s.label(a["input"])
    dims = range(label.ndim) if dim is None or dim == () else ((dim,) if isinstance(dim, int) else dim)
    gone = {d % max(label.ndim, 1) for d in dims}
    label = s.collapse(label, [d for d in range(label.ndim) if d not in gone], _spread(call))
    keeps_axes = len(s.shape(call.outs[0])) == label.ndim
    s.out(call, label if keeps_axes else label.reshape([n for d, n in enumerate(label.shape) if d not in gone]))


# ---- movement


def compress(label: Tensor) -> Tensor:
    """Drop a label's extent along axes on which it is constant."""
    for axis in range(label.ndim):
        if label.size(axis) > 1 and (label.stride(axis) == 0 or bool((label == label.narrow(axis, 0, 1)).all())):
            label = label.narrow(axis, 0, 1)
    return label


@rule("reshape")
def _reshape(s: Labels, call: Call, a: dict[str, Any]) -> None:
    view = s.param(a["input"])
    if view is not None:
        _move(s, call, a)
        return
    s.out(call, reshape(s.label(a["input"]), s.shape(a["input"].id), s.shape(call.outs[0])))


def reshape(label: Tensor, old: tuple[int, ...], new: tuple[int, ...]) -> Tensor:
    """The label of ``x.reshape(new)``, without spreading it over axes that stay as they are."""
    if 0 in old:
        return torch.full((1,) * len(new), FROZEN)
    i = j = 0
    wide: list[int] = []
    sizes: list[int] = []
    while i < len(old) or j < len(new):  # the shortest runs of old and new axes that hold the same elements
        first_i, first_j = i, j
        before, i = (old[i], i + 1) if i < len(old) else (1, i)
        after, j = (new[j], j + 1) if j < len(new) else (1, j)
        while before != after:
            if before < after:
                before, i = before * old[i], i + 1
            else:
                after, j = after * new[j], j + 1
        varies = any(n > 1 for n in label.shape[first_i:i])
        wide += old[first_i:i] if varies else [1] * (i - first_i)
        sizes += new[first_j:j] if varies else [1] * (j - first_j)
    return compress(label.expand(wide).reshape(sizes))


@rule("move")
def _move(s: Labels, call: Call, a: dict[str, Any]) -> None:
    named = [ref for ref in refs([*call.args, call.kwargs])]
    views = [s.param(ref) for ref in named]
    if len(named) == 1 and views[0] is not None:
        s.out(call, *_param_views(s, call, named[0].id, views[0]))
        return
    fills: dict[int, Tensor] = {}
    data = {ref.id for ref in refs(call.args[:1] if call.args else list(call.kwargs.values())[:1])}
    for ref in named:
        if ref.id in data:
            fills[ref.id] = s.label(ref).expand(s.shape(ref.id))
            continue
        if call.name == "expand_as":
            fills[ref.id] = torch.zeros(()).expand(s.shape(ref.id))
            continue
        constant = s.constants.get(ref.id) if s.constants is not None else None
        if constant is None:
            s.unknown(call, f"is picked by `{call.name}` with indices that depend on the input")
            return
        fills[ref.id] = constant.cpu()
    moved = flatten(_run_on_labels(call, fills))
    s.out(call, *(compress(label) for label in moved))


def _run_on_labels(call: Call, fills: dict[int, Tensor]) -> Any:
    try:
        return run(call, fills.__getitem__)
    except (NotImplementedError, RuntimeError):  # some kernels know no integers; numbers below 2**53 are exact here
        as_double = {k: v.double() for k, v in fills.items()}
        return [label.long() for label in flatten(run(call, as_double.__getitem__))]


def _param_views(s: Labels, call: Call, source: int, view: ParamView) -> list[Tensor | ParamView]:
    """A transposed or unsqueezed parameter is still that parameter; any other piece of it is a constant."""
    meta = torch.empty(s.shape(source), device="meta")
    by_stride = {(meta.stride(i), n): view.axes[i] for i, n in enumerate(meta.shape) if n > 1}
    found: list[Tensor | ParamView] = []
    for piece, value in zip(flatten(run(call, lambda _: meta)), call.outs, strict=True):
        axes = tuple(by_stride.get((piece.stride(i), n), -1) if n > 1 and piece.stride(i) else None
                     for i, n in enumerate(piece.shape))  # fmt: skip
        whole = sorted(a for a in axes if a is not None) == sorted(a for a in by_stride.values() if a is not None)
        if not whole:
            s.hold(view.name, Reason("param", call.where, f"parameter '{view.name}' is cut up by `{call.name}`"))
        found.append(ParamView(view.name, axes, view.rank) if whole else s.constant(value, FROZEN))
    return found


@rule("cat")
def _cat(s: Labels, call: Call, a: dict[str, Any]) -> None:
    parts = a["tensors"]
    axis = a.get("dim", a.get("axis", 0))
    labels = [s.label(part) for part in parts]
    spread = [max(label.size(d) if label.ndim else 1 for label in labels) for d in range(labels[0].ndim)]
    wide = []
    for part, label in zip(parts, labels, strict=True):
        sizes = list(spread)
        sizes[axis] = s.shape(part.id)[axis]
        wide.append(label.expand(sizes))
    s.out(call, compress(torch.cat(wide, axis)))


@rule("pad")
def _pad(s: Labels, call: Call, a: dict[str, Any]) -> None:
    label, pad, constant = s.label(a["input"]), list(a["pad"]), a.get("mode", "constant") == "constant"
    if constant and a.get("value") not in (None, 0):
        s.unknown(call, "is padded with a constant that is not zero")
        return
    inner = [
        amount if label.size(label.ndim - 1 - index // 2) > 1 else 0  # a constant label covers its padding too
        for index, amount in enumerate(pad)
    ]
    if constant:
        label = F.pad(label, inner, value=ZERO)
    elif any(inner):
        label = s.collapse(label, range(label.ndim - len(pad) // 2), _spread(call))
    s.out(call, label)


@rule("setitem", "copy")
def _set(s: Labels, call: Call, a: dict[str, Any]) -> None:
    value = a.get("value", a.get("src"))
    label = s.label(value)
    if ops.TABLE[call.fn].kind == "copy":
        s.out(call, _fit(label, s.shape(call.outs[0])))
        return
    index = [ref for ref in refs([a["index"]])]
    if index:
        s.unknown(call, "is written at indices that are tensors")
        return
    base = s.label(a["input"]).expand(s.shape(a["input"].id)).clone()
    base[a["index"]] = label
    s.out(call, compress(base))


def _write(s: Labels, call: Call) -> None:
    """A change made through a view reaches the tensor it shows."""
    base, piece, view = call.args
    assert isinstance(view, View)  # noqa: S101 - the recorder makes it so
    op = ops.TABLE.get(view.call.fn)
    if op is not None and op.kind in ("pass", "same", "cast"):
        s.out(call, s.label(piece))
        return
    changed = s.label(base).expand(s.shape(base.id)).clone()
    if op is not None and op.kind in ("move", "reshape") and s.param(base) is None:
        target = flatten(run(view.call, lambda _: changed))[view.index]
        if target.untyped_storage()._cdata == changed.untyped_storage()._cdata:
            target.copy_(s.label(piece).expand(target.shape))
            s.out(call, compress(changed))
            return
    s.unknown(call, f"is changed in place through `{view.call.name}`")
