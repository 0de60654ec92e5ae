"""Scale groups: the rescaling symmetries of a model as values to print, to verify one by one and to hand to tools.

A *scale group* is a run of channels of one module, each of which may be multiplied by a positive factor if all
parameters that read it are divided by that factor. Quantization tools (AWQ, SmoothQuant, cross-layer equalization) move
scales along such groups, which they find in lists of module names written by hand for each architecture. Here they come
from the recorded forward pass, and each can be verified.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise, product, zip_longest
from os.path import commonprefix
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from pathcond.apply import scale_parameters_
from pathcond.checks import PathCondError, RecordError, check_choice, check_flags, check_model
from pathcond.graph import ParamScales, ScaleGraph, extract_graph
from pathcond.isolation import on_cpu
from pathcond.output_check import trial
from pathcond.rules.base import distinct, owner, runs

_EXACT = 1.0e-9  # relative change of the output up to which a function counts as kept


@dataclass(frozen=True, eq=False, slots=True)
class ParamSlice:
    """Entries of a parameter that the factors of a scale group multiply or divide.

    Attributes:
        parameter: name of the parameter.
        shape: its shape.
        axis: the axis along which the channels lie; None where they lie along several axes at once (grouped
            convolutions), or where all entries belong to one channel.
        index: the entries along that axis, as a slice where they are evenly spaced, else one by one.
        inverse: whether the entries follow the inverse factors, as keys do where queries have the factors.
        offset: a number that is added to the parameter where it is used, as in gains written ``1 + weight``: the
            factors act on the sum.
        channel: for each of the entries, the number of its channel within the group. With ``axis`` None, a tensor
            that broadcasts to the parameter, with -1 for entries outside of the group.
    """

    parameter: str
    shape: tuple[int, ...]
    axis: int | None
    index: slice | tuple[int, ...]
    inverse: bool
    offset: float
    channel: Tensor = field(repr=False)

    @property
    def module(self) -> str:
        """The module that owns the parameter."""
        return owner(self.parameter)

    def __str__(self) -> str:
        if self.axis is None and bool((self.channel < 0).any()):
            return f"{self.parameter} ({int((self.channel >= 0).sum())} of {self.channel.numel()} channels)"
        place = ""
        if self.axis is not None and self.index != slice(0, self.shape[self.axis], 1):
            marks = [":"] * len(self.shape)
            marks[self.axis] = f"{len(self.channel)} of {self.shape[self.axis]}"
            if isinstance(self.index, slice):
                step = f":{self.index.step}" if self.index.step != 1 else ""
                marks[self.axis] = f"{self.index.start}:{self.index.stop}{step}"
            place = f"[{', '.join(marks)}]"
        sum_with = f"{self.offset:g} + " if self.offset else ""
        return sum_with + self.parameter + place + (" (inverse)" if self.inverse else "")


@dataclass(frozen=True, eq=False)
class ScaleGroup:
    """Channels whose scale is free, or frozen with a reason. ``print`` it.

    Attributes:
        name: the module that makes the channels.
        channels: number of channels with a scale of their own.
        producers: what the factors multiply.
        consumers: what the factors divide.
        where: for frozen channels, the module of the operation that froze them; else empty.
        reason: for frozen channels, the operation and why no scale crosses it; else empty.
        units: the units of the graph, shape (channels,); empty for frozen channels.
    """

    name: str
    channels: int
    producers: tuple[ParamSlice, ...]
    consumers: tuple[ParamSlice, ...]
    where: str = ""
    reason: str = ""
    units: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64), repr=False)
    _source: tuple[nn.Module, Any, ScaleGraph] | None = field(default=None, repr=False)  # with the example input

    @property
    def frozen(self) -> bool:
        """Whether the channels keep their scale."""
        return bool(self.reason)

    def verify(self, *, seed: int = 0) -> float:
        """Scale this group alone by random factors, and return the relative change of the function.

        The factors are 1/4, 1/2, 2 and 4: products with powers of two are not rounded, in any number format. They are
        tried on the model in its present mode, which is then restored bit for bit.

        Raises:
            PathCondError: the group is frozen.
        """
        if self.frozen or self._source is None:
            raise PathCondError(f"expected a free scale group, got the frozen group '{self.name}': {self.reason}.")
        model, example_input, graph = self._source
        u = torch.zeros(graph.units, dtype=torch.float64)
        u[self.units] = math.log(2) * _exponents(len(self.units), seed)
        with trial(model, example_input, {part.parameter for part in (*self.producers, *self.consumers)}) as check:
            scale_parameters_(check.model, graph, u, force=False)
            return check.change()

    def __str__(self) -> str:
        count = f"{self.name or '(model)'}: {self.channels} channel{'s' if self.channels != 1 else ''}"
        if self.frozen:
            return f"{count} frozen at '{self.where or 'the model'}': each {self.reason}"
        made, read = (", ".join(map(str, parts)) for parts in (self.producers, self.consumers))
        return f"{count}, {made} -> {read}"


class ScaleGroups(tuple[ScaleGroup, ...]):
    """The scale groups of a model, free ones first; ``print`` shows them as a table."""

    __slots__ = ()

    @property
    def free(self) -> tuple[ScaleGroup, ...]:
        """The groups whose scale may be changed."""
        return tuple(group for group in self if not group.frozen)

    @property
    def frozen(self) -> tuple[ScaleGroup, ...]:
        """The groups whose scale must stay, each with its reason."""
        return tuple(group for group in self if group.frozen)

    def __str__(self) -> str:
        rows = [("module", "channels", "multiplied", "divided")]
        for group in self.free:
            columns = ([group.name], [str(group.channels)], map(str, group.producers), map(str, group.consumers))
            rows += zip_longest(*columns, fillvalue="")
        for group in self.frozen:
            place = f"frozen at '{group.where or 'the model'}'"
            rows.append((group.name or "(model)", str(group.channels), place, group.reason))
        a, b, c, _ = (max(map(len, column)) for column in zip(*rows, strict=True))
        lines = [f"{name:{a}}  {count:>{b}}  {left:{c}}  {right}" for name, count, left, right in rows]
        return "\n".join(line.rstrip() for line in lines)


@on_cpu
def scale_groups(
    model: nn.Module,
    example_input: Any,
    *,
    batchnorm: Literal["affine", "exclude"] = "affine",
    smooth: bool = False,
    strict: bool = False,
) -> ScaleGroups:
    """Find the scale groups of a model: which parameters make, and which read, channels that may be rescaled.

    Args:
        model: any module that can be run on ``example_input``.
        example_input: a tensor, a tuple or list of positional arguments, or a dict of keyword arguments.
        batchnorm: as in :func:`pathcond.extract_graph`.
        smooth: as there.
        strict: as there.

    Returns:
        A tuple of :class:`ScaleGroup`, free ones first, in network order. ``print`` shows a table.

    Example:
        >>> import torch, pathcond
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> groups = pathcond.scale_groups(model, torch.ones(1, 3))
        >>> print(groups[0])
        0: 8 channels, 0.weight, 0.bias -> 2.weight
        >>> groups[0].verify() < 1e-9
        True
    """
    graph = extract_graph(model, example_input, batchnorm=batchnorm, smooth=smooth, strict=strict)
    found = _units_of_groups(graph)
    members = _members(graph, [units for _, units in found])
    source = (model, example_input, graph)
    free = [
        ScaleGroup(name, len(units), tuple(rows), tuple(columns), units=units, _source=source)
        for (name, units), (rows, columns) in zip(found, members, strict=True)
    ]
    frozen = [
        ScaleGroup(name, entry.channels, (), (), entry.where, entry.reason)
        for name, entries in graph.frozen_by_module.items()
        for entry in entries
    ]
    return ScaleGroups((*free, *frozen))


def _units_of_groups(graph: ScaleGraph) -> list[tuple[str, Tensor]]:
    """For each group the module that makes its units, and these, in order.

    Units belong to one group if the same module makes them and the same parameters enter and leave them.
    """
    params = [(owner(name), scales) for name, scales in graph.params.items()]
    makers = [(name, numbers, Tensor.abs) for name, numbers in graph.layers.items()]
    makers += [(name, scales.row, Tensor.clone) for name, scales in params]
    ends = [(name, end) for name, scales in params for end in (scales.row, scales.col)]
    marks = [*makers, *((name, end, sign) for name, end in ends for sign in (Tensor.clone, Tensor.neg))]
    changes: dict[int, list[int]] = {}  # by unit number: what begins or ends to touch the units from there on
    for index, (_, numbers, side) in enumerate(marks):
        for first, last in runs(distinct(side(numbers))).T.tolist():
            changes.setdefault(first, []).append(index)
            changes.setdefault(last + 1, []).append(index)
    groups: dict[tuple[Any, ...], list[Tensor]] = {}
    present = set[int]()
    for first, end in pairwise(sorted(changes)):
        present.symmetric_difference_update(changes[first])
        if present:
            key = (marks[min(present)][0], *sorted(index for index in present if index >= len(makers)))
            groups.setdefault(key, []).append(torch.arange(first - 1, end - 1, dtype=torch.int32))
    return [(maker, torch.cat(units)) for (maker, *_), units in groups.items()]


def _members(graph: ScaleGraph, groups: list[Tensor]) -> list[tuple[list[ParamSlice], list[ParamSlice]]]:
    """The parts of parameters that enter and that leave each group."""
    found: list[tuple[list[ParamSlice], list[ParamSlice]]] = [([], []) for _ in groups]
    starts = [(0, 0, 0)]  # of runs of units: number, group (counted from 1), and what makes numbers channels
    for index, units in enumerate(groups, 1):
        channel = 0
        for start, end in runs(units + 1).T.tolist():
            starts.append((start, index, channel - start))
            channel += end + 1 - start
    first, group, shift = torch.tensor(sorted(starts), dtype=torch.int32).T.contiguous()
    alike: dict[torch.Size, dict[int, Tensor]] = {}  # most layers share one tensor of channels
    for name, scales in graph.params.items():
        for side, numbers in enumerate((scales.row, scales.col)):
            axes = [axis for axis, size in enumerate(numbers.shape) if size > 1]
            run = torch.searchsorted(first, numbers.abs(), right=True) - 1
            groups_of, channels = group[run], numbers.abs() + shift[run]
            for index, sign in product(distinct(groups_of).tolist(), (1, -1)):
                mask = (groups_of == index) & (numbers * sign > 0)
                places = mask.reshape(-1).nonzero()[:, 0]
                if not len(places):
                    continue
                if len(axes) == 1:
                    axis, entries, which = axes[0], _as_slice(places), channels.reshape(-1)[places].long()
                else:
                    axis, entries, which = None, slice(0, numbers.numel(), 1), torch.where(mask, channels, -1).long()
                known = alike.setdefault(which.shape, {})
                which = next((other for other in known.values() if torch.equal(which, other)), which)
                known[id(which)] = which
                part = ParamSlice(name, graph.shapes[name], axis, entries, sign < 0, scales.offset, which)
                found[index - 1][side].append(part)
    return found


def _exponents(size: int, seed: int) -> Tensor:
    """Random exponents of two for the factors of a group: -2, -1, 1 or 2; float64, shape (size,)."""
    drawn = torch.randint(4, (size,), generator=torch.Generator().manual_seed(seed))
    return torch.tensor([-2.0, -1.0, 1.0, 2.0], dtype=torch.float64)[drawn]


def _as_slice(places: Tensor) -> slice | tuple[int, ...]:
    steps = places.diff()
    step = int(steps[0]) if len(steps) else 1
    even = not bool((steps != step).any())
    return slice(int(places[0]), int(places[-1]) + 1, step) if even else tuple(places.tolist())


# ---- exports


def groups_to_awq_mappings(
    groups: Iterable[ScaleGroup], *, experts: Literal["linear", "skip"] = "linear", fused: bool = True
) -> list[dict[str, Any]]:
    """Scale groups in the form that AWQ and SmoothQuant tools take: ``smooth_layer`` and ``balance_layers`` by name.

    In such a mapping the output channels of one smooth layer, a norm or a linear layer, are in their order the input
    channels of all balance layers, which are linear. Groups of another form (queries against keys, values that several
    query heads share, convolutions, channels along a residual connection) have no such mapping and are left out. Of
    gains written ``1 + weight`` a tool must scale the sum; llm-compressor does.

    Args:
        groups: what :func:`scale_groups` found.
        experts: ``linear``: experts whose weights are one parameter are named as the linear layers that llm-compressor
            makes of them, such as ``experts.0.up_proj``. ``skip``: groups that they belong to are left out.
        fused: include smooth layers with more outputs than there are channels, whose last outputs the tool must take;
            SmoothQuant tools do not.

    Example:
        >>> import torch, pathcond
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> pathcond.groups_to_awq_mappings(pathcond.scale_groups(model, torch.ones(1, 3)))
        [{'smooth_layer': '0', 'balance_layers': ['2']}]
    """
    check_choice("experts", experts, ("linear", "skip"))
    found = []
    for group in [group for group in groups if not group.frozen and group.consumers]:
        smooth, consumers = _smooth_layer(group, fused), sorted(group.consumers, key=lambda part: len(part.shape))
        balance = [_balance_layers(part, group.channels, experts) for part in consumers]
        if smooth and all(balance):
            found.append({"smooth_layer": smooth, "balance_layers": list(dict.fromkeys(chain(*balance)))})
        elif experts == "linear":
            found += _inside_experts(group)
    return found


def groups_to_cle_pairs(groups: Iterable[ScaleGroup]) -> list[tuple[str, str]]:
    """Pairs of layers for cross-layer equalization: all outputs of the first are the inputs of the second alone.

    The second may be a depthwise convolution.
    """
    pairs = []
    for model, group in [(group._source[0], group) for group in groups if group._source]:
        parts = (*group.producers, *group.consumers)
        weights = [part for part in parts if len(part.shape) > 1]
        modules = [{part.module for part in side} for side in (group.producers, group.consumers)]
        named = all(part.parameter == f"{part.module}.weight" for part in weights)
        if named and modules == [{part.module} for part in weights] and all(_whole(p, group.channels) for p in parts):
            axes = [_axes_of(model.get_submodule(part.module), len(part.shape)) for part in weights]
            if [part.axis for part in weights] == [axes[0][0], axes[1][1]]:
                pairs.append((weights[0].module, weights[1].module))
    return pairs


def _last(part: ParamSlice, channels: int) -> bool:
    """Whether the channels of a group are, in their order, the last entries along an axis of the parameter."""
    size = part.shape[part.axis or 0]
    last = part.axis is not None and part.index == slice(size - channels, size, 1)
    return last and not part.inverse and torch.equal(part.channel, torch.arange(channels))


def _whole(part: ParamSlice, channels: int) -> bool:
    """Whether the channels of a group are, in their order, all entries along an axis of the parameter."""
    return _last(part, channels) and part.index == slice(0, channels, 1) and not part.offset


def _smooth_layer(group: ScaleGroup, fused: bool) -> str | None:
    """The norm or linear layer that makes a group's channels, in their order."""
    name = group.producers[0].module if group.producers else ""
    for part in group.producers:
        whole, known = part.shape[0] == group.channels, part.parameter in (f"{name}.weight", f"{name}.bias")
        fits = {1: whole, 2: (whole or fused) and not part.offset}  # of a fused layer tools scale the last outputs
        if not (known and part.axis == 0 and fits.get(len(part.shape)) and _last(part, group.channels)):
            return None
    return name


