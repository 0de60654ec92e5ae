"""Multiply parameters, and optimizer state that belongs to them, by scales: the only place that writes weights.

A parameter multiplied by s has its gradients divided by s. Averages of gradients in an optimizer's state are therefore
divided by s, and averages of squared gradients by s**2. Without weight decay, and up to the small ``eps`` that some
optimizers add, the state is then what the optimizer would hold had it seen the rescaled model throughout.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable

import torch
from torch import Tensor, nn, optim

from pathcond.checks import ApplyError, PathCondError, largest_entries, shared_memory
from pathcond.graph import ParamScales, ScaleGraph
from pathcond.isolation import on_cpu
from pathcond.saved_scales import Scales

_PLAIN = 40.0  # factors within exp(-40) .. exp(40) are multiplied in directly, larger ones in a wider format

# Powers of the gradient in optimizer state: 1 for averages of gradients, 2 for averages of squares, 0 for ratios.
_ADAM = {"exp_avg": 1, "exp_avg_sq": 2, "max_exp_avg_sq": 2}
OPTIMIZER_STATE: dict[type[optim.Optimizer], dict[str, int]] = {
    optim.SGD: {"momentum_buffer": 1},
    optim.Adam: _ADAM,
    optim.AdamW: _ADAM,
    optim.NAdam: _ADAM,
    optim.RAdam: _ADAM,
    optim.Adamax: {"exp_avg": 1, "exp_inf": 1},
    optim.RMSprop: {"square_avg": 2, "grad_avg": 1, "momentum_buffer": 0},
    optim.Adagrad: {"sum": 2},
    optim.Adadelta: {"square_avg": 2, "acc_delta": 0},
}
if hasattr(optim, "Muon"):  # since torch 2.9
    OPTIMIZER_STATE[optim.Muon] = {"momentum_buffer": 1}


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
    scale_optimizer_state_(model, graph, log_scales, optimizer)


def scale_parameters_(model: nn.Module, graph: ScaleGraph, log_scales: Tensor, force: bool) -> None:
    """As :func:`apply_scales_`, for parameters alone."""
    parameters = dict(model.named_parameters())
    if tuple(log_scales.shape) != (graph.units,):
        raise ApplyError(f"expected log_scales of shape ({graph.units},), got shape {tuple(log_scales.shape)}.")
    if bad := int((~torch.isfinite(log_scales)).sum()):
        raise ApplyError(f"expected finite log-scales, got {bad} NaN or infinite ones.")
    if frozen := [name for name in graph.params if parameters[name].is_inference()]:
        raise ApplyError(
            f"expected parameters that can be written, got '{frozen[0]}' made in torch.inference_mode. Build or load "
            "the model outside of it."
        )
    logs = graph.by_number(log_scales.detach().double().cpu())
    with torch.inference_mode(False), torch.no_grad():
        if not force:
            largest = largest_entries({name: parameters[name] for name in graph.params})
            for name in graph.params:
                _check_range(name, parameters[name], graph.params[name], logs, largest.get(name, 0.0))
        _multiply_(graph, logs, [(name, parameters[name], 1) for name in graph.params])
        torch.clear_autocast_cache()  # the cache holds copies of the weights


def scale_optimizer_state_(
    model: nn.Module, graph: ScaleGraph, log_scales: Tensor, optimizer: optim.Optimizer | None
) -> None:
    """Rescale the state of an optimizer whose parameters were rescaled."""
    logs = graph.by_number(log_scales.detach().double().cpu())
    with torch.inference_mode(False), torch.no_grad():
        _multiply_(graph, logs, optimizer_buffers(model, graph.params, optimizer))


def optimizer_buffers(
    model: nn.Module, names: Collection[str], optimizer: optim.Optimizer | None
) -> list[tuple[str, Tensor, int]]:
    """The optimizer's state of the named parameters: name, tensor, and the power of the scale that it follows.

    Raises:
        PathCondError: ``optimizer`` is no optimizer, belongs to another model, or has state that cannot be rescaled.
    """
    if optimizer is None:
        return []
    if not isinstance(optimizer, optim.Optimizer):
        kind = type(optimizer).__name__
        raise PathCondError(f"expected optimizer to be a torch.optim.Optimizer or None, got {kind}.")
    parameters = dict(model.named_parameters())
    same = {name: name for name in names if name in parameters}
    # Parameters on the same memory have a state of their own.
    same |= {other: name for other, name in shared_memory(model)[0].items() if name in same}
    ours = {id(parameters[other]) for other in same}
    if ours and not any(id(p) in ours for group in optimizer.param_groups for p in group["params"]):
        raise PathCondError("expected the optimizer of this model, got one that holds none of the rescaled parameters.")
    powers = next((powers for kind, powers in OPTIMIZER_STATE.items() if isinstance(optimizer, kind)), {})
    found: list[tuple[str, Tensor, int]] = []
    for other, name in same.items():
        p = parameters[other]
        for key, value in optimizer.state.get(p, {}).items():
            if not isinstance(value, Tensor) or (value.numel() == 1 and (value.shape != p.shape or key == "step")):
                continue  # step counts and other scalars
            if key not in powers or value.shape != p.shape:
                known = ", ".join(kind.__name__ for kind in OPTIMIZER_STATE)
                raise PathCondError(
                    f"expected the state of one of {known}, got {key!r} of {type(optimizer).__name__} for parameter "
                    f"'{name}', whose change under a rescaling is not known. Nothing was changed. Use such an "
                    "optimizer, or pass optimizer=None to leave the state as it is."
                )
            found.append((name, value, -powers[key]))
    return found


def _multiply_(graph: ScaleGraph, logs: Tensor, tensors: Iterable[tuple[str, Tensor, int]]) -> None:
    """Multiply tensors in place by the factors of the named parameters at some power; ``logs`` is log lambda by number.

    Tensors in 16 bits are multiplied in float32; sums with an offset, and by factors beyond exp(40), in float64.
    """
    reach = 2 * float(logs.abs().amax())
    for name, tensor, power in tensors:
        scales = graph.params[name]
        offset = scales.offset if power == 1 else 0.0
        wide = torch.float64 if offset or abs(power) * reach >= _PLAIN else torch.float32
        made = tensor.to(torch.promote_types(tensor.dtype, wide))
        made = made + offset if offset else made
        for end, sign in ((scales.row, power), (scales.col, -power)):
            if power and bool(end.any()):
                made.mul_((sign * logs[end]).exp().to(made.dtype).to(made.device))
        if made is not tensor:
            tensor.copy_(made - offset)


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
