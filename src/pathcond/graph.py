"""From the trace of a forward pass to the units that may be rescaled, and the parameters that enter and leave them."""

from __future__ import annotations

import hashlib
import math
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from pathcond.checks import (
    ApplyError,
    PathCondWarning,
    RecordError,
    UnsupportedOpError,
    check_choice,
    check_flags,
    check_model,
    check_shapes,
    shared_memory,
)
from pathcond.inputs import Sizes, as_arguments, examples_in, left_out, map_tensors, other_sizes, sizes_past, tensors_in
from pathcond.isolation import on_cpu, settings_of
from pathcond.rules import TABLE
from pathcond.rules.base import FROZEN, GROUP, ZERO, ParamView, Reason, ScalePropagation, Use, distinct, runs
from pathcond.tracing import Call, Comparison, Constants, Recorder, Ref, Trace, flatten, record, refs, run, signature


@dataclass(frozen=True, slots=True)
class ParamScales:
    """Units that a parameter's elements enter (``row``) and leave (``col``).

    Both are integer tensors that broadcast to the parameter's shape. Unit ``h`` of the graph is number ``h + 1``;
    0 stands for no unit, and a negative number for a unit's inverse scale, which attention keys have to their queries.
    The parameter is multiplied by ``exp(log[row] - log[col])``, log lambda by number: log[-n] = -log[n]. With an
    ``offset``, as in gains written ``1 + weight``, the sum ``offset + parameter`` is multiplied. A ``bias`` is added to
    data; other parameters, the weights, multiply it.
    """

    row: Tensor
    col: Tensor
    offset: float = 0.0
    bias: bool = False


@dataclass(frozen=True, slots=True)
class Frozen:
    """Channels whose scale must not change: how many, the module that is the cause, and why."""

    channels: int
    where: str
    reason: str

    def __str__(self) -> str:
        return f"{self.channels} at '{self.where or 'the model'}': each {self.reason}"


@dataclass(frozen=True, slots=True)
class ExactFor:
    """The calls on which scales were shown to keep a model's function. ``print`` it.

    Attributes:
        modes: ``eval``, ``train``, and ``mixed`` if some modules train and others do not; empty where the function is
            kept only approximately.
        inputs: number of example inputs. Inputs of another dtype or number of axes were not tried.
        sizes: other sizes of the first example's tensors on which the model was recorded too, in eval mode; or that no
            call depends on them.
        fixed: arguments that had one plain value in all examples, or were left out: other values were not tried.
    """

    modes: tuple[str, ...]
    inputs: int
    sizes: tuple[str, ...] = ()
    fixed: tuple[str, ...] = ()

    def __str__(self) -> str:
        if not self.modes:
            return "no mode: the function is kept only approximately"
        parts = [f"{' and '.join(self.modes)} mode", f"{self.inputs} example input{'s' if self.inputs > 1 else ''}"]
        parts += [f"other sizes ({', '.join(self.sizes)})"] if self.sizes else ["no other sizes"]
        more = f" and {len(self.fixed) - 6} more" if len(self.fixed) > 6 else ""
        return ", ".join(parts + ([f"with {', '.join(self.fixed[:6])}{more}"] if self.fixed else []))


# For each model the settings, by signature of a graph, with which it was seen to compute what the graph is of.
_KNOWN: WeakKeyDictionary[nn.Module, dict[str, Any]] = WeakKeyDictionary()