_HALVES = {"gate_up_proj": ("gate_proj", "up_proj"), "up_proj": ("up_proj",), "down_proj": ("down_proj",)}


def _balance_layers(part: ParamSlice, channels: int, experts: str) -> list[str]:
    """The linear layers that read all channels of a group, in their order, through this part of a parameter."""
    key = part.parameter.rpartition(".")[-1]
    if not _whole(part, channels):
        return []
    if len(part.shape) == 3 and experts == "linear":
        return [f"{part.module}.{i}.{half}" for i in range(part.shape[0]) for half in _HALVES.get(key, ())]
    return [part.module] if (len(part.shape), part.axis, key) == (2, 1, "weight") else []


def _inside_experts(group: ScaleGroup) -> list[dict[str, Any]]:
    """The mappings of the hidden channels of experts whose weights are one parameter."""
    sides = [[part for part in side if len(part.shape) == 3] for side in (group.producers, group.consumers)]
    keys = [[part.parameter.rpartition(".")[-1] for part in side] for side in sides]
    modules = {part.module for part in (*group.producers, *group.consumers)}
    if len(modules) != 1 or keys not in ([["gate_up_proj"], ["down_proj"]], [["up_proj"], ["down_proj"]]):
        return []
    weights = [*chain(*sides)]
    name, count = weights[0].module, weights[0].shape[0]
    shared = count > 1 and any(part.axis is not None for part in weights)  # all experts have the same scales
    if shared or group.channels % count or any(part.inverse for part in weights):
        return []
    order = torch.arange(group.channels).reshape(count, -1)
    if not all(torch.equal(part.channel.reshape(count, -1)[:, -order.shape[1] :], order) for part in weights):
        return []
    return [{"smooth_layer": f"{name}.{i}.up_proj", "balance_layers": [f"{name}.{i}.down_proj"]} for i in range(count)]


