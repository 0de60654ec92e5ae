"""The network of path sums: a trace replayed on squared parameters and all-ones inputs, forward and backward.

Every value ``v`` of the trace gets its mass, the sum over all paths that end in it of the squared path value, and its
gradient is the sum over all paths that start from it. Both are kept as :class:`Scaled` numbers, ``t * exp(log)``, so
that a thousand layers neither overflow nor vanish. The product of the two is ``diag(G)``; see :mod:`pathcond.magnitude`.

Conventions: activations are dropped; a maximum counts all its inputs; an average's coefficient is squared; BatchNorm
enters with its running statistics, other normalisations with mean 0 and variance 1. An operation without a rule acts as
the identity if it keeps a shape, and as a fresh input of ones if not; a gate counts as 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pathcond import ops, pools
from pathcond.constants import Constants
from pathcond.record import WRITE, Call, Ref, Trace, flatten, refs, run

_NOTHING = -1.0e30  # log of the mass of zeros: far below any other, and finite
_CHUNK = 1 << 22  # entries of a weight matrix squared at a time


@dataclass(frozen=True, slots=True)
class Scaled:
    """The tensor ``t * exp(log)``; ``log`` is a float64 tensor without axes, on the same device."""

    t: Tensor
    log: Tensor

    def normal(self) -> Scaled:
        """The same number with largest entry 1 in ``t``."""
        top = self.t.amax() if self.t.numel() else self.t.new_zeros(())
        some = top > 0
        log = torch.where(some, self.log + top.double().log(), _NOTHING)
        return Scaled(self.t / torch.where(some, top, 1), log)

    def at(self, log: Tensor) -> Tensor:
        """``t`` in units of ``exp(log)``."""
        return self.t * (self.log - log).exp().to(self.t.dtype)

    def __add__(self, other: Scaled) -> Scaled:
        log = torch.maximum(self.log, other.log)
        return Scaled(self.at(log) + other.at(log), log)


@dataclass(frozen=True)
class _Step:
    """One step of the tape: values made, values read, and the way back from gradients of the former to the latter."""

    outs: tuple[int, ...]
    back: Callable[[Sequence[Scaled | None]], None]


@dataclass
class PathSums:
    """Replays a trace on squared parameters. After :meth:`forward` and :meth:`backward`, ``grads`` holds diag(G).

    ``pooling`` is ``exact``, ``plain`` or ``all``; with ``ones`` every parameter counts as 1 and so each path as 1.
    """

    trace: Trace
    constants: Constants
    dtype: torch.dtype
    device: torch.device
    pooling: str = "exact"
    ones: bool = False
    alias: dict[str, str] = field(default_factory=dict)
    mass: dict[int, Scaled] = field(default_factory=dict)
    grads: dict[str, Scaled] = field(default_factory=dict)
    steps: list[_Step] = field(default_factory=list)
    gates: set[int] = field(default_factory=set)
    delta: dict[int, Scaled] = field(default_factory=dict)

    # ---- the two passes

    def forward(self) -> None:
        for value in self.trace.inputs:
            if self.trace.values[value].dtype.is_floating_point:
                self.fresh(value)
        for call in self.trace.calls:
            op = ops.TABLE.get(call.fn)
            kind = "write" if call.fn is WRITE else op.kind if op is not None else ""
            if kind != "embedding" and not any(ref.id in self.mass for ref in refs([*call.args, call.kwargs])):
                continue
            bound = ops.bind(op, call.args, call.kwargs) if op is not None else {}
            RULES.get(kind, _unknown)(self, call, bound)

    def backward(self) -> None:
        """One pass back from ones at every output; fills ``grads``."""
        for value in self.trace.outputs:
            if value in self.mass:
                self.send(value, Scaled(torch.ones_like(self.mass[value].t), self.zero()))
        for step in reversed(self.steps):
            grads = [self.delta.pop(out, None) for out in step.outs]
            if any(g is not None for g in grads):
                step.back(grads)
        self.steps.clear()

    def total(self) -> Scaled:
        """Sum of the masses of all outputs."""
        sums = [Scaled(m.t.sum(), m.log) for v in self.trace.outputs if (m := self.mass.get(v)) is not None]
        found = sums[0]
        for other in sums[1:]:
            found = found + other
        return found

    # ---- what rules use

    def zero(self) -> Tensor:
        return torch.zeros((), dtype=torch.float64, device=self.device)

    def fresh(self, value: int) -> None:
        """Ones, as at an input."""
        shape = self.trace.values[value].shape
        self.mass[value] = Scaled(torch.ones(shape, dtype=self.dtype, device=self.device), self.zero())

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
        log = torch.stack([self.mass[s].log for s in sources]).amax()
        leaves = [self.mass[s].at(log).detach().requires_grad_() for s in sources]
        with torch.enable_grad():
            results = flatten(function(leaves))
        for out, result in zip(call.outs, results, strict=False):
            self.mass[out] = Scaled(result.detach(), log)
        if all(s in self.gates for s in sources):
            self.gates.update(call.outs)

        def back(grads: Sequence[Scaled | None]) -> None:
            known = [(r, g) for r, g in zip(results, grads, strict=False) if g is not None and r.requires_grad]
            top = torch.stack([g.log for _, g in known]).amax()
            found = torch.autograd.grad([r for r, _ in known], leaves, [g.at(top) for _, g in known], allow_unused=True)
            for source, grad in zip(sources, found, strict=True):
                if grad is not None:
                    self.send(source, Scaled(grad, top).normal())

        self.steps.append(_Step(call.outs[: len(results)], back))

    def constant(self, x: Any) -> Tensor | None:
        """The tensor of an argument no input reaches, or of a number; None for data."""
        if isinstance(x, Ref):
            found = self.constants.get(x.id)
            return None if found is None else found.to(self.device)
        return torch.tensor(float(x), device=self.device) if isinstance(x, (int, float)) else None

    def square(self, x: Any) -> Scaled:
        """Squared entries of a constant or parameter, as ones where paths are counted."""
        tensor = self.constant(x)
        assert tensor is not None  # noqa: S101 - callers ask for constants only
        if self.ones:
            return Scaled(torch.ones(tensor.shape, dtype=self.dtype, device=self.device), self.zero())
        scaled = Scaled(tensor.abs().to(self.dtype), self.zero()).normal()
        return Scaled(scaled.t.square(), 2 * scaled.log)

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


def rule(*kinds: str) -> Callable[[Rule], Rule]:
    def enter(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(kinds, function))
        return function

    return enter


def _unknown(s: PathSums, call: Call, a: dict[str, Any]) -> None:
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
        _unknown(s, call, a)


@rule("compare")
def _compare(s: PathSums, call: Call, a: dict[str, Any]) -> None:
    s.fresh(call.outs[0])
    s.gates.add(call.outs[0])


@rule("zeros")
def _zeros(s: PathSums, call: Call, a: dict[str, Any]) -> None:
    for out in call.outs:
        zeros = torch.zeros(s.trace.values[out].shape, dtype=s.dtype, device=s.device)
        s.mass[out] = Scaled(zeros, torch.full_like(s.zero(), _NOTHING))


# ---- sums and products


def _sum_to(grad: Tensor, shape: Sequence[int]) -> Tensor:
    return grad.sum_to_size(tuple(shape))


@rule("add", "maximum", "where")
def _add(s: PathSums, call: Call, a: dict[str, Any]) -> None:
    parts = [x for x in (a["input"], a["other"]) if isinstance(x, Ref) or x]
    data = [x.id for x in parts if isinstance(x, Ref) and x.id in s.mass]
    fixed = [x for x in parts if not (isinstance(x, Ref) and x.id in s.mass)]
    kind, shape = ops.TABLE[call.fn].kind, s.trace.values[call.outs[0]].shape
    alpha = float(a.get("alpha", 1)) ** 2
    if not data:
        _unknown(s, call, a)
        return
    logs = [s.mass[d].log for d in data]
    squares = [s.square(x) for x in fixed]
    log = torch.stack([*logs, *(q.log for q in squares)]).amax()
    terms = [s.mass[d].at(log) for d in data] + [q.at(log) for q in squares]
    if kind == "add" and len(terms) == 2 and not (len(data) == 1 and a["input"] in fixed):
        terms[1] = terms[1] * alpha
    largest = kind == "maximum" and s.pooling == "plain" and len(terms) == 2
    total = torch.maximum(*terms) if largest else sum(terms[1:], terms[0])
    picks = [(terms[0] >= total).to(s.dtype), (terms[0] < total).to(s.dtype)] if largest else [1.0, alpha]
    order = [d for d in data] + [x for x in fixed]

    def back(grad: Scaled) -> None:
        for who, term, pick in zip(order, terms, picks, strict=False):
            piece = Scaled(_sum_to(grad.t * pick, term.shape), grad.log)
            if isinstance(who, int):
                s.send(who, piece)
            elif isinstance(who, Ref):
                s.give(who, piece)

    s.put(call, Scaled(total.expand(shape), log).normal(), back)


@rule("mul", "div")
def _mul(s: PathSums, call: Call, a: dict[str, Any]) -> None:
    shape, kind = s.trace.values[call.outs[0]].shape, ops.TABLE[call.fn].kind
    data = [x.id for x in (a["input"], a["other"]) if isinstance(x, Ref) and x.id in s.mass]
    if len(data) == 2:
        kept = [d for d in data if d not in s.gates]
        if kind == "div":
            kept = data[:1]
        if len(kept) == 1:
            s.linear(call, kept, lambda x: x[0].expand(shape))
            return
        x, y = (s.mass[d] for d in data)
        s.put(call, Scaled(x.t * y.t, x.log + y.log).normal(), lambda g: _product_back(s, g, data))
        return
    other = a["other"] if isinstance(a["input"], Ref) and a["input"].id in s.mass else a["input"]
    if kind == "div" and other is not a["other"]:
        _unknown(s, call, a)
        return
    factor = s.square(other)
    if kind == "div":
        factor = Scaled(1 / factor.t, -factor.log)
    mass, source = s.mass[data[0]], data[0]

    def back(grad: Scaled) -> None:
        s.send(source, Scaled(_sum_to(grad.t * factor.t, mass.t.shape), grad.log + factor.log).normal())
        if isinstance(other, Ref) and kind == "mul":
            s.give(other, Scaled(_sum_to(grad.t * mass.t, factor.t.shape), grad.log + mass.log))

    s.put(call, Scaled(mass.t * factor.t, mass.log + factor.log).normal(), back)


def _product_back(s: PathSums, grad: Scaled, data: Sequence[int]) -> None:
    for one, other in (data, data[::-1]):
        piece = _sum_to(grad.t * s.mass[other].t, s.mass[one].t.shape)
        s.send(one, Scaled(piece, grad.log + s.mass[other].log).normal())


# ---- layers with parameters


def _with_bias(s: PathSums, mass: Scaled, bias: Any, shape: Sequence[int]) -> Scaled:
    mass = mass.normal()
    if bias is None:
        return mass
    squared = s.square(bias)
    return mass + Scaled(squared.t.reshape(tuple(shape)), squared.log)


def _dense(s: PathSums, call: Call, x: Ref, weight: Ref, bias: Any, turned: bool, axis: int) -> None:
    """``weight`` (out x in, or in x out where turned) along ``axis``; squares a few rows at a time."""
    tensor = s.constant(weight)
    if tensor is None or tensor.ndim != 2 or x.id not in s.mass:
        _unknown(s, call, {})
        return
    matrix = tensor.T if turned else tensor
    mass = s.mass[x.id]
    top = matrix.abs().amax().to(s.dtype) if not s.ones else matrix.new_ones((), dtype=s.dtype)
    top = torch.where(top > 0, top, 1)
    rows = max(1, _CHUNK // max(1, matrix.shape[1]))
    pieces = [slice(i, i + rows) for i in range(0, matrix.shape[0], rows)]
    log = 2 * top.double().log()

    def squares(piece: slice) -> Tensor:
        part = matrix[piece]
        return torch.ones_like(part, dtype=s.dtype) if s.ones else (part.to(s.dtype) / top).square_()

    flat = mass.t.movedim(axis, -1)
    result = torch.cat([flat @ squares(p).T for p in pieces], -1).movedim(-1, axis)
    tail = [-1] + [1] * (-axis - 1)

    def back(grad: Scaled) -> None:
        if bias is not None:
            summed = grad.t.movedim(axis, -1).reshape(-1, matrix.shape[0]).sum(0)
            s.give(bias, Scaled(summed.reshape(s.trace.values[bias.id].shape), grad.log))
        rows_in = grad.t.movedim(axis, -1)
        found = sum((rows_in[..., p] @ squares(p) for p in pieces[1:]), rows_in[..., pieces[0]] @ squares(pieces[0]))
        s.send(x.id, Scaled(found.movedim(-1, axis), grad.log + log).normal())
        outer = rows_in.reshape(-1, matrix.shape[0]).T @ flat.reshape(-1, matrix.shape[1])
        s.give(weight, Scaled(outer.T if turned else outer, grad.log + mass.log))

    s.put(call, _with_bias(s, Scaled(result, mass.log + log), bias, tail), back)


@rule("linear")
def _linear(s: PathSums, call: Call, a: dict[str, Any]) -> None:
    _dense(s, call, a["input"], a["weight"], a.get("bias"), False, -1)


@rule("matmul")
def _matmul(s: PathSums, call: Call, a: dict[str, Any]) -> None:
    x, y = a["input"], a["other"]
    if x.id in s.mass:
        _dense(s, call, x, y, None, True, -1)
    else:
        _dense(s, call, y, x, None, False, -2)


@rule("addmm")
def _addmm(s: PathSums, call: Call, a: dict[str, Any]) -> None:
    _dense(s, call, a["mat1"], a["mat2"], a["input"], True, -1)


@rule("conv1", "conv2", "conv3", "convt1", "convt2", "convt3")
def _conv(s: PathSums, call: Call, a: dict[str, Any]) -> None:
    kind = ops.TABLE[call.fn].kind
    nd, transposed = int(kind[-1]), kind.startswith("convt")
    if a["input"].id not in s.mass or s.constant(a["weight"]) is None:
        _unknown(s, call, a)
        return
    mass, weight, bias = s.mass[a["input"].id], a["weight"], a.get("bias")
    setting = _conv_setting(a, nd, transposed, s.trace.values[weight.id].shape)
    batched = mass.t.ndim == nd + 2
    padded = F.pad(mass.t if batched else mass.t[None], setting.pop("pad"))
    kernel = s.square(weight)
    result = torch.ops.aten.convolution(padded, kernel.t, None, *setting.values())
    mass_log, kernel_log = mass.log, kernel.log
    del kernel

    def back(grad: Scaled) -> None:
        kernel = s.square(weight)
        flow = grad.t if batched else grad.t[None]
        wants = [True, True, False]
        into, g, _ = torch.ops.aten.convolution_backward(flow, padded, kernel.t, None, *setting.values(), wants)
        crop = tuple(slice(lo, lo + n) for lo, n in zip(_lows(padded, mass.t, nd), mass.t.shape[-nd:], strict=True))
        into = into[(..., *crop)]
        s.send(a["input"].id, Scaled(into if batched else into[0], grad.log + kernel.log).normal())
        s.give(weight, Scaled(g, grad.log + mass_log))
        if bias is not None:
            s.give(bias, Scaled(flow.sum([0, *range(2, nd + 2)]), grad.log))

    result = result if batched else result[0]
    s.put(call, _with_bias(s, Scaled(result, mass.log + kernel_log), bias, [-1] + [1] * nd), back)


def _lows(padded: Tensor, inner: Tensor, nd: int) -> list[int]:
    return [(p - i) // 2 for p, i in zip(padded.shape[-nd:], inner.shape[-nd:], strict=True)]


def _conv_setting(a: dict[str, Any], nd: int, transposed: bool, kernel: Sequence[int]) -> dict[str, Any]:
    """Arguments of aten.convolution, and explicit padding where ``padding`` is a word."""

    def each(x: Any) -> list[int]:
        return [x] * nd if isinstance(x, int) else list(x) * (nd // len(x) if len(x) != nd else 1)

    dilation = each(a.get("dilation", 1))
    padding, pad = a.get("padding", 0), [0] * (2 * nd)
    if padding == "same":
        for i, (n, d) in enumerate(zip(kernel[2:], dilation, strict=True)):
            spare = d * (n - 1)
            pad[2 * (nd - 1 - i)], pad[2 * (nd - 1 - i) + 1] = spare // 2, spare - spare // 2
    return {
        "pad": pad,
        "stride": each(a.get("stride", 1)),
        "padding": [0] * nd if isinstance(padding, str) else each(padding),
        "dilation": dilation,
        "transposed": transposed,
        "output_padding": each(a.get("output_padding", 0)),
        "groups": a.get("groups", 1),
    }


@rule("embedding")
def _embedding(s: PathSums, call: Call, a: dict[str, Any]) -> None:
    picks, table = s.constant(a["input"]), a["weight"]
    if picks is None or s.constant(table) is None:
        _unknown(s, call, a)
        return
    squared = s.square(table)

    def back(grad: Scaled) -> None:
        found = torch.zeros_like(squared.t)
        s.give(table, Scaled(found.index_add_(0, picks.reshape(-1), grad.t.reshape(-1, found.shape[1])), grad.log))

    s.put(call, Scaled(F.embedding(picks, squared.t), squared.log), back)


@rule("batch_norm", "group_norm", "layer_norm")
def _norm(s: PathSums, call: Call, a: dict[str, Any]) -> None:
    source, weight, bias = a["input"].id, a.get("weight"), a.get("bias")
    mass, kind = s.mass[source], ops.TABLE[call.fn].kind
    shape = [-1] if kind == "layer_norm" else [-1] + [1] * (mass.t.ndim - 2)
    if kind == "layer_norm":
        shape = list(a["normalized_shape"])
    gain, shift = _statistics(s, a, kind)
    scale = s.square(weight) if weight is not None else Scaled(torch.ones_like(gain.t), s.zero())
    factor = Scaled((scale.t * gain.t).reshape(shape), scale.log + gain.log)
    moved = Scaled(mass.t * factor.t, mass.log + factor.log).normal()
    pushed = Scaled((scale.t * shift.t).reshape(shape), scale.log + shift.log)
    result = moved if s.ones else moved + pushed
    if bias is not None:
        squared = s.square(bias)
        result = result + Scaled(squared.t.reshape(shape), squared.log)

    def back(grad: Scaled) -> None:
        s.send(source, Scaled(grad.t * factor.t, grad.log + factor.log).normal())
        if weight is not None:
            through = Scaled(mass.t * gain.t.reshape(shape), mass.log + gain.log)
            through = through if s.ones else through + Scaled(shift.t.reshape(shape), shift.log)
            s.give(weight, Scaled(_per_channel(grad.t * through.t, shape, scale.t), grad.log + through.log))
        if bias is not None:
            s.give(bias, Scaled(_per_channel(grad.t, shape, scale.t), grad.log))

    s.put(call, result, back)


def _per_channel(grad: Tensor, shape: Sequence[int], like: Tensor) -> Tensor:
    wide = [n if n != -1 else like.numel() for n in shape]
    return grad.sum_to_size(tuple(wide)).reshape(like.shape)


def _statistics(s: PathSums, a: dict[str, Any], kind: str) -> tuple[Scaled, Scaled]:
    """Squared slope 1 / (var + eps) and squared offset mean^2 / (var + eps) of a normalisation, before its weight."""
    mean, var = a.get("running_mean"), a.get("running_var")
    fixed = kind == "batch_norm" and not a.get("training", False) and mean is not None and var is not None
    channels = s.trace.values[a["input"].id].shape[1:2]
    if s.ones or not fixed:
        like = torch.ones(a["normalized_shape"] if kind == "layer_norm" else channels, dtype=s.dtype, device=s.device)
        return Scaled(like, s.zero()), Scaled(torch.zeros_like(like), torch.full_like(s.zero(), _NOTHING))
    m, v = s.constant(mean), s.constant(var)
    assert m is not None and v is not None  # noqa: S101 - running statistics are buffers
    spread = v.double() + a.get("eps", 1e-5)
    gain, shift = Scaled(1 / spread, s.zero()).normal(), Scaled(m.double() ** 2 / spread, s.zero()).normal()
    return Scaled(gain.t.to(s.dtype), gain.log), Scaled(shift.t.to(s.dtype), shift.log)


# ---- pools, reductions, movement


@rule(*(f"{name}{d}" for d in (1, 2, 3) for name in ("max_pool", "avg_pool", "adaptive_avg_pool", "adaptive_max_pool")))
def _pool(s: PathSums, call: Call, a: dict[str, Any]) -> None:
    kind = ops.TABLE[call.fn].kind
    setting = {k: v for k, v in a.items() if k not in ("input", "return_indices")}
    s.linear(call, [a["input"].id], lambda x: pools.pool(kind, x[0], setting, s.pooling))


@rule("mean", "sum", "extreme")
def _reduce(s: PathSums, call: Call, a: dict[str, Any]) -> None:
    dim, kind = a.get("dim", a.get("axis")), ops.TABLE[call.fn].kind
    if isinstance(dim, Ref):
        _add(s, call, {"input": a["input"], "other": dim})
        return
    size, out = s.trace.values[a["input"].id].shape, s.trace.values[call.outs[0]].shape
    dims = tuple(range(len(size))) if dim is None or dim == () else (dim,) if isinstance(dim, int) else tuple(dim)
    s.linear(call, [a["input"].id], lambda x: pools.reduce(kind, x[0], dims, s.pooling).reshape(out))


@rule("resample")
def _resample(s: PathSums, call: Call, a: dict[str, Any]) -> None:
    s.linear(call, [a["input"].id], lambda x: run(call, lambda _: x[0]))


@rule("reshape")
def _reshape(s: PathSums, call: Call, a: dict[str, Any]) -> None:
    shape = s.trace.values[call.outs[0]].shape
    s.linear(call, [a["input"].id], lambda x: x[0].reshape(shape))


@rule("move", "cat", "setitem", "write", "pad")
def _move(s: PathSums, call: Call, a: dict[str, Any]) -> None:
    """Run the call itself: on masses, squared constants among the data, and plain constants as indices."""
    kind = ops.TABLE[call.fn].kind if call.fn in ops.TABLE else "write"
    named = [r.id for r in refs([*call.args, call.kwargs])]
    places = refs(call.args[:2] if kind == "write" else [a.get("tensors", a.get("input")), a.get("value")])
    data = list(dict.fromkeys(r.id for r in places))
    sources = [v for v in data if v in s.mass]
    if not sources:
        _unknown(s, call, a)
        return
    log = torch.stack([s.mass[v].log for v in sources]).amax()

    def function(leaves: list[Tensor]) -> Any:
        fills: dict[int, Any] = dict(zip(sources, leaves, strict=True))
        for v in named:
            if v in data and v not in fills:
                fills[v] = s.square(Ref(v)).at(log)
            elif v not in fills:
                fixed = s.constant(Ref(v))
                fills[v] = torch.empty(s.trace.values[v].shape, device=s.device) if fixed is None else fixed
        if kind == "setitem":
            base = fills[a["input"].id].clone()
            base[a["index"]] = fills[a["value"].id] if isinstance(a["value"], Ref) else float(a["value"]) ** 2
            return base
        return run(call, fills.__getitem__)

    s.linear(call, sources, function)


@rule("copy")
def _copy(s: PathSums, call: Call, a: dict[str, Any]) -> None:
    shape = s.trace.values[call.outs[0]].shape
    if isinstance(a["src"], Ref) and a["src"].id in s.mass:
        s.linear(call, [a["src"].id], lambda x: x[0].expand(shape))
    else:
        s.fresh(call.outs[0])
