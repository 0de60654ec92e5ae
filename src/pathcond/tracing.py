"""Record one forward pass of a model on fake tensors: no weight is read and nothing is computed.

A :class:`Trace` lists the torch functions a model called, on which values, in order. Values are numbered; a value is
made once and never changed (single-assignment form): an in-place operation makes a new value, and writes through views
become :data:`WRITE` calls. A torch-function mode sees the calls; a dispatch mode below it catches operations that no
function announced. :class:`Constants` computes the values of a trace that depend on no input.
"""

from __future__ import annotations

import gc
import hashlib
import logging
import math
import sys
import traceback
import warnings
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import FunctionType
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._decomp.decompositions import rnn_relu_input
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor, FakeTensorMode
from torch.func import functional_call
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from pathcond.checks import PathCondError, RecordError
from pathcond.inputs import LARGEST_SIZE, Sizes, as_arguments, hint_on, map_tensors, tensors_in
from pathcond.isolation import caller_device, isolated, state_of

# ---- the trace


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

    def __eq__(self, other: Any) -> bool:
        same = isinstance(other, Leaf) and (self.kind, self.name) == (other.kind, other.name)
        return same and self.tensor is other.tensor


@dataclass(frozen=True, slots=True)
class Value:
    """Shape and dtype of a value, and its origin if it is a leaf."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    leaf: Leaf | None = None


@dataclass(frozen=True)
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
        return name_of(self.fn)

    @cached_property
    def reads(self) -> tuple[int, ...]:
        """The values among its arguments."""
        return tuple(ref.id for ref in refs([*self.args, self.kwargs]))


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

    @cached_property
    def data(self) -> frozenset[int]:
        """The values that depend on an input."""
        found = set(self.inputs)
        for call in self.calls:
            if not found.isdisjoint(call.reads):
                found.update(call.outs)
        return frozenset(found)


def WRITE(base: Tensor, piece: Tensor, view: View) -> Tensor:  # noqa: N802 - a marker in traces, written as one
    """Return ``base`` with the part that ``view`` shows replaced by ``piece``."""
    places = torch.arange(base.numel(), device=base.device).reshape(base.shape)
    shown = flatten(run(view.call, lambda _: places))[view.index]
    return base.reshape(-1).index_copy(0, shown.reshape(-1), piece.expand(shown.shape).reshape(-1)).reshape(base.shape)


def refs(tree: Any) -> list[Ref]:
    """Every :class:`Ref` in the arguments of a call."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Ref)]


def flatten(tree: Any) -> list[Tensor]:
    """The tensors in nested tuples, lists and dicts, in order."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def run(call: Call, look_up: Callable[[int], Any]) -> Any:
    """Call ``call.fn`` with every :class:`Ref` replaced by ``look_up(id)``."""
    args, kwargs = tree_map(lambda leaf: look_up(leaf.id) if isinstance(leaf, Ref) else leaf, (call.args, call.kwargs))
    return call.fn(*args, **kwargs)


def signature(trace: Trace, first: int = 0) -> str:
    """A digest of the calls of a trace, from number ``first`` on: functions, arguments, and which leaves they read.

    Devices and number formats have no part in it, and of constants and inputs only their shapes.
    """
    number: dict[int, int] = {}
    digest = hashlib.sha256()

    def text(tree: Any) -> str:
        if isinstance(tree, Ref):
            value = trace.values[tree.id]
            known = number.setdefault(tree.id, len(number))
            return f"%{known}{value.shape}{(value.leaf.kind, value.leaf.name) if value.leaf else ''}"
        if isinstance(tree, View):
            return f"{tree.call.name}{text([*tree.call.args, tree.call.kwargs])}{tree.index}"
        if isinstance(tree, (list, tuple)):
            return f"({','.join(map(text, tree))})"
        if isinstance(tree, dict):
            return text([part for key, item in sorted(tree.items()) if key != "device" for part in (key, item)])
        plain = isinstance(tree, (int, float, str, slice)) or tree is None
        return repr(tree) if plain else str(getattr(tree, "tolist", lambda: type(tree).__name__)())

    for call in trace.calls[first:]:
        digest.update(f"{call.name}{text([*call.args, call.kwargs])}{text([Ref(out) for out in call.outs])};".encode())
    return digest.hexdigest()


# ---- sizes that the code of a model compares

# A size, the number made from it that was compared, with what, whether that is made from no size, and the place.
Comparison = tuple[int, float, float, bool, Any]

_KINDS = {  # of methods of numbers; conversions are to what is not tracked
    "compute": """add radd sub rsub mul rmul floordiv rfloordiv mod rmod truediv rtruediv pow rpow neg abs round floor
        ceil trunc and rand or ror xor rxor lshift rlshift rshift rrshift divmod rdivmod""",
    "compare": "lt le gt ge eq ne bool",
    "convert": "int float hash str repr format",
}


def _tracked(base: type) -> type:
    """A class of sizes of tensors and numbers made from them, which tell ``seen`` what is done with them."""

    def tracked(name: str, kind: str) -> Any:
        method = getattr(base, name)

        def call(self: Any, *others: Any) -> Any:
            if kind == "compute":
                mixed = base is int and isinstance(others[0] if others else None, float) and hasattr(float, name)
                made = getattr(float, name)(float(base(self)), *others) if mixed else method(self, *others)
                joint = self.joint or any(type(other) in _PLAIN for other in others)
                return _sized(made, self.root, self.seen, joint)
            result, frame = method(self, *others), sys._getframe(1)
            if kind == "convert" and not _is_ours(frame):
                self.seen.unseen[f"{name.strip('_')}() of a size"].append(base(self))
            elif isinstance(result, bool) and not _is_ours(frame):
                self.seen.compare(frame, result, self, *(others or (0,)))
            return result

        return call

    kinds = {f"__{name}__": kind for kind, names in _KINDS.items() for name in names.split()}
    kinds["bit_length"] = "compute"
    methods = {name: tracked(name, kind) for name, kind in kinds.items() if hasattr(base, name)}
    return type(f"Tracked_{base.__name__}", (base,), methods)


def _is_ours(frame: Any) -> bool:
    """Whether code of torch or of this library, or contextlib, which wraps both, runs in a frame, not a model's."""
    return frame.f_globals.get("__name__", "").partition(".")[0] in ("torch", "pathcond", "contextlib")


