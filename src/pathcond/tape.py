"""What a recording has seen so far: numbers the values of tensor objects, and follows views and in-place writes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from pathcond.trace import WRITE, Call, Leaf, Ref, Value, View, flatten, map_leaves, refs


@dataclass
class Known:
    """What the recorder knows of one tensor object: its value, and the view it is, if it is one."""

    tensor: Tensor
    value: int
    parent: int | None = None
    view: View | None = None
    epoch: int = 0


@dataclass
class Tape:
    """Values and calls recorded so far, by tensor object; follows views and in-place writes."""

    module_names: Mapping[int, str]
    names: Mapping[int, Leaf]
    values: list[Value] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    known: dict[int, Known] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)

    def new_value(self, tensor: Tensor, leaf: Leaf | None = None) -> int:
        """Number a new value."""
        self.values.append(Value(tuple(tensor.shape), tensor.dtype, leaf))
        return len(self.values) - 1

    def read(self, tensor: Tensor) -> int:
        """The value ``tensor`` holds now; a view whose base changed meanwhile is taken again."""
        entry = self.known.get(id(tensor))
        if entry is None:
            leaf = self.names.get(id(tensor), Leaf("const", tensor=tensor))
            entry = self.known[id(tensor)] = Known(tensor, self.new_value(tensor, leaf), epoch=self._epoch(tensor))
        if entry.epoch < self._epoch(tensor) and entry.parent is not None and entry.view is not None:
            base = self.read(self.known[entry.parent].tensor)
            old = entry.view.call
            outs = tuple(self.new_value_like(v) for v in old.outs)
            stale = next(refs([*old.args, old.kwargs])).id
            args, kwargs = map_leaves(lambda leaf: Ref(base) if leaf == Ref(stale) else leaf, (old.args, old.kwargs))
            call = Call(old.fn, args, kwargs, outs, old.where)
            self.calls.append(call)
            entry.value, entry.view = outs[entry.view.index], View(call, entry.view.index)
        entry.epoch = self._epoch(tensor)
        return entry.value

    def adopt(self, twin: Tensor, tensor: Tensor) -> None:
        """Read a fake copy as the real tensor it stands for."""
        if id(tensor) in self.known:
            self.known[id(twin)] = Known(twin, self.known[id(tensor)].value, epoch=self._epoch(twin))
        else:
            leaf = self.names.get(id(tensor), Leaf("const", tensor=tensor))
            self.known[id(twin)] = Known(twin, self.new_value(twin, leaf), epoch=self._epoch(twin))

    def is_leaf(self, tensor: Tensor) -> bool:
        """Whether a known tensor still holds what it held before the pass."""
        return self.values[self.known[id(tensor)].value].leaf is not None

    def new_value_like(self, value: int) -> int:
        """Number a new value of the same shape."""
        self.values.append(Value(self.values[value].shape, self.values[value].dtype))
        return len(self.values) - 1

    def _epoch(self, tensor: Tensor) -> int:
        return self.epochs.get(tensor.untyped_storage()._cdata, 0)

    def add(
        self, fn: Callable[..., Any], arguments: Any, result: Any, read: Sequence[Tensor], changed: Sequence[Tensor]
    ) -> None:
        """Record a call with ``arguments`` as :class:`Ref` trees, that read some tensors and changed some of them."""
        returned = [t for t in flatten(result) if not any(t is c for c in changed)]
        outs = tuple(self.new_value(t) for t in (*returned, *changed))
        args, kwargs = arguments
        call = Call(fn, args, kwargs, outs, self._where(), bool(changed))
        self.calls.append(call)
        storages = {t.untyped_storage()._cdata: id(t) for t in reversed(read)}
        for index, tensor in enumerate(returned):
            parent = storages.get(tensor.untyped_storage()._cdata)
            if id(tensor) in self.known and parent is not None and self.known[id(tensor)].tensor is tensor:
                self.known[id(tensor)].value = outs[index]  # returned its own argument, unchanged
                continue
            view = View(call, index) if parent is not None else None
            self.known[id(tensor)] = Known(tensor, outs[index], parent, view, self._epoch(tensor))
        for tensor, value in zip(changed, outs[len(returned) :], strict=True):
            self._write(tensor, value)

    def _write(self, tensor: Tensor, value: int) -> None:
        """``tensor`` now holds ``value``: hand the change on to the tensors it is a view of."""
        storage = tensor.untyped_storage()._cdata
        entry = self.known[id(tensor)]
        chain: list[tuple[Known, int, View]] = []
        while entry.parent is not None and entry.view is not None:
            chain.append((entry, entry.parent, entry.view))
            entry = self.known[entry.parent]
        self.epochs[storage] = self.epochs.get(storage, 0) + 1
        entry = self.known[id(tensor)]
        entry.value, entry.epoch = value, self.epochs[storage]
        for child, parent, view in chain:
            base = self.known[parent]
            out = self.new_value_like(base.value)
            args = (Ref(base.value), Ref(child.value), view)
            self.calls.append(Call(WRITE, args, {}, (out,), self._where()))
            base.value, base.epoch = out, self.epochs[storage]

    def _where(self) -> str:
        """Name of the innermost module whose code is running, read off the Python stack."""
        frame = sys._getframe(2)
        while frame is not None:
            owner = frame.f_locals.get("self")
            if isinstance(owner, nn.Module) and id(owner) in self.module_names:
                return self.module_names[id(owner)]
            frame = frame.f_back
        return ""
