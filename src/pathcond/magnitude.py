"""diag(G): for each parameter, the sum over the paths through it of the squared product of the path's other factors.

Paper: ``g = diag(G) = grad of |Phi(theta)|_2^2 with respect to theta^2``, one backward pass of the network with squared
parameters on an all-ones input.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from pathcond import squared_layers, squared_moves  # noqa: F401 - they enter the rules
from pathcond.checks import check_choice, check_model, check_shapes, largest_entries, shared_memory
from pathcond.constants import Constants
from pathcond.device import on_cpu
from pathcond.errors import PathCondError
from pathcond.graph import ScaleGraph
from pathcond.record import as_arguments, record, tensors_in
from pathcond.squared import PathSums
from pathcond.trace import Trace

_TINY = 1.0e-30  # a float32 entry this far below the largest of its tensor may have lost digits
_FITS = 600.0  # logarithms of what float64 can hold, with room for the entries


class PathMagnitudes(dict[str, Tensor]):
    """diag(G) by parameter name, each tensor shaped like its parameter.

    The entries of parameter ``name`` are ``self[name] * exp(self.log_scale[name])``. The logarithm is zero wherever
    float64 can hold the entries themselves, that is, unless path norms leave 1e-260 .. 1e260.
    """

    def __init__(self, values: Mapping[str, Tensor], log_scale: Mapping[str, float] | None = None) -> None:
        super().__init__(values)
        self.log_scale: dict[str, float] = dict.fromkeys(values, 0.0) | dict(log_scale or {})


@on_cpu
def path_magnitudes(
    model: nn.Module,
    example_input: Any,
    *,
    pooling: Literal["exact", "plain"] = "exact",
    graph: ScaleGraph | None = None,
    dtype: torch.dtype | None = None,
) -> PathMagnitudes:
    """diag(G) of a model in eval mode. The model is read, never changed.

    Parameters that lie on no path (auxiliary heads used in training only, PReLU slopes, gates) have no entry; a batch
    of n inputs multiplies all entries by n.

    Args:
        model: the model; BatchNorm enters with its running statistics.
        example_input: gives the shapes; floating-point inputs count as ones, and so do whole numbers where a layer
            reads them as data; token ids and masks count as they are.
        pooling: ``exact``: a maximum counts as a sum over its window and an average's coefficient is squared.
            ``plain``: pools are left as they are, as in the paper's convolutional figures.
        graph: a graph of this model, to reuse its record of the forward pass.
        dtype: number format of the computation; by default float32 for models in float32 or less, repeated in float64
            if an entry comes near underflow.

    Returns:
        A dict from parameter name to a float64 tensor of the parameter's shape.

    Raises:
        PathCondError: a parameter or running statistic is NaN or infinite; the message names it.

    Example:
        >>> import torch, pathcond
        >>> model = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.ReLU(), torch.nn.Linear(1, 1, bias=False))
        >>> for p, value in zip(model.parameters(), (2.5, 5.0, 0.2)):
        ...     _ = p.data.fill_(value)
        >>> g = pathcond.path_magnitudes(model.double(), torch.ones(1, 1).double())
        >>> {name: round(t.item(), 6) for name, t in g.items()}
        {'0.weight': 0.04, '0.bias': 0.04, '2.weight': 31.25}
    """
    scaled = scaled_magnitudes(model, example_input, pooling, graph, dtype)
    values, logs = {}, {}
    for name, (t, log) in scaled.items():
        fits = abs(log) < _FITS
        values[name] = t.double() * (math.exp(log) if fits else 1.0)
        logs[name] = 0.0 if fits else log
    return PathMagnitudes(values, logs)


def scaled_magnitudes(
    model: nn.Module,
    example_input: Any,
    pooling: str,
    graph: ScaleGraph | None,
    dtype: torch.dtype | None,
    tops: Mapping[str, float] | None = None,
) -> dict[str, tuple[Tensor, float]]:
    """As :func:`path_magnitudes`, each entry as (t, log) for ``t * exp(log)``, in the format of the computation.

    ``tops`` are the results of :func:`finite_entries`, if they are known already.
    """
    check_choice("pooling", pooling, ("exact", "plain"))
    check_model(model)
    if graph is not None:
        check_shapes(model, graph.shapes)
    tops = finite_entries(model) if tops is None else tops
    trace = graph.trace if graph is not None else record(model, example_input, training=False)
    wide = any(p.dtype == torch.float64 for p in model.parameters())
    first = dtype or (torch.float64 if wide else torch.float32)
    sums = _passes(model, example_input, trace, pooling, first, tops)
    if dtype is None and first is torch.float32 and _near_underflow(sums):
        sums = _passes(model, example_input, trace, pooling, torch.float64, tops)
    return {n: (g.t, g.log) for n, _ in model.named_parameters() if (g := sums.grads.get(n)) is not None}


@on_cpu
def count_paths(
    model: nn.Module, example_input: Any, *, pooling: Literal["paper", "all"] = "paper", log10: bool = False
) -> float:
    """Number of paths from inputs and biases to outputs, from one forward pass on ones with all parameters 1.

    Args:
        model: the model, in eval mode.
        example_input: gives the shapes; use a batch of one.
        pooling: ``paper``: a max-pool takes the maximum and an average pool the mean, which gives the paper's table.
            ``all``: a pool counts each of its inputs, which gives the true number of paths.
        log10: return the decimal logarithm, which always fits a float.

    Returns:
        The number of paths, a float; infinite above 1e308.

    Example:
        >>> import torch, pathcond
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
        >>> pathcond.count_paths(model, torch.ones(1, 3))  # 3*4*2 from inputs, 4*2 and 2 from biases
        34.0
    """
    check_choice("pooling", pooling, ("paper", "all"))
    check_model(model)
    trace = record(model, example_input, training=False)
    with _apart(model):
        rule = "plain" if pooling == "paper" else "all"
        sums = _sums(model, example_input, trace, rule, torch.float64, {}, ones=True)
        with torch.no_grad():
            sums.forward()
            total = sums.total()
    log = total.log + math.log(float(total.t))
    if log10:
        return log / math.log(10)
    return math.ldexp(float(total.t), round(total.log / math.log(2))) if log < 709 else math.inf


def _sums(
    model: nn.Module,
    example_input: Any,
    trace: Trace,
    pooling: str,
    dtype: torch.dtype,
    tops: Mapping[str, float],
    ones: bool = False,
) -> PathSums:
    constants = Constants(trace, model)
    device = next(model.parameters()).device
    for value, tensor in zip(trace.inputs, tensors_in(as_arguments(example_input)), strict=True):
        if not tensor.is_floating_point():
            constants.know(value, tensor)
    return PathSums(trace, constants, dtype, device, pooling, ones, shared_memory(model)[0], tops)


def _passes(
    model: nn.Module, example_input: Any, trace: Trace, pooling: str, dtype: torch.dtype, tops: Mapping[str, float]
) -> PathSums:
    with _apart(model):
        sums = _sums(model, example_input, trace, pooling, dtype, tops)
        with torch.no_grad():
            sums.forward()
            sums.backward()
        return sums


@contextmanager
def _apart(model: nn.Module) -> Iterator[None]:
    """Full precision, whatever the caller's inference mode, autocast and TF32 settings; each is put back."""
    kind = next(model.parameters()).device.type
    with torch.inference_mode(False), torch.autocast(kind, enabled=False), full_precision():
        yield


@contextmanager
def full_precision() -> Iterator[None]:
    """No TF32, and the same result each time; the settings are put back."""
    matmul = torch.backends.cuda.matmul.allow_tf32
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
        try:
            torch.backends.cuda.matmul.allow_tf32 = False
            yield
        finally:
            torch.backends.cuda.matmul.allow_tf32 = matmul


def _near_underflow(sums: PathSums) -> bool:
    ends = [end for g in sums.grads.values() if g.t.numel() for end in torch.aminmax(g.t)]
    found = torch.stack(ends).tolist() if ends else []
    return any(low <= _TINY * high for low, high in zip(found[::2], found[1::2], strict=True))


def finite_entries(model: nn.Module) -> dict[str, float]:
    """Largest absolute entry of every parameter and buffer; NaN and infinity are refused."""
    named = dict(model.named_parameters()) | dict(model.named_buffers())
    tops = largest_entries(named)
    for name, top in tops.items():
        if not math.isfinite(top):
            bad = int((~torch.isfinite(named[name])).sum())
            raise PathCondError(
                f"expected finite weights, got {bad} NaN or infinite entries of {named[name].numel()} in '{name}'. "
                "Rescale before training diverges, or load a sound checkpoint."
            )
    return tops
