"""Scale groups: the rescaling symmetries of a model as values to print, to verify one by one and to hand to tools.

A *scale group* is a run of channels of one module, each of which may be multiplied by a positive factor if all
parameters that read it are divided by that factor. Quantization tools (AWQ, SmoothQuant, cross-layer equalization) move
scales along such groups, which they find in lists of module names written by hand for each architecture. Here they come
from the recorded forward pass, and each can be verified.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain, product, repeat, zip_longest
from os.path import commonprefix
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from pathcond.apply import scale_parameters_
from pathcond.checks import PathCondError, RecordError, check_choice, check_flags, check_model
from pathcond.graph import ParamScales, ScaleGraph, extract_graph
from pathcond.isolation import on_cpu
from pathcond.output_check import Check, trial
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


@dataclass(frozen=True)
class _Source:
    """The model that groups belong to, and the graph they come from."""

    model: nn.Module
    example_input: Any
    graph: ScaleGraph


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
    _source: _Source | None = field(default=None, repr=False)

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
        model, example_input, graph = self._source.model, self._source.example_input, self._source.graph
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
            parts = zip_longest(map(str, group.producers), map(str, group.consumers), fillvalue="")
            heads = chain([(group.name, str(group.channels))], repeat(("", "")))
            rows += [(*head, *part) for part, head in zip(parts, heads, strict=False)]
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
    runs_of = _runs_of_groups(graph)
    members = _members(graph, list(runs_of.values()))
    source = _Source(model, example_input, graph)
    free = []
    for number, ((name, *_), found) in enumerate(runs_of.items()):
        units = torch.cat([torch.arange(first - 1, last, dtype=torch.int32) for first, last in found])
        rows, cols = (tuple(members.get((number, side), ())) for side in ("row", "col"))
        free.append(ScaleGroup(name, len(units), rows, cols, units=units, _source=source))
    frozen = [
        ScaleGroup(name, entry.channels, (), (), entry.where, entry.reason)
        for name, entries in graph.frozen_by_module.items()
        for entry in entries
    ]
    return ScaleGroups((*free, *frozen))


_Run = tuple[int, int]  # the first and the last of consecutive unit numbers


def _runs_of_groups(graph: ScaleGraph) -> dict[tuple[Any, ...], list[_Run]]:
    """The units of each group, by the module that makes them and what touches them.

    Units belong to one group if the same module makes them and the same parameters enter and leave them.
    """
    marks: list[tuple[Any, list[_Run]]] = [
        (name, runs(distinct(numbers.abs())).T.tolist()) for name, numbers in graph.layers.items()
    ]
    for name, scales in graph.params.items():
        for side, numbers in (("row", scales.row), ("col", scales.col)):
            marks += [((name, side, sign), runs(distinct(sign * numbers)).T.tolist()) for sign in (1, -1)]
    spans = [span for _, found in marks for span in found]
    bounds = sorted({end for first, last in spans for end in (first, last + 1)})
    place = {bound: index for index, bound in enumerate(bounds)}
    touched: list[list[Any]] = [[] for _ in bounds]
    for mark, found in marks:
        for first, last in found:
            for index in range(place[first], place[last + 1]):
                touched[index].append(mark)
    order = [*graph.layers, *map(owner, graph.params)]
    groups: dict[tuple[Any, ...], list[_Run]] = {}
    for found, first, end in zip(touched, bounds, bounds[1:], strict=False):
        layers = [mark for mark in found if isinstance(mark, str)]
        if not layers:  # of a module that makes channels twice the graph lists the first
            layers = sorted({owner(name) for name, *end in found if end == ["row", 1]}, key=order.index)
        key = (layers[0], *(mark for mark in found if not isinstance(mark, str)))
        groups.setdefault(key, []).append((first, end - 1))
    return groups


def _members(graph: ScaleGraph, groups: list[list[_Run]]) -> dict[tuple[int, str], list[ParamSlice]]:
    """By number of the group, the parts of parameters that enter it (``row``) and leave it (``col``)."""
    found: dict[tuple[int, str], list[ParamSlice]] = {}
    starts = []
    for number, own in enumerate(groups):
        sizes = [last - first + 1 for first, last in own]
        before = accumulate(sizes, initial=0)
        starts += [(first, number, offset - first) for (first, _), offset in zip(own, before, strict=False)]
    first, group, shift = torch.tensor([*zip(*sorted(starts), (0, -1, 0), strict=True)], dtype=torch.int32)
    in_order = torch.arange(max((sum(last - first + 1 for first, last in own) for own in groups), default=0))
    alike: dict[torch.Size, list[Tensor]] = {}
    for name, scales in graph.params.items():
        for side, numbers in (("row", scales.row), ("col", scales.col)):
            axes = [axis for axis, size in enumerate(numbers.shape) if size > 1]
            run = torch.searchsorted(first[:-1], numbers.abs(), right=True) - 1  # the last stands for no group
            owners, channel = group[run], numbers.abs() + shift[run]
            for index, sign in product((distinct(owners + 1) - 1).tolist(), (1, -1)):
                mask = (owners == index) & (numbers * sign > 0)
                places = mask.reshape(-1).nonzero()[:, 0]
                if not len(places):
                    continue
                if len(axes) == 1:
                    axis, entries, which = axes[0], _as_slice(places), channel.reshape(-1)[places].long()
                else:
                    axis, entries, which = None, slice(0, numbers.numel(), 1), torch.where(mask, channel, -1).long()
                same = alike.setdefault(which.shape, [in_order[: len(which)]] if which.ndim == 1 else [])
                if not any(torch.equal(which, known) for known in same):
                    same.append(which)
                which = next(known for known in same if torch.equal(which, known))  # most layers share one
                part = ParamSlice(name, graph.shapes[name], axis, entries, sign < 0, scales.offset, which)
                found.setdefault((index, side), []).append(part)
    return found


def _exponents(size: int, seed: int) -> Tensor:
    """Random exponents of two for the factors of a group: -2, -1, 1 or 2; float64, shape (size,)."""
    drawn = torch.randint(4, (size,), generator=torch.Generator().manual_seed(seed))
    return torch.tensor([-2.0, -1.0, 1.0, 2.0], dtype=torch.float64)[drawn]


def _as_slice(places: Tensor) -> slice | tuple[int, ...]:
    steps = places.diff()
    step = int(steps[0]) if len(steps) else 1
    if bool((steps != step).any()):
        return tuple(places.tolist())
    return slice(int(places[0]), int(places[-1]) + 1, step)


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
        pair = _in_order(group, fused)
        pairs = [pair] if pair else _split_experts(group) if experts == "linear" else []
        found += [{"smooth_layer": smooth, "balance_layers": balance} for smooth, balance in pairs]
    return found


def groups_to_cle_pairs(groups: Iterable[ScaleGroup]) -> list[tuple[str, str]]:
    """Pairs of layers for cross-layer equalization: all outputs of the first are the inputs of the second alone.

    The second may be a depthwise convolution.
    """
    pairs = []
    for group in groups:
        parts = (*group.producers, *group.consumers)
        weights = [part for part in parts if len(part.shape) > 1]
        modules = [{part.module for part in side} for side in (group.producers, group.consumers)]
        whole = all(_whole(part, group.channels) for part in parts)
        named = all(part.parameter.endswith(".weight") for part in weights)
        if whole and named and modules == [{part.module} for part in weights]:
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


def _in_order(group: ScaleGroup, fused: bool = True) -> tuple[str, list[str]] | None:
    """The norm or linear layer that makes a group's channels, and the linear layers that read all of its outputs."""
    makers = {part.module for part in group.producers}
    if group.frozen or len(makers) != 1:
        return None
    (maker,) = makers
    for part in group.producers:
        size, ndim = part.shape[0], len(part.shape)
        known = part.parameter in (f"{maker}.weight", f"{maker}.bias") and ndim < 3 and part.axis == 0
        whole = size == group.channels or (fused and ndim == 2)  # of a fused layer tools scale the last outputs
        if not (known and whole and _last(part, group.channels)) or (ndim == 2 and part.offset):
            return None
    for part in group.consumers:
        linear = len(part.shape) == 2 and part.axis == 1 and part.parameter.endswith(".weight")
        if not linear or not _whole(part, group.channels):
            return None
    return maker, list(dict.fromkeys(part.module for part in group.consumers))


