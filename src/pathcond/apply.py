"""Multiply parameters, and optimizer state that belongs to them, by scales: the only place that writes weights."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn, optim

from pathcond.checks import ApplyError, check_shapes, largest_entries
from pathcond.graph import ParamScales, ScaleGraph
from pathcond.isolation import on_cpu
from pathcond.optimizer_state import optimizer_buffers
from pathcond.saved_scales import Scales

_PLAIN = 40.0  # factors within exp(-40) .. exp(40) are multiplied in directly, larger ones in a wider format


@on_cpu
def apply_scales_(
    model: nn.Module,
    graph: ScaleGraph | Scales,
    log_scales: Tensor | None = None,
    *,
    optimizer: optim.Optimizer | None = None,
    force: bool = False,
) -> None:
    """Rescale a model in place: what enters unit h is multiplied by its lambda, what leaves it divided by it.

    Everything is checked before the first write, so an error leaves the model as it was. Dtypes, devices,
    ``requires_grad`` and gradients stay as they are.

    Args:
        model: the model the graph was extracted from, or one with the same parameters and operations (a fresh one, an
            EMA copy).
        graph: the units; or :class:`Scales`, units and log-scales together.
        log_scales: log lambda, shape (units,); omitted with :class:`Scales`.
        optimizer: the optimizer whose state is rescaled with the parameters: SGD, Adam, AdamW, NAdam, RAdam, Adamax,
            Muon, RMSprop, Adagrad or Adadelta; None to touch no state.
        force: write even where a value leaves the range of its number format.

    Raises:
        ApplyError: ``log_scales`` has the wrong shape or is not finite; the model is not the graph's; or, without
            ``force``, a scaled weight would overflow its dtype or vanish in it.
        PathCondError: the optimizer is not this model's, or its state cannot be rescaled.

    Example:
        >>> import torch, pathcond
        >>> model = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.ReLU(), torch.nn.Linear(1, 1))
        >>> x = torch.ones(1, 1)
        >>> graph = pathcond.extract_graph(model, x)
        >>> before = model(x).item()
        >>> pathcond.apply_scales_(model, graph, torch.tensor([1.0]))
        >>> abs(model(x).item() - before) < 1e-6
        True
    """
    if isinstance(graph, Scales):
        graph, log_scales = graph.graph, graph.log_scales
    if log_scales is None:
        raise ApplyError("expected log_scales with a ScaleGraph, got none. Pass them, or Scales alone.")
    optimizer_buffers(model, graph.params, optimizer)
    graph.check_fits(model)
    scale_parameters_(model, graph, log_scales, force)
    if optimizer is not None:
        scale_optimizer_state_(model, graph, log_scales, optimizer)


def scale_parameters_(model: nn.Module, graph: ScaleGraph, log_scales: Tensor, force: bool) -> None:
    """As :func:`apply_scales_`, for parameters alone."""
    parameters = dict(model.named_parameters())
    _check_fit(parameters, graph, log_scales)
    logs = graph.by_number(log_scales.detach().double().cpu())
    with torch.inference_mode(False), torch.no_grad():
        if not force:
            largest = largest_entries({name: parameters[name] for name in graph.params})
            for name in graph.params:
                _check_range(name, parameters[name], graph.params[name], logs, largest.get(name, 0.0))
        _multiply_(graph, logs, [(name, parameters[name], 1) for name in graph.params])
        torch.clear_autocast_cache()  # the cache holds copies of the weights


def scale_optimizer_state_(model: nn.Module, graph: ScaleGraph, log_scales: Tensor, optimizer: optim.Optimizer) -> None:
    """Rescale the state of an optimizer whose parameters were rescaled."""
    buffers = optimizer_buffers(model, graph.params, optimizer)
    logs = graph.by_number(log_scales.detach().double().cpu())
    with torch.inference_mode(False), torch.no_grad():
        _multiply_(graph, logs, [(name, t, -power) for name, found in buffers.items() for t, power in found if power])


def _multiply_(graph: ScaleGraph, logs: Tensor, tensors: Iterable[tuple[str, Tensor, int]]) -> None:
    """Multiply tensors in place by the factors of the named parameters at some power; ``logs`` is log lambda by number.

    All factors of one device and dtype are moved there together. Tensors in 16 bits, sums with an offset, and factors
    beyond exp(40) are multiplied in a wider format.
    """
    reach = 2 * float(logs.abs().amax())
    together: dict[tuple[torch.device, torch.dtype], list[tuple[Tensor, Tensor]]] = {}
    for name, tensor, power in tensors:
        scales = graph.params[name]
        offset = scales.offset if power == 1 else 0.0
        ends = power * logs[scales.row], -power * logs[scales.col]
        if offset or abs(power) * reach >= _PLAIN or tensor.dtype not in (torch.float32, torch.float64):
            wide = torch.float32 if tensor.dtype in (torch.float16, torch.bfloat16) else torch.float64
            factor = (ends[0] + ends[1]).exp().to(tensor.device, wide)
            tensor.copy_((tensor.to(wide) + offset) * factor - offset)
        else:
            found = together.setdefault((tensor.device, tensor.dtype), [])
            found += [(tensor, end) for end in ends if bool(end.any())]
    for (device, dtype), found in together.items():
        factors = torch.cat([end.reshape(-1) for _, end in found] or [logs[:0]]).exp().to(dtype).to(device)
        pieces = factors.split([end.numel() for _, end in found])
        for (tensor, end), piece in zip(found, pieces, strict=True):
            tensor.mul_(piece.view(end.shape))


def _check_fit(parameters: Mapping[str, Tensor], graph: ScaleGraph, log_scales: Tensor) -> None:
    """Raise if log-scales are not those of the graph, or the parameters not those of its model."""
    if tuple(log_scales.shape) != (graph.units,):
        raise ApplyError(f"expected log_scales of shape ({graph.units},), got shape {tuple(log_scales.shape)}.")
    if not bool(torch.isfinite(log_scales).all()):
        bad = int((~torch.isfinite(log_scales)).sum())
        raise ApplyError(f"expected finite log-scales, got {bad} NaN or infinite ones.")
    check_shapes(parameters, graph.shapes)
    for name in graph.params:
        if parameters[name].is_inference():
            raise ApplyError(
                f"expected parameters that can be written, got '{name}' made in torch.inference_mode. Build or load "
                "the model outside of it."
            )


def _check_range(name: str, p: Tensor, scales: ParamScales, logs: Tensor, top: float) -> None:
    """Raise if scaled weights would overflow their number format, or underflow in it; ``top`` is the largest of them.

    Where a bound on the factors leaves half the format's range below ``top``, the weights are not looked at.
    """
    limits = torch.finfo(p.dtype)
    high, low = math.log(limits.max), math.log(limits.smallest_normal)
    reach, top = 2 * float(logs.abs().amax()), top + abs(scales.offset)
    if top == 0.0 or (reach + math.log(top) < high and math.log(top) - reach > low / 2):
        return
    size = (p + scales.offset).abs() if scales.offset else p.abs()
    log = size.double().log() + (logs[scales.row] - logs[scales.col]).to(p.device)
    over, under = int((log > high).sum()), int(((log < low) & (size >= limits.smallest_normal)).sum())
    if over or under:
        what = f"{over} weights of '{name}' would overflow" if over else f"{under} weights of '{name}' would vanish"
        wider = {torch.float64: "", torch.float32: "use model.double(), "}.get(p.dtype, "use model.float(), ")
        raise ApplyError(
            f"expected scaled weights within {p.dtype} ({limits.smallest_normal:.2g} to {limits.max:.2g}), but {what}. "
            f"Nothing was written. Bound the scales with clamp=, {wider}or pass force=True."
        )
