"""Records one forward pass on fake tensors: no weight is read and nothing is computed.

A torch-function mode sees the calls a model makes; a dispatch mode below it catches what no function announced. Views
and in-place writes are followed, so that the :class:`pathcond.trace.Trace` is in single-assignment form.
"""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.func import functional_call
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from pathcond import ops
from pathcond.checks import check_dense, mismatch
from pathcond.constants import Constants
from pathcond.device import as_asked
from pathcond.errors import RecordError
from pathcond.explain import explain
from pathcond.intact import held_tensors, in_mode, same_random, untouched
from pathcond.tape import Known, Tape
from pathcond.trace import Leaf, Ref, Trace, flatten, map_leaves


class _Functions(TorchFunctionMode):
    """Records every torch function a model calls."""

    def __init__(self, tape: Tape, fake: FakeTensorMode) -> None:
        super().__init__()
        self.tape = tape
        self.fake = fake
        self.depth = 0
        self.twins: dict[int, tuple[Tensor, Tensor]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.call(func, args, kwargs or {})

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        if self.depth or func in ops.QUERIES:
            return func(*args, **kwargs)
        self.depth += 1
        try:
            if self.twins or ops.writes(func, kwargs):
                args, kwargs = map_leaves(lambda x: self._twin(x, func, kwargs), (args, kwargs))
            tensors = tensors_in([kwargs.get("out"), args, kwargs])  # the target first
            before = [t._version for t in tensors]
            refs_in = map_leaves(lambda x: Ref(self.tape.read(x)) if isinstance(x, Tensor) else x, (args, kwargs))
            result = ops.stand_in(func, args, kwargs)
            result = func(*args, **kwargs) if result is None else result
            changed = _written(tensors, before)
            if changed or flatten(result):
                func, refs_in = ops.without_model(func, refs_in, result)
                self.tape.add(func, refs_in, result, tensors, changed)
            return result
        finally:
            self.depth -= 1

    def _twin(self, x: Any, func: Any, kwargs: Any) -> Any:
        """A real tensor that may be written, one the model keeps unregistered, is written in a fake copy."""
        if not isinstance(x, Tensor) or isinstance(x, FakeTensor):
            return x
        if id(x) not in self.twins:
            if not ops.writes(func, kwargs):
                return x
            twin = _fake(self.fake, x)
            self.twins[id(x)] = (x, twin)
            self.tape.adopt(twin, x)
        return self.twins[id(x)][1]


class _Kernels(TorchDispatchMode):
    """Hands the operations that no torch function announced to the recorder, so that none goes unseen."""

    def __init__(self, functions: _Functions) -> None:
        super().__init__()
        self.functions = functions

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.functions.call(func, args, kwargs or {})


def tensors_in(tree: Any) -> list[Tensor]:
    """Every tensor in nested tuples, lists and dicts."""
    if isinstance(tree, Tensor):
        return [tree]
    if isinstance(tree, (list, tuple)):
        return [t for item in tree for t in tensors_in(item)]
    if isinstance(tree, dict):
        return [t for item in tree.values() for t in tensors_in(item)]
    return []


def _written(tensors: Sequence[Tensor], versions: Sequence[int]) -> list[Tensor]:
    """The tensors a call wrote: of those on one memory, whose versions move together, the first is its target."""
    moved = (t for t, version in zip(tensors, versions, strict=True) if t._version != version)
    first: dict[int, Tensor] = {}
    for tensor in moved:
        first.setdefault(tensor.untyped_storage()._cdata, tensor)
    return list(first.values())


def as_arguments(example_input: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments of a forward call: a tensor, a tuple or list of arguments, or a dict."""
    if isinstance(example_input, Mapping):
        return (), dict(example_input)
    if isinstance(example_input, (tuple, list)):
        return tuple(example_input), {}
    return (example_input,), {}


def record(model: nn.Module, example_input: Any, training: bool | None = None) -> Trace:
    """Record one forward pass of ``model`` in one mode; see :class:`Recorder`."""
    return Recorder(model, example_input).record(training)


class Recorder:
    """Records forward passes of a model on fake copies of its tensors, made once.

    Args:
        model: any module; it is left exactly as found, also when its forward pass raises.
        example_input: a tensor, a tuple or list of positional arguments, or a dict of keyword arguments.
    """

    def __init__(self, model: nn.Module, example_input: Any) -> None:
        self.model = model
        self.fake = FakeTensorMode(allow_non_fake_inputs=True)
        self.leaves = {id(p): Leaf("param", n) for n, p in model.named_parameters()}
        self.leaves |= {id(b): Leaf("buffer", n) for n, b in model.named_buffers()}
        self.tensors: dict[str, Tensor] = {}
        self.stored: dict[str, None] = {}
        args = as_arguments(example_input)
        check_dense(tensors_in(args))
        with torch.inference_mode(False), torch.no_grad():
            for kind, named in (("param", model.named_parameters()), ("buffer", model.named_buffers())):
                for name, tensor in named:
                    self.tensors[name] = _fake(self.fake, tensor)
                    self.leaves[id(self.tensors[name])] = Leaf(kind, name)
            swap = {id(t): _fake(self.fake, t) for t in tensors_in(args)}
        self.inputs = [swap[id(t)] for t in tensors_in(args)]
        self.leaves |= {id(t): Leaf("input", str(i)) for i, t in enumerate(self.inputs)}
        self.arguments = map_leaves(lambda x: swap[id(x)] if isinstance(x, Tensor) else x, args)

    def record(self, training: bool | None = None) -> Trace:
        """Record one pass.

        Args:
            training: the mode to record, for all submodules; ``None`` records the model as it is.

        Raises:
            RecordError: the pass raised, or its way depends on values; the message names the line of code.
        """
        trace, made = self._pass(training)
        if any(ref() is not None for ref, _ in made):
            gc.collect()
        alive = [(fake, value) for ref, value in made if (fake := ref()) is not None]
        made.clear()
        for value in self._mend(trace, alive) if alive else ():
            call = next(call for call in trace.calls if value in call.outs)
            self.stored.setdefault(f"`{call.name}` at '{call.where or 'the model'}'")
        return trace

    def note(self) -> list[str]:
        """A note if results were stored where they could not be put back."""
        if not self.stored:
            return []
        return [
            f"the forward pass stores the result of {', '.join([*self.stored][:3])} outside of the model (a class, a "
            "global, a cache): a tensor without values may be there until it is stored again. If later calls read it, "
            "the function may change"
        ]

    def _pass(self, training: bool | None) -> tuple[Trace, list[tuple[weakref.ref[Tensor], int]]]:
        """The trace, and the fake tensors made on the way with their values: none should outlive the pass."""
        tape = Tape({id(m): n for n, m in self.model.named_modules()}, self.leaves)
        functions = _Functions(tape, self.fake)
        with (
            torch.inference_mode(False),
            torch.no_grad(),
            untouched(self.model, tensors=False),
            in_mode(self.model, training),
            same_random([]),
            _quiet(),
        ):
            _plain_averages(self.model)
            inputs = tuple(tape.read(t) for t in self.inputs)
            try:
                with as_asked(), self.fake, _Kernels(functions), functions:
                    result = functional_call(self.model, self.tensors, *self.arguments)
            except Exception as error:
                made = [(known.tensor, known.value) for known in self._made(tape)]
                self._mend(Trace(tuple(tape.values), tuple(tape.calls), inputs, ()), made)
                raise RecordError(explain(error, tape.module_names, mismatch(self.model, self.inputs))) from error
            outputs = tuple(tape.read(t) for t in outputs_in(result))
            kept = tuple(tape.read(t) for t in self._kept(tape))
        if not outputs:
            raise RecordError(
                f"expected the forward pass to return at least one tensor, got {type(result).__name__}. "
                "Return the output tensors (tuples, lists, dicts and dataclasses of tensors are fine)."
            )
        made = [(weakref.ref(known.tensor), known.value) for known in self._made(tape)]
        return Trace(tuple(tape.values), tuple(tape.calls), inputs, outputs, kept), made

    def _made(self, tape: Tape) -> list[Known]:
        """The fake tensors that calls made."""
        return [k for k in tape.known.values() if isinstance(k.tensor, FakeTensor) and id(k.tensor) not in self.leaves]

    def _mend(self, trace: Trace, made: list[tuple[Tensor, int]]) -> list[int]:
        """Turn fake tensors that no input reaches, such as cached tables, into what they stand for; list the others."""
        constants, lost = Constants(trace, self.model), []
        for fake, value in made:
            try:
                real = constants.get(value)
                _become(fake, real.detach()) if real is not None else lost.append(value)
            except Exception:  # noqa: BLE001 - whatever fails, it stays fake
                lost.append(value)
        return lost

    def _kept(self, tape: Tape) -> list[Tensor]:
        """Tensors that the pass leaves behind in the model: they may decide what the next call does."""
        found = [t for n, t in self.tensors.items() if id(t) in tape.known and not tape.is_leaf(t)]
        return found + [t for t in held_tensors(self.model) if isinstance(t, FakeTensor) and id(t) in tape.known]


def _become(fake: Tensor, real: Tensor) -> None:
    """As torch.utils.swap_tensors, which minds weak references such as those torch itself keeps to fake tensors."""
    fake.__class__, real.__class__ = real.__class__, fake.__class__
    vars(fake).clear()
    vars(fake).update(vars(real))
    torch._C._swap_tensor_impl(fake, real)


def _plain_averages(model: nn.Module) -> None:
    """Let BatchNorm that averages over all batches, and reads how many there were, take a fixed weight for a pass."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._NormBase) and module.momentum is None:
            module.momentum = 0.1


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep torch from logging what a :class:`RecordError` will say."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    found = logger.disabled
    try:
        logger.disabled = True
        yield
    finally:
        logger.disabled = found


def _fake(fake: FakeTensorMode, tensor: Tensor) -> Tensor:
    """A fake tensor of the same shape, strides, dtype and device; a parameter stays one."""
    if type(tensor) not in (Tensor, nn.Parameter, nn.Buffer) or tensor.layout != torch.strided:
        return fake.from_tensor(tensor)
    made = ops.make_fake(fake, tensor, tensor.shape, tensor.stride())
    made._is_param = isinstance(tensor, nn.Parameter)  # type: ignore[attr-defined]
    return made


def outputs_in(result: Any) -> list[Tensor]:
    """The tensors a forward pass returned, also inside containers; anything that could hide one is refused."""
    if isinstance(result, Tensor):
        return [result]
    if result is None or isinstance(result, (str, bytes, int, float, complex, torch.Size, torch.dtype, torch.device)):
        return []
    if isinstance(result, Mapping):
        return [t for item in result.values() for t in outputs_in(item)]
    if isinstance(result, (list, tuple, set, frozenset)):
        return [t for item in result for t in outputs_in(item)]
    if is_dataclass(result) and not isinstance(result, type):
        return [t for f in fields(result) for t in outputs_in(getattr(result, f.name))]
    raise RecordError(
        f"expected tensors in tuples, lists, dicts or dataclasses as the model's output, got {type(result).__name__}, "
        "in which tensors could hide. Wrap the model in a module whose forward returns the tensors themselves."
    )
