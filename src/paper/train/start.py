"""Start weights of a run: those of its seed, rescaled as its method says. The library does the work."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import pathcond
from paper import models
from paper.blocks import PARTS
from paper.errors import PaperError


@dataclass(frozen=True)
class Start:
    """A network ready to train, and by how much it was rescaled: the largest abs(log lambda), 0 for not at all."""

    module: nn.Module
    max_log_scale: float


def start(cell: Mapping[str, Any], seed: int) -> Start:
    """The network a run starts from; methods at one seed start from the same weights before rescaling."""
    module = models.make(cell["model"], seed)
    rescaling = cell["rescaling"]
    if not rescaling.get("rescale"):
        return Start(module, 0.0)
    return Start(module, rescale(module, models.example_input(cell["model"]), rescaling))


def rescale(module: nn.Module, x: Tensor, rescaling: Mapping[str, Any]) -> float:
    """Rescale a network as a method says, in place, unless it diverged; returns the largest abs(log lambda).

    Raises:
        PaperError: the part of the scales to apply is unknown.
    """
    if rescaling["part"] not in PARTS:
        raise PaperError(f"rescaling.part: expected one of {', '.join(PARTS)}, got {rescaling['part']!r:.60}.")
    if not sound(module):
        return 0.0
    # Smooth activations let scales pass; for ReLU the option changes nothing.
    graph = pathcond.extract_graph(module, x, batchnorm=rescaling["batchnorm"], smooth=True)
    g = pathcond.path_magnitudes(module, x, pooling=rescaling["pooling"])
    solution = pathcond.solve(
        graph, g, method=rescaling["solver"], sweeps=rescaling["sweeps"], clamp=rescaling.get("clamp")
    )
    if rescaling["part"] == "both":
        pathcond.apply_scales_(module, graph, solution.u)
    else:
        _apply_part(module, graph, solution.u, rescaling["part"])
    return float(solution.u.abs().max()) / 2


def sound(module: nn.Module) -> bool:
    """Whether all numbers of a network are finite; one that diverged in training is not rescaled any more."""
    return all(bool(t.isfinite().all()) for t in module.state_dict().values())


def _apply_part(module: nn.Module, graph: pathcond.ScaleGraph, u: Tensor, part: str) -> None:
    """The incoming side of the scales alone, or the outgoing one: the function changes, which is the point."""
    scale = torch.cat((u.new_zeros(1), u / 2)).exp()
    parameters = dict(module.named_parameters())
    with torch.no_grad():
        for name, units in graph.params.items():
            factor = scale[units.row] if part == "rows" else scale[units.col].reciprocal()
            parameters[name].mul_(factor.to(parameters[name].dtype))
