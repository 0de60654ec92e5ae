"""The record of a forward pass, in single-assignment form.

A :class:`Trace` lists the torch functions a model called, on which values, in order. Values are numbered; a value is
made once and never changed: an in-place operation makes a new value, and writes through views are spelled out as
:data:`WRITE` calls.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pathcond import ops


@dataclass(frozen=True, slots=True)
class Ref:
    """Stands for a value inside the arguments of a recorded call."""

    id: int


@dataclass(frozen=True, slots=True)
class Leaf:
    """Where a value that no call made comes from: ``input``, ``param``, ``buffer`` or ``const``."""

    kind: str
    name: str = ""
    tensor: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Value:
    """Shape and dtype of a value, and its origin if it is a leaf."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    leaf: Leaf | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """One recorded call; ``outs`` are the values it returned, then those it changed in place."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    outs: tuple[int, ...]
    where: str
    mutates: bool = False

    @property
    def name(self) -> str:
        """A readable name of the function called."""
        return ops.name_of(self.fn)


@dataclass(frozen=True, slots=True)
class View:
    """Argument of a :data:`WRITE` call: which output of which view-making call was written."""

    call: Call
    index: int


@dataclass(frozen=True)
class Trace:
    """One forward pass: values, calls in order, and the values that went in, came out, or were left in the model."""

    values: tuple[Value, ...]
    calls: tuple[Call, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    kept: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Flow:
    """Values of a trace that depend on data, those made from parameters alone, and those that a later layer reads."""

    data: frozenset[int]
    weights: frozenset[int]
    hidden: frozenset[int]


def follow_data(trace: Trace) -> Flow:
    """Find where data and parameters go."""
    data, weights = set(trace.inputs), {i for i, v in enumerate(trace.values) if v.leaf and v.leaf.kind == "param"}
    hidden: set[int] = set()
    steps = [(call, ops.kind_of(call.fn), {r.id for r in refs([*call.args, call.kwargs])}) for call in trace.calls]
    for call, _, reads in steps:
        if reads & data:
            data.update(call.outs)
        elif reads & weights:
            weights.update(call.outs)
    many = {i for i in weights if math.prod(trace.values[i].shape) > 1}
    for call, kind, reads in reversed(steps):
        layer = reads - data if kind in ops.LAYERS else reads & many if kind not in ("add", "maximum") else ()
        if layer or not hidden.isdisjoint(call.outs):
            hidden |= reads
    return Flow(frozenset(data), frozenset(weights), frozenset(hidden))


def WRITE(base: Tensor, piece: Tensor, view: View) -> Tensor:  # noqa: N802 - a marker in traces, written as one
    """Return ``base`` with the part that ``view`` shows replaced by ``piece``."""
    places = torch.arange(base.numel(), device=base.device).reshape(base.shape)
    shown = flatten(run(view.call, lambda _: places))[view.index]
    return base.reshape(-1).index_copy(0, shown.reshape(-1), piece.expand(shown.shape).reshape(-1)).reshape(base.shape)


def refs(tree: Any) -> Iterator[Ref]:
    """Every :class:`Ref` in the arguments of a call."""
    if isinstance(tree, Ref):
        yield tree
    elif isinstance(tree, (list, tuple)):
        for item in tree:
            yield from refs(item)
    elif isinstance(tree, dict):
        for item in tree.values():
            yield from refs(item)


def flatten(tree: Any) -> list[Tensor]:
    """The tensors of a call's result, in order."""
    if isinstance(tree, Tensor):
        return [tree]
    if isinstance(tree, (list, tuple)):
        return [t for item in tree for t in flatten(item)]
    return []


def map_leaves(change: Callable[[Any], Any], tree: Any) -> Any:
    """``tree`` (nested tuples, lists and dicts) with ``change`` applied to everything else in it."""
    if isinstance(tree, tuple):
        items = [map_leaves(change, item) for item in tree]
        return getattr(type(tree), "_make", tuple)(items)
    if isinstance(tree, list):
        return [map_leaves(change, item) for item in tree]
    if isinstance(tree, dict):
        made = {} if type(tree) is dict else copy(tree)
        for key, item in tree.items():
            made[key] = map_leaves(change, item)
        return made
    return change(tree)


def run(call: Call, look_up: Callable[[int], Any]) -> Any:
    """Call ``call.fn`` with every :class:`Ref` replaced by ``look_up(id)``."""
    args, kwargs = map_leaves(
        lambda leaf: look_up(leaf.id) if isinstance(leaf, Ref) else leaf, (call.args, call.kwargs)
    )
    return call.fn(*args, **kwargs)
