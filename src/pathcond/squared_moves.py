"""Path sums through pools, reductions and operations that move elements."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pathcond import ops, pools
from pathcond.squared import PathSums, no_rule, rule
from pathcond.squared_layers import _add
from pathcond.trace import Call, Ref, refs, run

# ---- pools, reductions, movement


@rule(*(f"{name}{d}" for d in (1, 2, 3) for name in ("max_pool", "avg_pool", "adaptive_avg_pool", "adaptive_max_pool")))
def _pool(s: PathSums, call: Call, a: dict[str, Any]) -> None:
    kind = ops.TABLE[call.fn].kind
    setting = {k: v for k, v in a.items() if k not in ("input", "return_indices")}
    s.linear(call, [a["input"].id], lambda x: pools.pool(kind, x[0], setting, s.pooling))


@rule("mean", "sum", "extreme")
def _reduce(s: PathSums, call: Call, a: dict[str, Any]) -> None:
    dim, kind = a.get("dim", a.get("axis", a.get("other"))), ops.TABLE[call.fn].kind
    if isinstance(dim, Ref):
        _add(s, call, {"input": a["input"], "other": dim})
        return
    size, out = s.trace.values[a["input"].id].shape, s.trace.values[call.outs[0]].shape
    dims = tuple(range(len(size))) if dim is None or dim in ((), []) else (dim,) if isinstance(dim, int) else tuple(dim)
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
        no_rule(s, call, a)
        return
    log = max(s.mass[v].log for v in sources)

    def function(leaves: list[Tensor]) -> Any:
        fills: dict[int, Any] = dict(zip(sources, leaves, strict=True))
        for v in named:
            if v in data and v not in fills:
                known = s.constant(Ref(v)) is not None
                fills[v] = s.square(Ref(v)).at(log) if known else leaves[0].new_zeros(s.trace.values[v].shape)
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