@dataclass(frozen=True)
class ScaleGraph:
    """What may be rescaled in a model, from :func:`extract_graph`. Holds no weights, so it can be kept and reused.

    Attributes:
        units: number H of free units; a unit is a set of channels that share one scale.
        layers: for each module that makes channels, the number of the unit of each of its channels, shape (channels,);
            unit ``h`` is number ``h + 1``, negative for its inverse scale, and 0 marks a channel without a free scale.
            Numbers are those of :class:`ParamScales`.
        groups: number of consecutive units that belong to each layer, in network order.
        params: for each parameter that a scale touches, the units it enters and leaves.
        shapes: shape of every parameter of the model, by name.
        frozen: hidden channels without a free scale, and why.
        notes: remarks, for example that scales keep the function only approximately.
        exact_for: the calls for which applying scales was shown to keep the function; see :class:`ExactFor`.
        options: ``batchnorm``, ``smooth`` and ``strict`` as :func:`extract_graph` was given them.
        frozen_by_module: the frozen hidden channels of each module that has some, and why.
        trace: the recorded forward pass in eval mode; None in a graph that was pickled.
        signature: digests of that pass, of the indices in it, and of what shares memory; other models are refused.
        arguments: the arguments of that pass, with tensors on the meta device; None where they are not known.
        chain: whether no call of that pass reads what another one reads too: the network has no shortcuts or branches.
    """

    units: int
    layers: Mapping[str, Tensor]
    groups: tuple[int, ...]
    params: Mapping[str, ParamScales]
    shapes: Mapping[str, tuple[int, ...]]
    frozen: tuple[Frozen, ...]
    notes: tuple[str, ...]
    exact_for: ExactFor
    options: Mapping[str, Any]
    frozen_by_module: Mapping[str, tuple[Frozen, ...]] = field(repr=False)
    trace: Trace | None = field(repr=False)
    signature: str = ""
    arguments: Any = field(default=None, repr=False)
    chain: bool = True

    def __getstate__(self) -> dict[str, Any]:
        """All fields but the trace, which holds functions."""
        return {**vars(self), "trace": None}

    @property
    def approximate(self) -> bool:
        """Whether even the recorded passes are kept only approximately, as with ``smooth``."""
        return not self.exact_for.modes

    def check_fits(self, model: nn.Module) -> None:
        """Raise if a model is not the one that the graph was extracted from, or one that does the same in eval mode.

        Raises:
            ApplyError: its parameters have other names or shapes, or its forward pass calls other operations.
        """
        check_shapes(dict(model.named_parameters()), self.shapes)
        settings, known = settings_of(model), _KNOWN.setdefault(model, {})
        if known.get(self.signature) == settings:
            return
        if self.signature and self.arguments is not None:
            own = {p.dtype for p in model.parameters() if p.is_floating_point()}
            arguments = map_tensors(  # the model may be a copy in another number format
                cache(lambda t: t.to(next(iter(own))) if t.is_floating_point() and own and t.dtype not in own else t),
                self.arguments,
            )
            with suppress(RecordError):  # nothing to compare: a model that does not take the stored arguments
                found = _identity(model, record(model, arguments, training=False))
                parts = zip(found.split(), self.signature.split(), strict=False)
                if not all(own == other or "?" in (own, other) for own, other in parts):
                    raise ApplyError(
                        "expected a model whose forward pass calls the operations that the graph was extracted from, "
                        "got others, or others in between: its scales may change the function. Extract a graph of this "
                        "model."
                    )
        known[self.signature] = settings

    def trace_of(self, model: nn.Module, example_input: Any) -> Trace:
        """The forward pass in eval mode; recorded again where this graph has none, or one that depends on sizes."""
        shapes = [tuple(t.shape) for t in tensors_in(as_arguments(example_input))]
        known = [] if self.trace is None else [self.trace.values[i].shape for i in self.trace.inputs]
        if self.trace is not None and known == shapes:
            return self.trace
        if self.trace is not None and self.exact_for.sizes == _ANY and [*map(len, known)] == [*map(len, shapes)]:
            with suppress(Exception):  # the first batch may have had axes that this input lacks
                return _resized(self.trace, shapes)
        return record(model, example_input, training=False)

    @property
    def frozen_channels(self) -> int:
        """Number of hidden channels whose scale is frozen; channels that share a scale count one by one."""
        return sum(entry.channels for entry in self.frozen)

    def by_module(self, log_scales: Tensor) -> dict[str, Tensor]:
        """Log-scales of shape (units,), spread over each module's channels."""
        full = self.by_number(log_scales)
        return {name: full[numbers.to(log_scales.device)] for name, numbers in self.layers.items()}

    def touched_by(self, names: Iterable[str]) -> Tensor:
        """Whether each unit is entered or left by one of the named parameters, shape (units,)."""
        found = torch.zeros(self.units + 1, dtype=torch.bool)
        for scales in (self.params[name] for name in names if name in self.params):
            found[scales.row.abs()] = found[scales.col.abs()] = True
        return found[1:]

    def by_number(self, u: Tensor) -> Tensor:
        """Extend log-scales, shape (units,), so that numbers are indices: 0 gives 0, -n the opposite of n."""
        return torch.cat((u.new_zeros(1), u, -u.flip(0)))


