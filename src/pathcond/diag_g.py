"""diag(G): for each parameter, the sum over the paths through it of the squared product of the path's other factors.

Paper: ``g = diag(G) = grad of |Phi(theta)|_2^2 with respect to theta^2``, one backward pass of the network with squared
parameters on an all-ones input.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from pathcond.checks import (
    PathCondError,
    check_choice,
    check_finite,
    check_flags,
    check_model,
    check_shapes,
    shared_memory,
)
from pathcond.graph import ScaleGraph
from pathcond.inputs import as_arguments, map_tensors, tensors_in
from pathcond.isolation import call_isolated, full_precision, on_cpu
from pathcond.rules import TABLE
from pathcond.rules.base import Arguments, Operation
from pathcond.rules.normalization import MEASURES
from pathcond.rules.paths import PathSums
from pathcond.tracing import Call, Constants, Ref, Trace, module_at_work, record

_TINY = 1.0e-20  # a float32 entry this far below the largest of its tensor may come from others that vanished
_LEAST = 1.0e-30  # and so may any entry below this
_FITS = 600.0  # largest logarithm that is multiplied into float64 entries; leaves room for their own range


class DiagG(dict[str, Tensor]):
    """diag(G) by parameter name, each tensor shaped like its parameter.

    The entries of parameter ``name`` are ``self[name] * exp(self.log_scale[name])``. The logarithm is zero in results
    of :func:`compute_diag_g` wherever float64 can hold the entries themselves (path norms within 1e-260 .. 1e260).
    """

    def __init__(self, values: Mapping[str, Tensor], log_scale: Mapping[str, float] | None = None) -> None:
        super().__init__(values)
        self.log_scale: dict[str, float] = dict.fromkeys(values, 0.0) | dict(log_scale or {})

    def as_float64(self) -> DiagG:
        """The same entries in float64, with their logarithms multiplied in where float64 can hold them."""
        far = {name: log for name, log in self.log_scale.items() if not abs(log) < _FITS}
        values = {n: t.to(torch.float64, copy=True) for n, t in self.items()}
        for name, log in self.log_scale.items():
            if log and name in values and name not in far:
                values[name].mul_(math.exp(log))
        return DiagG(values, far)


@on_cpu
def compute_diag_g(
    model: nn.Module,
    example_input: Any,
    *,
    pooling: Literal["exact", "plain", "all"] = "exact",
    statistics: Literal["running", "input"] = "running",
    smooth: bool | None = None,
    graph: ScaleGraph | None = None,
    dtype: torch.dtype | None = None,
) -> DiagG:
    """diag(G) of a model in eval mode. The model is read, never changed.

    Parameters that lie on no path (auxiliary heads used in training only, PReLU slopes, gates) have no entry. Of a
    batch, only the first example is used, if the model accepts a batch of one. Softmax, smooth activations and
    operations without a rule end paths and start new ones, so that G falls into blocks.

    Args:
        model: the model.
        example_input: gives the shapes. Floating-point inputs are replaced by ones, and so are integers that a layer
            reads as data; token ids and masks keep their values. With ``statistics="input"`` all values matter.
        pooling: ``exact``: a maximum counts as a sum over its window and an average's coefficient is squared.
            ``plain``: pools are left as they are, as in the paper's convolutional figures. ``all``: a maximum and an
            average both count as sums.
        statistics: ``running``: BatchNorm enters with its running statistics, and a normalization without any ends the
            paths. ``input``: every normalization enters with the statistics that it has on the example input in
            training mode, where there are enough values to measure them.
        smooth: whether paths cross GELU and the like as if they were the identity; by default as in ``graph``, and
            False without one.
        graph: a graph of this model, to reuse its trace.
        dtype: number format of the computation; by default float32 for models in float32 or less, repeated in float64
            if an entry comes near underflow.

    Returns:
        A :class:`DiagG`, a dict from parameter name to a tensor of the parameter's shape.

    Raises:
        PathCondError: a parameter or running statistic is NaN or infinite; the message names it.

    Example:
        >>> import torch, pathcond
        >>> model = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.ReLU(), torch.nn.Linear(1, 1, bias=False))
        >>> for p, value in zip(model.parameters(), (2.5, 5.0, 0.2)):
        ...     _ = p.data.fill_(value)
        >>> g = pathcond.compute_diag_g(model.double(), torch.ones(1, 1).double())
        >>> {name: round(t.item(), 6) for name, t in g.items()}
        {'0.weight': 0.04, '0.bias': 0.04, '2.weight': 31.25}
    """
    return scaled_diag_g(model, example_input, pooling, statistics, smooth, graph, dtype).as_float64()


def scaled_diag_g(
    model: nn.Module,
    example_input: Any,
    pooling: str,
    statistics: str,
    smooth: bool | None,
    graph: ScaleGraph | None,
    dtype: torch.dtype | None = None,
    batch: bool = False,
) -> DiagG:
    """As :func:`compute_diag_g`, in the number format of the computation and with the logarithms apart.

    ``batch``: the passes are made on the whole batch, not on its first example.
    """
    check_choice("pooling", pooling, ("exact", "plain", "all"))
    check_choice("statistics", statistics, ("running", "input"))
    check_flags(smooth=bool(smooth) if smooth is None else smooth)
    check_model(model)
    parameters = dict(model.named_parameters())
    if graph is not None:
        check_shapes(parameters, graph.shapes)
        smooth = graph.options["smooth"] if smooth is None else smooth
    largest = check_finite(model, parameters)
    trace = record(model, example_input, training=False) if graph is None else graph.trace_of(model, example_input)
    single, trace = (example_input, trace) if batch else _single_example(model, example_input, trace, graph)
    slopes = _measured_slopes(model, example_input, trace) if statistics == "input" else {}
    constants, alias = Constants(trace, model), shared_memory(model)[0]
    device = next(model.parameters()).device
    for value, tensor in zip(trace.inputs, tensors_in(as_arguments(single)), strict=True):
        if not tensor.is_floating_point():
            constants.know(value, tensor)

    def passes(number_format: torch.dtype) -> PathSums:
        p = PathSums(trace, constants, number_format, device, pooling, bool(smooth), slopes, alias, largest)
        full = torch.autocast(device.type, enabled=False), full_precision()
        with torch.inference_mode(False), torch.enable_grad(), full[0], full[1]:
            _forward(p)
            p.backward()
        return p

    wide = any(p.dtype == torch.float64 for p in parameters.values())
    first = dtype or (torch.float64 if wide else torch.float32)
    try:
        p = passes(first)
    except (IndexError, RuntimeError):  # the model's own indices into the batch
        if single is example_input:
            raise
        return scaled_diag_g(model, example_input, pooling, statistics, smooth, graph, dtype, batch=True)
    if dtype is None and first is torch.float32 and _near_underflow(p):
        p = passes(torch.float64)
    entries = {n: g for n in parameters if (g := p.diagonal.get(n)) is not None}
    return DiagG({n: g.t for n, g in entries.items()}, {n: g.log for n, g in entries.items()})


# ---- the forward pass


def _forward(p: PathSums) -> None:
    """Compute the path sum of every value that a path leads to; each is freed after its last use."""
    for value in p.trace.inputs:
        if p.trace.values[value].dtype.is_floating_point:
            p.start(value)
    last = {value: index for index, call in enumerate(p.trace.calls) for value in call.reads}
    outputs = set(p.trace.outputs)
    for index, call in enumerate(p.trace.calls):
        operation = TABLE.get(call.fn) if p.trace.values[call.outs[0]].dtype.is_floating_point else None
        if _reached(p, call, "" if operation is None else operation.kind):
            if operation is None:
                p.barrier(call)
            else:
                operation.paths(p, call, operation.bind(call.args, call.kwargs))
            for value in call.reads:
                if last[value] == index and value not in outputs:
                    p.sums.pop(value, None)
        elif operation is not None and operation.constant and not call.mutates:
            _follow(p, call, operation)


def _reached(p: PathSums, call: Call, kind: str) -> bool:
    """Whether a path crosses a call or starts at it; integers start one if a layer reads them, not if a mask does."""
    known = any(r in p.sums for r in call.reads)
    if kind in ("embedding", "zeros") or (known and kind != "cat"):
        return True
    data = [r for r in call.reads if r in p.trace.data and r not in p.sums]
    if data and (known or any(p.constants.made_from_parameters(r) for r in {*call.reads} - p.trace.data)):
        numbers = [r for r in data if p.trace.values[r].dtype.is_floating_point]
        known = known or bool(numbers) or not kind
        for r in numbers:
            p.start(r)
    return known


def _follow(p: PathSums, call: Call, operation: Operation) -> None:
    """Follow a call on one parameter and constants, whose result is linear in it, or is the sum of it and a number."""
    out, sources = call.outs[0], [r for r in dict.fromkeys(call.reads) if p.is_parameter(Ref(r))]
    if len(sources) != 1 or (operation.kind == "add" and len(call.reads) > 1):
        return
    source = sources[0]
    p.sums[source] = p.leaf(Ref(source), p.square(Ref(source)))
    if operation.kind == "add":  # its square, with the gradient with respect to that of the parameter
        p.sum(call, [Ref(source), p.square(Ref(out))], lambda x, square: square + (x - x.detach()))
    else:
        operation.paths(p, call, operation.bind(call.args, call.kwargs))
    del p.sums[source]
    p.weights |= {out: p.sums.pop(out) for out in call.outs if out in p.sums}


def _near_underflow(p: PathSums) -> bool:
    """Whether an entry computed in float32 is not finite, or may have lost digits or become zero by underflow."""
    for g in (g.t for g in p.diagonal.values() if g.t.numel()):
        low, high = (float(end) for end in torch.aminmax(g))
        least = max(_TINY * high, _LEAST)
        if not math.isfinite(high) or (low < least and bool(((g > 0) & (g < least)).any())):
            return True
    return p.underflow


# ---- statistics of normalizations, measured on the example input


def _measure_of(function: Any) -> Callable[[Arguments], Tensor | None] | None:
    """What measures the squared slope ``1 / (var + eps)`` of a normalization; None for other functions."""
    operation = TABLE.get(function)
    return None if operation is None else MEASURES.get(operation.kind)


class _Measure(TorchFunctionMode):
    """Measures the slope of every normalization in a forward pass, by module in the order of its calls."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.names = {id(module): name for name, module in model.named_modules()}
        self.slopes: dict[str, list[Tensor | None]] = defaultdict(list)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        measure = _measure_of(func)
        if measure is not None:
            with torch._C.DisableTorchFunctionSubclass():
                slope = measure(TABLE[func].bind(args, kwargs or {}))
            self.slopes[module_at_work(self.names)].append(slope)
        return func(*args, **(kwargs or {}))


