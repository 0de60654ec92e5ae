"""Run a model and restore everything: attributes, mode, random state, default device, numeric settings."""

from __future__ import annotations

import pickle
import random
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from itertools import count
from operator import is_not
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from pathcond.inputs import as_arguments, attributes_of, map_tensors, tensors_in

_BOXES = (list, dict, set, deque)
_SIMPLE = frozenset({int, float, bool, str, type(None), nn.Parameter, torch.dtype, torch.device, torch.Size})
_OUTSIDE = (int, float, nn.Module, ModuleType)  # not followed
_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")  # buffers that change with each batch
_MOST = 20_000  # objects visited, besides a hundred per module: attributes may lead into a whole program


class _Globals(NamedTuple):
    """The global variables that a function names."""

    variables: dict[str, Any]
    names: list[str]


@dataclass
class _State:
    """What is reachable from a model: the places in which it keeps things, tensors, and generators of numbers.

    Places are containers and what hooks, methods and functions can write: classes, closures and globals. ``own`` are
    the modules' attributes and the containers among them; ``tensors`` are those among the attributes, at any depth in
    containers and objects, without parameters and buffers.
    """

    model: nn.Module
    own: set[int]
    places: dict[int, tuple[Any, list[Any]]] = field(default_factory=dict)  # with their elements when they were found
    tensors: list[Tensor] = field(default_factory=list)
    generators: list[Any] = field(default_factory=list)

    def changes(self) -> list[tuple[Any, list[Any], list[Any]]]:
        """The places that have other elements than when they were found, with those of then and of now."""
        empty = (OrderedDict, dict, set)  # most places are, such as a module's hooks
        places = [(p, then) for p, then in self.places.values() if then or type(p) not in empty or p]
        found = ((place, then, _elements(place)) for place, then in places)
        return [(p, then, now) for p, then, now in found if len(then) != len(now) or any(map(is_not, then, now))]

    def numbers(self) -> list[Any]:
        """The present plain values in all places."""
        return [x for place, _ in self.places.values() for x in _elements(place) if type(x) in (int, float, str)]

    def states(self) -> list[Any]:
        """The states of random generators, and of endless counters among the attributes."""
        return [repr(x) if isinstance(x, count) else pickle.dumps(x) for x in self.generators]


def state_of(model: nn.Module) -> _State:
    """Follow the modules' attributes; then also their classes, hooks, and the functions and classes met on the way."""
    modules = list(model.modules())
    found = _State(model, {id(thing) for m in modules for thing in (vars(m), *vars(m).values())})
    attributes = [x for m in modules for name, x in vars(m).items() if not name.endswith("_hooks")]
    code = [*map(vars, modules), *(kind for m in modules for kind in type(m).__mro__)]
    registered, seen = {id(t) for t in (*model.parameters(), *model.buffers())}, set[int]()
    for follows_code, things in ((False, attributes), (True, code)):
        pending, most = deque[Any](things), len(seen) + _MOST + 100 * len(modules)
        while pending and len(seen) < most:
            thing = pending.popleft()
            if type(thing) in _SIMPLE or id(thing) in seen or isinstance(thing, _OUTSIDE):
                continue
            if isinstance(thing, (type, FunctionType)):
                code += [] if follows_code else [thing]
                if not follows_code or (thing.__module__ or "").partition(".")[0] in ("builtins", "torch"):
                    continue
            seen.add(id(thing))
            if isinstance(thing, (*_BOXES, _Globals, CellType, type)):
                held = _elements(thing)
                found.places[id(thing)] = thing, held
                boxes = (*_BOXES, tuple, type)
                pending.extend([x for x in held if isinstance(x, boxes)] if isinstance(thing, _Globals) else held)
            elif isinstance(thing, Tensor):
                found.tensors += [] if follows_code or id(thing) in registered else [thing]
            elif isinstance(thing, FunctionType):
                named = [name for name in thing.__code__.co_names if name in thing.__globals__]
                pending.extend([_Globals(thing.__globals__, named), *(thing.__closure__ or ()), thing.__defaults__])
            elif isinstance(thing, MethodType):
                pending.extend((thing.__self__, thing.__func__))
            elif isinstance(thing, partial):
                pending.extend((thing.func, thing.args, thing.keywords))
            elif isinstance(thing, tuple):
                pending.extend(thing)
            elif isinstance(thing, random.Random | count) or type(thing).__module__.startswith("numpy.random"):
                found.generators.append(thing)
            else:
                with suppress(Exception):  # some objects raise when they are inspected
                    pending.append(vars(thing))
    return found


