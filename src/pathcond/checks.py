"""Errors of the library, and checks of models, options and parameters, made before anything is done with them.

Each error says what was expected, what came, where, and the way out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

FORMATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class PathCondError(ValueError):
    """Base class of every error the library raises on bad input."""


class PathCondWarning(UserWarning):
    """A call did less than its user may expect."""


class RecordError(PathCondError):
    """The model's forward pass could not be recorded on fake tensors."""


class UnsupportedOpError(PathCondError):
    """With ``strict=True``: a scale would have to cross an operation without a rule."""


class SolveError(PathCondError):
    """The solver met a value that is not finite."""


class ApplyError(PathCondError):
    """The scales do not fit the model or its number format; nothing was written."""


# ---- checks


def optional_package(name: str, purpose: str, way: str = "Install it.") -> Any:
    """A module of a package that not every user needs.

    Raises:
        PathCondError: it cannot be imported.
    """
    try:
        return import_module(name)
    except ImportError as error:
        package, got = name.partition(".")[0], f"{type(error).__name__}: {error}"
        raise PathCondError(f"expected the package {package} for {purpose}, got {got}. {way}") from error


def check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    """Refuse a value that is not one of the choices."""
    if value not in choices:
        raise PathCondError(f"expected {name} to be one of {', '.join(map(repr, choices))}, got {value!r}.")


def check_flags(**flags: Any) -> None:
    """Refuse values that are neither True nor False, such as the text 'no', which is true as a condition."""
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise PathCondError(f"expected {name} to be True or False, got {value!r}.")


def check_period(every: Any) -> None:
    """Refuse a number of steps or epochs from one rescaling to the next that is not an integer of at least one."""
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:
        raise PathCondError(f"expected every to be an integer >= 1, got {every!r}.")


def check_model(model: nn.Module, values: bool = True) -> None:
    """Refuse models whose parameters cannot be rescaled at all; without ``values`` they may be on the meta device.

    Raises:
        PathCondError: no parameters; or one that is complex, sparse, sharded, in eight bits, or has no data.
    """
    if isinstance(model, type):
        raise PathCondError(f"expected a model, got the class {model.__name__}. Create one first.")
    if not isinstance(model, nn.Module):
        way = "The model is the first argument." if isinstance(model, Tensor) else "Wrap the function in a module."
        raise PathCondError(f"expected a torch.nn.Module, got {type(model).__name__}. {way}")
    if isinstance(model, nn.DataParallel):
        raise PathCondError("expected the model itself, got it in nn.DataParallel. Pass model.module, which it holds.")
    kinds = {kind.__name__ for thing in (*model.modules(), *model.parameters()) for kind in type(thing).__mro__}
    if sharded := kinds & {"FSDPModule", "FullyShardedDataParallel", "DTensor"}:
        raise PathCondError(
            f"expected a model that is not sharded, got one with {sharded.pop()} (FSDP, tensor parallel), which keeps "
            "copies or parts of its weights elsewhere. Rescale the model before it is sharded, or load a full state "
            "dict into a plain copy, rescale that and load it back."
        )
    if isinstance(model, torch.jit.ScriptModule):
        raise PathCondError("expected a module run by Python, got a scripted one. Rescale it, then script or trace it.")
    parameters = dict(model.named_parameters())
    if not parameters:
        raise PathCondError(f"expected a model with parameters, got {type(model).__name__} without any.")
    for name, p in parameters.items():
        if isinstance(p, nn.parameter.UninitializedParameter):
            raise PathCondError(f"parameter '{name}' has no shape yet (lazy module). Run the model once, then rescale.")
        if p.is_complex():
            raise PathCondError(f"expected real parameters, got '{name}' of dtype {p.dtype}.")
        if p.layout != torch.strided:
            raise PathCondError(f"expected dense parameters, got '{name}' with layout {p.layout}. Use p.to_dense().")
        if p.is_floating_point() and p.dtype not in FORMATS:
            raise PathCondError(
                f"expected parameters in {', '.join(map(str, FORMATS))}, got '{name}' in {p.dtype}. Use model.float()."
            )
        if values and p.device.type == "meta":
            raise PathCondError(
                f"parameter '{name}' is on the meta device. Load its values first (model.to_empty, ...)."
            )


def check_shapes(parameters: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse a model's parameters that are not those of a graph.

    Raises:
        ApplyError: names the first parameter that differs.
    """
    for name, shape in shapes.items():
        if name not in parameters or tuple(parameters[name].shape) != shape:
            got = f"shape {tuple(parameters[name].shape)}" if name in parameters else "no such parameter"
            raise ApplyError(
                f"expected the graph's parameter '{name}' of shape {shape}, got {got}. Extract a new graph."
            )


def largest_entries(named: Mapping[str, Tensor]) -> dict[str, float]:
    """Largest absolute entry of every floating-point tensor, by name; waits for a GPU once."""
    ends = {n: torch.aminmax(t.detach()) for n, t in named.items() if t.is_floating_point() and t.numel()}
    tops = [torch.maximum(high, -low).double() for low, high in ends.values()]
    return dict(zip(ends, torch.stack([top.to(tops[0].device) for top in tops]).tolist() if tops else [], strict=True))


def check_finite(model: nn.Module, parameters: Mapping[str, Tensor]) -> dict[str, float]:
    """Largest absolute entry of every parameter and running statistic, by name.

    Raises:
        PathCondError: names the first with NaN or infinite entries.
    """
    running = {name: b for name, b in model.named_buffers() if name.endswith(("running_mean", "running_var"))}
    named = {**parameters, **running}
    largest = largest_entries(named)
    for name, top in largest.items():
        if not math.isfinite(top):
            bad = int((~torch.isfinite(named[name])).sum())
            raise PathCondError(
                f"expected finite weights, got {bad} NaN or infinite entries of {named[name].numel()} in '{name}'. "
                "Rescale before training diverges, or load a checkpoint with finite weights."
            )
    return largest


def shared_memory(model: nn.Module, others: Sequence[Tensor] = ()) -> tuple[dict[str, str], list[str]]:
    """The first name of each parameter that is there twice, and those that share memory in part, or with ``others``."""
    spans: dict[int, list[tuple[int, int, str, Any]]] = {}
    alias: dict[str, str] = {}
    overlapping: set[str] = set()
    named = (*model.named_parameters(), *(("", t) for t in others))
    for name, p in [(name, p) for name, p in named if p.numel()]:
        layout = (p.storage_offset(), tuple(p.shape), p.stride(), p.dtype)
        axes = list(zip(p.shape, p.stride(), strict=True))
        if any(stride == 0 and n > 1 for n, stride in axes):
            overlapping.add(name)
        storage, size = p.untyped_storage(), p.element_size()
        key = storage._cdata if p.is_meta else storage.data_ptr()  # meta tensors have no address
        first = int(p.storage_offset()) * size
        last = first + (sum((n - 1) * stride for n, stride in axes) + 1) * size - 1
        for other_first, other_last, other, other_layout in spans.setdefault(key, []):
            if name and layout == other_layout:
                alias[name] = other
            elif first <= other_last and other_first <= last:
                overlapping |= {name, other}
        if name:
            spans[key].append((first, last, name, layout))
    return alias, sorted(overlapping - {""})
