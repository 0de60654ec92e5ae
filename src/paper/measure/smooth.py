"""How much the rescaling changes MLPs whose activation is not positively homogeneous, by depth."""

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

import pathcond
from paper import models
from paper.seeds import generator


def measure(settings: Mapping[str, Any], device: torch.device) -> pd.DataFrame:
    """One row an activation, initialisation, depth and seed: relative output change of MLPs with BatchNorm.

    At one seed and depth all activations share weights and inputs. Everything is in float64 and eval mode, with
    BatchNorm left out of the units.

    Args:
        settings: ``activations``, ``initialisations``, ``hidden_layers``, ``inputs``, ``width``, ``outputs``,
            ``samples`` (inputs drawn from N(0, I)), ``sweeps``, ``clamp`` (bound on every absolute u), ``seeds``.
        device: where the networks are.

    Returns:
        Columns activation, initialisation, hidden_layers, seed, error (norm of the output's change over the norm of the
        output, mean over samples), max_u (largest absolute u), clamped (units at the bound).
    """
    return pd.DataFrame(list(_rows(settings, device)))


def _rows(settings: Mapping[str, Any], device: torch.device) -> Iterator[dict[str, Any]]:
    for activation, depth in product(settings["activations"], settings["hidden_layers"]):
        model = {
            "kind": "mlp", "inputs": settings["inputs"], "hidden": [settings["width"]] * depth,
            "outputs": settings["outputs"], "activation": activation,
        }  # fmt: skip
        graph = None
        for initialisation, seed in product(settings["initialisations"], settings["seeds"]):
            module = models.make(model, seed, "smooth", depth, initialisation=initialisation)
            module = module.double().to(device).eval()
            draws = generator(seed, "input", "smooth", depth)
            x = torch.randn(settings["samples"], settings["inputs"], generator=draws, dtype=torch.float64).to(device)
            graph = graph or pathcond.extract_graph(module, x[:1], batchnorm="exclude", smooth=True)
            names = {"activation": activation, "initialisation": initialisation, "hidden_layers": depth, "seed": seed}
            yield names | _change(module, graph, x, settings["sweeps"], settings["clamp"])


def _change(
    module: nn.Module, graph: pathcond.ScaleGraph, x: Tensor, sweeps: int, clamp: float
) -> dict[str, float | int]:
    before = _outputs(module, x)
    report = pathcond.rescale_(module, x[:1], graph=graph, sweeps=sweeps, clamp=clamp, check=False)
    size = report.solution.u.abs()
    error = (_outputs(module, x) - before).norm(dim=1) / before.norm(dim=1)
    return {"error": float(error.mean()), "max_u": float(size.amax()), "clamped": int((size >= clamp).sum())}


def _outputs(module: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return module(x)
