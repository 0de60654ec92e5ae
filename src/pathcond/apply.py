"""Multiply parameters by their scales: the only place where weights are written."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from pathcond.checks import check_shapes, largest_entries
from pathcond.device import on_cpu
from pathcond.errors import ApplyError
from pathcond.graph import ParamScales, ScaleGraph

_CHUNK = 1 << 22
_PLAIN = 40.0  # factors up to exp of this are applied one after the other


@on_cpu
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
    apply_known_(model, graph, u, force, None)


def apply_known_(model: nn.Module, graph: ScaleGraph, u: Tensor, force: bool, tops: Mapping[str, float] | None) -> None:
    """As :func:`apply_scales_`, with the largest absolute entry of each parameter if they are known already."""
    if tuple(u.shape) != (graph.units,):
        raise ApplyError(f"expected u of shape ({graph.units},), one log-scale a unit, got shape {tuple(u.shape)}.")
    if not bool(torch.isfinite(u).all()):
        raise ApplyError(
            f"expected finite log-scales, got {int((~torch.isfinite(u)).sum())} NaN or infinite ones in u."
        )
    check_shapes(model, graph.shapes)
    parameters = dict(model.named_parameters())
    if made := [name for name in graph.params if parameters[name].is_inference()]:
        raise ApplyError(
            f"expected parameters that can be written, got '{made[0]}' made in torch.inference_mode. Build or load the "
            "model outside of it."
        )
    half = torch.cat((torch.zeros(1, dtype=torch.float64), u.detach().double().cpu() / 2))
    if not bool(half.any()):
        return
    with torch.inference_mode(False), torch.no_grad():
        spans = {name: _span(scales, half) for name, scales in graph.params.items()}
        if not force:
            tops = largest_entries({name: parameters[name] for name in spans}) if tops is None else tops
            for name, span in spans.items():
                _check_range(name, parameters[name], graph.params[name], half, span, tops.get(name, 0.0))
        factors: dict[torch.device, tuple[Tensor, Tensor]] = {}
        for name, (low, high) in spans.items():
            p = parameters[name]
            if p.device not in factors:
                factors[p.device] = (half.exp().to(p.device), (-half).exp().to(p.device))
            if p.dtype in (torch.float32, torch.float64) and max(-low, high) < _PLAIN:
                for factor, index in zip(factors[p.device], graph.indices(name, p.device), strict=True):
                    if index is not None:
                        p.mul_(factor[index].to(p.dtype))
            else:
                _scale_(p, graph.params[name], half)
        torch.clear_autocast_cache()  # it holds copies of the weights


def _span(scales: ParamScales, half: Tensor) -> tuple[float, float]:
    """Bounds on the logarithms of a parameter's factors, and of their parts."""
    row, col = torch.aminmax(half[scales.row]), torch.aminmax(-half[scales.col])
    return min(0.0, float(row.min)) + min(0.0, float(col.min)), max(0.0, float(row.max)) + max(0.0, float(col.max))


def _check_range(
    name: str, p: Tensor, scales: ParamScales, half: Tensor, span: tuple[float, float], top: float
) -> None:
    """Refuse scales that take the largest weight over the top of its format, or others below its bottom."""
    limits = torch.finfo(p.dtype)
    high, low = math.log(limits.max), math.log(limits.smallest_normal)
    if top == 0.0 or (span[1] + math.log(top) < high and span[0] + math.log(top) > low / 2):
        return
    size = p.abs()
    log = size.double().log() + (half[scales.row] - half[scales.col]).to(p.device)
    over, under = int((log > high).sum()), int(((log < low) & (size >= limits.smallest_normal)).sum())
    if over or under:
        what = f"{over} weights of '{name}' would overflow" if over else f"{under} weights of '{name}' would vanish"
        wider = {torch.float64: "", torch.float32: "use model.double(), "}.get(p.dtype, "use model.float(), ")
        raise ApplyError(
            f"expected scaled weights within {p.dtype} ({limits.smallest_normal:.2g} to {limits.max:.2g}), but {what}. "
            f"Nothing was written. Bound the scales with clamp=, {wider}or pass force=True."
        )


def _scale_(p: Tensor, scales: ParamScales, half: Tensor) -> None:
    """Scale through a wider format, a few million weights at a time."""
    wide = torch.float64 if p.dtype in (torch.float32, torch.float64) else torch.float32
    if p.ndim == 0:
        p.copy_(p.to(wide) * (half[scales.row] - half[scales.col]).exp().to(p.device, wide))
        return
    rows = max(1, _CHUNK // max(1, p[:1].numel()))
    for start in range(0, p.shape[0], rows):
        part = p[start : start + rows]
        row, col = (x[start : start + rows] if x.shape[0] > 1 else x for x in (scales.row, scales.col))
        part.copy_(part.to(wide) * (half[row] - half[col]).exp().to(p.device, wide))
