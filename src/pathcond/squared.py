"""The network of path sums: a trace replayed on squared parameters and all-ones inputs, forward and backward.

Every value ``v`` of the trace gets its mass, the sum over all paths that end in it of the squared path value, and its
gradient is the sum over all paths that start from it. Both are kept as :class:`Scaled` numbers, ``t * exp(log)``, so
that a thousand layers neither overflow nor vanish. Their product is ``diag(G)``; see :mod:`pathcond.magnitude`.

Conventions: activations are dropped; a maximum counts all its inputs; an average's coefficient is squared; BatchNorm
enters with its running statistics, other normalisations with mean 0 and variance 1. An operation without a rule acts
as the identity if it keeps a shape, and as a fresh input of ones if not; a gate counts as 1. The rules for layers, sums
and products are in :mod:`pathcond.squared_layers`, those for pools and movement in :mod:`pathcond.squared_moves`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pathcond import ops
from pathcond.constants import Constants
from pathcond.errors import PathCondError
from pathcond.trace import WRITE, Call, Ref, Trace, flatten, refs, run

_LOG2 = math.log(2.0)
NOTHING = -1.0e30  # log of the mass of zeros: far below any other, and finite


@dataclass(frozen=True, slots=True)
class Scaled:
    """The tensor ``t * exp(log)``."""

    t: Tensor
    log: float

    def normal(self) -> Scaled:
        """The same number with largest entry between 1/2 and 1 in ``t``; scaled by a power of two, so exactly."""
        top = float(self.t.amax()) if self.t.numel() else 0.0
        if not top > 0:
            return Scaled(self.t, NOTHING)
        power = math.frexp(top)[1]
        t = self.t if abs(power) < 100 else self.t * 2.0 ** -(power // 2)
        left = power if abs(power) < 100 else power - power // 2
        return Scaled(t * 2.0**-left, self.log + power * _LOG2)

    def at(self, log: float) -> Tensor:
        """``t`` in units of ``exp(log)``, which is no smaller than its own."""
        return self.t if self.log == log else self.t * math.exp(self.log - log)

    def __add__(self, other: Scaled) -> Scaled:
        high, low = (self, other) if self.log >= other.log else (other, self)
        if low.log - high.log < -745 and high.t.shape == torch.broadcast_shapes(high.t.shape, low.t.shape):
            return high
        return Scaled(high.t + low.at(high.log), high.log)


@dataclass(frozen=True)
class _Step:
    """One step of the tape: values made, values read, and the way back from gradients of the former to the latter."""

    outs: tuple[int, ...]
    back: Callable[[Sequence[Scaled | None]], None]


@dataclass
class PathSums:
    """Replays a trace on squared parameters. After :meth:`forward` and :meth:`backward`, ``grads`` holds diag(G).

    ``pooling`` is ``exact``, ``plain`` or ``all``; with ``ones`` every parameter counts as 1 and so each path as 1.
    ``tops`` holds the largest absolute entry of parameters and buffers, by name; ``deep`` the values with a parameter
    before them, the only ones whose gradient is needed; ``whole`` the values made from inputs of whole numbers alone,
    and ``weights`` those made from parameters alone.
    """

    trace: Trace
    constants: Constants
    dtype: torch.dtype
    device: torch.device
    pooling: str = "exact"
    ones: bool = False
    alias: Mapping[str, str] = field(default_factory=dict)
    tops: Mapping[str, float] = field(default_factory=dict)
    mass: dict[int, Scaled] = field(default_factory=dict)
    grads: dict[str, Scaled] = field(default_factory=dict)
    steps: list[_Step] = field(default_factory=list)
    gates: set[int] = field(default_factory=set)
    whole: set[int] = field(default_factory=set)
    weights: set[int] = field(default_factory=set)
    deep: set[int] = field(default_factory=set)
    delta: dict[int, Scaled] = field(default_factory=dict)

    # ---- the two passes

    def forward(self) -> None:
        """Compute the mass of every value that an input reaches."""
        for value in self.trace.inputs:
            if self.trace.values[value].dtype.is_floating_point:
                self.fresh(value)
            else:
                self.whole.add(value)
        for call in self.trace.calls:
            op = ops.TABLE.get(call.fn)
            kind = "write" if call.fn is WRITE else op.kind if op is not None else ""
            reads = [ref.id for ref in refs([*call.args, call.kwargs])]
            if not self._starts(call, kind, reads):
                continue
            bound = ops.bind(op, call.args, call.kwargs) if op is not None else {}
            if any(r in self.deep or self.constants.holds_parameter(r) for r in reads):
                self.deep.update(call.outs)
            RULES.get(kind, no_rule)(self, call, bound)

    def _starts(self, call: Call, kind: str, reads: list[int]) -> bool:
        """Whether a path leads through a call, or starts there: where a layer, not a mask, reads whole numbers."""
        known = any(r in self.mass for r in reads)
        whole = [r for r in reads if r in self.whole and r not in self.mass] if self.whole else []
        if kind == "embedding" or (known and not (whole and kind == "cat")):
            return True
        layer = known or any(r in self.weights or self.constants.is_parameter(r) for r in reads)
        if whole and layer:
            numbers = [r for r in whole if self.trace.values[r].dtype.is_floating_point]
            known = known or bool(numbers) or not kind
            for r in numbers:
                self.fresh(r)
        if not known:
            (self.whole if whole else self.weights if layer else set()).update(call.outs)
        return known

    def backward(self) -> None:
        """One pass back from ones at every output; fills ``grads``."""
        for value in self.trace.outputs:
            if value in self.mass:
                self.send(value, Scaled(torch.ones_like(self.mass[value].t), 0.0))
        for step in reversed(self.steps):
            grads = [self.delta.pop(out, None) for out in step.outs]
            if any(g is not None for g in grads):
                step.back(grads)
        self.steps.clear()

    def total(self) -> Scaled:
        """Sum of the masses of all outputs."""
        sums = [Scaled(m.t.sum(), m.log) for v in self.trace.outputs if (m := self.mass.get(v)) is not None]
        if not sums:
            raise PathCondError("expected a path from an input or a bias to an output, got none. Give another output.")
        found = sums[0]
        for other in sums[1:]:
            found = found + other
        return found

    # ---- what rules use

    def fresh(self, value: int) -> None:
        """Ones, as at an input."""
        shape = self.trace.values[value].shape
        self.mass[value] = Scaled(torch.ones(shape, dtype=self.dtype, device=self.device), 0.0)

    def send(self, value: int, grad: Scaled) -> None:
        """Add to the gradient of a value."""
        self.delta[value] = self.delta[value] + grad if value in self.delta else grad

    def same(self, call: Call, source: int) -> None:
        """The first result is the source itself."""
        self.mass[call.outs[0]] = self.mass[source]
        if source in self.gates:
            self.gates.add(call.outs[0])
        self.steps.append(_Step(call.outs[:1], lambda grads: self.send(source, grads[0]) if grads[0] else None))

    def linear(self, call: Call, sources: Sequence[int], function: Callable[[list[Tensor]], Any]) -> None:
        """A map that is linear in all its sources together, differentiated by autograd."""
        log = max(self.mass[s].log for s in sources)
        leaves = [self.mass[s].at(log).detach().requires_grad_() for s in sources]
        with torch.enable_grad():
            results = flatten(function(leaves))
        for out, result in zip(call.outs, results, strict=False):
            self.mass[out] = Scaled(result.detach(), log)
        if all(s in self.gates for s in sources):
            self.gates.update(call.outs)

        def back(grads: Sequence[Scaled | None]) -> None:
            known = [(r, g) for r, g in zip(results, grads, strict=False) if g is not None and r.requires_grad]
            top = max(g.log for _, g in known)
            found = torch.autograd.grad([r for r, _ in known], leaves, [g.at(top) for _, g in known], allow_unused=True)
            for source, grad in zip(sources, found, strict=True):
                if grad is not None:
                    self.send(source, Scaled(grad, top))

        self.steps.append(_Step(call.outs[: len(results)], back))

    def constant(self, x: Any) -> Tensor | None:
        """The tensor of an argument no input reaches, or of a number; None for data."""
        if isinstance(x, Ref):
            found = self.constants.get(x.id)
            return None if found is None else found.to(self.device)
        return torch.tensor(float(x), device=self.device) if isinstance(x, (int, float)) else None

    def number(self, x: Any) -> Tensor:
        """As :meth:`constant`, for arguments known to be no data."""
        found = self.constant(x)
        assert found is not None  # noqa: S101 - callers ask for constants only
        return found

    def square(self, x: Any) -> Scaled:
        """Squared entries of a constant or parameter, as ones where paths are counted."""
        tensor = self.number(x)
        if self.ones:
            return Scaled(torch.ones(tensor.shape, dtype=self.dtype, device=self.device), 0.0)
        top = self.top(x)
        if not top > 0:
            return Scaled(torch.zeros(tensor.shape, dtype=self.dtype, device=self.device), NOTHING)
        return Scaled((tensor.to(self.dtype) / top).square_(), 2 * math.log(top))

    def top(self, x: Any) -> float:
        """The largest absolute entry of a constant or parameter."""
        leaf = self.trace.values[x.id].leaf if isinstance(x, Ref) else None
        if leaf is not None and leaf.name in self.tops:
            return self.tops[leaf.name]
        tensor = self.number(x)
        return float(tensor.abs().amax()) if tensor.numel() else 0.0

    def give(self, x: Any, grad: Scaled) -> None:
        """Add to diag(G) of the parameter an argument is or shows; constants have none."""
        chain: list[Call] = []
        value = x.id
        while (leaf := self.trace.values[value].leaf) is None:
            call = self.constants.maker(value)
            kind = ops.TABLE[call.fn].kind if call is not None and call.fn in ops.TABLE else ""
            if call is None or kind not in ("same", "cast", "move", "reshape") or call.mutates:
                return
            chain.append(call)
            value = next(refs([*call.args, call.kwargs])).id
        if leaf.kind != "param":
            return
        if chain:
            start = torch.zeros(
                self.trace.values[value].shape, dtype=self.dtype, device=self.device, requires_grad=True
            )
            shown: Tensor = start
            with torch.enable_grad():
                for call, out in zip(
                    reversed(chain), [*[next(refs([*c.args])).id for c in chain[-2::-1]], x.id], strict=True
                ):
                    if ops.TABLE[call.fn].kind in ("move", "reshape"):
                        shown = flatten(run(call, lambda _, now=shown: now))[call.outs.index(out)]
            grad = Scaled(torch.autograd.grad(shown, start, grad.t)[0], grad.log)
        name = self.alias.get(leaf.name, leaf.name)
        self.grads[name] = self.grads[name] + grad if name in self.grads else grad

    def put(self, call: Call, mass: Scaled, back: Callable[[Scaled], None]) -> None:
        """Set a call's one result and its way back."""
        self.mass[call.outs[0]] = mass

        def step(grads: Sequence[Scaled | None]) -> None:
            if grads[0] is not None:
                back(grads[0])

        self.steps.append(_Step(call.outs[:1], step))


