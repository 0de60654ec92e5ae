"""Run a model and restore everything: attributes, mode, random state, default device, numeric settings."""

from __future__ import annotations

import pickle
import random
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial, wraps
from itertools import count
from operator import is_
from types import FunctionType, MethodType, ModuleType
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor, nn

from pathcond.inputs import tensors_in
from pathcond.progress import progress

_BOXES = (list, dict, set, deque)
_USUAL_BOXES = frozenset({*_BOXES, OrderedDict})
_SIMPLE = frozenset({int, float, bool, str, type(None), nn.Parameter, torch.dtype, torch.device, torch.Size})
_MOST = 20_000  # objects visited, besides a hundred per module: attributes may lead into a whole program


@dataclass
class _State:
    """What is reachable from a model: containers, tensors, and variables of classes, globals and closures."""

    boxes: list[Any] = field(default_factory=list)
    contents: list[list[Any]] = field(default_factory=list)  # of the boxes, when they were found
    tensors: list[Tensor] = field(default_factory=list)
    variables: list[tuple[Any, dict[str, Any]]] = field(default_factory=list)
    generators: list[Any] = field(default_factory=list)

    def changed(self) -> bool:
        """Whether any attribute, variable or container has other elements than when it was found."""
        boxes = zip(self.boxes, self.contents, strict=True)
        return any(not _same(*pair) for pair in boxes) or any(not _same(_present(*v), v[1]) for v in self.variables)

    def numbers(self) -> list[Any]:
        """The present plain values of attributes, variables and containers."""
        variables = [list(_present(*pair).values()) for pair in self.variables]
        return [x for part in (*map(_elements, self.boxes), *variables) for x in part if type(x) in (int, float, str)]

    def states(self) -> list[Any]:
        """The states of random generators and endless counters among the attributes."""
        return [repr(x) if isinstance(x, count) else pickle.dumps(x) for x in self.generators]


def _reachable(model: nn.Module, code: bool) -> _State:
    """The state of the modules' attributes; with ``code`` also that of their classes, hooks and functions."""
    found, modules = _State(), list(model.modules())
    pending: deque[Any] = deque(vars(m) for m in modules)
    most = _MOST + 100 * len(pending)
    if code:
        pending.extend(kind for m in modules for kind in type(m).__mro__)
    else:
        pending = deque({k: v for k, v in own.items() if not k.endswith("_hooks")} for own in pending)
    seen: set[int] = set()
    plain = set(_SIMPLE)  # and the module classes met so far
    while pending and len(seen) < most:
        thing = pending.popleft()
        kind = type(thing)
        if kind in plain or id(thing) in seen:
            continue
        if kind not in _USUAL_BOXES and isinstance(thing, (nn.Module, ModuleType)):
            plain.add(kind)
            continue
        seen.add(id(thing))
        if kind in _USUAL_BOXES or isinstance(thing, _BOXES):
            found.boxes.append(thing)
            pending.extend(dict.values(thing) if isinstance(thing, dict) else _elements(thing))
        elif isinstance(thing, Tensor):
            found.tensors.append(thing)
        elif isinstance(thing, tuple):
            pending.extend(thing)
        elif isinstance(thing, (type, FunctionType, MethodType, partial)):
            pending.extend(_behind(thing, found) if code else ())
        elif isinstance(thing, random.Random | count) or kind.__module__.startswith("numpy.random"):
            found.generators.append(thing)
        else:
            with suppress(Exception):  # some objects raise when they are inspected
                pending.append(vars(thing))
    return found


def _elements(box: Any) -> list[Any]:
    """Keys and values, or elements, as a container holds them: methods of a subclass may load what is not there yet."""
    if isinstance(box, dict):
        return [*dict.keys(box), *dict.values(box)]
    base: Any = next(kind for kind in _BOXES if isinstance(box, kind))
    return list(base.__iter__(box))


def _behind(thing: Any, found: _State) -> list[Any]:
    """Where code can store things: a class, the globals that a function names, its closure and its defaults."""
    if isinstance(thing, MethodType):
        return [thing.__self__, thing.__func__]
    if isinstance(thing, partial):
        return [thing.func, thing.args, thing.keywords]
    if (thing.__module__ or "").partition(".")[0] in ("builtins", "torch"):
        return []
    if isinstance(thing, type):
        found.variables.append((thing, dict(vars(thing))))
        return list(vars(thing).values())
    named = {n: thing.__globals__[n] for n in thing.__code__.co_names if n in thing.__globals__}
    cells = [(cell, _present(cell, {})) for cell in thing.__closure__ or ()]
    found.variables += [(thing.__globals__, named), *cells]
    held = [content for _, contents in cells for content in contents.values()]
    return [thing.__defaults__, *held, *(x for x in named.values() if isinstance(x, (*_BOXES, tuple, type)))]


def held_tensors(model: nn.Module) -> list[Tensor]:
    """Tensors in the modules' attributes, at any depth in containers and objects, without parameters and buffers."""
    registered = {id(t) for t in (*model.parameters(), *model.buffers())}
    return [t for t in _reachable(model, code=False).tensors if id(t) not in registered]