_HALVES = {"gate_up_proj": ("gate_proj", "up_proj"), "up_proj": ("up_proj",), "down_proj": ("down_proj",)}


def _split_experts(group: ScaleGroup) -> list[tuple[str, list[str]]]:
    """The mappings of a group in which the weights of all experts are one parameter, named as one layer per expert."""
    fused = [part for part in group.consumers if len(part.shape) == 3 and part.parameter.split(".")[-1] in _HALVES]
    rest = tuple(part for part in group.consumers if part not in fused)
    if not fused:
        return []
    if {part.module for part in group.producers} == {fused[0].module}:  # hidden channels of each expert
        name, count = fused[0].module, fused[0].shape[0]
        weights = [part for part in (*group.producers, *group.consumers) if len(part.shape) == 3]
        if len(weights) != 2 or any(part.inverse for part in weights) or group.channels % count:
            return []
        order = torch.arange(group.channels).reshape(count, -1)
        channels = [part.channel.reshape(count, -1)[:, -order.shape[1] :] for part in weights]
        in_order = all(torch.equal(found, order) for found in channels)
        return [(f"{name}.{i}.up_proj", [f"{name}.{i}.down_proj"]) for i in range(count)] if in_order else []
    pair = _in_order(replace(group, consumers=rest))
    if pair is None or not all(_whole(part, group.channels) for part in fused):
        return []
    layers = [
        f"{part.module}.{i}.{half}"
        for part in fused
        for i in range(part.shape[0])
        for half in _HALVES[part.parameter.split(".")[-1]]
    ]
    return [(pair[0], pair[1] + layers)]


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
    layers, parts = _layers(model)
    resolved = [found for entry in mapping for found in _resolve(layers, *_entry(entry))]
    graph, unknown = next((group._source.graph for group in groups or () if group._source), None), ""
    try:
        graph = graph or extract_graph(model, example_input)
        graph.check_fits(model)
    except RecordError as error:
        unknown = f"the model cannot be analyzed: {error}"
    scales = None if graph is None else _Scales(graph, parts, offset)
    notes = "" if graph is None else "; ".join(graph.notes)
    reports = []
    for smooth, balance, fault in resolved:
        size, places = (0, fault) if fault else _places(layers, smooth, balance)
        if isinstance(places, str):
            reports.append(MappingCheck(smooth, balance, 0, None, "cannot be applied", places))
            continue
        # The graph is compared with numbers that all differ, so that no two channels may be swapped.
        apart = torch.arange(1.0, size + 1, dtype=torch.float64)
        why, omitted = (unknown, ()) if scales is None else scales.disagreement(_spread(places, apart))
        change, kept = None, False
        if not meta:
            scaled = {parts[name]: values for name, values in _spread(places, _exponents(size, seed)).items()}
            with trial(model, example_input, {part.parameter for part in scaled}) as check:
                _apply(check, scaled, graph.params if graph is not None and offset else {})
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
    """A parameter; or what belongs to one linear layer of one expert in a parameter of all experts."""

    name: str
    parameter: str
    index: tuple[int | slice, ...] = ()

    def of(self, values: Tensor) -> Tensor:
        """This part of a tensor that broadcasts to the parameter."""
        pairs = zip(self.index, values.shape, strict=False)
        return values[tuple(key if n > 1 else 0 if isinstance(key, int) else slice(None) for key, n in pairs)]