def _elements(place: Any) -> list[Any]:
    """What a place holds, names first: methods of a container's subclass may load what is not there yet."""
    if isinstance(place, (dict, type)):
        held = place if isinstance(place, dict) else dict(vars(place))
        return [*dict.keys(held), *dict.values(held)]
    if isinstance(place, _Globals):
        return [place.variables.get(name) for name in place.names]
    if isinstance(place, CellType):
        with suppress(ValueError):  # a variable that has no value yet
            return [place.cell_contents]
        return []
    base: Any = next(kind for kind in (*_BOXES, tuple) if isinstance(place, kind))
    return list(base.__iter__(place))


def _refill(place: Any, then: list[Any]) -> None:
    """Give a place the elements that it had; attributes that a class did not have are deleted."""
    half = len(then) // 2
    named = dict(zip(then[:half], then[half:], strict=True)) if isinstance(place, (dict, type)) else {}
    if isinstance(place, _Globals):
        place.variables.update(zip(place.names, then, strict=True))
    elif isinstance(place, CellType):
        for value in then:
            place.cell_contents = value
    elif isinstance(place, type):
        now = dict(vars(place))
        for name in [name for name in {**named, **now} if now.get(name) is not named.get(name)]:
            setattr(place, name, named[name]) if name in named else delattr(place, name)
    else:
        place.clear()
        place.update(named or then) if isinstance(place, (dict, set)) else place.extend(then)


def settings_of(model: nn.Module) -> list[Any]:
    """What a pass may depend on: classes, attributes and what they hold, integer tensors, functions, hooks, memory."""
    found: list[Any] = [p.data_ptr() for p in model.parameters()]
    seen = set[int]()
    for name, module in model.named_modules():
        held = {key: value for key, value in vars(module).items() if key not in ("training", "_buffers")}
        held |= {key: id(b) if key in _STATISTICS else b for key, b in module._buffers.items()}
        found += [name, type(module), id(getattr(type(module), "forward", None))]  # the class of a script has none
        found += [*held, *(_fingerprint(x, seen) for x in held.values())]
    return found


def _fingerprint(x: Any, seen: set[int], depth: int = 0) -> Any:
    """What tells an attribute from others: its value, the entries of integers, what containers and objects hold.

    Of other tensors it is the number of writes to them. Each object is followed once, to some depth.
    """
    if isinstance(x, (int, float, str)):
        return x
    if isinstance(x, Tensor):
        if x.is_meta or x.is_floating_point() or x.is_complex():
            return id(x), 0 if x.is_inference() or isinstance(x, nn.Parameter) else x._version
        weights = torch.arange(x.numel(), dtype=torch.float64, device=x.device).add(1).sin()
        return id(x), float(x.detach().reshape(-1).double() @ weights)
    if hasattr(x, "tobytes"):  # an array of NumPy
        return hash(x.tobytes())
    held = x if isinstance(x, (*_BOXES, tuple)) else attributes_of(x)
    if not held or id(x) in seen or depth > 3 or len(seen) > 10_000:
        return id(x)
    seen.add(id(x))
    return id(x), [_fingerprint(part, seen, depth + 1) for part in _elements(held)]


def call_isolated(model: nn.Module, example_input: Any, training: bool | None) -> Any:
    """What a model returns on copies of an example's tensors and of its own buffers; nothing is left behind."""
    args, kwargs = map_tensors(Tensor.clone, as_arguments(example_input))
    buffers = {name: b.clone() for name, b in model.named_buffers()}
    with isolated(model, training), caller_device():
        return functional_call(model, buffers, args, kwargs)