Rule = Callable[[PathSums, Call, dict[str, Any]], None]
RULES: dict[str, Rule] = {}
rule = ops.register(RULES)


def no_rule(s: PathSums, call: Call, a: dict[str, Any]) -> None:
    """Identity where an input has the result's shape, a fresh input of ones where none has."""
    for index, out in enumerate(call.outs):
        if not s.trace.values[out].dtype.is_floating_point:
            continue
        shape = s.trace.values[out].shape
        like = [r.id for r in refs([*call.args, call.kwargs]) if r.id in s.mass and s.mass[r.id].t.shape == shape]
        if index == 0 and like:
            s.same(call, like[0])
        else:
            s.fresh(out)
        s.gates.add(out)


@rule("pass", "same", "neg", "prelu", "clamp", "threshold", "smooth", "cast")
def _pass(s: PathSums, call: Call, a: dict[str, Any]) -> None:
    if a["input"].id in s.mass and s.trace.values[call.outs[0]].dtype.is_floating_point:
        s.same(call, a["input"].id)
    else:
        no_rule(s, call, a)


@rule("compare")
def _compare(s: PathSums, call: Call, a: dict[str, Any]) -> None:
    s.fresh(call.outs[0])
    s.gates.add(call.outs[0])


@rule("zeros")
def _zeros(s: PathSums, call: Call, a: dict[str, Any]) -> None:
    for out in call.outs:
        zeros = torch.zeros(s.trace.values[out].shape, dtype=s.dtype, device=s.device)
        s.mass[out] = Scaled(zeros, NOTHING)
