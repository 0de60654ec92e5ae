"""Path sums of a trace, with which rules for paths are written.

A trace is replayed on squared parameters and all-ones inputs, forward and backward. The *path sum* of a
value is the sum, over all paths that end in it, of the squared product of the parameters along the path. Its gradient
is the same sum over the paths that start from it. The product of both at a parameter is its entry of ``diag(G)``; see
:mod:`pathcond.diag_g`. Path sums are kept as :class:`Scaled` tensors, ``t * exp(log)``, so that a thousand layers
neither overflow nor vanish.

Conventions: piecewise linear activations are dropped; a path of a product is a pair of paths; a maximum counts all its
inputs; an average's coefficient is squared; a normalization is the affine map that its statistics make it. Softmax,
powers, smooth activations, normalizations without statistics and operations without a rule are *barriers*: paths end in
front of them and new ones start behind them, so that G falls into blocks. See :class:`PathSums`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pathcond.tracing import Call, Constants, Ref, Trace, flatten, refs

_LOG2 = math.log(2.0)
_NEAR = 16  # largest power of two of an entry that is left as it is
_LOG_ZERO = -1.0e30  # log of a path sum of zeros: far below any other, and finite


@dataclass(frozen=True, slots=True)
class Scaled:
    """The tensor ``t * exp(log)``."""

    t: Tensor
    log: float

    def normalized(self) -> Scaled:
        """The same tensor with the largest entry of ``t`` near 1; exact, since a power of two is moved."""
        top = float(self.t.amax()) if self.t.numel() else 0.0
        if not top > 0:
            return Scaled(self.t, _LOG_ZERO)
        power = math.frexp(top)[1]
        if abs(power) <= _NEAR:
            return self
        return Scaled(self.t * 2.0 ** -(power // 2) * 2.0 ** (power // 2 - power), self.log + power * _LOG2)

    def at(self, log: float) -> Tensor:
        """The entries divided by ``exp(log)``, where ``log`` is at least that of the tensor."""
        return self.t if self.log == log else self.t * math.exp(self.log - log)

    def __add__(self, other: Scaled) -> Scaled:
        log = max(self.log, other.log)
        return Scaled(self.at(log) + other.at(log), log)


# One step of the backward pass: the values made, and what passes their gradients on to the values read.
_Step = tuple[tuple[int, ...], Callable[[Sequence[Scaled | None]], None]]


@dataclass
class PathSums:
    """Path sums of all values of a trace; after the backward pass ``diagonal`` holds diag(G) by parameter.

    A rule is called as ``rule(p, call, a)`` with this object, the recorded call and its arguments by name. It ends
    with :meth:`copy`, :meth:`sum`, :meth:`product` or :meth:`barrier`. A parameter is a value like any other: its path
    sum is its square, and diag(G) the gradient with respect to it.

    Attributes:
        pooling: ``exact``, ``plain`` or ``all``; see :func:`pathcond.compute_diag_g`.
        smooth: whether paths cross smooth activations as if they were the identity.
        statistics: squared slope ``1 / (var + eps)`` of normalizations measured on data, by the value they make.
        largest: largest absolute entry of parameters and buffers, by name.
        sums: path sum of each value that a path leads to.
        gates: values without a path of their own, such as attention weights and masks; as a factor they count as 1.
        normalizers: reciprocals of data; a value multiplied by one is normalized, which ends its paths.
        trainable: values with a parameter before them, the only ones whose gradient is needed.
        zero: values that are zeros by construction, such as the first state of a recurrent network.
        integer: values made from inputs of integers alone; ``weights``: values made from parameters alone.
        shown: squares of those of the latter that are linear in their parameter.
        underflow: whether the square of an entry became zero.
    """

    trace: Trace
    constants: Constants
    dtype: torch.dtype
    device: torch.device
    pooling: str = "exact"
    smooth: bool = False
    statistics: Mapping[int, Tensor] = field(default_factory=dict)
    alias: Mapping[str, str] = field(default_factory=dict)
    largest: Mapping[str, float] = field(default_factory=dict)
    sums: dict[int, Scaled] = field(default_factory=dict)
    shown: dict[int, Scaled] = field(default_factory=dict)
    diagonal: dict[str, Scaled] = field(default_factory=dict)
    gates: set[int] = field(default_factory=set)
    normalizers: set[int] = field(default_factory=set)
    integer: set[int] = field(default_factory=set)
    weights: set[int] = field(default_factory=set)
    trainable: set[int] = field(default_factory=set)
    zero: set[int] = field(default_factory=set)
    underflow: bool = False
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
            outs, backward = self._steps.pop()  # the closure, and the path sums it holds, are freed next
            gradients = [self._gradients.pop(out, None) for out in outs]
            if any(g is not None for g in gradients):
                backward(gradients)
        for value, gradient in self._gradients.items():
            leaf = self.trace.values[value].leaf
            if leaf is not None and leaf.kind == "param":
                name = self.alias.get(leaf.name, leaf.name)
                self.diagonal[name] = self.diagonal[name] + gradient if name in self.diagonal else gradient

    # ---- results of a call

    def start(self, value: int) -> None:
        """Paths start at a value: ones, as at an input."""
        one = torch.ones((), dtype=self.dtype, device=self.device)
        self.sums[value] = Scaled(one.expand(self.trace.values[value].shape), 0.0)

    def copy(self, call: Call, source: int) -> None:
        """The first result has the path sum of ``source``."""
        self.sum(call, [Ref(source)], lambda x: x)

    def sum(self, call: Call, arguments: Sequence[Any], function: Callable[..., Any], *, gate: bool = True) -> None:
        """Results that are a linear function of all arguments together; each is a path sum, or a squared constant.

        Without ``gate`` they are no gate even if all arguments are gates.
        """
        if not any(self.on_path(x) or self.constant(x) is not None for x in arguments):
            self.barrier(call)
            return
        self._apply(call.outs, arguments, function, joint=True)
        if gate:
            self.inherit(call, arguments)

    def inherit(self, call: Call, sources: Sequence[Ref]) -> None:
        """Results made from gates alone are gates, and those made from normalizers alone are normalizers."""
        for kind in (self.gates, self.normalizers):
            if kind.issuperset(x.id for x in sources):
                kind.update(call.outs)

    def product(
        self,
        call: Call,
        arguments: Sequence[Any],
        function: Callable[..., Any],
        bias: Any = None,
        *,
        shape: Callable[[Tensor], Tensor] = lambda bias: bias,
        log: float = 0.0,
    ) -> None:
        """Results that are linear in each argument on its own, times ``exp(log)``; plus a squared bias."""
        if bias is None:
            self._apply(call.outs, arguments, function, joint=False, extra=log)
            return
        self.sum(call, [self.between(arguments, function, False, log), bias], lambda y, b: y + shape(b), gate=False)

    def between(
        self, arguments: Sequence[Any], function: Callable[..., Any], joint: bool = True, log: float = 0.0
    ) -> Ref:
        """A value that the trace does not have, such as a layer's result without its bias."""
        made = Ref(-1 - len(self._steps))
        self._apply((made.id,), arguments, function, joint, log)
        return made

    def _apply(
        self,
        outs: tuple[int, ...],
        arguments: Sequence[Any],
        function: Callable[..., Any],
        joint: bool,
        extra: float = 0.0,
    ) -> None:
        """Set path sums; the gradient of each result is passed on to the arguments by autograd."""
        terms = [
            x if isinstance(x, Scaled) else self.sums[x.id] if self.on_path(x) else self.square(x) for x in arguments
        ]
        logs = [0.0 if term.log == _LOG_ZERO else term.log for term in terms]
        log = max(term.log for term in terms) if joint else sum(logs) + extra
        needed = [x.id in self.trainable if self.on_path(x) else self.is_parameter(x) for x in arguments]
        leaves = [(m.at(log) if joint else m.t).detach().requires_grad_(n) for m, n in zip(terms, needed, strict=True)]
        with torch.enable_grad():
            results = flatten(function(*leaves))
        for out, result in zip(outs, results, strict=False):
            made = Scaled(result.detach(), log)
            made = made if joint else made.normalized()
            self.sums[out] = made if out < 0 else Scaled(made.t.expand(self.trace.values[out].shape), made.log)
            if any(needed):
                self.trainable.add(out)

        def backward(gradients: Sequence[Scaled | None]) -> None:
            known = [(r, g) for r, g in zip(results, gradients, strict=False) if g is not None and r.requires_grad]
            if not known:
                return
            top = max(g.log for _, g in known)
            seeds = [g.at(top).sum_to_size(r.shape) for r, g in known]
            wanted = [i for i, n in enumerate(needed) if n]
            found = torch.autograd.grad([r for r, _ in known], [leaves[i] for i in wanted], seeds, allow_unused=True)
            for i, gradient in zip(wanted, found, strict=True):
                if gradient is not None:
                    passed = Scaled(gradient, top) if joint else Scaled(gradient, top + log - logs[i]).normalized()
                    self.add_gradient(arguments[i].id, passed)

        self._steps.append((outs[: len(results)], backward))

    def is_parameter(self, x: Any) -> bool:
        """Whether an argument is a parameter, or a call on one that :meth:`show` follows."""
        return isinstance(x, Ref) and (x.id in self.shown or self.constants.is_parameter(x.id))

    def show(self, call: Call, source: Ref, function: Callable[..., Any] | None) -> None:
        """A call on a parameter alone: ``function`` of the squared parameter; None where it adds a constant to it."""
        if function is not None:
            self._apply(call.outs, [source], function, joint=True)
            self.shown |= {out: self.sums.pop(out) for out in call.outs}
            return
        self.shown[call.outs[0]] = self.square(Ref(call.outs[0]))
        self._steps.append((call.outs[:1], lambda g: self.add_gradient(source.id, g[0]) if g[0] else None))

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

    def on_path(self, x: Any) -> bool:
        """Whether a path leads to an argument."""
        return isinstance(x, Ref) and x.id in self.sums

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
        """Squared entries of a constant or parameter; infinite entries count as zero."""
        if isinstance(x, Ref) and x.id in self.shown:
            return self.shown[x.id]
        tensor = self.known(x)
        top = self.largest_entry(x)
        if math.isinf(top) or math.isnan(top):  # a mask of -inf, say: parameters are checked before
            tensor = torch.where(tensor.isfinite(), tensor, 0.0)
            top = float(tensor.abs().amax())
        if not top > 0:
            return Scaled(torch.zeros(tensor.shape, dtype=self.dtype, device=self.device), _LOG_ZERO)
        found = (tensor.to(self.dtype) / top).square_()
        vanished = self.dtype is torch.float32 and found.count_nonzero() < tensor.count_nonzero()
        self.underflow = self.underflow or bool(vanished)
        return Scaled(found, 2 * math.log(top))

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
