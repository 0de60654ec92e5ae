"""Run a model and leave everything as it was: attributes, mode, random state, default device, numeric settings."""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from functools import partial, wraps
from operator import is_
from types import FunctionType, MethodType, ModuleType
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor, nn

_BOXES = (list, dict, set, deque)
_SIMPLE = frozenset({int, float, bool, str, type(None), nn.Parameter, torch.dtype, torch.device, torch.Size})
_MOST = 20_000  # things looked through beyond a hundred a module: a model may lead to a whole program


def _reachable(model: nn.Module, code: bool) -> list[Any]:
    """Boxes, attribute dicts and tensors that the modules lead to, and with ``code`` their hooks and forwards too."""
    found: list[Any] = []
    pending: deque[Any] = deque(vars(m) for m in model.modules())
    most = _MOST + 100 * len(pending)
    if not code:
        pending = deque({k: v for k, v in own.items() if not k.endswith("_hooks")} for own in pending)
    else:
        pending.extend(getattr(kind, "forward", None) for kind in {type(m) for m in model.modules()})
    seen: set[int] = set()
    plain = set(_SIMPLE)  # and the kinds of modules met
    while pending and len(seen) < most:
        thing = pending.popleft()
        kind = type(thing)
        if kind in plain or id(thing) in seen:
            continue
        if isinstance(thing, (nn.Module, type, ModuleType)):
            plain.add(kind)
            continue
        seen.add(id(thing))
        if isinstance(thing, _BOXES):
            found.append(thing)
            pending.extend(thing.values() if isinstance(thing, dict) else thing)
        elif isinstance(thing, Tensor):
            found.append(thing)
        elif isinstance(thing, tuple):
            pending.extend(thing)
        elif isinstance(thing, (FunctionType, MethodType, partial)):
            pending.extend(_behind(thing) if code else ())
        else:
            with suppress(Exception):  # objects may refuse to be looked at
                pending.append(vars(thing))
    return found


def _behind(function: Any) -> list[Any]:
    """What a function can store things in: its object, the variables around it, and the globals it names."""
    if isinstance(function, MethodType):
        return [function.__self__, function.__func__]
    if isinstance(function, partial):
        return [function.func, function.args, function.keywords]
    if (function.__module__ or "").split(".")[0] == "torch":
        return []
    found: list[Any] = [function.__defaults__, *map(function.__globals__.get, function.__code__.co_names)]
    found = [thing for thing in found if isinstance(thing, (*_BOXES, tuple))]
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # a variable that has no value yet
            found.append(cell.cell_contents)
    return found


def held_tensors(model: nn.Module) -> list[Tensor]:
    """Tensors in the modules' attributes, at any depth in containers and objects; registered ones are left out."""
    registered = {id(t) for t in (*model.parameters(), *model.buffers())}
    return [t for t in _reachable(model, code=False) if isinstance(t, Tensor) and id(t) not in registered]


@contextmanager
def untouched(model: nn.Module, tensors: bool = True) -> Iterator[None]:
    """Put back, afterwards, the attributes of all submodules and the containers among them.

    Containers and objects that these lead to, or that hooks and forward methods write to, are put back where tensors
    came or went; else they are left alone: they may be queues, logs or pools that live on. Parameters and buffers do
    not count: those who run the model give it others. Values of the tensors among the attributes are put back unless
    ``tensors`` is off.
    """
    boxes: list[tuple[Any, Any]] = []
    for box in _reachable(model, code=True):
        with suppress(Exception):  # one that cannot be copied is not put back
            boxes += [] if isinstance(box, Tensor) else [(box, box.copy())]
    own = {id(thing) for m in model.modules() for thing in (vars(m), *vars(m).values())}
    loose = [t for t in held_tensors(model) if not t.is_inference()] if tensors else []
    saved = [(t, t._version, t.detach().clone()) for t in loose]
    try:
        yield
    finally:
        for box, content in boxes:
            now, then = ([*x, *x.values()] if isinstance(x, dict) else list(x) for x in (box, content))
            same = len(now) == len(then) and all(map(is_, now, then))
            if not same and (id(box) in own or _has_tensor(now, then) or _has_tensor(then, now)):
                box.clear()
                box.update(content) if isinstance(box, (dict, set)) else box.extend(content)
        with torch.no_grad():
            for tensor, version, content in saved:
                if tensor._version != version:
                    tensor.copy_(content)


def _has_tensor(these: list[Any], those: list[Any]) -> bool:
    """Whether a tensor is in these and not in those, as it is or in tuples, lists and dicts."""
    known = {id(thing) for thing in those}
    pending = [thing for thing in these if id(thing) not in known]
    for _ in range(_MOST):
        if not pending:
            return False
        thing = pending.pop()
        if isinstance(thing, Tensor):
            return True
        if isinstance(thing, (list, tuple, dict)):
            pending.extend(thing.values() if isinstance(thing, dict) else thing)
    return False


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


@contextmanager
def without_cache(model: nn.Module) -> Iterator[None]:
    """Switch off the cache of keys and values that Hugging Face models return beside their output."""
    found = (getattr(module, "config", None) for module in model.modules())
    configs: dict[int, Any] = {id(c): c for c in found if getattr(c, "use_cache", None) is True}
    try:
        for config in configs.values():
            config.use_cache = False
        yield
    finally:
        for config in configs.values():
            config.use_cache = True


@contextmanager
def restored_random_state(devices: list[int], seed: int | None = None) -> Iterator[None]:
    """Put back the random states of torch, Python and, if it is loaded, NumPy; start from ``seed`` if it is given."""
    numpy = sys.modules.get("numpy")
    python, arrays = random.getstate(), numpy.random.get_state() if numpy else None
    with torch.random.fork_rng(devices=devices):
        try:
            if seed is not None:
                torch.default_generator.manual_seed(seed)
                for device in devices:  # torch.manual_seed would change all others too
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
    """No TF32, and the same result each time; the settings are put back."""
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
    """Run a function with the CPU as default device; :func:`caller_device` gives the caller's back for a while."""

    @wraps(function)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        device = torch.get_default_device()
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
    """Within it the default device is the one the caller of an :func:`on_cpu` function had."""
    device = _asked.get()
    return nullcontext() if device is None else device
