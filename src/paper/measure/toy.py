"""Gradient descent on f(x) = u relu(v x + w) towards relu: as drawn, rescaled by PathCond, and in lifted space (ideal).

Symbols of the paper and their names here:

    theta = (u, v, w)      theta    shape (runs, 3)
    Phi = (u v, u w)       phi      shape (runs, 2); with u > 0 the loss is a function of Phi alone
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from paper.errors import PaperError
from paper.seeds import generator
from pathcond.theory import toy_rescaled

COLUMNS = [
    "start", "extra", "run", "seed", "step", "loss", "u", "v", "w", "phi_1", "phi_2",
    "reached_1e2", "reached_1e4", "distance",
]  # fmt: skip
# Points, evenly spaced along a run's curve, whose distances to the ideal curve are averaged.
POINTS = 400


@dataclass(frozen=True)
class _Paths:
    """Parameters (steps + 1, runs, 3), lifted parameters (steps + 1, runs, 2) and losses (steps + 1, runs)."""

    theta: Tensor
    phi: Tensor
    loss: Tensor


def measure(settings: Mapping[str, Any], device: torch.device) -> pd.DataFrame:
    """Follow every start, raw, rescaled and ideal, by full-batch gradient descent.

    Args:
        settings: draws, lr, steps, every, starts, slower_start, seeds.
        device: not used: on a CPU this is fastest, and the same everywhere.

    Returns:
        One row a recorded step, in the columns of the item `toy`.

    Raises:
        PaperError: A start has u <= 0, or its neuron is dead.
    """
    starts = [(list(start), False) for start in settings["starts"]] + [(list(settings["slower_start"]), True)]
    for start, _ in starts:
        _check(start)
    tables = []
    for seed in settings["seeds"]:
        x = torch.randn(settings["draws"], generator=generator(seed, "input"), dtype=torch.float64)
        tables.append(_follow(starts, x, settings).assign(seed=seed))
    return pd.concat(tables, ignore_index=True).reindex(columns=COLUMNS)


def curve_distance(path: np.ndarray, other: np.ndarray) -> float:
    """Mean distance from a curve to another, over points evenly spaced along the first.

    Both are chains of straight pieces, shapes (n, 2) and (m, 2) with m > 1. Steps shrink as the loss falls, so a mean
    over steps would measure the end of the run alone.
    """
    along = np.concatenate(([0.0], np.linalg.norm(np.diff(path, axis=0), axis=1).cumsum()))
    spots = np.linspace(0.0, along[-1], POINTS)
    points = np.stack([np.interp(spots, along, coordinate) for coordinate in path.T], axis=1)
    pieces = np.diff(other, axis=0)
    offsets = points[:, None] - other[:-1]
    squares = np.maximum((pieces**2).sum(1), np.finfo(float).tiny)
    shares = ((offsets * pieces).sum(2) / squares).clip(0.0, 1.0)
    return float(np.linalg.norm(offsets - shares[..., None] * pieces, axis=2).min(1).mean())


def _check(start: Sequence[float]) -> None:
    if len(start) != 3 or not start[0] > 0.0 or start[1] == start[2] == 0.0:
        raise PaperError(
            f"toy: expected starts (u, v, w) with u > 0 and v or w not 0, got {tuple(start)}. "
            "Change `starts` or `slower_start` of `toy` in config.yaml."
        )


def _follow(starts: Sequence[tuple[list[float], bool]], x: Tensor, settings: Mapping[str, Any]) -> pd.DataFrame:
    raw = torch.tensor([start for start, _ in starts], dtype=torch.float64)
    rescaled = raw.new_tensor([toy_rescaled(*start) for start, _ in starts])
    # The lifted start with u = 1 held fixed is gradient descent on the loss as a function of Phi.
    ideal = torch.cat((torch.ones_like(raw[:, :1]), raw[:, :1] * raw[:, 1:]), 1)
    free = torch.ones(3 * len(starts), 3, dtype=torch.float64)
    free[2 * len(starts) :, 0] = 0.0
    paths = _descend(torch.cat((raw, rescaled, ideal)), free, x, settings["lr"], settings["steps"])
    tables = []
    for number, (start, extra) in enumerate(starts):
        lifted = paths.phi[:, 2 * len(starts) + number].numpy()
        names = {"start": ", ".join(f"{value:g}" for value in start), "extra": extra}
        for block, run in enumerate(("raw", "rescaled", "ideal")):
            rows = _rows(paths, block * len(starts) + number, lifted, run == "ideal", settings["every"])
            tables.append(pd.DataFrame(names | {"run": run} | rows))
    return pd.concat(tables, ignore_index=True)


def _descend(theta: Tensor, free: Tensor, x: Tensor, lr: float, steps: int) -> _Paths:
    """Gradient descent on mean (u relu(v x + w) - relu(x))^2 from each row of `theta`; 0 in `free` holds an entry."""
    y = x.relu()
    # Filled in place: small tensors kept from every step would hold the memory of the large ones between them.
    path, losses = theta.new_empty(steps + 1, *theta.shape), theta.new_empty(steps + 1, len(theta))
    for step in range(steps + 1):
        u, v, w = theta.T[..., None]
        active = (v * x + w).relu()
        error = u * active - y
        path[step], losses[step] = theta, (error**2).mean(1)
        inner = torch.where(active > 0.0, u * error, 0.0)
        gradient = torch.stack(((error * active).mean(1), (inner * x).mean(1), inner.mean(1)), 1)
        theta = theta - lr * 2.0 * free * gradient
    return _Paths(path, path[..., :1] * path[..., 1:], losses)


def _rows(paths: _Paths, index: int, lifted: np.ndarray, ideal: bool, every: int) -> dict[str, Any]:
    """Columns of one run, at every `every` steps and the last, and before the first of these at each, where paths bend.

    `lifted` is the ideal path from the same start.
    """
    loss, phi = paths.loss[:, index].numpy(), paths.phi[:, index].numpy()
    theta = np.full((len(loss), 3), np.nan) if ideal else paths.theta[:, index].numpy()
    last = len(loss) - 1
    steps = np.union1d(np.arange(min(every, last)), np.append(np.arange(0, last + 1, every), last))
    columns: dict[str, Any] = {"step": steps, "loss": loss[steps]}
    columns |= dict(zip(("u", "v", "w"), theta[steps].T, strict=True))
    columns |= dict(zip(("phi_1", "phi_2"), phi[steps].T, strict=True))
    columns |= {"reached_1e2": _reached(loss, 1e-2), "reached_1e4": _reached(loss, 1e-4)}
    return columns | {"distance": 0.0 if ideal else curve_distance(phi, lifted)}


def _reached(loss: np.ndarray, target: float) -> float:
    """First step with a loss below the target; NaN if there is none."""
    below = np.flatnonzero(loss < target)
    return float(below[0]) if len(below) else np.nan