@contextmanager
def _untouched(model: nn.Module, tensors: bool) -> Iterator[_State]:
    """Restore, after the block, the attributes of all submodules and the containers among these attributes.

    So are the attributes of their classes, and the variables that their code names: globals and closures. Containers
    and objects further away, or that hooks and forward methods write to, are restored only if the block added or
    removed tensors there. Otherwise they are left alone, because they may be queues, logs or pools that live on.
    Parameters and buffers are not restored: callers run the model on copies of them. With ``tensors``, the values of
    other tensors among the attributes are restored too.
    """
    found = _reachable(model, code=True)
    found.contents = [_elements(box) for box in found.boxes]
    own = {id(thing) for m in model.modules() for thing in (vars(m), *vars(m).values())}
    loose = [t for t in held_tensors(model) if not t.is_inference()] if tensors else []
    saved = [(t, t.detach().clone()) for t in loose]
    try:
        yield found
    finally:
        for holder, values in found.variables:
            _restore(holder, values)
        for box, content in [p for p in zip(found.boxes, found.contents, strict=True) if not _same(*p)]:
            now = _elements(box)
            if id(box) in own or _has_tensor(now, content) or _has_tensor(content, now):
                half = len(content) // 2
                box.clear()
                if isinstance(box, dict):
                    box.update(zip(content[:half], content[half:], strict=True))
                else:
                    box.update(content) if isinstance(box, set) else box.extend(content)
        with torch.no_grad():
            for tensor, content in saved:
                if not torch.equal(tensor, content):  # writes through `data` leave no trace in its version
                    tensor.copy_(content)


def _present(holder: Any, values: dict[str, Any]) -> dict[str, Any]:
    """The present values of variables."""
    if isinstance(holder, type):
        return dict(vars(holder))
    if isinstance(holder, dict):
        return {name: holder[name] for name in values if name in holder}
    try:
        return {"": holder.cell_contents}
    except ValueError:  # a variable that has no value yet
        return {}


def _restore(holder: Any, values: dict[str, Any]) -> None:
    """Give variables the values they had; those of a class that had none are deleted."""
    now = _present(holder, values)
    for name in [name for name in {**values, **now} if now.get(name) is not values.get(name)]:
        if isinstance(holder, type):
            setattr(holder, name, values[name]) if name in values else delattr(holder, name)
        elif isinstance(holder, dict):
            holder[name] = values[name]
        elif name in values:
            holder.cell_contents = values[name]


def _same(box: Any, content: Any) -> bool:
    """Whether a container, or the variables of a mapping, have the elements they had, in their order."""
    now, then = _elements(box), _elements(content)
    return len(now) == len(then) and all(map(is_, now, then))


def _has_tensor(these: list[Any], those: list[Any]) -> bool:
    """Whether these hold a tensor, also nested, in an element that those do not have."""
    known = {id(thing) for thing in those}
    return bool(tensors_in([thing for thing in these if id(thing) not in known]))


@contextmanager
def isolated(
    model: nn.Module, training: bool | None, devices: Sequence[int] = (), seed: int | None = None, tensors: bool = True
) -> Iterator[_State]:
    """Run a model in a mode (None: as it is) without gradients, and restore it and the random state; see below.

    The cache of keys and values, which Hugging Face models return with their output, is off.
    """
    modes = [(module, "training", module.training) for module in model.modules()]
    configs = [getattr(module, "config", None) for module in model.modules()]
    caches = [(config, "use_cache", True) for config in configs if getattr(config, "use_cache", None) is True]
    try:
        for module, name, value in modes:
            setattr(module, name, value if training is None else training)
        for config, name, _ in caches:
            setattr(config, name, False)
        with torch.no_grad(), restored_random_state(devices, seed), _untouched(model, tensors) as state:
            yield state
    finally:
        for thing, name, value in (*modes, *caches):
            setattr(thing, name, value)


@contextmanager
def restored_random_state(devices: Sequence[int], seed: int | None = None) -> Iterator[None]:
    """Restore the random states of torch, Python and, if it is loaded, NumPy; start from ``seed`` if it is given."""
    numpy = sys.modules.get("numpy")
    python, arrays = random.getstate(), numpy.random.get_state() if numpy else None
    with torch.random.fork_rng(devices=devices):
        try:
            if seed is not None:
                torch.default_generator.manual_seed(seed)
                for device in devices:  # torch.manual_seed would seed all other devices too
                    torch.cuda.default_generators[device].manual_seed(seed)
                random.seed(seed)
                if numpy:
                    numpy.random.seed(seed)
            yield
        finally:
            random.setstate(python)
            if numpy:
                numpy.random.set_state(arrays)


@contextmanager
def full_precision() -> Iterator[None]:
    """Disable TF32 and nondeterministic algorithms of cuDNN; the settings are restored."""
    matmul = torch.backends.cuda.matmul.allow_tf32
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
        try:
            torch.backends.cuda.matmul.allow_tf32 = False
            yield
        finally:
            torch.backends.cuda.matmul.allow_tf32 = matmul


# ---- the default device

_asked: ContextVar[torch.device | None] = ContextVar("_asked", default=None)
_P = ParamSpec("_P")
_R = TypeVar("_R")


def on_cpu(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Run a public function with the CPU as default device, the caller's in :func:`caller_device`; with progress."""

    @wraps(function)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        device = torch.empty(0).device  # torch.get_default_device() of torch 2.6 does not see contexts
        with progress(function.__name__):
            if device.type == "cpu":
                return function(*args, **kwargs)
            token = _asked.set(device)
            try:
                with torch.device("cpu"):
                    return function(*args, **kwargs)
            finally:
                _asked.reset(token)

    return run


def caller_device() -> AbstractContextManager[object]:
    """A context in which the default device is that of the caller of an :func:`on_cpu` function."""
    device = _asked.get()
    return nullcontext() if device is None else device