# ---- mappings that a user wrote


@dataclass(frozen=True, slots=True)
class MappingCheck:
    """What :func:`verify_mapping` found for one smooth layer of a mapping. ``print`` it.

    Attributes:
        smooth_layer: name of the module whose outputs are multiplied; the pattern itself where no module has it.
        balance_layers: names of the modules whose input columns are divided.
        channels: number of factors; 0 where the entry cannot be applied.
        change: relative change of the function in the model's present mode; None where the entry cannot be applied, and
            for models without weights (meta device).
        verdict: ``exact``: the function is kept for every input and in both modes, by the graph and, up to rounding, by
            measurement.
            ``holds on this input``: no change was measured, but the graph does not show that there is none elsewhere;
            or, without weights, the graph shows it for the calls that were recorded, but there may be others.
            ``not exact``: a change was measured. ``not shown``: without weights, the graph does not show it.
            ``cannot be applied``.
        reason: why the verdict is not ``exact``.
        omitted: parameters that would have to be scaled too.
    """

    smooth_layer: str
    balance_layers: tuple[str, ...]
    channels: int
    change: float | None
    verdict: Literal["exact", "holds on this input", "not exact", "not shown", "cannot be applied"]
    reason: str = ""
    omitted: tuple[str, ...] = ()

    @property
    def exact(self) -> bool:
        """Whether the function is kept for every input, in eval and in training mode."""
        return self.verdict == "exact"

    def __str__(self) -> str:
        arrow = f"{self.smooth_layer} -> {', '.join(self.balance_layers) or '(nothing)'}"
        measured = "" if self.change is None else f", change {self.change:.1e}"
        return f"{arrow}: {self.verdict}{measured}{': ' if self.reason else ''}{self.reason}"