class _Scales:
    """What a graph says of the parts of a model's parameters."""

    def __init__(self, graph: ScaleGraph, parts: Mapping[str, _Part], offset: bool) -> None:
        self.graph, self.parts, self.offset = graph, parts, offset
        self.names = list(parts)
        ends = [end.abs() for part in parts.values() for end in self._ends(part)]
        ends = [end[end > 0] for end in ends]
        spans = [[int(bound) for bound in end.aminmax()] if len(end) else [1, 0] for end in ends]
        self.spans = torch.tensor(spans).reshape(-1, 2, 2)  # part, side, and first and last unit there

    def _of(self, part: _Part) -> ParamScales:
        none = torch.zeros(1, dtype=torch.int64)
        return self.graph.params.get(part.parameter, ParamScales(row=none, col=none))

    def _ends(self, part: _Part) -> tuple[Tensor, Tensor]:
        scales = self._of(part)
        return part.of(scales.row), part.of(scales.col)

    def disagreement(self, wanted: Mapping[str, Tensor]) -> tuple[str, tuple[str, ...]]:
        """Why the graph does not show that log-scales of parts keep the function in every mode; those left out."""
        name, first = next(iter(wanted.items()))
        smooth = self.parts[name]
        row, logs = torch.broadcast_tensors(self._ends(smooth)[0], first)
        numbers, logs = row[logs != 0], logs[logs != 0]
        if not bool(numbers.all()):
            reasons = [str(entry) for entry in self.graph.frozen_by_module.get(owner(smooth.parameter), ())]
            return f"channels of '{owner(name)}' are not free: {'; '.join(reasons) or 'no scale group has them'}", ()
        offset = self._of(smooth).offset
        if offset and not self.offset:
            return f"'{name}' is used as {offset:g} + weight", ()
        low, high = (int(end) for end in numbers.abs().aminmax())
        log = torch.zeros(high - low + 1, dtype=torch.float64)
        log[numbers.abs() - low] = logs * numbers.sign()

        def log_of(numbers: Tensor) -> Tensor:
            place = numbers.abs() - low
            inside = (place >= 0) & (place < len(log))
            return torch.where(inside, log[place.clamp(0, len(log) - 1)] * numbers.sign(), 0)

        near = ((self.spans[..., 0] <= high) & (self.spans[..., 1] >= low)).any(1).nonzero()[:, 0].tolist()
        named = {self.parts[name].parameter for name in wanted}
        omitted, other = {}, []
        for name in dict.fromkeys([*(self.names[i] for i in near), *wanted]):
            row, col = map(log_of, self._ends(self.parts[name]))
            scaled = [end for end in (row, -col) if bool(end.any())]
            if bool((sum(scaled, torch.zeros(1)) - wanted.get(name, 0)).any()):
                if name in wanted:
                    other.append(name)
                else:
                    parameter = self.parts[name].parameter
                    omitted[name if parameter in named else parameter] = None
        if omitted:
            return f"also read or made by {', '.join(omitted)}", tuple(omitted)
        if other:
            return f"the graph scales {', '.join(other)} in another way", ()
        return "", ()


