"""What rules are written with: group maps of a trace, and the entry of an operation in the table.

Every value of a trace gets a *group map*: an integer tensor that broadcasts to the value's shape and holds,
for each element, the channel group whose scale the element carries. :data:`FROZEN` stands for scale one, :data:`ZERO`
for elements that are zero and so fit any scale. Layers with parameters start new groups; an addition ties the groups of
its operands; an operation without a rule freezes the groups that reach it. See :class:`ScalePropagation`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pathcond.checks import PathCondError, UnsupportedOpError
from pathcond.rules.paths import PathSums
from pathcond.tracing import Call, Constants, Ref, Trace, refs

# ---- group maps


FROZEN, ZERO = 0, -1
GROUP = torch.int32  # the type of group maps: large models have tens of millions of groups


@dataclass(frozen=True, slots=True)
class Reason:
    """Why scales are frozen: the module that is the cause, the reason in words, and whether hidden units are lost."""

    where: str
    text: str
    lost: bool = True


@dataclass(frozen=True, slots=True)
class ParamView:
    """A parameter or a piece of it, up to the order of its axes and axes of size one.

    ``axes[i]`` is the parameter's own axis that axis ``i`` shows, None where the size is one. ``shape`` is the
    parameter's own; along its axis ``j`` the view shows ``sizes[j]`` entries from ``starts[j]`` on. The value shown is
    ``offset + parameter``, times a constant where it is not ``plain``.
    """

    name: str
    axes: tuple[int | None, ...]
    shape: tuple[int, ...]
    starts: tuple[int, ...]
    sizes: tuple[int, ...]
    offset: float = 0.0
    plain: bool = True


@dataclass(frozen=True, slots=True)
class Use:
    """Groups that a parameter's elements, or their sums with ``offset``, enter (``row``) and leave (``col``).

    Groups of experts stand for those of every expert along ``expert_axis``.
    """

    row: Tensor = field(compare=False)
    col: Tensor = field(compare=False)
    offset: float = 0.0
    bias: bool = False
    expert_axis: int | None = None

    def same(self, other: Use) -> bool:
        """Whether another use has the same groups, and all else alike."""
        return self == other and torch.equal(self.row, other.row) and torch.equal(self.col, other.col)


@dataclass(frozen=True, slots=True)
class Layer:
    """The groups ``first .. first + size - 1``: the output channels of the module ``name``.

    ``hidden`` says that a later layer reads the channels; ``experts`` is the number of experts that have them.
    """

    name: str
    first: int
    size: int
    hidden: bool
    experts: int = 1


@dataclass
class ScalePropagation:
    """The group maps of all traces of one model, and what ties and freezes the groups.

    A rule is called as ``rule(s, call, a)`` with this object, the recorded call and its arguments by name. It reads
    group maps with :meth:`groups` and :meth:`parameter`, and ends with :meth:`set_result` or :meth:`freeze_through`.
    What it does not read is frozen, such as a PReLU slope, which is a constant factor.

    Attributes:
        table: the rules by function.
        batchnorm, smooth, strict: the options of :func:`pathcond.extract_graph`.
        alias: for parameters on shared memory, the name of the first of them.
        data: values of the trace at hand that depend on an input.
    """

    table: Mapping[Any, Any]
    batchnorm: str = "affine"
    smooth: bool = False
    strict: bool = False
    alias: dict[str, str] = field(default_factory=dict)
    count: int = 1
    begins: list[int] = field(default_factory=list)  # number of the first new group of each trace
    ties: list[Tensor] = field(default_factory=list)
    inverse_ties: list[Tensor] = field(default_factory=list)
    frozen: dict[Reason, list[Tensor]] = field(default_factory=dict)
    uses: dict[str, list[Use]] = field(default_factory=dict)
    layers: list[Layer] = field(default_factory=list)
    made: dict[Any, int] = field(default_factory=dict)  # places in ``layers`` of the outputs of parameters
    shared: list[Tensor] = field(default_factory=list)  # groups of experts that must share one scale
    frozen_parameters: dict[str, Reason] = field(default_factory=dict)
    approximate: set[str] = field(default_factory=set)
    moves: list[tuple[str, Tensor, Tensor]] = field(default_factory=list)  # of the first trace; see pathcond.graph
    added: dict[Any, list[Tensor]] = field(default_factory=dict)  # ties and frozen groups, by what is quickly compared
    # The trace at hand, its values' group maps, and the state of the call at hand.
    trace: Trace = field(init=False)
    constants: Constants = field(init=False)
    data: set[int] = field(default_factory=set)
    hidden: bool = False
    maps: dict[int, Tensor | ParamView] = field(default_factory=dict)
    read: set[int] = field(default_factory=set)
    calls_of: dict[ParamView, int] = field(default_factory=dict)  # outputs of parameters
    experts: dict[int, list[Tensor]] = field(default_factory=dict)  # groups of experts, by the value that divides rows

    def begin(self, trace: Trace, constants: Constants, data: set[int]) -> None:
        """Go on with another trace of the model."""
        self.trace, self.constants, self.data = trace, constants, data
        self.maps, self.calls_of, self.experts = {}, {}, {}
        self.begins.append(self.count)

    # ---- values

    def look_up(self, value: int) -> Tensor | ParamView:
        """The group map of a value, or the parameter it is."""
        made = self.trace.values[value]
        if value not in self.maps and made.leaf is not None:
            if made.leaf.kind == "param":
                axes = tuple(i if n > 1 else None for i, n in enumerate(made.shape))
                name = self.alias.get(made.leaf.name, made.leaf.name)
                self.maps[value] = ParamView(name, axes, made.shape, (0,) * len(axes), made.shape)
            else:
                self.maps[value] = self.uniform(value, FROZEN)
        return self.maps[value]

    def uniform(self, value: int, group: int) -> Tensor:
        """A group map with one group for all elements of a value."""
        return torch.full((1,) * len(self.shape(value)), group, dtype=GROUP)

    def shape(self, value: int) -> tuple[int, ...]:
        """The shape of a value of the trace at hand."""
        return self.trace.values[value].shape

    def floating(self, value: int) -> bool:
        """Whether a value of the trace at hand has a floating-point dtype."""
        return self.trace.values[value].dtype.is_floating_point

    def groups(self, x: Any) -> Tensor:
        """The group map of an argument; a parameter read as data is frozen, a number stands for a constant."""
        if not isinstance(x, Ref):
            return torch.tensor(ZERO if x in (0, None, False) else FROZEN)
        self.read.add(x.id)
        found = self.look_up(x.id)
        if isinstance(found, ParamView):
            reason = f"parameter '{found.name}' is read outside a layer with a rule"
            self.freeze_parameter(found.name, Reason("", reason))
            return self.uniform(x.id, FROZEN)
        return found

    def parameter(self, x: Any) -> ParamView | None:
        """The parameter an argument is, or None."""
        found = self.look_up(x.id) if isinstance(x, Ref) else None
        if not isinstance(found, ParamView):
            return None
        self.read.add(x.id)
        return found

    def set_result(self, call: Call, *maps: Tensor | ParamView) -> None:
        """Set the group maps of a call's results, with axes in front as needed; results without one carry no scale."""
        for index, value in enumerate(call.outs):
            found = maps[index] if index < len(maps) else self.uniform(value, FROZEN)
            self.maps[value] = with_axes(found, len(self.shape(value))) if isinstance(found, Tensor) else found

    def channels(self, x: Any, axis: int, call: Call) -> Tensor:
        """The groups along one axis, as a vector of full length, tied along all others; shape (channels,)."""
        found = self.collapse(self.groups(x), [axis], mixed_positions(call))
        return found.reshape(-1).expand(self.shape(x.id)[axis])

    # ---- groups

    def new_groups(self, size: int, source: ParamView | str, experts: int = 1) -> Tensor:
        """Groups for the ``size`` output channels of a parameter, or of the module with a name.

        In every trace a parameter's outputs get the groups of the first: it has one scale for all calls of the model.
        """
        if isinstance(source, ParamView):
            number = self.calls_of[source] = self.calls_of.get(source, 0) + 1
            place = self.made.setdefault((source, size, number), len(self.layers))
            name = owner(source.name)
        else:
            place, name = len(self.layers), source
        if place == len(self.layers):
            self.layers.append(Layer(name, self.count, size, self.hidden, experts))
            self.count += size
        layer = self.layers[place]
        self.layers[place] = replace(layer, hidden=layer.hidden or self.hidden)
        return torch.arange(layer.first, layer.first + size, dtype=GROUP)

    def with_layers(self, groups: Tensor) -> Tensor:
        """All groups of the layers that some groups belong to."""
        firsts = torch.tensor([layer.first for layer in self.layers], dtype=GROUP)
        places = (torch.bucketize(distinct(groups), firsts, right=True) - 1).unique().tolist()
        layers = [self.layers[place] for place in places]
        return torch.cat([groups[:0], *(torch.arange(x.first, x.first + x.size, dtype=GROUP) for x in layers)])

    def freeze(self, groups: Tensor, reason: Reason) -> None:
        """Fix the scale of every group in a map at one."""
        found = distinct(groups)
        if len(found):
            self.add_new(self.frozen.setdefault(reason, []), found)

    def tie(self, a: Tensor, b: Tensor, reason: Reason) -> Tensor:
        """Make two group maps share their scales, element by element; returns the joint map."""
        if a.shape == b.shape and torch.equal(a, b):
            return a
        shape = torch.broadcast_shapes(a.shape, b.shape)
        a, b = with_axes(a, len(shape)), with_axes(b, len(shape))
        smaller = min(a, b, key=Tensor.numel)
        if max(a.numel(), b.numel()) < math.prod(shape) and not bool((a == ZERO).any() | (b == ZERO).any()):
            # Every group of one map meets every group of the other, as in tied embeddings: pairs with the first of each
            # connect them all.
            self._relate(a, _first_where_one(b, a), reason, self.ties)
            self._relate(_first_where_one(a, b), b, reason, self.ties)
        else:
            self._relate(a, b, reason, self.ties)
        if smaller.numel() < math.prod(shape) and not bool((smaller == ZERO).any()):
            return smaller
        return torch.where(a == ZERO, b, torch.where(b == FROZEN, b, a))

    def tie_inverse(self, a: Tensor, b: Tensor, reason: Reason) -> None:
        """Make the scales of two group maps inverse to one another, element by element."""
        self._relate(a, b, reason, self.inverse_ties)

    def _relate(self, a: Tensor, b: Tensor, reason: Reason, known: list[Tensor]) -> None:
        """Add the pairs of groups at the same places of two maps; freeze groups that meet frozen ones."""
        a, b = torch.broadcast_tensors(a, b)
        both = (a != ZERO) & (b != ZERO) & ((a != b) if known is self.ties else True)
        pairs = torch.stack((a[both], b[both]))
        fixed = (pairs == FROZEN).any(0)
        self.freeze(pairs[:, fixed], reason)
        self.add_new(known, pairs[:, ~fixed])

    def collapse(self, groups: Tensor, keep: Sequence[int], reason: Reason) -> Tensor:
        """Tie a map along every axis that is not kept, and drop its extent there."""
        kept = {axis % max(groups.ndim, 1) for axis in keep}
        for axis in range(groups.ndim):
            if axis not in kept and groups.size(axis) > 1:
                first = groups.amax(axis, keepdim=True)
                self.tie(groups, first, reason)
                groups = first
        return groups

    def collapse_to(self, groups: Tensor, names: Sequence[Any], wanted: Sequence[Any], reason: Reason) -> Tensor:
        """A map over axes of these names, tied along those that are not wanted, laid out over those that are."""
        groups = with_axes(groups, len(names))
        names = [*[None] * (groups.ndim - len(names)), *names]
        kept = [axis for axis, name in enumerate(names) if name is not None and name in wanted]
        return lay_out(self.collapse(groups, kept, reason), names, wanted)

    def add_new(self, known: list[Tensor], found: Tensor) -> None:
        """Add a tensor unless an equal one is there: the traces of a model have most of these in common."""
        alike = self.added.setdefault((id(known), found.shape, int(found.sum())), [])
        if not any(torch.equal(found, other) for other in alike):
            alike.append(found)
            known.append(found)

    # ---- parameters

    def connect(self, view: ParamView, row: Tensor, col: Tensor, *, experts: bool = False, bias: bool = False) -> None:
        """A parameter, seen as ``view``, maps the groups ``col`` to ``row`` (both broadcast to the view's shape).

        With ``experts``, which lie along the first axis of the view, groups of experts stand for those of every one.
        """
        if not (row.numel() and col.numel()):
            raise PathCondError(f"expected layers with units, got '{view.name}' without entries. Drop its layer.")
        row, col = self._on_parameter(view, row), self._on_parameter(view, col)
        use = Use(row, col, view.offset, bias, view.axes[0] if experts else None)
        known = self.uses.setdefault(view.name, [])
        if not any(use.same(other) for other in known):
            known.append(use)

    def _on_parameter(self, view: ParamView, groups: Tensor) -> Tensor:
        """Groups over a view, along the parameter's own axes; entries outside of the view fit any scale.

        They are tied along axes on which the parameter is broadcast.
        """
        reason = Reason("", f"shares one entry of parameter '{view.name}'")
        groups = self.collapse_to(groups, view.axes, range(len(view.shape)), reason)
        for axis, (start, size, whole) in enumerate(zip(view.starts, view.sizes, view.shape, strict=True)):
            if size < whole:
                padded = torch.full([*groups.shape[:axis], whole, *groups.shape[axis + 1 :]], ZERO, dtype=GROUP)
                padded.narrow(axis, start, size).copy_(groups)
                groups = padded
        return groups

    def connect_bias(self, call: Call, bias: Any, groups: Tensor) -> None:
        """A bias enters the output groups of a layer; one that is no parameter freezes them."""
        if bias is None:
            return
        view = self.parameter(bias)
        if view is None:
            self.freeze(groups, Reason(call.where, f"has a bias in `{call.name}` that is not a parameter"))
            self.freeze(self.groups(bias), Reason(call.where, f"is used as the bias of `{call.name}`"))
        else:
            self.connect(view, groups, torch.zeros_like(groups), bias=True)

    def freeze_parameter(self, name: str, reason: Reason) -> None:
        """Make a parameter keep its value: all groups that its uses connect are frozen."""
        self.frozen_parameters.setdefault(name, reason)

    def share_what_moves(self, call: Call, kind: str) -> None:
        """Groups of experts share one scale where a call of another kind than these may move their rows."""
        dim = dict(enumerate(call.args)).get(2, call.kwargs.get("dim", 0))
        stays = kind in ("grouped_mm", "mul", "smooth", "same", "pass")
        if not stays and not (call.name in ("chunk", "split") and dim in (1, -1)):
            for groups in [self.maps.get(value) for value in call.reads]:
                if isinstance(groups, Tensor):
                    self.add_new(self.shared, distinct(groups))

    def have_scale_per_expert(self) -> Tensor:
        """Whether each group stands for a scale in every expert: not where it is tied, frozen or used elsewhere."""
        found = torch.zeros(self.count, dtype=torch.bool)
        if all(layer.experts == 1 for layer in self.layers):
            return found
        for layer in self.layers:
            found[layer.first : layer.first + layer.size] = layer.experts > 1
        shared = [*self.shared, *self.ties, *self.inverse_ties, *chain(*self.frozen.values())]
        for uses in self.uses.values():
            axes = {use.expert_axis for use in uses}
            if len(axes) > 1 or None in axes:
                shared += [end for use in uses for end in (use.row, use.col)]
        for groups in shared:
            found[groups[groups > 0]] = False
        return found

    # ---- operations that scales cannot cross

    def freeze_through(self, call: Call, why: str = "") -> None:
        """Freeze the groups that enter a call; its results carry no scale."""
        what = why or f"crosses `{call.name}`, which has no rule"
        for ref in refs([*call.args, call.kwargs]):
            groups = self.groups(ref)
            if bool((groups > 0).any()):
                self._raise_if_strict(call, what)
            self.freeze(groups, Reason(call.where, what))
        self.set_result(call)

    def frozen_layer(self, call: Call, why: str, *axes: int) -> None:
        """A layer that no scale can enter: its output channels, along axes counted from the last, count as frozen."""
        shape, what = self.shape(call.outs[0]), f"leaves `{call.name}`{why}"
        if len(shape) < -min(axes) or not self.floating(call.outs[0]):
            return
        self._raise_if_strict(call, what)
        sizes = [shape[axis] if axis in axes else 1 for axis in range(-len(shape), 0)]
        groups = self.new_groups(math.prod(sizes), call.where)
        self.freeze(groups, Reason(call.where, what))
        self.set_result(call, groups.reshape(sizes))

    def _raise_if_strict(self, call: Call, what: str) -> None:
        """With ``strict``, raise where a hidden unit loses its scale; no unit is hidden after the last layer."""
        if self.strict and self.hidden:
            raise UnsupportedOpError(
                f"expected operations that scales can cross (strict=True), got `{call.name}` at "
                f"'{call.where or 'the model'}': a scale {what}. Register a rule with pathcond.register_rule, "
                "or drop strict to freeze the scales on both sides of it."
            )


