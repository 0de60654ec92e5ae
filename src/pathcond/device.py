"""The default device: the library makes its own tensors on the CPU, a model makes its own where its user wants them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

_asked: ContextVar[torch.device | None] = ContextVar("_asked", default=None)
_P = ParamSpec("_P")
_R = TypeVar("_R")


def on_cpu(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Run a function with the CPU as default device; :func:`as_asked` gives the caller's back for a while."""

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


def as_asked() -> AbstractContextManager[object]:
    """Within it the default device is the one the caller of an :func:`on_cpu` function had."""
    device = _asked.get()
    return nullcontext() if device is None else device