@on_cpu
def verify_mapping(
    model: nn.Module,
    example_input: Any,
    mapping: Iterable[Any],
    *,
    seed: int = 0,
    offset: bool = True,
    groups: ScaleGroups | None = None,
) -> tuple[MappingCheck, ...]:
    """Find out whether the entries of an AWQ, SmoothQuant or equalization mapping keep a model's function.

    For each smooth layer that an entry names, the outputs are multiplied by random powers of two, which cause no
    rounding, and the input columns of its balance layers are divided by them. The scales are compared with those that
    :func:`scale_groups` finds, and the change of the function is measured on the model, which is then restored bit for
    bit. Models on the meta device are compared alone.

    Args:
        model: the model that the mapping is for.
        example_input: an input for it, as for :func:`pathcond.extract_graph`.
        mapping: entries with ``smooth_layer`` and ``balance_layers`` (also ``smooth_layers``; ``norm`` and
            ``linears``), as keys or attributes; or pairs ``(balance_layers, smooth_layers)``, ``(smooth_layer,
            balance_layers)`` or ``(first, second)``. Layers are module names, endings of module names where no module
            has the whole name, or regular expressions: after ``re:``, or with characters that names do not have.
            Where names fit several blocks, a smooth layer goes with the balance layers nearest to it. Of a smooth layer
            with more outputs than its balance layers have inputs, the last ones are scaled, as AWQ tools do for fused
            projections. Experts whose weights are one parameter are named as in :func:`groups_to_awq_mappings`.
        seed: seed of the random factors.
        offset: of gains that the model uses as ``1 + weight``, scale the sum; False for tools that scale the weight.
        groups: what :func:`scale_groups` found for this model and input, so that it is not analyzed again.

    Returns:
        One :class:`MappingCheck` for each smooth layer found, or for each entry without any.

    Example:
        >>> import torch, pathcond
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.GELU(), torch.nn.Linear(8, 2))
        >>> found = pathcond.verify_mapping(model, torch.ones(1, 3), [{"smooth_layer": "0", "balance_layers": ["2"]}])
        >>> found[0].verdict
        'not exact'
    """
    meta = any(p.is_meta for p in model.parameters())
    check_model(model, values=not meta)
    check_flags(offset=offset)
    graph, unknown = next((group._source[-1] for group in groups or () if group._source), None), ""
    try:
        graph = graph or extract_graph(model, example_input)
        graph.check_fits(model)
    except RecordError as error:
        unknown = f"the model cannot be analyzed: {error}"
    layers, parts = _layers(model, graph)
    resolved = [found for entry in mapping for found in _resolve(layers, *_entry(entry))]
    scales = None if graph is None else _Scales(graph, parts, offset)
    notes = "; ".join(graph.notes) if graph else ""
    reports = []
    for smooth, balance, fault in resolved:
        size, fault = (0, fault) if fault else _factors(layers, smooth, balance)
        if fault:
            reports.append(MappingCheck(smooth, balance, 0, None, "cannot be applied", fault))
            continue
        # The graph is compared with numbers that all differ, so that no two channels may be swapped.
        apart = _scaled(layers, smooth, balance, torch.arange(1.0, size + 1, dtype=torch.float64))
        why, omitted = scales.disagreement(apart) if scales else (unknown, ())
        change, kept = None, False
        if not meta:
            exponents = _scaled(layers, smooth, balance, _exponents(size, seed))
            with trial(model, example_input, {part.parameter for part in exponents}) as check:
                _apply(exponents, offset)
                change = check.change()
                kept = change <= _EXACT or (not why and check.noise(change / 10) >= change / 10)
        if change is not None and not kept:
            verdict, why = "not exact", why or "the function changes, though the graph allows it"
        elif why or notes:
            agrees = meta and not why and graph is not None and not graph.approximate
            verdict, why = "holds on this input" if kept or agrees else "not shown", why or notes
        else:
            verdict = "exact"
        reports.append(MappingCheck(smooth, balance, size, change, verdict, why, omitted))
    return tuple(reports)


