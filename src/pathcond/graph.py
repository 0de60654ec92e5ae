"""From the record of a forward pass to the units that may be rescaled, and the parameters that enter and leave them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from pathcond import label_layers, label_moves  # noqa: F401 - they enter the rules
from pathcond.checks import check_choice, check_flags, check_model, shared_memory, shared_with_others, unread_note
from pathcond.constants import Constants
from pathcond.device import on_cpu
from pathcond.errors import RecordError
from pathcond.label_types import Reason
from pathcond.labels import Labels
from pathcond.record import Recorder
from pathcond.trace import Trace


@dataclass(frozen=True, slots=True)
class ParamScales:
    """Units that a parameter's elements enter (``row``) and leave (``col``).

    Both are integer tensors that broadcast to the parameter's shape. Unit ``h`` of the graph is number ``h + 1``;
    0 stands for no unit. The parameter is multiplied by ``exp(u[row] / 2 - u[col] / 2)``.
    """

    row: Tensor
    col: Tensor


@dataclass(frozen=True, slots=True)
class Frozen:
    """Units that stay as they are: how many, the module where that was decided, and why."""

    units: int
    where: str
    reason: str

    def __str__(self) -> str:
        return f"{self.units} at '{self.where or 'the model'}': each {self.reason}"


@dataclass(frozen=True)
class ScaleGraph:
    """What may be rescaled in a model, from :func:`extract_graph`. Holds no weights, so it can be kept and reused.

    Attributes:
        units: number H of free units; a unit is a set of channels that share one scale.
        layers: for each module that makes channels, the number of the unit of each of its channels, shape (channels,);
            unit ``h`` is number ``h + 1`` and 0 marks a channel without a free scale.
        groups: sizes of the runs of units, in network order, that belong to one layer.
        params: for each parameter that a scale touches, the units it enters and leaves.
        shapes: shape of every parameter of the model, by name.
        frozen: hidden units without a free scale, and why.
        notes: what to know about this graph, for example that it keeps the function only approximately.
        exact: whether applying scales keeps the function in every mode, and no parameter is unknown to the recorded
            passes while units are free.
        approximate: whether even the recorded passes are kept only approximately, as with ``smooth``.
        trace: the record of the forward pass in eval mode.
    """

    units: int
    layers: Mapping[str, Tensor]
    groups: tuple[int, ...]
    params: Mapping[str, ParamScales]
    shapes: Mapping[str, tuple[int, ...]]
    frozen: tuple[Frozen, ...]
    notes: tuple[str, ...]
    exact: bool
    approximate: bool
    trace: Trace = field(repr=False)

    @property
    def frozen_units(self) -> int:
        """Number of hidden units whose scale is frozen."""
        return sum(entry.units for entry in self.frozen)

    def indices(self, name: str, device: torch.device) -> tuple[Tensor | None, Tensor | None]:
        """Units a parameter's elements enter and leave, on a device; None for no unit anywhere. Kept once made."""
        cache = self.__dict__.setdefault("_indices", {})
        if (name, device) not in cache:
            scales = self.params[name]
            cache[name, device] = tuple(x.to(device) if bool(x.any()) else None for x in (scales.row, scales.col))
        return cache[name, device]

    def by_module(self, u: Tensor) -> dict[str, Tensor]:
        """Log-scales by module: ``u`` of shape (units,) spread over each module's channels."""
        full = torch.cat((u.new_zeros(1), u))
        return {name: full[numbers.to(u.device)] for name, numbers in self.layers.items()}