@on_cpu
def extract_graph(
    model: nn.Module,
    example_input: Any,
    *,
    batchnorm: Literal["affine", "exclude"] = "affine",
    smooth: bool = False,
    strict: bool = False,
) -> ScaleGraph:
    """Find the units of a model that can be rescaled without changing its function.

    The forward pass is recorded on fake tensors, once in eval and once in training mode, so that scales fit both; the
    model is not touched, and may be on the meta device. Unless no call depends on the size of the input, other sizes
    are recorded too where the model takes them: another batch, length or image size, and sizes that its code compares
    with. An operation without a rule freezes the scales on both sides; so does a parameter of which no pass reads all
    entries.

    Args:
        model: any module that can be run on ``example_input``.
        example_input: a tensor, a tuple or list of positional arguments, or a dict of keyword arguments; or several
            of these, as :class:`pathcond.Inputs`, for calls that the first does not show.
        batchnorm: ``affine``: the scale and shift of a BatchNorm enter the unit (exact in every mode). ``exclude``: the
            weights before it do, as in the paper (exact only in eval mode at initialization, and for one rescaling).
        smooth: let scales cross GELU, SiLU and the like; the function is then kept only approximately.
        strict: raise, instead of freezing, where an operation without a rule would freeze hidden units.

    Returns:
        The :class:`ScaleGraph`.

    Raises:
        RecordError: the forward pass cannot be recorded; the message names the line of code and the way out.
        UnsupportedOpError: ``strict`` and an operation has no rule.

    Warns:
        PathCondWarning: there are calls for which the function was not shown to be kept: the training mode cannot be
            recorded, some parameters are not read, or the next call may take another branch.

    Example:
        >>> import torch, pathcond
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
        >>> pathcond.extract_graph(model, torch.ones(1, 3)).units
        4
    """
    check_flags(smooth=smooth, strict=strict)
    check_choice("batchnorm", batchnorm, ("affine", "exclude"))
    check_model(model, values=False)
    s = ScalePropagation(TABLE, batchnorm=batchnorm, smooth=smooth, strict=strict, alias=shared_memory(model)[0])
    examples = examples_in(example_input)
    doubts: list[str] = []
    traces: list[Trace] = []
    modes: dict[str, None] = {}
    ways: dict[str, bool | None] = {"eval": False, "train": True}
    if len({module.training for module in model.modules()}) > 1:
        ways["mixed"] = None  # as it is
    recorder = Recorder(model)
    for example in examples:
        for name, mode in ways.items():
            try:
                found = recorder.record(example, mode)
            except RecordError as error:
                if not traces or (mode is None and not model.training):
                    raise
                doubts.append(f"the function is kept in eval mode; {name} mode could not be recorded: {error}")
                continue
            modes[name] = None
            for trace in found:
                if not any(_same(trace, other) for other in traces):  # else the same groups would follow
                    _propagate(s, trace, Constants(trace, model))
            traces += found
    doubts += recorder.doubts()
    sizes = _ANY
    if recorder.sized or not all(_of_any_size(trace) for trace in traces):
        sizes = _record_other_sizes(s, recorder, examples[0], traces)
        doubts += recorder.unseen_sizes() if len(examples) == 1 else []
    _freeze_unusual_parameters(model, s, traces)
    found = _assemble(model, s)
    doubts = [*dict.fromkeys(doubts), *_unread(model, traces)] if found["units"] else []
    for doubt in doubts:
        warnings.warn(f"not shown to be exact: {doubt}.", PathCondWarning, stacklevel=3)
    args, kwargs = map_tensors(  # a tensor that is given twice stays one
        cache(lambda t: torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta")),
        as_arguments(examples[0]),
    )
    graph = ScaleGraph(
        **found,
        shapes={name: tuple(p.shape) for name, p in model.named_parameters()},
        notes=(*doubts, *sorted(s.approximate)),
        exact_for=ExactFor(() if s.approximate else tuple(modes), len(examples), sizes, left_out(model, examples)),
        options={"batchnorm": batchnorm, "smooth": smooth, "strict": strict},
        trace=traces[0],
        signature=_identity(model, traces[0]),
        arguments=kwargs or args,
        chain=_is_chain(traces[0]),
    )
    _KNOWN.setdefault(model, {})[graph.signature] = settings_of(model)
    return graph


def _resized(trace: Trace, shapes: Sequence[tuple[int, ...]]) -> Trace:
    """A trace whose calls depend on no size, for inputs of other shapes."""

    def empty(value: int, shape: Sequence[int]) -> Tensor:
        return torch.empty(shape, dtype=trace.values[value].dtype, device="meta")

    known = dict(zip(trace.inputs, shapes, strict=True))
    made = {i: empty(i, known.get(i, value.shape)) for i, value in enumerate(trace.values) if value.leaf is not None}
    for call in trace.calls:
        if _kind(call) in _ELEMENTWISE:  # these are slow on the meta device
            shape = torch.broadcast_shapes(*(made[value].shape for value in call.reads))
            results = [empty(call.outs[0], shape)]
        elif _kind(call) == "batch_norm":
            results = [made[TABLE[call.fn].bind(call.args, call.kwargs)["input"].id]]
        else:
            results = flatten(run(call, made.__getitem__))
        made |= zip(call.outs, results, strict=True)
    return replace(trace, values=tuple(replace(v, shape=tuple(made[i].shape)) for i, v in enumerate(trace.values)))


def _same(trace: Trace, other: Trace) -> bool:
    try:
        return trace == other
    except (RuntimeError, ValueError):  # an argument that cannot be compared, such as an array of NumPy
        return False


def _is_chain(trace: Trace) -> bool:
    """Whether each value that depends on the input is read once on the way to the outputs."""
    needed, reads = set(trace.outputs), list[int]()
    for call in reversed(trace.calls):
        if not needed.isdisjoint(call.outs):
            needed.update(call.reads)
            reads += {*call.reads} & trace.data
    return len(reads) == len({*reads})


def _identity(model: nn.Module, trace: Trace) -> str:
    """Digests of a trace, of what shares memory, and of each index that no input reaches; ``?`` where it is unknown."""
    constants = Constants(trace, model)
    found = [ref.id for call in trace.calls if _kind(call) == "move" for ref in refs([*call.args[1:], call.kwargs])]
    indices = [None if constants.random(value) else constants.get(value) for value in found]
    texts = [str(shared_memory(model)), *("" if index is None else str(index.tolist()) for index in indices)]
    parts = [hashlib.sha256(text.encode()).hexdigest()[:16] if text else "?" for text in texts]
    return " ".join([signature(trace), *parts])


_ELEMENTWISE = ("pass", "same", "clamp", "smooth", "barrier", "add", "maximum", "mul", "div")
_ANY = ("any: no call depends on them",)
_MOST_SIZES = 8  # tried beside the usual ones, because the code of the model compares with them

# Kinds of operations whose scale rules give the same for inputs of every size, without the number of axes at the end.
_ANY_SIZE = """pass same clamp smooth barrier linear embedding batch_norm layer_norm
    rms_norm group_norm mean sum extreme resample conv convt max_pool avg_pool adaptive_max_pool adaptive_avg_pool"""


def _of_any_size(trace: Trace) -> bool:
    """Whether every call of a trace ties and freezes the same groups for inputs of other sizes."""

    def same(call: Call) -> bool:
        if _kind(call) in ("add", "maximum", "mul", "div"):
            read = [trace.values[value] for value in call.reads]
            return len({len(v.shape) for v in read if v.leaf is None or v.leaf.kind == "input"}) <= 1
        first = call.args[1] if len(call.args) > 1 else call.kwargs.get("start_dim", 0)
        return _kind(call).rstrip("123") in _ANY_SIZE.split() or (call.name == "flatten" and first >= 1)

    return not trace.kept and all(map(same, trace.calls))


def _record_other_sizes(s: ScalePropagation, recorder: Recorder, example: Any, traces: list[Trace]) -> tuple[str, ...]:
    """Record the model in eval mode on inputs of other sizes, where it takes them; they are named in the result."""
    shapes = [tuple(t.shape) for t in tensors_in(as_arguments(example))]
    own = {(i, k): n for i, shape in enumerate(shapes) for k, n in enumerate(shape)}
    found: dict[str, None] = {}
    tried: list[Sizes] = [own]
    passes: dict[Any, Sizes] = {}  # the sizes of all inputs where a comparison was first made

    def run(sizes: Sizes) -> bool:
        passes.update({made: own | tried[-1] for made in recorder.comparisons if made not in passes})
        tried.append(sizes)
        try:
            for made in recorder.record(example, False, sizes):
                _propagate(s, made, Constants(made, recorder.model), other_sizes=True)
                traces.append(made)
        except UnsupportedOpError:
            raise
        except Exception:  # noqa: BLE001 - the model does not take such an input; what was tied so far stays so
            return False
        (number, axis), n = next(iter(sizes.items()))
        found[f"{n} along axis {axis}" + (f" of tensor {number}" if len(shapes) > 1 else "")] = None
        return True

    ways = other_sizes(shapes)
    for each in ways:
        any(run(sizes) for sizes in each)
    tables = _sizes_of_tables(s, [shapes[i][k] for each in ways for i, k in each[0]])
    recorder.comparisons.extend(tables)
    passes.update(dict.fromkeys(tables, own))
    most = len(tried) + _MOST_SIZES
    for made in recorder.comparisons:  # the list grows
        there, (size, number, other, fixed, place) = passes.get(made, own | tried[-1]), made
        # On other sizes than the example's, a size that is itself compared with a number leads further, and so does a
        # number made from a size if code compares it there that the example's sizes do not reach.
        leads = fixed and (number == size or place not in recorder.usual)
        for sizes in sizes_past(there, ways, size, number, other):
            sizes = {axis: n for axis, n in there.items() if n != own[axis]} | sizes
            if sizes in tried or sizes.items() <= own.items() or not (there == own or leads):
                continue
            recorder.untried |= len(tried) >= most
            if len(tried) < most:
                run(sizes)
    return tuple(found)


def _sizes_of_tables(s: ScalePropagation, sizes: list[int]) -> list[Comparison]:
    """Comparisons of input sizes with those of parameters of which as many entries are read, as of a position table."""
    found = []
    for use in chain(*s.uses.values()):
        for axis, whole in enumerate(use.row.shape):
            read = int((use.row != ZERO).transpose(0, axis).reshape(whole, -1).any(1).sum())
            found += [(n, n, whole, True, None) for n in {*sizes} if n == read < whole]
    return found


# ---- scales through a trace


def _propagate(s: ScalePropagation, trace: Trace, constants: Constants, other_sizes: bool = False) -> None:
    """Find the group map of every value of a trace; groups continue those of earlier traces of the same model.

    Channels are frozen if a call selects others on ``other_sizes`` than in the first trace.
    """
    data, weights, hidden = _follow_data(trace)
    s.begin(trace, constants, data)
    moves = []
    for call in trace.calls:
        s.hidden = not hidden.isdisjoint(call.outs)
        _propagate_call(s, call, weights)
        if _kind(call) in ("move", "write", "setitem", "cat", "pad"):
            moves.append(_moved(s, call))
    for value in trace.outputs:
        s.freeze(s.groups(Ref(value)), Reason("", "is an output of the model", lost=False))
    for value in trace.kept:
        s.freeze(s.groups(Ref(value)), Reason("", "is kept in the model from one call to the next"))
    s.maps = {}
    if len(s.begins) == 1:
        s.moves = moves
    if other_sizes and [name for name, *_ in s.moves] == [name for name, *_ in moves]:
        for (name, before, places), (_, read, others) in zip(s.moves, moves, strict=True):
            counts = {int((last - first + 1).sum()) for first, last in (before, read)}
            if len(counts) == 1 and not torch.equal(places, others):
                reason = Reason("", f"is selected by `{name}`, which selects others for inputs of other sizes")
                found = [torch.arange(a, b + 1, dtype=GROUP) for a, b in torch.cat((before, read), 1).T.tolist()]
                s.freeze(s.with_layers(torch.cat(found)), reason)


def _kind(call: Call) -> str:
    """The kind of a call's operation; empty without a rule."""
    return TABLE[call.fn].kind if call.fn in TABLE else ""


def _moved(s: ScalePropagation, call: Call) -> tuple[str, Tensor, Tensor]:
    """The name of a call, the groups that it reads, and the places among them of those that it returns; as runs."""
    maps = [s.maps.get(value) for value in call.reads]
    read = [m.reshape(-1) for m in maps if isinstance(m, Tensor)]
    known = distinct(torch.cat(read)) if read else torch.zeros(0, dtype=GROUP)
    made = [m.reshape(-1) for out in call.outs if isinstance(m := s.maps.get(out), Tensor)] if len(known) else []
    return call.name, runs(known), runs(torch.searchsorted(known, distinct(torch.cat(made))) if made else known[:0])


def _propagate_call(s: ScalePropagation, call: Call, weights: set[int]) -> None:
    operation, reads = TABLE.get(call.fn), {*call.reads}
    if s.experts:
        s.share_what_moves(call, "" if operation is None else operation.kind)
    if operation is not None and operation.kind == "zeros":
        operation.scales(s, call, {})
        return
    if operation is not None and not s.floating(call.outs[0]):
        operation = None
    if reads.isdisjoint(s.data):  # parameters and constants alone
        if operation is not None and operation.constant:
            rule = operation.scales if operation.constant is True else operation.constant
            rule(s, call, operation.bind(call.args, call.kwargs))
        else:
            s.freeze_through(call, f"enters `{call.name}`, which has no rule for values without data")
    elif operation is None:
        s.freeze_through(call)
        if any(sum(n > 1 for n in s.shape(value)) > 1 for value in reads & weights):
            s.frozen_layer(call, ", which has no rule", -1)
    else:
        scaled = any(isinstance(x, ParamView) or bool(x.any()) for x in map(s.look_up, reads))
        if scaled or operation.layer:  # the output channels of a layer count as units
            s.read = set()
            operation.scales(s, call, operation.bind(call.args, call.kwargs))
            for value in call.reads:
                if value not in s.read:
                    s.freeze(s.groups(Ref(value)), Reason(call.where, f"enters `{call.name}` in a way without a rule"))
        if not scaled:
            s.set_result(call)


def _follow_data(trace: Trace) -> tuple[set[int], set[int], set[int]]:
    """Values of a trace that depend on inputs or zeros, that depend on parameters alone, that a later layer reads."""
    data, weights = set(trace.inputs), {i for i, v in enumerate(trace.values) if v.leaf and v.leaf.kind == "param"}
    hidden: set[int] = set()
    for call in trace.calls:
        zeros = _kind(call) == "zeros"  # initial states take the scale of later ones
        if not data.isdisjoint(call.reads) or (zeros and trace.values[call.outs[0]].dtype.is_floating_point):
            data.update(call.outs)
        elif not weights.isdisjoint(call.reads):
            weights.update(call.outs)
    many = {i for i in weights if math.prod(trace.values[i].shape) > 1}
    for call in reversed(trace.calls):
        reads = {*call.reads}
        if call.fn in TABLE and TABLE[call.fn].layer:
            layer = reads - data
        else:
            layer = reads & many if _kind(call) not in ("add", "maximum") else set()
        if layer or not hidden.isdisjoint(call.outs):
            hidden |= reads
    return data, weights, hidden


# ---- the graph


def _components(count: int, ties: list[Tensor]) -> Tensor:
    """For each node the smallest node it is tied to, directly or not; takes the ties, shapes (2, pairs), off the list.

    With large models these arrays are the largest of all, so few exist at a time.
    """
    edges = torch.cat([torch.zeros(2, 0, dtype=GROUP), *ties], 1)
    ties.clear()
    nodes, edges = edges.unique(return_inverse=True)
    root = torch.arange(len(nodes))
    while edges.numel():
        low = torch.minimum(*edges)
        for end in edges:
            root.scatter_reduce_(0, end, low, "amin")
        del low
        while not torch.equal(root, above := root[root]):
            root = above
        edges = root[edges]
        edges = edges[:, edges[0] != edges[1]]
    found = torch.arange(count, dtype=GROUP)
    found[nodes] = nodes[root].to(GROUP)
    return found


def _representatives(s: ScalePropagation) -> Tensor:
    """For each group the smallest group it is tied to, its root; negative where it carries the inverse scale.

    A group that would have to carry its own inverse is frozen.
    """
    root = _components(s.count, s.ties)
    met, pairs = root[torch.cat([torch.zeros(2, 0, dtype=GROUP), *s.inverse_ties], 1)].unique(return_inverse=True)
    inverse = torch.tensor([[0], [1]])  # node 2 n is group number n of those met, and 2 n + 1 its inverse
    nodes = _components(2 * len(met), [2 * pairs + inverse, 2 * pairs + 1 - inverse])
    s.freeze(met[nodes[::2] == nodes[1::2]], Reason("", "would have to be its own inverse"))
    top = torch.arange(s.count, dtype=GROUP)
    top[met] = met[nodes[::2] // 2] * (1 - 2 * (nodes[::2] % 2)).to(GROUP)
    return top[root]


def _joint_uses(s: ScalePropagation) -> dict[str, Use]:
    """Tie the uses of each parameter to one another, and freeze what a frozen parameter touches."""
    found: dict[str, Use] = {}
    for name, uses in s.uses.items():
        reason = Reason("", f"parameter '{name}' is used in several places")
        row, col = uses[0].row, uses[0].col
        for other in uses[1:]:
            row, col = s.tie(row, other.row, reason), s.tie(col, other.col, reason)
        if any(use.offset != uses[0].offset for use in uses):
            s.freeze_parameter(name, Reason("", f"parameter '{name}' is used with and without an offset"))
        if name in s.frozen_parameters:
            s.freeze(row, s.frozen_parameters[name])
            s.freeze(col, s.frozen_parameters[name])
        elif bool((row == ZERO).any() | (col == ZERO).any()):
            text = f"touches parameter '{name}', of which the passes on the example inputs read a part only"
            s.freeze(s.with_layers(torch.cat((row.reshape(-1), col.reshape(-1)))), Reason("", text))
        row, col = (end.clamp(min=FROZEN) if bool((end == ZERO).any()) else end for end in (row, col))
        found[name] = replace(uses[0], row=row, col=col, bias=all(use.bias for use in uses))
    return found


def _assemble(model: nn.Module, s: ScalePropagation) -> dict[str, Any]:
    """The units of a graph, and its parts that name units or channels; frees what it has used."""
    s.moves.clear()
    uses = _joint_uses(s)
    s.added.clear()
    number, step, sizes, by_module = _number(s, uses)
    params: dict[str, ParamScales] = {}
    shared: dict[Any, Tensor] = {}  # layers that read the same channels share one tensor
    for name, use in uses.items():
        ends = []
        for end in (use.row, use.col):
            key = (end.data_ptr(), end.shape, end.stride(), use.expert_axis)
            if key not in shared:
                shared[key] = number[end]
                if use.expert_axis is not None and bool(step[end].any()):
                    expert = torch.arange(model.get_parameter(name).size(use.expert_axis), dtype=torch.int32)
                    expert = expert.reshape([-1, *[1] * (end.ndim - 1 - use.expert_axis)])
                    shared[key] = shared[key] + step[end] * expert
            ends.append(shared[key])
        if any(bool(end.any()) for end in ends):
            params[name] = ParamScales(ends[0], ends[1], use.offset, use.bias)
    layers: dict[str, Tensor] = {}
    for layer in s.layers:  # a module called twice is listed once
        groups = slice(layer.first, layer.first + layer.size)
        if layer.name not in layers and bool(number[groups].any()):
            experts = torch.arange(layer.experts, dtype=torch.int32)[:, None]
            layers[layer.name] = (number[groups] + step[groups] * experts).reshape(-1)
    counts = Counter[tuple[str, str]]()
    for entry in chain(*by_module.values()):
        counts[entry.where, entry.reason] += entry.channels
    return {
        "units": sum(sizes),
        "layers": layers,
        "groups": tuple(size for size in sizes if size),
        "params": params,
        "frozen": tuple(Frozen(count, where, text) for (where, text), count in counts.items()),
        "frozen_by_module": by_module,
    }


def _number(
    s: ScalePropagation, uses: Mapping[str, Use]
) -> tuple[Tensor, Tensor, list[int], dict[str, tuple[Frozen, ...]]]:
    """Unit numbers of groups, the step to the next expert's (0: shared), units by layer, and frozen hidden channels."""
    by_expert = s.have_scale_per_expert()
    root = _representatives(s)
    for name, use in uses.items():
        row, col = root[use.row], root[use.col]
        twice = torch.isin(row, -col[col != 0]) if bool((row < 0).any() | (col < 0).any()) else row < 0
        s.freeze(row[twice].abs(), Reason("", f"would be divided twice in parameter '{name}'"))
    why = torch.full((s.count,), len(s.frozen), dtype=torch.int32)
    for index, found in reversed([*enumerate(s.frozen.values())]):  # the first reason counts
        for groups in found:
            why[root[groups].abs()] = index
    entered, left = sides = torch.zeros(2, s.count, dtype=torch.bool)
    for use in chain(*s.uses.values()):
        for side, end in enumerate((use.row, use.col)):
            groups = root[end[end > FROZEN]]
            sides[side ^ (groups < 0).long(), groups.abs()] = True  # inverse scales change sides
    s.uses.clear()
    by_module = _frozen(s, root, why, left)
    roots = (entered & left & (why == len(s.frozen))).nonzero()[:, 0]  # only roots are marked
    s.frozen.clear()
    number = torch.zeros(s.count, dtype=torch.int32)
    step = torch.zeros_like(number)
    sizes: list[int] = []
    starts = torch.searchsorted(roots, torch.tensor([*(layer.first for layer in s.layers), s.count])).tolist()
    for layer, start, end in zip(s.layers, starts, starts[1:], strict=False):
        found = roots[start:end]
        shared, each = found[~by_expert[found]], found[by_expert[found]]
        number[torch.cat((shared, each))] = sum(sizes) + torch.arange(1, len(found) + 1, dtype=torch.int32)
        step[each] = len(each)
        sizes.append(len(shared) + len(each) * layer.experts)
    del why, sides, entered, left, roots, by_expert  # large; and index_select needs no copy of the indices as int64
    return number.index_select(0, root.abs()).mul_(root.sign_()), step, sizes, by_module


def _frozen(s: ScalePropagation, root: Tensor, why: Tensor, left: Tensor) -> dict[str, tuple[Frozen, ...]]:
    """The frozen hidden channels by module and reason; one that several passes or calls make counts once."""
    reasons, later = list(s.frozen), [*s.begins, s.count][1]
    known = {layer.name for layer in s.layers if layer.first < later}
    by_module: dict[str, tuple[Frozen, ...]] = {}
    counted: dict[str, list[Tensor]] = {}
    for layer in s.layers:
        carried = root[layer.first : layer.first + layer.size]
        again = any(torch.equal(carried, other) for other in counted.get(layer.name, []))  # the module is called again
        if not layer.hidden or again or (layer.first >= later and layer.name in known):
            continue
        counted.setdefault(layer.name, []).append(carried)
        groups = carried.abs()
        groups = groups[why[groups] < len(reasons)]  # the frozen ones
        for index, count in zip(*(t.tolist() for t in why[groups].unique(return_counts=True)), strict=True):
            if not reasons[index].lost:
                count = int(left[groups[why[groups] == index]].sum())
            if count:
                entry = Frozen(count * layer.experts, reasons[index].where or layer.name, reasons[index].text)
                by_module[layer.name] = (*by_module.get(layer.name, ()), entry)
    return by_module


def _freeze_unusual_parameters(model: nn.Module, s: ScalePropagation, traces: Sequence[Trace]) -> None:
    """Freeze parameters that hold integers, or share memory with another parameter or tensor that a pass reads."""
    buffers = dict(model.named_buffers())
    leaves = [value.leaf for trace in traces for value in trace.values if value.leaf is not None]
    read = [buffers.get(leaf.name) if leaf.kind == "buffer" else leaf.tensor for leaf in leaves]
    real = {id(t): t for t in read if t is not None and not isinstance(t, FakeTensor) and t.layout == torch.strided}
    for name in shared_memory(model, list(real.values()))[1]:
        s.freeze_parameter(s.alias.get(name, name), Reason("", f"parameter '{name}' shares memory with another tensor"))
    for name in [name for name, p in model.named_parameters() if not p.is_floating_point()]:
        s.freeze_parameter(name, Reason("", f"parameter '{name}' holds integers"))


def _unread(model: nn.Module, traces: Sequence[Trace]) -> list[str]:
    """A note if the model has parameters that no recorded pass reads: how other calls use them is not known."""
    read = {value.leaf.name for trace in traces for value in trace.values if value.leaf and value.leaf.kind == "param"}
    unread = [n for n, p in model.named_parameters() if n not in read and p.numel() and p.is_floating_point()]
    if not unread:
        return []
    names = ", ".join(f"'{name}'" for name in unread[:6]) + (f" and {len(unread) - 6} more" if len(unread) > 6 else "")
    return [
        f"the pass on the example input does not use {names}: a call that does may give another result than before. "
        "If there are such calls, pass a module whose forward makes them too"
    ]