@dataclass(frozen=True, eq=False, slots=True)
class _Part:
    """A parameter; or what belongs to one linear layer of one expert in a parameter of all experts.

    ``row`` and ``col`` are the units that it enters and leaves, as in :class:`pathcond.ParamScales`.
    """

    name: str
    parameter: str
    values: Tensor
    row: Tensor
    col: Tensor
    offset: float

    def cut(self, name: str, *index: int | slice) -> _Part:
        """The part at an index, which is a view."""

        def of(values: Tensor) -> Tensor:  # broadcasts to the parameter
            keys = zip(index, values.shape, strict=False)
            return values[tuple(key if n > 1 else 0 if isinstance(key, int) else slice(None) for key, n in keys)]

        return replace(self, name=name, values=self.values[index], row=of(self.row), col=of(self.col))


class _Scales:
    """What a graph says of the parts of a model's parameters; ``offset`` as in :func:`verify_mapping`."""

    def __init__(self, graph: ScaleGraph, parts: Sequence[_Part], offset: bool) -> None:
        self.graph, self.parts, self.offset = graph, parts, offset
        self.log = torch.zeros(2 * graph.units + 1, dtype=torch.float64)  # by number, which may be negative
        units = [distinct(torch.cat([end.abs().reshape(-1) for end in (part.row, part.col)])) for part in parts]
        ends = [(int(found[0]), int(found[-1])) if len(found) else (1, 0) for found in units]
        self.first, self.last = torch.tensor(ends).T

    def disagreement(self, wanted: Mapping[_Part, Tensor]) -> tuple[str, tuple[str, ...]]:
        """Why the graph does not show that log-scales of parts keep the function in every mode; those left out."""
        smooth, logs = next(iter(wanted.items()))
        row, logs = torch.broadcast_tensors(smooth.row, logs)
        numbers, logs = row[logs != 0], logs[logs != 0]
        if not bool(numbers.all()):
            reasons = [str(entry) for entry in self.graph.frozen_by_module.get(owner(smooth.parameter), ())]
            reason = "; ".join(reasons) or "no scale group has them"
            return f"channels of '{owner(smooth.name)}' are not free: {reason}", ()
        if smooth.offset and not self.offset:
            return f"'{smooth.name}' is used as {smooth.offset:g} + weight", ()
        low, high = numbers.abs().aminmax()
        near = ((self.first <= high) & (self.last >= low)).nonzero()[:, 0].tolist()
        self.log[numbers], self.log[-numbers] = logs, -logs
        parts = dict.fromkeys([*(self.parts[i] for i in near), *wanted])
        other = [part for part in parts if self._differs(part, wanted.get(part, 0))]
        self.log[numbers] = self.log[-numbers] = 0
        scaled = {part.parameter for part in wanted}
        left_out = [part.name if part.parameter in scaled else part.parameter for part in other if part not in wanted]
        if omitted := tuple(dict.fromkeys(left_out)):
            return f"also read or made by {', '.join(omitted)}", omitted
        if other:
            return f"the graph scales {', '.join(part.name for part in other)} in another way", ()
        return "", ()

    def _differs(self, part: _Part, wanted: Tensor | int) -> bool:
        """Whether the graph gives a part other log-scales."""
        ends = [end for end in (self.log[part.row], -self.log[part.col]) if bool(end.any())]  # each broadcasts
        return bool((sum(ends, torch.zeros(1)) - wanted).any())


