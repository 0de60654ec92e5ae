"""Records one forward pass on fake tensors: no weight is read and nothing is computed.

A torch-function mode sees the calls a model makes; a dispatch mode below it catches what no function announced. Views
and in-place writes are followed, so that the :class:`pathcond.trace.Trace` is in single-assignment form.
"""

from __future__ import annotations

import logging
import traceback
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
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
from pathcond.errors import RecordError
from pathcond.tape import Tape
from pathcond.trace import Leaf, Ref, Trace, flatten, map_leaves

_BOXES = (list, dict, set, OrderedDict)


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
            tensors = tensors_in([args, kwargs])
            before = [t._version for t in tensors]
            refs_in = map_leaves(lambda x: Ref(self.tape.read(x)) if isinstance(x, Tensor) else x, (args, kwargs))
            result = ops.stand_in(func, args, kwargs)
            result = func(*args, **kwargs) if result is None else result
            changed = _written(tensors, before)
            if changed or flatten(result):
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
        tape = Tape({id(m): n for n, m in self.model.named_modules()}, self.leaves)
        functions = _Functions(tape, self.fake)
        with (
            torch.inference_mode(False),
            torch.no_grad(),
            untouched(self.model),
            in_mode(self.model, training),
            _quiet(),
        ):
            inputs = tuple(tape.read(t) for t in self.inputs)
            try:
                with torch.random.fork_rng(devices=[]), self.fake, _Kernels(functions), functions:
                    result = functional_call(self.model, self.tensors, *self.arguments)
            except Exception as error:
                raise RecordError(_explain(error, tape.module_names, mismatch(self.model, self.inputs))) from error
            outputs = tuple(tape.read(t) for t in _outputs(result))
            kept = tuple(tape.read(t) for t in self._kept(tape))
        if not outputs:
            raise RecordError(
                f"expected the forward pass to return at least one tensor, got {type(result).__name__}. "
                "Return the output tensors (tuples, lists, dicts and dataclasses of tensors are fine)."
            )
        return Trace(tuple(tape.values), tuple(tape.calls), inputs, outputs, kept)

    def _kept(self, tape: Tape) -> list[Tensor]:
        """Tensors that the pass leaves behind in the model: they may decide what the next call does."""
        found = [t for n, t in self.tensors.items() if id(t) in tape.known and not tape.is_leaf(t)]
        for module in self.model.modules():
            state = [v for k, v in vars(module).items() if k not in ("_parameters", "_buffers", "_modules")]
            found += [t for t in tensors_in(state) if isinstance(t, FakeTensor) and id(t) in tape.known]
        return found


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


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Put back, afterwards, all attributes of all submodules, what lists, dicts and sets among them hold, and tensors.

    Parameters and buffers are left out: those who run the model give it others.
    """
    found = [(m, dict(vars(m)), {k: copy(v) for k, v in vars(m).items() if type(v) in _BOXES}) for m in model.modules()]
    registered = {id(t) for t in (*model.parameters(), *model.buffers())}
    loose = {id(t): t for _, attributes, _ in found for t in tensors_in(list(attributes.values()))}
    saved = [
        (t, t._version, t.detach().clone()) for k, t in loose.items() if k not in registered and not t.is_inference()
    ]
    try:
        yield
    finally:
        for module, attributes, boxes in found:
            vars(module).clear()
            vars(module).update(attributes)
            for key, content in boxes.items():
                box = attributes[key]
                box.clear()
                box.extend(content) if isinstance(box, list) else box.update(content)
        with torch.no_grad():
            for tensor, version, content in saved:
                if tensor._version != version:
                    tensor.copy_(content)


@contextmanager
def in_mode(model: nn.Module, training: bool | None) -> Iterator[None]:
    """Set the training flag of every submodule, and put each back as found."""
    found = {module: module.training for module in model.modules()}
    try:
        if training is not None:
            for module in found:
                module.training = training
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


def _explain(error: Exception, module_names: Mapping[int, str], hint: str) -> str:
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
        f"the forward pass failed while it was recorded on fake tensors{at}: {type(error).__name__}: {error}. {hint}"
        "Check that model(example_input) runs; if it does, the code above needs real values or an operation that "
        "knows no fake tensors: pass the part of the model without it, or register a fake version of the operation."
    )