def _apply(check: Check, scaled: Mapping[_Part, Tensor], known: Mapping[str, ParamScales]) -> None:
    """Multiply parts of parameters by powers of two."""
    with torch.inference_mode(False), torch.no_grad():
        for part, exponents in scaled.items():
            p = part.of(check.model.get_parameter(part.parameter))
            offset = known[part.parameter].offset if part.parameter in known else 0.0
            p.copy_((p.double() + offset) * exponents.exp2().to(p.device) - offset)


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


def _named(pattern: str, names: Iterable[str]) -> list[str]:
    """The names that a pattern fits: the whole name, else the ends of names; or a regular expression."""
    try:
        if pattern.startswith("re:"):
            return [name for name in names if re.match(pattern[3:], name)]
        if re.search(r"[^\w.\-]", pattern):
            return [name for name in names if re.search(pattern, name)]
    except re.error as error:
        raise PathCondError(f"expected a name or a regular expression, got '{pattern}': {error}.") from error
    names = list(names)
    return [pattern] if pattern in names else [name for name in names if name.endswith("." + pattern)]


def _resolve(
    layers: Mapping[str, _Layer], smooth: str, balance: Sequence[str]
) -> list[tuple[str, tuple[str, ...], str]]:
    """The layers of an entry: smooth layer, its balance layers, and what is missing."""
    found = []
    for name in _named(smooth, layers):
        readers: list[str] = []
        missing = ""
        for pattern in balance:
            others = [other for other in _named(pattern, layers) if other != name]
            near = others if others == [pattern] else _nearest(name, others)
            missing = missing or ("" if near else f"no module near '{name}' is named '{pattern}'")
            readers += [other for other in near if other not in readers]
        found.append((name, tuple(readers), missing))
    return found or [(smooth, tuple(balance), f"no module is named '{smooth}'")]


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


@dataclass(frozen=True, eq=False, slots=True)
class _Layer:
    """A module, or a linear layer of an expert: the parts of parameters that it has, and the axes of its channels."""

    kind: str
    shape: tuple[int, ...]
    weight: _Part | None
    bias: _Part | None
    made: int | None
    read: int | None


