"""Example inputs: one or several, the tensors in them, and other sizes that a model may be called with."""

from __future__ import annotations

import inspect
import reprlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import fields, is_dataclass
from functools import partial
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from pathcond.checks import PathCondError

_OPAQUE = (
    int, float, nn.Module, type, ModuleType, FunctionType, MethodType, partial, torch.Generator, torch.dtype,
    DataLoader, Dataset, Iterator,
)  # fmt: skip
_DEEPEST = 4  # objects within objects that are searched for tensors


class Inputs:
    """Several example inputs of one model: a scale is free only if it is free in the forward pass on each of them.

    Give one example for each kind of call that the model is used with: other lengths, an optional argument present and
    absent, each value of an argument that chooses a branch, another number of axes or another dtype.

    Args:
        *examples: each is what a single example input may be: a tensor, a tuple or list of positional arguments, or a
            dict of keyword arguments. The first is the one on which statistics are measured and diag(G) is computed.

    Example:
        >>> import torch, pathcond
        >>> class Net(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.a, self.b = torch.nn.Linear(3, 8), torch.nn.Linear(8, 2)
        ...     def forward(self, x, shift=None):
        ...         h = torch.relu(self.a(x))
        ...         return self.b(h if shift is None else h + shift)
        >>> x, shift = torch.ones(1, 3), torch.ones(1, 8)
        >>> pathcond.extract_graph(Net(), x).units
        8
        >>> pathcond.extract_graph(Net(), pathcond.Inputs(x, (x, shift))).units
        0
    """

    def __init__(self, *examples: Any) -> None:
        if not examples or any(isinstance(example, Inputs) for example in examples):
            raise PathCondError(f"expected one or more example inputs in Inputs(...), got {examples!r}.")
        self.examples = examples


def examples_in(example_input: Any) -> tuple[Any, ...]:
    """The example inputs, one by one."""
    return example_input.examples if isinstance(example_input, Inputs) else (example_input,)


