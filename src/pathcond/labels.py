"""Which channels of which values share one scale.

Every value gets a label: an integer tensor that broadcasts to the value's shape and holds, for each element, the number
of the channel whose scale it carries. :data:`FROZEN` stands for scale one, :data:`ZERO` for elements that are zero
and so fit any scale. Layers with parameters hand out fresh numbers; an addition ties the numbers of its operands; an
operation without a rule freezes the numbers that reach it. How scales cross an operation is in :data:`RULES`, by kind;
the rules are in :mod:`pathcond.label_layers` and :mod:`pathcond.label_moves`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pathcond import ops
from pathcond.constants import Constants
from pathcond.errors import PathCondError, UnsupportedOpError
from pathcond.trace import WRITE, Call, Ref, Trace, refs

FROZEN, ZERO = 0, -1


@dataclass(frozen=True, slots=True)
class Reason:
    """Why scales are frozen.

    ``kind`` is ``op``, ``tie``, ``param``, or, where no hidden unit is lost by it, ``output``, ``norm``, ``weight``.
    """

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

    ``ancestors`` has bit ``i`` set where layer ``i`` lies before this one, if lineage is kept.
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
    lineage: bool = False
    alias: dict[str, str] = field(default_factory=dict)
    count: int = 1
    edges: list[Tensor] = field(default_factory=list)
    frozen: list[tuple[Tensor, int]] = field(default_factory=list)
    reasons: list[Reason] = field(default_factory=list)
    uses: dict[str, list[Use]] = field(default_factory=dict)
    layers: list[Layer] = field(default_factory=list)
    held: dict[str, Reason] = field(default_factory=dict)
    approximate: set[str] = field(default_factory=set)
    reached: set[int] = field(default_factory=set)
    seen: set[int] = field(default_factory=set)
    trace: Trace | None = None
    values: dict[int, Tensor | ParamView] = field(default_factory=dict)
    constants: Constants | None = None

    # ---- walking a trace

    def follow(self, trace: Trace, constants: Constants) -> None:
        """Label every value of ``trace``; numbers go on from earlier traces of the same model."""
        self.trace, self.values, self.constants = trace, {}, constants
        self.reached = set(trace.inputs)
        for call in trace.calls:
            self._step(call)
        for value in trace.outputs:
            self.freeze(self.label(Ref(value)), Reason("output", "", "is an output of the model"))
        for value in trace.kept:
            self.freeze(self.label(Ref(value)), Reason("op", "", "is kept in the model from one call to the next"))

    def _step(self, call: Call) -> None:
        inputs = [self.look_up(ref.id) for ref in refs([*call.args, call.kwargs])]
        op = ops.TABLE.get(call.fn)
        if not any(ref.id in self.reached for ref in refs([*call.args, call.kwargs])):
            self._without_data(call, op)
            return
        self.reached.update(call.outs)
        moving = any(isinstance(x, ParamView) or bool((x != FROZEN).any()) for x in inputs)
        if call.fn is WRITE:
            RULES["write"](self, call, {})
        elif op is not None and op.kind == "zeros":
            self.out(call, *(self.constant(out, ZERO) for out in call.outs))
        elif not moving:
            self.out(call)
        elif op is None or op.kind not in RULES or (op.kind != "compare" and not self.floating(call.outs[0])):
            self.unknown(call)
        else:
            self._by_rule(call, op)

    def _by_rule(self, call: Call, op: ops.Op) -> None:
        """Run the rule; whatever it did not look at must not carry a scale."""
        self.seen = set()
        RULES[op.kind](self, call, ops.bind(op, call.args, call.kwargs))
        if op.kind in ("reshape", "cast") or call.name == "expand_as":  # further arguments give shapes and dtypes only
            return
        for ref in refs([*call.args, call.kwargs]):
            if ref.id not in self.seen:
                self.freeze(self.label(ref), Reason("op", call.where, f"enters `{call.name}` in a way without a rule"))

    def floating(self, value: int) -> bool:
        """Whether a value of the trace at hand is of a floating-point type."""
        assert self.trace is not None  # noqa: S101 - set by follow
        return self.trace.values[value].dtype.is_floating_point

    def _without_data(self, call: Call, op: ops.Op | None) -> None:
        """Only parameters and constants go in: a parameter turned round stays one, all else is a constant."""
        if op is not None and op.kind == "zeros":
            self.out(call, *(self.constant(out, ZERO) for out in call.outs))
        elif op is not None and op.kind in ("same", "cast", "move", "reshape", "cat", "pad", "embedding"):
            RULES[op.kind](self, call, ops.bind(op, call.args, call.kwargs))
        else:
            for ref in refs([*call.args, call.kwargs]):
                self.label(ref)  # holds a parameter
            self.out(call)

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
        """A label with one number for all elements of a value."""
        return torch.full((1,) * len(self.shape(value)), number)

    def shape(self, value: int) -> tuple[int, ...]:
        """The shape of a value of the trace at hand."""
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
        self.seen.add(x.id)
        found = self.look_up(x.id)
        if isinstance(found, ParamView):
            self.hold(found.name, Reason("param", "", f"parameter '{found.name}' is read outside a layer with a rule"))
            return self.constant(x.id, FROZEN)
        return found

    def param(self, x: Any) -> ParamView | None:
        """The parameter an argument is, or None."""
        found = self.look_up(x.id) if isinstance(x, Ref) else None
        if not isinstance(found, ParamView):
            return None
        self.seen.add(x.id)
        return found

    def fresh(self, size: int, name: str, source: Tensor) -> Tensor:
        """Numbers for the ``size`` output channels of a layer that reads channels ``source``."""
        ancestors = 0
        for index in self.layers_of(source[source > 0]) if self.lineage else []:
            ancestors |= self.layers[index].ancestors | (1 << index)
        self.layers.append(Layer(name, self.count, size, ancestors))
        self.count += size
        return torch.arange(self.count - size, self.count)

    def layers_of(self, numbers: Tensor) -> list[int]:
        """Indices of the layers that handed out some numbers."""
        firsts = torch.tensor([layer.first for layer in self.layers])
        return (torch.bucketize(numbers.unique(), firsts, right=True) - 1).unique().tolist() if len(numbers) else []

    def freeze(self, label: Tensor, reason: Reason) -> None:
        """Fix the scale of every channel in a label at one."""
        numbers = label[label > 0].unique()
        if len(numbers):
            self.reasons.append(reason)
            self.frozen.append((numbers, len(self.reasons) - 1))

    def tie(self, a: Tensor, b: Tensor, reason: Reason) -> Tensor:
        """Make two labels one, element by element; returns it."""
        a, b = torch.broadcast_tensors(a, b)
        differ = (a != b) & (a != ZERO) & (b != ZERO)
        pairs = torch.stack((a[differ], b[differ]))
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
        label = self.collapse(self.label(x), [axis], spread(call))
        size = self.shape(x.id)[axis]
        return label.reshape(-1).expand(size) if label.numel() == 1 else label.reshape(-1)

    def use(self, view: ParamView, row: Tensor, col: Tensor) -> None:
        """Note that a parameter, seen as ``view``, maps channels ``col`` to ``row`` (broadcast to the view's shape)."""
        if not (row.numel() and col.numel()):
            raise PathCondError(f"expected layers with units, got '{view.name}' without entries. Drop its layer.")
        row, col = (self._project(view, numbers) for numbers in (row, col))
        self.uses.setdefault(view.name, []).append(Use(_unview(view, row), _unview(view, col)))

    def _project(self, view: ParamView, numbers: Tensor) -> Tensor:
        """Tie numbers along axes on which the parameter is broadcast."""
        numbers = at_least(numbers, len(view.axes))
        extra = numbers.ndim - len(view.axes)
        own = [extra + i for i, axis in enumerate(view.axes) if axis is not None]
        reason = Reason("tie", "", f"shares one entry of parameter '{view.name}'")
        return self.collapse(numbers, own, reason).reshape(
            [numbers.size(i) if i in own else 1 for i in range(extra, numbers.ndim)]
        )

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
    numbers = at_least(numbers, len(view.axes))
    order = sorted((axis, i) for i, axis in enumerate(view.axes) if axis is not None)
    shape = [1] * view.rank
    for axis, i in order:
        shape[axis] = numbers.size(i)
    return numbers.permute([*(i for _, i in order), *(i for i, a in enumerate(view.axes) if a is None)]).reshape(shape)


def at_least(label: Tensor, ndim: int) -> Tensor:
    """A label with at least ``ndim`` axes, new ones in front."""
    return label.reshape((*[1] * (ndim - label.ndim), *label.shape))


def fit(label: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A label with as many axes as ``shape``."""
    return at_least(label, len(shape))


def spread(call: Call) -> Reason:
    """Why channels tie where an operation mixes positions."""
    return Reason("tie", call.where, f"is mixed across positions by `{call.name}`")


Rule = Callable[[Labels, Call, dict[str, Any]], None]
RULES: dict[str, Rule] = {}
rule = ops.register(RULES)
