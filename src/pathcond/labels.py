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
from pathcond.label_types import FROZEN, ZERO, Layer, ParamView, Reason, Use, at_least, unview
from pathcond.trace import WRITE, Call, Flow, Ref, Trace, follow_data, refs


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
    flow: Flow = Flow(frozenset(), frozenset(), frozenset())
    hidden: bool = False
    seen: set[int] = field(default_factory=set)
    trace: Trace | None = None
    values: dict[int, Tensor | ParamView] = field(default_factory=dict)
    constants: Constants | None = None

    # ---- walking a trace

    def follow(self, trace: Trace, constants: Constants) -> None:
        """Label every value of ``trace``; numbers go on from earlier traces of the same model."""
        self.trace, self.values, self.constants = trace, {}, constants
        self.flow = follow_data(trace)
        for call in trace.calls:
            self._step(call)
        for value in trace.outputs:
            self.freeze(self.label(Ref(value)), Reason("output", "", "is an output of the model"))
        for value in trace.kept:
            self.freeze(self.label(Ref(value)), Reason("op", "", "is kept in the model from one call to the next"))

    def _step(self, call: Call) -> None:
        reads = {ref.id for ref in refs([*call.args, call.kwargs])}
        inputs = [self.look_up(value) for value in reads]
        op = ops.TABLE.get(call.fn)
        self.hidden = not self.flow.hidden.isdisjoint(call.outs)
        if reads.isdisjoint(self.flow.data):
            self._without_data(call, op)
            return
        moving = any(isinstance(x, ParamView) or bool((x != FROZEN).any()) for x in inputs)
        if call.fn is WRITE:
            RULES["write"](self, call, {})
        elif op is not None and op.kind == "zeros":
            self.out(call, *(self.constant(out, ZERO) for out in call.outs))
        elif op is None or op.kind not in RULES or (op.kind != "compare" and not self.floating(call.outs[0])):
            self.unknown(call)
            if any(sum(n > 1 for n in self.shape(i)) > 1 for i in reads & self.flow.weights):
                self.lose(call, -1, ", which has no rule")
        elif moving:
            self._by_rule(call, op)
        else:
            if op.kind in ops.LAYERS:
                self._by_rule(call, op)  # counts the units it makes
            self.out(call)

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
            self.unknown(call, f"enters `{call.name}`, which is not followed where no data comes in")

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
        self.layers.append(Layer(name, self.count, size, ancestors, self.hidden))
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
        self.uses.setdefault(view.name, []).append(Use(unview(view, row), unview(view, col)))

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
            if bool((label > 0).any()):
                self._refuse(call, what)
            self.freeze(label, Reason("op", call.where, what))
        self.out(call)

    def lose(self, call: Call, channel: int, why: str) -> Tensor | None:
        """A layer that no scale can enter: its output channels, if it has such an axis, count as frozen units."""
        shape, what = self.shape(call.outs[0]), f"leaves `{call.name}`{why}"
        if len(shape) < -channel or not self.floating(call.outs[0]):
            return None
        self._refuse(call, what)
        ids = self.fresh(shape[channel], call.where, torch.tensor([FROZEN]))
        self.freeze(ids, Reason("op", call.where, what))
        return ids

    def _refuse(self, call: Call, what: str) -> None:
        """With ``strict``, raise where a scale of a hidden unit is lost; past the last layer none is."""
        if self.strict and self.hidden:
            raise UnsupportedOpError(
                f"expected operations that scales can cross (strict=True), got `{call.name}` at "
                f"'{call.where or 'the model'}': a scale {what}. Register a rule with pathcond.register_op, "
                "or drop strict to freeze the scales on both sides of it."
            )


def spread(call: Call) -> Reason:
    """Why channels tie where an operation mixes positions."""
    return Reason("tie", call.where, f"is mixed across positions by `{call.name}`")


Rule = Callable[[Labels, Call, dict[str, Any]], None]
RULES: dict[str, Rule] = {}
rule = ops.register(RULES)