def _apply(exponents: Mapping[_Part, Tensor], offset: bool) -> None:
    """Multiply parts of parameters by powers of two."""
    with torch.inference_mode(False), torch.no_grad():
        for part, powers in exponents.items():
            shift = part.offset if offset else 0.0
            part.values.copy_((part.values.double() + shift) * powers.exp2().to(part.values.device) - shift)


_NAMES = (("smooth_layer", "balance_layers"), ("smooth_layers", "balance_layers"), ("norm", "linears"))


def _entry(entry: Any) -> tuple[str, list[str]]:
    """The smooth layer and the balance layers of an entry, as patterns."""
    get = entry.get if isinstance(entry, Mapping) else lambda name: getattr(entry, name, None)
    found = ((get(first), get(second)) for first, second in _NAMES)
    smooth, balance = next((pair for pair in found if None not in pair), (None, None))
    if smooth is None and isinstance(entry, (tuple, list)) and len(entry) == 2:
        smooth, balance = entry if isinstance(entry[0], str) else reversed(entry)
        balance = [balance] if isinstance(balance, str) else balance
    smooth = smooth[0] if isinstance(smooth, (list, tuple)) and len(smooth) == 1 else smooth
    names = list(balance) if isinstance(balance, (list, tuple)) else []
    if not isinstance(smooth, str) or not names or not all(isinstance(name, str) for name in names):
        raise PathCondError(
            "expected entries with one name 'smooth_layer' and a list of names 'balance_layers', or a pair of these, "
            f"got {entry!r}."
        )
    return smooth, names