@contextmanager
def isolated(model: nn.Module, training: bool | None, fake: bool = False) -> Iterator[_State]:
    """Run a model in a mode (None: as it is) without gradients, and restore it and the random states.

    Restored are the attributes of all submodules and the containers among them, the attributes of their classes, and
    the variables that their code names: globals and closures. Containers and objects further away, or that hooks and
    forward methods write to, are restored only if tensors were added or removed there; else they may be queues, logs
    or pools that live on. Parameters and buffers are not restored: callers run the model on copies of them.

    The cache of keys and values, which Hugging Face models return with their output, is off. Unless the model runs on
    ``fake`` tensors, random numbers start from a fixed seed, and the values of tensors among the attributes are
    restored.
    """
    known = _states.get({})
    found = known.get(id(model))
    if found is None or found.changes():
        found = known[id(model)] = state_of(model)
    settings = [(m, "training", m.training, training) for m in model.modules() if training not in (None, m.training)]
    configs = [getattr(m, "config", None) for m in model.modules()]
    settings += [(config, "use_cache", True, False) for config in configs if getattr(config, "use_cache", None) is True]
    devices = sorted({p.device.index for p in model.parameters() if p.is_cuda and not fake})
    numpy = sys.modules.get("numpy")
    libraries: list[Any] = [random, numpy.random] if numpy else [random]
    saved = [(t, t.detach().clone()) for t in found.tensors if not (fake or t.is_inference())]
    # The functions of these modules are methods of one generator each.
    state = replace(found, generators=[*(library.uniform.__self__ for library in libraries), *found.generators])
    rewind = [_at_its_place(x) for x in state.generators]
    try:
        for thing, name, _, value in settings:
            setattr(thing, name, value)
        if settings:
            state.places = found.places | {id(place): (place, now) for place, _, now in found.changes()}
        with torch.no_grad(), torch.random.fork_rng(devices=devices):
            if not fake:
                for library in libraries:
                    library.seed(0)
                for generator in (torch.default_generator, *(torch.cuda.default_generators[i] for i in devices)):
                    generator.manual_seed(0)  # torch.manual_seed would seed all other devices too
            yield state
    finally:
        for place, then, now in state.changes():
            before, after = {*map(id, then)}, {*map(id, now)}
            moved = [x for x in (*then, *now) if (id(x) in before) != (id(x) in after)]
            if not isinstance(place, _BOXES) or id(place) in state.own or tensors_in(moved):
                _refill(place, then)
        with torch.no_grad():
            for tensor, content in saved:
                if not torch.equal(tensor, content):  # writes through `data` leave no trace in its version
                    tensor.copy_(content)
        for back in rewind:
            back()
        for thing, name, value, _ in settings:
            setattr(thing, name, value)


def _at_its_place(generator: Any) -> Callable[[], object]:
    """What sets a random generator back to its present state; nothing does so for counters."""
    if isinstance(generator, random.Random):
        return partial(generator.setstate, generator.getstate())
    if hasattr(generator, "set_state"):  # of NumPy's older kind
        return partial(generator.set_state, generator.get_state())
    bits = getattr(generator, "bit_generator", generator)
    return partial(setattr, bits, "state", bits.state) if hasattr(bits, "state") else lambda: None


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


# ---- public functions

_states: ContextVar[dict[int, _State]] = ContextVar("_states")  # of the models that the present call has run
_asked: ContextVar[torch.device | None] = ContextVar("_asked", default=None)
_P = ParamSpec("_P")
_R = TypeVar("_R")


def on_cpu(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Run a public function with the CPU as default device, the caller's in :func:`caller_device`.

    What is reachable from a model is searched once in each call.
    """

    @wraps(function)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        device = torch.empty(0).device  # torch.get_default_device() of torch 2.6 does not see contexts
        states = _states.set(_states.get({}))
        asked = _asked.set(_asked.get() if device.type == "cpu" else device)
        try:
            with nullcontext() if device.type == "cpu" else torch.device("cpu"):
                return function(*args, **kwargs)
        finally:
            _states.reset(states)
            _asked.reset(asked)

    return run


def caller_device() -> AbstractContextManager[object]:
    """A context in which the default device is that of the caller of an :func:`on_cpu` function."""
    return _asked.get() or nullcontext()
