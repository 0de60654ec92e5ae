"""A record of one forward pass on fake tensors, in single-assignment form.

A :class:`Trace` lists the torch functions a model called, on which values, in order. Values are numbered; a value is
made once and never changed: an in-place operation makes a new value, and writes through views are spelled out as
:data:`WRITE` calls. No weight is read and nothing is computed: the pass runs under ``FakeTensorMode``.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from pathcond import ops
from pathcond.errors import RecordError


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
        return ops.name_of(self.fn)


@dataclass(frozen=True, slots=True)
class View:
    """Argument of a :data:`WRITE` call: which output of which view-making call was written."""

    call: Call
    index: int


@dataclass(frozen=True)
class Trace:
    """One forward pass: values, calls in order, and the values that went in and came out."""

    values: tuple[Value, ...]
    calls: tuple[Call, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def WRITE(base: Tensor, piece: Tensor, view: View) -> Tensor:  # noqa: N802 - a marker in traces, written as one
    """Return ``base`` with the part that ``view`` shows replaced by ``piece``."""
    changed = base.clone()
    target = flatten(run(view.call, lambda _: changed))[view.index]
    target.copy_(piece)
    return changed


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


@dataclass
class _Known:
    """What the recorder knows of one tensor object: its value, and the view it is, if it is one."""

    tensor: Tensor
    value: int
    parent: int | None = None
    view: View | None = None
    epoch: int = 0


@dataclass
class _Tape:
    """Values and calls recorded so far, by tensor object; follows views and in-place writes."""

    module_names: Mapping[int, str]
    names: Mapping[int, Leaf]
    values: list[Value] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    known: dict[int, _Known] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)

    def new_value(self, tensor: Tensor, leaf: Leaf | None = None) -> int:
        self.values.append(Value(tuple(tensor.shape), tensor.dtype, leaf))
        return len(self.values) - 1

    def read(self, tensor: Tensor) -> int:
        """The value ``tensor`` holds now; a view whose base changed meanwhile is taken again."""
        entry = self.known.get(id(tensor))
        if entry is None:
            leaf = self.names.get(id(tensor), Leaf("const", tensor=tensor))
            entry = self.known[id(tensor)] = _Known(tensor, self.new_value(tensor, leaf), epoch=self._epoch(tensor))
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

    def new_value_like(self, value: int) -> int:
        self.values.append(self.values[value])
        return len(self.values) - 1

    def _epoch(self, tensor: Tensor) -> int:
        return self.epochs.get(tensor.untyped_storage()._cdata, 0)

    def add(
        self, fn: Callable[..., Any], arguments: Any, result: Any, read: Sequence[Tensor], changed: Sequence[Tensor]
    ) -> None:
        """Record a call with ``arguments`` as :class:`Ref` trees, that read some tensors and changed some of them."""
        returned = [t for t in flatten(result) if not any(t is c for c in changed)]
        outs = tuple(self.new_value(t) for t in (*returned, *changed))
        call = Call(fn, *arguments, outs, self._where(), bool(changed))
        self.calls.append(call)
        storages = {t.untyped_storage()._cdata: id(t) for t in reversed(read)}
        for index, tensor in enumerate(returned):
            parent = storages.get(tensor.untyped_storage()._cdata)
            if id(tensor) in self.known and parent is not None and self.known[id(tensor)].tensor is tensor:
                self.known[id(tensor)].value = outs[index]  # returned its own argument, unchanged
                continue
            view = View(call, index) if parent is not None else None
            self.known[id(tensor)] = _Known(tensor, outs[index], parent, view, self._epoch(tensor))
        for tensor, value in zip(changed, outs[len(returned) :], strict=True):
            self._write(tensor, value)

    def _write(self, tensor: Tensor, value: int) -> None:
        """``tensor`` now holds ``value``: hand the change on to the tensors it is a view of."""
        storage = tensor.untyped_storage()._cdata
        entry = self.known[id(tensor)]
        base_values = []
        while entry.parent is not None and entry.view is not None:
            base_values.append(entry)
            entry = self.known[entry.parent]
        self.epochs[storage] = self.epochs.get(storage, 0) + 1
        entry = self.known[id(tensor)]
        entry.value, entry.epoch = value, self.epochs[storage]
        for child in base_values:
            assert child.parent is not None and child.view is not None  # noqa: S101 - holds by the loop above
            base = self.known[child.parent]
            out = self.new_value_like(base.value)
            args = (Ref(base.value), Ref(child.value), child.view)
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


class _Functions(TorchFunctionMode):
    """Records every torch function a model calls."""

    def __init__(self, tape: _Tape) -> None:
        super().__init__()
        self.tape = tape
        self.depth = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.call(func, args, kwargs or {})

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        if self.depth or func in ops.QUERIES:
            return func(*args, **kwargs)
        self.depth += 1
        try:
            tensors = tensors_in([args, kwargs])
            before = [t._version for t in tensors]
            refs_in = map_leaves(lambda x: Ref(self.tape.read(x)) if isinstance(x, Tensor) else x, (args, kwargs))
            result = ops.stand_in(func, args, kwargs) if func in ops.STAND_INS else func(*args, **kwargs)
            changed = [t for t, v in zip(tensors, before, strict=True) if t._version != v]
            if changed or flatten(result):
                self.tape.add(func, refs_in, result, tensors, _distinct(changed))
            return result
        finally:
            self.depth -= 1


class _Kernels(TorchDispatchMode):
    """Hands the operations that no torch function announced to the recorder, so that none goes unseen."""

    def __init__(self, functions: _Functions) -> None:
        super().__init__()
        self.functions = functions

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.functions.call(func, args, kwargs or {})


def tensors_in(tree: Any) -> list[Tensor]:
    if isinstance(tree, Tensor):
        return [tree]
    if isinstance(tree, (list, tuple)):
        return [t for item in tree for t in tensors_in(item)]
    if isinstance(tree, dict):
        return [t for item in tree.values() for t in tensors_in(item)]
    return []


def _distinct(tensors: Sequence[Tensor]) -> list[Tensor]:
    return list({id(t): t for t in tensors}.values())


def as_arguments(example_input: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments of a forward call: a tensor, a tuple or list of arguments, or a dict."""
    if isinstance(example_input, Mapping):
        return (), dict(example_input)
    if isinstance(example_input, (tuple, list)):
        return tuple(example_input), {}
    return (example_input,), {}