@on_cpu
def extract_graph(
    model: nn.Module,
    example_input: Any,
    *,
    batchnorm: Literal["affine", "exclude"] = "affine",
    shortcuts: Literal["tie", "freeze"] = "tie",
    smooth: bool = False,
    strict: bool = False,
) -> ScaleGraph:
    """Find the units of a model that can be rescaled without changing its function.

    The forward pass is recorded on fake tensors, once in eval and once in training mode, so that scales fit both; the
    model is not touched. An operation without a rule freezes the scales on both sides of it.

    Args:
        model: any module that can be run on ``example_input``.
        example_input: a tensor, a tuple or list of positional arguments, or a dict of keyword arguments; a batch of
            one is enough.
        batchnorm: ``affine``: the scale and shift of a BatchNorm enter the unit (exact in every mode). ``exclude``: the
            weights before it do, as in the paper (exact only in eval mode at initialisation, and for one rescaling).
        shortcuts: ``tie``: the channels along identity shortcuts share one scale. ``freeze``: they stay as they are.
        smooth: let scales cross GELU, SiLU and the like; the function is then kept only approximately.
        strict: raise at an operation without a rule instead of freezing, where hidden units lose their scale by it.

    Returns:
        The :class:`ScaleGraph`.

    Raises:
        RecordError: the forward pass cannot be recorded; the message names the line of code and the way out.
        UnsupportedOpError: ``strict`` and an operation has no rule.

    Example:
        >>> import torch, pathcond
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
        >>> pathcond.extract_graph(model, torch.ones(1, 3)).units
        4
    """
    check_flags(smooth=smooth, strict=strict)
    check_choice("batchnorm", batchnorm, ("affine", "exclude"))
    check_choice("shortcuts", shortcuts, ("tie", "freeze"))
    check_model(model)
    alias, overlapping = shared_memory(model)
    labels = Labels(batchnorm=batchnorm, smooth=smooth, strict=strict, alias=alias, lineage=shortcuts == "freeze")
    notes: list[str] = []
    traces: list[Trace] = []
    first_numbers, recorder = 1, Recorder(model, example_input)
    for mode in _modes(model):
        try:
            found = recorder.record(mode)
        except RecordError as error:
            if not traces or mode is None or mode == model.training:
                raise
            notes.append(f"the function is kept in eval mode; training mode could not be recorded: {error}")
            continue
        labels.follow(found, Constants(found, model))
        traces.append(found)
        if len(traces) == 1:
            first_numbers = labels.count
    for name in overlapping:
        labels.hold(name, Reason("param", "", f"parameter '{name}' shares memory with another parameter"))
    _hold_others(model, labels, traces)
    if shortcuts == "freeze":
        _freeze_shortcuts(labels)
    graph = _assemble(model, labels, traces, first_numbers, notes)
    return replace(graph, notes=(*graph.notes, *recorder.note()))


def _hold_others(model: nn.Module, labels: Labels, traces: list[Trace]) -> None:
    """Hold parameters that are no real numbers, or on the memory of a tensor that is read beside them."""
    for name in shared_with_others(model, traces):
        text = f"parameter '{name}' shares memory with a tensor that is read as well"
        labels.hold(labels.alias.get(name, name), Reason("param", "", text))
    for name in [name for name, p in model.named_parameters() if not p.is_floating_point()]:
        labels.hold(name, Reason("param", "", f"parameter '{name}' holds whole numbers"))


def _modes(model: nn.Module) -> Iterator[bool | None]:
    """Eval, training, and the model as it is if its modules are of both minds."""
    yield False
    yield True
    if len({module.training for module in model.modules()}) > 1:
        yield None


def _freeze_shortcuts(labels: Labels) -> None:
    """Freeze channels that an addition ties to channels computed from them."""
    for pairs in [edge for edge in labels.edges if edge.numel()]:
        for column in pairs.T:
            (a,), (b,) = labels.layers_of(column[:1]), labels.layers_of(column[1:])
            if (labels.layers[b].ancestors >> a | labels.layers[a].ancestors >> b) & 1:
                name = labels.layers[max(a, b)].name
                labels.freeze(column, Reason("tie", name, "lies on an identity shortcut (shortcuts='freeze')"))


def _components(count: int, edges: Tensor) -> Tensor:
    """For each number the smallest number it is tied to, directly or not; ``edges`` has shape (2, ties)."""
    root = torch.arange(count)
    while True:
        a, b = root[edges[0]], root[edges[1]]
        low = torch.minimum(a, b)
        merged = root.clone().scatter_reduce_(0, a, low, "amin").scatter_reduce_(0, b, low, "amin")
        while not torch.equal(merged, merged[merged]):
            merged = merged[merged]
        if torch.equal(merged, root):
            return root
        root = merged