_TRACKED = {base: _tracked(base) for base in (int, float)}
_PLAIN = {kind: base for base, kind in _TRACKED.items()}


def _sized(value: Any, root: int, seen: Tape, joint: bool = False) -> Any:
    """A number made from the size ``root``, or ``joint`` ones, so that comparisons are recorded; others as they are."""
    if type(value) is tuple:  # of divmod
        return tuple(_sized(part, root, seen, joint) for part in value)
    kind = _TRACKED.get(type(value))
    if kind is None:
        return value
    made = kind(value)
    made.root, made.seen, made.joint = root, seen, joint
    return made


def plain_number(x: Any) -> Any:
    """The number that one made from a size stands for; anything else as it is."""
    base = _PLAIN.get(type(x))
    return x if base is None else base(x)


def _watched(result: Any, tensor: Any, seen: Tape) -> Any:
    """Sizes that a query returned, or a number made from those of a tensor, so that comparisons are recorded."""
    if isinstance(result, torch.Size):
        return torch.Size([_sized(n, n, seen) for n in result])
    if type(result) is not int or not isinstance(tensor, Tensor | None):
        return result
    with torch._C.DisableTorchFunctionSubclass():
        return _sized(result, result if tensor is None or not tensor.ndim else tensor.shape[0], seen)


# ---- properties of torch functions

_METHODS = """dim ndimension _is_view is_inference is_conj is_neg is_floating_point is_complex element_size get_device
    data_ptr"""
_ATTRIBUTES = """dtype device ndim layout is_cuda is_sparse is_quantized requires_grad is_leaf _version grad_fn is_meta
    is_mkldnn is_nested"""
_OF_SIZES = "size numel nelement stride storage_offset is_contiguous __len__ untyped_storage"
# Calls that read no values, and are not recorded: those that depend on sizes, and others.
_SIZED = {Tensor.shape.__get__, *(getattr(Tensor, name) for name in _OF_SIZES.split())}  # pyright: ignore
_QUERIES = _SIZED | {getattr(Tensor, name) for name in _METHODS.split()}
# Those whose result is a plain number for the model's code, so that comparisons with it are not seen.
_UNSEEN = {Tensor.__len__: "len()", Tensor.stride: "stride()", Tensor.untyped_storage: "storage"}
_QUERIES |= {getattr(Tensor, name).__get__ for name in _ATTRIBUTES.split()}

_SPLITS = {torch.split, Tensor.split, torch.split_with_sizes, Tensor.split_with_sizes}
_NORMS = {F.batch_norm, torch.batch_norm, F.instance_norm, torch.instance_norm}
_GROUPED = {f for f in (getattr(F, "grouped_mm", None), getattr(torch, "_grouped_mm", None)) if f is not None}

# Functions that read only the shape, dtype and device of their first argument, and the one that takes a shape instead.
_FILLED = ("zeros", "ones", "empty", "full")
_LIKE_ANOTHER = {getattr(torch, f"{name}_like"): getattr(torch, name) for name in (*_FILLED, "rand", "randn")}
_LIKE_ANOTHER |= {getattr(Tensor, f"new_{name}"): getattr(torch, name) for name in _FILLED}
_RESHAPED = {Tensor.expand_as: Tensor.expand, Tensor.view_as: Tensor.view, Tensor.reshape_as: Tensor.reshape}


def _composed(function: Any) -> Any:
    """A function of torch that does not announce itself, so that the functions it calls are seen instead."""
    names = {**function.__globals__, "has_torch_function": lambda _: False}
    copied = FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    copied.__kwdefaults__ = function.__kwdefaults__
    return copied


def _rnn_relu_cell(x: Tensor, h: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Any = None, b_hh: Any = None) -> Tensor:
    return F.relu(F.linear(x, w_ih, b_ih) + F.linear(h, w_hh, b_hh))


def _addmm(x: Tensor, *factors: Tensor, beta: float = 1, alpha: float = 1, **named: Tensor) -> Tensor:
    """``beta x + alpha a b`` for matrices, or batches of them, ``a`` and ``b``."""
    a, b = (*factors, *(named[name] for name in sorted(named)))
    made = a @ b if alpha == 1 else alpha * (a @ b)
    return torch.add(made, x, alpha=beta) if beta else made


def _einsum(equation: str, *operands: Any) -> Tensor:
    """A product of three or more factors as products of two, from left to right."""
    first, second, *others = flatten(operands)
    terms, _, result = equation.replace(" ", "").partition("->")
    a, b, *rest = terms.split(",")
    if not others:
        return torch.einsum(equation, first, second)
    kept = "".join(c for c in dict.fromkeys(a + b) if any(c in later for later in (*rest, result)))
    made = torch.einsum(f"{a},{b}->{kept}", first, second)
    return _einsum(f"{','.join((kept, *rest))}->{result}", made, *others)


