"""Multiply parameters by their scales: the only place where weights are written."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from pathcond.errors import ApplyError
from pathcond.graph import ParamScales, ScaleGraph

_CHUNK = 1 << 22


def apply_scales_(model: nn.Module, graph: ScaleGraph, u: Tensor, *, force: bool = False) -> None:
    """Rescale a model in place: what enters unit h is multiplied by ``exp(u[h] / 2)``, what leaves it divided by it.

    All parameters are checked before the first is written, so an error leaves the model as it was. Dtypes, devices,
    ``requires_grad`` and gradients stay as they are.

    Args:
        model: the model the graph was extracted from, or one with the same parameters.
        graph: the units.
        u: log-scales, shape (units,).
        force: write even where a value leaves the range of its number format.

    Raises:
        ApplyError: ``u`` has the wrong shape or is not finite; the model's parameters are not the graph's; or, without
            ``force``, a scaled weight would overflow its dtype or vanish in it.

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
    if tuple(u.shape) != (graph.units,):
        raise ApplyError(f"expected u of shape ({graph.units},), one log-scale a unit, got shape {tuple(u.shape)}.")
    if not bool(torch.isfinite(u).all()):
        raise ApplyError(
            f"expected finite log-scales, got {int((~torch.isfinite(u)).sum())} NaN or infinite ones in u."
        )
    parameters = dict(model.named_parameters())
    for name, shape in graph.shapes.items():
        if name not in parameters or tuple(parameters[name].shape) != shape:
            got = f"shape {tuple(parameters[name].shape)}" if name in parameters else "no such parameter"
            raise ApplyError(
                f"expected the graph's parameter '{name}' of shape {shape}, got {got}. Extract a new graph."
            )
    half = torch.cat((torch.zeros(1, dtype=torch.float64), u.detach().double().cpu() / 2))
    if not bool(half.any()):
        return
    with torch.inference_mode(False), torch.no_grad():
        if not force:
            for name, scales in graph.params.items():
                _check_range(name, parameters[name], scales, half)
        for name, scales in graph.params.items():
            _scale_(parameters[name], scales, half)


def _logs(p: Tensor, scales: ParamScales, half: Tensor) -> tuple[Tensor, Tensor]:
    """Logarithms of the row and column factors, float64, on the parameter's device."""
    return half[scales.row].to(p.device), (-half[scales.col]).to(p.device)


def _check_range(name: str, p: Tensor, scales: ParamScales, half: Tensor) -> None:
    """Refuse scales that take the largest weight over the top of its format, or the smallest below its bottom."""
    row, col = _logs(p, scales, half)
    limits = torch.finfo(p.dtype)
    high, low = math.log(limits.max), math.log(limits.smallest_normal)
    top = float(row.amax() + col.amax())
    bottom = float(row.amin() + col.amin())
    size = p.abs()
    largest = float(size.amax()) if p.numel() else 0.0
    if largest == 0.0 or (top + math.log(largest) < high and bottom > math.log(limits.eps) + low / 2):
        return
    log = size.double().log() + row + col
    over, under = int((log > high).sum()), int(((log < low) & (size >= limits.smallest_normal)).sum())
    if over or under:
        what = f"{over} weights of '{name}' would overflow" if over else f"{under} weights of '{name}' would vanish"
        raise ApplyError(
            f"expected scaled weights within {p.dtype} ({limits.smallest_normal:.2g} to {limits.max:.2g}), but {what}. "
            "Nothing was written. Bound the scales with clamp=, use model.float(), or pass force=True."
        )


def _scale_(p: Tensor, scales: ParamScales, half: Tensor) -> None:
    row, col = _logs(p, scales, half)
    wide = p.dtype in (torch.float32, torch.float64) and float(row.abs().amax() + col.abs().amax()) < 40
    if wide:
        for log in (row, col):
            if bool(log.any()):
                p.mul_(log.exp().to(p.dtype))
        return
    target = torch.float64 if p.dtype in (torch.float32, torch.float64) else torch.float32
    rows = max(1, _CHUNK // max(1, p[:1].numel())) if p.ndim else 1
    for start in range(0, p.shape[0] if p.ndim else 1, rows):
        part = p[start : start + rows] if p.ndim else p
        pieces = [log[start : start + rows] if log.ndim and log.shape[0] > 1 else log for log in (row, col)]
        part.copy_(part.to(target) * (pieces[0] + pieces[1]).exp().to(target))