def _named(pattern: str, names: Collection[str]) -> list[str]:
    """The names that a pattern fits: the whole name, else the ends of names; or a regular expression."""
    try:
        if pattern.startswith("re:"):
            return [name for name in names if re.match(pattern[3:], name)]
        if re.search(r"[^\w.\-]", pattern):
            return [name for name in names if re.search(pattern, name)]
    except re.error as error:
        raise PathCondError(f"expected a name or a regular expression, got '{pattern}': {error}.") from error
    return [pattern] if pattern in names else [name for name in names if name.endswith("." + pattern)]


def _resolve(layers: dict[str, _Layer], smooth: str, balance: list[str]) -> Iterator[tuple[str, tuple[str, ...], str]]:
    """The layers of an entry: smooth layer, its balance layers, and what is missing."""
    makers = _named(smooth, layers)
    if not makers:
        yield smooth, tuple(balance), f"no module is named '{smooth}'"
    for name in makers:
        readers = {}
        for pattern in balance:
            others = [other for other in _named(pattern, layers) if other != name]
            readers[pattern] = others if others == [pattern] else _nearest(name, others)
        lost = [f"no module near '{name}' is named '{pattern}'" for pattern, found in readers.items() if not found]
        yield name, tuple(dict.fromkeys(chain(*readers.values()))), "".join(lost[:1])


def _nearest(name: str, others: Sequence[str]) -> list[str]:
    """The names with the longest common prefix with ``name``, without those in another block of the same list."""
    own = name.split(".")
    shared = {}
    for other in others:
        parts = other.split(".")
        depth = len(commonprefix((own, parts)))
        inside = depth < min(len(own), len(parts)) and not (
            own[depth].isdigit() and parts[depth].isdigit() and depth < len(own) - 1
        )
        shared[other] = depth if inside else -1
    top = max([0, *shared.values()])
    return [other for other, depth in shared.items() if depth == top]


_Ends = tuple[tuple[_Part, int], ...]  # parts of parameters, each with the axis of the channels


@dataclass(frozen=True, eq=False, slots=True)
class _Layer:
    """A module, or a linear layer of an expert: what holds its output and its input channels."""

    kind: str
    made: _Ends = ()
    read: _Ends = ()