def record(model: nn.Module, example_input: Any, training: bool | Mapping[nn.Module, bool] | None = None) -> Trace:
    """Record one forward pass of ``model`` on fake copies of its tensors.

    Args:
        model: any module; it is left exactly as found, also when its forward pass raises.
        example_input: a tensor, a tuple or list of positional arguments, or a dict of keyword arguments.
        training: the mode to record, for all submodules; ``None`` records the model as it is.

    Raises:
        RecordError: the pass raised, or its way depends on values; the message names the line of code.
    """
    leaves = {id(p): Leaf("param", n) for n, p in model.named_parameters()}
    leaves |= {id(b): Leaf("buffer", n) for n, b in model.named_buffers()}
    tape = _Tape({id(m): n for n, m in model.named_modules()}, leaves)
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    args, kwargs = as_arguments(example_input)
    with torch.no_grad(), in_mode(model, training), torch.random.fork_rng(devices=[]):
        tensors: dict[str, Tensor] = {}
        for kind, named in (("param", model.named_parameters()), ("buffer", model.named_buffers())):
            for name, tensor in named:
                tensors[name] = fake.from_tensor(tensor)
                leaves[id(tensors[name])] = Leaf(kind, name)
        given = tensors_in([args, kwargs])
        swap = {id(t): fake.from_tensor(t) for t in given}
        leaves |= {id(swap[id(t)]): Leaf("input", str(i)) for i, t in enumerate(given)}
        fargs, fkwargs = map_leaves(lambda x: swap[id(x)] if isinstance(x, Tensor) else x, (args, kwargs))
        functions = _Functions(tape)
        inputs = tuple(tape.read(swap[id(t)]) for t in given)
        try:
            with fake, _Kernels(functions), functions:
                result = functional_call(model, tensors, fargs, fkwargs)
        except Exception as error:
            raise RecordError(_explain(error, tape.module_names)) from error
        outputs = tuple(tape.read(t) for t in _outputs(result))
    if not outputs:
        raise RecordError(
            f"expected the forward pass to return at least one tensor, got {type(result).__name__}. "
            "Return the output tensors (tuples, lists, dicts and dataclasses of tensors are fine)."
        )
    return Trace(tuple(tape.values), tuple(tape.calls), inputs, outputs)


@contextmanager
def in_mode(model: nn.Module, training: bool | Mapping[nn.Module, bool] | None) -> Iterator[None]:
    """Set the training flag of every submodule, and put each back as found."""
    found = {module: module.training for module in model.modules()}
    try:
        if training is not None:
            for module in found:
                module.training = training if isinstance(training, bool) else training[module]
        yield
    finally:
        for module, flag in found.items():
            module.training = flag


def _outputs(result: Any) -> list[Tensor]:
    """The tensors a forward pass returned, also inside containers; anything that could hide one is refused."""
    if isinstance(result, Tensor):
        return [result]
    if result is None or isinstance(result, (str, bytes, int, float, complex, torch.Size, torch.dtype, torch.device)):
        return []
    if isinstance(result, Mapping):
        return [t for item in result.values() for t in _outputs(item)]
    if isinstance(result, (list, tuple, set, frozenset)):
        return [t for item in result for t in _outputs(item)]
    if is_dataclass(result) and not isinstance(result, type):
        return [t for f in fields(result) for t in _outputs(getattr(result, f.name))]
    raise RecordError(
        f"expected tensors in tuples, lists, dicts or dataclasses as the model's output, got {type(result).__name__}, "
        "in which tensors could hide. Wrap the model in a module whose forward returns the tensors themselves."
    )


_VALUE_DEPENDENT = ("DataDependentOutputException", "DynamicOutputShapeException", "GuardOnDataDependentSymNode")


def _explain(error: Exception, module_names: Mapping[int, str]) -> str:
    """Name the line of the user's code that stopped the recording, and the way out."""
    place, module = "", ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        owner = frame.f_locals.get("self")
        if isinstance(owner, nn.Module) and id(owner) in module_names:
            module = module_names[id(owner)] or type(owner).__name__
        package = frame.f_globals.get("__name__", "").split(".")[0]
        if package not in ("torch", "pathcond", "contextlib"):
            summary = traceback.extract_stack(frame, limit=1)[0]
            source = (summary.line or "").strip()
            place = f"{summary.filename.rsplit('/', 1)[-1]}:{line}: `{source}`"
    at = f" in module '{module}'" if module else ""
    at += f", at {place}" if place else ""
    if isinstance(error, RecordError):
        return str(error)
    if type(error).__name__ in _VALUE_DEPENDENT:
        return (
            f"cannot record this model: its control flow depends on the values of a tensor{at} ({error}). Expected a "
            "forward pass whose calls depend on shapes only. Pass a submodule without that branch, or replace the "
            "branch by tensor operations such as torch.where."
        )
    return (
        f"the forward pass failed while it was recorded on fake tensors{at}: {type(error).__name__}: {error}. "
        "Check that model(example_input) runs; if it does, the code above needs real values or an operation that "
        "knows no fake tensors: pass the part of the model without it, or register a fake version of the operation."
    )
