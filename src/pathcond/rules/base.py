"""What a rule is: an entry of the table of operations, with its two halves side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from pathcond.path_sums import PathSums
from pathcond.propagation import ScalePropagation
from pathcond.tracing import Call

Arguments = dict[str, Any]
ScaleRule = Callable[[ScalePropagation, Call, Arguments], None]
PathRule = Callable[[PathSums, Call, Arguments], None]


@dataclass(frozen=True, slots=True)
class Operation:
    """How scales and path sums cross an operation.

    Attributes:
        kind: a short name for the kind of map it is.
        arguments: names of its arguments, in order.
        scales: how scales cross it: sets the group maps of its results, see :class:`pathcond.ScalePropagation`.
        paths: how path sums cross it: sets the path sums of its results, see :class:`pathcond.PathSums`.
        layer: whether it maps data by weights, and so makes units.
        view: how it shows a parameter: ``same`` (as it is), ``layout`` (its elements elsewhere), ``factor`` (times a
            constant), ``shift`` (plus a constant), or not (empty).
        constant: whether its scale rule also holds for values that depend on no input.
        shapes: whether further tensors among its arguments give shapes and dtypes only.
        logical: whether its scale rule also holds where the result is not of a floating-point type.
    """

    kind: str
    arguments: tuple[str, ...]
    scales: ScaleRule
    paths: PathRule
    layer: bool = False
    view: str = ""
    constant: bool = False
    shapes: bool = False
    logical: bool = False

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Arguments:
        """Arguments by name; those not given are absent."""
        return dict(zip(self.arguments, args, strict=False)) | dict(kwargs)


Entry = tuple[Any, Operation]
_NAMESPACES: tuple[Any, ...] = (torch, torch.Tensor, F, getattr(torch._C, "_nn"))  # noqa: B009 - no stub knows it


def entries(
    functions: str,
    kind: str,
    arguments: str,
    scales: ScaleRule,
    paths: PathRule,
    *,
    namespaces: Iterable[Any] = _NAMESPACES,
    **traits: Any,
) -> list[Entry]:
    """Table entries for every spelling of the named functions: torch.f, Tensor.f, F.f, each also with an underscore."""
    operation = Operation(kind, tuple(arguments.split()), scales, paths, **traits)
    found: list[Entry] = []
    for name in functions.split():
        for spelling in (name, name + "_"):
            for namespace in namespaces:
                function = getattr(namespace, spelling, None)
                if callable(function):
                    found.append((function, operation))
    return found