def _layers(model: nn.Module) -> tuple[dict[str, _Layer], dict[str, _Part]]:
    """The layers that a mapping may name, and the parts of the model's parameters, by name.

    Experts whose weights are one parameter count as linear layers, as in :func:`groups_to_awq_mappings`.
    """
    names = {id(p): name for name, p in model.named_parameters()}  # tied parameters have one name here
    parts = {name: _Part(name, name) for name in names.values()}
    layers: dict[str, _Layer] = {}
    for module_name, module in model.named_modules():
        own = dict(module.named_parameters(recurse=False))
        weight, bias = (parts.get(names[id(own[key])]) if key in own else None for key in ("weight", "bias"))
        shape = tuple(own["weight"].shape) if weight else ()
        layers[module_name] = _Layer(type(module).__name__, shape, weight, bias, *_axes_of(module))
        for key, made in _expert_axes(own, module).items():
            halves, size = _HALVES[key], own[key].shape[1 + made]
            cuts = [slice(k, None, len(halves)) for k in range(len(halves))]
            if getattr(module, "is_concatenated", True):
                cuts = [slice(size * k // len(halves), size * (k + 1) // len(halves)) for k in range(len(halves))]
            bias_name = names.get(id(own.get(f"{key}_bias")))
            for expert, (half, cut) in product(range(len(own[key])), zip(halves, cuts, strict=True)):
                layer = f"{module_name}.{expert}.{half}"
                index = (expert, slice(None), cut) if made else (expert, cut)
                weight = _Part(f"{layer}.weight", names[id(own[key])], index)
                bias = _Part(f"{layer}.bias", bias_name, (expert, cut)) if bias_name else None
                shape = weight.of(own[key]).shape
                layers[layer] = _Layer("expert", tuple(shape), weight, bias, made, 1 - made)
                parts |= {part.name: part for part in (weight, bias) if part}
            for name in (names[id(own[key])], bias_name or ""):
                parts.pop(name, None)
    layers.pop("", None)
    return layers, parts


def _axes_of(module: nn.Module) -> tuple[int | None, int | None]:
    """The axes of a module's weight along which its output and its input channels lie; None if there are none."""
    weight = getattr(module, "weight", None)
    if not isinstance(weight, nn.Parameter):
        return None, None
    if weight.ndim == 1:
        return 0, None
    if isinstance(module, nn.Embedding):
        return 1, None
    if isinstance(module, nn.modules.conv._ConvTransposeNd):
        return (1, 0) if module.groups == 1 else (None, None)
    if isinstance(module, nn.modules.conv._ConvNd):
        depthwise = module.groups == module.in_channels == module.out_channels
        return 0, 0 if depthwise else 1 if module.groups == 1 else None
    if type(module).__name__ == "Conv1D":  # GPT-2's linear layer, with the weight transposed
        return 1, 0
    return (0, 1) if weight.ndim == 2 else (None, None)  # linear layers and routers


def _expert_axes(own: Mapping[str, nn.Parameter], module: nn.Module) -> dict[str, int]:
    """The parameters of a module that hold the weights of all experts, and the axis of an expert's outputs in each."""
    fused = {key: own[key].shape for key in _HALVES if key in own and own[key].ndim == 3}
    if len(fused) != 2 or "down_proj" not in fused:
        return {}
    (_, rows, columns), (_, down_rows, down_columns) = fused.values()
    transposed = getattr(module, "is_transposed", rows == down_columns and columns != down_rows)
    return dict.fromkeys(fused, int(transposed))


_Places = list[tuple[_Part, int, int, int, int]]  # number of axes, the axis, its size, and -1 where divided, else 1


def _places(layers: Mapping[str, _Layer], smooth: str, balance: Sequence[str]) -> tuple[int, _Places | str]:
    """The number of factors of a mapping, and what they multiply and divide; or why there is nothing."""
    layer = layers[smooth]
    if layer.made is None or layer.weight is None:
        return 0, f"'{smooth}' ({layer.kind}) has no weight with output channels"
    outputs, ndim = layer.shape[layer.made], len(layer.shape)
    places = [(layer.weight, ndim, layer.made, outputs, 1)]
    places += [(layer.bias, 1, 0, outputs, 1)] if layer.bias else []
    inputs = []
    for name in balance:
        reader = layers[name]
        if reader.read is None or reader.weight is None:
            return 0, f"'{name}' ({reader.kind}) has no weight with input channels"
        inputs.append(reader.shape[reader.read])
        places.append((reader.weight, len(reader.shape), reader.read, inputs[-1], -1))
    if len(set(inputs)) != 1 or not 0 < inputs[0] <= outputs:
        read = ", ".join(f"{n} of '{name}'" for n, name in zip(inputs, balance, strict=True))
        return 0, f"{outputs} outputs of '{smooth}' do not fit the inputs: {read or 'none'}"
    return inputs[0], places


def _spread(places: _Places, values: Tensor) -> dict[str, Tensor]:
    """Values of the channels, by name of the part, at the last entries of its axis; broadcast to it."""
    found: dict[str, Tensor] = {}
    for part, ndim, axis, size, sign in places:
        line = pad(sign * values, (size - len(values), 0))
        line = line.reshape([-1 if i == axis else 1 for i in range(ndim)])
        found[part.name] = found.get(part.name, 0) + line
    return found