_COMPOSED = {
    F.multi_head_attention_forward: _composed(F.multi_head_attention_forward),
    torch.rnn_relu: rnn_relu_input,
    torch.rnn_relu_cell: _rnn_relu_cell,
    **dict.fromkeys((torch.addmm, Tensor.addmm, torch.baddbmm, Tensor.baddbmm), _addmm),
}


class _Count:
    """An entry of ``tolist``, which depends on values: no more than the size of a part that ``split`` makes."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, source: Tensor) -> None:
        self.source = source

    def __bool__(self) -> bool:
        raise DataDependentOutputException("`tolist`")  # type: ignore[arg-type]

    __eq__ = __lt__ = __le__ = __gt__ = __ge__ = lambda self, other: bool(self)  # type: ignore[assignment]


_known_values = FakeTensor.tolist


def _values(tensor: FakeTensor) -> Any:
    """What ``tolist`` returns while a pass is recorded: counts, such as tokens per expert, may depend on values."""
    try:
        return _known_values(tensor)
    except DataDependentOutputException:
        if tensor.ndim != 1 or tensor.is_floating_point():
            raise
        return [_Count(tensor)] * tensor.shape[0]


def _split_by_counts(x: Tensor, sizes: list[Any], dim: int = 0) -> list[Tensor]:
    """Parts of sizes that depend on values: entries that cannot be known, as many as fit."""
    whole, parts = x.shape[dim], len(sizes)
    shares = [whole // parts + (number < whole % parts) for number in range(parts)]
    source = next(size.source for size in sizes if isinstance(size, _Count))
    return [x.index_select(dim, source[:1].expand(share).to(x.device)) for share in shares]


def _written_out(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A function made of others that have rules, for one that has none; else None."""
    if function is torch.einsum and len(flatten(args)) > 2 and "->" in args[0] and "..." not in args[0]:
        return _einsum
    if function in _SPLITS and any(isinstance(leaf, _Count) for leaf in tree_leaves((args, kwargs))):
        return _split_by_counts
    return _COMPOSED.get(function)


