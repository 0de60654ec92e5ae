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
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pathcond.tracing import Call, Constants, Ref, Trace, flatten, refs

_LOG2 = math.log(2.0)
_NEAR = 16  # largest power of two of an entry that is left as it is
_LEAST = -80.0  # logarithm of a factor near the smallest numbers of float32


@dataclass(frozen=True, slots=True)
class Scaled:
    """The tensor ``t * exp(log)``; zeros that are constant have a ``log`` of minus infinity."""

    t: Tensor
    log: float

    def normalized(self) -> Scaled:
        """The same tensor with the largest entry of ``t`` near 1; exact, since a power of two is moved."""
        power = math.frexp(float(self.t.detach().amax()))[1] if self.t.numel() else 0
        if abs(power) <= _NEAR:
            return self
        return Scaled(self.t * 2.0 ** -(power // 2) * 2.0 ** (power // 2 - power), self.log + power * _LOG2)

    def at(self, log: float) -> Tensor:
        """The entries divided by ``exp(log)``, where ``log`` is at least that of the tensor."""
        return self.t if self.log == log else self.t * math.exp(min(self.log - log, 700.0))

    def __add__(self, other: Scaled) -> Scaled:
        log = max(self.log, other.log)
        return Scaled(self.at(log) + other.at(log), log)


@dataclass
class PathSums:
    """Path sums of all values of a trace; after the backward pass ``diagonal`` holds diag(G) by parameter.

    A rule is called as ``rule(p, call, a)`` with this object, the recorded call and its arguments by name. It ends
    with :meth:`copy`, :meth:`sum`, :meth:`product` or :meth:`barrier`. A parameter is a value like any other: its path
    sum is its square, and diag(G) the gradient with respect to it, by autograd.

    Attributes:
        pooling: ``exact``, ``plain`` or ``all``; see :func:`pathcond.compute_diag_g`.
        smooth: whether paths cross smooth activations as if they were the identity.
        statistics: squared slope ``1 / (var + eps)`` of normalizations measured on data, by the value they make.
        largest: largest absolute entry of parameters and buffers, by name.
        sums: path sum of each value that a path leads to.
        weights: squares of parameters, and of values made from one that are linear in it.
        gates: values without a path of their own, such as attention weights and masks; as a factor they count as 1.
        normalizers: reciprocals of data; a value multiplied by one is normalized, which ends its paths.
        underflow: whether an entry other than zero became zero, or nearly so.
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
    weights: dict[int, Scaled] = field(default_factory=dict)
    diagonal: dict[str, Scaled] = field(default_factory=dict)
    gates: set[int] = field(default_factory=set)
    normalizers: set[int] = field(default_factory=set)
    underflow: bool = False
    _ends: list[Scaled] = field(default_factory=list)
    _leaves: list[tuple[str, Scaled]] = field(default_factory=list)

    # ---- the whole pass

    def backward(self) -> None:
        """One backward pass from ones at every output and in front of every barrier; fills ``diagonal``."""
        ends = [self.sums[value] for value in self.trace.outputs if value in self.sums] + self._ends
        ends = [end for end in ends if end.t.requires_grad]
        if not ends:
            return
        top = max(end.log for end in ends)
        self._near_zero(ends, top)
        total = torch.stack([end.at(top).sum() for end in ends]).sum()
        for name, leaf in self._leaves:
            leaf.t.register_post_accumulate_grad_hook(partial(self._collect, name, top - leaf.log))
        for held in (ends, self.sums, self.weights, self._ends, self._leaves):
            held.clear()
        total.backward()

    def _collect(self, name: str, log: float, leaf: Tensor) -> None:
        """Add the gradient of a parameter to ``diagonal``, and free the parameter's squares."""
        assert leaf.grad is not None  # noqa: S101 - called when it is there
        found = Scaled(leaf.grad, log)
        self.diagonal[name] = self.diagonal[name] + found if name in self.diagonal else found
        leaf.grad, leaf.data = None, leaf.new_empty(0)

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
        self._set(call, self._made(arguments, function, joint=True))
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
    ) -> None:
        """Results that are linear in each argument on its own, plus a squared bias."""
        if bias is None:
            self._set(call, self._made(arguments, function, joint=False))
            return
        self.sum(call, [self.between(arguments, function, False), bias], lambda y, b: y + shape(b), gate=False)

    def between(self, arguments: Sequence[Any], function: Callable[..., Any], joint: bool = True) -> Scaled:
        """The path sum of a value that the trace does not have, such as a layer's result without its bias."""
        (made,) = self._made(arguments, function, joint)
        return made

    def _set(self, call: Call, sums: list[Scaled]) -> None:
        for out, made in zip(call.outs, sums, strict=False):
            self.sums[out] = Scaled(made.t.expand(self.trace.values[out].shape), made.log)

    def _made(self, arguments: Sequence[Any], function: Callable[..., Any], joint: bool) -> list[Scaled]:
        """What a function makes from path sums and squares: of all on one scale, or of each on its own."""
        terms = [self._term(x) for x in arguments]
        top = max(term.log for term in terms)
        for i, x in enumerate(arguments):
            if isinstance(x, Ref) and x.id not in self.weights and self.is_parameter(x):
                terms[i] = self.leaf(x, terms[i], top if joint else -math.inf)
        log = max(term.log for term in terms) if joint else sum(term.log for term in terms)
        if joint:
            self._near_zero(terms, log)
        results = flatten(function(*[term.at(log) if joint else term.t for term in terms]))
        return [Scaled(result, log) if joint else Scaled(result, log).normalized() for result in results]

    def _term(self, x: Any) -> Scaled:
        """The path sum of an argument, or its square."""
        if isinstance(x, Ref):
            return self.sums.get(x.id) or self.weights.get(x.id) or self.square(x)
        return x if isinstance(x, Scaled) else self.square(x)

    def leaf(self, parameter: Ref, square: Scaled, log: float = -math.inf) -> Scaled:
        """The square of a parameter, with respect to which the gradient is taken, with at least this logarithm."""
        if parameter.id not in self.weights:
            log = max(log, square.log)
            made = Scaled(square.at(log), log if log > -math.inf else 0.0)
            leaf = self.trace.values[parameter.id].leaf
            name = "" if leaf is None else self.alias.get(leaf.name, leaf.name)
            self._leaves.append((name, Scaled(made.t.requires_grad_(), made.log)))
            self.weights[parameter.id] = made
        return self.weights[parameter.id]

    def _near_zero(self, terms: Sequence[Scaled], log: float) -> None:
        """Note whether terms nearly vanish beside others."""
        far = any(-math.inf < term.log < log + _LEAST for term in terms)
        self.underflow = self.underflow or (far and self.dtype is torch.float32)

    def is_parameter(self, x: Any) -> bool:
        """Whether an argument is a parameter, or a value made from one and linear in it."""
        return isinstance(x, Ref) and (x.id in self.weights or self.constants.is_parameter(x.id))

    def barrier(self, call: Call) -> None:
        """Paths end in front of a call, and new ones start behind it; its results count as 1 where they multiply."""
        for value in {ref.id for ref in refs([*call.args, call.kwargs])}:
            self.end_path(value)
        for out in call.outs:
            dtype = self.trace.values[out].dtype
            if dtype.is_floating_point or dtype.is_complex:
                self.start(out)
                self.gates.add(out)

    def end_path(self, value: int) -> None:
        """Paths that reach a value end in it, as in an output."""
        if value in self.sums and value not in self.gates:
            self._ends.append(self.sums[value])

    # ---- constants and parameters

    def on_path(self, x: Any) -> bool:
        """Whether a path leads to an argument."""
        return isinstance(x, Scaled) or (isinstance(x, Ref) and x.id in self.sums)

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
        """Squared entries of a constant or parameter; infinite entries of constants, or nearly so, count as zero."""
        tensor, leaf = self.known(x), self.trace.values[x.id].leaf if isinstance(x, Ref) else None
        tensor = tensor.to(self.dtype) if tensor.dtype is torch.bool else tensor
        top = self.largest.get(leaf.name) if leaf else None
        if top is None:
            top = float(tensor.abs().amax()) if tensor.numel() else 0.0
        most = torch.finfo(tensor.dtype).max / 2 if tensor.is_floating_point() else math.inf
        if not top < most and not self.is_parameter(x):  # a mask of -inf, or of the least number there is
            tensor = torch.where(tensor.abs() < most, tensor, 0.0)
            top = float(tensor.abs().amax())
        if not top > 0:
            return Scaled(torch.zeros(tensor.shape, dtype=self.dtype, device=self.device), -math.inf)
        found = (tensor.to(self.dtype) / top).square_()
        if self.dtype is torch.float32 and not float(found.amin()) > 0:
            self.underflow = self.underflow or bool(((found == 0) & (tensor != 0)).any())
        return Scaled(found, 2 * math.log(top))