def _layers(model: nn.Module, graph: ScaleGraph | None) -> tuple[dict[str, _Layer], list[_Part]]:
    """The layers that a mapping may name, by name, and the parts of the model's parameters.

    Experts whose weights are one parameter count as linear layers, as in :func:`groups_to_awq_mappings`.
    """
    known, none = graph.params if graph else {}, torch.zeros(1, dtype=torch.int64)
    whole, layers = dict[int, _Part](), dict[str, _Layer]()
    for name, p in model.named_parameters():  # tied parameters have one name here
        scales = known.get(name) or ParamScales(row=none, col=none)
        whole[id(p)] = _Part(name, name, p.detach(), scales.row, scales.col, scales.offset)
    parts = list(whole.values())
    for path, module in model.named_modules():
        own = {key: whole[id(p)] for key, p in module.named_parameters(recurse=False)}
        axes = _axes_of(module, own["weight"].values.ndim) if "weight" in own else (None, None)
        layers[path] = _layer(type(module).__name__, own.get("weight"), own.get("bias"), *axes)
        fused = [key for key in _HALVES if key in own and own[key].values.ndim == 3]
        if len(fused) != 2 or "down_proj" not in fused:
            continue
        (_, rows, columns), (_, down_rows, down_columns) = (own[key].values.shape for key in fused)
        # Free scales vary along the outputs (row) and along the inputs (col), where there are any.
        row, col = ((*units.shape[1:], 1, 1)[:2] for units in (own[fused[0]].row, own[fused[0]].col))
        first, last = max(row[0], col[1]) > 1, max(row[1], col[0]) > 1
        turned = last if first != last else rows == down_columns and columns != down_rows
        made = int(getattr(module, "is_transposed", turned))
        together = getattr(module, "is_concatenated", True)
        for key in fused:
            experts, bias, halves = own[key], own.get(f"{key}_bias"), _HALVES[key]
            parts = [part for part in parts if part not in (experts, bias)]
            step = experts.values.shape[1 + made] // len(halves)
            for expert, (k, half) in product(range(len(experts.values)), enumerate(halves)):
                name = f"{path}.{expert}.{half}"
                cut = slice(k * step, (k + 1) * step) if together else slice(k, None, len(halves))
                weight = experts.cut(f"{name}.weight", expert, *(slice(None),) * made, cut)
                layers[name] = _layer("expert", weight, bias and bias.cut(f"{name}.bias", expert, cut), made, 1 - made)
                parts += [part for part, _ in layers[name].made]
    del layers[""]
    return layers, parts


def _layer(kind: str, weight: _Part | None, bias: _Part | None, made: int | None, read: int | None) -> _Layer:
    """A layer with its output and its input channels along these axes of the weight."""
    outputs, inputs = (() if weight is None or axis is None else ((weight, axis),) for axis in (made, read))
    if outputs and bias and (sizes := list(bias.values.shape)):
        outputs = (*outputs, (bias, sizes.index(max(sizes))))
    return _Layer(kind, outputs, inputs)


def _axes_of(module: nn.Module, ndim: int) -> tuple[int | None, int | None]:
    """The axes of a module's weight along which its output and its input channels lie; None if there are none."""
    if isinstance(module, nn.Embedding):
        return 1, None
    if isinstance(module, nn.modules.conv._ConvTransposeNd):
        return (1, 0) if module.groups == 1 else (None, None)
    if isinstance(module, nn.modules.conv._ConvNd):
        depthwise = module.groups == module.in_channels == module.out_channels
        return 0, 0 if depthwise else 1 if module.groups == 1 else None
    if type(module).__name__ == "Conv1D":  # GPT-2's linear layer, with the weight transposed
        return 1, 0
    return {1: (0, None), 2: (0, 1)}.get(ndim, (None, None))  # norms; linear layers and routers


def _factors(layers: Mapping[str, _Layer], smooth: str, balance: Sequence[str]) -> tuple[int, str]:
    """The number of factors of a mapping; or 0, and why it cannot be applied."""
    sizes = []
    for name, side in ((smooth, "output"), *((name, "input") for name in balance)):
        ends = layers[name].made if side == "output" else layers[name].read
        if not ends:
            return 0, f"'{name}' ({layers[name].kind}) has no weight with {side} channels"
        part, axis = ends[0]
        sizes.append(part.values.shape[axis])
    outputs, *inputs = sizes
    if len(set(inputs)) == 1 and 0 < inputs[0] <= outputs:
        return inputs[0], ""
    read = ", ".join(f"{size} of '{name}'" for size, name in zip(inputs, balance, strict=True))
    return 0, f"{outputs} outputs of '{smooth}' do not fit the inputs: {read or 'none'}"


def _scaled(layers: Mapping[str, _Layer], smooth: str, balance: Sequence[str], logs: Tensor) -> dict[_Part, Tensor]:
    """The log-scales that a mapping gives to parts of parameters, at the last entries of an axis; they broadcast."""
    found: dict[_Part, Tensor] = {}
    ends = [(*end, logs) for end in layers[smooth].made]
    ends += [(*end, -logs) for name in balance for end in layers[name].read]
    for part, axis, values in ends:
        line = pad(values, (part.values.shape[axis] - len(values), 0))
        found[part] = found.get(part, 0) + line.reshape([-1 if i == axis else 1 for i in range(part.values.ndim)])
    return found