def distinct(groups: Tensor) -> Tensor:
    """The groups in a map, sorted."""
    found = groups[groups > 0].to(GROUP)
    if len(found) < 2:
        return found
    low, high = (int(end) for end in found.aminmax())
    if high - low > 64 * len(found):
        return found.unique()
    present = torch.zeros(high - low + 1, dtype=torch.bool)
    present[found - low] = True
    return present.nonzero()[:, 0].to(GROUP) + low


def runs(numbers: Tensor) -> Tensor:
    """The first and the last of each run of consecutive numbers, for sorted ones; shape (2, runs)."""
    whole = numbers.new_zeros(min(len(numbers), 1), dtype=torch.int64)
    breaks = (numbers.diff() != 1).nonzero()[:, 0]
    return torch.stack((numbers[torch.cat((whole, breaks + 1))], numbers[torch.cat((breaks, whole - 1))]))


def mixed_positions(call: Call) -> Reason:
    """The reason for ties where an operation mixes positions."""
    return Reason(call.where, f"is mixed across positions by `{call.name}`")


def with_axes(groups: Tensor, ndim: int) -> Tensor:
    """A group map with at least ``ndim`` axes, new ones in front."""
    return groups if groups.ndim >= ndim else groups.reshape((*[1] * (ndim - groups.ndim), *groups.shape))