def _settle_uses(labels: Labels) -> None:
    """Tie the uses of each parameter to one another, and freeze what a held parameter touches."""
    for name, uses in labels.uses.items():
        reason = Reason("param", "", f"parameter '{name}' is used in several places")
        for other in uses[1:]:
            labels.tie(uses[0].row, other.row, reason)
            labels.tie(uses[0].col, other.col, reason)
        if name in labels.held:
            for use in uses:
                labels.freeze(use.row, labels.held[name])
                labels.freeze(use.col, labels.held[name])


def _assemble(
    model: nn.Module, labels: Labels, traces: list[Trace], first_numbers: int, notes: list[str]
) -> ScaleGraph:
    _settle_uses(labels)
    edges = torch.cat([torch.zeros(2, 0, dtype=torch.int64), *labels.edges], 1)
    root = _components(labels.count, edges)
    why = torch.full((labels.count,), len(labels.reasons))
    for numbers, reason in labels.frozen:
        why.scatter_reduce_(0, root[numbers], torch.full_like(numbers, reason), "amin")
    entered = torch.zeros(labels.count, dtype=torch.bool)
    left = torch.zeros(labels.count, dtype=torch.bool)
    for uses in labels.uses.values():
        for use in uses:
            entered[root[use.row.clamp(min=0).reshape(-1)]] = True
            left[root[use.col.clamp(min=0).reshape(-1)]] = True
    is_root = root == torch.arange(labels.count)
    free = is_root & entered & left & (why == len(labels.reasons))
    free[0] = False
    number = torch.zeros(labels.count, dtype=torch.int64)
    number[free] = torch.arange(1, int(free.sum()) + 1)
    number = number[root]
    params = {}
    for name, uses in labels.uses.items():
        scales = ParamScales(number[uses[0].row.clamp(min=0)], number[uses[0].col.clamp(min=0)])
        if bool(scales.row.any()) or bool(scales.col.any()):
            params[name] = scales
    notes = [*notes, *unread_note(model, traces)] if bool(free.any()) else notes
    firsts = torch.tensor([layer.first for layer in labels.layers])
    owners = torch.bucketize(free.nonzero()[:, 0], firsts, right=True)
    return ScaleGraph(
        units=int(free.sum()),
        layers=_layers(labels, number),
        groups=tuple(owners.unique_consecutive(return_counts=True)[1].tolist()),
        params=params,
        shapes={name: tuple(p.shape) for name, p in model.named_parameters()},
        frozen=_frozen(labels, root, why, left, first_numbers),
        notes=(*notes, *sorted(labels.approximate)),
        exact=not labels.approximate and not notes,
        approximate=bool(labels.approximate),
        trace=traces[0],
    )


def _layers(labels: Labels, number: Tensor) -> dict[str, Tensor]:
    """Unit numbers by module, for modules that have any; a module called twice is listed once."""
    found: dict[str, Tensor] = {}
    for layer in labels.layers:
        numbers = number[layer.first : layer.first + layer.size]
        if layer.name not in found and bool(numbers.any()):
            found[layer.name] = numbers
    return found


def _frozen(labels: Labels, root: Tensor, why: Tensor, left: Tensor, first_numbers: int) -> tuple[Frozen, ...]:
    """Count the frozen hidden units by reason, each once, whichever mode found it."""
    sizes = torch.tensor([1, *(layer.size for layer in labels.layers)])
    hidden = torch.zeros(labels.count, dtype=torch.bool)
    hidden[root[torch.tensor([False, *(layer.hidden for layer in labels.layers)]).repeat_interleave(sizes)]] = True
    known = {layer.name for layer in labels.layers if layer.first < first_numbers}
    counts: dict[tuple[str, str], int] = {}
    for layer in labels.layers:
        if layer.first >= first_numbers and layer.name in known:
            continue
        numbers = torch.arange(layer.first, layer.first + layer.size)
        numbers = numbers[(root[numbers] == numbers) & hidden[numbers] & (why[numbers] < len(labels.reasons))]
        for index, count in zip(*(t.tolist() for t in why[numbers].unique(return_counts=True)), strict=True):
            reason = labels.reasons[index]
            if reason.kind in ("output", "norm", "weight"):
                count = int(left[numbers[why[numbers] == index]].sum())
            if count:
                key = (reason.where or layer.name, reason.text)
                counts[key] = counts.get(key, 0) + count
    return tuple(Frozen(count, where, text) for (where, text), count in counts.items())