def as_arguments(example_input: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments of a forward call on the first example: a tensor, a tuple or list, or a dict."""
    example = examples_in(example_input)[0]
    if isinstance(example, (DataLoader, Dataset)) or type(example).__module__.startswith("pathcond."):
        raise PathCondError(
            "expected a tensor, a tuple or list of arguments, or a dict of them as example input, got a "
            f"{type(example).__name__}. Pass one batch of inputs: of a DataLoader, next(iter(loader))[0]; of a "
            "Dataset, torch.stack([dataset[i][0] for i in range(8)]). A graph is given as graph=..."
        )
    if isinstance(example, Mapping):
        return (), dict(example)
    if isinstance(example, (tuple, list)):
        return tuple(example), {}
    return (example,), {}


def map_tensors(change: Callable[[Tensor], Any], tree: Any, inside: frozenset[int] = frozenset()) -> Any:
    """``tree`` with ``change`` applied to its tensors: in containers, in dataclasses, in attributes of objects."""
    if isinstance(tree, Tensor):
        return change(tree)
    if isinstance(tree, (tuple, list, set, frozenset, deque)):
        plain = tuple if isinstance(tree, tuple) else list if isinstance(tree, list) else type(tree)
        return getattr(type(tree), "_make", plain)([map_tensors(change, item, inside) for item in tree])
    if isinstance(tree, dict):
        made = copy(tree)
        for key, item in tree.items():
            made[key] = map_tensors(change, item, inside)
        return made
    held = attributes_of(tree)
    if not held or id(tree) in inside or len(inside) > _DEEPEST:
        return tree
    mapped = {name: map_tensors(change, item, inside | {id(tree)}) for name, item in held.items()}
    changed = {name: item for name, item in mapped.items() if item is not held[name]}
    if not tensors_in(changed):
        return tree
    made = copy(tree)
    for name, item in changed.items():
        object.__setattr__(made, name, item)
    return made


def tensors_in(tree: Any, deepest: float = _DEEPEST, other: Callable[[Any], None] = lambda _: None) -> list[Tensor]:
    """Every tensor that :func:`map_tensors` finds, in order; ``other`` is called with what may hold none."""
    found: list[Tensor] = []
    seen: set[int] = set()
    pending: list[tuple[Any, int]] = [(tree, 0)]
    while pending:
        item, depth = pending.pop()
        if isinstance(item, Tensor):
            found.append(item)
        elif id(item) not in seen:
            seen.add(id(item))
            box = isinstance(item, (tuple, list, dict, set, frozenset, deque))
            parts = item if box else attributes_of(item) if depth <= deepest else {}
            if parts is None:
                other(item)
            else:
                parts = list(parts.values() if isinstance(parts, dict) else parts)
                pending += [(part, depth + (not box)) for part in reversed(parts)]
    return found


def attributes_of(thing: Any) -> dict[str, Any] | None:
    """The fields of a dataclass, or the attributes of another object; None for one that has none or is not searched."""
    slots = [getattr(kind, "__slots__", ()) for kind in type(thing).__mro__]
    if isinstance(thing, _OPAQUE) or not (hasattr(thing, "__dict__") or any(slots)):
        return None
    own = getattr(thing, "__dict__", {})  # read as it is: a class may raise an error where an attribute is asked for
    named = [*own, *(name for s in slots for name in ([s] if isinstance(s, str) else s))]
    names = [f.name for f in fields(thing)] if is_dataclass(thing) else named
    return {n: own[n] if n in own else getattr(thing, n) for n in names if n in own or hasattr(thing, n)}


def hint_on(error: Exception, model: nn.Module, example_input: Any) -> str:
    """What may be wrong with an example input on which a model raised an error, in words; else empty."""
    inputs = tensors_in(as_arguments(example_input))
    if not inputs:
        return "The example input holds no tensor: pass one, a tuple of arguments, or a dict of keyword arguments. "
    hint = "Each element of the example input is one argument: of a batch (x, y), pass x. " if len(inputs) > 1 else ""
    own, given = ({f"{t.dtype} on {t.device.type}" for t in part} for part in (model.parameters(), inputs))
    if not given <= own:
        hint += f"The model has {', '.join(sorted(own))}; its input is {', '.join(sorted(given))}. "
    none = [text for text in left_out(model, [example_input]) if text.endswith("=None")]
    if none and "NoneType" in str(error):
        hint += f"The model was run with {', '.join(none[:6])}. "
    if isinstance(error, TypeError) and isinstance(examples_in(example_input)[0], Mapping):
        hint += "A dict is passed as keyword arguments; pass (batch,) where the forward pass takes the dict itself. "
    return hint


# ---- other calls of the same model

Sizes = dict[tuple[int, int], int]  # new size by number of the tensor and axis
LARGEST_SIZE = 8192  # size that is tried


def other_sizes(shapes: Sequence[tuple[int, ...]]) -> list[list[Sizes]]:
    """For each axis of the inputs, ways to change its size, from the most to the least likely to be accepted.

    The first axes are a batch if they have one size. Other axes of one size, such as height and width, or the tokens
    and their mask, are changed together and, if the model refuses that, each alone.
    """
    sizes = {(i, k): n for i, shape in enumerate(shapes) for k, n in enumerate(shape) if n}
    batch = next(iter(sizes.values()), 0)
    together: dict[tuple[int, bool], list[tuple[int, int]]] = {}
    for (i, k), n in sizes.items():
        together.setdefault((n, k == 0 and n == batch), []).append((i, k))
    found = []
    for (n, _), axes in together.items():
        ways = [dict.fromkeys(axes, m) for m in sorted({n + 1, 2 * n})]
        ways += [{axis: n + 1} for axis in axes if len(axes) > 1]
        found.append(ways + ([dict.fromkeys(axes, n - 1)] if n > 1 else []))  # it may have the largest size there is
    return found


def sizes_past(there: Sizes, ways: Sequence[list[Sizes]], size: int, number: float, other: float) -> Iterator[Sizes]:
    """Sizes other than those ``there`` for which comparing ``number``, made from ``size``, to ``other`` may differ."""
    sides = (other, other + 1) if number < other else (other, other - 1) if number > other else (other + 1, other - 1)
    wanted = [round(size + side - number) for side in sides]
    wanted += [int(size * side // number) for side in sides] if number not in (0, size) else []
    for joint in (way[0] for way in ways):
        if dict.fromkeys(joint, size).items() <= there.items():
            yield from (dict.fromkeys(joint, n) for n in dict.fromkeys(wanted) if 0 < n <= LARGEST_SIZE and n != size)


def left_out(model: nn.Module, examples: Sequence[Any]) -> tuple[str, ...]:
    """Arguments of the forward pass that no example gives, and what all give alike beside tensors."""
    try:
        signature = inspect.signature(model.forward)
        bound = [signature.bind(*args, **kwargs) for args, kwargs in map(as_arguments, examples)]
    except (TypeError, ValueError):
        return ()
    texts: dict[str, set[str]] = {}
    for arguments in bound:
        arguments.apply_defaults()
        for name, value in arguments.arguments.items():
            shown = reprlib.repr(map_tensors(lambda _: ..., value)).replace("Ellipsis", "tensor")
            texts.setdefault(name, set()).add(shown)
    alike = {name: shown for name, (shown, *more) in texts.items() if not more}
    return tuple(f"{name}={shown}" for name, shown in alike.items() if shown.replace("tensor", "").strip("(){}, "))