def lay_out(t: Tensor, names: Sequence[Any], wanted: Sequence[Any]) -> Tensor:
    """A tensor over axes of these names, laid out over those wanted: new axes, and those not wanted, have size one."""
    places = [names.index(name) if name in names else None for name in wanted]
    order = [place for place in places if place is not None]
    rest = [axis for axis in range(t.ndim) if axis not in order]
    return t.permute([*order, *rest]).reshape([1 if place is None else t.size(place) for place in places])


def _first_where_one(groups: Tensor, other: Tensor) -> Tensor:
    """A map narrowed to its first entry along the axes on which another has size one."""
    for axis, n in enumerate(other.shape):
        groups = groups.narrow(axis, 0, 1) if n == 1 else groups
    return groups


def compress(groups: Tensor) -> Tensor:
    """Drop a map's extent along axes on which it is constant."""
    found = groups
    for axis in range(groups.ndim):
        if found.size(axis) > 1 and (found.stride(axis) == 0 or bool((found == found.narrow(axis, 0, 1)).all())):
            found = found.narrow(axis, 0, 1)
    return groups if found is groups else found.clone()  # not the memory of the whole map


def owner(name: str) -> str:
    """The module that owns a parameter; the parameter itself where that is the model."""
    return name.rpartition(".")[0] or name


# ---- operations


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
        constant: whether its scale rule also holds for values that depend on no input, or the rule for these. Of one
            parameter and constants its result is then linear in the parameter, or it plus a number.
    """

    kind: str
    arguments: tuple[str, ...]
    scales: ScaleRule
    paths: PathRule
    layer: bool = False
    constant: bool | ScaleRule = False

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Arguments:
        """Arguments by name; those not given are absent."""
        return dict(zip(self.arguments, args, strict=False)) | dict(kwargs)


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
) -> list[tuple[Any, Operation]]:
    """Table entries for every spelling of the named functions: torch.f, Tensor.f, F.f, each also with an underscore.

    A property, such as ``Tensor.T``, is recorded by its getter.
    """
    operation = Operation(kind, tuple(arguments.split()), scales, paths, **traits)
    names = [spelling for name in functions.split() for spelling in (name, name + "_")]
    found = [getattr(namespace, name, None) for name, namespace in product(names, namespaces)]
    made = [function if callable(function) else getattr(function, "__get__", None) for function in found]
    return [(function, operation) for function in made if function is not None]