def _without_running(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of calls that refuse what a record needs: training on a batch of one, experts in float32.

    Also indices of true entries, whose number depends on values: those of a tensor in which all are true.
    """
    x = args[0] if args else kwargs.get("input")
    if function in _NORMS and isinstance(x, Tensor):
        return torch.empty_like(x)
    if function in _GROUPED and isinstance(x, Tensor) and (x.ndim, args[1].ndim) == (2, 3):
        return x.new_empty(x.shape[0], args[1].shape[2])
    where = function is torch.where and len(args) == 1
    if isinstance(x, FakeTensor) and (where or function in (torch.nonzero, Tensor.nonzero)):
        found = x.new_empty(x.numel(), x.ndim, dtype=torch.int64)
        return tuple(found.unbind(1)) if where or kwargs.get("as_tuple") else found
    return None


def _without_source(function: Any, arguments: Any, result: Any) -> tuple[Any, Any]:
    """A call that takes shape or dtype from a tensor, rewritten as a call that is given them: it reads no values."""
    args, kwargs = arguments
    if function in _RESHAPED:
        return _RESHAPED[function], ((args[0], tuple(result.shape)), {})
    if function in (Tensor.to, Tensor.type_as) and len(refs([*args, kwargs])) > 1:
        return Tensor.to, ((args[0],), {"dtype": result.dtype, "device": result.device})
    if function not in _LIKE_ANOTHER:
        return function, arguments
    filled = _LIKE_ANOTHER[function]
    fill = [kwargs.get("fill_value", args[-1])] if filled is torch.full else []
    return filled, ((tuple(result.shape), *fill), {"dtype": result.dtype, "device": result.device})


def _may_write(function: Any, kwargs: Any) -> bool:
    """Whether a call may, by its name, write an argument or make a tensor on its memory without torch saying so."""
    name = name_of(function)
    in_place = (name.endswith("_") and not name.endswith("__")) or name.startswith("__i") or kwargs.get("inplace")
    return bool(in_place) or "out" in kwargs or name in ("__setitem__", "detach", "Tensor.data")


def is_random(function: Any) -> bool:
    """Whether a function draws random numbers, by its name."""
    words = ("rand", "bernoulli", "multinomial", "normal", "uniform", "poisson", "dropout", "exponential", "geometric")
    return any(word in name_of(function) for word in words)


def name_of(function: Any) -> str:
    """A readable name: ``relu6``, ``Tensor.T``, ``aten.sin``."""
    if getattr(function, "__name__", "") == "__get__":
        return "Tensor." + getattr(function.__self__, "__name__", "attribute")
    return getattr(function, "__name__", None) or str(function)


_PLAIN_OUTPUTS = (
    str, bytes, int, float, complex, type, type(None), nn.Module, torch.dtype, torch.device, torch.layout
)  # fmt: skip

# ---- recording


@dataclass
class Known:
    """What the recorder knows of one tensor object: its value, and of which other one it is which view."""

    tensor: Tensor
    value: int
    view: tuple[Known, View] | None = None
    epoch: int = 0


class Tape(TorchFunctionMode):
    """Records every torch function a model calls: values and calls so far; follows views and in-place writes."""

    def __init__(self, fake: FakeTensorMode, module_names: Mapping[int, str], leaves: Mapping[int, Leaf]) -> None:
        super().__init__()
        self.fake = fake
        self.module_names = module_names
        self.leaves = leaves
        self.values: list[Value] = []
        self.calls: list[Call] = []
        self.known: dict[int, Known] = {}  # by tensor object
        self.epochs: dict[int, int] = {}  # number of writes to each storage
        self.outside: list[Tensor] = []  # written views of tensors that are no fake ones
        self.fakes: dict[int, tuple[Tensor, Tensor]] = {}
        self.depth = 0
        self.sized = False  # whether the size of a tensor was asked for
        self.comparisons: list[Comparison] = []
        self.unseen: dict[str, list[Any]] = defaultdict(list)  # what the model's code learned of sizes as plain numbers
        self.turns: Counter[Any] = Counter()  # calls by the place in the model's code
        self.failed: dict[str, None] = {}  # calls that raised an error
        self.decisions: list[tuple[Any, bool, Any]] = []  # comparisons of sizes: place, outcome, what was compared

    def new_value(self, tensor: Tensor | Value, leaf: Leaf | None = None) -> int:
        """Number a new value, of the shape of a tensor or of another value."""
        self.values.append(Value(tuple(tensor.shape), tensor.dtype, leaf))
        return len(self.values) - 1

    def read(self, tensor: Tensor) -> int:
        """The value ``tensor`` holds now; a view whose base changed meanwhile is taken again."""
        entry = self.known.get(id(tensor)) or self.adopt(tensor, tensor)
        if entry.view is not None and entry.epoch < self._epoch(tensor):
            parent, view = entry.view
            base, old = self.read(parent.tensor), view.call
            outs = tuple(self.new_value(self.values[v]) for v in old.outs)
            stale = Ref(old.reads[0])
            args, kwargs = tree_map(lambda leaf: Ref(base) if leaf == stale else leaf, (old.args, old.kwargs))
            call = Call(old.fn, args, kwargs, outs, old.where)
            self.calls.append(call)
            entry.value, entry.view = outs[view.index], (parent, View(call, view.index))
        entry.epoch = self._epoch(tensor)
        return entry.value

    def adopt(self, fake: Tensor, tensor: Tensor) -> Known:
        """Read a fake copy as the real tensor it stands for."""
        known, leaf = self.known.get(id(tensor)), self.leaves.get(id(tensor), Leaf("const", tensor=tensor))
        if leaf.kind == "const" and not isinstance(tensor, FakeTensor):
            try:
                tensor.untyped_storage().data_ptr()
            except RuntimeError as error:  # memory of a fake tensor, whose origin is lost
                raise RuntimeError("a tensor came through DLPack") from error
        value = known.value if known else self.new_value(fake, leaf)
        return self.known.setdefault(id(fake), Known(fake, value, epoch=self._epoch(fake)))

    def is_leaf(self, tensor: Tensor) -> bool:
        """Whether a known tensor still holds what it held before the pass."""
        return self.values[self.known[id(tensor)].value].leaf is not None

    def _epoch(self, tensor: Tensor) -> int:
        return self.epochs.get(tensor.untyped_storage()._cdata, 0)

    def add(self, fn: Any, arguments: Any, result: Any, read: Sequence[Tensor], changed: Sequence[Tensor]) -> None:
        """Record a call with ``arguments`` as :class:`Ref` trees, that read some tensors and changed some of them."""
        returned = [t for t in flatten(result) if not any(t is c for c in changed)]
        outs = tuple(self.new_value(t) for t in (*returned, *changed))
        args, kwargs = arguments
        call = Call(fn, args, kwargs, outs, module_at_work(self.module_names), bool(changed))
        self.calls.append(call)
        storages = {t.untyped_storage()._cdata: id(t) for t in reversed(read)}
        for index, tensor in enumerate(returned):
            parent = storages.get(tensor.untyped_storage()._cdata)
            if id(tensor) in self.known and parent is not None and self.known[id(tensor)].tensor is tensor:
                if not self.is_leaf(tensor):  # a leaf, such as a parameter cast to its own dtype, stays what it is
                    self.known[id(tensor)].value = outs[index]  # returned its own argument, unchanged
                continue
            view = (self.known[parent], View(call, index)) if parent is not None else None
            self.known[id(tensor)] = Known(tensor, outs[index], view, self._epoch(tensor))
        for tensor, value in zip(changed, outs[len(returned) :], strict=True):
            self._write(tensor, value)

    def _write(self, tensor: Tensor, value: int) -> None:
        """``tensor`` now holds ``value``: hand the change on to the tensors it is a view of."""
        storage = tensor.untyped_storage()._cdata
        self.epochs[storage] = self.epochs.get(storage, 0) + 1
        entry = self.known[id(tensor)]
        entry.value, entry.epoch = value, self.epochs[storage]
        while entry.view is not None:
            base, view = entry.view
            out = self.new_value(self.values[base.value])
            args = (Ref(base.value), Ref(entry.value), view)
            self.calls.append(Call(WRITE, args, {}, (out,), module_at_work(self.module_names)))
            base.value, base.epoch = out, self.epochs[storage]
            entry = base
        if not isinstance(entry.tensor._base, FakeTensor | None):
            self.outside.append(tensor)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a torch function and record it, unless it is called by another, or reads no values."""
        kwargs = kwargs or {}
        if self.depth:
            return func(*args, **kwargs)
        if func in _QUERIES:
            result = func(*args, **kwargs)
            self.sized |= func in _SIZED
            asks = _caller("pathcond.", "torch._tensor", "torch.overrides") if func in _UNSEEN else None
            if asks and not asks.f_globals.get("__name__", "").startswith("torch."):
                with torch._C.DisableTorchFunctionSubclass():
                    self.unseen[_UNSEEN[func]].append(tuple(args[0].shape))
            source = None if func is Tensor.size else args[0]
            return _watched(result, source, self) if func in _SIZED else result
        if (written_out := _written_out(func, args, kwargs)) is not None:
            with self, patch.object(self, "turns", Counter()):  # calls that are not the model's own
                return written_out(*args, **kwargs)
        if func == Tensor.data.__set__:  # pyright: ignore
            if args[0].shape != args[1].shape:
                raise RuntimeError("`data` is replaced by a tensor of another shape")
            return self.__torch_function__(Tensor.copy_, types, args)
        if func is Tensor.__dlpack__:
            raise RuntimeError("a tensor goes through DLPack")
        place = _caller("pathcond.", "torch.")
        self.turns[place and (place.f_code, place.f_lasti)] += 1
        self.depth += 1
        try:
            may_write = _may_write(func, kwargs)
            if self.fakes or may_write:
                args, kwargs = tree_map(lambda x: self._fake_copy(x, may_write), (args, kwargs))
            tensors = flatten([kwargs.get("out"), args, kwargs])  # the target first
            before = [t._version for t in tensors]
            made_of = args[0] if args else kwargs.get("data")
            if func in (torch.tensor, torch.as_tensor) and type(made_of) in _PLAIN:
                self.unseen[f"{name_of(func)}() of a size"].append(plain_number(made_of))
            refs_in = tree_map(self._recorded, (args, kwargs))
            result = _without_running(func, args, kwargs)
            result = func(*args, **kwargs) if result is None else result
            name = name_of(func)
            lists = name.startswith("_foreach") and name.endswith("_")  # the versions of fake tensors do not tell
            changed = flatten(args[:1]) if lists else _written(tensors, before)
            if isinstance(result, tuple | list):
                self.unseen["number of parts"].append(len(result))
            if changed or flatten(result):
                func, refs_in = _without_source(func, refs_in, result)
                self.add(func, refs_in, result, tensors, changed)
            else:  # a query, such as torch.numel
                self.sized, result = True, _watched(result, next(iter(tensors), None), self)
            return result
        except Exception:
            self.failed[name_of(func)] = None
            raise
        finally:
            self.depth -= 1

    def compare(self, frame: Any, outcome: bool, made: Any, other: Any) -> None:
        """Note a comparison of a number made from a size, in the code of a frame, and how it came out."""
        number, limit = plain_number(made), plain_number(other)
        place = (frame.f_code, frame.f_lasti, frame.f_lineno)
        self.comparisons.append((made.root, number, limit, type(other) not in _PLAIN, place))
        if abs(limit) <= LARGEST_SIZE:
            # Sizes that are compared with one another, as in assertions, count only if they differ by other amounts.
            changes = number - limit if made.joint or type(other) in _PLAIN else (made.root, number)
            self.decisions.append((place, outcome, changes))

    def _recorded(self, x: Any) -> Any:
        if isinstance(x, torch.Size):
            return tuple(map(int, x))
        return Ref(self.read(x)) if isinstance(x, Tensor) else plain_number(x)

    def _fake_copy(self, x: Any, make: bool) -> Any:
        """The fake copy of a real tensor, such as an unregistered one of the model, which a call may write."""
        if make and isinstance(x, Tensor) and not isinstance(x, FakeTensor) and id(x) not in self.fakes:
            self.fakes[id(x)] = x, _fake(self.fake, x)
            self.adopt(self.fakes[id(x)][1], x)
        return self.fakes.get(id(x), (x, x))[1]


def _frames() -> Iterator[Any]:
    """The frames of the Python stack, the innermost first; traceback.walk_stack, which counts lines, is slower."""
    frame = sys._getframe(2)
    while frame is not None:
        yield frame
        frame = frame.f_back


def module_at_work(names: Mapping[int, str]) -> str:
    """Name of the innermost module whose code is running, read off the Python stack."""
    owners = (frame.f_locals.get("self") for frame in _frames())
    return next((names[id(o)] for o in owners if isinstance(o, nn.Module) and id(o) in names), "")


def _caller(*skipped: str) -> Any:
    """The innermost frame whose module is none of these and in none of these packages."""
    return next((f for f in _frames() if not f.f_globals.get("__name__", "").startswith(skipped)), None)


class _Kernels(TorchDispatchMode):
    """Hands the operations that no torch function announced to the recorder, so that none goes unseen."""

    def __init__(self, tape: Tape) -> None:
        super().__init__()
        self.tape = tape

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.tape.__torch_function__(func, types, args, kwargs)


def _written(tensors: Sequence[Tensor], versions: Sequence[int]) -> list[Tensor]:
    """The tensors a call wrote; tensors on one memory have one version counter, and the first is the one written."""
    moved = (t for t, version in zip(tensors, versions, strict=True) if t._version != version)
    first: dict[int, Tensor] = {}
    for tensor in moved:
        first.setdefault(tensor.untyped_storage()._cdata, tensor)
    return list(first.values())


def record(model: nn.Module, example_input: Any, training: bool | None = None) -> Trace:
    """The first call of ``model`` in one mode; see :class:`Recorder`."""
    return Recorder(model).record(example_input, training)[0]


class Recorder:
    """Records forward passes of a model on fake copies of its tensors; it is left as found, also when a pass raises.

    Attributes:
        comparisons: of sizes, made by the code of the model.
        sized: whether a pass asked for the size of a tensor.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.fake = FakeTensorMode(allow_non_fake_inputs=True)
        self.leaves: dict[int, Leaf] = {}
        self.tensors: dict[str, Tensor] = {}
        self.comparisons: list[Comparison] = []
        self.draws = self.sized = self.counts = self.untried = False
        self.stored, self.failed, self.classes = dict[str, None](), dict[str, None](), dict[str, None]()
        self.unseen: dict[tuple[Any, bool | None], set[Any]] = defaultdict(set)
        self.decisions: dict[Any, set[Any]] = defaultdict(set)  # by place: number in a pass, outcome, what was compared
        self.usual: set[Any] = set()  # places of decisions that the example reaches in its own sizes
        self.home = next((p.device for p in model.parameters() if not p.is_meta), torch.device("cpu"))
        for kind, named in (("param", model.named_parameters()), ("buffer", model.named_buffers())):
            for name, tensor in named:
                self.tensors[name] = _fake(self.fake, tensor)
                if type(tensor) not in (Tensor, nn.Parameter, FakeTensor):
                    self.classes[f"'{name}' is a {type(tensor).__name__}"] = None
                self.leaves[id(tensor)] = self.leaves[id(self.tensors[name])] = Leaf(kind, name)

    def record(self, example_input: Any, training: bool | None = None, sizes: Sizes | None = None) -> list[Trace]:
        """Record one pass in one mode (None: as it is), on an input with other sizes of some axes.

        If the pass changes attributes of the model or variables that its code names, a second call follows. Where it
        makes other calls than the first, a second trace has both.

        Raises:
            RecordError: the pass raised, or its control flow depends on values; the message names the line of code.
        """
        arguments, fakes = self._fake_inputs(example_input, sizes or {})
        leaves = self.leaves | {id(t): Leaf("input", str(i)) for i, t in enumerate(fakes)}
        tape = Tape(self.fake, {id(m): n for n, m in self.model.named_modules()}, leaves)
        try:
            traces = self._pass(tape, arguments, fakes, training)
            self.usual.update(place for place, *_ in tape.decisions if not sizes)
        except Exception as error:
            self._replace_fakes(tape)
            *_, (frame, _) = traceback.walk_tb(error.__traceback__)
            for place, outcome, _ in [] if _is_ours(frame) else tape.decisions[-1:]:  # an assertion of the model
                self.decisions[place].add((0, outcome, None))
            raise RecordError(explain(error, self.model, hint_on(error, self.model, example_input))) from error
        for call in self._replace_fakes(tape):
            self.stored.setdefault(f"`{call.name}` at '{call.where or 'the model'}'" if call else "a call")
        return traces

    def doubts(self) -> list[str]:
        """What the passes did that makes the next call another function of the weights."""
        doubts = {
            f"the forward pass stores the result of {', '.join([*self.stored][:3])} outside of the model (a class, a "
            "global, a cache): a tensor without values may be there until it is stored again. If later calls read it, "
            "the function may change": bool(self.stored),
            "the forward pass draws random numbers of Python or NumPy: where they choose between branches, only the "
            "branches taken were recorded": self.draws,
            "the forward pass changes numbers that it keeps, such as a counter: where they choose between branches, "
            "only those of the first two calls were recorded": self.counts,
            f"the forward pass handles an error of {', '.join([*self.failed][:3])}, which real values may not raise: "
            "another branch may be taken then": bool(self.failed),
            f"parameter {', '.join([*self.classes][:3])}: code that asks for the class of a parameter, and operations "
            "that the class changes, were not recorded": bool(self.classes),
        }
        return [doubt for doubt, found in doubts.items() if found]

    def unseen_sizes(self) -> list[str]:
        """Questions for sizes whose answers changed with the input's size, and comparisons that no size decided.

        These had one outcome in all passes, though the sizes were not the same in all.
        """
        found = [name for (name, _), passes in self.unseen.items() if len(passes) > 1]
        texts = [
            f"asks for the {n} of a tensor, which changes" if isinstance(n, str) else "has a loop whose length changes"
            for n in found
        ]
        texts += [
            f"compares a number made from a size ({place[0].co_filename.rsplit('/', 1)[-1]}:{place[2]}), which changes"
            for place, seen in self.decisions.items()
            if len({outcome for _, outcome, _ in seen}) == 1
            and (place not in self.usual or len(seen) > len({number for number, *_ in seen}))
        ]
        texts += ["compares more numbers than were tried"] * self.untried
        return [
            f"the forward pass {text} with the size of the input: where it chooses between branches, only the "
            "branches taken were recorded. Give inputs of every size that matters as pathcond.Inputs(...)"
            for text in dict.fromkeys(texts)
        ]

    def _pass(self, tape: Tape, arguments: Any, fakes: list[Tensor], training: bool | None) -> list[Trace]:
        with (
            torch.inference_mode(False),
            isolated(self.model, training, fake=True) as state,
            patch.object(logging.getLogger("torch._subclasses.fake_tensor"), "disabled", True),  # repeats errors
            warnings.catch_warnings(),
        ):
            warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor")
            for module in self.model.modules():
                if isinstance(module, nn.modules.batchnorm._NormBase) and module.momentum is None:
                    module.momentum = 0.1  # without one it would read the number of batches seen
            drawn = state.states()
            inputs = tuple(tape.read(t) for t in fakes)
            result = self._call(tape, arguments)
            outputs = tuple(tape.read(t) for t in outputs_in(result))
            asked = {**{name: tuple(seen) for name, seen in tape.unseen.items()}, **tape.turns}
            changed = bool(state.changes())
            kept = tuple(tape.read(t) for t in self._kept(tape, changed))
            traces = [Trace(tuple(tape.values), tuple(tape.calls), inputs, outputs)]
            if changed or kept:
                numbers, first = state.numbers(), len(tape.calls)
                outputs += tuple(tape.read(t) for t in outputs_in(self._call(tape, arguments)))
                self.counts |= numbers != state.numbers()
                both = Trace(tuple(tape.values), tuple(tape.calls), inputs, outputs)
                made = {*kept, *(out for call in both.calls[:first] for out in call.outs)}
                reread = made.intersection(value for call in both.calls[first:] for value in call.reads)
                differs = signature(traces[0]) != signature(both, first)
                traces += [both] if differs else []
                traces = [replace(t, kept=(*reread.union(both.data.intersection(kept)),)) for t in traces]
            self.draws |= drawn != state.states()
            self.sized |= tape.sized
            self.failed |= tape.failed
            self.comparisons += tape.comparisons
            turns: Counter[Any] = Counter()
            for place, outcome, compared in tape.decisions:
                turns[place] += 1
                self.decisions[place].add((turns[place], outcome, compared))
            for name, seen in asked.items():
                self.unseen[name, training].add(seen)
        if not outputs:
            raise RecordError(
                f"expected the forward pass to return at least one tensor, got {type(result).__name__}. "
                "Return the output tensors (tuples, lists, dicts and dataclasses of tensors are fine)."
            )
        return traces

    def _fake_inputs(self, example_input: Any, sizes: Sizes) -> tuple[Any, list[Tensor]]:
        """The arguments of a call with fake tensors in them, some axes in other sizes; and these tensors."""
        args = as_arguments(example_input)
        given = tensors_in(args)
        if any(t.layout != torch.strided for t in given):
            raise PathCondError("expected a dense example input, got a sparse one. Use to_dense().")
        swap = {
            id(t): _fake(self.fake, t, self.home, {k: n for (j, k), n in sizes.items() if i == j})
            for i, t in enumerate(given)
        }
        return map_tensors(lambda x: swap[id(x)], args), [swap[id(t)] for t in given]

    def _call(self, tape: Tape, arguments: Any) -> Any:
        counts = patch.object(FakeTensor, "tolist", _values)
        with caller_device(), counts, self.fake, _Kernels(tape), tape:
            return functional_call(self.model, self.tensors, *arguments)

    def _replace_fakes(self, tape: Tape) -> list[Call | None]:
        """Turn fake tensors that outlive a pass, such as cached tables, into real ones; return the others' calls."""
        known = [k for k in tape.known.values() if isinstance(k.tensor, FakeTensor) and id(k.tensor) not in tape.leaves]
        made = [(weakref.ref(k.tensor), k.value) for k in known]
        for held in (known, tape.known, tape.fakes, tape.outside):
            held.clear()
        if any(ref() is not None for ref, _ in made):
            gc.collect()
        constants, lost = Constants(tape, self.model), []
        for fake, value in [(fake, value) for ref, value in made if (fake := ref()) is not None]:
            try:
                real = constants.get(value)
                _become(fake, real.detach()) if real is not None else lost.append(constants.maker(value))
            except Exception:  # noqa: BLE001 - whatever fails, it stays fake
                lost.append(constants.maker(value))
        return lost

    def _kept(self, tape: Tape, changed: bool) -> list[Tensor]:
        """Tensors that the pass leaves behind: the next call may depend on them. BatchNorm's counters are not.

        They are in the model's attributes, or were written in place, wherever they are.
        """
        written = [*(fake for _, fake in tape.fakes.values()), *tape.outside]
        held = [t for t in state_of(self.model).tensors if isinstance(t, FakeTensor)] if changed else []
        own = [t for name, t in self.tensors.items() if not name.endswith("num_batches_tracked")]
        return [t for t in (*own, *held, *written) if id(t) in tape.known and not tape.is_leaf(t)]


def _become(fake: Tensor, real: Tensor) -> None:
    """As torch.utils.swap_tensors, which refuses tensors with weak references; torch keeps some to fake tensors."""
    fake.__class__, real.__class__ = real.__class__, fake.__class__
    vars(fake).clear()
    vars(fake).update(vars(real))
    torch._C._swap_tensor_impl(fake, real)


def _fake(
    mode: FakeTensorMode, tensor: Tensor, home: torch.device | None = None, sizes: Mapping[int, int] | None = None
) -> Tensor:
    """A fake tensor of the same shape, strides, dtype and device; a parameter stays one.

    For a tensor on the meta device the device is ``home``. Some axes may have other ``sizes``.
    """
    device = home or torch.device("cpu") if tensor.is_meta else tensor.device
    with torch.inference_mode(False), torch.no_grad():
        meta = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
        if sizes:
            meta = meta.new_empty([sizes.get(axis, n) for axis, n in enumerate(tensor.shape)])
        made = FakeTensor(mode, meta, device).requires_grad_(tensor.requires_grad)
    vars(made).update(vars(tensor) | vars(made))  # attributes of the user's
    made._is_param = isinstance(tensor, nn.Parameter)  # type: ignore[attr-defined]
    return made


def outputs_in(result: Any) -> list[Tensor]:
    """The tensors a forward pass returned: in containers, in dataclasses, and in the attributes of other objects."""

    def refuse(item: Any) -> None:
        if not isinstance(item, _PLAIN_OUTPUTS):
            raise RecordError(
                f"expected tensors in containers or objects with attributes as the model's output, got "
                f"{type(item).__name__}, in which tensors could hide. Wrap the model in a module whose forward returns "
                "the tensors themselves."
            )

    return tensors_in(result, math.inf, refuse)


# ---- errors while recording

_VALUE_DEPENDENT = ("DataDependentOutputException", "DynamicOutputShapeException", "GuardOnDataDependentSymNode")
_ADVICE = {
    "Inference tensors do not track": "The forward pass enters torch.inference_mode; let it use torch.no_grad instead.",
    "does not require grad": "The forward pass takes derivatives, which are not recorded; pass the part without.",
    "BatchedTensorImpl": "torch.vmap is not recorded; write that part for batches, or pass the model without it.",
    "DLPack": "What DLPack hands on is not followed; hand on the tensor itself, or pass the model without that part.",
    "HigherOrderOperator": "torch.cond and similar operators are not recorded; pass the model without that part.",
}
_OTHERWISE = (
    "Check that model(example_input) runs; if it does, the code above needs real values or an operation that knows no "
    "fake tensors: pass the part of the model without it, or register a fake version of the operation."
)


def place_of(error: Exception, model: nn.Module) -> str:
    """The module and the line of the user's code where an error was raised, in words."""
    names = {id(module): name for name, module in model.named_modules()}
    place, module = "", ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        owner = frame.f_locals.get("self")
        if isinstance(owner, nn.Module) and id(owner) in names:
            module = names[id(owner)] or type(owner).__name__
        if not _is_ours(frame):
            summary = traceback.extract_stack(frame, limit=1)[0]
            place = f"{summary.filename.rsplit('/', 1)[-1]}:{line}: `{(summary.line or '').strip()}`"
    return (f" in module '{module}'" if module else "") + (f", at {place}" if place else "")


def explain(error: Exception, model: nn.Module, hint: str) -> str:
    """Name the line of the user's code that stopped the recording, and the way out."""
    if isinstance(error, RecordError):
        return str(error)
    at = place_of(error, model)
    if type(error).__name__ in _VALUE_DEPENDENT:
        return (
            f"cannot record this model: its control flow depends on the values of a tensor{at} ({error}). Expected a "
            "forward pass whose calls depend on shapes only. Pass a submodule without that branch, or replace the "
            "branch by tensor operations such as torch.where."
        )
    advice = next((advice for words, advice in _ADVICE.items() if words in str(error)), None)
    return (
        f"the forward pass failed while it was recorded on fake tensors{at}: {type(error).__name__}: {error}. {hint}"
        + (advice or ("" if "holds no tensor" in hint else _OTHERWISE))
    )


# ---- values that depend on no input


class Constants:
    """Computes, when asked, the values of a trace that no input reaches, from the model's present tensors."""

    def __init__(self, trace: Trace | Tape, model: nn.Module) -> None:
        self._values = trace.values
        self._tensors = dict(model.named_parameters()) | dict(model.named_buffers())
        self._makers = {out: call for call in trace.calls for out in call.outs}
        self._cache: dict[int, Tensor | None] = {}

    def maker(self, value: int) -> Call | None:
        """The call that made a value, None for a leaf."""
        return self._makers.get(value)

    def is_parameter(self, value: int) -> bool:
        """Whether a value is a parameter itself."""
        leaf = self._values[value].leaf
        return leaf is not None and leaf.kind == "param"

    def made_from_parameters(self, value: int) -> bool:
        """Whether a parameter went into a value."""
        return any(map(self.is_parameter, self._sources(value)))

    def random(self, value: int) -> bool:
        """Whether random numbers went into a value, so that it differs from call to call."""
        return any((call := self.maker(source)) and is_random(call.fn) for source in self._sources(value))

    def _sources(self, value: int) -> set[int]:
        """A value, and all that it is made from."""
        found, pending = {value}, [value]
        while pending:
            call = self.maker(pending.pop())
            more = set(call.reads if call else ()) - found
            found |= more
            pending += more
        return found

    def know(self, value: int, tensor: Tensor) -> None:
        """Set the tensor of a value, such as an input of indices."""
        self._cache[value] = tensor

    def get(self, value: int) -> Tensor | None:
        """The tensor, or None if an input reaches the value."""
        if value not in self._cache:
            for source in sorted(self._sources(value)):  # each after those that it is made from
                if source not in self._cache:
                    self._compute(source)
                if self._cache[source] is None:
                    self._cache[value] = None
                    break
        return self._cache[value]

    def _compute(self, value: int) -> None:
        """Set the tensor of a leaf, or all that a call returns and writes."""
        call, leaf = self.maker(value), self._values[value].leaf
        if call is None:
            tensor = None if leaf is None or leaf.kind == "input" else self._tensors.get(leaf.name, leaf.tensor)
            self._cache[value] = None if isinstance(tensor, FakeTensor | None) or tensor.is_meta else tensor.detach()
            return
        self._cache |= dict.fromkeys(call.outs)
        inputs = {r: tensor for r in call.reads if (tensor := self._cache[r]) is not None}
        if call.mutates or _may_write(call.fn, call.kwargs):
            inputs = {r: tensor.clone() for r, tensor in inputs.items()}
        cuda = sorted({t.device.index for t in inputs.values() if t.is_cuda})
        with torch.no_grad(), torch.random.fork_rng(devices=cuda), caller_device():
            results = flatten(run(call, inputs.__getitem__))
        if call.mutates and call.fn is not WRITE:
            results = [*results, *inputs.values()][: len(call.outs)]
        shapes = [self._values[out].shape for out in call.outs[: len(results)]]
        if [tuple(t.shape) for t in results] == shapes:  # not so for `nonzero`, recorded as if all entries were true
            self._cache |= dict(zip(call.outs, results, strict=False))
