"""How much the rescaling changes MLPs whose activation is not positively homogeneous, by depth."""

import copy
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

    At one seed and depth all activations share weights and inputs. Everything is in float64, with BatchNorm left out
    of the units; in eval mode but for `train_error`.

    Args:
        settings: ``activations``, ``initialisations``, ``hidden_layers``, ``inputs``, ``width``, ``outputs``,
            ``samples`` (inputs drawn from N(0, I)), ``sweeps``, ``clamp`` (bound on every absolute u), ``seeds``.
        device: where the networks are.

    Returns:
        Columns activation, initialisation, hidden_layers, seed, error (norm of the output's change over the norm of the
        output, mean over samples), train_error (the same in train mode, with the samples as the batch), max_u (largest
        absolute u), clamped (units at the bound); and without the bound: free_u (largest absolute u), kept_u and
        kept_error (u and change where the activations are kept in diag(G), NaN where there is no solution).
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
    g = pathcond.path_magnitudes(module, x[:1], graph=graph)
    bounded = pathcond.solve(graph, g, sweeps=sweeps, clamp=clamp).u
    free = pathcond.solve(graph, g, sweeps=sweeps).u
    try:
        kept = pathcond.solve(graph, _kept_magnitudes(module, x[:1]), sweeps=sweeps).u
    except pathcond.SolveError:
        kept = torch.full_like(free, float("nan"))
    return {
        "error": _error(module, graph, x, bounded),
        "train_error": _error(module, graph, x, bounded, training=True),
        "max_u": float(bounded.abs().amax()),
        "clamped": int((bounded.abs() >= clamp).sum()),
        "free_u": float(free.abs().amax()),
        "kept_u": float(kept.abs().amax()),
        "kept_error": _error(module, graph, x, kept) if bool(kept.isfinite().all()) else float("nan"),
    }


def _error(module: nn.Module, graph: pathcond.ScaleGraph, x: Tensor, u: Tensor, training: bool = False) -> float:
    """Relative change of the outputs that log-scales make; the module is left as it is."""
    before, after = copy.deepcopy(module).train(training), copy.deepcopy(module).train(training)
    pathcond.apply_scales_(after, graph, u)
    with torch.no_grad():
        first, second = before(x), after(x)
    return float(((second - first).norm(dim=1) / first.norm(dim=1)).mean())


def _kept_magnitudes(module: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """diag(G) as one gets it with the activations left in the network of squared weights, on ones."""
    squared = copy.deepcopy(module)
    with torch.no_grad():
        for parameter in squared.parameters():
            parameter.square_()
    names, parameters = zip(*squared.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(squared(torch.ones_like(x)).sum(), parameters), strict=True))