def has_normalization(trace: Trace) -> bool:
    """Whether a trace has a normalization whose statistics can be measured."""
    return any(_measure_of(call.fn) for call in trace.calls)


def _measured_slopes(model: nn.Module, example_input: Any, trace: Trace) -> dict[int, Tensor]:
    """Squared slopes of the normalizations of a trace on the example input in training mode, by the value they make.

    Normalizations with too few values are left out; there are no slopes at all if the model does not run in training
    mode on this input.
    """
    measure, found = _Measure(model), dict[int, Tensor]()
    if not has_normalization(trace):
        return found
    try:
        with measure:
            call_isolated(model, example_input, training=True)
    except ValueError:  # BatchNorm refuses to train on a single example
        return found
    for call in [call for call in trace.calls if _measure_of(call.fn)]:
        measured = measure.slopes[call.where]
        slope = measured.pop(0) if measured else None
        if slope is not None and bool(slope.isfinite().all()):
            found[call.outs[0]] = slope
    return found


def _single_example(model: nn.Module, example_input: Any, trace: Trace, graph: ScaleGraph | None) -> tuple[Any, Trace]:
    """The first example of a batch and its trace; the whole batch if the model makes other calls on one example."""
    tensors = tensors_in(as_arguments(example_input))
    size = tensors[0].shape[0] if tensors and tensors[0].ndim else 1
    others = [t for t in tensors if not t.is_floating_point() and t.ndim and t.shape[0] != size]
    if size <= 1 or others:  # integers of another length may be indices into the batch, such as the edges of a graph
        return example_input, trace
    args, kwargs = map_tensors(lambda x: x[:1] if x.ndim and x.shape[0] == size else x, as_arguments(example_input))
    first = kwargs or args
    try:
        found = record(model, first, training=False) if graph is None else graph.trace_of(model, first)
    except PathCondError:
        return example_input, trace
    same = [call.fn for call in found.calls] == [call.fn for call in trace.calls]
    return (first, found) if same else (example_input, trace)
