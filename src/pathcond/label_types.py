"""What labels are made of: numbers of channels, parameters and how they are used, and reasons to freeze."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

FROZEN, ZERO = 0, -1


@dataclass(frozen=True, slots=True)
class Reason:
    """Why scales are frozen.

    ``kind`` is ``op``, ``tie``, ``param``, or, where no hidden unit is lost by it, ``output``, ``norm``, ``weight``.
    """

    kind: str
    where: str
    text: str


@dataclass(frozen=True, slots=True)
class ParamView:
    """A parameter as it is, up to the order of its axes and axes of size one.

    ``axes[i]`` is the parameter's own axis that axis ``i`` shows, None where the size is one; ``rank`` counts its axes.
    """

    name: str
    axes: tuple[int | None, ...]
    rank: int


@dataclass(frozen=True, slots=True)
class Use:
    """Numbers of the channels a parameter's elements enter (``row``) and leave (``col``), broadcast to its shape."""

    row: Tensor
    col: Tensor


@dataclass(frozen=True, slots=True)
class Layer:
    """A run of fresh numbers ``first .. first + size - 1``: the outputs of the module ``name``.

    ``ancestors`` has bit ``i`` set where layer ``i`` lies before this one, if lineage is kept. ``hidden`` says that a
    later layer reads them.
    """

    name: str
    first: int
    size: int
    ancestors: int
    hidden: bool


def unview(view: ParamView, numbers: Tensor) -> Tensor:
    """Turn numbers laid out along a view's axes to the parameter's own axes."""
    numbers = at_least(numbers, len(view.axes))
    order = sorted((axis, i) for i, axis in enumerate(view.axes) if axis is not None)
    shape = [1] * view.rank
    for axis, i in order:
        shape[axis] = numbers.size(i)
    return numbers.permute([*(i for _, i in order), *(i for i, a in enumerate(view.axes) if a is None)]).reshape(shape)


def at_least(label: Tensor, ndim: int) -> Tensor:
    """A label with at least ``ndim`` axes, new ones in front."""
    return label.reshape((*[1] * (ndim - label.ndim), *label.shape))


def fit(label: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A label with as many axes as ``shape``."""
    return at_least(label, len(shape))
