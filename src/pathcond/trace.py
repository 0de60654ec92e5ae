"""The record of a forward pass, in single-assignment form.

A :class:`Trace` lists the torch functions a model called, on which values, in order. Values are numbered; a value is
made once and never changed: an in-place operation makes a new value, and writes through views are spelled out as
:data:`WRITE` calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
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
        return tuple(map_leaves(change, item) for item in tree)
    if isinstance(tree, list):
        return [map_leaves(change, item) for item in tree]
    if isinstance(tree, dict):
        return {key: map_leaves(change, item) for key, item in tree.items()}
    return change(tree)


def run(call: Call, look_up: Callable[[int], Any]) -> Any:
    """Call ``call.fn`` with every :class:`Ref` replaced by ``look_up(id)``."""
    args, kwargs = map_leaves(
        lambda leaf: look_up(leaf.id) if isinstance(leaf, Ref) else leaf, (call.args, call.kwargs)
    )
    return call.fn(*args, **kwargs)
