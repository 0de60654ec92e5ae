"""How scales cross pools, reductions and operations that move elements."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pathcond import ops
from pathcond.label_layers import _add
from pathcond.label_types import FROZEN, ZERO, ParamView, Reason, fit
from pathcond.labels import Labels, rule, spread
from pathcond.trace import WRITE, Call, Ref, View, flatten, refs, run

# ---- pools and reductions


@rule(*(f"{name}{d}" for d in (1, 2, 3) for name in ("max_pool", "avg_pool", "adaptive_avg_pool", "adaptive_max_pool")))
def _pool(s: Labels, call: Call, a: dict[str, Any]) -> None:
    axis = len(s.shape(a["input"].id)) - int(ops.TABLE[call.fn].kind[-1]) - 1
    s.out(call, s.collapse(s.label(a["input"]), range(axis + 1), spread(call)))


@rule("resample")
def _resample(s: Labels, call: Call, a: dict[str, Any]) -> None:
    s.out(call, s.collapse(s.label(a["input"]), (0, 1), spread(call)))


@rule("mean", "sum", "extreme")
def _reduce(s: Labels, call: Call, a: dict[str, Any]) -> None:
    dim = a.get("dim", a.get("axis", a.get("other")))
    if isinstance(dim, Ref):  # torch.max(x, y)
        _add(s, call, {"input": a["input"], "other": dim})
        return
    label = s.label(a["input"])
    dims = range(label.ndim) if dim is None or dim in ((), []) else ((dim,) if isinstance(dim, int) else dim)
    gone = {d % max(label.ndim, 1) for d in dims}
    label = s.collapse(label, [d for d in range(label.ndim) if d not in gone], spread(call))
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
    assert s.trace is not None  # noqa: S101 - set by follow
    if s.trace.values[a["input"].id].dtype != s.trace.values[call.outs[0]].dtype:
        s.unknown(call, "is read as another dtype")
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
    named = list(refs([*call.args, call.kwargs]))
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
        constant = s.constants.get(ref.id) if s.constants is not None and not s.constants.random(ref.id) else None
        if constant is None:
            s.unknown(call, f"is picked by `{call.name}` with indices that are not fixed")
            return
        fills[ref.id] = constant.cpu()
    moved = flatten(_run_on_labels(call, fills))
    s.out(call, *(compress(label) for label in moved))


def _run_on_labels(call: Call, fills: dict[int, Tensor]) -> Any:
    try:
        return run(call, fills.__getitem__)
    except RuntimeError:  # some kernels know no integers; numbers below 2**53 are exact here
        as_double = {k: v.double() for k, v in fills.items()}
        return [label.long() for label in flatten(run(call, as_double.__getitem__))]


def _param_views(s: Labels, call: Call, source: int, view: ParamView) -> list[Tensor | ParamView]:
    """A transposed or unsqueezed parameter is still that parameter; any other piece of it is a constant."""
    meta = torch.empty(s.shape(source), device="meta")
    by_stride = {(meta.stride(i), n): view.axes[i] for i, n in enumerate(meta.shape) if n > 1}
    found: list[Tensor | ParamView] = []
    for piece, value in zip(flatten(run(call, lambda _: meta)), call.outs, strict=True):
        shared = piece.untyped_storage()._cdata == meta.untyped_storage()._cdata and piece.storage_offset() == 0
        axes = tuple(by_stride.get((piece.stride(i), n), -1) if n > 1 else None for i, n in enumerate(piece.shape))
        own = sorted(a for a in by_stride.values() if a is not None)
        whole = shared and sorted(a for a in axes if a is not None) == own
        if not whole:
            s.hold(view.name, Reason("param", call.where, f"parameter '{view.name}' is cut up by `{call.name}`"))
        found.append(ParamView(view.name, axes, view.rank) if whole else s.constant(value, FROZEN))
    return found


@rule("cat")
def _cat(s: Labels, call: Call, a: dict[str, Any]) -> None:
    parts = [part for part in a["tensors"] if s.shape(part.id) != (0,)]
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
        label = s.collapse(label, range(label.ndim - len(pad) // 2), spread(call))
    s.out(call, label)


@rule("setitem", "copy")
def _set(s: Labels, call: Call, a: dict[str, Any]) -> None:
    value = a.get("value", a.get("src"))
    label = s.label(value)
    if ops.TABLE[call.fn].kind == "copy":
        s.out(call, fit(label, s.shape(call.outs[0])))
        return
    if any(refs([a["index"]])):
        s.unknown(call, "is written at indices that are tensors")
        return
    base = s.label(a["input"]).expand(s.shape(a["input"].id)).clone()
    base[a["index"]] = label
    s.out(call, compress(base))


@rule("write")
def _write(s: Labels, call: Call, a: dict[str, Any]) -> None:
    """A change made through a view reaches the tensor it shows."""
    base, piece, view = call.args
    assert isinstance(view, View)  # noqa: S101 - the recorder makes it so
    op = ops.TABLE.get(view.call.fn)
    if op is not None and op.kind in ("pass", "same", "cast"):
        s.out(call, s.label(piece))
        return
    if op is not None and op.kind in ("move", "reshape") and s.param(base) is None and s.param(piece) is None:
        whole, part = s.shape(base.id), s.shape(piece.id)
        s.out(call, compress(WRITE(s.label(base).expand(whole), s.label(piece).expand(part), view)))
        return
    s.unknown(call, f"is changed in place through `{view.call.name}`")
