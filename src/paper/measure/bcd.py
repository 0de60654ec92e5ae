"""Convergence of the alternating minimisation: objective and updates of every sweep, against the true optimum."""

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd
import torch

import pathcond
from paper import models


def measure(settings: Mapping[str, Any], device: torch.device) -> pd.DataFrame:
    """One row a pooling, seed and sweep of one network at initialisation, BatchNorm left out of the units.

    Args:
        settings: ``network``, its name; ``model``, its block of ``networks``; ``poolings``, ``sweeps``, ``seeds``.
        device: where diag(G) is computed and the problem solved.

    Returns:
        Columns network, pooling, seed, sweep (0 is the start), objective, normalised (F above its last value, as a
        fraction of the whole decrease), to_optimum (the same above the minimum of F), update (mean absolute change of
        u in the sweep, NaN at 0), and of the last sweep's u, the same in all rows of a run: max_u (largest absolute u)
        and printed (as ``normalised``, had it been applied as exp(Bu) instead of exp(-Bu/2); 1 is no rescaling).
    """
    return pd.concat([_seed(settings, seed, device) for seed in settings["seeds"]], ignore_index=True)


def _seed(settings: Mapping[str, Any], seed: int, device: torch.device) -> pd.DataFrame:
    model = models.make(settings["model"], seed, settings["model"]["kind"]).to(device).eval()
    x = models.example_input(settings["model"]).to(device)
    graph = models.units(model, x, settings["model"])
    frames = []
    for pooling in settings["poolings"]:
        g = pathcond.path_magnitudes(model, x, graph=graph, pooling=pooling, dtype=torch.float64)
        frame = trajectory(graph, g, settings["sweeps"])
        frame.insert(0, "network", settings["network"])
        frame.insert(1, "pooling", pooling)
        frame.insert(2, "seed", seed)
        frames.append(frame)
    return pd.concat(frames)


def trajectory(graph: pathcond.ScaleGraph, g: Mapping[str, torch.Tensor], sweeps: int) -> pd.DataFrame:
    """The columns of :func:`measure` from ``sweep`` on, for one problem."""
    run = pathcond.solve(graph, g, sweeps=sweeps)
    best = pathcond.solve(graph, g, method="optimum").objective[-1]
    f = torch.tensor(run.objective, dtype=torch.float64)
    printed = objective(graph, g, -2.0 * run.u)  # exp(Bu) is exp(-Bu'/2) of u' = -2u
    return pd.DataFrame(
        {
            "sweep": range(len(run.objective)),
            "objective": f,
            "normalised": (f - f[-1]) / (f[0] - f[-1]),
            "to_optimum": (f - best) / (f[0] - best),
            "update": [float("nan"), *run.mean_update],
            "max_u": float(run.u.abs().amax()),
            "printed": float((printed - f[-1]) / (f[0] - f[-1])),
        }
    )


def objective(graph: pathcond.ScaleGraph, g: Mapping[str, torch.Tensor], u: torch.Tensor) -> float:
    """F(u) = p log(sum_i exp((Bu)_i) g_i) - sum_i (Bu)_i, term by term."""
    full = torch.cat((u.new_zeros(1), u))
    size, total, linear = 0, 0.0, 0.0
    for name, values in g.items():
        units, values = graph.params.get(name), values.cpu()
        moved = torch.zeros_like(values) if units is None else (full[units.col] - full[units.row]).expand_as(values)
        size, total = size + values.numel(), total + float((moved.exp() * values).sum())
        linear += float(moved.sum())
    return size * math.log(total) - linear
