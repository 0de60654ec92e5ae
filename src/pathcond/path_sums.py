"""Path sums: a trace replayed on squared parameters and all-ones inputs, forward and backward.

The *path sum* of a value is the sum, over all paths that end in it, of the squared product of the parameters along the
path. Its gradient is the same sum over the paths that start from it. The product of both at a parameter is its entry of
``diag(G)``; see :mod:`pathcond.diag_g`. Path sums are kept as :class:`Scaled` tensors, ``t * exp(log)``, so that a
thousand layers neither overflow nor vanish.

Conventions: piecewise linear activations are dropped; a maximum counts all its inputs; an average's coefficient is
squared; a normalisation is the affine map that its statistics make it. Softmax, smooth activations, normalisations
without statistics and operations without a rule are *barriers*: paths end in front of them and new ones start behind
them, so that G falls into blocks. The rules are in :mod:`pathcond.rules`; this module holds what they use.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from pathcond.errors import PathCondError
from pathcond.tracing import Call, Constants, Ref, Trace, flatten, refs, run

_LOG2 = math.log(2.0)
_LOG_ZERO = -1.0e30  # log of a path sum of zeros: far below any other, and finite


@dataclass(frozen=True, slots=True)
class Scaled:
    """The tensor ``t * exp(log)``."""

    t: Tensor
    log: float

    def normalized(self) -> Scaled:
        """The same tensor with the largest entry of ``t`` between 1/2 and 1; exact, since a power of two is moved."""
        top = float(self.t.amax()) if self.t.numel() else 0.0
        if not top > 0:
            return Scaled(self.t, _LOG_ZERO)
        power = math.frexp(top)[1]
        t = self.t if abs(power) < 100 else self.t * 2.0 ** -(power // 2)
        left = power if abs(power) < 100 else power - power // 2
        return Scaled(t * 2.0**-left, self.log + power * _LOG2)

    def at(self, log: float) -> Tensor:
        """The entries divided by ``exp(log)``, where ``log`` is at least that of the tensor."""
        return self.t if self.log == log else self.t * math.exp(self.log - log)

    def __add__(self, other: Scaled) -> Scaled:
        high, low = (self, other) if self.log >= other.log else (other, self)
        shapes = high.t.shape, low.t.shape
        shape = shapes[0] if shapes[0] == shapes[1] else torch.broadcast_shapes(*shapes)
        if low.log - high.log < -745 and high.t.shape == shape:
            return high
        low = Scaled(fold(low.t), low.log)
        return Scaled((fold(high.t) + low.at(high.log)).expand(shape), high.log)


def fold(t: Tensor) -> Tensor:
    """Reduce to size one the axes along which a tensor is one expanded entry, such as tokens with equal path sums.

    The last axis is kept.
    """
    for axis in range(t.ndim - 1):
        if t.size(axis) > 1 and t.stride(axis) == 0:
            t = t.narrow(axis, 0, 1)
    return t


@dataclass(frozen=True)
class _Step:
    """One step of the backward pass: the values made, and what passes their gradients on to the values read."""

    outs: tuple[int, ...]
    backward: Callable[[Sequence[Scaled | None]], None]


@dataclass
class PathSums:
    """Path sums of all values of a trace; after the backward pass ``diagonal`` holds diag(G) by parameter.

    A rule is called as ``rule(p, call, a)`` with this object, the recorded call and its arguments by name. It reads
    path sums from ``sums`` and ends with one of :meth:`copy`, :meth:`linear`, :meth:`set_result` and :meth:`barrier`.

    Attributes:
        pooling: ``exact``, ``plain`` or ``all``; see :func:`pathcond.compute_diag_g`.
        smooth: whether paths cross smooth activations as if they were the identity.
        ones: every parameter counts as 1, and so does each path.
        statistics: squared slope ``1 / (var + eps)`` of normalisations measured on data, by the value they make.
        largest: largest absolute entry of parameters and buffers, by name.
        view_of: how a call shows a parameter: ``same``, in another ``layout``, times a ``factor``, with a
            ``shift``, or not at all (empty).
        sums: path sum of each value that a path leads to.
        gates: values without a path of their own, such as attention weights and masks; as a factor they count as 1.
        normalizers: reciprocals of data; a value multiplied by one is normalised, which ends its paths.
        trainable: values with a parameter before them, the only ones whose gradient is needed.
        zero: values that are zeros by construction, such as the first state of a recurrent network.
        integer: values made from inputs of integers alone; ``weights``: values made from parameters alone.
    """

    trace: Trace
    constants: Constants
    dtype: torch.dtype
    device: torch.device
    view_of: Callable[[Call], str]
    pooling: str = "exact"
    smooth: bool = False
    ones: bool = False
    statistics: Mapping[int, Tensor] = field(default_factory=dict)
    alias: Mapping[str, str] = field(default_factory=dict)
    largest: Mapping[str, float] = field(default_factory=dict)
    sums: dict[int, Scaled] = field(default_factory=dict)
    diagonal: dict[str, Scaled] = field(default_factory=dict)
    gates: set[int] = field(default_factory=set)
    normalizers: set[int] = field(default_factory=set)
    integer: set[int] = field(default_factory=set)
    weights: set[int] = field(default_factory=set)
    trainable: set[int] = field(default_factory=set)
    zero: set[int] = field(default_factory=set)
    _ends: list[tuple[int, torch.Size]] = field(default_factory=list)
    _steps: list[_Step] = field(default_factory=list)
    _gradients: dict[int, Scaled] = field(default_factory=dict)

    # ---- the whole pass

    def backward(self) -> None:
        """One backward pass from ones at every output and in front of every barrier; fills ``diagonal``."""
        outputs = [(value, self.sums[value].t.shape) for value in self.trace.outputs if value in self.sums]
        one = torch.ones((), dtype=self.dtype, device=self.device)
        for value, shape in (*outputs, *self._ends):
            self.add_gradient(value, Scaled(one.expand(shape), 0.0))
        self.sums.clear()
        while self._steps:
            step = self._steps.pop()  # its closure, and the path sums it holds, are freed with it
            gradients = [self._gradients.pop(out, None) for out in step.outs]
            if any(g is not None for g in gradients):
                step.backward(gradients)

    def total(self) -> Scaled:
        """Sum of the path sums of all outputs."""
        parts = [Scaled(m.t.sum(), m.log) for v in self.trace.outputs if (m := self.sums.get(v)) is not None]
        if not parts:
            raise PathCondError("expected a path from an input or a bias to an output, got none. Give another output.")
        found = parts[0]
        for other in parts[1:]:
            found = found + other
        return found

    # ---- results of a call

    def start(self, value: int) -> None:
        """Paths start at a value: ones, as at an input."""
        one = torch.ones((), dtype=self.dtype, device=self.device)
        self.sums[value] = Scaled(one.expand(self.trace.values[value].shape), 0.0)

    def copy(self, call: Call, source: int) -> None:
        """The first result has the path sum of ``source``."""
        self.sums[call.outs[0]] = self.sums[source]
        self._inherit(call, [source])
        self._steps.append(
            _Step(call.outs[:1], lambda grads: self.add_gradient(source, grads[0]) if grads[0] else None)
        )

    def linear(self, call: Call, sources: Sequence[int], function: Callable[[list[Tensor]], Any]) -> None:
        """Results that are a linear function of the path sums of all sources together; differentiated by autograd."""
        log = max(self.sums[s].log for s in sources)
        leaves = [self.sums[s].at(log).detach().requires_grad_() for s in sources]
        with torch.enable_grad():
            results = flatten(function(leaves))
        for out, result in zip(call.outs, results, strict=False):
            self.sums[out] = Scaled(result.detach(), log)
        self._inherit(call, sources)

        def backward(gradients: Sequence[Scaled | None]) -> None:
            known = [(r, g) for r, g in zip(results, gradients, strict=False) if g is not None and r.requires_grad]
            top = max(g.log for _, g in known)
            found = torch.autograd.grad([r for r, _ in known], leaves, [g.at(top) for _, g in known], allow_unused=True)
            for source, gradient in zip(sources, found, strict=True):
                if gradient is not None:
                    self.add_gradient(source, Scaled(gradient, top))

        self._steps.append(_Step(call.outs[: len(results)], backward))

    def _inherit(self, call: Call, sources: Sequence[int]) -> None:
        """Results made from gates alone are gates, and those made from normalizers alone are normalizers."""
        for kind in (self.gates, self.normalizers):
            if kind.issuperset(sources):
                kind.update(call.outs)

    def set_result(self, call: Call, result: Scaled, backward: Callable[[Scaled], None]) -> None:
        """Set the path sum of a call's one result, and the function that passes on its gradient."""
        self.sums[call.outs[0]] = result

        def step(gradients: Sequence[Scaled | None]) -> None:
            if gradients[0] is not None:
                backward(gradients[0])

        self._steps.append(_Step(call.outs[:1], step))

    def barrier(self, call: Call) -> None:
        """Paths end in front of a call, and new ones start behind it; its results count as 1 where they multiply."""
        for value in {ref.id for ref in refs([*call.args, call.kwargs])}:
            self.end_path(value)
        for out in call.outs:
            dtype = self.trace.values[out].dtype
            if dtype.is_floating_point or dtype.is_complex:
                self.start(out)
                self.gates.add(out)
            self.trainable.discard(out)

    def end_path(self, value: int) -> None:
        """Paths that reach a value end in it, as in an output."""
        if value in self.sums and value not in self.gates:
            self._ends.append((value, self.sums[value].t.shape))

    def add_gradient(self, value: int, gradient: Scaled) -> None:
        """Add to the gradient of a value."""
        self._gradients[value] = self._gradients[value] + gradient if value in self._gradients else gradient

    # ---- constants and parameters

    def constant(self, x: Any) -> Tensor | None:
        """The tensor of a number, or of an argument that depends on no input; None for data."""
        if isinstance(x, Ref):
            found = self.constants.get(x.id)
            return None if found is None else found.to(self.device)
        return torch.tensor(float(x), device=self.device) if isinstance(x, (int, float)) else None

    def known(self, x: Any) -> Tensor:
        """As :meth:`constant`, for arguments known not to be data."""
        found = self.constant(x)
        assert found is not None  # noqa: S101 - callers ask for constants only
        return found

    def depends_on_data(self, *arguments: Any) -> bool:
        """Whether one of some arguments, such as a bias or a gain, is computed from data."""
        return any(isinstance(x, Ref) and self.constant(x) is None for x in arguments)

    def square(self, x: Any) -> Scaled:
        """Squared entries of a constant or parameter; ones where paths are counted. Infinite entries count as zero."""
        tensor = self.known(x)
        if self.ones:
            return Scaled(torch.ones(tensor.shape, dtype=self.dtype, device=self.device), 0.0)
        top = self.largest_entry(x)
        if math.isinf(top) or math.isnan(top):  # a mask of -inf, say: parameters are checked before
            tensor = torch.where(tensor.isfinite(), tensor, 0.0)
            top = float(tensor.abs().amax())
        if not top > 0:
            return Scaled(torch.zeros(tensor.shape, dtype=self.dtype, device=self.device), _LOG_ZERO)
        return Scaled((tensor.to(self.dtype) / top).square_(), 2 * math.log(top))

    def largest_entry(self, x: Any) -> float:
        """The largest absolute entry of a constant or parameter."""
        leaf = self.trace.values[x.id].leaf if isinstance(x, Ref) else None
        if leaf is not None and leaf.name in self.largest:
            return self.largest[leaf.name]
        tensor = self.known(x)
        return float(tensor.abs().amax()) if tensor.numel() else 0.0

    def zeros(self, value: int) -> Scaled:
        """A path sum of zeros in the shape of a value."""
        shape = self.trace.values[value].shape
        return Scaled(torch.zeros(shape, dtype=self.dtype, device=self.device), _LOG_ZERO)

    def add_diagonal(self, x: Any, gradient: Scaled) -> None:
        """Add to diag(G) of the parameter that an argument is, or is a view of; constants have no entry."""
        chain: list[tuple[Call, int, int]] = []
        value = x.id
        while (leaf := self.trace.values[value].leaf) is None:
            call = self.constants.maker(value)
            if call is None or call.mutates or not self.view_of(call):
                return
            read = [r.id for r in refs([*call.args, call.kwargs])]
            if self.view_of(call) == "shift" and len(read) > 1:
                return
            source = next((r for r in read if self._shows_parameter(r)), read[0])
            chain.append((call, source, value))
            value = source
        if leaf.kind != "param":
            return
        if chain:
            shape = self.trace.values[value].shape
            start = torch.zeros(shape, dtype=self.dtype, device=self.device, requires_grad=True)
            shown: Tensor = start
            with torch.enable_grad():
                for call, source, out in reversed(chain):
                    if self.view_of(call) == "layout":  # other tensors among the arguments are indices
                        made = run(call, lambda r, s=source, now=shown: now if r == s else self.known(Ref(r)))
                        shown = flatten(made)[call.outs.index(out)]
                    elif self.view_of(call) == "factor":
                        shown = run(self._squared(call, source), lambda r, s=source, now=shown: now)
            gradient = Scaled(torch.autograd.grad(shown, start, gradient.t)[0], gradient.log)
        name = self.alias.get(leaf.name, leaf.name)
        self.diagonal[name] = self.diagonal[name] + gradient if name in self.diagonal else gradient

    def _shows_parameter(self, value: int) -> bool:
        """Whether a value is a parameter, seen through the calls that :meth:`add_diagonal` follows."""
        while (leaf := self.trace.values[value].leaf) is None:
            call = self.constants.maker(value)
            if call is None or not self.view_of(call):
                return False
            read = [r.id for r in refs([*call.args, call.kwargs])]
            value = next((r for r in read[1:] if self.constants.is_parameter(r)), read[0])
        return leaf.kind == "param"

    def _squared(self, call: Call, source: int) -> Call:
        """A product of a parameter with a constant, with the constant squared."""
        factors = [x if x == Ref(source) else self.square(x) for x in call.args[:2]]
        args = tuple(x if isinstance(x, Ref) else x.at(0.0) for x in factors)
        return replace(call, args=args, kwargs={})
