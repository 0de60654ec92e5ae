"""Initial weights of a run: those of its seed, rescaled by its method."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import pathcond
from paper import starts
from paper.methods import solver_options


@dataclass(frozen=True)
class InitialNetwork:
    """An initial network."""

    module: nn.Module
    max_log_scale: float  # the largest abs(log lambda) of its rescaling, 0 without one
    lr_factors: Mapping[str, float] = field(default_factory=dict)  # by parameter, of a method that changes rates
    seconds: float = 0.0  # wall time of the rescaling


def initialize(
    spec: Mapping[str, Any], seed: int, results: Path | None = None, batch: Tensor | None = None
) -> InitialNetwork:
    """The initial network of a run; before rescaling, all methods have the same weights at one seed.

    Start weights and rescalings saved in the folder of the results are read instead of computed. Methods that measure
    statistics need a batch of images as the network takes them; the network moves to their device.
    """
    spec = {**spec, "seed": seed}
    module = starts.network(spec, results)
    how = spec["rescaling"]
    if not how.get("rescale"):
        return InitialNetwork(module, 0.0)
    if how.get("statistics") == "input" and batch is not None:
        module = module.to(batch.device)
    began = time.perf_counter()
    graph, found, _ = starts.log_scales(spec, module, results, batch)
    u = found["u"]
    factors = lr_factors(graph, u) if how["part"] == "rates" else {}
    return InitialNetwork(module, _apply(module, graph, u, how["part"]), factors, time.perf_counter() - began)


def lr_factors(graph: pathcond.ScaleGraph, u: Tensor) -> dict[str, float]:
    """Learning rates by parameter that imitate a rescaling.

    A step of plain SGD on a parameter multiplied by d is, in the parameter as it was, a step at 1 / d^2 times the
    learning rate. Each parameter tensor gets the geometric mean of that over its entries.
    """
    padded = graph.by_number(u).double()  # log d^2 is u of the row minus u of the column
    return {
        name: math.exp(float(padded[units.col].mean() - padded[units.row].mean()))
        for name, units in graph.params.items()
    }


def rescale(module: nn.Module, x: Tensor, rescaling: Mapping[str, Any]) -> float:
    """Rescale a network in place by a method's settings, unless it diverged; returns the largest abs(log lambda)."""
    if not is_finite(module):
        return 0.0
    # Smooth activations let scales pass; for ReLU the option changes nothing.
    graph = pathcond.extract_graph(module, x, batchnorm=rescaling["batchnorm"], smooth=True)
    g = pathcond.compute_diag_g(module, x, pooling=rescaling["pooling"], graph=graph)
    solution = pathcond.solve(graph, g, **solver_options(rescaling), damping=rescaling.get("damping", 1.0))
    return _apply(module, graph, solution.u, rescaling["part"])


def _apply(module: nn.Module, graph: pathcond.ScaleGraph, u: Tensor, part: str) -> float:
    """Apply log-scales in place, unless they are for learning rates; returns the largest abs(log lambda)."""
    if part == "both":
        pathcond.apply_scales_(module, graph, u)
    elif part != "rates":
        _apply_part(module, graph, u, part)
    return float(u.abs().max()) / 2 if len(u) else 0.0


def is_finite(module: nn.Module) -> bool:
    """Whether all parameters and buffers are finite; a network that diverged is not rescaled."""
    return all(bool(t.isfinite().all()) for t in module.state_dict().values())


def _apply_part(module: nn.Module, graph: pathcond.ScaleGraph, u: Tensor, part: str) -> None:
    """Apply the incoming (rows) or outgoing (columns) scales alone, for the ablation study: the function changes."""
    scale = graph.by_number(u / 2).exp()
    parameters = dict(module.named_parameters())
    with torch.no_grad():
        for name, units in graph.params.items():
            factor = scale[units.row] if part == "rows" else scale[units.col].reciprocal()
            parameters[name].mul_(factor.to(parameters[name].dtype))
